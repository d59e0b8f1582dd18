"""Options of `gs.torch_profile` and `gs.ProfilerCallback`, and which steps are recorded."""

from __future__ import annotations

import enum
import operator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

from gpusight.errors import UsageError
from gpusight.recording.request import Ranks

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable


_MIN_COUNTS = {"wait": 0, "warmup": 0, "active": 1, "cycles": 1}


class ProfilerWarning(UserWarning):
    """A requested option of the profiler is not available; the program goes on without it."""


class StepPhase(enum.Enum):
    """What happens to a step."""

    WAIT = "wait"
    WARMUP = "warmup"
    """The profiler is ready and its first cost is paid, but nothing is kept."""
    ACTIVE = "active"
    DONE = "done"


@dataclass(frozen=True)
class StepSchedule:
    """Wait, warm up, record; this many times. Steps are counted from the start of the run.

    `active` None: from there to the end.
    """

    wait: int = 4
    warmup: int = 4
    active: int | None = 1
    cycles: int = 1

    def __post_init__(self) -> None:
        """Refuse what is no schedule."""
        for name, least in _MIN_COUNTS.items():
            if name != "active" or self.active is not None:
                object.__setattr__(self, name, _integer(name, getattr(self, name), least))
        if self.active is None and self.cycles != 1:
            raise UsageError(
                f"cycles={self.cycles} need a number of active steps: active=None records to the "
                "end",
                hint="set how many steps to record: active=1",
            )

    @property
    def before(self) -> int:
        """How many steps of each cycle come before the recorded ones."""
        return self.wait + self.warmup

    @property
    def records_all(self) -> bool:
        """Return whether recording begins at once and never ends."""
        return self.active is None and self.before == 0

    @property
    def starts_cold(self) -> bool:
        """Return whether the first recorded step includes the start-up cost of the profiler."""
        return not (self.warmup or self.records_all)

    @property
    def total(self) -> int | None:
        """How many steps it takes; None where it has no end."""
        return None if self.active is None else self.cycles * (self.before + self.active)

    def phase(self, step: int) -> StepPhase:
        """Return what happens to a step, counted from 0."""
        if self.total is not None and step >= self.total:
            return StepPhase.DONE
        place = self._place(step)
        if place < self.before:
            return StepPhase.WAIT if place < self.wait else StepPhase.WARMUP
        return StepPhase.ACTIVE

    def ends_cycle(self, step: int) -> bool:
        """Return whether this step is the last that its cycle records."""
        if self.active is None or self.phase(step) is not StepPhase.ACTIVE:
            return False
        return self._place(step) == self.before + self.active - 1

    def _place(self, step: int) -> int:
        return step if self.active is None else step % (self.before + self.active)

    def shortfall(self, steps: int | None) -> str | None:
        """Describe what a run of this many steps leaves out; None when nothing or not known."""
        enough = self.before + (not self.records_all) if self.total is None else self.total
        if steps is None or steps >= enough:
            return None
        many = f"{steps} step{'' if steps == 1 else 's'}"
        period = self.before + (self.active or 1)
        if self.active is None or self.cycles == 1:
            return f"the schedule ({self}) needs {period} steps and the run has {many}"
        complete = f"{min(self.cycles, steps // period)} of {self.cycles} cycles"
        return f"a run of {many} has room for {complete} of the schedule ({self})"

    def recorded_of_cycle(self, steps: int) -> int:
        """Count the recorded steps of the cycle under way after so many steps."""
        return max(0, self._place(steps) - self.before)

    def __str__(self) -> str:
        """Write it as it is given."""
        return f"wait={self.wait}, warmup={self.warmup}, active={self.active}, cycles={self.cycles}"


def _integer(name: str, value: object, least: int) -> int:
    """Read an integer that is not too small; a bool is none."""
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        unit = "cycles" if name == "cycles" else "steps"
        raise UsageError(f"{name}={value!r} is not a number of {unit}")
    if number < least:
        raise UsageError(f"{name}={number} is too small", hint=f"the minimum is {least}")
    return number


