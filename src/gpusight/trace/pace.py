"""The step time of a program without a profiler, as the recorder stores it with a capture."""

from __future__ import annotations

import math

import msgspec

PACE_MARK = "gpusight.pace "
"""Start of the NVTX mark that holds it, in nsys and CUPTI captures; JSON follows."""
PACE_KEY = "gpusight_pace"
"""Key among the metadata of a torch.profiler trace that holds the same JSON."""
_HOW = {"before": "measured before the recording", "second run": "measured in a second run"}


GIVEN = "given"


class Pace(msgspec.Struct, frozen=True, kw_only=True):
    """The step time of a program without a profiler."""

    step_ns: float
    steps: int = 0
    """Steps that were timed; 0 where the user gave the time."""
    spread: float | None = None
    """Standard deviation of a step, as a part of its time."""
    how: str = GIVEN
    """How it is known, in words."""

    @property
    def option(self) -> str:
        """Return the option that gives it again; empty where it is known from the capture."""
        return "" if self.how != GIVEN else f" --pace {self.step_ns / 1e6:g}ms"

    @property
    def text(self) -> str:
        """Return how it is known, and from how many steps."""
        return f"{self.how}, {self.steps:,} steps" if self.steps else self.how


class _StoredPace(msgspec.Struct):
    mean_ns: float
    steps: int = 0
    spread: float | None = None
    how: str = ""


def parse_pace(stored: object) -> Pace | None:
    """Read what the recorder stored, as JSON text or read already; None where it is damaged."""
    try:
        fields = msgspec.json.decode(stored) if isinstance(stored, str) else stored
        pace = msgspec.convert(fields, _StoredPace)
    except (msgspec.MsgspecError, RecursionError):
        return None
    if not 0 < pace.mean_ns < math.inf or pace.steps < 0:
        return None
    if pace.spread is not None and not 0 <= pace.spread < math.inf:
        return None
    how = _HOW.get(pace.how, "measured")
    return Pace(step_ns=pace.mean_ns, steps=pace.steps, spread=pace.spread, how=how)
