"""Whether a capture can be trusted: it holds the GPU work that its API calls issued.

Launch calls without a kernel, calls recorded into a graph, lost events, clocks that disagree.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.capture_info import serious_messages
from gpusight.analysis.clock_alignment import clock_shifts
from gpusight.analysis.gpu_schedule import CallKind, kind_of, outer_calls
from gpusight.analysis.launch_index import KeyIndex, tables_with_rows
from gpusight.analysis.selection import GPU_WORK
from gpusight.trace.intervals import Intervals, contains
from gpusight.units import format_share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.trace.intervals import Flags
    from gpusight.trace.trace import Trace


KERNELS, COPIES, MEMSETS = "kernels", "copies", "memsets"
SOURCES = (KERNELS, COPIES, MEMSETS)
"""Parts of a capture that can be lost, as digests and metrics name them."""
_ISSUES = {
    CallKind.LAUNCH: KERNELS,
    CallKind.GRAPH: KERNELS,
    CallKind.COPY: COPIES,
    CallKind.MEMSET: MEMSETS,
}
_NOUNS = {
    KERNELS: ("kernel launches", "kernels"),
    COPIES: ("memcpy calls", "copies"),
    MEMSETS: ("memset calls", "memsets"),
}
MAX_UNANSWERED_SHARE = {KERNELS: 0.01, COPIES: 0.1, MEMSETS: 0.9}
"""Share of calls without GPU work above which a source counts as lost. Every launch has a kernel; a
copy of no bytes leaves no record, and memsets of some tools mostly leave none."""
_COLUMNS = ["start_ns", "end_ns", "name", "thread", "process", "correlation", "return_value"]
_MAX_ANSWERED_SHARE = 0.5
"""Share of a thread's calls during a graph capture that may have GPU work of their own."""
_BEGINS = re.compile(r"StreamBeginCapture")
_ENDS = re.compile(r"StreamEndCapture")
LOST_EVENTS = re.compile(
    r"\b(?:drop(?:ped|s)?|lost|discarded|overflow\w*|truncat\w*|corrupt\w*|incomplete|"
    r"out of (?:memory|space)|insufficient)\b"
    r"|might be missing|not enough (?:memory|space)"
    r"|CUDA (?:profiling|tracing) might (?:have )?not",
    re.IGNORECASE,
)
"""What profilers write when events are gone. nsys writes of every capture that the program itself
stopped that not all events *might* have been collected: that is no loss."""


@dataclass(frozen=True, slots=True)
class IssuedWork:
    """Calls that issue one kind of GPU work, and those whose work is not in the capture."""

    calls: int
    unanswered: int
    recorded: int = 0
    """Further calls that were recorded into a CUDA graph: what they launch did not run then."""

    @property
    def share(self) -> float:
        """Share of the calls without GPU work."""
        return self.unanswered / self.calls if self.calls else 0.0


def issued_work(
    trace: Trace, spans: Sequence[tuple[int, int]], process: int | None = None
) -> dict[str, IssuedWork]:
    """Count the calls in these spans that issue GPU work; empty where no API calls were recorded.

    The runtime calls the driver: of calls inside each other the outermost counts, and any of them
    may carry the correlation id. GPU work without a known call is not lost: it may be what such a
    call issued.
    """
    if not trace.has("api_calls"):
        return {}
    inside = Intervals.from_arrays(*np.array(spans, np.int64).reshape(-1, 2).T)
    calls = _calls(trace, inside, process)
    issued = {}
    for number, name in enumerate(SOURCES):
        own = calls.filter(pl.col("source") == number)
        answered = own.filter(~pl.col("recorded"))["answered"]
        unanswered = int((~answered).sum())
        if unanswered and trace.has(name):
            unanswered = max(0, unanswered - _unlinked(trace, name, inside))
        issued[name] = IssuedWork(len(answered), unanswered, own.height - len(answered))
    return issued


def _calls(trace: Trace, inside: Intervals, process: int | None) -> pl.DataFrame:
    """List the outermost calls that issue GPU work.

    `source` by number, whether `answered`, and whether `recorded` into a graph.
    """
    api = trace.table("api_calls", _COLUMNS)
    if process is not None:
        api = api.filter((pl.col("process") == process) | pl.col("process").is_null())
    sources = [_ISSUES.get(kind_of(name)) for name in names_of(api["name"])]
    numbers = np.array([-1 if s is None else SOURCES.index(s) for s in sources], np.int64)
    codes = api["name"].to_physical().to_numpy()
    source = numbers[codes] if len(codes) else codes
    answered = _answered(trace, api)
    failed = (api["return_value"].fill_null(0) != 0).to_numpy()
    source = np.where(failed, -1, source)
    each = api.select(
        "process",
        "thread",
        pl.Series("source", source, pl.Int64),
        pl.Series("answered", answered),
        pl.Series("recorded", _recorded(api, failed, source >= 0, answered)),
        pl.Series("within", contains(inside, api["start_ns"].to_numpy())),
    )
    outer, _ = outer_calls(api)
    issues = (pl.col("source") >= 0) & pl.col("within")
    if outer.all():
        return each.filter(issues).select("source", "answered", "recorded")
    return _outermost(each.with_columns(pl.Series("outer", outer)), issues)


