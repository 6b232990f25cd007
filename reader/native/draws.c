/* Finds the draws of an epoch that are one row's: the counters whose hash is in the row's share of all hashes. Knows no weights. */

#include "draws.h"

#include <stdint.h>
#include <string.h>

#include "unaligned.h"

#if (defined(__GNUC__) || defined(__clang__)) && defined(__x86_64__) && !defined(PIXPACK_PLAIN_C)
#define HAS_AVX2 1
#endif

/* Hashes are computed so many at a time, which the compiler does with vectors. */
enum { AT_A_TIME = 32, ROUNDS = 4, HALF = 32 };

typedef struct {
    uint64_t factors[ROUNDS], addends[ROUNDS];
    uint64_t low, size;
    int64_t first, count;
} Draws;

const char find_draws_doc[] =
    "find_draws(keys, first, low, size, out) -> int\n\n"
    "Write to out, int64[n], which of the counters from first on, n of them, have a hash in [low, low + size] modulo 2**64, and\n"
    "return how many they are; other threads run meanwhile. keys: uint64[8], a factor and an addend of each round of the hash, which\n"
    "reader/order.py defines. Raises ValueError where keys or out have another size.";

/* Inlined into both functions below, each of which it is compiled for. */
#if defined(__GNUC__) || defined(__clang__)
static inline __attribute__((always_inline))
#else
static inline
#endif
int64_t find(const Draws *draws, UnalignedInt64 *out) {
    int64_t found = 0;
    for (int64_t before = 0; before < draws->count; before += AT_A_TIME) {
        uint64_t values[AT_A_TIME], first = (uint64_t)draws->first + (uint64_t)before, is_any = 0;
        for (int i = 0; i < AT_A_TIME; i++)
            values[i] = first + (uint64_t)i + draws->addends[0];
        for (int round = 0; round < ROUNDS; round++) {
            for (int i = 0; i < AT_A_TIME; i++)
                values[i] = (values[i] ^ values[i] >> HALF) * draws->factors[round] + draws->addends[round];
        }
        for (int i = 0; i < AT_A_TIME; i++) {
            values[i] = (values[i] ^ values[i] >> HALF) - draws->low;
            is_any |= values[i] <= draws->size;
        }
        for (int i = 0; is_any && i < AT_A_TIME && before + i < draws->count; i++) {
            if (values[i] <= draws->size)
                out[found++] = (int64_t)(first + (uint64_t)i);
        }
    }
    return found;
}

#ifdef HAS_AVX2
__attribute__((target("avx2"))) static int64_t find_avx2(const Draws *draws, UnalignedInt64 *out) {
    return find(draws, out);
}
#endif

static int64_t find_here(const Draws *draws, UnalignedInt64 *out) {
#ifdef HAS_AVX2
    if (__builtin_cpu_supports("avx2"))
        return find_avx2(draws, out);
#endif
    return find(draws, out);
}

PyObject *find_draws(PyObject *module, PyObject *args) {
    Py_buffer keys, out;
    Draws draws;
    long long first;
    unsigned long long low, size;
    if (!PyArg_ParseTuple(args, "y*LKKw*", &keys, &first, &low, &size, &out))
        return NULL;
    uint64_t rounds[ROUNDS][2];
    int is_right = keys.len == (Py_ssize_t)sizeof rounds && out.len % (Py_ssize_t)sizeof(int64_t) == 0;
    int64_t found = 0;
    if (is_right) {
        memcpy(rounds, keys.buf, sizeof rounds);
        for (int round = 0; round < ROUNDS; round++) {
            draws.factors[round] = rounds[round][0];
            draws.addends[round] = rounds[round][1];
        }
        draws.low = low;
        draws.size = size;
        draws.first = first;
        draws.count = out.len / (Py_ssize_t)sizeof(int64_t);
        Py_BEGIN_ALLOW_THREADS;
        found = find_here(&draws, out.buf);
        Py_END_ALLOW_THREADS;
    }
    PyBuffer_Release(&keys);
    PyBuffer_Release(&out);
    if (!is_right)
        return PyErr_Format(PyExc_ValueError, "expected the keys of %d rounds and places for int64", ROUNDS);
    return PyLong_FromLongLong(found);
}
