"""Steps and ranges reach those who listen, and nobody else."""

from __future__ import annotations

import threading

from gpusight.pace import OPTIMIZER
from gpusight.recording.inside.step_hub import StepHub


class EventLog:
    """Notes what it is event."""

    def __init__(self) -> None:
        self.events: list[tuple[str, int | str]] = []

    def step_began(self, number: int) -> None:
        self.events.append(("step", number))

    def step_ended(self, number: int) -> None:
        self.events.append(("end of step", number))

    def range_began(self, name: str) -> None:
        self.events.append(("range", name))

    def range_ended(self, name: str) -> None:
        self.events.append(("end of range", name))


def test_listeners_hear_in_order() -> None:
    hub, log = StepHub(), EventLog()
    hub.listen(log)
    number = hub.begin_step()
    hub.begin_range("forward")
    hub.end_range("forward")
    hub.end_step(number)
    assert log.events == [
        ("step", 0),
        ("range", "forward"),
        ("end of range", "forward"),
        ("end of step", 0),
    ]


def test_who_is_forgotten_hears_no_more() -> None:
    hub, log = StepHub(), EventLog()
    hub.listen(log)
    before = hub.has_listeners
    hub.forget(log)
    hub.begin_range("forward")
    assert (before, hub.has_listeners) == (True, False)
    assert log.events == []


def test_a_program_s_own_steps_end_the_guessing() -> None:
    hub, log = StepHub(), EventLog()
    hub.listen(log)
    guessed = hub.begin_step(source=OPTIMIZER)
    hub.end_step(guessed)
    assert hub.begin_step() == 0
    assert hub.begin_step(source=OPTIMIZER) is None
    hub.end_step(None)
    hub.end_step(0)
    assert hub.begin_step() == 1
    assert [event for event in log.events if event[0] == "step"] == [
        ("step", 0),
        ("step", 0),
        ("step", 1),
    ]


def test_of_steps_within_each_other_the_outermost_counts() -> None:
    hub, log = StepHub(), EventLog()
    hub.listen(log)
    outer = hub.begin_step()
    assert hub.begin_step() is None
    hub.end_step(None)
    hub.end_step(outer)
    assert hub.begin_step() == 1
    assert log.events == [("step", 0), ("end of step", 0), ("step", 1)]


def test_steps_of_two_threads_all_count_and_any_thread_may_end_them() -> None:
    hub = StepHub()
    numbers = [hub.begin_step()]
    other = threading.Thread(target=lambda: numbers.append(hub.begin_step()))
    other.start()
    other.join()
    assert numbers == [0, 1]
    ending = threading.Thread(target=lambda: hub.end_step(0))
    ending.start()
    ending.join()
    assert hub.begin_step() == 2


def test_a_step_that_is_known_afterwards_counts_and_is_not_told() -> None:
    hub, log = StepHub(), EventLog()
    hub.listen(log)
    hub.pass_step()
    assert hub.begin_step() == 1
    hub.pass_step()  # within that one
    hub.end_step(1)
    assert (hub.begin_step(), hub.explicit) == (2, True)
    assert log.events[0] == ("step", 1)
