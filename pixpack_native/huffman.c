/* Decodes a scan's Huffman codes for libjpeg-turbo, which calls this for each MCU (ISO/IEC 10918-1: the blocks that are coded
 * together). The bits read ahead, the last DC values and the place in the data stay where libjpeg keeps them, so that it can decode
 * any MCU itself: the first one of a restart interval, and those at a marker that it has read. Nothing else is handed back. A code
 * that is none, a block of more than 64 coefficients, data that ends early, and bytes left over at the scan's end are errors here:
 * libjpeg accepts some of them, with a warning or without one by how far it has read ahead. */

#include "huffman_state.h"

static int is_used;

#if HAS_FAST_HUFFMAN
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* of the data: longer codes are looked up one length after the other */
#define LOOK_BITS 10
/* of coefficients, where a code ends the block */
#define ADVANCE_TO_END 128
/* more than is left of any block */
#define NO_CODE ((uint32_t)255 << 24)

/* 0 where there is none; else in bits 0 to 5 its bits with its value's, in 8 to 13 its own, in 16 to 21 63 less its value's, and in
 * 24 to 31 the coefficients to advance. */
typedef uint32_t Code;

typedef struct {
    /* by the next LOOK_BITS bits; none where the code is longer */
    Code codes[1 << LOOK_BITS];
    /* of codes of each length: what 16 bits that begin with one are below, and a symbol's index less its code */
    uint32_t limits[17];
    int offsets[17];
    Code longer[256];
} Table;

struct HuffmanScan {
    boolean (*libjpeg_decode)(j_decompress_ptr, JBLOCKROW *);
    size_t mcus_left;
    /* of each block of an MCU, its tables, and whether its AC coefficients are wanted */
    const Table *dc[D_MAX_BLOCKS_IN_MCU], *ac[D_MAX_BLOCKS_IN_MCU];
    int has_ac[D_MAX_BLOCKS_IN_MCU];
    JBLOCK unwanted;
    Table tables[2][NUM_HUFF_TBLS];
};

/* The next bit is the highest one. count: how many there are; below 0 where more were taken than there were. Up to last, 8 bytes
 * can be read at once. */
typedef struct {
    uint64_t bits;
    int count;
    const JOCTET *at, *last, *end;
} Bits;

/* Figure A.6 */
static const uint8_t natural_order[64] = {
    0, 1, 8, 16, 9, 2, 3, 10, 17, 24, 32, 25, 18, 11, 4, 5,
    12, 19, 26, 33, 40, 48, 41, 34, 27, 20, 13, 6, 7, 14, 21, 28,
    35, 42, 49, 56, 57, 50, 43, 36, 29, 22, 15, 23, 30, 37, 44, 51,
    58, 59, 52, 45, 38, 31, 39, 46, 53, 60, 61, 54, 47, 55, 62, 63};

/* Of a DC coefficient the advance says nothing. */
static Code code_of(uint8_t symbol, int length) {
    uint32_t size = symbol & 15, run = symbol >> 4, bits = (uint32_t)length;
    return (size || run == 15 ? run + 1 : ADVANCE_TO_END) << 24 | (63 - size) << 16 | bits << 8 | (bits + size);
}

/* Figure C.2. Returns 0 where the lengths are no code's. */
static int table_init(Table *table, const JHUFF_TBL *huffman) {
    uint32_t word = 0;
    int index = 0;
    memset(table, 0, sizeof(*table));
    for (int length = 1; length <= 16; length++, word <<= 1) {
        table->offsets[length] = index - (int)word;
        if (index + huffman->bits[length] > 256 || word + huffman->bits[length] > 1u << length)
            return 0;
        for (int n = 0; n < huffman->bits[length]; n++, word++, index++) {
            Code code = code_of(huffman->huffval[index], length);
            if (length > LOOK_BITS)
                table->longer[index] = code;
            for (uint32_t i = 0; length <= LOOK_BITS && i < 1u << (LOOK_BITS - length); i++)
                table->codes[(word << (LOOK_BITS - length)) + i] = code;
        }
        table->limits[length] = word << (16 - length);
    }
    return 1;
}

