"""Memory in use over time: levels, who held the peak, growth, fragmentation."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from gpusight.analysis.memory.device_memory import POINTS, slope
from gpusight.analysis.memory.memory_peak import HELD_BEFORE, NOT_RECORDED, STATIC, UNKNOWN
from gpusight.analysis.memory.memory_usage import memory
from gpusight.analysis.selection import Selection
from gpusight.analysis.steps.step_list import TraceSteps
from gpusight.analysis.steps.step_window import window_steps
from gpusight.errors import DamagedCaptureError, MissingDataError, UsageError
from gpusight.results import Composite, NotApplicable, TableResult
from gpusight.trace.trace import Trace
from gpusight.units import format_time
from tests.shared import DATA, EVERY_REPORT, EVERY_SQLITE, EVERY_TORCH_TRACE, SHARED, name, opened
from tests.traces import Row, Rows, build_trace

TORCH = {"source": "torch-chrome", "tool": "torch.profiler"}
SNAPSHOT = {"source": "torch-snapshot", "tool": "PyTorch memory snapshot"}
CAPTURES = [
    *(path for path in EVERY_TORCH_TRACE if not path.name.startswith("jax")),
    *EVERY_SQLITE,
    *EVERY_REPORT,
    DATA / "memory_snapshot.pickle",
    *sorted(SHARED.glob("torch/*.pickle")),
]


def page(trace: Trace, **selection: Any) -> Composite:
    result = memory(trace, Selection(**selection))
    assert isinstance(result, Composite)
    return result


def facts(result: Composite) -> dict[str, Any]:
    return {fact.key: fact.value for fact in result.facts}


def section(result: Composite, command: str) -> TableResult:
    section = next(s for s in result.sections if s.command == command)
    assert isinstance(section, TableResult), section
    return section


def peak(result: Composite) -> list[tuple[str, int, int | None]]:
    return [(r["holder"], r["bytes"], r["blocks"]) for r in section(result, "peak").rows()]


def event(time_ns: int, size: int, address: int, total: int | None = None, **more: Any) -> Row:
    """One event of a framework's allocator; a negative size gives memory back."""
    operation = "allocation" if size > 0 else "deallocation"
    return {
        "time_ns": time_ns,
        "bytes": abs(size),
        "address": address,
        "operation": operation,
        "allocator": "framework",
        "allocated_bytes": total,
        "reserved_bytes": None if total is None else 1000,
        "thread": 11,
        **more,
    }


# 100 bytes are there from the start, of which 40 (address 9) are freed before the peak.
EVENTS: Rows = [
    event(10, 30, 1, 130),
    event(20, -40, 9, 90),
    event(30, 200, 2, 290),
    event(40, 10, 3, 300),
    event(50, -200, 2, 100),
    event(60, -30, 1, 70),
]


def torch_trace(events: Rows = EVENTS, **tables: Rows) -> Trace:
    return build_trace(TORCH, memory_events=events, **tables)


# Levels -------------------------------------------------------------------------------------------


def test_levels_are_what_the_framework_counted() -> None:
    values = facts(page(torch_trace()))
    assert values["peak_bytes"] == 300
    assert values["peak_ns"] == 40
    assert (values["start_bytes"], values["end_bytes"]) == (100, 70)
    assert (values["reserved_at_peak_bytes"], values["reserved_max_bytes"]) == (1000, 1000)
    assert values["fragmentation_at_peak"] == pytest.approx(0.7)
    assert values["fragmentation_worst"] == pytest.approx(0.93)
    assert values["fragmentation_worst_ns"] == 60
    assert (values["allocations"], values["allocated_total_bytes"]) == (3, 240)
    assert values["growth_per_step_bytes"] is None


def test_every_byte_of_the_peak_has_a_holder() -> None:
    assert peak(page(torch_trace())) == [(UNKNOWN, 240, 3), (HELD_BEFORE, 60, None)]
    shares = [row["share"] for row in section(page(torch_trace()), "peak").rows()]
    assert shares == [0.8, 0.2]


def test_blocks_tell_when_they_were_taken_and_freed() -> None:
    rows = section(page(torch_trace()), "blocks").rows()
    assert [(r["bytes"], r["allocated_ns"], r["freed_ns"], r["address"]) for r in rows] == [
        (200, 30, 50, 2),
        (30, 10, 60, 1),
        (10, 40, None, 3),
    ]


