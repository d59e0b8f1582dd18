"""What GPUs sampled of themselves along the timeline, bin by bin: SMs, tensor cores, memory."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.advice import advice_for
from gpusight.analyses.statistics import names_of
from gpusight.result import Field, Fmt, NotApplicable, TableResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from gpusight.model.trace import Trace

METRIC_FIELDS = (
    Field("device", "GPU", Fmt.ID, "Which GPU"),
    Field("metric", "Metric", Fmt.NAME, "What was sampled, without its unit"),
    Field("start_ns", "Time", Fmt.TIME, "When the bin begins"),
    Field("share", "Share", Fmt.SHARE, "Mean of the samples in the bin, as part of the most"),
    Field("samples", "Samples", Fmt.COUNT, "How many those are; 0 where the last one still holds"),
)
MEAN_FIELDS = (
    Field("device", "GPU", Fmt.ID, "Which GPU"),
    Field("metric", "Metric", Fmt.NAME, "What was sampled, without its unit"),
    Field("mean_share", "Mean", Fmt.SHARE, "Mean of the bins, as part of the most"),
    Field("max_share", "Highest bin", Fmt.SHARE, "Highest mean of a bin"),
)
_TELLING = (
    r"SMs? Active\b",
    r".*\bTensor\b.*\bActive\b",
    r"DRAM\b.*(?:Bandwidth|Throughput)\b",
)
"""What says how busy a GPU was in itself; there are dozens of others."""
_UNIT = re.compile(r"\s*\[[^\]]*%[^\]]*\]\s*$")
_SECTION = "metrics"
_PERCENT = 100.0


def sampled(
    trace: Trace, devices: Sequence[int], edges: NDArray[np.int64]
) -> list[TableResult | NotApplicable]:
    """Give the telling metrics of these GPUs: as a whole, and between the edges of bins."""
    found = _over_time(trace, devices, edges)
    if isinstance(found, NotApplicable):
        return [found]
    means = found.frame.group_by("device", "metric", maintain_order=True).agg(
        pl.col("share").mean().alias("mean_share"), pl.col("share").max().alias("max_share")
    )
    return [TableResult("metric_means", "Sampled by the GPU", MEAN_FIELDS, means), found]


def _over_time(
    trace: Trace, devices: Sequence[int], edges: NDArray[np.int64]
) -> TableResult | NotApplicable:
    if not trace.has("gpu_metrics"):
        return NotApplicable(_SECTION, "no GPU metrics were sampled", _hint(trace))
    frame = trace.table("gpu_metrics", ["time_ns", "device", "metric", "value"])
    labels = [_label(name) for name in names_of(frame["metric"])]
    frame = frame.with_columns(pl.col("metric").to_physical().alias("code")).filter(
        pl.col("code").is_in([code for code, label in enumerate(labels) if label]),
        pl.col("device").is_in(list(devices)),
    )
    rows = [
        _binned(own, edges).select(
            pl.lit(device, pl.Int64).alias("device"), pl.lit(labels[code]).alias("metric"), pl.all()
        )
        for (device, code), own in frame.group_by("device", "code", maintain_order=True)
    ]
    if not any(part.height for part in rows):
        return NotApplicable(_SECTION, "no metric of SMs or memory was sampled in the window")
    return TableResult(_SECTION, "Sampled over time", METRIC_FIELDS, pl.concat(rows))


def _label(name: str) -> str | None:
    """Give what a metric is called without its unit; None for those that are not shown."""
    plain, found = _UNIT.subn("", name)
    return plain if found and any(re.match(one, plain, re.IGNORECASE) for one in _TELLING) else None


def _hint(trace: Trace) -> str:
    wanted = advice_for(trace.meta).wanted
    return next((f"capture with: {w.how}" for w in wanted if w.table == "gpu_metrics"), "")


def _binned(samples: pl.DataFrame, edges: NDArray[np.int64]) -> pl.DataFrame:
    """Average samples bin by bin; from the first to the last sample no bin is left out."""
    ordered = samples.sort("time_ns")
    times, values = ordered["time_ns"].to_numpy(), ordered["value"].to_numpy()
    first, after = (np.searchsorted(times, t) for t in (edges[:-1], edges[1:]))
    sums = np.concatenate(([0.0], np.cumsum(values)))
    count = after - first
    held = values[np.maximum(first - 1, 0)]
    mean = np.where(count > 0, (sums[after] - sums[first]) / np.maximum(count, 1), held)
    known = (count > 0) | ((first > 0) & (first < len(times)))
    columns = {
        "start_ns": edges[:-1],
        "share": np.clip(mean, 0.0, None) / _PERCENT,
        "samples": count,
    }
    return pl.DataFrame(columns).filter(known).cast({"samples": pl.Int64})
