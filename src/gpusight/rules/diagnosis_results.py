"""What `diagnose` says: of a timeline, of the kernels of an ncu report, or of both joined."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from gpusight.naming.kernel_names import classify

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusight.analysis.ledger.device_ledger import Ledger
    from gpusight.analysis.steps.step_window import StepWindow
    from gpusight.rules.finding import KernelFinding, TimelineFinding
    from gpusight.rules.rule import RuleNotApplicable, TimelineRule


COMMAND = "diagnose"
AnyDiagnosis: TypeAlias = "KernelReportDiagnosis | TimelineDiagnosis | JoinedDiagnosis"


@dataclass(frozen=True, slots=True)
class ReplayFacts:
    """How far the replay can be trusted."""

    error: float
    """Part of the measured time by which the replay with typical latencies misses it."""
    steps: int
    """Steps that were replayed; 0 where none are known."""
    length_ns: int
    """Time that was replayed; the findings of it are scaled to the window."""


@dataclass(frozen=True)
class TimelineDiagnosis:
    """What holds a program back."""

    focus: StepWindow
    findings: tuple[TimelineFinding, ...]
    """The one that gives most back first."""
    clean: tuple[str, ...]
    not_applicable: Mapping[str, str]
    """Rules that could not be judged, and why."""
    ledger: Ledger
    """Of the whole window."""
    replay: ReplayFacts | None
    """None where nothing could be replayed."""
    covered: Mapping[str, str] = field(default_factory=dict)
    """Rules of `not_applicable` that saw the cause of a finding, and the rule of that finding."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """`path`, `tool`, `gpu` (names), `device` (judged), `process`."""
    notes: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()
    """Why the capture holds less than what ran: then no finding does not mean no problem."""
    rules: Mapping[str, TimelineRule] = field(default_factory=dict, repr=False)
    """The rules that were asked, which know where their findings happen."""
    command: str = COMMAND
    title: str = "What holds the program back"

    @property
    def steps(self) -> int:
        """Steps in the window; 0 where none are known."""
        return len(self.focus.steps)

    @property
    def step_ns(self) -> float:
        """Length of a step; of the window where no steps are known."""
        return self.focus.length_ns / max(1, self.steps)

    def document(self) -> dict[str, Any]:
        """Give the document that `--format json` writes."""
        return {
            "meta": {
                "command": self.command,
                "title": self.title,
                **self.meta,
                "notes": list(self.notes),
            },
            "window": {
                "start_ns": self.focus.start_ns,
                "end_ns": self.focus.end_ns,
                "steps": self.steps,
                "steps_left_out": len(self.focus.left_out),
                "step_ns": self.step_ns,
            },
            "replay": self._replay_document(),
            "findings": [finding.document() for finding in self.findings],
            "incomplete": list(self.incomplete),
            "clean": list(self.clean),
            "not_applicable": [
                {"rule": rule, "reason": reason} for rule, reason in self.not_applicable.items()
            ],
            "ledger": self.ledger.document(),
        }

    def _replay_document(self) -> dict[str, Any] | None:
        if self.replay is None:
            return None
        return {
            "error": self.replay.error,
            "steps": self.replay.steps,
            "length_ns": self.replay.length_ns,
        }

    def with_warnings(self, warnings: Sequence[str]) -> TimelineDiagnosis:
        """Say at the top why it may be less than the whole truth."""
        return replace(self, notes=tuple(dict.fromkeys((*warnings, *self.notes))))


@dataclass(frozen=True, slots=True)
class ProfilerRule:
    """What a rule of the profiler itself said of a launch."""

    rule: str
    title: str | None
    section: str | None
    kind: str | None
    message: str | None
    speedup_kind: str | None
    """`global` for a gain of the launch, `local` for one of the part that the rule is about."""
    speedup_percent: float | None

    def document(self) -> dict[str, Any]:
        """Give it as plain objects, for JSON."""
        return {
            "rule": self.rule,
            "title": self.title,
            "section": self.section,
            "kind": self.kind,
            "speedup_kind": self.speedup_kind,
            "speedup_percent": self.speedup_percent,
            "message": self.message,
        }


@dataclass(frozen=True, slots=True)
class LaunchDiagnosis:
    """What the rules say of one launch."""

    name: str
    launch: int
    duration_ns: float | None
    device: int | None
    grid: tuple[int | None, ...]
    block: tuple[int | None, ...]
    held_by: str | None
    """`memory`, `compute` or `latency`; None where that was not measured."""
    findings: tuple[KernelFinding, ...]
    clean: tuple[str, ...]
    not_applicable: Mapping[str, RuleNotApplicable]
    profiler_rules: tuple[ProfilerRule, ...] = ()

    @property
    def saved_ns(self) -> float:
        """Time that the fix of its first finding gives back: fixes do not add up."""
        return (self.findings[0].saved_ns or 0.0) if self.findings else 0.0

    def document(self) -> dict[str, Any]:
        """Give it as plain objects, for JSON."""
        return {
            "name": self.name,
            "label": classify(self.name).short,
            "launch": self.launch,
            "duration_ns": self.duration_ns,
            "device": self.device,
            "grid": list(self.grid),
            "block": list(self.block),
            "held_by": self.held_by,
            "saved_ns": self.saved_ns,
            "findings": [f.document() for f in self.findings],
            "clean": list(self.clean),
            "not_applicable": [
                {"rule": rule, "reason": absent.reason, "sections": list(absent.sections)}
                for rule, absent in self.not_applicable.items()
            ],
            "profiler_rules": [r.document() for r in self.profiler_rules],
        }


@dataclass(frozen=True, slots=True)
class KernelGroup:
    """Launches of one kernel in one shape, judged together."""

    name: str
    label: str
    """The name made short."""
    kernels: tuple[LaunchDiagnosis, ...]
    findings: tuple[KernelFinding, ...]
    """Findings of all its launches, with their times added up; the largest gain first."""

    @property
    def duration_ns(self) -> float:
        """Time of all its launches."""
        return sum(k.duration_ns or 0.0 for k in self.kernels)

    @property
    def saved_ns(self) -> float:
        """Time that the fix of its first finding gives back."""
        return (self.findings[0].saved_ns or 0.0) if self.findings else 0.0

    @property
    def longest(self) -> LaunchDiagnosis:
        """The launch that took longest stands for the others."""
        return max(self.kernels, key=lambda k: k.duration_ns or 0.0)


@dataclass(frozen=True)
class KernelReportDiagnosis:
    """What is wrong with the kernels of a capture."""

    groups: tuple[KernelGroup, ...]
    """The one with the most time to give back first."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    command: str = COMMAND
    title: str = "Kernels by the time that fixes give back"

    @property
    def kernels(self) -> tuple[LaunchDiagnosis, ...]:
        """Every launch, in the order of the groups."""
        return tuple(kernel for group in self.groups for kernel in group.kernels)

    @property
    def findings(self) -> tuple[KernelFinding, ...]:
        """Every finding of every group, the one that gives most back first."""
        every = [finding for group in self.groups for finding in group.findings]
        return tuple(sorted(every, key=lambda f: -(f.saved_ns or 0.0)))

    @property
    def duration_ns(self) -> float:
        """Time of all launches."""
        return sum(group.duration_ns for group in self.groups)

    @property
    def saved_ns(self) -> float:
        """Time that the first fix of each group gives back."""
        return sum(group.saved_ns for group in self.groups)

    def document(self, *, limit: int | None = None) -> dict[str, Any]:
        """Give the document that `--format json` writes; `limit` launches of it, None for all."""
        totals = {"launches": len(self.kernels), "duration_ns": self.duration_ns}
        return {
            "meta": {
                "command": self.command,
                "title": self.title,
                **self.meta,
                **totals,
                "saved_ns": self.saved_ns,
                "notes": list(self.notes),
            },
            "saved_ns": self.saved_ns,
            "kernels": [kernel.document() for kernel in self.kernels[: limit or None]],
        }

    def with_warnings(self, warnings: Sequence[str]) -> KernelReportDiagnosis:
        """Say at the top why it may be less than the whole truth."""
        return replace(self, notes=tuple(dict.fromkeys((*warnings, *self.notes))))


