"""What a kernel rule is, and what it can say about a launch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from gpusight.analysis.counters.source_lines import SAMPLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusight.analysis.counters.launch_quantities import LaunchQuantity
    from gpusight.rules.finding import Confidence, Evidence
    from gpusight.rules.kernel_launch import ProfiledLaunch
    from gpusight.rules.rule import Clean, Threshold


@dataclass(frozen=True, slots=True)
class KernelRuleMatch:
    """The rule applies, and the launch has the problem."""

    title: str
    time_share: float | None
    """Part of the duration that is left after the fix, 0 to 1; 1 when there is nothing to gain,
    None where that is not known."""
    estimate: str
    evidence: tuple[Evidence, ...]
    confidence: Confidence
    confidence_reason: str
    fix: str = ""
    """Advice for this launch, in place of the rule's own."""
    code: str = ""


@dataclass(frozen=True, slots=True)
class KernelRuleNotApplicable:
    """The rule cannot be judged, and what the profiler would have to collect for it."""

    reason: str
    sections: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class InstructionCounters:
    """Counters of single instructions that tell where a problem is."""

    metrics: tuple[str, ...] = SAMPLES
    """Names of one counter over the years: the first that a capture has counts."""
    less: tuple[str, ...] = ()
    """What is taken off: of accesses, those that are needed anyway."""
    scale: float = 1.0


BY_SAMPLES = InstructionCounters()
"""Where warps were seen most often."""
KernelRuleVerdict: TypeAlias = "KernelRuleMatch | Clean | KernelRuleNotApplicable"


@dataclass(frozen=True, slots=True)
class KernelRule:
    """One rule: its explanation for people, and the check."""

    id: str
    detects: str
    why: str
    fix: str
    code: str
    misleads: str
    limits: dict[str, Threshold]
    needs: tuple[LaunchQuantity, ...]
    """Quantities without which it cannot be judged."""
    check: Callable[[ProfiledLaunch], KernelRuleVerdict]
    estimate: str
    """How its speed-ups are estimated."""
    helps: tuple[LaunchQuantity, ...] = ()
    """Quantities that make its estimate better."""
    located_by: InstructionCounters = BY_SAMPLES
    single_kernels: bool = False
    """Applies to kernels only, not to graphs and ranges, which have no grid of their own."""
    explains: frozenset[str] = frozenset()
    """Rules that see the effect of which this one names the cause."""

    @property
    def sections(self) -> tuple[str, ...]:
        """Sections of Nsight Compute that collect what it needs."""
        return tuple(dict.fromkeys(q.section for q in (*self.needs, *self.helps)))

    def judge(self, launch: ProfiledLaunch) -> KernelRuleVerdict:
        """Say of one launch whether it has the problem."""
        if self.single_kernels and not launch.is_kernel:
            return KernelRuleNotApplicable("a graph or range has no grid of its own", ())
        missing = [q for q in self.needs if launch.get(q) is None]
        if missing:
            sections = tuple(dict.fromkeys(q.section for q in missing))
            return KernelRuleNotApplicable(f"not measured: {_lower(missing[0].meaning)}", sections)
        return self.check(launch)


def _lower(text: str) -> str:
    """Begin a meaning in the middle of a sentence; names such as `L2` and `SMs` stay."""
    return text if text[1:2].isupper() or text[1:2].isdigit() else text[0].lower() + text[1:]
