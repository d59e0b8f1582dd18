"""THE table of what one streaming multiprocessor holds, by CUDA compute capability."""

from __future__ import annotations

from dataclasses import dataclass

_KIB = 1024
_GUIDE = "CUDA C++ Programming Guide, compute capabilities tables"
_GUIDE_AND_LIBCUDACXX = f"{_GUIDE}; libcu++ architecture traits"

# Carve-outs that the driver can choose between, in KiB (CUDA 13's cuda_occupancy.h, which is also
# where the barriers and sub-partitions are from). Pascal's shared memory has a fixed size.
_VOLTA_KIB = (0, 8, 16, 32, 64, 96)
_TURING_KIB = (32, 64)
_AMPERE_KIB = (0, 8, 16, 32, 64, 100, 132, 164, 196, 228)


@dataclass(frozen=True, slots=True)
class SmLimits:
    """Resources of one SM of a compute capability, and how blocks and warps are given them."""

    major: int
    minor: int
    architecture: str
    max_warps: int
    """Resident warps per SM."""
    max_blocks: int
    """Resident blocks per SM."""
    shared_per_sm_bytes: int
    """Largest shared-memory carve-out of an SM."""
    shared_per_block_optin_bytes: int
    """Most shared memory of a block, after opting in with cudaFuncSetAttribute."""
    shared_allocation_unit_bytes: int
    """Shared memory of a block is rounded up to this."""
    shared_reserved_per_block_bytes: int
    """Shared memory that the driver takes in every block."""
    carve_outs_bytes: tuple[int, ...]
    """Sizes that the driver can give an SM's shared memory, ascending; the rest is L1 cache."""
    warp_allocation_granularity: int
    """Parts of an SM (schedulers) that its registers are split into: a warp's come from one part.

    The check against `max_registers_per_block` rounds the warps of a block up to this; how many
    blocks fit an SM does not.
    """
    fp32_cores: int
    """FP32 results (an FMA is one) per clock and SM."""
    fp64_cores: int | None
    """FP64 results per clock and SM; None when the guide does not say."""
    source: str
    barriers_per_sm: int | None = None
    """Barriers that the resident blocks share; None where they never are the limit."""
    max_registers_per_block: int = 65536
    registers_per_sm: int = 65536
    max_registers_per_thread: int = 255
    register_allocation_unit: int = 256
    """Registers of a warp are rounded up to this."""
    shared_per_block_bytes: int = 48 * _KIB
    """Most shared memory of a block without opting in."""
    max_threads_per_block: int = 1024
    warp_size: int = 32

    @property
    def compute_capability(self) -> tuple[int, int]:
        """(major, minor), the key of the table."""
        return self.major, self.minor

    @property
    def max_threads(self) -> int:
        """Resident threads per SM."""
        return self.max_warps * self.warp_size


def _pascal_to_turing(
    cc: tuple[int, int],
    architecture: str,
    *,
    warps: int,
    blocks: int,
    shared_kib: tuple[int, int],
    granularity: int,
    cores: tuple[int, int],
    carve_outs_kib: tuple[int, ...] | None = None,
) -> SmLimits:
    """Describe an SM before 8.0: 256-byte shared-memory units, nothing reserved by the driver."""
    return SmLimits(
        *cc,
        architecture,
        max_warps=warps,
        max_blocks=blocks,
        shared_per_sm_bytes=shared_kib[0] * _KIB,
        shared_per_block_optin_bytes=shared_kib[1] * _KIB,
        shared_allocation_unit_bytes=256,
        shared_reserved_per_block_bytes=0,
        carve_outs_bytes=_sizes(carve_outs_kib or shared_kib[:1], shared_kib[0]),
        warp_allocation_granularity=granularity,
        fp32_cores=cores[0],
        fp64_cores=cores[1],
        source=_GUIDE,
    )


def _ampere_on(
    cc: tuple[int, int],
    architecture: str,
    *,
    warps: int,
    blocks: int,
    shared_kib: int,
    cores: tuple[int, int | None],
    barriers: int | None = None,
    source: str = _GUIDE,
) -> SmLimits:
    """Describe an SM from 8.0 on: 128-byte units, 1 KiB of every block kept by the driver."""
    return SmLimits(
        *cc,
        architecture,
        max_warps=warps,
        max_blocks=blocks,
        shared_per_sm_bytes=shared_kib * _KIB,
        shared_per_block_optin_bytes=(shared_kib - 1) * _KIB,
        shared_allocation_unit_bytes=128,
        shared_reserved_per_block_bytes=_KIB,
        carve_outs_bytes=_sizes(_AMPERE_KIB, shared_kib),
        warp_allocation_granularity=4,
        fp32_cores=cores[0],
        fp64_cores=cores[1],
        source=source,
        barriers_per_sm=barriers,
    )


def _sizes(carve_outs_kib: tuple[int, ...], largest_kib: int) -> tuple[int, ...]:
    return tuple(size * _KIB for size in carve_outs_kib if size <= largest_kib)


# fmt: off
_ROWS = (
    _pascal_to_turing((6, 0), "Pascal", warps=64, blocks=32, shared_kib=(64, 48), granularity=2,
                      cores=(64, 32)),
    _pascal_to_turing((6, 1), "Pascal", warps=64, blocks=32, shared_kib=(96, 48), granularity=4,
                      cores=(128, 4)),
    _pascal_to_turing((7, 0), "Volta", warps=64, blocks=32, shared_kib=(96, 96), granularity=4,
                      cores=(64, 32), carve_outs_kib=_VOLTA_KIB),
    _pascal_to_turing((7, 2), "Volta", warps=64, blocks=32, shared_kib=(96, 96), granularity=4,
                      cores=(64, 32), carve_outs_kib=_VOLTA_KIB),
    _pascal_to_turing((7, 5), "Turing", warps=32, blocks=16, shared_kib=(64, 64), granularity=4,
                      cores=(64, 2), carve_outs_kib=_TURING_KIB),
    _ampere_on((8, 0), "Ampere", warps=64, blocks=32, shared_kib=164, cores=(64, 32)),
    _ampere_on((8, 6), "Ampere", warps=48, blocks=16, shared_kib=100, cores=(128, 2)),
    _ampere_on((8, 7), "Ampere", warps=48, blocks=16, shared_kib=164, cores=(128, None)),
    _ampere_on((8, 9), "Ada Lovelace", warps=48, blocks=24, shared_kib=100, cores=(128, 2)),
    _ampere_on((9, 0), "Hopper", warps=64, blocks=32, shared_kib=228, cores=(128, 64),
               barriers=64),
    _ampere_on((10, 0), "Blackwell", warps=64, blocks=32, shared_kib=228, cores=(128, 64),
               barriers=64),
    _ampere_on((10, 3), "Blackwell Ultra", warps=64, blocks=32, shared_kib=228, cores=(128, 2),
               barriers=64, source=_GUIDE_AND_LIBCUDACXX),
    _ampere_on((11, 0), "Blackwell", warps=48, blocks=24, shared_kib=228, cores=(128, None),
               barriers=24, source=_GUIDE_AND_LIBCUDACXX),
    _ampere_on((12, 0), "Blackwell", warps=48, blocks=24, shared_kib=100, cores=(128, 2),
               barriers=24),
    _ampere_on((12, 1), "Blackwell", warps=48, blocks=24, shared_kib=100, cores=(128, 2),
               barriers=24, source=_GUIDE_AND_LIBCUDACXX),
)
# fmt: on

SM_LIMITS = {row.compute_capability: row for row in _ROWS}
"""Limits of one SM by (major, minor)."""
