"""Checks a kernel-info file the way the Orion scheduler reads it."""

from __future__ import annotations

import re
from dataclasses import dataclass

import polars as pl

from gpusight.analysis.orion.orion_launches import CLASS_NAMES
from gpusight.analysis.orion.orion_rows import HEADER, SHAPE_HEADER
from gpusight.errors import NotACaptureError
from gpusight.results import Composite, Fact, Field, Fmt, TableResult

BROKEN_FIELDS = (
    Field("line", "Line", Fmt.ID, "Line of the file, from 1 for the header"),
    Field("problem", "Problem", Fmt.TEXT, "Why the scheduler cannot read the row"),
    Field("text", "Row", Fmt.NAME, "The row, shortened"),
)
_FULL = (*HEADER, *SHAPE_HEADER)
_WHOLE = re.compile(r"\s*[+-]?\d{1,18}\s*", re.ASCII)
_REAL = re.compile(
    r"\s*[+-]?(?:\d{1,300}\.?\d{0,300}|\.\d{1,300})(?:[eE][+-]?\d{1,4})?\s*", re.ASCII
)
_INT_MAX = 2**31 - 1
_FLOAT_MAX = 3.4028235e38
_SHOWN = 160
"""Letters of a broken row that are kept."""


@dataclass(frozen=True, slots=True)
class _Row:
    """A row that can be read."""

    profile: int
    duration: float


@dataclass(frozen=True, slots=True)
class _Broken:
    """A row that cannot."""

    line: int
    problem: str
    text: str


def check(text: str, source: str, num_kernels: int | None = None) -> Composite:
    """Check the text of a kernel-info file; what is wrong with it are the rows of the answer."""
    lines = text.removeprefix("\ufeff").removesuffix("\n").split("\n")
    columns, has_header = _columns(lines, source)
    rows: list[_Row] = []
    broken: list[_Broken] = []
    for number, line in enumerate(lines[1:], start=2):
        row = _read(line, columns)
        if isinstance(row, _Row):
            rows.append(row)
        else:
            broken.append(_Broken(number, row, _shortened(line)))
    if not has_header:
        problem = "no header: the reader skips the first line, and this kernel with it"
        broken.insert(0, _Broken(1, problem, _shortened(lines[0])))
    return _answer(source, columns, rows, broken, len(lines) - has_header, num_kernels)


def problems(result: Composite) -> int:
    """Count what is wrong with a file that was checked."""
    facts = {fact.key: fact.value for fact in result.facts}
    return int(facts["broken"]) + (facts.get("count_agrees") is False)


def _columns(lines: list[str], source: str) -> tuple[int, bool]:
    """Tell how many columns the file has, and whether a header says so."""
    header = [word.strip().lower() for word in lines[0].split(",")] if lines else []
    known = [name.lower() for name in _FULL]
    if header in (known, known[: len(HEADER)]):
        return len(header), True
    for columns in (len(_FULL), len(HEADER)):
        if lines and isinstance(_read(lines[0], columns), _Row):
            return columns, False
    raise NotACaptureError(
        f"{source} is not a kernel-info file",
        why=f"its first line is not {','.join(HEADER)}",
        hint="make one: gpusight orion build --ncu FILE --model-type vision -o FILE",
    )


def _read(line: str, columns: int) -> _Row | str:
    """Read a row; gives what is wrong with it where that cannot be done."""
    if not line.strip():
        return "empty line"
    cells = line.split(",")
    problem = _miscounted(cells, columns) if len(cells) != columns else _problem(cells)
    return problem or _Row(int(cells[1]), float(cells[4]))


def _miscounted(cells: list[str], columns: int) -> str:
    extra = len(cells) - columns
    if extra > 0 and _problem([cells[0], *cells[extra + 1 :]]) is None:
        return f"{extra:,} comma{'s' if extra > 1 else ''} in the name"
    return f"{len(cells):,} field{'s' if len(cells) > 1 else ''}, not {columns}"