@dataclass(frozen=True, slots=True)
class TimedKernel:
    """A measured kernel, with its time in the window of a timeline."""

    group: KernelGroup
    calls: int
    time_ns: float

    @property
    def finding(self) -> KernelFinding | None:
        """The finding that gives most back; None where there is none."""
        return self.group.findings[0] if self.group.findings else None

    @property
    def saved_ns(self) -> float:
        """Time of the window that the fix of its first finding gives back, on the GPU."""
        speedup = self.finding.speedup if self.finding else None
        return 0.0 if speedup is None else self.time_ns * (1 - 1 / speedup)

    def document(self, window_ns: int, steps: int) -> dict[str, Any]:
        """Give it as plain objects, for JSON."""
        return {
            "name": self.group.name,
            "label": self.group.label,
            "calls": self.calls,
            "time_ns": self.time_ns,
            "share": self.time_ns / window_ns if window_ns else None,
            "time_ns_per_step": self.time_ns / steps if steps else None,
            "gpu_saved_ns": self.saved_ns,
            "launches": [k.launch for k in self.group.kernels],
            "findings": [f.document() for f in self.group.findings],
        }


@dataclass(frozen=True)
class JoinedDiagnosis:
    """What holds a program back, and what holds its kernels up."""

    timeline: TimelineDiagnosis
    report: KernelReportDiagnosis
    kernels: tuple[TimedKernel, ...]
    """Measured kernels that take time in the window, those with the most to give back first."""

    @property
    def title(self) -> str:
        """What it is about."""
        return self.timeline.title

    @property
    def meta(self) -> Mapping[str, Any]:
        """What is known of the timeline as a whole."""
        return self.timeline.meta

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know of either capture, and of how they fit together."""
        return self.timeline.notes

    def document(self) -> dict[str, Any]:
        """Give the timeline's document, with the measured kernels."""
        window_ns, steps = self.timeline.focus.length_ns, self.timeline.steps
        kernels = [kernel.document(window_ns, steps) for kernel in self.kernels]
        return self.timeline.document() | {"kernels": kernels}

    def with_warnings(self, warnings: Sequence[str]) -> JoinedDiagnosis:
        """Say at the top why it may be less than the whole truth."""
        return replace(self, timeline=self.timeline.with_warnings(warnings))


