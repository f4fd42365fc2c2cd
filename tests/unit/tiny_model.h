/* SPDX-License-Identifier: Apache-2.0 */
/*
 * tiny_model.h - model files of a few KB, made by tests/tools/make_gguf.py in a folder that goes
 * away.
 */
#ifndef TESTS_UNIT_TINY_MODEL_H
#define TESTS_UNIT_TINY_MODEL_H

#include <stddef.h>

void tiny_init(const char *source_root);
void tiny_fini(void);
const char *tiny_folder(void);

/* Makes one model: `options` are keyword arguments of make_file(), `edit` are Python statements on
 * the file `f` ("" for none; the module is `m`). Returns its path, valid until the next call. */
const char *tiny_model(const char *options, const char *edit);

/* Makes every broken file as NAME.gguf and list.txt: NAME, row of the case list, what a good
 * message names, by tabs. */
void tiny_broken(void);

/* Reads a whole file; free() it. */
unsigned char *tiny_read(const char *path, size_t *ret_n);

#endif
