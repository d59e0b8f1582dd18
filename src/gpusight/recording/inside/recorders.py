"""What can record from within a program, and which of them a plan wants."""

from __future__ import annotations

import importlib
import threading
from typing import TYPE_CHECKING, Any, Protocol

from gpusight.errors import RecordError
from gpusight.recording.inside import cuda_driver, environment
from gpusight.recording.inside.environment import log_error

if TYPE_CHECKING:
    from pathlib import Path

    from gpusight.recording.inside.environment import RecorderPlan


_POLL_S = 0.005
_ELSEWHERE = {
    environment.TORCH: ("gpusight.recording.inside.torch_recorder", "TorchRecorder"),
    environment.CUPTI: ("gpusight.recording.inside.cupti_recorder", "CuptiRecorder"),
}


class Recorder(Protocol):
    """Records this process, once: `prepare`, `start`, steps, `stop`, `write`.

    Each is called at most once, `prepare` perhaps never; never two at a time, but not always on
    the same thread. What it raises is said in one line, and the program goes on.
    """

    suffix: str | None
    """What the name of its file ends in; None: it writes none."""
    on_main_thread: bool
    """Start and stop are better called there."""

    def prepare(self) -> None:
        """Get warm: `start` follows within about a step."""

    def cancel(self) -> None:
        """Undo `prepare`, instead of `start`: the process ends before."""

    def start(self) -> None:
        """Record from here on."""

    def step_began(self, number: int) -> None:
        """Mark a step, if the recording has its own way to; called between start and stop."""

    def step_ended(self, number: int) -> None:
        """Mark its end."""

    def stop(self) -> None:
        """Record no more, and keep what was recorded."""

    def is_empty(self) -> bool:
        """Tell whether nothing came that is worth a file; called after `stop`."""

    def why_empty(self) -> str | None:
        """Say what did not happen, where it is empty; None: that has been said."""

    def write(self, path: Path) -> None:
        """Write what was recorded to a new file; `path` exists, empty, and is renamed later."""

    def forget(self) -> None:
        """Let go without touching the profiler: this is a forked child, it is the parent's."""


def recorder_for(wanted: RecorderPlan) -> Recorder:
    """Give the recorder that a plan names; raises where this process cannot have it."""
    if wanted.recorder == environment.PROFILER_API:
        return ProfilerApiRecorder()
    if wanted.recorder not in _ELSEWHERE:
        raise RecordError(f"no recorder is called {wanted.recorder!r}")
    module, name = _ELSEWHERE[wanted.recorder]
    made: Any = getattr(importlib.import_module(module), name)
    recorder: Recorder = made(wanted)
    return recorder


class ProfilerApiRecorder:
    """Switches the profiler around this process, nsys or ncu, on and off.

    Before the program uses CUDA there is nothing to record, and cudaProfilerStart would make CUDA
    ready on device 0 of a process that may fork, or choose another device. So it waits for that.
    """

    suffix: str | None = None
    on_main_thread = False

    def __init__(self) -> None:
        self._started = self._is_refused = False
        self._over = threading.Event()
        self._lock = threading.Lock()

    def prepare(self) -> None:
        """Do nothing: the other tool is ready."""

    def cancel(self) -> None:
        """Do nothing."""

    def start(self) -> None:
        """Switch it on, now or when the program first uses CUDA."""
        if cuda_driver.cuda_in_use():
            cuda_driver.wait_for_gpus()
            self._switch_on()
        else:
            threading.Thread(target=self._wait, name="gpusight", daemon=True).start()

    def step_began(self, number: int) -> None:
        """Do nothing: steps are told through NVTX."""

    def step_ended(self, number: int) -> None:
        """Do nothing."""

    def stop(self) -> None:
        """Switch it off, once the GPU has done what was launched."""
        self._over.set()
        with self._lock:
            if self._started:
                cuda_driver.wait_for_gpus()
                cuda_driver.profiler_stop()

    def is_empty(self) -> bool:
        """Tell whether it was never on."""
        return not self._started

    def why_empty(self) -> str | None:
        """Say why it was never on."""
        if self._is_refused:
            return None
        if cuda_driver.driver_version() is None:
            return "the profiler is switched on through CUDA, and there is no CUDA driver here"
        return "the process did not use CUDA meanwhile"

    def write(self, path: Path) -> None:
        """Refuse: the other tool writes."""
        raise RecordError(f"{path} is written by another tool")

    def forget(self) -> None:
        """Leave it to the parent."""
        self._over.set()
        self._started = False

    def _wait(self) -> None:
        while not self._over.wait(_POLL_S):
            if cuda_driver.cuda_in_use():
                cuda_driver.borrow_context()
                try:
                    self._switch_on()
                except RecordError as error:
                    self._is_refused = True
                    log_error("starting the recording", error)
                return

    def _switch_on(self) -> None:
        with self._lock:
            if not self._over.is_set():
                cuda_driver.profiler_start()
                self._started = True
