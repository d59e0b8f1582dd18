"""Ranges as a tree: what lies within what, how often, and for how long on the host and the GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.ledger.idle_contributors import RECORD, families
from gpusight.analysis.range_summary import project_ranges
from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.selection import EVERYTHING, ResolvedSelection
from gpusight.results import NotApplicable

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analysis.selection import Selection
    from gpusight.trace.intervals import Flags, Ints
    from gpusight.trace.trace import Trace


MAX_DEPTH = 100
"""Levels that are looked at."""
_MAX_NUMBERED_NAMES = 8
"""More names than this that differ only by numbers, within one node, are one name."""


@dataclass(frozen=True)
class RangeRows:
    """Ranges in columns."""

    parent: Ints
    """Row that it lies in; -1 at the top."""
    depth: Ints
    host_ns: Ints
    gpu_ns: Ints


@dataclass(frozen=True)
class RangeNodes:
    """Nodes of a tree in columns."""

    names: Sequence[str]
    name: Ints
    """Position in `names`; -1 for the sum of smaller ones."""
    parent: Ints
    depth: Ints
    calls: Ints
    host_ns: Ints
    gpu_ns: Ints
    smaller: Ints

    def __len__(self) -> int:
        """Count the nodes."""
        return len(self.name)

    def take(self, at: Ints) -> RangeNodes:
        """Give these nodes; their parents keep their old numbers."""
        return self._with({key: getattr(self, key)[at] for key in _NODE_COLUMNS})

    def extended(self, more: RangeNodes) -> RangeNodes:
        """Put further nodes behind."""
        pairs = {key: (getattr(self, key), getattr(more, key)) for key in _NODE_COLUMNS}
        return self._with({key: np.concatenate(pair) for key, pair in pairs.items()})

    def _with(self, columns: dict[str, Any]) -> RangeNodes:
        return replace(self, **columns)

    def with_parents(self, parent: Ints) -> RangeNodes:
        """Give the same nodes with other numbers of parents."""
        return replace(self, parent=parent)


_NODE_COLUMNS = ("name", "parent", "depth", "calls", "host_ns", "gpu_ns", "smaller")


@dataclass(frozen=True)
class _NodeNames:
    """What ranges may be called: by their own names, and by those of families."""

    texts: pl.Series
    """Names without what a framework writes behind them, then families."""
    plain: Ints
    """Position in `texts` of each name of the table."""
    family: Ints
    """Position in `texts` of the family of each plain name."""
    is_step: Flags
    """Whether a family is that of steps."""


def merge_ranges(
    rows: RangeRows, names: pl.Series, threads: tuple[list[str], Ints], steps: Sequence[str]
) -> RangeNodes:
    """Make nodes of ranges; `names` and the threads' numbers are those of the rows."""
    known = _names(names, steps)
    name = known.plain[names.to_physical().to_numpy()]
    labels, thread = threads
    node = np.full(len(name), -1, np.int64)
    nodes, above = _none(()), 0
    if len(labels) > 1:
        # Threads are the outermost nodes; their times are known once their ranges are.
        above = len(labels)
        number = np.arange(above) + len(known.texts)
        nodes = replace(
            _none(np.zeros(above, np.int64)), name=number, parent=np.full(above, -1, np.int64)
        )
    for depth in range(min(int(rows.depth.max()) + 1, MAX_DEPTH)):
        at = np.flatnonzero(rows.depth == depth)
        outer = np.where(rows.parent[at] >= 0, node[rows.parent[at]], -1)
        outer = np.where(outer >= 0, outer, thread[at] if above else -1)
        level, which = _level(rows, at, outer, _chosen(known, outer, name[at]), depth + bool(above))
        node[at] = which + len(nodes)
        nodes = nodes.extended(level)
    named = replace(nodes, names=[*known.texts.to_list(), *labels])
    return _with_sums(named, above) if above else named


def _names(names: pl.Series, steps: Sequence[str]) -> _NodeNames:
    texts = pl.Series(names_of(names), dtype=pl.String)
    own, plain = _numbered(texts.str.replace(RECORD, ""))
    kinds, family = _numbered(families(own))
    counted = families(pl.Series(list(dict.fromkeys(steps)), dtype=pl.String)).unique()
    return _NodeNames(
        pl.concat([own, kinds]),
        plain,
        family + len(own),
        np.append(np.zeros(len(own), np.bool_), kinds.is_in(counted.implode()).to_numpy()),
    )


def _numbered(texts: pl.Series) -> tuple[pl.Series, Ints]:
    """Give every text once, and where each stands among these."""
    once = texts.unique(maintain_order=True).alias("text")
    places = pl.DataFrame([once]).with_row_index("place")
    numbered = pl.DataFrame({"text": texts}).join(
        places, on="text", how="left", maintain_order="left"
    )
    return once, numbered["place"].to_numpy().astype(np.int64)


