"""Runs the rules and ranks their findings by the time that fixes save.

For a timeline, each fix is replayed alone and after the fixes above it. For a profiled launch,
findings that are an effect of another one are dropped.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy as np

from gpusight.analysis.corrected_trace import correction_of
from gpusight.analysis.gpu_schedule import CallKind
from gpusight.rules.finding import Confidence, KernelFinding, TimelineFinding
from gpusight.rules.patterns.stack_lines import (
    code_with_line,
    fix_with_lines,
    title_with_line,
)
from gpusight.rules.registry import TIMELINE_RULES
from gpusight.rules.rule import KernelRuleMatch, RuleMatch, RuleNotApplicable
from gpusight.units import format_share

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpusight.analysis.counters.profiled_launch import ProfiledLaunch
    from gpusight.analysis.replay.changes import Change
    from gpusight.analysis.replay.simulation import ReplayProgram
    from gpusight.analysis.replay.window_replay import ReplayResult
    from gpusight.rules.context import RuleContext
    from gpusight.rules.rule import KernelRule, RuleVerdict, TimelineRule


MAX_REPLAY_ERROR = 0.05
"""Error of the replay above which its estimates have a lower confidence."""
PROFILER_LAUNCH_NS = 4_000
"""Overhead of a profiler per launch: 3 to 5 us were measured."""
MIN_PLAN_SHARE = 0.005
"""Share of the time that a fix must save after the fixes above it to be one of the plan."""
MIN_ALTERNATIVE = 0.5
"""Part of a fix's saving that another one must save alone to be named as its alternative."""
MAX_TIE_SHARE = 0.15
"""Part by which savings may differ and count as the same: predictions of the step after a fix are
off by more in the median (docs/accuracy.md)."""
MIN_ORDER_SHARE = 0.005
"""Share of the time by which two fixes must differ for their order to matter: that of the smallest
finding."""
MIN_CONFIDENT_SAMPLE = 0.1
"""Share of the window that a sample must have for a high confidence."""
_LOWER = {Confidence.HIGH: Confidence.MEDIUM}
MAX_CONFIDENT_SPEEDUP = 10.0
"""Larger speedups are known to their order of magnitude only: other costs dominate then."""
MIN_LISTED_SHARE = 0.1
"""Share of the time from which on a measured problem is listed, whatever the replay shows."""
MIN_DOMINANT_SHARE = 0.3
MAX_MINOR_SHARE = 0.1
"""Part of the window that a problem without a known gain takes from which on it comes before fixes
that save no more than this part of it."""
MIN_CAUSE_SHARE = 0.6
"""Share of what an effect would save that its cause must save to replace it."""
Finding = TypeVar("Finding", TimelineFinding, KernelFinding)


@dataclass(frozen=True)
class RuleResults(Generic[Finding]):
    """The results of the rules for a timeline, or for one launch."""

    findings: tuple[Finding, ...]
    """In the order of the plan."""
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
    """Incremental: after the fixes above it; None where it is not in the plan."""
    robust: bool = True
    instead_of: str = ""
    """The fix of the plan after which this one saves too little."""


def run_timeline_rules(
    context: RuleContext, rules: Iterable[TimelineRule]
) -> RuleResults[TimelineFinding]:
    """Run rules, and order their findings as a plan: what to fix first, and what after that."""
    by_id = {rule.id: rule for rule in rules}
    replays = _PlanReplays(context)
    cases = _cases(replays, by_id)
    plan, left_out = _plan(replays, cases.own)
    _, clean, not_applicable = _by_kind({id_: cases.verdicts[id_] for id_ in by_id})
    not_applicable |= {
        rule: RuleNotApplicable(f"same cause as {by}") for rule, by in cases.covered.items()
    }
    clean += [case.rule.id for case in left_out]
    doubted = _without_overhead(context, _with_robustness(context, plan))
    findings = tuple(_timeline_finding(context, case) for case in doubted)
    return RuleResults(findings, tuple(clean), not_applicable, cases.covered)


