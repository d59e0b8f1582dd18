"""Chooses the tool that records: the requested one, else the best for machine and program."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.errors import RecordError, UsageError
from gpusight.recording.inside.cuda_driver import DEVICE_FILES
from gpusight.recording.inside.environment import surrounding_profiler
from gpusight.recording.inside.stack_sampler import DEFAULT_HZ
from gpusight.recording.nsys_command import CAPTURE_RANGE, DELAY, DURATION
from gpusight.recording.programs import (
    CONTAINERS,
    OLDEST_PYTHON,
    ProgramInfo,
    ProgramKind,
    find_cupti,
    imported_packages,
    query_interpreter,
)
from gpusight.recording.request import NcuLevel, RecordRequest, Tool, stop_without_end
from gpusight.recording.tools import find_tool, recent_tool, require_tool, why_not_found

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.recording.tools import InstalledTool


_INSIDE = (Tool.TORCH, Tool.CUPTI)
"""These record from within the program's Python."""
_GPU_SIGNS = (*DEVICE_FILES, "/proc/driver/nvidia/version")
_WITHOUT_TORCH = frozenset({"jax", "cupy", "numba", "pycuda", "cuda", "tensorflow", "warp"})
"""Packages that use the GPU, and whose programs have no steps that are counted."""
_WITH_STEPS = frozenset(
    {"gpusight", "accelerate", "diffusers", "lightning", "timm", "transformers"}
)
"""`gs.step`, and packages that import torch for a program."""
_SUPPORTED_BY = {
    "gpu_metrics": ("--gpu-metrics", (Tool.NSYS,)),
    "memory": ("--memory", (Tool.NSYS, Tool.TORCH, Tool.CUPTI)),
    "shapes": ("--shapes", (Tool.TORCH,)),
    "python_stacks": ("--python-stacks", (Tool.NSYS, Tool.TORCH)),
    "stacks_hz": ("--stacks", (Tool.NSYS, Tool.TORCH, Tool.CUPTI)),
    "graph_nodes": ("--graph-nodes", (Tool.NSYS, Tool.CUPTI, Tool.TORCH)),
    "delay_s": ("--delay", (Tool.NSYS, Tool.TORCH, Tool.CUPTI)),
    "duration_s": ("--duration", (Tool.NSYS, Tool.TORCH, Tool.CUPTI)),
    "kernel": ("--kernel", (Tool.NCU,)),
    "launch_skip": ("--launch-skip", (Tool.NCU,)),
    "launch_count": ("--launch-count", (Tool.NCU,)),
    "extra": ("--tool-option", (Tool.NSYS, Tool.NCU)),
}
"""The option of each field of a request, and the tools that have it."""


@dataclass(frozen=True)
class ToolChoice:
    """The tool that records, and why it was chosen."""

    tool: Tool
    installed: InstalledTool | None
    """nsys or ncu; None for what records from within."""
    why: str
    notes: tuple[str, ...] = ()
    windowed: bool = False
    """Recorded are some steps, where the program has steps that can be counted."""

    @property
    def is_inside(self) -> bool:
        """Return whether it records from within the program's Python."""
        return self.tool in _INSIDE

    @property
    def version(self) -> str | None:
        """The tool's version, where it has one of its own."""
        return None if self.installed is None else str(self.installed.version)


def choose(
    request: RecordRequest,
    program: ProgramInfo,
    environ: Mapping[str, str],
    *,
    dry_run: bool = False,
) -> ToolChoice:
    """Choose the tool for a request; raises where none can do it.

    In a dry run, nsys and ncu need not be installed: the choice is then a recent version.
    """
    profiler = surrounding_profiler(environ)
    if profiler is not None:
        raise RecordError(
            f"already running under {profiler}; only one profiler can use the GPU at a time",
            hint=f"run the program without gpusight record, or without {profiler}",
        )
    try:
        if request.tool is None:
            choice = _best(request, program, environ)
        else:
            installed = None if request.tool in _INSIDE else require_tool(request.tool)
            choice = ToolChoice(request.tool, installed, "requested")
    except RecordError:
        if not dry_run or request.tool in _INSIDE:
            raise
        choice = _recent(request.tool)
    _refuse_unsupported(request, choice.tool)
    choice = replace(choice, notes=(*choice.notes, *_unlisted(request, choice)))
    if choice.is_inside or request.steps is not None:
        choice = _checked_python(choice, program, environ)
    choice = replace(choice, windowed=_is_windowed(request, choice, program, environ))
    if program.is_launcher and request.ranks.chosen is not None:
        return choice  # what it starts is another `gpusight record`, which looks again
    if request.has_window_numbers and not choice.windowed:
        raise RecordError(
            f"{choice.tool.value} cannot count the steps of {program.word}",
            why="--warmup, --timed and --recorded need a Python program, and PyTorch for nsys",
            hint="use --range, --delay or --duration",
        )
    ends = request.is_partial or request.launch_count is not None or choice.windowed
    if request.stop and not ends:
        raise stop_without_end()
    return choice


