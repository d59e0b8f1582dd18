"""What a rule is, and what it can say: of a timeline, or of a kernel that Nsight Compute measured.

A rule is a class. Its file holds everything about it: the texts, the thresholds, the check, the
change that its fix makes, and where its findings happen. Those of gpusight are in `rules/timeline/`
and `rules/kernel/`, one file each, and are listed in `rules/registry.py`; a user's own may be in
any file (`--rules FILE`) or in a package that registers it under the entry point `gpusight.rules`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

    from gpusight.analysis.counters.launch_quantities import LaunchQuantity
    from gpusight.analysis.replay.changes import Change
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import Confidence, Evidence, TimelineFinding
    from gpusight.rules.kernel_launch import ProfiledLaunch


@dataclass(frozen=True, slots=True)
class Threshold:
    """A threshold of a rule, with the reason for its value."""

    value: float
    why: str


# Verdicts -----------------------------------------------------------------------------------------


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
    """What the fix changes: replayed for the time that it saves."""
    recoverable_ns: float | None = None
    """Time of the judged part that the fix saves, where no replay can tell; None for none."""
    min_ns: float | None = None
    """The judged part cannot become shorter than this by the fix (one worker that loads data)."""
    estimate: str = ""
    """How the time was estimated, in place of the rule's own words."""
    fix: str = ""
    """Advice for what was seen, in place of the rule's own: names, numbers, what it should gain."""
    code: str = ""
    """Lines to paste, in place of the rule's own."""
    verify: str = ""
    """What to check once it is done, in place of the rule's own."""
    where: tuple[FindingLocation, ...] = ()
    """The most telling places, the largest first."""
    also: tuple[str, ...] = ()
    """Rules that see the same cause; their findings are left out."""


@dataclass(frozen=True, slots=True)
class KernelRuleMatch(RuleMatch):
    """The launch has the problem."""

    time_share: float | None = None
    """Part of the duration that is left after the fix, 0 to 1; 1 when there is nothing to gain,
    None where that is not known."""


@dataclass(frozen=True, slots=True)
class Clean:
    """The rule applies, and there is no such problem."""


CLEAN = Clean()


@dataclass(frozen=True, slots=True)
class RuleNotApplicable:
    """The rule cannot be evaluated, and why."""

    reason: str
    sections: tuple[str, ...] = ()
    """Sections that Nsight Compute would have to collect for it."""


RuleVerdict: TypeAlias = "RuleMatch | Clean | RuleNotApplicable"


# Rules --------------------------------------------------------------------------------------------


class Rule:
    """One cause of lost time, explained for people; the check is that of a kind of rule."""

    id: ClassVar[str]
    detects: ClassVar[str]
    """What it looks for, as a sentence without its subject: `Looks for …`."""
    why: ClassVar[str]
    """Why that costs time."""
    fix: ClassVar[str]
    code: ClassVar[str] = ""
    verify: ClassVar[str] = ""
    """What to check once it is done."""
    caveats: ClassVar[str]
    """When the rule is wrong."""
    estimate: ClassVar[str]
    """How the time that the fix saves is estimated."""
    thresholds: ClassVar[Mapping[str, Threshold]] = {}
    is_fix: ClassVar[bool] = True
    """The program can be changed; else the finding is about the capture (profiler, warm-up)."""


class TimelineRule(Rule):
    """A rule for timelines."""

    min_share: ClassVar[float | None] = 0.005
    """The least part of the window worth a finding; None for a finding whatever it saves."""
    scenario: ClassVar[str] = ""
    """What `gpusight whatif` calls its fix besides `apply ID`, such as `fuse elementwise`."""

    def check(self, context: RuleContext) -> RuleVerdict:
        """Return whether the program has the problem."""
        raise NotImplementedError

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find the stretches of the timeline that show a finding: by default what it names.

        The columns are those of `rules.locations.CANDIDATES`, and `telling` where something else
        than the time of a stretch decides which are shown. Nothing found means the default.
        """
        from gpusight.rules.locations import events_named

        return events_named(context, finding)


@dataclass(frozen=True, slots=True)
class InstructionCounters:
    """Counters of single instructions that tell where a problem is."""

    metrics: tuple[str, ...]
    """Names of one counter over the years: the first that a capture has counts."""
    less: tuple[str, ...] = ()
    """What is taken off: of accesses, those that are needed anyway."""
    scale: float = 1.0


class KernelRule(Rule):
    """A rule for launches that Nsight Compute measured."""

    needs: ClassVar[tuple[LaunchQuantity, ...]] = ()
    """Quantities without which it cannot be evaluated."""
    helps: ClassVar[tuple[LaunchQuantity, ...]] = ()
    """Quantities that make its estimate better."""
    located_by: ClassVar[InstructionCounters | None] = None
    """What tells the source lines of a finding; None for where warps were seen most often."""
    single_kernels: ClassVar[bool] = False
    """Applies to kernels only, not to graphs and ranges, which have no grid of their own."""
    explains: ClassVar[frozenset[str]] = frozenset()
    """Rules that see the effect of which this one names the cause."""
    tells_roof: ClassVar[bool] = False
    """A launch for which its fix gains nothing is at a roof."""

    @property
    def sections(self) -> tuple[str, ...]:
        """Sections of Nsight Compute that collect what it needs."""
        return tuple(dict.fromkeys(q.section for q in (*self.needs, *self.helps)))

    def check(self, launch: ProfiledLaunch) -> RuleVerdict:
        """Say of a launch with all that the rule needs whether it has the problem."""
        raise NotImplementedError

    def evaluate(self, launch: ProfiledLaunch) -> RuleVerdict:
        """Say of any launch whether it has the problem."""
        if self.single_kernels and not launch.is_kernel:
            return RuleNotApplicable("a graph or range has no grid of its own")
        missing = [q for q in self.needs if launch.get(q) is None]
        if not missing:
            return self.check(launch)
        meaning = missing[0].meaning
        # Names such as `L2` and `SMs` keep their first letter in the middle of a sentence.
        if not (meaning[1:2].isupper() or meaning[1:2].isdigit()):
            meaning = meaning[0].lower() + meaning[1:]
        sections = tuple(dict.fromkeys(q.section for q in missing))
        return RuleNotApplicable(f"not measured: {meaning}", sections)
