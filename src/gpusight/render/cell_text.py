"""One value as text.

Formatted, cut to width, and safe to print whatever the capture holds.
"""

from __future__ import annotations

import unicodedata
from html import escape
from os.path import commonprefix
from typing import TYPE_CHECKING, Any

from gpusight import units
from gpusight.results import Fmt

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


ELLIPSIS = "…"

_FORMATS: dict[Fmt, Callable[[float | None], str]] = {
    Fmt.COUNT: units.format_count,
    Fmt.TIME: units.format_time,
    Fmt.BYTES: units.format_bytes,
    Fmt.SHARE: units.format_share,
    Fmt.RATE: units.format_rate,
    Fmt.REAL: units.format_real,
}
NUMERIC = frozenset(_FORMATS)
"""Formats whose cells are numbers: right-aligned and never shortened."""


def safe_text(text: str) -> str:
    r"""Make every character visible: escapes, control and bidi characters become `\x1b`, `\u202e`.

    Names come from captures that others made; printed raw, they could drive the terminal, reorder
    what is read, or break a row into two.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else _escaped(c) for c in text)


def safe_lines(text: str) -> str:
    """Make every character visible but the ends of lines."""
    return "\n".join(safe_text(line) for line in text.split("\n"))


def html_text(text: str) -> str:
    """Escape a text so that nothing in it is HTML or SVG, nor drives what shows it."""
    return escape(safe_text(text))


def _escaped(char: str) -> str:
    return char.encode("unicode_escape").decode("ascii")


def show(value: Any, fmt: Fmt) -> str:
    """Return a value as text; unknown values are a dash."""
    if value is None:
        return units.MISSING
    if isinstance(value, (int, float)) and not isinstance(value, bool) and fmt in _FORMATS:
        return _FORMATS[fmt](value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(show(item, fmt) for item in value)
    return safe_text(str(value))


def display_width(text: str) -> int:
    """Count the terminal columns of a text: East Asian wide characters take two, marks none."""
    if text.isascii():
        return len(text)
    return sum(_char_width(c) for c in text)


def _char_width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def shorten_middle(text: str, width: int) -> str:
    """Cut the middle out of a text that is too wide: both ends of a kernel name identify it."""
    if display_width(text) <= width:
        return text
    if width <= 1:
        return ELLIPSIS[:width]
    head = _take(text, width // 2)
    tail = _take(text[::-1], width - 1 - display_width(head))[::-1]
    return head + ELLIPSIS + tail


def shorten_distinct(texts: Sequence[str], width: int) -> list[str]:
    """Cut the middle out of texts that are too wide; what different ones differ in stays."""
    cut = [shorten_middle(text, width) for text in texts]
    originals: dict[str, set[str]] = {}
    for text, short in zip(texts, cut, strict=True):
        originals.setdefault(short, set()).add(text)
    for short, group in originals.items():
        if len(group) > 1:
            start = len(commonprefix([*group]))  # noqa: RUF071, letters are wanted
            end = len(commonprefix([text[start:][::-1] for text in group]))  # noqa: RUF071
            known = {text: _around(text, start, len(text) - end, width) for text in group}
            cut = [known.get(t, c) if c == short else c for t, c in zip(texts, cut, strict=True)]
    return cut


def _around(text: str, start: int, end: int, width: int) -> str:
    """Show a part of a text, and as much of both ends as there is room for."""
    part = text[start:end]
    room = width - display_width(part) - 2 * len(ELLIPSIS)
    if room < 0:
        return shorten_middle(part, width)
    first = min(room - room // 2, start)
    last = min(room - first, len(text) - end)
    head = text[:first] + (ELLIPSIS if first < start else "")
    tail = (ELLIPSIS if last < len(text) - end else "") + text[len(text) - last :]
    return shorten_middle(head + part + tail, width)


def shorten_end(text: str, width: int) -> str:
    """Cut the end off a text that is too wide."""
    if display_width(text) <= width:
        return text
    return _take(text, max(0, width - 1)).rstrip() + ELLIPSIS[: max(0, width)]


def _take(text: str, width: int) -> str:
    """Take characters from the left while they fit."""
    if text.isascii():
        return text[:width]
    used = 0
    for index, char in enumerate(text):
        used += _char_width(char)
        if used > width:
            return text[:index]
    return text


def pad(text: str, width: int, *, right: bool) -> str:
    """Fill a cell with spaces; `right` aligns to the right edge."""
    fill = " " * max(0, width - display_width(text))
    return fill + text if right else text + fill


def align_units(cells: list[str]) -> list[str]:
    """Pad units to one width, so that right-aligned numbers line up: `1.2 s ` over `832 ns`."""
    unit_width = max((len(c) - c.rindex(" ") - 1 for c in cells if " " in c), default=0)
    aligned = []
    for cell in cells:
        number, space, unit = cell.rpartition(" ")
        aligned.append(number + space + unit.ljust(unit_width) if space else cell)
    return aligned
