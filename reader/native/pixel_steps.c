/* Changes the levels of one image. Steps that depend on a single level use a table of 256 entries. */

#include "pixel_steps.h"

#include <math.h>
#include <string.h>

#define LEVELS 256
/* Pixels per pass: intermediate results stay in the L1 cache. */
#define STRIP 1024
/* Weights of red, green and blue in gray, as in pixel_ops.py. */
#define OF_RED 0.2989f
#define OF_GREEN 0.587f
#define OF_BLUE 0.114f
/* The position of each channel in the word of a pixel. */
#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ == __ORDER_BIG_ENDIAN__
enum { RED = 24, GREEN = 16, BLUE = 8 };
#else
enum { RED = 0, GREEN = 8, BLUE = 16 };
#endif
/* Applies a step with this parameter to pixels, one word each. */
typedef void (*Change)(uint32_t *words, int count, float number);

/* Floats of red, green and blue. */
typedef struct {
    float red[STRIP], green[STRIP], blue[STRIP];
} Strip;

static inline float within(float value) {
    value = value > 0.0f ? value : 0.0f;
    return value < 255.0f ? value : 255.0f;
}

static inline uint8_t level_of(float value) {
    return (uint8_t)(int)within(value);
}

static inline float larger(float a, float b) {
    return a > b ? a : b;
}

