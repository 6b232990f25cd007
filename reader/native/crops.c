/* Crops a batch: checks each row of the table, then makes the crops on several threads, without the interpreter. */

#include "crops.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "neon.h"
#include "picture.h"
#include "threads.h"

#if (defined(__GNUC__) || defined(__clang__)) && defined(__x86_64__) && !defined(PIXPACK_PLAIN_C)
#define HAS_AVX2 1
#include <immintrin.h>
#endif

enum { IS_CUBIC = 1, IS_MIRRORED = 2 };

/* One row of the table, as compiled.py writes it: offset and size of the image, the box in it (half-open), the size that the box is
 * resized to, the position of the crop in the resized box, and its number among the crops that are written. */
typedef struct {
    int64_t offset, image_height, image_width, x0, y0, x1, y1, top, left, height, width, flags, number;
} Crop;

typedef struct {
    const uint8_t *pixels;
    int64_t size;
    uint8_t *out;
    const Crop *crops;
    Py_ssize_t count, places;
    int height, width, channels;
} Job;

const char crops_doc[] =
    "crops(pixels, table, out, size, channels, threads) -> bool\n\n"
    "Crop a box of each image in flat uint8 pixels, resize it, and write it to out, uint8[N, height, width, channels] with size =\n"
    "(height, width). table: int64[B, 13] offset, image height, image width; x0, y0, x1, y1; top, left, height, width of the grid,\n"
    "see reader/transforms/kernels/resample.py; flags: 1 bicubic, 2 mirrored; the number in out. False: there is no memory, or a box is too\n"
    "large for this. Raises ValueError where a row of the table is outside of its image, of pixels or of out.";

#ifdef HAS_AVX2
/* Mirrors sixteen pixels at a time, from the line's start: a line that is read backward is not prefetched and takes twice as long.
 * Bytes of a, b and c become the first, second and third sixteen. Returns how many pixels at the line's start remain. */
__attribute__((target("avx2"))) static int64_t mirror_rgb_avx2(const uint8_t *from, uint8_t *to, int64_t pixels) {
    const __m128i c_first = _mm_setr_epi8(13, 14, 15, 10, 11, 12, 7, 8, 9, 4, 5, 6, 1, 2, 3, -1);
    const __m128i b_first = _mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 14);
    const __m128i c_second = _mm_setr_epi8(-1, 0, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m128i b_second = _mm_setr_epi8(15, -1, 11, 12, 13, 8, 9, 10, 5, 6, 7, 2, 3, 4, -1, 0);
    const __m128i a_second = _mm_setr_epi8(-1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, 15, -1);
    const __m128i b_third = _mm_setr_epi8(1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1, -1);
    const __m128i a_third = _mm_setr_epi8(-1, 12, 13, 14, 9, 10, 11, 6, 7, 8, 3, 4, 5, 0, 1, 2);
    int64_t left = pixels % 16;
    for (int64_t at = left; at < pixels; at += 16) {
        const __m128i *source = (const __m128i *)(from + 3 * at);
        __m128i *made = (__m128i *)(to + 3 * (pixels - 16 - at));
        __m128i a = _mm_loadu_si128(source), b = _mm_loadu_si128(source + 1), c = _mm_loadu_si128(source + 2);
        __m128i second = _mm_or_si128(_mm_shuffle_epi8(b, b_second), _mm_shuffle_epi8(a, a_second));
        _mm_storeu_si128(made, _mm_or_si128(_mm_shuffle_epi8(c, c_first), _mm_shuffle_epi8(b, b_first)));
        _mm_storeu_si128(made + 1, _mm_or_si128(second, _mm_shuffle_epi8(c, c_second)));
        _mm_storeu_si128(made + 2, _mm_or_si128(_mm_shuffle_epi8(b, b_third), _mm_shuffle_epi8(a, a_third)));
    }
    return left;
}
#endif

static void mirror_line(const uint8_t *from, uint8_t *to, int64_t pixels, int channels) {
    int64_t left = pixels;
#ifdef HAS_AVX2
    if (channels == 3 && __builtin_cpu_supports("avx2"))
        left = mirror_rgb_avx2(from, to, pixels);
#elif defined(HAS_NEON)
    if (channels == 3)
        left = mirror_rgb_neon(from, to, pixels);
#endif
    if (channels == 1)
        for (int64_t i = 0; i < pixels; i++)
            to[pixels - 1 - i] = from[i];
    else if (channels == 3)
        for (int64_t i = 0; i < left; i++)
            memcpy(to + 3 * (pixels - 1 - i), from + 3 * i, 3);
    else
        for (int64_t i = 0; i < pixels; i++)
            memcpy(to + 4 * (pixels - 1 - i), from + 4 * i, 4);
}

