"""Which steps of a run are recorded: some are waited for, some warm the profiler up, some count."""

from __future__ import annotations

import enum
import operator
from dataclasses import dataclass

from gpusight.errors import UsageError

_LEAST = {"wait": 0, "warmup": 0, "active": 1, "cycles": 1}


class ProfilerWarning(UserWarning):
    """Something asked of the profiler cannot be had; the program goes on without it."""


class Phase(enum.Enum):
    """What happens to a step."""

    WAIT = "wait"
    WARMUP = "warmup"
    """The profiler is ready and its first cost is paid, but nothing is kept."""
    ACTIVE = "active"
    DONE = "done"


@dataclass(frozen=True)
class Schedule:
    """Wait, warm up, record; this many times. Steps are counted from the start of the run.

    `active` None: from there to the end.
    """

    wait: int = 4
    warmup: int = 4
    active: int | None = 1
    cycles: int = 1

    def __post_init__(self) -> None:
        """Refuse what is no schedule."""
        for name, least in _LEAST.items():
            if name != "active" or self.active is not None:
                object.__setattr__(self, name, _whole(name, getattr(self, name), least))
        if self.active is None and self.cycles != 1:
            raise UsageError(
                f"cycles={self.cycles} never come with active=None, which records to the end",
                hint="say how many steps are recorded: active=1",
            )

    @property
    def before(self) -> int:
        """How many steps of each cycle come before the recorded ones."""
        return self.wait + self.warmup

    @property
    def records_all(self) -> bool:
        """Tell whether recording begins at once and never ends."""
        return self.active is None and self.before == 0

    @property
    def total(self) -> int | None:
        """How many steps it takes; None where it has no end."""
        return None if self.active is None else self.cycles * (self.before + self.active)

    def phase(self, step: int) -> Phase:
        """Say what happens to a step, counted from 0."""
        if self.total is not None and step >= self.total:
            return Phase.DONE
        place = self._place(step)
        if place < self.before:
            return Phase.WAIT if place < self.wait else Phase.WARMUP
        return Phase.ACTIVE

    def ends_cycle(self, step: int) -> bool:
        """Tell whether this step is the last that its cycle records."""
        if self.active is None or self.phase(step) is not Phase.ACTIVE:
            return False
        return self._place(step) == self.before + self.active - 1

    def _place(self, step: int) -> int:
        return step if self.active is None else step % (self.before + self.active)

    def cautions(self) -> tuple[str, ...]:
        """Say what a reader of the result should know beforehand."""
        if self.warmup or self.records_all:
            return ()
        return ("with warmup=0 the first recorded step also pays for the start of the profiler",)

    def shortfall(self, steps: int | None) -> str | None:
        """Say what a run of this many steps leaves out, None when nothing or not known."""
        enough = self.before + (not self.records_all) if self.total is None else self.total
        if steps is None or steps >= enough:
            return None
        recorded = self._cycles_in(steps)
        many = f"{steps} step{'' if steps == 1 else 's'}"
        if self.active is None or self.cycles == 1:
            need = self.before + (self.active or 1)
            return f"the schedule ({self}) needs {need} steps and the run has {many}"
        missing = f"{recorded} of {self.cycles} cycles"
        return f"a run of {many} has room for {missing} of the schedule ({self})"

    def _cycles_in(self, steps: int) -> int:
        """Give how many cycles are whole after so many steps."""
        period = self.before + (self.active or 1)
        return min(self.cycles, steps // period)

    def recorded_of_cycle(self, steps: int) -> int:
        """Give how many steps of the cycle under way are recorded after so many steps."""
        return max(0, self._place(steps) - self.before)

    def recorded_steps(self) -> tuple[int, int | None]:
        """Give the first and the last step that the first cycle records."""
        return self.before, None if self.active is None else self.before + self.active - 1

    def __str__(self) -> str:
        """Write it as it is given."""
        return f"wait={self.wait}, warmup={self.warmup}, active={self.active}, cycles={self.cycles}"


def _whole(name: str, value: object, least: int) -> int:
    """Read a whole number that is not too small; a truth value is none."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise UsageError(f"{name}={value!r} is no number of {_counts(name)}")
    if number < least:
        raise UsageError(f"{name}={number} is too small", hint=f"the least is {least}")
    return number


def _counts(name: str) -> str:
    return "cycles" if name == "cycles" else "steps"
