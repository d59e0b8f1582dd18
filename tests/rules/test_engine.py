"""How findings are ranked, replayed one after the other, and left out."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

import gpusight as gs
from gpusight.analysis.gpu_schedule import CallKind
from gpusight.analysis.replay.changes import as_graphs, set_duration, without_host_time
from gpusight.rules.engine import run_timeline_rules as run_rules
from gpusight.rules.finding import Confidence
from gpusight.rules.rule import (
    CLEAN,
    FindingLocation,
    RuleMatch,
    RuleNotApplicable,
    RuleVerdict,
    TimelineRule,
)
from tests.rules.timeline.rule_captures import Capture

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.rules.context import RuleContext


def timeline(launch_us: float = 5) -> RuleContext:
    """Three steps of 400 us: the host launches ten kernels of 30 us, each 35 us after the other."""
    capture = Capture()
    for step in range(3):
        at = step * 400
        capture.range(f"step_{step}", at, at + 400)
        for n in range(10):
            begun = at + n * 35
            capture.launch((begun, begun + launch_us), (begun + 7, begun + 37))
        capture.call("cudaDeviceSynchronize", at + 352, at + 357)
    return capture.timeline()


@dataclass
class Says(TimelineRule):
    """A rule that says what it was told to."""

    id: str  # type: ignore[misc]
    verdict: Any
    min_share: float | None = field(default=0.005)  # type: ignore[misc]
    why: str = ""  # type: ignore[misc]
    fix: str = "fix it"  # type: ignore[misc]
    caveats: str = ""  # type: ignore[misc]
    estimate: str = ""  # type: ignore[misc]

    def check(self, context: RuleContext) -> RuleVerdict:
        verdict: RuleVerdict = self.verdict(context) if callable(self.verdict) else self.verdict
        return verdict


def finding(**fields: Any) -> RuleMatch:
    return RuleMatch("seen", (), Confidence.HIGH, "measured", **fields)


def faster(timeline: RuleContext) -> RuleMatch:
    ops = np.arange(len(timeline.schedule.ops))
    return finding(change=(set_duration(ops, timeline.replay.program.duration_ns // 10),))


def graphs(_: RuleContext) -> RuleMatch:
    return finding(change=(as_graphs(),))


def test_the_fix_that_saves_most_comes_first() -> None:
    results = run_rules(timeline(), [Says("graphs", graphs), Says("faster", faster)])
    alone = {f.rule: f.recoverable_ns or 0 for f in results.findings}
    assert results.findings[0].rule == max(alone, key=lambda rule: alone[rule])


def test_counts_per_step_are_those_of_the_sample() -> None:
    """Three of six steps were looked at, and the others are longer."""
    context = timeline()
    later = tuple(replace(step, start_ns=step.start_ns + 1_200_000) for step in context.focus.steps)
    context.focus = replace(context.focus, steps=(*context.focus.steps, *later), end_ns=3_600_000)
    place = FindingLocation("range", "forward", 30_000.0, 30)
    (shown,) = run_rules(context, [Says("here", finding(where=(place,)))]).findings
    (where,) = shown.where
    assert where.ns == pytest.approx(90_000, rel=0.01)
    assert where.count == 60


def test_savings_are_incremental_and_add_up() -> None:
    shown = timeline()
    first, second = run_rules(shown, [Says("graphs", graphs), Says("faster", faster)]).findings
    both = shown.replay.run(*graphs(shown).change, *faster(shown).change).saved_ns
    assert first.saved_ns == first.recoverable_ns
    assert (first.saved_ns or 0) + (second.saved_ns or 0) == pytest.approx(both)


def test_what_only_pays_once_others_are_fixed_is_kept() -> None:
    # Kernels are as slow as launches: neither fix alone saves much, both together do.
    first, second = run_rules(
        timeline(), [Says("graphs", graphs, 0.3), Says("faster", faster, 0.3)]
    ).findings
    assert first.in_plan
    assert (second.saved_ns or 0) > 10 * (second.recoverable_ns or 0)


def test_a_fix_that_others_replace_is_not_in_the_plan() -> None:
    shown = timeline()
    quick = finding(change=(as_graphs(),))
    results = run_rules(shown, [Says("faster", faster), Says("graphs", quick), Says("twin", quick)])
    plan = [f for f in results.findings if f.in_plan]
    assert {f.rule for f in plan} in ({"faster", "graphs"}, {"faster", "twin"})
    (twin,) = (f for f in results.findings if not f.in_plan)
    assert {twin.rule, twin.instead_of} == {"graphs", "twin"}
    assert twin.saved_ns is None
    assert results.findings[-1] is twin


def test_a_fix_that_saves_much_less_is_no_alternative() -> None:
    """It is listed, but nobody would apply it instead."""
    shown = timeline()
    calls = np.arange(2, 8)
    some = finding(change=(without_host_time(calls, np.full(len(calls), 2_000)),))
    results = run_rules(shown, [Says("graphs", graphs), Says("some", some)]).findings
    best, less = results
    assert (best.rule, best.in_plan, less.in_plan) == ("graphs", True, False)
    assert 0 < (less.recoverable_ns or 0) < 0.5 * (best.saved_ns or 0)
    assert less.instead_of == ""


def test_what_a_fix_needs_is_in_the_plan() -> None:
    shown = timeline()
    last = replace(graphs(shown), needs=("small", "absent"))
    small = finding(recoverable_ns=1_000.0)
    results = run_rules(shown, [Says("graphs", last), Says("small", small, None)])
    assert [f.rule for f in results.findings] == ["graphs", "small"]
    assert all(f.in_plan for f in results.findings)
    assert results.findings[0].needs == ("small", "absent")


def test_what_a_fix_needs_comes_before_it() -> None:
    shown = timeline()
    needs = replace(graphs(shown), needs=("syncs",))
    syncs = finding(recoverable_ns=0.01 * shown.length_ns)
    results = run_rules(
        shown, [Says("graphs", needs), Says("syncs", syncs), Says("faster", faster)]
    )
    order = [f.rule for f in results.findings]
    assert order.index("syncs") == order.index("graphs") - 1
    alone = {f.rule: f.recoverable_ns or 0 for f in results.findings}
    assert alone["syncs"] < alone["graphs"]
    assert next(f.robust for f in results.findings if f.rule == "syncs")


def test_of_fixes_that_save_as_much_the_one_that_removes_work_comes_first() -> None:
    class Removes(Says):
        removes_work = True

    shown = timeline()
    for share, first in ((0.95, "less"), (0.8, "more")):
        more, less = (finding(recoverable_ns=s * 0.3 * shown.length_ns) for s in (1.0, share))
        results = run_rules(shown, [Says("more", more), Removes("less", less)])
        assert results.findings[0].rule == first


@pytest.mark.parametrize(
    ("estimate", "gain"),
    [(0.25, 0.25), (10.0, 1.0), (-5.0, None), (None, None)],
)
def test_told_gains_stay_inside_the_judged_part(estimate: float | None, gain: float | None) -> None:
    shown = timeline()
    ns = None if estimate is None else estimate * shown.length_ns
    findings = run_rules(shown, [Says("told", finding(recoverable_ns=ns))]).findings
    assert [f.share for f in findings] == ([gain] if gain or estimate is None else [])


def test_a_fix_gives_no_more_than_it_may() -> None:
    shown = timeline()
    least = shown.length_ns - 5_000
    capped = finding(change=(as_graphs(),), min_ns=least)
    assert run_rules(shown, [Says("one", capped, None)]).findings[0].recoverable_ns == 5_000


def test_what_workers_still_take_stays_in_every_plan() -> None:
    shown = timeline()
    to_workers = finding(change=(as_graphs(),), floor_ns=shown.length_ns - 50_000)
    results = run_rules(shown, [Says("input", to_workers), Says("faster", faster)])
    assert [(found.rule, found.saved_ns) for found in results.findings] == [("input", 50_000)]
    free = run_rules(shown, [Says("input", graphs), Says("faster", faster)])
    assert sum(found.saved_ns or 0 for found in free.findings) > 500_000


def test_the_first_gives_after_nothing_what_it_gives_alone() -> None:
    shown = timeline()
    capped = finding(change=(as_graphs(),), min_ns=shown.length_ns - 10_000)
    first = run_rules(shown, [Says("one", capped, None)]).findings[0]
    assert first.saved_ns == first.recoverable_ns


def test_one_cause_is_one_finding() -> None:
    shown = timeline()
    rules = [
        Says("large", finding(recoverable_ns=90_000, also=("small", "absent"))),
        Says("small", finding(recoverable_ns=50_000, also=("large", "small"))),
    ]
    judged = run_rules(shown, rules)
    assert [f.rule for f in judged.findings] == ["large"]
    assert judged.covered == {"small": "large"}
    assert list(judged.not_applicable) == ["small"]


def test_a_twin_that_is_not_worth_saying_covers_nothing() -> None:
    rules = [
        Says("tiny", finding(recoverable_ns=10, also=("other",))),
        Says("other", finding(recoverable_ns=90_000)),
    ]
    judged = run_rules(timeline(), rules)
    assert [f.rule for f in judged.findings] == ["other"]
    assert judged.clean == ("tiny",)


def test_clean_and_not_judged_are_told_apart() -> None:
    judged = run_rules(
        timeline(), [Says("a", CLEAN), Says("b", RuleNotApplicable("no such table"))]
    )
    assert judged.findings == ()
    assert judged.clean == ("a",)
    assert judged.lacking_data == {"b": "no such table"}


def test_a_replay_that_misses_lowers_the_confidence(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = timeline()
    monkeypatch.setattr(type(shown.replay), "error", property(lambda _: 0.2))
    finding = run_rules(shown, [Says("graphs", graphs, None)]).findings[0]
    assert finding.confidence is Confidence.MEDIUM
    assert finding.confidence_reason.endswith("simulation error 20%")


def test_one_step_is_not_enough_for_high_confidence() -> None:
    capture = Capture("torch-json")
    capture.range("ProfilerStep#1", 0, 400)
    for n in range(10):
        capture.launch((n * 35, n * 35 + 5), (n * 35 + 7, n * 35 + 37))
    finding = run_rules(capture.timeline(), [Says("graphs", graphs, None)]).findings[0]
    assert finding.confidence is Confidence.MEDIUM
    assert finding.confidence_reason == "measured; only one step was evaluated"


def test_a_small_sample_is_not_enough_for_high_confidence() -> None:
    shown = timeline()
    shown.focus = replace(shown.focus, end_ns=shown.focus.start_ns + 20 * shown.length_ns)
    result, untimed = run_rules(
        shown, [Says("graphs", graphs, None), Says("memory", finding())]
    ).findings
    assert result.confidence is Confidence.MEDIUM
    assert result.confidence_reason == "measured; only 5.0% of the window was evaluated"
    # It has no time estimate, which would come from the sample.
    assert untimed.confidence is Confidence.HIGH


def test_a_finding_of_all_steps_keeps_its_confidence() -> None:
    finding = run_rules(timeline(), [Says("graphs", graphs, None)]).findings[0]
    assert finding.confidence is Confidence.HIGH


def prompt(shown: RuleContext) -> RuleMatch:
    """Remove 15 us of host time from each step."""
    first_calls = np.flatnonzero(shown.schedule.calls.kind == CallKind.LAUNCH)[5::10]
    return finding(change=(without_host_time(first_calls, np.full(len(first_calls), 15_000)),))


def test_the_order_of_an_incremental_plan_is_not_called_unsure() -> None:
    """Launches of 2 us have no profiler in them: nothing changes without it."""
    rules = [Says("graphs", graphs), Says("prompt", prompt), Says("faster", faster)]
    findings = run_rules(timeline(launch_us=2), rules).findings
    alone = [f.recoverable_ns or 0 for f in findings]
    assert alone != sorted(alone, reverse=True)
    assert all(f.robust for f in findings)


def test_an_order_that_hangs_on_the_profiler_is_unsure() -> None:
    """Launches of 20 us, 16 without the profiler: one graph saves more only with it."""
    capture = Capture()
    for step in range(3):
        at = step * 1_000
        capture.range(f"step_{step}", at, at + 1_000)
        for n in range(10):
            capture.launch((at + n * 20, at + n * 20 + 20), (at + n * 20 + 25, at + n * 20 + 30))
        capture.call("cudaDeviceSynchronize", at + 200, at + 240)
        capture.launch((at + 240, at + 260), (at + 265, at + 380), "long")
        capture.call("cudaDeviceSynchronize", at + 260, at + 385)
    shown = capture.timeline()
    ops = np.flatnonzero(shown.ops["label"].to_numpy() == "long")
    half = finding(change=(set_duration(ops, np.full(len(ops), 5_000)),))
    findings = run_rules(shown, [Says("graphs", graphs), Says("shorter", half)]).findings
    assert [(f.rule, f.robust) for f in findings] == [("graphs", False), ("shorter", False)]


def test_a_large_problem_is_listed_even_if_the_replay_shows_no_gain() -> None:
    shown = timeline()
    nothing = finding(change=(lambda program: program,), measured_ns=0.2 * shown.length_ns)
    small = replace(nothing, measured_ns=0.05 * shown.length_ns)
    rules = [Says("unknown gain", nothing), Says("small", small), Says("graphs", graphs)]
    results = run_rules(shown, rules)
    assert [f.rule for f in results.findings] == ["graphs", "unknown gain"]
    assert (results.findings[1].recoverable_ns, results.findings[1].saved_ns) == (None, None)
    assert results.clean == ("small",)


@pytest.mark.parametrize(("share", "first"), [(0.5, "large"), (0.2, "small"), (0.05, "small")])
def test_a_large_problem_without_a_known_gain_comes_before_small_savings(
    share: float, first: str
) -> None:
    shown = timeline()
    nothing = finding(change=(lambda program: program,), measured_ns=share * shown.length_ns)
    small = finding(recoverable_ns=0.02 * shown.length_ns)
    findings = run_rules(shown, [Says("small", small), Says("large", nothing)]).findings
    assert findings[0].rule == first


def test_what_is_larger_than_the_window_leads() -> None:
    rules = [Says("graphs", graphs), Says("start", finding(leads=True))]
    assert [f.rule for f in run_rules(timeline(), rules).findings] == ["start", "graphs"]


def test_general_rules_get_what_the_others_found() -> None:
    class Rest(Says):
        is_general = True

        def check_rest(self, _: RuleContext, others: Sequence[RuleMatch]) -> RuleVerdict:
            return finding(recoverable_ns=float(len(others))) if others else CLEAN

    rest = Rest("rest", None, None)
    assert run_rules(timeline(), [rest]).clean == ("rest",)
    findings = run_rules(timeline(), [rest, Says("graphs", graphs)]).findings
    assert {f.rule: f.recoverable_ns for f in findings}["rest"] == 1.0
    # A covered rule explains its part of the time too.
    covering = replace(graphs(timeline()), also=("faster",))
    rules = [rest, Says("graphs", covering), Says("faster", faster)]
    findings = run_rules(timeline(), rules).findings
    assert {f.rule: f.recoverable_ns for f in findings}["rest"] == 2.0


def test_what_a_general_fix_may_not_save_is_no_saving_of_the_next() -> None:
    """Its replay has no host time at all; it is limited to a twentieth of the time."""
    shown = timeline()
    everything = (as_graphs(), set_duration(np.arange(len(shown.schedule.ops)), np.zeros(30, int)))
    limited = finding(change=everything, min_ns=0.95 * shown.length_ns)

    class Rest(Says):
        is_general = True

        def check_rest(self, context: RuleContext, _: Sequence[RuleMatch]) -> RuleVerdict:
            return self.check(context)

    small = finding(change=(without_host_time(np.arange(3), np.full(3, 2_000)),))
    results = run_rules(shown, [Says("small", small, None), Rest("rest", limited)])
    alone = {f.rule: f.recoverable_ns or 0.0 for f in results.findings}
    assert alone["rest"] > alone["small"]
    assert sum(f.saved_ns or 0.0 for f in results.findings) <= sum(alone.values()) + 1


def test_no_plan_takes_less_than_the_gpu_is_busy() -> None:
    """What an estimate and a replay both save counts once: the GPU's work remains."""
    shown = timeline()
    busy_ns = shown.replay.busy_ns(shown.replay.unchanged)
    assert 0 < busy_ns < shown.length_ns
    idle_ns = shown.length_ns - busy_ns
    waits = finding(recoverable_ns=0.9 * idle_ns, min_ns=float(busy_ns))
    shorter = finding(change=(as_graphs(),))
    results = run_rules(shown, [Says("waits", waits, None), Says("graphs", shorter, None)])
    saved_ns = sum(f.saved_ns or 0.0 for f in results.findings)
    assert len(results.findings) == 2
    assert 0.9 * idle_ns <= saved_ns <= idle_ns


