"""How rules locate their findings: host events by name, idle gaps of a GPU, GPU activities.

All functions return time spans with the columns of `CANDIDATES`.
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
"""Columns of the time spans that may be shown.

Those of the most time that the finding is about, their weight, are shown, unless the frame has a
column `priority`. A column `gpu_time` marks weights that a profiler does not change.
"""
_TABLES = {
    "range": ("ranges",),
    "operator": ("cpu_ops", "ranges"),
    "call": ("api_calls", "os_calls", "overheads"),
    "site": ("python_calls",),
    "module": ("python_calls",),
}
"""Tables with the events of each kind of location."""


def events_named(context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
    """Find what a finding names: steps, host events, else GPU activities."""
    steps = steps_named(context, finding)
    if steps.height:
        return steps
    events = host_events(context, finding.where)
    if any(location.kind == "kernel" for location in finding.where) or events.is_empty():
        activities = runs_named(context, pl.lit(value=True), finding.where)
        return activities if activities.height else events
    return events


def steps_named(context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
    """Find the steps that a finding names, also those outside the window."""
    names = {location.name for location in finding.where if location.kind == "step"}
    focus = context.focus
    return of_steps([s for s in (*focus.left_out, *focus.steps) if called(s) in names])


def of_steps(steps: Sequence[TraceStep]) -> pl.DataFrame:
    """Return steps as spans."""
    rows = [(s.start_ns, s.end_ns, s.end_ns - s.start_ns, called(s), None, None) for s in steps]
    return pl.DataFrame(rows, schema=CANDIDATES, orient="row")


def single_span(start_ns: int, end_ns: int, name: str) -> pl.DataFrame:
    """Return a span that is not an event."""
    row = (start_ns, end_ns, end_ns - start_ns, name, None, None)
    return pl.DataFrame([row], schema=CANDIDATES, orient="row")


def no_candidates() -> pl.DataFrame:
    """Return no candidates."""
    return pl.DataFrame(schema=CANDIDATES)


def host_events(
    context: RuleContext, where: Iterable[FindingLocation], window: tuple[int, int] | None = None
) -> pl.DataFrame:
    """Find the host events that locations name, in the sample or another window."""
    schedule = context.schedule
    start_ns, end_ns = window or (schedule.start_ns, schedule.end_ns)
    processes = sorted({process for process, _ in schedule.threads})
    own = pl.col("process").is_null() | pl.col("process").is_in(processes)
    parts = [no_candidates()]
    for location in where:
        for table in _TABLES.get(location.kind, ()):
            events = _events_named(context.trace, table, location.name, start_ns, end_ns)
            # The profiler's own overhead belongs to no process that ran.
            if processes and table != "overheads":
                events = events.filter(own)
            parts.append(events.select(list(CANDIDATES)))
    sites = [location.name for location in where if location.kind == "site"]
    if sites and context.trace.has("api_calls") and not context.trace.has("python_calls"):
        parts.append(of_calls(context, context.calls.filter(pl.col("site").is_in(sites)), "site"))
    return pl.concat(parts)


def _events_named(trace: Trace, table: str, name: str, start_ns: int, end_ns: int) -> pl.DataFrame:
    """Return the events of a name, or of a family of names (`layer #`), clipped to a window."""
    frame = trace.table(table, ["start_ns", "end_ns", "name", "process"])
    codes = codes_of(frame["name"], name)
    high = int(np.searchsorted(frame["start_ns"].to_numpy(), end_ns, side="left")) if codes else 0
    touching = frame.with_row_index("row")[:high].filter(
        pl.col("name").to_physical().is_in(codes),
        pl.col("end_ns") > start_ns,
        pl.col("end_ns") > pl.col("start_ns"),
    )
    return touching.with_columns(pl.col("start_ns", "end_ns").clip(start_ns, end_ns)).with_columns(
        (pl.col("end_ns") - pl.col("start_ns")).alias("weight_ns"),
        pl.lit(shortened(name)).alias("name"),
        pl.lit(table).alias("table"),
        pl.col("row").cast(pl.Int64),
    )


def codes_of(names: pl.Series, wanted: str) -> list[int]:
    """Find the codes of the names that a location means."""
    texts = pl.Series(names_of(names), dtype=pl.String)
    for spelled in spellings(texts):
        codes = (spelled == wanted).arg_true().to_list()
        if codes:
            return codes
    return []


def spellings(texts: pl.Series) -> tuple[pl.Series, ...]:
    """Return the forms in which rules write names, the most specific first."""
    plain = texts.str.replace(RECORD, "")
    return texts, plain, texts.str.replace_all(r"\d+", "#"), families(texts)


def of_calls(context: RuleContext, calls: pl.DataFrame, *named_by: str) -> pl.DataFrame:
    """Return rows of `RuleContext.calls` as spans, named by the first of these columns known."""
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


_MAX_GAP_DELAY_NS = 100_000
"""A gap that begins this soon after a call follows from it."""
IDLE = "GPU idle"
_LAUNCHING = (IdleCause.LAUNCHING, IdleCause.FRAMEWORK)
_MIN_EVENT_SHARE = 0.05
"""Share of a step's idle time that an event must contain to show it better than the step."""


