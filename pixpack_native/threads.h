/* One function called for the numbers 0 to count - 1 by several threads. Knows nothing of Python. */

#ifndef PIXPACK_THREADS_H
#define PIXPACK_THREADS_H

#include <stdint.h>

/* Makes one of a job's results; returns 0 where it cannot. Called without the interpreter. */
typedef int (*Make)(const void *job, int64_t number);

/* Calls make for each number on so many threads, this one included; on fewer where they cannot be started, or where the bytes
 * that are made are not worth them. Returns 0 where one of the calls did. */
int on_threads(Make make, const void *job, int64_t count, int threads, int64_t bytes);

#endif
