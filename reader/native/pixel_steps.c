/* Changes the levels of one image. Steps that depend on a single level use a table of 256 entries. */

#include "pixel_steps.h"

#include <math.h>
#include <string.h>

#define LEVELS 256
/* Pixels per pass, as float32 per channel: they stay in the L1 cache. */
#define STRIP 512
/* Weights of red, green and blue in gray, as in pixel_ops.py. */
#define OF_RED 0.2989f
#define OF_GREEN 0.587f
#define OF_BLUE 0.114f

typedef struct {
    float red[STRIP], green[STRIP], blue[STRIP];
} Strip;

static inline uint8_t level_of(float value) {
    value = value > 0.0f ? value : 0.0f;
    return (uint8_t)(int)(value < 255.0f ? value : 255.0f);
}

static int64_t bytes_of(const Image *image) {
    return (int64_t)image->height * image->width * image->channels;
}

/* Replaces each level of channel c by its entry in table c. */
static void look_up(const Image *image, uint8_t tables[3][LEVELS]) {
    uint8_t *at = image->pixels, *end = at + bytes_of(image);
    if (image->channels == 1)
        for (; at < end; at++)
            *at = tables[0][*at];
    else
        for (; at < end; at += 3) {
            at[0] = tables[0][at[0]];
            at[1] = tables[1][at[1]];
            at[2] = tables[2][at[2]];
        }
}

/* The same with one table for all channels. */
static void look_up_all(const Image *image, const uint8_t table[LEVELS]) {
    for (uint8_t *at = image->pixels, *end = at + bytes_of(image); at < end; at++)
        *at = table[*at];
}

static void count_levels(const Image *image, int32_t counts[3][LEVELS]) {
    memset(counts, 0, 3 * sizeof counts[0]);
    const uint8_t *at = image->pixels, *end = at + bytes_of(image);
    if (image->channels == 1)
        for (; at < end; at++)
            counts[0][*at]++;
    else
        for (; at < end; at += 3) {
            counts[0][at[0]]++;
            counts[1][at[1]]++;
            counts[2][at[2]]++;
        }
}

FUSED static void load_strip(Strip *strip, const uint8_t *pixels, int count) {
    for (int i = 0; i < count; i++) {
        strip->red[i] = pixels[3 * i];
        strip->green[i] = pixels[3 * i + 1];
        strip->blue[i] = pixels[3 * i + 2];
    }
}

FUSED static void store_strip(const Strip *strip, uint8_t *pixels, int count) {
    for (int i = 0; i < count; i++) {
        pixels[3 * i] = level_of(strip->red[i]);
        pixels[3 * i + 1] = level_of(strip->green[i]);
        pixels[3 * i + 2] = level_of(strip->blue[i]);
    }
}

FUSED static void gray_of_strip(const Strip *strip, float *gray, int count) {
    for (int i = 0; i < count; i++) {
        float sum = SUM_OF(strip->blue[i], OF_BLUE, SUM_OF(strip->green[i], OF_GREEN, strip->red[i] * OF_RED));
        gray[i] = (float)(int)sum;
    }
}

FUSED static float mean_gray(const Image *image) {
    int64_t pixels = (int64_t)image->height * image->width, sum = 0;
    if (image->channels == 1)
        for (int64_t i = 0; i < pixels; i++)
            sum += image->pixels[i];
    else {
        Strip strip;
        float gray[STRIP];
        for (int64_t start = 0; start < pixels; start += STRIP) {
            int count = pixels - start < STRIP ? (int)(pixels - start) : STRIP, of_strip = 0;
            load_strip(&strip, image->pixels + 3 * start, count);
            gray_of_strip(&strip, gray, count);
            for (int i = 0; i < count; i++)
                of_strip += (int)gray[i];
            sum += of_strip;
        }
    }
    return (float)((double)sum / (double)pixels);
}

