"""Begins recording in this process, and ends it however the process ends.

`os._exit` and SIGKILL leave no time for that: nothing is written then.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import signal
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from gpusight.pace import MODULE
from gpusight.recording.inside import cuda_driver, environment
from gpusight.recording.inside.environment import (
    ProcessRole,
    current_rank,
    log_error,
    log_line,
    own_rank,
    report_window,
    role_of,
    written,
)
from gpusight.recording.inside.import_hooks import hook_ranges, when_imported
from gpusight.recording.inside.module_steps import ModuleSteps
from gpusight.recording.inside.recording_window import (
    RecordingWindow,
    WindowState,
    ask_main_thread,
    recorder_for,
)
from gpusight.recording.inside.stack_sampler import (
    SESSION_VARIABLE,
    StackSampler,
    append_capture,
)
from gpusight.recording.inside.step_hub import HUB, OptimizerSteps

if TYPE_CHECKING:
    from types import FrameType, ModuleType

    from gpusight.recording.inside.environment import RecorderPlan
    from gpusight.recording.inside.recording_window import Recorder


_POLL_S = 0.005
"""Much less than CUDA takes from cuInit to the first kernel."""
_WATCH_S = 0.1
_UNCOUNTABLE_S = 2.0
"""A program that uses the GPU for so long, and has neither a model nor an optimizer, has no steps
that we could count."""
_STALLED_S, _STALLED_STEPS = 30.0, 5
"""A model or an optimizer that is not used for so long, and for so many of its longest steps, is
not what the program does. Calls of a model stop for good once a CUDA graph of it is made, so less
time is enough there."""
_OPTIMIZER_FIRST_S = 20.0
"""A program that made an optimizer and has not used it for so long may only evaluate."""


def start(plan: RecorderPlan) -> None:
    """Record this process as planned, if it is one of those that are wanted."""
    if _CURRENT:  # another sitecustomize may bring the interpreter back to ours
        return
    os.environ.setdefault(environment.STARTED_VARIABLE, str(time.time_ns()))
    role = role_of(list(sys.orig_argv))
    if role is ProcessRole.HELPER:
        return
    if not _is_chosen(plan, own_rank()):
        _report_missing_ranks(plan)
        return
    session = ProcessRecording(plan, role)
    _CURRENT.append(session)
    session.begin()
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forked)


def _is_chosen(plan: RecorderPlan, rank: int | None) -> bool:
    return plan.ranks is None or rank is None or rank in plan.ranks


def _report_missing_ranks(plan: RecorderPlan) -> None:
    """Report on rank 0 that none of the chosen ranks exists."""
    own = current_rank()
    if own is None or own.rank != 0 or own.world is None or plan.ranks is None:
        return
    if min(plan.ranks) >= own.world:
        chosen = ", ".join(map(str, plan.ranks))
        log_line(
            f"nothing is recorded: rank {chosen} was requested, but there are only {own.world} "
            "ranks"
        )


def _sampler(plan: RecorderPlan) -> StackSampler | None:
    """Return what samples the stacks of this process, if it shall be sampled."""
    if plan.stacks_hz is None:
        return None
    session = os.environ.setdefault(SESSION_VARIABLE, f"{os.getpid()}-{time.time_ns():x}")
    return StackSampler(plan.output, session, plan.stacks_hz, plan.stacks_threads, log_line)


def _forked() -> None:
    """Leave the recording to the parent; begin another where none had begun."""
    session = _CURRENT[0]
    try:
        if not session.is_left_to_parent():
            stacks = session.stacks
            _CURRENT[0] = ProcessRecording(session.plan, ProcessRole.CHILD, stacks=stacks)
            _CURRENT[0].begin()
    except Exception as error:  # noqa: BLE001 - the program must not feel that we failed
        log_error("recording a fork", error)


class ProcessRecording:
    """The recording of one process.

    It begins when the process initializes CUDA or makes an optimizer. Launchers, and children that
    only load data, never do. Where there is no GPU, PyTorch's profiler starts when the main
    process imports torch. Not earlier: a profiler that was on before a fork is of no use in the
    child, which may be the one that trains.

    With a window, it begins with the recorded steps instead, and at once where there will be none:
    the process uses the GPU and has not imported torch, or nothing shows up that can be counted.
    """

    def __init__(
        self, plan: RecorderPlan, role: ProcessRole, *, stacks: StackSampler | None = None
    ) -> None:
        self.plan = plan
        self.stacks = stacks or _sampler(plan)
        self._role = role
        self._rank: int | None = None
        self._has_worked = False
        self._steps: OptimizerSteps | None = None
        self._models: ModuleSteps | None = None
        self._optimizer_made_s: float | None = None
        self._finishing = threading.Lock()
        self._is_exiting = self._is_terminated = False
        self._must_die: int | None = None
        self._recorder: Recorder = recorder_for(plan)
        self._window = RecordingWindow(
            plan,
            self._recorder,
            opened=self._opened,
            ended=self._ended,
            allowed=self._is_allowed,
            stacks=self.stacks,
        )
        if hasattr(self._recorder, "interrupted"):
            self._recorder.interrupted = self._window.stop

    def begin(self) -> None:
        """Listen, and record as soon as this process shows what it is."""
        if self.plan.recorder == environment.SURROUNDED:
            atexit.register(self._window.close)
            self._window.start()
            return
        HUB.listen(self._window)
        atexit.register(self._exit)
        when_imported("torch", self._torch_imported)
        if self._window.by_range:
            hook_ranges()
        if self.plan.recorder == environment.CUPTI or self.plan.window:
            threading.Thread(target=self._wait_for_cuda, name="gpusight", daemon=True).start()
        elif self.plan.recorder == environment.PROFILER_API and self._role is ProcessRole.MAIN:
            self._window.ready()

    def finish(self) -> None:
        """End the recording with the process, and report what never came."""
        if not self._finishing.acquire(blocking=False):
            return
        self._is_exiting = True
        missed = self._window.missed()
        self._window.close()
        self._let_go()
        if missed is None or not (self._has_worked or self._window.steps_seen):
            return
        if self.plan.window and os.environ.get(environment.REPORT_VARIABLE):
            self._report()  # `gpusight record` prints it, with the command that helps
        else:
            log_line(f"nothing was recorded in process {os.getpid()}: {missed}")

    def _exit(self) -> None:
        """Finish, and let an interrupted process die as it would have."""
        try:
            self.finish()
        except KeyboardInterrupt:  # once more: nobody waits for us
            log_line(f"interrupted: what process {os.getpid()} recorded is not written")
        _die_of_interrupt()

    def is_left_to_parent(self) -> bool:
        """Let go of everything in a fork; returns whether the parent records, or has recorded."""
        atexit.unregister(self._exit)
        state = self._window.state
        self._window.abandon()
        if state is not WindowState.WAITING:
            self._recorder.forget()
        self._let_go()
        self._give_signals_back()
        return state is not WindowState.WAITING

    def _let_go(self) -> None:
        HUB.forget(self._window)
        if self._steps is not None:
            self._steps.remove()
        if self._models is not None:
            self._models.remove()

    def _report(self) -> None:
        """Report to `gpusight record` what became of the window."""
        if self.plan.recorder == environment.SURROUNDED:
            return
        pace = self._window.pace
        report_window(
            rank=self._rank,
            steps=self._window.steps_seen,
            recorded_steps=self._window.recorded_steps,
            source=HUB.source,
            pace=None if pace is None else pace.to_text(),
            whole_because=self._window.whole_because,
            mostly_missed=self._window.mostly_missed,
        )

    def _torch_imported(self, module: ModuleType) -> None:
        if self._window.state is WindowState.OVER:
            return
        torch: Any = module
        by_torch = self.plan.recorder == environment.TORCH
        from gpusight.recording.inside.torch_recorder import may_use_gpu

        has_gpu = may_use_gpu()
        self._steps = OptimizerSteps(torch, self._optimizer_made, marks=not by_torch)
        self._steps.install()
        if self.plan.window:
            self._models = ModuleSteps(
                torch, wanted=self._counts_models, needs_gpu=has_gpu, marks=not by_torch
            )
            self._models.install()
        if by_torch and self._role is ProcessRole.MAIN and not has_gpu:
            if self.plan.window and not self._has_numbers():
                self._window.start_whole("PyTorch sees no GPU")
            self._window.ready()
            return
        torch.cuda._lazy_call(self._works)  # when CUDA is initialized, before it is used

    def _has_numbers(self) -> bool:
        """Return whether the user chose the window."""
        numbers = (self.plan.warmup, self.plan.timed, self.plan.recorded)
        return any(number is not None for number in numbers)

    def _optimizer_made(self) -> None:
        if self._optimizer_made_s is None:
            self._optimizer_made_s = time.monotonic()
            if self._models is not None:
                self._models.end()
        self._works()

    def _counts_models(self) -> bool:
        """Return whether calls of a model are steps: the optimizer's and `gs.step` are better."""
        if HUB.explicit or self._steps is None or self._steps.steps:
            return False
        made_s = self._optimizer_made_s
        return made_s is None or time.monotonic() - made_s > _OPTIMIZER_FIRST_S

    def _wait_for_cuda(self) -> None:
        """Begin once anything in this process initializes CUDA."""
        while self._window.state is WindowState.WAITING and not self._has_worked:
            if cuda_driver.cuda_is_initialized():
                self._works()
            else:
                time.sleep(_POLL_S)
        if self.plan.window and self.plan.recorder != environment.PACE:
            try:
                self._watch_for_steps()
            except Exception as error:  # noqa: BLE001 - the program must not feel that we failed
                log_error("looking for steps", error)

    def _watch_for_steps(self) -> None:
        """Record everything from here on where no steps come that could be counted."""
        while self._window.state is WindowState.WAITING and not cuda_driver.cuda_in_use():
            if self._is_exiting:
                return
            time.sleep(_POLL_S)
        used_s = seen_s = time.monotonic()
        if "torch" not in sys.modules and not HUB.explicit:
            self._window.start_whole("the program uses the GPU without PyTorch", used_s=used_s)
            return
        steps, longest_s = 0, 0.0
        while self._window.state is WindowState.WAITING and not self._is_exiting:
            now_s = time.monotonic()
            if HUB.next_step != steps:
                longest_s = max(longest_s, now_s - seen_s)
                steps, seen_s = HUB.next_step, now_s
            built_s = None if self._models is None else self._models.built_s
            signs_s = [sign for sign in (built_s, self._optimizer_made_s) if sign is not None]
            patience_s = _UNCOUNTABLE_S
            if signs_s or steps:
                least_s = _UNCOUNTABLE_S if HUB.source == MODULE else _STALLED_S
                patience_s = max(least_s, _STALLED_STEPS * longest_s)
            is_late = now_s - max(used_s, seen_s, *signs_s) > patience_s
            if is_late and not cuda_driver.is_capturing():
                why = f"no steps were found for {patience_s:.0f} s"
                log_line(f"{why}: everything from here on is recorded")
                self._window.start_whole(why, used_s=used_s)
                return
            time.sleep(_WATCH_S)

    def _works(self) -> None:
        """Note that this process does what programs are recorded for."""
        self._has_worked = True
        self._learn_rank()
        self._window.ready()

    def _learn_rank(self) -> None:
        """Keep the rank: at the end the program's process group may be gone."""
        if self._rank is None:
            self._rank = own_rank()

    def _is_allowed(self) -> bool:
        self._learn_rank()
        return _is_chosen(self.plan, self._rank)

    def _opened(self) -> None:
        """Make sure that what is recorded now is also written."""
        if self._recorder.suffix is None:
            return
        multiprocessing = sys.modules.get("multiprocessing")
        if multiprocessing is not None and multiprocessing.parent_process() is not None:
            from multiprocessing.util import Finalize

            Finalize(None, self.finish, exitpriority=100)  # such a child may skip atexit
        ask_main_thread(self._handle_signals)

    def _handle_signals(self) -> None:
        """Write before a signal ends the process, where the program leaves it to do so."""
        for number in _ENDING:
            if signal.getsignal(number) == signal.SIG_DFL:
                signal.signal(number, self._terminated)

    def _give_signals_back(self) -> None:
        """Let them end the process at once again, also one that does not come back to Python."""
        for number in _ENDING:
            if signal.getsignal(number) == self._terminated:
                signal.signal(number, signal.SIG_DFL)

    def _ended(self) -> None:
        self._learn_rank()
        try:
            self._write()
        except Exception as error:  # noqa: BLE001 - the program must not feel that we failed
            log_error("writing the recording", error)
        self._report()
        self._let_go()
        ask_main_thread(self._give_signals_back)
        self._window.is_ending = False
        if self._must_die is not None:
            os.kill(os.getpid(), self._must_die)
        elif self.plan.stop and not self._is_exiting:
            os.kill(os.getpid(), signal.SIGTERM)

    def _write(self) -> None:
        if not _is_chosen(self.plan, self._rank):
            return
        missed = None if self._is_cut_off() else self._window.unfinished()
        if self._recorder.is_empty() or missed:
            why = missed or self._recorder.why_empty()
            is_program = self._has_worked or self._window.steps_seen or self._window.by_range
            if why is not None and is_program:
                log_line(f"nothing was recorded in process {os.getpid()}: {why}")
        elif self._recorder.suffix is not None:
            final = written(self.plan, self._recorder.suffix, self._rank, self._recorder.write)
            if self.stacks is not None and self.stacks.path is not None:
                append_capture(self.stacks.path, final.name)

    def _is_cut_off(self) -> bool:
        """Return whether the process goes on, or was ended early, perhaps within a step."""
        return not self._is_exiting or self._is_terminated or hasattr(sys, "last_type")

    def _terminated(self, number: int, _frame: FrameType | None) -> None:
        """Write, then die of the signal as the program would have."""
        signal.signal(number, signal.SIG_DFL)
        if self._window.is_ending:  # we interrupted ourselves: not before that is done
            self._must_die = number
            return
        self._is_terminated = True
        self.finish()
        os.kill(os.getpid(), number)


_CURRENT: list[ProcessRecording] = []
"""The one of this process."""
_ENDING = (signal.SIGTERM, *([signal.SIGHUP] if hasattr(signal, "SIGHUP") else []))


def _die_of_interrupt() -> None:
    """Have Python end by SIGINT after a Ctrl-C that the program did not catch.

    It means to, but forgets it when any text is executed meanwhile, as modules do that are loaded
    now. Text that is interrupted reminds it.
    """
    if getattr(sys, "last_type", None) is KeyboardInterrupt and not hasattr(sys, "ps1"):
        with contextlib.suppress(KeyboardInterrupt):
            exec("raise KeyboardInterrupt")  # noqa: S102 - nothing else sets it
