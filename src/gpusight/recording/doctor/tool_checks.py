"""Checks of what records: every nsys and ncu on the machine, and the program's Python."""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from pathlib import PurePath
from typing import TYPE_CHECKING, Any

from gpusight.errors import UsageError
from gpusight.recording.doctor.gpu_checks import generation, last_line, probe
from gpusight.recording.doctor.machine import Ability, CheckEffect, CheckState, MachineCheck, shown
from gpusight.recording.programs import OLDEST_PYTHON
from gpusight.recording.request import Tool
from gpusight.recording.tools import InstalledTool

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from gpusight.recording.doctor.gpu_checks import GpuGeneration, InstalledHardware, Pair
    from gpusight.recording.doctor.machine import Machine
    from gpusight.recording.tools import BrokenTool, ToolVersion


_IMPORTER = "QdstrmImporter"
"""The program that makes a report of what nsys collected."""
_MISSING_LIBRARY = re.compile(r"shared libraries: (\S+?):")
_PACKAGES = {"libdw.so.1": "libdw1", "libelf.so.1": "libelf1"}
"""The packages of Debian and Ubuntu for what the importer needs."""
_CUPTI = re.compile(r"libcupti\.so\.(\d+)\.(\d+)")
_NAMES = {Tool.NSYS: "Nsight Systems", Tool.NCU: "Nsight Compute"}
_WITHOUT = {
    Tool.NSYS: "Timelines can still be recorded with --with cupti or --with torch.",
    Tool.NCU: "Single kernels cannot be profiled; timelines need no ncu.",
}


def tool_checks(machine: Machine, hardware: InstalledHardware) -> Iterator[MachineCheck]:
    """Look at nsys, its importer, and ncu."""
    installed = {tool: machine.tools(tool) for tool in (Tool.NSYS, Tool.NCU)}
    running = {
        tool: [candidate for candidate in candidates if isinstance(candidate, InstalledTool)]
        for tool, candidates in installed.items()
    }
    nsys = running[Tool.NSYS]
    # The one on the PATH can be a link, or a script elsewhere.
    paths = [str(tool.path) for tool in nsys if tool.version == nsys[0].version]
    real_paths = (both for path in paths for both in (path, machine.real_path(path)))
    folders = list(dict.fromkeys(PurePath(path).parent for path in real_paths))
    too_old = _nsys_too_old(machine, hardware, nsys[0], folders) if nsys else None
    yield _tool(machine, Tool.NSYS, installed[Tool.NSYS], too_old)
    if folders and machine.system == "Linux":
        yield _importer(machine, folders)
    ncu = running[Tool.NCU]
    unsupported = _ncu_unsupported(hardware, ncu[0].version) if ncu else None
    yield _tool(machine, Tool.NCU, installed[Tool.NCU], unsupported)


def _tool(
    machine: Machine,
    tool: Tool,
    candidates: Sequence[InstalledTool | BrokenTool],
    unfit: str | None,
) -> MachineCheck:
    """List every candidate: the first that runs is the one that is used."""
    running, broken = [], []
    for candidate in candidates:
        path = shown(machine, str(candidate.path))
        if isinstance(candidate, InstalledTool):
            running.append(f"{candidate.version} ({path})")
        else:
            broken.append(f"{path} {candidate.why}")
    export = (f"export GPUSIGHT_{tool.name}=/path/to/{tool.value}",)
    if not running:
        why = f"{tool.value} does not start" if candidates else f"no {tool.value}"
        return MachineCheck(
            tool.value,
            tool.value,
            CheckState.MISSING,
            "; ".join(broken) or "not found",
            _WITHOUT[tool],
            f"Install {_NAMES[tool]} (part of the CUDA Toolkit), or set its path:",
            export,
            (CheckEffect(tool, Ability.NO, why),),
        )
    text = "; also ".join((*running, *broken))
    if unfit is None:
        return MachineCheck(tool.value, tool.value, CheckState.OK, text)
    can = Ability.NO if tool is Tool.NCU else Ability.PARTLY
    return MachineCheck(
        tool.value,
        tool.value,
        CheckState.LIMITED,
        text,
        f"{unfit[0].upper()}{unfit[1:]}.",
        f"Install another version of {_NAMES[tool]}, or set its path:",
        export,
        (CheckEffect(tool, can, unfit),),
    )


