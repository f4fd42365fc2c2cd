/* SPDX-License-Identifier: Apache-2.0 */
/*
 * fuzz_gguf.c - whatever a file says, opening it either fails with a message or gives values that
 * can be read. The bytes go through a file in memory, as the reader maps files.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>
#include "kernels/cpu_kernels.h"
#include "runtime/model/load.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);

static volatile unsigned sink; /* keeps the reads */

static void read_key(const struct gguf *g, struct gguf_str key)
{
    char name[128];
    struct gguf_iter it;
    struct gguf_str str;
    uint32_t u;
    float f;
    int b;

    if (key.n >= sizeof name)
        return;
    memcpy(name, key.s, key.n);
    name[key.n] = '\0';
    if (gguf_get_str(g, name, &str, NULL) == 0 && str.n)
        sink += (unsigned char)str.s[0] + (unsigned char)str.s[str.n - 1];
    sink += gguf_get_u32(g, name, &u, NULL) == 0 ? u : 0;
    sink += gguf_get_f32(g, name, &f, NULL) == 0;
    sink += gguf_get_bool(g, name, &b, NULL) == 0;
    if (gguf_array(g, name, GGUF_STRING, &it, NULL) == 0)
        while (gguf_next_str(&it, &str) == 0)
            sink += str.n ? (unsigned char)str.s[str.n - 1] : 0;
    if (gguf_array(g, name, GGUF_I32, &it, NULL) == 0)
        while (gguf_next_u32(&it, &u) == 0)
            sink += u;
}

#define COLS_MAX 1024u

static int differs(float a, float b)
{
    return a != b && (a == a || b == b);
}

/* A row of any type gives the same weights packed, whatever bits its codes and scales have. */
static void read_row(const struct gguf_tensor *t)
{
    static _Alignas(64) uint8_t group[KERN_ROWS * COLS_MAX * sizeof(float)];
    static float source[COLS_MAX], packed[COLS_MAX];
    enum dtype type = (enum dtype)t->type;
    uint32_t n = (uint32_t)t->dims[0];
    struct packed_matrix matrix = {type, 1, n, group};

    if (t->dims[0] > COLS_MAX || n % 32 != 0 || pack_group_bytes(type, n) == 0)
        return;
    pack_group(group, type, t->data, 1, n, 0);
    dequantize_row(source, type, t->data, n);
    packed_row(packed, &matrix, 0);
    for (uint32_t i = 0; i < n; i++)
        if (differs(source[i], packed[i]))
            abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    static int fd = -1;
    struct diag diag = {""};
    struct hparams hp;
    struct gguf *g;
    char path[64];
    float linear;

    if (fd < 0)
        fd = memfd_create("fuzz", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, 0) < 0 || pwrite(fd, data, n, 0) != (ssize_t)n)
        return 0;
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    if (gguf_open(&g, path, &diag) < 0) {
        if (!diag.text[0])
            abort(); /* refused in silence */
        return 0;
    }
    for (uint64_t i = 0; i < gguf_n_keys(g); i++)
        read_key(g, gguf_key_at(g, i));
    for (uint64_t i = 0; i < gguf_n_tensors(g); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(g, i);

        sink += t->data[0] + t->data[t->bytes - 1];
        read_row(t);
    }
    if (hparams_read(&hp, &linear, g, &diag) < 0 && !diag.text[0])
        abort();
    gguf_close(g);
    return 0;
}
