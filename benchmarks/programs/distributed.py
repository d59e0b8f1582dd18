"""Data-parallel training of two processes that share a GPU, over gloo."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.multiprocessing.spawn import spawn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from benchmarks.programs.registry import Program


def run_ranks(program: Program, args: argparse.Namespace) -> None:
    """Run the program in as many processes as it needs; the first one prints the times."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    spawn(_run_rank, args=(program, args, port), nprocs=program.processes)


def _run_rank(rank: int, program: Program, args: argparse.Namespace, port: int) -> None:
    from benchmarks.programs.running import run

    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=program.processes)
    run(program, args, quiet=rank > 0)
    dist.barrier()
    dist.destroy_process_group()


def slow_rank(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Prepare each batch in NumPy; the second rank was given longer records than the first."""
    import numpy as np

    rank = dist.get_rank()
    width, rows = (1024, 512) if device == "cuda" else (32, 8)
    records = 1_500_000 if rank == 1 and not repaired else 20_000
    generator = np.random.default_rng(rank)
    model = nn.Sequential(
        *(part for _ in range(4) for part in (nn.Linear(width, width), nn.ReLU())),
        nn.Linear(width, 10),
    ).to(device)
    parallel = DistributedDataParallel(model)
    optimizer = torch.optim.SGD(parallel.parameters(), lr=0.01)
    labels = torch.randint(0, 10, (rows,), device=device)
    templates = torch.randn(rows, width)

    def step(index: int) -> Tensor:  # noqa: ARG001
        ranked = np.sort(generator.normal(size=records))
        batch = (templates + float(ranked[records // 2])).to(device)
        loss = functional.cross_entropy(parallel(batch), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
