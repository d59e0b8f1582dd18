"""The one-screen summary."""

from __future__ import annotations

from typing import Any

import pytest

from gpusight.analysis.capture_summary import summary
from gpusight.analysis.gpu_time import RECORDED_OVERHEAD, gpu_time
from gpusight.analysis.selection import Selection
from gpusight.readers.nsys.nsys_source import NsysSource
from gpusight.readers.open import open_trace
from gpusight.results import Composite, NotApplicable, TableResult
from tests.shared import DATA, EVERY_SQLITE, name, opened
from tests.traces import Rows, build_trace

KERNELS: Rows = [
    {"start_ns": 10, "end_ns": 50, "name": "sgemm_128", "correlation": 1},
    {"start_ns": 50, "end_ns": 60, "name": "softmax_warp_forward", "correlation": 2},
]
CALLS: Rows = [
    {"start_ns": 0, "end_ns": 20, "correlation": 1},
    {"start_ns": 20, "end_ns": 25, "correlation": 2},
]


def facts(result: Composite) -> dict[str, object]:
    return {fact.key: fact.value for fact in result.facts}


def test_facts() -> None:
    trace = build_trace({"duration_ns": 500}, kernels=KERNELS, api_calls=CALLS, devices=[{}])
    values = facts(summary(trace))
    assert values == {
        "gpus": "NVIDIA H200",
        "duration_ns": 500,
        "window_ns": 60,
        "gpu_busy_share": 50 / 60,
        "gpu_copy_only_share": 0.0,
        "gpu_idle_share": 10 / 60,
        "kernels": 2,
        "kernel_ns": 50,
        "kernels_per_s": pytest.approx(2e9 / 60),
        "api_share": 25 / 60,
    }


def test_sections_come_in_order_and_empty_ones_stay_out() -> None:
    sections = summary(build_trace(kernels=KERNELS, api_calls=CALLS)).sections
    assert [s.command for s in sections] == ["categories", "kernels", "ranges", "api"]
    categories = sections[0]
    assert isinstance(categories, TableResult)
    assert [(r["category"], r["total_ns"], r["share"]) for r in categories.rows()] == [
        ("matmul", 40, 0.8),
        ("softmax", 10, 0.2),
    ]
    assert isinstance(sections[2], NotApplicable)


def test_long_tables_are_cut_and_say_so() -> None:
    many: Rows = [{"start_ns": i, "end_ns": i + 1, "name": f"k{i}"} for i in range(30)]
    kernels = summary(build_trace(kernels=many)).sections[1]
    assert isinstance(kernels, TableResult)
    assert kernels.frame.height == 6
    assert kernels.title == "Kernels by GPU time: top 6 of 30"


def test_several_gpus_are_shown_one_by_one() -> None:
    both: Rows = [{**KERNELS[0], "device": 0}, {**KERNELS[1], "device": 1}]
    result = summary(build_trace(kernels=both, devices=[{}, {}]))
    assert facts(result)["gpus"] == "2 × NVIDIA H200"
    assert result.sections[0].command == "gpu_time"
    assert next(f.label for f in result.facts if f.key == "gpu_busy_share") == "GPU busy"


def test_each_gpu_has_its_own_time_and_streams() -> None:
    kernels: Rows = [
        {"start_ns": 0, "end_ns": 40, "name": "k", "device": 0, "stream": 7},
        {"start_ns": 20, "end_ns": 60, "name": "k", "device": 0, "stream": 8},
        {"start_ns": 90, "end_ns": 100, "name": "k", "device": 3, "stream": 7},
    ]
    copies: Rows = [{"start_ns": 50, "end_ns": 70, "device": 5, "stream": 9}]
    result = gpu_time(build_trace(kernels=kernels, copies=copies))
    assert isinstance(result, TableResult)
    columns = ("device", "busy_ns", "copy_only_ns", "idle_ns", "kernel_ns", "streams")
    assert [tuple(row[c] for c in columns) for row in result.rows()] == [
        (0, 60, 0, 40, 80, 2),
        (3, 10, 0, 90, 10, 1),
        (5, 20, 20, 80, 0, 1),
    ]