def _problem(cells: list[str]) -> str | None:
    """Say what the reader cannot take, or what the scheduler cannot mean; None for a sound row."""
    for name, cell in zip(_FULL[1:], cells[1:], strict=False):
        if not (_is_real(cell) if name == "Duration" else _is_whole(cell)):
            kind = "number" if name == "Duration" else "whole number"
            return f"{name} is {cell.strip()[:40]!r}, not a {kind}"
    if not cells[0].strip():
        return "no name"
    if int(cells[1]) not in CLASS_NAMES:
        return f"Profile is {int(cells[1])}, not 1, 0 or -1"
    if int(cells[3]) < 1:
        return f"SM_usage is {int(cells[3])}: a kernel needs at least one SM"
    return f"Duration is {float(cells[4]):g}" if float(cells[4]) < 0 else None


def _is_whole(cell: str) -> bool:
    return bool(_WHOLE.fullmatch(cell)) and abs(int(cell)) <= _INT_MAX


def _is_real(cell: str) -> bool:
    return bool(_REAL.fullmatch(cell)) and abs(float(cell)) <= _FLOAT_MAX


def _shortened(line: str) -> str:
    return line if len(line) <= _SHOWN else f"{line[: _SHOWN - 60]} … {line[-57:]}"


def _answer(
    source: str,
    columns: int,
    rows: list[_Row],
    broken: list[_Broken],
    count: int,
    num_kernels: int | None,
) -> Composite:
    agrees = None if num_kernels is None else count == num_kernels
    sound = not broken and agrees is not False
    frame = pl.DataFrame(
        {
            "line": pl.Series([b.line for b in broken], dtype=pl.Int64),
            "problem": pl.Series([b.problem for b in broken], dtype=pl.String),
            "text": pl.Series([b.text for b in broken], dtype=pl.String),
        }
    )
    sections = (TableResult("broken", "Broken rows", BROKEN_FIELDS, frame),) if broken else ()
    return Composite(
        "orion",
        f"{source}: {'sound' if sound else 'the scheduler cannot use it'}",
        _facts(columns, rows, len(broken), count, num_kernels, agrees),
        sections,
        meta={"action": "check", "sound": sound},
        notes=_notes(count, num_kernels, agrees),
    )


def _facts(
    columns: int,
    rows: list[_Row],
    broken: int,
    count: int,
    num_kernels: int | None,
    agrees: bool | None,
) -> tuple[Fact, ...]:
    time = sum(row.duration for row in rows)
    classes = [
        Fact(
            f"{name}_rows",
            f"Class {profile}: {name}",
            sum(row.profile == profile for row in rows),
            Fmt.COUNT,
            f"Rows with the profile {profile}",
        )
        for profile, name in CLASS_NAMES.items()
    ]
    expected = (
        Fact("num_kernels", "num_kernels", num_kernels, Fmt.COUNT, "What the job asks for"),
        Fact("count_agrees", "Count agrees", agrees, Fmt.FLAG, "Whether the file has as many"),
    )
    return (
        Fact("rows", "Rows", count, Fmt.COUNT, "Kernels in the file, broken rows included"),
        *(expected if num_kernels is not None else ()),
        Fact("broken", "Broken", broken, Fmt.COUNT, "Rows that the scheduler cannot read"),
        Fact("columns", "Columns", columns, Fmt.COUNT, "Five, or seven with block and grid"),
        Fact("total_ns", "Time", time, Fmt.TIME, "Sum of the durations that can be read"),
        *classes,
    )


def _notes(count: int, num_kernels: int | None, agrees: bool | None) -> tuple[str, ...]:
    if agrees is not False:
        return ()
    rows = "one row" if count == 1 else f"{count:,} rows"
    counts = f"the job's num_kernels is {num_kernels:,} and the file has {rows}"
    return (f"{counts}: the scheduler would wait for ever, or start over too early",)
