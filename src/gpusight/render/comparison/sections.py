"""The parts of a comparison as tables of texts, the same for every form that people read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpusight.comparison.outcome import Fate, Match
from gpusight.comparison.wording import copy_name, shown, signed, signed_share, spread
from gpusight.render.comparison import words
from gpusight.render.comparison.section import SMALL, Column, Row, Section
from gpusight.render.comparison.words import Tone, held, marked, pair
from gpusight.result import Fmt
from gpusight.units import MISSING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpusight.comparison.change import Change
    from gpusight.comparison.outcome import (
        CallChange,
        Comparison,
        CopyChange,
        Entry,
        FindingChange,
        KernelChange,
        Metric,
    )
    from gpusight.render.comparison.section import Cell

_REST = "the rest"
_NUMBERS = (
    Column("Before", units=True),
    Column("After", units=True),
    Column("Change", toned=True, units=True),
)
_EXTRA = (
    Column("%", toned=True, extra=True),
    Column("Interval", extra=True),
    Column("Verdict", right=False, toned=True, extra=True),
)


def sections(comparison: Comparison) -> list[Section]:
    """Give every table that has something in it, in the order in which they are read."""
    made = (
        _metrics(comparison),
        _ledger(comparison),
        _between(comparison),
        _phases(comparison),
        _kernels(comparison),
        _ranges(comparison),
        _api(comparison),
        _copies(comparison),
        _findings(comparison),
    )
    return [section for section in made if section.rows]


def _each(comparison: Comparison) -> str:
    return ", a step" if words.is_per_step(comparison) else ""


def _small(comparison: Comparison) -> float:
    return SMALL * max(comparison.step.before or 0.0, comparison.step.after or 0.0)


def _times(change: Change) -> tuple[str, str, str]:
    before, after = held(change.before, Fmt.TIME), held(change.after, Fmt.TIME)
    return before, after, marked(change, Fmt.TIME)


def _more(change: Change) -> tuple[str, str, str]:
    ends = spread(change.low, change.high, Fmt.TIME)
    return signed_share(change.ratio), ends, change.verdict.value


def _metrics(comparison: Comparison) -> Section:
    confidence = f"{100 * comparison.confidence:g}% interval"
    columns = (
        Column("Metric", right=False, name=True),
        *_NUMBERS,
        Column("%", toned=True),
        Column(confidence),
        Column("Verdict", right=False, toned=True),
    )
    title = "Metrics" + _each(comparison)
    first, *others = comparison.metrics
    worth = (one for one in others if one.change.before != 0 or one.change.after != 0)
    named = replace(first, label=words.label(comparison))
    rows = tuple(map(_metric, (named, *worth)))
    return Section("metrics", title, columns, rows, whole=True)


def _metric(metric: Metric) -> Row:
    change, fmt = metric.change, metric.fmt
    if change.before is None and change.after is None:
        cells = (metric.label, *((MISSING,) * 5), "missing")
        return Row(cells, Tone.UNSURE, None)
    sides = (shown(change.before, fmt), shown(change.after, fmt))
    known = change.delta is not None
    verdict = change.verdict.value if known else "missing"
    ends = spread(change.low, change.high, fmt)
    numbers = (signed(change.delta, fmt), signed_share(change.ratio), ends)
    tone = Tone.PLAIN if metric.key == "busy" and change.claimed else words.tone(change)
    return Row((metric.label, *sides, *numbers, verdict), tone, change.delta)


_ENTRIES = (
    Column("Entry", name=True, right=False),
    *_NUMBERS,
    Column("Part", extra=True),
    *_EXTRA,
)


def _ledger(comparison: Comparison) -> Section:
    whole = "the step" if words.is_per_step(comparison) else "the window"
    rows = [_entry(entry) for entry in comparison.ledger]
    if rows:
        rows.append(_total(f"sum: {whole}", comparison.step, percent_of(1.0)))
    title = "Where the time goes" + _each(comparison)
    return Section("ledger", title, _ENTRIES, tuple(rows), bars=True)


def _between(comparison: Comparison) -> Section:
    """Go on where the ledger of the step ends: its rows and the step sum to a period."""
    rows = [_entry(entry) for entry in comparison.between]
    if rows:
        between, period = (
            comparison.metric(key).change for key in ("between_steps", "step_period")
        )
        rows.append(_total("sum: between steps", between, percent_of(1.0)))
        rows.append(_total("from step to step", period, MISSING))
    return Section("between", "Between steps", _ENTRIES, tuple(rows), bars=True)


def _total(name: str, change: Change, part: str) -> Row:
    cells = (name, *_times(change), part, *_more(change))
    return Row(cells, words.tone(change), change.delta, total=True)


def _entry(entry: Entry) -> Row:
    change = entry.change
    cells = (entry.entry, *_times(change), percent_of(entry.part), *_more(change))
    return Row(cells, words.tone(change), change.delta)


def percent_of(part: float | None) -> str:
    """Show a part of the step's change, which may be many times the whole, and against it."""
    if part is None:
        return MISSING
    return f"{round(100 * part):,}%" if abs(part) < 100 else f"{part:,.0f} x"


