/* What is known of rows beside their pixels: sums of each channel, and zlib's crc32. */

#ifndef PIXPACK_SUMS_H
#define PIXPACK_SUMS_H

#include <stddef.h>
#include <stdint.h>

/* Of 1, 2, 3, 4 and 6 channels the same one stands at the same byte of each group. */
#define GROUP 96

/* Adds the bytes, and their squares, to the totals of their place in a group; the first byte is a group's first. */
void add_bytes(const uint8_t *bytes, size_t size, uint64_t totals[GROUP], uint64_t square_totals[GROUP]);

/* Continues the crc32 of what stands before these bytes, 0 of nothing: as zlib's. */
uint32_t crc32_of(uint32_t before, const uint8_t *bytes, size_t size);

/* Fills the tables that crc32_of reads; once. */
void crc32_begin(void);

#endif
