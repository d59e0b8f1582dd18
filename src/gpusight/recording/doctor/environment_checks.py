"""Checks of what this user may measure, of containers and WSL, of disks and of other tools."""

from __future__ import annotations

import enum
import re
import tempfile
from typing import TYPE_CHECKING

from gpusight.errors import DOCS_URL
from gpusight.recording.debug_settings import debug_settings
from gpusight.recording.doctor.machine import Ability, CheckEffect, CheckState, MachineCheck, shown
from gpusight.recording.inside.environment import (
    INJECTIONS,
    current_rank,
    disagreement,
    surrounding_profiler,
)
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
"""DataLoader workers pass batches through shared memory; Docker's default is 64 MB."""


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
    """Return how a container gets CAP_SYS_ADMIN; None where it cannot have more than the user."""
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
    names = machine.names("/dev")
    if "dxg" in names or any(re.fullmatch(r"nvidia\d+", name) for name in names):
        text = f"looks like {kind}; GPUs are mounted"
        yield MachineCheck("container", "Container", CheckState.OK, text)
    else:
        yield MachineCheck(
            "container",
            "Container",
            CheckState.LIMITED,
            f"looks like {kind}; no GPU is mounted",
            "Programs in this container cannot use the host's GPU.",
            "Start the container with GPUs (needs the NVIDIA Container Toolkit on the host):",
            _START.get(kind, ("docker run --gpus all …",)),
        )
    shared = machine.free_bytes("/dev/shm")  # noqa: S108 - the kernel's place, not ours
    if shared is not None and shared < _MIN_SHM_BYTES:
        yield MachineCheck(
            "shared-memory",
            "Shared memory",
            CheckState.LIMITED,
            f"{format_bytes(shared)} free in /dev/shm",
            "DataLoader workers may crash with a bus error.",
            "Increase the shared memory of the container:",
            (_MORE_SHM.get(kind, "docker run --shm-size=8g …"),),
        )


_START = {
    "Podman": ("podman run --device nvidia.com/gpu=all …",),
    "Apptainer": ("apptainer exec --nv IMAGE …",),
    "Singularity": ("singularity exec --nv IMAGE …",),
    "Kubernetes": ("resources: {limits: {nvidia.com/gpu: 1}}",),
}
_MORE_SHM = {
    "Kubernetes": "Mount an emptyDir with medium: Memory at /dev/shm.",
    "Podman": "podman run --shm-size=8g …",
}
_WSL_LIBRARY = "/usr/lib/wsl/lib/libcuda.so.1"
_NCU_DRIVER = 525
"""Nsight Compute profiles in WSL2 from this Windows driver on (Windows 11; 545 on Windows 10)."""


def is_wsl(machine: Machine) -> bool:
    """Return whether this is Linux inside Windows."""
    return machine.system == "Linux" and "microsoft" in machine.kernel.lower()


def wsl_checks(machine: Machine, hardware: InstalledHardware) -> Iterator[MachineCheck]:
    """Look at what WSL leaves out."""
    if not is_wsl(machine):
        return
    if machine.kernel.startswith("4.4."):
        no_gpu = "WSL 1 has no GPU support"
        yield MachineCheck(
            "wsl",
            "WSL",
            CheckState.MISSING,
            "version 1, which has no GPU support",
            "CUDA programs cannot run here.",
            "Convert the distribution to WSL2 (in PowerShell):",
            ("wsl --set-version DISTRIBUTION 2",),
            tuple(CheckEffect(tool, Ability.NO, no_gpu) for tool in (Tool.NCU, Tool.CUPTI)),
        )
    elif not machine.exists(_WSL_LIBRARY):
        yield MachineCheck(
            "wsl",
            "WSL",
            CheckState.MISSING,
            "version 2, but the Windows driver is not available in it",
            "CUDA programs do not find a GPU.",
            "Install the NVIDIA driver on Windows (not inside WSL), then restart WSL "
            "(in PowerShell):",
            ("wsl --shutdown",),
        )
    else:
        yield _wsl2(hardware)


