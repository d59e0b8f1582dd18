"""What a report is: columns with the headings of `nsys stats`, values, and how each is printed."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


_TENTH = Decimal("0.1")


class Cell(enum.Enum):
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
        return {Cell.TENTHS: 1, Cell.MEGA: 3}.get(self, 0)


@dataclass(frozen=True, slots=True)
class StatsColumn:
    """One column of a report: its heading, units included, and how its values are printed."""

    header: str
    cell: Cell


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


def columns(headers: Mapping[str, Cell]) -> tuple[StatsColumn, ...]:
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


_FORMATS: dict[Cell, Callable[[pl.Series], pl.Series]] = {
    Cell.TEXT: _text,
    Cell.WHOLE: _text,
    Cell.TENTHS: _each(_tenths),
    Cell.MEGA: _each(lambda value: f"{value / 1e6:.3f}"),
    Cell.HEX: _each(lambda value: f"0x{int(value):X}"),
}
