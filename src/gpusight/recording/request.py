"""What somebody wants recorded, whichever tool does it."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusight.errors import UsageError
from gpusight.recording.inside.stack_sampler import LAUNCHING, MAX_HZ, MIN_HZ
from gpusight.units import parse_step_range

if TYPE_CHECKING:
    from pathlib import Path


ALL_RANKS = "all"
_STEPS_HINT = "write --steps 3-7, 5 or 3: (counted from 0, both ends included)"
_RANKS_HINT = "write --rank 0, --rank 0,4 or --rank all"


class Tool(str, enum.Enum):
    """What can make a capture."""

    NSYS = "nsys"
    NCU = "ncu"
    TORCH = "torch"
    CUPTI = "cupti"

    @property
    def suffix(self) -> str:
        """What its captures' names end in."""
        return _SUFFIXES[self]


_SUFFIXES = {
    Tool.NSYS: ".nsys-rep",
    Tool.NCU: ".ncu-rep",
    Tool.TORCH: ".trace.json.gz",
    Tool.CUPTI: ".sqlite",
}


class NcuLevel(str, enum.Enum):
    """How much Nsight Compute measures of each kernel: more takes longer."""

    QUICK = "quick"
    DETAIL = "detail"
    FULL = "full"


@dataclass(frozen=True)
class RecordedSteps:
    """Steps by number, counted from 0, both ends included; `last` None: to the end."""

    first: int
    last: int | None

    @classmethod
    def read(cls, text: str) -> RecordedSteps:
        """Read `3-7`, `3:7`, `5` or `3:`."""
        first, last = parse_step_range(text, hint=_STEPS_HINT)
        if first is None:
            raise UsageError(f"--steps {text!r} has no first step", hint=_STEPS_HINT)
        return cls(first, last)

    def __str__(self) -> str:
        """Return the text that parses to this value."""
        return f"{self.first}:" if self.last is None else f"{self.first}-{self.last}"


@dataclass(frozen=True)
class Ranks:
    """Which processes of a distributed run are recorded; None: all of them."""

    chosen: frozenset[int] | None = None

    @classmethod
    def read(cls, text: str) -> Ranks:
        """Read `0`, `0,4` or `all`."""
        if text.strip().lower() == ALL_RANKS:
            return cls(None)
        parts = [part.strip() for part in text.split(",")]
        if not all(part.isdecimal() and len(part) < 10 for part in parts):
            raise UsageError(f"--rank {text!r} is not a list of ranks", hint=_RANKS_HINT)
        return cls(frozenset(map(int, parts)))

    def include(self, rank: int | None) -> bool:
        """Return whether this rank is recorded; a process without a rank always is."""
        return self.chosen is None or rank is None or rank in self.chosen

    def __str__(self) -> str:
        """Return the text that parses to this value."""
        return ALL_RANKS if self.chosen is None else ",".join(map(str, sorted(self.chosen)))


@dataclass(frozen=True)
class RecordRequest:
    """A program and what to record of it.

    At most one of `range_name`, `steps`, `delay_s`/`duration_s` and `whole` sets the time. Without
    them it is a window: warm-up, steps timed without the profiler, recorded steps. `tool` None: the
    best that this machine has. `output` None: a name made from the program's.
    """

    program: tuple[str, ...]
    tool: Tool | None = None
    output: Path | None = None
    range_name: str | None = None
    """An NVTX range, `NAME` or `NAME@DOMAIN`; recording is on while it is open."""
    steps: RecordedSteps | None = None
    delay_s: float | None = None
    duration_s: float | None = None
    whole: bool = False
    """Everything from start to end."""
    warmup: int | None = None
    timed: int | None = None
    recorded: int | None = None
    """Steps of each part of the window; None: as many as it takes."""
    pace: bool = False
    """Run the program without a profiler before, for a limited time, to measure its pace."""
    memory: bool = False
    gpu_metrics: bool = False
    shapes: bool = False
    """Input shapes of operators, with torch.profiler."""
    python_stacks: bool = False
    graph_nodes: bool = False
    stacks_hz: float | None = None
    """How often Python stacks are sampled inside the program; None: the default; 0: never."""
    stacks_threads: str = LAUNCHING
    ranks: Ranks = Ranks()
    stop: bool = False
    """End the program when everything requested is recorded."""
    overwrite: bool = False
    kernel: str | None = None
    """Nsight Compute only: a regular expression that kernel names must match."""
    launch_skip: int | None = None
    launch_count: int | None = None
    level: NcuLevel = NcuLevel.QUICK
    extra: tuple[str, ...] = ()
    """Options handed to nsys or ncu as they are, after ours."""

    def __post_init__(self) -> None:
        """Refuse what contradicts itself, whichever tool is used."""
        if not self.program:
            raise UsageError("no program was given", hint="gpusight record -- python train.py")
        by_time = self.delay_s is not None or self.duration_s is not None
        chosen = (self.range_name is not None, self.steps is not None, by_time, self.whole)
        if sum(chosen) > 1:
            raise UsageError(
                "--range, --steps, --delay/--duration and --whole cannot be combined",
                hint="use one of them",
            )
        if any(chosen) and self.has_window_numbers:
            raise UsageError(
                "--warmup, --timed and --recorded are numbers of steps of the default window",
                hint="remove them, or remove --range, --steps, --delay, --duration and --whole",
            )
        self._check_numbers()
        is_endless = self.whole or self.delay_s is not None or self.steps is not None
        if self.stop and is_endless and not self.is_partial:
            raise stop_without_end()

    def _check_numbers(self) -> None:
        """Refuse times and counts of which no tool can make anything, `nan` among them."""
        least = {
            "--delay": (self.delay_s, 0, "0 s or more"),
            "--launch-skip": (self.launch_skip, 0, "0 or more"),
            "--launch-count": (self.launch_count, 1, "1 or more"),
            "--warmup": (self.warmup, 0, "0 or more"),
            "--timed": (self.timed, 0, "0 or more"),
            "--recorded": (self.recorded, 1, "1 or more"),
        }
        if self.stacks_hz and not MIN_HZ <= self.stacks_hz <= MAX_HZ:
            raise UsageError(
                f"--stacks {self.stacks_hz:g} is not valid", hint=f"use {MIN_HZ} to {MAX_HZ} Hz"
            )
        for option, (value, smallest, wanted) in least.items():
            if value is not None and not smallest <= value < math.inf:
                raise UsageError(f"{option} {value} is not valid", hint=f"use {wanted}")
        if self.duration_s is not None and not 0 < self.duration_s < math.inf:
            raise UsageError(
                f"--duration {self.duration_s} is not valid",
                hint="use more than 0 s, or remove it",
            )

    @property
    def has_window_numbers(self) -> bool:
        """Return whether the user gave numbers of steps for the default window."""
        return any(number is not None for number in (self.warmup, self.timed, self.recorded))

    @property
    def may_be_windowed(self) -> bool:
        """Return whether nothing else sets when to record."""
        by_time = self.delay_s is not None or self.duration_s is not None
        return not (self.whole or by_time or self.range_name is not None or self.steps is not None)

    @property
    def is_partial(self) -> bool:
        """Return whether recording surely ends before the program does."""
        ends = self.steps is not None and self.steps.last is not None
        return self.range_name is not None or ends or self.duration_s is not None


def stop_without_end() -> UsageError:
    """Return the error of `--stop` where recording ends with the program."""
    return UsageError(
        "--stop needs a part of the program to record",
        hint="add --range, --steps, --duration or --launch-count",
    )
