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


def masked_losses(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Pick the labeled rows of each of 16 tasks by a mask: their number is read on the host.

    Repaired: the losses of all rows are weighted by the mask.
    """
    tasks, rows, columns = (16, 4096, 512) if device == "cuda" else (3, 16, 8)
    torch.set_float32_matmul_precision("high")
    body = _perceptron(columns, 1024, 3)[:-1].to(device)
    head = nn.Linear(1024, tasks).to(device)
    optimizer = torch.optim.Adam([*body.parameters(), *head.parameters()], lr=1e-4, fused=True)
    features = torch.randn(3, rows, columns, device=device)
    labels = torch.randint(0, 2, (rows, tasks), device=device).float()
    labeled = torch.rand(rows, tasks, device=device) < 0.3

    def picked(logits: Tensor) -> Tensor:
        losses = [
            functional.binary_cross_entropy_with_logits(
                logits[labeled[:, task], task], labels[labeled[:, task], task]
            )
            for task in range(tasks)
        ]
        return torch.stack(losses).mean()

    def weighted(logits: Tensor) -> Tensor:
        losses = functional.binary_cross_entropy_with_logits(logits, labels, reduction="none")
        return ((losses * labeled).sum(0) / labeled.sum(0)).mean()

    loss_of = weighted if repaired else picked

    def step(index: int) -> Tensor:
        loss = loss_of(head(body(features[index % 3])))
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def host_ranking(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Rank the scores with NumPy after each step, for a curve; repaired: on the GPU."""
    import numpy as np

    rows, columns = (1 << 18, 256) if device == "cuda" else (64, 8)
    torch.set_float32_matmul_precision("high")
    model = _perceptron(columns, 512, 2).to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    features = torch.randn(rows, columns, device=device)
    labels = (features[:, 0] > 0).float()
    true_labels = labels.cpu().numpy()
    curve: list[object] = []

    def step(index: int) -> Tensor:  # noqa: ARG001
        scores = model(features)[:, 0]
        loss = functional.binary_cross_entropy_with_logits(scores, labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if repaired:
            ranked = labels[torch.argsort(scores.detach())]
            curve.append(torch.cumsum(1 - ranked, 0).mul_(ranked).sum())
        else:
            order = np.argsort(scores.detach().cpu().numpy(), kind="stable")
            hits = true_labels[order]
            curve.append(float((np.cumsum(1 - hits) * hits).sum()))
        return loss.detach()

    return step
