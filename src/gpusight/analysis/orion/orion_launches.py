"""Launches for Orion's kernel-info file: size, SMs needed, compute or memory bound."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analysis.counters.launch_quantities import (
    BARRIERS,
    BLOCK_SIZE,
    DRAM_SHARE,
    DURATION,
    DYNAMIC_SHARED,
    GRID_SIZE,
    REGISTERS,
    REPORTED_BLOCKS,
    SHARED_CONFIG,
    SM_COUNT,
    SM_SHARE,
    STATIC_SHARED,
    LaunchQuantity,
    QuantityFormula,
    measured,
    metric,
    total,
)
from gpusight.analysis.kernel_summary import SHAPE, whole
from gpusight.analysis.occupancy.block_occupancy import named_limits
from gpusight.analysis.occupancy.launch_occupancy import (
    LIMIT_QUANTITIES,
    device_rows,
    limits_of,
)
from gpusight.analysis.roofline.roofline_points import measure
from gpusight.hardware.gpu_lookup import find_gpu
from gpusight.hardware.sm_limits import SM_LIMITS, BlockShape, occupancy
from gpusight.results import NotApplicable

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusight.hardware.sm_limits import SmLimits
    from gpusight.trace.trace import Trace


COMMAND = "orion"
_RESOURCES = (REGISTERS, STATIC_SHARED, DYNAMIC_SHARED, SHARED_CONFIG, BARRIERS, REPORTED_BLOCKS)
_INTEGERS = (*_RESOURCES, SM_COUNT, *LIMIT_QUANTITIES)
_ARCHITECTURE = ("device", "compute_major", "compute_minor")
_NEEDED = {
    "duration_ns": ("duration", "SpeedOfLight"),
    "grid": ("grid size", "LaunchStats"),
    "block": ("block size", "LaunchStats"),
    REGISTERS.key: ("registers per thread", "LaunchStats"),
}
"""Column -> what it is, and the section of the report that has it."""


def launch_table(trace: Trace) -> pl.DataFrame | NotApplicable:
    """Return one row per kernel launch, in order of launch; shares are fractions of 1."""
    if not trace.has("profiles"):
        reason = "the capture has no launches that were measured with hardware counters"
        hint = 'collect them: ncu --set detailed --nvtx --nvtx-include "start/" -o report …'
        return NotApplicable(COMMAND, reason, hint)
    quantities = (*_INTEGERS, SM_SHARE, DRAM_SHARE, GRID_SIZE, BLOCK_SIZE)
    columns = ("kind", "name", "mangled_name", *_ARCHITECTURE, *SHAPE)
    kernels = (
        measured(trace, quantities, columns)
        .filter(pl.col("kind").cast(pl.String) == "kernel")
        .with_columns(
            *(whole(quantity.key) for quantity in _INTEGERS),
            pl.col("name").cast(pl.String),
            _size("grid", GRID_SIZE).alias("grid"),
            _size("block", BLOCK_SIZE).alias("block"),
        )
        .drop(GRID_SIZE.key, BLOCK_SIZE.key)
        .sort("launch")
    )
    if kernels.is_empty():
        reason = "the report measured ranges or graphs as wholes, not single kernels"
        return NotApplicable(COMMAND, reason, "profile with ncu --replay-mode kernel")
    lacking = [key for key in _NEEDED if kernels.get_column(key).null_count()]
    return _missing(kernels, lacking) if lacking else kernels


def launch_notes(trace: Trace, launches: pl.DataFrame) -> tuple[str, ...]:
    """Note what was measured and is no launch, and shared memory that is assumed to be 0."""
    notes = []
    others = trace.row_count("profiles") - launches.height
    if others:
        notes.append(f"{others:,} ranges or graphs measured as a whole are excluded")
    for quantity, name in ((STATIC_SHARED, "static"), (DYNAMIC_SHARED, "dynamic")):
        count = launches.get_column(quantity.key).null_count()
        if count:
            notes.append(
                f"no {name} shared memory in the report of {how_many(count)}, which is taken for "
                f"none; collect: --section {quantity.section}"
            )
    return tuple(notes)


def how_many(count: int) -> str:
    """Format a number of launches."""
    return "one launch" if count == 1 else f"{count:,} launches"


def _size(what: str, quantity: LaunchQuantity) -> pl.Expr:
    """Multiply the sizes of the axes: some exports leave y and z out."""
    x, y, z = (pl.col(f"{what}_{axis}") for axis in "xyz")
    sizes = x * y.fill_null(1) * z.fill_null(1)
    return pl.coalesce(sizes, whole(quantity.key))


def _missing(launches: pl.DataFrame, lacking: list[str]) -> NotApplicable:
    """Return what the file needs and the report lacks."""
    without = launches.filter(pl.any_horizontal(pl.col(lacking).is_null()))["launch"]
    *others, last = (_NEEDED[key][0] for key in lacking)
    names = f"{', '.join(others)} and {last}" if others else last
    sections = dict.fromkeys(_NEEDED[key][1] for key in lacking)
    options = " ".join(f"--section {section}" for section in sections)
    which = "any launch" if len(without) == launches.height else f"launch {without[0]}"
    if 1 < len(without) < launches.height:
        which += f" and {len(without) - 1:,} others"
    reason = f"the report has no {names} of {which}"
    return NotApplicable(COMMAND, reason, f"collect: ncu {options}, or add --ncu-raw FILE")


SM_NEEDED = "sm_needed"
_WARP = 32
_V100 = (7, 0)
_ORIGINAL_LIMITS = (2048, 65536, 65536)
"""Threads, shared memory and registers that the original script takes an SM to hold: a V100."""
_REGISTER_UNIT = 256
_SCHEDULERS = 4

_LIMIT_KEYS = tuple(quantity.key for quantity in LIMIT_QUANTITIES)
_SHAPE = (*_ARCHITECTURE, "block", "grid", *(q.key for q in _RESOURCES), *_LIMIT_KEYS)


@dataclass(frozen=True, slots=True)
class OrionSmLimits:
    """Limits of an SM that the user gives; the others come from the report."""

    gpu: str | None = None
    """A GPU, in place of the report's."""
    max_threads: int | None = None
    max_blocks: int | None = None
    max_shared_bytes: int | None = None
    max_registers: int | None = None
    """Limits of one SM, in place of the GPU's."""

    def named(self) -> SmLimits | None:
        """Return the limits of the named GPU; None where none is named."""
        return None if self.gpu is None else named_limits(self.gpu)

    def over(self, limits: SmLimits) -> SmLimits:
        """Replace the limits of a GPU by those given."""
        warps = None if self.max_threads is None else max(1, self.max_threads // _WARP)
        given = {
            "max_warps": warps,
            "max_blocks": self.max_blocks,
            "shared_per_sm_bytes": self.max_shared_bytes,
            "registers_per_sm": self.max_registers,
        }
        return replace(limits, **{k: v for k, v in given.items() if v is not None})  # type: ignore[arg-type]


def with_sm_needed(
    trace: Trace, launches: pl.DataFrame, limits: OrionSmLimits, *, compat: bool
) -> tuple[pl.DataFrame, tuple[str, ...]] | NotApplicable:
    """Add the column `sm_needed`, and return notes; each distinct shape is computed once."""
    keys = [column for column in _SHAPE if column in launches.columns]
    shapes = launches.select(keys).unique(maintain_order=True)
    count = launches.group_by(keys).len("count")
    rows = shapes.join(count, on=keys, how="left", nulls_equal=True, maintain_order="left")
    needed, too_large = [], 0
    finder = None if compat else _BlocksPerSm(trace, limits)
    for row in rows.iter_rows(named=True):
        blocks = _original_blocks_per_sm(row, limits) if finder is None else finder.blocks(row)
        if blocks is None:
            major, minor = row["compute_major"], row["compute_minor"]
            which = (
                "which GPU it is of" if major is None else f"what an SM of {major}.{minor} holds"
            )
            reason = f"the report does not say {which}, so the SMs that a launch needs are unknown"
            hint = "name the GPU, such as --gpu A100 or --gpu sm_80"
            return NotApplicable(COMMAND, reason, hint)
        too_large += row["count"] if blocks < 1 else 0
        needed.append(-(-row["grid"] // max(1, blocks)))
    known = shapes.with_columns(pl.Series(SM_NEEDED, needed, pl.Int64))
    frame = launches.join(known, on=keys, how="left", nulls_equal=True, maintain_order="left")
    notes = []
    if too_large:
        notes.append(
            f"one block exceeds an SM; one block per SM is assumed for {how_many(too_large)}"
        )
    if finder is not None and finder.guessed:
        notes.append("the GPU is not known: limits that are not given are those of a V100")
    return frame, tuple(notes)


class _BlocksPerSm:
    """Computes how many blocks of a launch an SM holds."""

    def __init__(self, trace: Trace, limits: OrionSmLimits) -> None:
        self._given = limits
        self._named = limits.named()
        self._devices = device_rows(trace) if trace.has("devices") else {}
        self.guessed = False
        """Whether limits of a V100 were used for want of others."""

    def blocks(self, row: Mapping[str, Any]) -> int | None:
        """Return the blocks that an SM holds at once; None where its limits are unknown."""
        reported: int | None = row[REPORTED_BLOCKS.key]
        if reported and self._given == OrionSmLimits():
            return reported  # exact also where the report was printed with few digits
        limits = self._named
        if limits is None:
            device = self._devices.get(row["device"], {})
            major, minor = row["compute_major"], row["compute_minor"]
            if major is None:
                major, minor = device.get("compute_major"), device.get("compute_minor")
            known = {k: device.get(k) if row[k] is None else row[k] for k in _LIMIT_KEYS}
            limits = limits_of(major, minor, known)
        if limits is None and self._given == OrionSmLimits():
            return reported
        if limits is None:
            limits, self.guessed = SM_LIMITS[_V100], True
        # The carve-out that the driver chose is that of the report's own GPU.
        config = None if self._named else row[SHARED_CONFIG.key]
        shape = BlockShape(
            row["block"],
            row[REGISTERS.key],
            row[STATIC_SHARED.key] or 0,
            row[DYNAMIC_SHARED.key] or 0,
            barriers=row[BARRIERS.key],
            shared_config_bytes=config if self._given.max_shared_bytes is None else None,
        )
        return occupancy(self._given.over(limits), shape).blocks


def _original_blocks_per_sm(row: Mapping[str, Any], limits: OrionSmLimits) -> int:
    """Follow the original script: rounded up, three limits, static shared memory only."""
    threads, shared, registers = _ORIGINAL_LIMITS
    named = limits.named()
    if named is not None:
        threads, shared = named.max_threads, named.shared_per_sm_bytes
        registers = named.registers_per_sm
    threads = limits.max_threads or threads
    shared = limits.max_shared_bytes or shared
    registers = limits.max_registers or registers
    block, per_thread = max(1, int(row["block"])), int(row[REGISTERS.key])
    by_threads = -(-threads // block)
    static = int(row[STATIC_SHARED.key] or 0)
    by_shared = -(-shared // static) if static else by_threads
    per_warp = -(-_WARP * per_thread // _REGISTER_UNIT) * _REGISTER_UNIT
    if not per_warp:
        return min(by_threads, by_shared)
    warps = int(registers / per_warp / _SCHEDULERS) * _SCHEDULERS
    return min(by_threads, by_shared, warps // -(-block // _WARP))


COMPUTE, MEMORY, NEITHER = 1, 0, -1
"""What the column `Profile` holds."""
CLASS_NAMES = {COMPUTE: "compute", MEMORY: "memory", NEITHER: "neither"}
PROFILE = "profile"
INTENSITY = "intensity"
"""FLOPs for each byte of DRAM; zero without FLOPs, null where it is not known."""
ORIGINAL_THRESHOLD = 9.72
"""FLOP/byte above which the original calls a launch compute-bound, whatever the GPU."""
BUSY = 0.6
"""Share of its peak from which a unit bounds a launch that does no arithmetic."""

_OPS = ("fadd", "fmul", "ffma")
_PER_CYCLE = tuple(
    f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum.per_cycle_elapsed" for op in _OPS
)
_SUMS = tuple(f"smsp__sass_thread_inst_executed_op_{op}_pred_on.sum" for op in _OPS)
_CLOCK = "smsp__cycles_elapsed.avg.per_second"
_PER_SECOND = 1e9 / pl.col(DURATION)


def _operations(values: Sequence[pl.Expr]) -> pl.Expr:
    return values[0] + values[1] + 2 * values[2]


_FP32_RATE = LaunchQuantity(
    "fp32_per_second",
    "",
    "FP32 FLOP/s; an FMA counts as two",
    (
        QuantityFormula((*_PER_CYCLE, _CLOCK), lambda v: _operations(v) * v[3]),
        QuantityFormula(_SUMS, lambda v: _operations(v) * _PER_SECOND),
    ),
    "SpeedOfLight_RooflineChart",
)
_DRAM_RATE = LaunchQuantity(
    "dram_bytes_per_second",
    "byte/s",
    "Bytes/s read from and written to the GPU's memory",
    (
        metric("dram__bytes.sum.per_second"),
        QuantityFormula(("dram__bytes.sum",), lambda v: v[0] * _PER_SECOND),
        total("dram__bytes_read.sum.per_second", "dram__bytes_write.sum.per_second"),
        QuantityFormula(
            ("dram__bytes_read.sum", "dram__bytes_write.sum"),
            lambda v: (v[0] + v[1]) * _PER_SECOND,
        ),
    ),
    "MemoryWorkloadAnalysis",
)


def with_profile(
    trace: Trace,
    launches: pl.DataFrame,
    threshold: float | None,
    *,
    gpu: str | None = None,
    compat: bool = False,
) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Add the columns `intensity` and `profile`, and return notes; `gpu` replaces the report's."""
    if compat:
        # The original counts FP32 only.
        counts = measured(trace, (_FP32_RATE, _DRAM_RATE)).select(
            "launch",
            pl.col(_FP32_RATE.key).alias("_flops"),
            pl.col(_DRAM_RATE.key).alias("_bytes"),
            pl.lit(None, pl.Float64).alias("knee"),
            pl.lit(value=False).alias("_estimated"),
        )
    else:
        # A compute capability such as sm_80 names limits of an SM, but no peaks.
        peaks_of = gpu if gpu is not None and find_gpu(gpu) is not None else None
        counts = measure(trace, peaks_of).frame.select(
            "launch", "knee", _flops="flops", _bytes="dram_bytes", _estimated="estimated"
        )
    default = pl.lit(ORIGINAL_THRESHOLD) if compat else pl.col("knee")
    limit = default if threshold is None else pl.lit(threshold)
    flops, moved = pl.col("_flops"), pl.col("_bytes")
    intensity = pl.when(flops == 0).then(0.0).when(moved.is_not_null()).then(flops / moved)
    frame = (
        launches.join(counts, on="launch", how="left", maintain_order="left")
        .with_columns(intensity.alias(INTENSITY), limit.cast(pl.Float64).alias("_limit"))
        .with_columns(_profile().alias(PROFILE))
    )
    notes = _notes(frame)
    return frame.drop("_limit", "_flops", "_bytes", "_estimated", "knee"), notes


def _profile() -> pl.Expr:
    intensity, limit = pl.col(INTENSITY), pl.col("_limit")
    known = (pl.col("_flops") > 0) & intensity.is_not_null() & limit.is_not_null()
    by_intensity = pl.when(intensity > limit).then(COMPUTE).otherwise(MEMORY)
    return (
        pl.when(known)
        .then(by_intensity)
        .when(pl.col(SM_SHARE.key) >= BUSY)
        .then(COMPUTE)
        .when(pl.col(DRAM_SHARE.key) >= BUSY)
        .then(MEMORY)
        .otherwise(NEITHER)
        .cast(pl.Int64)
    )


def _notes(frame: pl.DataFrame) -> tuple[str, ...]:
    """Note for how many launches the class rests on less data than it should."""
    flops = pl.col("_flops")
    unit = pl.any_horizontal(pl.col(SM_SHARE.key, DRAM_SHARE.key).is_null())
    no_flops = frame.filter(flops.is_null()).height
    no_bytes = frame.filter((flops > 0) & pl.col(INTENSITY).is_null()).height
    no_knee = frame.filter((flops > 0) & pl.col("_limit").is_null()).height
    no_units = frame.filter((flops.is_null() | (flops == 0)) & unit).height
    missing = (
        (no_flops, "no operations are counted", f"collect: --section {_FP32_RATE.section}"),
        (no_bytes, "no DRAM bytes are counted", f"collect: --section {_DRAM_RATE.section}"),
        (no_knee, "the peaks of the GPU are not known", "add --threshold FLOP/BYTE or --gpu NAME"),
    )
    notes = [
        f"{what} of {how_many(count)}: the class is that of the unit that is {BUSY:.0%} busy, "
        f"if any; {remedy}"
        for count, what, remedy in missing
        if count
    ]
    if no_units:
        notes.append(
            f"no throughput in the report of {how_many(no_units)}, and the class may be missing; "
            "collect: --section SpeedOfLight"
        )
    estimated = frame.filter(pl.col("_estimated")).height
    if estimated:
        notes.append(
            f"operations of {how_many(estimated)} are estimated from Tensor Core utilization"
        )
    return tuple(notes)
