/* Headers are sound, or nearly so: a file that is refused at once tests no decoder. Scans are coded with the file's own tables,
 * so that codes of every length, values of every size and restart intervals occur, which changed bytes would seldom reach. */

#include "jpeg_cases.h"

#include <string.h>

/* Of 8 bits a sample there are 12 sizes. */
#define DC_SYMBOLS 12
#define MOST_SYMBOLS 256
#define MOST_TRIES 300

uint32_t below(Random *random, uint32_t count) {
    random->state ^= random->state >> 12;
    random->state ^= random->state << 25;
    random->state ^= random->state >> 27;
    return (uint32_t)((random->state * 0x2545f4914f6cdd1dull) >> 32) % count;
}

static int symbols_of(const CodeTable *table) {
    int count = 0;
    for (int length = 1; length <= 16; length++)
        count += table->bits[length];
    return count;
}

static int tables_parse(const uint8_t *at, const uint8_t *end, Head *head) {
    while (end - at >= 17) {
        CodeTable *table = &head->tables[at[0] >> 4 & 1][at[0] & 3];
        memcpy(table->bits + 1, at + 1, 16);
        int count = symbols_of(table);
        if (count > MOST_SYMBOLS || end - at < 17 + count)
            return 0;
        memcpy(table->values, at + 17, (size_t)count);
        table->has = 1;
        at += 17 + count;
    }
    return at == end;
}

static int frame_parse(int marker, const uint8_t *at, size_t size, Head *head) {
    if (size < 6 || (at[5] != 1 && at[5] != 3) || size < 6 + 3 * (size_t)at[5])
        return 0;
    head->marker = marker;
    head->height = at[1] << 8 | at[2];
    head->width = at[3] << 8 | at[4];
    head->components = at[5];
    for (int n = 0; n < head->components; n++) {
        head->across[n] = at[7 + 3 * n] >> 4;
        head->down[n] = at[7 + 3 * n] & 15;
        head->quantization[n] = at[8 + 3 * n] & 3;
    }
    return 1;
}

static int scan_parse(const uint8_t *at, size_t size, Head *head) {
    if (!head->components || size < 4 + 2 * (size_t)head->components || at[0] != head->components)
        return 0;
    for (int n = 0; n < head->components; n++) {
        head->dc[n] = at[2 + 2 * n] >> 4 & 3;
        head->ac[n] = at[2 + 2 * n] & 3;
    }
    return 1;
}

size_t head_parse(const uint8_t *jpeg, size_t size, Head *head) {
    memset(head, 0, sizeof(*head));
    for (size_t at = 2; at + 4 <= size && jpeg[at] == 0xff;) {
        size_t length = (size_t)jpeg[at + 2] << 8 | jpeg[at + 3], stop = at + 2 + length;
        const uint8_t *segment = jpeg + at + 4;
        int marker = jpeg[at + 1], is_right = 1;
        if (length < 2 || stop > size)
            return 0;
        if (marker >= 0xc0 && marker <= 0xc2)
            is_right = frame_parse(marker, segment, length - 2, head);
        else if (marker == 0xc4)
            is_right = tables_parse(segment, jpeg + stop, head);
        else if (marker == 0xdd && length == 4)
            head->restart_interval = segment[0] << 8 | segment[1];
        else if (marker == 0xda)
            return scan_parse(segment, length - 2, head) ? stop : 0;
        if (!is_right)
            return 0;
        at = stop;
    }
    return 0;
}

