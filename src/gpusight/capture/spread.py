"""Recording some ranks of a program that starts its ranks itself.

nsys and ncu follow every process below them, so a choice of ranks must be made further down: the
launcher starts `gpusight record` in place of the program, and each of those decides for its rank.
"""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING

from gpusight.capture.programs import (
    Program,
    base_name,
    is_interpreter,
    launches_torch,
)
from gpusight.capture.request import Tool
from gpusight.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gpusight.capture.request import Request

_TORCHRUN = ("torchrun", "torch.distributed.run")
_FLAGS = frozenset({"--standalone", "--no-python", "--module", "--virtual-local-rank", "-m"})
"""Options of torchrun that take no value."""


def options_of(request: Request) -> list[str]:
    """Write a request as options of `gpusight record`, without its tool, output and program."""
    steps = None if request.steps is None else str(request.steps)
    level = request.level.value if request.tool is Tool.NCU else None
    valued = {
        "--range": request.range_name,
        "--steps": steps,
        "--delay": request.delay_s,
        "--duration": request.duration_s,
        "--kernel": None if request.kernel is None else f"regex:{request.kernel}",
        "--launch-skip": request.launch_skip,
        "--launch-count": request.launch_count,
        "--level": level,
        "--rank": str(request.ranks),
    }
    flags = ("memory", "gpu_metrics", "python_stacks", "graph_nodes", "stop", "overwrite")
    given = [f"{name}={value}" for name, value in valued.items() if value is not None]
    given += [f"--{name.replace('_', '-')}" for name in flags if getattr(request, name)]
    return given + [f"--tool-option={option}" for option in request.extra]


def per_rank(request: Request, program: Program, tool: Tool, output: Path) -> tuple[str, ...]:
    """Give the launcher's command line with `gpusight record` in it; raises where it is not sure.

    Only torchrun's options are known well enough to put something into its command line.
    """
    parts = _torchrun_parts(program)
    if parts is None:
        raise RecordError(
            f"{tool.value} records every process that {program.word} starts, not ranks "
            f"{request.ranks} alone",
            hint=f"let it start gpusight: {_hint(request, program, tool)}",
        )
    before, script = parts
    recorder = [sys.executable, "-m", "gpusight", "record", "--quiet", f"--with={tool.value}"]
    name = str(output).replace("%", "%%")
    recorder += [f"--output={name}", *options_of(request), "--"]
    return (*before, "--no-python", *recorder, *script)


def _torchrun_parts(program: Program) -> tuple[list[str], list[str]] | None:
    """Take torchrun's command line apart: what comes before the script, and what each rank runs."""
    words = list(program.argv)
    index = launches_torch(words)
    if index is None or not words[index - 1].endswith(_TORCHRUN):
        return None
    start, flags = index, set()
    while index < len(words) and words[index].startswith("-") and words[index] != "--":
        name = words[index].replace("_", "-")
        if name == "--run-path":
            return None
        flags.add(name)
        index += 1 if name in _FLAGS or "=" in name else 2
    options = [w for w in words[start:index] if w.replace("_", "-") not in _RUNNING]
    module = ["-m"] if flags & {"-m", "--module"} else []
    python = [] if "--no-python" in flags else [str(program.interpreter), "-u", *module]
    script = words[index + 1 :] if words[index : index + 1] == ["--"] else words[index:]
    return [*words[:start], *options], [*python, *script]


_RUNNING = frozenset({"--no-python", "--module", "-m"})
"""How torchrun starts the script: replaced, as it starts us."""


def _hint(request: Request, program: Program, tool: Tool) -> str:
    recorder = f"gpusight record --with {tool.value} --rank {request.ranks}"
    at = _program_position(program.argv)
    if at is None:
        return f"{program.word} … {recorder} -- PROGRAM"
    return f"{shlex.join(program.argv[:at])} {recorder} -- {shlex.join(program.argv[at:])}"


def _program_position(words: Sequence[str]) -> int | None:
    """Find where a launcher's options end, where that is plain: at a Python or a path."""
    for index, word in enumerate(words[1:], start=1):
        if word.startswith("-"):
            continue
        if is_interpreter(word) or word.startswith(("./", "../")) or base_name(word) in _TORCHRUN:
            return index
    return None
