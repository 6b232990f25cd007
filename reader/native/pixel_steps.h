/* Steps that change the levels of one image in place, within a level of torch's kernels. Plain C: compilers turn it into
 * vector instructions of every processor. */

#ifndef PIXPACK_PIXEL_STEPS_H
#define PIXPACK_PIXEL_STEPS_H

#include <stdint.h>

/* Interleaved pixels of 1 or 3 channels. */
typedef struct {
    uint8_t *pixels;
    int height, width, channels;
} Image;

/* The same values as in compiled.py. Parameters: WARPED has two rows of x, y and a constant, HUE a fraction of a turn, POSTERIZED bits,
 * SOLARIZED the lowest level, ADDED levels, BLURRED a deviation and taps across and down; of the other steps, those with a parameter
 * have a factor. */
enum {
    UNCHANGED,
    BRIGHTER,
    COLORED,
    CONTRASTED,
    SHARPENED,
    POSTERIZED,
    SOLARIZED,
    AUTOCONTRASTED,
    EQUALIZED,
    INVERTED,
    ADDED,
    GRAY,
    HUE,
    WARPED_NEAREST,
    WARPED_BILINEAR,
    BLURRED,
    STEPS
};

/* Applies one step, up to HUE in the list. spare: scratch memory as large as the image. */
void pixel_step(const Image *image, int step, float number, uint8_t *spare);

/* Blurs by a Gaussian of sigma pixels, with odd numbers of taps, each half less than its side; the image is reflected at its edges.
 * spare: as large as the image. Returns 0 if out of memory. */
int blur(const Image *image, float sigma, int across, int down, uint8_t *spare);

/* Bytes of spare after the image that warp may read; their value does not matter. */
#define PIXEL_PADDING 1

/* The color outside the image. Without a fill it is 0, and the edge is weighted once. */
typedef struct {
    float levels[3];
    int is_given;
} Fill;

/* Replaces each pixel (x, y), relative to the center, by the sample at (grid[0] x + grid[1] y + grid[2], grid[3] x + grid[4] y + grid[5]),
 * where -1 to 1 is edge to edge, as torch's grid_sample does; bilinear or nearest. spare: as large as the image, and PIXEL_PADDING. */
void warp(const Image *image, const float grid[6], int is_bilinear, const Fill *fill, uint8_t *spare);

#endif
