"""What every HTML page is made of: the page itself, escaped text, tables and sections."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

from gpusight.render.cell_text import NUMERIC, safe_text, shorten_middle, show
from gpusight.render.charts.chart_colors import COLORS, DARK, HOST_COLORS, LIGHT, color_of
from gpusight.render.explanation import evidence_value
from gpusight.render.table_layout import sentence
from gpusight.results import Composite, Fmt, NotApplicable, Result, TableResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpusight.render.charts.chart_colors import ChartTheme
    from gpusight.results import Field
    from gpusight.rules.finding import Evidence


_POLICY = "default-src 'none'; style-src 'unsafe-inline'"


def html_page(title: str, subtitle: str, body: str, *, styles: str = "") -> str:
    """Write a page of its own round what is HTML already; `styles` come on top of the usual."""
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f"<title>{html_text(title)}</title>\n<style>\n{_styles()}{styles}</style>\n</head>\n<body>\n<main>\n"
        f'<h1>{html_text(title)}</h1>\n<p class="sub">{html_text(subtitle)}</p>\n'
        f"{body}\n</main>\n</body>\n</html>\n"
    )


def html_text(words: str) -> str:
    """Escape text so that nothing in it is HTML, nor drives what shows it."""
    return escape(safe_text(words))


def html_prose(words: str) -> str:
    """Show a text of our own, with its code spans; names in it are escaped like the rest."""
    parts = words.split("`")
    shown = (f"<code>{html_text(p)}</code>" if n % 2 else html_text(p) for n, p in enumerate(parts))
    return "".join(shown)


def html_code(lines: str) -> str:
    """Show lines to paste."""
    shown = "\n".join(html_text(line) for line in lines.rstrip("\n").splitlines())
    return f"<pre>{shown}</pre>"


def evidence_rows(evidence: Iterable[Evidence]) -> Iterator[str]:
    """Show the numbers of a finding as rows of a table."""
    for one in evidence:
        value, meaning = html_text(evidence_value(one)), html_prose(one.meaning)
        yield f'<tr><td style="text-align:right">{value}</td><td>{meaning}</td></tr>'


def html_notes(said: Iterable[str]) -> Iterator[str]:
    """Show what a reader must know."""
    return (f"<p><i>{html_prose(note)}</i></p>" for note in said)


def _styles() -> str:
    css = resources.files(__package__ or "").joinpath("page.css").read_text(encoding="utf-8")
    dark = f"@media (prefers-color-scheme: dark) {{{_variables(DARK)}}}"
    return f"{_variables(LIGHT)}\n{dark}\n{css}"


def _variables(theme: ChartTheme) -> str:
    names = ("background", "text", "muted", "grid", "band", "mark", "quiet", "pale")
    colours = {name: getattr(theme, name) for name in names}
    colours |= {f"series-{n}": colour for n, colour in enumerate(theme.palette)}
    return f":root{{{''.join(f'--{name}:{colour};' for name, colour in colours.items())}}}"


_RIGHT = ' style="text-align:right"'
_LEFT = ' style="text-align:left"'


def to_html(result: Result, *, limit: int | None = None) -> str:
    """Write a result as HTML."""
    return "\n".join(_parts(result, limit))


def _text(text: str) -> str:
    return escape(safe_text(text))


def _parts(result: Result, limit: int | None) -> Iterator[str]:
    if isinstance(result, NotApplicable):
        yield f"<p><b>{_text(result.command)}</b>: {_text(sentence(result))}</p>"
        return
    yield f"<p><b>{_text(result.title)}</b></p>"
    if isinstance(result, Composite):
        yield from _notes(result.notes)
        yield from _facts(result)
        for section in result.sections:
            yield from _parts(section, limit)
        return
    yield from _table(result, limit)
    yield from _notes(result.notes)


def _notes(notes: Iterable[str]) -> Iterator[str]:
    return (f"<p><i>{_text(note)}</i></p>" for note in notes)


def _facts(result: Composite) -> Iterator[str]:
    yield "<table>"
    for fact in result.facts:
        value = escape(show(fact.value, fact.fmt))
        yield f"<tr><th{_LEFT}>{_text(fact.label)}</th><td{_LEFT}>{value}</td></tr>"
    yield "</table>"


def _table(result: TableResult, limit: int | None) -> Iterator[str]:
    fields = [f for f in result.fields if f.shown]
    align = [_RIGHT if f.fmt in NUMERIC else _LEFT for f in fields]
    rows = result.frame.select(f.key for f in fields)
    rows = rows.head(limit) if limit else rows
    heads = zip(fields, align, strict=True)
    cells = "".join(f'<th{a} title="{_text(f.meaning)}">{_text(f.label)}</th>' for f, a in heads)
    yield f"<table><thead><tr>{cells}</tr></thead><tbody>"
    for row in rows.iter_rows():
        values = zip(row, fields, align, strict=True)
        yield f"<tr>{''.join(f'<td{a}>{escape(show(v, f.fmt))}</td>' for v, f, a in values)}</tr>"
    yield "</tbody></table>"
    if result.frame.height > rows.height:
        yield f"<p>… and {result.frame.height - rows.height:,} more rows</p>"


MAX_TABLE_ROWS = 100
"""Rows of a table that nobody said another number for."""
MAX_NAME_CHARACTERS = 240
"""Letters of a name that a table shows."""


@dataclass(frozen=True, slots=True)
class ReportSection:
    """A part of the page."""

    key: str
    """What its address ends in."""
    title: str
    body: str
    brief: str = ""
    """What the contents call it, where that is shorter."""


def section_html(part: ReportSection) -> str:
    """Write a section under its heading."""
    return (
        f'<section id="{part.key}" aria-labelledby="{part.key}-title">'
        f'<h2 id="{part.key}-title">{html_text(part.title)}</h2>\n{part.body}\n</section>'
    )


def lead(words: str) -> str:
    """Say in a sentence what a section shows."""
    return f'<p class="lead">{html_prose(words)}</p>'


def absent(answer: NotApplicable) -> str:
    """Say why there is nothing, and what would help."""
    return f'<p class="absent">{html_prose(capitalized(sentence(answer)))}.</p>'


def report_notes(said: Iterable[str]) -> str:
    """Say what a reader must know."""
    return "".join(f'<p class="note">{html_prose(capitalized(note))}</p>' for note in said)


def capitalized(words: str) -> str:
    """Begin a sentence of ours with a capital letter; answers are written to follow a colon."""
    return f"{words[:1].upper()}{words[1:]}"


def clipped_text(words: str, most: int = MAX_NAME_CHARACTERS) -> str:
    """Escape a text and cut its middle out so that no more than `most` letters of HTML are left."""
    whole = safe_text(words[: 8 * most])
    width = most
    while True:
        shown = html_text(shorten_middle(whole, width))
        if len(shown) <= most or width <= 1:
            return shown
        width = width * most // (len(shown) + 1)


def css_color(key: str) -> str:
    """Give the colour of an entry, a category or a range as the page's styles call it."""
    return f"var(--{_slot(key)})"


