/* LD_PRELOAD: watch every call that changes a file below one folder, in all processes of a command, and spoil one of them.
 *
 *   CALLS_STATE   a file of 4096 zero bytes: the count and the lock that all processes share
 *   CALLS_ROOT    the folder, absolute and free of links; what lies elsewhere, pipes and terminals are not seen
 *   CALLS_LOG     append each call to this file, with its data: see calls.py
 *   CALLS_NAMES   " write fsync " : only these calls count; "": all do but close and read
 *   CALLS_AT      spoil the n-th that counts ...
 *   CALLS_DO      ... die: kill the process group before it; stop: the group, until SIGCONT; short: do half of a write; a number: fail with that errno
 *
 * One call at a time: the log's order is the order in which the calls took place. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

typedef struct {
    volatile int64_t is_made;
    int64_t seen;
    pthread_mutex_t lock;
} State;

typedef struct {
    const char *name;
    char path[PATH_MAX], to[PATH_MAX];
    int is_ours, error, is_short;
} Call;

static State *state;
static const char *root, *names, *what;
static int64_t at;

/* Runs in the first process before it has children, so that one process makes the lock. Robust: workers are killed. */
__attribute__((constructor)) static void attach(void) {
    const char *path = getenv("CALLS_STATE");
    int descriptor = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (descriptor < 0) return;
    void *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
    syscall(SYS_close, descriptor);
    if (shared == MAP_FAILED) return;
    State *found = shared;
    if (!found->is_made) {
        pthread_mutexattr_t kind;
        pthread_mutexattr_init(&kind);
        pthread_mutexattr_setpshared(&kind, PTHREAD_PROCESS_SHARED);
        pthread_mutexattr_setrobust(&kind, PTHREAD_MUTEX_ROBUST);
        pthread_mutex_init(&found->lock, &kind);
        found->is_made = 1;
    }
    root = getenv("CALLS_ROOT");
    names = getenv("CALLS_NAMES");
    what = getenv("CALLS_DO");
    at = getenv("CALLS_AT") ? atoll(getenv("CALLS_AT")) : 0;
    if (root) state = found;
}

static int is_below_root(const char *path) {
    size_t length = strlen(root);
    return !strncmp(path, root, length) && (path[length] == '/' || !path[length]);
}

static void path_of_descriptor(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
}

static void absolute_path(int folder, const char *path, char *result) {
    char base[PATH_MAX] = "";
    if (path[0] == '/') {
        snprintf(result, PATH_MAX, "%s", path);
        return;
    }
    if (folder != AT_FDCWD) path_of_descriptor(folder, base);
    else if (!getcwd(base, sizeof base)) base[0] = 0;
    if (snprintf(result, PATH_MAX, "%s/%s", base, path) >= PATH_MAX) result[0] = 0;
}

static int counts(const char *name) {
    char quoted[64];
    snprintf(quoted, sizeof quoted, " %s ", name);
    return *names ? strstr(names, quoted) != NULL : strcmp(name, "close") && strcmp(name, "read");
}

/* Append "name result offset is_spoiled path to data\n", between tabs, the data in hex, in one write. */
static void record(const Call *call, int64_t result, int64_t offset, const unsigned char *data, size_t size) {
    const char *path = getenv("CALLS_LOG");
    if (!path) return;
    char *line = malloc(256 + 2 * PATH_MAX + 2 * size);
    int length = sprintf(line, "%s\t%lld\t%lld\t%d\t%s\t%s\t", call->name, (long long)result, (long long)offset,
                         call->error || call->is_short, call->path, call->to);
    for (size_t i = 0; i < size; i++) length += sprintf(line + length, "%02x", data[i]);
    line[length++] = '\n';
    int log = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0644);
    syscall(SYS_write, log, line, length);
    syscall(SYS_close, log);
    free(line);
}

static void take_lock(void) {
    if (pthread_mutex_lock(&state->lock) == EOWNERDEAD) pthread_mutex_consistent(&state->lock);
}

/* Take the lock if the call's path is ours, and decide what becomes of it. */
static void enter(Call *call) {
    call->is_ours = is_below_root(call->path);
    if (!call->is_ours) return;
    take_lock();
    if (!counts(call->name) || ++state->seen != at) return;
    if (!strcmp(what, "die")) {
        kill(0, SIGKILL);
        pause();
    }
    if (!strcmp(what, "stop")) kill(0, SIGSTOP);
    call->is_short = !strcmp(what, "short");
    call->error = call->is_short ? 0 : atoi(what);
}

