"""What rules locate their findings with: host events by name, idle gaps of a GPU, GPU work.

Each gives stretches of the timeline, with the columns of `CANDIDATES`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.gpu_schedule import NONE, OpKind
from gpusight.analysis.ledger.device_ledger import account
from gpusight.analysis.ledger.idle_contributors import RECORD, families
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.steps.step_list import called, shortened
from gpusight.trace.intervals import Intervals, coverage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpusight.analysis.ledger.device_ledger import DeviceAccount
    from gpusight.analysis.steps.step_list import TraceStep
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import FindingLocation
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


CANDIDATES = {
    "start_ns": pl.Int64,
    "end_ns": pl.Int64,
    "weight_ns": pl.Int64,
    "name": pl.String,
    "table": pl.String,
    "row": pl.Int64,
}
"""Columns of stretches that may be shown.

The time of each that the finding is about decides, its weight, unless it has a column `telling`.
"""
_TABLES = {
    "range": ("ranges",),
    "operator": ("cpu_ops", "ranges"),
    "call": ("api_calls", "os_calls", "overheads"),
    "site": ("python_calls",),
    "module": ("python_calls",),
}
"""Where events of each kind of place are found."""


def events_named(context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
    """Find what a finding of any rule names: steps, events of the host, else GPU work."""
    steps = steps_named(context, finding)
    if steps.height:
        return steps
    events = host_events(context, finding.where)
    if any(place.kind == "kernel" for place in finding.where) or events.is_empty():
        work = runs_named(context, pl.lit(value=True), finding.where)
        return work if work.height else events
    return events


def steps_named(context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
    """Find the steps that a finding names, also those that were left out."""
    names = {place.name for place in finding.where if place.kind == "step"}
    focus = context.focus
    return of_steps([s for s in (*focus.left_out, *focus.steps) if called(s) in names])


def of_steps(steps: Sequence[TraceStep]) -> pl.DataFrame:
    """Return steps as stretches."""
    rows = [(s.start_ns, s.end_ns, s.end_ns - s.start_ns, called(s), None, None) for s in steps]
    return pl.DataFrame(rows, schema=CANDIDATES, orient="row")


def one_stretch(start_ns: int, end_ns: int, name: str) -> pl.DataFrame:
    """Return one stretch that is no event."""
    row = (start_ns, end_ns, end_ns - start_ns, name, None, None)
    return pl.DataFrame([row], schema=CANDIDATES, orient="row")


def no_candidates() -> pl.DataFrame:
    """Return no candidates."""
    return pl.DataFrame(schema=CANDIDATES)


def host_events(
    context: RuleContext, where: Iterable[FindingLocation], window: tuple[int, int] | None = None
) -> pl.DataFrame:
    """Find the events that places name in the judged part, or in another window."""
    schedule = context.schedule
    start_ns, end_ns = window or (schedule.start_ns, schedule.end_ns)
    processes = sorted({process for process, _ in schedule.threads})
    events_of_places = [no_candidates()]
    for place in where:
        for table in _TABLES.get(place.kind, ()):
            events = _named(context.trace, table, place.name, start_ns, end_ns)
            # What the profiler did on its own account is of no process that ran.
            kept = events if table == "overheads" else _of_processes(events, processes)
            events_of_places.append(kept.select(list(CANDIDATES)))
    if not context.trace.has("python_calls"):
        events_of_places.append(_from_calls(context, [w for w in where if w.kind == "site"]))
    return pl.concat(events_of_places)


def _named(trace: Trace, table: str, name: str, start_ns: int, end_ns: int) -> pl.DataFrame:
    """Return the events of a name, or of names that it writes as one (`layer #`), in a window.

    Of those that reach out of it the part inside.
    """
    frame = trace.table(table, ["start_ns", "end_ns", "name", "process"])
    codes = codes_of(frame["name"], name)
    if not codes:
        return _described(frame.clear(), table, name)
    high = int(np.searchsorted(frame["start_ns"].to_numpy(), end_ns, side="left"))
    touching = frame.with_row_index("row")[:high].filter(
        pl.col("name").to_physical().is_in(codes),
        pl.col("end_ns") > start_ns,
        pl.col("end_ns") > pl.col("start_ns"),
    )
    inside = pl.col("start_ns", "end_ns").clip(start_ns, end_ns)
    return _described(touching.with_columns(inside), table, name)


def _described(events: pl.DataFrame, table: str, name: str) -> pl.DataFrame:
    row = pl.col("row").cast(pl.Int64) if "row" in events.columns else pl.lit(None, pl.Int64)
    return events.with_columns(
        (pl.col("end_ns") - pl.col("start_ns")).alias("weight_ns"),
        pl.lit(shortened(name)).alias("name"),
        pl.lit(table).alias("table"),
        row.alias("row"),
    )


def codes_of(names: pl.Series, wanted: str) -> list[int]:
    """Find the codes of the names that a place means."""
    texts = pl.Series(names_of(names), dtype=pl.String)
    for spelled in spellings(texts):
        codes = (spelled == wanted).arg_true().to_list()
        if codes:
            return codes
    return []


def spellings(texts: pl.Series) -> tuple[pl.Series, ...]:
    """Return the ways in which rules write a name, the surest first."""
    plain = texts.str.replace(RECORD, "")
    return texts, plain, texts.str.replace_all(r"\d+", "#"), families(texts)


def _of_processes(events: pl.DataFrame, processes: Sequence[int]) -> pl.DataFrame:
    own = pl.col("process").is_null() | pl.col("process").is_in(list(processes))
    return events.filter(own) if processes else events


def _from_calls(context: RuleContext, sites: Sequence[FindingLocation]) -> pl.DataFrame:
    """Find the API calls that were made from lines of code, where Python was not recorded."""
    if not sites or not context.trace.has("api_calls"):
        return no_candidates()
    names = [site.name for site in sites]
    return of_calls(context, context.calls.filter(pl.col("site").is_in(names)), "site")


def of_calls(context: RuleContext, calls: pl.DataFrame, *named_by: str) -> pl.DataFrame:
    """Make candidates of rows of `RuleContext.calls`, named by the first of these columns known."""
    rows = context.schedule.calls.row[calls["call"].to_numpy()]
    return calls.select(
        "start_ns",
        "end_ns",
        pl.col("duration_ns").alias("weight_ns"),
        pl.coalesce(pl.col(named_by).cast(pl.String)).alias("name"),
        pl.lit("api_calls").alias("table"),
        pl.Series("row", rows, pl.Int64),
    )


# Idle gaps ----------------------------------------------------------------------------------------


_AFTER_NS = 100_000
"""A hole that begins this soon after a call is the one that the call leaves."""
IDLE = "GPU idle"
_LAUNCHING = (IdleCause.LAUNCHING, IdleCause.FRAMEWORK)
_MIN_EVENT_SHARE = 0.05
"""Part of a step's idle time that an event must hold to show it better than the whole step."""


