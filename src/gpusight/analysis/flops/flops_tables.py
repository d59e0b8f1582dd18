"""The tables of `flops`: operators against the roofline of their GPU, steps, and the rest."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analysis.aggregates import share_of
from gpusight.hardware.gpu_lookup import (
    PRECISIONS,
    listed_gpu,
    peak_flops,
    table_name,
    with_measured,
)
from gpusight.results import Field, Fmt, TableResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpusight.analysis.flops.counted_operators import CountedOperators
    from gpusight.analysis.flops.operator_inputs import OperatorCost
    from gpusight.analysis.steps.step_list import TraceSteps
    from gpusight.hardware.gpu_table import Gpu
    from gpusight.trace.trace import Trace


# Rooflines ----------------------------------------------------------------------------------------


_HALVES = frozenset({"bf16", "fp16"})
_ONLY_FAST_ON_TENSOR_CORES = frozenset({"tf32", "bf16", "fp16", "fp8", "fp4", "int8"})
_COLUMNS = (
    "device", "name", "compute_major", "compute_minor", "sm_count", "clock_hz", "memory_bytes",
    "memory_bandwidth",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class OperatorArithmetic:
    """The precision and unit of a call."""

    precision: str | None
    tensor_core: bool | None
    assumed: bool = False
    """The kernels' names do not show whether Tensor Cores ran; they are assumed to."""

    @classmethod
    def of(
        cls, cost: OperatorCost, kernel: str | None, tensor_core: bool | None
    ) -> OperatorArithmetic:
        """Take the precision of the kernels' names, else that of the tensors."""
        precision = kernel if kernel in PRECISIONS else None
        if precision is None or {precision, cost.precision} <= _HALVES:
            # cuDNN calls both 16-bit formats f16.
            precision = cost.precision
        if tensor_core is None and precision in _ONLY_FAST_ON_TENSOR_CORES:
            return cls(precision, tensor_core=True, assumed=True)
        return cls(precision, tensor_core)


@dataclass(frozen=True, slots=True)
class GpuRoof:
    """Peak FLOP/s and bandwidth of one GPU."""

    name: str | None
    gpu: Gpu | None
    given_peak: float | None = None
    """FLOP/s that the user gave."""
    given_bandwidth: float | None = None
    """Bytes/s that the user gave."""

    @property
    def bandwidth(self) -> float | None:
        """Bytes/s of its memory."""
        known = None if self.gpu is None else self.gpu.memory_bandwidth_bytes_s
        return self.given_bandwidth or known

    def peak(self, how: OperatorArithmetic) -> float | None:
        """FLOP/s in this precision, on this unit; None when not known."""
        if self.given_peak:
            return self.given_peak
        if self.gpu is None or how.precision not in PRECISIONS or how.tensor_core is None:
            return None
        return peak_flops(self.gpu, str(how.precision), tensor=how.tensor_core)


@dataclass(frozen=True, slots=True)
class OperatorRoofline:
    """The least time that one call can take, by arithmetic and by memory traffic."""

    how: OperatorArithmetic
    peak: float | None
    """FLOP/s; None where nothing is computed, or the peak is not known."""
    compute_ns: float | None
    memory_ns: float | None

    @classmethod
    def of(
        cls, cost: OperatorCost, roof: GpuRoof, kernel: str | None, tensor_core: bool | None
    ) -> OperatorRoofline:
        """Compute it; times are None where the peak, the bandwidth or the bytes are not known."""
        how = OperatorArithmetic.of(cost, kernel, tensor_core)
        peak = roof.peak(how) if cost.flops else None
        compute_ns = cost.flops / peak * 1e9 if peak else None
        moved, bandwidth = cost.min_bytes, roof.bandwidth
        memory_ns = moved / bandwidth * 1e9 if moved is not None and bandwidth else None
        return cls(how, peak, compute_ns if cost.flops else 0.0, memory_ns)

    @property
    def least_ns(self) -> float | None:
        """The longer of the two times; None when either is not known."""
        if self.compute_ns is None or self.memory_ns is None:
            return None
        return max(self.compute_ns, self.memory_ns)


