"""Checks of NVIDIA's tools: every nsys and ncu on the machine, and whether they know the GPU."""

from __future__ import annotations

import re
from pathlib import PurePath
from typing import TYPE_CHECKING

from gpusight.recording.doctor.gpu_checks import generation, last_line
from gpusight.recording.doctor.machine import Ability, CheckEffect, CheckState, MachineCheck, shown
from gpusight.recording.request import Tool
from gpusight.recording.tools import InstalledTool

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusight.recording.doctor.gpu_checks import GpuGeneration, InstalledHardware, Pair
    from gpusight.recording.doctor.machine import CommandResult, Machine
    from gpusight.recording.tools import BrokenTool


IMPORTER = "QdstrmImporter"
_MISSING_LIBRARY = re.compile(r"shared libraries: (\S+?):")
_PACKAGES = {"libdw.so.1": "libdw1", "libelf.so.1": "libelf1"}
"""Where Debian and Ubuntu keep what nsys's importer asks for."""
_CUPTI = re.compile(r"libcupti\.so\.(\d+)\.(\d+)")
_NAMES = {Tool.NSYS: "Nsight Systems", Tool.NCU: "Nsight Compute"}
_WITHOUT = {
    Tool.NSYS: "Timelines can still be recorded with --with cupti or --with torch.",
    Tool.NCU: "Kernels cannot be measured one by one; timelines need no ncu.",
}


def tool_checks(machine: Machine, hardware: InstalledHardware) -> Iterator[MachineCheck]:
    """Look at nsys, its importer, and ncu."""
    nsys, ncu = machine.tools(Tool.NSYS), machine.tools(Tool.NCU)
    folders = _folders(machine, nsys)
    yield _tool(machine, Tool.NSYS, nsys, _nsys_too_old(machine, hardware, _best(nsys), folders))
    if folders and machine.system == "Linux":
        yield _importer(machine, folders)
    yield _tool(machine, Tool.NCU, ncu, _ncu_unsupported(hardware, _best(ncu)))


def _best(found: Sequence[InstalledTool | BrokenTool]) -> InstalledTool | None:
    """Give the one that is used, which comes first of those that run."""
    return next((one for one in found if isinstance(one, InstalledTool)), None)


def _folders(machine: Machine, found: Sequence[InstalledTool | BrokenTool]) -> list[PurePath]:
    """Give where the best one may lie: what is on the PATH can be a link, or a script elsewhere."""
    best, running = _best(found), [one for one in found if isinstance(one, InstalledTool)]
    paths = [str(one.path) for one in running if best is not None and one.version == best.version]
    places = (place for path in paths for place in (path, machine.real_path(path)))
    return list(dict.fromkeys(PurePath(place).parent for place in places))


def _tool(
    machine: Machine,
    tool: Tool,
    found: Sequence[InstalledTool | BrokenTool],
    unfit: str | None,
) -> MachineCheck:
    first = _best(found)
    if first is None:
        return _absent(machine, tool, found)
    others = [_spelled(machine, one) for one in found if one is not first]
    text = "; also ".join((_spelled(machine, first), *others))
    if unfit is None:
        return MachineCheck(tool.value, tool.value, CheckState.OK, text)
    can = Ability.NO if tool is Tool.NCU else Ability.PARTLY
    return MachineCheck(
        tool.value,
        tool.value,
        CheckState.LIMITED,
        text,
        f"{unfit[0].upper()}{unfit[1:]}.",
        f"Install another {_NAMES[tool]}, or say where it is:",
        (f"export GPUSIGHT_{tool.name}=/path/to/{tool.value}",),
        (CheckEffect(tool, can, unfit),),
    )


def _spelled(machine: Machine, one: InstalledTool | BrokenTool) -> str:
    place = shown(machine, str(one.path))
    if isinstance(one, InstalledTool):
        return f"{one.version} ({place})"
    return f"{place} {one.why}"