def _phases(comparison: Comparison) -> Section:
    columns = (*_turned(), *_EXTRA, Column("Phase", name=True, right=False))
    rows = tuple(
        Row((*_turn(change), *_more(change), name), words.tone(change), change.delta)
        for name, change in comparison.phases
    )
    title = "GPU work by phase" + _each(comparison)
    return Section("phases", title, columns, rows)


def _turned() -> tuple[Column, ...]:
    """Put the change first, where lists are sorted by it."""
    before, after, change = _NUMBERS
    return change, before, after


def _turn(change: Change) -> tuple[str, str, str]:
    before, after, delta = _times(change)
    return delta, before, after


def _kernels(comparison: Comparison) -> Section:
    columns = (
        *_turned(),
        *_EXTRA,
        Column("Calls"),
        Column("One, before", units=True, extra=True),
        Column("One, after", units=True, extra=True),
        Column("Kernel", name=True, quoted=True, right=False),
        Column("Kind", right=False, extra=True, detail=True),
        Column("Matched by", right=False, extra=True, detail=True),
        Column("Range", name=True, quoted=True, right=False, extra=True, detail=True),
    )
    rows = tuple(map(_kernel, comparison.kernels))
    title = "Kernels" + _each(comparison)
    return Section("kernels", title, columns, rows, small=_small(comparison))


def _kernel(one: KernelChange) -> Row:
    means = (held(ns, Fmt.TIME) for ns in one.mean_ns)
    cells = (
        *_turn(one.ns),
        *_more(one.ns),
        pair(one.calls_before, one.calls_after, Fmt.COUNT),
        *means,
        _kernel_name(one),
        one.category,
        one.match.value,
        one.ranges[0] if one.ranges else MISSING,
    )
    return Row(cells, words.tone(one.ns), one.ns.delta)


def _kernel_name(one: KernelChange) -> Cell:
    old, arrow, new = one.short.partition(f" {words.ARROW} ")
    if one.match is Match.ROLE and arrow:
        return old, new
    return one.short or _REST


def _calls(changes: Iterable[CallChange], noun: str) -> tuple[tuple[Column, ...], tuple[Row, ...]]:
    found = list(changes)
    on_gpu = any(one.gpu_ns is not None for one in found)
    gpu = (Column("On GPU", units=True),) if on_gpu else ()
    name = Column(noun, name=True, quoted=True, right=False)
    columns = (*_turned(), *_EXTRA, *gpu, Column("Calls"), name)
    return columns, tuple(_call(one, on_gpu=on_gpu) for one in found)


def _call(one: CallChange, *, on_gpu: bool) -> Row:
    gpu = (MISSING if one.gpu_ns is None else marked(one.gpu_ns, Fmt.TIME),) if on_gpu else ()
    cells = (
        *_turn(one.host_ns),
        *_more(one.host_ns),
        *gpu,
        pair(one.calls_before, one.calls_after, Fmt.COUNT),
        one.name or _REST,
    )
    return Row(cells, words.tone(one.host_ns), one.host_ns.delta)


def _ranges(comparison: Comparison) -> Section:
    columns, rows = _calls(comparison.ranges, "Range")
    title = "Ranges, time on the host" + _each(comparison)
    return Section("ranges", title, columns, rows, small=_small(comparison))


def _api(comparison: Comparison) -> Section:
    columns, rows = _calls(comparison.api, "Call")
    title = "API calls, time on the host" + _each(comparison)
    return Section("api_calls", title, columns, rows, small=_small(comparison))


def _copies(comparison: Comparison) -> Section:
    columns = (
        *_turned(),
        *_EXTRA,
        Column("Bytes"),
        Column("Calls"),
        Column("Copy", name=True, right=False),
    )
    rows = tuple(map(_copy, comparison.copies))
    return Section("copies", "Copies" + _each(comparison), columns, rows)


def _copy(one: CopyChange) -> Row:
    cells = (
        *_turn(one.ns),
        *_more(one.ns),
        pair(one.bytes_before, one.bytes_after, Fmt.BYTES),
        pair(one.calls_before, one.calls_after, Fmt.COUNT),
        copy_name(one),
    )
    return Row(cells, words.tone(one.ns), one.ns.delta)


def _findings(comparison: Comparison) -> Section:
    several = any(len(side.labels) > 1 for side in (comparison.before, comparison.after))
    columns = (
        Column("", right=False, toned=True),
        Column("Saved before", units=True),
        Column("Saves now", units=True),
        *((Column("Captures", right=False),) if several else ()),
        Column("Finding", name=True, right=False),
        Column("What was seen", name=True, right=False, beneath=True),
    )
    rows = tuple(_found(comparison.findings, several=several))
    title = "Findings, and what their fixes give back" + _each(comparison)
    return Section("findings", title, columns, rows)


_TONES = {Fate.FIXED: Tone.GOOD, Fate.NEW: Tone.BAD, Fate.STAYED: Tone.PLAIN}


def _found(findings: Iterable[FindingChange], *, several: bool) -> Iterator[Row]:
    """Give findings by fate; of several captures, how many show it and which one says so."""
    for fate in Fate:
        for one in (f for f in findings if f.fate is fate):
            times = (held(one.before_ns, Fmt.TIME), held(one.after_ns, Fmt.TIME))
            by = (one.shown_by,) if several else ()
            title = f"{one.title} ({one.capture})" if several and one.capture else one.title
            yield Row((fate.value, *times, *by, one.rule, title), _TONES[fate], None)