def _outermost(each: pl.DataFrame, issues: pl.Expr) -> pl.DataFrame:
    """Merge nested calls: the first that issues work gives the source, any may be answered."""
    around = pl.when("outer").then("row").forward_fill().over("process", "thread")
    each = each.with_row_index("row").with_columns(around.alias("around"))
    answered = each.filter("answered")["around"].unique()
    first = each.filter(issues).unique("around", keep="first", maintain_order=True)
    answered_around = pl.col("around").is_in(answered.implode()).alias("answered")
    return first.select("source", answered_around, "recorded")


def _recorded(
    api: pl.DataFrame,
    failed: Flags,
    issuing: Flags,
    answered: Flags,
) -> Flags:
    """Find calls made while a stream was captured into a graph.

    Work of calls during a capture runs later, when the graph is launched. A thread most of whose
    calls have work of their own was not part of the capture.
    """
    names = names_of(api["name"])
    begins, ends = ([bool(p.search(name)) for name in names] for p in (_BEGINS, _ENDS))
    if not any(begins):
        return np.zeros(api.height, np.bool_)
    codes = api["name"].to_physical().to_numpy()
    first, last = api["start_ns"].to_numpy(), api["end_ns"].to_numpy()
    process = api["process"].fill_null(-1).to_numpy()
    captured = np.zeros(api.height, np.bool_)
    for key in np.unique(process):
        own = (process == key) & ~failed
        begun = np.sort(first[own & np.array(begins)[codes]])
        done = np.sort(last[own & np.array(ends)[codes]])
        open_now = np.searchsorted(begun, first, "right") > np.searchsorted(done, first, "right")
        captured |= own & open_now
    thread = api["thread"].fill_null(-1).to_numpy()
    for key in np.unique(thread[captured]):
        calls = captured & issuing & (thread == key)
        if np.count_nonzero(calls & answered) > _MAX_ANSWERED_SHARE * np.count_nonzero(calls):
            captured &= thread != key
    return captured


def _unlinked(trace: Trace, table: str, inside: Intervals) -> int:
    """Count the GPU activities that started in these spans and whose call is unknown."""
    api = trace.table("api_calls", ["process", "correlation"])
    work = trace.table(table, ["start_ns", "process", "correlation"])
    index = KeyIndex(api["process"], api["correlation"])
    linked = index.find(work["process"], work["correlation"]) >= 0
    return int(np.count_nonzero(~linked & contains(inside, work["start_ns"].to_numpy())))


def _answered(trace: Trace, calls: pl.DataFrame) -> Flags:
    """Return which calls have GPU work of their correlation id."""
    answered = np.zeros(calls.height, np.bool_)
    for table in tables_with_rows(trace, GPU_WORK):
        work = trace.table(table, ["process", "correlation"])
        index = KeyIndex(work["process"], work["correlation"])
        answered |= index.find(calls["process"], calls["correlation"]) >= 0
    return answered


def lost_sources(trace: Trace, issued: dict[str, IssuedWork]) -> dict[str, str]:
    """Return the sources that the capture has lost, with the evidence."""
    reasons = {}
    for name, work in issued.items():
        calls, activities = _NOUNS[name]
        if work.unanswered and work.share > MAX_UNANSWERED_SHARE[name]:
            count = f"{work.unanswered:,} of {work.calls:,} {calls} ({format_share(work.share)})"
            reasons[name] = f"{count} have no {activities} in the capture"
    if not issued and not (trace.has("kernels") or trace.has("graph_launches")):
        reasons[KERNELS] = "the capture has no GPU kernels"
    return reasons


def lost_work_notes(trace: Trace, spans: Sequence[tuple[int, int]]) -> list[str]:
    """Note that clocks disagree, and that API calls of these spans prove lost kernels or copies.

    Memsets are left out: some tools record none.
    """
    issued = issued_work(trace, spans)
    issued.pop(MEMSETS, None)
    reasons = lost_sources(trace, issued).values() if issued else ()
    clocks = (shift.described(corrected=False) for shift in clock_shifts(trace))
    return [*clocks, *(f"{reason}: GPU times are too small" for reason in reasons)]


def recorded_note(issued: dict[str, IssuedWork]) -> list[str]:
    """Note which calls were recorded into a CUDA graph, so that nobody looks for their kernels."""
    count = issued[KERNELS].recorded if KERNELS in issued else 0
    launches = "kernel launch was" if count == 1 else "kernel launches were"
    text = f"{count:,} {launches} recorded into a CUDA graph: the kernels run when it is launched"
    return [text] if count else []


def reported_losses(trace: Trace) -> tuple[str, ...]:
    """Return what the reader or the profiler reports as missing from the capture, each once."""
    messages = (text for text in serious_messages(trace)["text"] if LOST_EVENTS.search(text))
    return tuple(dict.fromkeys((*trace.losses, *messages)))
