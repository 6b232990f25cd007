/* A JPEG to a row in one pass: lines come from libjpeg a few at a time, are resized while they are in the CPU's cache, and only
 * what the row keeps is made. Serves sound JPEGs of 1 or 3 components; all else, and whatever libjpeg complains about, it leaves
 * to the caller, who words the reasons. */

#define _GNU_SOURCE /* dladdr */
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#ifdef __unix__
#include <dlfcn.h>
#endif
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <jpeglib.h>

#include "resample.h"
#include "sums.h"
#include "unfilter.h"

#if !defined(LIBJPEG_TURBO_VERSION_NUMBER) || LIBJPEG_TURBO_VERSION_NUMBER < 2001000
#error "libjpeg-turbo 2.1 or newer is needed: skipping lines of a progressive JPEG may never end before"
#endif

/* Of the functions and what they do, as live.py expects it: a file that was built from other sources is not used. */
#define INTERFACE 4

/* libjpeg computes the columns and lines at a crop's edge from fewer neighbours than those of the whole picture. */
#define MARGIN 16
/* A line that begins on 32 bytes is written past the caches (vmovntdq in libjpeg-turbo's jdcolext-avx2.asm). */
#define LINE_OFFSET 4

typedef struct {
    struct jpeg_error_mgr base;
    jmp_buf leave;
} Errors;

/* What rows took to be resized, of all that row() took; changed under the GIL. */
static double resize_seconds_so_far;

static double now(void) {
    struct timespec at;
#ifdef CLOCK_MONOTONIC
    clock_gettime(CLOCK_MONOTONIC, &at);
#else
    timespec_get(&at, TIME_UTC);
#endif
    return (double)at.tv_sec + (double)at.tv_nsec * 1e-9;
}

static void leave(j_common_ptr info) {
    longjmp(((Errors *)info->err)->leave, 1);
}

/* Leaves at the first warning: level -1; higher ones are traces. */
static void judge(j_common_ptr info, int level) {
    if (level < 0)
        leave(info);
}

typedef struct {
    struct jpeg_decompress_struct info;
    Errors errors;
    Resampler resampler;
    uint8_t *lines;
    double resize_seconds;
} Work;

static void close_work(Work *work) {
    jpeg_destroy_decompress(&work->info);
    resampler_free(&work->resampler);
    free(work->lines);
}

/* Asks for the scale that TurboJPEG takes: the largest number of eighths that gives no more than the wanted size. */
static int choose_scale(j_decompress_ptr info, const Wanted *wanted) {
    info->scale_denom = 8;
    for (info->scale_num = 8; info->scale_num > 0; info->scale_num--) {
        jpeg_calc_output_dimensions(info);
        if ((int)info->output_width <= wanted->source_width && (int)info->output_height <= wanted->source_height)
            return (int)info->output_width == wanted->source_width && (int)info->output_height == wanted->source_height;
    }
    return 0;
}

/* Whether columns and lines may be left out. Not of several scans: where some are missing, libjpeg smooths over blocks on both sides.
 * Not of scaled pictures with factors above 2: libjpeg-turbo 2 reads memory that it has not written. */
static int can_crop(j_decompress_ptr info) {
    return !jpeg_has_multiple_scans(info) &&
           (info->scale_num == info->scale_denom || (info->max_h_samp_factor <= 2 && info->max_v_samp_factor <= 2));
}

/* Reads lines and drops them: all but the last without making them, where that may be. */
static void drop_lines(j_decompress_ptr info, JDIMENSION stop, int may_skip, uint8_t **rows) {
    /* libjpeg reads nothing of lines that are skipped to the end: the last one is read, so that damage before it shows */
    JDIMENSION last = stop == info->output_height ? stop - 1 : stop;
    if (may_skip && last > info->output_scanline) {
        JDIMENSION count = last - info->output_scanline;
        if (jpeg_skip_scanlines(info, count) != count)
            leave((j_common_ptr)info);
    }
    while (info->output_scanline < stop)
        jpeg_read_scanlines(info, rows, 1);
}

