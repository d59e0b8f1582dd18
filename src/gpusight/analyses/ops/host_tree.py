"""The host's calls as one tree: annotations, operators, API calls and the profiler's own work.

This is the tree that PyTorch's `key_averages` is computed from, so that times in an operator itself
are the same here and there:

- what an operator does itself is what is left of it once all that it calls is taken away, calls of
  CUDA and the profiler's own overhead included;
- an operator whose only call is of an operator of the same name is one with it: counted once;
- an operator inside another one of its name, but not alone, counts again: totals of both add up;
- operators that serve the profiler itself are as if they were not there;
- profiler overhead of which no thread is known is taken to have been on the main thread.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analyses.attribution.attribute import main_threads
from gpusight.analyses.attribution.nested import NONE, Nested
from gpusight.analyses.statistics import names_of
from gpusight.analyses.steps import PROFILER_STEP

if TYPE_CHECKING:
    from gpusight.analyses.attribution.nested import Ints, Mask
    from gpusight.model.trace import Trace

ANNOTATION, OPERATOR, CALL, OVERHEAD = range(4)
"""What a place of the tree is, in the order in which those that begin together enclose."""
_TABLES = ("ranges", "cpu_ops", "api_calls", "overheads")
_SERVING_THE_PROFILER = frozenset(
    {
        "profiler::_record_function_enter",
        "profiler::_record_function_enter_new",
        "profiler::_record_function_exit",
        "aten::is_leaf",
        "aten::output_nr",
        "aten::_version",
    }
)
_ANY_STEP = "ProfilerStep*"


@dataclass(frozen=True)
class HostTree:
    """The tree, place by place in the order of `nested`."""

    nested: Nested
    kinds: Ints
    rows: Ints
    """Row of each place in the table of its kind."""
    processes: Ints
    """Process of each place, -1 where not known."""
    codes: Ints
    """Each place's name, as a position in `names`."""
    names: list[str]

    @classmethod
    def of(cls, trace: Trace) -> HostTree:
        """Build the tree of a trace."""
        names: dict[str, int] = {}
        parts = [_part(trace, kind, names) for kind in range(len(_TABLES))]
        events = pl.concat(parts)
        start, end = (events[c].to_numpy() for c in ("start_ns", "end_ns"))
        nested = Nested.of(start, end, events["thread"])
        kinds, rows, processes, codes = (
            events[c].to_numpy()[nested.rows] for c in ("kind", "row", "process", "code")
        )
        return cls(nested, kinds, rows, processes, codes, list(names))

    @cached_property
    def spent(self) -> Ints:
        """How long each place lasted."""
        return self.nested.ends - self.nested.starts

    @cached_property
    def self_spent(self) -> Ints:
        """How long each place lasted without what it called."""
        return self.spent - self.nested.inside(self.spent)

    @cached_property
    def owners(self) -> Ints:
        """The place that each place counts as: itself, or the one around it that it is one with."""
        outer = self.nested.outer
        calls = self.nested.inside(np.ones(len(outer), dtype=np.int64))
        alone = (outer >= 0) & (calls[outer] == 1)
        return self.nested.nearest(~(alone & (self.codes == self.codes[outer])))

    @cached_property
    def named(self) -> Mask:
        """Which places are operators or annotations."""
        return self.kinds <= OPERATOR

    def places_of(self, kind: int, height: int) -> Ints:
        """Give the place of each row of the table of a kind, -1 for rows left out."""
        places = np.full(height, NONE, dtype=np.int64)
        mine = np.flatnonzero(self.kinds == kind)
        places[self.rows[mine]] = mine
        return places

    def open_at(self, times: Ints, threads: pl.Series) -> Ints:
        """Find the innermost operator or annotation that was open at each time, -1 for none."""
        places = self.nested.innermost(times, threads)
        if not len(self.kinds):
            return places
        return np.where(places >= 0, self._nearest_named[places], NONE)

    @cached_property
    def _nearest_named(self) -> Ints:
        return self.nested.nearest(self.named)


def _part(trace: Trace, kind: int, names: dict[str, int]) -> pl.DataFrame:
    """Give the events of one kind with their names numbered; numbers are added to `names`."""
    table = _TABLES[kind]
    frame = trace.table(table, ["start_ns", "end_ns", "thread", "process", "name"])
    frame = frame.with_row_index("row")
    known = [_ANY_STEP if n.startswith(PROFILER_STEP) else n for n in names_of(frame["name"])]
    if kind == ANNOTATION:
        frame = frame.filter(trace.table(table, ["kind"])["kind"].cast(pl.String) == "push_pop")
    elif kind == OPERATOR:
        serving = [code for code, n in enumerate(known) if n in _SERVING_THE_PROFILER]
        frame = frame.filter(~pl.col("name").to_physical().is_in(serving))
    elif kind == OVERHEAD:
        frame = frame.with_columns(thread=_threads_of_overhead(trace, frame["thread"]))
    numbers = pl.Series([names.setdefault(n, len(names)) for n in known], dtype=pl.Int64)
    return frame.select(
        "start_ns",
        "end_ns",
        "thread",
        pl.col("process").fill_null(NONE),
        pl.lit(kind, pl.Int64).alias("kind"),
        pl.col("row").cast(pl.Int64),
        numbers.gather(frame["name"].to_physical()).alias("code"),
    )


def _threads_of_overhead(trace: Trace, threads: pl.Series) -> pl.Series:
    """Put overhead of unknown threads onto the main thread, as PyTorch does."""
    working = trace.table("cpu_ops", ["thread", "process"])
    calling = trace.table("api_calls", ["thread"])["thread"].unique()
    processes = working["process"].drop_nulls().head(1).to_list()
    main = main_threads(trace).get(processes[0]) if processes else None
    known = pl.concat([working["thread"].unique(), calling])
    return threads.set(~threads.is_in(known.implode()), main)
