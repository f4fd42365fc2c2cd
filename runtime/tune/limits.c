/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/tune/limits.h"

#include <errno.h>
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "kernels/x86/unroll.h"
#include "runtime/base/mem.h"
#include "runtime/tune/crew.h"

#define READ_BYTES_MAX ((size_t)256 << 20) /* per thread: more than its share of any cache */
#define READ_BYTES_MIN ((size_t)32 << 20)
#define READ_BYTES_ALL ((size_t)2 << 30) /* of all threads, while each has the least */
#define AHEAD_MAX      8192
#define COMPUTE_STEPS  500000u /* loop turns of a compute try: a millisecond or two */
#define CHAINS         12      /* more than latency x ports of any of the instructions */
#define BARRIER_ROUNDS 20000u

/* Tries of each figure. */
struct tries {
    unsigned read, compute, barrier;
    unsigned ways; /* of reading */
};

static const struct tries full = {6, 20, 8, 8}, quick = {2, 5, 2, 1};

#define UNROLLED KERN_UNROLL for (int i = 0; i < CHAINS; i++)

/* The compiler must keep the value in one register and knows nothing of it: it cannot move work out
 * of a loop, nor copy accumulators to and fro, as gcc 12 otherwise does. */
#define OPAQUE(vector) __asm__ volatile("" : "+v"(vector))

/* Results land here, so that no loop can be dropped. */
static volatile float float_sink;
static volatile int32_t int_sink;

struct reading {
    uint8_t *memory;
    size_t bytes;     /* of each thread */
    size_t ahead;     /* bytes ahead of the load that are asked for */
    size_t n_streams; /* places of the memory that are read in turn */
};