def _absent(
    machine: Machine, tool: Tool, found: Sequence[InstalledTool | BrokenTool]
) -> MachineCheck:
    text = "; ".join(_spelled(machine, one) for one in found) or "not found"
    why = f"{tool.value} does not start" if found else f"no {tool.value}"
    return MachineCheck(
        tool.value,
        tool.value,
        CheckState.MISSING,
        text,
        _WITHOUT[tool],
        f"Install {_NAMES[tool]} (it comes with the CUDA toolkit), or say where it is:",
        (f"export GPUSIGHT_{tool.name}=/path/to/{tool.value}",),
        (CheckEffect(tool, Ability.NO, why),),
    )


def _unknown_to(hardware: InstalledHardware, newest: Pair) -> GpuGeneration | None:
    """Find a GPU that is younger than a CUDA release."""
    known = map(generation, hardware.capabilities)
    return next((one for one in known if one is not None and one.cuda > newest), None)


def _nsys_too_old(
    machine: Machine,
    hardware: InstalledHardware,
    nsys: InstalledTool | None,
    folders: list[PurePath],
) -> str | None:
    """Say when the CUPTI libraries that nsys brings along are older than the GPU."""
    names = (name for folder in folders for name in machine.names(str(folder)))
    versions = [(int(one[1]), int(one[2])) for one in map(_CUPTI.fullmatch, names) if one]
    if nsys is None or not versions:
        return None
    newest = max(versions)
    young = _unknown_to(hardware, newest)
    if young is None:
        return None
    return (
        f"nsys {nsys.version} records with CUPTI up to {newest[0]}.{newest[1]}, and {young.name} "
        f"GPUs need {young.cuda[0]}.{young.cuda[1]}: kernels may be missing"
    )


def _ncu_unsupported(hardware: InstalledHardware, ncu: InstalledTool | None) -> str | None:
    """Say when no GPU of the machine is one that this ncu measures."""
    known = [one for one in map(generation, hardware.capabilities) if one is not None]
    if ncu is None or not known or len(known) < len(hardware.capabilities):
        return None
    reasons = [_why_unsupported(one, (ncu.version.year, ncu.version.minor)) for one in known]
    return None if None in reasons else f"ncu {ncu.version}: {reasons[0]}"


def _why_unsupported(one: GpuGeneration, version: Pair) -> str | None:
    if one.first_ncu is None:
        return f"{one.name} GPUs were never supported by ncu"
    if version < one.first_ncu:
        return f"{one.name} GPUs need ncu {one.first_ncu[0]}.{one.first_ncu[1]} or newer"
    if one.last_ncu is not None and version > one.last_ncu:
        return f"{one.name} GPUs need ncu {one.last_ncu[0]}.{one.last_ncu[1]} or older"
    return None


def _importer(machine: Machine, folders: list[PurePath]) -> MachineCheck:
    """Start the program that makes reports of what nsys collected."""
    key, title = "importer", "nsys importer"
    path = _importer_path(machine, folders)
    if path is None:
        return MachineCheck(key, title, CheckState.UNKNOWN, f"no {IMPORTER} beside nsys")
    ran = machine.run([path, "--version"])
    if ran is not None and ran.fine:
        return MachineCheck(key, title, CheckState.OK, "starts")
    return _broken_importer(ran)


def _broken_importer(ran: CommandResult | None) -> MachineCheck:
    said = last_line(ran)
    lacking = _MISSING_LIBRARY.search(said)
    found = f"needs {lacking[1]}, which is not installed" if lacking else said
    package = _PACKAGES.get(lacking[1]) if lacking else None
    return MachineCheck(
        "importer",
        "nsys importer",
        CheckState.LIMITED,
        found,
        "nsys records, but leaves a .qdstrm file instead of a report.",
        f"Import the .qdstrm on another machine, or install what it needs{':' if package else '.'}",
        (f"sudo apt-get install {package}",) if package else (),
        (
            CheckEffect(
                Tool.NSYS,
                Ability.PARTLY,
                "its importer does not start: .qdstrm instead of a report",
            ),
        ),
    )


def _importer_path(machine: Machine, folders: list[PurePath]) -> str | None:
    """Look in the folders beside the one that nsys lies in."""
    for beside in (folder.parent for folder in folders):
        for name in machine.names(str(beside)):
            path = str(beside / name / IMPORTER)
            if machine.exists(path):
                return path
    return None