def idle_by_cause(
    context: RuleContext, finding: TimelineFinding, *causes: IdleCause
) -> pl.DataFrame:
    """Find idle gaps of some causes, in the events that the finding names if any."""
    gaps = idle_gaps(context, causes)
    named = named_by(gaps, host_events(context, finding.where))
    return named if named.height else gaps


def launch_gaps(context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
    """Find the events with most short gaps between launches: a single gap is too short to show."""
    gaps = idle_gaps(context, _LAUNCHING)
    step_idle_ns = int(gaps["weight_ns"].sum()) / context.per_step
    events = with_idle(gaps, host_events(context, finding.where))
    if events.filter(pl.col("weight_ns") >= _MIN_EVENT_SHARE * step_idle_ns).height:
        return events
    if not context.steps:
        sample = context.schedule
        return with_idle(gaps, single_span(sample.start_ns, sample.end_ns, IDLE))
    steps = of_steps(context.focus.steps)
    return with_idle(gaps, steps.with_columns(pl.lit(IDLE).alias("name")))


def idle_gaps(
    context: RuleContext, causes: Sequence[IdleCause], *, any_gpu: bool = False
) -> pl.DataFrame:
    """Return the gaps in which the diagnosed GPU was idle for some of these causes.

    With `any_gpu`, those of the GPU that lost most by them. Their weight is the time of these
    causes; `op` is the position of the activity that ended them.
    """
    gaps_of_gpus = []
    for device in account(context.schedule, context.hosts):
        if not any_gpu and device.device != context.device:
            continue
        idle = device.spans.idle
        spent_ns = device.gaps.spent(context.hosts, idle)[:, list(causes)].sum(axis=1)
        frame = pl.DataFrame(
            {
                "start_ns": idle.start_ns,
                "end_ns": idle.end_ns,
                "weight_ns": spent_ns,
                "op": device.gaps.op[idle.gap],
            }
        )
        gaps_of_gpus.append(frame.filter(pl.col("weight_ns") > 0))
    longest = max(gaps_of_gpus, key=lambda frame: int(frame["weight_ns"].sum()))
    return longest.with_columns(
        pl.lit(IDLE).alias("name"),
        pl.lit(None, pl.String).alias("table"),
        pl.lit(None, pl.Int64).alias("row"),
    )


def named_by(gaps: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Name gaps by the events that the host was in; those in none are dropped.

    Where several events overlap a gap, the one with the most overlap counts.
    """
    named = [
        _overlapping(gaps, part.sort("start_ns"))
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


def _overlapping(gaps: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Find for each gap the last event that begins before its end, if they overlap.

    Of a gap that is mostly due to something else the part inside the event is shown.
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
    """Name gaps by the activity that ended them."""
    ended = gaps.filter(pl.col("op") != NONE)
    op = ended["op"].to_numpy()
    table, row = _event_of_op(context, op)
    label = context.ops["label"].gather(op)
    return ended.with_columns(label.alias("name"), table, row).select(list(CANDIDATES))


def _event_of_op(context: RuleContext, op: Ints) -> tuple[pl.Series, pl.Series]:
    """Return the `table` and the `row` of activities."""
    ops = context.schedule.ops
    tables = pl.Series("table", [kind.table for kind in OpKind], pl.String)
    return tables.gather(ops.kind[op]), pl.Series("row", ops.row[op], pl.Int64)


def with_idle_gaps(gaps: pl.DataFrame, calls: pl.DataFrame) -> pl.DataFrame:
    """Extend calls to the end of the gap that follows, so that both are shown."""
    if gaps.is_empty() or calls.is_empty():
        return calls
    starts, ends = (gaps[c].to_numpy() for c in ("start_ns", "end_ns"))
    # The last gap that had begun when the call ended.
    last = np.searchsorted(starts, calls["end_ns"].to_numpy() + _MAX_GAP_DELAY_NS, side="right") - 1
    gap_end_ns = ends[np.maximum(last, 0)]
    follows = (last >= 0) & (gap_end_ns > calls["start_ns"].to_numpy())
    until_ns = pl.Series(np.where(follows, gap_end_ns, 0))
    return calls.with_columns(pl.max_horizontal("end_ns", until_ns).alias("end_ns"))


def with_idle(gaps: pl.DataFrame, events: pl.DataFrame) -> pl.DataFrame:
    """Weight events by the idle time in them; those without any are dropped.

    Of the same idle time a short event shows more than a long one around it.
    """
    idle = Intervals.from_arrays(gaps["start_ns"].to_numpy(), gaps["end_ns"].to_numpy())
    inside = coverage(idle, events["start_ns"].to_numpy(), events["end_ns"].to_numpy())
    idle_ns, length_ns = pl.col("weight_ns"), pl.col("end_ns") - pl.col("start_ns")
    return (
        events.with_columns(pl.Series("weight_ns", inside, pl.Int64))
        .filter(idle_ns > 0)
        .with_columns((idle_ns * (idle_ns / length_ns)).alias("priority"))
    )


# GPU activities -----------------------------------------------------------------------------------


_COLUMNS = {
    "kernel": "label",
    "range": "range",
    "operator": "operator",
    "module": "module",
    "site": "site",
}
"""Column of `RuleContext.ops` of each kind of location."""
_CHAIN = " → "
"""Separator of the kernels of a chain, written without `elementwise`."""
_MAX_BETWEEN = 8
"""Most other activities between two of a run."""


def gpu_work(context: RuleContext, finding: TimelineFinding, condition: pl.Expr) -> pl.DataFrame:
    """Find GPU activities that match the names of a finding; else all that meet the condition."""
    named = runs_named(context, condition, finding.where)
    return named if named.height else runs(context, condition)


def each_op(context: RuleContext, rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows of `RuleContext.ops` as a span each."""
    number = np.full(context.ops.height, NONE, np.int64)
    ops = rows["op"].to_numpy()
    number[ops] = ops
    return groups(context, number)


def runs(context: RuleContext, condition: pl.Expr) -> pl.DataFrame:
    """Return activities that meet a condition, consecutive ones of a stream as one span."""
    return _joined(context, _in_queues(context, condition))


def runs_named(
    context: RuleContext, condition: pl.Expr, where: Iterable[FindingLocation]
) -> pl.DataFrame:
    """Return those that match most of the locations."""
    ops = _in_queues(context, condition)
    score = _score(ops, where)
    highest = score.max(initial=0)
    # A low score may be anything, such as another kernel of the same range.
    return _joined(context, ops.filter(pl.Series(2 * score > highest)) if highest else ops.clear())


def _in_queues(context: RuleContext, condition: pl.Expr) -> pl.DataFrame:
    """Return some activities, stream by stream, with their `place` in the stream."""
    marked = context.ops.with_columns(condition.alias("meant"))
    by_stream = marked.sort("stream_id", "start_ns", maintain_order=True).with_row_index("place")
    return by_stream.filter("meant")


def _score(ops: pl.DataFrame, where: Iterable[FindingLocation]) -> Ints:
    """Count for each activity the kinds of locations that it matches."""
    names: dict[str, set[str]] = {}
    for location in where:
        if location.kind in _COLUMNS:
            # A chain stands for each of its kernels.
            kernels = location.name.split(_CHAIN) if location.kind == "kernel" else []
            if len(kernels) > 1:
                parts = [*kernels, *(f"elementwise {kernel}" for kernel in kernels)]
            else:
                parts = [location.name]
            names.setdefault(location.kind, set()).update(parts)
    score = np.zeros(ops.height, np.int64)
    for kind, wanted in names.items():
        forms = spellings(ops[_COLUMNS[kind]].cast(pl.String))
        matches = [form.is_in(list(wanted)).fill_null(value=False).to_numpy() for form in forms]
        score += np.any(matches, axis=0)
    return score


def groups(context: RuleContext, number: Ints) -> pl.DataFrame:
    """Return activities with the same number, by position, as one span; below 0 is none."""
    numbered = context.ops.with_columns(pl.Series("run", number, pl.Int64))
    return _summed(context, numbered.filter(pl.col("run") >= 0))


def _joined(context: RuleContext, chosen: pl.DataFrame) -> pl.DataFrame:
    """Join consecutive activities of a stream and step into one span."""
    apart = (
        (pl.col("place").cast(pl.Int64).diff() > _MAX_BETWEEN + 1)
        | (pl.col("stream_id").diff() != 0)
        | pl.col("step").ne_missing(pl.col("step").shift())
    )
    run = apart.fill_null(value=True).cum_sum().alias("run")
    return _summed(context, chosen.with_columns(run))


def _summed(context: RuleContext, chosen: pl.DataFrame) -> pl.DataFrame:
    """Return one span for each `run`, named by its longest activity."""
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
    table, row = _event_of_op(context, merged["op"].to_numpy())
    short = {name: shortened(name) for name in merged["name"].unique()}
    name, alone = pl.col("name").replace(short), pl.col("others") == 0
    return merged.select(
        "start_ns",
        "end_ns",
        pl.col("weight_ns").cast(pl.Int64),
        pl.when(alone).then(name).otherwise(pl.format("{} and {} more,", name, "others")),
        pl.when(alone).then(pl.lit(table)).alias("table"),
        pl.when(alone).then(pl.lit(row)).alias("row"),
        pl.lit(value=True).alias("gpu_time"),
    )
