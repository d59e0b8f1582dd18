"""Where GPU time goes, by kernel.

Reads three columns and no more, and stays clear of NumPy, so that a million kernels take a moment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.select import EVERYTHING, Scope, Selection
from gpusight.analyses.statistics import DURATION, names_of, share_of, timing, timing_fields
from gpusight.model.kernel_names import classify
from gpusight.result import Field, Fmt, NotApplicable, TableResult

if TYPE_CHECKING:
    from gpusight.model.trace import Trace

_SHARE = Field("share", "Share", Fmt.SHARE, "Part of all kernel time in the selection")

FIELDS = (
    _SHARE,
    *timing_fields("total_ns", "calls", "mean_ns"),
    Field("category", "Category", Fmt.TEXT, "What the kernel does, from its name"),
    Field("precision", "Precision", Fmt.TEXT, "Number format it computes in", shown=False),
    Field("tensor_core", "TensorCore", Fmt.FLAG, "Whether it uses tensor cores", shown=False),
    Field("short_name", "Kernel", Fmt.NAME, "Readable label made from the name"),
    Field("name", "Full name", Fmt.NAME, "Name with template arguments", shown=False),
)

_NOT_TRACED = (
    "capture with: nsys profile --trace=cuda,nvtx … and let the program reach its GPU work"
)
_NOT_RECORDED = (
    "the driver refuses GPU records under older WSL2, in containers without the profiling "
    "permission, and while another profiler runs; see the messages in: gpusight info FILE"
)
GRAPH_HINT = "capture again with: nsys profile --cuda-graph-trace=node …"


def kernels(trace: Trace, selection: Selection = EVERYTHING) -> TableResult | NotApplicable:
    """Sum up kernel executions by name, the most expensive first."""
    if not trace.has("kernels"):
        return no_kernels(trace, "kernels")
    scope = Scope(trace, selection)
    scope.prepare("kernels")
    rows = scope.gpu("kernels", ["start_ns", "end_ns", "name"])
    frame = (
        rows.lazy()
        .select(pl.col("name").to_physical().alias("code"), DURATION)
        .group_by("code")
        .agg(timing())
        .sort(["total_ns", "code"], descending=[True, False])
        .with_columns(share_of(pl.col("total_ns"), pl.col("total_ns").sum()).alias("share"))
        .collect()
    )
    total = int(frame["total_ns"].sum())
    return TableResult(
        "kernels",
        "Kernels by GPU time",
        FIELDS,
        _with_names(frame, names_of(rows["name"])).select([f.key for f in FIELDS]),
        meta={
            "kernels": rows.height,
            "kernel_names": frame.height,
            "total_ns": total,
            "any_gpu_busy_ns": busy_ns(rows),
        },
        notes=(*scope.notes, *graph_notes(trace), *_empty_note(rows, selection)),
    )


def busy_ns(rows: pl.DataFrame) -> int:
    """Measure the time during which at least one of these rows, sorted by start, was running."""
    reached = pl.col("end_ns").cum_max().shift(1)
    fresh = pl.col("end_ns") - pl.max_horizontal(pl.col("start_ns"), reached)
    return int(rows.select(fresh.clip(0).sum()).item())


def no_kernels(trace: Trace, command: str) -> NotApplicable:
    """Explain why a capture shows no kernel."""
    if trace.has("graph_launches"):
        launches = trace.row_count("graph_launches")
        return NotApplicable(
            command,
            f"the capture has no kernels: {launches:,} CUDA graph launches were traced as wholes",
            GRAPH_HINT,
        )
    if trace.has("api_calls"):
        reason = "the capture has CUDA API calls but no kernels"
        return NotApplicable(command, reason, _NOT_RECORDED)
    return NotApplicable(command, "the capture has no GPU kernels", _NOT_TRACED)


def graph_notes(trace: Trace) -> tuple[str, ...]:
    """Warn when kernels ran inside CUDA graphs that were traced as wholes."""
    if not trace.has("graph_launches"):
        return ()
    count = trace.row_count("graph_launches")
    hidden = "CUDA graph launches were traced as wholes: their kernels are not in this capture"
    return (f"{count:,} {hidden}; {GRAPH_HINT}",)


def _with_names(frame: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """Add what the name tells; each distinct name is looked at once."""
    known = [classify(names[code]) for code in frame["code"]]
    return frame.with_columns(
        pl.Series("name", [names[code] for code in frame["code"]], pl.String),
        pl.Series("short_name", [k.short for k in known], pl.String),
        pl.Series("category", [str(k.category) for k in known], pl.String),
        pl.Series("precision", [k.precision for k in known], pl.String),
        pl.Series("tensor_core", [k.tensor_core for k in known], pl.Boolean),
    )


def _empty_note(rows: pl.DataFrame, selection: Selection) -> tuple[str, ...]:
    if rows.height or not selection:
        return ()
    return ("no kernel was launched inside the selection",)
