"""From launches to the rows of the file: what is merged, what is left out, what keeps its name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analyses.orion.blocks import SM_NEEDED
from gpusight.analyses.orion.classes import NEITHER, PROFILE
from gpusight.analyses.orion.roles import (
    Role,
    adds_up,
    finishes,
    is_complex_gemm,
    prepares,
    role_of,
    row_name,
)

if TYPE_CHECKING:
    from collections.abc import Iterable

NEXT, OWN = "next", "own"
"""Whose row a helper that ran after its convolution is counted to: the next one's, or its own."""
_NAMES = {Role.CONVOLUTION: "Conv", Role.BATCH_NORM: "BatchNorm"}


@dataclass(slots=True)
class Row:
    """A row of the file, and the launches that it is made of."""

    name: str
    role: Role
    main: int
    """Position of the launch that names it, and whose class counts where they disagree."""
    launches: list[int]


@dataclass(slots=True)
class Rows:
    """What the launches became, by their positions in the table of launches."""

    rows: list[Row] = field(default_factory=list)
    left_out: dict[int, str] = field(default_factory=dict)
    """Launches that are in no row, and why."""
    alone: list[int] = field(default_factory=list)
    """Helpers without a convolution, which keep rows of their own."""
    late: list[int] = field(default_factory=list)
    """Helpers counted to the next convolution though they ran right after one."""


class _Walk:
    """Goes through the launches in order."""

    def __init__(self, names: list[str], model_type: str, helpers: str) -> None:
        self._names = names
        self._roles = [role_of(name, model_type) for name in names]
        self._model_type = model_type
        self._helpers = helpers
        self._pending: list[int] = []
        self._last: int | None = None
        """The launch before, copies and fills apart."""
        self.found = Rows()

    def run(self) -> Rows:
        for at, role in enumerate(self._roles):
            if role is Role.MEMORY:
                self.found.left_out[at] = "copy or fill"
                continue
            self._take(at, role)
            self._last = at
        self._leftovers()
        self.found.rows.sort(key=lambda row: row.main)
        return self.found

    def _take(self, at: int, role: Role) -> None:
        if role is Role.HELPER:
            self._helper(at)
        elif role is Role.SPLIT_K:
            self._split_k(at)
        elif role is Role.CONVOLUTION or self._is_convolution_by_gemm(role):
            self._convolution(at)
        else:
            self._add(at, role, [at])

    def _add(self, at: int, role: Role, launches: list[int]) -> None:
        name = _NAMES.get(role) or row_name(self._names[at])
        self.found.rows.append(Row(name, role, at, launches))

    def _helper(self, at: int) -> None:
        row = self._row_before()
        after_one = row is not None and row.role is Role.CONVOLUTION and finishes(self._names[at])
        if row is not None and after_one and (self._helpers == OWN or adds_up(self._names[at])):
            row.launches.append(at)
            return
        if after_one:
            self.found.late.append(at)
        self._pending.append(at)

    def _convolution(self, at: int) -> None:
        row = self._row_before()
        if row is not None and all(is_complex_gemm(self._names[n]) for n in (at, row.main)):
            row.launches.append(at)  # the next product of the same convolution by FFT
            return
        self._add(at, Role.CONVOLUTION, [*self._pending, at])
        self._pending = []

    def _is_convolution_by_gemm(self, role: Role) -> bool:
        """Tell whether cuDNN launched this product: what it prepares comes right before."""
        if role is not Role.GEMM or self._model_type != "vision" or not self._pending:
            return False
        before = self._pending[-1]
        return before == self._last and prepares(self._names[before])

    def _split_k(self, at: int) -> None:
        row = self._row_before()
        if self._model_type == "transformer" and row is not None and row.role is Role.GEMM:
            row.launches.append(at)
        else:
            self.found.left_out[at] = "split-K reduce"

    def _leftovers(self) -> None:
        """Give helpers that no convolution follows to the one they ran right after, or a row."""
        owner = {at: row for row in self.found.rows for at in row.launches}
        for at in self._pending:
            row = owner.get(at - 1)
            if row is not None and row.role is Role.CONVOLUTION and finishes(self._names[at]):
                row.launches.append(at)
                owner[at] = row
            else:
                self._add(at, Role.HELPER, [at])
                self.found.alone.append(at)
        self.found.late = [at for at in self.found.late if at not in self._pending]

    def _row_before(self) -> Row | None:
        """Give the row that the launch right before went to."""
        if not self.found.rows or self._last is None:
            return None
        row = self.found.rows[-1]
        return row if row.launches[-1] == self._last else None


def group(names: list[str], model_type: str, helpers: str = NEXT) -> Rows:
    """Sort launches, in order, into the rows of the file."""
    return _Walk(names, model_type, helpers).run()


def row_values(row: Row, launches: list[dict[str, Any]]) -> dict[str, Any]:
    """Give the values of a row: the most SMs, all of the time, the class that they agree on."""
    own = [launches[at] for at in row.launches]
    main = launches[row.main]
    return {
        "name": row.name,
        PROFILE: merged_profile([one[PROFILE] for one in own], main[PROFILE]),
        "memory_footprint": 0,
        SM_NEEDED: max(one[SM_NEEDED] for one in own),
        "duration_ns": sum(one["duration_ns"] for one in own),
        "block": main["block"],
        "grid": main["grid"],
        "launches": len(own),
        "first_launch": min(one["launch"] for one in own),
    }


def merged_profile(profiles: Iterable[int], main: int) -> int:
    """Give the class of several launches: the one they agree on, else that of the main one."""
    told = set(profiles) - {NEITHER}
    if not told:
        return NEITHER
    return told.pop() if len(told) == 1 else main


ROW_TYPES = {
    "name": pl.String,
    PROFILE: pl.Int64,
    "memory_footprint": pl.Int64,
    SM_NEEDED: pl.Int64,
    "duration_ns": pl.Float64,
    "block": pl.Int64,
    "grid": pl.Int64,
    "launches": pl.Int64,
    "first_launch": pl.Int64,
}
