/* Rows of a SQLite table, decoded from its pages (https://www.sqlite.org/fileformat2.html).
 *
 * Only what a sound database looks like is decoded: each page used once, row ids in order, records that fill their
 * payload, values of the type that is asked for. For anything else a function says GPUSIGHT_BAD_INPUT, and SQLite
 * itself reads the table, with its own errors.
 */
#if !defined(_WIN32)
#define _POSIX_C_SOURCE 200809L /* pread */
#define _FILE_OFFSET_BITS 64
#endif
#include "arrow.h"

#if defined(_WIN32)
/* The file numbers of Python need not be those of this library's C runtime: there, SQLite reads. */
GPUSIGHT_API int64_t gpusight_sqlite_leaves(void) { return GPUSIGHT_BAD_INPUT; }
GPUSIGHT_API int64_t gpusight_sqlite_columns(void) { return GPUSIGHT_BAD_INPUT; }
GPUSIGHT_API int64_t gpusight_sqlite_rows(void) { return GPUSIGHT_BAD_INPUT; }
#else

#include <errno.h>
#include <unistd.h>

enum {
    INTERIOR = 5,
    LEAF = 13,
    MAX_DEPTH = 20,
    PAGES_AT_ONCE = 64,
    MAX_COLUMNS = 32767,
};
static const int64_t LOCK_BYTE = 1 << 30; /* the page with this byte is never used */

/* A database file: its pages are numbered from 1. */
typedef struct {
    int fd;
    int64_t pages, page_size, usable;
} Database;

static int is_database(int64_t pages, int64_t page_size, int64_t usable)
{
    return pages >= 1 && page_size >= 512 && page_size <= 65536 && usable >= 480 && usable <= page_size;
}

static int read_pages(const Database *db, int64_t first, int64_t count, uint8_t *buffer)
{
    size_t wanted = (size_t)(count * db->page_size), done = 0;
    while (done < wanted) {
        ssize_t got = pread(db->fd, buffer + done, wanted - done, (off_t)((first - 1) * db->page_size) + (off_t)done);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            return 0;
        done += (size_t)got;
    }
    return 1;
}

static int is_page(const Database *db, int64_t page)
{
    return page >= 2 && page <= db->pages && page != LOCK_BYTE / db->page_size + 1;
}

static int64_t big_endian(const uint8_t *bytes, int count)
{
    uint64_t value = count && bytes[0] & 0x80 ? UINT64_MAX : 0;
    for (int i = 0; i < count; i++)
        value = value << 8 | bytes[i];
    return (int64_t)value;
}

static int64_t number_of(const uint8_t *bytes, int count)
{
    int64_t value = 0;
    for (int i = 0; i < count; i++)
        value = value << 8 | bytes[i];
    return value;
}

/* Read a number of one to nine bytes; returns where the next begins, NULL if it is cut off. */
static inline const uint8_t *varint(const uint8_t *at, const uint8_t *end, uint64_t *value)
{
    if (at < end && at[0] < 0x80) {
        *value = at[0];
        return at + 1;
    }
    uint64_t read = 0;
    for (int i = 0; i < 8; i++) {
        if (at + i >= end)
            return NULL;
        read = read << 7 | (at[i] & 0x7f);
        if (at[i] < 0x80) {
            *value = read;
            return at + i + 1;
        }
    }
    if (at + 8 >= end)
        return NULL;
    *value = read << 8 | at[8];
    return at + 9;
}

typedef struct {
    const Database *db;
    uint8_t *seen, *buffers;
    int64_t capacity, count, *leaves, *last_keys, previous;
    int leaf_depth;
} Walk;

