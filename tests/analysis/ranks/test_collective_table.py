"""The collectives of captures of every tool, in one table."""

from __future__ import annotations

from typing import Any

import polars as pl
import pytest

from gpusight.analysis.ranks.collective_table import FIELDS, collectives, payload_facts
from tests.traces import PROCESS, THREAD, build_trace

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevComm*)"
SEND_RECV = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096>)"
PROCESSES = [{"process": PROCESS, "pid": 4242}]


def rows(columns: list[str], **tables: Any) -> list[tuple[Any, ...]]:
    """Return these columns of the collectives of a trace."""
    trace = build_trace(tables.pop("meta", None), processes=PROCESSES, **tables)
    return collectives(trace).select(columns).rows()


def call(start: int, correlation: int) -> dict[str, Any]:
    return {"start_ns": start, "end_ns": start + 5, "correlation": correlation}


def kernel(start: int, correlation: int, name: str = NCCL, **more: Any) -> dict[str, Any]:
    row = {"start_ns": start, "end_ns": start + 100, "name": name, "correlation": correlation}
    return {**row, **more}


def test_the_columns_are_those_that_are_declared() -> None:
    frame = collectives(build_trace(processes=PROCESSES))
    assert frame.columns == [field.key for field in FIELDS]
    assert frame.height == 0


def test_kernels_are_collectives_with_their_launch() -> None:
    columns = ["kind", "bytes", "launch_ns", "start_ns", "end_ns", "device", "stream", "source"]
    assert rows(
        columns,
        kernels=[kernel(50, 1), kernel(10, 2, "gemm")],
        api_calls=[call(20, 1), call(0, 2)],
    ) == [("all_reduce", None, 20, 50, 150, 0, 7, "gpu kernel")]


def test_a_kernel_without_a_call_has_no_launch() -> None:
    assert rows(["launch_ns"], kernels=[kernel(50, 0)]) == [(None,)]


def test_arguments_of_pytorch_name_group_bytes_and_sequence() -> None:
    recorded = {
        "start_ns": 50, "end_ns": 150, "name": "_allgather_base", "side": "gpu", "device": 0,
        "stream": 7, "group": "dp", "ranks": "[0, 1]", "in_bytes": 8, "out_bytes": 16,
        "sequence": 41,
    }  # fmt: skip
    columns = ["kind", "bytes", "group", "group_ranks", "sequence", "rank"]
    assert rows(
        columns,
        meta={"rank": 3},
        kernels=[kernel(50, 1, SEND_RECV)],
        collectives=[recorded],
    ) == [("all_gather", 16, "dp", "[0, 1]", 41, 3)]


def test_a_kernel_without_arguments_takes_those_of_its_operator() -> None:
    issued = {
        "start_ns": 5, "end_ns": 9, "name": "allreduce", "side": "host", "op": 77, "group": "0",
        "in_bytes": 4, "out_bytes": 4,
    }  # fmt: skip
    assert rows(
        ["kind", "bytes", "group"], kernels=[kernel(50, 1, op=77)], collectives=[issued]
    ) == [("all_reduce", 4, "0")]


def nvtx(name: str, start: int, end: int, payload: str | None = None) -> dict[str, Any]:
    row = {"name": name, "start_ns": start, "end_ns": end, "thread": THREAD, "domain": "NCCL"}
    return {**row, "payload_text": payload}


def test_payloads_of_nccl_name_bytes_communicator_and_operation() -> None:
    payload = (
        '{"NCCL communicator ID": 99, "Message size [bytes]": 4096, "Reduction operation": "sum",'
        ' "operationId": 5}'
    )
    assert rows(
        ["kind", "bytes", "group", "operation"],
        kernels=[kernel(50, 1), kernel(300, 2)],
        api_calls=[call(20, 1), call(200, 2)],
        ranges=[nvtx("ncclAllReduce", 18, 30, payload)],
    ) == [("all_reduce", 4096, "99", 5), ("all_reduce", None, None, None)]


def test_calls_of_a_group_are_launched_at_its_end() -> None:
    sizes = ['{"Message size [bytes]": 10, "NCCL communicator ID": 7}'] * 2
    ranges = [
        nvtx("ncclGroupStart", 0, 1),
        *(nvtx("ncclSend", 2 + n, 3 + n, size) for n, size in enumerate(sizes)),
        *(nvtx("ncclRecv", 6 + n, 7 + n, size) for n, size in enumerate(sizes)),
        nvtx("ncclGroupEnd", 10, 30),
    ]
    assert rows(
        ["kind", "bytes", "group"],
        kernels=[kernel(50, 1, SEND_RECV)],
        api_calls=[call(20, 1)],
        ranges=ranges,
    ) == [("send_recv", 20, "7")]


def test_kernels_of_one_group_are_its_calls_in_order() -> None:
    ranges = [
        nvtx("ncclGroupStart", 0, 1),
        nvtx("ncclAllReduce", 2, 3, '{"Message size [bytes]": 10}'),
        nvtx("ncclAllReduce", 4, 5, '{"Message size [bytes]": 20}'),
        nvtx("ncclGroupEnd", 10, 40),
    ]
    assert rows(
        ["bytes"],
        kernels=[kernel(50, 1), kernel(160, 2)],
        api_calls=[call(20, 1), call(30, 2)],
        ranges=ranges,
    ) == [(10,), (20,)]


