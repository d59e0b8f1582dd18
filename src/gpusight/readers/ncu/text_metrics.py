"""Printed values: which metric, unit and number each means, and the tables made of them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import polars as pl

from gpusight.naming.metric_labels import is_recent, metric_for
from gpusight.naming.metric_names import canonical, scale_of, unit_of
from gpusight.readers.ncu.text_launches import PrintedLaunches, capability
from gpusight.readers.ncu.text_rows import is_metric_name, with_unit
from gpusight.readers.tables import encode_names
from gpusight.units import format_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_LABEL_AND_NAME = re.compile(r"(?P<label>.*\S)\s+\((?P<name>[^\s()]*_[^\s()]*)\)")
_MAX_LABEL_CHARS = 500
_OTHER_NAME = re.compile(r"[A-Za-z]\w*[_.]\w[\w.]*")
"""Names without a unit before two underscores, such as `inst_executed`."""
_SUMMARY_PAGE = {
    "compute throughput": "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "cycles": "gpc__cycles_elapsed.max",
    "duration": "gpu__time_duration.sum",
    "memory throughput": "gpu__compute_memory_throughput.avg.pct_of_peak_sustained_elapsed",
    "# registers": "launch__registers_per_thread",
}
"""Headings of the summary page of Nsight Compute's window."""


class MetricLabel(NamedTuple):
    """How a table names a metric."""

    section: str
    body: str
    """Chart or table inside the section."""
    text: str
    unit: str
    cc: str = ""
    """Compute capability of the GPU, on which a few labels depend."""
    nth: int = 0
    """Earlier rows of the same launch and name: average, then largest, smallest, sum."""


class MetricLabels:
    """The labels of metrics in a file, numbered in order of appearance."""

    def __init__(self) -> None:
        self._numbers: dict[MetricLabel, int] = {}

    def number(self, label: MetricLabel) -> int:
        """Return the number of a label."""
        return self._numbers.setdefault(label, len(self._numbers))

    def numbers(self, frame: pl.DataFrame) -> pl.Series:
        """Return the numbers of a frame's rows, from the columns of `MetricLabel`."""
        columns = list(MetricLabel._fields)
        labels = frame.select(columns).unique(maintain_order=True)
        codes = [self.number(MetricLabel(*row)) for row in labels.iter_rows()]
        known = labels.with_columns(pl.Series("label", codes, dtype=pl.UInt32))
        rows = frame.select(columns).join(known, on=columns, how="left", maintain_order="left")
        return rows.get_column("label")

    def meanings(self) -> pl.DataFrame:
        """Return one row for each number, in their order: what it stands for."""
        places = {(label.section, label.body, label.text) for label in self._numbers}
        counts = Counter(text for *_, text in places)
        recent = is_recent(counts)
        rows = [
            _meaning(label, is_alone=counts[label.text] == 1, recent=recent)
            for label in self._numbers
        ]
        frame = pl.DataFrame(
            rows,
            schema={
                "metric": pl.String,
                "label": pl.String,
                "scale": pl.Float64,
                "unit": pl.String,
                "is_known": pl.Boolean,
            },
            orient="row",
        )
        names = frame.select(pl.col(pl.String).replace("", None))
        return frame.with_columns(encode_names(column) for column in names.get_columns())


def _meaning(
    label: MetricLabel, *, is_alone: bool, recent: bool
) -> tuple[str, str | None, float, str, bool]:
    """Return metric, label (where it is not the metric), scale, unit and whether it is known.

    A label of no known metric is its own name. One that is not `is_alone` appears in several
    places with different meanings, so that the place becomes part of the name. `recent` marks
    files in which some labels have the meaning that they got in 2025.
    """
    metric, text = _metric(label, recent=recent)
    scale, unit = scale_of(label.unit)
    if metric is None:
        place = () if is_alone else (label.section, label.body)
        return ": ".join(part for part in (*place, label.text) if part), None, scale, unit, False
    name = canonical(metric)
    # The name of a count shows its unit more reliably than what versions print.
    return name, text if text != name else None, scale, unit_of(name) or unit, True


