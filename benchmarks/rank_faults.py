"""Planted stragglers: which rank `gpusight ranks` names, with which cause, and what it accuses.

    python -m benchmarks.rank_faults                    # simulated jobs, design and held out
    python -m benchmarks.rank_faults --layouts 6        # many layouts, of rank_layouts.py
    python -m benchmarks.rank_faults --captures FOLDER  # faults in captures of a balanced job
    python -m benchmarks.rank_faults --recorded FOLDER  # jobs that ddp_faults.py recorded

The simulator shares no code with the analysis: hosts launch, streams run in order, collectives end
for all ranks when the last one has arrived. Jobs are written as torch.profiler traces. In captures,
time is inserted: in the culprit where the fault is, in the others inside the next collective.
Names of folders that `--recorded` reads are FAULT-RANK-NUMBER, such as host-2-0 or none-0-3.
"""

from __future__ import annotations

import argparse
import gzip
import json
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

import gpusight as gs
from benchmarks.rank_layouts import Job as LayoutJob
from benchmarks.rank_layouts import all_plans

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

US, MS = 1_000, 1_000_000
CAUSE = {
    "host": "host", "input": "input", "more-work": "more-work", "larger-work": "more-work",
    "slow-kernels": "slow-kernels", "every-third": "host", "upstream": "host",
}  # fmt: skip
LAYOUTS = ("ddp", "fsdp", "tensor")
MAX_ACCUSED = 0.05
_RECORDED_AS = {
    "AllReduce": "allreduce",
    "AllGather": "_allgather_base",
    "ReduceScatter": "_reduce_scatter_base",
}  # fmt: skip
Event = dict[str, Any]


@dataclass
class Rank:
    """A simulated process: its host, its streams, and what a profiler would record."""

    clock_ns: float
    host: float = 0.0
    compute: float = 0.0
    comm: float = 0.0
    slow: float = 1.0
    larger: int = 1
    events: list[Event] = field(default_factory=list)
    calls: int = 0

    def record(self, category: str, name: str, start: float, end: float, **args: Any) -> None:
        ts, dur = (start + self.clock_ns) / US, (end - start) / US
        pid, tid = (0, args["stream"]) if category == "kernel" else (77, 77)
        row = {"ph": "X", "cat": category, "name": name, "ts": ts, "dur": dur}
        self.events.append({**row, "pid": pid, "tid": tid, "args": args})

    def call(self, name: str, length: float) -> int:
        self.calls += 1
        self.record("cuda_runtime", name, self.host, self.host + length, correlation=self.calls)
        self.host += length
        return self.calls

    def kernel(self, name: str, length: float, blocks: int) -> None:
        correlation = self.call("cudaLaunchKernel", 5 * US)
        start = max(self.compute, self.host + 3 * US)
        self.compute = start + length
        grid = [blocks, 1, 1]
        where = {"device": 0, "stream": 7, "correlation": correlation, "grid": grid}
        self.record("kernel", name, start, self.compute, **where)
        self.host += 2 * US