/* List the leaves below a page whose greatest row id is at most `last_key`. */
static int64_t walk(Walk *w, int64_t page, int depth, int64_t last_key)
{
    if (!is_page(w->db, page) || depth >= MAX_DEPTH || w->seen[page >> 3] & 1 << (page & 7))
        return GPUSIGHT_BAD_INPUT;
    w->seen[page >> 3] |= (uint8_t)(1 << (page & 7));
    if (depth == w->leaf_depth) { /* what it is shows when it is decoded */
        if (w->count >= w->capacity || (w->count && last_key <= w->previous))
            return GPUSIGHT_BAD_INPUT;
        w->leaves[w->count] = page;
        w->last_keys[w->count++] = w->previous = last_key;
        return GPUSIGHT_DONE;
    }
    uint8_t *content = w->buffers + depth * w->db->page_size;
    if (!read_pages(w->db, page, 1, content))
        return GPUSIGHT_BAD_INPUT;
    if (content[0] == LEAF && w->leaf_depth < 0) {
        w->leaf_depth = depth;
        w->seen[page >> 3] &= (uint8_t) ~(1 << (page & 7));
        return walk(w, page, depth, last_key);
    }
    int64_t cells = number_of(content + 3, 2);
    if (content[0] != INTERIOR || 12 + 2 * cells > w->db->usable)
        return GPUSIGHT_BAD_INPUT;
    for (int64_t i = 0; i < cells; i++) {
        int64_t at = number_of(content + 12 + 2 * i, 2);
        uint64_t key;
        if (at + 5 > w->db->usable || varint(content + at + 4, content + w->db->usable, &key) == NULL)
            return GPUSIGHT_BAD_INPUT;
        if ((int64_t)key >= last_key)
            return GPUSIGHT_BAD_INPUT;
        int64_t failed = walk(w, number_of(content + at, 4), depth + 1, (int64_t)key);
        if (failed)
            return failed;
    }
    return walk(w, number_of(content + 8, 4), depth + 1, last_key);
}

/* List the leaf pages of a table in the order of its rows, and the greatest row id that each may have.
 *
 * Returns how many there are. `leaves` and `last_keys` have room for `capacity`.
 */
GPUSIGHT_API int64_t gpusight_sqlite_leaves(int64_t fd, int64_t pages, int64_t page_size, int64_t usable, int64_t root,
                                            int64_t capacity, int64_t *leaves, int64_t *last_keys)
{
    if (!is_database(pages, page_size, usable))
        return GPUSIGHT_BAD_INPUT;
    Database db = {(int)fd, pages, page_size, usable};
    Walk w = {.db = &db, .capacity = capacity, .leaves = leaves, .last_keys = last_keys, .leaf_depth = -1};
    w.seen = calloc((size_t)(pages / 8 + 1), 1);
    w.buffers = allocate(MAX_DEPTH, (size_t)page_size);
    int64_t failed = GPUSIGHT_NO_MEMORY;
    if (w.seen != NULL && w.buffers != NULL)
        failed = walk(&w, root, 0, INT64_MAX);
    free(w.seen);
    free(w.buffers);
    return failed ? failed : w.count;
}

/* Which rows to keep: those whose wanted column `place` has one of some values, or null where that is asked for. */
typedef struct {
    int64_t place, count; /* the place is -1 where all rows are kept */
    const int64_t *values;
    int or_null;
} RowFilter;

typedef struct {
    Database db;
    int64_t columns, width; /* how many are wanted, and how many leading values of a record to look at */
    Column *wanted;
    int32_t *place;   /* of each leading value, its place among the wanted ones, or -1 */
    uint8_t *row_ids; /* of each wanted column, whether it is another name of the row id */
    uint8_t *record, *page; /* a payload that goes on in overflow pages, and one of these */
    int64_t record_capacity, overflow_used;
    int64_t last_row; /* where row ids have to count from 1 to here; else 0 */
    RowFilter only;
} Reader;

static const uint8_t SIZES[] = {0, 1, 2, 3, 4, 6, 8, 8, 0, 0, 0, 0};

