"""THE table of GPUs: peak rates, memory and CPU link of each, and the vendor's document."""

from __future__ import annotations

from dataclasses import astuple, dataclass, replace


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
    """Peak rates of the CUDA cores (vector units on AMD)."""
    tensor: Peaks
    """Peak dense rates of the Tensor Cores (matrix cores on AMD)."""
    tdp_w: float | None
    source: str
    """The document the values come from."""
    aliases: tuple[str, ...] = ()
    """Other names that drivers and people use for exactly this row."""
    tensor_clock_mhz: float | None = None
    """Clock that tensor rates, but for FP64, are published for, where it is not the boost clock."""


_GIB = 1 << 30
_MIB = 1 << 20


@dataclass(frozen=True, slots=True)
class GpuFamily:
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
    family: GpuFamily,
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


_NOT_PUBLISHED = "ROCm device properties; clock and peak rates are not published"


def _amd_family(
    architecture: str, gfx: str, vector: Peaks, tensor: Peaks, document: str = ""
) -> GpuFamily:
    source = document or "AMD Instinct data sheet; AMD CDNA whitepaper; ROCm GPU specifications"
    return GpuFamily(architecture, None, vector, tensor, source, vendor="AMD", gfx=gfx)


def _radeon(architecture: str, gfx: str, matrix: Peaks) -> GpuFamily:
    vector = Peaks(fp64=8, fp32=256, fp16=512)
    document = (
        f"AMD Radeon product specifications; {architecture} ISA guide; ROCm GPU specifications"
    )
    return _amd_family(architecture, gfx, vector, matrix, document)


# fmt: off
_CDNA1 = _amd_family("CDNA", "gfx908", Peaks(fp64=64, fp32=128),
                 Peaks(fp32=256, bf16=512, fp16=1024, int8=1024))
_CDNA2 = _amd_family("CDNA 2", "gfx90a", Peaks(fp64=128, fp32=128),
                 Peaks(fp64=256, fp32=256, bf16=1024, fp16=1024, int8=1024))
_CDNA3 = _amd_family("CDNA 3", "gfx942", Peaks(fp64=128, fp32=256),
                 Peaks(fp64=256, fp32=256, tf32=1024, bf16=2048, fp16=2048, fp8=4096, int8=4096))
