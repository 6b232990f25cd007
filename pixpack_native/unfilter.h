/* PNG's filters undone. */

#ifndef PIXPACK_UNFILTER_H
#define PIXPACK_UNFILTER_H

#include <stddef.h>
#include <stdint.h>

/* Turns height lines of 1 + line_bytes bytes, of which the first is the filter's number, into height * line_bytes bytes of pixels
 * with pixel_bytes each; returns 0 where a number is none of a filter. */
int unfilter(const uint8_t *lines, size_t height, size_t line_bytes, size_t pixel_bytes, uint8_t *out);

#endif
