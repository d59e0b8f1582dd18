"""AMD's GPUs: the rows that `gpu_table` takes into the one table.

Rates follow the same rule as there: FLOP per clock and compute unit x compute units x peak clock.
Matrix cores are what NVIDIA calls tensor cores; they also multiply FP32 and FP64. On RDNA the
matrix instructions (WMMA) run on the ordinary lanes, at the rates AMD publishes for them.
"""

from __future__ import annotations

from gpusight.model.gpu import Gpu, Peaks
from gpusight.model.gpu_family import Family, row

__all__ = ["AMD"]

_NOT_PUBLISHED = "ROCm device properties; clock and peak rates are not published"


def _family(
    architecture: str, gfx: str, vector: Peaks, tensor: Peaks, document: str = ""
) -> Family:
    source = document or ("AMD Instinct data sheet; AMD CDNA whitepaper; ROCm GPU specifications")
    return Family(architecture, None, vector, tensor, source, vendor="AMD", gfx=gfx)


def _radeon(architecture: str, gfx: str, matrix: Peaks) -> Family:
    vector = Peaks(fp64=8, fp32=256, fp16=512)
    document = (
        f"AMD Radeon product specifications; {architecture} ISA guide; ROCm GPU specifications"
    )
    return _family(architecture, gfx, vector, matrix, document)


# fmt: off
_CDNA1 = _family("CDNA", "gfx908", Peaks(fp64=64, fp32=128),
                 Peaks(fp32=256, bf16=512, fp16=1024, int8=1024))
_CDNA2 = _family("CDNA 2", "gfx90a", Peaks(fp64=128, fp32=128),
                 Peaks(fp64=256, fp32=256, bf16=1024, fp16=1024, int8=1024))
_CDNA3 = _family("CDNA 3", "gfx942", Peaks(fp64=128, fp32=256),
                 Peaks(fp64=256, fp32=256, tf32=1024, bf16=2048, fp16=2048, fp8=4096, int8=4096))
# CDNA 4 has no TF32: libraries emulate it with three BF16 products.
_CDNA4 = _family("CDNA 4", "gfx950", Peaks(fp64=128, fp32=256),
                 Peaks(fp64=128, fp32=256, bf16=4096, fp16=4096, fp8=8192, fp4=16384, int8=8192))
_RDNA3_MATRIX = Peaks(bf16=512, fp16=512, int8=512)
_RDNA3 = _radeon("RDNA 3", "gfx1100", _RDNA3_MATRIX)
_RDNA3_SMALL = _radeon("RDNA 3", "gfx1101", _RDNA3_MATRIX)
_RDNA4 = _radeon("RDNA 4", "gfx1201", Peaks(bf16=1024, fp16=1024, fp8=2048, int8=2048))

# name, family, compute units, base MHz, peak MHz, GiB, GB/s, L2 MiB, W, aliases...
# A GCD is one of the two dies of an MI250 or MI250X; ROCm shows each as a device of its own.
AMD: tuple[Gpu, ...] = (
    row("MI100", _CDNA1, 120, None, 1502, 32, 1228.8, 8, 300),
    row("MI210", _CDNA2, 104, None, 1700, 64, 1638.4, 8, 300),
    row("MI250", _CDNA2, 208, None, 1700, 128, 3276.8, 16, 500),
    row("MI250 GCD", _CDNA2, 104, None, 1700, 64, 1638.4, 8, 250, "MI250"),
    row("MI250X", _CDNA2, 220, None, 1700, 128, 3276.8, 16, 500),
    row("MI250X GCD", _CDNA2, 110, None, 1700, 64, 1638.4, 8, 250, "MI250X"),
    row("MI300A", _CDNA3, 228, None, 2100, 128, 5300, 24, 550),
    row("MI300X", _CDNA3, 304, None, 2100, 192, 5300, 32, 750),
    row("MI308X", _CDNA3, 80, None, None, 192, 5300, None, None, source=_NOT_PUBLISHED),
    row("MI325X", _CDNA3, 304, None, 2100, 256, 6000, 32, 1000),
    row("MI350X", _CDNA4, 256, None, 2200, 288, 8000, 32, 1000),
    row("MI355X", _CDNA4, 256, None, 2400, 288, 8000, 32, 1400),
    row("Radeon RX 7800 XT", _RDNA3_SMALL, 60, None, 2430, 16, 624.1, 4, 263),
    row("Radeon RX 7900 XT", _RDNA3, 84, None, 2400, 20, 800, 6, 315),
    row("Radeon RX 7900 XTX", _RDNA3, 96, None, 2500, 24, 960, 6, 355),
    row("Radeon PRO W7800", _RDNA3, 70, None, 2525, 32, 576, 6, 260, "W7800"),
    row("Radeon PRO W7900", _RDNA3, 96, None, 2495, 48, 864, 6, 295, "W7900"),
    row("Radeon RX 9070", _RDNA4, 56, None, 2520, 16, 640, 8, 220),
    row("Radeon RX 9070 XT", _RDNA4, 64, None, 2970, 16, 640, 8, 304),
    row("Radeon AI PRO R9700", _RDNA4, 64, None, 2920, 32, 640, 8, 300, "R9700"),
)
# fmt: on
"""Every GPU of AMD's that is known, data-centre ones first."""
