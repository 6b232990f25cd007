/* Resize and crop a picture, in memory or line by line. Knows pixels of three or four bytes, and no file format. */

#ifndef PIXPACK_RESAMPLE_H
#define PIXPACK_RESAMPLE_H

#include <stddef.h>
#include <stdint.h>

/* Lines per pass: they share one load of coefficients. */
#define LINES 4
/* Limit of the sides of a picture, before and after. */
#define MOST_SIDE (1 << 20)
/* Bytes that may be read after the last pixel of a line; their value does not matter. */
#define LINE_PADDING 64

/* The coefficients of one direction: output i is the sum of weights[i * taps + n] * pixel[starts[i] + n], n < counts[i] <= most; further
 * weights, up to taps, are 0. */
typedef struct {
    int outputs, taps, most, precision;
    int *starts, *counts;
    int16_t *weights;
} Axis;

/* PIL.Image.Resampling */
enum { LANCZOS = 1, BILINEAR = 2, BICUBIC = 3, BOX = 4 };

/* The output: the picture is resized to width x height, of which [x0, x1) x [y0, y1) is kept, with this many channels, mirrored last. Lines
 * have 3 bytes per pixel for 3 channels, else 4, of which 1 or 4 channels are kept. */
typedef struct {
    int source_width, source_height, width, height, x0, x1, y0, y1, filter, channels, is_mirrored;
} Wanted;

typedef struct {
    Axis across, down;
    /* the source lines and columns that the kept pixels depend on */
    int first_line, last_line, first_column, last_column;
    int line, output, channels, pixel_bytes, ring_lines, ring_bytes;
    uint8_t *ring, *packed, *out, **sources;
    long out_stride;
} Resampler;

/* Returns 0 if out of memory or if the sizes are out of range. Call free in every case. */
int resampler_init(Resampler *self, const Wanted *wanted, uint8_t *out, long out_stride);

/* Makes lines start at this column of the source. Call once, before the first line. */
void resampler_begin_at(Resampler *self, int column);

/* Adds the next `count` <= LINES lines, starting at first_line, and writes the rows that are complete. */
void resampler_push(Resampler *self, uint8_t *const lines[LINES], int count);

void resampler_free(Resampler *self);

/* Lines of pixels of 1, 3 or 4 bytes, with a stride in bytes; memory can be read up to end. */
typedef struct {
    const uint8_t *pixels, *end;
    size_t line_stride;
    int pixel_bytes;
} Picture;

/* Writes the wanted part of the picture with all of its channels, regardless of wanted->channels. Returns 0 if resampler_init does, or if
 * out of memory. */
int picture_resize(const Picture *picture, const Wanted *wanted, uint8_t *out, long out_stride);

#endif
