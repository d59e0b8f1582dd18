"""Which tool records: the one asked for, else the best for this machine and this program."""

from __future__ import annotations

import shlex
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.capture.inside.driver import DEVICE_FILES
from gpusight.capture.inside.surroundings import surrounding_profiler
from gpusight.capture.programs import OLDEST_PYTHON, Kind, Program, ask, find_cupti
from gpusight.capture.request import Level, Request, Tool
from gpusight.capture.tools import find_tool, not_found, require_tool
from gpusight.errors import RecordError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.capture.programs import Interpreter
    from gpusight.capture.tools import InstalledTool

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
class Choice:
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


def choose(request: Request, program: Program, environ: Mapping[str, str]) -> Choice:
    """Choose the tool for a request; raises where none can do it."""
    _refuse_second_profiler(environ)
    choice = _asked_for(request.tool) if request.tool else _best(request, program, environ)
    _refuse_unsupported(request, choice.tool)
    choice = replace(choice, notes=_unlisted(request, choice))
    if not is_injected(request, choice.tool):
        return choice
    return _checked_python(choice, program, environ)


def _unlisted(request: Request, choice: Choice) -> tuple[str, ...]:
    """Name options for the tool that its help does not list; it takes shortened ones too."""
    tool = choice.installed
    if tool is None or tool.told is None:
        return ()
    names = (option.partition("=")[0] for option in request.extra if option.startswith("--"))
    unknown = (name for name in names if not any(known.startswith(name) for known in tool.told))
    return tuple(f"the help of {tool} lists no {name}" for name in unknown)


def is_injected(request: Request, tool: Tool) -> bool:
    """Tell whether something of ours runs within the program: a recorder, or what counts steps."""
    return tool in _INSIDE or request.steps is not None


def _refuse_second_profiler(environ: Mapping[str, str]) -> None:
    around = surrounding_profiler(environ)
    if around is not None:
        raise RecordError(
            f"this runs under {around} already, and a GPU has one profiler at a time",
            hint=f"run the program itself, without gpusight record, or leave {around} out",
        )


def _asked_for(tool: Tool) -> Choice:
    if tool in _INSIDE:
        return Choice(tool, None, "asked for")
    return Choice(tool, require_tool(tool), "asked for")


def _best(request: Request, program: Program, environ: Mapping[str, str]) -> Choice:
    if request.kernel or request.launch_count is not None or request.launch_skip is not None:
        raise UsageError(
            "--kernel, --launch-skip and --launch-count choose launches for Nsight Compute",
            hint="add --with ncu",
        )
    installed = find_tool(Tool.NSYS)
    if installed is not None:
        return Choice(Tool.NSYS, installed, "the default")
    if program.kind is Kind.BINARY:
        raise RecordError(
            f"{not_found(Tool.NSYS)}, and nothing else records a program that is not Python",
            hint="see: gpusight doctor",
        )
    return _best_inside(program, environ)


def _best_inside(program: Program, environ: Mapping[str, str]) -> Choice:
    absent = not_found(Tool.NSYS)
    answer = None if program.interpreter is None else ask(program.interpreter, environ)
    if answer is None:
        why = f"{absent}; which packages the program's Python has is not known"
        return Choice(Tool.TORCH, None, why)
    if has_gpu() and find_cupti(str(program.interpreter), environ) is not None:
        return Choice(Tool.CUPTI, None, absent)
    if "torch" in answer.packages:
        return Choice(Tool.TORCH, None, f"{absent}; the program's Python has torch")
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


def _refuse_unsupported(request: Request, tool: Tool) -> None:
    """Refuse what the tool cannot do: a capture without it would look complete."""
    for field, (option, able) in _CAN.items():
        given = getattr(request, field)
        if given not in (None, False, ()) and tool not in able:
            others = " or ".join(f"--with {other.value}" for other in able)
            raise RecordError(
                f"{tool.value} has nothing for {option}", hint=f"leave it out, or give {others}"
            )
    if request.level is not Level.QUICK and tool is not Tool.NCU:
        raise RecordError(f"{tool.value} has nothing for --level", hint="it is for --with ncu")


def _checked_python(choice: Choice, program: Program, environ: Mapping[str, str]) -> Choice:
    """Refuse programs that we cannot get into; adds what could not be made sure of."""
    tool = choice.tool
    needed_for = f"--with {tool.value}" if tool in _INSIDE else "--steps"
    if program.kind is Kind.BINARY:
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
    answer = None if program.interpreter is None else ask(program.interpreter, environ)
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


def _check_version(needed_for: str, answer: Interpreter) -> None:
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
