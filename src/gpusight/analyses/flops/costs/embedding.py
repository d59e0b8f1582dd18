"""Embeddings and lookups: no arithmetic worth counting, only rows moved.

Read: the indices and one row for each, but never more than the whole table. Written: the rows. The
gradient of a table is as large as the table, and is written in full whatever was looked up.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from gpusight.analyses.flops.costs.cost import (
    MISFIT,
    Cost,
    Unknown,
    by,
    product,
    scaled,
    total_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusight.analyses.flops.costs.inputs import Inputs, Tensor

    Formula: TypeAlias = Callable[[Inputs], Cost | Unknown]

_NO_ROWS = Unknown("the number of rows of the table was not recorded")


def _cost(read: int, indices: Tensor, written: int, values: Tensor, sizes: str) -> Cost:
    """Make the cost of reading and writing so many elements of the kind of `values`."""
    rows = replace(values, shape=(read,), distinct=read)
    return Cost(
        family="embedding",
        flops=0,
        read_bytes=total_bytes((rows, indices)),
        written_bytes=scaled(written, values.item_bytes),
        precision=values.precision,
        sizes=sizes,
    )


def _lookup(inputs: Inputs) -> Cost | Unknown:
    found = inputs.matrices(0, 1)
    if found is None or len(found[0].shape) != 2:
        return MISFIT
    table, indices = found
    rows, width = table.shape
    count = indices.elements
    return _cost(
        min(count, rows) * width, indices, count * width, table, f"{by(rows, width)}[{count}]"
    )


def _index_select(inputs: Inputs) -> Cost | Unknown:
    found = inputs.matrices(0, 2)
    along = inputs.whole(1)
    if found is None or not found[0].shape:
        return MISFIT
    values, indices = found
    if along is None or not -len(values.shape) <= along < len(values.shape):
        return Unknown("the dimension selected along was not recorded")
    size, count = values.shape[along], indices.elements
    row = values.elements // size if size else 0
    return _cost(
        min(count, size) * row, indices, count * row, values, f"{by(*values.shape)}[{count}]"
    )


def _bag(inputs: Inputs) -> Cost | Unknown:
    found = inputs.matrices(0, 1, 2)
    if found is None or len(found[0].shape) != 2:
        return MISFIT
    table, indices, offsets = found
    rows, width = table.shape
    count, bags = indices.elements, offsets.elements - (inputs.flag(7) is True)
    return _cost(
        min(count, rows) * width, indices, bags * width, table, f"{by(rows, width)}[{count}]"
    )


def _dense_gradient(rows_at: int) -> Formula:
    """Make the formula of a table's gradient: what came back read, the whole table written."""

    def formula(inputs: Inputs) -> Cost | Unknown:
        found = inputs.matrices(0, 1)
        if found is None or not found[0].shape:
            return MISFIT
        grad, indices = found
        rows = inputs.whole(rows_at)
        if rows is None or rows < 0:
            return _NO_ROWS
        width = grad.shape[-1]
        return Cost(
            family="embedding",
            flops=0,
            read_bytes=total_bytes((grad, indices)),
            written_bytes=scaled(product((rows, width)), grad.item_bytes),
            precision=grad.precision,
            sizes=f"{by(rows, width)}[{indices.elements}]",
        )

    return formula


FORMULAS: dict[str, Formula] = {
    "aten::embedding": _lookup,
    "aten::index_select": _index_select,
    "aten::embedding_bag": _bag,
    "aten::_embedding_bag": _bag,
    "aten::_embedding_bag_forward_only": _bag,
    "aten::embedding_dense_backward": _dense_gradient(2),
    "aten::_embedding_bag_dense_backward": _dense_gradient(5),
}
"""Operators that look rows up, and their gradients."""
