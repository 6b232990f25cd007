/* Threads take the indices of a job from a shared counter until none is left. */

#include "threads.h"

#include <stddef.h>

#if (defined(__unix__) || defined(__APPLE__)) && (defined(__GNUC__) || defined(__clang__))
#define HAS_THREADS 1
#include <pthread.h>
#include <signal.h>
#endif

#define MOST_THREADS 64
/* Bytes that are worth a thread: starting it takes a third of the time of copying them. */
#define BYTES_A_THREAD (256 << 10)

typedef struct {
    Make make;
    const void *job;
    int64_t count, next;
    int is_failed;
} Work;

#ifdef HAS_THREADS
static void *take_numbers(void *given) {
    Work *work = given;
    for (int64_t n; (n = __atomic_fetch_add(&work->next, 1, __ATOMIC_RELAXED)) < work->count;)
        if (!work->make(work->job, n))
            __atomic_store_n(&work->is_failed, 1, __ATOMIC_RELAXED);
    return NULL;
}

static void run(Work *work, int threads) {
    pthread_t others[MOST_THREADS];
    int started = 0;
    sigset_t every, before;
    /* Python's threads handle signals */
    sigfillset(&every);
    pthread_sigmask(SIG_SETMASK, &every, &before);
    while (started + 1 < threads && !pthread_create(&others[started], NULL, take_numbers, work))
        started++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    take_numbers(work);
    while (started > 0)
        pthread_join(others[--started], NULL);
}
#else
static void run(Work *work, int threads) {
    for (int64_t n = 0; n < work->count; n++)
        if (!work->make(work->job, n))
            work->is_failed = 1;
}
#endif

int on_threads(Make make, const void *job, int64_t count, int threads, int64_t bytes) {
    Work work = {.make = make, .job = job, .count = count};
    int64_t worth = 1 + bytes / BYTES_A_THREAD, most = worth < count ? worth : count;
    most = most < MOST_THREADS ? most : MOST_THREADS;
    run(&work, threads < most ? threads : (int)most);
    return !work.is_failed;
}
