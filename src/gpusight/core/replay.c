/* The replay: when every call and every GPU activity of a program starts and ends. */
#include "gpusight_core.h"

/* What a call waits for: `CallWait` of analysis/replay/simulation.py. */
enum { WAITS_FOR_NOTHING, WAITS_FOR_DEVICE, WAITS_FOR_STREAM, WAITS_FOR_OP };
/* What the latency of an activity is counted from: `LatencyBase`. */
enum { FROM_CALL_END, FROM_CALL_START, FIXED, FROM_STREAM };

/* Columns of `ReplayProgram`. */
struct program {
    int64_t calls;
    const int64_t *host_thread, *gap, *own, *wait, *target, *tail, *after_op, *after;
    int64_t ops;
    const int64_t *order; /* in which activities are issued: by call */
    const int64_t *call, *stream, *stream_gap, *duration, *needs, *needs_gap;
    const uint8_t *removed;
    const int64_t *base, *latency;
    int64_t threads, streams, start;
    /* The streams of each GPU, GPU by GPU. */
    int64_t pairs;
    const int64_t *pair_device, *pair_stream;
};

/* Check what indexes buffers. */
static int is_valid(const struct program *p)
{
    for (int64_t i = 0; i < p->calls; i++) {
        const int64_t targets = p->wait[i] == WAITS_FOR_STREAM ? p->streams : p->ops;
        if (p->host_thread[i] < 0 || p->host_thread[i] >= p->threads || p->after_op[i] >= p->ops)
            return 0;
        if (p->wait[i] != WAITS_FOR_NOTHING && p->wait[i] != WAITS_FOR_DEVICE &&
            (p->target[i] < 0 || p->target[i] >= targets))
            return 0;
    }
    for (int64_t i = 0; i < p->ops; i++) {
        const int64_t op = p->order[i];
        if (op < 0 || op >= p->ops || (i && p->call[op] < p->call[p->order[i - 1]]))
            return 0;
        if (p->call[op] < -1 || p->call[op] > p->calls || p->stream[op] < 0 || p->stream[op] >= p->streams)
            return 0;
        if (p->needs[op] >= p->ops)
            return 0;
    }
    for (int64_t i = 0; i < p->pairs; i++)
        if (p->pair_stream[i] < 0 || p->pair_stream[i] >= p->streams)
            return 0;
    return 1;
}

/* Let an activity start as soon as it can. `host` and `late` are those of the thread of its call, 0 without one. */
static void issue(const struct program *p, int64_t op, int64_t host, int64_t own, int64_t late, int64_t *stream_end,
                  int64_t *op_start, int64_t *op_end)
{
    int64_t *free_at = &stream_end[p->stream[op]];
    if (p->removed[op]) { /* it starts and ends where its stream is */
        op_start[op] = op_end[op] = *free_at = max_i64(*free_at, -(INT64_C(1) << 60));
        return;
    }
    int64_t ready = p->latency[op], start = wrap_add(*free_at, p->stream_gap[op]);
    if (p->base[op] == FROM_STREAM)
        ready = p->start;
    else if (p->base[op] == FROM_CALL_END)
        ready = wrap_add(ready, wrap_add(host, late));
    else if (p->base[op] == FROM_CALL_START)
        ready = wrap_add(wrap_sub(ready, own), wrap_add(host, late));
    start = max_i64(start, ready);
    if (p->needs[op] >= 0)
        start = max_i64(start, wrap_add(op_end[p->needs[op]], p->needs_gap[op]));
    op_start[op] = start;
    op_end[op] = *free_at = wrap_add(start, p->duration[op]);
}

/* Return when what a call waits for has ended; -1 as `*found` for a GPU without streams. */
static int64_t done(const struct program *p, int64_t call, const int64_t *stream_end, const int64_t *op_end,
                    int *found)
{
    int64_t last = 0;
    *found = p->wait[call] != WAITS_FOR_DEVICE;
    if (p->wait[call] == WAITS_FOR_STREAM)
        return stream_end[p->target[call]];
    if (p->wait[call] == WAITS_FOR_OP)
        return op_end[p->target[call]];
    for (int64_t i = 0; i < p->pairs; i++)
        if (p->pair_device[i] == p->target[call]) {
            last = *found ? max_i64(last, stream_end[p->pair_stream[i]]) : stream_end[p->pair_stream[i]];
            *found = 1;
        }
    return last;
}

