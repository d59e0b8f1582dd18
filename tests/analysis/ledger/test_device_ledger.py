"""The ledger of a GPU: each instant counts once, and all sum to the window."""

from __future__ import annotations

import random
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gpusight.analysis.gpu_schedule import build_schedule
from gpusight.analysis.ledger.accounting import Accounting
from gpusight.analysis.ledger.device_ledger import DeviceSpans, account, build_ledger
from gpusight.analysis.ledger.host_threads import HostTime
from gpusight.analysis.ledger.idle_causes import host_time
from gpusight.analysis.ledger.ledger_entries import IdleCause, label_work
from gpusight.analysis.ledger.ledger_report import LedgerReport, device_overlap, ledger_report
from gpusight.reports.report_builder import build_report
from gpusight.rules.diagnosis import TimelineDiagnosis
from gpusight.rules.timeline_diagnosis import diagnose_timeline
from tests.analysis.ledger.windows import US, accounts, entries, kernel, us
from tests.reports.training_programs import training
from tests.traces import build_trace

if TYPE_CHECKING:
    from gpusight.analysis.gpu_schedule import GpuSchedule
    from gpusight.trace.trace import Trace


# What a GPU was busy with: each instant counts once, by priority.


NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgsStorage<4096ul>)"
SOFTMAX = "softmax_warp_forward<float, float, float, 8, false, false>"