def test_the_file_is_asked_once_whether_it_has_a_table(monkeypatch: pytest.MonkeyPatch) -> None:
    lookups: list[str] = []
    has = NsysSource.has

    def counted(self: NsysSource, table: str) -> bool:
        lookups.append(table)
        return has(self, table)

    monkeypatch.setattr(NsysSource, "has", counted)
    trace = open_trace(DATA / "dataload.sqlite", cache=False)
    assert [trace.has("kernels"), trace.has("kernels", "stream"), trace.has("cpu_ops")] == [
        True,
        True,
        False,
    ]
    assert lookups == ["kernels", "cpu_ops"]


def test_notes_say_what_is_incomplete() -> None:
    trace = build_trace(
        {"notes": ("something was not decoded",)},
        kernels=KERNELS,
        graph_launches=[{}],
        diagnostics=[
            {"severity": "warning", "text": "Not all CUDA events might have been collected."},
            {"severity": "warning", "text": "cuDNN is not here"},
        ],
    )
    notes = summary(trace).notes
    assert "1 CUDA graph launch was traced per graph" in notes[0]
    assert notes[1:] == (
        "profiler warning: Not all CUDA events might have been collected.",
        "something was not decoded",
    )


def test_no_gpu_work_at_all() -> None:
    result = summary(build_trace(api_calls=CALLS, devices=[{}]))
    assert "the capture shows no GPU work" in result.notes
    assert isinstance(result.sections[0], NotApplicable)
    assert "kernels" not in facts(result)


def test_a_range_on_its_own() -> None:
    result = summary(opened(DATA / "dataload.sqlite"), Selection(within="data"))
    assert "the capture shows no GPU work in the selection" in result.notes


@pytest.mark.parametrize("path", EVERY_SQLITE, ids=name)
def test_every_capture_has_a_summary_whose_shares_add_up(path: object) -> None:
    values = facts(summary(opened(path)))  # type: ignore[arg-type]
    parts = [values.get(f"gpu_{part}_share") for part in ("busy", "other", "idle")]
    known = [share for share in parts if isinstance(share, float)]
    assert not known or sum(known) == pytest.approx(1)
    copies, busy = values.get("gpu_copy_only_share"), values.get("gpu_busy_share")
    assert not (isinstance(copies, float) and isinstance(busy, float)) or copies <= busy


# The profiler's own work --------------------------------------------------------------------------

WORK: Rows = [
    {"start_ns": 0, "end_ns": 100, "name": "gemm"},
    {"start_ns": 500, "end_ns": 1000, "name": "gemm"},
]


def overhead(*spans: tuple[int, int], **more: Any) -> Rows:
    return [{"start_ns": a, "end_ns": b, "name": "Buffer Request", **more} for a, b in spans]


@pytest.mark.parametrize(
    ("spans", "took"),
    [
        ([(100, 300)], "200 ns"),
        ([(50, 300)], "200 ns"),  # half of it ran beside a kernel
        ([(100, 250), (200, 300)], "200 ns"),  # two threads at once
        ([(100, 150), (450, 700), (990, 5000)], "100 ns"),  # outside the window too
    ],
)
def test_the_profilers_own_time_is_told_from_idle_time(
    spans: list[tuple[int, int]], took: str
) -> None:
    (note,) = summary(build_trace(kernels=WORK, overheads=overhead(*spans))).notes
    assert note == f"{RECORDED_OVERHEAD}: {took} of the GPU's idle time"


@pytest.mark.parametrize("span", [(100, 110), (0, 100), (600, 900), (1000, 9000)])
def test_a_profiler_that_cost_next_to_nothing_is_not_mentioned(span: tuple[int, int]) -> None:
    assert summary(build_trace(kernels=WORK, overheads=overhead(span))).notes == ()


