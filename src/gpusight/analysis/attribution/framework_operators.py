"""Which framework operator launched GPU work, and its forward operator."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.attribution.nested_intervals import NONE, NestedIntervals
from gpusight.analysis.launch_index import KeyIndex

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusight.analysis.attribution.nested_intervals import Mask
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


WAYS = ("op id", "call", "time", "none")
"""How the operator of a piece of work was found."""
_BY_ID, _BY_CALL, _BY_TIME, _NOT = range(len(WAYS))


_NUMBER = ["process", "sequence"]
_FORWARD_THREAD = ["process", "forward_thread"]


class FrameworkOperators:
    """The operators of a trace, ready to be asked for by key, by time and by sequence number."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.table = trace.table("cpu_ops", ["start_ns", "end_ns", "thread", "process", "op"])

    @cached_property
    def nested(self) -> NestedIntervals:
        """The operators as they enclose each other."""
        start, end = (self.table[c].to_numpy() for c in ("start_ns", "end_ns"))
        return NestedIntervals.of(start, end, self.table["thread"])

    def find(
        self, work: pl.DataFrame, api: pl.DataFrame, call: Ints, in_graph: Mask
    ) -> tuple[Ints, Ints]:
        """Give the operator's row for each piece of work, -1 for none, and how it was found."""
        op = np.full(work.height, NONE, dtype=np.int64)
        found = np.full(work.height, _NOT, dtype=np.int64)
        if not self.table.height:
            return op, found
        at = pl.Series(call).set(pl.Series(call < 0), None)
        launch = api.select(pl.col("start_ns", "thread", "process", "correlation", "op").gather(at))
        own = work.select("process", "correlation", "op")
        ways: dict[int, Callable[[], Ints]] = {
            _BY_ID: lambda: np.where(in_graph, NONE, self._by_key(own, launch)),
            _BY_CALL: lambda: self._by_key(launch, launch),
            _BY_TIME: lambda: self._by_time(launch),
        }
        for way, look in ways.items():
            if (op < 0).any():
                rows = look()
                fresh = (op < 0) & (rows >= 0)
                op[fresh], found[fresh] = rows[fresh], way
        return op, found

    def forward(self, op: Ints) -> Ints:
        """Give the row of the forward operator that each operator is part of the backward of."""
        nothing = np.full(len(op), NONE, dtype=np.int64)
        if not self._trace.has("cpu_ops", "forward_thread"):
            return nothing
        served = self._served
        return np.where(op >= 0, served[op], NONE) if len(served) else nothing

    def with_stack(self, op: Ints) -> Ints:
        """Give the row of the innermost operator at or around each that has a Python stack."""
        if not self._trace.has("cpu_ops", "stack"):
            return np.full(len(op), NONE, dtype=np.int64)
        has = self._trace.table("cpu_ops", ["stack"])["stack"].is_not_null().to_numpy()
        return self._around(has, op)

    def _around(self, marked: Mask, op: Ints) -> Ints:
        """Find the innermost marked operator at or around each of these rows."""
        nested = self.nested
        nearest = nested.rows_at(nested.nearest(marked[nested.rows]))
        return np.where(op >= 0, nearest[nested.places()[op]], NONE)

    # By key -----------------------------------------------------------------------------------

    @cached_property
    def _index(self) -> KeyIndex:
        return KeyIndex(self.table["process"], self._keys)

    @property
    def _keys(self) -> pl.Series:
        """The operators' keys; 0 is none."""
        keys = self.table["op"]
        return keys.set(keys <= 0, None)

    @cached_property
    def _repeated(self) -> Mask:
        """Which operators share their key with a later one; by key, the first of them is found."""
        first = self._index.find(self.table["process"], self._keys)
        later = (first >= 0) & (first != np.arange(len(first)))
        repeated = np.zeros(len(first), dtype=np.bool_)
        repeated[first[later]] = True
        return repeated

    def _by_key(self, named: pl.DataFrame, launch: pl.DataFrame) -> Ints:
        """Look operators up by the key in `op`; a key that may mean something else must fit.

        Profilers write the correlation id where they know no operator, and a key may come twice:
        then the operator must be one that was open when the launch began.
        """
        rows = self._index.find(named["process"], named["op"])
        doubtful = (named["op"] == named["correlation"]).fill_null(value=False).to_numpy()
        doubtful |= self._repeated[rows]
        return np.where((rows >= 0) & (~doubtful | self._was_open(rows, launch)), rows, NONE)

    def _was_open(self, rows: Ints, launch: pl.DataFrame) -> Mask:
        """Tell whether operators were running, on its thread, when a launch began."""
        at = self.table.select(pl.col("start_ns", "end_ns", "thread").gather(np.maximum(rows, 0)))
        began = launch["start_ns"]
        fits = (at["start_ns"] <= began) & (began <= at["end_ns"])
        return (fits & (at["thread"] == launch["thread"])).fill_null(value=False).to_numpy()

    def _by_time(self, launch: pl.DataFrame) -> Ints:
        times = launch["start_ns"].fill_null(0).to_numpy()
        return self.nested.rows_at(self.nested.innermost(times, launch["thread"]))

    # Forward ----------------------------------------------------------------------------------

    @cached_property
    def _served(self) -> Ints:
        """The forward operator behind every operator that runs inside a backward one."""
        columns = ["process", "thread", "sequence", "forward_thread"]
        ops = self._trace.table("cpu_ops", columns).with_row_index("row")
        backward = (pl.col("forward_thread") > 0).fill_null(value=False)
        numbered = ops.filter(pl.col("sequence").is_not_null())
        forward = numbered.filter(~backward).group_by(*_NUMBER, "thread").agg(pl.col("row").last())
        found = _forward_of(numbered.filter(backward).drop("thread"), forward)
        served = np.full(ops.height, NONE, dtype=np.int64)
        served[found["row"].to_numpy()] = found["forward"].to_numpy()
        around = self._around(served >= 0, np.arange(ops.height))
        return np.where(around >= 0, served[around], NONE)


def _forward_of(backward: pl.DataFrame, forward: pl.DataFrame) -> pl.DataFrame:
    """Match backward operators (`row`) to forward ones (`forward`) by their sequence numbers.

    Autograd counts on each thread and has its own numbers for threads. A sequence number that only
    one thread used tells which thread such a number stands for; with those known, the sequence
    numbers that several threads used are told apart.
    """
    forward = forward.rename({"row": "forward"})
    sole = forward.filter(pl.len().over(_NUMBER) == 1).drop("forward")
    threads = (
        backward.join(sole, on=_NUMBER, nulls_equal=True)
        .group_by(*_FORWARD_THREAD, "thread")
        .len()
        .sort("len", "thread", descending=True)
        .unique(_FORWARD_THREAD, keep="first", maintain_order=True)
        .drop("len")
    )
    return backward.join(threads, on=_FORWARD_THREAD, nulls_equal=True).join(
        forward, on=[*_NUMBER, "thread"], nulls_equal=True
    )
