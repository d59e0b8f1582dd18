"""A chart as one self-contained HTML page: no network, no library, light and dark."""

from __future__ import annotations

from dataclasses import replace
from importlib import resources
from typing import TYPE_CHECKING, Any

import msgspec

from gpusight.render.cell_text import html_text, safe_text, show
from gpusight.render.charts.chart_colors import (
    DARK,
    LIGHT,
    OWN_SLOTS,
    colors_of,
    css_name,
    slots_of,
)
from gpusight.render.charts.chart_frame import NARROW, WIDE, ChartSize, size_of, totals
from gpusight.render.charts.figure import (
    BarSeries,
    DotSeries,
    LineSeries,
    StackSeries,
    StripChart,
    StripPlot,
)
from gpusight.render.charts.svg_charts import css_of, inline_svg
from gpusight.render.html.html_templates import markup, render, to_html
from gpusight.results import Composite

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpusight.render.charts.chart_colors import ChartTheme
    from gpusight.render.charts.figure import Figure, Numbers, Series
    from gpusight.results import Answer, Fmt


MAX_PAGE_ROWS = 50
"""Rows of each table that a page shows."""
_UNSAFE = str.maketrans({c: f"\\u{ord(c):04x}" for c in "<>&\u2028\u2029"})


def chart_to_page(figure: Figure | StripChart, result: Answer | None = None) -> str:
    """Write a page with a picture, and below it the result that it was made from."""
    tables = ""
    if result is not None:
        # The page's own heading names the composite.
        named = replace(result, title="Data") if isinstance(result, Composite) else result
        tables = to_html(named, limit=MAX_PAGE_ROWS)
    colors = colors_of(figure)
    light, dark = (f"{_variables(t, colors)}{css_of(t, colors)}" for t in (LIGHT, DARK))
    page = render(
        "chart_page.html",
        title=figure.title,
        subtitle=figure.subtitle,
        styles=markup(
            f"{light}\n@media (prefers-color-scheme: dark) {{{dark}}}\n{_file('page.css')}"
        ),
        chart=markup(both_sizes(figure)),
        tables=tables,
        data=markup(safe_json(pointed_data(figure))),
        script=markup(_file("page.js")),
    )
    return f"{page}\n"


def safe_json(value: object) -> str:
    """Write JSON that may stand inside a script element: nothing in it can end that element."""
    return msgspec.json.encode(value).decode().translate(_UNSAFE)


def _variables(theme: ChartTheme, colors: Iterable[str]) -> str:
    """Write a theme as what the page's own styles refer to, and as colors of its swatches."""
    names = ("background", "text", "muted", "grid")
    values = "".join(f"--{name}:{getattr(theme, name)};" for name in names)
    slots = (*OWN_SLOTS, *colors)
    swatches = "".join(f".key-{css_name(s)}{{background:{theme.color(s)}}}" for s in slots)
    return f":root{{{values}}}{swatches}"


def both_sizes(figure: Figure | StripChart) -> str:
    """Draw a picture twice, for wide screens and for narrow ones; styles show one of them."""
    bare = replace(figure, title="", subtitle="")
    label = html_text(f"{figure.title}. {figure.subtitle}")
    return "".join(
        inline_svg(bare, _size(figure, size), name=f"pic {name}", label=label)
        for name, size in (("wide", replace(WIDE, height=WIDE.height - 40)), ("narrow", NARROW))
    )


def _size(figure: Figure | StripChart, usual: ChartSize) -> ChartSize:
    """A strip chart finds its height itself."""
    return usual if isinstance(figure, StripChart) else size_of(figure, usual)


def _file(name: str) -> str:
    return resources.files(__package__ or "").joinpath(name).read_text(encoding="utf-8")


# What pointing at the picture shows ---------------------------------------------------------------


def pointed_data(figure: Figure | StripChart) -> dict[str, Any]:
    """Give the values as the tables show them, so that units are written in one place only."""
    rows = list(
        _plots(figure) if isinstance(figure, StripChart) else _rows(figure.series, figure.y.fmt)
    )
    xs: list[Numbers] = list(dict.fromkeys(x for _, x, _ in rows))
    series = [{**row, "x": xs.index(x), "values": values} for row, x, values in rows]
    labels = [show(x, figure.x.fmt) for x in xs[0]] if xs else []
    marks = [] if isinstance(figure, StripChart) else [*_marks(figure), *_dot_marks(figure)]
    return {"xs": xs, "labels": labels, "series": series, "marks": marks}


def _plots(chart: StripChart) -> Iterator[tuple[dict[str, Any], Numbers, list[str]]]:
    """Give what is shown of every plot of a strip chart, under its name."""
    for plot in chart.rows:
        if isinstance(plot, StripPlot):
            for row, x, values in _rows(plot.series, plot.y.fmt):
                name = f"{safe_text(plot.name)}: {row['name']}" if plot.name else row["name"]
                yield {**row, "name": name}, x, values


def _marks(figure: Figure) -> list[dict[str, Any]]:
    return [
        {
            "label": safe_text(mark.label),
            "rows": [[safe_text(cell) for cell in row] for row in mark.detail],
        }
        for mark in figure.marks
    ]


def _rows(
    all_series: Iterable[Series], fmt: Fmt
) -> Iterator[tuple[dict[str, Any], Numbers, list[str]]]:
    """Give what is shown: totals and lines first, then what the totals are made of."""
    all_series = tuple(all_series)
    slot = {name: css_name(slot) for name, slot in slots_of(all_series).items()}
    parts = []
    for series in all_series:
        if isinstance(series, (DotSeries, BarSeries)) or (
            isinstance(series, LineSeries) and series.label
        ):
            continue
        if not isinstance(series, StackSeries):
            yield (
                _row(series, series.name, slot[series.name]),
                series.x,
                _value_texts(series.y, fmt),
            )
            continue
        yield _row(series, series.name), series.x, _value_texts(totals(series), fmt)
        if len(series.parts) > 1:
            parts.append(series)
    for stack in parts:
        for part in reversed(stack.parts):
            row = _row(stack, part.name, slot[part.name], kind="part")
            yield {**row, "zero": show(0, fmt)}, stack.x, _value_texts(part.y, fmt)


def _dot_marks(figure: Figure) -> Iterator[dict[str, Any]]:
    """Give what pointing at a dot shows, in the order in which the picture numbers them."""
    for dots in (*figure.series, *(figure.panel.series if figure.panel is not None else ())):
        if not isinstance(dots, DotSeries) or not dots.details:
            continue
        labels = dots.labels or (dots.name,) * len(dots.x)
        for label, detail in zip(labels, dots.details, strict=True):
            rows = [[safe_text(cell) for cell in row] for row in detail]
            yield {"label": safe_text(label), "rows": rows}


def _row(
    series: StackSeries | LineSeries, name: str, slot: str = "", *, kind: str = ""
) -> dict[str, Any]:
    return {"name": safe_text(name), "slot": slot, "kind": kind, "steps": series.steps}


def _value_texts(values: Numbers, fmt: Fmt) -> list[str]:
    return [show(value, fmt) for value in values]
