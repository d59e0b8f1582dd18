"""What would let an SM hold more warps: other block sizes, fewer registers, less shared memory."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING

from gpusight.model.occupancy import Occupancy, Shape, occupancy, whole_carve_out

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpusight.model.sm_table import SmLimits

BLOCK, REGISTERS, SHARED = "block", "registers", "shared"
_UNITS = {BLOCK: "", REGISTERS: "", SHARED: " B"}


@dataclass(frozen=True, slots=True)
class Step:
    """A value of what a block asks for, and what fits then."""

    value: int
    occupancy: Occupancy


@dataclass(frozen=True, slots=True)
class Change:
    """Something else to ask for, and the occupancy that follows."""

    moves: tuple[tuple[str, int, int], ...]
    """What to change (`block`, `registers`, `shared` memory), from which value to which."""
    share: float

    @property
    def text(self) -> str:
        """Say it in a few words: `registers 168 -> 128`; short enough for a column."""
        if len(self.moves) > 1:
            return ", ".join(f"{knob} {new}{_UNITS[knob]}" for knob, _, new in self.moves)
        return ", ".join(
            f"{knob} {old:,} -> {new:,}{_UNITS[knob]}" for knob, old, new in self.moves
        )

    @property
    def distance(self) -> float:
        """How far the values move, as the logarithm of their ratio."""
        return sum(abs(math.log(new / old)) for _, old, new in self.moves)


def block_sizes(limits: SmLimits, shape: Shape) -> list[Step]:
    """Try every block size; registers of a thread and shared memory of a block stay."""
    free = whole_carve_out(shape)
    sizes = range(limits.warp_size, limits.max_threads_per_block + 1, limits.warp_size)
    return [Step(size, occupancy(limits, replace(free, block_threads=size))) for size in sizes]


def register_steps(limits: SmLimits, shape: Shape) -> list[Step]:
    """List the most registers a thread that each number of blocks allows, from many to few."""
    free = whole_carve_out(shape)
    most, unit = (
        limits.max_registers_per_thread,
        limits.register_allocation_unit // limits.warp_size,
    )
    values = (most, *range((most - 1) // unit * unit, 0, -unit))
    return _steps(
        Step(value, occupancy(limits, replace(free, registers=value))) for value in values
    )


def shared_steps(limits: SmLimits, shape: Shape) -> list[Step]:
    """List the most shared memory a block that each number of blocks allows, from much down."""
    free = replace(whole_carve_out(shape), static_shared_bytes=0)
    unit, reserved = limits.shared_allocation_unit_bytes, limits.shared_reserved_per_block_bytes
    parts = (limits.shared_per_sm_bytes // n for n in range(1, limits.max_blocks + 1))
    sizes = (
        min(part // unit * unit - reserved, limits.shared_per_block_optin_bytes) for part in parts
    )
    return _steps(
        Step(size, occupancy(limits, replace(free, dynamic_shared_bytes=size)))
        for size in sizes
        if size >= 0
    )


@lru_cache(maxsize=4096)
def changes(limits: SmLimits, shape: Shape) -> tuple[Change, ...]:
    """List the nearest change of each kind that raises the occupancy, the most effective first.

    Effective is what gives much occupancy for a small move. Where no single change helps, because
    registers and shared memory hold the next block off together, both are moved.
    """
    now = occupancy(limits, whole_carve_out(shape))
    if now.is_full:
        return ()
    singles = [
        _block_change(limits, shape, now),
        _first(REGISTERS, shape.registers, register_steps(limits, shape), now),
        _first(SHARED, shape.shared_bytes, shared_steps(limits, shape), now),
    ]
    found = [change for change in singles if change is not None] or _joint(limits, shape, now)
    return tuple(sorted(found, key=lambda c: (now.share - c.share) / max(c.distance, 1e-9)))


def _block_change(limits: SmLimits, shape: Shape, now: Occupancy) -> Change | None:
    """Move to the nearest block size that gives more, a power of two if it gives as much."""
    better = [s for s in block_sizes(limits, shape) if s.occupancy.share > now.share]
    if not better or shape.block_threads <= 0:
        return None
    near = [s for s in better if 0.5 <= s.value / shape.block_threads <= 2] or better
    most = max(step.occupancy.share for step in near)
    best = min(
        (step for step in near if step.occupancy.share == most),
        key=lambda s: (s.value & (s.value - 1) != 0, abs(math.log(s.value / shape.block_threads))),
    )
    return Change(((BLOCK, shape.block_threads, best.value),), most)


def _first(knob: str, current: int | None, steps: Iterable[Step], now: Occupancy) -> Change | None:
    """Move down to the first value that lets more warps in; steps go from much to little."""
    if not current:
        return None
    for step in steps:
        if 0 < step.value < current and step.occupancy.share > now.share:
            return Change(((knob, current, step.value),), step.occupancy.share)
    return None


def _joint(limits: SmLimits, shape: Shape, now: Occupancy) -> list[Change]:
    """Move registers and shared memory together, each just so far that one more block fits."""
    if not shape.registers or not shape.shared_bytes or not now.blocks:
        return []
    wanted = now.blocks + 1
    registers = _most(register_steps(limits, shape), "registers", wanted)
    shared = _most(shared_steps(limits, shape), "shared_memory", wanted)
    if registers is None or not shared:
        return []
    moved = replace(
        whole_carve_out(shape),
        registers=min(registers, shape.registers),
        static_shared_bytes=0,
        dynamic_shared_bytes=min(shared, shape.shared_bytes),
    )
    then = occupancy(limits, moved)
    if then.share <= now.share:
        return []
    moves = (
        (REGISTERS, shape.registers, moved.registers or 0),
        (SHARED, shape.shared_bytes, moved.shared_bytes),
    )
    return [Change(tuple(m for m in moves if m[1] != m[2]), then.share)]


def _most(steps: Iterable[Step], limit: str, blocks: int) -> int | None:
    return next((s.value for s in steps if s.occupancy.by_limit[limit] >= blocks), None)


def _steps(tried: Iterable[Step]) -> list[Step]:
    """Keep the first of each run of values that admit as many blocks."""
    return list(_where_it_changes(tried))


def _where_it_changes(tried: Iterable[Step]) -> Iterator[Step]:
    before: dict[str, int] | None = None
    for step in tried:
        if step.occupancy.by_limit != before:
            before = step.occupancy.by_limit
            yield step
