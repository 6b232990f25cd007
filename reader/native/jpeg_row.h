/* Decodes a JPEG to an RGB row in one pass, or to pixels at its own size, by libjpeg-turbo. Knows neither files nor Python. */

#ifndef PIXPACK_JPEG_ROW_H
#define PIXPACK_JPEG_ROW_H

#include <stddef.h>
#include <stdint.h>

#include "resample.h"

/* The place of a row: its first pixel is at (left, top) of the resized picture; outside the picture it is 0. */
typedef struct {
    int left, top, width, height;
} Place;

/* Returns the bytes of a row at this place; 0 if it has no pixel of the picture, or a side above 65,535. */
size_t row_bytes_of(const Wanted *wanted, const Place *place);

/* Decodes to wanted's source size, at a scale of libjpeg, resizes, and writes the row. Returns 0 if libjpeg fails or warns, or row_bytes_of is 0. */
int jpeg_row(const uint8_t *data, size_t size, const Wanted *wanted, const Place *place, uint8_t *row);

/* Bytes of an error of a JPEG, with its final 0; libjpeg's messages fit. */
#define MOST_MESSAGE 200

/* Decodes a baseline JPEG of one scan, which has this height and width and 1 or 3 components, to uint8[height, width, channels], gray or RGB.
 * Returns 0 if it is not one, or libjpeg fails or warns; message then has the error. */
int jpeg_pixels(const uint8_t *data, size_t size, int height, int width, int channels, uint8_t *out, char message[MOST_MESSAGE]);

/* Returns the path of the file with libjpeg's functions, NULL if unknown. */
const char *jpeg_library(void);

#endif
