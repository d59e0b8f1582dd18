"""Runs the rules and ranks their findings by the time that fixes save.

For a timeline, each fix is replayed alone and after the fixes above it. For a profiled launch,
findings that are an effect of another one are dropped.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from gpusight.analysis.gpu_schedule import CallKind
from gpusight.rules.finding import Confidence, KernelFinding, TimelineFinding
from gpusight.rules.rule import KernelRuleMatch, RuleMatch, RuleNotApplicable
from gpusight.units import format_share

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpusight.analysis.counters.profiled_launch import ProfiledLaunch
    from gpusight.analysis.replay.changes import Change
    from gpusight.analysis.replay.simulation import ReplayProgram
    from gpusight.rules.context import RuleContext
    from gpusight.rules.rule import KernelRule, RuleVerdict, TimelineRule


MAX_REPLAY_ERROR = 0.05
"""Error of the replay above which its estimates have a lower confidence."""
PROFILER_LAUNCH_NS = 4_000
"""Overhead of a profiler per launch: 3 to 5 us were measured."""
MIN_ORDER_SHARE = 0.005
"""Share of the time by which two fixes must differ for their order to matter: that of the smallest
finding."""
MIN_CONFIDENT_SAMPLE = 0.1
"""Share of the window that a sample must have for a high confidence."""
_LOWER = {Confidence.HIGH: Confidence.MEDIUM}
MAX_CONFIDENT_SPEEDUP = 10.0
"""Larger speedups are known to their order of magnitude only: other costs dominate then."""
MIN_CAUSE_SHARE = 0.6
"""Share of what an effect would save that its cause must save to replace it."""
Finding = TypeVar("Finding", TimelineFinding, KernelFinding)


@dataclass(frozen=True)
class RuleResults(Generic[Finding]):
    """The results of the rules for a timeline, or for one launch."""

    findings: tuple[Finding, ...]
    """The one that saves most first."""
    clean: tuple[str, ...]
    not_applicable: dict[str, RuleNotApplicable]
    covered: dict[str, str] = field(default_factory=dict)
    """Rules whose findings were dropped, and the rule that names their cause better; for a timeline
    these are in `not_applicable` too."""

    @property
    def lacking_data(self) -> dict[str, str]:
        """Rules that the capture has no data for, and why."""
        return {
            rule: verdict.reason
            for rule, verdict in self.not_applicable.items()
            if rule not in self.covered
        }


# Timelines ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Case:
    """A match with the time that its fix saves, in the sample."""

    rule: TimelineRule
    match: RuleMatch
    alone_ns: float | None
    saved_ns: float | None = None
    """Incremental: after the fixes above it."""
    robust: bool = True


def run_timeline_rules(
    context: RuleContext, rules: Iterable[TimelineRule]
) -> RuleResults[TimelineFinding]:
    """Run rules, and order their findings as a plan: what to fix first, and what after that."""
    by_id = {rule.id: rule for rule in rules}
    matches, clean, not_applicable = _by_kind({id_: r.check(context) for id_, r in by_id.items()})
    cases = [_Case(by_id[id_], match, _saved_ns(context, match)) for id_, match in matches.items()]
    covered = _covered(context, cases)
    not_applicable |= {
        rule: RuleNotApplicable(f"same cause as {by}") for rule, by in covered.items()
    }
    plan, left_out = _plan(context, [case for case in cases if case.rule.id not in covered])
    clean += [case.rule.id for case in left_out]
    findings = tuple(_timeline_finding(context, case) for case in _with_robustness(context, plan))
    return RuleResults(findings, tuple(clean), not_applicable, covered)


def _by_kind(
    verdicts: Mapping[str, RuleVerdict],
) -> tuple[dict[str, RuleMatch], list[str], dict[str, RuleNotApplicable]]:
    """Split verdicts: matches, clean, not applicable."""
    matches = {id_: v for id_, v in verdicts.items() if isinstance(v, RuleMatch)}
    not_applicable = {id_: v for id_, v in verdicts.items() if isinstance(v, RuleNotApplicable)}
    clean = [id_ for id_ in verdicts if id_ not in matches | not_applicable]
    return matches, clean, not_applicable


def _saved_ns(context: RuleContext, match: RuleMatch) -> float | None:
    """Return the time that a fix saves when it is the only one."""
    max_ns = _max_saved_ns(context, match)
    if match.change:
        return float(min(max(0, context.replay.run(*match.change).saved_ns), max_ns))
    return None if match.recoverable_ns is None else min(max(0.0, match.recoverable_ns), max_ns)


def _max_saved_ns(context: RuleContext, match: RuleMatch) -> float:
    """Return the most that a fix can save when it is the only one."""
    total_ns = float(context.replay.unchanged.total_ns)
    return total_ns if match.min_ns is None else max(0.0, total_ns - match.min_ns)


def _covered(context: RuleContext, cases: Sequence[_Case]) -> dict[str, str]:
    """Find rules whose cause another finding names better, and the rule of that finding."""
    matched = {case.rule.id for case in cases}
    covered: dict[str, str] = {}
    for case in _ranked(_worth_it(context, cases)):
        # One that is covered itself covers nothing: of two that name each other the larger stays.
        if case.rule.id not in covered:
            others = matched & set(case.match.also) - {case.rule.id}
            covered |= dict.fromkeys(others, case.rule.id)
    return covered


def _ranked(cases: Iterable[_Case]) -> list[_Case]:
    return sorted(cases, key=lambda c: -(-1.0 if c.alone_ns is None else c.alone_ns))


def _plan(context: RuleContext, cases: Sequence[_Case]) -> tuple[list[_Case], list[_Case]]:
    """Choose the fix that saves most, then the one that saves most after it, and so on.

    Savings are incremental, so that they add up. Fixes that save too little in the plan and alone
    are left out. What cannot be replayed saves its estimate, as far as there is time left; what has
    no estimate comes last.
    """
    plan: list[_Case] = []
    changes: list[Change] = []
    total_ns = remaining_ns = float(context.replay.unchanged.total_ns)
    waiting = [case for case in cases if case.alone_ns is not None and case.rule.is_fix]
    others = [case for case in cases if case not in waiting]
    while waiting:
        totals_ns: dict[str, float] = {}
        saved_ns: dict[str, float] = {}
        for case in waiting:
            possible_ns = case.alone_ns or 0.0
            if case.match.change and changes:
                totals_ns[case.rule.id] = context.replay.run(*changes, *case.match.change).total_ns
                possible_ns = max(0.0, total_ns - totals_ns[case.rule.id])
            saved_ns[case.rule.id] = min(possible_ns, remaining_ns)
        best = max(waiting, key=lambda case: (saved_ns[case.rule.id], case.alone_ns or 0.0))
        plan.append(replace(best, saved_ns=saved_ns[best.rule.id]))
        waiting.remove(best)
        remaining_ns -= saved_ns[best.rule.id]
        if best.match.change:
            changes += best.match.change
            total_ns = min(total_ns, totals_ns.get(best.rule.id, total_ns - saved_ns[best.rule.id]))
    plan += others
    kept = _worth_it(context, plan)
    return kept, [case for case in plan if case not in kept]


def _worth_it(context: RuleContext, cases: Iterable[_Case]) -> list[_Case]:
    """Keep cases that save enough: alone, or once the findings above are fixed."""

    def is_worth(case: _Case) -> bool:
        min_share = case.rule.min_share
        if min_share is None or case.alone_ns is None:
            return True
        return max(case.alone_ns, case.saved_ns or 0.0) >= min_share * context.length_ns

    return [case for case in cases if is_worth(case)]


def _with_robustness(context: RuleContext, cases: Sequence[_Case]) -> list[_Case]:
    """Mark findings that the plan would order differently without the profiler's overhead.

    Of two findings that follow each other, the second must save more than the first in the place
    of the first, after the same fixes.
    """
    replayed = [case for case in cases if case.match.change and case.saved_ns is not None]
    changes: list[Change] = [_without_profiler(context)]
    before_ns = context.replay.run(*changes).total_ns if len(replayed) > 1 else 0
    unsure: set[str] = set()
    for case, other in pairwise(replayed):
        first_ns = context.replay.run(*changes, *case.match.change).total_ns
        other_ns = context.replay.run(*changes, *other.match.change).total_ns
        saved_ns, other_saved_ns = (float(before_ns - ns) for ns in (first_ns, other_ns))
        if len(changes) == 1:  # the plan limits what the first fix saves
            saved_ns = min(saved_ns, _max_saved_ns(context, case.match))
            other_saved_ns = min(other_saved_ns, _max_saved_ns(context, other.match))
        if other_saved_ns - saved_ns > MIN_ORDER_SHARE * context.length_ns:
            unsure |= {case.rule.id, other.rule.id}
        changes += case.match.change
        before_ns = first_ns
    return [replace(case, robust=case.rule.id not in unsure) for case in cases]


def _without_profiler(context: RuleContext) -> Change:
    kinds = context.schedule.calls.kind
    launches = np.flatnonzero(
        np.isin(kinds, (CallKind.LAUNCH, CallKind.GRAPH, CallKind.COPY, CallKind.MEMSET))
    )

    def change(program: ReplayProgram) -> ReplayProgram:
        own_ns = program.own_ns.copy()
        # A launch takes the host two microseconds or more without any profiler.
        shorter_ns = np.maximum(own_ns[launches] - PROFILER_LAUNCH_NS, 2_000)
        own_ns[launches] = np.minimum(own_ns[launches], shorter_ns)
        return program.changed(own_ns=own_ns)

    return change


def _timeline_finding(context: RuleContext, case: _Case) -> TimelineFinding:
    """Return a finding with times scaled from the sample to the window."""
    match, rule = case.match, case.rule
    scale = context.focus.length_ns / max(1, context.length_ns)
    alone_ns = None if case.alone_ns is None else case.alone_ns * scale
    confidence, reason = _confidence(context, match)
    return TimelineFinding(
        rule=rule.id,
        title=match.title,
        recoverable_ns=alone_ns,
        share=None if alone_ns is None else alone_ns / max(1, context.focus.length_ns),
        step_ns=None if alone_ns is None else alone_ns / max(1, len(context.focus.steps)),
        saved_ns=None if case.saved_ns is None else case.saved_ns * scale,
        confidence=confidence,
        confidence_reason=reason,
        estimate=match.estimate or rule.estimate,
        evidence=match.evidence,
        why=rule.why,
        fix=match.fix or rule.fix,
        code=match.code or rule.code,
        verify=match.verify or rule.verify,
        caveats=rule.caveats,
        where_time=match.where_time,
        where=tuple(
            replace(
                w,
                ns=None if w.ns is None else w.ns * scale,
                count=None if w.count is None else round(w.count * scale),
            )
            for w in match.where
        ),
        robust=case.robust,
        is_fix=rule.is_fix,
        effort=match.effort or rule.effort,
    )


def _confidence(context: RuleContext, match: RuleMatch) -> tuple[Confidence, str]:
    """Lower the confidence for a large simulation error, and cap it for a small sample."""
    confidence, reason = match.confidence, match.confidence_reason
    error = context.replay.error
    if match.change and error > MAX_REPLAY_ERROR:
        confidence = _LOWER.get(confidence, Confidence.LOW)
        reason = f"{reason}; simulation error {error:.0%}"
    # What has no time estimate, such as memory growth, is not from the sample.
    has_estimate = match.change or match.recoverable_ns is not None
    if confidence is Confidence.HIGH and has_estimate and (sample := _small_sample(context)):
        return Confidence.MEDIUM, f"{reason}; {sample}"
    return confidence, reason


def _small_sample(context: RuleContext) -> str:
    """Describe a sample that is too small for high confidence; empty for a larger one."""
    share = context.length_ns / max(1, context.focus.length_ns)
    if share < MIN_CONFIDENT_SAMPLE:
        return f"only {format_share(share)} of the window was evaluated"
    return "only one step was evaluated" if context.steps == 1 else ""


# Profiled launches --------------------------------------------------------------------------------


def run_kernel_rules(
    launch: ProfiledLaunch, rules: Mapping[str, KernelRule]
) -> RuleResults[KernelFinding]:
    """Run rules on a launch; the largest gain comes first."""
    matches, clean, not_applicable = _by_kind(
        {id_: rule.evaluate(launch) for id_, rule in rules.items()}
    )
    findings = [
        _kernel_finding(rules[id_], launch, match)
        for id_, match in matches.items()
        if isinstance(match, KernelRuleMatch)
    ]
    # The sort is stable, so that causes stay before effects.
    ranked = sorted(findings, key=lambda finding: -(finding.speedup or 0.0))
    covered = {
        effect.rule: cause.rule
        for effect in ranked
        if (cause := next((c for c in ranked if _accounts_for(c, effect, rules)), None))
    }
    kept = tuple(
        replace(finding, also=tuple(e for e, cause in covered.items() if cause == finding.rule))
        for finding in ranked
        if finding.rule not in covered
    )
    return RuleResults(kept, tuple(clean), not_applicable, covered)


def _kernel_finding(
    rule: KernelRule, launch: ProfiledLaunch, match: KernelRuleMatch
) -> KernelFinding:
    confidence, reason = match.confidence, match.confidence_reason
    speedup = None if match.time_share is None else 1 / match.time_share
    if speedup is None:
        confidence, reason = Confidence.LOW, "the gain is not known"
    elif speedup > MAX_CONFIDENT_SPEEDUP and confidence is Confidence.HIGH:
        confidence = Confidence.MEDIUM
        reason = f"{reason}, but so large a gain is an order of magnitude"
    return KernelFinding(
        rule=rule.id,
        title=match.title,
        where=launch.name,
        time_ns=launch.duration_ns,
        speedup=speedup,
        confidence=confidence,
        confidence_reason=reason,
        estimate=match.estimate or rule.estimate,
        evidence=match.evidence,
        why=rule.why,
        fix=match.fix or rule.fix,
        code=match.code or rule.code,
        caveats=rule.caveats,
        sections=rule.sections,
        at_roofline=rule.at_roofline if match.at_roofline is None else match.at_roofline,
        effort=match.effort or rule.effort,
    )


def _accounts_for(
    cause: KernelFinding, effect: KernelFinding, rules: Mapping[str, KernelRule]
) -> bool:
    """Return whether one finding is the cause of most of what another would save."""
    if effect.rule not in rules[cause.rule].explains:
        return False
    return (cause.saved_ns or 0.0) >= MIN_CAUSE_SHARE * (effect.saved_ns or 0.0)
