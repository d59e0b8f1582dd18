"""Runs the rules, and replays what each fix saves: alone, and after the ones above it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpusight.analysis.gpu_schedule import CallKind
from gpusight.rules.finding import Confidence, TimelineFinding
from gpusight.rules.rule import RuleMatch, RuleNotApplicable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpusight.analysis.replay.changes import Change
    from gpusight.analysis.replay.simulation import ReplayProgram
    from gpusight.rules.context import RuleContext
    from gpusight.rules.rule import Rule


MAX_REPLAY_ERROR = 0.05
"""Above this error of the replay its answers are less to be trusted."""
PROFILER_LAUNCH_NS = 4_000
"""What a profiler adds to each launch: 3 to 5 us were seen."""
_LOWER = {Confidence.HIGH: Confidence.MEDIUM}


@dataclass(frozen=True)
class RuleResults:
    """What the rules said."""

    findings: tuple[TimelineFinding, ...]
    clean: tuple[str, ...]
    not_applicable: dict[str, str]
    covered: dict[str, str]
    """Rules whose findings are left out, and the rule that names their cause better; these are in
    `not_applicable` too."""

    @property
    def lacking_data(self) -> dict[str, str]:
        """Rules that the capture has no data for, and why; not those that another one covers."""
        return {rule: why for rule, why in self.not_applicable.items() if rule not in self.covered}


@dataclass(frozen=True)
class _Case:
    """A finding that is being judged; times are of the judged part."""

    rule: Rule
    found: RuleMatch
    alone_ns: float | None
    after_ns: float | None = None
    robust: bool = True


def run_rules(timeline: RuleContext, rules: Iterable[Rule]) -> RuleResults:
    """Ask every rule and rank what was found by the time that it gives back."""
    cases: list[_Case] = []
    clean: list[str] = []
    absent: dict[str, str] = {}
    for rule in rules:
        verdict = rule.check(timeline)
        if isinstance(verdict, RuleMatch):
            cases.append(_Case(rule, verdict, _alone(timeline, verdict)))
        elif isinstance(verdict, RuleNotApplicable):
            absent[rule.id] = verdict.reason
        else:
            clean.append(rule.id)
    covered = _covered(timeline, cases)
    absent |= {
        rule: f"the same cause as {by}, which names it better" for rule, by in covered.items()
    }
    ranked = _in_order(case for case in cases if case.rule.id not in covered)
    kept = _worth_it(timeline, _with_what_remains(timeline, ranked))
    clean += [case.rule.id for case in ranked if case.rule.id not in {k.rule.id for k in kept}]
    findings = tuple(_finding(timeline, case) for case in _checked(timeline, kept))
    return RuleResults(findings, tuple(clean), absent, covered)


def _alone(timeline: RuleContext, found: RuleMatch) -> float | None:
    """Give the time that a fix gives back when it is the only one."""
    if not found.change:
        told = found.recoverable_ns
        return None if told is None else min(max(0.0, told), _most(timeline, found))
    saved = timeline.replay.run(*found.change).saved_ns
    return float(min(max(0, saved), _most(timeline, found)))


def _most(timeline: RuleContext, found: RuleMatch) -> float:
    if found.least_ns is None:
        return float(timeline.replay.unchanged.total_ns)
    return max(0.0, timeline.replay.unchanged.total_ns - found.least_ns)


def _covered(timeline: RuleContext, cases: Sequence[_Case]) -> dict[str, str]:
    """Tell findings of a cause that another one, which is worth saying, names better: by which."""
    found = {case.rule.id for case in cases}
    covered: dict[str, str] = {}
    for case in _in_order(_worth_it(timeline, cases)):
        # One that is covered itself covers nothing: two that name each other leave the larger.
        if case.rule.id not in covered:
            others = found & set(case.found.also) - {case.rule.id}
            covered |= dict.fromkeys(others, case.rule.id)
    return covered


def _in_order(cases: Iterable[_Case]) -> list[_Case]:
    return sorted(cases, key=lambda c: -(-1.0 if c.alone_ns is None else c.alone_ns))


def _with_what_remains(timeline: RuleContext, cases: Sequence[_Case]) -> list[_Case]:
    """Replay each fix after all those above it."""
    changes: list[Change] = []
    before, above = timeline.replay.unchanged.total_ns, False
    done = []
    for case in cases:
        changes += case.found.change
        if not case.found.change:
            done.append(replace(case, after_ns=case.alone_ns))
            continue
        total = timeline.replay.run(*changes).total_ns
        # What fixes above uncover may be more than there was to gain at first.
        after = float(max(0, before - total)) if above else case.alone_ns
        above = True
        done.append(replace(case, after_ns=after))
        before = min(before, total)
    return done


def _worth_it(timeline: RuleContext, cases: Iterable[_Case]) -> list[_Case]:
    """Keep what gives something back: at once, or once the findings above it are fixed."""

    def is_worth(case: _Case) -> bool:
        least = case.rule.least_share
        if least is None or case.alone_ns is None:
            return True
        return max(case.alone_ns, case.after_ns or 0.0) >= least * timeline.length_ns

    return [case for case in cases if is_worth(case)]


def _checked(timeline: RuleContext, cases: Sequence[_Case]) -> list[_Case]:
    """Mark findings whose rank changes when the profiler's part of each launch is taken off."""
    replayed = [case for case in cases if case.found.change]
    if len(replayed) < 2:
        return list(cases)
    lighter = _without_profiler(timeline)
    base = timeline.replay.run(lighter).total_ns
    gains = {
        case.rule.id: base - timeline.replay.run(lighter, *case.found.change).total_ns
        for case in replayed
    }
    order = sorted(replayed, key=lambda c: -gains[c.rule.id])
    moved = {
        case.rule.id
        for case, other in zip(replayed, order, strict=True)
        if gains[case.rule.id] != gains[other.rule.id]
    }
    return [replace(case, robust=case.rule.id not in moved) for case in cases]


