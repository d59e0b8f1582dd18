"""The occupancy calculator: a GPU and a shape of block in; every limit and better shape out."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpusight.analyses.occupancy.changes import changes
from gpusight.analyses.occupancy.limits import named_limits
from gpusight.analyses.occupancy.tables import detail, limited_by
from gpusight.errors import UsageError
from gpusight.model.hardware import find_gpu
from gpusight.model.occupancy import Shape, occupancy
from gpusight.result import Composite, Fact, Fmt
from gpusight.units import format_share

if TYPE_CHECKING:
    from gpusight.model.occupancy import Occupancy
    from gpusight.model.sm_table import SmLimits

CALCULATOR_FACTS = tuple(
    Fact(key, label, None, fmt, meaning)
    for key, label, fmt, meaning in (
        ("gpu", "GPU", Fmt.TEXT, "GPU, or the architecture asked about"),
        ("theoretical", "Theoretical occupancy", Fmt.SHARE, "Warps that fit, of those an SM holds"),
        ("blocks", "Blocks an SM", Fmt.COUNT, "Blocks that fit an SM"),
        ("warps", "Warps an SM", Fmt.COUNT, "Warps of these blocks"),
        ("limited_by", "Limited by", Fmt.TEXT, "What keeps the next block off"),
        ("change", "What would raise it", Fmt.TEXT, "Most effective change, and what it gives"),
        ("registers_allocated", "Registers given", Fmt.COUNT, "Registers that a thread gets"),
        ("shared_allocated_bytes", "Shared memory given", Fmt.BYTES, "A block's, rounded up"),
        ("carve_out_bytes", "Carve-out", Fmt.BYTES, "Shared memory of the SM that this needs"),
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
    """Work out how many blocks fit an SM of a GPU, what limits that, and what would raise it.

    `gpu` is a product (`A100`, `RTX 4090`) or an architecture (`sm_80`, `8.0`), `block` the threads
    of a block, `registers` those of a thread, `shared_bytes` a block's, static and dynamic.
    """
    limits = named_limits(gpu)
    shape = Shape(block, registers, 0, shared_bytes, barriers)
    _check(limits, shape)
    found = occupancy(limits, shape)
    if found.refusals:
        raise UsageError(
            f"such a kernel cannot be launched on {_title(gpu, limits)}",
            why="; ".join(found.refusals),
        )
    return Composite(
        "occupancy",
        f"Occupancy of blocks of {_many(block, 'thread')} with {_many(registers, 'register')} and "
        f"{shared_bytes:,} B shared memory",
        _facts(gpu, limits, shape, found),
        detail(limits, shape, found),
        meta={
            "block_threads": block,
            "registers": registers,
            "shared_bytes": shared_bytes,
            "compute_capability": f"{limits.major}.{limits.minor}",
        },
        notes=_notes(limits, shape),
    )


def _check(limits: SmLimits, shape: Shape) -> None:
    """Refuse what no GPU could be asked for."""
    given = (
        ("a block", "threads", shape.block_threads, 1, limits.max_threads_per_block),
        ("a thread", "registers", shape.registers, 1, limits.max_registers_per_thread),
        ("a block", "bytes of shared memory", shape.shared_bytes, 0, None),
        ("a block", "barriers", shape.barriers, 0, 16),
    )
    for whose, what, value, least, most in given:
        if value is None or (least <= value and (most is None or value <= most)):
            continue
        allowed = f"from {least}" if most is None else f"from {least} to {most}"
        raise UsageError(f"{whose} cannot have {value} {what}", hint=f"give a number {allowed}")


def _facts(gpu: str, limits: SmLimits, shape: Shape, found: Occupancy) -> tuple[Fact, ...]:
    ways = changes(limits, shape)
    values = {
        "gpu": _title(gpu, limits),
        "theoretical": found.share,
        "blocks": found.blocks,
        "warps": found.warps,
        "limited_by": limited_by(found),
        "change": f"{ways[0].text}: {format_share(ways[0].share)}" if ways else None,
        "registers_allocated": found.registers_allocated,
        "shared_allocated_bytes": found.shared_allocated_bytes,
        "carve_out_bytes": found.carve_out_bytes,
    }
    facts = (replace(fact, value=values[fact.key]) for fact in CALCULATOR_FACTS)
    return tuple(fact for fact in facts if fact.value is not None)


def _many(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _title(gpu: str, limits: SmLimits) -> str:
    listed = find_gpu(gpu)
    name = limits.architecture if listed is None else listed.name
    return f"{name} (compute capability {limits.major}.{limits.minor})"


def _notes(limits: SmLimits, shape: Shape) -> tuple[str, ...]:
    notes = []
    if shape.shared_bytes > limits.shared_per_block_bytes:
        notes.append(
            f"more than {limits.shared_per_block_bytes} bytes of shared memory a block must be "
            "dynamic, and allowed with cudaFuncSetAttribute"
        )
    return tuple(notes)
