"""Why a step changed, or did not, in sentences.

Every number in them stands in a table of the comparison too. Only what can be claimed is said to
have changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.comparison.change import Basis, Verdict
from gpusight.comparison.doings import doings
from gpusight.comparison.explain_gpu import waiting, work
from gpusight.comparison.exposure import exposures
from gpusight.comparison.hosts import host_ranges
from gpusight.comparison.outcome import Fate
from gpusight.comparison.telling import colon, entries, matters
from gpusight.comparison.wording import (
    difference,
    from_to,
    interval,
    is_how,
    listed,
    percent,
    shown,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.comparison.change import Change
    from gpusight.comparison.outcome import Comparison, FindingChange


def explain(found: Comparison) -> tuple[str, ...]:
    """Say what became of the step time and why; the first sentence is the verdict."""
    return tuple(_sentences(found))


def _sentences(found: Comparison) -> Iterator[str]:
    if found.headline.change.delta is None:
        yield f"Step time cannot be compared: {found.headline.missing}."
        return
    yield _verdict(found)
    yield from _parts(found)
    yield from work(found)
    yield from host_ranges(found)
    yield from doings(found)
    yield from waiting(found)
    yield from exposures(found)
    yield from _beside(found)
    yield from _findings(found)


# The verdict -------------------------------------------------------------------------------------


def _verdict(found: Comparison) -> str:
    change = found.headline.change
    numbers = _numbers(change)
    given = interval(change, found.confidence)
    if change.verdict is Verdict.UNCLEAR:
        against = _why_unclear(found, change, given)
        return f"No change of {_named(found)} can be claimed: {numbers}, {against}."
    same = f" within {percent(found.least)}" if change.verdict is Verdict.SAME else ""
    rest = ", ".join(filter(None, (given, _rests_on(found, change))))
    subject = "From step to step it" if found.is_apart else _named(found).capitalize()
    return f"{subject} {is_how(change)}{same}: {numbers}; {rest}."


def _named(found: Comparison) -> str:
    if found.is_apart:
        return "the time from step to step"
    return "step time" if all(found.before.steps) else "time of the window"


def _rests_on(found: Comparison, change: Change) -> str:
    """Say what an interval was made of."""
    before, after = found.before, found.after
    if change.basis is Basis.REPEATS:
        return f"from {len(before.labels)} and {len(after.labels)} captures"
    if change.basis is Basis.STEPS:
        return f"from {before.steps[0]:,} and {after.steps[0]:,} steps of one run each"
    return "from one value each, so that nothing tells how much it varies"


def _why_unclear(found: Comparison, change: Change, given: str) -> str:
    """Say what stands against a claim: how much captures of a side, or steps, differ anyway."""
    if change.basis is Basis.NONE or change.low is None or change.high is None:
        return _rests_on(found, change)
    if change.low > 0 or change.high < 0:
        return f"{given}, which is not surely more than {percent(found.least)}"
    if change.basis is Basis.STEPS:
        return f"{given}, {_rests_on(found, change)}: steps of a run differ too much"
    sides = [
        one.period_ns if found.is_apart else one.step_ns for one in (found.before, found.after)
    ]
    spread = max(max(times) - min(times) for times in sides)
    return f"{given}: captures of the same side differ by up to {shown(spread)}"


def _parts(found: Comparison) -> Iterator[str]:
    """Tell the step from what lies between, where that is much, or changed as much as counts."""
    if not found.between:
        return
    between = found.metric("between_steps").change
    named = entries(found, found.between, between.delta)
    tells = between.claimed and matters(found, between)
    said = f"Between steps it {is_how(between)}: {_numbers(between)}{colon(named)}" if tells else ""
    if found.is_apart:
        yield f"{_of_step(found)}."
        if tells:
            yield f"{said}."
        elif named:
            whole = f"No change of the time between steps can be claimed ({from_to(between)})"
            yield (
                f"Between steps {named}."
                if between.claimed
                else f"{whole}, but of its parts: {named}."
            )
    elif tells:
        yield f"{said}; from one step to the next {_of_period(found)}."
    elif named:
        yield f"From one step to the next {_of_period(found)}; between steps {named}."


def _of_step(found: Comparison) -> str:
    if found.step.verdict is Verdict.UNCLEAR:
        return f"No change of the step itself can be claimed: {_numbers(found.step)}"
    return f"The step itself {is_how(found.step)}: {_numbers(found.step)}"


def _of_period(found: Comparison) -> str:
    period = found.metric("step_period").change
    if period.claimed:
        return f"it {is_how(period)}: {_numbers(period)}"
    return f"it takes {_numbers(period)}, no change of that can be claimed"


def _numbers(change: Change) -> str:
    return f"{from_to(change)} ({difference(change)})"


# What else ---------------------------------------------------------------------------------------


def _beside(found: Comparison) -> Iterator[str]:
    """Say what changed besides time."""
    told = []
    for key in ("launches", "memory_peak"):
        metric = found.metric(key)
        if metric.change.claimed:
            numbers = f"{from_to(metric.change, metric.fmt)}"
            single = ", one value each" if metric.change.basis is Basis.NONE else ""
            ratio = f" ({difference(metric.change, metric.fmt)}{single})"
            told.append(f"{_NAMES[key]} {is_how(metric.change)}: {numbers}{ratio}")
    if told:
        text = "; ".join(told)
        yield f"{text[0].upper()}{text[1:]}."


_NAMES = {"launches": "the number of kernels a step", "memory_peak": "the memory peak"}


def _findings(found: Comparison) -> Iterator[str]:
    """Name the findings that went and came."""
    parts = []
    for fate, word in ((Fate.FIXED, "gone"), (Fate.NEW, "new")):
        mine = [_finding(one) for one in found.findings if one.fate is fate]
        if mine:
            parts.append(f"{word}: {listed(mine)}")
    if parts:
        yield f"Findings {'; '.join(parts)}."


def _finding(one: FindingChange) -> str:
    worth = one.before_ns if one.fate is Fate.FIXED else one.after_ns
    return f"{one.rule} (worth {shown(worth)} a step)" if worth else one.rule
