"""What a comparison needs to know about a capture: small enough to be kept in a repository.

Times of steps vary, so every quantity is kept as a series: its mean a step, in blocks of
consecutive steps. With few steps a block is a step. Where no steps are known, the whole window
stands for one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

FORMAT = 2
"""Raise it when a meaning changes; files of another format are refused."""
MOST_BLOCKS = 50
"""Blocks that the steps of a capture are joined to."""

Series: TypeAlias = tuple[float, ...]
"""One value for each block: the mean a step."""


class Kernels(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The launches of one kernel inside one range, in steps only."""

    name: str
    short: str
    """What people call it."""
    category: str
    range: str | None
    """Innermost range that it was launched in, without numbers that count; None for none."""
    ns: Series
    """Durations, summed over GPUs."""
    calls: Series


class Calls(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Ranges, or API calls, of one name, from the start of a step to that of the next."""

    name: str
    calls: Series
    host_ns: Series
    """Durations on the host, summed over threads."""
    gpu_ns: Series | None = None
    """GPU work launched inside; None where that is not known, and for API calls."""
    outer: bool = False
    """Most of its time is on the thread of the steps, inside no other range but the step."""


class Copies(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Copies or fills of one direction between two kinds of memory, from step to step."""

    operation: str
    src_kind: str | None
    dst_kind: str | None
    calls: Series
    ns: Series
    bytes: Series


class Found(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A finding of `diagnose`."""

    rule: str
    title: str
    step_ns: float | None
    """Time a step that its fix gives back; None: not a matter of time."""
    share: float | None
    confidence: str


class Digest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One capture, summed up."""

    label: str
    """Name of the file, without the folders it lies in."""
    tool: str
    """Who made the capture, with its version."""
    gpus: tuple[str, ...]
    """Names of the GPUs that worked, one for each."""
    steps: int
    """How many stand for the program; 0 where none are known, and the window stands for one."""
    steps_left_out: int
    steps_found: str
    """How they were found, in words."""
    blocks: tuple[int, ...]
    """Steps in each block, in order of time; (1,) where no steps are known."""
    step_ns: Series
    """From the start of a step, or when the one before was done, until its GPU work was done."""
    between_ns: Series
    """Time after a step in which neither it nor the next one ran. After the last one, where
    nothing follows, it counts as usual; so do ranges, calls and copies of that time."""
    median_ns: float
    """Of all steps, as are the next two."""
    min_ns: float
    max_ns: float
    ledger: dict[str, Series]
    """By entry, mean over GPUs; the entries of a block sum to its `step_ns`."""
    between: dict[str, Series]
    """The same of the time between steps; the entries of a block sum to its `between_ns`."""
    kernel_ns: Series
    """Durations of all kernels that steps launched, summed over GPUs: what is evaluated now and
    then between steps does not blur it."""
    phases: dict[str, Series]
    """Durations of GPU work of steps by phase, summed over GPUs; empty where phases are not
    known."""
    kernels: tuple[Kernels, ...]
    """They sum to `kernel_ns`. The most expensive first; the rest as one row with an empty name."""
    order: tuple[int, ...]
    """Launches of the median step, in order, as positions in `kernels`; empty when too many."""
    ranges: tuple[Calls, ...]
    api: tuple[Calls, ...]
    copies: tuple[Copies, ...]
    memory_peak: dict[str, int]
    """Largest number of bytes in use at once, by GPU; empty where that is not known."""
    findings: tuple[Found, ...]
    """The one that gives most back first."""
    missing: dict[str, str]
    """Parts that the capture cannot tell, and why: `memory_peak`, `ranges`, `findings` …"""
    notes: tuple[str, ...]
    """What a reader must know about the capture."""
    launch_calls: float | None = None
    """Kernel and graph launch calls per step; None where no API calls were recorded."""
    processes: int = 1
    """Processes that used a GPU."""
    lost: dict[str, str] = {}
    """Sources that were traced but lack rows, and how that shows: `kernels`, `copies`, `memsets`.
    What is summed over them is too small, so it is missing rather than 0."""
    not_evaluated: dict[str, str] = {}
    """Rules of `diagnose` that lacked data, and why: a finding of theirs is not known."""
    reported_losses: tuple[str, ...] = ()
    """What the reader or the profiler reports as missing from the capture."""
    scope: str = ""
    """The options that chose a part of the capture, as they are typed; empty where all counts."""

    def entries(self) -> Iterator[tuple[str, Series]]:
        """Give the entries from one step to the next: of the steps, then of what lies between."""
        yield from self.ledger.items()
        yield from self.between.items()

    def document(self) -> dict[str, Any]:
        """Give it as plain objects, for JSON."""
        found: dict[str, Any] = msgspec.to_builtins(self)
        return found
