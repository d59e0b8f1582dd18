"""Pairs the launches of two captures of one program in launch order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.join.kernel_keys import KernelKeys, launch_keys

if TYPE_CHECKING:
    from numpy.typing import NDArray

    Rows = NDArray[np.int64]
    """Row numbers; -1 stands for none."""


ORDER = ("process", "correlation", "start_ns")
"""Columns of a timeline that tell in which order its kernels were launched."""
NO_NAME, NO_SHAPE, NO_PLACE = "name", "shape", "place"
"""Why a launch has no partner: no launch of its name, none of its grid and block, none left at its
place in the order."""
_COMPARABLE = 25_000_000
"""Pairs of launches that are compared for the best alignment; beyond, order within a kernel."""
_BASE = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class LaunchMatch:
    """Launches of two captures, paired in order; row numbers of the frames given."""

    left: Rows
    """Rows that have a partner, rising."""
    right: Rows
    """Their partners."""
    left_only: Rows
    right_only: Rows
    left_why: tuple[str, ...]
    """For each of `left_only`: `name`, `shape` or `place`."""
    right_why: tuple[str, ...]
    keys: KernelKeys
    in_order: bool
    """Whether partners rise on both sides; else they are the n-th launches of their kernel."""

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The partners as pairs of row numbers."""
        return list(zip(self.left.tolist(), self.right.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class LaunchCover:
    """For each launch of a timeline, the measured launch that tells of it."""

    right: Rows
    """Row of the measured launch, -1 for none, for each row of the timeline."""
    in_sequence: NDArray[np.bool_]
    """Whether it was found as part of the whole sequence of measured launches."""
    left_why: pl.Series
    """For each row of the timeline: why it has none; empty where it has."""
    right_why: pl.Series
    """For each measured launch: why it tells of none; empty where it does."""
    keys: KernelKeys
    runs: int
    """How often the whole sequence of measured launches occurs in the timeline, without overlap."""


def in_launch_order(kernels: pl.DataFrame) -> pl.DataFrame:
    """Sort kernels of a timeline as they were launched, one process after the other.

    Streams may have run them in another order. Where launches are not numbered, that must do.
    """
    if kernels["correlation"].null_count():
        return kernels
    return kernels.sort(ORDER, maintain_order=True)


def match(left: pl.DataFrame, right: pl.DataFrame) -> LaunchMatch:
    """Pair the launches of two captures by name, grid, block and order; each at most once.

    Frames have the columns `NEEDS`, rows in order of launch. Where launches are missing on a side,
    as many of the rest as can be are paired in order, so that nothing shifts.
    """
    keys = launch_keys(left, right)
    a, b = keys.left.to_numpy(), keys.right.to_numpy()
    in_order = True
    if np.array_equal(a, b):
        rows = np.arange(len(a))
        found = (rows, rows)
    elif _core(a, b) <= _COMPARABLE:
        found = _aligned(a, b)
    else:
        found, in_order = _nth(a, b), False
    left_only, right_only = (
        np.setdiff1d(np.arange(n), rows) for n, rows in zip((len(a), len(b)), found, strict=True)
    )
    left_why = _why(keys.left, keys.left_name, keys.right, keys.right_name)
    right_why = _why(keys.right, keys.right_name, keys.left, keys.left_name)
    return LaunchMatch(
        *found,
        left_only,
        right_only,
        tuple(why or NO_PLACE for why in left_why.gather(left_only)),
        tuple(why or NO_PLACE for why in right_why.gather(right_only)),
        keys,
        in_order,
    )


def cover(left: pl.DataFrame, right: pl.DataFrame) -> LaunchCover:
    """Find for every launch of a timeline (`left`) the measured launch that tells of it.

    Where all measured launches occur in the timeline one after the other, they tell of those. Else
    the n-th launch of a kernel is told by its n-th measured one, and when these are used up they
    start again, as steps do.
    """
    keys = launch_keys(left, right)
    a, b = keys.left.to_numpy(), keys.right.to_numpy()
    right_row = _nth_around(a, b)
    in_sequence = np.zeros(len(a), dtype=np.bool_)
    starts = _occurrences(a, b)
    for start in starts:
        right_row[start : start + len(b)] = np.arange(len(b))
        in_sequence[start : start + len(b)] = True
    return LaunchCover(
        right_row,
        in_sequence,
        _why(keys.left, keys.left_name, keys.right, keys.right_name),
        _why(keys.right, keys.right_name, keys.left, keys.left_name),
        keys,
        len(starts),
    )


def _why(key: pl.Series, name: pl.Series, other_key: pl.Series, other_name: pl.Series) -> pl.Series:
    """Say for each launch why the other side has none like it; empty where it has."""
    frame = pl.DataFrame({"key": key, "name": name}).select(
        pl.when(pl.col("key").is_in(other_key.unique().implode()))
        .then(pl.lit(""))
        .when(pl.col("name").is_in(other_name.unique().implode()))
        .then(pl.lit(NO_SHAPE))
        .otherwise(pl.lit(NO_NAME))
        .alias("why")
    )
    return frame["why"]


def _ends(a: Rows, b: Rows) -> tuple[int, int]:
    """Count the launches that agree at the start, and then at the end."""
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    head = int(differs[0]) if len(differs) else n
    rest = n - head
    differs = np.flatnonzero(a[::-1][:rest] != b[::-1][:rest])
    return head, int(differs[0]) if len(differs) else rest


def _core(a: Rows, b: Rows) -> int:
    """Count the pairs that an alignment has to look at."""
    head, tail = _ends(a, b)
    return (len(a) - head - tail) * (len(b) - head - tail)


def _aligned(a: Rows, b: Rows) -> tuple[Rows, Rows]:
    """Pair as many launches as can be without crossing; what agrees at the ends stays together."""
    head, tail = _ends(a, b)
    inner = _longest_common(a[head : len(a) - tail], b[head : len(b) - tail])
    spans = [np.arange(head), inner[0] + head, np.arange(len(a) - tail, len(a))]
    partners = [np.arange(head), inner[1] + head, np.arange(len(b) - tail, len(b))]
    return np.concatenate(spans), np.concatenate(partners)


def _longest_common(a: Rows, b: Rows) -> tuple[Rows, Rows]:
    """Find the longest sequence that both hold in order: the rows on either side."""
    if len(a) > len(b):  # rows are few, and long
        right, left = _longest_common(b, a)
        return left, right
    # lengths[i, j]: of the first i of `a` and the first j of `b`; a row at a time.
    lengths = np.zeros((len(a) + 1, len(b) + 1), dtype=np.uint16)
    for i, key in enumerate(a):
        best = np.maximum(lengths[i, 1:], lengths[i, :-1] + (b == key))
        np.maximum.accumulate(best, out=lengths[i + 1, 1:])
    i, j = len(a), len(b)
    pairs: list[tuple[int, int]] = []
    while i and j:
        if a[i - 1] == b[j - 1]:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        elif lengths[i - 1, j] >= lengths[i, j - 1]:
            i -= 1
        else:
            j -= 1
    found = np.array(pairs[::-1], dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]


def _nth(a: Rows, b: Rows) -> tuple[Rows, Rows]:
    """Pair the n-th launch of each kernel on one side with the n-th on the other."""
    frames = [_ordinals(keys) for keys in (a, b)]
    both = frames[0].join(frames[1], on=["key", "nth"], suffix="_right", maintain_order="left")
    return both["row"].to_numpy(), both["row_right"].to_numpy()


def _nth_around(a: Rows, b: Rows) -> Rows:
    """Give for each launch of `a` the n-th of its kernel in `b`, starting again at the end."""
    left, right = _ordinals(a), _ordinals(b)
    counts = right.group_by("key").len("count")
    turned = left.join(counts, on="key", how="left", maintain_order="left").with_columns(
        pl.col("nth") % pl.col("count")
    )
    found = turned.join(
        right, on=["key", "nth"], how="left", suffix="_right", maintain_order="left"
    )
    return found["row_right"].fill_null(-1).to_numpy().astype(np.int64)


def _ordinals(keys: Rows) -> pl.DataFrame:
    """Count the launches of each kernel from 0: `row`, `key`, `nth`."""
    frame = pl.DataFrame({"key": keys}).with_row_index("row")
    nth = pl.int_range(pl.len(), dtype=pl.Int64).over("key")
    return frame.select(
        pl.col("row").cast(pl.Int64), pl.col("key").cast(pl.Int64), nth.alias("nth")
    )


def _occurrences(a: Rows, b: Rows) -> list[int]:
    """Find where `b` occurs in `a` as a run, without overlap, in one pass over `a`."""
    n, m = len(a), len(b)
    if m == 0 or m > n:
        return []
    powers = np.cumprod(np.concatenate([[np.uint64(1)], np.full(n, _BASE)]), dtype=np.uint64)
    sums = np.concatenate([[np.uint64(0)], np.cumsum(a.astype(np.uint64) * powers[:n])])
    wanted = np.sum(b.astype(np.uint64) * powers[:m], dtype=np.uint64)
    # Sums wrap around, for `a` and `b` alike: equal sums are looked at, unequal ones are done with.
    alike = np.flatnonzero(sums[m:] - sums[: n - m + 1] == wanted * powers[: n - m + 1])
    starts: list[int] = []
    for at in alike.tolist():
        if (not starts or at >= starts[-1] + m) and np.array_equal(a[at : at + m], b):
            starts.append(at)
    return starts
