"""Runs the golden cases in two processes: writes the fixture, or compares with it.

scripts/goldens                    run every case and write tests/goldens/goldens.json
scripts/goldens --check            compare with that file; exit code 1 where a case differs
scripts/goldens --save FOLDER      write the full outputs to a folder, and change nothing else
scripts/goldens --against FOLDER   compare with outputs saved there, and show what differs
"""

from __future__ import annotations

import argparse
import difflib
import gzip
import hashlib
import itertools
import json
import multiprocessing
import multiprocessing.util
import re
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from tests.goldens.cases import cases
from tests.goldens.running import GOLDENS, Workplace, run, workplace

PROCESSES = 2
_DIFF_LINES, _DIFF_COLUMNS, _DIFF_REACH, _MAX_DIFFS = 24, 200, 200, 20


class Result(NamedTuple):
    """What is kept of a case that was run; its text may be large."""

    case: str
    digest: str
    diff: list[str]
    """How the text differs from the saved one; empty where none was asked for."""


class Job(NamedTuple):
    """What a process needs to run cases."""

    cache: Path
    save: Path | None
    against: Path | None


_job: Job
_workplace: Workplace


def main() -> int:
    """Do what the arguments ask; gives the exit code."""
    args = _arguments()
    chosen = [case for case in cases() if args.only in case]
    began_s = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="goldens-cache-") as cache:
        results = sorted(_results(chosen, Job(Path(cache), args.save, args.against)))
    _say(f"{len(chosen)} cases in {time.monotonic() - began_s:.0f} s")
    for result in results:
        if "70" in result.digest.split()[0].split("+"):
            _say(f"internal error: {result.case}")
    if args.save:
        return 0
    if args.against:
        return _report([result for result in results if result.diff], [], len(chosen))
    goldens = read_goldens()
    if args.check:
        differ = [result for result in results if goldens.get(result.case) != result.digest]
        obsolete = [] if args.only else sorted(goldens.keys() - set(chosen))
        return _report(differ, obsolete, len(chosen))
    digests = {result.case: result.digest for result in results}
    write_goldens(goldens | digests if args.only else digests)
    return 0


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")


def read_goldens() -> dict[str, str]:
    """Read the fixture: exit code and hash of every case."""
    document: dict[str, str] = json.loads(GOLDENS.read_text("utf-8")) if GOLDENS.exists() else {}
    return document


def write_goldens(digests: dict[str, str]) -> None:
    """Write the fixture, a line for each case."""
    text = json.dumps(digests, indent=0, sort_keys=True, ensure_ascii=False)
    GOLDENS.write_text(text + "\n", "utf-8")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="scripts/goldens",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--check", action="store_true", help="compare with the fixture")
    what.add_argument("--save", type=Path, metavar="FOLDER", help="write the full outputs there")
    what.add_argument("--against", type=Path, metavar="FOLDER", help="compare with saved outputs")
    parser.add_argument("--only", default="", metavar="TEXT", help="cases whose names have this")
    return parser.parse_args()


def _results(chosen: list[str], job: Job) -> Iterator[Result]:
    if job.save is not None:
        job.save.mkdir(parents=True, exist_ok=True)
    # Spawned: a fork of a process in which Polars has threads may hang.
    with multiprocessing.get_context("spawn").Pool(PROCESSES, _start, (job,)) as pool:
        for number, result in enumerate(pool.imap_unordered(_run, chosen, chunksize=8), 1):
            if number % 100 == 0:
                sys.stderr.write(f"{number} of {len(chosen)}" + "\n")
            yield result
        pool.close()
        pool.join()  # else the processes are killed, and leave their folders


def _start(job: Job) -> None:
    """Make the workplace of a process; it is removed when the process ends."""
    global _job, _workplace
    context = workplace(job.cache)
    _job, _workplace = job, context.__enter__()
    multiprocessing.util.Finalize(None, context.__exit__, (None, None, None), exitpriority=0)


def _run(case: str) -> Result:
    outcome = run(case, _workplace)
    text = f"{case}\n{outcome.code}\n{outcome.text}"
    if _job.save is not None:
        _saved(_job.save, case).write_bytes(gzip.compress(text.encode(), 1, mtime=0))
    diff = [] if _job.against is None else _diff(_saved(_job.against, case), text)
    return Result(case, outcome.digest, diff)


def _saved(folder: Path, case: str) -> Path:
    words = re.sub(r"[^\w.]+", "_", case)[:80]
    return folder / f"{words}-{hashlib.sha256(case.encode()).hexdigest()[:8]}.txt.gz"


def _diff(file: Path, after: str) -> list[str]:
    """Give the first lines of the difference between a saved output and this one."""
    if not file.exists():
        return ["not saved"]
    before = gzip.decompress(file.read_bytes()).decode()
    if before == after:
        return []
    sides = before.splitlines(), after.splitlines()
    same = sum(
        1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(*sides, strict=False))
    )
    # Large outputs would take minutes: it looks no further than some lines after the first change.
    old, new = (side[max(0, same - 1) : same + _DIFF_REACH] for side in sides)
    lines = difflib.unified_diff(old, new, lineterm="", n=1)
    shown = [line[:_DIFF_COLUMNS] for line in itertools.islice(lines, 3, _DIFF_LINES)]
    return [f"line {same + 1}:", *shown]


def _report(differ: list[Result], obsolete: list[str], count: int) -> int:
    for case in obsolete:
        _say(f"no longer run: {case}")
    for number, result in enumerate(differ):
        _say(f"differs: {result.case}")
        for line in result.diff if number < _MAX_DIFFS else ():
            _say(f"    {line}")
    _say(f"{len(differ)} of {count} cases differ")
    if differ and not differ[0].diff:
        _say("to see how: scripts/goldens --save FOLDER before the change, --against FOLDER after")
    return 1 if differ or obsolete else 0


if __name__ == "__main__":
    sys.exit(main())
