"""Pictures of a job: a heat map of ranks and steps, a bar for each rank, and an aligned step."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from typing import TYPE_CHECKING

import polars as pl

from gpusight.errors import MissingDataError
from gpusight.render.charts.figure import (
    ChartAxis,
    ChartStrip,
    StripAxis,
    StripCells,
    StripChart,
    StripJoin,
)
from gpusight.results import Fmt
from gpusight.units import format_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusight.analysis.ranks.job_ranks import JobRanks, RankSummary
    from gpusight.analysis.ranks.rank_steps import RankRow, RankSpan, StepTimeline


LEVELS = ("pale", "heat/1", "heat/2", "heat/3", "heat/4", "heat/5")
"""Colors of a heat map, from least to most."""
PARTS = {
    "compute_ns": ("compute/matmul", "compute"),
    "copy_ns": ("copy/h2d", "copies"),
    "transfer_ns": ("communication", "transfer"),
    "wait_ns": ("idle/waiting", "wait"),
    "idle_ns": ("idle/unknown", "idle"),
}
"""Parts of a rank's step, in the order of its bar: colors and names."""
MAX_HEAT_RANKS = 256
"""Ranks of a heat map; of more, those that were latest."""
_MAX_HEAT_STEPS = 120
"""Columns of a heat map; of more steps, each column has the largest value of several."""
_MAX_BARS = 32
_MAX_ALIGNED = 16
_NAMED_STEPS = 10
_TALL_RANKS, _LOW_HEIGHT = 64, 4.0
_MAX_JOINED, _MIN_JOINED_SHARE = 40, 0.005
"""Collectives that lines join: the longest, and none shorter than this part of the step."""
_FLOOR_SHARE = 0.01
"""Lateness and waits below this part of the step are of the lowest level."""
_MIN_SPREAD = 0.02
"""Step times that differ by less than this part are all of the lowest level."""


class HeatQuantity(Enum):
    """What a heat map shows: its column in `JobRanks.by_step`, and its name."""

    LATE = ("late_ns", "Later than the median rank")
    WAIT = ("wait_ns", "Wait for other ranks")
    STEP = ("step_ns", "Step time")

    @property
    def column(self) -> str:
        """Its column."""
        return self.value[0]

    @property
    def title(self) -> str:
        """Its name."""
        return self.value[1]


def known_quantities(job: JobRanks) -> list[HeatQuantity]:
    """Return what a heat map can show of a job."""
    if job.by_step is None:
        return []
    return [q for q in HeatQuantity if job.by_step[q.column].count()]


