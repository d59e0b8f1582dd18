"""Time and stalls by source line, from counters of single instructions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.aggregates import names_of, share_of, shown_if_filled
from gpusight.analysis.counters.counter_selection import LaunchSelection, chosen_metrics
from gpusight.analysis.counters.launch_quantities import DURATION
from gpusight.naming.kernel_names import unique_short_names
from gpusight.results import Field, Fmt, NotApplicable, TableResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.trace.trace import Trace


COMMAND = "counters"
SAMPLES = ("smsp__pcsamp_sample_count", "smsp__pcsamp_warps_issue", "samples")
"""Warp samples at an instruction, under the names of several versions."""
EXECUTED = ("inst_executed", "smsp__inst_executed")
_STALLS = "smsp__pcsamp_warps_issue_stalled_"
_NOT_STALLED = ("selected", "not_selected")
"""Stall reasons that are none: the warp issued, or could have."""
_MAX_FUNCTION_BYTES = 1 << 26
"""Instances with larger numbers are timestamps or the like, not instructions."""

_PLACE = (
    Field("kernel", "Kernel", Fmt.NAME, "Short kernel name"),
    Field("place", "Line", Fmt.TEXT, "Source file and line, or offset in the kernel"),
)
_TEXT = Field("text", "Source", Fmt.NAME, "Source line, if the capture has it")
_WHERE = (
    Field("path", "File", Fmt.NAME, "Source file", shown=False),
    Field("line", "Number", Fmt.ID, "Line in it, from 1", shown=False),
    Field("name", "Full name", Fmt.NAME, "Kernel name with template arguments", shown=False),
)
FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Share of the kernel's samples, or instructions"),
    Field("time_ns", "Time", Fmt.TIME, "Estimated time by samples"),
    Field("samples", "Samples", Fmt.COUNT, "Warp samples"),
    Field("executed", "Executed", Fmt.COUNT, "Warp instructions executed"),
    Field("stall", "Stall", Fmt.TEXT, "Most frequent stall reason"),
    Field("stall_share", "% stalled", Fmt.SHARE, "Share of the samples with it", shown=False),
    *_PLACE,
    _TEXT,
    *_WHERE,
)
METRIC_FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Share of the metric's sum over the kernel"),
    Field("value", "Value", Fmt.COUNT, "Sum over the instructions of the line and the launches"),
    Field("metric", "Metric", Fmt.NAME, "Metric name"),
    *_PLACE,
    _TEXT,
    *_WHERE,
)
_KEY = ["kernel_code", "path", "line", "offset"]
_INSTANCE = ["launch", "metric", "instance", "value"]
_NO_INSTANCES = (
    "the capture has no per-instruction counters",
    "collect with: ncu --section SourceCounters --import-source yes",
)
_NOT_BY_INSTRUCTION = (
    "these metrics are not per instruction",
    "per-instruction metrics: inst_executed, memory_l1_…, smsp__pcsamp_…",
)


def source_lines(scope: LaunchSelection, metrics: Sequence[str]) -> TableResult | NotApplicable:
    """List the lines on which kernels spend their time, the longest first.

    With `metrics`, each of them by line instead.
    """
    trace = scope.trace
    if not trace.has("counter_instances") or not trace.has("profiles", "address"):
        return NotApplicable(COMMAND, *_NO_INSTANCES)
    known = metrics_of_instructions(trace)
    if metrics:
        wanted = chosen_metrics(known, metrics)
    else:  # what shows time and stalls
        stalls = [m for m in known if m.startswith(_STALLS) and not m.endswith("_not_issued")]
        wanted = [*first_of(SAMPLES, known), *first_of(EXECUTED, known), *stalls]
    counted = instructions(scope, wanted)
    if counted.is_empty():
        return NotApplicable(COMMAND, *(_NOT_BY_INSTRUCTION if metrics else _NO_INSTANCES))
    placed = with_lines(trace, counted)
    frame = _by_metric(placed) if metrics else _by_time(placed)
    fields = METRIC_FIELDS if metrics else FIELDS
    frame = _add_names(trace, frame).select([f.key for f in fields])
    title = "Kernels by source line"
    if metrics:
        names = frame["metric"].unique()
        title = f"{names[0] if len(names) == 1 else 'Counters'} by source line"
    several = frame["kernel"].n_unique() > 1
    hidden = {"samples", "executed", "stall"} if several else {"kernel"}
    if "metric" in frame.columns:
        hidden |= {"text"} if frame["metric"].n_unique() > 1 else {"metric"}
    kept = (replace(f, shown=f.shown and f.key not in hidden) for f in fields)
    return TableResult(
        COMMAND,
        title,
        shown_if_filled(kept, frame),
        frame,
        meta={"launches": counted["launch"].n_unique()},
        notes=_notes(placed, by_time=not metrics),
    )


def _notes(placed: pl.DataFrame, *, by_time: bool) -> tuple[str, ...]:
    notes = []
    without_lines = placed.filter(pl.col("line").is_null())["launch"].n_unique()
    if without_lines:
        all_launches = without_lines == placed["launch"].n_unique()
        what = "no source lines" if all_launches else "some code has no lines"
        remedy = "compile with nvcc -lineinfo and measure with: ncu --import-source yes"
        notes.append(f"{what}: places are bytes from the kernel's start; {remedy}")
    if by_time and not placed["metric"].cast(pl.String).is_in(SAMPLES).any():
        notes.append(
            "the kernels were not sampled: shares are of instructions executed, not of time; "
            "--section SourceCounters samples them"
        )
    return tuple(notes)


def metrics_of_instructions(trace: Trace) -> list[str]:
    """List the metrics that have instances in the capture."""
    return names_of(trace.table("counter_instances", _INSTANCE)["metric"])


def first_of(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return the name that a capture has, of those that a metric had in several versions."""
    return [n for n in names if n in known][:1]


