/* Green subtracted from red and blue, and from each line the line above it; and back. All sums are of bytes, modulo 256. */

#include "predictor.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

const char predict_doc[] =
    "predict(rows, height, line_bytes, channels) -> None\n\n"
    "Replace pixels, uint8[n, height, line_bytes], by their differences, in place; other threads run meanwhile.";

const char restore_doc[] =
    "restore(rows, height, line_bytes, channels) -> None\n\n"
    "Replace what predict makes of pixels by the pixels, in place; other threads run meanwhile.";

/* Lines of memory, each with a byte of room at both ends, for the neighbors of the first and the last value. */
typedef struct {
    size_t line_bytes;
    int has_colors;
    uint8_t *pixels, *sums, *others;
    /* 255 where red and blue are: values of all channels side by side take the same steps, which are of 16 bytes or more */
    uint8_t *is_red, *is_blue;
} Lines;

static int lines_begin(Lines *lines, size_t line_bytes, size_t channels) {
    size_t room = line_bytes + 2;
    uint8_t *memory = calloc(5, room);
    if (!memory)
        return 0;
    *lines = (Lines){line_bytes, channels >= 3, memory + 1, memory + room + 1, memory + 2 * room + 1, memory + 3 * room + 1,
                     memory + 4 * room + 1};
    for (size_t i = 0; lines->has_colors && i < line_bytes; i += channels)
        lines->is_red[i] = lines->is_blue[i + 2] = 255;
    return 1;
}

static void lines_end(Lines *lines) {
    free(lines->pixels - 1);
}

static void restore_row(Lines *lines, uint8_t *row, size_t height) {
    size_t size = lines->line_bytes;
    uint8_t *restrict sums = lines->sums;
    const uint8_t *restrict is_red = lines->is_red, *restrict is_blue = lines->is_blue;
    memset(sums, 0, size);
    for (size_t y = 0; y < height; y++, row += size) {
        uint8_t *restrict line = row;
        for (size_t i = 0; i < size; i++)
            sums[i] = (uint8_t)(sums[i] + line[i]);
        if (!lines->has_colors)
            memcpy(line, sums, size);
        /* [r - g, g, b - g] -> red += [g, ...], blue += [..., g] */
        for (size_t i = 0; lines->has_colors && i < size; i++)
            line[i] = (uint8_t)(sums[i] + (sums[i + 1] & is_red[i]) + ((sums - 1)[i] & is_blue[i]));
    }
}

/* Replaces a line by its differences from the one above it; here: what is above the next. */
static void predict_line(const Lines *lines, uint8_t *restrict line, const uint8_t *restrict above, uint8_t *restrict here) {
    size_t size = lines->line_bytes;
    uint8_t *restrict pixels = lines->pixels;
    const uint8_t *restrict is_red = lines->is_red, *restrict is_blue = lines->is_blue;
    memcpy(pixels, line, size);
    for (size_t i = 0; i < size; i++) {
        here[i] = (uint8_t)(pixels[i] - (pixels[i + 1] & is_red[i]) - ((pixels - 1)[i] & is_blue[i]));
        line[i] = (uint8_t)(here[i] - above[i]);
    }
}

static void predict_row(Lines *lines, uint8_t *row, size_t height) {
    uint8_t *two[2] = {lines->sums, lines->others};
    memset(two[0], 0, lines->line_bytes);
    for (size_t y = 0; y < height; y++, row += lines->line_bytes)
        predict_line(lines, row, two[y % 2], two[1 - y % 2]);
}

typedef void (*Change)(Lines *lines, uint8_t *row, size_t height);

static PyObject *changed(PyObject *args, Change change) {
    Py_buffer rows;
    Py_ssize_t height, line_bytes, channels;
    if (!PyArg_ParseTuple(args, "w*nnn", &rows, &height, &line_bytes, &channels))
        return NULL;
    int is_right = height >= 1 && channels >= 1 && channels <= 4 && line_bytes >= channels && line_bytes % channels == 0 &&
                   line_bytes <= PY_SSIZE_T_MAX / 8 && rows.len % line_bytes == 0 && rows.len / line_bytes % height == 0;
    int is_done = 0;
    if (is_right) {
        Py_BEGIN_ALLOW_THREADS;
        Lines lines;
        is_done = lines_begin(&lines, (size_t)line_bytes, (size_t)channels);
        size_t row_bytes = (size_t)height * (size_t)line_bytes;
        for (size_t at = 0; is_done && at < (size_t)rows.len; at += row_bytes)
            change(&lines, (uint8_t *)rows.buf + at, (size_t)height);
        if (is_done)
            lines_end(&lines);
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&rows);
    if (is_done)
        Py_RETURN_NONE;
    if (is_right)
        return PyErr_NoMemory();
    PyErr_SetString(PyExc_ValueError, "expected complete rows of 1 to 4 channels");
    return NULL;
}

PyObject *predict(PyObject *module, PyObject *args) {
    return changed(args, predict_row);
}

PyObject *restore(PyObject *module, PyObject *args) {
    return changed(args, restore_row);
}