@dataclass(frozen=True, slots=True)
class GpuRoofs:
    """The rooflines of a capture's GPUs."""

    by_device: dict[int, GpuRoof]
    notes: tuple[str, ...] = ()


def roofs_of(
    trace: Trace,
    devices: Iterable[int],
    *,
    peak: float | None = None,
    bandwidth: float | None = None,
) -> GpuRoofs:
    """Return the rooflines of these GPUs; `peak` (FLOP/s) and `bandwidth` (bytes/s) override.

    ROCm numbers GPUs differently where it describes them: where only one GPU is described, the
    others are taken to be like it.
    """
    rows = {row["device"]: row for row in trace.table("devices", _COLUMNS).iter_rows(named=True)}
    named = {number: row for number, row in rows.items() if row["name"]}
    only = next(iter(named.values())) if len({row["name"] for row in named.values()}) == 1 else None
    roofs, notes = {}, []
    for device in devices:
        row = rows.get(device)
        described = row is not None and (
            row["name"] or row["sm_count"] is not None or row["compute_major"] is not None
        )
        if only is not None and not described:
            row = only
            notes.append(f"GPU {device} is assumed to be {only['name']}")
        roof = GpuRoof(None, None) if row is None else _roof(row)
        roofs[device] = replace(roof, given_peak=peak, given_bandwidth=bandwidth)
    return GpuRoofs(roofs, tuple(notes))


def _roof(row: Mapping[str, Any]) -> GpuRoof:
    """Look the GPU up in the table of GPUs; values of the capture come first."""
    listed = listed_gpu(row)
    gpu = with_measured(
        listed,
        name=row["name"] or None,
        compute_major=row["compute_major"],
        compute_minor=row["compute_minor"],
        sm_count=row["sm_count"],
        clock_hz=row["clock_hz"],
        memory_bytes=row["memory_bytes"],
        memory_bandwidth_bytes_s=row["memory_bandwidth"],
    )
    return GpuRoof(row["name"] or table_name(listed), gpu)


# Operators ----------------------------------------------------------------------------------------


BY = ("shapes", "op", "family")
"""What rows of operators can be grouped by."""
_GROUPS = {
    "shapes": ["family", "name", "sizes"],
    "op": ["family", "name"],
    "family": ["family"],
}
_STEP_NOTE = "a step has the FLOPs of operators that start in it, and ends with its GPU work"
_TENSOR, _SIMT = pl.lit("tensor"), pl.lit("simt")
"""Marks FP32 and FP64 on Tensor Cores, and narrower formats that ran without them."""
_SHORT = {
    "cudnn_convolution": "conv",
    "miopen_convolution": "conv",
    "convolution": "conv",
    "attention": "attn",
    "backward": "bwd",
    "forward": "fwd",
}
_NO_PROCESS = -1
"""Replaces a null process, which a join would match with nothing."""
CALL_CLASS = ["entry", "precision", "tensor_core", "device"]
"""Columns of `CountedOperators.calls`: calls equal in these cost the same and ran alike."""

