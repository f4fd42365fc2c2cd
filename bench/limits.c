/* SPDX-License-Identifier: Apache-2.0 */
#include "bench/limits.h"

#include <errno.h>
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench/team.h"
#include "kernels/x86/unroll.h"

#define READ_BYTES     ((size_t)256 << 20) /* per thread: more than its share of any cache here */
#define READ_TRIES     6
#define COMPUTE_STEPS  500000u /* loop turns of a compute try: a millisecond or two */
#define COMPUTE_TRIES  20
#define CHAINS         12 /* more than latency x ports of any of the instructions */
#define BARRIER_ROUNDS 20000u
#define BARRIER_TRIES  8

#define UNROLLED KERN_UNROLL for (int i = 0; i < CHAINS; i++)

/* The compiler must keep the value in one register and knows nothing of it: it cannot move work out
 * of a loop, nor copy accumulators to and fro, as gcc 12 otherwise does. */
#define OPAQUE(vector) __asm__ volatile("" : "+v"(vector))

/* Results land here, so that no loop can be dropped. */
static volatile float float_sink;
static volatile int32_t int_sink;

struct reading {
    uint8_t *memory;
    size_t ahead;     /* bytes ahead of the load that are asked for */
    size_t n_streams; /* places of the memory that are read in turn */
};

__attribute__((target("avx2"))) static void read_avx2(void *arg, unsigned thread,
                                                      unsigned n_threads)
{
    const struct reading *r = arg;
    size_t part = READ_BYTES / r->n_streams;
    const uint8_t *first = r->memory + thread * READ_BYTES;
    __m256i sum[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};

    (void)n_threads;
    for (size_t at = 0; at < part; at += 256) {
        for (size_t s = 0; s < r->n_streams; s++) {
            const uint8_t *p = first + s * part + at;

            for (size_t line = 0; line < 256; line += 64) {
                _mm_prefetch((const char *)p + line + r->ahead, _MM_HINT_T0);
                sum[0] = _mm256_xor_si256(sum[0], _mm256_load_si256((const void *)(p + line)));
                sum[1] = _mm256_xor_si256(sum[1], _mm256_load_si256((const void *)(p + line + 32)));
            }
        }
    }
    int_sink = _mm256_extract_epi32(_mm256_xor_si256(sum[0], sum[1]), 0);
}

static double measure_read_gbs(unsigned n_threads)
{
    static const size_t ahead[] = {0, 2048, 4096, 8192};
    size_t bytes = READ_BYTES * n_threads;
    double best_s = 1e9;
    struct reading r = {huge_alloc(bytes + 8192), 0, 0};

    if (!r.memory)
        return -1;
    for (size_t i = 0; i < sizeof ahead / sizeof ahead[0]; i++) {
        for (size_t n_streams = 1; n_streams <= 4; n_streams *= 4) {
            double s;

            r.ahead = ahead[i];
            r.n_streams = n_streams;
            s = team_best_s(n_threads, READ_TRIES, read_avx2, &r);
            best_s = s < best_s ? s : best_s;
        }
    }
    huge_free(r.memory, bytes + 8192);
    return best_s > 0 ? (double)bytes / best_s * 1e-9 : -1;
}

__attribute__((target("avx512f,avx512vnni"))) static void int8_vnni(void *arg, unsigned thread,
                                                                    unsigned n)
{
    __m512i acc[CHAINS], w = _mm512_set1_epi8((char)(thread + 1)), x = _mm512_set1_epi8((char)n),
                         sum = x;

    (void)arg;
    UNROLLED acc[i] = _mm512_setzero_si512();
    for (uint32_t step = 0; step < COMPUTE_STEPS; step++)
        UNROLLED
        {
            acc[i] = _mm512_dpbusd_epi32(acc[i], w, x);
            OPAQUE(acc[i]);
        }
    UNROLLED sum = _mm512_xor_si512(sum, acc[i]);
    int_sink = _mm_cvtsi128_si32(_mm512_castsi512_si128(sum));
}

__attribute__((target("avx2"))) static void int8_avx2(void *arg, unsigned thread, unsigned n)
{
    __m256i acc[CHAINS], w = _mm256_set1_epi8((char)(thread + 1)), ones = _mm256_set1_epi16(1);
    __m256i x = _mm256_set1_epi8((char)n), sum = x;

    (void)arg;
    UNROLLED acc[i] = _mm256_setzero_si256();
    for (uint32_t step = 0; step < COMPUTE_STEPS; step++) {
        UNROLLED
        {
            __m256i pairs;

            OPAQUE(x); /* or all chains would share one product */
            pairs = _mm256_maddubs_epi16(w, x);
            acc[i] = _mm256_add_epi32(acc[i], _mm256_madd_epi16(pairs, ones));
        }
    }
    UNROLLED sum = _mm256_xor_si256(sum, acc[i]);
    int_sink = _mm256_extract_epi32(sum, 0);
}

