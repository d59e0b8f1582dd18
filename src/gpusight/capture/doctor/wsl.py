"""Checks of Windows Subsystem for Linux."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.capture.doctor.check import Can, Check, Effect, State
from gpusight.capture.request import Tool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.capture.doctor.hardware import Hardware
    from gpusight.capture.doctor.machine import Machine

LIBRARY = "/usr/lib/wsl/lib/libcuda.so.1"
_NCU_DRIVER = 525
"""Nsight Compute profiles in WSL2 from this Windows driver on (Windows 11; 545 on Windows 10)."""


def is_wsl(machine: Machine) -> bool:
    """Tell whether this is Linux inside Windows."""
    return machine.system == "Linux" and "microsoft" in machine.kernel.lower()


def wsl_checks(machine: Machine, hardware: Hardware) -> Iterator[Check]:
    """Look at what WSL leaves out."""
    if not is_wsl(machine):
        return
    if machine.kernel.startswith("4.4."):
        yield _first_version()
    elif not machine.exists(LIBRARY):
        yield _no_library()
    else:
        yield _second_version(hardware)


def _first_version() -> Check:
    return Check(
        "wsl",
        "WSL",
        State.MISSING,
        "version 1, which has no GPU",
        "CUDA programs cannot run here.",
        "Convert the distribution to WSL2 (in PowerShell):",
        ("wsl --set-version DISTRIBUTION 2",),
        tuple(Effect(tool, Can.NO, "WSL 1 has no GPU") for tool in (Tool.NCU, Tool.CUPTI)),
    )


def _no_library() -> Check:
    return Check(
        "wsl",
        "WSL",
        State.MISSING,
        "version 2, but Windows does not offer its driver",
        "CUDA programs find no GPU.",
        "Install NVIDIA's driver on Windows (not inside WSL), then restart WSL (in PowerShell):",
        ("wsl --shutdown",),
    )


def _second_version(hardware: Hardware) -> Check:
    return Check(
        "wsl",
        "WSL",
        State.LIMITED,
        "version 2, with the driver of Windows",
        "Kernels are recorded with a recent driver and nsys; older ones record the calls but no "
        "kernels. GPU metrics and CPU samples are not available, and ncu needs Windows driver 525 "
        "or newer (545 on Windows 10).",
        "Record something short, then see whether kernels came; if not, update the driver on "
        "Windows and nsys here:",
        ("gpusight info CAPTURE",),
        (
            Effect(Tool.NSYS, Can.PARTLY, "WSL2: no GPU metrics, no CPU samples"),
            _ncu(hardware),
            Effect(Tool.TORCH, Can.PARTLY, "WSL2: kernels only with a recent driver and PyTorch"),
            Effect(Tool.CUPTI, Can.PARTLY, "WSL2: kernels only with a recent driver"),
        ),
    )


def _ncu(hardware: Hardware) -> Effect:
    major = (hardware.driver or "").partition(".")[0]
    if major.isdecimal() and int(major) < _NCU_DRIVER:
        return Effect(Tool.NCU, Can.NO, f"WSL2 with driver {hardware.driver}: 525 is needed")
    return Effect(Tool.NCU, Can.PARTLY, "WSL2: counters must be allowed on Windows")
