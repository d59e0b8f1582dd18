"""How hotspots are written: tables, flame graphs, and files for other tools."""

from __future__ import annotations

import gzip
import json
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from gpusight.analysis.hotspots.flame_graph import flame_graph
from gpusight.errors import UsageError
from gpusight.render.cell_text import safe_text
from gpusight.render.renderer import Renderer
from gpusight.render.result_view import CHART_FORMATS
from gpusight.render.table_layout import TableOptions

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpusight.analysis.hotspots.flame_graph import FlameGraph, FlameNode
    from gpusight.analysis.hotspots.stack_times import Hotspots
    from gpusight.render.charts.figure import StripChart
    from gpusight.render.terminal_text import StyledLine
    from gpusight.results import TableResult


STACK_FORMATS = ("folded", "speedscope", "pprof")
"""What `draw` can write beyond pictures."""
_ENDINGS = {
    ".folded": "folded",
    ".speedscope": "speedscope",
    ".speedscope.json": "speedscope",
    ".pprof": "pprof",
    ".pb.gz": "pprof",
}


def stack_format(path: PurePath) -> str | None:
    """Return the format of stacks that the name of a file stands for; None for another file."""
    name = path.name.lower()
    return next((form for ending, form in _ENDINGS.items() if name.endswith(ending)), None)


def _table(hotspots: Hotspots) -> TableResult:
    return hotspots.table()


def _large_branches(hotspots: Hotspots) -> TableResult:
    return hotspots.table(with_small=False)


def _lines(hotspots: Hotspots, look: TableOptions) -> Iterable[StyledLine]:
    from gpusight.render.terminal_tables import result_lines

    return result_lines(hotspots.table(with_small=not look.limit), look)


def _document(hotspots: Hotspots) -> dict[str, Any]:
    from gpusight.render.csv_json import json_document

    return json_document(hotspots.table())


def _graph(hotspots: Hotspots) -> FlameGraph:
    return hotspots.graph if hotspots.graph is not None else flame_graph(hotspots)


def draw_hotspots(hotspots: Hotspots, form: str) -> bytes:
    """Write a flame graph as a picture or page, or the stacks behind it for another tool."""
    graph = _graph(hotspots)
    if form == "folded":
        return to_folded(graph).encode("utf-8", "replace")
    if form == "speedscope":
        name = PurePath(str(hotspots.meta["path"])).name
        return to_speedscope(graph, name).encode("utf-8", "replace")
    if form == "pprof":
        return to_pprof(graph)
    if form == "html":
        from gpusight.render.html.flame_page import flame_page

        return flame_page(graph, _large_branches(hotspots)).encode("utf-8", "replace")
    if form not in CHART_FORMATS:
        forms = ", ".join((*CHART_FORMATS, *STACK_FORMATS))
        raise UsageError(f"hotspots cannot be written as {form}", hint=f"formats: {forms}")
    from gpusight.render.charts.draw_chart import draw

    return draw(_figure(hotspots), form)


def _figure(hotspots: Hotspots) -> StripChart:
    from gpusight.render.charts.flame_chart import flame_figure

    return flame_figure(_graph(hotspots))


HOTSPOTS_RENDERER = Renderer(
    tables=_large_branches,
    rows=_table,
    lines=_lines,
    document=_document,
    long_lists=("rows",),
    figure=_figure,
    draw=draw_hotspots,
    look=TableOptions(100, 20, rows_advice="all are in .frame", columns_advice="all are in .frame"),
)


_SPEEDSCOPE_SCHEMA = "https://www.speedscope.app/file-format-schema.json"
_UNITS = {"ns": "nanoseconds", "bytes": "bytes", "count": "none"}


def to_folded(graph: FlameGraph) -> str:
    """Write a line for each stack: frames from the outermost, split by `;`, and their value."""
    lines = []
    for at, node in enumerate(graph.nodes):
        if round(node.own):
            names = [_folded_name(around) for around in graph.path(at)]
            lines.append(f"{';'.join(names)} {round(node.own)}\n")
    return "".join(lines)


