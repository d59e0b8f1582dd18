"""Achieved vs. peak FLOP/s: FLOPs from recorded sizes over measured GPU time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.attribution.work_causes import WorkSelection
from gpusight.analysis.flops.counted_operators import GENERATED, count_ops
from gpusight.analysis.flops.flops_tables import (
    BY,
    classes,
    operators,
    rest,
    step_table,
    whole_steps,
)
from gpusight.analysis.flops.operator_roofs import OperatorArithmetic, roofs_of
from gpusight.analysis.gpu_time import gpu_time, overhead_note
from gpusight.analysis.kernel_summary import no_kernels
from gpusight.analysis.selection import EVERYTHING, GPU_WORK, Selection
from gpusight.analysis.steps.step_list import find_steps
from gpusight.errors import UsageError
from gpusight.results import Composite, Fact, Fmt, NotApplicable, TableResult
from gpusight.units import format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.analysis.flops.counted_operators import CountedOperators
    from gpusight.analysis.flops.operator_roofs import GpuRoofs
    from gpusight.analysis.steps.step_list import TraceSteps
    from gpusight.trace.trace import Trace


_HINT = (
    "sizes come only from torch.profiler: torch.profiler.profile(record_shapes=True, "
    "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA])"
)
_MEASURED = "see what kernels were measured to do: gpusight roofline FILE"
FLOPS_FACTS = tuple(
    Fact(key, label, None, fmt, meaning)
    for key, label, fmt, meaning in (
        ("gpus", "GPU", Fmt.TEXT, "GPUs that computed"),
        ("window_ns", "Window", Fmt.TIME, "Time looked at"),
        ("gpu_ns", "GPU time", Fmt.TIME, "Sum of the durations of all GPU work"),
        ("counted_share", "Counted", Fmt.SHARE, "Part of GPU time in operators that are counted"),
        ("tflop", "TFLOP", Fmt.REAL, "10¹² operations counted"),
        (
            "busy_tflop_per_s",
            "TFLOP/s, busy",
            Fmt.REAL,
            "10¹² operations a second of the time that kernels ran, counted or not",
        ),
        ("window_tflop_per_s", "TFLOP/s, window", Fmt.REAL, "The same, a second of the window"),
        (
            "peak_tflop_per_s",
            "Peak TFLOP/s",
            Fmt.REAL,
            "Peak rate, of all GPUs that computed, in the precision of most FLOPs",
        ),
        ("peak_of", "Peak of", Fmt.TEXT, "Precision and unit of that peak"),
        (
            "mfu",
            "MFU",
            Fmt.SHARE,
            "Model FLOPs utilisation: operations counted over the window at that peak",
        ),
        (
            "roof_share",
            "Roof reached",
            Fmt.SHARE,
            "Least time possible over GPU time, of operators with a known roof",
        ),
        (
            "over_roof_ns",
            "Over the roof",
            Fmt.TIME,
            "GPU time that these operators took beyond the least possible",
        ),
    )
)
"""The facts at the top, without their values; those that are not known are left out."""

_UNITS = {True: " on tensor cores", False: " without tensor cores", None: ""}
_WORTH_SAYING = 0.01
_PARTS = (
    "the selected ranges hold no step wholly, and the FLOPs of a part do not compare with the time "
    "of the whole"
)
_GIVE = "--peak TFLOPS and --bandwidth GB/S say them"
_OVER_PEAK = (
    "more than 100% of the peak is possible only where the GPU ran above its boost clock, where "
    "fewer operations were done than the formula counts (sparsity, Winograd), or where the "
    "precision is not the one that the kernel's name says"
)
_OVER_ROOF = (
    "more than 100% of the roof of the memory means that inputs or outputs stayed in a cache"
)


def flops(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    by: str = "shapes",
    peak: float | None = None,
    bandwidth: float | None = None,
) -> Composite | NotApplicable:
    """Relate what operators had to compute to what the GPU could have in their time.

    `by` groups operators by `shapes`, `op` or `family`. `peak` in TFLOP/s and `bandwidth` in GB/s
    stand for what the GPU can do, in place of the GPU table.
    """
    _check(by, peak, bandwidth)
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
    each = classes(counted, roofs)
    most = _most(each, roofs, given=peak is not None)
    table = operators(each, by, counted.gpu_ns)
    found = find_steps(trace)
    steps = _steps(scope, found, counted, most)
    times = gpu_time(trace, selection)
    return Composite(
        "flops",
        "FLOPs" + (f" of {selection.within}" if selection.within else ""),
        _facts(scope, counted, each, most, _busy_ns(times)),
        (_bare(steps), table, rest(counted)),
        meta={"flops": _total(each, "flops"), "by": by},
        notes=(
            *scope.notes,
            *_notes(counted, each, roofs, most, table),
            *overhead_note(scope, times, found),
            *_section_notes(steps),
        ),
    )


def _check(by: str, peak: float | None, bandwidth: float | None) -> None:
    if by not in BY:
        raise UsageError(f"cannot group operators by {by!r}", hint=f"choose from {', '.join(BY)}")
    for name, value in (("peak", peak), ("bandwidth", bandwidth)):
        if value is not None and not 0 < value < 1e9:
            raise UsageError(f"{value} is not a {name}", hint="give a number above 0")


def _absent(trace: Trace) -> NotApplicable | None:
    """Explain why nothing can be counted, where that is so."""
    if not trace.has("cpu_ops"):
        reason = "the capture holds no operators of a framework, so no sizes to count FLOPs from"
        measured = f"{_MEASURED}; {_HINT}" if trace.has("counters") else _HINT
        return NotApplicable("flops", reason, measured)
    if not trace.has("cpu_ops", "shapes"):
        reason = "the sizes of the operators' inputs were not recorded"
        return NotApplicable("flops", reason, _HINT)
    if not any(trace.has(table) for table in GPU_WORK):
        return no_kernels(trace, "flops")
    return None


@dataclass(frozen=True, slots=True)
class _Most:
    """The arithmetic that most FLOPs ran in, and the peak of all GPUs that computed in it."""

    how: OperatorArithmetic | None = None
    peak: float | None = None
    """Operations a second, of all these GPUs together."""
    gpus: int = 0
    given: bool = False

    @property
    def text(self) -> str | None:
        """Name the arithmetic for people."""
        if self.given:
            return "as given"
        if self.how is None or self.how.precision is None:
            return None
        return self.how.precision + _UNITS[self.how.tensor_core]


def _most(each: pl.DataFrame, roofs: GpuRoofs, *, given: bool) -> _Most:
    work = pl.col("flops").cast(pl.Float64) * pl.col("calls")
    computing = each.filter(pl.col("flops") > 0)
    if computing.is_empty():
        return _Most()
    first = (
        computing.group_by("precision", "tensor_core", maintain_order=True)
        .agg(work.sum().alias("total"))
        .sort("total", descending=True, maintain_order=True)
        .row(0, named=True)
    )
    how = OperatorArithmetic(first["precision"], first["tensor_core"])
    devices = computing["device"].unique().to_list()
    peaks = [roofs.of(device).peak(how) for device in devices]
    known = [peak for peak in peaks if peak]
    return _Most(how, sum(known) if len(known) == len(peaks) else None, len(peaks), given=given)


def _total(each: pl.DataFrame, column: str) -> int:
    return int((each[column].cast(pl.Float64) * each["calls"]).sum())


def _steps(
    scope: WorkSelection, steps: TraceSteps | NotApplicable, counted: CountedOperators, most: _Most
) -> TableResult | NotApplicable:
    """Sum up the steps of which the selection holds everything."""
    if isinstance(steps, NotApplicable):
        return steps
    if scope.selection.within is None:
        return step_table(steps, counted, most.peak)
    whole = whole_steps(steps, scope.spans)
    if not whole.any():
        return NotApplicable("steps", _PARTS, f"select steps: --in {steps.steps[0].name!r}")
    # What the other steps did decides when one of these begins.
    everything = replace(scope.selection, within=None)
    return step_table(steps, count_ops(WorkSelection(scope.trace, everything)), most.peak, whole)


def _facts(
    scope: WorkSelection, counted: CountedOperators, each: pl.DataFrame, most: _Most, busy_ns: int
) -> tuple[Fact, ...]:
    done = _total(each, "flops")
    window = scope.window.length_ns
    under = each.filter(pl.col("least_ns").is_not_null())
    least, spent = float((under["least_ns"] * under["calls"]).sum()), int(under["gpu_ns"].sum())
    rate = _ratio(done / 1e3, window)
    peak = None if most.peak is None else most.peak / 1e12
    values = {
        "gpus": ", ".join(name for name in each["gpu"].unique(maintain_order=True) if name),
        "window_ns": window,
        "gpu_ns": counted.gpu_ns,
        "counted_share": _ratio(int(each["gpu_ns"].sum()), counted.gpu_ns),
        "tflop": done / 1e12,
        "busy_tflop_per_s": _ratio(done / 1e3, busy_ns),
        "window_tflop_per_s": rate,
        "peak_tflop_per_s": peak,
        "peak_of": most.text,
        "mfu": rate / peak if rate is not None and peak else None,
        "roof_share": _ratio(least, spent),
        "over_roof_ns": spent - least if spent else None,
    }
    facts = (replace(fact, value=values[fact.key]) for fact in FLOPS_FACTS)
    return tuple(fact for fact in facts if fact.value not in {None, ""})


def _ratio(part: float, whole: float) -> float | None:
    return part / whole if whole else None


def _busy_ns(times: TableResult | NotApplicable) -> int:
    """Add up the time during which kernels ran on each GPU."""
    return int(times.frame["busy_ns"].sum()) if isinstance(times, TableResult) else 0


def _section_notes(section: TableResult | NotApplicable) -> tuple[str, ...]:
    return section.notes if isinstance(section, TableResult) else ()


def _bare(section: TableResult | NotApplicable) -> TableResult | NotApplicable:
    """Take the notes off a section: they are shown all together."""
    return replace(section, notes=()) if isinstance(section, TableResult) else section


# Notes --------------------------------------------------------------------------------------------


def _notes(
    counted: CountedOperators, each: pl.DataFrame, roofs: GpuRoofs, most: _Most, table: TableResult
) -> Iterator[str]:
    yield from counted.notes
    if each.is_empty():
        yield "no operator that could be counted launched GPU work here"
    yield from _missed(counted)
    yield from roofs.notes
    yield from _without_roof(each, most)
    if most.gpus > 1:
        yield f"the peak is that of {most.gpus} GPUs together"
    if not most.given:
        yield from _mixed(counted)
    yield from each["assumed"].drop_nulls().unique(maintain_order=True)
    yield from _excess(table.frame)


def _missed(counted: CountedOperators) -> Iterator[str]:
    """Say how much arithmetic is missing from the count."""
    share = _ratio(int(counted.rest["arithmetic_ns"].sum()), counted.gpu_ns)
    if share is not None and share >= _WORTH_SAYING:
        yield (
            f"{format_share(share)} of GPU time went to matrix products, convolutions or attention "
            "that could not be counted: FLOPs, TFLOP/s and MFU are too low by those"
        )
    generated = counted.rest.filter(pl.col("why") == GENERATED)
    share = _ratio(int(generated["gpu_ns"].sum()), counted.gpu_ns)
    if share is not None and share >= _WORTH_SAYING:
        yield (
            f"{format_share(share)} of GPU time went to generated code (torch.compile, Triton), "
            "which is not counted"
        )


def _mixed(counted: CountedOperators) -> Iterator[str]:
    """Say how much ran in several precisions, of which one had to be chosen."""
    calls = counted.calls.filter("mixed")
    spent_ns = int(calls["gpu_ns"].sum())
    share = _ratio(spent_ns, counted.gpu_ns)
    if share is not None and share >= _WORTH_SAYING:
        yield (
            f"{calls.height:,} calls ({format_time(spent_ns)} of GPU time) ran kernels of several "
            "precisions or units: their peak is that of the fastest"
        )


def _without_roof(each: pl.DataFrame, most: _Most) -> Iterator[str]:
    """Say of what no peak and no bandwidth is known."""
    computing = each.filter(pl.col("flops") > 0)
    blind = computing.filter(pl.col("peak").is_null(), pl.col("bandwidth").is_null())
    for name in blind["gpu"].unique(maintain_order=True):
        whose = name or "the GPU, which the capture does not name"
        yield f"no peak rate and no bandwidth is known for {whose}; {_GIVE}"
    missing = computing.filter(pl.col("peak").is_null(), pl.col("bandwidth").is_not_null())
    runs = missing.select("gpu", "precision", "tensor_core").unique(maintain_order=True)
    for name, precision, tensor_core in runs.iter_rows():
        what = (precision or "an unknown precision") + _UNITS[tensor_core]
        doubt = " (its kernels do not say on which units)" if tensor_core is None else ""
        yield f"no peak rate is known for {what}{doubt} on {name}; --peak TFLOPS says it"
    if not most.given and bool(computing["guessed"].any()):
        yield (
            "names of some kernels do not say whether tensor cores ran: their peak is that of "
            "tensor cores"
        )
    if each["min_bytes"].null_count():
        yield "types of inputs were not recorded, so the bytes moved and the roof are not known"


def _excess(frame: pl.DataFrame) -> Iterator[str]:
    """Explain shares above 1 rather than hide them."""
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
