"""Numbers as people's machines print them: `1,234.5`, `1.234,5`, `1'234.5`, `1 234,5`.

Which mark separates the decimals is decided once for a file, by all its numbers: a single `1,234`
could be either.
"""

from __future__ import annotations

import re
from typing import NamedTuple

import polars as pl

from gpusight.units import format_count

_SPACES = r"['’`\s\x{00a0}\x{202f}\x{2009}_]"
_POINT, _COMMA = ".", ","
_EXPONENT = r"(?:[eE][+-]?\d{1,4})?"
_WARNING = r"^\(!\)\s*"
_COUNT = r"\s*\{[^{}]*\}$"
_HEX = r"^0[xX][0-9a-fA-F]{1,16}$"
_NOTHING = r"(?i)^(?:n/a|no data|<no data>|none|null|-|--|-?nan|[+-]?inf(?:inity)?|)$"
_PARTS = r"^(?P<whole>[^()]*?)\s*\((?P<parts>[^()]*(?:\([^()]*\)[^()]*)*)\)$"


class Notation(NamedTuple):
    """How a file writes numbers."""

    decimal: str
    note: str | None = None
    """What was not clear about it."""


def notation_of(texts: pl.Series, separator: str | None) -> Notation:
    """Decide which mark is the decimal one, from the different numbers of a file."""
    plain = _plain(texts)
    point = _sure(plain, _POINT, _COMMA)
    comma = _sure(plain, _COMMA, _POINT)
    if point and comma:
        rarer = format_count(min(point, comma))
        note = f"numbers are written in two ways; {rarer} of them otherwise than the rest"
        return Notation(_POINT if point >= comma else _COMMA, note)
    if point or comma:
        return Notation(_POINT if point else _COMMA)
    return _by_separator(plain, separator)


def _by_separator(plain: pl.Series, separator: str | None) -> Notation:
    """Decide where every number could be either: `1,234` is read as ncu means it, as thousands."""
    unclear = [
        mark for mark in (_COMMA, _POINT) if _count(plain, rf"^[+-]?[1-9]\d{{0,2}}[{mark}]\d{{3}}$")
    ]
    if not unclear:
        return Notation(_POINT)
    decimal = _COMMA if separator == ";" else _POINT
    value = "1.234" if decimal in unclear else "1234"
    return Notation(decimal, f"numbers such as 1{unclear[0]}234 could mean either; read as {value}")


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


def numbers(texts: pl.Series, notation: Notation) -> pl.Series:
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
