"""Why a step changed, or did not, in sentences.

Every number in them stands in a table of the comparison too. Only what can be claimed is said to
have changed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.comparison.change import Basis, Verdict
from gpusight.comparison.explain_gpu import waiting, work
from gpusight.comparison.exposure import exposures
from gpusight.comparison.hosts import host_ranges
from gpusight.comparison.outcome import Fate
from gpusight.comparison.telling import colon, entries, is_apart, matters
from gpusight.comparison.wording import difference, from_to, interval, is_how, listed, shown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.comparison.outcome import Comparison, FindingChange


def explain(found: Comparison) -> tuple[str, ...]:
    """Say what became of the step time and why; the first sentence is the verdict."""
    return tuple(_sentences(found))


def _sentences(found: Comparison) -> Iterator[str]:
    yield _verdict(found)
    yield from _period(found)
    yield from work(found)
    yield from host_ranges(found)
    yield from waiting(found)
    yield from exposures(found)
    yield from _beside(found)
    yield from _findings(found)


# The step ----------------------------------------------------------------------------------------


def _verdict(found: Comparison) -> str:
    step = found.step
    name = "step time" if all(found.before.steps) else "time of the window"
    numbers = f"{from_to(step)} ({difference(step)})"
    given = interval(step, found.confidence)
    if step.verdict is Verdict.UNCLEAR:
        return f"No change of {name} can be claimed: {numbers}, {_why_unclear(found, given)}."
    same = f" within {_least(found)}" if step.verdict is Verdict.SAME else ""
    rest = ", ".join(filter(None, (given, _rests_on(found))))
    return f"{name.capitalize()} {is_how(step)}{same}: {numbers}; {rest}."


def _least(found: Comparison) -> str:
    return f"{found.least * 100:g}%"


def _rests_on(found: Comparison) -> str:
    """Say what an interval was made of."""
    before, after = found.before, found.after
    if found.step.basis is Basis.REPEATS:
        return f"from {len(before.labels)} and {len(after.labels)} captures"
    if found.step.basis is Basis.STEPS:
        return f"from {before.steps[0]:,} and {after.steps[0]:,} steps of one run each"
    return "from one value each, so that nothing tells how much it varies"


def _why_unclear(found: Comparison, given: str) -> str:
    """Say what stands against a claim: how much captures of a side, or steps, differ anyway."""
    step = found.step
    if step.basis is Basis.NONE or step.low is None or step.high is None:
        return _rests_on(found)
    if step.low > 0 or step.high < 0:
        return f"{given}, which is not surely more than {_least(found)}"
    if step.basis is Basis.STEPS:
        return f"{given}, {_rests_on(found)}: steps of a run differ too much"
    spreads = [max(side.step_ns) - min(side.step_ns) for side in (found.before, found.after)]
    return f"{given}: captures of the same side differ by up to {shown(max(spreads))}"


def _period(found: Comparison) -> Iterator[str]:
    """Say what lies between steps, where that is much: a program is as fast as its period."""
    if not found.between:
        return
    between, period = (found.metric(key).change for key in ("between_steps", "step_period"))
    named = entries(found, found.between, between.delta)
    numbers = f"{from_to(period)} ({difference(period)})"
    taken = f"it takes {numbers}, no change of that can be claimed"
    if period.claimed:
        taken = f"it {is_how(period)}: {numbers}"
    if between.claimed and matters(found, between):
        text = f"Between steps it {is_how(between)}: {from_to(between)} ({difference(between)})"
        yield f"{text}{colon(named)}; from one step to the next {taken}."
    elif named or is_apart(found):
        inside = f"; between steps {named}" if named else ""
        yield f"From one step to the next {taken}{inside}."


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
