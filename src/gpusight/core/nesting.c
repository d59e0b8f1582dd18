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

enum { MAX_STEPS = 32 }; /* outwards; real stacks are rarely deeper */

/* Find for each of `m` times the innermost of `n` intervals that is open then on a thread.
 *
 * Intervals are as for `gpusight_enclosing`, whose result is `outer`; those of thread t lie from `first[t]` up to
 * `first[t + 1]`. `codes` number the threads of the times, below 0 for others. Writes positions to `places`, -1 for
 * none; where more than MAX_STEPS others lie in between, the place that was reached, and 0 to `is_found`. Stands in
 * for `NestedIntervals.innermost`.
 */
GPUSIGHT_API int gpusight_innermost(int64_t n, const int64_t *starts, const int64_t *ends, const int64_t *outer,
                                    int64_t threads, const int64_t *first, int64_t m, const int64_t *codes,
                                    const int64_t *times, int64_t *places, uint8_t *is_found)
{
    for (int64_t t = 0; t <= threads; t++)
        if (first[t] < (t ? first[t - 1] : 0) || first[t] > n)
            return GPUSIGHT_BAD_INPUT;
    int64_t near = 0;
    for (int64_t i = 0; i < m; i++) {
        int64_t place = -1;
        if (codes[i] >= 0 && codes[i] < threads) {
            const int64_t low = first[codes[i]], count = first[codes[i] + 1] - low;
            const int64_t hint = min_i64(max_i64(near - low, 0), count);
            near = low + seek(count, starts + low, times[i], 1, hint);
            place = near > low ? near - 1 : -1;
        }
        for (int step = 0; step < MAX_STEPS && place >= 0 && ends[place] <= times[i]; step++) {
            if (outer[place] < -1 || outer[place] >= place)
                return GPUSIGHT_BAD_INPUT;
            place = outer[place];
        }
        places[i] = place;
        is_found[i] = place < 0 || ends[place] > times[i];
    }
    return GPUSIGHT_DONE;
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
