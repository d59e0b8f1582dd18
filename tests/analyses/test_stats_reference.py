"""Every report against what NVIDIA's own nsys printed for the same capture.

The CSV files are the truth where there is one (nsys 2025.3.2). Everything else is compared with the
nsys of this machine, whichever it is, when there is one.
"""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import TypeAlias

import pytest

from gpusight.analysis.nsys_stats.stats_reports import REPORTS, run_report
from gpusight.analysis.nsys_stats.stats_table import StatsReport
from gpusight.readers.open import open_trace
from tests.shared import DATA, EVERY_SQLITE, OWN, SHARED, name, needs_shared

Rows: TypeAlias = "list[tuple[str, ...]]"

OWN_REFERENCES = sorted((DATA / "nsys_reference").glob("*.csv"))
SHARED_REFERENCES = sorted((SHARED / "nsys_reference").glob("*.csv"))

NSYS = Path(
    os.environ.get("GPUSIGHT_NSYS", Path.home() / ".cache/nsight/nsys/target-linux-x64/nsys")
)
ARGUMENTS = ("base", "mangled", "nvtx-name")

RANGE_NAMES = ("NVTX Range", "Range", "NameTree")
RANGE_TRACES = {"nvtx_pushpop_trace": "Start (ns)", "nvtx_gpu_proj_trace": "Orig Start (ns)"}


def read(path: Path) -> tuple[list[str], Rows]:
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        header, *rows = [row for row in csv.reader(file) if row] or [[]]
    return header, [tuple(row) for row in rows]


def ours(capture: Path, report: str) -> tuple[list[str], Rows]:
    result = run_report(open_trace(capture), report)
    if not isinstance(result, StatsReport):
        return [], []
    return [c.header for c in result.columns], result.csv_rows()


def assert_same(report: str, header: list[str], mine: Rows, theirs: Rows) -> None:
    """Equal in every row and value; rows that tie in what they are sorted by may swap."""
    left, right = Counter(mine), Counter(theirs)
    assert not list((left - right).elements())[:3]
    assert not list((right - left).elements())[:3]
    leading = _sort_column(report, header)
    assert [row[leading] for row in mine] == [row[leading] for row in theirs]


def round_ties_alike(mine: Rows, theirs: Rows) -> Rows:
    """Take over a tenth that nsys before 2025 rounded up where the exact value is below the tie."""
    left, right = Counter(mine), Counter(theirs)
    ours_only, theirs_only = (
        sorted(d.elements(), key=_whole) for d in (left - right, right - left)
    )
    alike = {
        row: other
        for row, other in zip(ours_only, theirs_only, strict=False)
        if all(a == b or _next_tenth(a, b) for a, b in zip(row, other, strict=True))
    }
    return [alike.get(row, row) for row in mine]


