"""The host's calls as one tree (annotations, operators, API calls), and the tree of modules."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import DURATION, names_of
from gpusight.analysis.attribution.nested_intervals import (
    MODULE_PREFIX,
    NONE,
    NestedIntervals,
    joint_keys,
    optional,
)
from gpusight.analysis.attribution.work_causes import main_threads
from gpusight.analysis.steps.step_list import PROFILER_STEP

if TYPE_CHECKING:
    from gpusight.analysis.attribution.work_causes import SelectedWork, WorkSelection
    from gpusight.trace.intervals import Flags, Ints
    from gpusight.trace.trace import Trace


ANNOTATION, OPERATOR, CALL, OVERHEAD = range(4)
"""Kind of a place of the tree; of those that begin together, the lower encloses the higher."""
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
class HostCallTree:
    """The tree, place by place in the order of `nested`."""

    nested: NestedIntervals
    kinds: Ints
    rows: Ints
    """Row of each place in the table of its kind."""
    processes: Ints
    """Process of each place, -1 where not known."""
    codes: Ints
    """Each place's name, as a position in `names`."""
    names: list[str]

    @classmethod
    def of(cls, trace: Trace) -> HostCallTree:
        """Build the tree of a trace."""
        names: dict[str, int] = {}
        parts = [_part(trace, kind, names) for kind in range(len(_TABLES))]
        events = pl.concat(parts)
        start, end = (events[c].to_numpy() for c in ("start_ns", "end_ns"))
        nested = NestedIntervals.of(start, end, events["thread"])
        kinds, rows, processes, codes = (
            events[c].to_numpy()[nested.rows] for c in ("kind", "row", "process", "code")
        )
        return cls(nested, kinds, rows, processes, codes, list(names))

    @cached_property
    def spent(self) -> Ints:
        """Duration of each place."""
        return self.nested.ends - self.nested.starts

    @cached_property
    def self_spent(self) -> Ints:
        """Duration of each place without what it called."""
        return self.spent - self.nested.inside(self.spent)

    @cached_property
    def owners(self) -> Ints:
        """The place that each place counts as: itself, or the one around it that it is one with."""
        outer = self.nested.outer
        calls = self.nested.inside(np.ones(len(outer), dtype=np.int64))
        alone = (outer >= 0) & (calls[outer] == 1)
        return self.nested.nearest(~(alone & (self.codes == self.codes[outer])))

    @cached_property
    def named(self) -> Flags:
        """Which places are operators or annotations."""
        return self.kinds <= OPERATOR

    def places_of(self, kind: int, height: int) -> Ints:
        """Return the place of each row of the table of a kind, -1 for rows left out."""
        places = np.full(height, NONE, dtype=np.int64)
        own = np.flatnonzero(self.kinds == kind)
        places[self.rows[own]] = own
        return places

    def open_at(self, times: Ints, threads: pl.Series) -> Ints:
        """Find the innermost operator or annotation that was open at each time, -1 for none."""
        places = self.nested.innermost(times, threads)
        if not len(self.kinds):
            return places
        return np.where(places >= 0, self.nested.nearest(self.named)[places], NONE)


def _part(trace: Trace, kind: int, names: dict[str, int]) -> pl.DataFrame:
    """Return the events of one kind with their names numbered; numbers are added to `names`."""
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
    """Assign overhead of unknown threads to the main thread, as PyTorch does."""
    working = trace.table("cpu_ops", ["thread", "process"])
    calling = trace.table("api_calls", ["thread"])["thread"].unique()
    processes = working["process"].drop_nulls().head(1).to_list()
    main = main_threads(trace).get(processes[0]) if processes else None
    known = pl.concat([working["thread"].unique(), calling])
    return threads.set(~threads.is_in(known.implode()), main)


_COLUMNS = ["time_ns", "process", "operation", "memory_kind", "allocator", "bytes"]
_SIGNS = {"allocation": 1, "deallocation": -1}


