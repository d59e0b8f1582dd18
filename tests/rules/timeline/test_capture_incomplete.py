"""capture-incomplete: what touches the verdicts, and what does not."""

from __future__ import annotations

import pytest

from gpusight.rules.diagnosis import TimelineDiagnosis
from gpusight.rules.rule import CLEAN
from gpusight.rules.timeline.capture_incomplete import CaptureIncomplete
from gpusight.rules.timeline_diagnosis import diagnose_timeline
from tests.rules.timeline.rule_captures import Capture, evidence, judged, match_of, opened
from tests.shared import needs_shared

RULE = CaptureIncomplete()


def loop(unlinked: int = 0) -> Capture:
    """Four steps of five kernels; the launches of some are not known."""
    capture = Capture()
    for step in range(4):
        for number in range(5):
            at = step * 500 + number * 90
            capture.launch((at + 5, at + 10), (at + 12, at + 80))
        capture.range(f"step_{step}", step * 500, step * 500 + 490)
    for row in capture.tables["kernels"][:unlinked]:
        row["correlation"] = None
    return capture


@pytest.mark.parametrize(
    ("severity", "text", "lost"),
    [
        ("error", "12 CUDA events were dropped: the buffer is full", True),
        ("warning", "CUDA profiling might have not been started correctly.", True),
        ("warning", "Not all CUDA events might have been collected.", False),
        ("warning", "No cuDNN events collected. Does the process use cuDNN?", False),
        ("information", "3 records were dropped", False),
    ],
)
def test_messages(severity: str, text: str, lost: bool) -> None:
    capture = loop()
    capture.tables["diagnostics"].append({"severity": severity, "text": text})
    timeline = capture.timeline()
    if not lost:
        assert RULE.check(timeline) is CLEAN
        return
    verdict = match_of(RULE, timeline)
    assert verdict.title == "Profiler lost events"
    assert verdict.evidence[0].meaning == text
    assert verdict.recoverable_ns is None
    assert not verdict.change


def test_clocks_that_disagree() -> None:
    capture = loop()
    for row in capture.tables["kernels"]:
        row |= {"start_ns": row["start_ns"] - 10**10, "end_ns": row["end_ns"] - 10**10}
    diagnosis = diagnose_timeline(capture.timeline().trace)
    assert isinstance(diagnosis, TimelineDiagnosis)
    assert diagnosis.notes[0].startswith("the clocks of host and GPU 0 are 10.0 s apart")
    assert "Clocks of host and GPU 10.0 s apart" in {f.title for f in diagnosis.findings}
    # Judged as if they agreed: the kernels lie in the steps again.
    assert diagnosis.steps == 4
    (device,) = diagnosis.ledger.devices
    assert device.document()["entries"]


def test_warnings_of_the_reader() -> None:
    verdict = match_of(RULE, loop().timeline(warnings=("the file ends in the middle of an event",)))
    assert verdict.title == "Incomplete file: the file ends in the middle of an event"


def test_work_without_launches() -> None:
    assert RULE.check(loop(unlinked=0).timeline()) is CLEAN
    verdict = match_of(RULE, loop(unlinked=5).timeline())
    assert verdict.title == "25.0% of GPU activities have no known launch"
    assert evidence(verdict)["unlinked"] == 0.25


def test_no_calls_and_no_names() -> None:
    kernels = [
        {"start_ns": 1_000 * i, "end_ns": 1_000 * i + 500, "name": f"k{i}"} for i in range(9)
    ]
    verdict = match_of(RULE, judged(kernels=kernels))
    assert verdict.title == "No CUDA API calls in the capture (+1 more)"
    assert list(evidence(verdict)) == ["api_calls", "steps"]
    assert "nsys profile --trace=cuda,nvtx" in verdict.fix


def test_graphs_traced_as_a_whole() -> None:
    capture = loop()
    for step in range(4):
        at = step * 500 + 470
        graph = capture.call("cudaGraphLaunch", at, at + 2)
        row = {"start_ns": (at + 3) * 1_000, "end_ns": (at + 13) * 1_000, "correlation": graph}
        capture.tables["graph_launches"].append(row)
    verdict = match_of(RULE, capture.timeline())
    assert verdict.title == "CUDA graphs traced as one event: kernels not visible"
    assert evidence(verdict)["in_graphs"] == pytest.approx(40 / (40 + 20 * 68))
    assert "--cuda-graph-trace=node" in verdict.fix


@needs_shared
@pytest.mark.parametrize(
    "capture",
    [
        "nsys/healthy.sqlite",
        "nsys/graph_node.sqlite",
        "nsys/gpt_small_train.sqlite",
        "nsys/item.sqlite",
        "torch/healthy.json.gz",
        "torch/gpt_small_forward.json.gz",
    ],
)
def test_good_captures_lack_nothing(capture: str) -> None:
    assert RULE.check(opened(capture)) is CLEAN


@needs_shared
def test_a_capture_of_whole_graphs() -> None:
    assert "CUDA graphs" in match_of(RULE, opened("nsys/graph.sqlite")).title
