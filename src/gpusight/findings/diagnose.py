"""Which diagnosis a capture gets: of its kernels, of its timeline, or of both joined."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from gpusight.analyses.select import EVERYTHING
from gpusight.errors import UsageError
from gpusight.result import NotApplicable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusight.analyses.ledger.accounting import Accounting
    from gpusight.analyses.select import Selection
    from gpusight.findings.joined import JoinedDiagnosis
    from gpusight.findings.kernels.diagnosis import Diagnosis
    from gpusight.findings.timeline.diagnosis import TimelineDiagnosis
    from gpusight.findings.timeline.rule import Rule
    from gpusight.model.trace import Trace

AnyDiagnosis: TypeAlias = "Diagnosis | TimelineDiagnosis | JoinedDiagnosis"
_OF_REPORTS = {"kernel": "--kernel", "launches": "--launch", "lines": "--lines"}
_OF_TIMELINES = {"steps": "--steps", "window": "--window", "warmup": "--warmup"}


@dataclass(frozen=True)
class Question:
    """What is asked of a capture, or of a timeline and a report of the same program."""

    selection: Selection = EVERYTHING
    rules: Sequence[str] = ()
    """Only these, by their names."""
    kernel: str | None = None
    launches: Sequence[int] = ()
    lines: bool = False
    steps: str | None = None
    window: tuple[int | None, int | None] | None = None
    warmup: bool = False
    extra_rules: Sequence[Rule] = ()
    known: Accounting | None = None
    """What was worked out of a timeline before, which is taken where it is of the judged time."""


def diagnose_captures(traces: Sequence[Trace], question: Question) -> AnyDiagnosis | NotApplicable:
    """Say what holds a program or its kernels back."""
    if len(traces) not in (1, 2):
        what = f"{len(traces)} captures were given"
        raise UsageError(what, hint="give one, or a timeline and an Nsight Compute report")
    found = (
        _of_one(traces[0], question)
        if len(traces) == 1
        else _of_two(traces[0], traces[1], question)
    )
    if isinstance(found, NotApplicable):
        return found
    return found.with_warnings([w for trace in traces for w in trace.warnings])


def _of_one(trace: Trace, question: Question) -> Diagnosis | TimelineDiagnosis | NotApplicable:
    if trace.has("profiles"):
        _refuse(question, _OF_TIMELINES, "a report of measured launches has no steps")
        return _of_report(trace, question)
    _refuse(question, _OF_REPORTS, "the capture is a timeline, not an Nsight Compute report")
    return _of_timeline(trace, question)


def _of_two(first: Trace, second: Trace, question: Question) -> JoinedDiagnosis | NotApplicable:
    from gpusight.findings.joined import join_diagnoses

    report, timeline = (second, first) if second.has("profiles") else (first, second)
    if timeline.has("profiles") or not report.has("profiles"):
        kind = "reports of measured launches" if report.has("profiles") else "timelines"
        hint = "give a timeline (nsys, torch.profiler, JAX) and an Nsight Compute report"
        raise UsageError(f"both captures are {kind}", hint=hint)
    for_timeline, for_report = _for_each(question)
    of_program = _of_timeline(timeline, for_timeline)
    if isinstance(of_program, NotApplicable):
        return of_program
    of_kernels = _of_report(report, for_report)
    if isinstance(of_kernels, NotApplicable):
        return of_kernels
    return join_diagnoses(of_program, of_kernels, (timeline, report), question.selection)


def _of_report(trace: Trace, question: Question) -> Diagnosis | NotApplicable:
    from gpusight.findings.kernels.diagnosis import diagnose

    return diagnose(
        trace,
        question.selection,
        kernel=question.kernel,
        launches=question.launches,
        rules=question.rules,
        lines=question.lines,
    )


def _of_timeline(trace: Trace, question: Question) -> TimelineDiagnosis | NotApplicable:
    from gpusight.findings.timeline.diagnosis import diagnose_timeline

    return diagnose_timeline(
        trace,
        question.selection,
        steps=question.steps,
        window=question.window,
        warmup=question.warmup,
        rules=question.rules,
        extra_rules=question.extra_rules,
        known=question.known,
    )


def _for_each(question: Question) -> tuple[Question, Question]:
    """Divide the names of rules: for the timeline, for the report; `small-grid` is in both."""
    from gpusight.findings.kernels.rules import RULES as KERNEL_RULES
    from gpusight.findings.timeline.rules import RULES as TIMELINE_RULES

    of_report = [name for name in question.rules if name in KERNEL_RULES]
    others = [name for name in question.rules if name in TIMELINE_RULES or name not in KERNEL_RULES]
    report = replace(question, rules=of_report, selection=EVERYTHING)
    return replace(question, rules=others), report


def _refuse(question: Question, options: Mapping[str, str], why: str) -> None:
    """Refuse what has no meaning for a capture, rather than let it have no effect."""
    given = [option for name, option in options.items() if getattr(question, name)]
    if given:
        raise UsageError(f"{given[0]} does not apply", why=why)


def unknowns(found: AnyDiagnosis, rules: Sequence[str]) -> list[str]:
    """Say what keeps a gate from passing although nothing was found: lost data, and of the `rules`
    that were asked for by name those that lacked data.
    """
    from gpusight.findings.kernels.diagnosis import Diagnosis
    from gpusight.findings.timeline.diagnosis import TimelineDiagnosis

    if isinstance(found, Diagnosis):
        return []
    timeline = found if isinstance(found, TimelineDiagnosis) else found.timeline
    lacking = {r: w for r, w in timeline.not_applicable.items() if r not in timeline.covered}
    asked = (f"{rule} was not evaluated: {lacking[rule]}" for rule in rules if rule in lacking)
    return [*(f"the capture is incomplete: {why}" for why in timeline.incomplete), *asked]


def shares(found: AnyDiagnosis) -> list[tuple[str, float]]:
    """Name what gives time back, with the part of the time that it gives: what gates look at.

    Findings of a timeline are parts of its window, kernels of a report parts of all their time.
    Joined, only the timeline counts: faster kernels do not make a program faster that waits.
    """
    from gpusight.findings.kernels.diagnosis import Diagnosis
    from gpusight.findings.timeline.diagnosis import TimelineDiagnosis

    if isinstance(found, Diagnosis):
        whole = found.duration_ns
        worth = [group for group in found.groups if group.findings and whole]
        return [(f"{g.findings[0].rule} of {g.label}", g.saved_ns / whole) for g in worth]
    timeline = found if isinstance(found, TimelineDiagnosis) else found.timeline
    return [(f.rule, f.share) for f in timeline.findings if f.share is not None]
