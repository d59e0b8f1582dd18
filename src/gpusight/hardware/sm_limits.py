"""SM limits by compute capability, and the occupancy calculator."""

from __future__ import annotations

from dataclasses import dataclass, replace

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
    """Sub-partitions of an SM that its registers are split into: a warp's come from one of them."""
    fp32_cores: int
    """FP32 results (an FMA is one) per clock and SM."""
    fp64_cores: int | None
    """FP64 results per clock and SM; None when the guide does not say."""
    source: str
    barriers_per_sm: int | None = None
    """Barriers that the resident blocks share; None where they never are the limit."""
    launch_check_granularity: int = 4
    """The same as CUDA assumes when it refuses launches, which rounds a block's warps up to this.

    On GP100, CUDA applies the register limit of sm_61.
    """
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


def _ampere_onward(
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
    _ampere_onward((8, 0), "Ampere", warps=64, blocks=32, shared_kib=164, cores=(64, 32)),
    _ampere_onward((8, 6), "Ampere", warps=48, blocks=16, shared_kib=100, cores=(128, 2)),
    _ampere_onward((8, 7), "Ampere", warps=48, blocks=16, shared_kib=164, cores=(128, None)),
    _ampere_onward((8, 9), "Ada Lovelace", warps=48, blocks=24, shared_kib=100, cores=(128, 2)),
    _ampere_onward((9, 0), "Hopper", warps=64, blocks=32, shared_kib=228, cores=(128, 64),
                   barriers=64),
    _ampere_onward((10, 0), "Blackwell", warps=64, blocks=32, shared_kib=228, cores=(128, 64),
                   barriers=64),
    _ampere_onward((10, 3), "Blackwell Ultra", warps=64, blocks=32, shared_kib=228, cores=(128, 2),
                   barriers=64, source=_GUIDE_AND_LIBCUDACXX),
    _ampere_onward((11, 0), "Blackwell", warps=48, blocks=24, shared_kib=228, cores=(128, None),
                   barriers=24, source=_GUIDE_AND_LIBCUDACXX),
    _ampere_onward((12, 0), "Blackwell", warps=48, blocks=24, shared_kib=100, cores=(128, 2),
                   barriers=24),
    _ampere_onward((12, 1), "Blackwell", warps=48, blocks=24, shared_kib=100, cores=(128, 2),
                   barriers=24, source=_GUIDE_AND_LIBCUDACXX),
)
# fmt: on

SM_LIMITS = {row.compute_capability: row for row in _ROWS}
"""Limits of one SM by (major, minor)."""


LIMITS = ("warps", "blocks", "registers", "shared_memory", "barriers")
"""What can keep a further block off an SM, as `Occupancy.by_limit` names it."""


@dataclass(frozen=True, slots=True)
class BlockShape:
    """Resources that one block of a launch needs on an SM."""

    block_threads: int
    registers: int | None = None
    """Registers per thread; None when unknown, and then no limit."""
    static_shared_bytes: int = 0
    dynamic_shared_bytes: int = 0
    barriers: int | None = None
    """Barriers that the code uses; None when unknown."""
    shared_config_bytes: int | None = None
    """Shared memory that the driver configured on each SM; None for the largest carve-out."""

    @property
    def shared_bytes(self) -> int:
        """Shared memory that the program requested, without what the driver adds."""
        return self.static_shared_bytes + self.dynamic_shared_bytes


@dataclass(frozen=True, slots=True)
class Occupancy:
    """How many blocks of a shape are on an SM at once, at best."""

    blocks: int
    """Resident blocks; 0 when the GPU refuses the launch, and then `refusals` has the reason."""
    warps: int
    share: float
    """Resident warps of those that an SM can hold, 0 to 1: the theoretical occupancy."""
    by_limit: dict[str, int]
    """Blocks that each limit alone would allow (keys from `LIMITS`), without those not known."""
    limiters: tuple[str, ...]
    """Limits that must give way for one more block to fit: all of them together."""
    warps_per_block: int
    registers_allocated: int | None
    """Registers that a thread gets: those it needs, rounded up."""
    shared_allocated_bytes: int
    """Shared memory that a block gets: what it requests and the driver's part, rounded up."""
    carve_out_bytes: int
    """Shared memory of the SM: as configured, else the smallest size that holds the blocks."""
    refusals: tuple[str, ...] = ()
    """Why no block can run: one sentence for each limit that a single block is over."""

    @property
    def is_full(self) -> bool:
        """Whether the SM holds all the warps that it can."""
        return self.share >= 1


