"""How a row of the GPU tables is written: a family's rates, multiplied out for one GPU."""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpusight.model.gpu import Gpu, Peaks

__all__ = ["Family", "row"]

_GIB = 1 << 30
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class Family:
    """Chips that share an SM design: FLOP per clock and SM, which the rows multiply out."""

    architecture: str
    compute_capability: tuple[int, int] | None
    vector: Peaks
    tensor: Peaks
    source: str
    vendor: str = "NVIDIA"
    gfx: str | None = None


def row(
    name: str,
    family: Family,
    sm_count: int | None,
    base_mhz: float | None,
    boost_mhz: float | None,
    memory_gib: float,
    bandwidth_gb_s: float,
    l2_mib: float | None,
    tdp_w: float | None,
    *aliases: str,
    tensor_mhz: float | None = None,
    vector: dict[str, float | None] | None = None,
    tensor: dict[str, float | None] | None = None,
    source: str | None = None,
) -> Gpu:
    """Multiply a family's rates out for one GPU; `vector` and `tensor` hold published TFLOP/s."""
    vector_scale = (sm_count or 0) * (boost_mhz or 0) / 1e6
    tensor_scale = (sm_count or 0) * (tensor_mhz or boost_mhz or 0) / 1e6
    vector_peaks = family.vector.scaled(vector_scale) if vector_scale else Peaks()
    tensor_peaks = family.tensor.scaled(tensor_scale) if tensor_scale else Peaks()
    return Gpu(
        name=name,
        vendor=family.vendor,
        architecture=family.architecture,
        compute_capability=family.compute_capability,
        gfx=family.gfx,
        sm_count=sm_count,
        base_clock_mhz=base_mhz,
        boost_clock_mhz=boost_mhz,
        memory_bytes=round(memory_gib * _GIB),
        memory_bandwidth_bytes_s=bandwidth_gb_s * 1e9,
        l2_bytes=None if l2_mib is None else round(l2_mib * _MIB),
        vector=replace(vector_peaks, **(vector or {})),
        tensor=replace(tensor_peaks, **(tensor or {})),
        tdp_w=tdp_w,
        source=source or family.source,
        aliases=aliases,
        tensor_clock_mhz=tensor_mhz,
    )
