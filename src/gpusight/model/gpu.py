"""What the project knows about one GPU: the record that the table and captures fill in."""

from __future__ import annotations

from dataclasses import astuple, dataclass

__all__ = ["Gpu", "Peaks"]


@dataclass(frozen=True, slots=True)
class Peaks:
    """One rate for each precision, in TFLOP/s (TOP/s for int8); None: no such unit, or unknown."""

    fp64: float | None = None
    fp32: float | None = None
    tf32: float | None = None
    bf16: float | None = None
    fp16: float | None = None
    fp8: float | None = None
    fp4: float | None = None
    int8: float | None = None

    def scaled(self, factor: float) -> Peaks:
        """Multiply every known rate."""
        return Peaks(*(None if rate is None else rate * factor for rate in astuple(self)))


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU as its vendor describes it; None where a value is not published."""

    name: str
    vendor: str
    """`NVIDIA`, `AMD`, or empty when unknown."""
    architecture: str
    compute_capability: tuple[int, int] | None
    """(major, minor) of an NVIDIA GPU."""
    gfx: str | None
    """LLVM target of an AMD GPU, such as gfx942."""
    sm_count: int | None
    """Streaming multiprocessors; compute units on AMD."""
    base_clock_mhz: float | None
    boost_clock_mhz: float | None
    memory_bytes: int | None
    memory_bandwidth_bytes_s: float | None
    l2_bytes: int | None
    vector: Peaks
    """Peak rates of the ordinary lanes."""
    tensor: Peaks
    """Peak dense rates of the tensor cores (matrix cores on AMD)."""
    tdp_w: float | None
    source: str
    """The document the values come from."""
    aliases: tuple[str, ...] = ()
    """Other names that drivers and people use for exactly this row."""
    tensor_clock_mhz: float | None = None
    """Clock that tensor rates, but for FP64, are published for, where it is not the boost clock."""
