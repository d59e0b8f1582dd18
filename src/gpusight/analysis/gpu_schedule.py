"""What ran in a window, as arrays: GPU work, and the API calls of the threads that issued it."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.trace.intervals import Ints as Ints  # the rules import it from here
    from gpusight.trace.trace import Trace


NONE = -1
"""Stands for no row, no call, no work."""


class CallKind(enum.IntEnum):
    """What a call is for, as far as time is concerned."""

    LAUNCH = 0
    """Launches a kernel."""
    GRAPH = 1
    """Launches a whole graph."""
    COPY = 2
    FILL = 3
    SYNC = 4
    """Waits for a device, a stream or an event."""
    ALLOCATE = 5
    FREE = 6
    RECORD = 7
    """Records an event into a stream."""
    WAIT_EVENT = 8
    """Lets a stream wait for an event; the host does not wait."""
    OTHER = 9
    MARK = 10
    """No call: where a step begins or ends."""


class OpKind(enum.IntEnum):
    """Table that a piece of GPU work stands in."""

    KERNEL = 0
    COPY = 1
    FILL = 2
    GRAPH = 3

    @property
    def table(self) -> str:
        """Name of the table."""
        return ("kernels", "copies", "memsets", "graph_launches")[self]


@dataclass(frozen=True, slots=True)
class GpuOps:
    """GPU work, in order of start; all arrays have one entry a piece of work."""

    start_ns: Ints
    end_ns: Ints
    device: Ints
    queue: Ints
    """Number of its stream: process, context and stream together."""
    call: Ints
    """Position in `GpuSchedule.calls` of the call that issued it; `NONE` where not known."""
    kind: Ints
    """`OpKind`."""
    row: Ints
    """Row in the table of its kind."""
    carried: NDArray[np.bool_]
    """It was issued before the window began; it has no call then."""

    def __len__(self) -> int:
        """Count them."""
        return len(self.start_ns)


@dataclass(frozen=True, slots=True)
class ApiCalls:
    """API calls that are not inside another call, and marks, in order of start."""

    start_ns: Ints
    end_ns: Ints
    lane: Ints
    """Chain of host work that it is part of: within a lane one thing follows the other.

    A lane is a thread; where one thread hands its work to another and waits for it (autograd), the
    calls of the second are in the lane of the first.
    """
    thread: Ints
    """Number of the thread it really ran on: a position in `GpuSchedule.threads`."""
    kind: Ints
    """`CallKind`."""
    row: Ints
    """Row in `api_calls`; `NONE` for marks."""

    def __len__(self) -> int:
        """Count them."""
        return len(self.start_ns)


@dataclass(frozen=True)
class GpuSchedule:
    """What ran in a window."""

    trace: Trace
    start_ns: int
    end_ns: int
    ops: GpuOps
    """GPU work that ran in the window: issued in it, or before it and not yet done."""
    calls: ApiCalls
    threads: tuple[tuple[int, int], ...]
    """Process and thread, as the tables of the trace name them."""

    @property
    def length_ns(self) -> int:
        """How long the window is."""
        return self.end_ns - self.start_ns

    @cached_property
    def before_calls(self) -> Ints:
        """When the call before each one in its lane ended; the window's start for the first."""
        order = np.argsort(self.calls.lane, kind="stable")
        lane, end = self.calls.lane[order], self.calls.end_ns[order]
        before = np.concatenate(([self.start_ns], end[:-1]))[: len(order)]
        before[np.flatnonzero(lane[1:] != lane[:-1]) + 1] = self.start_ns
        ended = np.empty_like(end)
        ended[order] = before
        ended.setflags(write=False)
        return ended


@dataclass(frozen=True, slots=True)
class ScheduleTiming:
    """When everything of a schedule began and ended: as measured, or as a replay gives it."""

    op_start_ns: Ints
    op_end_ns: Ints
    call_start_ns: Ints
    call_end_ns: Ints
    start_ns: int
    end_ns: int


_VENDOR = r"^(?:cu|cuda|hip|hipExt|mu|musa)"
_KINDS = (
    (CallKind.GRAPH, re.compile(rf"{_VENDOR}GraphLaunch")),
    (CallKind.LAUNCH, re.compile(rf"{_VENDOR}(?:Module|Ext|Multi)?Launch(?!HostFunc)")),
    (CallKind.SYNC, re.compile(rf"{_VENDOR}(?:Device|Stream|Event|Ctx|Context|Thread)Synchronize")),
    (CallKind.COPY, re.compile(rf"{_VENDOR}Memcpy")),
    (CallKind.FILL, re.compile(rf"{_VENDOR}Memset")),
    (CallKind.RECORD, re.compile(rf"{_VENDOR}EventRecord")),
    (CallKind.WAIT_EVENT, re.compile(rf"{_VENDOR}StreamWaitEvent")),
    (
        CallKind.FREE,
        re.compile(rf"{_VENDOR}(?:Mem)?(?:Free|HostFree|HostUnregister|Unmap|Release|AddressFree)"),
    ),
    (
        CallKind.ALLOCATE,
        re.compile(
            rf"{_VENDOR}(?:Mem)?"
            r"(?:Malloc|Alloc|HostAlloc|HostRegister|HostMalloc|Create$|Map$|AddressReserve"
            r"|SetAccess|PoolCreate)"
        ),
    ),
)
HOST_FUNCTION = re.compile(rf"{_VENDOR}LaunchHostFunc")
"""Puts a function of the host into a stream: how JAX learns that work is done."""


def kind_of(name: str) -> CallKind:
    """Say what a call is for."""
    return next((kind for kind, names in _KINDS if names.search(name)), CallKind.OTHER)
