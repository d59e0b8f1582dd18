"""Ranges as a tree: what lies within what, how often, and for how long on the host and the GPU.

Ranges of one name within the same ranges are one node. Names that differ only by numbers are too,
where there are many of them or they are the steps: `step_1`, `step_2`, … become `step_#`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import polars as pl

from gpusight.analyses.advice import advice_for
from gpusight.analyses.projection import project_ranges
from gpusight.analyses.select import EVERYTHING, Scope
from gpusight.reporting.levels import DEEPEST, Nodes, Rows, merge
from gpusight.result import NotApplicable

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from gpusight.analyses.select import Selection
    from gpusight.model.trace import Trace

    Ints: TypeAlias = NDArray[np.int64]

COMMAND = "ranges"
MOST_NODES = 5_000
_KEPT = MOST_NODES // 2
"""Of a larger tree; each of these may need one more node for what was left out inside it."""
_NOBODY = -1
_COLUMNS = ["start_ns", "end_ns", "name", "kind", "thread", "depth", "parent"]


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
    """GPU work launched by any thread while it was open; None where the capture cannot tell."""
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

    @property
    def gpu_total_ns(self) -> int:
        """GPU work of the outermost nodes."""
        return 0 if self.gpu_ns is None else int(self.gpu_ns[self.parent < 0].sum())


def range_tree(
    trace: Trace, selection: Selection = EVERYTHING, *, steps: Sequence[str] = ()
) -> RangeTree | NotApplicable:
    """Put the selected ranges together by where they lie; `steps` are the names of steps."""
    if not trace.has("ranges"):
        advice = advice_for(trace.meta)
        return NotApplicable(COMMAND, f"the capture has no {advice.ranges_name}", advice.ranges)
    scope = Scope(trace, selection)
    frame = scope.host("ranges", _COLUMNS, row_index="row").filter(pl.col("kind") != "mark")
    if frame.is_empty():
        return NotApplicable(COMMAND, "no range that has a length lies in what was selected")
    work, notes = _gpu_work(trace, frame["row"])
    rows = _rows(trace, frame, work)
    nodes = _ordered(_pruned(merge(rows, frame["name"], _threads(trace, frame), steps)))
    notes = (*notes, *_left_out_notes(rows, nodes))
    threads = frame["thread"].n_unique()
    return _tree(nodes, work is not None, frame.height, threads, notes)


def _gpu_work(trace: Trace, rows: pl.Series) -> tuple[Ints | None, tuple[str, ...]]:
    """Give the GPU work of each range, or why it is not known."""
    found = project_ranges(trace)
    if isinstance(found, NotApplicable):
        return None, (f"GPU times of ranges are not known: {found.reason}",)
    work = found.frame["work_ns"].gather(rows)
    return work.fill_null(0).to_numpy().astype(np.int64), ()


def _rows(trace: Trace, frame: pl.DataFrame, work: Ints | None) -> Rows:
    """Give the ranges in columns; what lies in a range that was not selected is outermost."""
    row = frame["row"].to_numpy().astype(np.int64)
    place = np.full(trace.row_count("ranges") + 1, -1, np.int64)
    place[row] = np.arange(len(row))
    return Rows(
        parent=place[frame["parent"].fill_null(-1).to_numpy()],
        depth=frame["depth"].to_numpy().astype(np.int64),
        host_ns=(frame["end_ns"] - frame["start_ns"]).to_numpy(),
        gpu_ns=np.zeros(len(row), np.int64) if work is None else work,
    )


def _threads(trace: Trace, frame: pl.DataFrame) -> tuple[list[str], Ints]:
    """Name the threads that have ranges, and say which each range is on."""
    thread = frame["thread"].fill_null(_NOBODY)
    keys = thread.unique().sort()
    known = trace.table("threads", ["thread", "tid", "name"])
    named = {key: f"{name or 'thread'} ({tid})" for key, tid, name in known.iter_rows()}
    place = {key: number for number, key in enumerate(keys)}
    at = thread.replace_strict(place, return_dtype=pl.Int64).to_numpy()
    return [named.get(key, "a thread without a name") for key in keys], at


def _pruned(nodes: Nodes) -> Nodes:
    """Keep the largest nodes of a large tree; what is left out inside each is summed up in one."""
    if len(nodes) <= MOST_NODES:
        return nodes
    parts = [own / max(1, own[nodes.parent < 0].sum()) for own in (nodes.host_ns, nodes.gpu_ns)]
    # Nothing is larger than what it lies in, so that whoever is kept has somebody to lie in.
    order = np.lexsort((nodes.depth, -np.maximum(*parts)))
    kept = np.sort(order[:_KEPT])
    out = np.sort(order[_KEPT:])
    out = out[(nodes.parent[out] < 0) | np.isin(nodes.parent[out], kept)]
    sums = _summed(nodes, out)
    place = np.full(len(nodes) + 1, -1, np.int64)
    place[kept] = np.arange(len(kept))
    joined = nodes.take(kept).extended(sums)
    return joined.with_parents(place[joined.parent])


def _summed(nodes: Nodes, out: Ints) -> Nodes:
    """Sum nodes up by the one that they lie in."""
    parents, group = np.unique(nodes.parent[out], return_inverse=True)

    def total(values: Ints) -> Ints:
        return np.bincount(group, values[out], len(parents)).astype(np.int64)

    below = nodes.depth[out]
    return Nodes(
        names=nodes.names,
        name=np.full(len(parents), -1, np.int64),
        parent=parents,
        depth=below[np.unique(group, return_index=True)[1]],
        calls=total(nodes.calls),
        host_ns=total(nodes.host_ns),
        gpu_ns=total(nodes.gpu_ns),
        smaller=np.bincount(group, minlength=len(parents)).astype(np.int64),
    )


def _ordered(nodes: Nodes) -> Nodes:
    """Put outer nodes before inner ones, and the longest first; sums of what is left out last."""
    order = np.lexsort((-nodes.gpu_ns, -nodes.host_ns, nodes.name < 0, nodes.depth))
    place = np.full(len(nodes) + 1, -1, np.int64)
    place[order] = np.arange(len(nodes))
    moved = nodes.take(order)
    return moved.with_parents(place[moved.parent])


def _left_out_notes(rows: Rows, nodes: Nodes) -> Iterable[str]:
    smaller = int(nodes.smaller.sum())
    if smaller:
        yield f"the {_KEPT:,} largest are shown; {smaller:,} smaller ones are summed up"
    deeper = int((rows.depth >= DEEPEST).sum())
    if deeper:
        yield f"{deeper:,} ranges lie more than {DEEPEST} deep and are not shown"


def _tree(
    nodes: Nodes, has_gpu: bool, ranges: int, threads: int, notes: tuple[str, ...]
) -> RangeTree:
    used, at = np.unique(nodes.name, return_inverse=True)
    texts = tuple(nodes.names[number] for number in used if number >= 0)
    nameless = len(used) - len(texts)
    return RangeTree(
        names=texts,
        name=at - nameless,
        parent=nodes.parent,
        calls=nodes.calls,
        host_ns=nodes.host_ns,
        gpu_ns=nodes.gpu_ns if has_gpu else None,
        smaller=nodes.smaller,
        ranges=ranges,
        threads=threads,
        notes=notes,
    )