def _chosen(known: _NodeNames, outer: Ints, name: Ints) -> Ints:
    """Give the name of each range: its own, or its family's where that has many in one node."""
    width = len(known.texts)
    pairs, at = np.unique((outer + 1) * width + name, return_inverse=True)
    family = known.family[pairs % width]
    _, kind, members = np.unique(
        pairs // width * width + family, return_inverse=True, return_counts=True
    )
    merged = (members[kind] > _MAX_NUMBERED_NAMES) | known.is_step[family]
    names: Ints = np.where(merged, family, pairs % width)
    return names[at]


def _level(
    rows: RangeRows, at: Ints, outer: Ints, name: Ints, depth: int
) -> tuple[RangeNodes, Ints]:
    """Sum up ranges of one level by the node that they lie in and their name."""
    width = int(name.max(initial=0)) + 1
    keys, which = np.unique((outer + 1) * width + name, return_inverse=True)

    def total(values: Ints) -> Ints:
        return np.bincount(which, values[at], len(keys)).astype(np.int64)

    level = RangeNodes(
        names=(),
        name=keys % width,
        parent=keys // width - 1,
        depth=np.full(len(keys), depth, np.int64),
        calls=np.bincount(which, minlength=len(keys)).astype(np.int64),
        host_ns=total(rows.host_ns),
        gpu_ns=total(rows.gpu_ns),
        smaller=np.zeros(len(keys), np.int64),
    )
    return level, which


def _with_sums(nodes: RangeNodes, threads: int) -> RangeNodes:
    """Give the nodes of threads, which come first, what lies directly in them."""
    inside = np.flatnonzero((nodes.parent >= 0) & (nodes.parent < threads))

    def filled(values: Ints) -> Ints:
        sums = np.bincount(nodes.parent[inside], values[inside], threads).astype(np.int64)
        return np.append(sums, values[threads:])

    return replace(
        nodes,
        calls=filled(nodes.calls),
        host_ns=filled(nodes.host_ns),
        gpu_ns=filled(nodes.gpu_ns),
    )


def _none(values: Ints | tuple[()]) -> RangeNodes:
    column = np.array(values, np.int64)
    return RangeNodes((), column, column, column, column, column, column, column)


COMMAND = "ranges"
MAX_NODES = 5_000
_KEPT_NODES = MAX_NODES // 2
"""Of a larger tree; each of these may need one more node for what was left out inside it."""
_NO_THREAD = -1
_RANGE_COLUMNS = ["start_ns", "end_ns", "name", "kind", "thread", "depth", "parent"]


@dataclass(frozen=True)
class RangeTree:
    """Nodes in columns, each behind the one that it lies in, longer ones before their siblings."""

    names: tuple[str, ...]
    """Every name once."""
    name: Ints
    """Position in `names`; -1 for what was left out inside a node, summed up."""
    parent: Ints
    """Node that it lies in; -1 at the top."""
    calls: Ints
    host_ns: Ints
    gpu_ns: Ints | None
    """GPU work launched by any thread while it was open; None where unknown."""
    smaller: Ints
    """Nodes that one without a name stands for."""
    ranges: int
    """How many there are in the capture."""
    threads: int
    """Threads that have some; where there are several, they are the outermost nodes."""
    notes: tuple[str, ...] = ()

    def __len__(self) -> int:
        """Count the nodes."""
        return len(self.name)

    @property
    def host_total_ns(self) -> int:
        """Host time of the outermost nodes."""
        return int(self.host_ns[self.parent < 0].sum())