def verdict_among(
    context: RuleContext, rules: Mapping[str, TimelineRule], name: str
) -> RuleVerdict:
    """Return the verdict of one rule as in a plan: general rules get what the others leave."""
    if not rules[name].is_general:
        return rules[name].check(context)
    return _cases(_PlanReplays(context), rules).verdicts[name]


@dataclass(frozen=True)
class _Cases:
    """The verdicts of all rules, and the matches that may become findings."""

    verdicts: dict[str, RuleVerdict]
    own: list[_Case]
    covered: dict[str, str]


def _cases(replays: _PlanReplays, by_id: Mapping[str, TimelineRule]) -> _Cases:
    """Run rules; the general ones last, on what the plan of the others leaves."""
    context = replays.context
    verdicts = {id_: r.check(context) for id_, r in by_id.items() if not r.is_general}
    cases = [
        replays.case(by_id[id_], match)
        for id_, match in verdicts.items()
        if isinstance(match, RuleMatch)
    ]
    matched = {case.rule.id for case in cases}
    covered: dict[str, str] = {}
    worth = _notable(context, cases)
    for case in sorted(worth, key=lambda c: -(-1.0 if c.alone_ns is None else c.alone_ns)):
        # One that is covered itself covers nothing: of two that name each other the larger stays.
        if case.rule.id not in covered:
            same_cause = matched & set(case.match.also) - {case.rule.id}
            covered |= dict.fromkeys(same_cause, case.rule.id)
    own_cases = [case for case in cases if case.rule.id not in covered]
    if not any(rule.is_general for rule in by_id.values()):
        return _Cases(verdicts, own_cases, covered)
    plan, _ = _plan(replays, own_cases)
    # What a covered rule would explain has its cause in the finding that covers it.
    explaining = [*plan, *(case for case in cases if case.rule.id in covered)]
    others = [case.match for case in explaining if case.rule.is_fix]
    rest = {id_: r.check_rest(context, others) for id_, r in by_id.items() if r.is_general}
    own_cases += [
        replays.case(by_id[id_], match)
        for id_, match in rest.items()
        if isinstance(match, RuleMatch)
    ]
    return _Cases(verdicts | rest, own_cases, covered)


def _by_kind(
    verdicts: Mapping[str, RuleVerdict],
) -> tuple[dict[str, RuleMatch], list[str], dict[str, RuleNotApplicable]]:
    """Split verdicts: matches, clean, not applicable."""
    matches = {id_: v for id_, v in verdicts.items() if isinstance(v, RuleMatch)}
    not_applicable = {id_: v for id_, v in verdicts.items() if isinstance(v, RuleNotApplicable)}
    clean = [id_ for id_ in verdicts if id_ not in matches | not_applicable]
    return matches, clean, not_applicable


def _max_saved_ns(context: RuleContext, match: RuleMatch) -> float:
    """Return the most that a fix can save when it is the only one."""
    total_ns = float(context.replay.unchanged.total_ns)
    return max(0.0, total_ns - max(match.min_ns or 0.0, match.floor_ns))


