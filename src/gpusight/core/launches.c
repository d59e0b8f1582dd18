/* API calls and the GPU work that they launched: which belong together, their sums, ranges projected onto the work. */
#include "gpusight_core.h"

/* Find, for each of `m` processes and keys, the first of `n` rows with both; -1 for none, and for keys below 0.
 *
 * All rows have to be of one process, and their keys below `span`: else GPUSIGHT_BAD_INPUT, and the caller looks them
 * up in another way. Stands in for `KeyIndex`.
 */
GPUSIGHT_API int gpusight_find_keys(int64_t n, const int64_t *processes, const int64_t *keys, int64_t span, int64_t m,
                                    const int64_t *wanted_processes, const int64_t *wanted_keys, int32_t *rows)
{
    if (n > INT32_MAX || span < 0)
        return GPUSIGHT_BAD_INPUT;
    int32_t *row_of = allocate(span, sizeof *row_of);
    if (row_of == NULL)
        return GPUSIGHT_NO_MEMORY;
    memset(row_of, 0xff, (size_t)span * sizeof *row_of);
    int result = GPUSIGHT_DONE;
    for (int64_t i = n; i-- > 0;) { /* from the last: the first row stays */
        if (keys[i] >= span || processes[i] != processes[0]) {
            result = GPUSIGHT_BAD_INPUT;
            break;
        }
        if (keys[i] >= 0)
            row_of[keys[i]] = (int32_t)i;
    }
    for (int64_t i = 0; result == GPUSIGHT_DONE && i < m; i++) {
        int64_t key = wanted_keys[i];
        rows[i] = n && key >= 0 && key < span && wanted_processes[i] == processes[0] ? row_of[key] : -1;
    }
    free(row_of);
    return result;
}

/* Add GPU work to what `launches` calls launched: first start, last end, sum of durations, number.
 *
 * `launch` has the call of each piece of work, -1 for none. Stands in for `_work_of` of analysis/launch_index.py.
 */
GPUSIGHT_API int gpusight_sum_launches(int64_t n, const int32_t *launch, const int64_t *starts, const int64_t *ends,
                                       int64_t launches, int64_t *first, int64_t *last, int64_t *busy, int32_t *ops)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t at = launch[i];
        if (at < 0)
            continue;
        if (at >= launches)
            return GPUSIGHT_BAD_INPUT;
        first[at] = min_i64(first[at], starts[i]);
        last[at] = max_i64(last[at], ends[i]);
        busy[at] = wrap_add(busy[at], wrap_sub(ends[i], starts[i]));
        ops[at] = (int32_t)((uint32_t)ops[at] + 1u);
    }
    return GPUSIGHT_DONE;
}

enum { FANOUT = 32, MAX_LEVELS = 14 };

/* What launches amount to: of level 0 each one, of each higher level so many of the one below. */
typedef struct {
    int64_t first, last, ops, busy;
} Work;

typedef struct {
    Work *levels[MAX_LEVELS];
    int count;
} WorkTree;

static inline void add_work(Work *sum, const Work *work)
{
    sum->first = min_i64(sum->first, work->first);
    sum->last = max_i64(sum->last, work->last);
    sum->ops = wrap_add(sum->ops, work->ops);
    sum->busy = wrap_add(sum->busy, work->busy);
}

static const Work NO_WORK = {INT64_MAX, INT64_MIN, 0, 0};

static int build_tree(WorkTree *tree, int64_t n, const int64_t *first, const int64_t *last, const int64_t *busy,
                      const int32_t *ops)
{
    Work *below = allocate(n, sizeof *below);
    if (below == NULL)
        return 0;
    for (int64_t i = 0; i < n; i++)
        below[i] = (Work){first[i], last[i], ops[i], busy[i]};
    tree->levels[tree->count++] = below;
    while (n > FANOUT && tree->count < MAX_LEVELS) {
        int64_t above = (n + FANOUT - 1) / FANOUT;
        Work *level = allocate(above, sizeof *level);
        if (level == NULL)
            return 0;
        tree->levels[tree->count++] = level;
        for (int64_t i = 0; i < above; i++) {
            level[i] = NO_WORK;
            for (int64_t k = i * FANOUT; k < min_i64(n, (i + 1) * FANOUT); k++)
                add_work(&level[i], &below[k]);
        }
        below = level;
        n = above;
    }
    return 1;
}

/* Add up the work of launches from `low` to before `high`: the ends of a level one by one, the rest a level higher. */
static Work work_between(const WorkTree *tree, int64_t low, int64_t high)
{
    Work sum = NO_WORK;
    for (int level = 0; low < high; level++) {
        const Work *work = tree->levels[level];
        int is_top = level + 1 == tree->count;
        while (low < high && (is_top || low % FANOUT))
            add_work(&sum, &work[low++]);
        while (low < high && high % FANOUT)
            add_work(&sum, &work[--high]);
        low /= FANOUT;
        high /= FANOUT;
    }
    return sum;
}

/* Add to each range the work of the launches that lie in it.
 *
 * Launches and ranges are of one thread; starts and ends of launches rise. `sums` has five columns of `stride` rows:
 * launches, ops, busy time, first start and last end. Stands in for the loop of `project` of analysis/range_summary.py.
 */
GPUSIGHT_API int gpusight_project(int64_t launches, const int64_t *starts, const int64_t *ends, const int64_t *first,
                                  const int64_t *last, const int64_t *busy, const int32_t *ops, int64_t ranges,
                                  const int64_t *range_starts, const int64_t *range_ends, int64_t stride, int64_t *sums)
{
    WorkTree tree = {.count = 0};
    int result = build_tree(&tree, launches, first, last, busy, ops) ? GPUSIGHT_DONE : GPUSIGHT_NO_MEMORY;
    int64_t low = 0, high = 0;
    for (int64_t i = 0; result == GPUSIGHT_DONE && i < ranges; i++) {
        low = seek(launches, starts, range_starts[i], 0, low);
        high = seek(launches, ends, range_ends[i], 1, high);
        if (high <= low)
            continue;
        Work work = work_between(&tree, low, high);
        sums[i] += high - low;
        sums[stride + i] = wrap_add(sums[stride + i], work.ops);
        sums[2 * stride + i] = wrap_add(sums[2 * stride + i], work.busy);
        sums[3 * stride + i] = min_i64(sums[3 * stride + i], work.first);
        sums[4 * stride + i] = max_i64(sums[4 * stride + i], work.last);
    }
    for (int level = 0; level < tree.count; level++)
        free(tree.levels[level]);
    return result;
}