def memory_taken(trace: Trace, tree: HostCallTree) -> Ints | None:
    """Sum allocations less deallocations during each place; None if they were not recorded.

    By any thread of the process, as PyTorch counts: a step includes its backward pass.
    """
    events = _events(trace)
    if events.is_empty():
        return None
    known, codes = np.unique(events["process"].to_numpy(), return_inverse=True)
    own = np.minimum(np.searchsorted(known, tree.processes), len(known) - 1)
    spans = np.concatenate([tree.nested.starts, tree.nested.ends])
    keys, wanted = joint_keys(codes, events["time_ns"].to_numpy(), np.tile(own, 2), spans)
    order = np.argsort(keys, kind="stable")
    running = np.zeros(len(order) + 1, dtype=np.int64)
    np.cumsum(events["bytes"].to_numpy()[order], out=running[1:])
    before = np.searchsorted(keys[order], wanted[: len(own)], side="left")
    after = np.searchsorted(keys[order], wanted[len(own) :], side="right")
    return np.where(known[own] == tree.processes, running[after] - running[before], 0)


def _events(trace: Trace) -> pl.DataFrame:
    """Return allocations (positive) and deallocations (negative) of GPU memory."""
    if not trace.has("memory_events", "allocator"):
        return pl.DataFrame()
    events = trace.table("memory_events", _COLUMNS).filter(
        pl.col("allocator") == "framework", pl.col("memory_kind") == "Device"
    )
    signs = events["operation"].cast(pl.String).replace_strict(_SIGNS, default=0)
    return events.with_columns(pl.col("process").fill_null(NONE), bytes=events["bytes"] * signs)


# Modules ------------------------------------------------------------------------------------------


_MODULE = re.compile(r"(?P<type>.{1,4000})_(?P<number>\d{1,18})", re.DOTALL)
_PATH_SEPARATOR = " / "
_MAX_PATH = 4_000
"""Characters of a path; hostile calls may nest without end."""


@dataclass(frozen=True)
class ModuleTree:
    """Module calls by class and path, such as `GPT / Block / MLP / Linear.1`.

    The profiler numbers modules by class over the whole program (`Linear_48`), which does not
    show where they are. A node holds the modules of one class at one place of the hierarchy:
    containers of one class and parent are one node, leaves are numbered in the order of their
    first calls.
    """

    nodes: Ints
    """Node of each place of the nested module calls."""
    parents: list[int]
    """Node around each node, -1 at the top; it comes first."""
    names: list[str]
    """Class, with a number where the parent has several leaves of that class."""
    modules: list[int]
    """Modules of each node."""

    @classmethod
    def of(cls, nested: NestedIntervals, codes: Ints, names: list[str]) -> ModuleTree:
        """Build the tree of module calls whose names have these codes."""
        paths, parents, path_codes = _call_paths(nested.outer, codes, len(names))
        parts = [_MODULE.fullmatch(name.removeprefix(MODULE_PREFIX)) for name in names]
        types = [
            part["type"] if part else name.removeprefix(MODULE_PREFIX)
            for part, name in zip(parts, names, strict=True)
        ]
        inner = {parent for parent in parents if parent >= 0}
        keys: dict[tuple[int, str, int], int] = {}
        siblings: defaultdict[tuple[int, str], int] = defaultdict(int)
        modules: defaultdict[int, set[int]] = defaultdict(set)
        node_of: list[int] = []
        for path, (parent, code) in enumerate(zip(parents, path_codes, strict=True)):
            number = NONE
            if path not in inner:
                number = siblings[parent, types[code]]
                siblings[parent, types[code]] += 1
            around = node_of[parent] if parent >= 0 else NONE
            node = keys.setdefault((around, types[code], number), len(keys))
            node_of.append(node)
            modules[node].add(code)
        numbered = {(around, name) for around, name, number in keys if number > 0}
        return cls(
            nodes=np.array(node_of, dtype=np.int64)[paths],
            parents=[around for around, _, _ in keys],
            names=[
                f"{name}.{number}" if number >= 0 and (around, name) in numbered else name
                for around, name, number in keys
            ],
            modules=[len(modules[node]) for node in range(len(keys))],
        )

    def frame(self, weights: Ints) -> pl.DataFrame:
        """Describe the nodes: `group`, `order`, `depth`, `path`, `name` and `modules`.

        Depth first; among siblings the one of the largest weight comes first.
        """
        children: defaultdict[int, list[int]] = defaultdict(list)
        for node, parent in enumerate(self.parents):
            children[parent].append(node)
        rows: list[tuple[int, int, int, str, str, int]] = []
        pending = [(node, 0, "") for node in self._ranked(children[NONE], weights)]
        while pending:
            node, depth, above = pending.pop()
            path = f"{above if len(above) <= _MAX_PATH else '… / '}{self.names[node]}"
            rows.append((node, len(rows), depth, path, self.names[node], self.modules[node]))
            inner = self._ranked(children[node], weights)
            pending += [(child, depth + 1, path + _PATH_SEPARATOR) for child in inner]
        schema = ["group", "order", "depth", "path", "name", "modules"]
        types = [pl.Int64, pl.Int64, pl.Int64, pl.String, pl.String, pl.Int64]
        return pl.DataFrame(rows, dict(zip(schema, types, strict=True)), orient="row")

    def _ranked(self, nodes: list[int], weights: Ints) -> list[int]:
        """Sort siblings for a stack: the heaviest last."""
        return sorted(nodes, key=lambda node: (weights[node], -node))


