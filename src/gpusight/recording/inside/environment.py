"""This process, and the variables of its environment.

The plan of `gpusight record`, the profiler around the process, its role and rank, and where it
writes what it recorded; log lines.
"""

from __future__ import annotations

import contextlib
import enum
import json
import os
import sys
import time
from dataclasses import asdict, dataclass, fields
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.errors import RecordError
from gpusight.recording.inside.stack_sampler import LAUNCHING
from gpusight.recording.programs import PYTHON_LAUNCHERS, base_name, read_python

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


VARIABLE = "GPUSIGHT_RECORD"
PROFILER_API = "profiler-api"
"""The recorder is another tool around us, which cudaProfilerStart and Stop switch on and off."""
TORCH = "torch"
CUPTI = "cupti"
PACE = "pace"
"""Nothing is recorded: steps are counted and timed, in a run without a profiler."""
SURROUNDED = "surrounded"
"""Another tool around us records everything, or what was requested; stacks are sampled inside."""


@dataclass(frozen=True)
class RecorderPlan:
    """What to record in this process, and when."""

    recorder: str
    """`torch`, `cupti`, `profiler-api` for nsys and ncu, `surrounded` or `pace`."""
    output: str
    """Where to, absolute, without the suffix; ranks and further processes add to the name."""
    first_step: int | None = None
    last_step: int | None = None
    window: bool = False
    """Where steps can be counted: warm up, time some without the profiler, record some."""
    warmup: int | None = None
    timed: int | None = None
    recorded: int | None = None
    """How many steps of each; None: as many as it takes."""
    pace: str | None = None
    """That of a run without a profiler, as `Pace.to_text` writes it."""
    range_name: str | None = None
    delay_s: float | None = None
    duration_s: float | None = None
    ranks: tuple[int, ...] | None = None
    """None: all."""
    memory: bool = False
    shapes: bool = False
    python_stacks: bool = False
    stacks_hz: float | None = None
    """How often stacks are sampled; None: never."""
    stacks_threads: str = LAUNCHING
    stop: bool = False
    overwrite: bool = False

    def to_text(self) -> str:
        """Write it for the environment."""
        return json.dumps(asdict(self))

    @classmethod
    def from_text(cls, text: str) -> RecorderPlan:
        """Read what `to_text` wrote; keys that this version does not know are left out."""
        known = {field.name for field in fields(cls)}
        values = {key: value for key, value in json.loads(text).items() if key in known}
        if values.get("ranks") is not None:
            values["ranks"] = tuple(values["ranks"])
        return cls(**values)


def current_plan() -> RecorderPlan | None:
    """Return the plan of this process, if `gpusight record` started it."""
    text = os.environ.get(VARIABLE)
    if not text:
        return None
    try:
        return RecorderPlan.from_text(text)
    except (ValueError, TypeError, AttributeError) as error:  # not JSON, or not what we write
        raise RecordError(
            f"the variable {VARIABLE} is not set by gpusight record",
            hint=f"unset {VARIABLE}, unless gpusight record started this",
        ) from error


NVTX_INJECTIONS = ("NVTX_INJECTION64_PATH", "NVTX_INJECTION32_PATH")
INJECTIONS = ("CUDA_INJECTION64_PATH", *NVTX_INJECTIONS)
"""The libraries that CUDA and NVTX load into a program: any tool may set them."""
_PROFILERS = {
    "nsys": ("NSYS_PROFILING_SESSION_ID", "QUADD_INJECTION_PROXY"),
    "ncu": (
        "NV_TPS_LAUNCH_TOKEN",
        "NV_NSIGHT_INJECTION_TRANSPORT_TYPE",
        "NV_COMPUTE_PROFILER_PERFWORKS_DIR",
    ),
}
"""Older versions set only some of these."""


def surrounding_profiler(environ: Mapping[str, str] = os.environ) -> str | None:
    """Name the profiler of NVIDIA's that runs this program, `nsys` or `ncu`, if one does."""
    for profiler, variables in _PROFILERS.items():
        if any(environ.get(name) for name in variables):
            return profiler
    return None


def surrounding_tool(environ: Mapping[str, str] = os.environ) -> str | None:
    """Name whatever records or listens to this program, in words."""
    if environ.get(VARIABLE):
        return "gpusight record"
    if profiler := surrounding_profiler(environ):
        return profiler
    if any(environ.get(name) for name in NVTX_INJECTIONS):
        return "a tool that records NVTX"
    return None


