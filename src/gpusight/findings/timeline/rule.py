"""What a rule of the timeline is, and what it can say.

A rule is a class: its texts are attributes, its check a method. Those of gpusight lie in
`findings/timeline/rules/`, one file each; a user's own may lie in any file (`--rules FILE`) or in a
package that registers it under the entry point `gpusight.rules`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

from gpusight.findings.verdict import Clean

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.analyses.replay.changes import Change
    from gpusight.findings.finding import Confidence, Evidence
    from gpusight.findings.timeline.timeline import Timeline
    from gpusight.findings.verdict import Limit


@dataclass(frozen=True, slots=True)
class Where:
    """A place to look at: a range, a kernel, an operator, a call, a line."""

    kind: str
    """`range`, `kernel`, `operator`, `call`, `site`, `step` or `stream`."""
    name: str
    ns: float | None = None
    """Time of it that the finding is about, in the judged part."""
    count: int | None = None
    """How often, in the judged part."""


@dataclass(frozen=True, slots=True)
class Found:
    """The program has the problem."""

    title: str
    """What was seen, in one line with its main number."""
    evidence: tuple[Evidence, ...]
    confidence: Confidence
    confidence_reason: str
    change: tuple[Change, ...] = ()
    """What the fix changes: replayed for the time that it gives back."""
    recoverable_ns: float | None = None
    """Time of the judged part that the fix gives back, where no replay can tell; None for none."""
    least_ns: float | None = None
    """The judged part cannot become shorter than this by the fix (one worker that loads data)."""
    estimate: str = ""
    """How the time was estimated, in place of the rule's own words."""
    fix: str = ""
    """Advice for what was seen, in place of the rule's own: names, numbers, what it should gain."""
    code: str = ""
    """Lines to paste, in place of the rule's own."""
    afterwards: str = ""
    """What to check once it is done, in place of the rule's own."""
    where: tuple[Where, ...] = ()
    """The most telling places, the largest first."""
    also: tuple[str, ...] = ()
    """Rules that see the same cause; their findings are left out beside this one."""


@dataclass(frozen=True, slots=True)
class Absent:
    """The rule cannot be judged, and why."""

    reason: str


Verdict: TypeAlias = "Found | Clean | Absent"


class Rule:
    """One cause of lost time: its explanation for people, and the check."""

    id: ClassVar[str]
    detects: ClassVar[str]
    """What it looks for, as a sentence without its subject: `Looks for …`."""
    why: ClassVar[str]
    """Why that costs time."""
    fix: ClassVar[str]
    code: ClassVar[str] = ""
    afterwards: ClassVar[str] = ""
    """What to check once it is done."""
    misleads: ClassVar[str]
    """When the rule is wrong."""
    estimate: ClassVar[str]
    """How the time that it gives back is estimated."""
    limits: ClassVar[Mapping[str, Limit]] = {}
    least_share: ClassVar[float | None] = 0.005
    """The least part of the window worth a finding; None for a finding whatever it gives back."""

    def check(self, timeline: Timeline) -> Verdict:
        """Say whether the program has the problem."""
        raise NotImplementedError


__all__ = ["Absent", "Clean", "Found", "Rule", "Verdict", "Where"]
