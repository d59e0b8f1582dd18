"""Findings of rules: evidence, cause, the time that a fix saves, and what to do."""

from __future__ import annotations

import enum
import json
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusight.results import Evidence

if TYPE_CHECKING:
    from gpusight.rules.rule import FindingLocation


__all__ = ["Confidence", "Evidence", "KernelFinding", "SourceLocation", "TimelineFinding"]


class Confidence(enum.Enum):
    """How far to trust an estimate."""

    HIGH = "high"
    """Everything that the estimate needs was measured, and is consistent."""
    MEDIUM = "medium"
    """A part was assumed, or the fix may cost something that is not counted."""
    LOW = "low"
    """An upper bound: whether the program allows the fix cannot be seen in the capture."""


@dataclass(frozen=True, slots=True)
class SourceLocation:
    """A source line that a finding comes from."""

    path: str
    line: int
    share: float
    """Share of the problem that this line has."""
    text: str
    """The line itself; empty where the capture does not contain it."""


@dataclass(frozen=True, slots=True)
class StackLine:
    """A line of the program that a finding is about, from recorded stacks."""

    file: str | None
    line: int | None
    """The line that ran; the function's first line where only functions were recorded."""
    function: str | None
    ns: float
    """Time of the finding that it has: of idle time, calls or host work."""
    share: float
    """The same as a share of all of it."""
    ran: bool
    """The line itself was sampled, not only its function."""

    @property
    def text(self) -> str:
        """Write it as `train.py:88 collate`."""
        if self.file is None:
            return self.function or "?"
        name = self.file.rpartition("/")[2]
        line = "" if self.line is None else f":{self.line}"
        return f"{name}{line} {self.function or ''}".strip()

    def document(self) -> dict[str, Any]:
        """Return plain objects, for JSON."""
        return {
            "file": self.file,
            "line": self.line,
            "function": self.function,
            "ns": self.ns,
            "share": self.share,
        }


@dataclass(frozen=True, slots=True)
class KernelFinding:
    """One cause of lost time of a kernel."""

    rule: str
    """Identifier of the rule, such as `bank-conflict`."""
    title: str
    """The problem, in one line with its main number."""
    where: str
    """Name of the kernel."""
    time_ns: float | None
    """Time that the finding is about."""
    speedup: float | None
    """Speedup of that time; 1 when there is nothing to gain."""
    confidence: Confidence
    confidence_reason: str
    estimate: str
    """How the speedup was estimated."""
    evidence: tuple[Evidence, ...]
    why: str
    fix: str
    code: str
    """Lines to paste or adapt."""
    caveats: str
    """When the rule is wrong."""
    sections: tuple[str, ...] = ()
    """What the profiler has to collect for this rule."""
    places: tuple[SourceLocation, ...] = ()
    """Source lines of the problem, where requested and known."""
    also: tuple[str, ...] = ()
    """Rules that detected the same cause, and are not findings of their own for that reason."""
    at_roofline: bool = False
    """Where there is nothing to gain, the launch is at its roofline."""
    effort: str = ""
    """`one line`, `config` or `rewrite`."""
    launch: int | None = None
    """The launch that its texts and evidence are of, where it sums up several."""
    launches: int = 1
    """Launches that have the finding."""

    @property
    def saved_ns(self) -> float | None:
        """Time that the fix saves."""
        if self.time_ns is None or self.speedup is None:
            return None
        return self.time_ns * (1 - 1 / self.speedup)

    def document(self) -> dict[str, Any]:
        """Return plain objects, for JSON."""
        return {
            "rule": self.rule,
            "title": self.title,
            "where": self.where,
            "speedup": self.speedup,
            "saved_ns": self.saved_ns,
            "confidence": self.confidence.value,
            "confidence_reason": self.confidence_reason,
            "effort": self.effort,
            "estimate": self.estimate,
            "evidence": [evidence.document() for evidence in self.evidence],
            "why": self.why,
            "fix": self.fix,
            "code": self.code,
            "misleads": self.caveats,
            "sections": list(self.sections),
            "places": [asdict(location) for location in self.places],
            "also": list(self.also),
        }


# How far predictions of fixes were off, on programs that were measured before and after the fix.
# The table is generated from our own collection (`docs/accuracy.md`); a test keeps it in step.
TABLE = Path(__file__).parents[1] / "data" / "past_predictions.json"


_MANY_TIMES = 9.0
"""Errors from here on are no longer percentages: a prediction can only be so far off upwards."""


