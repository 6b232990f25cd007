/* The chunks of a plain PNG. */

#ifndef PIXPACK_PLAIN_PNG_H
#define PIXPACK_PLAIN_PNG_H

#include <stddef.h>
#include <stdint.h>

/* A PNG of 8 bits, gray or RGB, not interlaced, whose compressed bytes are in one chunk at an offset. */
typedef struct {
    int width, height, channels;
    size_t compressed_at, compressed_bytes;
} PlainPng;

/* Returns 0 if the data is not a plain PNG, is damaged, has more than one IDAT chunk, or has more than 65,535 pixels on a side. */
int png_read(const uint8_t *data, size_t size, PlainPng *png);

/* Decompresses height lines of width RGB pixels. Returns 0 for an unknown filter, or if out of memory. */
int png_row(const uint8_t *lines, const PlainPng *png, uint8_t *row);

#endif
