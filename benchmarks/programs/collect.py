"""Times and captures the programs, on a machine with a GPU, within one lease of it.

    python -m benchmarks.programs.collect --list [--group first | --only A,B] [--unmeasured]
    python -m benchmarks.programs.collect --out FOLDER [--group first | --only A,B] [--minutes 8]

First every program is timed without a profiler, one at a time: a process warms up, times its steps
three times, and then torch.profiler records a few more. After that `gpusight record` captures whole
short runs. What was not reached within the minutes is printed, ready for `--only`. `--list` prints
what would be run and about how long it takes. The folder then holds `results.json` and a few tar
files. Run it in an empty environment and a process namespace of its own
(`env -i PATH="$PATH" HOME=/demo unshare --pid --fork --mount-proc`): nsys stores what it sees of
both.
"""

from __future__ import annotations

import argparse
import contextlib
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
import traceback
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.programs import native
from benchmarks.programs.registry import FOUND, GROUPS, PROGRAMS, REPAIRED, Program
from benchmarks.programs.running import main, median_ms

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

REPEATS = 3
"""Timings of a program without a profiler, in one process."""
MEASURED = Path(__file__).with_name("step_times_h200.json")
START_SECONDS = {"torch": 3.0, "jax": 7.0, "cupy": 5.0, "cuda": 1.5}
"""About how long a plain run needs until its first step: context, model, libraries, compilation.

Of programs on torch, torch is imported before; `IMPORTS` counts where it is not.
"""
IMPORTS = 5.0
REPORT_SECONDS = {"nsys": 5.0, "cupti": 1.0}
"""About how long a tool needs for its start and report, beyond what overlaps with the next."""
PROFILED = 1.5
"""A profiler makes programs slower, about so many times."""
RUN_SECONDS = 75
"""A program that takes longer is given up."""
IMPORT_SECONDS = 60
"""How long nsys may need, after the program's last step, until its report is written."""
PLAIN_SHARE = 0.5
"""Of the time: captures need the other half."""
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
        return self.steps or program.steps

    def arguments(self, program: Program, variant: str) -> list[str]:
        chosen = [program.name, "--variant", variant, "--device", self.device]
        return [*chosen, "--steps", str(self.steps_of(program))]

    def command(self, program: Program, variant: str) -> list[str]:
        """Return the words that a profiler runs."""
        if program.library == "cuda":
            return native.command(program, variant, self.steps_of(program))
        return ["python3", "-m", "benchmarks.programs", *self.arguments(program, variant)]

    def save(self, machine: dict[str, str]) -> None:
        content = {"machine": machine, "programs": self.rows, "unfinished": self.unfinished}
        (self.out / "results.json").write_text(json.dumps(content, indent=1))


def time_plain(collection: Collection, program: Program, variant: str, *, traced: bool) -> None:
    """Time the program without a profiler; torch.profiler only looks at steps after those."""
    row = collection.row(program, variant)
    times = collection.scratch / "times.json"
    times.unlink(missing_ok=True)
    arguments = [*collection.arguments(program, variant), "--times", str(times)]
    arguments += ["--repeats", str(REPEATS)]
    on_torch = program.library == "torch" and program.processes == 1
    if traced and on_torch:
        file = collection.scratch / f"{program.name}.{variant}.torch{_SUFFIX['torch']}"
        arguments += ["--torch-trace", str(file)]
    log = collection.scratch / f"{program.name}.{variant}.plain.log"
    code = _run_forked(arguments, log) if on_torch else _run_fresh(arguments, log)
    if times.exists():
        runs = json.loads(times.read_text())
        row["plain"] += [{**run, "median_ms": median_ms(run)} for run in runs]
    if code:
        row["problems"].append(f"plain run: exit {code}: {_last_line(log)}")


def _run_forked(arguments: list[str], log: Path) -> int:
    """Run a program in a fork of this process, which has imported torch and not touched CUDA.

    That saves the seconds of the import, and with them a third of the lease. Other libraries are
    not imported here: some look for a GPU, and CUDA does not survive a fork.
    """
    import torch  # noqa: F401

    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        _become(arguments, log)
    return _await(lambda: _exit_code(child), child)


