"""The machine as the checks see it: files, programs and variables, nothing else.

Tests describe other machines through the same interface.
"""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from gpusight.capture.tools import on_path

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusight.capture.request import Tool
    from gpusight.capture.tools import BrokenTool, InstalledTool

TIMEOUT_S = 20.0
_MOST_CHARACTERS = 1 << 20


@dataclass(frozen=True, slots=True)
class Ran:
    """How a program ended; `code` None: it took too long and was ended."""

    code: int | None
    out: str
    err: str = ""

    @property
    def fine(self) -> bool:
        """Tell whether it did what it was asked."""
        return self.code == 0


class Machine(Protocol):
    """What checks may ask."""

    @property
    def system(self) -> str:
        """Name the operating system: `Linux`, `Windows` or `Darwin`."""
        ...

    @property
    def kernel(self) -> str:
        """Give the release of its kernel."""
        ...

    @property
    def environment(self) -> Mapping[str, str]:
        """Give the environment of this process."""
        ...

    def read(self, path: str) -> str | None:
        """Give the text of a small file; None where there is none that can be read."""
        ...

    def names(self, folder: str) -> tuple[str, ...]:
        """List a folder; nothing where there is none."""
        ...

    def exists(self, path: str) -> bool:
        """Tell whether there is such a file or folder."""
        ...

    def writable(self, path: str) -> bool:
        """Tell whether this user may write there."""
        ...

    def real_path(self, path: str) -> str:
        """Follow links."""
        ...

    def which(self, name: str) -> str | None:
        """Find a program on the PATH."""
        ...

    def run(self, argv: Sequence[str], timeout_s: float = TIMEOUT_S) -> Ran | None:
        """Run a program and wait; None where it cannot be started."""
        ...

    def free_bytes(self, folder: str) -> int | None:
        """Give the free space of the disk that a folder lies on."""
        ...

    def tools(self, tool: Tool) -> Sequence[InstalledTool | BrokenTool]:
        """Find every nsys or ncu, the one that would be used first."""
        ...


class ThisMachine:
    """The machine that this process runs on."""

    system = platform.system()
    kernel = platform.release()

    @property
    def environment(self) -> Mapping[str, str]:
        """Give the environment of this process."""
        return os.environ

    def read(self, path: str) -> str | None:
        """Give the text of a small file; None where there is none that can be read."""
        try:
            with Path(path).open(encoding="utf-8", errors="replace") as file:
                return file.read(_MOST_CHARACTERS)
        except OSError:
            return None

    def names(self, folder: str) -> tuple[str, ...]:
        """List a folder; nothing where there is none."""
        try:
            return tuple(sorted(os.listdir(folder)))  # noqa: PTH208 - names are wanted, not paths
        except OSError:
            return ()

    def exists(self, path: str) -> bool:
        """Tell whether there is such a file or folder."""
        return os.path.exists(path)  # noqa: PTH110 - never raises, whatever the path

    def writable(self, path: str) -> bool:
        """Tell whether this user may write there."""
        return os.access(path, os.W_OK)

    def real_path(self, path: str) -> str:
        """Follow links."""
        return os.path.realpath(path)

    def which(self, name: str) -> str | None:
        """Find a program on the PATH."""
        return on_path(name)

    def run(self, argv: Sequence[str], timeout_s: float = TIMEOUT_S) -> Ran | None:
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
            return Ran(None, "")
        except OSError:
            return None
        return Ran(done.returncode, _text(done.stdout), _text(done.stderr))

    def free_bytes(self, folder: str) -> int | None:
        """Give the free space of the disk that a folder lies on."""
        try:
            return shutil.disk_usage(folder).free
        except OSError:
            return None

    def tools(self, tool: Tool) -> Sequence[InstalledTool | BrokenTool]:
        """Find every nsys or ncu, the one that would be used first."""
        from gpusight.capture.tools import every_tool

        return every_tool(tool)


def shown(machine: Machine, path: str) -> str:
    """Write a path without the user's name in it: what lies at home begins with `~`."""
    home = machine.environment.get("HOME", "").rstrip("/")
    return f"~{path[len(home) :]}" if home and path.startswith(f"{home}/") else path


def _text(output: bytes) -> str:
    return output.decode("utf-8", "replace")
