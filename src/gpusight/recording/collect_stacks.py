"""Puts the files of sampled stacks, one of each process, next to the captures of the run."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpusight.errors import GpusightError
from gpusight.output_files import write_file
from gpusight.recording.inside.stack_sampler import (
    CAPTURE,
    END,
    MAGIC,
    PART_MARK,
    PROCESS,
    RATE,
    SUFFIX,
    processes,
)

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True)
class StackFiles:
    """The files of a recording, and how sampling went."""

    paths: tuple[Path, ...] = ()
    samples: int = 0
    late: int = 0
    """Of them, later than the time between two: the program kept the GIL."""
    lowest_hz: float | None = None
    """Where the rate was lowered, because sampling took too much of a core."""
    notes: tuple[str, ...] = ()


@dataclass
class _Part:
    """The file of one process."""

    path: Path
    data: bytes
    pid: int
    parent: int
    capture: str | None
    end: dict[str, Any]
    lowest_hz: float | None

    @classmethod
    def read(cls, path: Path) -> _Part | None:
        """Read what a process left; None where it was not even begun."""
        data = path.read_bytes()
        chunks = next((found for found, _ in processes(data)), [])
        if not chunks or chunks[0][0] != PROCESS:
            return None
        about = json.loads(chunks[0][1])
        captures = [json.loads(body)["capture"] for kind, body in chunks if kind == CAPTURE]
        ends = [json.loads(body) for kind, body in chunks if kind == END]
        rates = [float(json.loads(body)["hz"]) for kind, body in chunks if kind == RATE]
        return cls(
            path,
            data,
            about["pid"],
            about["parent"],
            captures[-1] if captures else None,
            ends[-1] if ends else {},
            min(rates, default=None),
        )


def stacks_path(capture: Path) -> Path:
    """Return where the sampled stacks of a capture are."""
    return capture.with_name(capture.name + SUFFIX)


def collect_stacks(base: Path, session: str, captures: Sequence[Path]) -> StackFiles:
    """Write the stacks of a run next to its captures, and remove the files of its processes.

    `base`: what the names of these files begin with. Those of processes without a capture go.
    """
    begin = f"{base.name}{PART_MARK}{session}-"
    names = sorted(path for path in base.parent.iterdir() if path.name.startswith(begin))
    parts = [part for part in map(_Part.read, names) if part is not None]
    by_capture: dict[Path, list[_Part]] = {}
    for part in parts:
        capture = _capture_of(part, parts, captures)
        if capture is not None:
            by_capture.setdefault(capture, []).append(part)
    paths, notes = [], []
    unwritten: set[Path] = set()
    for capture, own in by_capture.items():
        try:
            paths.append(_write(capture, own))
        except GpusightError as error:  # noqa: PERF203 - the capture is there all the same
            unwritten.update(part.path for part in own)
            kept_in = ", ".join(part.path.name for part in own)
            notes.append(f"stacks were not written: {error}; the samples are in {kept_in}")
    for path in names:
        if path not in unwritten:
            path.unlink(missing_ok=True)
    kept = [part for own in by_capture.values() for part in own]
    return StackFiles(
        tuple(paths),
        sum(part.end.get("samples", 0) for part in kept),
        sum(part.end.get("late", 0) for part in kept),
        min((part.lowest_hz for part in kept if part.lowest_hz is not None), default=None),
        tuple(notes),
    )


def _capture_of(part: _Part, parts: Sequence[_Part], captures: Sequence[Path]) -> Path | None:
    """Find the capture of a process: its own, or that of the nearest process it descends from."""
    seen = set()
    by_pid = {other.pid: other for other in parts}
    process: _Part | None = part
    while process is not None and process.pid not in seen:
        named = next((path for path in captures if path.name == process.capture), None)
        if named is not None:
            return named
        seen.add(process.pid)
        process = by_pid.get(process.parent)
    is_shared = all(other.capture is None for other in parts)  # nsys has all processes in one file
    return captures[0] if is_shared and len(captures) == 1 else None


def _write(capture: Path, parts: Sequence[_Part]) -> Path:
    path = stacks_path(capture)
    if path.exists():
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise GpusightError(f"{path} exists and is not a file of stacks")
    write_file(path, [part.data for part in parts])
    return path
