"""GPU time by kernel, and the columns that tables of kernel launches share."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from gpusight.analysis.aggregates import (
    names_of,
    share_of,
    timing_by_name,
    timing_fields,
)
from gpusight.analysis.kernel_behavior import kinds_of
from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.selection import EVERYTHING, ResolvedSelection, Selection, TimeWindow
from gpusight.naming.kernel_names import classify, unique_short_names
from gpusight.results import Field, Fmt, NotApplicable, TableResult
from gpusight.trace.schema_gpu import BLOCK, GRID
from gpusight.units import TIME_UNITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpusight.naming.kernel_names import KernelName
    from gpusight.trace.trace import Trace


_FOOTER = re.compile(
    r"Self (?P<device>\S{1,40}) time total: (?P<number>\d{1,12}(?:\.\d{1,9})?) ?(?P<unit>[num]?s)"
)


class PrintedTotals(NamedTuple):
    """The time that percentages in a printed table refer to; None where it is not printed."""

    cpu_ns: int | None = None
    gpu_ns: int | None = None


def printed_totals(trace: Trace) -> PrintedTotals:
    """Read the totals below a table; the first device other than the CPU is the GPU."""
    texts = trace.table("diagnostics", ["text"])["text"].to_list()
    totals: dict[str, int] = {}
    for match in (_FOOTER.fullmatch(text.strip()) for text in texts):
        if match:
            side = "cpu_ns" if match["device"] == "CPU" else "gpu_ns"
            ns = round(float(match["number"]) * TIME_UNITS[match["unit"]])
            totals.setdefault(side, ns)
    # A total of 0 is as good as none.
    return PrintedTotals(**{side: ns for side, ns in totals.items() if ns})


FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Share of the kernel time in the selection"),
    *timing_fields("total_ns", "calls", "mean_ns"),
    Field("category", "Category", Fmt.TEXT, "Kind of operation, from the kernel name"),
    Field("precision", "Precision", Fmt.TEXT, "Number format of the arithmetic", shown=False),
    Field("tensor_core", "Tensor Cores", Fmt.FLAG, "Whether it uses Tensor Cores", shown=False),
    Field("short_name", "Kernel", Fmt.NAME, "Short name, unique in the capture"),
    Field("name", "Full name", Fmt.NAME, "Name with template arguments", shown=False),
)

# What a table of totals lists besides kernels: copies, memsets, waits, and annotations of GPU work.
_OTHERS = re.compile(
    r"Memcpy |Memset |(?:Context|Stream|Event|Unknown) Sync$|Stream Wait Event$"
    r"|ProfilerStep|Optimizer\.|Torch-Compiled Region|## |[a-z]{3,6}:\w+$"
)
_TRITON = "triton_"
"""Prefix that torch.compile gives both a kernel and the operator that launches it."""
_MIN_LISTED_SHARE = 0.995
"""Share of the printed CPU total that rows add up to, unless the table lacks some."""
_NOT_IN_TOTALS = ("median_ns", "min_ns", "max_ns", "stddev_ns")


def kernels(trace: Trace, selection: Selection = EVERYTHING) -> TableResult | NotApplicable:
    """Sum up kernel executions by name, the most expensive first.

    For a report of Nsight Compute: by name and launch shape, with its metrics.
    """
    if not trace.has("kernels"):
        if trace.has("profiles"):
            # Captures of other tools need not wait for what counters need.
            from gpusight.analysis.counters.measured_kernels import kernel_table

            return kernel_table(trace, selection)
        totals = trace.has("op_totals")
        return _from_totals(trace, selection) if totals else no_kernels(trace, "kernels")
    scope = ResolvedSelection(trace, selection)
    scope.prepare("kernels")
    rows = scope.gpu("kernels", ["start_ns", "end_ns", "name"])
    frame = (
        timing_by_name(rows, "name")
        .sort(["total_ns", "code"], descending=[True, False])
        .with_columns(share_of(pl.col("total_ns"), pl.col("total_ns").sum()).alias("share"))
    )
    notes = [*scope.notes, *graph_notes(trace, selection.time)]
    if rows.is_empty() and selection:
        notes.append("no kernels were launched in the selection")
    return TableResult(
        "kernels",
        "Kernels by GPU time",
        FIELDS,
        _with_names(trace, frame, names_of(rows["name"])).select([f.key for f in FIELDS]),
        meta={
            "kernels": rows.height,
            "kernel_names": frame.height,
            "total_ns": int(frame["total_ns"].sum()),
            "any_gpu_busy_ns": busy_ns(rows),
        },
        notes=tuple(notes),
    )


def kernel_launches(trace: Trace, selection: Selection = EVERYTHING) -> TableResult | NotApplicable:
    """List profiled launches, the longest first."""
    if not trace.has("profiles"):
        reason = "the capture has no launches profiled with Nsight Compute"
        return NotApplicable("kernels", reason, "for a timeline: gpusight launches FILE")
    from gpusight.analysis.counters.measured_kernels import by_duration, launch_table

    return by_duration(launch_table(trace, selection))


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
            f"the capture has no kernels: {launches:,} CUDA graph launches were traced per graph, "
            "not per node",
            advice.graphs,
        )
    if trace.has("profiles"):
        return NotApplicable(command, "the capture has no timeline", advice.gpu)
    if trace.has("api_calls"):
        reason = f"the capture has {advice.calls_name} but no kernels"
        return NotApplicable(command, reason, advice.unrecorded)
    return NotApplicable(command, "the capture has no GPU kernels", advice.kernels)


def graph_notes(trace: Trace, window: TimeWindow | None = None) -> tuple[str, ...]:
    """Warn when kernels ran inside CUDA graphs that were traced per graph, not per node.

    Of a window, those graphs count that ran in it.
    """
    if not trace.has("graph_launches"):
        return ()
    total = trace.row_count("graph_launches")
    count = total if window is None else _running(trace, window)
    if not count:
        launches = "launch is" if total == 1 else "launches are"
        return (f"{total:,} CUDA graph {launches} outside the window",)
    launches, kernels = ("launch was", "its") if count == 1 else ("launches were", "their")
    hidden = f"{launches} traced per graph: {kernels} kernels are not in this capture"
    hint = advice_for(trace.meta).graphs
    return (f"{count:,} CUDA graph {hidden}" + (f"; {hint}" if hint else ""),)


def _running(trace: Trace, window: TimeWindow) -> int:
    graphs = trace.table("graph_launches", ["start_ns", "end_ns"])
    inside = (pl.col("start_ns") < window.end_ns) & (pl.col("end_ns") > window.start_ns)
    return graphs.filter(inside).height


def _with_names(trace: Trace, frame: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """Add label, category and precision; each distinct name is classified once."""
    known = kinds_of(trace, [names[code] for code in frame["code"]])
    labels = unique_short_names(names)
    return frame.with_columns(
        pl.Series("name", [names[code] for code in frame["code"]], pl.String),
        pl.Series("short_name", [labels[k.raw] for k in known], pl.String),
        pl.Series("category", [str(k.category) for k in known], pl.String),
        pl.Series("precision", [k.precision for k in known], pl.String),
        pl.Series("tensor_core", [k.tensor_core for k in known], pl.Boolean),
    )


def _from_totals(trace: Trace, selection: Selection) -> TableResult | NotApplicable:
    """List the kernels of a `key_averages` table with the profiler's own totals."""
    advice = advice_for(trace.meta)
    if selection:
        reason = "totals cannot be split by range, GPU or process"
        return NotApplicable("kernels", reason, advice.select)
    rows = _listed_kernels(trace)
    if rows.is_empty():
        return NotApplicable("kernels", "the table of totals lists no kernels", advice.kernels)
    total = pl.col("total_ns")
    frame = rows.with_columns(
        (total / pl.col("calls")).alias("mean_ns"),
        share_of(total, total.sum()).alias("share"),
        *(pl.lit(None, pl.Float64).alias(key) for key in _NOT_IN_TOTALS),
    ).sort(["total_ns", "code"], descending=[True, False])
    names = names_of(trace.table("op_totals", ["name"])["name"])
    return TableResult(
        "kernels",
        "Kernels by GPU time",
        FIELDS,
        _with_names(trace, frame, names).select([f.key for f in FIELDS]),
        meta={
            "kernels": int(rows["calls"].sum()),
            "kernel_names": rows.height,
            "total_ns": int(rows["total_ns"].sum()),
            "any_gpu_busy_ns": None,
        },
        notes=_totals_notes(trace, [names[code] for code in frame["code"]]),
    )