/* Decodes all of the file, of which the kept lines are resized into `out`. Does not return where libjpeg complains. */
static int decode(Work *work, const uint8_t *data, size_t size, const Wanted *wanted, uint8_t *out, long stride) {
    j_decompress_ptr info = &work->info;
    Resampler *resampler = &work->resampler;
    jpeg_create_decompress(info);
    jpeg_mem_src(info, data, size);
    jpeg_read_header(info, TRUE);
    info->out_color_space = JCS_EXT_RGBX;
    if ((info->num_components != 1 && info->num_components != 3) || !choose_scale(info, wanted) ||
        !resampler_init(resampler, wanted, out, stride))
        return 0;
    jpeg_start_decompress(info);
    int may_crop = can_crop(info), last_column = resampler->last_column + MARGIN;
    JDIMENSION column = 0, width = info->output_width;
    JDIMENSION first = resampler->first_line > MARGIN ? (JDIMENSION)resampler->first_line - MARGIN : 0;
    if (may_crop) {
        column = resampler->first_column > MARGIN ? (JDIMENSION)resampler->first_column - MARGIN : 0;
        width = (last_column < (int)width ? (JDIMENSION)last_column : width) - column;
        if (width < info->output_width)
            jpeg_crop_scanline(info, &column, &width);
    }
    resampler_begin_at(resampler, (int)column);

    size_t line_bytes = ((size_t)wanted->source_width * 4 + LINE_PADDING + 63) / 64 * 64;
    work->lines = calloc(LINES, line_bytes + 64);
    if (!work->lines)
        return 0;
    uint8_t *aligned = work->lines + (64 - (uintptr_t)work->lines % 64) % 64 + LINE_OFFSET, *rows[LINES];
    for (int n = 0; n < LINES; n++)
        rows[n] = aligned + n * line_bytes;
    drop_lines(info, first, may_crop, rows);
    drop_lines(info, (JDIMENSION)resampler->first_line, 0, rows);
    while ((int)info->output_scanline < resampler->last_line) {
        int left = resampler->last_line - (int)info->output_scanline, ready = 0;
        int count = left < LINES ? left : LINES;
        while (ready < count)
            ready += (int)jpeg_read_scanlines(info, rows + ready, (JDIMENSION)(count - ready));
        double begun = now();
        resampler_push(resampler, rows, ready);
        work->resize_seconds += now() - begun;
    }
    drop_lines(info, info->output_height, may_crop, rows);
    jpeg_finish_decompress(info);
    return resampler->output == resampler->down.outputs;
}

static int decode_row(const uint8_t *data, size_t size, const Wanted *wanted, uint8_t *out, long stride, double *resize_seconds) {
    Work *work = calloc(1, sizeof(Work));
    if (!work)
        return 0;
    work->info.err = jpeg_std_error(&work->errors.base);
    work->errors.base.error_exit = leave;
    work->errors.base.emit_message = judge;
    volatile int is_decoded = 0;
    if (!setjmp(work->errors.leave))
        is_decoded = decode(work, data, size, wanted, out, stride);
    *resize_seconds = work->resize_seconds;
    close_work(work);
    free(work);
    return is_decoded;
}

PyDoc_STRVAR(row_doc,
    "row(data, source, resized, origin, size, resample) -> bytes | None\n\n"
    "Decode a JPEG to source = (width, height), at a scale of libjpeg's, resize that to resized, and cut out the size = (width,\n"
    "height) that begins at origin = (x, y): uint8[height, width, 3] of RGB, 0 outside the picture. None: not to be had here.");

