"""Why step time changed, or did not, in sentences: verdict, GPU work, host, idle time."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, NamedTuple

from gpusight.analysis.gpu_schedule import CallKind, kind_of
from gpusight.analysis.ledger.ledger_entries import COMMUNICATION, COPY, IDLE
from gpusight.comparison.named_metrics import crosses
from gpusight.comparison.phrases import (
    FAR_MORE,
    GPU,
    WORTH_NAMING,
    bottleneck_phrase,
    bottleneck_sentence,
    busy_phrase,
    copy_name,
    difference,
    entries,
    from_to,
    interval,
    is_how,
    join_first,
    matters,
    overlap_phrase,
    per_step,
    percent,
    repeats_phrase,
    sentences,
    shown,
    signed,
    whole,
)
from gpusight.comparison.program_identity import PROFILER
from gpusight.comparison.significance import MIN_REPEATS, Basis, ChangeVerdict, repeats_to_settle
from gpusight.results import Fmt
from gpusight.units import in_one_unit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpusight.comparison.comparison_result import CallChange, Comparison
    from gpusight.comparison.significance import MeasuredChange


def explain(comparison: Comparison, settled_by: str = "") -> tuple[str, ...]:
    """Explain the change of the step time; the first sentence is the verdict.

    A gate gives `settled_by`, what would settle its limit, so that it shows one number only.
    """
    if comparison.headline.change.delta is None:
        return (f"{time_name(comparison)} cannot be compared: {comparison.headline.missing}.",)
    verdict = _verdict(comparison, settled_by)
    if comparison.other_program:
        why = f"Probably different programs, or a rewritten one ({comparison.other_program})."
        verdict = f"{why} {verdict}"
    return (
        verdict,
        *_gpu_work(comparison),
        *_host_ranges(comparison),
        *_host_activity(comparison),
        *_idle_time(comparison),
        *_exposures(comparison),
        *_counts_and_memory(comparison),
    )


# The verdict -------------------------------------------------------------------------------------


def _verdict(comparison: Comparison, settled_by: str) -> str:
    change = comparison.headline.change
    numbers = _numbers(change)
    ends = interval(change, comparison.confidence)
    one_run = bool(ends) and change.basis is not Basis.REPEATS
    name = time_name(comparison)
    mixed = next((row.text for row in comparison.differences if row.kind == PROFILER), "")
    if mixed:  # one of them has the profiler's overhead in it
        return f"{name} {numbers}: not comparable; {mixed}."
    if one_run and change.verdict is ChangeVerdict.UNCLEAR:
        ends += " within these runs"  # others may differ more
    if change.verdict is ChangeVerdict.UNCLEAR:
        against = _why_unclear(comparison, change, ends)
        if not comparison.is_comparable:
            return f"{name} {numbers}: not significant; {against}."
        settled_by = settled_by or _settled_by(comparison, change)
        return f"{name} {numbers}: not significant yet, {settled_by}; {against}."
    same = f" within {percent(comparison.least)}" if change.verdict is ChangeVerdict.SAME else ""
    rest = ", ".join(filter(None, (ends, _basis(comparison, change))))
    if one_run:
        others = "other runs may differ more"
        if change.significant and comparison.within_run_noise:
            others = f"runs of one program may differ by {shown(comparison.run_noise_ns)}"
            if comparison.is_comparable:
                others += f": record {MIN_REPEATS} or more per side"
        return f"{name} {is_how(change)}{same} in these runs: {numbers}; {rest}; {others}."
    return f"{name} {is_how(change)}{same}: {numbers}; {rest}."


def time_name(comparison: Comparison) -> str:
    """Name the time that the verdict is about."""
    name = "Step time" if comparison.has_steps else "Window time"
    return f"{name} without the profiler" if comparison.corrected else name


def _basis(comparison: Comparison, change: MeasuredChange) -> str:
    """Name the samples of an interval."""
    before, after = comparison.before, comparison.after
    if change.basis is Basis.REPEATS:
        return f"{len(before.labels)} and {len(after.labels)} captures"
    if change.basis is Basis.STEPS and comparison.has_steps:
        return f"{before.steps[0]:,} and {after.steps[0]:,} steps"
    return "one run per side" if change.low is not None else "one sample per side; variance unknown"


def _why_unclear(comparison: Comparison, change: MeasuredChange, ends: str) -> str:
    """Explain why a change is not significant: the spread of captures or steps."""
    if change.basis is Basis.NONE or change.low is None or change.high is None:
        return _basis(comparison, change)
    if change.low > 0 or change.high < 0:
        return f"{ends}, possibly below the {percent(comparison.least)} threshold"
    if change.basis is Basis.STEPS:
        return f"{ends} includes 0 ({_basis(comparison, change)})"
    sides = {"before": comparison.before.step_ns, "after": comparison.after.step_ns}
    spreads = {side: max(times) - min(times) for side, times in sides.items()}
    widest = max(spreads, key=lambda side: spreads[side])
    return f"{ends}; captures {widest} differ by up to {shown(spreads[widest])}"


def _settled_by(comparison: Comparison, change: MeasuredChange) -> str:
    """Say how many captures per side would settle whether there is a change.

    The interval must exclude 0; of a change below the threshold it must not reach that.
    """
    delta, least = change.delta or 0.0, comparison.least * abs(change.before or 0.0)
    bound = 0.0 if abs(delta) >= least else math.copysign(least, delta)
    captures = [len(side.labels) for side in (comparison.before, comparison.after)]
    repeats = repeats_to_settle(change, bound, captures, comparison.confidence)
    if change.low is None:
        return f"record {repeats_phrase(repeats, measured=False)}"
    return f"{repeats_phrase(repeats)} would settle whether it changed"


def _numbers(change: MeasuredChange) -> str:
    return f"{from_to(change)} ({difference(change)})"


# GPU work and idle time --------------------------------------------------------------------------

_TAKES_BACK = 0.25
"""Share of a change from which on an opposite change is worth a sentence."""
_MAX_NAMED = 2
"""Entries, and ranges, that a sentence begins with."""
_NO_PHASE = frozenset({"other", "unknown"})


def _gpu_work(comparison: Comparison) -> Iterator[str]:
    """Explain the change of time between steps and of GPU work, whatever the step time did."""
    between = comparison.metric("between_steps").change
    if comparison.has_steps and between.significant and matters(comparison, between):
        yield f"Time between steps {is_how(between)}: {_numbers(between)} of each step."
    busy, kernels = comparison.metric("busy").change, comparison.metric("kernel_time").change
    overlap = overlap_phrase(comparison)
    if kernels.significant and (overlap or not comparison.headline.change.significant):
        text = f"Kernel time {is_how(kernels)}: {_numbers(kernels)}{per_step(comparison)}"
        yield f"{text}, only because {overlap}." if overlap else f"{text}."
    named = _step_entries(comparison, busy.delta, idle=False)
    if busy.significant and matters(comparison, busy):
        least_ns = comparison.least * (comparison.step.before or 0.0)
        phases = [
            (name, change)
            for name, change in comparison.phases
            if name not in _NO_PHASE
            and not overlap  # phases sum durations too
            and change.significant
            and abs(change.delta or 0.0) >= least_ns
        ]
        phases.sort(key=lambda row: -abs(row[1].delta or 0.0))
        text = f"GPU busy time {is_how(busy)}: {_numbers(busy)}{per_step(comparison)}"
        text += f": {named}" if named else ""
        text += f"; by phase {sentences(phases)}" if phases else ""
        yield f"{text}."
    elif named and not busy.significant:
        yield f"{_unclaimed('GPU busy time', busy)}, but in its parts: {named}."


def _unclaimed(name: str, change: MeasuredChange) -> str:
    """Say that a total did not change, or not significantly."""
    if change.verdict is ChangeVerdict.SAME:
        return f"{name} is unchanged ({from_to(change)})"
    return f"No significant change in {name} ({from_to(change)})"


def _step_entries(comparison: Comparison, total_delta_ns: float | None, *, idle: bool) -> str:
    """Name the entries of the step that changed: idle time, or GPU work."""
    rows = (row for row in comparison.ledger if row.entry.startswith(f"{IDLE}/") == idle)
    return entries(comparison, rows, total_delta_ns)


def _idle_time(comparison: Comparison) -> Iterator[str]:
    """Explain the change of GPU idle time, and its effect on the step."""
    busy, idle = comparison.metric("busy").change, comparison.metric("idle").change
    busy_ns, idle_ns = busy.delta or 0.0, idle.delta or 0.0
    opposite = busy.significant and busy_ns * idle_ns < 0
    named = _step_entries(comparison, idle_ns if idle.significant else None, idle=True)
    limit = bottleneck_sentence(comparison)
    if not idle.significant:
        if named:
            yield f"{_unclaimed('GPU idle time', idle)}, but in its parts: {named}."
        elif busy.significant and not whole(comparison)[1].significant:
            yield f"{_unclaimed('GPU idle time', idle)}; {limit}"
    elif opposite and _TAKES_BACK * abs(busy_ns) <= abs(idle_ns) <= abs(busy_ns):
        yield _opposite_changes(comparison, busy_ns, idle)
    elif matters(comparison, idle):
        text = f"GPU idle time {is_how(idle)}: {_numbers(idle)}{per_step(comparison)}"
        yield f"{text}{f': {named}' if named else ''}; {limit}"


def _opposite_changes(comparison: Comparison, busy_ns: float, idle: MeasuredChange) -> str:
    """Explain that GPU work and idle time changed in opposite directions.

    A significant change of idle time implies that work and the total changed differently.
    """
    name, total = whole(comparison)
    delta, fell = total.delta or 0.0, busy_ns < 0
    far_ns = abs(delta) * FAR_MORE
    moved = [
        f"{row.entry} ({signed(row.change.delta)})"
        for row in comparison.ledger
        if row.change.significant
        and not row.entry.startswith(f"{IDLE}/")
        and ((row.change.delta or 0.0) < 0) == fell
        and abs(row.change.delta or 0.0) > far_ns
        and matters(comparison, row.change)
    ][:_MAX_NAMED]
    more = "far more" if moved or abs(busy_ns) >= far_ns else "more"
    ranges = [
        f"range {_range_name(row)} on the host ({signed(row.host_ns.delta)})"
        for row in _changed_ranges(comparison)
        if ((row.host_ns.delta or 0.0) < 0) == fell and abs(row.host_ns.delta or 0.0) > far_ns
    ]
    *first, last = [*(moved or ["GPU work"]), *ranges[:_MAX_NAMED]]
    subject = f"{', '.join(first)} and {last}" if first else last
    what, how = ("fell", "longer") if fell else ("rose", "less")
    named = _step_entries(comparison, idle.delta, idle=True)
    idles = f"{shown(abs(idle.delta or 0.0))} {how}{f' ({named})' if named else ''}"
    return (
        f"{subject} {what} by {more} than {name} ({signed(delta)}), because "
        f"{bottleneck_phrase(comparison)}: the GPU idles {idles}, {busy_phrase(comparison)}."
    )


# Host --------------------------------------------------------------------------------------------

_MAX_RANGES_NAMED = 3
_MAX_NAME_CHARS = 60
_PLAIN = re.compile(r"[\w.:/#-]+\Z")
_MAX_ACTIVITIES_NAMED = 3
_MIN_CALLS = 1.0
"""Calls per step that are worth a sentence, where there were some before."""
_BLOCKING = frozenset({CallKind.SYNC, CallKind.ALLOCATE, CallKind.FREE})
_HOW_OFTEN = {
    ChangeVerdict.APPEARED: "New",
    ChangeVerdict.VANISHED: "No longer",
    ChangeVerdict.HIGHER: "More calls",
    ChangeVerdict.LOWER: "Fewer calls",
}


def _host_ranges(comparison: Comparison) -> Iterator[str]:
    """Name the ranges that changed most."""
    ranges = _changed_ranges(comparison)
    if not ranges:
        return
    named = [f"{_range_name(row)} {signed(row.host_ns.delta)}" for row in ranges]
    text = f"On the host: range {join_first(named[:_MAX_RANGES_NAMED])}"
    name, total = whole(comparison)
    moved_ns = sum(row.host_ns.delta or 0.0 for row in ranges)
    if comparison.after.limit == GPU and abs(moved_ns) > FAR_MORE * abs(total.delta or 0.0):
        how = f"did not change as much ({difference(total)})"
        if total.significant and (total.delta or 0.0) * moved_ns > 0:
            how = f"changed by only {signed(total.delta)}"
        text += f"; {name} {how}, because {bottleneck_phrase(comparison)}"
    yield f"{text}."


def _changed_ranges(comparison: Comparison) -> list[CallChange]:
    """Return the outermost ranges with a significant change that matters, the largest first."""
    total = whole(comparison)[1]
    before = total.before or 0.0
    part = WORTH_NAMING * (abs(total.delta or 0.0) if total.significant else before)
    least_ns = max(part, comparison.least * before)
    significant = [
        row for row in comparison.ranges if row.outer and row.name and row.host_ns.significant
    ]
    return [row for row in significant if abs(row.host_ns.delta or 0.0) >= least_ns]


def _range_name(row: CallChange) -> str:
    """Quote a name unless it stands out from the sentence."""
    text = row.name.replace("`", "'")
    name = text if len(text) <= _MAX_NAME_CHARS else f"{text[: _MAX_NAME_CHARS - 1]}…"
    return name if _PLAIN.match(name) else repr(name)


class _Activity(NamedTuple):
    name: str
    calls: MeasuredChange
    ns: MeasuredChange


def _host_activity(comparison: Comparison) -> Iterator[str]:
    """Name blocking calls and copies that are new, no longer made, or more or less frequent."""
    rows = [
        _Activity(call.name, call.calls, call.host_ns)
        for call in comparison.api
        if call.calls is not None and kind_of(call.name) in _BLOCKING
    ]
    rows += [
        _Activity(f"copies {copy_name(copy)}", copy.calls, copy.ns)
        for copy in comparison.copies
        if copy.calls is not None and any(crosses(copy.operation, up=up) for up in (True, False))
    ]
    came_or_went = (ChangeVerdict.APPEARED, ChangeVerdict.VANISHED)
    activities = [
        row
        for row in rows
        if row.calls.significant
        and (row.calls.verdict in came_or_went or abs(row.calls.delta or 0.0) >= _MIN_CALLS)
    ]
    activities.sort(key=lambda row: -abs(row.calls.delta or 0.0))
    for verdict, words in _HOW_OFTEN.items():
        named = [
            f"{row.name} {from_to(row.calls, Fmt.COUNT)}{per_step(comparison)}"
            f"{f' ({signed(row.ns.delta)})' if row.ns.significant else ''}"
            for row in activities[:_MAX_ACTIVITIES_NAMED]
            if row.calls.verdict is verdict
        ]
        if named:
            yield f"{words} on the host: {'; '.join(named)}."


# Overlap -----------------------------------------------------------------------------------------

_SAME = 0.1
"""Up to this share a difference counts as none here."""


def _exposures(comparison: Comparison) -> Iterator[str]:
    """Explain where copies and communication overlap more or less, or copies changed speed."""
    if len(comparison.before.gpus) != len(comparison.after.gpus):
        return
    gpus = max(len(comparison.before.gpus), 1)
    copies = [copy for copy in comparison.copies if copy.bytes_before or copy.bytes_after]
    exposed_ns = _claimed(comparison, COPY)
    before_ns, after_ns = _totals((copy.ns for copy in copies), gpus)
    if exposed_ns and _is_same(before_ns, after_ns):
        yield _overlap(comparison, "Copies", exposed_ns, before_ns, after_ns)
    elif exposed_ns and before_ns and after_ns:
        size = sum(copy.bytes_after for copy in copies)
        if _is_same(sum(copy.bytes_before for copy in copies), size):
            how = "less" if after_ns < before_ns else "more"
            times = in_one_unit(shown(before_ns), shown(after_ns), " -> ")
            amount = shown(size, Fmt.BYTES)
            per = per_step(comparison)
            yield f"Copies move the same {amount}{per} in {how} time: {times}."
    exposed_ns = _claimed(comparison, COMMUNICATION)
    collectives = (row.ns for row in comparison.kernels if row.category == COMMUNICATION)
    before_ns, after_ns = _totals(collectives, gpus)
    if exposed_ns and _is_same(before_ns, after_ns):
        yield _overlap(comparison, "Communication kernels", exposed_ns, before_ns, after_ns)


def _claimed(comparison: Comparison, group: str) -> float:
    """Sum the significant changes of a group of the ledger; 0 where that does not matter."""
    delta_ns = sum(
        row.change.delta or 0.0
        for row in comparison.ledger
        if f"{row.entry}/".startswith(f"{group}/") and row.change.significant
    )
    return delta_ns if abs(delta_ns) >= comparison.least * (comparison.step.before or 0.0) else 0.0


def _totals(changes: Iterable[MeasuredChange], gpus: int) -> tuple[float, float]:
    """Sum durations, overlapped or not, before and after; mean over GPUs."""
    rows = list(changes)
    before, after = sum(row.before or 0.0 for row in rows), sum(row.after or 0.0 for row in rows)
    return before / gpus, after / gpus


def _is_same(before: float, after: float) -> bool:
    return before > 0 and abs(after - before) <= before * _SAME


def _overlap(
    comparison: Comparison, name: str, exposed_ns: float, before_ns: float, after_ns: float
) -> str:
    where = "now overlap compute" if exposed_ns < 0 else "no longer overlap compute"
    times = in_one_unit(shown(before_ns), shown(after_ns), " -> ")
    how = "less" if exposed_ns < 0 else "more"
    alone = f"{shown(abs(exposed_ns))} {how} of it is exposed"
    return f"{name} {where}: same duration ({times}{per_step(comparison)}), {alone}."


# What else ---------------------------------------------------------------------------------------

_NAMES = {"launches": "kernel launches", "memory_peak": "peak memory"}


def _counts_and_memory(comparison: Comparison) -> Iterator[str]:
    parts = []
    for key, name in _NAMES.items():
        metric = comparison.metric(key)
        change = metric.change
        if change.significant:
            single = ", one sample per side" if change.basis is Basis.NONE else ""
            ratio = f" ({difference(change, metric.fmt)}{single})"
            per = per_step(comparison) if key == "launches" else ""
            how = "are" if key == "launches" else "is"
            verb = is_how(change).replace("is", how, 1)
            parts.append(f"{name}{per} {verb}: {from_to(change, metric.fmt)}{ratio}")
    if parts:
        text = "; ".join(parts)
        yield f"{text[0].upper()}{text[1:]}."
