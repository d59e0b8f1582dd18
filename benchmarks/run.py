"""Time gpusight beside the tools people use now, on the same captures, in one run.

    python -m benchmarks.run                 # 1 M kernels, 2 M NVTX ranges, a torch trace of 200 MB
    python -m benchmarks.run --large         # also 10 M kernels and a torch trace of 2 GB
    python -m benchmarks.run --only torch-2g --install-hta
    python -m benchmarks.run --only ncu      # a report of Nsight Compute of 100 MB
    python -m benchmarks.run --only compare  # two captures side by side, a gate, a copy to share
    python -m benchmarks.run --only page     # `gpusight report`: everything on one page

Every command is a process of its own, started cold (no gpusight cache) unless the row says
otherwise; times are the median of the runs, memory is the peak of all processes of the command.
The peers are NVIDIA's nsys and ncu, looked for at GPUSIGHT_NSYS and GPUSIGHT_NCU, in
~/.cache/nsight and on the PATH, and HolisticTraceAnalysis, see torch_rows.py; without them only our
own times are shown. `--large` needs
6 GB of disk and half an hour.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.generate import generate
from benchmarks.generate_ncu import generate as generate_ncu
from benchmarks.measure import Failed, Limits, Measured, median_of, run_once
from benchmarks.torch_rows import TorchRows, find_hta, generate_trace, install_hta
from gpusight.readers.file_blocks import zstd_module

HERE = Path(__file__).resolve().parent
OUT = Path(os.environ.get("GPUSIGHT_BENCHMARKS", HERE / "out"))
CAPTURES = {"1m": (1_000_000, "1 M kernels"), "10m": (10_000_000, "10 M kernels")}
TRACES = {"torch-200m": 200, "torch-2g": 2000}
LARGE = {"10m", "torch-2g"}
NSIGHT = Path.home() / ".cache" / "nsight"
NSYS_HOME = NSIGHT / "nsys" / "target-linux-x64" / "nsys"
NCU_HOME = NSIGHT / "nsight-compute" / "ncu"
NCU_MB = 100
COMPARED_MB = (200, 180)
"""Sizes of two traces of the same program; one has fewer steps."""
HTA_COMPARE = HERE / "hta_compare.py"


def measure(command: list[str], *, runs: int, cache: Path, keep_cache: bool = False) -> Measured:
    """Run a command several times; the median time and the largest memory."""
    taken = []
    for _ in range(runs):
        if not keep_cache:
            shutil.rmtree(cache, ignore_errors=True)
        environment = {**os.environ, "GPUSIGHT_CACHE_DIR": str(cache)}
        once = run_once(command, environment=environment)
        if isinstance(once, Failed):
            sys.exit(f"{' '.join(command)}: {once.reason}")
        taken.append(once)
    return median_of(taken)


def find_tool(name: str, home: Path) -> str | None:
    """Find a tool of NVIDIA's, the peer."""
    variable = f"GPUSIGHT_{name.upper()}"
    for candidate in (os.environ.get(variable), str(home), shutil.which(name)):
        if candidate and Path(candidate).exists():
            return candidate
    return None


class Table:
    """Rows of a Markdown table, printed as they are measured."""

    def __init__(self, peer: str = "nsys") -> None:
        print(f"| what | {peer} | gpusight | ratio | {peer} peak | gpusight peak |")
        print("|---|---:|---:|---:|---:|---:|", flush=True)

    def row(self, what: str, peer: Measured | None, ours: Measured) -> None:
        """Print one comparison."""
        theirs = f"{peer.seconds:.2f} s" if peer else ""
        ratio = f"{peer.seconds / ours.seconds:.1f}×" if peer else ""
        peak = f"{peer.peak_bytes / 1e6:.0f} MB" if peer else ""
        own = f"{ours.seconds:.2f} s"
        print(f"| {what} | {theirs} | {own} | {ratio} | {peak} | {ours.peak_bytes / 1e6:.0f} MB |")
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
    diagnosis_rows(table, nsys, size, capture, runs)
    for name in ("kernels", "ranges", "summary", "diagnose"):
        warm = measure([*ours, name, str(capture)], runs=runs, cache=cache, keep_cache=True)
        table.row(f"{size}: `{name}` again, from the cache", None, warm)


