/* Reads pieces of a file and copies the spans in them. A piece goes through a small buffer that stays in the caches: a disk gets the
 * pages of memory to read into one by one, and a virtual disk copies to them. Only a large piece of one span is read directly to its
 * destination, which takes less CPU time. */

#include "functions.h"

#ifdef HAS_READS
#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "unaligned.h"

/* The numbers of a read, and of a span. */
enum { READ_START, READ_SIZE, READ_NUMBERS };
enum { BEGIN, SIZE, MEMORY, PLACE, SPAN_NUMBERS };
/* A piece is large from this fraction of staging on: a half. */
enum { LARGE_PART = 2 };
/* The result of a piece, if it is not the byte at which the file ends. */
enum { COMPLETE = -1, SYSTEM_ERROR = -2, WRONG_READ = -3, WRONG_SPAN = -4, NO_MEMORY = -5 };

typedef struct {
    int descriptor;
    int64_t align, base, staging_bytes, span_count, memory_count;
    uint8_t *staging;
    const UnalignedInt64 *spans;
    /* each span's first byte, and the largest end up to it: both ascend */
    int64_t *begins, *reaches;
    const Py_buffer *memories;
} Job;

const char read_spans_doc[] =
    "read_spans(descriptor, reads, align, base, staging, spans, memories) -> int\n\n"
    "Read pieces of a file to staging, whole blocks of align bytes, and copy the spans in them to memories; releases the GIL.\n"
    "The file begins at byte base of all offsets. reads: int64[R, 2], first byte and size. spans:\n"
    "int64[S, 4], first byte, size, number of the memory and place in it, sorted by the first byte; of a span that is partly in a piece,\n"
    "that part is copied. Returns the byte at which the file ends if that is inside a piece, else -1. Raises OSError as pread(2)\n"
    "does, ValueError if a piece does not fit in staging, a span does not fit in its memory, or base is not at a block.";

/* another thread may write to the caller's arrays after a check */
static int64_t number(const UnalignedInt64 *table, int64_t at) {
    return *(const volatile UnalignedInt64 *)(table + at);
}

/* Returns the index of the first span whose number, which ascends, is larger than a byte. */
static int64_t first_behind(const Job *job, const int64_t *rising, int64_t byte) {
    int64_t low = 0, high = job->span_count;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (rising[middle] <= byte)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

typedef struct {
    int64_t begin, size;
    /* NULL if it is outside its memory */
    uint8_t *to;
} Span;

static Span span_at(const Job *job, int64_t n) {
    const UnalignedInt64 *numbers = job->spans + n * SPAN_NUMBERS;
    Span span = {number(numbers, BEGIN), number(numbers, SIZE), NULL};
    int64_t which = number(numbers, MEMORY), place = number(numbers, PLACE);
    if (span.begin < 0 || span.size < 0 || place < 0 || which < 0 || which >= job->memory_count ||
        span.begin > INT64_MAX - span.size)
        return span;
    const Py_buffer *memory = job->memories + which;
    if (span.size <= memory->len && place <= memory->len - span.size)
        span.to = (uint8_t *)memory->buf + place;
    return span;
}

/* Returns the destination of bytes [start, end) if they are a large part of one span, in whole blocks; else staging. */
static uint8_t *target_of(const Job *job, int64_t start, int64_t end) {
    int64_t n = first_behind(job, job->begins, start) - 1;
    if (n < 0 || (end - start) < job->staging_bytes / LARGE_PART || start % job->align || end % job->align)
        return job->staging;
    Span span = span_at(job, n);
    if (!span.to || span.begin > start || span.begin + span.size < end ||
        (uintptr_t)(span.to + (start - span.begin)) % (uintptr_t)job->align)
        return job->staging;
    return span.to + (start - span.begin);
}

/* Copies the read part of each span: bytes [start, end), which begin at `read`. */
static int64_t copy_parts(const Job *job, const uint8_t *read, int64_t start, int64_t end) {
    for (int64_t n = first_behind(job, job->reaches, start); n < job->span_count; n++) {
        Span span = span_at(job, n);
        if (span.begin >= end)
            break;
        if (!span.to)
            return WRONG_SPAN;
        int64_t a = span.begin > start ? span.begin : start;
        int64_t b = span.begin + span.size < end ? span.begin + span.size : end;
        if (a < b && span.to + (a - span.begin) != read + (a - start))
            memmove(span.to + (a - span.begin), read + (a - start), (size_t)(b - a));
    }
    return COMPLETE;
}

static int64_t read_piece(const Job *job, int64_t start, int64_t size) {
    if (start < job->base || size < 0 || start > INT64_MAX / 2 || size > job->staging_bytes)
        return WRONG_READ;
    int64_t first = start - start % job->align, needed = start + size - first;
    int64_t whole = (needed + job->align - 1) / job->align * job->align, done = 0;
    if (whole > job->staging_bytes)
        return WRONG_READ;
    uint8_t *to = target_of(job, start, start + size);
    while (done < needed) {
        ssize_t count = pread(job->descriptor, to + done, (size_t)(whole - done), first - job->base + done);
        if (count < 0) {
            if (errno == EINTR)
                continue;
            return SYSTEM_ERROR;
        }
        done += count;
        /* the last block of a file may be short */
        if (count == 0 || (done < needed && done % job->align))
            return first - job->base + done;
    }
    return copy_parts(job, to + (start - first), start, start + size);
}

/* Records the start of each span, and the largest end up to it. */
static void note_spans(const Job *job) {
    int64_t reach = INT64_MIN;
    for (int64_t n = 0; n < job->span_count; n++) {
        const UnalignedInt64 *numbers = job->spans + n * SPAN_NUMBERS;
        int64_t begin = number(numbers, BEGIN), size = number(numbers, SIZE);
        /* a span that span_at refuses overlaps every read */
        int64_t end = begin < 0 || size < 0 || begin > INT64_MAX - size ? INT64_MAX : begin + size;
        reach = end > reach ? end : reach;
        job->begins[n] = begin;
        job->reaches[n] = reach;
    }
}

static int64_t read_all(Job *job, const UnalignedInt64 *reads, int64_t count) {
    job->begins = malloc((size_t)(job->span_count ? job->span_count : 1) * 2 * sizeof(int64_t));
    if (!job->begins)
        return NO_MEMORY;
    job->reaches = job->begins + job->span_count;
    note_spans(job);
    for (int64_t n = 0; n < count; n++) {
        int64_t end = read_piece(job, number(reads, n * READ_NUMBERS + READ_START), number(reads, n * READ_NUMBERS + READ_SIZE));
        if (end != COMPLETE)
            return end;
    }
    return COMPLETE;
}

/* Returns the memories as buffers; NULL with an exception if one is not writable bytes. */
static Py_buffer *buffers_of(PyObject *memories, Py_ssize_t count) {
    Py_buffer *buffers = PyMem_Calloc(count ? (size_t)count : 1, sizeof(Py_buffer));
    if (!buffers) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t n = 0; n < count; n++)
        if (PyObject_GetBuffer(PyTuple_GetItem(memories, n), buffers + n, PyBUF_WRITABLE)) {
            while (n > 0)
                PyBuffer_Release(buffers + --n);
            PyMem_Free(buffers);
            return NULL;
        }
    return buffers;
}

