"""Ledger, findings and comparison on the page are those of the commands."""

from __future__ import annotations

from pathlib import Path

import pytest

import gpusight as gs
from gpusight.render.diagnosis_summary import plan_total
from gpusight.render.explanation import evidence_value
from gpusight.rules.diagnosis import TimelineDiagnosis
from gpusight.rules.finding import TimelineFinding
from gpusight.trace.trace import Trace
from gpusight.units import format_time
from gpusight.viewer.timeline_view import ViewerTimeline
from gpusight.web import analysis_payloads as module
from gpusight.web.analysis_payloads import (
    StepSample,
    comparison_payload,
    diagnosis_payloads,
    findings_payload,
    is_ledger_of_timeline,
    ledger_payload,
    sample_steps,
)
from tests.profiled_loops import profiled_loop, step_ns
from tests.shared import DATA, opened
from tests.traces import build_trace
from tests.web.test_app import hand_built

CAPTURES = [DATA / name for name in ("dataload.sqlite", "torch_odd.json.gz", "odd_node.sqlite")]


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: str(path.name))
@pytest.mark.usefixtures("recorded_times")
def test_the_ledger_is_that_of_the_command(path: Path) -> None:
    trace = opened(path)
    expected = gs.ledger(trace).answer.document()
    payload = ledger_payload(trace)
    assert payload.steps == expected["meta"]["steps"]
    assert len(payload.devices) == len(expected["devices"])
    for device, other in zip(payload.devices, expected["devices"], strict=True):
        assert (device.device, device.name) == (other["device"], other["name"] or "")
        entries = {entry.entry: (entry.ns, entry.share) for entry in device.entries}
        assert entries == {one["entry"]: (one["ns"], one["share"]) for one in other["entries"]}


def test_the_findings_are_those_of_the_command() -> None:
    timeline = ViewerTimeline(opened(DATA / "dataload.sqlite"))
    expected = gs.diagnose(DATA / "dataload.sqlite")
    payload = findings_payload(timeline, [])
    assert payload.step_ns == expected.answer.document()["window"]["step_ns"]
    answer = expected.answer
    assert isinstance(answer, TimelineDiagnosis)
    assert [one.rule for one in payload.findings] == [one.rule for one in answer.plan]
    assert [one.rule for one in payload.beside] == [one.rule for one in answer.outside_plan]
    for one, other in zip(payload.findings, answer.plan, strict=True):
        assert isinstance(other, TimelineFinding)
        assert (one.title, one.why, one.fix) == (other.title, other.why, other.fix)
        assert one.code == other.code
        assert one.saved_ns_per_step == pytest.approx((other.saved_ns or 0.0) / payload.steps)
        assert one.saving.startswith("alone ") == (other.saved_ns != other.recoverable_ns)
        assert (one.confidence, one.effort) == (other.confidence.value, other.effort)
        assert [e.value for e in one.evidence] == [evidence_value(e) for e in other.evidence]
        assert all(place.start_ns < place.end_ns for place in one.places)
        assert len(one.places) > 0


@pytest.fixture(scope="module")
def corrected() -> Trace:
    """A loop whose step time without the profiler is known."""
    trace = profiled_loop(overhead_us=5)
    trace.pace = step_ns(profiled_loop())
    return trace


def test_with_a_known_step_time_all_numbers_are_those_of_diagnose(corrected: Trace) -> None:
    expected = gs.diagnose(corrected).timeline
    assert expected is not None
    assert expected.correction is not None
    findings, ledger = diagnosis_payloads(ViewerTimeline(corrected), [])
    assert findings.step_ns == expected.step_ns
    assert findings.predicted_step_ns == expected.predicted_step_ns
    assert findings.plan == plan_total(expected)
    saved = [f.saved_ns_per_step for f in findings.findings]
    assert saved == [pytest.approx((f.saved_ns or 0.0) / expected.steps) for f in expected.plan]
    recorded = format_time(expected.correction.recorded_ns, digits=3)
    about = f"Without the profiler; with it (timeline) {recorded}/step."
    assert findings.about == about
    assert ledger is not None
    assert ledger.about == about
    assert not is_ledger_of_timeline(corrected)
    shown = {e.entry: e.ns for device in ledger.devices for e in device.entries}
    entries = gs.ledger(corrected).answer.document()["devices"][0]["entries"]
    assert shown == {entry["entry"]: entry["ns"] for entry in entries}
    assert sum(shown.values()) / ledger.steps == pytest.approx(expected.step_ns, rel=1e-6)


def test_places_are_where_the_timeline_shows_them(corrected: Trace) -> None:
    findings = findings_payload(ViewerTimeline(corrected), [])
    last_ns = int(corrected.table("ranges", ["end_ns"])["end_ns"].max())  # type: ignore[arg-type]
    ends = [place.end_ns for f in findings.findings for place in f.places]
    assert findings.step_ns is not None
    assert findings.step_ns * findings.steps < max(ends) <= last_ns


def test_what_is_no_fix_is_below_the_plan_in_the_words_of_the_command() -> None:
    payload = findings_payload(ViewerTimeline(opened(DATA / "jax_small.xplane.pb")), [])
    assert "warmup-in-window" not in [one.rule for one in payload.findings]
    (note,) = (one for one in payload.beside if one.rule == "warmup-in-window")
    assert note.title.startswith("note: ")
    assert "explain" not in note.title


def test_the_comparison_is_that_of_the_command() -> None:
    before, after = DATA / "dataload.sqlite", DATA / "dataload.nsys-rep"
    expected = gs.compare(before, after).answer
    payload = comparison_payload(gs.open(before), gs.open(after))
    assert payload.explanation == expected.explanation
    assert payload.notes == expected.notes
    first = payload.metrics[0]
    assert first.before == format_time(expected.step.before, digits=3)
    assert first.after == format_time(expected.step.after, digits=3)
    assert first.verdict == expected.step.verdict.value


def test_captures_that_cannot_be_compared_say_why() -> None:
    rows = [{"start_ns": 0, "end_ns": 9, "name": "r"}]
    with pytest.raises(gs.GpusightError, match="no GPU work in the capture"):
        comparison_payload(hand_built(), build_trace(ranges=rows))


def test_what_fits_is_judged_as_a_whole() -> None:
    assert sample_steps(hand_built()) == StepSample()


def test_of_more_work_than_fits_steps_of_the_middle_stand_for_the_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "MAX_SAMPLED_WORK", 20)
    trace = hand_built()
    note = "evaluated on steps 2 to 3 of 6"
    assert sample_steps(trace) == StepSample(steps="2-3", note=note)
    payload = findings_payload(ViewerTimeline(trace), [])
    assert (payload.steps, payload.notes[0]) == (2, note)
    assert comparison_payload(trace, hand_built()).notes[:2] == (note, note)


def test_without_steps_the_middle_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_SAMPLED_WORK", 4)
    rows = [{"start_ns": 7**n, "end_ns": 7**n + 1, "name": f"k{n}"} for n in range(8)]
    note = "evaluated on 4 of 8 kernels, from the middle of the capture"
    assert sample_steps(build_trace(kernels=rows)) == StepSample(window=(7**2, 7**5), note=note)


def test_an_estimated_step_time_is_named_as_one() -> None:
    about = findings_payload(ViewerTimeline(opened(DATA / "gpt_small_forward.json.gz")), []).about
    assert about.startswith("Without the profiler (estimate); with it (timeline) ")
