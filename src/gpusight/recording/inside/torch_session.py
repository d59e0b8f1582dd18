"""One profiled run.

Counts its steps, records those of the schedule; `gs.torch_profile` for loops by hand.
"""

from __future__ import annotations

import atexit
import enum
import functools
import os
import shlex
import sys
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.errors import UsageError
from gpusight.recording.inside import step_recorders
from gpusight.recording.inside.environment import current_rank, log_line, surrounding_tool
from gpusight.recording.inside.step_hub import HUB
from gpusight.recording.inside.step_recorders import (
    NoStepRecorder,
    RunFolder,
    ToolStepRecorder,
    TorchStepRecorder,
    warn,
)
from gpusight.recording.inside.torch_settings import OUTPUT_DIR, StepPhase, TorchSettings
from gpusight.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from typing_extensions import Self, Unpack

    from gpusight.recording.inside.step_recorders import StepRecorder
    from gpusight.recording.inside.torch_settings import TorchOptions


RankAndWorld = tuple[int, "int | None"]
"""A rank, and of how many; None: not known."""


class _State(enum.Enum):
    OFF = "off"
    READY = "ready"
    ON = "on"
    FAILED = "failed"
    """Until the cycle ends."""


class TorchSession:
    """Follows the steps of one run. `begin_step` and `end_step` say where they are.

    A step that is begun and never ended is not counted. `place` is what the framework knows of
    ranks, `first_step` the number of the first step, `total_steps` how many there will be.
    """

    def __init__(
        self,
        settings: TorchSettings,
        *,
        place: RankAndWorld | None = None,
        first_step: int = 0,
        total_steps: int | None = None,
    ) -> None:
        self._settings, self._schedule = settings, settings.schedule
        self.rank, world = place or _rank_and_world()
        self._is_chosen = settings.chosen.include(self.rank)
        self._recorder = self._choose_recorder()
        self._first, self.done = first_step, 0
        self._state = _State.OFF
        self._counted_step: int | None = None
        self._in_step = self._is_marked = False
        self.paths: list[Path] = []
        self._bytes = 0
        self._remarks: list[str] = []
        self._shortfall: str | None = None
        self._pid = os.getpid()
        self._caution(world, total_steps)
        _OPEN.add(self)

    def _choose_recorder(self) -> StepRecorder:
        settings, tool = self._settings, surrounding_tool()
        if not self._is_chosen:
            return NoStepRecorder()
        if settings.mode == "nvtx" or (settings.mode == "auto" and tool is not None):
            if tool is None:
                self._print(
                    f"no profiler is attached, so steps are not recorded; run\n{self._commands()}"
                )
            else:
                self._print(
                    f"steps are annotated for {tool}, which records; nothing is written here"
                )
            return ToolStepRecorder(tool)
        if tool is not None:
            warn(f"mode='torch' inside {tool}: two profilers interfere; use mode='auto'")
        return TorchStepRecorder(settings, RunFolder(Path(settings.output_dir), self.rank))

    def _caution(self, world: int | None, total_steps: int | None) -> None:
        """Warn beforehand of requests that cannot be met."""
        chosen = self._settings.chosen.chosen or ()
        missing = [rank for rank in chosen if world and rank >= world]
        none_exists = len(missing) == len(chosen)
        if missing and (self._is_chosen or (none_exists and self.rank == 0)):
            effect = ": nothing is recorded" if none_exists else ""
            warn(f"ranks {sorted(missing)} do not exist, there are {world}{effect}")
        if not self._is_chosen:
            return
        if self._schedule.starts_cold and isinstance(self._recorder, TorchStepRecorder):
            self._print(
                "with warmup=0 the first recorded step includes the start-up cost of the profiler"
            )
        self._shortfall = self._schedule.shortfall(total_steps)
        if self._shortfall:
            warn(self._shortfall)

    def _commands(self) -> str:
        """Write the commands that record the active steps of this very program."""
        program, schedule = shlex.join(sys.orig_argv), self._schedule
        first, active = schedule.before, schedule.active
        steps = f"{first}:" if active is None else f"{first}-{first + active - 1}"
        end = "stop" if schedule.cycles == 1 else f"repeat:{schedule.cycles}"
        return (
            f"  gpusight record --steps {steps} -- {program}\n"
            f"or\n  nsys profile --trace=cuda,nvtx --capture-range=cudaProfilerApi "
            f"--capture-range-end={end} -o train {program}"
        )

    # Steps ------------------------------------------------------------------------------------

    def begin_step(self, *, marked: bool = True) -> None:
        """Begin the next step, if it has not begun.

        `marked` False: it may turn out to be none, so it gets no name and no listener hears of it.
        """
        if self._in_step:
            return
        phase = self._schedule.phase(self.done)
        if phase is StepPhase.WARMUP and self._state is _State.OFF:
            with self._guarded(_State.READY):
                self._recorder.prepare()
        if phase is StepPhase.ACTIVE and self._state in {_State.OFF, _State.READY}:
            with self._guarded(_State.ON):
                self._recorder.start()
        self._in_step, self._is_marked = True, marked
        if marked:
            self._counted_step = HUB.begin_step()
            self._recorder.begin_step(self._first + self.done)

    def end_step(self) -> None:
        """End the step: it is complete."""
        if not self._in_step:
            return
        self._recorder.end_step()
        self._leave_step()
        if not self._is_marked:
            HUB.pass_step()
        self.done += 1
        if self._schedule.ends_cycle(self.done - 1):
            self._end_cycle()

    def _leave_step(self) -> None:
        HUB.end_step(self._counted_step)
        self._counted_step, self._in_step = None, False

    def _end_cycle(self) -> None:
        if self._state is _State.ON:
            with self._guarded(_State.OFF):
                self._keep(self._recorder.finish(f"iteration_{self._first + self.done}"))
        self._state = _State.OFF

    def _keep(self, paths: list[Path]) -> None:
        """Note what was written now; at the end somebody may have moved it elsewhere."""
        self.paths += paths
        self._bytes += sum(path.stat().st_size for path in paths)

    @contextmanager
    def _guarded(self, then: _State) -> Iterator[None]:
        """Come to a state, or warn why this cycle is not recorded; the program goes on."""
        try:
            yield
            self._state = then
        except Exception as error:  # noqa: BLE001 - no recording is worth the end of a training
            self._state = _State.FAILED
            warn(f"steps from {self._first + self.done} on are not recorded: {error}")

    # The end ----------------------------------------------------------------------------------

    def close(self, *, failed: bool = False) -> None:
        """Write what there is, and report what came of it; `failed`: the program raised."""
        if self not in _OPEN:
            return
        _OPEN.discard(self)
        if self._in_step:
            self._recorder.drop_step()
            self._leave_step()
        schedule = self._schedule
        kept = schedule.recorded_of_cycle(self.done)
        if self._state is _State.ON and (failed or schedule.records_all or kept):
            if schedule.active is not None:
                self._remarks.append(f"the last cycle holds {kept} of {schedule.active} steps")
            self._end_cycle()
        elif self._state in {_State.ON, _State.READY}:
            with self._guarded(_State.OFF):
                self._recorder.cancel()
        if self._is_chosen:
            if self._settings.memory_timeline:
                self._draw()
            self._report(failed=failed)

    def _draw(self) -> None:
        """Draw memory over time for each trace."""
        for trace in self._traces():
            name = trace.name.replace(step_recorders.TRACE, step_recorders.SNAPSHOT)
            snapshot = trace.with_name(name)
            source = snapshot if snapshot in self.paths else trace
            assert isinstance(self._recorder, TorchStepRecorder), (
                "only torch.profiler writes traces"
            )
            draw = functools.partial(step_recorders.draw_memory, source)
            publish = self._recorder.folder.publish
            with step_recorders.optional(step_recorders.TIMELINE):
                self._keep([publish(trace.parent.name, step_recorders.TIMELINE, draw)])

    def _traces(self) -> list[Path]:
        return [path for path in self.paths if path.name.endswith(step_recorders.TRACE)]

    def _report(self, *, failed: bool) -> None:
        shortfall = self._schedule.shortfall(self.done)
        if shortfall and shortfall != self._shortfall and not failed:
            warn(shortfall)
        traces = self._traces()
        if not traces:
            return
        size = format_bytes(self._bytes)
        remarks = "".join(f" ({remark})" for remark in self._remarks)
        folder = _relative_path(traces[-1].parent.parent)
        self._print(f"wrote {len(self.paths)} files, {size}, to {folder}{remarks}")
        if self._prints and self._settings.diagnose and not failed:
            with step_recorders.optional("the diagnosis"):
                step_recorders.print_diagnosis(traces[-1])
        else:
            self._print(f"next: gpusight diagnose {shlex.quote(_relative_path(traces[-1]))}")

    @property
    def _prints(self) -> bool:
        """Return whether this is the rank that prints for all."""
        return self.rank == min(self._settings.chosen.chosen or {0})

    def _print(self, text: str) -> None:
        if self._prints:
            log_line(text)


