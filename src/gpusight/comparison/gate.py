"""A gate: whether captures hold their limits, as far as their spread lets that be told."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpusight.analyses.completeness import KERNELS
from gpusight.comparison.alike import each_once, other_parts
from gpusight.comparison.comparable import check_kinds, differences
from gpusight.comparison.compare import check_confidence, compare
from gpusight.comparison.inference import CONFIDENCE, LEAST
from gpusight.comparison.judging import Check, Status, judge
from gpusight.comparison.limits import Kind
from gpusight.errors import UsageError
from gpusight.result import NotApplicable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusight.comparison.comparable import Difference
    from gpusight.comparison.digest import Digest
    from gpusight.comparison.limits import Limit
    from gpusight.comparison.outcome import Comparison

__all__ = ["Check", "Gate", "Status", "gate"]


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
        if all(status is Status.INCONCLUSIVE for status in blocking):
            return "inconclusive" if blocking else "passed"
        return "failed"

    def fails(self, check: Check) -> bool:
        """Whether a check keeps the gate from passing; every form of the answer asks this."""
        if check.status is Status.MISSING:
            return not self.allow_missing or check.lost or self.knows_nothing
        if check.status is Status.UNSURE:
            return self.strict
        return check.status is not Status.PASSED

    @property
    def knows_nothing(self) -> bool:
        """Whether no metric is known: a gate that measured nothing never passes."""
        return all(check.status is Status.MISSING for check in self.checks)

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
    limits: Sequence[Limit],
    *,
    confidence: float = CONFIDENCE,
    least: float = LEAST,
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
        judge(before, after, limits, confidence, obstacles),
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
    before: Sequence[Digest], after: Sequence[Digest], limits: Sequence[Limit], confidence: float
) -> None:
    check_confidence(confidence)
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