REPORT_VARIABLE = "GPUSIGHT_RECORD_REPORT"
"""The file in which each process notes, in a line of JSON, what became of its window."""


def report_window(**facts: object) -> None:
    """Note what became of the window of this process, for `gpusight record` around it."""
    path = os.environ.get(REPORT_VARIABLE)
    if path:
        line = json.dumps({"pid": os.getpid(), **facts}) + "\n"
        try:
            with open(path, "a", encoding="utf-8") as file:  # noqa: PTH123 - one write, appended
                file.write(line)
        except OSError as error:  # the capture is what matters
            log_line(f"cannot write {path}: {error.strerror}")


def log_line(text: str) -> None:
    """Print a line to stderr, unless the program has closed it.

    Programs also put objects of their own there, and a signal may come while one is written to.
    """
    stream = sys.stderr
    if stream is None:
        return
    with contextlib.suppress(Exception):  # there is no other place to report it
        stream.write(f"gpusight: {text}\n")
        stream.flush()


def log_error(doing: str, error: BaseException) -> None:
    """Log what of ours failed; the program goes on without it."""
    text = " ".join(str(error).split()) or type(error).__name__
    log_line(
        f"{doing} failed in process {os.getpid()}: {text}; the program continues without recording"
    )


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


def role_of(argv: list[str]) -> ProcessRole:
    """Classify a Python process by its command line."""
    line = read_python(argv)
    if line.runs is None:
        code = " ".join(argv[line.position :])
        if any(name in code for name in _HELPER_CODE):
            return ProcessRole.HELPER
        return ProcessRole.CHILD if _CHILD_CODE in code else ProcessRole.MAIN
    name = base_name(line.runs).removesuffix(".exe").removesuffix("-script.py")
    # `-m` names a package or a module in it, or a path ends in the package.
    module = line.runs.replace("\\", "/").removesuffix("/__main__.py").replace("/", ".")
    is_helper = name in _HELPERS or any(
        f"{module}.".startswith(f"{package}.")
        or ("." in package and module.endswith(f".{package}"))
        for package in _HELPER_MODULES
    )
    return ProcessRole.HELPER if is_helper else ProcessRole.MAIN


_FIRST_SPECIAL_STEP = 0xFFFFFFF0
"""Slurm numbers the batch script and the interactive shell, which are one process, from here up."""


@dataclass(frozen=True)
class ProcessRank:
    """A process's place among those that run one program together."""

    rank: int
    world: int | None
    """How many there are."""
    source: str
    """The variable that the rank was read from."""

    @property
    def is_one_of_several(self) -> bool:
        """Return whether others run too; a rank of an unknown world has a launcher above it."""
        return self.world is None or self.world > 1


@dataclass(frozen=True)
class _Launcher:
    rank: str
    world: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    """One of these must be set too, or the variable is no sign of a launched process."""


