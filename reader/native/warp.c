/* Samples pixels, one output line at a time, within a level of torch's kernels. */

#include "pixel_steps.h"

#include <math.h>
#include <string.h>

#if (defined(__GNUC__) || defined(__clang__)) && defined(__x86_64__) && !defined(PIXPACK_PLAIN_C)
#define HAS_AVX2 1
#include <immintrin.h>
#endif

/* Points per pass. */
#define STRIP 256

typedef struct {
    float x[STRIP], y[STRIP];
} Points;

static inline uint8_t level_of(float value) {
    value = value > 0.0f ? value : 0.0f;
    return (uint8_t)(int)(value < 255.0f ? value : 255.0f);
}

/* Computes the source coordinates of pixels [start, start + count) of a line, in pixels. */
FUSED static void find_points(Points *points, const Image *image, const float grid[6], int line, int start, int count) {
    float half_width = (float)image->width / 2.0f, half_height = (float)image->height / 2.0f;
    float x0 = (float)(1 - image->width) * 0.5f + (float)start, y = (float)(1 - image->height) * 0.5f + (float)line;
    for (int i = 0; i < count; i++) {
        float x = x0 + (float)i;
        float across = SUM_OF(grid[1], y, grid[0] * x) + grid[2], down = SUM_OF(grid[4], y, grid[3] * x) + grid[5];
        points->x[i] = SUM_OF(across + 1.0f, half_width, -0.5f);
        points->y[i] = SUM_OF(down + 1.0f, half_height, -0.5f);
    }
}

FUSED static void nearest_line(const Image *image, const uint8_t *from, const Points *points, uint8_t *out, int count, const uint8_t fill[3]) {
    int channels = image->channels;
    for (int i = 0; i < count; i++, out += channels) {
        float x = rintf(points->x[i]), y = rintf(points->y[i]);
        const uint8_t *pixel = fill;
        if (x >= 0.0f && x < (float)image->width && y >= 0.0f && y < (float)image->height)
            pixel = from + ((int64_t)y * image->width + (int64_t)x) * channels;
        out[0] = pixel[0];
        if (channels == 3) {
            out[1] = pixel[1];
            out[2] = pixel[2];
        }
    }
}

/* Returns the levels of a corner, or zeros outside the image. */
static inline const uint8_t *corner(const Image *image, const uint8_t *from, int x, int y, float *is_inside) {
    static const uint8_t beyond[4] = {0};
    *is_inside = x >= 0 && x < image->width && y >= 0 && y < image->height;
    return *is_inside ? from + ((int64_t)y * image->width + x) * image->channels : beyond;
}

/* Returns the weighted sum of four corners, added in torch's order. */
FUSED static inline float sum_of(const float four[4], const float weights[4]) {
    return SUM_OF(four[3], weights[3], SUM_OF(four[2], weights[2], SUM_OF(four[1], weights[1], four[0] * weights[0])));
}

#ifdef HAS_AVX2
/* Reads four bytes: a pixel and one behind it. */
FUSED static inline __m128 floats_at(const uint8_t *pixel) {
    int32_t bytes;
    memcpy(&bytes, pixel, sizeof bytes);
    return _mm_cvtepi32_ps(_mm_cvtepu8_epi32(_mm_cvtsi32_si128(bytes)));
}

/* Writes three channels of a pixel between four corners, rounded as one channel after the other is. */
FUSED static inline void mix_rgb(const uint8_t *const corners[4], const float weights[4], float share, const Fill *fill, uint8_t *out) {
    __m128 made = _mm_mul_ps(floats_at(corners[0]), _mm_set1_ps(weights[0]));
    for (int n = 1; n < 4; n++)
        made = _mm_fmadd_ps(floats_at(corners[n]), _mm_set1_ps(weights[n]), made);
    if (fill->is_given) {
        __m128 levels = _mm_setr_ps(fill->levels[0], fill->levels[1], fill->levels[2], 0.0f);
        made = _mm_add_ps(_mm_mul_ps(_mm_sub_ps(made, levels), _mm_set1_ps(share)), levels);
    }
    made = _mm_round_ps(made, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
    made = _mm_min_ps(_mm_max_ps(made, _mm_setzero_ps()), _mm_set1_ps(255.0f));
    __m128i words = _mm_cvttps_epi32(made), bytes = _mm_packus_epi16(_mm_packus_epi32(words, words), words);
    int32_t pixel = _mm_cvtsi128_si32(bytes);
    memcpy(out, &pixel, 3);
}
#endif

FUSED static void bilinear_line(const Image *image, const uint8_t *from, const Points *points, uint8_t *out, int count, const Fill *fill) {
    int64_t stride = (int64_t)image->width * image->channels;
    for (int i = 0; i < count; i++) {
        float left = floorf(points->x[i]), top = floorf(points->y[i]);
        float west = points->x[i] - left, east = 1.0f - west, north = points->y[i] - top, south = 1.0f - north;
        float weights[4] = {south * east, south * west, north * east, north * west}, inside[4] = {1, 1, 1, 1};
        const uint8_t *corners[4];
        if (left >= 0.0f && left < (float)(image->width - 1) && top >= 0.0f && top < (float)(image->height - 1)) {
            corners[0] = from + (int64_t)top * stride + (int64_t)left * image->channels;
            corners[1] = corners[0] + image->channels;
            corners[2] = corners[0] + stride;
            corners[3] = corners[2] + image->channels;
        } else {
            /* further than one pixel outside the image no corner contributes */
            int is_near = left >= -1.0f && left < (float)image->width && top >= -1.0f && top < (float)image->height;
            int x = is_near ? (int)left : -2, y = is_near ? (int)top : -2;
            for (int n = 0; n < 4; n++)
                corners[n] = corner(image, from, x + n % 2, y + n / 2, inside + n);
        }
        float share = fill->is_given ? sum_of(inside, weights) : 1.0f;
#ifdef HAS_AVX2
        if (image->channels == 3) {
            mix_rgb(corners, weights, share, fill, out);
            out += 3;
            continue;
        }
#endif
        for (int c = 0; c < image->channels; c++) {
            float four[4] = {corners[0][c], corners[1][c], corners[2][c], corners[3][c]}, made = sum_of(four, weights);
            if (fill->is_given)
                made = (made - fill->levels[c]) * share + fill->levels[c];
            *out++ = level_of(rintf(made));
        }
    }
}

void warp(const Image *image, const float grid[6], int is_bilinear, const Fill *fill, uint8_t *spare) {
    Points points;
    uint8_t beyond[3] = {0};
    for (int c = 0; c < 3 && fill->is_given; c++)
        beyond[c] = level_of(rintf(fill->levels[c]));
    memcpy(spare, image->pixels, (size_t)image->height * (size_t)image->width * (size_t)image->channels);
    for (int line = 0; line < image->height; line++)
        for (int start = 0; start < image->width; start += STRIP) {
            int count = image->width - start < STRIP ? image->width - start : STRIP;
            uint8_t *out = image->pixels + ((int64_t)line * image->width + start) * image->channels;
            find_points(&points, image, grid, line, start, count);
            if (is_bilinear)
                bilinear_line(image, spare, &points, out, count, fill);
            else
                nearest_line(image, spare, &points, out, count, beyond);
        }
}
