"""Changes as people read them: marks, tones, sides, and the line that says it all."""

from __future__ import annotations

import enum
from typing import TYPE_CHECKING

from gpusight import units
from gpusight.comparison.change import Verdict
from gpusight.comparison.limit import NOTHING, in_words
from gpusight.comparison.wording import from_to, shown, signed, signed_share
from gpusight.render.cells import safe_text

if TYPE_CHECKING:
    from gpusight.comparison.change import Change
    from gpusight.comparison.outcome import Comparison, Side
    from gpusight.result import Fmt

UNSURE = "~"
"""Marks changes that cannot be claimed."""
ARROW = "->"
_FEW = 3
"""Captures of a side that are named one by one."""


class Tone(enum.Enum):
    """Whether a change is welcome."""

    GOOD = "good"
    BAD = "bad"
    UNSURE = "unsure"
    PLAIN = "plain"


def tone(change: Change) -> Tone:
    """Tell whether a change of something that costs is welcome."""
    if not change.claimed:
        return Tone.UNSURE
    lower = change.verdict in (Verdict.LOWER, Verdict.VANISHED)
    return Tone.GOOD if lower else Tone.BAD


def marked(change: Change, fmt: Fmt) -> str:
    """Show a difference, marked where it cannot be claimed."""
    text = signed(change.delta, fmt)
    return f"{UNSURE}{text}" if change.delta and not change.claimed else text


def held(value: float | None, fmt: Fmt) -> str:
    """Show what one side has: a dash where it has none of it."""
    return shown(value, fmt) if value else units.MISSING


def pair(before: float, after: float, fmt: Fmt) -> str:
    """Show what two sides have; once where they do not differ."""
    texts = [shown(one, fmt) for one in (before, after)]
    return texts[0] if texts[0] == texts[1] else f"{texts[0]} {ARROW} {texts[1]}"


def marks(comparison: Comparison) -> str:
    """Say what the mark means."""
    usual, rows = (f"{100 * one:g}%" for one in (comparison.confidence, comparison.of_rows))
    return (
        f"{UNSURE} no change can be claimed: the {usual} interval ({rows} of kernels, API calls, "
        "copies and inner ranges, being many) holds zero, or the change may be below "
        f"{100 * comparison.least:g}%"
    )


def is_per_step(comparison: Comparison) -> bool:
    """Tell whether times are those of a step; else the whole window stands for one."""
    return any((*comparison.before.steps, *comparison.after.steps))


def label(comparison: Comparison) -> str:
    """Name what the first metric is the time of."""
    first = comparison.metrics[0].label
    return first if is_per_step(comparison) else "Time of the window"


def headline(comparison: Comparison) -> str:
    """Say in one line what became of the step, or of the time from one to the next."""
    name = "From step to step" if comparison.is_apart else label(comparison)
    return became(name, comparison.headline.change)


def became(name: str, change: Change) -> str:
    """Say in one line what became of a time."""
    amounts, ratio = from_to(change), signed_share(change.ratio)
    if change.claimed:
        return f"{name} {ratio}: {amounts}"
    verdict = "no change" if change.verdict is Verdict.SAME else "no change can be claimed"
    return f"{name}: {verdict} ({amounts}, {ratio})"


def side(one: Side) -> str:
    """Describe the captures of a side in one line."""
    parts = [_steps(one), _gpus(one)]
    if one.busy_share is not None:
        parts.append(f"GPU busy {units.format_share(one.busy_share)}")
    if one.limit != NOTHING:
        parts.append(f"limited by {in_words(one.limit)}")
    return f"{_captures(one)}: {', '.join(filter(None, parts))}"


def _captures(one: Side) -> str:
    count = len(one.labels)
    named = ", ".join(safe_text(label) for label in one.labels[:_FEW])
    if count == 1:
        return named
    more = f" and {count - _FEW} more" if count > _FEW else ""
    return f"{count} captures ({named}{more})"


def _steps(one: Side) -> str:
    times = [units.format_time(ns) for ns in one.step_ns[:_FEW]]
    shown = ", ".join(times) + (" …" if len(one.step_ns) > _FEW else "")
    if not any(one.steps):
        return shown
    counts = [f"{steps:,}" for steps in dict.fromkeys(one.steps)]
    several = "" if len(one.labels) == 1 else " each" if len(counts) == 1 else " together"
    total = counts[0] if len(counts) == 1 else f"{sum(one.steps):,}"
    noun = "step" if total == "1" else "steps"
    return f"{total} {noun}{several} of {shown}"


def _gpus(one: Side) -> str:
    names = [safe_text(name) for name in dict.fromkeys(one.gpus)]
    many = f"{len(one.gpus)} x " if len(one.gpus) > 1 and len(names) == 1 else ""
    return many + ", ".join(names)