def _nsys_too_old(
    machine: Machine,
    hardware: InstalledHardware,
    nsys: InstalledTool,
    folders: list[PurePath],
) -> str | None:
    """Return why the CUPTI libraries that nsys brings along are older than the GPU, if so."""
    names = (name for folder in folders for name in machine.names(str(folder)))
    versions = [(int(file[1]), int(file[2])) for file in map(_CUPTI.fullmatch, names) if file]
    if not versions:
        return None
    newest = max(versions)
    gpus = filter(None, map(generation, hardware.capabilities))
    unknown = next((gpu for gpu in gpus if gpu.cuda > newest), None)
    if unknown is None:
        return None
    return (
        f"nsys {nsys.version} records with CUPTI up to {newest[0]}.{newest[1]}, and {unknown.name} "
        f"GPUs need {unknown.cuda[0]}.{unknown.cuda[1]}: kernels may be missing"
    )


def _ncu_unsupported(hardware: InstalledHardware, ncu: ToolVersion) -> str | None:
    """Return why this ncu measures no GPU of the machine, if so."""
    gpus = [generation(capability) for capability in hardware.capabilities]
    reasons = [None if gpu is None else _why_unsupported(gpu, ncu[:2]) for gpu in gpus]
    return None if not reasons or None in reasons else f"ncu {ncu}: {reasons[0]}"


def _why_unsupported(gpu: GpuGeneration, ncu: Pair) -> str | None:
    if gpu.first_ncu is None:
        return f"{gpu.name} GPUs are not supported by any ncu"
    if ncu < gpu.first_ncu:
        return f"{gpu.name} GPUs need ncu {gpu.first_ncu[0]}.{gpu.first_ncu[1]} or newer"
    if gpu.last_ncu is not None and ncu > gpu.last_ncu:
        return f"{gpu.name} GPUs need ncu {gpu.last_ncu[0]}.{gpu.last_ncu[1]} or older"
    return None


def _importer(machine: Machine, folders: list[PurePath]) -> MachineCheck:
    """Start the importer, which is in a sibling of the nsys folder."""
    key, title = "importer", "nsys importer"
    beside = (
        folder.parent / name for folder in folders for name in machine.names(str(folder.parent))
    )
    paths = (str(folder / _IMPORTER) for folder in beside)
    path = next(filter(machine.exists, paths), None)
    if path is None:
        return MachineCheck(key, title, CheckState.UNKNOWN, f"no {_IMPORTER} next to nsys")
    ran = machine.run([path, "--version"])
    if ran is not None and ran.fine:
        return MachineCheck(key, title, CheckState.OK, "starts")
    error = last_line(ran)
    lacking = _MISSING_LIBRARY.search(error)
    package = _PACKAGES.get(lacking[1]) if lacking else None
    why = "its importer does not start: it writes .qdstrm instead of a report"
    return MachineCheck(
        key,
        title,
        CheckState.LIMITED,
        f"needs {lacking[1]}, which is not installed" if lacking else error,
        "nsys records, but writes a .qdstrm file instead of a report.",
        f"Import the .qdstrm on another machine, or install what it needs{':' if package else '.'}",
        (f"sudo apt-get install {package}",) if package else (),
        (CheckEffect(Tool.NSYS, Ability.PARTLY, why),),
    )


_TORCH_TIMEOUT_S = 90.0
"""Importing PyTorch from a cold network disk takes its time."""
_INSIDE = (Tool.CUPTI, Tool.TORCH)


@dataclass(frozen=True, slots=True)
class ProgramPython:
    """The Python that programs are run with."""

    path: str
    place: str
    """The path as displayed."""
    packages: Mapping[str, str | None]


def python_checks(
    machine: Machine, hardware: InstalledHardware, python: str | None
) -> Iterator[MachineCheck]:
    """Look at a Python, by default the one that `python` starts, and at the packages in it."""
    path = machine.which("python" if python is None else python)
    if path is None and python is not None:
        raise UsageError(f"no Python at {python}", hint="--python takes the path of an interpreter")
    path = path or machine.which("python3") or sys.executable
    place = shown(machine, path)
    answer = probe(machine, path, "probe_packages")
    if not isinstance(answer, dict):
        yield MachineCheck(
            "python",
            "Python",
            CheckState.MISSING,
            f"{place} does not respond: {last_line(answer)}",
            "Recording inside a program (cupti, torch, --steps) needs a working Python.",
            "Pass the Python of your program:",
            ("gpusight doctor --python PATH",),
            tuple(CheckEffect(tool, Ability.NO, "Python does not respond") for tool in _INSIDE),
        )
        return
    program = ProgramPython(path, place, answer["packages"])
    yield _python_version(place, tuple(answer["python"]))
    yield _cupti(machine, hardware, program)
    yield _torch(machine, hardware, program)
    nvtx = program.packages.get("nvtx")
    text = "not installed; gs.annotate does not need it" if nvtx is None else f"nvtx {nvtx}"
    yield MachineCheck("nvtx", "nvtx", CheckState.OK, text)


