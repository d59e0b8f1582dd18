"""Times and captures the programs, on a machine with a GPU, within one lease of it.

    python -m benchmarks.programs.collect --list [--group first | --only A,B] [--unmeasured]
    python -m benchmarks.programs.collect --out FOLDER [--group first | --only A,B] [--minutes 8]
    python -m benchmarks.programs.collect --out FOLDER --missing --minutes 8.5

Every program is timed without a profiler, in a process that warms up and times its steps three
times, and captured by `gpusight record` with each tool. Several processes import their libraries or
write their reports at the same time; one at a time has the GPU. What was not reached within the
minutes is printed, ready for `--only`. `--list` prints what would be run and about how long it
takes. The folder then holds `results.json` and a few tar files. Run it in an empty environment and
a process namespace of its own
(`env -i PATH="$PATH" HOME=/demo unshare --pid --fork --mount-proc`): nsys stores what it sees of
both.

A run has the GPU until its steps are done, or until `gpusight record` has those of its window:
what the tool writes then, it writes while the next program runs. A run may take so much time as
its steps need, counted from when it has the GPU.

`--missing` runs what has no row in `accuracy_h200.json`, and rows of an older scoring again: all of
a program together, and first the programs that tell most per second: those that were wrong, far off
or not recorded, held-out ones before others. Programs that profilers slow down are timed again too,
because such times differ from day to day. Scoring what came back adds its rows to these files, so
that the same command goes on where the last one ended:

    mkdir -p collected && cp FOLDER/* collected && cd collected
    for tar in *.tar; do tar -xf "$tar"; done; unxz -f *.xz; cd ..
    python -m benchmarks.programs.accuracy times collected/results.json
    python -m benchmarks.programs.score collected --json benchmarks/programs/accuracy_h200.json
    python -m benchmarks.programs.accuracy table && python -m tools.generate_docs

The rows are the digests that are committed; delete the captures before the next call.
"""

from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import json
import lzma
import math
import os
import platform
import re
import signal
import statistics
import subprocess
import sys
import tarfile
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TypeAlias

from benchmarks.programs import native
from benchmarks.programs.registry import FOUND, GROUPS, PROGRAMS, REPAIRED, Program
from benchmarks.programs.running import GPU_LOCK, GPU_TAKEN, median_ms

if TYPE_CHECKING:
    from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

REPEATS = 3
"""Timings of a program without a profiler, in one process."""
MEASURED = Path(__file__).with_name("step_times_h200.json")
ROWS = Path(__file__).with_name("accuracy_h200.json")
"""A row for each capture of earlier collections, as `score` writes them."""
START_SECONDS = {"torch": 2.5, "jax": 6.0, "cupy": 4.0, "cuda": 1.0}
"""About how long a run has the GPU until its first step: context, model, libraries, compilation.

Imports come before, and reports after: meanwhile, another run has the GPU.
"""
TOOL_SECONDS = {"plain": 0.0, "nsys": 1.0, "cupti": 0.7, "torch": 1.0}
"""About how long a tool keeps the GPU waiting until it records, and when it ends."""
PROFILED = 1.5
"""A profiler makes programs slower, about so many times."""
RUN_SECONDS, RUN_SLACK = 40.0, 4.0
"""A run that has the GPU for longer than this, and so many times what is planned, is given up."""
REPORT_SECONDS = 40.0
"""How long a tool may write after that."""
PLAIN_STEPS = 10
"""Timed in each repeat without a profiler."""
WHOLE_STEPS, WHOLE_SECONDS = 34, 8.0
"""Of programs that are recorded as a whole."""
SLOW_S, SLOWEST_S = 0.25, 1.0
"""Steps that take so long: `record` is told to make do with a few."""
WINDOWS = {SLOWEST_S: (2, 3, 3), SLOW_S: (3, 5, 5)}
"""Steps to warm up, to time and to record then."""
PACKING_SECONDS = 20
MIB = 2**20
TAR_BYTES, ALL_BYTES, MAX_TARS = 15 * MIB, 62 * MIB, 7
"""What comes back from a leased machine."""
_SUFFIX = {"nsys": ".nsys-rep", "cupti": ".sqlite", "torch": ".json.gz"}
_STEP_TIME = re.compile(r"^step time: ([\d.]+) ms", re.MULTILINE)


