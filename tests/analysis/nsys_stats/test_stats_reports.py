"""The reports of `nsys stats`: what each row counts, how values are printed, what is refused."""

from __future__ import annotations

import csv
import os
import re
import shutil
import subprocess
import sys
from collections import Counter
from decimal import Decimal
from pathlib import Path
from typing import TypeAlias

import polars as pl
import pytest

from gpusight.analysis.nsys_stats.stats_reports import (
    REPORTS,
    StatsCell,
    StatsColumn,
    StatsReport,
    resolve,
    run_report,
)
from gpusight.errors import UsageError
from gpusight.results import NotApplicable
from gpusight.trace.trace import Trace
from tests.shared import DATA, EVERY_SQLITE, OWN, SHARED, name, needs_shared, opened
from tests.traces import Rows, build_trace

PROCESSES: Rows = [{"process": 1, "pid": 616}]
THREADS: Rows = [{"thread": 11, "process": 1, "tid": 100, "name": "main"}]
CALLS: Rows = [
    {"start_ns": 10, "end_ns": 20, "correlation": 1, "symbol": "cudaLaunchKernel_v7000"},
    {"start_ns": 30, "end_ns": 40, "correlation": 2, "symbol": "cudaLaunchKernelExC_v11060"},
    {"start_ns": 60, "end_ns": 70, "correlation": 3, "symbol": "cudaLaunchKernel_v7000"},
]
KERNELS: Rows = [
    {"start_ns": 25, "end_ns": 35, "correlation": 1, "name": "ns::a<int>(int)", "base_name": "a"},
    {"start_ns": 38, "end_ns": 50, "correlation": 2, "name": "ns::a<float>(int)", "base_name": "a"},
    {"start_ns": 70, "end_ns": 73, "correlation": 3, "name": "b(int)", "base_name": "b"},
]
RANGES: Rows = [
    {"start_ns": 0, "end_ns": 50, "name": "step"},
    {"start_ns": 5, "end_ns": 45, "name": "step", "depth": 1, "parent": 0},
    {"start_ns": 6, "end_ns": 22, "name": "ar", "domain": "NCCL", "depth": 0},
]


def cuda(**more: Rows) -> Trace:
    tables = {"processes": PROCESSES, "threads": THREADS, "api_calls": CALLS, "kernels": KERNELS}
    return build_trace(None, **tables, **more)


def rows(trace: Trace, report: str) -> list[dict[str, str]]:
    result = run_report(trace, report)
    assert isinstance(result, StatsReport), result
    return result.cells().to_dicts()


def pick(trace: Trace, report: str, *columns: str) -> list[tuple[str, ...]]:
    return [tuple(row[c] for c in columns) for row in rows(trace, report)]


def test_kernels_are_summed_by_name_and_ranked_by_time() -> None:
    first, *rest = rows(cuda(), "cuda_gpu_kern_sum")
    assert first == {
        "Time (%)": "48.0",
        "Total Time (ns)": "12",
        "Instances": "1",
        "Avg (ns)": "12.0",
        "Med (ns)": "12.0",
        "Min (ns)": "12",
        "Max (ns)": "12",
        "StdDev (ns)": "0.0",
        "Name": "ns::a<float>(int)",
    }
    assert [r["Name"] for r in rest] == ["ns::a<int>(int)", "b(int)"]


def test_base_names_merge_instances_and_deviation_is_that_of_a_sample() -> None:
    first = rows(cuda(), "cuda_gpu_kern_sum:base")[0]
    assert (first["Name"], first["Instances"], first["StdDev (ns)"]) == ("a", "2", "1.4")


def test_mangled_names_fall_back_where_there_are_none() -> None:
    assert rows(cuda(), "cuda_gpu_kern_sum:mangled") == rows(cuda(), "cuda_gpu_kern_sum")


def test_kernels_can_carry_the_innermost_range() -> None:
    names = pick(cuda(ranges=RANGES), "cuda_gpu_kern_sum:nvtx-name:base", "Name")
    assert sorted(names) == [("ar/a",), ("b",), ("step/a",)]


