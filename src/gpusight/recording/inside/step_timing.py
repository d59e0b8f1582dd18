"""The window that `gpusight record` chooses: warm-up, steps timed without a profiler, recording."""

from __future__ import annotations

import enum
import time
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from gpusight.pace import BEFORE, OPTIMIZER, Pace
from gpusight.recording.inside import cuda_driver

if TYPE_CHECKING:
    from gpusight.recording.inside.environment import RecorderPlan


_MIN_WARMUP, _MAX_WARMUP = 3, 10
_MAX_WARMUP_S = 15.0
"""Where steps take seconds, three of them must do."""
_SETTLED_RATIO = 1.2
"""The longest of three steps to the shortest: allocators, autotuning and compilers are done."""
_SETTLING_STEPS = 3
_MIN_TIMED, _MIN_SLOW_TIMED, _MIN_TIMED_S, _MAX_TIMED_S = 10, 5, 0.2, 10.0
_MIN_RECORDED, _MIN_SLOW_RECORDED, _MIN_RECORDED_S, _MAX_RECORDED_S = 10, 3, 0.2, 10.0
"""Ten steps or more, until they took this long; fewer where they take longer. Timed and recorded
ones as long: calls of a model vary, and both must have the same mix."""
_MAX_TIMINGS = 4
"""Timing begins again where steps became faster meanwhile: the program was not warm yet."""
_RANK_WARMUP, _RANK_TIMED, _RANK_RECORDED = 5, 10, 10
"""Ranks record the same steps, so none may decide by its own clock."""
_NAMED_WARMUP, _MIN_NAMED_TIMED = 2, 2
"""Of steps before `--steps A-B`: fewer say nothing."""


class TimingPhase(enum.Enum):
    """What happens in a step."""

    WARMUP = "warm-up"
    TIMED = "timed"
    PREPARED = "prepared"
    """Neither timed nor recorded: the recorder gets warm."""
    RECORDED = "recorded"


class StepTimer:
    """Times steps that follow each other: from an idle GPU to an idle GPU, never waiting between.

    The host may run ahead of the GPU, so its clock is wrong for a single step: CUDA events, which
    cost a few microseconds each, have the time when the GPU came to each step.
    """

    def __init__(self) -> None:
        cuda_driver.wait_for_gpus()
        self._host_ns: list[int] = []
        self._events: list[Any] = []
        self.mark()

    def mark(self) -> None:
        """Note that a step begins."""
        self._host_ns.append(time.perf_counter_ns())
        torch = cuda_driver.torch_with_gpu()
        if torch is not None and not cuda_driver.is_capturing():
            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)

    @property
    def steps(self) -> int:
        """How many steps have ended."""
        return len(self._host_ns) - 1

    @property
    def seconds(self) -> float:
        """How long they took on the host."""
        return (self._host_ns[-1] - self._host_ns[0]) / 1e9

    @property
    def speedup(self) -> float:
        """How many times as long steps took in the first half as in the second, on the host."""
        half = self.steps // 2
        first_ns = self._host_ns[half] - self._host_ns[0]
        second_ns = self._host_ns[-1] - self._host_ns[-1 - half]
        return first_ns / max(second_ns, 1)

    def finish(self, source: str) -> Pace:
        """Return the pace of the steps so far; the last mark ended the last one."""
        cuda_driver.wait_for_gpus()
        total_ns = time.perf_counter_ns() - self._host_ns[0]
        return Pace.of(total_ns, self._times_ns(), how=BEFORE, source=source)

    def _times_ns(self) -> list[float]:
        events = self._events
        if len(events) == len(self._host_ns):
            return [1e6 * begin.elapsed_time(end) for begin, end in pairwise(events)]
        return [float(end - begin) for begin, end in pairwise(self._host_ns)]


