"""What records a process, and when: by steps, by a range, by the clock, or all the way."""

from __future__ import annotations

import ctypes
import enum
import importlib
import threading
import time
from typing import TYPE_CHECKING, Protocol

from gpusight.errors import RecordError
from gpusight.pace import MESSAGE, Pace
from gpusight.recording.inside import cuda_driver, environment, nvtx_backend
from gpusight.recording.inside.environment import log_error, log_line, own_rank
from gpusight.recording.inside.step_hub import HUB
from gpusight.recording.inside.step_timing import TimingPhase, TimingSchedule

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpusight.recording.inside.environment import RecorderPlan
    from gpusight.recording.inside.stack_sampler import StackSampler


_POLL_S = 0.005
_SWITCH_S = 1.0
"""nsys may take so long to record after cudaProfilerStart, while the program goes on."""
_RECORDERS = {
    environment.TORCH: ("gpusight.recording.inside.torch_recorder", "TorchRecorder"),
    environment.CUPTI: ("gpusight.recording.inside.cupti_recorder", "CuptiRecorder"),
}


class Recorder(Protocol):
    """Records this process, once: `prepare`, `start`, steps, `stop`, `write`.

    Each is called at most once, `prepare` perhaps never; never two at a time, but not always on
    the same thread. What it raises is logged in one line, and the program goes on.
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

    def store_pace(self, text: str) -> None:
        """Store the pace with what is recorded; called after `start`, and again before `stop`."""

    def mark_clock(self, text: str) -> None:
        """Store a text that names this moment, as `store_pace` does; called as often."""

    def capture_time_ns(self) -> int | None:
        """Return what time it is in the capture, where that is known while recording."""

    def stop(self) -> None:
        """Record no more, and keep what was recorded."""

    def is_empty(self) -> bool:
        """Return whether nothing came that is worth a file; called after `stop`."""

    def why_empty(self) -> str | None:
        """Return what did not happen, where it is empty; None: that has been logged."""

    def write(self, path: Path) -> None:
        """Write what was recorded to a new file; `path` exists, empty, and is renamed later."""

    def forget(self) -> None:
        """Let go without touching the profiler: this is a forked child, it is the parent's."""


def recorder_for(plan: RecorderPlan) -> Recorder:
    """Return the recorder that a plan names; raises where this process cannot have it."""
    if plan.recorder == environment.PROFILER_API:
        return ProfilerApiRecorder()
    if plan.recorder == environment.PACE:
        return NoRecorder()
    if plan.recorder == environment.SURROUNDED:
        return SurroundingRecorder()
    if plan.recorder not in _RECORDERS:
        raise RecordError(f"unknown recorder {plan.recorder!r}")
    module, name = _RECORDERS[plan.recorder]
    recorder: Recorder = getattr(importlib.import_module(module), name)(plan)
    return recorder


def mark_pace(text: str) -> None:
    """Store the pace as an NVTX mark, which every form of a capture keeps."""
    nvtx_backend.mark(MESSAGE + text, domain=nvtx_backend.DOMAIN)


class NoRecorder:
    """Records nothing: the run is only timed. Others derive from it, for what they need not do."""

    suffix: str | None = None
    on_main_thread = False

    def prepare(self) -> None:
        """Do nothing."""

    cancel = start = stop = forget = prepare

    def step_began(self, number: int) -> None:
        """Do nothing."""

    step_ended = step_began

    def store_pace(self, text: str) -> None:
        """Do nothing: the report has it."""

    def mark_clock(self, text: str) -> None:
        """Do nothing."""

    def capture_time_ns(self) -> int | None:
        """Return None: it is not known."""
        return None

    def is_empty(self) -> bool:
        """Return False: nothing is missed."""
        return False

    def why_empty(self) -> str | None:
        """Return None: it is not."""
        return None

    def write(self, path: Path) -> None:
        """Refuse: there is nothing."""
        raise RecordError(f"nothing was recorded for {path}")


class SurroundingRecorder(NoRecorder):
    """Leaves recording to the tool around this process."""

    def mark_clock(self, text: str) -> None:
        """Mark it, if the tool listens."""
        nvtx_backend.mark(text, domain=nvtx_backend.DOMAIN)