class _PlanReplays:
    """Replays of the fixes of plans; each set of fixes is replayed once."""

    def __init__(self, context: RuleContext) -> None:
        self.context = context
        self._known: dict[frozenset[str], ReplayResult] = {frozenset(): context.replay.unchanged}

    def case(self, rule: TimelineRule, match: RuleMatch) -> _Case:
        """Return a match with what its fix saves when it is the only one."""
        case = _Case(rule, match, match.recoverable_ns)
        if match.change:
            case = replace(case, alone_ns=float(self.run(case).saved_ns))
        if case.alone_ns is None:
            return case
        max_ns = _max_saved_ns(self.context, match)
        return replace(case, alone_ns=min(max(0.0, case.alone_ns), max_ns))

    def run(self, *cases: _Case) -> ReplayResult:
        """Replay all fixes that can be replayed."""
        replayed = [case for case in cases if case.match.change]
        rules = frozenset(case.rule.id for case in replayed)
        if rules not in self._known:
            self._known[rules] = self.context.replay.run(*_changes(replayed))
        return self._known[rules]

    def min_ns(self, *cases: _Case) -> float:
        """Return the GPU time that fixes leave, or their floor: no plan makes the time shorter.

        An estimate without a replay may be of GPU time, unless its rule sets a least time.
        """
        estimates = (c for c in cases if not c.match.change and c.match.min_ns is None)
        estimated_ns = sum(case.alone_ns or 0.0 for case in estimates)
        floor_ns = max(case.match.floor_ns for case in cases)
        return max(floor_ns, self.context.replay.busy_ns(self.run(*cases)) - estimated_ns)


def _plan(replays: _PlanReplays, cases: Sequence[_Case]) -> tuple[list[_Case], list[_Case]]:
    """Choose the fix that saves most, then the one that saves most after it, and so on.

    What a fix needs comes before it: the plan is in the order to apply. Savings are incremental, so
    that they add up. What saves too little after the fixes above is not in the plan: it follows,
    with the fix that takes most of its saving, if it saves enough alone.
    What cannot be replayed saves its estimate, as far as there is time left besides the GPU's work;
    what has no estimate follows the plan, and what is no fix comes last.
    """
    context = replays.context
    order: list[_Case] = []
    total_ns = remaining_ns = float(context.replay.unchanged.total_ns)
    rest_ns = 0.0
    waiting = [case for case in cases if case.alone_ns is not None and case.rule.is_fix]
    others = [case for case in cases if case not in waiting]
    before_ns: dict[str, float] = {}
    losses: dict[str, dict[str, float]] = {case.rule.id: {} for case in waiting}
    while waiting:
        options = []
        for case in waiting:
            left_ns = max(0.0, remaining_ns - replays.min_ns(*order, case))
            saved_ns = min(_after(replays, order, case, total_ns, rest_ns), left_ns)
            options.append(replace(case, saved_ns=saved_ns))
        for option in options if order else ():
            losses[option.rule.id][order[-1].rule.id] = before_ns[option.rule.id] - _saved(option)
        best = _next_fix(options, MIN_PLAN_SHARE * context.length_ns)
        before_ns = {option.rule.id: _saved(option) for option in options}
        order.append(best)
        waiting = [case for case in waiting if case.rule.id != best.rule.id]
        remaining_ns -= _saved(best)
        total_ns -= _saved(best) * bool(best.match.change)
        if best.rule.is_general or rest_ns:
            limited_ns = max(0.0, total_ns - replays.run(*order).total_ns)
            rest_ns = limited_ns if best.rule.is_general else min(rest_ns, limited_ns)
    # What saves little but comes before a fix that saves more exposes that one's time.
    min_ns = MIN_PLAN_SHARE * context.length_ns
    worth = {c.rule.id for c in order if _saved(c) >= min_ns and _saves_enough(context, c)}
    last = max((at for at, case in enumerate(order) if case.rule.id in worth), default=-1)
    needed = {rule for case in order[: last + 1] for rule in case.match.needs}
    plan = [c for at, c in enumerate(order) if at <= last or c.rule.id in needed]
    tail = [replace(case, saved_ns=None) for case in order if case not in plan]
    beside = []
    planned_ns = {case.rule.id: _saved(case) for case in plan}
    for case in (case for case in tail if _saves_enough(context, case)):
        lost_ns = {rule: ns for rule, ns in losses[case.rule.id].items() if rule in worth}
        instead_of = max(lost_ns, key=lambda rule: lost_ns[rule], default="")
        least_ns = max(min_ns, MIN_ALTERNATIVE * planned_ns.get(instead_of, 0.0))
        is_alternative = (case.alone_ns or 0.0) >= least_ns
        beside.append(replace(case, instead_of=instead_of if is_alternative else ""))
    large = [
        replace(c, alone_ns=None, saved_ns=None)
        for c in _notable(context, tail)
        if not _saves_enough(context, c)
    ]
    untimed = [case for case in others if case.rule.is_fix]
    notes = [case for case in _notable(context, others) if not case.rule.is_fix]
    listed = [*plan, *untimed, *large, *beside, *notes]
    plan_ns = sum(_saved(case) for case in plan)
    leading = {c.rule.id for c in large if _is_dominant(context, c, plan_ns)}
    listed.sort(key=lambda case: not (case.match.leads or case.rule.id in leading))
    ids = {case.rule.id for case in listed}
    return listed, [case for case in cases if case.rule.id not in ids]


