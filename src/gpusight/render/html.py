"""Results as small HTML tables for notebooks: no scripts, no styles to load, all text escaped."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from gpusight.render.blocks import sentence
from gpusight.render.cells import NUMERIC, safe_text, show
from gpusight.result import Composite, NotApplicable, Result, TableResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

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
