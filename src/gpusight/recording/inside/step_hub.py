"""Steps and ranges that begin and end in this process, and who listens."""

from __future__ import annotations

import threading
from typing import Protocol


class StepListener(Protocol):
    """Wants to know what begins and ends. Called on the thread where it happens."""

    def step_began(self, number: int) -> None:
        """Step `number`, counted from 0, begins now."""

    def step_ended(self, number: int) -> None:
        """It has ended."""

    def range_began(self, name: str) -> None:
        """A range of this name was opened."""

    def range_ended(self, name: str) -> None:
        """The last opened range of this name was closed."""


class StepHub:
    """Passes on what happens; counts steps.

    A program's own `gs.step` is more exact than a guess from its optimizer: from the first
    explicit step on, steps that hooks tell are ignored. Of explicit steps within each other on one
    thread (`gs.step` in the loop of a callback) the outermost counts.
    """

    def __init__(self) -> None:
        self._listeners: tuple[StepListener, ...] = ()
        self.heard = False
        """Somebody listens; asked for every range, so not worked out then."""
        self.explicit = False
        self.next_step = 0
        self._inside: dict[int, int] = {}
        """Which explicit step each thread is in."""

    def listen(self, listener: StepListener) -> None:
        """Tell this one too."""
        self._listeners, self.heard = (*self._listeners, listener), True

    def forget(self, listener: StepListener) -> None:
        """Tell this one no more."""
        self._listeners = tuple(known for known in self._listeners if known is not listener)
        self.heard = bool(self._listeners)

    def begin_step(self, *, explicit: bool = True) -> int | None:
        """Count a step that begins; gives its number.

        None when it was a guess not needed, or lies within another step: it is not counted.
        """
        thread = threading.get_ident()
        if thread in self._inside or (self.explicit and not explicit):
            return None
        if explicit:
            self._trust_program()
            self._inside[thread] = self.next_step
        number = self.next_step
        self.next_step += 1
        for listener in self._listeners:
            listener.step_began(number)
        return number

    def end_step(self, number: int | None) -> None:
        """Tell that a step ended, on whatever thread; None, one that did not count, is ignored."""
        if number is None:
            return
        for thread, inside in list(self._inside.items()):
            if inside == number:
                del self._inside[thread]
        for listener in self._listeners:
            listener.step_ended(number)

    def pass_step(self) -> None:
        """Count an explicit step that nobody knew to be one before it ended; it is not told."""
        if threading.get_ident() not in self._inside:
            self._trust_program()
            self.next_step += 1

    def _trust_program(self) -> None:
        if not self.explicit:
            self.explicit, self.next_step = True, 0

    def begin_range(self, name: str) -> None:
        """Tell that a range was opened."""
        for listener in self._listeners:
            listener.range_began(name)

    def end_range(self, name: str) -> None:
        """Tell that a range was closed."""
        for listener in self._listeners:
            listener.range_ended(name)


HUB = StepHub()
"""The one of this process."""
