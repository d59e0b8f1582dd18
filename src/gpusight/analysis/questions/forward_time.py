"""(a) How long a forward pass takes, and whether wall-clock timings agree."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analysis.aggregates import shown_if_filled
from gpusight.analysis.questions.question_program import QuestionAnswer
from gpusight.analysis.selection import GPU_WORK
from gpusight.results import Field, Fmt, NotApplicable, TableResult
from gpusight.units import format_time

if TYPE_CHECKING:
    from gpusight.analysis.questions.question_program import QuestionProgram
    from gpusight.analysis.questions.wall_clock_timings import WallClockTimings


TIME_FIELDS = (
    Field("measure", "Forward pass", Fmt.TEXT, "What was measured: one of the four, or wall clock"),
    Field("mean_ns", "Mean", Fmt.TIME, "Average over the passes"),
    Field("stddev_ns", "StdDev", Fmt.TIME, "Sample standard deviation; null for a single pass"),
    Field("wall_clock_difference", "Wall clock says", Fmt.SHARE, "How much more, or less"),
    Field("min_ns", "Min", Fmt.TIME, "Shortest"),
    Field("max_ns", "Max", Fmt.TIME, "Longest"),
    Field("repeats", "Repeats", Fmt.COUNT, "Passes, or rows of the timings"),
    Field("means", "What it is", Fmt.NAME, "What was measured", shown=False),
)
PASS_FIELDS = (
    Field("pass", "Pass", Fmt.ID, "Number of the pass, from 0"),
    Field("host_ns", "Host", Fmt.TIME, "From its begin to its end on the host"),
    Field("complete_ns", "Complete", Fmt.TIME, "From its begin to the end of its GPU work"),
    Field("gpu_ns", "GPU", Fmt.TIME, "From the begin of its first GPU work to the end of its last"),
    Field("kernel_ns", "Kernels", Fmt.TIME, "Sum of the durations of its kernels"),
    Field("launches", "Kernels run", Fmt.COUNT, "Kernels that it launched"),
    Field("start_ns", "Begins", Fmt.TIME, "Begin on the host, from the capture's origin"),
    Field("name", "Range", Fmt.NAME, "Range or step that it is"),
)
HOST, COMPLETE, WALL_CLOCK = "on the host", "until its GPU work is done", "wall clock"
_MEANS = {
    HOST: "The range on the host, which ends when its work is launched",
    COMPLETE: "From the begin of the range to the end of its GPU work",
    "on the GPU": "From the begin of its first GPU work to the end of its last",
    "sum of its kernels": "Sum of the durations of its kernels",
}
_COLUMNS = dict(zip(_MEANS, ("host_ns", "complete_ns", "gpu_ns", "kernel_ns"), strict=True))
_CLOSE = 0.05
"""Two means that differ by less are said to agree: runs of one program differ by so much."""


def forward_time(
    program: QuestionProgram, timings: WallClockTimings | None
) -> QuestionAnswer | NotApplicable:
    """Time the forward passes, and compare with wall-clock timings."""
    if isinstance(program.passes, NotApplicable):
        return program.passes
    each = _each(program)
    wall, notes = (None, ()) if timings is None else timings.near(_mean(each, "complete_ns"))
    rows = [_row(measure, each[column], wall) for measure, column in _COLUMNS.items()]
    rows = [row for row in rows if row["mean_ns"] is not None]
    if wall is not None:
        rows.append({**wall, "measure": WALL_CLOCK, "wall_clock_difference": None})
    frame = _frame(rows)
    return QuestionAnswer(
        _sentence(rows, each.height),
        {"passes": each.height, "found_by": program.passes.how, **_numbers(rows)},
        (
            TableResult(
                "forward_time",
                "(a) Time of a forward pass",
                shown_if_filled(TIME_FIELDS, frame),
                frame,
            ),
            TableResult("passes", "(a) Every forward pass", PASS_FIELDS, each),
        ),
        notes,
    )


def _each(program: QuestionProgram) -> pl.DataFrame:
    """Time every pass; GPU times are null where it launched no kernel."""
    assert not isinstance(program.passes, NotApplicable), "there are passes"
    kernel = pl.col("table") == GPU_WORK.index("kernels")
    work = (
        program.work.filter(pl.col("pass").is_not_null())
        .group_by("pass")
        .agg(
            pl.col("start_ns").min().alias("first_ns"),
            pl.col("end_ns").max().alias("last_ns"),
            pl.col("duration_ns").filter(kernel).sum().alias("kernel_ns"),
            kernel.sum().cast(pl.Int64).alias("launches"),
        )
    )
    begin, end = pl.col("start_ns"), pl.col("end_ns")
    done = pl.when(pl.col("last_ns").is_not_null()).then(pl.max_horizontal(end, "last_ns"))
    return (
        program.passes.frame.with_row_index("pass")
        .with_columns(pl.col("pass").cast(pl.Int64))
        .join(work, on="pass", how="left", maintain_order="left")
        .with_columns(
            (end - begin).alias("host_ns"),
            (done - begin).alias("complete_ns"),
            (pl.col("last_ns") - pl.col("first_ns")).alias("gpu_ns"),
            pl.col("launches").fill_null(0),
        )
        .select(f.key for f in PASS_FIELDS)
    )


def _mean(each: pl.DataFrame, column: str) -> float | None:
    """Average over the passes; of the host's times where no GPU work is known."""
    found: Any = each[column].mean()
    return float(each["host_ns"].mean()) if found is None else float(found)  # type: ignore[arg-type]


