"""Why a GPU had nothing to do."""

from __future__ import annotations

import enum

IDLE = "idle"


class Cause(enum.IntEnum):
    """What held the next piece of GPU work back: the device itself, or what the host did."""

    QUEUED = 0
    """It had been launched: another stream, an event or another program came first."""
    SYNCHRONISING = 1
    """The host waited for the GPU, or was just returning from that."""
    ALLOCATING = 2
    """The host took or gave back memory."""
    LAUNCHING = 3
    """The host was inside a call that launches, or the launch was on its way to the GPU."""
    INPUT = 4
    """The host read, waited for or prepared data."""
    FRAMEWORK = 5
    """The host ran operators, or Python between launches."""
    OTHER = 6
    """The host did other work: loading code, compiling, waiting for another thread."""
    PROFILER = 7
    """The profiler itself was at work."""
    UNKNOWN = 8
    """The capture does not say."""

    @property
    def entry(self) -> str:
        """Name of its entry in the ledger."""
        return f"{IDLE}/{self.name.lower()}"