@dataclass(frozen=True, slots=True)
class PastPredictions:
    """Errors of the step time predicted for fixes of one rule, or of rules like it."""

    of: str
    """The rule itself; `host time`, `copies`, `GPU time` or `several processes`, what the fixes of
    similar rules change; or `all rules`."""
    pairs: int
    """Captures of a program as found whose repaired form was timed."""
    programs: int
    median_error: float
    worst_error: float

    def text(self, rule: str) -> str:
        """Say how far such predictions were off: `Predictions for similar fixes …`."""
        group = "" if self.of == rule else f" ({self.of})"
        programs = f"{self.programs} program{'' if self.programs == 1 else 's'}"
        return (
            f"Step times predicted for similar fixes{group} were {_off(self.median_error)} "
            f"(median of {self.pairs} captures, {programs}; worst {_off(self.worst_error)})"
        )

    def document(self) -> dict[str, Any]:
        """Return plain objects, for JSON."""
        return asdict(self)


def _off(error: float) -> str:
    many = f"{1 + error:.0f} times the measured time"
    return many if error >= _MANY_TIMES else f"{error:.0%} off"


@cache
def past_predictions() -> dict[str, PastPredictions]:
    """Return the table by rule; your own rules are not in it."""
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    return {rule: PastPredictions(**past) for rule, past in table.items()}


@dataclass(frozen=True, slots=True)
class TimelineFinding:
    """One cause of lost time of a program, with what its fix saves over the window."""

    rule: str
    title: str
    recoverable_ns: float | None
    """Time of the window that the fix alone saves; None for no time estimate."""
    share: float | None
    """The same as a share of the window."""
    step_ns: float | None
    """The same for one step; of the window where no steps are known."""
    saved_ns: float | None
    """Time of the window that it saves once all findings above it are fixed: those of all findings
    add up to what all fixes save. None where it is not in the plan."""
    confidence: Confidence
    confidence_reason: str
    estimate: str
    """How the time was estimated."""
    evidence: tuple[Evidence, ...]
    why: str
    fix: str
    code: str
    verify: str
    """How to verify the fix."""
    caveats: str
    where: tuple[FindingLocation, ...]
    """Times and counts are those of the window."""
    where_time: str = ""
    """What these times are (`host time of launches`), if not time that the fix saves."""
    robust: bool = True
    """Its rank stays the same without the profiler's overhead per launch."""
    is_fix: bool = True
    """The program can be changed; else it is about the capture."""
    instead_of: str = ""
    """The rule of the plan's fix after which this one saves too little to be in the plan too."""
    needs: tuple[str, ...] = ()
    """Rules whose findings must be fixed first for this fix to be possible."""
    effort: str = ""
    """`one line`, `config` or `rewrite`."""
    lines: tuple[StackLine, ...] = ()
    """Lines of the program behind it, the largest first, where stacks were recorded."""
    measured_ns: float | None = None
    """Time of the window that the problem takes as measured; None where its rule does not say."""

    @property
    def is_upper_bound(self) -> bool:
        """It saves at most the time of its estimate."""
        return self.confidence is Confidence.LOW

    @property
    def similar_fixes(self) -> PastPredictions | None:
        """How far predictions of such fixes were off; None without a prediction, or unknown."""
        predicts = self.is_fix and self.recoverable_ns is not None
        return past_predictions().get(self.rule) if predicts else None

    @property
    def in_plan(self) -> bool:
        """A fix that saves enough after those above it, or that has no time estimate."""
        return self.is_fix and (self.saved_ns is not None or self.recoverable_ns is None)

    def document(self) -> dict[str, Any]:
        """Return plain objects, for JSON."""
        similar = self.similar_fixes
        return {
            "rule": self.rule,
            "title": self.title,
            "recoverable_ns": self.recoverable_ns,
            "share": self.share,
            "recoverable_ns_per_step": self.step_ns,
            "after_above_ns": self.saved_ns,
            "instead_of": self.instead_of or None,
            "needs": list(self.needs),
            "confidence": self.confidence.value,
            "confidence_reason": self.confidence_reason,
            "similar_fixes": None if similar is None else similar.document(),
            "effort": self.effort,
            "robust": self.robust,
            "estimate": self.estimate,
            "evidence": [evidence.document() for evidence in self.evidence],
            "why": self.why,
            "fix": self.fix,
            "code": self.code,
            "afterwards": self.verify,
            "misleads": self.caveats,
            "where": [asdict(location) for location in self.where],
            "where_time": self.where_time,
            "lines": [line.document() for line in self.lines],
        }
