"""Records with PyTorch's own profiler, without the program knowing."""

from __future__ import annotations

import contextlib
import gzip
import os
import pickle
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpusight.errors import GpusightError, RecordError
from gpusight.output_files import staged
from gpusight.pace import METADATA_KEY
from gpusight.recording.inside.cuda_driver import DEVICE_FILES, cuda_is_initialized
from gpusight.recording.inside.environment import log_line
from gpusight.recording.inside.stack_sampler import CLOCK_MESSAGE
from gpusight.recording.inside.stack_sampler import METADATA_KEY as METADATA_OF_STACKS

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusight.recording.inside.environment import RecorderPlan


SUFFIX = ".trace.json.gz"
_SNAPSHOT_SUFFIX = ".memory.pickle"
_COMPRESSION = 3
"""Fast, for the program waits: 250 MB/s; six makes a fifth less in twice the time."""
_TAIL_BYTES = 64
_GPU_DEVICE_FILES = (*DEVICE_FILES, "/dev/kfd")
"""Of NVIDIA's driver, and of AMD's."""


def may_use_gpu() -> bool:
    """Return whether this process could come to use a GPU; calling CUDA would spoil later forks."""
    torch = sys.modules["torch"]
    if not (torch.version.cuda or getattr(torch.version, "hip", None)):
        return False
    if os.environ.get("CUDA_VISIBLE_DEVICES", "0").strip() in ("", "-1"):
        return False
    return sys.platform == "win32" or any(Path(file).exists() for file in _GPU_DEVICE_FILES)


def profiler_runs(torch: Any) -> bool:
    """Return whether one runs: two at once are not possible.

    `_profiler_enabled` knows of profilers of this thread; the variable of the module, which
    PyTorch has since 2.1, of those of all threads.
    """
    everywhere = getattr(torch.autograd.profiler, "_is_profiler_enabled", False)
    return bool(everywhere or torch.autograd._profiler_enabled())


_MAX_HISTORY_ENTRIES = 1_000_000


class AllocatorHistory:
    """Switches the history on and off again; one that the program keeps itself is left on."""

    def __init__(self, torch: Any) -> None:
        self._torch = torch
        # Without this function, in older versions, `bool()` stands for "not kept".
        is_kept = getattr(torch._C, "_cuda_isHistoryEnabled", bool)
        self._is_ours = not is_kept()
        if self._is_ours:
            record = torch.cuda.memory._record_memory_history
            record("all", stacks="python", max_entries=_MAX_HISTORY_ENTRIES)

    def snapshot(self) -> dict[str, Any]:
        """Return the history and the current state of the memory."""
        snapshot: dict[str, Any] = self._torch.cuda.memory._snapshot()
        return snapshot

    def end(self) -> None:
        """Keep no more of it."""
        if self._is_ours:
            self._is_ours = False
            self._torch.cuda.memory._record_memory_history(None)


def write_trace(profiler: Any, path: Path) -> None:
    """Write the trace, compressed.

    torch would compress through the system's temporary folder, and slowly.
    """
    plain = path.with_name(f"{path.name}.json")
    unfinished = path.with_name(f"{plain.name}.tmp")
    try:
        profiler.export_chrome_trace(str(plain))
        _raise_if_cut_off(plain)
        with plain.open("rb") as source, gzip.open(path, "wb", _COMPRESSION) as target:
            shutil.copyfileobj(source, target, 1 << 20)
    finally:
        plain.unlink(missing_ok=True)
        unfinished.unlink(missing_ok=True)


def _raise_if_cut_off(trace: Path) -> None:
    """Raise where torch could not write all of a trace: it does not do so itself."""
    if trace.exists():
        with trace.open("rb") as file:
            file.seek(max(0, trace.stat().st_size - _TAIL_BYTES))
            if file.read(_TAIL_BYTES).rstrip().endswith((b"}", b"]")):
                return
    _raise_if_disk_full(trace)
    raise RecordError("torch did not write the whole trace")


def _raise_if_disk_full(file: Path) -> None:
    """Write more: what kept torch from it, such as a full disk or a quota, raises its own error."""
    with file.open("ab") as target:
        target.write(bytes(1 << 20))