def _wsl2(hardware: InstalledHardware) -> MachineCheck:
    major = (hardware.driver or "").partition(".")[0]
    ncu = CheckEffect(
        Tool.NCU, Ability.PARTLY, "WSL2: GPU performance counters must be enabled on Windows"
    )
    if major.isdecimal() and int(major) < _NCU_DRIVER:
        why = f"WSL2 with driver {hardware.driver}: 525 is needed"
        ncu = CheckEffect(Tool.NCU, Ability.NO, why)
    return MachineCheck(
        "wsl",
        "WSL",
        CheckState.LIMITED,
        "version 2, with the Windows driver",
        "Recording kernels needs a recent driver and nsys; older ones record API calls only. "
        "GPU metrics and CPU samples are not available, and ncu needs Windows driver 525 "
        "or newer (545 on Windows 10).",
        "Record a short run and check that it has kernels; if not, update the driver on "
        "Windows and nsys here:",
        ("gpusight info CAPTURE",),
        (
            CheckEffect(Tool.NSYS, Ability.PARTLY, "WSL2: no GPU metrics, no CPU samples"),
            ncu,
            CheckEffect(
                Tool.TORCH, Ability.PARTLY, "WSL2: kernels only with a recent driver and PyTorch"
            ),
            CheckEffect(Tool.CUPTI, Ability.PARTLY, "WSL2: kernels only with a recent driver"),
        ),
    )


_SYS_ADMIN = 21
_PERFMON = 38
_ADMIN_ONLY = re.compile(r"RmProfilingAdminOnly:\s*(\d)")
_MAX_PARANOID = 2
"""From the kernel's 3 up, unprivileged users get no samples at all."""
_CONTAINER_FIX = "Start the container with the capability:"
_DRIVER_FIX = (
    "Allow all users to read the counters (as administrator; then reboot or reload the "
    "driver), or run as root:"
)
_DRIVER_COMMAND = (
    "echo 'options nvidia NVreg_RestrictProfilingToAdminUsers=0'"
    " | sudo tee /etc/modprobe.d/nvidia-profiling.conf"
)


class CounterAccess(enum.Enum):
    """Who may read the GPU's counters, seen from this process."""

    OPEN = "open to all users"
    OURS = "administrators only; this process runs as administrator"
    PERHAPS = "administrators only; this process has CAP_PERFMON"
    """Recent drivers accept that capability, older ones do not."""
    CLOSED = "administrators only (RmProfilingAdminOnly: 1)"
    UNKNOWN = "not known"


def counters(machine: Machine) -> CounterAccess:
    """Return whether this process may read the GPU's counters; only known on Linux."""
    setting = _ADMIN_ONLY.search(machine.read("/proc/driver/nvidia/params") or "")
    if setting is None:
        return CounterAccess.UNKNOWN
    if setting[1] == "0":
        return CounterAccess.OPEN
    if _has_capability(machine, _SYS_ADMIN):
        return CounterAccess.OURS
    return CounterAccess.PERHAPS if _has_capability(machine, _PERFMON) else CounterAccess.CLOSED


def permission_checks(machine: Machine, hardware: InstalledHardware) -> Iterator[MachineCheck]:
    """Look at what this user may measure; Linux only, other systems have other rules."""
    if machine.system != "Linux":
        return
    if hardware.gpus or hardware.driver:
        yield _counters(machine)
    yield _cpu_samples(machine)


def _has_capability(machine: Machine, number: int) -> bool:
    """Return whether a capability is in effect for this process."""
    bits = re.search(r"^CapEff:\s*([0-9a-f]+)", machine.read("/proc/self/status") or "", re.M)
    return bits is not None and bool(int(bits[1], 16) >> number & 1)


def _counters(machine: Machine) -> MachineCheck:
    key, title, access = "counters", "GPU counters", counters(machine)
    if access is CounterAccess.UNKNOWN:
        return _unknown_counters(machine)
    if access is CounterAccess.PERHAPS:
        return MachineCheck(
            key,
            title,
            CheckState.LIMITED,
            access.value,
            "Recent drivers accept CAP_PERFMON for counters, older ones need CAP_SYS_ADMIN.",
            "If ncu reports ERR_NVGPUCTRPERM, add CAP_SYS_ADMIN.",
            effects=(
                CheckEffect(Tool.NCU, Ability.PARTLY, "older drivers do not accept CAP_PERFMON"),
            ),
        )
    if access is not CounterAccess.CLOSED:
        return MachineCheck(key, title, CheckState.OK, access.value)
    start_container = with_capability(container_kind(machine))
    return MachineCheck(
        key,
        title,
        CheckState.MISSING,
        access.value,
        "ncu and --gpu-metrics fail with ERR_NVGPUCTRPERM. Timelines (nsys, cupti, torch) need no "
        "counters.",
        _DRIVER_FIX if start_container is None else _CONTAINER_FIX,
        (start_container or _DRIVER_COMMAND,),
        (
            CheckEffect(
                Tool.NCU, Ability.NO, "GPU performance counters are restricted to administrators"
            ),
            CheckEffect(Tool.NSYS, Ability.YES, "GPU metrics (--gpu-metrics)"),
        ),
    )


