"""The ledger's track against the ledger, and where within a pause each cause lies."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from gpusight.analysis.ledger import accounting
from gpusight.analysis.ledger.ledger_report import LedgerReport, ledger_report
from gpusight.analysis.steps.step_window import step_spans
from gpusight.viewer import ledger_track
from gpusight.viewer.ledger_track import LedgerLine, ledger_lines
from gpusight.viewer.level_of_detail import EventLine
from gpusight.viewer.track_style import COLORS
from tests.shared import DATA, opened
from tests.traces import build_trace

if TYPE_CHECKING:
    from pathlib import Path

    from gpusight.trace.trace import Trace

CAPTURES = [
    DATA / name
    for name in (
        "dataload.sqlite",
        "gpt_tiny_osrt.sqlite",
        "resnet18_infer.sqlite",
        "torch_odd.json.gz",
        "healthy.json.gz",
    )
]

US = 1_000


def sums(line: LedgerLine, start_ns: int, end_ns: int) -> dict[str, int]:
    ns, _ = EventLine.of(line.start_ns, line.end_ns, line.color).sums(start_ns, end_ns)
    return {COLORS[code]: int(ns[code]) for code in np.flatnonzero(ns)}


def entries_of(line: LedgerLine) -> list[tuple[int, int, str]]:
    rows = zip(line.start_ns.tolist(), line.end_ns.tolist(), line.color.tolist(), strict=True)
    return [(start, end, COLORS[code]) for start, end, code in rows]


def report_of(trace: Trace) -> LedgerReport:
    report = ledger_report(trace)
    assert isinstance(report, LedgerReport)
    return report


@pytest.mark.parametrize("path", CAPTURES, ids=lambda path: path.name)
def test_sums_up_to_the_ledger_and_its_steps(path: Path) -> None:
    trace = opened(path)
    report, lines = report_of(trace), ledger_lines(trace)
    for device in report.devices:
        line = lines[device.ledger.device]
        whole = sums(line, report.ledger.start_ns, report.ledger.end_ns)
        assert whole == {entry.entry: entry.ns for entry in device.ledger.entries}
        steps = device.steps.steps
        spans = zip(*step_spans(trace, steps), strict=True) if steps else ()
        for number, (begun, done) in enumerate(spans):
            ledger = dict(zip(device.steps.entries, device.steps.ns[number].tolist(), strict=True))
            inside = sums(line, int(begun), int(done))
            assert inside == {entry: ns for entry, ns in ledger.items() if ns}


@pytest.mark.parametrize("path", CAPTURES[:2], ids=lambda path: path.name)
def test_windows_sum_up_to_the_whole(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = ledger_lines(opened(path))[0]
    monkeypatch.setattr(accounting, "MAX_AT_ONCE", 300)
    monkeypatch.setattr(accounting, "IN_A_STRETCH", 200)
    monkeypatch.setattr(accounting, "MARGIN", 200)
    trace = opened(path)
    assert len(list(ledger_track._stretches(trace))) > 3
    cut = ledger_lines(trace)[0]
    start, end = int(whole.start_ns[0]), int(whole.end_ns[-1])
    before, after = sums(whole, start, end), sums(cut, start, end)
    assert (cut.start_ns[0], cut.end_ns[-1]) == (start, end)
    busy = {entry: ns for entry, ns in before.items() if not entry.startswith("idle/")}
    assert busy == {entry: ns for entry, ns in after.items() if not entry.startswith("idle/")}
    moved = sum(abs(before.get(entry, 0) - after.get(entry, 0)) for entry in before | after)
    assert moved / 2 < 0.001 * (end - start)


def test_causes_lie_where_the_host_spent_them() -> None:
    trace = build_trace(
        kernels=[
            {"start_ns": 10 * US, "end_ns": 20 * US, "name": "sgemm", "correlation": 1},
            {"start_ns": 98 * US, "end_ns": 110 * US, "name": "sgemm", "correlation": 2},
            {"start_ns": 110 * US, "end_ns": 130 * US, "name": "sgemm", "correlation": 3},
        ],
        api_calls=[
            {"start_ns": 0, "end_ns": 8 * US, "correlation": 1},
            {"start_ns": 15 * US, "end_ns": 40 * US, "name": "cudaStreamSynchronize"},
            {"start_ns": 50 * US, "end_ns": 70 * US, "name": "cudaMalloc"},
            {"start_ns": 90 * US, "end_ns": 96 * US, "correlation": 2},
            {"start_ns": 100 * US, "end_ns": 106 * US, "correlation": 3},
        ],
    )
    assert entries_of(ledger_lines(trace)[0]) == [
        (0, 10 * US, "idle/launching"),
        (10 * US, 20 * US, "compute/matmul"),
        (20 * US, 40 * US, "idle/synchronizing"),
        (40 * US, 50 * US, "idle/framework"),
        (50 * US, 70 * US, "idle/allocating"),
        (70 * US, 90 * US, "idle/framework"),
        (90 * US, 98 * US, "idle/launching"),
        (98 * US, 130 * US, "compute/matmul"),
    ]


def test_without_calls_a_pause_is_unknown() -> None:
    kernels = [{"start_ns": at, "end_ns": at + 10, "name": "sgemm"} for at in (0, 50)]
    assert entries_of(ledger_lines(build_trace(kernels=kernels))[0]) == [
        (0, 10, "compute/matmul"),
        (10, 50, "idle/unknown"),
        (50, 60, "compute/matmul"),
    ]


def test_each_gpu_has_a_line_from_the_first_activity_to_the_last() -> None:
    copies = [{"start_ns": 70, "end_ns": 80, "device": 5}]
    kernels = [{"start_ns": 0, "end_ns": 10, "device": 2, "name": "sgemm"}]
    lines = ledger_lines(build_trace(kernels=kernels, copies=copies))
    assert {device: entries_of(line) for device, line in lines.items()} == {
        2: [(0, 10, "compute/matmul"), (10, 80, "idle/unknown")],
        5: [(0, 70, "idle/unknown"), (70, 80, "copy/h2d")],
    }


@pytest.mark.parametrize(
    "kernels", [[], [{"start_ns": 7, "end_ns": 7, "name": "sgemm"}]], ids=["none", "an instant"]
)
def test_without_gpu_time_there_is_no_line(kernels: list[dict[str, object]]) -> None:
    assert ledger_lines(build_trace(kernels=kernels)) == {}
