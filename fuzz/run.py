"""The engine: workers that edit and examine inputs, and a supervisor that stops the stuck ones.

An input is named by format, seed and number: the same name gives the same bytes, so an input that
took its worker down is made again to be saved. Counts accumulate in a JSON file, by format.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import multiprocessing
import os
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from fuzz import seeds
from fuzz.formats import FORMATS
from fuzz.mutate.raw import SCRATCH

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from multiprocessing.connection import Connection
    from multiprocessing.sharedctypes import SynchronizedArray

    from fuzz.formats import Files

_SLICE_S, _SHORT_SLICE_S = 1.0, 0.2
"""How long a worker stays with a format of captures, and with another, which is read faster."""
_REPORT_S = 2.0
_HANG_CPU_S, _HANG_S = 30.0, 600.0
"""Processor time and wall-clock time for one input after which its worker is stopped."""
_MAX_RSS = 3 << 30
_MAX_ADDRESS_SPACE = 16 << 30
_FULL_EACH, _READ_EACH = 120, 12
"""Every so many inputs are examined by every table and command, and by every table."""
_KINDS_KEPT = 40


class Failure(NamedTuple):
    """An input for which something does not hold."""

    format: str
    name: str
    """Seed and number, which make the input again."""
    level: str
    signature: str
    detail: str


@dataclass
class Tally:
    """What happened to the inputs of one format."""

    inputs: int = 0
    levels: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    slowest_s: float = 0.0
    peak_bytes: int = 0
    """Most that one input added to the peak of its process."""

    def add(self, other: Tally) -> None:
        """Add the counts of another run."""
        self.inputs += other.inputs
        self.levels += other.levels
        self.outcomes = Counter(dict((self.outcomes + other.outcomes).most_common(_KINDS_KEPT)))
        self.failures += other.failures
        self.slowest_s = max(self.slowest_s, other.slowest_s)
        self.peak_bytes = max(self.peak_bytes, other.peak_bytes)

    def document(self) -> dict[str, Any]:
        """Give it as plain objects."""
        return {
            key: dict(value) if isinstance(value, Counter) else value
            for key, value in vars(self).items()
        }

    @classmethod
    def of(cls, document: dict[str, Any]) -> Tally:
        """Read what `document` gave."""
        tally = cls()
        for key, value in document.items():
            setattr(tally, key, Counter(value) if isinstance(value, dict) else value)
        return tally


def made(form: str, name: str, corpus: Sequence[Files]) -> Files:
    """Make the input of this name."""
    rng = random.Random(f"{form}/{name}")
    return FORMATS[form].edited(rng, corpus[rng.randrange(len(corpus))])


def level_of(form: str, number: int) -> str:
    """Say how far the input of this number is read."""
    if not FORMATS[form].capture or number % _READ_EACH:
        return "parse"
    return "read" if number % _FULL_EACH else "full"


# Workers ------------------------------------------------------------------------------------------


class Progress:
    """Where a worker is, shared with the supervisor: format, when it began, numbers by format."""

    def __init__(self, shared: SynchronizedArray[float]) -> None:
        self._shared = shared

    def begin(self, at: int) -> int:
        """Begin the next input of the format at this position; gives its number."""
        number = int(self._shared[2 + at])
        self._shared[2 + at] = number + 1
        self._shared[0], self._shared[1] = at, time.monotonic()
        return number

    def current(self) -> tuple[int, int, float]:
        """Give position of the format, number of the input, and seconds since it began."""
        at, began = int(self._shared[0]), self._shared[1]
        return at, int(self._shared[2 + at]) - 1, time.monotonic() - began if began else 0.0


class Examiner:
    """What a worker does: make inputs, examine them, send tallies and failures."""

    def __init__(self, corpora: dict[str, list[Files]], seed: str, folder: Path) -> None:
        self._corpora = corpora
        self._seed = seed
        self._folder = folder
        self.tallies: dict[str, Tally] = {}

    def examine(self, form: str, number: int) -> Failure | None:
        """Make and examine one input."""
        from fuzz.check import Violation, examine

        name, level = f"{self._seed}-{number}", level_of(form, number)
        tally = self.tallies.setdefault(form, Tally())
        tally.inputs += 1
        tally.levels[level] += 1
        files = made(form, name, self._corpora[form])
        try:
            outcome = examine(FORMATS[form], files, self._folder, level)
        except Violation as found:
            tally.failures[found.signature] += 1
            return Failure(form, name, level, found.signature, found.detail)
        tally.outcomes[outcome.kind] += 1
        tally.slowest_s = max(tally.slowest_s, outcome.cpu_s)
        tally.peak_bytes = max(tally.peak_bytes, outcome.grown_bytes)
        return None


def work(
    corpora: dict[str, list[Files]],
    seed: str,
    shared: SynchronizedArray[float],
    pipe: Connection[object, object],
) -> None:
    """Examine inputs of each format in turn until stopped."""
    resource.setrlimit(resource.RLIMIT_AS, (_MAX_ADDRESS_SPACE, _MAX_ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    progress, sent = Progress(shared), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gpusight-fuzz-", dir=SCRATCH) as folder:
        examiner = Examiner(corpora, seed, Path(folder))
        for at, form in cycle(enumerate(corpora)):
            until = time.monotonic() + (_SLICE_S if FORMATS[form].capture else _SHORT_SLICE_S)
            while time.monotonic() < until:
                failure = examiner.examine(form, progress.begin(at))
                if failure is not None:
                    pipe.send(failure)
            if time.monotonic() - sent > _REPORT_S:
                pipe.send(examiner.tallies)
                examiner.tallies, sent = {}, time.monotonic()


class Worker:
    """A worker process as the supervisor sees it."""

    def __init__(self, seed: str, corpora: dict[str, list[Files]]) -> None:
        self.seed = seed
        self._corpora = corpora
        self._context = multiprocessing.get_context("spawn")
        self._shared = self._context.Array("d", [0.0] * (2 + len(corpora)))
        self.start()

    def start(self) -> None:
        """Start the process, also in place of one that ended: numbers go on."""
        self._shared[1] = 0.0
        self._seen, self._cpu_s = (-1, -1), 0.0
        self.pipe, theirs = self._context.Pipe(duplex=False)
        arguments = (self._corpora, self.seed, self._shared, theirs)
        self.process = self._context.Process(target=work, args=arguments, daemon=True)
        self.process.start()
        theirs.close()

    def trouble(self) -> str:
        """Say why the worker cannot go on; empty where it can."""
        if not self.process.is_alive():
            return f"died with exit code {self.process.exitcode}"
        at, number, wall_s = Progress(self._shared).current()
        cpu_s, resident = _usage(self.process.pid)
        if (at, number) != self._seen:
            self._seen, self._cpu_s = (at, number), cpu_s
        if cpu_s - self._cpu_s > _HANG_CPU_S or wall_s > _HANG_S:
            return "no end"
        return "memory" if resident > _MAX_RSS else ""

    def restart(self, trouble: str) -> Failure:
        """Stop the worker, and start another behind the input that it was at."""
        at, number, _ = Progress(self._shared).current()
        form = list(self._corpora)[at]
        self.stop()
        self.start()
        name, level = f"{self.seed}-{number}", level_of(form, number)
        # Where in the code is not known, so each such input is one of its own.
        return Failure(form, name, level, f"worker {trouble} at {name}", "it could not go on")

    def stop(self) -> None:
        """End the process."""
        self.process.kill()
        self.process.join()


def _usage(pid: int | None) -> tuple[float, int]:
    """Give processor seconds and resident bytes of a process; nothing of one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0, 0
    ticks = int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK"), int(fields[21]) * resource.getpagesize()


