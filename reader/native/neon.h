/* What resample.c does, with the vector instructions of ARM: the same results. */

#ifndef PIXPACK_NEON_H
#define PIXPACK_NEON_H

#if defined(__GNUC__) && defined(__aarch64__) && defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && \
    !defined(PIXPACK_PLAIN_C)
#define HAS_NEON 1

#include <stddef.h>
#include <stdint.h>

#include "resample.h"

/* Resizes LINES lines horizontally. Reads no more than LINE_PADDING bytes past a line's end; writes one byte past the last pixel of
 * three bytes, and none past one of four. */
void across_neon(const Axis *axis, int pixel_bytes, uint8_t *const in[LINES], uint8_t *const out[LINES]);

/* Makes one output line of `count` lines, in sixteens: up to 15 bytes past size are written. */
void down_neon(const int16_t *weights, uint8_t *const *lines, int count, int precision, uint8_t *out, int size);
#endif

#endif