def diagnosis_rows(table: Table, nsys: str | None, size: str, capture: Path, runs: int) -> None:
    """Compare the rules of `nsys analyze` with our ledger and findings."""
    ours, cache = [sys.executable, "-m", "gpusight"], OUT / "cache"
    peer = measure([nsys, "analyze", "-q", str(capture)], runs=1, cache=cache) if nsys else None
    for name in ("ledger", "diagnose"):
        measured = measure([*ours, name, str(capture)], runs=runs, cache=cache)
        table.row(f"{size}: `{name}`, against `nsys analyze`", peer, measured)


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


def nsys_tables(arguments: argparse.Namespace) -> None:
    """Compare with nsys on captures of kernels and of ranges."""
    nsys = find_tool("nsys", NSYS_HOME)
    table = Table()
    start_up = measure(
        [sys.executable, "-m", "gpusight", "--help"], runs=arguments.runs, cache=OUT / "cache"
    )
    table.row("`gpusight --help`", None, start_up)
    for key, (kernels, label) in CAPTURES.items():
        if not wanted(key, arguments):
            continue
        capture = OUT / f"{key}.sqlite"
        if not capture.exists():
            generate(kernels, capture)
        stats_rows(table, nsys, label, capture, arguments.runs if key == "1m" else 1)
        print(f"| {label}: size of the capture | | {capture.stat().st_size / 1e6:.0f} MB | | | |")
    if wanted("report", arguments):
        report_rows(table, nsys, arguments.runs)


def ncu_table(arguments: argparse.Namespace) -> None:
    """Compare with ncu on a report of its own kind, plain and packed."""
    report = OUT / f"ncu_{NCU_MB}.ncu-rep"
    packed = report.with_suffix(".ncu-repz")
    if not report.exists():
        generate_ncu(NCU_MB, report)
    if not packed.exists():
        packed.write_bytes(zstd_module().compress(report.read_bytes()))
    ncu = find_tool("ncu", NCU_HOME)
    table = Table("ncu")
    cache = OUT / "cache"
    peer = None
    if ncu:
        command = [ncu, "--import", str(report), "--page", "raw", "--csv"]
        peer = measure(command, runs=arguments.runs, cache=cache)
    for name, file in (("kernels", report), ("counters", report), ("kernels", packed)):
        command = [sys.executable, "-m", "gpusight", name, str(file), "--format", "csv"]
        ours = measure([*command, "--no-cache"], runs=arguments.runs, cache=cache)
        form = " of the `.ncu-repz`" if file == packed else ""
        table.row(f"{NCU_MB} MB: `{name}`{form}, against `ncu --page raw`", peer, ours)


def comparing_table(arguments: argparse.Namespace) -> None:
    """Compare two traces beside HTA, then captures of nsys, which has nothing of the kind."""
    traces = [OUT / f"torch_{megabytes}.json" for megabytes in COMPARED_MB]
    for megabytes, trace in zip(COMPARED_MB, traces, strict=True):
        if not trace.exists():
            generate_trace(megabytes, trace)
    table, runs, cache, hta = Table("HTA"), arguments.runs, OUT / "cache", find_hta(OUT)
    ours, files = [sys.executable, "-m", "gpusight"], [str(trace) for trace in traces]
    peer = measure([hta, str(HTA_COMPARE), *files], runs=1, cache=cache) if hta else None
    sizes = " and ".join(f"{megabytes} MB" for megabytes in COMPARED_MB)
    measured = measure([*ours, "compare", *files], runs=runs, cache=cache)
    table.row(f"{sizes} of JSON: `compare`, against `TraceDiff.compare_traces`", peer, measured)
    capture = OUT / "1m.sqlite"
    if not capture.exists():
        generate(CAPTURES["1m"][0], capture)
    with tempfile.TemporaryDirectory() as folder:
        _nsys_comparing(table, capture, Path(folder), runs)