# Runs ---------------------------------------------------------------------------------------------


class Run:
    """A run over some formats: counts, and one failure kept for each signature."""

    def __init__(self, formats: list[str], seed: str, *, public: bool, keep: Path | None) -> None:
        self.formats = formats
        self.seed = seed
        self.own = {form: seeds.load(form) for form in formats}
        self.corpora = {f: own + (seeds.public(f) if public else []) for f, own in self.own.items()}
        self.tallies = {form: Tally() for form in formats}
        self.failures: dict[tuple[str, str], Failure] = {}
        self._keep = keep

    def structured(self, seconds: float, workers: int) -> None:
        """Examine edited inputs for so long."""
        os.environ.setdefault("POLARS_MAX_THREADS", "1")
        own = [Worker(f"{self.seed}.{number}", self.corpora) for number in range(workers)]
        until = time.monotonic() + seconds
        while time.monotonic() < until:
            time.sleep(0.2)
            for worker in own:
                self._drain(worker)
                trouble = worker.trouble()
                if trouble:
                    self._drain(worker)
                    failure = worker.restart(trouble)
                    self.tallies[failure.format].failures[failure.signature] += 1
                    self.add(failure)
        for worker in own:
            self._drain(worker)
            worker.stop()

    def _drain(self, worker: Worker) -> None:
        try:
            while worker.pipe.poll():
                received = worker.pipe.recv()
                if isinstance(received, Failure):
                    self.add(received)
                else:
                    for form, tally in received.items():
                        self.tallies[form].add(tally)
        except EOFError:
            return

    def add(self, failure: Failure, files: Files | None = None) -> None:
        """Keep the first input of a signature; it is made again where it is not given."""
        key = (failure.format, failure.signature)
        if key in self.failures:
            return
        self.failures[key] = failure
        summary = f"{failure.format} {failure.name} ({failure.level}): {failure.signature}"
        print(f"fuzz: {summary}: {' '.join(failure.detail.split())}", flush=True)
        if self._keep is not None:
            known = files or made(failure.format, failure.name, self.corpora[failure.format])
            folder = self._keep if self._is_own(failure) else seeds.NOT_OURS
            keep(failure.format, minimised(failure, known), failure.signature, folder)

    def _is_own(self, failure: Failure) -> bool:
        """Tell whether the input was made of a seed of the repository: only such are committed."""
        rng = random.Random(f"{failure.format}/{failure.name}")
        seed = rng.randrange(len(self.corpora[failure.format]))
        return failure.level == "guided" or seed < len(self.own[failure.format])


