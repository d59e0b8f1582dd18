"""Native reports of Nsight Compute: every value of ncu's own export, and files that are broken."""

from __future__ import annotations

import contextlib
import csv
import errno
import gzip
import io
import lzma
import math
import re
import struct
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import gpusight as gs
from gpusight.errors import CaptureError, DamagedCaptureError, GpusightError, NotACaptureError
from gpusight.naming.metric_names import scale_of
from gpusight.readers.file_blocks import zstd_module
from gpusight.readers.ncu.report_messages import readable
from gpusight.trace.trace import Trace
from tests.readers.jax.xspaces import block
from tests.readers.ncu import ncu_reports as ncu
from tests.readers.ncu.ncu_reports import Parts, Single, launch, report, whole
from tests.shared import EVERY_NCU_REPORT, NCU_WITH_RAW_CSV, SHARED, name, needs_shared, tool

_NUMBER = re.compile(r"\s*(-?[\d,]*\.?\d+(?:e[+-]?\d+)?|-?nan|-?inf)(?:\s*\(.*\))?", re.DOTALL)
_NOTHING = frozenset({"", "no data", "n/a"})


def opened(tmp_path: Path, data: bytes, name: str = "x.ncu-rep") -> Trace:
    path = tmp_path / name
    path.write_bytes(data)
    return gs.open(path, cache=False)


def counters(trace: Trace) -> dict[tuple[int, str], Any]:
    rows = trace.table("counters", ["launch", "metric", "value", "text"]).iter_rows()
    return {
        (number, metric): value if text is None else text for number, metric, value, text in rows
    }


# What is in a report -----------------------------------------------------------------------------


def test_values_of_every_type(tmp_path: Path) -> None:
    metrics = {
        "whole": 3,
        "large": (1 << 63) + 4096,
        "real": 2.5,
        "single": Single(0.5),
        "text": "all",
        "zero": 0,
        "nothing": None,
    }
    trace = opened(tmp_path, report(launch("k", metrics)))
    assert counters(trace) == {
        (0, "whole"): 3.0,
        (0, "large"): float((1 << 63) + 4096),
        (0, "real"): 2.5,
        (0, "single"): 0.5,
        (0, "text"): "all",
        (0, "zero"): 0.0,
        (0, "nothing"): None,
    }
    trace.validate()


def test_names_of_metrics_are_numbered_through_all_blocks(tmp_path: Path) -> None:
    trace = opened(tmp_path, report(launch("a", {"x": 1, "y": 2}), launch("b", {"z": 3, "y": 4})))
    assert counters(trace) == {(0, "x"): 1, (0, "y"): 2, (1, "z"): 3, (1, "y"): 4}


def test_launches_are_numbered_process_by_process_as_the_profiler_prints_them(
    tmp_path: Path,
) -> None:
    taking_turns = [
        launch(name, {"x": Parts(at, {16 * at: at})}, process=(pid, "/opt/demo/program"))
        for at, (name, pid) in enumerate((("a", 29), ("b", 28), ("c", 29), ("d", 28)))
    ]
    trace = opened(tmp_path, report(*taking_turns))
    shown = trace.table("profiles", ["launch", "name", "process"])
    assert shown.rows() == [(0, "b", 28), (1, "d", 28), (2, "a", 29), (3, "c", 29)]
    assert counters(trace) == {(0, "x"): 1, (1, "x"): 3, (2, "x"): 0, (3, "x"): 2}
    parts = trace.table("counter_instances", ["launch", "instance", "value"])
    assert parts.rows() == [(0, 16, 1), (1, 48, 3), (2, 0, 0), (3, 32, 2)]


def test_parts_of_counters_are_read_when_asked_for(tmp_path: Path) -> None:
    metrics = {"a": Parts(7, {0x1000: 3, 0x1010: 4}), "b": 1, "c": Parts(None, {"fma": 0.25})}
    trace = opened(tmp_path, report(launch("k", metrics)))
    assert trace.has("counter_instances")
    rows = trace.table("counter_instances").rows()
    assert rows == [
        (0, "a", 0x1000, None, 3.0, None),
        (0, "a", 0x1010, None, 4.0, None),
        (0, "c", None, "fma", 0.25, None),
    ]
    assert trace.table("counters", ["instances"]).to_series().to_list() == [2, None, 1]
    assert not opened(tmp_path, report(launch("k", {"a": 1}))).has("counter_instances")