/* Simulate a program. `op_end` comes filled with zeros: so ends what was not issued yet. Stands in for `_simulated`. */
GPUSIGHT_API int gpusight_replay(int64_t calls, const int64_t *host_thread, const int64_t *gap, const int64_t *own,
                                 const int64_t *wait, const int64_t *target, const int64_t *tail,
                                 const int64_t *after_op, const int64_t *after, int64_t ops, const int64_t *order,
                                 const int64_t *call, const int64_t *stream, const int64_t *stream_gap,
                                 const int64_t *duration, const int64_t *needs, const int64_t *needs_gap,
                                 const uint8_t *removed, const int64_t *base, const int64_t *latency, int64_t threads,
                                 int64_t streams, int64_t start, int64_t pairs, const int64_t *pair_device,
                                 const int64_t *pair_stream, int64_t *call_start, int64_t *call_end,
                                 int64_t *op_start, int64_t *op_end)
{
    const struct program p = {calls,    host_thread, gap,   own,    wait,  target,  tail,    after_op, after,
                              ops,      order,       call,  stream, stream_gap, duration, needs, needs_gap,
                              removed,     base,        latency, threads, streams, start, pairs, pair_device, pair_stream};
    if (threads < 0 || streams < 0 || !is_valid(&p))
        return GPUSIGHT_BAD_INPUT;
    int64_t *late = allocate(threads, sizeof *late), *host = allocate(threads, sizeof *host);
    int64_t *stream_end = allocate(streams, sizeof *stream_end);
    int result = late && host && stream_end ? GPUSIGHT_DONE : GPUSIGHT_NO_MEMORY;
    int64_t next = 0;
    if (result == GPUSIGHT_DONE) {
        for (int64_t i = 0; i < threads; i++)
            late[i] = start, host[i] = 0; /* how late a thread is, and what it did so far without any wait */
        for (int64_t i = 0; i < streams; i++)
            stream_end[i] = start;
        for (; next < ops && call[order[next]] < 0; next++)
            issue(&p, order[next], 0, 0, 0, stream_end, op_start, op_end);
    }
    for (int64_t i = 0; i < calls && result == GPUSIGHT_DONE; i++) {
        int64_t *behind = &late[host_thread[i]], *spent = &host[host_thread[i]];
        *spent = wrap_add(*spent, wrap_add(gap[i], own[i]));
        if (after_op[i] >= 0) {
            const int64_t begins = wrap_add(op_end[after_op[i]], after[i]);
            *behind = max_i64(*behind, wrap_sub(wrap_add(begins, own[i]), *spent));
        }
        call_start[i] = wrap_sub(wrap_add(*behind, *spent), own[i]);
        for (; next < ops && call[order[next]] == i; next++)
            issue(&p, order[next], *spent, own[i], *behind, stream_end, op_start, op_end);
        if (wait[i] != WAITS_FOR_NOTHING) {
            int found;
            const int64_t ended = wrap_add(done(&p, i, stream_end, op_end, &found), tail[i]);
            if (!found)
                result = GPUSIGHT_BAD_INPUT;
            *behind = max_i64(*behind, wrap_sub(ended, *spent));
        }
        call_end[i] = wrap_add(*behind, *spent);
    }
    for (; next < ops && result == GPUSIGHT_DONE; next++)
        issue(&p, order[next], 0, 0, 0, stream_end, op_start, op_end);
    free(late);
    free(host);
    free(stream_end);
    return result;
}

/* The largest whole number up to which floating point is exact: beyond it the caller uses NumPy. */
static const int64_t MAX_EXACT = (int64_t)1 << 53;

static inline int is_exact(int64_t value) { return -MAX_EXACT <= value && value <= MAX_EXACT; }

/* Move `m` times by `n` rising moments and where these are moved to; between two of them in proportion, as `interp` of
 * NumPy does it. What is before the first stays, what is after the last moves with it. Stands in for `_moved_times` of
 * analysis/corrected_trace.py.
 */
GPUSIGHT_API int gpusight_move_times(int64_t n, const int64_t *before, const int64_t *after, int64_t m,
                                     const int64_t *times, int64_t *moved)
{
    if (n < 1 || !is_exact(before[0]) || !is_exact(before[n - 1]) || !is_exact(after[n - 1]))
        return GPUSIGHT_BAD_INPUT;
    int64_t hint = 0;
    for (int64_t i = 0; i < m; i++) {
        const int64_t time = times[i];
        if (!is_exact(time))
            return GPUSIGHT_BAD_INPUT;
        if (time <= before[0]) {
            moved[i] = time;
        } else if (time >= before[n - 1]) {
            moved[i] = time - before[n - 1] + after[n - 1];
        } else {
            hint = seek(n, before, time, 1, hint);
            /* Where moments do not rise, the search may end anywhere. */
            if (hint < 1 || hint >= n)
                return GPUSIGHT_BAD_INPUT;
            const int64_t at = hint - 1;
            if (!is_exact(before[at]) || !is_exact(before[hint]) || !is_exact(after[at]) || !is_exact(after[hint]) ||
                before[at] > time || before[hint] <= time)
                return GPUSIGHT_BAD_INPUT;
            const double slope = (double)(after[hint] - after[at]) / (double)(before[hint] - before[at]);
            moved[i] = (int64_t)(slope * (double)(time - before[at]) + (double)after[at]);
        }
    }
    return GPUSIGHT_DONE;
}