def _is_dominant(context: RuleContext, case: _Case, plan_ns: float) -> bool:
    """Return whether a problem without a known gain takes far more time than all fixes save."""
    measured_ns = case.match.measured_ns or 0.0
    large = measured_ns >= MIN_DOMINANT_SHARE * context.length_ns
    return large and 0 < plan_ns <= MAX_MINOR_SHARE * measured_ns


def _next_fix(options: Sequence[_Case], min_ns: float) -> _Case:
    """Choose the fix that saves most, or what has to be fixed before it.

    Of fixes that save about as much, work that nobody needs goes first: what makes work cheaper
    then has less to do. A fix that is needed and saves nothing yet stays where it is.
    """
    best = max(options, key=lambda option: (_saved(option), option.alone_ns or 0.0))
    close = [o for o in options if _saved(o) >= (1 - MAX_TIE_SHARE) * _saved(best)]
    best = next((option for option in close if option.rule.removes_work), best)
    needed = [o for o in options if o.rule.id in best.match.needs and _saved(o) >= min_ns]
    return max(needed, key=_saved) if needed else best


def _saved(case: _Case) -> float:
    return case.saved_ns or 0.0


def _after(
    replays: _PlanReplays, plan: Sequence[_Case], case: _Case, total_ns: float, rest_ns: float
) -> float:
    """Return what a case saves of the time that the fixes of a plan leave.

    A general fix of the plan is replayed with all others, and limited to what they leave. `rest_ns`
    is the difference: it is theirs, each as far as it saves that alone.
    """
    if not case.match.change or not any(above.match.change for above in plan):
        return case.alone_ns or 0.0
    saved_ns = total_ns - replays.run(*plan, case).total_ns
    return max(0.0, saved_ns - rest_ns, min(case.alone_ns or 0.0, saved_ns))


def _changes(cases: Iterable[_Case]) -> list[Change]:
    """Return the changes of fixes in one order, so that the order of a plan changes no total."""
    return [
        change
        for case in sorted(cases, key=lambda case: case.rule.id)
        for change in case.match.change
    ]


def _notable(context: RuleContext, cases: Iterable[_Case]) -> list[_Case]:
    """Keep cases that save enough, or whose problem takes much of the time."""
    min_ns = MIN_LISTED_SHARE * context.length_ns
    return [
        case
        for case in cases
        if _saves_enough(context, case) or (case.match.measured_ns or 0.0) >= min_ns
    ]


def _saves_enough(context: RuleContext, case: _Case) -> bool:
    """Return whether a case saves enough: alone, or once the findings above are fixed."""
    min_share = case.rule.min_share
    if min_share is None or case.alone_ns is None:
        return True
    return max(case.alone_ns, case.saved_ns or 0.0) >= min_share * context.length_ns


