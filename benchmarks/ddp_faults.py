"""Data-parallel training on one GPU, with a planted straggler; gloo connects the processes.

    python benchmarks/ddp_faults.py traces/            # 42 faults and 14 balanced jobs
    python benchmarks/ddp_faults.py traces/ --jobs 2   # the first two only
    python -m benchmarks.rank_faults --recorded traces/         # scores them

Each job is a folder FAULT-RANK-NUMBER of torch.profiler traces. All processes share the GPU, so its
other ranks slow a rank down too: small models, and a rank sleeps or computes for longer than that.
"""

from __future__ import annotations

import argparse
import random
import time
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

FAULTS = ("host", "input", "more-work", "larger-work", "every-third", "upstream")
RANKS, STEPS, WARMUP = 4, 12, 4
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def batches(size: int, delay: Callable[[], float]) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches; a late loader sleeps before each."""
    while True:
        time.sleep(delay())
        yield torch.randn(size, 1024, device=DEVICE), torch.randint(0, 10, (size,), device=DEVICE)


def busy(seconds: float) -> None:
    """Keep the Python of this rank busy."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def train(rank: int, folder: Path, fault: str, culprit: int, seconds: float, port: int) -> None:
    dist.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    if DEVICE == "cuda":
        torch.cuda.set_device(0)
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(1024, 1024), torch.nn.ReLU())]
    own = torch.nn.Sequential(*layers, torch.nn.Linear(1024, 10)).to(DEVICE)
    model = DistributedDataParallel(own)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    late = rank == culprit
    extra = torch.randn(2048, 2048, device=DEVICE)
    size = 2048 if fault == "larger-work" and late else 512
    loader = batches(size, lambda: seconds if fault == "input" and late else 0.0)
    pair = dist.new_group([culprit, (culprit + 1) % RANKS]) if fault == "upstream" else None

    def step(number: int) -> None:
        if late and (fault in ("host", "upstream") or (fault == "every-third" and number % 3 == 1)):
            (busy if number % 2 else time.sleep)(seconds)
        with torch.profiler.record_function("dataloader.next"):
            x, y = next(loader)
        if late and fault == "more-work":
            begin = time.perf_counter()
            while time.perf_counter() - begin < seconds:
                extra.mm(extra)
                if DEVICE == "cuda":
                    torch.cuda.synchronize()
        if pair is not None and rank in (culprit, (culprit + 1) % RANKS):
            dist.all_reduce(torch.ones(1 << 16), group=pair)
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    activities = [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if DEVICE == "cuda" else []
    with profile(
        activities=activities, schedule=schedule(wait=2, warmup=WARMUP - 2, active=STEPS)
    ) as p:
        for number in range(WARMUP + STEPS):
            step(number)
            p.step()
    p.export_chrome_trace(str(folder / f"trace.rank{rank}.json.gz"))
    dist.destroy_process_group()


def plan() -> Iterator[tuple[str, int, float, int]]:
    """Give fault, culprit and seconds of each job: seven of each fault, and 14 balanced ones."""
    chance = random.Random(22)
    for number in range(7):
        for fault in FAULTS:
            yield fault, chance.randrange(RANKS), chance.uniform(0.005, 0.04), number
        for again in (0, 1):
            yield "none", 0, 0.0, 2 * number + again


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=1000)
    args = parser.parse_args()
    for place, (fault, culprit, seconds, number) in enumerate(list(plan())[: args.jobs]):
        folder = args.folder / f"{fault}-{culprit}-{number}"
        folder.mkdir(parents=True)
        given = (folder, fault, culprit, seconds, 29600 + place)
        spawn(train, given, nprocs=RANKS)
        print(folder, f"{seconds * 1e3:.1f} ms", flush=True)


if __name__ == "__main__":
    main()