def test_a_launch_is_described(tmp_path: Path) -> None:
    metrics = {
        "gpu__time_duration.sum": 1500.0,
        "launch__device_id": 1,
        "device__attribute_compute_capability_major": 8,
        "device__attribute_compute_capability_minor": 6,
        "device__attribute_display_name": "NVIDIA RTX A6000",
        "device__attribute_multiprocessor_count": 84,
        "device__attribute_memory_clock_rate": 8_001_000,
        "device__attribute_global_memory_bus_width": 384,
    }
    encoded = launch(
        "gemm",
        metrics,
        mangled="_Z4gemmPf",
        demangled="gemm(float *)",
        grid=(4, 2, 1),
        threads=(64, 1, 1),
        extra=whole(22, 1) + whole(23, 13),
        process=(41, "C:\\Users\\someone\\bin\\train.exe\0"),
    )
    trace = opened(tmp_path, report(encoded))
    (row,) = trace.profiles.to_dicts()
    assert row | {"address": None} == {
        "launch": 0, "kind": "kernel", "name": "gemm(float *)", "base_name": "gemm",
        "mangled_name": "_Z4gemmPf", "device": 1, "context": 1, "stream": 13, "process": 41,
        "thread": 99, "grid_x": 4, "grid_y": 2, "grid_z": 1, "block_x": 64, "block_y": 1,
        "block_z": 1, "duration_ns": 1500.0, "compute_major": 8, "compute_minor": 6,
        "ranges": None, "binary": None, "address": None,
    }  # fmt: skip
    (gpu,) = trace.devices.to_dicts()
    assert (gpu["device"], gpu["name"], gpu["sm_count"]) == (1, "NVIDIA RTX A6000", 84)
    assert gpu["memory_bandwidth"] == 768_096_000_000
    assert trace.processes.select("pid", "name").rows() == [(41, "train.exe")]


@pytest.mark.parametrize(
    ("names", "shown"),
    [
        ({"name": "gemm"}, "gemm"),
        ({"name": "gemm", "demangled": "ns::gemm(int)"}, "ns::gemm(int)"),
        ({"mangled": "_Z4gemmPf"}, "gemm(float*)"),
        ({}, "[no name]"),
    ],
)
def test_the_best_name_there_is(tmp_path: Path, names: dict[str, Any], shown: str) -> None:
    assert opened(tmp_path, report(launch(**names))).profiles["name"].to_list() == [shown]


@pytest.mark.parametrize(
    ("grid", "blocks", "expected"),
    [
        ((640, 320, 1), 200, (20, 10, 1)),
        ((20, 10, 1), 200, (20, 10, 1)),
        ((7, 5, 1), 99, (7, 5, 1)),
    ],
)
def test_grids_of_old_reports_are_in_threads(
    tmp_path: Path, grid: tuple[int, int, int], blocks: int, expected: tuple[int, int, int]
) -> None:
    encoded = launch("k", {"launch__grid_size": blocks}, grid=grid, threads=(32, 32, 1))
    assert (
        opened(tmp_path, report(encoded)).profiles.select("grid_x", "grid_y", "grid_z").row(0)
        == expected
    )


@pytest.mark.parametrize(
    ("kind", "shown"),
    [(ncu.RANGE, "range"), (ncu.COMMAND_LIST, "command list"), (ncu.GRAPH, "graph")],
)
def test_other_results_than_kernels(tmp_path: Path, kind: int, shown: str) -> None:
    trace = opened(tmp_path, report(launch(metrics={"x": 5}, kind=kind), launch("k", {"x": 6})))
    assert trace.profiles.select("kind", "name").rows() == [(shown, f"({shown})"), ("kernel", "k")]
    assert counters(trace) == {(0, "x"): 5, (1, "x"): 6}


def test_nvtx_ranges_of_the_launching_thread(tmp_path: Path) -> None:
    domains = block(1, whole(1, 0) + ncu.text(2, "<default domain>"))
    domains += block(1, whole(1, 5) + ncu.text(2, "mine"))
    stack = block(
        2, whole(1, 0) + block(3, ncu.text(1, "step_1")) + block(3, ncu.text(1, "forward"))
    )
    other = block(2, whole(1, 5) + block(3, ncu.text(1, "phase")))
    threads = block(2, whole(1, 99) + stack + other)
    threads += block(2, whole(1, 1) + block(2, whole(1, 0) + block(3, ncu.text(1, "not here"))))
    crossing = block(3, whole(1, 5) + block(3, whole(1, 1) + ncu.text(2, "epoch")))
    state = block(21, domains + threads + crossing)
    trace = opened(tmp_path, report(launch("k", extra=state)))
    assert trace.profiles["ranges"].to_list() == ["step_1/forward; mine:phase; mine:epoch"]