def _become(arguments: list[str], log: Path) -> None:
    """Run the program in this process and end it, whatever happens."""
    code = 1
    try:
        os.setsid()
        with log.open("w") as file:
            os.dup2(file.fileno(), 1)
            os.dup2(file.fileno(), 2)
        code = main(arguments)
    except BaseException:  # noqa: BLE001 - the fork must not go on as the collector
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def _exit_code(child: int) -> int | None:
    ended, status = os.waitpid(child, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if ended else None


def _run_fresh(arguments: list[str], log: Path) -> int:
    with log.open("w") as file:
        command = [sys.executable, "-m", "benchmarks.programs", *arguments]
        child = subprocess.Popen(
            command, stdout=file, stderr=subprocess.STDOUT, start_new_session=True
        )
        return _await(child.poll, child.pid)


def _await(poll: Callable[[], int | None], group: int) -> int:
    """Wait for a process, then end what it left running: workers would disturb the next."""
    ends = time.monotonic() + RUN_SECONDS
    code = poll()
    while code is None and time.monotonic() < ends:
        time.sleep(0.02)
        code = poll()
    _end_group(group)
    while code is None and poll() is None:
        time.sleep(0.02)
    return 124 if code is None else code


def _end_group(group: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, signal.SIGKILL)


def _last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][-300:] if lines else ""