/* Reads bytes one by one, up to a marker or the end. */
static __attribute__((noinline)) Bits filled_slowly(Bits from) {
    while (from.count >= 0 && from.count < 56 && from.at < from.end) {
        uint64_t byte = *from.at;
        if (byte == 0xff && (from.end - from.at < 2 || from.at[1]))
            break;
        from.bits |= byte << (56 - from.count);
        from.count += 8;
        from.at += byte == 0xff ? 2 : 1;
    }
    return from;
}

/* Reads until there are 56 bits or more, or a marker is next. A count below 0 stays: it is a marker, or the end, that is next. */
static inline __attribute__((always_inline)) void fill(Bits *from) {
    if (__builtin_expect(from->at <= from->last, 1)) {
        uint64_t next;
        memcpy(&next, from->at, 8);
        next = __builtin_bswap64(next);
        /* where no byte is 0xff: 1 less than the complement of each leaves its highest bit 0 */
        if (__builtin_expect(!((~next - 0x0101010101010101) & next & 0x8080808080808080), 1)) {
            from->bits |= next >> from->count;
            from->at += (63 - from->count) >> 3;
            from->count |= 56;
            return;
        }
    }
    *from = filled_slowly(*from);
}

static __attribute__((noinline)) Code longer_code(const Table *table, uint64_t bits) {
    uint32_t next = (uint32_t)(bits >> 48);
    for (int length = LOOK_BITS + 1; length <= 16; length++)
        if (next < table->limits[length])
            return table->longer[((int)(next >> (16 - length)) + table->offsets[length]) & 0xff];
    return NO_CODE;
}

/* Takes the next code and its value, without a branch but for long codes. Two that are not long have no more bits than fill()
 * gives. Figure F.12: a value that begins with 0 is negative. */
static inline __attribute__((always_inline)) int take(Bits *from, const Table *table, Code *taken) {
    Code code = table->codes[from->bits >> (64 - LOOK_BITS)];
    if (__builtin_expect(!code, 0)) {
        fill(from);
        code = longer_code(table, from->bits);
    }
    uint64_t value = from->bits << (code >> 8 & 63), is_negative = (uint64_t)((int64_t)~value >> 63);
    int shift = code >> 16 & 63;
    from->bits <<= code & 63;
    from->count -= code & 63;
    *taken = code;
    return (int)(value >> 1 >> shift) - (int)(is_negative >> 1 >> shift);
}

/* Takes a block's AC coefficients. Returns 0 at a code that is none, and at one coefficient too many. */
static inline __attribute__((always_inline)) int take_ac(Bits *from, const Table *table, JCOEF *block) {
    unsigned int place = 0;
    Code code;
    int value;
    for (;;) {
        fill(from);
#pragma GCC unroll 2
        for (int n = 0; n < 2; n++) {
            value = take(from, table, &code);
            place += code >> 24;
            if (place >= 63)
                goto ended;
            block[natural_order[place]] = (JCOEF)value;
        }
    }
ended:
    if (place == 63)
        block[63] = (JCOEF)value;
    return place == 63 || code >> 24 == ADVANCE_TO_END;
}

/* Whether nothing but the last byte's padding stands before the next marker. */
static int ends_plainly(const Bits *from) {
    return from->count < 8 && from->end - from->at >= 2 && from->at[0] == 0xff && from->at[1];
}

static inline __attribute__((always_inline)) boolean decode(j_decompress_ptr info, JBLOCKROW *blocks) {
    HuffmanScan *scan = info->client_data;
    HuffmanState *state = (HuffmanState *)info->entropy;
    scan->mcus_left--;
    if (info->unread_marker || state->has_too_few_bits || state->ahead.count > 63 ||
        (info->restart_interval && !state->mcus_to_restart))
        return scan->libjpeg_decode(info, blocks);
    const JOCTET *at = info->src->next_input_byte, *end = at + info->src->bytes_in_buffer;
    Bits from = {state->ahead.count ? (uint64_t)state->ahead.bits << (64 - state->ahead.count) : 0, state->ahead.count, at,
        end - at >= 8 ? end - 8 : at - 1, end};
    int is_right = 1;
    for (int n = 0; is_right && n < info->blocks_in_MCU; n++) {
        fill(&from);
        Code code;
        int *last_dc = state->last_dc + info->MCU_membership[n];
        JCOEF *block = blocks ? *blocks[n] : scan->unwanted;
        *last_dc = (int)((unsigned int)*last_dc + (unsigned int)take(&from, scan->dc[n], &code));
        block[0] = (JCOEF)*last_dc;
        is_right = code != NO_CODE && take_ac(&from, scan->ac[n], scan->has_ac[n] ? block : scan->unwanted);
    }
    if (!is_right || from.count < 0 || (!scan->mcus_left && !ends_plainly(&from)))
        info->err->error_exit((j_common_ptr)info);
    if (info->restart_interval)
        state->mcus_to_restart--;
    state->ahead.bits = from.count ? (size_t)(from.bits >> (64 - from.count)) : 0;
    state->ahead.count = from.count;
    info->src->bytes_in_buffer = (size_t)(from.end - from.at);
    info->src->next_input_byte = from.at;
    return TRUE;
}