def test_what_the_profilers_own_rules_said(tmp_path: Path) -> None:
    message = "Look at the @section:Memory:Memory Workload@ and @url:the guide:https://x.y/z@."
    extra = ncu.rule("SOLBottleneck", message, speedup=(2, 31.5)) + ncu.rule(
        "Other", "Fine.", kind=1
    )
    trace = opened(tmp_path, report(launch("k", extra=extra)))
    assert trace.rule_results.drop("title").rows() == [
        (0, "SOLBottleneck", "Section", "optimization",
         "Look at the Memory Workload and the guide.", "global", 31.5),
        (0, "Other", "Section", "ok", "Fine.", None, None),
    ]  # fmt: skip
    began = time.process_time()
    hostile = "@section" + ":" * 200_000
    assert readable(hostile) == hostile
    assert time.process_time() - began < 2


def test_no_host_name_command_line_or_environment_is_read(tmp_path: Path) -> None:
    secret = "hunter2-host"
    system = ncu.text(1, "Linux") + ncu.text(3, "A CPU\nflags: many") + ncu.text(5, secret)
    settings = ncu.text(1, secret) + ncu.text(4, f"TOKEN={secret}")
    session = block(4, system) + block(9, settings) + ncu.text(11, f"ncu {secret}")
    session += block(8, ncu.text(1, "Nsight Compute Target") + ncu.text(2, "2025.1.0.0 (build 1)"))
    trace = opened(tmp_path, report(launch("k", {"x": 1}), session=session))
    assert (trace.meta.tool_version, trace.meta.os, trace.meta.cpu) == (
        "2025.1.0.0",
        "Linux",
        "A CPU",
    )
    everything = repr(trace.meta) + "".join(
        repr(trace.table(t).to_dicts()) for t in ("profiles", "counters", "processes", "devices")
    )
    assert secret not in everything


@pytest.mark.parametrize("field", [4, 5], ids=["32 bits", "64 bits"])
def test_attributes_of_the_session_may_be_zero(tmp_path: Path, field: int) -> None:
    minor = ncu.text(1, "device__attribute_compute_capability_minor")
    gpu = ncu.text(2, "NVIDIA H200") + block(3, minor + block(2, whole(field, 0)))
    trace = opened(tmp_path, report(launch("k", {"x": 1}), session=block(6, whole(1, 0) + gpu)))
    assert trace.devices.select("name", "compute_minor").rows() == [("NVIDIA H200", 0)]


def test_source_files_come_without_homes(tmp_path: Path) -> None:
    file = ncu.text(1, "/home/someone/src/kernels.cu") + ncu.text(2, "__global__ …")
    source = whole(1, 5) + whole(6, 8 << 16 | 9) + block(8, block(1, file))
    encoded = launch("k", {"x": 1}, extra=block(15, whole(1, 5)))
    trace = opened(tmp_path, report(encoded, sources=(source,)))
    assert trace.source_files.rows() == [(0, "src/kernels.cu", "__global__ …")]
    assert trace.profiles.select("binary", "compute_major", "compute_minor").row(0) == (0, 8, 9)


def test_a_binary_whose_lines_cannot_be_read_is_said(tmp_path: Path) -> None:
    source = whole(1, 5) + block(4, b"\x7fELF\x02\x01" + b"\xff" * 90)
    trace = opened(tmp_path, report(launch("k", {"x": 1}), sources=(source,)))
    assert not trace.has("code_lines")
    (diagnostic,) = trace.diagnostics["text"].to_list()
    assert diagnostic.startswith("source lines of a binary cannot be read")


# Packed, cut and hostile -------------------------------------------------------------------------

WHOLE = report(launch("a", {"x": 1}), launch("b", {"x": 2, "y": 3}), launch("c", {"x": 4}))


@pytest.mark.parametrize(
    "packed",
    [zstd_module().compress(WHOLE), lzma.compress(WHOLE), gzip.compress(WHOLE)],
    ids=["zstandard", "xz", "gzip"],
)
def test_packed_reports(tmp_path: Path, packed: bytes) -> None:
    trace = opened(tmp_path, packed, "x.ncu-repz")
    assert counters(trace) == counters(opened(tmp_path, WHOLE))
    assert trace.meta.warnings == ()


def test_a_cut_report_gives_what_is_whole_and_says_so(tmp_path: Path) -> None:
    trace = opened(tmp_path, WHOLE[:-3])
    assert trace.profiles["name"].to_list() == ["a", "b"]
    (warning,) = trace.meta.warnings
    assert "cut off" in warning
    assert "2 launches" in warning


