"""(a) How long a forward pass takes, and whether wall-clock timings from a CSV file agree."""

from __future__ import annotations

import csv
import io
import math
import re
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analysis.aggregates import schema_of, shown_if_filled
from gpusight.analysis.questions.forward_passes import forward_rank, words
from gpusight.analysis.questions.question_program import QuestionAnswer
from gpusight.analysis.selection import GPU_WORK
from gpusight.analysis.steps.step_list import shortened
from gpusight.errors import UsageError
from gpusight.results import Field, Fmt, NotApplicable, TableResult
from gpusight.units import TIME_UNITS, format_time

if TYPE_CHECKING:
    from gpusight.analysis.questions.question_program import QuestionProgram


TIME_FIELDS = (
    Field("measure", "Forward pass", Fmt.TEXT, "What was measured: one of the four, or wall clock"),
    Field("mean_ns", "Mean", Fmt.TIME, "Average over the passes"),
    Field("stddev_ns", "StdDev", Fmt.TIME, "Sample standard deviation; null for a single pass"),
    Field(
        "wall_clock_difference", "Wall clock diff.", Fmt.SHARE, "Difference of the wall clock to it"
    ),
    Field("min_ns", "Min", Fmt.TIME, "Shortest"),
    Field("max_ns", "Max", Fmt.TIME, "Longest"),
    Field("repeats", "Repeats", Fmt.COUNT, "Passes, or rows of the timings"),
    Field("means", "What it is", Fmt.NAME, "What was measured", shown=False),
)
PASS_FIELDS = (
    Field("pass", "Pass", Fmt.ID, "Number of the pass, from 0"),
    Field("host_ns", "Host", Fmt.TIME, "From its start to its end on the host"),
    Field("complete_ns", "Complete", Fmt.TIME, "From its start to the end of its GPU work"),
    Field("gpu_ns", "GPU", Fmt.TIME, "From the start of its first to the end of its last GPU work"),
    Field("kernel_ns", "Kernels", Fmt.TIME, "Sum of the durations of its kernels"),
    Field("launches", "Kernels run", Fmt.COUNT, "Kernels that it launched"),
    Field("start_ns", "Start", Fmt.TIME, "Start on the host, from the capture's origin"),
    Field("name", "Range", Fmt.NAME, "Range or step that it is"),
)
HOST, COMPLETE, WALL_CLOCK = "on the host", "until its GPU work is done", "wall clock"
_MEANS = {
    HOST: "The range on the host, which ends when its work is launched",
    COMPLETE: "From the start of the range to the end of its GPU work",
    "on the GPU": "From the start of its first to the end of its last GPU work",
    "sum of its kernels": "Sum of the durations of its kernels",
}
_COLUMNS = dict(zip(_MEANS, ("host_ns", "complete_ns", "gpu_ns", "kernel_ns"), strict=True))
_CLOSE = 0.05
"""Relative difference below which two means agree: runs of one program differ by so much."""


def forward_time(
    program: QuestionProgram, timings: WallClockTimings | None
) -> QuestionAnswer | NotApplicable:
    """Time the forward passes, and compare with wall-clock timings."""
    if isinstance(program.passes, NotApplicable):
        return program.passes
    passes = _passes(program)
    wall: dict[str, Any] | None = None
    notes: tuple[str, ...] = ()
    if timings is not None:
        mean_ns: Any = passes["complete_ns"].mean()
        if mean_ns is None:
            mean_ns = passes["host_ns"].mean()
        wall, notes = timings.near(mean_ns)
    rows = [_row(measure, passes[column], wall) for measure, column in _COLUMNS.items()]
    rows = [row for row in rows if row["mean_ns"] is not None]
    if wall is not None:
        rows.append({**wall, "measure": WALL_CLOCK, "wall_clock_difference": None})
    schema = schema_of(TIME_FIELDS, pl.Float64()) | {"repeats": pl.Int64()}
    frame = pl.DataFrame(rows, schema=schema)
    return QuestionAnswer(
        _sentence(rows, passes.height),
        {"passes": passes.height, "found_by": program.passes.how, **_numbers(rows)},
        (
            TableResult(
                "forward_time",
                "(a) Time of a forward pass",
                shown_if_filled(TIME_FIELDS, frame),
                frame,
            ),
            TableResult("passes", "(a) Every forward pass", PASS_FIELDS, passes),
        ),
        notes,
    )


