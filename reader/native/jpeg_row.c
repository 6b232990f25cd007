/* libjpeg decodes a few lines at a time, which are resized while they are in the CPU's cache; only pixels of the row are computed. Pixels
 * of a JPEG at its own size go directly to their place, by the exact inverse DCT, the default everywhere.
 * Serves intact JPEGs of 1 or 3 components, and stops at any error or warning of libjpeg. */

#define _GNU_SOURCE /* dladdr */
#include "jpeg_row.h"

#ifdef __unix__
#include <dlfcn.h>
#endif
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#if !defined(LIBJPEG_TURBO_VERSION_NUMBER) || LIBJPEG_TURBO_VERSION_NUMBER < 2001000
#error "libjpeg-turbo 2.1 or newer is needed: skipping lines of a progressive JPEG may never end before"
#endif

/* libjpeg computes the columns and lines at a crop's edge from fewer neighbors than in the whole picture. */
#define MARGIN 16
/* Bytes of coefficients, which libjpeg keeps for a JPEG of several scans: at most 8 per pixel of the largest allowed image. As in
 * row.py, which has the reason. */
#define MOST_KEPT_BYTES (1L << 30)
/* A line aligned to 32 bytes is written past the caches (vmovntdq in libjpeg-turbo's jdcolext-avx2.asm). */
#define LINE_OFFSET 4
/* Scans of a progressive JPEG: each passes over all coefficients again, and normal ones have about 10. */
#define MOST_SCANS 100
/* Lines of a row of blocks. */
#define BLOCK_LINES 8

_Static_assert(MOST_MESSAGE >= JMSG_LENGTH_MAX, "a message of libjpeg would be too long");

typedef struct {
    struct jpeg_error_mgr base;
    jmp_buf leave;
    /* of MOST_MESSAGE bytes, or NULL */
    char *message;
} Errors;

static void leave(j_common_ptr info) {
    Errors *errors = (Errors *)info->err;
    if (errors->message)
        errors->base.format_message(info, errors->message);
    longjmp(errors->leave, 1);
}

static void count_scans(j_common_ptr info) {
    if (((j_decompress_ptr)info)->input_scan_number > MOST_SCANS)
        leave(info);
}

/* Stops at the first warning: level -1; higher levels are traces. */
static void judge(j_common_ptr info, int level) {
    if (level < 0)
        leave(info);
}

typedef struct {
    struct jpeg_decompress_struct info;
    Errors errors;
    struct jpeg_progress_mgr progress;
    Resampler resampler;
    uint8_t *lines;
} Work;

/* Returns NULL if out of memory. */
static Work *open_work(char *message) {
    Work *work = calloc(1, sizeof(Work));
    if (!work)
        return NULL;
    work->info.err = jpeg_std_error(&work->errors.base);
    work->errors.base.error_exit = leave;
    work->errors.base.emit_message = judge;
    work->errors.message = message;
    work->progress.progress_monitor = count_scans;
    return work;
}

static void close_work(Work *work) {
    jpeg_destroy_decompress(&work->info);
    resampler_free(&work->resampler);
    free(work->lines);
    free(work);
}

/* Sets TurboJPEG's scale: the largest number of eighths that is not above the wanted size. */
static int choose_scale(j_decompress_ptr info, const Wanted *wanted) {
    info->scale_denom = 8;
    for (info->scale_num = 8; info->scale_num > 0; info->scale_num--) {
        jpeg_calc_output_dimensions(info);
        if ((int)info->output_width <= wanted->source_width && (int)info->output_height <= wanted->source_height)
            return (int)info->output_width == wanted->source_width && (int)info->output_height == wanted->source_height;
    }
    return 0;
}

/* Whether columns and lines may be skipped. Not with several scans: if some are missing, libjpeg smooths over blocks on both sides.
 * Not for scaled pictures with factors above 2: libjpeg-turbo 2 reads memory that it has not written. */
static int can_crop(j_decompress_ptr info) {
    return !jpeg_has_multiple_scans(info) &&
           (info->scale_num == info->scale_denom || (info->max_h_samp_factor <= 2 && info->max_v_samp_factor <= 2));
}

/* Reads lines and drops them: skips all but the last, if allowed. */
static void drop_lines(j_decompress_ptr info, JDIMENSION stop, int may_skip, uint8_t **rows) {
    /* libjpeg does not read lines skipped up to the end: read the last one, so that damage before it shows */
    JDIMENSION last = stop == info->output_height ? stop - 1 : stop;
    if (may_skip && last > info->output_scanline) {
        JDIMENSION count = last - info->output_scanline;
        if (jpeg_skip_scanlines(info, count) != count)
            leave((j_common_ptr)info);
    }
    while (info->output_scanline < stop)
        jpeg_read_scanlines(info, rows, 1);
}

