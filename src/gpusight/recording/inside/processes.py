"""Which process of a run this is (rank, role), and where it writes what it recorded."""

from __future__ import annotations

import contextlib
import enum
import os
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.recording.programs import PYTHON_LAUNCHERS, base_name, read_python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from gpusight.recording.inside.environment import RecorderPlan


_HELPERS = PYTHON_LAUNCHERS | {"pip", "pip3", "ninja", "horovodrun", "composer", "jupyter"}
_HELPER_MODULES = (
    "pip",
    "torch.distributed.run",
    "torch.distributed.launch",
    "torch.distributed.elastic",
    "accelerate.commands",
    "deepspeed.launcher",
    "torch._inductor.compile_worker",
    "gpusight",
    "ensurepip",
    "venv",
)
_HELPER_CODE = ("multiprocessing.resource_tracker", "multiprocessing.forkserver")
_CHILD_CODE = "multiprocessing.spawn"


class ProcessRole(enum.Enum):
    """How a process relates to the program that is recorded."""

    MAIN = "main"
    """It runs the program, or one rank of it."""
    CHILD = "child"
    """`multiprocessing` started it: it trains, or it only loads data."""
    HELPER = "helper"
    """It starts, watches or serves others."""


def own_role() -> ProcessRole:
    """Tell what this process is."""
    return role_of(list(sys.orig_argv))


def role_of(argv: list[str]) -> ProcessRole:
    """Tell what a Python process is, by its command line."""
    line = read_python(argv)
    if line.runs is None:
        code = " ".join(argv[line.position :])
        if any(name in code for name in _HELPER_CODE):
            return ProcessRole.HELPER
        return ProcessRole.CHILD if _CHILD_CODE in code else ProcessRole.MAIN
    name = base_name(line.runs).removesuffix(".exe").removesuffix("-script.py")
    module = line.runs.replace("\\", "/").removesuffix("/__main__.py").replace("/", ".")
    is_helper = name in _HELPERS or any(_is_within(module, known) for known in _HELPER_MODULES)
    return ProcessRole.HELPER if is_helper else ProcessRole.MAIN


def _is_within(module: str, package: str) -> bool:
    """Tell whether `-m` names the package or a part of it; or a path ends in the package."""
    inside = module == package or module.startswith(f"{package}.")
    return inside or ("." in package and module.endswith(f".{package}"))


_FIRST_SPECIAL_STEP = 0xFFFFFFF0
"""Slurm numbers the batch script and the interactive shell, which are one process, from here up."""


@dataclass(frozen=True)
class ProcessRank:
    """A process's place among those that run one program together."""

    rank: int
    local_rank: int | None
    """Its place on its machine."""
    world: int | None
    """How many there are."""
    source: str
    """The variable that told."""

    @property
    def is_one_of_several(self) -> bool:
        """Tell whether others run too; a rank whose world is not known has a launcher above it."""
        return self.world is None or self.world > 1


@dataclass(frozen=True)
class _Launcher:
    rank: str
    local: tuple[str, ...] = ()
    world: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    """One of these must be set too, or the variable is no sign of a launched process."""


_LAUNCHERS = (
    # torchrun, accelerate and deepspeed; Kubernetes operators set RANK alone, for a whole pod.
    _Launcher("RANK", ("LOCAL_RANK",), ("WORLD_SIZE",), ("LOCAL_RANK", "TORCHELASTIC_RUN_ID")),
    _Launcher("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_LOCAL_RANK",), ("OMPI_COMM_WORLD_SIZE",)),
    _Launcher("MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_LOCAL_RANK",), ("MV2_COMM_WORLD_SIZE",)),
    _Launcher("PMI_RANK", ("MPI_LOCALRANKID", "PALS_LOCAL_RANKID"), ("PMI_SIZE",)),
    _Launcher("JSM_NAMESPACE_RANK", ("JSM_NAMESPACE_LOCAL_RANK",), ("JSM_NAMESPACE_SIZE",)),
    _Launcher("FLUX_TASK_RANK", ("FLUX_TASK_LOCAL_ID",), ("FLUX_JOB_SIZE",)),
    _Launcher("ALPS_APP_PE"),
    _Launcher("PMIX_RANK", ("SLURM_LOCALID",), ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
    _Launcher(
        "SLURM_PROCID",
        ("SLURM_LOCALID",),
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        ("SLURM_STEP_ID", "SLURM_STEPID"),
    ),
    _Launcher("RANK", ("LOCAL_RANK",), ("WORLD_SIZE",), ("WORLD_SIZE",)),
)
"""From the innermost launcher to the outermost."""


def current_rank(environ: Mapping[str, str] | None = None) -> ProcessRank | None:
    """Give the place of this process, or None where it runs alone."""
    told = _from_launchers(os.environ if environ is None else environ)
    return told[0] if told else None