_OPEN: set[TorchSession] = set()
"""Sessions that nobody has closed: Hugging Face's Trainer calls nothing when a training fails."""


@atexit.register
def _close_open() -> None:
    for session in list(_OPEN):
        if session._pid == os.getpid():  # a fork's copy is not the child's to write
            session.close(failed=True)


def _rank_and_world() -> RankAndWorld:
    """Query torch.distributed, then the launchers' variables."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    launched = current_rank()
    return (0, 1) if launched is None else (launched.rank, launched.world)


def _relative_path(path: Path) -> str:
    """Write a path relative to the current folder, if it lies below."""
    try:
        return str(path.relative_to(Path.cwd()))
    except (OSError, ValueError):  # the folder that the program worked in is gone; not below it
        return str(path)


class TorchProfile:
    """A context manager round a loop; call `step` at the end of each of its steps."""

    def __init__(self, settings: TorchSettings) -> None:
        self._settings = settings
        self._session: TorchSession | None = None
        self.paths: tuple[Path, ...] = ()
        """The files that were written; complete after the block."""

    def __enter__(self) -> Self:
        """Begin; the first step starts here."""
        if self._session is not None:
            raise UsageError("this profile has already started", hint="create another one")
        self._session = TorchSession(self._settings)
        # A block in which `step` is never called must not look like one long step.
        self._session.begin_step(marked=not self._settings.schedule.records_all)
        return self

    def step(self) -> None:
        """End a step and begin the next one."""
        if self._session is None:
            raise UsageError(
                "step() must be called inside the block", hint="with gs.torch_profile() as p:"
            )
        self._session.end_step()
        self._session.begin_step()
        self.paths = tuple(self._session.paths)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Write what was recorded, also when the block raised."""
        session, self._session = self._session, None
        if session is not None:
            session.close(failed=kind is not None)
            self.paths = tuple(session.paths)


