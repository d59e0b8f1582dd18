"""Charts as PNG and PDF, through Matplotlib, which is an extra: nothing else here needs it."""

from __future__ import annotations

import io
import warnings
from typing import TYPE_CHECKING, Any

from gpusight.errors import GpusightError
from gpusight.render.cell_text import safe_text
from gpusight.render.charts.chart_colors import LIGHT, slots, text_on
from gpusight.render.charts.chart_frame import (
    PAD,
    SMALL_FONT,
    TITLE_FONT,
    WIDE,
    lay_out_figure,
    place_mark,
    size_of,
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
    from collections.abc import Callable

    from gpusight.render.charts.chart_frame import ChartFrame, ChartSize, FigureLegendEntry
    from gpusight.render.charts.chart_labels import DotLabel, PlacedBar
    from gpusight.render.charts.figure import Figure, Numbers, PointLabel
    from gpusight.render.charts.strip_chart import ChartMark, Points, StripChartMarks, TextMark


_SIZES = {"title": TITLE_FONT, "fine": FINE_FONT}
_WEIGHTS = {"title": "bold", "strong": "bold"}
_ANCHORS = {"start": "left", "middle": "center", "end": "right"}
_MATPLOTLIB_FONT_SCALE = 0.93
"""Matplotlib's letters are wider than those of most browsers."""


def draw_strip_chart(canvas: Any, painting: StripChartMarks, point: float) -> None:
    """Draw a board laid out onto a canvas of its size; `point` is a pixel in points."""
    ground = canvas.add_axes((0, 0, 1, 1), facecolor="none")
    ground.set(xlim=(0, painting.size.width), ylim=(painting.size.height, 0))
    ground.axis("off")
    pen = _Pen(ground, point)
    for number, ink in enumerate(painting.ink):
        pen.draw(ink, 1 + number / len(painting.ink))


class _Pen:
    """Draws ink, what comes later over what came before."""

    def __init__(self, ground: Any, point: float) -> None:
        self._ground = ground
        self._point = point

    def draw(self, ink: ChartMark, order: float) -> None:
        if isinstance(ink, BoxMark):
            boxes = ((ink.left, ink.top, ink.width, ink.height),)
            self._fill(tuple(map(_corners, boxes)), LIGHT.colour(ink.slot), order)
        elif isinstance(ink, BoxesMark):
            self._fill(tuple(map(_corners, ink.boxes)), LIGHT.colour(ink.slot), order)
        elif isinstance(ink, ShadeMark):
            place = (ink.left, ink.top, ink.width, ink.height)
            self._fill((_corners(place),), LIGHT.band, order)
        elif isinstance(ink, AreaMark):
            self._fill((ink.corners,), LIGHT.colour(ink.slot), order)
        elif isinstance(ink, LineMark):
            self._stroke(ink, order)
        else:
            self._write(ink, order)

    def _fill(self, outlines: tuple[Points, ...], colour: str, order: float) -> None:
        from matplotlib.collections import PolyCollection

        shapes = PolyCollection(outlines, facecolors=colour, linewidths=0, zorder=order)
        self._ground.add_collection(shapes, autolim=False)

    def _stroke(self, stroke: LineMark, order: float) -> None:
        xs, ys = zip(*stroke.points, strict=True)
        width = 1.75 if stroke.slot else 1.0
        self._ground.plot(
            xs,
            ys,
            color=LIGHT.colour(stroke.slot) if stroke.slot else LIGHT.grid,
            linestyle=(0, (6, 4)) if stroke.dashed else "-",
            linewidth=width * self._point,
            solid_joinstyle="round",
            zorder=order,
        )

    def _write(self, words: TextMark, order: float) -> None:
        colour = LIGHT.muted if words.look == "muted" else LIGHT.text
        self._ground.text(
            words.x,
            words.y,
            safe_text(words.text),
            color=text_on(LIGHT.colour(words.on)) if words.on else colour,
            ha=_ANCHORS[words.anchor],
            va="baseline",
            fontsize=_SIZES.get(words.look, SMALL_FONT) * self._point * _MATPLOTLIB_FONT_SCALE,
            fontweight=_WEIGHTS.get(words.look, "normal"),
            zorder=order,
        )


def _corners(box: tuple[float, float, float, float]) -> Points:
    left, top, width, height = box
    right, bottom = left + width, top + height
    return ((left, top), (right, top), (right, bottom), (left, bottom))


_PIXELS_PER_INCH = 100.0
_POINT = 72 / _PIXELS_PER_INCH
_DPI = 180
_SETTINGS: dict[str, Any] = {
    "text.parse_math": False,  # a dollar sign in a name is a dollar sign
    "font.family": ["DejaVu Sans"],
    "pdf.fonttype": 42,
    "path.simplify": False,
}
_METADATA: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def to_bytes(picture: Figure | StripChart, form: str) -> bytes:
    """Draw a picture as `png` or `pdf`; the same picture gives the same bytes."""
    try:
        import matplotlib as mpl
        from matplotlib.figure import Figure as Canvas
    except ImportError as error:
        raise GpusightError(
            f"{form} pictures need Matplotlib",
            hint="install it with: pip install 'gpusight[pictures]'; svg and html need nothing",
        ) from error
    out = io.BytesIO()
    size, draw = _drawing(picture)
    # A narrow picture is shown as large as a wide one, and must be as sharp then.
    dpi = _DPI * max(1.0, WIDE.width / size.width)
    inches = (size.width / _PIXELS_PER_INCH, size.height / _PIXELS_PER_INCH)
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a letter that the font lacks is drawn as a box
        mpl.rcdefaults()
        settings: Any = mpl.rcParams
        settings.update(_SETTINGS)
        canvas = Canvas(figsize=inches, facecolor=LIGHT.background)
        draw(canvas)
        canvas.savefig(out, format=form, dpi=dpi, metadata=_METADATA[form])
    return out.getvalue()


def _drawing(picture: Figure | StripChart) -> tuple[ChartSize, Callable[[Any], None]]:
    """Give the size of a picture, and what draws it onto a canvas of that size."""
    if isinstance(picture, StripChart):
        painting = lay_out_strip_chart(picture, picture.width)
        return painting.size, lambda canvas: draw_strip_chart(canvas, painting, _POINT)
    size = size_of(picture)
    frame = lay_out_figure(picture, size)
    return size, lambda canvas: _RasterFigure(canvas, frame).draw()


class _RasterFigure:
    """One figure being drawn: `axes` takes data, `ground` pixels from the top left."""

    def __init__(self, canvas: Any, frame: ChartFrame) -> None:
        self._frame = frame
        width, height = frame.size.width, frame.size.height
        sides = (
            frame.left / width,
            1 - frame.bottom / height,
            (frame.right - frame.left) / width,
            (frame.bottom - frame.top) / height,
        )
        self._axes: Any = canvas.add_axes(sides)
        self._ground: Any = canvas.add_axes((0, 0, 1, 1), zorder=5, facecolor="none")
        self._ground.set(xlim=(0, width), ylim=(height, 0))
        self._ground.axis("off")

    def draw(self) -> None:
        """Draw everything."""
        frame, figure = self._frame, self._frame.figure
        self._scales()
        self._bands()
        slot = slots(figure)
        for series in figure.series:
            if isinstance(series, StackSeries):
                self._stack(series, slot)
            elif isinstance(series, LineSeries):
                self._line(series, LIGHT.colour(slot[series.name]))
            elif isinstance(series, DotSeries):
                self._dots(series, LIGHT.colour(slot[series.name]))
        for bar in placed_bars(frame):
            self._bar(bar)
        for label in line_labels(frame):
            self._text(label.text, label.x, label.y, LIGHT.muted, angle=-label.angle, halo=True)
        for name in dot_names(frame):
            self._written(name)
        for rule in figure.rules:
            y = frame.y(rule.y)
            self._stroke([frame.left, frame.right], [y, y], LIGHT.mark, dashes=(2, 3), width=1)
            self._text(rule.label, frame.right - 4, y - 5, LIGHT.muted, anchor="right")
        for mark in figure.marks:
            self._mark(mark)
        self._head()

    def _scales(self) -> None:
        frame, axes = self._frame, self._axes
        axes.set(
            xscale="log" if frame.figure.x.log else "linear",
            yscale="log" if frame.figure.y.log else "linear",
            xlim=(frame.across.low, frame.across.high),
            ylim=(frame.up.low, frame.up.high),
            facecolor="none",
        )
        axes.axis("off")
        for tick in frame.y_ticks:
            y = frame.y(tick.value)
            if not frame.figure.y.names:
                self._axes.axhline(tick.value, color=LIGHT.grid, linewidth=_POINT, zorder=0.5)
            colour = LIGHT.text if frame.figure.y.names else LIGHT.muted
            self._text(tick.label, frame.left - 8, y + 4, colour, anchor="right")
        for tick in frame.x_ticks:
            x = frame.x(tick.value)
            if frame.has_x_grid:
                self._axes.axvline(tick.value, color=LIGHT.grid, linewidth=_POINT, zorder=0.5)
            self._stroke([x, x], [frame.bottom, frame.bottom + 5], LIGHT.grid, width=1)
            self._text(tick.label, x, frame.bottom + 19, LIGHT.muted, anchor="center")
        below = frame.bottom + 37
        self._text(frame.figure.x.label, frame.right, below, LIGHT.muted, anchor="right")
        self._text(frame.figure.y.label, PAD, frame.top - 6, LIGHT.muted)

    def _bands(self) -> None:
        for band in self._frame.figure.bands[::2]:
            self._axes.axvspan(band.start, band.end, color=LIGHT.band, linewidth=0, zorder=0)
        for text, x in self._frame.band_names:
            self._text(text, x, self._frame.top - 6, LIGHT.muted, anchor="center")

    def _stack(self, stack: StackSeries, slot: dict[str, str]) -> None:
        below: Numbers = (0.0,) * len(stack.x)
        for part in stack.parts:
            above = tuple(b + y for b, y in zip(below, part.y, strict=True))
            self._axes.fill_between(
                stack.x,
                below,
                above,
                step="post" if stack.steps else None,
                color=LIGHT.colour(slot[part.name]),
                linewidth=0,
                zorder=1,
            )
            below = above

    def _line(self, line: LineSeries, colour: str) -> None:
        self._axes.plot(
            line.x,
            line.y,
            color=colour,
            drawstyle="steps-post" if line.steps else "default",
            linestyle=(0, (6, 4)) if line.dashed else "-",
            linewidth=1.5 * _POINT,
            zorder=2,
        )

    def _dots(self, dots: DotSeries, colour: str) -> None:
        frame = self._frame
        # As in the SVG, what lies beyond an end of an axis is drawn there.
        xs = [min(max(x, frame.across.low), frame.across.high) for x in dots.x]
        ys = [min(max(y, frame.up.low), frame.up.high) for y in dots.y]
        if not dots.sizes:
            self._axes.scatter(xs, ys, color=colour, s=(9 * _POINT) ** 2, zorder=3)
            return
        areas = [(2 * size * _POINT) ** 2 for size in dots.sizes]
        self._axes.scatter(
            xs,
            ys,
            color=colour,
            s=areas,
            alpha=0.85,
            edgecolors=LIGHT.background,
            linewidths=_POINT,
            clip_on=False,
            zorder=3,
        )

    def _bar(self, bar: PlacedBar) -> None:
        alpha = FAINT if bar.faint else 1.0
        colour = LIGHT.colour(bar.slot)
        self._box(bar.left, bar.top, bar.width, bar.height, colour, alpha=alpha)
        anchor = "left" if bar.anchor == "start" else "right"
        self._text(bar.text, bar.text_at, bar.baseline, LIGHT.text, anchor=anchor, halo=True)
        if bar.joint is not None:
            x, start, end = bar.joint
            self._stroke([x, x], [start, end], LIGHT.muted, width=0.75)

    def _written(self, name: DotLabel) -> None:
        if name.leader is not None:
            x0, y0, x1, y1 = name.leader
            self._stroke([x0, x1], [y0, y1], LIGHT.muted, width=0.75)
        below = name.box.top + SMALL_FONT - 1
        self._text(name.text, name.box.left, below, LIGHT.text, halo=True)

    def _mark(self, mark: PointLabel) -> None:
        frame, spot = self._frame, place_mark(self._frame, mark)
        self._stroke([spot.x, spot.x], [spot.y, frame.bottom], LIGHT.mark, width=1, alpha=0.55)
        self._box(spot.left, spot.top, spot.width, spot.height, LIGHT.background, alpha=0.88)
        below = spot.top + spot.height - 5
        self._text(spot.text, spot.left + 5, below, LIGHT.text, weight="bold")
        self._spot(spot.x, spot.y, LIGHT.mark)

    def _head(self) -> None:
        for text, y in self._frame.title:
            self._text(text, PAD, y, LIGHT.text, size=TITLE_FONT, weight="bold")
        for text, y in (*self._frame.subtitle, *self._frame.footnotes):
            self._text(text, PAD, y, LIGHT.muted)
        for key in self._frame.keys:
            self._key(key)

    def _key(self, key: FigureLegendEntry) -> None:
        colour = LIGHT.colour(key.slot)
        if key.shape == "area":
            self._box(key.x, key.y - 9, 11, 11, colour)
        elif key.shape == "dots":
            self._spot(key.x + 5.5, key.y - 4, colour)
        else:
            dashes = (4, 2) if key.shape == "dashed" else None
            self._stroke([key.x, key.x + 13], [key.y - 4] * 2, colour, dashes=dashes, width=1.5)
        self._text(key.text, key.x + 18, key.y, LIGHT.text)

    def _text(
        self,
        text: str,
        x: float,
        y: float,
        colour: str,
        *,
        anchor: str = "left",
        size: float = SMALL_FONT,
        weight: str = "normal",
        angle: float = 0.0,
        halo: bool = False,
    ) -> None:
        # Matplotlib's letters are wider than those of most browsers.
        written = self._ground.text(
            x,
            y,
            safe_text(text),
            color=colour,
            ha=anchor,
            va="baseline",
            fontsize=size * _POINT * 0.93,
            fontweight=weight,
            rotation=angle,
            rotation_mode="anchor",
        )
        if halo:
            from matplotlib.patheffects import withStroke

            written.set_path_effects(
                [withStroke(linewidth=3 * _POINT, foreground=LIGHT.background)]
            )

    def _stroke(
        self,
        xs: list[float],
        ys: list[float],
        colour: str,
        *,
        width: float,
        dashes: tuple[float, float] | None = None,
        alpha: float = 1.0,
    ) -> None:
        style = (0, dashes) if dashes else "-"
        self._ground.plot(
            xs, ys, color=colour, linestyle=style, linewidth=width * _POINT, alpha=alpha
        )

    def _box(
        self, x: float, y: float, width: float, height: float, colour: str, *, alpha: float = 1.0
    ) -> None:
        from matplotlib.patches import Rectangle

        self._ground.add_patch(
            Rectangle((x, y), width, height, color=colour, alpha=alpha, linewidth=0, zorder=2.5)
        )

    def _spot(self, x: float, y: float, colour: str) -> None:
        self._ground.plot(
            [x],
            [y],
            marker="o",
            color=colour,
            markeredgecolor=LIGHT.background,
            markersize=9 * _POINT,
            markeredgewidth=1.5 * _POINT,
        )
