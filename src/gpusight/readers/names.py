"""Dictionary-encoded names: making, joining and spreading them."""

from __future__ import annotations

import polars as pl

NAMELESS = "[no name]"
"""Stands where a program gave no name."""
_SMALL_SPAN = 100_000
"""Up to this, and a few times the rows, a table indexed by id is cheaper than a hash join."""


def encode(texts: pl.Series) -> pl.Series:
    """Turn text into an Enum of the strings that occur, in order of appearance."""
    categories = texts.drop_nulls().unique(maintain_order=True)
    return texts.cast(pl.Enum(categories))


def encode_codes(codes: pl.Series, words: dict[int, str], other: str = "Unknown") -> pl.Series:
    """Turn small numbers into the words for them."""
    used = codes.unique().drop_nulls()
    texts = pl.Series([words.get(code, other) for code in used.to_list()], dtype=pl.String)
    return gather(encode(texts), used, codes)


def concat_names(parts: list[pl.Series]) -> pl.Series:
    """Join name columns whose Enums differ."""
    return pl.concat(_with_common_names(parts))


def first_of(columns: list[pl.Series]) -> pl.Series:
    """Take each row's name from the first column that has one."""
    merged = columns[-1]
    for column in reversed(columns[:-1]):
        if column.null_count() == 0:
            merged = column
        else:
            ours, others = _with_common_names([column, merged])
            merged = ours.zip_with(ours.is_not_null(), others)
    return merged


def _with_common_names(columns: list[pl.Series]) -> list[pl.Series]:
    known = [c.dtype.categories for c in columns if isinstance(c.dtype, pl.Enum)]
    common = pl.Enum(pl.concat(known).unique(maintain_order=True))
    return [column.cast(common) for column in columns]


def gather(names: pl.Series, used: pl.Series, ids: pl.Series) -> pl.Series:
    """Spread the names of the ids that occur over all rows."""
    if used.is_empty():
        return pl.Series([None], dtype=names.dtype).new_from_index(0, len(ids))
    low = used.min()
    span = int(used.max()) - int(low)  # type: ignore[arg-type]
    if span > 4 * len(ids) + _SMALL_SPAN:
        lookup = pl.DataFrame({"id": used, "name": names})
        rows = pl.DataFrame({"id": ids}).join(lookup, on="id", how="left", maintain_order="left")
        return rows.get_column("name")
    positions = pl.DataFrame({"at": pl.int_range(span + 1, eager=True)}).join(
        pl.DataFrame({"at": used - low, "row": pl.int_range(len(used), eager=True)}),
        on="at",
        how="left",
        maintain_order="left",
    )
    return names.gather(positions.get_column("row").gather(ids - low))


def demangle(name: str) -> str:
    """Demangle a name; nearly all are already, and the demangler is slow to import."""
    if not name.startswith("_Z"):
        return name
    from gpusight.model.demangle import demangle as parse

    return parse(name)
