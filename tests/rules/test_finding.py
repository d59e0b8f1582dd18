"""How far predictions of similar fixes were off, as findings show it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

import gpusight as gs
from gpusight.rules.finding import Confidence, PastPredictions, TimelineFinding, past_predictions
from tests.shared import REPOSITORY

if TYPE_CHECKING:
    from gpusight.render.result_view import DiagnosisView

DEMO = REPOSITORY / "src" / "gpusight" / "data" / "demo.sqlite"


def finding(rule: str, recoverable_ns: float | None) -> TimelineFinding:
    return TimelineFinding(
        rule=rule,
        title="",
        recoverable_ns=recoverable_ns,
        share=None,
        step_ns=None,
        saved_ns=None,
        confidence=Confidence.HIGH,
        confidence_reason="",
        estimate="",
        evidence=(),
        why="",
        fix="",
        code="",
        verify="",
        caveats="",
        where=(),
    )


def test_the_text_names_the_group_where_the_rule_has_too_few_pairs() -> None:
    own = PastPredictions("host-sync", 5, 2, 0.07, 0.23)
    assert own.text("host-sync") == (
        "Step times predicted for similar fixes were 7% off (median of 5 captures, 2 programs; "
        "worst 23% off)"
    )
    assert " similar fixes (host-sync) were 7% off" in own.text("alloc-churn")
    assert "worst 155 times the measured time)" in PastPredictions("copies", 9, 2, 0.1, 154.4).text(
        "x"
    )
    assert "3 captures, 1 program;" in PastPredictions("copies", 3, 1, 0.1, 0.2).text("x")


def test_a_finding_without_a_prediction_has_none_to_compare() -> None:
    assert finding("launch-bound", 1e6).similar_fixes is past_predictions()["launch-bound"]
    assert finding("launch-bound", None).similar_fixes is None
    assert finding("my-own-rule", 1e6).similar_fixes is None


@pytest.fixture(scope="module")
def diagnosis() -> DiagnosisView:
    return gs.diagnose(DEMO)


def test_explain_details_and_json_show_it_and_the_first_screen_does_not(
    diagnosis: DiagnosisView,
) -> None:
    timeline = diagnosis.timeline
    assert timeline is not None
    first = timeline.plan[0]
    assert first.similar_fixes is not None
    shown = "predicted for similar fixes"
    assert shown in diagnosis.explain(1).to_text()
    assert shown in diagnosis.to_markdown(details=True)
    assert shown not in diagnosis.to_text()
    document = diagnosis.to_dict()["findings"][0]
    assert document["similar_fixes"] == first.similar_fixes.document()