FUSED static void mix_with_gray(const Image *image, float factor) {
    int64_t pixels = (int64_t)image->height * image->width;
    float of_gray = 1.0f - factor, gray[STRIP];
    Strip strip;
    for (int64_t start = 0; start < pixels; start += STRIP) {
        int count = pixels - start < STRIP ? (int)(pixels - start) : STRIP;
        uint8_t *at = image->pixels + 3 * start;
        load_strip(&strip, at, count);
        gray_of_strip(&strip, gray, count);
        for (int i = 0; i < count; i++) {
            strip.red[i] = SUM_OF(gray[i], of_gray, strip.red[i] * factor);
            strip.green[i] = SUM_OF(gray[i], of_gray, strip.green[i] * factor);
            strip.blue[i] = SUM_OF(gray[i], of_gray, strip.blue[i] * factor);
        }
        store_strip(&strip, at, count);
    }
}

FUSED static void make_gray(const Image *image) {
    int64_t pixels = (int64_t)image->height * image->width;
    Strip strip;
    for (int64_t start = 0; start < pixels && image->channels == 3; start += STRIP) {
        int count = pixels - start < STRIP ? (int)(pixels - start) : STRIP;
        uint8_t *at = image->pixels + 3 * start;
        load_strip(&strip, at, count);
        gray_of_strip(&strip, strip.red, count);
        memcpy(strip.green, strip.red, sizeof strip.red);
        memcpy(strip.blue, strip.red, sizeof strip.red);
        store_strip(&strip, at, count);
    }
}

static inline float fraction_of(float value) {
    return value - (float)(int)value;
}

/* One channel of a color after a hue rotation, in sixths of a turn. */
static inline float turned(float value, float spread, float sixths) {
    sixths = fraction_of(sixths) * 6.0f;
    float other = 4.0f - sixths, least = sixths < other ? sixths : other;
    least = least > 0.0f ? least : 0.0f;
    least = least < 1.0f ? least : 1.0f;
    return (value - spread * least) * (float)(256 - 1e-3);
}

FUSED static void turn_strip(Strip *strip, float shift, int count) {
    for (int i = 0; i < count; i++) {
        float r = strip->red[i] * (float)(1.0 / 255), g = strip->green[i] * (float)(1.0 / 255), b = strip->blue[i] * (float)(1.0 / 255);
        float value = r > g ? r : g, low = r < g ? r : g;
        value = value > b ? value : b;
        low = low < b ? low : b;
        float spread = value - low, least = spread > 1.0f / 1024 ? spread : 1.0f / 1024;
        float red = (value - r) / least, green = (value - g) / least, blue = (value - b) / least;
        float of_green = 2.0f + red - blue, of_blue = 4.0f + green - red;
        float turn = r == value ? blue - green : g == value ? of_green : of_blue;
        turn = fraction_of(turn * (float)(1.0 / 6) + shift);
        strip->red[i] = turned(value, spread, turn + (float)(5.0 / 6));
        strip->green[i] = turned(value, spread, turn + (float)(3.0 / 6));
        strip->blue[i] = turned(value, spread, turn + (float)(1.0 / 6));
    }
}

FUSED static void turn_colors(const Image *image, float share) {
    int64_t pixels = (int64_t)image->height * image->width;
    Strip strip;
    for (int64_t start = 0; start < pixels && image->channels == 3; start += STRIP) {
        int count = pixels - start < STRIP ? (int)(pixels - start) : STRIP;
        uint8_t *at = image->pixels + 3 * start;
        load_strip(&strip, at, count);
        turn_strip(&strip, share + 1.0f, count);
        store_strip(&strip, at, count);
    }
}