def _with_robustness(context: RuleContext, cases: Sequence[_Case]) -> list[_Case]:
    """Mark findings that the plan would order differently without the profiler's overhead.

    Of two findings that follow each other, the second must save more than the first in the place
    of the first, after the same fixes.
    """
    if correction_of(context.trace) is not None:  # nothing of the overhead is left
        return list(cases)
    replayed = [case for case in cases if case.match.change and case.saved_ns is not None]
    kinds = context.schedule.calls.kind
    launches = np.flatnonzero(
        np.isin(kinds, (CallKind.LAUNCH, CallKind.GRAPH, CallKind.COPY, CallKind.MEMSET))
    )

    def without_profiler(program: ReplayProgram) -> ReplayProgram:
        own_ns = program.own_ns.copy()
        # A launch takes the host two microseconds or more without any profiler.
        shorter_ns = np.maximum(own_ns[launches] - PROFILER_LAUNCH_NS, 2_000)
        own_ns[launches] = np.minimum(own_ns[launches], shorter_ns)
        return program.changed(own_ns=own_ns)

    def total_ns(*applied: _Case) -> int:
        return context.replay.run(without_profiler, *_changes(applied)).total_ns

    before_ns = total_ns() if len(replayed) > 1 else 0
    unsure: set[str] = set()
    for at, (case, other) in enumerate(pairwise(replayed)):
        is_needed = case.rule.id in other.match.needs
        first_ns, other_ns = (total_ns(*replayed[:at], added) for added in (case, other))
        saved_ns, other_saved_ns = (float(before_ns - ns) for ns in (first_ns, other_ns))
        if not at:  # the plan limits what the first fix saves
            saved_ns = min(saved_ns, _max_saved_ns(context, case.match))
            other_saved_ns = min(other_saved_ns, _max_saved_ns(context, other.match))
        if not is_needed and other_saved_ns - saved_ns > MIN_ORDER_SHARE * context.length_ns:
            unsure |= {case.rule.id, other.rule.id}
        before_ns = first_ns
    return [replace(case, robust=case.rule.id not in unsure) for case in cases]


def _without_overhead(context: RuleContext, cases: Sequence[_Case]) -> list[_Case]:
    """Lower the confidence of fixes that save much less once the profiler's overhead is gone."""
    overhead = next((case for case in cases if case.rule.id == _OVERHEAD), None)
    if overhead is None or not overhead.match.change:
        return list(cases)

    def total_ns(*applied: _Case) -> int:
        return context.replay.run(*_changes((overhead, *applied))).total_ns

    before_ns, doubted = total_ns(), []
    for case in cases:
        alone_ns = case.alone_ns or 0.0
        if case.rule.is_fix and case.match.change and alone_ns > 0:
            saved_ns = max(0, before_ns - total_ns(case))
            if saved_ns < _MIN_KEPT_SHARE * alone_ns:
                reason = (
                    f"without the profiler's overhead it saves {context.time_per_step(saved_ns)}"
                )
                match = replace(case.match, confidence=Confidence.LOW, confidence_reason=reason)
                case = replace(case, match=match)  # noqa: PLW2901
        doubted.append(case)
    return doubted


_OVERHEAD = "profiler-overhead"
_MIN_KEPT_SHARE = 0.5
"""Least part of its saving that a fix must keep without the profiler to be trusted as before."""


def _comment(context: RuleContext) -> str:
    return context.framework.choose(torch="#", cuda="//", jax="#", other="#")