static boolean decode_plain(j_decompress_ptr info, JBLOCKROW *blocks) {
    return decode(info, blocks);
}

#if defined(__x86_64__) && !defined(PIXPACK_PLAIN_C)
/* Shifts by any count are one instruction each. */
__attribute__((target("bmi2"))) static boolean decode_bmi2(j_decompress_ptr info, JBLOCKROW *blocks) {
    return decode(info, blocks);
}
#endif

/* Whether the state is that of a scan of baseline JPEG that has just begun, where it is expected. */
static int is_known(j_decompress_ptr info, const HuffmanState *state) {
    int is_new = !state->has_too_few_bits && !state->ahead.bits && !state->ahead.count &&
                 state->mcus_to_restart == info->restart_interval;
    for (int n = 0; n < info->comps_in_scan; n++)
        is_new = is_new && !state->last_dc[n] && info->cur_comp_info[n]->component_needed;
    return is_new && !info->progressive_mode && !info->arith_code && !jpeg_has_multiple_scans(info) && info->data_precision == 8 &&
           !info->Ss && info->Se == 63 && !info->Ah && !info->Al && !info->unread_marker;
}

static int tables_init(HuffmanScan *scan, j_decompress_ptr info) {
    for (int n = 0; n < info->blocks_in_MCU; n++) {
        const jpeg_component_info *component = info->cur_comp_info[info->MCU_membership[n]];
        for (int is_dc = 0; is_dc < 2; is_dc++) {
            int number = is_dc ? component->dc_tbl_no : component->ac_tbl_no;
            if (number < 0 || number >= NUM_HUFF_TBLS)
                return 0;
            const JHUFF_TBL *huffman = (is_dc ? info->dc_huff_tbl_ptrs : info->ac_huff_tbl_ptrs)[number];
            const Table **wanted = (is_dc ? scan->dc : scan->ac) + n;
            *wanted = &scan->tables[is_dc][number];
            int is_made = 0;
            for (int before = 0; before < n; before++)
                is_made |= (is_dc ? scan->dc : scan->ac)[before] == *wanted;
            if (!huffman || (!is_made && !table_init(&scan->tables[is_dc][number], huffman)))
                return 0;
        }
#if JPEG_LIB_VERSION >= 70
        scan->has_ac[n] = component->DCT_h_scaled_size > 1;
#else
        scan->has_ac[n] = component->DCT_scaled_size > 1;
#endif
    }
    return 1;
}

HuffmanScan *huffman_begin(j_decompress_ptr info) {
    HuffmanState *state = (HuffmanState *)info->entropy;
    HuffmanScan *scan = is_used && is_known(info, state) ? malloc(sizeof(HuffmanScan)) : NULL;
    if (!scan || !tables_init(scan, info)) {
        free(scan);
        return NULL;
    }
    scan->libjpeg_decode = state->decode_mcu;
    scan->mcus_left = (size_t)info->MCUs_per_row * info->MCU_rows_in_scan;
    info->client_data = scan;
    state->decode_mcu = decode_plain;
#if defined(__x86_64__) && !defined(PIXPACK_PLAIN_C)
    if (__builtin_cpu_supports("bmi2"))
        state->decode_mcu = decode_bmi2;
#endif
    return scan;
}
#else
HuffmanScan *huffman_begin(j_decompress_ptr info) {
    return NULL;
}
#endif

int huffman_use(int is_wanted) {
#if HAS_FAST_HUFFMAN
    static int is_probed, is_known_here;
    is_used = 1;
    if (!is_probed)
        is_known_here = huffman_probe(huffman_begin);
    is_probed = 1;
    is_used = is_wanted && is_known_here;
#endif
    return is_used;
}
