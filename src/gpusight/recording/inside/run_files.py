"""The files that a profiled run leaves.

Where they lie, what they are called, how they are written.
"""

from __future__ import annotations

import contextlib
import gzip
import inspect
import itertools
import os
import shutil
import subprocess
import sys
import tempfile
import time
import warnings
from typing import TYPE_CHECKING, Any

from gpusight.errors import RecordError
from gpusight.recording.inside.environment import VARIABLE
from gpusight.recording.inside.torch_settings import ProfilerWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path


TRACE = "trace.json.gz"
KEY_AVERAGES = "key_averages.txt"
STACKS = "stacks.txt"
SNAPSHOT = "memory_snapshot.pickle"
TIMELINE = "memory-timeline.html"
_STARTED_S = time.time()
"""When this process began to use the profiler; files of its own run are younger."""
_COMPRESSION = 3
"""Fast, for the program waits: 250 MB/s; six makes a fifth less in twice the time."""
_NAME_WIDTH = 120
"""Of names in the table: room for the part of a kernel's name that tells it from others."""
_HELPER_TIMEOUT_S = 600
_OURS = ("gpusight.", "contextlib")
_TAIL = 64


class RunFolder:
    """Where one rank puts the files of one run."""

    def __init__(self, base: Path, rank: int, *, since_s: float = _STARTED_S) -> None:
        self._base, self._rank, self._since_s = base.absolute(), rank, since_s
        _refuse_unwritable(self._base)
        self.root = self._free()

    def _free(self) -> Path:
        """Give the first folder without files of an earlier run."""
        for number in itertools.count(2):
            folder = self._base if number == 2 else self._numbered(number - 1)
            if not self._is_taken(folder):
                return folder
        raise AssertionError("numbers do not end")

    def _numbered(self, number: int) -> Path:
        return self._base.with_name(f"{self._base.name}-{number}")

    def _is_taken(self, folder: Path) -> bool:
        mine = f"rank{self._rank}_"
        return any(
            file.name.startswith(mine) or file.stat().st_mtime < self._since_s
            for file in folder.glob("iteration_*/rank*_*")
        )

    def publish(self, cycle: str, name: str, write: Callable[[Path], object]) -> Path:
        """Let `write` make a file, then put it in its place whole.

        Another program may have come to the same folder meanwhile: then this run takes the next.
        """
        named = f"rank{self._rank}_{name}"
        self.root.mkdir(parents=True, exist_ok=True)
        part = self.root / f".{named}.{os.getpid()}.part"
        try:
            write(part)
            while not _placed(part, self.root / cycle / named):
                self.root = self._free()
            return self.root / cycle / named
        finally:
            part.unlink(missing_ok=True)


def _placed(part: Path, final: Path) -> bool:
    """Give a finished file its name, unless something has that name."""
    final.parent.mkdir(parents=True, exist_ok=True)
    try:
        os.link(part, final)
    except FileExistsError:
        return False
    except OSError:  # a file system without links
        if final.exists():
            return False
        part.replace(final)
    return True


def _refuse_unwritable(folder: Path) -> None:
    """Find out before the training rather than after an hour of it."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    if not there.is_dir():
        raise RecordError(f"nothing can be written to {folder}", why=f"{there} is a file")
    try:
        with tempfile.TemporaryFile(dir=there):
            pass
    except OSError as error:
        raise RecordError(
            f"nothing can be written to {folder}",
            why=f"{there} is not writable ({error.strerror})",
            hint="choose another output_dir",
        ) from error


@contextlib.contextmanager
def optional(artefact: str) -> Iterator[None]:
    """Turn whatever goes wrong with an artefact into one warning that names it."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - no artefact is worth the end of a training
        told = " ".join(f"{type(error).__name__}: {error}".split())
        warn(f"{artefact} is missing: {told}")


def warn(text: str) -> None:
    """Say what cannot be had, at the line of the program that we were called from."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, ProfilerWarning, stacklevel=level)


def write_trace(profiler: Any, path: Path) -> None:
    """Write the trace, compressed.

    torch would compress through the system's temporary folder, and slowly.
    """
    plain = path.with_name(f"{path.name}.json")
    unfinished = path.with_name(f"{plain.name}.tmp")
    try:
        profiler.export_chrome_trace(str(plain))
        _refuse_partial(plain)
        with plain.open("rb") as source, gzip.open(path, "wb", _COMPRESSION) as target:
            shutil.copyfileobj(source, target, 1 << 20)
    finally:
        plain.unlink(missing_ok=True)
        unfinished.unlink(missing_ok=True)


def _refuse_partial(trace: Path) -> None:
    """Raise where torch could not write all of a trace: it does not do so itself."""
    if trace.exists() and _ends_whole(trace):
        return
    with trace.open("ab") as file:  # whatever kept torch from it, such as a full disk, raises here
        file.write(bytes(1 << 20))
    raise RecordError("torch did not write the whole trace")


def _ends_whole(trace: Path) -> bool:
    with trace.open("rb") as file:
        file.seek(max(0, trace.stat().st_size - _TAIL))
        return file.read(_TAIL).rstrip().endswith((b"}", b"]"))


def write_key_averages(profiler: Any, path: Path, *, rows: int, on_gpu: bool) -> None:
    """Write the table of operators and kernels, those with most time of their own first."""
    order = "self_cuda_time_total" if on_gpu else "self_cpu_time_total"
    averages = profiler.key_averages()
    table = averages.table(sort_by=order, row_limit=rows, max_name_column_width=_NAME_WIDTH)
    path.write_text(f"{table}\n", encoding="utf-8")


def write_stacks(profiler: Any, path: Path, *, on_gpu: bool) -> None:
    """Write Python stacks with their time, as flame graph tools read them."""
    profiler.export_stacks(str(path), f"self_{'cuda' if on_gpu else 'cpu'}_time_total")
    if not path.stat().st_size:
        raise RecordError("torch gave no stacks", hint="the trace has them: with_stack=True")


def draw_memory(capture: Path, path: Path) -> None:
    """Draw memory over time from a snapshot or a trace."""
    picture = path.with_name(f"{path.name}.html")
    try:
        done = _gpusight("memory", str(capture), "-o", str(picture))
        if done.returncode:
            raise RecordError("it could not be drawn", why=done.stderr.strip())
        picture.replace(path)
    finally:
        picture.unlink(missing_ok=True)


def print_diagnosis(trace: Path) -> None:
    """Show what holds the program back, and what a fix would give."""
    done = _gpusight("diagnose", str(trace))
    sys.stdout.write(done.stdout)
    sys.stdout.flush()
    sys.stderr.write(done.stderr)  # why there is none, in one line


def _gpusight(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own: analyses stay out of the program's.

    It must not be recorded itself, nor wait for what a launcher told this process.
    """
    command = [sys.executable or "python", "-m", "gpusight", *arguments]
    environment = {name: text for name, text in os.environ.items() if name != VARIABLE}
    return subprocess.run(  # noqa: S603 - this interpreter, on files that we wrote
        command,
        env=environment,
        capture_output=True,
        check=False,
        text=True,
        timeout=_HELPER_TIMEOUT_S,
    )


def total_bytes(paths: Sequence[Path]) -> int:
    """Add up how many bytes were written."""
    return sum(path.stat().st_size for path in paths)
