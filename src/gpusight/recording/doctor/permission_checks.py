"""Checks of what this user may measure, also in a container and in WSL."""

from __future__ import annotations

import enum
import re
from typing import TYPE_CHECKING

from gpusight.recording.doctor.machine import Ability, CheckEffect, CheckState, MachineCheck
from gpusight.recording.request import Tool
from gpusight.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.recording.doctor.gpu_checks import InstalledHardware
    from gpusight.recording.doctor.machine import Machine


_VARIABLES = {
    "KUBERNETES_SERVICE_HOST": "Kubernetes",
    "APPTAINER_CONTAINER": "Apptainer",
    "SINGULARITY_CONTAINER": "Singularity",
}
_FILES = {"/run/.containerenv": "Podman", "/.dockerenv": "Docker"}
_CGROUPS = {
    "kubepods": "Kubernetes",
    "docker": "Docker",
    "libpod": "Podman",
    "containerd": "containerd",
}
_MIN_SHM_BYTES = 1 << 30
"""DataLoader workers pass batches through shared memory; Docker gives 64 MB unless told."""


def container_kind(machine: Machine) -> str | None:
    """Name what kind of container this looks like; None for none."""
    for variable, kind in _VARIABLES.items():
        if variable in machine.environment:
            return kind
    for path, kind in _FILES.items():
        if machine.exists(path):
            return kind
    cgroup = machine.read("/proc/1/cgroup") or ""
    return next((kind for word, kind in _CGROUPS.items() if word in cgroup), None)


def with_capability(kind: str | None) -> str | None:
    """Say how such a container gets CAP_SYS_ADMIN; None where it cannot have more than the user."""
    return None if kind in _USERS_OWN or kind is None else _CAPABLE.get(kind, _CAPABLE["Docker"])


_USERS_OWN = ("Apptainer", "Singularity")
_CAPABLE = {
    "Docker": "docker run --gpus all --cap-add=SYS_ADMIN …",
    "Podman": "sudo podman run --device nvidia.com/gpu=all --cap-add=SYS_ADMIN …",
    "Kubernetes": "securityContext: {capabilities: {add: [SYS_ADMIN]}}",
}


def container_checks(machine: Machine) -> Iterator[MachineCheck]:
    """Look at the container and what it leaves out."""
    kind = container_kind(machine)
    if kind is None:
        return
    yield _devices(machine, kind)
    shared = machine.free_bytes("/dev/shm")  # noqa: S108 - the kernel's place, not ours
    if shared is not None and shared < _MIN_SHM_BYTES:
        yield _small_shm(kind, shared)


def _devices(machine: Machine, kind: str) -> MachineCheck:
    names = machine.names("/dev")
    gpus = [name for name in names if re.fullmatch(r"nvidia\d+", name)]
    if gpus or "dxg" in names:
        return MachineCheck(
            "container", "Container", CheckState.OK, f"looks like {kind}; GPUs are mounted"
        )
    return MachineCheck(
        "container",
        "Container",
        CheckState.LIMITED,
        f"looks like {kind}; no GPU is mounted",
        "If the machine has a GPU, programs in this container do not see it.",
        "Start it with the GPUs (NVIDIA's container toolkit must be installed on the host):",
        _START.get(kind, ("docker run --gpus all …",)),
    )


_START = {
    "Podman": ("podman run --device nvidia.com/gpu=all …",),
    "Apptainer": ("apptainer exec --nv IMAGE …",),
    "Singularity": ("singularity exec --nv IMAGE …",),
    "Kubernetes": ("resources: {limits: {nvidia.com/gpu: 1}}",),
}


def _small_shm(kind: str, shared: int) -> MachineCheck:
    fix = {
        "Kubernetes": "Mount an emptyDir with medium: Memory at /dev/shm.",
        "Podman": "podman run --shm-size=8g …",
    }.get(kind, "docker run --shm-size=8g …")
    return MachineCheck(
        "shared-memory",
        "Shared memory",
        CheckState.LIMITED,
        f"{format_bytes(shared)} free in /dev/shm",
        "Programs with DataLoader workers may stop with a bus error, recorded or not.",
        "Give the container more:",
        (fix,),
    )


