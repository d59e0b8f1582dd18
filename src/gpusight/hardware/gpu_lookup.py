"""Look up GPUs and their limits; the only source of peak rates in the project."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass, fields, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from gpusight.errors import UsageError
from gpusight.hardware.gpu_table import GPUS, Gpu, Peaks
from gpusight.hardware.sm_limits import SM_LIMITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


PRECISIONS = tuple(field.name for field in fields(Peaks))
"""Names of the precisions: fp64 fp32 tf32 bf16 fp16 fp8 fp4 int8."""

_GIB = 1 << 30
_MAX_NEAR = 5
"""Names that the error for an unknown one suggests."""
_WELL_KNOWN = ("A100", "H100", "RTX 4090", "T4")

# Words that do not identify a GPU.
_NOISE = frozenset((
    "nvidia", "geforce", "tesla", "amd", "instinct", "jetson", "gpu", "graphics", "generation",
    "corporation", "inc", "with", "design", "edition", "workstation", "accelerator", "tensor",
    "core", "nvgpu", "oam", "radeon", "vf",
))  # fmt: skip
_SERIES = frozenset(("rtx", "gtx", "rx"))
_FORM = re.compile(r"pcie|sxm\d?|nvl\d*|dgxs|hbm\d?e?|gddr\d?x?|active")
_MEMORY = re.compile(r"\d+gb")
_SPELLINGS = (
    (re.compile(r"\bmig\b.*"), " "),  # a slice of a GPU is found as the GPU
    (re.compile(r"\bmax[- ]?q\b"), "maxq"),
    (re.compile(r"\b(?:mobile|notebook)\b"), "laptop"),
    (re.compile(r"\b(\d+) ?(?:gb|gib|g)\b"), r"\1gb"),
    (re.compile(r"\b(rtx|gtx|rx)(?=[a-z]?\d)"), r"\1 "),
    (re.compile(r"(?<=\d{4})ti(?=super|\b)"), " ti "),
    (re.compile(r"(?<=\d{4})super\b"), " super"),
)


@dataclass(frozen=True, slots=True)
class _Name:
    """The words of a GPU's name; two names of one model differ at most in form and memory."""

    model: frozenset[str]
    series: frozenset[str]
    forms: frozenset[str]
    memory: frozenset[str]

    @classmethod
    def parse(cls, text: str) -> _Name:
        text = text.lower().replace("(r)", " ").replace("(tm)", " ").replace("™", " ")
        for pattern, spelling in _SPELLINGS:
            text = pattern.sub(spelling, text)
        words = frozenset(re.findall(r"[a-z0-9]+", text)) - _NOISE
        forms = frozenset(word for word in words if _FORM.fullmatch(word))
        memory = frozenset(word for word in words if _MEMORY.fullmatch(word))
        series = words & _SERIES
        return cls(words - forms - memory - series, series, forms, memory)

    def is_model_of(self, row: _Name) -> bool:
        """Compare models exactly, so that a 3060 is never a 3060 Ti; the series may be left out."""
        if not self.model or self.model != row.model:
            return False
        says_enough = any(map(str.isdigit, "".join(self.model))) and "quadro" not in self.model
        return self.series == row.series or (not self.series and says_enough)

    def fits(self, row: _Name, gpu: Gpu) -> bool:
        """Return whether every form and memory size that this name states is the row's."""
        own_memory = f"{round((gpu.memory_bytes or 0) / _GIB)}gb"
        return all(any(has.startswith(word) for has in row.forms) for word in self.forms) and all(
            word in row.memory or word == own_memory for word in self.memory
        )


@lru_cache(maxsize=1)
def _index() -> tuple[tuple[_Name, bool, Gpu], ...]:
    """Parse the names (False) and aliases (True) of all rows, in table order."""
    return tuple(
        (_Name.parse(text), text != gpu.name, gpu)
        for gpu in GPUS
        for text in (gpu.name, *gpu.aliases)
    )


