"""The steps of a program: ranges whose names count, such as `ProfilerStep#5` or `train_step_12`.

Ranges belong to one family when their names are equal but for the numbers in them. A family is
steps when its name speaks of steps, iterations or batches (but not of an optimizer's or a
scheduler's own), it has at least two members, and no two of them overlap on a thread. PyTorch's
`ProfilerStep` wins over every other; among the rest, the family that takes most time, which is the
outer one where one lies inside another. Where no family counts, ranges that only repeat one such
name are taken, numbered as they come.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.statistics import DURATION, names_of
from gpusight.result import NotApplicable

if TYPE_CHECKING:
    from gpusight.model.trace import Trace

_WORDS = r"(?:steps?|iter(?:ation)?s?|(?:mini|micro)?batch(?:es)?|(?:train|time)steps?)"
_STEP = re.compile(rf"(?:^|[^a-z]){_WORDS}(?:[^a-z]|$)")
_COUNTED = re.compile(rf"(?:^|[^a-z]){_WORDS}[^a-z0-9]{{0,3}}(\d{{1,18}})(?!\d)")
_LAST_NUMBER = re.compile(r"(\d{1,18})\D*$")
_NOT_STEPS = re.compile(r"optim|sched|scaler|zero_?grad|\bopt\b")
PROFILER_STEP = "ProfilerStep#"
"""What the profiler of PyTorch calls its own steps, before their number."""
_PROFILER = "profiler step#"
_CAMEL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_LONGEST_NAME = 200
_HINTS = {
    "nsys": "put each step in a range that counts, such as torch.cuda.nvtx.range(f'step_{i}')",
    "torch": "call the profiler's step() once a step, or put each step in a range that counts, "
    "such as torch.profiler.record_function(f'step_{i}')",
    "jax": "put each step in jax.profiler.StepTraceAnnotation('train', step_num=i)",
}
"""By the first word of the capture's form."""


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

    @property
    def frame(self) -> pl.DataFrame:
        """The steps as a table: name, number, start_ns, end_ns, process, thread."""
        return pl.DataFrame(
            [(s.name, s.number, s.start_ns, s.end_ns, s.process, s.thread) for s in self.steps],
            schema=_SCHEMA,
            orient="row",
        )

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


_NO_PROCESS = -1
_SCHEMA = {
    "name": pl.String(),
    "number": pl.Int64(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "process": pl.Int64(),
    "thread": pl.Int64(),
}


def find_steps(trace: Trace) -> Steps | NotApplicable:
    """Find the steps of a capture by the names of its ranges."""
    if not trace.has("ranges"):
        return _absent(trace, "the capture has no ranges that could be steps")
    members = _members(trace)
    families = _families(members)
    if families.is_empty():
        return _absent(trace, "no ranges are named like steps that count")
    chosen = members.filter(pl.col("family") == families["family"][0])
    if not families["numbered"][0] and chosen.height > 1:
        chosen = chosen.with_columns(
            pl.int_range(pl.len()).over("process", "thread").alias("number")
        )
    rows = chosen.select(*_SCHEMA).iter_rows(named=True)
    return Steps(tuple(Step(**row) for row in rows))


def _absent(trace: Trace, reason: str) -> NotApplicable:
    return NotApplicable("steps", reason, _HINTS.get(trace.meta.source.partition("-")[0], ""))


def _members(trace: Trace) -> pl.DataFrame:
    """Give the ranges that are named like steps, with the family and number of each."""
    columns = ["start_ns", "end_ns", "name", "kind", "open", "process", "thread"]
    ranges = trace.table("ranges", columns).filter(
        pl.col("kind").cast(pl.String) != "mark", ~pl.col("open").fill_null(value=False)
    )
    code = ranges["name"].to_physical()
    names = names_of(ranges["name"])
    read = [(c, names[c], *found) for c in code.unique() if (found := read_name(names[c]))]
    known = pl.DataFrame(
        read,
        schema={"code": code.dtype, "name": pl.String, "family": pl.String, "number": pl.Int64},
        orient="row",
    )
    members = ranges.drop("name").with_columns(code.alias("code"))
    return members.join(known, on="code", maintain_order="left")


def read_name(name: str) -> tuple[str, int | None] | None:
    """Read a range's name: its family, and its number where it has one; None for no step."""
    text = _CAMEL.sub(" ", name[:_LONGEST_NAME]).lower()
    if not _STEP.search(re.sub(r"\d", " ", text)) or _NOT_STEPS.search(text):
        return None
    found = _COUNTED.search(text) or _LAST_NUMBER.search(text)
    number = int(found.group(1)) if found else None
    return re.sub(r"\d+", "#", text), number


def _families(members: pl.DataFrame) -> pl.DataFrame:
    """List the families that are steps, the best first."""
    own = ["family", "process", "thread"]
    overlaps = pl.col("start_ns") < pl.col("end_ns").cum_max().shift(1).over(own)
    return (
        members.with_columns(DURATION, overlaps.fill_null(value=False).alias("overlaps"))
        .group_by("family", maintain_order=True)
        .agg(
            pl.len().alias("members"),
            pl.col("duration_ns").sum(),
            pl.col("overlaps").any(),
            # A number that never changes, such as a batch size, does not count anything.
            (pl.col("number").n_unique() > 1).alias("numbered"),
        )
        .with_columns(pl.col("family").str.starts_with(_PROFILER).alias("profiler"))
        .filter((pl.col("members") >= 2) | pl.col("profiler"), ~pl.col("overlaps"))
        .sort(
            [pl.col("members") >= 2, "profiler", "numbered", "duration_ns"],
            descending=True,
            maintain_order=True,
        )
    )
