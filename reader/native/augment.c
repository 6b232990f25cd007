/* Augments a batch: checks the table of steps, then changes each image on one of several threads, without the interpreter. */

#include "functions.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "pixel_steps.h"
#include "threads.h"
#include "unaligned.h"

#define MOST_SIDE (1 << 20)
#define MOST_STEPS 1024
#define LEVELS 256
/* No factor, angle or grid is this large; keeps every computed value within an integer. */
#define MOST_NUMBER 1e6f

/* One step of one image, as compiled.py writes it. */
typedef struct {
    int32_t kind;
    float numbers[6];
} Step;

typedef struct {
    const uint8_t *pixels;
    uint8_t *out;
    const Step *steps;
    int count, height, width, channels;
    Fill fill;
} Job;

typedef struct {
    const uint8_t *pixels;
    UnalignedFloat *out;
    const UnalignedFloat *tables;
    int64_t image_bytes;
    int channels;
} FloatsJob;

const char augment_doc[] =
    "augment(pixels, table, out, size, channels, steps, fill, threads) -> bool\n\n"
    "Copy uint8[B, height, width, channels] with size = (height, width) to out, and apply each image's steps there. table:\n"
    "float32[B, steps, 7], the kind as an int32 and six numbers, see pixel_steps.h. fill: three levels outside warped images, or None.\n"
    "Returns False if memory is lacking.\n"
    "Raises ValueError if a kind is unknown, or a number is out of range.";

const char floats_doc[] =
    "floats(pixels, tables, out, image_bytes, threads) -> None\n\n"
    "Replace each level of uint8[B, ..., C] by its float32 in its channel's table, float32[C, 256]: writes float32[B, C, ...].";

static int change_image(const void *given, int64_t number) {
    const Job *job = given;
    size_t image_bytes = (size_t)job->height * (size_t)job->width * (size_t)job->channels;
    Image image = {job->out + (size_t)number * image_bytes, job->height, job->width, job->channels};
    memcpy(image.pixels, job->pixels + (size_t)number * image_bytes, image_bytes);
    uint8_t *spare = NULL;
    for (const Step *step = job->steps + number * job->count, *end = step + job->count; step < end; step++) {
        if ((step->kind >= WARPED_NEAREST || step->kind == SHARPENED) && !spare && !(spare = malloc(image_bytes + PIXEL_PADDING)))
            return 0;
        if (step->kind == BLURRED) {
            if (!blur(&image, step->numbers[0], (int)step->numbers[1], (int)step->numbers[2], spare)) {
                free(spare);
                return 0;
            }
        } else if (step->kind >= WARPED_NEAREST)
            warp(&image, step->numbers, step->kind == WARPED_BILINEAR, &job->fill, spare);
        else
            pixel_step(&image, step->kind, step->numbers[0], spare);
    }
    free(spare);
    return 1;
}

/* By the bits: the compiler assumes that all floats are finite. */
static int is_within(float number, float low, float high) {
    uint32_t bits;
    memcpy(&bits, &number, sizeof bits);
    return (bits >> 23 & 255) != 255 && number >= low && number <= high;
}

/* Whether this number of taps is odd, and its reflection stays within a side. */
static int are_taps(float taps, int side) {
    return is_within(taps, 1, (float)(2 * side - 1)) && (int)taps % 2;
}

/* Returns whether a step is valid for images of this size. */
static int is_possible(const Step *step, const Job *job) {
    float first = step->numbers[0];
    if (step->kind < UNCHANGED || step->kind >= STEPS)
        return 0;
    for (int i = 0; i < 6; i++)
        if (!is_within(step->numbers[i], -MOST_NUMBER, MOST_NUMBER))
            return 0;
    return (step->kind != POSTERIZED || is_within(first, 0, 8)) && (step->kind != ADDED || is_within(first, 0, 255)) &&
           (step->kind != HUE || is_within(first, -1, 1)) &&
           (step->kind != BLURRED || (first > 0 && are_taps(step->numbers[1], job->width) && are_taps(step->numbers[2], job->height)));
}

