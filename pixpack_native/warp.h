/* An image sampled at other points, as torch's grid_sample does. */

#ifndef PIXPACK_WARP_H
#define PIXPACK_WARP_H

#include "pixel_steps.h"

/* What is beyond the image; where there is no fill it is 0, and the edge is weighted once. */
typedef struct {
    float levels[3];
    int is_given;
} Fill;

/* Makes of each pixel at x, y, counted from the middle, the one at grid[0] x + grid[1] y + grid[2] and grid[3] x + grid[4] y + grid[5], each -1
 * to 1 from edge to edge; bilinear or the nearest. spare: as many bytes as the image has. */
void warp(const Image *image, const float grid[6], int is_bilinear, const Fill *fill, uint8_t *spare);

#endif
