/* Sorted spans: uniting them, and finding times among them. */
#include "gpusight_core.h"

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
