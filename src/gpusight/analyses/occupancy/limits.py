"""What one SM of a capture's GPUs holds: the table's values, and the capture's own before them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from gpusight.analyses.counters.quantity import Quantity, metric
from gpusight.analyses.devices import listed_gpu, unknown_gpu
from gpusight.errors import UsageError
from gpusight.model.hardware import SM_LIMITS, find_gpu

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.model.sm_table import SmLimits
    from gpusight.model.trace import Trace

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
    Quantity(key, "", "Limit of an SM", (metric(f"device__attribute_{name}"),), "LaunchStats")
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
