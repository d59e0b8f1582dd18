"""One profiled launch as kernel rules see it: counters, busy units, stalls, occupancy.

Quantities that were not measured are read from the messages of ncu's own rules, where these state
them.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analysis.counters import kernel_quantities as q
from gpusight.analysis.counters import launch_quantities as shared
from gpusight.analysis.counters.launch_quantities import LaunchQuantity, measured
from gpusight.analysis.occupancy.launch_occupancy import (
    LIMIT_QUANTITIES,
    device_rows,
    limits_of,
    shape_of,
)
from gpusight.hardware.gpu_lookup import listed_gpu, with_measured
from gpusight.hardware.sm_limits import occupancy
from gpusight.naming.kernel_names import classify
from gpusight.results import Evidence
from gpusight.trace.schema_gpu import BLOCK, GRID

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpusight.hardware.gpu_table import Gpu
    from gpusight.hardware.sm_limits import BlockShape, Occupancy, SmLimits
    from gpusight.trace.trace import Trace


_NUMBER_WORDS = "excessive|highest-utilized|being stalled|peak performance|non-fused"
"""Words of the messages that contain numbers."""
_EXCESS = re.compile(
    r"(\d{1,18}) excessive (sectors|wavefronts) \(\d+% of (?:the )?total (\d{1,18}) "
)
_PIPE = re.compile(r"^(\w+)[^.%]{0,60} is the highest-utilized pipeline \((\d{1,3}(?:\.\d+)?)%\)")
_SUB_PIPE = re.compile(r"dominated by its (\w+)[^.]{0,40} sub-pipeline")
_PEAKS = re.compile(
    r"achieved\s+(?:close to )?(\d{1,3})% of this device's fp32 peak performance and\s+"
    r"(?:close to )?(\d{1,3})% of its fp64",
    re.IGNORECASE,
)
_FUSED = re.compile(r"executes (\d{1,18}) fused and (\d{1,18}) non-fused FP(32|64) instructions")
_STALLED = re.compile(r"represents about (\d{1,3}(?:\.\d+)?)% of the total")
_PIPES = {
    "ALU": q.ALU,
    "FMA": q.FMA,
    "FP16": q.FP16,
    "FP64": q.FP64,
    "LSU": q.LSU,
    "Tensor": q.TENSOR,
    "XU": q.XU,
}
_STALLS = {
    "scoreboard dependency on a L1TEX": "long_scoreboard",
    "scoreboard dependency on an L1TEX": "long_scoreboard",
    "scoreboard dependency on a MIO": "short_scoreboard",
    "scoreboard dependency on an MIO": "short_scoreboard",
    "instruction queue for local and global": "lg_throttle",
    "instruction queue for texture": "tex_throttle",
    "(memory input/output) instruction queue": "mio_throttle",
    "sibling warps at a CTA barrier": "barrier",
    "fixed latency execution dependency": "wait",
    "execution pipe to be available": "math_pipe_throttle",
    "immediate constant cache": "imc_miss",
    "instruction cache miss": "no_instruction",
    "micro scheduler to select": "not_selected",
    "after EXIT": "drain",
    "memory barrier": "membar",
    "branch target": "branch_resolving",
}
"""Words of a message about a stall, and its reason."""
_MIN_STALL_PERCENT = 60.0
"""Percent of the warps' time that the messages must explain for their stalls to be used."""
_MAX_MESSAGE_LENGTH = 2_000


WARP = 32
SECTOR_BYTES = 32


def quantities_in_messages(trace: Trace) -> dict[int, dict[str, float]]:
    """Return by launch the quantities that the messages of the profiler's rules state."""
    if not trace.has("rule_results"):
        return {}
    rows = trace.table("rule_results", ("launch", "rule", "message")).drop_nulls()
    rows = rows.filter(pl.col("message").str.contains(_NUMBER_WORDS))
    by_launch: dict[int, dict[str, float]] = {}
    for launch, rule, message in rows.iter_rows():
        numbers = by_launch.setdefault(launch, {})
        for key, value in _numbers(str(rule), message[:_MAX_MESSAGE_LENGTH]).items():
            numbers[key] = max(value, numbers.get(key, value))
    return {launch: _all_stalls_or_none(numbers) for launch, numbers in by_launch.items()}


