/* Statistics of rows: sums per channel. */

#ifndef PIXPACK_SUMS_H
#define PIXPACK_SUMS_H

#include <stddef.h>
#include <stdint.h>

/* A multiple of 1, 2, 3, 4 and 6 channels: a channel has the same position in every group. */
#define GROUP 96

/* Adds bytes and their squares to the totals of their position in a group. The first byte starts a group. */
void add_bytes(const uint8_t *bytes, size_t size, uint64_t totals[GROUP], uint64_t square_totals[GROUP]);

#endif
