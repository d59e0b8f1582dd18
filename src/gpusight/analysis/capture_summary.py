"""One screen about a capture: GPU utilization, top kernels, copies, ranges and API calls."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.aggregates import share_of
from gpusight.analysis.api_summary import api_calls
from gpusight.analysis.capture_completeness import lost_work_notes
from gpusight.analysis.capture_info import device_names, serious_messages
from gpusight.analysis.copy_summary import copies
from gpusight.analysis.gpu_time import gpu_time, mean_share, overhead_note
from gpusight.analysis.kernel_summary import graph_notes, kernels
from gpusight.analysis.range_summary import ranges
from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.selection import EVERYTHING, ResolvedSelection, Selection
from gpusight.results import Composite, Fact, Field, Fmt, NotApplicable, TableResult

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpusight.trace.trace import Trace


TOP_CATEGORIES = 6
TOP_KERNELS = 6
TOP_OPS = 6
TOP_RANGES = 6
TOP_CALLS = 4

CATEGORY_FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Part of all kernel time"),
    Field("total_ns", "Total", Fmt.TIME, "Sum of kernel durations"),
    Field("calls", "Calls", Fmt.COUNT, "Kernels run"),
    Field("kernel_names", "Kernels", Fmt.COUNT, "Different kernels"),
    Field("category", "Category", Fmt.TEXT, "What the kernels do, from their names"),
)
_GPU = ("start_ns", "end_ns", "device", "process", "context", "stream", "correlation")
_HOST = ("start_ns", "end_ns", "name", "thread", "process")
READS = {
    "kernels": (*_GPU, "name"),
    "copies": (*_GPU, "bytes", "kind", "src_kind", "dst_kind"),
    "memsets": (*_GPU, "bytes", "memory_kind"),
    "graph_launches": _GPU,
    "api_calls": (*_HOST, "api", "return_value", "correlation"),
    "ranges": (*_HOST, "kind", "domain", "domain_key", "open", "end_thread", "source"),
}
"""Columns that the sections use together."""
_TIME_PARTS = (
    ("busy_share", "busy", "Part of the window with a kernel or copy running"),
    ("copy_only_share", "copies only", "Part with a copy or memset but no kernel"),
    ("other_share", "other work", "Part with only work from outside the selection"),
    ("idle_share", "idle", "Part with nothing running"),
)
_LOST = ("Not all", "dropped", "lost", "incomplete", "buffer")


def summary(trace: Trace, selection: Selection = EVERYTHING) -> Composite:
    """Answer in one screen where the time of the selection goes."""
    if trace.has("profiles") and not trace.has("kernels"):
        from gpusight.analysis.counters.measured_kernels import overview

        return overview(trace, selection)
    scope = ResolvedSelection(trace, selection)
    trace.read_together(READS)
    work, times = kernels(trace, selection), gpu_time(trace, selection)
    calls, moved = (f(trace, selection) for f in (api_calls, copies))
    named = ranges(trace, selection, top=TOP_RANGES)
    operators: list[TableResult | NotApplicable] = []
    if trace.has("cpu_ops") or trace.has("op_totals"):
        # Captures of nsys, which have none, need not wait for what operators need.
        from gpusight.analysis.operator_summary import ops

        operators = [s for s in [_top(ops(trace, selection), TOP_OPS)] if _has_rows(s)]
    # Where nothing ran on a GPU, what the host did is the answer; why comes after it.
    sections: list[TableResult | NotApplicable] = [*operators, work]
    if isinstance(work, TableResult):
        sections = [_top(categories(work), TOP_CATEGORIES), _top(work, TOP_KERNELS), *operators]
    if isinstance(times, TableResult) and times.frame.height > 1:
        sections.insert(0, times)
    if isinstance(named, TableResult):
        named = _titled(named, named.meta["range_names"])
    sections.append(named)
    sections += [s for s in (moved, _top(calls, TOP_CALLS)) if _has_rows(s)]
    return Composite(
        "summary",
        "Summary",
        _facts(scope, work, times, calls),
        # The summary shows the notes of all sections together.
        tuple(replace(s, notes=()) if isinstance(s, TableResult) else s for s in sections),
        meta={"path": trace.meta.path},
        notes=_notes(trace, scope, sections, times),
    )


def categories(work: TableResult) -> TableResult:
    """Sum a table of kernels up by category."""
    frame = (
        work.frame.group_by("category")
        .agg(pl.col("total_ns", "calls").sum(), pl.len().cast(pl.Int64).alias("kernel_names"))
        .with_columns(share_of(pl.col("total_ns"), pl.col("total_ns").sum()).alias("share"))
        .sort(["total_ns", "category"], descending=[True, False])
    )
    keys = [f.key for f in CATEGORY_FIELDS]
    return TableResult("categories", "Kernel time by category", CATEGORY_FIELDS, frame.select(keys))


def _facts(
    scope: ResolvedSelection,
    work: TableResult | NotApplicable,
    times: TableResult | NotApplicable,
    calls: TableResult | NotApplicable,
) -> tuple[Fact, ...]:
    window_ns, trace = scope.window.length_ns, scope.trace
    # The GPUs that worked, or those of the machine where none did.
    used = times.frame["name"] if isinstance(times, TableResult) else device_names(trace).values()
    counts = Counter(name for name in used if name)
    gpus = ", ".join(name if n == 1 else f"{n} × {name}" for name, n in counts.items())
    facts = [
        Fact("gpus", "GPU", gpus or None, Fmt.TEXT, "GPUs that did work"),
        Fact("duration_ns", "Captured", trace.meta.duration_ns, Fmt.TIME, "Whole capture"),
        Fact("window_ns", "Window", window_ns or None, Fmt.TIME, "Time that shares refer to"),
    ]
    if isinstance(times, TableResult):  # the mean of the GPUs; with several, a table shows each
        facts += [
            Fact(f"gpu_{key}", f"GPU {label}", mean_share(times, key), Fmt.SHARE, meaning)
            for key, label, meaning in _TIME_PARTS
            if key != "other_share" or times.frame["other_ns"].sum()
        ]
    if isinstance(work, TableResult):
        count, total = work.meta["kernels"], work.meta["total_ns"]
        rate = count * 1e9 / window_ns if window_ns else None
        facts += [
            Fact("kernels", "Kernels", count, Fmt.COUNT, "Kernels run"),
            Fact("kernel_ns", "Kernel time", total, Fmt.TIME, "Sum of kernel durations"),
            Fact("kernels_per_s", "Kernels/s", rate, Fmt.REAL, "Kernels per second of the window"),
        ]
    if isinstance(calls, TableResult):
        # Of the runtime's and driver's own calls: those of libraries contain them.
        own = calls.frame.filter(pl.col("api").fill_null("runtime").is_in(["runtime", "driver"]))
        share = int(own["total_ns"].sum()) / window_ns if window_ns else None
        name = advice_for(trace.meta).calls_short
        meaning = f"Host time in {name} over the window; threads add up"
        facts.append(Fact("api_share", f"In {name}", share, Fmt.SHARE, meaning))
    return tuple(fact for fact in facts if fact.value is not None)


def _notes(
    trace: Trace,
    scope: ResolvedSelection,
    sections: Iterable[TableResult | NotApplicable],
    times: TableResult | NotApplicable,
) -> tuple[str, ...]:
    inside = scope.window.intervals
    spans = list(zip(inside.starts.tolist(), inside.ends.tolist(), strict=True))
    notes = [
        *scope.notes,
        *graph_notes(trace, scope.selection.time),
        *lost_work_notes(trace, spans),
    ]
    if isinstance(times, NotApplicable):
        notes.append(times.reason)
    notes += overhead_note(scope, times)
    messages = serious_messages(trace)["text"]
    lost = [text for text in messages if any(word in text for word in _LOST)]
    notes += [f"profiler warning: {' '.join(lost)}"] if lost else []
    for section in sections:
        notes += section.notes if isinstance(section, TableResult) else ()
    return tuple(dict.fromkeys([*notes, *trace.meta.notes]))


def _has_rows(section: TableResult | NotApplicable) -> bool:
    return isinstance(section, TableResult) and section.frame.height > 0


def _top(section: TableResult | NotApplicable, rows: int) -> TableResult | NotApplicable:
    if isinstance(section, NotApplicable) or section.frame.height <= rows:
        return section
    return _titled(replace(section, frame=section.frame.head(rows)), section.frame.height)


def _titled(section: TableResult, of: int) -> TableResult:
    """Add to the title that rows were left out."""
    rows = section.frame.height
    more = f": top {rows} of {of:,}" if of > rows else ""
    return replace(section, title=section.title + more)