def _metric(label: MetricLabel, *, recent: bool) -> tuple[str | None, str]:
    text = label.text
    both = _LABEL_AND_NAME.fullmatch(text) if len(text) <= _MAX_LABEL_CHARS else None
    if both:
        return both["name"], both["label"]
    if is_metric_name(text):
        return text, text
    major, minor = capability(label.cc)
    metric = metric_for(
        label.section,
        text,
        label.unit,
        item=label.body,
        compute=None if major is None or minor is None else (major, minor),
        recent=recent,
        nth=label.nth,
    )
    if metric is None and _OTHER_NAME.fullmatch(text):
        return text, text
    if metric is None and not label.section:
        name = with_unit(text)[0]
        metric = _SUMMARY_PAGE.get(name.casefold()) or metric_for("", name, label.unit)
    return metric, text


_SPACES = r"['’`\s\x{00a0}\x{202f}\x{2009}_]"
_POINT, _COMMA = ".", ","
_EXPONENT = r"(?:[eE][+-]?\d{1,4})?"
_WARNING = r"^\(!\)\s*"
_COUNT = r"\s*\{[^{}]*\}$"
_HEX = r"^0[xX][0-9a-fA-F]{1,16}$"
_MISSING = r"(?i)^(?:n/a|no data|<no data>|none|null|-|--|-?nan|[+-]?inf(?:inity)?|)$"
_TOTAL_AND_INSTANCES = r"^(?P<total>[^()]*?)\s*\((?P<instances>[^()]*(?:\([^()]*\)[^()]*)*)\)$"


class NumberNotation(NamedTuple):
    """How a file writes numbers."""

    decimal: str
    note: str | None = None
    """What was not clear about it."""


def notation_of(texts: pl.Series, separator: str | None) -> NumberNotation:
    """Decide which mark is the decimal one, from the different numbers of a file."""
    plain = _plain(texts)
    point = _count_certain(plain, _POINT, _COMMA)
    comma = _count_certain(plain, _COMMA, _POINT)
    if point and comma:
        rarer = format_count(min(point, comma))
        note = f"numbers use two notations; {rarer} differ from the rest"
        return NumberNotation(_POINT if point >= comma else _COMMA, note)
    if point or comma:
        return NumberNotation(_POINT if point else _COMMA)
    unclear = [
        mark
        for mark in (_COMMA, _POINT)
        if plain.str.contains(rf"^[+-]?[1-9]\d{{0,2}}[{mark}]\d{{3}}$").any()
    ]
    if not unclear:
        return NumberNotation(_POINT)
    # Every number could be either: `1,234` is read as ncu means it, as thousands.
    decimal = _COMMA if separator == ";" else _POINT
    value = "1.234" if decimal in unclear else "1234"
    return NumberNotation(
        decimal, f"numbers such as 1{unclear[0]}234 could mean either; read as {value}"
    )


def _count_certain(plain: pl.Series, decimal: str, group: str) -> int:
    """Count numbers that only make sense with this decimal mark."""
    d, g = re.escape(decimal), re.escape(group)
    forms = (
        rf"^[+-]?\d+{d}(?:\d{{1,2}}|\d{{4,}}){_EXPONENT}$",
        rf"^[+-]?(?:0\d*|\d{{4,}}){d}\d{{3}}{_EXPONENT}$",
        rf"^[+-]?\d{{1,3}}(?:{g}\d{{2,3}})+{d}\d+$",
        rf"^[+-]?\d{{1,3}}(?:{g}\d{{2,3}}){{2,}}$",
    )
    return int(plain.str.contains("|".join(forms)).sum())


def _plain(texts: pl.Series) -> pl.Series:
    """Strip marks that never are decimal ones, but only between digits."""
    cleaned = texts.str.strip_chars().str.replace(_WARNING, "").str.replace(_COUNT, "")
    return cleaned.str.replace_all(rf"(\d){_SPACES}(\d)", "${1}${2}").str.replace_all(
        rf"(\d){_SPACES}(\d)", "${1}${2}"
    )


