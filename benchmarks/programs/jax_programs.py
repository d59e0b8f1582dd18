"""JAX: training fed from NumPy, and a healthy loop that stays on the GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable


def _parameters(sizes: list[int], dtype: Any) -> list[Any]:
    keys = jax.random.split(jax.random.key(0), len(sizes) - 1)
    pairs = zip(keys, sizes, sizes[1:], strict=False)
    return [
        jax.random.normal(key, (inputs, outputs), dtype) / inputs**0.5
        for key, inputs, outputs in pairs
    ]


def _predict(parameters: list[Any], x: Any) -> Any:
    for weight in parameters[:-1]:
        x = jax.nn.relu(x @ weight)
    return x @ parameters[-1]


def _loss(parameters: list[Any], x: Any, y: Any) -> Any:
    return jnp.mean((_predict(parameters, x).astype(jnp.float32) - y) ** 2)


@jax.jit
def _update(parameters: list[Any], x: Any, y: Any) -> tuple[list[Any], Any]:
    loss, slopes = jax.value_and_grad(_loss)(parameters, x, y)
    return [p - 1e-3 * s for p, s in zip(parameters, slopes, strict=True)], loss


def jax_numpy_batches(repaired: bool, device: str) -> Callable[[int], Any]:
    """Make each batch in NumPy and read the loss; repaired: data on the GPU, losses kept there."""
    rows, columns = (4096, 1024) if device == "cuda" else (16, 8)
    generator = np.random.default_rng(0)
    table = generator.normal(size=(8 * rows, columns)).astype(np.float32)
    targets = table[:, :1] * 2
    parameters = _parameters([columns, columns, columns, 1], jnp.float32)
    data, wanted = (
        (jax.device_put(table), jax.device_put(targets)) if repaired else (table, targets)
    )
    history = []

    def step(index: int) -> Any:
        nonlocal parameters
        first = (index % 8) * rows
        parameters, loss = _update(
            parameters, data[first : first + rows], wanted[first : first + rows]
        )
        history.append(loss if repaired else float(loss))
        return loss

    return step


def jax_scan(repaired: bool, device: str) -> Callable[[int], Any]:  # noqa: ARG001
    """Healthy: several updates in one jitted scan of bf16 matmuls."""
    rows, width = (8192, 4096) if device == "cuda" else (16, 8)
    parameters = _parameters([width] * 4, jnp.bfloat16)
    batches = jax.random.normal(jax.random.key(1), (4, rows, width), jnp.bfloat16)

    @jax.jit
    def several(carried: list[Any]) -> tuple[list[Any], Any]:
        return jax.lax.scan(lambda kept, x: _update(kept, x, x), carried, batches)

    def step(index: int) -> Any:  # noqa: ARG001
        nonlocal parameters
        parameters, losses = several(parameters)
        return losses

    return step