def _call_paths(outer: Ints, codes: Ints, names: int) -> tuple[Ints, list[int], list[int]]:
    """Number the distinct chains of names from the top to each place, outer chains first.

    Returns the chain of each place, and of each chain the one around it and its last name.
    Chains of one depth are in the order of their first places.
    """
    depth, above = (outer >= 0).astype(np.int64), outer.copy()
    while (deeper := np.flatnonzero(above >= 0)).size:
        # What is above what is above: the steps double.
        depth[deeper] += depth[above[deeper]]
        above[deeper] = above[above[deeper]]
    paths = np.full(len(outer), NONE, dtype=np.int64)
    parents: list[int] = []
    last: list[int] = []
    by_depth = np.argsort(depth, kind="stable")
    levels = np.split(by_depth, np.flatnonzero(np.diff(depth[by_depth])) + 1)
    for at in levels if len(outer) else ():
        around = np.where(outer[at] >= 0, paths[outer[at]], NONE)
        keys = (around + 1) * names + codes[at]
        _, first, which = np.unique(keys, return_index=True, return_inverse=True)
        order = np.argsort(first, kind="stable")
        rank = np.empty(len(order), dtype=np.int64)
        rank[order] = np.arange(len(order))
        paths[at] = len(parents) + rank[which]
        parents += around[first[order]].tolist()
        last += codes[at][first[order]].tolist()
    return paths, parents, last


# Operators ----------------------------------------------------------------------------------------


_KINDS = ("annotation", "operator")
_OTHERS = {CALL: "api_self_cpu_ns", OVERHEAD: "overhead_ns"}