def _passes(program: QuestionProgram) -> pl.DataFrame:
    """Time every pass; GPU times are null where it launched no GPU work."""
    assert not isinstance(program.passes, NotApplicable), "there are passes"
    kernel = pl.col("table") == GPU_WORK.index("kernels")
    work = (
        program.work.filter(pl.col("pass").is_not_null())
        .group_by("pass")
        .agg(
            pl.col("start_ns").min().alias("first_ns"),
            pl.col("end_ns").max().alias("last_ns"),
            pl.col("duration_ns").filter(kernel).sum().alias("kernel_ns"),
            kernel.sum().cast(pl.Int64).alias("launches"),
        )
    )
    begin, end = pl.col("start_ns"), pl.col("end_ns")
    done = pl.when(pl.col("last_ns").is_not_null()).then(pl.max_horizontal(end, "last_ns"))
    return (
        program.passes.frame.with_row_index("pass")
        .with_columns(pl.col("pass").cast(pl.Int64))
        .join(work, on="pass", how="left", maintain_order="left")
        .with_columns(
            (end - begin).alias("host_ns"),
            (done - begin).alias("complete_ns"),
            (pl.col("last_ns") - pl.col("first_ns")).alias("gpu_ns"),
            pl.col("launches").fill_null(0),
        )
        .select(f.key for f in PASS_FIELDS)
    )


def _row(measure: str, values: pl.Series, wall: dict[str, Any] | None) -> dict[str, Any]:
    known = values.drop_nulls()
    mean: Any = known.mean()
    return {
        "measure": measure,
        "mean_ns": mean,
        "stddev_ns": known.std(),
        "min_ns": known.min(),
        "max_ns": known.max(),
        "repeats": len(known),
        "wall_clock_difference": None if wall is None or not mean else wall["mean_ns"] / mean - 1,
        "means": _MEANS[measure],
    }


def _differs(difference: float) -> str:
    """Format how far one time is from another: `2.3% more`."""
    return f"{abs(difference):,.1%} {'more' if difference >= 0 else 'less'}"


