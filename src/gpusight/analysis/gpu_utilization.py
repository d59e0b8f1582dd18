"""How busy each GPU was over time: time bins, hardware samples, steps."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of, schema_of
from gpusight.analysis.capture_info import device_names
from gpusight.analysis.corrected_trace import CorrectedTrace
from gpusight.analysis.kernel_summary import graph_notes
from gpusight.analysis.ledger.ledger_entries import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    IDLE,
    ActivityPriority,
)
from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.selection import EVERYTHING, GPU_WORK, ResolvedSelection, Selection
from gpusight.analysis.steps.step_window import step_window
from gpusight.analysis.steps.window_headline import StepWindow, headline_of
from gpusight.errors import UsageError
from gpusight.naming.kernel_names import classify
from gpusight.results import Composite, Fact, Field, Fmt, NotApplicable, TableResult
from gpusight.trace.intervals import Intervals, coverage, gaps, union
from gpusight.units import format_share

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


SHARES = (
    Field("busy_share", "Busy", Fmt.SHARE, "Part in which anything runs"),
    Field("compute_share", "Compute", Fmt.SHARE, "Part in which kernels run"),
    Field("copy_share", "Copies", Fmt.SHARE, "Part in which only memcpys or memsets run"),
    Field("communication_share", "Comm", Fmt.SHARE, "Part in which only communication runs"),
    Field("idle_share", "Idle", Fmt.SHARE, "Part in which nothing runs"),
)
BIN_FIELDS = (
    Field("device", "GPU", Fmt.ID, "Which GPU"),
    Field("start_ns", "Start", Fmt.TIME, "Start of the bin"),
    Field("duration_ns", "Duration", Fmt.TIME, "Length of the bin", shown=False),
    *SHARES,
    Field("kernels", "Kernels", Fmt.COUNT, "Kernels that start in it"),
    Field("compute_ns", "Compute time", Fmt.TIME, "Time in which kernels run", shown=False),
    Field("copy_ns", "Copy time", Fmt.TIME, "Time of only memcpys or memsets", shown=False),
    Field("communication_ns", "Comm time", Fmt.TIME, "Time of only communication", shown=False),
    Field("idle_ns", "Idle time", Fmt.TIME, "Time in which nothing runs", shown=False),
)
GPU_FIELDS = (
    Field("device", "GPU", Fmt.ID, "Which GPU"),
    Field("name", "Name", Fmt.NAME, "Name of the GPU"),
    *SHARES,
    Field("kernels", "Kernels", Fmt.COUNT, "Kernels that start in the window"),
    Field("longest_idle_ns", "Longest idle", Fmt.TIME, "Longest idle gap"),
    Field("longest_idle_at_ns", "At", Fmt.TIME, "Start of that gap"),
)
STEP_FIELDS = (
    Field("number", "Step", Fmt.ID, "Number of the step"),
    Field("start_ns", "Start", Fmt.TIME, "Start on the host"),
    Field("duration_ns", "Host", Fmt.TIME, "Duration on the host"),
    Field("busy_share", "Busy", Fmt.SHARE, "Part of it in which anything runs, mean of the GPUs"),
    Field("name", "Name", Fmt.NAME, "Name of the step's range", shown=False),
)
FACTS = (
    Field("window_ns", "Window", Fmt.TIME, "Time that shares refer to"),
    Field("steps", "Steps", Fmt.COUNT, "Steps in the window"),
    Field("step_ns", "Step time", Fmt.TIME, "Length of the window per step"),
    Field("gpus", "GPU", Fmt.TEXT, "GPUs that did work"),
    Field(
        "busy_share", "GPU busy", Fmt.SHARE, "Part of the window with GPU work, mean of the GPUs"
    ),
    *SHARES[1:],
    Field("busiest", "Busiest", Fmt.TEXT, "The busiest of several GPUs"),
    Field("least_busy", "Least busy", Fmt.TEXT, "The least busy of several GPUs"),
    Field("longest_idle_ns", "Longest idle", Fmt.TIME, "Longest idle gap of a GPU"),
    Field("longest_idle_at_ns", "Longest idle at", Fmt.TIME, "Start of that gap"),
    Field("longest_idle_device", "On GPU", Fmt.ID, "GPU of that gap, of several"),
    Field("bin_ns", "Bin", Fmt.TIME, "Length of a bin"),
)


METRIC_FIELDS = (
    Field("device", "GPU", Fmt.ID, "Which GPU"),
    Field("metric", "Metric", Fmt.NAME, "GPU metric, without its unit"),
    Field("start_ns", "Start", Fmt.TIME, "Start of the bin"),
    Field("share", "Share", Fmt.SHARE, "Mean of the samples in the bin, as part of the peak"),
    Field("samples", "Samples", Fmt.COUNT, "Samples in the bin; 0 where the last value holds"),
)
MEAN_FIELDS = (
    Field("device", "GPU", Fmt.ID, "Which GPU"),
    Field("metric", "Metric", Fmt.NAME, "GPU metric, without its unit"),
    Field("mean_share", "Mean", Fmt.SHARE, "Mean of the bins, as part of the peak"),
    Field("max_share", "Highest bin", Fmt.SHARE, "Highest mean of a bin"),
)
_BUSY_METRICS = (
    r"SMs? Active\b",
    r".*\bTensor\b.*\bActive\b",
    r"DRAM\b.*(?:Bandwidth|Throughput)\b",
)
"""Metrics of how busy a GPU was; there are dozens of others."""
_UNIT = re.compile(r"\s*\[[^\]]*%[^\]]*\]\s*$")
_SECTION = "metrics"


def sampled(
    trace: Trace, devices: Sequence[int], edges: Ints, shown: Ints | None = None
) -> list[TableResult | NotApplicable]:
    """Return `_BUSY_METRICS` of these GPUs: the mean of all, and between the edges of bins.

    `shown` are the edges that the bins have in the answer, where these are others.
    """
    if not trace.has("gpu_metrics"):
        wanted = (w for w in advice_for(trace.meta).wanted if w.table == "gpu_metrics")
        hint = next((f"capture with: {w.how}" for w in wanted), "")
        return [NotApplicable(_SECTION, "no GPU metrics were sampled", hint)]
    frame = trace.table("gpu_metrics", ["time_ns", "device", "metric", "value"])
    labels = [_label(name) for name in names_of(frame["metric"])]
    frame = frame.with_columns(pl.col("metric").to_physical().alias("code")).filter(
        pl.col("code").is_in([code for code, label in enumerate(labels) if label]),
        pl.col("device").is_in(list(devices)),
    )
    rows = [
        _binned(own, edges, edges if shown is None else shown).select(
            pl.lit(device, pl.Int64).alias("device"), pl.lit(labels[code]).alias("metric"), pl.all()
        )
        for (device, code), own in frame.group_by("device", "code", maintain_order=True)
    ]
    if not any(part.height for part in rows):
        return [NotApplicable(_SECTION, "no metric of SMs or memory was sampled in the window")]
    over_time = pl.concat(rows)
    means = over_time.group_by("device", "metric", maintain_order=True).agg(
        pl.col("share").mean().alias("mean_share"), pl.col("share").max().alias("max_share")
    )
    return [
        TableResult("metric_means", "GPU metrics", MEAN_FIELDS, means),
        TableResult(_SECTION, "GPU metrics over time", METRIC_FIELDS, over_time),
    ]


def _label(name: str) -> str | None:
    """Return the name of a metric without its unit; None for those that are not shown."""
    label, percentages = _UNIT.subn("", name)
    shown = any(re.match(pattern, label, re.IGNORECASE) for pattern in _BUSY_METRICS)
    return label if percentages and shown else None


def _binned(samples: pl.DataFrame, edges: Ints, shown: Ints) -> pl.DataFrame:
    """Average samples bin by bin; from the first to the last sample no bin is left out."""
    ordered = samples.sort("time_ns")
    times, values = ordered["time_ns"].to_numpy(), ordered["value"].to_numpy()
    first, after = (np.searchsorted(times, t) for t in (edges[:-1], edges[1:]))
    sums = np.concatenate(([0.0], np.cumsum(values)))
    count = after - first
    last_value = values[np.maximum(first - 1, 0)]
    mean = np.where(count > 0, (sums[after] - sums[first]) / np.maximum(count, 1), last_value)
    known = (count > 0) | ((first > 0) & (first < len(times)))
    columns = {
        "start_ns": shown[:-1],
        "share": np.clip(mean, 0.0, None) / 100,
        "samples": count,
    }
    return pl.DataFrame(columns).filter(known).cast({"samples": pl.Int64})


@dataclass(frozen=True)
class DeviceWork:
    """What one GPU did in the window."""

    computing: Intervals
    active: Intervals
    """Computing or moving data."""
    running: Intervals
    """Anything."""
    kernel_start_ns: Ints
    """Of kernels that began in the window, rising."""

    def parts(self, starts: Ints, ends: Ints) -> dict[str, Ints]:
        """Return the ns of each group in these windows; they sum to the length of the window."""
        compute, active, running = (
            coverage(spans, starts, ends) for spans in (self.computing, self.active, self.running)
        )
        return {
            COMPUTE: compute,
            COPY: active - compute,
            COMMUNICATION: running - active,
            IDLE: ends - starts - running,
        }

    def kernels(self, starts: Ints, ends: Ints) -> Ints:
        """Count the kernels that began in these windows."""
        first, after = (np.searchsorted(self.kernel_start_ns, t) for t in (starts, ends))
        counts: Ints = (after - first).astype(np.int64)
        return counts


def work_of(trace: Trace, selection: Selection, chosen: StepWindow) -> dict[int, DeviceWork]:
    """Collect what ran in the window, GPU by GPU."""
    processes = ResolvedSelection(trace, replace(selection, within=None)).processes
    rows = pl.concat([_rows(trace, table, chosen) for table in GPU_WORK if trace.has(table)])
    if processes is not None:
        rows = rows.filter(pl.col("process").is_null() | pl.col("process").is_in(processes))
    if selection.device is not None:
        rows = rows.filter(pl.col("device") == selection.device)
    apart = rows.drop_nulls("device").partition_by("device", as_dict=True)
    return {int(device): _of_device(own, chosen) for (device,), own in sorted(apart.items())}


def _rows(trace: Trace, table: str, chosen: StepWindow) -> pl.DataFrame:
    """Return the rows of a table that ran in the window, with their priority: the lowest wins."""
    columns = ["start_ns", "end_ns", "device", "process"]
    is_kernel = table == "kernels"
    frame = trace.table(table, [*columns, "name"] if is_kernel else columns)
    priority = _kernel_priorities(frame["name"]) if is_kernel else pl.lit(int(_PRIORITIES[table]))
    ran = (pl.col("start_ns") < chosen.end_ns) & (
        (pl.col("end_ns") > chosen.start_ns) | (pl.col("start_ns") >= chosen.start_ns)
    )
    own = (priority.cast(pl.Int64).alias("priority"), pl.lit(is_kernel).alias("kernel"))
    return frame.with_columns(*own).filter(ran).select(*columns, "priority", "kernel")


_PRIORITIES = {
    "copies": ActivityPriority.COPY,
    "memsets": ActivityPriority.COPY,
    "graph_launches": ActivityPriority.COMPUTE,
}


def _kernel_priorities(names: pl.Series) -> pl.Series:
    """Return the priorities of kernels, communication or compute; each name is classified once."""
    texts, codes = names_of(names), names.to_physical()
    priorities = np.full(len(texts), int(ActivityPriority.COMPUTE))
    for code in codes.unique().drop_nulls():
        if classify(texts[code]).category == COMMUNICATION:
            priorities[code] = ActivityPriority.COMMUNICATION
    return pl.Series(priorities[codes.to_numpy()] if len(texts) else [], dtype=pl.Int64)


def _of_device(rows: pl.DataFrame, chosen: StepWindow) -> DeviceWork:
    def spans(priority: ActivityPriority) -> Intervals:
        own = rows.filter(pl.col("priority") == int(priority))
        return Intervals.from_arrays(own["start_ns"].to_numpy(), own["end_ns"].to_numpy())

    computing = spans(ActivityPriority.COMPUTE)
    active = union(computing, spans(ActivityPriority.COPY))
    began = rows.filter("kernel", pl.col("start_ns") >= chosen.start_ns)["start_ns"]
    running = union(active, spans(ActivityPriority.COMMUNICATION))
    return DeviceWork(computing, active, running, began.sort().to_numpy())


COMMAND = "utilization"
DEFAULT_BINS = 400
"""As many as a chart can show."""
MAX_UTILIZATION_BINS = 10_000


def utilization(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    bins: int = DEFAULT_BINS,
) -> Composite | NotApplicable:
    """Compute how busy each GPU was in each of `bins` equal parts of the window."""
    if not 1 <= bins <= MAX_UTILIZATION_BINS:
        raise UsageError(f"cannot use {bins:,} bins", hint=f"use 1 to {MAX_UTILIZATION_BINS:,}")
    if not any(trace.has(table) for table in GPU_WORK):
        return NotApplicable(COMMAND, "the capture shows no GPU work", advice_for(trace.meta).gpu)
    chosen = step_window(trace, selection, steps=steps, window=window, warmup=warmup)
    if isinstance(chosen, NotApplicable):
        return replace(chosen, command=COMMAND)
    work = work_of(trace, selection, chosen)
    if not work:
        return NotApplicable(COMMAND, "no GPU work in the selection")
    edges = _edges(chosen, bins)
    metrics = sampled(trace, list(work), edges)
    if isinstance(trace, CorrectedTrace) and trace.has("gpu_metrics"):
        # Samples do not move with what the GPU does: they stay those of the recorded window.
        recorded = trace.source.trace
        then = step_window(recorded, selection, steps=steps, window=window, warmup=warmup)
        assert isinstance(then, StepWindow), "the same window before its times were moved"
        metrics = sampled(recorded, list(work), _edges(then, len(edges) - 1), edges)
        chosen = replace(chosen, notes=(*chosen.notes, _SAMPLED_WITH_PROFILER))
    return _report(trace, chosen, work, edges, metrics)


def _edges(chosen: StepWindow, bins: int) -> Ints:
    """Return where the bins begin, and where the last one ends; none is shorter than 1 ns."""
    count = max(1, min(bins, chosen.length_ns))
    edges = [chosen.start_ns + n * chosen.length_ns // count for n in range(count + 1)]
    return np.array(edges, np.int64)


_SAMPLED_WITH_PROFILER = (
    "GPU metrics are as sampled, with the profiler: idle time that it added lowers them"
)

# Over time ----------------------------------------------------------------------------------------


def _report(
    trace: Trace,
    chosen: StepWindow,
    work: Mapping[int, DeviceWork],
    edges: Ints,
    metrics: Sequence[TableResult | NotApplicable],
) -> Composite:
    names = device_names(trace)
    gpus = pl.DataFrame(
        [_gpu_row(device, names.get(device), own, chosen) for device, own in work.items()],
        schema=schema_of(GPU_FIELDS),
    )
    over_time = pl.concat([_bin_rows(device, own, edges) for device, own in work.items()])
    named = headline_of(chosen, dict(gpus.select("device", "busy_share").iter_rows()))
    sections: list[TableResult | NotApplicable] = [
        TableResult("gpus", "By GPU", _shown(GPU_FIELDS, gpus), gpus),
        TableResult("bins", "Over time", _shown(BIN_FIELDS, over_time), over_time),
        *metrics,
    ]
    if chosen.steps:
        steps = pl.DataFrame(list(_step_rows(chosen, work)), schema=schema_of(STEP_FIELDS))
        sections.append(TableResult("steps", "By step", STEP_FIELDS, steps))
    return Composite(
        COMMAND,
        "GPU utilization",
        tuple(_facts(chosen, gpus, edges)),
        tuple(sections),
        meta={
            "headline": named.document(),
            "path": trace.meta.path,
            "start_ns": chosen.start_ns,
            "end_ns": chosen.end_ns,
        },
        notes=(*chosen.notes, *graph_notes(trace, chosen.time)),
        window=named.text,
    )


def _gpu_row(device: int, name: str | None, work: DeviceWork, chosen: StepWindow) -> dict[str, Any]:
    start, end = (np.array([t], np.int64) for t in (chosen.start_ns, chosen.end_ns))
    parts = {group: int(ns[0]) for group, ns in work.parts(start, end).items()}
    idle = gaps(work.running, chosen.start_ns, chosen.end_ns)
    longest = int((idle.ends - idle.starts).argmax()) if len(idle) else None
    return {
        "device": device,
        "name": name,
        **_shares(parts, chosen.length_ns),
        "kernels": int(work.kernels(start, end)[0]),
        "longest_idle_ns": 0 if longest is None else int((idle.ends - idle.starts)[longest]),
        "longest_idle_at_ns": None if longest is None else int(idle.starts[longest]),
    }


def _shares(parts: Mapping[str, Any], length_ns: Any) -> dict[str, Any]:
    shares = {f"{group}_share": ns / length_ns for group, ns in parts.items()}
    return {"busy_share": (length_ns - parts[IDLE]) / length_ns, **shares}


def _bin_rows(device: int, work: DeviceWork, edges: Ints) -> pl.DataFrame:
    starts, ends = edges[:-1], edges[1:]
    parts = work.parts(starts, ends)
    columns = {
        "device": np.full(len(starts), device),
        "start_ns": starts,
        "duration_ns": ends - starts,
        **_shares(parts, ends - starts),
        "kernels": work.kernels(starts, ends),
        **{f"{group}_ns": ns for group, ns in parts.items()},
    }
    return pl.DataFrame(columns, schema=schema_of(BIN_FIELDS)).select(f.key for f in BIN_FIELDS)


def _step_rows(chosen: StepWindow, work: Mapping[int, DeviceWork]) -> Iterator[dict[str, Any]]:
    starts = np.array([step.start_ns for step in chosen.steps], np.int64)
    ends = np.array([step.end_ns for step in chosen.steps], np.int64)
    ran = np.mean([coverage(own.running, starts, ends) for own in work.values()], axis=0)
    for step, ns in zip(chosen.steps, ran, strict=True):
        length = step.end_ns - step.start_ns
        yield {
            "number": step.number,
            "start_ns": step.start_ns,
            "duration_ns": length,
            "busy_share": float(ns) / length if length else None,
            "name": step.name,
        }


# Facts --------------------------------------------------------------------------------------------


def _facts(chosen: StepWindow, gpus: pl.DataFrame, edges: Ints) -> Iterator[Fact]:
    """Yield the facts that are known, in the order of `FACTS`."""
    several = gpus.height > 1
    ordered = gpus.sort("busy_share", descending=True, maintain_order=True)
    most, least = ordered.row(0, named=True), ordered.row(-1, named=True)
    idle = gpus.sort("longest_idle_ns", descending=True, maintain_order=True).row(0, named=True)
    values: dict[str, Any] = {
        "window_ns": chosen.length_ns,
        "steps": len(chosen.steps) or None,
        "step_ns": chosen.step_ns if chosen.steps else None,
        "gpus": ", ".join(dict.fromkeys(gpus["name"].drop_nulls().to_list())) or None,
        **{f.key: gpus[f.key].mean() for f in SHARES},
        "busiest": _label_gpu(most) if several else None,
        "least_busy": _label_gpu(least) if several else None,
        "longest_idle_ns": idle["longest_idle_ns"],
        "longest_idle_at_ns": idle["longest_idle_at_ns"],
        "longest_idle_device": idle["device"] if several else None,
        "bin_ns": chosen.length_ns / (len(edges) - 1),
    }
    for field in FACTS:
        if values[field.key] is not None and (values[field.key] or field.key not in _IF_ANY):
            yield Fact(field.key, field.label, values[field.key], field.fmt, field.meaning)


_IF_ANY = frozenset({"copy_share", "communication_share"})


def _label_gpu(gpu: Mapping[str, Any]) -> str:
    return f"GPU {gpu['device']} ({format_share(gpu['busy_share'])})"


def _shown(fields: tuple[Field, ...], frame: pl.DataFrame) -> tuple[Field, ...]:
    """Leave out of the table what is zero throughout, and the GPU where there is one."""
    hidden = {key for key in _IF_ANY if not (frame[key] > 0).any()}
    hidden |= {"device"} if frame["device"].n_unique() < 2 else set()
    return tuple(replace(f, shown=f.shown and f.key not in hidden) for f in fields)
