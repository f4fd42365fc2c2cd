/* SPDX-License-Identifier: Apache-2.0 */
/* gguf_types.c - names and block sizes of the element types that a GGUF file may have. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include "runtime/model/gguf.h"

struct type_info {
    const char *name;
    uint16_t block, bytes; /* weights and bytes of a block */
};

/* The GGUF specification's list of ggml types; ids that were retired are absent. */
static const struct type_info types[] = {
    [0] = {"F32", 1, 4},         [1] = {"F16", 1, 2},         [2] = {"Q4_0", 32, 18},
    [3] = {"Q4_1", 32, 20},      [6] = {"Q5_0", 32, 22},      [7] = {"Q5_1", 32, 24},
    [8] = {"Q8_0", 32, 34},      [9] = {"Q8_1", 32, 36},      [10] = {"Q2_K", 256, 84},
    [11] = {"Q3_K", 256, 110},   [12] = {"Q4_K", 256, 144},   [13] = {"Q5_K", 256, 176},
    [14] = {"Q6_K", 256, 210},   [15] = {"Q8_K", 256, 292},   [16] = {"IQ2_XXS", 256, 66},
    [17] = {"IQ2_XS", 256, 74},  [18] = {"IQ3_XXS", 256, 98}, [19] = {"IQ1_S", 256, 50},
    [20] = {"IQ4_NL", 32, 18},   [21] = {"IQ3_S", 256, 110},  [22] = {"IQ2_S", 256, 82},
    [23] = {"IQ4_XS", 256, 136}, [24] = {"I8", 1, 1},         [25] = {"I16", 1, 2},
    [26] = {"I32", 1, 4},        [27] = {"I64", 1, 8},        [28] = {"F64", 1, 8},
    [29] = {"IQ1_M", 256, 56},   [30] = {"BF16", 1, 2},       [34] = {"TQ1_0", 256, 54},
    [35] = {"TQ2_0", 256, 66},   [39] = {"MXFP4", 32, 17},
};
#define N_TYPES (sizeof types / sizeof types[0])

const char *gguf_type_name(uint32_t type)
{
    static _Thread_local char unknown[24];

    if (type < N_TYPES && types[type].name)
        return types[type].name;
    snprintf(unknown, sizeof unknown, "type %" PRIu32, type);
    return unknown;
}

int gguf_type_size(uint32_t type, uint32_t *ret_block, uint32_t *ret_bytes)
{
    if (type >= N_TYPES || !types[type].name)
        return -EINVAL;
    *ret_block = types[type].block;
    *ret_bytes = types[type].bytes;
    return 0;
}