def _timeline_finding(context: RuleContext, case: _Case) -> TimelineFinding:
    """Return a finding with times scaled from the sample to the window."""
    match, rule = case.match, case.rule
    scale = context.focus.length_ns / max(1, context.length_ns)
    # Counts per step are those of the steps of the sample, as in titles and evidence.
    steps = len(context.focus.steps)
    count_scale = steps / context.steps if context.steps else scale
    alone_ns = None if case.alone_ns is None else case.alone_ns * scale
    confidence, reason = _confidence(context, match)
    estimate = match.estimate or rule.estimate
    if match.change and alone_ns is None:
        estimate = "The problem is measured, and the simulation of the fix saves nothing."
        reason = "the simulation shows no gain"
    code = match.code or rule.snippet(context.framework)
    if rule.id in TIMELINE_RULES and context.framework.is_array_language:
        # The snippets of matches are of PyTorch, CUDA C++ and JAX; users write their own language.
        code = rule.snippet(context.framework)
    elif rule.id not in TIMELINE_RULES:
        code = match.code or rule.code
    finding = TimelineFinding(
        rule=rule.id,
        title=title_with_line(match.title, match.lines),
        recoverable_ns=alone_ns,
        share=None if alone_ns is None else alone_ns / max(1, context.focus.length_ns),
        step_ns=None if alone_ns is None else alone_ns / max(1, len(context.focus.steps)),
        saved_ns=None if case.saved_ns is None else case.saved_ns * scale,
        confidence=confidence,
        confidence_reason=reason,
        estimate=estimate,
        evidence=match.evidence,
        why=match.why or rule.why,
        fix=fix_with_lines(match.fix or rule.fix, match.lines),
        code=code_with_line(code, match.lines, _comment(context)),
        verify=match.verify or rule.verify,
        caveats=match.caveats or rule.caveats,
        where_time=match.where_time,
        where=tuple(
            replace(
                w,
                ns=None if w.ns is None else w.ns * scale,
                count=None if w.count is None else round(w.count * count_scale),
            )
            for w in match.where
        ),
        robust=case.robust,
        is_fix=rule.is_fix,
        instead_of=case.instead_of,
        needs=match.needs,
        effort=match.effort or rule.effort,
        lines=tuple(replace(line, ns=line.ns * scale) for line in match.lines),
        measured_ns=None if match.measured_ns is None else match.measured_ns * scale,
    )
    is_amd = context.gpu is not None and context.gpu.vendor == "AMD"
    return _in_amd_words(finding) if is_amd and rule.id in TIMELINE_RULES else finding


_AMD_WORDS = {
    "`gpusight record --ncu`": "rocprof-compute",
    "an SM": "a compute unit",
    "SMs": "compute units",
    "SM": "compute unit",
    "Tensor Cores": "matrix cores",
    "Tensor Core": "matrix core",
    "CUDA cores": "vector units",
    "cuDNN": "MIOpen",
}
"""What texts of rules name differently on GPUs of AMD. PyTorch keeps the names of its CUDA API."""
_AMD_PATTERN = re.compile("|".join(rf"(?<!\w){re.escape(word)}(?!\w)" for word in _AMD_WORDS))


def _in_amd_words(finding: TimelineFinding) -> TimelineFinding:
    """Name the parts of a GPU, its tools and libraries as AMD does."""

    def named(found: re.Match[str]) -> str:
        word = _AMD_WORDS[found[0]]
        starts = found.start() == 0 or found.string[: found.start()].endswith(". ")
        return word[0].upper() + word[1:] if starts else word

    names = ("title", "estimate", "why", "fix", "verify", "caveats", "confidence_reason")
    texts: dict[str, Any] = {n: _AMD_PATTERN.sub(named, getattr(finding, n)) for n in names}
    return replace(finding, **texts)


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
    at_roofline = rule.at_roofline if match.at_roofline is None else match.at_roofline
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
        why=match.why or rule.why,
        fix=match.fix or rule.fix,
        # At the roofline no rewrite of the kernel gains anything: only less work does.
        code="" if at_roofline and match.time_share == 1 else match.code or rule.code,
        caveats=match.caveats or rule.caveats,
        sections=rule.sections,
        at_roofline=at_roofline,
        effort=match.effort or rule.effort,
    )


def _accounts_for(
    cause: KernelFinding, effect: KernelFinding, rules: Mapping[str, KernelRule]
) -> bool:
    """Return whether one finding is the cause of most of what another would save."""
    if effect.rule not in rules[cause.rule].explains:
        return False
    return (cause.saved_ns or 0.0) >= MIN_CAUSE_SHARE * (effect.saved_ns or 0.0)
