/* By libjpeg-turbo, whose exact inverse DCT is the default everywhere, so that any libjpeg makes the same pixels of a JPEG without
 * subsampling. Leaves at the first complaint: nothing that is damaged becomes pixels. */

#include "jpeg_pixels.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>

#include <jpeglib.h>

/* Of a row of blocks. */
#define LINES 8

_Static_assert(MOST_MESSAGE >= JMSG_LENGTH_MAX, "a message of libjpeg would be too long");

typedef struct {
    struct jpeg_error_mgr base;
    jmp_buf leave;
    char *message;
} Errors;

typedef struct {
    struct jpeg_decompress_struct info;
    Errors errors;
} Work;

static void leave(j_common_ptr info) {
    Errors *errors = (Errors *)info->err;
    errors->base.format_message(info, errors->message);
    longjmp(errors->leave, 1);
}

/* Leaves at the first warning: level -1; higher ones are traces. */
static void judge(j_common_ptr info, int level) {
    if (level < 0)
        leave(info);
}

static int decode(Work *work, const uint8_t *data, size_t size, int height, int width, int channels, uint8_t *out) {
    j_decompress_ptr info = &work->info;
    jpeg_create_decompress(info);
    jpeg_mem_src(info, data, size);
    jpeg_read_header(info, TRUE);
    /* several scans would take memory for all coefficients of the picture */
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
        JSAMPROW lines[LINES];
        JDIMENSION count = info->output_height - info->output_scanline;
        count = count < LINES ? count : LINES;
        for (JDIMENSION n = 0; n < count; n++)
            lines[n] = out + (info->output_scanline + n) * line_bytes;
        jpeg_read_scanlines(info, lines, count);
    }
    jpeg_finish_decompress(info);
    return 1;
}

int jpeg_pixels(const uint8_t *data, size_t size, int height, int width, int channels, uint8_t *out, char message[MOST_MESSAGE]) {
    Work *work = calloc(1, sizeof(Work));
    if (!work) {
        snprintf(message, MOST_MESSAGE, "there is no memory for it");
        return 0;
    }
    work->info.err = jpeg_std_error(&work->errors.base);
    work->errors.base.error_exit = leave;
    work->errors.base.emit_message = judge;
    work->errors.message = message;
    volatile int is_decoded = 0;
    if (!setjmp(work->errors.leave))
        is_decoded = decode(work, data, size, height, width, channels, out);
    jpeg_destroy_decompress(&work->info);
    free(work);
    return is_decoded;
}