# CDNA 4 has no TF32: libraries emulate it with three BF16 GEMMs.
_CDNA4 = _amd_family("CDNA 4", "gfx950", Peaks(fp64=128, fp32=256),
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
"""All known AMD GPUs, data center GPUs first."""


def _half_accumulate(full: Peaks) -> Peaks:
    """Derive GeForce tensor rates: FP32 accumulation runs at half rate, INT8 and FP4 do not."""

    def half(rate: float | None) -> float | None:
        return None if rate is None else rate / 2

    return replace(
        full, tf32=half(full.tf32), bf16=half(full.bf16), fp16=half(full.fp16), fp8=half(full.fp8)
    )


_TURING_TENSOR = Peaks(fp16=1024, int8=2048)
_GA10X_TENSOR = Peaks(tf32=512, bf16=1024, fp16=1024, int8=2048)
_ADA_TENSOR = Peaks(tf32=512, bf16=1024, fp16=1024, fp8=2048, int8=2048)
_GB20X_TENSOR = Peaks(tf32=512, bf16=1024, fp16=1024, fp8=2048, fp4=4096, int8=2048)
_TURING_VECTOR = Peaks(fp64=4, fp32=128, fp16=256)
_GA10X_VECTOR = Peaks(fp64=4, fp32=256, bf16=256, fp16=256)
_NO_TENSOR = Peaks()

# fmt: off
_GP100 = GpuFamily("Pascal", (6, 0), Peaks(fp64=64, fp32=128, fp16=256), _NO_TENSOR,
                "NVIDIA Tesla P100 whitepaper")
_GP10X = GpuFamily("Pascal", (6, 1), Peaks(fp64=8, fp32=256, fp16=4), _NO_TENSOR,
                "NVIDIA GeForce GTX 10 series specifications")
_GV100 = GpuFamily("Volta", (7, 0), Peaks(fp64=64, fp32=128, fp16=256), Peaks(fp16=1024),
                "NVIDIA Tesla V100 GPU Architecture whitepaper; V100 datasheet")
_TU10X = GpuFamily("Turing", (7, 5), _TURING_VECTOR, _TURING_TENSOR,
                "NVIDIA Turing GPU Architecture whitepaper")
_TU10X_GEFORCE = replace(_TU10X, tensor=_half_accumulate(_TURING_TENSOR))
_TU11X = replace(_TU10X, tensor=_NO_TENSOR, source="NVIDIA GeForce GTX 16 series specifications")
_GA100 = GpuFamily("Ampere", (8, 0), Peaks(fp64=64, fp32=128, bf16=256, fp16=512),
                Peaks(fp64=128, tf32=1024, bf16=2048, fp16=2048, int8=4096),
                "NVIDIA A100 Tensor Core GPU Architecture whitepaper; A100 datasheet")
_GA10X = GpuFamily("Ampere", (8, 6), _GA10X_VECTOR, _GA10X_TENSOR,
                "NVIDIA Ampere GA102 GPU Architecture whitepaper; product datasheet")
_GA10X_GEFORCE = replace(_GA10X, tensor=_half_accumulate(_GA10X_TENSOR),
                         source="NVIDIA Ampere GA102 whitepaper; GeForce RTX 30 specifications")
_ORIN = GpuFamily("Ampere", (8, 7), Peaks(fp32=256), Peaks(fp16=2048, int8=4096),
               "NVIDIA Jetson Orin series data sheets; Jetson AGX Orin technical brief")
_ADA = GpuFamily("Ada Lovelace", (8, 9), _GA10X_VECTOR, _ADA_TENSOR,
              "NVIDIA Ada GPU Architecture whitepaper; product datasheet")
_ADA_GEFORCE = replace(_ADA, tensor=_half_accumulate(_ADA_TENSOR),
                       source="NVIDIA Ada GPU Architecture whitepaper; "
                              "GeForce RTX 40 specifications")
_GH100 = GpuFamily("Hopper", (9, 0), Peaks(fp64=128, fp32=256, bf16=512, fp16=512),
                Peaks(fp64=256, tf32=2048, bf16=4096, fp16=4096, fp8=8192, int8=8192),
                "NVIDIA H100 Tensor Core GPU Architecture whitepaper; product datasheet")
_GB100 = GpuFamily("Blackwell", (10, 0), Peaks(fp64=128, fp32=256, bf16=512, fp16=512), Peaks(),
                "NVIDIA Blackwell Architecture technical brief; HGX B200 datasheet")
_GB300 = GpuFamily("Blackwell Ultra", (10, 3), Peaks(), Peaks(),
                "NVIDIA HGX B300 and GB300 NVL72 datasheets")
_THOR = GpuFamily("Blackwell", (11, 0), Peaks(fp32=256), Peaks(), "NVIDIA Jetson Thor data sheet")
_GB20X = GpuFamily("Blackwell", (12, 0), _GA10X_VECTOR, _GB20X_TENSOR,
                "NVIDIA RTX Blackwell PRO GPU Architecture whitepaper")
_GB20X_GEFORCE = replace(_GB20X, tensor=_half_accumulate(_GB20X_TENSOR),
                         source="NVIDIA RTX Blackwell GPU Architecture whitepaper; "
                                "GeForce RTX 50 specifications")
_GB10 = replace(_GB20X, compute_capability=(12, 1), vector=Peaks(), tensor=Peaks(),
                source="NVIDIA DGX Spark datasheet")
# fmt: on

# H100-class tensor cores run FP64 at the boost clock and everything else at a lower one.
_FP64_CAPPED: dict[str, float | None] = {"fp64": 1.0}
_L40_TENSOR: dict[str, float | None] = {
    "tf32": 90.5, "bf16": 181.05, "fp16": 181.05, "fp8": 362.0, "int8": 362.0,
}  # fmt: skip
_ULTRA = "NVIDIA HGX B300 and GB300 NVL72 datasheets; clock and L2 size are not published"

# Among rows that a bare name fits equally well ("A100"), the first one here is taken.
# name, family, SMs, base MHz, boost MHz, GiB, GB/s, L2 MiB, W, aliases...
# fmt: off
_PASCAL = (
    row("P100 SXM2 16GB", _GP100, 56, 1328, 1480, 16, 732, 4, 300),
    row("P100 PCIe 16GB", _GP100, 56, 1189, 1303, 16, 732, 4, 250),
    row("P100 PCIe 12GB", _GP100, 56, 1189, 1303, 12, 549, 3, 250),
    row("P40", _GP10X, 30, 1303, 1531, 24, 346, 3, 250, source="NVIDIA Tesla P40 datasheet"),
    row("P4", _GP10X, 20, 810, 1063, 8, 192, 2, 75, source="NVIDIA Tesla P4 datasheet"),
    row("GTX 1050", _GP10X, 5, 1354, 1455, 2, 112, 1, 75),
    row("GTX 1050 3GB", _GP10X, 6, 1392, 1518, 3, 84, 0.75, 75),
    row("GTX 1050 Ti", _GP10X, 6, 1290, 1392, 4, 112, 1, 75),
    row("GTX 1060 6GB", _GP10X, 10, 1506, 1708, 6, 192, 1.5, 120),
    row("GTX 1060 3GB", _GP10X, 9, 1506, 1708, 3, 192, 1.5, 120),
    row("GTX 1060 with Max-Q Design", _GP10X, 10, 1063, 1480, 6, 192, 1.5, 80),
    row("GTX 1070", _GP10X, 15, 1506, 1683, 8, 256, 2, 150),
    row("GTX 1070 Ti", _GP10X, 19, 1607, 1683, 8, 256, 2, 180),
    row("GTX 1080", _GP10X, 20, 1607, 1733, 8, 320, 2, 180),
    row("GTX 1080 Ti", _GP10X, 28, 1480, 1582, 11, 484, 2.75, 250),
)
_VOLTA = (
    row("V100 SXM2 16GB", _GV100, 80, 1290, 1530, 16, 900, 6, 300),
    row("V100 SXM2 32GB", _GV100, 80, 1290, 1530, 32, 900, 6, 300),
    row("V100 PCIe 16GB", _GV100, 80, 1230, 1380, 16, 900, 6, 250),
    row("V100 PCIe 32GB", _GV100, 80, 1230, 1380, 32, 900, 6, 250),
    row("V100 DGXS 16GB", _GV100, 80, None, 1530, 16, 900, 6, 250),
    row("V100 DGXS 32GB", _GV100, 80, None, 1530, 32, 900, 6, 250),
    row("V100S PCIe 32GB", _GV100, 80, 1245, 1597, 32, 1134, 6, 250),
    row("TITAN V", _GV100, 80, 1200, 1455, 12, 653, 4.5, 250, tensor={"fp16": 110.0},
        source="NVIDIA TITAN V specifications"),
)
_TURING = (
    row("T4", _TU10X, 40, 585, 1590, 16, 320, 4, 70, source="NVIDIA T4 datasheet"),
    row("GTX 1650", _TU11X, 14, 1485, 1665, 4, 128, 1, 75),
    # The driver gives the laptop part the name of the desktop card: 16 SMs identify it.
    row("GTX 1650 Laptop GPU", _TU11X, 16, 1395, 1560, 4, 128, 1, 50, "GTX 1650"),
    row("GTX 1650 SUPER", _TU11X, 20, 1530, 1725, 4, 192, 1, 100),
    row("GTX 1660", _TU11X, 22, 1530, 1785, 6, 192, 1.5, 120),
    row("GTX 1660 SUPER", _TU11X, 22, 1530, 1785, 6, 336, 1.5, 125),
    row("GTX 1660 Ti", _TU11X, 24, 1500, 1770, 6, 288, 1.5, 120),
    row("RTX 2060", _TU10X_GEFORCE, 30, 1365, 1680, 6, 336, 3, 160),
    row("RTX 2060 12GB", _TU10X_GEFORCE, 34, 1470, 1650, 12, 336, 3, 184),
    row("RTX 2060 SUPER", _TU10X_GEFORCE, 34, 1470, 1650, 8, 448, 4, 175),
    row("RTX 2070", _TU10X_GEFORCE, 36, 1410, 1620, 8, 448, 4, 175),
    row("RTX 2070 SUPER", _TU10X_GEFORCE, 40, 1605, 1770, 8, 448, 4, 215),
    row("RTX 2080", _TU10X_GEFORCE, 46, 1515, 1710, 8, 448, 4, 215),
    row("RTX 2080 SUPER", _TU10X_GEFORCE, 48, 1650, 1815, 8, 496, 4, 250),
    row("RTX 2080 Ti", _TU10X_GEFORCE, 68, 1350, 1545, 11, 616, 5.5, 250),
    row("TITAN RTX", _TU10X, 72, 1350, 1770, 24, 672, 6, 280),
    row("Quadro RTX 4000", _TU10X, 36, 1005, 1545, 8, 416, 4, 160),
    row("Quadro RTX 5000", _TU10X, 48, 1620, 1815, 16, 448, 4, 265),
    row("Quadro RTX 6000", _TU10X, 72, 1440, 1770, 24, 672, 6, 295),
    row("Quadro RTX 8000", _TU10X, 72, 1395, 1770, 48, 672, 6, 295),
)
_AMPERE = (
    row("A100 SXM4 80GB", _GA100, 108, 1275, 1410, 80, 2039, 40, 400),
    row("A100 SXM4 40GB", _GA100, 108, 1095, 1410, 40, 1555, 40, 400, "A100-PG509-200"),
    row("A100 PCIe 80GB", _GA100, 108, 1065, 1410, 80, 1935, 40, 300),
    row("A100 PCIe 40GB", _GA100, 108, 765, 1410, 40, 1555, 40, 250),
    row("A800 SXM4 80GB", _GA100, 108, 1155, 1410, 80, 2039, 40, 400),
    row("A800 PCIe 80GB", _GA100, 108, 1065, 1410, 80, 1935, 40, 300),
    row("A800 40GB Active", _GA100, 108, 765, 1410, 40, 1555, 40, 240),
    row("A30", _GA100, 56, 930, 1440, 24, 933, 24, 165, source="NVIDIA A30 datasheet"),
    row("A2", _GA10X, 10, 1440, 1770, 16, 200, 2, 60, source="NVIDIA A2 datasheet"),
    row("A10", _GA10X, 72, 885, 1695, 24, 600, 6, 150, source="NVIDIA A10 datasheet"),
    row("A16", _GA10X, 10, 1312, 1755, 16, 200, 2, 62.5,
        source="NVIDIA A16 datasheet, one of the board's four GPUs"),
    row("A40", _GA10X, 84, 1305, 1740, 48, 696, 6, 300, source="NVIDIA A40 datasheet"),
    row("RTX A2000", _GA10X, 26, 562, 1200, 6, 288, 3, 70),
    row("RTX A2000 12GB", _GA10X, 26, 562, 1200, 12, 288, 3, 70),
    row("RTX A4000", _GA10X, 48, 735, 1560, 16, 448, 4, 140),
    row("RTX A4500", _GA10X, 56, 1050, 1650, 20, 640, 6, 200),
    row("RTX A5000", _GA10X, 64, 1170, 1695, 24, 768, 6, 230),
    row("RTX A6000", _GA10X, 84, 1410, 1800, 48, 768, 6, 300),
    row("RTX 3050", _GA10X_GEFORCE, 20, 1552, 1777, 8, 224, 2, 130),
    row("RTX 3050 6GB", _GA10X_GEFORCE, 18, 1042, 1470, 6, 168, None, 70),
    row("RTX 3060", _GA10X_GEFORCE, 28, 1320, 1777, 12, 360, 2.25, 170),
    row("RTX 3060 8GB", _GA10X_GEFORCE, 28, 1320, 1777, 8, 240, None, 170),
    row("RTX 3060 Ti", _GA10X_GEFORCE, 38, 1410, 1665, 8, 448, 4, 200),
    row("RTX 3070", _GA10X_GEFORCE, 46, 1500, 1725, 8, 448, 4, 220),
    row("RTX 3070 Ti", _GA10X_GEFORCE, 48, 1575, 1770, 8, 608, 4, 290),
    row("RTX 3080", _GA10X_GEFORCE, 68, 1440, 1710, 10, 760, 5, 320),
    row("RTX 3080 12GB", _GA10X_GEFORCE, 70, 1260, 1710, 12, 912, None, 350),
    row("RTX 3080 Ti", _GA10X_GEFORCE, 80, 1365, 1665, 12, 912, 6, 350),
    row("RTX 3090", _GA10X_GEFORCE, 82, 1395, 1695, 24, 936, 6, 350),
    row("RTX 3090 Ti", _GA10X_GEFORCE, 84, 1560, 1860, 24, 1008, 6, 450),
    row("RTX 3050 Laptop GPU", _GA10X_GEFORCE, 16, None, 1740, 4, 192, 1.5, 80),
    row("RTX 3050 Ti Laptop GPU", _GA10X_GEFORCE, 20, None, 1695, 4, 192, None, 80),
    row("RTX 3060 Laptop GPU", _GA10X_GEFORCE, 30, None, 1703, 6, 336, 3, 115),
    row("RTX 3070 Laptop GPU", _GA10X_GEFORCE, 40, None, 1620, 8, 448, 4, 125),
    row("RTX 3070 Ti Laptop GPU", _GA10X_GEFORCE, 46, None, 1485, 8, 448, 4, 125),
    row("RTX 3080 Laptop GPU", _GA10X_GEFORCE, 48, None, 1710, 16, 448, 4, 150),
    row("RTX 3080 Laptop GPU 8GB", _GA10X_GEFORCE, 48, None, 1710, 8, 448, 4, 150),
    row("RTX 3080 Ti Laptop GPU", _GA10X_GEFORCE, 58, None, 1590, 16, 512, 4, 150),
    # CUDA names the GPU of every Orin module just "Orin": SMs and memory distinguish them.
    row("Jetson AGX Orin 64GB", _ORIN, 16, None, 1300, 64, 204.8, 4, 60, "Orin"),
    row("Jetson AGX Orin 32GB", _ORIN, 14, None, 930, 32, 204.8, 4, 40, "Orin"),
    row("Jetson Orin NX 16GB", _ORIN, 8, None, 918, 16, 102.4, None, 25, "Orin"),
    row("Jetson Orin NX 8GB", _ORIN, 8, None, 765, 8, 102.4, None, 20, "Orin"),
    row("Jetson Orin Nano 8GB", _ORIN, 8, None, 625, 8, 68, None, 15, "Orin"),
    row("Jetson Orin Nano 4GB", _ORIN, 4, None, 625, 4, 34, None, 10, "Orin"),
)
_ADA_ROWS = (
    row("L4", _ADA, 58, 795, 2040, 24, 300, 48, 72, source="NVIDIA L4 datasheet"),
    row("L40", _ADA, 142, 735, 2490, 48, 864, 96, 300, tensor=_L40_TENSOR,
        source="NVIDIA L40 datasheet"),
    row("L40S", _ADA, 142, 1110, 2520, 48, 864, 96, 350, source="NVIDIA L40S datasheet"),
    row("RTX 6000 Ada", _ADA, 142, 915, 2505, 48, 960, 96, 300),
    row("RTX 4060", _ADA_GEFORCE, 24, 1830, 2460, 8, 272, 24, 115),
    row("RTX 4060 Ti", _ADA_GEFORCE, 34, 2310, 2535, 8, 288, 32, 160),
    row("RTX 4060 Ti 16GB", _ADA_GEFORCE, 34, 2310, 2535, 16, 288, 32, 165),
    row("RTX 4070", _ADA_GEFORCE, 46, 1920, 2475, 12, 504, 36, 200),
    row("RTX 4070 SUPER", _ADA_GEFORCE, 56, 1980, 2475, 12, 504, 48, 220),
    row("RTX 4070 Ti", _ADA_GEFORCE, 60, 2310, 2610, 12, 504, 48, 285),
    row("RTX 4070 Ti SUPER", _ADA_GEFORCE, 66, 2340, 2610, 16, 672, 48, 285),
    row("RTX 4080", _ADA_GEFORCE, 76, 2205, 2505, 16, 717, 64, 320),
    row("RTX 4080 SUPER", _ADA_GEFORCE, 80, 2295, 2550, 16, 736, 64, 320),
    row("RTX 4090", _ADA_GEFORCE, 128, 2235, 2520, 24, 1008, 72, 450),
    row("RTX 4050 Laptop GPU", _ADA_GEFORCE, 20, None, 2370, 6, 192, None, 115),
    row("RTX 4060 Laptop GPU", _ADA_GEFORCE, 24, None, 2370, 8, 256, 32, 115),
    row("RTX 4070 Laptop GPU", _ADA_GEFORCE, 36, None, 2175, 8, 256, 32, 115),
    row("RTX 4080 Laptop GPU", _ADA_GEFORCE, 58, None, 2280, 12, 432, 48, 150),
    row("RTX 4090 Laptop GPU", _ADA_GEFORCE, 76, None, 2040, 16, 576, 64, 150),
)
_HOPPER = (
    row("H100 SXM5", _GH100, 132, None, 1980, 80, 3352, 50, 700, "H100 80GB HBM3",
        tensor_mhz=1830, tensor={"fp64": 66.9}),
    row("H100 PCIe", _GH100, 114, 1095, 1755, 80, 2039, 50, 350, "H100 80GB HBM2e",
        tensor_mhz=1620, tensor={"fp64": 51.2}),
    row("H100 NVL", _GH100, 132, 1080, 1785, 94, 3938, 60, 400,
        tensor_mhz=1545, tensor={"fp64": 60.3}),
    row("H800 SXM5", _GH100, 132, None, 1980, 80, 3352, 50, 700,
        tensor_mhz=1830, vector=_FP64_CAPPED, tensor=_FP64_CAPPED, source="NVIDIA H800 datasheet"),
    row("H800 PCIe", _GH100, 114, 1095, 1755, 80, 2039, 50, 350, tensor_mhz=1620,
        vector={"fp64": 0.8}, tensor={"fp64": 0.8}, source="NVIDIA H800 datasheet"),
    # The data sheet has 44 TFLOP/s FP32, which 78 SMs at the driver's 1980 MHz cannot reach.
    row("H20", _GH100, 78, None, 1980, 96, 4000, 60, 400, vector=_FP64_CAPPED,
        tensor={"fp64": 1.0, "tf32": 74.0, "bf16": 148.0, "fp16": 148.0, "fp8": 296.0,
                "int8": 296.0}, source="NVIDIA H20 datasheet; FP32 = 2 x 128 x SMs x clock"),
    row("H200", _GH100, 132, None, 1980, 141, 4800, 60, 700, "H200 SXM5",
        tensor_mhz=1830, tensor={"fp64": 66.9}, source="NVIDIA H200 datasheet"),
    row("H200 NVL", _GH100, 132, None, 1785, 141, 4800, 60, 600,
        tensor_mhz=1545, tensor={"fp64": 60.3}, source="NVIDIA H200 datasheet"),
    # 480 GB is the Grace CPU's memory; the driver puts it into the GPU's name.
    row("GH200 96GB", _GH100, 132, None, 1980, 96, 4000, 60, 900, "GH200 480GB",
        tensor_mhz=1830, tensor={"fp64": 66.9}, source="NVIDIA GH200 datasheet"),
    row("GH200 144GB", _GH100, 132, None, 1980, 144, 4900, 60, 900, "GH200 144G HBM3e",
        tensor_mhz=1830, tensor={"fp64": 66.9}, source="NVIDIA GH200 datasheet"),
)
_BLACKWELL_ROWS = (
    row("B100", _GB100, None, None, None, 192, 8000, None, 700,
        vector={"fp64": 30.0, "fp32": 60.0}, tensor={"fp64": 30.0, "tf32": 875.0,
        "bf16": 1750.0, "fp16": 1750.0, "fp8": 3500.0, "fp4": 7000.0, "int8": 3500.0},
        source="NVIDIA Blackwell Architecture technical brief; HGX B100 datasheet"),
    row("B200", _GB100, 148, None, 1965, 180, 7700, 126.5, 1000, "B200 SXM6",
        tensor={"fp64": 37.0, "tf32": 1125.0, "bf16": 2250.0, "fp16": 2250.0, "fp8": 4500.0,
                "fp4": 9000.0, "int8": 4500.0}),
    row("GB200", _GB100, 152, None, 2062, 186, 8000, 129.25, 1200, "GB200 NVL72",
        tensor={"fp64": 40.0, "tf32": 1250.0, "bf16": 2500.0, "fp16": 2500.0, "fp8": 5000.0,
                "fp4": 10000.0, "int8": 5000.0}, source="NVIDIA GB200 NVL72 datasheet, one GPU"),
    row("B300", _GB300, 148, None, None, 270, 7700, None, 1100, "B300 SXM6 AC",
        vector={"fp64": 1.2, "fp32": 75.0},
        tensor={"fp64": 1.2, "tf32": 1125.0, "bf16": 2250.0, "fp16": 2250.0, "fp8": 4500.0,
                "fp4": 13500.0, "int8": 150.0}, source=_ULTRA),
    row("GB300", _GB300, 152, None, None, 279, 8000, None, 1400, "GB300 NVL72",
        vector={"fp64": 1.3, "fp32": 80.0},
        tensor={"fp64": 1.3, "tf32": 1250.0, "bf16": 2500.0, "fp16": 2500.0, "fp8": 5000.0,
                "fp4": 15000.0, "int8": 165.0}, source=_ULTRA),
    row("Jetson Thor", _THOR, 20, None, 1575, 128, 273, None, 130, "Thor", "Jetson AGX Thor",
        tensor={"fp8": 517.0, "fp4": 1035.0}),
    row("GB10", _GB10, 48, None, None, 128, 273, None, 140, "DGX Spark",
        vector={"fp32": 31.0}, tensor={"fp4": 500.0}),
    row("RTX PRO 6000 Blackwell Workstation Edition", _GB20X, 188, 1590, 2617, 96, 1792, 128, 600,
        "RTX PRO 6000"),
    row("RTX PRO 6000 Blackwell Max-Q Workstation Edition", _GB20X, 188, 1590, 2288, 96, 1792, 128,
        300),
    row("RTX PRO 6000 Blackwell Server Edition", _GB20X, 188, None, None, 96, 1597, 128, 600,
        vector={"fp32": 120.0, "fp64": 1.875, "bf16": 120.0, "fp16": 120.0},
        tensor={"tf32": 240.0, "bf16": 480.0, "fp16": 480.0, "fp8": 960.0, "fp4": 1920.0,
                "int8": 960.0}, source="NVIDIA RTX PRO 6000 Blackwell Server Edition datasheet"),
    row("RTX 5050", _GB20X_GEFORCE, 20, 2317, 2572, 8, 320, None, 130),
    row("RTX 5060", _GB20X_GEFORCE, 30, 2280, 2497, 8, 448, 24, 145),
    row("RTX 5060 Ti", _GB20X_GEFORCE, 36, 2407, 2572, 16, 448, 32, 180),
    row("RTX 5060 Ti 8GB", _GB20X_GEFORCE, 36, 2407, 2572, 8, 448, 32, 180),
    row("RTX 5070", _GB20X_GEFORCE, 48, 2325, 2512, 12, 672, 48, 250),
    row("RTX 5070 Ti", _GB20X_GEFORCE, 70, 2295, 2452, 16, 896, 48, 300),
    row("RTX 5080", _GB20X_GEFORCE, 84, 2295, 2617, 16, 960, 64, 360),
    row("RTX 5090", _GB20X_GEFORCE, 170, 2017, 2407, 32, 1792, 96, 575),
    row("RTX 5050 Laptop GPU", _GB20X_GEFORCE, 20, None, 2662, 8, 384, None, 100),
    row("RTX 5060 Laptop GPU", _GB20X_GEFORCE, 26, None, 2497, 8, 384, 32, 100),
    row("RTX 5070 Laptop GPU", _GB20X_GEFORCE, 36, None, 2347, 8, 384, 32, 100),
    row("RTX 5070 Ti Laptop GPU", _GB20X_GEFORCE, 46, None, 2220, 12, 672, 48, 115),
    row("RTX 5080 Laptop GPU", _GB20X_GEFORCE, 60, None, 2287, 16, 896, 64, 150),
    row("RTX 5090 Laptop GPU", _GB20X_GEFORCE, 82, None, 2160, 24, 896, 64, 150),
)
# fmt: on

GPUS: tuple[Gpu, ...] = (
    *_PASCAL,
    *_VOLTA,
    *_TURING,
    *_AMPERE,
    *_ADA_ROWS,
    *_HOPPER,
    *_BLACKWELL_ROWS,
    *AMD,
)
"""Every GPU known, oldest architecture first."""


CPU_LINK_BYTES_S = {"PCIe 3": 15.75e9, "PCIe 4": 31.5e9, "PCIe 5": 63e9}
"""Bytes per second and direction of the links between CPU and GPU, 16 lanes wide."""
CPU_LINKS = {
    "Pascal": "PCIe 3",
    "Volta": "PCIe 3",
    "Turing": "PCIe 3",
    "Ampere": "PCIe 4",
    "Ada Lovelace": "PCIe 4",
    "Hopper": "PCIe 5",
    "Blackwell": "PCIe 5",
    "Blackwell Ultra": "PCIe 5",
    "CDNA": "PCIe 4",
    "CDNA 2": "PCIe 4",
    "CDNA 3": "PCIe 5",
    "CDNA 4": "PCIe 5",
    "RDNA 3": "PCIe 4",
    "RDNA 4": "PCIe 5",
}
"""The link that GPUs of an architecture have."""
USUAL_CPU_LINK = "PCIe 4"
"""Assumed where the GPU is not known."""
