"""Time and stalls by source line, from counters of single instructions."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.aggregates import names_of, share_of, shown_if_filled
from gpusight.analysis.counters.counter_selection import LaunchSelection, chosen_metrics
from gpusight.analysis.counters.launch_quantities import DURATION
from gpusight.naming.kernel_names import classify
from gpusight.results import Field, Fmt, NotApplicable, TableResult

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.trace.trace import Trace


COMMAND = "counters"
SAMPLES = ("smsp__pcsamp_sample_count", "smsp__pcsamp_warps_issue", "samples")
"""How often a warp was found at an instruction, under the names of several versions."""
EXECUTED = ("inst_executed", "smsp__inst_executed")
STALLS = "smsp__pcsamp_warps_issue_stalled_"
_UNISSUED = "_not_issued"
_ISSUED = ("selected", "not_selected")
"""Reasons that are none: the warp issued, or could have."""
_LARGEST_FUNCTION = 1 << 26
"""Bytes; parts with larger numbers are moments or the like, not instructions."""

_PLACE = (
    Field("kernel", "Kernel", Fmt.NAME, "Readable label of the kernel"),
    Field("place", "Line", Fmt.TEXT, "Source file and line; else bytes from the kernel's start"),
)
_TEXT = Field("text", "Source", Fmt.NAME, "The line, where the capture holds the source")
_WHERE = (
    Field("path", "File", Fmt.NAME, "Source file", shown=False),
    Field("line", "Number", Fmt.ID, "Line in it, from 1", shown=False),
    Field("name", "Full name", Fmt.NAME, "Kernel name with template arguments", shown=False),
)
FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Part of the kernel's samples, else of its instructions"),
    Field("time_ns", "Time", Fmt.TIME, "The same part of its time; an estimate"),
    Field("samples", "Samples", Fmt.COUNT, "How often a warp was found there"),
    Field("executed", "Executed", Fmt.COUNT, "Instructions that warps executed there"),
    Field("stall", "Waits for", Fmt.TEXT, "Most frequent reason why a warp there did not issue"),
    Field("stall_share", "Of it", Fmt.SHARE, "Part of the samples with that reason", shown=False),
    *_PLACE,
    _TEXT,
    *_WHERE,
)
METRIC_FIELDS = (
    Field("share", "Share", Fmt.SHARE, "Part of the metric's sum over the kernel"),
    Field("value", "Value", Fmt.COUNT, "Sum over the line's instructions and the launches"),
    Field("metric", "Metric", Fmt.NAME, "What was measured"),
    *_PLACE,
    _TEXT,
    *_WHERE,
)
_KEY = ["kernel_code", "path", "line", "offset"]
_PART = ["launch", "metric", "instance", "value"]
_LACKS = (
    "the capture holds no counters of single instructions",
    "measure with: ncu --section SourceCounters --import-source yes",
)
_OTHER_PARTS = "these metrics were not counted by instruction"
_NAMED_LIKE = "such are named like inst_executed, memory_l1_… and smsp__pcsamp_…"


def source_lines(scope: LaunchSelection, metrics: Sequence[str]) -> TableResult | NotApplicable:
    """List the lines on which kernels spend their time, the longest first.

    With `metrics`, each of them by line instead.
    """
    trace = scope.trace
    if not trace.has("counter_instances") or not trace.has("profiles", "address"):
        return NotApplicable(COMMAND, *_LACKS)
    parts = instructions(scope, _wanted(trace, metrics))
    if parts.is_empty():
        return NotApplicable(COMMAND, *((_OTHER_PARTS, _NAMED_LIKE) if metrics else _LACKS))
    placed = with_lines(trace, parts)
    frame = _by_metric(placed) if metrics else _hot(placed)
    fields = METRIC_FIELDS if metrics else FIELDS
    named = _described(trace, frame).select([f.key for f in fields])
    return TableResult(
        COMMAND,
        _title(named),
        _shown(fields, named),
        named,
        meta={"launches": parts["launch"].n_unique()},
        notes=(*_notes(placed), *(() if metrics else _unsampled(placed))),
    )


def _title(frame: pl.DataFrame) -> str:
    if "metric" not in frame.columns:
        return "Kernels by source line"
    names = frame["metric"].unique()
    return f"{names[0]} by source line" if len(names) == 1 else "Counters by source line"


def _shown(fields: tuple[Field, ...], frame: pl.DataFrame) -> tuple[Field, ...]:
    """Show what there is; with several kernels there is no room for everything."""
    several = frame["kernel"].n_unique() > 1
    hidden = {"samples", "executed", "stall"} if several else {"kernel"}
    if "metric" in frame.columns:
        hidden |= {"text"} if frame["metric"].n_unique() > 1 else {"metric"}
    kept = (replace(f, shown=f.shown and f.key not in hidden) for f in fields)
    return shown_if_filled(kept, frame)


def _unsampled(placed: pl.DataFrame) -> tuple[str, ...]:
    if placed["metric"].cast(pl.String).is_in(SAMPLES).any():
        return ()
    counted = "the kernels were not sampled: shares are of instructions executed, not of time"
    return (f"{counted}; --section SourceCounters samples them",)


def _wanted(trace: Trace, metrics: Sequence[str]) -> list[str]:
    """Choose the counters to add up: those asked for, else what tells time and waits."""
    known = metrics_of_instructions(trace)
    if metrics:
        return chosen_metrics(known, metrics)
    stalls = [m for m in known if m.startswith(STALLS) and not m.endswith(_UNISSUED)]
    return [*first_of(SAMPLES, known), *first_of(EXECUTED, known), *stalls]


def metrics_of_instructions(trace: Trace) -> list[str]:
    """List the counters that the capture has the parts of."""
    return names_of(trace.table("counter_instances", _PART)["metric"])


def first_of(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Give the name that a capture has of those that one counter had over the years."""
    return [n for n in names if n in known][:1]


