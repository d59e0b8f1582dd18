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
