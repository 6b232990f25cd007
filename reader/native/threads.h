/* Calls a function for the indices 0 to count - 1 on several threads. Knows nothing about Python. */

#ifndef PIXPACK_THREADS_H
#define PIXPACK_THREADS_H

#include <stdint.h>

/* Makes one result of a job. Returns 0 on failure. Called without the interpreter. */
typedef int (*Make)(const void *job, int64_t number);

/* Calls make for each index on this many threads, this one included, or on fewer if threads cannot be started or too few bytes are made.
 * Returns 0 if one of the calls did. */
int on_threads(Make make, const void *job, int64_t count, int threads, int64_t bytes);

#endif
