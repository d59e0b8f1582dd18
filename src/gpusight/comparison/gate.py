"""A gate: whether captures hold their limits, as far as their spread lets that be told."""

from __future__ import annotations

import enum
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from gpusight.comparison.change import Verdict
from gpusight.comparison.compare import compare
from gpusight.comparison.inference import Sampled
from gpusight.comparison.limits import Kind
from gpusight.comparison.metrics import Quantity, both, changes
from gpusight.errors import UsageError
from gpusight.result import NotApplicable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusight.comparison.change import Change
    from gpusight.comparison.digest import Digest
    from gpusight.comparison.limits import Limit
    from gpusight.comparison.outcome import Comparison
    from gpusight.result import Fmt


class Status(enum.Enum):
    """What became of a check."""

    PASSED = "passed"
    FAILED = "failed"
    """Over the limit, and not by chance."""
    UNSURE = "unsure"
    """Over the limit, but within what captures differ by anyway."""
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
    """Why it is missing, or which captures do not count; empty where nothing is to be said."""

    @property
    def over(self) -> float | None:
        """By how much the value is over the limit; negative within it."""
        known = self.change.after is not None and self.most is not None
        return self.change.after - self.most if known else None  # type: ignore[operator]

    def document(self) -> dict[str, Any]:
        """Give it as plain objects, for JSON."""
        return {
            "metric": self.limit.metric,
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


@dataclass(frozen=True)
class Gate:
    """All checks, and whether they let a change through."""

    checks: tuple[Check, ...]
    baseline: tuple[str, ...]
    """Names of the captures to compare with; none where only ceilings are held."""
    captures: tuple[str, ...]
    confidence: float
    strict: bool = False
    allow_missing: bool = False
    comparison: Comparison | None = None
    notes: tuple[str, ...] = ()
    meta: Mapping[str, Any] = field(default_factory=dict)
    command: str = "gate"
    title: str = "Gate"

    @property
    def passed(self) -> bool:
        """Whether nothing stands in the way."""
        return not any(self.fails(check) for check in self.checks)

    def fails(self, check: Check) -> bool:
        """Tell whether a check stands in the way, as strict as this gate is."""
        unsure = check.status is Status.UNSURE and self.strict
        missing = check.status is Status.MISSING and not self.allow_missing
        return check.status is Status.FAILED or unsure or missing

    def having(self, status: Status) -> list[Check]:
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
                "notes": list(self.notes),
                **self.meta,
            },
            "passed": self.passed,
            "checks": [check.document() for check in self.checks],
            "explanation": list(found.explanation) if found else [],
        }


def gate(
    before: Sequence[Digest],
    after: Sequence[Digest],
    limits: Sequence[Limit],
    *,
    confidence: float = 0.95,
    least: float = 0.02,
    strict: bool = False,
    allow_missing: bool = False,
) -> Gate | NotApplicable:
    """Hold captures against limits; `before` is the baseline, and may be empty for ceilings.

    `least` is only for the words of the explanation: a limit says itself how much is too much.
    """
    _check_request(before, after, limits, confidence)
    found = compare(before, after, confidence=confidence, least=least) if before else None
    if isinstance(found, NotApplicable):
        return found
    pairs = [both(before, after, limit.metric) for limit in limits]
    for limit, (_, now) in zip(limits, pairs, strict=True):
        limit.check_unit(now.fmt)
    grown = changes(pairs, confidence=confidence, least=0.0)
    judged = zip(limits, pairs, grown, strict=True)
    checks = tuple(_check(limit, pair, change, confidence) for limit, pair, change in judged)
    return Gate(
        checks,
        tuple(digest.label for digest in before),
        tuple(digest.label for digest in after),
        confidence,
        strict=strict,
        allow_missing=allow_missing,
        comparison=found,
        notes=found.notes if found else tuple(_notes(after)),
    )


def _check_request(
    before: Sequence[Digest], after: Sequence[Digest], limits: Sequence[Limit], confidence: float
) -> None:
    if not 0.5 <= confidence < 1:
        raise UsageError(f"a confidence of {confidence:g} makes no sense", hint="such as 95%")
    if not limits or not after:
        what = "capture" if limits else "limit"
        raise UsageError(f"no {what} was given", hint="a gate without one would pass anything")
    relative = [limit for limit in limits if limit.kind is not Kind.CEILING]
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


def _check(
    limit: Limit, pair: tuple[Quantity, Quantity], change: Change, confidence: float
) -> Check:
    now = pair[1]
    needed = (now,) if limit.kind is Kind.CEILING else pair
    check = Check(
        limit, now.label, now.fmt, change, _most(limit, change), None, None, Status.MISSING, ""
    )
    unknown = [side for side in needed if not side.known]
    if unknown:
        return replace(check, reason=unknown[0].missing or "no capture knows it")
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
