"""Columns that every table of launches has: the shape, and the name for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.statistics import names_of
from gpusight.model.kernel_names import classify

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpusight.model.kernel_names import KernelName

GRID = ("grid_x", "grid_y", "grid_z")
BLOCK = ("block_x", "block_y", "block_z")
SHAPE = (*GRID, *BLOCK)


def product(columns: Iterable[str]) -> pl.Expr:
    """Multiply the sizes in x, y and z; null where one is not told."""
    x, y, z = (pl.col(column) for column in columns)
    return x * y * z


def shape_texts() -> tuple[pl.Expr, pl.Expr]:
    """Write `grid` and `block` as people do: `128x1x1`."""
    grid, block = (pl.concat_str(columns, separator="x") for columns in (GRID, BLOCK))
    return grid.alias("grid"), block.alias("block")


def whole(column: str) -> pl.Expr:
    """Give a counter as the whole number that it is."""
    return pl.col(column).cast(pl.Float64).round().cast(pl.Int64, strict=False)


def classified(names: pl.Series) -> list[KernelName]:
    """Say what each name of a column tells; each distinct one is looked at once."""
    texts = names_of(names)
    codes: Sequence[int] = names.to_physical().to_list()
    known = {code: classify(texts[code]) for code in set(codes)}
    return [known[code] for code in codes]


def short_names(names: pl.Series, alias: str = "short_name") -> pl.Series:
    """Give readable labels of a column of kernel names."""
    return pl.Series(alias, [name.short for name in classified(names)], pl.String)