__attribute__((target("avx2"))) static void read_avx2(void *arg, unsigned thread,
                                                      unsigned n_threads)
{
    const struct reading *r = arg;
    size_t part = r->bytes / r->n_streams;
    const uint8_t *first = r->memory + thread * r->bytes;
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

static void read_plain(void *arg, unsigned thread, unsigned n_threads)
{
    const struct reading *r = arg;
    size_t part = r->bytes / r->n_streams;
    const uint8_t *first = r->memory + thread * r->bytes;
    uint64_t sum = 0;

    (void)n_threads;
    for (size_t at = 0; at < part; at += 64) {
        for (size_t s = 0; s < r->n_streams; s++) {
            const uint64_t *p = (const void *)(first + s * part + at);

            __builtin_prefetch((const uint8_t *)p + r->ahead);
            sum ^= p[0] ^ p[1] ^ p[2] ^ p[3] ^ p[4] ^ p[5] ^ p[6] ^ p[7];
        }
    }
    int_sink = (int32_t)sum;
}

/* GB/s; negative: out of memory. */
static double measure_read_gbs(unsigned n_threads, crew_work work, const struct tries *tries)
{
    /* The one that is most often best comes first, for those who try one. */
    static const size_t ahead[] = {4096, 0, 2048, AHEAD_MAX};
    size_t share = READ_BYTES_ALL / n_threads / 4096 * 4096, all;
    double best_s = 1e9;
    struct reading r = {.bytes = share > READ_BYTES_MAX   ? READ_BYTES_MAX
                                 : share < READ_BYTES_MIN ? READ_BYTES_MIN
                                                          : share};

    all = r.bytes * n_threads;
    r.memory = mem_map(all + AHEAD_MAX);
    if (!r.memory)
        return -1;
    memset(r.memory, 1, all + AHEAD_MAX); /* zero pages would all be one page */
    for (unsigned way = 0; way < tries->ways; way++) {
        double s;

        r.ahead = ahead[way / 2];
        r.n_streams = way % 2 ? 4 : 1;
        s = crew_best_s(n_threads, tries->read, work, &r);
        best_s = s < best_s ? s : best_s;
    }
    mem_unmap(r.memory, all + AHEAD_MAX);
    return best_s > 0 ? (double)all / best_s * 1e-9 : -1;
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

__attribute__((target("avxvnni"))) static void int8_avxvnni(void *arg, unsigned thread, unsigned n)
{
    __m256i acc[CHAINS], w = _mm256_set1_epi8((char)(thread + 1)), x = _mm256_set1_epi8((char)n),
                         sum = x;

    (void)arg;
    UNROLLED acc[i] = _mm256_setzero_si256();
    for (uint32_t step = 0; step < COMPUTE_STEPS; step++)
        UNROLLED
        {
            acc[i] = _mm256_dpbusd_avx_epi32(acc[i], w, x);
            OPAQUE(acc[i]);
        }
    UNROLLED sum = _mm256_xor_si256(sum, acc[i]);
    int_sink = _mm256_extract_epi32(sum, 0);
}

__attribute__((target("avx2"))) static void int8_avx2(void *arg, unsigned thread, unsigned n)
{
    __m256i acc[CHAINS], w = _mm256_set1_epi8((char)(thread + 1)), x = _mm256_set1_epi8((char)n),
                         sum = x;

    (void)arg;
    UNROLLED acc[i] = _mm256_setzero_si256();
    for (uint32_t step = 0; step < COMPUTE_STEPS; step++) {
        UNROLLED
        {
            OPAQUE(x); /* or all chains would share one product */
            acc[i] = _mm256_add_epi16(acc[i], _mm256_maddubs_epi16(w, x));
            OPAQUE(acc[i]);
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
static double measure_gops(unsigned n_threads, crew_work work, double lanes, unsigned n_tries)
{
    double s = crew_best_s(n_threads, n_tries, work, NULL);

    return 2 * lanes * CHAINS * COMPUTE_STEPS * n_threads / s * 1e-9;
}

static void barrier_rounds(void *arg, unsigned thread, unsigned n_threads)
{
    (void)thread;
    (void)n_threads;
    for (uint32_t i = 0; i < BARRIER_ROUNDS; i++)
        spin_barrier_wait(arg);
}

static double measure_barrier_ns(unsigned n_threads, unsigned n_tries)
{
    struct spin_barrier barrier = {.n_threads = n_threads};

    return crew_best_s(n_threads, n_tries, barrier_rounds, &barrier) / BARRIER_ROUNDS * 1e9;
}

/* What is measured with the instructions of a variant. */
struct instructions {
    crew_work read, int8, fma; /* int8, fma: NULL where the variant has no vectors */
    const char *int8_method;
    double int8_lanes, fma_lanes;
};

static struct instructions instructions_of(enum cpu_variant variant)
{
    struct instructions in = {.read = read_plain, .int8_method = "none"};
    /* A CPU may have wide vectors without VNNI, which no variant of ours uses. */
    int wide = variant == CPU_AVX512 || (variant == CPU_AUTO && __builtin_cpu_supports("avx512f"));
    int vnni =
        variant == CPU_AVX512 || (variant == CPU_AUTO && __builtin_cpu_supports("avx512vnni"));

    if (variant == CPU_REF || !cpu_kernels_get(CPU_AVX2, NULL))
        return in;
    in.read = read_avx2;
    in.int8 = vnni ? int8_vnni : int8_avx2;
    in.int8_method = vnni ? "vpdpbusd" : "vpmaddubsw";
    in.int8_lanes = vnni ? 64 : 32;
    if (!vnni && variant != CPU_AVX2 && cpu_kernels_get(CPU_AVXVNNI, NULL)) {
        in.int8 = int8_avxvnni;
        in.int8_method = "vpdpbusd";
    }
    in.fma = wide ? fma_avx512 : fma_avx2;
    in.fma_lanes = wide ? 16 : 8;
    return in;
}

static void tell(const struct limits_opt *opt, const char *what, double value, const char *unit)
{
    if (opt->progress)
        opt->progress(opt->arg, what, value, unit);
}

static int measure_reads(struct limits *l, const struct limits_opt *opt, crew_work read,
                         const struct tries *tries)
{
    l->read_one_gbs = measure_read_gbs(1, read, tries);
    if (l->read_one_gbs < 0)
        return -ENOMEM;
    tell(opt, "reading memory, one thread", l->read_one_gbs, "GB/s");
    l->read_gbs =
        opt->n_threads > 1 ? measure_read_gbs(opt->n_threads, read, tries) : l->read_one_gbs;
    if (l->read_gbs < 0)
        return -ENOMEM;
    if (opt->n_threads > 1)
        tell(opt, "reading memory, all threads", l->read_gbs, "GB/s");
    return 0;
}

int limits_measure(struct limits *ret_limits, const struct limits_opt *opt)
{
    const struct tries *tries = opt->quick ? &quick : &full;
    struct instructions in = instructions_of(opt->variant);
    struct limits l = {.n_threads = opt->n_threads};
    int err;

    if (opt->n_threads == 0)
        return -EINVAL;
    if (!cpu_kernels_get(opt->variant, NULL))
        return -ENOTSUP;
    cpus_name(l.cpu, sizeof l.cpu);
    snprintf(l.int8_method, sizeof l.int8_method, "%s", in.int8_method);
    err = measure_reads(&l, opt, in.read, tries);
    if (err < 0)
        return err;
    if (in.int8) {
        l.int8_gops = measure_gops(opt->n_threads, in.int8, in.int8_lanes, tries->compute);
        tell(opt, in.int8_method, l.int8_gops, "GOP/s");
        l.fma_gflops = measure_gops(opt->n_threads, in.fma, in.fma_lanes, tries->compute);
        tell(opt, "fused multiply-add", l.fma_gflops, "GFLOP/s");
    }
    if (opt->n_threads > 1) {
        l.barrier_ns = measure_barrier_ns(opt->n_threads, tries->barrier);
        tell(opt, "barrier", l.barrier_ns, "ns");
    }
    *ret_limits = l;
    return 0;
}
