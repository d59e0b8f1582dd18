/* Sorted spans: uniting them, and finding times among them. */
#include "gpusight_core.h"

int64_t seek(int64_t n, const int64_t *values, int64_t time, int right, int64_t hint)
{
    /* values[low - 1] comes before the time, values[high] does not; -1 and n stand for such values. */
    int64_t low, high, step = 1;
#define IS_BEFORE(at) (right ? values[at] <= time : values[at] < time)
    if (hint < n && IS_BEFORE(hint)) {
        low = hint + 1;
        while (step < n - low && IS_BEFORE(low + step - 1)) {
            low += step;
            step *= 2;
        }
        high = step < n - low ? low + step - 1 : n;
    } else if (hint > 0 && !IS_BEFORE(hint - 1)) {
        high = hint - 1;
        while (step < high && !IS_BEFORE(high - step)) {
            high -= step;
            step *= 2;
        }
        low = step < high ? high - step + 1 : 0;
    } else {
        return hint;
    }
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (IS_BEFORE(middle))
            low = middle + 1;
        else
            high = middle;
    }
#undef IS_BEFORE
    return low;
}

/* Write where each of `m` times would be among `n` rising values: before equal ones, or on the right after them.
 *
 * Stands in for `numpy.searchsorted`.
 */
GPUSIGHT_API void gpusight_search(int64_t n, const int64_t *values, int64_t m, const int64_t *times, int64_t right,
                                  int64_t *positions)
{
    int64_t at = 0;
    for (int64_t i = 0; i < m; i++)
        positions[i] = at = seek(n, values, times[i], right != 0, at);
}

/* Write for each of `m` times whether it lies in one of `n` sorted spans; on the left: the instant before it.
 *
 * Stands in for `_inside` of trace/intervals.py.
 */
GPUSIGHT_API void gpusight_inside(int64_t n, const int64_t *starts, const int64_t *ends, int64_t m,
                                  const int64_t *times, int64_t right, uint8_t *inside)
{
    int64_t at = 0;
    for (int64_t i = 0; i < m; i++) {
        at = seek(n, starts, times[i], right != 0, at);
        inside[i] = at > 0 && (right ? ends[at - 1] > times[i] : ends[at - 1] >= times[i]);
    }
}

/* Unite `n` spans into sorted ones that neither touch nor overlap; empty and reversed ones do not count.
 *
 * Returns how many it wrote, GPUSIGHT_BAD_INPUT where the others are not in order of start. Stands in for
 * `Intervals.from_arrays`.
 */
GPUSIGHT_API int64_t gpusight_unite(int64_t n, const int64_t *starts, const int64_t *ends, int64_t *united_starts,
                                    int64_t *united_ends)
{
    int64_t count = 0, last_start = INT64_MIN;
    for (int64_t i = 0; i < n; i++) {
        if (starts[i] >= ends[i])
            continue;
        if (starts[i] < last_start)
            return GPUSIGHT_BAD_INPUT;
        last_start = starts[i];
        if (count && starts[i] <= united_ends[count - 1]) {
            united_ends[count - 1] = max_i64(united_ends[count - 1], ends[i]);
        } else {
            united_starts[count] = starts[i];
            united_ends[count++] = ends[i];
        }
    }
    return count;
}
