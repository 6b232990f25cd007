/* Decides as packer/sources/local.py and packer/pixels/formats/jpeg.py do, and returns 0 where they would do more. */

#define _GNU_SOURCE /* st_mtim */
#include "jpeg_file.h"

#include <stdlib.h>
#include <string.h>

#ifdef __unix__
#include <errno.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

/* of which the nanoseconds, and those between two, fit in 64 bits */
#define MOST_SECONDS 4000000000

static int nanoseconds(const struct timespec *at, int64_t *found) {
    if (at->tv_sec > MOST_SECONDS || at->tv_sec < -MOST_SECONDS)
        return 0;
    *found = (int64_t)at->tv_sec * 1000000000 + at->tv_nsec;
    return 1;
}

static int make_room(FileBytes *self, size_t size) {
    if (size > self->room) {
        free(self->bytes);
        self->bytes = malloc(size);
        self->room = self->bytes ? size : 0;
    }
    return self->room >= size;
}

static int read_all(int descriptor, uint8_t *into, size_t size) {
    while (size > 0) {
        ssize_t count = read(descriptor, into, size);
        if (count < 0 && errno == EINTR)
            continue;
        if (count <= 0)
            return 0;
        into += count;
        size -= (size_t)count;
    }
    return 1;
}

/* Sets what is to be read of a file: all of it, or a part of the file that it was listed of. */
static int choose_bytes(FileBytes *self, const struct stat *file, const FilePart *part, off_t *offset) {
    int64_t size = part ? part->size : file->st_size;
    *offset = part ? (off_t)part->offset : 0;
    if (size < 1 || size > MOST_FILE_BYTES || !make_room(self, (size_t)size))
        return 0;
    self->size = (size_t)size;
    return !part || (part->file_size == file->st_size && part->mtime_ns == self->mtime_ns && part->offset >= 0 &&
                     part->offset <= file->st_size - size);
}

static int read_open(FileBytes *self, int descriptor, const FilePart *part, int64_t settled_ns) {
    off_t offset;
    struct timespec begun;
    struct stat before, after;
    int64_t begun_ns, changed_ns;
    clock_gettime(CLOCK_REALTIME, &begun);
    if (fstat(descriptor, &before) || !S_ISREG(before.st_mode) || !nanoseconds(&begun, &begun_ns) ||
        !nanoseconds(&before.st_mtim, &self->mtime_ns) || !nanoseconds(&before.st_ctim, &changed_ns) ||
        !choose_bytes(self, &before, part, &offset))
        return 0;
    if ((offset && lseek(descriptor, offset, SEEK_SET) != offset) || !read_all(descriptor, self->bytes, self->size) ||
        fstat(descriptor, &after))
        return 0;
    /* ctime too: no program can set it back */
    int64_t latest = changed_ns > self->mtime_ns ? changed_ns : self->mtime_ns;
    return after.st_size == before.st_size && after.st_mtim.tv_sec == before.st_mtim.tv_sec &&
           after.st_mtim.tv_nsec == before.st_mtim.tv_nsec && after.st_ctim.tv_sec == before.st_ctim.tv_sec &&
           after.st_ctim.tv_nsec == before.st_ctim.tv_nsec && begun_ns - latest > settled_ns;
}

int file_read(FileBytes *self, const char *path, const FilePart *part, int64_t settled_ns) {
    /* NONBLOCK: opening a FIFO without a writer would wait forever */
    int descriptor = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0)
        return 0;
    int is_read = read_open(self, descriptor, part, settled_ns);
    close(descriptor);
    return is_read;
}
#endif

void file_free(FileBytes *self) {
    free(self->bytes);
    memset(self, 0, sizeof(*self));
}

static int begins_with(const uint8_t *at, size_t size, const char *mark, size_t mark_size) {
    return size >= mark_size && !memcmp(at, mark, mark_size);
}

static int holds(const uint8_t *at, size_t size, const char *mark, size_t mark_size) {
    const uint8_t *end = at + size;
    while ((at = memchr(at, mark[0], (size_t)(end - at)))) {
        if (begins_with(at, (size_t)(end - at), mark, mark_size))
            return 1;
        at++;
    }
    return 0;
}

static uint32_t number_at(const uint8_t *at, int bytes, int is_little) {
    uint32_t number = 0;
    for (int n = 0; n < bytes; n++)
        number = number << 8 | at[is_little ? bytes - 1 - n : n];
    return number;
}

