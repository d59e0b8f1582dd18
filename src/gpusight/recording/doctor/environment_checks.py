"""Checks of the program's Python, and of what is around it.

System, disks, other tools, other ranks.
"""

from __future__ import annotations

import sys
import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpusight.errors import UsageError
from gpusight.recording.doctor.gpu_checks import last_line, probe
from gpusight.recording.doctor.machine import Ability, CheckEffect, CheckState, MachineCheck, shown
from gpusight.recording.inside.environment import INJECTIONS, surrounding_profiler
from gpusight.recording.inside.processes import current_rank, disagreement
from gpusight.recording.programs import OLDEST_PYTHON
from gpusight.recording.request import Tool
from gpusight.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpusight.recording.doctor.gpu_checks import InstalledHardware
    from gpusight.recording.doctor.machine import CommandResult, Machine


_TORCH_TIMEOUT_S = 90.0
"""Importing PyTorch from a cold network disk takes its time."""
_INSIDE = (Tool.CUPTI, Tool.TORCH)


@dataclass(frozen=True, slots=True)
class ProgramPython:
    """The Python that programs are run with."""

    path: str
    place: str
    """The path as it is shown."""
    version: tuple[int, ...]
    packages: Mapping[str, str | None] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """Give its version and place."""
        return f"{'.'.join(map(str, self.version))} ({self.place})"


def find_interpreter(machine: Machine, python: str | None) -> ProgramPython | MachineCheck:
    """Ask the Python that was named, or the one that `python` starts; a Check says why not."""
    path = _path(machine, python)
    told = probe(machine, path, "ask_packages")
    if isinstance(told, dict):
        return ProgramPython(path, shown(machine, path), tuple(told["python"]), told["packages"])
    return _mute(shown(machine, path), told)


def _path(machine: Machine, python: str | None) -> str:
    if python is None:
        return machine.which("python") or machine.which("python3") or sys.executable
    found = machine.which(python)
    if found is None:
        raise UsageError(f"no Python at {python}", hint="--python takes the path of an interpreter")
    return found


def _mute(place: str, ran: CommandResult | None) -> MachineCheck:
    return MachineCheck(
        "python",
        "Python",
        CheckState.MISSING,
        f"{place} does not answer: {last_line(ran)}",
        "What records inside a program (cupti, torch, --steps) needs a Python that works.",
        "Name the Python of your program:",
        ("gpusight doctor --python PATH",),
        tuple(CheckEffect(tool, Ability.NO, "Python does not answer") for tool in _INSIDE),
    )


def python_checks(
    machine: Machine, hardware: InstalledHardware, python: ProgramPython
) -> Iterator[MachineCheck]:
    """Look at a Python and the packages in it."""
    yield _python(python)
    yield _cupti(machine, hardware, python)
    yield _torch(machine, hardware, python)
    yield _nvtx(python)


def _python(python: ProgramPython) -> MachineCheck:
    if python.version >= OLDEST_PYTHON:
        return MachineCheck("python", "Python", CheckState.OK, python.name)
    return MachineCheck(
        "python",
        "Python",
        CheckState.LIMITED,
        python.name,
        "What records inside a Python program (cupti, torch, --steps) needs Python 3.10.",
        "Name another Python, or record with nsys as a whole:",
        ("gpusight doctor --python PATH",),
        tuple(CheckEffect(tool, Ability.NO, "needs Python 3.10") for tool in _INSIDE),
    )


def _cupti(machine: Machine, hardware: InstalledHardware, python: ProgramPython) -> MachineCheck:
    told = probe(machine, python.path, "ask_cupti")
    if not isinstance(told, dict):
        return _no_cupti(
            CheckState.LIMITED, f"cannot be looked for: {last_line(told)}", hardware, python
        )
    if told["library"] is None and told["unfit"] is None:
        return _no_cupti(CheckState.MISSING, f"{python.place} finds no libcupti", hardware, python)
    place = shown(machine, told["library"] or told["unfit"])
    if told["library"] is None:
        found = f"{place} is for a later CUDA than the driver's"
        return _no_cupti(CheckState.LIMITED, found, hardware, python)
    if hardware.usable and not told["works"]:
        found = f"{place} does not work: {told['why']}"
        return _no_cupti(CheckState.LIMITED, found, hardware, python)
    return MachineCheck("cupti", "cupti", CheckState.OK, place)


