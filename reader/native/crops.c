/* Crops a batch: checks each row of the table, then makes the crops on several threads, without the interpreter. */

#include "functions.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "resample.h"
#include "threads.h"

enum { IS_CUBIC = 1, IS_MIRRORED = 2, IS_TURNED = 4, IS_NEAREST = 8 };
/* Limit of windows, which may extend beyond the resized box: keeps their sums within an integer. */
#define MOST_PLACE (1 << 30)
#define MOST_CHANNELS 4
/* Pixels to mirror at once. */
#define STRIP 512
/* Bytes of a cache line. */
#define LINE_BYTES 64

/* One row of the table, as compiled.py writes it: offset and size of the image, the box in it, the new size of the box, the
 * window in the resized box, which may extend beyond it, and the byte of out where the crop begins. Boxes and windows are half-open. */
typedef struct {
    int64_t offset, image_height, image_width, x0, y0, x1, y1, width, height, left, top, right, bottom, flags, place;
} Crop;

typedef struct {
    const uint8_t *pixels;
    int64_t size, out_size;
    uint8_t *out;
    const Crop *crops;
    Py_ssize_t count;
    int channels;
    uint8_t fill[MOST_CHANNELS];
} Job;

/* The destination of a part of a crop: lines of this many pixels; the stride is negative if they are upside down. */
typedef struct {
    uint8_t *at;
    int64_t stride, width, height;
} Target;

const char crops_doc[] =
    "crops(pixels, table, out, channels, fill, threads) -> bool\n\n"
    "Resize a box of each image in flat uint8 pixels, crop a window from it, and write that to out, uint8[height, width, channels] each.\n"
    "table: int64[B, 15] offset, image height, image width; x0, y0, x1, y1 of the box; its new width and height; left,\n"
    "top, right, bottom of the window; flags: 1 bicubic, 2 mirrored, 4 upside down, 8 nearest; its place in out. fill: a byte for each\n"
    "channel, outside the resized box. Returns False if memory is lacking or a box is too large. Raises ValueError if a row of the\n"
    "table is outside its image, pixels or out.";

/* Mirrors pixels of three bytes, each with the previous byte, which the next pixel overwrites. */
static void mirror_rgb(const uint8_t *restrict from, uint8_t *restrict to, int64_t pixels) {
    enum { AT_ONCE = 8 };
    int64_t i = 1, left = pixels - 1;
    memcpy(to + 3 * left, from, 3);
    for (; left > AT_ONCE; i += AT_ONCE, left -= AT_ONCE) {
        uint32_t words[AT_ONCE];
        for (int n = 0; n < AT_ONCE; n++)
            memcpy(words + n, from + 3 * (i + n) - 1, 4);
        for (int n = 0; n < AT_ONCE; n++)
            memcpy(to + 3 * (left - 1 - n) - 1, words + n, 4);
    }
    for (; left > 0; i++, left--)
        memcpy(to + 3 * (left - 1), from + 3 * i, 3);
}

/* Mirrors a line strip by strip within the core's cache, and prefetches the memory to write: writing backward takes twice as
 * long otherwise. */
static void mirror_line(const uint8_t *from, uint8_t *to, int64_t pixels, int channels) {
    uint8_t strip[STRIP * MOST_CHANNELS];
    for (int64_t count; pixels > 0; pixels -= count, from += count * channels) {
        count = pixels < STRIP ? pixels : STRIP;
        for (int64_t at = 0; at < count * channels; at += LINE_BYTES)
            __builtin_prefetch(to + (pixels - count) * channels + at, 1);
        if (channels == 1)
            for (int64_t i = 0; i < count; i++)
                strip[count - 1 - i] = from[i];
        else if (channels == 3)
            mirror_rgb(from, strip, count);
        else
            for (int64_t i = 0; i < count; i++)
                memcpy(strip + 4 * (count - 1 - i), from + 4 * i, 4);
        memcpy(to + (pixels - count) * channels, strip, (size_t)(count * channels));
    }
}

