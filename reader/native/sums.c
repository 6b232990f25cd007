/* Sums and checksums of bytes, with AVX2 and PCLMULQDQ where the CPU has them, else in plain C, with the same results. */

#include "sums.h"

#include "neon.h"

#if (defined(__GNUC__) || defined(__clang__)) && defined(__x86_64__) && !defined(PIXPACK_PLAIN_C)
#define HAS_X86 1
#include <immintrin.h>
#endif

/* This many squares of bytes fit in 32 bits. */
#define MOST_GROUPS 66051
#define LANES 32

static void add_groups_plain(const uint8_t *at, size_t groups, uint32_t *some, uint32_t *squares) {
    for (size_t n = 0; n < groups; n++, at += GROUP)
        for (int i = 0; i < GROUP; i++) {
            some[i] += at[i];
            squares[i] += (uint32_t)at[i] * at[i];
        }
}

#ifdef HAS_X86
/* Two groups at a time: bytes at the same position become neighbors, so that one multiply-add sums their squares. */
__attribute__((target("avx2"))) static void add_groups_avx2(
    const uint8_t *bytes, size_t groups, uint32_t *some, uint32_t *squares) {
    const __m256i zero = _mm256_setzero_si256(), ones = _mm256_set1_epi16(1);
    for (int first = 0; first < GROUP; first += LANES) {
        __m256i sums[4] = {zero, zero, zero, zero}, powers[4] = {zero, zero, zero, zero};
        for (size_t n = 0; n < groups; n += 2) {
            const uint8_t *at = bytes + n * GROUP + first;
            __m256i one = _mm256_loadu_si256((const __m256i *)at);
            __m256i other = n + 1 < groups ? _mm256_loadu_si256((const __m256i *)(at + GROUP)) : zero;
            __m256i low = _mm256_unpacklo_epi8(one, other), high = _mm256_unpackhi_epi8(one, other);
            __m256i pairs[4] = {_mm256_unpacklo_epi8(low, zero), _mm256_unpackhi_epi8(low, zero),
                _mm256_unpacklo_epi8(high, zero), _mm256_unpackhi_epi8(high, zero)};
            for (int i = 0; i < 4; i++) {
                sums[i] = _mm256_add_epi32(sums[i], _mm256_madd_epi16(pairs[i], ones));
                powers[i] = _mm256_add_epi32(powers[i], _mm256_madd_epi16(pairs[i], pairs[i]));
            }
        }
        /* of registers 0 to 3: bytes 0 to 3 and 16 to 19, 4 to 7 and 20 to 23, ... */
        for (int i = 0; i < 4; i++) {
            uint32_t found[8], found_squares[8];
            _mm256_storeu_si256((__m256i *)found, sums[i]);
            _mm256_storeu_si256((__m256i *)found_squares, powers[i]);
            for (int n = 0; n < 8; n++) {
                int lane = first + 4 * i + (n & 3) + (n & 4) * 4;
                some[lane] += found[n];
                squares[lane] += found_squares[n];
            }
        }
    }
}
#endif

static void add_groups(const uint8_t *at, size_t groups, uint32_t *some, uint32_t *squares) {
#ifdef HAS_X86
    if (__builtin_cpu_supports("avx2")) {
        add_groups_avx2(at, groups, some, squares);
        return;
    }
#elif defined(HAS_NEON)
    add_groups_neon(at, groups, GROUP, some, squares);
    return;
#endif
    add_groups_plain(at, groups, some, squares);
}

void add_bytes(const uint8_t *at, size_t size, uint64_t totals[GROUP], uint64_t square_totals[GROUP]) {
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

/* zlib's polynomial, bit-reversed */
#define POLYNOMIAL 0xedb88320u

static uint32_t table[256];

void crc32_begin(void) {
    for (uint32_t byte = 0; byte < 256; byte++) {
        uint32_t crc = byte;
        for (int bit = 0; bit < 8; bit++)
            crc = crc & 1 ? crc >> 1 ^ POLYNOMIAL : crc >> 1;
        table[byte] = crc;
    }
}

#ifdef HAS_X86
#define CLMUL __attribute__((target("pclmul,sse4.1")))
/* Folding starts with four registers. */
#define LEAST_FOLDED 64

CLMUL static __m128i folded(__m128i sum, __m128i by, __m128i next) {
    return _mm_xor_si128(next, _mm_xor_si128(_mm_clmulepi64_si128(sum, by, 0x00), _mm_clmulepi64_si128(sum, by, 0x11)));
}

/* Gopal et al., "Fast CRC Computation for Generic Polynomials Using PCLMULQDQ Instruction" (Intel, 2009): the constants are its
 * table for this polynomial. size: 64 or more, in sixteens. */
CLMUL static uint32_t crc32_folded(uint32_t crc, const uint8_t *at, size_t size) {
    const __m128i by_64 = _mm_set_epi64x(0x1c6e41596, 0x154442bd4), by_16 = _mm_set_epi64x(0x0ccaa009e, 0x1751997d0);
    const __m128i by_8 = _mm_set_epi64x(0, 0x163cd6124), barrett = _mm_set_epi64x(0x1f7011641, 0x1db710641);
    const __m128i low = _mm_setr_epi32(~0, 0, ~0, 0);
    __m128i sums[4];
    for (int i = 0; i < 4; i++)
        sums[i] = _mm_loadu_si128((const __m128i *)at + i);
    sums[0] = _mm_xor_si128(sums[0], _mm_cvtsi32_si128((int)crc));
    for (at += 64, size -= 64; size >= 64; at += 64, size -= 64)
        for (int i = 0; i < 4; i++)
            sums[i] = folded(sums[i], by_64, _mm_loadu_si128((const __m128i *)at + i));
    __m128i sum = sums[0];
    for (int i = 1; i < 4; i++)
        sum = folded(sum, by_16, sums[i]);
    for (; size >= 16; at += 16, size -= 16)
        sum = folded(sum, by_16, _mm_loadu_si128((const __m128i *)at));
    /* 128 bits to 64, to 32 */
    sum = _mm_xor_si128(_mm_srli_si128(sum, 8), _mm_clmulepi64_si128(sum, by_16, 0x10));
    sum = _mm_xor_si128(_mm_srli_si128(sum, 4), _mm_clmulepi64_si128(_mm_and_si128(sum, low), by_8, 0x00));
    __m128i rest = _mm_clmulepi64_si128(_mm_and_si128(sum, low), barrett, 0x10);
    rest = _mm_clmulepi64_si128(_mm_and_si128(rest, low), barrett, 0x00);
    return (uint32_t)_mm_extract_epi32(_mm_xor_si128(sum, rest), 1);
}
#endif

uint32_t crc32_of(uint32_t before, const uint8_t *at, size_t size) {
    uint32_t crc = ~before;
#ifdef HAS_X86
    if (size >= LEAST_FOLDED && __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1")) {
        size_t count = size / 16 * 16;
        crc = crc32_folded(crc, at, count);
        at += count;
        size -= count;
    }
#elif defined(HAS_NEON)
    if (has_crc32_arm()) {
        size_t count = size / 8 * 8;
        crc = crc32_arm(crc, at, count);
        at += count;
        size -= count;
    }
#endif
    for (; size > 0; at++, size--)
        crc = crc >> 8 ^ table[(crc ^ *at) & 255];
    return ~crc;
}
