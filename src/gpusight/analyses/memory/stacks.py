"""Who holds memory, from the call chains that a snapshot keeps with its events and blocks."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.attribution.call_sites import is_own_code
from gpusight.analyses.memory.holders import PLAIN_ALLOCATION
from gpusight.analyses.statistics import names_of

if TYPE_CHECKING:
    from gpusight.model.trace import Trace

NAMED = ("op", "outer_op", "site")
"""What call chains tell of who took memory."""
_OPERATOR = re.compile(r"\bat::_ops::(\w+)::(?:call|redispatch)\b")
_BACKWARD = re.compile(r"\btorch::autograd::generated::(\w+)::apply\b")


def from_chains(trace: Trace, source: str, chains: pl.Series) -> pl.DataFrame:
    """Name operators and the place in the code of each call chain of a table: columns `NAMED`."""
    wanted = pl.DataFrame({"callchain": chains.cast(pl.Int64)})
    frames = _frames(trace, source, wanted)
    known = _operators(frames).join(_sites(frames), on="callchain", how="full", coalesce=True)
    return wanted.join(known, on="callchain", how="left", maintain_order="left").select(NAMED)


def python_frames(trace: Trace, source: str, chains: pl.Series) -> list[list[str]]:
    """List the Python frames of a few call chains, innermost first."""
    frames = _python(_frames(trace, source, pl.DataFrame({"callchain": chains.cast(pl.Int64)})))
    found: dict[int, list[str]] = {}
    for chain, text in frames.select("callchain", "text").iter_rows():
        found.setdefault(chain, []).append(text)
    return [found.get(chain, []) for chain in chains.to_list()]


def _frames(trace: Trace, source: str, wanted: pl.DataFrame) -> pl.DataFrame:
    table = trace.table("callchains", ["source", "callchain", "depth", "symbol", "file", "line"])
    mine = pl.col("source").cast(pl.String) == source
    return (
        table.filter(mine)
        .join(wanted.drop_nulls().unique(), on="callchain", how="semi")
        .sort("callchain", "depth")
    )


def _operators(frames: pl.DataFrame) -> pl.DataFrame:
    """Name the outermost operator, and the innermost that does more than take memory."""
    names = [_operator(symbol) for symbol in names_of(frames["symbol"])]
    working = [None if n is None or PLAIN_ALLOCATION.match(n) else n for n in names]
    first, last = pl.col("text").first(), pl.col("text").last()
    every = _renamed(frames, names).group_by("callchain")
    ends = every.agg(first.alias("any"), last.alias("outer"))
    inner = _renamed(frames, working).group_by("callchain").agg(first.alias("inner"))
    return ends.join(inner, on="callchain", how="left").select(
        "callchain", pl.coalesce("inner", "any").alias("op"), pl.col("outer").alias("outer_op")
    )


def _operator(symbol: str) -> str | None:
    found = _OPERATOR.search(symbol)
    if found:
        return f"aten::{found[1]}"
    backward = _BACKWARD.search(symbol)
    return backward[1] if backward else None


def _sites(frames: pl.DataFrame) -> pl.DataFrame:
    """Name the innermost Python frame of the program's own code, else the innermost at all."""
    python = _python(frames)
    distinct = python.select("text").unique()
    own = distinct.filter(pl.Series([is_own_code(t) for t in distinct["text"]], dtype=pl.Boolean))
    first = pl.col("text").first().alias("site")
    mine = python.join(own, on="text", how="semi", maintain_order="left")
    chosen = mine.group_by("callchain").agg(first)
    others = python.group_by("callchain").agg(first).join(chosen, on="callchain", how="anti")
    return pl.concat([chosen, others])


def _python(frames: pl.DataFrame) -> pl.DataFrame:
    """Keep the Python frames, in order, each with its `text` as torch.profiler writes it."""
    flags = pl.Series([f.endswith(".py") for f in names_of(frames["file"])], dtype=pl.Boolean)
    python = flags.gather(frames["file"].to_physical()).fill_null(value=False)
    line, symbol = pl.col("line").fill_null(0), pl.col("symbol").cast(pl.String).fill_null("?")
    text = pl.format("{}({}): {}", pl.col("file").cast(pl.String), line, symbol)
    return frames.filter(python).select("callchain", text.alias("text"))


def _renamed(frames: pl.DataFrame, texts: list[str | None]) -> pl.DataFrame:
    """Give each frame another text for its symbol; frames without one are left out."""
    spread = pl.Series(texts, dtype=pl.String).gather(frames["symbol"].to_physical())
    return frames.select("callchain", spread.alias("text")).drop_nulls()
