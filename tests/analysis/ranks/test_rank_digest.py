"""Digests of ranks: parts that add up, kilobytes, and files that read back."""

from __future__ import annotations

from typing import Any

import pytest

from gpusight.analysis.ranks.rank_digest import (
    RankDigest,
    decode_digests,
    encode_digests,
    rank_digests,
)
from gpusight.results import NotApplicable
from tests.analysis.ranks.jobs import MS, NONE, Delay, job_digests, job_traces
from tests.traces import build_trace


def test_the_parts_of_a_step_add_up_to_it() -> None:
    for digest in job_digests(lambda rank, _: Delay(input_ns=MS) if rank == 1 else NONE):
        for step in digest.steps:
            parts = step.compute_ns + step.copy_ns + step.collective_ns + step.idle_ns
            assert parts == step.length_ns


def test_collectives_belong_to_the_step_that_launched_them() -> None:
    digest = job_digests(lambda *_: NONE, steps=6)[0]
    numbers = [step.number for step in digest.steps]
    assert [step for step in digest.collectives.step if step is not None] == numbers
    exposed = digest.collectives.exposed_ns
    assert sum(exposed) == sum(step.collective_ns for step in digest.steps)


def test_kernels_of_communication_are_not_among_the_kernels() -> None:
    digest = job_digests(lambda *_: NONE, steps=6)[0]
    assert {kernel.name for kernel in digest.kernels} == {f"gemm_{n}" for n in range(4)}
    assert all(kernel.count == len(digest.steps) for kernel in digest.kernels)
    assert all(kernel.blocks == 100 * kernel.count for kernel in digest.kernels)


def test_a_digest_is_small_and_reads_back() -> None:
    digests = job_digests(lambda *_: NONE, ranks=2, steps=50)
    data = encode_digests(digests)
    assert len(data) < 2 * 24_000
    assert decode_digests(data) == tuple(digests)


@pytest.mark.parametrize(
    "data",
    [b"{}", b'{"format": "other"}', b"\xff", b"[]"],
)
def test_other_files_are_no_digests(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"missing|malformed|Expected|invalid"):
        decode_digests(data)


def test_digests_of_another_version_are_refused() -> None:
    data = encode_digests(job_digests(lambda *_: NONE, ranks=2, steps=4))
    with pytest.raises(ValueError, match="version 9"):
        decode_digests(data.replace(b'"version":1', b'"version":9'))


def test_a_capture_without_gpu_work_has_no_digest() -> None:
    assert isinstance(rank_digests(build_trace(processes=[{"process": 1}])), NotApplicable)


def test_chosen_steps_are_those_of_the_digest() -> None:
    [trace] = job_traces(lambda *_: NONE, ranks=1, steps=8)
    chosen = rank_digests(trace, steps="3-5")
    assert not isinstance(chosen, NotApplicable)
    assert [step.number for step in chosen[0].steps] == [3, 4, 5]


def processes(sleeper: int) -> dict[str, Any]:
    """Build two processes in one file; one sleeps, and the other waits for it, in every step."""
    tables: dict[str, Any] = {"kernels": [], "api_calls": [], "os_calls": []}
    for process in (1, 2):
        for step in range(12):
            start = step * 20 * MS
            for number in range(8):
                at = start + number * MS // 4
                row = {
                    "process": process,
                    "thread": process * 10,
                    "correlation": step * 10 + number,
                }
                tables["api_calls"].append({**row, "start_ns": at, "end_ns": at + 5_000})
                name = f"kernel_{number}"
                kernel = {"start_ns": at + 9_000, "end_ns": at + 200_000, "name": name}
                tables["kernels"].append(
                    {**kernel, "process": process, "correlation": row["correlation"]}
                )
            name = "clock_nanosleep" if process == sleeper else "pthread_cond_wait"
            tables["os_calls"].append(
                {"name": name, "start_ns": start + 3 * MS, "end_ns": start + 19 * MS}
                | {"process": process, "thread": process * 10}
            )
    keys = [{"process": p, "pid": p} for p in (1, 2)]
    threads = [{"thread": p * 10, "process": p, "tid": p} for p in (1, 2)]
    return {**tables, "processes": keys, "threads": threads, "devices": [{"device": 0}]}


def test_processes_of_one_file_are_ranks_and_sleep_is_no_wait() -> None:
    digests = rank_digests(build_trace(**processes(sleeper=2)))
    assert not isinstance(digests, NotApplicable)
    first, second = digests
    assert (first.rank, second.rank) == (0, 1)
    assert all(isinstance(digest, RankDigest) and digest.steps for digest in digests)
    assert first.steps[3].wait_ns == pytest.approx(16 * MS, rel=0.1)
    assert second.steps[3].wait_ns == 0
    assert second.steps[3].idle["sleeping"] == pytest.approx(16 * MS, rel=0.1)
