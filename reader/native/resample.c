/* Pillow-SIMD's resampling of 8-bit pixels, bit for bit: horizontal first, rounded to bytes, then vertical. Weights have 16 bits; the
 * largest weight of all outputs limits their precision. */

#include "resample.h"

#include <math.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#if defined(__GNUC__) && defined(__x86_64__) && !defined(PIXPACK_PLAIN_C)
#define HAS_AVX2 1
#include <immintrin.h>
#elif defined(__GNUC__) && defined(__aarch64__) && defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && \
    !defined(PIXPACK_PLAIN_C)
/* every 64-bit ARM has it; big-endian ones take the plain code */
#define HAS_NEON 1
#include <arm_neon.h>
#endif

/* Source lines per output row at most; the caller cuts larger sources into strips first. */
#define MOST_RING_BYTES (256 << 20)
/* 32 bits, less 8 for a pixel, less 2 for the sign and the overshoot of negative weights */
#define MOST_PRECISION 22
#define WEIGHT_LIMIT (1 << 15)
#define PI 3.14159265358979323846

static double support_of(int filter) {
    static const double supports[] = {0, 3.0, 1.0, 2.0, 0.5};
    return supports[filter];
}

static double sinc(double x) {
    return x == 0.0 ? 1.0 : sin(x * PI) / (x * PI);
}

static double weight_at(int filter, double x) {
    switch (filter) {
    case BOX:
        return x > -0.5 && x <= 0.5 ? 1.0 : 0.0;
    case LANCZOS:
        return -3.0 <= x && x < 3.0 ? sinc(x) * sinc(x / 3) : 0.0;
    case BICUBIC: /* Keys 1981, a = -0.5 */
        x = fabs(x);
        if (x < 1.0)
            return ((-0.5 + 2.0) * x - (-0.5 + 3.0)) * x * x + 1;
        return x < 2.0 ? (((x - 5) * x + 8) * x - 4) * -0.5 : 0.0;
    default:
        x = fabs(x);
        return x < 1.0 ? 1.0 - x : 0.0;
    }
}

/* Writes the weights of one output, which sum to 1. Returns their number. */
static int weigh(double *weights, int *start, int output, int source, int outputs, int filter) {
    double scale = (double)source / outputs, spread = scale < 1.0 ? 1.0 : scale;
    double support = support_of(filter) * spread, center = (output + 0.5) * scale, sum = 0.0;
    int first = (int)(center - support + 0.5), last = (int)(center + support + 0.5);
    first = first < 0 ? 0 : first;
    last = last > source ? source : last;
    for (int n = 0; n < last - first; n++) {
        weights[n] = weight_at(filter, (n + first - center + 0.5) * (1.0 / spread));
        sum += weights[n];
    }
    for (int n = 0; n < last - first && sum != 0.0; n++)
        weights[n] /= sum;
    *start = first;
    return last - first;
}

/* Computes the coefficients of outputs [from, to), in reverse order if mirrored. The precision depends on all outputs, including
 * those outside the crop. */
static int axis_init(Axis *axis, int source, int outputs, int filter, int from, int to, int is_mirrored) {
    double spread = source > outputs ? (double)source / outputs : 1.0, largest = 0.0;
    int most = (int)ceil(support_of(filter) * spread) * 2 + 1, kept = to - from;
    axis->outputs = kept;
    axis->taps = (most + 1) & ~1; /* in pairs: an odd count is padded with a weight of 0 */
    axis->precision = axis->most = 0;
    axis->starts = calloc((size_t)kept, sizeof(int));
    axis->counts = calloc((size_t)kept, sizeof(int));
    axis->weights = calloc((size_t)kept * axis->taps, sizeof(int16_t));
    double *exact = calloc((size_t)outputs * most, sizeof(double));
    if (!axis->starts || !axis->counts || !axis->weights || !exact) {
        free(exact);
        return 0;
    }
    for (int i = 0; i < outputs; i++) {
        int start, count = weigh(exact + (size_t)i * most, &start, i, source, outputs, filter);
        if (i >= from && i < to) {
            int place = is_mirrored ? to - 1 - i : i - from;
            axis->starts[place] = start;
            axis->counts[place] = count;
            axis->most = count > axis->most ? count : axis->most;
        }
        for (int n = 0; n < count; n++)
            largest = exact[(size_t)i * most + n] > largest ? exact[(size_t)i * most + n] : largest;
    }
    while (axis->precision < MOST_PRECISION && (int)(0.5 + largest * (1 << (axis->precision + 1))) < WEIGHT_LIMIT)
        axis->precision++;
    for (int i = 0; i < kept; i++)
        for (int n = 0; n < axis->counts[i]; n++) {
            double weight = exact[(size_t)(is_mirrored ? to - 1 - i : i + from) * most + n] * (1 << axis->precision);
            axis->weights[(size_t)i * axis->taps + n] = (int16_t)(int)(weight < 0 ? weight - 0.5 : weight + 0.5);
        }
    free(exact);
    return 1;
}

