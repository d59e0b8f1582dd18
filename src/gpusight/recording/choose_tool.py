"""Which tool records: the requested one, else the best for this machine and this program."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.errors import RecordError, UsageError
from gpusight.recording.inside.cuda_driver import DEVICE_FILES
from gpusight.recording.inside.environment import surrounding_profiler
from gpusight.recording.programs import (
    OLDEST_PYTHON,
    ProgramInfo,
    ProgramKind,
    ask_interpreter,
    find_cupti,
)
from gpusight.recording.request import NcuLevel, RecordRequest, Tool
from gpusight.recording.tools import find_tool, require_tool, why_not_found

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.recording.programs import InterpreterInfo
    from gpusight.recording.tools import InstalledTool


_INSIDE = (Tool.TORCH, Tool.CUPTI)
"""These record from within the program's Python."""
_GPU_SIGNS = (*DEVICE_FILES, "/proc/driver/nvidia/version")
_CAN = {
    "gpu_metrics": ("--gpu-metrics", (Tool.NSYS,)),
    "memory": ("--memory", (Tool.NSYS, Tool.TORCH, Tool.CUPTI)),
    "python_stacks": ("--python-stacks", (Tool.NSYS, Tool.TORCH)),
    "graph_nodes": ("--graph-nodes", (Tool.NSYS, Tool.CUPTI, Tool.TORCH)),
    "delay_s": ("--delay", (Tool.NSYS, Tool.TORCH, Tool.CUPTI)),
    "duration_s": ("--duration", (Tool.NSYS, Tool.TORCH, Tool.CUPTI)),
    "kernel": ("--kernel", (Tool.NCU,)),
    "launch_skip": ("--launch-skip", (Tool.NCU,)),
    "launch_count": ("--launch-count", (Tool.NCU,)),
    "extra": ("--tool-option", (Tool.NSYS, Tool.NCU)),
}
"""Which tools do what a field of the request asks for."""


@dataclass(frozen=True)
class ToolChoice:
    """The tool that records, and why it was chosen."""

    tool: Tool
    installed: InstalledTool | None
    """nsys or ncu; None for what records from within."""
    why: str
    notes: tuple[str, ...] = ()

    @property
    def version(self) -> str | None:
        """The tool's version, where it has one of its own."""
        return None if self.installed is None else str(self.installed.version)


def choose(request: RecordRequest, program: ProgramInfo, environ: Mapping[str, str]) -> ToolChoice:
    """Choose the tool for a request; raises where none can do it."""
    _refuse_second_profiler(environ)
    choice = _requested_tool(request.tool) if request.tool else _best(request, program, environ)
    _refuse_unsupported(request, choice.tool)
    choice = replace(choice, notes=_unlisted(request, choice))
    if not is_injected(request, choice.tool):
        return choice
    return _checked_python(choice, program, environ)


def _unlisted(request: RecordRequest, choice: ToolChoice) -> tuple[str, ...]:
    """Name options for the tool that its help does not list; it takes shortened ones too."""
    tool = choice.installed
    if tool is None or tool.told is None:
        return ()
    names = (option.partition("=")[0] for option in request.extra if option.startswith("--"))
    unknown = (name for name in names if not any(known.startswith(name) for known in tool.told))
    return tuple(f"the help of {tool} lists no {name}" for name in unknown)


def is_injected(request: RecordRequest, tool: Tool) -> bool:
    """Tell whether something of ours runs within the program: a recorder, or what counts steps."""
    return tool in _INSIDE or request.steps is not None


def _refuse_second_profiler(environ: Mapping[str, str]) -> None:
    around = surrounding_profiler(environ)
    if around is not None:
        raise RecordError(
            f"this runs under {around} already, and a GPU has one profiler at a time",
            hint=f"run the program itself, without gpusight record, or leave {around} out",
        )


def _requested_tool(tool: Tool) -> ToolChoice:
    if tool in _INSIDE:
        return ToolChoice(tool, None, "asked for")
    return ToolChoice(tool, require_tool(tool), "asked for")


