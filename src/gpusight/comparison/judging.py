"""One metric against its limit, as far as the spread of captures lets that be told."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpusight.comparison.change import Verdict
from gpusight.comparison.inference import Sampled
from gpusight.comparison.limits import Kind
from gpusight.comparison.metrics import Quantity, both, changes, quantity, unmatched
from gpusight.comparison.outcome import MUCH_BETWEEN

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.comparison.change import Change
    from gpusight.comparison.comparable import Difference
    from gpusight.comparison.digest import Digest
    from gpusight.comparison.limits import Limit
    from gpusight.result import Fmt

_STEP, _PERIOD, _BETWEEN = "step_time", "step_period", "between_steps"


class Status(enum.Enum):
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
class Check:
    """One metric against its limit."""

    limit: Limit
    label: str
    fmt: Fmt
    change: Change
    most: float | None
    """The largest value that is within the limit; None where the baseline is not known."""
    low: float | None
    """Lower end of the interval: of the growth, or of the value itself under a ceiling."""
    high: float | None
    status: Status
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


def judge(
    before: Sequence[Digest],
    after: Sequence[Digest],
    limits: Sequence[Limit],
    confidence: float,
    obstacles: Sequence[Difference] = (),
) -> tuple[Check, ...]:
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


def _comparable(check: Check, obstacles: Sequence[Difference]) -> Check:
    """Let nothing pass that may come from lost data, or from another machine or amount of work."""
    ceiling = check.limit.kind is Kind.CEILING
    mine = [one.text for one in obstacles if one.data or not ceiling]
    if not mine or check.status not in (Status.PASSED, Status.UNSURE):
        return check
    reason = "; ".join(filter(None, (*mine, check.reason)))
    return replace(check, status=Status.INCONCLUSIVE, reason=reason)


def _check(
    limit: Limit, pair: tuple[Quantity, Quantity], change: Change, confidence: float
) -> Check:
    now = pair[1]
    needed = (now,) if limit.kind is Kind.CEILING else pair
    numbers = change, _most(limit, change), None, None
    check = Check(limit, now.label, now.fmt, *numbers, Status.MISSING, "", now.key)
    unknown = [side for side in needed if not side.known]
    if unknown:
        lost = any(side.lost for side in unknown)
        return replace(check, reason=unknown[0].missing or "no capture knows it", lost=lost)
    spread = _above(now, limit.value, confidence) if limit.kind is Kind.CEILING else change
    shift = limit.value if limit.kind is Kind.CEILING else 0.0
    return replace(
        check,
        change=replace(change, basis=spread.basis),
        low=None if spread.low is None else spread.low + shift,
        high=None if spread.high is None else spread.high + shift,
        status=_status(check, spread),
        reason=_partly(needed),
    )


def _most(limit: Limit, change: Change) -> float | None:
    if limit.kind is Kind.CEILING:
        return limit.value
    return None if change.before is None else limit.most(change.before)


def _partly(sides: Sequence[Quantity]) -> str:
    """Say which captures do not count."""
    return "; ".join(f"not counted: {side.missing}" for side in sides if side.missing)


def _status(check: Check, spread: Change) -> Status:
    """Judge by the value, and by whether `spread` tells it from chance where anything does."""
    over = check.over
    assert over is not None
    if check.limit.improvement:
        return _improved(check, over, spread)
    if over <= 0:
        return Status.PASSED
    real = spread.low is None or spread.low > 0 or spread.verdict is Verdict.APPEARED
    return Status.FAILED if real else Status.UNSURE


def _improved(check: Check, over: float, spread: Change) -> Status:
    """Judge a limit below the baseline: the improvement must be there, and be no chance."""
    if spread.low is None or spread.high is None:
        return Status.FAILED if over > 0 else Status.PASSED
    asked = (check.most or 0.0) - (check.change.before or 0.0)
    if over > 0:
        return Status.FAILED if spread.low > asked else Status.UNSURE
    return Status.PASSED if spread.high < 0 else Status.UNSURE


def _above(now: Quantity, ceiling: float, confidence: float) -> Change:
    """Compare a side with a value that does not vary; one end of the interval is of interest."""
    fixed = replace(now, by_capture=tuple(_constant(one, ceiling) for one in now.known))
    known = replace(now, by_capture=now.known)
    return changes([(fixed, known)], confidence=2 * confidence - 1, least=0.0)[0]


def _constant(one: Sampled | float, value: float) -> Sampled | float:
    if isinstance(one, Sampled):
        return Sampled(one.blocks, np.full_like(one.values, value))
    return float(value)
