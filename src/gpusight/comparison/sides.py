"""Which captures the words of a command line mean.

A word is a file or a folder of that very name; else a glob, where it has wildcards; else a list
separated by commas. So names with commas or brackets, and drive letters, are no accidents.
"""

from __future__ import annotations

import glob
import re
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.comparison.files import is_baseline
from gpusight.errors import CaptureError, UsageError
from gpusight.evidence import is_capture_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

MOST = 1_000
"""Captures of a side; more are a pattern that caught too much."""
_MOST_LISTED = 100_000
_REPORTS = (".nsys-rep", ".qdrep")
_EXPORT = ".sqlite"
_OTHERS = (".ncu-rep", ".ncu-repz", ".pickle", ".nsight-cuprof-report")
"""Captures that hold no timeline; they may lie beside those that are meant."""
_EVENTS = b'"traceEvents"'
_HEAD_BYTES = 1 << 16
_DIGITS = re.compile(r"(\d+)")
_TABLES = re.compile(r"(?:StringIds|CUPTI_\w+)\.(?:parquet|arrow)$", re.IGNORECASE)


def side_paths(texts: Sequence[str]) -> list[Path]:
    """Give the captures and baselines that words mean, each once, in the order given.

    Those of a folder or glob come in the order of the numbers in their names. A report and its own
    SQLite export are one run: the export is taken.
    """
    found = [path for text in texts for path in _meant(text)]
    paths = _each_run_once(found)
    if len(paths) > MOST:
        raise UsageError(f"{len(paths):,} captures are too many", hint=f"name at most {MOST:,}")
    return paths


def _meant(text: str) -> list[Path]:
    path = _path(text)
    if _exists(path):
        return _in_folder(path) if path.is_dir() else [path]
    if glob.has_magic(text):
        return _matching(text)
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > 1:
        return [path for part in parts if part for path in _meant(part)]
    raise CaptureError(f"no such file: {path}", hint="check the path")


def _path(text: str) -> Path:
    if not text.strip() or "\0" in text:
        raise UsageError(f"{text!r} is no path", hint="name a capture or a baseline")
    try:
        return Path(text).expanduser()
    except RuntimeError:  # a user who does not exist: then the tilde is part of the name
        return Path(text)


def _exists(path: Path) -> bool:
    try:
        return path.exists()
    except OSError:  # too long for a name: a list of names may be
        return False


def _matching(text: str) -> list[Path]:
    """Give what a glob matches; a list may be of globs."""
    every = glob.iglob(str(_path(text)))  # noqa: PTH207 - that of pathlib refuses absolute ones
    names = list(islice(every, _MOST_LISTED))
    if not names and "," in text:
        return [path for part in text.split(",") if part.strip() for path in _meant(part.strip())]
    if not names:
        raise CaptureError(f"no file matches {text}", hint="check the pattern")
    paths = sorted(map(Path, names), key=_natural)
    timelines = [path for path in paths if not path.name.lower().endswith(_OTHERS)]
    return [one for path in timelines or paths for one in _expanded(path)]


def _expanded(path: Path) -> list[Path]:
    return _in_folder(path) if path.is_dir() else [path]


def _in_folder(folder: Path) -> list[Path]:
    """Give the captures of a folder, or the folder where it is a capture itself."""
    try:
        files = [path for path in islice(folder.iterdir(), _MOST_LISTED) if path.is_file()]
    except OSError as error:
        why = error.strerror or str(error)
        raise CaptureError(f"{folder} cannot be read", why=why) from error
    if any(_TABLES.match(path.name) for path in files):
        return [folder]
    found = sorted(filter(_is_meant, files), key=_natural) or sorted(_profiles(folder))
    if not found:
        raise CaptureError(
            f"{folder} is a folder without captures that can be compared",
            hint="name nsys reports, torch traces or baselines, or a folder of them",
        )
    return found


def _is_meant(path: Path) -> bool:
    name = path.name.lower()
    if is_capture_name(path):
        return not name.endswith(_OTHERS)
    return name.endswith(".json") and (is_baseline(path) or _is_trace(path))


def _is_trace(path: Path) -> bool:
    with path.open("rb") as file:
        return _EVENTS in file.read(_HEAD_BYTES)


def _profiles(folder: Path) -> Iterator[Path]:
    """Give what `jax.profiler.trace(FOLDER)` wrote."""
    return islice(folder.glob("plugins/profile/*/*.xplane.pb"), MOST)


def _natural(path: Path) -> tuple[tuple[object, ...], str]:
    """Order names as people do: `r2` before `r10`."""
    parts = _DIGITS.split(path.name)
    return tuple(int(part) if at % 2 else part for at, part in enumerate(parts)), str(path)


def _each_run_once(paths: Iterable[Path]) -> list[Path]:
    """Leave out what was named twice, and reports whose own export is there."""
    each = list({path.resolve(): path for path in paths}.values())
    exports = {_run(path) for path in each if path.name.lower().endswith(_EXPORT)}
    return [
        path
        for path in each
        if not (path.name.lower().endswith(_REPORTS) and _run(path) in exports)
    ]


def _run(path: Path) -> Path:
    """Name the run that a report or an export of it is of."""
    ending = next((end for end in (*_REPORTS, _EXPORT) if path.name.lower().endswith(end)), "")
    return path.resolve().with_name(path.name[: len(path.name) - len(ending)] or path.name)
