"""Pieces of HTML that every section of a report is made of; whatever a capture says is escaped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpusight.render.blocks import sentence
from gpusight.render.cells import NUMERIC, safe_text, shorten_middle, show
from gpusight.render.diagnosis.page import prose, text
from gpusight.render.palette import COLOURS, HOST, colour_of
from gpusight.result import Fmt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpusight.result import Composite, Field, NotApplicable, TableResult

ROWS = 100
"""Rows of a table that nobody said another number for."""
NAME = 240
"""Letters of a name that a table shows."""


@dataclass(frozen=True, slots=True)
class Section:
    """A part of the page."""

    key: str
    """What its address ends in."""
    title: str
    body: str
    brief: str = ""
    """What the contents call it, where that is shorter."""


def section(part: Section) -> str:
    """Write a section under its heading."""
    return (
        f'<section id="{part.key}" aria-labelledby="{part.key}-title">'
        f'<h2 id="{part.key}-title">{text(part.title)}</h2>\n{part.body}\n</section>'
    )


def lead(words: str) -> str:
    """Say in a sentence what a section shows."""
    return f'<p class="lead">{prose(words)}</p>'


def absent(answer: NotApplicable) -> str:
    """Say why there is nothing, and what would help."""
    return f'<p class="absent">{prose(begun(sentence(answer)))}.</p>'


def notes(said: Iterable[str]) -> str:
    """Say what a reader must know."""
    return "".join(f'<p class="note">{prose(begun(note))}</p>' for note in said)


def begun(words: str) -> str:
    """Begin a sentence of ours with a capital letter; answers are written to follow a colon."""
    return f"{words[:1].upper()}{words[1:]}"


def clipped(words: str, most: int = NAME) -> str:
    """Escape a text and cut its middle out so that no more than `most` letters of HTML are left."""
    whole = safe_text(words[: 8 * most])
    width = most
    while True:
        shown = text(shorten_middle(whole, width))
        if len(shown) <= most or width <= 1:
            return shown
        width = width * most // (len(shown) + 1)


def paint(key: str) -> str:
    """Give the colour of an entry, a category or a range as the page's styles call it."""
    return f"var(--{_slot(key)})"


def _slot(key: str) -> str:
    if key not in COLOURS:
        found = colour_of(key)
        if found in HOST:
            return f"host-{HOST.index(found)}"
        key = next(name for name, colour in COLOURS.items() if colour == found)
    return key.replace("/", "-")


def paints() -> Iterator[tuple[str, str, str]]:
    """Give every colour by its name in the styles: on a light page, and on a dark one."""
    for key, colour in COLOURS.items():
        yield _slot(key), colour.light, colour.dark
    for number, colour in enumerate(HOST):
        yield f"host-{number}", colour.light, colour.dark


def swatch(key: str) -> str:
    """Show a colour beside what it stands for."""
    return f'<i class="swatch" style="background:{paint(key)}"></i>'


# Tables -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Column:
    """How a field is shown, where that is not told by its format alone."""

    field: Field
    bar: bool = False
    """A share, drawn beside its number."""
    largest: float = 1.0
    """Of such a column: the value that the longest bar stands for."""
    extra: bool = False
    """Left out on narrow screens."""

    @property
    def kind(self) -> str:
        """Its classes."""
        named = "name" if self.field.fmt is Fmt.NAME else ""
        kinds = ("n" if self.field.fmt in NUMERIC else named, "bar" if self.bar else "")
        return " ".join(filter(None, (*kinds, "extra" if self.extra else "")))


def columns_of(
    result: TableResult, keys: Sequence[str], *, bars: Sequence[str] = (), extra: Sequence[str] = ()
) -> list[Column]:
    """Choose columns of an answer by their keys, in this order; those it lacks are left out."""
    fields = {field.key: field for field in result.fields}
    return [
        Column(
            fields[key],
            bar=key in bars,
            largest=_largest(result, key) if key in bars else 1.0,
            extra=key in extra,
        )
        for key in keys
        if key in fields
    ]


def _largest(result: TableResult, key: str) -> float:
    most = result.frame[key].max()
    return float(most) if isinstance(most, (int, float)) and most > 0 else 1.0


def shown_columns(result: TableResult) -> list[Column]:
    """Give the columns that the command shows; what a row is about comes first."""
    shown = [field for field in result.fields if field.shown]
    return [Column(field) for field in sorted(shown, key=lambda field: field.fmt is not Fmt.NAME)]


def table(
    result: TableResult, columns: Sequence[Column], *, limit: int = ROWS, caption: str = ""
) -> str:
    """Write an answer as a table that can be sorted, and what of it was left out."""
    rows = result.frame.head(limit).iter_rows(named=True)
    body = "".join(row(cells(one, columns)) for one in rows)
    left_out = result.frame.height - min(limit, result.frame.height)
    return grid(head(columns), body, caption=caption or result.title) + more(left_out)


def grid(heads: str, body: str, *, caption: str, kind: str = "sortable", key: str = "") -> str:
    """Write a table in a box of its own, which scrolls where the screen is too narrow."""
    label = text(caption)
    own = f' id="{key}"' if key else ""
    return (
        f'<div class="box" role="group" aria-label="{label}" tabindex="0">'
        f'<table{own} class="data {kind}"><caption class="unseen">{label}</caption>'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def head(columns: Iterable[Column]) -> str:
    """Write the headings."""
    return "".join(
        f'<th scope="col" class="{column.kind}" title="{text(column.field.meaning)}">'
        f"{text(column.field.label)}</th>"
        for column in columns
    )


def row(inside: str, **data: object) -> str:
    """Write a row; `data` is what the page's script asks of it."""
    own = "".join(f' data-{key}="{text(str(value))}"' for key, value in data.items())
    return f"<tr{own}>{inside}</tr>\n"


def cells(values: Mapping[str, Any], columns: Iterable[Column]) -> str:
    """Write the cells of a row."""
    return "".join(cell(values[column.field.key], column) for column in columns)


def cell(value: object, column: Column) -> str:
    """Write one cell; of numbers also the value itself, which rows are sorted by."""
    fmt = column.field.fmt
    kind = f' class="{column.kind}"' if column.kind else ""
    if fmt not in NUMERIC:
        return f"<td{kind}>{clipped(show(value, fmt))}</td>"
    if not isinstance(value, (int, float)):
        return f'<td class="{column.kind}">{text(show(value, fmt))}</td>'
    part = part_style(value / column.largest) if column.bar else ""
    return f'<td class="{column.kind}"{part} data-v="{value!r}">{text(show(value, fmt))}</td>'


def part_style(part: float) -> str:
    """Say how long the bar of a cell is."""
    return f' style="--part:{min(max(part, 0.0), 1.0):.4f}"'


def more(left_out: int, what: str = "rows") -> str:
    """Say how many rows are not shown."""
    return f'<p class="note">… and {left_out:,} more {what}.</p>' if left_out > 0 else ""


def facts(result: Composite, keys: Sequence[str]) -> str:
    """Show some facts of an answer side by side; what it does not know is left out."""
    known = {fact.key: fact for fact in result.facts if fact.value is not None}
    shown = "".join(
        f'<div title="{text(known[key].meaning)}"><dt>{text(known[key].label)}</dt>'
        f"<dd>{clipped(show(known[key].value, known[key].fmt))}</dd></div>"
        for key in keys
        if key in known
    )
    return f'<dl class="facts">{shown}</dl>' if shown else ""
