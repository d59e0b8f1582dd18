"""A figure as one HTML page that needs nothing else: no network, no library, light and dark.

The picture is inline SVG, in two sizes for wide and narrow screens. Pointing at it shows the values
there. Names reach the page escaped in markup, or as JSON that cannot end its element; the script
only sets them as text, and the page's policy runs no other script.
"""

from __future__ import annotations

import base64
import hashlib
from dataclasses import replace
from html import escape
from importlib import resources
from typing import TYPE_CHECKING, Any

import msgspec

from gpusight.render.cells import safe_text, show
from gpusight.render.html import to_html
from gpusight.render.pictures.figure import Bars, Dots, Line, Stack
from gpusight.render.pictures.frame import NARROW, WIDE, size_of, totals
from gpusight.render.pictures.svg import css_of, inline_svg
from gpusight.render.pictures.theme import DARK, LIGHT, slots
from gpusight.result import Composite

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.render.pictures.figure import Figure, Numbers
    from gpusight.render.pictures.theme import Theme
    from gpusight.result import Result

ROWS = 50
"""Rows of each table that a page shows."""
_UNSAFE = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


def to_page(figure: Figure, result: Result | None = None) -> str:
    """Write a page with a picture, and below it the result that it was made from."""
    script = _file("page.js")
    title = escape(safe_text(figure.title))
    report = f'<section class="report">{_report(result)}</section>' if result else ""
    return (
        "<!DOCTYPE html>\n"
        '<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_policy(script)}">\n'
        f"<title>{title}</title>\n<style>\n{_styles()}</style>\n</head>\n<body>\n<main>\n"
        f'<h1>{title}</h1>\n<p class="sub">{escape(safe_text(figure.subtitle))}</p>\n'
        f'<figure class="picture">{_pictures(figure)}<div class="tip" hidden></div></figure>\n'
        f"{report}\n</main>\n"
        f'<script type="application/json" id="figure-data">{safe_json(_data(figure))}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )


def _report(result: Result) -> str:
    # The page's own heading says what a composite is about.
    named = replace(result, title="In numbers") if isinstance(result, Composite) else result
    return to_html(named, limit=ROWS)


def safe_json(value: object) -> str:
    """Write JSON that may stand inside a script element: nothing in it can end that element."""
    return msgspec.json.encode(value).decode().translate(_UNSAFE)


def _policy(script: str) -> str:
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"


def _styles() -> str:
    dark = f"{_variables(DARK)}{css_of(DARK)}"
    return (
        f"{_variables(LIGHT)}{css_of(LIGHT)}\n"
        f"@media (prefers-color-scheme: dark) {{{dark}}}\n{_file('page.css')}"
    )


def _variables(theme: Theme) -> str:
    """Write a theme as what the page's own styles refer to, and as colours of its swatches."""
    names = ("background", "text", "muted", "grid")
    values = "".join(f"--{name}:{getattr(theme, name)};" for name in names)
    slot_names = (*map(str, range(len(theme.palette))), "strong", "quiet", "pale")
    swatches = "".join(f".key-{s}{{background:{theme.colour(s)}}}" for s in slot_names)
    return f":root{{{values}}}{swatches}"


def _pictures(figure: Figure) -> str:
    bare = replace(figure, title="", subtitle="")
    label = escape(safe_text(f"{figure.title}. {figure.subtitle}"))
    return "".join(
        inline_svg(bare, size_of(figure, size), name=f"pic {name}", label=label)
        for name, size in (("wide", replace(WIDE, height=WIDE.height - 40)), ("narrow", NARROW))
    )


def _file(name: str) -> str:
    return resources.files(__package__ or "").joinpath(name).read_text(encoding="utf-8")


# What pointing at the picture shows ---------------------------------------------------------------


def _data(figure: Figure) -> dict[str, Any]:
    """Give the values as the tables show them, so that units are written in one place only."""
    rows = list(_rows(figure))
    xs: list[Numbers] = list(dict.fromkeys(x for _, x, _ in rows))
    series = [{**row, "x": xs.index(x), "values": _shown(figure, y)} for row, x, y in rows]
    marks = [
        {
            "x": mark.x,
            "label": safe_text(mark.label),
            "rows": [[safe_text(cell) for cell in row] for row in mark.detail],
        }
        for mark in figure.marks
    ]
    marks += list(_dot_marks(figure))
    labels = [show(x, figure.x.fmt) for x in xs[0]] if xs else []
    return {"xs": xs, "labels": labels, "series": series, "marks": marks}


def _rows(figure: Figure) -> Iterator[tuple[dict[str, Any], Numbers, Numbers]]:
    """Give what is shown: totals and lines first, then what the totals are made of."""
    slot = slots(figure)
    parts = []
    for series in figure.series:
        if isinstance(series, (Dots, Bars)) or (isinstance(series, Line) and series.label):
            continue
        if not isinstance(series, Stack):
            yield _row(series, series.name, slot[series.name]), series.x, series.y
            continue
        yield _row(series, series.name), series.x, totals(series)
        if len(series.parts) > 1:
            parts.append(series)
    for stack in parts:
        for part in reversed(stack.parts):
            row = _row(stack, part.name, slot[part.name], kind="part")
            yield {**row, "zero": show(0, figure.y.fmt)}, stack.x, part.y


def _dot_marks(figure: Figure) -> Iterator[dict[str, Any]]:
    """Give what pointing at a dot shows, in the order in which the picture numbers them."""
    for dots in figure.series:
        if not isinstance(dots, Dots) or not dots.details:
            continue
        labels = dots.labels or (dots.name,) * len(dots.x)
        for x, label, detail in zip(dots.x, labels, dots.details, strict=True):
            rows = [[safe_text(cell) for cell in row] for row in detail]
            yield {"x": x, "label": safe_text(label), "rows": rows}


def _row(series: Stack | Line, name: str, slot: str = "", *, kind: str = "") -> dict[str, Any]:
    return {"name": safe_text(name), "slot": slot, "kind": kind, "steps": series.steps}


def _shown(figure: Figure, values: Numbers) -> list[str]:
    return [show(value, figure.y.fmt) for value in values]
