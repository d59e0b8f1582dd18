"""Inputs of a comparison: file names, globs and folders to captures, and their digests."""

from __future__ import annotations

import glob
import re
from dataclasses import replace
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple, TypeAlias, TypeVar

from msgspec import structs

from gpusight.comparison.baseline_file import is_baseline, load_baseline
from gpusight.comparison.digest import Digest
from gpusight.errors import CaptureError, MissingDataError, NotACaptureError, UsageError
from gpusight.results import NotApplicable
from gpusight.sniff import is_capture_name, sidecar_owner
from gpusight.units import natural_key

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from gpusight.trace.trace import Capture, Trace

ComparisonInput: TypeAlias = "Capture | Digest"
"""A capture, or its digest."""
_Source = TypeVar("_Source", bound="Trace | Path")
_Listed = TypeVar("_Listed", bound="str | Path")

MAX_CAPTURES = 1_000
"""Captures per side; more means that a pattern matched too much."""
_MAX_LISTED = 100_000
"""Files of a folder or a pattern."""
_REPORTS = (".nsys-rep", ".qdrep")
_EXPORT = ".sqlite"
_WITHOUT_TIMELINE = (
    ".ncu-rep",
    ".ncu-repz",
    ".ncu-rep.xz",
    ".ncu-rep.gz",
    ".pickle",
    ".nsight-cuprof-report",
)
"""Captures without a timeline; a folder or glob may contain them too."""
_EVENTS = b'"traceEvents"'
_HEAD_BYTES = 1 << 16
_TABLES = re.compile(r"(?:StringIds|CUPTI_\w+)\.(?:parquet|arrow)$", re.IGNORECASE)


class SideInputs(NamedTuple):
    """The captures that the arguments of a command line name."""

    paths: list[Path]
    """Captures and baselines, each once."""
    notes: dict[Path, str]
    """For captures that were named more than once: the other names."""


def side_inputs(texts: Sequence[str]) -> SideInputs:
    """List captures and baselines that arguments name, in the order given, and what was left out.

    Those of a folder or glob come in the order of the numbers in their names; baselines are taken
    from there only where there are no captures. A report and its own SQLite export are one run: the
    export is taken.
    """
    named: dict[Path, list[Path]] = {}
    for path in (path for text in texts for path in _find_captures(text)):
        named.setdefault(path.resolve(), []).append(path)
    each = [aliases[0] for aliases in named.values()]
    exports = {_run_path(path): path for path in each if path.name.lower().endswith(_EXPORT)}
    paths, other_names = [], {first: more for first, *more in named.values()}
    for path in each:
        export = exports.get(_run_path(path)) if path.name.lower().endswith(_REPORTS) else None
        if export is None:
            paths.append(path)
        else:
            other_names[export].append(path)
    count = len(paths)
    if count > MAX_CAPTURES:
        raise UsageError(f"{count:,} captures are too many", hint=f"name at most {MAX_CAPTURES:,}")
    notes = {p: _duplicate_note(p, other_names[p]) for p in paths if other_names[p]}
    return SideInputs(paths, notes)


def _find_captures(text: str) -> list[Path]:
    path = _path(text)
    try:
        exists = path.exists()
    except OSError:  # too long for a name: a list of names may be
        exists = False
    if exists:
        return _expand_folder(path)
    is_pattern = glob.has_magic(text)
    if is_pattern:
        matches = glob.iglob(str(path))  # noqa: PTH207 - that of pathlib refuses absolute ones
        paths = sorted(map(Path, _at_most_listed(matches, text)), key=_by_name)
        captures = [path for path in paths if sidecar_owner(path.name) is None]
        timelines = [p for p in captures if not p.name.lower().endswith(_WITHOUT_TIMELINE)]
        if paths:
            return _captures_first([p for path in timelines or paths for p in _expand_folder(path)])
    parts = [part.strip() for part in text.split(",")]
    if len(parts) > 1:
        return [path for part in parts if part for path in _find_captures(part)]
    if is_pattern:
        raise CaptureError(f"no file matches {text}", hint="check the pattern")
    if text.startswith("--"):
        what = f"{text} stands after --, where everything is a file"
        raise UsageError(what, hint="write options before --")
    raise CaptureError(f"no such file: {path}", hint="check the path")


def _path(text: str) -> Path:
    if not text.strip() or "\0" in text:
        raise UsageError(f"{text!r} is not a path", hint="name a capture or a baseline")
    try:
        return Path(text).expanduser()
    except RuntimeError:  # a user who does not exist: then the tilde is part of the name
        return Path(text)


