/* Columns that grow row by row and leave as arrays of Arrow's C data interface. */
#include "arrow.h"

enum { FIRST_ROWS = 4096, FIRST_BYTES = 65536 };

static void *resized(void *buffer, int64_t bytes)
{
    return (uint64_t)bytes > SIZE_MAX ? NULL : realloc(buffer, (size_t)bytes);
}

int column_reserve(Column *column)
{
    if (column->length < column->capacity)
        return 1;
    if (column->capacity > INT64_MAX / 64)
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
        column->valid = calloc((size_t)(column->capacity / 8), 1);
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

int column_export(Column *column, ArrowSchema *schema, ArrowArray *array)
{
    static const char *const FORMATS[] = {"l", "g", "Z"};
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
    *schema = (ArrowSchema){
        .format = FORMATS[column->type], .name = "", .flags = 2 /* may be null */, .release = release_schema};
    *array = (ArrowArray){.length = column->length,
                          .null_count = column->nulls,
                          .n_buffers = column->type == BYTES ? 3 : 2,
                          .buffers = buffers,
                          .release = release_array};
    *column = (Column){.type = column->type};
    return 1;
}
