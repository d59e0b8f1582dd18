"""What an operator costs at least: its arithmetic and the bytes it cannot avoid moving."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpusight.analyses.flops.costs.inputs import Tensor

FAMILIES = ("matmul", "convolution", "attention", "embedding")
"""What is counted; everything else is left to be shown as not counted."""
MOST = 1 << 53
"""Sizes that give more than this in one call come from a damaged capture."""


@dataclass(frozen=True, slots=True)
class Cost:
    """The arithmetic and the minimum traffic of one call of an operator."""

    family: str
    """One of `FAMILIES`."""
    flops: int
    """Floating-point operations (integer ones for integer types); a multiply-add is two."""
    read_bytes: int | None
    """Bytes of the inputs, each read once; None when the types were not recorded."""
    written_bytes: int | None
    """Bytes of the outputs, each written once."""
    precision: str | None
    """Number format of the tensors, as `gpusight.model.hardware` names them; None when unknown."""
    sizes: str
    """The sizes that decide the cost, in few characters."""
    assumed: str = ""
    """What had to be taken for granted, as one sentence."""


@dataclass(frozen=True, slots=True)
class Unknown:
    """An operator whose cost is not known, and why."""

    reason: str


MISFIT = Unknown("the recorded sizes do not fit the operator")


def total_bytes(tensors: Iterable[Tensor | None]) -> int | None:
    """Add up what tensors occupy; absent ones take nothing, one of unknown type makes it None."""
    sizes = [tensor.bytes for tensor in tensors if tensor is not None]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def scaled(elements: int, item_bytes: int | None) -> int | None:
    """Give the bytes of so many elements; None when the type is not known."""
    return None if item_bytes is None else elements * item_bytes


def by(*sizes: int) -> str:
    """Write sizes as people do: `2048x768`."""
    return "x".join(map(str, sizes))


def plausible(cost: Cost) -> bool:
    """Tell whether the numbers can come from one call on a GPU."""
    numbers = (cost.flops, cost.read_bytes or 0, cost.written_bytes or 0)
    return all(0 <= number <= MOST for number in numbers)


def product(sizes: Iterable[int]) -> int:
    """Multiply sizes; 1 for none."""
    return math.prod(sizes)
