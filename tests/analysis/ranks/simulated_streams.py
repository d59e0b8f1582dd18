"""A small model of hosts, streams and links, for jobs whose exposed communication is known.

It shares no code with the analysis. A host launches and waits; a stream runs its kernels in order,
each after the events it waits for; a collective ends on all ranks when the last one has arrived.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tests.traces import build_trace

US, MS = 1_000, 1_000_000
COMPUTE, COMMUNICATION, SENDS, RECEIVES = 7, 20, 21, 22
_LATENCY = 4 * US


@dataclass
class Rank:
    """One process: its host, its streams, and what a profiler would record."""

    number: int
    ranks: int
    clock: int = 0
    host: int = 0
    free: dict[int, int] = field(default_factory=dict)
    busy: list[tuple[int, int]] = field(default_factory=list)
    """When compute kernels ran."""
    rows: dict[str, list[dict[str, Any]]] = field(
        default_factory=lambda: {"kernels": [], "api_calls": [], "ranges": [], "collectives": []}
    )

    def call(self, name: str, length: int) -> int:
        """Run a CUDA call; returns its correlation."""
        correlation = len(self.rows["api_calls"]) + 1
        row = {"name": name, "correlation": correlation, "thread": 70, "process": 7}
        self.rows["api_calls"].append({**row, "start_ns": self.host, "end_ns": self.host + length})
        self.host += length
        return correlation

    def ready(self, stream: int, *events: int) -> int:
        """When a kernel that is launched now can start at the earliest."""
        return max(self.host + _LATENCY, self.free.get(stream, 0), *events, 0)

    def record(self, name: str, stream: int, start: int, end: int, correlation: int) -> None:
        self.free[stream] = end
        row = {"name": name, "start_ns": start, "end_ns": end, "correlation": correlation}
        more = {"device": 0, "stream": stream, "process": 7, "grid_x": 64}
        self.rows["kernels"].append({**row, **more, "grid_y": 1, "grid_z": 1})

    def compute(self, name: str, length: int, *events: int) -> int:
        """Launch a compute kernel; returns when it ends."""
        correlation = self.call("cudaLaunchKernel", 4 * US)
        start = self.ready(COMPUTE, *events)
        self.record(name, COMPUTE, start, start + length, correlation)
        self.busy.append((start, start + length))
        return start + length

    def synchronize(self, until: int) -> None:
        """Wait for the GPU."""
        self.call("cudaStreamSynchronize", max(2 * US, until - self.host + 2 * US))

    def about(self, start: int, stream: int, name: str, **facts: Any) -> None:
        """Record what PyTorch knows of a communication kernel."""
        row = {"name": name, "side": "gpu", "start_ns": start, "end_ns": start + 1}
        self.rows["collectives"].append({**row, "device": 0, "stream": stream, **facts})

    def step(self, number: int, start: int, end: int) -> None:
        name = f"ProfilerStep#{number}"
        self.rows["ranges"].append(
            {"name": name, "start_ns": start, "end_ns": end, "thread": 70, "process": 7}
        )

    def exposed(self, start: int, end: int) -> int:
        """Time in which no compute kernel runs."""
        hidden = sum(max(0, min(e, end) - max(s, start)) for s, e in self.busy)
        return end - start - hidden

    def trace(self) -> Any:
        times = ("start_ns", "end_ns")
        moved = {
            table: [{**row, **{t: row[t] + self.clock for t in times}} for row in own]
            for table, own in self.rows.items()
        }
        meta = {"path": f"job/trace.rank{self.number}.json", "rank": self.number}
        return build_trace(
            {**meta, "world_size": self.ranks},
            processes=[{"process": 7, "pid": 7}],
            threads=[{"thread": 70, "process": 7, "tid": 70}],
            devices=[{"device": 0}],
            **{name: rows for name, rows in moved.items() if rows},
        )


def job_of(random: np.random.Generator, ranks: int) -> list[Rank]:
    """Make ranks whose clocks differ."""
    return [Rank(n, ranks, int(random.integers(0, 50 * MS)) + MS) for n in range(ranks)]


def together(
    ranks: list[Rank],
    kind: str,
    starts: dict[int, int],
    transfer: int,
    stream: int,
    calls: dict[int, int],
    facts: dict[str, Any] | None = None,
) -> int:
    """Run a collective that ends for all when the last one has arrived; returns its end."""
    end = max(starts.values()) + transfer
    for number, start in starts.items():
        ranks[number].record(f"ncclDevKernel_{kind}", stream, start, end, calls[number])
        if facts:
            ranks[number].about(start, stream, **facts)
    return end


# Why a collective is exposed ----------------------------------------------------------------------


@dataclass(frozen=True)
class ExposedJob:
    """Data-parallel steps whose last all-reduce is exposed for one reason."""

    ranks: list[Rank]
    exposed_ns: list[int]
    """Exposed time of all collectives, by rank."""


def exposed_job(reason: str, seed: int, steps: int = 6) -> ExposedJob:
    """Simulate a job; every rank does the same with small differences."""
    random = np.random.default_rng(seed)
    ranks = job_of(random, int(random.integers(2, 5)))
    layers = int(random.integers(3, 7))
    usual = int(random.uniform(0.4, 1.5) * MS)
    transfer = int(random.uniform(0.6, 2.0) * MS)
    exposed = [0] * len(ranks)
    spans: list[tuple[dict[int, int], int]] = []
    for number in range(steps):
        begins = [rank.host for rank in ranks]
        for layer in range(layers):
            lengths = [int(usual * random.normal(1, 0.01)) for _ in ranks]
            done = [r.compute(f"gemm_{layer}", ns) for r, ns in zip(ranks, lengths, strict=True)]
            # With contention, one all-reduce is launched before the kernels that run first.
            if reason != "sm-contention" or layer == layers - 1:
                spans.append(_all_reduce(ranks, reason, done, transfer))
        for rank in ranks:
            _optimizer(rank, reason, spans[-1][1], usual // 4, waits_on_host=seed % 2 == 1)
            rank.step(number, begins[rank.number], rank.host)
    for starts, end in spans:
        for rank in ranks:
            exposed[rank.number] += rank.exposed(starts[rank.number], end)
    return ExposedJob(ranks, exposed)


def _all_reduce(
    ranks: list[Rank], reason: str, done: list[int], transfer: int
) -> tuple[dict[int, int], int]:
    stream = COMPUTE if reason == "stream-order" else COMMUNICATION
    starts, calls = {}, {}
    for rank in ranks:
        calls[rank.number] = rank.call("cudaLaunchKernel", 4 * US)
        starts[rank.number] = rank.ready(stream, done[rank.number])
        if reason == "sm-contention":
            # Later kernels hold the SMs: it starts when they are done.
            held = [rank.compute(f"wide_{part}", 2 * transfer) for part in range(3)]
            starts[rank.number] = held[-1]
    name = "AllReduce_Sum_f32_RING_LL"
    return starts, together(ranks, name, starts, transfer, stream, calls)


def _optimizer(rank: Rank, reason: str, reduced: int, length: int, *, waits_on_host: bool) -> None:
    """Run what follows the last all-reduce."""
    if reason == "late-launch":
        rank.host = max(rank.host, reduced + MS // 2)
    elif reason == "allocation":
        rank.call("cudaMalloc", max(1, reduced - rank.host) + MS // 2)
    elif reason == "dependency" and waits_on_host:
        rank.synchronize(reduced)
    waits = () if reason in ("late-launch", "allocation") else (reduced,)
    rank.synchronize(rank.compute("optimizer", length, *waits))


# Pipelines ----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class PipelineJob:
    """A pipeline with one forward and one backward pass in turn, and what is true of it."""

    ranks: list[Rank]
    stages: int
    microbatches: int
    steps: int
    compute_ns: list[float]
    """Per step, by stage."""
    bubble_ns: list[float]
    """Waits for other stages in receives, per step, by stage."""
    transfers: dict[tuple[int, int], int]
    """Sends per step, by sender and receiver."""


def pipeline_job(seed: int, steps: int = 4, *, slow: float = 1.0) -> PipelineJob:
    """Simulate a pipeline whose last stage needs `slow` times as long as the others."""
    random = np.random.default_rng(seed)
    stages, batches = int(random.integers(2, 5)), int(random.integers(4, 9))
    pipeline = _Pipeline(random, stages, int(random.uniform(0.5, 1.5) * MS), slow)
    for number in range(steps):
        pipeline.step(number, [_order(stage, stages, batches) for stage in range(stages)])
    chain = [(s, s + 1) for s in range(stages - 1)]
    sends = dict.fromkeys([*chain, *((b, a) for a, b in chain)], batches)
    compute, bubble = ([ns / steps for ns in own] for own in (pipeline.compute, pipeline.bubble))
    return PipelineJob(pipeline.ranks, stages, batches, steps, compute, bubble, sends)


class _Pipeline:
    """The ranks of a pipeline, and what they have computed and waited."""

    def __init__(self, random: np.random.Generator, stages: int, forward: int, slow: float) -> None:
        self.random, self.forward, self.slow = random, forward, slow
        self.ranks = job_of(random, stages)
        self.compute, self.bubble = [0.0] * stages, [0.0] * stages
        self.done: dict[tuple[str, int, int], int] = {}

    def step(self, number: int, orders: list[list[tuple[str, int]]]) -> None:
        begin = max(rank.host for rank in self.ranks)
        self.done = {}
        for rank in self.ranks:
            rank.host = begin
        while any(orders):
            for stage, order in enumerate(orders):
                while order and self.is_sent(stage, *order[0]):
                    self.run(stage, *order.pop(0))
        # All ranks reduce the norm of the gradients.
        calls = {rank.number: rank.call("cudaLaunchKernel", 4 * US) for rank in self.ranks}
        starts = {rank.number: rank.ready(COMPUTE) for rank in self.ranks}
        facts = {"name": "allreduce", "group": "0", "in_bytes": 4}
        end = together(self.ranks, "AllReduce_Sum", starts, 20 * US, COMPUTE, calls, facts)
        for rank in self.ranks:
            rank.synchronize(end)
            rank.step(number, begin, rank.host)

    def source(self, stage: int, way: str) -> int:
        return stage - 1 if way == "forward" else stage + 1

    def is_sent(self, stage: int, way: str, batch: int) -> bool:
        source = self.source(stage, way)
        return not 0 <= source < len(self.ranks) or (way, source, batch) in self.done

    def run(self, stage: int, way: str, batch: int) -> None:
        """Receive, then compute."""
        source = self.source(stage, way)
        has_source = 0 <= source < len(self.ranks)
        events = (self.receive(stage, source, way, batch),) if has_source else ()
        length = (1 if way == "forward" else 2) * self.forward * self.random.normal(1, 0.01)
        length = int(length * (self.slow if stage == len(self.ranks) - 1 else 1.0))
        self.done[way, stage, batch] = self.ranks[stage].compute(f"{way}_gemm", length, *events)
        self.compute[stage] += length

    def receive(self, stage: int, source: int, way: str, batch: int) -> int:
        ranks = self.ranks
        calls = {n: ranks[n].call("cudaLaunchKernel", 4 * US) for n in (source, stage)}
        posted = ranks[stage].ready(RECEIVES, ranks[stage].free.get(COMPUTE, 0))
        sent = max(self.done[way, source, batch], ranks[source].free.get(SENDS, 0))
        end = max(posted, sent) + 20 * US
        sides = ((source, sent, SENDS, "send", stage), (stage, posted, RECEIVES, "recv", source))
        for n, start, stream, kind, peer in sides:
            ranks[n].record("ncclDevKernel_SendRecv", stream, start, end, calls[n])
            ranks[n].about(start, stream, kind, peer=peer, in_bytes=1 << 20)
        self.bubble[stage] += max(0, sent - posted)
        return end


def _order(stage: int, stages: int, microbatches: int) -> list[tuple[str, int]]:
    warmup = min(stages - stage - 1, microbatches)
    order = [("forward", i) for i in range(warmup)]
    for i in range(microbatches - warmup):
        order += [("forward", warmup + i), ("backward", i)]
    return order + [("backward", i) for i in range(microbatches - warmup, microbatches)]


# Experts ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class ExpertJob:
    """Layers with experts on all ranks, and what is true of them."""

    ranks: list[Rank]
    layers: int
    expert_ns: list[float]
    """Per step, by rank."""
    imbalance_ns: float


def expert_job(seed: int, spread: float, steps: int = 5) -> ExpertJob:
    """Simulate layers whose experts get different numbers of tokens."""
    random = np.random.default_rng(seed)
    ranks = job_of(random, int(random.integers(2, 6)))
    layers = int(random.integers(1, 5))
    usual = random.uniform(0.5, 1.5) * MS
    total, beyond = np.zeros(len(ranks)), 0.0
    for number in range(steps):
        begin = max(rank.host for rank in ranks)
        for rank in ranks:
            rank.host = begin
        for layer in range(layers):
            own = usual * np.maximum(0.1, random.normal(1, spread, len(ranks)))
            for part in ("dispatch", "combine"):
                starts, calls = {}, {}
                for rank in ranks:
                    length = usual if part == "dispatch" else own[rank.number]
                    name = "attention" if part == "dispatch" else "expert_gemm"
                    rank.compute(f"{name}_{layer}", int(length))
                    calls[rank.number] = rank.call("cudaLaunchKernel", 4 * US)
                    starts[rank.number] = rank.ready(COMPUTE)
                members = str(list(range(len(ranks)))).replace(" ", "")
                facts = {"name": "all_to_allv", "group": "1", "ranks": members, "in_bytes": 1 << 20}
                together(ranks, "SendRecv", starts, 40 * US, COMPUTE, calls, facts)
            total += own
            beyond += own.max() - own.mean()
        for rank in ranks:
            rank.synchronize(rank.free[COMPUTE])
            rank.step(number, begin, rank.host)
    return ExpertJob(ranks, layers, (total / steps).tolist(), beyond / steps)