@dataclass
class Recording:
    """A `gpusight record` under way."""

    row: dict[str, Any]
    tool: str
    capture: Path
    log: Path
    child: subprocess.Popen[bytes]
    began_s: float

    @classmethod
    def start(cls, collection: Collection, program: Program, variant: str, tool: str) -> Recording:
        stem = collection.scratch / f"{program.name}.{variant}.{tool}"
        log = stem.with_name(stem.name + ".log")
        record = [sys.executable, "-m", "gpusight", "record", "--with", tool, "-o", str(stem)]
        record += ["--whole"] * collection.whole
        ran = collection.command(program, variant)
        with log.open("w") as file:
            child = subprocess.Popen(
                [*record, "--", *ran],
                stdout=file,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        row = collection.row(program, variant)
        capture = stem.with_name(stem.name + _SUFFIX[tool])
        return cls(row, tool, capture, log, child, time.monotonic())

    def await_steps(self) -> None:
        """Wait until the program has printed its step time: the GPU is then free."""
        ends = time.monotonic() + RUN_SECONDS
        while self.child.poll() is None and time.monotonic() < ends:
            if _STEP_TIME.search(self.log.read_text(errors="replace")):
                return
            time.sleep(0.05)
        if self.child.poll() is None:
            _end_group(self.child.pid)

    def finish(self) -> None:
        """Wait for the report and note what was recorded."""
        try:
            code = self.child.wait(IMPORT_SECONDS)
        except subprocess.TimeoutExpired:
            _end_group(self.child.pid)
            code = self.child.wait()
        printed = _STEP_TIME.search(self.log.read_text(errors="replace"))
        family = sorted(self.capture.parent.glob(f"{self.log.stem}*{_SUFFIX[self.tool]}"))
        self.row["recorded"][self.tool] = {
            "mean_ms": float(printed[1]) if printed else None,
            "wall_s": round(time.monotonic() - self.began_s, 2),
            "files": [path.name for path in family],
        }
        if code or not family:
            self.row["problems"].append(f"{self.tool}: exit {code}: {_last_line(self.log)}")


def record_all(collection: Collection, todo: list[tuple[Program, str]], tool: str) -> None:
    """Record one program after the other; a report is written while the next program starts."""
    writing: Recording | None = None
    for program, variant in todo:
        if tool == "cupti" and program.library == "cuda":
            continue  # gpusight's recorder of CUPTI is loaded by Python
        if time.monotonic() > collection.ends_s - PACKING_SECONDS:
            collection.unfinished.append(f"{tool}:{program.name}:{variant}")
            continue
        recording = Recording.start(collection, program, variant, tool)
        recording.await_steps()
        print(f"{tool} {program.name} {variant}: {_last_line(recording.log)}", flush=True)
        if writing is not None:
            writing.finish()
        writing = recording
    if writing is not None:
        writing.finish()


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


def measured_ms() -> dict[tuple[str, str], float]:
    """Return the step times without a profiler that were measured before."""
    programs = json.loads(MEASURED.read_text(encoding="utf-8"))["programs"]
    return {
        (name, variant): statistics.median(row["plain_ms"])
        for name, variants in programs.items()
        for variant, row in variants.items()
        if "plain_ms" in row
    }


def planned_seconds(program: Program, variant: str, doing: str) -> float:
    """Estimate how long one run takes: plain (with torch.profiler), under nsys or CUPTI."""
    known = measured_ms()
    step_ms = known.get((program.name, variant), known.get((program.name, FOUND), program.step_ms))
    start = START_SECONDS[program.library] * program.processes + 2.0 * len(program.needs)
    if doing == "plain":
        return start + (program.warmup + REPEATS * program.steps) * step_ms / 1e3 + 1
    imports = IMPORTS if program.library == "torch" else 0.0
    steps_s = (program.warmup + program.steps) * step_ms / 1e3
    return start + imports + REPORT_SECONDS[doing] + PROFILED * steps_s


def print_plan(todo: list[tuple[Program, str]], wanted: list[str]) -> None:
    """Print what would be run, with the seconds that each is likely to take."""
    doing = [word for word in ("plain", "nsys", "cupti") if word in wanted]
    print(f"{'program':26} {'variant':9}" + "".join(f"{word:>7}" for word in doing))
    totals = dict.fromkeys(doing, 0.0)
    for program, variant in todo:
        # CUPTI is loaded by Python.
        taken = {
            word: 0.0
            if word == "cupti" and program.library == "cuda"
            else planned_seconds(program, variant, word)
            for word in doing
        }
        print(f"{program.name:26} {variant:9}" + "".join(f"{s:7.0f}" for s in taken.values()))
        totals = {word: totals[word] + taken[word] for word in doing}
    print(f"{f'{len(todo)} runs':36}" + "".join(f"{s:7.0f}" for s in totals.values()))
    print(f"about {sum(totals.values()) / 60:.1f} minutes")


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
    parser.add_argument("--do", default="plain,torch,nsys", help="of plain, torch, nsys, cupti")
    parser.add_argument("--minutes", type=float, default=8.0)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument("--steps", type=int)
    parser.add_argument("--whole", action="store_true", help="record whole runs")
    args = parser.parse_args()
    wanted = args.do.split(",")
    began = time.monotonic()
    todo = list(_chosen(args))
    if args.list:
        print_plan(todo, wanted)
        return 0
    if args.out is None:
        parser.error("--out is missing")
    args.out.mkdir(parents=True, exist_ok=True)
    machine = _machine()
    with tempfile.TemporaryDirectory() as folder:
        ends_s = began + 60 * args.minutes
        collection = Collection(args.out, Path(folder), ends_s, args.device, args.steps, args.whole)
        plain_ends_s = began + 60 * args.minutes * (PLAIN_SHARE if len(wanted) > 2 else 1)
        for program, variant in todo if "plain" in wanted else []:
            if time.monotonic() > plain_ends_s:
                collection.unfinished.append(f"plain:{program.name}:{variant}")
                continue
            time_plain(collection, program, variant, traced="torch" in wanted)
            _print_row(collection, program, variant)
            collection.save(machine)
        for tool in ("nsys", "cupti"):
            if tool in wanted:
                record_all(collection, todo, tool)
                collection.save(machine)
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


def _print_row(collection: Collection, program: Program, variant: str) -> None:
    means = [f"{run['mean_ms']:.3f}" for run in collection.row(program, variant)["plain"]]
    print(f"plain {program.name} {variant}: {', '.join(means) or 'none'} ms", flush=True)


if __name__ == "__main__":
    sys.exit(collect())