def rank_heat_map(job: JobRanks, quantity: HeatQuantity | None = None) -> StripChart:
    """Draw ranks (rows) by steps (columns); lateness, unless something else is chosen."""
    known = known_quantities(job)
    if job.by_step is None or not known:
        raise MissingDataError("a trace of operations has no heat map of ranks and steps")
    chosen = quantity or known[0]
    frame = job.by_step.drop_nulls(chosen.column)
    levels = HeatLevels.of(frame, chosen)
    first, at = heat_columns(frame)
    steps = len(at)
    ranks = heat_ranks(job, frame, chosen)
    height = 15.0 if len(ranks) <= _TALL_RANKS else _LOW_HEIGHT
    stride = max(1, -(-len(ranks) // _TALL_RANKS))
    strips = [
        ChartStrip(
            f"rank {rank}" if number % stride == 0 else "",
            _heat_cells(frame.filter(pl.col("rank") == rank), chosen, levels, at),
            height=height,
            gap=2.0 if height > _LOW_HEIGHT else 0.5,
        )
        for number, rank in enumerate(ranks)
    ]
    return StripChart(
        f"{chosen.title}, by rank and step",
        _step_axis(first),
        (*strips, StripAxis()),
        legend=levels.legend,
        footnotes=tuple(_heat_notes(job, ranks, steps, len(first))),
    )


@dataclass(frozen=True)
class HeatLevels:
    """Which color a value has."""

    floor_ns: float
    most_ns: float

    @classmethod
    def of(cls, frame: pl.DataFrame, quantity: HeatQuantity) -> HeatLevels:
        """Choose the levels for all values of a job."""
        values = frame[quantity.column].to_numpy()
        mean_step, most = float(frame["step_ns"].to_numpy().mean()), float(values.max())
        if quantity is HeatQuantity.STEP:
            return cls(float(values.min()) + _MIN_SPREAD * mean_step, most)
        return cls(_FLOOR_SHARE * mean_step, most)

    def level(self, value_ns: float) -> int:
        """Return the position in `LEVELS`."""
        if value_ns <= self.floor_ns or self.most_ns <= self.floor_ns:
            return 0
        part = (value_ns - self.floor_ns) / (self.most_ns - self.floor_ns)
        return min(len(LEVELS) - 1, 1 + int(part * (len(LEVELS) - 1)))

    @property
    def legend(self) -> tuple[tuple[str, str], ...]:
        """Name each level by its largest value."""
        if self.most_ns <= self.floor_ns:
            return ((LEVELS[0], f"up to {format_time(self.floor_ns, digits=3)}"),)
        steps = len(LEVELS) - 1
        tops = [
            self.floor_ns + (self.most_ns - self.floor_ns) * n / steps for n in range(steps + 1)
        ]
        return tuple(
            (color, f"up to {format_time(top, digits=3)}")
            for color, top in zip(LEVELS, tops, strict=True)
        )


def heat_columns(frame: pl.DataFrame) -> tuple[list[int], dict[int, int]]:
    """Return the first step of each column, and the column of each step."""
    steps = frame["step"].unique().sort().to_list()
    columns = -(-len(steps) // max(1, -(-len(steps) // _MAX_HEAT_STEPS)))
    at = {step: place * columns // len(steps) for place, step in enumerate(steps)}
    first = {column: step for step, column in reversed(at.items())}
    return [first[column] for column in range(columns)], at


def heat_ranks(
    job: JobRanks, frame: pl.DataFrame, quantity: HeatQuantity, most: int = MAX_HEAT_RANKS
) -> list[int]:
    """Return the ranks that are drawn, in order: where there are many, those with most of it."""
    ranks = sorted(rank.rank for rank in job.ranks)
    if len(ranks) <= most:
        return ranks
    sums = frame.group_by("rank").agg(pl.col(quantity.column).sum())
    top = sums.sort(quantity.column, "rank", descending=[True, False]).head(most)
    return sorted(top["rank"].to_list())


def _heat_cells(
    frame: pl.DataFrame, quantity: HeatQuantity, levels: HeatLevels, at: dict[int, int]
) -> StripCells:
    """Draw the steps of a rank; of several in one column, the one with most."""
    worst: dict[int, dict[str, int]] = {}
    for row in frame.iter_rows(named=True):
        column = at[row["step"]]
        if column not in worst or row[quantity.column] > worst[column][quantity.column]:
            worst[column] = row
    columns = sorted(worst)
    return StripCells(
        tuple(float(c) - 0.5 for c in columns),
        tuple(float(c) + 0.5 for c in columns),
        tuple(LEVELS[levels.level(worst[c][quantity.column])] for c in columns),
        titles=tuple(cell_title(worst[c]) for c in columns),
    )


def cell_title(row: dict[str, int]) -> str:
    """Describe a rank in a step."""
    late, wait = row["late_ns"], row["wait_ns"]
    parts = [f"rank {row['rank']}, step {row['step']}: {format_time(row['step_ns'], digits=3)}"]
    parts += [] if late is None else [f"late {format_time(late, digits=3)}"]
    parts += [] if wait is None else [f"wait {format_time(wait, digits=3)}"]
    return ", ".join(parts)


def _step_axis(first: Sequence[int]) -> ChartAxis:
    """Name some of the columns by their first step."""
    stride = max(1, -(-len(first) // _NAMED_STEPS))
    named = {place: str(step) for place, step in enumerate(first) if place % stride == 0}
    return ChartAxis(
        "step",
        Fmt.COUNT,
        low=-0.5,
        high=len(first) - 0.5,
        names=tuple(named.get(place, "") for place in range(len(first))),
    )


def _heat_notes(job: JobRanks, ranks: list[int], steps: int, columns: int) -> Iterator[str]:
    if len(ranks) < len(job.ranks):
        yield f"{len(ranks)} of {len(job.ranks):,} ranks are drawn: those with most."
    if columns < steps:
        yield f"{steps:,} steps in {columns} columns: each shows the largest value of its steps."


# By rank ------------------------------------------------------------------------------------------


def rank_bars(job: JobRanks) -> StripChart:
    """Draw the step of each rank as a bar of its parts."""
    shown = most_waited_for(job, _MAX_BARS)
    longest = max((rank.step_ns for rank in shown), default=1.0)
    strips = [ChartStrip(f"rank {rank.rank}", _parts(rank), height=18.0) for rank in shown]
    notes = (
        [f"{len(shown)} of {len(job.ranks):,} ranks are drawn: those that others wait for most."]
        if len(shown) < len(job.ranks)
        else []
    )
    return StripChart(
        "Step of each rank",
        ChartAxis("time per step", Fmt.TIME, low=0.0, high=longest),
        (*strips, StripAxis()),
        legend=tuple(PARTS.values()),
        footnotes=tuple(notes),
    )


def most_waited_for(job: JobRanks, most: int) -> list[RankSummary]:
    """Return all ranks in order, or of many those that others wait for most."""
    waited = sorted(job.ranks, key=lambda r: (-(r.caused_wait_ns or 0), r.rank))[:most]
    return sorted(waited, key=lambda rank: rank.rank)


def _parts(rank: RankSummary) -> StripCells:
    x, ends, colors, labels, titles = [], [], [], [], []
    at = 0.0
    for key, (color, name) in PARTS.items():
        ns = float(getattr(rank, key) or 0.0)
        if ns <= 0:
            continue
        x.append(at)
        at += ns
        ends.append(at)
        colors.append(color)
        labels.append(format_time(ns, digits=3))
        titles.append(f"rank {rank.rank}: {name} {format_time(ns, digits=3)}/step")
    return StripCells(
        tuple(x), tuple(ends), tuple(colors), labels=tuple(labels), brief=("",) * len(x),
        titles=tuple(titles),
    )  # fmt: skip


# One step, aligned --------------------------------------------------------------------------------


def aligned_step(step: StepTimeline) -> StripChart:
    """Draw the ranks of a step on one clock; lines join the ends of each collective."""
    rows = _aligned_rows(step)
    strips = [ChartStrip(f"rank {r.rank}", _step_cells(r), height=22.0, gap=14.0) for r in rows]
    notes = []
    if len(rows) < len(step.rows):
        notes = [f"{len(rows)} of {len(step.rows):,} ranks are drawn, the latest among them."]
    return StripChart(
        f"Step {step.step}, all ranks on one clock",
        ChartAxis(
            f"time since the start of step {step.step}",
            Fmt.TIME,
            low=0.0,
            high=float(step.length_ns),
        ),
        (*strips, StripAxis()),
        legend=(
            ("compute/other", "own time: compute, copies, host"),
            PARTS["wait_ns"],
            PARTS["transfer_ns"],
        ),
        joins=tuple(_joins(rows, step.length_ns)),
        footnotes=tuple(notes),
    )


def _aligned_rows(step: StepTimeline) -> list[RankRow]:
    """Return the rows that are drawn: of many, the latest rank and its neighbors."""
    place = next(n for n, row in enumerate(step.rows) if row.rank == step.rank)
    first = min(max(0, place - _MAX_ALIGNED // 2), max(0, len(step.rows) - _MAX_ALIGNED))
    return list(step.rows[first : first + _MAX_ALIGNED])


def _step_cells(row: RankRow) -> StripCells:
    """Draw own time from the start of the step to its end, and collectives over it."""
    x, ends = [float(row.step_start_ns)], [float(row.step_end_ns)]
    colors, titles = ["compute/other"], [_own_title(row)]
    for span in row.spans:
        for start, end, part in (
            (span.start_ns, span.transfer_start_ns, "wait_ns"),
            (span.transfer_start_ns, span.end_ns, "transfer_ns"),
        ):
            if end > start:
                x.append(float(start))
                ends.append(float(end))
                colors.append(PARTS[part][0])
                titles.append(_span_title(row, span, part, end - start))
    return StripCells(tuple(x), tuple(ends), tuple(colors), titles=tuple(titles))


def _own_title(row: RankRow) -> str:
    return f"rank {row.rank}: {format_time(row.step_end_ns - row.step_start_ns, digits=3)}"


def _span_title(row: RankRow, span: RankSpan, part: str, ns: int) -> str:
    return f"rank {row.rank}: {PARTS[part][1]} {format_time(ns, digits=3)} in {span.kind}"


def _joins(rows: list[RankRow], length_ns: int) -> Iterator[StripJoin]:
    """Join the ends of the longest collectives; lines between all of many would hide the rest."""
    longest: dict[int, int] = {}
    for span in (span for row in rows for span in row.spans if span.collective >= 0):
        ns = span.end_ns - span.start_ns
        longest[span.collective] = max(ns, longest.get(span.collective, 0))
    kept = {at for at, ns in longest.items() if ns >= _MIN_JOINED_SHARE * length_ns}
    drawn = set(sorted(kept, key=lambda at: -longest[at])[:_MAX_JOINED])
    for upper, (row, below) in enumerate(pairwise(rows)):
        ends = {span.collective: span.end_ns for span in below.spans}
        for span in row.spans:
            if span.collective in drawn and span.collective in ends:
                yield StripJoin(upper, upper + 1, span.end_ns, ends[span.collective])