def test_an_estimate_of_gpu_work_lowers_what_remains() -> None:
    shown = timeline()
    kernels = finding(recoverable_ns=0.9 * shown.length_ns)
    assert run_rules(shown, [Says("kernels", kernels)]).findings[0].saved_ns == (
        pytest.approx(0.9 * shown.length_ns)
    )


def test_each_set_of_fixes_is_replayed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    shown, scenarios = timeline(), []
    run = type(shown.replay).run

    def counted(replay: Any, *changes: Any) -> Any:
        scenarios.append(frozenset(map(id, changes)))
        return run(replay, *changes)

    rules = [Says("graphs", graphs(shown)), Says("faster", faster(shown))]
    monkeypatch.setattr(type(shown.replay), "run", counted)
    monkeypatch.setattr("gpusight.rules.engine._with_robustness", lambda _, cases: cases)
    run_rules(shown, rules)
    assert len(scenarios) == len(set(scenarios)) == 3


def test_fixes_that_mostly_save_overhead_of_the_profiler_are_upper_bounds() -> None:
    path = Path(gs.__file__).parent / "data" / "demo.json.gz"
    diagnosis = gs.diagnose(gs.open(path, pace="off")).timeline
    assert diagnosis is not None
    by_rule = {finding.rule: finding for finding in diagnosis.findings}
    assert by_rule["launch-bound"].is_upper_bound
    assert "without the profiler's overhead" in by_rule["launch-bound"].confidence_reason
    # The kernels themselves take as long with a profiler as without one.
    assert by_rule["fp32-no-tensor-cores"].confidence is Confidence.MEDIUM
    trusted = gs.diagnose(gs.open(path, pace="off"), rules=["launch-bound"]).timeline
    assert trusted is not None
    assert trusted.findings[0].confidence is Confidence.MEDIUM  # one step
