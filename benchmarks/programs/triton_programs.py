"""Kernels written in Triton: one with too few blocks, and a healthy one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import triton
import triton.language as tl

if TYPE_CHECKING:
    from collections.abc import Callable

    from torch import Tensor


@triton.jit
def _sum_of_squares(x, out, columns, per_block, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def,unused-ignore]  # noqa: N803
    """Add the squares of `per_block` values of a row to its sum."""
    row, first = tl.program_id(0), tl.program_id(1) * per_block
    total = tl.zeros((BLOCK,), tl.float32)
    for at in range(0, per_block, BLOCK):
        offsets = first + at + tl.arange(0, BLOCK)
        value = tl.load(x + row * columns + offsets, mask=offsets < columns, other=0.0)
        total += value * value
    tl.atomic_add(out + row, tl.sum(total, 0))


def triton_few_blocks(repaired: bool, device: str) -> Callable[[int], Tensor]:
    """Sum eight long rows by one block each; repaired: by 128 blocks each."""
    rows, columns = 8, 1 << 20
    x = torch.randn(rows, columns, device=device)
    sums = torch.zeros(rows, device=device)
    blocks = 128 if repaired else 1

    def step(index: int) -> Tensor:  # noqa: ARG001
        for _ in range(6):
            sums.zero_()
            _sum_of_squares[(rows, blocks)](x, sums, columns, columns // blocks, BLOCK=2048)
        return sums

    return step


@triton.jit
def _bias_gelu_add(x, bias, kept, out, columns, BLOCK: tl.constexpr):  # type: ignore[no-untyped-def,unused-ignore]  # noqa: N803
    """Write gelu(x + bias) + kept, reading and writing each value once."""
    offsets = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + offsets).to(tl.float32) + tl.load(bias + offsets % columns).to(tl.float32)
    activated = value * tl.sigmoid(1.702 * value)
    tl.store(out + offsets, (activated + tl.load(kept + offsets).to(tl.float32)).to(tl.bfloat16))


def triton_fused(repaired: bool, device: str) -> Callable[[int], Tensor]:  # noqa: ARG001
    """Healthy: bias, activation and sum in one kernel, after a large bf16 matmul."""
    size = 8192
    weight = torch.randn(size, size, device=device, dtype=torch.bfloat16) / 64
    kept = torch.randn(size, size, device=device, dtype=torch.bfloat16)
    bias = torch.randn(size, device=device, dtype=torch.bfloat16)
    out = torch.empty_like(kept)

    @torch.no_grad()
    def step(index: int) -> Tensor:  # noqa: ARG001
        for _ in range(3):
            product = kept @ weight
            _bias_gelu_add[(size * size // 4096,)](product, bias, kept, out, size, BLOCK=4096)
        return out

    return step