Mode = Literal["auto", "torch", "nvtx"]
_MODES = ("auto", "torch", "nvtx")
OUTPUT_DIR = "profiler_output"


class TorchOptions(TypedDict, total=False):
    """The names and types of `TorchSettings`, for type checkers, without folder and schedule."""

    cpu: bool
    cuda: bool
    profile_memory: bool
    with_stack: bool
    record_shapes: bool
    with_flops: bool
    memory_snapshot: bool
    key_averages: bool
    stacks: bool
    memory_timeline: bool
    rows: int
    ranks: int | Iterable[int] | None
    diagnose: bool
    mode: Mode


class ScheduledTorchOptions(TorchOptions, total=False):
    """With the schedule."""

    wait: int
    warmup: int
    active: int | None
    cycles: int


@dataclass(frozen=True)
class TorchSettings:
    """When to record, what, and which files to write of it."""

    output_dir: str | os.PathLike[str] = OUTPUT_DIR
    """Everything that is written lies in here; see `step_recorders.py` for the names."""
    wait: int = 4
    """Steps of each cycle that run as if there were no profiler."""
    warmup: int = 4
    """Steps after these with the profiler on, that are not kept."""
    active: int | None = 1
    """Steps that are recorded; None: all that follow."""
    cycles: int = 1
    cpu: bool = True
    """Record operators and Python's side."""
    cuda: bool = True
    """Record the GPU, where there is one."""
    profile_memory: bool = False
    """Record allocations of tensors."""
    with_stack: bool = False
    """Record Python stacks. Costly."""
    record_shapes: bool = True
    with_flops: bool = False
    memory_snapshot: bool = False
    """Write the CUDA allocator's history of the recorded steps."""
    key_averages: bool = True
    """Write the table of operators and kernels."""
    stacks: bool = False
    """Write Python stacks with their times; turns `with_stack` on."""
    memory_timeline: bool = False
    """Draw memory over time; turns `profile_memory` on."""
    rows: int = 25
    """Of the table."""
    ranks: int | Iterable[int] | None = None
    """Which ranks record; None: all."""
    diagnose: bool = False
    """Print the diagnosis at the end, of the lowest rank that records."""
    mode: Mode = "auto"
    """`torch` records with torch.profiler. `nvtx` writes nothing: it marks the steps with NVTX and
    switches the tool around the program, nsys or ncu, on and off. `auto`: `nvtx` in such a tool."""
    schedule: StepSchedule = field(init=False)
    chosen: Ranks = field(init=False)

    def __post_init__(self) -> None:
        """Refuse what makes no sense, before a training begins."""
        schedule = StepSchedule(self.wait, self.warmup, self.active, self.cycles)
        object.__setattr__(self, "schedule", schedule)
        object.__setattr__(self, "chosen", _ranks(self.ranks))
        Path(self.output_dir)  # refuses what is no path
        if self.mode not in _MODES:
            raise UsageError(f"mode={self.mode!r} is unknown", hint=f"one of {', '.join(_MODES)}")
        if not (self.cpu or self.cuda):
            raise UsageError("cpu=False and cuda=False leave nothing to record")
        if isinstance(self.rows, bool) or not isinstance(self.rows, int) or self.rows < 1:
            raise UsageError(f"rows={self.rows!r} is not a number of rows", hint="the minimum is 1")


def _ranks(wanted: int | Iterable[int] | None) -> Ranks:
    if wanted is None:
        return Ranks()
    numbers = [wanted] if isinstance(wanted, int) else list(wanted)
    if not numbers or not all(type(n) is int and n >= 0 for n in numbers):
        raise UsageError(
            f"ranks={wanted!r} is not a list of ranks", hint="write ranks=0 or ranks=[0, 4]"
        )
    return Ranks(frozenset(numbers))
