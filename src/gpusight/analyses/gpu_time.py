"""How each GPU spent the window: computing, only copying, on other work, or idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analyses.advice import advice_for
from gpusight.analyses.devices import device_names
from gpusight.analyses.select import ACTIVITY, EVERYTHING, GPU_WORK, Scope, Selection
from gpusight.model.intervals import Intervals, coverage, subtract, union
from gpusight.result import Field, Fmt, NotApplicable, TableResult

if TYPE_CHECKING:
    from gpusight.model.trace import Trace

_COMPUTE = ("kernels", "graph_launches")
_MOVE = ("copies", "memsets")
_NOTHING = pl.DataFrame(schema=dict.fromkeys(("start_ns", "end_ns", "device"), pl.Int64))

FIELDS = (
    Field("device", "GPU", Fmt.ID, "The GPU's number in the capture"),
    Field("name", "Name", Fmt.NAME, "Marketing name"),
    Field("window_ns", "Window", Fmt.TIME, "Time looked at", shown=False),
    Field("busy_share", "Busy", Fmt.SHARE, "Part of the window with a kernel running"),
    Field("copy_only_share", "Copy only", Fmt.SHARE, "Part with a copy or fill but no kernel"),
    Field("other_share", "Other work", Fmt.SHARE, "Part with only work from outside the selection"),
    Field("idle_share", "Idle", Fmt.SHARE, "Part with nothing running"),
    Field("busy_ns", "Busy time", Fmt.TIME, "Time with a kernel running", shown=False),
    Field("copy_only_ns", "Copy-only time", Fmt.TIME, "Time with only copies", shown=False),
    Field("other_ns", "Other time", Fmt.TIME, "Time with only unselected work", shown=False),
    Field("idle_ns", "Idle time", Fmt.TIME, "Time with nothing running", shown=False),
    Field("kernel_ns", "Kernel time", Fmt.TIME, "Sum of kernel durations", shown=False),
    Field("concurrency", "Concurrency", Fmt.REAL, "Kernels running at a time, while any is"),
    Field("streams", "Streams", Fmt.COUNT, "Streams that did work"),
)


def gpu_time(trace: Trace, selection: Selection = EVERYTHING) -> TableResult | NotApplicable:
    """Split the window of each GPU that did work; the shares of a row sum to 1."""
    scope = Scope(trace, selection)
    scope.prepare(*ACTIVITY)
    frame = _per_device(scope) if selection else trace.derive("gpu-2", lambda: _per_device(scope))
    if frame.is_empty():
        return NotApplicable("gpu_time", _no_work(trace, selection), advice_for(trace.meta).gpu)
    return TableResult("gpu_time", "GPU time", FIELDS, frame, notes=scope.notes)


def _no_work(trace: Trace, selection: Selection) -> str:
    if trace.has("op_totals"):
        return "totals do not say how busy the GPU was"
    return "the capture shows no GPU work" + (" in the selection" if selection else "")


def _per_device(scope: Scope) -> pl.DataFrame:
    names, streams = device_names(scope.trace), _count_streams(scope)
    computing, moving = (_by_device(scope, tables) for tables in (_COMPUTE, _MOVE))
    running = _by_device(Scope(scope.trace), GPU_WORK) if scope.selection else {}
    rows = [
        {"name": names.get(device), "device": device, "streams": streams[device]}
        | _split(scope, *(spans.get(device, _NOTHING) for spans in (computing, moving, running)))
        for device in sorted(computing.keys() | moving.keys())
    ]
    return pl.DataFrame(rows, schema=_schema())


def computing(trace: Trace, device: int) -> Intervals:
    """Give the time during which any kernel (or whole graph) ran on a GPU."""
    return _union(_spans(Scope(trace), device, _COMPUTE))


def idle(scope: Scope, device: int) -> Intervals:
    """Give the time of the window in which nothing ran on a GPU, selected or not."""
    everything = _union(_spans(Scope(scope.trace), device, GPU_WORK))
    return subtract(scope.window.intervals, everything)


def busiest(times: TableResult) -> dict[str, Any]:
    """Give the row of the GPU that computed longest."""
    return times.frame.sort("busy_ns", descending=True, maintain_order=True).row(0, named=True)


def _split(
    scope: Scope, kernels: pl.DataFrame, moves: pl.DataFrame, unselected: pl.DataFrame
) -> dict[str, Any]:
    window = scope.window.intervals
    compute = _union(kernels)
    selected = union(compute, _union(moves))
    everything = union(selected, _union(unselected))
    # Each holds the one before it, so the differences of their lengths are the parts.
    busy, active, running = (_length(spans, window) for spans in (compute, selected, everything))
    parts = {
        "busy": busy,
        "copy_only": active - busy,
        "other": running - active,
        "idle": window.length_ns - running,
    }
    kernel_ns = int((kernels["end_ns"] - kernels["start_ns"]).sum())
    return {
        "window_ns": window.length_ns,
        **{f"{part}_ns": spent for part, spent in parts.items()},
        **{f"{part}_share": _ratio(spent, window.length_ns) for part, spent in parts.items()},
        "kernel_ns": kernel_ns,
        "concurrency": _ratio(kernel_ns, compute.length_ns),
    }


def _spans(scope: Scope, device: int, tables: tuple[str, ...]) -> pl.DataFrame:
    return _by_device(scope, tables).get(device, _NOTHING)


def _by_device(scope: Scope, tables: tuple[str, ...]) -> dict[int, pl.DataFrame]:
    """Give the selected rows of some tables, apart for each GPU."""
    parts = [scope.gpu(table, _NOTHING.columns) for table in tables if scope.trace.has(table)]
    apart = pl.concat([_NOTHING, *parts]).partition_by("device", as_dict=True)
    return {int(device): rows for (device,), rows in apart.items()}


def _union(spans: pl.DataFrame) -> Intervals:
    return Intervals.from_arrays(spans["start_ns"].to_numpy(), spans["end_ns"].to_numpy())


def _length(spans: Intervals, window: Intervals) -> int:
    """Measure how much of the window the spans cover."""
    return int(coverage(spans, window.starts, window.ends).sum())


def _count_streams(scope: Scope) -> dict[int, int]:
    keys = ["device", "process", "context", "stream"]
    used = [scope.gpu(table, keys).unique() for table in GPU_WORK if scope.trace.has(table)]
    return dict(pl.concat(used).unique().group_by("device").len().iter_rows()) if used else {}


def _ratio(part: int, whole: int) -> float | None:
    return part / whole if whole else None


def _schema() -> dict[str, pl.DataType]:
    kinds: dict[Fmt, pl.DataType] = {
        Fmt.NAME: pl.String(),
        Fmt.SHARE: pl.Float64(),
        Fmt.REAL: pl.Float64(),
    }
    return {f.key: kinds.get(f.fmt, pl.Int64()) for f in FIELDS}