LIBRARY = "/usr/lib/wsl/lib/libcuda.so.1"
_NCU_DRIVER = 525
"""Nsight Compute profiles in WSL2 from this Windows driver on (Windows 11; 545 on Windows 10)."""


def is_wsl(machine: Machine) -> bool:
    """Tell whether this is Linux inside Windows."""
    return machine.system == "Linux" and "microsoft" in machine.kernel.lower()


def wsl_checks(machine: Machine, hardware: InstalledHardware) -> Iterator[MachineCheck]:
    """Look at what WSL leaves out."""
    if not is_wsl(machine):
        return
    if machine.kernel.startswith("4.4."):
        yield _first_version()
    elif not machine.exists(LIBRARY):
        yield _no_library()
    else:
        yield _second_version(hardware)


def _first_version() -> MachineCheck:
    return MachineCheck(
        "wsl",
        "WSL",
        CheckState.MISSING,
        "version 1, which has no GPU",
        "CUDA programs cannot run here.",
        "Convert the distribution to WSL2 (in PowerShell):",
        ("wsl --set-version DISTRIBUTION 2",),
        tuple(CheckEffect(tool, Ability.NO, "WSL 1 has no GPU") for tool in (Tool.NCU, Tool.CUPTI)),
    )


def _no_library() -> MachineCheck:
    return MachineCheck(
        "wsl",
        "WSL",
        CheckState.MISSING,
        "version 2, but Windows does not offer its driver",
        "CUDA programs find no GPU.",
        "Install NVIDIA's driver on Windows (not inside WSL), then restart WSL (in PowerShell):",
        ("wsl --shutdown",),
    )


def _second_version(hardware: InstalledHardware) -> MachineCheck:
    return MachineCheck(
        "wsl",
        "WSL",
        CheckState.LIMITED,
        "version 2, with the driver of Windows",
        "Kernels are recorded with a recent driver and nsys; older ones record the calls but no "
        "kernels. GPU metrics and CPU samples are not available, and ncu needs Windows driver 525 "
        "or newer (545 on Windows 10).",
        "Record something short, then see whether kernels came; if not, update the driver on "
        "Windows and nsys here:",
        ("gpusight info CAPTURE",),
        (
            CheckEffect(Tool.NSYS, Ability.PARTLY, "WSL2: no GPU metrics, no CPU samples"),
            _ncu(hardware),
            CheckEffect(
                Tool.TORCH, Ability.PARTLY, "WSL2: kernels only with a recent driver and PyTorch"
            ),
            CheckEffect(Tool.CUPTI, Ability.PARTLY, "WSL2: kernels only with a recent driver"),
        ),
    )


def _ncu(hardware: InstalledHardware) -> CheckEffect:
    major = (hardware.driver or "").partition(".")[0]
    if major.isdecimal() and int(major) < _NCU_DRIVER:
        return CheckEffect(
            Tool.NCU, Ability.NO, f"WSL2 with driver {hardware.driver}: 525 is needed"
        )
    return CheckEffect(Tool.NCU, Ability.PARTLY, "WSL2: counters must be allowed on Windows")


SYS_ADMIN = 21
PERFMON = 38
_ADMIN_ONLY = re.compile(r"RmProfilingAdminOnly:\s*(\d)")
_MAX_PARANOID = 2
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


class CounterAccess(enum.Enum):
    """Who may read the GPU's counters, seen from this process."""

    OPEN = "open to all users"
    OURS = "for administrators, which this process is"
    PERHAPS = "for administrators; this process has CAP_PERFMON"
    """Recent drivers take that capability, older ones do not."""
    CLOSED = "for administrators only (RmProfilingAdminOnly: 1)"
    UNKNOWN = "not known"