def test_the_profilers_time_is_that_of_the_busiest_gpu() -> None:
    times = ((90, 200), (400, 500))
    other: Rows = [{"start_ns": a, "end_ns": b, "name": "gemm", "device": 1} for a, b in times]
    trace = build_trace(kernels=[*WORK, *other], overheads=overhead((100, 300)))
    (note,) = summary(trace).notes
    assert note.endswith("200 ns of GPU 0's idle time")
    (note,) = summary(trace, Selection(device=1)).notes
    assert note.startswith(f"{RECORDED_OVERHEAD}: 100 ns of the GPU's idle time")


def test_only_overhead_inside_the_selected_range_counts() -> None:
    trace = build_trace(
        kernels=[{**row, "correlation": n} for n, row in enumerate(WORK, 1)],
        api_calls=[{"start_ns": 0, "correlation": 1}, {"start_ns": 400, "correlation": 2}],
        ranges=[{"start_ns": 200, "end_ns": 1000, "name": "second"}],
        overheads=overhead((100, 300)),
    )
    notes = summary(trace, Selection(within="second")).notes
    assert any("100 ns of the GPU's idle" in note for note in notes)


def test_only_the_selected_process_is_blamed() -> None:
    trace = build_trace(
        kernels=WORK,
        processes=[{"process": 1, "pid": 1}, {"process": 2, "pid": 2}],
        overheads=overhead((100, 300), process=2),
    )
    assert "profiler overhead" in " ".join(summary(trace).notes)
    assert summary(trace, Selection(process="1")).notes == ()


def test_a_recorded_trace_says_what_the_profiler_cost() -> None:
    notes = summary(opened(DATA / "healthy.json.gz")).notes
    assert f"{RECORDED_OVERHEAD}: 2.753 ms of the GPU's idle time" in notes


# Operators and totals -----------------------------------------------------------------------------

OPERATORS: Rows = [
    {"start_ns": i, "end_ns": i + 1 + i % 3, "name": f"aten::op{i}", "op": i} for i in range(20)
]


def test_a_trace_without_gpu_work_starts_with_its_operators() -> None:
    result = summary(build_trace({"source": "torch-chrome"}, cpu_ops=OPERATORS))
    assert [s.command for s in result.sections] == ["ops", "kernels", "ranges"]
    operators, absent, _ = result.sections
    assert isinstance(operators, TableResult)
    assert operators.frame.height == 6
    assert operators.title.endswith(": top 6 of 20")
    assert isinstance(absent, NotApplicable)
    assert facts(result)["window_ns"] == 21


def test_operators_come_after_the_kernels_they_launched() -> None:
    result = summary(build_trace(kernels=KERNELS, api_calls=CALLS, cpu_ops=OPERATORS))
    commands = [s.command for s in result.sections]
    assert commands == ["categories", "kernels", "ops", "ranges", "api"]


def test_totals_are_summed_up_without_a_timeline() -> None:
    totals: Rows = [
        {"name": "aten::mm", "side": "host", "calls": 2, "self_cpu_ns": 5, "cpu_ns": 5},
        {"name": "sgemm_128", "side": "gpu", "calls": 2, "self_gpu_ns": 8, "gpu_ns": 8},
    ]
    result = summary(build_trace({"source": "torch-key-averages"}, op_totals=totals))
    assert facts(result) == {"kernels": 2, "kernel_ns": 8}
    assert [s.command for s in result.sections] == ["categories", "kernels", "ops", "ranges"]
    assert "printed totals do not show how busy the GPU is" in result.notes


def test_calls_are_called_after_the_tool() -> None:
    captured = {"kernels": KERNELS, "api_calls": CALLS}
    labels = [
        next(f.label for f in summary(build_trace(meta, **captured)).facts if f.key == "api_share")
        for meta in (None, {"source": "torch-chrome"})
    ]
    assert labels == ["In CUDA calls", "In API calls"]
