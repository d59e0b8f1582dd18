"""NVIDIA's nsys and ncu on this machine.

Where they are, their versions, and how each spells its options.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from gpusight.errors import RecordError
from gpusight.recording.request import Tool

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


_VERSION = re.compile(r"\b(20\d\d)\.(\d{1,4})(?:\.(\d{1,4}))?")


class ToolVersion(NamedTuple):
    """A version, comparable; what follows the patch (a build, a hash) is left out."""

    year: int
    minor: int
    patch: int = 0

    @classmethod
    def parse(cls, text: str) -> ToolVersion | None:
        """Find the version in what a tool prints, or in what a report says made it."""
        found = _VERSION.search(text)
        return cls(*(int(part or 0) for part in found.groups())) if found else None

    def __str__(self) -> str:
        """Write it as NVIDIA does."""
        return f"{self.year}.{self.minor}.{self.patch}"


_NSYS_OPTION = re.compile(r"^\t?\s?(?:\(\w+\) )?(?:-\w, )?(--[a-zA-Z][\w-]*)", re.MULTILINE)
_NSYS_VALUES = re.compile(
    r"(?:Possible|Optional) (?:"
    r"formats are:?([^\n]*)|values(?: for <granularity>)? are:?(.*?)(?:\.\s|\Z))",
    re.DOTALL,
)
_QUOTED = re.compile(r"'([a-zA-Z][\w-]*)")
_WORD = re.compile(r"\b[a-zA-Z][\w-]*\b")
_OPEN_ENDED = re.compile(r"integers|comma|list of|number|example|range@|`")
_JOINING = frozenset({"or", "and"})

_NCU_OPTION = re.compile(r"^  (?:-\w \[ )?(--[a-z][\w-]*)", re.MULTILINE)
# Prose goes on in column 40, values stand further in, alone or before a colon that explains them.
_NCU_VALUES = re.compile(
    r"^ {42,46}([a-z][a-z/-]*)(?: \(default\))?(?:\.?\s*|\s*: .*)$", re.MULTILINE
)


def read_help(tool: Tool, text: str) -> HelpOptions:
    """Read what `nsys profile --help` or `ncu --help` printed."""
    if tool is Tool.NSYS:
        return {name: _nsys_values(block) for name, block in _blocks(_NSYS_OPTION, text)}
    return {name: _ncu_values(block) for name, block in _blocks(_NCU_OPTION, text)}


def _blocks(start: re.Pattern[str], text: str) -> list[tuple[str, str]]:
    """Give each option with the text up to the next one."""
    found = list(start.finditer(text))
    ends = [*(match.start() for match in found), len(text)][1:]
    return [(match[1], text[match.end() : end]) for match, end in zip(found, ends, strict=True)]


def _nsys_values(block: str) -> frozenset[str]:
    found = _NSYS_VALUES.search(block)
    listed = (found[1] or found[2]) if found else ""
    words = [] if _OPEN_ENDED.search(listed) else _WORD.findall(listed)
    return frozenset(_QUOTED.findall(listed) or words) - _JOINING


def _ncu_values(block: str) -> frozenset[str]:
    return frozenset(part for line in _NCU_VALUES.findall(block) for part in line.split("/"))


_ANSWER_SECONDS = 30
_MIN_ANSWER_SECONDS = 5
_ROOT = Path("/")
_CUDA_VARIABLES = ("CUDA_HOME", "CUDA_PATH", "CUDA_ROOT")
_TITLES = {Tool.NSYS: "Nsight Systems", Tool.NCU: "Nsight Compute"}
_INSTALL_FOLDERS = {
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
    version: ToolVersion
    told: HelpOptions | None = field(default=None, compare=False)
    """Options that its own help lists, with their values; None: not asked."""

    def spelling(self, option: ToolOption) -> str | None:
        """Write an option as this version does; None: it has no such."""
        return option.spelled(self.version, self.told)

    def lists(self, option: ToolOption, value: str) -> bool:
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
    return None if best is None else replace(best, told=_options_in_help(best, began_s))


def _why_none(tool: Tool, every: list[InstalledTool | BrokenTool]) -> str:
    broken = next((one for one in every if isinstance(one, BrokenTool)), None)
    if broken is None:
        return "none was found"
    said = f"{broken.path} does not start, {broken.why}"
    return said if override_of(tool) is None else f"{_variable(tool)} is set, and {said}"


def why_not_found(tool: Tool) -> str:
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


def installed_version(path: str | Path) -> ToolVersion | str:
    """Ask a tool for its version; gives why not where it does not say."""
    answer = _answer(path, "--version")
    if isinstance(answer, str):
        return answer
    said = answer.stdout + answer.stderr
    if answer.returncode != 0:
        return f"exit code {answer.returncode} {_last_line(said)}".rstrip()
    return ToolVersion.parse(said) or "it does not say which version it is"


def _newness(found: InstalledTool | BrokenTool) -> ToolVersion:
    return found.version if isinstance(found, InstalledTool) else ToolVersion(0, 0)


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
    for pattern in _INSTALL_FOLDERS[tool]:
        # Newest first, so that links to it are named after it.
        yield from sorted(_ROOT.glob(pattern), reverse=True)


def _tried(tool: Tool, path: Path) -> InstalledTool | BrokenTool:
    version = installed_version(path)
    if isinstance(version, str):
        return BrokenTool(path, version)
    return InstalledTool(tool, path, version)


def _options_in_help(installed: InstalledTool, began_s: float) -> HelpOptions | None:
    """Read its help; where that fails the version alone must do."""
    left_s = _ANSWER_SECONDS - (time.monotonic() - began_s)
    answer = _answer(
        installed.path, *_HELP[installed.tool], within_s=max(left_s, _MIN_ANSWER_SECONDS)
    )
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


@dataclass(frozen=True)
class ToolCommand:
    """What to run, with what added to the environment, and the file that comes of it."""

    argv: tuple[str, ...]
    produces: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What was asked for and this version of the tool cannot do, and what is done instead."""

    def __str__(self) -> str:
        """Write it as it can be pasted into a shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, shlex.join(self.argv)])


HelpOptions = Mapping[str, frozenset[str]]
"""Options that a tool's help lists, each with its values; none where the help lists no values."""
UNDATED = ToolVersion(9999, 0)
"""First version of an option that no version we know has: only the tool's own help can tell."""


