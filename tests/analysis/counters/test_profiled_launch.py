"""Busy shares, stalls and FLOPs of a launch, from counters or from the messages of ncu."""

from __future__ import annotations

from typing import Any

import pytest

import gpusight as gs
from gpusight.analysis.counters.profiled_launch import launches
from tests.rules.launches import trace_of

MESSAGES = {
    "HighPipeUtilization": "Shared is the highest-utilized pipeline (68.5%) based on elapsed "
    "cycles in the workload. It's dominated by its FP64 sub-pipeline.",
    "SOLFPRoofline": "The ratio of peak float (FP32) to double (FP64) performance on this device "
    "is 2:1. The workload achieved  close to 3% of this device's FP32 peak performance and 58% of "
    "its FP64 peak performance.",
    "FPInstructions": "This kernel executes 1000 fused and 200 non-fused FP64 instructions.",
}


def test_numbers_are_read_from_the_messages_of_ncu() -> None:
    launch = _launch_with_messages(
        {
            **MESSAGES,
            "CPIStall": "On average, each warp of this kernel spends 37.3 cycles being stalled "
            "waiting for the L1 instruction queue for local and global (LG) memory operations to "
            "be not full. This stall type represents about 70.0% of the total average of 53.3 "
            "cycles between issuing two instructions.",
        }
    )
    assert launch.busy["fp64"] == pytest.approx(0.685)  # the larger of the two
    assert launch.values["fp64_operations"] == 1200 * 32
    assert launch.stalls == pytest.approx({"lg_throttle": 0.7, "misc": 0.3})


def test_a_stall_message_of_a_small_share_gives_no_stalls() -> None:
    launch = _launch_with_messages(
        {
            "CPIStall": "each warp spends 5.2 cycles being stalled waiting for sibling warps at a "
            "CTA barrier. This stall type represents about 31.7% of the total average of 16 cycles"
        }
    )
    assert launch.stalls == {}


def _launch_with_messages(messages: dict[str, str]) -> Any:
    rows = [{"launch": 0, "rule": rule, "message": text} for rule, text in messages.items()]
    trace = trace_of({}, without=("stalled", "fp64", "_dfma", "_dadd", "_dmul"), rule_results=rows)
    (launch,) = launches(trace)
    assert gs.diagnose(trace)
    return launch
