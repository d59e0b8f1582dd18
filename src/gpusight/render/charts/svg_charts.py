"""Charts as SVG: text stays text, nothing is loaded, both themes are inside."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING

from gpusight.render.cell_text import html_text
from gpusight.render.charts.chart_colors import (
    DARK,
    LIGHT,
    OWN_SLOTS,
    colors_of,
    css_name,
    slots,
    text_on,
)
from gpusight.render.charts.chart_frame import (
    PAD,
    SMALL_FONT,
    TITLE_FONT,
    ChartSize,
    lay_out_figure,
    place_mark,
    size_of,
    stepped,
)
from gpusight.render.charts.chart_labels import FAINT, dot_names, line_labels, placed_bars
from gpusight.render.charts.figure import DotSeries, LineSeries, StackSeries, StripChart
from gpusight.render.charts.strip_chart import (
    FINE_FONT,
    AreaMark,
    BoxesMark,
    BoxMark,
    LineMark,
    ShadeMark,
    lay_out_strip_chart,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpusight.render.charts.chart_colors import ChartTheme
    from gpusight.render.charts.chart_frame import ChartFrame, FigureLegendEntry
    from gpusight.render.charts.chart_labels import DotLabel, LineLabel, PlacedBar
    from gpusight.render.charts.figure import Figure, Numbers, PointLabel
    from gpusight.render.charts.strip_chart import ChartMark, StripChartMarks


_DASHES = "6 4"


def moves_of(corners: Iterable[tuple[float, float]]) -> str:
    """Write corners as path commands, the shortest form."""
    out: list[str] = []
    at: tuple[float, float] | None = None
    for corner in corners:
        if corner == at:
            continue
        x, y = corner
        if at is None:
            out.append(f"M{x:g} {y:g}")
        elif x == at[0]:
            out.append(f"V{y:g}")
        elif y == at[1]:
            out.append(f"H{x:g}")
        else:
            out.append(f"L{x:g} {y:g}")
        at = corner
    return "".join(out)


def path_tag(moves: str, name: str, *, dashed: bool = False) -> str:
    """Write a path; `name` is its style."""
    dashes = f' stroke-dasharray="{_DASHES}"' if dashed else ""
    return f'<path class="{name}" d="{moves}"{dashes}/>'


def tag(kind: str, name: str, inner: str = "", **attributes: float | str) -> str:
    """Write any element; `inner` is markup already."""
    words = "".join(
        f' {key.replace("_", "-")}="{value if isinstance(value, str) else f"{value:.6g}"}"'
        for key, value in attributes.items()
    )
    return f'<{kind} class="{name}"{words}>{inner}</{kind}>'


def text_tag(text: str, x: float, y: float, name: str = "", anchor: str = "start") -> str:
    """Write a text on one line."""
    kind = f' class="{name}"' if name else ""
    place = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{kind}{place}>{html_text(text)}</text>'


_TARGET = 9.0
"""A pointer need not come nearer to the middle of a dot than this."""


def figure_body(frame: ChartFrame, *, pointed: bool) -> Iterator[str]:
    """Draw everything; `pointed` when a page's script shows what the pointer is at."""
    yield from (text_tag(text, PAD, y, "title") for text, y in frame.title)
    yield from (text_tag(text, PAD, y, "muted") for text, y in frame.subtitle)
    yield from (text_tag(text, PAD, y, "muted") for text, y in frame.footnotes)
    yield from (_key(key) for key in frame.keys)
    for plot in frame.plots:
        yield from _plot(plot, pointed=pointed)
    yield tag("line", "cursor", x1=0, x2=0, y1=frame.top, y2=frame.bottom, visibility="hidden")
    yield from (_mark(frame, mark, number) for number, mark in enumerate(frame.figure.marks))
    if pointed:
        yield from _targets(frame.plots, len(frame.figure.marks))