/* Some code of each length stays free, as no code may be all ones. DC symbols above 15 are refused by libjpeg. */
static void table_make(Random *random, CodeTable *table, int is_dc) {
    static const uint8_t most[] = {1, 2, 6, 12, 40, 162, 255};
    uint32_t left = is_dc ? 1 + below(random, DC_SYMBOLS + 4) : most[below(random, sizeof(most))], free_codes = 1;
    uint32_t longest = 1 + below(random, 16);
    memset(table, 0, sizeof(*table));
    table->has = 1;
    int index = 0;
    for (uint32_t length = 1; length <= 16; length++) {
        free_codes *= 2;
        uint32_t room = free_codes - 1 < left ? free_codes - 1 : left, count = room ? below(random, room + 1) : 0;
        count = length < longest && below(random, 3) ? count / 2 : count;
        table->bits[length] = (uint8_t)count;
        for (uint32_t n = 0; n < count; n++)
            table->values[index++] = (uint8_t)below(random, is_dc ? 16 : 256);
        free_codes -= count;
        left -= count;
    }
    if (!index) {
        table->bits[1 + below(random, 16)] = 1;
        table->values[0] = (uint8_t)below(random, is_dc ? 12 : 256);
    }
    /* mostly there is a code that ends the block */
    if (!is_dc && below(random, 16))
        table->values[below(random, index ? (uint32_t)index : 1)] = 0;
}

static void sampling_make(Random *random, Head *head) {
    static const uint8_t factors[][2] = {{1, 1}, {2, 1}, {2, 2}, {1, 2}, {4, 1}, {4, 2}, {3, 1}};
    const uint8_t *first = factors[below(random, sizeof(factors) / 2)];
    for (int n = 0; n < 3; n++) {
        int is_full = n == 0 || !below(random, 12);
        head->across[n] = is_full ? first[0] : 1;
        head->down[n] = is_full ? first[1] : 1;
    }
}

/* Small ones more often: their scans are complete, and fast. */
static int side_make(Random *random) {
    return 1 + (int)below(random, 1 + below(random, MOST_SIDE_PIXELS));
}

static int interval_make(Random *random) {
    return below(random, 2) ? 0 : (int)(below(random, 8) ? 1 + below(random, 9) : below(random, 65536));
}

void head_make(Random *random, Head *head) {
    memset(head, 0, sizeof(*head));
    head->marker = below(random, 16) ? 0xc0 : 0xc1;
    head->width = side_make(random);
    head->height = side_make(random);
    head->components = below(random, 4) ? 3 : 1;
    head->restart_interval = interval_make(random);
    sampling_make(random, head);
    for (int kind = 0; kind < 2; kind++)
        for (int n = 0; n < 2; n++)
            table_make(random, &head->tables[kind][n], kind == 0);
    for (int n = 0; n < 3; n++) {
        head->dc[n] = (uint8_t)below(random, 2);
        head->ac[n] = (uint8_t)below(random, 2);
    }
}

/* Moves a code to another length, or gives it another value. */
static void table_change(Random *random, CodeTable *table, int is_dc) {
    int count = symbols_of(table);
    switch (count ? below(random, 4) : 0) {
    case 0:
        table_make(random, table, is_dc);
        return;
    case 1: {
        uint8_t *from = table->bits + 1 + below(random, 16), *to = table->bits + 1 + below(random, 16);
        if (*from && *to < 255) {
            --*from;
            ++*to;
        }
        return;
    }
    case 2:
        table->values[below(random, (uint32_t)count)] = (uint8_t)below(random, is_dc && below(random, 8) ? 16 : 256);
        return;
    default: {
        uint8_t *one = table->values + below(random, (uint32_t)count), *other = table->values + below(random, (uint32_t)count);
        uint8_t value = *one;
        *one = *other;
        *other = value;
    }
    }
}

void head_change(Random *random, Head *head) {
    int component = (int)below(random, 3), kind = (int)below(random, 2);
    switch (below(random, 8)) {
    case 0:
        head->width = side_make(random);
        return;
    case 1:
        head->height = side_make(random);
        return;
    case 2:
        sampling_make(random, head);
        return;
    case 3:
        head->across[component] = (uint8_t)(1 + below(random, 4));
        head->down[component] = (uint8_t)(1 + below(random, 4));
        return;
    case 4:
        head->restart_interval = interval_make(random);
        return;
    case 5:
        (kind ? head->ac : head->dc)[component] = (uint8_t)below(random, 4);
        return;
    default:
        table_change(random, &head->tables[kind][(kind ? head->ac : head->dc)[component]], kind == 0);
    }
}

typedef struct {
    uint8_t *at, *end;
    uint64_t bits;
    int count;
} Writer;

static void put_byte(Writer *to, int byte) {
    if (to->at < to->end)
        *to->at++ = (uint8_t)byte;
}

