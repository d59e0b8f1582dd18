"""Quantities of captures, and by how much they changed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np

from gpusight.comparison.change import Basis, Change, Verdict
from gpusight.comparison.inference import Sampled, compare_series, compare_values

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from numpy.typing import NDArray

    from gpusight.comparison.digest import Digest
    from gpusight.result import Fmt

    Floats: TypeAlias = NDArray[np.float64]

Value: TypeAlias = "Sampled | float | None"
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
class Quantity:
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
    def known(self) -> tuple[Sampled | float, ...]:
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
) -> Quantity:
    """Ask every capture for a quantity; None where it does not know, and then `part` tells why.

    It is not known either where the capture lost one of the sources that it `needs`.
    """
    lost = [_lost(digest, needs) for digest in digests]
    # Without API calls nothing says why a GPU idles: all such entries are 0 then.
    blind = [API in needs and API in digest.missing for digest in digests]
    known = zip(digests, lost, blind, strict=True)
    values = [None if gone or unseen else value(one) for one, gone, unseen in known]
    by_capture = tuple(
        one if one is None or isinstance(one, float) else Sampled(digest.blocks, one[np.newaxis])
        for digest, one in zip(digests, values, strict=True)
    )
    gone = next((reason for reason in lost if reason), "")
    missing = gone or _why_missing(digests, by_capture, API if any(blind) else part)
    return Quantity(key, label, fmt, by_capture, missing, found, bool(gone))


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
    pairs: Sequence[tuple[Quantity, Quantity]], *, confidence: float, least: float
) -> list[Change]:
    """Say by how much quantities changed; series of all captures are tested together."""
    whole = [at for at, pair in enumerate(pairs) if all(map(_is_series, pair))]
    others = sorted({*range(len(pairs))} - {*whole})
    found = {at: _changed(pairs[at], confidence, least) for at in others}
    if whole:
        sides = [_stacked([pairs[at][side] for at in whole]) for side in (0, 1)]
        tested = compare_series(*sides, confidence=confidence, least=least)
        found |= dict(zip(whole, tested, strict=True))
    return [found[at] for at in range(len(pairs))]


def _is_series(one: Quantity) -> bool:
    values = one.by_capture
    return bool(values) and all(isinstance(value, Sampled) for value in values)


def _changed(pair: tuple[Quantity, Quantity], confidence: float, least: float) -> Change:
    """Say by how much one quantity changed that is single values, or that captures lack."""
    before, after = pair
    if not before.known or not after.known:
        return Change(before.mean, after.mean, None, None, Verdict.UNCLEAR, Basis.NONE)
    series = [[one for one in side.known if isinstance(one, Sampled)] for side in (before, after)]
    if len(series[0]) == len(before.known) and len(series[1]) == len(after.known):
        return compare_series(*series, confidence=confidence, least=least)[0]
    return compare_values(before.means, after.means, confidence=confidence, least=least)


def _stacked(rows: Sequence[Quantity]) -> list[Sampled]:
    """Give one sample a capture with a row for each quantity."""
    captures = zip(*(row.by_capture for row in rows), strict=True)
    return [_stack([one for one in column if isinstance(one, Sampled)]) for column in captures]


def _stack(samples: Sequence[Sampled]) -> Sampled:
    return Sampled(samples[0].blocks, np.vstack([one.values for one in samples]))
