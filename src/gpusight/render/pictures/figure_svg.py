"""Figures as SVG: the plot with its axes, legend and everything in it."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from gpusight.render.pictures.bars import placed_bars
from gpusight.render.pictures.figure import Dots, Line, Stack
from gpusight.render.pictures.frame import PAD, SMALL, place_mark
from gpusight.render.pictures.labels import dot_names, line_labels, radius
from gpusight.render.pictures.svg_parts import escaped, moves_of, path_tag, tag, text_tag
from gpusight.render.pictures.theme import css_name, slots

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.render.pictures.bars import Placed
    from gpusight.render.pictures.figure import Mark, Numbers
    from gpusight.render.pictures.frame import Frame, Key
    from gpusight.render.pictures.labels import Along, Written

_TARGET = 9.0
"""A pointer need not come nearer to the middle of a dot than this."""


def figure_body(frame: Frame, *, pointed: bool) -> Iterator[str]:
    """Draw everything; `pointed` when a page's script shows what the pointer is at."""
    yield from _head(frame)
    yield from (_key(key) for key in frame.keys)
    yield from _bands(frame)
    yield from _axes(frame)
    slot = {name: css_name(slot) for name, slot in slots(frame.figure).items()}
    for series in frame.figure.series:
        if isinstance(series, Stack):
            yield from _stack(frame, series, slot)
        elif isinstance(series, Line):
            yield _line(frame, series, slot[series.name])
        elif isinstance(series, Dots):
            yield from _dots(frame, series, slot[series.name], titled=not pointed)
    yield from map(_bar, placed_bars(frame))
    yield from map(_along, line_labels(frame))
    yield from map(_written, dot_names(frame))
    yield from _rules(frame)
    yield tag("line", "cursor", x1=0, x2=0, y1=frame.top, y2=frame.bottom, visibility="hidden")
    yield from (_mark(frame, mark, number) for number, mark in enumerate(frame.figure.marks))
    if pointed:
        yield from _targets(frame)


def _head(frame: Frame) -> Iterator[str]:
    yield from (text_tag(text, PAD, y, "title") for text, y in frame.title)
    yield from (text_tag(text, PAD, y, "muted") for text, y in frame.subtitle)
    yield from (text_tag(text, PAD, y, "muted") for text, y in frame.footnotes)


def _key(key: Key) -> str:
    x, y, slot = key.x, key.y, css_name(key.slot)
    if key.shape == "area":
        swatch = tag("rect", f"fill-{slot}", x=x, y=y - 9, width=11, height=11, rx=2)
    elif key.shape == "dots":
        swatch = tag("circle", f"fill-{slot}", cx=x + 5.5, cy=y - 4, r=4)
    else:
        stroke = f"M{x:.1f} {y - 4:.1f}h13"
        swatch = path_tag(stroke, f"line-{slot}", dashed=key.shape == "dashed")
    return swatch + text_tag(key.text, x + 18, y)


def _bands(frame: Frame) -> Iterator[str]:
    """Shade every other band, so that neighbours are told apart, and name those with room."""
    for number, band in enumerate(frame.figure.bands):
        start, end = frame.x(band.start), frame.x(band.end)
        if number % 2 == 0 and end - start > 0.2:
            yield tag(
                "rect", "band", x=start, y=frame.top, width=end - start,
                height=frame.bottom - frame.top,
            )  # fmt: skip
    for text, x in frame.band_names:
        yield text_tag(text, x, frame.top - 6, "muted", "middle")


def _axes(frame: Frame) -> Iterator[str]:
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
    yield text_tag(frame.figure.y.label, PAD, frame.top - 6, "muted")


def _stack(frame: Frame, stack: Stack, slot: dict[str, str]) -> Iterator[str]:
    below: Numbers = (0.0,) * len(stack.x)
    for part in stack.parts:
        above = tuple(b + y for b, y in zip(below, part.y, strict=True))
        ground = _corners(frame, stack.x, below, steps=stack.steps)
        outline = [*_corners(frame, stack.x, above, steps=stack.steps), *reversed(ground)]
        yield path_tag(moves_of(outline) + "Z", f"fill-{slot[part.name]}")
        below = above


def _line(frame: Frame, line: Line, slot: str) -> str:
    corners = _corners(frame, line.x, line.y, steps=line.steps)
    return path_tag(moves_of(corners), f"line-{slot}", dashed=line.dashed)


def _dots(frame: Frame, dots: Dots, slot: str, *, titled: bool) -> Iterator[str]:
    labels = dots.labels or (dots.name,) * len(dots.x)
    kind = f"fill-{slot} dot" if dots.sizes else f"fill-{slot}"
    for number, (x, y, label) in enumerate(zip(dots.x, dots.y, labels, strict=True)):
        detail = dots.details[number] if dots.details else ()
        lines = (label, *(f"{name}: {value}" for name, value in detail))
        title = f"<title>{chr(10).join(map(escaped, lines))}</title>"
        inner = title if titled or not dots.details else ""
        rim = radius(dots, number)
        yield tag("circle", kind, inner, cx=frame.x(x), cy=frame.y(y), r=rim)


def _bar(bar: Placed) -> str:
    title = f"<title>{escaped(bar.title)}</title>" if bar.title else ""
    kind = f"fill-{bar.slot} faint" if bar.faint else f"fill-{bar.slot}"
    body = tag("rect", kind, title, x=bar.left, y=bar.top, width=bar.width, height=bar.height, rx=2)
    text = text_tag(bar.text, bar.text_at, bar.baseline, "halo", bar.anchor) if bar.text else ""
    if bar.joint is None:
        return body + text
    x, start, end = bar.joint
    return body + text + path_tag(f"M{x:.1f} {start:.1f}V{end:.1f}", "leader")


def _along(label: Along) -> str:
    place = f'transform="translate({label.x:.1f} {label.y:.1f}) rotate({label.angle:.2f})"'
    return f'<text class="muted halo" {place}>{escaped(label.text)}</text>'


def _written(name: Written) -> str:
    leader = ""
    if name.leader is not None:
        x0, y0, x1, y1 = name.leader
        leader = path_tag(f"M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}", "leader")
    return leader + text_tag(name.text, name.box.left, name.box.top + SMALL - 1, "halo")


def _targets(frame: Frame) -> Iterator[str]:
    """Lay over dots with details what the pointer finds them by; numbers follow the marks'."""
    number = len(frame.figure.marks)
    for dots in frame.figure.series:
        if not isinstance(dots, Dots) or not dots.details:
            continue
        for at, (x, y) in enumerate(zip(dots.x, dots.y, strict=True)):
            rim = max(radius(dots, at) + 2, _TARGET)
            yield tag("circle", "target", cx=frame.x(x), cy=frame.y(y), r=rim, data_mark=number)
            number += 1


def _rules(frame: Frame) -> Iterator[str]:
    for rule in frame.figure.rules:
        y = frame.y(rule.y)
        yield path_tag(f"M{frame.left:.1f} {y:.1f}H{frame.right:.1f}", "rule")
        yield text_tag(rule.label, frame.right - 4, y - 5, "muted", "end")


def _mark(frame: Frame, mark: Mark, number: int) -> str:
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


def _corners(frame: Frame, xs: Numbers, ys: Numbers, *, steps: bool) -> list[tuple[float, float]]:
    points = [(round(frame.x(x), 1), round(frame.y(y), 1)) for x, y in zip(xs, ys, strict=True)]
    if not steps:
        return points
    turned = points[:1]
    for (_, before), (x, y) in pairwise(points):
        turned += [(x, before), (x, y)]
    return turned
