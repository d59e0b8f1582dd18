"""Training a small decoder of transformer blocks, and what people get wrong there."""

from __future__ import annotations

import contextlib
import math
import os
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

if TYPE_CHECKING:
    from collections.abc import Callable

VOCABULARY = 8192


class Attention(nn.Module):
    """Causal self-attention, by the fused operator or written out."""

    def __init__(self, width: int, heads: int, *, written_out: bool) -> None:
        super().__init__()
        self.heads = heads
        self.written_out = written_out
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        qkv = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)
        if self.written_out:
            scores = query @ key.transpose(-2, -1) / math.sqrt(query.shape[-1])
            mask = torch.ones(length, length, dtype=torch.bool, device=x.device).triu(1)
            weights = torch.softmax(scores.masked_fill(mask, float("-inf")), dim=-1)
            mixed = weights @ value
        else:
            mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        projected: Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return projected


class Block(nn.Module):
    """Attention and a feed-forward part, each after a normalization."""

    def __init__(self, width: int, heads: int, *, written_out: bool = False) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attention = Attention(width, heads, written_out=written_out)
        self.norm2 = nn.LayerNorm(width)
        self.feed_forward = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        out: Tensor = x + self.feed_forward(self.norm2(x))
        return out


class Decoder(nn.Module):
    """Embeddings, blocks, and a head over the vocabulary."""

    def __init__(
        self, width: int, layers: int, heads: int, length: int, *, written_out: bool = False
    ) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCABULARY, width)
        self.positions = nn.Parameter(0.02 * torch.randn(length, width))
        self.blocks = nn.ModuleList(
            Block(width, heads, written_out=written_out) for _ in range(layers)
        )
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.checkpointed = False

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.positions[: tokens.shape[1]]
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        logits: Tensor = self.head(self.norm(x))
        return logits


def _training(
    model: nn.Module,
    device: str,
    *,
    batch: int,
    length: int,
    bf16: bool = True,
    **optimizer_options: Any,
) -> Callable[[int], Tensor]:
    """Make a step that trains on batches that already lie on the GPU."""
    if device == "cpu":
        batch, length = 2, min(length, 32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, **optimizer_options)
    batches = torch.randint(0, VOCABULARY, (4, batch, length + 1), device=device)

    def step(index: int) -> Tensor:
        tokens = batches[index % len(batches)]
        with torch.autocast(device, torch.bfloat16) if bf16 else contextlib.nullcontext():
            logits = model(tokens[:, :-1])
            loss = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        return loss.detach()

    return step


def checkpointed_blocks(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Recompute every block in the backward pass, with most of the memory free."""
    model = Decoder(1024, 12, 16, 512).to(device)
    model.checkpointed = not repaired
    return _training(model, device, batch=24, length=512, fused=True)


def written_out_attention(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Write attention as two matmuls with a mask and a softmax between them."""
    model = Decoder(768, 8, 12, 1024, written_out=not repaired).to(device)
    return _training(model, device, batch=12, length=1024, fused=True)


def fp32_matmuls(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Train in FP32 and leave TF32 off, as it is by default."""
    torch.set_float32_matmul_precision("high" if repaired else "highest")
    model = Decoder(1024, 8, 16, 512).to(device)
    return _training(model, device, batch=8, length=512, bf16=False, fused=True)


def looped_optimizer(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Update parameter by parameter: some thirty kernels for each of 200 tensors."""
    model = Decoder(512, 16, 8, 256).to(device)
    options = {"fused": True} if repaired else {"foreach": False}
    return _training(model, device, batch=8, length=256, **options)


def compiled_training(repaired: bool, device: str) -> Callable[[int], Tensor]:  # noqa: ARG001
    """Healthy: compiled, bf16, fused attention and optimizer, large enough for the GPU."""
    model = Decoder(1024, 8, 16, 1024).to(device)
    compiled = model if device == "cpu" else torch.compile(model)
    assert isinstance(compiled, nn.Module)
    return _training(compiled, device, batch=16, length=1024, fused=True)


def blocked_launches(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Leave a debug variable in the environment: each launch waits for its kernel."""
    if not repaired:
        os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
    model = Decoder(640, 10, 10, 384).to(device)
    return _training(model, device, batch=20, length=384, fused=True)


def anomaly_detection(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Leave autograd's anomaly detection on."""
    torch.autograd.set_detect_anomaly(not repaired)
    model = Decoder(640, 10, 10, 384).to(device)
    return _training(model, device, batch=20, length=384, fused=True)


class _Watched(nn.Module):
    """A decoder whose forward pass looks at the output of each block."""

    def __init__(self, decoder: Decoder, look: Callable[[int, Tensor], Tensor]) -> None:
        super().__init__()
        self.decoder = decoder
        self.look = look

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.decoder.tokens(tokens) + self.decoder.positions[: tokens.shape[1]]
        for index, block in enumerate(self.decoder.blocks):
            x = self.look(index, block(x))
        logits: Tensor = self.decoder.head(self.decoder.norm(x))
        return logits


def nan_checks(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Check every block for NaN on the host, and scale by a number made there."""
    decoder = Decoder(512, 12, 8, 256).to(device)
    scales = [1 / math.sqrt(1 + 0.01 * index) for index in range(12)]

    def check(index: int, x: Tensor) -> Tensor:
        if torch.isnan(x).any():
            raise FloatingPointError(f"NaN after block {index}")
        return x * torch.tensor(scales[index], device=x.device)

    def scale(index: int, x: Tensor) -> Tensor:
        return x * scales[index]

    model = _Watched(decoder, scale if repaired else check)
    return _training(model, device, batch=16, length=256, fused=True)


def logged_activations(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Log a number of each block in each step; repaired: once in 50 steps, together."""
    decoder = Decoder(768, 12, 12, 256).to(device)
    log: dict[str, float] = {}
    kept: list[Tensor] = []
    calls = 0

    def read_each(index: int, x: Tensor) -> Tensor:
        log[f"mean/{index}"] = x.detach().mean().item()
        log[f"largest/{index}"] = x.detach().abs().max().item()
        return x

    def keep(index: int, x: Tensor) -> Tensor:
        nonlocal calls
        if calls % 50 == 0:
            kept.append(torch.stack([x.detach().mean(), x.detach().abs().max()]))
        if index == 11:
            calls += 1
            if kept and calls % 50 == 0:
                log.update(enumerate_means(torch.stack(kept).tolist()))
                kept.clear()
        return x

    model = _Watched(decoder, keep if repaired else read_each)
    return _training(model, device, batch=16, length=256, fused=True)


def enumerate_means(rows: list[list[float]]) -> dict[str, float]:
    """Name the numbers of all blocks."""
    means = {f"mean/{index}": row[0] for index, row in enumerate(rows)}
    return means | {f"largest/{index}": row[1] for index, row in enumerate(rows)}


def anomaly_training(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Train with torch.autograd.set_detect_anomaly(True), left from a search for NaN."""
    torch.autograd.set_detect_anomaly(not repaired)
    model = Decoder(512, 8, 8, 256).to(device)
    return _training(model, device, batch=16, length=256, fused=True)


def debug_launches(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Train with CUDA_LAUNCH_BLOCKING=1, set at the top of a script for debugging."""
    if not repaired:
        os.environ["CUDA_LAUNCH_BLOCKING"] = "1"
    model = Decoder(768, 8, 12, 512).to(device)
    return _training(model, device, batch=16, length=512, fused=True)