@dataclass(frozen=True)
class Job:
    """A job to simulate: its shape, and the fault that is planted."""

    fault: str
    layout: str
    seed: int
    ranks: int = 4
    steps: int = 15

    def culprit(self) -> int:
        return int(np.random.default_rng(self.seed).integers(self.ranks))

    def traces(self) -> list[list[Event]]:
        random = np.random.default_rng(self.seed)
        culprit = int(random.integers(self.ranks))
        ranks = [Rank(float(random.uniform(0, 1e8))) for _ in range(self.ranks)]
        layers = int(random.integers(4, 9))
        usual_ns = float(random.uniform(0.3, 1.2)) * MS
        noise = float(random.uniform(0.005, 0.03))
        # Without a wait for the loss, hosts run ahead, and their delays cost nothing.
        waits = bool(random.integers(2)) or CAUSE.get(self.fault) in ("host", "input")
        step_ns = 3.2 * layers * usual_ns
        size_ns = float(random.uniform(0.08, 0.5)) * step_ns
        for number in range(self.steps):
            begins = [(rank, rank.host) for rank in ranks]
            is_late = self.fault != "every-third" or number % 3 == 1
            for place, rank in enumerate(ranks):
                here = place == culprit and is_late
                rank.slow, rank.larger = 1.0, 1
                self._begin(rank, size_ns if here else 0.0, random, usual_ns)
                if here and self.fault == "slow-kernels":
                    rank.slow = 1 + size_ns / step_ns
                if here and self.fault == "larger-work":
                    rank.larger = 2
            self._layers(ranks, random, layers, usual_ns, noise)
            for rank in ranks:
                rank.compute = max(rank.compute, rank.comm)
                rank.kernel("optimizer", 0.2 * usual_ns * random.normal(1, noise), 216)
                if waits:
                    wait = max(rank.compute - rank.host, 2 * US) + 2 * US
                    rank.call("cudaStreamSynchronize", wait)
            for rank, begin in begins:
                rank.record("user_annotation", f"ProfilerStep#{number}", begin, rank.host)
        return [rank.events for rank in ranks]

    def _begin(
        self, rank: Rank, size_ns: float, random: np.random.Generator, usual_ns: float
    ) -> None:
        """Load data; the fault happens before the first launch, as most do."""
        rank.host += random.gamma(4, 5 * US)
        loading = random.gamma(4, 10 * US) + (size_ns if self.fault == "input" else 0)
        name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
        rank.record("user_annotation", name, rank.host, rank.host + loading)
        rank.host += loading
        if self.fault in ("host", "every-third", "upstream"):
            rank.host += size_ns
        if self.fault == "more-work" and size_ns:
            for _ in range(max(1, round(size_ns / usual_ns))):
                rank.kernel("extra_gemm", usual_ns, 432)

    def _layers(
        self,
        ranks: list[Rank],
        random: np.random.Generator,
        layers: int,
        usual_ns: float,
        noise: float,
    ) -> None:
        everybody = list(range(self.ranks))
        half = self.ranks // 2
        rows = [everybody[:half], everybody[half:]]
        columns = [list(pair) for pair in zip(*rows, strict=True)]
        two_groups = self.layout == "tensor" or self.fault == "upstream"
        for direction, factor in (("forward", 1.0), ("backward", 2.0)):
            for layer in range(layers):
                if self.layout == "fsdp":
                    self._collective(ranks, everybody, "AllGather", "0", random, blocks=True)
                for rank in ranks:
                    length = usual_ns * factor * rank.slow * (1 + 0.9 * (rank.larger - 1))
                    for part in (0.7, 0.3):
                        name = f"{direction}_gemm_{layer % 3}_{part}"
                        own = part * length * random.normal(1, noise)
                        rank.kernel(name, own, 216 * rank.larger)
                    rank.host += random.gamma(2, 10 * US)
                for group, members in enumerate(rows if two_groups else ()):
                    self._collective(ranks, members, "AllReduce", f"t{group}", random, blocks=True)
                if direction == "backward":
                    kind = "ReduceScatter" if self.layout == "fsdp" else "AllReduce"
                    for group, members in enumerate(columns if two_groups else [everybody]):
                        self._collective(ranks, members, kind, f"d{group}", random)

    def _collective(
        self, ranks: list[Rank], members: list[int], kind: str, group: str,
        random: np.random.Generator, *, blocks: bool = False,
    ) -> None:  # fmt: skip
        """Start after the compute before it; the ranks leave together, waiting ones a bit later."""
        size = 4 * MS
        arrivals = {}
        for place in members:
            rank = ranks[place]
            correlation = rank.call("cudaLaunchKernel", 6 * US)
            arrivals[place] = (max(rank.comm, rank.compute, rank.host + 3 * US), correlation)
        last = max(arrival for arrival, _ in arrivals.values())
        end = last + random.gamma(20, 5 * US)
        for place, (arrival, correlation) in arrivals.items():
            rank = ranks[place]
            own_end = end + (4 * US if arrival < last else 0) + random.gamma(2, 500)
            facts: dict[str, Any] = {"device": 0, "stream": 20, "correlation": correlation}
            if self.seed % 3 or self.layout == "tensor" or self.fault == "upstream":
                facts |= {
                    "Collective name": _RECORDED_AS[kind], "dtype": "Float",
                    "In msg nelems": size // 4, "Out msg nelems": size // 4,
                    "Group size": len(members), "Process Group Name": group,
                    "Process Group Ranks": json.dumps(members),
                }  # fmt: skip
            name = f"ncclDevKernel_{kind}{'_Sum' * (kind != 'AllGather')}_f32_RING_LL"
            rank.record("kernel", name, arrival, own_end, **facts)
            rank.comm = own_end
            if blocks:
                rank.compute = max(rank.compute, own_end)