/* Whether a row is kept, by its value of this type in the column that decides; -1 if that is no whole number. */
static int is_kept(const RowFilter *only, uint64_t type, const uint8_t *value)
{
    if (type == 0)
        return only->or_null;
    if (type == 7 || type > 9)
        return -1;
    int64_t whole = type >= 8 ? (int64_t)type - 8 : big_endian(value, SIZES[type]);
    for (int64_t i = 0; i < only->count; i++)
        if (only->values[i] == whole)
            return 1;
    return 0;
}

/* Append a value of a record; returns 0 if it is not of the column's type, -1 where memory is short. */
static int add_value(Column *column, uint64_t type, const uint8_t *value)
{
    int done;
    if (type == 0)
        done = column_finish_null(column);
    else if (column->type == BYTES) {
        if (type < 12)
            return 0;
        done = column_add_bytes(column, value, (int64_t)((type - 12) / 2));
    } else if (type == 7) {
        if (column->type != REAL)
            return 0;
        int64_t bits = big_endian(value, 8);
        double real;
        memcpy(&real, &bits, 8);
        done = real == real ? column_add_real(column, real) : column_finish_null(column);
    } else if (type <= 9) {
        int64_t whole = type >= 8 ? (int64_t)type - 8 : big_endian(value, SIZES[type]);
        done = column->type == REAL ? column_add_real(column, (double)whole) : column_add_whole(column, whole);
    } else if (column->type == REAL)
        done = column_finish_null(column); /* text is no number */
    else
        return 0;
    return done ? 1 : -1;
}

/* Where the values of a record begin; those that it leaves out at its end are null. */
typedef struct {
    uint64_t type;
    int64_t start;
} Value;

/* Find the wanted values; returns GPUSIGHT_DONE, a failure, or 1 if more of the payload is needed. */
static int64_t locate(const Reader *r, const uint8_t *record, int64_t have, int64_t payload, Value *values)
{
    uint64_t header, type;
    const uint8_t *at = varint(record, record + have, &header);
    if (at == NULL)
        return have < payload ? 1 : GPUSIGHT_BAD_INPUT;
    if (header > (uint64_t)payload || header < (uint64_t)(at - record))
        return GPUSIGHT_BAD_INPUT;
    if (header > (uint64_t)have)
        return 1;
    const uint8_t *end = record + header;
    int64_t start = (int64_t)header;
    for (int64_t i = 0; i < r->width; i++) {
        int32_t place = r->place[i];
        if (at == end) {
            if (place >= 0)
                values[place] = (Value){0, 0};
            continue;
        }
        at = varint(at, end, &type);
        if (at == NULL || type == 10 || type == 11)
            return GPUSIGHT_BAD_INPUT;
        uint64_t size = type < 12 ? SIZES[type] : (type - 12) / 2;
        if (size > (uint64_t)(payload - start))
            return GPUSIGHT_BAD_INPUT;
        if (place >= 0) {
            values[place] = (Value){type, start};
            if (start + (int64_t)size > have)
                return 1;
        }
        start += (int64_t)size;
    }
    return at == end && start != payload ? GPUSIGHT_BAD_INPUT : GPUSIGHT_DONE;
}

/* Put together a payload of which `local` bytes are on its page. */
static int64_t assemble(Reader *r, const uint8_t *local_part, int64_t local, int64_t payload)
{
    int64_t room = r->db.usable - 4;
    if (payload / room > r->db.pages)
        return GPUSIGHT_BAD_INPUT;
    if (payload > r->record_capacity) {
        uint8_t *larger = realloc(r->record, (size_t)payload);
        if (larger == NULL)
            return GPUSIGHT_NO_MEMORY;
        r->record = larger;
        r->record_capacity = payload;
    }
    memcpy(r->record, local_part, (size_t)local);
    int64_t next = number_of(local_part + local, 4);
    for (int64_t done = local; done < payload;) {
        int64_t part = min_i64(room, payload - done);
        if (!is_page(&r->db, next) || ++r->overflow_used > r->db.pages || !read_pages(&r->db, next, 1, r->page))
            return GPUSIGHT_BAD_INPUT;
        memcpy(r->record + done, r->page + 4, (size_t)part);
        next = number_of(r->page, 4);
        done += part;
    }
    return GPUSIGHT_DONE;
}

