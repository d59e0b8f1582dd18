/* Durations summed up by name: count, total, mean, median, extremes and deviation of each group.
 *
 * Floats are those of Polars: the sum of a group is added up in order, its deviation by Welford's method, and an even
 * number of values has the middle between the two in its middle as its median.
 */
#include "arrow.h"

typedef struct {
    int64_t count, total, min, max;
    double sum, mean, squares;
} Spread;

static inline void spread_add(Spread *s, int64_t value)
{
    double x = (double)value;
    s->min = s->count ? min_i64(s->min, value) : value;
    s->max = s->count ? max_i64(s->max, value) : value;
    s->count++;
    s->total = wrap_add(s->total, value);
    s->sum += x;
    double off = x - s->mean, mean = s->mean + off / (double)s->count;
    s->squares += (x - mean) * off;
    s->mean = mean;
}

static void swap(int64_t *a, int64_t *b)
{
    int64_t kept = *a;
    *a = *b;
    *b = kept;
}

static void sift(int64_t *values, int64_t root, int64_t count)
{
    for (int64_t child; (child = 2 * root + 1) < count; root = child) {
        if (child + 1 < count && values[child + 1] > values[child])
            child++;
        if (values[root] >= values[child])
            return;
        swap(&values[root], &values[child]);
    }
}

static void heap_sort(int64_t *values, int64_t count)
{
    for (int64_t i = count / 2; i-- > 0;)
        sift(values, i, count);
    for (int64_t end = count; end-- > 1;) {
        swap(&values[0], &values[end]);
        sift(values, 0, end);
    }
}

/* Move the value that has place `k` in order there, none of those before it being greater. */
static void select_nth(int64_t *values, int64_t count, int64_t k)
{
    int64_t low = 0, high = count - 1;
    for (int rounds = 0; low < high; rounds++) {
        if (rounds == 100) { /* hardly ever: values that were made to be slow */
            heap_sort(values + low, high - low + 1);
            return;
        }
        int64_t a = values[low], b = values[low + (high - low) / 2], c = values[high];
        int64_t pivot = max_i64(min_i64(a, b), min_i64(max_i64(a, b), c));
        int64_t i = low, j = high;
        while (i <= j) {
            while (values[i] < pivot)
                i++;
            while (values[j] > pivot)
                j--;
            if (i <= j)
                swap(&values[i++], &values[j--]);
        }
        if (k <= j)
            high = j;
        else if (k >= i)
            low = i;
        else
            return;
    }
}

/* Give the median of some values, which are moved about. */
static double median(int64_t *values, int64_t count)
{
    int64_t upper = count / 2;
    select_nth(values, count, upper);
    if (count % 2)
        return (double)values[upper];
    int64_t lower = values[0];
    for (int64_t i = 1; i < upper; i++)
        lower = max_i64(lower, values[i]);
    double low = (double)lower, high = (double)values[upper];
    return lower == values[upper] ? low : 0.5 * (high - low) + low;
}

static inline int64_t code_at(const void *codes, int64_t width, int64_t i)
{
    return width == 1 ? ((const uint8_t *)codes)[i] : width == 2 ? ((const uint16_t *)codes)[i]
                                                                 : ((const uint32_t *)codes)[i];
}

/* Append the numbers of a group, whose durations are in `values`; returns 0 where memory is short. */
static int add_spread(const Spread *s, int64_t *values, Column *whole, Column *real)
{
    int64_t numbers[] = {s->count, s->total, s->min, s->max};
    for (int c = 0; c < 4; c++)
        if (!column_add_whole(&whole[c], numbers[c]))
            return 0;
    return column_add_real(&real[0], s->sum / (double)s->count) &&
           column_add_real(&real[1], median(values, s->count)) &&
           column_add_real(&real[2], s->count > 1 ? s->squares / (double)(s->count - 1) : 0.0);
}

/* Hand over columns; frees them all where that fails. Returns how many rows there are, or the failure so far. */
static int64_t export_all(Column *columns, int count, int64_t result, ArrowSchema *schemas, ArrowArray *arrays)
{
    if (result == GPUSIGHT_DONE)
        result = columns[0].length;
    for (int c = 0; result >= 0 && c < count; c++)
        if (!column_export(&columns[c], &schemas[c], &arrays[c])) {
            while (c--)
                arrays[c].release(&arrays[c]);
            result = GPUSIGHT_NO_MEMORY;
        }
    for (int c = 0; c < count; c++)
        column_free(&columns[c]);
    return result;
}

