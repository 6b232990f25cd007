/* What resample.c, sums.c and crops.c do, with the vector and CRC instructions of ARM: the same results. */

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

/* Copies the first three bytes of each pixel of four; returns how many pixels are done, a multiple of 16. */
int pack_rgb_neon(const uint8_t *from, uint8_t *to, int pixels);

/* Mirrors pixels of three bytes; returns how many at the line's start remain. */
int64_t mirror_rgb_neon(const uint8_t *from, uint8_t *to, int64_t pixels);

/* Adds groups of `group` bytes, a multiple of 16, and their squares to the sums of each position. */
void add_groups_neon(const uint8_t *bytes, size_t groups, int group, uint32_t *some, uint32_t *squares);

/* Returns whether the CPU has the CRC instructions. */
int has_crc32_arm(void);

/* Continues a crc32 that is not inverted over a multiple of 8 bytes. */
uint32_t crc32_arm(uint32_t crc, const uint8_t *bytes, size_t size);
#endif

#endif
