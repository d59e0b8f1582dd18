"""The occupancy calculator.

SM limits of a GPU and a block shape in; every limit and better shape out.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpusight.analysis.capture_gpus import listed_gpu, unknown_gpu
from gpusight.analysis.counters.launch_quantities import LaunchQuantity, metric
from gpusight.analysis.occupancy.occupancy_changes import changes, detail, limited_by
from gpusight.errors import UsageError
from gpusight.hardware.gpu_lookup import find_gpu
from gpusight.hardware.sm_limits import SM_LIMITS
from gpusight.hardware.sm_occupancy import BlockShape, occupancy
from gpusight.results import Composite, Fact, Fmt
from gpusight.units import format_share

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.hardware.sm_limits import SmLimits
    from gpusight.hardware.sm_occupancy import Occupancy
    from gpusight.trace.trace import Trace


_ATTRIBUTES = {
    "max_warps": "max_warps_per_multiprocessor",
    "max_blocks": "max_blocks_per_multiprocessor",
    "registers_per_sm": "max_registers_per_multiprocessor",
    "max_registers_per_block": "max_registers_per_block",
    "max_registers_per_thread": "max_registers_per_thread",
    "max_threads_per_block": "max_threads_per_block",
    "shared_per_sm_bytes": "max_shared_memory_per_multiprocessor",
    "shared_per_block_bytes": "max_shared_memory_per_block",
    "shared_per_block_optin_bytes": "max_shared_memory_per_block_optin",
    "shared_reserved_per_block_bytes": "reserved_shared_memory_per_block",
    "warp_size": "warp_size",
}
"""Device attributes that Nsight Compute records, by the limit that each of them is."""

LIMIT_QUANTITIES = tuple(
    LaunchQuantity(key, "", "Limit of an SM", (metric(f"device__attribute_{name}"),), "LaunchStats")
    for key, name in _ATTRIBUTES.items()
)

_DEVICE_COLUMNS = {
    "max_warps_per_sm": "max_warps",
    "max_blocks_per_sm": "max_blocks",
    "max_registers_per_sm": "registers_per_sm",
    "max_threads_per_block": "max_threads_per_block",
    "max_shared_per_sm_bytes": "shared_per_sm_bytes",
    "max_shared_per_block_bytes": "shared_per_block_bytes",
    "max_shared_optin_bytes": "shared_per_block_optin_bytes",
}
_TELLING = ("device", "name", "sm_count", "memory_bytes", "compute_major", "compute_minor")
_NEEDED = ("max_warps", "max_blocks", "registers_per_sm", "shared_per_sm_bytes")
"""Without these the limits of a GPU that is not in the table cannot be told."""
_MAY_BE_ZERO = frozenset(("shared_reserved_per_block_bytes",))
"""Elsewhere zero is what drivers say of what they do not know."""


def device_rows(trace: Trace) -> dict[int, dict[str, Any]]:
    """Say of each GPU of the capture: its compute capability, its SMs, its limits where known."""
    frame = trace.table("devices", (*_TELLING, *_DEVICE_COLUMNS))
    return {row["device"]: _described(row) for row in frame.iter_rows(named=True)}


def _described(row: Mapping[str, Any]) -> dict[str, Any]:
    listed = listed_gpu(row)
    compute = (row["compute_major"], row["compute_minor"] or 0)
    if row["compute_major"] is None and listed is not None:
        compute = listed.compute_capability or (None, None)
    known = {limit: row[column] for column, limit in _DEVICE_COLUMNS.items()}
    return {
        "name": row["name"],
        "vendor": None if listed is None else listed.vendor,
        "compute_major": compute[0],
        "compute_minor": compute[1],
        "sm_count": row["sm_count"] or (listed.sm_count if listed is not None else None),
        **known,
    }


def limits_of(
    major: int | None, minor: int | None, known: Mapping[str, float | None]
) -> SmLimits | None:
    """Give the limits of an SM; `known` are those that the capture states, by field of SmLimits.

    A compute capability that is not in the table takes the units of the nearest one before it, if
    the capture states the limits themselves.
    """
    stated: dict[str, Any] = {
        key: int(value)
        for key, value in known.items()
        if value is not None and (value >= 1 or (value == 0 and key in _MAY_BE_ZERO))
    }
    if major is None:
        return None
    base = SM_LIMITS.get((major, minor or 0))
    if base is None:
        if not all(key in stated for key in _NEEDED):
            return None
        base = replace(_nearest(major, minor or 0), major=major, minor=minor or 0)
    limits = replace(base, **stated)
    return replace(limits, carve_outs_bytes=_carve_outs(base, limits.shared_per_sm_bytes))


def gpu_limits(name: str) -> SmLimits | None:
    """Find the limits of a GPU that a person names: a product, `sm_80`, `8.0` or `80`."""
    digits = name.strip().lower().removeprefix("sm").removeprefix("_").rstrip("af").replace(".", "")
    if digits.isdecimal() and len(digits) >= 2:
        found = SM_LIMITS.get((int(digits[:-1]), int(digits[-1])))
        if found is not None:
            return found
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
        f"the limits of {listed.vendor} {listed.name} are not known",
        why="the calculator knows CUDA's compute capabilities "
        f"{', '.join(f'{major}.{minor}' for major, minor in SM_LIMITS)}",
    )


def _nearest(major: int, minor: int) -> SmLimits:
    earlier = [cc for cc in SM_LIMITS if cc <= (major, minor)]
    return SM_LIMITS[max(earlier) if earlier else min(SM_LIMITS)]


def _carve_outs(base: SmLimits, largest: int) -> tuple[int, ...]:
    return (*(size for size in base.carve_outs_bytes if size < largest), largest)


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
    shape = BlockShape(block, registers, 0, shared_bytes, barriers)
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


def _check(limits: SmLimits, shape: BlockShape) -> None:
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


def _facts(gpu: str, limits: SmLimits, shape: BlockShape, found: Occupancy) -> tuple[Fact, ...]:
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


def _notes(limits: SmLimits, shape: BlockShape) -> tuple[str, ...]:
    notes = []
    if shape.shared_bytes > limits.shared_per_block_bytes:
        notes.append(
            f"more than {limits.shared_per_block_bytes} bytes of shared memory a block must be "
            "dynamic, and allowed with cudaFuncSetAttribute"
        )
    return tuple(notes)
