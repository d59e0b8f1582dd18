"""What shares: two programs one GPU, two Python threads one lock, many small values one copy.

torch is imported where it is used: processes that only need Python start from this module.
"""

from __future__ import annotations

import atexit
import multiprocessing
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


def _perceptron_training(device: str, rows: int, width: int, layers: int) -> Callable[[int], Any]:
    import torch
    from torch import nn
    from torch.nn import functional

    if device == "cpu":
        rows, width = 16, 32
    hidden = [part for _ in range(layers) for part in (nn.Linear(width, width), nn.ReLU())]
    model = nn.Sequential(*hidden, nn.Linear(width, 10)).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    batches = torch.randn(3, rows, width, device=device)
    labels = torch.randint(0, 10, (rows,), device=device)

    def step(index: int) -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            loss = functional.cross_entropy(model(batches[index % 3]), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _train_until(device: str, ready: Any, stop: Any) -> None:
    """Train as the other process does, until it says that it is done."""
    import torch

    step = _perceptron_training(device, 16384, 4096, 6)
    index = 0
    while not stop.is_set():
        step(index)
        index += 1
        if device == "cuda":
            torch.cuda.synchronize()
        ready.set()


def shared_gpu(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Train while a second process trains on the same GPU; repaired: alone."""
    step = _perceptron_training(device, 16384, 4096, 6)
    if not repaired:
        _start_process(_train_until, device)
    return step


def _start_process(target: Callable[..., None], *arguments: Any) -> None:
    """Start a process that works along with this one, and that is told when this one ends.

    One that is killed would leave a profiler without its last records.
    """
    context = multiprocessing.get_context("spawn")
    ready, stop = context.Event(), context.Event()
    process = context.Process(target=target, args=(*arguments, ready, stop), daemon=True)
    process.start()
    if not ready.wait(60):
        raise TimeoutError("the second process did not start")

    def end() -> None:
        stop.set()
        process.join(20)

    # After multiprocessing's own handler was registered: this one runs before it.
    atexit.register(end)


_LINES = [f"user={n % 97} path=/item/{n * 7 % 1009} ms={n % 31}" for n in range(2000)]


def _count_lines(ready: Any, stop: Any) -> None:
    """Count visits in the lines of a log, in plain Python, again and again."""
    visits: dict[str, float] = {}
    while not stop.is_set():
        ready.set()
        for line in _LINES:
            fields = dict(field.split("=") for field in line.split(" "))
            key = fields["path"].rpartition("/")[2]
            visits[key] = 0.9 * visits.get(key, 0.0) + float(fields["ms"])


def python_threads(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Train while a thread reads a log in plain Python; repaired: a process reads it."""
    step = _perceptron_training(device, 2048, 1024, 8)
    if repaired:
        _start_process(_count_lines)
    else:
        ready, stop = threading.Event(), threading.Event()
        threading.Thread(target=_count_lines, args=(ready, stop), daemon=True).start()
        atexit.register(stop.set)
    return step


def small_features(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Copy 160 columns of a batch one by one; repaired: in one pinned buffer."""
    import torch
    from torch import nn
    from torch.nn import functional

    columns, rows, width = (160, 512, 16) if device == "cuda" else (6, 8, 4)
    batches = [[torch.randint(0, 1000, (rows,)) for _ in range(columns)] for _ in range(4)]
    table = nn.Embedding(1000, width).to(device)
    model = nn.Sequential(nn.Linear(columns * width, 512), nn.ReLU(), nn.Linear(512, 1))
    model = model.to(device)
    parameters = [*table.parameters(), *model.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=True)
    pinned = device == "cuda"
    buffers = [torch.empty(columns, rows, dtype=torch.int64, pin_memory=pinned) for _ in range(4)]

    def on_gpu(index: int) -> Tensor:
        batch = batches[index % 4]
        if not repaired:
            return torch.stack([column.to(device, non_blocking=True) for column in batch])
        torch.stack(batch, out=buffers[index % 4])
        return buffers[index % 4].to(device, non_blocking=True)

    def step(index: int) -> Tensor:
        features = table(on_gpu(index)).transpose(0, 1).flatten(1)
        loss = functional.softplus(model(features)).mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def copied_metrics(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Copy the error of each of 80 outputs to the host, one by one; repaired: once in 50 steps."""
    import torch
    from torch import nn

    outputs, rows, width = (80, 8192, 1024) if device == "cuda" else (4, 8, 8)
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, outputs))
    model = model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    batches = torch.randn(3, rows, width, device=device)
    history: list[list[float]] = []

    def step(index: int) -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            errors = (model(batches[index % 3]) - 1).square().mean(0)
        if not repaired:
            history.append([float(error.detach().cpu()) for error in errors])
        elif index % 50 == 49:
            history.append(errors.detach().tolist())
        loss = errors.sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
