"""Wall-clock timings from a CSV file: its time column and unit."""

from __future__ import annotations

import csv
import io
import math
import re
import statistics
from dataclasses import dataclass
from typing import Any

from gpusight.analysis.questions.forward_passes import forward_rank, words
from gpusight.analysis.steps.step_list import shortened
from gpusight.errors import UsageError
from gpusight.units import TIME_UNITS

_SPELLINGS = {
    "s": ("s", "sec", "secs", "second", "seconds"),
    "ms": ("ms", "msec", "msecs", "millis", "millisecond", "milliseconds"),
    "us": ("us", "usec", "usecs", "micros", "microsecond", "microseconds"),
    "ns": ("ns", "nsec", "nsecs", "nanos", "nanosecond", "nanoseconds"),
}
_UNITS = {word: TIME_UNITS[unit] for unit, words in _SPELLINGS.items() for word in words}
"""Nanoseconds in a unit."""
_FORWARD = frozenset({"forward", "fwd", "inference"})
_MEAN = frozenset({"mean", "avg", "average", "median"})
_TIME = frozenset({"time", "times", "timing", "latency", "duration", "elapsed", "wall", "t"})
_NOT_TIME = frozenset((
    "std", "stddev", "stdev", "deviation", "sd", "sem", "var", "variance", "min", "max", "backward",
    "bwd", "optimizer", "optim", "warmup", "count", "steps", "runs", "repeats", "iterations",
    "error", "ci", "low", "high", "loss",
))  # fmt: skip
_WIDER = frozenset({"total", "step", "all", "sum"})
"""What makes a time one of more than the forward pass, unless nothing else is there."""
_SPREAD = frozenset({"std", "stddev", "stdev", "deviation", "sd"})
_MODES = frozenset({"mode", "pass", "phase", "stage", "type", "kind", "what", "part", "section"})
_COUNTERS = frozenset((
    "run", "rep", "repeat", "repetition", "iter", "iteration", "trial", "index", "idx", "step",
    "seed", "timestamp", "date",
))  # fmt: skip
"""Columns that number the repeats, and so may differ among them."""
_NUMBER = re.compile(r"[-+]?(?:\d+(?:[.,]\d+)*\.?|[.,]\d+)(?:[eE][-+]?\d+)?")
_BEHIND = re.compile(r"\s*(?:$|[^\W\d_]|[±+(\[])")
"""What may follow a number: nothing, a unit, a deviation; but no more digits, as in `1 400`."""
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?(?:[eE][-+]?\d+)?")
_MOST_ROWS = 1_000_000
_MOST_NS = 2.0**63
_MOST_NAMED = 8


