"""Where GPU time goes, by kernel.

Reads three columns and no more, and stays clear of NumPy, so that a million kernels take a moment.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.advice import advice_for
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

# What a table of totals lists beside kernels: copies, fills, and marks laid over the GPU's work.
_COPIES = re.compile(r"Memcpy |Memset ")
_MARKS = re.compile(r"ProfilerStep|Optimizer\.|Torch-Compiled Region|## |[a-z]{3,6}:\w+$")
_CUT = "..."
_UNTOLD = ("median_ns", "min_ns", "max_ns", "stddev_ns")


def kernels(trace: Trace, selection: Selection = EVERYTHING) -> TableResult | NotApplicable:
    """Sum up kernel executions by name, the most expensive first."""
    if not trace.has("kernels"):
        totals = trace.has("op_totals")
        return _from_totals(trace, selection) if totals else no_kernels(trace, "kernels")
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
    advice = advice_for(trace.meta)
    if trace.has("graph_launches"):
        launches = trace.row_count("graph_launches")
        return NotApplicable(
            command,
            f"the capture has no kernels: {launches:,} CUDA graph launches were traced as wholes",
            advice.graphs,
        )
    if trace.has("api_calls"):
        reason = f"the capture has {advice.calls_name} but no kernels"
        return NotApplicable(command, reason, advice.unrecorded)
    return NotApplicable(command, "the capture has no GPU kernels", advice.kernels)


def graph_notes(trace: Trace) -> tuple[str, ...]:
    """Warn when kernels ran inside CUDA graphs that were traced as wholes."""
    if not trace.has("graph_launches"):
        return ()
    count = trace.row_count("graph_launches")
    hidden = "CUDA graph launches were traced as wholes: their kernels are not in this capture"
    hint = advice_for(trace.meta).graphs
    return (f"{count:,} {hidden}; {hint}" if hint else f"{count:,} {hidden}",)


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


def _from_totals(trace: Trace, selection: Selection) -> TableResult | NotApplicable:
    """List the kernels of a table of totals, as the profiler summed them up itself."""
    advice = advice_for(trace.meta)
    if selection:
        reason = "totals cannot be divided by range, GPU or process"
        return NotApplicable("kernels", reason, advice.select)
    rows = _listed_kernels(trace)
    if rows.is_empty():
        return NotApplicable("kernels", "the table of totals lists no kernels", advice.kernels)
    total = pl.col("total_ns")
    frame = rows.with_columns(
        (total / pl.col("calls")).alias("mean_ns"),
        share_of(total, total.sum()).alias("share"),
        *(pl.lit(None, pl.Float64).alias(key) for key in _UNTOLD),
    ).sort(["total_ns", "code"], descending=[True, False])
    names = names_of(trace.table("op_totals", ["name"])["name"])
    return TableResult(
        "kernels",
        "Kernels by GPU time",
        FIELDS,
        _with_names(frame, names).select([f.key for f in FIELDS]),
        meta={
            "kernels": int(rows["calls"].sum()),
            "kernel_names": rows.height,
            "total_ns": int(rows["total_ns"].sum()),
            "any_gpu_busy_ns": None,
        },
        notes=_totals_notes([names[code] for code in frame["code"]]),
    )


def _listed_kernels(trace: Trace) -> pl.DataFrame:
    """Keep rows of kernels: a mark is listed on the host's side too, or named as frameworks do."""
    rows = trace.table("op_totals", ["name", "side", "calls", "self_gpu_ns"])
    names = names_of(rows["name"])
    on_gpu = pl.col("side").cast(pl.String) == "gpu"
    on_host = set(rows.filter(~on_gpu)["name"].to_physical())
    other = [c for c, n in enumerate(names) if c in on_host or _COPIES.match(n) or _MARKS.match(n)]
    return (
        rows.filter(on_gpu & pl.col("self_gpu_ns").is_not_null() & (pl.col("calls") > 0))
        .select(
            pl.col("name").to_physical().alias("code"),
            "calls",
            pl.col("self_gpu_ns").alias("total_ns"),
        )
        .filter(~pl.col("code").is_in(other))
    )


def _totals_notes(names: list[str]) -> tuple[str, ...]:
    notes = ["these are the profiler's own totals, of the rows that its table lists"]
    if cut := sum(name.endswith(_CUT) for name in names):
        notes.append(
            f"{cut:,} names were cut short by the table, and what these kernels are is told from "
            "the rest; whole names: key_averages().table(max_name_column_width=1000)"
        )
    return tuple(notes)


def _empty_note(rows: pl.DataFrame, selection: Selection) -> tuple[str, ...]:
    if rows.height or not selection:
        return ()
    return ("no kernel was launched inside the selection",)
