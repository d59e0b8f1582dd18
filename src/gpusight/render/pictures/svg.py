"""Figures as SVG, written by hand: text stays text, nothing is loaded, both themes are inside."""

from __future__ import annotations

from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

from gpusight.render.cells import safe_text
from gpusight.render.pictures.bars import FAINT, placed_bars
from gpusight.render.pictures.figure import Dots, Line, Stack
from gpusight.render.pictures.frame import PAD, SMALL, TITLE, lay_out, place_mark, size_of
from gpusight.render.pictures.labels import dot_names, line_labels, radius
from gpusight.render.pictures.theme import DARK, LIGHT, slots

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpusight.render.pictures.bars import Placed
    from gpusight.render.pictures.figure import Figure, Mark, Numbers
    from gpusight.render.pictures.frame import Frame, Key, Size
    from gpusight.render.pictures.labels import Along, Written
    from gpusight.render.pictures.theme import Theme

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', Arial, sans-serif"
_DASHES = "6 4"
_TARGET = 9.0
"""A pointer need not come nearer to the middle of a dot than this."""


def to_svg(figure: Figure) -> str:
    """Write a figure as a file of its own: light, or dark where the viewer prefers that."""
    size = size_of(figure)
    css = f"{css_of(LIGHT)}@media (prefers-color-scheme:dark){{{css_of(DARK)}}}"
    style = f"<style>{escape(css, quote=False)}</style>"
    background = '<rect class="bg" width="100%" height="100%"/>'
    label = _text(f"{figure.title}. {figure.subtitle}")
    own = f' xmlns="http://www.w3.org/2000/svg" width="{size.width:g}" height="{size.height:g}"'
    frame = lay_out(figure, size)
    body = _body(frame, pointed=False)
    return _svg(frame, "pic", label, own, style + background, body) + "\n"


def inline_svg(figure: Figure, size: Size, *, name: str, label: str) -> str:
    """Write a figure as a part of a page that has the styles; `label` says it in words."""
    frame = lay_out(figure, size)
    return _svg(frame, name, label, ' tabindex="0"', "", _body(frame, pointed=True))