enum { GROUP_COLUMNS = 8, RANGE_COLUMNS = 11 };

/* Sum up the durations of each group.
 *
 * `codes` are unsigned numbers of `width` bytes below `groups`. Writes a row for each group that has any: its code,
 * count, total, least, greatest; mean, median, variance. Returns how many rows there are.
 */
GPUSIGHT_API int64_t gpusight_sum_groups(int64_t n, const void *codes, int64_t width, const int64_t *starts,
                                         const int64_t *ends, int64_t groups, ArrowSchema *schemas, ArrowArray *arrays)
{
    Column out[GROUP_COLUMNS] = {[5] = {.type = REAL}, [6] = {.type = REAL}, [7] = {.type = REAL}};
    Spread *sums = groups < 0 || groups > INT32_MAX ? NULL : calloc((size_t)groups + 1, sizeof *sums);
    int64_t *begins = allocate(groups, sizeof *begins), *values = allocate(n, sizeof *values);
    int64_t result = sums && begins && values ? GPUSIGHT_DONE : GPUSIGHT_NO_MEMORY;
    for (int64_t i = 0; result == GPUSIGHT_DONE && i < n; i++) {
        int64_t code = code_at(codes, width, i);
        if (code < groups)
            spread_add(&sums[code], wrap_sub(ends[i], starts[i]));
        else
            result = GPUSIGHT_BAD_INPUT;
    }
    for (int64_t g = 0, at = 0; result == GPUSIGHT_DONE && g < groups; at += sums[g++].count)
        begins[g] = at;
    for (int64_t i = 0; result == GPUSIGHT_DONE && i < n; i++)
        values[begins[code_at(codes, width, i)]++] = wrap_sub(ends[i], starts[i]);
    for (int64_t g = 0; result == GPUSIGHT_DONE && g < groups; g++)
        if (sums[g].count && (!column_add_whole(&out[0], g) ||
                              !add_spread(&sums[g], values + begins[g] - sums[g].count, &out[1], &out[5])))
            result = GPUSIGHT_NO_MEMORY;
    free(sums);
    free(begins);
    free(values);
    return export_all(out, GROUP_COLUMNS, result, schemas, arrays);
}

/* The kernels of one name in the ranges of one group. */
typedef struct {
    Spread times;
    int64_t code, last_range, ranges, fresh, begin;
    int rises; /* every range comes after the one before */
} RangeKernels;

typedef struct {
    int64_t *slot_of; /* of each kernel name, its place among `sums` in this group */
    RangeKernels *sums;
    int64_t used;
    int64_t *values, *ranges; /* of all pairs of a group, one kernel name after the other */
    int64_t capacity;
} GroupTable;