def write_job(traces: list[list[Event]], folder: Path, backend: str = "nccl") -> None:
    for rank, events in enumerate(traces):
        about = {"rank": rank, "world_size": len(traces), "backend": backend}
        document = {"schemaVersion": 1, "distributedInfo": about, "traceEvents": events}
        data = gzip.compress(json.dumps(document).encode(), compresslevel=1)
        (folder / f"trace.rank{rank}.json.gz").write_bytes(data)


# Faults in captures -------------------------------------------------------------------------------


def warped(events: list[Event], cuts: list[tuple[float, float]]) -> list[Event]:
    """Insert time at these moments (µs); what spans a moment becomes longer."""
    at = np.array([time for time, _ in sorted(cuts)])
    total = np.concatenate(([0.0], np.cumsum([length for _, length in sorted(cuts)])))
    made = []
    for event in events:
        if "ts" not in event:
            made.append(event)
            continue
        start, end = float(event["ts"]), float(event["ts"]) + float(event.get("dur", 0))
        begin, stop = (t + total[np.searchsorted(at, t, side="right")] for t in (start, end))
        made.append({**event, "ts": begin, **({"dur": stop - begin} if "dur" in event else {})})
    return made


def with_fault(
    documents: list[dict[str, Any]], fault: str, culprit: int, share: float
) -> list[dict[str, Any]]:
    """Plant a fault in the captures of a balanced job, whose collectives run on the CPU."""
    made = []
    for rank, document in enumerate(documents):
        events = document["traceEvents"]
        steps = sorted(
            (e for e in events if _is_step(e)),
            key=lambda e: e["ts"],
        )
        size = share * float(np.median([e["dur"] for e in steps]))
        cuts, added = [], []
        for number, step in enumerate(steps):
            if fault == "none" or (fault == "every-third" and number % 3 != 1):
                continue
            inside = [
                e for e in events if "dur" in e and step["ts"] <= e["ts"] < step["ts"] + step["dur"]
            ]
            if rank == culprit:
                more, new = _cuts(inside, step, fault, size)
                cuts += more
                added += new
            else:
                first = min(
                    (e for e in inside if str(e["name"]).startswith("gloo:all_reduce")),
                    key=lambda e: e["ts"],
                    default=None,
                )
                if first is not None:
                    cuts.append((first["ts"] + 0.9 * first["dur"], size))
        made.append({**document, "traceEvents": [*warped(events, cuts), *_shifted(added, cuts)]})
    return made


def _is_step(event: Event) -> bool:
    name, category = str(event.get("name")), event.get("cat")
    return category == "user_annotation" and name.startswith("ProfilerStep#")


def _cuts(
    inside: list[Event], step: Event, fault: str, size: float
) -> tuple[list[tuple[float, float]], list[Event]]:
    """Return where time is inserted in the culprit's step, and new events (times before that)."""
    kernels = sorted((e for e in inside if e["cat"] == "kernel"), key=lambda e: e["ts"])
    begin = _idle_moment(inside, step)
    if fault in ("host", "every-third") or not kernels:
        return [(begin, size)], []
    if fault == "input":
        name = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
        new = {**step, "name": name, "ts": begin, "dur": 0.0, "inserted": size}
        return [(begin, size)], [new]
    if fault == "slow-kernels":
        total = sum(e["dur"] for e in kernels)
        return [(e["ts"] + e["dur"] / 2, size * e["dur"] / total) for e in kernels], []
    first = kernels[0]
    new = {**first, "name": "extra_gemm", "ts": first["ts"], "dur": 0.0, "inserted": size}
    return [(first["ts"] - 0.001, size)], [new]