def _listed_kernels(trace: Trace) -> pl.DataFrame:
    """Keep rows of kernels: an annotation is listed on the host too, or named as frameworks do."""
    rows = trace.table("op_totals", ["name", "side", "calls", "self_gpu_ns"])
    names = names_of(rows["name"])
    printed_gpu_ns = printed_totals(trace).gpu_ns
    listed = rows.select(
        pl.col("name").to_physical().alias("code"),
        "calls",
        pl.col("self_gpu_ns").alias("total_ns"),
        (pl.col("side").cast(pl.String) == "gpu").fill_null(value=False).alias("on_gpu"),
    )
    on_gpu = listed.filter(
        pl.col("on_gpu") & pl.col("total_ns").is_not_null() & (pl.col("calls") > 0),
        ~pl.col("code").is_in([c for c, name in enumerate(names) if _OTHERS.match(name)]),
        # The printed total includes every kernel and no annotation.
        pl.lit(value=True) if printed_gpu_ns is None else pl.col("total_ns") <= printed_gpu_ns,
    ).drop("on_gpu")
    # Drop rows with the name of a host row, unless they are surely the kernel that it launched.
    # They are when their calls and time equal those of the host row and of no other GPU row: an
    # annotation around one kernel takes as long as that kernel.
    triton = [c for c, name in enumerate(names) if name.startswith(_TRITON)]
    on_host = listed.filter(~pl.col("on_gpu"))
    key = ["calls", "total_ns"]
    shared = pl.col("code").is_in(on_host["code"].to_list()) & ~pl.col("code").is_in(triton)
    alone = on_gpu.filter(~shared)
    launched = (
        on_gpu.filter(shared)
        .join(on_host, on=["code", *key], how="semi")
        .join(alone, on=key, how="anti")
    )
    return pl.concat([alone, launched])


