/* Resamples an image at the points of a grid, as torch's grid_sample does. */

#ifndef PIXPACK_WARP_H
#define PIXPACK_WARP_H

#include "pixel_steps.h"

/* Bytes of spare behind the image that may be read; their value does not matter. */
#define PIXEL_PADDING 1

/* The color outside the image. Without a fill it is 0, and the edge is weighted once. */
typedef struct {
    float levels[3];
    int is_given;
} Fill;

/* Replaces each pixel (x, y), relative to the center, by the sample at (grid[0] x + grid[1] y + grid[2], grid[3] x + grid[4] y + grid[5]),
 * where -1 to 1 is edge to edge; bilinear or nearest. spare: scratch memory as large as the image, and PIXEL_PADDING. */
void warp(const Image *image, const float grid[6], int is_bilinear, const Fill *fill, uint8_t *spare);

#endif
