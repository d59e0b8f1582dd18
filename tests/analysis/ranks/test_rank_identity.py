"""Which ranks a capture holds, and where their numbers come from."""

from __future__ import annotations

from typing import Any

import pytest

from gpusight.analysis.ranks.rank_identity import rank_in_name, rank_units
from tests.traces import build_trace

NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"


def kernel(process: int, device: int = 0, length: int = 100, name: str = NCCL) -> dict[str, Any]:
    return {"process": process, "device": device, "end_ns": length, "name": name}


def processes(*keys: int) -> list[dict[str, Any]]:
    return [{"process": key, "pid": 1000 + key, "host": 0} for key in keys]


def found(**tables: Any) -> list[tuple[Any, ...]]:
    units = rank_units(build_trace(tables.pop("meta", None), **tables))
    return [(u.process, u.device, u.rank, u.rank_from) for u in units]


def test_a_trace_of_pytorch_says_its_rank() -> None:
    assert found(meta={"rank": 5}, kernels=[kernel(1)], processes=processes(1)) == [
        (1, 0, 5, "trace metadata")
    ]


def test_the_file_name_says_it_otherwise() -> None:
    assert found(
        meta={"path": "/job/run.rank12.sqlite"}, kernels=[kernel(1)], processes=processes(1)
    ) == [(1, 0, 12, "file name")]


def test_a_single_process_without_a_number_has_none() -> None:
    assert found(kernels=[kernel(1)], processes=processes(1)) == [(1, 0, None, "")]


def test_several_processes_are_ranks_in_their_order() -> None:
    kernels = [kernel(3), kernel(1), kernel(2)]
    assert found(kernels=kernels, processes=processes(3, 2, 1)) == [
        (1, 0, 0, "order of processes"),
        (2, 0, 1, "order of processes"),
        (3, 0, 2, "order of processes"),
    ]


def test_a_process_with_little_gpu_work_is_no_rank() -> None:
    kernels = [kernel(1), kernel(2, length=5)]
    assert [row[0] for row in found(kernels=kernels, processes=processes(1, 2))] == [1]


def test_each_gpu_of_one_process_is_a_rank_if_it_communicates() -> None:
    kernels = [kernel(1, 0), kernel(1, 1, 90)]
    assert [row[1:3] for row in found(kernels=kernels, processes=processes(1))] == [(0, 0), (1, 1)]
    alone = [kernel(1, 0, name="gemm"), kernel(1, 1, 90, "gemm")]
    assert [row[1] for row in found(kernels=alone, processes=processes(1))] == [0]


def test_a_communicator_says_which_process_is_which_rank() -> None:
    ranges = [
        {"name": "ncclCommInitRank", "process": process, "payload_text": payload}
        for process, payload in (
            (1, '{"Rank": 1, "No. of ranks": 2, "CUDA device": 0}'),
            (2, '{"Rank": 0, "No. of ranks": 2, "CUDA device": 1}'),
        )
    ]
    kernels = [kernel(1), kernel(2, 1)]
    assert found(kernels=kernels, processes=processes(1, 2), ranges=ranges) == [
        (2, 1, 0, "NCCL's NVTX ranges"),
        (1, 0, 1, "NCCL's NVTX ranges"),
    ]


def test_a_capture_without_gpu_work_has_no_ranks() -> None:
    assert found(processes=processes(1)) == []


@pytest.mark.parametrize(
    ("path", "rank"),
    [
        ("trace.rank3.json.gz", 3),
        ("rank-11.Jul_15.pt.trace.json", 11),
        ("/job/rank_7/profile.nsys-rep", 7),
        ("profile_rank0007.sqlite", 7),
        ("worker2.1623143566756.pt.trace.json.gz", 2),
        ("ranking.sqlite", None),
        ("report1.nsys-rep", None),
    ],
)
def test_ranks_in_file_names(path: str, rank: int | None) -> None:
    assert rank_in_name(path) == rank