def numbers(texts: pl.Series, notation: NumberNotation) -> pl.Series:
    """Parse numbers; null for what is no number, or not finite."""
    plain = _plain(texts)
    other = _COMMA if notation.decimal == _POINT else _POINT
    values = pl.DataFrame({"plain": plain}).select(
        pl.coalesce(
            _parse_number(notation.decimal, other),
            # What makes no sense as the file's other numbers may still make sense by itself.
            _parse_number(other, notation.decimal),
            pl.when(pl.col("plain").str.contains(_HEX)).then(
                pl.col("plain").str.slice(2).str.to_integer(base=16, strict=False).cast(pl.Float64)
            ),
        )
    )
    return values.to_series()


def _parse_number(decimal: str, group: str) -> pl.Expr:
    d, g = re.escape(decimal), re.escape(group)
    form = rf"^[+-]?(?:\d+|\d{{1,3}}(?:{g}\d{{2,3}})*{g}\d{{3}})(?:{d}\d+)?{_EXPONENT}$"
    text = pl.col("plain").str.replace_all(group, "", literal=True)
    text = text.str.replace(decimal, ".", literal=True)
    number = pl.when(pl.col("plain").str.contains(form)).then(text).cast(pl.Float64, strict=False)
    return pl.when(number.is_finite()).then(number)


def _is_missing(text: pl.Expr) -> pl.Expr:
    """Return which values were not measured, or not defined: `n/a`, `nan`, an empty cell."""
    return text.str.strip_chars().str.replace(_WARNING, "").str.contains(_MISSING)


VALUE_SCHEMA = {"launch": pl.UInt32, "label": pl.UInt32, "printed": pl.String}
"""Values as printed: number of the launch, number of the metric's label, text."""
_RULES = {
    "launch": pl.UInt32,
    "rule": pl.String,
    "section": pl.String,
    "kind": pl.String,
    "message": pl.String,
    "speedup_kind": pl.String,
    "speedup": pl.String,
}
_INSTANCES = {
    "launch": pl.UInt32,
    "metric": pl.String,
    "instance": pl.Int64,
    "key": pl.String,
    "printed": pl.String,
}
_KINDS = {
    "OK": "ok",
    "INF": "information",
    "WRN": "warning",
    "ERR": "error",
    "OPT": "optimization",
}
_NOT_SUMS = ("derived__avg_", "memory_type", "memory_access_", "derived__memory_l1_conflicts")
"""Metrics whose total is not the sum of the instances."""
_SAME = 0.005
"""Values of one metric that differ by less, relative to their size or their last digit, agree."""


@dataclass
class CollectedValues:
    """Everything read so far. Values stay texts until all numbers of the file are seen."""

    launches: PrintedLaunches = field(default_factory=PrintedLaunches)
    labels: MetricLabels = field(default_factory=MetricLabels)
    values: list[pl.DataFrame] = field(default_factory=list)
    rules: list[pl.DataFrame] = field(default_factory=list)
    instances: list[pl.DataFrame] = field(default_factory=list)
    sources: dict[str, list[str]] = field(default_factory=dict)
    """Lines of source files, by path."""
    devices: dict[int, dict[str, str]] = field(default_factory=dict)
    """Attributes of GPUs that a session page lists."""
    session: dict[str, str] = field(default_factory=dict)
    processes: dict[int, str] = field(default_factory=dict)
    messages: dict[str, str] = field(default_factory=dict)
    """Messages of the profiler around its tables, with the severity."""
    separators: list[str] = field(default_factory=list)
    unreadable: int = 0
    """Lines that began like rows and were none."""
    averaged: int = 0
    """Launches behind the rows of summaries."""
    without_id: bool = False
    notes: dict[str, None] = field(default_factory=dict)

    def add_values(self, frame: pl.DataFrame) -> None:
        """Add the columns of `VALUE_SCHEMA`; empty cells are left out."""
        values = frame.select(list(VALUE_SCHEMA))
        self.values.append(values.filter(pl.col("printed").fill_null("") != ""))

    def add_rules(self, frame: pl.DataFrame) -> None:
        """Add messages of rules; columns that a layout lacks are null."""
        self.rules.append(_with_columns(frame, _RULES))

    def add_instances(self, frame: pl.DataFrame) -> None:
        """Add instances of counters; columns that a layout lacks are null."""
        self.instances.append(_with_columns(frame, _INSTANCES))


