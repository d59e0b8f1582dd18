"""Which process of a distributed run this is, from the variables that launchers set.

Launchers nest: a batch system starts `mpirun`, that starts `torchrun`, and each leaves its
variables in place. The innermost one knows the process, so the order below runs from inside out.
What any program could have left behind, a bare RANK, comes last.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_FIRST_SPECIAL_STEP = 0xFFFFFFF0
"""Slurm numbers the batch script and the interactive shell, which are one process, from here up."""


@dataclass(frozen=True)
class Rank:
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


def current_rank(environ: Mapping[str, str] | None = None) -> Rank | None:
    """Give the place of this process, or None where it runs alone."""
    told = _told(os.environ if environ is None else environ)
    return told[0] if told else None


def disagreement(environ: Mapping[str, str] | None = None) -> str | None:
    """Say which variables give another rank than the one that is used, or none at all.

    None where all agree, and where there are none.
    """
    environ = os.environ if environ is None else environ
    told = _told(environ)
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


def _told(environ: Mapping[str, str]) -> list[Rank]:
    """Give what each launcher says, innermost first."""
    found = (_of(launcher, environ) for launcher in _LAUNCHERS)
    return [rank for rank in found if rank is not None]


def _of(launcher: _Launcher, environ: Mapping[str, str]) -> Rank | None:
    rank = _number(environ.get(launcher.rank))
    if rank is None or not _launched(launcher, environ):
        return None
    world = _first(launcher.world, environ)
    if world is not None and rank >= world:
        return None  # left over from another run: it contradicts itself
    return Rank(rank, _first(launcher.local, environ), world, launcher.rank)


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
