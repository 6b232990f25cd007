/* Blurs pixels: float32 sums of taps from first to last, within a level of pixel_ops.py. */

#include "functions.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "pixel_steps.h"
#include "threads.h"
#include "unaligned.h"

#define MOST_SIDE (1 << 20)

typedef struct {
    const uint8_t *pixels;
    uint8_t *out;
    const UnalignedFloat *weights;
    int height, width, channels, down, across;
} Job;

const char blur_doc[] =
    "blur(pixels, weights, out, size, channels, kernel, threads) -> bool\n\n"
    "Blur uint8[B, height, width, channels] with size = (height, width) to out. kernel: (down, across), how many taps, odd, each half\n"
    "less than its side; weights: float32[B, down + across]. False where there is no memory. Missing on x86-64 without AVX2.";

/* Reflects an index at the edges: -1 -> 1, count -> count - 2. */
static int reflected(int at, int count) {
    at = at < 0 ? -at : at;
    return at < count ? at : 2 * (count - 1) - at;
}

FUSED static void add_bytes_times(float *sums, const uint8_t *from, float weight, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        sums[i] = SUM_OF((float)from[i], weight, sums[i]);
}

/* Writes one line of the result from a line of sums, padded on both sides by its reflections. */
FUSED static void sum_across(const float *padded, const UnalignedFloat *weights, int taps, int channels, int64_t count, float *sums, uint8_t *out) {
    for (int64_t i = 0; i < count; i++)
        sums[i] = padded[i] * weights[0];
    for (int tap = 1; tap < taps; tap++)
        for (int64_t i = 0; i < count; i++)
            sums[i] = SUM_OF(padded[i + (int64_t)tap * channels], weights[tap], sums[i]);
    for (int64_t i = 0; i < count; i++) {
        float level = rintf(sums[i]);
        level = level > 0.0f ? level : 0.0f;
        out[i] = (uint8_t)(int)(level < 255.0f ? level : 255.0f);
    }
}

static int blur_image(const void *given, int64_t number) {
    const Job *job = given;
    const UnalignedFloat *down = job->weights + number * (job->down + job->across), *across = down + job->down;
    int64_t line_bytes = (int64_t)job->width * job->channels, image_bytes = line_bytes * job->height;
    const uint8_t *from = job->pixels + number * image_bytes;
    uint8_t *out = job->out + number * image_bytes;
    int reach = job->across / 2, channels = job->channels;
    float *padded = malloc((size_t)(2 * line_bytes + 2 * (int64_t)reach * channels) * sizeof(float));
    if (!padded)
        return 0;
    float *middle = padded + (int64_t)reach * channels, *sums = middle + line_bytes + (int64_t)reach * channels;
    for (int y = 0; y < job->height; y++, out += line_bytes) {
        memset(middle, 0, (size_t)line_bytes * sizeof(float));
        for (int tap = 0; tap < job->down; tap++)
            add_bytes_times(middle, from + reflected(y + tap - job->down / 2, job->height) * line_bytes, down[tap], line_bytes);
        for (int x = 1; x <= reach; x++) {
            int64_t left = (int64_t)x * channels, last = (int64_t)(job->width - 1) * channels;
            memcpy(middle - left, middle + left, (size_t)channels * sizeof(float));
            memcpy(middle + last + left, middle + last - left, (size_t)channels * sizeof(float));
        }
        sum_across(padded, across, job->across, channels, line_bytes, sums, out);
    }
    free(padded);
    return 1;
}

static int is_kernel(int taps, int side) {
    return taps >= 1 && taps % 2 && taps / 2 < side;
}

PyObject *blur(PyObject *module, PyObject *args) {
    Py_buffer pixels, weights, out;
    int threads, is_done = 0;
    Job job = {0};
    if (!PyArg_ParseTuple(args, "y*y*w*(ii)i(ii)i", &pixels, &weights, &out, &job.height, &job.width, &job.channels, &job.down, &job.across,
                          &threads))
        return NULL;
    int is_right = job.height >= 1 && job.width >= 1 && job.height <= MOST_SIDE && job.width <= MOST_SIDE && job.channels >= 1 &&
                   job.channels <= 4 && is_kernel(job.down, job.height) && is_kernel(job.across, job.width);
    if (is_right) {
        int64_t image_bytes = (int64_t)job.height * job.width * job.channels, images = pixels.len / image_bytes;
        is_right = pixels.len % image_bytes == 0 && out.len == pixels.len &&
                   weights.len == images * (job.down + job.across) * (int64_t)sizeof(float);
        job.pixels = pixels.buf;
        job.out = out.buf;
        job.weights = weights.buf;
        Py_BEGIN_ALLOW_THREADS;
        is_done = is_right && on_threads(blur_image, &job, images, threads, pixels.len);
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&pixels);
    PyBuffer_Release(&weights);
    PyBuffer_Release(&out);
    if (is_right)
        return PyBool_FromLong(is_done);
    PyErr_SetString(PyExc_ValueError, "expected complete images, odd kernels of less than twice their sides, and the weights of each");
    return NULL;
}
