"""nsys string ids to dictionary-encoded names."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.readers.names import encode, gather

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusight.readers.nsys.raw import RawTables

MISSING = "[name missing from capture]"


class Strings:
    """The capture's string table, read once and only when a name is asked for."""

    def __init__(self, raw: RawTables) -> None:
        self._raw = raw
        self._table: pl.DataFrame | None = None

    def texts(self, ids: pl.Series) -> pl.Series:
        """Look up the text of each id; null where the id is null or unknown."""
        frame = pl.DataFrame({"id": ids.cast(pl.Int64, strict=False)}).join(
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
        return gather(encode(texts), used, ids)

    def _strings(self) -> pl.DataFrame:
        if self._table is None:
            if {"id", "value"} <= self._raw.columns("StringIds"):
                # A program that rewrites an export may store numbers as text, and text as numbers.
                rows = self._raw.read("StringIds", ["id", "value"]).select(
                    pl.col("id").cast(pl.Int64, strict=False), pl.col("value").cast(pl.String)
                )
                self._table = rows.unique("id", keep="first")
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
