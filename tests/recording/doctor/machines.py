"""Machines that nobody has here, described through what the checks may ask."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath

from gpusight.recording.doctor.machine import CommandResult, Machine
from gpusight.recording.request import Tool
from gpusight.recording.tools import BrokenTool, InstalledTool, ToolVersion

ROOT = "000001ffffffffff"
NOBODY = "0000000000000000"
NSYS_2025 = "/opt/nvidia/nsight-systems/2025.3.1/target-linux-x64/nsys"
NCU_2025 = "/usr/local/cuda/bin/ncu"
CUPTI_13 = "/opt/venv/lib/python3.12/site-packages/nvidia/cu13/lib/libcupti.so.13"


@dataclass
class Described(Machine):
    """A machine made of files, programs by their name, and variables."""

    system: str = "Linux"
    kernel: str = "6.8.0-45-generic"
    environment: Mapping[str, str] = field(default_factory=dict)
    files: Mapping[str, str] = field(default_factory=dict)
    programs: Mapping[str, CommandResult] = field(default_factory=dict)
    """By the program's path, or by the name of the probe that Python is to run."""
    installed: Mapping[Tool, Sequence[InstalledTool | BrokenTool]] = field(default_factory=dict)
    read_only: frozenset[str] = frozenset()
    free: int | None = 500_000_000_000
    shared: int = 32_000_000_000

    def read(self, path: str) -> str | None:
        return self.files.get(path)

    def names(self, folder: str) -> tuple[str, ...]:
        parts = len(PurePosixPath(folder).parts)
        inside = (PurePosixPath(path).parts for path in self.files if path.startswith(f"{folder}/"))
        return tuple(sorted({path[parts] for path in inside}))

    def exists(self, path: str) -> bool:
        return path in self.files or path in self.programs or bool(self.names(path))

    def writable(self, path: str) -> bool:
        return path not in self.read_only

    def real_path(self, path: str) -> str:
        return path

    def which(self, name: str) -> str | None:
        paths = (name, f"/usr/bin/{name}")
        return next((path for path in paths if path in self.programs), None)

    def run(self, argv: Sequence[str], timeout_s: float = 20.0) -> CommandResult | None:  # noqa: ARG002
        is_probe = len(argv) > 1 and argv[1].endswith("probes.py")
        return self.programs.get(argv[2] if is_probe else argv[0])

    def free_bytes(self, folder: str) -> int | None:
        return self.shared if folder == "/dev/shm" else self.free

    def tools(self, tool: Tool) -> Sequence[InstalledTool | BrokenTool]:
        return self.installed.get(tool, ())


def json_result(**answer: object) -> CommandResult:
    return CommandResult(0, json.dumps(answer) + "\n")


def tool(which: Tool, path: str, *version: int) -> InstalledTool:
    return InstalledTool(which, Path(path), ToolVersion(*version))


def status(capabilities: str = NOBODY, *, seccomp: int = 0) -> str:
    return f"Name:\tpython\nCapEff:\t{capabilities}\nSeccomp:\t{seccomp}\n"


def driver(
    name: str = "NVIDIA H200", capability: tuple[int, int] = (9, 0), cuda: int = 13000
) -> CommandResult:
    devices = [{"name": name, "capability": capability}]
    return json_result(library=True, version=cuda, failed=0, devices=devices)


def smi(
    name: str = "NVIDIA H200", capability: str = "9.0", version: str = "580.82.07"
) -> CommandResult:
    return CommandResult(0, f"{name}, {version}, {capability}, Disabled\n")


def packages(*version: int, **expected: str) -> CommandResult:
    named = {name.replace("_", "-"): number for name, number in expected.items()}
    return json_result(python=version or (3, 12, 3), packages=named)


TORCH = json_result(
    version="2.11.0+cu130", cuda="13.0", hip=None, available=True, activities=["CPU", "CUDA"]
)
PYTHON: dict[str, CommandResult] = {
    "/usr/bin/python": CommandResult(0, ""),
    "probe_packages": packages(torch="2.11.0", nvtx="0.2.14"),
    "probe_torch": TORCH,
    "probe_cupti": json_result(library=CUPTI_13, unfit=None, works=True, why=None),
}
H200_FILES: dict[str, str] = {
    "/proc/self/status": status(),
    "/proc/driver/nvidia/params": "ModifyDeviceFiles: 1\nRmProfilingAdminOnly: 0\n",
    "/proc/driver/nvidia/version": (
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.82.07  Release Build\n"
    ),
    "/proc/sys/kernel/perf_event_paranoid": "2\n",
    "/dev/nvidia0": "",
    "/opt/nvidia/nsight-systems/2025.3.1/target-linux-x64/libcupti.so.13.0": "",
    "/opt/nvidia/nsight-systems/2025.3.1/target-linux-x64/libcupti.so.12.9": "",
    "/opt/nvidia/nsight-systems/2025.3.1/host-linux-x64/QdstrmImporter": "",
}
H200_PROGRAMS: dict[str, CommandResult] = {
    **PYTHON,
    "/usr/bin/nvidia-smi": smi(),
    "probe_driver": driver(),
    "/opt/nvidia/nsight-systems/2025.3.1/host-linux-x64/QdstrmImporter": CommandResult(
        0, "2025.3.1\n"
    ),
}
H200_TOOLS: dict[Tool, Sequence[InstalledTool | BrokenTool]] = {
    Tool.NSYS: [tool(Tool.NSYS, NSYS_2025, 2025, 3, 1)],
    Tool.NCU: [tool(Tool.NCU, NCU_2025, 2025, 3, 1)],
}


def bare() -> Described:
    """A machine without a GPU or a tool, on which most checks have something to say."""
    cpu_only = json_result(
        version="2.11.0+cpu", cuda=None, hip=None, available=False, activities=["CPU"]
    )
    no_cupti = json_result(library=None, unfit=None, works=False, why=None)
    return Described(programs={**PYTHON, "probe_torch": cpu_only, "probe_cupti": no_cupti})


def h200(
    *,
    files: Mapping[str, str] | None = None,
    programs: Mapping[str, CommandResult] | None = None,
    installed: Mapping[Tool, Sequence[InstalledTool | BrokenTool]] | None = None,
    **others: object,
) -> Described:
    """A machine on which everything works, with changes."""
    return Described(
        files={**H200_FILES, **(files or {})},
        programs={**H200_PROGRAMS, **(programs or {})},
        installed={**H200_TOOLS, **(installed or {})},
        **others,  # type: ignore[arg-type]
    )
