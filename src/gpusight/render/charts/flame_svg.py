"""A flame graph as a picture: an icicle, the outermost frames on top; width is the value."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.render.cell_text import html_text
from gpusight.render.charts.chart_colors import DARK, HOST_COLORS, LIGHT, color_of
from gpusight.units import format_bytes, format_count, format_share, format_time

if TYPE_CHECKING:
    from gpusight.analysis.hotspots.flame_graph import FlameGraph, FlameNode
    from gpusight.render.charts.chart_colors import ChartTheme


WIDTH = 1200
_PAD, _TOP, _ROW, _LETTER = 16, 64, 20, 6.6
_MIN_WIDTH = 0.4
_MAX_ROWS = 120
_MIN_LETTERS = 3
_FONT = "system-ui,'Segoe UI','Liberation Sans',Arial,sans-serif"
_MORE, _LESS = "idle/synchronizing", "compute/matmul"
"""Colors of what takes longer than in the other capture, and of what takes less."""


def format_value(value: float, unit: str) -> str:
    """Write a value of a flame graph."""
    if unit == "ns":
        return format_time(value)
    return format_bytes(value) if unit == "bytes" else format_count(round(value))


def flame_svg(graph: FlameGraph, *, font: str = "") -> str:
    """Draw it; with `font` for a converter, which has that font and one theme only."""
    total = max(graph.total, max((n.before or 0.0 for n in graph.nodes if n.parent < 0), default=0))
    boxes, rows = _boxes(graph, total)
    height = _TOP + rows * _ROW + _PAD
    css = _css(LIGHT, font or _FONT)
    if not font:
        css += f"@media (prefers-color-scheme:dark){{{_css(DARK, _FONT)}}}"
    words = [format_value(graph.total, graph.unit), graph.window]
    words += [f"compared with {graph.versus}: red grew, blue shrank"] if graph.versus else []
    subtitle = " · ".join(word for word in words if word)
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="flames" width="{WIDTH}" '
        f'height="{height}" viewBox="0 0 {WIDTH} {height}" role="img" '
        f'aria-label="{html_text(graph.title)}">'
        f'<style>{css}</style><rect class="bg" width="100%" height="100%"/>'
        f'<text class="title" x="{_PAD}" y="28">{html_text(graph.title)}</text>'
        f'<text class="muted" x="{_PAD}" y="48">{html_text(subtitle)}</text>'
        f"{''.join(boxes)}</svg>\n"
    )


def _boxes(graph: FlameGraph, total: float) -> tuple[list[str], int]:
    scale = (WIDTH - 2 * _PAD) / total if total else 0.0
    inside: dict[int, list[int]] = {}
    for at, node in enumerate(graph.nodes):
        inside.setdefault(node.parent, []).append(at)
    boxes: list[str] = []
    deepest = 0
    todo = [(-1, 0, float(_PAD))]
    while todo:
        parent, row, x = todo.pop()
        for at in sorted(inside.get(parent, []), key=lambda n: (-graph.nodes[n].value, n)):
            node = graph.nodes[at]
            width = node.value * scale
            if width < _MIN_WIDTH or row >= _MAX_ROWS:
                continue
            boxes.append(_box(graph, node, x, _TOP + row * _ROW, width))
            deepest = max(deepest, row + 1)
            todo.append((at, row + 1, x))
            x += width
    return boxes, deepest


def _box(graph: FlameGraph, node: FlameNode, x: float, y: float, width: float) -> str:
    share = format_share(node.value / graph.total) if graph.total else ""
    words = f"{node.name}: {format_value(node.value, graph.unit)}, {share}"
    if node.before is not None:
        words += f"; before {format_value(node.before, graph.unit)}"
    if node.file is not None:
        words += f"; {node.file}" + (f":{node.line}" if node.line is not None else "")
    letters = int((width - 8) / _LETTER)
    text = ""
    if letters >= _MIN_LETTERS:
        name = node.name if len(node.name) <= letters else f"{node.name[: letters - 1]}…"
        shown = html_text(name)
        text = f'<text x="{x + 4:.1f}" y="{y + 14}">{shown}</text>'
    return (
        f'<g><title>{html_text(words)}</title><rect class="{_style(graph, node)}" x="{x:.1f}" '
        f'y="{y}" width="{max(width - 0.5, 0.3):.1f}" height="{_ROW - 1}" rx="2"/>{text}</g>'
    )


def _style(graph: FlameGraph, node: FlameNode) -> str:
    if graph.versus:
        before = node.before or 0.0
        change = (node.value - before) / max(node.value, before, 1e-9)
        strength = min(3, round(abs(change) * 3))
        return "same" if not strength else f"{'more' if change > 0 else 'less'}{strength}"
    slot = sum(map(ord, node.name)) % len(HOST_COLORS)
    return f"lib h{slot}" if node.is_library else f"own h{slot}"


def _css(theme: ChartTheme, font: str) -> str:
    rules = {
        ".bg": f"fill:{theme.background}",
        ".flames text": f"fill:{theme.text};font-family:{font};font-size:12px",
        ".flames text.title": "font-size:17px;font-weight:600",
        ".flames text.muted": f"fill:{theme.muted};font-size:13px",
        ".own": "fill-opacity:.55",
        ".lib": "fill-opacity:.22",
        ".same": f"fill:{theme.quiet};fill-opacity:.3",
    }
    rules |= {
        f".h{number}": f"fill:{theme.color(f'host/{number}')}" for number in range(len(HOST_COLORS))
    }
    for name, key in (("more", _MORE), ("less", _LESS)):
        color = color_of(key).dark if theme.is_dark else color_of(key).light
        rules |= {
            f".{name}{level}": f"fill:{color};fill-opacity:{0.2 * level:.1f}" for level in (1, 2, 3)
        }
    return "".join(f"{selector}{{{style}}}" for selector, style in rules.items())
