"""Which metric, unit and number a printed cell means, in any version's labels and any locale."""

from __future__ import annotations

import re
from collections import Counter
from typing import NamedTuple

import polars as pl

from gpusight.naming.metric_labels import is_recent, metric_for
from gpusight.naming.metric_names import canonical, scale_of, unit_of
from gpusight.readers.name_columns import encode_names
from gpusight.readers.ncu.text_launches import capability
from gpusight.readers.ncu.text_rows import is_metric_name, with_unit
from gpusight.units import format_count

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


class MetricMeaning(NamedTuple):
    """What that means."""

    metric: str
    label: str | None
    """What the file said, where that is something else."""
    scale: float
    unit: str
    is_known: bool


class MetricLabels:
    """Everything that a file calls metrics by, numbered in order of appearance."""

    def __init__(self) -> None:
        self._numbers: dict[MetricLabel, int] = {}

    def number(self, said: MetricLabel) -> int:
        """Give the number of a name."""
        return self._numbers.setdefault(said, len(self._numbers))

    def numbers(self, frame: pl.DataFrame) -> pl.Series:
        """Give the numbers of a frame's rows, from the columns of `MetricLabel`."""
        columns = list(MetricLabel._fields)
        found = frame.select(columns).unique(maintain_order=True)
        codes = [self.number(MetricLabel(*row)) for row in found.iter_rows()]
        known = found.with_columns(pl.Series("name", codes, dtype=pl.UInt32))
        rows = frame.select(columns).join(known, on=columns, how="left", maintain_order="left")
        return rows.get_column("name")

    def meanings(self) -> pl.DataFrame:
        """Give one row for each number, in their order: what it stands for."""
        places = {(said.section, said.body, said.text) for said in self._numbers}
        texts = Counter(text for *_, text in places)
        recent = is_recent(texts)
        rows = [
            meaning_of(said, is_alone=texts[said.text] == 1, recent=recent)
            for said in self._numbers
        ]
        columns = list(zip(*rows, strict=True)) or [()] * len(MetricMeaning._fields)
        said = dict(zip(MetricMeaning._fields, columns, strict=True))
        named = {n: pl.Series(said[n], dtype=pl.String) for n in ("metric", "label", "unit")}
        return pl.DataFrame(
            {name: encode_names(text.replace("", None)) for name, text in named.items()}
            | {
                "scale": pl.Series(said["scale"], dtype=pl.Float64),
                "is_known": pl.Series(said["is_known"], dtype=pl.Boolean),
            }
        )


def meaning_of(said: MetricLabel, *, is_alone: bool = True, recent: bool = False) -> MetricMeaning:
    """Find the metric that a text stands for; where none is known it keeps that text as name.

    A text that is not `is_alone` stands in several places for different things, so that the place
    becomes part of the name. `recent` tells labels that changed their meaning in 2025.
    """
    metric, label = _metric(said, recent=recent)
    scale, unit = scale_of(said.unit)
    if metric is None:
        place = () if is_alone else (said.section, said.body)
        text = ": ".join(part for part in (*place, said.text) if part)
        return MetricMeaning(text, None, scale, unit, is_known=False)
    name = canonical(metric)
    # Which unit a count has is known better from its name than from what versions print.
    return MetricMeaning(name, label if label != name else None, scale, unit_of(name) or unit, True)


def _metric(said: MetricLabel, *, recent: bool) -> tuple[str | None, str]:
    both = _LABEL_AND_NAME.fullmatch(said.text) if len(said.text) <= _MAX_LABEL_CHARS else None
    if both:
        return both["name"], both["label"]
    if is_metric_name(said.text):
        return said.text, said.text
    major, minor = capability(said.cc)
    found = metric_for(
        said.section,
        said.text,
        said.unit,
        item=said.body,
        compute=None if major is None or minor is None else (major, minor),
        recent=recent,
        nth=said.nth,
    )
    if found is None and _OTHER_NAME.fullmatch(said.text):
        return said.text, said.text
    if found is None and not said.section:
        label = with_unit(said.text)[0]
        found = _SUMMARY_PAGE.get(label.casefold()) or metric_for("", label, said.unit)
    return found, said.text


_SPACES = r"['’`\s\x{00a0}\x{202f}\x{2009}_]"
_POINT, _COMMA = ".", ","
_EXPONENT = r"(?:[eE][+-]?\d{1,4})?"
_WARNING = r"^\(!\)\s*"
_COUNT = r"\s*\{[^{}]*\}$"
_HEX = r"^0[xX][0-9a-fA-F]{1,16}$"
_NOTHING = r"(?i)^(?:n/a|no data|<no data>|none|null|-|--|-?nan|[+-]?inf(?:inity)?|)$"
_PARTS = r"^(?P<whole>[^()]*?)\s*\((?P<parts>[^()]*(?:\([^()]*\)[^()]*)*)\)$"


class NumberNotation(NamedTuple):
    """How a file writes numbers."""

    decimal: str
    note: str | None = None
    """What was not clear about it."""