/* Decode the rows of a leaf. Row ids are greater than `*previous`, unless it has none yet, and at most `last_key`. */
static int64_t add_leaf(Reader *r, const uint8_t *page, int64_t *previous, int *any, int64_t last_key, Value *values)
{
    int64_t usable = r->db.usable, cells = number_of(page + 3, 2), taken = 8 + 2 * cells;
    if (page[0] != LEAF || taken > usable)
        return GPUSIGHT_BAD_INPUT;
    const uint8_t *end = page + usable;
    int64_t max_local = usable - 35, min_local = (usable - 12) * 32 / 255 - 23;
    for (int64_t i = 0; i < cells; i++) {
        const uint8_t *cell = page + number_of(page + 8 + 2 * i, 2), *at = cell;
        uint64_t payload, key;
        if (cell < page + 8 + 2 * cells || cell >= end)
            return GPUSIGHT_BAD_INPUT;
        if ((at = varint(at, end, &payload)) == NULL || (at = varint(at, end, &key)) == NULL || payload > INT32_MAX)
            return GPUSIGHT_BAD_INPUT;
        int64_t row_id = (int64_t)key, size = (int64_t)payload, local = size;
        if (size > max_local) {
            local = min_local + (size - min_local) % (usable - 4);
            if (local > max_local)
                local = min_local;
        }
        int64_t stored = local + (local < size ? 4 : 0);
        if (stored > end - at)
            return GPUSIGHT_BAD_INPUT;
        /* Cells that share bytes would make of a page many times its size. */
        taken += at - cell + stored;
        if (taken > usable || (*any && row_id <= *previous) || row_id > last_key)
            return GPUSIGHT_BAD_INPUT;
        if (r->last_row && (row_id != (*any ? *previous + 1 : 1) || row_id > r->last_row))
            return GPUSIGHT_BAD_INPUT;
        *previous = row_id;
        *any = 1;
        const uint8_t *record = at;
        int64_t found = locate(r, record, local, size, values);
        if (found > 0) {
            if ((found = assemble(r, at, local, size)) == GPUSIGHT_DONE) {
                record = r->record;
                found = locate(r, record, size, size, values);
            }
        }
        if (found)
            return found < 0 ? found : GPUSIGHT_BAD_INPUT;
        if (r->only.place >= 0) {
            int kept = is_kept(&r->only, values[r->only.place].type, record + values[r->only.place].start);
            if (kept < 0)
                return GPUSIGHT_BAD_INPUT;
            if (!kept)
                continue;
        }
        for (int64_t c = 0; c < r->columns; c++) {
            int added = r->row_ids[c] ? (column_add_whole(&r->wanted[c], row_id) ? 1 : -1)
                                      : add_value(&r->wanted[c], values[c].type, record + values[c].start);
            if (added < 1)
                return added ? GPUSIGHT_NO_MEMORY : GPUSIGHT_BAD_INPUT;
        }
    }
    return GPUSIGHT_DONE;
}

static int64_t add_leaves(Reader *r, const int64_t *leaves, const int64_t *last_keys, int64_t first, int64_t count,
                          uint8_t *buffer, Value *values)
{
    int any = first > 0;
    int64_t previous = first > 0 ? last_keys[first - 1] : 0;
    for (int64_t i = first; i < first + count;) {
        int64_t together = 1;
        while (together < PAGES_AT_ONCE && i + together < first + count &&
               leaves[i + together] == leaves[i] + together)
            together++;
        if (!is_page(&r->db, leaves[i]) || leaves[i] + together - 1 > r->db.pages ||
            !read_pages(&r->db, leaves[i], together, buffer))
            return GPUSIGHT_BAD_INPUT;
        for (int64_t k = 0; k < together; k++, i++) {
            int64_t failed = add_leaf(r, buffer + k * r->db.page_size, &previous, &any, last_keys[i], values);
            if (failed)
                return failed;
            if (r->last_row && last_keys[i] != INT64_MAX && previous != last_keys[i])
                return GPUSIGHT_BAD_INPUT;
            previous = last_keys[i];
            any = 1;
        }
    }
    return GPUSIGHT_DONE;
}

