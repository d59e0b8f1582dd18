"""Achieved vs. peak FLOP/s: FLOPs from recorded sizes over measured GPU time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.attribution.work_causes import WorkSelection
from gpusight.analysis.flops.counted_operators import GENERATED, count_ops
from gpusight.analysis.flops.flops_tables import (
    BY,
    OperatorArithmetic,
    classes,
    operators,
    rest,
    roofs_of,
    step_table,
    whole_steps,
)
from gpusight.analysis.gpu_time import gpu_time, overhead_note
from gpusight.analysis.kernel_summary import no_kernels
from gpusight.analysis.selection import EVERYTHING, GPU_WORK, Selection
from gpusight.analysis.steps.step_window import window_steps
from gpusight.errors import UsageError
from gpusight.results import Composite, Fact, Fmt, NotApplicable, TableResult
from gpusight.units import format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpusight.analysis.flops.counted_operators import CountedOperators
    from gpusight.analysis.flops.flops_tables import GpuRoofs
    from gpusight.analysis.steps.step_list import TraceSteps
    from gpusight.trace.trace import Trace


_HINT = (
    "shapes come only from torch.profiler: gpusight record --with torch --shapes, or "
    "torch.profiler.profile(record_shapes=True, activities=[ProfilerActivity.CPU, "
    "ProfilerActivity.CUDA])"
)
_MEASURED = "measured FLOP/s of kernels: gpusight roofline FILE"
FLOPS_FACTS = tuple(
    Fact(key, label, None, fmt, meaning)
    for key, label, fmt, meaning in (
        ("gpus", "GPU", Fmt.TEXT, "GPUs that computed"),
        ("window_ns", "Window", Fmt.TIME, "Length of the window, without the GPU's earlier work"),
        ("gpu_ns", "GPU time", Fmt.TIME, "Sum of the durations of all GPU work"),
        ("counted_share", "Counted", Fmt.SHARE, "Share of GPU time in counted operators"),
        ("tflop", "TFLOP", Fmt.REAL, "10¹² operations counted"),
        (
            "busy_tflop_per_s",
            "TFLOP/s, busy",
            Fmt.REAL,
            "TFLOP/s over the time of all kernels, counted or not",
        ),
        ("window_tflop_per_s", "TFLOP/s, window", Fmt.REAL, "TFLOP/s over the window"),
        (
            "peak_tflop_per_s",
            "Peak TFLOP/s",
            Fmt.REAL,
            "Peak of all GPUs used, in the precision of most FLOPs",
        ),
        ("peak_of", "Peak for", Fmt.TEXT, "Precision and unit of that peak"),
        (
            "mfu",
            "MFU",
            Fmt.SHARE,
            "Model FLOPs utilization: counted FLOPs over the window at that peak",
        ),
        (
            "roof_share",
            "% of roofline",
            Fmt.SHARE,
            "Minimum time over GPU time, of operators with a known roofline",
        ),
        (
            "over_roof_ns",
            "Time above roofline",
            Fmt.TIME,
            "GPU time of these operators above the minimum",
        ),
    )
)
"""The facts at the top, without their values; those that are not known are left out."""

_UNITS = {True: " on Tensor Cores", False: " without Tensor Cores", None: ""}
_MIN_NOTED_SHARE = 0.01
_NO_WHOLE_STEP = "the selected ranges include no whole step"
_OVER_PEAK = (
    "above 100% of peak: the GPU ran above its boost clock, the kernel does fewer FLOPs than "
    "the formula (sparsity, Winograd), or it runs in another precision than its name shows"
)
_OVER_ROOF = "above 100% of the memory roofline: inputs or outputs stayed in a cache"


def flops(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    by: str = "shapes",
    peak: float | None = None,
    bandwidth: float | None = None,
    spans_ns: Mapping[int, int] | None = None,
) -> Composite | NotApplicable:
    """Compare achieved with peak FLOP/s, by operator and step.

    `by` groups operators by `shapes`, `op` or `family`. `peak` in TFLOP/s and `bandwidth` in GB/s
    override the GPU table. `spans_ns` is how long steps take without the profiler, by number.
    """
    if by not in BY:
        raise UsageError(f"cannot group operators by {by!r}", hint=f"choose from {', '.join(BY)}")
    for name, value in (("peak", peak), ("bandwidth", bandwidth)):
        if value is not None and not 0 < value < 1e9:
            raise UsageError(f"{value} is not a {name}", hint="pass a number above 0")
    absent = _absent(trace)
    if absent is not None:
        return absent
    scope = WorkSelection(trace, selection)
    counted = count_ops(scope)
    roofs = roofs_of(
        trace,
        counted.calls["device"].unique().sort(),
        peak=None if peak is None else peak * 1e12,
        bandwidth=None if bandwidth is None else bandwidth * 1e9,
    )
    calls = classes(counted, roofs)
    main = _main_peak(calls, roofs, given=peak is not None)
    table = operators(calls, by, counted.gpu_ns)
    trace_steps = window_steps(trace)
    steps = _steps(scope, trace_steps, counted, main.peak, spans_ns or {})
    step_notes: tuple[str, ...] = ()
    if isinstance(steps, TableResult):  # all notes are shown together
        steps, step_notes = replace(steps, notes=()), steps.notes
    times = gpu_time(trace, selection)
    computing_ns = pl.col("busy_ns") - pl.col("copy_only_ns")
    busy_ns = 0
    if isinstance(times, TableResult):
        busy_ns = int(times.frame.select(computing_ns.sum()).item())
    window_ns = sum((spans_ns or {}).values()) or scope.window.length_ns
    return Composite(
        "flops",
        "FLOPs",
        _facts(counted, calls, main, busy_ns, window_ns),
        (steps, table, rest(counted)),
        meta={"flops": _total_flops(calls), "by": by},
        notes=(
            *scope.notes,
            *_notes(counted, calls, roofs, main, table),
            *overhead_note(scope, times, trace_steps),
            *step_notes,
        ),
    )


def _absent(trace: Trace) -> NotApplicable | None:
    """Explain why nothing can be counted, where that is so."""
    if not trace.has("cpu_ops"):
        reason = "the capture has no framework operators, so no shapes to count FLOPs from"
        measured = f"{_MEASURED}; {_HINT}" if trace.has("counters") else _HINT
        return NotApplicable("flops", reason, measured)
    if not trace.has("cpu_ops", "shapes"):
        reason = "the input shapes of the operators were not recorded"
        return NotApplicable("flops", reason, _HINT)
    if not any(trace.has(table) for table in GPU_WORK):
        return no_kernels(trace, "flops")
    return None


@dataclass(frozen=True, slots=True)
class _MainPeak:
    """The precision and unit of most FLOPs, and the peak of all GPUs that computed in it."""

    how: OperatorArithmetic | None = None
    peak: float | None = None
    """FLOP/s of all these GPUs together."""
    gpus: int = 0
    given: bool = False

    @property
    def label(self) -> str | None:
        """Precision and unit as text."""
        if self.given:
            return "as given"
        if self.how is None or self.how.precision is None:
            return None
        return self.how.precision + _UNITS[self.how.tensor_core]


def _main_peak(calls: pl.DataFrame, roofs: GpuRoofs, *, given: bool) -> _MainPeak:
    computing = calls.filter(pl.col("flops") > 0)
    if computing.is_empty():
        return _MainPeak()
    precision, tensor_core, _ = (
        computing.group_by("precision", "tensor_core", maintain_order=True)
        .agg((pl.col("flops").cast(pl.Float64) * pl.col("calls")).sum().alias("total"))
        .sort("total", descending=True, maintain_order=True)
        .row(0)
    )
    how = OperatorArithmetic(precision, tensor_core)
    peaks = [roofs.by_device[device].peak(how) for device in computing["device"].unique()]
    known = [peak for peak in peaks if peak]
    peak = sum(known) if len(known) == len(peaks) else None
    return _MainPeak(how, peak, len(peaks), given=given)


def _total_flops(calls: pl.DataFrame) -> int:
    return int((calls["flops"].cast(pl.Float64) * calls["calls"]).sum())


def _steps(
    scope: WorkSelection,
    steps: TraceSteps | NotApplicable,
    counted: CountedOperators,
    peak: float | None,
    spans_ns: Mapping[int, int],
) -> TableResult | NotApplicable:
    """Sum up the steps that lie wholly in the selection."""
    if isinstance(steps, NotApplicable):
        return steps
    time = scope.selection.time
    if scope.selection.within is not None:
        whole = whole_steps(steps, scope.spans)
    elif time is None:
        return step_table(steps, counted, peak)
    else:
        start, end = steps.frame["start_ns"], steps.frame["end_ns"]
        whole = (start >= time.host_start_ns) & (end <= time.end_ns)
    if not whole.any():
        return NotApplicable("steps", _NO_WHOLE_STEP, f"select steps: --in {steps.steps[0].name!r}")
    # Where a step begins depends on the step before it, which may not be selected.
    everything = replace(scope.selection, within=None, time=None)
    all_counted = count_ops(WorkSelection(scope.trace, everything))
    return step_table(steps, all_counted, peak, whole, spans_ns)


def _facts(
    counted: CountedOperators, calls: pl.DataFrame, main: _MainPeak, busy_ns: int, window_ns: int
) -> tuple[Fact, ...]:
    flops = _total_flops(calls)
    roofed = calls.filter(pl.col("least_ns").is_not_null())
    least_ns = float((roofed["least_ns"] * roofed["calls"]).sum())
    roofed_ns = int(roofed["gpu_ns"].sum())
    rate = _ratio(flops / 1e3, window_ns)
    peak = None if main.peak is None else main.peak / 1e12
    values = {
        "gpus": ", ".join(name for name in calls["gpu"].unique(maintain_order=True) if name),
        "window_ns": window_ns,
        "gpu_ns": counted.gpu_ns,
        "counted_share": _ratio(int(calls["gpu_ns"].sum()), counted.gpu_ns),
        "tflop": flops / 1e12,
        "busy_tflop_per_s": _ratio(flops / 1e3, busy_ns),
        "window_tflop_per_s": rate,
        "peak_tflop_per_s": peak,
        "peak_of": main.label,
        "mfu": rate / peak if rate is not None and peak else None,
        "roof_share": _ratio(least_ns, roofed_ns),
        "over_roof_ns": roofed_ns - least_ns if roofed_ns else None,
    }
    facts = (replace(fact, value=values[fact.key]) for fact in FLOPS_FACTS)
    return tuple(fact for fact in facts if fact.value not in {None, ""})


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


# Notes --------------------------------------------------------------------------------------------


def _notes(
    counted: CountedOperators,
    calls: pl.DataFrame,
    roofs: GpuRoofs,
    main: _MainPeak,
    table: TableResult,
) -> Iterator[str]:
    yield from counted.notes
    if calls.is_empty():
        yield "no counted operator launched GPU work here"
    arithmetic_ns = int(counted.rest["arithmetic_ns"].sum())
    if _is_noted(arithmetic_ns, counted):
        yield (
            f"{format_share(arithmetic_ns / counted.gpu_ns)} of GPU time: GEMMs, convolutions or "
            "attention that could not be counted: FLOPs, TFLOP/s and MFU are too low"
        )
    generated_ns = int(counted.rest.filter(pl.col("why") == GENERATED)["gpu_ns"].sum())
    if _is_noted(generated_ns, counted):
        yield (
            f"{format_share(generated_ns / counted.gpu_ns)} of GPU time is in generated code "
            "(torch.compile, Triton), which is not counted"
        )
    yield from roofs.notes
    yield from _without_roof(calls, main)
    if main.gpus > 1:
        yield f"the peak is that of {main.gpus} GPUs together"
    mixed = counted.calls.filter("mixed")
    mixed_ns = int(mixed["gpu_ns"].sum())
    if not main.given and _is_noted(mixed_ns, counted):
        yield (
            f"{mixed.height:,} calls ({format_time(mixed_ns)} of GPU time) ran kernels of several "
            "precisions or units: the peak of the fastest applies"
        )
    yield from calls["assumed"].drop_nulls().unique(maintain_order=True)
    yield from _above_one(table.frame)


def _is_noted(part_ns: int, counted: CountedOperators) -> bool:
    share = _ratio(part_ns, counted.gpu_ns)
    return share is not None and share >= _MIN_NOTED_SHARE


def _without_roof(calls: pl.DataFrame, main: _MainPeak) -> Iterator[str]:
    """Note where peak or bandwidth are not known."""
    computing = calls.filter(pl.col("flops") > 0)
    unknown = computing.filter(pl.col("peak").is_null(), pl.col("bandwidth").is_null())
    for name in unknown["gpu"].unique(maintain_order=True):
        gpu = name or "the GPU, which the capture does not name"
        yield (
            f"peak and bandwidth of {gpu} are unknown; "
            "set them with --peak TFLOPS and --bandwidth GB/S"
        )
    no_peak = computing.filter(pl.col("peak").is_null(), pl.col("bandwidth").is_not_null())
    units = no_peak.select("gpu", "precision", "tensor_core").unique(maintain_order=True)
    for name, precision, tensor_core in units.iter_rows():
        what = (precision or "an unknown precision") + _UNITS[tensor_core]
        doubt = " (unit unknown from the kernel names)" if tensor_core is None else ""
        yield f"no known peak for {what}{doubt} on {name}; set it with --peak TFLOPS"
    if not main.given and bool(computing["guessed"].any()):
        yield (
            "some kernel names do not show whether Tensor Cores ran: the Tensor Core peak applies"
        )
    if calls["min_bytes"].null_count():
        yield "input types were not recorded: bytes and roofline are unknown"


def _above_one(frame: pl.DataFrame) -> Iterator[str]:
    """Explain shares above 100% rather than hide them."""
    over_peak = frame.filter(pl.col("peak_share") > 1)
    over_roof = frame.filter(pl.col("roof_share") > 1, pl.col("bound") == "memory")
    for rows, share, why in (
        (over_peak, "peak_share", _OVER_PEAK),
        (over_roof, "roof_share", _OVER_ROOF),
    ):
        if rows.height:
            worst = rows.sort(share, descending=True).row(0, named=True)
            others = f" and {rows.height - 1:,} more rows" if rows.height > 1 else ""
            yield f"{worst['operator']} at {format_share(worst[share])}{others}: {why}"