@dataclass
class Collection:
    """What was measured so far, and where it goes."""

    out: Path
    scratch: Path
    ends_s: float
    device: str = "cuda"
    steps: int | None = None
    whole: bool = False
    """Record whole runs instead of the window that `gpusight record` chooses."""
    rows: dict[str, Any] = field(default_factory=dict)
    unfinished: list[str] = field(default_factory=list)

    def row(self, program: Program, variant: str) -> dict[str, Any]:
        facts: dict[str, Any] = {
            "defect": program.defect,
            "expected": list(program.expected),
            "held_out": program.held_out,
            "variants": {},
        }
        variants = self.rows.setdefault(program.name, facts)["variants"]
        row: dict[str, Any] = variants.setdefault(
            variant, {"plain": [], "recorded": {}, "problems": []}
        )
        return row

    def steps_of(self, program: Program, variant: str) -> int:
        """Return how many steps a program is run for."""
        if self.steps or self.whole:
            return self.steps or program.steps
        return window_steps(program, variant)

    def arguments(self, program: Program, variant: str, steps: int | None = None) -> list[str]:
        chosen = [program.name, "--variant", variant, "--device", self.device]
        return [*chosen, "--steps", str(steps or self.steps_of(program, variant))]

    @property
    def last_turn_s(self) -> float:
        """Whoever has not had the GPU by then does not get it: captures must be packed too."""
        return self.ends_s - PACKING_SECONDS

    @property
    def lock(self) -> Path:
        return self.scratch / "gpu.lock"

    def environment(self, taken: Path) -> dict[str, str]:
        """Programs take the lock when their libraries are imported, and keep it for their steps.

        JAX shall not take most of the memory, which the last program may not have freed yet.
        """
        locks = {GPU_LOCK: str(self.lock), GPU_TAKEN: str(taken)}
        return os.environ | locks | {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

    def command(self, program: Program, variant: str) -> list[str]:
        """Return the words that a profiler runs."""
        if program.library == "cuda":
            return native.command(program, variant, self.steps_of(program, variant))
        return ["python3", "-m", "benchmarks.programs", *self.arguments(program, variant)]

    def save(self, machine: dict[str, str]) -> None:
        content = {"machine": machine, "programs": self.rows, "unfinished": self.unfinished}
        (self.out / "results.json").write_text(json.dumps(content, indent=1))


def time_plain(collection: Collection, program: Program, variant: str) -> bool:
    """Time the program without a profiler; returns whether its turn came."""
    stem = collection.scratch / f"{program.name}.{variant}.plain"
    times, log = stem.with_name(f"{stem.name}.json"), stem.with_name(f"{stem.name}.log")
    steps = min(PLAIN_STEPS, collection.steps_of(program, variant))
    command = [sys.executable, "-m", "benchmarks.programs"]
    command += collection.arguments(program, variant, steps)
    command += ["--times", str(times), "--repeats", str(REPEATS)]
    turn = _Turn(stem.with_name(f"{stem.name}.taken"), planned_seconds(program, variant, "plain"))
    with log.open("w") as file:
        code = turn.run(collection, command, file)
    if code is None:
        return False
    row = collection.row(program, variant)
    if times.exists():
        runs = json.loads(times.read_text())
        row["plain"] += [{**run, "median_ms": median_ms(run)} for run in runs]
    if code:
        row["problems"].append(f"plain run: exit {code}: {_last_line(log)}")
    means = [f"{run['mean_ms']:.3f}" for run in row["plain"]]
    print(f"plain {program.name} {variant}: {', '.join(means) or 'none'} ms", flush=True)
    return True


@dataclass(frozen=True)
class _Turn:
    """One run's time with the GPU: what it waits for that does not count."""

    taken: Path
    """Appears when the run has the GPU."""
    planned_s: float

    @property
    def limit_s(self) -> float:
        return max(RUN_SECONDS, RUN_SLACK * self.planned_s)

    def run(self, collection: Collection, command: list[str], log: IO[str]) -> int | None:
        """Run a command in a group of its own; 124 if it was given up, None if before its turn.

        What it left running is ended too: workers would disturb the next.
        """
        child = subprocess.Popen(
            command,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=collection.environment(self.taken),
        )
        while True:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code: int | None = child.wait(0.2)
                break
            if (ended := self._given_up(collection)) is not None:
                code = ended or None
                break
        _end_group(child.pid)
        child.wait()
        return code

    def _given_up(self, collection: Collection) -> int | None:
        """Return 124 where the run took too long, 0 where its turn comes too late, else None."""
        if not self.taken.exists():
            return 0 if time.monotonic() > collection.last_turn_s else None
        has_had_s = time.time() - self.taken.stat().st_mtime
        is_over = time.monotonic() > collection.ends_s
        return 124 if is_over or has_had_s > self.limit_s + REPORT_SECONDS else None


def _end_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][-300:] if lines else ""


