/* The ledger: what host threads spent their time on, and what each span of a GPU counts for. */
#include "gpusight_core.h"

/* `HostTime`: moments by host thread, and the ns of each cause up to each moment. */
struct host_time {
    int64_t moments;
    const int64_t *time;
    int64_t threads; /* host threads that are known, rising, with the first and last moment of each */
    const int64_t *known, *first, *last;
    int64_t kinds; /* columns of `done`, each for one of the causes */
    const int64_t *kind_cause, *done;
    int64_t causes, unknown;
};

/* Check what indexes buffers. */
static int is_valid(const struct host_time *host)
{
    if (host->unknown < 0 || host->unknown >= host->causes)
        return 0;
    for (int64_t i = 0; i < host->kinds; i++)
        if (host->kind_cause[i] < 0 || host->kind_cause[i] >= host->causes)
            return 0;
    for (int64_t i = 0; i < host->threads; i++)
        if (host->first[i] < 0 || host->last[i] < host->first[i] || host->last[i] >= host->moments)
            return 0;
    return 1;
}

/* Find the number of a host thread, -1 for an unknown one. */
static int64_t thread_number(const struct host_time *host, int64_t thread)
{
    int64_t low = 0, high = host->threads;
    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        if (host->known[middle] < thread)
            low = middle + 1;
        else
            high = middle;
    }
    return low < host->threads && host->known[low] == thread ? low : -1;
}

/* Find the last moment of a thread up to a time that is not before its first one. `near` is where the search begins. */
static int64_t moment_at(const struct host_time *host, int64_t number, int64_t time, int64_t near)
{
    int64_t low = host->first[number], high = host->last[number] + 1; /* time[low] <= time < time[high] */
    if (near >= low && near < high && host->time[near] <= time) {
        /* Queries mostly rise: double the steps from the last place. */
        int64_t step = 1;
        low = near;
        while (step < high - low && host->time[low + step] <= time) {
            low += step;
            step *= 2;
        }
        high = min_i64(high, low + step);
    }
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (host->time[middle] <= time)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* Round towards zero as NumPy does, also what does not fit. */
static int64_t whole(double value)
{
    return value >= -9223372036854775808.0 && value < 9223372036854775808.0 ? (int64_t)value : INT64_MIN;
}

/* Add to `row` what a thread had spent by a time, `sign` times. Returns the moment before. */
static int64_t add_until(const struct host_time *host, int64_t number, int64_t time, int64_t sign, int64_t near,
                         int64_t *row)
{
    const int64_t first = host->first[number], last = host->last[number], kinds = host->kinds;
    time = min_i64(max_i64(time, host->time[first]), host->time[last]);
    const int64_t at = moment_at(host, number, time, near), after = min_i64(at + 1, last);
    const int64_t length = wrap_sub(host->time[after], host->time[at]), wanted = wrap_sub(time, host->time[at]);
    const int64_t *before = host->done + at * kinds, *then = host->done + after * kinds;
    int64_t lost = wanted, largest = 0, most = INT64_MIN;
    int is_pure = 0;
    for (int64_t i = 0; i < kinds; i++)
        is_pure |= wrap_sub(then[i], before[i]) == length;
    const double share = is_pure || length <= 0 ? 0.0 : (double)wanted / (double)length;
    for (int64_t i = 0; i < kinds; i++) {
        const int64_t grown = wrap_sub(then[i], before[i]);
        int64_t part = 0;
        if (is_pure)
            part = grown == length ? wanted : 0;
        else if (length > 0)
            part = whole((double)grown * share);
        lost = wrap_sub(lost, part);
        if (grown > most)
            most = grown, largest = i;
        int64_t *sum = row + host->kind_cause[i];
        *sum = sign > 0 ? wrap_add(*sum, wrap_add(before[i], part)) : wrap_sub(*sum, wrap_add(before[i], part));
    }
    /* Rounding down loses a nanosecond or two: they go to the largest. */
    if (!is_pure && length > 0 && kinds) {
        int64_t *sum = row + host->kind_cause[largest];
        *sum = sign > 0 ? wrap_add(*sum, lost) : wrap_sub(*sum, lost);
    }
    return at;
}

/* Write to `row` the ns of each cause that a thread spent from `start` to `end`. Returns the moment before `end`. */
static int64_t spend(const struct host_time *host, int64_t thread, int64_t start, int64_t end, int64_t near,
                     int64_t *row)
{
    const int64_t length = max_i64(wrap_sub(end, start), 0), number = thread_number(host, thread);
    int64_t rest = length, low = 0, largest = 0;
    memset(row, 0, (size_t)host->causes * sizeof *row);
    if (number >= 0) {
        near = add_until(host, number, start, -1, near, row);
        near = add_until(host, number, wrap_add(start, length), 1, near, row);
    }
    for (int64_t i = 0; i < host->causes; i++)
        rest = wrap_sub(rest, row[i]);
    row[host->unknown] = wrap_add(row[host->unknown], rest);
    /* The largest makes up for what rounding took below zero. */
    for (int64_t i = 0; i < host->causes; i++)
        if (row[i] < 0) {
            low = wrap_add(low, row[i]);
            row[i] = 0;
        }
    if (low) {
        for (int64_t i = 1; i < host->causes; i++)
            if (row[i] > row[largest])
                largest = i;
        row[largest] = wrap_add(row[largest], low);
    }
    return near;
}

/* Write for `n` moments what was spent on each of `kinds` causes until then; a stretch ends at the next moment.
 *
 * `column` has that of the cause of each of the `n - 1` stretches, below 0 where they count for none. Stands in for
 * the sums in `host_time` of analysis/ledger/idle_causes.py.
 */
GPUSIGHT_API int gpusight_running_spent(int64_t n, const int64_t *time, const int64_t *column, int64_t kinds,
                                        int64_t *spent)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t *row = spent + i * kinds;
        for (int64_t kind = 0; kind < kinds; kind++)
            row[kind] = i ? row[kind - kinds] : 0;
        if (i && column[i - 1] >= kinds)
            return GPUSIGHT_BAD_INPUT;
        if (i && column[i - 1] >= 0)
            row[column[i - 1]] = wrap_add(row[column[i - 1]], wrap_sub(time[i], time[i - 1]));
    }
    return GPUSIGHT_DONE;
}