class TimingSchedule:
    """Decides for each step, as it begins, what happens in it.

    Without numbers from the user, `warmup` ends when steps take alike, and timed and recorded steps
    are as many as fill a short time. When another source begins to count steps (an optimizer after
    calls of the model), warm-up begins again. `--steps A-B` sets which are recorded; those just
    before them are timed.
    """

    def __init__(self, plan: RecorderPlan, *, is_one_of_several: bool = False) -> None:
        is_named = plan.first_step is not None or plan.last_step is not None
        self._first = (plan.first_step or 0) if is_named else None
        self._last = plan.last_step
        self.phase = TimingPhase.WARMUP
        self.pace = None if plan.pace is None else Pace.from_text(plan.pace)
        self._source: str | None = None
        self._began_s: list[float] = []
        """When each step of the warm-up began."""
        self._timer: StepTimer | None = None
        self._timings = 0
        self._first_recorded: int | None = None
        self._recorded_since_s = 0.0
        self.recorded_steps = 0
        fixed = (_RANK_WARMUP, _RANK_TIMED, _RANK_RECORDED) if is_one_of_several else (None,) * 3
        given = (plan.warmup, plan.timed, plan.recorded)
        self._warmup, self._timed, self._recorded = (
            own if chosen is None else chosen for chosen, own in zip(given, fixed, strict=True)
        )
        if self.pace is not None:
            self._timed = 0

    def begin_step(self, number: int, source: str) -> TimingPhase:
        """Return what happens in the step that begins now."""
        if source != self._source and self.phase is not TimingPhase.RECORDED:
            self._source, self.phase = source, TimingPhase.WARMUP
            self._began_s, self._timer = [], None
        if self._timer is not None:
            self._timer.mark()
        else:
            self._began_s.append(time.monotonic())
        if self._first is None:
            self._choose_phase(number)
        else:
            self._named_phase(number, self._first)
        if self.phase is TimingPhase.RECORDED and self._first_recorded is None:
            self._first_recorded = number
            self.recording_began()
        return self.phase

    def recording_began(self) -> None:
        """Note that the recorder runs: how long it took to start does not count."""
        self._recorded_since_s = time.monotonic()

    def end_step(self, number: int) -> bool:
        """Return whether the step that ends now was the last one to record."""
        if self._first_recorded is None or number < self._first_recorded:
            return False
        self.recorded_steps = number - self._first_recorded + 1
        if self.recorded_steps == 1:
            self.recording_began()  # nsys may still start in the first step
        if self._first is not None:
            return self._last is not None and number >= self._last
        if self._recorded is not None:
            return self.recorded_steps >= self._recorded
        seconds = time.monotonic() - self._recorded_since_s
        is_enough = self.recorded_steps >= _MIN_RECORDED and seconds >= _MIN_RECORDED_S
        is_long = self.recorded_steps >= _MIN_SLOW_RECORDED and seconds >= _MAX_RECORDED_S
        return is_enough or is_long

    def _choose_phase(self, number: int) -> None:
        if self.phase is TimingPhase.PREPARED:
            self.phase = TimingPhase.RECORDED
        if self.phase is TimingPhase.WARMUP:
            if number == 0 and self._source == OPTIMIZER:
                self._began_s.clear()  # where that step began is a guess
            elif self._is_warm():
                self._begin_timing(self._timed != 0)
        elif self.phase is TimingPhase.TIMED and self._is_timed():
            if self._became_faster():
                self._begin_timing(wanted=True)
            else:
                self._finish_timing()

    def _named_phase(self, number: int, first: int) -> None:
        """Time the steps before the one that the user named; the recorder gets warm in the last."""
        begins = max(_NAMED_WARMUP, first - 1 - _MIN_TIMED)
        if number >= first:
            self._timer = None
            self.phase = TimingPhase.RECORDED
        elif number == first - 1:
            if self.phase is TimingPhase.TIMED:
                self._finish_timing()
            self.phase = TimingPhase.PREPARED
        elif number == begins and first - 1 - begins >= _MIN_NAMED_TIMED:
            self._begin_timing(self.pace is None)

    def _begin_timing(self, wanted: bool) -> None:
        if not wanted:
            self.phase = TimingPhase.PREPARED
            return
        self._timer = StepTimer()
        self._timings += 1
        self.phase = TimingPhase.TIMED

    def _finish_timing(self) -> None:
        assert self._timer is not None
        assert self._source is not None
        self.pace, self._timer = self._timer.finish(self._source), None
        self.phase = TimingPhase.PREPARED

    def _is_warm(self) -> bool:
        steps = len(self._began_s) - 1
        if self._warmup is not None:
            return steps >= self._warmup
        if steps < _MIN_WARMUP:
            return False
        recent = self._began_s[-_SETTLING_STEPS - 1 :]
        times = [end - begin for begin, end in pairwise(recent)]
        is_settled = max(times) <= _SETTLED_RATIO * min(times)
        is_late = self._began_s[-1] - self._began_s[0] >= _MAX_WARMUP_S
        return is_settled or is_late or steps >= _MAX_WARMUP

    def _became_faster(self) -> bool:
        """Return whether to time again; a number that was given, or of ranks, is kept to."""
        assert self._timer is not None
        is_free = self._timed is None and self._timings < _MAX_TIMINGS
        is_short = self._timer.seconds < _MAX_TIMED_S
        return is_free and is_short and self._timer.speedup > _SETTLED_RATIO

    def _is_timed(self) -> bool:
        assert self._timer is not None
        steps, seconds = self._timer.steps, self._timer.seconds
        if self._timed is not None:
            return steps >= self._timed
        is_enough = steps >= _MIN_TIMED and seconds >= _MIN_TIMED_S
        return is_enough or (steps >= _MIN_SLOW_TIMED and seconds >= _MAX_TIMED_S)
