/* A JPEG to pixels at its own size, straight into memory that is there. Knows neither files nor Python. */

#ifndef PIXPACK_JPEG_PIXELS_H
#define PIXPACK_JPEG_PIXELS_H

#include <stddef.h>
#include <stdint.h>

/* Of what is wrong with a JPEG, its 0 included; libjpeg's messages fit. */
#define MOST_MESSAGE 200

/* Decodes a baseline JPEG of one scan, which has this height and width and 1 or 3 components, to uint8[height, width, channels], gray or RGB.
 * Returns 0 where it is none, or libjpeg has a complaint; message then says which. */
int jpeg_pixels(const uint8_t *data, size_t size, int height, int width, int channels, uint8_t *out, char message[MOST_MESSAGE]);

#endif
