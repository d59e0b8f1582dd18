"""Compares two sides of captures, part by part; findings are resolved, new or unchanged."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from gpusight.analysis.capture_completeness import COPIES, KERNELS, MEMSETS
from gpusight.analysis.steps.step_list import PHASES
from gpusight.comparison.comparability import comparison_notes, differences, each_once, other_parts
from gpusight.comparison.comparison_result import (
    CallChange,
    ComparedSide,
    Comparison,
    CopyChange,
    EntryChange,
    FindingChange,
    FindingStatus,
    KernelChange,
    MetricChange,
    confidence_of_rows,
)
from gpusight.comparison.explain_change import explain
from gpusight.comparison.kernel_match import match_kernels
from gpusight.comparison.named_metrics import (
    JOB_LIST,
    LIST,
    ComparedQuantity,
    both,
    changes,
    run_noise,
    sampled,
    slowed_by_profiler,
)
from gpusight.comparison.phrases import NOTHING, bottleneck, busy_share, percent
from gpusight.comparison.program_identity import PROFILER
from gpusight.comparison.significance import (
    CONFIDENCE,
    MIN_CONFIDENCE,
    MIN_EFFECT,
    Basis,
    ChangeVerdict,
)
from gpusight.errors import UsageError
from gpusight.results import Fmt, NotApplicable

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from typing import TypeAlias

    from gpusight.comparison.digest import CallDigest, CopyDigest, Digest, DigestFinding, Series
    from gpusight.comparison.significance import MeasuredChange
    from gpusight.trace.intervals import Reals

    Pairs: TypeAlias = Sequence[tuple[ComparedQuantity, ComparedQuantity]]
    Test: TypeAlias = Callable[[Pairs], list[MeasuredChange]]


_Key = TypeVar("_Key")
_Row = TypeVar("_Row")
REST = "(all other kernels)"
"""Name of the row that sums up the kernels that digests leave out."""


def compare(
    before: Sequence[Digest],
    after: Sequence[Digest],
    *,
    confidence: float = CONFIDENCE,
    least: float = MIN_EFFECT,
) -> Comparison | NotApplicable:
    """Compare captures of a program with captures of it after a change; several are repeats."""
    for side, digests in (("before", before), ("after", after)):
        if not digests:
            raise UsageError(f"no capture given for {side}", hint="gpusight compare BEFORE AFTER")
    check_confidence(confidence)
    if not 0 <= least < 1:
        raise UsageError(
            f"a least effect of {percent(least)} is invalid", hint="write for example 2%"
        )
    if absent := other_parts((*before, *after), "compare") or _some_without_steps(before, after):
        return absent
    (before, notes), (after, more_notes) = each_once(before), each_once(after)
    test = partial(changes, confidence=confidence, least=least)
    strict = partial(changes, confidence=confidence_of_rows(confidence), least=least)
    jobs = any(digest.job is not None for digest in (*before, *after))
    pairs = [both(before, after, key) for key in (*LIST, *(JOB_LIST if jobs else ()))]
    metrics = tuple(
        MetricChange(old.key, old.label, old.fmt, change, old.missing or new.missing)
        for (old, new), change in zip(pairs, test(pairs), strict=True)
    )
    comparison = Comparison(
        before=_side(before),
        after=_side(after),
        metrics=metrics,
        ledger=_entries(before, after, test, metrics[0].change.delta),
        phases=_phases(before, after, test),
        kernels=_kernels(before, after, strict),
        ranges=_calls(before, after, "ranges", strict, test),
        api=_calls(before, after, "api", strict, test),
        copies=_copies(before, after, strict),
        findings=_finding_changes(before, after),
        explanation=(),
        confidence=confidence,
        least=least,
        differences=differences(before, after),
        run_noise_ns=max(run_noise(before, pairs[0][0]), run_noise(after, pairs[0][1])),
    )
    lost = {key for digest in (*before, *after) for key in digest.lost}
    comparison = _without_lost(comparison, lost)
    if any(row.kind == PROFILER for row in comparison.differences):
        comparison = _without_host_verdicts(comparison)
    notes += [*more_notes, *comparison_notes(before, after, comparison)]
    comparison = replace(comparison, notes=tuple(notes))
    return replace(comparison, explanation=explain(comparison))


def _without_host_verdicts(comparison: Comparison) -> Comparison:
    """Leave out verdicts on times that have the profiler's overhead on one side only."""
    none: dict[str, Any] = {"low": None, "high": None, "basis": Basis.NONE}
    none["verdict"] = ChangeVerdict.NOT_COMPARABLE
    metrics = (
        replace(metric, change=replace(metric.change, **none))
        if slowed_by_profiler(metric.key)
        else metric
        for metric in comparison.metrics
    )
    return replace(comparison, metrics=tuple(metrics))


