/* Reverses PNG's filters. */

#ifndef PIXPACK_UNFILTER_H
#define PIXPACK_UNFILTER_H

#include <stddef.h>
#include <stdint.h>

/* Converts height lines of 1 + line_bytes bytes, the first of which is the filter type, into height * line_bytes bytes of pixels, pixel_bytes
 * each. Returns 0 for an unknown filter type. */
int unfilter(const uint8_t *lines, size_t height, size_t line_bytes, size_t pixel_bytes, uint8_t *out);

#endif
