"""Checks of what is around a program: the system, the disks, other tools, other ranks."""

from __future__ import annotations

import tempfile
from typing import TYPE_CHECKING

from gpusight.capture.doctor.check import Can, Check, Effect, State
from gpusight.capture.doctor.machine import shown
from gpusight.capture.inside.surroundings import INJECTIONS, surrounding_profiler
from gpusight.capture.ranks import current_rank, disagreement
from gpusight.capture.request import Tool
from gpusight.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.capture.doctor.machine import Machine

_LITTLE_DISK = 5_000_000_000
"""A few steps with every system call traced can take 2 GB, and a report as much again."""
_LOCK = "nsight-compute-lock"


def surrounding_checks(machine: Machine, folder: str) -> Iterator[Check]:
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


def _system(machine: Machine) -> Check:
    if machine.system == "Windows":
        return Check(
            "system",
            "System",
            State.LIMITED,
            "Windows",
            "nsys must be started by an administrator. Signals are not passed on to the program.",
            "Run it in a terminal that was opened with “Run as administrator”.",
            effects=(Effect(Tool.NSYS, Can.PARTLY, "Windows: needs an administrator"),),
        )
    return Check(
        "system",
        "System",
        State.LIMITED,
        "macOS" if machine.system == "Darwin" else machine.system,
        "There is no CUDA here, so nothing of a GPU can be recorded; captures made elsewhere are "
        "read as anywhere.",
    )


def _temporary(machine: Machine) -> str:
    return machine.environment.get("TMPDIR") or tempfile.gettempdir()


def _disk(machine: Machine, key: str, title: str, folder: str, tools: tuple[Tool, ...]) -> Check:
    free, place = machine.free_bytes(folder), shown(machine, folder)
    if not machine.writable(folder):
        why = f"the {title.lower()} cannot be written"
        effects = tuple(Effect(tool, Can.NO, why) for tool in tools)
        fix = "Record into another folder with -o." if key == "output-disk" else "Set TMPDIR."
        return Check(key, title, State.MISSING, f"{place} cannot be written", "", fix, (), effects)
    if free is None:
        return Check(key, title, State.UNKNOWN, f"{place}: free space is not known")
    found = f"{format_bytes(free)} free in {place}"
    if free >= _LITTLE_DISK:
        return Check(key, title, State.OK, found)
    return Check(
        key,
        title,
        State.LIMITED,
        found,
        "A recording of a few minutes can take several gigabytes.",
        "Record a few steps (--steps 3:7), or write elsewhere: "
        + ("-o FOLDER." if key == "output-disk" else "set TMPDIR."),
        effects=tuple(
            Effect(tool, Can.YES, "long recordings: the disk is nearly full") for tool in tools
        ),
    )


def _locked(lock: str) -> Check:
    return Check(
        "ncu-lock",
        "ncu lock file",
        State.MISSING,
        f"{lock} belongs to another user",
        "ncu waits for this file and cannot open it.",
        "Give ncu a temporary folder of your own:",
        ("export TMPDIR=$(mktemp -d)",),
        (Effect(Tool.NCU, Can.NO, "its lock file belongs to another user"),),
    )


def _others(machine: Machine) -> Iterator[Check]:
    around = surrounding_profiler(machine.environment)
    injected = [name for name in INJECTIONS if machine.environment.get(name)]
    if around is not None:
        yield _around(around)
    elif injected:
        yield _injected(injected)


def _around(profiler: str) -> Check:
    why = f"this runs under {profiler} already"
    return Check(
        "injection",
        "Other tools",
        State.MISSING,
        why,
        "A GPU has one profiler at a time, so record refuses to start.",
        f"Record from a shell that was not started by {profiler}.",
        effects=tuple(Effect(tool, Can.NO, why) for tool in Tool),
    )


def _injected(names: list[str]) -> Check:
    listed = " and ".join(names)
    why = "another tool is injected into CUDA programs"
    return Check(
        "injection",
        "Other tools",
        State.LIMITED,
        f"{listed} {'is' if len(names) == 1 else 'are'} set",
        "A tool is already injected into CUDA programs started from here, and CUPTI takes one at a "
        "time.",
        "Record from a shell without them:",
        (f"unset {' '.join(names)}",),
        tuple(Effect(tool, Can.PARTLY, why) for tool in Tool),
    )


def _rank(machine: Machine) -> Iterator[Check]:
    rank = current_rank(machine.environment)
    if rank is None:
        return
    of = "" if rank.world is None else f" of {rank.world}"
    found = f"this is rank {rank.rank}{of} ({rank.source})"
    quarrel = disagreement(machine.environment)
    state = State.OK if quarrel is None else State.LIMITED
    yield Check("rank", "Rank", state, found, quarrel or "")
