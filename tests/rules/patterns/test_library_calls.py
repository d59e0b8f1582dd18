"""Syncs inside libraries: whose they are, and what a user can change."""

from __future__ import annotations

import pytest

from gpusight.rules.patterns.library_calls import library_of
from gpusight.rules.timeline.host_sync import HostSync
from tests.rules.timeline.rule_captures import Capture, match_of

RULE = HostSync()


def reading(frames: tuple[str, ...] = (), range_: str = "") -> Capture:
    """Steps that read eight values back, inside these Python functions or this range."""
    capture, at = Capture("torch-json"), 0.0
    for step in range(4):
        begun = at
        for _ in range(8):
            capture.launch((at, at + 5), (at + 7, at + 57))
            capture.copy((at + 10, at + 70), (at + 58, at + 60))
            at += 120
        capture.range(f"step_{step}", begun, at)
        if range_:
            capture.range(range_, begun + 1, at - 1)
        for depth, frame in enumerate(frames, 2):
            capture.event("python_calls", frame, begun + depth, at - depth)
    return capture


@pytest.mark.parametrize(
    ("name", "library"),
    [
        ("torch/optim/lbfgs.py(314): step", "torch.optim.LBFGS"),
        ("Optimizer.step#LBFGS.step", "torch.optim.LBFGS"),
        ("Optimizer.step#Rprop.step", "torch.optim.Rprop"),
        ("torch/optim/optimizer.py(485): wrapper", None),
        (
            "/opt/lib/python3.11/site-packages/transformers/generation/utils.py(9): _sample",
            "generate() of transformers",
        ),
        ("/opt/lib/python3.11/site-packages/somelib/core.py(9): run", "somelib"),
        ("torch/amp/grad_scaler.py(400): step", "torch.amp.GradScaler"),
        ("torch/_tensor_str.py(300): _str", None),
        ("train.py(12): main", None),
    ],
)
def test_library_of(name: str, library: str | None) -> None:
    answer = library_of(name)
    assert (answer.name if answer else None) == library


@pytest.mark.parametrize(
    ("capture", "library"),
    [
        pytest.param(reading(range_="Optimizer.step#LBFGS.step"), "torch.optim.LBFGS", id="range"),
        pytest.param(
            reading(("train.py(9): main", "torch/optim/lbfgs.py(314): step")),
            "torch.optim.LBFGS",
            id="stack",
        ),
        pytest.param(
            reading(("train.py(9): main", "transformers/generation/utils.py(9): _sample")),
            "generate() of transformers",
            id="generate",
        ),
    ],
)
def test_syncs_of_a_library_are_said_to_be_its_own(capture: Capture, library: str) -> None:
    verdict = match_of(RULE, capture.timeline())
    assert f"inside {library}: library code" in verdict.fix
    assert "read them back once" not in verdict.fix
    assert "losses.append" not in verdict.code


@pytest.mark.parametrize(
    "frames",
    [
        ("train.py(9): main",),
        # A closure of the program, which LBFGS calls.
        ("train.py(9): main", "torch/optim/lbfgs.py(314): step", "train.py(20): closure"),
    ],
)
def test_the_code_of_the_program_gets_the_usual_advice(frames: tuple[str, ...]) -> None:
    verdict = match_of(RULE, reading(frames).timeline())
    assert "library code" not in verdict.fix
    assert "read them back once" in verdict.fix
