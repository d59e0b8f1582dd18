"""The roofline of an operator: peak FLOP/s and bandwidth of its GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpusight.analysis.capture_gpus import listed_gpu, table_name
from gpusight.hardware.gpu_lookup import PRECISIONS, peak_flops, with_measured

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from typing import Any

    from gpusight.analysis.flops.operator_inputs import OperatorCost
    from gpusight.hardware.gpu_table import Gpu
    from gpusight.trace.trace import Trace


_HALVES = frozenset({"bf16", "fp16"})
_ONLY_FAST_ON_TENSOR_CORES = frozenset({"tf32", "bf16", "fp16", "fp8", "fp4", "int8"})
_COLUMNS = (
    "device", "name", "compute_major", "compute_minor", "sm_count", "clock_hz", "memory_bytes",
    "memory_bandwidth",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class OperatorArithmetic:
    """What a call computed in."""

    precision: str | None
    tensor_core: bool | None
    assumed: bool = False
    """Whether tensor cores ran is not known, and taken for granted."""

    @classmethod
    def of(
        cls, cost: OperatorCost, kernel: str | None, tensor_core: bool | None
    ) -> OperatorArithmetic:
        """Tell it from the kernels' names; from the tensors where those do not say."""
        precision = kernel if kernel in PRECISIONS else None
        if precision is None or {precision, cost.precision} <= _HALVES:
            # cuDNN calls both kinds of 16 bits f16.
            precision = cost.precision
        if precision not in PRECISIONS:
            return cls(precision, tensor_core)
        if tensor_core is None and precision in _ONLY_FAST_ON_TENSOR_CORES:
            return cls(precision, tensor_core=True, assumed=True)
        return cls(precision, tensor_core)


@dataclass(frozen=True, slots=True)
class GpuRoof:
    """What one GPU can do at best."""

    name: str | None
    gpu: Gpu | None
    given_peak: float | None = None
    """Operations a second, as the user says."""
    given_bandwidth: float | None = None
    """Bytes a second, as the user says."""

    @property
    def bandwidth(self) -> float | None:
        """Bytes a second of its memory."""
        known = None if self.gpu is None else self.gpu.memory_bandwidth_bytes_s
        return self.given_bandwidth or known

    def peak(self, how: OperatorArithmetic) -> float | None:
        """Operations a second in this precision, on this kind of unit; None when not known."""
        if self.given_peak:
            return self.given_peak
        if self.gpu is None or how.precision not in PRECISIONS or how.tensor_core is None:
            return None
        return peak_flops(self.gpu, str(how.precision), tensor=how.tensor_core)


@dataclass(frozen=True, slots=True)
class TimeBound:
    """The least time a call can take, and what bounds it."""

    compute_ns: float | None
    memory_ns: float | None

    @classmethod
    def of(cls, cost: OperatorCost, peak: float | None, bandwidth: float | None) -> TimeBound:
        """Work it out; None where the peak, the bandwidth or the bytes are not known."""
        compute = cost.flops / peak * 1e9 if peak else None
        if not cost.flops:
            compute = 0.0
        known = cost.read_bytes is not None and cost.written_bytes is not None
        moved = (cost.read_bytes or 0) + (cost.written_bytes or 0)
        return cls(compute, moved / bandwidth * 1e9 if known and bandwidth else None)

    @property
    def least_ns(self) -> float | None:
        """The longer of the two times; None when either is not known."""
        if self.compute_ns is None or self.memory_ns is None:
            return None
        return max(self.compute_ns, self.memory_ns)

    @property
    def by(self) -> str | None:
        """What bounds it: `compute` or `memory`."""
        if self.compute_ns is None or self.memory_ns is None:
            return None
        return "compute" if self.compute_ns >= self.memory_ns else "memory"


@dataclass(frozen=True, slots=True)
class GpuRoofs:
    """The roofs of a capture's GPUs."""

    by_device: dict[int, GpuRoof]
    notes: tuple[str, ...] = ()

    def of(self, device: int) -> GpuRoof:
        """Give the roof of a GPU by its number; one of which nothing is known has none."""
        return self.by_device[device]


def roofs_of(
    trace: Trace, devices: Iterable[int], *, peak: float | None, bandwidth: float | None
) -> GpuRoofs:
    """Give the roofs of these GPUs; `peak` and `bandwidth` are what the user says of them.

    ROCm numbers GPUs differently where it describes them: one that is not described is the one
    that is, when there is only one.
    """
    rows = {row["device"]: row for row in trace.table("devices", _COLUMNS).iter_rows(named=True)}
    named = {number: row for number, row in rows.items() if row["name"]}
    only = next(iter(named.values())) if len({row["name"] for row in named.values()}) == 1 else None
    found, notes = {}, []
    for device in devices:
        row = rows.get(device)
        if only is not None and (row is None or _undescribed(row)):
            row = only
            notes.append(f"GPU {device} is taken to be the one described, {only['name']}")
        listed = GpuRoof(None, None) if row is None else _roof(row)
        found[device] = replace(listed, given_peak=peak, given_bandwidth=bandwidth)
    return GpuRoofs(found, tuple(notes))


def _undescribed(row: Mapping[str, Any]) -> bool:
    return not row["name"] and row["sm_count"] is None and row["compute_major"] is None


def _roof(row: Mapping[str, Any]) -> GpuRoof:
    listed = listed_gpu(row)
    gpu = with_measured(
        listed,
        name=row["name"] or None,
        compute_major=row["compute_major"],
        compute_minor=row["compute_minor"],
        sm_count=row["sm_count"],
        clock_hz=row["clock_hz"],
        memory_bytes=row["memory_bytes"],
        memory_bandwidth_bytes_s=row["memory_bandwidth"],
    )
    return GpuRoof(row["name"] or table_name(listed), gpu)