def _plot(frame: ChartFrame, *, pointed: bool) -> Iterator[str]:
    for number, band in enumerate(frame.figure.bands):
        start, end = frame.x(band.start), frame.x(band.end)
        if number % 2 == 0 and end - start > 0.2:
            yield tag(
                "rect", "band", x=start, y=frame.top, width=end - start,
                height=frame.bottom - frame.top,
            )  # fmt: skip
    for text, x in frame.band_names:
        yield text_tag(text, x, frame.top - 6, "muted", "middle")
    yield from _axes(frame)
    slot = {name: css_name(slot) for name, slot in slots(frame.figure).items()}
    for series in frame.figure.series:
        if isinstance(series, StackSeries):
            below: Numbers = (0.0,) * len(series.x)
            for part in series.parts:
                above = tuple(b + y for b, y in zip(below, part.y, strict=True))
                ground = _corners(frame, series.x, below, steps=series.steps)
                outline = [*_corners(frame, series.x, above, steps=series.steps), *reversed(ground)]
                yield path_tag(moves_of(outline) + "Z", f"fill-{slot[part.name]}")
                below = above
        elif isinstance(series, LineSeries):
            corners = _corners(frame, series.x, series.y, steps=series.steps)
            yield path_tag(moves_of(corners), f"line-{slot[series.name]}", dashed=series.dashed)
        elif isinstance(series, DotSeries):
            yield from _dots(frame, series, slot[series.name], titled=not pointed)
    yield from map(_bar, placed_bars(frame))
    yield from map(_along, line_labels(frame))
    yield from map(_dot_label, dot_names(frame))
    yield from _rules(frame)


def _key(key: FigureLegendEntry) -> str:
    x, y, slot = key.x, key.y, css_name(key.slot)
    if key.shape == "area":
        swatch = tag("rect", f"fill-{slot}", x=x, y=y - 9, width=11, height=11, rx=2)
    elif key.shape == "dots":
        swatch = tag("circle", f"fill-{slot}", cx=x + 5.5, cy=y - 4, r=4)
    else:
        stroke = f"M{x:.1f} {y - 4:.1f}h13"
        swatch = path_tag(stroke, f"line-{slot}", dashed=key.shape == "dashed")
    return swatch + text_tag(key.text, x + 18, y)


def _axes(frame: ChartFrame) -> Iterator[str]:
    for tick in frame.y_ticks:
        y = frame.y(tick.value)
        if not frame.figure.y.names:
            yield path_tag(f"M{frame.left:.1f} {y:.1f}H{frame.right:.1f}", "grid")
        yield text_tag(
            tick.label, frame.left - 8, y + 4, "" if frame.figure.y.names else "muted", "end"
        )
    for tick in frame.x_ticks:
        x = frame.x(tick.value)
        top = frame.top if frame.has_x_grid else frame.bottom
        yield path_tag(f"M{x:.1f} {top:.1f}V{frame.bottom + 5:.1f}", "grid")
        yield text_tag(tick.label, x, frame.bottom + 19, "muted", "middle")
    yield text_tag(frame.figure.x.label, frame.right, frame.bottom + 37, "muted", "end")
    yield text_tag(frame.figure.y.label, frame.start, frame.top - 6, "muted")


def _dots(frame: ChartFrame, dots: DotSeries, slot: str, *, titled: bool) -> Iterator[str]:
    labels = dots.labels or (dots.name,) * len(dots.x)
    kind = f"fill-{slot} dot" if dots.sizes else f"fill-{slot}"
    for number, (x, y, label) in enumerate(zip(dots.x, dots.y, labels, strict=True)):
        detail = dots.details[number] if dots.details else ()
        lines = (label, *(f"{name}: {value}" for name, value in detail))
        title = f"<title>{chr(10).join(map(html_text, lines))}</title>"
        inner = title if titled or not dots.details else ""
        rim = dots.radius(number)
        yield tag("circle", kind, inner, cx=frame.x(x), cy=frame.y(y), r=rim)


def _bar(bar: PlacedBar) -> str:
    title = f"<title>{html_text(bar.title)}</title>" if bar.title else ""
    kind = f"fill-{bar.slot} faint" if bar.faint else f"fill-{bar.slot}"
    body = tag("rect", kind, title, x=bar.left, y=bar.top, width=bar.width, height=bar.height, rx=2)
    text = text_tag(bar.text, bar.text_at, bar.baseline, "halo", bar.anchor) if bar.text else ""
    if bar.joint is None:
        return body + text
    x, start, end = bar.joint
    return body + text + path_tag(f"M{x:.1f} {start:.1f}V{end:.1f}", "leader")


def _along(label: LineLabel) -> str:
    place = f'transform="translate({label.x:.1f} {label.y:.1f}) rotate({label.angle:.2f})"'
    return f'<text class="muted halo" {place}>{html_text(label.text)}</text>'


_ANCHORS = {"start": 0.0, "middle": 0.5, "end": 1.0}


def _dot_label(name: DotLabel) -> str:
    leader = ""
    if name.leader is not None:
        x0, y0, x1, y1 = name.leader
        leader = path_tag(f"M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}", "leader")
    x = name.box.left + name.box.width * _ANCHORS[name.anchor]
    return leader + text_tag(name.text, x, name.box.top + SMALL_FONT - 1, "halo", name.anchor)