def instructions(scope: LaunchSelection, wanted: Sequence[str]) -> pl.DataFrame:
    """Give the parts of counters that belong to instructions, with their place in the kernel."""
    launches = scope.profiles(["launch", "name", "mangled_name", "binary", "address", DURATION])
    rows = scope.trace.table("counter_instances", _PART)
    offset = (pl.col("instance") - pl.col("address")).alias("offset")
    return (
        rows.lazy()
        .filter(pl.col("metric").is_in(list(wanted)), pl.col("value").is_not_null())
        .join(launches.lazy(), on="launch", maintain_order="left")
        .with_columns(offset, pl.col("name").to_physical().alias("kernel_code"))
        .filter(pl.col("offset").is_between(0, _LARGEST_FUNCTION))
        .collect()
    )


def with_lines(trace: Trace, parts: pl.DataFrame) -> pl.DataFrame:
    """Add the source line of each instruction: that of the last entry at or before it."""
    lines = trace.table("code_lines", ["binary", "function", "offset", "path", "line"])
    function = pl.col("function").cast(pl.String)
    lines = lines.with_columns(function, pl.col("offset").alias("entry"))
    lines = lines.sort("offset", maintain_order=True)
    spelled = parts.with_columns(pl.col("mangled_name").cast(pl.String).alias("function"))
    placed = spelled.sort("offset").join_asof(
        lines, on="offset", by=["binary", "function"], strategy="backward", check_sortedness=False
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


def _hot(placed: pl.DataFrame) -> pl.DataFrame:
    """Sum up samples and instructions by line; time is shared out launch by launch."""
    names = placed["metric"].cast(pl.String)
    placed = placed.with_columns(names.alias("metric"))
    weighed = _times(placed)
    value = pl.col("value")
    sums = placed.group_by(_KEY).agg(
        value.filter(pl.col("metric").is_in(SAMPLES)).sum().alias("samples"),
        value.filter(pl.col("metric").is_in(EXECUTED)).sum().alias("executed"),
    )
    both = sums.join(weighed, on=_KEY, how="left", nulls_equal=True)
    both = both.join(_main_stall(placed), on=_KEY, how="left", nulls_equal=True)
    told = set(names.unique())
    unknown = [
        pl.lit(None, pl.Float64).alias(column)
        for column, keys in (("samples", SAMPLES), ("executed", EXECUTED))
        if told.isdisjoint(keys)
    ]
    return (
        both.with_columns(unknown)
        .filter(pl.col("part") > 0)
        .sort(_KEY)
        .with_columns(
            share_of(pl.col("part"), pl.col("part").sum().over("kernel_code")).alias("share")
        )
        .sort("part", "share", *_KEY, descending=[True, True, *(False for _ in _KEY)])
    )


def _times(placed: pl.DataFrame) -> pl.DataFrame:
    """Share launches out over their lines, by samples, else by instructions executed."""
    deciding = SAMPLES if placed["metric"].is_in(SAMPLES).any() else EXECUTED
    rows = placed.filter(pl.col("metric").is_in(deciding))
    value = pl.col("value")
    part = share_of(value, value.sum().over("launch"))
    timed = deciding is SAMPLES and rows[DURATION].null_count() == 0
    weighed = (pl.col("part") * pl.col(DURATION).fill_null(1.0)).sum().alias("part")
    return (
        rows.with_columns(part.alias("part"))
        .group_by(_KEY)
        .agg(weighed)
        # How often an instruction runs does not say how long it takes; samples do.
        .with_columns(pl.when(timed).then(pl.col("part")).alias("time_ns"))
    )


def _main_stall(placed: pl.DataFrame) -> pl.DataFrame:
    """Find for each line the reason for which warps waited there most often."""
    reason = pl.col("metric").str.strip_prefix(STALLS).alias("stall")
    stalls = placed.filter(pl.col("metric").str.starts_with(STALLS)).with_columns(reason)
    samples = pl.col("value").sum()
    by_reason = stalls.group_by(*_KEY, "stall").agg(samples)
    waits = by_reason.filter(~pl.col("stall").is_in(_ISSUED), pl.col("value") > 0)
    all_samples = by_reason.group_by(_KEY).agg(samples.alias("all"))
    most = waits.sort(["value", "stall"], descending=[True, False]).unique(_KEY, keep="first")
    return most.join(all_samples, on=_KEY, how="left", nulls_equal=True).select(
        *_KEY,
        pl.col("stall").str.replace_all("_", " "),
        share_of(pl.col("value"), pl.col("all")).alias("stall_share"),
    )


def _described(trace: Trace, frame: pl.DataFrame) -> pl.DataFrame:
    """Add names, the place as people write it, and the text of the line."""
    names = names_of(trace.table("profiles", ["name"])["name"])
    codes = frame["kernel_code"].to_list()
    texts = source_texts(trace)
    rows = list(zip(frame["path"], frame["line"], frame["offset"], strict=True))
    return frame.with_columns(
        pl.Series("kernel", [classify(names[c]).short for c in codes], pl.String),
        pl.Series("name", [names[c] for c in codes], pl.String),
        pl.Series("place", [_place(*row) for row in rows], pl.String),
        pl.Series("text", [line_text(texts, path, line) for path, line, _ in rows], pl.String),
    )


def _place(path: str | None, line: int | None, offset: int | None) -> str:
    if line is None:
        return f"+0x{offset or 0:x}"
    return f"{(path or '?').replace(chr(92), '/').rsplit('/', 1)[-1]}:{line}"


def source_texts(trace: Trace) -> dict[str, list[str]]:
    """Give the lines of every source file that the capture holds."""
    files = trace.table("source_files", ["path", "content"]).drop_nulls().iter_rows()
    return {path: content.splitlines() for path, content in files}


def line_text(texts: dict[str, list[str]], path: str | None, line: int | None) -> str | None:
    """Give a line of a source file; None where the capture does not hold it."""
    lines = texts.get(path or "", [])
    return lines[line - 1].strip() if line is not None and 0 < line <= len(lines) else None


def _notes(placed: pl.DataFrame) -> tuple[str, ...]:
    lost = placed.filter(pl.col("line").is_null())["launch"].n_unique()
    if not lost:
        return ()
    held = "no source lines" if lost == placed["launch"].n_unique() else "some code has no lines"
    remedy = "compile with nvcc -lineinfo and measure with: ncu --import-source yes"
    return (f"{held}: places are bytes from the kernel's start; {remedy}",)
