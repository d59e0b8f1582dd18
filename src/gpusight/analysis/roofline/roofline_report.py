"""Kernels and launches against the roofline: `roofline`."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analysis.aggregates import (
    is_filled,
    prevailing,
    share_of,
    shown_if_filled,
    weighed_mean,
    whole_sum,
)
from gpusight.analysis.capture_info import device_names, names_of_used
from gpusight.analysis.counters.counter_selection import LaunchSelection
from gpusight.analysis.counters.kernel_limiter import prevailing_limits
from gpusight.analysis.counters.launch_quantities import DURATION
from gpusight.analysis.kernel_summary import (
    SHAPE,
    shape_texts,
    short_names,
    short_names_by_shape,
)
from gpusight.analysis.roofline.arithmetic_counters import FP32, KINDS, SECTION, TENSOR_SECTION
from gpusight.analysis.roofline.launch_work import TENSOR_KEYS
from gpusight.analysis.roofline.roofline_points import measure
from gpusight.analysis.selection import EVERYTHING, Selection
from gpusight.naming.kernel_names import classify
from gpusight.results import Composite, Fact, Field, Fmt, NotApplicable, TableResult
from gpusight.units import format_rate, format_share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpusight.analysis.roofline.roofline_points import RooflinePoints
    from gpusight.trace.trace import Trace


NO_ROOFS = "the peaks of the GPU are in neither the report nor the GPU table"
NAME_GPU = "name the GPU with --gpu NAME"
_GROUP = ("name", "device", *SHAPE)
_TERA = 1e12
_SUMS = ("flops", "dram_bytes", "l2_bytes", "l1_bytes", *(f"flops_{kind.key}" for kind in KINDS))
_MEANS = (
    "compute_roof", "memory_roof", "l2_roof", "l1_roof", "knee", "compute_share", "memory_share",
    "l2_share", "l1_share", "sm_share", "roof_share", "limit_share", "flop_per_s",
    "dram_bytes_per_s", "dram_intensity", "l2_intensity", "l1_intensity",
)  # fmt: skip
_PREVAILING = ("arithmetic", "bound", "limit", "roofs_from")

_SHARE = Field("share", "Share", Fmt.SHARE, "Share of the time of all selected launches")
_PLACE = (
    Field("bound", "Bound by", Fmt.TEXT, "`compute`, `memory` or `latency`, for most of its time"),
    Field(
        "limit",
        "Limiter",
        Fmt.TEXT,
        "The limiting unit: an arithmetic type, `sm` (other instructions), `dram`, `l2` or `l1`",
    ),
    Field(
        "roof_share",
        "Roofline",
        Fmt.SHARE,
        "Achieved share of its compute or DRAM roofline, the lower of the two",
    ),
    Field("tflop_per_s", "TFLOP/s", Fmt.REAL, "Achieved TFLOP/s, all precisions"),
    Field("dram_bytes_per_s", "DRAM", Fmt.RATE, "Achieved DRAM bandwidth"),
    Field("dram_intensity", "FLOP/B", Fmt.REAL, "Arithmetic intensity: FLOPs per DRAM byte"),
    Field("memory_share", "% DRAM", Fmt.SHARE, "Achieved share of the DRAM bandwidth"),
)
_MORE = (
    Field("limit_share", "% limiter", Fmt.SHARE, "Utilization of the limiting unit"),
    Field("arithmetic", "Arithmetic", Fmt.TEXT, "Arithmetic type that is closest to its peak"),
    Field("compute_share", "% compute", Fmt.SHARE, "Achieved share of the peak of its arithmetic"),
    Field("l2_share", "% L2", Fmt.SHARE, "L2 utilization"),
    Field("l1_share", "% L1", Fmt.SHARE, "L1/TEX utilization over all cycles (ncu: active)"),
    Field("sm_share", "% SM", Fmt.SHARE, "SM throughput, all instructions"),
    Field("flops", "FLOPs", Fmt.REAL, "FLOPs, all precisions"),
    Field("dram_bytes", "DRAM bytes", Fmt.BYTES, "DRAM bytes read and written"),
    Field("l2_bytes", "L2 bytes", Fmt.BYTES, "L2 bytes read and written by the SMs"),
    Field("l1_bytes", "L1 bytes", Fmt.BYTES, "L1 bytes read and written"),
    Field("l2_intensity", "FLOP/B L2", Fmt.REAL, "FLOPs per L2 byte"),
    Field("l1_intensity", "FLOP/B L1", Fmt.REAL, "FLOPs per L1 byte"),
    Field("knee", "Ridge point", Fmt.REAL, "FLOP/byte where its compute and DRAM rooflines meet"),
    Field("roof_tflop_per_s", "Peak TFLOP/s", Fmt.REAL, "Peak of its arithmetic type"),
    Field("roof_bytes_per_s", "DRAM peak", Fmt.RATE, "Peak DRAM bandwidth"),
    *(
        Field(
            f"{kind.key}_tflop_per_s",
            kind.text,
            Fmt.REAL,
            f"TFLOP/s in {kind.text}; null when not counted",
        )
        for kind in KINDS
    ),
    Field("estimated", "Estimated", Fmt.FLAG, "FLOPs are estimated from Tensor Core utilization"),
    Field("roofs_from", "Peaks from", Fmt.TEXT, "Source of its peaks: report or GPU table"),
    Field("grid", "Grid", Fmt.TEXT, "Blocks in x, y and z"),
    Field("block", "Block", Fmt.TEXT, "Threads per block in x, y and z"),
    Field("device", "GPU", Fmt.ID, "GPU that it ran on"),
)
_NAMED = (
    Field("short_name", "Kernel", Fmt.NAME, "Short kernel name"),
    Field("name", "Full name", Fmt.NAME, "Name with template arguments", shown=False),
)
_HIDDEN = tuple(replace(field, shown=False) for field in _MORE)
FIELDS = (
    _SHARE,
    Field("total_ns", "Time", Fmt.TIME, "Total time of its launches"),
    Field("calls", "Calls", Fmt.COUNT, "Profiled launches", shown=False),
    *_PLACE,
    *_HIDDEN,
    *_NAMED,
)
LAUNCH_FIELDS = (
    Field("launch", "Launch", Fmt.ID, "Launch ID in the report"),
    Field("duration_ns", "Duration", Fmt.TIME, "Duration on the GPU"),
    replace(_SHARE, shown=False),
    *_PLACE,
    *_HIDDEN,
    *_NAMED,
)
ROOF_FIELDS = (
    Field("roof", "Roofline", Fmt.TEXT, "`dram`, `l2`, `l1`, or an arithmetic type"),
    Field("kind", "Type", Fmt.TEXT, "`memory` or `compute`"),
    Field("tflop_per_s", "TFLOP/s", Fmt.REAL, "Peak TFLOP/s of a compute roofline"),
    Field("bytes_per_s", "Bandwidth", Fmt.RATE, "Peak bandwidth of a memory roofline"),
    Field("knee", "Ridge point", Fmt.REAL, "FLOP/byte where it meets the DRAM roofline"),
    Field("device", "Device", Fmt.ID, "Number of the GPU", shown=False),
    Field("gpu", "GPU", Fmt.TEXT, "Name of the GPU", shown=False),
)


def _by_kernel(rows: pl.DataFrame) -> pl.DataFrame:
    """Sum up launches of one kernel and shape; rates and shares are weighted by time."""
    rows = prevailing_limits(rows, _GROUP)
    for column in ("arithmetic", "roofs_from"):
        rows = prevailing(rows, _GROUP, column)
    return rows.group_by(_GROUP, maintain_order=True).agg(
        pl.col("launch").first(),
        pl.len().alias("calls"),
        whole_sum(DURATION),
        *map(whole_sum, _SUMS),
        *map(weighed_mean, _MEANS),
        *(pl.col(column).first() for column in _PREVAILING),
        pl.col("estimated").any(),
    )


def _table(command: str, title: str, fields: tuple[Field, ...], rows: pl.DataFrame) -> TableResult:
    """Show kernels or launches, the longest first."""
    share = share_of(pl.col(DURATION), pl.col(DURATION).sum()).alias("share")
    frame = rows.with_columns(share, pl.col(DURATION).alias("total_ns")).sort(
        [DURATION, "launch"], descending=[True, False], nulls_last=True
    )
    by_shape = "calls" in frame.columns
    short = short_names_by_shape(frame) if by_shape else short_names(frame["name"])
    labels = short, pl.col("name").cast(pl.String)
    # Rates are of what was summed up; without durations they are averages.
    seconds = pl.col(DURATION) * 1e-9
    rates = {
        "tflop_per_s": pl.coalesce(pl.col("flops") / seconds, "flop_per_s") / _TERA,
        "dram_bytes_per_s": pl.coalesce(pl.col("dram_bytes") / seconds, "dram_bytes_per_s"),
        "roof_tflop_per_s": pl.col("compute_roof") / _TERA,
        "roof_bytes_per_s": pl.col("memory_roof"),
    }
    for level in ("dram", "l2", "l1"):
        moved, key = pl.col(f"{level}_bytes"), f"{level}_intensity"
        rates[key] = pl.coalesce(pl.when(moved > 0).then(pl.col("flops") / moved), key)
    for kind in KINDS:
        flops = pl.col(f"flops_{kind.key}")
        rates[f"{kind.key}_tflop_per_s"] = flops / seconds / _TERA
    frame = frame.with_columns(
        *(value.alias(name) for name, value in rates.items()), *labels, *shape_texts()
    )
    chosen = frame.select([field.key for field in fields])
    # Without a roofline, show the utilization of the SMs.
    instead = () if is_filled(chosen, "roof_share") else ("sm_share",)
    kept = (replace(f, shown=f.shown or f.key in instead) for f in fields)
    return TableResult(command, title, shown_if_filled(kept, chosen), chosen)


def _roof_table(rows: pl.DataFrame, names: Mapping[int, str | None]) -> TableResult | NotApplicable:
    """Show the rooflines of each GPU, averaged over the time of the launches that they limit."""
    roofs: list[dict[str, Any]] = []
    for (device,), group in rows.group_by("device", maintain_order=True):
        name = None if device is None else names.get(int(str(device)))
        roofs += [{**roof, "device": device, "gpu": name} for roof in _roofs(group)]
    schema = {
        "roof": pl.String, "kind": pl.String, "tflop_per_s": pl.Float64, "bytes_per_s": pl.Float64,
        "knee": pl.Float64, "device": pl.Int64, "gpu": pl.String,
    }  # fmt: skip
    if not roofs:
        return NotApplicable("rooflines", NO_ROOFS, NAME_GPU)
    frame = pl.DataFrame(roofs, schema=schema)
    several = frame["device"].n_unique() > 1
    fields = tuple(replace(f, shown=f.shown or (several and f.key == "gpu")) for f in ROOF_FIELDS)
    return TableResult("roofs", "Rooflines", fields, frame)


def _roofs(group: pl.DataFrame) -> Iterator[dict[str, Any]]:
    levels = {"dram": "memory_roof", "l2": "l2_roof", "l1": "l1_roof"}
    means = group.select(
        *(weighed_mean(column).alias(level) for level, column in levels.items()),
    ).row(0, named=True)
    for kind in KINDS:
        users = group.filter(pl.col(f"flops_{kind.key}").fill_null(0.0) > 0)
        peak = weighed_mean(f"peak_{kind.key}")
        means[kind.key] = (users if users.height else group).select(peak).item()
    bandwidth = means["dram"]
    for level in levels:
        if means[level]:
            yield {"roof": level, "kind": "memory", "bytes_per_s": means[level]}
    for kind in KINDS:
        used = (group[f"flops_{kind.key}"].fill_null(0.0) > 0).any()
        if means[kind.key] and (used or kind == FP32):
            yield {
                "roof": kind.text,
                "kind": "compute",
                "tflop_per_s": means[kind.key] / _TERA,
                "knee": means[kind.key] / bandwidth if bandwidth else None,
            }


_ABOVE = 1.02
"""Above the roofline by more than rounding and clock changes explain."""


def _notes(points: RooflinePoints, rows: pl.DataFrame, *, name_gpu: bool) -> Iterator[str]:
    """Yield caveats, the most important first; `name_gpu`: `--gpu` could add rooflines."""
    if rows.is_empty():
        yield "no launch was measured inside the selection"
        return
    yield from _missing(rows, name_gpu=name_gpu)
    yield from _uncounted(points, rows)
    yield from _above_peak(rows)
    yield from _peak_ranges(rows)
    devices = rows.get_column("device").n_unique()
    if devices > 1:
        yield f"launches ran on {devices} GPUs, each with its own rooflines"


def _above_peak(rows: pl.DataFrame) -> Iterator[str]:
    """Note launches above 100% of their roofline: what was measured, the peak, and why."""
    above = rows.filter(pl.col("roof_share") > _ABOVE)
    for row in above.sort("roof_share", descending=True).head(1).iter_rows(named=True):
        by_compute = (row["compute_share"] or 0.0) >= (row["memory_share"] or 0.0)
        amount, peak = (
            (row["flop_per_s"], row["compute_roof"])
            if by_compute
            else (row["dram_bytes_per_s"], row["memory_roof"])
        )
        text = _format_flops if by_compute else format_rate
        numbers = "" if None in (amount, peak) else f"{text(amount)} of {text(peak)}, "
        yield (
            f"{_count(above.height)} above 100% of the roofline ({numbers}"
            f"{format_share(row['roof_share'])}, by {classify(str(row['name'])).short}): counters "
            "come from several passes, which differ, or the peak is of another GPU or clock"
        )


_MIN_PEAK_RANGE = 1.1
"""Ratio of the highest to the lowest peak of one GPU from which the rows need an explanation."""


def _peak_ranges(rows: pl.DataFrame) -> Iterator[str]:
    """Note peaks that differ by launch: shares are of the launch's own, the table has the mean."""
    peaks: dict[str, tuple[str, Callable[[float], str]]] = {
        "DRAM": ("memory_roof", format_rate),
        "compute": ("compute_roof", _format_flops),
    }
    for name, (column, text) in peaks.items():
        by = ["device"] if name == "DRAM" else ["device", "arithmetic"]
        low, high = pl.col(column).min().alias("low"), pl.col(column).max().alias("high")
        ranges = rows.filter(pl.col(column) > 0).group_by(by).agg(low, high)
        widest = ranges.sort(pl.col("high") / pl.col("low"), descending=True).head(1)
        for row in widest.iter_rows(named=True):
            if row["high"] < _MIN_PEAK_RANGE * row["low"]:
                continue
            why = (
                "bytes and % of peak come from several passes"
                if name == "DRAM"
                else "each launch is compared at its own SM clock"
            )
            yield (
                f"{name} peaks differ by launch, {text(row['low'])} to {text(row['high'])}: {why}"
            )


