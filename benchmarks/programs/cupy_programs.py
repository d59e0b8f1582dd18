"""CuPy: a formula, a solver, fields that are saved, and a healthy filter."""

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


def cupy_conjugate_gradient(repaired: bool, device: str) -> Callable[[int], Any]:  # noqa: ARG001
    """Solve a Poisson equation and read the residual in each iteration; repaired: never."""
    size, iterations = 512, 60
    wanted = cupy.random.standard_normal((size, size), dtype=cupy.float32)

    def apply(x: Any) -> Any:
        out = 4 * x
        out[1:] -= x[:-1]
        out[:-1] -= x[1:]
        out[:, 1:] -= x[:, :-1]
        out[:, :-1] -= x[:, 1:]
        return out

    def squared(x: Any) -> Any:
        total = (x * x).sum()
        return total if repaired else float(total)

    def step(index: int) -> Any:
        x = cupy.zeros_like(wanted)
        residual = wanted * (1 + index % 5)
        direction, before = residual, squared(residual)
        for _ in range(iterations):
            applied = apply(direction)
            product = (direction * applied).sum()
            length = before / (product if repaired else float(product))
            x = x + length * direction
            residual = residual - length * applied
            after = squared(residual)
            direction = residual + (after / before) * direction
            before = after
        return x

    return step


def cupy_saved_fields(repaired: bool, device: str) -> Callable[[int], Any]:  # noqa: ARG001
    """Copy the field to NumPy after each step; repaired: to pinned memory, during the next."""
    import cupyx

    size = 4096
    field = cupy.random.standard_normal((size, size), dtype=cupy.float32)
    smooth = cupy.ElementwiseKernel(
        "float32 x, float32 t",
        "float32 y",
        "y = x; for (int n = 0; n < 400; ++n) y = 0.99f * y + 0.01f * sinf(y + t);",
        "smooth",
    )
    fields = [cupy.empty_like(field) for _ in range(2)]
    saved = [cupyx.empty_pinned((size, size), dtype=cupy.float32) for _ in range(2)]
    copying = cupy.cuda.Stream(non_blocking=True)
    kept: list[Any] = []

    def step(index: int) -> Any:
        following = fields[index % 2]
        if not repaired:
            smooth(field, cupy.float32(index), following)
            kept[:] = [cupy.asnumpy(following)]
            return following
        # The copy of two steps ago must be over before its field is written again.
        cupy.cuda.get_current_stream().wait_event(copying.record())
        smooth(field, cupy.float32(index), following)
        copying.wait_event(cupy.cuda.get_current_stream().record())
        following.get(stream=copying, out=saved[index % 2], blocking=False)
        return following

    return step


def cupy_fft(repaired: bool, device: str) -> Callable[[int], Any]:  # noqa: ARG001
    """Healthy: filter a stack of images by large FFTs."""
    images = cupy.random.standard_normal((64, 1024, 1024), dtype=cupy.float32)
    spectrum = images.astype(cupy.complex64)
    gains = cupy.random.uniform(0, 1, (1024, 1024), dtype=cupy.float32)

    def step(index: int) -> Any:  # noqa: ARG001
        filtered = cupy.fft.fft2(spectrum)
        filtered *= gains
        return cupy.fft.ifft2(filtered)

    return step