static void begin_at(Call *call, const char *name, int folder, const char *path) {
    if (!state) return;
    call->name = name;
    absolute_path(folder, path, call->path);
    enter(call);
}

static void begin(Call *call, const char *name, int fd) {
    if (!state) return;
    call->name = name;
    path_of_descriptor(fd, call->path);
    // what was removed while it was open is on no disk
    size_t length = strlen(call->path);
    if (length > 10 && !strcmp(call->path + length - 10, " (deleted)")) return;
    enter(call);
}

static int64_t end(Call *call, int64_t result, int64_t offset, const void *data, size_t size) {
    if (!call->is_ours) return result;
    int error = call->error ? call->error : errno;
    record(call, result, offset, data, size);
    pthread_mutex_unlock(&state->lock);
    errno = error;
    return result;
}

static size_t wanted(const Call *call, size_t size) { return call->is_short && size > 1 ? size / 2 : size; }

/* -- data */

ssize_t write(int fd, const void *data, size_t size) {
    Call call = {0};
    begin(&call, "write", fd);
    ssize_t done = call.error ? -1 : NEXT(write)(fd, data, wanted(&call, size));
    off_t stop = call.is_ours ? lseek(fd, 0, SEEK_CUR) : 0;
    return end(&call, done, stop - done, data, done > 0 ? done : 0);
}

#define PWRITE(name, offset_type)                                              \
    ssize_t name(int fd, const void *data, size_t size, offset_type offset) {  \
        Call call = {0};                                                         \
        begin(&call, "pwrite", fd);                                            \
        ssize_t done = call.error ? -1 : NEXT(name)(fd, data, wanted(&call, size), offset); \
        return end(&call, done, offset, data, done > 0 ? done : 0);            \
    }
PWRITE(pwrite, off_t)
PWRITE(pwrite64, off64_t)

ssize_t read(int fd, void *data, size_t size) {
    Call call = {0};
    begin(&call, "read", fd);
    return end(&call, call.error ? -1 : NEXT(read)(fd, data, wanted(&call, size)), 0, NULL, 0);
}

#define ON_DESCRIPTOR(name, label, value, parameters, arguments)               \
    int name parameters {                                                      \
        Call call = {0};                                                         \
        begin(&call, label, fd);                                               \
        return end(&call, call.error ? -1 : NEXT(name) arguments, value, NULL, 0); \
    }
