"""Schedules: which steps are recorded, and the message about a run too short for one."""

from __future__ import annotations

import pytest

from gpusight.errors import UsageError
from gpusight.recording.inside.torch_settings import StepSchedule


def phases(schedule: StepSchedule, steps: int) -> str:
    """One letter a step; a capital ends its cycle."""
    letters = {"wait": ".", "warmup": "w", "active": "a", "done": "-"}
    return "".join(
        letter.upper() if schedule.ends_cycle(step) else letter
        for step in range(steps)
        for letter in [letters[schedule.phase(step).value]]
    )


@pytest.mark.parametrize(
    ("schedule", "shown"),
    [
        (StepSchedule(), "....wwwwA---"),
        (StepSchedule(1, 1, 2, 2), ".waA.waA--"),
        (StepSchedule(0, 0, 1, 3), "AAA--"),
        (StepSchedule(0, 0, 2, 2), "aAaA--"),
        (StepSchedule(0, 2, 1, 2), "wwAwwA--"),
        (StepSchedule(2, 1, None), "..waaaaa"),
        (StepSchedule(0, 0, None), "aaaa"),
    ],
    ids=str,
)
def test_what_happens_to_each_step(schedule: StepSchedule, shown: str) -> None:
    assert phases(schedule, len(shown)) == shown
    assert schedule.total == (shown.index("-") if "-" in shown else None)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"wait": -1}, "wait=-1 is too small; the minimum is 0"),
        ({"warmup": -2}, "warmup=-2"),
        ({"active": 0}, "active=0 is too small; the minimum is 1"),
        ({"cycles": 0}, "cycles=0"),
        ({"wait": 1.5}, "wait=1.5 is not a number of steps"),
        ({"warmup": "3"}, "warmup='3'"),
        ({"active": True}, "active=True"),
        ({"cycles": None}, "cycles=None is not a number of cycles"),
        ({"active": None, "cycles": 2}, "active=None"),
    ],
    ids=str,
)
def test_what_is_no_schedule_is_refused(wrong: dict[str, int], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        StepSchedule(**wrong)


def test_whole_numbers_of_other_types_are_numbers() -> None:
    numpy = pytest.importorskip("numpy")
    assert StepSchedule(wait=numpy.int64(3)) == StepSchedule(wait=3)


@pytest.mark.parametrize(
    ("schedule", "steps", "message"),
    [
        (StepSchedule(), 9, None),
        (StepSchedule(), None, None),
        (StepSchedule(), 8, "needs 9 steps and the run has 8 steps"),
        (StepSchedule(), 1, "the run has 1 step"),
        (StepSchedule(1, 1, 1, 3), 9, None),
        (StepSchedule(1, 1, 1, 3), 7, "a run of 7 steps has room for 2 of 3 cycles"),
        (StepSchedule(1, 1, 1, 3), 0, "0 of 3 cycles"),
        (StepSchedule(0, 0, None), 0, None),
        (StepSchedule(2, 2, None), 5, None),
        (StepSchedule(2, 2, None), 4, "needs 5 steps and the run has 4 steps"),
    ],
)
def test_a_run_too_short_is_said(
    schedule: StepSchedule, steps: int | None, message: str | None
) -> None:
    shortfall = schedule.shortfall(steps)
    assert shortfall is None if message is None else message in (shortfall or "")


def test_no_warmup_is_allowed_with_a_caution() -> None:
    assert StepSchedule(warmup=0).starts_cold
    assert not StepSchedule().starts_cold
    assert not StepSchedule(0, 0, None).starts_cold
