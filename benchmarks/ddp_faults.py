"""Data-parallel training on one GPU, with a planted straggler; gloo connects the processes.

    python benchmarks/ddp_faults.py traces/                    # 42 faults and 14 balanced jobs
    python benchmarks/ddp_faults.py traces/ --jobs 9           # one of each fault, two balanced
    python benchmarks/ddp_faults.py traces/ --tar jobs.tar --minutes 3
    python -m benchmarks.rank_faults --recorded traces/        # scores them

Each job is a folder FAULT-RANK-NUMBER of torch.profiler traces. The same processes run all jobs,
each in process groups of its own: they import torch and start CUDA once. All share the GPU, so
other ranks slow a rank down too: small models, and a rank sleeps or computes for longer than that.
"""

from __future__ import annotations

import argparse
import random
import shutil
import socket
import tarfile
import time
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore
from torch.multiprocessing.spawn import spawn
from torch.nn.parallel import DistributedDataParallel
from torch.profiler import ProfilerActivity, profile, schedule

if TYPE_CHECKING:
    from collections.abc import Iterator

FAULTS = ("host", "input", "more-work", "larger-work", "slow-kernels", "every-third", "upstream")
RANKS, STEPS, WARMUP = 4, 12, 4
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
TIMEOUT = timedelta(seconds=180)


@dataclass(frozen=True)
class Job:
    """What one job trains, and the fault that is planted."""

    fault: str
    culprit: int
    seconds: float
    number: int
    width: int

    @property
    def folder(self) -> str:
        return f"{self.fault}-{self.culprit}-{self.number}"


def plan(width: int) -> list[Job]:
    """Return six jobs of each fault and 14 balanced ones: every fault is among the first nine."""
    chance = random.Random(22)
    jobs = []
    for number in range(7):
        for fault in FAULTS if number < 6 else ():
            culprit, seconds = chance.randrange(RANKS), chance.uniform(0.005, 0.04)
            jobs.append(Job(fault, culprit, seconds, number, width))
        jobs += [Job("none", 0, 0.0, 2 * number + again, width) for again in (0, 1)]
    return jobs


class Faults:
    """What a rank does besides training: its fault, and what all ranks do for comparison."""

    def __init__(self, job: Job, rank: int, store: Store) -> None:
        self.job, self.late = job, rank == job.culprit and job.fault != "none"
        side = 2 * job.width
        self.extra = torch.randn(side, side, device=DEVICE)
        pair = [job.culprit, (job.culprit + 1) % RANKS]
        self.pair = dist.new_group(pair) if job.fault == "upstream" else None
        self.in_pair = rank in pair
        self.sums = 0
        if job.fault == "slow-kernels":
            # The same kernel on every rank; where all values meet in one place, it takes longer.
            self.values = torch.ones(side * side, device=DEVICE)
            spread = torch.arange(side * side, device=DEVICE)
            self.places = spread * 0 if self.late else spread
            self.target = torch.zeros(side * side, device=DEVICE)
            if self.late:
                store.set("sums", str(self._sums_for(job.seconds)))
            self.sums = int(store.get("sums"))

    def _sums_for(self, seconds: float) -> int:
        self.target.index_add_(0, self.places, self.values)
        synchronize()
        begin = time.perf_counter()
        self.target.index_add_(0, self.places, self.values)
        synchronize()
        return min(200, max(1, round(seconds / (time.perf_counter() - begin))))

    def before_input(self, step: int) -> None:
        fault = self.job.fault
        if self.late and (
            fault in ("host", "upstream") or (fault == "every-third" and step % 3 == 1)
        ):
            (busy if step % 2 else time.sleep)(self.job.seconds)

    def before_forward(self) -> None:
        if self.late and self.job.fault == "more-work":
            begin = time.perf_counter()
            while time.perf_counter() - begin < self.job.seconds:
                self.extra.mm(self.extra)
                synchronize()
        for _ in range(self.sums):
            self.target.index_add_(0, self.places, self.values)
        if self.pair is not None and self.in_pair:
            dist.all_reduce(torch.ones(1 << 16), group=self.pair)


def synchronize() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def busy(seconds: float) -> None:
    """Keep the Python of this rank busy."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        pass


def batches(size: int, width: int, delay: float) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Yield batches; a late loader sleeps before each."""
    while True:
        time.sleep(delay)
        yield (
            torch.randn(size, width, device=DEVICE),
            torch.randint(0, 10, (size,), device=DEVICE),
        )