def torch_profile(
    output_dir: str | os.PathLike[str] = OUTPUT_DIR,
    *,
    wait: int = 0,
    warmup: int = 0,
    active: int | None = None,
    cycles: int = 1,
    **options: Unpack[TorchOptions],
) -> TorchProfile:
    """Record steps of a loop with torch.profiler; without a schedule all of the block.

    Each of `cycles` waits for `wait` steps, runs the profiler for `warmup` without keeping
    anything, and records `active`. Then `output_dir/iteration_<steps done>/` has, for each rank:
    `rank0_trace.json.gz`, which every gpusight command reads; `rank0_key_averages.txt`
    (`key_averages=True`, `rows=25`); and what else is requested: `memory_snapshot`, `stacks`,
    `memory_timeline`. A folder with an earlier run is not changed: the next free
    `output_dir-2` is used.

    `cpu`, `cuda`, `record_shapes` (on), `profile_memory`, `with_stack` and `with_flops` (off) are
    torch.profiler's. `ranks=0` or `[0, 4]`: only these record. `diagnose=True` prints the
    bottlenecks. `mode="nvtx"` records nothing itself: it marks steps as NVTX ranges `step N`
    and calls cudaProfilerStart and Stop round the active ones, for nsys and ncu; `"auto"`, the
    default, does so inside such a tool and else uses torch.profiler.
    """
    return TorchProfile(
        TorchSettings(output_dir, wait=wait, warmup=warmup, active=active, cycles=cycles, **options)
    )
