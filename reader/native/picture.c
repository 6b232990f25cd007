/* Feeds the lines of a picture to the resampler: each followed by LINE_PADDING bytes, gray expanded to four bytes per pixel. */

#include "picture.h"

#include <stdlib.h>
#include <string.h>

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