int resampler_init(Resampler *self, const Wanted *wanted, uint8_t *out, long out_stride) {
    memset(self, 0, sizeof(*self));
    int sides[] = {wanted->source_width, wanted->source_height, wanted->width, wanted->height};
    for (int i = 0; i < 4; i++)
        if (sides[i] < 1 || sides[i] > MOST_SIDE)
            return 0;
    if (wanted->filter < LANCZOS || wanted->filter > BOX || wanted->x0 < 0 || wanted->x1 > wanted->width ||
        wanted->x0 >= wanted->x1 || wanted->y0 < 0 || wanted->y1 > wanted->height || wanted->y0 >= wanted->y1)
        return 0;
    Axis *across = &self->across, *down = &self->down;
    if (!axis_init(across, wanted->source_width, wanted->width, wanted->filter, wanted->x0, wanted->x1, wanted->is_mirrored) ||
        !axis_init(down, wanted->source_height, wanted->height, wanted->filter, wanted->y0, wanted->y1, 0))
        return 0;
    int first = wanted->is_mirrored ? across->outputs - 1 : 0, last = across->outputs - 1 - first;
    self->first_column = across->starts[first];
    self->last_column = across->starts[last] + across->counts[last];
    self->first_line = self->line = down->starts[0];
    self->last_line = down->starts[down->outputs - 1] + down->counts[down->outputs - 1];
    self->ring_lines = (down->taps < wanted->source_height ? down->taps : wanted->source_height) + LINES;
    self->pixel_bytes = wanted->channels == 3 ? 3 : 4;
    self->ring_bytes = across->outputs * self->pixel_bytes + LINE_PADDING;
    if ((size_t)self->ring_lines * (size_t)self->ring_bytes > MOST_RING_BYTES)
        return 0;
    self->ring = calloc((size_t)self->ring_lines, (size_t)self->ring_bytes);
    self->packed = calloc((size_t)self->ring_bytes, 1);
    self->sources = calloc((size_t)down->taps, sizeof(*self->sources));
    self->channels = wanted->channels;
    self->out = out;
    self->out_stride = out_stride;
    return self->ring && self->packed && self->sources;
}

void resampler_begin_at(Resampler *self, int column) {
    for (int i = 0; i < self->across.outputs; i++)
        self->across.starts[i] -= column;
}

void resampler_free(Resampler *self) {
    free(self->across.starts);
    free(self->across.counts);
    free(self->across.weights);
    free(self->down.starts);
    free(self->down.counts);
    free(self->down.weights);
    free(self->ring);
    free(self->packed);
    free(self->sources);
}

static uint8_t byte_of(int sum, int precision) {
    int value = sum >> precision;
    return (uint8_t)(value < 0 ? 0 : value > 255 ? 255 : value);
}

static void across_plain(
    const Axis *axis, int pixel_bytes, uint8_t *const in[LINES], uint8_t *const out[LINES], int count) {
    for (int line = 0; line < count; line++)
        for (int i = 0; i < axis->outputs; i++) {
            const int16_t *weights = axis->weights + (size_t)i * axis->taps;
            const uint8_t *pixel = in[line] + (size_t)pixel_bytes * (size_t)axis->starts[i];
            int half = 1 << (axis->precision - 1), sums[4] = {half, half, half, half};
            for (int n = 0; n < axis->counts[i]; n++, pixel += pixel_bytes)
                for (int c = 0; c < pixel_bytes; c++)
                    sums[c] += pixel[c] * weights[n];
            for (int c = 0; c < pixel_bytes; c++)
                out[line][pixel_bytes * i + c] = byte_of(sums[c], axis->precision);
        }
}

