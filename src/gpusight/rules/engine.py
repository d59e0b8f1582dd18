"""Runs the rules: of a timeline, replays what each fix saves, alone and after the ones above it; of
a measured launch, drops findings of which another one names the cause.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Generic, TypeVar

import numpy as np

from gpusight.analysis.gpu_schedule import CallKind
from gpusight.rules.finding import Confidence, KernelFinding, TimelineFinding
from gpusight.rules.rule import KernelRuleMatch, RuleMatch, RuleNotApplicable

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpusight.analysis.replay.changes import Change
    from gpusight.analysis.replay.simulation import ReplayProgram
    from gpusight.rules.context import RuleContext
    from gpusight.rules.kernel_launch import ProfiledLaunch
    from gpusight.rules.rule import KernelRule, RuleVerdict, TimelineRule


MAX_REPLAY_ERROR = 0.05
"""Above this error of the replay its answers are less to be trusted."""
PROFILER_LAUNCH_NS = 4_000
"""What a profiler adds to each launch: 3 to 5 us were seen."""
_LOWER = {Confidence.HIGH: Confidence.MEDIUM}
MAX_CONFIDENT_SPEEDUP = 10.0
"""Gains beyond this are known to their order of magnitude only: other costs come up."""
MIN_CAUSE_SHARE = 0.6
"""Part of what an effect would save that its cause must save to stand for it."""
Finding = TypeVar("Finding", TimelineFinding, KernelFinding)


@dataclass(frozen=True)
class RuleResults(Generic[Finding]):
    """What the rules say of a timeline, or of one launch."""

    findings: tuple[Finding, ...]
    """The one that saves most first."""
    clean: tuple[str, ...]
    not_applicable: dict[str, RuleNotApplicable]
    covered: dict[str, str] = field(default_factory=dict)
    """Rules whose findings are left out, and the rule that names their cause better; of a timeline
    these are in `not_applicable` too."""

    @property
    def lacking_data(self) -> dict[str, str]:
        """Rules that the capture has no data for, and why; not those that another one covers."""
        return {
            rule: verdict.reason
            for rule, verdict in self.not_applicable.items()
            if rule not in self.covered
        }


# Timelines ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Case:
    """A finding that is being judged; times are of the judged part."""

    rule: TimelineRule
    match: RuleMatch
    alone_ns: float | None
    after_ns: float | None = None
    robust: bool = True


def run_timeline_rules(
    context: RuleContext, rules: Iterable[TimelineRule]
) -> RuleResults[TimelineFinding]:
    """Ask every rule and rank what was found by the time that its fix saves."""
    asked = {rule.id: rule for rule in rules}
    matches, clean, not_applicable = _by_kind({id_: r.check(context) for id_, r in asked.items()})
    cases = [_Case(asked[id_], match, _alone(context, match)) for id_, match in matches.items()]
    covered = _covered(context, cases)
    not_applicable |= {
        rule: RuleNotApplicable(f"the same cause as {by}, which names it better")
        for rule, by in covered.items()
    }
    ranked = _in_order(case for case in cases if case.rule.id not in covered)
    kept = _worth_it(context, _with_what_remains(context, ranked))
    clean += [case.rule.id for case in ranked if case.rule.id not in {k.rule.id for k in kept}]
    findings = tuple(_timeline_finding(context, case) for case in _checked(context, kept))
    return RuleResults(findings, tuple(clean), not_applicable, covered)


def _by_kind(
    verdicts: Mapping[str, RuleVerdict],
) -> tuple[dict[str, RuleMatch], list[str], dict[str, RuleNotApplicable]]:
    """Divide what rules said: matches, clean, not applicable."""
    matches = {id_: v for id_, v in verdicts.items() if isinstance(v, RuleMatch)}
    absent = {id_: v for id_, v in verdicts.items() if isinstance(v, RuleNotApplicable)}
    return matches, [id_ for id_ in verdicts if id_ not in matches | absent], absent


def _alone(context: RuleContext, match: RuleMatch) -> float | None:
    """Return the time that a fix gives back when it is the only one."""
    if not match.change:
        saved_ns = match.recoverable_ns
        return None if saved_ns is None else min(max(0.0, saved_ns), _most(context, match))
    saved = context.replay.run(*match.change).saved_ns
    return float(min(max(0, saved), _most(context, match)))


def _most(context: RuleContext, match: RuleMatch) -> float:
    if match.min_ns is None:
        return float(context.replay.unchanged.total_ns)
    return max(0.0, context.replay.unchanged.total_ns - match.min_ns)


def _covered(context: RuleContext, cases: Sequence[_Case]) -> dict[str, str]:
    """Tell findings of a cause that another one, which is worth saying, names better: by which."""
    matched = {case.rule.id for case in cases}
    covered: dict[str, str] = {}
    for case in _in_order(_worth_it(context, cases)):
        # One that is covered itself covers nothing: two that name each other leave the larger.
        if case.rule.id not in covered:
            others = matched & set(case.match.also) - {case.rule.id}
            covered |= dict.fromkeys(others, case.rule.id)
    return covered


def _in_order(cases: Iterable[_Case]) -> list[_Case]:
    return sorted(cases, key=lambda c: -(-1.0 if c.alone_ns is None else c.alone_ns))


def _with_what_remains(context: RuleContext, cases: Sequence[_Case]) -> list[_Case]:
    """Replay each fix after all those above it."""
    changes: list[Change] = []
    before, above = context.replay.unchanged.total_ns, False
    done = []
    for case in cases:
        changes += case.match.change
        if not case.match.change:
            done.append(replace(case, after_ns=case.alone_ns))
            continue
        total = context.replay.run(*changes).total_ns
        # What fixes above uncover may be more than there was to gain at first.
        after = float(max(0, before - total)) if above else case.alone_ns
        above = True
        done.append(replace(case, after_ns=after))
        before = min(before, total)
    return done


def _worth_it(context: RuleContext, cases: Iterable[_Case]) -> list[_Case]:
    """Keep what gives something back: at once, or once the findings above it are fixed."""

    def is_worth(case: _Case) -> bool:
        least = case.rule.min_share
        if least is None or case.alone_ns is None:
            return True
        return max(case.alone_ns, case.after_ns or 0.0) >= least * context.length_ns

    return [case for case in cases if is_worth(case)]


def _checked(context: RuleContext, cases: Sequence[_Case]) -> list[_Case]:
    """Mark findings whose rank changes when the profiler's part of each launch is taken off."""
    replayed = [case for case in cases if case.match.change]
    if len(replayed) < 2:
        return list(cases)
    lighter = _without_profiler(context)
    base = context.replay.run(lighter).total_ns
    gains = {
        case.rule.id: base - context.replay.run(lighter, *case.match.change).total_ns
        for case in replayed
    }
    order = sorted(replayed, key=lambda c: -gains[c.rule.id])
    moved = {
        case.rule.id
        for case, other in zip(replayed, order, strict=True)
        if gains[case.rule.id] != gains[other.rule.id]
    }
    return [replace(case, robust=case.rule.id not in moved) for case in cases]