def idle_by_cause(
    context: RuleContext, finding: TimelineFinding, *causes: IdleCause
) -> pl.DataFrame:
    """Find idle time of some causes, in the events that the finding names if in any."""
    gaps = idle_gaps(context, causes)
    known = named_by(gaps, host_events(context, finding.where))
    return known if known.height else gaps


def launch_gaps(context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
    """Find the events with most short gaps between launches: one gap alone tells little."""
    gaps = idle_gaps(context, _LAUNCHING)
    every_ns = int(gaps["weight_ns"].sum()) / context.per_step
    inside = with_idle(gaps, host_events(context, finding.where))
    if inside.filter(pl.col("weight_ns") >= _MIN_EVENT_SHARE * every_ns).height:
        return inside
    if not context.steps:
        judged = context.schedule
        return with_idle(gaps, one_stretch(judged.start_ns, judged.end_ns, IDLE))
    steps = of_steps(context.focus.steps)
    return with_idle(gaps, steps.with_columns(pl.lit(IDLE).alias("name")))


def idle_gaps(
    context: RuleContext, causes: Sequence[IdleCause], *, any_gpu: bool = False
) -> pl.DataFrame:
    """Return the stretches in which the judged GPU had nothing to do for some of these causes.

    With `any_gpu`, those of the GPU that lost most by them. Their weight is the time of these
    causes; `op` is the position of the work that ended them.
    """
    accounts = account(context.schedule, context.hosts)
    every = [
        _of_account(context, of_device, causes)
        for of_device in accounts
        if any_gpu or of_device.device == context.device
    ]
    return max(every, key=lambda frame: int(frame["weight_ns"].sum()))


def _of_account(
    context: RuleContext, own: DeviceAccount, causes: Sequence[IdleCause]
) -> pl.DataFrame:
    idle = own.spans.idle
    frame = pl.DataFrame(
        {
            "start_ns": idle.start_ns,
            "end_ns": idle.end_ns,
            "weight_ns": own.gaps.spent(context.hosts, idle)[:, list(causes)].sum(axis=1),
            "op": own.gaps.op[idle.gap],
        }
    )
    return frame.filter(pl.col("weight_ns") > 0).with_columns(
        pl.lit(IDLE).alias("name"),
        pl.lit(None, pl.String).alias("table"),
        pl.lit(None, pl.Int64).alias("row"),
    )


def named_by(gaps: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Name holes by the events that the host was in; those in none are left out.

    Where several events touch a hole, the one that most of it lies in counts.
    """
    named = [
        _touched(gaps, part.sort("start_ns"))
        for _, part in events.group_by("name", "table", maintain_order=True)
    ]
    if not named:
        return no_candidates()
    return (
        pl.concat(named)
        .sort("shared_ns", descending=True, maintain_order=True)
        .unique("gap", keep="first", maintain_order=True)
        .select(list(CANDIDATES))
    )


def _touched(gaps: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Find for each hole the last event to begin before it ends, if that reaches into it.

    Of a hole that is mostly something else the part inside the event is shown.
    """
    last = np.searchsorted(events["start_ns"].to_numpy(), gaps["end_ns"].to_numpy()) - 1
    at = np.maximum(last, 0)
    low = pl.max_horizontal("start_ns", pl.lit(events["start_ns"].gather(at)))
    high = pl.min_horizontal("end_ns", pl.lit(events["end_ns"].gather(at)))
    mostly = 2 * pl.col("weight_ns") >= pl.col("end_ns") - pl.col("start_ns")
    return (
        gaps.with_row_index("gap")
        .with_columns(
            (high - low).alias("shared_ns"),
            pl.when(mostly).then("start_ns").otherwise(low).alias("start_ns"),
            pl.when(mostly).then("end_ns").otherwise(high).alias("end_ns"),
            *(events[c].gather(at).alias(c) for c in ("name", "table", "row")),
        )
        .filter(pl.Series(last >= 0), pl.col("shared_ns") > 0)
    )


def named_by_work(context: RuleContext, gaps: pl.DataFrame) -> pl.DataFrame:
    """Name holes by the work that ended them."""
    ended = gaps.filter(pl.col("op") != NONE)
    ops, at = context.schedule.ops, ended["op"].to_numpy()
    tables = pl.Series([kind.table for kind in OpKind], dtype=pl.String)
    return ended.with_columns(
        context.ops["label"].gather(at).alias("name"),
        tables.gather(ops.kind[at]).alias("table"),
        pl.Series("row", ops.row[at], pl.Int64),
    ).select(list(CANDIDATES))


def with_idle_gaps(gaps: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Let calls last until the hole is over that they leave, so that both are seen."""
    if gaps.is_empty() or calls.is_empty():
        return calls
    starts, ends = (gaps[c].to_numpy() for c in ("start_ns", "end_ns"))
    # The last hole that had begun when the call was over.
    at = np.searchsorted(starts, calls["end_ns"].to_numpy() + _AFTER_NS, side="right") - 1
    reaches = (at >= 0) & (ends[np.maximum(at, 0)] > calls["start_ns"].to_numpy())
    until = np.where(reaches, ends[np.maximum(at, 0)], 0)
    return calls.with_columns(pl.max_horizontal("end_ns", pl.Series(until)).alias("end_ns"))


def with_idle(gaps: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Weigh events by the idle time in them; those without any are left out.

    Of the same idle time a short event tells more than a long one around it.
    """
    idle = Intervals.from_arrays(gaps["start_ns"].to_numpy(), gaps["end_ns"].to_numpy())
    inside = coverage(idle, events["start_ns"].to_numpy(), events["end_ns"].to_numpy())
    idle_ns, length_ns = pl.col("weight_ns"), pl.col("end_ns") - pl.col("start_ns")
    return (
        events.with_columns(pl.Series("weight_ns", inside, pl.Int64))
        .filter(idle_ns > 0)
        .with_columns((idle_ns * (idle_ns / length_ns)).alias("telling"))
    )


# GPU work -----------------------------------------------------------------------------------------


_COLUMNS = {
    "kernel": "label",
    "range": "range",
    "operator": "operator",
    "module": "module",
    "site": "site",
}
"""Column of `RuleContext.ops` that each kind of place stands in."""
_CHAIN = " → "
"""What stands between the kernels of a chain, which may have lost their `elementwise`."""
_APART = 8
"""Pieces of other work between two of a run, at most."""


def gpu_work(context: RuleContext, finding: TimelineFinding, which: pl.Expr) -> pl.DataFrame:
    """Find GPU work of a kind that agrees with what the finding names; else any of it."""
    meant = runs_named(context, which, finding.where)
    return meant if meant.height else runs(context, which)


def each_op(context: RuleContext, rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows of `RuleContext.ops` as a stretch each."""
    number = np.full(context.ops.height, NONE, np.int64)
    ops = rows["op"].to_numpy()
    number[ops] = ops
    return groups(context, number)


def runs(context: RuleContext, which: pl.Expr) -> pl.DataFrame:
    """Find some work, what follows each other in a stream as one; its weight is its time."""
    return _joined(context, _in_queues(context, which))


def runs_named(
    context: RuleContext, which: pl.Expr, where: Iterable[FindingLocation]
) -> pl.DataFrame:
    """Find the work of it that agrees with most of what places say."""
    work = _in_queues(context, which)
    score = _score(work, where)
    most = score.max(initial=0)
    # What agrees in little may be anything, such as another kernel of the same range.
    chosen = work.filter(pl.Series(2 * score > most)) if most else work.clear()
    return _joined(context, chosen)


def _in_queues(context: RuleContext, which: pl.Expr) -> pl.DataFrame:
    """Return some activities, stream by stream, with their `place` in the stream."""
    marked = context.ops.with_columns(which.alias("meant"))
    every = marked.sort("queue", "start_ns", maintain_order=True).with_row_index("place")
    return every.filter("meant")


def _score(ops: pl.DataFrame, where: Iterable[FindingLocation]) -> Ints:
    """Count for each piece of work the kinds of places that it agrees with."""
    names: dict[str, set[str]] = {}
    for place in where:
        if place.kind in _COLUMNS:
            names.setdefault(place.kind, set()).update(_parts(place))
    score = np.zeros(ops.height, np.int64)
    for kind, wanted in names.items():
        column = ops[_COLUMNS[kind]].cast(pl.String)
        meant = [
            spelled.is_in(list(wanted)).fill_null(value=False) for spelled in spellings(column)
        ]
        score += np.any([flags.to_numpy() for flags in meant], axis=0)
    return score


def _parts(place: FindingLocation) -> list[str]:
    """Return the names that a place stands for: of a chain each of its kernels."""
    parts = place.name.split(_CHAIN)
    if place.kind != "kernel" or len(parts) == 1:
        return [place.name]
    return [*parts, *(f"elementwise {part}" for part in parts)]


def groups(context: RuleContext, number: Ints) -> pl.DataFrame:
    """Find work that belongs together: what has the same number, by position; below 0 is none."""
    numbered = context.ops.with_columns(pl.Series("run", number, pl.Int64))
    return _summed(context, numbered.filter(pl.col("run") >= 0))


def _joined(context: RuleContext, chosen: pl.DataFrame) -> pl.DataFrame:
    """Make one stretch of work that follows each other in its stream and step."""
    apart = (
        (pl.col("place").cast(pl.Int64).diff() > _APART + 1)
        | (pl.col("queue").diff() != 0)
        | pl.col("step").ne_missing(pl.col("step").shift())
    )
    run = apart.fill_null(value=True).cum_sum().alias("run")
    return _summed(context, chosen.with_columns(run))


def _summed(context: RuleContext, chosen: pl.DataFrame) -> pl.DataFrame:
    """Make one stretch of each `run`."""
    if chosen.is_empty():
        return no_candidates()
    longest = pl.col("duration_ns").arg_max()
    merged = chosen.group_by("run", maintain_order=True).agg(
        pl.col("start_ns").min(),
        pl.col("end_ns").max(),
        pl.col("duration_ns").sum().alias("weight_ns"),
        pl.col("label").get(longest).cast(pl.String).alias("name"),
        pl.col("op").get(longest),
        (pl.len() - 1).cast(pl.Int64).alias("others"),
    )
    return _named_by_longest(context, merged)


def _named_by_longest(context: RuleContext, merged: pl.DataFrame) -> pl.DataFrame:
    """Name stretches by their longest piece of work; what is one piece can be pointed at."""
    ops, at = context.schedule.ops, merged["op"].to_numpy()
    tables = pl.Series([kind.table for kind in OpKind], dtype=pl.String)
    short = {name: shortened(name) for name in merged["name"].unique()}
    name, alone = pl.col("name").replace(short), pl.col("others") == 0
    return merged.select(
        "start_ns",
        "end_ns",
        pl.col("weight_ns").cast(pl.Int64),
        pl.when(alone).then(name).otherwise(pl.format("{} and {} more,", name, "others")),
        pl.when(alone).then(pl.lit(tables.gather(ops.kind[at]))).alias("table"),
        pl.when(alone).then(pl.lit(pl.Series(ops.row[at], dtype=pl.Int64))).alias("row"),
    ).select(list(CANDIDATES))