static void down_plain(const int16_t *weights, uint8_t *const *lines, int count, int precision, uint8_t *out, int size) {
    for (int i = 0; i < size; i++) {
        int sum = 1 << (precision - 1);
        for (int n = 0; n < count; n++)
            sum += lines[n][i] * weights[n];
        out[i] = byte_of(sum, precision);
    }
}

#ifdef HAS_AVX2
#define AVX2 __attribute__((target("avx2")))

AVX2 static inline __m256i two_weights(const int16_t *weights) {
    int pair;
    memcpy(&pair, weights, 4);
    return _mm256_set1_epi32(pair);
}

#define INLINED static inline __attribute__((always_inline, target("avx2")))

/* Multiplies neighboring pixels of two lines, as words r0 r1 g0 g1 b0 b1 x0 x1 each, by their weights. */
INLINED __m256i two_taps(__m128i above, __m128i below, __m256i order, const int16_t *weights) {
    __m256i pixels = _mm256_inserti128_si256(_mm256_castsi128_si256(above), below, 1);
    return _mm256_madd_epi16(_mm256_shuffle_epi8(pixels, order), two_weights(weights));
}

INLINED __m256i in_both(__m128i half) {
    return _mm256_inserti128_si256(_mm256_castsi128_si256(half), half, 1);
}

INLINED __m128i load_8(const uint8_t *at) {
    return _mm_loadl_epi64((const __m128i *)at);
}

INLINED __m128i load_16(const uint8_t *at) {
    return _mm_loadu_si128((const __m128i *)at);
}

/* Four lines, two per register, and two outputs at a time. Bytes written past the second output are overwritten by the next one, or are
 * padding. x is 0 for pixels of three bytes. most: weights per output, 2 or 4; 0: axis->counts. Constants for both make this several
 * times as fast. */
INLINED void across_of(const Axis *axis, int pixel_bytes, int most, uint8_t *const in[LINES], uint8_t *const out[LINES]) {
    const int is_wide = pixel_bytes == 4, outputs = axis->outputs, taps = axis->taps;
    const int *starts = axis->starts, *counts = axis->counts;
    const __m256i near = in_both(is_wide ? _mm_setr_epi8(0, -1, 4, -1, 1, -1, 5, -1, 2, -1, 6, -1, 3, -1, 7, -1)
                                         : _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
    const __m256i far = in_both(is_wide ? _mm_setr_epi8(8, -1, 12, -1, 9, -1, 13, -1, 10, -1, 14, -1, 11, -1, 15, -1)
                                        : _mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1));
    /* the first and the second output of each line */
    const __m256i beside = in_both(is_wide ? _mm_setr_epi8(0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15)
                                           : _mm_setr_epi8(0, 1, 2, 8, 9, 10, -1, -1, 4, 5, 6, 12, 13, 14, -1, -1));
    const __m256i half = _mm256_set1_epi32(1 << (axis->precision - 1));
    const __m128i shift = _mm_cvtsi32_si128(axis->precision);
    const uint8_t *in0 = in[0], *in1 = in[1], *in2 = in[2], *in3 = in[3];
    uint8_t *out0 = out[0], *out1 = out[1], *out2 = out[2], *out3 = out[3];
    for (int i = 0; i < outputs; i += 2) {
        __m256i words[2];
        for (int n = 0; n < 2; n++) {
            const int output = i + n < outputs ? i + n : i;
            const int16_t *weights = axis->weights + (long)output * taps;
            long at = (long)starts[output] * pixel_bytes;
            __m256i first = half, second = half;
            int left = most ? most : counts[output];
            for (; left > 2; left -= 4, weights += 4, at += 4 * pixel_bytes) {
                __m128i lines[LINES] = {load_16(in0 + at), load_16(in1 + at), load_16(in2 + at), load_16(in3 + at)};
                first = _mm256_add_epi32(first, two_taps(lines[0], lines[1], near, weights));
                second = _mm256_add_epi32(second, two_taps(lines[2], lines[3], near, weights));
                first = _mm256_add_epi32(first, two_taps(lines[0], lines[1], far, weights + 2));
                second = _mm256_add_epi32(second, two_taps(lines[2], lines[3], far, weights + 2));
            }
            if (left > 0) {
                first = _mm256_add_epi32(first, two_taps(load_8(in0 + at), load_8(in1 + at), near, weights));
                second = _mm256_add_epi32(second, two_taps(load_8(in2 + at), load_8(in3 + at), near, weights));
            }
            words[n] = _mm256_packs_epi32(_mm256_sra_epi32(first, shift), _mm256_sra_epi32(second, shift));
        }
        /* lines 0, 2, 0, 2 in the lower half, 1, 3, 1, 3 in the upper one */
        __m256i bytes = _mm256_shuffle_epi8(_mm256_packus_epi16(words[0], words[1]), beside);
        __m128i even = _mm256_castsi256_si128(bytes), odd = _mm256_extracti128_si256(bytes, 1);
        long to = (long)i * pixel_bytes;
        _mm_storel_epi64((__m128i *)(out0 + to), even);
        _mm_storel_epi64((__m128i *)(out1 + to), odd);
        _mm_storeh_pi((__m64 *)(out2 + to), _mm_castsi128_ps(even));
        _mm_storeh_pi((__m64 *)(out3 + to), _mm_castsi128_ps(odd));
    }
}

