"""Steps and ranges that begin and end in this process, and who wants to know.

`gs.step`, `gs.annotate`, `gs.profile`, the callbacks and the hooks on frameworks tell the hub;
recorders listen. Without a listener telling costs one look at an empty tuple.
"""

from __future__ import annotations

from typing import Protocol


class Listener(Protocol):
    """Wants to know what begins and ends. Called on the thread where it happens."""

    def step_began(self, number: int) -> None:
        """Step `number`, counted from 0, begins now."""

    def step_ended(self, number: int) -> None:
        """It has ended."""

    def range_began(self, name: str) -> None:
        """A range of this name was opened."""

    def range_ended(self, name: str) -> None:
        """The last opened range of this name was closed."""


class Hub:
    """Passes on what happens; counts steps.

    A program's own `gs.step` is more exact than a guess from its optimizer: from the first
    explicit step on, steps that hooks tell are ignored.
    """

    def __init__(self) -> None:
        self._listeners: tuple[Listener, ...] = ()
        self.explicit = False
        self.next_step = 0

    @property
    def heard(self) -> bool:
        """Tell whether anybody listens."""
        return bool(self._listeners)

    def listen(self, listener: Listener) -> None:
        """Tell this one too."""
        self._listeners = (*self._listeners, listener)

    def forget(self, listener: Listener) -> None:
        """Tell this one no more."""
        self._listeners = tuple(known for known in self._listeners if known is not listener)

    def begin_step(self, *, explicit: bool = True) -> int | None:
        """Count a step that begins; gives its number, None when it was a guess not needed."""
        if explicit and not self.explicit:
            self.explicit, self.next_step = True, 0
        if self.explicit and not explicit:
            return None
        number = self.next_step
        self.next_step += 1
        for listener in self._listeners:
            listener.step_began(number)
        return number

    def end_step(self, number: int | None) -> None:
        """Tell that a step ended; None, what a needless guess began as, is ignored."""
        if number is None:
            return
        for listener in self._listeners:
            listener.step_ended(number)

    def begin_range(self, name: str) -> None:
        """Tell that a range was opened."""
        for listener in self._listeners:
            listener.range_began(name)

    def end_range(self, name: str) -> None:
        """Tell that a range was closed."""
        for listener in self._listeners:
            listener.range_ended(name)


HUB = Hub()
"""The one of this process."""
