/* Copies spans of bytes without the interpreter. Streamed bytes bypass the caches, which could not hold them all. memcpy does that
 * only for large pieces, not for rows of 150,528 bytes. C has no such store instruction; every x86-64 has that of SSE2. */

#include "functions.h"

#include <stdint.h>
#include <string.h>

#include "unaligned.h"

#if defined(__SSE2__) && !defined(PIXPACK_PLAIN_C)
#define CAN_STREAM 1
#include <emmintrin.h>
#endif

typedef struct {
    const uint8_t *source;
    const UnalignedInt64 *begins, *sizes, *places;
    uint8_t *out;
    int64_t count, source_bytes, out_bytes;
    int is_streamed;
} Job;

const char copy_spans_doc[] =
    "copy_spans(source, begins, sizes, places, out, is_streamed) -> None\n\n"
    "Copy bytes [begins[i], begins[i] + sizes[i]) of source to out, at places[i]; releases the GIL. begins, sizes, places: int64[B].\n"
    "is_streamed: past the caches, on x86-64. Raises ValueError if the three differ in length, or a span is outside source\n"
    "or out.";

static void copy_span(const uint8_t *from, uint8_t *to, size_t size, int is_streamed) {
#ifdef CAN_STREAM
    enum { LINE = 64, STORE = sizeof(__m128i) };
    if (is_streamed && size >= 2 * LINE) {
        /* whole cache lines: part of one would be read first */
        size_t head = -(uintptr_t)to % LINE;
        memcpy(to, from, head);
        for (from += head, to += head, size -= head; size >= LINE; size -= LINE, from += LINE, to += LINE)
            for (int at = 0; at < LINE; at += STORE)
                _mm_stream_si128((__m128i *)(to + at), _mm_loadu_si128((const __m128i *)(from + at)));
    }
#endif
    memcpy(to, from, size);
}

/* Returns the index of the first span that is outside source or out, or -1. */
static int64_t copy_all(const Job *job) {
    for (int64_t n = 0; n < job->count; n++) {
        /* read once: another thread may write to the caller's arrays after the check */
        int64_t begin = *(const volatile UnalignedInt64 *)(job->begins + n);
        int64_t size = *(const volatile UnalignedInt64 *)(job->sizes + n);
        int64_t place = *(const volatile UnalignedInt64 *)(job->places + n);
        if (size < 0 || begin < 0 || place < 0 || size > job->source_bytes || size > job->out_bytes ||
            begin > job->source_bytes - size || place > job->out_bytes - size)
            return n;
        copy_span(job->source + begin, job->out + place, (size_t)size, job->is_streamed);
    }
#ifdef CAN_STREAM
    /* other threads see streamed bytes only after this */
    _mm_sfence();
#endif
    return -1;
}

static int are_numbers(const Py_buffer *buffer, const Py_buffer *first) {
    return buffer->itemsize == (Py_ssize_t)sizeof(int64_t) && buffer->len == first->len;
}

PyObject *copy_spans(PyObject *module, PyObject *args) {
    Py_buffer source, begins, sizes, places, out;
    int is_streamed;
    if (!PyArg_ParseTuple(args, "y*y*y*y*w*p", &source, &begins, &sizes, &places, &out, &is_streamed))
        return NULL;
    Job job = {.source = source.buf,
               .begins = begins.buf,
               .sizes = sizes.buf,
               .places = places.buf,
               .out = out.buf,
               .count = begins.len / (Py_ssize_t)sizeof(int64_t),
               .source_bytes = source.len,
               .out_bytes = out.len,
               .is_streamed = is_streamed};
    int is_right = are_numbers(&begins, &begins) && are_numbers(&sizes, &begins) && are_numbers(&places, &begins);
    int64_t wrong = -1;
    if (is_right) {
        Py_BEGIN_ALLOW_THREADS;
        wrong = copy_all(&job);
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&source);
    PyBuffer_Release(&begins);
    PyBuffer_Release(&sizes);
    PyBuffer_Release(&places);
    PyBuffer_Release(&out);
    if (!is_right)
        return PyErr_Format(PyExc_ValueError, "expected as many begins, sizes and places, int64 each");
    if (wrong >= 0)
        return PyErr_Format(PyExc_ValueError, "span %lld is outside of source or out", (long long)wrong);
    Py_RETURN_NONE;
}