static PyObject *row(PyObject *module, PyObject *args) {
    const char *data;
    Py_ssize_t size;
    int left, top, width, height;
    Wanted wanted = {.channels = 3};
    if (!PyArg_ParseTuple(args, "y#(ii)(ii)(ii)(ii)i", &data, &size, &wanted.source_width, &wanted.source_height, &wanted.width,
                          &wanted.height, &left, &top, &width, &height, &wanted.filter))
        return NULL;
    wanted.x0 = left > 0 ? left : 0;
    wanted.y0 = top > 0 ? top : 0;
    long long right = (long long)left + width, bottom = (long long)top + height;
    wanted.x1 = right < wanted.width ? (int)right : wanted.width;
    wanted.y1 = bottom < wanted.height ? (int)bottom : wanted.height;
    if (width < 1 || height < 1 || width > 65535 || height > 65535 || wanted.x0 >= wanted.x1 || wanted.y0 >= wanted.y1)
        Py_RETURN_NONE;
    Py_ssize_t row_bytes = (Py_ssize_t)width * height * 3;
    PyObject *pixels = PyBytes_FromStringAndSize(NULL, row_bytes);
    if (!pixels)
        return NULL;
    uint8_t *out = (uint8_t *)PyBytes_AsString(pixels);
    if (wanted.x1 - wanted.x0 < width || wanted.y1 - wanted.y0 < height)
        memset(out, 0, (size_t)row_bytes);
    out += ((Py_ssize_t)(wanted.y0 - top) * width + (wanted.x0 - left)) * 3;
    int is_decoded;
    double seconds = 0;
    Py_BEGIN_ALLOW_THREADS;
    is_decoded = decode_row((const uint8_t *)data, (size_t)size, &wanted, out, (long)width * 3, &seconds);
    Py_END_ALLOW_THREADS;
    resize_seconds_so_far += seconds;
    if (is_decoded)
        return pixels;
    Py_DECREF(pixels);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(resize_seconds_doc,
    "resize_seconds() -> float\n\nReturn the seconds that row() has taken in this process to resize, decoding left out.");

static PyObject *resize_seconds(PyObject *module, PyObject *unused) {
    return PyFloat_FromDouble(resize_seconds_so_far);
}

/* Gray lines become four bytes a pixel, a few at a time. */
static int resize_gray(const uint8_t *pixels, Wanted *wanted, uint8_t *out) {
    Resampler resampler;
    size_t width = (size_t)wanted->source_width, line_bytes = width * 4 + LINE_PADDING;
    uint8_t *wide = calloc(LINES, line_bytes), *rows[LINES];
    int is_ready = resampler_init(&resampler, wanted, out, (long)wanted->width) && wide;
    for (int line = resampler.first_line; is_ready && line < resampler.last_line;) {
        int count = resampler.last_line - line < LINES ? resampler.last_line - line : LINES;
        for (int n = 0; n < LINES; n++)
            rows[n] = wide + n * line_bytes;
        for (int n = 0; n < count; n++)
            for (size_t i = 0; i < width; i++)
                memset(rows[n] + 4 * i, pixels[(size_t)(line + n) * width + i], 4);
        resampler_push(&resampler, rows, count);
        line += count;
    }
    is_ready = is_ready && resampler.output == resampler.down.outputs;
    resampler_free(&resampler);
    free(wide);
    return is_ready;
}

/* Lines come from memory: the last few through a copy, as more than a line is read of each. */
static int resize_picture(const uint8_t *pixels, Wanted *wanted, uint8_t *out) {
    Resampler resampler;
    size_t line_bytes = (size_t)wanted->source_width * 4;
    uint8_t *last = calloc(1, line_bytes + LINE_PADDING), *rows[LINES] = {0};
    int is_ready = resampler_init(&resampler, wanted, out, (long)wanted->width * 4) && last;
    for (int line = resampler.first_line; is_ready && line < resampler.last_line;) {
        int count = resampler.last_line - line < LINES ? resampler.last_line - line : LINES;
        int is_last = line + count == wanted->source_height;
        if (is_last && count > 1)
            count--;
        for (int n = 0; n < count; n++)
            rows[n] = (uint8_t *)pixels + (size_t)(line + n) * line_bytes;
        if (is_last && count == 1 && line + 1 == wanted->source_height)
            rows[0] = memcpy(last, rows[0], line_bytes);
        resampler_push(&resampler, rows, count);
        line += count;
    }
    is_ready = is_ready && resampler.output == resampler.down.outputs;
    resampler_free(&resampler);
    free(last);
    return is_ready;
}

PyDoc_STRVAR(resize_doc,
    "resize(pixels, source, size, resample) -> bytes | None\n\n"
    "Resize a picture of source = (width, height), of one or four bytes a pixel, to size. None: it is too long for this.");

static PyObject *resize(PyObject *module, PyObject *args) {
    const char *pixels;
    Py_ssize_t size;
    Wanted wanted = {.channels = 4};
    if (!PyArg_ParseTuple(args, "y#(ii)(ii)i", &pixels, &size, &wanted.source_width, &wanted.source_height, &wanted.width,
                          &wanted.height, &wanted.filter))
        return NULL;
    wanted.x1 = wanted.width;
    wanted.y1 = wanted.height;
    if (wanted.source_width > 0 && size / wanted.source_width == wanted.source_height)
        wanted.channels = 1;
    Py_ssize_t line_bytes = (Py_ssize_t)wanted.source_width * wanted.channels;
    if (wanted.source_width < 1 || wanted.source_height < 1 || wanted.width < 1 || wanted.height < 1 ||
        size / line_bytes != wanted.source_height || size % line_bytes) {
        PyErr_SetString(PyExc_ValueError, "expected one or four bytes for each pixel of the source, and sizes of 1 or more");
        return NULL;
    }
    if (wanted.width > MOST_SIDE || wanted.height > MOST_SIDE)
        Py_RETURN_NONE;
    PyObject *resized = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)wanted.width * wanted.height * wanted.channels);
    if (!resized)
        return NULL;
    uint8_t *out = (uint8_t *)PyBytes_AsString(resized);
    int is_resized;
    Py_BEGIN_ALLOW_THREADS;
    is_resized = (wanted.channels == 1 ? resize_gray : resize_picture)((const uint8_t *)pixels, &wanted, out);
    Py_END_ALLOW_THREADS;
    if (is_resized)
        return resized;
    Py_DECREF(resized);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(sums_doc,
    "sums(pixels, channels) -> tuple[int, ...]\n\n"
    "Return the sum of each channel of interleaved bytes, and behind these the sum of squares of each.");