def test_calls_of_mpi_are_not_ranges_of_nvtx() -> None:
    called = {"start_ns": 7, "end_ns": 30, "name": "MPI_Wait", "domain": "MPI", "source": "MPI"}
    trace = cuda(ranges=[RANGES[0], called])
    assert pick(trace, "nvtx_sum", "Range") == [(":step",)]
    assert {row[0] for row in pick(trace, "nvtx_kern_sum", "NVTX Range")} == {"", ":step"}
    assert {row[0] for row in pick(trace, "cuda_gpu_kern_sum:nvtx-name:base", "Name")} == {
        "step/a",
        "b",
    }


def test_names_that_nsys_cannot_demangle_are_printed_mangled() -> None:
    julia = "_Z9gpu_scale16CompilerMetadataI11DynamicSizeE"
    kernels = [{**row, "recorded_name": row["name"]} for row in KERNELS]
    kernels[2] |= {"name": "gpu_scale(…)", "base_name": "gpu_scale", "recorded_name": julia}
    trace = build_trace(kernels=kernels)
    assert pick(trace, "cuda_gpu_kern_sum", "Name")[-1] == (julia,)
    assert sorted(pick(trace, "cuda_gpu_kern_sum:base", "Name")) == [(julia,), ("a",)]


def test_gpus_have_the_number_that_their_process_gave_them() -> None:
    kernels = [{**row, "device": 3, "cuda_device": 0} for row in KERNELS]
    devices = [{"device": 0, "name": "A100"}, {"device": 3, "name": "A100"}]
    trace = build_trace(None, api_calls=CALLS, kernels=kernels, devices=devices)
    assert {row[0] for row in pick(trace, "cuda_gpu_trace", "Device")} == {"A100 (0)"}
    assert {row[0] for row in pick(trace, "cuda_kern_exec_sum", "DevId")} == {"0"}


def test_only_version_suffixes_of_four_digits_are_dropped() -> None:
    names = pick(cuda(), "cuda_api_sum", "Name", "Num Calls")
    assert names == [("cudaLaunchKernel", "2"), ("cudaLaunchKernelExC_v11060", "1")]


def test_libraries_are_not_the_cuda_api() -> None:
    calls = [*CALLS, {"start_ns": 0, "end_ns": 99, "symbol": "cublasSgemm", "api": "cublas"}]
    assert len(rows(build_trace(api_calls=calls), "cuda_api_sum")) == 2


def test_launches_are_split_into_call_queue_and_kernel() -> None:
    first, second, third = rows(cuda(), "cuda_kern_exec_trace")
    assert (first["Queue Start (ns)"], first["Queue Dur (ns)"]) == ("20", "5")
    assert (second["Queue Start (ns)"], second["Queue Dur (ns)"]) == ("", "")
    assert (third["Queue Dur (ns)"], third["Total Dur (ns)"]) == ("0", "13")
    assert (first["PID"], first["TID"]) == ("616", "100")


def test_calls_name_their_thread() -> None:
    assert pick(cuda(), "cuda_api_trace", "Pid", "Tid", "Thread Name")[0] == ("616", "100", "main")


def test_memory_is_summed_by_direction() -> None:
    trace = build_trace(
        copies=[{"end_ns": 7, "bytes": 62_500}, {"end_ns": 7, "bytes": 312_500}],
        memsets=[{"end_ns": 3, "bytes": 500}],
    )
    assert pick(trace, "cuda_gpu_mem_size_sum", "Operation", "Total (MB)", "Min (MB)") == [
        ("[CUDA memcpy Host-to-Device]", "0.375", "0.062"),
        ("[CUDA memset]", "0.001", "0.001"),
    ]
    times = pick(trace, "cuda_gpu_sum", "Category", "Total Time (ns)")
    assert times == [("MEMORY_OPER", "14"), ("MEMORY_OPER", "3")]