def _is_windowed(
    request: RecordRequest, choice: ToolChoice, program: ProgramInfo, environ: Mapping[str, str]
) -> bool:
    """Return whether the recorder in the program shall choose when to record.

    nsys needs to know before the program starts, and would record nothing of one that we do not get
    into. So only a single Python program with PyTorch is worth it, and no launcher of several. Of
    other programs all is recorded, from their start: until nsys listens, a short one may be over.
    """
    if not request.may_be_windowed or choice.tool is Tool.NCU:
        return False
    if choice.is_inside:
        return True
    timing = (CAPTURE_RANGE, DELAY, DURATION)
    is_surely_python = program.interpreter is not None and program.deaf_flag is None
    several = program.is_launcher or program.word in CONTAINERS
    if several or not is_surely_python or any(o.among(request.extra) for o in timing):
        return False
    if not request.has_window_numbers and _never_imports_torch(program):
        return False
    python = query_interpreter(str(program.interpreter), environ)
    return python is not None and python.version >= OLDEST_PYTHON and "torch" in python.packages


def _never_imports_torch(program: ProgramInfo) -> bool:
    """Return whether a program surely uses the GPU by other means, and has no `gs.step`."""
    packages = imported_packages(program.argv)
    has_steps = any("torch" in name or name in _WITH_STEPS for name in packages)
    return bool(packages & _WITHOUT_TORCH) and not has_steps


def _recent(requested: Tool | None) -> ToolChoice:
    tool = requested or Tool.NSYS
    recent = recent_tool(tool)
    note = f"{tool.value} is not installed here; the command is for {recent}"
    return ToolChoice(tool, recent, "requested" if requested else "the default", (note,))


def _unlisted(request: RecordRequest, choice: ToolChoice) -> tuple[str, ...]:
    """Note options for the tool that its help does not list; it takes shortened ones too."""
    tool = choice.installed
    if tool is None or tool.help_options is None:
        return ()
    names = (option.partition("=")[0] for option in request.extra if option.startswith("--"))
    unknown = (n for n in names if not any(known.startswith(n) for known in tool.help_options))
    return tuple(f"{tool} --help does not list {name}" for name in unknown)


def is_recorder_injected(request: RecordRequest, choice: ToolChoice) -> bool:
    """Return whether a recorder of ours, or what counts steps, runs in the program."""
    return choice.is_inside or request.steps is not None or choice.windowed


def chosen_stacks_hz(
    request: RecordRequest, choice: ToolChoice, program: ProgramInfo
) -> float | None:
    """Return how often stacks are sampled in the program; None: never.

    By default where Python surely runs, or our recorder is in the program anyway.
    """
    can_sample = program.kind is not ProgramKind.BINARY and program.deaf_flag is None
    if request.stacks_hz is None:
        is_python = program.kind is ProgramKind.PYTHON or is_recorder_injected(request, choice)
        by_default = can_sample and is_python and choice.tool is not Tool.NCU
        return float(DEFAULT_HZ) if by_default else None
    if not request.stacks_hz:
        return None
    if not can_sample:
        hint = "remove --stacks"
        if program.deaf_flag is not None:
            hint = f"remove {program.deaf_flag}, which ignores PYTHONPATH and sitecustomize"
        raise RecordError(f"--stacks cannot sample {program.word}", hint=hint)
    return request.stacks_hz