def test_what_the_events_do_not_explain_is_said() -> None:
    lost = [event(10, 30, 1, 130), event(20, 50, 2, 250)]
    result = page(torch_trace(lost))
    assert (NOT_RECORDED, 70, None) in peak(result)
    assert sum(size for _, size, _ in peak(result)) == 250
    assert "cannot be explained" in result.notes[0]


def test_an_address_taken_twice_was_freed_between() -> None:
    again = [event(10, 30, 1, 30), event(20, 40, 1, 40)]
    assert peak(page(torch_trace(again))) == [(UNKNOWN, 40, 1)]


def test_a_trace_without_addresses_has_levels_but_no_holders() -> None:
    old = [{**event(10, -30, 0), "address": None}, {**event(20, 80, 0), "address": None}]
    result = page(torch_trace(old))
    assert facts(result)["peak_bytes"] == 80
    assert facts(result)["start_bytes"] == 30
    held = next(s for s in result.sections if s.command == "peak")
    assert isinstance(held, NotApplicable)
    assert any("no totals" in note for note in result.notes)
    assert section(result, "timeline").frame["held_bytes"].null_count() == 4


def test_two_processes_on_one_gpu_add_up() -> None:
    events = [
        event(10, 30, 1, 130, process=1),
        event(20, 50, 1, 50, process=2),
        event(30, -50, 1, 0, process=2),
    ]
    result = page(torch_trace(events))
    assert facts(result)["peak_bytes"] == 180
    assert sum(size for _, size, _ in peak(result)) == 180


def test_only_the_selected_time_counts() -> None:
    ranges = [{"start_ns": 35, "end_ns": 45, "name": "here"}, {"start_ns": 55, "name": "instant"}]
    result = page(torch_trace(ranges=ranges), within="here")
    values = facts(result)
    assert (values["peak_bytes"], values["start_bytes"], values["end_bytes"]) == (300, 290, 300)
    assert values["allocations"] == 1
    assert result.title.endswith("in here")
    before = page(
        torch_trace(ranges=[{"start_ns": 0, "end_ns": 25, "name": "early"}]), within="early"
    )
    assert facts(before)["peak_bytes"] == 130
    nothing = memory(torch_trace(ranges=ranges), Selection(within="instant"))
    assert isinstance(nothing, NotApplicable)


# Who ----------------------------------------------------------------------------------------------

CODE: dict[str, Rows] = {
    "cpu_ops": [
        {"start_ns": 5, "end_ns": 18, "name": "aten::linear", "op": 1, "sequence": 7},
        {"start_ns": 8, "end_ns": 16, "name": "aten::addmm", "op": 2, "sequence": 7},
        {"start_ns": 9, "end_ns": 12, "name": "aten::empty_strided", "op": 3},
        {
            "start_ns": 28,
            "end_ns": 36,
            "name": "autograd::engine::evaluate_function: AddmmBackward0",
            "op": 4,
            "thread": 12,
            "sequence": 7,
            "forward_thread": 1,
        },
        {"start_ns": 29, "end_ns": 35, "name": "aten::mm", "op": 5, "thread": 12},
    ],
    "python_calls": [
        {"start_ns": 0, "end_ns": 100, "name": "train.py(3): main"},
        {"start_ns": 2, "end_ns": 20, "name": "nn.Module: Linear_4"},
        {"start_ns": 3, "end_ns": 19, "name": "torch/nn/modules/linear.py(130): forward"},
    ],
    "ranges": [
        {"start_ns": 0, "end_ns": 100, "name": "ProfilerStep#3"},
        {"start_ns": 1, "end_ns": 45, "name": "train_12"},
    ],
    "processes": [{"process": 1, "pid": 4242}],
    "threads": [{"thread": 11, "process": 1, "tid": 4242}, {"thread": 12, "process": 1, "tid": 5}],
}


def taken(time_ns: int, thread: int = 11, **left_out: None) -> dict[str, Any]:
    """Say who is named for one block that was taken at this time."""
    tables = {key: rows for key, rows in CODE.items() if key not in left_out}
    events = [event(time_ns, 64, 1, 64, thread=thread)]
    return section(page(torch_trace(events, **tables)), "blocks").rows()[0]