def _python_version(place: str, version: tuple[int, ...]) -> MachineCheck:
    text = f"{'.'.join(map(str, version))} ({place})"
    if version >= OLDEST_PYTHON:
        return MachineCheck("python", "Python", CheckState.OK, text)
    return MachineCheck(
        "python",
        "Python",
        CheckState.LIMITED,
        text,
        "Recording inside a Python program (cupti, torch, --steps) needs Python 3.10.",
        "Pass another Python, or record the whole run with nsys:",
        ("gpusight doctor --python PATH",),
        tuple(CheckEffect(tool, Ability.NO, "needs Python 3.10") for tool in _INSIDE),
    )


def _cupti(machine: Machine, hardware: InstalledHardware, python: ProgramPython) -> MachineCheck:
    answer = probe(machine, python.path, "probe_cupti")
    state = CheckState.LIMITED
    if not isinstance(answer, dict):
        text = f"search failed: {last_line(answer)}"
    elif answer["library"] is None and answer["unfit"] is None:
        state, text = CheckState.MISSING, f"{python.place} finds no libcupti"
    elif answer["library"] is None:
        text = f"{shown(machine, answer['unfit'])} needs a newer CUDA than the driver supports"
    else:
        text = shown(machine, answer["library"])
        if answer["works"] or not hardware.usable:
            return MachineCheck("cupti", "cupti", CheckState.OK, text)
        text = f"{text} does not work: {answer['why']}"
    package = "cupti-python" if hardware.cuda is None else f"'cupti-python=={hardware.cuda[0]}.*'"
    return MachineCheck(
        "cupti",
        "cupti",
        state,
        text,
        "Without nsys, CUPTI records any CUDA program that runs in Python.",
        "Install a libcupti for the driver's CUDA (PyTorch's CUDA packages, Triton and CUDA "
        "toolkits bring one too; CUDA_HOME is the path of a toolkit):",
        (f"{python.place} -m pip install {package}",),
        (CheckEffect(Tool.CUPTI, Ability.NO, text),),
    )


def _torch(machine: Machine, hardware: InstalledHardware, python: ProgramPython) -> MachineCheck:
    if python.packages.get("torch") is None:
        return MachineCheck(
            "torch",
            "torch",
            CheckState.MISSING,
            f"torch is not installed in {python.place}",
            "Only programs that use PyTorch need it.",
            "Install it, or pass another Python with --python:",
            (f"{python.place} -m pip install torch",),
            (CheckEffect(Tool.TORCH, Ability.NO, "torch is not installed"),),
        )
    answer = probe(machine, python.path, "probe_torch", _TORCH_TIMEOUT_S)
    if not isinstance(answer, dict):
        text = f"torch {python.packages['torch']} cannot be imported: {last_line(answer)}"
        effects = (CheckEffect(Tool.TORCH, Ability.NO, text),)
        return MachineCheck(
            "torch", "torch", CheckState.MISSING, text, "It cannot record.", effects=effects
        )
    return _imported_torch(hardware, answer)


def _imported_torch(hardware: InstalledHardware, torch: dict[str, Any]) -> MachineCheck:
    build = f"ROCm {torch['hip']}" if torch["hip"] else "the CPU"
    if torch["cuda"]:
        build = f"CUDA {torch['cuda']}"
    text = f"torch {torch['version']}, built for {build}"
    if not hardware.usable:  # the check of the GPU reports it already
        return MachineCheck("torch", "torch", CheckState.OK, text)
    if not torch["available"]:
        means = f"PyTorch sees no GPU{_cause(hardware, torch)}; it records operators on the CPU."
        fix = "Install a PyTorch build for the driver's CUDA version."
        why = "PyTorch sees no GPU: CPU operators only"
    elif "CUDA" not in torch["activities"]:
        means = "This PyTorch was built without CUPTI: its traces have no kernels."
        fix = "Record with --with nsys, or install a PyTorch that is built with Kineto and CUPTI."
        why = "this PyTorch records no kernels"
    else:
        return MachineCheck("torch", "torch", CheckState.OK, f"{text}, sees the GPU")
    effects = (CheckEffect(Tool.TORCH, Ability.PARTLY, why),)
    return MachineCheck("torch", "torch", CheckState.LIMITED, text, means, fix, effects=effects)


def _cause(hardware: InstalledHardware, torch: dict[str, Any]) -> str:
    """Return why PyTorch sees no GPU, where its build does not fit the driver."""
    if not torch["cuda"]:
        return ", since it was built without CUDA"
    built = int(str(torch["cuda"]).partition(".")[0])
    if hardware.cuda is not None and built > hardware.cuda[0]:
        return f", since the driver supports CUDA {hardware.cuda[0]} only"
    return ""
