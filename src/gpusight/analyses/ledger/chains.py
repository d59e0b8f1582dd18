"""The line of native code that a call was made from, by its recorded call chain."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

if TYPE_CHECKING:
    from gpusight.model.trace import Trace

_MACHINERY = (
    r"^(?:lib(?:cuda|cudart|nv|cupti|cublas|cudnn|nccl|pthread|c|m|dl|stdc|gcc|c10|torch)[-\w]*\.so"
    r"|ld-linux|\[)"
)
"""Binaries that calls go through, whoever made them."""


def sites_of(trace: Trace, table: str, rows: pl.Series) -> pl.Series:
    """Give the innermost known function outside of the usual libraries, for calls of a table."""
    chains = trace.table(table, ["callchain"])["callchain"].gather(rows)
    columns = ["source", "callchain", "depth", "symbol", "module", "unresolved", "file", "line"]
    place = pl.format("{} ({}:{})", pl.col("symbol").cast(pl.String), "file", "line")
    frames = (
        trace.table("callchains", columns)
        .filter(
            pl.col("source").cast(pl.String) == table,
            pl.col("callchain").is_in(chains.unique().drop_nulls().to_list()),
            ~pl.col("unresolved").fill_null(value=False),
            ~pl.col("module").cast(pl.String).str.contains(_MACHINERY).fill_null(value=True),
        )
        .sort("callchain", "depth")
        .unique("callchain", keep="first", maintain_order=True)
        .select("callchain", pl.coalesce(place, pl.col("symbol").cast(pl.String)).alias("site"))
    )
    wanted = pl.DataFrame({"callchain": chains})
    return wanted.join(frames, on="callchain", how="left", maintain_order="left")["site"]