def _format_flops(value: float) -> str:
    return f"{value / _TERA:.3g} TFLOP/s"


def _missing(rows: pl.DataFrame, *, name_gpu: bool) -> Iterator[str]:
    """Note counters that were not collected, and peaks that are not known."""
    for column, what, sections in (
        ("duration_ns", "a duration", "--section SpeedOfLight"),
        ("flop_per_s", "FLOP counters", f"--section {SECTION} --section InstructionStats"),
        ("dram_bytes_per_s", "DRAM byte counters", "--section MemoryWorkloadAnalysis"),
    ):
        lacking = rows.get_column(column).null_count()
        if lacking:
            launches = "no launch has" if lacking == rows.height else f"{_count(lacking)} without"
            yield f"{launches} {what}; collect with: ncu {sections}"
    working = rows.filter(pl.col("flop_per_s").fill_null(0.0) > 0)
    roofless = working.get_column("compute_roof").null_count()
    blind = rows.filter(pl.col("dram_bytes_per_s") > 0).get_column("memory_roof").null_count()
    if (roofless or blind) and name_gpu:
        what = "peaks" if roofless and blind else "compute peak" if roofless else "DRAM peak"
        yield f"{_count(max(roofless, blind))} without {what}: {NO_ROOFS}; {NAME_GPU}"
    elif roofless and roofless < working.height:
        yield f"{_count(roofless)} in a precision without a known peak"