@pytest.mark.parametrize("end", range(1, len(WHOLE)))
def test_reports_cut_anywhere_are_read_or_refused(tmp_path: Path, end: int) -> None:
    try:
        trace = opened(tmp_path, WHOLE[:end])
    except CaptureError:
        return
    trace.validate()
    assert trace.meta.warnings or trace.row_count("profiles") in (0, 1, 2)


@pytest.mark.parametrize("at", range(4, len(WHOLE)))
def test_reports_with_a_wrong_byte_are_read_or_refused(tmp_path: Path, at: int) -> None:
    wrong = (0x00, 0xFF, WHOLE[at] ^ 0x08)[at % 3]
    with contextlib.suppress(GpusightError):
        opened(tmp_path, WHOLE[:at] + bytes([wrong]) + WHOLE[at + 1 :]).validate()


def test_a_packed_report_cut_short(tmp_path: Path) -> None:
    packed = lzma.compress(WHOLE * 1)
    with pytest.raises(CaptureError):
        opened(tmp_path, packed[: len(packed) // 2])


def _looping() -> bytes:
    """Give a block whose length leads back to its own beginning, 15 bytes before its end."""
    header = whole(5, (1 << 64) - 15)
    assert len(header) + 4 == 15
    return struct.pack("<I", len(header)) + header


@pytest.mark.parametrize("tail", [bytes(50_000_000), _looping()], ids=["zeros", "loop"])
def test_what_is_no_block_ends_a_report(tmp_path: Path, tail: bytes) -> None:
    began = time.process_time()
    trace = opened(tmp_path, report(launch("k", {"x": 1})) + tail)
    assert trace.row_count("profiles") == 1
    (warning,) = trace.meta.warnings
    assert warning == (
        "the report is damaged: it has data that is not a block; whole before that: one launch"
    )
    assert time.process_time() - began < 5


def test_messages_of_no_length_end_a_report(tmp_path: Path) -> None:
    header = whole(2, 1 << 40) + whole(5, 4_000_000)
    many = struct.pack("<I", len(header)) + header + bytes(4_000_000)
    trace = opened(tmp_path, report(launch("k", {"x": 1})) + many)
    assert trace.row_count("profiles") == 1


def test_a_small_file_that_grows_without_end_is_refused(tmp_path: Path) -> None:
    bomb = lzma.compress(report(launch("k", {"x": 1})) + bytes(300 << 20), preset=0)
    assert len(bomb) < 100_000
    with pytest.raises(DamagedCaptureError, match="it expands more than 200 times"):
        opened(tmp_path, bomb, "x.ncu-rep.xz")


def test_packed_files_that_hold_something_else(tmp_path: Path) -> None:
    with pytest.raises(NotACaptureError, match="Zstandard"):
        opened(tmp_path, zstd_module().compress(b"hello"), "x.zst")


def test_a_report_without_launches_has_no_tables(tmp_path: Path) -> None:
    trace = opened(tmp_path, report())
    assert not trace.has("profiles")
    assert not trace.has("counters")


@pytest.mark.parametrize("ns", [0.0, -5.0, float("nan"), float("inf"), 1e300])
def test_a_duration_that_cannot_be_is_not_known(tmp_path: Path, ns: float) -> None:
    trace = opened(tmp_path, report(launch("k", {"gpu__time_duration.sum": ns})))
    assert trace.profiles.get_column("duration_ns").to_list() == [None]


def test_attributes_that_no_column_can_hold_are_not_known(tmp_path: Path) -> None:
    metrics = {
        "gpu__time_duration.sum": 5.0,
        "device__attribute_multiprocessor_count": 1e300,
        "device__attribute_total_memory": float("inf"),
        "device__attribute_l2_cache_size": 4096,
        "device__attribute_memory_clock_rate": 1 << 60,
        "device__attribute_global_memory_bus_width": 1 << 60,
    }
    device = opened(tmp_path, report(launch("k", metrics))).devices.row(0, named=True)
    assert (device["sm_count"], device["memory_bytes"], device["l2_bytes"]) == (None, None, 4096)
    assert device["memory_bandwidth"] is None


def test_impossible_durations_are_counted(tmp_path: Path) -> None:
    durations = [5.0, 0.0, -1.0, 1e300]
    launches = [launch("k", {"gpu__time_duration.sum": value}) for value in durations]
    trace = opened(tmp_path, report(*launches))
    assert trace.profiles["duration_ns"].to_list() == [5.0, None, None, None]
    assert [text for text in trace.warnings if "durations" in text and text.endswith(": 3")]


def test_a_damaged_counter_is_said_in_one_line(tmp_path: Path) -> None:
    broken = block(13, b"\x08\x00\x12\x7f")
    trace = opened(tmp_path, report(launch("k", {"x": 1}, extra=broken)))
    with pytest.raises(DamagedCaptureError, match="ncu --import"):
        trace.table("counters", ["value"])


# Real reports ------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", EVERY_NCU_REPORT, ids=name)
def test_real_reports_fit_the_schema(path: Path) -> None:
    trace = gs.open(path, cache=False)
    trace.validate()
    assert trace.has("profiles")
    assert trace.meta.warnings == ()
    assert trace.table("devices", ["name"])["name"].null_count() == 0


@needs_shared
@pytest.mark.parametrize("path", NCU_WITH_RAW_CSV, ids=name)
def test_every_value_that_ncu_prints_itself(path: Path) -> None:
    """Compare with `ncu --page raw --csv`, to the digits printed there."""
    raw = path.with_name(path.name.replace(".ncu-rep", ".raw.csv"))
    assert compared(path, lzma.decompress(raw.read_bytes()).decode()) > 50_000


@needs_shared
@pytest.mark.oracle
@pytest.mark.parametrize("path", sorted(SHARED.glob("public/ncu/*.ncu-rep")), ids=name)
def test_every_value_that_ncu_prints_of_public_reports(path: Path) -> None:
    ncu_tool = tool("ncu", "nsight-compute/ncu")
    command = [ncu_tool, "--import", str(path), "--page", "raw", "--csv"]
    done = subprocess.run(command, check=True, capture_output=True, timeout=120)
    assert compared(path, done.stdout.decode()) > 200


def compared(path: Path, printed_page: str) -> int:
    """Compare every cell of a raw page with what we read; gives how many there were."""
    heads, units, *rows = csv.reader(io.StringIO(printed_page))
    ours = counters(gs.open(path, cache=False))
    first = heads.index("CC") + 1
    for row in rows:
        for head, unit, printed in list(zip(heads, units, row, strict=True))[first:]:
            value = ours.get((int(row[0]), head))
            assert agrees(value, printed, unit), (row[0], head, value, printed, unit)
    return len(rows) * (len(heads) - first)


def agrees(value: float | str | None, printed: str, unit: str) -> bool:
    """Tell whether a value is what ncu printed, rounded and scaled as ncu does."""
    if value is None:
        return printed in _NOTHING
    if isinstance(value, str):
        return printed == value
    match = _NUMBER.fullmatch(printed)
    assert match is not None, printed
    digits = match[1].replace(",", "")
    if math.isnan(value):
        return "nan" in digits
    decimals = len(digits.partition(".")[2]) if "e" not in digits else 0
    scale, _ = scale_of(unit)
    half = 0.5 * 10.0**-decimals * scale
    return abs(float(digits) * scale - value) <= half * (1 + 1e-6) + 1e-12 * abs(value)


@needs_shared
def test_lines_of_a_kernel_are_those_of_its_source() -> None:
    path = next(p for p in NCU_WITH_RAW_CSV if p.name.startswith("kernels_full"))
    trace = gs.open(path, cache=False)
    files = dict(trace.table("source_files", ["path", "content"]).iter_rows())
    lines = trace.code_lines
    for function, source_path, line in (
        lines.select("function", "path", "line").unique().iter_rows()
    ):
        if source_path.endswith("kernels.cu"):
            text = files[source_path].splitlines()
            start = next(i for i, t in enumerate(text, 1) if f" {kernel_of(function)}(" in t)
            assert start <= line <= start + 12, (function, line)
    for row in trace.profiles.iter_rows(named=True):
        own = lines.filter(lines["function"] == row["mangled_name"])
        assert own["offset"].min() == 0
        assert row["address"] is not None


def kernel_of(mangled: str) -> str:
    match = re.match(r"_Z\d+(\w+?)P", mangled)
    assert match is not None
    return match[1]


@pytest.mark.parametrize("why", ["too large to copy", "no room for a copy"])
def test_a_report_that_cannot_be_copied_is_read_in_place(
    why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    if why == "too large to copy":
        monkeypatch.setattr("gpusight.readers.ncu.ncu_container._MAX_COPIED_BYTES", 0)
    else:
        monkeypatch.setattr("shutil.copyfileobj", full)
    with opened(tmp_path, report(launch("kernel"))) as trace:
        assert trace.table("profiles").height == 1