def instructions(scope: LaunchSelection, wanted: Sequence[str]) -> pl.DataFrame:
    """Return the instances of metrics that are instructions, with their offset in the kernel."""
    launches = scope.profiles(["launch", "name", "mangled_name", "binary", "address", DURATION])
    rows = scope.trace.table("counter_instances", _INSTANCE)
    offset = (pl.col("instance") - pl.col("address")).alias("offset")
    return (
        rows.lazy()
        .filter(pl.col("metric").is_in(list(wanted)), pl.col("value").is_not_null())
        .join(launches.lazy(), on="launch", maintain_order="left")
        .with_columns(offset, pl.col("name").to_physical().alias("kernel_code"))
        .filter(pl.col("offset").is_between(0, _MAX_FUNCTION_BYTES))
        .collect()
    )


def with_lines(trace: Trace, instances: pl.DataFrame) -> pl.DataFrame:
    """Add the source line of each instruction: that of the last entry at or before it."""
    lines = trace.table("code_lines", ["binary", "function", "offset", "path", "line"])
    function = pl.col("function").cast(pl.String)
    lines = lines.with_columns(function, pl.col("offset").alias("entry"))
    lines = lines.sort("offset", maintain_order=True)
    function = pl.col("mangled_name").cast(pl.String).alias("function")
    placed = (
        instances.with_columns(function)
        .sort("offset")
        .join_asof(
            lines,
            on="offset",
            by=["binary", "function"],
            strategy="backward",
            check_sortedness=False,
        )
    )
    known = pl.col("line").is_not_null()
    return placed.with_columns(pl.when(~known).then(pl.col("offset")).alias("offset"))


def _by_metric(placed: pl.DataFrame) -> pl.DataFrame:
    value = pl.col("value")
    total = value.sum().over("kernel_code", "metric")
    return (
        placed.group_by(*_KEY, "metric")
        .agg(value.sum())
        .sort(_KEY)  # sums of floats depend on the order
        .with_columns(share_of(value, total).alias("share"), pl.col("metric").cast(pl.String))
        .filter(value != 0)
        .sort("metric", "value", *_KEY, descending=[False, True, *(False for _ in _KEY)])
    )