def test_a_damaged_payload_is_none() -> None:
    assert payload_facts("{not json") == {}
    assert payload_facts('[{"A": {"Rank": 3}}]') == {"rank": 3}


def test_the_range_of_a_process_group_says_what_send_and_receive_are() -> None:
    assert rows(
        ["kind"],
        kernels=[kernel(50, 1, SEND_RECV), kernel(500, 2, SEND_RECV)],
        api_calls=[call(20, 1), call(200, 2)],
        ranges=[{**nvtx("nccl:all_to_all, op_id = 5", 10, 40), "domain": ""}],
    ) == [("all_to_all",), ("send_recv",)]


def test_operators_of_xla_say_what_send_and_receive_are() -> None:
    operator = {"name": "collective-permute.3", "start_ns": 40, "end_ns": 200, "kind": "operator"}
    assert rows(
        ["kind"],
        kernels=[kernel(50, 0, SEND_RECV)],
        gpu_ranges=[{**operator, "device": 0, "stream": 7}],
    ) == [("permute",)]


def test_asynchronous_collectives_of_xla_last_from_start_to_done() -> None:
    names = ["all-reduce-start.1", "all-reduce-done.1"] * 2
    kernels = [kernel(1000 * n, 0, name) for n, name in enumerate(names)]
    assert rows(["kind", "start_ns", "end_ns"], kernels=kernels) == [
        ("all_reduce", 0, 1100),
        ("all_reduce", 2000, 3100),
    ]


def test_collectives_on_the_cpu_are_issued_by_operators_in_order() -> None:
    gloo = [
        {"start_ns": start, "end_ns": start + 50, "name": "all_reduce", "side": "host"}
        | {"library": "gloo", "in_bytes": size, "thread": 12}
        for start, size in ((100, 4), (120, 8))
    ]
    issued = [{"start_ns": t, "end_ns": t + 1, "name": "c10d::allreduce_"} for t in (90, 95)]
    assert rows(
        ["kind", "bytes", "launch_ns", "group", "source", "name"],
        collectives=gloo,
        cpu_ops=issued,
        process_groups=[{"group": "0", "ranks": "[0,1]", "size": 2}],
    ) == [
        ("all_reduce", 4, 90, "0", "cpu operation", "gloo:all_reduce"),
        ("all_reduce", 8, 95, "0", "cpu operation", "gloo:all_reduce"),
    ]


@pytest.mark.parametrize(
    ("tids", "groups"),
    [
        ((11, 12, 21, 22), ["0", "0", "1", "1"]),
        ((12, 21, 22), ["0", "1", "1"]),
        ((11, 12, 22), ["0", "0", "1"]),
        ((11, 21), [None, None]),  # both of one group, or one of each
        ((11, 12, 13, 21, 22), [None] * 5),
    ],
)
def test_threads_of_gloo_tell_process_groups(
    tids: tuple[int, ...], groups: list[str | None]
) -> None:
    """As recorded by PyTorch: ranges without group, groups in the order in which they were made."""
    gloo = [
        {"start_ns": 10 * n, "end_ns": 10 * n + 5, "name": "all_reduce", "side": "host",
         "library": "gloo", "thread": tid}
        for n, tid in enumerate(tids)
    ]  # fmt: skip
    made = rows(
        ["group", "group_ranks"],
        collectives=gloo,
        threads=[{"thread": tid, "process": PROCESS, "tid": tid} for tid in tids],
        process_groups=[
            {"group": "0", "ranks": "[0,1,2,3]", "backend": "cpu:gloo,cuda:gloo"},
            {"group": "fast", "ranks": "[0,1]", "backend": "nccl"},
            {"group": "1", "ranks": "[2,3]", "backend": "gloo"},
        ],
    )
    ranks = {"0": "[0,1,2,3]", "1": "[2,3]", None: None}
    assert made == [(group, ranks[group]) for group in groups]


def test_calls_that_were_lost_leave_launches_unknown() -> None:
    gloo = {"start_ns": 100, "end_ns": 150, "name": "all_reduce", "side": "host"}
    issued = [{"start_ns": t, "end_ns": t + 1, "name": "c10d::allreduce_"} for t in (90, 95)]
    assert rows(["launch_ns"], collectives=[{**gloo, "library": "gloo"}], cpu_ops=issued) == [
        (None,)
    ]


@pytest.mark.parametrize(
    ("calls", "kinds"),
    [
        ({"MPI_Allreduce": "MPI", "ucp_tag_send_nbx": "UCX", "MPI_Wait": "MPI"}, ["all_reduce"]),
        ({"ucp_tag_send_nbx": "UCX"}, ["send"]),
        ({"MPI_Allreduce": None}, []),
    ],
)
def test_calls_of_mpi_and_ucx_are_collectives(calls: dict[str, str], kinds: list[str]) -> None:
    ranges = [
        {"name": name, "source": source, "start_ns": 10, "end_ns": 20}
        for name, source in calls.items()
    ]
    trace = build_trace(processes=PROCESSES, ranges=ranges)
    assert collectives(trace)["kind"].to_list() == kinds
    assert collectives(trace).filter(pl.col("source") != "cpu operation").is_empty()