def _correlation(event: Event) -> int | None:
    number: int | None = event.get("args", {}).get("correlation")
    return number


def _idle_moment(inside: list[Event], step: Event) -> float:
    """Return a moment early in the step at which no GPU work runs or waits: a late host shows."""
    work = [e for e in inside if e["cat"] in ("kernel", "gpu_memcpy", "gpu_memset")]
    ends = {_correlation(e): e["ts"] + e["dur"] for e in work}
    calls = [e for e in inside if e["cat"].startswith("cuda_") and _correlation(e) in ends]
    done = max((e["ts"] + e["dur"] for e in work if e["ts"] < step["ts"] + 5.0), default=0.0)
    for call in sorted(calls, key=lambda e: e["ts"]):
        if call["ts"] > done:
            return float(call["ts"]) - 0.5
        done = max(done, ends[_correlation(call)])
    return float(step["ts"]) + 1.0


def _shifted(added: list[Event], cuts: list[tuple[float, float]]) -> list[Event]:
    made = []
    for event in added:
        size = event.pop("inserted")
        before = sum(length for time, length in cuts if time < event["ts"] - 0.002)
        made.append({**event, "ts": event["ts"] + before, "dur": size})
    return made


# Scores -------------------------------------------------------------------------------------------


@dataclass
class Score:
    """What was planted, and what was found."""

    faults: int = 0
    first: int = 0
    cause: int = 0
    balanced: int = 0
    accused: list[float] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)

    def add(self, folder: Path, fault: str, culprit: int, name: str) -> None:
        stragglers = gs.ranks(folder, cache=False, jobs=1).stragglers
        if fault == "none":
            self.balanced += 1
            self.accused.append(max((straggler.share for straggler in stragglers), default=0.0))
            if self.accused[-1] > MAX_ACCUSED:
                self.wrong.append(
                    f"{name}: accused rank {stragglers[0].rank}, {self.accused[-1]:.1%}"
                )
            return
        self.faults += 1
        right = bool(stragglers) and stragglers[0].rank == culprit
        self.first += right
        self.cause += right and stragglers[0].cause == CAUSE[fault]
        if not right or stragglers[0].cause != CAUSE[fault]:
            answers = [
                (straggler.rank, straggler.cause, round(straggler.share, 3))
                for straggler in stragglers
            ]
            self.wrong.append(f"{name}: rank {culprit} {CAUSE[fault]}, found {answers}")

    def show(self, name: str) -> None:
        accused = sum(share > MAX_ACCUSED for share in self.accused)
        print(
            f"| {name} | {self.faults} | {self.first / max(1, self.faults):.1%} | "
            f"{self.cause / max(1, self.faults):.1%} | {self.balanced} | {accused} | "
            f"{max(self.accused, default=0.0):.1%} |"
        )
        for line in self.wrong:
            print(f"  {line}")


def simulated(half: int, per_fault: int) -> Iterator[Job]:
    """Jobs of one half: seeds of the other half are never seen."""
    number = 0
    for fault in ("none", *CAUSE):
        for _ in range(per_fault * (2 if fault == "none" else 1)):
            layout = LAYOUTS[number % len(LAYOUTS)]
            yield Job(fault, layout, 2 * number + half, 4 if number % 2 else 8)
            number += 1


def score_simulated(per_fault: int) -> None:
    for half, name in enumerate(("simulated, design", "simulated, held out")):
        score = Score()
        for job in simulated(half, per_fault):
            with tempfile.TemporaryDirectory() as folder:
                write_job(job.traces(), Path(folder))
                score.add(Path(folder), job.fault, job.culprit(), repr(job))
        score.show(name)


MIN_COST = 0.03
"""Part of the step that a fault of a layout must cost to be counted: others are hidden."""


