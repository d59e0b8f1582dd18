"""What records the active steps (torch.profiler, or a tool around the program), and its files."""

from __future__ import annotations

import contextlib
import inspect
import itertools
import os
import pickle
import subprocess
import sys
import tempfile
import time
import warnings
from typing import TYPE_CHECKING, Any, Protocol

from gpusight.errors import RecordError
from gpusight.recording.inside import nvtx_backend
from gpusight.recording.inside.environment import VARIABLE
from gpusight.recording.inside.profile_part import profile
from gpusight.recording.inside.torch_recorder import AllocatorHistory, profiler_runs, write_trace
from gpusight.recording.inside.torch_settings import ProfilerWarning

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gpusight.recording.inside.torch_settings import TorchSettings


TRACE = "trace.json.gz"
KEY_AVERAGES = "key_averages.txt"
STACKS = "stacks.txt"
SNAPSHOT = "memory_snapshot.pickle"
TIMELINE = "memory-timeline.html"
_STARTED_S = time.time()
"""When this process began to use the profiler; files of its own run are younger."""
_NAME_WIDTH = 120
"""Of names in the table: room for the part in which names of kernels differ."""
_HELPER_TIMEOUT_S = 600
_OURS = ("gpusight.", "contextlib")


class RunFolder:
    """Where one rank puts the files of one run."""

    def __init__(self, base: Path, rank: int, *, since_s: float = _STARTED_S) -> None:
        self._base, self._rank, self._since_s = base.absolute(), rank, since_s
        _refuse_unwritable(self._base)
        self.root = self._free()

    def _free(self) -> Path:
        """Return the first folder without files of an earlier run."""
        numbered = (self._base.with_name(f"{self._base.name}-{n}") for n in itertools.count(2))
        folders = itertools.chain([self._base], numbered)
        return next(folder for folder in folders if not self._is_taken(folder))

    def _is_taken(self, folder: Path) -> bool:
        own = f"rank{self._rank}_"
        return any(
            file.name.startswith(own) or file.stat().st_mtime < self._since_s
            for file in folder.glob("iteration_*/rank*_*")
        )

    def publish(self, cycle: str, name: str, write: Callable[[Path], object]) -> Path:
        """Let `write` make a file, then give it its name once it is complete.

        Another program may have come to the same folder meanwhile: then this run takes the next.
        """
        file_name = f"rank{self._rank}_{name}"
        self.root.mkdir(parents=True, exist_ok=True)
        part = self.root / f".{file_name}.{os.getpid()}.part"
        try:
            write(part)
            while not _move_unless_taken(part, self.root / cycle / file_name):
                self.root = self._free()
            return self.root / cycle / file_name
        finally:
            part.unlink(missing_ok=True)


def _move_unless_taken(part: Path, final: Path) -> bool:
    """Move a finished file to its name, unless that is taken."""
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
    existing = next(path for path in (folder, *folder.parents) if path.exists())
    if not existing.is_dir():
        raise RecordError(f"nothing can be written to {folder}", why=f"{existing} is a file")
    try:
        with tempfile.TemporaryFile(dir=existing):
            pass
    except OSError as error:
        raise RecordError(
            f"nothing can be written to {folder}",
            why=f"{existing} is not writable ({error.strerror})",
            hint="choose another output_dir",
        ) from error


@contextlib.contextmanager
def optional(artefact: str) -> Iterator[None]:
    """Turn whatever goes wrong with an artefact into one warning that names it."""
    try:
        yield
    except Exception as error:  # noqa: BLE001 - no artefact is worth the end of a training
        why = " ".join(f"{type(error).__name__}: {error}".split())
        warn(f"{artefact} is missing: {why}")


