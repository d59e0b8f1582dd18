"""What operators and annotations cost, place by place of the tree of the host's calls."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from gpusight.analyses.attribution.nested import NONE, optional
from gpusight.analyses.ops.host_tree import ANNOTATION, CALL, OPERATOR, OVERHEAD
from gpusight.analyses.ops.memory import memory_taken
from gpusight.analyses.statistics import DURATION

if TYPE_CHECKING:
    from gpusight.analyses.attribution.nested import Ints, Mask
    from gpusight.analyses.attribution.work import Work, WorkScope
    from gpusight.analyses.ops.host_tree import HostTree

_KINDS = ("annotation", "operator")
_OTHERS = {CALL: "api_self_cpu_ns", OVERHEAD: "overhead_ns"}


class OpSums:
    """What the operators and annotations of a selection cost, place by place of the tree."""

    def __init__(self, scope: WorkScope, tree: HostTree, work: Work, *, shapes: bool) -> None:
        self._scope = scope
        self._tree = tree
        self._work = work
        self._by_shapes = shapes

    def table(self) -> pl.DataFrame:
        """Sum everything up by group."""
        tree, at = self._tree, np.flatnonzero(self._selected)
        counted = tree.owners[at] == at
        own = {"self_cpu_ns": tree.self_spent, "self_gpu_ns": self._gpu_ns, "work": self._launched}
        total = {"cpu_ns": tree.spent, "gpu_ns": tree.nested.totals(self._gpu_ns)}
        taken = memory_taken(self._scope.trace, tree)
        if taken is not None:
            own["self_gpu_bytes"], total["gpu_bytes"] = taken - tree.nested.inside(taken), taken
        places = pl.DataFrame(
            {
                "group": self._groups[at],
                "place": tree.owners[at],
                "calls": counted.astype(np.int64),
                **{key: values[at] for key, values in own.items()},
                **{key: np.where(counted, values[at], 0) for key, values in total.items()},
            }
        )
        sums = places.group_by("group").agg(pl.col("place").min(), pl.exclude("place").sum())
        inputs = self._inputs(at[counted])
        return sums.hstack(self._names(sums["place"].to_numpy())).join(inputs, "group", how="left")

    @cached_property
    def groups_of_work(self) -> pl.Series:
        """The group that each piece of work belongs to; null outside of all of them."""
        places = self._places_of_work
        numbers = np.full(len(places), NONE, dtype=np.int64)
        inside = np.flatnonzero(places >= 0)
        inside = inside[self._selected[places[inside]]]
        numbers[inside] = self._groups[places[inside]]
        return optional(numbers)

    @property
    def meta(self) -> dict[str, Any]:
        """Totals of the host; without a selection also of what is no operator's."""
        tree = self._tree
        meta = {
            "operators": int((tree.kinds[self._selected] == OPERATOR).sum()),
            "self_cpu_ns": int(tree.self_spent[self._selected].sum()),
        }
        if not self._scope.selection:
            meta |= {key: int(tree.self_spent[tree.kinds == k].sum()) for k, key in _OTHERS.items()}
        return meta

    @cached_property
    def _selected(self) -> Mask:
        """Which places count: those of operators and annotations that began in the selection."""
        chosen = np.zeros(len(self._tree.kinds), dtype=np.bool_)
        for kind, table in ((ANNOTATION, "ranges"), (OPERATOR, "cpu_ops")):
            if self._scope.trace.has(table):
                rows = self._scope.host(table, ["start_ns"], row_index="row")["row"].to_numpy()
                places = self._tree.places_of(kind, self._scope.trace.row_count(table))[rows]
                chosen[places[places >= 0]] = True
        # What is one with the operator around it goes where that goes.
        return chosen[self._tree.owners] & self._tree.named if len(chosen) else chosen

    @cached_property
    def _groups(self) -> Ints:
        """The group of each place: its kind and name, and the shapes of its inputs if wanted."""
        tree = self._tree
        groups = tree.kinds * len(tree.names) + tree.codes
        if self._by_shapes:
            codes = self._of_operators("shapes").to_physical().cast(pl.Int64)
            shapes = codes.fill_null(NONE).to_numpy() + 1
            groups = groups * (int(shapes.max(initial=0)) + 1) + shapes
        return groups[tree.owners]

    def _of_operators(self, column: str) -> pl.Series:
        """Spread a column of operators over the places; null for others."""
        tree = self._tree
        rows = optional(np.where(tree.kinds == OPERATOR, tree.rows, NONE))
        values = self._scope.trace.table("cpu_ops", [column])[column]
        return values.gather(rows)

    @cached_property
    def _places_of_work(self) -> Ints:
        """The place that each piece of work belongs to: its operator, else an annotation."""
        tree, causes, trace = self._tree, self._work.frame, self._scope.trace
        ops = tree.places_of(OPERATOR, trace.row_count("cpu_ops"))
        places = np.where(
            causes["op"].is_not_null(), ops[causes["op"].fill_null(0).to_numpy()], NONE
        )
        lost = np.flatnonzero(places < 0)
        if len(lost) and trace.has("api_calls"):
            calls = trace.table("api_calls", ["start_ns", "thread"])
            calls = calls.select(pl.all().gather(causes["call"].gather(lost)))
            times = calls["start_ns"].fill_null(0).to_numpy()
            places[lost] = tree.open_at(times, calls["thread"])
        return np.where(places >= 0, tree.owners[places], NONE) if len(tree.owners) else places

    @cached_property
    def _gpu_ns(self) -> Ints:
        """GPU time of the work that each place launched itself."""
        spent = self._work.frame.select(DURATION).to_series()
        return self._summed(self._places_of_work, spent.to_numpy())

    @cached_property
    def _launched(self) -> Ints:
        """Pieces of work that each place launched itself."""
        ones = np.ones(self._work.frame.height, dtype=np.int64)
        return self._summed(self._places_of_work, ones)

    def _summed(self, places: Ints, values: Ints) -> Ints:
        """Sum values up at the places they belong to."""
        sums = np.zeros(len(self._tree.kinds), dtype=np.int64)
        known = places >= 0
        np.add.at(sums, places[known], values[known])
        return sums

    def _names(self, places: Ints) -> list[pl.Series]:
        tree = self._tree
        kinds = pl.Series(_KINDS).gather(tree.kinds[places])
        names = pl.Series(tree.names, dtype=pl.String).gather(tree.codes[places])
        return [kinds.alias("kind"), names.alias("name")]

    def _inputs(self, places: Ints) -> pl.DataFrame:
        """Give the most common shapes of each group's inputs, and its operations."""
        trace = self._scope.trace
        given = pl.DataFrame({"group": self._groups[places]})
        columns = [c for c in ("shapes", "flops") if trace.has("cpu_ops", c)]
        given = given.with_columns(self._of_operators(c).gather(places).alias(c) for c in columns)
        found = given.select("group").unique()
        if "shapes" in columns:
            found = found.join(_most_common_shapes(given), on="group", how="left")
        if "flops" in columns:
            counted = given.drop_nulls("flops").group_by("group").agg(pl.col("flops").sum())
            found = found.join(counted, on="group", how="left")
        return found


def _most_common_shapes(given: pl.DataFrame) -> pl.DataFrame:
    """Find the shapes that come most often in each group; the first among equals."""
    return (
        given.drop_nulls("shapes")
        .group_by("group", "shapes", maintain_order=True)
        .len()
        .sort("len", descending=True, maintain_order=True)
        .group_by("group", maintain_order=True)
        .first()
        .select("group", pl.col("shapes").cast(pl.String))
    )