AVX2 static void across_avx2(const Axis *axis, int pixel_bytes, uint8_t *const in[LINES], uint8_t *const out[LINES]) {
    if (pixel_bytes == 3 && axis->most <= 2)
        across_of(axis, 3, 2, in, out);
    else if (pixel_bytes == 3 && axis->most <= 4)
        across_of(axis, 3, 4, in, out);
    else if (pixel_bytes == 3)
        across_of(axis, 3, 0, in, out);
    else if (axis->most <= 2)
        across_of(axis, 4, 2, in, out);
    else if (axis->most <= 4)
        across_of(axis, 4, 4, in, out);
    else
        across_of(axis, 4, 0, in, out);
}

/* Lines are padded, so that full registers can be written. */
AVX2 static void down_avx2(
    const int16_t *weights, uint8_t *const *lines, int count, int precision, uint8_t *out, int size) {
    const __m256i zero = _mm256_setzero_si256(), half = _mm256_set1_epi32(1 << (precision - 1));
    const __m128i shift = _mm_cvtsi32_si128(precision);
    for (int i = 0; i < size; i += 32) {
        __m256i sums[4] = {half, half, half, half};
        for (int n = 0; n < count; n += 2) {
            __m256i pair = two_weights(weights + n);
            __m256i above = _mm256_loadu_si256((const __m256i *)(lines[n] + i));
            __m256i below = n + 1 < count ? _mm256_loadu_si256((const __m256i *)(lines[n + 1] + i)) : zero;
            __m256i mixed = _mm256_unpacklo_epi8(above, below);
            sums[0] = _mm256_add_epi32(sums[0], _mm256_madd_epi16(_mm256_unpacklo_epi8(mixed, zero), pair));
            sums[1] = _mm256_add_epi32(sums[1], _mm256_madd_epi16(_mm256_unpackhi_epi8(mixed, zero), pair));
            mixed = _mm256_unpackhi_epi8(above, below);
            sums[2] = _mm256_add_epi32(sums[2], _mm256_madd_epi16(_mm256_unpacklo_epi8(mixed, zero), pair));
            sums[3] = _mm256_add_epi32(sums[3], _mm256_madd_epi16(_mm256_unpackhi_epi8(mixed, zero), pair));
        }
        for (int n = 0; n < 4; n++)
            sums[n] = _mm256_sra_epi32(sums[n], shift);
        __m256i words = _mm256_packs_epi32(sums[0], sums[1]), more = _mm256_packs_epi32(sums[2], sums[3]);
        _mm256_storeu_si256((__m256i *)(out + i), _mm256_packus_epi16(words, more));
    }
}