def find_gpu(
    name: str,
    *,
    sm_count: int | None = None,
    memory_bytes: int | None = None,
    compute: tuple[int, int] | None = None,
) -> Gpu | None:
    """Find the GPU that a driver, a profiler or a person calls by this name.

    Vendor words, case and punctuation do not matter; the model does, entirely. Of the variants
    that the name leaves open, those with the SM count and then the memory size given are kept
    where there are any, and of these the plainest name wins, then the first in the table.

    Some drivers give no name: then the compute capability (of AMD GPUs, the gfx version), SM count
    and memory size must all be known and fit a single row. A name of several models
    (`MI250X / MI250`) is the one whose SM count it has.
    """
    if not name.strip():
        return _only(gpu for gpu in GPUS if _may_be_same_gpu(gpu, sm_count, memory_bytes, compute))
    models = name.split("/")
    if len(models) > 1:
        gpus = (find_gpu(model, sm_count=sm_count, memory_bytes=memory_bytes) for model in models)
        return _only(gpu for gpu in gpus if gpu is not None and _has_sms(gpu, sm_count))
    wanted = _Name.parse(name)
    matches: list[tuple[bool, int, Gpu]] = [
        (is_alias, len(row.forms - wanted.forms) + len(row.memory - wanted.memory), gpu)
        for row, is_alias, gpu in _index()
        if wanted.is_model_of(row) and wanted.fits(row, gpu)
    ]
    candidates = [gpu for *_, gpu in sorted(matches, key=lambda match: match[:2])]
    if sm_count:
        candidates = [gpu for gpu in candidates if _has_sms(gpu, sm_count)] or candidates
    if memory_bytes:
        candidates = [gpu for gpu in candidates if _may_report(gpu, memory_bytes)] or candidates
    return candidates[0] if candidates else None


def _only(gpus: Iterable[Gpu]) -> Gpu | None:
    """Return the single GPU there is; None when there are several."""
    candidates = list(gpus)
    return candidates[0] if len(candidates) == 1 else None


def _may_be_same_gpu(
    gpu: Gpu, sm_count: int | None, memory_bytes: int | None, compute: tuple[int, int] | None
) -> bool:
    if not sm_count or not memory_bytes or compute is None:
        return False
    major, minor = compute
    is_version = gpu.compute_capability == compute
    if gpu.gfx is not None:  # gfx942: all but the last character, which ROCm does not report
        is_version = gpu.gfx[:-1] == f"gfx{major}{minor}"
    return is_version and _has_sms(gpu, sm_count) and _may_report(gpu, memory_bytes)


def _has_sms(gpu: Gpu, sm_count: int | None) -> bool:
    """Compare SM counts; RDNA drivers count pairs of compute units."""
    return sm_count is not None and sm_count in (gpu.sm_count, _pairs(gpu))


def _pairs(gpu: Gpu) -> int | None:
    rdna = gpu.architecture.startswith("RDNA")
    return gpu.sm_count // 2 if rdna and gpu.sm_count else None


def _may_report(gpu: Gpu, memory_bytes: int) -> bool:
    """Return whether a driver may report this size: the memory less ECC and what firmware keeps."""
    size = gpu.memory_bytes or 0
    return 0.87 * size <= memory_bytes <= 1.005 * size


def listed_gpu(row: Mapping[str, Any]) -> Gpu | None:
    """Find a row of `devices` in the GPU table; without a name, by SMs, memory and capability."""
    major = row["compute_major"]
    return find_gpu(
        row["name"],
        sm_count=row["sm_count"],
        memory_bytes=row["memory_bytes"],
        compute=None if major is None else (major, row["compute_minor"] or 0),
    )


def table_name(gpu: Gpu | None) -> str | None:
    """Name a GPU as its driver would: `AMD MI300X`."""
    return None if gpu is None else f"{gpu.vendor} {gpu.name}"


def named_gpu(name: str) -> Gpu:
    """Find a GPU by the name that the user gives; raises UsageError with near names."""
    gpu = find_gpu(name) if name.strip() else None
    if gpu is None:
        raise unknown_gpu(name)
    return gpu


def unknown_gpu(name: str, *, architectures: bool = False) -> UsageError:
    """Build the error for a name that no GPU has, with near ones, also of `architectures`."""
    products: list[str] = []
    for gpu in GPUS:
        if gpu.vendor == "NVIDIA":  # its name, and the starts of it that identify a GPU
            words = gpu.name.split()
            starts = (" ".join(words[:count]) for count in range(1, len(words)))
            products += [*(start for start in starts if find_gpu(start) is not None), gpu.name]
    if architectures:
        products += [f"sm_{major}{minor}" for major, minor in SM_LIMITS]
    known = {product.lower(): product for product in dict.fromkeys(products)}
    wanted = name.strip().lower()
    near = [known[key] for key in difflib.get_close_matches(wanted, known, _MAX_NEAR, 0.5)]
    near += [product for key, product in known.items() if wanted and wanted in key]
    shown = ", ".join(list(dict.fromkeys(near))[:_MAX_NEAR] or _WELL_KNOWN)
    further = " Architectures: sm_80, 8.0" if architectures else ""
    return UsageError(f"no GPU named {name!r}", hint=f"did you mean {shown}?{further}")


