/* Does the compiled part's Huffman decoder make the row that libjpeg-turbo's makes, of anything, or none? A target for libFuzzer,
 * which python -m scripts.stress.fuzz.fuzz_native --fast-huffman --libfuzzer builds and runs. One execution decodes a JPEG into a row by
 * both decoders, and what became a row once more by libjpeg alone, all of it: it has no warning. Ends at the first difference. */

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#include "huffman.h"
#include "jpeg_cases.h"
#include "jpeg_row.h"

/* Around a row. */
#define GUARD_BYTES 64
#define GUARD 0xa5
/* Damaged headers may state more, whose rows take long. */
#define MOST_SIDE_TRIED 128

/* fields of the last line that is written */
static struct {
    unsigned long long executions, taken, rows, left;
} counts;
static int was_taken;

/* linked by --wrap: every call of huffman_begin is one of this */
HuffmanScan *__real_huffman_begin(j_decompress_ptr info);
HuffmanScan *__wrap_huffman_begin(j_decompress_ptr info);
HuffmanScan *__wrap_huffman_begin(j_decompress_ptr info) {
    HuffmanScan *scan = __real_huffman_begin(info);
    was_taken |= scan != NULL;
    return scan;
}

static void fail(const char *what) {
    fprintf(stderr, "huffman_fuzz: %s\n", what);
    abort();
}

static void write_counts(void) {
    fprintf(stderr, "counts: {\"executions\": %llu, \"taken\": %llu, \"rows\": %llu, \"rows_left\": %llu}\n", counts.executions,
        counts.taken, counts.rows, counts.left);
}

typedef struct {
    struct jpeg_error_mgr base;
    jmp_buf leave;
    int complaints;
} Errors;

static void leave(j_common_ptr info) {
    Errors *errors = (Errors *)info->err;
    errors->complaints++;
    longjmp(errors->leave, 1);
}

static void count_warning(j_common_ptr info, int level) {
    ((Errors *)info->err)->complaints += level < 0;
}

/* Decodes all of a JPEG by libjpeg alone; returns how often it complains. */
static int complaints_of(const uint8_t *jpeg, size_t size) {
    struct jpeg_decompress_struct info;
    Errors errors = {.complaints = 0};
    static JSAMPLE line[65536 * 3];
    JSAMPROW lines[] = {line};
    info.err = jpeg_std_error(&errors.base);
    errors.base.error_exit = leave;
    errors.base.emit_message = count_warning;
    jpeg_create_decompress(&info);
    if (!setjmp(errors.leave)) {
        jpeg_mem_src(&info, jpeg, size);
        jpeg_read_header(&info, TRUE);
        jpeg_start_decompress(&info);
        while (info.output_scanline < info.output_height)
            jpeg_read_scanlines(&info, lines, 1);
        jpeg_finish_decompress(&info);
    }
    jpeg_destroy_decompress(&info);
    return errors.complaints;
}

typedef struct {
    Wanted wanted;
    Place place;
    size_t row_bytes;
} Plan;

/* The sizes that the first PLAN_BYTES ask for: of all of a picture, not resized, or of any part of it. Returns 0 where no row is. */
static int plan_of(const uint8_t *bytes, const Head *head, Plan *plan) {
    static const int scales[] = {1, 1, 2, 4, 8};
    int scale = scales[bytes[0] % 5];
    memset(plan, 0, sizeof(*plan));
    Wanted *wanted = &plan->wanted;
    wanted->source_width = (head->width + scale - 1) / scale;
    wanted->source_height = (head->height + scale - 1) / scale;
    wanted->width = bytes[1] & 1 ? wanted->source_width : 1 + bytes[2] % 40;
    wanted->height = bytes[1] & 1 ? wanted->source_height : 1 + bytes[3] % 40;
    wanted->filter = bytes[4] % 32 ? 1 + bytes[4] % 4 : bytes[5] % 6;
    plan->place.width = bytes[1] & 2 ? wanted->width : 1 + bytes[6] % 40;
    plan->place.height = bytes[1] & 4 ? wanted->height : 1 + bytes[7] % 40;
    plan->place.left = bytes[1] & 8 ? 0 : (int8_t)bytes[8];
    plan->place.top = bytes[1] & 16 ? 0 : (int8_t)bytes[9];
    plan->row_bytes = row_bytes_of(wanted, &plan->place);
    return plan->row_bytes > 0 && head->width <= MOST_SIDE_TRIED && head->height <= MOST_SIDE_TRIED;
}

/* Returns the JPEG in memory of exactly its size, with bytes behind its end: libjpeg-turbo decodes in another way where many are left. */
static uint8_t *with_tail(const uint8_t *plan, const uint8_t *jpeg, size_t size, size_t *made) {
    static const size_t tails[] = {0, 0, 1, 600, 5200, 9000};
    size_t tail = tails[plan[10] % 6];
    uint8_t *bytes = malloc(size + tail);
    if (!bytes)
        return NULL;
    memcpy(bytes, jpeg, size);
    memset(bytes + size, plan[11], tail);
    *made = size + tail;
    return bytes;
}