def counters(machine: Machine) -> CounterAccess:
    """Tell whether this process may read the GPU's counters; Linux alone says."""
    setting = _ADMIN_ONLY.search(machine.read("/proc/driver/nvidia/params") or "")
    if setting is None:
        return CounterAccess.UNKNOWN
    if setting[1] == "0":
        return CounterAccess.OPEN
    if has_capability(machine, SYS_ADMIN):
        return CounterAccess.OURS
    return CounterAccess.PERHAPS if has_capability(machine, PERFMON) else CounterAccess.CLOSED


def permission_checks(machine: Machine, hardware: InstalledHardware) -> Iterator[MachineCheck]:
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


def _counters(machine: Machine) -> MachineCheck:
    key, title, found = "counters", "GPU counters", counters(machine)
    if found is CounterAccess.UNKNOWN:
        return _unknown_counters(machine)
    if found is CounterAccess.PERHAPS:
        return MachineCheck(
            key,
            title,
            CheckState.LIMITED,
            found.value,
            "Recent drivers accept CAP_PERFMON for counters, older ones want CAP_SYS_ADMIN.",
            "If ncu says ERR_NVGPUCTRPERM, add CAP_SYS_ADMIN.",
            effects=(
                CheckEffect(Tool.NCU, Ability.PARTLY, "older drivers do not take CAP_PERFMON"),
            ),
        )
    if found is CounterAccess.CLOSED:
        return _closed_counters(machine)
    return MachineCheck(key, title, CheckState.OK, found.value)


def _closed_counters(machine: Machine) -> MachineCheck:
    started = with_capability(container_kind(machine))
    return MachineCheck(
        "counters",
        "GPU counters",
        CheckState.MISSING,
        CounterAccess.CLOSED.value,
        "ncu and --gpu-metrics fail with ERR_NVGPUCTRPERM. Timelines (nsys, cupti, torch) need no "
        "counters.",
        _DRIVER_FIX if started is None else _CONTAINER_FIX,
        (started or _DRIVER_COMMAND,),
        (
            CheckEffect(Tool.NCU, Ability.NO, "the GPU's counters are for administrators only"),
            CheckEffect(Tool.NSYS, Ability.YES, "GPU metrics (--gpu-metrics)"),
        ),
    )


def _unknown_counters(machine: Machine) -> MachineCheck:
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
    return MachineCheck("counters", "GPU counters", CheckState.UNKNOWN, found, means, fix)


def _cpu_samples(machine: Machine) -> MachineCheck:
    key, title = "cpu-samples", "CPU samples"
    level = (machine.read("/proc/sys/kernel/perf_event_paranoid") or "").strip()
    try:
        paranoid = int(level)
    except ValueError:
        return _no_samples("this kernel has no perf events", "", ())
    if has_capability(machine, SYS_ADMIN) or has_capability(machine, PERFMON):
        return MachineCheck(
            key, title, CheckState.OK, f"allowed (perf_event_paranoid {paranoid}, privileged)"
        )
    if paranoid > _MAX_PARANOID:
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
    return MachineCheck(key, title, CheckState.OK, f"allowed (perf_event_paranoid {paranoid})")


def _filtered(machine: Machine) -> bool:
    status = machine.read("/proc/self/status") or ""
    return bool(re.search(r"^Seccomp:\s*2", status, re.M)) and container_kind(machine) is not None


def _no_samples(found: str, fix: str, commands: tuple[str, ...]) -> MachineCheck:
    return MachineCheck(
        "cpu-samples",
        "CPU samples",
        CheckState.LIMITED,
        found,
        "nsys cannot sample the CPU, which --python-stacks needs. Everything else works.",
        fix,
        commands,
        (CheckEffect(Tool.NSYS, Ability.YES, "CPU samples (--python-stacks)"),),
    )
