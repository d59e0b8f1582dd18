"""Quantities of captures that are compared: single ones, and rows of the same key on both sides."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, TypeAlias, TypeVar

import numpy as np

from gpusight.comparison.significance import (
    Basis,
    ChangeVerdict,
    MeasuredChange,
    SampledChange,
    compare_series,
    compare_values,
)
from gpusight.results import Fmt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from gpusight.comparison.digest import Digest

    Floats: TypeAlias = NDArray[np.float64]


Value: TypeAlias = "SampledChange | float | None"
"""Of one capture: a row of values by block, one value for the whole, or not known."""
API = "api"
_REASONS = {
    "api": "the capture has no API calls, which say why the GPU idles",
    "graph": "CUDA graphs were traced as wholes: their kernels are not in the capture",
    "findings": "the finding is no matter of time",
    "ranges": "the capture does not tell which GPU work the ranges launched",
}
"""Why a capture does not know a part, where it does not say so itself."""


@dataclass(frozen=True)
class ComparedQuantity:
    """One quantity of some captures."""

    key: str
    label: str
    fmt: Fmt
    by_capture: tuple[Value, ...]
    missing: str = ""
    """Why a capture does not know it; empty where all do."""
    found: bool = True
    """Whether a pattern matches anything; what matches nothing is 0, or misspelt."""
    lost: bool = False
    """Whether a capture lost the data that it is summed over."""

    @property
    def known(self) -> tuple[SampledChange | float, ...]:
        """The captures that know it."""
        return tuple(one for one in self.by_capture if one is not None)

    @property
    def means(self) -> tuple[float, ...]:
        """The mean a step of each capture that knows it."""
        return tuple(one if isinstance(one, float) else float(one.means[0]) for one in self.known)

    @property
    def mean(self) -> float | None:
        """The mean over captures, each of which counts alike; None where none knows it."""
        return float(np.mean(self.means)) if self.known else None


def measured(
    digests: Sequence[Digest],
    key: str,
    label: str,
    fmt: Fmt,
    value: Callable[[Digest], Floats | float | None],
    part: str = "",
    *,
    needs: Sequence[str] = (),
    found: bool = True,
) -> ComparedQuantity:
    """Ask every capture for a quantity; None where it does not know, and then `part` tells why.

    It is not known either where the capture lost one of the sources that it `needs`.
    """
    lost = [_lost(digest, needs) for digest in digests]
    # Without API calls nothing says why a GPU idles: all such entries are 0 then.
    blind = [API in needs and API in digest.missing for digest in digests]
    known = zip(digests, lost, blind, strict=True)
    values = [None if gone or unseen else value(one) for one, gone, unseen in known]
    by_capture = tuple(
        one
        if one is None or isinstance(one, float)
        else SampledChange(digest.blocks, one[np.newaxis])
        for digest, one in zip(digests, values, strict=True)
    )
    gone = next((reason for reason in lost if reason), "")
    missing = gone or _why_missing(digests, by_capture, API if any(blind) else part)
    return ComparedQuantity(key, label, fmt, by_capture, missing, found, bool(gone))


def _lost(digest: Digest, needs: Sequence[str]) -> str:
    """Say which of these sources a capture lost; empty where none."""
    gone = [digest.lost[source] for source in needs if source in digest.lost]
    return f"{digest.label}: {gone[0]}" if gone else ""


def _why_missing(digests: Sequence[Digest], values: Sequence[Value], part: str) -> str:
    """Give the reason that the first capture has which does not know."""
    for digest, value in zip(digests, values, strict=True):
        if value is None:
            why = digest.missing.get(part) or _REASONS.get(part, "the capture does not tell")
            return f"{digest.label}: {why}"
    return ""


def summed(series: Iterable[Sequence[float]], digest: Digest) -> Floats:
    """Add series of a capture up."""
    total = np.zeros(len(digest.blocks))
    for one in series:
        total += one
    return total


def changes(
    pairs: Sequence[tuple[ComparedQuantity, ComparedQuantity]], *, confidence: float, least: float
) -> list[MeasuredChange]:
    """Say by how much quantities changed; series of all captures are tested together."""
    whole = [at for at, pair in enumerate(pairs) if all(map(_is_series, pair))]
    others = sorted({*range(len(pairs))} - {*whole})
    found = {at: _changed(pairs[at], confidence, least) for at in others}
    if whole:
        sides = [_stacked([pairs[at][side] for at in whole]) for side in (0, 1)]
        tested = compare_series(*sides, confidence=confidence, least=least)
        found |= dict(zip(whole, tested, strict=True))
    return [found[at] for at in range(len(pairs))]


def _is_series(one: ComparedQuantity) -> bool:
    values = one.by_capture
    return bool(values) and all(isinstance(value, SampledChange) for value in values)


def _changed(
    pair: tuple[ComparedQuantity, ComparedQuantity], confidence: float, least: float
) -> MeasuredChange:
    """Say by how much one quantity changed that is single values, or that captures lack."""
    before, after = pair
    if not before.known or not after.known:
        return MeasuredChange(
            before.mean, after.mean, None, None, ChangeVerdict.UNCLEAR, Basis.NONE
        )
    series = [
        [one for one in side.known if isinstance(one, SampledChange)] for side in (before, after)
    ]
    if len(series[0]) == len(before.known) and len(series[1]) == len(after.known):
        return compare_series(*series, confidence=confidence, least=least)[0]
    return compare_values(before.means, after.means, confidence=confidence, least=least)


def _stacked(rows: Sequence[ComparedQuantity]) -> list[SampledChange]:
    """Give one sample a capture with a row for each quantity."""
    captures = zip(*(row.by_capture for row in rows), strict=True)
    return [
        _stack([one for one in column if isinstance(one, SampledChange)]) for column in captures
    ]


def _stack(samples: Sequence[SampledChange]) -> SampledChange:
    return SampledChange(samples[0].blocks, np.vstack([one.values for one in samples]))


Key = TypeVar("Key")
Row = TypeVar("Row")


class ChangeRows(Generic[Key, Row]):
    """One table of all captures; a row that a capture has not is 0 there."""

    def __init__(
        self,
        before: Sequence[tuple[Digest, Mapping[Key, Row]]],
        after: Sequence[tuple[Digest, Mapping[Key, Row]]],
    ) -> None:
        self._before, self._after = before, after
        self._tables = [table for _, table in (*before, *after)]
        self.keys = list(dict.fromkeys(key for table in self._tables for key in table))

    @classmethod
    def of(
        cls,
        before: Sequence[Digest],
        after: Sequence[Digest],
        table: Callable[[Digest], Mapping[Key, Row]],
    ) -> ChangeRows[Key, Row]:
        """Take a table of every capture."""
        return cls([(one, table(one)) for one in before], [(one, table(one)) for one in after])

    def named(self, key: Key) -> list[Row]:
        """Give the rows of a key, of those captures that have it."""
        return [table[key] for table in self._tables if key in table]

    def pairs(
        self, series: Callable[[Row], Sequence[float]], keys: Iterable[Key]
    ) -> list[tuple[ComparedQuantity, ComparedQuantity]]:
        """Give a quantity of some rows, before and after."""
        sides = (self._before, self._after)
        return [(_quantity(sides[0], k, series), _quantity(sides[1], k, series)) for k in keys]

    def means(self, series: Callable[[Row], Sequence[float]], key: Key) -> tuple[float, float]:
        """Give the mean a step of a row, before and after."""
        old, new = self.pairs(series, [key])[0]
        return float(np.mean(old.means)), float(np.mean(new.means))


def _quantity(
    side: Sequence[tuple[Digest, Mapping[Key, Row]]],
    key: Key,
    series: Callable[[Row], Sequence[float]],
) -> ComparedQuantity:
    samples = []
    for digest, mine in side:
        values = np.array(series(mine[key]) if key in mine else np.zeros(len(digest.blocks)), float)
        samples.append(SampledChange(digest.blocks, values[np.newaxis]))
    return ComparedQuantity("", "", Fmt.TIME, tuple(samples))