def test_the_operator_is_the_one_that_does_more_than_allocate() -> None:
    block = taken(10)
    assert (block["op"], block["outer_op"]) == ("aten::addmm", "aten::linear")
    assert block["module"] == "Linear_4"
    assert block["site"] == "train.py(3): main"
    assert block["range"] == "train_12"
    assert block["holder"] == "aten::linear › addmm · Linear · train.py(3): main"
    assert block["stack"] == [
        "torch/nn/modules/linear.py(130): forward",
        "nn.Module: Linear_4",
        "train.py(3): main",
    ]


def test_backward_work_belongs_to_the_code_of_the_forward() -> None:
    block = taken(30, thread=12)
    assert (block["outer_op"], block["op"]) == ("AddmmBackward0", "aten::mm")
    assert block["module"] == "Linear_4"
    assert block["site"] == "train.py(3): main"
    assert block["range"] == "train_12"


def test_without_python_the_range_tells_operators_apart() -> None:
    assert taken(10, python_calls=None)["holder"] == "aten::linear › addmm · train"


def test_an_allocation_outside_operators_goes_to_code_or_range() -> None:
    assert taken(40)["holder"] == "train.py(3): main"
    assert taken(40, python_calls=None)["holder"] == "train"


def test_the_stack_of_older_traces_tells_the_code() -> None:
    stack = "torch/nn/functional.py(9): relu;model.py(7): forward;train.py(3): main"
    ops = [{"start_ns": 0, "end_ns": 20, "name": "aten::relu", "op": 1, "stack": stack}]
    result = page(torch_trace([event(10, 64, 1, 64)], cpu_ops=ops))
    assert section(result, "blocks").rows()[0]["site"] == "model.py(7): forward"


def test_blocks_of_several_modules_are_grouped_by_class() -> None:
    calls = [
        {"start_ns": 0, "end_ns": 30, "name": "train.py(3): main"},
        {"start_ns": 1, "end_ns": 15, "name": "nn.Module: Linear_1"},
        {"start_ns": 15, "end_ns": 29, "name": "nn.Module: Linear_2"},
    ]
    events = [event(10, 64, 1, 64), event(20, 32, 2, 96)]
    row = section(page(torch_trace(events, python_calls=calls)), "peak").rows()[0]
    assert (row["holder"], row["bytes"], row["blocks"]) == ("Linear · train.py(3): main", 96, 2)
    assert (row["module"], row["site"]) == (None, "train.py(3): main")


# Steps --------------------------------------------------------------------------------------------


def steps_trace(ends: list[int]) -> Trace:
    """Make steps of 10 ns, at whose ends so many bytes stay in use."""
    events, ranges, total = [], [], 0
    for number, end in enumerate(ends):
        start = 10 * number
        ranges.append({"start_ns": start, "end_ns": start + 10, "name": f"ProfilerStep#{number}"})
        size = end - total
        total = end
        events += [
            event(start + 1, 500, 100 + number, total + 500 - size),
            event(start + 2, size, 200 + number, total + 500),
            event(start + 3, -500, 100 + number, total),
        ]
    return torch_trace(events, ranges=ranges)


def test_growth_is_what_stays_from_step_to_step() -> None:
    result = page(steps_trace([1000, 1010, 1020, 1030]))
    assert facts(result)["growth_per_step_bytes"] == 10
    assert facts(result)["allocations_per_step"] == 2
    assert facts(result)["peak_step"] == 3
    rows = section(result, "steps").rows()
    assert [(r["number"], r["peak_bytes"], r["end_bytes"], r["growth_bytes"]) for r in rows] == [
        (0, 1500, 1000, None),
        (1, 1510, 1010, 10),
        (2, 1520, 1020, 10),
        (3, 1530, 1030, 10),
    ]


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        ([900, 100, 100, 100, 100, 100], 0),
        ([100, 100, 120, 120, 140, 140, 160, 160], 10),
        ([5], None),
        (list(range(0, 5000, 5)), 5),
    ],
)
def test_one_odd_step_does_not_make_growth_but_a_slow_leak_does(
    levels: list[int], expected: float | None
) -> None:
    result = slope(np.array(levels))
    assert result == (expected if expected is None else pytest.approx(expected, abs=1.0))


def test_without_steps_growth_is_not_known() -> None:
    result = page(torch_trace())
    assert facts(result)["growth_per_step_bytes"] is None
    assert isinstance(next(s for s in result.sections if s.command == "steps"), NotApplicable)


# The driver's allocations -------------------------------------------------------------------------

