"""What each option of a profiler costs on host-bound programs, before and inside the recorded part.

    python -m benchmarks.record_options --out FOLDER [--tools cupti,torch] [--minutes 8.5]
        [--programs A,B] [--options "C;D"]

Each run is a process of its own: it warms up, times steps (before), switches the profiler on, and
times steps again (inside). Without a profiler both are plain, so their difference is the noise.
Several processes start at a time, which imports torch meanwhile; only one of them runs steps. nsys
is ended as soon as the times are there: no report is written. Prints a table, and writes all times
to `record_options.json` after each round, so that a run that is cut short leaves what it had.
`--tools` chooses the options of these tools, and plain runs to compare with; `cupti,torch` is what
docs/profiler-overhead.md lacks: 54 runs a round, about 2.5 minutes on 16 cores.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.programs.registry import PROGRAMS

if TYPE_CHECKING:
    from collections.abc import Callable

HOST_BOUND = (
    "lstm_cells",
    "nan_checks",
    "token_loop",
    "looped_optimizer",
    "expert_loop",
    "cpu_environment",
)
_NSYS = ("--sample=none", "--cpuctxsw=none")
_RANGE = ("--capture-range=cudaProfilerApi", "--capture-range-end=stop")
_OSRT = ("--osrt-threshold=100000", "--osrt-backtrace-threshold=1000000000")
_STACKS = ("--python-backtrace=cuda", "--sample=process-tree", "--cudabacktrace=all:0")
_SAMPLING = ("--python-sampling=true", "--python-sampling-frequency=200")
OPTIONS: dict[str, tuple[str, ...]] = {
    "plain": (),
    "nsys cuda": ("nsys", "--trace=cuda", *_NSYS),
    "nsys cuda,nvtx": ("nsys", "--trace=cuda,nvtx", *_NSYS),
    "nsys cuda,nvtx,osrt": ("nsys", "--trace=cuda,nvtx,osrt", *_OSRT, *_NSYS),
    "nsys cuda,nvtx no events": ("nsys", "--trace=cuda,nvtx", "--cuda-event-trace=false", *_NSYS),
    "nsys cuda,nvtx memory": ("nsys", "--trace=cuda,nvtx", "--cuda-memory-usage=true", *_NSYS),
    "nsys cuda,nvtx graph nodes": ("nsys", "--trace=cuda,nvtx", "--cuda-graph-trace=node", *_NSYS),
    "nsys cuda,nvtx python stacks": ("nsys", "--trace=cuda,nvtx", "--cpuctxsw=none", *_STACKS),
    "nsys cuda,nvtx python sampling": ("nsys", "--trace=cuda,nvtx", *_NSYS, *_SAMPLING),
    "cupti all kinds": ("cupti",),
    "cupti no driver": ("cupti", "DRIVER"),
    "cupti no sync, events": ("cupti", "SYNCHRONIZATION", "CUDA_EVENT"),
    "cupti needed kinds": (
        *("cupti", "DRIVER", "SYNCHRONIZATION", "CUDA_EVENT", "OVERHEAD", "MARKER", "MARKER_DATA"),
        "MEMCPY_PEER",
    ),
    "torch": ("torch",),
    "torch shapes": ("torch", "record_shapes"),
    "torch shapes, memory": ("torch", "record_shapes", "profile_memory"),
    "torch shapes, stack": ("torch", "record_shapes", "with_stack"),
}
"""For nsys its options, for CUPTI the kinds of records left out, for torch its arguments."""
MIN_S, MIN_STEPS = 0.3, 8
"""How long, and how many steps at least, are timed each time."""
RUN_SECONDS = 60
ROUNDS = 3
STARTING = 8
"""Processes at a time."""


def time_steps(step: Callable[[int], Any], first: int) -> tuple[float, int]:
    """Return the mean milliseconds of a step, from an idle GPU to an idle GPU."""
    import torch

    torch.cuda.synchronize()
    began_s, number = time.perf_counter(), 0
    while number < MIN_STEPS or time.perf_counter() - began_s < MIN_S:
        step(first + number)
        number += 1
    torch.cuda.synchronize()
    return 1e3 * (time.perf_counter() - began_s) / number, first + number


def run_child(args: argparse.Namespace) -> None:
    """Time one program with one option, in this process; prints JSON."""
    import torch

    program = PROGRAMS[args.child]
    option = OPTIONS[args.option]
    switch_on = _switch(option)
    torch.manual_seed(0)
    build = program.build()
    with Path(args.lock).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        step = build(False, "cuda")
        for index in range(program.warmup):
            step(index)
        before_ms, index = time_steps(step, program.warmup)
        switch_on()
        step(index)
        inside_ms, _ = time_steps(step, index + 1)
        print("TIMES " + json.dumps([before_ms, inside_ms]), flush=True)


def _switch(option: tuple[str, ...]) -> Callable[[], Any]:
    """Return what switches the profiler on."""
    import torch

    tool, *details = option or ("plain",)
    if tool == "nsys":
        return torch.cuda.profiler.start
    if tool == "torch":
        kinds = torch.profiler.ProfilerActivity
        flags: dict[str, Any] = dict.fromkeys(details, True)

        def start_torch() -> None:
            profiler = torch.profiler.profile(activities=[kinds.CPU, kinds.CUDA], **flags)
            profiler.start()
            _KEPT.append(profiler)

        return start_torch
    if tool == "cupti":
        from gpusight.recording.inside import cupti_library, cupti_recorder
        from gpusight.recording.inside.environment import RecorderPlan

        left_out = {getattr(cupti_library, name) for name in details}
        kinds_left = [k for k in cupti_recorder._OPTIONAL if k not in left_out]
        cupti_recorder._OPTIONAL = tuple(kinds_left)  # type: ignore[assignment]
        return cupti_recorder.CuptiRecorder(RecorderPlan("cupti", "unused")).start
    return lambda: None


_KEPT: list[Any] = []
"""Profilers live as long as the process."""


def run_one(program: str, option: str, scratch: Path, nsys: str | None) -> list[float] | str:
    """Run a child; returns its times before and inside, or why there are none."""
    own = ["-m", "benchmarks.record_options", "--child", program, "--option", option]
    command = [sys.executable, *own, "--lock", str(scratch / "lock")]
    chosen = OPTIONS[option]
    if chosen[:1] == ("nsys",):
        if nsys is None:
            return "no nsys"
        report = scratch / f"{time.monotonic_ns()}"
        command = [nsys, "profile", *chosen[1:], *_RANGE, "-o", str(report), *command]
    log = scratch / f"{time.monotonic_ns()}.log"
    with log.open("w") as file:
        child = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
    ends_s = time.monotonic() + RUN_SECONDS
    try:
        while time.monotonic() < ends_s:
            is_over = child.poll() is not None
            for line in log.read_text(errors="replace").splitlines():
                if line.startswith("TIMES "):
                    times: list[float] = json.loads(line[6:])
                    return times
            if is_over:
                break
            time.sleep(0.05)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    return " ".join(log.read_text(errors="replace").split())[-300:] or "no output"


def main() -> None:
    """Run every option on every program, in rounds, until the time is over; print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path())
    parser.add_argument("--programs", default=",".join(HOST_BOUND))
    parser.add_argument("--options", help="separated by semicolons; else all of the tools")
    parser.add_argument("--tools", default="nsys,cupti,torch", help="whose options are measured")
    parser.add_argument("--minutes", type=float, default=4.0)
    parser.add_argument("--nsys", default=shutil.which("nsys"))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    parser.add_argument("--option", help=argparse.SUPPRESS)
    parser.add_argument("--lock", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        run_child(args)
        return
    ends_s = time.monotonic() + 60 * args.minutes
    names, options = args.programs.split(","), chosen_options(args.options, args.tools)
    times: dict[str, dict[str, list[list[float]]]] = {o: {n: [] for n in names} for o in options}
    args.out.mkdir(parents=True, exist_ok=True)

    with tempfile.TemporaryDirectory() as folder, ThreadPoolExecutor(STARTING) as pool:

        def run(job: tuple[str, str]) -> None:
            option, name = job
            if time.monotonic() > ends_s:
                return
            answer = run_one(name, option, Path(folder), args.nsys)
            if isinstance(answer, str):
                print(f"{option}, {name}: {answer}", flush=True)
            else:
                times[option][name].append(answer)

        for _ in range(ROUNDS):
            # One program after the other, so that what is compared ran at about the same time.
            list(pool.map(run, [(option, name) for name in names for option in options]))
            (args.out / "record_options.json").write_text(json.dumps(times, indent=1))
    print_table(times, names)


def chosen_options(options: str | None, tools: str) -> list[str]:
    """Return the names of options: those that were asked for, else all of the tools."""
    if options is not None:
        return options.split(";")
    wanted = ("", *tools.split(","))
    return [name for name, words in OPTIONS.items() if (words or ("",))[0] in wanted]


def print_table(times: dict[str, dict[str, list[list[float]]]], names: list[str]) -> None:
    """Print medians in ms: before / inside, one row per option."""
    print("| ms/step, before / inside | " + " | ".join(names) + " |")
    print("|---|" + "---:|" * len(names))
    for option, row in times.items():
        cells = []
        for name in names:
            runs = row[name]
            if not runs:
                cells.append("-")
                continue
            medians = [statistics.median(values) for values in zip(*runs, strict=True)]
            cells.append(" / ".join(f"{ms:.4g}" for ms in medians))
        print(f"| {option} ({max(map(len, row.values()))} runs) | " + " | ".join(cells) + " |")


if __name__ == "__main__":
    main()
