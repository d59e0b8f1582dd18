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

`--missing` runs what has no row in `accuracy_h200.json` or no time in `step_times_h200.json` (the
cells `-` of docs/accuracy.md) first, then what could not be recorded or diagnosed, then rows of an
older scoring. Scoring what came back adds its rows to these files, so that the same command goes on
where the last one ended:

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
import json
import lzma
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
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from benchmarks.programs import native
from benchmarks.programs.registry import FOUND, GROUPS, PROGRAMS, REPAIRED, Program
from benchmarks.programs.running import GPU_LOCK, median_ms

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

REPEATS = 3
"""Timings of a program without a profiler, in one process."""
MEASURED = Path(__file__).with_name("step_times_h200.json")
ROWS = Path(__file__).with_name("accuracy_h200.json")
"""A row for each capture of earlier collections, as `score` writes them."""
START_SECONDS = {"torch": 3.0, "jax": 7.0, "cupy": 5.0, "cuda": 1.5}
"""About how long a plain run needs until its first step: context, model, libraries, compilation.

Of programs on torch, torch is imported before; `IMPORTS` counts where it is not.
"""
IMPORTS = 5.0
REPORT_SECONDS = {"nsys": 5.0, "cupti": 1.0, "torch": 2.0}
"""About how long a tool needs for its start and report, beyond what overlaps with the next."""
PROFILED = 1.5
"""A profiler makes programs slower, about so many times."""
RUN_SECONDS = 150
"""A run that takes longer, with its turn at the GPU and its report, is given up."""
PLAIN_STEPS = 15
"""Timed in each repeat without a profiler."""
WINDOW_STEPS, WINDOW_SECONDS = 34, 8.0
"""What `gpusight record` needs to warm up, time and record, and how long that may take."""
PACKING_SECONDS = 20
MIB = 2**20
TAR_BYTES, ALL_BYTES, MOST_TARS = 15 * MIB, 62 * MIB, 7
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

    def steps_of(self, program: Program) -> int:
        """Return how many steps a program is run for."""
        if self.steps or self.whole:
            return self.steps or program.steps
        return window_steps(program)

    def arguments(self, program: Program, variant: str, most: int | None = None) -> list[str]:
        steps = self.steps_of(program)
        chosen = [program.name, "--variant", variant, "--device", self.device]
        return [*chosen, "--steps", str(min(steps, most or steps))]

    @property
    def lock(self) -> Path:
        return self.scratch / "gpu.lock"

    def environment(self) -> dict[str, str]:
        """Programs take the lock when their libraries are imported, and keep it for their steps.

        JAX shall not take most of the memory, which the last program may not have freed yet.
        """
        return os.environ | {GPU_LOCK: str(self.lock), "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}

    def command(self, program: Program, variant: str) -> list[str]:
        """Return the words that a profiler runs."""
        if program.library == "cuda":
            return native.command(program, variant, self.steps_of(program))
        return ["python3", "-m", "benchmarks.programs", *self.arguments(program, variant)]

    def save(self, machine: dict[str, str]) -> None:
        content = {"machine": machine, "programs": self.rows, "unfinished": self.unfinished}
        (self.out / "results.json").write_text(json.dumps(content, indent=1))


def time_plain(collection: Collection, program: Program, variant: str) -> None:
    """Time the program without a profiler."""
    row = collection.row(program, variant)
    stem = collection.scratch / f"{program.name}.{variant}.plain"
    times, log = stem.with_name(f"{stem.name}.json"), stem.with_name(f"{stem.name}.log")
    command = [sys.executable, "-m", "benchmarks.programs"]
    command += collection.arguments(program, variant, most=PLAIN_STEPS)
    command += ["--times", str(times), "--repeats", str(REPEATS)]
    with log.open("w") as file:
        child = subprocess.Popen(
            command,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=collection.environment(),
        )
    code = _await(child)
    if times.exists():
        runs = json.loads(times.read_text())
        row["plain"] += [{**run, "median_ms": median_ms(run)} for run in runs]
    if code:
        row["problems"].append(f"plain run: exit {code}: {_last_line(log)}")
    means = [f"{run['mean_ms']:.3f}" for run in row["plain"]]
    print(f"plain {program.name} {variant}: {', '.join(means) or 'none'} ms", flush=True)


def _await(child: subprocess.Popen[bytes]) -> int:
    """Wait for a process, then end what it left running: workers would disturb the next."""
    try:
        code = child.wait(RUN_SECONDS)
    except subprocess.TimeoutExpired:
        code = 124
    _end_group(child.pid)
    child.wait()
    return code


def _end_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][-300:] if lines else ""


