"""Generated jobs: pipeline and data parallel workers whose timeline is known."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import polars as pl

from gpusight.readers.job_trace import JOB_COLUMNS, job_table

Pass = tuple[str, int, int]
"""Direction, chunk and microbatch."""
Duration = Callable[[int, int, int, str], float]
"""Nanoseconds by step, data-parallel rank, stage and operation."""
USUAL_NS = {
    "forward-compute": 1e6,
    "backward-compute": 2e6,
    "forward-recv": 1e4,
    "backward-recv": 1e4,
    "params-all-gather": 1e5,
    "grads-reduce-scatter": 2e5,
    "optimizer-clip-main-grad": 5e4,
    "optimizer": 3e5,
}


def usual(_step: int, _dp_rank: int, _stage: int, operation: str) -> float:
    return USUAL_NS[operation]


def one_forward_one_backward(stage: int, stages: int, microbatches: int) -> list[Pass]:
    warmup = min(stages - stage - 1, microbatches)
    order = [("forward", 0, i) for i in range(warmup)]
    for i in range(microbatches - warmup):
        order += [("forward", 0, warmup + i), ("backward", 0, i)]
    return order + [("backward", 0, i) for i in range(microbatches - warmup, microbatches)]


def all_forward_all_backward(chunks: int, microbatches: int) -> list[Pass]:
    forward = [("forward", c, i) for c in range(chunks) for i in range(microbatches)]
    return forward + [("backward", c, i) for _, c, i in reversed(forward)]


def generated_job(
    orders: list[list[Pass]],
    dp_ranks: int,
    steps: int = 3,
    duration: Duration = usual,
    launch_ns: float = 0,
) -> pl.DataFrame:
    """Run the passes of each stage in these orders; `launch_ns` delays each operation."""
    rows: list[tuple[object, ...]] = []
    for step in range(steps):
        rows += _Step(orders, dp_ranks, lambda *of, step=step: duration(step, *of), launch_ns).run(
            step
        )
    frame = pl.DataFrame(rows, schema=list(JOB_COLUMNS), orient="row", strict=False)
    return job_table({name: pl.col(name) for name in JOB_COLUMNS}, frame)


class _Step:
    def __init__(
        self,
        orders: list[list[Pass]],
        dp_ranks: int,
        duration: Callable[[int, int, str], float],
        launch_ns: float,
    ) -> None:
        self.orders, self.dp_ranks, self.duration = orders, dp_ranks, duration
        self.launch_ns = launch_ns
        self.workers = [(d, s) for d in range(dp_ranks) for s in range(len(orders))]
        self.free = dict.fromkeys(self.workers, 0.0)
        self.rows: list[tuple[object, ...]] = []
        self.numbers: dict[tuple[int, int, str], count[int]] = {}

    def run(self, step: int) -> list[tuple[object, ...]]:
        self.collective("params-all-gather", self.of_stage())
        for dp_rank in range(self.dp_ranks):
            self.pipeline(dp_rank)
        self.collective("grads-reduce-scatter", self.of_stage())
        self.collective("optimizer-clip-main-grad", [self.workers])
        for worker in self.workers:
            self.compute(worker, "optimizer", None, None)
        return [(step, *row) for row in self.rows]

    def of_stage(self) -> list[list[tuple[int, int]]]:
        stages = range(len(self.orders))
        return [[w for w in self.workers if w[1] == stage] for stage in stages]

    def add(
        self, worker: tuple[int, int], name: str, of: tuple[int | None, int | None], *at: float
    ) -> None:
        number = next(self.numbers.setdefault((*worker, name), count()))
        rank = worker[1] * self.dp_ranks + worker[0]
        self.rows.append((rank, *worker, name, number, *of, *map(round, at)))

    def compute(
        self, worker: tuple[int, int], name: str, chunk: int | None, microbatch: int | None
    ) -> float:
        start = self.free[worker] + self.launch_ns
        self.free[worker] = end = start + self.duration(*worker, name)
        self.add(worker, name, (chunk, microbatch), start, end)
        return end

    def collective(self, name: str, groups: list[list[tuple[int, int]]]) -> None:
        for members in groups:
            starts = {worker: self.free[worker] + self.launch_ns for worker in members}
            for worker, start in starts.items():
                end = max(starts.values()) + self.duration(*worker, name)
                self.free[worker] = end
                self.add(worker, name, (0, None), start, end)

    def pipeline(self, dp_rank: int) -> None:
        """Run passes as soon as their input is there; transfers start after the pass before."""
        stages = len(self.orders)
        chunks = stages * (1 + max(chunk for order in self.orders for _, chunk, _ in order))
        done: dict[tuple[str, int, int], float] = {}
        posted = {(s, way): 0.0 for s in range(stages) for way in ("forward", "backward")}
        at = [0] * stages
        while any(at[s] < len(self.orders[s]) for s in range(stages)):
            before = list(at)
            for s in range(stages):
                while at[s] < len(self.orders[s]):
                    way, chunk, microbatch = self.orders[s][at[s]]
                    step = -1 if way == "forward" else 1
                    source = chunk * stages + s + step
                    if 0 <= source < chunks:
                        if (way, source, microbatch) not in done:
                            break
                        sent = done[way, source, microbatch]
                        start = max(sent, posted[s, way])
                        end = start + self.duration(dp_rank, s, f"{way}-recv")
                        self.add((dp_rank, s), f"{way}-recv", (None, None), posted[s, way], end)
                        self.free[dp_rank, s] = max(self.free[dp_rank, s], end)
                        sender = (dp_rank, source % stages)
                        self.add(sender, f"{way}-send", (None, None), sent, end)
                    end = self.compute((dp_rank, s), f"{way}-compute", chunk, microbatch)
                    posted[s, way] = done[way, chunk * stages + s, microbatch] = end
                    at[s] += 1
            assert at != before, "the orders wait for each other"
