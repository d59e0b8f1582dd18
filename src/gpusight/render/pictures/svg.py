"""Figures as SVG, written by hand: text stays text, nothing is loaded, both themes are inside."""

from __future__ import annotations

from html import escape
from itertools import pairwise
from typing import TYPE_CHECKING

from gpusight.render.cells import safe_text
from gpusight.render.pictures.figure import Dots, Line, Stack
from gpusight.render.pictures.frame import PAD, SMALL, TITLE, WIDE, Size, lay_out, place_mark
from gpusight.render.pictures.theme import DARK, LIGHT, slots

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpusight.render.pictures.figure import Figure, Mark, Numbers
    from gpusight.render.pictures.frame import Frame, Key
    from gpusight.render.pictures.theme import Theme

_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', Arial, sans-serif"
_DASHES = "6 4"


def to_svg(figure: Figure, size: Size = WIDE) -> str:
    """Write a figure as a file of its own: light, or dark where the viewer prefers that."""
    css = f"{css_of(LIGHT)}@media (prefers-color-scheme:dark){{{css_of(DARK)}}}"
    style = f"<style>{escape(css, quote=False)}</style>"
    background = '<rect class="bg" width="100%" height="100%"/>'
    label = _text(f"{figure.title}. {figure.subtitle}")
    own = f' xmlns="http://www.w3.org/2000/svg" width="{size.width:g}" height="{size.height:g}"'
    return _svg(lay_out(figure, size), "pic", label, own, style + background) + "\n"


def inline_svg(figure: Figure, size: Size, *, name: str, label: str) -> str:
    """Write a figure as a part of a page that has the styles; `label` says it in words."""
    return _svg(lay_out(figure, size), name, label, ' tabindex="0"', "")


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
    }
    for slot in (*map(str, range(len(theme.palette))), "strong", "quiet", "pale"):
        colour = theme.colour(slot)
        rules[f".fill-{slot}"] = f"fill:{colour}"
        rules[f".line-{slot}"] = f"stroke:{colour};fill:none;stroke-width:1.75"
    return "".join(f"{name}{{{rule}}}" for name, rule in rules.items())


def _svg(frame: Frame, name: str, label: str, more: str, before: str) -> str:
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
    return f"{start}{before}{''.join(_body(frame))}</svg>"


def _body(frame: Frame) -> Iterator[str]:
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
        else:
            yield from _dots(frame, series, slot[series.name])
    yield from _rules(frame)
    yield _tag("line", "cursor", x1=0, x2=0, y1=frame.top, y2=frame.bottom, visibility="hidden")
    yield from (_mark(frame, mark, number) for number, mark in enumerate(frame.figure.marks))


def _head(frame: Frame) -> Iterator[str]:
    yield from (_label(text, PAD, y, "title") for text, y in frame.title)
    yield from (_label(text, PAD, y, "muted") for text, y in frame.subtitle)


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
        yield _path(f"M{frame.left:.1f} {y:.1f}H{frame.right:.1f}", "grid")
        yield _label(tick.label, frame.left - 8, y + 4, "muted", "end")
    for tick in frame.x_ticks:
        x = frame.x(tick.value)
        yield _path(f"M{x:.1f} {frame.bottom:.1f}v5", "grid")
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


def _dots(frame: Frame, dots: Dots, slot: str) -> Iterator[str]:
    labels = dots.labels or (dots.name,) * len(dots.x)
    for x, y, label in zip(dots.x, dots.y, labels, strict=True):
        inner = f"<title>{_text(label)}</title>"
        yield _tag("circle", f"fill-{slot}", inner, cx=frame.x(x), cy=frame.y(y), r=4.5)


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
