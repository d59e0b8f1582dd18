"""Programs on libraries around torch: graphs, solvers, metrics, audio and images."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from benchmarks.programs.graphs import graphed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


def molecule_batches(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Collate small graphs of torch_geometric in each step; repaired: once, and kept on the GPU."""
    from torch_geometric.data import Batch, Data
    from torch_geometric.loader import DataLoader
    from torch_geometric.nn import GINConv, global_add_pool

    number, size, width = (2048, 512, 128) if device == "cuda" else (16, 4, 8)
    molecules = [
        Data(
            x=torch.randn(20, width),
            edge_index=torch.randint(0, 20, (2, 44)),
            y=torch.randn(1),
        )
        for _ in range(number)
    ]

    def part(inputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width))

    layers = nn.ModuleList(GINConv(part(width)) for _ in range(3)).to(device)
    head = nn.Linear(width, 1).to(device)
    parameters = [*layers.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, lr=1e-3, fused=True)

    def collated() -> Iterator[Any]:
        while True:
            yield from DataLoader(molecules, batch_size=size, shuffle=True)

    def kept() -> Iterator[Any]:
        starts = range(0, number, size)
        batches = [Batch.from_data_list(molecules[at : at + size]).to(device) for at in starts]
        while True:
            yield from batches

    batches = kept() if repaired else collated()

    def step(index: int) -> Tensor:  # noqa: ARG001
        batch = next(batches).to(device)
        x = batch.x
        for layer in layers:
            x = functional.relu(layer(x, batch.edge_index))
        pooled = global_add_pool(x, batch.batch, size=size)
        loss = functional.mse_loss(head(pooled)[:, 0], batch.y)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def adaptive_solver(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Solve an ODE with torchdiffeq's dopri5, which reads its error on the host.

    Repaired: steps of a fixed size, as a CUDA graph.
    """
    from torchdiffeq import odeint

    width, rows, number = (128, 512, 24) if device == "cuda" else (4, 4, 4)
    field = nn.Sequential(nn.Linear(width, 256), nn.Tanh(), nn.Linear(256, width)).to(device)
    starts = torch.randn(4, rows, width, device=device)
    state = starts[0].clone()
    times = torch.linspace(0, 4, 5, device=device)

    @torch.no_grad()
    def adaptive() -> None:
        state.copy_(odeint(lambda _, x: field(x), state, times, rtol=1e-5, atol=1e-6)[-1])

    @torch.no_grad()
    def fixed() -> None:
        x, h = state.clone(), 4 / number
        for _ in range(number):
            k1 = field(x)
            k2 = field(x + h / 2 * k1)
            k3 = field(x + h / 2 * k2)
            k4 = field(x + h * k3)
            x = x + h / 6 * (k1 + 2 * k2 + 2 * k3 + k4)
        state.copy_(x)

    solve = graphed(fixed, device) if repaired else adaptive

    def step(index: int) -> Tensor:
        state.copy_(starts[index % 4])
        solve()
        return state

    return step


def checked_metrics(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Compute torchmetrics in each step, with their checks; repaired: count on the GPU."""
    from torchmetrics.classification import (
        MulticlassAccuracy,
        MulticlassConfusionMatrix,
        MulticlassF1Score,
    )

    classes, rows, width = (100, 8192, 1024) if device == "cuda" else (5, 16, 8)
    kinds = (MulticlassAccuracy, MulticlassF1Score, MulticlassConfusionMatrix)
    metrics = [kind(num_classes=classes).to(device) for kind in kinds]
    model = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, classes))
    model = model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-4, fused=True)
    batches = torch.randn(3, rows, width, device=device)
    labels = torch.randint(0, classes, (rows,), device=device)
    right = torch.zeros((), dtype=torch.long, device=device)

    def step(index: int) -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            logits = model(batches[index % 3])
            loss = functional.cross_entropy(logits, labels)
        if repaired:
            right.add_((logits.detach().argmax(1) == labels).sum())
        else:
            for metric in metrics:
                metric(logits.detach().float(), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def audio_spectrograms(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Make spectrograms with torchaudio on the CPU before each step; repaired: on the GPU."""
    from torchaudio.transforms import MelSpectrogram

    batch, samples = (64, 48_000) if device == "cuda" else (2, 4000)
    waves = [torch.randn(batch, samples) for _ in range(3)]
    if repaired and device == "cuda":
        waves = [wave.pin_memory() for wave in waves]
    spectrogram = MelSpectrogram(16_000, n_fft=1024, hop_length=256, n_mels=80)
    spectrogram = spectrogram.to(device) if repaired else spectrogram
    model = nn.Sequential(
        *_convolution(1, 64),
        *_convolution(64, 128),
        *_convolution(128, 256),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(256, 30),
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    labels = torch.randint(0, 30, (batch,), device=device)

    def step(index: int) -> Tensor:
        wave = waves[index % 3]
        if repaired:
            wave = wave.to(device, non_blocking=True)
        features = torch.log1p(spectrogram(wave))[:, None].to(device)
        with torch.autocast(device, torch.bfloat16):
            loss = functional.cross_entropy(model(features), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def _convolution(inputs: int, outputs: int) -> list[nn.Module]:
    convolution = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
    return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]


def single_images(repaired: bool, device: str) -> Callable[[int], list[Tensor]]:
    """Classify eight images, each in a batch of its own; repaired: through a CUDA graph."""
    from torchvision.models import resnet18

    model = resnet18().to(device).eval()
    size = 224 if device == "cuda" else 32
    images = torch.rand(8, 1, 3, size, size, device=device)
    current, answer = torch.empty_like(images[0]), torch.empty(1, 1000, device=device)

    @torch.no_grad()
    def classify() -> None:
        answer.copy_(model(current))

    run = graphed(classify, device) if repaired else classify

    def step(index: int) -> list[Tensor]:  # noqa: ARG001
        answers = []
        for image in images:
            current.copy_(image)
            run()
            answers.append(answer.clone())
        return answers

    return step


def vit_training(repaired: bool, device: str) -> Callable[[int], Tensor]:  # noqa: ARG001
    """Healthy: torchvision's ViT-B/16 under autocast, large batches that lie on the GPU."""
    from torchvision.models import VisionTransformer

    batch, size, layers, width = (128, 224, 12, 768) if device == "cuda" else (2, 32, 2, 64)
    model = VisionTransformer(size, 16, layers, width // 64, width, 4 * width).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    images = torch.rand(2, batch, 3, size, size, device=device)
    labels = torch.randint(0, 1000, (batch,), device=device)

    def step(index: int) -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            loss = functional.cross_entropy(model(images[index % 2]), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step
