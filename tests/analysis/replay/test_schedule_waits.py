"""What GPU activities and calls wait for, as the capture's events tell."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import polars as pl

from gpusight.analysis.replay.schedule_waits import AT_ONCE_NS, waits_between_streams
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