PyObject *read_spans(PyObject *module, PyObject *args) {
    Py_buffer reads, staging, spans;
    PyObject *memories;
    long long align, base;
    int descriptor;
    if (!PyArg_ParseTuple(args, "iy*LLw*y*O!", &descriptor, &reads, &align, &base, &staging, &spans, &PyTuple_Type, &memories))
        return NULL;
    Py_ssize_t count = PyTuple_Size(memories), read_bytes = READ_NUMBERS * (Py_ssize_t)sizeof(int64_t),
               span_bytes = SPAN_NUMBERS * (Py_ssize_t)sizeof(int64_t);
    Py_buffer *buffers = buffers_of(memories, count);
    int is_right = reads.len % read_bytes == 0 && spans.len % span_bytes == 0 && align > 0 && align <= staging.len &&
                   base >= 0 && base % align == 0;
    int64_t end = COMPLETE;
    int error = 0;
    if (buffers && is_right) {
        Job job = {.descriptor = descriptor,
                   .align = align,
                   .base = base,
                   .staging_bytes = staging.len,
                   .span_count = spans.len / span_bytes,
                   .memory_count = count,
                   .staging = staging.buf,
                   .spans = spans.buf,
                   .memories = buffers};
        Py_BEGIN_ALLOW_THREADS;
        end = read_all(&job, reads.buf, reads.len / read_bytes);
        error = errno;
        free(job.begins);
        Py_END_ALLOW_THREADS;
    }
    for (Py_ssize_t n = 0; buffers && n < count; n++)
        PyBuffer_Release(buffers + n);
    PyBuffer_Release(&reads);
    PyBuffer_Release(&staging);
    PyBuffer_Release(&spans);
    if (!buffers)
        return NULL;
    PyMem_Free(buffers);
    if (!is_right)
        return PyErr_Format(PyExc_ValueError, "expected int64[R, 2] of reads, int64[S, 4] of spans, and base and staging of whole blocks");
    if (end == NO_MEMORY)
        return PyErr_NoMemory();
    if (end == SYSTEM_ERROR) {
        errno = error;
        return PyErr_SetFromErrno(PyExc_OSError);
    }
    if (end == WRONG_READ || end == WRONG_SPAN)
        return PyErr_Format(PyExc_ValueError, end == WRONG_READ ? "a piece does not fit in staging" : "a span is outside of its memory");
    return PyLong_FromLongLong(end);
}
#endif
