"""The ledger as a picture: for each GPU the time of a step by entry, and its steps one by one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from gpusight.render.pictures.board import Board, Cells, Heading, Key, Keys, Ruler, Strip
from gpusight.render.pictures.figure import Axis
from gpusight.result import Fmt
from gpusight.units import format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from gpusight.analyses.ledger.report import DeviceReport, LedgerReport
    from gpusight.render.pictures.board import Row

Reals: TypeAlias = "NDArray[np.float64]"

_GROUPS = {
    "compute": "computing",
    "copy": "moving data",
    "communication": "communicating",
    "idle": "idle",
}
"""In this order they lie in a bar: work first."""
_WIDTH = 560.0
"""Small enough to be read in one column of a paper."""
_BAR = 34.0
_NAMED, _MOST = 12, 100
"""Steps that have room for a name each, and steps that are drawn at all: more are averaged."""
_ALL = 160.0
"""Pixels that many steps take together."""
_LONGEST = 2.5
"""Steps beyond so many times the mean would press all others together: they are cut off."""
_MOST_LEGENDS = 4
"""With more GPUs there is one legend, of their mean."""


def ledger_figure(report: LedgerReport) -> Board:
    """Draw where the time went: the numbers are those of `gpusight ledger`."""
    laps = _laps(report)
    bars = [_bar(device, laps) for device in report.devices]
    longest = _longest(bars)
    return Board(
        "Where the time of a step goes" if laps else "Where the time went",
        Axis("time of a step" if laps else "time", Fmt.TIME, low=0.0, high=longest),
        tuple(_rows(bars)),
        subtitle=_subtitle(report),
        footnotes=tuple(_footnotes(bars, longest)),
        width=_WIDTH,
    )


@dataclass(frozen=True)
class _Bar:
    """What is drawn of one GPU."""

    name: str
    entries: tuple[str, ...]
    """In the order in which they lie in a bar."""
    ns: Reals
    """Time of each entry: of a step on average, or of the window where no steps are known."""
    laps: int
    """Steps of the window; 0 where none are known."""
    steps: Reals
    """Time by step (rows) and entry (columns)."""
    step_names: tuple[str, ...]

    @property
    def total_ns(self) -> float:
        """How long the bar is."""
        return float(self.ns.sum())

    @property
    def drawn(self) -> Reals:
        """The steps as they are drawn: where there are very many, means of some that follow."""
        count = len(self.steps)
        if count <= _MOST:
            return self.steps if count > 1 else self.steps[:0]
        first = np.arange(_MOST) * count // _MOST
        sums = np.add.reduceat(self.steps, first, axis=0)
        means: Reals = sums / np.diff(first, append=count)[:, None]
        return means


def _bar(device: DeviceReport, laps: int) -> _Bar:
    times = {entry.entry: entry.ns for entry in device.ledger.entries}
    order = sorted(times, key=lambda entry: (list(_GROUPS).index(_group(entry)), -times[entry]))
    columns = [device.steps.entries.index(entry) for entry in order]
    name = f"GPU {device.ledger.device}"
    return _Bar(
        f"{name} · {device.name}" if device.name else name,
        tuple(order),
        np.array([times[entry] for entry in order], np.float64) / max(laps, 1),
        laps,
        device.steps.ns[:, columns].astype(np.float64),
        tuple(f"step {step.number}" for step in device.steps.steps),
    )


def _laps(report: LedgerReport) -> int:
    """Count the steps of the thread that has most: those of several threads run side by side."""
    threads = Counter((step.process, step.thread) for step in report.focus.steps)
    return max(threads.values(), default=0)


# Rows ---------------------------------------------------------------------------------------------


def _rows(bars: Sequence[_Bar]) -> Iterator[Row]:
    for number, bar in enumerate(bars, start=1):
        yield Heading(bar.name, _detail(bar))
        yield Strip("mean" if bar.laps else "", _whole(bar), _BAR)
        yield from _steps(bar)
        if len(bars) <= _MOST_LEGENDS or number == len(bars):
            yield Ruler()
            yield _keys([bar] if len(bars) <= _MOST_LEGENDS else bars)


def _detail(bar: _Bar) -> str:
    idle = sum(ns for entry, ns in zip(bar.entries, bar.ns, strict=True) if _group(entry) == "idle")
    busy = 1 - float(idle) / bar.total_ns if bar.total_ns else 0.0
    of_step = " a step" if bar.laps else ""
    return f"{format_time(bar.total_ns)}{of_step}, busy {format_share(busy)}"


def _whole(bar: _Bar) -> Cells:
    """Lay the entries end to end, with their names and shares where there is room."""
    shares = [format_share(ns / bar.total_ns) for ns in bar.ns]
    names = [entry.rpartition("/")[2] for entry in bar.entries]
    titles = [
        f"{entry}: {format_time(ns)}, {share}"
        for entry, ns, share in zip(bar.entries, bar.ns, shares, strict=True)
    ]
    return _cells(
        bar.ns,
        bar.entries,
        labels=[f"{name} {share}" for name, share in zip(names, shares, strict=True)],
        brief=shares,
        titles=titles,
    )


def _steps(bar: _Bar) -> Iterator[Strip]:
    """Draw the steps below each other, the more of them the thinner."""
    drawn = bar.drawn
    is_named = len(drawn) <= _NAMED
    height = 12.0 if is_named else max(2.0, min(8.0, _ALL / len(drawn)))
    for number, row in enumerate(drawn):
        gap = 8.0 if number == 0 else 2.0 if is_named else 0.0
        name = bar.step_names[number] if is_named else ""
        told = [f"{name}: {e} {format_time(ns)}" for e, ns in zip(bar.entries, row, strict=True)]
        cells = _cells(row, bar.entries, titles=told if is_named else ())
        all_of_them = f"{len(bar.steps):,} steps" if number == len(drawn) // 2 else ""
        yield Strip(name if is_named else all_of_them, cells, height, gap)


def _cells(
    ns: Reals,
    entries: Sequence[str],
    *,
    labels: Sequence[str] = (),
    brief: Sequence[str] = (),
    titles: Sequence[str] = (),
) -> Cells:
    """Lay times end to end; those of no length are left out."""
    ends = np.cumsum(ns)
    some = np.flatnonzero(ns).tolist()
    texts = [tuple(given[n] for n in some) if given else () for given in (labels, brief, titles)]
    return Cells(
        tuple(np.append(0.0, ends[:-1])[some].tolist()),
        tuple(ends[some].tolist()),
        tuple(entries[n] for n in some),
        labels=texts[0],
        brief=texts[1],
        titles=texts[2],
    )


def _keys(bars: Sequence[_Bar]) -> Keys:
    """Name the entries with their time and share, below their group: of one GPU, or the mean."""
    times: dict[str, float] = {}
    for bar in bars:
        for entry, ns in zip(bar.entries, bar.ns, strict=True):
            times[entry] = times.get(entry, 0.0) + float(ns) / len(bars)
    total = sum(times.values())

    def key(colour: str, name: str, ns: float, *, heads: bool = False) -> Key:
        return Key(colour, name, (format_time(ns), format_share(ns / total)), heads)

    keys: list[Key] = []
    for group, name in _GROUPS.items():
        own = {entry: ns for entry, ns in times.items() if _group(entry) == group}
        whole = group if group in own else ""
        keys += [key(whole, name, sum(own.values()), heads=True)] if own else []
        named = sorted(own.keys() - {whole}, key=lambda entry: -own[entry])
        keys += [key(entry, entry.partition("/")[2], own[entry]) for entry in named]
    return Keys(tuple(keys), ("a step" if bars[0].laps else "time", "share"))


# Texts --------------------------------------------------------------------------------------------


def _subtitle(report: LedgerReport) -> str:
    window = format_time(report.ledger.end_ns - report.ledger.start_ns)
    steps = len(report.focus.steps)
    name = PurePath(str(report.meta.get("path", ""))).name
    of_steps = f"{steps:,} {'step' if steps == 1 else 'steps'} in {window}"
    return " · ".join(filter(None, (name, of_steps if steps else window)))


def _longest(bars: Sequence[_Bar]) -> float:
    """Give where the axis ends."""
    means = max((bar.total_ns for bar in bars), default=0.0)
    steps = max((float(bar.drawn.sum(axis=1).max(initial=0.0)) for bar in bars), default=0.0)
    return max(means, min(steps, _LONGEST * means))


def _footnotes(bars: Sequence[_Bar], longest: float) -> Iterator[str]:
    if any(bar.laps for bar in bars):
        yield "The bar is the window over its steps, what lies between steps included."
    drawn = [bar for bar in bars if len(bar.drawn)]
    if any(len(bar.steps) > _MOST for bar in drawn):
        most = max(len(bar.steps) for bar in drawn)
        yield f"Each of the {_MOST} thin lines is the mean of steps that follow, {most:,} in all."
    beyond = [float(ns) for bar in drawn for ns in bar.drawn.sum(axis=1) if ns > longest]
    if beyond:
        yield (
            f"{len(beyond):,} reach beyond the picture, the longest to {format_time(max(beyond))}."
        )
    if len(bars) > _MOST_LEGENDS:
        yield f"Numbers are the mean of the {len(bars)} GPUs."


def _group(entry: str) -> str:
    group = entry.partition("/")[0]
    return group if group in _GROUPS else "idle"