def _numbers(rule: str, message: str) -> Mapping[str, float]:
    if "excessive" in message:
        match = _EXCESS.search(message)
        if match is None:
            return {}
        excess, total = float(match[1]), float(match[3])
        if match[2] == "sectors" and "Global" in rule:
            return {q.SECTORS_MOVED.key: total, q.SECTORS_NEEDED.key: max(0.0, total - excess)}
        if match[2] == "wavefronts" and "Shared" in rule:
            return {q.SHARED_WAVEFRONTS.key: total, q.SHARED_EXCESS.key: excess}
        return {}
    if "being stalled" in message:
        percent = _STALLED.search(message)
        reason = next((reason for words, reason in _STALLS.items() if words in message), None)
        if percent is None or reason is None:
            return {}
        return {q.STALL_QUANTITIES[reason].key: float(percent[1])}
    if "highest-utilized" in message:
        # A pipe of several is named by the sub-pipe that dominates it.
        busiest, sub_pipe = _PIPE.search(message), _SUB_PIPE.search(message)
        if busiest is None:
            return {}
        pipe = _PIPES.get(sub_pipe[1] if sub_pipe else busiest[1])
        return {} if pipe is None else {pipe.key: float(busiest[2]) / 100}
    return _arithmetic(message)


def _all_stalls_or_none(numbers: dict[str, float]) -> dict[str, float]:
    """Complete the stalls to 100%; drop them where too few are stated.

    The profiler states the largest stalls only: a rule about another one would take it for zero.
    """
    stalls = {stall.key for stall in q.STALL_QUANTITIES.values()} & numbers.keys()
    stated = sum(numbers[key] for key in stalls)
    if stated < _MIN_STALL_PERCENT:
        return {key: value for key, value in numbers.items() if key not in stalls}
    return {**numbers, q.STALL_QUANTITIES["misc"].key: max(0.0, 100.0 - stated)}


def _arithmetic(message: str) -> Mapping[str, float]:
    """Read achieved shares of peak rates, or counts of instructions."""
    peaks, fused = _PEAKS.search(message), _FUSED.search(message)
    if peaks is not None:
        return {q.FP32_SHARE.key: float(peaks[1]) / 100, q.FP64.key: float(peaks[2]) / 100}
    if fused is None:
        return {}
    multiply_adds, others = float(fused[1]) * WARP, float(fused[2]) * WARP
    if fused[3] == "64":
        return {q.FP64_OPERATIONS.key: multiply_adds + others}
    return {q.FFMA.key: multiply_adds, q.FP32_OTHER.key: others}


SCHEDULERS = 4
"""Schedulers of an SM, of every generation from Pascal's GP10x on."""
MEMORY_UNITS = ("dram", "l2", "l1_to_l2", "l1_data", "l1")
SM_UNITS = ("issue", "fma", "alu", "fp64", "xu", "lsu", "fp16", "tensor", "constants", "sm")
UNIT_NAMES = {
    "dram": "DRAM",
    "l2": "L2",
    "l1_to_l2": "L1-to-L2 traffic",
    "l1_data": "L1/shared-memory pipe",
    "l1": "L1",
    "issue": "instruction issue",
    "fma": "FP32 pipe",
    "alu": "integer pipe",
    "fp64": "FP64 pipe",
    "xu": "XU pipe",
    "lsu": "LSU pipe",
    "fp16": "FP16 pipe",
    "tensor": "Tensor Core pipe",
    "constants": "constant cache",
    "sm": "SM throughput",
    "memory": "memory throughput",
}
UNIT_QUANTITIES: dict[str, LaunchQuantity] = {
    "dram": shared.DRAM_SHARE,
    "l2": shared.L2_SHARE,
    "l1_to_l2": q.L1_TO_L2,
    "l1_data": q.L1_DATA,
    "issue": q.ISSUE,
    "fma": q.FMA,
    "alu": q.ALU,
    "fp64": q.FP64,
    "xu": q.XU,
    "lsu": q.LSU,
    "fp16": q.FP16,
    "tensor": q.TENSOR,
    "constants": q.CONSTANTS,
}
_MIN_UNKNOWN_SHARE = 0.05
"""A total this far above its known units is that of an unknown unit."""
_DEVICE = (
    "device",
    "name",
    "sm_count",
    "clock_hz",
    "memory_bytes",
    "memory_bandwidth",
    "l2_bytes",
    "compute_major",
    "compute_minor",
)
_PROFILE = ("kind", "name", "device", *GRID, *BLOCK, "compute_major", "compute_minor")
_BLOCK_RESOURCES = (
    shared.REGISTERS,
    shared.STATIC_SHARED,
    shared.DYNAMIC_SHARED,
    shared.BARRIERS,
    shared.SHARED_CONFIG,
    shared.REPORTED_SHARED_LIMIT,
)
"""Resources of a block besides its threads."""
_SHARED = (
    *_BLOCK_RESOURCES,
    shared.SM_SHARE,
    shared.MEMORY_SHARE,
    shared.DRAM_SHARE,
    shared.L2_SHARE,
    shared.OCCUPANCY,
    shared.THEORETICAL_OCCUPANCY,
    shared.REPORTED_BLOCKS,
    shared.GRID_SIZE,
    shared.BLOCK_SIZE,
    shared.WAVES,
    shared.SM_COUNT,
    shared.SM_CLOCK_HZ,
    shared.DRAM_BYTES,
    shared.L1_HIT_SHARE,
    shared.L2_HIT_SHARE,
)


