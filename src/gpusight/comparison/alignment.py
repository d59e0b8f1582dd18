"""Lays two sequences beside each other: which items of one stand where items of the other do.

The longest common subsequence, found with one long integer a row (Crochemore, Iliopoulos, Pinzon
and Reid 2001; Hyyrö 2004): steps are repetitive, where `difflib` takes quadratic time in Python.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Hashable, Sequence

Pairs: TypeAlias = "list[tuple[int, int]]"
"""Positions in the one and in the other sequence, both rising."""


def align(one: Sequence[Hashable], other: Sequence[Hashable]) -> Pairs:
    """Pair up as many equal items as possible without crossing.

    `align(b, a)` gives the pairs of `align(a, b)` the other way round, ties included.
    """
    codes = {item: at for at, item in enumerate(sorted({*one, *other}, key=repr))}
    left, right = [codes[item] for item in one], [codes[item] for item in other]
    turned = (len(left), left) > (len(right), right)
    if turned:
        left, right = right, left
    ahead, behind = _common_ends(left, right)
    middle = _longest(left[ahead : len(left) - behind], right[ahead : len(right) - behind])
    found = [(i, i) for i in range(ahead)]
    found += [(i + ahead, j + ahead) for i, j in middle]
    found += [(len(left) - i, len(right) - i) for i in range(behind, 0, -1)]
    return [(j, i) for i, j in found] if turned else found


def gaps(pairs: Pairs, one: int, other: int) -> list[tuple[range, range]]:
    """Give what lies between pairs, where both sequences (of these lengths) have something."""
    edges = [(-1, -1), *pairs, (one, other)]
    between = ((range(i + 1, k), range(j + 1, n)) for (i, j), (k, n) in pairwise(edges))
    return [(left, right) for left, right in between if left and right]


def _common_ends(left: list[int], right: list[int]) -> tuple[int, int]:
    """Count the items that both begin with, and those that both end with."""
    shorter = min(len(left), len(right))
    ahead = next((i for i in range(shorter) if left[i] != right[i]), shorter)
    rest = shorter - ahead
    behind = next((i for i in range(rest) if left[-1 - i] != right[-1 - i]), rest)
    return ahead, behind


def _longest(left: list[int], right: list[int]) -> Pairs:
    """Find a longest common subsequence.

    Bit j of `rows[i]` is 0 where the first i items of `left` share more with the first j + 1 of
    `right` than with the first j.
    """
    places: dict[int, int] = {}
    for j, item in enumerate(right):
        places[item] = places.get(item, 0) | (1 << j)
    full = (1 << len(right)) - 1
    rows = [full]
    for item in left:
        row = rows[-1]
        shared = row & places.get(item, 0)
        rows.append(((row + shared) | (row - shared)) & full if shared else row)
    return _walk_back(rows, len(left), len(right))


def _walk_back(rows: list[int], i: int, j: int) -> Pairs:
    """Read the pairs off the rows, from the end."""
    found: Pairs = []
    while i and j:
        if rows[i] >> (j - 1) & 1:
            j -= 1
            continue
        i -= 1
        if rows[i] >> (j - 1) & 1:
            j -= 1
            found.append((i, j))
    return found[::-1]