def notation_of(texts: pl.Series, separator: str | None) -> NumberNotation:
    """Decide which mark is the decimal one, from the different numbers of a file."""
    plain = _plain(texts)
    point = _sure(plain, _POINT, _COMMA)
    comma = _sure(plain, _COMMA, _POINT)
    if point and comma:
        rarer = format_count(min(point, comma))
        note = f"numbers are written in two ways; {rarer} of them otherwise than the rest"
        return NumberNotation(_POINT if point >= comma else _COMMA, note)
    if point or comma:
        return NumberNotation(_POINT if point else _COMMA)
    return _by_separator(plain, separator)


def _by_separator(plain: pl.Series, separator: str | None) -> NumberNotation:
    """Decide where every number could be either: `1,234` is read as ncu means it, as thousands."""
    unclear = [
        mark for mark in (_COMMA, _POINT) if _count(plain, rf"^[+-]?[1-9]\d{{0,2}}[{mark}]\d{{3}}$")
    ]
    if not unclear:
        return NumberNotation(_POINT)
    decimal = _COMMA if separator == ";" else _POINT
    value = "1.234" if decimal in unclear else "1234"
    return NumberNotation(
        decimal, f"numbers such as 1{unclear[0]}234 could mean either; read as {value}"
    )


def _sure(plain: pl.Series, decimal: str, group: str) -> int:
    """Count numbers that only make sense with this decimal mark."""
    d, g = re.escape(decimal), re.escape(group)
    forms = (
        rf"^[+-]?\d+{d}(?:\d{{1,2}}|\d{{4,}}){_EXPONENT}$",
        rf"^[+-]?(?:0\d*|\d{{4,}}){d}\d{{3}}{_EXPONENT}$",
        rf"^[+-]?\d{{1,3}}(?:{g}\d{{2,3}})+{d}\d+$",
        rf"^[+-]?\d{{1,3}}(?:{g}\d{{2,3}}){{2,}}$",
    )
    return _count(plain, "|".join(forms))


def _count(plain: pl.Series, pattern: str) -> int:
    return int(plain.str.contains(pattern).sum())


def _plain(texts: pl.Series) -> pl.Series:
    """Strip marks that never are decimal ones, but only between digits."""
    cleaned = texts.str.strip_chars().str.replace(_WARNING, "").str.replace(_COUNT, "")
    return cleaned.str.replace_all(rf"(\d){_SPACES}(\d)", "${1}${2}").str.replace_all(
        rf"(\d){_SPACES}(\d)", "${1}${2}"
    )


def numbers(texts: pl.Series, notation: NumberNotation) -> pl.Series:
    """Give the numbers that texts stand for; null for what is no number, or not finite."""
    plain = _plain(texts)
    other = _COMMA if notation.decimal == _POINT else _POINT
    values = pl.DataFrame({"plain": plain}).select(
        pl.coalesce(
            _parsed(notation.decimal, other),
            # What makes no sense as the file's other numbers may still make sense by itself.
            _parsed(other, notation.decimal),
            pl.when(pl.col("plain").str.contains(_HEX)).then(
                pl.col("plain").str.slice(2).str.to_integer(base=16, strict=False).cast(pl.Float64)
            ),
        )
    )
    return values.to_series()


def _parsed(decimal: str, group: str) -> pl.Expr:
    d, g = re.escape(decimal), re.escape(group)
    form = rf"^[+-]?(?:\d+|\d{{1,3}}(?:{g}\d{{2,3}})*{g}\d{{3}})(?:{d}\d+)?{_EXPONENT}$"
    text = pl.col("plain").str.replace_all(group, "", literal=True)
    text = text.str.replace(decimal, ".", literal=True)
    number = pl.when(pl.col("plain").str.contains(form)).then(text).cast(pl.Float64, strict=False)
    return pl.when(number.is_finite()).then(number)


def is_nothing(text: pl.Expr) -> pl.Expr:
    """Tell values that were not measured, or not defined: `n/a`, `nan`, an empty cell."""
    return text.str.strip_chars().str.replace(_WARNING, "").str.contains(_NOTHING)


def whole_of(text: pl.Expr) -> pl.Expr:
    """Give the value before the parts that stand in brackets behind it; the text where none do."""
    split = text.str.extract_groups(_PARTS)
    return pl.when(_has_parts(text)).then(split.struct.field("whole")).otherwise(text)


def parts_of(text: pl.Expr) -> pl.Expr:
    """Give the parts, `1: 8; 16: 9`, that stand in brackets behind a value; null where none do."""
    split = text.str.extract_groups(_PARTS)
    return pl.when(_has_parts(text)).then(split.struct.field("parts"))


def _has_parts(text: pl.Expr) -> pl.Expr:
    listed = text.str.contains(r"\(.*[;:].*\)$")
    single = text.str.contains(r"^\S+ \(\S+\)$") & text.str.contains(r"^[+-]?\d")
    return text.str.contains(_PARTS) & (listed | single)