static int has_avx2(void) {
    return __builtin_cpu_supports("avx2");
}

#elif defined(HAS_NEON)
/* Two neighboring pixels of each line per step, four bytes each; if a pixel has three, the fourth belongs to the next one and
 * its result is overwritten. The odd last weight is 0. */
static inline __attribute__((always_inline)) void across_of(
    const Axis *axis, int pixel_bytes, uint8_t *const in[LINES], uint8_t *const out[LINES]) {
    const int32x4_t half = vdupq_n_s32(1 << (axis->precision - 1)), shift = vdupq_n_s32(-axis->precision);
    for (int i = 0; i < axis->outputs; i++) {
        const int16_t *weights = axis->weights + (size_t)i * (size_t)axis->taps;
        size_t at = (size_t)axis->starts[i] * (size_t)pixel_bytes, to = (size_t)i * (size_t)pixel_bytes;
        int32x4_t sums[LINES] = {half, half, half, half};
        for (int n = 0; n < axis->counts[i]; n += 2, at += 2 * (size_t)pixel_bytes)
            for (int line = 0; line < LINES; line++) {
                uint32_t first, second;
                memcpy(&first, in[line] + at, 4);
                memcpy(&second, in[line] + at + pixel_bytes, 4);
                uint8x8_t bytes = vcreate_u8(first | (uint64_t)second << 32);
                int16x8_t pixels = vreinterpretq_s16_u16(vmovl_u8(bytes));
                sums[line] = vmlal_n_s16(sums[line], vget_low_s16(pixels), weights[n]);
                sums[line] = vmlal_n_s16(sums[line], vget_high_s16(pixels), weights[n + 1]);
            }
        for (int line = 0; line < LINES; line++) {
            int16x4_t words = vqmovn_s32(vshlq_s32(sums[line], shift));
            uint8x8_t bytes = vqmovun_s16(vcombine_s16(words, words));
            uint32_t pixel = vget_lane_u32(vreinterpret_u32_u8(bytes), 0);
            memcpy(out[line] + to, &pixel, 4);
        }
    }
}

static void across_neon(const Axis *axis, int pixel_bytes, uint8_t *const in[LINES], uint8_t *const out[LINES]) {
    if (pixel_bytes == 3)
        across_of(axis, 3, in, out);
    else
        across_of(axis, 4, in, out);
}

static void down_neon(const int16_t *weights, uint8_t *const *lines, int count, int precision, uint8_t *out, int size) {
    const int32x4_t half = vdupq_n_s32(1 << (precision - 1)), shift = vdupq_n_s32(-precision);
    for (int i = 0; i < size; i += 16) {
        int32x4_t sums[4] = {half, half, half, half};
        for (int n = 0; n < count; n++) {
            uint8x16_t bytes = vld1q_u8(lines[n] + i);
            int16x8_t low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(bytes)));
            int16x8_t high = vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(bytes)));
            sums[0] = vmlal_n_s16(sums[0], vget_low_s16(low), weights[n]);
            sums[1] = vmlal_n_s16(sums[1], vget_high_s16(low), weights[n]);
            sums[2] = vmlal_n_s16(sums[2], vget_low_s16(high), weights[n]);
            sums[3] = vmlal_n_s16(sums[3], vget_high_s16(high), weights[n]);
        }
        int16x4_t words[4];
        for (int n = 0; n < 4; n++)
            words[n] = vqmovn_s32(vshlq_s32(sums[n], shift));
        uint8x8_t low = vqmovun_s16(vcombine_s16(words[0], words[1])), high = vqmovun_s16(vcombine_s16(words[2], words[3]));
        vst1q_u8(out + i, vcombine_u8(low, high));
    }
}
#endif

/* Copies pixels of one channel, or of all their bytes. */
static void pack(const uint8_t *from, uint8_t *to, int pixels, int pixel_bytes, int channels) {
    if (channels == pixel_bytes)
        memcpy(to, from, (size_t)pixels * (size_t)pixel_bytes);
    else
        for (int i = 0; i < pixels; i++)
            to[i] = from[4 * i];
}