def _without_profiler(timeline: RuleContext) -> Change:
    kinds = timeline.schedule.calls.kind
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


def _finding(timeline: RuleContext, case: _Case) -> TimelineFinding:
    """Give a finding with the times of the whole window."""
    found, rule = case.found, case.rule
    scale = timeline.focus.length_ns / max(1, timeline.length_ns)
    alone = None if case.alone_ns is None else case.alone_ns * scale
    confidence, reason = _confidence(timeline, found)
    return TimelineFinding(
        rule=rule.id,
        title=found.title,
        recoverable_ns=alone,
        share=None if alone is None else alone / max(1, timeline.focus.length_ns),
        step_ns=None if alone is None else alone / max(1, len(timeline.focus.steps)),
        after_ns=None if case.after_ns is None else case.after_ns * scale,
        confidence=confidence,
        confidence_reason=reason,
        estimate=found.estimate or rule.estimate,
        evidence=found.evidence,
        why=rule.why,
        fix=found.fix or rule.fix,
        code=found.code or rule.code,
        afterwards=found.afterwards or rule.afterwards,
        misleads=rule.misleads,
        where=tuple(
            replace(
                w,
                ns=None if w.ns is None else w.ns * scale,
                count=None if w.count is None else round(w.count * scale),
            )
            for w in found.where
        ),
        robust=case.robust,
    )


def _confidence(timeline: RuleContext, found: RuleMatch) -> tuple[Confidence, str]:
    """Lower the confidence where the replay does not reproduce what was measured."""
    error = timeline.replay.error
    if not found.change or error <= MAX_REPLAY_ERROR:
        return found.confidence, found.confidence_reason
    lower = _LOWER.get(found.confidence, Confidence.LOW)
    return lower, f"{found.confidence_reason}; the replay misses the measured time by {error:.0%}"
