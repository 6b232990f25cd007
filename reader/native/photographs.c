/* Reads photographs and makes their rows, up to the first that is anything but a sound and plain JPEG, or a plain PNG of the row's
 * size, in a file at rest: what is wrong with that, or what else it is, the caller finds out. Python is called between two
 * photographs, and to inflate. */

#include "photographs.h"

#ifdef HAS_PHOTOGRAPHS
#include <string.h>

#include "jpeg_file.h"
#include "jpeg_row.h"
#include "plain_png.h"
#include "sums.h"

/* Memory above this is given back: one large photograph must not hold it for the rest of a pack. */
#define KEPT_BYTES (4 << 20)
#define CHANNELS 3

/* What the engine sees of a worker, as in packer/workers/processes.py, InFlight. */
enum { INDEX, CHANGES, IS_READING, IS_RETRIED, MARKS };

typedef struct {
    PyObject *plan, *sha256, *inflate;
    volatile int64_t *marks;
    uint8_t *rows;
    size_t row_bytes;
    long long settled_ns;
    FileBytes file;
    uint32_t crc32;
    uint64_t totals[GROUP], square_totals[GROUP];
    double read_seconds, resize_seconds, checksum_seconds;
} Run;

/* Memory of the call before, for the next one; taken and left under the GIL. */
static FileBytes spare;

static void mark(Run *run, int64_t index, int is_reading) {
    if (!run->marks)
        return;
    run->marks[IS_READING] = is_reading;
    run->marks[IS_RETRIED] = 0;
    run->marks[CHANGES]++;
    run->marks[INDEX] = index;
}

/* Returns 0 where the file holds neither; png->width is 0 of a JPEG, which is not looked for where nothing inflates. */
static int read_head(Run *run, const char *path, const FilePart *part, int64_t index, Head *head, PlainPng *png) {
    mark(run, index, 1);
    double begun = seconds_now();
    int is_read = file_read(&run->file, path, part, run->settled_ns);
    run->read_seconds += seconds_now() - begun;
    mark(run, index, 0);
    memset(png, 0, sizeof(*png));
    if (is_read && run->inflate != Py_None && png_read(run->file.bytes, run->file.size, png)) {
        *head = (Head){png->width, png->height, 0, 0};
        return 1;
    }
    png->width = 0;
    return is_read && head_read(run->file.bytes, run->file.size, head);
}

/* Asks how a picture of this size becomes a row; returns 0 where it is not to be made here, or with an error. */
static int ask_plan(Run *run, const Head *head, Wanted *wanted, Place *place) {
    PyObject *plan = PyObject_CallFunction(run->plan, "ii", head->width, head->height);
    int is_right = plan && plan != Py_None &&
                   PyArg_ParseTuple(plan, "(ii)(ii)(ii)(ii)i", &wanted->source_width, &wanted->source_height, &wanted->width,
                                    &wanted->height, &place->left, &place->top, &place->width, &place->height, &wanted->filter);
    Py_XDECREF(plan);
    return is_right && row_bytes_of(wanted, place) == run->row_bytes;
}

static void add_row(Run *run, const uint8_t *row) {
    double begun = seconds_now();
    run->crc32 = crc32_of(run->crc32, row, run->row_bytes);
    add_bytes(row, run->row_bytes, run->totals, run->square_totals);
    run->checksum_seconds += seconds_now() - begun;
}

static int make_row(Run *run, const Wanted *wanted, const Place *place, uint8_t *row) {
    if (!jpeg_row(run->file.bytes, run->file.size, wanted, place, row, &run->resize_seconds))
        return 0;
    add_row(run, row);
    return 1;
}

/* Makes the row of a PNG that is neither resized nor cropped; returns 0 of another, and with an error. */
static int make_png_row(Run *run, const PlainPng *png, const Wanted *wanted, const Place *place, uint8_t *row) {
    if (wanted->source_width != png->width || wanted->source_height != png->height || wanted->width != png->width ||
        wanted->height != png->height || place->left || place->top || place->width != png->width || place->height != png->height)
        return 0;
    Py_ssize_t expected = (Py_ssize_t)png->height * (1 + (Py_ssize_t)png->width * png->channels);
    PyObject *lines = PyObject_CallFunction(
        run->inflate, "y#n", run->file.bytes + png->compressed_at, (Py_ssize_t)png->compressed_bytes, expected);
    int is_made = lines && PyBytes_Check(lines) && PyBytes_Size(lines) == expected &&
                  png_row((const uint8_t *)PyBytes_AsString(lines), png, row);
    Py_XDECREF(lines);
    if (is_made)
        add_row(run, row);
    return is_made;
}

/* Returns what is known of a photograph whose row was made. */
static PyObject *described(Run *run, const Head *head, int is_png) {
    double begun = seconds_now();
    PyObject *view = PyMemoryView_FromMemory((char *)run->file.bytes, (Py_ssize_t)run->file.size, PyBUF_READ);
    PyObject *hash = view ? PyObject_CallFunctionObjArgs(run->sha256, view, NULL) : NULL;
    PyObject *digest = hash ? PyObject_CallMethod(hash, "hexdigest", NULL) : NULL;
    Py_XDECREF(hash);
    Py_XDECREF(view);
    run->checksum_seconds += seconds_now() - begun;
    if (!digest)
        return NULL;
    Py_ssize_t head_bytes = head->has_profile ? (Py_ssize_t)head->head_bytes : 0;
    return Py_BuildValue("(LLNiiy#O)", (long long)run->file.size, (long long)run->file.mtime_ns, digest, head->width, head->height,
                         (char *)run->file.bytes, head_bytes, is_png ? Py_True : Py_False);
}