def record(collection: Collection, program: Program, variant: str, tool: str) -> None:
    """Capture the program with `gpusight record` and note what was recorded."""
    stem = collection.scratch / f"{program.name}.{variant}.{tool}"
    log = stem.with_name(stem.name + ".log")
    words = [sys.executable, "-m", "gpusight", "record", "--with", tool, "-o", str(stem)]
    words += ["--whole"] * collection.whole
    ran = collection.command(program, variant)
    began_s = time.monotonic()
    with contextlib.ExitStack() as held, log.open("w") as file:
        if program.library == "cuda":  # takes no lock by itself
            lock = held.enter_context(collection.lock.open("w"))
            fcntl.flock(lock, fcntl.LOCK_EX)
        child = subprocess.Popen(
            [*words, "--", *ran],
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=collection.environment(),
        )
        code = _await(child)
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


def run_task(collection: Collection, program: Program, variant: str, doing: str) -> None:
    """Do one run, unless the time is over."""
    if time.monotonic() > collection.ends_s - PACKING_SECONDS:
        collection.unfinished.append(f"{doing}:{program.name}:{variant}")
    elif doing == "plain":
        time_plain(collection, program, variant)
    else:
        record(collection, program, variant, doing)


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
    tars: list[list[Path]] = [[] for _ in range(MOST_TARS)]
    free = [TAR_BYTES] * MOST_TARS
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
    return {"gpu": gpu, "cores": str(os.cpu_count()), **versions}


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


def window_steps(program: Program) -> int:
    """Return enough steps for the window of `gpusight record`, unless they take too long."""
    step_s = measured_ms().get((program.name, FOUND), program.step_ms) / 1e3
    return max(program.steps, min(WINDOW_STEPS, int(WINDOW_SECONDS / step_s)))


def planned_seconds(program: Program, variant: str, doing: str) -> float:
    """Estimate how long one run takes, plain or under a profiler."""
    known = measured_ms()
    step_ms = known.get((program.name, variant), known.get((program.name, FOUND), program.step_ms))
    start = START_SECONDS[program.library] * program.processes + 2.0 * len(program.needs)
    if doing == "plain":
        return start + (program.warmup + REPEATS * program.steps) * step_ms / 1e3 + 1
    imports = IMPORTS if program.library == "torch" else 0.0
    steps_s = (program.warmup + program.steps) * step_ms / 1e3
    return start + imports + REPORT_SECONDS[doing] + PROFILED * steps_s


Task: TypeAlias = "tuple[Program, str, str]"
"""A program, its variant, and `plain` or the tool that records it."""


def missing_tasks(
    tasks: Iterable[Task],
    rows: Iterable[Mapping[str, Any]],
    plain_ms: Mapping[tuple[str, str], float],
) -> list[Task]:
    """Choose what no earlier collection has, in the order in which it is missed most.

    What was never recorded or timed, programs as found before repaired ones; then what could not be
    recorded or diagnosed; then rows that were scored before `alone` was kept.
    """
    known = {(row["program"], row["variant"], row["tool"]): row for row in rows}

    def rank(task: Task) -> int | None:
        program, variant, doing = task
        if doing == "plain":
            return None if (program.name, variant) in plain_ms else 0
        row = known.get((program.name, variant, doing))
        if row is None:
            return 0 if variant == FOUND else 1
        return 2 if "error" in row else None if "alone" in row else 3

    ranked = [(at, task) for task in tasks if (at := rank(task)) is not None]
    return [task for _, task in sorted(ranked, key=lambda one: one[0])]


def print_plan(tasks: Sequence[Task]) -> None:
    """Print what would be run, with the seconds that each is likely to take."""
    doings = ("plain", "nsys", "cupti", "torch")
    seconds: dict[tuple[str, str], dict[str, float]] = {}
    for program, variant, doing in tasks:
        row = seconds.setdefault((program.name, variant), {})
        row[doing] = planned_seconds(program, variant, doing)
    print(f"{'program':26} {'variant':9}" + "".join(f"{word:>7}" for word in doings))
    for (name, variant), row in seconds.items():
        cells = (f"{row[word]:7.0f}" if word in row else f"{'-':>7}" for word in doings)
        print(f"{name:26} {variant:9}" + "".join(cells))
    totals = [sum(row.get(word, 0.0) for row in seconds.values()) for word in doings]
    print(f"{f'{len(tasks)} runs':36}" + "".join(f"{s:7.0f}" for s in totals))
    print(f"about {sum(totals) / 60:.1f} minutes, one after the other")


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
    parser.add_argument("--workers", type=int, default=4, help="runs at a time; one has the GPU")
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
        tasks = missing_tasks(tasks, json.loads(ROWS.read_text())["rows"], measured_ms())
    if args.list:
        print_plan(tasks)
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