def check_confidence(confidence: float) -> None:
    """Raise for a confidence that no interval can have, or that means nothing."""
    if not MIN_CONFIDENCE <= confidence < 1:
        what = f"a confidence of {percent(confidence)} is invalid"
        raise UsageError(what, hint="write 50% to below 100%, for example 95%")


def _some_without_steps(before: Sequence[Digest], after: Sequence[Digest]) -> NotApplicable | None:
    """Refuse to compare a step with a window of many steps."""
    every = (*before, *after)
    without = next((digest for digest in every if not digest.steps), None)
    having = next((digest for digest in every if digest.steps), None)
    if without is None or having is None:
        return None
    if KERNELS in without.lost:
        reason = f"{without.label}: {without.lost[KERNELS]}, and it has no steps"
        return NotApplicable("compare", reason, "record that capture again")
    hint = "put the steps of both in numbered ranges, and record again (gpusight help record)"
    # The occurrences of a range that both have can be compared.
    known = {row.name for row in having.ranges}
    shared = [row.name for row in without.ranges if row.name and row.name in known]
    if shared:
        name = shared[0].replace("#", "*")
        hint = f"choose a range of both with --in '{name}'; or {hint}"
    reason = (
        f"{without.label} has no steps, {having.label} has {having.steps}: a window cannot be "
        "compared with a step"
    )
    return NotApplicable("compare", reason, hint)


def _without_lost(comparison: Comparison, lost: Collection[str]) -> Comparison:
    """Leave out sums over rows that a capture lost: they would look like an improvement."""
    if COPIES in lost or MEMSETS in lost:
        comparison = replace(comparison, copies=())
    if KERNELS not in lost and COPIES not in lost:
        return comparison
    sides = {
        key: replace(getattr(comparison, key), limit=NOTHING, busy_share=None)
        for key in ("before", "after")
    }
    comparison = replace(comparison, ledger=(), phases=(), findings=(), **sides)
    return replace(comparison, kernels=()) if KERNELS in lost else comparison


def _side(digests: Sequence[Digest]) -> ComparedSide:
    ledger: dict[str, float] = {}  # mean over captures
    for digest in digests:
        for entry, ns in digest.ledger.items():
            ledger[entry] = ledger.get(entry, 0.0) + _mean(digest, ns) / len(digests)
    host_shares = [d.host_step_ns / _mean(d, d.step_ns) for d in digests if d.host_step_ns]
    host_share = sum(host_shares) / len(host_shares) if host_shares else None
    return ComparedSide(
        labels=tuple(d.label for d in digests),
        tools=tuple(dict.fromkeys(d.tool for d in digests)),
        gpus=digests[0].gpus,
        steps=tuple(d.steps for d in digests),
        step_ns=tuple(_mean(d, d.step_ns) for d in digests),
        limit=bottleneck(ledger, host_share),
        host_share=host_share,
        busy_share=busy_share(ledger),
        recorded_step_ns=tuple(d.recorded_step_ns for d in digests if d.recorded_step_ns),
        is_estimate=any(d.is_estimate for d in digests),
        process=digests[0].process if len(digests) == 1 else "",
    )


def _mean(digest: Digest, series: Series) -> float:
    return float(np.average(series, weights=digest.blocks))


# Tables -------------------------------------------------------------------------------------------


class _ChangeRows(Generic[_Key, _Row]):
    """One table of all captures; a row that a capture lacks counts as 0 there."""

    def __init__(
        self,
        before: Sequence[tuple[Digest, Mapping[_Key, _Row]]],
        after: Sequence[tuple[Digest, Mapping[_Key, _Row]]],
    ) -> None:
        self._before, self._after = before, after
        self._tables = [table for _, table in (*before, *after)]
        self.keys = list(dict.fromkeys(key for table in self._tables for key in table))

    @classmethod
    def of(
        cls,
        before: Sequence[Digest],
        after: Sequence[Digest],
        table: Callable[[Digest], Mapping[_Key, _Row]],
    ) -> _ChangeRows[_Key, _Row]:
        """Take a table of every capture."""
        return cls([(d, table(d)) for d in before], [(d, table(d)) for d in after])

    def named(self, key: _Key) -> list[_Row]:
        """Return the rows of a key, of those captures that have it."""
        return [table[key] for table in self._tables if key in table]

    def changes(
        self,
        test: Test,
        series: Callable[[_Row], Sequence[float]],
        keys: Sequence[_Key] | None = None,
        *,
        metric: Callable[[_Key], str] = lambda _: "",
    ) -> dict[_Key, MeasuredChange]:
        """Test a quantity of rows, of all by default; `metric` is what `gate --max` calls it."""
        keys = self.keys if keys is None else keys
        pairs = [
            (
                _quantity(self._before, key, series, metric(key)),
                _quantity(self._after, key, series, metric(key)),
            )
            for key in keys
        ]
        return dict(zip(keys, test(pairs), strict=True))

    def means(self, series: Callable[[_Row], Sequence[float]], key: _Key) -> tuple[float, float]:
        """Return the mean per step of a row, before and after."""
        before, after = (_quantity(side, key, series) for side in (self._before, self._after))
        return float(np.mean(before.means)), float(np.mean(after.means))


