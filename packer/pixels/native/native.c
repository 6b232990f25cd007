/* A JPEG to a row in one pass: lines come from libjpeg a few at a time, are resized while they are in the CPU's cache, and only
 * what the row keeps is made. Serves sound JPEGs of 1 or 3 components; all else, and whatever libjpeg complains about, it leaves
 * to the caller, who words the reasons. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include "resample.h"

/* Of the functions and what they do, as live.py expects it: a file that was built from other sources is not used. */
#define INTERFACE 1

/* libjpeg computes the columns and lines at a crop's edge from fewer neighbours than those of the whole picture. */
#define MARGIN 16
/* A line that begins on 32 bytes is written past the caches (vmovntdq in libjpeg-turbo's jdcolext-avx2.asm). */
#define LINE_OFFSET 4

typedef struct {
    struct jpeg_error_mgr base;
    jmp_buf leave;
} Errors;

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
} Work;

static void close_work(Work *work) {
    jpeg_destroy_decompress(&work->info);
    resampler_free(&work->resampler);
    free(work->lines);
}

static void skip_lines(j_decompress_ptr info, JDIMENSION count) {
    if (count && jpeg_skip_scanlines(info, count) != count)
        leave((j_common_ptr)info);
}

/* Decodes all of the file, of which the kept lines are resized into `out`. Does not return where libjpeg complains. */
static int decode(Work *work, const uint8_t *data, size_t size, int scale, Wanted *wanted, uint8_t *out, long stride) {
    j_decompress_ptr info = &work->info;
    jpeg_create_decompress(info);
    jpeg_mem_src(info, data, size);
    jpeg_read_header(info, TRUE);
    if (info->num_components != 1 && info->num_components != 3)
        return 0;
    info->scale_num = 1;
    info->scale_denom = (unsigned)scale;
    info->out_color_space = JCS_EXT_RGBX;
    jpeg_start_decompress(info);
    if (!resampler_init(&work->resampler, wanted, out, stride) || (int)info->output_width != wanted->source_width ||
        (int)info->output_height != wanted->source_height)
        return 0;
    Resampler *resampler = &work->resampler;
    JDIMENSION height = info->output_height, column = 0;
    JDIMENSION first = resampler->first_line > MARGIN ? (JDIMENSION)resampler->first_line - MARGIN : 0;
    int last_column = resampler->last_column + MARGIN;
    column = resampler->first_column > MARGIN ? (JDIMENSION)resampler->first_column - MARGIN : 0;
    JDIMENSION width = (last_column < (int)info->output_width ? (JDIMENSION)last_column : info->output_width) - column;
    if (width < info->output_width)
        jpeg_crop_scanline(info, &column, &width);
    resampler_begin_at(resampler, (int)column);

    size_t line_bytes = ((size_t)info->output_width * 4 + LINE_PADDING + 63) / 64 * 64;
    work->lines = malloc(LINES * line_bytes + 64);
    if (!work->lines)
        return 0;
    uint8_t *aligned = work->lines + (64 - (uintptr_t)work->lines % 64) % 64 + LINE_OFFSET, *rows[LINES];
    memset(work->lines, 0, LINES * line_bytes + 64);
    for (int n = 0; n < LINES; n++)
        rows[n] = aligned + n * line_bytes;
    skip_lines(info, first);
    while ((int)info->output_scanline < resampler->first_line)
        jpeg_read_scanlines(info, rows, 1);
    while ((int)info->output_scanline < resampler->last_line) {
        int left = resampler->last_line - (int)info->output_scanline, ready = 0;
        while (ready < LINES && ready < left)
            ready += (int)jpeg_read_scanlines(info, rows + ready, (JDIMENSION)(LINES - ready < left - ready ? LINES - ready : left - ready));
        resampler_push(resampler, rows, ready);
    }
    /* libjpeg reads nothing of lines that are skipped to the end: the last one is read, so that damage before it shows */
    if (info->output_scanline < height) {
        skip_lines(info, height - 1 - info->output_scanline);
        jpeg_read_scanlines(info, rows, 1);
    }
    jpeg_finish_decompress(info);
    return resampler->output == resampler->down.outputs;
}

static int decode_row(const uint8_t *data, size_t size, int scale, Wanted *wanted, uint8_t *out, long stride) {
    Work *work = calloc(1, sizeof(Work));
    if (!work)
        return 0;
    work->info.err = jpeg_std_error(&work->errors.base);
    work->errors.base.error_exit = leave;
    work->errors.base.emit_message = judge;
    int is_decoded = setjmp(work->errors.leave) ? 0 : decode(work, data, size, scale, wanted, out, stride);
    close_work(work);
    free(work);
    return is_decoded;
}

PyDoc_STRVAR(row_doc,
    "row(data, scale, source, resized, origin, size, resample) -> bytes | None\n\n"
    "Decode a JPEG at 1/scale, which gives source = (width, height), resize that to resized, and cut out the size = (width,\n"
    "height) that begins at origin = (x, y): uint8[height, width, 3] of RGB, 0 outside the picture. None: not to be had here.");