def _numbers(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Return each mean and deviation, and how far wall clock is from it."""
    keys = {**_COLUMNS, WALL_CLOCK: "wall_clock_ns"}
    numbers: dict[str, Any] = {}
    for row in rows:
        key = keys[row["measure"]].removesuffix("_ns")
        numbers |= {f"{key}_ns": row["mean_ns"], f"{key}_stddev_ns": row["stddev_ns"]}
        if row["wall_clock_difference"] is not None:
            numbers[f"wall_clock_against_{key}"] = row["wall_clock_difference"]
    return numbers


def _sentence(rows: list[dict[str, Any]], count: int) -> str:
    by = {row["measure"]: row for row in rows}
    passes = "1 pass" if count == 1 else f"{count:,} passes"
    text = f"A forward pass takes {_mean_with_deviation(by[HOST])} on the host"
    if COMPLETE in by and by[COMPLETE]["mean_ns"] == by[HOST]["mean_ns"]:
        text += ", by when its GPU work is done"
    elif COMPLETE in by:
        text += f", {_mean_with_deviation(by[COMPLETE])} until its GPU work is done"
    text += f" ({passes})"
    if WALL_CLOCK not in by:
        return text + "."
    against = by.get(COMPLETE, by[HOST])
    differs = against["wall_clock_difference"]
    verdict = "agrees" if abs(differs) < _CLOSE else "does not agree"
    wall = f"wall clock is {_mean_with_deviation(by[WALL_CLOCK])}, {_differs(differs)}"
    host = f" ({_differs(by[HOST]['wall_clock_difference'])} than on the host)"
    return f"{text}; {wall}{host if COMPLETE in by else ''}: it {verdict}."


def _mean_with_deviation(row: dict[str, Any]) -> str:
    spread = row["stddev_ns"]
    return format_time(row["mean_ns"]) + ("" if spread is None else f" ± {format_time(spread)}")


# Wall-clock timings -------------------------------------------------------------------------------

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
"""Words for times of more than a forward pass, used only if there is no other column."""
_SPREAD = frozenset({"std", "stddev", "stdev", "deviation", "sd"})
_MODES = frozenset({"mode", "pass", "phase", "stage", "type", "kind", "what", "part", "section"})
_COUNTERS = frozenset((
    "run", "rep", "repeat", "repetition", "iter", "iteration", "trial", "index", "idx", "step",
    "seed", "timestamp", "date",
))  # fmt: skip
"""Columns that number the repeats, and so may differ among them."""
_NUMBER = re.compile(r"[-+]?(?:\d+(?:[.,]\d+)*\.?|[.,]\d+)(?:[eE][-+]?\d+)?")
_BEHIND = re.compile(r"\s*(?:$|[^\W\d_]|[±+(\[])")
"""What may follow a number: nothing, a unit, a deviation; but no further digits (`1 400`)."""
_THOUSANDS = re.compile(r"[-+]?\d{1,3}(?:,\d{3})+(?:\.\d*)?(?:[eE][-+]?\d+)?")
_MAX_ROWS = 1_000_000
_MAX_NS = 2.0**63
_MAX_NAMED = 8


@dataclass(frozen=True)
class WallClockTimings:
    """Timings of a forward pass, in the unit of the file."""

    values: tuple[float, ...]
    unit_ns: float | None
    """Nanoseconds in the unit; None where the file names none."""
    column: str
    spread: float | None = None
    """The standard deviation that the file has next to a single mean."""
    notes: tuple[str, ...] = ()

    def near(self, measured_ns: float | None) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Return mean, deviation and extremes in nanoseconds, and notes on what was assumed.

        A missing unit is the one in which the mean comes nearest to `measured_ns`.
        """
        unit, notes = self.unit_ns, self.notes
        if unit is None:
            mean, name = statistics.fmean(self.values), "s"
            if measured_ns and mean:
                name = min(_SPELLINGS, key=lambda u: abs(math.log(mean * _UNITS[u] / measured_ns)))
            unit = _UNITS[name]
            notes += (f"the timings name no unit: column {self.column!r} is taken as {name}",)
        spread = statistics.stdev(self.values) if len(self.values) > 1 else self.spread
        return {
            "mean_ns": statistics.fmean(self.values) * unit,
            "stddev_ns": None if spread is None else spread * unit,
            "min_ns": min(self.values) * unit,
            "max_ns": max(self.values) * unit,
            "repeats": len(self.values),
            "means": f"column {self.column!r} of the timings",
        }, notes


def read_timings(text: str, name: str) -> WallClockTimings:
    """Read the timings in a CSV file; errors call it `name`."""
    rows, decimal = _rows(text, name)
    header, body = _headed(rows, name, decimal=decimal)
    ranked = [
        (rank, column)
        for column, heading in enumerate(header)
        if (rank := _rank(heading)) is not None
        and any(column < len(r) and _value(r[column], decimal=decimal) is not None for r in body)
    ]
    if not ranked:
        raise UsageError(
            f"no column of {name} is a time",
            why=f"its columns are {_list_headings(header)}; none is named so and holds numbers",
            hint="name one forward_ms, time_s or similar",
        )
    time_column = min(ranked)[1]
    heading = header[time_column]
    column = shortened(heading)
    body, notes = _forward_rows(header, body, name)
    cells = [row[time_column] for row in body if time_column < len(row)]
    values = [v for cell in cells if (v := _value(cell, decimal=decimal)) is not None]
    if not values:
        raise UsageError(f"column {column!r} of {name} holds no times", hint="check the file")
    if len(values) < len(body):
        notes += (f"{len(body) - len(values):,} rows of the timings hold no time: left out",)
    unit_ns = _unit(heading)
    if not unit_ns:
        units = {_unit(_NUMBER.sub(" ", cell)) for cell in cells}
        unit_ns = units.pop() if len(units) == 1 else None
    spread = None
    spread_column = next((n for n, name in enumerate(header) if set(_split(name)) & _SPREAD), None)
    if len(values) == 1 and spread_column is not None and spread_column < len(body[0]):
        spread = _value(body[0][spread_column], decimal=decimal)
    _check(values, spread, unit_ns, f"column {column!r} of {name}")
    either = next((c for c in cells if c.count(",") == 1 and _THOUSANDS.fullmatch(c)), "")
    if decimal and either and "." not in either:
        notes += (
            f"commas in column {column!r} of the timings are decimal: {either} is no thousand",
        )
    notes += _mixed(header, body, time_column)
    return WallClockTimings(tuple(values), unit_ns, column, spread, notes)


def _rows(text: str, name: str) -> tuple[list[list[str]], bool]:
    """Split text into rows of cells, and return whether a comma in a number is a decimal one.

    The character that separates headings separates cells. Comments are left out.
    """
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    if not lines:
        raise UsageError(f"{name} holds no timings", why="it has no rows")
    if len(lines) > _MAX_ROWS + 1:
        raise UsageError(f"{name} holds no timings", why=f"it has more than {_MAX_ROWS:,} rows")
    heading = ""  # it may go over lines, where a name is quoted
    for line in lines[:_MAX_NAMED]:
        heading += line
        if not heading.count('"') % 2:
            break
    separator = max(",;\t|", key=heading.count)
    if separator not in heading:
        separator = ";"  # a single column: commas are decimal
    table = csv.reader(io.StringIO("\n".join(lines)), delimiter=separator, strict=True)
    try:
        rows = [cells for row in table if any(cells := [cell.strip() for cell in row])]
    except csv.Error as error:
        why = f"row {table.line_num:,}: {error}"
        raise UsageError(f"{name} is no CSV file", why=why, hint="is a quote left open?") from error
    if not rows:
        raise UsageError(f"{name} holds no timings", why="it has no rows")
    return rows, separator != ","


def _headed(
    rows: list[list[str]], name: str, *, decimal: bool
) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows; the one column of a file without headings is the time."""
    header, *body = rows
    hint = "quote numbers with commas, or separate columns with semicolons"
    if _NUMBER.fullmatch(header[0]) is None:
        if any(any(row[len(header) :]) for row in body):
            why = "rows have more cells than there are headings"
            raise UsageError(f"{name} cannot be read", why=why, hint=hint)
        return header, body
    if sum(_value(cell, decimal=decimal) is not None for cell in header) > 1:
        raise UsageError(f"no column of {name} is named like a time", hint=hint)
    return ["time", *("" for _ in header[1:])], rows


def _list_headings(headings: list[str]) -> str:
    shown = ", ".join(shortened(heading) for heading in headings[:_MAX_NAMED])
    more = len(headings) - _MAX_NAMED
    return f"{shown} and {more:,} more" if more > 0 else shown or "none"


def _check(values: list[float], spread: float | None, unit: float | None, where: str) -> None:
    """Refuse what is no time in any unit: under a nanosecond, or beyond centuries."""
    for value in (*values, *(() if spread is None else (spread,))):
        least, most = value * (unit or _UNITS["s"]), value * (unit or 1.0)
        if most >= _MAX_NS or (least < 1 and value is not spread):
            raise UsageError(f"{where} holds {value!r}, too long for a forward pass")


def _rank(heading: str) -> int | None:
    """Rank a heading as a time: 0 the surest; None for no time."""
    named = frozenset(_split(heading))
    timed = bool(named & _TIME) or _unit(heading) is not None
    if named & _NOT_TIME or not (timed or named & (_MEAN | _FORWARD)):
        return None
    wider = bool(named & _WIDER)
    return 4 * wider + (0 if named & _FORWARD else 2) + (0 if timed else 1)


def _split(heading: str) -> list[str]:
    """Split a heading into words, where a unit of one letter and µ are words too."""
    return words(heading.replace("µ", "u").replace("μ", "u"))


def _unit(heading: str) -> float | None:
    return next((_UNITS[w] for w in reversed(_split(heading)) if w in _UNITS), None)


def _value(cell: str, *, decimal: bool) -> float | None:
    """Read a time, which may have a unit or a deviation behind it."""
    number = _NUMBER.match(cell)
    if number is None or not _BEHIND.match(cell, number.end()):
        return None
    try:
        value = float(_with_point(number[0], decimal=decimal))
    except ValueError:  # more than one decimal mark
        return None
    return value if math.isfinite(value) and value > 0 else None


def _with_point(number: str, *, decimal: bool) -> str:
    """Replace a decimal comma by a point; of commas and points the last is the decimal mark.

    A comma alone may separate thousands, unless `decimal`.
    """
    if "," not in number:
        return number
    if "." in number[number.rindex(",") :]:
        return number.replace(",", "")
    if number.count(",") > 1 or (_THOUSANDS.fullmatch(number) and not decimal):
        return number.replace(",", "") if _THOUSANDS.fullmatch(number) else number
    return number.replace(".", "").replace(",", ".")


def _forward_rows(
    header: list[str], body: list[list[str]], name: str
) -> tuple[list[list[str]], tuple[str, ...]]:
    """Keep the rows of the forward pass, where a column names what was timed."""
    for column, heading in enumerate(header):
        if not set(_split(heading)) & _MODES:
            continue
        rows = [row for row in body if column < len(row)]
        kept = [row for row in rows if forward_rank(row[column]) is not None]
        modes = {row[column] for row in rows}
        mode = shortened(heading)
        if kept and len(kept) < len(body):
            return kept, (f"timings: {len(kept):,} rows count, whose {mode} is a forward pass",)
        if not kept and any(set(words(value)) & _NOT_FORWARD for value in modes):
            raise UsageError(
                f"no row of {name} times a forward pass",
                why=f"its {mode} is {_list_headings(sorted(modes))}",
            )
    return body, ()


_NOT_FORWARD = frozenset({"backward", "bwd", "train", "training", "optimizer", "step"})


def _mixed(header: list[str], body: list[list[str]], time_column: int) -> tuple[str, ...]:
    """Warn where rows differ in what they timed, such as the size of the model."""
    differing = [
        heading
        for column, heading in enumerate(header)
        if column != time_column
        and heading
        and _rank(heading) is None
        and not set(_split(heading)) & (_COUNTERS | _NOT_TIME)
        and len({row[column] for row in body if column < len(row)}) > 1
    ]
    if not differing:
        return ()
    columns = _list_headings(differing)
    return (f"the timings differ in {columns} and are averaged: keep only the rows of this run",)
