/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tso.pml - shared words and the store buffers of x86-TSO.
 *
 * A thread's stores wait in its own buffer and reach memory later, in order; loads go to memory at
 * once. So a load may pass an earlier store of the same thread, and nothing else is reordered: on
 * this machine acquire and release cost nothing, and only a full fence (or a system call, which
 * takes locks) waits until the buffer is empty. Each word has one writer, and no thread of the
 * protocol reads back what it wrote, so a load never has to look into the buffer.
 *
 * The includer defines WORDS and names the words 0 .. WORDS - 1.
 */
byte mem[WORDS];

#define STORE(buffer, word, value) buffer ! word, value
#define FENCE(buffer) empty(buffer)
/* A store and then a fence: what lies between is no more than waiting for the buffer. */
#define STORE_FENCE(buffer, word, value) d_step { empty(buffer) -> mem[word] = value }
/* The kernel's entry has drained the buffer; what it does then is atomic. */
#define SYSCALL(buffer) empty(buffer)

proctype flush(chan buffer)
{
    byte word, value;

end:
    do
    :: d_step { buffer ? word, value -> mem[word] = value; word = 0; value = 0 }
    od
}