/* Write for each of the `n - 1` stretches between moments the column that grew most, the first of equals.
 *
 * -1 where none grew, and between two threads. Stands in for `_most_spent` of analysis/ledger/host_threads.py.
 */
GPUSIGHT_API int gpusight_most_spent(int64_t n, const int64_t *thread, int64_t kinds, const int64_t *spent,
                                     int64_t *column)
{
    for (int64_t i = 0; i + 1 < n; i++) {
        const int64_t *now = spent + i * kinds, *next = now + kinds;
        int64_t most = 0;
        column[i] = -1;
        for (int64_t kind = 0; kind < kinds && thread[i] == thread[i + 1]; kind++) {
            int64_t grown = wrap_sub(next[kind], now[kind]);
            if (grown > most) {
                most = grown;
                column[i] = kind;
            }
        }
    }
    return GPUSIGHT_DONE;
}

/* Write the ns of each cause that host threads spent in `m` spans, one row a span. Stands in for `HostTime.spent`. */
GPUSIGHT_API int gpusight_host_spent(int64_t moments, const int64_t *time, int64_t threads, const int64_t *known,
                                     const int64_t *first, const int64_t *last, int64_t kinds,
                                     const int64_t *kind_cause, const int64_t *done, int64_t causes, int64_t unknown,
                                     int64_t m, const int64_t *thread, const int64_t *starts, const int64_t *ends,
                                     int64_t *spent)
{
    const struct host_time host = {moments, time,       threads, known,  first,  last,
                                   kinds,   kind_cause, done,    causes, unknown};
    if (!is_valid(&host))
        return GPUSIGHT_BAD_INPUT;
    int64_t near = 0;
    for (int64_t i = 0; i < m; i++)
        near = spend(&host, thread[i], starts[i], ends[i], near, spent + i * causes);
    return GPUSIGHT_DONE;
}

/* Add up `m` spans of a GPU, by the part they belong to and what they count for: `labels` entries, then causes.
 *
 * A span has a label where something ran, -1 where nothing did: then it is part of a gap, whose host thread was late
 * until it had launched; what remains is `rest`. Stands in for `DeviceAccount._sums`.
 */
GPUSIGHT_API int gpusight_ledger_sums(int64_t moments, const int64_t *time, int64_t threads, const int64_t *known,
                                      const int64_t *first, const int64_t *last, int64_t kinds,
                                      const int64_t *kind_cause, const int64_t *done, int64_t causes,
                                      int64_t unknown, int64_t gaps, const int64_t *gap_thread,
                                      const int64_t *gap_launched, const int64_t *gap_rest, int64_t m,
                                      const int64_t *starts, const int64_t *ends, const int64_t *label,
                                      const int64_t *gap, const int64_t *part, int64_t labels, int64_t parts,
                                      int64_t *sums)
{
    const struct host_time host = {moments, time,       threads, known,  first,  last,
                                   kinds,   kind_cause, done,    causes, unknown};
    if (!is_valid(&host))
        return GPUSIGHT_BAD_INPUT;
    for (int64_t i = 0; i < gaps; i++)
        if (gap_rest[i] < 0 || gap_rest[i] >= causes)
            return GPUSIGHT_BAD_INPUT;
    int64_t *row = allocate(causes, sizeof *row), near = 0;
    if (!row)
        return GPUSIGHT_NO_MEMORY;
    int result = GPUSIGHT_DONE;
    for (int64_t i = 0; i < m; i++) {
        if (part[i] < 0 || part[i] >= parts || label[i] >= labels ||
            (label[i] < 0 && (gap[i] < 0 || gap[i] >= gaps))) {
            result = GPUSIGHT_BAD_INPUT;
            break;
        }
        int64_t *sum = sums + part[i] * (labels + causes);
        if (label[i] >= 0) {
            sum[label[i]] = wrap_add(sum[label[i]], wrap_sub(ends[i], starts[i]));
            continue;
        }
        const int64_t until = min_i64(max_i64(gap_launched[gap[i]], starts[i]), ends[i]);
        near = spend(&host, gap_thread[gap[i]], starts[i], until, near, row);
        row[gap_rest[gap[i]]] = wrap_add(row[gap_rest[gap[i]]], wrap_sub(ends[i], until));
        for (int64_t cause = 0; cause < causes; cause++)
            sum[labels + cause] = wrap_add(sum[labels + cause], row[cause]);
    }
    free(row);
    return result;
}
