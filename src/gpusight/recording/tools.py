"""NVIDIA's nsys and ncu on this machine: where they are, their versions and their options."""

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
        """Find the version in what a tool prints, or in the name of the tool in a report."""
        version = _VERSION.search(text)
        return cls(*(int(part or 0) for part in version.groups())) if version else None

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
    pattern, values = (
        (_NSYS_OPTION, _nsys_values) if tool is Tool.NSYS else (_NCU_OPTION, _ncu_values)
    )
    options = list(pattern.finditer(text))
    ends = [*(option.start() for option in options[1:]), len(text)]
    return {
        option[1]: values(text[option.end() : end])
        for option, end in zip(options, ends, strict=False)
    }


def _nsys_values(description: str) -> frozenset[str]:
    values = _NSYS_VALUES.search(description)
    listed = (values[1] or values[2]) if values else ""
    words = [] if _OPEN_ENDED.search(listed) else _WORD.findall(listed)
    return frozenset(_QUOTED.findall(listed) or words) - _JOINING


def _ncu_values(description: str) -> frozenset[str]:
    lines = _NCU_VALUES.findall(description)
    return frozenset(value for line in lines for value in line.split("/"))


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
    help_options: HelpOptions | None = field(default=None, compare=False)
    """Options that its own help lists, with their values; None: not read."""

    def spelling(self, option: ToolOption) -> str | None:
        """Write an option as this version does; None: it has no such."""
        return option.spelled(self.version, self.help_options)

    def lists(self, option: ToolOption, value: str) -> bool:
        """Return whether its help lists this value of an option; False where it was not read."""
        spelled = self.spelling(option)
        return spelled is not None and value in (self.help_options or {}).get(spelled, ())

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
    planted there would run. A name with a folder in it is used unchanged.
    """
    if os.path.dirname(name):  # noqa: PTH120 - `./nsys` must keep its dot
        return shutil.which(name)
    if folders is None:
        folders = os.environ.get("PATH", os.defpath).split(os.pathsep)
    paths = (str(Path(folder) / name) for folder in folders if os.path.isabs(folder))  # noqa: PTH117
    return next(filter(None, map(shutil.which, paths)), None)


def find_tool(tool: Tool) -> InstalledTool | None:
    """Return the newest that runs; None where there is none."""
    return _newest(tool)[0]


def _newest(tool: Tool) -> tuple[InstalledTool | None, list[InstalledTool | BrokenTool]]:
    """Return the newest that runs, with the options in its help, and all candidates."""
    start_s = time.monotonic()
    candidates = every_tool(tool)
    newest = next((c for c in candidates if isinstance(c, InstalledTool)), None)
    if newest is not None:
        rest_s = max(_ANSWER_SECONDS - (time.monotonic() - start_s), _MIN_ANSWER_SECONDS)
        newest = replace(newest, help_options=_options_in_help(newest, rest_s))
    return newest, candidates


def recent_tool(tool: Tool) -> InstalledTool:
    """Return a recent version of nsys or ncu, for the command lines of machines that have it."""
    return InstalledTool(tool, Path(tool.value), ToolVersion(2025, 3, 1))


def why_not_found(tool: Tool) -> str:
    """Describe that there is no such tool; a variable that names the wrong one is the reason."""
    chosen = override_of(tool)
    if chosen is None:
        return f"{tool.value} was not found"
    return f"{tool.value} was not found: {_variable(tool)} is {chosen}, which does not run"


def require_tool(tool: Tool) -> InstalledTool:
    """Return the newest that runs; raises with what is missing and how to get it."""
    newest, candidates = _newest(tool)
    if newest is not None:
        return newest
    why = "none was found"
    if candidates:
        broken = candidates[0]
        assert isinstance(broken, BrokenTool)
        why = f"{broken.path} does not start: {broken.why}"
        if override_of(tool) is not None:
            why = f"{_variable(tool)} is set, and {why}"
    raise RecordError(
        f"{tool.value} is required, but no working installation was found",
        why=why,
        hint=f"install NVIDIA {_TITLES[tool]} or set {_variable(tool)} to its path; "
        "gpusight doctor checks what this machine can record with",
    )


def every_tool(tool: Tool) -> list[InstalledTool | BrokenTool]:
    """Try every one on this machine: the one that would be used first, broken ones last."""
    running: list[InstalledTool] = []
    broken: list[BrokenTool] = []
    paths: dict[str, Path] = {}
    for path in _candidates(tool):
        paths.setdefault(os.path.realpath(path), path)
    for path in paths.values():
        version = installed_version(path)
        if isinstance(version, str):
            broken.append(BrokenTool(path, version))
        else:
            running.append(InstalledTool(tool, path, version))
    return [*sorted(running, key=lambda tool: tool.version, reverse=True), *broken]


def override_of(tool: Tool) -> Path | None:
    """Return the one that the user chose through the environment."""
    chosen = os.environ.get(_variable(tool))
    return Path(chosen) if chosen else None


def installed_version(path: str | Path) -> ToolVersion | str:
    """Query a tool for its version; returns the reason where it does not answer."""
    answer = _answer(path, "--version")
    if isinstance(answer, str):
        return answer
    output = answer.stdout + answer.stderr
    if answer.returncode != 0:
        lines = [line.strip() for line in output.splitlines() if line.strip()]
        last = lines[-1][:200] if lines else ""
        return f"exit code {answer.returncode} {last}".rstrip()
    return ToolVersion.parse(output) or "its version is unknown"


def _variable(tool: Tool) -> str:
    return f"GPUSIGHT_{tool.name}"


def _candidates(tool: Tool) -> Iterator[Path]:
    chosen = override_of(tool)
    if chosen is not None:
        yield chosen
        return
    homes = filter(None, (os.environ.get(variable) for variable in _CUDA_VARIABLES))
    in_toolkits = (on_path(tool.value, [str(Path(home) / "bin")]) for home in homes)
    yield from map(Path, filter(None, (on_path(tool.value), *in_toolkits)))
    for pattern in _INSTALL_FOLDERS[tool]:
        # Newest first, so that links to it are named after it.
        yield from sorted(_ROOT.glob(pattern), reverse=True)


def _options_in_help(installed: InstalledTool, limit_s: float) -> HelpOptions | None:
    """Read its help; where that fails the version alone must do."""
    answer = _answer(installed.path, *_HELP[installed.tool], within_s=limit_s)
    if isinstance(answer, str) or answer.returncode != 0:
        return None
    options = read_help(installed.tool, answer.stdout + answer.stderr)
    # A help that is laid out anew would look as if it had no options.
    return options if _EVERY_HELP_LISTS[installed.tool] <= options.keys() else None


def _answer(
    path: str | Path, *arguments: str, within_s: float | None = None
) -> subprocess.CompletedProcess[str] | str:
    """Run it; returns the reason where it cannot be started."""
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


@dataclass(frozen=True)
class ToolCommand:
    """What to run, with what added to the environment, and the file that comes of it."""

    argv: tuple[str, ...]
    produces: Path
    environment: Mapping[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    """What this version of the tool cannot do, and what is done instead."""

    def __str__(self) -> str:
        """Write it as it can be pasted into a shell."""
        variables = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        return " ".join([*variables, shlex.join(self.argv)])

    def lines(self, width: int) -> list[str]:
        """Write it as lines for a shell, each but the last continued with a backslash.

        Options stay with their values. A pattern of several names is broken between them; a name
        is never broken, so that a line may be wider than `width`.
        """
        first, *options = self.argv
        words = [f"{name}={shlex.quote(value)}" for name, value in self.environment.items()]
        words.append(shlex.quote(first))
        for word in options:
            quoted = _quoted_pieces(word)
            if words[-1].startswith("-") and " " not in words[-1] and not word.startswith("-"):
                words[-1] += f" {quoted}"
            else:
                words.append(quoted)
        lines = [words[0]]
        for word in words[1:]:
            start = word.split("\n", 1)[0]
            # After a pattern that was broken, another line starts.
            if "\n" in lines[-1] or len(f"{lines[-1]} {start} \\") > width:
                lines[-1] += " \\"
                lines.append(f"  {word}")
            else:
                lines[-1] += f" {word}"
        return [line for joined in lines for line in joined.split("\n")]


def _quoted_pieces(word: str) -> str:
    """Quote a word; one with alternatives becomes pieces on lines of their own, which join up."""
    if "$|^" not in word:
        return shlex.quote(word)
    pieces = word.split("$|^")
    ends = [f"{piece}$|" for piece in pieces[:-1]] + pieces[-1:]
    starts = [ends[0], *(f"^{piece}" for piece in ends[1:])]
    return "\\\n".join(map(shlex.quote, starts))


HelpOptions = Mapping[str, frozenset[str]]
"""Options that a tool's help lists, each with its values; none where the help lists no values."""
UNDATED = ToolVersion(9999, 0)
"""First version of an option that no version we know has: only the tool's own help lists it."""


