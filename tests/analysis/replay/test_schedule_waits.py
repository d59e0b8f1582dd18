"""What GPU activities and calls wait for, as the capture's events tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import polars as pl
import pytest

from gpusight.analysis.gpu_schedule import CallKind
from gpusight.analysis.replay.schedule_waits import AT_ONCE_NS, waits_between_streams
from gpusight.analysis.replay.simulation import CallWait
from tests.rules.timeline.rule_captures import Capture


def test_a_wait_for_an_event_is_for_what_was_issued_before_its_record() -> None:
    capture = Capture()
    capture.range("step_0", 0, 1_000)
    capture.launch((10, 15), (20, 100), "produce", stream=20)
    record = capture.call("cudaEventRecord", 16, 18)
    capture.launch((20, 25), (101, 400), "later", stream=20)
    wait = capture.call("cudaStreamWaitEvent", 26, 28)
    capture.launch((30, 35), (110, 200), "consume", stream=7)
    event = {"event": 5, "context": 1}
    capture.tables["event_records"].append({"stream": 20, "correlation": record, **event})
    capture.tables["syncs"].append(
        {"kind": "stream waits for event", "correlation": wait, "stream": 7, **event}
    )
    schedule = capture.timeline().schedule
    names = schedule.trace.table("kernels", ["name"])["name"].cast(pl.String).to_list()
    names = [names[row] for row in schedule.ops.row]
    needs, _ = waits_between_streams(schedule, np.zeros(len(schedule.ops), np.bool_))
    assert names[needs[names.index("consume")]] == "produce"
    # What comes long after the event waited for something else: the edge keeps none of that time.
    start_ns = schedule.ops.start_ns.copy()
    start_ns[names.index("consume")] += 500_000
    later = replace(schedule, ops=replace(schedule.ops, start_ns=start_ns))
    assert waits_between_streams(later, np.ones(len(names), np.bool_))[1].max() == AT_ONCE_NS


@pytest.mark.parametrize("recorded", [False, True])
def test_collectives_keep_their_place_where_a_capture_leaves_out_all_waits(
    *, recorded: bool
) -> None:
    """Older traces of PyTorch have no cudaStreamWaitEvent, without which no collective runs."""
    capture = Capture("torch-json")
    capture.range("step_0", 0, 1_000)
    capture.launch((10, 15), (20, 100), "forward", stream=7)
    if recorded:
        capture.call("cudaStreamWaitEvent", 16, 18)
    capture.launch((20, 25), (130, 400), "ncclKernel_SendRecv_RING_SIMPLE(int)", stream=20)
    capture.launch((30, 35), (140, 200), "overlaps", stream=7)
    capture.launch((40, 45), (430, 500), "uses", stream=7)
    schedule = capture.timeline().schedule
    names = schedule.trace.table("kernels", ["name"])["name"].cast(pl.String).to_list()
    names = [names[row][:4] for row in schedule.ops.row]
    needs, gap_ns = waits_between_streams(schedule, np.zeros(len(schedule.ops), np.bool_))
    of = {name: names[need] for name, need in zip(names, needs, strict=True) if need >= 0}
    assert of == ({} if recorded else {"nccl": "forw", "uses": "nccl"})
    assert gap_ns.max() == (0 if recorded else AT_ONCE_NS)


TO_GPU = {"kind": "Host-to-Device", "src_kind": "Pageable", "dst_kind": "Device"}
PINNED = {**TO_GPU, "src_kind": "Pinned"}
TO_HOST = {"kind": "Device-to-Host", "src_kind": "Device", "dst_kind": "Pageable"}
ON_GPU = {"kind": "Device-to-Device", "src_kind": "Device", "dst_kind": "Device"}


@pytest.mark.parametrize(
    ("copy", "busy_us", "waits"),
    [
        pytest.param({**TO_GPU, "size": 4_096}, 0, False, id="small, pageable"),
        pytest.param({**TO_GPU, "size": 1 << 20}, 0, True, id="large, pageable"),
        pytest.param({**TO_HOST, "size": 4}, 0, True, id="to pageable memory"),
        pytest.param({**PINNED, "size": 1 << 20}, 0, False, id="pinned"),
        pytest.param({**PINNED, "size": 4, "name": "cudaMemcpy"}, 0, True, id="synchronous"),
        pytest.param({**ON_GPU, "size": 1 << 20}, 0, False, id="on the GPU"),
        pytest.param({**TO_GPU, "size": 4_096}, 40, True, id="behind earlier work"),
        pytest.param({**TO_GPU, "size": 4_096}, 12, False, id="behind the end of a copy"),
    ],
)
def test_a_copy_that_ends_before_its_call_need_not_block(
    copy: dict[str, Any], busy_us: float, *, waits: bool
) -> None:
    capture = Capture()
    for at in range(0, 3_000, 300):
        capture.launch((at, at + 5), (at + 7, at + 12 + busy_us))
        capture.copy((at + 20, at + 80), (at + 60, at + 62), **copy)
    timeline = capture.timeline()
    calls = timeline.replay.program.wait[timeline.schedule.calls.kind == CallKind.COPY]
    assert set(calls.tolist()) == {int(CallWait.OP if waits else CallWait.NOTHING)}
