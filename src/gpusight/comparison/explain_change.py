"""Why a step changed, or did not, in sentences: first the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.analysis.ledger.ledger_entries import IDLE
from gpusight.comparison.comparison_result import FindingFate
from gpusight.comparison.explain_host import by_more_than, exposures, host_activity, host_ranges
from gpusight.comparison.phrases import (
    FAR_MORE,
    bottleneck_phrase,
    busy_phrase,
    colon,
    difference,
    each,
    entries,
    from_to,
    interval,
    is_how,
    joined,
    listed,
    matters,
    percent,
    sentences,
    shown,
    signed,
    whole,
)
from gpusight.comparison.significance import Basis, ChangeVerdict

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.comparison.comparison_result import Comparison, FindingChange
    from gpusight.comparison.significance import MeasuredChange


_TAKES_BACK = 0.25
"""Part of a change from which on what goes the other way is worth a sentence."""
_MOST_NAMED = 2
"""Entries, and ranges, that a sentence begins with."""
_NO_PHASE = frozenset({"other", "unknown"})


# Work --------------------------------------------------------------------------------------------


def work(found: Comparison) -> Iterator[str]:
    """Say how the work of the GPU changed, whether or not the step did."""
    busy, kernels = found.metric("busy").change, found.metric("kernel_time").change
    if kernels.claimed and not found.headline.change.claimed:
        numbers = f"{from_to(kernels)} ({difference(kernels)})"
        yield f"Kernel time {is_how(kernels)} even so: {numbers} a step."
    named = _of_step(found, busy.delta, idle=False)
    if busy.claimed and matters(found, busy):
        text = f"GPU work {is_how(busy)}: {from_to(busy)} ({difference(busy)}) {each(found)}"
        yield f"{text}{colon(named)}{_phases(found)}."
    elif named and not busy.claimed:
        yield f"{_unclaimed('GPU work', busy)}, but of its parts: {named} a step."


def _unclaimed(name: str, change: MeasuredChange) -> str:
    """Say that no change of a whole is claimed."""
    if change.verdict is ChangeVerdict.SAME:
        return f"{name[0].upper()}{name[1:]} as a whole is the same ({from_to(change)})"
    return f"No change of {name} as a whole can be claimed ({from_to(change)})"


def _of_step(found: Comparison, of: float | None, *, idle: bool) -> str:
    """Name the entries of the step; what lies between steps has a sentence of its own."""
    rows = (one for one in found.ledger if one.entry.startswith(f"{IDLE}/") == idle)
    return entries(found, rows, of)


def _phases(found: Comparison) -> str:
    """Name the phases that changed by what matters to the step."""
    least = found.least * (found.step.before or 0.0)
    every = [(name, change) for name, change in found.phases if name not in _NO_PHASE]
    mine = [(n, c) for n, c in every if c.claimed and abs(c.delta or 0.0) >= least]
    mine.sort(key=lambda one: -abs(one[1].delta or 0.0))
    return f"; by phase {sentences(mine)}" if mine else ""


# Waiting -----------------------------------------------------------------------------------------


def waiting(found: Comparison) -> Iterator[str]:
    """Say what became of the time that the GPU waits, and what that did to the step."""
    busy, idle = found.metric("busy").change, found.metric("idle").change
    did, waited = busy.delta or 0.0, idle.delta or 0.0
    named = _of_step(found, waited if idle.claimed else None, idle=True)
    if not idle.claimed:
        if named:
            yield f"{_unclaimed('idle time', idle)}, but of its parts: {named} a step."
        elif busy.claimed and not whole(found)[1].claimed:
            yield (
                f"{_unclaimed('idle time', idle)}; {bottleneck_phrase(found)} "
                f"({busy_phrase(found)})."
            )
    elif busy.claimed and did * waited < 0 and _TAKES_BACK * abs(did) <= abs(waited) <= abs(did):
        yield _taken_back(found, did, idle)
    elif matters(found, idle):
        numbers = f"{from_to(idle)} ({difference(idle)}) {each(found)}"
        text = f"Idle time of the GPU {is_how(idle)}: {numbers}"
        yield f"{text}{colon(named)}; {bottleneck_phrase(found)} ({busy_phrase(found)})."


def _taken_back(found: Comparison, did: float, idle: MeasuredChange) -> str:
    """Say that work and waiting changed against each other.

    That idle time changed for sure means as much as that work and the whole did not change alike.
    """
    name, of = whole(found)
    delta, fell = of.delta or 0.0, did < 0
    far = abs(delta) * FAR_MORE
    mine = _what_moved(found, far, fell=fell)[:_MOST_NAMED]
    more = "far more" if mine or abs(did) >= far else "more"
    moved = joined([*(mine or ["GPU work"]), *by_more_than(found, far, fell=fell)[:_MOST_NAMED]])
    what, how = ("fell", "longer") if fell else ("rose", "less")
    named = _of_step(found, idle.delta, idle=True)
    waited = f"{shown(abs(idle.delta or 0.0))} {how}{f' ({named})' if named else ''}"
    return (
        f"{moved} {what} by {more} than {name} ({signed(delta)}), because "
        f"{bottleneck_phrase(found)}: "
        f"the GPU idles {waited}, {busy_phrase(found)}."
    )


def _what_moved(found: Comparison, far: float, *, fell: bool) -> list[str]:
    """Name the entries of GPU work that changed by more than `far`, with their change."""
    return [
        f"{one.entry} ({signed(one.change.delta)})"
        for one in found.ledger
        if one.change.claimed
        and not one.entry.startswith(f"{IDLE}/")
        and ((one.change.delta or 0.0) < 0) == fell
        and abs(one.change.delta or 0.0) > far
        and matters(found, one.change)
    ]


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
    yield from host_activity(found)
    yield from waiting(found)
    yield from exposures(found)
    yield from _beside(found)
    yield from _findings(found)


# The verdict -------------------------------------------------------------------------------------


def _verdict(found: Comparison) -> str:
    change = found.headline.change
    numbers = _numbers(change)
    given = interval(change, found.confidence)
    if change.verdict is ChangeVerdict.UNCLEAR:
        against = _why_unclear(found, change, given)
        return f"No change of {_named(found)} can be claimed: {numbers}, {against}."
    same = f" within {percent(found.least)}" if change.verdict is ChangeVerdict.SAME else ""
    rest = ", ".join(filter(None, (given, _rests_on(found, change))))
    subject = "From step to step it" if found.is_apart else _named(found).capitalize()
    return f"{subject} {is_how(change)}{same}: {numbers}; {rest}."


def _named(found: Comparison) -> str:
    if found.is_apart:
        return "the time from step to step"
    return "step time" if all(found.before.steps) else "time of the window"


def _rests_on(found: Comparison, change: MeasuredChange) -> str:
    """Say what an interval was made of."""
    before, after = found.before, found.after
    if change.basis is Basis.REPEATS:
        return f"from {len(before.labels)} and {len(after.labels)} captures"
    if change.basis is Basis.STEPS:
        return f"from {before.steps[0]:,} and {after.steps[0]:,} steps of one run each"
    return "from one value each, so that nothing tells how much it varies"


def _why_unclear(found: Comparison, change: MeasuredChange, given: str) -> str:
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
        yield f"{_step_sentence(found)}."
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


def _step_sentence(found: Comparison) -> str:
    if found.step.verdict is ChangeVerdict.UNCLEAR:
        return f"No change of the step itself can be claimed: {_numbers(found.step)}"
    return f"The step itself {is_how(found.step)}: {_numbers(found.step)}"


def _of_period(found: Comparison) -> str:
    period = found.metric("step_period").change
    if period.claimed:
        return f"it {is_how(period)}: {_numbers(period)}"
    return f"it takes {_numbers(period)}, no change of that can be claimed"


def _numbers(change: MeasuredChange) -> str:
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
    for fate, word in ((FindingFate.FIXED, "gone"), (FindingFate.NEW, "new")):
        mine = [_finding(one) for one in found.findings if one.fate is fate]
        if mine:
            parts.append(f"{word}: {listed(mine)}")
    if parts:
        yield f"Findings {'; '.join(parts)}."


def _finding(one: FindingChange) -> str:
    worth = one.before_ns if one.fate is FindingFate.FIXED else one.after_ns
    return f"{one.rule} (worth {shown(worth)} a step)" if worth else one.rule