def occupancy(limits: SmLimits, shape: BlockShape) -> Occupancy:
    """Compute how many blocks of this shape one SM holds at once."""
    warps_per_block = _warps(limits, shape)
    by_limit = {
        "warps": limits.max_warps // warps_per_block,
        "blocks": limits.max_blocks,
        **_register_limit(limits, shape, limits.warp_allocation_granularity),
        "shared_memory": _shared_limit(limits, shape),
    }
    if limits.barriers_per_sm is not None and shape.barriers is not None:
        by_barriers = limits.barriers_per_sm // max(1, shape.barriers)
        by_limit["barriers"] = min(limits.max_blocks, by_barriers)
    refusals = _refusals(limits, shape)
    by_limit |= dict.fromkeys(refusals, 0)
    blocks = min(by_limit.values())
    warps = blocks * warps_per_block
    registers = shape.registers
    allocated = _shared_allocated(limits, shape)
    return Occupancy(
        blocks=blocks,
        warps=warps,
        share=warps / limits.max_warps,
        by_limit=by_limit,
        limiters=_limiters(limits, shape, by_limit),
        warps_per_block=warps_per_block,
        registers_allocated=(
            None
            if registers is None
            else _registers_per_warp(limits, registers) // limits.warp_size
        ),
        shared_allocated_bytes=allocated,
        carve_out_bytes=shape.shared_config_bytes or _carve_out(limits, blocks * allocated),
        refusals=tuple(refusals.values()),
    )


def whole_carve_out(shape: BlockShape) -> BlockShape:
    """Return the same shape where the driver may choose the carve-out anew."""
    return replace(shape, shared_config_bytes=None)


def _warps(limits: SmLimits, shape: BlockShape) -> int:
    return max(1, round_up(shape.block_threads, limits.warp_size) // limits.warp_size)


def _registers_per_warp(limits: SmLimits, registers: int) -> int:
    return round_up(registers * limits.warp_size, limits.register_allocation_unit)


def _register_limit(limits: SmLimits, shape: BlockShape, sub_partitions: int) -> dict[str, int]:
    """Fill each sub-partition of the SM with whole warps; blocks may span sub-partitions."""
    if shape.registers is None:
        return {}
    if shape.registers == 0:
        return {"registers": limits.max_blocks}
    per_sub_partition = limits.registers_per_sm // sub_partitions
    warps = sub_partitions * (per_sub_partition // _registers_per_warp(limits, shape.registers))
    return {"registers": warps // _warps(limits, shape)}


def _shared_allocated(limits: SmLimits, shape: BlockShape) -> int:
    size = shape.shared_bytes + limits.shared_reserved_per_block_bytes
    return round_up(size, limits.shared_allocation_unit_bytes)


def _shared_limit(limits: SmLimits, shape: BlockShape) -> int:
    allocated = _shared_allocated(limits, shape)
    if allocated == 0:
        return limits.max_blocks
    size = shape.shared_config_bytes or limits.shared_per_sm_bytes
    # A block that is larger than the carve-out makes the driver choose a larger one.
    return (size if size >= allocated else _carve_out(limits, allocated)) // allocated


def _carve_out(limits: SmLimits, size: int) -> int:
    """Return the smallest carve-out that holds `size` bytes."""
    fitting = (carve_out for carve_out in limits.carve_outs_bytes if carve_out >= size)
    return next(fitting, limits.shared_per_sm_bytes)


def _limiters(limits: SmLimits, shape: BlockShape, by_limit: dict[str, int]) -> tuple[str, ...]:
    """Return the tightest limits, without those that only look tight.

    Nsight Compute's numbers tie more often than there are causes: it counts the shared memory of
    the carve-out that the driver chose, which is just large enough for what the other limits
    allow, and counts shared memory and barriers also where the program uses none.
    """
    tightest = min(by_limit.values())
    tied = [name for name, blocks in by_limit.items() if blocks == tightest]
    slack = []
    if not shape.shared_bytes or _shared_limit(limits, whole_carve_out(shape)) > tightest:
        slack.append("shared_memory")
    if (shape.barriers or 0) <= 1:
        slack.append("barriers")
    causes = [name for name in tied if name not in slack]
    return tuple(causes or tied)


def _refusals(limits: SmLimits, shape: BlockShape) -> dict[str, str]:
    """Return, for each limit that a single block exceeds, why the GPU would not launch it."""
    refusals = {}
    if shape.block_threads > limits.max_threads_per_block:
        refusals["warps"] = (
            f"{shape.block_threads} threads per block (max. {limits.max_threads_per_block})"
        )
    most_shared = limits.shared_per_block_optin_bytes + limits.shared_reserved_per_block_bytes
    if _shared_allocated(limits, shape) > most_shared:
        refusals["shared_memory"] = (
            f"{shape.shared_bytes} bytes of shared memory per block "
            f"(max. {limits.shared_per_block_optin_bytes})"
        )
    return refusals | _register_refusal(limits, shape)


def _register_refusal(limits: SmLimits, shape: BlockShape) -> dict[str, str]:
    registers = shape.registers or 0
    if registers > limits.max_registers_per_thread + 1:  # 256 is what 255 is rounded up to
        most = limits.max_registers_per_thread
        return {"registers": f"{registers} registers per thread (max. {most})"}
    warps = round_up(_warps(limits, shape), limits.launch_check_granularity)
    of_block = warps * _registers_per_warp(limits, registers)
    if of_block > limits.max_registers_per_block:
        most = limits.max_registers_per_block
        return {"registers": f"{of_block} registers per block (max. {most})"}
    if _register_limit(limits, shape, limits.launch_check_granularity).get("registers") == 0:
        many = f"{_warps(limits, shape)} warps of {registers} registers per thread"
        return {"registers": f"{many} do not fit the sub-partitions of an SM"}
    return {}


def round_up(value: int, unit: int) -> int:
    """Round up to a multiple of a unit."""
    return -(-value // unit) * unit
