"""Hardware counters as tables: launch by metric, wide, instances, list of metrics."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.counters import launch_quantities as q
from gpusight.analysis.counters.counter_selection import (
    LaunchSelection,
    chosen_metrics,
    no_counters,
)
from gpusight.analysis.counters.source_lines import source_lines
from gpusight.analysis.selection import EVERYTHING, Selection
from gpusight.errors import UsageError
from gpusight.naming.kernel_names import unique_short_names
from gpusight.results import Field, Fmt, NotApplicable, TableResult

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpusight.trace.trace import Trace


COMMAND = "counters"
_LAUNCH = Field("launch", "Launch", Fmt.ID, "Launch ID in the report")
_KERNEL = Field("kernel", "Kernel", Fmt.NAME, "Kernel name with template arguments")
FIELDS = (
    _LAUNCH,
    _KERNEL,
    Field("metric", "Metric", Fmt.NAME, "Metric name of current Nsight Compute versions"),
    Field("value", "Value", Fmt.COUNT, "Value in the unit given; text for text metrics"),
    Field("unit", "Unit", Fmt.TEXT, "Base unit: `byte`, `ns`, `%` from 0 to 100, `inst/cycle`, …"),
    Field("text", "Text", Fmt.TEXT, "Value of a text metric; not in JSON", shown=False),
    Field("label", "Label", Fmt.NAME, "Name in the file, if it differs", shown=False),
)
LIST_FIELDS = (
    Field("metric", "Metric", Fmt.NAME, "Name for --metrics"),
    Field("unit", "Unit", Fmt.TEXT, "Base unit of its values"),
    Field("launches", "Launches", Fmt.COUNT, "Selected launches that have it"),
    Field("min", "Least", Fmt.COUNT, "Smallest value", shown=False),
    Field("max", "Most", Fmt.COUNT, "Largest value", shown=False),
    Field("instances", "Instances", Fmt.COUNT, "Max. instances per launch", shown=False),
)
WIDE_FIELDS = (
    _LAUNCH,
    _KERNEL,
    Field("METRIC [UNIT]", "Metric", Fmt.COUNT, "One column per selected metric"),
)
"""Columns of the wide form, for the documentation."""
INSTANCE_FIELDS = (
    _LAUNCH,
    _KERNEL,
    Field("metric", "Metric", Fmt.NAME, "Metric of the instance"),
    Field("instance", "Instance", Fmt.ID, "Instruction address, time in ns, or unit number"),
    Field("key", "Key", Fmt.NAME, "Instance name, where it has one"),
    Field("value", "Value", Fmt.COUNT, "Value of the instance"),
    Field("unit", "Unit", Fmt.TEXT, "Base unit of the value"),
    Field("text", "Text", Fmt.TEXT, "Value of a text metric", shown=False),
)
_KEY_METRICS = (
    q.SM_SHARE,
    q.MEMORY_SHARE,
    q.DRAM_SHARE,
    q.L1_HIT_SHARE,
    q.L2_HIT_SHARE,
    q.OCCUPANCY,
    q.THEORETICAL_OCCUPANCY,
    q.REGISTERS,
    q.STATIC_SHARED,
    q.DYNAMIC_SHARED,
    q.WAVES,
)
_MAX_BRIEF_METRICS = 12
_DURATION = "gpu__time_duration.sum"


def tidy(scope: LaunchSelection, metrics: Sequence[str]) -> TableResult:
    """List what was measured: one row for each launch and metric."""
    rows = _selected_rows(scope, "counters", metrics, ["value", "text", "unit", "label"])
    frame = rows.with_columns(pl.col("metric", "unit", "label").cast(pl.String))
    return TableResult(
        COMMAND,
        "Counters",
        FIELDS,
        _with_kernels(scope, frame).select([f.key for f in FIELDS]),
        meta=_meta(frame),
    )


def wide(scope: LaunchSelection, metrics: Sequence[str]) -> TableResult:
    """List launches with a column for each metric, named `metric [unit]`."""
    listed = tidy(scope, metrics)
    rows = listed.frame
    about = rows.group_by("metric", maintain_order=True).agg(
        pl.col("unit").drop_nulls().first(), pl.col("text").is_not_null().any()
    )
    heading = {m: f"{m} [{u}]" if u else m for m, u, _ in about.iter_rows()}
    texts = {m for m, _, is_text in about.iter_rows() if is_text}
    frame = rows.select("launch", "kernel").unique(keep="first", maintain_order=True)
    for column, names in (("value", heading.keys() - texts), ("text", texts)):
        values = rows.filter(pl.col("metric").is_in(list(names)))
        if column == "text":  # a metric that is a text in some launches is one in all
            values = values.with_columns(pl.coalesce("text", pl.col("value").cast(pl.String)))
        pivoted = values.pivot(
            on="metric", index="launch", values=column, aggregate_function="first"
        )
        frame = frame.join(pivoted, on="launch", how="left", maintain_order="left")
    frame = frame.select("launch", "kernel", *heading).rename(heading)
    return TableResult(
        COMMAND,
        "Counters by launch",
        (_LAUNCH, _KERNEL, *(Field(h, h, Fmt.COUNT, m) for m, h in heading.items())),
        frame,
        meta=listed.meta,
    )


def metric_list(scope: LaunchSelection, metrics: Sequence[str]) -> TableResult:
    """List the metrics of the selected launches, by name."""
    rows = _selected_rows(scope, "counters", metrics, ["value", "unit", "instances"])
    frame = (
        rows.group_by("metric")
        .agg(
            pl.col("unit").drop_nulls().first().cast(pl.String),
            pl.col("launch").n_unique().cast(pl.Int64).alias("launches"),
            pl.col("value").min().alias("min"),
            pl.col("value").max().alias("max"),
            pl.col("instances").max(),
        )
        .with_columns(pl.col("metric").cast(pl.String))
        # Time series and lists of other metrics come last.
        .sort(pl.col("metric").str.contains(r"^[A-Z]|:"), "metric")
    )
    return TableResult(
        COMMAND,
        "Metrics",
        LIST_FIELDS,
        frame.select([f.key for f in LIST_FIELDS]),
        meta={"metrics": frame.height, "launches": rows["launch"].n_unique()},
    )


def instances(scope: LaunchSelection, metrics: Sequence[str]) -> TableResult | NotApplicable:
    """List the instances of metrics: by instruction, unit, time or operation."""
    if not scope.trace.has("counter_instances"):
        return NotApplicable(
            COMMAND,
            "the capture has no metric instances",
            "ncu reports have them: per instruction with --section SourceCounters",
        )
    rows = _selected_rows(scope, "counter_instances", metrics, ["instance", "key", "value", "text"])
    units = _selected_rows(scope, "counters", metrics, ["unit"])
    units = units.unique(["launch", "metric"], keep="first")
    metric_names = pl.Enum(
        list(dict.fromkeys([*names_of(rows["metric"]), *names_of(units["metric"])]))
    )
    frame = rows.with_columns(pl.col("metric").cast(metric_names)).join(
        units.with_columns(pl.col("metric").cast(metric_names)),
        on=["launch", "metric"],
        how="left",
        maintain_order="left",
    )
    frame = frame.with_columns(pl.col("metric", "unit", "key").cast(pl.String))
    unused = {c for c in ("instance", "key") if frame[c].null_count() == frame.height}
    return TableResult(
        COMMAND,
        "Counter instances",
        tuple(replace(f, shown=f.shown and f.key not in unused) for f in INSTANCE_FIELDS),
        _with_kernels(scope, frame).select([f.key for f in INSTANCE_FIELDS]),
        meta=_meta(frame),
    )


def _selected_rows(
    scope: LaunchSelection, table: str, metrics: Sequence[str], columns: list[str]
) -> pl.DataFrame:
    """Return `launch`, `metric` and these columns, of the chosen launches and metrics."""
    frame = scope.trace.table(table, ["launch", "metric", *columns])
    if not scope.everything:
        frame = frame.filter(pl.col("launch").is_in(scope.launches().implode()))
    if metrics:
        used = frame["metric"].unique().cast(pl.String).sort().to_list()
        frame = frame.filter(pl.col("metric").is_in(chosen_metrics(used, metrics)))
    return frame


def _with_kernels(scope: LaunchSelection, frame: pl.DataFrame) -> pl.DataFrame:
    names = scope.trace.table("profiles", ["launch", "name"]).select(
        "launch", pl.col("name").cast(pl.String).alias("kernel")
    )
    return frame.join(names, on="launch", how="left", maintain_order="left")


def _meta(frame: pl.DataFrame) -> dict[str, int]:
    return {"launches": frame["launch"].n_unique(), "metrics": frame["metric"].n_unique()}


def short_kernels(result: TableResult) -> TableResult:
    """Replace kernel names by their readable labels, for tables on a screen."""
    names = result.frame["kernel"].unique().drop_nulls().to_list()
    label = unique_short_names(sorted(names))
    frame = result.frame.with_columns(pl.col("kernel").replace_strict(dict(label), default=None))
    return replace(result, frame=frame)


FORMS: dict[str, Callable[[LaunchSelection, Sequence[str]], TableResult | NotApplicable]] = {
    "tidy": tidy,
    "wide": wide,
    "list": metric_list,
    "instances": instances,
    "source": source_lines,
}


def counters(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    form: str = "tidy",
    metrics: Sequence[str] = (),
    kernel: str | None = None,
    launches: Sequence[int] = (),
) -> TableResult | NotApplicable:
    """List what was measured of the selected launches.

    `form` is `tidy` (a row for each launch and metric), `wide` (a column for each metric), `list`
    (the metrics), `instances` (their parts) or `source` (by line). `metrics` are names, globs,
    regular expressions or parts of names; none means all.
    """
    if form not in FORMS:
        raise UsageError(f"no form {form!r} of counters", hint=f"forms are {', '.join(FORMS)}")
    if not trace.has("counters"):
        return no_counters(COMMAND)
    scope = LaunchSelection(trace, selection, kernel=kernel, launches=launches)
    return FORMS[form](scope, metrics)


def brief_counters(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    kernel: str | None = None,
    launches: Sequence[int] = (),
    as_wide: bool = False,
) -> TableResult | NotApplicable:
    """List only the key metrics, and note how many there are."""
    if not trace.has("counters"):
        return no_counters(COMMAND)
    scope = LaunchSelection(trace, selection, kernel=kernel, launches=launches)
    measured = _selected_rows(scope, "counters", (), [])["metric"]
    used = set(measured.unique().cast(pl.String))
    known = [name for name in names_of(measured) if name in used]
    chosen = _key_metrics(known) or known[:_MAX_BRIEF_METRICS]
    result = (wide if as_wide else tidy)(scope, chosen)
    if not as_wide:
        order = pl.col("metric").cast(pl.Enum(chosen))
        result = replace(result, frame=result.frame.sort("launch", order, maintain_order=True))
    if len(chosen) == len(known):
        return result
    verb = "is" if len(chosen) == 1 else "are"
    note = f"{len(chosen)} of {len(known):,} metrics {verb} shown; all: --metrics '*', or --list"
    return replace(result, notes=(*result.notes, note))


def _key_metrics(known: Sequence[str]) -> list[str]:
    """Choose the metrics behind the quantities that tables of kernels show."""
    present = set(known)
    wanted = [_DURATION]
    for quantity in _KEY_METRICS:
        complete = (f.metrics for f in quantity.formulas if present.issuperset(f.metrics))
        wanted += next(complete, ())
    return [name for name in dict.fromkeys(wanted) if name in present]
