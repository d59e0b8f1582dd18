"""Coverage-guided fuzzing of the parsers that are Python code, by atheris (libFuzzer).

Every target is a process of its own: `python -m fuzz.coverage FORMAT FOLDER SECONDS SEED`. Half of
its mutations are ours, half libFuzzer's. A violation is written down and the process goes on.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from fuzz import seeds
from fuzz.formats import FORMATS

if TYPE_CHECKING:
    from fuzz.run import Run

TARGETS = (
    "nsys-arrow-file", "nsys-rep", "ncu-rep", "ncu-text", "torch-json", "jax-json", "xplane",
    "snapshot", "key-averages", "config", "baseline", "orion", "timings", "names",
)  # fmt: skip
"""Without SQLite and Parquet: their parsers are compiled, which atheris does not instrument."""
_PACKAGES = [
    "gpusight.readers",
    "gpusight.sniff",
    "gpusight.naming",
    "gpusight.trace",
    "gpusight.comparison",
    "gpusight.analysis",
    "tomllib",
]
_MAX_BYTES = 100_000
_MIN_S = 40
_TIMEOUT_S = 30
_RSS_MB = 3000
_COUNTS, _FOUND = "counts.json", "found.jsonl"


def available() -> bool:
    """Tell whether atheris can be imported; it has no wheels for some versions of Python."""
    return importlib.util.find_spec("atheris") is not None


def run_targets(run: Run, seconds: float, workers: int) -> None:
    """Run the targets, as many at a time as there are workers, and add what they count."""
    known = [name for name in run.formats if name in TARGETS]
    if not known:
        return
    # Starting a target takes seconds: a short run takes some of them, another run others.
    count = min(len(known), max(1, int(seconds * workers / _MIN_S)))
    names = Random(run.seed).sample(known, count)
    each = max(1, int(seconds * workers / count))
    with tempfile.TemporaryDirectory(prefix="gpusight-fuzz-") as scratch:
        waiting, running = list(names), dict[str, subprocess.Popen[bytes]]()
        while waiting or running:
            while waiting and len(running) < workers:
                name = waiting.pop(0)
                running[name] = _start(name, Path(scratch) / name, each, run)
            time.sleep(0.2)
            for name in [name for name, process in running.items() if process.poll() is not None]:
                _collect(run, name, Path(scratch) / name, running.pop(name).returncode)


def _start(name: str, folder: Path, seconds: int, run: Run) -> subprocess.Popen[bytes]:
    (folder / "corpus").mkdir(parents=True)
    for number, files in enumerate(run.own[name]):
        (folder / "corpus" / f"seed{number}").write_bytes(next(iter(files.values())))
    seed = str(Random(f"{run.seed}/{name}").randrange(1, 2**31))
    command = [sys.executable, "-m", "fuzz.coverage", name, str(folder), str(seconds), seed]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=log, cwd=seeds.REPOSITORY)


def _collect(run: Run, name: str, folder: Path, code: int) -> None:
    tally = run.tallies[name]
    counts = folder / _COUNTS
    inputs = json.loads(counts.read_text())["inputs"] if counts.exists() else 0
    tally.inputs += inputs
    tally.levels["guided"] += inputs
    violations = folder / _FOUND
    for line in violations.read_text().splitlines() if violations.exists() else ():
        signature, detail, file = json.loads(line)
        _add(run, name, signature, detail, folder / file)
    artifacts = sorted(
        p for p in folder.iterdir() if p.name.startswith(("crash-", "timeout-", "oom-"))
    )
    for artifact in artifacts:
        _add(
            run,
            name,
            f"guided target: {artifact.name.partition('-')[0]}",
            f"exit code {code}",
            artifact,
        )
    if not inputs or (code and not artifacts):
        tail = (folder / "log").read_text("utf-8", "replace")[-400:]
        _add(run, name, "guided target ended early", f"exit code {code}: {tail}", None)


def _add(run: Run, name: str, signature: str, detail: str, file: Path | None) -> None:
    from fuzz.run import Failure

    run.tallies[name].failures[signature] += 1
    files = {FORMATS[name].file or "": file.read_bytes()} if file else {}
    run.add(Failure(name, "guided", "guided", signature, detail), files)


def fuzz(name: str, folder: Path, seconds: int, seed: str) -> None:
    """Fuzz one parser; ends the process."""
    import atheris

    form, state = FORMATS[name], folder / _COUNTS
    with atheris.instrument_imports(include=_PACKAGES):
        from fuzz.check import PARSE, Violation, examine

        for files in seeds.load(name):
            # Parsers are imported when they are used; instrumenting one may take longer than its
            # input's bound on time.
            with contextlib.suppress(Violation):
                examine(form, {form.file or "": next(iter(files.values()))}, folder / "warm", PARSE)
    known: set[str] = set()
    count, written = 0, time.monotonic()

    def one_input(data: bytes) -> None:
        nonlocal count, written
        count += 1
        if time.monotonic() - written > 1:
            state.write_text(json.dumps({"inputs": count}))
            written = time.monotonic()
        try:
            examine(form, {form.file or "": data}, folder / "one", PARSE)
        except Violation as violation:
            if violation.signature not in known:
                known.add(violation.signature)
                (folder / f"found{len(known)}").write_bytes(data)
                with (folder / _FOUND).open("a") as file:
                    file.write(
                        json.dumps([violation.signature, violation.detail, f"found{len(known)}"])
                        + "\n"
                    )

    def mutate(data: bytes, most: int, number: int) -> bytes:
        rng = Random(number)
        if rng.random() < 0.5:
            return bytes(atheris.Mutate(data, most))
        try:
            return form.edit(rng, data)[:most]
        except Exception:  # noqa: BLE001 - our edits need a valid input, and this one is not
            return bytes(atheris.Mutate(data, most))

    limits = [
        f"-max_total_time={seconds}",
        f"-timeout={_TIMEOUT_S}",
        f"-rss_limit_mb={_RSS_MB}",
        f"-max_len={_MAX_BYTES}",
    ]
    places = [f"-artifact_prefix={folder}/", f"-seed={seed}", str(folder / "corpus")]
    atheris.Setup([sys.argv[0], *limits, *places], one_input, custom_mutator=mutate)
    atheris.Fuzz()


if __name__ == "__main__":
    fuzz(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
