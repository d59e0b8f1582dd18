"""Finds NVIDIA's nsys and ncu on this machine, and says which ones are there but do not run.

`GPUSIGHT_NSYS` and `GPUSIGHT_NCU` name the one to use. Otherwise the newest wins, because a newer
one knows more GPUs and drivers; of two of the same version, the one on the PATH.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.capture.options.help import read_help
from gpusight.capture.request import Tool
from gpusight.capture.versions import Version
from gpusight.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from gpusight.capture.options.spelling import Option, Told

__all__ = [
    "BrokenTool",
    "InstalledTool",
    "Version",
    "every_tool",
    "find_tool",
    "installed_version",
    "not_found",
    "on_path",
    "override_of",
    "require_tool",
]

_ANSWER_SECONDS = 30
_LEAST_SECONDS = 5
_ROOT = Path("/")
_CUDA_VARIABLES = ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT")
_TITLES = {Tool.NSYS: "Nsight Systems", Tool.NCU: "Nsight Compute"}
_PLACES = {
    Tool.NSYS: (
        "usr/local/cuda*/bin/nsys",
        "opt/nvidia/nsight-systems*/*/bin/nsys",
        "opt/nvidia/nsight-systems*/*/target-linux-*/nsys",
        "opt/nvidia/nsight-compute/*/host/target-linux-*/nsys",
        "opt/nvidia/hpc_sdk/Linux_*/*/profilers/Nsight_Systems/bin/nsys",
        "usr/lib/nsight-systems/bin/nsys",
        "Program Files/NVIDIA Corporation/Nsight Systems*/target-windows-*/nsys.exe",
    ),
    Tool.NCU: (
        "usr/local/cuda*/bin/ncu",
        "opt/nvidia/nsight-compute/*/ncu",
        "opt/nvidia/hpc_sdk/Linux_*/*/profilers/Nsight_Compute/ncu",
        "usr/lib/nsight-compute/ncu",
        "Program Files/NVIDIA Corporation/Nsight Compute*/ncu.bat",
    ),
}
_EVERY_HELP_LISTS = {
    Tool.NSYS: frozenset({"--trace", "--sample", "--output"}),
    Tool.NCU: frozenset({"--section", "--launch-count", "--export"}),
}
_HELP = {Tool.NSYS: ("profile", "--help"), Tool.NCU: ("--help",)}


@dataclass(frozen=True)
class InstalledTool:
    """A tool that runs."""

    tool: Tool
    path: Path
    version: Version
    told: Told | None = field(default=None, compare=False)
    """Options that its own help lists, with their values; None: not asked."""

    def spelling(self, option: Option) -> str | None:
        """Write an option as this version does; None: it has no such."""
        return option.spelled(self.version, self.told)

    def lists(self, option: Option, value: str) -> bool:
        """Tell whether its help lists this value of an option; False also when it was not asked."""
        spelled = self.spelling(option)
        return spelled is not None and value in (self.told or {}).get(spelled, ())

    def __str__(self) -> str:
        """Name it for people: `nsys 2025.3.1`."""
        return f"{self.tool.value} {self.version}"


@dataclass(frozen=True)
class BrokenTool:
    """A tool that is there and does not start."""

    path: Path
    why: str


def on_path(name: str, folders: Iterable[str] | None = None) -> str | None:
    """Find a program on the PATH, or in other folders, but never in the current folder.

    An empty or relative entry means the current folder, where anybody's files may lie: a program
    planted there would run. A name with a folder in it is taken as it is.
    """
    if os.path.dirname(name):  # noqa: PTH120 - `./nsys` must keep its dot
        return shutil.which(name)
    if folders is None:
        folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    places = (str(Path(folder) / name) for folder in folders if os.path.isabs(folder))  # noqa: PTH117
    return next((found for place in places if (found := shutil.which(place))), None)


def find_tool(tool: Tool) -> InstalledTool | None:
    """Give the newest that runs; None where there is none."""
    began = time.monotonic()
    return _best(every_tool(tool), began)


def _best(every: list[InstalledTool | BrokenTool], began_s: float) -> InstalledTool | None:
    best = next((one for one in every if isinstance(one, InstalledTool)), None)
    return None if best is None else replace(best, told=_told(best, began_s))


def _why_none(tool: Tool, every: list[InstalledTool | BrokenTool]) -> str:
    broken = next((one for one in every if isinstance(one, BrokenTool)), None)
    if broken is None:
        return "none was found"
    said = f"{broken.path} does not start, {broken.why}"
    return said if override_of(tool) is None else f"{_variable(tool)} is set, and {said}"


def not_found(tool: Tool) -> str:
    """Say that there is no such tool; a variable that names the wrong one is the reason."""
    chosen = override_of(tool)
    if chosen is None:
        return f"{tool.value} was not found"
    return f"{tool.value} was not found: {_variable(tool)} is {chosen}, which does not run"


def require_tool(tool: Tool) -> InstalledTool:
    """Give the newest that runs, or say what is missing and how to get it."""
    began = time.monotonic()
    every = every_tool(tool)
    found = _best(every, began)
    if found is None:
        name, title = tool.value, _TITLES[tool]
        raise RecordError(
            f"{name} is needed and none runs here",
            why=_why_none(tool, every),
            hint=f"install NVIDIA {title} or set {_variable(tool)} to where {name} is; "
            "gpusight doctor says what this machine can capture with",
        )
    return found


def every_tool(tool: Tool) -> list[InstalledTool | BrokenTool]:
    """Try every one on this machine: the one that would be used first, broken ones last."""
    found: dict[str, InstalledTool | BrokenTool] = {}
    for path in _candidates(tool):
        real = os.path.realpath(path)
        if real not in found:
            found[real] = _tried(tool, path)
    return sorted(found.values(), key=_newness, reverse=True)


def override_of(tool: Tool) -> Path | None:
    """Give the one that the user chose through the environment."""
    chosen = os.environ.get(_variable(tool))
    return Path(chosen) if chosen else None


def installed_version(path: str | Path) -> Version | str:
    """Ask a tool for its version; gives why not where it does not say."""
    answer = _answer(path, "--version")
    if isinstance(answer, str):
        return answer
    said = answer.stdout + answer.stderr
    if answer.returncode != 0:
        return f"exit code {answer.returncode} {_last_line(said)}".rstrip()
    return Version.parse(said) or "it does not say which version it is"


def _newness(found: InstalledTool | BrokenTool) -> Version:
    return found.version if isinstance(found, InstalledTool) else Version(0, 0)


def _variable(tool: Tool) -> str:
    return f"GPUSIGHT_{tool.name}"


def _candidates(tool: Tool) -> Iterator[Path]:
    chosen = override_of(tool)
    if chosen is not None:
        yield chosen
        return
    cuda = (os.environ.get(variable, "") for variable in _CUDA_VARIABLES)
    toolkits = [str(Path(folder) / "bin") for folder in cuda if folder]
    for found in (on_path(tool.value), *(on_path(tool.value, [bin_]) for bin_ in toolkits)):
        if found is not None:
            yield Path(found)
    for pattern in _PLACES[tool]:
        # Newest first, so that links to it are named after it.
        yield from sorted(_ROOT.glob(pattern), reverse=True)


def _tried(tool: Tool, path: Path) -> InstalledTool | BrokenTool:
    version = installed_version(path)
    if isinstance(version, str):
        return BrokenTool(path, version)
    return InstalledTool(tool, path, version)


def _told(installed: InstalledTool, began_s: float) -> Told | None:
    """Read its help; where that fails the version alone must do."""
    left_s = _ANSWER_SECONDS - (time.monotonic() - began_s)
    answer = _answer(installed.path, *_HELP[installed.tool], within_s=max(left_s, _LEAST_SECONDS))
    if isinstance(answer, str) or answer.returncode != 0:
        return None
    told = read_help(installed.tool, answer.stdout + answer.stderr)
    # A help that is laid out anew would look as if it had no options.
    return told if _EVERY_HELP_LISTS[installed.tool] <= told.keys() else None


def _answer(
    path: str | Path, *arguments: str, within_s: float | None = None
) -> subprocess.CompletedProcess[str] | str:
    """Run it; gives why not where it cannot be started."""
    limit_s = _ANSWER_SECONDS if within_s is None else within_s
    try:
        child = subprocess.Popen(  # noqa: S603 - a tool that the user installed
            [str(path), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=True,
        )
    except OSError as error:
        return error.strerror or str(error)
    with child:
        try:
            out, err = child.communicate(timeout=limit_s)
        except subprocess.TimeoutExpired:
            _end_all(child)
            return f"no answer within {limit_s:.0f} s"
        except BaseException:  # Ctrl-C does not reach it: it has a session of its own
            _end_all(child)
            raise
    return subprocess.CompletedProcess(child.args, child.returncode, out, err)


def _end_all(child: subprocess.Popen[str]) -> None:
    """End a tool, and what it started."""
    if sys.platform == "win32":
        child.kill()
        return
    with contextlib.suppress(ProcessLookupError):
        os.killpg(child.pid, signal.SIGKILL)


def _last_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[-1][:200] if lines else ""
