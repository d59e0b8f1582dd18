"""Two sides of captures, part by part."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from gpusight.analyses.completeness import COPIES, KERNELS, MEMSETS
from gpusight.comparison import parts
from gpusight.comparison.alike import each_once, other_parts
from gpusight.comparison.comparable import differences
from gpusight.comparison.explain import explain
from gpusight.comparison.fates import findings
from gpusight.comparison.inference import CONFIDENCE, LEAST
from gpusight.comparison.limit import NOTHING
from gpusight.comparison.metrics import LIST, both, changes
from gpusight.comparison.notes import notes
from gpusight.comparison.outcome import Comparison, Metric, confidence_of_rows
from gpusight.comparison.wording import percent
from gpusight.errors import UsageError
from gpusight.result import NotApplicable

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from gpusight.comparison.digest import Digest

_LEAST_CONFIDENCE = 0.5


def compare(
    before: Sequence[Digest],
    after: Sequence[Digest],
    *,
    confidence: float = CONFIDENCE,
    least: float = LEAST,
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
        Metric(old.key, old.label, old.fmt, change, old.missing or new.missing)
        for (old, new), change in zip(pairs, test(pairs), strict=True)
    )
    found = Comparison(
        before=parts.side(before),
        after=parts.side(after),
        metrics=metrics,
        ledger=parts.ledger(before, after, test, metrics[0].change.delta),
        between=parts.between(before, after, test, *metrics[1:3]),
        phases=parts.phases(before, after, test),
        kernels=parts.kernels(before, after, strict),
        ranges=parts.calls(before, after, "ranges", strict, test),
        api=parts.calls(before, after, "api", strict, test),
        copies=parts.copies(before, after, strict),
        findings=findings(before, after),
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
