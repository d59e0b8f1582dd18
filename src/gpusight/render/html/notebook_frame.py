"""A page in a notebook: an inline frame that loads nothing and cannot reach the notebook."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from gpusight.render.cell_text import html_text
from gpusight.render.result_view import HotspotsView
from gpusight.results import Composite
from gpusight.units import format_bytes

if TYPE_CHECKING:
    from gpusight.render.charts.figure import Figure, StripChart
    from gpusight.render.result_view import Result

PAGE_HEIGHT = 600
MAX_PAGE_BYTES = 4_000_000
"""Of a page in a notebook, whose file keeps it."""
_HEAD_HEIGHT = 80
"""Of a chart's page above and below its picture."""
_MAX_CHART_HEIGHT = 760


class NotebookPage:
    """A page that a notebook shows; elsewhere only its name is printed."""

    def __init__(self, page: str, title: str, height: int) -> None:
        self.page, self.title, self.height = page, title, height

    def __repr__(self) -> str:
        """Name it."""
        size = format_bytes(len(self.page.encode("utf-8", "replace")))
        return f"<page {self.title!r}, {size}: notebooks show it, .save('x.html') writes it>"

    def _repr_html_(self) -> str:
        return frame(self.page, self.title, self.height)


def frame(page: str, title: str, height: int) -> str:
    """Write the frame: scripts of the page run, without access to anything but themselves."""
    size = len(page.encode("utf-8", "replace"))
    if size > MAX_PAGE_BYTES:
        return (
            f"<p>The page has {format_bytes(size)}: save it with <code>.save('x.html')</code></p>"
        )
    return (
        f'<iframe srcdoc="{escape(page)}" title="{html_text(title)}" sandbox="allow-scripts" '
        f'width="100%" height="{height}" style="border:0" loading="lazy"></iframe>'
    )


def chart_in_notebook(view: Result) -> str:
    """Write the frame of a result's picture, without its tables; empty where it has none."""
    from gpusight.render.charts.chart_page import chart_to_page
    from gpusight.render.charts.draw_chart import has_figure

    if isinstance(view.answer, Composite) and not has_figure(view.answer):
        return ""
    if isinstance(view, HotspotsView):
        return frame(view.draw("html").decode(), view.title, PAGE_HEIGHT)
    figure = view.figure
    return frame(chart_to_page(figure), view.title, _chart_height(figure))


def _chart_height(figure: Figure | StripChart) -> int:
    from gpusight.render.charts.chart_frame import WIDE, size_of
    from gpusight.render.charts.figure import StripChart
    from gpusight.render.charts.strip_chart import lay_out_strip_chart

    if isinstance(figure, StripChart):
        size = lay_out_strip_chart(figure, WIDE.width).size
    else:
        size = size_of(figure)
    return min(_MAX_CHART_HEIGHT, round(size.height) + _HEAD_HEIGHT)