@dataclass(frozen=True)
class OptionSpelling:
    """One way to write an option, and the versions that take it."""

    text: str
    since: ToolVersion | None = None
    """First version that surely takes it; None: all we know of."""
    until: ToolVersion | None = None
    """First version that does not take it any more."""

    def fits(self, version: ToolVersion) -> bool:
        """Return whether this version takes it."""
        after = self.since is None or version >= self.since
        return after and (self.until is None or version < self.until)


@dataclass(frozen=True)
class ToolOption:
    """An option of a tool, whichever way its version spells it."""

    spellings: tuple[OptionSpelling, ...]
    """The newest first."""
    short: str | None = None
    """The same in one letter, to be found among options that the user gave."""
    repeats: bool = False
    """The tool takes it several times; others it refuses the second time."""

    def spelled(self, version: ToolVersion, listed: HelpOptions | None) -> str | None:
        """Write it for a tool of this version whose help has `listed`; None: it has no such."""
        for spelling in self.spellings:
            if spelling.fits(version) if listed is None else spelling.text in listed:
                return spelling.text
        return None

    def among(self, arguments: tuple[str, ...]) -> bool:
        """Return whether the user gave it too, in any spelling."""
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
        """Return ours, then the user's."""
        return (*self._argv, *self._extra)

    def add(self, option: ToolOption, value: str | None = None, *, otherwise: str = "") -> bool:
        """Add an option if this version has it; where not, note what happens otherwise."""
        spelled = self.installed.spelling(option)
        if spelled is None:
            if otherwise:
                self.notes.append(f"{self.installed} {otherwise}")
            return False
        if option.repeats or not option.among(self._extra):
            if self._joined and value is not None:
                self._argv.append(f"{spelled}={value}")
            else:
                self._argv += [spelled] if value is None else [spelled, value]
        return True

    def need(self, option: ToolOption, value: str) -> None:
        """Add an option without which something other than requested would be recorded."""
        if not self.add(option, value):
            name = option.spellings[0].text
            tool = self.installed.tool
            raise RecordError(
                f"{self.installed} does not support {name}, which is required",
                hint=f"set GPUSIGHT_{tool.name} to a newer {tool.value}",
            )