static inline float smaller(float a, float b) {
    return a < b ? a : b;
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

/* The same with one table for all channels; eight levels are written at once. */
static void look_up_all(const Image *image, const uint8_t table[LEVELS]) {
    uint8_t *at = image->pixels, *end = at + bytes_of(image), made[8];
    for (; end - at >= 8; at += 8) {
        for (int i = 0; i < 8; i++)
            made[i] = table[at[i]];
        memcpy(at, made, 8);
    }
    for (; at < end; at++)
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

static inline float level_in(uint32_t word, int channel) {
    return (float)(int)(word >> channel & 255);
}

static inline float gray_of(uint32_t word) {
    return (float)(int)(level_in(word, RED) * OF_RED + level_in(word, GREEN) * OF_GREEN + level_in(word, BLUE) * OF_BLUE);
}

static inline uint32_t word_of(uint32_t red, uint32_t green, uint32_t blue) {
    return red << RED | green << GREEN | blue << BLUE;
}

/* Loads a word at each pixel; nothing after the last pixel is read. */
static void load_words(const uint8_t *pixels, int count, uint32_t *words) {
    for (int i = 0; i < count - 1; i++)
        memcpy(words + i, pixels + 3 * i, 4);
    memcpy(words + count - 1, pixels + 3 * (count - 1), 3);
}

/* Writes pixels of three bytes; the next pixel overwrites the fourth byte. */
static void store_words(const uint32_t *words, int count, uint8_t *pixels) {
    for (int i = 0; i < count - 1; i++)
        memcpy(pixels + 3 * i, words + i, 4);
    memcpy(pixels + 3 * (count - 1), words + count - 1, 3);
}

static int strip_at(const Image *image, int64_t start) {
    int64_t left = (int64_t)image->height * image->width - start;
    return left < STRIP ? (int)left : STRIP;
}

/* Changes pixels of three channels; a single one has no color. */
static void change_colors(const Image *image, Change change, float number) {
    uint32_t words[STRIP] = {0};
    int64_t start = 0;
    for (int count; image->channels == 3 && (count = strip_at(image, start)) > 0; start += count) {
        load_words(image->pixels + 3 * start, count, words);
        change(words, count, number);
        store_words(words, count, image->pixels + 3 * start);
    }
}

static float mean_gray(const Image *image) {
    int64_t start = 0, sum = 0, bytes = bytes_of(image);
    uint32_t words[STRIP] = {0};
    if (image->channels == 1)
        for (; start < bytes; start++)
            sum += image->pixels[start];
    else
        for (int count; (count = strip_at(image, start)) > 0; start += count) {
            int of_strip = 0;
            load_words(image->pixels + 3 * start, count, words);
            for (int i = 0; i < count; i++)
                of_strip += (int)gray_of(words[i]);
            sum += of_strip;
        }
    return (float)((double)sum / (double)((int64_t)image->height * image->width));
}

static void make_gray(uint32_t *words, int count, float unused) {
    (void)unused;
    for (int i = 0; i < count; i++) {
        uint32_t gray = (uint32_t)(int)gray_of(words[i]);
        words[i] = word_of(gray, gray, gray);
    }
}

/* Converts a strip to levels, 0 to 255. A separate loop: compilers make a loop of only floats twice as fast. */
static void levels_of(const Strip *strip, int count, uint32_t *words) {
    for (int i = 0; i < count; i++)
        words[i] = word_of((uint32_t)(int)strip->red[i], (uint32_t)(int)strip->green[i], (uint32_t)(int)strip->blue[i]);
}

static void mix_with_gray(uint32_t *words, int count, float factor) {
    Strip strip;
    for (int i = 0; i < count; i++) {
        uint32_t word = words[i];
        float gray = gray_of(word) * (1.0f - factor);
        strip.red[i] = within(level_in(word, RED) * factor + gray);
        strip.green[i] = within(level_in(word, GREEN) * factor + gray);
        strip.blue[i] = within(level_in(word, BLUE) * factor + gray);
    }
    levels_of(&strip, count, words);
}

/* One channel of a color with turned hue, by the distance on the circle of colors to the maximum of this channel. */
static inline float turned(float value, float spread, float away) {
    float less = smaller(larger(2.0f * spread - away, 0.0f), spread);
    /* torch's factor for floats from 0 to 1 */
    return (value - less) * (float)((256 - 1e-3) / 255);
}

/* Turns hues by a fraction of the circle, whose length is six times the spread of a color's channels. */
static void turn_colors(uint32_t *words, int count, float share) {
    Strip strip;
    float sixths = 6.0f * (share < 0.0f ? share + 1.0f : share);
    for (int i = 0; i < count; i++) {
        uint32_t word = words[i];
        float r = level_in(word, RED), g = level_in(word, GREEN), b = level_in(word, BLUE);
        float value = larger(larger(r, g), b), spread = value - smaller(smaller(r, g), b), circle = 6.0f * spread;
        float of_green = 2.0f * spread + b - r, of_blue = 4.0f * spread + r - g;
        float hue = g == value ? of_green : of_blue;
        hue = r == value ? g - b : hue;
        /* from one spread below 0, which is equally far from all, to the circle */
        float place = hue + spread * sixths, before = place - circle;
        place = before >= 0.0f ? before : place;
        float of_g = fabsf(place - 5.0f * spread), of_b = fabsf(place - spread);
        strip.red[i] = turned(value, spread, fabsf(place - 3.0f * spread));
        strip.green[i] = turned(value, spread, smaller(of_g, circle - of_g));
        strip.blue[i] = turned(value, spread, smaller(of_b, circle - of_b));
    }
    levels_of(&strip, count, words);
}

/* Blends inner pixels of a line with their smoothed versions; from: the image before the step. */
static void sharpen_line(const uint8_t *from, uint8_t *to, int64_t stride, int64_t step, int64_t count, float of_smooth) {
    const uint8_t *above = from - stride, *below = from + stride;
    float made[STRIP];
    for (int64_t i = 0; i < count; i++) {
        uint16_t sum = (uint16_t)(above[i - step] + above[i] + above[i + step] + from[i - step] + 5 * from[i] + from[i + step] +
                                  below[i - step] + below[i] + below[i + step]);
        /* rounded: 13 parts are never half a level */
        int16_t smooth = (int16_t)((uint16_t)(sum + 6) / 13);
        made[i] = within((float)(int16_t)(smooth - from[i]) * of_smooth + (float)from[i]);
    }
    for (int64_t i = 0; i < count; i++)
        to[i] = (uint8_t)(int)made[i];
}

static void sharpen(const Image *image, float factor, uint8_t *spare) {
    if (image->height <= 2 || image->width <= 2)
        return;
    int64_t stride = (int64_t)image->width * image->channels, end = stride - image->channels;
    memcpy(spare, image->pixels, (size_t)bytes_of(image));
    for (int64_t line = stride; line < bytes_of(image) - stride; line += stride)
        for (int64_t at = image->channels; at < end; at += STRIP)
            sharpen_line(spare + line + at, image->pixels + line + at, stride, image->channels, end - at < STRIP ? end - at : STRIP,
                         1.0f - factor);
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

/* Returns the new level for a level, for steps that depend on it alone; mean: of gray. */
static uint8_t single(int step, float number, float mean, int level) {
    int given = (int)number;
    switch (step) {
    case BRIGHTER:
        return level_of((float)level * number);
    case CONTRASTED:
        return level_of((float)level * number + mean * (1.0f - number));
    case POSTERIZED:
        return (uint8_t)(level & (256 - (1 << (8 - given))));
    case SOLARIZED:
        return (uint8_t)((float)level >= number ? 255 - level : level);
    case ADDED:
        return (uint8_t)(level >= 128 ? level : level + given < 255 ? level + given : 255);
    default:
        return (uint8_t)(255 - level);
    }
}

void pixel_step(const Image *image, int step, float number, uint8_t *spare) {
    uint8_t table[LEVELS];
    float mean = 0.0f;
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
        change_colors(image, make_gray, number);
        return;
    case HUE:
        change_colors(image, turn_colors, number);
        return;
    case COLORED:
        change_colors(image, mix_with_gray, number);
        return;
    case CONTRASTED:
        mean = mean_gray(image);
    }
    for (int i = 0; i < LEVELS; i++)
        table[i] = single(step, number, mean, i);
    look_up_all(image, table);
}
