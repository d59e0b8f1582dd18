"""Checks of the GPUs, the driver, and who else holds them."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from gpusight.recording.doctor.machine import Ability, CheckEffect, CheckState, MachineCheck
from gpusight.recording.request import Tool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.recording.doctor.machine import CommandResult, Machine


PROBES = Path(__file__).parent / "probes"
SMI_PATHS = ("/usr/lib/wsl/lib/nvidia-smi", "/usr/local/nvidia/bin/nvidia-smi")
_FIELDS = ("name", "driver_version", "compute_cap", "mig.mode.current")
_OLD_FIELDS = ("name", "driver_version", "mig.mode.current")
"""Drivers before 510 do not tell the compute capability."""
_MODULE = re.compile(r"Kernel Module(?: for \S+)?\s+([\d.]+)")


@dataclass(frozen=True, slots=True)
class InstalledGpu:
    """One GPU."""

    name: str
    capability: Pair | None = None
    mig: bool = False


@dataclass(frozen=True, slots=True)
class InstalledHardware:
    """What nvidia-smi and the driver's library tell."""

    gpus: tuple[InstalledGpu, ...] = ()
    """Those of the machine; where only CUDA was asked, those it shows this user."""
    driver: str | None = None
    """The driver's version, such as 580.82.07."""
    cuda: Pair | None = None
    """The newest CUDA that the driver supports."""
    library: bool | None = None
    """The driver's library could be loaded; None: it was not asked."""
    visible: int | None = None
    """GPUs that CUDA shows to programs started from here."""
    failed: int = 0
    """The error of the driver's library when asked for GPUs; 0: none."""
    complaint: str = ""
    """What nvidia-smi said when it did not answer."""

    @property
    def capabilities(self) -> tuple[Pair, ...]:
        """The compute capabilities that are known, each once."""
        return tuple(dict.fromkeys(g.capability for g in self.gpus if g.capability))

    @property
    def usable(self) -> bool:
        """Tell whether a program started from here finds a GPU."""
        return bool(self.gpus) and self.visible != 0 and not self.failed


