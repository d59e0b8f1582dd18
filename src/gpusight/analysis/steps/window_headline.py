"""The window of an answer, and how every command names it: `3 steps of 46.9 ms, GPU busy 92%`."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpusight.analysis.selection import TimeWindow
from gpusight.analysis.steps.step_list import ends_of
from gpusight.units import format_share, format_time, in_one_unit

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusight.analysis.steps.step_list import InnerLoop, TraceStep


class WindowKind(enum.Enum):
    """How a window was chosen."""

    STEPS = "steps"
    """The steps without warm-up, where there are any."""
    NUMBERED = "numbered"
    """Steps by number."""
    TIME = "time"
    """A span of time."""
    RANGE = "range"
    """All occurrences of a range."""
    ALL = "all"
    """The whole capture."""


@dataclass(frozen=True)
class StepWindow:
    """One contiguous window, with the steps inside."""

    start_ns: int
    """Of steps: when the GPU is done with what was launched before the first one, or its start on
    the host where that is later. Work of an excluded step is no time of the steps after it."""
    end_ns: int
    """End of the last step, or of the GPU work launched before it where that is later."""
    steps: Sequence[TraceStep] = ()
    """In order; none where none are known."""
    left_out: Sequence[TraceStep] = ()
    """Warm-up, what the capture cut off, and what `steps` excluded."""
    how: str = ""
    """How steps were detected, in words; empty where there are none."""
    notes: tuple[str, ...] = ()
    """Caveats."""
    no_steps: str = ""
    """Why the capture has no steps; empty where it has some."""
    suggestions: str = ""
    """Windows that can be chosen where it has none: what continues `no_steps`."""
    before_ns: int = 0
    """Time before the window that was left out as the start of a program without known steps."""
    partial: int = 0
    """Steps of `left_out` that the capture cut off; the others are warm-up."""
    kind: WindowKind = WindowKind.STEPS
    recorded_step_ns: float | None = None
    """Step time under the profiler, where times are those without it (`profiler_correction`)."""
    estimate_ns: tuple[float, float] | None = None
    """Lowest and highest step time without the profiler, where that is estimated."""
    inner_loop: InnerLoop | None = None
    """The loop inside each step, where steps were found by repetition and one has a loop."""
    process: str = ""
    """Whose steps they are, and of how many processes; empty where one used the GPU."""

    @property
    def is_of_steps(self) -> bool:
        """Nothing but steps: its length per step is the step time."""
        return bool(self.steps) and self.kind in {WindowKind.STEPS, WindowKind.NUMBERED}

    @property
    def length_ns(self) -> int:
        """How long the window is."""
        return self.end_ns - self.start_ns

    @property
    def step_ns(self) -> float:
        """The step time of every command: the window per step; the window where none are known."""
        return self.length_ns / max(1, len(self.steps))

    @property
    def is_estimate(self) -> bool:
        """The step time is an estimate of that without the profiler, and not the recorded one."""
        return self.estimate_ns is not None and self.recorded_step_ns not in (None, self.step_ns)

    @property
    def host_start_ns(self) -> int:
        """When the host starts the first step: before the window where the GPU is behind."""
        return min(self.start_ns, self.steps[0].start_ns) if self.steps else self.start_ns

    @property
    def text(self) -> str:
        """Name the window as every headline does: `3 steps of 46.9 ms (2 warm-up steps excluded)`.

        Of several processes with that of the steps: `…, those of process 7 (worst of 2; …)`.
        Where no steps are known: `whole capture, 1.2 s, no steps found`.
        """
        if not self.process or not self.steps:
            return self._window
        return f"{self._window}, those of {self.process}"

    @property
    def without_time(self) -> str:
        """Name the window of a capture whose step time without the profiler is not worked out."""
        if not self.is_of_steps:
            return self.text
        details = f" ({self._excluded})" if self._excluded else ""
        process = f", those of {self.process}" if self.process else ""
        return f"{self._counted}{details}{process}"

    @property
    def _counted(self) -> str:
        count = len(self.steps)
        return f"{count:,} step" if count == 1 else f"{count:,} steps"

    @property
    def _window(self) -> str:
        count = len(self.steps)
        steps = self._counted
        if self.is_of_steps:
            details = "; ".join(filter(None, (self._other_step_time, self._excluded)))
            return f"{steps} of {self._step_time}" + (f" ({details})" if details else "")
        length = format_time(self.length_ns, digits=3)
        known = steps if count else "no steps found"
        if self.before_ns:
            start = format_time(self.before_ns, digits=3)
            return f"{length}, {known} (program start excluded: {start})"
        if self.kind in {WindowKind.STEPS, WindowKind.ALL}:
            return f"whole capture, {length}, {known}"
        chosen = "window" if self.kind is WindowKind.TIME else "range"
        return f"{chosen} of {length}" + (f", {steps}" if count else "")

    @property
    def _step_time(self) -> str:
        about = "about " if self.is_estimate and self._other_step_time else ""
        return f"{about}{format_time(self.step_ns, digits=3)}"

    @property
    def _other_step_time(self) -> str:
        """The step time with the profiler, or without it where that is only known roughly."""
        recorded_ns = self.recorded_step_ns or self.step_ns
        if recorded_ns == self.step_ns and self.estimate_ns is not None:
            if self.recorded_step_ns is not None:  # the profiler hardly slows the steps down
                return ""
            low, high = (format_time(ns, digits=3) for ns in self.estimate_ns)
            return f"about {in_one_unit(low, high, ' to ')} without the profiler"
        recorded = format_time(recorded_ns, digits=3)
        if recorded == format_time(self.step_ns, digits=3):
            return ""
        return f"{recorded} with the profiler"

    @property
    def _excluded(self) -> str:
        if self.kind is WindowKind.NUMBERED or not self.left_out:
            return ""
        counts = {"warm-up": len(self.left_out) - self.partial, "partial": self.partial}
        kinds = " and ".join(f"{count:,} {kind}" for kind, count in counts.items() if count)
        return f"{kinds} {'step' if len(self.left_out) == 1 else 'steps'} excluded"

    @property
    def time(self) -> TimeWindow:
        """The window as a part of a selection."""
        if not self.is_of_steps:
            return TimeWindow(self.start_ns, self.end_ns)
        last_ns = int(ends_of(self.steps).max())
        return TimeWindow(self.start_ns, self.end_ns, self.host_start_ns, last_ns)


@dataclass(frozen=True, slots=True)
class WindowHeadline:
    """The time that an answer covers, as every command names it."""

    text: str
    """`3 steps of about 43.2 ms (46.9 ms with the profiler), GPU busy 92.5%`."""
    steps: int = 0
    step_ns: float | None = None
    """Step time without the profiler, where that is known or estimated; None without steps."""
    recorded_step_ns: float | None = None
    busy_share: float | None = None
    """Mean of the GPUs."""

    @property
    def is_corrected(self) -> bool:
        """The step time is another one than the capture shows."""
        return " with the profiler" in self.text

    def document(self) -> dict[str, Any]:
        """Return plain objects, for JSON: the same in the answer of every command."""
        return {
            "text": self.text,
            "steps": self.steps,
            "step_ns": self.step_ns,
            "recorded_step_ns": self.recorded_step_ns,
            "gpu_busy_share": self.busy_share,
        }


NO_WINDOW = WindowHeadline("")


def headline_of(
    chosen: StepWindow, busy: Mapping[int, float], device: int | None = None
) -> WindowHeadline:
    """Name a window with the busy share of each GPU; of several, `device` comes first."""
    shares = list(busy.values())
    step_ns = chosen.step_ns if chosen.steps else None
    return WindowHeadline(
        ", ".join(filter(None, (chosen.text, _busy_text(busy, device)))),
        len(chosen.steps),
        step_ns,
        step_ns and (chosen.recorded_step_ns or step_ns),
        sum(shares) / len(shares) if shares else None,
    )


def _busy_text(busy: Mapping[int, float], device: int | None) -> str:
    if not busy:
        return ""
    if len(busy) == 1:
        return f"GPU busy {format_share(next(iter(busy.values())))}"
    span = f"{format_share(min(busy.values()))} to {format_share(max(busy.values()))}"
    if device is None:
        return f"{len(busy)} GPUs busy {span}"
    return f"GPU {device} busy {format_share(busy[device])} (all {len(busy)}: {span})"
