"""Checks of the GPUs, the driver, and who else holds them."""

from __future__ import annotations

import json
import re
import sys
from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from gpusight.recording.doctor.machine import Ability, CheckEffect, CheckState, MachineCheck
from gpusight.recording.request import Tool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.recording.doctor.machine import CommandResult, Machine


_PROBES = Path(__file__).parent / "probes.py"
_SMI_PATHS = ("/usr/lib/wsl/lib/nvidia-smi", "/usr/local/nvidia/bin/nvidia-smi")
_FIELDS = ("name", "driver_version", "compute_cap", "mig.mode.current")
_OLD_FIELDS = ("name", "driver_version", "mig.mode.current")
"""Drivers before 510 do not report the compute capability."""
_MODULE = re.compile(r"Kernel Module(?: for \S+)?\s+([\d.]+)")


@dataclass(frozen=True, slots=True)
class InstalledGpu:
    """One GPU."""

    name: str
    capability: Pair | None = None
    mig: bool = False


@dataclass(frozen=True, slots=True)
class InstalledHardware:
    """What nvidia-smi and the driver's library report."""

    gpus: tuple[InstalledGpu, ...] = ()
    """All of the machine; where nvidia-smi did not answer, those visible to CUDA."""
    driver: str | None = None
    """The driver's version, such as 580.82.07."""
    cuda: Pair | None = None
    """The newest CUDA that the driver supports."""
    library: bool | None = None
    """The driver's library could be loaded; None: it was not queried."""
    visible: int | None = None
    """GPUs visible to CUDA programs started from here."""
    failed: int = 0
    """The error of the driver's library when queried for GPUs; 0: none."""
    complaint: str = ""
    """The last line of an nvidia-smi that failed."""

    @property
    def capabilities(self) -> tuple[Pair, ...]:
        """The compute capabilities that are known, each once."""
        return tuple(dict.fromkeys(g.capability for g in self.gpus if g.capability))

    @property
    def usable(self) -> bool:
        """Return whether a program started from here finds a GPU."""
        return bool(self.gpus) and self.visible != 0 and not self.failed


