/* Columns that grow row by row and leave as arrays of Arrow's C data interface. */
#if defined(__linux__)
#define _DEFAULT_SOURCE /* madvise */
#endif
#include "arrow.h"

#if defined(__linux__)
#include <sys/mman.h>
#endif

enum { FIRST_ROWS = 4096, FIRST_BYTES = 65536, HUGE_PAGE = 1 << 21 };

/* Allocate memory that will be filled: in large pages, whose first use costs a fraction, where the system has them. */
static void *large_buffer(int64_t bytes)
{
    if (bytes < 0 || (uint64_t)bytes > SIZE_MAX / 2)
        return NULL;
#if defined(__linux__) && defined(MADV_HUGEPAGE)
    size_t whole = (size_t)bytes / HUGE_PAGE * HUGE_PAGE;
    void *buffer;
    if (whole > 0) {
        if (posix_memalign(&buffer, HUGE_PAGE, (size_t)bytes) != 0)
            return NULL;
        madvise(buffer, whole, MADV_HUGEPAGE);
        return buffer;
    }
#endif
    return malloc((size_t)bytes + 1);
}

static void *resized(void *buffer, int64_t bytes)
{
    return (uint64_t)bytes > SIZE_MAX ? NULL : realloc(buffer, (size_t)bytes);
}

int column_reserve(Column *column)
{
    if (column->length < column->capacity)
        return 1;
    if (column->is_part || column->capacity > INT64_MAX / 64)
        return 0;
    int64_t capacity = column->capacity ? 2 * column->capacity : FIRST_ROWS;
    /* Of bytes, one more: the end before the first row. */
    int64_t *values = resized(column->values, 8 * (capacity + 1));
    if (values == NULL)
        return 0;
    if (column->capacity == 0)
        values[0] = 0;
    column->values = values;
    if (column->valid != NULL) {
        uint8_t *valid = resized(column->valid, capacity / 8);
        if (valid == NULL)
            return 0;
        memset(valid + column->capacity / 8, 0, (size_t)((capacity - column->capacity) / 8));
        column->valid = valid;
    }
    column->capacity = capacity;
    return 1;
}

int column_finish_null(Column *column)
{
    if (!column_reserve(column))
        return 0;
    if (column->valid == NULL) {
        column->valid = calloc((size_t)(column->capacity / 8 + 1), 1);
        if (column->valid == NULL)
            return 0;
        memset(column->valid, 0xff, (size_t)(column->length / 8));
        column->valid[column->length / 8] = (uint8_t)((1u << (column->length & 7)) - 1);
    }
    int64_t *values = column->values;
    if (column->type == BYTES)
        values[column->length + 1] = values[column->length];
    else
        values[column->length] = 0; /* the bits of 0.0 too */
    column->nulls++;
    column_mark(column, 0);
    return 1;
}

int column_add_bytes(Column *column, const uint8_t *bytes, int64_t length)
{
    if (!column_reserve(column))
        return 0;
    int64_t *ends = column->values, used = ends[column->length];
    if (length > column->content_capacity - used) {
        if (length > INT64_MAX / 4 || used > INT64_MAX / 4)
            return 0;
        int64_t capacity = max_i64(max_i64(2 * column->content_capacity, used + length), FIRST_BYTES);
        uint8_t *content = resized(column->content, capacity);
        if (content == NULL)
            return 0;
        column->content = content;
        column->content_capacity = capacity;
    }
    if (length)
        memcpy(column->content + used, bytes, (size_t)length);
    ends[column->length + 1] = used + length;
    column_mark(column, 1);
    return 1;
}

void column_free(Column *column)
{
    if (!column->is_part)
        free(column->values);
    free(column->valid);
    free(column->content);
    *column = (Column){.type = column->type};
}

static void release_schema(ArrowSchema *schema) { schema->release = NULL; }

static void release_array(ArrowArray *array)
{
    for (int64_t i = 0; i < array->n_buffers; i++)
        free((void *)array->buffers[i]);
    free(array->buffers);
    array->release = NULL;
}

static const char *const FORMATS[] = {"l", "g", "Z"};

static void describe(ColumnType type, ArrowSchema *schema)
{
    *schema = (ArrowSchema){.format = FORMATS[type], .name = "", .flags = 2 /* may be null */, .release = release_schema};
}

int column_of_rows(ColumnType type, int64_t rows, ArrowSchema *schema, ArrowArray *array)
{
    const void **buffers = calloc(3, sizeof *buffers);
    void *values = rows < 0 || rows > INT64_MAX / 64 ? NULL : large_buffer(8 * rows);
    uint8_t *valid = values == NULL ? NULL : malloc((size_t)(rows / 8 + 1));
    if (buffers == NULL || valid == NULL) {
        free(buffers);
        free(values);
        return 0;
    }
    memset(valid, 0xff, (size_t)(rows / 8 + 1));
    buffers[0] = valid;
    buffers[1] = values;
    describe(type, schema);
    *array = (ArrowArray){.length = rows, .n_buffers = 2, .buffers = buffers, .release = release_array};
    return 1;
}

Column column_part(ColumnType type, const ArrowArray *array, int64_t first, int64_t rows)
{
    return (Column){
        .type = type, .capacity = rows, .is_part = 1, .values = (uint8_t *)(uintptr_t)array->buffers[1] + 8 * first};
}

void column_end_part(const Column *part, ArrowArray *array, int64_t first)
{
    uint8_t *valid = (uint8_t *)(uintptr_t)array->buffers[0];
    for (int64_t i = 0; part->nulls && i < part->length; i++) {
        int64_t row = first + i;
        /* Two threads may fill the parts that meet in a byte. */
        if (!(part->valid[i >> 3] >> (i & 7) & 1))
            __atomic_fetch_and(&valid[row >> 3], (uint8_t) ~(1u << (row & 7)), __ATOMIC_RELAXED);
    }
}

int column_export(Column *column, ArrowSchema *schema, ArrowArray *array)
{
    const void **buffers = calloc(3, sizeof *buffers);
    if (buffers == NULL || !column_reserve(column)) {
        free(buffers);
        return 0;
    }
    if (column->type == BYTES && column->content == NULL && (column->content = malloc(1)) == NULL) {
        free(buffers);
        return 0;
    }
    buffers[0] = column->valid;
    buffers[1] = column->values;
    buffers[2] = column->content;
    describe(column->type, schema);
    *array = (ArrowArray){.length = column->length,
                          .null_count = column->nulls,
                          .n_buffers = column->type == BYTES ? 3 : 2,
                          .buffers = buffers,
                          .release = release_array};
    *column = (Column){.type = column->type};
    return 1;
}