def _quantity(
    side: Sequence[tuple[Digest, Mapping[_Key, _Row]]],
    key: _Key,
    series: Callable[[_Row], Sequence[float]],
    metric: str = "",
) -> ComparedQuantity:
    samples = []
    for digest, table in side:
        values = series(table[key]) if key in table else np.zeros(len(digest.blocks))
        samples.append(sampled(digest, np.array(values, float), metric))
    return ComparedQuantity("", "", Fmt.TIME, tuple(samples))


def _entries(
    before: Sequence[Digest],
    after: Sequence[Digest],
    test: Test,
    total_delta_ns: float | None,
) -> tuple[EntryChange, ...]:
    entries = []
    rows: _ChangeRows[str, Series] = _ChangeRows.of(before, after, lambda d: d.ledger)
    for name, change in rows.changes(test, lambda ns: ns, metric=str).items():
        known = change.delta is not None and total_delta_ns
        part = change.delta / total_delta_ns if known else None  # type: ignore[operator]
        entries.append(EntryChange(name, change, part))
    return _by_change(entries, lambda entry: entry.change)


def _by_change(rows: Iterable[_Row], change: Callable[[_Row], MeasuredChange]) -> tuple[_Row, ...]:
    return tuple(sorted(rows, key=lambda row: -abs(change(row).delta or 0.0)))


def _phases(
    before: Sequence[Digest], after: Sequence[Digest], test: Test
) -> tuple[tuple[str, MeasuredChange], ...]:
    """Compare the phases in their order; none where a capture does not know them."""
    if not all(digest.phases for digest in (*before, *after)):
        return ()
    rows: _ChangeRows[str, Series] = _ChangeRows.of(before, after, lambda d: d.phases)
    names = sorted(rows.keys, key=lambda name: (PHASES.index(name) if name in PHASES else 99, name))
    return tuple(rows.changes(test, lambda ns: ns, names).items())


def _kernels(
    before: Sequence[Digest], after: Sequence[Digest], test: Test
) -> tuple[KernelChange, ...]:
    matches = match_kernels(before, after)
    rows = _ChangeRows(
        [(d, _launches(d, [m.before[at] for m in matches])) for at, d in enumerate(before)],
        [(d, _launches(d, [m.after[at] for m in matches])) for at, d in enumerate(after)],
    )
    kernels = []
    tested = rows.changes(test, lambda row: row[0].tolist(), range(len(matches)))
    for at, change in tested.items():
        match = matches[at]
        calls = rows.means(lambda row: row[1].tolist(), at)
        names = match.before_names, match.after_names, match.short or REST
        kernels.append(
            KernelChange(*names, match.category, match.ranges, match.match, change, *calls)
        )
    return _by_change(kernels, lambda row: row.ns)


def _launches(digest: Digest, parts: Sequence[Mapping[int, float]]) -> dict[int, Reals]:
    """Sum time and number of the launches of a capture in each match, by its position.

    A row counts by the part of its launches that belongs to the match.
    """
    launches = {}
    for at, shares in enumerate(parts):
        if shares:
            rows = [(digest.kernels[position], share) for position, share in shares.items()]
            series = (np.array([row.ns, row.calls], float) * share for row, share in rows)
            launches[at] = sum(series, np.zeros((2, len(digest.blocks))))
    return launches


