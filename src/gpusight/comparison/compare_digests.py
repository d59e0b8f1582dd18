"""Compares two sides of captures, part by part, and says which findings are resolved or new."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import numpy as np

from gpusight.analysis.capture_completeness import COPIES, KERNELS, MEMSETS
from gpusight.analysis.steps.step_list import PHASES
from gpusight.comparison.comparability import differences, each_once, notes, other_parts
from gpusight.comparison.compared_quantities import ChangeRows, changes
from gpusight.comparison.comparison_result import (
    CallChange,
    ComparedSide,
    Comparison,
    CopyChange,
    EntryChange,
    FindingChange,
    FindingFate,
    KernelChange,
    MetricChange,
    confidence_of_rows,
)
from gpusight.comparison.explain_change import explain
from gpusight.comparison.kernel_match import match_kernels
from gpusight.comparison.named_metrics import LIST, both
from gpusight.comparison.phrases import NOTHING, bottleneck, busy_share, percent
from gpusight.comparison.significance import CONFIDENCE, MIN_EFFECT
from gpusight.errors import UsageError
from gpusight.results import NotApplicable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    from gpusight.comparison.compared_quantities import ComparedQuantity
    from gpusight.comparison.digest import CallDigest, Digest, DigestFinding, Series
    from gpusight.comparison.significance import MeasuredChange

    Floats: TypeAlias = NDArray[np.float64]
    Pairs: TypeAlias = Sequence[tuple[ComparedQuantity, ComparedQuantity]]
    Test: TypeAlias = Callable[[Pairs], list[MeasuredChange]]


_Key = TypeVar("_Key")
_Row = TypeVar("_Row")
_LEAST_BETWEEN = 0.01
"""Part of the time from step to step from which on that between them is listed."""
REST = "(all other kernels)"
"""What the row is called that sums up those that digests leave out."""


def side(digests: Sequence[Digest]) -> ComparedSide:
    """Sum up one side."""
    spent = mean_ledger(digests)
    return ComparedSide(
        labels=tuple(one.label for one in digests),
        tools=tuple(dict.fromkeys(one.tool for one in digests)),
        gpus=digests[0].gpus,
        steps=tuple(one.steps for one in digests),
        step_ns=tuple(_mean(one, one.step_ns) for one in digests),
        limit=bottleneck(spent),
        busy_share=busy_share(spent),
        period_ns=tuple(_mean(one, one.step_ns) + _mean(one, one.between_ns) for one in digests),
    )


def mean_ledger(digests: Sequence[Digest]) -> dict[str, float]:
    """Give the ledger from one step to the next, mean over captures."""
    spent: dict[str, float] = {}
    for digest in digests:
        for entry, ns in digest.entries():
            spent[entry] = spent.get(entry, 0.0) + _mean(digest, ns) / len(digests)
    return spent


def _mean(digest: Digest, series: Series) -> float:
    return float(np.average(series, weights=digest.blocks))


def ledger(
    before: Sequence[Digest], after: Sequence[Digest], test: Test, step_ns: float | None
) -> tuple[EntryChange, ...]:
    """Give every entry of either side, those that changed most first."""
    return _entries(ChangeRows.of(before, after, lambda one: one.ledger), test, step_ns)


def between(
    before: Sequence[Digest],
    after: Sequence[Digest],
    test: Test,
    period: MetricChange,
    pause: MetricChange,
) -> tuple[EntryChange, ...]:
    """Give the entries of the time between steps; none where that is next to nothing."""
    sides = [(pause.change.before, period.change.before), (pause.change.after, period.change.after)]
    if all((apart or 0.0) < _LEAST_BETWEEN * (whole or 0.0) for apart, whole in sides):
        return ()
    rows: ChangeRows[str, Series] = ChangeRows.of(before, after, lambda one: one.between)
    return _entries(rows, test, pause.change.delta)


def _entries(
    rows: ChangeRows[str, Series], test: Test, whole_ns: float | None
) -> tuple[EntryChange, ...]:
    tested = zip(rows.keys, test(rows.pairs(lambda ns: ns, rows.keys)), strict=True)
    made = (EntryChange(name, change, _part(change, whole_ns)) for name, change in tested)
    return _by_change(made, lambda entry: entry.change)


def _part(change: MeasuredChange, whole_ns: float | None) -> float | None:
    return change.delta / whole_ns if change.delta is not None and whole_ns else None


def _by_change(rows: Iterable[_Row], change: Callable[[_Row], MeasuredChange]) -> tuple[_Row, ...]:
    return tuple(sorted(rows, key=lambda row: -abs(change(row).delta or 0.0)))


def phases(
    before: Sequence[Digest], after: Sequence[Digest], test: Test
) -> tuple[tuple[str, MeasuredChange], ...]:
    """Give the phases in their order; none where a capture does not tell them."""
    if not all(one.phases for one in (*before, *after)):
        return ()
    rows: ChangeRows[str, Series] = ChangeRows.of(before, after, lambda one: one.phases)
    names = sorted(rows.keys, key=lambda name: (PHASES.index(name) if name in PHASES else 99, name))
    return tuple(zip(names, test(rows.pairs(lambda ns: ns, names)), strict=True))


class _Launches(NamedTuple):
    ns: Floats
    calls: Floats


def kernels(
    before: Sequence[Digest], after: Sequence[Digest], test: Test
) -> tuple[KernelChange, ...]:
    """Give the kernels that belong together, those that changed most first."""
    matched = match_kernels(before, after)
    rows = ChangeRows(
        [(one, _launches(one, [m.before[at] for m in matched])) for at, one in enumerate(before)],
        [(one, _launches(one, [m.after[at] for m in matched])) for at, one in enumerate(after)],
    )
    tested = test(rows.pairs(lambda row: row.ns.tolist(), range(len(matched))))
    made = []
    for at, (one, change) in enumerate(zip(matched, tested, strict=True)):
        calls = rows.means(lambda row: row.calls.tolist(), at)
        names = one.before_names, one.after_names, one.short or REST
        made.append(KernelChange(*names, one.category, one.ranges, one.match, change, *calls))
    return _by_change(made, lambda row: row.ns)


def _launches(digest: Digest, parts: Sequence[Mapping[int, float]]) -> dict[int, _Launches]:
    """Give the launches of a capture by the position of the match that they belong to."""
    return {at: _weighed(digest, part) for at, part in enumerate(parts) if part}


def _weighed(digest: Digest, parts: Mapping[int, float]) -> _Launches:
    """Sum rows of a capture, each by the part of its launches that belongs here."""
    of = [(digest.kernels[at], part) for at, part in parts.items()]
    ns = sum((np.array(row.ns, float) * part for row, part in of), np.zeros(len(digest.blocks)))
    calls = (np.array(row.calls, float) * part for row, part in of)
    return _Launches(ns, sum(calls, np.zeros(len(digest.blocks))))


def calls(
    before: Sequence[Digest], after: Sequence[Digest], part: str, test: Test, test_of_outer: Test
) -> tuple[CallChange, ...]:
    """Give the `ranges` or the `api` calls by name, of captures that have any; else none.

    The outermost ranges are few, and are tested as the step is.
    """
    before, after = ([one for one in side if getattr(one, part)] for side in (before, after))
    if not before or not after:
        return ()
    rows: ChangeRows[str, CallDigest] = ChangeRows.of(
        before, after, lambda o: {r.name: r for r in getattr(o, part)}
    )
    known = [name for name in rows.keys if all(row.gpu_ns is not None for row in rows.named(name))]
    work = dict(zip(known, test(rows.pairs(lambda row: row.gpu_ns or (), known)), strict=True))
    number = _numbers(rows, test, rows.keys if part == "api" else ())
    outer = {name: all(row.outer for row in rows.named(name)) for name in rows.keys}
    made = []
    for is_outer, tested in ((True, test_of_outer), (False, test)):
        names = [name for name in rows.keys if outer[name] is is_outer]
        host = zip(names, tested(rows.pairs(lambda row: row.host_ns, names)), strict=True)
        for name, change in host:
            many = rows.means(lambda row: row.calls, name)
            numbers = work.get(name), *many
            made.append(CallChange(name, change, *numbers, outer=is_outer, calls=number.get(name)))
    return _by_change(made, lambda row: row.host_ns)


def _numbers(
    rows: ChangeRows[_Key, Any], test: Test, keys: Sequence[_Key]
) -> dict[_Key, MeasuredChange]:
    """Say by how much the number of calls changed."""
    return dict(zip(keys, test(rows.pairs(lambda row: row.calls, keys)), strict=True))


def copies(before: Sequence[Digest], after: Sequence[Digest], test: Test) -> tuple[CopyChange, ...]:
    """Give copies and fills by direction and kinds of memory."""
    rows = ChangeRows.of(
        before, after, lambda o: {(c.operation, c.src_kind, c.dst_kind): c for c in o.copies}
    )
    tested = zip(rows.keys, test(rows.pairs(lambda copy: copy.ns, rows.keys)), strict=True)
    made = []
    number = _numbers(rows, test, rows.keys)
    for kind, change in tested:
        moved = rows.means(lambda copy: copy.bytes, kind)
        many = rows.means(lambda copy: copy.calls, kind)
        made.append(CopyChange(*kind, change, *moved, *many, calls=number[kind]))
    return _by_change(made, lambda row: row.ns)


def finding_changes(before: Sequence[Digest], after: Sequence[Digest]) -> tuple[FindingChange, ...]:
    """Tell which findings are new, fixed or stayed, those worth most first.

    New is what every capture shows after and none before, fixed the reverse: rules have
    thresholds, and what some captures of a side show and others do not tells nothing of a change.
    None at all where no capture of a side could be diagnosed.
    """
    sides = [[one for one in side if "findings" not in one.missing] for side in (before, after)]
    if not all(sides):
        return ()
    rules = dict.fromkeys(found.rule for side in sides for one in side for found in one.findings)
    every = [_changed(rule, *(_shown(rule, side) for side in sides)) for rule in rules]
    order = [FindingFate.NEW, FindingFate.STAYED, FindingFate.FIXED]
    return tuple(sorted(every, key=lambda one: (order.index(one.fate), -_worth(one))))


class _Shown(NamedTuple):
    """A finding on one side, and the captures that show it."""

    found: list[tuple[DigestFinding, Digest]]
    captures: int

    @property
    def everywhere(self) -> bool:
        return len(self.found) == self.captures

    @property
    def step_ns(self) -> float | None:
        known = [one.step_ns for one, _ in self.found if one.step_ns is not None]
        return sum(known) / len(known) if known else None


def _shown(rule: str, side: Sequence[Digest]) -> _Shown:
    """Find a rule in captures; of several findings of one, the foremost counts."""
    first = [(next((f for f in one.findings if f.rule == rule), None), one) for one in side]
    return _Shown([(found, one) for found, one in first if found is not None], len(side))


def _changed(rule: str, before: _Shown, after: _Shown) -> FindingChange:
    said, capture = (after.found or before.found)[0]
    return FindingChange(
        rule,
        said.title,
        _fate(before, after),
        before.step_ns,
        after.step_ns,
        len(before.found),
        len(after.found),
        capture.label,
        (before.captures, after.captures),
    )


def _fate(before: _Shown, after: _Shown) -> FindingFate:
    if after.everywhere and not before.found:
        return FindingFate.NEW
    return FindingFate.FIXED if before.everywhere and not after.found else FindingFate.STAYED


def _worth(one: FindingChange) -> float:
    return max(one.before_ns or 0.0, one.after_ns or 0.0)


_LEAST_CONFIDENCE = 0.5


def compare(
    before: Sequence[Digest],
    after: Sequence[Digest],
    *,
    confidence: float = CONFIDENCE,
    least: float = MIN_EFFECT,
) -> Comparison | NotApplicable:
    """Compare captures of a program with captures of it after a change; several are repeats."""
    _check(before, after, confidence, least)
    if absent := other_parts((*before, *after), "compare") or _steps_of_some_only(before, after):
        return absent
    (before, copies), (after, more) = each_once(before), each_once(after)
    found = _compared(before, after, confidence, least)
    found = replace(found, notes=(*copies, *more, *notes(before, after, found)))
    return replace(found, explanation=explain(found))


def _check(
    before: Sequence[Digest], after: Sequence[Digest], confidence: float, least: float
) -> None:
    for side, digests in (("before", before), ("after", after)):
        if not digests:
            raise UsageError(
                f"no capture of {side} was given", hint="gpusight compare BEFORE AFTER"
            )
    check_confidence(confidence)
    if not 0 <= least < 1:
        raise UsageError(f"a least effect of {percent(least)} makes no sense", hint="such as 2%")


def check_confidence(confidence: float) -> None:
    """Raise for a confidence that no interval can have, or that means nothing."""
    if not _LEAST_CONFIDENCE <= confidence < 1:
        what = f"a confidence of {percent(confidence)} makes no sense"
        raise UsageError(what, hint="write one from 50% to below 100%, such as 95%")


def _steps_of_some_only(before: Sequence[Digest], after: Sequence[Digest]) -> NotApplicable | None:
    """Refuse to set a step against a window of many steps."""
    every = (*before, *after)
    without = next((one for one in every if not one.steps), None)
    having = next((one for one in every if one.steps), None)
    if without is None or having is None:
        return None
    if KERNELS in without.lost:
        reason = f"{without.label}: {without.lost[KERNELS]}, and no steps were found in it"
        return NotApplicable("compare", reason, "record that capture again")
    return NotApplicable(
        "compare",
        f"no steps were found in {without.label}, but {having.steps} in {having.label}: a whole "
        "window cannot be compared with a step",
        _how_to_have_steps(without, having),
    )


def _how_to_have_steps(without: Digest, having: Digest) -> str:
    """Name a range that both have, where there is one: its occurrences can be compared."""
    known = {row.name for row in having.ranges}
    shared = [row.name for row in without.ranges if row.name and row.name in known]
    mark = "put each step of both in a range that counts, and record again (docs/capture.md)"
    if not shared:
        return mark
    return f"choose a range that both have, as --in '{shared[0].replace('#', '*')}'; or {mark}"


def _compared(
    before: Sequence[Digest], after: Sequence[Digest], confidence: float, least: float
) -> Comparison:
    test = partial(changes, confidence=confidence, least=least)
    strict = partial(changes, confidence=confidence_of_rows(confidence), least=least)
    pairs = [both(before, after, key) for key in LIST]
    metrics = tuple(
        MetricChange(old.key, old.label, old.fmt, change, old.missing or new.missing)
        for (old, new), change in zip(pairs, test(pairs), strict=True)
    )
    found = Comparison(
        before=side(before),
        after=side(after),
        metrics=metrics,
        ledger=ledger(before, after, test, metrics[0].change.delta),
        between=between(before, after, test, *metrics[1:3]),
        phases=phases(before, after, test),
        kernels=kernels(before, after, strict),
        ranges=calls(before, after, "ranges", strict, test),
        api=calls(before, after, "api", strict, test),
        copies=copies(before, after, strict),
        findings=finding_changes(before, after),
        explanation=(),
        confidence=confidence,
        least=least,
        differences=differences(before, after),
    )
    return without_lost(found, {source for one in (*before, *after) for source in one.lost})


def without_lost(found: Comparison, lost: Collection[str]) -> Comparison:
    """Leave out what is summed over rows that a capture lost: it would look like an improvement."""
    if COPIES in lost or MEMSETS in lost:
        found = replace(found, copies=())
    if KERNELS not in lost and COPIES not in lost:
        return found
    sides = {
        key: replace(getattr(found, key), limit=NOTHING, busy_share=None)
        for key in ("before", "after")
    }
    found = replace(found, ledger=(), between=(), phases=(), findings=(), **sides)
    return replace(found, kernels=()) if KERNELS in lost else found
