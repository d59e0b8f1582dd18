"""What a timeline rule is, and what it can say.

A rule is a class: its texts are attributes, its check a method. Those of gpusight are in
`rules/timeline/`, one file each; a user's own may be in any file (`--rules FILE`) or in a
package that registers it under the entry point `gpusight.rules`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.analysis.replay.changes import Change
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import Confidence, Evidence


@dataclass(frozen=True, slots=True)
class Threshold:
    """A threshold of a rule, with the reason for its value."""

    value: float
    why: str


@dataclass(frozen=True, slots=True)
class Clean:
    """The rule applies, and there is no such problem."""


CLEAN = Clean()


@dataclass(frozen=True, slots=True)
class FindingLocation:
    """A place to look at: a range, a kernel, an operator, a call, a line."""

    kind: str
    """`range`, `kernel`, `operator`, `call`, `site`, `step` or `stream`."""
    name: str
    ns: float | None = None
    """Time of it that the finding is about, in the judged part."""
    count: int | None = None
    """How often, in the judged part."""


@dataclass(frozen=True, slots=True)
class RuleMatch:
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
    where: tuple[FindingLocation, ...] = ()
    """The most telling places, the largest first."""
    also: tuple[str, ...] = ()
    """Rules that see the same cause; their findings are left out beside this one."""


@dataclass(frozen=True, slots=True)
class RuleNotApplicable:
    """The rule cannot be judged, and why."""

    reason: str


RuleVerdict: TypeAlias = "RuleMatch | Clean | RuleNotApplicable"


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
    limits: ClassVar[Mapping[str, Threshold]] = {}
    least_share: ClassVar[float | None] = 0.005
    """The least part of the window worth a finding; None for a finding whatever it gives back."""

    def check(self, timeline: RuleContext) -> RuleVerdict:
        """Say whether the program has the problem."""
        raise NotImplementedError
