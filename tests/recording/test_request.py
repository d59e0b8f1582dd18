"""What may be asked of a recording, and what contradicts itself."""

from __future__ import annotations

from typing import Any

import pytest

from gpusight.errors import UsageError
from gpusight.recording.inside.environment import RecorderPlan
from gpusight.recording.request import Ranks, RecordedSteps, RecordRequest, Tool
from gpusight.recording.tools import ToolCommand

PROGRAM = ("python", "train.py")


@pytest.mark.parametrize(
    ("text", "first", "last"), [("5", 5, 5), ("3:7", 3, 7), ("3-7", 3, 7), ("3:", 3, None)]
)
def test_steps_are_read_as_people_write_them(text: str, first: int, last: int | None) -> None:
    assert RecordedSteps.read(text) == RecordedSteps(first, last)


@pytest.mark.parametrize("text", ["", "a", "7:3", ":", "-3", "1.5", "9" * 30])
def test_what_names_no_steps_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        RecordedSteps.read(text)


@pytest.mark.parametrize(("text", "in_it", "out"), [("0", [0], [1]), ("0,4", [0, 4], [1, 2])])
def test_only_chosen_ranks_are_recorded(text: str, in_it: list[int], out: list[int]) -> None:
    ranks = Ranks.read(text)
    assert all(ranks.include(rank) for rank in in_it)
    assert not any(ranks.include(rank) for rank in out)
    assert ranks.include(None)
    assert str(ranks) == text


def test_all_ranks_are_all() -> None:
    assert Ranks.read("all").include(17)


@pytest.mark.parametrize("text", ["", "x", "0,", "-1", "1e3"])
def test_what_names_no_ranks_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        Ranks.read(text)


@pytest.mark.parametrize(
    "wanted",
    [
        {"range_name": "fwd", "steps": RecordedSteps(1, 2)},
        {"steps": RecordedSteps(1, 2), "delay_s": 1.0},
        {"stop": True, "whole": True},
        {"stop": True, "delay_s": 1.0},
        {"whole": True, "steps": RecordedSteps(1, 2)},
        {"whole": True, "timed": 5},
        {"steps": RecordedSteps(1, 2), "warmup": 5},
        {"recorded": 0},
        {"timed": -1},
        {"stop": True, "steps": RecordedSteps(1, None)},
        {"program": ()},
        {"delay_s": -1.0},
        {"delay_s": float("nan")},
        {"duration_s": 0.0},
        {"duration_s": -2.0},
        {"launch_count": 0},
        {"launch_skip": -1},
    ],
)
def test_requests_that_contradict_themselves_are_refused(wanted: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        RecordRequest(**{"program": PROGRAM, **wanted})


def test_a_part_may_end_the_program() -> None:
    assert RecordRequest(PROGRAM, steps=RecordedSteps(3, 7), stop=True).is_partial


def test_every_tool_has_a_name_for_its_captures() -> None:
    assert len({tool.suffix for tool in Tool}) == len(Tool)


def test_a_plan_survives_the_environment() -> None:
    plan = RecorderPlan("torch", "/runs/été", first_step=3, last_step=7, ranks=(0, 4), stop=True)
    assert RecorderPlan.from_text(plan.to_text()) == plan
    newer = plan.to_text().replace("{", '{"unheard_of": 1, ', 1)
    assert RecorderPlan.from_text(newer) == plan


def test_a_command_can_be_pasted_into_a_shell() -> None:
    from pathlib import Path

    command = ToolCommand(("nsys", "-o", "a b"), Path("a b.nsys-rep"), {"X": "1 2"})
    assert str(command) == "X='1 2' nsys -o 'a b'"