def _row(measure: str, values: pl.Series, wall: dict[str, Any] | None) -> dict[str, Any]:
    known = values.drop_nulls()
    mean: Any = known.mean()
    return {
        "measure": measure,
        "mean_ns": mean,
        "stddev_ns": known.std(),
        "min_ns": known.min(),
        "max_ns": known.max(),
        "repeats": len(known),
        "wall_clock_difference": None if wall is None or not mean else wall["mean_ns"] / mean - 1,
        "means": _MEANS[measure],
    }


def _frame(rows: list[dict[str, Any]]) -> pl.DataFrame:
    schema = {f.key: pl.Float64() for f in TIME_FIELDS} | {
        "measure": pl.String(),
        "repeats": pl.Int64(),
        "means": pl.String(),
    }
    return pl.DataFrame(rows, schema=schema)


def _differs(difference: float) -> str:
    """Say how far one time is from another: `2.3% more`."""
    return f"{abs(difference):,.1%} {'more' if difference >= 0 else 'less'}"


def _numbers(rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Give each mean and deviation, and how far wall clock is from it."""
    keys = {**_COLUMNS, WALL_CLOCK: "wall_clock_ns"}
    numbers: dict[str, Any] = {}
    for row in rows:
        key = keys[row["measure"]].removesuffix("_ns")
        numbers |= {f"{key}_ns": row["mean_ns"], f"{key}_stddev_ns": row["stddev_ns"]}
        if row["wall_clock_difference"] is not None:
            numbers[f"wall_clock_against_{key}"] = row["wall_clock_difference"]
    return numbers


def _sentence(rows: list[dict[str, Any]], count: int) -> str:
    by = {row["measure"]: row for row in rows}
    passes = "1 pass" if count == 1 else f"{count:,} passes"
    text = f"A forward pass takes {_spread(by[HOST])} on the host"
    if COMPLETE in by and by[COMPLETE]["mean_ns"] == by[HOST]["mean_ns"]:
        text += ", by when its GPU work is done"
    elif COMPLETE in by:
        text += f", {_spread(by[COMPLETE])} until its GPU work is done"
    text += f" ({passes})"
    if WALL_CLOCK not in by:
        return text + "."
    against = by.get(COMPLETE, by[HOST])
    differs = against["wall_clock_difference"]
    verdict = "agrees" if abs(differs) < _CLOSE else "does not agree"
    wall = f"wall clock says {_spread(by[WALL_CLOCK])}, {_differs(differs)}"
    host = f" ({_differs(by[HOST]['wall_clock_difference'])} than on the host)"
    return f"{text}; {wall}{host if COMPLETE in by else ''}: it {verdict}."


def _spread(row: dict[str, Any]) -> str:
    spread = row["stddev_ns"]
    return format_time(row["mean_ns"]) + ("" if spread is None else f" ± {format_time(spread)}")