/* Begin columns for all rows of a table whose row ids count from 1; they are filled by gpusight_sqlite_rows.
 *
 * Returns how many rows those are, going by the last leaf: whether the ids count on shows while they are filled.
 */
GPUSIGHT_API int64_t gpusight_sqlite_columns(int64_t fd, int64_t pages, int64_t page_size, int64_t usable,
                                             const int64_t *leaves, int64_t count, int64_t columns,
                                             const int64_t *types, ArrowSchema *schemas, ArrowArray *arrays)
{
    if (!is_database(pages, page_size, usable) || count < 1)
        return GPUSIGHT_BAD_INPUT;
    Database db = {(int)fd, pages, page_size, usable};
    uint8_t *page = allocate(1, (size_t)page_size);
    if (page == NULL)
        return GPUSIGHT_NO_MEMORY;
    uint64_t rows = 0, payload;
    if (is_page(&db, leaves[count - 1]) && read_pages(&db, leaves[count - 1], 1, page)) {
        int64_t cells = number_of(page + 3, 2);
        if (page[0] == LEAF && cells && 8 + 2 * cells <= usable) {
            const uint8_t *at = page + number_of(page + 6 + 2 * cells, 2), *end = page + usable;
            if (at < end && (at = varint(at, end, &payload)) != NULL && varint(at, end, &rows) == NULL)
                rows = 0;
        }
    }
    free(page);
    /* A row takes at least two bytes of the index of its page, its length and its id. */
    if (rows < 1 || rows > (uint64_t)count * (uint64_t)(usable / 4))
        return GPUSIGHT_BAD_INPUT;
    for (int64_t c = 0; c < columns; c++)
        if (types[c] != BYTES && !column_of_rows((ColumnType)types[c], (int64_t)rows, &schemas[c], &arrays[c])) {
            while (c--)
                if (types[c] != BYTES)
                    arrays[c].release(&arrays[c]);
            return GPUSIGHT_NO_MEMORY;
        }
    return (int64_t)rows;
}

/* Give each wanted column its place: a part of a column of the whole table, or a column of its own. */
static int begin_columns(Reader *r, const int64_t *ordinals, const int64_t *types, const ArrowArray *whole,
                         int64_t first_row, int64_t rows)
{
    r->wanted = calloc((size_t)r->columns, sizeof *r->wanted);
    r->row_ids = calloc((size_t)r->columns, 1);
    r->place = allocate(r->width, sizeof *r->place);
    r->page = allocate(1, (size_t)r->db.page_size);
    if (!r->wanted || !r->row_ids || !r->place || !r->page)
        return 0;
    memset(r->place, 0xff, (size_t)r->width * sizeof *r->place);
    for (int64_t c = 0; c < r->columns; c++) {
        r->wanted[c].type = (ColumnType)types[c];
        if (whole != NULL && types[c] != BYTES)
            r->wanted[c] = column_part((ColumnType)types[c], &whole[c], first_row, rows);
        r->row_ids[c] = ordinals[c] < 0;
        if (ordinals[c] >= 0)
            r->place[ordinals[c]] = (int32_t)c;
    }
    return 1;
}

/* Hand over what was decoded. */
static int64_t end_columns(Reader *r, ArrowArray *whole, int64_t first_row, ArrowSchema *schemas, ArrowArray *arrays,
                           int64_t *nulls)
{
    for (int64_t c = 0; c < r->columns; c++) {
        nulls[c] = r->wanted[c].nulls;
        if (r->wanted[c].is_part)
            column_end_part(&r->wanted[c], &whole[c], first_row);
        else if (!column_export(&r->wanted[c], &schemas[c], &arrays[c])) {
            while (c--)
                if (arrays[c].release != NULL)
                    arrays[c].release(&arrays[c]);
            return GPUSIGHT_NO_MEMORY;
        }
    }
    return GPUSIGHT_DONE;
}

