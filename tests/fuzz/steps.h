/* SPDX-License-Identifier: Apache-2.0 */
/*
 * steps.h - what the targets that play a hostile client share: where its choices come from, and
 * how far a run has come.
 *
 * Choices come from the input; where that ends they go on from a generator seeded by it, so that
 * each input is thousands of steps and still one and the same story. A step is one load that the
 * daemon makes from client memory (in fuzz_ctl also each 8 bytes of a datagram).
 * TOKENRING_FUZZ_STEPS=N ends the run after N steps; the last line says how many there were.
 */
#ifndef TESTS_FUZZ_STEPS_H
#define TESTS_FUZZ_STEPS_H

#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#define STEPS_OF_INPUT 8192u /* and what the last turn adds */

#define TRAP_UNLESS(cond)                                                                          \
    do {                                                                                           \
        if (!(cond)) {                                                                             \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #cond);                     \
            __builtin_trap();                                                                      \
        }                                                                                          \
    } while (0)

static const uint8_t *input;
static size_t n_input;
static uint64_t generator;
static uint64_t steps, steps_begun, steps_max, inputs;

static void steps_print(void)
{
    fprintf(stderr, "steps: %" PRIu64 " in %" PRIu64 " inputs\n", steps, inputs);
}

static void input_begin(const uint8_t *data, size_t size)
{
    if (!inputs++) {
        const char *max = getenv("TOKENRING_FUZZ_STEPS");

        steps_max = max ? strtoull(max, NULL, 10) : UINT64_MAX;
        atexit(steps_print);
    }
    input = data;
    n_input = size;
    generator = 0x9e3779b97f4a7c15u;
    for (size_t i = 0; i < size; i++)
        generator = (generator ^ data[i]) * 0x100000001b3u;
    generator |= 1;
    steps_begun = steps;
}

/* 1: this input has had its share. */
static int input_is_over(void)
{
    return steps - steps_begun >= STEPS_OF_INPUT;
}

static void input_end(void)
{
    if (steps < steps_max)
        return;
    steps_print();
    raise(SIGUSR1); /* libFuzzer takes this as a request to end well */
    steps_max = UINT64_MAX;
}

/* xorshift64* of Vigna. */
static inline uint64_t generator_next(void)
{
    generator ^= generator >> 12;
    generator ^= generator << 25;
    generator ^= generator >> 27;
    return generator * 0x2545f4914f6cdd1du;
}

static inline uint8_t next_byte(void)
{
    if (!n_input)
        return (uint8_t)(generator_next() >> 56);
    n_input--;
    return *input++;
}

static inline uint32_t next_word(void)
{
    uint32_t word = 0;

    if (!n_input)
        return (uint32_t)(generator_next() >> 32);
    for (int i = 0; i < 4; i++)
        word = word << 8 | next_byte();
    return word;
}

#endif