class TorchRecorder:
    """One recording by torch.profiler, of all threads where PyTorch can (2.7 and later)."""

    suffix = SUFFIX
    on_main_thread = True

    def __init__(self, plan: RecorderPlan) -> None:
        self._plan = plan
        self._profiler: Any = None
        self._mark: tuple[int, Any] | None = None
        self._restore_profilers: Callable[[], None] | None = None
        self._is_empty = True
        self._history: AllocatorHistory | None = None
        self._snapshot: Any = None
        self.interrupted: Callable[[], None] = lambda: None
        """Called when the program turns to torch.profiler itself."""

    def prepare(self) -> None:
        """Let the profiler set itself up, which takes long on the first use of a GPU."""
        torch = _torch()
        if profiler_runs(torch):
            raise RecordError("the program uses torch.profiler itself, and only one can run")
        kinds = torch.profiler.ProfilerActivity
        options: dict[str, Any] = {}
        with contextlib.suppress(TypeError):  # older versions cannot record threads that exist
            every_thread = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
            options["experimental_config"] = every_thread
        self._profiler = torch.profiler.profile(
            activities=[kinds.CPU, *([kinds.CUDA] if may_use_gpu() else [])],
            record_shapes=self._plan.shapes,
            profile_memory=self._plan.memory,
            with_stack=self._plan.python_stacks,
            **options,
        )
        self._profiler.prepare_trace()

    def cancel(self) -> None:
        """Let it go: torch can only stop what was started."""
        self._profiler = None

    def start(self) -> None:
        """Record from here on, until the program wants the profiler for itself."""
        if self._profiler is None:
            self.prepare()
        if self._plan.memory and may_use_gpu() and cuda_is_initialized():
            self._history = AllocatorHistory(_torch())
        self._profiler.start_trace()
        self._restore_profilers = _call_before_other_profilers(self._profiler, self._give_way)

    def step_began(self, number: int) -> None:
        """Mark a step as torch's own schedule does."""
        mark = _torch().profiler.record_function(f"ProfilerStep#{number}")
        mark.__enter__()
        self._mark = (number, mark)

    def step_ended(self, number: int) -> None:
        """Close the mark."""
        if self._mark is not None and self._mark[0] == number:
            self._mark[1].__exit__(None, None, None)
            self._mark = None

    def store_pace(self, text: str) -> None:
        """Add it to the metadata of the trace."""
        self._profiler.add_metadata_json(METADATA_KEY, text)

    def mark_clock(self, text: str) -> None:
        """Add it to the metadata: the trace has the wall clock, so the session is what counts."""
        self._profiler.add_metadata_json(METADATA_OF_STACKS, text.removeprefix(CLOCK_MESSAGE))

    def capture_time_ns(self) -> int | None:
        """Return None: torch has only the wall clock."""
        return None

    def stop(self) -> None:
        """Wait for the GPU, and collect what was recorded."""
        if self._restore_profilers is not None:
            self._restore_profilers()
        self._profiler.stop_trace()
        used_gpu = _torch().cuda.is_initialized()  # spares a long run the counting
        self._is_empty = not (used_gpu or self._profiler.profiler.kineto_results.events())
        if self._history is not None:  # what the program does afterwards was not requested
            self._snapshot = self._history.snapshot()
            self._history.end()

    def is_empty(self) -> bool:
        """Return whether neither an operator nor GPU activity came."""
        return self._is_empty

    def why_empty(self) -> str:
        """Return what did not happen."""
        return "PyTorch did no work while recording"

    def write(self, path: Path) -> None:
        """Write the trace and, if requested, the GPU memory history next to it."""
        write_trace(self._profiler, path)
        if self._snapshot is not None:
            self._write_snapshot(path)
        elif self._plan.memory:
            why = "this process had not used the GPU when recording started"
            if not may_use_gpu():
                why = "this process has no GPU; tensors' allocations are in the trace"
            log_line(f"no GPU memory history: {why}")
        self._profiler = None  # its events take as much memory as the trace

    def forget(self) -> None:
        """Stop this fork from collecting events for a profiler that is its parent's."""
        if self._profiler is None:
            return
        enable = getattr(_torch()._C._autograd, "_enable_record_function", None)
        if enable is not None:
            enable(False)
        if self._restore_profilers is not None:
            self._restore_profilers()
        self._profiler = self._mark = self._history = None

    def _give_way(self) -> None:
        log_line(
            f"the program uses torch.profiler itself: process {os.getpid()} is recorded up to here;"
            " --with nsys or cupti records all of it"
        )
        self.interrupted()

    def _write_snapshot(self, trace: Path) -> None:
        name = trace.name.partition(SUFFIX)[0]
        beside = trace.with_name(f"{name}{_SNAPSHOT_SUFFIX}")
        try:
            with staged(beside, replace=self._plan.overwrite) as part, part.open("xb") as file:
                pickle.dump(self._snapshot, file)
        except GpusightError as error:  # the trace is there all the same
            log_line(f"the memory history was not written: {error}")


def _torch() -> Any:
    """Return torch, which the program has imported: we never do it for it."""
    torch = sys.modules.get("torch")
    if torch is None:
        raise RecordError(
            "the program has not imported torch", hint="--with nsys or cupti works without it"
        )
    return torch


def _call_before_other_profilers(ours: Any, give_way: Callable[[], None]) -> Callable[[], None]:
    """Have `give_way` called before any other profiler sets itself up; returns what ends that.

    Two cannot run at once: the program's would raise, or take our events for its own.
    """
    profile = _torch().autograd.profiler.profile
    prepare = profile._prepare_trace

    def prepare_trace(self: Any, *args: Any, **kwargs: Any) -> Any:
        if self is not ours.profiler:
            give_way()
        return prepare(self, *args, **kwargs)

    def remove() -> None:
        if profile._prepare_trace is prepare_trace:
            profile._prepare_trace = prepare

    profile._prepare_trace = prepare_trace
    return remove
