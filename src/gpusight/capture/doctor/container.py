"""Checks of the container that this process runs in, if any."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from gpusight.capture.doctor.check import Check, State
from gpusight.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.capture.doctor.machine import Machine

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
_SMALL_SHM = 1 << 30
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


def container_checks(machine: Machine) -> Iterator[Check]:
    """Look at the container and what it leaves out."""
    kind = container_kind(machine)
    if kind is None:
        return
    yield _devices(machine, kind)
    shared = machine.free_bytes("/dev/shm")  # noqa: S108 - the kernel's place, not ours
    if shared is not None and shared < _SMALL_SHM:
        yield _small_shm(kind, shared)


def _devices(machine: Machine, kind: str) -> Check:
    names = machine.names("/dev")
    gpus = [name for name in names if re.fullmatch(r"nvidia\d+", name)]
    if gpus or "dxg" in names:
        return Check("container", "Container", State.OK, f"looks like {kind}; GPUs are mounted")
    return Check(
        "container",
        "Container",
        State.LIMITED,
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


def _small_shm(kind: str, shared: int) -> Check:
    fix = {
        "Kubernetes": "Mount an emptyDir with medium: Memory at /dev/shm.",
        "Podman": "podman run --shm-size=8g …",
    }.get(kind, "docker run --shm-size=8g …")
    return Check(
        "shared-memory",
        "Shared memory",
        State.LIMITED,
        f"{format_bytes(shared)} free in /dev/shm",
        "Programs with DataLoader workers may stop with a bus error, recorded or not.",
        "Give the container more:",
        (fix,),
    )
