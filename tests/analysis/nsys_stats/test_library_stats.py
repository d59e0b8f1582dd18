"""The reports of `nsys stats` about other libraries than CUDA."""

from __future__ import annotations

import csv
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from gpusight.analysis.nsys_stats.stats_reports import StatsReport, run_report
from gpusight.results import NotApplicable
from tests.shared import DATA, opened, tool
from tests.traces import Rows, build_trace


def ranged(source: str, category: str, name: str, *spans: tuple[int, int]) -> Rows:
    common = {"source": source, "domain": source, "category": category, "name": name}
    return [{"start_ns": start, "end_ns": end, **common} for start, end in spans]


TRACE = build_trace(
    ranges=[
        *ranged("MPI", "collectives", "MPI_Allreduce", (0, 30), (40, 50)),
        *ranged("MPI", "p2p", "MPI_Isend", (60, 70)),
        *ranged("OpenMP", "regions", "Parallel region", (0, 100)),
        *ranged("OpenACC", "regions", "Wait@a.c:3", (0, 7)),
        *ranged("Vulkan", "calls", "vkQueueSubmit", (0, 5)),
        *ranged("Vulkan", "markers", "frame", (0, 9)),
        *ranged("OpenGL", "markers", "draw", (0, 8)),
        *ranged("OpenGL", "calls", "glDrawArrays", (0, 4)),
        *ranged("Direct3D 11", "markers", "light", (0, 3)),
        *ranged("Direct3D 12", "markers", "shadow", (0, 2)),
        *ranged("video", "Decoder", "cuvidDecodePicture", (0, 1)),
        {"start_ns": 0, "end_ns": 99, "name": "step"},
    ]
)


@pytest.mark.parametrize(
    ("report", "expected"),
    [
        (
            "mpi_event_sum",
            [
                ("80.0", "40", "2", "collectives", "MPI_Allreduce"),
                ("20.0", "10", "1", "p2p", "MPI_Isend"),
            ],
        ),
        ("openmp_sum", [("100.0", "100", "1", "Parallel region")]),
        ("openacc_sum", [("100.0", "7", "1", "Wait@a.c:3")]),
        ("vulkan_api_sum", [("100.0", "5", "1", "vkQueueSubmit")]),
        ("vulkan_marker_sum", [("100.0", "9", "1", "frame")]),
        ("opengl_khr_range_sum", [("100.0", "8", "1", "draw")]),
        ("dx11_pix_sum", [("100.0", "3", "1", "light")]),
        ("dx12_pix_sum", [("100.0", "2", "1", "shadow")]),
        ("nvvideo_api_sum", [("100.0", "1", "1", "Decoder", "cuvidDecodePicture")]),
    ],
)
def test_each_library_is_summed_up(report: str, expected: list[tuple[str, ...]]) -> None:
    result = run_report(TRACE, report)
    assert isinstance(result, StatsReport)
    # Share, time and count come first, then how the times spread, then names.
    assert [row[:3] + row[8:] for row in result.csv_rows()] == expected


def test_a_capture_without_the_library_says_so() -> None:
    result = run_report(
        build_trace(ranges=[{"start_ns": 0, "end_ns": 9, "name": "step"}]), "mpi_event_sum"
    )
    assert isinstance(result, NotApplicable)
    assert "does not contain MPI trace data" in result.reason


TABLES = """
INSERT INTO StringIds VALUES (900001, 'Parallel region'), (900002, 'Enqueue Launch'),
  (900003, 'jacobi.c'), (900004, 'vkQueueSubmit'), (900005, 'frame'),
  (900006, 'nvEncEncodePicture');
CREATE TABLE OPENMP_EVENT_KIND_PARALLEL (start, end, eventClass, globalTid, nameId, eventKind);
INSERT INTO OPENMP_EVENT_KIND_PARALLEL VALUES
  (70, 80, 78, 9, 900001, 28), (85, 91, 78, 9, 900001, 28);
CREATE TABLE CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH
  (start, end, nameId, eventClass, globalTid, eventKind, lineNo, srcFile);
INSERT INTO CUPTI_ACTIVITY_KIND_OPENACC_LAUNCH VALUES
  (90, 95, 900002, 48, 9, 11, 17, 900003), (96, 97, 900002, 48, 9, 11, 0, NULL);
CREATE TABLE VULKAN_API (start, end, eventClass, globalTid, nameId);
INSERT INTO VULKAN_API VALUES (100, 110, 53, 9, 900004), (120, 121, 53, 9, 900004);
CREATE TABLE KHR_DEBUG_EVENTS (eventClass, start, end, textId, globalTid, source, khrdType, id,
  severity, correlationId, context);
INSERT INTO KHR_DEBUG_EVENTS VALUES (62, 120, 130, 900005, 9, 33354, 33385, 1, 33387, 1, 1),
  (63, 125, 135, 900005, 9, 33354, 33385, 1, 33387, 1, 1);
CREATE TABLE NVVIDEO_ENCODER_API (start, end, eventClass, globalTid, nameId);
INSERT INTO NVVIDEO_ENCODER_API VALUES (100, 144, 83, 9, 900006);
"""
PRINTED = ("openmp_sum", "openacc_sum", "vulkan_api_sum", "opengl_khr_range_sum", "nvvideo_api_sum")


@pytest.mark.oracle
def test_nsys_prints_the_same(tmp_path: Path) -> None:
    nsys = tool("nsys", "nsys/target-linux-x64/nsys")
    path = Path(shutil.copy(DATA / "dataload.sqlite", tmp_path / "libraries.sqlite"))
    with sqlite3.connect(path) as database:
        database.executescript(TABLES)
    for report in PRINTED:
        command = [nsys, "stats", "-q", "-r", report, "--format", "csv", str(path)]
        done = subprocess.run(command, capture_output=True, check=True, timeout=120, text=True)
        expected = list(csv.reader(line for line in done.stdout.splitlines() if line.strip()))
        result = run_report(opened(path), report)
        assert isinstance(result, StatsReport)
        header = [column.header for column in result.columns]
        assert [header, *(list(row) for row in result.csv_rows())] == expected, report
