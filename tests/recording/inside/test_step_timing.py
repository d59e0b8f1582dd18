"""Which steps are warm-up, timed and recorded, by a clock that the tests set."""

from __future__ import annotations

from typing import Any

import pytest

from gpusight.pace import GS_STEP, MODULE, OPTIMIZER, Pace
from gpusight.recording.inside import cuda_driver, step_timing
from gpusight.recording.inside.environment import RecorderPlan
from gpusight.recording.inside.step_timing import TimingPhase, TimingSchedule

GIVEN = Pace(5, 1e6, 1e6, 0.0, "second run", OPTIMIZER)


class Clock:
    """Stands for the module `time`."""

    def __init__(self) -> None:
        self.now_ns = 10**9

    def monotonic(self) -> float:
        return self.now_ns / 1e9

    def perf_counter_ns(self) -> int:
        return self.now_ns


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(step_timing, "time", made)
    monkeypatch.setattr(cuda_driver, "wait_for_gpus", lambda: None)
    return made


def schedule(*, several: bool = False, **plan: Any) -> TimingSchedule:
    wanted = RecorderPlan("torch", "/nowhere", **{"window": True, **plan})
    return TimingSchedule(wanted, is_one_of_several=several)


def phases(
    chosen: TimingSchedule,
    clock: Clock,
    times_ms: list[float],
    source: str = GS_STEP,
    first: int = 0,
) -> str:
    """Run steps that take so long; a letter each: warm-up, timed, prepared, recorded, over."""
    letters = ""
    for number, time_ms in enumerate(times_ms, first):
        letters += chosen.begin_step(number, source).value[0]
        clock.now_ns += int(time_ms * 1e6)
        if chosen.phase is TimingPhase.RECORDED and chosen.end_step(number):
            return letters + "|"
        if chosen.phase is not TimingPhase.RECORDED:
            assert not chosen.end_step(number)
    return letters


def test_steps_that_take_alike_are_soon_timed(clock: Clock) -> None:
    chosen = schedule()
    assert phases(chosen, clock, [25.0] * 40) == "w" * 3 + "t" * 10 + "p" + "r" * 10 + "|"
    assert chosen.pace == Pace(10, 25_000_000, 25_000_000, 0.0, "before", GS_STEP)
    assert chosen.recorded_steps == 10


def test_warm_up_lasts_until_steps_settle_and_no_longer_than_ten(clock: Clock) -> None:
    assert phases(schedule(), clock, [900.0, 60.0, 40.0, *[20.0] * 7]).startswith("w" * 6 + "t")
    wild = [10.0, 90.0] * 12
    assert phases(schedule(), clock, wild).startswith("w" * 10 + "t")


def test_steps_that_become_faster_while_they_are_timed_are_timed_again(clock: Clock) -> None:
    chosen = schedule()
    steps = phases(chosen, clock, [60.0] * 9 + [10.0] * 60)
    assert steps.startswith("w" * 3 + "t" * 10 + "t" * 20 + "pr")
    assert chosen.pace == Pace(20, 10_000_000, 10_000_000, 0.0, "before", GS_STEP)


def test_timing_does_not_begin_again_for_ever(clock: Clock) -> None:
    steps = phases(schedule(), clock, [1000 * 0.95**number for number in range(80)])
    assert steps.startswith("w" * 3 + "t" * 40 + "pr")


@pytest.mark.parametrize("kept", [{"timed": 10}, {"several": True}])
def test_numbers_that_are_fixed_are_kept_to(clock: Clock, kept: dict[str, Any]) -> None:
    steps = phases(schedule(warmup=3, **kept), clock, [60.0] * 9 + [10.0] * 60)
    assert steps.startswith("w" * 3 + "t" * 10 + "p")


def test_short_steps_are_more_and_long_ones_fewer(clock: Clock) -> None:
    short = phases(schedule(), clock, [1.001] * 500)
    assert (short.count("t"), short.count("r"), short[-1]) == (200, 201, "|")
    long = phases(schedule(), clock, [6000.0] * 40)
    assert (long.count("w"), long.count("t"), long.count("r"), long[-1]) == (3, 5, 3, "|")


def test_the_start_of_a_profiler_does_not_count(clock: Clock) -> None:
    chosen = schedule(timed=0)
    for number in range(3):
        chosen.begin_step(number, GS_STEP)
    steps = phases(chosen, clock, [1.001] * 2, first=3)
    assert steps == "pr"
    clock.now_ns += 200_000_000
    chosen.recording_began()
    assert phases(chosen, clock, [1.001] * 400, first=5).count("r") == 200


def test_a_profiler_that_starts_in_the_first_step_does_not_end_the_recording(clock: Clock) -> None:
    steps = phases(schedule(warmup=3, timed=0), clock, [1.001] * 4 + [900.0] + [1.001] * 400)
    assert steps == "wwwp" + "r" * 201 + "|"


def test_where_the_first_step_of_an_optimizer_began_is_not_known(clock: Clock) -> None:
    letters = phases(schedule(), clock, [5000.0, *[20.0] * 40], source=OPTIMIZER)
    assert letters.startswith("w" * 4 + "t")


def test_numbers_of_the_user(clock: Clock) -> None:
    numbers: dict[str, Any] = {"warmup": 1, "timed": 2, "recorded": 3}
    assert phases(schedule(**numbers), clock, [5.0, 900.0] * 9) == "wttprrr|"
    untimed = schedule(**{**numbers, "timed": 0})
    assert phases(untimed, clock, [5.0] * 9) == "wprrr|"
    assert untimed.pace is None


def test_ranks_record_the_same_steps_whatever_their_clocks_say(clock: Clock) -> None:
    for times in ([1.0] * 60, [900.0, 5.0] * 30):
        letters = phases(schedule(several=True), clock, times)
        assert letters == "w" * 5 + "t" * 10 + "p" + "r" * 10 + "|"


def test_a_pace_of_another_run_is_kept_and_nothing_is_timed(clock: Clock) -> None:
    chosen = schedule(pace=GIVEN.to_text())
    assert phases(chosen, clock, [25.0] * 30) == "wwwp" + "r" * 10 + "|"
    assert chosen.pace == GIVEN


def test_another_source_of_steps_begins_anew(clock: Clock) -> None:
    chosen = schedule()
    assert phases(chosen, clock, [20.0] * 6, source=MODULE) == "wwwttt"
    rest = phases(chosen, clock, [30.0] * 40, source=OPTIMIZER, first=6)
    assert rest == "w" * 3 + "t" * 10 + "p" + "r" * 10 + "|"
    assert chosen.pace is not None
    assert (chosen.pace.mean_ns, chosen.pace.step_source) == (30e6, OPTIMIZER)


@pytest.mark.parametrize(
    ("first", "last", "letters"),
    [
        (0, 1, "rr|"),
        (3, 3, "wwpr|"),
        (5, 6, "wwttprr|"),
        (20, 20, "w" * 9 + "t" * 10 + "pr|"),
        (2, None, "wp" + "r" * 28),
    ],
)
def test_steps_before_those_that_were_named_give_the_pace(
    first: int, last: int | None, letters: str, clock: Clock
) -> None:
    chosen = schedule(window=False, first_step=first, last_step=last)
    assert phases(chosen, clock, [7.0] * 30) == letters
    timed = letters.count("t")
    assert (chosen.pace.steps if chosen.pace else 0) == timed