class ProfilerApiRecorder(NoRecorder):
    """Switches the profiler around this process, nsys or ncu, on and off.

    Before the program uses CUDA there is nothing to record, and cudaProfilerStart would initialize
    CUDA on device 0 of a process that may fork, or choose another device. So it waits for that.
    """

    def __init__(self) -> None:
        self._started = self._is_refused = False
        self._over = threading.Event()
        self._lock = threading.Lock()

    def start(self) -> None:
        """Switch it on, now or when the program first uses CUDA."""
        if cuda_driver.cuda_in_use():
            cuda_driver.wait_for_gpus()
            self._switch_on()
        else:
            threading.Thread(target=self._wait, name="gpusight", daemon=True).start()

    def store_pace(self, text: str) -> None:
        """Mark it, if the tool records."""
        if self._started:
            mark_pace(text)

    def mark_clock(self, text: str) -> None:
        """Mark it, if the tool records."""
        if self._started:
            nvtx_backend.mark(text, domain=nvtx_backend.DOMAIN)

    def stop(self) -> None:
        """Switch it off, once the GPU has done what was launched."""
        self._over.set()
        with self._lock:
            if self._started:
                cuda_driver.wait_for_gpus()
                cuda_driver.profiler_stop()

    def is_empty(self) -> bool:
        """Return whether it was never on."""
        return not self._started

    def why_empty(self) -> str | None:
        """Return why it was never on."""
        if self._is_refused:
            return None
        if cuda_driver.driver_version() is None:
            return "the profiler is started through CUDA, and no CUDA driver was found"
        return "the process did not use CUDA while recording"

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


_PATIENCE_S = 1.0
"""A main thread that does not run any Python for longer than this only waits for others."""


_Pending = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_KEPT: list[object] = []
"""What the interpreter was given to call lives as long as the process: it may call late."""


def run_on_main_thread(action: Callable[[], None]) -> None:
    """Have the main thread call `action`, and wait for that; where it does not come to it, do so.

    A main thread that is stuck in a call into C runs no Python.
    """
    claim, done = threading.Lock(), threading.Event()

    def run_once() -> None:
        if claim.acquire(blocking=False):
            try:
                action()
            finally:
                done.set()

    if ask_main_thread(run_once):
        done.wait(_PATIENCE_S)
    run_once()


def ask_main_thread(action: Callable[[], None]) -> bool:
    """Have the main thread call `action` between two of its instructions; does not wait.

    On the main thread it runs at once. False where too many others wait.
    """
    if threading.current_thread() is threading.main_thread():
        action()
        return True

    def call(_: object) -> int:
        action()
        return 0

    pending = _Pending(call)
    _KEPT.append(pending)
    return bool(ctypes.pythonapi.Py_AddPendingCall(pending, None) == 0)


class WindowState(enum.Enum):
    """Where a window stands; it only moves forward."""

    WAITING = "waiting"
    PREPARED = "prepared"
    RECORDING = "recording"
    OVER = "over"


