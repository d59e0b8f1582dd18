"""The ledger as a chart, per GPU and step.

And as a waterfall, what changed in each entry between two captures.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING

import numpy as np

from gpusight.comparison.phrases import shown, signed, spread
from gpusight.errors import MissingDataError
from gpusight.render import comparison_tables
from gpusight.render.cell_text import safe_text, shorten_middle
from gpusight.render.charts.figure import (
    BarSeries,
    ChartAxis,
    ChartStrip,
    Figure,
    LegendEntry,
    SeriesTone,
    StripAxis,
    StripCells,
    StripChart,
    StripHeading,
    StripLegend,
)
from gpusight.results import Fmt
from gpusight.units import format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpusight.analysis.ledger.ledger_report import DeviceLedgerReport, LedgerReport
    from gpusight.comparison.comparison_result import Comparison
    from gpusight.comparison.significance import MeasuredChange
    from gpusight.render.charts.figure import StripChartRow
    from gpusight.trace.intervals import Reals


_GROUPS = {
    "compute": "computing",
    "copy": "copies",
    "communication": "communicating",
    "idle": "idle",
}
"""In this order they lie in a bar: work first."""
_WIDTH = 560.0
"""Small enough to be read in one column of a paper."""
_BAR = 34.0
_MAX_NAMED_STEPS, _MAX_DRAWN_STEPS = 12, 100
"""Steps that have room for a name each, and steps that are drawn at all: more are averaged."""
_ALL = 160.0
"""Pixels that many steps take together."""
_MAX_STEP_RATIO = 2.5
"""Steps beyond so many times the mean would press all others together: they are cut off."""
_MAX_LEGENDS = 4
"""With more GPUs there is one legend, of their mean."""


def ledger_figure(report: LedgerReport) -> StripChart:
    """Draw where the time went: the numbers are those of `gpusight ledger`."""
    # Count the steps of the thread that has most: those of several threads run side by side.
    threads = Counter((step.process, step.thread) for step in report.focus.steps)
    laps = max(threads.values(), default=0)
    bars = [_ledger_bar(device, laps) for device in report.devices]
    longest = _longest(bars)
    window = format_time(report.ledger.end_ns - report.ledger.start_ns)
    steps = len(report.focus.steps)
    name = PurePath(str(report.meta.get("path", ""))).name
    of_steps = f"{steps:,} {'step' if steps == 1 else 'steps'} in {window}"
    return StripChart(
        "Where the time of a step goes" if laps else "Where the time goes",
        ChartAxis("time per step" if laps else "time", Fmt.TIME, low=0.0, high=longest),
        tuple(_rows(bars)),
        subtitle=" · ".join(filter(None, (name, of_steps if steps else window))),
        footnotes=tuple(_footnotes(bars, longest)),
        width=_WIDTH,
    )


@dataclass(frozen=True)
class _LedgerBar:
    """What is drawn of one GPU."""

    name: str
    entries: tuple[str, ...]
    """In the order in which they lie in a bar."""
    ns: Reals
    """Mean time of each entry per step, or its time in the window without steps."""
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
        if count <= _MAX_DRAWN_STEPS:
            return self.steps if count > 1 else self.steps[:0]
        first = np.arange(_MAX_DRAWN_STEPS) * count // _MAX_DRAWN_STEPS
        sums = np.add.reduceat(self.steps, first, axis=0)
        means: Reals = sums / np.diff(first, append=count)[:, None]
        return means


def _ledger_bar(device: DeviceLedgerReport, laps: int) -> _LedgerBar:
    times = {entry.entry: entry.ns for entry in device.ledger.entries}
    order = sorted(times, key=lambda entry: (list(_GROUPS).index(_group(entry)), -times[entry]))
    columns = [device.steps.entries.index(entry) for entry in order]
    name = f"GPU {device.ledger.device}"
    return _LedgerBar(
        f"{name} · {device.name}" if device.name else name,
        tuple(order),
        np.array([times[entry] for entry in order], np.float64) / max(laps, 1),
        laps,
        device.steps.ns[:, columns].astype(np.float64),
        tuple(f"step {step.number}" for step in device.steps.steps),
    )


# Rows ---------------------------------------------------------------------------------------------


def _rows(bars: Sequence[_LedgerBar]) -> Iterator[StripChartRow]:
    for number, bar in enumerate(bars, start=1):
        idle = sum(
            ns for entry, ns in zip(bar.entries, bar.ns, strict=True) if _group(entry) == "idle"
        )
        busy = 1 - float(idle) / bar.total_ns if bar.total_ns else 0.0
        of_step = "/step" if bar.laps else ""
        yield StripHeading(
            bar.name, f"{format_time(bar.total_ns)}{of_step}, busy {format_share(busy)}"
        )
        shares = [format_share(ns / bar.total_ns) for ns in bar.ns]
        names = [entry.rpartition("/")[2] for entry in bar.entries]
        titles = [
            f"{entry}: {format_time(ns)}, {share}"
            for entry, ns, share in zip(bar.entries, bar.ns, shares, strict=True)
        ]
        yield ChartStrip(
            "mean" if bar.laps else "",
            _cells(
                bar.ns,
                bar.entries,
                labels=[f"{name} {share}" for name, share in zip(names, shares, strict=True)],
                brief=shares,
                titles=titles,
            ),
            _BAR,
        )
        yield from _steps(bar)
        if len(bars) <= _MAX_LEGENDS or number == len(bars):
            yield StripAxis()
            yield _keys([bar] if len(bars) <= _MAX_LEGENDS else bars)


def _steps(bar: _LedgerBar) -> Iterator[ChartStrip]:
    """Draw the steps below each other, the more of them the thinner."""
    drawn = bar.drawn
    is_named = len(drawn) <= _MAX_NAMED_STEPS
    height = 12.0 if is_named else max(2.0, min(8.0, _ALL / len(drawn)))
    for number, row in enumerate(drawn):
        gap = 8.0 if number == 0 else 2.0 if is_named else 0.0
        name = bar.step_names[number] if is_named else ""
        titles = [f"{name}: {e} {format_time(ns)}" for e, ns in zip(bar.entries, row, strict=True)]
        cells = _cells(row, bar.entries, titles=titles if is_named else ())
        all_of_them = f"{len(bar.steps):,} steps" if number == len(drawn) // 2 else ""
        yield ChartStrip(name if is_named else all_of_them, cells, height, gap)


def _cells(
    ns: Reals,
    entries: Sequence[str],
    *,
    labels: Sequence[str] = (),
    brief: Sequence[str] = (),
    titles: Sequence[str] = (),
) -> StripCells:
    """Lay times end to end; those of no length are left out."""
    ends = np.cumsum(ns)
    nonzero = np.flatnonzero(ns).tolist()
    texts = [
        tuple(texts_of[n] for n in nonzero) if texts_of else ()
        for texts_of in (labels, brief, titles)
    ]
    return StripCells(
        tuple(np.append(0.0, ends[:-1])[nonzero].tolist()),
        tuple(ends[nonzero].tolist()),
        tuple(entries[n] for n in nonzero),
        labels=texts[0],
        brief=texts[1],
        titles=texts[2],
    )


def _keys(bars: Sequence[_LedgerBar]) -> StripLegend:
    """Name the entries with their time and share, below their group: of one GPU, or the mean."""
    times: dict[str, float] = {}
    for bar in bars:
        for entry, ns in zip(bar.entries, bar.ns, strict=True):
            times[entry] = times.get(entry, 0.0) + float(ns) / len(bars)
    total = sum(times.values())

    def key(color: str, name: str, ns: float, *, heads: bool = False) -> LegendEntry:
        return LegendEntry(color, name, (format_time(ns), format_share(ns / total)), heads)

    keys: list[LegendEntry] = []
    for group, name in _GROUPS.items():
        own = {entry: ns for entry, ns in times.items() if _group(entry) == group}
        whole = group if group in own else ""
        keys += [key(whole, name, sum(own.values()), heads=True)] if own else []
        named = sorted(own.keys() - {whole}, key=lambda entry: -own[entry])
        keys += [key(entry, entry.partition("/")[2], own[entry]) for entry in named]
    return StripLegend(tuple(keys), ("time/step" if bars[0].laps else "time", "share"))


# Texts --------------------------------------------------------------------------------------------


def _longest(bars: Sequence[_LedgerBar]) -> float:
    """Give where the axis ends."""
    means = max((bar.total_ns for bar in bars), default=0.0)
    steps = max((float(bar.drawn.sum(axis=1).max(initial=0.0)) for bar in bars), default=0.0)
    return max(means, min(steps, _MAX_STEP_RATIO * means))


def _footnotes(bars: Sequence[_LedgerBar], longest: float) -> Iterator[str]:
    if any(bar.laps for bar in bars):
        yield "The bar is the mean step, including the time between steps."
    drawn = [bar for bar in bars if len(bar.drawn)]
    if any(len(bar.steps) > _MAX_DRAWN_STEPS for bar in drawn):
        most = max(len(bar.steps) for bar in drawn)
        yield (
            f"Each of the {_MAX_DRAWN_STEPS} thin lines is the mean of several consecutive "
            f"steps, {most:,} steps total."
        )
    beyond = [float(ns) for bar in drawn for ns in bar.drawn.sum(axis=1) if ns > longest]
    if beyond:
        yield (f"{len(beyond):,} exceed the axis, the longest with {format_time(max(beyond))}.")
    if len(bars) > _MAX_LEGENDS:
        yield f"Numbers are the mean of the {len(bars)} GPUs."


def _group(entry: str) -> str:
    group = entry.partition("/")[0]
    return group if group in _GROUPS else "idle"


KINDS = ("compute", "idle", "copy", "communication")
"""In this order they take the colors of the palette, as in a diagnosis."""
_ORDER = ("compute", "copy", "communication", "idle")
"""In this one they lie in a step: work first."""
_LABELS = {
    "compute": "computing",
    "copy": "copying",
    "communication": "communicating",
    "idle": "idle",
}
_OTHER = "other entries"
_MAX_ENTRIES = 10
_MIN_ENTRY_SHARE = 0.01
"""Entries that changed by less than this part of the step are joined."""
_MAX_ENTRY_CHARACTERS = 26
_MAX_LABEL_CHARACTERS = 48
_ROW = 31.0
_MARGIN_PIXELS = 140.0
"""Pixels of a row, and of what stands above and below them."""
_USUAL_HEIGHT = 520.0
_AGAIN = "record that capture again"


@dataclass(frozen=True, slots=True)
class _WaterfallBar:
    """One bar of the waterfall; those of the same row follow each other."""

    row: str
    kind: str
    start: float
    end: float
    label: str
    title: str
    faint: bool = False
    joined: bool = True


def waterfall(comparison: Comparison) -> Figure:
    """Draw the change of the step, entry by entry; raises where a side lacks it."""
    if comparison.headline.change.delta is None:
        why = comparison.headline.missing
        raise MissingDataError("no step time to draw", why=why, hint=_AGAIN)
    bars = list(_waterfall_bars(comparison))
    rows = list(dict.fromkeys(bar.row for bar in bars))
    places = {row: float(len(rows) - 1 - n) for n, row in enumerate(rows)}
    names = tuple(shorten_middle(safe_text(row), _MAX_ENTRY_CHARACTERS) for row in reversed(rows))
    most = max(max(bar.start, bar.end) for bar in bars)
    before, after = (_first_label(side.labels) for side in (comparison.before, comparison.after))
    return Figure(
        comparison_tables.comparison_headline(comparison),
        ChartAxis(
            "step time" if comparison.has_steps else "time", Fmt.TIME, low=0.0, high=1.02 * most
        ),
        ChartAxis("", Fmt.TEXT, low=-0.6, high=len(rows) - 0.4, names=names),
        tuple(_series(bars, places)),
        subtitle=f"before: {before}; after: {after}",
        footnotes=("Faint: time that was saved. ~ marks changes that are not significant.",),
        taller=_MARGIN_PIXELS + _ROW * len(rows) - _USUAL_HEIGHT,
    )


def _first_label(labels: tuple[str, ...]) -> str:
    first = shorten_middle(safe_text(labels[0]), _MAX_LABEL_CHARACTERS)
    return first if len(labels) == 1 else f"{first} and {len(labels) - 1} more"


def _changed_entries(comparison: Comparison) -> list[tuple[str, str, MeasuredChange]]:
    """Give name, kind and change of what the whole is made of, those that changed most first."""
    parts = [(entry.entry, kind_of(entry.entry), entry.change) for entry in comparison.ledger]
    return sorted(parts, key=lambda part: -abs(part[2].delta or 0.0))


def _waterfall_bars(comparison: Comparison) -> Iterator[_WaterfallBar]:
    whole = comparison.headline.change
    before, after = whole.before or 0.0, whole.after or 0.0
    yield from _side(comparison, "before", before)
    level = before
    for name, kind, delta, significant in _changes(comparison, before, after):
        text = ("" if significant else comparison_tables.UNSURE) + signed(delta)
        yield _WaterfallBar(
            name, kind, level, level + delta, text, f"{name}: {text}", faint=delta < 0
        )
        level += delta
    yield from _side(comparison, "after", after)
    if whole.low is not None and whole.high is not None:
        low, high = (max(0.0, before + end) for end in (whole.low, whole.high))
        interval = spread(whole.low, whole.high)
        row = f"{100 * comparison.confidence:g}% interval"
        title = f"{row} of the change: {interval}"
        yield _WaterfallBar(row, _OTHER, low, high, interval, title, joined=False)


def _side(comparison: Comparison, side: str, total: float) -> Iterator[_WaterfallBar]:
    """Lay what a side is made of end to end; the last part is labeled with the whole."""
    parts = dict.fromkeys((*_ORDER, _OTHER), 0.0)
    for _, kind, change in _changed_entries(comparison):
        parts[kind] += (change.before if side == "before" else change.after) or 0.0
    held = [(kind, ns) for kind, ns in parts.items() if ns > 0] or [(_OTHER, total)]
    start = 0.0
    for number, (kind, ns) in enumerate(held, 1):
        is_last = number == len(held)
        end = total if is_last else start + ns
        title = f"{side}: {_LABELS.get(kind, kind)} {shown(ns)}"
        label = shown(total) if is_last else ""
        yield _WaterfallBar(
            side, kind, start, end, label, title, joined=is_last and side == "before"
        )
        start = end


def kind_of(entry: str) -> str:
    """Give the kind of time that an entry is of."""
    kind = entry.partition("/")[0]
    return kind if kind in KINDS else _OTHER


def _changes(
    comparison: Comparison, before: float, after: float
) -> Iterator[tuple[str, str, float, bool]]:
    """Give name, kind and change of what is drawn: what fell, what rose, then the rest as one.

    The rest is taken from the ends, so that the bars always lead from one side to the other.
    """
    parts = _changed_entries(comparison)
    least = _MIN_ENTRY_SHARE * max(before, after)
    count = sum(abs(change.delta or 0.0) >= least for _, _, change in parts[:_MAX_ENTRIES])
    worth = [(name, kind, c.delta or 0.0, c.significant) for name, kind, c in parts[:count]]
    yield from sorted(worth, key=lambda change: (change[2] >= 0, -abs(change[2])))
    rest = after - before - sum(delta for _, _, delta, _ in worth)
    if count < len(parts) and abs(rest) > 0.5:
        yield _OTHER, _OTHER, rest, any(change.significant for _, _, change in parts[count:])


def _series(bars: list[_WaterfallBar], places: dict[str, float]) -> Iterator[BarSeries]:
    """Give one series a kind; kinds without bars keep their color for the others' sake."""
    for kind in (*KINDS, _OTHER):
        yield _of_kind(kind, [bar for bar in bars if bar.kind == kind], places)


def _of_kind(kind: str, bars: Iterable[_WaterfallBar], places: dict[str, float]) -> BarSeries:
    held = tuple(bars)
    return BarSeries(
        _LABELS.get(kind, ""),
        tuple(bar.start for bar in held),
        tuple(bar.end for bar in held),
        tuple(places[bar.row] for bar in held),
        labels=tuple(bar.label for bar in held),
        titles=tuple(bar.title for bar in held),
        tone=SeriesTone.SERIES if kind in KINDS else SeriesTone.QUIET,
        faint=tuple(bar.faint for bar in held),
        joined=tuple(bar.joined for bar in held),
    )
