"""The line of Python or native code that launched GPU work."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.attribution.nested_intervals import NONE, NestedIntervals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpusight.analysis.attribution.nested_intervals import Mask
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


MODULE_PREFIX = "nn.Module: "

_FRAME = re.compile(r"(?P<path>[^()<>]+\.pyx?|<ipython-input[^()<>]*>)\(\d+\): ")
_INSTALLED = re.compile(r"^.*/(?:site|dist)-packages/")
_STANDARD_FOLDER = re.compile(r"^(?:.*/)?lib/python\d[\d.]*/")
_MACHINERY = frozenset({"torch", "functorch", "torchgen", "triton", "numpy", "gpusight"})
"""Packages that launch for others, or only mark what they do: their callers are who to ask."""
_GENERATED = re.compile(r"torchinductor_|(?:^|/)[a-z2-7]{2}/c[a-z2-7]{40,}\.py$")
"""Files that torch.compile writes: in a folder of that name where the whole path is kept, named by
a hash in a folder of two letters in any case."""
_LONGEST = 4_000
"""What is looked at of a frame's text; nobody's path is longer."""


def is_module(name: str) -> bool:
    """Tell whether a Python call is that of a module."""
    return name.startswith(MODULE_PREFIX)


def is_frame(name: str) -> bool:
    """Tell whether a Python call is a function with a file and a line."""
    return _FRAME.match(name[:_LONGEST]) is not None


def is_own_code(name: str) -> bool:
    """Tell whether a frame lies in the user's code: not the framework's, nor Python's own."""
    match = _FRAME.match(name[:_LONGEST])
    if match is None:
        return False
    path = match["path"].replace("\\", "/")
    if _GENERATED.search(path):
        return False
    package, installed = _INSTALLED.subn("", path)
    first = package.lstrip("/").partition("/")[0].removesuffix(".py")
    if first in _MACHINERY:
        return False
    if installed:
        return True
    return first not in sys.stdlib_module_names and _STANDARD_FOLDER.match(path) is None


def site_of_stack(stack: str) -> str | None:
    """Give the innermost frame of the user's code in a stack, or its innermost frame."""
    frames = [f.strip() for f in stack.split(";") if f.strip()]
    return next(filter(is_own_code, frames), next(filter(is_frame, frames), None))


class PythonCalls:
    """The calls of Python functions, ready to say which of them were open at a time."""

    def __init__(self, trace: Trace) -> None:
        calls = trace.table("python_calls", ["start_ns", "end_ns", "thread", "name"])
        self.nested = NestedIntervals.of(
            calls["start_ns"].to_numpy(), calls["end_ns"].to_numpy(), calls["thread"]
        )
        self._names = calls["name"]
        tests = (is_module, is_own_code, is_frame)
        self._nearest = [self.nested.nearest(self.marked(test)) for test in tests]

    def marked(self, test: Callable[[str], bool]) -> Mask:
        """Test the name of every place, looking at each distinct one once."""
        flags = np.array([test(n) for n in names_of(self._names)], dtype=np.bool_)
        marks: Mask = flags[self._names.to_physical().to_numpy()[self.nested.rows]]
        return marks

    def at(self, times: Ints, threads: pl.Series) -> tuple[Ints, Ints, Ints]:
        """Give the rows of the module, of the user's code and of any code open at each time."""
        places = self.nested.innermost(times, threads)
        module, own, frame = (self._rows(nearest, places) for nearest in self._nearest)
        return module, own, first_known([own, frame, self.nested.rows_at(places)])

    def _rows(self, nearest: Ints, places: Ints) -> Ints:
        if not len(nearest):
            return places
        return self.nested.rows_at(np.where(places >= 0, nearest[places], NONE))


def stack_sites(stacks: pl.Series) -> pl.Series:
    """Give the call site of each stack of operators, looking at each distinct one once."""
    sites = pl.Series([site_of_stack(s) for s in names_of(stacks)], dtype=pl.String)
    return sites.gather(stacks.to_physical())


def text_of(names: pl.Series, rows: pl.Series) -> pl.Series:
    """Give the names in these rows as text; null where there is no row.

    The rows point at the text of the distinct names: a cast would write a long one for each row.
    """
    if not isinstance(names.dtype, pl.Enum):
        return names.gather(rows).cast(pl.String)
    return names.dtype.categories.gather(names.to_physical().gather(rows)).alias(names.name)


def first_known(candidates: Iterable[Ints]) -> Ints:
    """Take, one by one, the first of several rows that is known."""
    first, *others = candidates
    for other in others:
        first = np.where(first >= 0, first, other)
    return first


_NATIVE_MACHINERY = (
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
            ~pl.col("module").cast(pl.String).str.contains(_NATIVE_MACHINERY).fill_null(value=True),
        )
        .sort("callchain", "depth")
        .unique("callchain", keep="first", maintain_order=True)
        .select("callchain", pl.coalesce(place, pl.col("symbol").cast(pl.String)).alias("site"))
    )
    wanted = pl.DataFrame({"callchain": chains})
    return wanted.join(frames, on="callchain", how="left", maintain_order="left")["site"]
