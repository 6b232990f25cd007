/* The chunks of a plain PNG. */

#ifndef PIXPACK_PLAIN_PNG_H
#define PIXPACK_PLAIN_PNG_H

#include <stddef.h>
#include <stdint.h>

/* Of 8 bits, gray or RGB, without interlacing: compressed bytes stand at an offset of the file. */
typedef struct {
    int width, height, channels;
    size_t compressed_at, compressed_bytes;
} PlainPng;

/* Returns 0 where the data is no plain PNG, is not sound, has more than one IDAT chunk, or more than 65,535 pixels a side. */
int png_read(const uint8_t *data, size_t size, PlainPng *png);

/* Makes height lines of width RGB pixels from what was compressed; returns 0 where a filter is none, or without memory. */
int png_row(const uint8_t *lines, const PlainPng *png, uint8_t *row);

#endif