DRIVER: Rows = [
    {"time_ns": 0, "bytes": 500, "address": 1},
    {"time_ns": 0, "bytes": 7, "address": 2, "memory_kind": "Device Static", "variable": "table"},
    {"time_ns": 20, "bytes": 100, "address": 3},
    {"time_ns": 25, "bytes": 900, "address": 4, "memory_kind": "Pinned"},
    {"time_ns": 40, "bytes": 500, "address": 1, "operation": "deallocation"},
]


def test_the_drivers_allocations_are_summed_up() -> None:
    result = page(
        build_trace(
            memory_events=DRIVER,
            api_calls=[{"start_ns": 18, "end_ns": 22, "name": "cudaMalloc"}],
            ranges=[{"start_ns": 10, "end_ns": 30, "name": "load"}],
        )
    )
    assert (facts(result)["start_bytes"], facts(result)["end_bytes"]) == (507, 107)
    assert peak(result) == [(HELD_BEFORE, 500, 1), ("cudaMalloc · load", 100, 1), (STATIC, 7, 1)]
    assert "reserved_max_bytes" not in facts(result)
    assert any("driver allocations" in note for note in result.notes)


def test_the_number_of_the_call_decides_who_took_memory() -> None:
    calls = [
        {"start_ns": 10, "end_ns": 30, "name": "cudaMalloc", "correlation": 7, "thread": 11},
        {"start_ns": 15, "end_ns": 25, "name": "cudaMalloc", "correlation": 8, "thread": 12},
    ]
    ranges = [
        {"start_ns": 0, "end_ns": 50, "name": "left", "thread": 11},
        {"start_ns": 0, "end_ns": 50, "name": "right", "thread": 12},
    ]
    taken = [{"time_ns": 20, "bytes": 64, "address": 1, "correlation": 7}]
    result = page(build_trace(memory_events=taken, api_calls=calls, ranges=ranges))
    assert peak(result) == [("cudaMalloc · left", 64, 1)]


def test_memory_of_the_host_is_shown_apart() -> None:
    rows = section(page(build_trace(memory_events=DRIVER)), "kinds").rows()
    assert [(r["place"], r["memory_kind"], r["peak_bytes"], r["end_bytes"]) for r in rows] == [
        ("GPU", "Device", 600, 100),
        ("GPU", "Device Static", 7, 7),
        ("host", "Pinned", 900, 900),
    ]


def test_a_capture_of_the_host_alone_shows_the_host() -> None:
    result = page(torch_trace([event(10, 30, 1, 30, device=None, memory_kind="Host")]))
    assert result.title == "Memory of the host"
    assert facts(result)["peak_bytes"] == 30
    assert "no GPU memory was recorded: this is memory of the host" in result.notes


def test_memory_that_was_only_held_is_a_flat_line() -> None:
    result = page(
        build_trace(memory_events=DRIVER[:1], kernels=[{"start_ns": 5, "end_ns": 90, "name": "k"}])
    )
    rows = section(result, "timeline").rows()
    assert [(r["time_ns"], r["allocated_bytes"]) for r in rows] == [(5, 500), (90, 500)]
    assert any("allocated before the capture" in note for note in result.notes)


# Several GPUs -------------------------------------------------------------------------------------


def test_the_gpu_with_the_highest_peak_is_shown() -> None:
    events = [event(10, 30, 1, 30, device=0), event(20, 90, 1, 90, device=2)]
    result = page(torch_trace(events))
    assert result.meta["device"] == 2
    assert facts(result)["peak_bytes"] == 90
    assert "GPU 2 is shown" in result.notes[0]
    assert section(result, "devices").frame["peak_bytes"].to_list() == [30, 90]
    assert facts(page(torch_trace(events), device=0))["peak_bytes"] == 30
    with pytest.raises(UsageError, match="no memory of GPU 1"):
        memory(torch_trace(events), Selection(device=1))


# Snapshots ----------------------------------------------------------------------------------------


def block(address: int, size: int, state: str = "active", **more: Any) -> Row:
    return {
        "address": address,
        "bytes": size,
        "requested_bytes": None if state == "inactive" else size,
        "state": state,
        "segment": 0,
        "segment_bytes": 4096,
        "segment_kind": "large",
        **more,
    }


def snapshot(events: Rows, blocks: Rows, chains: Rows = ()) -> Trace:
    tables = {"memory_events": events, "memory_blocks": blocks, "callchains": chains}
    return build_trace(SNAPSHOT, **{table: rows for table, rows in tables.items() if rows})