OPERATOR_FIELDS = (
    Field("over_roof_ns", "Headroom", Fmt.TIME, "GPU time minus the minimum time"),
    Field("gpu_ns", "GPU time", Fmt.TIME, "Time of the GPU work launched by these calls"),
    Field("gpu_share", "% GPU time", Fmt.SHARE, "Share of the time of all GPU work", shown=False),
    Field("calls", "Calls", Fmt.COUNT, "Calls of the operator", shown=False),
    Field("flops", "FLOPs", Fmt.COUNT, "Floating-point operations of all calls", shown=False),
    Field("tflop_per_s", "TFLOP/s", Fmt.REAL, "TFLOP/s over GPU time"),
    Field("peak_share", "Peak", Fmt.SHARE, "Share of the peak of its precision"),
    Field("roof_share", "Roofline", Fmt.SHARE, "Minimum time over GPU time; 1 is at the roofline"),
    Field("bound", "Bound", Fmt.TEXT, "Which roofline applies: `compute` or `memory`"),
    Field("operator", "Operator", Fmt.NAME, "Operator, shape and precision"),
    Field("family", "Family", Fmt.TEXT, "Which formula counts it", shown=False),
    Field("name", "Name", Fmt.NAME, "Operator; null when grouped by family", shown=False),
    Field(
        "sizes",
        "Sizes",
        Fmt.NAME,
        "Shape that sets the cost: m, n, k of a GEMM",
        shown=False,
    ),
    Field("precision", "Precision", Fmt.TEXT, "Number format computed in", shown=False),
    Field("tensor_core", "TensorCore", Fmt.FLAG, "Whether Tensor Cores ran", shown=False),
    Field("gpu", "GPU", Fmt.NAME, "GPU it ran on", shown=False),
    Field("min_bytes", "Min bytes", Fmt.BYTES, "Inputs read and outputs written once", shown=False),
    Field("min_bandwidth", "Min rate", Fmt.RATE, "Minimum bytes over GPU time", shown=False),
    Field("intensity", "FLOP/byte", Fmt.REAL, "FLOPs per minimum byte", shown=False),
    Field("least_ns", "Minimum", Fmt.TIME, "Time of these calls at the roofline", shown=False),
    Field("peak_tflop_per_s", "Peak TFLOP/s", Fmt.REAL, "Peak the share refers to", shown=False),
    Field("bandwidth", "Bandwidth", Fmt.RATE, "Peak bandwidth of the memory", shown=False),
)
STEP_FIELDS = (
    Field("step", "Step", Fmt.NAME, "Name of the range"),
    Field("number", "Number", Fmt.ID, "Number in its name, or how many came before it"),
    Field(
        "span_ns",
        "Time",
        Fmt.TIME,
        "From its start, or the end of the GPU work of the step before, to the end of its own",
    ),
    Field("range_ns", "Range", Fmt.TIME, "Duration of the range on the host", shown=False),
    Field("flops", "FLOPs", Fmt.COUNT, "FLOPs of operators that start in it", shown=False),
    Field("tflop", "TFLOP", Fmt.REAL, "The same in 10¹²"),
    Field("gpu_ns", "GPU time", Fmt.TIME, "Time of the GPU work launched in it"),
    Field("tflop_per_s", "TFLOP/s", Fmt.REAL, "TFLOP/s over the step"),
    Field("mfu", "MFU", Fmt.SHARE, "Model FLOPs utilization of the step"),
)
REST_FIELDS = (
    Field("gpu_share", "Share", Fmt.SHARE, "Share of the time of all GPU work"),
    Field("gpu_ns", "GPU time", Fmt.TIME, "Time of the work"),
    Field("launches", "Launches", Fmt.COUNT, "Kernels, memcpys and memsets"),
    Field("name", "Operator", Fmt.NAME, "Operator that launched it"),
    Field("why", "Why not counted", Fmt.NAME, "Reason"),
)


def classes(counted: CountedOperators, roofs: GpuRoofs) -> pl.DataFrame:
    """Sum calls that cost the same and ran alike, with the cost of one such call."""
    sums = counted.calls.group_by(CALL_CLASS, maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("calls"), pl.col("gpu_ns").sum()
    )
    rows = []
    for entry, precision, tensor_core, device, calls, gpu_ns in sums.iter_rows():
        cost, roof = counted.cost(entry), roofs.by_device[device]
        line = OperatorRoofline.of(cost, roof, precision, tensor_core)
        rows.append(
            {
                "family": cost.family,
                "name": counted.names[entry],
                "sizes": cost.sizes,
                "precision": line.how.precision,
                "tensor_core": line.how.tensor_core if cost.flops else None,
                "gpu": roof.name,
                "flops": cost.flops,
                "min_bytes": cost.min_bytes,
                "least_ns": line.least_ns,
                "compute_ns": line.compute_ns,
                "memory_ns": line.memory_ns,
                "peak": line.peak,
                "bandwidth": roof.bandwidth,
                "guessed": line.how.assumed and cost.flops > 0,
                "assumed": cost.assumed or None,
                "calls": calls,
                "gpu_ns": gpu_ns,
                "device": device,
            }
        )
    return pl.DataFrame(rows, schema=_CLASS_SCHEMA)