@dataclass(frozen=True)
class WallClockTimings:
    """Timings of a forward pass, in the unit of the file."""

    values: tuple[float, ...]
    unit_ns: float | None
    """Nanoseconds in the unit; None where the file does not say it."""
    column: str
    spread: float | None = None
    """The deviation that the file gives beside a single mean."""
    notes: tuple[str, ...] = ()

    def near(self, measured_ns: float | None) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Give mean, deviation and extremes in nanoseconds, and what had to be assumed."""
        unit, notes = self.unit_ns, self.notes
        if unit is None:
            name = _nearest(statistics.fmean(self.values), measured_ns)
            unit = _UNITS[name]
            notes += (f"the timings name no unit: column {self.column!r} is taken as {name}",)
        many = len(self.values) > 1
        spread = statistics.stdev(self.values) if many else self.spread
        return {
            "mean_ns": statistics.fmean(self.values) * unit,
            "stddev_ns": None if spread is None else spread * unit,
            "min_ns": min(self.values) * unit,
            "max_ns": max(self.values) * unit,
            "repeats": len(self.values),
            "means": f"column {self.column!r} of the timings",
        }, notes


def _nearest(value: float, measured_ns: float | None) -> str:
    """Choose the unit in which a value comes nearest to what was measured; seconds by default."""
    if not measured_ns or not value:
        return "s"
    return min(_SPELLINGS, key=lambda unit: abs(math.log(value * _UNITS[unit] / measured_ns)))


def read_timings(text: str, name: str) -> WallClockTimings:
    """Read the timings in a CSV file; `name` is what errors call it."""
    rows, decimal = _rows(text, name)
    header, body = _headed(rows, name, decimal=decimal)
    at = _time_column(header, body, decimal=decimal)
    if at is None:
        raise UsageError(
            f"no column of {name} is a time",
            why=f"its columns are {_named(header)}; none is named so and holds numbers",
            hint="name one forward_ms, time_s or the like",
        )
    column = shortened(header[at])
    body, notes = _forward_rows(header, body, name)
    cells = [row[at] for row in body if at < len(row)]
    values = [v for cell in cells if (v := _value(cell, decimal=decimal)) is not None]
    if not values:
        raise UsageError(f"column {column!r} of {name} holds no times", hint="check the file")
    if len(values) < len(body):
        notes += (f"{len(body) - len(values):,} rows of the timings hold no time: left out",)
    unit = _unit(header[at]) or _unit_of_cells(cells)
    spread = _given_spread(header, body, decimal=decimal) if len(values) == 1 else None
    _check(values, spread, unit, f"column {column!r} of {name}")
    notes = (
        *notes,
        *(_decimal_commas(cells, column) if decimal else ()),
        *_mixed(header, body, at),
    )
    return WallClockTimings(tuple(values), unit, column, spread, notes)


def _rows(text: str, name: str) -> tuple[list[list[str]], bool]:
    """Split text into rows of cells, and tell whether a comma in a number is a decimal one.

    Whichever character separates the headings separates cells. Comments are left out.
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not lines:
        raise UsageError(f"{name} holds no timings", why="it has no rows")
    if len(lines) > _MOST_ROWS + 1:
        raise UsageError(f"{name} holds no timings", why=f"it has more than {_MOST_ROWS:,} rows")
    separator = _separator(lines)
    table = csv.reader(io.StringIO("\n".join(lines)), delimiter=separator, strict=True)
    try:
        rows = [cells for row in table if any(cells := [cell.strip() for cell in row])]
    except csv.Error as error:
        why = f"row {table.line_num:,}: {error}"
        raise UsageError(f"{name} is no CSV file", why=why, hint="is a quote left open?") from error
    if not rows:
        raise UsageError(f"{name} holds no timings", why="it has no rows")
    return rows, separator != ","


def _separator(lines: list[str]) -> str:
    """Tell what separates headings, which may go over lines where one is quoted."""
    heading = ""
    for line in lines[:_MOST_NAMED]:
        heading += line
        if not heading.count('"') % 2:
            break
    found = max(",;\t|", key=heading.count)
    return found if found in heading else ";"  # of a single column, where commas are decimal


def _headed(
    rows: list[list[str]], name: str, *, decimal: bool
) -> tuple[list[str], list[list[str]]]:
    """Give headings and rows; of a file without headings, that its one column is the time."""
    header, *body = rows
    hint = "quote numbers with commas, or separate columns with semicolons"
    if _NUMBER.fullmatch(header[0]) is None:
        if any(any(row[len(header) :]) for row in body):
            why = "rows have more cells than there are headings"
            raise UsageError(f"{name} cannot be read", why=why, hint=hint)
        return header, body
    if sum(_value(cell, decimal=decimal) is not None for cell in header) > 1:
        raise UsageError(f"no heading of {name} says which column is the time", hint=hint)
    return ["time", *("" for _ in header[1:])], rows


def _named(headings: list[str]) -> str:
    shown = ", ".join(shortened(heading) for heading in headings[:_MOST_NAMED])
    more = len(headings) - _MOST_NAMED
    return f"{shown} and {more:,} more" if more > 0 else shown or "none"


def _check(values: list[float], spread: float | None, unit: float | None, where: str) -> None:
    """Refuse what is no time in any unit: under a nanosecond, or beyond centuries."""
    for value in (*values, *(() if spread is None else (spread,))):
        least, most = value * (unit or _UNITS["s"]), value * (unit or 1.0)
        if most >= _MOST_NS or (least < 1 and value is not spread):
            raise UsageError(f"{where} holds {value!r}, which no forward pass takes")


def _time_column(header: list[str], body: list[list[str]], *, decimal: bool) -> int | None:
    """Find the column whose name says best that it is the time of a forward pass."""
    numeric = [
        at
        for at in range(len(header))
        if any(at < len(row) and _value(row[at], decimal=decimal) is not None for row in body)
    ]
    ranked = [(rank, at) for at in numeric if (rank := _rank(header[at])) is not None]
    return min(ranked)[1] if ranked else None