/* Makes the row of one file, or of a part of one; returns what is known of it, or NULL: an error, or none where it is left to the
 * caller. */
static PyObject *make(Run *run, PyObject *input, int64_t index, uint8_t *row) {
    PyObject *encoded = NULL, *path = input;
    FilePart part;
    int is_part = PyTuple_Check(input);
    if (is_part && !PyArg_ParseTuple(input, "OLLLL", &path, &part.offset, &part.size, &part.file_size, &part.mtime_ns))
        return NULL;
    if (!PyUnicode_FSConverter(path, &encoded)) {
        PyErr_Clear(); /* a name that no file can have, which the caller words */
        return NULL;
    }
    Head head;
    Wanted wanted = {0};
    Place place;
    PlainPng png;
    int is_right;
    const char *name = PyBytes_AsString(encoded);
    Py_BEGIN_ALLOW_THREADS;
    is_right = read_head(run, name, is_part ? &part : NULL, index, &head, &png);
    Py_END_ALLOW_THREADS;
    Py_DECREF(encoded);
    if (!is_right || !ask_plan(run, &head, &wanted, &place))
        return NULL;
    if (png.width)
        return make_png_row(run, &png, &wanted, &place, row) ? described(run, &head, 1) : NULL;
    Py_BEGIN_ALLOW_THREADS;
    is_right = make_row(run, &wanted, &place, row);
    Py_END_ALLOW_THREADS;
    return is_right ? described(run, &head, 0) : NULL;
}

static PyObject *channel_sums(const Run *run) {
    unsigned long long sums[2 * CHANNELS] = {0};
    for (int i = 0; i < GROUP; i++) {
        sums[i % CHANNELS] += run->totals[i];
        sums[CHANNELS + i % CHANNELS] += run->square_totals[i];
    }
    return Py_BuildValue("(KKKKKK)", sums[0], sums[1], sums[2], sums[3], sums[4], sums[5]);
}

static PyObject *make_all(Run *run, PyObject *paths, long long first) {
    PyObject *made = PyList_New(0);
    run->file = spare;
    memset(&spare, 0, sizeof(spare));
    for (Py_ssize_t n = 0; made && n < PyTuple_Size(paths); n++) {
        PyObject *known = make(run, PyTuple_GetItem(paths, n), first + n, run->rows + (size_t)n * run->row_bytes);
        int is_appended = known && !PyList_Append(made, known);
        Py_XDECREF(known);
        if (is_appended)
            continue;
        if (PyErr_Occurred())
            Py_CLEAR(made);
        break;
    }
    if (spare.room || run->file.room > KEPT_BYTES)
        file_free(&run->file);
    else
        spare = run->file;
    return made;
}

const char photographs_doc[] =
    "photographs(paths, first, plan, sha256, inflate, rows, row_bytes, marks, crc32, settled_ns) -> tuple\n\n"
    "Make the rows of files, up to the first that is no sound and plain JPEG or PNG, into rows = uint8[len(paths), row_bytes].\n\n"
    "paths: str, or (path, offset, bytes, bytes of the file, its mtime_ns) of a part of a file that is still the same.\n"
    "plan(width, height) returns row()'s arguments from source on, or None. inflate(data, size) returns so many bytes, or None;\n"
    "where it is None, no PNG is served. marks: int64[4] of the image in flight, b'' for none;\n"
    "first is the number of the first file. crc32: of the rows before these. A file that was\n"
    "changed in the last settled_ns is left to the caller. Returns a list of (bytes, mtime_ns, sha256, width,\n"
    "height, what stands before the first scan where there is a profile in it, whether it is a PNG), the crc32, three sums and three sums of squares,\n"
    "and the seconds that reading, resizing and checksums took.";

PyObject *photographs(PyObject *module, PyObject *args) {
    PyObject *listed;
    Py_buffer rows, marks;
    Py_ssize_t row_bytes;
    long long first;
    Run run = {0};
    if (!PyArg_ParseTuple(args, "O!LOOOw*nw*IL", &PyList_Type, &listed, &first, &run.plan, &run.sha256, &run.inflate, &rows, &row_bytes, &marks,
                          &run.crc32, &run.settled_ns))
        return NULL;
    PyObject *made = NULL, *sums = NULL;
    /* a copy: what Python is called for may change the list */
    PyObject *paths = PyList_AsTuple(listed);
    if (!paths) {
        /* the error is set */
    } else if (row_bytes < 1 || row_bytes % CHANNELS || rows.len / row_bytes < PyTuple_Size(paths) ||
        (marks.len && (marks.len != MARKS * (Py_ssize_t)sizeof(int64_t) || (uintptr_t)marks.buf % sizeof(int64_t))))
        PyErr_SetString(PyExc_ValueError, "expected room for a row of complete pixels for each path, and four marks or none");
    else {
        run.rows = rows.buf;
        run.row_bytes = (size_t)row_bytes;
        run.marks = marks.len ? marks.buf : NULL;
        made = make_all(&run, paths, first);
        sums = made ? channel_sums(&run) : NULL;
    }
    PyBuffer_Release(&rows);
    PyBuffer_Release(&marks);
    Py_XDECREF(paths);
    if (!sums) {
        Py_XDECREF(made);
        return NULL;
    }
    return Py_BuildValue("(NIN(ddd))", made, run.crc32, sums, run.read_seconds, run.resize_seconds, run.checksum_seconds);
}
#endif
