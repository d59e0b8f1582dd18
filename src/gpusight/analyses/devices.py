"""What is known about the GPUs of a capture, with what its driver left out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpusight.model.hardware import find_gpu

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.model.hardware import Gpu
    from gpusight.model.trace import Trace

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


def table_name(gpu: Gpu | None) -> str | None:
    """Name a GPU as its driver would: `AMD MI300X`."""
    return None if gpu is None else f"{gpu.vendor} {gpu.name}"
