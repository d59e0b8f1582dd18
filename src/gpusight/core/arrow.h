/* Columns that grow row by row and leave as arrays of Arrow's C data interface.
 *
 * https://arrow.apache.org/docs/format/CDataInterface.html. The one thing of the core that outlives a call: whoever
 * takes an array frees it, as that interface says.
 */
#ifndef GPUSIGHT_ARROW_H
#define GPUSIGHT_ARROW_H

#include "gpusight_core.h"

typedef struct ArrowSchema {
    const char *format, *name, *metadata;
    int64_t flags, n_children;
    struct ArrowSchema **children, *dictionary;
    void (*release)(struct ArrowSchema *);
    void *private_data;
} ArrowSchema;

typedef struct ArrowArray {
    int64_t length, null_count, offset, n_buffers, n_children;
    const void **buffers;
    struct ArrowArray **children, *dictionary;
    void (*release)(struct ArrowArray *);
    void *private_data;
} ArrowArray;

typedef enum { WHOLE = 0, REAL = 1, BYTES = 2 } ColumnType;

/* A column while it is filled; all zeros but for its type is an empty one. */
typedef struct {
    ColumnType type;
    int64_t length, capacity, nulls;
    int is_part; /* its values lie in a larger column: they neither move nor grow */
    void *values;     /* int64_t or double of each row; of bytes, where each ends, after a first 0 */
    uint8_t *valid;   /* a bit for each row; NULL as long as all have a value */
    uint8_t *content; /* of bytes: all of them, one row after the other */
    int64_t content_capacity;
} Column;

/* Make room for one more row; 0 where memory is short. */
int column_reserve(Column *column);
/* Mark the row that was reserved last as null or not, and count it; 0 where memory is short. */
int column_finish_null(Column *column);
int column_add_bytes(Column *column, const uint8_t *bytes, int64_t length);
void column_free(Column *column);
/* Begin a column of numbers that has all its rows already, none of them null; 0 where memory is short. */
int column_of_rows(ColumnType type, int64_t rows, ArrowSchema *schema, ArrowArray *array);
/* Begin to fill `rows` rows of such a column from `first` on, and take over which of them are null. */
Column column_part(ColumnType type, const ArrowArray *array, int64_t first, int64_t rows);
void column_end_part(const Column *part, ArrowArray *array, int64_t first);
/* Hand a column over; it is empty afterwards. 0 where memory is short. */
int column_export(Column *column, ArrowSchema *schema, ArrowArray *array);

static inline void column_mark(Column *column, int valid)
{
    if (column->valid != NULL && valid)
        column->valid[column->length >> 3] |= (uint8_t)(1u << (column->length & 7));
    column->length++;
}

static inline int column_add_whole(Column *column, int64_t value)
{
    if (column->length == column->capacity && !column_reserve(column))
        return 0;
    ((int64_t *)column->values)[column->length] = value;
    column_mark(column, 1);
    return 1;
}

static inline int column_add_real(Column *column, double value)
{
    if (column->length == column->capacity && !column_reserve(column))
        return 0;
    ((double *)column->values)[column->length] = value;
    column_mark(column, 1);
    return 1;
}

#endif
