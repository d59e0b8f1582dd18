"""Simulated jobs of many layouts, with planted stragglers, and what their absence would save.

A second simulator for `rank_faults.py`, of layouts and defects that the first one lacks: FSDP with
prefetch, tensor x data parallelism, pipelines with microbatches, experts, replicas of sharded
nodes, and gloo on two groups that are recorded without sizes; noise of shared machines, a rank
whose capture is missing, other windows, traces without process groups. Every rank is a program
that launches on its own clock; a collective ends when all have arrived.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator

US, MS = 1e3, 1e6
COMPUTE, GATHERS, REDUCES, NODES, SENDS, RECEIVES = 7, 20, 24, 28, 32, 36
FAULTS = (
    "host", "late-host", "input", "more-work", "larger-work", "slow-kernels", "every-third",
    "drift", "two", "network",
)  # fmt: skip
CAUSES = {
    "host": "host", "late-host": "host", "every-third": "host", "drift": "host", "input": "input",
    "more-work": "more-work", "larger-work": "more-work", "slow-kernels": "slow-kernels",
    "network": "network",
}  # fmt: skip
_RECORDED_AS = {
    "AllReduce": "allreduce", "AllGather": "_allgather_base", "SendRecv": "all_to_allv",
    "ReduceScatter": "_reduce_scatter_base",
}  # fmt: skip
Event = dict[str, Any]


@dataclass(frozen=True)
class Plan:
    """A job to simulate."""

    layout: str
    fault: str
    seed: int
    steps: int = 14

    def facts(self) -> dict[str, Any]:
        """Draw the shape of the job and the fault; the same ones for the same seed."""
        random = np.random.default_rng(self.seed)
        ranks = 4 if self.layout == "gloo" else int(random.choice([4, 8]))
        culprits = random.permutation(ranks)[:2].tolist()
        facts = {
            "ranks": ranks,
            "culprits": culprits if self.fault == "two" else culprits[:1],
            "layers": int(random.integers(3, 7)),
            "usual": float(random.uniform(0.4, 1.5)) * MS,
            "noise": float(random.uniform(0.005, 0.03)),
            "shared": random.random() < 0.3,
            "share": float(random.uniform(0.1, 0.5)),
            "waits": random.random() < 0.6 or self.fault not in ("none", "slow-kernels"),
            "groups": self.layout in ("gloo", "pp") or random.random() < 0.6,
            "missing": random.random() < 0.15,
            "windows": random.random() < 0.25,
        }
        # A profiler that stops waits for the GPU: cuts by time need hosts that wait too.
        return {**facts, "windows": facts["windows"] and facts["waits"]}

    def run(self, *, with_fault: bool = True) -> Job:
        """Simulate the job."""
        job = Job(self, self.facts(), self.fault if with_fault else "none")
        programs = [LAYOUTS[self.layout](job, rank) for rank in job.ranks]
        while programs:
            left = [p for p in programs if next(p, "done") != "done"]
            assert len(left) < len(programs) or job.moved, "a program waits for nobody"
            job.moved, programs = False, left
        return job


@dataclass
class Rank:
    """A process: its host, its streams, and what a profiler would record."""

    number: int
    clock_ns: float
    random: np.random.Generator
    host: float = 0.0
    free: dict[int, float] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    sequence: dict[str, int] = field(default_factory=dict)
    calls: int = 0
    slow: float = 1.0
    larger: float = 1.0
    begins: list[float] = field(default_factory=list)

    def record(self, category: str, name: str, start: float, end: float, **args: Any) -> None:
        gpu = category == "kernel"
        thread = args.pop("thread", 77)
        row = {"ph": "X", "cat": category, "name": name, "ts": (start + self.clock_ns) / US}
        place = {"pid": 0 if gpu else 77, "tid": args["stream"] if gpu else thread}
        self.events.append({**row, "dur": (end - start) / US, **place, "args": args})

    def call(self, name: str, length: float) -> int:
        self.calls += 1
        self.record("cuda_runtime", name, self.host, self.host + length, correlation=self.calls)
        self.host += length
        return self.calls


class Job:
    """What the ranks of a job share: groups, collectives under way, noise and the fault."""

    def __init__(self, plan: Plan, facts: dict[str, Any], fault: str) -> None:
        self.plan, self.facts, self.fault = plan, facts, fault
        random = np.random.default_rng(plan.seed + 1)
        self.ranks = [
            Rank(n, float(random.uniform(0, 1e8)), np.random.default_rng((plan.seed, n)))
            for n in range(facts["ranks"])
        ]
        self.layers, self.usual, self.noise = facts["layers"], facts["usual"], facts["noise"]
        self.size_ns = facts["share"] * 3.2 * self.layers * self.usual
        self.posted: dict[tuple[str, int], dict[int, float]] = {}
        self.ends: dict[tuple[str, int], float] = {}
        self.sent: dict[tuple[int, int, int, int], float] = {}
        self.moved = False
        self.groups: dict[str, list[int]] = {}

    # What a rank does ----------------------------------------------------------------------------

    def late(self, rank: Rank, step: int) -> float:
        """Return how much of its fault a rank has in a step: 1 for the usual size."""
        culprits = self.facts["culprits"]
        if self.fault == "none" or rank.number not in culprits:
            return 0.0
        if self.fault == "every-third":
            return float(step % 3 == 1)
        if self.fault == "drift":
            return 2.0 * step / self.plan.steps
        return 1.0 if rank.number == culprits[0] else 0.7

    def kind_of(self, rank: Rank) -> str:
        if self.fault != "two":
            return self.fault
        return "host" if rank.number == self.facts["culprits"][0] else "slow-kernels"

    def begin(self, rank: Rank, step: int) -> None:
        """Load data; most faults happen before the first launch."""
        rank.begins.append(rank.host)
        size, fault = self.late(rank, step) * self.size_ns, self.kind_of(rank)
        rank.host += rank.random.gamma(4, 5 * US)
        loading = rank.random.gamma(4, 10 * US) + (size if fault == "input" else 0)
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        rank.record("user_annotation", name, rank.host, rank.host + loading)
        rank.host += loading
        rank.host += size if fault in ("host", "every-third", "drift") else 0
        share = self.late(rank, step) * self.facts["share"]
        rank.slow = 1 + share if fault == "slow-kernels" else 1.0
        rank.larger = 1 + share if fault == "larger-work" else 1.0
        if fault == "more-work" and size:
            for _ in range(max(1, round(size / self.usual))):
                self.kernel(rank, "extra_gemm", self.usual, 432)

    def middle(self, rank: Rank, step: int) -> None:
        """Between forward and backward."""
        if self.kind_of(rank) == "late-host" and self.late(rank, step):
            rank.call("cudaStreamSynchronize", max(2 * US, rank.free[COMPUTE] - rank.host))
            rank.host += self.size_ns

    def finish(self, rank: Rank, step: int) -> None:
        self.join(rank, COMPUTE, *[s for s in rank.free if s != COMPUTE])
        self.kernel(rank, "optimizer", 0.2 * self.usual)
        if self.facts["waits"]:
            rank.call("cudaStreamSynchronize", max(2 * US, rank.free[COMPUTE] + US - rank.host))
        begin = rank.begins[-1]
        rank.record("user_annotation", f"ProfilerStep#{step}", begin, rank.host)

    def kernel(self, rank: Rank, name: str, length: float, blocks: int = 216) -> None:
        if self.facts["shared"] and rank.random.random() < 0.004:
            rank.host += rank.random.gamma(2, 300 * US)
        rank.host += rank.random.gamma(2, 4 * US)
        length *= rank.slow * rank.larger * max(0.5, rank.random.normal(1, self.noise))
        correlation = rank.call("cudaLaunchKernel", 5 * US)
        start = max(rank.free.get(COMPUTE, 0.0), rank.host + 3 * US)
        rank.free[COMPUTE] = start + length
        grid = [round(blocks * rank.larger), 1, 1]
        where = {"device": 0, "stream": COMPUTE, "correlation": correlation, "grid": grid}
        rank.record("kernel", name, start, start + length, **where)

    def layer(self, rank: Rank, layer: int, factor: float, name: str) -> None:
        for part, share in (("qkv", 0.4), ("mlp", 0.6)):
            self.kernel(rank, f"{name}_{part}_{layer % 3}", share * factor * self.usual)

    @staticmethod
    def join(rank: Rank, stream: int, *others: int) -> None:
        """Let a stream wait for what others have been given until now."""
        rank.free[stream] = max(rank.free.get(s, 0.0) for s in (stream, *others))

    # What ranks do together -----------------------------------------------------------------------

    def group(self, name: str, members: list[int]) -> str:
        self.groups[name] = members
        return name

    def collective(
        self, rank: Rank, stream: int, group: str, kind: str, mb: float = 4.0
    ) -> Iterator[None]:
        correlation = rank.call("cudaLaunchKernel", 6 * US)
        arrival = max(rank.free.get(stream, 0.0), rank.host + 3 * US)
        end, last = yield from self.meet(rank, group, arrival, mb)
        end += (4 * US if arrival < last else 0) + rank.random.gamma(2, 500)
        facts: dict[str, Any] = {"device": 0, "stream": stream, "correlation": correlation}
        if self.facts["groups"]:
            size = round(mb * 250_000)
            facts |= {
                "Collective name": _RECORDED_AS[kind], "dtype": "Float", "In msg nelems": size,
                "Out msg nelems": size, "Group size": len(self.groups[group]),
                "Process Group Name": group, "Process Group Ranks": str(self.groups[group]),
            }  # fmt: skip
        name = {"AllGather": "AllGather_RING_LL", "SendRecv": "SendRecv"}.get(
            kind, f"{kind}_Sum_bf16_RING_LL"
        )
        rank.record("kernel", f"ncclDevKernel_{name}", arrival, end, **facts)
        rank.free[stream] = end

    def meet(
        self, rank: Rank, group: str, arrival: float, mb: float
    ) -> Generator[None, None, tuple[float, float]]:
        """Wait, without simulated time, until all are there; returns the end and the last."""
        number = rank.sequence[group] = rank.sequence.get(group, 0) + 1
        key = group, number
        there = self.posted.setdefault(key, {})
        there[rank.number] = arrival
        self.moved = True
        while len(there) < len(self.groups[group]):
            yield
        last = max(there.values())
        if key not in self.ends:
            random = np.random.default_rng((self.plan.seed, number, *map(ord, group)))
            slow = self.fault == "network" and set(self.facts["culprits"]) & set(self.groups[group])
            spread = len(self.groups[group]) < len(self.ranks)
            factor = 1 + 8 * self.facts["share"] if slow and spread else 1
            self.ends[key] = last + factor * (random.gamma(20, 1.5 * US) + mb * 18 * US)
        return self.ends[key], last

    def send(self, rank: Rank, other: int, way: int, number: int) -> None:
        rank.call("cudaLaunchKernel", 4 * US)
        self.sent[rank.number, other, way, number] = rank.free[COMPUTE]
        self.moved = True

    def receive(self, rank: Rank, source: int, way: int, number: int) -> Iterator[None]:
        rank.call("cudaLaunchKernel", 4 * US)
        posted = max(rank.free.get(RECEIVES + way, 0.0), rank.host, rank.free.get(COMPUTE, 0.0))
        while (source, rank.number, way, number) not in self.sent:
            yield
        self.moved = True
        sender = self.ranks[source]
        ready = self.sent[source, rank.number, way, number]
        sent = max(ready, sender.free.get(SENDS + way, 0.0))
        end = max(posted, sent) + rank.random.gamma(20, 2 * US)
        sides = ((sender, sent, SENDS, "send", rank), (rank, posted, RECEIVES, "recv", sender))
        for one, start, stream, kind, peer in sides:
            one.calls += 1
            one.record("cuda_runtime", "cudaLaunchKernel", start - 9 * US, start - 5 * US,
                       correlation=one.calls)  # fmt: skip
            facts = {
                "Collective name": kind, "dtype": "Float", "In msg nelems": 1 << 18,
                "Out msg nelems": 1 << 18, "Group size": 2, "Process Group Name": "pp",
                "Dst Rank" if kind == "send" else "Src Rank": peer.number,
            }  # fmt: skip
            one.record("kernel", "ncclDevKernel_SendRecv", start, end, device=0,
                       stream=stream + way, correlation=one.calls, **facts)  # fmt: skip
            one.free[stream + way] = end
        rank.free[COMPUTE] = max(rank.free.get(COMPUTE, 0.0), end)

    # Traces ---------------------------------------------------------------------------------------

    def documents(self) -> dict[int, dict[str, Any]]:
        """Return the traces of the ranks that were recorded, cut to their windows."""
        random = np.random.default_rng(self.plan.seed + 2)
        made = {}
        missing = self._missing(random)
        for rank in self.ranks:
            first, last = random.integers(0, 3, 2) if self.facts["windows"] else (0, 0)
            cuts = [rank.begins[first] + rank.clock_ns - 1]
            if last:
                cuts.append(rank.begins[-last] + rank.clock_ns - 1)
            events = [
                e for e in rank.events
                if e["ts"] * US >= cuts[0] and (len(cuts) < 2 or e["ts"] * US < cuts[1])
            ]  # fmt: skip
            info: dict[str, Any] = {"rank": rank.number, "world_size": len(self.ranks)}
            info["backend"] = "gloo" if self.plan.layout == "gloo" else "nccl"
            if self.plan.layout == "gloo":
                info["pg_config"] = [
                    {"pg_name": name, "backend_config": "cpu:gloo", "ranks": members}
                    for name, members in self.groups.items()
                    if rank.number in members
                ]
            if rank.number != missing:
                document = {"schemaVersion": 1, "distributedInfo": info, "traceEvents": events}
                made[rank.number] = document
        return made

    def _missing(self, random: np.random.Generator) -> int | None:
        others = [r.number for r in self.ranks if r.number not in self.facts["culprits"]]
        return int(random.choice(others)) if self.facts["missing"] else None

    def step_ns(self) -> float:
        """Return the mean time of a step, from the third one on."""
        return float(np.mean([(r.begins[-1] - r.begins[2]) for r in self.ranks])) / (
            len(self.ranks[0].begins) - 3
        )

    def blame(self) -> dict[int, str]:
        """Return the ranks that may be named first, with the cause of each."""
        culprits = self.facts["culprits"]
        if self.fault == "two":
            return {culprits[0]: "host", culprits[1]: "slow-kernels"}
        if self.fault != "network":
            return {culprits[0]: CAUSES[self.fault]}
        small = [m for m in self.groups.values() if len(m) < len(self.ranks) and culprits[0] in m]
        return {rank: "network" for members in small for rank in members}


# Layouts ------------------------------------------------------------------------------------------


def ddp(job: Job, rank: Rank) -> Iterator[None]:
    """Data parallel, buckets of gradients overlap with backward."""
    everybody = job.group("0", list(range(len(job.ranks))))
    for step in range(job.plan.steps):
        job.begin(rank, step)
        for layer in range(job.layers):
            job.layer(rank, layer, 1, "forward")
        job.middle(rank, step)
        for layer in range(job.layers):
            job.layer(rank, layer, 2, "backward")
            job.join(rank, REDUCES, COMPUTE)
            yield from job.collective(rank, REDUCES, everybody, "AllReduce", 4 + layer)
        job.finish(rank, step)


def fsdp(job: Job, rank: Rank) -> Iterator[None]:
    """Sharded parameters, gathered one layer ahead; gradients are scattered meanwhile."""
    yield from _sharded(job, rank, job.group("0", list(range(len(job.ranks)))), None)


def hsdp(job: Job, rank: Rank) -> Iterator[None]:
    """Sharded within a node, replicas across nodes: reduce-scatter, then all-reduce."""
    half = len(job.ranks) // 2
    node, place = divmod(rank.number, half)
    shard = job.group(f"s{node}", list(range(node * half, (node + 1) * half)))
    yield from _sharded(job, rank, shard, job.group(f"r{place}", [place, half + place]))


def _sharded(job: Job, rank: Rank, shard: str, replicas: str | None) -> Iterator[None]:
    for step in range(job.plan.steps):
        job.begin(rank, step)
        for way, factor in (("forward", 1), ("backward", 2)):
            if way == "backward":
                job.middle(rank, step)
            job.join(rank, GATHERS, GATHERS)
            yield from job.collective(rank, GATHERS, shard, "AllGather")
            for layer in range(job.layers):
                ready = rank.free[GATHERS]
                if layer + 1 < job.layers:
                    yield from job.collective(rank, GATHERS, shard, "AllGather")
                rank.free[COMPUTE] = max(rank.free.get(COMPUTE, 0.0), ready)
                job.layer(rank, layer, factor, way)
                # Memory for one more layer only: the next gather waits for this one's compute.
                job.join(rank, GATHERS, COMPUTE)
                if way == "backward":
                    job.join(rank, REDUCES, COMPUTE)
                    yield from job.collective(rank, REDUCES, shard, "ReduceScatter")
                    if replicas:
                        job.join(rank, NODES, REDUCES)
                        yield from job.collective(rank, NODES, replicas, "AllReduce", 8)
        job.finish(rank, step)


def tensor(job: Job, rank: Rank) -> Iterator[None]:
    """Tensor parallel pairs or fours, data parallel across them."""
    size = 2 if len(job.ranks) == 4 else 4
    row, place = divmod(rank.number, size)
    inner = job.group(f"t{row}", list(range(row * size, (row + 1) * size)))
    outer = job.group(f"d{place}", list(range(place, len(job.ranks), size)))
    for step in range(job.plan.steps):
        job.begin(rank, step)
        for way, factor in (("forward", 1), ("backward", 2)):
            if way == "backward":
                job.middle(rank, step)
            for layer in range(job.layers):
                job.layer(rank, layer, factor, way)
                yield from job.collective(rank, COMPUTE, inner, "AllReduce", 2)
                if way == "backward":
                    job.join(rank, REDUCES, COMPUTE)
                    yield from job.collective(rank, REDUCES, outer, "AllReduce", 6)
        job.finish(rank, step)


def experts(job: Job, rank: Rank) -> Iterator[None]:
    """Experts on all ranks: two all-to-alls per layer; gradients at the end."""
    everybody = job.group("0", list(range(len(job.ranks))))
    tokens = job.group("ep", list(range(len(job.ranks))))
    for step in range(job.plan.steps):
        job.begin(rank, step)
        for way, factor in (("forward", 1), ("backward", 2)):
            if way == "backward":
                job.middle(rank, step)
            for _ in range(job.layers):
                job.kernel(rank, f"{way}_attention", 0.5 * factor * job.usual)
                yield from job.collective(rank, COMPUTE, tokens, "SendRecv", 3)
                uneven = max(0.3, rank.random.normal(1, 0.05))
                job.kernel(rank, f"{way}_expert", 0.5 * factor * job.usual * uneven)
                yield from job.collective(rank, COMPUTE, tokens, "SendRecv", 3)
        job.join(rank, REDUCES, COMPUTE)
        yield from job.collective(rank, REDUCES, everybody, "AllReduce", 20)
        job.finish(rank, step)


def pipeline(job: Job, rank: Rank) -> Iterator[None]:
    """Stages with one forward and one backward in turn, replicated when there are 8 ranks."""
    stages = 4 if len(job.ranks) == 8 else len(job.ranks)
    stage, replica = rank.number % stages, rank.number // stages
    batches, base = stages + 2, replica * stages
    everybody = job.group("0", list(range(len(job.ranks))))
    warmup = stages - stage - 1
    order = [(0, n) for n in range(warmup)]
    for n in range(batches - warmup):
        order += [(0, warmup + n), (1, n)]
    order += [(1, n) for n in range(batches - warmup, batches)]
    for step in range(job.plan.steps):
        job.begin(rank, step)
        for at, (way, n) in enumerate(order):
            if at == len(order) // 2:
                job.middle(rank, step)
            source, target = (stage - 1, stage + 1) if way == 0 else (stage + 1, stage - 1)
            number = step * batches + n
            if 0 <= source < stages:
                yield from job.receive(rank, base + source, way, number)
            job.layer(rank, 0, 1 + way, ("forward", "backward")[way])
            if 0 <= target < stages:
                job.send(rank, base + target, way, number)
        yield from job.collective(rank, REDUCES, everybody, "AllReduce", 0.1)
        job.finish(rank, step)


def gloo(job: Job, rank: Rank) -> Iterator[None]:
    """Collectives on the CPU, of all ranks and of one pair, recorded without sizes."""
    everybody = job.group("0", [0, 1, 2, 3])
    first = job.facts["culprits"][0]
    pair = job.group("1", sorted([first, (first + 1) % 4]))
    for step in range(job.plan.steps):
        job.begin(rank, step)
        if rank.number in job.groups[pair]:
            yield from _on_cpu(job, rank, pair, 0.3)
        for layer in range(job.layers):
            job.layer(rank, layer, 1, "forward")
        job.middle(rank, step)
        for layer in range(job.layers):
            job.layer(rank, layer, 2, "backward")
            if layer % 2 or layer + 1 == job.layers:
                yield from _on_cpu(job, rank, everybody, 30.0, ready=rank.free[COMPUTE])
        rank.host = max(rank.host, rank.free.get(NODES, 0.0))
        job.finish(rank, step)


def _on_cpu(job: Job, rank: Rank, group: str, mb: float, ready: float = 0.0) -> Iterator[None]:
    """Run a collective on one of two threads; who waits for it is up to the caller."""
    start = rank.host
    rank.record("cpu_op", "c10d::allreduce_", start, start + 30 * US)
    rank.host += 30 * US
    arrival = max(start + 40 * US, ready, rank.free.get(NODES, 0.0) if ready else 0.0)
    end, _ = yield from job.meet(rank, group, arrival, mb)
    end += rank.random.gamma(2, 100 * US)
    number = rank.sequence[group]
    thread = 101 + 10 * int(group) + number % 2
    rank.record("user_annotation", "gloo:all_reduce", start + 40 * US, end, thread=thread)
    if ready:
        rank.free[NODES] = end
    else:
        rank.host = max(rank.host, end)


LAYOUTS: dict[str, Callable[[Job, Rank], Iterator[None]]] = {
    "ddp": ddp, "fsdp": fsdp, "hsdp": hsdp, "tensor": tensor, "experts": experts,
    "pp": pipeline, "gloo": gloo,
}  # fmt: skip


def all_plans(half: int, per_kind: int, first_seed: int) -> Iterator[Plan]:
    """Plans of one half: a hash of the plan decides which half it is in."""
    seed = first_seed
    for layout in LAYOUTS:
        for fault in (*FAULTS, "none", "none"):
            if fault == "network" and layout not in ("hsdp", "tensor"):
                continue  # only groups of some ranks can have a slow network of their own
            for _ in range(per_kind):
                seed += 1
                plan = Plan(layout, fault, seed)
                if hashlib.sha256(repr(plan).encode()).digest()[0] % 2 == half:
                    yield plan