static int compare_numbers(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

/* Count the different numbers among some that do not rise, which are sorted. */
static int64_t count_different(int64_t *numbers, int64_t count)
{
    qsort(numbers, (size_t)count, sizeof *numbers, compare_numbers);
    int64_t different = count > 0;
    for (int64_t i = 1; i < count; i++)
        different += numbers[i] != numbers[i - 1];
    return different;
}

/* Make room for all pairs of a group, and for their ranges where those have to be counted. */
static int reserve_pairs(GroupTable *t, int64_t pairs, int with_ranges)
{
    free(t->ranges);
    t->ranges = with_ranges ? allocate(pairs, sizeof *t->ranges) : NULL;
    if (t->values == NULL || pairs > t->capacity) {
        free(t->values);
        t->capacity = pairs;
        t->values = allocate(pairs, sizeof *t->values);
    }
    return t->values != NULL && (t->ranges != NULL || !with_ranges);
}

/* Sum up the kernels in the ranges of a group by name. */
static int sum_group(GroupTable *t, int64_t spans, const int64_t *rows, const int64_t *first, const int64_t *after,
                     const int64_t *fresh, const int32_t *codes, const int64_t *times)
{
    t->used = 0;
    for (int64_t i = 0; i < spans; i++)
        for (int64_t k = first[i]; k < after[i]; k++) {
            int64_t slot = t->slot_of[codes[k]];
            if (slot >= t->used || t->sums[slot].code != codes[k]) {
                slot = t->slot_of[codes[k]] = t->used++;
                t->sums[slot] = (RangeKernels){.code = codes[k], .last_range = -1, .rises = 1};
            }
            RangeKernels *s = &t->sums[slot];
            spread_add(&s->times, times[k]);
            s->fresh += k >= fresh[i];
            if (s->last_range != rows[i]) {
                s->rises &= rows[i] > s->last_range;
                s->last_range = rows[i];
                s->ranges++;
            }
        }
    int64_t pairs = 0;
    int rise = 1;
    for (int64_t s = 0; s < t->used; s++) {
        t->sums[s].begin = pairs;
        pairs += t->sums[s].times.count;
        rise &= t->sums[s].rises;
    }
    if (!reserve_pairs(t, pairs, !rise))
        return 0;
    for (int64_t i = 0; i < spans; i++)
        for (int64_t k = first[i]; k < after[i]; k++) {
            int64_t at = t->sums[t->slot_of[codes[k]]].begin++;
            t->values[at] = times[k];
            if (t->ranges != NULL)
                t->ranges[at] = rows[i];
        }
    return 1;
}

static int write_group(GroupTable *t, int64_t group, Column *out)
{
    for (int64_t i = 0; i < t->used; i++) {
        RangeKernels *s = &t->sums[i];
        int64_t count = s->times.count, begin = s->begin - count;
        if (!s->rises) /* a range whose launches are in several runs comes back */
            s->ranges = count_different(t->ranges + begin, count);
        int64_t whole[] = {group, s->code, s->ranges, s->fresh};
        for (int c = 0; c < 4; c++)
            if (!column_add_whole(&out[c], whole[c]))
                return 0;
        if (!add_spread(&s->times, t->values + begin, &out[4], &out[8]))
            return 0;
    }
    return 1;
}

/* Sum up, for each group of ranges and each kernel name, the kernels in the ranges.
 *
 * A span is a range (`row`) and the kernels `first` to before `after` in it, in the order of launch; spans are sorted
 * by `group`. Kernels from `fresh` on are in no earlier span of the group. `codes` (below `names`) and `times` are of
 * the kernels, which count once for each span. Writes the group, the code of the name, how many ranges have such a
 * kernel, and how many of them there are; then what gpusight_sum_groups writes. Returns how many rows there are.
 */
GPUSIGHT_API int64_t gpusight_sum_range_kernels(int64_t spans, const int64_t *group, const int64_t *row,
                                                const int64_t *first, const int64_t *after, const int64_t *fresh,
                                                int64_t kernels, const int32_t *codes, const int64_t *times,
                                                int64_t names, ArrowSchema *schemas, ArrowArray *arrays)
{
    for (int64_t i = 0; i < kernels; i++)
        if (codes[i] < 0 || codes[i] >= names)
            return GPUSIGHT_BAD_INPUT;
    for (int64_t i = 0; i < spans; i++)
        if (first[i] < 0 || after[i] > kernels || row[i] < 0)
            return GPUSIGHT_BAD_INPUT;
    Column out[RANGE_COLUMNS] = {[8] = {.type = REAL}, [9] = {.type = REAL}, [10] = {.type = REAL}};
    GroupTable t = {.slot_of = names < 0 ? NULL : calloc((size_t)names + 1, sizeof *t.slot_of),
                    .sums = allocate(names, sizeof *t.sums)};
    int64_t result = t.slot_of && t.sums ? GPUSIGHT_DONE : GPUSIGHT_NO_MEMORY;
    for (int64_t i = 0, end; result == GPUSIGHT_DONE && i < spans; i = end) {
        for (end = i + 1; end < spans && group[end] == group[i]; end++)
            ;
        if (!sum_group(&t, end - i, row + i, first + i, after + i, fresh + i, codes, times) ||
            !write_group(&t, group[i], out))
            result = GPUSIGHT_NO_MEMORY;
    }
    free(t.slot_of);
    free(t.sums);
    free(t.values);
    free(t.ranges);
    return export_all(out, RANGE_COLUMNS, result, schemas, arrays);
}
