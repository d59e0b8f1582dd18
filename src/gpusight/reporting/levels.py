"""Ranges to the nodes of a tree, one level at a time: every range of a level is looked at at once.

A loop is over levels, never over ranges, so that a million of them take a moment.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import polars as pl

from gpusight.analyses.ledger.contributors import RECORD, families
from gpusight.analyses.statistics import names_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]

DEEPEST = 100
"""Levels that are looked at."""
_MANY = 8
"""More names than this that differ only by numbers, within one node, are one name."""


@dataclass(frozen=True)
class Rows:
    """Ranges in columns."""

    parent: Ints
    """Row that it lies in; -1 at the top."""
    depth: Ints
    host_ns: Ints
    gpu_ns: Ints


@dataclass(frozen=True)
class Nodes:
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

    def take(self, at: Ints) -> Nodes:
        """Give these nodes; their parents keep their old numbers."""
        return self._with({key: getattr(self, key)[at] for key in _COLUMNS})

    def extended(self, more: Nodes) -> Nodes:
        """Put further nodes behind."""
        pairs = {key: (getattr(self, key), getattr(more, key)) for key in _COLUMNS}
        return self._with({key: np.concatenate(pair) for key, pair in pairs.items()})

    def _with(self, columns: dict[str, Any]) -> Nodes:
        return replace(self, **columns)

    def with_parents(self, parent: Ints) -> Nodes:
        """Give the same nodes with other numbers of parents."""
        return replace(self, parent=parent)


_COLUMNS = ("name", "parent", "depth", "calls", "host_ns", "gpu_ns", "smaller")


@dataclass(frozen=True)
class _Names:
    """What ranges may be called: by their own names, and by those of families."""

    texts: pl.Series
    """Names without what a framework writes behind them, then families."""
    plain: Ints
    """Position in `texts` of each name of the table."""
    family: Ints
    """Position in `texts` of the family of each plain name."""
    is_step: NDArray[np.bool_]
    """Whether a family is that of steps."""


def merge(
    rows: Rows, names: pl.Series, threads: tuple[list[str], Ints], steps: Sequence[str]
) -> Nodes:
    """Make nodes of ranges; `names` and the threads' numbers are those of the rows."""
    known = _names(names, steps)
    name = known.plain[names.to_physical().to_numpy()]
    labels, thread = threads
    node = np.full(len(name), -1, np.int64)
    nodes = _of_threads(labels, len(known.texts)) if len(labels) > 1 else _none(())
    above = len(nodes)
    for depth in range(min(int(rows.depth.max()) + 1, DEEPEST)):
        at = np.flatnonzero(rows.depth == depth)
        outer = np.where(rows.parent[at] >= 0, node[rows.parent[at]], -1)
        outer = np.where(outer >= 0, outer, thread[at] if above else -1)
        level, which = _level(rows, at, outer, _chosen(known, outer, name[at]), depth + bool(above))
        node[at] = which + len(nodes)
        nodes = nodes.extended(level)
    named = replace(nodes, names=[*known.texts.to_list(), *labels])
    return _with_sums(named, above) if above else named


def _names(names: pl.Series, steps: Sequence[str]) -> _Names:
    texts = pl.Series(names_of(names), dtype=pl.String)
    own, plain = _numbered(texts.str.replace(RECORD, ""))
    kinds, family = _numbered(families(own))
    counted = families(pl.Series(list(dict.fromkeys(steps)), dtype=pl.String)).unique()
    return _Names(
        pl.concat([own, kinds]),
        plain,
        family + len(own),
        np.append(np.zeros(len(own), np.bool_), kinds.is_in(counted.implode()).to_numpy()),
    )


def _numbered(texts: pl.Series) -> tuple[pl.Series, Ints]:
    """Give every text once, and where each stands among these."""
    once = texts.unique(maintain_order=True).alias("text")
    places = pl.DataFrame([once]).with_row_index("place")
    found = pl.DataFrame({"text": texts}).join(places, on="text", how="left", maintain_order="left")
    return once, found["place"].to_numpy().astype(np.int64)


def _chosen(known: _Names, outer: Ints, name: Ints) -> Ints:
    """Give the name of each range: its own, or its family's where that has many in one node."""
    width = len(known.texts)
    pairs, at = np.unique((outer + 1) * width + name, return_inverse=True)
    family = known.family[pairs % width]
    _, kind, members = np.unique(
        pairs // width * width + family, return_inverse=True, return_counts=True
    )
    merged = (members[kind] > _MANY) | known.is_step[family]
    names: Ints = np.where(merged, family, pairs % width)
    return names[at]


def _level(rows: Rows, at: Ints, outer: Ints, name: Ints, depth: int) -> tuple[Nodes, Ints]:
    """Sum up ranges of one level by the node that they lie in and their name."""
    width = int(name.max(initial=0)) + 1
    keys, which = np.unique((outer + 1) * width + name, return_inverse=True)

    def total(values: Ints) -> Ints:
        return np.bincount(which, values[at], len(keys)).astype(np.int64)

    level = Nodes(
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


def _of_threads(labels: Sequence[str], first: int) -> Nodes:
    """Make the outermost nodes of threads; their times are known once their ranges are."""
    count = len(labels)
    empty = _none(np.zeros(count, np.int64))
    named = np.arange(first, first + count)
    return replace(empty, name=named, parent=np.full(count, -1, np.int64))


def _with_sums(nodes: Nodes, threads: int) -> Nodes:
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


def _none(values: Ints | tuple[()]) -> Nodes:
    column = np.array(values, np.int64)
    return Nodes((), column, column, column, column, column, column, column)
