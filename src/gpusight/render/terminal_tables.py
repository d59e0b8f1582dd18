"""Results as lines of text: titles, facts, tables and notes; bars where there are colors."""

from __future__ import annotations

from itertools import islice, zip_longest
from typing import TYPE_CHECKING

from gpusight.render.cell_text import display_width, pad, safe_text, shorten_middle, show
from gpusight.render.table_layout import GAP, lay_out_table, sentence
from gpusight.render.terminal_text import StyledLine, plain_lines, wrapped_lines
from gpusight.results import Answer, Composite, Fact, Fmt, TableResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusight.render.table_layout import TableOptions, TextTableLayout


_MIN_TWO_COLUMN_FACTS = 8
_FACT_BAR_WIDTH = 12
"""Room that a colored bar takes behind a share."""
_EIGHTHS = " ▏▎▍▌▋▊▉"


def to_plain(result: Answer, look: TableOptions) -> str:
    """Write a result as plain text; ends with a newline."""
    return plain_lines(result_lines(result, look))


def result_lines(result: Answer, look: TableOptions) -> Iterator[StyledLine]:
    """Give the lines of a result; with bars where `look` has them, which need colors."""
    return islice(_section_lines(result, look), 1, None)


def _section_lines(result: Answer, look: TableOptions) -> Iterator[StyledLine]:
    """Give an empty line, and the lines of a result."""
    yield StyledLine("")
    if isinstance(result, TableResult):
        yield from wrapped_lines(result.heading, look.width, "", "bold")
        yield from _table_lines(result, look)
        for note in result.notes:
            yield from wrapped_lines(note, look.width, "note: ", "dim")
    elif isinstance(result, Composite):
        yield from wrapped_lines(result.heading, look.width, "", "bold")
        # Notes come first: that data is incomplete must be read before the numbers, not after.
        for note in result.notes:
            yield from wrapped_lines(note, look.width, "note: ", "dim")
        if result.facts:
            yield StyledLine("")
            yield from _fact_lines(result.facts, look.width, bars=look.bars)
        for section in result.sections:
            if not (result.facts and isinstance(section, TableResult) and section.frame.is_empty()):
                yield from _section_lines(section, look)
    else:
        yield from wrapped_lines(sentence(result), look.width, f"{result.command}: ", "yellow")


def _fact_lines(facts: Sequence[Fact], width: int | None, *, bars: bool) -> Iterator[StyledLine]:
    """Give labels and values; many short ones in two columns, to leave room for the tables."""
    texts = []
    for fact in facts:
        value = show(fact.value, fact.fmt)
        if fact.fmt is Fmt.NAME and width is not None:
            value = shorten_middle(value, max(20, width - 24))
        is_share = fact.fmt is Fmt.SHARE and isinstance(fact.value, (int, float))
        texts.append((safe_text(fact.label), value, float(fact.value) if is_share else None))
    label_width = max(display_width(label) for label, _, _ in texts)
    if width is not None and len(texts) >= _MIN_TWO_COLUMN_FACTS:
        value_width = max(
            display_width(value) + (0 if share is None else _FACT_BAR_WIDTH + 1)
            for _, value, share in texts
        )
        if label_width + GAP + value_width < width // 2:
            middle = (len(texts) + 1) // 2
            left, right = (
                _fact_lines(half, None, bars=bars) for half in (facts[:middle], facts[middle:])
            )
            for first, second in zip_longest(left, right, fillvalue=StyledLine("")):
                space = " " * max(0, width // 2 - display_width(first.text))
                yield StyledLine.of_parts(
                    (*first.colored_parts(), (space, ""), *second.colored_parts())
                )
            return
    share_width = max((len(value) for _, value, share in texts if share is not None), default=0)
    for label, value, share in texts:
        lead = pad(label, label_width, right=False) + " " * GAP
        if bars and share is not None:
            bar = _bar(share, _FACT_BAR_WIDTH)
            yield StyledLine.of_parts(
                ((lead, "dim"), (value.rjust(share_width), "bold"), (f" {bar}", "green"))
            )
            continue
        first, *others = wrapped_lines(value, width, lead)
        yield StyledLine.of_parts(((lead, "dim"), (first.text[len(lead) :], "")))
        yield from others


def _table_lines(table: TableResult, look: TableOptions) -> Iterator[StyledLine]:
    """Give the rows to show, and what is left out."""
    frame = table.frame.head(look.limit) if look.limit else table.frame
    if not frame.height:
        yield StyledLine("no rows", "dim")
        return
    layout = lay_out_table(table.fields, frame, look)
    yield from _row_lines(layout, colored=look.bars)
    if more := table.frame.height - frame.height:
        rows = "row" if more == 1 else "rows"
        text = f"… and {more:,} more {rows} ({look.rows_advice})"
        yield from wrapped_lines(text, look.width, "", "dim")
    if layout.columns_left_out:
        text = f"no room for: {', '.join(layout.columns_left_out)} ({look.columns_advice})"
        yield from wrapped_lines(text, look.width, "", "dim")


def _row_lines(layout: TextTableLayout, *, colored: bool) -> Iterator[StyledLine]:
    with_bars = colored and layout.bar_width > 0
    barred = next((c for c in layout.columns if c.shares and with_bars), None)
    rule = "─" if colored else "-"
    gaps = [("", ""), *[(" " * layout.gap, "")] * (len(layout.columns) - 1)]
    heading: list[tuple[str, str]] = []
    under: list[tuple[str, str]] = []
    for gap, column in zip(gaps, layout.columns, strict=True):
        heading += [gap, (column.padded_heading, "bold")]
        under += [gap, (rule * column.width, "dim")]
        if column is barred:
            heading.append((" " * (layout.bar_width + 1), "dim"))
            under.append((rule * (layout.bar_width + 1), "dim"))
    yield StyledLine.of_parts(heading)
    yield StyledLine.of_parts(under)
    styles = [column.style for column in layout.columns]
    rows = zip(*(c.padded_cells() for c in layout.columns), strict=True)
    if not colored:  # reports of nsys stats may have hundreds of thousands of rows
        yield from map(StyledLine, map((" " * layout.gap).join, rows))
        return
    for row, cells in enumerate(rows):
        parts: list[tuple[str, str]] = []
        for gap, column, cell, style in zip(gaps, layout.columns, cells, styles, strict=True):
            parts += (gap, (cell, "dim" if cell.strip() == "-" else style))
            if column is barred:
                # The largest share of the table takes the whole width.
                bar = _bar(column.shares[row] / max(column.shares), layout.bar_width)
                parts.append((" " + bar.ljust(layout.bar_width), "green"))
        yield StyledLine.of_parts(parts)


def _bar(fraction: float, width: int) -> str:
    """Draw a fraction of a width in eighths of a character."""
    eighths = round(8 * width * min(1.0, max(0.0, fraction)))
    return "█" * (eighths // 8) + _EIGHTHS[eighths % 8].strip()