static void put_bytes(Writer *to, const uint8_t *bytes, int count) {
    for (int n = 0; n < count; n++)
        put_byte(to, bytes[n]);
}

static void put_segment(Writer *to, int marker, int length) {
    const uint8_t head[] = {0xff, (uint8_t)marker, (uint8_t)((length + 2) >> 8), (uint8_t)(length + 2)};
    put_bytes(to, head, 4);
}

size_t head_write(const Head *head, uint8_t *into, size_t room) {
    Writer to = {into, into + room, 0, 0};
    const int width = head->width, height = head->height, restart = head->restart_interval;
    const uint8_t frame[] = {8, (uint8_t)(height >> 8), (uint8_t)height, (uint8_t)(width >> 8), (uint8_t)width,
        (uint8_t)head->components};
    const uint8_t interval[] = {(uint8_t)(restart >> 8), (uint8_t)restart}, band[] = {0, 63, 0};
    put_bytes(&to, (const uint8_t *)"\xff\xd8", 2);
    for (int n = 0; n < 4; n++) {
        put_segment(&to, 0xdb, 65);
        put_byte(&to, n);
        for (int place = 0; place < 64; place++)
            put_byte(&to, 1 + place * n);
    }
    put_segment(&to, head->marker, 6 + 3 * head->components);
    put_bytes(&to, frame, 6);
    for (int n = 0; n < head->components; n++) {
        const uint8_t component[] = {(uint8_t)(n + 1), (uint8_t)(head->across[n] << 4 | head->down[n]), head->quantization[n]};
        put_bytes(&to, component, 3);
    }
    for (int n = 0; n < 8; n++) {
        const CodeTable *table = &head->tables[n / 4][n % 4];
        if (!table->has)
            continue;
        put_segment(&to, 0xc4, 17 + symbols_of(table));
        put_byte(&to, n / 4 << 4 | n % 4);
        put_bytes(&to, table->bits + 1, 16);
        put_bytes(&to, table->values, symbols_of(table));
    }
    if (restart) {
        put_segment(&to, 0xdd, 2);
        put_bytes(&to, interval, 2);
    }
    put_segment(&to, 0xda, 4 + 2 * head->components);
    put_byte(&to, head->components);
    for (int n = 0; n < head->components; n++) {
        put_byte(&to, n + 1);
        put_byte(&to, head->dc[n] << 4 | head->ac[n]);
    }
    put_bytes(&to, band, 3);
    return to.at < to.end ? (size_t)(to.at - into) : 0;
}

static void put_bits(Writer *to, uint32_t value, int count) {
    to->bits = to->bits << count | (value & ((1u << count) - 1));
    for (to->count += count; to->count >= 8; to->count -= 8) {
        int byte = to->bits >> (to->count - 8) & 0xff;
        put_byte(to, byte);
        if (byte == 0xff)
            put_byte(to, 0);
    }
}

/* Codes a symbol of the table, one of short codes more often, and a value of its size; returns the symbol. */
static int put_symbol(Random *random, Writer *to, const CodeTable *table, int is_dc) {
    int count = symbols_of(table), wanted = 0, index = 0;
    uint32_t code = 0;
    if (!count)
        return 0;
    wanted = (int)below(random, (uint32_t)count);
    wanted = below(random, 3) ? (int)below(random, (uint32_t)wanted + 1) : wanted;
    for (int length = 1; length <= 16; length++, code <<= 1)
        for (int n = 0; n < table->bits[length]; n++, code++, index++)
            if (index == wanted) {
                int symbol = table->values[index], size = is_dc && symbol > 15 ? 0 : symbol & 15;
                put_bits(to, code, length);
                put_bits(to, below(random, 65536), size);
                return symbol;
            }
    return 0;
}

/* is_sound: a symbol that would be one coefficient too many is taken back, and others are tried. */
static void block_make(Random *random, Writer *to, const Head *head, int component, int is_sound) {
    const CodeTable *table = &head->tables[1][head->ac[component]];
    int tries = is_sound ? MOST_TRIES : 0;
    put_symbol(random, to, &head->tables[0][head->dc[component]], 1);
    for (int place = 0; place < 63 && symbols_of(table);) {
        Writer before = *to;
        int symbol = put_symbol(random, to, table, 0), advance = (symbol >> 4) + 1;
        if ((symbol & 15) == 0 && advance != 16)
            return;
        if (place + advance > 63 && tries-- > 0)
            *to = before;
        else
            place += advance;
    }
}

