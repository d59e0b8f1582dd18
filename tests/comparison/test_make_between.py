"""The time between steps in a digest, and what ranges lie where."""

from __future__ import annotations

from typing import Any

import numpy as np

from gpusight.analysis.selection import Selection
from tests.comparison.test_make import digest_of, loop
from tests.traces import build_trace


def fed(steps: int) -> dict[str, Any]:
    """Steps of 900 ns; after each, 400 ns of range `data_N`, in it a copy of 100 ns on the GPU."""
    rows = loop(steps, period=1_500)
    rows["copies"] = []
    for step in range(steps):
        at, key = 1_500 * step + 900, 10 * step + 9
        rows["ranges"].append({"start_ns": at + 50, "end_ns": at + 450, "name": f"data_{step}"})
        rows["api_calls"].append(
            {
                "start_ns": at + 250,
                "end_ns": at + 280,
                "correlation": key,
                "name": "cudaMemcpyAsync",
            }
        )
        rows["copies"].append(
            {"start_ns": at + 300, "end_ns": at + 400, "correlation": key, "bytes": 4_000}
        )
    return rows


def test_the_time_between_steps_is_accounted_for() -> None:
    digest = digest_of(build_trace(**fed(4)))
    assert digest.step_ns == (900.0,) * 4
    # Of 600 ns the copy takes 100; the GPU waits for data while the host is in the range, up to
    # the call that launches the copy, and for what the host does outside of it.
    assert digest.between_ns == (600.0,) * 4
    assert digest.between["copy/h2d"] == (100.0,) * 4
    assert digest.between["idle/input"] == (250.0,) * 4
    assert np.array_equal(np.sum(list(digest.between.values()), axis=0), digest.between_ns)
    assert "copy/h2d" not in digest.ledger
    assert "idle/input" not in digest.ledger


def test_ranges_calls_and_copies_count_up_to_the_next_step() -> None:
    digest = digest_of(build_trace(**fed(4)))
    # After the last step the capture shows the same, but nothing tells where that would end.
    ranges = {row.name: (row.calls, row.host_ns, row.gpu_ns) for row in digest.ranges}
    assert ranges["data_#"] == ((1.0,) * 4, (400.0,) * 4, (100.0,) * 4)
    calls = {row.name: (row.calls, row.host_ns) for row in digest.api}
    assert calls["cudaMemcpyAsync"] == ((1.0,) * 4, (30.0,) * 4)
    assert [(row.calls, row.ns, row.bytes) for row in digest.copies] == [
        ((1.0,) * 4, (100.0,) * 4, (4_000.0,) * 4)
    ]


def test_what_follows_the_last_step_counts_as_usual() -> None:
    rows = fed(3)
    rows["ranges"][-1]["end_ns"] += 5_000  # how long the last one takes is of no matter
    rows["ranges"].append({"start_ns": 950, "end_ns": 1_000, "name": "log"})  # once in two pauses
    digest = digest_of(build_trace(**rows))
    ranges = {row.name: (row.calls, row.host_ns) for row in digest.ranges}
    assert ranges["data_#"] == ((1.0,) * 3, (400.0,) * 3)
    assert ranges["log"] == ((1.0, 0.0, 0.5), (50.0, 0.0, 25.0))


def test_what_follows_counts_itself_up_to_a_step_that_was_left_out() -> None:
    rows = fed(4)
    rows["ranges"].append({"start_ns": 3_920, "end_ns": 3_940, "name": "log"})  # after step 2
    digest = digest_of(build_trace(**rows), steps="1-2")
    ranges = {row.name: row.host_ns for row in digest.ranges}
    assert ranges["log"] == (0.0, 20.0)
    assert ranges["data_#"] == (400.0, 400.0)
    assert digest.between["copy/h2d"] == (100.0, 100.0)


def test_kernels_between_steps_are_work_but_no_kernels_of_a_step() -> None:
    rows = fed(4)
    for copy in rows["copies"]:
        rows["kernels"].append({**copy, "name": "evaluate"})
        del rows["kernels"][-1]["bytes"]
    rows["copies"] = []
    digest = digest_of(build_trace(**rows))
    assert digest.kernel_ns == (400.0,) * 4
    assert {row.name for row in digest.kernels} == {"gemm", "relu"}
    working = [ns for entry, ns in digest.between.items() if entry.startswith("compute/")]
    assert working == [(100.0,) * 4]


def test_a_range_that_holds_steps_is_no_part_of_one() -> None:
    rows = fed(6)
    epochs = [(1_420, 5_980), (5_990, 8_000)]  # the first holds steps 1 to 3
    rows["ranges"] += [{"start_ns": a, "end_ns": b, "name": "epoch"} for a, b in epochs]
    worker = {"start_ns": 1_450, "end_ns": 4_000, "name": "prefetch", "thread": 99}
    digest = digest_of(build_trace(**{**rows, "ranges": [*rows["ranges"], worker]}))
    names = {row.name for row in digest.ranges}
    assert "epoch" not in names
    assert "prefetch" in names


def test_outer_ranges_hold_each_other_never() -> None:
    rows = loop(4)
    for step in range(4):
        at = 1_000 * step
        rows["ranges"] += [
            {"start_ns": at + 5, "end_ns": at + 895, "name": "train"},  # the step again
            {"start_ns": at + 60, "end_ns": at + 140, "name": "attention"},
            {"start_ns": at + 200, "end_ns": at + 400, "name": "optimizer"},
            {"start_ns": at + 200, "end_ns": at + 400, "name": "worker", "thread": 99},
            {"start_ns": at + 910, "end_ns": at + 990, "name": "data"},
        ]
    digest = digest_of(build_trace(**rows))
    outer = {row.name: row.outer for row in digest.ranges}
    assert outer == {
        "step_#": False,
        "train": False,
        "fwd_#": True,
        "attention": False,
        "optimizer": True,
        "worker": False,
        "data": True,
    }


def test_between_ranges_that_were_asked_for_nothing_counts() -> None:
    digest = digest_of(build_trace(**fed(4)), Selection(within="fwd_*"))
    assert digest.steps == 4
    assert digest.between_ns == (0.0,) * 4
    assert digest.between == {}
    assert {row.name for row in digest.ranges} == {"fwd_#"}
    assert not digest.copies
    assert "what lies between these ranges does not count" in digest.notes


def test_between_steps_of_one_range_that_was_asked_for_time_counts() -> None:
    rows = fed(4)
    rows["ranges"].append({"start_ns": 0, "end_ns": 6_000, "name": "training"})
    digest = digest_of(build_trace(**rows), Selection(within="training"))
    assert (digest.steps, digest.between_ns) == (4, (600.0,) * 4)
