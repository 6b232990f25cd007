/* Resize a picture that is in memory. */

#ifndef PIXPACK_PICTURE_H
#define PIXPACK_PICTURE_H

#include <stddef.h>
#include <stdint.h>

#include "resample.h"

/* Lines of pixels of 1, 3 or 4 bytes, each line so many bytes behind the one before it; memory may be read up to end. */
typedef struct {
    const uint8_t *pixels, *end;
    size_t line_stride;
    int pixel_bytes;
} Picture;

/* Writes what is wanted of the picture, with all of its channels, whatever wanted says of those; returns 0 where resampler_init does, or
 * without memory. */
int picture_resize(const Picture *picture, const Wanted *wanted, uint8_t *out, long out_stride);

#endif