def unknowns(diagnosis: AnyDiagnosis, rules: Sequence[str]) -> list[str]:
    """Say what keeps a gate from passing although nothing was found: lost data, and of the `rules`
    that were asked for by name those that lacked data.
    """
    if isinstance(diagnosis, KernelReportDiagnosis):
        return []
    timeline = diagnosis if isinstance(diagnosis, TimelineDiagnosis) else diagnosis.timeline
    lacking = {r: w for r, w in timeline.not_applicable.items() if r not in timeline.covered}
    asked = (f"{rule} was not evaluated: {lacking[rule]}" for rule in rules if rule in lacking)
    return [*(f"the capture is incomplete: {why}" for why in timeline.incomplete), *asked]


def shares(diagnosis: AnyDiagnosis) -> list[tuple[str, float]]:
    """Name what gives time back, with the part of the time that it gives: what gates look at.

    Findings of a timeline are parts of its window, kernels of a report parts of all their time.
    Joined, only the timeline counts: faster kernels do not make a program faster that waits.
    """
    if isinstance(diagnosis, KernelReportDiagnosis):
        whole = diagnosis.duration_ns
        worth = [group for group in diagnosis.groups if group.findings and whole]
        return [(f"{g.findings[0].rule} of {g.label}", g.saved_ns / whole) for g in worth]
    timeline = diagnosis if isinstance(diagnosis, TimelineDiagnosis) else diagnosis.timeline
    return [(f.rule, f.share) for f in timeline.findings if f.share is not None]
