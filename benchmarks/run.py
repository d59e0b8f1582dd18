"""Time gpusight beside NVIDIA's own nsys on the same captures, in one run.

    python -m benchmarks.run                 # 1 M kernels and a report of 2 M NVTX ranges
    python -m benchmarks.run --large         # also 10 M kernels (needs 3 GB of disk, ten minutes)

Every command is a process of its own, started cold (no gpusight cache) unless the row says
otherwise; times are the median of the runs, memory is the peak resident set of the process or of
its largest child. nsys is looked for at GPUSIGHT_NSYS, in ~/.cache/nsight and on the PATH; without
it only our own times are shown.
"""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.generate import generate

HERE = Path(__file__).resolve().parent
OUT = HERE / "out"
NSYS_HOME = Path.home() / ".cache" / "nsight" / "nsys" / "target-linux-x64" / "nsys"


@dataclass(frozen=True)
class Measured:
    """What one command took."""

    seconds: float
    peak_bytes: int


def measure(command: list[str], *, runs: int, cache: Path, keep_cache: bool = False) -> Measured:
    """Run a command several times; the median time and the largest memory."""
    taken = []
    for _ in range(runs):
        if not keep_cache:
            shutil.rmtree(cache, ignore_errors=True)
        environment = {**os.environ, "GPUSIGHT_CACHE_DIR": str(cache)}
        start = time.perf_counter()
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, env=environment
        )
        assert process.stderr is not None
        errors = process.stderr.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            sys.exit(f"{' '.join(command)} failed:\n{errors.decode()}")
        taken.append(Measured(time.perf_counter() - start, usage.ru_maxrss * 1024))
    return Measured(statistics.median(m.seconds for m in taken), max(m.peak_bytes for m in taken))


def find_nsys() -> str | None:
    """Find NVIDIA's nsys, the peer."""
    for candidate in (os.environ.get("GPUSIGHT_NSYS"), str(NSYS_HOME), shutil.which("nsys")):
        if candidate and Path(candidate).exists():
            return candidate
    return None


class Table:
    """Rows of a Markdown table, printed as they are measured."""

    def __init__(self) -> None:
        print("| what | nsys | gpusight | ratio | nsys peak | gpusight peak |")
        print("|---|---:|---:|---:|---:|---:|", flush=True)

    def row(self, what: str, peer: Measured | None, ours: Measured) -> None:
        """Print one comparison."""
        theirs = f"{peer.seconds:.2f} s" if peer else ""
        ratio = f"{peer.seconds / ours.seconds:.1f}×" if peer else ""
        peak = f"{peer.peak_bytes / 1e6:.0f} MB" if peer else ""
        mine = f"{ours.seconds:.2f} s"
        print(f"| {what} | {theirs} | {mine} | {ratio} | {peak} | {ours.peak_bytes / 1e6:.0f} MB |")
        sys.stdout.flush()


def stats_rows(table: Table, nsys: str | None, size: str, capture: Path, runs: int) -> None:
    """Compare `nsys stats` with our drop-in, then time the commands that nsys does not have."""
    ours = [sys.executable, "-m", "gpusight"]
    cache = OUT / "cache"
    peers: dict[str, Measured] = {}
    for report in ("cuda_gpu_kern_sum", "cuda_api_sum", "nvtx_gpu_proj_sum", "nvtx_kern_sum"):
        if nsys:
            command = [nsys, "stats", "-q", "-r", report, "--format", "csv", str(capture)]
            peers[report] = measure(command, runs=1 if "nvtx" in report else runs, cache=cache)
        command = [*ours, "stats", "-r", report, "--format", "csv", str(capture)]
        measured = measure(command, runs=runs, cache=cache)
        table.row(f"{size}: `stats -r {report}`", peers.get(report), measured)
    for name in ("kernels", "summary"):
        peer = peers.get("cuda_gpu_kern_sum" if name == "kernels" else "nvtx_gpu_proj_sum")
        cold = measure([*ours, name, str(capture)], runs=runs, cache=cache)
        table.row(f"{size}: `{name}`", peer, cold)
    for name in ("kernels", "ranges", "summary"):
        warm = measure([*ours, name, str(capture)], runs=runs, cache=cache, keep_cache=True)
        table.row(f"{size}: `{name}` again, from the cache", None, warm)


def report_rows(table: Table, nsys: str | None, runs: int) -> None:
    """Compare reading a native report with `nsys export` alone."""
    report = OUT / "ranges_2m.nsys-rep"
    if nsys is None and not report.exists():
        print("| a report of 2 M NVTX ranges | not measured: making it needs nsys | | | | |")
        return
    if not report.exists():
        make_report(str(nsys), report)
    cache = OUT / "cache"
    peer = None
    if nsys:
        export = [nsys, "export", "--type", "sqlite", "--force-overwrite", "true", "-q", "true"]
        target = str(OUT / "ranges_2m.sqlite")
        peer = measure([*export, "-o", target, str(report)], runs=runs, cache=cache)
    ours = measure(
        [sys.executable, "-m", "gpusight", "summary", str(report)], runs=runs, cache=cache
    )
    table.row("2 M NVTX ranges: `.nsys-rep` to `summary`, against `nsys export` alone", peer, ours)


def make_report(nsys: str, report: Path) -> None:
    """Capture a C program that opens and closes two million ranges."""
    with tempfile.TemporaryDirectory() as folder:
        program = Path(folder) / "nvtx_ranges"
        include = os.environ.get("NVTX_INCLUDE", "/usr/local/cuda/include")
        subprocess.run(
            ["cc", "-O2", f"-I{include}", str(HERE / "nvtx_ranges.c"), "-o", str(program), "-ldl"],
            check=True,
        )
        command = [nsys, "profile", "-t", "nvtx", "-s", "none", "--cpuctxsw=none", "-f", "true"]
        subprocess.run([*command, "-o", str(report), str(program), "2000000"], check=True)


def main() -> None:
    """Make the inputs, run both sides, print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true", help="also 10 M kernels")
    parser.add_argument("--runs", type=int, default=5, help="runs a row; the median counts")
    parser.add_argument("--only", choices=["1m", "10m", "report"], help="one group of rows")
    arguments = parser.parse_args()
    OUT.mkdir(exist_ok=True)
    nsys = find_nsys()
    table = Table()
    start_up = measure(
        [sys.executable, "-m", "gpusight", "--help"], runs=arguments.runs, cache=OUT / "cache"
    )
    table.row("`gpusight --help`", None, start_up)
    sizes = {"1m": (1_000_000, "1 M kernels"), "10m": (10_000_000, "10 M kernels")}
    for key, (kernels, label) in sizes.items():
        if arguments.only not in (None, key) or (
            key == "10m" and not (arguments.large or arguments.only)
        ):
            continue
        capture = OUT / f"{key}.sqlite"
        if not capture.exists():
            generate(kernels, capture)
        stats_rows(table, nsys, label, capture, arguments.runs if key == "1m" else 1)
        print(f"| {label}: size of the capture | | {capture.stat().st_size / 1e6:.0f} MB | | | |")
    if arguments.only in (None, "report"):
        report_rows(table, nsys, arguments.runs)
    shutil.rmtree(OUT / "cache", ignore_errors=True)


if __name__ == "__main__":
    main()