@dataclass(frozen=True)
class OptionSpelling:
    """One way to write an option, and the versions that take it."""

    text: str
    since: ToolVersion | None = None
    """First version that surely takes it; None: all we know of."""
    until: ToolVersion | None = None
    """First version that does not take it any more."""

    def fits(self, version: ToolVersion) -> bool:
        """Tell whether this version takes it."""
        after = self.since is None or version >= self.since
        return after and (self.until is None or version < self.until)


@dataclass(frozen=True)
class ToolOption:
    """Something to ask of a tool, whichever way its version spells it."""

    spellings: tuple[OptionSpelling, ...]
    """The newest first."""
    short: str | None = None
    """The same in one letter, to be found among options that the user gave."""
    repeats: bool = False
    """The tool takes it several times; others it refuses the second time."""

    def spelled(self, version: ToolVersion, told: HelpOptions | None) -> str | None:
        """Write it for a tool of this version whose help listed `told`; None: it has no such."""
        for spelling in self.spellings:
            listed = spelling.fits(version) if told is None else spelling.text in told
            if listed:
                return spelling.text
        return None

    def among(self, arguments: tuple[str, ...]) -> bool:
        """Tell whether the user gave it too, in any spelling."""
        names = {spelling.text for spelling in self.spellings} | {self.short}
        return any(argument.partition("=")[0] in names for argument in arguments)


def option(text: str, *, short: str | None = None, since: ToolVersion | None = None) -> ToolOption:
    """Declare an option that was never respelled."""
    return ToolOption((OptionSpelling(text, since),), short=short)


class ToolOptions:
    """Options of one command line, with notes on what this version of the tool cannot do.

    `extra` are the user's own: what they say, we do not say again, because the tools refuse an
    option that comes twice.
    """

    def __init__(self, installed: InstalledTool, extra: tuple[str, ...], *, joined: bool) -> None:
        self.installed = installed
        self.notes: list[str] = []
        self._extra = extra
        self._joined = joined
        self._argv: list[str] = []

    @property
    def argv(self) -> tuple[str, ...]:
        """Give ours, then the user's."""
        return (*self._argv, *self._extra)

    def add(self, option: ToolOption, value: str | None = None, *, otherwise: str = "") -> bool:
        """Add an option if this version has it; where not, note what happens otherwise."""
        spelled = self.installed.spelling(option)
        if spelled is None:
            if otherwise:
                self.notes.append(f"{self.installed} {otherwise}")
            return False
        if option.repeats or not option.among(self._extra):
            self._argv += self._written(spelled, value)
        return True

    def need(self, option: ToolOption, value: str) -> None:
        """Add an option without which something other than what was asked would be recorded."""
        if not self.add(option, value):
            name = option.spellings[0].text
            tool = self.installed.tool
            raise RecordError(
                f"{self.installed} has no option {name}, which this needs",
                hint=f"set GPUSIGHT_{tool.name} to another {tool.value}",
            )

    def _written(self, spelled: str, value: str | None) -> list[str]:
        if value is None:
            return [spelled]
        return [f"{spelled}={value}"] if self._joined else [spelled, value]
