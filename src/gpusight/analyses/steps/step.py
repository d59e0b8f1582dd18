"""What a step is, and the steps of a capture."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import polars as pl

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


class Evidence(enum.Enum):
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
class Step:
    """One step, as the host saw it; GPU work that it launched may end later."""

    name: str
    number: int
    start_ns: int
    end_ns: int
    process: int | None = None
    thread: int | None = None


@dataclass(frozen=True, slots=True)
class Steps:
    """The steps of a capture, in order of their start."""

    steps: tuple[Step, ...]
    how: str = ""
    """How they were found, in words."""
    evidence: Evidence = Evidence.COUNTED

    @classmethod
    def of(cls, frame: pl.DataFrame, how: str, evidence: Evidence) -> Steps:
        """Make steps of a frame with the columns of `SCHEMA`, in order of start."""
        rows = frame.select(*SCHEMA).iter_rows()
        return cls(tuple(Step(*row) for row in rows), how, evidence)

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


def frame_of(steps: tuple[Step, ...]) -> pl.DataFrame:
    """Give steps as a table with the columns of `SCHEMA`."""
    rows = [(s.name, s.number, s.start_ns, s.end_ns, s.process, s.thread) for s in steps]
    return pl.DataFrame(rows, schema=SCHEMA, orient="row")


def called(step: Step) -> str:
    """Name a step; with its number where the name does not say it."""
    name = shortened(step.name)
    return name if str(step.number) in name else f"{name} {step.number}"


def shortened(name: str) -> str:
    """Give a name that fits into a sentence."""
    return name if len(name) <= _LONGEST_NAME else f"{name[: _LONGEST_NAME - 1]}…"
