"""CuPy: a formula written as array expressions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import cupy

if TYPE_CHECKING:
    from collections.abc import Callable


def cupy_small_kernels(repaired: bool, device: str) -> Callable[[int], Any]:  # noqa: ARG001
    """Price options by a formula of many small kernels; repaired: one kernel of the formula."""
    spot = cupy.random.uniform(80, 120, 100_000, dtype=cupy.float32)
    strike = cupy.random.uniform(80, 120, 100_000, dtype=cupy.float32)
    formula = cupy.ElementwiseKernel(
        "float32 s, float32 k, float32 v, float32 t",
        "float32 price",
        """
        float w = v * sqrtf(t);
        float d1 = (logf(s / k) + (0.02f + 0.5f * v * v) * t) / w;
        float d2 = d1 - w;
        float n1 = 0.5f * (1.0f + tanhf(0.79788456f * (d1 + 0.044715f * d1 * d1 * d1)));
        float n2 = 0.5f * (1.0f + tanhf(0.79788456f * (d2 + 0.044715f * d2 * d2 * d2)));
        price = s * n1 - k * expf(-0.02f * t) * n2;
        """,
        "option_price",
    )

    def normal(d: Any) -> Any:
        return 0.5 * (1 + cupy.tanh(0.79788456 * (d + 0.044715 * d * d * d)))

    def price(v: float, t: float) -> Any:
        if repaired:
            return formula(spot, strike, cupy.float32(v), cupy.float32(t))
        w = v * t**0.5
        d1 = (cupy.log(spot / strike) + (0.02 + 0.5 * v * v) * t) / w
        return spot * normal(d1) - strike * 0.9802 * normal(d1 - w)

    def step(index: int) -> Any:
        total = cupy.zeros_like(spot)
        for number in range(24):
            total += price(0.1 + 0.01 * number, 0.5 + 0.01 * (index % 10))
        return total.mean()

    return step