def _totals_notes(trace: Trace, names: list[str]) -> tuple[str, ...]:
    notes = ["times are the profiler's own totals, for the rows that its table lists"]
    if cut := sum(name.endswith("...") for name in names):
        notes.append(
            f"the table truncates {cut:,} names, so their categories may be wrong; for full names: "
            "key_averages().table(max_name_column_width=1000)"
        )
    cpu_ns = printed_totals(trace).cpu_ns
    listed_ns = int(trace.table("op_totals", ["self_cpu_ns"])["self_cpu_ns"].sum())
    if cpu_ns is not None and listed_ns < _MIN_LISTED_SHARE * cpu_ns:
        notes.append(
            "the table is truncated, so some GPU annotations may be listed as kernels; for all "
            "rows: key_averages().table(row_limit=-1)"
        )
    return tuple(notes)


SHAPE = (*GRID, *BLOCK)


def product(columns: Iterable[str]) -> pl.Expr:
    """Multiply the sizes in x, y and z; null where one is unknown."""
    x, y, z = (pl.col(column) for column in columns)
    return x * y * z


def shape_texts() -> tuple[pl.Expr, pl.Expr]:
    """Format `grid` and `block` as `128x1x1`."""
    grid, block = (pl.concat_str(columns, separator="x") for columns in (GRID, BLOCK))
    return grid.alias("grid"), block.alias("block")


def whole(column: str) -> pl.Expr:
    """Round a counter to the whole number that it is."""
    return pl.col(column).cast(pl.Float64).round().cast(pl.Int64, strict=False)


def classified(names: pl.Series) -> list[KernelName]:
    """Classify each name of a column; each distinct one once."""
    texts = names_of(names)
    codes: Sequence[int] = names.to_physical().to_list()
    known = {code: classify(texts[code]) for code in set(codes)}
    return [known[code] for code in codes]


def distinct_short_names(names: pl.Series) -> pl.Series:
    """Return the short names of a capture's kernels, in the order of the column's codes."""
    texts = names_of(names)
    labels = unique_short_names(texts)
    return pl.Series("short_name", [labels[text] for text in texts], pl.String)


def short_names(names: pl.Series) -> pl.Series:
    """Return the short name of each row of a column of kernel names."""
    return distinct_short_names(names).gather(names.to_physical())


def short_names_by_shape(frame: pl.DataFrame) -> pl.Series:
    """Return the short names of rows by kernel and launch shape.

    Kernels that were launched in several shapes get what differs: grid, block or both.
    """
    named = frame.select(short_names(frame["name"]), "name", *shape_texts())
    parts = [pl.col("short_name")]
    for column in ("grid", "block"):
        # A grid of 128x1x1 is one of 128.
        size = pl.col(column).str.replace(r"(?:x1){1,2}$", "").fill_null("?")
        differs = pl.col(column).n_unique().over("name") > 1
        added = pl.concat_str(pl.lit(f" {column} "), size)
        parts.append(pl.when(differs).then(added).otherwise(pl.lit("")))
    return named.select(pl.concat_str(parts).alias("short_name")).to_series()