def minimised(failure: Failure, files: Files, seconds: float = 20.0) -> Files:
    """Cut or zero pieces of a file as long as it fails in the same way."""
    if len(files) != 1 or failure.signature.startswith(("worker", "guided", "time", "memory")):
        return files
    ((name, data),) = files.items()
    until, size = time.monotonic() + seconds, len(data) // 2
    while size and time.monotonic() < until:
        for at in range(0, len(data), size):
            after = data[at + size :]
            for piece in (b"", bytes(len(data[at : at + size]))):
                smaller = data[:at] + piece + after
                if smaller != data and _fails(failure, {name: smaller}):
                    data = smaller
                    break
            if time.monotonic() > until:
                break
        size //= 2
    return {name: data}


def _fails(failure: Failure, files: Files) -> bool:
    from fuzz.check import PARSE, Violation, examine

    level = PARSE if failure.level == "guided" else failure.level
    with tempfile.TemporaryDirectory(prefix="gpusight-fuzz-", dir=SCRATCH) as folder:
        try:
            examine(FORMATS[failure.format], files, Path(folder), level)
        except Violation as found:
            return found.signature == failure.signature
    return False


def keep(form: str, files: Files, signature: str, folder: Path) -> Path:
    """Save an input that failed, named after what it shows."""
    number = hashlib.sha256(signature.encode()).hexdigest()[:10]
    path = folder / f"{form}-{number}{'' if FORMATS[form].file else '.dir'}"
    folder.mkdir(parents=True, exist_ok=True)
    if not path.exists():
        seeds.write(files, path)
        with (folder / "README.txt").open("a", encoding="utf-8") as file:
            file.write(f"{path.name}: {signature}\n")
    return path


def _accumulate(path: Path, tallies: dict[str, Tally]) -> None:
    """Add the counts of a run to those of earlier ones, by commit and format."""
    git = ["git", "-C", str(seeds.REPOSITORY), "rev-parse", "--short", "HEAD"]
    commit = (
        subprocess.run(git, capture_output=True, text=True, check=False).stdout.strip() or "unknown"
    )
    state = json.loads(path.read_text()) if path.exists() else {}
    known = state.setdefault(commit, {})
    for form, tally in tallies.items():
        total = Tally.of(known.get(form, {}))
        total.add(tally)
        known[form] = total.document()
    part = path.with_suffix(".part")
    part.write_text(json.dumps(state, indent=1))
    part.replace(path)


