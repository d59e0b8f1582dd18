"""The cost of an operator call from its recorded inputs; embeddings and lookups."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from gpusight.analysis.flops.attention_cost import ATTENTION_FORMULAS
from gpusight.analysis.flops.gemm_cost import CONVOLUTION_FORMULAS, MATMUL_FORMULAS
from gpusight.analysis.flops.operator_inputs import (
    MISFIT,
    OperatorCost,
    OperatorInputs,
    UnknownCost,
    by,
    scaled,
    total_bytes,
)

if TYPE_CHECKING:
    from gpusight.analysis.flops.operator_inputs import Formula, TensorInput


_NO_ROWS = UnknownCost("the number of rows of the table was not recorded")


def _embedding_cost(
    read: TensorInput, indices: TensorInput, written: int, sizes: str
) -> OperatorCost:
    """Return the cost of reading a tensor by index; `written` counts elements."""
    return OperatorCost(
        family="embedding",
        flops=0,
        read_bytes=total_bytes((read, indices)),
        written_bytes=scaled(written, read.item_bytes),
        precision=read.precision,
        sizes=f"{sizes}[{indices.elements}]",
    )


def _rows_of(table: TensorInput, count: int, rows: int, width: int) -> TensorInput:
    """Return what a lookup reads of a table: each row at most once."""
    elements = min(count, rows) * width
    return replace(table, shape=(elements,), distinct=elements)


def _lookup(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
    tensors = inputs.tensors(0, 1)
    if tensors is None or len(tensors[0].shape) != 2:
        return MISFIT
    table, indices = tensors
    rows, width = table.shape
    count = indices.elements
    read = _rows_of(table, count, rows, width)
    return _embedding_cost(read, indices, count * width, by(rows, width))


def _index_select(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
    tensors = inputs.tensors(0, 2)
    dimension = inputs.integer(1)
    if tensors is None or not tensors[0].shape:
        return MISFIT
    values, indices = tensors
    if dimension is None or not -len(values.shape) <= dimension < len(values.shape):
        return UnknownCost("the dimension selected along was not recorded")
    rows, count = values.shape[dimension], indices.elements
    width = values.elements // rows if rows else 0
    read = _rows_of(values, count, rows, width)
    return _embedding_cost(read, indices, count * width, by(*values.shape))


def _bag(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
    tensors = inputs.tensors(0, 1, 2)
    if tensors is None or len(tensors[0].shape) != 2:
        return MISFIT
    table, indices, offsets = tensors
    rows, width = table.shape
    bags = offsets.elements - (inputs.flag(7) is True)
    read = _rows_of(table, indices.elements, rows, width)
    return _embedding_cost(read, indices, bags * width, by(rows, width))


def _dense_gradient(rows_position: int) -> Formula:
    """Return the formula of a table's gradient: the incoming gradient read, the table written."""

    def formula(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
        tensors = inputs.tensors(0, 1)
        if tensors is None or not tensors[0].shape:
            return MISFIT
        grad, indices = tensors
        rows = inputs.integer(rows_position)
        if rows is None or rows < 0:
            return _NO_ROWS
        width = grad.shape[-1]
        return _embedding_cost(grad, indices, rows * width, by(rows, width))

    return formula


FORMULAS: dict[str, Formula] = {
    **MATMUL_FORMULAS,
    **CONVOLUTION_FORMULAS,
    **ATTENTION_FORMULAS,
    "aten::embedding": _lookup,
    "aten::index_select": _index_select,
    "aten::embedding_bag": _bag,
    "aten::_embedding_bag": _bag,
    "aten::_embedding_bag_forward_only": _bag,
    "aten::embedding_dense_backward": _dense_gradient(2),
    "aten::_embedding_bag_dense_backward": _dense_gradient(5),
}
"""Operator -> formula of its cost."""

_NO_SIZES = UnknownCost("no sizes were recorded for it")
_DAMAGED = UnknownCost("the recorded sizes make no sense")


def has_formula(name: str) -> bool:
    """Whether the cost of an operator of this name can be computed."""
    return _formula(name) is not None


def cost_of(
    name: str,
    shapes: str | None,
    types: str | None = None,
    concrete: str | None = None,
    strides: str | None = None,
) -> OperatorCost | UnknownCost | None:
    """Compute what one call costs from the JSON that the profiler recorded of its inputs.

    None means that this operator is not one that is counted.
    """
    formula = _formula(name)
    if formula is None:
        return None
    inputs = OperatorInputs.parse(shapes, types, concrete, strides)
    if inputs is None:
        return _NO_SIZES
    cost = formula(inputs)
    return _DAMAGED if isinstance(cost, OperatorCost) and not cost.plausible else cost


def _formula(name: str) -> Formula | None:
    """Find the formula; operators that work in place end in an underscore."""
    return FORMULAS.get(name) or FORMULAS.get(name.removesuffix("_"))
