"""The start of a program without steps: what is left out, and what is told of it."""

from __future__ import annotations

import pytest

from gpusight.analysis.steps.program_start import find_start
from gpusight.rules.diagnosis import TimelineDiagnosis
from gpusight.rules.timeline_diagnosis import diagnose_timeline
from tests.rules.timeline.rule_captures import US, Capture
from tests.traces import build_trace

DIFFERENT = ("a", "b", "c", "d", "e")
"""Kernels that do not repeat: no steps."""


def program(
    work_us: float = 5_000,
    *,
    loading: tuple[float, float] | None = None,
    compiling: tuple[float, float] | None = None,
    tuning_us: tuple[float, ...] = (),
) -> Capture:
    """A program whose own kernels begin at `work_us`, 100 us apart; before, it may tune others."""
    capture = Capture()
    capture.call("cuInit", 0, 1)
    if loading:
        capture.call("cuModuleLoadData", *loading)
    if compiling:
        capture.range("XlaCompile:#module=jit_f#", *compiling)
    for number, at in enumerate(tuning_us):
        capture.launch((at, at + 5), (at + 7, at + 20), f"tuned_{number}")
    for number, name in enumerate(DIFFERENT):
        at = work_us + 100 * number
        capture.launch((at, at + 5), (at + 7, at + 95), name)
    return capture


@pytest.mark.parametrize(
    ("capture", "end_us"),
    [
        pytest.param(program(), 5_007, id="most of the window, whatever it does"),
        pytest.param(program(600), None, id="half a millisecond is the way to a launch"),
        pytest.param(program(compiling=(10, 4_900), tuning_us=(1_000, 3_000)), 4_900, id="tuning"),
        pytest.param(
            program(6_000, compiling=(5_000, 5_900), tuning_us=(100, 2_000, 3_500)),
            None,
            id="compiled in the middle of its work",
        ),
        pytest.param(program(compiling=(10, 5_800)), 5_007, id="compiled to the end"),
    ],
)
def test_where_it_ends(capture: Capture, end_us: float | None) -> None:
    trace = build_trace({"source": "nsys-sqlite"}, **capture.tables)
    start = find_start(trace, 0, 6_500 * US)
    assert (start and start.end_ns) == (end_us and end_us * US)


def test_a_diagnosis_leaves_it_out_and_says_so() -> None:
    capture = program(loading=(10, 900))
    trace = build_trace({"source": "nsys-sqlite"}, devices=[{"device": 0}], **dict(capture.tables))
    diagnosis = diagnose_timeline(trace)
    assert isinstance(diagnosis, TimelineDiagnosis)
    assert diagnosis.focus.start_ns == 5_000 * US
    assert diagnosis.focus.before_ns == 5_000 * US
    assert any("5.00 ms (program start) are excluded" in note for note in diagnosis.notes)
    told = diagnosis.findings[0]
    assert (told.rule, told.recoverable_ns, told.share) == ("startup-bound", None, None)
    assert told.title.startswith("Start-up: 5.00 ms of 5.50 ms")
    assert {e.metric: e.value for e in told.evidence}["code_ns"] == 890 * US
    assert diagnosis.covered["warmup-in-window"] == "startup-bound"


def test_it_stays_where_it_is_asked_for() -> None:
    trace = build_trace({"source": "nsys-sqlite"}, devices=[{"device": 0}], **program().tables)
    for asked in ({"warmup": True}, {"window": (0, None)}):
        diagnosis = diagnose_timeline(trace, **asked)
        assert isinstance(diagnosis, TimelineDiagnosis)
        assert diagnosis.focus.start_ns == 0
        told = next(f for f in diagnosis.findings if f.rule == "warmup-in-window")
        assert told.recoverable_ns == 5_007 * US