static uint8_t *row_by(int is_ours, const uint8_t *jpeg, size_t size, const Plan *plan) {
    double seconds = 0;
    uint8_t *around = malloc(GUARD_BYTES * 2 + plan->row_bytes);
    if (!around)
        fail("there is no memory for a row");
    memset(around, GUARD, GUARD_BYTES * 2 + plan->row_bytes);
    if (huffman_use(is_ours) != is_ours)
        fail("there is no decoder of its own for this libjpeg-turbo");
    int is_made = jpeg_row(jpeg, size, &plan->wanted, &plan->place, around + GUARD_BYTES, &seconds);
    for (size_t n = 0; n < GUARD_BYTES; n++)
        if (around[n] != GUARD || around[GUARD_BYTES + plan->row_bytes + n] != GUARD)
            fail("a byte beside the row was written");
    if (is_made)
        return around;
    free(around);
    return NULL;
}

int LLVMFuzzerInitialize(int *count, char ***arguments);
int LLVMFuzzerInitialize(int *count, char ***arguments) {
    (void)count;
    (void)arguments;
    atexit(write_counts);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    Head head;
    Plan plan;
    if (size <= PLAN_BYTES || !head_parse(data + PLAN_BYTES, size - PLAN_BYTES, &head) || !plan_of(data, &head, &plan))
        return 0;
    size_t jpeg_size;
    uint8_t *jpeg = with_tail(data, data + PLAN_BYTES, size - PLAN_BYTES, &jpeg_size);
    if (!jpeg)
        return 0;
    was_taken = 0;
    uint8_t *ours = row_by(1, jpeg, jpeg_size, &plan);
    counts.executions++;
    counts.taken += (unsigned)was_taken;
    uint8_t *theirs = row_by(0, jpeg, jpeg_size, &plan);
    if (ours && !theirs)
        fail("a row was made that libjpeg-turbo does not make");
    if (ours && memcmp(ours, theirs, plan.row_bytes + 2 * GUARD_BYTES))
        fail("the rows differ");
    if (theirs && complaints_of(jpeg, jpeg_size))
        fail("a row was made of what libjpeg-turbo warns of");
    counts.rows += ours != NULL;
    counts.left += theirs && !ours;
    free(ours);
    free(theirs);
    free(jpeg);
    return 0;
}

size_t LLVMFuzzerMutate(uint8_t *data, size_t size, size_t room);
size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned int seed);

/* Writes the headers again, and behind them the scan as it was or another. */
static size_t case_write(
    Random *random, uint8_t *data, size_t size, size_t begin, size_t room, const Head *head, int is_new) {
    uint8_t scan[8192];
    size_t scan_size = is_new ? 0 : size - begin;
    scan_size = scan_size < sizeof(scan) ? scan_size : sizeof(scan);
    memcpy(scan, data + begin, scan_size);
    size_t written = head_write(head, data + PLAN_BYTES, room - PLAN_BYTES);
    if (!written)
        return 0;
    size_t at = PLAN_BYTES + written;
    if (is_new)
        return at + scan_make(random, head, data + at, room - at);
    scan_size = scan_size < room - at ? scan_size : room - at;
    memcpy(data + at, scan, scan_size);
    return at + scan_size;
}

size_t LLVMFuzzerCustomMutator(uint8_t *data, size_t size, size_t room, unsigned int seed) {
    Random random = {seed * 0x9e3779b97f4a7c15ull + 1};
    Head head;
    below(&random, 2);
    if (room < PLAN_BYTES + 1200)
        return LLVMFuzzerMutate(data, size, room);
    if (size <= PLAN_BYTES)
        memset(data, 0, PLAN_BYTES);
    size_t begin = size > PLAN_BYTES ? head_parse(data + PLAN_BYTES, size - PLAN_BYTES, &head) : 0, made = 0;
    while (!below(&random, 3))
        data[below(&random, PLAN_BYTES)] = (uint8_t)below(&random, 256);
    if (!begin || !below(&random, 16)) {
        if (begin && below(&random, 2))
            return PLAN_BYTES + bytes_damage(&random, data + PLAN_BYTES, size - PLAN_BYTES, room - PLAN_BYTES);
        head_make(&random, &head);
        made = case_write(&random, data, size, size, room, &head, 1);
    } else if (!below(&random, 3)) {
        head_change(&random, &head);
        made = case_write(&random, data, size, PLAN_BYTES + begin, room, &head, (int)below(&random, 2));
    } else if (!below(&random, 4)) {
        made = case_write(&random, data, size, PLAN_BYTES + begin, room, &head, 1);
    }
    made = made ? made : size;
    begin = head_parse(data + PLAN_BYTES, made - PLAN_BYTES, &head) + PLAN_BYTES;
    if (!below(&random, 8))
        return begin + LLVMFuzzerMutate(data + begin, made - begin, room - begin);
    for (uint32_t n = below(&random, 2) ? below(&random, 3) : 0; n > 0; n--)
        made = begin + bytes_damage(&random, data + begin, made - begin, room - begin);
    return made;
}
