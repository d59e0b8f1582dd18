/* Lines of a timeline's track, on which events are drawn. */
#include "gpusight_core.h"

/* Write for each of `n` events how many before it are open where it begins, if no two events cross.
 *
 * Events are sorted by start, the longer first where starts are equal, and end no sooner than they begin; instants are
 * never open. `open` has room for `n` times. Returns GPUSIGHT_BAD_INPUT where some cross or are out of order: lines are
 * fitted then. Stands in for `_lines` of track_events.py.
 */
GPUSIGHT_API int64_t gpusight_nested_lines(int64_t n, const int64_t *starts, const int64_t *ends, int64_t *open,
                                           int64_t *lines)
{
    int64_t depth = 0;
    for (int64_t i = 0; i < n; i++) {
        if (ends[i] < starts[i] || (i > 0 && starts[i] < starts[i - 1]))
            return GPUSIGHT_BAD_INPUT;
        while (depth > 0 && open[depth - 1] <= starts[i])
            depth--;
        if (depth > 0 && ends[i] > open[depth - 1])
            return GPUSIGHT_BAD_INPUT;
        lines[i] = depth;
        if (ends[i] > starts[i])
            open[depth++] = ends[i];
    }
    return GPUSIGHT_DONE;
}
