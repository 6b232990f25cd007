/* Knows one JPEG, and what a decoder of Huffman codes has read of it after each MCU. */

#include "huffman_state.h"

#if HAS_FAST_HUFFMAN
#include <setjmp.h>
#include <stdlib.h>
#include <string.h>

#define MCUS 4
#define COMPONENTS 3
#define RESTART_INTERVAL 3
#define WIDTH 8
/* where the scan's data begin, up to the first restart marker, and behind it */
#define DATA_AT 160
#define DATA_BYTES 8
#define MORE_AT (DATA_AT + DATA_BYTES + 2)
#define MORE_BYTES 3

#define ONES_8 1, 1, 1, 1, 1, 1, 1, 1

/* 8 x 32 pixels of three components, an MCU a row of blocks, of which each has a DC coefficient alone. */
static const JOCTET picture[] = {
    0xff, 0xd8,
    0xff, 0xdb, 0, 67, 0, ONES_8, ONES_8, ONES_8, ONES_8, ONES_8, ONES_8, ONES_8, ONES_8,
    0xff, 0xc0, 0, 17, 8, 0, 8 * MCUS, 0, WIDTH, COMPONENTS, 1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0,
    /* sizes 0 to 6, in three bits each; the end of a block, in one */
    0xff, 0xc4, 0, 26, 0x00, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 2, 3, 4, 5, 6,
    0xff, 0xc4, 0, 20, 0x10, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    0xff, 0xdd, 0, 4, 0, RESTART_INTERVAL,
    0xff, 0xda, 0, 12, COMPONENTS, 1, 0, 2, 0, 3, 0, 0, 63, 0,
    0x74, 0x84, 0x91, 0x8c, 0x93, 0x00, 0xb4, 0x7f,
    0xff, 0xd0,
    0x59, 0x43, 0x7f,
    0xff, 0xd9};
_Static_assert(sizeof(picture) == MORE_AT + MORE_BYTES + 2, "the places in the picture are not those of its data");

/* What has been read after each MCU: bits since the last marker, the last DC values, and the MCUs up to the next marker. */
static const struct {
    int bits, last_dc[COMPONENTS];
    unsigned int mcus_to_restart;
} expected[MCUS] = {{21, {5, -3, 9}, 2}, {37, {6, -2, 7}, 1}, {57, {-1, -2, 27}, 0}, {17, {3, 2, 1}, 2}};

typedef struct {
    struct jpeg_decompress_struct info;
    struct jpeg_error_mgr errors;
    jmp_buf leave;
    HuffmanScan *scan;
} Probe;

static void leave(j_common_ptr info) {
    longjmp(((Probe *)info)->leave, 1);
}

static void ignore(j_common_ptr info, int level) {
    (void)info;
    (void)level;
}

/* Whether the bits read ahead are those of the data at the place that they are read up to. */
static int is_at(j_decompress_ptr info, const HuffmanState *state, int mcu) {
    const JOCTET *data = picture + (mcu < RESTART_INTERVAL ? DATA_AT : MORE_AT);
    size_t size = mcu < RESTART_INTERVAL ? DATA_BYTES : MORE_BYTES, count = (size_t)state->ahead.count, bits = 0;
    size_t taken = (size_t)(info->src->next_input_byte - data);
    /* behind a marker that has been read */
    taken = info->unread_marker ? size : taken;
    if (state->ahead.count < 0 || count > 64 || taken > size || 8 * taken != count + (size_t)expected[mcu].bits)
        return 0;
    for (size_t n = 0; n < taken; n++)
        bits = bits << 8 | data[n];
    return count == 0 || !((bits ^ state->ahead.bits) << (64 - count));
}

static int is_expected(j_decompress_ptr info, const HuffmanState *state, int mcu) {
    return !state->has_too_few_bits && state->mcus_to_restart == expected[mcu].mcus_to_restart &&
           !memcmp(state->last_dc, expected[mcu].last_dc, sizeof(expected[mcu].last_dc)) && is_at(info, state, mcu);
}

/* Decodes so many bytes of the picture, its first line where these are not all; returns whether the state is always as expected. */
static int is_known(Probe *probe, size_t size, HuffmanScan *(*begin)(j_decompress_ptr)) {
    j_decompress_ptr info = &probe->info;
    JSAMPLE line[WIDTH * COMPONENTS];
    JSAMPROW lines[] = {line};
    jpeg_create_decompress(info);
    jpeg_mem_src(info, picture, size);
    jpeg_read_header(info, TRUE);
    jpeg_start_decompress(info);
    const HuffmanState *state = (const HuffmanState *)info->entropy;
    if (begin && !(probe->scan = begin(info)))
        return 0;
    if (size < sizeof(picture)) {
        int had_bits = !state->has_too_few_bits;
        jpeg_read_scanlines(info, lines, 1);
        return had_bits && state->has_too_few_bits == TRUE;
    }
    /* an MCU is decoded with the first of its lines */
    for (int mcu = 0; mcu < MCUS; mcu++)
        for (int line_of_mcu = 0; line_of_mcu < 8; line_of_mcu++)
            if (jpeg_read_scanlines(info, lines, 1) != 1 || (line_of_mcu == 0 && !is_expected(info, state, mcu)))
                return 0;
    return jpeg_finish_decompress(info);
}

static int probe_once(Probe *probe, size_t size, HuffmanScan *(*begin)(j_decompress_ptr)) {
    volatile int is_right = 0;
    memset(probe, 0, sizeof(*probe));
    probe->info.err = jpeg_std_error(&probe->errors);
    probe->errors.error_exit = leave;
    probe->errors.emit_message = ignore;
    if (!setjmp(probe->leave))
        is_right = is_known(probe, size, begin);
    jpeg_destroy_decompress(&probe->info);
    free(probe->scan);
    return is_right;
}

int huffman_probe(HuffmanScan *(*begin)(j_decompress_ptr)) {
    Probe probe;
    return probe_once(&probe, sizeof(picture), NULL) && probe_once(&probe, DATA_AT + 1, NULL) &&
           probe_once(&probe, sizeof(picture), begin);
}
#endif