_LAUNCHERS = (
    # torchrun, accelerate and deepspeed; Kubernetes operators set RANK alone, for a whole pod.
    _Launcher("RANK", ("WORLD_SIZE",), ("LOCAL_RANK", "TORCHELASTIC_RUN_ID")),
    _Launcher("OMPI_COMM_WORLD_RANK", ("OMPI_COMM_WORLD_SIZE",)),
    _Launcher("MV2_COMM_WORLD_RANK", ("MV2_COMM_WORLD_SIZE",)),
    _Launcher("PMI_RANK", ("PMI_SIZE",)),
    _Launcher("JSM_NAMESPACE_RANK", ("JSM_NAMESPACE_SIZE",)),
    _Launcher("FLUX_TASK_RANK", ("FLUX_JOB_SIZE",)),
    _Launcher("ALPS_APP_PE"),
    _Launcher("PMIX_RANK", ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS")),
    _Launcher(
        "SLURM_PROCID",
        ("SLURM_STEP_NUM_TASKS", "SLURM_NTASKS"),
        ("SLURM_STEP_ID", "SLURM_STEPID"),
    ),
    _Launcher("RANK", ("WORLD_SIZE",), ("WORLD_SIZE",)),
)
"""From the innermost launcher to the outermost."""


def current_rank(environ: Mapping[str, str] = os.environ) -> ProcessRank | None:
    """Return the rank of this process, or None where it runs alone."""
    return next(_ranks(environ), None)


def disagreement(environ: Mapping[str, str] = os.environ) -> str | None:
    """Describe variables that give another rank than the one that is used, or none at all.

    None where all agree, and where there are none.
    """
    ranks = list(_ranks(environ))
    if not ranks:
        for launcher in _LAUNCHERS:
            if environ.get(launcher.rank) and _launched(launcher, environ):
                return f"{launcher.rank} is not a rank: this process is treated as a single process"
        return None
    used = ranks[0]
    unused = {
        other.source: other.rank
        for other in ranks
        if other.rank != used.rank and other.source != used.source
    }
    if not unused:
        return None
    listed = ", ".join(f"{name}={rank}" for name, rank in unused.items())
    return f"rank {used.rank} is {used.source}'s; {listed} of an outer launcher is not used"


def _ranks(environ: Mapping[str, str]) -> Iterator[ProcessRank]:
    """Read the rank that each launcher has set, innermost first."""
    for launcher in _LAUNCHERS:
        rank = _first_number((launcher.rank,), environ)
        if rank is None or not _launched(launcher, environ):
            continue
        world = _first_number(launcher.world, environ)
        if world is None or rank < world:  # else left over from another run
            yield ProcessRank(rank, world, launcher.rank)


def _launched(launcher: _Launcher, environ: Mapping[str, str]) -> bool:
    if not launcher.needs:
        return True
    if launcher.rank == "SLURM_PROCID":
        step = _first_number(launcher.needs, environ)
        return step is not None and step < _FIRST_SPECIAL_STEP
    return any(environ.get(name) for name in launcher.needs)


def _first_number(names: tuple[str, ...], environ: Mapping[str, str]) -> int | None:
    for name in names:
        text = environ.get(name, "").strip()
        if text.isascii() and text.isdigit() and len(text) < 19:
            return int(text)
    return None


STARTED_VARIABLE = "GPUSIGHT_RECORD_STARTED_NS"
"""When the run began: younger files of its name are those of its own processes."""
_TICK_NS = 50_000_000
"""File times lag behind the clock by up to one of its ticks."""
_CLOCK_SLACK_NS = 2_000_000_000
"""Clocks of file servers differ, and some file systems keep times to two seconds."""


def own_rank() -> int | None:
    """Return this process's rank if it is one of several.

    The launcher's variables decide. Without them (`torch.multiprocessing.spawn`, Lightning's own
    processes) the program's process group does, once there is one.
    """
    launched = current_rank()
    if launched is not None:
        return launched.rank if launched.is_one_of_several else None
    group = sys.modules.get("torch.distributed")
    if group is None or not group.is_available() or not group.is_initialized():
        return None
    return int(group.get_rank()) if group.get_world_size() > 1 else None


def written(
    plan: RecorderPlan, suffix: str, rank: int | None, write: Callable[[Path], None]
) -> Path:
    """Have `write` fill a file, and give it its name once it is complete."""
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
    own = f"{base.name}.pid{os.getpid()}"
    yield base.with_name(f"{own}{suffix}")
    for number in count(2):
        yield base.with_name(f"{own}.{number}{suffix}")


def _claimed(final: Path, *, overwrite: bool) -> Path | None:
    """Create what will become the file, as a sign to other processes that the name is taken.

    Only who made it may look whether the name itself is free, so that two cannot both find it so.
    """
    part = final.with_name(f"{final.name}.part")
    if overwrite and _is_earlier(part, -_CLOCK_SLACK_NS):
        part.unlink(missing_ok=True)
    try:
        part.open("x").close()
    except FileExistsError:
        return None
    if not final.exists():
        return part
    file_clock_ahead_ns = part.stat().st_mtime_ns - time.time_ns()
    if overwrite and _is_earlier(final, file_clock_ahead_ns - _TICK_NS):
        return part
    part.unlink()
    return None


def _is_earlier(path: Path, ahead_ns: int) -> bool:
    """Return whether a file is from before this run, by a clock that is ahead of ours."""
    started_ns = int(os.environ.get(STARTED_VARIABLE, "0"))
    with contextlib.suppress(FileNotFoundError):
        return path.stat().st_mtime_ns < started_ns + ahead_ns
    return False
