/* Small baseline JPEGs with a row's plan in front, made at random and changed at random. Knows the headers' syntax and how a scan
 * is coded (ISO/IEC 10918-1), and nothing of the decoders. */

#ifndef PIXPACK_JPEG_CASES_H
#define PIXPACK_JPEG_CASES_H

#include <stddef.h>
#include <stdint.h>

/* In front of the JPEG: what huffman_fuzz.c makes a row's sizes of. */
#define PLAN_BYTES 12
#define MOST_SIDE_PIXELS 64

/* xorshift64*: the same numbers for the same seed; the state is never 0. */
typedef struct {
    uint64_t state;
} Random;

uint32_t below(Random *random, uint32_t count);

/* bits[n]: codes of n bits, as in DHT. has: whether the file has such a table. */
typedef struct {
    int has;
    uint8_t bits[17], values[256];
} CodeTable;

/* What the headers of a JPEG of one scan say. tables: of DC, of AC. */
typedef struct {
    int marker, width, height, components, restart_interval;
    uint8_t across[3], down[3], quantization[3], dc[3], ac[3];
    CodeTable tables[2][4];
} Head;

/* Returns where the scan's data begin; 0 where the headers are not those of one scan of 1 or 3 components. */
size_t head_parse(const uint8_t *jpeg, size_t size, Head *head);

/* Makes headers of any size, sampling, tables and restart interval. */
void head_make(Random *random, Head *head);

/* Changes one thing of the headers: sides, sampling, a code table, the restart interval, which tables are used. */
void head_change(Random *random, Head *head);

/* Writes headers; returns their bytes, 0 where they do not fit in room. */
size_t head_write(const Head *head, uint8_t *into, size_t room);

/* Writes a scan of random symbols of the tables and an end marker, with a fault now and then; returns its bytes, at most room. */
size_t scan_make(Random *random, const Head *head, uint8_t *into, size_t room);

/* Damages bytes in one place; returns how many there are then, at most room. */
size_t bytes_damage(Random *random, uint8_t *bytes, size_t size, size_t room);

#endif
