"""What a step is, the steps of a capture, and steps and times as people type them."""

from __future__ import annotations

import enum
import re
from dataclasses import dataclass

import polars as pl

from gpusight.errors import UsageError
from gpusight.units import AMOUNT, TIME_UNITS, Amount, parse_step_range

UNNAMED = "step"
"""What a step is called that is not one range of the program."""
_NO_PROCESS = -1
_LONGEST_NAME = 40
SCHEMA = {
    "name": pl.String(),
    "number": pl.Int64(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "process": pl.Int64(),
    "thread": pl.Int64(),
}


class StepEvidence(enum.Enum):
    """What says that something is a step, the surest first."""

    COUNTED = "counted"
    """Ranges whose names count."""
    NAMED = "named"
    """Ranges that repeat one name of a step."""
    CHOSEN = "chosen"
    """Ranges that the user named."""
    REPEATED = "repeated"
    """Ranges that repeat, whatever they are called."""
    PERIODIC = "periodic"
    """The kernels repeat themselves."""
    GRAPHS = "graphs"
    """Launches of one CUDA graph."""


@dataclass(frozen=True, slots=True)
class TraceStep:
    """One step, as the host saw it; GPU work that it launched may end later."""

    name: str
    number: int
    start_ns: int
    end_ns: int
    process: int | None = None
    thread: int | None = None


@dataclass(frozen=True, slots=True)
class TraceSteps:
    """The steps of a capture, in order of their start."""

    steps: tuple[TraceStep, ...]
    how: str = ""
    """How they were found, in words."""
    evidence: StepEvidence = StepEvidence.COUNTED

    @classmethod
    def of(cls, frame: pl.DataFrame, how: str, evidence: StepEvidence) -> TraceSteps:
        """Make steps of a frame with the columns of `SCHEMA`, in order of start."""
        rows = frame.select(*SCHEMA).iter_rows()
        return cls(tuple(TraceStep(*row) for row in rows), how, evidence)

    @property
    def frame(self) -> pl.DataFrame:
        """The steps as a table: name, number, start_ns, end_ns, process, thread."""
        return frame_of(self.steps)

    def holding(self, times: pl.Series, processes: pl.Series) -> pl.Series:
        """Give the position of the step that each moment of a process lies in; null for none."""
        moments = pl.DataFrame({"time": times, "process": processes.fill_null(_NO_PROCESS)})
        steps = self.frame.with_row_index("step").select(
            pl.col("step").cast(pl.Int64),
            pl.col("start_ns").alias("time"),
            "end_ns",
            pl.col("process").fill_null(_NO_PROCESS),
        )
        found = (
            moments.with_row_index("row")
            .sort("time")
            .join_asof(steps, on="time", by="process", strategy="backward", check_sortedness=False)
            .sort("row")
        )
        inside = pl.when(pl.col("time") < pl.col("end_ns")).then("step")
        return found.select(inside.alias("step"))["step"]


def frame_of(steps: tuple[TraceStep, ...]) -> pl.DataFrame:
    """Give steps as a table with the columns of `SCHEMA`."""
    rows = [(s.name, s.number, s.start_ns, s.end_ns, s.process, s.thread) for s in steps]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def called(step: TraceStep) -> str:
    """Name a step; with its number where the name does not say it."""
    name = shortened(step.name)
    return name if str(step.number) in name else f"{name} {step.number}"


def shortened(name: str) -> str:
    """Give a name that fits into a sentence."""
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"


ALL = "all"
_WINDOW = re.compile(rf"\s*(?:{AMOUNT})?\s*([-:])\s*(?:{AMOUNT})?\s*")
_STEPS_HINT = "write 5, 3-7, 2: or all"
_WINDOW_HINT = "write 1.2s-1.5s, 300ms- or 0-2s (ns, us, ms, s)"


def parse_steps(text: str) -> tuple[int | None, int | None] | None:
    """Read which steps by number, first and last, None for an open end; None for all."""
    return None if text.strip().lower() == ALL else parse_step_range(text, hint=_STEPS_HINT)


def parse_window(text: str) -> tuple[int | None, int | None]:
    """Read a window as nanoseconds from the capture's origin, None for an open end.

    A unit at the end holds for both: `1.2-1.5s`.
    """
    shown = repr(shortened(text))
    match = _WINDOW.fullmatch(text)
    if match is None or match[1] or match[5] or not (match[2] or match[6]):
        raise UsageError(f"--window {shown} is not a span of time", hint=_WINDOW_HINT)
    first, unit, last, last_unit = match.group(2, 3, 6, 7)
    begin = _ns(first, unit or last_unit, shown)
    end = _ns(last, last_unit, shown)
    if begin is not None and end is not None and end <= begin:
        raise UsageError(f"--window {shown} ends before it begins", hint=_WINDOW_HINT)
    return begin, end


def _ns(number: str | None, unit: str | None, shown: str) -> int | None:
    if number is None:
        return None
    if (unit or "").lower() not in TIME_UNITS:
        what = f"has no unit {shortened(unit)!r}" if unit else "has no unit"
        raise UsageError(f"--window {shown} {what}", hint=_WINDOW_HINT)
    value = Amount("", number, unit or "").scaled(TIME_UNITS)
    if value is None or value >= 2**63:
        raise UsageError(f"--window {shown} is beyond any capture", hint=_WINDOW_HINT)
    return round(value)
