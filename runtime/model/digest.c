/* SPDX-License-Identifier: Apache-2.0 */
#include "runtime/model/digest.h"

#include <string.h>

uint64_t digest_pieces(uint64_t bytes)
{
    return bytes / DIGEST_PIECE + (bytes % DIGEST_PIECE != 0);
}

/* Not through xxh_x86dispatch.h: its wide variants (0.8.1) leave the upper halves of the vector
 * registers in use, and from then on each SSE instruction of the thread waits for them: plain code
 * ran 14 times slower. Memory is the limit here in any case. */
void digest_piece(XXH128_canonical_t *ret, const uint8_t *data, uint64_t bytes, uint64_t i,
                  uint64_t seed)
{
    uint64_t left = bytes - i * DIGEST_PIECE;
    size_t n = left < DIGEST_PIECE ? (size_t)left : DIGEST_PIECE;

    XXH128_canonicalFromHash(ret, XXH3_128bits_withSeed(data + i * DIGEST_PIECE, n, seed));
}

void digest_bytes(uint8_t ret[DIGEST_BYTES], const void *data, size_t bytes)
{
    XXH128_canonical_t whole;

    XXH128_canonicalFromHash(&whole, XXH3_128bits(data, bytes));
    memcpy(ret, whole.digest, DIGEST_BYTES);
}