def test_the_trace_shows_kernels_and_memory_in_one_order() -> None:
    trace = cuda(devices=[{}], copies=[{"start_ns": 36, "end_ns": 43, "bytes": 62_500}])
    names = pick(trace, "cuda_gpu_trace:base", "Name", "Device", "Throughput (MB/s)")
    assert names[1] == ("[CUDA memcpy Host-to-Device]", "NVIDIA H200 (0)", "8928571.375")
    assert [n[0] for n in names] == ["a", "[CUDA memcpy Host-to-Device]", "a", "b"]


def test_green_context_zero_is_none() -> None:
    kernels = [{**KERNELS[0], "green_context": 0}, {**KERNELS[1], "green_context": 3}]
    assert pick(build_trace(kernels=kernels), "cuda_gpu_trace", "GreenCtx") == [("",), ("3",)]


def test_ranges_are_named_with_their_domain() -> None:
    names = pick(cuda(ranges=RANGES), "nvtx_sum", "Range", "Style", "Instances")
    assert names == [(":step", "PushPop", "2"), ("NCCL:ar", "PushPop", "1")]


def test_a_range_never_closed_ends_with_the_last_one() -> None:
    ranges = [{"start_ns": 5, "end_ns": 1000, "open": True, "name": "o"}, RANGES[0]]
    assert ("45",) in pick(build_trace(ranges=ranges), "nvtx_pushpop_sum", "Total Time (ns)")


def test_styles_have_reports_of_their_own() -> None:
    ranges = [*RANGES, {"start_ns": 1, "end_ns": 9, "name": "x", "kind": "start_end"}]
    trace = build_trace(ranges=ranges)
    assert pick(trace, "nvtx_startend_sum", "Range") == [(":x",)]
    assert (":x",) not in pick(trace, "nvtx_pushpop_sum", "Range")


def test_push_pop_ranges_nest_across_domains() -> None:
    columns = ("NameTree", "Lvl", "NumChild", "DurChild (ns)", "ParentId", "RangeStack")
    assert pick(cuda(ranges=RANGES), "nvtx_pushpop_trace", *columns) == [
        (":step", "0", "1", "40", "", ":1"),
        ("--:step", "1", "1", "16", "1", ":1:2"),
        ("----NCCL:ar", "2", "0", "0", "2", ":1:2:3"),
    ]


def test_projection_counts_launches_and_children_that_launch() -> None:
    columns = ("Name", "Projected Start (ns)", "Projected Duration (ns)", "NumGPUOps", "NumChild")
    ranges = [*RANGES, {"start_ns": 1, "end_ns": 4, "name": "idle"}]
    assert pick(cuda(ranges=ranges), "nvtx_gpu_proj_trace", *columns) == [
        (":step", "25", "25", "2", "1"),
        (":step", "25", "25", "2", "1"),
        ("NCCL:ar", "25", "10", "1", "0"),
    ]
    (summary, _) = rows(cuda(ranges=ranges), "nvtx_gpu_proj_sum")
    assert (summary["Range Instances"], summary["Avg Range Lvl"]) == ("2", "0.5")


def test_a_kernel_counts_for_every_range_around_it() -> None:
    columns = ("NVTX Range", "PID", "NVTX Inst", "Kern Inst", "Total Time (ns)", "Kernel Name")
    orphan = {"start_ns": 90, "end_ns": 91, "name": "lost", "correlation": 99}
    trace = build_trace(
        processes=PROCESSES,
        threads=THREADS,
        api_calls=CALLS,
        kernels=[*KERNELS, orphan],
        ranges=RANGES,
    )
    assert pick(trace, "nvtx_kern_sum", *columns) == [
        ("", "", "0", "1", "1", "lost"),
        ("", "616", "0", "1", "3", "b(int)"),
        (":step", "616", "2", "1", "24", "ns::a<float>(int)"),
        (":step", "616", "2", "1", "20", "ns::a<int>(int)"),
        ("NCCL:ar", "616", "1", "1", "10", "ns::a<int>(int)"),
    ]


# Unified memory -----------------------------------------------------------------------------------