def _captures_first(paths: list[Path]) -> list[Path]:
    """Leave out baselines in a folder or glob of captures: they must be named explicitly."""
    captures = [path for path in paths if is_capture_name(path) or not is_baseline(path)]
    return captures if any(path.is_dir() or is_comparable(path) for path in captures) else paths


def _at_most_listed(paths: Iterable[_Listed], where: str) -> list[_Listed]:
    listed = list(islice(paths, _MAX_LISTED + 1))
    if len(listed) > _MAX_LISTED:
        what = f"{where} has more than {_MAX_LISTED:,} files"
        raise UsageError(what, hint="name the captures, or the folder that has only them")
    return listed


def _expand_folder(path: Path) -> list[Path]:
    return _in_folder(path) if path.is_dir() else [path]


def _in_folder(folder: Path) -> list[Path]:
    """List the captures of a folder, or the folder where it is a capture itself."""
    try:
        files = [p for p in _at_most_listed(folder.iterdir(), str(folder)) if p.is_file()]
    except OSError as error:
        why = error.strerror or str(error)
        raise CaptureError(f"{folder} cannot be read", why=why) from error
    if any(_TABLES.match(path.name) for path in files):
        return [folder]
    captures = _captures_first(sorted(filter(is_comparable, files), key=_by_name))
    # What `jax.profiler.trace(FOLDER)` wrote.
    profiles = islice(folder.glob("plugins/profile/*/*.xplane.pb"), MAX_CAPTURES + 1)
    captures = captures or sorted(profiles)
    if not captures:
        raise CaptureError(
            f"no captures to compare in the folder {folder}",
            hint="name nsys reports, torch traces or baselines, or a folder of them",
        )
    return captures


def is_comparable(path: Path) -> bool:
    """Return whether a file is a baseline, or looks like a capture with a timeline."""
    name = path.name.lower()
    if is_capture_name(path):
        return not name.endswith(_WITHOUT_TIMELINE)
    if not name.endswith(".json"):
        return False
    if is_baseline(path):
        return True
    with path.open("rb") as file:
        return _EVENTS in file.read(_HEAD_BYTES)


def _by_name(path: Path) -> tuple[tuple[str | int, ...], str]:
    return natural_key(path.name), str(path)


def _duplicate_note(path: Path, aliases: Sequence[Path]) -> str:
    names = list(dict.fromkeys(alias.name for alias in aliases if alias.name != path.name))
    if not names:
        return "named more than once: counted once"
    return f"{', '.join(names)} {'are' if len(names) > 1 else 'is'} the same capture: counted once"


def _run_path(path: Path) -> Path:
    """Name the run that a report or an export of it is of."""
    ending = next((end for end in (*_REPORTS, _EXPORT) if path.name.lower().endswith(end)), "")
    return path.resolve().with_name(path.name[: len(path.name) - len(ending)] or path.name)


def digests_of(
    sources: Iterable[_Source | Digest],
    build_digest: Callable[[_Source], Digest | NotApplicable],
    notes: Mapping[Path, str] = MappingProxyType({}),
) -> list[Digest]:
    """Build the digest of each capture; baseline files contain digests already.

    `notes` are of paths, and become notes of their captures. Raises where a capture cannot be
    compared.
    """
    digests: list[Digest] = []
    for source in sources:
        if isinstance(source, Digest):
            digests.append(source)
        elif isinstance(source, Path) and is_baseline(source):
            digests += load_baseline(source)
        else:
            path = source if isinstance(source, Path) else Path(source.meta.path)
            try:
                digest = build_digest(source)
            except NotACaptureError as error:
                if path.suffix.lower() != ".json":
                    raise
                raise not_comparable(path) from error
            except (UsageError, MissingDataError) as error:
                what = error.what if path.name in error.what else f"{path.name}: {error.what}"
                raise type(error)(what, why=error.why, hint=error.hint) from error
            if isinstance(digest, NotApplicable):
                reason = f"{path.name} cannot be compared: {digest.reason}"
                raise replace(digest, reason=reason).error()
            own_notes = [notes[path]] if path in notes else []
            digests.append(structs.replace(digest, notes=(*digest.notes, *own_notes)))
    return digests


def not_comparable(path: Path) -> NotACaptureError:
    """Give the error of a file that is neither a capture of steps nor a baseline."""
    hint = "pass a capture (nsys, torch.profiler, JAX), or a file of gpusight baseline save"
    return NotACaptureError(f"{path} is neither a timeline nor a baseline", hint=hint)