def step(time_ns: int, operation: str, address: int, size: int, **more: Any) -> Row:
    return {**event(time_ns, size, address), "operation": operation, "thread": None, **more}


def test_a_history_that_lost_its_beginning_is_walked_back_from_the_end() -> None:
    events = [
        step(10, "deallocation", 50, 200),  # taken before the history began
        step(20, "allocation", 60, 300),
        step(30, "free_requested", 60, 300),
        step(40, "deallocation", 60, 300),
        step(50, "segment_allocation", 4096, 1000),
    ]
    blocks = [
        block(0, 70, callchain=3),
        block(100, 900, "inactive", segment=4096, segment_bytes=1000),
    ]
    chains = [frame("memory_blocks", 3, 0, "<module>", "app/train.py", 8)]
    result = page(snapshot(events, blocks, chains))
    values = facts(result)
    assert (values["start_bytes"], values["peak_bytes"], values["end_bytes"]) == (270, 370, 70)
    assert (values["reserved_at_peak_bytes"], values["reserved_max_bytes"]) == (4096, 5096)
    assert peak(result) == [(UNKNOWN, 300, 1), ("app/train.py(8): <module>", 70, 1)]
    oldest = section(result, "blocks").rows()[1]
    assert (oldest["allocated_ns"], oldest["freed_ns"], oldest["address"]) == (None, None, 0)
    assert oldest["stack"] == ["app/train.py(8): <module>"]


def frame(source: str, chain: int, depth: int, symbol: str, file: str | None, line: int) -> Row:
    return {
        "source": source,
        "callchain": chain,
        "depth": depth,
        "symbol": symbol,
        "file": file,
        "line": line,
    }


def test_call_chains_name_operator_and_code() -> None:
    chains = [
        frame("memory_events", 1, 0, "at::_ops::empty_strided::call(c10::SymInt)", None, 0),
        frame("memory_events", 1, 1, "at::_ops::mm::redispatch(at::Tensor)", None, 0),
        frame("memory_events", 1, 2, "at::_ops::linear::call(at::Tensor)", None, 0),
        frame("memory_events", 1, 3, "forward", "torch/nn/modules/linear.py", 134),
        frame("memory_events", 1, 4, "step", "app/train.py", 8),
        frame("memory_events", 2, 0, "at::_ops::mm::call(at::Tensor)", None, 0),
        frame("memory_events", 2, 1, "torch::autograd::generated::MmBackward0::apply(x)", None, 0),
    ]
    events = [
        step(10, "allocation", 1, 64, callchain=1),
        step(20, "allocation", 2, 32, callchain=2),
    ]
    blocks = [block(1, 64), block(2, 32)]
    rows = section(page(snapshot(events, blocks, chains)), "blocks").rows()
    assert [r["holder"] for r in rows] == [
        "aten::linear › mm · app/train.py(8): step",
        "MmBackward0 › mm",
    ]
    assert rows[0]["stack"] == ["torch/nn/modules/linear.py(134): forward", "app/train.py(8): step"]


def test_parts_of_reserved_memory_sum_to_it() -> None:
    blocks = [
        block(0, 1024, requested_bytes=1000),
        block(1024, 1024, "inactive"),
        block(2048, 2048, "pending_free", requested_bytes=2000),
        block(9000, 4096, "inactive", segment=9000),
    ]
    result = page(snapshot([], blocks))
    parts = {
        r["part"].split(":")[0].split(",")[0]: r["bytes"]
        for r in section(result, "reserved").rows()
    }
    assert parts == {
        "requested by the program": 1000,
        "freed": 2000,
        "rounding": 24 + 48,
        "free between used blocks": 1024,
        "free in unused segments": 4096,
    }
    assert sum(parts.values()) == facts(result)["reserved_max_bytes"] == 8192
    first = section(result, "segments").rows()[0]
    assert (first["address"], first["used_share"], first["largest_free_bytes"]) == (9000, 0.0, 4096)
    assert "1 of 2 under half used, 4.096 kB free" in section(result, "segments").title