def _no_cupti(
    state: CheckState, found: str, hardware: InstalledHardware, python: ProgramPython
) -> MachineCheck:
    package = "cupti-python" if hardware.cuda is None else f"'cupti-python=={hardware.cuda[0]}.*'"
    return MachineCheck(
        "cupti",
        "cupti",
        state,
        found,
        "Without nsys, CUPTI records any CUDA program that runs in Python.",
        "Install a libcupti for the driver's CUDA (PyTorch's CUDA packages, Triton and CUDA "
        "toolkits bring one too; CUDA_HOME says where a toolkit is):",
        (f"{python.place} -m pip install {package}",),
        (CheckEffect(Tool.CUPTI, Ability.NO, found),),
    )


def _torch(machine: Machine, hardware: InstalledHardware, python: ProgramPython) -> MachineCheck:
    if python.packages.get("torch") is None:
        return _no_torch(python)
    told = probe(machine, python.path, "ask_torch", _TORCH_TIMEOUT_S)
    if not isinstance(told, dict):
        found = f"torch {python.packages['torch']} cannot be imported: {last_line(told)}"
        effects = (CheckEffect(Tool.TORCH, Ability.NO, found),)
        return MachineCheck(
            "torch", "torch", CheckState.MISSING, found, "It cannot record.", effects=effects
        )
    return _ask_torch(hardware, told)


def _ask_torch(hardware: InstalledHardware, told: dict[str, Any]) -> MachineCheck:
    found = f"torch {told['version']}, built for {_build(told)}"
    if not hardware.usable:  # said already, and no fault of PyTorch
        return MachineCheck("torch", "torch", CheckState.OK, found)
    if not told["available"]:
        blame = _blame(hardware, told)
        means = f"PyTorch sees no GPU{blame}; it records operators on the CPU."
        fix = "Install the PyTorch that is built for the driver's CUDA."
        why = "PyTorch sees no GPU: CPU operators only"
    elif "CUDA" not in told["activities"]:
        means = "This PyTorch was built without CUPTI: its traces hold no kernels."
        fix = "Record with --with nsys, or install a PyTorch that is built with Kineto and CUPTI."
        why = "this PyTorch records no kernels"
    else:
        return MachineCheck("torch", "torch", CheckState.OK, f"{found}, sees the GPU")
    effects = (CheckEffect(Tool.TORCH, Ability.PARTLY, why),)
    return MachineCheck("torch", "torch", CheckState.LIMITED, found, means, fix, effects=effects)


def _build(told: dict[str, Any]) -> str:
    if told["cuda"]:
        return f"CUDA {told['cuda']}"
    return f"ROCm {told['hip']}" if told["hip"] else "the CPU"


def _blame(hardware: InstalledHardware, told: dict[str, Any]) -> str:
    """Say why, where the driver is older than the CUDA that PyTorch was built for."""
    if not told["cuda"]:
        return ", since it was built without CUDA"
    built = int(str(told["cuda"]).partition(".")[0])
    if hardware.cuda is not None and built > hardware.cuda[0]:
        return f", since the driver supports CUDA {hardware.cuda[0]} only"
    return ""


def _nvtx(python: ProgramPython) -> MachineCheck:
    version = python.packages.get("nvtx")
    found = "not installed; gs.annotate does not need it" if version is None else f"nvtx {version}"
    return MachineCheck("nvtx", "nvtx", CheckState.OK, found)


def _no_torch(python: ProgramPython) -> MachineCheck:
    return MachineCheck(
        "torch",
        "torch",
        CheckState.MISSING,
        f"torch is not installed in {python.place}",
        "Only programs that use PyTorch need it.",
        "Install it, or name another Python with --python:",
        (f"{python.place} -m pip install torch",),
        (CheckEffect(Tool.TORCH, Ability.NO, "torch is not installed"),),
    )


_MIN_DISK_BYTES = 5_000_000_000
"""A few steps with every system call traced can take 2 GB, and a report as much again."""
_LOCK = "nsight-compute-lock"


def surrounding_checks(machine: Machine, folder: str) -> Iterator[MachineCheck]:
    """Look at the system, the disks of `folder` and of temporary files, and who else is here."""
    if machine.system != "Linux":
        yield _system(machine)
    yield _disk(machine, "output-disk", "Output folder", folder, tuple(Tool))
    temporary = _temporary(machine)
    yield _disk(machine, "temporary-disk", "Temporary folder", temporary, (Tool.NSYS, Tool.NCU))
    lock = f"{temporary}/{_LOCK}"
    if machine.exists(lock) and not machine.writable(lock):
        yield _locked(lock)
    yield from _others(machine)
    yield from _rank(machine)