def score_layouts(per_kind: int) -> None:
    for half, name, first_seed in ((0, "layouts, design", 2000), (1, "layouts, held out", 5000)):
        score, hidden, saved = LayoutScore(), 0, []
        for plan in all_plans(half, per_kind, first_seed):
            job = plan.run()
            now, fixed = job.step_ns(), plan.run(with_fault=False).step_ns()
            cost = (now - fixed) / now
            if plan.fault != "none" and cost < MIN_COST:
                hidden += 1
                continue
            error = score.add_job(job, cost)
            saved += [] if error is None else [error]
        score.show(name)
        errors = np.quantile(saved, (0.5, 0.9))
        print(f"  {hidden} hidden; error of savings {errors[0]:.1%}, {errors[1]:.1%} of the step")


class LayoutScore(Score):
    """Scores of jobs with one or two culprits, or several ranks that share a slow network."""

    def add_job(self, job: LayoutJob, cost: float) -> float | None:
        """Count a job; returns the error of what its stragglers cost, where the first is right."""
        with tempfile.TemporaryDirectory() as folder:
            for rank, document in job.documents().items():
                (Path(folder) / f"trace.rank{rank}.json").write_text(json.dumps(document))
            stragglers = gs.ranks(folder, cache=False, jobs=1).stragglers
        shares = [straggler.share for straggler in stragglers]
        if job.fault == "none":
            self.balanced += 1
            self.accused.append(max(shares, default=0.0))
            return None
        blame = job.blame()
        first = stragglers[0] if stragglers else None
        right = first is not None and first.rank in blame
        cause = first is not None and right and first.cause == blame[first.rank]
        self.faults += 1
        self.first += right
        self.cause += cause
        if not cause:
            found = [(s.rank, s.cause, round(s.share, 3)) for s in stragglers]
            self.wrong.append(f"{job.plan}: {blame} costs {cost:.1%}, found {found}")
        return abs(sum(shares) - cost) if right else None


def score_captures(folder: Path) -> None:
    files = sorted(folder.glob("ddp_torch_-1.rank*.json.gz"))
    documents = [json.loads(gzip.decompress(file.read_bytes())) for file in files]
    faults = ("none", "host", "input", "more-work", "slow-kernels", "every-third")
    for half, name in enumerate(("gloo captures, design", "gloo captures, held out")):
        score = Score()
        random = np.random.default_rng((100, 300)[half])
        for fault in faults:
            for _ in range(1 if fault == "none" else 4):
                culprit, share = int(random.integers(len(files))), float(random.uniform(0.2, 0.8))
                _score_planted(score, documents, fault, culprit, share)
        score.show(name)


def _score_planted(
    score: Score, documents: list[dict[str, Any]], fault: str, culprit: int, share: float
) -> None:
    with tempfile.TemporaryDirectory() as target:
        for rank, document in enumerate(with_fault(documents, fault, culprit, share)):
            data = gzip.compress(json.dumps(document).encode(), compresslevel=1)
            (Path(target) / f"trace.rank{rank}.json.gz").write_bytes(data)
        score.add(Path(target), fault, culprit, f"{fault} {share:.0%} of rank {culprit}")


def score_recorded(folder: Path) -> None:
    half: Callable[[int], str] = lambda number: ("design", "held out")[number % 2]  # noqa: E731
    scores = {"design": Score(), "held out": Score()}
    for job in sorted(path for path in folder.iterdir() if path.is_dir()):
        fault, rank, number = job.name.rsplit("-", 2)
        scores[half(int(number))].add(job, fault, int(rank), job.name)
    for name, score in scores.items():
        score.show(f"recorded, {name}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--captures", type=Path)
    parser.add_argument("--recorded", type=Path)
    parser.add_argument("--layouts", type=int, help="jobs of each layout and fault")
    parser.add_argument("--per-fault", type=int, default=6)
    args = parser.parse_args()
    print("| jobs | faults | culprit first | cause right | balanced | accused > 5% | largest |")
    if args.captures:
        score_captures(args.captures)
    if args.recorded:
        score_recorded(args.recorded)
    if args.layouts:
        score_layouts(args.layouts)
    if not args.captures and not args.recorded and not args.layouts:
        score_simulated(args.per_fault)


if __name__ == "__main__":
    main()
