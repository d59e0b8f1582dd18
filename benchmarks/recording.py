"""What each way of recording costs, against the same program without a recorder.

    python -m benchmarks.recording [--runs 3] [-- PROGRAM --times FILE …]

Runs `benchmarks/train_step.py`, or a program of yours that takes `--times FILE` and writes each
step's seconds there as JSON, plainly and with every tool that `gpusight doctor` finds, in turns.
Needs a GPU to say anything of interest.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import gpusight as gs
from gpusight.recording.doctor.checkup import examine

SKIPPED = 5
OWN = [sys.executable, str(Path(__file__).with_name("train_step.py"))]
WAYS: dict[str, list[str]] = {
    "no recorder": [],
    "nsys": ["--with", "nsys"],
    "nsys --memory --gpu-metrics": ["--with", "nsys", "--memory", "--gpu-metrics"],
    "nsys --python-stacks": ["--with", "nsys", "--python-stacks"],
    "cupti": ["--with", "cupti"],
    "torch": ["--with", "torch"],
    "torch --python-stacks --memory": ["--with", "torch", "--python-stacks", "--memory"],
}


def median_ms(options: list[str], program: list[str], folder: Path) -> float | None:
    """Run the program once; gives None where that way does not work here."""
    times = folder / "times.json"
    times.unlink(missing_ok=True)
    command = [*program, "--times", str(times)]
    if options:
        record = [sys.executable, "-m", "gpusight", "record", "--quiet", "--overwrite", "--whole"]
        command = [*record, *options, "-o", str(folder / "capture"), "--", *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode or not times.exists():
        print(f"# {' '.join(options)}: {done.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return None
    return 1e3 * float(statistics.median(json.loads(times.read_text())[SKIPPED:]))


def main() -> None:
    """Print a table: the shortest and longest median of each way."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("program", nargs="*", default=OWN)
    args = parser.parse_args()
    able = {v.tool.value for v in examine().verdicts if v.can.value != "no"}
    ways = {name: way for name, way in WAYS.items() if not way or way[1] in able}
    times_ms: dict[str, list[float]] = {name: [] for name in ways}
    with tempfile.TemporaryDirectory() as folder:
        for _ in range(args.runs):
            for name, way in ways.items():
                took = median_ms(way, args.program, Path(folder))
                times_ms[name] += [] if took is None else [took]
    plain = statistics.median(times_ms["no recorder"])
    print(f"| gpusight {gs.__version__} | a step | ratio |\n|---|---:|---:|")
    for name, all_ms in times_ms.items():
        if all_ms:
            ratio = statistics.median(all_ms) / plain
            print(f"| {name} | {min(all_ms):.1f} to {max(all_ms):.1f} ms | {ratio:.2f}× |")


if __name__ == "__main__":
    main()
