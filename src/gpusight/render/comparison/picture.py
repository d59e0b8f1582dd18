"""The step as a waterfall: what it was, what each entry of the ledger changed, what it is.

Where much time passes between steps, that is drawn too, from one step to the next.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusight.comparison.wording import signed, spread
from gpusight.errors import MissingDataError
from gpusight.render.cells import safe_text, shorten_middle
from gpusight.render.comparison import words
from gpusight.render.pictures.figure import Axis, Bars, Figure, Tone
from gpusight.result import Fmt
from gpusight.units import format_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpusight.comparison.change import Change
    from gpusight.comparison.outcome import Comparison

KINDS = ("compute", "idle", "copy", "communication")
"""In this order they take the colours of the palette, as in a diagnosis."""
_ORDER = ("compute", "copy", "communication", "idle")
"""In this one they lie in a step: work first."""
_LABELS = {
    "compute": "computing",
    "copy": "copying",
    "communication": "communicating",
    "idle": "idle",
    "between steps": "between steps",
}
_BETWEEN, _OTHER = "between steps", "other entries"
_MOST = 10
_SMALL = 0.01
"""Entries that changed by less than this part of the step are joined."""
_LONGEST = 26
_LONGEST_LABEL = 48
_ROW = 31.0
_AROUND = 140.0
"""Pixels of a row, and of what stands above and below them."""
_USUAL = 520.0
_AGAIN = "record that capture again"


@dataclass(frozen=True, slots=True)
class _Bar:
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
    """Draw what became of the step, entry by entry; raises where a side does not know it."""
    if comparison.headline.change.delta is None:
        why = comparison.headline.missing
        raise MissingDataError("there is no step time to draw", why=why, hint=_AGAIN)
    bars = list(_bars(comparison))
    rows = list(dict.fromkeys(bar.row for bar in bars))
    places = {row: float(len(rows) - 1 - n) for n, row in enumerate(rows)}
    names = tuple(shorten_middle(safe_text(row), _LONGEST) for row in reversed(rows))
    most = max(max(bar.start, bar.end) for bar in bars)
    return Figure(
        words.headline(comparison),
        Axis(_axis(comparison), Fmt.TIME, low=0.0, high=1.02 * most),
        Axis("", Fmt.TEXT, low=-0.6, high=len(rows) - 0.4, names=names),
        tuple(_series(bars, places)),
        subtitle=_subtitle(comparison),
        footnotes=("Faint: time that went away. ~ marks changes that cannot be claimed.",),
        taller=_AROUND + _ROW * len(rows) - _USUAL,
    )


def _subtitle(comparison: Comparison) -> str:
    before, after = (_named(side.labels) for side in (comparison.before, comparison.after))
    return f"before: {before}; after: {after}"


def _named(labels: tuple[str, ...]) -> str:
    first = shorten_middle(safe_text(labels[0]), _LONGEST_LABEL)
    return first if len(labels) == 1 else f"{first} and {len(labels) - 1} more"


def _axis(comparison: Comparison) -> str:
    if comparison.is_apart:
        return "time from step to step"
    return "time of a step" if words.is_per_step(comparison) else "time"


def _parts(comparison: Comparison) -> list[tuple[str, str, Change]]:
    """Give name, kind and change of what the whole is made of, those that changed most first."""
    parts = [(one.entry, kind_of(one.entry), one.change) for one in comparison.ledger]
    if comparison.is_apart:
        parts.append((_BETWEEN, _BETWEEN, comparison.metric("between_steps").change))
    return sorted(parts, key=lambda part: -abs(part[2].delta or 0.0))


def _bars(comparison: Comparison) -> Iterator[_Bar]:
    whole = comparison.headline.change
    before, after = whole.before or 0.0, whole.after or 0.0
    yield from _side(comparison, "before", before)
    level = before
    for name, kind, delta, claimed in _changes(comparison, before, after):
        text = ("" if claimed else words.UNSURE) + signed(delta)
        yield _Bar(name, kind, level, level + delta, text, f"{name}: {text}", faint=delta < 0)
        level += delta
    yield from _side(comparison, "after", after)
    if whole.low is not None and whole.high is not None:
        low, high = (max(0.0, before + end) for end in (whole.low, whole.high))
        told = spread(whole.low, whole.high)
        row = f"{100 * comparison.confidence:g}% interval"
        told_of = f"{row} of the change: {told}"
        yield _Bar(row, _OTHER, low, high, told, told_of, joined=False)


def _side(comparison: Comparison, side: str, total: float) -> Iterator[_Bar]:
    """Lay what a side is made of end to end; the last part is labelled with the whole."""
    parts = dict.fromkeys((*_ORDER, _OTHER, _BETWEEN), 0.0)
    for _, kind, change in _parts(comparison):
        parts[kind] += _of(change, side)
    held = [(kind, ns) for kind, ns in parts.items() if ns > 0] or [(_OTHER, total)]
    start = 0.0
    for number, (kind, ns) in enumerate(held, 1):
        is_last = number == len(held)
        end = total if is_last else start + ns
        told = f"{side}: {_LABELS.get(kind, kind)} {format_time(ns)}"
        label = format_time(total) if is_last else ""
        yield _Bar(side, kind, start, end, label, told, joined=is_last and side == "before")
        start = end


def _of(change: Change, side: str) -> float:
    return (change.before if side == "before" else change.after) or 0.0


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
    parts = _parts(comparison)
    least = _SMALL * max(before, after)
    count = sum(abs(change.delta or 0.0) >= least for _, _, change in parts[:_MOST])
    worth = [(name, kind, c.delta or 0.0, c.claimed) for name, kind, c in parts[:count]]
    yield from sorted(worth, key=lambda one: (one[2] >= 0, -abs(one[2])))
    rest = after - before - sum(delta for _, _, delta, _ in worth)
    if count < len(parts) and abs(rest) > 0.5:
        yield _OTHER, _OTHER, rest, any(change.claimed for _, _, change in parts[count:])


def _series(bars: list[_Bar], places: dict[str, float]) -> Iterator[Bars]:
    """Give one series a kind; kinds without bars keep their colour for the others' sake."""
    for kind in (*KINDS, _OTHER, _BETWEEN):
        yield _of_kind(kind, [bar for bar in bars if bar.kind == kind], places)


def _of_kind(kind: str, bars: Iterable[_Bar], places: dict[str, float]) -> Bars:
    held = tuple(bars)
    return Bars(
        _LABELS.get(kind, ""),
        tuple(bar.start for bar in held),
        tuple(bar.end for bar in held),
        tuple(places[bar.row] for bar in held),
        labels=tuple(bar.label for bar in held),
        titles=tuple(bar.title for bar in held),
        tone=Tone.SERIES if kind in KINDS else Tone.QUIET,
        faint=tuple(bar.faint for bar in held),
        joined=tuple(bar.joined for bar in held),
    )
