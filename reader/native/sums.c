/* Sums of bytes, in loops that compilers make vector instructions of. */

#include "sums.h"

/* This many squares of bytes fit in 32 bits. */
#define MOST_GROUPS 66051

static void add_groups(const uint8_t *at, size_t groups, uint32_t *some, uint32_t *squares) {
    for (size_t n = 0; n < groups; n++, at += GROUP)
        for (int i = 0; i < GROUP; i++) {
            some[i] += at[i];
            squares[i] += (uint32_t)at[i] * at[i];
        }
}

void add_bytes(const uint8_t *at, size_t size, uint64_t totals[GROUP], uint64_t square_totals[GROUP]) {
    while (size > 0) {
        uint32_t some[GROUP] = {0}, squares[GROUP] = {0};
        size_t groups = size / GROUP < MOST_GROUPS ? size / GROUP : MOST_GROUPS;
        add_groups(at, groups, some, squares);
        at += groups * GROUP;
        size -= groups * GROUP;
        for (; groups < MOST_GROUPS && size > 0; size--) { /* less than a group remains */
            some[size - 1] += at[size - 1];
            squares[size - 1] += (uint32_t)at[size - 1] * at[size - 1];
        }
        for (int i = 0; i < GROUP; i++) {
            totals[i] += some[i];
            square_totals[i] += squares[i];
        }
    }
}