def range_tree(
    trace: Trace, selection: Selection = EVERYTHING, *, steps: Sequence[str] = ()
) -> RangeTree | NotApplicable:
    """Put the selected ranges together by where they lie; `steps` are the names of steps."""
    if not trace.has("ranges"):
        advice = advice_for(trace.meta)
        return NotApplicable(COMMAND, f"the capture has no {advice.ranges_name}", advice.ranges)
    scope = ResolvedSelection(trace, selection)
    frame = scope.host("ranges", _RANGE_COLUMNS, row_index="row").filter(pl.col("kind") != "mark")
    if frame.is_empty():
        return NotApplicable(COMMAND, "no range with a duration in the selection")
    projected = project_ranges(trace)
    notes: list[str] = []
    work: Ints | None = None
    if isinstance(projected, NotApplicable):
        notes.append(f"GPU times of ranges are unknown: {projected.reason}")
    else:
        selected = projected.frame["work_ns"].gather(frame["row"])
        work = selected.fill_null(0).to_numpy().astype(np.int64)
    rows = _rows(trace, frame, work)
    nodes = _ordered(_pruned(merge_ranges(rows, frame["name"], _threads(trace, frame), steps)))
    smaller, deeper = int(nodes.smaller.sum()), int((rows.depth >= MAX_DEPTH).sum())
    if smaller:
        shown = f"the {_KEPT_NODES:,} largest ranges are shown"
        notes.append(f"{shown}, {smaller:,} smaller ones aggregated")
    if deeper:
        notes.append(f"{deeper:,} ranges nested deeper than {MAX_DEPTH} levels are not shown")
    used, at = np.unique(nodes.name, return_inverse=True)
    texts = tuple(nodes.names[number] for number in used if number >= 0)
    return RangeTree(
        names=texts,
        name=at - (len(used) - len(texts)),
        parent=nodes.parent,
        calls=nodes.calls,
        host_ns=nodes.host_ns,
        gpu_ns=None if work is None else nodes.gpu_ns,
        smaller=nodes.smaller,
        ranges=frame.height,
        threads=frame["thread"].n_unique(),
        notes=tuple(notes),
    )


def _rows(trace: Trace, frame: pl.DataFrame, work: Ints | None) -> RangeRows:
    """Give the ranges in columns; what lies in a range that was not selected is outermost."""
    row = frame["row"].to_numpy().astype(np.int64)
    place = np.full(trace.row_count("ranges") + 1, -1, np.int64)
    place[row] = np.arange(len(row))
    return RangeRows(
        parent=place[frame["parent"].fill_null(-1).to_numpy()],
        depth=frame["depth"].to_numpy().astype(np.int64),
        host_ns=(frame["end_ns"] - frame["start_ns"]).to_numpy(),
        gpu_ns=np.zeros(len(row), np.int64) if work is None else work,
    )


def _threads(trace: Trace, frame: pl.DataFrame) -> tuple[list[str], Ints]:
    """Name the threads that have ranges, and number the thread of each range."""
    thread = frame["thread"].fill_null(_NO_THREAD)
    keys = thread.unique().sort()
    known = trace.table("threads", ["thread", "tid", "name"])
    named = {key: f"{name or 'thread'} ({tid})" for key, tid, name in known.iter_rows()}
    place = {key: number for number, key in enumerate(keys)}
    at = thread.replace_strict(place, return_dtype=pl.Int64).to_numpy()
    return [named.get(key, "unnamed thread") for key in keys], at


def _pruned(nodes: RangeNodes) -> RangeNodes:
    """Keep the largest nodes of a large tree; what is left out inside each is summed up in one."""
    if len(nodes) <= MAX_NODES:
        return nodes
    parts = [own / max(1, own[nodes.parent < 0].sum()) for own in (nodes.host_ns, nodes.gpu_ns)]
    # Nothing is larger than what it lies in, so that whoever is kept has somebody to lie in.
    order = np.lexsort((nodes.depth, -np.maximum(*parts)))
    kept = np.sort(order[:_KEPT_NODES])
    out = np.sort(order[_KEPT_NODES:])
    out = out[(nodes.parent[out] < 0) | np.isin(nodes.parent[out], kept)]
    sums = _summed(nodes, out)
    place = np.full(len(nodes) + 1, -1, np.int64)
    place[kept] = np.arange(len(kept))
    joined = nodes.take(kept).extended(sums)
    return joined.with_parents(place[joined.parent])


def _summed(nodes: RangeNodes, out: Ints) -> RangeNodes:
    """Sum nodes up by the one that they lie in."""
    parents, group = np.unique(nodes.parent[out], return_inverse=True)

    def total(values: Ints) -> Ints:
        return np.bincount(group, values[out], len(parents)).astype(np.int64)

    below = nodes.depth[out]
    return RangeNodes(
        names=nodes.names,
        name=np.full(len(parents), -1, np.int64),
        parent=parents,
        depth=below[np.unique(group, return_index=True)[1]],
        calls=total(nodes.calls),
        host_ns=total(nodes.host_ns),
        gpu_ns=total(nodes.gpu_ns),
        smaller=np.bincount(group, minlength=len(parents)).astype(np.int64),
    )


def _ordered(nodes: RangeNodes) -> RangeNodes:
    """Put outer nodes before inner ones, and the longest first; sums of what is left out last."""
    order = np.lexsort((-nodes.gpu_ns, -nodes.host_ns, nodes.name < 0, nodes.depth))
    place = np.full(len(nodes) + 1, -1, np.int64)
    place[order] = np.arange(len(nodes))
    moved = nodes.take(order)
    return moved.with_parents(place[moved.parent])