def survey(machine: Machine) -> InstalledHardware:
    """List the GPUs of the machine; nothing is initialized in this process."""
    answer = probe(machine, sys.executable, "probe_driver")
    library = answer if isinstance(answer, dict) else {}
    gpus, driver, complaint = _query_smi(machine)
    visible = tuple(
        InstalledGpu(str(d["name"]), (d["capability"][0], d["capability"][1]))
        for d in library.get("devices", ())
    )
    known = {gpu.name: gpu.capability for gpu in visible}
    if not driver:
        module = _MODULE.search(machine.read("/proc/driver/nvidia/version") or "")
        driver = module[1] if module else None
    version = library.get("version") or 0
    return InstalledHardware(
        gpus=tuple(replace(g, capability=g.capability or known.get(g.name)) for g in gpus)
        or visible,
        driver=driver,
        cuda=(version // 1000, version % 1000 // 10) if version else None,
        library=library.get("library"),
        visible=len(visible) if library.get("library") else None,
        failed=library.get("failed", 0),
        complaint=complaint,
    )


def probe(machine: Machine, python: str, name: str, timeout_s: float = 20.0) -> Any:
    """Run one of `probes.py` with a Python; returns its answer, or how it failed to answer."""
    ran = machine.run([python, str(_PROBES), name], timeout_s)
    if ran is None or not ran.fine:
        return ran
    try:
        return json.loads(ran.out.splitlines()[-1])
    except (IndexError, ValueError):
        return ran


def last_line(ran: CommandResult | None) -> str:
    """Return the last line that a failed program printed."""
    if ran is None:
        return "it does not start"
    if ran.code is None:
        return "it timed out"
    lines = [line.strip() for line in (ran.err or ran.out).splitlines() if line.strip()]
    return lines[-1] if lines else f"it ended with code {ran.code}"


def _query_smi(machine: Machine) -> tuple[list[InstalledGpu], str | None, str]:
    """Return the GPUs and the driver that nvidia-smi lists, and why it does not answer."""
    program = machine.which("nvidia-smi") or next(filter(machine.exists, _SMI_PATHS), None)
    if program is None:
        return [], None, ""
    ran: CommandResult | None = None
    for fields in (_FIELDS, _OLD_FIELDS):
        query = [program, f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
        ran = machine.run(query)
        if ran is None or not ran.fine:
            continue
        rows = [
            dict(zip(fields, map(str.strip, line.split(",")), strict=False))
            for line in ran.out.splitlines()
            if line.strip()
        ]
        gpus = []
        for row in rows:
            number = re.fullmatch(r"(\d+)\.(\d+)", row.get("compute_cap", ""))
            capability = (int(number[1]), int(number[2])) if number else None
            mig = row.get("mig.mode.current") == "Enabled"
            gpus.append(InstalledGpu(row["name"], capability, mig))
        return gpus, rows[0]["driver_version"] if rows else None, ""
    return [], None, last_line(ran)


_DRIVER_ERRORS = {
    100: "no CUDA device",
    802: "the GPUs are not initialized yet; NVSwitch systems need nvidia-fabricmanager",
    803: "driver library and kernel module have different versions",
    999: "unknown error, often a GPU that needs a reset",
}
_DRIVER_FIXES = {802: "sudo systemctl start nvidia-fabricmanager", 803: "sudo reboot"}
_MONITORS = ("nv-hostengine", "dcgm-exporter")
"""Processes that sample the GPUs' counters all the time."""


def gpu_checks(machine: Machine, hardware: InstalledHardware) -> Iterator[MachineCheck]:
    """Look at the GPUs and the driver."""
    yield _gpus(machine, hardware)
    yield _driver(hardware)
    if any(gpu.mig for gpu in hardware.gpus):
        yield _mig(hardware)
    numbers = (name for name in machine.names("/proc") if name.isdecimal())
    commands = ((machine.read(f"/proc/{number}/comm") or "").strip() for number in numbers)
    monitor = next((command for command in commands if command in _MONITORS), None)
    if monitor:
        yield _dcgm(monitor)


def _gpus(machine: Machine, hardware: InstalledHardware) -> MachineCheck:
    if not hardware.gpus:
        return MachineCheck(
            "gpu", "GPU", CheckState.MISSING, _why_none(machine, hardware), *_NO_GPU
        )
    counts = Counter((gpu.name, gpu.capability) for gpu in hardware.gpus)
    text = "; ".join(
        f"{count} x {name}" + (f" (compute capability {cap[0]}.{cap[1]})" if cap else "")
        for (name, cap), count in counts.items()
    )
    if hardware.usable:
        return MachineCheck("gpu", "GPU", CheckState.OK, text)
    means = "Programs started from this shell find no GPU."
    effects = _nothing_to_record("the GPU is hidden from CUDA")
    if "CUDA_VISIBLE_DEVICES" in machine.environment and hardware.failed in {0, 100}:
        fix, command = "CUDA_VISIBLE_DEVICES hides all GPUs.", "unset CUDA_VISIBLE_DEVICES"
    else:
        error = _DRIVER_ERRORS.get(hardware.failed, f"CUDA error {hardware.failed}")
        fix, command = f"CUDA error: {error}.", _DRIVER_FIXES.get(hardware.failed, "")
    commands = (command,) if command else ()
    text = f"{text}, hidden from CUDA"
    return MachineCheck("gpu", "GPU", CheckState.LIMITED, text, means, fix, commands, effects)


def _why_none(machine: Machine, hardware: InstalledHardware) -> str:
    if hardware.complaint:
        return f"nvidia-smi: {hardware.complaint}"
    if hardware.failed:
        return f"CUDA error {hardware.failed}: {_DRIVER_ERRORS.get(hardware.failed, 'unknown')}"
    if machine.system == "Darwin":
        return "macOS has no NVIDIA GPUs"
    smi = machine.which("nvidia-smi") or any(map(machine.exists, _SMI_PATHS))
    return "none found" if smi else "none found (no nvidia-smi, no CUDA driver)"


def _nothing_to_record(why: str) -> tuple[CheckEffect, ...]:
    return (
        CheckEffect(Tool.NSYS, Ability.PARTLY, f"{why}: NVTX ranges and CPU work only"),
        CheckEffect(Tool.NCU, Ability.NO, why),
        CheckEffect(Tool.CUPTI, Ability.NO, why),
        CheckEffect(Tool.TORCH, Ability.PARTLY, f"{why}: CPU operators only"),
    )


_NO_GPU = (
    "No GPU work can be recorded here. Reading captures from other machines needs no GPU.",
    "Record on the machine with the GPU, then copy the capture here.",
    (),
    _nothing_to_record("no GPU"),
)


def _driver(hardware: InstalledHardware) -> MachineCheck:
    cuda = "" if hardware.cuda is None else f"CUDA up to {hardware.cuda[0]}.{hardware.cuda[1]}"
    text = ", ".join(filter(None, (hardware.driver, cuda)))
    if hardware.driver and hardware.cuda:
        return MachineCheck("driver", "Driver", CheckState.OK, text)
    if hardware.driver:
        return MachineCheck(
            "driver",
            "Driver",
            CheckState.LIMITED,
            f"{text}, but libcuda was not found",
            "CUDA programs cannot start here.",
            "In a container, mount the driver (docker run --gpus all); elsewhere "
            "install the driver's user-space part.",
            effects=_nothing_to_record("no libcuda"),
        )
    if text:
        return MachineCheck("driver", "Driver", CheckState.OK, text)
    fix = "Install the NVIDIA driver for the GPU." if hardware.gpus else ""
    return MachineCheck("driver", "Driver", CheckState.MISSING, "not found", fix=fix)


def _mig(hardware: InstalledHardware) -> MachineCheck:
    count = sum(gpu.mig for gpu in hardware.gpus)
    return MachineCheck(
        "mig",
        "MIG",
        CheckState.LIMITED,
        f"on for {count} of {len(hardware.gpus)} GPUs",
        "Each instance is profiled separately. Counters shared with other instances vary with what "
        "those do, and GPU metrics (--gpu-metrics) may not be available.",
        effects=(
            CheckEffect(
                Tool.NSYS, Ability.YES, "GPU metrics (--gpu-metrics) may be missing with MIG"
            ),
            CheckEffect(Tool.NCU, Ability.YES, "counters of units shared between MIG instances"),
        ),
    )


def _dcgm(monitor: str) -> MachineCheck:
    return MachineCheck(
        "dcgm",
        "Other profilers",
        CheckState.LIMITED,
        f"{monitor} runs, which may be using the GPU performance counters",
        "Only one tool at a time can use the counters: ncu and --gpu-metrics fail with a "
        "resource that "
        "is unavailable while DCGM samples profiling metrics.",
        "Pause its profiling metrics while you record, then resume them:",
        ("dcgmi profile --pause", "dcgmi profile --resume"),
        (
            CheckEffect(Tool.NCU, Ability.PARTLY, f"{monitor} may be using the counters"),
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


def generation(capability: Pair) -> GpuGeneration | None:
    """Look up the GPUs of a compute capability; None for unknown ones."""
    return _BY_CAPABILITY.get(capability)
