"""The captures that an agent may see: those in the folders that were given at start."""

from __future__ import annotations

import os
from collections import OrderedDict
from contextlib import closing
from fnmatch import fnmatchcase
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from gpusight import api
from gpusight.errors import UsageError
from gpusight.sniff import is_capture_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from gpusight.trace.trace import Trace

MAX_LISTED = 2000
"""Captures in a listing."""
_MAX_ENTRIES = 50_000
"""Files of a folder that a listing looks at."""
_MAX_OPEN = 4
"""Captures that stay open."""
_MAX_KEPT = 16
"""Answers that are kept: `explain` follows `diagnose` of the same capture."""


class CaptureList(NamedTuple):
    """The captures of the folders."""

    paths: list[Path]
    notes: tuple[str, ...] = ()
    """What was left out."""


class Workspace:
    """Opens captures by path; nothing outside the folders, no links out of them."""

    def __init__(self, folders: Sequence[Path], *, allow_run: bool = False) -> None:
        self.folders = tuple(Path(os.path.realpath(folder)) for folder in folders)
        for given, folder in zip(folders, self.folders, strict=True):
            if not folder.is_dir():
                raise UsageError(f"{given} is not a folder", hint="name folders with captures")
        self.allow_run = allow_run
        self._open: OrderedDict[tuple[str, int, int], Trace] = OrderedDict()
        self._kept: OrderedDict[tuple[object, ...], Any] = OrderedDict()

    def path(self, name: str) -> Path:
        """Find a file or folder by the path that a listing shows, or by any path inside."""
        name = _unquoted(name)
        if "\0" in name:
            raise UsageError("a path cannot hold a zero byte")
        for folder in self.folders:
            path = Path(os.path.realpath(folder / name))
            if self._is_inside(path) and path.exists() and self._leads_nowhere_else(path):
                return path
        raise UsageError(
            "no such capture in the folders of this server",
            hint="call open without a capture for a list",
        )

    def _leads_nowhere_else(self, path: Path) -> bool:
        """Return whether a folder, which may be one capture, holds no links out of the folders."""
        if not path.is_dir():
            return True
        parts = (Path(parent, name) for parent, _, names in os.walk(path) for name in names)
        links = (part for part in islice(parts, _MAX_ENTRIES) if part.is_symlink())
        return all(self._is_inside(link.resolve()) for link in links)

    def files(self, name: str) -> list[Path]:
        """Give the captures of a folder or a pattern, or the file itself; no links out of it."""
        if is_pattern(name):
            folder, _, pattern = _unquoted(name).rpartition("/")
            named = [f for f in self.files(folder or ".") if fnmatchcase(f.name, pattern)]
            if not named:
                raise UsageError("no capture has such a name", hint="call open for a list")
            return named
        path = self.path(name)
        if not path.is_dir():
            return [path]
        inside = [file for file in sorted(path.iterdir()) if self._is_inside(file.resolve())]
        return [file for file in inside if is_capture_name(file)]

    def _is_inside(self, path: Path) -> bool:
        return any(path == folder or path.is_relative_to(folder) for folder in self.folders)

    def name(self, path: Path) -> str:
        """Give the shortest path that finds a capture again."""
        first = self.folders[0]
        return str(path.relative_to(first) if path.is_relative_to(first) else path)

    def captures(self) -> CaptureList:
        """List what is named like a capture, newest first."""
        files: dict[Path, None] = {}
        notes = []
        for folder in self.folders:
            for number, path in enumerate(_entries(folder)):
                if number == _MAX_ENTRIES:
                    notes.append(f"only {_MAX_ENTRIES:,} files of a folder were looked at")
                    break
                if is_capture_name(path) and path.is_file() and not path.is_symlink():
                    files[path] = None
        newest = sorted(files, key=lambda path: (-path.stat().st_mtime, str(path)))
        if len(newest) > MAX_LISTED:
            notes.append(f"the newest {MAX_LISTED:,} of {len(newest):,} captures")
        return CaptureList(newest[:MAX_LISTED], tuple(dict.fromkeys(notes)))

    def trace(self, name: str) -> Trace:
        """Open a capture, or give the one that is open; a changed file is opened anew."""
        path = self.path(name)
        key = _identity(path)
        if key not in self._open:
            while len(self._open) >= _MAX_OPEN:
                self._close(next(iter(self._open)))
            self._open[key] = api.open_captures(path)
        self._open.move_to_end(key)
        return self._open[key]

    def kept(
        self, question: tuple[object, ...], names: Sequence[str], ask: Callable[[], Any]
    ) -> Any:
        """Give an answer about captures, once for each question."""
        key = (question, *(_identity(self.path(name)) for name in names))
        if key not in self._kept:
            while len(self._kept) >= _MAX_KEPT:
                self._kept.popitem(last=False)
            self._kept[key] = ask()
        self._kept.move_to_end(key)
        return self._kept[key]

    def close(self) -> None:
        """Close all captures."""
        for key in list(self._open):
            self._close(key)

    def _close(self, key: tuple[str, int, int]) -> None:
        """Close a capture, and forget the answers that may still read it."""
        with closing(self._open.pop(key)):
            for question in [kept for kept in self._kept if key in kept]:
                del self._kept[question]


def _unquoted(name: str) -> str:
    """Take off the backticks that answers put around names."""
    return name[1:-1] if len(name) > 1 and name[0] == name[-1] == "`" else name


def is_pattern(name: str) -> bool:
    """Return whether a name stands for several files of one folder."""
    return "*" in name


def _identity(path: Path) -> tuple[str, int, int]:
    stat = path.stat()
    return str(path), stat.st_mtime_ns, stat.st_size


def _entries(folder: Path) -> Iterator[Path]:
    """Give the files below a folder; hidden folders and links to folders are not followed."""
    for parent, folders, names in os.walk(folder):
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(parent, name) for name in sorted(names))
