"""Convolutional networks: where images come from, and how they lie in memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


class _AugmentedImages(Dataset[tuple[Tensor, int]]):
    """Images that are cropped, flipped, blurred and recolored on the CPU."""

    def __init__(self, number: int, size: int) -> None:
        self.number, self.size = number, size
        self.images = torch.randint(0, 256, (16, 3, size + 64, size + 64), dtype=torch.uint8)

    def __len__(self) -> int:
        return self.number

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        top, left = torch.randint(0, 64, (2,)).tolist()
        image = self.images[index % 16].float() / 255
        image = image[:, top : top + self.size, left : left + self.size]
        if torch.rand(()) < 0.5:
            image = image.flip(-1)
        blurred = functional.avg_pool2d(image[None], 5, stride=1, padding=2)[0]
        image = torch.lerp(image, blurred, float(torch.rand(())))
        image = (image - image.mean()) * (0.6 + 0.8 * torch.rand(3, 1, 1)) + image.mean()
        return (255 * image.clamp(0, 1)).to(torch.uint8), index % 100


def _small_network() -> nn.Sequential:
    def stage(inputs: int, outputs: int) -> list[nn.Module]:
        convolution = nn.Conv2d(inputs, outputs, 3, stride=2, padding=1, bias=False)
        return [convolution, nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)]

    stages = [*stage(3, 64), *stage(64, 128), *stage(128, 256), *stage(256, 512)]
    return nn.Sequential(*stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 100))


def _forever(loader: DataLoader[Any]) -> Iterator[Any]:
    while True:
        yield from loader


def augmented_images(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Augment in the training process; repaired: in workers, into pinned memory."""
    on_gpu = device == "cuda"
    images = _AugmentedImages(100_000, 192 if on_gpu else 32)
    options: dict[str, Any] = {"num_workers": 0}
    if repaired:
        options = {"num_workers": 12 if on_gpu else 2, "pin_memory": on_gpu}
    # One thread, as in the workers: many would fight over images this small.
    torch.set_num_threads(1)
    loader = _forever(DataLoader(images, batch_size=64 if on_gpu else 4, shuffle=True, **options))
    model = _small_network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)

    def step(index: int) -> Tensor:  # noqa: ARG001
        batch, labels = next(loader)
        batch = batch.to(device, non_blocking=repaired).float() / 255
        labels = labels.to(device, non_blocking=repaired)
        with torch.autocast(device, torch.bfloat16):
            loss = functional.cross_entropy(model(batch), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def emptied_cache(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Give all cached memory back to the driver in each step."""
    model = _small_network().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    size = (128, 3, 192, 192) if device == "cuda" else (2, 3, 32, 32)
    batches = torch.rand(3, *size, device=device)
    labels = torch.randint(0, 100, (size[0],), device=device)

    def step(index: int) -> Tensor:
        loss = functional.cross_entropy(model(batches[index % 3]), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        if not repaired:
            torch.cuda.empty_cache()
        return loss.detach()

    return step


def _resnet_training(
    device: str, batch: int, layout: torch.memory_format
) -> Callable[[int], Tensor]:
    from torchvision.models import resnet50

    model: nn.Module = resnet50().to(device, memory_format=layout)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9, fused=True)
    images = [
        torch.rand(batch, 3, 224, 224, device=device).contiguous(memory_format=layout)
        for _ in range(2)
    ]
    labels = torch.randint(0, 1000, (batch,), device=device)

    def step(index: int) -> Tensor:
        with torch.autocast(device, torch.bfloat16):
            loss = functional.cross_entropy(model(images[index % 2]), labels)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
        return loss.detach()

    return step


def nchw_convolutions(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Train a ResNet-50 in NCHW: cuDNN transposes around its Tensor Core kernels."""
    layout = torch.channels_last if repaired else torch.contiguous_format
    return _resnet_training(device, 96 if device == "cuda" else 2, layout)


def resnet_channels_last(repaired: bool, device: str) -> Callable[[int], Tensor]:  # noqa: ARG001
    """Healthy: a ResNet-50 in channels_last under autocast, with tuned convolutions."""
    torch.backends.cudnn.benchmark = True
    return _resnet_training(device, 192 if device == "cuda" else 2, torch.channels_last)