def _unknown_counters(machine: Machine) -> MachineCheck:
    if is_wsl(machine):
        fix = (
            "On Windows: NVIDIA Control Panel, Desktop, Enable Developer Settings; then Developer, "
            "Manage GPU Performance Counters, Allow access to all users."
        )
        text = "set on Windows; not visible from here"
    else:
        fix = f"If ncu reports ERR_NVGPUCTRPERM, see {DOCS_URL}/capture-containers.md"
        text = "not in /proc/driver/nvidia/params"
    means = "ncu and --gpu-metrics need them. Access is only known once they run."
    return MachineCheck("counters", "GPU counters", CheckState.UNKNOWN, text, means, fix)


def _cpu_samples(machine: Machine) -> MachineCheck:
    key, title = "cpu-samples", "CPU samples"
    level = (machine.read("/proc/sys/kernel/perf_event_paranoid") or "").strip()
    privileged = _has_capability(machine, _SYS_ADMIN) or _has_capability(machine, _PERFMON)
    container = container_kind(machine)
    seccomp = re.search(r"^Seccomp:\s*2", machine.read("/proc/self/status") or "", re.M)
    command: str | None = None
    try:
        paranoid = int(level)
    except ValueError:
        text, fix = "this kernel has no perf events support", ""
    else:
        if privileged:
            text = f"allowed (perf_event_paranoid {paranoid}, privileged)"
            return MachineCheck(key, title, CheckState.OK, text)
        if paranoid > _MAX_PARANOID:
            text = f"perf_event_paranoid is {paranoid}, 2 or less is required"
            fix, command = (
                "Lower it (until the next boot):",
                "sudo sysctl kernel.perf_event_paranoid=2",
            )
        elif seccomp and container is not None:
            text = "system calls are filtered (seccomp)"
            fix = "Start the container with the capability, or a seccomp profile that allows perf:"
            command = with_capability(container)
        else:
            text = f"allowed (perf_event_paranoid {paranoid})"
            return MachineCheck(key, title, CheckState.OK, text)
    return MachineCheck(
        key,
        title,
        CheckState.LIMITED,
        text,
        "nsys cannot sample the CPU, which --python-stacks needs. Everything else works.",
        fix,
        (command,) if command else (),
        (CheckEffect(Tool.NSYS, Ability.YES, "CPU samples (--python-stacks)"),),
    )


_MIN_DISK_BYTES = 5_000_000_000
"""A few steps with every system call traced can take 2 GB, and a report as much again."""


def surrounding_checks(machine: Machine, folder: str) -> Iterator[MachineCheck]:
    """Look at the system, the disks of `folder` and of temporary files, and who else is here."""
    if machine.system != "Linux":
        yield _system(machine)
    yield _disk(machine, "output-disk", "Output folder", folder, tuple(Tool))
    temporary = machine.environment.get("TMPDIR") or tempfile.gettempdir()
    yield _disk(machine, "temporary-disk", "Temporary folder", temporary, (Tool.NSYS, Tool.NCU))
    lock = f"{temporary}/nsight-compute-lock"
    if machine.exists(lock) and not machine.writable(lock):
        yield MachineCheck(
            "ncu-lock",
            "ncu lock file",
            CheckState.MISSING,
            f"{lock} belongs to another user",
            "ncu waits for this lock file and cannot open it.",
            "Use a temporary folder of your own:",
            ("export TMPDIR=$(mktemp -d)",),
            (CheckEffect(Tool.NCU, Ability.NO, "its lock file belongs to another user"),),
        )
    yield from _other_tools(machine)
    yield from _debug_check(machine)
    rank = current_rank(machine.environment)
    if rank is not None:
        of = "" if rank.world is None else f" of {rank.world}"
        text = f"this is rank {rank.rank}{of} ({rank.source})"
        conflict = disagreement(machine.environment)
        state = CheckState.OK if conflict is None else CheckState.LIMITED
        yield MachineCheck("rank", "Rank", state, text, conflict or "")