def test_kernels_come_before_copies_before_communication() -> None:
    ledger = entries(
        0,
        50,
        kernels=[kernel(10, 20), kernel(0, 40, name=NCCL, stream=8)],
        copies=[us(15, 30, stream=9)],
    )
    assert ledger == {
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
    ledger = entries(0, 7, copies=copies, memsets=[us(6, 7)])
    assert ledger == {f"copy/{short}": 1.0 for short in (*kinds.values(), "memset")}


def test_a_whole_graph_is_an_entry_of_its_own() -> None:
    assert entries(0, 10, graph_launches=[us(0, 10)]) == {"compute/graph": 10.0}


def test_entries_have_parts() -> None:
    half = "ampere_fp16_s16816gemm_fp16_128x128_ldg8_f2f_stages_32x5_tn"
    copies = [us(30, 33, src_kind="Pageable"), us(33, 34, src_kind="Pinned")]
    (gpu,) = accounts(0, 34, kernels=[kernel(0, 10), kernel(10, 30, name=half)], copies=copies)
    matmul, moved = gpu.ledger.entries
    assert [(p.precision, p.tensor_core, p.ns) for p in matmul.parts] == [
        ("fp16", True, 20 * US),
        ("unknown", None, 10 * US),
    ]
    assert [(p.memory, p.ns) for p in moved.parts] == [("pageable", 3 * US), ("pinned", US)]


def test_groups_add_up() -> None:
    kernels = [kernel(0, 10), kernel(10, 16, name=SOFTMAX)]
    (gpu,) = accounts(0, 20, kernels=kernels, copies=[us(16, 17)])
    ledger = gpu.ledger
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
    result = device_overlap(schedule, label_work(schedule), 0)
    assert result.kernels_ns == 15 * US
    assert (result.copy_ns, result.copy_hidden_ns) == (25 * US, 20 * US)
    assert (result.communication_ns, result.communication_hidden_ns) == (22 * US, 7 * US)


def test_steps_split_the_same_time() -> None:
    (gpu,) = accounts(0, 40, kernels=[kernel(0, 10), kernel(15, 30)])
    parts = gpu.between(np.array([0, 20]) * US, np.array([20, 35]) * US)
    rows = [dict(zip(gpu.names, row // US, strict=True)) for row in parts]
    assert [row["compute/matmul"] for row in rows] == [15, 10]
    assert [row["idle/unknown"] for row in rows] == [5, 5]


@given(
    edges=st.sets(st.integers(0, 30), min_size=2).map(sorted),
    times=st.lists(st.integers(-3, 33), max_size=8),
)
def test_spans_cut_in_two_keep_what_they_count_for(edges: list[int], times: list[int]) -> None:
    starts, ends = np.array(edges[:-1]), np.array(edges[1:])
    spans = DeviceSpans(starts, ends, starts * 10, starts * 100)
    cut = spans.cut(np.array(times, np.int64))
    inside = {time for time in times if edges[0] < time < edges[-1]}
    assert cut.start_ns.tolist() == sorted({*edges[:-1], *inside})
    assert cut.end_ns.tolist() == [*cut.start_ns.tolist()[1:], edges[-1]]
    of = [max(start for start in edges[:-1] if start <= at) for at in cut.start_ns.tolist()]
    assert (cut.op.tolist(), cut.gap.tolist()) == ([10 * at for at in of], [100 * at for at in of])


# What holds for every ledger: it sums to the window, nothing is negative, order means nothing.


_KERNELS = ("gemm", "softmax_warp_forward<float>", "ncclDevKernel_AllReduce", "my_kernel")
_CALLS = ("cudaLaunchKernel", "cudaMemcpyAsync", "cudaStreamSynchronize", "cudaMalloc", "cuOther")
_COPIES = ("Host-to-Device", "Device-to-Host", "Device-to-Device")
_OS_CALLS = ("read", "nanosleep", "pthread_cond_wait", "ioctl")
_RANGES = ("data", "step_1", "forward")
_LONG = 5_000_000
Tables = dict[str, Any]


def _spans(names: tuple[str, ...], key: str, most: int, **columns: Any) -> st.SearchStrategy[Any]:
    """Draw rows of a table."""
    row = st.fixed_dictionaries(
        {"start": st.integers(0, _LONG), "length": st.integers(0, _LONG // 4)}
        | {key: st.sampled_from(names)}
        | {name: st.sampled_from(values) for name, values in columns.items()}
    )
    return st.lists(row.map(_row), max_size=most)


def _row(drawn: dict[str, Any]) -> dict[str, Any]:
    start, length = drawn.pop("start"), drawn.pop("length")
    return {"start_ns": start, "end_ns": start + length, **drawn}


@st.composite
def tables(draw: st.DrawFn) -> Tables:
    """Draw the tables of a capture; each piece of work has one call at most."""
    places = {"device": (0, 1), "stream": (7, 8)}
    drawn: Tables = {
        "kernels": draw(_spans(_KERNELS, "name", 8, **places)),
        "copies": draw(_spans(_COPIES, "kind", 3, **places)),
        "memsets": draw(_spans(("Device",), "memory_kind", 2, **places)),
        "ranges": draw(_spans(_RANGES, "name", 3, thread=(11, 12))),
        "os_calls": draw(_spans(_OS_CALLS, "name", 3, thread=(11, 12))),
        "cpu_ops": draw(_spans(("aten::mm", "aten::add"), "name", 3, thread=(11, 12))),
        "overheads": draw(_spans(("Buffer flush", "Module Loading"), "name", 2, thread=(11, 0))),
        "api_calls": draw(_spans(_CALLS, "name", 10, thread=(11, 12))),
        "threads": [{"thread": 11}, {"thread": 12}],
    }
    ids = draw(st.permutations(range(1, 14)))
    work = [*drawn["kernels"], *drawn["copies"], *drawn["memsets"]]
    for row, number in zip(work, ids, strict=False):
        row["correlation"] = number
    # Calls of one thread that begin at the same moment have no order that a capture could tell.
    distinct = {(row["thread"], row["start_ns"]): row for row in drawn["api_calls"]}
    drawn["api_calls"] = list(distinct.values())
    for number, row in enumerate(drawn["api_calls"], 1):
        row["correlation"] = number
    return drawn


def _ledger(rows: Tables, start: int, end: int) -> dict[int, dict[str, int]]:
    trace = build_trace(**rows)
    schedule = build_schedule(trace, start, end)
    made = build_ledger(schedule, host_time(trace, schedule))
    return {d.device: {e.entry: e.ns for e in d.entries} for d in made.devices}


windows = st.tuples(st.integers(0, _LONG), st.integers(1, _LONG)).map(lambda w: (w[0], sum(w)))


@given(tables(), windows)
@settings(max_examples=30, deadline=None)
def test_entries_sum_to_the_window_and_none_is_negative(
    rows: Tables, window: tuple[int, int]
) -> None:
    for ledger in _ledger(rows, *window).values():
        assert sum(ledger.values()) == window[1] - window[0]
        assert all(ns > 0 for ns in ledger.values())


@given(tables(), windows, st.integers(-(10**12), 10**12))
@settings(max_examples=15, deadline=None)
def test_shifting_time_changes_nothing(drawn: Tables, window: tuple[int, int], shift: int) -> None:
    moved = {name: [_shifted(row, shift) for row in rows] for name, rows in drawn.items()}
    assert _ledger(moved, window[0] + shift, window[1] + shift) == _ledger(drawn, *window)


def _shifted(row: dict[str, Any], shift: int) -> dict[str, Any]:
    return row | {key: row[key] + shift for key in ("start_ns", "end_ns") if key in row}


@given(tables(), windows, st.randoms(use_true_random=False))
@settings(max_examples=15, deadline=None)
def test_the_order_of_rows_means_nothing(
    drawn: Tables, window: tuple[int, int], order: random.Random
) -> None:
    shuffled = {name: order.sample(rows, len(rows)) for name, rows in drawn.items()}
    assert _ledger(shuffled, *window) == _ledger(drawn, *window)


@given(tables(), windows, st.lists(st.integers(0, 2 * _LONG), max_size=4))
@settings(max_examples=25, deadline=None)
def test_parts_of_the_window_add_up_to_it(
    rows: Tables, window: tuple[int, int], cuts: list[int]
) -> None:
    trace = build_trace(**rows)
    schedule = build_schedule(trace, *window)
    inside = sorted({cut for cut in cuts if window[0] < cut < window[1]})
    bounds = np.array([window[0], *inside, window[1]], np.int64)
    for gpu in account(schedule, host_time(trace, schedule)):
        parts = gpu.between(bounds[:-1], bounds[1:])
        assert (parts >= 0).all()
        assert parts.sum(axis=1).tolist() == np.diff(bounds).tolist()
        whole = dict.fromkeys(gpu.names, 0) | {e.entry: e.ns for e in gpu.ledger.entries}
        assert parts.sum(axis=0).tolist() == [whole[name] for name in gpu.names]


@given(
    st.lists(
        st.tuples(st.integers(0, 50), st.integers(0, len(IdleCause) - 1)), min_size=1, max_size=8
    ),
    st.lists(st.integers(0, 90), min_size=9, max_size=9),
    st.lists(st.integers(-20, 700), min_size=2, max_size=6),
)
@settings(max_examples=40, deadline=None)
def test_host_time_that_is_moved_still_sums_to_the_time(
    stretches: list[tuple[int, int]], lengths: list[int], requested: list[int]
) -> None:
    """A replay moves moments: whatever it asks, the causes sum to what it asked about."""
    length = np.array([n for n, _ in stretches], np.int64)
    ends = np.cumsum(length)
    by_cause = np.zeros((len(length), len(IdleCause)), np.int64)
    by_cause[np.arange(len(length)), [cause for _, cause in stretches]] = length
    host_thread = np.zeros(len(length), np.int64)
    hosts = HostTime.of_stretches(host_thread, ends - length, ends, by_cause)
    # Every other moment is moved, so that what lies between two has several causes.
    before = np.unique(np.append(0, ends[1::2]))
    after = np.cumsum(np.array(lengths[: len(before)], np.int64))
    moved = hosts.moved(np.zeros(len(before), np.int64), before, after)
    times = np.array(sorted(requested), np.int64)
    for gpu in (hosts, moved):
        spent = gpu.spent(np.zeros(len(times) - 1, np.int64), times[:-1], times[1:])
        assert (spent >= 0).all()
        assert spent.sum(axis=1).tolist() == np.diff(times).tolist()


# What the accounts of a window are made of is worked out once, and only taken for that window.


@pytest.fixture
def seen_windows(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, int]]:
    """Lists the windows that were laid out."""
    laid_out: list[tuple[int, int]] = []

    def watched(trace: Trace, start_ns: int, end_ns: int, **options: Any) -> GpuSchedule:
        laid_out.append((start_ns, end_ns))
        return build_schedule(trace, start_ns, end_ns, **options)

    monkeypatch.setattr("gpusight.analysis.ledger.accounting.build_schedule", watched)
    return laid_out


def test_a_report_lays_every_window_out_once(seen_windows: list[tuple[int, int]]) -> None:
    build_report([training()])
    assert seen_windows
    assert len(seen_windows) == len(set(seen_windows))


def test_what_is_handed_on_is_taken_for_its_own_window_alone(
    seen_windows: list[tuple[int, int]],
) -> None:
    trace = training()
    known = Accounting(trace, 0, 1_000)
    assert Accounting(trace, 0, 1_000).or_known(known) is known
    for other in (
        Accounting(trace, 0, 999),
        Accounting(trace, 0, 1_000, process=1),
        Accounting(training(), 0, 1_000),
    ):
        assert other.or_known(known) is other
        assert other.or_known(None) is other
    assert seen_windows == []


def test_the_ledger_of_a_diagnosis_is_that_of_the_ledger() -> None:
    trace = training()
    report, diagnosis = ledger_report(trace), diagnose_timeline(trace)
    assert isinstance(report, LedgerReport)
    assert isinstance(diagnosis, TimelineDiagnosis)
    assert diagnosis.ledger == report.ledger
