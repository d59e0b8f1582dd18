"""Time gpusight beside HolisticTraceAnalysis (HTA) on generated torch.profiler traces.

HTA is looked for at GPUSIGHT_HTA_PYTHON (a Python that has it) and in the folder of the benchmark,
where `--install-hta` puts it into a virtual environment of its own: its pandas and plotly must not
mix with ours. HTA 0.5.0 does not run on pandas 3.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from benchmarks.measure import Failed, Limits, Measured, median_of, run_once

PACKAGES = ("HolisticTraceAnalysis==0.5.0", "pandas<3", "ijson")
HERE = Path(__file__).resolve().parent
HTA_SCRIPT = HERE / "hta_kernels.py"
COMMANDS = ("kernels", "summary", "ops")
_LARGE_MB = 1000
READ_JSON = "import json, sys; json.load(open(sys.argv[1], 'rb'))"
GPUSIGHT = [sys.executable, "-m", "gpusight"]


def find_hta(folder: Path) -> str | None:
    """Find a Python that has HTA, the peer."""
    for candidate in (os.environ.get("GPUSIGHT_HTA_PYTHON"), str(folder / "hta/bin/python")):
        if candidate and Path(candidate).exists():
            return candidate
    return None


def install_hta(folder: Path) -> None:
    """Put HTA into a virtual environment of its own."""
    subprocess.run([sys.executable, "-m", "venv", str(folder / "hta")], check=True)
    pip = [str(folder / "hta/bin/python"), "-m", "pip", "install", "-q", *PACKAGES]
    subprocess.run(pip, check=True)


@dataclass
class TorchRows:
    """The rows for a trace of one size, plain and compressed."""

    folder: Path
    megabytes: int
    runs: int
    hta: str | None
    limits: Limits

    def print(self) -> None:
        """Make the traces, run everything on them and print the table as it comes."""
        plain, packed = self._traces()
        self._bytes = plain.stat().st_size
        sizes = f"{self._bytes / 1e6:.0f} MB, {packed.stat().st_size / 1e6:.0f} MB as .gz"
        print(f"\n| {sizes} | time | MB/s of JSON | vs. HTA | peak memory | of the JSON |")
        print("|---|---:|---:|---:|---:|---:|", flush=True)
        peer = self._peers(plain, "")
        self._row("`json.load` alone", [sys.executable, "-c", READ_JSON, str(plain)], plain, peer)
        self._ours(plain, "", peer)
        # On a large trace HTA takes a quarter of an hour, compressed or not: once is enough.
        small = self.megabytes < _LARGE_MB
        self._ours(packed, " of the `.gz`", self._peers(packed, " of the `.gz`") if small else peer)

    def _traces(self) -> tuple[Path, Path]:
        plain = self.folder / f"torch_{self.megabytes}.json"
        packed = plain.with_suffix(".json.gz")
        for path in (plain, packed):
            if not path.exists():
                generate_trace(self.megabytes, path)
        return plain, packed

    def _peers(self, trace: Path, form: str) -> Measured | None:
        """Run HTA as it comes, then with the parser that it recommends; give the first."""
        if self.hta is None:
            return None
        command = [self.hta, str(HTA_SCRIPT), str(trace)]
        first = self._row(f"HTA: the kernel table{form}", command, trace, None, runs=1)
        if self.megabytes >= _LARGE_MB:
            return first
        self._row(f"HTA with ijson: the kernel table{form}", [*command, "--ijson"], trace, first, 1)
        return first

    def _ours(self, trace: Path, form: str, peer: Measured | None) -> None:
        for name in COMMANDS:
            command = [*GPUSIGHT, name, str(trace), "--no-cache"]
            self._row(f"`gpusight {name}`{form}", command, trace, peer)
        command = [*GPUSIGHT, "kernels", str(trace)]
        shutil.rmtree(self.folder / "cache", ignore_errors=True)
        self._row(f"`gpusight kernels`{form}, and filling the cache", command, trace, peer, 1)
        self._row(f"`gpusight kernels`{form} again, from the cache", command, trace, peer)

    def _row(
        self,
        what: str,
        command: list[str],
        trace: Path,
        peer: Measured | None,
        runs: int | None = None,
    ) -> Measured | None:
        """Measure a command and print its row; None when it did not get through."""
        taken = []
        for _ in range(runs or self.runs):
            _read_through(trace)
            environment = {**os.environ, "GPUSIGHT_CACHE_DIR": str(self.folder / "cache")}
            once = run_once(command, environment=environment, limits=self.limits)
            if isinstance(once, Failed):
                print(f"| {what} | {once.reason} | | | | |", flush=True)
                return None
            taken.append(once)
        measured = median_of(taken)
        print(f"| {what} | {self._cells(measured, peer)} |", flush=True)
        return measured

    def _cells(self, measured: Measured, peer: Measured | None) -> str:
        speed = self._bytes / 1e6 / measured.seconds
        ratio = f"{peer.seconds / measured.seconds:.1f}×" if peer else ""
        peak = f"{measured.peak_bytes / 1e6:.0f} MB | {measured.peak_bytes / self._bytes:.2f}×"
        return f"{measured.seconds:.2f} s | {speed:.0f} | {ratio} | {peak}"


def generate_trace(megabytes: int, path: Path) -> None:
    """Write a trace in another process: a command's peak starts at the size of ours."""
    command = [sys.executable, "-m", "benchmarks.generate_torch", str(megabytes)]
    subprocess.run([*command, str(path.resolve())], check=True, cwd=HERE.parent)


def _read_through(path: Path) -> None:
    """Read a file once, so that no command pays for the disk."""
    with path.open("rb") as file:
        while file.read(1 << 24):
            pass