def css_of(theme: Theme) -> str:
    """Write a theme as the styles of a picture's parts."""
    rules = {
        ".bg": f"fill:{theme.background}",
        ".pic text": f"fill:{theme.text};font-family:{_FONT};font-size:{SMALL:g}px",
        ".pic text.title": f"font-size:{TITLE:g}px;font-weight:600",
        ".pic text.muted": f"fill:{theme.muted}",
        ".pic text.strong": "font-weight:600",
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
    for slot in (*map(str, range(len(theme.palette))), "strong", "quiet", "pale"):
        colour = theme.colour(slot)
        rules[f".fill-{slot}"] = f"fill:{colour}"
        rules[f".line-{slot}"] = f"stroke:{colour};fill:none;stroke-width:1.75"
    return "".join(f"{name}{{{rule}}}" for name, rule in rules.items())


def _svg(frame: Frame, name: str, label: str, more: str, before: str, body: Iterable[str]) -> str:
    box = f"0 0 {frame.size.width:g} {frame.size.height:g}"
    ends = {
        "left": frame.left,
        "right": frame.right,
        "low": frame.across.low,
        "high": frame.across.high,
        "log": int(frame.across.axis.log),
    }
    data = "".join(f' data-{key}="{value!r}"' for key, value in ends.items())
    start = f'<svg class="{name}" viewBox="{box}" role="img" aria-label="{label}"{more}{data}>'
    return f"{start}{before}{''.join(body)}</svg>"


def _body(frame: Frame, *, pointed: bool) -> Iterator[str]:
    """Draw everything; `pointed` when a page's script shows what the pointer is at."""
    yield from _head(frame)
    yield from (_key(key) for key in frame.keys)
    yield from _bands(frame)
    yield from _axes(frame)
    slot = slots(frame.figure)
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
    yield _tag("line", "cursor", x1=0, x2=0, y1=frame.top, y2=frame.bottom, visibility="hidden")
    yield from (_mark(frame, mark, number) for number, mark in enumerate(frame.figure.marks))
    if pointed:
        yield from _targets(frame)


def _head(frame: Frame) -> Iterator[str]:
    yield from (_label(text, PAD, y, "title") for text, y in frame.title)
    yield from (_label(text, PAD, y, "muted") for text, y in frame.subtitle)
    yield from (_label(text, PAD, y, "muted") for text, y in frame.footnotes)


def _key(key: Key) -> str:
    x, y = key.x, key.y
    if key.shape == "area":
        swatch = _tag("rect", f"fill-{key.slot}", x=x, y=y - 9, width=11, height=11, rx=2)
    elif key.shape == "dots":
        swatch = _tag("circle", f"fill-{key.slot}", cx=x + 5.5, cy=y - 4, r=4)
    else:
        swatch = _path(f"M{x:.1f} {y - 4:.1f}h13", f"line-{key.slot}", dashed=key.shape == "dashed")
    return swatch + _label(key.text, x + 18, y)


def _bands(frame: Frame) -> Iterator[str]:
    """Shade every other band, so that neighbours are told apart, and name those with room."""
    for number, band in enumerate(frame.figure.bands):
        start, end = frame.x(band.start), frame.x(band.end)
        if number % 2 == 0 and end - start > 0.2:
            yield _tag(
                "rect", "band", x=start, y=frame.top, width=end - start,
                height=frame.bottom - frame.top,
            )  # fmt: skip
    for text, x in frame.band_names:
        yield _label(text, x, frame.top - 6, "muted", "middle")


def _axes(frame: Frame) -> Iterator[str]:
    for tick in frame.y_ticks:
        y = frame.y(tick.value)
        if not frame.figure.y.names:
            yield _path(f"M{frame.left:.1f} {y:.1f}H{frame.right:.1f}", "grid")
        yield _label(
            tick.label, frame.left - 8, y + 4, "" if frame.figure.y.names else "muted", "end"
        )
    for tick in frame.x_ticks:
        x = frame.x(tick.value)
        top = frame.top if frame.has_x_grid else frame.bottom
        yield _path(f"M{x:.1f} {top:.1f}V{frame.bottom + 5:.1f}", "grid")
        yield _label(tick.label, x, frame.bottom + 19, "muted", "middle")
    yield _label(frame.figure.x.label, frame.right, frame.bottom + 37, "muted", "end")
    yield _label(frame.figure.y.label, PAD, frame.top - 6, "muted")


def _stack(frame: Frame, stack: Stack, slot: dict[str, str]) -> Iterator[str]:
    below: Numbers = (0.0,) * len(stack.x)
    for part in stack.parts:
        above = tuple(b + y for b, y in zip(below, part.y, strict=True))
        ground = _corners(frame, stack.x, below, steps=stack.steps)
        outline = [*_corners(frame, stack.x, above, steps=stack.steps), *reversed(ground)]
        yield _path(_moves(outline) + "Z", f"fill-{slot[part.name]}")
        below = above


def _line(frame: Frame, line: Line, slot: str) -> str:
    corners = _corners(frame, line.x, line.y, steps=line.steps)
    return _path(_moves(corners), f"line-{slot}", dashed=line.dashed)


def _dots(frame: Frame, dots: Dots, slot: str, *, titled: bool) -> Iterator[str]:
    labels = dots.labels or (dots.name,) * len(dots.x)
    kind = f"fill-{slot} dot" if dots.sizes else f"fill-{slot}"
    for number, (x, y, label) in enumerate(zip(dots.x, dots.y, labels, strict=True)):
        detail = dots.details[number] if dots.details else ()
        lines = (label, *(f"{name}: {value}" for name, value in detail))
        title = f"<title>{chr(10).join(map(_text, lines))}</title>"
        inner = title if titled or not dots.details else ""
        rim = radius(dots, number)
        yield _tag("circle", kind, inner, cx=frame.x(x), cy=frame.y(y), r=rim)


def _bar(bar: Placed) -> str:
    title = f"<title>{_text(bar.title)}</title>" if bar.title else ""
    kind = f"fill-{bar.slot} faint" if bar.faint else f"fill-{bar.slot}"
    body = _tag(
        "rect", kind, title, x=bar.left, y=bar.top, width=bar.width, height=bar.height, rx=2
    )
    text = _label(bar.text, bar.text_at, bar.baseline, "halo", bar.anchor) if bar.text else ""
    if bar.joint is None:
        return body + text
    x, start, end = bar.joint
    return body + text + _path(f"M{x:.1f} {start:.1f}V{end:.1f}", "leader")


def _along(label: Along) -> str:
    place = f'transform="translate({label.x:.1f} {label.y:.1f}) rotate({label.angle:.2f})"'
    return f'<text class="muted halo" {place}>{_text(label.text)}</text>'


def _written(name: Written) -> str:
    leader = ""
    if name.leader is not None:
        x0, y0, x1, y1 = name.leader
        leader = _path(f"M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}", "leader")
    return leader + _label(name.text, name.box.left, name.box.top + SMALL - 1, "halo")


def _targets(frame: Frame) -> Iterator[str]:
    """Lay over dots with details what the pointer finds them by; numbers follow the marks'."""
    number = len(frame.figure.marks)
    for dots in frame.figure.series:
        if not isinstance(dots, Dots) or not dots.details:
            continue
        for at, (x, y) in enumerate(zip(dots.x, dots.y, strict=True)):
            rim = max(radius(dots, at) + 2, _TARGET)
            yield _tag("circle", "target", cx=frame.x(x), cy=frame.y(y), r=rim, data_mark=number)
            number += 1


def _rules(frame: Frame) -> Iterator[str]:
    for rule in frame.figure.rules:
        y = frame.y(rule.y)
        yield _path(f"M{frame.left:.1f} {y:.1f}H{frame.right:.1f}", "rule")
        yield _label(rule.label, frame.right - 4, y - 5, "muted", "end")


def _mark(frame: Frame, mark: Mark, number: int) -> str:
    spot = place_mark(frame, mark)
    plate = _tag(
        "rect", "plate", x=spot.left, y=spot.top, width=spot.width, height=spot.height, rx=3
    )
    return (
        _path(f"M{spot.x:.1f} {spot.y:.1f}V{frame.bottom:.1f}", "drop")
        + plate
        + _label(spot.text, spot.left + 5, spot.top + spot.height - 5, "strong")
        + _tag("circle", "mark", cx=spot.x, cy=spot.y, r=4.5)
        + _tag("circle", "target", cx=spot.x, cy=spot.y, r=16, data_mark=number)
    )


def _corners(frame: Frame, xs: Numbers, ys: Numbers, *, steps: bool) -> list[tuple[float, float]]:
    points = [(round(frame.x(x), 1), round(frame.y(y), 1)) for x, y in zip(xs, ys, strict=True)]
    if not steps:
        return points
    turned = points[:1]
    for (_, before), (x, y) in pairwise(points):
        turned += [(x, before), (x, y)]
    return turned


def _moves(corners: Iterable[tuple[float, float]]) -> str:
    """Write corners as path commands, the shortest that say it."""
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


def _path(moves: str, name: str, *, dashed: bool = False) -> str:
    dashes = f' stroke-dasharray="{_DASHES}"' if dashed else ""
    return f'<path class="{name}" d="{moves}"{dashes}/>'


def _tag(kind: str, name: str, inner: str = "", **attributes: float | str) -> str:
    words = "".join(
        f' {key.replace("_", "-")}="{value if isinstance(value, str) else f"{value:.6g}"}"'
        for key, value in attributes.items()
    )
    return f'<{kind} class="{name}"{words}>{inner}</{kind}>'


def _label(text: str, x: float, y: float, name: str = "", anchor: str = "start") -> str:
    kind = f' class="{name}"' if name else ""
    place = f' text-anchor="{anchor}"' if anchor != "start" else ""
    return f'<text x="{x:.1f}" y="{y:.1f}"{kind}{place}>{_text(text)}</text>'


def _text(text: str) -> str:
    return escape(safe_text(text))
