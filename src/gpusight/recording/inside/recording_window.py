"""When recording begins and ends: by steps, by a range, by the clock, or all the way."""

from __future__ import annotations

import ctypes
import enum
import threading
import time
from typing import TYPE_CHECKING

from gpusight.recording.inside.environment import log_error, log_line
from gpusight.recording.inside.step_hub import HUB

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusight.recording.inside.environment import RecorderPlan
    from gpusight.recording.inside.recorders import Recorder


_PATIENCE_S = 1.0
"""A main thread that does not run any Python for longer than this only waits for others."""


class _Once:
    """A function that runs once, on whichever thread gets to it first."""

    def __init__(self, action: Callable[[], None]) -> None:
        self._action = action
        self._claim = threading.Lock()
        self.done = threading.Event()

    def run(self) -> None:
        if self._claim.acquire(blocking=False):
            try:
                self._action()
            finally:
                self.done.set()


_Pending = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.c_void_p)
_KEPT: list[object] = []
"""What the interpreter was given to call lives as long as the process: it may call late."""


def run_on_main_thread(action: Callable[[], None]) -> None:
    """Have the main thread call `action`, and wait for that; where it does not come to it, do so.

    A main thread that is stuck in a call into C runs no Python.
    """
    once = _Once(action)
    if ask_main_thread(once.run):
        once.done.wait(_PATIENCE_S)
    once.run()


def ask_main_thread(action: Callable[[], None]) -> bool:
    """Have the main thread call `action` between two of its instructions; does not wait.

    On the main thread it runs at once. False where too many others ask.
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
    """Starts and stops a recorder once, as a plan says.

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
    ) -> None:
        self._plan, self._recorder = plan, recorder
        self._opened, self._ended, self._allowed = opened, ended, allowed
        self._lock = threading.RLock()  # a signal may come while the main thread holds it
        self._state = WindowState.WAITING
        self._began_s = time.monotonic()
        self._depth = 0
        self.is_ending = False
        """Recording has stopped and what came of it is being dealt with."""
        self.steps_seen = 0
        self._timers: list[threading.Timer] = []

    @property
    def state(self) -> WindowState:
        """Where it stands."""
        return self._state

    @property
    def by_steps(self) -> bool:
        """Tell whether steps say when."""
        return self._plan.first_step is not None or self._plan.last_step is not None

    @property
    def by_range(self) -> bool:
        """Tell whether a range says when."""
        return self._plan.range_name is not None

    def ready(self) -> None:
        """Begin, unless something else says when: this process has come to work of its own."""
        if self.by_steps or self.by_range or self._timers:
            return
        left_s = (self._plan.delay_s or 0.0) - (time.monotonic() - self._began_s)
        if left_s > 0:
            self._guarded("waiting to record", lambda: self._later(left_s, self.start))
        else:
            self.start()

    def step_began(self, number: int) -> None:
        """Begin at the first step that is wanted; warm up one step before."""
        if self.by_steps:
            first = self._plan.first_step or 0
            if number == first - 1:
                self._prepare()
            elif number >= first:
                self.start()
        is_known = number > 0 or HUB.explicit  # where a guessed step 0 began is only a guess
        if self._state is WindowState.RECORDING and is_known:
            self._guarded("marking a step", lambda: self._recorder.step_began(number))

    def step_ended(self, number: int) -> None:
        """End after the last step that is wanted."""
        self.steps_seen = max(self.steps_seen, number + 1)
        if self._state is not WindowState.RECORDING:
            return
        self._guarded("marking a step", lambda: self._recorder.step_ended(number))
        if self._plan.last_step is not None and number >= self._plan.last_step:
            self.stop()

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
        self._follow()

    def stop(self) -> None:
        """End now."""
        with self._lock:
            if self._state is not WindowState.RECORDING:
                return
            self._state, self.is_ending = WindowState.OVER, True
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
        """Say what was waited for in vain; None when recording began, or nothing was awaited."""
        if self._state not in (WindowState.WAITING, WindowState.PREPARED):
            return None
        if self.by_steps:
            return self._never("began")
        if self.by_range:
            return f"the range {self._plan.range_name} was never opened"
        if self._timers:
            return f"the program ended before the delay of {self._plan.delay_s:g} s was over"
        return None

    def unfinished(self) -> str | None:
        """Say that no step that was wanted has ended, where steps are guessed; else None.

        With the end of each guessed step another one begins, which after the last is none.
        """
        is_whole = self.steps_seen > (self._plan.first_step or 0)
        return None if is_whole or HUB.explicit or not self.by_steps else self._never("ended")

    def _never(self, came: str) -> str:
        seen = f"{self.steps_seen} were counted" if self.steps_seen else "none was counted"
        return f"step {self._plan.first_step or 0} never {came} ({seen})"

    def _prepare(self) -> None:
        with self._lock:
            if self._state is WindowState.WAITING and self._is_allowed():
                self._state = WindowState.PREPARED
                self._guarded("preparing the recording", self._recorder.prepare)

    def _is_allowed(self) -> bool:
        answers: list[bool] = []
        asked = self._guarded("asking for the rank", lambda: answers.append(self._allowed()))
        return asked and answers[0]

    def _follow(self) -> None:
        """See to it that what has begun will end."""
        try:
            self._opened()
            if self._plan.duration_s is not None:
                self._later(self._plan.duration_s, self.stop)
        except Exception as error:  # noqa: BLE001 - the program must not feel that we failed
            log_line(f"recording may not end as it was asked to: {error}")

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

    def _is_wanted(self, told: str) -> bool:
        """Compare `NAME` or `NAME@DOMAIN`; who told no domain does not know it."""
        wanted = self._plan.range_name or ""
        name, domain = _split(wanted)
        told_name, told_domain = _split(told)
        if told == wanted or domain is None:
            return told == wanted or told_name == wanted
        return name == told_name and (told_domain is None or domain in ("*", told_domain))


def _split(text: str) -> tuple[str, str | None]:
    name, _, domain = text.rpartition("@")
    return (name, domain) if name else (text, None)