static void restart_put(Random *random, Writer *to, int *number, int is_sound) {
    int left = (8 - to->count % 8) % 8;
    put_bits(to, is_sound || below(random, 2) ? 0xff : below(random, 256), left);
    to->bits = 0;
    to->count = 0;
    for (int n = is_sound || below(random, 4) ? 0 : (int)below(random, 5); n > 0; n--)
        put_byte(to, (int)below(random, 2) ? 0xff : (int)below(random, 256));
    if (number && (is_sound || below(random, 8))) {
        put_byte(to, 0xff);
        put_byte(to, 0xd0 + (is_sound || below(random, 8) ? *number : (int)below(random, 8)));
        *number = (*number + 1) & 7;
    }
}

size_t scan_make(Random *random, const Head *head, uint8_t *into, size_t room) {
    Writer to = {into, into + room, 0, 0};
    int across = 1, down = 1, number = 0, is_sound = below(random, 4) > 0;
    for (int n = 0; n < head->components; n++) {
        across = head->across[n] > across ? head->across[n] : across;
        down = head->down[n] > down ? head->down[n] : down;
    }
    if (head->components == 1)
        across = down = 1;
    int mcus = ((head->width + 8 * across - 1) / (8 * across)) * ((head->height + 8 * down - 1) / (8 * down));
    for (int mcu = 0; mcu < mcus && to.at < to.end; mcu++) {
        if (head->restart_interval && mcu && mcu % head->restart_interval == 0)
            restart_put(random, &to, &number, is_sound || below(random, 4));
        for (int n = 0; n < head->components; n++)
            for (int block = 0; block < (head->components == 1 ? 1 : head->across[n] * head->down[n]); block++)
                block_make(random, &to, head, n, is_sound || below(random, 16));
    }
    restart_put(random, &to, NULL, is_sound || below(random, 4));
    put_bytes(&to, (const uint8_t *)"\xff\xd9", 2);
    return (size_t)(to.at - into);
}

static size_t bytes_insert(
    Random *random, uint8_t *bytes, size_t size, size_t room, size_t at, const uint8_t *what, size_t count) {
    if (count > room - size)
        return size;
    memmove(bytes + at + count, bytes + at, size - at);
    for (size_t n = 0; n < count; n++)
        bytes[at + n] = what ? what[n] : (uint8_t)below(random, 256);
    return size + count;
}

size_t bytes_damage(Random *random, uint8_t *bytes, size_t size, size_t room) {
    static const uint8_t values[] = {0, 1, 0x7f, 0x80, 0xff, 0xd0, 0xd7, 0xd9, 0xc4, 0xfe};
    if (size < 2)
        return size;
    size_t at = below(random, (uint32_t)size), other = below(random, (uint32_t)size), count = 1 + below(random, 12);
    const uint8_t marker[] = {0xff, (uint8_t)(0xd0 + below(random, 10))}, stuffed[] = {0xff, 0};
    count = count > size - at ? size - at : count;
    switch (below(random, 9)) {
    case 0:
    case 1:
        bytes[at] ^= (uint8_t)(1 << below(random, 8));
        return size;
    case 2:
        bytes[at] = values[below(random, sizeof(values))];
        return size;
    case 3:
        memmove(bytes + at, bytes + at + count, size - at - count);
        return size - count;
    case 4:
        return bytes_insert(random, bytes, size, room, at, NULL, count);
    case 5:
        return bytes_insert(random, bytes, size, room, at, below(random, 3) ? marker : stuffed, 2);
    case 6:
        memmove(bytes + other, bytes + at, count > size - other ? size - other : count);
        return size;
    case 7:
        memset(bytes + at, below(random, 2) ? 0 : 0xff, count);
        return size;
    default:
        return below(random, 4) ? size - 1 : at + 1;
    }
}
