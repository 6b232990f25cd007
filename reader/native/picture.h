/* Resizes a picture in memory. */

#ifndef PIXPACK_PICTURE_H
#define PIXPACK_PICTURE_H

#include <stddef.h>
#include <stdint.h>

#include "resample.h"

/* Lines of pixels of 1, 3 or 4 bytes, with a stride in bytes; memory can be read up to end. */
typedef struct {
    const uint8_t *pixels, *end;
    size_t line_stride;
    int pixel_bytes;
} Picture;

/* Writes the wanted part of the picture with all of its channels, whatever wanted->channels says. Returns 0 if resampler_init does, or if
 * out of memory. */
int picture_resize(const Picture *picture, const Wanted *wanted, uint8_t *out, long out_stride);

#endif
