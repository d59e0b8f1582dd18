"""Pairs the launches of two captures of one program: by kernel name, grid, block and order."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.kernel_summary import SHAPE
from gpusight.naming.name_parts import normal_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.trace.intervals import Flags, Ints

    Rows = Ints
    """Row numbers; -1 stands for none."""


_SCOPE = re.compile(r"\b[A-Za-z_]\w*::(?=(?!lambda#|operator_call)[A-Za-z_])")
"""A namespace, which printed pages of ncu leave out at times; not the scope of a lambda."""


def base_name(normal: str) -> str:
    """Return the function of a normal name, without namespace and template arguments."""
    return normal.split("<", 1)[0].rsplit("::", 1)[-1]


NEEDS = ("name", "mangled_name", *SHAPE)
"""Columns that identify a kernel; the tables `kernels` and `profiles` have them."""


@dataclass(frozen=True, slots=True)
class KernelKeys:
    """Keys of the launches of two captures: equal where the kernels are."""

    left: pl.Series
    """Key of name, grid and block, for each launch."""
    right: pl.Series
    left_name: pl.Series
    """Key of the name alone."""
    right_name: pl.Series
    by_function: int
    """Names that only agree without their template arguments, which the tools spell differently."""
    shapes: bool
    """Whether grids and blocks were compared; not where a capture lacks them."""


def launch_keys(left: pl.DataFrame, right: pl.DataFrame) -> KernelKeys:
    """Compute the keys of the launches of two captures; frames have the columns `NEEDS`."""
    names, by_function = _common_names(left, right)
    shape = [c for c in SHAPE if all(f[c].null_count() < f.height for f in (left, right))]
    both = pl.concat(
        side.select(name.alias("name"), *(pl.col(c).cast(pl.Int64) for c in shape))
        for side, name in zip((left, right), names, strict=True)
    )
    key = both.select(pl.struct("name", *shape).rank("dense").cast(pl.Int64)).to_series()
    return KernelKeys(
        key[: left.height],
        key[left.height :],
        *names,
        by_function=by_function,
        shapes=bool(shape),
    )


def _common_names(
    left: pl.DataFrame, right: pl.DataFrame
) -> tuple[tuple[pl.Series, pl.Series], int]:
    """Number the kernels of both captures by name; each distinct name is parsed once."""
    sides = [_Names.of(frame) for frame in (left, right)]
    spelling = _shared_spellings(sides[0], sides[1])
    names = [
        [
            spelling.get(w) or spelling.get(d) or w
            for w, d in zip(s.written, s.demangled, strict=True)
        ]
        for s in sides
    ]
    # Names that only agree without their namespaces go without them.
    first, second = (set(side) for side in names)
    unmatched = [{n: _SCOPE.sub("", n) for n in own} for own in (first - second, second - first)]
    common = set(unmatched[0].values()) & set(unmatched[1].values())
    unscoped = {n: short for own in unmatched for n, short in own.items() if short in common}
    names = [[unscoped.get(name, name) for name in side] for side in names]
    by_function = _shared_functions([set(side) for side in names])
    numbers: dict[str, int] = {}
    coded = []
    for side, normal_names in zip(sides, names, strict=True):
        codes = [
            numbers.setdefault(by_function.get(name, name), len(numbers)) for name in normal_names
        ]
        coded.append(pl.Series("name", codes, pl.Int64).gather(side.row_name))
    return (coded[0], coded[1]), len(by_function)


@dataclass(frozen=True, slots=True)
class _Names:
    """The distinct kernels of one capture, by normal name and by demangled mangled name."""

    row_name: pl.Series
    """For each launch, the position of its name."""
    written: Sequence[str]
    demangled: Sequence[str]

    @classmethod
    def of(cls, frame: pl.DataFrame) -> _Names:
        pairs = frame.select(pl.col("name", "mangled_name").to_physical())
        distinct = pairs.unique(maintain_order=True).with_row_index("row_name")
        rows = pairs.join(
            distinct,
            on=["name", "mangled_name"],
            how="left",
            nulls_equal=True,
            maintain_order="left",
        ).get_column("row_name")
        names, mangled = (names_of(frame[c]) for c in ("name", "mangled_name"))
        written = [normal_name(names[code]) for code in distinct["name"]]
        demangled = [
            name if code is None else normal_name(mangled[code]) or name
            for name, code in zip(written, distinct["mangled_name"], strict=True)
        ]
        return cls(rows, written, demangled)


def _shared_spellings(left: _Names, right: _Names) -> dict[str, str]:
    """Choose one spelling for a kernel that has two: demangled by its tool, and by us."""
    known = {*left.written, *left.demangled} & {*right.written, *right.demangled}
    spelling: dict[str, str] = {}
    for side in (left, right):
        for written, demangled in zip(side.written, side.demangled, strict=True):
            shared = next((n for n in (written, demangled) if n in known), None)
            if shared is not None:
                spelling.setdefault(written, spelling.get(shared, shared))
                spelling.setdefault(demangled, spelling[written])
    return spelling


def _shared_functions(sides: list[set[str]]) -> dict[str, str]:
    """Map names that are compared by their function alone to that function.

    That is where one side writes no template arguments; and for all names where no template
    argument agrees: then the two sides spell them in ways that are not understood here.
    """
    groups: list[defaultdict[str, set[str]]] = [defaultdict(set), defaultdict(set)]
    for group, names in zip(groups, sides, strict=True):
        for name in names:
            group[base_name(name)].add(name)
    arguments_agree = any("<" in name for name in sides[0] & sides[1])
    functions: dict[str, str] = {}
    for base in groups[0].keys() & groups[1].keys():
        left, right = groups[0][base], groups[1][base]
        no_arguments = any("<" not in name and "::" not in name for name in left ^ right)
        if no_arguments or not (arguments_agree or left & right):
            functions |= dict.fromkeys(left | right, base)
    return functions


# Launches -----------------------------------------------------------------------------------------


ORDER = ("process", "correlation", "start_ns")
"""Columns of a timeline that give the launch order of its kernels."""
NO_NAME, NO_SHAPE, NO_PLACE = "name", "shape", "place"
"""Why a launch has no partner: no launch of its name, none of its grid and block, none left at its
place in the order."""
_MAX_COMPARED_PAIRS = 25_000_000
"""Beyond, launches are paired by their order within a kernel instead of the best alignment."""
_HASH_BASE = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True)
class LaunchMatch:
    """Launches of two captures, paired in order, as row numbers."""

    left: Rows
    """Rows that have a partner, sorted."""
    right: Rows
    """Their partners."""
    left_only: Rows
    right_only: Rows
    left_why: tuple[str, ...]
    """For each of `left_only`: `name`, `shape` or `place`."""
    right_why: tuple[str, ...]
    keys: KernelKeys
    in_order: bool
    """Whether rows rise on both sides; else partners are the n-th launches of their kernel."""

    @property
    def pairs(self) -> list[tuple[int, int]]:
        """The partners as pairs of row numbers."""
        return list(zip(self.left.tolist(), self.right.tolist(), strict=True))


@dataclass(frozen=True, slots=True)
class LaunchCover:
    """For each launch of a timeline, the measured launch that represents it."""

    right: Rows
    """Row of the measured launch, -1 for none, for each row of the timeline."""
    in_sequence: Flags
    """Whether it was found as part of the whole sequence of measured launches."""
    left_why: pl.Series
    """For each row of the timeline: why it has none; empty where it has one."""
    right_why: pl.Series
    """For each measured launch: why it represents none; empty where it does."""
    keys: KernelKeys
    runs: int
    """How often the whole sequence of measured launches occurs in the timeline, without overlap."""


def in_launch_order(kernels: pl.DataFrame) -> pl.DataFrame:
    """Sort kernels of a timeline as they were launched, one process after the other.

    Streams may have run them in another order. Without correlation ids the order stays.
    """
    if kernels["correlation"].null_count():
        return kernels
    return kernels.sort(ORDER, maintain_order=True)


def match(left: pl.DataFrame, right: pl.DataFrame) -> LaunchMatch:
    """Pair the launches of two captures by name, grid, block and order; each at most once.

    Frames have the columns `NEEDS`, rows in order of launch. Where launches are missing on a side,
    the longest common sequence is paired, so that nothing shifts.
    """
    keys = launch_keys(left, right)
    a, b = keys.left.to_numpy(), keys.right.to_numpy()
    aligned = _aligned(a, b)
    left_rows, right_rows = _nth(a, b) if aligned is None else aligned
    left_only = np.setdiff1d(np.arange(len(a)), left_rows)
    right_only = np.setdiff1d(np.arange(len(b)), right_rows)
    left_why = _why(keys.left, keys.left_name, keys.right, keys.right_name)
    right_why = _why(keys.right, keys.right_name, keys.left, keys.left_name)
    return LaunchMatch(
        left_rows,
        right_rows,
        left_only,
        right_only,
        tuple(why or NO_PLACE for why in left_why.gather(left_only)),
        tuple(why or NO_PLACE for why in right_why.gather(right_only)),
        keys,
        in_order=aligned is not None,
    )


def cover(left: pl.DataFrame, right: pl.DataFrame) -> LaunchCover:
    """Find for every launch of a timeline (`left`) the measured launch that represents it.

    Where the whole sequence of measured launches occurs in the timeline, it represents those. Else
    the n-th launch of a kernel is represented by its n-th measured one, starting again after the
    last, as steps repeat.
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
    """Return for each launch why the other side has none like it; empty where it has one."""
    frame = pl.DataFrame({"key": key, "name": name}).select(
        pl.when(pl.col("key").is_in(other_key.unique().implode()))
        .then(pl.lit(""))
        .when(pl.col("name").is_in(other_name.unique().implode()))
        .then(pl.lit(NO_SHAPE))
        .otherwise(pl.lit(NO_NAME))
        .alias("why")
    )
    return frame["why"]


