"""What kernels compute whose names do not show it: by what they do in the capture.

Programs name their own kernels as they like (`step_kernel`), and compilers name loops by file and
line (`omp main line 42`). What a timeline shows of these is what comes after them, and with GPU
metrics what they keep busy. Where it shows nothing, the category stays `custom` or `loop`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.naming.kernel_names import KernelName, classify

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpusight.trace.trace import Trace

UNNAMED = ("custom", "loop", "other")
"""Categories of names that do not show what a kernel computes."""
_RESULT_BYTES = 64
"""A few numbers: what remains of an array."""
_READS_RESULT = (pl.col("kind").cast(pl.String) == "Device-to-Host") & (
    pl.col("bytes") <= _RESULT_BYTES
)
_MIN_LAUNCHES = 3
_MIN_SHARE = 0.8
"""Part of the launches of a kernel after which a result is read."""
_MAX_TIME_SHARE = 0.5
"""Part of the kernel time up to which a kernel may be about its result alone."""
_TENSOR_METRIC = r"^(?:SM Instructions/)?Tensor (?:Active|Pipe Active)"
_MIN_TENSOR_PERCENT = 10.0
_MIN_SAMPLES = 8
_STREAM = ["process", "device", "stream"]
_SCHEMA = {"name": pl.String(), "category": pl.String()}


def kinds_of(trace: Trace, names: Sequence[str]) -> list[KernelName]:
    """Classify names of kernels; those that show nothing by what the kernels do in a capture."""
    kinds = [classify(name) for name in names]
    if not any(kind.category in UNNAMED for kind in kinds):
        return kinds
    rows = trace.derive("kernel-behavior-1", lambda: _behaviors(trace)).rows()
    known: dict[str, str] = dict(rows)
    return [
        kind
        if kind.category not in UNNAMED or name not in known
        else KernelName(
            kind.raw, kind.demangled, kind.short, known[name], kind.precision, kind.tensor_core
        )
        for kind, name in zip(kinds, names, strict=True)
    ]


def _behaviors(trace: Trace) -> pl.DataFrame:
    """Return the kernels of a capture that show what they compute, and their categories."""
    reads = _results_read(trace)
    if reads.height < _MIN_LAUNCHES and not trace.has("gpu_metrics"):
        return pl.DataFrame(schema=_SCHEMA)
    kernels = trace.table("kernels", ["name", "start_ns", "end_ns", *_STREAM])
    texts = names_of(kernels["name"])
    kernels = kernels.with_columns(pl.col("name").to_physical().cast(pl.Int64).alias("code"))
    used: Iterable[int] = kernels["code"].unique()
    own = [code for code in used if classify(texts[code]).category in UNNAMED]
    if not own:
        return pl.DataFrame(schema=_SCHEMA)
    kinds = dict.fromkeys(_reductions(trace, kernels, own) if reads.height else (), "reduction")
    kinds |= dict.fromkeys(_on_tensor_cores(trace, kernels, own), "matmul")
    rows = [(texts[code], category) for code, category in sorted(kinds.items())]
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")


def _results_read(trace: Trace) -> pl.DataFrame:
    """Return the copies of a few numbers to the host."""
    if not trace.has("copies"):
        return pl.DataFrame()
    return trace.table("copies", ["kind", "bytes"]).filter(_READS_RESULT)


def _reductions(trace: Trace, kernels: pl.DataFrame, own: list[int]) -> list[int]:
    """Return kernels whose result, a few numbers, is copied to the host after nearly each launch.

    They are a part of the work: where a kernel is most of it, it computes more than this result.
    """
    copies = trace.table("copies", ["start_ns", "kind", "bytes", *_STREAM]).select(
        "start_ns", *_STREAM, pl.lit(None, pl.Int64).alias("code"), _READS_RESULT.alias("reads")
    )
    launches = kernels.select("start_ns", *_STREAM, "code", pl.lit(value=False).alias("reads"))
    following = pl.col("reads").shift(-1).over(_STREAM).fill_null(value=False)
    total_ns = int((kernels["end_ns"] - kernels["start_ns"]).sum())
    took_ns = kernels.group_by("code").agg(
        (pl.col("end_ns") - pl.col("start_ns")).sum().alias("ns")
    )
    return (
        pl.concat([launches, copies])
        .sort("start_ns", maintain_order=True)
        .with_columns(following.alias("read"))
        .filter(pl.col("code").is_in(own))
        .group_by("code")
        .agg(pl.len().alias("launches"), pl.col("read").mean())
        .join(took_ns, on="code")
        .filter(
            pl.col("launches") >= _MIN_LAUNCHES,
            pl.col("read") >= _MIN_SHARE,
            pl.col("ns") <= _MAX_TIME_SHARE * total_ns,
        )["code"]
        .to_list()
    )


def _on_tensor_cores(trace: Trace, kernels: pl.DataFrame, own: list[int]) -> list[int]:
    """Return kernels that keep Tensor Cores busy, as GPU metrics show."""
    if not trace.has("gpu_metrics"):
        return []
    import numpy as np  # costs a tenth of a second, which few captures need pay

    samples = trace.table("gpu_metrics", ["time_ns", "device", "metric", "value"]).filter(
        pl.col("metric").cast(pl.String).str.contains(_TENSOR_METRIC)
    )
    busy_codes = []
    for (device,), rows in samples.group_by("device"):
        there = kernels.filter(pl.col("device") == device).sort("start_ns")
        if there.is_empty():
            continue
        time_ns = rows["time_ns"].to_numpy()
        at = np.searchsorted(there["start_ns"].to_numpy(), time_ns, side="right") - 1
        inside = (at >= 0) & (time_ns < there["end_ns"].to_numpy()[np.maximum(at, 0)])
        sampled = pl.DataFrame(
            {
                "code": there["code"].to_numpy()[at[inside]],
                "value": rows["value"].to_numpy()[inside],
            }
        )
        means = sampled.group_by("code").agg(pl.len(), pl.col("value").mean())
        busy = means.filter(
            pl.col("code").is_in(own),
            pl.col("len") >= _MIN_SAMPLES,
            pl.col("value") >= _MIN_TENSOR_PERCENT,
        )
        busy_codes += busy["code"].to_list()
    return busy_codes