/* The record says what is synced; the disk itself is not waited for. */
static int sync_nothing(int fd) { return fcntl(fd, F_GETFD) < 0 ? -1 : 0; }
#define SYNC(name)                                                             \
    int name(int fd) {                                                         \
        Call call = {0};                                                       \
        begin(&call, #name, fd);                                               \
        return end(&call, call.error ? -1 : sync_nothing(fd), 0, NULL, 0);     \
    }
SYNC(fsync)
SYNC(fdatasync)

/* it changes nothing, but of two packs one may stand still before it */
ON_DESCRIPTOR(flock, "flock", 0, (int fd, int kind), (fd, kind))
ON_DESCRIPTOR(ftruncate, "ftruncate", size, (int fd, off_t size), (fd, size))
ON_DESCRIPTOR(ftruncate64, "ftruncate", size, (int fd, off64_t size), (fd, size))

/* returns the error instead of setting errno; it is logged below zero */
#define FALLOCATE(name, offset_type)                                           \
    int name(int fd, offset_type offset, offset_type size) {                   \
        Call call = {0};                                                         \
        begin(&call, "fallocate", fd);                                         \
        int error = call.error ? call.error : NEXT(name)(fd, offset, size);    \
        return -end(&call, -error, offset + size, NULL, 0);                    \
    }
FALLOCATE(posix_fallocate, off_t)
FALLOCATE(posix_fallocate64, off64_t)

/* Bytes of a file that become a hole: logged as the zeros that are read there. */
#define PUNCH(name, offset_type)                                               \
    int name(int fd, int mode, offset_type offset, offset_type size) {         \
        Call call = {0};                                                       \
        begin(&call, mode & FALLOC_FL_PUNCH_HOLE ? "punch" : "fallocate", fd); \
        int done = call.error ? -1 : NEXT(name)(fd, mode, offset, size);       \
        if (!(mode & FALLOC_FL_PUNCH_HOLE)) return end(&call, done, offset + size, NULL, 0); \
        void *zeros = call.is_ours ? calloc(1, size) : NULL;                   \
        end(&call, done, offset, zeros, zeros ? size : 0);                     \
        free(zeros);                                                           \
        return done;                                                           \
    }
PUNCH(fallocate, off_t)
PUNCH(fallocate64, off64_t)

/* Only of what was open for writing: what a close can lose is what was written. It closes, even where it fails. */
int close(int fd) {
    Call call = {0};
    int flags = state ? fcntl(fd, F_GETFL) : -1;
    if (flags >= 0 && (flags & O_ACCMODE) != O_RDONLY) begin(&call, "close", fd);
    int done = NEXT(close)(fd);
    return end(&call, call.error ? -1 : done, 0, NULL, 0);
}

/* -- names */

#define ON_PATH(name, label, folder, parameters, arguments)                    \
    int name parameters {                                                      \
        Call call = {0};                                                         \
        begin_at(&call, label, folder, path);                                  \
        return end(&call, call.error ? -1 : NEXT(name) arguments, 0, NULL, 0); \
    }
ON_PATH(unlink, "unlink", AT_FDCWD, (const char *path), (path))
ON_PATH(rmdir, "rmdir", AT_FDCWD, (const char *path), (path))
ON_PATH(unlinkat, flags & AT_REMOVEDIR ? "rmdir" : "unlink", folder, (int folder, const char *path, int flags), (folder, path, flags))
ON_PATH(mkdir, "mkdir", AT_FDCWD, (const char *path, mode_t mode), (path, mode))
ON_PATH(mkdirat, "mkdir", folder, (int folder, const char *path, mode_t mode), (folder, path, mode))

#define RENAME(name, label, from_folder, to_folder, parameters, arguments)     \
    int name parameters {                                                      \
        Call call = {0};                                                         \
        if (state) absolute_path(to_folder, to, call.to);                      \
        begin_at(&call, label, from_folder, from);                             \
        return end(&call, call.error ? -1 : NEXT(name) arguments, 0, NULL, 0); \
    }
RENAME(rename, "rename", AT_FDCWD, AT_FDCWD, (const char *from, const char *to), (from, to))
RENAME(link, "link", AT_FDCWD, AT_FDCWD, (const char *from, const char *to), (from, to))
RENAME(linkat, "link", a, b, (int a, const char *from, int b, const char *to, int flags), (a, from, b, to, flags))
RENAME(renameat, "rename", a, b, (int a, const char *from, int b, const char *to), (a, from, b, to))
RENAME(renameat2, flags & RENAME_EXCHANGE ? "exchange" : "rename", a, b,
       (int a, const char *from, int b, const char *to, unsigned flags), (a, from, b, to, flags))

/* An open counts where it makes a file or cuts one: "create" or "truncate". */
static int opened(int folder, const char *path, int flags, mode_t mode) {
    Call call = {0};
    if (state && flags & (O_CREAT | O_TRUNC)) {
        int exists = !faccessat(folder, path, F_OK, 0);
        if (!exists && flags & O_CREAT) begin_at(&call, "create", folder, path);
        if (exists && flags & O_TRUNC) begin_at(&call, "truncate", folder, path);
    }
    int fd = call.error ? -1 : syscall(SYS_openat, folder, path, flags, mode);
    return end(&call, fd, 0, NULL, 0);
}

#define MODE(flags) ({ va_list rest; va_start(rest, flags); mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, int) : 0; va_end(rest); mode; })
int open(const char *path, int flags, ...) { return opened(AT_FDCWD, path, flags, MODE(flags)); }
int open64(const char *path, int flags, ...) { return opened(AT_FDCWD, path, flags, MODE(flags)); }
int openat(int folder, const char *path, int flags, ...) { return opened(folder, path, flags, MODE(flags)); }
int openat64(int folder, const char *path, int flags, ...) { return opened(folder, path, flags, MODE(flags)); }
