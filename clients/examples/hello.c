/* SPDX-License-Identifier: Apache-2.0 */
/*
 * hello.c - asks one question and prints the answer as it comes.
 *
 *   cc hello.c $(pkg-config --cflags --libs tokenring) -o hello && ./hello
 */
#include <stdio.h>
#include <tokenring/tokenring.h>

int main(void)
{
    tkr_conn *c;
    tkr_event e = {0};
    tkr_req r = TKR_CHAT("Explain quantum computing in one sentence.");

    if (tkr_open(&c, NULL)) {
        fprintf(stderr, "hello: %s\n", tkr_open_error());
        return 3;
    }
    if (tkr_submit(c, &r, 1) == 1)
        while (tkr_wait(c, &e, 1, TKR_FOREVER) == 1 && e.type != TKR_EV_DONE)
            fwrite(e.text, 1, e.len, stdout); /* the bytes lie in shared memory: no copy */
    putchar('\n');
    if (e.status)
        fprintf(stderr, "hello: %s %s\n", tkr_strerror(e.status), e.message);
    tkr_release(c, r.id);
    tkr_close(c);
    return e.type == TKR_EV_DONE && e.status == TKR_OK ? 0 : 1;
}
