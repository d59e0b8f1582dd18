"""Runs one program: arguments, the loop of steps, and the times it prints."""

from __future__ import annotations

import argparse
import fcntl
import itertools
import json
import os
import statistics
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.programs.registry import FOUND, PROGRAMS, REPAIRED, Program

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PAUSE_S = 0.3
"""Between repeats: what the last one left in queues and caches is gone."""
EXIT_SKIPPED = 5
GPU_LOCK = "PROGRAMS_GPU_LOCK"
"""Names a file in the environment: who locks it has the GPU, until its steps are done."""
GPU_TAKEN = "PROGRAMS_GPU_TAKEN"
"""Names a file in the environment that appears when this run has the GPU: its time counts then."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a program as its arguments say; returns the exit code."""
    args = _parser().parse_args(argv)
    program = PROGRAMS[args.program]
    missing = program.absent()
    if missing is not None:
        print(f"skipped {program.name}: {missing} is not installed")
        return EXIT_SKIPPED
    if args.variant not in program.variants:
        print(f"skipped {program.name}: a healthy program has nothing to repair")
        return EXIT_SKIPPED
    if program.library == "cuda":
        take_gpu()
        _become_native(program, args)
    elif program.processes == 1:
        program.build()  # its imports are over before it has the GPU
        lock = take_gpu()
        run(program, args, until=end_when_recorded(lock))
        free_gpu(lock)  # what a recorder writes now, it writes while the next program runs
    else:
        from benchmarks.programs.distributed import run_ranks

        take_gpu()
        run_ranks(program, args)
    return 0


def take_gpu() -> int | None:
    """Wait until no other program of a collection has the GPU; closing the file frees it."""
    if GPU_LOCK not in os.environ:
        return None
    lock = os.open(os.environ[GPU_LOCK], os.O_WRONLY | os.O_CREAT)
    os.set_inheritable(lock, True)  # a native program takes this process's place
    fcntl.flock(lock, fcntl.LOCK_EX)
    if GPU_TAKEN in os.environ:
        Path(os.environ[GPU_TAKEN]).touch()
    return lock


def free_gpu(lock: int | None) -> None:
    """Leave the GPU to the next program; children that inherited the file have it no more."""
    if lock is not None:
        fcntl.flock(lock, fcntl.LOCK_UN)


def end_when_recorded(lock: int | None) -> threading.Event:
    """Free the GPU once `gpusight record` has the steps of its window; returns when to end.

    The program waits while nsys writes its report, about five seconds with an idle GPU, and steps
    after the window say nothing. Without a collection nothing changes.
    """
    over = threading.Event()
    recording = sys.modules.get("gpusight.recording.inside.recording_window")
    if lock is None or recording is None:
        return over
    from gpusight.recording.inside import cuda_driver

    stop = recording.RecordingWindow.stop

    def free_and_stop(window: Any) -> None:
        if window.state is recording.WindowState.RECORDING and window.recorded_steps:
            cuda_driver.wait_for_gpus()
            over.set()
            free_gpu(lock)
        stop(window)

    recording.RecordingWindow.stop = free_and_stop
    return over


def _become_native(program: Program, args: argparse.Namespace) -> None:
    """Run a program in CUDA C++ in the place of this process."""
    from benchmarks.programs.native import command

    steps = args.steps or program.steps
    words = command(program, args.variant, steps, repeats=args.repeats, times=args.times)
    os.execv(words[0], words)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="benchmarks.programs")
    parser.add_argument("program", choices=sorted(PROGRAMS))
    parser.add_argument("--variant", choices=(FOUND, REPAIRED), default=FOUND)
    parser.add_argument("--steps", type=int, help="timed steps, after the warm-up")
    parser.add_argument("--repeats", type=int, default=1, help="time the steps again, so often")
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--times", type=Path, help="write the time of each step here, as JSON")
    return parser


def run(
    program: Program,
    args: argparse.Namespace,
    *,
    quiet: bool = False,
    until: threading.Event | None = None,
) -> None:
    """Build the step, warm up, time the steps, print their mean; `until` ends them early."""
    until = until or threading.Event()
    if program.library == "torch":
        import torch

        torch.manual_seed(0)
    step = program.build()(args.variant == REPAIRED, args.device)
    number = args.steps or program.steps
    warmup = min(program.warmup, number)
    result: Any = None
    for index in range(warmup):
        if not until.is_set():
            result = step(index)
    synchronize(program.library, args.device, result)
    runs = []
    for repeat in range(args.repeats):
        if repeat:
            time.sleep(PAUSE_S)
        runs.append(_time_steps(program, args, step, warmup + repeat * number, until))
        if not quiet:
            steps = len(runs[-1]["step_ms"])
            print(f"step time: {runs[-1]['mean_ms']:.4f} ms (mean of {steps} steps)", flush=True)
    if args.times and not quiet:
        args.times.write_text(json.dumps(runs))


def _time_steps(
    program: Program,
    args: argparse.Namespace,
    step: Callable[[int], Any],
    first: int,
    until: threading.Event,
) -> dict[str, Any]:
    number = args.steps or program.steps
    marks = _StepMarks(with_events=bool(args.times) and _on_gpu(program, args.device))
    result: Any = None
    for index in range(first, first + number):
        marks.add()
        result = step(index)
        if until.is_set():
            break
    marks.add()
    synchronize(program.library, args.device, result)
    mean_ms = 1e3 * (time.perf_counter() - marks.host_s[0]) / (len(marks.host_s) - 1)
    return {"mean_ms": mean_ms, "step_ms": marks.step_ms()}


def _on_gpu(program: Program, device: str) -> bool:
    return program.library == "torch" and device == "cuda"


class _StepMarks:
    """When each step began: on the GPU where events can be recorded, else on the host.

    The host runs ahead of the GPU, so its times alone say little of single steps. Events are only
    recorded for `--times`: a capture of the program must not have them.
    """

    def __init__(self, *, with_events: bool) -> None:
        self.host_s: list[float] = []
        self._events: list[Any] | None = [] if with_events else None

    def add(self) -> None:
        self.host_s.append(time.perf_counter())
        if self._events is not None:
            import torch

            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)

    def step_ms(self) -> list[float]:
        if self._events is None:
            pairs = itertools.pairwise(self.host_s)
            return [1e3 * (end - start) for start, end in pairs]
        events = self._events
        return [start.elapsed_time(end) for start, end in itertools.pairwise(events)]


def synchronize(library: str, device: str, result: Any) -> None:
    """Wait for the GPU in the way of the library."""
    if library == "jax":
        import jax

        jax.block_until_ready(result)
    elif device == "cpu":
        return
    elif library == "cupy":
        import cupy

        cupy.cuda.Device().synchronize()
    else:
        import torch

        torch.cuda.synchronize()


def median_ms(times: dict[str, Any]) -> float:
    """Return the median of the steps of one run in a file of `--times`."""
    return float(statistics.median(times["step_ms"]))


if __name__ == "__main__":
    sys.exit(main())
