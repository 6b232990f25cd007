/* Copies spans of bytes without the interpreter. What is streamed does not stay in the caches, which it would only fill: it is more
 * than they hold. memcpy does that by itself for large pieces alone, and more slowly. */

#include "functions.h"

#include <stdint.h>
#include <string.h>

#include "unaligned.h"

#if (defined(__GNUC__) || defined(__clang__)) && defined(__x86_64__) && !defined(PIXPACK_PLAIN_C)
#define HAS_AVX2 1
#include <immintrin.h>
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
    "Copy bytes [begins[i], begins[i] + sizes[i]) of source to out, from places[i] on; other threads run meanwhile. begins, sizes,\n"
    "places: int64[B]. is_streamed: past the caches, where this processor has AVX2. Raises ValueError where the three are not of one\n"
    "length, or a span is outside of source or out.";

#ifdef HAS_AVX2
enum { LINE = 64, STEP = 2 * LINE };

/* Writes complete lines of the cache, as a part of one would be read first. Returns how many bytes at the end remain. */
__attribute__((target("avx2"))) static size_t stream_avx2(const uint8_t *from, uint8_t *to, size_t size) {
    for (; size >= STEP; size -= STEP, from += STEP, to += STEP) {
        const __m256i *source = (const __m256i *)from;
        __m256i *made = (__m256i *)to;
        __m256i a = _mm256_loadu_si256(source), b = _mm256_loadu_si256(source + 1);
        __m256i c = _mm256_loadu_si256(source + 2), d = _mm256_loadu_si256(source + 3);
        _mm256_stream_si256(made, a);
        _mm256_stream_si256(made + 1, b);
        _mm256_stream_si256(made + 2, c);
        _mm256_stream_si256(made + 3, d);
    }
    return size;
}

static void copy_span(const uint8_t *from, uint8_t *to, size_t size, int is_streamed) {
    if (is_streamed && size >= STEP + LINE) {
        size_t head = -(uintptr_t)to % LINE;
        memcpy(to, from, head);
        size_t left = stream_avx2(from + head, to + head, size - head);
        from += size - left;
        to += size - left;
        size = left;
    }
    memcpy(to, from, size);
}
#endif

/* Returns the number of the first span that is outside of source or out, or -1. */
static int64_t copy_all(const Job *job) {
#ifdef HAS_AVX2
    int is_streamed = job->is_streamed && __builtin_cpu_supports("avx2");
#endif
    for (int64_t n = 0; n < job->count; n++) {
        /* read once: another thread may write to the caller's arrays after the check */
        int64_t begin = *(const volatile UnalignedInt64 *)(job->begins + n);
        int64_t size = *(const volatile UnalignedInt64 *)(job->sizes + n);
        int64_t place = *(const volatile UnalignedInt64 *)(job->places + n);
        if (size < 0 || begin < 0 || place < 0 || size > job->source_bytes || size > job->out_bytes ||
            begin > job->source_bytes - size || place > job->out_bytes - size)
            return n;
#ifdef HAS_AVX2
        copy_span(job->source + begin, job->out + place, (size_t)size, is_streamed);
#else
        memcpy(job->out + place, job->source + begin, (size_t)size);
#endif
    }
#ifdef HAS_AVX2
    /* streamed bytes are there for other threads only after this */
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
