"""nsys string ids to dictionary-encoded names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusight.readers.nsys.raw import RawTables

MISSING = "[name missing from capture]"
_SMALL_SPAN = 100_000
"""Up to this, and a few times the rows, a table indexed by id is cheaper than a hash join."""


class Strings:
    """The capture's string table, read once and only when a name is asked for."""

    def __init__(self, raw: RawTables) -> None:
        self._raw = raw
        self._table: pl.DataFrame | None = None

    def texts(self, ids: pl.Series) -> pl.Series:
        """Look up the text of each id; null where the id is null or unknown."""
        frame = pl.DataFrame({"id": ids}).join(
            self._strings(), on="id", how="left", maintain_order="left"
        )
        return frame.get_column("value")

    def names(self, ids: pl.Series, change: Callable[[str], str] | None = None) -> pl.Series:
        """Encode a column of ids as an Enum of the texts that occur, each passed through `change`.

        Null stays null; an id that the capture does not explain becomes `MISSING`.
        """
        used = ids.unique().drop_nulls()
        texts = self.texts(used).fill_null(MISSING)
        if change is not None:
            texts = pl.Series([change(t) for t in texts.to_list()], dtype=pl.String)
        return _gather(encode(texts), used, ids)

    def _strings(self) -> pl.DataFrame:
        if self._table is None:
            if {"id", "value"} <= self._raw.columns("StringIds"):
                self._table = self._raw.read("StringIds", ["id", "value"]).unique(
                    "id", keep="first"
                )
            else:
                self._table = pl.DataFrame(schema={"id": pl.Int64, "value": pl.String})
        return self._table


def decode_text(raw: pl.Series) -> pl.Series:
    """Turn bytes into text, replacing what is not UTF-8."""
    if raw.dtype != pl.Binary:  # no rows: ADBC then has no type to report
        return pl.Series(raw.name, [], dtype=pl.String)
    try:
        return raw.cast(pl.String)
    except pl.exceptions.PolarsError:
        distinct = raw.unique()
        texts = [None if v is None else v.decode("utf-8", "replace") for v in distinct.to_list()]
        lookup = pl.DataFrame({"raw": distinct, "text": pl.Series(texts, dtype=pl.String)})
        rows = pl.DataFrame({"raw": raw}).join(
            lookup, on="raw", how="left", maintain_order="left", nulls_equal=True
        )
        return rows.get_column("text").alias(raw.name)


def encode(texts: pl.Series) -> pl.Series:
    """Turn text into an Enum of the strings that occur, in order of appearance."""
    categories = texts.drop_nulls().unique(maintain_order=True)
    return texts.cast(pl.Enum(categories))


def encode_codes(codes: pl.Series, words: dict[int, str], other: str = "Unknown") -> pl.Series:
    """Turn small numbers into the words for them."""
    used = codes.unique().drop_nulls()
    texts = pl.Series([words.get(code, other) for code in used.to_list()], dtype=pl.String)
    return _gather(encode(texts), used, codes)


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


def _gather(names: pl.Series, used: pl.Series, ids: pl.Series) -> pl.Series:
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
