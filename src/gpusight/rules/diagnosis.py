"""What `diagnose` returns: for a timeline, for the kernels of an ncu report, or for both joined.

`diagnose_captures` picks the diagnosis that fits the captures.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import asdict, dataclass, field, replace
from itertools import accumulate
from operator import or_
from typing import TYPE_CHECKING, Any, TypeAlias

from gpusight.analysis.selection import EVERYTHING
from gpusight.analysis.steps.window_headline import WindowHeadline, headline_of
from gpusight.errors import UsageError
from gpusight.results import NotApplicable
from gpusight.rules.registry import KERNEL_RULES, TIMELINE_RULES
from gpusight.rules.rule import KernelRule, TimelineRule

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusight.analysis.corrected_trace import Correction
    from gpusight.analysis.ledger.accounting import Accounting
    from gpusight.analysis.ledger.device_ledger import Ledger
    from gpusight.analysis.selection import Selection
    from gpusight.analysis.steps.window_headline import StepWindow
    from gpusight.rules.finding import KernelFinding, TimelineFinding
    from gpusight.rules.process_sections import DiagnosisSection
    from gpusight.rules.rule import Rule, RuleNotApplicable
    from gpusight.trace.trace import Trace


COMMAND = "diagnose"
COLLECT_ALL = "ncu --set full -o report PROGRAM"
"""Collects what every rule needs."""
_SUSPECTED = re.compile(r"\bmight (?:have )?not\b")
AnyDiagnosis: TypeAlias = "KernelReportDiagnosis | TimelineDiagnosis | JoinedDiagnosis"


@dataclass(frozen=True, slots=True)
class ReplayFacts:
    """How accurate the replay is."""

    error: float
    """Relative error of the replay with typical latencies against the measured time."""
    steps: int
    """Steps that were replayed; 0 where none are known."""
    length_ns: int
    """Time that was replayed; its findings are scaled to the window."""
    not_modeled: Mapping[str, str] = field(default_factory=dict)
    """What the capture shows and the replay leaves out, such as other processes on the GPU; by the
    rule whose fix models it, where there is one."""

    def document(self) -> dict[str, Any]:
        """Return plain objects; `not_modeled` only where there is any."""
        facts = {"error": self.error, "steps": self.steps, "length_ns": self.length_ns}
        unmodeled = list(self.not_modeled.values())
        return facts | {"not_modeled": unmodeled} if unmodeled else facts


@dataclass(frozen=True)
class TimelineDiagnosis:
    """The bottlenecks of a program."""

    focus: StepWindow
    findings: tuple[TimelineFinding, ...]
    """In the order of the plan."""
    clean: tuple[str, ...]
    not_applicable: Mapping[str, str]
    """Rules that could not be evaluated, and why."""
    ledger: Ledger
    """Of the whole window."""
    replay: ReplayFacts | None
    """None where nothing could be replayed."""
    covered: Mapping[str, str] = field(default_factory=dict)
    """Rules of `not_applicable` that see the cause of another finding, and the rule of that one."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    """`path`, `tool`, `gpu` (names), `device` (diagnosed), `process`; of several `processes` (a
    count), the `process` is its number."""
    correction: Correction | None = None
    """How times were corrected for the profiler; None where they are those of the capture."""
    has_shapes: bool = False
    """Operators have shapes, from which FLOPs are counted."""
    notes: tuple[str, ...] = ()
    incomplete: tuple[str, ...] = ()
    """What the capture lacks: then no finding does not mean no problem."""
    rules: Mapping[str, TimelineRule] = field(default_factory=dict, repr=False)
    """The rules that ran, which locate their findings."""
    selection: Selection = field(default=EVERYTHING, repr=False)
    """The part of the capture that was evaluated."""
    sections: tuple[DiagnosisSection, ...] = ()
    """The other processes and GPUs of the capture, the worst first."""
    command: str = COMMAND
    title: str = "Diagnosis"

    @property
    def steps(self) -> int:
        """Steps in the window; 0 where none are known."""
        return len(self.focus.steps)

    @property
    def step_ns(self) -> float:
        """Length of a step; of the window where no steps are known."""
        return self.focus.step_ns

    @property
    def plan(self) -> tuple[TimelineFinding, ...]:
        """The findings to fix, ranked by time saved; those without a time estimate come last."""
        return tuple(f for f in self.findings if f.in_plan)

    @property
    def outside_plan(self) -> tuple[TimelineFinding, ...]:
        """Fixes that save too little after the plan, then findings about the capture."""
        return tuple(f for f in self.findings if not f.in_plan)

    @property
    def fixes(self) -> tuple[TimelineFinding, ...]:
        """The findings with a fix that saves a known time, ranked by it."""
        return tuple(f for f in self.findings if f.is_fix and f.saved_ns is not None)

    @property
    def predicted_step_ns(self) -> float:
        """Length of a step with all fixes; of the window where no steps are known."""
        return next((ns for ns in reversed(self.plan_step_ns) if ns is not None), self.step_ns)

    @property
    def plan_step_ns(self) -> tuple[float | None, ...]:
        """Predicted step time after each finding's fix and those above; None for no estimate."""
        left_ns, plan_ns = float(self.focus.length_ns), list[float | None]()
        for finding in self.findings:
            has_time = finding.is_fix and finding.saved_ns is not None
            left_ns = max(0.0, left_ns - (finding.saved_ns or 0.0)) if has_time else left_ns
            plan_ns.append(left_ns / max(1, self.steps) if has_time else None)
        return tuple(plan_ns)

    @property
    def plan_upper_bounds(self) -> tuple[bool, ...]:
        """Which of `plan_step_ns` rest on an upper bound: of that finding or of one above it."""
        bounds = (f.is_fix and bool(f.saved_ns) and f.is_upper_bound for f in self.findings)
        return tuple(accumulate(bounds, or_))

    @property
    def is_upper_bound(self) -> bool:
        """All fixes save at most what the plan predicts: a part of it is an upper bound."""
        return any(self.plan_upper_bounds)

    @property
    def headline(self) -> WindowHeadline:
        """The window, its step time, and how busy GPUs are, the evaluated one first."""
        busy = {device.device: device.busy_share for device in self.ledger.devices}
        device = self.meta.get("device")
        return headline_of(self.focus, busy, device if device in busy else next(iter(busy), None))

    def document(self) -> dict[str, Any]:
        """Return the document that `--format json` writes."""
        inner_loop = self.focus.inner_loop
        return {
            "meta": {
                "command": self.command,
                "title": self.title,
                **self.meta,
                "headline": self.headline.document(),
                "notes": list(self.notes),
            },
            "window": {
                "start_ns": self.focus.start_ns,
                "end_ns": self.focus.end_ns,
                "steps": self.steps,
                "steps_left_out": len(self.focus.left_out),
                "step_ns": self.step_ns,
                "recorded_step_ns": self.focus.recorded_step_ns or self.step_ns,
                "estimate_ns": self.focus.estimate_ns,
                "inner_loop": None if inner_loop is None else asdict(inner_loop),
            },
            "profiler": None if self.correction is None else self.correction.document(),
            "plan": {
                "fixes": len(self.fixes),
                "step_ns": self.step_ns,
                "predicted_step_ns": self.predicted_step_ns,
                "speedup": self.step_ns / max(1.0, self.predicted_step_ns),
                "upper_bound": self.is_upper_bound,
            },
            "replay": None if self.replay is None else self.replay.document(),
            "findings": [finding.document() for finding in self.findings],
            "incomplete": list(self.incomplete),
            "clean": list(self.clean),
            "not_applicable": [
                {"rule": rule, "reason": reason} for rule, reason in self.not_applicable.items()
            ],
            "ledger": self.ledger.document(),
            "sections": [section.document() for section in self.sections],
        }

    def with_warnings(self, warnings: Sequence[str]) -> TimelineDiagnosis:
        """Add the warnings of the captures to the notes, behind what the capture lacks.

        What a profiler only suspects to be lost comes last: most such captures are complete.
        """
        suspected = [text for text in self.incomplete if _SUSPECTED.search(text)]
        notes = dict.fromkeys((*self.incomplete, *warnings, *self.notes))
        certain = (note for note in notes if note not in suspected)
        return replace(self, notes=(*certain, *suspected))