def _uncounted(points: RooflinePoints, rows: pl.DataFrame) -> Iterator[str]:
    if points.uncounted:
        missing = ", ".join(op.upper() for op in points.uncounted)
        yield f"{missing} instructions were not counted: FLOPs may be too low"
    keys = [f"flops_{key}" for key in TENSOR_KEYS]
    no_tensor = rows.filter(pl.all_horizontal(pl.col(key).is_null() for key in keys))
    names = no_tensor.get_column("name").cast(pl.String).unique()
    if any(classify(name).tensor_core for name in names):
        yield (
            "Tensor Core FLOPs were not counted; "
            f"collect them with: ncu --section {TENSOR_SECTION} --section InstructionStats"
        )
    estimated = rows.filter(pl.col("estimated")).height
    if estimated:
        yield (
            f"FLOPs of {_count(estimated)} are estimated from Tensor Core utilization; exact "
            f"counts: ncu --section {TENSOR_SECTION} --section InstructionStats"
        )


def _count(launches: int) -> str:
    return f"{launches:,} launch" + ("" if launches == 1 else "es")


COLLECT = "ncu --set roofline --section MemoryWorkloadAnalysis --section InstructionStats"
_MEASURE = f"profile the kernels with: {COLLECT} -o report PROGRAM"
_SIZES = "; FLOPs from recorded sizes: gpusight flops FILE"
_NEEDED = ("flop_per_s", "dram_bytes_per_s", "memory_share", "sm_share", "compute_share")
"""Columns of which one must hold something."""
_PART = "Share of the time of launches with a known bound"
ROOFLINE_FACTS = tuple(
    Fact(key, label, None, fmt, meaning)
    for key, label, fmt, meaning in (
        ("gpus", "GPU", Fmt.TEXT, "GPUs of the launches"),
        ("launches", "Launches", Fmt.COUNT, "Profiled launches"),
        ("total_ns", "GPU time", Fmt.TIME, "Total time of the launches"),
        (
            "roof_share",
            "Roofline",
            Fmt.SHARE,
            "Achieved share of the roofline, weighted by time",
        ),
        ("compute_time_share", "Compute-bound", Fmt.SHARE, _PART),
        ("memory_time_share", "Memory-bound", Fmt.SHARE, _PART),
        ("latency_time_share", "Latency-bound", Fmt.SHARE, _PART),
        ("roofs_from", "Peaks from", Fmt.TEXT, "Source of the peaks: report or GPU table"),
    )
)
"""The facts at the top, without their values; those that are not known are left out."""


