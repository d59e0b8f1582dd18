"""The cost of an operator call from its recorded inputs; embeddings and lookups."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from gpusight.analysis.flops import attention_cost, convolution_cost, matmul_cost
from gpusight.analysis.flops.operator_inputs import (
    MISFIT,
    OperatorCost,
    OperatorInputs,
    UnknownCost,
    by,
    plausible,
    product,
    scaled,
    total_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusight.analysis.flops.operator_inputs import TensorInput

    EmbeddingFormula: TypeAlias = Callable[[OperatorInputs], OperatorCost | UnknownCost]
    Formula: TypeAlias = Callable[[OperatorInputs], OperatorCost | UnknownCost]


_NO_ROWS = UnknownCost("the number of rows of the table was not recorded")


def _row_cost(
    read: int, indices: TensorInput, written: int, values: TensorInput, sizes: str
) -> OperatorCost:
    """Make the cost of reading and writing so many elements of the kind of `values`."""
    rows = replace(values, shape=(read,), distinct=read)
    return OperatorCost(
        family="embedding",
        flops=0,
        read_bytes=total_bytes((rows, indices)),
        written_bytes=scaled(written, values.item_bytes),
        precision=values.precision,
        sizes=sizes,
    )


def _lookup(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
    found = inputs.matrices(0, 1)
    if found is None or len(found[0].shape) != 2:
        return MISFIT
    table, indices = found
    rows, width = table.shape
    count = indices.elements
    return _row_cost(
        min(count, rows) * width, indices, count * width, table, f"{by(rows, width)}[{count}]"
    )


def _index_select(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
    found = inputs.matrices(0, 2)
    along = inputs.whole(1)
    if found is None or not found[0].shape:
        return MISFIT
    values, indices = found
    if along is None or not -len(values.shape) <= along < len(values.shape):
        return UnknownCost("the dimension selected along was not recorded")
    size, count = values.shape[along], indices.elements
    row = values.elements // size if size else 0
    return _row_cost(
        min(count, size) * row, indices, count * row, values, f"{by(*values.shape)}[{count}]"
    )


def _bag(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
    found = inputs.matrices(0, 1, 2)
    if found is None or len(found[0].shape) != 2:
        return MISFIT
    table, indices, offsets = found
    rows, width = table.shape
    count, bags = indices.elements, offsets.elements - (inputs.flag(7) is True)
    return _row_cost(
        min(count, rows) * width, indices, bags * width, table, f"{by(rows, width)}[{count}]"
    )


def _dense_gradient(rows_at: int) -> EmbeddingFormula:
    """Make the formula of a table's gradient: what came back read, the whole table written."""

    def formula(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
        found = inputs.matrices(0, 1)
        if found is None or not found[0].shape:
            return MISFIT
        grad, indices = found
        rows = inputs.whole(rows_at)
        if rows is None or rows < 0:
            return _NO_ROWS
        width = grad.shape[-1]
        return OperatorCost(
            family="embedding",
            flops=0,
            read_bytes=total_bytes((grad, indices)),
            written_bytes=scaled(product((rows, width)), grad.item_bytes),
            precision=grad.precision,
            sizes=f"{by(rows, width)}[{indices.elements}]",
        )

    return formula


EMBEDDING_FORMULAS: dict[str, EmbeddingFormula] = {
    "aten::embedding": _lookup,
    "aten::index_select": _index_select,
    "aten::embedding_bag": _bag,
    "aten::_embedding_bag": _bag,
    "aten::_embedding_bag_forward_only": _bag,
    "aten::embedding_dense_backward": _dense_gradient(2),
    "aten::_embedding_bag_dense_backward": _dense_gradient(5),
}
"""Operators that look rows up, and their gradients."""


FORMULAS: dict[str, Formula] = {
    **matmul_cost.MATMUL_FORMULAS,
    **convolution_cost.CONVOLUTION_FORMULAS,
    **attention_cost.ATTENTION_FORMULAS,
    **EMBEDDING_FORMULAS,
}
"""Operator -> how its cost follows from its inputs."""

_NO_SIZES = UnknownCost("no sizes were recorded for it")
_DAMAGED = UnknownCost("the recorded sizes make no sense")


def has_formula(name: str) -> bool:
    """Tell whether the cost of an operator of this name can be worked out."""
    return _formula(name) is not None


def cost_of(
    name: str,
    shapes: str | None,
    types: str | None = None,
    concrete: str | None = None,
    strides: str | None = None,
) -> OperatorCost | UnknownCost | None:
    """Work out what one call costs from the JSON that the profiler recorded of its inputs.

    None means that this operator is not one that is counted.
    """
    formula = _formula(name)
    if formula is None:
        return None
    inputs = OperatorInputs.parse(shapes, types, concrete, strides)
    if inputs is None:
        return _NO_SIZES
    cost = formula(inputs)
    return _DAMAGED if isinstance(cost, OperatorCost) and not plausible(cost) else cost


def _formula(name: str) -> Formula | None:
    """Find the formula; operators that work in place end in an underscore."""
    return FORMULAS.get(name) or FORMULAS.get(name.removesuffix("_"))
