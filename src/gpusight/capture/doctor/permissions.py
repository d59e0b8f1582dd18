"""Checks of what this user may measure: the GPU's counters, and samples of the CPU."""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING

from gpusight.capture.doctor.check import Can, Check, Effect, State
from gpusight.capture.doctor.container import container_kind, with_capability
from gpusight.capture.doctor.wsl import is_wsl
from gpusight.capture.request import Tool

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.capture.doctor.hardware import Hardware
    from gpusight.capture.doctor.machine import Machine

SYS_ADMIN = 21
PERFMON = 38
_ADMIN_ONLY = re.compile(r"RmProfilingAdminOnly:\s*(\d)")
_MOST_PARANOID = 2
"""From the kernel's 3 up, unprivileged users get no samples at all."""
_CONTAINER_FIX = "Start the container with the capability:"
_DRIVER_FIX = (
    "Let everybody use the counters (an administrator does it once, then reboots or reloads the "
    "driver), or run as root:"
)
_DRIVER_COMMAND = (
    "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0'"
    " | sudo tee /etc/modprobe.d/nvidia-profiling.conf"
)


class Counters(enum.Enum):
    """Who may read the GPU's counters, seen from this process."""

    OPEN = "open to all users"
    OURS = "for administrators, which this process is"
    PERHAPS = "for administrators; this process has CAP_PERFMON"
    """Recent drivers take that capability, older ones do not."""
    CLOSED = "for administrators only (RmProfilingAdminOnly: 1)"
    UNKNOWN = "not known"


def counters(machine: Machine) -> Counters:
    """Tell whether this process may read the GPU's counters; Linux alone says."""
    setting = _ADMIN_ONLY.search(machine.read("/proc/driver/nvidia/params") or "")
    if setting is None:
        return Counters.UNKNOWN
    if setting[1] == "0":
        return Counters.OPEN
    if has_capability(machine, SYS_ADMIN):
        return Counters.OURS
    return Counters.PERHAPS if has_capability(machine, PERFMON) else Counters.CLOSED


def permission_checks(machine: Machine, hardware: Hardware) -> Iterator[Check]:
    """Look at what this user may measure; Linux only, other systems have other rules."""
    if machine.system != "Linux":
        return
    if hardware.gpus or hardware.driver:
        yield _counters(machine)
    yield _cpu_samples(machine)


def capabilities(machine: Machine) -> int:
    """Give the capabilities that this process really has, as bits."""
    found = re.search(r"^CapEff:\s*([0-9a-f]+)", machine.read("/proc/self/status") or "", re.M)
    return int(found[1], 16) if found else 0


def has_capability(machine: Machine, number: int) -> bool:
    """Tell whether this process has a capability."""
    return bool(capabilities(machine) >> number & 1)


def _counters(machine: Machine) -> Check:
    key, title, found = "counters", "GPU counters", counters(machine)
    if found is Counters.UNKNOWN:
        return _unknown_counters(machine)
    if found is Counters.PERHAPS:
        return Check(
            key,
            title,
            State.LIMITED,
            found.value,
            "Recent drivers accept CAP_PERFMON for counters, older ones want CAP_SYS_ADMIN.",
            "If ncu says ERR_NVGPUCTRPERM, add CAP_SYS_ADMIN.",
            effects=(Effect(Tool.NCU, Can.PARTLY, "older drivers do not take CAP_PERFMON"),),
        )
    if found is Counters.CLOSED:
        return _closed_counters(machine)
    return Check(key, title, State.OK, found.value)


def _closed_counters(machine: Machine) -> Check:
    started = with_capability(container_kind(machine))
    return Check(
        "counters",
        "GPU counters",
        State.MISSING,
        Counters.CLOSED.value,
        "ncu and --gpu-metrics fail with ERR_NVGPUCTRPERM. Timelines (nsys, cupti, torch) need no "
        "counters.",
        _DRIVER_FIX if started is None else _CONTAINER_FIX,
        (started or _DRIVER_COMMAND,),
        (
            Effect(Tool.NCU, Can.NO, "the GPU's counters are for administrators only"),
            Effect(Tool.NSYS, Can.YES, "GPU metrics (--gpu-metrics)"),
        ),
    )


def _unknown_counters(machine: Machine) -> Check:
    if is_wsl(machine):
        fix = (
            "On Windows: NVIDIA Control Panel, Desktop, Enable Developer Settings; then Developer, "
            "Manage GPU Performance Counters, Allow access to all users."
        )
        found = "decided on Windows, which cannot be seen from here"
    else:
        fix = "If ncu says ERR_NVGPUCTRPERM, see docs/capture-containers.md."
        found = "/proc/driver/nvidia/params tells nothing"
    means = "ncu and --gpu-metrics need them; whether they may be used shows when they are."
    return Check("counters", "GPU counters", State.UNKNOWN, found, means, fix)


def _cpu_samples(machine: Machine) -> Check:
    key, title = "cpu-samples", "CPU samples"
    level = (machine.read("/proc/sys/kernel/perf_event_paranoid") or "").strip()
    try:
        paranoid = int(level)
    except ValueError:
        return _no_samples("this kernel has no perf events", "", ())
    if has_capability(machine, SYS_ADMIN) or has_capability(machine, PERFMON):
        return Check(key, title, State.OK, f"allowed (perf_event_paranoid {paranoid}, privileged)")
    if paranoid > _MOST_PARANOID:
        fix = "Lower it until the next boot:"
        return _no_samples(
            f"perf_event_paranoid is {paranoid}, needed is 2 or less",
            fix,
            ("sudo sysctl kernel.perf_event_paranoid=2",),
        )
    if _filtered(machine):
        fix = "Start the container with the capability, or a seccomp profile that allows perf:"
        command = with_capability(container_kind(machine))
        return _no_samples(
            "system calls are filtered (seccomp)", fix, (command,) if command else ()
        )
    return Check(key, title, State.OK, f"allowed (perf_event_paranoid {paranoid})")


def _filtered(machine: Machine) -> bool:
    status = machine.read("/proc/self/status") or ""
    return bool(re.search(r"^Seccomp:\s*2", status, re.M)) and container_kind(machine) is not None


def _no_samples(found: str, fix: str, commands: tuple[str, ...]) -> Check:
    return Check(
        "cpu-samples",
        "CPU samples",
        State.LIMITED,
        found,
        "nsys cannot sample the CPU, which --python-stacks needs. Everything else works.",
        fix,
        commands,
        (Effect(Tool.NSYS, Can.YES, "CPU samples (--python-stacks)"),),
    )
