"""How many SMs a launch needs: its blocks over those that an SM holds at once."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analyses.counters.quantities import (
    BARRIERS,
    DYNAMIC_SHARED,
    REGISTERS,
    REPORTED_BLOCKS,
    SHARED_CONFIG,
    STATIC_SHARED,
)
from gpusight.analyses.occupancy.limits import (
    LIMIT_QUANTITIES,
    device_rows,
    limits_of,
    named_limits,
)
from gpusight.analyses.orion.launches import COMMAND, how_many
from gpusight.model.hardware import SM_LIMITS
from gpusight.model.occupancy import Shape, occupancy
from gpusight.result import NotApplicable

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.model.sm_table import SmLimits
    from gpusight.model.trace import Trace

SM_NEEDED = "sm_needed"
_WARP = 32
_V100 = (7, 0)
# What the original script takes an SM to hold, whatever the GPU: a V100, more or less.
_ORIGINAL_THREADS = 2048
_ORIGINAL_SHARED = 65536
_ORIGINAL_REGISTERS = 65536
_REGISTER_UNIT = 256
_SCHEDULERS = 4

_TOO_LARGE = "an SM does not hold a single block, and is taken to hold one, of"
_SHAPE = (
    "device",
    "compute_major",
    "compute_minor",
    "block",
    "grid",
    REGISTERS.key,
    STATIC_SHARED.key,
    DYNAMIC_SHARED.key,
    SHARED_CONFIG.key,
    BARRIERS.key,
    REPORTED_BLOCKS.key,
    *(quantity.key for quantity in LIMIT_QUANTITIES),
)


@dataclass(frozen=True, slots=True)
class Limits:
    """What an SM is taken to hold; what is not given comes from the report."""

    gpu: str | None = None
    """A GPU, in place of the report's."""
    max_threads: int | None = None
    max_blocks: int | None = None
    max_shared_bytes: int | None = None
    max_registers: int | None = None
    """Limits of one SM, in place of the GPU's."""

    def named(self) -> SmLimits | None:
        """Give the limits of the GPU that is named; None where none is."""
        return None if self.gpu is None else named_limits(self.gpu)

    def over(self, limits: SmLimits) -> SmLimits:
        """Put the limits that are given in place of a GPU's."""
        warps = None if self.max_threads is None else max(1, self.max_threads // _WARP)
        given = {
            "max_warps": warps,
            "max_blocks": self.max_blocks,
            "shared_per_sm_bytes": self.max_shared_bytes,
            "registers_per_sm": self.max_registers,
        }
        return replace(limits, **{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]


def with_sm_needed(
    trace: Trace, launches: pl.DataFrame, limits: Limits, *, compat: bool
) -> tuple[pl.DataFrame, tuple[str, ...]] | NotApplicable:
    """Add the column `sm_needed`; gives it with notes. Each distinct shape is worked out once."""
    keys = [column for column in _SHAPE if column in launches.columns]
    shapes = launches.select(keys).unique(maintain_order=True)
    count = launches.group_by(keys).len("count")
    rows = shapes.join(count, on=keys, how="left", nulls_equal=True, maintain_order="left")
    needed, too_large = [], 0
    finder = None if compat else _Finder(trace, limits)
    for row in rows.iter_rows(named=True):
        blocks = _original(row, limits) if finder is None else finder.blocks(row)
        if blocks is None:
            return _unknown_gpu(row)
        too_large += row["count"] if blocks < 1 else 0
        needed.append(-(-row["grid"] // max(1, blocks)))
    known = shapes.with_columns(pl.Series(SM_NEEDED, needed, pl.Int64))
    frame = launches.join(known, on=keys, how="left", nulls_equal=True, maintain_order="left")
    notes = (f"{_TOO_LARGE} {how_many(too_large)}",) if too_large else ()
    return frame, (*notes, *(finder.notes if finder is not None else ()))


class _Finder:
    """Works out how many blocks of a launch an SM holds."""

    def __init__(self, trace: Trace, limits: Limits) -> None:
        self._given = limits
        self._named = limits.named()
        self._devices = device_rows(trace) if trace.has("devices") else {}
        self._guessed = False

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know of where the numbers come from."""
        if not self._guessed:
            return ()
        return ("the GPU is not known: limits that are not given are those of a V100",)

    def blocks(self, row: Mapping[str, Any]) -> int | None:
        """Give the blocks that an SM holds at once; None where nothing tells the limits."""
        reported: int | None = row[REPORTED_BLOCKS.key]
        if reported and self._given == Limits():
            return reported  # exact also where the report was printed with few digits
        limits = self._named or self._of_report(row)
        if limits is None and self._given == Limits():
            return reported
        if limits is None:
            limits, self._guessed = SM_LIMITS[_V100], True
        # The carve-out that the driver chose is that of the report's own GPU.
        config = None if self._named else row[SHARED_CONFIG.key]
        shape = Shape(
            row["block"],
            row[REGISTERS.key],
            row[STATIC_SHARED.key] or 0,
            row[DYNAMIC_SHARED.key] or 0,
            barriers=row[BARRIERS.key],
            shared_config_bytes=config if self._given.max_shared_bytes is None else None,
        )
        return occupancy(self._given.over(limits), shape).blocks

    def _of_report(self, row: Mapping[str, Any]) -> SmLimits | None:
        device = self._devices.get(row["device"], {})
        major, minor = row["compute_major"], row["compute_minor"]
        if major is None:
            major, minor = device.get("compute_major"), device.get("compute_minor")
        keys = [quantity.key for quantity in LIMIT_QUANTITIES]
        known = {key: device.get(key) if row[key] is None else row[key] for key in keys}
        return limits_of(major, minor, known)


def _original(row: Mapping[str, Any], limits: Limits) -> int:
    """Follow the original script: rounded up, three limits, static shared memory only."""
    named = limits.named()
    threads: int = limits.max_threads or (named.max_threads if named else _ORIGINAL_THREADS)
    shared: int = limits.max_shared_bytes or (
        named.shared_per_sm_bytes if named else _ORIGINAL_SHARED
    )
    registers: int = limits.max_registers or (
        named.registers_per_sm if named else _ORIGINAL_REGISTERS
    )
    block, per_thread = max(1, int(row["block"])), int(row[REGISTERS.key])
    by_threads = -(-threads // block)
    static = int(row[STATIC_SHARED.key] or 0)
    by_shared = -(-shared // static) if static else by_threads
    per_warp = -(-_WARP * per_thread // _REGISTER_UNIT) * _REGISTER_UNIT
    if not per_warp:
        return min(by_threads, by_shared)
    warps = int(registers / per_warp / _SCHEDULERS) * _SCHEDULERS
    return min(by_threads, by_shared, warps // -(-block // _WARP))


def _unknown_gpu(row: Mapping[str, Any]) -> NotApplicable:
    major, minor = row["compute_major"], row["compute_minor"]
    which = "which GPU it is of" if major is None else f"what an SM of {major}.{minor} holds"
    return NotApplicable(
        COMMAND,
        f"the report does not say {which}, so the SMs that a launch needs cannot be told",
        "name the GPU, such as --gpu A100 or --gpu sm_80",
    )
