"""Draws charts: `draw` gives the bytes of a file, `figure_of` the chart of a result.

Every chart is drawn once, as SVG. An HTML page holds that SVG; PNG and PDF are converted from it by
vl-convert, which comes with the extra `gpusight[pictures]`.
"""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from gpusight.errors import GpusightError, MissingDataError, UsageError
from gpusight.render.result_view import CHART_FORMATS

if TYPE_CHECKING:
    from gpusight.render.charts.figure import Figure, StripChart
    from gpusight.results import Answer, Composite


def draw(figure: Figure | StripChart, form: str, *, result: Answer | None = None) -> bytes:
    """Draw a picture; an HTML page also shows the result it was made from, where that is given."""
    if form == "svg":
        from gpusight.render.charts.svg_charts import to_svg

        return to_svg(figure).encode()
    if form == "html":
        from gpusight.render.charts.chart_page import chart_to_page

        return chart_to_page(figure, result).encode()
    if form in CHART_FORMATS:
        return _convert(figure, form)
    raise UsageError(f"no picture format {form!r}", hint=f"formats are {', '.join(CHART_FORMATS)}")


CONVERTER_FONT = "'Liberation Sans', sans-serif"
"""Comes with vl-convert: letters are the same on every machine, also on one without fonts."""
_PNG_SCALE = 2.0


def _convert(figure: Figure | StripChart, form: str) -> bytes:
    """Turn the light SVG into `png` or `pdf`; the same chart gives the same bytes."""
    from gpusight.render.charts.chart_frame import WIDE
    from gpusight.render.charts.figure import StripChart
    from gpusight.render.charts.svg_charts import to_svg

    svg = to_svg(figure, converter_font=CONVERTER_FONT)
    try:
        import vl_convert
    except ImportError as error:
        raise GpusightError(
            f"{form} pictures need vl-convert",
            hint="install it with: pip install 'gpusight[pictures]'; svg and html need nothing",
        ) from error
    if form == "pdf":
        return vl_convert.svg_to_pdf(svg)
    width = figure.width if isinstance(figure, StripChart) else WIDE.width
    # A narrow chart is shown as large as a wide one, and must be as sharp then.
    return vl_convert.svg_to_png(svg, scale=_PNG_SCALE * max(1.0, WIDE.width / width))


class _ChartSource(NamedTuple):
    """How an answer is drawn."""

    module: str
    """In this package, with a function of its name and `_figure`."""
    needs: str
    """Section that the picture is made of."""
    points: tuple[str, ...] = ()
    """Sections that nobody reads as tables: the points of the picture, and long lists."""
    without: str = ""
    """Why a result may lack that section, where a reason is known."""


_CHART_SOURCES = {
    "memory": _ChartSource("usage_charts", "timeline", ("timeline", "blocks")),
    "roofline": _ChartSource("kernel_charts", "roofs"),
    "occupancy": _ChartSource(
        "kernel_charts",
        "block_sizes",
        without="the launch shape of no kernel is known",
    ),
    "orion": _ChartSource("usage_charts", "series", ("series",)),
    "utilization": _ChartSource("usage_charts", "bins", ("metrics", "steps")),
    "timeline": _ChartSource("timeline_chart", "slices", ("slices", "sums", "points")),
}


def has_figure(result: Composite) -> bool:
    """Return whether an answer can be drawn."""
    drawn = _CHART_SOURCES.get(result.command)
    return drawn is not None and drawn.needs in {section.command for section in result.sections}


def figure_of(result: Composite, **options: str) -> Figure | StripChart:
    """Give the picture of an answer; raises where it has none."""
    source = _CHART_SOURCES.get(result.command)
    if source is not None and source.without and not has_figure(result):
        raise MissingDataError(source.without)
    if source is None or not has_figure(result):
        known = ", ".join(sorted({"compare", "ledger", *_CHART_SOURCES}))
        raise UsageError(f"{result.title} has no chart", hint=f"charts: {known}")
    module = importlib.import_module(f"{__package__}.{source.module}")
    figure: Figure | StripChart = getattr(module, f"{result.command}_figure")(result, **options)
    return figure


def without_points(result: Composite) -> Composite:
    """Leave out the sections that hold the points of the picture."""
    points = _CHART_SOURCES[result.command].points if result.command in _CHART_SOURCES else ()
    return replace(result, sections=tuple(s for s in result.sections if s.command not in points))


def draw_result(result: Composite, form: str, **options: str) -> bytes:
    """Draw an answer; a page has its other tables below the picture."""
    return draw(figure_of(result, **options), form, result=without_points(result))