def _aligned(a: Rows, b: Rows) -> tuple[Rows, Rows] | None:
    """Pair as many launches as possible without crossing; None where that would take too long.

    What agrees at the start and at the end stays together.
    """
    n = min(len(a), len(b))
    differs = np.flatnonzero(a[:n] != b[:n])
    head = int(differs[0]) if len(differs) else n
    differs = np.flatnonzero(a[::-1][: n - head] != b[::-1][: n - head])
    tail = int(differs[0]) if len(differs) else n - head
    a_end, b_end = len(a) - tail, len(b) - tail
    if (a_end - head) * (b_end - head) > _MAX_COMPARED_PAIRS:
        return None
    inner_a, inner_b = _longest_common(a[head:a_end], b[head:b_end])
    return (
        np.concatenate([np.arange(head), inner_a + head, np.arange(a_end, len(a))]),
        np.concatenate([np.arange(head), inner_b + head, np.arange(b_end, len(b))]),
    )


def _longest_common(a: Rows, b: Rows) -> tuple[Rows, Rows]:
    """Find the longest common subsequence: the rows on either side."""
    if len(a) > len(b):  # few and long rows are faster
        right, left = _longest_common(b, a)
        return left, right
    # lengths[i, j] is that of the first i of `a` and the first j of `b`; a row at a time.
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
    rows = np.array(pairs[::-1], dtype=np.int64).reshape(-1, 2)
    return rows[:, 0], rows[:, 1]


