/* Reads headers of files and folders as Python's tarfile does (POSIX.1-2017, pax, "ustar Interchange Format"; GNU tar's long names).
 * Whatever is odd, and whatever a release of tarfile may read in its own way, ends the list: the caller has tarfile read that. */

#include "tar_headers.h"

#include <stdint.h>
#include <string.h>

#define BLOCK 512
/* Of records of pax, and of a long name; tarfile reads longer ones. */
#define MOST_RECORD_BYTES (64 << 10)
/* A length, a space, a name of one letter, "=", and the line's end. */
#define LEAST_RECORD_BYTES 5
#define NAME_BYTES 100
#define PREFIX_BYTES 155

enum { IS_FILE = '0', IS_FOLDER = '5', IS_LONG_NAME = 'L', HAS_RECORDS = 'x' };

typedef struct {
    const uint8_t *at;
    size_t size;
} Span;

typedef struct {
    const uint8_t *block;
    int64_t size;
    uint8_t type;
} Header;

typedef struct {
    char joined[PREFIX_BYTES + 1 + NAME_BYTES];
    Span name;
    int64_t size;
    int is_file;
    /* of data, where the member's bytes begin */
    size_t data_at;
} TarMember;

static size_t padded(size_t size) {
    return (size + BLOCK - 1) / BLOCK * BLOCK;
}

/* The bytes of a field before its first zero byte. */
static Span text_of(const uint8_t *field, size_t room) {
    const uint8_t *end = memchr(field, 0, room);
    return (Span){field, end ? (size_t)(end - field) : room};
}

static int begins_with(Span text, const char *mark) {
    size_t size = strlen(mark);
    return text.size >= size && !memcmp(text.at, mark, size);
}

static int holds(Span text, const char *mark) {
    for (; text.size; text.at++, text.size--)
        if (begins_with(text, mark))
            return 1;
    return 0;
}

/* Octal digits between spaces, or none, which is 0; of at most 12 bytes, so that the number fits. */
static int octal(const uint8_t *field, size_t room, int64_t *number) {
    Span text = text_of(field, room);
    while (text.size && *text.at == ' ')
        text.at++, text.size--;
    while (text.size && text.at[text.size - 1] == ' ')
        text.size--;
    *number = 0;
    for (size_t i = 0; i < text.size; i++) {
        if (text.at[i] < '0' || text.at[i] > '7')
            return 0;
        *number = *number * 8 + (text.at[i] - '0');
    }
    return 1;
}

/* tarfile refuses a header with a number that is none, also where a listing does not ask for it. */
static int are_numbers(const uint8_t *block) {
    /* mode, owner, group, time, major and minor number of a device */
    static const struct {
        uint16_t at, room;
    } fields[] = {{100, 8}, {108, 8}, {116, 8}, {136, 12}, {329, 8}, {337, 8}};
    int64_t unused;
    for (size_t i = 0; i < sizeof(fields) / sizeof(*fields); i++) {
        const uint8_t *field = block + fields[i].at;
        /* of base 256 */
        if (*field != 0x80 && *field != 0xff && !octal(field, fields[i].room, &unused))
            return 0;
    }
    return 1;
}

static int read_header(Span data, size_t at, Header *header) {
    int64_t checksum;
    int sum = 8 * ' ';
    if (at > data.size || data.size - at < BLOCK)
        return 0;
    const uint8_t *block = header->block = data.at + at;
    for (int i = 0; i < BLOCK; i++)
        sum += block[i];
    for (int i = 148; i < 156; i++)
        sum -= block[i];
    header->type = block[156];
    return octal(block + 148, 8, &checksum) && checksum == sum && octal(block + 124, 12, &header->size) &&
           (uint64_t)header->size < SIZE_MAX / 4 && are_numbers(block);
}

/* Reads one record of pax, "30 mtime=1700000000.123456\n". Returns its bytes, 0 where it is none or changes more than the name. */
static size_t read_record(Span left, Span *path) {
    size_t size = 0, at = 0;
    for (; at < left.size && at < 6 && left.at[at] >= '0' && left.at[at] <= '9'; at++)
        size = size * 10 + (size_t)(left.at[at] - '0');
    if (!at || size < LEAST_RECORD_BYTES || size > left.size || size < at + 4 || left.at[at] != ' ' || left.at[size - 1] != '\n')
        return 0;
    Span text = {left.at + at + 1, size - at - 2};
    const uint8_t *equals = memchr(text.at, '=', text.size);
    if (!equals || equals == text.at || begins_with(text, "size=") || begins_with(text, "GNU."))
        return 0;
    if (begins_with(text, "path="))
        *path = (Span){text.at + 5, text.size - 5};
    return size;
}

