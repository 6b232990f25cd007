/* Blurs an image: float32 sums of taps from first to last, within a level of pixel_ops.py. */

#include "pixel_steps.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Reflects an index at the edges: -1 -> 1, count -> count - 2. */
static int reflected(int at, int count) {
    at = at < 0 ? -at : at;
    return at < count ? at : 2 * (count - 1) - at;
}

FUSED static void add_bytes_times(float *sums, const uint8_t *from, float weight, int64_t count) {
    for (int64_t i = 0; i < count; i++)
        sums[i] = SUM_OF((float)from[i], weight, sums[i]);
}

/* Writes one line of the result from a line of sums, padded on both sides by its reflections. */
FUSED static void sum_across(const float *padded, const float *weights, int taps, int channels, int64_t count, float *sums, uint8_t *out) {
    for (int64_t i = 0; i < count; i++)
        sums[i] = padded[i] * weights[0];
    for (int tap = 1; tap < taps; tap++)
        for (int64_t i = 0; i < count; i++)
            sums[i] = SUM_OF(padded[i + (int64_t)tap * channels], weights[tap], sums[i]);
    for (int64_t i = 0; i < count; i++) {
        float level = rintf(sums[i]);
        level = level > 0.0f ? level : 0.0f;
        out[i] = (uint8_t)(int)(level < 255.0f ? level : 255.0f);
    }
}

/* What each pixel of a line counts: exp(-x^2 / (2 sigma^2)), 1 in all. */
static void find_weights(float *weights, int taps, double sigma) {
    double sum = 0.0;
    for (int tap = 0; tap < taps; tap++) {
        double offset = (tap - taps / 2) / sigma;
        weights[tap] = (float)exp(-0.5 * offset * offset);
        sum += weights[tap];
    }
    for (int tap = 0; tap < taps; tap++)
        weights[tap] = (float)(weights[tap] / sum);
}

int blur(const Image *image, float sigma, int across, int down, uint8_t *spare) {
    int64_t line_bytes = (int64_t)image->width * image->channels;
    int reach = across / 2, channels = image->channels;
    size_t margin = (size_t)reach * (size_t)channels, line = (size_t)line_bytes;
    float *padded = malloc((2 * line + 2 * margin + (size_t)across + (size_t)down) * sizeof(float));
    if (!padded)
        return 0;
    float *middle = padded + margin, *sums = middle + line + margin, *of_columns = sums + line, *of_lines = of_columns + across;
    find_weights(of_columns, across, sigma);
    find_weights(of_lines, down, sigma);
    memcpy(spare, image->pixels, line * (size_t)image->height);
    for (int y = 0; y < image->height; y++) {
        memset(middle, 0, line * sizeof(float));
        for (int tap = 0; tap < down; tap++)
            add_bytes_times(middle, spare + reflected(y + tap - down / 2, image->height) * line_bytes, of_lines[tap], line_bytes);
        for (int x = 1; x <= reach; x++) {
            int64_t left = (int64_t)x * channels, last = (int64_t)(image->width - 1) * channels;
            memcpy(middle - left, middle + left, (size_t)channels * sizeof(float));
            memcpy(middle + last + left, middle + last - left, (size_t)channels * sizeof(float));
        }
        sum_across(padded, of_columns, across, channels, line_bytes, sums, image->pixels + y * line_bytes);
    }
    free(padded);
    return 1;
}