static void copy_lines(const uint8_t *from, size_t stride, uint8_t *out, const Job *job, int is_mirrored) {
    size_t line_bytes = (size_t)job->width * (size_t)job->channels;
    if (stride == line_bytes && !is_mirrored) {
        memcpy(out, from, line_bytes * (size_t)job->height);
        return;
    }
    for (int line = 0; line < job->height; line++, from += stride, out += line_bytes)
        if (is_mirrored)
            mirror_line(from, out, job->width, job->channels);
        else
            memcpy(out, from, line_bytes);
}

/* Mirrors a crop while it is still in the core's cache. Returns 0 if out of memory. */
static int mirror_crop(uint8_t *out, const Job *job) {
    size_t line_bytes = (size_t)job->width * (size_t)job->channels;
    uint8_t *line = malloc(line_bytes);
    if (!line)
        return 0;
    for (int n = 0; n < job->height; n++, out += line_bytes) {
        memcpy(line, out, line_bytes);
        mirror_line(line, out, job->width, job->channels);
    }
    free(line);
    return 1;
}

static int make_crop(const void *given, int64_t n) {
    const Job *job = given;
    const Crop *crop = job->crops + n;
    size_t pixel_bytes = (size_t)job->channels, stride = (size_t)crop->image_width * pixel_bytes;
    const uint8_t *box = job->pixels + crop->offset + (size_t)crop->y0 * stride + (size_t)crop->x0 * pixel_bytes;
    uint8_t *out = job->out + (size_t)crop->number * (size_t)job->height * (size_t)job->width * pixel_bytes;
    int is_mirrored = (crop->flags & IS_MIRRORED) != 0;
    if (crop->height == crop->y1 - crop->y0 && crop->width == crop->x1 - crop->x0) {
        copy_lines(box + (size_t)crop->top * stride + (size_t)crop->left * pixel_bytes, stride, out, job, is_mirrored);
        return 1;
    }
    Picture picture = {box, job->pixels + job->size, stride, job->channels};
    Wanted wanted = {
        .source_width = (int)(crop->x1 - crop->x0),
        .source_height = (int)(crop->y1 - crop->y0),
        .width = (int)crop->width,
        .height = (int)crop->height,
        .x0 = (int)crop->left,
        .x1 = (int)crop->left + job->width,
        .y0 = (int)crop->top,
        .y1 = (int)crop->top + job->height,
        .filter = crop->flags & IS_CUBIC ? BICUBIC : BILINEAR,
    };
    return picture_resize(&picture, &wanted, out, (long)job->width * job->channels) && (!is_mirrored || mirror_crop(out, job));
}

static int is_side(int64_t side) {
    return side >= 1 && side <= MOST_SIDE;
}

/* Returns what is wrong with a row of the table, or NULL. */
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
    if (crop->number < 0 || crop->number >= job->places)
        return "there is no such crop to write";
    if (crop->top < 0 || crop->top > crop->height - job->height || crop->left < 0 || crop->left > crop->width - job->width)
        return "the crop is outside of the resized box";
    return NULL;
}

/* Checks the arguments and makes the crops. Returns NULL and sets an exception on error. */
static PyObject *checked_crops(Job *job, const Py_buffer *table, Py_ssize_t out_size, int threads) {
    if (!is_side(job->height) || !is_side(job->width) || (job->channels != 1 && job->channels != 3 && job->channels != 4))
        return PyErr_Format(PyExc_ValueError, "expected a size of 1 or more pixels, and 1, 3 or 4 channels");
    job->count = table->len / (Py_ssize_t)sizeof(Crop);
    int64_t crop_bytes = (int64_t)job->height * job->width * job->channels;
    if (table->len % (Py_ssize_t)sizeof(Crop) || out_size % crop_bytes)
        return PyErr_Format(PyExc_ValueError, "expected 13 numbers in the table for each row, and whole crops to write");
    job->places = (Py_ssize_t)(out_size / crop_bytes);
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
    is_made = on_threads(make_crop, job, job->count, threads, job->count * crop_bytes);
    Py_END_ALLOW_THREADS;
    PyMem_Free(own);
    return PyBool_FromLong(is_made);
}

PyObject *crops(PyObject *module, PyObject *args) {
    Py_buffer pixels, table, out;
    int threads;
    Job job = {0};
    if (!PyArg_ParseTuple(args, "y*y*w*(ii)ii", &pixels, &table, &out, &job.height, &job.width, &job.channels, &threads))
        return NULL;
    job.pixels = pixels.buf;
    job.size = (int64_t)pixels.len;
    job.out = out.buf;
    PyObject *made = checked_crops(&job, &table, out.len, threads);
    PyBuffer_Release(&pixels);
    PyBuffer_Release(&table);
    PyBuffer_Release(&out);
    return made;
}
