"""The page docs/hardware.md, from the tables of GPUs and of SM limits."""

from __future__ import annotations

from collections.abc import Iterable

from gpusight.hardware.gpu_table import GPUS, Gpu
from gpusight.hardware.sm_limits import SM_LIMITS, SmLimits

_GIB, _MIB = 1 << 30, 1 << 20

_INTRODUCTION = """\
# GPU table

<!-- Generated from src/gpusight/hardware/gpu_table.py and sm_limits.py by
scripts/generate-docs; do not edit. -->

Peak rates are dense (no sparsity) in TFLOP/s, TOP/s for int8, at the boost clock. Tensor rates are
those with FP32 accumulation, which the frameworks use; on GeForce that is half the rate with FP16
accumulation. On AMD GPUs, SMs are compute units and tensor rates those of the matrix cores. Laptop
GPUs are listed with the top of their published clock and power range. Values in the
capture (SMs, clock, bandwidth, memory, L2) replace those of the table, and peaks are scaled by its
SM count and clock. A dash: no such unit, or not published.
"""
_GPU_COLUMNS = (
    "GPU", "Architecture", "CC or gfx", "SMs", "Base MHz", "Boost MHz", "Memory GiB", "GB/s",
    "L2 MiB", "fp64", "fp32", "bf16", "fp16", "tensor fp64", "tensor fp32", "tensor tf32",
    "tensor bf16", "tensor fp16", "tensor fp8", "tensor fp4", "tensor int8", "W", "Source",
)  # fmt: skip
_SM_COLUMNS = (
    "CC", "Architecture", "Threads", "Warps", "Blocks", "Registers", "Registers per block",
    "Registers per thread", "Register unit", "Warp granularity", "Shared KiB",
    "Shared KiB per block", "Opt-in KiB", "Reserved B per block", "Shared unit B", "FP32 cores",
    "FP64 cores", "Source",
)  # fmt: skip


def hardware_page() -> str:
    """Write docs/hardware.md: every GPU of the table and the limits of one SM."""
    return "\n".join(
        (
            _INTRODUCTION,
            "## GPUs\n",
            _table(_GPU_COLUMNS, map(_gpu_cells, GPUS)),
            "## Limits of one SM\n",
            _table(_SM_COLUMNS, map(_sm_cells, SM_LIMITS.values())),
        )
    )


def _gpu_cells(gpu: Gpu) -> tuple[object, ...]:
    cc = gpu.compute_capability
    vector, tensor = gpu.vector, gpu.tensor
    return (
        gpu.name, gpu.architecture, f"{cc[0]}.{cc[1]}" if cc else gpu.gfx, gpu.sm_count,
        gpu.base_clock_mhz, gpu.boost_clock_mhz, _per(gpu.memory_bytes, _GIB),
        _per(gpu.memory_bandwidth_bytes_s, 1e9), _per(gpu.l2_bytes, _MIB),
        vector.fp64, vector.fp32, vector.bf16, vector.fp16,
        tensor.fp64, tensor.fp32, tensor.tf32, tensor.bf16, tensor.fp16, tensor.fp8, tensor.fp4,
        tensor.int8,
        gpu.tdp_w, gpu.source,
    )  # fmt: skip


def _sm_cells(sm: SmLimits) -> tuple[object, ...]:
    return (
        f"{sm.major}.{sm.minor}", sm.architecture, sm.max_threads, sm.max_warps, sm.max_blocks,
        sm.registers_per_sm, sm.max_registers_per_block, sm.max_registers_per_thread,
        sm.register_allocation_unit, sm.warp_allocation_granularity,
        sm.shared_per_sm_bytes / 1024, sm.shared_per_block_bytes / 1024,
        sm.shared_per_block_optin_bytes / 1024, sm.shared_reserved_per_block_bytes,
        sm.shared_allocation_unit_bytes, sm.fp32_cores, sm.fp64_cores, sm.source,
    )  # fmt: skip


def _per(value: float | None, unit: float) -> float | None:
    return None if value is None else value / unit


def _table(columns: tuple[str, ...], rows: Iterable[tuple[object, ...]]) -> str:
    lines = (columns, ("---",) * len(columns), *rows)
    return "".join(f"| {' | '.join(map(_cell, line))} |\n" for line in lines)


def _cell(value: object) -> str:
    if value is None:
        return "—"
    if isinstance(value, float):
        return f"{value:.0f}" if value >= 1000 else f"{value:.4g}"
    return str(value)
