"""The reports of `nsys stats` about other libraries than CUDA."""

from __future__ import annotations

import pytest

from gpusight.analysis.nsys_stats.stats_reports import StatsReport, run_report
from gpusight.results import NotApplicable
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
