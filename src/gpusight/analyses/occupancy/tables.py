"""Tables about one shape of block: what limits it, and what other shapes would give."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analyses.occupancy.changes import block_sizes, register_steps, shared_steps
from gpusight.model.occupancy import occupancy, whole_carve_out
from gpusight.result import Field, Fmt, TableResult

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpusight.analyses.occupancy.changes import Step
    from gpusight.model.occupancy import Occupancy, Shape
    from gpusight.model.sm_table import SmLimits

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


def detail(limits: SmLimits, shape: Shape, now: Occupancy) -> tuple[TableResult, ...]:
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


def limit_table(limits: SmLimits, shape: Shape, now: Occupancy) -> TableResult:
    """List every limit with what a block takes of it."""
    rows = (
        (WORDS[name], *_use(name, limits, shape, now), blocks, name in now.limiters)
        for name, blocks in now.by_limit.items()
    )
    return _table("limits", "Limits", LIMIT_FIELDS, rows)


def _use(name: str, limits: SmLimits, shape: Shape, now: Occupancy) -> tuple[int, int | None, str]:
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


def block_table(limits: SmLimits, shape: Shape) -> TableResult:
    """List what other block sizes would give, registers and shared memory a block unchanged."""
    now = -(-shape.block_threads // limits.warp_size) * limits.warp_size
    rows = (_row(step, step.value == now) for step in block_sizes(limits, shape))
    return _table("block_sizes", "Other block sizes", BLOCK_FIELDS, rows)


def usual_sizes(table: TableResult) -> TableResult:
    """Keep the block sizes that people choose from; the one of the kernel stays."""
    kept = pl.col("block_threads").is_in(_USUAL) | pl.col("current")
    return replace(table, frame=table.frame.filter(kept))


def register_table(limits: SmLimits, shape: Shape) -> TableResult:
    """List how many registers each possible occupancy allows."""
    steps = register_steps(limits, shape)
    rows = _levels(steps, shape.registers, occupancy(limits, whole_carve_out(shape)))
    return _table("registers", "Registers a thread", REGISTER_FIELDS, rows)


def shared_table(limits: SmLimits, shape: Shape) -> TableResult:
    """List how much shared memory each possible occupancy allows."""
    now = occupancy(limits, whole_carve_out(shape))
    rows = _levels(shared_steps(limits, shape), shape.shared_bytes, now)
    return _table("shared_memory", "Shared memory a block", SHARED_FIELDS, rows)


def _levels(
    steps: Iterable[Step], current: int | None, now: Occupancy
) -> Iterator[tuple[Any, ...]]:
    """Keep the largest value of each number of blocks; the current value lies in one level."""
    kept: list[Step] = []
    for step in steps:
        if not kept or step.occupancy.blocks != kept[-1].occupancy.blocks:
            kept.append(step)
    lower = [step.value for step in kept[1:]] + [-1]
    for step, below in zip(kept, lower, strict=True):
        here = current is not None and below < current <= step.value
        # What limits at the largest value of a level need not limit at the kernel's own.
        yield _row(replace(step, occupancy=now) if here else step, here)


def _row(step: Step, current: bool) -> tuple[Any, ...]:
    found = step.occupancy
    return step.value, found.blocks, found.warps, found.share, limited_by(found), current


def _table(
    command: str, title: str, fields: tuple[Field, ...], rows: Iterable[tuple[Any, ...]]
) -> TableResult:
    schema = {field.key: _TYPES[field.fmt] for field in fields}
    return TableResult(command, title, fields, pl.DataFrame(list(rows), schema, orient="row"))