QUANTITIES: tuple[LaunchQuantity, ...] = (
    *_SHARED,
    *(value for value in vars(q).values() if isinstance(value, LaunchQuantity)),
    *q.STALL_QUANTITIES.values(),
    *LIMIT_QUANTITIES,
)
"""All quantities of a launch that rules use."""
_UTILIZATION: tuple[LaunchQuantity, ...] = (
    *UNIT_QUANTITIES.values(),
    shared.SM_SHARE,
    shared.MEMORY_SHARE,
    q.L1_ELAPSED,
    shared.OCCUPANCY,
    *q.STALL_QUANTITIES.values(),
)
"""The quantities that show what limits a launch."""


@dataclass(frozen=True)
class ProfiledLaunch:
    """One profiled launch."""

    values: Mapping[str, Any]
    """Columns of `measured`: those of `profiles`, and a value or None for each quantity."""
    gpu: Gpu | None = None
    """The GPU that it ran on, at the clock that it had."""
    sm: SmLimits | None = None
    """Limits of one SM of the GPU."""
    clocks_locked: bool | None = None
    """Whether the profiler locked the clocks, in the whole report; None where it is not known."""

    def get(self, quantity: LaunchQuantity) -> float | None:
        """Return a quantity; None when it was not measured."""
        value: float | None = self.values.get(quantity.key)
        return value

    def known(self, quantity: LaunchQuantity) -> float:
        """Return a quantity that the rule needs, which was measured."""
        value = self.get(quantity)
        assert value is not None, quantity.key
        return value

    def evidence(self, *quantities: LaunchQuantity) -> tuple[Evidence, ...]:
        """Return those of these quantities that were measured, as evidence."""
        return tuple(
            Evidence(quantity.key, value, quantity.unit, quantity.meaning)
            for quantity in quantities
            if (value := self.get(quantity)) is not None
        )

    @property
    def name(self) -> str:
        """Name of the kernel."""
        return str(self.values["name"])

    @property
    def is_kernel(self) -> bool:
        """Whether it is a kernel, not a graph or a range that was profiled as a whole."""
        return bool(self.values.get("kind", "kernel") == "kernel")

    @property
    def duration_ns(self) -> float | None:
        """Its time on the GPU."""
        value: float | None = self.values["duration_ns"]
        return value

    @property
    def category(self) -> str:
        """Category of the kernel, by its name."""
        return classify(self.name).category

    @cached_property
    def grid(self) -> int | None:
        """Blocks of the grid."""
        return self._product("grid", shared.GRID_SIZE)

    @cached_property
    def block(self) -> int | None:
        """Threads of a block."""
        return self._product("block", shared.BLOCK_SIZE)

    def _product(self, prefix: str, quantity: LaunchQuantity) -> int | None:
        sides = [self.values.get(f"{prefix}_{axis}") for axis in "xyz"]
        value = self.get(quantity) if None in sides else math.prod(map(int, sides))  # type: ignore[arg-type]
        return int(value) if value is not None and value >= 1 else None

    @cached_property
    def sm_count(self) -> int | None:
        """SMs of the GPU."""
        value = self.get(shared.SM_COUNT)
        if value is None:
            return None if self.gpu is None else self.gpu.sm_count
        return int(value)

    @cached_property
    def busy(self) -> dict[str, float]:
        """How busy each measured unit was over the whole launch, 0 to 1.

        Where the total of the SMs or of the memory system is well above its known units, the
        total stands for the unknown one.
        """
        busy = {
            name: min(1.0, max(0.0, share))
            for name, quantity in UNIT_QUANTITIES.items()
            if (share := self.get(quantity)) is not None
        }
        totals = {
            "sm": (self.get(shared.SM_SHARE), SM_UNITS),
            "l1": (self.get(q.L1_ELAPSED), ("l1_data", "l1_to_l2")),
            "memory": (self.get(shared.MEMORY_SHARE), MEMORY_UNITS),
        }
        for name, (share, parts) in totals.items():
            highest = max((busy[p] for p in parts if p in busy), default=-_MIN_UNKNOWN_SHARE)
            if share is not None and share > highest + _MIN_UNKNOWN_SHARE:
                busy[name] = min(1.0, share)
        return busy

    @cached_property
    def stalls(self) -> dict[str, float]:
        """Share of the time of resident warps by stall reason; empty if unknown."""
        counts = {reason: self.get(quantity) for reason, quantity in q.STALL_QUANTITIES.items()}
        known = {reason: count for reason, count in counts.items() if count and count > 0}
        total = sum(known.values())
        return {reason: count / total for reason, count in known.items()} if total else {}

    @cached_property
    def shape(self) -> BlockShape | None:
        """Resources of a block; None when the capture lacks one."""
        values = {quantity.key: self.get(quantity) for quantity in _BLOCK_RESOURCES}
        resources = {key: None if value is None else round(value) for key, value in values.items()}
        resources[shared.SHARED_CONFIG.key] = resources[shared.SHARED_CONFIG.key] or None
        return shape_of({"block_threads": self.block, **resources}, self.sm)

    @cached_property
    def fit(self) -> Occupancy | None:
        """How many blocks fit an SM, and what limits them; None where not known."""
        if self.sm is None or self.shape is None:
            return None
        return occupancy(self.sm, self.shape)

    @property
    def warps_per_block(self) -> int | None:
        """Warps of a block, the last perhaps not full."""
        return None if self.block is None else -(-self.block // WARP)

    @property
    def blocks_per_sm(self) -> int | None:
        """Blocks that fit an SM at once: as reported, else as computed."""
        reported = self.get(shared.REPORTED_BLOCKS)
        if reported is not None and reported >= 1:
            return int(reported)
        return (self.fit.blocks or None) if self.fit is not None else None

    @cached_property
    def waves(self) -> float | None:
        """Waves of the grid."""
        grid, sms, blocks = self.grid, self.sm_count, self.blocks_per_sm
        if grid is not None and sms and blocks:
            return grid / (sms * blocks)
        return self.get(shared.WAVES)


def launches(trace: Trace) -> list[ProfiledLaunch]:
    """Return every profiled launch of a capture, in its order."""
    rows = _rows(trace, QUANTITIES, _PROFILE)
    devices = {row["device"]: row for row in trace.table("devices", _DEVICE).iter_rows(named=True)}
    limits = device_rows(trace)
    return [
        ProfiledLaunch(
            row,
            _gpu(devices.get(row["device"]), row),
            _sm(limits.get(row["device"], {}), row),
            trace.meta.clocks_locked,
        )
        for row in rows
    ]


def utilizations(trace: Trace) -> list[ProfiledLaunch]:
    """Return every profiled launch with its utilization, stalls and occupancy only."""
    return [ProfiledLaunch(row) for row in _rows(trace, _UTILIZATION, ())]


def _rows(
    trace: Trace, quantities: Iterable[LaunchQuantity], columns: Sequence[str]
) -> list[dict[str, Any]]:
    """Return the quantities of each launch; ncu's messages fill in what was not measured."""
    texts = [column for column in ("name", "kind") if column in columns]
    frame = measured(trace, quantities, columns).with_columns(pl.col(texts).cast(pl.String))
    rows = frame.to_dicts()
    stated = quantities_in_messages(trace)
    for row in rows:
        numbers = stated.get(row["launch"], {})
        row.update({key: value for key, value in numbers.items() if row.get(key, 0) is None})
    return rows


def _sm(device: Mapping[str, Any], row: Mapping[str, Any]) -> SmLimits | None:
    """Return the limits of an SM; those of the launch have priority over those of its GPU."""
    source = row if row["compute_major"] is not None else device
    keys = (quantity.key for quantity in LIMIT_QUANTITIES)
    limits = {key: device.get(key) if row[key] is None else row[key] for key in keys}
    return limits_of(source.get("compute_major"), source.get("compute_minor"), limits)


def _gpu(device: Mapping[str, Any] | None, row: Mapping[str, Any]) -> Gpu | None:
    """Find the GPU of a launch, its peaks at the clock of the launch."""
    if device is None:
        return None
    return with_measured(
        listed_gpu(device),
        name=device["name"],
        compute_major=device["compute_major"] or row["compute_major"],
        compute_minor=device["compute_minor"] or row["compute_minor"],
        sm_count=device["sm_count"],
        clock_hz=row.get(shared.SM_CLOCK_HZ.key) or device["clock_hz"],
        memory_bandwidth_bytes_s=device["memory_bandwidth"],
        memory_bytes=device["memory_bytes"],
        l2_bytes=device["l2_bytes"],
    )


def shares(reasons: Iterable[str], stalls: Mapping[str, float]) -> float:
    """Sum the shares of these stall reasons."""
    return sum(stalls.get(reason, 0.0) for reason in reasons)
