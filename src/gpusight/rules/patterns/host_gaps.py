"""Host time before each call, and why the GPU was idle meanwhile."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.attribution.call_sites import PythonCalls
from gpusight.analysis.attribution.nested_intervals import NestedIntervals, optional
from gpusight.analysis.gpu_schedule import NONE
from gpusight.analysis.ledger.device_ledger import account
from gpusight.analysis.ledger.idle_contributors import IdleContributors
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.rules.context import memoize
from gpusight.rules.formatting import summed_locations
from gpusight.rules.rule import FindingLocation, RuleNotApplicable

if TYPE_CHECKING:
    from gpusight.analysis.gpu_schedule import Ints
    from gpusight.rules.context import RuleContext
    from gpusight.trace.trace import Trace


_KINDS = {"range": "range", "op": "operator", "os call": "call", "call site": "site"}
_ACTIVITY_TABLES = {
    "ranges": "range",
    "cpu_ops": "operator",
    "python_calls": "site",
    "os_calls": "call",
}
_LONGEST_NAME = 40
"""Of a place within a sentence."""
_DIGITS = re.compile(r"\d+")
_ISSUING = ("launch", "graph", "copy", "fill")


def host_unknown(context: RuleContext) -> RuleNotApplicable | None:
    """Say why nothing can be told of the host, where that is so."""
    if not context.trace.has("api_calls"):
        return RuleNotApplicable("the capture has no API calls: what the host did is not known")
    if not np.any(context.schedule.ops.call != NONE):
        return RuleNotApplicable("no GPU work is linked to the call that launched it")
    return None


def before_calls(context: RuleContext) -> tuple[Ints, Ints]:
    """Give the time before each call: from the end of the call before it in its lane."""
    return context.schedule.before_calls, context.schedule.calls.start_ns


@memoize
def spent_before(context: RuleContext) -> Ints:
    """Give the ns of each cause (columns) that lanes spent before each call (rows)."""
    starts, ends = before_calls(context)
    spent = context.hosts.spent(context.schedule.calls.lane, starts, ends)
    spent.setflags(write=False)
    return spent


def idle_ns(context: RuleContext, *causes: IdleCause) -> int:
    """Measure how long the GPU that worked longest had nothing to do, for these causes."""
    own = [d for d in context.ledger.devices if d.device == context.device]
    return sum(device.ns(cause.entry) for device in own for cause in causes)


def idle_share(context: RuleContext, *causes: IdleCause) -> float:
    """Give the same as a part of the judged time."""
    return idle_ns(context, *causes) / max(1, context.length_ns)


def busy_share(context: RuleContext) -> float:
    """Give the part of the judged time in which the GPU that worked longest did anything."""
    return 1 - idle_share(context, *IdleCause)


def behind(context: RuleContext, cause: IdleCause) -> dict[str, list[FindingLocation]]:
    """Name what the host was in while the GPU waited for a cause, by kind, the largest first."""
    accounts = account(context.schedule, context.hosts)
    own = next(one for one in accounts if one.device == context.device)
    steps = {_family(step.name) for step in context.focus.steps}
    found: dict[str, list[FindingLocation]] = {kind: [] for kind in _KINDS.values()}
    for one in IdleContributors(context.schedule, context.hosts).of(own).get(cause.entry, ()):
        # That it was in a step says nothing more.
        if one.kind in _KINDS and _family(one.name) not in steps:
            where = FindingLocation(_KINDS[one.kind], one.name, float(one.ns), one.count)
            found[where.kind].append(where)
    return found


def _family(name: str) -> str:
    return _DIGITS.sub("#", name)


def at_most(context: RuleContext, ns: int) -> float:
    """Give the least time of the judged part when no more than this can be saved."""
    return float(max(0, context.replay.unchanged.total_ns - ns))


def issues() -> pl.Expr:
    """Tell which calls put work on a GPU, in a frame of calls."""
    return pl.col("kind").cast(pl.String).is_in(_ISSUING)


def called_from(
    context: RuleContext, rows: pl.DataFrame, ns: str = "duration_ns"
) -> dict[str, list[FindingLocation]]:
    """Name the places that calls or work came from, by kind, the largest first."""
    told = rows.with_columns(inner_range(context))
    return {kind: summed_locations(told, kind, kind, ns) for kind in ("site", "operator", "range")}


def inner_range(context: RuleContext) -> pl.Expr:
    """Give the range of rows, without those of the steps themselves, which say nothing more."""
    steps = [step.name for step in context.focus.steps]
    name = pl.col("range").cast(pl.String)
    inner = pl.when(~name.is_in(steps)).then(name)
    family = inner.str.replace_all(r"\d+", "#")
    # Names that only differ by numbers are written as one: `layer #`.
    return pl.when(inner.n_unique().over(family) > 1).then(family).otherwise(inner).alias("range")


def named(where: tuple[FindingLocation, ...], *kinds: str, most: int = 2) -> str:
    """Name places of some kinds within a sentence: "`data`, `collate` and `to`"."""
    names = [f"`{_short(w.name)}`" for w in where if w.kind in kinds][:most]
    *others, last = names or [""]
    return f"{', '.join(others)} and {last}" if others else last


def _short(name: str) -> str:
    """Cut a long name in the middle: what it begins and ends with tells most."""
    half = _LONGEST_NAME // 2
    return name if len(name) <= _LONGEST_NAME else f"{name[:half]}…{name[1 - half :]}"


def activity_before(
    context: RuleContext, calls: Ints, ns: Ints
) -> dict[str, list[FindingLocation]]:
    """Name what was open in the middle of the time before calls, by kind, the largest first."""
    schedule, trace = context.schedule, context.trace
    starts, ends = (times[calls] for times in before_calls(context))
    middle = starts + (ends - starts) // 2
    keys = pl.Series([thread for _, thread in schedule.threads], dtype=pl.Int64)
    threads = keys.gather(schedule.calls.thread[calls])
    found = {}
    for table, kind in _ACTIVITY_TABLES.items():
        events = trace.table(table, ["start_ns", "end_ns", "name", "thread"])
        rows = optional(_open_at(trace, table, events, middle, threads))
        named_rows = pl.DataFrame(
            {"range": events["name"].gather(rows).cast(pl.String), "duration_ns": ns}
        )
        inner = named_rows.with_columns(inner_range(context)) if kind == "range" else named_rows
        found[kind] = summed_locations(inner, kind, "range")
    return found


def _open_at(
    trace: Trace, table: str, events: pl.DataFrame, times: Ints, threads: pl.Series
) -> Ints:
    """Give the innermost event of each thread at each time; of Python, the user's own code."""
    if table == "python_calls" and trace.has(table):
        _, own, frame = PythonCalls(trace).at(times, threads)
        return np.where(own >= 0, own, frame)
    nested = NestedIntervals.of(
        events["start_ns"].to_numpy(), events["end_ns"].to_numpy(), events["thread"]
    )
    return nested.rows_at(nested.innermost(times, threads))


def events_of(context: RuleContext, table: str, thread: int) -> pl.DataFrame:
    """Give the events of one thread that have a length and touch the judged part."""
    schedule = context.schedule
    _, key = schedule.threads[thread]
    return context.trace.table(table, ["start_ns", "end_ns", "name", "thread"]).filter(
        pl.col("thread") == key,
        pl.col("end_ns") > pl.col("start_ns"),
        pl.col("end_ns") > schedule.start_ns,
        pl.col("start_ns") < schedule.end_ns,
    )
