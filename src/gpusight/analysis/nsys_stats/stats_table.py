"""The table of an nsys stats report: headings, cells, owners, summary statistics."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.aggregates import DURATION, share_of
from gpusight.analysis.capture_gpus import device_names

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from gpusight.trace.trace import Trace


_TENTH = Decimal("0.1")


class StatsCell(enum.Enum):
    """How a value is printed, so that equal values give the text that `nsys stats` gives."""

    TEXT = "text"
    WHOLE = "whole"
    TENTHS = "tenths"
    """One decimal; an exact tie rounds away from zero."""
    MEGA = "mega"
    """Millions of the unit with three decimals."""
    HEX = "hex"

    @property
    def decimals(self) -> int:
        """How many digits follow the decimal point."""
        return {StatsCell.TENTHS: 1, StatsCell.MEGA: 3}.get(self, 0)


@dataclass(frozen=True, slots=True)
class StatsColumn:
    """One column of a report: its heading, units included, and how its values are printed."""

    header: str
    cell: StatsCell


@dataclass(frozen=True)
class StatsReport:
    """The rows of one report. `frame` has a column for each heading, in base units, unrounded."""

    name: str
    title: str
    columns: tuple[StatsColumn, ...]
    frame: pl.DataFrame

    def __post_init__(self) -> None:
        """Hold the promise that headings and values agree."""
        headers = [c.header for c in self.columns]
        if headers != self.frame.columns:
            raise ValueError(f"{self.name}: headings {headers} but columns {self.frame.columns}")

    def cells(self) -> pl.DataFrame:
        """Give every value as the text that is printed; nothing is printed for a null."""
        return pl.DataFrame(
            [_FORMATS[c.cell](self.frame.get_column(c.header)) for c in self.columns]
        )

    def csv_rows(self) -> list[tuple[str, ...]]:
        """Give the printed rows, without the headings."""
        return self.cells().rows()


def columns(headers: Mapping[str, StatsCell]) -> tuple[StatsColumn, ...]:
    """Declare a report's columns."""
    return tuple(StatsColumn(header, cell) for header, cell in headers.items())


def _text(values: pl.Series) -> pl.Series:
    return values.cast(pl.String).fill_null("")


def _tenths(value: float) -> str:
    """Round the exact binary value: 0.25 is a tie, 0.35 is a little less than one."""
    return str(Decimal(value).quantize(_TENTH, ROUND_HALF_UP))


def _each(render: Callable[[float], str]) -> Callable[[pl.Series], pl.Series]:
    """Print each distinct value once: these columns repeat few values many times."""

    def show(values: pl.Series) -> pl.Series:
        distinct = values.unique().drop_nulls()
        if distinct.is_empty():
            return pl.Series(values.name, [""], dtype=pl.String).new_from_index(0, len(values))
        texts = pl.Series([render(v) for v in distinct.to_list()], dtype=pl.String)
        return values.replace_strict(distinct, texts, default="", return_dtype=pl.String)

    return show


_FORMATS: dict[StatsCell, Callable[[pl.Series], pl.Series]] = {
    StatsCell.TEXT: _text,
    StatsCell.WHOLE: _text,
    StatsCell.TENTHS: _each(_tenths),
    StatsCell.MEGA: _each(lambda value: f"{value / 1e6:.3f}"),
    StatsCell.HEX: _each(lambda value: f"0x{int(value):X}"),
}


def add_owner(
    trace: Trace, frame: pl.DataFrame, pid: str = "PID", tid: str = "TID"
) -> pl.DataFrame:
    """Add the operating system's numbers of each row's `process` and `thread`."""
    processes = trace.table("processes", ["process", "pid"]).rename({"pid": pid})
    threads = trace.table("threads", ["thread", "tid"]).rename({"tid": tid})
    return _left_join(_left_join(frame, processes, "process"), threads, "thread")


def add_thread_name(trace: Trace, frame: pl.DataFrame, name: str) -> pl.DataFrame:
    """Add the name of each row's `thread`."""
    names = trace.table("threads", ["thread", "name"]).rename({"name": name})
    return _left_join(frame, names.with_columns(pl.col(name).cast(pl.String)), "thread")


def add_device_label(trace: Trace, frame: pl.DataFrame, label: str) -> pl.DataFrame:
    """Add name and number of each row's `device`, such as `NVIDIA H200 (0)`."""
    names = {d: f"{name or 'GPU'} ({d})" for d, name in device_names(trace).items()}
    labels = pl.DataFrame(
        {"device": list(names), label: list(names.values())},
        schema={"device": pl.Int64, label: pl.String},
    )
    return _left_join(frame, labels, "device")


def _left_join(frame: pl.DataFrame, other: pl.DataFrame, key: str) -> pl.DataFrame:
    return frame.join(other.unique(key), on=key, how="left", maintain_order="left")


TIME_SUMMARY = {
    "Avg (ns)": StatsCell.TENTHS,
    "Med (ns)": StatsCell.TENTHS,
    "Min (ns)": StatsCell.WHOLE,
    "Max (ns)": StatsCell.WHOLE,
    "StdDev (ns)": StatsCell.TENTHS,
}


def time_headers(count: str = "Instances") -> dict[str, StatsCell]:
    """Give the headings that a summary of times starts with; `count` is what a row counts."""
    return {
        "Time (%)": StatsCell.TENTHS,
        "Total Time (ns)": StatsCell.WHOLE,
        count: StatsCell.WHOLE,
        **TIME_SUMMARY,
    }


def spread(value: pl.Expr, prefix: str = "", unit: str = "ns") -> list[pl.Expr]:
    """Average, median, extremes and sample deviation; a single value deviates by nothing."""
    return [
        value.mean().alias(f"{prefix}Avg ({unit})"),
        value.median().alias(f"{prefix}Med ({unit})"),
        value.min().alias(f"{prefix}Min ({unit})"),
        value.max().alias(f"{prefix}Max ({unit})"),
        value.std(ddof=1).fill_null(0.0).alias(f"{prefix}StdDev ({unit})"),
    ]


def summarize_times(
    frame: pl.DataFrame | pl.LazyFrame, by: list[str], *, count: str = "Instances"
) -> pl.DataFrame:
    """Summarise `start_ns`..`end_ns` for each group; unsorted, without the share of time."""
    time = pl.col("time")
    return (
        frame.lazy()
        .select(*by, DURATION.alias("time"))
        .group_by(by)
        .agg(time.sum().alias("Total Time (ns)"), pl.len().alias(count), *spread(time))
        .collect()
    )


def rank_times(summary: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """Add each group's share of the time listed and put the largest first, ties by name."""
    total = pl.col("Total Time (ns)")
    share = share_of(100 * total, total.sum()).fill_null(0.0)
    return summary.with_columns(share.alias("Time (%)")).sort(
        "Total Time (ns)", *names, descending=[True] + [False] * len(names)
    )
