"""What a rule of the timeline found, with the time that a fix gives back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gpusight.findings.finding import Confidence, Evidence
    from gpusight.findings.timeline.rule import Where


@dataclass(frozen=True, slots=True)
class TimelineFinding:
    """One cause of lost time, with what its fix gives back over the window."""

    rule: str
    title: str
    recoverable_ns: float | None
    """Time of the window that the fix gives back when it is the only one; None: not a matter of
    time."""
    share: float | None
    """The same as a part of the window."""
    step_ns: float | None
    """The same for one step; of the window where no steps are known."""
    after_ns: float | None
    """Time that it gives back once all findings above it are fixed."""
    confidence: Confidence
    confidence_reason: str
    estimate: str
    """How the time was estimated."""
    evidence: tuple[Evidence, ...]
    why: str
    fix: str
    code: str
    afterwards: str
    """What to check once it is done."""
    misleads: str
    where: tuple[Where, ...]
    """Times and counts are those of the window."""
    robust: bool = True
    """Its rank stays when what a profiler adds to each launch is taken off."""

    def document(self) -> dict[str, Any]:
        """Give the finding as plain objects, for JSON."""
        return {
            "rule": self.rule,
            "title": self.title,
            "recoverable_ns": self.recoverable_ns,
            "share": self.share,
            "recoverable_ns_per_step": self.step_ns,
            "after_above_ns": self.after_ns,
            "confidence": self.confidence.value,
            "confidence_reason": self.confidence_reason,
            "robust": self.robust,
            "estimate": self.estimate,
            "evidence": [evidence.document() for evidence in self.evidence],
            "why": self.why,
            "fix": self.fix,
            "code": self.code,
            "afterwards": self.afterwards,
            "misleads": self.misleads,
            "where": [
                {"kind": w.kind, "name": w.name, "ns": w.ns, "count": w.count} for w in self.where
            ],
        }
