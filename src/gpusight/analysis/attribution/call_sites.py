"""The line of Python or native code that launched a GPU activity."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.attribution.nested_intervals import NestedIntervals, lookup
from gpusight.naming.source_files import (
    FRAMEWORKS,
    is_generated,
    is_installed,
    is_standard_library,
    top_level,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


MODULE_PREFIX = "nn.Module: "

_FRAME = re.compile(r"(?P<path>[^()<>]+\.pyx?|<ipython-input[^()<>]*>)\(\d+\): ")
_MAX_FRAME_CHARS = 4_000
"""No path is longer; bounds the regular expressions on hostile names."""


def is_module(name: str) -> bool:
    """Whether a Python call is one of an nn.Module."""
    return name.startswith(MODULE_PREFIX)


def is_frame(name: str) -> bool:
    """Whether a Python call is a function with a file and a line."""
    return _FRAME.match(name[:_MAX_FRAME_CHARS]) is not None


def is_own_code(name: str) -> bool:
    """Whether a frame is in the user's code: not the framework's, nor the standard library's."""
    match = _FRAME.match(name[:_MAX_FRAME_CHARS])
    if match is None:
        return False
    path = match["path"].replace("\\", "/")
    if is_generated(path) or top_level(path) in FRAMEWORKS:
        return False
    return is_installed(path) or not is_standard_library(path)


def site_of_stack(stack: str) -> str | None:
    """Return the innermost frame of the user's code in a stack, else its innermost frame."""
    frames = [f.strip() for f in stack.split(";") if f.strip()]
    return next(filter(is_own_code, frames), next(filter(is_frame, frames), None))


class PythonCalls:
    """The calls of Python functions, to look up which were open at a time."""

    def __init__(self, trace: Trace) -> None:
        calls = trace.table("python_calls", ["start_ns", "end_ns", "thread", "name"])
        self.nested = nested = NestedIntervals.of_table(calls)
        tests = (is_module, is_own_code, is_frame)
        self._nearest = [nested.nearest(nested.marked(calls["name"], test)) for test in tests]

    def at(self, times: Ints, threads: pl.Series) -> tuple[Ints, Ints, Ints]:
        """Return the rows of the module, of the user's code and of any code open at each time."""
        nested = self.nested
        places = nested.innermost(times, threads)
        module, own, frame = (nested.rows_at(lookup(near, places)) for near in self._nearest)
        return module, own, first_known([own, frame, nested.rows_at(places)])


def stack_sites(stacks: pl.Series) -> pl.Series:
    """Return the call site of each operator's stack; each distinct stack is parsed once."""
    sites = pl.Series([site_of_stack(s) for s in names_of(stacks)], dtype=pl.String)
    return sites.gather(stacks.to_physical())


def text_of(names: pl.Series, rows: pl.Series) -> pl.Series:
    """Return the names in these rows as text; null where there is no row.

    Gathers from the distinct names: a cast would copy a long text for each row.
    """
    if not isinstance(names.dtype, pl.Enum):
        return names.gather(rows).cast(pl.String)
    return names.dtype.categories.gather(names.to_physical().gather(rows)).alias(names.name)


def first_known(candidates: Iterable[Ints]) -> Ints:
    """Return, for each element, the first of several row numbers that is not -1."""
    first, *others = candidates
    for other in others:
        first = np.where(first >= 0, first, other)
    return first


_SYSTEM_LIBRARIES = (
    r"^(?:lib(?:cuda|cudart|nv|cupti|cublas|cudnn|nccl|pthread|c|m|dl|stdc|gcc|c10|torch)[-\w]*\.so"
    r"|ld-linux|\[)"
)
"""Binaries that every call goes through: CUDA, libc, PyTorch."""


def sites_of(trace: Trace, table: str, rows: pl.Series) -> pl.Series:
    """Return the innermost known function outside the usual libraries, for calls of a table."""
    chains = trace.table(table, ["callchain"])["callchain"].gather(rows)
    columns = ["source", "callchain", "depth", "symbol", "module", "unresolved", "file", "line"]
    place = pl.format("{} ({}:{})", pl.col("symbol").cast(pl.String), "file", "line")
    frames = (
        trace.table("callchains", columns)
        .filter(
            pl.col("source").cast(pl.String) == table,
            pl.col("callchain").is_in(chains.unique().drop_nulls().to_list()),
            ~pl.col("unresolved").fill_null(value=False),
            ~pl.col("module").cast(pl.String).str.contains(_SYSTEM_LIBRARIES).fill_null(value=True),
        )
        .sort("callchain", "depth")
        .unique("callchain", keep="first", maintain_order=True)
        .select("callchain", pl.coalesce(place, pl.col("symbol").cast(pl.String)).alias("site"))
    )
    wanted = pl.DataFrame({"callchain": chains})
    return wanted.join(frames, on="callchain", how="left", maintain_order="left")["site"]
