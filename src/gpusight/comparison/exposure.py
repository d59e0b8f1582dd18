"""Copies and communication that came to run beside computation, or no longer do.

The ledger counts them only while nothing computes. Where that time changed and their own did not,
it is their place that changed; where their own did though they move as much, it is their speed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from gpusight.analyses.ledger.labels import COMMUNICATION, COPY
from gpusight.comparison.wording import in_one_unit, shown
from gpusight.result import Fmt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpusight.comparison.change import Change
    from gpusight.comparison.outcome import Comparison

_ALIKE = 0.1
"""Up to this part a difference counts as none here."""


class _Own(NamedTuple):
    """What work costs and moves itself, whatever runs beside it; mean over GPUs."""

    before: float
    after: float

    @property
    def alike(self) -> bool:
        return self.before > 0 and abs(self.after - self.before) <= self.before * _ALIKE


def exposures(found: Comparison) -> Iterator[str]:
    """Say where copies and communication changed their place, or copies their speed."""
    if len(found.before.gpus) != len(found.after.gpus):
        return
    gpus = max(len(found.before.gpus), 1)
    copies = [one for one in found.copies if one.bytes_before or one.bytes_after]
    kernels = [one.ns for one in found.kernels if one.category == COMMUNICATION]
    moved = _claimed(found, COPY)
    took = _own((one.ns for one in copies), gpus)
    if moved and took.alike:
        yield _place("Copies", moved, took)
    elif moved and took.before and took.after:
        size = _Own(sum(c.bytes_before for c in copies), sum(c.bytes_after for c in copies))
        if size.alike:
            yield _speed(size, took)
    moved, took = _claimed(found, COMMUNICATION), _own(kernels, gpus)
    if moved and took.alike:
        yield _place("Kernels that communicate", moved, took)


def _claimed(found: Comparison, group: str) -> float:
    """Give by how much a group of the ledger surely changed; 0 where that does not matter."""
    every = (*found.ledger, *found.between)
    mine = [one.change for one in every if f"{one.entry}/".startswith(f"{group}/")]
    moved = sum(one.delta or 0.0 for one in mine if one.claimed)
    return moved if abs(moved) >= found.least * (found.step.before or 0.0) else 0.0


def _own(rows: Iterable[Change], gpus: int) -> _Own:
    every = list(rows)
    return _Own(
        sum(x.before or 0.0 for x in every) / gpus, sum(x.after or 0.0 for x in every) / gpus
    )


def _place(name: str, moved: float, took: _Own) -> str:
    where = "now run beside computation" if moved < 0 else "no longer run beside computation"
    times = in_one_unit(shown(took.before), shown(took.after), " -> ")
    how = "less" if moved < 0 else "more"
    alone = f"{shown(abs(moved))} {how} of it with nothing beside"
    return f"{name} {where}: they take as long ({times} a step), {alone}."


def _speed(size: _Own, took: _Own) -> str:
    how = "less" if took.after < took.before else "more"
    times = in_one_unit(shown(took.before), shown(took.after), " -> ")
    amount = shown(size.after, Fmt.BYTES)
    return f"Copies move as much as before ({amount} a step) in {how} time: {times}."