def test_unused_memory_is_not_measured_before_or_inside_an_allocation() -> None:
    events = [
        step(0, "segment_allocation", 0, 1000),  # nothing is in use yet
        step(10, "allocation", 0, 600),
        step(20, "segment_allocation", 9000, 9000),  # taken for what comes next
        step(30, "allocation", 9000, 8400),
        step(40, "deallocation", 0, 600),
    ]
    final = [
        block(0, 1000, "inactive", segment_bytes=1000),
        block(9000, 8400, segment=9000, segment_bytes=9000),
    ]
    values = facts(page(snapshot(events, final)))
    assert (values["fragmentation_worst_ns"], values["reserved_max_bytes"]) == (10, 10_000)
    assert values["fragmentation_worst"] == pytest.approx(0.4)


def test_unused_memory_is_unknown_where_nothing_was_ever_in_use() -> None:
    events = [step(0, "segment_allocation", 0, 4096)]
    values = facts(page(snapshot(events, [block(0, 4096, "inactive")])))
    assert values["reserved_max_bytes"] == 4096
    assert "fragmentation_worst" not in values
    assert "fragmentation_worst_ns" not in values


def test_all_memory_freed_is_all_unused() -> None:
    events = [
        step(0, "segment_allocation", 0, 4096),
        step(10, "allocation", 0, 600),
        step(20, "deallocation", 0, 600),
    ]
    values = facts(page(snapshot(events, [block(0, 4096, "inactive")])))
    assert (values["fragmentation_worst"], values["fragmentation_worst_ns"]) == (1.0, 20)


def test_the_recorded_snapshot_is_not_all_unused_when_it_begins() -> None:
    values = facts(page(opened(DATA / "memory_snapshot.pickle")))
    assert values["fragmentation_worst_ns"] > 0
    assert values["fragmentation_at_peak"] <= values["fragmentation_worst"] < 0.5


def test_a_snapshot_without_history_shows_what_is_held() -> None:
    result = page(snapshot([], [block(0, 64), block(64, 32, "pending_free")]))
    assert facts(result)["peak_bytes"] == 96
    assert peak(result) == [(HELD_BEFORE, 96, 2)]


def test_running_out_of_memory_comes_first() -> None:
    events = [
        step(5, "segment_allocation", 0, 4096),
        step(10, "allocation", 0, 64),
        step(20, "out_of_memory", 0, 5000),
    ]
    result = page(snapshot(events, [block(0, 64)]))
    row = section(result, "out_of_memory").rows()[0]
    assert (row["bytes"], row["allocated_bytes"], row["reserved_bytes"]) == (5000, 64, 4096)
    assert row["unused_bytes"] == 4032
    assert result.notes[0].startswith("the GPU ran out of memory once, first at 20 ns: 5.000 kB")
    assert result.sections[0].command == "out_of_memory"


def test_annotations_of_a_snapshot_are_its_ranges() -> None:
    ranges = [{"start_ns": 0, "end_ns": 20, "name": "load", "thread": None, "domain_key": 0}]
    trace = build_trace(
        SNAPSHOT,
        memory_events=[step(10, "allocation", 1, 64)],
        memory_blocks=[block(1, 64)],
        ranges=ranges,
    )
    assert peak(page(trace)) == [("load", 64, 1)]


# The timeline -------------------------------------------------------------------------------------


def busy_trace(count: int) -> Trace:
    """Make many small blocks, and one peak that lasts an instant."""
    events, total = [], 1000
    for number in range(count):
        size = 10**6 if number == count // 3 else 16
        total += size
        events.append(event(10 * number + 1, size, number, total))
        total -= size
        events.append(event(10 * number + 2, -size, number, total))
    return torch_trace(events)


def test_the_timeline_is_short_and_keeps_the_extremes() -> None:
    frame = section(page(busy_trace(5000)), "timeline").frame
    assert frame.height <= POINTS <= 2000
    assert frame["allocated_bytes"].max() == 1001000
    assert frame["allocated_bytes"].min() == 1000
    assert frame["time_ns"].is_sorted()
    assert (frame["time_ns"][0], frame["time_ns"][-1]) == (1, 10 * 4999 + 3)


def test_holders_over_time_sum_to_what_is_in_use() -> None:
    result = page(busy_trace(3000))
    frame = section(result, "timeline").frame
    assert frame["held_bytes"].list.sum().to_list() == frame["allocated_bytes"].to_list()
    assert frame["held_bytes"].list.len().unique().to_list() == [
        len(result.meta["timeline_holders"])
    ]