_CLASS_SCHEMA: dict[str, pl.DataType] = {
    **dict.fromkeys(("family", "name", "sizes", "precision", "gpu", "assumed"), pl.String()),
    **dict.fromkeys(("tensor_core", "guessed"), pl.Boolean()),
    **dict.fromkeys(("flops", "min_bytes", "calls", "gpu_ns", "device"), pl.Int64()),
    **dict.fromkeys(("least_ns", "compute_ns", "memory_ns", "peak", "bandwidth"), pl.Float64()),
}


def operators(each: pl.DataFrame, by: str, gpu_ns: int) -> TableResult:
    """Group classes of calls, those with most time above the roofline first."""
    keys = [*_GROUPS[by], "precision", "tensor_core", "gpu"]
    missing = [key for key in _GROUPS["shapes"] if key not in keys]
    frame = (
        each.group_by(keys, maintain_order=True)
        .agg(
            pl.col("calls", "gpu_ns").sum(),
            *(
                _total(column).alias(column)
                for column in ("flops", "min_bytes", "least_ns", "compute_ns", "memory_ns")
            ),
            pl.col("peak", "bandwidth").first(),
        )
        .with_columns(*(pl.lit(None, pl.String).alias(key) for key in missing))
        .with_columns(*_derived(gpu_ns), _label().alias("operator"))
        .sort(["over_roof_ns", "gpu_ns"], descending=True, nulls_last=True, maintain_order=True)
    )
    title = {"shapes": "operator and shape", "op": "operator", "family": "family"}[by]
    return TableResult(
        "operators",
        f"Time above roofline by {title}",
        OPERATOR_FIELDS,
        frame.select([f.key for f in OPERATOR_FIELDS]),
    )


def _total(column: str) -> pl.Expr:
    """Sum a value of one call over all calls; null when it is not known for some."""
    # Sums of floats do not overflow, whatever sizes a capture claims.
    total = (pl.col(column).cast(pl.Float64) * pl.col("calls")).sum()
    return pl.when(pl.col(column).is_not_null().all()).then(total)


def _derived(gpu_ns: int) -> list[pl.Expr]:
    flops, time, least = pl.col("flops"), pl.col("gpu_ns"), pl.col("least_ns")
    rate = pl.when(flops > 0).then(share_of(flops, time)) * 1e9
    return [
        (time - least).alias("over_roof_ns"),
        share_of(time, gpu_ns).alias("gpu_share"),
        flops.cast(pl.Int64, strict=False).alias("flops"),
        (rate / 1e12).alias("tflop_per_s"),
        (rate / pl.col("peak")).alias("peak_share"),
        share_of(least, time).alias("roof_share"),
        pl.when(least.is_not_null())
        .then(
            pl.when(pl.col("compute_ns") >= pl.col("memory_ns"))
            .then(pl.lit("compute"))
            .otherwise(pl.lit("memory"))
        )
        .alias("bound"),
        pl.col("min_bytes").cast(pl.Int64, strict=False),
        (share_of(pl.col("min_bytes"), time) * 1e9).alias("min_bandwidth"),
        share_of(flops, pl.col("min_bytes")).alias("intensity"),
        (pl.col("peak") / 1e12).alias("peak_tflop_per_s"),
    ]


def _label() -> pl.Expr:
    short = pl.col("name").str.strip_prefix("aten::").str.replace_many(_SHORT, leftmost=True)
    unusual = pl.col("tensor_core") == pl.col("precision").is_in(["fp32", "fp64"])
    unit = pl.when(unusual).then(pl.when("tensor_core").then(_TENSOR).otherwise(_SIMT))
    parts = (pl.coalesce(short, "family"), "sizes", "precision", unit)
    return pl.concat_str(*parts, separator=" ", ignore_nulls=True)


