"""A timeline and a report of the same program, joined: how much of a step is how near to the roof.

The timeline says how often a kernel runs and how long it takes among the others; the report, how
near to the GPU's limits it comes. What was measured is taken to hold for all launches of the same
kernel, grid and block.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.counters.choose import no_counters
from gpusight.analyses.devices import device_names
from gpusight.analyses.join.launches import Joined, join_launches
from gpusight.analyses.join.match import NO_SHAPE
from gpusight.analyses.join.tables import kernel_rows, unmeasured, unused
from gpusight.analyses.kernels import graph_notes, no_kernels
from gpusight.analyses.select import EVERYTHING, Scope, Selection
from gpusight.analyses.statistics import average
from gpusight.model.kernel_names import classify
from gpusight.result import Composite, Fact, Fmt, NotApplicable, TableResult

if TYPE_CHECKING:
    from gpusight.model.trace import Trace

COMMAND = "join"
_SAME_SPEED = 0.05
"""Durations nearer than this to each other are not worth a note."""
_ANOTHER_PROGRAM = 3.0
"""From this ratio on, other clocks and cold caches do not explain the difference."""

FACTS = (
    Fact("first", "First", None, Fmt.TEXT, "The kernel with most time above its roof, in words"),
    Fact("window_ns", "Window", None, Fmt.TIME, "Time that shares refer to"),
    Fact("kernel_ns", "Kernel time", None, Fmt.TIME, "Sum of kernel durations in the timeline"),
    Fact("covered_share", "Measured", None, Fmt.SHARE, "Part of it that the report tells of"),
    Fact("kernels", "Kernels", None, Fmt.COUNT, "Kernels run in the timeline"),
    Fact("covered", "Told of", None, Fmt.COUNT, "Those that the report tells of"),
    Fact("launches", "Told by", None, Fmt.COUNT, "Measured launches that tell of them"),
    Fact("sm_share", "SMs busy", None, Fmt.SHARE, "While measured kernels ran, by time"),
    Fact("memory_share", "Memory busy", None, Fmt.SHARE, "The same of the memory system"),
    Fact("dram_share", "DRAM busy", None, Fmt.SHARE, "The same of the GPU's memory"),
    Fact("tflop", "TFLOP", None, Fmt.REAL, "10¹² operations of the measured kernels"),
    Fact("dram_bytes", "DRAM traffic", None, Fmt.BYTES, "Bytes that they moved"),
    Fact("intensity", "FLOP a byte", None, Fmt.REAL, "Operations for each byte moved"),
    Fact("busy_tflop_per_s", "TFLOP/s, busy", None, Fmt.REAL, "A second of their time"),
    Fact("window_tflop_per_s", "TFLOP/s, window", None, Fmt.REAL, "A second of the window"),
    Fact("window_dram_bytes_per_s", "DRAM, window", None, Fmt.RATE, "Bytes a second of the window"),
    Fact("busy_roof_share", "Of roof, busy", None, Fmt.SHARE, "How near to it, while they ran"),
    Fact("roof_share", "Of roof, window", None, Fmt.SHARE, "What the roof needs, of the window"),
)
"""Every fact, without its value."""


def join(
    timeline: Trace, report: Trace, selection: Selection = EVERYTHING
) -> Composite | NotApplicable:
    """Join the kernels of a timeline with what a report measured of them.

    `selection` is of the timeline. The two may be given in either order.
    """
    if timeline.has("profiles") and report.has("kernels"):
        timeline, report = report, timeline
    if not report.has("profiles"):
        return no_counters(COMMAND)
    if not timeline.has("kernels"):
        return _no_timeline(timeline)
    scope = Scope(timeline, selection)
    joined = join_launches(scope, report)
    if joined.timeline.is_empty():
        return NotApplicable(COMMAND, "no kernel was launched inside the selection")
    if joined.timeline["launch"].null_count() == joined.timeline.height:
        return _nothing_common(joined)
    window_ns = scope.window.length_ns
    window = "the window" if selection.within is None else selection.within
    kernels = kernel_rows(joined, window_ns, window)
    others = (unmeasured(joined, window_ns), unused(joined))
    return Composite(
        COMMAND,
        "Timeline and report" + (f" of {selection.within}" if selection.within else ""),
        _facts(joined, kernels, window_ns),
        (kernels, *(section for section in others if section.frame.height)),
        meta={"timeline": timeline.meta.path, "report": report.meta.path},
        notes=(
            *scope.notes,
            *graph_notes(timeline),
            *_matching_notes(joined),
            *_partner_notes(joined),
            *_speed_notes(joined),
            *_gpu_notes(timeline, report),
        ),
    )


def _no_timeline(trace: Trace) -> NotApplicable:
    if trace.has("profiles"):
        reason = "both captures are reports of measured launches: one must be a timeline"
        return NotApplicable(COMMAND, reason, "capture one with: gpusight record …")
    return no_kernels(trace, COMMAND)


def _nothing_common(joined: Joined) -> NotApplicable:
    """Say that the two have nothing in common, by the names that take most time on each side."""
    longest = (
        _longest(frame, time)
        for frame, time in ((joined.timeline, "time_ns"), (joined.report, "duration_ns"))
    )
    here, there = longest
    if not there:
        reason = "the report measured ranges or graphs as wholes, not single kernels"
        return NotApplicable(COMMAND, reason, "measure with: ncu --replay-mode kernel …")
    what = "grids and blocks" if (joined.timeline["why"] == NO_SHAPE).any() else "names"
    return NotApplicable(
        COMMAND,
        f"no measured launch fits a kernel of the timeline by its {what}: the timeline has {here}, "
        f"the report {there}",
        "measure the same program, on the same input, with: ncu --set full -o report PROGRAM",
    )


def _longest(frame: pl.DataFrame, time: str) -> str:
    by = frame.group_by("name", maintain_order=True).agg(pl.col(time).sum())
    names = by.sort(time, descending=True, nulls_last=True)["name"].head(2).cast(pl.String)
    return " and ".join(repr(classify(name).short) for name in names)


def _facts(joined: Joined, kernels: TableResult, window_ns: int) -> tuple[Fact, ...]:
    rows = joined.timeline
    told = rows.filter(pl.col("launch").is_not_null())
    kernel_ns, told_ns = (float(frame["time_ns"].sum()) for frame in (rows, told))
    flops, moved = (_sum(told, column) for column in ("flops", "dram_bytes"))
    roof = average(told, "roof_share", "time_ns")
    values = {
        "first": kernels.frame["sentence"][0],
        "window_ns": window_ns or None,
        "kernel_ns": kernel_ns,
        "covered_share": told_ns / kernel_ns if kernel_ns else None,
        "kernels": rows.height,
        "covered": told.height,
        "launches": told["launch"].n_unique(),
        **{c: average(told, c, "time_ns") for c in ("sm_share", "memory_share", "dram_share")},
        "tflop": _ratio(flops, 1e12),
        "dram_bytes": moved,
        "intensity": _ratio(flops, moved),
        "busy_tflop_per_s": _ratio(flops, told_ns * 1e3),
        "window_tflop_per_s": _ratio(flops, window_ns * 1e3),
        "window_dram_bytes_per_s": _ratio(moved, window_ns / 1e9),
        "busy_roof_share": roof,
        "roof_share": None if roof is None else _ratio(roof * told_ns, float(window_ns)),
    }
    facts = (Fact(f.key, f.label, values[f.key], f.fmt, f.meaning) for f in FACTS)
    return tuple(fact for fact in facts if fact.value is not None)


def _ratio(over: float | None, under: float | None) -> float | None:
    return over / under if over is not None and under else None


def _sum(frame: pl.DataFrame, column: str) -> float | None:
    """Add up what is known of every launch; else nothing can be said of the whole."""
    return None if frame[column].null_count() else float(frame[column].sum())


def _matching_notes(joined: Joined) -> list[str]:
    rows, found = joined.timeline, joined.cover
    told = rows.filter(pl.col("launch").is_not_null())
    exact = int(told["exact"].sum())
    notes = []
    if exact < told.height:
        stood_in = told.height - exact
        notes.append(
            f"{told['launch'].n_unique():,} measured launches tell of {told.height:,} kernels: "
            f"{stood_in:,} by the same name, grid and block, not as part of the measured sequence"
        )
    if not found.keys.shapes:
        notes.append("grids and blocks are not told by both captures: matched by name only")
    if found.keys.by_function:
        notes.append(
            f"{found.keys.by_function:,} names differ in how template arguments are written: "
            "matched by function"
        )
    lacking = [c for c in ("roof_share", "flops", "sm_share") if told[c].null_count()]
    if told.height < rows.height:
        notes.append("operations, bytes and the roof are of the measured kernels: at least so much")
    if lacking:
        notes.append(
            "counters for the roofline are missing for some launches: "
            "measure with --section SpeedOfLight --section SpeedOfLight_RooflineChart"
        )
    return notes


def _partner_notes(joined: Joined) -> list[str]:
    """Count what has no partner, on both sides."""
    alone = joined.timeline.filter(pl.col("launch").is_null())
    unused_rows = joined.report.filter(pl.col("why") != "")
    notes = []
    for frame, one, several, where in (
        (alone, "kernel was not measured", "kernels were not measured", "the report"),
        (
            unused_rows,
            "measured launch tells of nothing",
            "measured launches tell of nothing",
            "the timeline",
        ),
    ):
        shape = int((frame["why"] == NO_SHAPE).sum())
        absent = frame.height - shape
        parts = [f"{absent:,} by a name that {where} lacks"] if absent else []
        parts += [f"{shape:,} by another grid or block"] if shape else []
        if parts:
            what = one if frame.height == 1 else several
            notes.append(f"{frame.height:,} {what}: {', '.join(parts)}")
    return notes


def _speed_notes(joined: Joined) -> list[str]:
    """Say how durations of the two differ, and why they may."""
    told = joined.timeline.filter(pl.col("measured_ns").is_not_null())
    here, there = float(told["time_ns"].sum()), float(told["measured_ns"].sum())
    if not here or not there or abs(there / here - 1) < _SAME_SPEED:
        return []
    ratio = there / here
    why = "ncu runs each kernel alone, with cold caches, at a fixed clock unless told otherwise"
    if not 1 / _ANOTHER_PROGRAM < ratio < _ANOTHER_PROGRAM:
        why = "too far apart for the same work on the same GPU"
    took = f"kernels took {ratio:.2f} times as long while measured as in the timeline"
    return [f"{took}: {why}; shares of the roof are those measured"]


def _gpu_notes(timeline: Trace, report: Trace) -> list[str]:
    here, there = (
        sorted({name for name in device_names(trace).values() if name})
        for trace in (timeline, report)
    )
    if not here or not there or set(here) & set(there):
        return []
    gpus = f"the timeline is of {', '.join(here)}, the report of {', '.join(there)}"
    return [f"{gpus}: what was measured need not hold"]
