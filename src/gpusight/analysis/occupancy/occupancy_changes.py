"""Block sizes, registers and shared memory that would raise occupancy, as tables."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.hardware.sm_occupancy import BlockShape, Occupancy, occupancy, whole_carve_out
from gpusight.results import Field, Fmt, TableResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpusight.hardware.sm_limits import SmLimits


BLOCK_SIZE_CHANGE, REGISTER_CHANGE, SHARED_MEMORY_CHANGE = "block", "registers", "shared"
_UNITS = {BLOCK_SIZE_CHANGE: "", REGISTER_CHANGE: "", SHARED_MEMORY_CHANGE: " B"}


@dataclass(frozen=True, slots=True)
class OccupancyStep:
    """A value of what a block asks for, and what fits then."""

    value: int
    occupancy: Occupancy


@dataclass(frozen=True, slots=True)
class OccupancyChange:
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


def block_sizes(limits: SmLimits, shape: BlockShape) -> list[OccupancyStep]:
    """Try every block size; registers of a thread and shared memory of a block stay."""
    free = whole_carve_out(shape)
    sizes = range(limits.warp_size, limits.max_threads_per_block + 1, limits.warp_size)
    return [
        OccupancyStep(size, occupancy(limits, replace(free, block_threads=size))) for size in sizes
    ]


def register_steps(limits: SmLimits, shape: BlockShape) -> list[OccupancyStep]:
    """List the most registers a thread that each number of blocks allows, from many to few."""
    free = whole_carve_out(shape)
    most, unit = (
        limits.max_registers_per_thread,
        limits.register_allocation_unit // limits.warp_size,
    )
    values = (most, *range((most - 1) // unit * unit, 0, -unit))
    return _steps(
        OccupancyStep(value, occupancy(limits, replace(free, registers=value))) for value in values
    )


def shared_steps(limits: SmLimits, shape: BlockShape) -> list[OccupancyStep]:
    """List the most shared memory a block that each number of blocks allows, from much down."""
    free = replace(whole_carve_out(shape), static_shared_bytes=0)
    unit, reserved = limits.shared_allocation_unit_bytes, limits.shared_reserved_per_block_bytes
    parts = (limits.shared_per_sm_bytes // n for n in range(1, limits.max_blocks + 1))
    sizes = (
        min(part // unit * unit - reserved, limits.shared_per_block_optin_bytes) for part in parts
    )
    return _steps(
        OccupancyStep(size, occupancy(limits, replace(free, dynamic_shared_bytes=size)))
        for size in sizes
        if size >= 0
    )


@lru_cache(maxsize=4096)
def changes(limits: SmLimits, shape: BlockShape) -> tuple[OccupancyChange, ...]:
    """List the nearest change of each kind that raises the occupancy, the most effective first.

    Effective is what gives much occupancy for a small move. Where no single change helps, because
    registers and shared memory hold the next block off together, both are moved.
    """
    now = occupancy(limits, whole_carve_out(shape))
    if now.is_full:
        return ()
    singles = [
        _block_change(limits, shape, now),
        _first(REGISTER_CHANGE, shape.registers, register_steps(limits, shape), now),
        _first(SHARED_MEMORY_CHANGE, shape.shared_bytes, shared_steps(limits, shape), now),
    ]
    found = [change for change in singles if change is not None] or _joint(limits, shape, now)
    return tuple(sorted(found, key=lambda c: (now.share - c.share) / max(c.distance, 1e-9)))


def _block_change(limits: SmLimits, shape: BlockShape, now: Occupancy) -> OccupancyChange | None:
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
    return OccupancyChange(((BLOCK_SIZE_CHANGE, shape.block_threads, best.value),), most)


def _first(
    knob: str, current: int | None, steps: Iterable[OccupancyStep], now: Occupancy
) -> OccupancyChange | None:
    """Move down to the first value that lets more warps in; steps go from much to little."""
    if not current:
        return None
    for step in steps:
        if 0 < step.value < current and step.occupancy.share > now.share:
            return OccupancyChange(((knob, current, step.value),), step.occupancy.share)
    return None


def _joint(limits: SmLimits, shape: BlockShape, now: Occupancy) -> list[OccupancyChange]:
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
        (REGISTER_CHANGE, shape.registers, moved.registers or 0),
        (SHARED_MEMORY_CHANGE, shape.shared_bytes, moved.shared_bytes),
    )
    return [OccupancyChange(tuple(m for m in moves if m[1] != m[2]), then.share)]


def _most(steps: Iterable[OccupancyStep], limit: str, blocks: int) -> int | None:
    return next((s.value for s in steps if s.occupancy.by_limit[limit] >= blocks), None)


def _steps(tried: Iterable[OccupancyStep]) -> list[OccupancyStep]:
    """Keep the first of each run of values that admit as many blocks."""
    return list(_where_it_changes(tried))


def _where_it_changes(tried: Iterable[OccupancyStep]) -> Iterator[OccupancyStep]:
    before: dict[str, int] | None = None
    for step in tried:
        if step.occupancy.by_limit != before:
            before = step.occupancy.by_limit
            yield step


WORDS = {
    "warps": "block size",
    "blocks": "blocks of an SM",
    "registers": "registers",
    "shared_memory": "shared memory",
    "barriers": "barriers",
}
"""What people call a limit; warps and blocks are both used up by blocks of an unlucky size."""

LIMIT_FIELDS = (
    Field("limit", "Limit", Fmt.TEXT, "What an SM has only so much of"),
    Field(
        "per_block", "A block takes", Fmt.COUNT, "What a block takes, rounded up as the GPU does"
    ),
    Field("per_sm", "An SM has", Fmt.COUNT, "What there is of it on an SM"),
    Field("unit", "Unit", Fmt.TEXT, "What is counted"),
    Field("blocks", "Blocks", Fmt.COUNT, "Blocks that this limit alone would let onto an SM"),
    Field("limiting", "Limits", Fmt.FLAG, "Whether it keeps the next block off"),
)
_STEP = (
    Field("blocks", "Blocks", Fmt.COUNT, "Blocks that fit an SM"),
    Field("warps", "Warps", Fmt.COUNT, "Warps of these blocks"),
    Field("theoretical", "Occupancy", Fmt.SHARE, "These warps, of those that an SM can hold"),
    Field("limiters", "Limited by", Fmt.TEXT, "What keeps the next block off"),
    Field("current", "Now", Fmt.FLAG, "Whether the kernel is at this row"),
)
BLOCK_FIELDS = (Field("block_threads", "Block", Fmt.COUNT, "Threads of a block"), *_STEP)
REGISTER_FIELDS = (
    Field("registers", "Registers up to", Fmt.COUNT, "Most registers of a thread for this row"),
    *_STEP,
)
SHARED_FIELDS = (
    Field("shared_bytes", "Shared up to", Fmt.BYTES, "Most shared memory of a block for this row"),
    *_STEP,
)
_TYPES = {
    Fmt.TEXT: pl.String,
    Fmt.COUNT: pl.Int64,
    Fmt.BYTES: pl.Int64,
    Fmt.SHARE: pl.Float64,
    Fmt.FLAG: pl.Boolean,
}
_USUAL = (32, 64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 896, 1024)


def limited_by(found: Occupancy) -> str:
    """Name the limiters in words; nothing limits an SM that is full of warps."""
    if found.is_full:
        return "none"
    return ", ".join(WORDS[name] for name in found.limiters)


def detail(limits: SmLimits, shape: BlockShape, now: Occupancy) -> tuple[TableResult, ...]:
    """Give all tables about one shape; their `meta` says which shape it is."""
    tables = (
        limit_table(limits, shape, now),
        block_table(limits, shape),
        register_table(limits, shape),
        shared_table(limits, shape),
    )
    about = {
        "block_threads": shape.block_threads,
        "registers": shape.registers,
        "shared_bytes": shape.shared_bytes,
    }
    return tuple(replace(table, meta=about) for table in tables)


def limit_table(limits: SmLimits, shape: BlockShape, now: Occupancy) -> TableResult:
    """List every limit with what a block takes of it."""
    rows = (
        (WORDS[name], *_use(name, limits, shape, now), blocks, name in now.limiters)
        for name, blocks in now.by_limit.items()
    )
    return _table("limits", "Limits", LIMIT_FIELDS, rows)


def _use(
    name: str, limits: SmLimits, shape: BlockShape, now: Occupancy
) -> tuple[int, int | None, str]:
    if name == "warps":
        return now.warps_per_block, limits.max_warps, "warps"
    if name == "blocks":
        return 1, limits.max_blocks, "blocks"
    if name == "registers":
        per_warp = (now.registers_allocated or 0) * limits.warp_size
        return per_warp * now.warps_per_block, limits.registers_per_sm, "registers"
    if name == "shared_memory":
        size = shape.shared_config_bytes or limits.shared_per_sm_bytes
        return now.shared_allocated_bytes, size, "bytes"
    return shape.barriers or 0, limits.barriers_per_sm, "barriers"


def block_table(limits: SmLimits, shape: BlockShape) -> TableResult:
    """List what other block sizes would give, registers and shared memory a block unchanged."""
    now = -(-shape.block_threads // limits.warp_size) * limits.warp_size
    rows = (_row(step, step.value == now) for step in block_sizes(limits, shape))
    return _table("block_sizes", "Other block sizes", BLOCK_FIELDS, rows)


def usual_sizes(table: TableResult) -> TableResult:
    """Keep the block sizes that people choose from; the one of the kernel stays."""
    kept = pl.col("block_threads").is_in(_USUAL) | pl.col("current")
    return replace(table, frame=table.frame.filter(kept))


def register_table(limits: SmLimits, shape: BlockShape) -> TableResult:
    """List how many registers each possible occupancy allows."""
    steps = register_steps(limits, shape)
    rows = _levels(steps, shape.registers, occupancy(limits, whole_carve_out(shape)))
    return _table("registers", "Registers a thread", REGISTER_FIELDS, rows)


def shared_table(limits: SmLimits, shape: BlockShape) -> TableResult:
    """List how much shared memory each possible occupancy allows."""
    now = occupancy(limits, whole_carve_out(shape))
    rows = _levels(shared_steps(limits, shape), shape.shared_bytes, now)
    return _table("shared_memory", "Shared memory a block", SHARED_FIELDS, rows)


def _levels(
    steps: Iterable[OccupancyStep], current: int | None, now: Occupancy
) -> Iterator[tuple[Any, ...]]:
    """Keep the largest value of each number of blocks; the current value lies in one level."""
    kept: list[OccupancyStep] = []
    for step in steps:
        if not kept or step.occupancy.blocks != kept[-1].occupancy.blocks:
            kept.append(step)
    lower = [step.value for step in kept[1:]] + [-1]
    for step, below in zip(kept, lower, strict=True):
        here = current is not None and below < current <= step.value
        # What limits at the largest value of a level need not limit at the kernel's own.
        yield _row(replace(step, occupancy=now) if here else step, here)


def _row(step: OccupancyStep, current: bool) -> tuple[Any, ...]:
    found = step.occupancy
    return step.value, found.blocks, found.warps, found.share, limited_by(found), current


def _table(
    command: str, title: str, fields: tuple[Field, ...], rows: Iterable[tuple[Any, ...]]
) -> TableResult:
    schema = {field.key: _TYPES[field.fmt] for field in fields}
    return TableResult(command, title, fields, pl.DataFrame(list(rows), schema, orient="row"))