def record(collection: Collection, program: Program, variant: str, tool: str) -> bool:
    """Capture the program with `gpusight record` and note what was recorded.

    Returns whether its turn came.
    """
    stem = collection.scratch / f"{program.name}.{variant}.{tool}"
    log = stem.with_name(stem.name + ".log")
    words = [sys.executable, "-m", "gpusight", "record", "--with", tool, "-o", str(stem)]
    words += ["--whole"] * collection.whole or window_numbers(program, variant)
    ran = collection.command(program, variant)
    began_s = time.monotonic()
    taken = stem.with_name(f"{stem.name}.taken")
    turn = _Turn(taken, planned_seconds(program, variant, tool))
    with contextlib.ExitStack() as held, log.open("w") as file:
        if program.library == "cuda":  # takes no lock by itself
            lock = held.enter_context(collection.lock.open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
            taken.touch()
        code = turn.run(collection, [*words, "--", *ran], file)
    if code is None:
        return False
    printed = _STEP_TIME.search(log.read_text(errors="replace"))
    family = sorted(stem.parent.glob(f"{stem.name}*{_SUFFIX[tool]}"))
    row = collection.row(program, variant)
    row["recorded"][tool] = {
        "mean_ms": float(printed[1]) if printed else None,
        "wall_s": round(time.monotonic() - began_s, 2),
        "files": [path.name for path in family],
    }
    if code or not family:
        row["problems"].append(f"{tool}: exit {code}: {_last_line(log)}")
    print(f"{tool} {program.name} {variant}: {_last_line(log)}", flush=True)
    return True


def run_task(collection: Collection, program: Program, variant: str, doing: str) -> None:
    """Do one run, unless the time is over."""
    done = False
    if time.monotonic() <= collection.last_turn_s:
        if doing == "plain":
            done = time_plain(collection, program, variant)
        else:
            done = record(collection, program, variant, doing)
    if not done:
        collection.unfinished.append(_task_name((program, variant, doing)))


def can_record(program: Program, tool: str) -> bool:
    """gpusight loads its CUPTI recorder and torch.profiler from Python, one process at a time."""
    if tool == "torch":
        return program.library == "torch" and program.processes == 1
    return tool != "cupti" or program.library != "cuda"


def pack(collection: Collection) -> list[str]:
    """Write the captures into tar files that may come back; returns what did not fit."""
    packed = (_SUFFIX["nsys"], _SUFFIX["cupti"])
    reports = [path for path in collection.scratch.iterdir() if path.name.endswith(packed)]
    with ThreadPoolExecutor() as pool:
        list(pool.map(_compress, reports))
    endings = (f"{_SUFFIX['nsys']}.xz", _SUFFIX["torch"], f"{_SUFFIX['cupti']}.xz", ".log")
    files = [
        path
        for ending in endings
        for path in sorted(collection.scratch.iterdir())
        if path.name.endswith(ending)
    ]
    left_out, tars = _into_tars(files)
    for number, members in enumerate(tars):
        with tarfile.open(collection.out / f"captures{number}.tar", "w") as tar:
            for path in members:
                tar.add(path, path.name)
    return left_out


def _compress(report: Path) -> None:
    report.with_name(report.name + ".xz").write_bytes(lzma.compress(report.read_bytes(), preset=4))


def _into_tars(files: list[Path]) -> tuple[list[str], list[list[Path]]]:
    """Put each file into the first tar that has room for it."""
    tars: list[list[Path]] = [[] for _ in range(MAX_TARS)]
    free = [TAR_BYTES] * MAX_TARS
    total, left_out = 0, []
    for path in files:
        size = path.stat().st_size + 2048  # a header, and blocks of 512 bytes
        number = next((n for n, room in enumerate(free) if size <= room), None)
        if number is None or total + size > ALL_BYTES:
            left_out.append(path.name)
            continue
        tars[number].append(path)
        free[number] -= size
        total += size
    return left_out, [members for members in tars if members]


def _machine() -> dict[str, str]:
    """Name what the times depend on."""
    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    try:
        gpu = subprocess.run(query, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError) as error:
        gpu = f"unknown: {error}"
    import torch

    versions = {"python": platform.python_version(), "torch": torch.__version__}
    today = time.strftime("%Y-%m-%d")
    return {"gpu": gpu, "cores": str(os.cpu_count()), **versions, "date": today}


def _chosen(args: argparse.Namespace) -> Iterator[tuple[Program, str]]:
    group = GROUPS[args.group] if args.group else tuple(PROGRAMS)
    names = args.only.split(",") if args.only else group
    known = measured_ms() if args.unmeasured else {}
    for word in names:
        name, _, variant = word.partition(":")
        variant = variant or args.variant or ""
        program = PROGRAMS[name]
        missing = program.absent()
        if missing is not None and not args.list:
            print(f"skipped {name}: {missing} is not installed", flush=True)
            continue
        for each in program.variants:
            if variant in ("", each) and (name, each) not in known:
                yield program, each


def measured_ms(file: Path = MEASURED) -> dict[tuple[str, str], float]:
    """Return the step times without a profiler that were measured before."""
    programs = json.loads(file.read_text(encoding="utf-8"))["programs"]
    return {
        (name, variant): statistics.median(row["plain_ms"])
        for name, variants in programs.items()
        for variant, row in variants.items()
        if "plain_ms" in row
    }


def undated(file: Path = MEASURED) -> set[tuple[str, str]]:
    """Return whose times are of collections before dates were kept."""
    programs = json.loads(file.read_text(encoding="utf-8"))["programs"]
    return {
        (name, variant)
        for name, variants in programs.items()
        for variant, row in variants.items()
        if "date" not in row
    }


@functools.cache
def earlier_rows() -> tuple[dict[str, Any], ...]:
    """Return the rows of earlier collections."""
    return tuple(json.loads(ROWS.read_text(encoding="utf-8"))["rows"])


def known_step_s(program: Program, variant: str) -> float:
    """Return the step time without a profiler, as far as it is known."""
    known = measured_ms()
    found_ms = known.get((program.name, FOUND), program.step_ms)
    return known.get((program.name, variant), found_ms) / 1e3


def has_window(program: Program) -> bool:
    """Return whether `gpusight record` can count the steps of a program, as far as is known.

    Not of other libraries, and not where an earlier capture was of the whole run.
    """
    rows = [row for row in earlier_rows() if row["program"] == program.name]
    counted = [row["pace_ms"] for row in rows if "error" not in row]
    return program.library == "torch" and (not counted or any(counted))


def window_numbers(program: Program, variant: str) -> list[str]:
    """Return options for steps so long that the usual number of them would take minutes."""
    step_s = known_step_s(program, variant)
    chosen = next((numbers for limit_s, numbers in WINDOWS.items() if step_s >= limit_s), None)
    if chosen is None or not has_window(program):
        return []
    options = zip(("--warmup", "--timed", "--recorded"), chosen, strict=True)
    return [word for option, number in options for word in (option, str(number))]


def window_steps(program: Program, variant: str = FOUND) -> int:
    """Return enough steps for the window of `gpusight record`; the program ends with it.

    Where there is no window, what does not take too long.
    """
    step_s = known_step_s(program, variant)
    if not has_window(program):
        return max(program.steps, min(WHOLE_STEPS, int(WHOLE_SECONDS / step_s)))
    calls = (program.calls if variant == FOUND else program.repaired_calls) or 1
    if numbers := window_numbers(program, variant):
        return sum(map(int, numbers[1::2])) + 3
    timed = max(10, math.ceil(WINDOW_MIN_S * calls / step_s))
    return max(program.steps, math.ceil((_WARM_STEPS + _TIMINGS * timed) / calls) + 2)


WINDOW_MIN_S = 0.2
"""Timed and recorded steps take at least that long."""
_WARM_STEPS, _TIMINGS = 10, 6
"""At most: steps are timed up to four times if they become faster, and as many are recorded; what a
profiler makes slower counts twice."""


def planned_seconds(program: Program, variant: str, doing: str) -> float:
    """Estimate how long a run has the GPU, plain or under a profiler.

    Of a window usually half is enough: steps become faster once, if at all.
    """
    step_s = known_step_s(program, variant)
    start_s = START_SECONDS[program.library] * program.processes
    steps = window_steps(program, variant)
    if doing == "plain":
        steps_s = (program.warmup + REPEATS * min(PLAIN_STEPS, steps)) * step_s
        return start_s + steps_s
    if not has_window(program):
        return start_s + TOOL_SECONDS[doing] + PROFILED * (program.warmup + steps) * step_s
    return start_s + TOOL_SECONDS[doing] + PROFILED * max(program.warmup, steps / 2) * step_s


Task: TypeAlias = "tuple[Program, str, str]"
"""A program, its variant, and `plain` or the tool that records it."""


def missing_tasks(
    tasks: Iterable[Task],
    rows: Iterable[Mapping[str, Any]],
    plain_ms: Mapping[tuple[str, str], float],
    retimed: Container[tuple[str, str]] = (),
) -> list[Task]:
    """Choose what no earlier collection has, in the order in which it tells most per second.

    All of a program together, so that its captures and times are of one machine on one day: what
    was never recorded, could not be recorded or diagnosed, or was scored before `alone` was kept;
    then captures of the repaired program. `retimed` are programs without times of the last days.
    """
    rows = list(rows)
    known = {(row["program"], row["variant"], row["tool"]): row for row in rows}
    first: dict[str, list[Task]] = defaultdict(list)
    later: dict[str, list[Task]] = defaultdict(list)
    for task in tasks:
        program, variant, doing = task
        row = known.get((program.name, variant, doing))
        if doing == "plain":
            key = (program.name, variant)
            is_noisy = key in retimed and is_slowed_down(program.name, rows)
            is_wanted = key not in plain_ms or is_noisy
        else:
            is_wanted = row is None or "alone" not in row
        if is_wanted:
            is_later = variant == REPAIRED and doing != "plain"
            (later if is_later else first)[program.name].append(task)

    def per_second(of_program: Sequence[Task]) -> float:
        program = of_program[0][0]
        doubts = [
            doubt(known.get((program.name, variant, doing)))
            for _, variant, doing in of_program
            if doing != "plain"
        ]
        worth = sum(doubts) + (0.5 + 0.5 * program.held_out) * len(of_program)
        return worth / sum(planned_seconds(*task) for task in of_program)

    return [
        task
        for part in (first, later)
        for of_program in sorted(part.values(), key=per_second, reverse=True)
        for task in of_program
    ]


def doubt(row: Mapping[str, Any] | None) -> float:
    """Return how much there is to learn of a capture that was scored before."""
    if row is None or "error" in row:
        return 2.0
    pairs = (("step_ms", "plain_ms"), ("predicted_ms", "repaired_ms"))
    known = [(row[a], row[b]) for a, b in pairs if row.get(a) and row.get(b)]
    wrong = 1.0 if row.get("right") is False else 0.0
    return wrong + sum(min(1.0, abs(shown / true - 1)) for shown, true in known)


def is_slowed_down(name: str, rows: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a profiler slows a program down, as the host sets its pace.

    Only the times of such programs differ between days; of those without a row it is not known.
    """
    of_program = [r for r in rows if r["program"] == name and r.get("recorded_ms")]
    plain = [(r["recorded_ms"], r[key]) for r in of_program for key in ("pace_ms", "plain_ms")]
    return not plain or any(ms and recorded / ms > SLOWED_DOWN for recorded, ms in plain)


SLOWED_DOWN = 1.05


def print_plan(tasks: Sequence[Task], seconds: float) -> None:
    """Print what would be run, with the seconds that each is likely to have the GPU."""
    doings = ("plain", "nsys", "cupti", "torch")
    planned: dict[tuple[str, str], dict[str, float]] = {}
    total_s, reached = 0.0, 0
    for program, variant, doing in tasks:
        row = planned.setdefault((program.name, variant), {})
        row[doing] = planned_seconds(program, variant, doing)
        total_s += row[doing]
        reached += total_s <= seconds
    print(f"{'program':26} {'variant':9}" + "".join(f"{word:>7}" for word in doings))
    for (name, variant), row in planned.items():
        cells = (f"{row[word]:7.1f}" if word in row else f"{'-':>7}" for word in doings)
        print(f"{name:26} {variant:9}" + "".join(cells))
    totals = [sum(row.get(word, 0.0) for row in planned.values()) for word in doings]
    print(f"{f'{len(tasks)} runs':36}" + "".join(f"{s:7.0f}" for s in totals))
    last = f", the last one: {_task_name(tasks[reached - 1])}" if reached else ""
    print(f"about {total_s / 60:.1f} minutes; {reached} runs in {seconds:.0f} s{last}")


def _task_name(task: Task) -> str:
    program, variant, doing = task
    return f"{doing}:{program.name}:{variant}"


def collect() -> int:
    """Time, record and pack what the arguments choose."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="where results and captures go")
    parser.add_argument("--list", action="store_true", help="print the plan and its seconds")
    parser.add_argument("--group", choices=sorted(GROUPS), help="a part of the programs")
    parser.add_argument("--variant", choices=(FOUND, REPAIRED), help="only this one of each")
    parser.add_argument(
        "--unmeasured", action="store_true", help="only what has no step time in the repository"
    )
    parser.add_argument("--only", help="names, or NAME:VARIANT, separated by commas")
    parser.add_argument("--do", default="plain,nsys,cupti,torch", help="what to run of each")
    parser.add_argument("--do-repaired", default="plain,nsys", help="of the repaired programs")
    parser.add_argument("--workers", type=int, default=6, help="runs at a time; one has the GPU")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--steps", type=int)
    parser.add_argument("--whole", action="store_true", help="record whole runs")
    parser.add_argument(
        "--missing", action="store_true", help="only what no row or time is known of, that first"
    )
    args = parser.parse_args()
    wanted, wanted_repaired = args.do.split(","), args.do_repaired.split(",")
    began = time.monotonic()
    todo = list(_chosen(args))
    tasks = [
        (program, variant, doing)
        for program, variant in todo
        for doing in (wanted if variant == FOUND else wanted_repaired)
        if doing == "plain" or can_record(program, doing)
    ]
    if args.missing:
        tasks = missing_tasks(tasks, earlier_rows(), measured_ms(), undated())
    if args.list:
        print_plan(tasks, 60 * args.minutes - PACKING_SECONDS)
        return 0
    if args.out is None:
        parser.error("--out is missing")
    args.out.mkdir(parents=True, exist_ok=True)
    machine = _machine()
    with tempfile.TemporaryDirectory() as folder:
        ends_s = began + 60 * args.minutes
        collection = Collection(args.out, Path(folder), ends_s, args.device, args.steps, args.whole)
        with ThreadPoolExecutor(args.workers) as pool:
            running = [pool.submit(run_task, collection, *task) for task in tasks]
            for task in running:
                task.result()
        left_out = pack(collection)
        collection.save(machine)
    for line in (*collection.unfinished, *(f"too large: {name}" for name in left_out)):
        print(f"missing: {line}")
    problems = [
        f"{name} {variant}: {problem}"
        for name, row in collection.rows.items()
        for variant, measured in row["variants"].items()
        for problem in measured["problems"]
    ]
    print("\n".join(problems))
    print(f"{time.monotonic() - began:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(collect())
