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
_TELLING = ("device", "name", "sm_count", "memory_bytes", "compute_major", "compute_minor")


def listed_gpu(row: Mapping[str, Any]) -> Gpu | None:
    """Find a row of `devices` in the GPU table; one without a name by what else it says."""
    major = row["compute_major"]
    return find_gpu(
        row["name"],
        sm_count=row["sm_count"],
        memory_bytes=row["memory_bytes"],
        compute=None if major is None else (major, row["compute_minor"] or 0),
    )


def device_names(trace: Trace) -> dict[int, str | None]:
    """Name every GPU of the capture; None where neither its driver nor the GPU table can."""
    rows = trace.table("devices", _TELLING).iter_rows(named=True)
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
    """Find the GPU that a person names; raises UsageError with near names."""
    gpu = find_gpu(name) if name.strip() else None
    if gpu is None:
        raise unknown_gpu(name)
    return gpu


def unknown_gpu(name: str, *, architectures: bool = False) -> UsageError:
    """Refuse a name that no GPU has, with near ones; `architectures` such as `sm_80` may do too."""
    near = ", ".join(_near(name, [f"sm_{a}{b}" for a, b in SM_LIMITS] if architectures else []))
    further = " Architectures: sm_80, 8.0" if architectures else ""
    return UsageError(f"no GPU named {name!r}", hint=f"did you mean {near}?{further}")


def _near(gpu: str, architectures: Iterable[str]) -> list[str]:
    """Give names that look like this one: `A100` for all kinds of it."""
    products = dict.fromkeys(name for g in GPUS if g.vendor == "NVIDIA" for name in _short(g.name))
    names = {name.lower(): name for name in (*products, *architectures)}
    wanted = gpu.strip().lower()
    found = [names[key] for key in difflib.get_close_matches(wanted, names, _NEAR, 0.5)]
    found += [name for key, name in names.items() if wanted and wanted in key]
    return list(dict.fromkeys(found))[:_NEAR] or list(_KNOWN)


def _short(name: str) -> tuple[str, ...]:
    """Give the shortest beginning of a name that says which GPU it is, and the name."""
    words = name.split()
    starts = (" ".join(words[:count]) for count in range(1, len(words)))
    return *(start for start in starts if find_gpu(start) is not None), name