static void across(const Axis *axis, int pixel_bytes, uint8_t *const in[LINES], uint8_t *const out[LINES], int count) {
#ifdef HAS_AVX2
    if (has_avx2()) {
        across_avx2(axis, pixel_bytes, in, out);
        return;
    }
#elif defined(HAS_NEON)
    across_neon(axis, pixel_bytes, in, out);
    return;
#endif
    across_plain(axis, pixel_bytes, in, out, count);
}

static void down_lines(const int16_t *weights, uint8_t *const *lines, int count, int precision, uint8_t *out, int size) {
#ifdef HAS_AVX2
    if (has_avx2()) {
        down_avx2(weights, lines, count, precision, out, size);
        return;
    }
#elif defined(HAS_NEON)
    down_neon(weights, lines, count, precision, out, size);
    return;
#endif
    down_plain(weights, lines, count, precision, out, size);
}

static uint8_t *ring_line(const Resampler *self, int line) {
    return self->ring + (size_t)(line % self->ring_lines) * self->ring_bytes;
}

void resampler_push(Resampler *self, uint8_t *const lines[LINES], int count) {
    uint8_t *into[LINES], *from[LINES];
    for (int n = 0; n < LINES; n++) {
        into[n] = ring_line(self, self->line + n);
        from[n] = n < count ? lines[n] : lines[0]; /* unused lines: their result is overwritten by the next */
    }
    across(&self->across, self->pixel_bytes, from, into, count);
    self->line += count;
    const Axis *down = &self->down;
    int kept_bytes = self->across.outputs * self->pixel_bytes;
    /* writes full registers: directly into the row if they end inside it */
    int is_straight = self->channels == self->pixel_bytes && kept_bytes % 32 == 0;
    for (; self->output < down->outputs; self->output++) {
        int start = down->starts[self->output], taps = down->counts[self->output];
        if (start + taps > self->line)
            return;
        for (int n = 0; n < taps; n++)
            self->sources[n] = ring_line(self, start + n);
        const int16_t *weights = down->weights + (size_t)self->output * down->taps;
        uint8_t *to = self->out + self->output * (ptrdiff_t)self->out_stride, *made = is_straight ? to : self->packed;
        down_lines(weights, self->sources, taps, down->precision, made, kept_bytes);
        if (!is_straight)
            pack(made, to, self->across.outputs, self->pixel_bytes, self->channels);
    }
}

/* Returns a line: in place if enough bytes after it can be read, else as a copy. */
static uint8_t *line_of(const Picture *picture, int line, size_t width, uint8_t *copy) {
    const uint8_t *from = picture->pixels + (size_t)line * picture->line_stride;
    size_t line_bytes = width * (size_t)picture->pixel_bytes;
    if (picture->pixel_bytes == 1) {
        for (size_t i = 0; i < width; i++)
            memset(copy + 4 * i, from[i], 4);
        return copy;
    }
    if ((size_t)(picture->end - from) >= line_bytes + LINE_PADDING)
        return (uint8_t *)from; /* read only */
    return memcpy(copy, from, line_bytes);
}

int picture_resize(const Picture *picture, const Wanted *given, uint8_t *out, long out_stride) {
    Wanted wanted = *given;
    Resampler resampler;
    wanted.channels = picture->pixel_bytes;
    size_t width = (size_t)wanted.source_width, copy_bytes = width * 4 + LINE_PADDING;
    uint8_t *copies = calloc(LINES, copy_bytes), *rows[LINES] = {0};
    int is_ready = resampler_init(&resampler, &wanted, out, out_stride) && copies;
    for (int line = resampler.first_line; is_ready && line < resampler.last_line;) {
        int count = resampler.last_line - line < LINES ? resampler.last_line - line : LINES;
        for (int n = 0; n < count; n++)
            rows[n] = line_of(picture, line + n, width, copies + (size_t)n * copy_bytes);
        resampler_push(&resampler, rows, count);
        line += count;
    }
    is_ready = is_ready && resampler.output == resampler.down.outputs;
    resampler_free(&resampler);
    free(copies);
    return is_ready;
}
