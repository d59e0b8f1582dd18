"""The tables of `flops`: operators under their roofline, steps, and what is not counted."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analysis.aggregates import share_of
from gpusight.analysis.flops.operator_roofs import OperatorArithmetic, TimeBound
from gpusight.results import Field, Fmt, TableResult

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.analysis.flops.counted_operators import CountedOperators
    from gpusight.analysis.flops.operator_roofs import GpuRoof, GpuRoofs
    from gpusight.analysis.steps.step_list import TraceSteps


BY = ("shapes", "op", "family")
"""What rows of operators can be grouped by."""
_GROUPS = {
    "shapes": ["family", "name", "sizes"],
    "op": ["family", "name"],
    "family": ["family"],
}
_STEP_NOTE = (
    "a step has the FLOPs of operators that started in it, and lasts until its GPU work is done"
)
_TENSOR, _SIMT = pl.lit("tensor"), pl.lit("simt")
"""Said of FP32 and FP64 on tensor cores, and of narrower formats that ran without them."""
_SHORT = {
    "cudnn_convolution": "conv",
    "miopen_convolution": "conv",
    "convolution": "conv",
    "attention": "attn",
    "backward": "bwd",
    "forward": "fwd",
}
_NO_PROCESS = -1
"""Stands for a process that is not known, which a join would match with nothing."""
_RUN_AS = ["precision", "tensor_core", "gpu"]
_CLASS = ["entry", "precision", "tensor_core", "device"]

OPERATOR_FIELDS = (
    Field("over_roof_ns", "Over roof", Fmt.TIME, "GPU time minus the least time possible"),
    Field("gpu_ns", "GPU time", Fmt.TIME, "Time of the GPU work launched by these calls"),
    Field("gpu_share", "Of GPU time", Fmt.SHARE, "Part of all GPU work's time", shown=False),
    Field("calls", "Calls", Fmt.COUNT, "How often the operator ran", shown=False),
    Field("flops", "FLOPs", Fmt.COUNT, "Floating-point operations of all calls", shown=False),
    Field("tflop_per_s", "TFLOP/s", Fmt.REAL, "10¹² operations a second of GPU time"),
    Field("peak_share", "Peak", Fmt.SHARE, "Part of the peak rate of the precision it ran in"),
    Field("roof_share", "Roof", Fmt.SHARE, "Least time possible over GPU time; 1 is at the roof"),
    Field("bound", "Bound", Fmt.TEXT, "What sets the roof: `compute` or `memory`"),
    Field("operator", "Operator", Fmt.NAME, "Operator, sizes and precision in few characters"),
    Field("family", "Family", Fmt.TEXT, "Which formula counts it", shown=False),
    Field("name", "Name", Fmt.NAME, "Operator; null when grouped by family", shown=False),
    Field("sizes", "Sizes", Fmt.NAME, "Sizes that decide the cost; see the page", shown=False),
    Field("precision", "Precision", Fmt.TEXT, "Number format computed in", shown=False),
    Field("tensor_core", "TensorCore", Fmt.FLAG, "Whether tensor cores ran", shown=False),
    Field("gpu", "GPU", Fmt.NAME, "GPU it ran on", shown=False),
    Field("min_bytes", "Min bytes", Fmt.BYTES, "Inputs read and outputs written once", shown=False),
    Field("min_bandwidth", "Min rate", Fmt.RATE, "Minimum bytes a second of GPU time", shown=False),
    Field("intensity", "FLOP/byte", Fmt.REAL, "Operations for each minimum byte", shown=False),
    Field("least_ns", "At the roof", Fmt.TIME, "Least time possible for these calls", shown=False),
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
    Field("range_ns", "Range", Fmt.TIME, "How long the host was in the range", shown=False),
    Field("flops", "FLOPs", Fmt.COUNT, "Operations of operators that started in it", shown=False),
    Field("tflop", "TFLOP", Fmt.REAL, "The same in 10¹²"),
    Field("gpu_ns", "GPU time", Fmt.TIME, "Time of the GPU work launched in it"),
    Field("tflop_per_s", "TFLOP/s", Fmt.REAL, "10¹² operations a second of its time"),
    Field("mfu", "MFU", Fmt.SHARE, "Model FLOPs utilisation: part of the peak over its time"),
)
REST_FIELDS = (
    Field("gpu_share", "Share", Fmt.SHARE, "Part of all GPU work's time"),
    Field("gpu_ns", "GPU time", Fmt.TIME, "Time of the work"),
    Field("launches", "Launches", Fmt.COUNT, "Kernels, copies and fills"),
    Field("name", "Operator", Fmt.NAME, "Operator that launched it"),
    Field("why", "Why not counted", Fmt.NAME, "Reason"),
)


def classes(counted: CountedOperators, roofs: GpuRoofs) -> pl.DataFrame:
    """Sum calls that cost the same and ran alike, with what is known of one such call."""
    sums = counted.calls.group_by(_CLASS, maintain_order=True).agg(
        pl.len().cast(pl.Int64).alias("calls"), pl.col("gpu_ns").sum()
    )
    rows = [
        {**_one(counted, roofs.of(row["device"]), row), **_sums(row)}
        for row in sums.iter_rows(named=True)
    ]
    return pl.DataFrame(rows, schema=_CLASS_SCHEMA)


def _sums(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: row[key] for key in ("calls", "gpu_ns", "device")}


def _one(counted: CountedOperators, roof: GpuRoof, row: Mapping[str, Any]) -> dict[str, Any]:
    """Describe one call of a class."""
    cost = counted.cost(row["entry"])
    how = OperatorArithmetic.of(cost, row["precision"], row["tensor_core"])
    peak = roof.peak(how) if cost.flops else None
    bound = TimeBound.of(cost, peak, roof.bandwidth)
    known = cost.read_bytes is not None and cost.written_bytes is not None
    return {
        "family": cost.family,
        "name": counted.names[row["entry"]],
        "sizes": cost.sizes,
        "precision": how.precision,
        "tensor_core": how.tensor_core if cost.flops else None,
        "gpu": roof.name,
        "flops": cost.flops,
        "min_bytes": (cost.read_bytes or 0) + (cost.written_bytes or 0) if known else None,
        "least_ns": bound.least_ns,
        "compute_ns": bound.compute_ns,
        "memory_ns": bound.memory_ns,
        "peak": peak,
        "bandwidth": roof.bandwidth,
        "guessed": how.assumed and cost.flops > 0,
        "assumed": cost.assumed or None,
    }


_CLASS_SCHEMA: dict[str, pl.DataType] = {
    "family": pl.String(),
    "name": pl.String(),
    "sizes": pl.String(),
    "precision": pl.String(),
    "tensor_core": pl.Boolean(),
    "gpu": pl.String(),
    "flops": pl.Int64(),
    "min_bytes": pl.Int64(),
    "least_ns": pl.Float64(),
    "compute_ns": pl.Float64(),
    "memory_ns": pl.Float64(),
    "peak": pl.Float64(),
    "bandwidth": pl.Float64(),
    "guessed": pl.Boolean(),
    "assumed": pl.String(),
    "calls": pl.Int64(),
    "gpu_ns": pl.Int64(),
    "device": pl.Int64(),
}


def operators(each: pl.DataFrame, by: str, gpu_ns: int) -> TableResult:
    """Group classes of calls, those that could give back most time first."""
    keys = [*_GROUPS[by], *_RUN_AS]
    missing = [key for key in _GROUPS["shapes"] if key not in keys]
    frame = (
        each.group_by(keys, maintain_order=True)
        .agg(
            pl.col("calls", "gpu_ns").sum(),
            *(_weighted(c).alias(c) for c in ("flops", "min_bytes", "least_ns")),
            *(_weighted(c).alias(c) for c in ("compute_ns", "memory_ns")),
            pl.col("peak", "bandwidth").first(),
        )
        .with_columns(*(pl.lit(None, pl.String).alias(key) for key in missing))
        .with_columns(*_derived(gpu_ns), _label().alias("operator"))
        .sort(["over_roof_ns", "gpu_ns"], descending=True, nulls_last=True, maintain_order=True)
    )
    title = {"shapes": "operator and sizes", "op": "operator", "family": "family"}[by]
    return TableResult(
        "operators",
        f"Time over the roof by {title}",
        OPERATOR_FIELDS,
        frame.select([f.key for f in OPERATOR_FIELDS]),
    )


def _weighted(column: str) -> pl.Expr:
    """Add up a value of one call over all calls; null when it is not known of some."""
    # Sums of real numbers do not overflow, whatever sizes a capture claims.
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
    """List the GPU work that no formula covers, so that the coverage can be judged."""
    frame = counted.rest.with_columns(
        share_of(pl.col("gpu_ns"), counted.gpu_ns).alias("gpu_share"),
    ).select([f.key for f in REST_FIELDS])
    return TableResult("not_counted", "GPU time that is not counted", REST_FIELDS, frame)


def whole_steps(steps: TraceSteps, spans: pl.DataFrame) -> pl.Series:
    """Tell which steps lie wholly in one of these spans (process, start_ns, end_ns; disjoint)."""
    process = pl.col("process").fill_null(_NO_PROCESS)
    around = spans.sort("start_ns").select("start_ns", pl.col("end_ns").alias("until_ns"), process)
    found = steps.frame.select("start_ns", "end_ns", process).join_asof(
        around, on="start_ns", by="process", strategy="backward", check_sortedness=False
    )
    whole = pl.col("end_ns") <= pl.col("until_ns")
    return found.select(whole.fill_null(value=False).alias("whole"))["whole"]


def step_table(
    steps: TraceSteps, counted: CountedOperators, peak: float | None, shown: pl.Series | None = None
) -> TableResult:
    """Sum up each step that did GPU work; `peak` is that of all its GPUs.

    `shown` tells for each step whether it gets a row: a step lasts from the end of the GPU work of
    the one before, so that one must be among those counted all the same.
    """
    work = counted.work.with_columns(
        steps.holding(counted.work["launched_ns"], counted.work["process"]).alias("step")
    )
    calls = counted.calls.select(
        steps.holding(counted.calls["start_ns"], counted.calls["process"]).alias("step"),
        counted.flops.gather(counted.calls["entry"]).alias("flops"),
    )
    frame = (
        steps.frame.with_row_index("position")
        .with_columns(pl.col("position").cast(pl.Int64))
        .join(_work_by_step(work), left_on="position", right_on="step", maintain_order="left")
        .join(_flops_by_step(calls), left_on="position", right_on="step", how="left")
        .sort("start_ns")
        .with_columns(*_spans())
        .with_columns(*_step_rates(peak))
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


def _work_by_step(work: pl.DataFrame) -> pl.DataFrame:
    return (
        work.filter(pl.col("step").is_not_null())
        .group_by("step")
        .agg(pl.col("end_ns").max().alias("gpu_end_ns"), pl.col("gpu_ns").sum())
    )


def _flops_by_step(calls: pl.DataFrame) -> pl.DataFrame:
    return (
        calls.filter(pl.col("step").is_not_null())
        .group_by("step")
        .agg(pl.col("flops").sum().cast(pl.Int64, strict=False))
    )


def _spans() -> list[pl.Expr]:
    """Give each step the time until its GPU work is done, without any of the step before."""
    done = pl.max_horizontal("end_ns", "gpu_end_ns")
    before = done.cum_max().shift(1).over("process")
    return [
        (done - pl.max_horizontal("start_ns", before)).clip(0).alias("span_ns"),
        (pl.col("end_ns") - pl.col("start_ns")).alias("range_ns"),
        pl.col("flops").fill_null(0),
    ]


def _step_rates(peak: float | None) -> list[pl.Expr]:
    rate = share_of(pl.col("flops"), pl.col("span_ns")) * 1e9
    return [
        (pl.col("flops") / 1e12).alias("tflop"),
        (rate / 1e12).alias("tflop_per_s"),
        (rate / pl.lit(peak, pl.Float64)).alias("mfu"),
    ]
