"""How each GPU spent the window: computing, copying or idle; and what the profiler itself cost."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import schema_of
from gpusight.analysis.capture_info import device_names
from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.selection import ACTIVITY, EVERYTHING, GPU_WORK, ResolvedSelection, Selection
from gpusight.analysis.steps.step_list import TraceSteps, called, ends_of, starts_of
from gpusight.analysis.steps.step_window import WindowedTrace, step_window, with_window
from gpusight.analysis.steps.window_headline import WindowHeadline, headline_of
from gpusight.results import Field, Fmt, NotApplicable, TableResult
from gpusight.trace.intervals import Intervals, coverage, intersect, subtract, union
from gpusight.units import format_time

if TYPE_CHECKING:
    from gpusight.analysis.selection import SelectedWindow
    from gpusight.analysis.steps.window_headline import StepWindow
    from gpusight.trace.trace import Trace


_COMPUTE = ("kernels", "graph_launches")
_COPY = ("copies", "memsets")
_NOTHING = pl.DataFrame(schema=dict.fromkeys(("start_ns", "end_ns", "device"), pl.Int64))

FIELDS = (
    Field("device", "GPU", Fmt.ID, "The GPU's number in the capture"),
    Field("name", "Name", Fmt.NAME, "Marketing name"),
    Field("window_ns", "Window", Fmt.TIME, "Length of the time window", shown=False),
    Field("busy_share", "Busy", Fmt.SHARE, "Part of the window with a kernel or copy running"),
    Field("copy_only_share", "Copy only", Fmt.SHARE, "Part with a copy or memset but no kernel"),
    Field("other_share", "Other work", Fmt.SHARE, "Part with only work from outside the selection"),
    Field("idle_share", "Idle", Fmt.SHARE, "Part with nothing running"),
    Field("busy_ns", "Busy time", Fmt.TIME, "Time with a kernel or copy running", shown=False),
    Field("copy_only_ns", "Copy-only time", Fmt.TIME, "Time with only copies", shown=False),
    Field("other_ns", "Other time", Fmt.TIME, "Time with only unselected work", shown=False),
    Field("idle_ns", "Idle time", Fmt.TIME, "Time with nothing running", shown=False),
    Field("kernel_ns", "Kernel time", Fmt.TIME, "Sum of kernel durations", shown=False),
    Field("concurrency", "Concurrency", Fmt.REAL, "Mean number of kernels running, while any is"),
    Field("streams", "Streams", Fmt.COUNT, "Streams that did work"),
)


def gpu_time(trace: Trace, selection: Selection = EVERYTHING) -> TableResult | NotApplicable:
    """Split the window of each GPU that did work; busy, other and idle shares sum to 1."""
    scope = ResolvedSelection(trace, selection)
    scope.prepare(*ACTIVITY)
    frame = _per_device(scope) if selection else trace.derive("gpu-3", lambda: _per_device(scope))
    if frame.is_empty():
        reason = "the capture shows no GPU work" + (" in the selection" if selection else "")
        if trace.has("op_totals"):
            reason = "printed totals do not show how busy the GPU is"
        return NotApplicable("gpu_time", reason, advice_for(trace.meta).gpu)
    return TableResult("gpu_time", "GPU time", FIELDS, frame, notes=scope.notes)


def _per_device(scope: ResolvedSelection) -> pl.DataFrame:
    names = device_names(scope.trace)
    keys = ["device", "process", "context", "stream"]
    used = [scope.gpu(table, keys).unique() for table in GPU_WORK if scope.trace.has(table)]
    streams = dict(pl.concat(used).unique().group_by("device").len().iter_rows()) if used else {}
    part = scope.selection.whole_time
    running = _by_device(ResolvedSelection(scope.trace), GPU_WORK) if part else {}
    if scope.selection.time is None or part.within is not None:
        computing, copying = (_by_device(scope, tables) for tables in (_COMPUTE, _COPY))
    else:
        # All that runs in the window keeps the GPU busy, also what was launched before it.
        whole = ResolvedSelection(scope.trace, part)
        computing, copying = (_by_device(whole, t, scope.window) for t in (_COMPUTE, _COPY))
    rows = [
        {"name": names.get(device), "device": device, "streams": streams.get(device, 0)}
        | _split(scope, *(spans.get(device, _NOTHING) for spans in (computing, copying, running)))
        for device in sorted(computing.keys() | copying.keys())
    ]
    return pl.DataFrame(rows, schema=schema_of(FIELDS))


def headline(trace: Trace, selection: Selection, chosen: StepWindow) -> WindowHeadline:
    """Name a window of a capture; other activity than that of the selection is not counted."""
    part = replace(selection, within=None, time=chosen.time)
    times = gpu_time(trace, part)
    rows = times.frame if isinstance(times, TableResult) else pl.DataFrame()
    busy = dict(rows.select("device", "busy_share").iter_rows()) if rows.height else {}
    return headline_of(chosen, busy)


MAX_CORRECTED = 100_000
"""GPU activities of a capture whose step time every command works out; a list of more takes less
time than the replay that the step time needs."""


def window_headline(
    trace: Trace,
    selection: Selection,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
) -> WindowHeadline | None:
    """Name the window of a capture, whose times without the profiler are worked out for it."""
    if not any(trace.has(table) for table in ACTIVITY):
        return None
    focus: dict[str, Any] = {"steps": steps, "window": window, "warmup": warmup}
    if selection.within is not None and steps is None and window is None:
        return WindowHeadline(with_window(trace, selection, **focus)[1])
    many = sum(trace.row_count(table) for table in GPU_WORK) > MAX_CORRECTED
    if many and not isinstance(trace, WindowedTrace) and not trace.views:
        chosen = step_window(trace, selection, **focus)
        if isinstance(chosen, NotApplicable):
            return None
        return WindowHeadline(chosen.without_time, len(chosen.steps))
    from gpusight.analysis.profiler_correction import without_profiler

    corrected = without_profiler(trace, selection.process)
    chosen = step_window(corrected, selection, **focus)
    return None if isinstance(chosen, NotApplicable) else headline(corrected, selection, chosen)


def mean_share(times: TableResult, key: str) -> float | None:
    """Return a share of the window, the mean of all GPUs."""
    share = times.frame[key].mean()
    return None if share is None else float(share)  # type: ignore[arg-type]


def computing(trace: Trace, device: int) -> Intervals:
    """Return when any kernel (or whole graph) ran on a GPU."""
    kernels = _by_device(ResolvedSelection(trace), _COMPUTE)
    return _union(kernels.get(device, _NOTHING))


def busiest(times: TableResult) -> dict[str, Any]:
    """Return the row of the busiest GPU."""
    return times.frame.sort("busy_ns", descending=True, maintain_order=True).row(0, named=True)


def _split(
    scope: ResolvedSelection, kernels: pl.DataFrame, copies: pl.DataFrame, unselected: pl.DataFrame
) -> dict[str, Any]:
    window = scope.window.intervals
    compute = _union(kernels)
    selected = union(compute, _union(copies))
    everything = union(selected, _union(unselected))
    # Each contains the one before it, so the differences of their lengths are the parts.
    computed, busy, running = (
        int(coverage(spans, window.starts, window.ends).sum())
        for spans in (compute, selected, everything)
    )
    parts = {
        "busy": busy,
        "copy_only": busy - computed,
        "other": running - busy,
        "idle": window.length_ns - running,
    }
    kernel_ns = int((kernels["end_ns"] - kernels["start_ns"]).sum())
    return {
        "window_ns": window.length_ns,
        **{f"{part}_ns": ns for part, ns in parts.items()},
        **{f"{part}_share": _ratio(ns, window.length_ns) for part, ns in parts.items()},
        "kernel_ns": kernel_ns,
        "concurrency": _ratio(kernel_ns, compute.length_ns),
    }


def _by_device(
    scope: ResolvedSelection, tables: tuple[str, ...], window: SelectedWindow | None = None
) -> dict[int, pl.DataFrame]:
    """Return the selected rows of some tables by GPU, cut to a window where one is given."""
    parts = [scope.gpu(table, _NOTHING.columns) for table in tables if scope.trace.has(table)]
    rows = pl.concat([_NOTHING, *parts])
    if window is not None:
        start, end = window.start_ns, window.end_ns
        rows = rows.filter(pl.col("end_ns") > start, pl.col("start_ns") < end)
        rows = rows.with_columns(pl.col("start_ns", "end_ns").clip(start, end))
    apart = rows.partition_by("device", as_dict=True)
    return {int(device): own for (device,), own in apart.items()}


def _union(spans: pl.DataFrame) -> Intervals:
    return Intervals.from_arrays(spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy())


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


_MIN_OVERHEAD_SHARE = 0.01
"""Share of the window above which the profiler's overhead is worth a note."""
_MAX_STEPS_NAMED = 3
RECORDED_OVERHEAD = "recorded profiler overhead (without the cost of each event)"
"""Such as flushed buffers. What recording the events took is in no capture."""


