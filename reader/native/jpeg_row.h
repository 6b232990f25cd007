/* A JPEG to a row of RGB in one pass, or to pixels at its own size, by libjpeg-turbo. Knows neither files nor Python. */

#ifndef PIXPACK_JPEG_ROW_H
#define PIXPACK_JPEG_ROW_H

#include <stddef.h>
#include <stdint.h>

#include "resample.h"

/* Where a row lies: its first pixel is at (left, top) of the resized picture; outside of that it is 0. */
typedef struct {
    int left, top, width, height;
} Place;

/* Returns the bytes of a row at this place, 0 where it has none of the picture's pixels or more than 65,535 a side. */
size_t row_bytes_of(const Wanted *wanted, const Place *place);

/* Decodes to wanted's source size, at a scale of libjpeg's, resizes that, and makes the row. Returns 0 where libjpeg complains, or row_bytes_of does. */
int jpeg_row(const uint8_t *data, size_t size, const Wanted *wanted, const Place *place, uint8_t *row);

/* Of what is wrong with a JPEG, its 0 included; libjpeg's messages fit. */
#define MOST_MESSAGE 200

/* Decodes a baseline JPEG of one scan, which has this height and width and 1 or 3 components, to uint8[height, width, channels], gray or RGB.
 * Returns 0 where it is none, or libjpeg has a complaint; message then says which. */
int jpeg_pixels(const uint8_t *data, size_t size, int height, int width, int channels, uint8_t *out, char message[MOST_MESSAGE]);

/* Returns the path of the file that libjpeg's functions are in, NULL where that is not known. */
const char *jpeg_library(void);

#endif
