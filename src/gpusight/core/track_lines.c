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

/* What is open in a group, the last begun first: a chain through nodes that are used again. */
typedef struct {
    int64_t end, before;
} OpenEvent;

typedef struct {
    int64_t top, depth, start, end; /* of the event that came last */
} OpenGroup;

/* Write for each of `n` events the line of its group that it is drawn on, as gpusight_nested_lines does.
 *
 * Events are sorted by start, those of all `groups` together; `codes` are their groups. Writes how many lines each group
 * has, and its first event, or -1. Returns GPUSIGHT_BAD_INPUT where events of a group cross, or the longer of two that
 * begin together comes second.
 */
GPUSIGHT_API int64_t gpusight_group_lines(int64_t n, const int64_t *starts, const int64_t *ends, const int64_t *codes,
                                          int64_t groups, int32_t *lines, int64_t *counts, int64_t *firsts)
{
    OpenGroup *open = allocate(groups, sizeof *open);
    OpenEvent *nodes = NULL;
    int64_t capacity = 0, used = 0, unused = -1, result = open == NULL ? GPUSIGHT_NO_MEMORY : GPUSIGHT_DONE;
    for (int64_t g = 0; result == GPUSIGHT_DONE && g < groups; g++) {
        open[g] = (OpenGroup){.top = -1};
        counts[g] = 0;
        firsts[g] = -1;
    }
    for (int64_t i = 0; result == GPUSIGHT_DONE && i < n; i++) {
        if (codes[i] < 0 || codes[i] >= groups || ends[i] < starts[i] || (i > 0 && starts[i] < starts[i - 1])) {
            result = GPUSIGHT_BAD_INPUT;
            break;
        }
        OpenGroup *group = &open[codes[i]];
        while (group->top >= 0 && nodes[group->top].end <= starts[i]) {
            int64_t ended = group->top;
            group->top = nodes[ended].before;
            nodes[ended].before = unused;
            unused = ended;
            group->depth--;
        }
        int crosses = group->top >= 0 && ends[i] > nodes[group->top].end;
        int is_outer = firsts[codes[i]] >= 0 && starts[i] == group->start && ends[i] > group->end;
        if (crosses || is_outer || group->depth > INT32_MAX - 1) {
            result = GPUSIGHT_BAD_INPUT;
            break;
        }
        if (firsts[codes[i]] < 0)
            firsts[codes[i]] = i;
        group->start = starts[i];
        group->end = ends[i];
        lines[i] = (int32_t)group->depth;
        counts[codes[i]] = max_i64(counts[codes[i]], group->depth + 1);
        if (ends[i] == starts[i])
            continue;
        int64_t node = unused;
        if (node >= 0) {
            unused = nodes[node].before;
        } else {
            if (used == capacity) {
                int64_t larger = capacity ? 2 * capacity : 1024;
                OpenEvent *moved = (uint64_t)larger > SIZE_MAX / sizeof *nodes
                                       ? NULL
                                       : realloc(nodes, (size_t)larger * sizeof *nodes);
                if (moved == NULL) {
                    result = GPUSIGHT_NO_MEMORY;
                    break;
                }
                nodes = moved;
                capacity = larger;
            }
            node = used++;
        }
        nodes[node] = (OpenEvent){ends[i], group->top};
        group->top = node;
        group->depth++;
    }
    free(open);
    free(nodes);
    return result;
}

/* Put events in the order of their lines, those of a line in the order in which they come, and sum them up.
 *
 * An event stands on the line `lines` after the first of its group, `firsts[codes]`; there are `all` lines. Writes the
 * positions of the events, and of each line how many there are, their time, and start and end of the first and last.
 */
GPUSIGHT_API int64_t gpusight_line_events(int64_t n, const int64_t *starts, const int64_t *ends, const int64_t *codes,
                                          const int32_t *lines, int64_t groups, const int64_t *firsts, int64_t all,
                                          uint32_t *events, int64_t *counts, int64_t *busy_ns, int64_t *first_ns,
                                          int64_t *last_ns)
{
    int64_t *next = n > UINT32_MAX ? NULL : allocate(all, sizeof *next);
    if (next == NULL)
        return n > UINT32_MAX ? GPUSIGHT_BAD_INPUT : GPUSIGHT_NO_MEMORY;
    for (int64_t line = 0; line < all; line++)
        counts[line] = busy_ns[line] = first_ns[line] = last_ns[line] = 0;
    int64_t result = GPUSIGHT_DONE;
    for (int64_t i = 0; result == GPUSIGHT_DONE && i < n; i++) {
        int is_group = codes[i] >= 0 && codes[i] < groups && lines[i] >= 0;
        int64_t line = is_group ? wrap_add(firsts[codes[i]], lines[i]) : -1;
        if (line < 0 || line >= all) {
            result = GPUSIGHT_BAD_INPUT;
            break;
        }
        if (counts[line]++ == 0)
            first_ns[line] = starts[i];
        last_ns[line] = ends[i];
        busy_ns[line] = wrap_add(busy_ns[line], wrap_sub(ends[i], starts[i]));
    }
    for (int64_t line = 0, at = 0; result == GPUSIGHT_DONE && line < all; at += counts[line++])
        next[line] = at;
    for (int64_t i = 0; result == GPUSIGHT_DONE && i < n; i++)
        events[next[firsts[codes[i]] + lines[i]]++] = (uint32_t)i;
    free(next);
    return result;
}
