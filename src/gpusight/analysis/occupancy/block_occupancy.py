"""The occupancy calculator: the occupancy of a block shape, its limits, and what would raise it."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analysis.aggregates import schema_of
from gpusight.errors import UsageError
from gpusight.hardware.gpu_lookup import find_gpu, unknown_gpu
from gpusight.hardware.sm_limits import (
    SM_LIMITS,
    BlockShape,
    Occupancy,
    occupancy,
    round_up,
    whole_carve_out,
)
from gpusight.results import Composite, Fact, Field, Fmt, TableResult
from gpusight.units import format_share, plural

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpusight.hardware.sm_limits import SmLimits


# Changes that raise occupancy ---------------------------------------------------------------------

BLOCK_SIZE_CHANGE, REGISTER_CHANGE, SHARED_MEMORY_CHANGE = "block", "registers", "shared"
MAX_REGISTER_GAIN, MAX_SHARED_GAIN = 4, 8
"""Factors of warps that fewer registers and less shared memory are assumed to allow at most."""
_UNITS = {BLOCK_SIZE_CHANGE: "", REGISTER_CHANGE: "", SHARED_MEMORY_CHANGE: " B"}


@dataclass(frozen=True, slots=True)
class OccupancyStep:
    """A value of what a block requests, and what fits then."""

    value: int
    occupancy: Occupancy


@dataclass(frozen=True, slots=True)
class OccupancyChange:
    """A change of what a block requests, and the occupancy that follows."""

    requests: tuple[tuple[str, int, int], ...]
    """What to change (`block`, `registers`, `shared` memory), from which value to which."""
    share: float

    @property
    def text(self) -> str:
        """Short enough for a column: `registers 168 -> 128`."""
        if len(self.requests) > 1:
            return ", ".join(
                f"{resource} {new}{_UNITS[resource]}" for resource, _, new in self.requests
            )
        return ", ".join(
            f"{resource} {old:,} -> {new:,}{_UNITS[resource]}"
            for resource, old, new in self.requests
        )

    @property
    def distance(self) -> float:
        """How far the values move, as the logarithm of their ratio."""
        return sum(abs(math.log(new / old)) for _, old, new in self.requests)


def block_sizes(limits: SmLimits, shape: BlockShape) -> list[OccupancyStep]:
    """Try every block size; registers of a thread and shared memory of a block stay."""
    free = whole_carve_out(shape)
    sizes = range(limits.warp_size, limits.max_threads_per_block + 1, limits.warp_size)
    return [
        OccupancyStep(size, occupancy(limits, replace(free, block_threads=size))) for size in sizes
    ]


def register_steps(limits: SmLimits, shape: BlockShape) -> list[OccupancyStep]:
    """List the most registers per thread that each number of blocks allows, from many to few."""
    free = whole_carve_out(shape)
    most, unit = (
        limits.max_registers_per_thread,
        limits.register_allocation_unit // limits.warp_size,
    )
    values = (most, *range((most - 1) // unit * unit, 0, -unit))
    return _where_limits_change(
        OccupancyStep(value, occupancy(limits, replace(free, registers=value))) for value in values
    )


def shared_steps(limits: SmLimits, shape: BlockShape) -> list[OccupancyStep]:
    """List the most shared memory per block that each number of blocks allows, from much down."""
    free = replace(whole_carve_out(shape), static_shared_bytes=0)
    unit, reserved = limits.shared_allocation_unit_bytes, limits.shared_reserved_per_block_bytes
    parts = (limits.shared_per_sm_bytes // n for n in range(1, limits.max_blocks + 1))
    sizes = (
        min(part // unit * unit - reserved, limits.shared_per_block_optin_bytes) for part in parts
    )
    return _where_limits_change(
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
        *(
            OccupancyChange(
                ((resource, _requested(shape, resource), step.value),), step.occupancy.share
            )
            for resource in (REGISTER_CHANGE, SHARED_MEMORY_CHANGE)
            for step in reductions(limits, shape, resource)[:1]
        ),
    ]
    raising = [change for change in singles if change is not None] or _joint(limits, shape, now)
    return tuple(sorted(raising, key=lambda c: (now.share - c.share) / max(c.distance, 1e-9)))


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


def reductions(limits: SmLimits, shape: BlockShape, resource: str) -> list[OccupancyStep]:
    """List the registers or shared memory with which more warps fit, the nearest value first."""
    now = occupancy(limits, whole_carve_out(shape))
    steps = (register_steps if resource == REGISTER_CHANGE else shared_steps)(limits, shape)
    current = _requested(shape, resource)
    return [s for s in steps if 0 < s.value < current and s.occupancy.share > now.share]


def furthest_reduction(
    limits: SmLimits, shape: BlockShape, resource: str, max_blocks: int | None = None
) -> OccupancyChange | None:
    """Return the reduction that the rules of `diagnose` assume; None where it is the nearest.

    It lets in so many times the warps, or `max_blocks`, all that the grid has for each SM.
    """
    now = occupancy(limits, whole_carve_out(shape))
    most = now.warps * (MAX_REGISTER_GAIN if resource == REGISTER_CHANGE else MAX_SHARED_GAIN)
    if max_blocks is not None:
        most = min(most, max(now.blocks, max_blocks) * now.warps_per_block)
    steps = reductions(limits, shape, resource)
    enough = next((s for s in steps if s.occupancy.warps >= min(most, limits.max_warps)), None)
    if enough is None or enough is steps[0]:
        return None
    request = (resource, _requested(shape, resource), enough.value)
    return OccupancyChange((request,), enough.occupancy.share)


def _requested(shape: BlockShape, resource: str) -> int:
    return (shape.registers if resource == REGISTER_CHANGE else shape.shared_bytes) or 0


def _joint(limits: SmLimits, shape: BlockShape, now: Occupancy) -> list[OccupancyChange]:
    """Move registers and shared memory together, each just so far that one more block fits."""
    if not shape.registers or not shape.shared_bytes or not now.blocks:
        return []
    registers, shared = (
        next((s.value for s in steps if s.occupancy.by_limit[limit] > now.blocks), None)
        for limit, steps in (
            ("registers", register_steps(limits, shape)),
            ("shared_memory", shared_steps(limits, shape)),
        )
    )
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
    requests = (
        (REGISTER_CHANGE, shape.registers, moved.registers or 0),
        (SHARED_MEMORY_CHANGE, shape.shared_bytes, moved.shared_bytes),
    )
    return [OccupancyChange(tuple(r for r in requests if r[1] != r[2]), then.share)]


def _where_limits_change(steps: Iterable[OccupancyStep]) -> list[OccupancyStep]:
    """Keep the first of each run of values that admit as many blocks."""
    return [next(run) for _, run in groupby(steps, key=lambda step: step.occupancy.by_limit)]


_LIMIT_WORDS = {
    "warps": "block size",
    "blocks": "max. blocks per SM",
    "registers": "registers",
    "shared_memory": "shared memory",
    "barriers": "barriers",
}
"""Names of the limits."""

LIMIT_FIELDS = (
    Field("limit", "Limit", Fmt.TEXT, "Limited resource of an SM"),
    Field("per_block", "Per block", Fmt.COUNT, "Allocated per block, rounded up as the GPU does"),
    Field("per_sm", "Per SM", Fmt.COUNT, "Available per SM"),
    Field("unit", "Unit", Fmt.TEXT, "Unit of the two"),
    Field("blocks", "Blocks", Fmt.COUNT, "Max. resident blocks by this limit alone"),
    Field("limiting", "Limits", Fmt.FLAG, "Whether it is a limiter"),
)
_STEP_FIELDS = (
    Field("blocks", "Blocks", Fmt.COUNT, "Max. resident blocks per SM"),
    Field("warps", "Warps", Fmt.COUNT, "Max. resident warps per SM"),
    Field("theoretical", "Occupancy", Fmt.SHARE, "Theoretical occupancy"),
    Field("limiters", "Limited by", Fmt.TEXT, "Limiter of the resident blocks"),
    Field("current", "Now", Fmt.FLAG, "Whether it is the kernel's value"),
)
BLOCK_FIELDS = (Field("block_threads", "Block", Fmt.COUNT, "Threads per block"), *_STEP_FIELDS)
REGISTER_FIELDS = (
    Field("registers", "Registers up to", Fmt.COUNT, "Max. registers per thread"),
    *_STEP_FIELDS,
)
SHARED_FIELDS = (
    Field("shared_bytes", "Shared up to", Fmt.BYTES, "Max. shared memory per block"),
    *_STEP_FIELDS,
)
MAX_BARRIERS_PER_BLOCK = 16
_USUAL_SIZES = (32, 64, 96, 128, 192, 256, 320, 384, 512, 640, 768, 896, 1024)


def limited_by(result: Occupancy) -> str:
    """Name the limiters in words; nothing limits an SM that is full of warps."""
    if result.is_full:
        return "none"
    return ", ".join(_LIMIT_WORDS[name] for name in result.limiters)


def detail(limits: SmLimits, shape: BlockShape, now: Occupancy) -> tuple[TableResult, ...]:
    """Return all tables about one shape, which their `meta` holds."""
    registers_per_block = (now.registers_allocated or 0) * limits.warp_size * now.warps_per_block
    carve_out = shape.shared_config_bytes or limits.shared_per_sm_bytes
    of_block_and_sm = {
        "warps": (now.warps_per_block, limits.max_warps, "warps"),
        "blocks": (1, limits.max_blocks, "blocks"),
        "registers": (registers_per_block, limits.registers_per_sm, "registers"),
        "shared_memory": (now.shared_allocated_bytes, carve_out, "bytes"),
        "barriers": (shape.barriers or 0, limits.barriers_per_sm, "barriers"),
    }
    limit_rows = (
        (
            _LIMIT_WORDS[name],
            *of_block_and_sm[name],
            blocks,
            name in now.limiters and not now.is_full,
        )
        for name, blocks in now.by_limit.items()
    )
    current_size = round_up(shape.block_threads, limits.warp_size)
    sizes = (_row(step, step.value == current_size) for step in block_sizes(limits, shape))
    free = occupancy(limits, whole_carve_out(shape))
    registers = _levels(register_steps(limits, shape), shape.registers, free)
    shared = _levels(shared_steps(limits, shape), shape.shared_bytes, free)
    tables = (
        _table("limits", "Limits", LIMIT_FIELDS, limit_rows),
        _table("block_sizes", "Other block sizes", BLOCK_FIELDS, sizes),
        _table("registers", "Registers per thread", REGISTER_FIELDS, registers),
        _table("shared_memory", "Shared memory per block", SHARED_FIELDS, shared),
    )
    about = {
        "block_threads": shape.block_threads,
        "registers": shape.registers,
        "shared_bytes": shape.shared_bytes,
    }
    return tuple(replace(table, meta=about) for table in tables)


def usual_sizes(table: TableResult) -> TableResult:
    """Keep the usual block sizes, and that of the kernel."""
    kept = pl.col("block_threads").is_in(_USUAL_SIZES) | pl.col("current")
    return replace(table, frame=table.frame.filter(kept))


def _levels(
    steps: Iterable[OccupancyStep], current: int | None, now: Occupancy
) -> Iterator[tuple[Any, ...]]:
    """Keep the largest value of each number of blocks; the current value lies in one level."""
    kept = [next(run) for _, run in groupby(steps, key=lambda step: step.occupancy.blocks)]
    lower = [step.value for step in kept[1:]] + [-1]
    for step, below in zip(kept, lower, strict=True):
        here = current is not None and below < current <= step.value
        # What limits at the largest value of a level need not limit at the kernel's own.
        yield _row(replace(step, occupancy=now) if here else step, here)


def _row(step: OccupancyStep, current: bool) -> tuple[Any, ...]:
    fits = step.occupancy
    return step.value, fits.blocks, fits.warps, fits.share, limited_by(fits), current


def _table(
    command: str, title: str, fields: tuple[Field, ...], rows: Iterable[tuple[Any, ...]]
) -> TableResult:
    frame = pl.DataFrame(list(rows), schema_of(fields), orient="row")
    return TableResult(command, title, fields, frame)


# The calculator -----------------------------------------------------------------------------------


def gpu_limits(name: str) -> SmLimits | None:
    """Find the limits of a GPU that the user names: a product, `sm_80`, `8.0` or `80`."""
    digits = name.strip().lower().removeprefix("sm").removeprefix("_").rstrip("af").replace(".", "")
    if digits.isdecimal() and len(digits) >= 2:
        limits = SM_LIMITS.get((int(digits[:-1]), int(digits[-1])))
        if limits is not None:
            return limits
    gpu = find_gpu(name) if name.strip() else None
    return None if gpu is None else SM_LIMITS.get(gpu.compute_capability or (0, 0))


def named_limits(gpu: str) -> SmLimits:
    """Find the limits of a GPU by name or architecture; raises UsageError with near names."""
    limits = gpu_limits(gpu)
    if limits is not None:
        return limits
    listed = find_gpu(gpu) if gpu.strip() else None
    if listed is None:
        raise unknown_gpu(gpu, architectures=True)
    raise UsageError(
        f"the SM limits of {listed.vendor} {listed.name} are unknown",
        why="known compute capabilities: "
        f"{', '.join(f'{major}.{minor}' for major, minor in SM_LIMITS)}",
    )


CALCULATOR_FACTS = tuple(
    Fact(key, label, None, fmt, meaning)
    for key, label, fmt, meaning in (
        ("gpu", "GPU", Fmt.TEXT, "GPU or architecture"),
        (
            "theoretical",
            "Theoretical occupancy",
            Fmt.SHARE,
            "Max. resident warps over the warp slots of an SM",
        ),
        ("blocks", "Blocks per SM", Fmt.COUNT, "Max. resident blocks per SM"),
        ("warps", "Warps per SM", Fmt.COUNT, "Max. resident warps per SM"),
        ("limited_by", "Limited by", Fmt.TEXT, "Limiter of the resident blocks"),
        ("change", "To raise it", Fmt.TEXT, "Most effective change, and the occupancy with it"),
        ("registers_allocated", "Registers allocated", Fmt.COUNT, "Per thread, rounded up"),
        ("shared_allocated_bytes", "Shared memory allocated", Fmt.BYTES, "Per block, rounded up"),
        ("carve_out_bytes", "Carve-out", Fmt.BYTES, "Shared-memory carveout of the SM"),
    )
)
"""The facts of the calculator, without their values."""


def occupancy_of(
    gpu: str,
    block: int,
    registers: int,
    shared_bytes: int = 0,
    *,
    barriers: int | None = None,
) -> Composite:
    """Compute how many blocks fit an SM of a GPU, what limits that, and what would raise it.

    `gpu` is a product (`A100`, `RTX 4090`) or an architecture (`sm_80`, `8.0`), `block` the threads
    of a block, `registers` those of a thread, `shared_bytes` a block's, static and dynamic.
    """
    limits = named_limits(gpu)
    shape = BlockShape(block, registers, 0, shared_bytes, barriers)
    _check(limits, shape)
    result = occupancy(limits, shape)
    if result.refusals:
        raise UsageError(
            f"the kernel cannot be launched on {_title(gpu, limits)}",
            why="; ".join(result.refusals),
        )
    notes = list(_block_notes(limits, shape, result))
    if shared_bytes > limits.shared_per_block_bytes:
        notes.append(
            f"more than {limits.shared_per_block_bytes} bytes of shared memory per block must be "
            "dynamic, and enabled with cudaFuncSetAttribute"
        )
    return Composite(
        "occupancy",
        f"Occupancy of blocks of {block} {plural('thread', block)} with {registers} "
        f"{plural('register', registers)} and {shared_bytes:,} B shared memory",
        _calculator_facts(gpu, limits, shape, result),
        detail(limits, shape, result),
        meta={
            "block_threads": block,
            "registers": registers,
            "shared_bytes": shared_bytes,
            "compute_capability": f"{limits.major}.{limits.minor}",
        },
        notes=tuple(notes),
    )


def _calculator_facts(
    gpu: str, limits: SmLimits, shape: BlockShape, result: Occupancy
) -> tuple[Fact, ...]:
    best = next(iter(changes(limits, shape)), None)
    values = {
        "gpu": _title(gpu, limits),
        "theoretical": result.share,
        "blocks": result.blocks,
        "warps": result.warps,
        "limited_by": limited_by(result),
        "change": f"{best.text}: {format_share(best.share)}" if best else None,
        "registers_allocated": result.registers_allocated,
        "shared_allocated_bytes": result.shared_allocated_bytes,
        "carve_out_bytes": result.carve_out_bytes,
    }
    facts = (replace(fact, value=values[fact.key]) for fact in CALCULATOR_FACTS)
    return tuple(fact for fact in facts if fact.value is not None)


def _block_notes(limits: SmLimits, shape: BlockShape, result: Occupancy) -> Iterator[str]:
    """Explain what a block size wastes: threads of its last warp, and warp slots of the SM."""
    threads = shape.block_threads % limits.warp_size
    if threads:
        slots = result.warps_per_block * limits.warp_size
        unused = format_share(1 - shape.block_threads / slots)
        yield (
            f"{shape.block_threads} is not a multiple of {limits.warp_size}: the last warp has "
            f"{threads} threads, and {unused} of the block's warps is unused; occupancy counts "
            "whole warps"
        )
    empty = limits.max_warps - result.warps
    if empty and "warps" in result.limiters:
        yield (
            f"{result.blocks} {plural('block', result.blocks)} of {result.warps_per_block} warps "
            f"leave {empty} of {limits.max_warps} warp slots empty: too few for another block"
        )


def _check(limits: SmLimits, shape: BlockShape) -> None:
    """Refuse what no GPU allows."""
    requests = (
        ("a block", "threads", shape.block_threads, 1, limits.max_threads_per_block),
        ("a thread", "registers", shape.registers, 1, limits.max_registers_per_thread),
        ("a block", "bytes of shared memory", shape.shared_bytes, 0, None),
        ("a block", "barriers", shape.barriers, 0, MAX_BARRIERS_PER_BLOCK),
    )
    for whose, what, value, least, most in requests:
        if value is None or (least <= value and (most is None or value <= most)):
            continue
        allowed = f"from {least}" if most is None else f"from {least} to {most}"
        raise UsageError(f"{whose} cannot have {value} {what}", hint=f"pass a number {allowed}")


def _title(gpu: str, limits: SmLimits) -> str:
    listed = find_gpu(gpu)
    name = limits.architecture if listed is None else listed.name
    return f"{name} (compute capability {limits.major}.{limits.minor})"