_HEADINGS = ("inputs", "parse", "read", "full", "guided", "ok", "failed")


def _rows(tallies: dict[str, Tally]) -> Iterator[str]:
    yield " ".join([f"{'format':16}", *(f"{heading:>9}" for heading in _HEADINGS), " slowest"])
    for form, tally in tallies.items():
        by_level = [tally.levels[level] for level in _HEADINGS[1:5]]
        numbers = [tally.inputs, *by_level, tally.outcomes["ok"], sum(tally.failures.values())]
        yield " ".join([f"{form:16}", *(f"{n:9,}" for n in numbers), f"{tally.slowest_s:7.2f}s"])
    yield f"{'all':16} {sum(t.inputs for t in tallies.values()):9,}"


def _markdown(path: Path) -> Iterator[str]:
    """Give the counts of all runs in a state file as the table of docs/reliability.md."""
    totals = {form: Tally() for form in FORMATS}
    for commit in json.loads(path.read_text()).values():
        for form, document in commit.items():
            totals[form].add(Tally.of(document))
    yield "| format | inputs | parse | read | full | guided | failed | slowest | most memory |"
    yield "|---|" + "---:|" * 8
    for form, tally in totals.items():
        counts = [tally.inputs, *(tally.levels[level] for level in _HEADINGS[1:5])]
        cells = [f"{n:,}" for n in (*counts, sum(tally.failures.values()))]
        bounds = [f"{tally.slowest_s:.2f} s", f"{tally.peak_bytes / 1e6:.0f} MB"]
        yield f"| `{form}` | {' | '.join([*cells, *bounds])} |"
    yield f"| all | {sum(tally.inputs for tally in totals.values()):,} |" + " |" * 7


def main(argv: Sequence[str] | None = None) -> int:
    """Run, print the counts, and give 1 where anything failed."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="how long (default: 1)")
    parser.add_argument(
        "--format",
        action="append",
        choices=sorted(FORMATS),
        help="only this format; may be repeated",
    )
    parser.add_argument(
        "--seed", default=None, help="the same seed makes the same inputs (default: a new one)"
    )
    parser.add_argument(
        "--workers",
        type=int,
        default=os.cpu_count() or 1,
        help="processes (default: one for each core)",
    )
    parser.add_argument(
        "--guided",
        type=float,
        default=0.4,
        metavar="SHARE",
        help="share of the time for coverage-guided parsers",
    )
    parser.add_argument(
        "--own",
        action="store_true",
        help="seeds of the repository only, so that runs repeat anywhere",
    )
    parser.add_argument(
        "--keep", type=Path, default=None, metavar="FOLDER", help="save inputs that fail here"
    )
    parser.add_argument(
        "--state", type=Path, default=None, metavar="FILE", help="add the counts to this JSON file"
    )
    parser.add_argument(
        "--report", type=Path, metavar="FILE", help="print the counts of a --state file, and end"
    )
    args = parser.parse_args(argv)
    if args.report is not None:
        print("\n".join(_markdown(args.report)))
        return 0
    seed = args.seed or str(random.SystemRandom().randrange(10**9))
    print(f"fuzz: seed {seed}", flush=True)
    run = Run(args.format or list(FORMATS), seed, public=not args.own, keep=args.keep)
    seconds = 60 * args.minutes
    from fuzz import coverage

    guided = args.guided if coverage.available() else 0.0
    run.structured(seconds * (1 - guided), args.workers)
    if guided:
        coverage.run_targets(run, seconds * guided, args.workers)
    else:
        print(
            "fuzz: atheris is not installed or not asked for: no coverage-guided parsers",
            flush=True,
        )
    print("\n".join(_rows(run.tallies)))
    if args.state is not None:
        _accumulate(args.state, run.tallies)
    return 1 if run.failures else 0


if __name__ == "__main__":
    sys.exit(main())
