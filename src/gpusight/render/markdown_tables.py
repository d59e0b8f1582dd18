"""Results as GitHub-flavored Markdown, to paste into an issue or a pull request."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpusight.render.cell_text import NUMERIC, safe_text, show
from gpusight.render.table_layout import full_name_fields, indented, sentence
from gpusight.results import Answer, Composite, Field, Fmt, NotApplicable, TableResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence


_INDENT = "&emsp;"
_SPECIAL = re.compile(r"([\\`*_\[\]<>|#~&])")


def to_markdown(result: Answer, *, limit: int | None = None, full_names: bool = False) -> str:
    """Write a result as Markdown; ends with a newline."""
    return "\n".join(_lines(result, limit, "##", full_names=full_names)) + "\n"


def markdown_table(
    headings: Sequence[str], numeric: Sequence[bool], rows: Iterable[Sequence[str]]
) -> str:
    """Write a table from cells that are already Markdown."""
    lines = [_row(headings), _row("---:" if n else "---" for n in numeric)]
    lines += [_row(r) for r in rows]
    return "\n".join(lines)


def escape_markdown(text: str) -> str:
    """Escape text so that nothing in it is Markdown, HTML or the end of a cell."""
    return _SPECIAL.sub(r"\\\1", safe_text(text))


def markdown_code(text: str, *, cell: bool = True) -> str:
    """Write a name as a code span, which keeps `<…>` and `_` as they are; in a table or not."""
    text = safe_text(text)
    if cell and "\\|" in text:
        # A table has no spelling for backslash and pipe inside a code span.
        return escape_markdown(text)
    longest = max(map(len, re.findall("`+", text)), default=0)
    fence = "`" * (longest + 1)
    inner = f" {text} " if "`" in text or not text.strip() else text
    return fence + (inner.replace("|", "\\|") if cell else inner) + fence


def markdown_prose(text: str, *, cell: bool = True) -> str:
    """Keep the code spans of a text of our own and escape the rest of it."""
    parts = enumerate(text.split("`"))
    return "".join(
        markdown_code(p, cell=cell) if index % 2 else escape_markdown(p) for index, p in parts
    )


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _lines(
    result: Answer, limit: int | None, level: str, *, full_names: bool = False
) -> Iterator[str]:
    if isinstance(result, NotApplicable):
        yield f"**{result.command}**: {escape_markdown(sentence(result))}"
        return
    yield from (f"{level} {escape_markdown(result.heading)}", "")
    if isinstance(result, Composite):
        yield from (f"> {escape_markdown(n)}  " for n in result.notes)
        rows = [(escape_markdown(f.label), _cell(f.value, f.fmt)) for f in result.facts]
        yield from ("", markdown_table(("", ""), (False, False), rows))
        for section in result.sections:
            yield ""
            yield from _lines(section, limit, level + "#", full_names=full_names)
        return
    yield from _table(result, limit, full_names=full_names)
    for note in result.notes:
        yield from ("", f"> {escape_markdown(note)}")


def _table(result: TableResult, limit: int | None, *, full_names: bool) -> Iterator[str]:
    declared = full_name_fields(result.fields) if full_names else result.fields
    fields: list[Field] = [f for f in declared if f.shown]
    frame = result.frame
    rows = frame.head(limit) if limit else frame
    columns = [indented((_cell(v, f.fmt) for v in rows[f.key]), f, rows, _INDENT) for f in fields]
    yield markdown_table(
        [escape_markdown(f.label) for f in fields],
        [f.fmt in NUMERIC for f in fields],
        zip(*columns, strict=True),
    )
    if frame.height > rows.height:
        yield from ("", f"… and {frame.height - rows.height:,} more rows")


def _cell(value: object, fmt: Fmt) -> str:
    if fmt is Fmt.NAME and isinstance(value, str):
        return markdown_code(value)
    return escape_markdown(show(value, fmt))