/* Checks the arguments and changes the images. Returns NULL and sets an exception on error. */
static PyObject *checked_augment(Job *job, const Py_buffer *pixels, const Py_buffer *table, const Py_buffer *out, int threads) {
    if (job->height < 1 || job->width < 1 || job->height > MOST_SIDE || job->width > MOST_SIDE || job->count < 0 || job->count > MOST_STEPS ||
        (job->channels != 1 && job->channels != 3))
        return PyErr_Format(PyExc_ValueError, "expected a size of 1 to 1,048,576 pixels a side, and 1 or 3 channels");
    int64_t image_bytes = (int64_t)job->height * job->width * job->channels, images = pixels->len / image_bytes;
    int64_t wanted = images * job->count;
    if (pixels->len % image_bytes || out->len != pixels->len || table->len != wanted * (int64_t)sizeof(Step))
        return PyErr_Format(PyExc_ValueError, "expected complete images, as many bytes to write, and the steps of each");
    for (int c = 0; c < 3; c++)
        if (!is_within(job->fill.levels[c], -MOST_NUMBER, MOST_NUMBER))
            return PyErr_Format(PyExc_ValueError, "expected levels of the fill from 0 to 255");
    /* a copy: another thread may write to the caller's array after the check */
    Step *own = PyMem_Malloc((size_t)table->len + 1);
    if (!own)
        return PyErr_NoMemory();
    memcpy(own, table->buf, (size_t)table->len);
    for (int64_t n = 0; n < wanted; n++)
        if (!is_possible(own + n, job)) {
            PyMem_Free(own);
            return PyErr_Format(PyExc_ValueError, "image %lld: there is no such step, or a number of it is out of range",
                                (long long)(n / job->count));
        }
    job->steps = own;
    int is_done;
    Py_BEGIN_ALLOW_THREADS;
    is_done = on_threads(change_image, job, images, threads, pixels->len);
    Py_END_ALLOW_THREADS;
    PyMem_Free(own);
    return PyBool_FromLong(is_done);
}

PyObject *augment(PyObject *module, PyObject *args) {
    Py_buffer pixels, table, out;
    PyObject *fill;
    int threads;
    Job job = {0};
    if (!PyArg_ParseTuple(args, "y*y*w*(ii)iiOi", &pixels, &table, &out, &job.height, &job.width, &job.channels, &job.count, &fill, &threads))
        return NULL;
    PyObject *made = NULL;
    job.pixels = pixels.buf;
    job.out = out.buf;
    job.fill.is_given = fill != Py_None;
    float *levels = job.fill.levels;
    if (fill == Py_None || PyArg_ParseTuple(fill, "fff", levels, levels + 1, levels + 2))
        made = checked_augment(&job, &pixels, &table, &out, threads);
    PyBuffer_Release(&pixels);
    PyBuffer_Release(&table);
    PyBuffer_Release(&out);
    return made;
}

static int make_floats(const void *given, int64_t number) {
    const FloatsJob *job = given;
    const uint8_t *from = job->pixels + number * job->image_bytes;
    const UnalignedFloat *first = job->tables, *second = first + LEVELS, *third = second + LEVELS;
    int64_t pixels = job->image_bytes / job->channels;
    UnalignedFloat *out = job->out + number * job->image_bytes;
    if (job->channels == 3)
        for (int64_t i = 0; i < pixels; i++, from += 3) {
            out[i] = first[from[0]];
            out[pixels + i] = second[from[1]];
            out[2 * pixels + i] = third[from[2]];
        }
    else
        for (int c = 0; c < job->channels; c++, out += pixels)
            for (int64_t i = 0; i < pixels; i++)
                out[i] = first[c * LEVELS + from[i * job->channels + c]];
    return 1;
}

PyObject *floats(PyObject *module, PyObject *args) {
    Py_buffer pixels, tables, out;
    long long image_bytes;
    int threads;
    if (!PyArg_ParseTuple(args, "y*y*w*Li", &pixels, &tables, &out, &image_bytes, &threads))
        return NULL;
    Py_ssize_t channels = tables.len / (Py_ssize_t)(LEVELS * sizeof(float));
    int is_right = channels >= 1 && channels <= LEVELS && tables.len % (Py_ssize_t)(LEVELS * sizeof(float)) == 0 && image_bytes >= 1 &&
                   image_bytes % channels == 0 && pixels.len % image_bytes == 0 &&
                   out.len / (Py_ssize_t)sizeof(float) == pixels.len && out.len % (Py_ssize_t)sizeof(float) == 0;
    if (is_right) {
        FloatsJob job = {pixels.buf, out.buf, tables.buf, image_bytes, (int)channels};
        Py_BEGIN_ALLOW_THREADS;
        on_threads(make_floats, &job, pixels.len / image_bytes, threads, out.len);
        Py_END_ALLOW_THREADS;
    } else
        PyErr_SetString(PyExc_ValueError, "expected complete images, 256 numbers a channel, and a number to write for each level");
    PyBuffer_Release(&pixels);
    PyBuffer_Release(&tables);
    PyBuffer_Release(&out);
    if (!is_right)
        return NULL;
    Py_RETURN_NONE;
}