def roofline(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    kernel: str | None = None,
    launches: bool = False,
    gpu: str | None = None,
) -> Composite | NotApplicable:
    """Compare achieved with peak FLOP/s and bandwidth, by kernel.

    Rows are kernels of one launch shape, or with `launches` single launches. `kernel` keeps those
    of a name. `gpu` names the GPU whose peaks apply where the capture has none.
    """
    if not trace.has("profiles"):
        has_shapes = trace.has("cpu_ops") and trace.has("cpu_ops", "shapes")
        reason = "the capture has no hardware counters of kernels"
        return NotApplicable("roofline", reason, _MEASURE + (_SIZES if has_shapes else ""))
    scope = LaunchSelection(trace, selection, kernel=kernel)
    points = measure(trace, gpu)
    columns = ["launch", "name", "device", *SHAPE]
    rows = scope.profiles(columns).join(
        points.frame, on="launch", how="left", maintain_order="left"
    )
    if all(rows.get_column(column).null_count() == rows.height for column in _NEEDED):
        reason = "the report has no counters of FLOPs, bytes or utilization"
        return NotApplicable("roofline", reason, _MEASURE)
    if launches:
        table = _table("launches", "Launches by GPU time", LAUNCH_FIELDS, rows)
    else:
        table = _table("kernels", "Kernels by GPU time", FIELDS, _by_kernel(rows))
    roofs = _roof_table(rows, device_names(trace))
    gpus = names_of_used(trace, rows["device"].unique()) or (f"{gpu} (--gpu)" if gpu else None)
    name_gpu = isinstance(roofs, TableResult) and gpu is None
    return Composite(
        "roofline",
        "Roofline",
        _facts(rows, gpus),
        (table, roofs),
        meta={"path": trace.meta.path, "by": "launch" if launches else "kernel"},
        notes=(*scope.notes, *_notes(points, rows, name_gpu=name_gpu)),
    )


def _facts(rows: pl.DataFrame, gpus: str | None) -> tuple[Fact, ...]:
    time = rows.get_column(DURATION)
    reached = rows.filter(pl.col(DURATION) > 0).select(weighed_mean("roof_share")).item()
    total = float(time.sum()) if time.null_count() < len(time) else None
    sources = rows.get_column("roofs_from").drop_nulls().unique().sort().to_list()
    known = rows.filter(pl.col("bound").is_not_null())
    known_ns = float(known[DURATION].sum())
    values = {
        "gpus": gpus,
        "launches": rows.height,
        "total_ns": total,
        "roof_share": reached,
        "roofs_from": " and ".join(dict.fromkeys(" and ".join(sources).split(" and "))) or None,
    }
    for kind in ("compute", "memory", "latency"):
        own_ns = float(known.filter(pl.col("bound") == kind)[DURATION].sum())
        values[f"{kind}_time_share"] = own_ns / known_ns if known_ns else None
    filled = (replace(fact, value=values[fact.key]) for fact in ROOFLINE_FACTS)
    return tuple(fact for fact in filled if fact.value is not None)
