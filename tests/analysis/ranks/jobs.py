"""Jobs built by hand: traces of ranks that wait for each other, with planted delays.

Each step runs kernels and an all-reduce; a rank leaves it when the last one has arrived and the
transfer is done. Every rank has a clock of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpusight.analysis.ranks.rank_digest import (
    CollectiveKey,
    RankCollectives,
    RankDigest,
    StepDigest,
    rank_digests,
)
from gpusight.results import NotApplicable
from tests.traces import build_trace

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpusight.trace.trace import Trace

US, MS = 1_000, 1_000_000
NCCL = "ncclDevKernel_AllReduce_Sum_f32_RING_LL"
PROCESS, THREAD = 7, 70


@dataclass(frozen=True)
class Delay:
    """What makes a rank late in a step."""

    host_ns: int = 0
    input_ns: int = 0
    kernels: int = 0
    """Additional kernels."""
    slow: float = 1.0
    """Factor on the time of every kernel."""
    larger: int = 1
    """Factor on blocks and time of every kernel."""


NONE = Delay()


def job_traces(
    plan: Callable[[int, int], Delay],
    *,
    ranks: int = 4,
    steps: int = 12,
    noise: Callable[[int, int], int] = lambda _rank, _step: 0,
    offset_ns: Callable[[int], int] = lambda rank: 37 * MS * rank,
    transfer_ns: int = MS // 2,
) -> list[Trace]:
    """Build the traces of a job; `noise` is host time that differs by rank and step."""
    tables: list[dict[str, list[dict[str, Any]]]] = [
        {"kernels": [], "api_calls": [], "ranges": []} for _ in range(ranks)
    ]
    now_ns = 100 * MS
    for step in range(steps):
        arrivals = [
            _compute(tables[rank], now_ns, plan(rank, step), noise(rank, step))
            for rank in range(ranks)
        ]
        end_ns = max(arrivals) + transfer_ns
        for rank, arrival_ns in enumerate(arrivals):
            _all_reduce(tables[rank], step, now_ns, arrival_ns, end_ns)
        now_ns = end_ns + 10 * US
    return [
        build_trace(
            {"path": f"job/trace.rank{rank}.json", "rank": rank, "world_size": ranks},
            processes=[{"process": PROCESS, "pid": PROCESS}],
            threads=[{"thread": THREAD, "process": PROCESS, "tid": THREAD}],
            devices=[{"device": 0}],
            **{name: _moved(rows, offset_ns(rank)) for name, rows in own.items()},
        )
        for rank, own in enumerate(tables)
    ]


def job_digests(plan: Callable[[int, int], Delay], **options: Any) -> list[RankDigest]:
    """Build the digests of such a job."""
    made: list[RankDigest] = []
    for trace in job_traces(plan, **options):
        digests = rank_digests(trace)
        assert not isinstance(digests, NotApplicable), digests
        made += digests
    return made


def _compute(
    tables: dict[str, list[dict[str, Any]]], start_ns: int, delay: Delay, noise_ns: int
) -> int:
    """Run the kernels of a step; returns when they are done."""
    host_ns = start_ns + 50 * US
    if delay.input_ns:
        name = "dataloader.next"
        tables["ranges"].append(_on_thread(name, host_ns, host_ns + delay.input_ns, name=name))
    host_ns += delay.input_ns + delay.host_ns + noise_ns
    gpu_ns = host_ns
    for number in range(4 + delay.kernels):
        correlation = len(tables["api_calls"]) + 1
        call = _on_thread("", host_ns, host_ns + 5 * US, correlation=correlation)
        tables["api_calls"].append({**call, "name": "cudaLaunchKernel"})
        gpu_ns = max(gpu_ns, host_ns + 8 * US)
        length_ns = int(MS * delay.slow * delay.larger)
        tables["kernels"].append(
            _kernel(f"gemm_{min(number, 3)}", gpu_ns, gpu_ns + length_ns, correlation)
            | {"grid_x": 100 * delay.larger, "grid_y": 1, "grid_z": 1}
        )
        gpu_ns += length_ns
        host_ns += 6 * US
    return gpu_ns


def _all_reduce(
    tables: dict[str, list[dict[str, Any]]], step: int, start_ns: int, arrival_ns: int, end_ns: int
) -> None:
    """Run the all-reduce of a step, and wait for it."""
    correlation = len(tables["api_calls"]) + 1
    launch_ns = tables["api_calls"][-1]["end_ns"] + US
    call = _on_thread("", launch_ns, launch_ns + 5 * US, correlation=correlation)
    tables["api_calls"].append({**call, "name": "cudaLaunchKernel"})
    wait = _on_thread("", launch_ns + 6 * US, end_ns + 2 * US, correlation=correlation + 1)
    tables["api_calls"].append({**wait, "name": "cudaStreamSynchronize"})
    tables["kernels"].append(_kernel(NCCL, arrival_ns, end_ns, correlation))
    name = f"ProfilerStep#{step}"
    tables["ranges"].append(_on_thread(name, start_ns, end_ns + 5 * US, name=name))


def _on_thread(_: str, start_ns: int, end_ns: int, **more: Any) -> dict[str, Any]:
    row = {"start_ns": start_ns, "end_ns": end_ns, "thread": THREAD, "process": PROCESS}
    return {**row, **more}


def _kernel(name: str, start_ns: int, end_ns: int, correlation: int) -> dict[str, Any]:
    row = {"name": name, "start_ns": start_ns, "end_ns": end_ns, "process": PROCESS}
    return {**row, "correlation": correlation, "device": 0, "stream": 7}


def _moved(rows: list[dict[str, Any]], offset_ns: int) -> list[dict[str, Any]]:
    return [
        {**row, **{key: row[key] + offset_ns for key in ("start_ns", "end_ns")}} for row in rows
    ]


# Digests without a trace --------------------------------------------------------------------------


@dataclass(frozen=True)
class Collective:
    """A collective of one rank."""

    start_ns: int
    end_ns: int
    kind: str = "all_reduce"
    bytes: int | None = None
    group: str | None = None
    sequence: int | None = None
    operation: int | None = None
    step: int | None = 0
    exposed_ns: int | None = None
    """All of it, if not given."""


def digest(
    rank: int | None,
    collectives: Sequence[Collective],
    steps: Sequence[StepDigest] = (),
    **more: Any,
) -> RankDigest:
    """Build a digest of these collectives."""
    keys = [CollectiveKey(c.kind, c.bytes, c.group, None, "gpu kernel") for c in collectives]
    distinct = list(dict.fromkeys(keys))
    exposed = (c.end_ns - c.start_ns if c.exposed_ns is None else c.exposed_ns for c in collectives)
    facts: dict[str, Any] = {
        "file": f"rank{rank}.json", "tool": "torch.profiler", "rank": rank,
        "rank_from": "trace metadata", "place": 0, "world_size": None, "backend": None,
        "host": None, "device": 0, "gpu": None, "pid": 1, "steps_found": "numbered ranges",
        "steps_left_out": 0, "kernels": (), "steps": tuple(steps),
    }  # fmt: skip
    table = RankCollectives(
        tuple(distinct),
        tuple(distinct.index(key) for key in keys),
        tuple(c.sequence for c in collectives),
        tuple(c.operation for c in collectives),
        tuple(c.start_ns for c in collectives),
        tuple(c.start_ns for c in collectives),
        tuple(c.end_ns for c in collectives),
        tuple(exposed),
        tuple(c.step for c in collectives),
    )
    return RankDigest(**{**facts, **more}, collectives=table)


def step(number: int, start_ns: int, end_ns: int, **parts: Any) -> StepDigest:
    """Build a step; what is not given is compute."""
    idle = parts.pop("idle", {})
    known = sum(parts.get(name, 0) for name in ("copy_ns", "collective_ns")) + sum(idle.values())
    values = {"copy_ns": 0, "collective_ns": 0, "kernels": 4, "wait_ns": 0, **parts}
    return StepDigest(
        number=number,
        name=f"step {number}",
        start_ns=start_ns,
        end_ns=end_ns,
        compute_ns=end_ns - start_ns - known,
        idle=idle,
        **values,
    )
