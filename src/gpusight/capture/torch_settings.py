"""What `gs.torch_profile` and `gs.ProfilerCallback` can be asked for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypedDict

from gpusight.capture.request import Ranks
from gpusight.capture.schedule import Schedule
from gpusight.errors import UsageError

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable

Mode = Literal["auto", "torch", "nvtx"]
_MODES = ("auto", "torch", "nvtx")
OUTPUT_DIR = "profiler_output"


class Options(TypedDict, total=False):
    """The names and types of `Settings`, for type checkers; all but the folder and the schedule."""

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


class ScheduledOptions(Options, total=False):
    """With the schedule."""

    wait: int
    warmup: int
    active: int | None
    cycles: int


@dataclass(frozen=True)
class Settings:
    """When to record, what, and which files to write of it."""

    output_dir: str | os.PathLike[str] = OUTPUT_DIR
    """Everything that is written lies in here; see `artefacts.py` for the names."""
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
    schedule: Schedule = field(init=False)
    chosen: Ranks = field(init=False)

    def __post_init__(self) -> None:
        """Refuse what makes no sense, before a training begins."""
        schedule = Schedule(self.wait, self.warmup, self.active, self.cycles)
        object.__setattr__(self, "schedule", schedule)
        object.__setattr__(self, "chosen", _ranks(self.ranks))
        Path(self.output_dir)  # refuses what is no path
        if self.mode not in _MODES:
            raise UsageError(f"mode={self.mode!r} is unknown", hint=f"one of {', '.join(_MODES)}")
        if not (self.cpu or self.cuda):
            raise UsageError("cpu=False and cuda=False leave nothing to record")
        if isinstance(self.rows, bool) or not isinstance(self.rows, int) or self.rows < 1:
            raise UsageError(f"rows={self.rows!r} is no number of rows", hint="the least is 1")


def _ranks(wanted: int | Iterable[int] | None) -> Ranks:
    if wanted is None:
        return Ranks()
    numbers = [wanted] if isinstance(wanted, int) else list(wanted)
    if not numbers or not all(type(n) is int and n >= 0 for n in numbers):
        raise UsageError(f"ranks={wanted!r} names no ranks", hint="write ranks=0 or ranks=[0, 4]")
    return Ranks(frozenset(numbers))
