/* Blurs an image: sums of taps in 16-bit arithmetic, eight at a time on every processor; within a level of pixel_ops.py. */

#include "pixel_steps.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* Taps that are summed in 16 bits: a level and equally many bits of its fraction. Each product is truncated to these, half of one too low. */
#define MOST_TAPS 32
#define LEVEL_BITS 8
/* The sum of all weights before they are scaled by 1 << bits, and the limit of bits. */
#define ONE 65535
#define MOST_BITS 8

/* The sums of taps of one line. */
typedef struct {
    int64_t count;
    uint16_t *totals, *sums;
    /* number of taps in the sums */
    int taps;
} Line;

/* Reflects an index at the edges: -1 -> 1, count -> count - 2. */
static int reflected(int at, int count) {
    at = at < 0 ? -at : at;
    return at < count ? at : 2 * (count - 1) - at;
}

static void add_bytes(Line *line, const uint8_t *from, uint16_t weight) {
    uint16_t *restrict sums = line->sums;
    for (int64_t i = 0; i < line->count; i++) {
        uint16_t level = (uint16_t)(from[i] << LEVEL_BITS);
        sums[i] = (uint16_t)(sums[i] + (uint16_t)((uint32_t)level * weight >> 16));
    }
    line->taps++;
}

static void add_levels(Line *line, const uint16_t *restrict from, uint16_t weight) {
    uint16_t *restrict sums = line->sums;
    for (int64_t i = 0; i < line->count; i++)
        sums[i] = (uint16_t)(sums[i] + (uint16_t)((uint32_t)from[i] * weight >> 16));
    line->taps++;
}

/* Adds the sums to the totals, and starts new sums. */
static void add_sums(Line *line, int bits) {
    uint16_t *restrict totals = line->totals, lost = (uint16_t)((line->taps + (1 << bits)) / 2);
    for (int64_t i = 0; i < line->count; i++)
        totals[i] = (uint16_t)(totals[i] + ((uint16_t)(line->sums[i] + lost) >> bits));
    memset(line->sums, 0, (size_t)line->count * sizeof *line->sums);
    line->taps = 0;
}

static double weight_at(int tap, int taps, double sigma) {
    double offset = (tap - taps / 2) / sigma;
    return exp(-0.5 * offset * offset);
}

/* Computes the weight of each pixel of a line: exp(-x^2 / (2 sigma^2)). Returns their bits, since weights of a wide blur are small. */
static int find_weights(uint16_t *weights, int taps, double sigma) {
    double sum = 0.0, middle = 0.0, before = 0.0;
    int bits = 0, start = 0;
    for (int tap = 0; tap < taps; tap++) {
        sum += weight_at(tap, taps, sigma);
        middle += abs(tap - taps / 2) <= MOST_TAPS / 2 ? weight_at(tap, taps, sigma) : 0.0;
    }
    while (bits < MOST_BITS && middle * (2 << bits) <= sum)
        bits++;
    for (int tap = 0; tap < taps; tap++) {
        before += weight_at(tap, taps, sigma);
        /* the rounding error of a weight goes into the next one */
        int end = (int)(before / sum * (1 << bits) * ONE + 0.5);
        weights[tap] = (uint16_t)(end - start);
        start = end;
    }
    return bits;
}

int blur(const Image *image, float sigma, int across, int down, uint8_t *spare) {
    int64_t line_bytes = (int64_t)image->width * image->channels;
    int reach = across / 2, channels = image->channels;
    size_t margin = (size_t)reach * (size_t)channels, count = (size_t)line_bytes;
    uint16_t *padded = calloc(3 * count + 2 * margin + (size_t)across + (size_t)down, sizeof *padded);
    if (!padded)
        return 0;
    uint16_t *middle = padded + margin, *totals = middle + count + margin, *sums = totals + count;
    uint16_t *of_columns = sums + count, *of_lines = of_columns + across;
    int column_bits = find_weights(of_columns, across, sigma), line_bits = find_weights(of_lines, down, sigma);
    memcpy(spare, image->pixels, count * (size_t)image->height);
    for (int y = 0; y < image->height; y++) {
        Line line = {line_bytes, middle, sums, 0};
        memset(middle, 0, count * sizeof *middle);
        for (int tap = 0; tap < down; tap++) {
            if (of_lines[tap])
                add_bytes(&line, spare + reflected(y + tap - down / 2, image->height) * line_bytes, of_lines[tap]);
            if (line.taps == MOST_TAPS || tap == down - 1)
                add_sums(&line, line_bits);
        }
        for (int x = 1; x <= reach; x++) {
            int64_t left = (int64_t)x * channels, last = (int64_t)(image->width - 1) * channels;
            memcpy(middle - left, middle + left, (size_t)channels * sizeof *middle);
            memcpy(middle + last + left, middle + last - left, (size_t)channels * sizeof *middle);
        }
        line.totals = totals;
        memset(totals, 0, count * sizeof *totals);
        for (int tap = 0; tap < across; tap++) {
            if (of_columns[tap])
                add_levels(&line, padded + (int64_t)tap * channels, of_columns[tap]);
            if (line.taps == MOST_TAPS || tap == across - 1)
                add_sums(&line, column_bits);
        }
        uint8_t *out = image->pixels + y * line_bytes;
        for (int64_t i = 0; i < line_bytes; i++)
            out[i] = (uint8_t)((totals[i] + (1 << (LEVEL_BITS - 1))) >> LEVEL_BITS);
    }
    free(padded);
    return 1;
}