static void copy_lines(const uint8_t *from, int64_t from_stride, const Target *to, int channels, int is_mirrored) {
    size_t line_bytes = (size_t)to->width * (size_t)channels;
    uint8_t *out = to->at;
    if (from_stride == to->stride && from_stride == (int64_t)line_bytes && !is_mirrored) {
        memcpy(out, from, line_bytes * (size_t)to->height);
        return;
    }
    for (int64_t line = 0; line < to->height; line++, from += from_stride, out += to->stride)
        if (is_mirrored)
            mirror_line(from, out, to->width, channels);
        else
            memcpy(out, from, line_bytes);
}

/* Takes the pixel of the box under each new pixel's center. */
static void take_nearest(const uint8_t *box, int64_t stride, const Crop *crop, int64_t top, int64_t left, const Target *to, int channels) {
    int64_t step = crop->flags & IS_MIRRORED ? -channels : channels;
    uint8_t *line = crop->flags & IS_MIRRORED ? to->at + (to->width - 1) * channels : to->at;
    for (int64_t y = 0; y < to->height; y++, line += to->stride) {
        const uint8_t *from = box + (2 * (top + y) + 1) * (crop->y1 - crop->y0) / (2 * crop->height) * stride;
        for (int64_t x = 0; x < to->width; x++) {
            const uint8_t *pixel = from + (2 * (left + x) + 1) * (crop->x1 - crop->x0) / (2 * crop->width) * channels;
            for (int c = 0; c < channels; c++)
                line[x * step + c] = pixel[c];
        }
    }
}

static void fill_all(uint8_t *out, int64_t pixels, const Job *job) {
    int is_one_level = 1;
    for (int c = 1; c < job->channels; c++)
        is_one_level &= job->fill[c] == job->fill[0];
    if (is_one_level)
        memset(out, job->fill[0], (size_t)(pixels * job->channels));
    else
        for (int64_t i = 0; i < pixels; i++, out += job->channels)
            memcpy(out, job->fill, (size_t)job->channels);
}

static int64_t within(int64_t place, int64_t limit) {
    return place < 0 ? 0 : place > limit ? limit : place;
}

static int make_crop(const void *given, int64_t n) {
    const Job *job = given;
    const Crop *crop = job->crops + n;
    int channels = job->channels, is_mirrored = (crop->flags & IS_MIRRORED) != 0, is_turned = (crop->flags & IS_TURNED) != 0;
    int64_t stride = crop->image_width * channels, width = crop->right - crop->left, height = crop->bottom - crop->top;
    /* the part of the window inside the resized box */
    int64_t left = within(crop->left, crop->width), right = within(crop->right, crop->width);
    int64_t top = within(crop->top, crop->height), bottom = within(crop->bottom, crop->height);
    uint8_t *out = job->out + crop->place;
    if (right - left < width || bottom - top < height)
        fill_all(out, width * height, job);
    if (left >= right || top >= bottom)
        return 1;
    int64_t column = is_mirrored ? crop->right - right : left - crop->left, line = is_turned ? crop->bottom - 1 - top : top - crop->top;
    Target to = {out + (line * width + column) * channels, (is_turned ? -width : width) * channels, right - left, bottom - top};
    const uint8_t *box = job->pixels + crop->offset + crop->y0 * stride + crop->x0 * channels;
    if (crop->height == crop->y1 - crop->y0 && crop->width == crop->x1 - crop->x0) {
        copy_lines(box + top * stride + left * channels, stride, &to, channels, is_mirrored);
        return 1;
    }
    if (crop->flags & IS_NEAREST) {
        take_nearest(box, stride, crop, top, left, &to, channels);
        return 1;
    }
    Picture picture = {box, job->pixels + job->size, (size_t)stride, channels};
    Wanted wanted = {
        .source_width = (int)(crop->x1 - crop->x0),
        .source_height = (int)(crop->y1 - crop->y0),
        .width = (int)crop->width,
        .height = (int)crop->height,
        .x0 = (int)left,
        .x1 = (int)right,
        .y0 = (int)top,
        .y1 = (int)bottom,
        .filter = crop->flags & IS_CUBIC ? BICUBIC : BILINEAR,
        .is_mirrored = is_mirrored,
    };
    return picture_resize(&picture, &wanted, to.at, (long)to.stride);
}