def survey(machine: Machine) -> InstalledHardware:
    """Ask the machine for its GPUs; nothing is initialised in this process."""
    told = _ask_driver(machine)
    gpus, driver, complaint = _ask_smi(machine)
    devices = tuple(
        InstalledGpu(str(d["name"]), (d["capability"][0], d["capability"][1]))
        for d in told.get("devices", ())
    )
    version = told.get("version") or 0
    return InstalledHardware(
        gpus=_with_capability(gpus, devices) or devices,
        driver=driver or _module_version(machine),
        cuda=(version // 1000, version % 1000 // 10) if version else None,
        library=told.get("library"),
        visible=len(devices) if told.get("library") else None,
        failed=told.get("failed", 0),
        complaint=complaint,
    )


def probe(machine: Machine, python: str, name: str, timeout_s: float = 20.0) -> Any:
    """Run a probe with a Python; gives what it said, or how it ended without an answer."""
    ran = machine.run([python, str(PROBES / f"{name}.py")], timeout_s)
    if ran is None or not ran.fine:
        return ran
    try:
        return json.loads(ran.out.splitlines()[-1])  # packages may print on import
    except (IndexError, ValueError):
        return ran


def last_line(ran: CommandResult | None) -> str:
    """Give the last thing that a program said when it failed."""
    if ran is None:
        return "it cannot be started"
    if ran.code is None:
        return "it took too long"
    lines = [line.strip() for line in (ran.err or ran.out).splitlines() if line.strip()]
    return lines[-1] if lines else f"it ended with code {ran.code}"


def _ask_driver(machine: Machine) -> dict[str, Any]:
    told = probe(machine, sys.executable, "ask_driver")
    return told if isinstance(told, dict) else {}


def _ask_smi(machine: Machine) -> tuple[tuple[InstalledGpu, ...], str | None, str]:
    program = machine.which("nvidia-smi") or next(filter(machine.exists, SMI_PATHS), None)
    if program is None:
        return (), None, ""
    ran: CommandResult | None = None
    for fields in (_FIELDS, _OLD_FIELDS):
        query = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
        ran = machine.run(query)
        if ran is not None and ran.fine:
            rows = [_row(fields, line) for line in ran.out.splitlines() if line.strip()]
            driver = rows[0]["driver_version"] if rows else None
            return tuple(map(_gpu_of_row, rows)), driver, ""
    return (), None, last_line(ran)


def _row(fields: tuple[str, ...], line: str) -> dict[str, str]:
    return dict(zip(fields, (cell.strip() for cell in line.split(",")), strict=False))


def _gpu_of_row(row: dict[str, str]) -> InstalledGpu:
    return InstalledGpu(
        row["name"], _pair(row.get("compute_cap", "")), row.get("mig.mode.current") == "Enabled"
    )


def _pair(text: str) -> Pair | None:
    found = re.fullmatch(r"(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def _with_capability(
    gpus: tuple[InstalledGpu, ...], devices: tuple[InstalledGpu, ...]
) -> tuple[InstalledGpu, ...]:
    """Fill in from CUDA what an old nvidia-smi does not tell."""
    known = {device.name: device.capability for device in devices}
    return tuple(InstalledGpu(g.name, g.capability or known.get(g.name), g.mig) for g in gpus)


def _module_version(machine: Machine) -> str | None:
    found = _MODULE.search(machine.read("/proc/driver/nvidia/version") or "")
    return found[1] if found else None


_DRIVER_ERRORS = {
    100: "no CUDA device",
    802: "the GPUs are not yet initialised; on NVSwitch machines nvidia-fabricmanager must run",
    803: "the driver's library and its kernel module are of different versions",
    999: "unknown error, often a GPU that needs a reset",
}
_DRIVER_FIXES = {802: "sudo systemctl start nvidia-fabricmanager", 803: "sudo reboot"}
_MONITORS = ("nv-hostengine", "dcgm-exporter")


def gpu_checks(machine: Machine, hardware: InstalledHardware) -> Iterator[MachineCheck]:
    """Look at the GPUs and the driver."""
    yield _gpus(machine, hardware)
    yield _driver(hardware)
    if any(gpu.mig for gpu in hardware.gpus):
        yield _mig(hardware)
    monitor = _monitor(machine)
    if monitor:
        yield _dcgm(monitor)


def _gpus(machine: Machine, hardware: InstalledHardware) -> MachineCheck:
    title = "GPU"
    if not hardware.gpus:
        return MachineCheck(
            "gpu", title, CheckState.MISSING, _why_none(machine, hardware), *_NO_GPU
        )
    counts = Counter((gpu.name, gpu.capability) for gpu in hardware.gpus)
    found = "; ".join(
        f"{count} x {name}" + (f" (compute capability {cap[0]}.{cap[1]})" if cap else "")
        for (name, cap), count in counts.items()
    )
    if hardware.usable:
        return MachineCheck("gpu", title, CheckState.OK, found)
    return MachineCheck(
        "gpu", title, CheckState.LIMITED, f"{found}, hidden from CUDA", *_hidden(machine, hardware)
    )


def _why_none(machine: Machine, hardware: InstalledHardware) -> str:
    if hardware.complaint:
        return f"nvidia-smi: {hardware.complaint}"
    if hardware.failed:
        return f"CUDA error {hardware.failed}: {_DRIVER_ERRORS.get(hardware.failed, 'unknown')}"
    if machine.system == "Darwin":
        return "macOS has no NVIDIA GPUs"
    smi = machine.which("nvidia-smi") or any(map(machine.exists, SMI_PATHS))
    return "none found" if smi else "none found (no nvidia-smi, no CUDA driver)"


def _nothing_to_record(why: str) -> tuple[CheckEffect, ...]:
    return (
        CheckEffect(Tool.NSYS, Ability.PARTLY, f"{why}: NVTX ranges and CPU work only"),
        CheckEffect(Tool.NCU, Ability.NO, why),
        CheckEffect(Tool.CUPTI, Ability.NO, why),
        CheckEffect(Tool.TORCH, Ability.PARTLY, f"{why}: CPU operators only"),
    )


_NO_GPU = (
    "There is no GPU work to record here. Reading captures made elsewhere needs no GPU.",
    "Record on the machine with the GPU, then copy the capture here.",
    (),
    _nothing_to_record("no GPU"),
)


def _hidden(
    machine: Machine, hardware: InstalledHardware
) -> tuple[str, str, tuple[str, ...], tuple[CheckEffect, ...]]:
    means = "Programs started from here find no GPU."
    effects = _nothing_to_record("the GPU is hidden from CUDA")
    if "CUDA_VISIBLE_DEVICES" in machine.environment and hardware.failed in {0, 100}:
        return means, "CUDA_VISIBLE_DEVICES leaves none.", ("unset CUDA_VISIBLE_DEVICES",), effects
    why = _DRIVER_ERRORS.get(hardware.failed, f"CUDA error {hardware.failed}")
    command = _DRIVER_FIXES.get(hardware.failed)
    return means, f"CUDA says: {why}.", (command,) if command else (), effects


def _driver(hardware: InstalledHardware) -> MachineCheck:
    cuda = "" if hardware.cuda is None else f"CUDA up to {hardware.cuda[0]}.{hardware.cuda[1]}"
    found = ", ".join(filter(None, (hardware.driver, cuda)))
    if hardware.driver and hardware.cuda:
        return MachineCheck("driver", "Driver", CheckState.OK, found)
    if hardware.driver:
        return MachineCheck(
            "driver",
            "Driver",
            CheckState.LIMITED,
            f"{found}, but its library libcuda is not found",
            "CUDA programs cannot start here.",
            "In a container, let the runtime mount the driver (docker run --gpus all); elsewhere "
            "install the driver's user-space part.",
            effects=_nothing_to_record("no libcuda"),
        )
    if found:
        return MachineCheck("driver", "Driver", CheckState.OK, found)
    fix = "Install NVIDIA's driver for the GPU." if hardware.gpus else ""
    return MachineCheck("driver", "Driver", CheckState.MISSING, "not found", fix=fix)


def _mig(hardware: InstalledHardware) -> MachineCheck:
    count = sum(gpu.mig for gpu in hardware.gpus)
    return MachineCheck(
        "mig",
        "MIG",
        CheckState.LIMITED,
        f"on for {count} of {len(hardware.gpus)} GPUs",
        "Each instance is profiled by itself. Counters shared with other instances vary with what "
        "those do, and GPU metrics (--gpu-metrics) may not be available.",
        effects=(
            CheckEffect(
                Tool.NSYS, Ability.YES, "GPU metrics (--gpu-metrics) may be missing with MIG"
            ),
            CheckEffect(Tool.NCU, Ability.YES, "counters of units shared between MIG instances"),
        ),
    )


def _monitor(machine: Machine) -> str | None:
    """Find a process that samples the GPUs' counters all the time."""
    numbers = (name for name in machine.names("/proc") if name.isdecimal())
    commands = ((machine.read(f"/proc/{number}/comm") or "").strip() for number in numbers)
    return next((command for command in commands if command in _MONITORS), None)


def _dcgm(monitor: str) -> MachineCheck:
    return MachineCheck(
        "dcgm",
        "Other profilers",
        CheckState.LIMITED,
        f"{monitor} runs, which may hold the GPU's counters",
        "One tool at a time may use the counters: ncu and --gpu-metrics fail with a resource that "
        "is unavailable while DCGM samples profiling metrics.",
        "Pause its profiling metrics while you record, then resume them:",
        ("dcgmi profile --pause", "dcgmi profile --resume"),
        (
            CheckEffect(Tool.NCU, Ability.PARTLY, f"{monitor} may hold the counters"),
            CheckEffect(
                Tool.NSYS, Ability.YES, f"GPU metrics (--gpu-metrics) while {monitor} samples"
            ),
        ),
    )


Pair: TypeAlias = "tuple[int, int]"


@dataclass(frozen=True, slots=True)
class GpuGeneration:
    """GPUs of one compute capability."""

    name: str
    cuda: Pair
    """The first CUDA release that knows it, and with it the first CUPTI."""
    first_ncu: Pair | None
    """Year and number; None: ncu never measured it under that name."""
    last_ncu: Pair | None = None


_BY_CAPABILITY: dict[Pair, GpuGeneration] = {
    (5, 0): GpuGeneration("Maxwell", (6, 5), None),
    (5, 2): GpuGeneration("Maxwell", (6, 5), None),
    (6, 0): GpuGeneration("Pascal", (8, 0), (2018, 1), (2019, 5)),
    (6, 1): GpuGeneration("Pascal", (8, 0), (2018, 1), (2019, 5)),
    (7, 0): GpuGeneration("Volta", (9, 0), (2018, 1), (2025, 2)),
    (7, 5): GpuGeneration("Turing", (10, 0), (2019, 1)),
    (8, 0): GpuGeneration("Ampere", (11, 0), (2020, 1)),
    (8, 6): GpuGeneration("Ampere", (11, 1), (2020, 2)),
    (8, 7): GpuGeneration("Orin", (11, 4), (2021, 2)),
    (8, 9): GpuGeneration("Ada", (11, 8), (2022, 3)),
    (9, 0): GpuGeneration("Hopper", (11, 8), (2022, 3)),
    (10, 0): GpuGeneration("Blackwell", (12, 8), (2025, 1)),
    (10, 3): GpuGeneration("Blackwell Ultra", (12, 9), (2025, 2)),
    (11, 0): GpuGeneration("Thor", (13, 0), (2025, 3)),
    (12, 0): GpuGeneration("Blackwell", (12, 8), (2025, 1)),
    (12, 1): GpuGeneration("Blackwell", (12, 9), (2025, 2)),
}


def generation(capability: Pair | None) -> GpuGeneration | None:
    """Give what is known about GPUs of a compute capability; None for unknown ones."""
    return None if capability is None else _BY_CAPABILITY.get(capability)
