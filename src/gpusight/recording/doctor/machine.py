"""The machine as the checks see it (files, programs, variables), and the results of a check."""

from __future__ import annotations

import enum
import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.recording.tools import every_tool, on_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusight.recording.request import Tool
    from gpusight.recording.tools import BrokenTool, InstalledTool


TIMEOUT_S = 20.0
_MAX_CHARACTERS = 1 << 20


@dataclass(frozen=True, slots=True)
class CommandResult:
    """How a program ended; `code` None: it took too long and was ended."""

    code: int | None
    out: str
    err: str = ""

    @property
    def fine(self) -> bool:
        """Return whether it succeeded."""
        return self.code == 0


class Machine:
    """The machine that this process runs on, as far as the checks use it; tests describe others."""

    system = platform.system()
    """`Linux`, `Windows` or `Darwin`."""
    kernel = platform.release()
    environment: Mapping[str, str] = os.environ

    def read(self, path: str) -> str | None:
        """Return the text of a small file; None where it cannot be read."""
        try:
            with Path(path).open(encoding="utf-8", errors="replace") as file:
                return file.read(_MAX_CHARACTERS)
        except OSError:
            return None

    def names(self, folder: str) -> tuple[str, ...]:
        """List a folder; nothing where there is none."""
        try:
            return tuple(sorted(os.listdir(folder)))  # noqa: PTH208 - names are wanted, not paths
        except OSError:
            return ()

    def exists(self, path: str) -> bool:
        """Return whether there is such a file or folder."""
        return os.path.exists(path)  # noqa: PTH110 - never raises, whatever the path

    def writable(self, path: str) -> bool:
        """Return whether this user may write there."""
        return os.access(path, os.W_OK)

    def real_path(self, path: str) -> str:
        """Follow links."""
        return os.path.realpath(path)

    def which(self, name: str) -> str | None:
        """Find a program on the PATH."""
        return on_path(name)

    def run(self, argv: Sequence[str], timeout_s: float = TIMEOUT_S) -> CommandResult | None:
        """Run a program and wait; None where it cannot be started."""
        try:
            done = subprocess.run(  # noqa: S603 - tools of this machine, no shell
                list(argv),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return CommandResult(None, "")
        except OSError:
            return None
        out, err = (output.decode("utf-8", "replace") for output in (done.stdout, done.stderr))
        return CommandResult(done.returncode, out, err)

    def free_bytes(self, folder: str) -> int | None:
        """Return the free space of the disk that a folder lies on."""
        try:
            return shutil.disk_usage(folder).free
        except OSError:
            return None

    def tools(self, tool: Tool) -> Sequence[InstalledTool | BrokenTool]:
        """Find every nsys or ncu, the one that would be used first."""
        return every_tool(tool)


def shown(machine: Machine, path: str) -> str:
    """Write a path without the user's name in it: what lies at home begins with `~`."""
    home = machine.environment.get("HOME", "").rstrip("/")
    return f"~{path[len(home) :]}" if home and path.startswith(f"{home}/") else path


class CheckState(str, enum.Enum):
    """How one thing is."""

    OK = "ok"
    LIMITED = "limited"
    MISSING = "missing"
    UNKNOWN = "unknown"


class Ability(str, enum.Enum):
    """Whether a tool can capture."""

    YES = "yes"
    PARTLY = "partly"
    NO = "no"


@dataclass(frozen=True, slots=True)
class CheckEffect:
    """What a finding does to one tool; with `YES` the tool works, but without what `why` names."""

    tool: Tool
    can: Ability
    why: str


@dataclass(frozen=True, slots=True)
class MachineCheck:
    """One thing that was looked at."""

    key: str
    """Stable name, for programs."""
    title: str
    state: CheckState
    found: str
    means: str = ""
    """What that means for recording; empty where nothing follows."""
    fix: str = ""
    """What to do about it."""
    commands: tuple[str, ...] = ()
    """What to type for that."""
    effects: tuple[CheckEffect, ...] = ()


@dataclass(frozen=True, slots=True)
class ToolVerdict:
    """What all checks together say about one tool."""

    tool: Tool
    can: Ability
    found: str
    """Version and place of what would be used; empty where there is none."""
    why: tuple[str, ...] = ()
    """Why it cannot, or only partly."""
    without: tuple[str, ...] = ()
    """What it does not give here, though it works."""


@dataclass(frozen=True, slots=True)
class Checkup:
    """Everything that was found about a machine."""

    checks: tuple[MachineCheck, ...]
    verdicts: tuple[ToolVerdict, ...]
    record_uses: Tool | None
    """What `gpusight record` takes by itself; None where nothing can record."""

    def verdict(self, tool: Tool) -> ToolVerdict:
        """Return what was found about one tool."""
        return next(verdict for verdict in self.verdicts if verdict.tool is tool)