/* Decode columns of the rows on `count` leaves from the `first` on.
 *
 * Of each column, `ordinals` has its place in the table, or -1 for the row id, and `types` its ColumnType. Writes an
 * Arrow array for each, to `nulls` how many of its values are null, and to `overflow` how many overflow pages were
 * read. Where there is a `whole` (from gpusight_sqlite_columns, of `total` rows), numbers are written there instead.
 * Else `only` may name one of the columns, by its place among them: then only rows count in which that has one of
 * `kept` values, or is null where `or_null` says so. It is -1 where all rows count. Returns the number of rows.
 */
GPUSIGHT_API int64_t gpusight_sqlite_rows(int64_t fd, int64_t pages, int64_t page_size, int64_t usable,
                                          const int64_t *leaves, const int64_t *last_keys, int64_t first, int64_t count,
                                          int64_t columns, const int64_t *ordinals, const int64_t *types,
                                          ArrowArray *whole, int64_t total, int64_t only, int64_t kept,
                                          const int64_t *kept_values, int64_t or_null, ArrowSchema *schemas,
                                          ArrowArray *arrays, int64_t *nulls, int64_t *overflow)
{
    if (!is_database(pages, page_size, usable) || columns < 1 || columns > MAX_COLUMNS || count < 1)
        return GPUSIGHT_BAD_INPUT;
    if (only < -1 || only >= columns || kept < 0 || (only >= 0 && (whole != NULL || ordinals[only] < 0)))
        return GPUSIGHT_BAD_INPUT;
    Reader r = {.db = {(int)fd, pages, page_size, usable},
                .columns = columns,
                .only = {.place = only, .count = kept, .values = kept_values, .or_null = or_null != 0}};
    for (int64_t c = 0; c < columns; c++) {
        if (ordinals[c] < -1 || ordinals[c] >= MAX_COLUMNS || types[c] < WHOLE || types[c] > BYTES ||
            (ordinals[c] < 0 && types[c] != WHOLE))
            return GPUSIGHT_BAD_INPUT;
        r.width = max_i64(r.width, ordinals[c] + 1);
    }
    int64_t first_row = 0, rows = 0;
    if (whole != NULL) {
        first_row = first > 0 ? last_keys[first - 1] : 0;
        rows = min_i64(last_keys[first + count - 1], total) - first_row;
        if (first_row < 0 || rows < 1)
            return GPUSIGHT_BAD_INPUT;
        r.last_row = first_row + rows;
    }
    Value *values = calloc((size_t)columns, sizeof *values);
    uint8_t *buffer = allocate(PAGES_AT_ONCE, (size_t)page_size);
    int64_t result = GPUSIGHT_NO_MEMORY;
    if (begin_columns(&r, ordinals, types, whole, first_row, rows) && values && buffer) {
        result = add_leaves(&r, leaves, last_keys, first, count, buffer, values);
        if (result == GPUSIGHT_DONE && whole != NULL && r.wanted[0].length != rows)
            result = GPUSIGHT_BAD_INPUT;
        if (result == GPUSIGHT_DONE) {
            int64_t length = r.wanted[0].length;
            result = end_columns(&r, whole, first_row, schemas, arrays, nulls);
            result = result == GPUSIGHT_DONE ? length : result;
        }
    }
    for (int64_t c = 0; r.wanted && c < columns; c++)
        column_free(&r.wanted[c]);
    free(r.wanted);
    free(r.row_ids);
    free(r.place);
    free(r.page);
    free(r.record);
    free(values);
    free(buffer);
    *overflow = r.overflow_used;
    return result;
}
#endif
