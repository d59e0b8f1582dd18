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
    unmatched = [
        {name: _SCOPE.sub("", name) for name in own} for own in (first - second, second - first)
    ]
    common = set(unmatched[0].values()) & set(unmatched[1].values())
    unscoped = {name: short for own in unmatched for name, short in own.items() if short in common}
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
            shared = next((name for name in (written, demangled) if name in known), None)
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
NO_NAME, NO_SHAPE, NOT_IN_ORDER = "name", "shape", "place"
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
    left_reason: tuple[str, ...]
    """For each of `left_only`: `name`, `shape` or `place`."""
    right_reason: tuple[str, ...]
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
    left_reason: pl.Series
    """For each row of the timeline: why it has none; empty where it has one."""
    right_reason: pl.Series
    """For each measured launch: why it represents none; empty where it does."""
    keys: KernelKeys
    occurrences: int
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
    left_keys, right_keys = keys.left.to_numpy(), keys.right.to_numpy()
    aligned = _align(left_keys, right_keys)
    left_rows, right_rows = _pair_by_ordinal(left_keys, right_keys) if aligned is None else aligned
    left_only = np.setdiff1d(np.arange(len(left_keys)), left_rows)
    right_only = np.setdiff1d(np.arange(len(right_keys)), right_rows)
    left_reason = _reasons(keys.left, keys.left_name, keys.right, keys.right_name)
    right_reason = _reasons(keys.right, keys.right_name, keys.left, keys.left_name)
    return LaunchMatch(
        left_rows,
        right_rows,
        left_only,
        right_only,
        tuple(reason or NOT_IN_ORDER for reason in left_reason.gather(left_only)),
        tuple(reason or NOT_IN_ORDER for reason in right_reason.gather(right_only)),
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
    left_keys, right_keys = keys.left.to_numpy(), keys.right.to_numpy()
    right_row = _pair_by_ordinal_repeating(left_keys, right_keys)
    in_sequence = np.zeros(len(left_keys), dtype=np.bool_)
    starts = _occurrences(left_keys, right_keys)
    for start in starts:
        right_row[start : start + len(right_keys)] = np.arange(len(right_keys))
        in_sequence[start : start + len(right_keys)] = True
    return LaunchCover(
        right_row,
        in_sequence,
        _reasons(keys.left, keys.left_name, keys.right, keys.right_name),
        _reasons(keys.right, keys.right_name, keys.left, keys.left_name),
        keys,
        len(starts),
    )


def _reasons(
    key: pl.Series, name: pl.Series, other_key: pl.Series, other_name: pl.Series
) -> pl.Series:
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


def _align(left_keys: Rows, right_keys: Rows) -> tuple[Rows, Rows] | None:
    """Pair as many launches as possible without crossing; None where that would take too long.

    What agrees at the start and at the end stays together.
    """
    shorter = min(len(left_keys), len(right_keys))
    differences = np.flatnonzero(left_keys[:shorter] != right_keys[:shorter])
    head = int(differences[0]) if len(differences) else shorter
    differences = np.flatnonzero(
        left_keys[::-1][: shorter - head] != right_keys[::-1][: shorter - head]
    )
    tail = int(differences[0]) if len(differences) else shorter - head
    left_end, right_end = len(left_keys) - tail, len(right_keys) - tail
    if (left_end - head) * (right_end - head) > _MAX_COMPARED_PAIRS:
        return None
    inner_left, inner_right = _longest_common(left_keys[head:left_end], right_keys[head:right_end])
    return (
        np.concatenate([np.arange(head), inner_left + head, np.arange(left_end, len(left_keys))]),
        np.concatenate(
            [np.arange(head), inner_right + head, np.arange(right_end, len(right_keys))]
        ),
    )


def _longest_common(left_keys: Rows, right_keys: Rows) -> tuple[Rows, Rows]:
    """Find the longest common subsequence: the rows on either side."""
    if len(left_keys) > len(right_keys):  # few and long rows are faster
        right, left = _longest_common(right_keys, left_keys)
        return left, right
    # lengths[i, j] is that of the first i left and the first j right keys; a row at a time.
    # The shorter side of `_MAX_COMPARED_PAIRS` pairs has at most 5,000 launches: uint16 holds them.
    lengths = np.zeros((len(left_keys) + 1, len(right_keys) + 1), dtype=np.uint16)
    for i, key in enumerate(left_keys):
        best = np.maximum(lengths[i, 1:], lengths[i, :-1] + (right_keys == key))
        np.maximum.accumulate(best, out=lengths[i + 1, 1:])
    i, j = len(left_keys), len(right_keys)
    pairs: list[tuple[int, int]] = []
    while i and j:
        if left_keys[i - 1] == right_keys[j - 1]:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        elif lengths[i - 1, j] >= lengths[i, j - 1]:
            i -= 1
        else:
            j -= 1
    rows = np.array(pairs[::-1], dtype=np.int64).reshape(-1, 2)
    return rows[:, 0], rows[:, 1]


def _pair_by_ordinal(left_keys: Rows, right_keys: Rows) -> tuple[Rows, Rows]:
    """Pair the n-th launch of each kernel on one side with the n-th on the other."""
    both = _ordinals(left_keys).join(
        _ordinals(right_keys), on=["key", "nth"], maintain_order="left"
    )
    return both["row"].to_numpy(), both["row_right"].to_numpy()


def _pair_by_ordinal_repeating(left_keys: Rows, right_keys: Rows) -> Rows:
    """Return for each left launch the n-th right one of its kernel, starting again at the end."""
    right = _ordinals(right_keys)
    counts = right.group_by("key").len("count")
    left = _ordinals(left_keys).join(counts, on="key", how="left", maintain_order="left")
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


def _occurrences(left_keys: Rows, right_keys: Rows) -> list[int]:
    """Find where the right keys occur in the left ones, without overlap, by a rolling hash."""
    left_length, right_length = len(left_keys), len(right_keys)
    if right_length == 0 or right_length > left_length:
        return []
    powers = np.cumprod(
        np.concatenate([[np.uint64(1)], np.full(left_length, _HASH_BASE)]), dtype=np.uint64
    )
    sums = np.concatenate(
        [[np.uint64(0)], np.cumsum(left_keys.astype(np.uint64) * powers[:left_length])]
    )
    wanted = np.sum(right_keys.astype(np.uint64) * powers[:right_length], dtype=np.uint64)
    # Hashes wrap around alike on both sides; equal ones are compared in full.
    candidates = np.flatnonzero(
        sums[right_length:] - sums[: left_length - right_length + 1]
        == wanted * powers[: left_length - right_length + 1]
    )
    starts: list[int] = []
    for start in candidates.tolist():
        if (not starts or start >= starts[-1] + right_length) and np.array_equal(
            left_keys[start : start + right_length], right_keys
        ):
            starts.append(start)
    return starts