def train(rank: int, job: Job, folder: Path, store: Store) -> None:
    """Run one job and write the trace of this rank."""
    dist.init_process_group("gloo", store=store, rank=rank, world_size=RANKS, timeout=TIMEOUT)
    torch.manual_seed(0)
    width = job.width
    layers = [layer for _ in range(4) for layer in (torch.nn.Linear(width, width), torch.nn.ReLU())]
    model = DistributedDataParallel(
        torch.nn.Sequential(*layers, torch.nn.Linear(width, 10)).to(DEVICE)
    )
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    faults = Faults(job, rank, store)
    size = 2048 if job.fault == "larger-work" and faults.late else 512
    loader = batches(size, width, job.seconds if job.fault == "input" and faults.late else 0.0)

    def step(number: int) -> None:
        faults.before_input(number)
        with torch.profiler.record_function("dataloader.next"):
            x, y = next(loader)
        faults.before_forward()
        loss = torch.nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    activities = [ProfilerActivity.CPU]
    activities += [ProfilerActivity.CUDA] if DEVICE == "cuda" else []
    with profile(
        activities=activities,
        schedule=schedule(wait=2, warmup=WARMUP - 2, active=STEPS),
        record_shapes=True,  # sizes of collectives, of which groups run different ones
    ) as p:
        for number in range(WARMUP + STEPS):
            step(number)
            p.step()
    p.export_chrome_trace(str(folder / f"trace.rank{rank}.json.gz"))
    dist.barrier()
    dist.destroy_process_group()


def run_jobs(rank: int, jobs: list[Job], target: Path, port: int, deadline: float) -> None:
    """Run all jobs, as far as there is time: rank 0 decides, so that all agree."""
    torch.set_num_threads(2)
    if DEVICE == "cuda":
        torch.cuda.set_device(0)
    store = TCPStore("127.0.0.1", port, RANKS, is_master=rank == 0, timeout=TIMEOUT)
    for place, job in enumerate(jobs):
        begin = time.monotonic()
        own = PrefixStore(f"job{place}", store)
        folder = target / job.folder
        if rank == 0:
            folder.mkdir(parents=True)
            own.set("goes on", str(begin < deadline))
        if own.get("goes on") != b"True":
            if rank == 0:
                folder.rmdir()
                print(f"no time for {len(jobs) - place} of {len(jobs)} jobs", flush=True)
            return
        train(rank, job, folder, own)
        if rank == 0:
            took = time.monotonic() - begin
            print(f"{job.folder}: {job.seconds * 1e3:.1f} ms, took {took:.2f} s", flush=True)


def free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


def keep_whole(target: Path) -> None:
    """Remove jobs that were stopped before every rank had written its trace."""
    for folder in sorted(path for path in target.iterdir() if path.is_dir()):
        if len(list(folder.glob("*.json.gz"))) < RANKS:
            print(f"{folder.name}: not complete, removed", flush=True)
            shutil.rmtree(folder)


def write_tar(folders: list[Path], target: Path, max_mb: float) -> None:
    """Write the jobs that were recorded into one file, in order, as far as they fit."""
    with tarfile.open(target, "w") as archive:
        for folder in (folder for folder in folders if folder.exists()):
            size = archive.offset + sum(file.stat().st_size for file in folder.iterdir())
            if size > max_mb * 1e6:
                print(f"{folder.name} and later ones do not fit into {max_mb:g} MB", flush=True)
                break
            archive.add(folder, arcname=folder.name)
    print(f"{target}: {target.stat().st_size / 1e6:.1f} MB", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--jobs", type=int, default=1000, help="the first N only")
    parser.add_argument("--minutes", type=float, default=60.0, help="begin no job after this time")
    parser.add_argument("--tar", type=Path, help="also write all traces into this tar file")
    parser.add_argument("--max-mb", type=float, default=60.0, help="size of the tar file")
    parser.add_argument("--width", type=int, default=1024, help="width of the model")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    deadline = time.monotonic() + 60 * args.minutes
    jobs = plan(args.width)[: args.jobs]
    try:
        spawn(run_jobs, (jobs, args.folder, free_port(), deadline), nprocs=RANKS)
    finally:
        keep_whole(args.folder)
        if args.tar:
            write_tar([args.folder / job.folder for job in jobs], args.tar, args.max_mb)


if __name__ == "__main__":
    main()
