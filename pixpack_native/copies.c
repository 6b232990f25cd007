/* Copies rows without the interpreter. What is written does not stay in the caches, which it would only fill: it is more than they
 * hold. memcpy does that by itself for large pieces alone, and more slowly. */

#include "copies.h"

#include <stdint.h>
#include <string.h>

#include "unaligned.h"

#if (defined(__GNUC__) || defined(__clang__)) && defined(__x86_64__) && !defined(PIXPACK_PLAIN_C)
#define HAS_AVX2 1
#include <immintrin.h>
#endif

typedef struct {
    const uint8_t *source;
    const UnalignedInt64 *rows;
    uint8_t *out;
    int64_t count, source_rows;
    size_t row_bytes;
} Job;

const char copy_rows_doc[] =
    "copy_rows(source, rows, out) -> None\n\n"
    "Copy rows of source, uint8[N, row bytes], to out, uint8[B, row bytes], past the caches where this processor has AVX2; other\n"
    "threads run meanwhile. rows: int64[B] in [0, N). Raises ValueError where one is outside of it, or out is not B rows long.";

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

static void copy_row(const uint8_t *from, uint8_t *to, size_t size, int is_streamed) {
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

/* Returns the number of the first row that is not in source, or -1. */
static int64_t copy_all(const Job *job) {
    int64_t wrong = -1;
#ifdef HAS_AVX2
    int is_streamed = __builtin_cpu_supports("avx2");
#endif
    for (int64_t n = 0; n < job->count && wrong < 0; n++) {
        /* read once: another thread may write to the caller's array after the check */
        int64_t row = *(const volatile UnalignedInt64 *)(job->rows + n);
        if (row < 0 || row >= job->source_rows) {
            wrong = n;
            continue;
        }
        const uint8_t *from = job->source + (size_t)row * job->row_bytes;
        uint8_t *to = job->out + (size_t)n * job->row_bytes;
#ifdef HAS_AVX2
        copy_row(from, to, job->row_bytes, is_streamed);
#else
        memcpy(to, from, job->row_bytes);
#endif
    }
#ifdef HAS_AVX2
    /* streamed bytes are there for other threads only after this */
    _mm_sfence();
#endif
    return wrong;
}

PyObject *copy_rows(PyObject *module, PyObject *args) {
    Py_buffer source, rows, out;
    if (!PyArg_ParseTuple(args, "y*y*w*", &source, &rows, &out))
        return NULL;
    Job job = {.source = source.buf, .rows = rows.buf, .out = out.buf, .count = rows.len / (Py_ssize_t)sizeof(int64_t)};
    int is_right = rows.itemsize == (Py_ssize_t)sizeof(int64_t) && (job.count ? out.len % job.count : out.len) == 0;
    int64_t wrong = -1;
    if (is_right && out.len) {
        job.row_bytes = (size_t)(out.len / job.count);
        job.source_rows = source.len / (int64_t)job.row_bytes;
        Py_BEGIN_ALLOW_THREADS;
        wrong = copy_all(&job);
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&source);
    PyBuffer_Release(&rows);
    PyBuffer_Release(&out);
    if (!is_right)
        return PyErr_Format(PyExc_ValueError, "expected int64 numbers, and room for as many rows");
    if (wrong >= 0)
        return PyErr_Format(PyExc_ValueError, "rows[%lld] is not a row of source", (long long)wrong);
    Py_RETURN_NONE;
}
