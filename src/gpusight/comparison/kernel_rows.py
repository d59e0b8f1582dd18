"""The kernels of the two sides of a comparison: one row for each name in each place."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from gpusight.analyses.join.names import normal_name

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpusight.comparison.digest import Digest, Kernels, Series

Key: TypeAlias = "tuple[str, str]"
"""Place and name; a name that only one side has in the spelling that all tools share.

The place is the range; it is empty outside of ranges, and where ranges tell nothing.
"""
Shares: TypeAlias = "dict[Key, float]"
"""Rows, and the part of their launches that is meant."""
Sides: TypeAlias = "tuple[KernelRows, KernelRows]"

REST = ""
"""Name of the row that sums up what a digest does not name."""
MOST_LAUNCHES = 20_000
"""A longer order is not looked at."""
_OTHER_RANGES = 0.05
"""With more than this part of the time in ranges that the other side lacks, ranges were changed."""
_COUNTS = re.compile(r"\d+x\d+|(?<![A-Za-z0-9])\d+|(?=[a-f]*\d)[0-9a-f]{6,}")
_PRECISION = re.compile(r"(?<![A-Za-z0-9])(?:b?f16|t?f32|f64|fp[48]|i8)(?![A-Za-z0-9])")
_SPACES = re.compile(r"\s+")


@dataclass(slots=True)
class Row:
    """One name in one place, over the captures of a side."""

    short: str
    category: str
    ranges: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Time a step in each range, mean over the captures."""
    names: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Time a step under each name, as the captures spell it."""
    calls: float = 0.0
    """Launches a step, likewise."""
    at: list[tuple[int, int]] = field(default_factory=list)
    """Captures, and its positions there."""

    @property
    def ns(self) -> float:
        """Time a step."""
        return sum(self.ranges.values())

    @property
    def mean_ns(self) -> float:
        """Time of one launch."""
        return self.ns / self.calls if self.calls else 0.0

    @property
    def stem(self) -> str:
        """What people call it, without tiles, numbers that count, and precision."""
        return _SPACES.sub(" ", _PRECISION.sub("", _COUNTS.sub("", self.short))).strip()


class KernelRows:
    """All rows of the captures of a side, and one step of theirs in order."""

    def __init__(self, digests: Sequence[Digest], key: Callable[[Kernels], Key]) -> None:
        self.captures = len(digests)
        self.rows: dict[Key, Row] = {}
        self.ranges: defaultdict[str, float] = defaultdict(float)
        """Time a step."""
        for capture, digest in enumerate(digests):
            for position, kernel in enumerate(digest.kernels):
                row = self.rows.setdefault(key(kernel), Row(kernel.short, kernel.category))
                ns = _mean(kernel.ns, digest.blocks) / len(digests)
                row.ranges[kernel.range or ""] += ns
                row.names[kernel.name] += ns
                self.ranges[kernel.range or ""] += ns
                row.calls += _mean(kernel.calls, digest.blocks) / len(digests)
                row.at.append((capture, position))
        self.order = _order(digests, key)
        """Empty where no capture tells it."""
        self.launches = Counter(self.order)

    def ns(self, shares: Shares) -> float:
        """Time a step."""
        return sum(self.rows[key].ns * part for key, part in shares.items())


def both_sides(before: Sequence[Digest], after: Sequence[Digest]) -> Sides:
    """Give the rows of both sides: by range, unless ranges were added, renamed or taken away."""
    ours, theirs = ({row.name for one in side for row in one.kernels} for side in (before, after))
    same = ours & theirs

    def in_range(kernel: Kernels) -> Key:
        return kernel.range or "", anywhere(kernel)[1]

    def anywhere(kernel: Kernels) -> Key:
        return "", kernel.name if kernel.name in same else _spelled(kernel.name)

    sides = KernelRows(before, in_range), KernelRows(after, in_range)
    if all(_within(one, other) for one, other in (sides, sides[::-1])):
        return sides
    return KernelRows(before, anywhere), KernelRows(after, anywhere)


def _within(one: KernelRows, other: KernelRows) -> bool:
    """Whether nearly all work is in ranges that the other side has too."""
    outside = sum(ns for name, ns in one.ranges.items() if name not in other.ranges)
    return outside <= _OTHER_RANGES * sum(one.ranges.values())


@lru_cache(maxsize=16_384)
def _spelled(name: str) -> str:
    return normal_name(name)


def _mean(series: Series, blocks: tuple[int, ...]) -> float:
    """Mean a step; a block counts as often as it has steps."""
    return float(np.average(series, weights=blocks))


def _order(digests: Sequence[Digest], key: Callable[[Kernels], Key]) -> list[Key]:
    """Give the launches of a step, from the capture that has most steps to choose it from."""
    known = [one for one in digests if 0 < len(one.order) <= MOST_LAUNCHES]
    if not known:
        return []
    chosen = max(known, key=lambda one: one.steps)
    keys = [key(kernel) for kernel in chosen.kernels]
    return [keys[at] for at in chosen.order if keys[at][1] != REST]
