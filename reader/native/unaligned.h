/* Numbers in the caller's memory, which may begin at any byte, as a view of a file or of part of an array does. */

#ifndef PIXPACK_UNALIGNED_H
#define PIXPACK_UNALIGNED_H

#include <stdint.h>

#if defined(__GNUC__) || defined(__clang__)
typedef int64_t UnalignedInt64 __attribute__((aligned(1)));
typedef float UnalignedFloat __attribute__((aligned(1)));
#else /* MSVC's processors read and write them anywhere */
typedef int64_t UnalignedInt64;
typedef float UnalignedFloat;
#endif

#endif