class RecordingWindow:
    """Starts and stops a recorder once, by a plan.

    It listens to steps and ranges on whatever thread they happen; `opened` and `ended` are called
    once each, on the thread where recording began and ended. `allowed` has the last word when
    recording would begin. Nothing that goes wrong in here reaches the program.
    """

    def __init__(
        self,
        plan: RecorderPlan,
        recorder: Recorder,
        *,
        opened: Callable[[], None],
        ended: Callable[[], None],
        allowed: Callable[[], bool],
        stacks: StackSampler | None = None,
    ) -> None:
        self._plan, self._recorder, self._stacks = plan, recorder, stacks
        self._opened, self._ended, self._allowed = opened, ended, allowed
        self._lock = threading.RLock()  # a signal may come while the main thread holds it
        self._state = WindowState.WAITING
        self._began_s = time.monotonic()
        self._depth = 0
        self.is_ending = False
        """Recording has stopped and what came of it is being dealt with."""
        self.steps_seen = 0
        self.whole_because: str | None = None
        """Why everything from some moment on is recorded instead of chosen steps."""
        self._used_s: float | None = None
        self._started_s: float | None = None
        self._schedule: TimingSchedule | None = None
        self._timers: list[threading.Timer] = []

    @property
    def state(self) -> WindowState:
        """Where it stands."""
        return self._state

    @property
    def by_steps(self) -> bool:
        """Return whether steps say when."""
        return self._plan.first_step is not None or self._plan.last_step is not None

    @property
    def pace(self) -> Pace | None:
        """The step time without a profiler, where it is known."""
        if self._schedule is not None:
            return self._schedule.pace
        return None if self._plan.pace is None else Pace.from_text(self._plan.pace)

    @property
    def recorded_steps(self) -> int:
        """How many steps were recorded to their end, as far as they were counted."""
        return 0 if self._schedule is None else self._schedule.recorded_steps

    @property
    def by_range(self) -> bool:
        """Return whether a range starts it."""
        return self._plan.range_name is not None

    def ready(self) -> None:
        """Begin, unless something else starts it: this process has come to work of its own."""
        if self.by_steps or self.by_range or self._plan.window or self._timers:
            return
        wait_s = (self._plan.delay_s or 0.0) - (time.monotonic() - self._began_s)
        if wait_s > 0:
            self._guarded("waiting to record", lambda: self._later(wait_s, self.start))
        else:
            self.start()

    @property
    def mostly_missed(self) -> bool:
        """Return whether more of the program ran on the GPU before recording began than after."""
        if self._used_s is None or self._started_s is None:
            return False
        is_switched = self._plan.recorder == environment.PROFILER_API
        missed_s = self._started_s - self._used_s + (_SWITCH_S if is_switched else 0.0)
        return time.monotonic() - self._started_s < missed_s

    def start_whole(self, why: str, *, used_s: float | None = None) -> None:
        """Begin now, from whatever thread, and record to the end: there are no steps to choose.

        `used_s`: since when the process uses the GPU, by the monotonic clock.
        """
        self.whole_because, self._used_s = why, used_s
        if self._recorder.on_main_thread:
            run_on_main_thread(self.start)
        else:
            cuda_driver.borrow_context()
            self.start()

    def step_began(self, number: int) -> None:
        """Follow the schedule: warm up, time, prepare, record."""
        if self._stacks is not None:
            self._stacks.launches()
        follows = self._plan.window or self.by_steps
        if follows and self._state in (WindowState.WAITING, WindowState.PREPARED):
            self._follow_schedule(number)
        is_known = number > 0 or HUB.explicit  # where a guessed step 0 began is only a guess
        if self._state is WindowState.RECORDING and is_known:
            self._guarded("marking a step", lambda: self._recorder.step_began(number))

    def step_ended(self, number: int) -> None:
        """End after the last step that is wanted."""
        self.steps_seen = max(self.steps_seen, number + 1)
        if self._state is not WindowState.RECORDING:
            return
        self._guarded("marking a step", lambda: self._recorder.step_ended(number))
        if self._schedule is not None and self._schedule.end_step(number):
            self.stop()

    def _follow_schedule(self, number: int) -> None:
        with self._lock:
            if self._schedule is None:
                several = own_rank() is not None
                self._schedule = TimingSchedule(self._plan, is_one_of_several=several)
            try:
                phase = self._schedule.begin_step(number, HUB.source)
            except Exception as error:  # noqa: BLE001 - a capture without a pace is still one
                log_line(f"steps were not timed: {error}")
                phase = TimingPhase.RECORDED if self._plan.window else self._schedule.phase
        if phase is TimingPhase.PREPARED:
            self._prepare()
            if self._plan.recorder == environment.PACE:
                self.start()
                self.stop()
        elif phase is TimingPhase.RECORDED:
            self.start()
            self._schedule.recording_began()

    def range_began(self, name: str) -> None:
        """Begin with the first range of the name; one inside it changes nothing."""
        if not self.by_range or self._state is WindowState.OVER or not self._is_wanted(name):
            return
        with self._lock:
            self._depth += 1
        self.start()

    def range_ended(self, name: str) -> None:
        """End with it."""
        if (
            not self.by_range
            or self._state is not WindowState.RECORDING
            or not self._is_wanted(name)
        ):
            return
        with self._lock:
            self._depth -= 1
            is_outermost = self._depth <= 0
        if is_outermost:
            self.stop()

    def start(self) -> None:
        """Begin now."""
        with self._lock:
            if self._state not in (WindowState.WAITING, WindowState.PREPARED):
                return
            if not self._is_allowed():
                self._state = WindowState.OVER
                return
            self._state = WindowState.RECORDING
            if not self._guarded("starting the recording", self._recorder.start):
                return
            self._store_pace()
            if self._stacks is not None:
                self._stacks.start()
            self._mark_clock()
            self._started_s = time.monotonic()
        try:
            self._opened()
            if self._plan.duration_s is not None:
                self._later(self._plan.duration_s, self.stop)
        except Exception as error:  # noqa: BLE001 - the program must not feel that we failed
            log_line(f"recording may not stop as requested: {error}")

    def stop(self) -> None:
        """End now."""
        with self._lock:
            if self._state is not WindowState.RECORDING:
                return
            self._state, self.is_ending = WindowState.OVER, True
            self._store_pace()
            self._mark_clock()
            if self._stacks is not None:
                self._stacks.stop()
            stopped = self._guarded("ending the recording", self._recorder.stop)
        if stopped:
            self._ended()
        self.is_ending = False

    def close(self) -> None:
        """End with the process."""
        for timer in self._timers:
            timer.cancel()
        if self._state is WindowState.RECORDING:
            self.stop()
        elif self._state is WindowState.PREPARED:
            self._guarded("ending the recording", self._recorder.cancel)
        self._state = WindowState.OVER

    def abandon(self) -> None:
        """Do nothing any more; whatever records is not this process's own."""
        self._state = WindowState.OVER
        self._lock = threading.RLock()  # a thread that is not in this fork may have held it
        self._timers = []

    def missed(self) -> str | None:
        """Return what was waited for in vain; None when recording began, or nothing was awaited."""
        if self._state not in (WindowState.WAITING, WindowState.PREPARED):
            return None
        if self.by_steps:
            return self._never("began")
        if self._plan.window:
            return self._too_short()
        if self.by_range:
            return f"the range {self._plan.range_name} never started"
        if self._timers:
            return f"the program ended before the delay of {self._plan.delay_s:g} s was over"
        return None

    def unfinished(self) -> str | None:
        """Return that no step that was wanted has ended, where steps are guessed; else None.

        With the end of each guessed step another one begins, which after the last is none.
        """
        if HUB.explicit or self.whole_because is not None:
            return None
        if self._plan.window:
            return None if self.recorded_steps else self._too_short()
        has_step = self.steps_seen > (self._plan.first_step or 0)
        return None if has_step or not self.by_steps else self._never("ended")

    def _too_short(self) -> str:
        return f"it ran {self.steps_seen} steps, too few to warm up, time and record"

    def _never(self, came: str) -> str:
        seen = f"{self.steps_seen} were counted" if self.steps_seen else "none was counted"
        return f"step {self._plan.first_step or 0} never {came} ({seen})"

    def _prepare(self) -> None:
        with self._lock:
            if self._state is WindowState.WAITING and self._is_allowed():
                self._state = WindowState.PREPARED
                self._guarded("preparing the recording", self._recorder.prepare)

    def _store_pace(self) -> None:
        pace = self.pace
        if pace is not None:
            try:
                self._recorder.store_pace(pace.to_text())
            except Exception as error:  # noqa: BLE001 - a capture without a pace is still one
                log_line(f"the pace was not stored: {error}")

    def _mark_clock(self) -> None:
        """Have both the capture and the samples know this moment."""
        if self._stacks is None:
            return
        try:
            for _ in range(2):  # the first may wait for the tool's library to load
                self._stacks.mark("mark", self._recorder.mark_clock)
            if self._recorder.capture_time_ns() is not None:
                self._stacks.mark("capture", lambda _: self._recorder.capture_time_ns())
        except Exception as error:  # noqa: BLE001 - a capture without stacks is still one
            log_line(f"stacks may not match the clock of the capture: {error}")

    def _is_allowed(self) -> bool:
        answers: list[bool] = []
        self._guarded("finding the rank", lambda: answers.append(self._allowed()))
        return any(answers)

    def _guarded(self, doing: str, action: Callable[[], None]) -> bool:
        try:
            action()
        except Exception as error:  # noqa: BLE001 - the program must not feel that we failed
            self._state = WindowState.OVER
            log_error(doing, error)
            return False
        return True

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        def act() -> None:
            if self._recorder.on_main_thread:
                run_on_main_thread(action)
            else:
                action()

        timer = threading.Timer(seconds, act)
        timer.daemon = True
        timer.name = "gpusight"
        self._timers.append(timer)
        timer.start()

    def _is_wanted(self, opened: str) -> bool:
        """Compare `NAME` or `NAME@DOMAIN`; a range without a domain matches any."""
        wanted = self._plan.range_name or ""
        name, domain = _split(wanted)
        opened_name, opened_domain = _split(opened)
        if opened == wanted or domain is None:
            return opened == wanted or opened_name == wanted
        return name == opened_name and (opened_domain is None or domain in ("*", opened_domain))


def _split(text: str) -> tuple[str, str | None]:
    name, _, domain = text.rpartition("@")
    return (name, domain) if name else (text, None)