def _whole(row: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(re.sub(r"\.\d$", "", cell) for cell in row)


def _next_tenth(mine: str, theirs: str) -> bool:
    tenths = re.fullmatch(r"\d+\.\d", mine) and re.fullmatch(r"\d+\.\d", theirs)
    return bool(tenths) and Decimal(theirs) - Decimal(mine) == Decimal("0.1")


def _sort_column(report: str, header: list[str]) -> int:
    sorted_by = {
        "cuda_kern_exec_sum": "TAvg (ns)",
        "cuda_gpu_mem_size_sum": "Total (MB)",
        "nvtx_kern_sum": "NVTX Range",
        "nvtx_gpu_proj_sum": "Total Proj Time (ns)",
        "nvtx_gpu_proj_trace": "Projected Start (ns)",
        "um_sum": "Migration Throughput (MB/s)",
    }
    default = "Total Time (ns)" if "Total Time (ns)" in header else header[0]
    return header.index(sorted_by.get(report, default))


def check_reference(reference: Path, captures: Path) -> None:
    capture, report, _ = reference.name.rsplit(".", 2)
    expected_header, expected = read(reference)
    header, rows = ours(captures / f"{capture}.sqlite", report)
    assert header == expected_header
    assert_same(report, header, rows, expected)


@pytest.mark.parametrize("reference", OWN_REFERENCES, ids=lambda p: p.stem)
def test_own_captures(reference: Path) -> None:
    check_reference(reference, DATA)


@needs_shared
@pytest.mark.shared
@pytest.mark.parametrize("reference", SHARED_REFERENCES, ids=lambda p: p.stem)
def test_shared_captures(reference: Path) -> None:
    check_reference(reference, SHARED / "nsys")


# The nsys of this machine -------------------------------------------------------------------------


def run_nsys(capture: Path, reports: list[str], folder: Path) -> dict[str, Path]:
    """Run reports; each that had something to say left a file."""
    copy = folder / "capture.sqlite"  # nsys may touch what it reads
    shutil.copyfile(capture, copy)
    written: dict[str, Path] = {}
    for report in reports:
        out = folder / report.replace(":", "-")
        command = [str(NSYS), "stats", "-q", "-r", report, "--format", "csv", "-o", "-", str(copy)]
        done = subprocess.run(command, capture_output=True, check=False, timeout=120)
        if done.stdout.strip():
            out.write_bytes(done.stdout)
            written[report] = out
    return written


def calls_are_recorded_twice(capture: Path) -> bool:
    """Tell whether calls share a correlation: captures with call chains of the CUDA API do so."""
    calls = open_trace(capture).table("api_calls", ["process", "correlation"]).drop_nulls()
    return bool(calls.is_duplicated().any())


def newest_form(report: str, header: list[str], rows: Rows) -> Rows:
    """Rewrite what nsys before 2025 printed otherwise: domains, and a row for work outside."""
    named = [c for c in RANGE_NAMES if c in header]
    if report in RANGE_TRACES:
        named = [c for c in ("Name", "NameTree") if c in header]
    at = [header.index(c) for c in named] if report.startswith("nvtx") else []
    if report == "cuda_gpu_trace":  # a migration of unified memory belongs to no context or stream
        context, stream = header.index("Ctx"), header.index("Strm")
        rows = [
            tuple(
                "" if i in (context, stream) and row[context] in ("0", "") else v
                for i, v in enumerate(row)
            )
            for row in rows
        ]
    if report == "nvtx_gpu_proj_trace":
        rows = [row for row in rows if row[header.index("Style")]]
    return [
        tuple(_without_default_domain(v) if i in at else v for i, v in enumerate(row))
        for row in rows
    ]


def _without_default_domain(text: str) -> str:
    dashes = re.match("(?:--)*", text)
    assert dashes is not None
    return dashes[0] + text[dashes.end() :].removeprefix(":")


@pytest.mark.oracle
@pytest.mark.skipif(not NSYS.is_file(), reason="nsys is not installed")
@pytest.mark.parametrize("capture", EVERY_SQLITE, ids=name)
def test_nsys_prints_the_same(capture: Path, tmp_path: Path) -> None:
    reports = list(REPORTS)
    if capture in OWN:
        reports += [
            f"{r.name}:{a}" for r in REPORTS.values() for a in ARGUMENTS if a in r.arguments
        ]
    for report, path in run_nsys(capture, reports, tmp_path).items():
        base = report.partition(":")[0]
        if base == "nvtx_kern_sum" and calls_are_recorded_twice(capture):
            continue  # nsys 2023.4 adds up a kernel's time once for each record of its launch
        expected_header, expected = read(path)
        header, rows = ours(capture, report)
        if base == "um_cpu_page_faults_sum":  # before 2025 without the source line
            header, rows = header[:2], [row[:2] for row in rows]
        assert header == expected_header, report
        theirs = newest_form(base, header, expected)
        mine = round_ties_alike(newest_form(base, header, rows), theirs)
        assert_same(base, header, mine, theirs)
