/* PNG (third edition, W3C 2025), sections 5 and 11: accepts and refuses the same chunks as packer/pixels/formats/png.py. */

#include "plain_png.h"

#include <stdlib.h>
#include <string.h>

#include "sums.h"
#include "unfilter.h"

#define MOST_SIDE_OF_PNG 65535
/* length, type, and a checksum of type and data */
#define CHUNK_BYTES 12

static const uint8_t signature[8] = {0x89, 'P', 'N', 'G', '\r', '\n', 0x1a, '\n'};

/* Ancillary chunks, which do not change a row, and their bytes. */
static const struct {
    char kind[5];
    uint32_t bytes;
} ignored[] = {{"pHYs", 9}, {"tIME", 7}, {"gAMA", 4}, {"cHRM", 32}, {"sRGB", 1}};

static uint32_t number_at(const uint8_t *at) {
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static int is_kind(const uint8_t *chunk, const char *kind) {
    return !memcmp(chunk + 4, kind, 4);
}

static int is_ignored(const uint8_t *chunk, uint32_t bytes) {
    for (size_t i = 0; i < sizeof(ignored) / sizeof(ignored[0]); i++)
        if (is_kind(chunk, ignored[i].kind))
            return bytes == ignored[i].bytes;
    return 0;
}

static int header_read(const uint8_t *at, PlainPng *png) {
    uint32_t width = number_at(at), height = number_at(at + 4);
    int is_plain = at[8] == 8 && (at[9] == 0 || at[9] == 2) && !at[10] && !at[11] && !at[12];
    if (!is_plain || width < 1 || height < 1 || width > MOST_SIDE_OF_PNG || height > MOST_SIDE_OF_PNG)
        return 0;
    *png = (PlainPng){(int)width, (int)height, at[9] ? 3 : 1, 0, 0};
    return 1;
}

int png_read(const uint8_t *data, size_t size, PlainPng *png) {
    size_t at = sizeof(signature);
    if (size < at || memcmp(data, signature, at))
        return 0;
    while (size - at >= CHUNK_BYTES) {
        const uint8_t *chunk = data + at;
        uint32_t bytes = number_at(chunk);
        if (bytes > size - at - CHUNK_BYTES || crc32_of(0, chunk + 4, bytes + 4) != number_at(chunk + 8 + bytes))
            return 0;
        if (at == sizeof(signature)) {
            if (!is_kind(chunk, "IHDR") || bytes != 13 || !header_read(chunk + 8, png))
                return 0;
        } else if (is_kind(chunk, "IEND")) {
            return !bytes && png->compressed_at && at + CHUNK_BYTES == size;
        } else if (is_kind(chunk, "IDAT")) {
            if (png->compressed_at)
                return 0;
            png->compressed_at = at + 8;
            png->compressed_bytes = bytes;
        } else if (!is_ignored(chunk, bytes)) {
            return 0;
        }
        at += CHUNK_BYTES + bytes;
    }
    return 0;
}

int png_row(const uint8_t *lines, const PlainPng *png, uint8_t *row) {
    size_t width = (size_t)png->width, height = (size_t)png->height;
    if (png->channels == 3)
        return unfilter(lines, height, 3 * width, 3, row);
    uint8_t *gray = malloc(width * height);
    int is_right = gray && unfilter(lines, height, width, 1, gray);
    for (size_t i = 0; is_right && i < width * height; i++)
        memset(row + 3 * i, gray[i], 3);
    free(gray);
    return is_right;
}
