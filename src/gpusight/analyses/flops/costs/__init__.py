"""What operators cost at least, from the sizes of their inputs: one table of formulas a family.

`cost_of` knows matrix products, convolutions, attention and embeddings. `docs/flops.md` lists the
formulas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from gpusight.analyses.flops.costs import attention, convolution, embedding, matmul
from gpusight.analyses.flops.costs.cost import FAMILIES, Cost, Unknown, plausible
from gpusight.analyses.flops.costs.inputs import Inputs

if TYPE_CHECKING:
    from collections.abc import Callable

    Formula: TypeAlias = Callable[[Inputs], Cost | Unknown]

__all__ = ["FAMILIES", "FORMULAS", "Cost", "Unknown", "cost_of", "has_formula"]

FORMULAS: dict[str, Formula] = {
    **matmul.FORMULAS,
    **convolution.FORMULAS,
    **attention.FORMULAS,
    **embedding.FORMULAS,
}
"""Operator -> how its cost follows from its inputs."""

_NO_SIZES = Unknown("no sizes were recorded for it")
_DAMAGED = Unknown("the recorded sizes make no sense")


def has_formula(name: str) -> bool:
    """Tell whether the cost of an operator of this name can be worked out."""
    return _formula(name) is not None


def cost_of(
    name: str,
    shapes: str | None,
    types: str | None = None,
    concrete: str | None = None,
    strides: str | None = None,
) -> Cost | Unknown | None:
    """Work out what one call costs from the JSON that the profiler recorded of its inputs.

    None means that this operator is not one that is counted.
    """
    formula = _formula(name)
    if formula is None:
        return None
    inputs = Inputs.parse(shapes, types, concrete, strides)
    if inputs is None:
        return _NO_SIZES
    cost = formula(inputs)
    return _DAMAGED if isinstance(cost, Cost) and not plausible(cost) else cost


def _formula(name: str) -> Formula | None:
    """Find the formula; operators that work in place end in an underscore."""
    return FORMULAS.get(name) or FORMULAS.get(name.removesuffix("_"))