def peak_flops(gpu: Gpu, precision: str, *, tensor: bool) -> float | None:
    """Return the peak dense rate in FLOP/s (OP/s for int8), None when unknown or no such unit."""
    if precision not in PRECISIONS:
        raise UsageError(
            f"no precision named {precision!r}", hint=f"use one of {', '.join(PRECISIONS)}"
        )
    rate: float | None = getattr(gpu.tensor if tensor else gpu.vector, precision)
    return None if rate is None else rate * 1e12


GEMM_FIXED_NS = 4_000
"""Time of a GEMM however fast the arithmetic is. With it and the ratio of peak rates, 657 GEMMs of
93 ms in FP32 should take 8.9 ms in BF16 on an H200; they took 8.0."""


def with_measured(
    gpu: Gpu | None,
    *,
    name: str | None = None,
    compute_major: int | None = None,
    compute_minor: int | None = None,
    sm_count: int | None = None,
    clock_hz: float | None = None,
    memory_bandwidth_bytes_s: float | None = None,
    memory_bytes: int | None = None,
    l2_bytes: int | None = None,
) -> Gpu:
    """Replace the table's values by those a capture holds; empty and zero values do not count.

    Peaks follow the SM count and clock: a slice, a laptop part or a locked clock reaches less.
    For a GPU that is not in the table only the FP32 rate is known, from its CUDA cores.
    """
    if gpu is not None and sm_count and sm_count == _pairs(gpu):
        sm_count = gpu.sm_count
    if gpu is None:
        gpu = base = _unlisted(name or "", compute_major, compute_minor)
        limits = SM_LIMITS.get(gpu.compute_capability or (0, 0))
        if limits is not None and sm_count and clock_hz:
            fp32_tflops = 2 * limits.fp32_cores * sm_count * clock_hz / 1e12
            base = replace(gpu, vector=Peaks(fp32=fp32_tflops))
    else:
        clocks = clock_hz / 1e6 / gpu.boost_clock_mhz if clock_hz and gpu.boost_clock_mhz else 1.0
        factor = clocks * (sm_count / gpu.sm_count if sm_count and gpu.sm_count else 1.0)
        base = replace(
            gpu,
            vector=gpu.vector.scaled(factor),
            tensor=gpu.tensor.scaled(factor),
            tensor_clock_mhz=gpu.tensor_clock_mhz and gpu.tensor_clock_mhz * clocks,
        )
    cc = gpu.compute_capability
    if gpu.vendor != "AMD" and compute_major:
        cc = (compute_major, compute_minor or 0)
    return replace(
        base,
        name=name or gpu.name,
        compute_capability=cc,
        sm_count=sm_count or gpu.sm_count,
        boost_clock_mhz=clock_hz / 1e6 if clock_hz else gpu.boost_clock_mhz,
        memory_bytes=memory_bytes or gpu.memory_bytes,
        memory_bandwidth_bytes_s=memory_bandwidth_bytes_s or gpu.memory_bandwidth_bytes_s,
        l2_bytes=l2_bytes or gpu.l2_bytes,
        source=f"{gpu.source}; the capture" if gpu.source else "the capture",
    )


def _unlisted(name: str, major: int | None, minor: int | None) -> Gpu:
    """Describe a GPU of which only name and compute capability are known."""
    # ROCm reports gfx versions where CUDA reports compute capabilities: gfx90a looks like 9.0.
    is_amd = bool(re.search(r"\b(?:amd|radeon|instinct|gfx\w+)\b", name.lower()))
    cc = (major, minor or 0) if major and not is_amd else None
    limits = SM_LIMITS.get(cc) if cc else None
    return Gpu(
        name=name,
        vendor="AMD" if is_amd else "NVIDIA" if limits else "",
        architecture=limits.architecture if limits else "",
        compute_capability=cc,
        gfx=None,
        sm_count=None,
        base_clock_mhz=None,
        boost_clock_mhz=None,
        memory_bytes=None,
        memory_bandwidth_bytes_s=None,
        l2_bytes=None,
        vector=Peaks(),
        tensor=Peaks(),
        tdp_w=None,
        source="",
    )