__attribute__((target("avx512f"))) static void fma_avx512(void *arg, unsigned thread, unsigned n)
{
    __m512 acc[CHAINS], a = _mm512_set1_ps((float)(thread + n) * 1e-3f), b = _mm512_set1_ps(0.5f),
                        sum = b;

    (void)arg;
    UNROLLED acc[i] = _mm512_setzero_ps();
    for (uint32_t step = 0; step < COMPUTE_STEPS; step++)
        UNROLLED
        {
            acc[i] = _mm512_fmadd_ps(acc[i], b, a);
            OPAQUE(acc[i]);
        }
    UNROLLED sum = _mm512_add_ps(sum, acc[i]);
    float_sink = _mm512_cvtss_f32(sum);
}

__attribute__((target("avx2,fma"))) static void fma_avx2(void *arg, unsigned thread, unsigned n)
{
    __m256 acc[CHAINS], a = _mm256_set1_ps((float)(thread + n) * 1e-3f), b = _mm256_set1_ps(0.5f),
                        sum = b;

    (void)arg;
    UNROLLED acc[i] = _mm256_setzero_ps();
    for (uint32_t step = 0; step < COMPUTE_STEPS; step++)
        UNROLLED
        {
            acc[i] = _mm256_fmadd_ps(acc[i], b, a);
            OPAQUE(acc[i]);
        }
    UNROLLED sum = _mm256_add_ps(sum, acc[i]);
    float_sink = _mm256_cvtss_f32(sum);
}

/* Billions of operations a second of all threads; lanes: multiplications in a step of a chain. */
static double measure_gops(unsigned n_threads, team_work work, double lanes)
{
    double s = team_best_s(n_threads, COMPUTE_TRIES, work, NULL);

    return 2 * lanes * CHAINS * COMPUTE_STEPS * n_threads / s * 1e-9;
}

static void barrier_rounds(void *arg, unsigned thread, unsigned n_threads)
{
    (void)thread;
    (void)n_threads;
    for (uint32_t i = 0; i < BARRIER_ROUNDS; i++)
        spin_barrier_wait(arg);
}

static double measure_barrier_ns(unsigned n_threads)
{
    struct spin_barrier barrier = {.n_threads = n_threads};

    return team_best_s(n_threads, BARRIER_TRIES, barrier_rounds, &barrier) / BARRIER_ROUNDS * 1e9;
}

static void cpu_name(char *name, size_t size)
{
    FILE *file = fopen("/proc/cpuinfo", "r");
    char line[256];

    snprintf(name, size, "unknown");
    while (file && fgets(line, sizeof line, file)) {
        char *value = strchr(line, ':');

        if (strncmp(line, "model name", 10) != 0 || !value)
            continue;
        value[strcspn(value, "\n")] = '\0';
        snprintf(name, size, "%s", value + 2);
        break;
    }
    if (file)
        fclose(file);
}

int limits_measure(struct limits *ret_limits, unsigned n_threads)
{
    struct limits l = {.n_threads = n_threads, .int8_method = "none"};

    if (n_threads == 0)
        return -EINVAL;
    if (!__builtin_cpu_supports("avx2") || !__builtin_cpu_supports("fma"))
        return -ENOTSUP;
    cpu_name(l.cpu, sizeof l.cpu);
    l.read_gbs = measure_read_gbs(n_threads);
    if (l.read_gbs < 0)
        return -ENOMEM;
    if (__builtin_cpu_supports("avx512vnni")) {
        l.int8_gops = measure_gops(n_threads, int8_vnni, 64);
        l.int8_method = "vpdpbusd";
    } else {
        l.int8_gops = measure_gops(n_threads, int8_avx2, 32);
        l.int8_method = "vpmaddubsw";
    }
    l.fma_gflops = __builtin_cpu_supports("avx512f") ? measure_gops(n_threads, fma_avx512, 16)
                                                     : measure_gops(n_threads, fma_avx2, 8);
    l.barrier_ns = n_threads > 1 ? measure_barrier_ns(n_threads) : 0;
    *ret_limits = l;
    return 0;
}
