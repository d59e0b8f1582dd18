"""What records the active steps: torch.profiler, or a tool around the program."""

from __future__ import annotations

import pickle
from typing import TYPE_CHECKING, Any, Protocol

from gpusight.errors import RecordError
from gpusight.recording.inside import nvtx_backend, run_files
from gpusight.recording.inside.profile_part import profile
from gpusight.recording.inside.torch_hooks import AllocatorHistory, profiler_runs

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from gpusight.recording.inside.run_files import RunFolder
    from gpusight.recording.inside.torch_settings import TorchSettings


_STACKS_NEED = "verbose"
"""Without it torch keeps stacks for the trace alone."""


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
                "a profiler of torch is already running in this process",
                hint="end that one first, or leave one of the two out",
            )
        gpu = settings.cuda and self._torch.cuda.is_available()
        self.on_gpu: bool = gpu
        if not (settings.cpu or gpu):
            raise RecordError("there is nothing to record: no GPU, and cpu=False")
        self._profiler: Any = None
        self._mark: Any = None
        self._is_on = False
        self._history: AllocatorHistory | None = None

    def prepare(self) -> None:
        """Make a profiler and let it set itself up."""
        if profiler_runs(self._torch):
            raise RecordError("another profiler of torch is running")
        self._profiler = self._make()
        self._profiler.prepare_trace()

    def start(self) -> None:
        """Record from here on."""
        if self._profiler is None:
            self.prepare()
        if self._settings.memory_snapshot:
            with run_files.optional(run_files.SNAPSHOT):
                self._begin_history()
        self._profiler.start_trace()
        self._is_on = True

    def _make(self) -> Any:
        profiler, settings = self._torch.profiler, self._settings
        kinds = profiler.ProfilerActivity
        more: dict[str, Any] = {}
        if settings.stacks:
            make = self._torch._C._profiler._ExperimentalConfig
            more["experimental_config"] = make(**{_STACKS_NEED: True})
        return profiler.profile(
            activities=[*([kinds.CPU] * settings.cpu), *([kinds.CUDA] * self.on_gpu)],
            record_shapes=settings.record_shapes,
            profile_memory=settings.profile_memory or settings.memory_timeline,
            with_stack=settings.with_stack or settings.stacks,
            with_flops=settings.with_flops,
            **more,
        )

    def _begin_history(self) -> None:
        if not self.on_gpu:
            raise RecordError("only CUDA's allocator keeps a history, and there is no GPU")
        self._history = AllocatorHistory(self._torch)

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
        """Stop, and write every artefact that was asked for."""
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
        settings, gpu = self._settings, self.on_gpu
        writers: dict[str, tuple[bool, Callable[[Path], object]]] = {
            run_files.TRACE: (True, lambda path: run_files.write_trace(profiler, path)),
            run_files.KEY_AVERAGES: (
                settings.key_averages,
                lambda path: run_files.write_key_averages(
                    profiler, path, rows=settings.rows, on_gpu=gpu
                ),
            ),
            run_files.STACKS: (
                settings.stacks,
                lambda path: run_files.write_stacks(profiler, path, on_gpu=gpu),
            ),
            run_files.SNAPSHOT: (settings.memory_snapshot and gpu, self._dump_history),
        }
        for name, (wanted, write) in writers.items():
            if wanted:
                with run_files.optional(name):
                    yield self.folder.publish(cycle, name, write)

    def _dump_history(self, path: Path) -> None:
        if self._history is None:
            raise RecordError("no history was kept")
        with path.open("wb") as file:
            pickle.dump(self._history.snapshot(), file)

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
        """Have nothing."""
        return []


def _import_torch() -> Any:
    try:
        import torch.profiler
    except ImportError as error:
        raise RecordError(
            "torch cannot be imported", why=str(error), hint="mode='nvtx' does without it"
        ) from error
    return torch