def disagreement(environ: Mapping[str, str] | None = None) -> str | None:
    """Say which variables give another rank than the one that is used, or none at all.

    None where all agree, and where there are none.
    """
    environ = os.environ if environ is None else environ
    told = _from_launchers(environ)
    if not told:
        return _useless(environ)
    used = told[0]
    others = {rank.source: rank.rank for rank in told if rank.rank != used.rank}
    others.pop(used.source, None)
    if not others:
        return None
    listed = ", ".join(f"{name}={rank}" for name, rank in others.items())
    return f"rank {used.rank} is {used.source}'s; {listed} of an outer launcher is not used"


def _useless(environ: Mapping[str, str]) -> str | None:
    """Name a launcher's variable from which no rank can be read."""
    for launcher in _LAUNCHERS:
        if environ.get(launcher.rank) and _launched(launcher, environ):
            return f"{launcher.rank} tells no rank: this process counts as one that runs alone"
    return None


def _from_launchers(environ: Mapping[str, str]) -> list[ProcessRank]:
    """Give what each launcher says, innermost first."""
    found = (_of(launcher, environ) for launcher in _LAUNCHERS)
    return [rank for rank in found if rank is not None]


def _of(launcher: _Launcher, environ: Mapping[str, str]) -> ProcessRank | None:
    rank = _number(environ.get(launcher.rank))
    if rank is None or not _launched(launcher, environ):
        return None
    world = _first(launcher.world, environ)
    if world is not None and rank >= world:
        return None  # left over from another run: it contradicts itself
    return ProcessRank(rank, _first(launcher.local, environ), world, launcher.rank)


def _launched(launcher: _Launcher, environ: Mapping[str, str]) -> bool:
    if not launcher.needs:
        return True
    if launcher.rank == "SLURM_PROCID":
        step = _first(launcher.needs, environ)
        return step is not None and step < _FIRST_SPECIAL_STEP
    return any(environ.get(name) for name in launcher.needs)


def _first(names: tuple[str, ...], environ: Mapping[str, str]) -> int | None:
    numbers = (_number(environ.get(name)) for name in names)
    return next((number for number in numbers if number is not None), None)


def _number(text: str | None) -> int | None:
    text = (text or "").strip()
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else None


STARTED_VARIABLE = "GPUSIGHT_RECORD_STARTED_NS"
"""When the run began: younger files of its name are those of its own processes."""
_PART = ".part"
_TICK_NS = 50_000_000
"""Times of files lag behind the clock by up to one of its ticks."""
_CLOCK_SLACK_NS = 2_000_000_000
"""Clocks of file servers differ, and some file systems keep times to two seconds."""


def note_start() -> None:
    """Remember when the run began, for this process and its children."""
    os.environ.setdefault(STARTED_VARIABLE, str(time.time_ns()))


def own_rank() -> int | None:
    """Give this process's rank if it is one of several.

    The launcher's variables decide. Without them (`torch.multiprocessing.spawn`, Lightning's own
    processes) the program's process group does, once there is one.
    """
    told = current_rank()
    if told is not None:
        return told.rank if told.is_one_of_several else None
    group = sys.modules.get("torch.distributed")
    if group is None or not group.is_available() or not group.is_initialized():
        return None
    return int(group.get_rank()) if group.get_world_size() > 1 else None


def written(
    plan: RecorderPlan, suffix: str, rank: int | None, write: Callable[[Path], None]
) -> Path:
    """Have `write` fill a file, and give it its name once it is whole."""
    from gpusight.recording.capture_names import (
        with_rank,  # half of the standard library, only now needed
    )

    base = with_rank(Path(plan.output), rank)
    base.parent.mkdir(parents=True, exist_ok=True)
    for final in _names(base, suffix):
        part = _claimed(final, overwrite=plan.overwrite)
        if part is None:
            continue
        try:
            write(part)
            part.replace(final)
        finally:
            part.unlink(missing_ok=True)
        return final
    raise AssertionError("numbers do not end")


def _names(base: Path, suffix: str) -> Iterator[Path]:
    yield base.with_name(f"{base.name}{suffix}")
    number = 1
    while True:
        process = f".pid{os.getpid()}" + (f".{number}" if number > 1 else "")
        yield base.with_name(f"{base.name}{process}{suffix}")
        number += 1


def _claimed(final: Path, *, overwrite: bool) -> Path | None:
    """Create what will become the file, as a sign to other processes that the name is taken.

    Only who made it may look whether the name itself is free, so that two cannot both find it so.
    """
    part = final.with_name(f"{final.name}{_PART}")
    if overwrite and _is_earlier(part, -_CLOCK_SLACK_NS):
        part.unlink(missing_ok=True)
    try:
        part.open("x").close()
    except FileExistsError:
        return None
    if not final.exists() or (overwrite and _is_earlier(final, _clock_ahead_ns(part) - _TICK_NS)):
        return part
    part.unlink()
    return None


def _clock_ahead_ns(made_now: Path) -> int:
    """Tell how far the clock that stamps files is ahead of ours; less where it is coarse."""
    return made_now.stat().st_mtime_ns - time.time_ns()


def _is_earlier(path: Path, ahead_ns: int) -> bool:
    """Tell whether a file is from before this run, by a clock that is ahead of ours by so much."""
    started_ns = int(os.environ.get(STARTED_VARIABLE, "0"))
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime_ns < started_ns + ahead_ns
    return False
