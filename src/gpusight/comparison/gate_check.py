"""A gate: whether captures hold their limits, as far as their variance lets that be decided."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpusight.analysis.capture_completeness import KERNELS
from gpusight.comparison.comparability import check_kinds, differences, each_once, other_parts
from gpusight.comparison.compare_digests import check_confidence, compare
from gpusight.comparison.compared_quantities import ComparedQuantity, changes
from gpusight.comparison.comparison_result import MUCH_BETWEEN
from gpusight.comparison.gate_limits import LimitKind
from gpusight.comparison.named_metrics import both, quantity, unmatched
from gpusight.comparison.significance import CONFIDENCE, MIN_EFFECT, ChangeVerdict, SampledChange
from gpusight.errors import UsageError
from gpusight.results import NotApplicable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusight.comparison.comparability import Difference
    from gpusight.comparison.comparison_result import Comparison
    from gpusight.comparison.digest import Digest
    from gpusight.comparison.gate_limits import GateLimit
    from gpusight.comparison.significance import MeasuredChange
    from gpusight.results import Fmt


_STEP, _PERIOD, _BETWEEN = "step_time", "step_period", "between_steps"


class CheckStatus(enum.Enum):
    """What became of a check."""

    PASSED = "passed"
    FAILED = "failed"
    """Over the limit, and not by chance."""
    UNSURE = "unsure"
    """Over the limit, but within what captures differ by anyway."""
    INCONCLUSIVE = "inconclusive"
    """Not over the limit, but the captures cannot be compared: lost data, another GPU or work."""
    MISSING = "missing"
    """A side does not know the metric."""


@dataclass(frozen=True, slots=True)
class GateCheck:
    """One metric against its limit."""

    limit: GateLimit
    label: str
    fmt: Fmt
    change: MeasuredChange
    most: float | None
    """The largest value that is within the limit; None where the baseline is not known."""
    low: float | None
    """Lower end of the interval: of the growth, or of the value itself under a ceiling."""
    high: float | None
    status: CheckStatus
    reason: str
    """Why it is missing or judged otherwise, or which captures do not count; empty where nothing
    is to be said."""
    judged: str = ""
    """The metric that it is judged by: `step_period` for the step where much lies between."""
    lost: bool = False
    """It is missing because a capture lost the data, not because it was not recorded."""

    @property
    def over(self) -> float | None:
        """By how much the value is over the limit; negative within it."""
        known = self.change.after is not None and self.most is not None
        return self.change.after - self.most if known else None  # type: ignore[operator]

    def document(self) -> dict[str, Any]:
        """Give it as plain objects, for JSON."""
        return {
            "metric": self.limit.metric,
            "judged": self.judged or self.limit.metric,
            "limit": self.limit.text,
            "kind": self.limit.kind.value,
            "status": self.status.value,
            "most": self.most,
            "over": self.over,
            **self.change.document(),
            "low": self.low,
            "high": self.high,
            "reason": self.reason,
        }


def check_limits(
    before: Sequence[Digest],
    after: Sequence[Digest],
    limits: Sequence[GateLimit],
    confidence: float,
    obstacles: Sequence[Difference] = (),
) -> tuple[GateCheck, ...]:
    """Hold captures against limits, in the order of these; `before` may be empty for ceilings.

    No check passes that one of the `obstacles` concerns.
    """
    judged = [_judged_by(limit.metric, before, after) for limit in limits]
    pairs = [both(before, after, metric) for metric, _ in judged]
    for limit, (_, now) in zip(limits, pairs, strict=True):
        limit.check_unit(now.fmt)
    grown = changes(pairs, confidence=confidence, least=0.0)
    checks = []
    for limit, (_, why), pair, change in zip(limits, judged, pairs, grown, strict=True):
        check = _check(limit, pair, change, confidence)
        told = (why, unmatched(pair, (*before, *after)), check.reason)
        check = replace(check, reason="; ".join(filter(None, told)))
        checks.append(_comparable(check, obstacles))
    return tuple(checks)


def _judged_by(metric: str, before: Sequence[Digest], after: Sequence[Digest]) -> tuple[str, str]:
    """Give the metric that tells it, and why that is another: a step is not all of a program."""
    if metric != _STEP:
        return metric, ""
    share = max(_share_between(side) for side in (before, after) if side)
    if share < MUCH_BETWEEN:
        return metric, ""
    return _PERIOD, f"{share:.0%} of the time lies between steps: counted from step to step"


def _share_between(side: Sequence[Digest]) -> float:
    between, period = (quantity(side, key).mean or 0.0 for key in (_BETWEEN, _PERIOD))
    return between / period if period else 0.0


def _comparable(check: GateCheck, obstacles: Sequence[Difference]) -> GateCheck:
    """Let nothing pass that may come from lost data, or from another machine or amount of work."""
    ceiling = check.limit.kind is LimitKind.CEILING
    mine = [one.text for one in obstacles if one.data or not ceiling]
    if not mine or check.status not in (CheckStatus.PASSED, CheckStatus.UNSURE):
        return check
    reason = "; ".join(filter(None, (*mine, check.reason)))
    return replace(check, status=CheckStatus.INCONCLUSIVE, reason=reason)


def _check(
    limit: GateLimit,
    pair: tuple[ComparedQuantity, ComparedQuantity],
    change: MeasuredChange,
    confidence: float,
) -> GateCheck:
    now = pair[1]
    needed = (now,) if limit.kind is LimitKind.CEILING else pair
    numbers = change, _most(limit, change), None, None
    check = GateCheck(limit, now.label, now.fmt, *numbers, CheckStatus.MISSING, "", now.key)
    unknown = [side for side in needed if not side.known]
    if unknown:
        lost = any(side.lost for side in unknown)
        return replace(check, reason=unknown[0].missing or "no capture knows it", lost=lost)
    spread = _above(now, limit.value, confidence) if limit.kind is LimitKind.CEILING else change
    shift = limit.value if limit.kind is LimitKind.CEILING else 0.0
    return replace(
        check,
        change=replace(change, basis=spread.basis),
        low=None if spread.low is None else spread.low + shift,
        high=None if spread.high is None else spread.high + shift,
        status=_status(check, spread),
        reason=_partly(needed),
    )


def _most(limit: GateLimit, change: MeasuredChange) -> float | None:
    if limit.kind is LimitKind.CEILING:
        return limit.value
    return None if change.before is None else limit.most(change.before)


def _partly(sides: Sequence[ComparedQuantity]) -> str:
    """Say which captures do not count."""
    return "; ".join(f"not counted: {side.missing}" for side in sides if side.missing)


def _status(check: GateCheck, spread: MeasuredChange) -> CheckStatus:
    """Judge by the value, and by whether `spread` tells it from chance where anything does."""
    over = check.over
    assert over is not None
    if check.limit.improvement:
        return _improved(check, over, spread)
    if over <= 0:
        return CheckStatus.PASSED
    real = spread.low is None or spread.low > 0 or spread.verdict is ChangeVerdict.APPEARED
    return CheckStatus.FAILED if real else CheckStatus.UNSURE


def _improved(check: GateCheck, over: float, spread: MeasuredChange) -> CheckStatus:
    """Judge a limit below the baseline: the improvement must be there, and be no chance."""
    if spread.low is None or spread.high is None:
        return CheckStatus.FAILED if over > 0 else CheckStatus.PASSED
    asked = (check.most or 0.0) - (check.change.before or 0.0)
    if over > 0:
        return CheckStatus.FAILED if spread.low > asked else CheckStatus.UNSURE
    return CheckStatus.PASSED if spread.high < 0 else CheckStatus.UNSURE


def _above(now: ComparedQuantity, ceiling: float, confidence: float) -> MeasuredChange:
    """Compare a side with a value that does not vary; one end of the interval is of interest."""
    fixed = replace(now, by_capture=tuple(_constant(one, ceiling) for one in now.known))
    known = replace(now, by_capture=now.known)
    return changes([(fixed, known)], confidence=2 * confidence - 1, least=0.0)[0]


def _constant(one: SampledChange | float, value: float) -> SampledChange | float:
    if isinstance(one, SampledChange):
        return SampledChange(one.blocks, np.full_like(one.values, value))
    return float(value)


@dataclass(frozen=True)
class Gate:
    """All checks, and whether they let a change through."""

    checks: tuple[GateCheck, ...]
    baseline: tuple[str, ...]
    """Names of the captures to compare with; none where only ceilings are held."""
    captures: tuple[str, ...]
    confidence: float
    strict: bool = False
    allow_missing: bool = False
    differences: tuple[Difference, ...] = ()
    """What keeps the captures from being compared, also where that is accepted."""
    allow_changed: tuple[str, ...] = ()
    """Kinds of differences that are accepted."""
    comparison: Comparison | None = None
    notes: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    command: str = "gate"
    title: str = "Gate"

    @property
    def passed(self) -> bool:
        """Whether every check lets the change through: then the exit code is 0."""
        return not any(self.fails(check) for check in self.checks)

    @property
    def outcome(self) -> str:
        """`passed`, `failed`, or `inconclusive` where nothing failed but cannot be compared."""
        blocking = [check.status for check in self.checks if self.fails(check)]
        if all(status is CheckStatus.INCONCLUSIVE for status in blocking):
            return "inconclusive" if blocking else "passed"
        return "failed"

    def fails(self, check: GateCheck) -> bool:
        """Whether a check keeps the gate from passing; every form of the answer asks this."""
        if check.status is CheckStatus.MISSING:
            return not self.allow_missing or check.lost or self.knows_nothing
        if check.status is CheckStatus.UNSURE:
            return self.strict
        return check.status is not CheckStatus.PASSED

    @property
    def knows_nothing(self) -> bool:
        """Whether no metric is known: a gate that measured nothing never passes."""
        return all(check.status is CheckStatus.MISSING for check in self.checks)

    def having(self, status: CheckStatus) -> list[GateCheck]:
        """Give the checks of one status."""
        return [check for check in self.checks if check.status is status]

    def document(self) -> dict[str, Any]:
        """Give it as plain objects, for JSON."""
        found = self.comparison
        return {
            "meta": {
                "command": self.command,
                "title": self.title,
                "baseline": list(self.baseline),
                "captures": list(self.captures),
                "confidence": self.confidence,
                "strict": self.strict,
                "allow_missing": self.allow_missing,
                "allow_changed": list(self.allow_changed),
                "notes": list(self.notes),
                **self.meta,
            },
            "passed": self.passed,
            "outcome": self.outcome,
            "differences": [
                {**one.document(), "allowed": one.kind in self.allow_changed}
                for one in self.differences
            ],
            "checks": [check.document() for check in self.checks],
            "explanation": list(found.explanation) if found else [],
        }


def gate(
    before: Sequence[Digest],
    after: Sequence[Digest],
    limits: Sequence[GateLimit],
    *,
    confidence: float = CONFIDENCE,
    least: float = MIN_EFFECT,
    strict: bool = False,
    allow_missing: bool = False,
    allow_changed: Sequence[str] = (),
) -> Gate | NotApplicable:
    """Hold captures against limits; `before` is the baseline, and may be empty for ceilings.

    `least` is only for the words of the explanation: a limit says itself how much is too much.
    `allow_changed` accepts kinds of `differences` by name.
    """
    allowed = check_kinds(allow_changed)
    _check_request(before, after, limits, confidence)
    if absent := other_parts((*before, *after), "gate"):
        return absent
    found = compare(before, after, confidence=confidence, least=least) if before else None
    if isinstance(found, NotApplicable):
        if not any(KERNELS in one.lost for one in (*before, *after)):
            return found
        found = None  # lost kernels may hide the steps too: then the metrics are missing
    (before, _), (after, copied) = each_once(before), each_once(after)
    every = differences(before, after)
    obstacles = [one for one in every if one.kind not in allowed]
    return Gate(
        check_limits(before, after, limits, confidence, obstacles),
        tuple(digest.label for digest in before),
        tuple(digest.label for digest in after),
        confidence,
        strict=strict,
        allow_missing=allow_missing,
        differences=every,
        allow_changed=allowed,
        comparison=found,
        notes=found.notes if found else (*copied, *_notes(after)),
    )


def _check_request(
    before: Sequence[Digest],
    after: Sequence[Digest],
    limits: Sequence[GateLimit],
    confidence: float,
) -> None:
    check_confidence(confidence)
    if not limits or not after:
        what = "capture" if limits else "limit"
        raise UsageError(f"no {what} was given", hint="a gate without one would pass anything")
    relative = [limit for limit in limits if limit.kind is not LimitKind.CEILING]
    if relative and not before:
        raise UsageError(
            f"{str(relative[0])!r} needs a baseline, and none is given",
            hint="make one with: gpusight baseline save CAPTURE… -o baseline.json, "
            "then give it by --baseline baseline.json",
        )


def _notes(digests: Sequence[Digest]) -> list[str]:
    notes = [note for digest in digests for note in digest.notes]
    if len(digests) == 1:
        notes.append("one capture: intervals cover the spread of its steps; runs may differ more")
    return list(dict.fromkeys(notes))
