"""Records what this process does until the recording is stopped: a cell of a notebook."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from gpusight.errors import RecordError
from gpusight.recording.inside import environment
from gpusight.recording.inside.environment import written
from gpusight.recording.inside.recording_window import RecordingWindow, recorder_for
from gpusight.recording.inside.step_hub import HUB, OptimizerSteps

if TYPE_CHECKING:
    from pathlib import Path

    from gpusight.recording.inside.environment import RecorderPlan


class CellRecording:
    """One recording by torch.profiler or CUPTI; steps are counted from its start.

    Where `torch` is the recorder, it must be imported. Raises RecordError where this process cannot
    be recorded; what fails later is `failure`, as why there is no capture.
    """

    def __init__(self, plan: RecorderPlan) -> None:
        if environment.surrounding_tool() is not None:
            tool = environment.surrounding_tool()
            raise RecordError(f"{tool} records this process already", hint="it has this cell too")
        self._plan = plan
        self._recorder = recorder_for(plan)
        self._window = RecordingWindow(
            plan,
            self._recorder,
            opened=lambda: None,
            ended=self._ended,
            allowed=lambda: True,
        )
        self._steps: OptimizerSteps | None = None
        self._is_over = False
        """Stopped from outside: steps that are guessed may be open still."""
        self.path: Path | None = None
        """The capture, once it is written."""
        self.failure: RecordError | None = None

    @property
    def steps_seen(self) -> int:
        """Steps that were counted, recorded or not."""
        return self._window.steps_seen

    def start(self) -> None:
        """Record from now on, or from the first of the chosen steps on."""
        HUB.restart()
        HUB.listen(self._window)
        torch: Any = sys.modules.get("torch")
        if torch is not None:
            marks = self._plan.recorder != environment.TORCH
            self._steps = OptimizerSteps(torch, lambda: None, marks=marks)
            self._steps.install()
        self._window.ready()

    def stop(self) -> None:
        """Record no more, and write what was recorded."""
        self._is_over = True
        missed = self._window.missed()
        self._window.close()
        HUB.forget(self._window)
        if self._steps is not None:
            self._steps.remove()
        if self.path is None and self.failure is None:
            self.failure = _no_capture_error(missed or "see the message above")

    def _ended(self) -> None:
        try:
            self._write()
        except Exception as error:  # noqa: BLE001 - the cell must not feel that we failed
            self.failure = _no_capture_error(str(error) or type(error).__name__)

    def _write(self) -> None:
        missed = self._window.unfinished() if self._is_over else None
        if self._recorder.is_empty() or missed:
            self.failure = _no_capture_error(missed or self._recorder.why_empty() or "")
            return
        assert self._recorder.suffix is not None
        self.path = written(self._plan, self._recorder.suffix, None, self._recorder.write)


def _no_capture_error(why: str) -> RecordError:
    return RecordError("nothing was recorded", why=why)
