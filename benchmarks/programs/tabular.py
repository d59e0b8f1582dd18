"""Multi-layer perceptrons on tables of numbers that come from the host."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

if TYPE_CHECKING:
    from collections.abc import Callable


def _perceptron(inputs: int, width: int, layers: int) -> nn.Sequential:
    sizes = [inputs, *[width] * layers]
    hidden = [
        part
        for size, following in itertools.pairwise(sizes)
        for part in (nn.Linear(size, following), nn.ReLU())
    ]
    return nn.Sequential(*hidden, nn.Linear(width, 1))


def float64_features(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Regress on features that NumPy made: float64, and so the model was made float64 too."""
    import numpy as np

    rows, columns, width = (8192, 512, 2048) if device == "cuda" else (64, 32, 64)
    generator = np.random.default_rng(0)
    table = generator.normal(size=(4 * rows, columns))
    features, targets = torch.from_numpy(table), torch.from_numpy(table[:, :4].sum(1))
    model = _perceptron(columns, width, 4).to(device)
    if repaired:
        torch.set_float32_matmul_precision("high")
        features, targets = features.float(), targets.float()
    else:
        model = model.double()
    features, targets = features.to(device), targets.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

    def step(index: int) -> Tensor:
        first = (index % 4) * rows
        predicted = model(features[first : first + rows]).squeeze(1)
        loss = functional.mse_loss(predicted, targets[first : first + rows])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def pageable_batches(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Copy a large batch from pageable memory in each step, and wait for it.

    Repaired: from pinned memory, a step ahead, on a stream of its own.
    """
    rows, columns = (16384, 2048) if device == "cuda" else (64, 32)
    pinned = repaired and device == "cuda"
    batches = [torch.randn(rows, columns) for _ in range(3)]
    if pinned:
        batches = [batch.pin_memory() for batch in batches]
    torch.set_float32_matmul_precision("high")
    model = _perceptron(columns, 1024, 3).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)

    def train(batch: Tensor) -> Tensor:
        loss: Tensor = model(batch).square().mean()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    if not pinned:
        return lambda index: train(batches[index % 3].to(device))

    copying = torch.cuda.Stream()
    with torch.cuda.stream(copying):
        following = batches[0].to(device, non_blocking=True)

    def step(index: int) -> Tensor:
        nonlocal following
        torch.cuda.current_stream().wait_stream(copying)
        batch = following
        batch.record_stream(torch.cuda.current_stream())
        with torch.cuda.stream(copying):
            following = batches[(index + 1) % 3].to(device, non_blocking=True)
        return train(batch)

    return step