@dataclass(frozen=True, slots=True)
class ProfilerRule:
    """A result of a rule of the profiler itself for a launch."""

    rule: str
    title: str | None
    section: str | None
    kind: str | None
    message: str | None
    speedup_kind: str | None
    """`global` for a gain of the launch, `local` for one of the part that the rule is about."""
    speedup_percent: float | None

    def document(self) -> dict[str, Any]:
        """Return plain objects, for JSON."""
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
    """The results of the rules for one launch."""

    name: str
    label: str
    """The short name."""
    launch: int
    duration_ns: float | None
    device: int | None
    grid: tuple[int | None, ...]
    block: tuple[int | None, ...]
    limiter: str | None
    """`memory`, `compute` or `latency`; None where that was not measured."""
    findings: tuple[KernelFinding, ...]
    clean: tuple[str, ...]
    not_applicable: Mapping[str, RuleNotApplicable]
    profiler_rules: tuple[ProfilerRule, ...] = ()

    @property
    def saved_ns(self) -> float:
        """Time that the fix of its first finding saves: fixes do not add up."""
        return (self.findings[0].saved_ns or 0.0) if self.findings else 0.0

    def document(self) -> dict[str, Any]:
        """Return plain objects, for JSON."""
        return {
            "name": self.name,
            "label": self.label,
            "launch": self.launch,
            "duration_ns": self.duration_ns,
            "device": self.device,
            "grid": list(self.grid),
            "block": list(self.block),
            "held_by": self.limiter,
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
    """Launches of one kernel with one grid and block, diagnosed together."""

    name: str
    label: str
    """The short name, with the grid or block where launches of other sizes were profiled too."""
    kernels: tuple[LaunchDiagnosis, ...]
    findings: tuple[KernelFinding, ...]
    """Findings of all its launches, with their times summed; the largest gain first."""

    @property
    def duration_ns(self) -> float:
        """Time of all its launches."""
        return sum(k.duration_ns or 0.0 for k in self.kernels)

    @property
    def saved_ns(self) -> float:
        """Time that the fix of its first finding saves."""
        return (self.findings[0].saved_ns or 0.0) if self.findings else 0.0

    @property
    def longest(self) -> LaunchDiagnosis:
        """The longest launch, which represents the others."""
        return max(self.kernels, key=lambda k: k.duration_ns or 0.0)


@dataclass(frozen=True)
class KernelReportDiagnosis:
    """The bottlenecks of the kernels of a report."""

    groups: tuple[KernelGroup, ...]
    """The one that saves most first."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    command: str = COMMAND
    title: str = "Kernel diagnosis"

    @property
    def kernels(self) -> tuple[LaunchDiagnosis, ...]:
        """Every launch, in the order of the groups."""
        return tuple(kernel for group in self.groups for kernel in group.kernels)

    @property
    def findings(self) -> tuple[KernelFinding, ...]:
        """Every finding of every group, the one that saves most first."""
        findings = [finding for group in self.groups for finding in group.findings]
        return tuple(sorted(findings, key=lambda f: -(f.saved_ns or 0.0)))

    @property
    def duration_ns(self) -> float:
        """Time of all launches."""
        return sum(group.duration_ns for group in self.groups)

    @property
    def saved_ns(self) -> float:
        """Time that the first fix of each group saves."""
        return sum(group.saved_ns for group in self.groups)

    @property
    def unevaluated(self) -> tuple[str, ...]:
        """Rules that no launch has the counters for."""
        names = dict.fromkeys(rule for kernel in self.kernels for rule in kernel.not_applicable)
        return tuple(rule for rule in names if all(rule in k.not_applicable for k in self.kernels))

    def document(self) -> dict[str, Any]:
        """Return the document that `--format json` writes."""
        return {
            "meta": {
                "command": self.command,
                "title": self.title,
                **self.meta,
                "launches": len(self.kernels),
                "duration_ns": self.duration_ns,
                "saved_ns": self.saved_ns,
                "notes": list(self.notes),
            },
            "saved_ns": self.saved_ns,
            "kernels": [kernel.document() for kernel in self.kernels],
        }

    def with_warnings(self, warnings: Sequence[str]) -> KernelReportDiagnosis:
        """Add the warnings of the captures to the notes."""
        return replace(self, notes=tuple(dict.fromkeys((*warnings, *self.notes))))


@dataclass(frozen=True, slots=True)
class TimedKernel:
    """A measured kernel, with its time in the window of a timeline."""

    group: KernelGroup
    calls: int
    time_ns: float

    @property
    def finding(self) -> KernelFinding | None:
        """The finding that saves most; None where there is none."""
        return self.group.findings[0] if self.group.findings else None

    @property
    def saved_ns(self) -> float:
        """GPU time of the window that the fix of its first finding saves."""
        speedup = self.finding.speedup if self.finding else None
        return 0.0 if speedup is None else self.time_ns * (1 - 1 / speedup)

    def document(self, window_ns: int, steps: int) -> dict[str, Any]:
        """Return plain objects, for JSON."""
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
    """The bottlenecks of a program, and of its kernels."""

    timeline: TimelineDiagnosis
    report: KernelReportDiagnosis
    kernels: tuple[TimedKernel, ...]
    """Measured kernels that run in the window, the one that saves most first."""

    @property
    def kernels_with_findings(self) -> tuple[TimedKernel, ...]:
        """Those that are listed; their numbers follow those of the timeline's findings."""
        return tuple(kernel for kernel in self.kernels if kernel.finding is not None)

    @property
    def title(self) -> str:
        """Title of the timeline."""
        return self.timeline.title

    @property
    def meta(self) -> Mapping[str, Any]:
        """Metadata of the timeline."""
        return self.timeline.meta

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on both captures, and on how well they match."""
        return self.timeline.notes

    def document(self) -> dict[str, Any]:
        """Return the timeline's document, with the measured kernels."""
        window_ns, steps = self.timeline.focus.length_ns, self.timeline.steps
        kernels = [kernel.document(window_ns, steps) for kernel in self.kernels]
        return self.timeline.document() | {"kernels": kernels}

    def with_warnings(self, warnings: Sequence[str]) -> JoinedDiagnosis:
        """Add the warnings of the captures to the notes."""
        return replace(self, timeline=self.timeline.with_warnings(warnings))


def timeline_of(diagnosis: TimelineDiagnosis | JoinedDiagnosis) -> TimelineDiagnosis:
    """Return the diagnosis of the timeline, joined with that of a report or not."""
    return diagnosis if isinstance(diagnosis, TimelineDiagnosis) else diagnosis.timeline


@dataclass(frozen=True)
class Explanation:
    """One finding of a diagnosis, in full."""

    diagnosis: AnyDiagnosis
    number: int
    """Its number in the diagnosis, from 1."""
    finding: TimelineFinding | KernelGroup

    @property
    def title(self) -> str:
        """What it is about."""
        return self.finding.label if isinstance(self.finding, KernelGroup) else self.finding.title

    @property
    def meta(self) -> Mapping[str, Any]:
        """What is known of the capture."""
        return self.diagnosis.meta

    @property
    def notes(self) -> tuple[str, ...]:
        """The notes of the diagnosis."""
        return self.diagnosis.notes

    @property
    def not_modeled(self) -> tuple[str, ...]:
        """What the capture shows and the estimate of a timeline's finding leaves out.

        What its own fix removes is modeled.
        """
        if isinstance(self.finding, KernelGroup) or isinstance(
            self.diagnosis, KernelReportDiagnosis
        ):
            return ()
        replay = timeline_of(self.diagnosis).replay
        if replay is None or self.finding.saved_ns is None:
            return ()
        rule = self.finding.rule
        return tuple(text for topic, text in replay.not_modeled.items() if topic != rule)


def explain_finding(diagnosis: AnyDiagnosis, which: int | str) -> Explanation:
    """Choose a finding by its number or its rule; a kernel of a report also by its name."""
    if isinstance(diagnosis, KernelReportDiagnosis):
        groups = [group for group in diagnosis.groups if group.findings]
        names = [(group.label, *(f.rule for f in group.findings)) for group in groups]
        number = _position(which, names, "kernels")
        return Explanation(diagnosis, number, groups[number - 1])
    timeline = timeline_of(diagnosis)
    if isinstance(which, str) and which in timeline.clean:
        raise NotApplicable(COMMAND, f"{which} passed: it has no finding in this capture").error()
    if isinstance(which, str) and which in timeline.not_applicable:
        reason = timeline.not_applicable[which]
        raise NotApplicable(COMMAND, f"{which} was not evaluated: {reason}").error()
    rules = (*timeline.clean, *timeline.not_applicable)
    findings: list[TimelineFinding | KernelGroup] = [*timeline.findings]
    names = [(finding.rule,) for finding in timeline.findings]
    if isinstance(diagnosis, JoinedDiagnosis):
        findings += [kernel.group for kernel in diagnosis.kernels_with_findings]
        names += [(kernel.group.label,) for kernel in diagnosis.kernels_with_findings]
    number = _position(which, names, "findings", rules)
    return Explanation(diagnosis, number, findings[number - 1])


def _position(
    which: int | str, names: Sequence[Sequence[str]], noun: str, others: Sequence[str] = ()
) -> int:
    if isinstance(which, int) and 1 <= which <= len(names):
        return which
    for number, of_finding in enumerate(names, 1):
        if which in of_finding:
            return number
    if not names:
        raise NotApplicable(COMMAND, "there is no finding to explain").error()
    known = [*others, *(name for of_finding in names for name in of_finding)]
    near = difflib.get_close_matches(str(which), known, n=1)
    listed = ", ".join(f"{number} {of[0]}" for number, of in enumerate(names[:10], 1))
    listed += f", … {len(names)} {names[-1][0]}" if len(names) > 10 else ""
    hint = f"did you mean {near[0]}?" if near else f"{noun} are: {listed}"
    raise UsageError(f"no finding {which!r}", hint=hint)


def unknowns(diagnosis: AnyDiagnosis, rules: Sequence[str]) -> list[str]:
    """Return why a gate cannot pass although nothing was found: lost data, and those of the `rules`
    requested by name that lacked data.
    """
    if isinstance(diagnosis, KernelReportDiagnosis):
        return []
    timeline = timeline_of(diagnosis)
    lacking = {r: w for r, w in timeline.not_applicable.items() if r not in timeline.covered}
    skipped = (f"{rule} was not evaluated: {lacking[rule]}" for rule in rules if rule in lacking)
    return [*(f"the capture is incomplete: {why}" for why in timeline.incomplete), *skipped]


def shares(diagnosis: AnyDiagnosis) -> list[tuple[str, float]]:
    """Return what a gate checks: findings, with the share of time that their fixes save.

    For a timeline these are shares of its window, each fix of the plan after those above it; for
    a report shares of the time of all kernels. Joined, only the timeline counts: faster kernels do
    not help a program that waits.
    """
    if isinstance(diagnosis, KernelReportDiagnosis):
        total_ns = diagnosis.duration_ns
        groups = [group for group in diagnosis.groups if group.findings and total_ns]
        return [(f"{g.findings[0].rule} of {g.label}", g.saved_ns / total_ns) for g in groups]
    timeline = timeline_of(diagnosis)
    checked = _planned_shares(timeline)
    for section in timeline.sections:
        if section.diagnosis is not None:
            planned = _planned_shares(section.diagnosis)
            checked += [(f"{rule} of {section.label}", share) for rule, share in planned]
    return checked


def _planned_shares(timeline: TimelineDiagnosis) -> list[tuple[str, float]]:
    window_ns = max(1, timeline.focus.length_ns)
    return [(f.rule, f.saved_ns / window_ns) for f in timeline.plan if f.saved_ns is not None]


# Choosing the diagnosis ---------------------------------------------------------------------------


_REPORT_OPTIONS = {"kernel": "--kernel", "launches": "--launch", "lines": "--lines"}
_TIMELINE_OPTIONS = {"steps": "--steps", "window": "--window", "warmup": "--warmup"}


@dataclass(frozen=True)
class DiagnoseOptions:
    """Options of `diagnose`."""

    selection: Selection = EVERYTHING
    rules: Sequence[str] = ()
    """Run only these, by their identifiers."""
    kernel: str | None = None
    launches: Sequence[int] = ()
    lines: bool = False
    steps: str | None = None
    window: tuple[int | None, int | None] | None = None
    warmup: bool = False
    extra_rules: Sequence[Rule] = ()
    known: Accounting | None = None
    """A ledger computed before, used where it is of the same window."""


_FOR_RANKS = "for all ranks of a job: gpusight ranks"


def diagnose_captures(
    traces: Sequence[Trace], options: DiagnoseOptions
) -> AnyDiagnosis | NotApplicable:
    """Diagnose a timeline, an Nsight Compute report, or one of each of the same program."""
    diagnosis: AnyDiagnosis | NotApplicable
    if len(traces) == 2:
        diagnosis = _diagnose_both(traces[0], traces[1], options)
    elif len(traces) != 1:
        what = f"{len(traces)} captures were given"
        hint = "pass one, or a timeline and an Nsight Compute report"
        raise UsageError(what, hint=f"{hint}; {_FOR_RANKS}")
    elif traces[0].has("profiles"):
        _refuse(options, _TIMELINE_OPTIONS, "a report of measured launches has no steps")
        diagnosis = _diagnose_report(traces[0], options)
    else:
        why = "the capture is a timeline, not an Nsight Compute report"
        _refuse(options, _REPORT_OPTIONS, why)
        diagnosis = _diagnose_timeline(traces[0], options)
    if isinstance(diagnosis, NotApplicable):
        return diagnosis
    return diagnosis.with_warnings([w for trace in traces for w in trace.warnings])


def _diagnose_both(
    first: Trace, second: Trace, options: DiagnoseOptions
) -> JoinedDiagnosis | NotApplicable:
    report, timeline = (second, first) if second.has("profiles") else (first, second)
    if timeline.has("profiles") or not report.has("profiles"):
        kind = "reports of measured launches" if report.has("profiles") else "timelines"
        hint = "pass a timeline (nsys, torch.profiler, JAX) and an Nsight Compute report"
        more = "" if report.has("profiles") else f"; {_FOR_RANKS}, to compare: gpusight compare"
        raise UsageError(f"both captures are {kind}", hint=hint + more)
    # Some identifiers, such as `small-grid`, are rules of both kinds.
    kernel_ids = {r.id for r in options.extra_rules if isinstance(r, KernelRule)} | {*KERNEL_RULES}
    for_report = [id_ for id_ in options.rules if id_ in kernel_ids]
    for_timeline = [id_ for id_ in options.rules if id_ in TIMELINE_RULES or id_ not in kernel_ids]
    program = _diagnose_timeline(timeline, replace(options, rules=for_timeline))
    if isinstance(program, NotApplicable):
        return program
    kernels = _diagnose_report(report, replace(options, rules=for_report, selection=EVERYTHING))
    if isinstance(kernels, NotApplicable):
        return kernels
    from gpusight.analysis.profiler_correction import without_profiler
    from gpusight.rules.kernel_diagnosis import join_diagnoses

    # The window of the program has the times of the corrected capture.
    corrected = without_profiler(timeline, program.selection.process)
    return join_diagnoses(program, kernels, (corrected, report), program.selection)


def _diagnose_report(
    trace: Trace, options: DiagnoseOptions
) -> KernelReportDiagnosis | NotApplicable:
    from gpusight.rules.kernel_diagnosis import diagnose_kernels

    return diagnose_kernels(
        trace,
        options.selection,
        kernel=options.kernel,
        launches=options.launches,
        rules=options.rules,
        extra_rules=[rule for rule in options.extra_rules if isinstance(rule, KernelRule)],
        lines=options.lines,
    )


def _diagnose_timeline(trace: Trace, options: DiagnoseOptions) -> TimelineDiagnosis | NotApplicable:
    from gpusight.rules.process_sections import diagnose_processes
    from gpusight.rules.timeline_diagnosis import diagnose_timeline

    def diagnose(selection: Selection) -> TimelineDiagnosis | NotApplicable:
        return diagnose_timeline(
            trace,
            selection,
            steps=options.steps,
            window=options.window,
            warmup=options.warmup,
            rules=options.rules,
            extra_rules=[rule for rule in options.extra_rules if isinstance(rule, TimelineRule)],
            known=options.known,
        )

    return diagnose_processes(trace, options.selection, diagnose)


def _refuse(options: DiagnoseOptions, inapplicable: Mapping[str, str], why: str) -> None:
    """Raise UsageError for an option that would have no effect on this kind of capture."""
    for name, option in inapplicable.items():
        if getattr(options, name):
            raise UsageError(f"{option} does not apply", why=why)
