"""What is said of files that are no capture."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.errors import NotACaptureError

if TYPE_CHECKING:
    from pathlib import Path


def not_a_capture(path: Path) -> NotACaptureError:
    """Say what could be read instead."""
    return NotACaptureError(
        f"{path} is not a capture that gpusight knows",
        hint="it reads nsys .sqlite, .nsys-rep, .qdrep, parquetdir and arrow exports; "
        "ncu .ncu-rep reports and CSVs; torch.profiler .json[.gz], key_averages and memory "
        "snapshots; JAX .xplane.pb and .trace.json.gz",
    )
