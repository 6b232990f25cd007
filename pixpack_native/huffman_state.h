/* Where libjpeg-turbo keeps the state of a scan of baseline JPEG, which its headers do not say. */

#ifndef PIXPACK_HUFFMAN_STATE_H
#define PIXPACK_HUFFMAN_STATE_H

#include "huffman.h"

#if HAS_FAST_HUFFMAN
/* As huff_entropy_decoder in jdhuff.c begins: the same in 2.1.0 to 2.1.5.1, and in 3.0.0 to 3.2.0. */
typedef struct {
    void (*start_pass)(j_decompress_ptr);
    boolean (*decode_mcu)(j_decompress_ptr, JBLOCKROW *);
#if LIBJPEG_TURBO_VERSION_NUMBER >= 3000000
    void (*decode_mcus)(void);
    void (*process_restart)(void);
#endif
    boolean has_too_few_bits;
    /* a struct of its own, which the compiler pads */
    struct {
        size_t bits;
        int count;
    } ahead;
    int last_dc[MAX_COMPS_IN_SCAN];
    unsigned int mcus_to_restart;
} HuffmanState;

/* Decodes a small JPEG by libjpeg alone, a damaged one, and one whose scan `begin` takes over; returns whether the state was as
 * expected each time. So another library under the same name, or one built in another way, is found before it is written to. */
int huffman_probe(HuffmanScan *(*begin)(j_decompress_ptr));
#endif

#endif