class OperatorSums:
    """What the operators and annotations of a selection cost, place by place of the tree."""

    def __init__(
        self, scope: WorkSelection, tree: HostCallTree, work: SelectedWork, *, shapes: bool
    ) -> None:
        self._scope = scope
        self._tree = tree
        self._work = work
        self._by_shapes = shapes

    def table(self) -> pl.DataFrame:
        """Sum everything up by group."""
        tree, at = self._tree, np.flatnonzero(self._selected)
        counted = tree.owners[at] == at
        launched = self._sum_by_place(np.ones(self._work.frame.height, dtype=np.int64))
        own = {"self_cpu_ns": tree.self_spent, "self_gpu_ns": self._gpu_ns, "work": launched}
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
        first = sums["place"].to_numpy()
        return sums.with_columns(
            pl.Series(_KINDS).gather(tree.kinds[first]).alias("kind"),
            pl.Series(tree.names, dtype=pl.String).gather(tree.codes[first]).alias("name"),
        ).join(self._inputs(at[counted]), "group", how="left")

    @cached_property
    def groups_of_work(self) -> pl.Series:
        """The group of each GPU activity; null outside of all of them."""
        places = self._places_of_work
        numbers = np.full(len(places), NONE, dtype=np.int64)
        inside = np.flatnonzero(places >= 0)
        inside = inside[self._selected[places[inside]]]
        numbers[inside] = self._groups[places[inside]]
        return optional(numbers)

    @property
    def meta(self) -> dict[str, Any]:
        """CPU totals; without a selection also of API calls and profiler overhead."""
        tree = self._tree
        meta = {
            "operators": int((tree.kinds[self._selected] == OPERATOR).sum()),
            "self_cpu_ns": int(tree.self_spent[self._selected].sum()),
        }
        if not self._scope.selection:
            meta |= {key: int(tree.self_spent[tree.kinds == k].sum()) for k, key in _OTHERS.items()}
        return meta

    @cached_property
    def _selected(self) -> Flags:
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
        """The place of each GPU activity: its operator, else an annotation."""
        tree, causes, trace = self._tree, self._work.frame, self._scope.trace
        ops = tree.places_of(OPERATOR, trace.row_count("cpu_ops"))
        places = np.where(
            causes["op"].is_not_null(), ops[causes["op"].fill_null(0).to_numpy()], NONE
        )
        unplaced = np.flatnonzero(places < 0)
        if len(unplaced) and trace.has("api_calls"):
            calls = trace.table("api_calls", ["start_ns", "thread"])
            calls = calls.select(pl.all().gather(causes["call"].gather(unplaced)))
            times = calls["start_ns"].fill_null(0).to_numpy()
            places[unplaced] = tree.open_at(times, calls["thread"])
        return np.where(places >= 0, tree.owners[places], NONE) if len(tree.owners) else places

    @cached_property
    def _gpu_ns(self) -> Ints:
        """GPU time of the work that each place launched itself."""
        return self._sum_by_place(self._work.frame.select(DURATION).to_series().to_numpy())

    def _sum_by_place(self, values: Ints) -> Ints:
        """Sum values of GPU activities by the place that launched them."""
        places = self._places_of_work
        sums = np.zeros(len(self._tree.kinds), dtype=np.int64)
        known = places >= 0
        np.add.at(sums, places[known], values[known])
        return sums

    def _inputs(self, places: Ints) -> pl.DataFrame:
        """Return the most common input shapes of each group, and its FLOPs."""
        trace = self._scope.trace
        inputs = pl.DataFrame({"group": self._groups[places]})
        columns = [c for c in ("shapes", "flops") if trace.has("cpu_ops", c)]
        inputs = inputs.with_columns(self._of_operators(c).gather(places).alias(c) for c in columns)
        groups = inputs.select("group").unique()
        if "shapes" in columns:
            groups = groups.join(_most_common_shapes(inputs), on="group", how="left")
        if "flops" in columns:
            flops = inputs.drop_nulls("flops").group_by("group").agg(pl.col("flops").sum())
            groups = groups.join(flops, on="group", how="left")
        return groups


def _most_common_shapes(inputs: pl.DataFrame) -> pl.DataFrame:
    """Find the most frequent shapes in each group; the first among equals."""
    return (
        inputs.drop_nulls("shapes")
        .group_by("group", "shapes", maintain_order=True)
        .len()
        .sort("len", descending=True, maintain_order=True)
        .group_by("group", maintain_order=True)
        .first()
        .select("group", pl.col("shapes").cast(pl.String))
    )