def overhead_note(
    scope: ResolvedSelection,
    times: TableResult | NotApplicable,
    steps: TraceSteps | NotApplicable | None = None,
) -> tuple[str, ...]:
    """Note how much of the busiest GPU's idle time the profiler took, where it is much.

    `times` is the result of `gpu_time` for the same selection; of `steps`, those with overhead are
    named.
    """
    if isinstance(times, NotApplicable) or not scope.trace.has("overheads"):
        return ()
    window = scope.window.intervals
    min_ns = _MIN_OVERHEAD_SHARE * window.length_ns
    # Overhead that began before a range still fills the part of the range that it reaches into.
    processes = ResolvedSelection(scope.trace, Selection(process=scope.selection.process))
    from gpusight.analysis.ledger.idle_causes import without_loading  # most captures need no note

    rows = processes.host("overheads", ["start_ns", "end_ns", "name"])
    overheads = _union(without_loading(rows))
    if intersect(overheads, window).length_ns <= min_ns:
        return ()
    row = busiest(times)
    running = _by_device(ResolvedSelection(scope.trace), GPU_WORK).get(row["device"], _NOTHING)
    lost = intersect(overheads, subtract(window, _union(running)))
    if lost.length_ns <= min_ns:
        return ()
    gpu = f"GPU {row['device']}" if times.frame.height > 1 else "the GPU"
    text = f"{RECORDED_OVERHEAD}: {format_time(lost.length_ns)} of {gpu}'s idle time"
    return (text + _inside(lost, steps),)


def _inside(lost: Intervals, steps: TraceSteps | NotApplicable | None) -> str:
    """Name the steps that this time fell into."""
    if not isinstance(steps, TraceSteps):
        return ""
    overlaps = coverage(lost, starts_of(steps.steps), ends_of(steps.steps)) > 0
    names = [called(steps.steps[at]) for at in np.flatnonzero(overlaps).tolist()]
    if not names:
        return ""
    more = f" and {len(names) - _MAX_STEPS_NAMED} more" if len(names) > _MAX_STEPS_NAMED else ""
    return f" (in {', '.join(names[:_MAX_STEPS_NAMED])}{more})"
