"""What a GPU was busy with: each instant counts once, by priority."""

from __future__ import annotations

import numpy as np

from gpusight.analysis.ledger.ledger_entries import label_work
from gpusight.analysis.ledger.ledger_report import device_overlap
from gpusight.analysis.schedule_builder import build_schedule
from tests.analyses.ledger.windows import US, accounts, entries, kernel, us
from tests.traces import build_trace

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SOFTMAX = "softmax_warp_forward<float, float, float, 8, false, false>"


def test_kernels_come_before_copies_before_communication() -> None:
    found = entries(
        0,
        50,
        kernels=[kernel(10, 20), kernel(0, 40, name=NCCL, stream=8)],
        copies=[us(15, 30, stream=9)],
    )
    assert found == {
        "compute/matmul": 10.0,
        "copy/h2d": 10.0,
        "communication": 20.0,
        "idle/unknown": 10.0,
    }


def test_of_two_kernels_the_one_that_began_first_keeps_its_time() -> None:
    kernels = [kernel(0, 10), kernel(5, 20, name=SOFTMAX, stream=8), kernel(6, 9, stream=9)]
    assert entries(0, 20, kernels=kernels) == {"compute/matmul": 10.0, "compute/softmax": 10.0}


def test_work_that_reaches_over_the_window_counts_inside() -> None:
    assert entries(10, 30, kernels=[kernel(0, 15), kernel(28, 40)])["compute/matmul"] == 7.0


def test_copies_by_direction() -> None:
    kinds = {
        "Host-to-Device": "h2d",
        "Device-to-Host": "d2h",
        "Device-to-Device": "d2d",
        "Peer-to-Peer": "p2p",
        "Unified Host-to-Device": "unified",
        "Unknown": "other",
    }
    copies = [us(i, i + 1, kind=kind) for i, kind in enumerate(kinds)]
    found = entries(0, 7, copies=copies, memsets=[us(6, 7)])
    assert found == {f"copy/{short}": 1.0 for short in (*kinds.values(), "memset")}


def test_a_whole_graph_is_an_entry_of_its_own() -> None:
    assert entries(0, 10, graph_launches=[us(0, 10)]) == {"compute/graph": 10.0}


def test_entries_have_parts() -> None:
    half = "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn"
    copies = [us(30, 33, src_kind="Pageable"), us(33, 34, src_kind="Pinned")]
    (one,) = accounts(0, 34, kernels=[kernel(0, 10), kernel(10, 30, name=half)], copies=copies)
    matmul, moved = one.entries()
    assert [(p.precision, p.tensor_core, p.ns) for p in matmul.parts] == [
        ("fp16", True, 20 * US),
        ("unknown", None, 10 * US),
    ]
    assert [(p.memory, p.ns) for p in moved.parts] == [("pageable", 3 * US), ("pinned", US)]


def test_groups_add_up() -> None:
    from gpusight.analysis.ledger.device_ledger import DeviceLedger

    kernels = [kernel(0, 10), kernel(10, 16, name=SOFTMAX)]
    (one,) = accounts(0, 20, kernels=kernels, copies=[us(16, 17)])
    ledger = DeviceLedger(one.device, one.entries())
    assert ledger.ns("compute") == 16 * US
    assert ledger.ns("compute/softmax") == 6 * US
    assert ledger.ns("comp") == 0
    assert ledger.ns("idle") == 3 * US


def test_overlap_stands_beside_the_ledger() -> None:
    trace = build_trace(
        kernels=[kernel(0, 20), kernel(10, 25, stream=8), kernel(18, 40, name=NCCL, stream=9)],
        copies=[us(5, 30, stream=10)],
    )
    schedule = build_schedule(trace, 0, 50 * US)
    found = device_overlap(schedule, label_work(schedule), 0)
    assert found.kernels_ns == 15 * US
    assert (found.copy_ns, found.copy_hidden_ns) == (25 * US, 20 * US)
    assert (found.communication_ns, found.communication_hidden_ns) == (22 * US, 7 * US)


def test_steps_split_the_same_time() -> None:
    (one,) = accounts(0, 40, kernels=[kernel(0, 10), kernel(15, 30)])
    parts = one.between(np.array([0, 20]) * US, np.array([20, 35]) * US)
    rows = [dict(zip(one.names, row // US, strict=True)) for row in parts]
    assert [row["compute/matmul"] for row in rows] == [15, 10]
    assert [row["idle/unknown"] for row in rows] == [5, 5]