MOVES: Rows = [
    {"end_ns": 100, "bytes": 65_536, "kind": "Unified Host-to-Device", "virtual_address": 4096},
    {"end_ns": 50, "bytes": 4_096, "kind": "Unified Device-to-Host", "virtual_address": 4096},
    {"end_ns": 50, "bytes": 99, "kind": "Host-to-Device"},
]
FAULTS: Rows = [
    {"side": "cpu", "address": 4096, "symbol": "main"},
    {"side": "cpu", "address": 8192, "symbol": "main"},
    {"side": "cpu", "address": 8192, "symbol": None},
    {"side": "gpu", "address": 4096, "faults": 5},
]


def test_pages_moved_and_faults_taken() -> None:
    trace = build_trace(copies=MOVES, page_faults=FAULTS)
    first, second = rows(trace, "um_sum")
    assert list(first.values()) == ["0x1000", "0.066", "0.004", "1", "5", "464213.287"]
    assert list(second.values()) == ["0x2000", "", "", "2", "", ""]
    assert len(rows(trace, "um_sum:rows=1")) == 1
    (total,) = rows(trace, "um_total_sum")
    assert list(total.values()) == ["0.066", "0.004", "3", "5", "0x1000", "0x2000"]
    places = pick(trace, "um_cpu_page_faults_sum", "CPU Page Faults", "CPU Instruction Address")
    assert places == [("2", "main"), ("1", "")]


def test_faults_alone_are_enough() -> None:
    (total,) = rows(build_trace(page_faults=FAULTS[:1]), "um_total_sum")
    assert list(total.values()) == ["", "", "1", "", "", ""]


# Names, arguments, gaps ---------------------------------------------------------------------------


def test_older_spellings_are_understood() -> None:
    assert resolve("gputrace").name == "cuda_gpu_trace"
    assert resolve("nvtxgpuproj").name == "nvtx_gpu_proj_trace"
    spellings = [alias for report in REPORTS.values() for alias in report.aliases]
    assert len(spellings) == len(set(spellings))
    assert not set(spellings) & set(REPORTS)


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ("nothing_sum", "no report 'nothing_sum'; reports are cuda_api_gpu_sum, "),
        ("cuda_api_sum:base", "report cuda_api_sum has no argument 'base'; it takes none"),
        ("um_sum:rows=x", "report um_sum has no argument 'rows=x'; it takes rows=<limit>"),
    ],
)
def test_what_makes_no_sense_is_refused(request_: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        run_report(cuda(), request_)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize("report", REPORTS)
def test_an_empty_capture_says_what_it_lacks(report: str) -> None:
    result = run_report(build_trace(), report)
    assert isinstance(result, NotApplicable)
    assert result.reason.startswith("hand-built does not contain ")


IN_SMALLEST = [r.name for r in REPORTS.values() if r.module != "library_stats"]
IN_SMALLEST.remove("nvtx_startend_sum")


@pytest.mark.parametrize("report", IN_SMALLEST)
def test_every_report_survives_the_smallest_capture(report: str) -> None:
    trace = build_trace(
        kernels=KERNELS[:1],
        api_calls=CALLS[:1],
        ranges=RANGES[:1],
        copies=[{}],
        os_calls=[{"name": "poll", "end_ns": 1}],
        page_faults=FAULTS[:1],
    )
    assert rows(trace, report)


def test_a_report_without_rows_says_so() -> None:
    result = run_report(build_trace(ranges=RANGES[:1]), "nvtx_startend_sum")
    assert isinstance(result, NotApplicable)
    assert result.reason == "hand-built has no rows for nvtx_startend_sum"


def test_names_before_ranges_need_ranges() -> None:
    assert isinstance(run_report(cuda(), "cuda_gpu_kern_sum:nvtx-name"), NotApplicable)


# Printing -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "values", "printed"),
    [
        (
            StatsCell.TENTHS,
            [1.25, 1.45, 9485.55, 0.75, -10.0, 0.0, None],
            ["1.3", "1.4", "9485.5", "0.8", "-10.0", "0.0", ""],
        ),
        (
            StatsCell.MEGA,
            [62_500, 312_500, 500, 4_500, None],
            ["0.062", "0.312", "0.001", "0.004", ""],
        ),
        (StatsCell.HEX, [4096, None], ["0x1000", ""]),
        (StatsCell.WHOLE, [7, None], ["7", ""]),
        (StatsCell.MEGA, [None], [""]),
    ],
)
def test_values_are_rounded_as_nsys_rounds(
    cell: StatsCell, values: list[float | None], printed: list[str]
) -> None:
    report = StatsReport("r", "R", (StatsColumn("v", cell),), pl.DataFrame({"v": values}))
    assert [row[0] for row in report.csv_rows()] == printed