static PyObject *row(PyObject *module, PyObject *args) {
    const char *data;
    Py_ssize_t size;
    int scale, left, top, width, height;
    Wanted wanted;
    if (!PyArg_ParseTuple(args, "y#i(ii)(ii)(ii)(ii)i", &data, &size, &scale, &wanted.source_width, &wanted.source_height,
                          &wanted.width, &wanted.height, &left, &top, &width, &height, &wanted.filter))
        return NULL;
    if (width < 1 || height < 1 || width > 65535 || height > 65535 || scale < 1 || scale > 8)
        Py_RETURN_NONE;
    /* what is added to these below stays an int */
    if (left < -MOST_SIDE || left > MOST_SIDE || top < -MOST_SIDE || top > MOST_SIDE || wanted.width < 1 || wanted.height < 1)
        Py_RETURN_NONE;
    wanted.channels = 3;
    wanted.x0 = left > 0 ? left : 0;
    wanted.y0 = top > 0 ? top : 0;
    wanted.x1 = left + width < wanted.width ? left + width : wanted.width;
    wanted.y1 = top + height < wanted.height ? top + height : wanted.height;
    Py_ssize_t row_bytes = (Py_ssize_t)width * height * 3;
    PyObject *pixels = PyBytes_FromStringAndSize(NULL, row_bytes);
    if (!pixels)
        return NULL;
    uint8_t *out = (uint8_t *)PyBytes_AsString(pixels);
    if (wanted.x1 - wanted.x0 < width || wanted.y1 - wanted.y0 < height)
        memset(out, 0, (size_t)row_bytes);
    out += ((Py_ssize_t)(wanted.y0 - top) * width + (wanted.x0 - left)) * 3;
    int is_decoded;
    Py_BEGIN_ALLOW_THREADS;
    is_decoded = decode_row((const uint8_t *)data, (size_t)size, scale, &wanted, out, (long)width * 3);
    Py_END_ALLOW_THREADS;
    if (is_decoded)
        return pixels;
    Py_DECREF(pixels);
    Py_RETURN_NONE;
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
    "Resize a picture of source = (width, height), of four bytes a pixel, to size. None: it is too long for this.");

static PyObject *resize(PyObject *module, PyObject *args) {
    const char *pixels;
    Py_ssize_t size;
    Wanted wanted = {.channels = 4};
    if (!PyArg_ParseTuple(args, "y#(ii)(ii)i", &pixels, &size, &wanted.source_width, &wanted.source_height, &wanted.width,
                          &wanted.height, &wanted.filter))
        return NULL;
    wanted.x1 = wanted.width;
    wanted.y1 = wanted.height;
    if (wanted.source_width < 1 || wanted.source_height < 1 || wanted.width < 1 || wanted.height < 1 ||
        size / 4 / wanted.source_width != wanted.source_height || size % (4 * (Py_ssize_t)wanted.source_width)) {
        PyErr_SetString(PyExc_ValueError, "expected four bytes for each pixel of the source, and sizes of 1 or more");
        return NULL;
    }
    if (wanted.width > MOST_SIDE || wanted.height > MOST_SIDE)
        Py_RETURN_NONE;
    PyObject *resized = PyBytes_FromStringAndSize(NULL, (Py_ssize_t)wanted.width * wanted.height * 4);
    if (!resized)
        return NULL;
    int is_resized;
    Py_BEGIN_ALLOW_THREADS;
    is_resized = resize_picture((const uint8_t *)pixels, &wanted, (uint8_t *)PyBytes_AsString(resized));
    Py_END_ALLOW_THREADS;
    if (is_resized)
        return resized;
    Py_DECREF(resized);
    Py_RETURN_NONE;
}

/* Of 1, 2, 3, 4 and 6 channels the same one stands at the same byte of each group. */
#define GROUP 96
/* So many squares of bytes fit in 32 bits. */
#define MOST_GROUPS 66051

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
    const uint8_t *at = pixels.buf;
    Py_ssize_t size = pixels.len;
    uint64_t totals[GROUP] = {0}, square_totals[GROUP] = {0};
    while (size > 0) {
        uint32_t some[GROUP] = {0}, squares[GROUP] = {0};
        Py_ssize_t groups = size / GROUP < MOST_GROUPS ? size / GROUP : MOST_GROUPS;
        for (Py_ssize_t n = 0; n < groups; n++, at += GROUP)
            for (int i = 0; i < GROUP; i++) {
                some[i] += at[i];
                squares[i] += (uint32_t)at[i] * at[i];
            }
        size -= groups * GROUP;
        for (; groups < MOST_GROUPS && size > 0; size--) { /* less than a group is left */
            some[size - 1] += at[size - 1];
            squares[size - 1] += (uint32_t)at[size - 1] * at[size - 1];
        }
        for (int i = 0; i < GROUP; i++) {
            totals[i] += some[i];
            square_totals[i] += squares[i];
        }
    }
    PyBuffer_Release(&pixels);
    PyObject *both = PyTuple_New(2 * channels);
    for (int c = 0; both && c < channels; c++) {
        uint64_t sum = 0, square = 0;
        for (int i = c; i < GROUP; i += channels) {
            sum += totals[i];
            square += square_totals[i];
        }
        PyTuple_SetItem(both, c, PyLong_FromUnsignedLongLong(sum));
        PyTuple_SetItem(both, channels + c, PyLong_FromUnsignedLongLong(square));
    }
    return both;
}

static PyMethodDef methods[] = {
    {"row", row, METH_VARARGS, row_doc},
    {"sums", sums, METH_VARARGS, sums_doc},
    {"resize", resize, METH_VARARGS, resize_doc},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", NULL, 0, methods, NULL, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) {
    PyObject *module = PyModule_Create(&definition);
    if (module && PyModule_AddIntConstant(module, "INTERFACE", INTERFACE)) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