static int is_span(int64_t start, int64_t stop) {
    return start >= -MOST_PLACE && start < stop && stop <= MOST_PLACE && stop - start <= MOST_SIDE;
}

static int is_side(int64_t side) {
    return side >= 1 && side <= MOST_SIDE;
}

/* Returns the error of a row of the table, or NULL. */
static const char *wrong_with(const Crop *crop, const Job *job) {
    if (!is_side(crop->image_height) || !is_side(crop->image_width))
        return "the image has a side outside of 1 to 1,048,576 pixels";
    if (crop->offset < 0 || crop->offset > job->size - crop->image_height * crop->image_width * job->channels)
        return "the image is not all in the pixels that are given";
    if (crop->x0 < 0 || crop->x0 >= crop->x1 || crop->x1 > crop->image_width || crop->y0 < 0 || crop->y0 >= crop->y1 ||
        crop->y1 > crop->image_height)
        return "the box is empty or outside of the image";
    if (!is_side(crop->height) || !is_side(crop->width))
        return "the box is resized to a side outside of 1 to 1,048,576 pixels";
    if (!is_span(crop->left, crop->right) || !is_span(crop->top, crop->bottom))
        return "the window has a side outside of 1 to 1,048,576 pixels";
    if (crop->place < 0 || crop->place > job->out_size - (crop->bottom - crop->top) * (crop->right - crop->left) * job->channels)
        return "the crop is not all in the memory to write";
    return NULL;
}

/* Checks the table and makes the crops. Returns NULL and sets an exception on error. */
static PyObject *checked_crops(Job *job, const Py_buffer *table, int threads) {
    job->count = table->len / (Py_ssize_t)sizeof(Crop);
    if (table->len % (Py_ssize_t)sizeof(Crop))
        return PyErr_Format(PyExc_ValueError, "expected 15 numbers in the table for each row");
    /* a copy: another thread may write to the caller's array after the check */
    Crop *own = PyMem_Malloc((size_t)table->len + 1);
    if (!own)
        return PyErr_NoMemory();
    memcpy(own, table->buf, (size_t)table->len);
    job->crops = own;
    for (Py_ssize_t n = 0; n < job->count; n++) {
        const char *wrong = wrong_with(own + n, job);
        if (wrong) {
            PyErr_Format(PyExc_ValueError, "row %zd: %s", n, wrong);
            PyMem_Free(own);
            return NULL;
        }
    }
    int is_made;
    Py_BEGIN_ALLOW_THREADS;
    is_made = on_threads(make_crop, job, job->count, threads, job->out_size);
    Py_END_ALLOW_THREADS;
    PyMem_Free(own);
    return PyBool_FromLong(is_made);
}

PyObject *crops(PyObject *module, PyObject *args) {
    Py_buffer pixels, table, out, fill;
    int threads;
    Job job = {0};
    if (!PyArg_ParseTuple(args, "y*y*w*iy*i", &pixels, &table, &out, &job.channels, &fill, &threads))
        return NULL;
    PyObject *made = NULL;
    job.pixels = pixels.buf;
    job.size = pixels.len;
    job.out = out.buf;
    job.out_size = out.len;
    if ((job.channels != 1 && job.channels != 3 && job.channels != 4) || fill.len != job.channels)
        PyErr_SetString(PyExc_ValueError, "expected 1, 3 or 4 channels, and a byte of fill for each");
    else {
        memcpy(job.fill, fill.buf, (size_t)fill.len);
        made = checked_crops(&job, &table, threads);
    }
    PyBuffer_Release(&pixels);
    PyBuffer_Release(&table);
    PyBuffer_Release(&out);
    PyBuffer_Release(&fill);
    return made;
}