def _best(request: RecordRequest, program: ProgramInfo, environ: Mapping[str, str]) -> ToolChoice:
    if request.kernel or request.launch_count is not None or request.launch_skip is not None:
        raise UsageError(
            "--kernel, --launch-skip and --launch-count select launches for Nsight Compute",
            hint="add --with ncu",
        )
    installed = find_tool(Tool.NSYS)
    if installed is not None:
        return ToolChoice(Tool.NSYS, installed, "the default")
    if program.kind is ProgramKind.BINARY:
        raise RecordError(
            f"{why_not_found(Tool.NSYS)}, and only nsys records programs that are not Python",
            hint="see: gpusight doctor",
        )
    absent = why_not_found(Tool.NSYS)
    python = (
        None if program.interpreter is None else query_interpreter(program.interpreter, environ)
    )
    if python is None:
        why = f"{absent}; the packages of the program's Python are unknown"
        return ToolChoice(Tool.TORCH, None, why)
    if has_gpu() and find_cupti(str(program.interpreter), environ) is not None:
        return ToolChoice(Tool.CUPTI, None, absent)
    if "torch" in python.packages:
        return ToolChoice(Tool.TORCH, None, f"{absent}; the program's Python has torch")
    raise RecordError(
        "no profiler can record this program",
        why=f"{absent}, and the program's Python finds neither libcupti nor torch",
        hint="see: gpusight doctor",
    )


def has_gpu() -> bool:
    """Return whether this machine shows signs of an NVIDIA GPU; nothing is initialized."""
    if sys.platform == "win32":
        return Path(r"C:\Windows\System32\nvcuda.dll").exists()
    return any(Path(sign).exists() for sign in _GPU_SIGNS)


def _refuse_unsupported(request: RecordRequest, tool: Tool) -> None:
    """Refuse what the tool cannot do: a capture without it would look complete."""
    for field, (option, tools) in _SUPPORTED_BY.items():
        if getattr(request, field) not in (None, False, ()) and tool not in tools:
            others = " or ".join(f"--with {other.value}" for other in tools)
            raise RecordError(
                f"{tool.value} does not support {option}", hint=f"remove it, or use {others}"
            )
    if request.level is not NcuLevel.QUICK and tool is not Tool.NCU:
        raise RecordError(f"{tool.value} does not support --level", hint="use --with ncu")


def _checked_python(
    choice: ToolChoice, program: ProgramInfo, environ: Mapping[str, str]
) -> ToolChoice:
    """Refuse programs that we cannot be loaded into; notes what is not sure."""
    tool = choice.tool
    oldest = ".".join(map(str, OLDEST_PYTHON))
    needed_for = f"--with {tool.value}" if tool in _INSIDE else "--steps"
    if program.kind is ProgramKind.BINARY:
        hint = "use --with nsys" if tool in _INSIDE else "use --range, --delay or --duration"
        raise RecordError(
            f"{needed_for} needs a Python program; {program.word} is not one", hint=hint
        )
    if program.deaf_flag is not None:
        raise RecordError(
            f"{needed_for} does not work with `{program.word} {program.deaf_flag}`",
            why="that option ignores PYTHONPATH and sitecustomize",
            hint=f"remove {program.deaf_flag}",
        )
    python = (
        None if program.interpreter is None else query_interpreter(program.interpreter, environ)
    )
    if python is None:
        unsure = f"{needed_for} works if {program.word} runs Python {oldest} or later"
        return replace(choice, notes=(*choice.notes, unsure))
    if python.version < OLDEST_PYTHON:
        version = ".".join(map(str, python.version))
        raise RecordError(
            f"{needed_for} needs Python {oldest} in the program; it has {version}",
            hint="use --with nsys without --steps",
        )
    path = str(program.interpreter)
    if tool is Tool.TORCH and "torch" not in python.packages:
        raise _lacks(tool, "torch", "torch", path)
    if tool is not Tool.CUPTI:
        return choice
    library = find_cupti(path, environ)
    if library is None:
        raise _lacks(tool, "a libcupti that the driver supports", "cupti-python", path)
    return replace(choice, why=f"{choice.why}; libcupti is {library}")


def _lacks(tool: Tool, needed: str, package: str, python: str) -> RecordError:
    return RecordError(
        f"--with {tool.value} needs {needed} in the program's Python",
        why=f"not found by {python}",
        hint=f"{shlex.quote(python)} -m pip install {package}; or see: gpusight doctor",
    )
