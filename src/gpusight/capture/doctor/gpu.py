"""Checks of the GPUs, the driver, and who else holds them."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from gpusight.capture.doctor.check import Can, Check, Effect, State
from gpusight.capture.doctor.hardware import SMI_PLACES
from gpusight.capture.request import Tool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.capture.doctor.hardware import Hardware
    from gpusight.capture.doctor.machine import Machine

_DRIVER_ERRORS = {
    100: "no CUDA device",
    802: "the GPUs are not yet initialised; on NVSwitch machines nvidia-fabricmanager must run",
    803: "the driver's library and its kernel module are of different versions",
    999: "unknown error, often a GPU that needs a reset",
}
_DRIVER_FIXES = {802: "sudo systemctl start nvidia-fabricmanager", 803: "sudo reboot"}
_MONITORS = ("nv-hostengine", "dcgm-exporter")


def gpu_checks(machine: Machine, hardware: Hardware) -> Iterator[Check]:
    """Look at the GPUs and the driver."""
    yield _gpus(machine, hardware)
    yield _driver(hardware)
    if any(gpu.mig for gpu in hardware.gpus):
        yield _mig(hardware)
    monitor = _monitor(machine)
    if monitor:
        yield _dcgm(monitor)


def _gpus(machine: Machine, hardware: Hardware) -> Check:
    title = "GPU"
    if not hardware.gpus:
        return Check("gpu", title, State.MISSING, _why_none(machine, hardware), *_NO_GPU)
    counts = Counter((gpu.name, gpu.capability) for gpu in hardware.gpus)
    found = "; ".join(
        f"{count} x {name}" + (f" (compute capability {cap[0]}.{cap[1]})" if cap else "")
        for (name, cap), count in counts.items()
    )
    if hardware.usable:
        return Check("gpu", title, State.OK, found)
    return Check(
        "gpu", title, State.LIMITED, f"{found}, hidden from CUDA", *_hidden(machine, hardware)
    )


def _why_none(machine: Machine, hardware: Hardware) -> str:
    if hardware.complaint:
        return f"nvidia-smi: {hardware.complaint}"
    if hardware.failed:
        return f"CUDA error {hardware.failed}: {_DRIVER_ERRORS.get(hardware.failed, 'unknown')}"
    if machine.system == "Darwin":
        return "macOS has no NVIDIA GPUs"
    smi = machine.which("nvidia-smi") or any(map(machine.exists, SMI_PLACES))
    return "none found" if smi else "none found (no nvidia-smi, no CUDA driver)"


def _nothing_to_record(why: str) -> tuple[Effect, ...]:
    return (
        Effect(Tool.NSYS, Can.PARTLY, f"{why}: NVTX ranges and CPU work only"),
        Effect(Tool.NCU, Can.NO, why),
        Effect(Tool.CUPTI, Can.NO, why),
        Effect(Tool.TORCH, Can.PARTLY, f"{why}: CPU operators only"),
    )


_NO_GPU = (
    "There is no GPU work to record here. Reading captures made elsewhere needs no GPU.",
    "Record on the machine with the GPU, then copy the capture here.",
    (),
    _nothing_to_record("no GPU"),
)


def _hidden(
    machine: Machine, hardware: Hardware
) -> tuple[str, str, tuple[str, ...], tuple[Effect, ...]]:
    means = "Programs started from here find no GPU."
    effects = _nothing_to_record("the GPU is hidden from CUDA")
    if "CUDA_VISIBLE_DEVICES" in machine.environment and hardware.failed in {0, 100}:
        return means, "CUDA_VISIBLE_DEVICES leaves none.", ("unset CUDA_VISIBLE_DEVICES",), effects
    why = _DRIVER_ERRORS.get(hardware.failed, f"CUDA error {hardware.failed}")
    command = _DRIVER_FIXES.get(hardware.failed)
    return means, f"CUDA says: {why}.", (command,) if command else (), effects


def _driver(hardware: Hardware) -> Check:
    cuda = "" if hardware.cuda is None else f"CUDA up to {hardware.cuda[0]}.{hardware.cuda[1]}"
    found = ", ".join(filter(None, (hardware.driver, cuda)))
    if hardware.driver and hardware.cuda:
        return Check("driver", "Driver", State.OK, found)
    if hardware.driver:
        return Check(
            "driver",
            "Driver",
            State.LIMITED,
            f"{found}, but its library libcuda is not found",
            "CUDA programs cannot start here.",
            "In a container, let the runtime mount the driver (docker run --gpus all); elsewhere "
            "install the driver's user-space part.",
            effects=_nothing_to_record("no libcuda"),
        )
    if found:
        return Check("driver", "Driver", State.OK, found)
    fix = "Install NVIDIA's driver for the GPU." if hardware.gpus else ""
    return Check("driver", "Driver", State.MISSING, "not found", fix=fix)


def _mig(hardware: Hardware) -> Check:
    count = sum(gpu.mig for gpu in hardware.gpus)
    return Check(
        "mig",
        "MIG",
        State.LIMITED,
        f"on for {count} of {len(hardware.gpus)} GPUs",
        "Each instance is profiled by itself. Counters shared with other instances vary with what "
        "those do, and GPU metrics (--gpu-metrics) may not be available.",
        effects=(
            Effect(Tool.NSYS, Can.YES, "GPU metrics (--gpu-metrics) may be missing with MIG"),
            Effect(Tool.NCU, Can.YES, "counters of units shared between MIG instances"),
        ),
    )


def _monitor(machine: Machine) -> str | None:
    """Find a process that samples the GPUs' counters all the time."""
    numbers = (name for name in machine.names("/proc") if name.isdecimal())
    commands = ((machine.read(f"/proc/{number}/comm") or "").strip() for number in numbers)
    return next((command for command in commands if command in _MONITORS), None)


def _dcgm(monitor: str) -> Check:
    return Check(
        "dcgm",
        "Other profilers",
        State.LIMITED,
        f"{monitor} runs, which may hold the GPU's counters",
        "One tool at a time may use the counters: ncu and --gpu-metrics fail with a resource that "
        "is unavailable while DCGM samples profiling metrics.",
        "Pause its profiling metrics while you record, then resume them:",
        ("dcgmi profile --pause", "dcgmi profile --resume"),
        (
            Effect(Tool.NCU, Can.PARTLY, f"{monitor} may hold the counters"),
            Effect(Tool.NSYS, Can.YES, f"GPU metrics (--gpu-metrics) while {monitor} samples"),
        ),
    )
