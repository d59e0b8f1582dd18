"""Nested intervals of many threads: what encloses what, vectorized."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.core import native
from gpusight.naming.source_files import (
    FRAMEWORKS,
    is_generated,
    is_installed,
    is_standard_library,
    top_level,
)
from gpusight.trace.intervals import number, outer_first

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpusight.trace.intervals import Flags, Ints
    from gpusight.trace.trace import Trace


NONE = -1
"""No row, no place."""
_MAX_STEPS = 32
"""Steps outwards before the rest is searched by halving: real stacks are rarely deeper."""
_MAX_JOINT_KEY = 1 << 62
_INT64_MIN = np.iinfo(np.int64).min


def optional(rows: Ints) -> pl.Series:
    """Return row numbers as a column, null where there is none (-1)."""
    column = pl.Series(rows, dtype=pl.Int64)
    none = column < 0
    return column.set(none, None) if none.any() else column


def lookup(values: Ints, positions: Ints) -> Ints:
    """Return the values at positions; -1 stays -1."""
    return np.where(positions >= 0, values[positions], NONE) if len(values) else positions


@dataclass(frozen=True)
class NestedIntervals:
    """Intervals of many threads, sorted to look up what is open at a time and what encloses what.

    A place is a position in the sorted order, a row a position in the input.
    """

    rows: Ints
    starts: Ints
    ends: Ints
    threads: Ints
    """Thread of each place, numbered from 0; sorted."""
    known: pl.Series
    """The key of each thread number, sorted."""

    @classmethod
    def of(cls, starts: Ints, ends: Ints, threads: pl.Series) -> NestedIntervals:
        """Sort intervals by thread and start; those without a thread count as one more thread."""
        keys = threads.fill_null(_INT64_MIN)
        codes = number(keys)
        order = outer_first(starts, ends, codes)
        return cls(order, starts[order], ends[order], codes[order], keys.unique().sort())

    @classmethod
    def of_table(cls, table: pl.DataFrame, by: str = "thread") -> NestedIntervals:
        """Sort the rows of a table of host events, by thread or another column."""
        return cls.of(table["start_ns"].to_numpy(), table["end_ns"].to_numpy(), table[by])

    @cached_property
    def outer(self) -> Ints:
        """The place of the innermost enclosing interval, -1 at the top."""
        compiled = native.enclosing(self.starts, self.ends, self.threads)
        return self._outer() if compiled is None else compiled

    def _outer(self) -> Ints:
        # An instantaneous interval is not inside one that ends at that instant.
        min_end = np.maximum(self.ends, self.starts + 1)
        outer = np.arange(-1, len(self.rows) - 1)
        first_of_thread = np.flatnonzero(np.diff(self.threads, prepend=NONE))
        outer[first_of_thread] = NONE
        todo = np.flatnonzero((outer >= 0) & (self.ends[outer] < min_end))
        for _ in range(_MAX_STEPS):
            # Intervals that the previous place skipped are skipped at once, so the steps double.
            outer[todo] = outer[outer[todo]]
            candidates = outer[todo]
            todo = todo[(candidates >= 0) & (self.ends[candidates] < min_end[todo])]
            if not len(todo):
                return outer
        outer[todo] = self._search(todo, min_end[todo], self.threads[todo])
        return outer

    @cached_property
    def last(self) -> Ints:
        """The last place inside each place; the place itself where it encloses nothing."""
        last = np.arange(len(self.rows))
        inner = np.flatnonzero(self.outer >= 0)
        last[self.outer[inner]] = inner  # written in order: the last one inside wins
        return _fixed_point(last)

    def totals(self, values: Ints) -> Ints:
        """Sum the values of each place and of everything inside it."""
        running = np.zeros(len(values) + 1, dtype=np.int64)
        np.cumsum(values, out=running[1:])
        return running[self.last + 1] - running[:-1]

    def inside(self, values: Ints) -> Ints:
        """Sum the values of the direct children of each place."""
        sums = np.zeros(len(values), dtype=np.int64)
        inner = np.flatnonzero(self.outer >= 0)
        np.add.at(sums, self.outer[inner], values[inner])
        return sums

    def nearest(self, marked: Flags) -> Ints:
        """Find the innermost marked place at or around each place, -1 where there is none."""
        # A marked place points to itself, so following pointers stops there.
        return _fixed_point(np.where(marked, np.arange(len(marked)), self.outer))

    def nearest_rows(self, marked: Flags) -> Ints:
        """Find the innermost marked row at or around each row, -1 where there is none."""
        rows = np.empty(len(marked), dtype=np.int64)
        rows[self.rows] = self.rows_at(self.nearest(marked[self.rows]))
        return rows

    def marked(self, names: pl.Series, test: Callable[[str], object]) -> Flags:
        """Mark the places whose name passes a test; each distinct name is tested once."""
        passed = np.array([bool(test(name)) for name in names_of(names)], dtype=np.bool_)
        marks: Flags = passed[names.to_physical().to_numpy()[self.rows]]
        return marks

    def innermost(self, times: Ints, threads: pl.Series) -> Ints:
        """Find the innermost place that was open at each time on each thread, -1 where none was.

        A thread that is null was not recorded: nothing is open there.
        """
        if not len(self.rows):
            return np.full(len(times), NONE, dtype=np.int64)
        codes = self._codes(threads)
        intervals = self.starts, self.ends, self.outer
        found = native.innermost(intervals, self._first, codes, times)
        if found is None:
            return self._innermost(codes, times)
        places, is_found = found
        todo = np.flatnonzero(~is_found)
        if len(todo):
            places[todo] = self._search(places[todo], times[todo] + 1, codes[todo])
        return places

    def _innermost(self, codes: Ints, times: Ints) -> Ints:
        keys, wanted = joint_keys(self.threads, self.starts, codes, times)
        places = np.searchsorted(keys, wanted, side="right") - 1
        places[(places >= 0) & (self.threads[places] != codes)] = NONE
        # Step outwards from the last one to have begun until one is open.
        todo = np.flatnonzero((places >= 0) & (self.ends[places] <= times))
        for _ in range(_MAX_STEPS):
            if not len(todo):
                return places
            candidates = self.outer[places[todo]]
            places[todo] = candidates
            todo = todo[(candidates >= 0) & (self.ends[candidates] <= times[todo])]
        places[todo] = self._search(places[todo], times[todo] + 1, codes[todo])
        return places

    @cached_property
    def _first(self) -> Ints:
        """The first place of each thread, and where the last one ends."""
        return np.searchsorted(self.threads, np.arange(len(self.known) + 1))

    def rows_at(self, places: Ints) -> Ints:
        """Return the rows of places; -1 stays -1."""
        return lookup(self.rows, places)

    def places(self) -> Ints:
        """Return the place of every row."""
        places = np.empty(len(self.rows), dtype=np.int64)
        places[self.rows] = np.arange(len(self.rows))
        return places

    def _codes(self, threads: pl.Series) -> Ints:
        """Number threads as in `threads`; -1 for those without intervals."""
        known = self.known.to_numpy()
        keys = threads.fill_null(_INT64_MIN).to_numpy()
        codes = np.minimum(np.searchsorted(known, keys), len(known) - 1)
        return np.where((known[codes] == keys) & (keys != _INT64_MIN), codes, NONE)

    def _search(self, before: Ints, reach: Ints, codes: Ints) -> Ints:
        """Find the last place before each, on the same thread, that ends at `reach` or later."""
        latest = _last_reaching(self.ends, before, reach)
        return np.where((latest >= 0) & (self.threads[latest] == codes), latest, NONE)


def _fixed_point(pointers: Ints) -> Ints:
    """Follow pointers (positions in the array, -1 for none) until they no longer change."""
    while True:
        further = np.where(pointers >= 0, pointers[pointers], NONE)
        if np.array_equal(further, pointers):
            return pointers
        pointers = further


def joint_keys(codes: Ints, times: Ints, more_codes: Ints, more_times: Ints) -> tuple[Ints, Ints]:
    """Combine group and time into one sortable number, comparable between the two sets."""
    all_times = (times, more_times)
    low = min((int(t.min()) for t in all_times if len(t)), default=0)
    span = max((int(t.max()) for t in all_times if len(t)), default=0) - low + 1
    if span * (int(codes.max(initial=0)) + 1) < _MAX_JOINT_KEY:
        return codes * span + (times - low), more_codes * span + (more_times - low)
    # Times too far apart for 64 bits: their ranks keep the order.
    distinct = np.unique(np.concatenate(all_times))
    ranks, more_ranks = (np.searchsorted(distinct, t) for t in all_times)
    return codes * len(distinct) + ranks, more_codes * len(distinct) + more_ranks


def _last_reaching(values: Ints, before: Ints, reach: Ints) -> Ints:
    """Find, for each pair, the last position before `before` whose value is at least `reach`.

    Goes up a tree of maxima until a block to the left reaches, then down into its right-most part
    that does: twice the logarithm of the number of values, whatever they are.
    """
    levels = [values]
    while len(levels[-1]) > 1:
        top = levels[-1]
        top = np.append(top, _INT64_MIN) if len(top) % 2 else top
        levels[-1] = top
        levels.append(np.maximum(top[::2], top[1::2]))
    node, height = before.copy(), np.full(len(before), NONE, dtype=np.int64)
    for level, maxima in enumerate(levels):
        odd = np.flatnonzero((height < 0) & (node % 2 == 1))
        reaches = maxima[node[odd] - 1] >= reach[odd]
        node[odd[reaches]] -= 1
        height[odd[reaches]] = level
        searching = height < 0
        node[searching] //= 2
    for level in range(len(levels) - 1, 0, -1):
        down = np.flatnonzero(height == level)
        right = 2 * node[down] + 1
        node[down] = np.where(levels[level - 1][right] >= reach[down], right, right - 1)
        height[down] = level - 1
    return np.where(height >= 0, node, NONE)


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