def warn(text: str) -> None:
    """Warn of what cannot be had, at the line of the program that we were called from."""
    level, frame = 1, inspect.currentframe()
    while frame is not None and frame.f_globals.get("__name__", "").startswith(_OURS):
        level, frame = level + 1, frame.f_back
    warnings.warn(text, ProfilerWarning, stacklevel=level)


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
    """Print the bottlenecks of a trace, and what a fix would save."""
    done = _gpusight("diagnose", str(trace))
    sys.stdout.write(done.stdout)
    sys.stdout.flush()
    sys.stderr.write(done.stderr)  # why there is none, in one line


def _gpusight(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a process of its own: analyses stay out of the program's.

    It must not be recorded itself.
    """
    return subprocess.run(  # noqa: S603 - this interpreter, on files that we wrote
        [sys.executable or "python", "-m", "gpusight", *arguments],
        env={name: text for name, text in os.environ.items() if name != VARIABLE},
        capture_output=True,
        check=False,
        text=True,
        timeout=_HELPER_TIMEOUT_S,
    )


class StepRecorder(Protocol):
    """Records some steps of a program."""

    def prepare(self) -> None:
        """Get ready: recording begins soon."""

    def start(self) -> None:
        """Record from here on."""

    def begin_step(self, number: int) -> None:
        """Mark that a step begins."""

    def end_step(self) -> None:
        """Mark that it ended."""

    def drop_step(self) -> None:
        """Forget a step that was begun and turned out to be none, or was cut off."""

    def finish(self, cycle: str) -> list[Path]:
        """Record no more, and write what there is."""

    def cancel(self) -> None:
        """Undo `prepare` and `start`: nothing came that is worth a file."""


class TorchStepRecorder:
    """Runs torch.profiler, one cycle after the other."""

    def __init__(self, settings: TorchSettings, folder: RunFolder) -> None:
        self._settings, self.folder = settings, folder
        self._torch = _import_torch()
        if profiler_runs(self._torch):
            raise RecordError(
                "torch.profiler is already running in this process",
                hint="stop that one first, or remove one of the two",
            )
        self._on_gpu: bool = settings.cuda and self._torch.cuda.is_available()
        if not (settings.cpu or self._on_gpu):
            raise RecordError("nothing to record: no GPU, and cpu=False")
        self._profiler: Any = None
        self._mark: Any = None
        self._is_on = False
        self._history: AllocatorHistory | None = None

    def prepare(self) -> None:
        """Make a profiler and let it set itself up."""
        if profiler_runs(self._torch):
            raise RecordError("another torch.profiler is running")
        profiler, settings = self._torch.profiler, self._settings
        kinds = profiler.ProfilerActivity
        options: dict[str, Any] = {}
        if settings.stacks:  # without `verbose` torch keeps stacks for the trace alone
            config = self._torch._C._profiler._ExperimentalConfig(verbose=True)
            options["experimental_config"] = config
        self._profiler = profiler.profile(
            activities=[*([kinds.CPU] * settings.cpu), *([kinds.CUDA] * self._on_gpu)],
            record_shapes=settings.record_shapes,
            profile_memory=settings.profile_memory or settings.memory_timeline,
            with_stack=settings.with_stack or settings.stacks,
            with_flops=settings.with_flops,
            **options,
        )
        self._profiler.prepare_trace()

    def start(self) -> None:
        """Record from here on."""
        if self._profiler is None:
            self.prepare()
        if self._settings.memory_snapshot:
            with optional(SNAPSHOT):
                if not self._on_gpu:
                    raise RecordError(
                        "memory history needs the CUDA allocator, and there is no GPU"
                    )
                self._history = AllocatorHistory(self._torch)
        self._profiler.start_trace()
        self._is_on = True

    def begin_step(self, number: int) -> None:
        """Mark a step as torch's own schedule does."""
        self._mark = self._torch.profiler.record_function(f"ProfilerStep#{number}")
        self._mark.__enter__()

    def end_step(self) -> None:
        """Close the mark."""
        if self._mark is not None:
            self._mark.__exit__(None, None, None)
            self._mark = None

    def drop_step(self) -> None:
        """Leave the mark open: torch writes it as one that did not finish."""

    def finish(self, cycle: str) -> list[Path]:
        """Stop, and write every requested artifact."""
        profiler = self._profiler
        try:
            self._stop()
            return list(self._write(profiler, cycle))
        finally:
            self._end_history()

    def cancel(self) -> None:
        """Stop without writing; torch can only stop what was started."""
        if not self._is_on:
            self._profiler.start_trace()
        self._stop()
        self._end_history()

    def _stop(self) -> None:
        profiler, self._profiler, self._is_on = self._profiler, None, False
        profiler.stop_trace()
        self.end_step()  # what was left open until now

    def _write(self, profiler: Any, cycle: str) -> Iterator[Path]:
        settings = self._settings
        order = f"self_{'cuda' if self._on_gpu else 'cpu'}_time_total"

        def write_key_averages(path: Path) -> None:
            averages = profiler.key_averages()
            table = averages.table(
                sort_by=order, row_limit=settings.rows, max_name_column_width=_NAME_WIDTH
            )
            path.write_text(f"{table}\n", encoding="utf-8")

        def write_stacks(path: Path) -> None:
            profiler.export_stacks(str(path), order)
            if not path.stat().st_size:
                raise RecordError(
                    "torch recorded no stacks", hint="the trace has them: with_stack=True"
                )

        def write_snapshot(path: Path) -> None:
            if self._history is None:
                raise RecordError("no history was kept")
            with path.open("wb") as file:
                pickle.dump(self._history.snapshot(), file)

        writers: list[tuple[bool, str, Callable[[Path], object]]] = [
            (True, TRACE, lambda path: write_trace(profiler, path)),
            (settings.key_averages, KEY_AVERAGES, write_key_averages),
            (settings.stacks, STACKS, write_stacks),
            (settings.memory_snapshot and self._on_gpu, SNAPSHOT, write_snapshot),
        ]
        for wanted, name, write in writers:
            if wanted:
                with optional(name):
                    yield self.folder.publish(cycle, name, write)

    def _end_history(self) -> None:
        if self._history is not None:
            self._history.end()
            self._history = None


class ToolStepRecorder:
    """Marks steps for a tool around the program, and switches it on and off. Writes nothing."""

    def __init__(self, tool: str | None) -> None:
        self._switch = None if tool is None else profile(range=False, strict=True)
        self._range: object = None
        self._is_on = False

    def prepare(self) -> None:
        """Nothing needs preparing."""

    def start(self) -> None:
        """Let the tool record."""
        if self._switch is not None:
            self._switch.__enter__()
            self._is_on = True

    def begin_step(self, number: int) -> None:
        """Open a range that any thread's work belongs to."""
        self._range = nvtx_backend.start_range(f"step {number}", domain=nvtx_backend.DOMAIN)

    def end_step(self) -> None:
        """Close it."""
        nvtx_backend.end_range(self._range)
        self._range = None

    def drop_step(self) -> None:
        """Leave it open: the tool shows it as one that did not finish."""
        self._range = None

    def finish(self, cycle: str) -> list[Path]:  # noqa: ARG002 - the tool writes
        """Let the tool record no more."""
        self.cancel()
        return []

    def cancel(self) -> None:
        """Let the tool record no more."""
        if self._switch is not None and self._is_on:
            self._is_on = False
            self._switch.__exit__(None, None, None)


class NoStepRecorder:
    """This rank was not chosen."""

    def prepare(self) -> None:
        """Do nothing."""

    start = end_step = drop_step = cancel = prepare

    def begin_step(self, number: int) -> None:
        """Do nothing."""

    def finish(self, cycle: str) -> list[Path]:  # noqa: ARG002 - nothing is written
        """Write nothing."""
        return []


def _import_torch() -> Any:
    try:
        import torch.profiler
    except ImportError as error:
        raise RecordError(
            "torch cannot be imported", why=str(error), hint="mode='nvtx' works without it"
        ) from error
    return torch
