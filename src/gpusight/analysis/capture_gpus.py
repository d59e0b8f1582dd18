"""The GPUs of a capture, completed from the hardware tables where the driver left something out."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any

from gpusight.errors import UsageError
from gpusight.hardware.gpu_lookup import find_gpu
from gpusight.hardware.gpu_table import GPUS
from gpusight.hardware.sm_limits import SM_LIMITS

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpusight.hardware.gpu_table import Gpu
    from gpusight.trace.trace import Trace


_NEAR = 5
_KNOWN = ("A100", "H100", "RTX 4090", "T4")
_COLUMNS = ("device", "name", "sm_count", "memory_bytes", "compute_major", "compute_minor")


def listed_gpu(row: Mapping[str, Any]) -> Gpu | None:
    """Find a row of `devices` in the GPU table; without a name, by SMs, memory and capability."""
    major = row["compute_major"]
    return find_gpu(
        row["name"],
        sm_count=row["sm_count"],
        memory_bytes=row["memory_bytes"],
        compute=None if major is None else (major, row["compute_minor"] or 0),
    )


def device_names(trace: Trace) -> dict[int, str | None]:
    """Name every GPU of the capture; None where neither its driver nor the GPU table can."""
    rows = trace.table("devices", _COLUMNS).iter_rows(named=True)
    return {row["device"]: row["name"] or table_name(listed_gpu(row)) for row in rows}


def names_of_used(trace: Trace, devices: Iterable[int | None]) -> str | None:
    """Name the GPUs of these numbers, each once; None where no name is known."""
    names = device_names(trace)
    used = sorted({device for device in devices if device is not None})
    return ", ".join(dict.fromkeys(name for n in used if (name := names.get(n)))) or None


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
    products = [short for gpu in GPUS if gpu.vendor == "NVIDIA" for short in _short(gpu.name)]
    if architectures:
        products += [f"sm_{major}{minor}" for major, minor in SM_LIMITS]
    known = {product.lower(): product for product in dict.fromkeys(products)}
    wanted = name.strip().lower()
    near = [known[key] for key in difflib.get_close_matches(wanted, known, _NEAR, 0.5)]
    near += [product for key, product in known.items() if wanted and wanted in key]
    shown = ", ".join(list(dict.fromkeys(near))[:_NEAR] or _KNOWN)
    further = " Architectures: sm_80, 8.0" if architectures else ""
    return UsageError(f"no GPU named {name!r}", hint=f"did you mean {shown}?{further}")


def _short(name: str) -> tuple[str, ...]:
    """Return the prefixes of a name that identify a GPU, and the name."""
    words = name.split()
    starts = (" ".join(words[:count]) for count in range(1, len(words)))
    return *(start for start in starts if find_gpu(start) is not None), name
