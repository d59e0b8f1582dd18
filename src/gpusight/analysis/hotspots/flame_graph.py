"""Time, launches or memory as a tree of frames: what a flame graph shows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from gpusight.analysis.hotspots.stack_times import MEASURES
from gpusight.errors import UsageError

if TYPE_CHECKING:
    from gpusight.analysis.hotspots.stack_times import Hotspots


@dataclass(frozen=True)
class FlameNode:
    """A frame within others, with everything below it."""

    name: str
    parent: int
    """Position of the node around it; -1 at the top."""
    value: float
    own: float
    """Its part that no node below it has."""
    is_library: bool
    before: float | None = None
    """The value in the capture that it is compared with."""
    file: str | None = None
    line: int | None = None
    function: str = ""


@dataclass(frozen=True)
class FlameGraph:
    """A tree of frames; parents come before their children."""

    title: str
    window: str
    unit: str
    """`ns`, `count` or `bytes`."""
    nodes: tuple[FlameNode, ...]
    versus: str = ""
    """What it is compared with, in words."""

    @property
    def total(self) -> float:
        """The sum of all."""
        return sum(node.value for node in self.nodes if node.parent < 0)

    @property
    def gone(self) -> list[FlameNode]:
        """The frames that only the other capture has, without those inside them; largest first."""
        gone = [node for node in self.nodes if node.before and not node.value]
        outer = [n for n in gone if n.parent < 0 or self.nodes[n.parent].value]
        return sorted(outer, key=lambda node: -(node.before or 0.0))

    def path(self, at: int) -> list[FlameNode]:
        """Return a node and those around it, the outermost first."""
        path = []
        while at >= 0:
            path.append(self.nodes[at])
            at = self.nodes[at].parent
        return path[::-1]


def flame_graph(hotspots: Hotspots) -> FlameGraph:
    """Make the flame graph of a result: of what it is of, by what it is by."""
    title, unit = MEASURES[hotspots.of]
    tree = hotspots.times.stacks.tree
    values = hotspots.times.by_node(hotspots.of).tolist()
    frames = tree.frames.to_dicts()
    numbers: dict[tuple[int, str], int] = {}
    nodes: list[dict[str, Any]] = []
    place: list[int] = []

    def enter(parent: int, label: str, frame: dict[str, Any]) -> int:
        if (parent, label) not in numbers:
            numbers[parent, label] = len(nodes)
            nodes.append(
                {
                    "name": label,
                    "parent": parent,
                    "value": 0,
                    "own": 0,
                    "is_library": frame["is_library"],
                    "file": frame["file"],
                    "line": frame["line"],
                    "function": frame["function"] or label,
                }
            )
        return numbers[parent, label]

    for node in range(len(tree)):
        frame = frames[tree.frame[node]]
        around = place[tree.parent[node]] if tree.parent[node] >= 0 else -1
        label = _label(frame, hotspots.by)
        same = hotspots.by in {"module", "package"} and around >= 0
        if not label or (same and nodes[around]["name"] == label):
            place.append(around)
        else:
            place.append(enter(around, label, frame))
    nowhere = hotspots.nowhere
    nothing = {"is_library": True, "file": None, "line": None, "function": nowhere}
    for node, own in enumerate(values):
        if own:
            at = place[node] if node < len(place) and place[node] >= 0 else -1
            at = enter(-1, nowhere, nothing) if at < 0 else at
            nodes[at]["own"] += own
            nodes[at]["value"] += own
    for at in range(len(nodes) - 1, -1, -1):
        if nodes[at]["parent"] >= 0:
            nodes[nodes[at]["parent"]]["value"] += nodes[at]["value"]
    kept = _without_empty([FlameNode(**node) for node in nodes])
    if not kept:
        hint = f"show something else with --of: {', '.join(MEASURES)}"
        raise UsageError(f"the capture has nothing to show of: {title.lower()}", hint=hint)
    return FlameGraph(title, hotspots.window, unit, kept)


def _label(frame: dict[str, Any], by: str) -> str:
    """Name a frame; what has the same name within the same node is one."""
    if by == "module":
        return frame["module"] or ""
    if by == "package":
        return (frame["module"] or "").partition(".")[0] if frame["file"] else frame["module"] or ""
    function = frame["function"] or "?"
    if frame["file"] is None:
        return f"{function} [{frame['module']}]" if frame["module"] else function
    name = frame["file"].rpartition("/")[2]
    line = f":{frame['line']}" if frame["line"] is not None and by == "line" else ""
    return f"{function} ({name}{line})"


def _without_empty(nodes: list[FlameNode]) -> tuple[FlameNode, ...]:
    places: dict[int, int] = {-1: -1}
    kept: list[FlameNode] = []
    for at, node in enumerate(nodes):
        if node.value > 0 or node.before:
            places[at] = len(kept)
            kept.append(replace(node, parent=places[node.parent]))
    return tuple(kept)


def compare_flames(
    new: FlameGraph, old: FlameGraph, new_steps: int, old_steps: int, versus: str
) -> FlameGraph:
    """Put two flame graphs over each other; per step where both captures have steps."""
    per_step = bool(new_steps and old_steps)
    scales = (1 / new_steps, 1 / old_steps) if per_step else (1.0, 1.0)
    numbers: dict[tuple[int, str], int] = {}
    merged: list[dict[str, Any]] = []
    for graph, scale, key in ((new, scales[0], "value"), (old, scales[1], "before")):
        place: list[int] = []
        for node in graph.nodes:
            parent = place[node.parent] if node.parent >= 0 else -1
            at = numbers.setdefault((parent, node.name), len(merged))
            if at == len(merged):
                merged.append(
                    {"node": node, "parent": parent, "value": 0.0, "own": 0.0, "before": 0.0}
                )
            merged[at][key] += node.value * scale
            merged[at]["own"] += node.own * scale if key == "value" else 0.0
            place.append(at)
    nodes = [
        replace(m["node"], parent=m["parent"], value=m["value"], own=m["own"], before=m["before"])
        for m in merged
    ]
    window = "per step" if per_step else new.window
    return FlameGraph(new.title, window, new.unit, tuple(nodes), versus)


def compared_hotspots(new: Hotspots, old: Hotspots) -> Hotspots:
    """Give a result whose flame graph shows what changed since another capture."""
    steps = (int(new.meta["steps"]), int(old.meta["steps"]))
    versus = PurePath(str(old.meta["path"])).name
    graph = compare_flames(flame_graph(new), flame_graph(old), *steps, versus)
    return replace(new, graph=graph)