def rest(counted: CountedOperators) -> TableResult:
    """List the GPU activities that no formula covers."""
    frame = counted.rest.with_columns(
        share_of(pl.col("gpu_ns"), counted.gpu_ns).alias("gpu_share"),
    ).select([f.key for f in REST_FIELDS])
    return TableResult("not_counted", "GPU time not counted", REST_FIELDS, frame)


def whole_steps(steps: TraceSteps, spans: pl.DataFrame) -> pl.Series:
    """Mark the steps wholly inside one of these spans (process, start_ns, end_ns; disjoint)."""
    process = pl.col("process").fill_null(_NO_PROCESS)
    around = spans.sort("start_ns").select(
        "start_ns", pl.col("end_ns").alias("span_end_ns"), process
    )
    placed = steps.frame.select("start_ns", "end_ns", process).join_asof(
        around, on="start_ns", by="process", strategy="backward", check_sortedness=False
    )
    return (placed["end_ns"] <= placed["span_end_ns"]).fill_null(value=False)


def step_table(
    steps: TraceSteps,
    counted: CountedOperators,
    peak: float | None,
    shown: pl.Series | None = None,
    spans_ns: Mapping[int, int] | None = None,
) -> TableResult:
    """Sum up each step with GPU activities; `peak` is that of all its GPUs together.

    `shown` marks the steps that get a row: a step lasts from the end of the GPU activities of the
    one before, so that one must be counted too. `spans_ns` is how long steps take without the
    profiler, by number, where that is known.
    """
    work, calls = counted.work, counted.calls
    gpu = (
        work.with_columns(steps.holding(work["launched_ns"], work["process"]).alias("position"))
        .drop_nulls("position")
        .group_by("position")
        .agg(pl.col("end_ns").max().alias("gpu_end_ns"), pl.col("gpu_ns").sum())
    )
    flops = (
        calls.select(
            steps.holding(calls["start_ns"], calls["process"]).alias("position"),
            counted.flops.gather(calls["entry"]).alias("flops"),
        )
        .drop_nulls("position")
        .group_by("position")
        .agg(pl.col("flops").sum().cast(pl.Int64, strict=False))
    )
    # A step ends with its GPU activities; the part that overlaps the step before does not count.
    done = pl.max_horizontal("end_ns", "gpu_end_ns")
    previous_done = done.cum_max().shift(1).over("process")
    rate = share_of(pl.col("flops"), pl.col("span_ns")) * 1e9
    frame = (
        steps.frame.with_row_index("position")
        .with_columns(pl.col("position").cast(pl.Int64))
        .join(gpu, on="position", maintain_order="left")
        .join(flops, on="position", how="left")
        .sort("start_ns")
        .with_columns(
            (done - pl.max_horizontal("start_ns", previous_done)).clip(0).alias("span_ns"),
            (pl.col("end_ns") - pl.col("start_ns")).alias("range_ns"),
            pl.col("flops").fill_null(0),
        )
        .with_columns(
            pl.col("number")
            .replace_strict(dict(spans_ns or {}), default=pl.col("span_ns"), return_dtype=pl.Int64)
            .alias("span_ns")
        )
        .with_columns(
            (pl.col("flops") / 1e12).alias("tflop"),
            (rate / 1e12).alias("tflop_per_s"),
            (rate / pl.lit(peak, pl.Float64)).alias("mfu"),
        )
        .rename({"name": "step"})
    )
    if shown is not None:
        frame = frame.filter(pl.col("position").is_in(shown.arg_true().cast(pl.Int64).implode()))
    return TableResult(
        "steps",
        "Steps",
        STEP_FIELDS,
        frame.select([f.key for f in STEP_FIELDS]),
        notes=(_STEP_NOTE,),
    )
