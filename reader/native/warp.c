/* Samples pixels, one output line at a time, within a level of torch's kernels. */

#include "pixel_steps.h"

#include <math.h>
#include <string.h>

/* Points per pass. */
#define STRIP 256
/* Half of the numbers without a fraction in float32: adding and subtracting it rounds a value. */
#define ROUNDING 12582912.0f
/* The channels of a pixel in one 64-bit number, weighted at once: 8 bits of a level and 13 of a weight fit in a lane. */
enum { LANE = 21, WEIGHT_BITS = 13 };
#define HALF_WEIGHTS ((uint64_t)1 << (WEIGHT_BITS - 1))
#define HALVES (HALF_WEIGHTS | HALF_WEIGHTS << LANE | HALF_WEIGHTS << 2 * LANE)

/* Source coordinates in pixels, at most two outside the image. */
typedef struct {
    float x[STRIP], y[STRIP];
} Points;

/* For each point, the source pixel; or the one to its upper left, and the weights of the three others. */
typedef struct {
    int x[STRIP], y[STRIP], right[STRIP], below[STRIP], last[STRIP];
} Places;

static inline uint8_t level_of(float value) {
    value = value > 0.0f ? value : 0.0f;
    return (uint8_t)(int)(value < 255.0f ? value : 255.0f);
}

static inline float within(float value, float most) {
    value = value > -2.0f ? value : -2.0f;
    return value < most ? value : most;
}

/* Computes the source coordinates of pixels [start, start + count) of a line. */
static void find_points(Points *points, const Image *image, const float grid[6], int line, int start, int count) {
    float half_width = (float)image->width / 2.0f, half_height = (float)image->height / 2.0f;
    float x0 = (float)(1 - image->width) * 0.5f + (float)start, y = (float)(1 - image->height) * 0.5f + (float)line;
    float most_x = (float)(image->width + 1), most_y = (float)(image->height + 1);
    for (int i = 0; i < count; i++) {
        float x = x0 + (float)i;
        float across = grid[0] * x + grid[1] * y + grid[2], down = grid[3] * x + grid[4] * y + grid[5];
        points->x[i] = within((across + 1.0f) * half_width - 0.5f, most_x);
        points->y[i] = within((down + 1.0f) * half_height - 0.5f, most_y);
    }
}

static void round_to_places(const float *points, int *places, int count) {
    for (int i = 0; i < count; i++)
        places[i] = (int)(points[i] + ROUNDING - ROUNDING);
}

static void floor_to_places(const float *points, int *places, int count) {
    for (int i = 0; i < count; i++) {
        int place = (int)points[i];
        places[i] = place - ((float)place > points[i]);
    }
}

static void weigh_corners(const Points *points, Places *places, int count) {
    const float one = (float)(1 << WEIGHT_BITS);
    for (int i = 0; i < count; i++) {
        float west = points->x[i] - (float)places->x[i], north = (points->y[i] - (float)places->y[i]) * one;
        float last = north * west;
        places->last[i] = (int)last;
        places->below[i] = (int)(north - last);
        places->right[i] = (int)(west * one - last);
    }
}

static inline int is_inside(int place, int side) {
    return (unsigned)place < (unsigned)side;
}

/* Writes a pixel of three channels, and the next byte if the next pixel overwrites it. */
static inline void copy_pixel(uint8_t *out, const uint8_t *pixel, int channels, int is_last) {
    if (channels == 1)
        *out = *pixel;
    else
        memcpy(out, pixel, is_last ? 3 : 4);
}

static void nearest_line(const Image *image, const uint8_t *from, const Places *places, uint8_t *out, int count, const uint8_t fill[4]) {
    int channels = image->channels, width = image->width, height = image->height;
    for (int i = 0; i < count; i++, out += channels) {
        int x = places->x[i], y = places->y[i];
        const uint8_t *pixel = is_inside(x, width) && is_inside(y, height) ? from + ((int64_t)y * width + x) * channels : fill;
        copy_pixel(out, pixel, channels, i == count - 1);
    }
}