static PyObject *sums(PyObject *module, PyObject *args) {
    Py_buffer pixels;
    int channels;
    if (!PyArg_ParseTuple(args, "y*i", &pixels, &channels))
        return NULL;
    if (channels < 1 || GROUP % channels || pixels.len % channels) {
        PyBuffer_Release(&pixels);
        PyErr_SetString(PyExc_ValueError, "expected complete pixels of 1, 2, 3, 4 or 6 channels");
        return NULL;
    }
    uint64_t totals[GROUP] = {0}, square_totals[GROUP] = {0};
    Py_BEGIN_ALLOW_THREADS;
    add_bytes(pixels.buf, (size_t)pixels.len, totals, square_totals);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&pixels);
    PyObject *both = PyTuple_New(2 * channels);
    for (int i = 0; both && i < 2 * channels; i++) {
        uint64_t total = 0;
        for (int at_group = i % channels; at_group < GROUP; at_group += channels)
            total += (i < channels ? totals : square_totals)[at_group];
        PyObject *number = PyLong_FromUnsignedLongLong(total);
        if (!number || PyTuple_SetItem(both, i, number))
            Py_CLEAR(both);
    }
    return both;
}

PyDoc_STRVAR(unfilter_doc,
    "unfilter(lines, height, channels) -> bytes | None\n\n"
    "Undo PNG's filters of lines of 8 bits a channel, each with its filter's number in front. None: one is no filter's.");

static PyObject *unfilter_lines(PyObject *module, PyObject *args) {
    const char *lines;
    Py_ssize_t size, height, channels;
    if (!PyArg_ParseTuple(args, "y#nn", &lines, &size, &height, &channels))
        return NULL;
    Py_ssize_t line_bytes = height > 0 ? size / height - 1 : 0;
    if (height < 1 || channels < 1 || line_bytes < channels || size % height || line_bytes % channels) {
        PyErr_SetString(PyExc_ValueError, "expected complete lines of one pixel or more");
        return NULL;
    }
    PyObject *pixels = PyBytes_FromStringAndSize(NULL, size - height);
    if (!pixels)
        return NULL;
    uint8_t *out = (uint8_t *)PyBytes_AsString(pixels);
    if (unfilter((const uint8_t *)lines, (size_t)height, (size_t)line_bytes, (size_t)channels, out))
        return pixels;
    Py_DECREF(pixels);
    Py_RETURN_NONE;
}

PyDoc_STRVAR(crc32_doc, "crc32(data, value) -> int\n\nReturn zlib's crc32 of data behind that of which value is the crc32.");

static PyObject *crc32(PyObject *module, PyObject *args) {
    Py_buffer data;
    unsigned int value = 0;
    if (!PyArg_ParseTuple(args, "y*|I", &data, &value))
        return NULL;
    Py_BEGIN_ALLOW_THREADS;
    value = crc32_of(value, data.buf, (size_t)data.len);
    Py_END_ALLOW_THREADS;
    PyBuffer_Release(&data);
    return PyLong_FromUnsignedLong(value);
}

PyDoc_STRVAR(library_doc, "library() -> str | None\n\nReturn the path of the file that libjpeg's functions are in.");

static PyObject *library(PyObject *module, PyObject *unused) {
#ifdef __unix__
    Dl_info found;
    if (dladdr((void *)jpeg_std_error, &found) && found.dli_fname)
        return PyUnicode_DecodeFSDefault(found.dli_fname);
#endif
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"crc32", crc32, METH_VARARGS, crc32_doc},
    {"library", library, METH_NOARGS, library_doc},
    {"row", row, METH_VARARGS, row_doc},
    {"sums", sums, METH_VARARGS, sums_doc},
    {"resize", resize, METH_VARARGS, resize_doc},
    {"resize_seconds", resize_seconds, METH_NOARGS, resize_seconds_doc},
    {"unfilter", unfilter_lines, METH_VARARGS, unfilter_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) {
    crc32_begin();
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "INTERFACE", INTERFACE)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