def _targets(plots: Iterable[ChartFrame], number: int) -> Iterator[str]:
    """Lay over dots with details what the pointer finds them by; numbers follow the marks'."""
    detailed = (
        (frame, dots)
        for frame in plots
        for dots in frame.figure.series
        if isinstance(dots, DotSeries) and dots.details
    )
    for frame, dots in detailed:
        for at, (x, y) in enumerate(zip(dots.x, dots.y, strict=True)):
            rim = max(dots.radius(at) + 2, _TARGET)
            yield tag("circle", "target", cx=frame.x(x), cy=frame.y(y), r=rim, data_mark=number)
            number += 1


def _rules(frame: ChartFrame) -> Iterator[str]:
    for rule in frame.figure.rules:
        y = frame.y(rule.y)
        yield path_tag(f"M{frame.left:.1f} {y:.1f}H{frame.right:.1f}", "rule")
        yield text_tag(rule.label, frame.right - 4, y - 5, "muted", "end")


def _mark(frame: ChartFrame, mark: PointLabel, number: int) -> str:
    spot = place_mark(frame, mark)
    plate = tag(
        "rect", "plate", x=spot.left, y=spot.top, width=spot.width, height=spot.height, rx=3
    )
    return (
        path_tag(f"M{spot.x:.1f} {spot.y:.1f}V{frame.bottom:.1f}", "drop")
        + plate
        + text_tag(spot.text, spot.left + 5, spot.top + spot.height - 5, "strong")
        + tag("circle", "mark", cx=spot.x, cy=spot.y, r=4.5)
        + tag("circle", "target", cx=spot.x, cy=spot.y, r=16, data_mark=number)
    )


def _corners(
    frame: ChartFrame, xs: Numbers, ys: Numbers, *, steps: bool
) -> list[tuple[float, float]]:
    points = [(round(frame.x(x), 1), round(frame.y(y), 1)) for x, y in zip(xs, ys, strict=True)]
    return stepped(points) if steps else points


_ROUND = 20.0
"""Boxes of at least so many pixels have round corners."""


def strip_chart_body(strip_chart: StripChartMarks) -> Iterator[str]:
    """Write the marks of a strip chart, and the line that follows the pointer."""
    yield from map(_element, strip_chart.marks)
    yield tag(
        "line", "cursor", x1=0, x2=0, y1=strip_chart.top, y2=strip_chart.bottom, visibility="hidden"
    )


def _element(mark: ChartMark) -> str:
    if isinstance(mark, BoxMark):
        title = f"<title>{html_text(mark.title)}</title>" if mark.title else ""
        place = {"x": mark.left, "y": mark.top, "width": mark.width, "height": mark.height}
        shape = place | ({"rx": 2.0} if mark.width >= _ROUND and mark.height >= _ROUND else {})
        return tag("rect", f"fill-{css_name(mark.slot)}", title, **shape)
    if isinstance(mark, BoxesMark):
        return path_tag(
            "".join(_rectangle(*box) for box in mark.boxes), f"fill-{css_name(mark.slot)}"
        )
    if isinstance(mark, ShadeMark):
        return tag("rect", "band", x=mark.left, y=mark.top, width=mark.width, height=mark.height)
    if isinstance(mark, AreaMark):
        return path_tag(moves_of(_round_points(mark.corners)) + "Z", f"fill-{css_name(mark.slot)}")
    if isinstance(mark, LineMark):
        kind = f"line-{css_name(mark.slot)}" if mark.slot else "grid"
        return path_tag(moves_of(_round_points(mark.points)), kind, dashed=mark.dashed)
    look = f"fine on-{css_name(mark.on)}" if mark.on else mark.look
    return text_tag(mark.text, mark.x, mark.y, look, mark.anchor)


def _rectangle(left: float, top: float, width: float, height: float) -> str:
    wide, tall = (f"{round(length, 1):g}" for length in (width, height))
    return f"M{round(left, 1):g} {round(top, 1):g}h{wide}v{tall}h-{wide}z"


def _round_points(points: tuple[tuple[float, float], ...]) -> Iterator[tuple[float, float]]:
    return ((round(x, 1), round(y, 1)) for x, y in points)


_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', Arial, sans-serif"