def _rank(heading: str) -> int | None:
    """Rank a heading as a time: 0 the surest; None for no time."""
    found = frozenset(_split(heading))
    timed = bool(found & _TIME) or _unit(heading) is not None
    if found & _NOT_TIME or not (timed or found & (_MEAN | _FORWARD)):
        return None
    wider = bool(found & _WIDER)
    return 4 * wider + (0 if found & _FORWARD else 2) + (0 if timed else 1)


def _split(heading: str) -> list[str]:
    """Split a heading into words, where a unit of one letter and µ are words too."""
    return words(heading.replace("µ", "u").replace("μ", "u"))


def _unit(heading: str) -> float | None:
    return next((_UNITS[w] for w in reversed(_split(heading)) if w in _UNITS), None)


def _unit_of_cells(cells: list[str]) -> float | None:
    units = {_unit(_NUMBER.sub(" ", cell)) for cell in cells}
    return units.pop() if len(units) == 1 else None


def _value(cell: str, *, decimal: bool) -> float | None:
    """Read a time, which may have a unit or a deviation behind it."""
    found = _NUMBER.match(cell)
    if found is None or not _BEHIND.match(cell, found.end()):
        return None
    try:
        value = float(_with_point(found[0], decimal=decimal))
    except ValueError:  # more than one decimal mark
        return None
    return value if math.isfinite(value) and value > 0 else None


def _with_point(number: str, *, decimal: bool) -> str:
    """Write a number with a point; of commas and points the last is the decimal mark.

    A comma alone may separate thousands: `decimal` says that it does not.
    """
    if "," not in number:
        return number
    if "." in number[number.rindex(",") :]:
        return number.replace(",", "")
    if number.count(",") > 1 or (_THOUSANDS.fullmatch(number) and not decimal):
        return number.replace(",", "") if _THOUSANDS.fullmatch(number) else number
    return number.replace(".", "").replace(",", ".")


def _decimal_commas(cells: list[str], column: str) -> tuple[str, ...]:
    """Say how numbers were read that could be thousands too."""
    either = next((c for c in cells if c.count(",") == 1 and _THOUSANDS.fullmatch(c)), "")
    if not either or "." in either:
        return ()
    return (f"commas in column {column!r} of the timings are decimal: {either} is no thousand",)


def _forward_rows(
    header: list[str], body: list[list[str]], name: str
) -> tuple[list[list[str]], tuple[str, ...]]:
    """Keep the rows of the forward pass, where a column says what was timed."""
    for at, heading in enumerate(header):
        if not set(_split(heading)) & _MODES:
            continue
        kept = [row for row in body if at < len(row) and forward_rank(row[at]) is not None]
        told = {row[at] for row in body if at < len(row)}
        if kept and len(kept) < len(body):
            which = shortened(heading)
            return kept, (f"timings: {len(kept):,} rows count, whose {which} is a forward pass",)
        if not kept and any(set(words(value)) & _NOT_FORWARD for value in told):
            raise UsageError(
                f"no row of {name} times a forward pass",
                why=f"its {shortened(heading)} is {_named(sorted(told))}",
            )
    return body, ()


_NOT_FORWARD = frozenset({"backward", "bwd", "train", "training", "optimizer", "step"})


def _given_spread(header: list[str], body: list[list[str]], *, decimal: bool) -> float | None:
    at = next((at for at, h in enumerate(header) if set(_split(h)) & _SPREAD), None)
    if at is None or at >= len(body[0]):
        return None
    return _value(body[0][at], decimal=decimal)


def _mixed(header: list[str], body: list[list[str]], time: int) -> tuple[str, ...]:
    """Warn where rows differ in what they timed, such as the size of the model."""
    differing = [
        heading
        for at, heading in enumerate(header)
        if at != time
        and heading
        and _rank(heading) is None
        and not set(_split(heading)) & (_COUNTERS | _NOT_TIME)
        and len({row[at] for row in body if at < len(row)}) > 1
    ]
    if not differing:
        return ()
    columns = _named(differing)
    return (f"the timings differ in {columns} and are averaged: keep only the rows of this run",)