/* Writes a pixel with a corner that may be outside the image, where levels are 0. */
static void write_edge(const Image *image, const uint8_t *from, float x, float y, const Fill *fill, uint8_t *out) {
    float left = floorf(x), top = floorf(y), west = x - left, east = 1.0f - west, north = y - top, south = 1.0f - north;
    float weights[4] = {south * east, south * west, north * east, north * west}, sums[3] = {0}, share = 0.0f;
    for (int n = 0; n < 4; n++) {
        int column = (int)left + n % 2, line = (int)top + n / 2;
        if (!is_inside(column, image->width) || !is_inside(line, image->height))
            continue;
        share += weights[n];
        for (int c = 0; c < image->channels; c++)
            sums[c] += weights[n] * (float)from[((int64_t)line * image->width + column) * image->channels + c];
    }
    for (int c = 0; c < image->channels; c++)
        out[c] = level_of(rintf(fill->is_given ? (sums[c] - fill->levels[c]) * share + fill->levels[c] : sums[c]));
}

static inline uint64_t lanes_of(const uint8_t *pixel, int channels) {
    return channels == 1 ? pixel[0] : pixel[0] | (uint64_t)pixel[1] << LANE | (uint64_t)pixel[2] << 2 * LANE;
}

static void bilinear_line(const Image *image, const uint8_t *from, const Points *points, const Places *places, uint8_t *out, int count,
                          const Fill *fill, const uint8_t beyond[4]) {
    int channels = image->channels, width = image->width, height = image->height;
    int64_t stride = (int64_t)width * channels;
    for (int i = 0; i < count; i++, out += channels) {
        int x = places->x[i], y = places->y[i];
        if (is_inside(x, width - 1) && is_inside(y, height - 1)) {
            uint64_t right = (uint64_t)places->right[i], below = (uint64_t)places->below[i], last = (uint64_t)places->last[i];
            const uint8_t *corner = from + y * stride + (int64_t)x * channels;
            uint64_t sum = ((1 << WEIGHT_BITS) - right - below - last) * lanes_of(corner, channels) + HALVES +
                           right * lanes_of(corner + channels, channels) + below * lanes_of(corner + stride, channels) +
                           last * lanes_of(corner + stride + channels, channels);
            out[0] = (uint8_t)(sum >> WEIGHT_BITS);
            if (channels == 3) {
                out[1] = (uint8_t)(sum >> (LANE + WEIGHT_BITS));
                out[2] = (uint8_t)(sum >> (2 * LANE + WEIGHT_BITS));
            }
        } else if (is_inside(x + 1, width + 1) && is_inside(y + 1, height + 1))
            write_edge(image, from, points->x[i], points->y[i], fill, out);
        else
            copy_pixel(out, beyond, channels, 1);
    }
}

void warp(const Image *image, const float grid[6], int is_bilinear, const Fill *fill, uint8_t *spare) {
    Points points;
    Places places;
    void (*find_places)(const float *, int *, int) = is_bilinear ? floor_to_places : round_to_places;
    uint8_t beyond[4] = {0};
    for (int c = 0; c < 3 && fill->is_given; c++)
        beyond[c] = level_of(rintf(fill->levels[c]));
    memcpy(spare, image->pixels, (size_t)image->height * (size_t)image->width * (size_t)image->channels);
    for (int line = 0; line < image->height; line++)
        for (int start = 0; start < image->width; start += STRIP) {
            int count = image->width - start < STRIP ? image->width - start : STRIP;
            uint8_t *out = image->pixels + ((int64_t)line * image->width + start) * image->channels;
            find_points(&points, image, grid, line, start, count);
            find_places(points.x, places.x, count);
            find_places(points.y, places.y, count);
            if (is_bilinear) {
                weigh_corners(&points, &places, count);
                bilinear_line(image, spare, &points, &places, out, count, fill, beyond);
            } else
                nearest_line(image, spare, &places, out, count, beyond);
        }
}
