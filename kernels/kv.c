/* SPDX-License-Identifier: Apache-2.0 */
/*
 * kv.c - the forms in which keys and values are kept: their names and their size.
 */
#include "kernels/cpu_kernels.h"

#include <errno.h>
#include <string.h>

static const char *const names[] = {[KV_F16] = "f16", [KV_Q8] = "q8"};

size_t kv_page_bytes(enum kv_type type, uint32_t hd)
{
    if (type == KV_Q8)
        return (size_t)KERN_PAGE * (hd + sizeof(float));
    return (size_t)KERN_PAGE * hd * sizeof(uint16_t);
}

int kv_type_parse(const char *name, enum kv_type *ret_type)
{
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        if (strcmp(name, names[i]) == 0) {
            *ret_type = (enum kv_type)i;
            return 0;
        }
    }
    return -EINVAL;
}

const char *kv_type_name(enum kv_type type)
{
    return names[type];
}
