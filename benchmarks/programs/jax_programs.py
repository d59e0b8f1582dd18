"""JAX: training fed from NumPy, without jit, with shapes that change, in float64; and healthy."""

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


def jax_without_jit(repaired: bool, device: str) -> Callable[[int], Any]:
    """Move particles by a formula that runs operation by operation; repaired: under jit."""
    number, moments = (20_000, 12) if device == "cuda" else (16, 2)
    start = jax.random.normal(jax.random.key(0), (number, 3))

    def move(places: Any, speeds: Any) -> tuple[Any, Any]:
        for _ in range(moments):
            distance = jnp.sqrt(jnp.sum(places**2, axis=1, keepdims=True) + 1e-3)
            pull = -places / distance**3
            swirl = jnp.roll(places, 1, axis=1) * jnp.exp(-distance)
            speeds = 0.999 * speeds + 0.01 * (pull + 0.1 * swirl)
            places = places + 0.01 * speeds
        return places, speeds

    moved = jax.jit(move) if repaired else move
    state = (start, jnp.zeros_like(start))

    def step(index: int) -> Any:  # noqa: ARG001
        nonlocal state
        state = moved(*state)
        return state

    return step


def jax_changing_shapes(repaired: bool, device: str) -> Callable[[int], Any]:
    """Train on batches of another size in each step, which jit compiles again; repaired: padded.

    Padding has zeros as targets and inputs: predictions of it are zero too.
    """
    most, width = (2048, 512) if device == "cuda" else (16, 8)
    parameters = _parameters([width] * 6, jnp.float32)
    table = jax.random.normal(jax.random.key(1), (most, width))
    places = jnp.arange(most)[:, None]
    rows = np.random.default_rng().permutation(np.arange(most // 2, most))

    def step(index: int) -> Any:
        nonlocal parameters
        number = int(rows[index % len(rows)])
        batch = jnp.where(places < number, table, 0) if repaired else table[:number]
        parameters, loss = _update(parameters, batch, batch)
        return loss

    return step


def jax_float64(repaired: bool, device: str) -> Callable[[int], Any]:
    """Train with jax_enable_x64 left on; repaired: in float32."""
    jax.config.update("jax_enable_x64", not repaired)
    rows, width = (8192, 2048) if device == "cuda" else (16, 8)
    kind = jnp.float32 if repaired else jnp.float64
    parameters = _parameters([width] * 5, kind)
    batch = jax.random.normal(jax.random.key(1), (rows, width), kind)

    @jax.jit
    def update(kept: list[Any], x: Any) -> tuple[list[Any], Any]:
        loss, slopes = jax.value_and_grad(lambda p: jnp.mean((_predict(p, x) - x) ** 2))(kept)
        return [p - 1e-3 * s for p, s in zip(kept, slopes, strict=True)], loss

    def step(index: int) -> Any:  # noqa: ARG001
        nonlocal parameters
        parameters, loss = update(parameters, batch)
        return loss

    return step