def _best(request: RecordRequest, program: ProgramInfo, environ: Mapping[str, str]) -> ToolChoice:
    if request.kernel or request.launch_count is not None or request.launch_skip is not None:
        raise UsageError(
            "--kernel, --launch-skip and --launch-count choose launches for Nsight Compute",
            hint="add --with ncu",
        )
    installed = find_tool(Tool.NSYS)
    if installed is not None:
        return ToolChoice(Tool.NSYS, installed, "the default")
    if program.kind is ProgramKind.BINARY:
        raise RecordError(
            f"{why_not_found(Tool.NSYS)}, and nothing else records a program that is not Python",
            hint="see: gpusight doctor",
        )
    return _best_inside(program, environ)


def _best_inside(program: ProgramInfo, environ: Mapping[str, str]) -> ToolChoice:
    absent = why_not_found(Tool.NSYS)
    answer = None if program.interpreter is None else ask_interpreter(program.interpreter, environ)
    if answer is None:
        why = f"{absent}; which packages the program's Python has is not known"
        return ToolChoice(Tool.TORCH, None, why)
    if has_gpu() and find_cupti(str(program.interpreter), environ) is not None:
        return ToolChoice(Tool.CUPTI, None, absent)
    if "torch" in answer.packages:
        return ToolChoice(Tool.TORCH, None, f"{absent}; the program's Python has torch")
    raise RecordError(
        "nothing can record this program",
        why=f"{absent}, and the program's Python finds neither libcupti nor torch",
        hint="see: gpusight doctor",
    )


def has_gpu() -> bool:
    """Tell whether this machine shows signs of an NVIDIA GPU; nothing is initialised."""
    if sys.platform == "win32":
        return Path(r"C:\Windows\System32\nvcuda.dll").exists()
    return any(Path(sign).exists() for sign in _GPU_SIGNS)


def _refuse_unsupported(request: RecordRequest, tool: Tool) -> None:
    """Refuse what the tool cannot do: a capture without it would look complete."""
    for field, (option, able) in _CAN.items():
        given = getattr(request, field)
        if given not in (None, False, ()) and tool not in able:
            others = " or ".join(f"--with {other.value}" for other in able)
            raise RecordError(
                f"{tool.value} has nothing for {option}", hint=f"leave it out, or give {others}"
            )
    if request.level is not NcuLevel.QUICK and tool is not Tool.NCU:
        raise RecordError(f"{tool.value} has nothing for --level", hint="it is for --with ncu")


def _checked_python(
    choice: ToolChoice, program: ProgramInfo, environ: Mapping[str, str]
) -> ToolChoice:
    """Refuse programs that we cannot get into; adds what could not be made sure of."""
    tool = choice.tool
    needed_for = f"--with {tool.value}" if tool in _INSIDE else "--steps"
    if program.kind is ProgramKind.BINARY:
        hint = "give --with nsys" if tool in _INSIDE else "give --range, --delay or --duration"
        raise RecordError(
            f"{needed_for} needs a Python program, and {program.word} is none", hint=hint
        )
    if program.deaf_flag is not None:
        raise RecordError(
            f"{needed_for} cannot reach into `{program.word} {program.deaf_flag}`",
            why="that option shuts out PYTHONPATH and sitecustomize",
            hint=f"leave {program.deaf_flag} out",
        )
    answer = None if program.interpreter is None else ask_interpreter(program.interpreter, environ)
    if answer is None:
        unsure = f"{needed_for} works if {program.word} runs Python {_oldest()} or later"
        return replace(choice, notes=(*choice.notes, unsure))
    where = str(program.interpreter)
    _check_version(needed_for, answer)
    if tool is Tool.TORCH and "torch" not in answer.packages:
        raise _lacks(tool, "torch", "torch", where)
    if tool is not Tool.CUPTI:
        return choice
    library = find_cupti(where, environ)
    if library is None:
        raise _lacks(tool, "a libcupti that the driver takes", "cupti-python", where)
    return replace(choice, why=f"{choice.why}; libcupti is {library}")


def _check_version(needed_for: str, answer: InterpreterInfo) -> None:
    if answer.version < OLDEST_PYTHON:
        version = ".".join(map(str, answer.version))
        raise RecordError(
            f"{needed_for} needs Python {_oldest()} in the program, which has {version}",
            hint="give --with nsys without --steps",
        )


def _lacks(tool: Tool, what: str, package: str, where: str) -> RecordError:
    return RecordError(
        f"--with {tool.value} needs {what} in the program's Python",
        why=f"{where} finds none",
        hint=f"{shlex.quote(where)} -m pip install {package}; or see: gpusight doctor",
    )


def _oldest() -> str:
    return ".".join(map(str, OLDEST_PYTHON))
