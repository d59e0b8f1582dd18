"""A gate: whether captures hold their limits, as far as their variance lets that be decided."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpusight.analysis.capture_completeness import KERNELS
from gpusight.comparison.comparability import check_kinds, differences, each_once, other_parts
from gpusight.comparison.compare_digests import check_confidence, compare
from gpusight.comparison.comparison_result import MUCH_BETWEEN
from gpusight.comparison.gate_limits import LimitKind
from gpusight.comparison.named_metrics import ComparedQuantity, both, changes, quantity, unmatched
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
    """How a check ended."""

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
    """Why it is missing or judged otherwise, or which captures do not count; may be empty."""
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
        """Return it as plain objects, for JSON."""
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
    """Check captures against limits, in the order of these; `before` may be empty for ceilings.

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
        reasons = (why, unmatched(pair, (*before, *after)), check.reason)
        check = replace(check, reason="; ".join(filter(None, reasons)))
        checks.append(_unless_inconclusive(check, obstacles))
    return tuple(checks)


def _judged_by(metric: str, before: Sequence[Digest], after: Sequence[Digest]) -> tuple[str, str]:
    """Return the metric to judge by, and why it is another: the step may not be all the time."""
    if metric != _STEP:
        return metric, ""
    shares = []
    for side in (before, after):
        if side:
            between, period = (quantity(side, key).mean or 0.0 for key in (_BETWEEN, _PERIOD))
            shares.append(between / period if period else 0.0)
    share = max(shares)
    if share < MUCH_BETWEEN:
        return metric, ""
    return _PERIOD, f"{share:.0%} of the time lies between steps: counted from step to step"


def _unless_inconclusive(check: GateCheck, obstacles: Sequence[Difference]) -> GateCheck:
    """Let nothing pass that may come from lost data, or from another machine or amount of work."""
    ceiling = check.limit.kind is LimitKind.CEILING
    concerning = [obstacle.text for obstacle in obstacles if obstacle.data or not ceiling]
    if not concerning or check.status not in (CheckStatus.PASSED, CheckStatus.UNSURE):
        return check
    reason = "; ".join(filter(None, (*concerning, check.reason)))
    return replace(check, status=CheckStatus.INCONCLUSIVE, reason=reason)


def _check(
    limit: GateLimit,
    pair: tuple[ComparedQuantity, ComparedQuantity],
    change: MeasuredChange,
    confidence: float,
) -> GateCheck:
    now = pair[1]
    ceiling = limit.kind is LimitKind.CEILING
    needed = (now,) if ceiling else pair
    most = None if change.before is None else limit.most(change.before)
    if ceiling:
        most = limit.value
    check = GateCheck(
        limit, now.label, now.fmt, change, most, None, None, CheckStatus.MISSING, "", now.key
    )
    unknown = [side for side in needed if not side.known]
    if unknown:
        lost = any(side.lost for side in unknown)
        return replace(check, reason=unknown[0].missing or "no capture knows it", lost=lost)
    spread = _above(now, limit.value, confidence) if ceiling else change
    shift = limit.value if ceiling else 0.0
    return replace(
        check,
        change=replace(change, basis=spread.basis),
        low=None if spread.low is None else spread.low + shift,
        high=None if spread.high is None else spread.high + shift,
        status=_status(check, spread),
        reason="; ".join(f"not counted: {side.missing}" for side in needed if side.missing),
    )


def _status(check: GateCheck, spread: MeasuredChange) -> CheckStatus:
    """Judge by the value, and by whether `spread` rules out chance where it is known."""
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
    needed = (check.most or 0.0) - (check.change.before or 0.0)
    if over > 0:
        return CheckStatus.FAILED if spread.low > needed else CheckStatus.UNSURE
    return CheckStatus.PASSED if spread.high < 0 else CheckStatus.UNSURE


def _above(now: ComparedQuantity, ceiling: float, confidence: float) -> MeasuredChange:
    """Compare a side with a value that does not vary; one end of the interval is of interest."""
    fixed = tuple(
        SampledChange(value.blocks, np.full_like(value.values, ceiling))
        if isinstance(value, SampledChange)
        else float(ceiling)
        for value in now.known
    )
    pair = replace(now, by_capture=fixed), replace(now, by_capture=now.known)
    return changes([pair], confidence=2 * confidence - 1, least=0.0)[0]


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
        """Whether a check keeps the gate from passing; every output format uses this."""
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
        """Return the checks of one status."""
        return [check for check in self.checks if check.status is status]

    def document(self) -> dict[str, Any]:
        """Return it as plain objects, for JSON."""
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
                {**difference.document(), "allowed": difference.kind in self.allow_changed}
                for difference in self.differences
            ],
            "checks": [check.document() for check in self.checks],
            "explanation": list(self.comparison.explanation) if self.comparison else [],
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
    """Check captures against limits; `before` is the baseline, and may be empty for ceilings.

    `least` is only for the words of the explanation: a limit says itself how much is too much.
    `allow_changed` accepts kinds of `differences` by name.
    """
    allowed = check_kinds(allow_changed)
    _check_request(before, after, limits, confidence)
    if absent := other_parts((*before, *after), "gate"):
        return absent
    comparison = compare(before, after, confidence=confidence, least=least) if before else None
    if isinstance(comparison, NotApplicable):
        if not any(KERNELS in digest.lost for digest in (*before, *after)):
            return comparison
        comparison = None  # lost kernels may hide the steps too: then the metrics are missing
    (before, _), (after, notes) = each_once(before), each_once(after)
    notes += [note for digest in after for note in digest.notes]
    if len(after) == 1:
        notes.append("one capture: intervals cover the spread of its steps; runs may differ more")
    every = differences(before, after)
    obstacles = [difference for difference in every if difference.kind not in allowed]
    return Gate(
        check_limits(before, after, limits, confidence, obstacles),
        tuple(digest.label for digest in before),
        tuple(digest.label for digest in after),
        confidence,
        strict=strict,
        allow_missing=allow_missing,
        differences=every,
        allow_changed=allowed,
        comparison=comparison,
        notes=comparison.notes if comparison else tuple(dict.fromkeys(notes)),
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
