"""What sampling stacks costs, against py-spy and nsys's own sampling.

    python -m benchmarks.stacks [--gpu] [--programs A,B] [--rounds 15] [--slice 0.5] [--py-spy PATH]
        [--nsys PATH]

Without `--gpu`: host-bound programs of this file. With it: six of benchmarks/programs, and nsys
too. Each program is one process, in which slices of the same steps follow each other: without
sampling, with it, in another order each round. A cost is the median over rounds of a slice against
the plain one of its round, for wall time and for CPU time of the process; `plain again` is the
noise. py-spy runs beside it and samples the process from outside. nsys cannot be switched on for a
slice: its runs are those of `benchmarks.record_options`, before against inside the recorded part.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks import record_options
from gpusight.recording.inside.stack_sampler import StackSampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


PLAIN, AGAIN, PY_SPY = "plain", "plain again", "py-spy 200"
OPTIONS = (PLAIN, AGAIN, "100 Hz", "200 Hz", PY_SPY)
NSYS = ("nsys cuda,nvtx", "nsys cuda,nvtx python sampling")


def python_loop() -> Callable[[int], Any]:
    """Arithmetic in Python."""
    return lambda _: sum(k * k % 7 for k in range(20_000))


def small_tensors() -> Callable[[int], Any]:
    """Many small operators of torch, on the CPU."""
    import torch

    torch.set_num_threads(1)
    cell, state = torch.nn.LSTMCell(32, 32), None

    def step(_: int) -> None:
        nonlocal state
        with torch.no_grad():
            for _ in range(20):
                state = cell(torch.ones(4, 32), state)

    return step


def tokenizer() -> Callable[[int], Any]:
    """Words become numbers."""
    text = " ".join(f"word{k % 997}" for k in range(8_000))
    known: dict[str, int] = {}

    def step(_: int) -> list[int]:
        return [known.setdefault(word, len(known)) for word in text.lower().split()]

    return step


def numpy_batches() -> Callable[[int], Any]:
    """NumPy normalizes images."""
    import numpy as np

    images = np.ones((8, 64, 64, 3), dtype=np.float32)
    return lambda _: [((image - image.mean()) / 2).transpose(2, 0, 1).copy() for image in images]


def asyncio_tasks() -> Callable[[int], Any]:
    """Tasks of an event loop take turns."""
    import asyncio

    async def worker() -> None:
        for _ in range(20):
            await asyncio.sleep(0)

    async def run() -> None:
        await asyncio.gather(*(worker() for _ in range(40)))

    loop = asyncio.new_event_loop()
    return lambda _: loop.run_until_complete(run())


def threads() -> Callable[[int], Any]:
    """Two threads of Python share the GIL."""
    from concurrent.futures import ThreadPoolExecutor

    pool, work = ThreadPoolExecutor(2), python_loop()
    return lambda number: list(pool.map(work, (number, number)))


def extension() -> Callable[[int], Any]:
    """A library in C keeps the GIL for long."""
    numbers = [(k * 7919) % 100_003 for k in range(30_000)]
    return lambda _: sorted(numbers)


PROGRAMS: tuple[Callable[[], Callable[[int], Any]], ...] = (
    python_loop,
    small_tensors,
    tokenizer,
    numpy_batches,
    asyncio_tasks,
    threads,
    extension,
)


@contextlib.contextmanager
def sampling(option: str, folder: Path, py_spy: str | None) -> Iterator[None]:
    """Sample this process meanwhile."""
    if option.endswith("Hz"):
        stacks = StackSampler(str(folder / "run"), str(time.monotonic_ns()), float(option[:-3]))
        stacks.start()
        yield
        stacks.stop()
    elif option == PY_SPY:
        assert py_spy is not None
        words = [py_spy, "record", "--rate=200", "--format=raw", "--duration=3600"]
        words += [f"--pid={os.getpid()}", f"--output={folder / 'raw'}"]
        other = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        time.sleep(0.5)  # until it samples
        yield
        other.send_signal(signal.SIGINT)
        other.wait()
    else:
        yield


def run_child(args: argparse.Namespace) -> None:
    """Time one program; prints JSON: of each round and option wall and CPU seconds."""
    step, finish = _built(args)
    for number in range(5):
        step(number)
    finish()
    began_s, steps = time.perf_counter(), 0
    while time.perf_counter() - began_s < args.slice:
        step(steps)
        steps += 1
    options = [option for option in OPTIONS if option != PY_SPY or args.py_spy]
    rounds = []
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.rounds):
            random.shuffle(options)
            times = {}
            for option in options:
                with sampling(option, Path(folder), args.py_spy):
                    wall_s, cpu_s = time.perf_counter(), time.process_time()
                    for number in range(steps):
                        step(number)
                    finish()
                    wall_s, cpu_s = time.perf_counter() - wall_s, time.process_time() - cpu_s
                times[option] = wall_s, cpu_s
            rounds.append(times)
    print("TIMES " + json.dumps({"steps": steps, "rounds": rounds}), flush=True)


def _built(args: argparse.Namespace) -> tuple[Callable[[int], Any], Callable[[], Any]]:
    """Return the step, and what waits for its work."""
    if not args.gpu:
        make = next(program for program in PROGRAMS if program.__name__ == args.child)
        return make(), lambda: None
    import torch

    from benchmarks.programs.registry import PROGRAMS as ON_GPU

    return ON_GPU[args.child].build()(False, "cuda"), torch.cuda.synchronize


def run_program(name: str, args: argparse.Namespace) -> dict[str, Any]:
    """Run a child; returns its times."""
    words = [sys.executable, "-m", "benchmarks.stacks", "--child", name]
    words += [f"--rounds={args.rounds}", f"--slice={args.slice}"]
    words += ["--gpu"] if args.gpu else []
    words += [f"--py-spy={args.py_spy}"] if args.py_spy else []
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    line = next((x for x in done.stdout.splitlines() if x.startswith("TIMES ")), None)
    if line is None:
        raise SystemExit(f"{name}: {done.stderr[-500:]}")
    times: dict[str, Any] = json.loads(line[6:])
    return times


def cost(rounds: list[dict[str, list[float]]], option: str, index: int) -> str:
    """Return the median extra time of an option, with quartiles."""
    shares = [times[option][index] / times[PLAIN][index] - 1 for times in rounds]
    low, middle, high = statistics.quantiles(shares, n=4)
    return f"{middle:+.1%} ({low:+.1%} to {high:+.1%})"


def main() -> None:
    """Run every program and print a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--gpu", action="store_true")
    parser.add_argument("--programs")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--slice", type=float, default=0.5, help="seconds of one measurement")
    parser.add_argument("--py-spy", default=shutil.which("py-spy"))
    parser.add_argument("--nsys", default=shutil.which("nsys"))
    parser.add_argument("--child", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        run_child(args)
        return
    all_names = record_options.HOST_BOUND if args.gpu else [p.__name__ for p in PROGRAMS]
    names = args.programs.split(",") if args.programs else all_names
    options = [o for o in OPTIONS[1:] if o != PY_SPY or args.py_spy]
    columns = [*options, *(NSYS if args.gpu else [f"{o}, CPU time" for o in options])]
    print("| program | ms/step | " + " | ".join(columns) + " |")
    print("|---|" + "---:|" * (len(columns) + 1))
    for name in names:
        times = run_program(name, args)
        rounds = times["rounds"]
        cells = [cost(rounds, option, 0) for option in options]
        cells += _nsys_costs(name, args) if args.gpu else [cost(rounds, o, 1) for o in options]
        plain_ms = 1e3 * statistics.median(t[PLAIN][0] for t in rounds) / times["steps"]
        print(f"| {name} | {plain_ms:.3g} | " + " | ".join(cells) + " |", flush=True)


def _nsys_costs(name: str, args: argparse.Namespace) -> Iterator[str]:
    """Run the program under nsys: the recorded part against what came before."""
    with tempfile.TemporaryDirectory() as folder:
        for option in NSYS:
            times = record_options.run_one(name, option, Path(folder), args.nsys)
            yield times if isinstance(times, str) else f"{times[1] / times[0] - 1:+.0%}"


if __name__ == "__main__":
    main()