def _folded_name(node: FlameNode) -> str:
    """Name a frame with the path of its file, so that a reader knows whose code it is."""
    name = node.name
    if node.file is not None and node.name.startswith(f"{node.function} ("):
        line = f":{node.line}" if node.name.endswith(f":{node.line})") else ""
        name = f"{node.function} ({node.file}{line})"
    return safe_text(name).replace(";", ":").strip() or "?"


def to_speedscope(graph: FlameGraph, name: str) -> str:
    """Write a profile for www.speedscope.app."""
    number: dict[tuple[Any, ...], int] = {}
    frames: list[dict[str, Any]] = []
    frame_of: list[int] = []
    for node in graph.nodes:
        key = (node.name, node.file, node.line)
        if key not in number:
            number[key] = len(frames)
            place = {"file": node.file, "line": node.line}
            frames.append({"name": node.name} | {k: v for k, v in place.items() if v is not None})
        frame_of.append(number[key])
    samples: list[list[int]] = []
    weights: list[int] = []
    stacks: list[list[int]] = []
    for at, node in enumerate(graph.nodes):
        around = stacks[node.parent] if node.parent >= 0 else []
        stacks.append([*around, frame_of[at]])
        if round(node.own):
            samples.append(stacks[at])
            weights.append(round(node.own))
    profile = {
        "type": "sampled",
        "name": graph.title,
        "unit": _UNITS[graph.unit],
        "startValue": 0,
        "endValue": sum(weights),
        "samples": samples,
        "weights": weights,
    }
    document = {
        "$schema": _SPEEDSCOPE_SCHEMA,
        "exporter": "gpusight",
        "name": name,
        "shared": {"frames": frames},
        "profiles": [profile],
    }
    return json.dumps(document, ensure_ascii=False)


# pprof: profile.proto -----------------------------------------------------------------------------


def to_pprof(graph: FlameGraph) -> bytes:
    """Write a gzipped profile for `go tool pprof` and what reads its format."""
    strings: dict[str, int] = {"": 0}

    def text(value: str) -> int:
        return strings.setdefault(value, len(strings))

    unit = {"ns": "nanoseconds", "bytes": "bytes", "count": "count"}[graph.unit]
    value_type = _number(1, text(graph.title)) + _number(2, text(unit))
    functions: dict[tuple[str, str | None], int] = {}
    locations: dict[tuple[int, int], int] = {}
    out = [_message(1, value_type)]
    place: list[int] = []
    for node in graph.nodes:
        known = (node.name, node.file)
        if known not in functions:
            functions[known] = len(functions) + 1
            names = _number(2, text(node.name)) + _number(3, text(node.function))
            file = _number(4, text(node.file or ""))
            out.append(_message(5, _number(1, functions[known]) + names + file))
        at = (functions[known], node.line or 0)
        if at not in locations:
            locations[at] = len(locations) + 1
            line = _message(4, _number(1, at[0]) + _number(2, at[1]))
            out.append(_message(4, _number(1, locations[at]) + line))
        place.append(locations[at])
    for last, node in enumerate(graph.nodes):
        if round(node.own):
            stack = []
            number = last
            while number >= 0:
                stack.append(place[number])
                number = graph.nodes[number].parent
            out.append(_message(2, _packed(1, stack) + _packed(2, [round(node.own)])))
    out += [_message(6, value.encode("utf-8", "replace")) for value in strings]
    # The time of writing would make two equal profiles differ.
    return gzip.compress(b"".join(out), mtime=0)


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _number(field: int, value: int) -> bytes:
    return _varint(field << 3) + _varint(value) if value else b""


def _message(field: int, content: bytes) -> bytes:
    return _varint(field << 3 | 2) + _varint(len(content)) + content


def _packed(field: int, values: Iterable[int]) -> bytes:
    return _message(field, b"".join(map(_varint, values)))
