/* Nested intervals: which one encloses which. */
#include "gpusight_core.h"

/* Find for each of `n` intervals the last one before it, of the same thread, that ends no sooner and so encloses it.
 *
 * Intervals are sorted by thread, then start; outer ones first where starts are equal. Writes positions to `outer`,
 * -1 for none. An instantaneous interval is not inside one that ends at that instant. Stands in for
 * `NestedIntervals.outer`.
 */
GPUSIGHT_API void gpusight_enclosing(int64_t n, const int64_t *starts, const int64_t *ends, const int64_t *threads,
                                     int64_t *outer)
{
    /* The chain of enclosing intervals is a stack; what ends before this one encloses none that comes later either. */
    for (int64_t i = 0; i < n; i++) {
        int64_t reach = max_i64(ends[i], wrap_add(starts[i], 1));
        int64_t above = i > 0 && threads[i] == threads[i - 1] ? i - 1 : -1;
        while (above >= 0 && ends[above] < reach)
            above = outer[above];
        outer[i] = above;
    }
}

/* Mark which of `n` calls, in order of start, lie in no earlier call of their thread, and write for each the last such
 * call of its thread up to itself.
 *
 * Threads are numbered below `threads`. Stands in for `_outer_calls` of analysis/gpu_schedule.py.
 */
GPUSIGHT_API int gpusight_outer_calls(int64_t n, const int64_t *starts, const int64_t *ends, const int64_t *thread,
                                      int64_t threads, uint8_t *is_outer, int64_t *around)
{
    int64_t *ended = allocate(threads, sizeof *ended), *last = allocate(threads, sizeof *last);
    int result = ended && last ? GPUSIGHT_DONE : GPUSIGHT_NO_MEMORY;
    for (int64_t i = 0; i < threads && result == GPUSIGHT_DONE; i++)
        ended[i] = INT64_MIN, last[i] = -1;
    for (int64_t i = 0; i < n && result == GPUSIGHT_DONE; i++) {
        const int64_t of = thread[i];
        if (of < 0 || of >= threads) {
            result = GPUSIGHT_BAD_INPUT;
            break;
        }
        is_outer[i] = starts[i] >= ended[of];
        if (is_outer[i])
            last[of] = i;
        around[i] = last[of];
        ended[of] = max_i64(ended[of], ends[i]);
    }
    free(ended);
    free(last);
    return result;
}