/* Reads records that say nothing of the member but its name, and what a listing does not ask for. */
static int read_records(Span block, size_t size, Span *path) {
    Span left = {block.at, size};
    /* it changes how names are read, and tarfile looks for it anywhere */
    if (holds(block, "hdrcharset"))
        return 0;
    while (left.size) {
        size_t record = read_record(left, path);
        if (!record)
            return 0;
        left.at += record;
        left.size -= record;
    }
    /* tarfile reads on in what fills the block */
    for (size_t i = size; i < block.size; i++)
        if (block.at[i])
            return 0;
    return 1;
}

/* Sets a name that stands in front of the header. */
static int set_long_name(Span text, int is_file, TarMember *member) {
    if (!is_file)
        while (text.size && text.at[text.size - 1] == '/')
            text.size--;
    member->name = text;
    return text.size && !memchr(text.at, 0, text.size) && text.at[text.size - 1] != '/';
}

/* Sets the name of a header: prefix, "/", name. */
static int set_name(const uint8_t *block, TarMember *member) {
    Span name = text_of(block, NAME_BYTES), prefix = text_of(block + 345, PREFIX_BYTES);
    while (!member->is_file && name.size && name.at[name.size - 1] == '/')
        name.size--;
    size_t before = prefix.size ? prefix.size + 1 : 0;
    memcpy(member->joined, prefix.at, prefix.size);
    if (before)
        member->joined[prefix.size] = '/';
    memcpy(member->joined + before, name.at, name.size);
    member->name = (Span){(const uint8_t *)member->joined, before + name.size};
    return name.size && name.at[name.size - 1] != '/';
}

/* Reads the member at a byte of data; returns 0 where it is not plain, or its headers are not all there. */
static int read_member(Span data, size_t at, TarMember *member) {
    Header header;
    Span long_name = {0};
    if (!read_header(data, at, &header))
        return 0;
    at += BLOCK;
    int is_gnu = header.type == IS_LONG_NAME;
    if (is_gnu || header.type == HAS_RECORDS) {
        if (header.size > MOST_RECORD_BYTES || padded((size_t)header.size) > data.size - at)
            return 0;
        Span block = {data.at + at, padded((size_t)header.size)};
        if (is_gnu)
            long_name = text_of(block.at, block.size);
        else if (!read_records(block, (size_t)header.size, &long_name))
            return 0;
        at += block.size;
        if (!read_header(data, at, &header))
            return 0;
        at += BLOCK;
        /* releases of tarfile strip slashes off the long name of a folder in different ways */
        if (is_gnu && header.type != IS_FILE)
            return 0;
    }
    if (header.type != IS_FILE && header.type != IS_FOLDER)
        return 0;
    member->is_file = header.type == IS_FILE;
    member->size = header.size;
    member->data_at = at;
    return is_gnu || long_name.at ? set_long_name(long_name, member->is_file, member) : set_name(header.block, member);
}

static PyObject *described(const TarMember *member, long long start) {
    PyObject *parts[] = {
        PyUnicode_DecodeUTF8((const char *)member->name.at, (Py_ssize_t)member->name.size, "surrogateescape"),
        PyLong_FromLongLong(start + (long long)member->data_at),
        PyLong_FromLongLong(member->size),
        PyBool_FromLong(member->is_file),
    };
    PyObject *found = PyTuple_New(4);
    for (int i = 0; i < 4; i++) {
        if (!parts[i])
            Py_CLEAR(found);
        else if (!found)
            Py_DECREF(parts[i]);
        else if (PyTuple_SetItem(found, i, parts[i]))
            Py_CLEAR(found);
    }
    return found;
}

const char tar_members_doc[] =
    "tar_members(data, start) -> tuple[list[tuple[str, int, int, bool]], int]\n\n"
    "Read the members of a tar whose headers are in data, up to the first that is anything but a plain file or folder, or is not\n"
    "all there. start: the byte of the tar at which data begins. Returns of each member its name, decoded as UTF-8 with surrogates,\n"
    "the byte where its data begin, their number, and whether it is a file; and the byte of the tar behind the last of them.";

PyObject *tar_members(PyObject *module, PyObject *args) {
    Py_buffer buffer;
    long long start;
    if (!PyArg_ParseTuple(args, "y*L", &buffer, &start))
        return NULL;
    if (start < 0 || start > INT64_MAX / 2) {
        PyBuffer_Release(&buffer);
        PyErr_SetString(PyExc_ValueError, "expected a byte of a tar");
        return NULL;
    }
    Span data = {buffer.buf, (size_t)buffer.len};
    TarMember member;
    size_t at = 0;
    PyObject *found = PyList_New(0);
    while (found && read_member(data, at, &member)) {
        PyObject *one = described(&member, start);
        if (!one || PyList_Append(found, one))
            Py_CLEAR(found);
        Py_XDECREF(one);
        at = member.data_at + (member.is_file ? padded((size_t)member.size) : 0);
    }
    PyBuffer_Release(&buffer);
    return found ? Py_BuildValue("(NL)", found, start + (long long)at) : NULL;
}
