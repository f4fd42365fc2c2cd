/* SPDX-License-Identifier: Apache-2.0 */
/*
 * digest.h - hashes of large bytes in pieces, so that a team can share them out.
 *
 * XXH3-128 of each piece of 1 MiB (the last one may be shorter), then XXH3-128 of the list of these
 * digests in canonical byte order. It finds damage and tells files apart; it does not withstand
 * forgery.
 */
#ifndef RUNTIME_MODEL_DIGEST_H
#define RUNTIME_MODEL_DIGEST_H

#include <stddef.h>
#include <stdint.h>
#include <xxhash.h>

/* Large enough that the list of digests is nothing, small enough to share out. */
#define DIGEST_PIECE (1u << 20)
#define DIGEST_BYTES 16u

uint64_t digest_pieces(uint64_t bytes);

/* Of piece i of `bytes` bytes at `data`. */
void digest_piece(XXH128_canonical_t *ret, const uint8_t *data, uint64_t bytes, uint64_t i,
                  uint64_t seed);

/* Of a few bytes, such as a list of digests. */
void digest_bytes(uint8_t ret[DIGEST_BYTES], const void *data, size_t bytes);

#endif