/* jpeg.py, _VALUE_BYTES: says whether the value of an entry is all there. */
static int has_value(const uint8_t *entry, size_t left, int is_little) {
    static const uint8_t bytes_of[] = {0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4, 0, 0, 8};
    uint32_t kind = number_at(entry + 2, 2, is_little);
    uint64_t size = kind < sizeof(bytes_of) ? (uint64_t)bytes_of[kind] * number_at(entry + 4, 4, is_little) : 0;
    return size <= 4 || number_at(entry + 8, 4, is_little) + size <= left;
}

/* jpeg.py, _is_upright: EXIF whose first directory has the orientation once, as a short of 1 */
static int is_upright(const uint8_t *segment, size_t size) {
    if (size < 16 || !begins_with(segment, size, "Exif\0", 6))
        return 0;
    const uint8_t *tiff = segment + 6;
    size_t left = size - 6;
    int is_little = begins_with(tiff, left, "II*", 4), found = 0;
    if (!is_little && !begins_with(tiff, left, "MM\0*", 4))
        return 0;
    size_t first = number_at(tiff + 4, 4, is_little);
    if (first > left - 2)
        return 0;
    size_t count = number_at(tiff + first, 2, is_little);
    if (count * 12 > left - 2 - first)
        return 0;
    const uint8_t *entry = tiff + first + 2;
    for (size_t n = 0; n < count; n++, entry += 12) {
        if (!has_value(entry, left, is_little))
            return 0;
        if (number_at(entry, 2, is_little) == 0x0112) {
            if (found++ || number_at(entry + 2, 2, is_little) != 3 || number_at(entry + 4, 4, is_little) != 1 ||
                number_at(entry + 8, 2, is_little) != 1)
                return 0;
        }
    }
    return found;
}

/* jpeg.py: EXIF tag 0x0112 in both byte orders, before a type below 256, and XMP's name for it */
static int has_orientation(const uint8_t *segment, size_t size) {
    return holds(segment, size, "\x01\x12\x00", 3) || holds(segment, size, "\x12\x01", 2) || holds(segment, size, "rientation", 10);
}

/* What APP1 segments say: whether the first EXIF is upright, and whether anything but EXIF names an orientation. */
typedef struct {
    int has_exif, is_upright, has_other;
} Orientations;

/* Returns 0 where EXIF may say anything but upright. */
static int orientation_read(const uint8_t *segment, size_t size, Orientations *said) {
    int is_exif = begins_with(segment, size, "Exif\0", 6), is_named = has_orientation(segment, size);
    if (is_named && is_exif && !is_upright(segment, size))
        return 0;
    if (is_exif && !said->has_exif)
        said->is_upright = is_named;
    said->has_exif |= is_exif;
    said->has_other |= is_named && !is_exif;
    return 1;
}

/* ISO/IEC 10918-1, table B.1: start-of-frame markers */
static int is_frame(int marker) {
    return marker >= 0xc0 && marker <= 0xcf && marker != 0xc4 && marker != 0xc8 && marker != 0xcc;
}

static int frame_read(int marker, const uint8_t *segment, size_t size, Head *head) {
    int is_lossless = (marker & 3) == 3;
    if (head->width || is_lossless || size < 6 || segment[0] != 8 || (segment[5] != 1 && segment[5] != 3))
        return 0;
    head->height = segment[1] << 8 | segment[2];
    head->width = segment[3] << 8 | segment[4];
    return head->width > 0 && head->height > 0;
}

int head_read(const uint8_t *data, size_t size, Head *head) {
    static const char icc[] = "ICC_PROFILE";
    Orientations said = {0};
    memset(head, 0, sizeof(*head));
    if (!begins_with(data, size, "\xff\xd8", 2))
        return 0;
    size_t at = 2;
    while (size - at >= 4 && data[at] == 0xff) {
        int marker = data[at + 1];
        size_t length = (size_t)data[at + 2] << 8 | data[at + 3];
        /* below 0xc0 and 0xd0 to 0xd9: none that may stand here */
        if (marker < 0xc0 || (marker >= 0xd0 && marker <= 0xd9) || marker == 0xff || length < 2 || length + 2 > size - at)
            return 0;
        const uint8_t *segment = data + at + 4;
        if (marker == 0xda) {
            head->head_bytes = at;
            return head->width > 0 && (!said.has_other || said.is_upright);
        }
        if (is_frame(marker) && !frame_read(marker, segment, length - 2, head))
            return 0;
        if (marker == 0xe1 && !orientation_read(segment, length - 2, &said))
            return 0;
        if (marker == 0xe2 && begins_with(segment, length - 2, icc, sizeof(icc)))
            head->has_profile = 1;
        at += 2 + length;
    }
    return 0;
}