/* Decodes the whole file, and resizes the kept lines into `out`. Does not return if libjpeg fails or warns. */
static int decode(Work *work, const uint8_t *data, size_t size, const Wanted *wanted, uint8_t *out, long stride) {
    j_decompress_ptr info = &work->info;
    Resampler *resampler = &work->resampler;
    jpeg_create_decompress(info);
    /* without a file for the rest, libjpeg fails if that is exceeded */
    info->mem->max_memory_to_use = MOST_KEPT_BYTES;
    info->progress = &work->progress;
    jpeg_mem_src(info, data, size);
    jpeg_read_header(info, TRUE);
    info->out_color_space = JCS_RGB;
    if ((info->num_components != 1 && info->num_components != 3) || !choose_scale(info, wanted) ||
        !resampler_init(resampler, wanted, out, stride))
        return 0;
    jpeg_start_decompress(info);
    int may_crop = can_crop(info), last_column = resampler->last_column + MARGIN;
    JDIMENSION column = 0, width = info->output_width;
    JDIMENSION first = resampler->first_line > MARGIN ? (JDIMENSION)resampler->first_line - MARGIN : 0;
    if (may_crop) {
        column = resampler->first_column > MARGIN ? (JDIMENSION)resampler->first_column - MARGIN : 0;
        width = (last_column < (int)width ? (JDIMENSION)last_column : width) - column;
        if (width < info->output_width)
            jpeg_crop_scanline(info, &column, &width);
    }
    resampler_begin_at(resampler, (int)column);

    size_t line_bytes = ((size_t)wanted->source_width * 3 + LINE_PADDING + 63) / 64 * 64;
    work->lines = calloc(LINES, line_bytes + 64);
    if (!work->lines)
        return 0;
    uint8_t *aligned = work->lines + (64 - (uintptr_t)work->lines % 64) % 64 + LINE_OFFSET, *rows[LINES];
    for (int n = 0; n < LINES; n++)
        rows[n] = aligned + n * line_bytes;
    drop_lines(info, first, may_crop, rows);
    drop_lines(info, (JDIMENSION)resampler->first_line, 0, rows);
    while ((int)info->output_scanline < resampler->last_line) {
        int left = resampler->last_line - (int)info->output_scanline, ready = 0;
        int count = left < LINES ? left : LINES;
        while (ready < count)
            ready += (int)jpeg_read_scanlines(info, rows + ready, (JDIMENSION)(count - ready));
        resampler_push(resampler, rows, ready);
    }
    drop_lines(info, info->output_height, may_crop, rows);
    jpeg_finish_decompress(info);
    return resampler->output == resampler->down.outputs;
}

static int decode_kept(const uint8_t *data, size_t size, const Wanted *wanted, uint8_t *out, long stride) {
    Work *work = open_work(NULL);
    if (!work)
        return 0;
    volatile int is_decoded = 0;
    if (!setjmp(work->errors.leave))
        is_decoded = decode(work, data, size, wanted, out, stride);
    close_work(work);
    return is_decoded;
}

static int decode_whole(Work *work, const uint8_t *data, size_t size, int height, int width, int channels, uint8_t *out) {
    j_decompress_ptr info = &work->info;
    jpeg_create_decompress(info);
    jpeg_mem_src(info, data, size);
    jpeg_read_header(info, TRUE);
    /* several scans would need memory for all coefficients of the picture */
    if ((int)info->image_height != height || (int)info->image_width != width || info->num_components != channels ||
        info->progressive_mode || jpeg_has_multiple_scans(info)) {
        snprintf(work->errors.message, MOST_MESSAGE, "it has %u x %u pixels of %d components, or several scans",
                 (unsigned)info->image_width, (unsigned)info->image_height, info->num_components);
        return 0;
    }
    info->dct_method = JDCT_ISLOW;
    info->out_color_space = channels == 1 ? JCS_GRAYSCALE : JCS_RGB;
    jpeg_start_decompress(info);
    size_t line_bytes = (size_t)width * (size_t)channels;
    while (info->output_scanline < info->output_height) {
        JSAMPROW lines[BLOCK_LINES];
        JDIMENSION count = info->output_height - info->output_scanline;
        count = count < BLOCK_LINES ? count : BLOCK_LINES;
        for (JDIMENSION n = 0; n < count; n++)
            lines[n] = out + (info->output_scanline + n) * line_bytes;
        jpeg_read_scanlines(info, lines, count);
    }
    jpeg_finish_decompress(info);
    return 1;
}

int jpeg_pixels(const uint8_t *data, size_t size, int height, int width, int channels, uint8_t *out, char message[MOST_MESSAGE]) {
    Work *work = open_work(message);
    if (!work) {
        snprintf(message, MOST_MESSAGE, "there is no memory for it");
        return 0;
    }
    volatile int is_decoded = 0;
    if (!setjmp(work->errors.leave))
        is_decoded = decode_whole(work, data, size, height, width, channels, out);
    close_work(work);
    return is_decoded;
}

/* Clips the kept part to the picture. */
static Wanted kept_part(const Wanted *wanted, const Place *place) {
    Wanted kept = *wanted;
    long long right = (long long)place->left + place->width, bottom = (long long)place->top + place->height;
    kept.x0 = place->left > 0 ? place->left : 0;
    kept.y0 = place->top > 0 ? place->top : 0;
    kept.x1 = right < wanted->width ? (int)right : wanted->width;
    kept.y1 = bottom < wanted->height ? (int)bottom : wanted->height;
    kept.channels = 3;
    return kept;
}

size_t row_bytes_of(const Wanted *wanted, const Place *place) {
    Wanted kept = kept_part(wanted, place);
    if (place->width < 1 || place->height < 1 || place->width > 65535 || place->height > 65535 || kept.x0 >= kept.x1 ||
        kept.y0 >= kept.y1)
        return 0;
    return (size_t)place->width * (size_t)place->height * 3;
}

int jpeg_row(const uint8_t *data, size_t size, const Wanted *wanted, const Place *place, uint8_t *row) {
    Wanted kept = kept_part(wanted, place);
    size_t row_bytes = row_bytes_of(wanted, place);
    if (!row_bytes)
        return 0;
    if (kept.x1 - kept.x0 < place->width || kept.y1 - kept.y0 < place->height)
        memset(row, 0, row_bytes);
    row += ((size_t)(kept.y0 - place->top) * (size_t)place->width + (size_t)(kept.x0 - place->left)) * 3;
    return decode_kept(data, size, &kept, row, (long)place->width * 3);
}

const char *jpeg_library(void) {
#ifdef __unix__
    Dl_info found;
    if (dladdr((void *)jpeg_std_error, &found))
        return found.dli_fname;
#endif
    return NULL;
}
