/* A JPEG's file, read in one version, and what its segments say before the first scan. */

#ifndef PIXPACK_JPEG_FILE_H
#define PIXPACK_JPEG_FILE_H

#include <stddef.h>
#include <stdint.h>

/* packer/sources/base.py, check_size: so many bytes are read whatever the limit of pixels is */
#define MOST_FILE_BYTES (64 << 20)

/* Memory that one file after the other is read into. */
typedef struct {
    uint8_t *bytes;
    size_t size, room;
    int64_t mtime_ns;
} FileBytes;

/* A part of a file, which has the size and time that it had when the part was found in it. */
typedef struct {
    long long offset, size, file_size, mtime_ns;
} FilePart;

/* Of a JPEG that says nothing unusual before its first scan: head_bytes stand before that. */
typedef struct {
    int width, height, has_profile;
    size_t head_bytes;
} Head;

/* Reads all of a regular file, or a part of one where that is not NULL. Returns 0 where anything is unusual: an error, no bytes or
 * too many, another file than the part was found in, a change while it was read or in the settled_ns before. */
int file_read(FileBytes *self, const char *path, const FilePart *part, int64_t settled_ns);

void file_free(FileBytes *self);

/* Returns 0 where the data is no JPEG of 8 bits and 1 or 3 components, may be turned by EXIF, or has bytes between its segments. */
int head_read(const uint8_t *data, size_t size, Head *head);

#endif