def _slot(key: str) -> str:
    if key not in COLORS:
        found = color_of(key)
        if found in HOST_COLORS:
            return f"host-{HOST_COLORS.index(found)}"
        key = next(name for name, colour in COLORS.items() if colour == found)
    return key.replace("/", "-")


def css_colors() -> Iterator[tuple[str, str, str]]:
    """Give every colour by its name in the styles: on a light page, and on a dark one."""
    for key, colour in COLORS.items():
        yield _slot(key), colour.light, colour.dark
    for number, colour in enumerate(HOST_COLORS):
        yield f"host-{number}", colour.light, colour.dark


def swatch(key: str) -> str:
    """Show a colour beside what it stands for."""
    return f'<i class="swatch" style="background:{css_color(key)}"></i>'


# Tables -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class HtmlColumn:
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
) -> list[HtmlColumn]:
    """Choose columns of an answer by their keys, in this order; those it lacks are left out."""
    fields = {field.key: field for field in result.fields}
    return [
        HtmlColumn(
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


def shown_columns(result: TableResult) -> list[HtmlColumn]:
    """Give the columns that the command shows; what a row is about comes first."""
    shown = [field for field in result.fields if field.shown]
    return [
        HtmlColumn(field) for field in sorted(shown, key=lambda field: field.fmt is not Fmt.NAME)
    ]


def html_table(
    result: TableResult,
    columns: Sequence[HtmlColumn],
    *,
    limit: int = MAX_TABLE_ROWS,
    caption: str = "",
) -> str:
    """Write an answer as a table that can be sorted, and what of it was left out."""
    rows = result.frame.head(limit).iter_rows(named=True)
    body = "".join(table_row(table_cells(one, columns)) for one in rows)
    left_out = result.frame.height - min(limit, result.frame.height)
    return html_grid(table_head(columns), body, caption=caption or result.title) + more_rows(
        left_out
    )


def html_grid(heads: str, body: str, *, caption: str, kind: str = "sortable", key: str = "") -> str:
    """Write a table in a box of its own, which scrolls where the screen is too narrow."""
    label = html_text(caption)
    own = f' id="{key}"' if key else ""
    return (
        f'<div class="box" role="group" aria-label="{label}" tabindex="0">'
        f'<table{own} class="data {kind}"><caption class="unseen">{label}</caption>'
        f"<thead><tr>{heads}</tr></thead>\n<tbody>{body}</tbody></table></div>"
    )


def table_head(columns: Iterable[HtmlColumn]) -> str:
    """Write the headings."""
    return "".join(
        f'<th scope="col" class="{column.kind}" title="{html_text(column.field.meaning)}">'
        f"{html_text(column.field.label)}</th>"
        for column in columns
    )


def table_row(inside: str, **data: object) -> str:
    """Write a row; `data` is what the page's script asks of it."""
    own = "".join(f' data-{key}="{html_text(str(value))}"' for key, value in data.items())
    return f"<tr{own}>{inside}</tr>\n"


def table_cells(values: Mapping[str, Any], columns: Iterable[HtmlColumn]) -> str:
    """Write the cells of a row."""
    return "".join(table_cell(values[column.field.key], column) for column in columns)


def table_cell(value: object, column: HtmlColumn) -> str:
    """Write one cell; of numbers also the value itself, which rows are sorted by."""
    fmt = column.field.fmt
    kind = f' class="{column.kind}"' if column.kind else ""
    if fmt not in NUMERIC:
        return f"<td{kind}>{clipped_text(show(value, fmt))}</td>"
    if not isinstance(value, (int, float)):
        return f'<td class="{column.kind}">{html_text(show(value, fmt))}</td>'
    part = part_style(value / column.largest) if column.bar else ""
    return f'<td class="{column.kind}"{part} data-v="{value!r}">{html_text(show(value, fmt))}</td>'


def part_style(part: float) -> str:
    """Say how long the bar of a cell is."""
    return f' style="--part:{min(max(part, 0.0), 1.0):.4f}"'


def more_rows(left_out: int, what: str = "rows") -> str:
    """Say how many rows are not shown."""
    return f'<p class="note">… and {left_out:,} more {what}.</p>' if left_out > 0 else ""


def facts_list(result: Composite, keys: Sequence[str]) -> str:
    """Show some facts of an answer side by side; what it does not know is left out."""
    known = {fact.key: fact for fact in result.facts if fact.value is not None}
    shown = "".join(
        f'<div title="{html_text(known[key].meaning)}"><dt>{html_text(known[key].label)}</dt>'
        f"<dd>{clipped_text(show(known[key].value, known[key].fmt))}</dd></div>"
        for key in keys
        if key in known
    )
    return f'<dl class="facts">{shown}</dl>' if shown else ""
