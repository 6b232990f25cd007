/* Huffman decoding of baseline JPEGs in place of libjpeg-turbo's own, unless the build leaves it out (PIXPACK_FAST_HUFFMAN). */

#ifndef PIXPACK_HUFFMAN_H
#define PIXPACK_HUFFMAN_H

#include <stdio.h>

#include <jpeglib.h>

#define HUFFMAN_TEXT(version) #version
#define HUFFMAN_TEXT_OF(version) HUFFMAN_TEXT(version)
/* The version of libjpeg-turbo that this is built for, as "2.1.5": its private state may differ in another. */
#define HUFFMAN_HEADERS HUFFMAN_TEXT_OF(LIBJPEG_TURBO_VERSION)

/* Of these versions the private state is known: 2.1.0 to 2.1.5, 3.0 to 3.2. */
#if defined(PIXPACK_FAST_HUFFMAN) && (LIBJPEG_TURBO_VERSION_NUMBER < 2001090 || LIBJPEG_TURBO_VERSION_NUMBER >= 3000000) && \
    LIBJPEG_TURBO_VERSION_NUMBER < 3003000 && defined(__GNUC__) && defined(__BYTE_ORDER__) && \
    __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && __SIZEOF_SIZE_T__ == 8
#define HAS_FAST_HUFFMAN 1
#else
#define HAS_FAST_HUFFMAN 0
#endif

/* of one scan; what huffman.c keeps in it */
typedef struct HuffmanScan HuffmanScan;

/* Whether scans that begin from now on are decoded here; returns whether they are. The first call decodes a small JPEG to find out
 * whether the libjpeg that is loaded keeps its state where it is expected: where it does not, all scans are left to it. */
int huffman_use(int is_wanted);

/* Takes over the decoding of the scan that jpeg_start_decompress has begun; NULL where the scan is left to libjpeg. From then on
 * info->err->error_exit is called at whatever is not plain, and info->client_data belongs to the scan. Free it by free(). */
HuffmanScan *huffman_begin(j_decompress_ptr info);

#endif