def test_headings_and_values_must_agree() -> None:
    with pytest.raises(ValueError, match="headings"):
        StatsReport("r", "R", (StatsColumn("v", StatsCell.TEXT),), pl.DataFrame({"w": [1]}))


def test_a_kernel_summary_does_not_load_numpy() -> None:
    code = (
        "import sys; from gpusight.analysis.nsys_stats.stats_reports import "
        "resolve; import gpusight.analysis.nsys_stats.cuda_stats; sys.exit('numpy' "
        "in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# Every report against what NVIDIA's own nsys printed for the same capture.
#
# The CSV files are the truth where there is one (nsys 2025.3.2). Everything else is compared with
# the nsys of this machine, whichever it is, when there is one.


PrintedRows: TypeAlias = "list[tuple[str, ...]]"

OWN_REFERENCES = sorted((DATA / "nsys_reference").glob("*.csv"))
SHARED_REFERENCES = sorted((SHARED / "nsys_reference").glob("*.csv"))

NSYS = Path(
    os.environ.get("GPUSIGHT_NSYS", Path.home() / ".cache/nsight/nsys/target-linux-x64/nsys")
)
ARGUMENTS = ("base", "mangled", "nvtx-name")

RANGE_NAMES = ("NVTX Range", "Range", "NameTree")
RANGE_TRACES = {"nvtx_pushpop_trace": "Start (ns)", "nvtx_gpu_proj_trace": "Orig Start (ns)"}


def read(path: Path) -> tuple[list[str], PrintedRows]:
    with path.open(newline="", encoding="utf-8", errors="replace") as file:
        header, *rows = [row for row in csv.reader(file) if row] or [[]]
    return header, [tuple(row) for row in rows]


def ours(capture: Path, report: str) -> tuple[list[str], PrintedRows]:
    result = run_report(opened(capture), report)
    if not isinstance(result, StatsReport):
        return [], []
    return [c.header for c in result.columns], result.csv_rows()


def assert_same(report: str, header: list[str], ours: PrintedRows, theirs: PrintedRows) -> None:
    """Equal in every row and value; rows that tie in what they are sorted by may swap."""
    left, right = Counter(ours), Counter(theirs)
    assert not list((left - right).elements())[:3]
    assert not list((right - left).elements())[:3]
    leading = _sort_column(report, header)
    assert [row[leading] for row in ours] == [row[leading] for row in theirs]


def round_ties_alike(ours: PrintedRows, theirs: PrintedRows) -> PrintedRows:
    """Take over a tenth that nsys before 2025 rounded up where the exact value is below the tie."""
    left, right = Counter(ours), Counter(theirs)
    ours_only, theirs_only = (
        sorted(d.elements(), key=_whole) for d in (left - right, right - left)
    )
    alike = {
        row: other
        for row, other in zip(ours_only, theirs_only, strict=False)
        if all(a == b or _next_tenth(a, b) for a, b in zip(row, other, strict=True))
    }
    return [alike.get(row, row) for row in ours]


def _whole(row: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(re.sub(r"\.\d$", "", cell) for cell in row)


def _next_tenth(ours: str, theirs: str) -> bool:
    tenths = re.fullmatch(r"\d+\.\d", ours) and re.fullmatch(r"\d+\.\d", theirs)
    return bool(tenths) and Decimal(theirs) - Decimal(ours) == Decimal("0.1")


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
    calls = opened(capture).table("api_calls", ["process", "correlation"]).drop_nulls()
    return bool(calls.is_duplicated().any())


def newest_form(report: str, header: list[str], rows: PrintedRows) -> PrintedRows:
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
        rounded = round_ties_alike(newest_form(base, header, rows), theirs)
        assert_same(base, header, rounded, theirs)
