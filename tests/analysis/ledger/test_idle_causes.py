"""Why a GPU was idle, told from rows: one kernel, a gap from 20 to 57 µs, another kernel.

The first is launched from 0 to 5 and runs from 6 to 20, the second is launched from 50 to 55 and
runs from 57 to 70. Unless the rows say otherwise, the host is between launches from 20 to 50.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.analysis.ledger.windows import AUTOGRAD, MAIN, accounts, entries, kernel, launch, us

if TYPE_CHECKING:
    from tests.traces import Rows

LAUNCHES = [launch(0, 5, 1), launch(50, 55, 2)]
KERNELS = [kernel(6, 20, 1), kernel(57, 70, 2)]
COMPUTE, LAUNCHING, GAP = 27.0, 13.0, 30.0


def idle(calls: Rows = (), **tables: Rows) -> dict[str, float]:
    """Give the idle entries of the window, but for what both launches take."""
    ledger = entries(0, 70, api_calls=[*LAUNCHES, *calls], kernels=KERNELS, **tables)
    assert ledger.pop("compute/matmul") == COMPUTE
    assert ledger.pop("idle/launching") == LAUNCHING
    return ledger


def test_between_launches_is_the_framework() -> None:
    assert idle() == {"idle/framework": GAP}


def test_waiting_for_the_gpu_is_synchronizing() -> None:
    calls = [us(21, 30, name="cudaDeviceSynchronize")]
    assert idle(calls) == {"idle/synchronizing": 9.0, "idle/framework": 21.0}


def test_taking_and_giving_memory_is_allocating() -> None:
    calls = [us(22, 30, name="cudaMalloc"), us(31, 33, name="cudaFree")]
    assert idle(calls) == {"idle/allocating": 10.0, "idle/framework": 20.0}


def test_copies_and_fills_are_launched_too() -> None:
    calls = [us(25, 28, name="cudaMemsetAsync")]
    ledger = entries(0, 70, api_calls=[*LAUNCHES, *calls], kernels=KERNELS)
    assert ledger["idle/launching"] == LAUNCHING + 3
    assert ledger["idle/framework"] == GAP - 3


@pytest.mark.parametrize(
    ("name", "start", "end", "entry"),
    [
        ("cudaEventRecord", 25, 30, "idle/framework"),
        ("cudaEventRecord", 21, 48, "idle/framework"),
        ("cuModuleLoadData", 21, 48, "idle/setup"),
        ("cuModuleUnload", 21, 48, "idle/setup"),
        ("cudaStreamCreateWithFlags", 21, 48, "idle/setup"),
        ("cudaGraphInstantiate", 21, 48, "idle/setup"),
        ("cudaFuncGetAttributes", 21, 23, "idle/framework"),
    ],
)
def test_other_calls_set_something_up_if_they_take_long(
    name: str, start: int, end: int, entry: str
) -> None:
    assert idle([us(start, end, name=name)]).get(entry, 0.0) >= end - start


def test_the_first_allocation_of_a_process_makes_its_context() -> None:
    calls = [us(0, 200_000, name="cudaMalloc"), us(200_010, 200_020, name="cudaMalloc")]
    ledger = entries(
        0,
        200_050,
        api_calls=[*calls, launch(200_030, 200_035, 2)],
        kernels=[kernel(200_036, 200_050, 2)],
    )
    assert ledger["idle/setup"] == 200_000
    assert ledger["idle/allocating"] == 10


def test_ranges_that_speak_of_data_are_input() -> None:
    ranges = [us(22, 48, name="data"), us(0, 70, name="step_0")]
    assert idle(ranges=ranges) == {"idle/input": 26.0, "idle/framework": 4.0}


def test_operators_inside_a_range_of_input_are_input() -> None:
    ranges = [us(22, 48, name="load_batch")]
    ops = [us(24, 40, name="aten::stack")]
    assert idle(ranges=ranges, cpu_ops=ops) == {"idle/input": 26.0, "idle/framework": 4.0}


def test_python_that_fetches_data_is_input() -> None:
    calls = [us(22, 48, name="torch/utils/data/dataloader.py(701): __next__")]
    assert idle(python_calls=calls) == {"idle/input": 26.0, "idle/framework": 4.0}


def test_a_call_inside_input_is_what_it_is() -> None:
    causes = idle([us(30, 33, name="cudaMalloc")], ranges=[us(22, 48, name="data")])
    assert causes == {"idle/input": 23.0, "idle/allocating": 3.0, "idle/framework": 4.0}


def test_a_step_called_batch_is_not_input() -> None:
    assert idle(ranges=[us(0, 70, name="batch 3")]) == {"idle/framework": GAP}


@pytest.mark.parametrize("name", ["read", "pread64", "fgets"])
def test_reading_is_input(name: str) -> None:
    assert idle(os_calls=[us(22, 48, name=name)]) == {"idle/input": 26.0, "idle/framework": 4.0}


@pytest.mark.parametrize(
    "name", ["pthread_cond_wait", "nanosleep", "poll", "epoll_wait", "recvmsg", "select"]
)
def test_waits_and_sleeps_are_not_input_without_evidence(name: str) -> None:
    causes = idle(os_calls=[us(22, 48, name=name)])
    assert causes == {"idle/waiting": 26.0, "idle/framework": 4.0}


@pytest.mark.parametrize("table", ["ranges", "cpu_ops"])
def test_a_collective_on_the_cpu_waits_for_other_processes(table: str) -> None:
    causes = idle(**{table: [us(22, 48, name="gloo:all_reduce")]})
    assert causes == {"idle/waiting": 26.0, "idle/framework": 4.0}


def test_waiting_for_a_thread_inside_input_is_input() -> None:
    causes = idle(os_calls=[us(22, 48, name="sem_wait")], ranges=[us(21, 49, name="next batch")])
    assert causes == {"idle/input": 28.0, "idle/framework": 2.0}


@pytest.mark.parametrize(
    ("os_call", "took", "kind", "size", "prepared"),
    [
        pytest.param("read", 400, "Host-to-Device", 10_000, True, id="read, prepared, copied"),
        pytest.param("read", 20, "Host-to-Device", 10_000, False, id="a stray read"),
        pytest.param("read", 400, "Device-to-Host", 10_000, False, id="nothing goes to the GPU"),
        pytest.param("sem_wait", 2_000, "Host-to-Device", 10_000, True, id="from a thread"),
        pytest.param("sem_wait", 400, "Host-to-Device", 10_000, False, id="mostly other work"),
        pytest.param("fsync", 2_000, "Host-to-Device", 10_000, False, id="written, not read"),
        pytest.param("futex", 2_000, "Host-to-Device", 4, False, id="a task, with a scalar"),
        pytest.param("nanosleep", 2_000, "Host-to-Device", 10_000, False, id="at a fixed rate"),
        pytest.param("epoll_wait", 2_000, "Host-to-Device", 10_000, False, id="until a request"),
    ],
)
def test_what_is_prepared_for_a_copy_is_input(
    os_call: str, took: float, kind: str, size: int, *, prepared: bool
) -> None:
    """3 ms without a name before a copy, some of it in a call of the operating system."""
    calls = [launch(0, 5, 1), us(3_000, 3_010, name="cudaMemcpyAsync", correlation=2)]
    copies = [us(3_011, 3_020, kind=kind, bytes=size, correlation=2)]
    os_calls = [us(500, 500 + took, name=os_call)]
    ledger = entries(
        0, 3_020, api_calls=calls, kernels=[kernel(6, 20, 1)], copies=copies, os_calls=os_calls
    )
    read = took if os_call == "read" else 0.0
    assert ledger.get("idle/input", 0.0) == (2_980.0 if prepared else read)


def test_compiling_in_a_range_is_setup() -> None:
    ranges = [us(22, 48, name="XlaEmitLlvmIr:#module=jit_f#")]
    assert idle(ranges=ranges) == {"idle/setup": 26.0, "idle/framework": 4.0}


def test_what_is_launched_into_a_graph_sets_it_up() -> None:
    calls = [
        us(21, 22, name="cudaStreamBeginCapture"),
        launch(23, 30, 7),
        us(46, 48, name="cudaStreamEndCapture"),
    ]
    assert idle(calls) == {"idle/setup": 27.0, "idle/framework": 3.0}


def test_the_first_launch_of_a_kernel_loads_its_code() -> None:
    calls = [launch(0, 2_000, 1), launch(2_100, 4_100, 2), launch(4_200, 6_200, 3)]
    kernels = [
        kernel(2_001, 2_010, 1, name="a"),
        kernel(4_101, 4_110, 2, name="b"),
        kernel(6_201, 6_210, 3, name="a"),
    ]
    ledger = entries(0, 6_210, api_calls=calls, kernels=kernels)
    assert ledger["idle/setup"] == 4_000.0
    assert ledger["idle/launching"] == 2_003.0


def test_a_handover_between_threads_is_no_wait() -> None:
    handed = [
        launch(0, 5, 1, thread=MAIN),
        *(launch(100 + 10 * i, 105 + 10 * i, 2 + i, thread=AUTOGRAD) for i in range(20)),
        launch(310, 315, 30, thread=MAIN),
    ]
    kernels = [
        kernel(6, 20, 1),
        *(kernel(106 + 10 * i, 109 + 10 * i, 2 + i) for i in range(20)),
        kernel(316, 320, 30),
    ]
    waits = [us(0, 99, name="pthread_cond_wait", thread=AUTOGRAD)]
    ledger = entries(0, 320, api_calls=handed, kernels=kernels, os_calls=waits)
    assert "idle/waiting" not in ledger


def test_a_thread_without_ranges_is_in_that_of_the_steps_thread() -> None:
    calls = [launch(0, 5, 1, thread=AUTOGRAD), launch(50, 55, 2, thread=AUTOGRAD)]
    ranges = [us(22, 48, name="data", thread=MAIN)]
    ledger = entries(0, 70, api_calls=calls, kernels=KERNELS, ranges=ranges)
    assert ledger["idle/input"] == 26.0


def test_what_the_profiler_did_is_its_own() -> None:
    overheads = [us(30, 40, name="CUPTI Buffer flush")]
    threads = [{"thread": MAIN}]
    causes = idle(overheads=overheads, threads=threads)
    assert causes == {"idle/profiler": 10.0, "idle/framework": 20.0}


def test_an_overhead_on_no_thread_holds_every_one_up() -> None:
    overheads = [us(30, 40, name="Activity Buffer Request", thread=-1)]
    causes = idle(overheads=overheads, threads=[{"thread": MAIN}])
    assert causes == {"idle/profiler": 10.0, "idle/framework": 20.0}


def test_loading_code_is_not_the_profilers() -> None:
    overheads = [us(30, 40, name="Lazy Function Loading")]
    assert idle(overheads=overheads) == idle()  # older exports of the same capture lack the row


def test_the_first_launch_of_a_kernel_that_takes_long_loads_code() -> None:
    calls = [launch(0, 5, 1), launch(30, 530, 2)]
    kernels = [kernel(6, 20, 1), {**kernel(531, 560, 2), "name": "another"}]
    assert entries(0, 560, api_calls=calls, kernels=kernels)["idle/setup"] == 500.0


def test_work_launched_before_the_gap_is_queued() -> None:
    calls = [launch(0, 5, 1), launch(7, 9, 2)]
    ledger = entries(0, 70, api_calls=calls, kernels=KERNELS)
    assert ledger == {"compute/matmul": COMPUTE, "idle/launching": 6.0, "idle/queued": 37.0}


def test_between_the_kernels_of_a_graph_nobody_launches() -> None:
    calls = [launch(0, 60, 1, name="cudaGraphLaunch")]
    kernels = [kernel(6, 20, 1, graph_node=1), kernel(24, 50, 1, graph_node=2)]
    ledger = entries(0, 50, api_calls=calls, kernels=kernels)
    assert ledger == {"compute/matmul": 40.0, "idle/launching": 6.0, "idle/queued": 4.0}


def test_a_short_wait_for_a_launch_just_made_is_launching() -> None:
    calls = [launch(0, 5, 1), launch(17, 19, 2)]
    ledger = entries(0, 36, api_calls=calls, kernels=[kernel(6, 20, 1), kernel(22, 36, 2)])
    assert ledger == {"compute/matmul": 28.0, "idle/launching": 8.0}


def test_work_launched_late_that_still_waits_is_queued_from_then_on() -> None:
    calls = [*LAUNCHES, launch(100, 105, 3), launch(112, 117, 4)]
    kernels = [kernel(6, 20, 1), kernel(90, 100, 2), kernel(106, 110, 3), kernel(118, 120, 4)]
    ledger = entries(0, 120, api_calls=calls, kernels=kernels)
    assert ledger["idle/queued"] == 35.0
    assert ledger["idle/framework"] == GAP + 2


def test_work_carried_in_was_launched_before_the_window() -> None:
    ledger = entries(10, 70, api_calls=[launch(0, 5, 1)], kernels=[kernel(57, 70, 1)])
    assert ledger == {"compute/matmul": 13.0, "idle/queued": 47.0}


def test_work_of_no_call_is_unknown() -> None:
    ledger = entries(0, 70, api_calls=LAUNCHES[:1], kernels=[kernel(6, 20, 1), kernel(57, 70)])
    assert ledger == {"compute/matmul": COMPUTE, "idle/launching": 6.0, "idle/unknown": 37.0}


def test_without_any_calls_all_is_unknown() -> None:
    assert entries(0, 70, kernels=KERNELS) == {"compute/matmul": COMPUTE, "idle/unknown": 43.0}


def test_after_the_last_work_the_lane_that_launched_it_tells() -> None:
    calls = [*LAUNCHES, us(56, 90, name="cudaDeviceSynchronize")]
    ledger = entries(0, 100, api_calls=calls, kernels=KERNELS)
    assert ledger["idle/synchronizing"] == 20.0
    assert ledger["idle/framework"] == GAP + 10.0


def test_migrated_memory_is_awaited_by_the_thread_that_launched_last() -> None:
    copies = [us(57, 70, kind="Unified Device-to-Host", bytes=4_096)]
    ledger = entries(0, 70, api_calls=LAUNCHES[:1], kernels=KERNELS[:1], copies=copies)
    assert ledger["idle/framework"] == 37.0
    assert "idle/unknown" not in ledger


def test_one_long_silence_is_the_hosts_own_code() -> None:
    calls = [launch(10 * i, 10 * i + 5, i + 1) for i in range(5)]
    calls += [launch(5_050, 5_055, 9)]
    kernels = [kernel(46, 50, 5), kernel(5_056, 5_060, 9)]
    assert entries(0, 5_060, api_calls=calls, kernels=kernels)["idle/host"] == 5_000.0
    around_all = {"ranges": [us(0, 5_060, name="step 3")]}
    assert entries(0, 5_060, api_calls=calls, kernels=kernels, **around_all)["idle/host"] == 5_000.0
    around_it = {"ranges": [us(50, 5_050, name="evaluate")]}
    ledger = entries(0, 5_060, api_calls=calls, kernels=kernels, **around_it)
    assert ledger["idle/framework"] == 5_020.0
    assert "idle/host" not in ledger


def test_the_end_of_a_copy_that_blocks_is_synchronizing() -> None:
    calls = [launch(0, 40, 1, name="cudaMemcpyAsync"), launch(50, 55, 2)]
    copies = [us(6, 20, correlation=1, kind="Device-to-Host", dst_kind="Pageable", bytes=8)]
    ledger = entries(0, 70, api_calls=calls, copies=copies, kernels=KERNELS[1:])
    assert ledger["idle/synchronizing"] == 20.0
    assert ledger["idle/framework"] == 10.0


def test_rows_that_name_no_thread_explain_nothing() -> None:
    nobody = {"thread": None}
    causes = idle(
        ranges=[us(22, 48, name="data", **nobody)],
        os_calls=[us(22, 48, name="read", **nobody)],
        cpu_ops=[us(22, 48, name="DataLoader", **nobody)],
    )
    assert causes == {"idle/framework": GAP}


def test_each_gpu_has_its_own_ledger() -> None:
    kernels = [kernel(6, 20, 1, device=0), kernel(57, 70, 2, device=1)]
    first, second = accounts(0, 70, api_calls=LAUNCHES, kernels=kernels)
    assert [first.device, second.device] == [0, 1]
    for account_of_gpu in (first, second):
        assert sum(entry.ns for entry in account_of_gpu.ledger.entries) == 70_000


def test_ranks_that_each_launch_a_little_in_their_input_still_read_input() -> None:
    # Each of four ranks launches one of its five kernels while `data` is open.
    calls, kernels, ranges = [], [], []
    for rank in range(4):
        own = {"process": rank + 1, "thread": 10 * (rank + 1)}
        ranges.append(us(0, 100, name="data", **own))
        for number, at in enumerate((90, 110, 120, 130, 140)):
            correlation = rank * 10 + number + 1
            calls.append({**launch(at, at + 2, correlation), **own})
            row = {**kernel(at + 4, at + 6, correlation), "process": rank + 1, "device": rank}
            kernels.append(row)
    for account in accounts(0, 150, api_calls=calls, kernels=kernels, ranges=ranges):
        ns_of = {entry.entry: entry.ns for entry in account.ledger.entries}
        # Until the first launch, and from the end of its kernel until the range ends.
        assert ns_of["idle/input"] == 94_000


def test_ranges_that_hold_just_a_third_of_the_launches_are_input() -> None:
    """Sums of shares would depend on their order: ten times a thirtieth is more than a third."""
    count = 30
    calls = [launch(100 * i, 100 * i + 5, i + 1) for i in range(count)]
    kernels = [kernel(100 * i + 10, 100 * i + 20, i + 1) for i in range(count)]
    third = [us(100 * i - 70, 100 * i + 1, name=f"data_{i}") for i in range(2, count, 3)]
    more = [us(100 * i - 70, 100 * i + 1, name=f"data_{i}") for i in range(1, count, 3)]
    window = 0, 100 * count
    ledger = entries(*window, api_calls=calls, kernels=kernels, ranges=third)
    assert ledger["idle/input"] == pytest.approx(70.0 * len(third), rel=0.01)
    ledger = entries(*window, api_calls=calls, kernels=kernels, ranges=[*third, *more])
    assert "idle/input" not in ledger


def test_ranges_far_from_the_window_change_nothing_in_it() -> None:
    tables = {
        "api_calls": [launch(0, 5, 1), launch(50, 55, 2), launch(9_000, 9_005, 3)],
        "kernels": [*KERNELS, kernel(9_010, 9_020, 3)],
    }
    inside = [us(22, 48, name="data")]
    far = [us(8_000, 8_900, name="data"), us(-900, -100, name="step_0")]
    known = entries(0, 70, ranges=inside, **tables)
    assert known["idle/input"] == 26.0
    assert entries(0, 70, ranges=[far[1], *inside, far[0]], **tables) == known