def _calls(
    before: Sequence[Digest], after: Sequence[Digest], part: str, test: Test, test_of_outer: Test
) -> tuple[CallChange, ...]:
    """Compare the `ranges` or the `api` calls by name, of captures that have any; else none.

    The outermost ranges are few, and are tested as the step is.
    """
    before, after = ([d for d in side if getattr(d, part)] for side in (before, after))
    if not before or not after:
        return ()
    prefix = "api" if part == "api" else "range"
    rows: _ChangeRows[str, CallDigest] = _ChangeRows.of(
        before, after, lambda d: {row.name: row for row in getattr(d, part)}
    )
    with_gpu = [name for name in rows.keys if all(r.gpu_ns is not None for r in rows.named(name))]
    gpu = rows.changes(test, lambda row: row.gpu_ns or (), with_gpu)
    counts = rows.changes(test, lambda row: row.calls) if part == "api" else {}
    outer = {name: all(row.outer for row in rows.named(name)) for name in rows.keys}
    calls = []
    for is_outer, host_test in ((True, test_of_outer), (False, test)):
        names = [name for name in rows.keys if outer[name] is is_outer]
        hosts = rows.changes(
            host_test, lambda row: row.host_ns, names, metric=lambda name: f"{prefix}:{name}"
        )
        for name, host in hosts.items():
            means = rows.means(lambda row: row.calls, name)
            calls.append(CallChange(name, host, gpu.get(name), *means, is_outer, counts.get(name)))
    return _by_change(calls, lambda row: row.host_ns)


def _copies(
    before: Sequence[Digest], after: Sequence[Digest], test: Test
) -> tuple[CopyChange, ...]:
    """Compare copies and memsets by direction and kinds of memory."""
    rows: _ChangeRows[tuple[str, str | None, str | None], CopyDigest] = _ChangeRows.of(
        before, after, lambda d: {(c.operation, c.src_kind, c.dst_kind): c for c in d.copies}
    )
    counts = rows.changes(test, lambda copy: copy.calls)
    copies = []
    for kind, change in rows.changes(test, lambda copy: copy.ns).items():
        sizes = rows.means(lambda copy: copy.bytes, kind)
        calls = rows.means(lambda copy: copy.calls, kind)
        copies.append(CopyChange(*kind, change, *sizes, *calls, calls=counts[kind]))
    return _by_change(copies, lambda row: row.ns)


# Findings -----------------------------------------------------------------------------------------


_STATUSES = (
    FindingStatus.NEW,
    FindingStatus.NOT_EVALUATED_BEFORE,
    FindingStatus.STAYED,
    FindingStatus.NOT_EVALUATED_AFTER,
    FindingStatus.FIXED,
)


def _finding_changes(
    before: Sequence[Digest], after: Sequence[Digest]
) -> tuple[FindingChange, ...]:
    """List which findings are new, fixed or stayed, the largest saving first.

    New is what every capture shows after and none before, fixed the reverse: rules have
    thresholds, so a finding in some captures of a side is no evidence of a change. Neither is the
    absence of a finding whose rule lacked data.
    None at all where no capture of a side could be diagnosed.
    """
    sides = [[d for d in side if "findings" not in d.missing] for side in (before, after)]
    if not all(sides):
        return ()
    rules = dict.fromkeys(f.rule for side in sides for digest in side for f in digest.findings)
    rows = [_finding_change(rule, *sides) for rule in rules]
    rows.sort(key=lambda row: -max(row.before_ns or 0.0, row.after_ns or 0.0))
    return tuple(sorted(rows, key=lambda row: _STATUSES.index(row.status)))


def _finding_change(rule: str, before: Sequence[Digest], after: Sequence[Digest]) -> FindingChange:
    old, new = _findings(rule, before), _findings(rule, after)
    status = FindingStatus.STAYED
    absent = [] if old and new else after if old else before
    reason = next((d.not_evaluated[rule] for d in absent if rule in d.not_evaluated), None)
    if reason is not None:
        status = FindingStatus.NOT_EVALUATED_AFTER if old else FindingStatus.NOT_EVALUATED_BEFORE
    elif len(new) == len(after) and not old:
        status = FindingStatus.NEW
    elif len(old) == len(before) and not new:
        status = FindingStatus.FIXED
    finding, capture = (new or old)[0]
    return FindingChange(
        rule,
        finding.title,
        status,
        _mean_saving(old),
        _mean_saving(new),
        len(old),
        len(new),
        capture.label,
        (len(before), len(after)),
        reason,
    )


def _findings(rule: str, digests: Sequence[Digest]) -> list[tuple[DigestFinding, Digest]]:
    """Return the findings of a rule; of several in one capture, the first counts."""
    first = ((next((f for f in d.findings if f.rule == rule), None), d) for d in digests)
    return [(finding, digest) for finding, digest in first if finding is not None]


def _mean_saving(findings: Sequence[tuple[DigestFinding, Digest]]) -> float | None:
    known = [ns for finding, _ in findings if (ns := _saving(finding)) is not None]
    return sum(known) / len(known) if known else None


def _saving(finding: DigestFinding) -> float | None:
    """Return what a fix saves alone; baselines of older versions know only the plan."""
    return finding.step_ns if finding.alone_ns is None else finding.alone_ns