def _system(machine: Machine) -> MachineCheck:
    if machine.system == "Windows":
        return MachineCheck(
            "system",
            "System",
            CheckState.LIMITED,
            "Windows",
            "nsys must be started by an administrator. Signals are not passed on to the program.",
            "Run it in a terminal that was opened with “Run as administrator”.",
            effects=(CheckEffect(Tool.NSYS, Ability.PARTLY, "Windows: needs an administrator"),),
        )
    return MachineCheck(
        "system",
        "System",
        CheckState.LIMITED,
        "macOS" if machine.system == "Darwin" else machine.system,
        "There is no CUDA here, so nothing of a GPU can be recorded; captures made elsewhere are "
        "read as anywhere.",
    )


def _temporary(machine: Machine) -> str:
    return machine.environment.get("TMPDIR") or tempfile.gettempdir()


def _disk(
    machine: Machine, key: str, title: str, folder: str, tools: tuple[Tool, ...]
) -> MachineCheck:
    free, place = machine.free_bytes(folder), shown(machine, folder)
    if not machine.writable(folder):
        why = f"the {title.lower()} cannot be written"
        effects = tuple(CheckEffect(tool, Ability.NO, why) for tool in tools)
        fix = "Record into another folder with -o." if key == "output-disk" else "Set TMPDIR."
        return MachineCheck(
            key, title, CheckState.MISSING, f"{place} cannot be written", "", fix, (), effects
        )
    if free is None:
        return MachineCheck(key, title, CheckState.UNKNOWN, f"{place}: free space is not known")
    found = f"{format_bytes(free)} free in {place}"
    if free >= _MIN_DISK_BYTES:
        return MachineCheck(key, title, CheckState.OK, found)
    return MachineCheck(
        key,
        title,
        CheckState.LIMITED,
        found,
        "A recording of a few minutes can take several gigabytes.",
        "Record a few steps (--steps 3:7), or write elsewhere: "
        + ("-o FOLDER." if key == "output-disk" else "set TMPDIR."),
        effects=tuple(
            CheckEffect(tool, Ability.YES, "long recordings: the disk is nearly full")
            for tool in tools
        ),
    )


def _locked(lock: str) -> MachineCheck:
    return MachineCheck(
        "ncu-lock",
        "ncu lock file",
        CheckState.MISSING,
        f"{lock} belongs to another user",
        "ncu waits for this file and cannot open it.",
        "Give ncu a temporary folder of your own:",
        ("export TMPDIR=$(mktemp -d)",),
        (CheckEffect(Tool.NCU, Ability.NO, "its lock file belongs to another user"),),
    )


def _others(machine: Machine) -> Iterator[MachineCheck]:
    around = surrounding_profiler(machine.environment)
    injected = [name for name in INJECTIONS if machine.environment.get(name)]
    if around is not None:
        yield _around(around)
    elif injected:
        yield _injected(injected)


def _around(profiler: str) -> MachineCheck:
    why = f"this runs under {profiler} already"
    return MachineCheck(
        "injection",
        "Other tools",
        CheckState.MISSING,
        why,
        "A GPU has one profiler at a time, so record refuses to start.",
        f"Record from a shell that was not started by {profiler}.",
        effects=tuple(CheckEffect(tool, Ability.NO, why) for tool in Tool),
    )


def _injected(names: list[str]) -> MachineCheck:
    listed = " and ".join(names)
    why = "another tool is injected into CUDA programs"
    return MachineCheck(
        "injection",
        "Other tools",
        CheckState.LIMITED,
        f"{listed} {'is' if len(names) == 1 else 'are'} set",
        "A tool is already injected into CUDA programs started from here, and CUPTI takes one at a "
        "time.",
        "Record from a shell without them:",
        (f"unset {' '.join(names)}",),
        tuple(CheckEffect(tool, Ability.PARTLY, why) for tool in Tool),
    )


def _rank(machine: Machine) -> Iterator[MachineCheck]:
    rank = current_rank(machine.environment)
    if rank is None:
        return
    of = "" if rank.world is None else f" of {rank.world}"
    found = f"this is rank {rank.rank}{of} ({rank.source})"
    quarrel = disagreement(machine.environment)
    state = CheckState.OK if quarrel is None else CheckState.LIMITED
    yield MachineCheck("rank", "Rank", state, found, quarrel or "")
