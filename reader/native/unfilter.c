/* PNG (third edition), section 9: each filter adds a prediction from the bytes to the left, above, and above left; 0 outside. */

#include "unfilter.h"

#include <stdlib.h>
#include <string.h>

enum { NONE, SUB, UP, AVERAGE, PAETH };

static uint8_t paeth(int left, int above, int corner) {
    int to_left = abs(above - corner), to_above = abs(left - corner), to_corner = abs(left + above - 2 * corner);
    if (to_left <= to_above && to_left <= to_corner)
        return (uint8_t)left;
    return (uint8_t)(to_above <= to_corner ? above : corner);
}

static int unfilter_line(int filter, const uint8_t *in, const uint8_t *above, size_t size, size_t step, uint8_t *out) {
    switch (filter) {
    case NONE:
        memcpy(out, in, size);
        return 1;
    case SUB:
        memcpy(out, in, step);
        for (size_t i = step; i < size; i++)
            out[i] = (uint8_t)(in[i] + out[i - step]);
        return 1;
    case UP:
        for (size_t i = 0; i < size; i++)
            out[i] = (uint8_t)(in[i] + above[i]);
        return 1;
    case AVERAGE:
        for (size_t i = 0; i < step; i++)
            out[i] = (uint8_t)(in[i] + above[i] / 2);
        for (size_t i = step; i < size; i++)
            out[i] = (uint8_t)(in[i] + (out[i - step] + above[i]) / 2);
        return 1;
    case PAETH:
        for (size_t i = 0; i < step; i++)
            out[i] = (uint8_t)(in[i] + above[i]);
        for (size_t i = step; i < size; i++)
            out[i] = (uint8_t)(in[i] + paeth(out[i - step], above[i], above[i - step]));
        return 1;
    default:
        return 0;
    }
}

int unfilter(const uint8_t *lines, size_t height, size_t line_bytes, size_t pixel_bytes, uint8_t *out) {
    uint8_t *zeros = calloc(1, line_bytes);
    const uint8_t *above = zeros;
    int is_right = zeros != NULL;
    for (size_t n = 0; is_right && n < height; n++) {
        is_right = unfilter_line(lines[0], lines + 1, above, line_bytes, pixel_bytes, out);
        above = out;
        lines += 1 + line_bytes;
        out += line_bytes;
    }
    free(zeros);
    return is_right;
}