def to_svg(picture: Figure | StripChart, *, converter_font: str = "") -> str:
    """Write a picture as a file of its own: light, or dark where the viewer prefers that.

    With `converter_font`, texts have that font and only the light theme is there.
    """
    size = ChartSize(picture.width, 0) if isinstance(picture, StripChart) else size_of(picture)
    drawn = _svg_drawing(picture, size, pointed=False)
    colors = colors_of(picture)
    css = css_of(LIGHT, colors, converter_font or _FONT)
    if not converter_font:
        css += f"@media (prefers-color-scheme:dark){{{css_of(DARK, colors)}}}"
    style = f"<style>{escape(css, quote=False)}</style>"
    background = '<rect class="bg" width="100%" height="100%"/>'
    label = html_text(f"{picture.title}. {picture.subtitle}")
    wide, tall = drawn.size.width, drawn.size.height
    own = f' xmlns="http://www.w3.org/2000/svg" width="{wide:g}" height="{tall:g}"'
    return drawn.svg("pic", label, own, style + background) + "\n"


def inline_svg(picture: Figure | StripChart, size: ChartSize, *, name: str, label: str) -> str:
    """Write a picture as a part of a page that has the styles; `label` names it for screen readers.

    A strip chart takes its width from `size`, and the height that it then needs.
    """
    return _svg_drawing(picture, size, pointed=True).svg(name, label, ' tabindex="0"', "")


def css_of(theme: ChartTheme, colors: Iterable[str] = (), font: str = _FONT) -> str:
    """Write a theme as the styles of a picture's parts; `colors` are keys of the palette."""
    rules = {
        ".bg": f"fill:{theme.background}",
        ".pic text": f"fill:{theme.text};font-family:{font};font-size:{SMALL_FONT:g}px",
        ".pic text.title": f"font-size:{TITLE_FONT:g}px;font-weight:600",
        ".pic text.muted": f"fill:{theme.muted}",
        ".pic text.strong": "font-weight:600",
        ".pic text.fine": f"font-size:{FINE_FONT:g}px",
        ".plate": f"fill:{theme.background};fill-opacity:.88",
        ".grid": f"stroke:{theme.grid};stroke-width:1;fill:none",
        ".band": f"fill:{theme.band}",
        ".rule": f"stroke:{theme.mark};stroke-width:1;stroke-dasharray:2 3",
        ".mark": f"fill:{theme.mark};stroke:{theme.background};stroke-width:1.5",
        ".drop": f"stroke:{theme.mark};stroke-width:1;stroke-opacity:.55",
        ".cursor": f"stroke:{theme.muted};stroke-width:1",
        ".target": "fill:transparent",
        ".dot": f"fill-opacity:.85;stroke:{theme.background};stroke-width:1",
        ".faint": f"fill-opacity:{FAINT}",
        ".leader": f"stroke:{theme.muted};stroke-width:.75;fill:none",
        ".pic text.halo": f"paint-order:stroke;stroke:{theme.background};stroke-width:3px;"
        "stroke-linejoin:round",
    }
    for slot in (*OWN_SLOTS, *colors):
        color, name = theme.color(slot), css_name(slot)
        rules[f".fill-{name}"] = f"fill:{color}"
        rules[f".line-{name}"] = f"stroke:{color};fill:none;stroke-width:1.75"
        if slot not in OWN_SLOTS:
            rules[f".pic text.on-{name}"] = f"fill:{text_on(color)}"
    return "".join(f"{name}{{{rule}}}" for name, rule in rules.items())


@dataclass(frozen=True, slots=True)
class _SvgDrawing:
    """A picture laid out and written, but for the element around it."""

    size: ChartSize
    ends: dict[str, float]
    """Where its axis of x begins and ends, in pixels and in values: for the page's script."""
    body: str

    def svg(self, name: str, label: str, more: str, before: str) -> str:
        box = f"0 0 {self.size.width:g} {self.size.height:g}"
        data = "".join(f' data-{key}="{value!r}"' for key, value in self.ends.items())
        start = f'<svg class="{name}" viewBox="{box}" role="img" aria-label="{label}"{more}{data}>'
        return f"{start}{before}{self.body}</svg>"


def _svg_drawing(picture: Figure | StripChart, size: ChartSize, *, pointed: bool) -> _SvgDrawing:
    if isinstance(picture, StripChart):
        laid = lay_out_strip_chart(picture, size.width)
        ends = {"left": laid.left, "right": laid.right, "low": laid.low, "high": laid.high}
        return _SvgDrawing(laid.size, {**ends, "log": 0}, "".join(strip_chart_body(laid)))
    frame = lay_out_figure(picture, size)
    low, high = frame.across.low, frame.across.high
    ends = {"left": frame.left, "right": frame.right, "low": low, "high": high}
    log = int(frame.across.axis.log)
    return _SvgDrawing(size, {**ends, "log": log}, "".join(figure_body(frame, pointed=pointed)))
