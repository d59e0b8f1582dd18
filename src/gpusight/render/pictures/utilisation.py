"""GPU utilisation over time as a picture: what each GPU did, and what it sampled of itself."""

from __future__ import annotations

from pathlib import PurePath
from typing import TYPE_CHECKING

from gpusight.render.pictures.board import Board, Heading, Plot, Ruler
from gpusight.render.pictures.figure import Axis, Band, Line, Part, Stack
from gpusight.result import Fmt, TableResult
from gpusight.units import format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.render.pictures.board import Row
    from gpusight.result import Composite

_GROUPS = {
    "compute": ("computing", "compute/matmul"),
    "copy": ("moving data", "copy/h2d"),
    "communication": ("communicating", "communication"),
}
"""What the areas are called, and the colours that stand for all of a group."""
_LINES = ("compute/attention", "compute/elementwise", "copy/d2h", "copy/d2d", "idle/input")
"""Colours of what was sampled."""
_WIDTH = 760.0
_TALL, _LOW, _LOWEST = 150.0, 90.0, 56.0
"""Pixels of a plot: of a single GPU, of a few, of many."""
_FEW = 4
_MOST_BANDS = 400
_SHARE = Axis("", Fmt.SHARE, low=0.0, high=1.0)


def utilisation_figure(result: Composite) -> Board:
    """Draw the answer of `gpusight utilisation`."""
    drawing = _Drawing(result)
    start, end = (float(result.meta[key]) for key in ("start_ns", "end_ns"))
    return Board(
        "GPU utilisation over time",
        Axis("time since the capture began", Fmt.TIME, low=start, high=end),
        (*drawing.rows(), Ruler()),
        subtitle=drawing.subtitle,
        legend=drawing.legend,
        bands=tuple(drawing.bands()),
        footnotes=tuple(drawing.footnotes()),
        width=_WIDTH,
    )


class _Drawing:
    """An answer being turned into rows."""

    def __init__(self, result: Composite) -> None:
        self._result = result
        self._facts = {fact.key: fact.value for fact in result.facts}
        self._tables = {s.command: s.frame for s in result.sections if isinstance(s, TableResult)}
        self._end: int = result.meta["end_ns"]
        bins = self._tables["bins"]
        self._shown = [group for group in _GROUPS if (bins[f"{group}_ns"] > 0).any()]
        self._metrics = self._tables.get("metrics")
        names = () if self._metrics is None else dict.fromkeys(self._metrics["metric"])
        self._colours = {str(n): _LINES[at % len(_LINES)] for at, n in enumerate(names)}

    @property
    def subtitle(self) -> str:
        """Say in a line what the picture shows."""
        facts = self._facts
        parts = [PurePath(str(self._result.meta.get("path", ""))).name]
        parts.append(
            f"busy {format_share(facts['busy_share'])} of {format_time(facts['window_ns'])}"
        )
        if facts.get("longest_idle_ns"):
            at = format_time(facts["longest_idle_at_ns"])
            parts.append(f"longest idle {format_time(facts['longest_idle_ns'])} at {at}")
        return " · ".join(filter(None, parts))

    @property
    def legend(self) -> tuple[tuple[str, str], ...]:
        """Name the areas, then the lines."""
        areas = [(_GROUPS[group][1], _GROUPS[group][0]) for group in self._shown]
        return (*areas, *((colour, name) for name, colour in self._colours.items()))

    def rows(self) -> Iterator[Row]:
        """Draw each GPU: what it did, and below that what it sampled."""
        gpus = self._tables["gpus"]
        height = _TALL if gpus.height == 1 else _LOW if gpus.height <= _FEW else _LOWEST
        for gpu in gpus.iter_rows(named=True):
            number = f"GPU {gpu['device']}"
            name = f"{number} · {gpu['name']}" if gpu["name"] else number
            yield Heading(name, f"busy {format_share(gpu['busy_share'])}")
            several = number if gpus.height > 1 else ""
            yield Plot(_SHARE, (self._areas(gpu["device"]),), height, several)
            if lines := tuple(self._lines(gpu["device"])):
                yield Heading("", "sampled by the GPU itself")
                yield Plot(_SHARE, lines, 0.6 * height, several)

    def _areas(self, device: int) -> Stack:
        own = self._tables["bins"].filter(device=device)
        x = (*own["start_ns"], self._end)
        parts = [
            Part(name, (*own[f"{group}_share"], own[f"{group}_share"][-1]), colour=colour)
            for group, (name, colour) in _GROUPS.items()
            if group in self._shown
        ]
        return Stack("busy", tuple(map(float, x)), tuple(parts), steps=True)

    def _lines(self, device: int) -> Iterator[Line]:
        if self._metrics is None:
            return
        for name, colour in self._colours.items():
            own = self._metrics.filter(device=device, metric=name)
            if own.height:
                x = tuple(float(t) for t in own["start_ns"])
                yield Line(name, x, tuple(own["share"]), steps=True, colour=colour)

    def bands(self) -> Iterator[Band]:
        """Shade every other step."""
        steps = self._tables.get("steps")
        if steps is None or steps.height > _MOST_BANDS:
            return
        for start, length, number in steps.select("start_ns", "duration_ns", "number").iter_rows():
            yield Band(float(start), float(start + length), f"step {number}")

    def footnotes(self) -> Iterator[str]:
        """Say what a step of the areas is."""
        yield (
            f"Values are means of {format_time(self._facts['bin_ns'])} each. Where several things "
            "run, computing counts before moving data, and that before communicating."
        )