def _without_profiler(context: RuleContext) -> Change:
    kinds = context.schedule.calls.kind
    launches = np.flatnonzero(
        np.isin(kinds, (CallKind.LAUNCH, CallKind.GRAPH, CallKind.COPY, CallKind.FILL))
    )

    def change(program: ReplayProgram) -> ReplayProgram:
        own = program.own_ns.copy()
        # A launch takes the host two microseconds or more without any profiler.
        lighter = np.maximum(own[launches] - PROFILER_LAUNCH_NS, 2_000)
        own[launches] = np.minimum(own[launches], lighter)
        return program.changed(own_ns=own)

    return change


def _timeline_finding(context: RuleContext, case: _Case) -> TimelineFinding:
    """Return a finding with the times of the whole window."""
    match, rule = case.match, case.rule
    scale = context.focus.length_ns / max(1, context.length_ns)
    alone = None if case.alone_ns is None else case.alone_ns * scale
    confidence, reason = _confidence(context, match)
    return TimelineFinding(
        rule=rule.id,
        title=match.title,
        recoverable_ns=alone,
        share=None if alone is None else alone / max(1, context.focus.length_ns),
        step_ns=None if alone is None else alone / max(1, len(context.focus.steps)),
        after_ns=None if case.after_ns is None else case.after_ns * scale,
        confidence=confidence,
        confidence_reason=reason,
        estimate=match.estimate or rule.estimate,
        evidence=match.evidence,
        why=rule.why,
        fix=match.fix or rule.fix,
        code=match.code or rule.code,
        verify=match.verify or rule.verify,
        caveats=rule.caveats,
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
    )


def _confidence(context: RuleContext, match: RuleMatch) -> tuple[Confidence, str]:
    """Lower the confidence where the replay does not reproduce what was measured."""
    error = context.replay.error
    if not match.change or error <= MAX_REPLAY_ERROR:
        return match.confidence, match.confidence_reason
    lower = _LOWER.get(match.confidence, Confidence.LOW)
    return lower, f"{match.confidence_reason}; the replay misses the measured time by {error:.0%}"


# Measured launches --------------------------------------------------------------------------------


def run_kernel_rules(
    launch: ProfiledLaunch, rules: Mapping[str, KernelRule]
) -> RuleResults[KernelFinding]:
    """Ask every rule about a launch; the largest gain comes first."""
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
        tells_roof=rule.tells_roof,
    )


def _accounts_for(
    cause: KernelFinding, effect: KernelFinding, rules: Mapping[str, KernelRule]
) -> bool:
    """Return whether a finding names the cause of another, for most of what that one would save."""
    if effect.rule not in rules[cause.rule].explains:
        return False
    return (cause.saved_ns or 0.0) >= MIN_CAUSE_SHARE * (effect.saved_ns or 0.0)