def _with_columns(frame: pl.DataFrame, schema: Mapping[str, type[pl.DataType]]) -> pl.DataFrame:
    missing = [pl.lit(None, t).alias(c) for c, t in schema.items() if c not in frame.columns]
    return frame.with_columns(missing).select(list(schema))


def _concat(
    frames: Sequence[pl.DataFrame], schema: Mapping[str, type[pl.DataType]]
) -> pl.DataFrame:
    return pl.concat([pl.DataFrame(schema=schema), *frames])


class CollectedTables:
    """The tables of a trace, built from the collected values; launches have their final keys."""

    def __init__(self, collected: CollectedValues) -> None:
        self._keys = pl.Series(collected.launches.keys()[0], dtype=pl.Int64)
        self._rules = _concat(collected.rules, _RULES)
        values = _concat(collected.values, VALUE_SCHEMA)
        collected.values.clear()  # the copy is enough: there may be millions
        self._texts = _distinct_texts(values.get_column("printed"))
        rows = self._texts.select("printed").with_row_index("text")
        self._values = values.join(rows, on="printed", how="left", maintain_order="left").drop(
            "printed"
        )
        self.meanings = collected.labels.meanings()
        listed = self._listed_instances()
        self._instances = pl.concat([_concat(collected.instances, _INSTANCES), listed])
        texts = [
            self._texts.get_column("total"),
            self._instances.get_column("printed"),
            self._rules.get_column("speedup"),
        ]
        distinct = pl.concat([text.rename("text") for text in texts]).drop_nulls().unique()
        self.notation = notation_of(distinct, next(iter(collected.separators), None))
        self.missing = self.conflicts = 0

    # Counters ------------------------------------------------------------------------------------

    @cached_property
    def counters(self) -> pl.DataFrame:
        """The table `counters`."""
        rows = self._without_duplicates(self._parsed_values())
        rows = rows.select(
            launch=self._keys.gather(rows.get_column("launch")),
            metric=self._meaning("metric", rows),
            value="value",
            text=rows.get_column("text"),
            unit=self._meaning("unit", rows),
            label=self._meaning("label", rows),
        )
        return self._with_instances(rows) if self.counter_instances.height else rows

    def _meaning(self, column: str, rows: pl.DataFrame) -> pl.Series:
        return self.meanings.get_column(column).gather(rows.get_column("label"))

    def _parsed_values(self) -> pl.DataFrame:
        """Return `launch`, `label`, `scale`, `value` and `text`, without what was not measured."""
        total = self._texts.get_column("total")
        parsed = self._texts.select(
            numbers(total, self.notation).alias("number"),
            missing=_is_missing(pl.col("total")),
            empty=_is_missing(pl.col("total")) & pl.col("instances").is_null(),
        )
        empty = parsed.get_column("empty").gather(self._values.get_column("text"))
        self.missing = int(empty.sum())
        values = self._values.filter(~empty) if self.missing else self._values
        row = values.get_column("text")
        words = pl.select(
            pl.when(parsed.get_column("number").is_null() & ~parsed.get_column("missing")).then(
                total
            )
        ).to_series()
        scale = self.meanings.get_column("scale").gather(values.get_column("label"))
        return values.select(
            "launch",
            "label",
            scale=scale,
            value=parsed.get_column("number").gather(row) * scale,
            text=words.gather(row),
        )

    def _without_duplicates(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Keep the first value of each metric; count those that another place contradicts."""
        metric = self._meaning("metric", rows).to_physical().cast(pl.UInt64)
        key = rows.get_column("launch").cast(pl.UInt64) * (self.meanings.height + 1) + metric
        if key.n_unique() == rows.height:
            return rows
        keyed = rows.with_columns(key=key)
        spread = pl.col("value").max() - pl.col("value").min()
        size = pl.max_horizontal(pl.col("value").abs().max(), 2 * pl.col("scale").max())
        several = keyed.group_by("key").agg((spread > _SAME * size).alias("differ"))
        self.conflicts = int(several.get_column("differ").sum())
        return keyed.unique("key", keep="first", maintain_order=True).drop("key")

    def _with_instances(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Count the instances of counters; add counters of which only instances were printed."""
        key = ["launch", "metric"]
        named = rows.with_columns(pl.col("metric").cast(pl.String))
        sums = self.counter_instances.group_by(key, maintain_order=True).agg(
            pl.len().cast(pl.Int64).alias("instances"), pl.col("value").sum()
        )
        counted = named.join(sums.drop("value"), on=key, how="left", maintain_order="left")
        alone = sums.join(named, on=key, how="anti", maintain_order="left")
        metrics = alone.get_column("metric").to_list()
        units = pl.Series("unit", [unit_of(metric) or None for metric in metrics], dtype=pl.String)
        is_sum = pl.Series([not m.startswith(_NOT_SUMS) for m in metrics], dtype=pl.Boolean)
        alone = alone.with_columns(units, pl.when(is_sum).then("value"))
        both = [counted.with_columns(pl.col("unit").cast(pl.String)), alone]
        joined = pl.concat(both, how="diagonal")
        return joined.with_columns(encode_names(joined.get_column("metric")))

    # Instances -----------------------------------------------------------------------------------

    def _listed_instances(self) -> pl.DataFrame:
        """Split the instances that are listed in brackets behind values."""
        listed = self._texts.with_row_index("text").filter(pl.col("instances").is_not_null())
        rows = self._values.join(
            listed.select("text", "instances"), on="text", how="inner", maintain_order="left"
        )
        entries = rows.with_columns(
            metric=self._meaning("metric", rows).cast(pl.String),
            entry=pl.col("instances").str.split("; "),
        ).explode("entry")
        has_key = pl.col("entry").str.contains(": ")
        key = pl.when(has_key).then(pl.col("entry").str.replace(r": .*$", ""))
        instance = pl.coalesce(
            key.str.to_integer(strict=False),
            key.str.strip_prefix("0x").str.to_integer(base=16, strict=False),
        )
        value = pl.when(has_key).then(pl.col("entry").str.replace(r"^.*?: ", "")).otherwise("entry")
        return entries.select(
            "launch",
            "metric",
            instance=instance,
            key=pl.when(instance.is_null()).then(key),
            printed=value,
        )

    @cached_property
    def counter_instances(self) -> pl.DataFrame:
        """The table `counter_instances`."""
        instances = self._instances
        value = numbers(instances.get_column("printed"), self.notation)
        no_number = value.is_null() & ~_is_missing(pl.col("printed"))
        return instances.select(
            self._keys.gather(instances.get_column("launch")).alias("launch"),
            *("metric", "instance", "key"),
            value.alias("value"),
            pl.when(no_number).then("printed").alias("text"),
        )

    # Rules ---------------------------------------------------------------------------------------

    @cached_property
    def rule_results(self) -> pl.DataFrame:
        """The table `rule_results`."""
        rules = self._rules
        kinds = pl.col("kind").str.to_uppercase().replace_strict(_KINDS, default="information")
        speedup = numbers(rules.get_column("speedup"), self.notation)
        return rules.with_columns(
            speedup.alias("speedup_percent"),
            launch=self._keys.gather(rules.get_column("launch")),
            kind=kinds,
            speedup_kind=pl.col("speedup_kind").str.to_lowercase().replace("", None),
        ).drop("speedup")


def _distinct_texts(printed: pl.Series) -> pl.DataFrame:
    """List every different value: its `total` and the `instances`, `1: 8; 16: 9`, in brackets."""
    text = pl.col("printed")
    is_list = text.str.contains(r"\(.*[;:].*\)$")
    is_single = text.str.contains(r"^\S+ \(\S+\)$") & text.str.contains(r"^[+-]?\d")
    has_instances = text.str.contains(_TOTAL_AND_INSTANCES) & (is_list | is_single)
    groups = text.str.extract_groups(_TOTAL_AND_INSTANCES).struct
    return pl.DataFrame({"printed": printed.unique()}).with_columns(
        total=pl.when(has_instances).then(groups.field("total")).otherwise(text),
        instances=pl.when(has_instances).then(groups.field("instances")),
    )