/* Blends one inner line with its smoothed version; from: the image before the step. */
FUSED static void sharpen_line(const uint8_t *from, uint8_t *to, int64_t stride, int step, int64_t count, float of_smooth) {
    const uint8_t *above = from - stride, *below = from + stride;
    for (int64_t i = 0; i < count; i++) {
        int sum = above[i - step] + above[i] + above[i + step] + from[i - step] + 5 * from[i] + from[i + step] + below[i - step] +
                  below[i] + below[i + step];
        float middle = from[i], smooth = rintf((float)sum / 13.0f);
        to[i] = level_of((smooth - middle) * of_smooth + middle);
    }
}

static void sharpen(const Image *image, float factor, uint8_t *spare) {
    if (image->height <= 2 || image->width <= 2)
        return;
    int64_t stride = (int64_t)image->width * image->channels;
    memcpy(spare, image->pixels, (size_t)bytes_of(image));
    for (int64_t line = 1; line < image->height - 1; line++) {
        int64_t at = line * stride + image->channels;
        sharpen_line(spare + at, image->pixels + at, stride, image->channels, stride - 2 * image->channels, 1.0f - factor);
    }
}

static void stretch(const Image *image) {
    int32_t counts[3][LEVELS];
    uint8_t tables[3][LEVELS];
    count_levels(image, counts);
    for (int c = 0; c < image->channels; c++) {
        int low = 0, high = LEVELS - 1;
        while (low < LEVELS - 1 && !counts[c][low])
            low++;
        while (high > low && !counts[c][high])
            high--;
        float least = low == high ? 0.0f : (float)low, scale = low == high ? 1.0f : (float)(high - low) * (float)(1.0 / 255);
        for (int i = 0; i < LEVELS; i++)
            tables[c][i] = level_of(((float)i - least) / scale);
    }
    look_up(image, tables);
}

static void equalize(const Image *image) {
    int32_t counts[3][LEVELS];
    uint8_t tables[3][LEVELS];
    count_levels(image, counts);
    for (int c = 0; c < image->channels; c++) {
        int high = LEVELS - 1;
        while (high > 0 && !counts[c][high])
            high--;
        /* torch's integers are 32-bit here, which also bounds a side */
        int64_t step = ((int64_t)image->height * image->width - counts[c][high]) / 255, below = 0;
        for (int i = 0; i < LEVELS; below += counts[c][i], i++) {
            int64_t level = step ? (below + step / 2) / step : i;
            tables[c][i] = step && !i ? 0 : level < 255 ? (uint8_t)level : 255;
        }
    }
    look_up(image, tables);
}

/* The new level for a given level, for steps that depend on it alone. */
FUSED static uint8_t single(int step, float number, float mean, int level) {
    int given = (int)number;
    switch (step) {
    case BRIGHTER:
        return level_of((float)level * number);
    case CONTRASTED:
        return level_of(SUM_OF(mean, 1.0f - number, (float)level * number));
    case POSTERIZED:
        return (uint8_t)(level & (256 - (1 << (8 - given))));
    case SOLARIZED:
        return (uint8_t)((float)level >= number ? 255 - level : level);
    case ADDED:
        return (uint8_t)(level >= 128 ? level : level + given < 255 ? level + given : 255);
    case INVERTED:
        return (uint8_t)(255 - level);
    default:
        return (uint8_t)level;
    }
}

void pixel_step(const Image *image, int step, float number, uint8_t *spare) {
    uint8_t table[LEVELS];
    switch (step) {
    case UNCHANGED:
        return;
    case SHARPENED:
        sharpen(image, number, spare);
        return;
    case AUTOCONTRASTED:
        stretch(image);
        return;
    case EQUALIZED:
        equalize(image);
        return;
    case GRAY:
        make_gray(image);
        return;
    case HUE:
        turn_colors(image, number);
        return;
    case COLORED:
        /* a single channel is its own gray */
        if (image->channels == 3)
            mix_with_gray(image, number);
        return;
    }
    float mean = step == CONTRASTED ? mean_gray(image) : 0.0f;
    for (int i = 0; i < LEVELS; i++)
        table[i] = single(step, number, mean, i);
    look_up_all(image, table);
}
