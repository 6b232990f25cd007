/* The functions that Python calls. Decides nothing about pictures: jpeg_row.c makes a row of a JPEG,
 * copies.c copies spans, reads.c reads them from a file, crops.c crops them; augment.c augments them. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include "functions.h"
#include "jpeg_row.h"
#include "pixel_steps.h"
#include "resample.h"

/* Version of the functions and their behavior; __init__.py checks it and refuses a build of other sources. */
#define INTERFACE 29

#define TEXT(version) #version
#define TEXT_OF(version) TEXT(version)
/* The version of the libjpeg-turbo headers of this build, as "2.1.5". */
#define HEADERS TEXT_OF(LIBJPEG_TURBO_VERSION)

PyDoc_STRVAR(row_doc,
    "row(data, source, resized, origin, size, resample, out) -> bool\n\n"
    "Decode a JPEG to source = (width, height), at a scale of libjpeg, resize it to resized, and crop size = (width, height)\n"
    "at origin = (x, y) into out: RGB uint8[height, width, 3], 0 outside the picture. Returns False if that is impossible here.");

static PyObject *row(PyObject *module, PyObject *args) {
    Py_buffer data, out;
    Wanted wanted = {0};
    Place place;
    if (!PyArg_ParseTuple(args, "y*(ii)(ii)(ii)(ii)iw*", &data, &wanted.source_width, &wanted.source_height, &wanted.width,
                          &wanted.height, &place.left, &place.top, &place.width, &place.height, &wanted.filter, &out))
        return NULL;
    size_t row_bytes = row_bytes_of(&wanted, &place);
    int is_right = !row_bytes || (size_t)out.len == row_bytes, is_decoded = 0;
    if (is_right && row_bytes) {
        Py_BEGIN_ALLOW_THREADS;
        is_decoded = jpeg_row(data.buf, (size_t)data.len, &wanted, &place, out.buf);
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&out);
    if (!is_right) {
        PyErr_SetString(PyExc_ValueError, "expected the memory of a row of 3 channels");
        return NULL;
    }
    return PyBool_FromLong(is_decoded);
}

PyDoc_STRVAR(jpeg_pixels_doc,
    "jpeg_pixels(data, height, width, channels, out) -> str\n\n"
    "Decode a baseline JPEG of this size and of 1 or 3 channels into out, uint8[height, width, channels]; releases the GIL.\n"
    "Returns its error, or \"\"; then out is complete.");

static PyObject *jpeg_to_pixels(PyObject *module, PyObject *args) {
    Py_buffer data, out;
    int height, width, channels;
    if (!PyArg_ParseTuple(args, "y*iiiw*", &data, &height, &width, &channels, &out))
        return NULL;
    int is_right = height > 0 && width > 0 && (channels == 1 || channels == 3) &&
                   out.len / width / channels == height && out.len % ((Py_ssize_t)width * channels) == 0;
    char message[MOST_MESSAGE] = "";
    if (is_right) {
        Py_BEGIN_ALLOW_THREADS;
        jpeg_pixels(data.buf, (size_t)data.len, height, width, channels, out.buf, message);
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&data);
    PyBuffer_Release(&out);
    if (!is_right) {
        PyErr_SetString(PyExc_ValueError, "expected the memory of a picture of 1 or 3 channels");
        return NULL;
    }
    return PyUnicode_DecodeUTF8(message, (Py_ssize_t)strlen(message), "replace");
}

PyDoc_STRVAR(resize_doc,
    "resize(pixels, source, size, resample) -> bytes | None\n\n"
    "Resize a picture of source = (width, height), of one or four bytes a pixel, to size. None: a side is too long.");

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
    Picture picture = {(const uint8_t *)pixels, (const uint8_t *)pixels + size, (size_t)line_bytes, wanted.channels};
    int is_resized;
    Py_BEGIN_ALLOW_THREADS;
    is_resized = picture_resize(&picture, &wanted, out, (long)wanted.width * wanted.channels);
    Py_END_ALLOW_THREADS;
    if (is_resized)
        return resized;
    Py_DECREF(resized);
    Py_RETURN_NONE;
}

/* A multiple of 1, 2, 3, 4 and 6 channels: a channel has the same position in every group. */
#define GROUP 96
/* The sum of this many squares of bytes fits in 32 bits. */
#define MOST_GROUPS 66051

static void add_groups(const uint8_t *at, size_t groups, uint32_t *some, uint32_t *squares) {
    for (size_t n = 0; n < groups; n++, at += GROUP)
        for (int i = 0; i < GROUP; i++) {
            some[i] += at[i];
            squares[i] += (uint32_t)at[i] * at[i];
        }
}

/* Adds bytes and their squares to the totals of their position in a group. The first byte starts a group. */
static void add_bytes(const uint8_t *at, size_t size, uint64_t totals[GROUP], uint64_t square_totals[GROUP]) {
    while (size > 0) {
        uint32_t some[GROUP] = {0}, squares[GROUP] = {0};
        size_t groups = size / GROUP < MOST_GROUPS ? size / GROUP : MOST_GROUPS;
        add_groups(at, groups, some, squares);
        at += groups * GROUP;
        size -= groups * GROUP;
        for (; groups < MOST_GROUPS && size > 0; size--) { /* less than a group remains */
            some[size - 1] += at[size - 1];
            squares[size - 1] += (uint32_t)at[size - 1] * at[size - 1];
        }
        for (int i = 0; i < GROUP; i++) {
            totals[i] += some[i];
            square_totals[i] += squares[i];
        }
    }
}

PyDoc_STRVAR(sums_doc,
    "sums(pixels, channels) -> tuple[int, ...]\n\n"
    "Return the sum of each channel of interleaved bytes, then the sum of squares of each.");

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

PyDoc_STRVAR(library_doc, "library() -> str | None\n\nReturn the path of the file with libjpeg's functions.");

static PyObject *library(PyObject *module, PyObject *unused) {
    const char *path = jpeg_library();
    if (path)
        return PyUnicode_DecodeFSDefault(path);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"augment", augment, METH_VARARGS, augment_doc},
    {"copy_spans", copy_spans, METH_VARARGS, copy_spans_doc},
    {"crops", crops, METH_VARARGS, crops_doc},
    {"floats", floats, METH_VARARGS, floats_doc},
    {"jpeg_pixels", jpeg_to_pixels, METH_VARARGS, jpeg_pixels_doc},
    {"library", library, METH_NOARGS, library_doc},
#ifdef HAS_READS
    {"read_spans", read_spans, METH_VARARGS, read_spans_doc},
#endif
    {"row", row, METH_VARARGS, row_doc},
    {"sums", sums, METH_VARARGS, sums_doc},
    {"resize", resize, METH_VARARGS, resize_doc},
    {NULL, NULL, 0, NULL},
};

static int complete(PyObject *module) {
    return PyModule_AddIntConstant(module, "INTERFACE", INTERFACE) || PyModule_AddStringConstant(module, "HEADERS", HEADERS) ? -1 : 0;
}

static PyModuleDef_Slot slots[] = {
    {Py_mod_exec, complete},
#ifdef Py_mod_gil
    {Py_mod_gil, Py_MOD_GIL_NOT_USED}, /* no variable here changes after the import */
#endif
    {0, NULL},
};

static struct PyModuleDef definition = {PyModuleDef_HEAD_INIT, "_native", NULL, 0, methods, slots, NULL, NULL, NULL};

PyMODINIT_FUNC PyInit__native(void) {
    return PyModuleDef_Init(&definition);
}