def _nth(a: Rows, b: Rows) -> tuple[Rows, Rows]:
    """Pair the n-th launch of each kernel on one side with the n-th on the other."""
    both = _ordinals(a).join(_ordinals(b), on=["key", "nth"], maintain_order="left")
    return both["row"].to_numpy(), both["row_right"].to_numpy()


def _nth_around(a: Rows, b: Rows) -> Rows:
    """Return for each launch of `a` the n-th of its kernel in `b`, starting again at the end."""
    right = _ordinals(b)
    counts = right.group_by("key").len("count")
    left = _ordinals(a).join(counts, on="key", how="left", maintain_order="left")
    left = left.with_columns(pl.col("nth") % pl.col("count"))
    partner = left.join(right, on=["key", "nth"], how="left", maintain_order="left")["row_right"]
    return partner.fill_null(-1).to_numpy().astype(np.int64)


def _ordinals(keys: Rows) -> pl.DataFrame:
    """Count the launches of each kernel from 0: `row`, `key`, `nth`."""
    frame = pl.DataFrame({"key": keys}).with_row_index("row")
    nth = pl.int_range(pl.len(), dtype=pl.Int64).over("key")
    return frame.select(
        pl.col("row").cast(pl.Int64), pl.col("key").cast(pl.Int64), nth.alias("nth")
    )


def _occurrences(a: Rows, b: Rows) -> list[int]:
    """Find where `b` occurs in `a`, without overlap, by a rolling hash."""
    n, m = len(a), len(b)
    if m == 0 or m > n:
        return []
    powers = np.cumprod(np.concatenate([[np.uint64(1)], np.full(n, _HASH_BASE)]), dtype=np.uint64)
    sums = np.concatenate([[np.uint64(0)], np.cumsum(a.astype(np.uint64) * powers[:n])])
    wanted = np.sum(b.astype(np.uint64) * powers[:m], dtype=np.uint64)
    # Hashes wrap around alike for `a` and `b`; equal ones are compared in full.
    candidates = np.flatnonzero(sums[m:] - sums[: n - m + 1] == wanted * powers[: n - m + 1])
    starts: list[int] = []
    for start in candidates.tolist():
        if (not starts or start >= starts[-1] + m) and np.array_equal(a[start : start + m], b):
            starts.append(start)
    return starts
