"""A window as a program: what each call and each piece of GPU work costs and waits for."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gpusight.analyses.schedule.schedule import Ints

    Flags = NDArray[np.bool_]


class Wait(enum.IntEnum):
    """What a call waits for before it returns."""

    NOTHING = 0
    DEVICE = 1
    """What was issued so far on the GPU that `Program.target` names."""
    QUEUE = 2
    """What was issued so far on the queue that `Program.target` names."""
    OP = 3
    """The piece of work that `Program.target` names."""


class Bound(enum.IntEnum):
    """From where the launch latency of a piece of work is counted."""

    CALL_END = 0
    CALL_START = 1
    FIXED = 2
    """It began at its measured time, whatever happens: it was issued before the window."""
    QUEUE = 3
    """No call is known: only the order of its queue holds it."""


@dataclass(frozen=True)
class Program:
    """Costs and dependencies; arrays by position in `Schedule.calls` and `Schedule.ops`.

    A call begins `gap_ns` after the one before it in its lane, not before the work `after_op` has
    ended; it ends after `own_ns`, not before what it waits for has ended and `tail_ns` have passed.
    Work begins `latency_ns` after its call, `queue_gap_ns` after the work before it in its queue
    and `needs_gap_ns` after the work it depends on.
    """

    start_ns: int
    end_ns: int
    """Measured end of the window."""

    lane: Ints
    gap_ns: Ints
    movable_ns: Ints
    """Part of the gap that is work of the framework or of launching: it goes when launches do."""
    own_ns: Ints
    mergeable: Flags
    """A call that goes when what it launches does: no allocation, no loading of code."""
    mark: Flags
    """No call: a step begins or ends there."""
    wait: Ints
    """`Wait`."""
    target: Ints
    tail_ns: Ints
    after_op: Ints
    after_ns: Ints

    call: Ints
    """Position of the call that issues a piece of work; for work without one, of the next call."""
    queue: Ints
    device: Ints
    engine: Ints
    """What does copies of its direction on its GPU, one at a time; `NONE` for other work."""
    duration_ns: Ints
    inside: NDArray[np.float64]
    """Part of it that lies in the window, by its measured duration."""
    bound: Ints
    """`Bound`."""
    latency_ns: Ints
    queue_gap_ns: Ints
    needs: Ints
    needs_gap_ns: Ints
    gone: Flags
    """Work that no longer exists."""

    trailing_ns: int
    """Time from the last end of anything to the end of the window."""
    counted: Flags
    """Calls whose ends count for the window's length."""

    def changed(self, **arrays: NDArray[np.generic]) -> Program:
        """Make a program that differs in these arrays."""
        return replace(self, **arrays)  # type: ignore[arg-type]


def put(values: Ints, where: Ints, new: Ints | int) -> Ints:
    """Copy an array with some values changed."""
    changed = values.copy()
    changed[where] = new
    return changed


def marked(flags: Flags, where: Ints) -> Flags:
    """Copy flags with some of them set."""
    changed = flags.copy()
    changed[where] = True
    return changed
