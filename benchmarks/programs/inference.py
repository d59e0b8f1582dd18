"""Healthy inference: nothing to find here."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from benchmarks.programs.graphs import graphed

if TYPE_CHECKING:
    from collections.abc import Callable


def large_gemms(repaired: bool, device: str) -> Callable[[int], Tensor]:  # noqa: ARG001
    """Multiply large bf16 matrices: Tensor Cores are busy all the time."""
    size = 8192 if device == "cuda" else 64
    weights = [torch.randn(size, size, device=device, dtype=torch.bfloat16) for _ in range(4)]
    inputs = torch.randn(size, size, device=device, dtype=torch.bfloat16) / size

    @torch.inference_mode()
    def step(index: int) -> Tensor:  # noqa: ARG001
        x = inputs
        for weight in weights:
            x = x @ weight
        return x

    return step


def graphed_inference(repaired: bool, device: str) -> Callable[[int], Tensor]:  # noqa: ARG001
    """Replay a CUDA graph of a small encoder for each request."""
    width = 512
    layer = nn.TransformerEncoderLayer(width, 8, 4 * width, batch_first=True, dropout=0.0)
    model = nn.TransformerEncoder(layer, 8, enable_nested_tensor=False)
    model = model.to(device, torch.bfloat16).eval()
    requests = torch.randn(8, 32, 256, width, device=device, dtype=torch.bfloat16)
    current, answer = torch.empty_like(requests[0]), torch.empty_like(requests[0])

    @torch.no_grad()
    def infer() -> None:
        answer.copy_(model(current))

    replay = graphed(infer, device)

    def step(index: int) -> Tensor:
        current.copy_(requests[index % len(requests)])
        replay()
        return answer

    return step