def _nsys_comparing(table: Table, capture: Path, folder: Path, runs: int) -> None:
    """Time a comparison, a gate and a copy of a capture of a million kernels."""
    ours, cache = [sys.executable, "-m", "gpusight"], OUT / "cache"
    baseline, copy = folder / "baseline.json", folder / "copy.sqlite"
    commands = {
        "two of 1 M kernels: `compare`": ["compare", str(capture), str(capture)],
        "1 M kernels: `baseline save`": ["baseline", "save", str(capture), "-o", str(baseline)],
        "1 M kernels: `gate` against that baseline": [
            *("gate", "--baseline", str(baseline), "--max", "step_time=+3%", "--", str(capture))
        ],
        "1 M kernels: `share`": ["share", str(capture), "-o", str(copy)],
    }
    for what, command in commands.items():
        taken = []
        for _ in range(runs):
            copy.unlink(missing_ok=True)  # a copy is never replaced
            taken.append(measure([*ours, *command], runs=1, cache=cache))
        table.row(what, None, median_of(taken))


def page_table(arguments: argparse.Namespace) -> None:
    """Time the page that has everything on it; no peer makes one."""
    table, cache = Table(), OUT / "cache"
    for key, (kernels, label) in CAPTURES.items():
        capture = OUT / f"{key}.sqlite"
        if key in LARGE and not arguments.large:
            continue
        if not capture.exists():
            generate(kernels, capture)
        runs = arguments.runs if key not in LARGE else 1
        with tempfile.TemporaryDirectory() as folder:
            page = Path(folder) / "report.html"
            command = [sys.executable, "-m", "gpusight", "report", str(capture), "-o", str(page)]
            cold = measure(command, runs=runs, cache=cache)
            warm = measure(command, runs=runs, cache=cache, keep_cache=True)
            size = f"a page of {page.stat().st_size / 1e3:,.0f} KB"
        table.row(f"{label}: `report`, {size}", None, cold)
        table.row(f"{label}: `report` again, from the cache", None, warm)


def torch_tables(arguments: argparse.Namespace) -> None:
    """Compare with HTA on torch traces."""
    for key, megabytes in TRACES.items():
        if wanted(key, arguments):
            runs = arguments.runs if megabytes < 1000 else min(arguments.runs, 3)
            limits = Limits(seconds=arguments.limit)
            TorchRows(OUT, megabytes, runs, find_hta(OUT), limits).print()


def wanted(key: str, arguments: argparse.Namespace) -> bool:
    """Say whether a group of rows was asked for."""
    if arguments.only:
        return bool(arguments.only == key)
    return bool(arguments.large) or key not in LARGE


def main() -> None:
    """Make the inputs, run both sides, print the tables."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--large", action="store_true", help="also 10 M kernels and 2 GB of JSON")
    parser.add_argument("--runs", type=int, default=5, help="runs a row; the median counts")
    parser.add_argument(
        "--only",
        choices=[*CAPTURES, "report", "ncu", "compare", "page", *TRACES],
        help="one group of rows",
    )
    parser.add_argument("--limit", type=float, default=1800, help="seconds a torch row may take")
    parser.add_argument("--install-hta", action="store_true", help="fetch HTA (500 MB) if missing")
    arguments = parser.parse_args()
    OUT.mkdir(parents=True, exist_ok=True)
    if arguments.install_hta and find_hta(OUT) is None:
        install_hta(OUT)
    if arguments.only not in {*TRACES, "ncu", "compare", "page"}:
        nsys_tables(arguments)
    if wanted("ncu", arguments):
        ncu_table(arguments)
    if wanted("compare", arguments):
        comparing_table(arguments)
    if wanted("page", arguments):
        page_table(arguments)
    torch_tables(arguments)
    shutil.rmtree(OUT / "cache", ignore_errors=True)


if __name__ == "__main__":
    main()