# Captures -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", CAPTURES, ids=name)
def test_holders_sum_to_the_peak_of_every_capture(path: Path) -> None:
    trace = opened(path)
    if not (trace.has("memory_events") or trace.has("memory_blocks")):
        assert isinstance(memory(trace), NotApplicable)
        return
    result = page(trace)
    values = facts(result)
    line = section(result, "timeline").frame
    assert line.height <= POINTS
    assert line["allocated_bytes"].max() == values["peak_bytes"]
    held = next(s for s in result.sections if s.command == "peak")
    if trace.has("memory_events", "address") or trace.has("memory_blocks"):
        assert isinstance(held, TableResult)
        assert held.frame["bytes"].sum() == values["peak_bytes"]
        assert NOT_RECORDED not in held.frame["holder"].to_list()
        assert line["held_bytes"].list.sum().to_list() == line["allocated_bytes"].to_list()
    else:
        assert isinstance(held, NotApplicable)


def test_a_torch_trace_tells_totals_and_operators() -> None:
    path = DATA / "gpt_small_forward.json.gz"
    written = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    about = [e["args"] for e in written if e["name"] == "[memory]" and e["args"]["Device Type"]]
    result = page(opened(path))
    assert facts(result)["peak_bytes"] == max(args["Total Allocated"] for args in about)
    assert facts(result)["allocations"] == sum(args["Bytes"] > 0 for args in about)
    assert [row[0] for row in peak(result)[:3]] == [
        HELD_BEFORE,
        "aten::div",
        "aten::masked_fill › clone",
    ]


def test_a_snapshot_ends_in_its_blocks() -> None:
    trace = opened(DATA / "memory_snapshot.pickle")
    held = trace.memory_blocks.filter(trace.memory_blocks["state"].cast(str) == "active")
    assert facts(page(trace))["end_bytes"] == held["requested_bytes"].sum()


@pytest.mark.parametrize(
    ("meta", "hint"),
    [
        ({}, "--cuda-memory-usage=true"),
        (TORCH, "profile_memory=True"),
        (SNAPSHOT, "_record_memory_history"),
    ],
)
def test_a_capture_without_memory_says_how_to_get_it(meta: dict[str, str], hint: str) -> None:
    result = memory(build_trace(meta, kernels=[{"name": "k"}]))
    assert isinstance(result, NotApplicable)
    assert hint in result.hint


def test_a_range_that_is_not_there_is_an_error() -> None:
    with pytest.raises(MissingDataError, match="no range matches"):
        memory(torch_trace(), Selection(within="nowhere"))


@pytest.mark.parametrize(
    "events",
    [[event(10, 2**62, 1, 5)], [event(10, 5, 1, 2**62)], [event(1, 2**58, n) for n in range(9)]],
)
def test_sizes_that_no_machine_has_are_refused(events: Rows) -> None:
    with pytest.raises(DamagedCaptureError, match="more than any machine has"):
        memory(torch_trace(events))


def test_groups_of_next_to_nothing_are_one_row() -> None:
    large = event(10, 1_000_000, 1, 1_000_000)
    small = [event(20 + n, 20 + n, 2 + n, None) for n in range(3)]
    groups = section(page(build_trace(TORCH, memory_events=[large, *small])), "block_groups")
    assert [(r["blocks"], r["bytes"], r["total_bytes"]) for r in groups.rows()] == [
        (1, 1_000_000, 1_000_000),
        (3, None, 63),
    ]
    assert groups.rows()[1]["holder"] == "3 groups below 0.1% each"


def test_the_headline_of_a_snapshot_covers_its_peak() -> None:
    result = page(opened(DATA / "memory_snapshot.pickle"))
    assert result.window.startswith("whole capture, ")
    times = section(result, "timeline").frame["time_ns"]
    assert times[0] <= facts(result)["peak_ns"] <= times[-1]
    assert format_time(int(times[-1] - times[0]), digits=3) in result.window


def test_steps_without_names_are_those_of_the_window() -> None:
    # Six equal rounds of four kernels, which no range names.
    kernels = [
        {"name": f"k{n % 4}", "start_ns": n * 10**6, "end_ns": n * 10**6 + 800_000}
        for n in range(24)
    ]
    events = [event(n * 10**6 + 10, 10, n + 1, 110 + 10 * n) for n in range(24)]
    result = page(build_trace(TORCH, kernels=kernels, memory_events=events))
    second = window_steps(build_trace(TORCH, kernels=kernels))
    assert isinstance(second, TraceSteps)
    assert len(section(result, "steps").rows()) == len(second.steps)
    assert facts(result)["growth_per_step_bytes"] == 40