def _by_time(placed: pl.DataFrame) -> pl.DataFrame:
    """Sum samples and instructions by line; time is shared out launch by launch."""
    placed = placed.with_columns(pl.col("metric").cast(pl.String))
    value = pl.col("value")
    sums = placed.group_by(_KEY).agg(
        value.filter(pl.col("metric").is_in(SAMPLES)).sum().alias("samples"),
        value.filter(pl.col("metric").is_in(EXECUTED)).sum().alias("executed"),
    )
    present = set(placed["metric"].unique())
    unknown = [
        pl.lit(None, pl.Float64).alias(column)
        for column, names in (("samples", SAMPLES), ("executed", EXECUTED))
        if present.isdisjoint(names)
    ]
    reason = pl.col("metric").str.strip_prefix(_STALLS).alias("stall")
    stalls = placed.filter(pl.col("metric").str.starts_with(_STALLS)).with_columns(reason)
    samples = pl.col("value").sum()
    by_reason = stalls.group_by(*_KEY, "stall").agg(samples)
    stalled = by_reason.filter(~pl.col("stall").is_in(_NOT_STALLED), pl.col("value") > 0)
    all_samples = by_reason.group_by(_KEY).agg(samples.alias("all"))
    most = stalled.sort(["value", "stall"], descending=[True, False]).unique(_KEY, keep="first")
    main_stalls = most.join(all_samples, on=_KEY, how="left", nulls_equal=True).select(
        *_KEY,
        pl.col("stall").str.replace_all("_", " "),
        share_of(pl.col("value"), pl.col("all")).alias("stall_share"),
    )
    return (
        sums.join(_times(placed), on=_KEY, how="left", nulls_equal=True)
        .join(main_stalls, on=_KEY, how="left", nulls_equal=True)
        .with_columns(unknown)
        .filter(pl.col("part") > 0)
        .sort(_KEY)
        .with_columns(
            share_of(pl.col("part"), pl.col("part").sum().over("kernel_code")).alias("share")
        )
        .sort("part", "share", *_KEY, descending=[True, True, *(False for _ in _KEY)])
    )


def _times(placed: pl.DataFrame) -> pl.DataFrame:
    """Share the time of launches among their lines, by samples, else by instructions executed."""
    metric = SAMPLES if placed["metric"].is_in(SAMPLES).any() else EXECUTED
    rows = placed.filter(pl.col("metric").is_in(metric))
    value = pl.col("value")
    part = share_of(value, value.sum().over("launch"))
    timed = metric is SAMPLES and rows[DURATION].null_count() == 0
    weighed = (pl.col("part") * pl.col(DURATION).fill_null(1.0)).sum().alias("part")
    return (
        rows.with_columns(part.alias("part"))
        .group_by(_KEY)
        .agg(weighed)
        # Samples estimate time; the number of executions does not.
        .with_columns(pl.when(timed).then(pl.col("part")).alias("time_ns"))
    )


def _add_names(trace: Trace, frame: pl.DataFrame) -> pl.DataFrame:
    """Add names, `place` (`file.cu:12`) and the text of the line."""
    names = names_of(trace.table("profiles", ["name"])["name"])
    short = unique_short_names(names)
    codes = frame["kernel_code"].to_list()
    texts = source_texts(trace)
    places, lines = [], []
    for path, line, offset in zip(frame["path"], frame["line"], frame["offset"], strict=True):
        file = (path or "?").replace("\\", "/").rsplit("/", 1)[-1]
        places.append(f"+0x{offset or 0:x}" if line is None else f"{file}:{line}")
        lines.append(line_text(texts, path, line))
    return frame.with_columns(
        pl.Series("kernel", [short[names[c]] for c in codes], pl.String),
        pl.Series("name", [names[c] for c in codes], pl.String),
        pl.Series("place", places, pl.String),
        pl.Series("text", lines, pl.String),
    )


def source_texts(trace: Trace) -> dict[str, list[str]]:
    """Return the lines of every source file that the capture holds."""
    files = trace.table("source_files", ["path", "content"]).drop_nulls().iter_rows()
    return {path: content.splitlines() for path, content in files}


def line_text(texts: dict[str, list[str]], path: str | None, line: int | None) -> str | None:
    """Return a line of a source file; None where the capture does not hold it."""
    lines = texts.get(path or "", [])
    return lines[line - 1].strip() if line is not None and 0 < line <= len(lines) else None