def _system(machine: Machine) -> MachineCheck:
    if machine.system == "Windows":
        return MachineCheck(
            "system",
            "System",
            CheckState.LIMITED,
            "Windows",
            "nsys must be started by an administrator. Signals are not forwarded to the program.",
            "Run it in a terminal opened as administrator.",
            effects=(CheckEffect(Tool.NSYS, Ability.PARTLY, "Windows: needs an administrator"),),
        )
    return MachineCheck(
        "system",
        "System",
        CheckState.LIMITED,
        "macOS" if machine.system == "Darwin" else machine.system,
        "macOS has no CUDA, so no GPU work can be recorded; captures made elsewhere are "
        "read as anywhere.",
    )


def _disk(
    machine: Machine, key: str, title: str, folder: str, tools: tuple[Tool, ...]
) -> MachineCheck:
    free, shown_folder = machine.free_bytes(folder), shown(machine, folder)
    if not machine.writable(folder):
        why = f"the {title.lower()} cannot be written"
        effects = tuple(CheckEffect(tool, Ability.NO, why) for tool in tools)
        fix = "Record into another folder with -o." if key == "output-disk" else "Set TMPDIR."
        return MachineCheck(
            key,
            title,
            CheckState.MISSING,
            f"{shown_folder} cannot be written",
            "",
            fix,
            (),
            effects,
        )
    if free is None:
        return MachineCheck(key, title, CheckState.UNKNOWN, f"{shown_folder}: free space unknown")
    text = f"{format_bytes(free)} free in {shown_folder}"
    if free >= _MIN_DISK_BYTES:
        return MachineCheck(key, title, CheckState.OK, text)
    return MachineCheck(
        key,
        title,
        CheckState.LIMITED,
        text,
        "A recording of a few minutes can take several gigabytes.",
        "Record a few steps (--steps 3-7), or use another folder: "
        + ("-o FOLDER." if key == "output-disk" else "set TMPDIR."),
        effects=tuple(
            CheckEffect(tool, Ability.YES, "long recordings: the disk is nearly full")
            for tool in tools
        ),
    )


def _debug_check(machine: Machine) -> Iterator[MachineCheck]:
    settings = debug_settings(machine.environment)
    if settings:
        effects = "; ".join(
            f"{setting.partition('=')[0]}: {effect}" for setting, effect in settings.items()
        )
        yield MachineCheck(
            "debug-variables",
            "Debug settings",
            CheckState.LIMITED,
            ", ".join(settings),
            f"Programs run slower with them, and captures show that. {effects}.",
            "Record from a shell without them, unless they are meant:",
            (f"unset {' '.join(setting.partition('=')[0] for setting in settings)}",),
        )


def _other_tools(machine: Machine) -> Iterator[MachineCheck]:
    profiler = surrounding_profiler(machine.environment)
    names = [name for name in INJECTIONS if machine.environment.get(name)]
    if profiler is not None:
        why = f"already running under {profiler}"
        yield MachineCheck(
            "injection",
            "Other tools",
            CheckState.MISSING,
            why,
            "Only one profiler can use a GPU at a time, so record does not start.",
            f"Record from a shell outside {profiler}.",
            effects=tuple(CheckEffect(tool, Ability.NO, why) for tool in Tool),
        )
    elif names:
        why = "another tool is injected into CUDA programs"
        yield MachineCheck(
            "injection",
            "Other tools",
            CheckState.LIMITED,
            f"{' and '.join(names)} {'is' if len(names) == 1 else 'are'} set",
            "A tool is already injected into CUDA programs started from here, and CUPTI supports "
            "one "
            "at a time.",
            "Record from a shell without them:",
            (f"unset {' '.join(names)}",),
            tuple(CheckEffect(tool, Ability.PARTLY, why) for tool in Tool),
        )
