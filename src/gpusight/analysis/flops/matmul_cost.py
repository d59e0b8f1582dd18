"""FLOPs of matmuls: 2·M·N·K; at least both operands read and the result written."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from gpusight.analysis.flops.operator_inputs import (
    MISFIT,
    OperatorCost,
    UnknownCost,
    by,
    product,
    scaled,
    total_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusight.analysis.flops.operator_inputs import OperatorInputs, TensorInput

    Formula: TypeAlias = Callable[[OperatorInputs], OperatorCost | UnknownCost]


_GROUPED = "grouped products: every row is taken to belong to a group"


def _cost(
    a: TensorInput,
    b: TensorInput,
    dims: tuple[int, ...],
    *,
    written: int,
    added: TensorInput | None = None,
    out_bytes: int | None = None,
    assumed: str = "",
) -> OperatorCost:
    """Make the cost of a product of (batch,) M, N and K."""
    per_step = 8 if a.precision == "complex" else 2
    return OperatorCost(
        family="matmul",
        flops=per_step * product(dims),
        read_bytes=total_bytes((a, b, added)),
        written_bytes=scaled(written, out_bytes or a.item_bytes),
        precision=_precision(a, b),
        sizes=by(*dims),
        assumed=assumed,
    )


def _precision(a: TensorInput, b: TensorInput) -> str | None:
    """Name the format computed in: integer weights are widened to that of the other operand."""
    return a.precision if b.precision in {a.precision, "int", "int8"} else None


def _plain(first: int, *, added: bool = False, out_types: tuple[int, ...] = ()) -> Formula:
    """Make the formula of [M,K] x [K,N]; `first` is where the left operand stands.

    `out_types` are the places where versions of the operator say what type the result has.
    """

    def formula(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
        operands = inputs.matrices(first, first + 1, rank=2)
        if operands is None:
            return MISFIT
        a, b = operands
        (m, k), (rows, n) = a.shape, b.shape
        if k != rows:
            return MISFIT
        asked = [inputs.out_item_bytes(place) for place in out_types]
        out_bytes = next(filter(None, asked), None)
        more = inputs.tensor(0) if added else None
        return _cost(a, b, (m, n, k), written=m * n, added=more, out_bytes=out_bytes)

    return formula


def _into(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
    """Count a product whose result is given as the first argument: [M,N] = [M,K] x [K,N]."""
    operands = inputs.matrices(0, 1, 2, rank=2)
    if operands is None:
        return MISFIT
    out, a, b = operands
    (m, k), (rows, n) = a.shape, b.shape
    if k != rows or out.shape != (m, n):
        return MISFIT
    return _cost(a, b, (m, n, k), written=m * n, out_bytes=out.item_bytes)


def _batched(first: int, *, added: bool = False) -> Formula:
    """Make the formula of [B,M,K] x [B,K,N]."""

    def formula(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
        operands = inputs.matrices(first, first + 1, rank=3)
        if operands is None:
            return MISFIT
        a, b = operands
        (batch, m, k), (others, rows, n) = a.shape, b.shape
        if k != rows or batch != others:
            return MISFIT
        more = inputs.tensor(0) if added else None
        return _cost(a, b, (batch, m, n, k), written=batch * m * n, added=more)

    return formula


def _vector(first: int, *, added: bool = False) -> Formula:
    """Make the formula of [M,K] x [K]."""

    def formula(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
        operands = inputs.matrices(first, first + 1)
        if operands is None:
            return MISFIT
        a, b = operands
        if len(a.shape) != 2 or len(b.shape) != 1 or a.shape[1] != b.shape[0]:
            return MISFIT
        m, k = a.shape
        more = inputs.tensor(0) if added else None
        return _cost(a, b, (m, 1, k), written=m, added=more)

    return formula


def _dot(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
    operands = inputs.matrices(0, 1, rank=1)
    if operands is None or operands[0].shape != operands[1].shape:
        return MISFIT
    a, b = operands
    return _cost(a, b, (1, 1, a.shape[0]), written=1)


def _linear(*, out_bytes: int | None = None) -> Formula:
    """Make the formula of [..., K] x [N,K] transposed, which `linear` and its like compute."""

    def formula(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
        operands = inputs.matrices(0, 1)
        if operands is None:
            return MISFIT
        x, weight = operands
        if len(weight.shape) != 2 or not x.shape or x.shape[-1] != weight.shape[1]:
            return MISFIT
        m, (n, k) = product(x.shape[:-1]), weight.shape
        more = inputs.tensor(2)
        return _cost(x, weight, (m, n, k), written=m * n, added=more, out_bytes=out_bytes)

    return formula


def _matmul(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
    """Count `matmul`, which broadcasts; it counts only where no inner product was recorded."""
    operands = inputs.matrices(0, 1)
    if operands is None or not all(t.shape for t in operands):
        return MISFIT
    a, b = operands
    left = a.shape if len(a.shape) > 1 else (1, *a.shape)
    right = b.shape if len(b.shape) > 1 else (*b.shape, 1)
    batch = _broadcast(left[:-2], right[:-2])
    if batch is None or left[-1] != right[-2]:
        return MISFIT
    m, n, k, times = left[-2], right[-1], left[-1], product(batch)
    dims = (m, n, k) if times == 1 else (times, m, n, k)
    return _cost(a, b, dims, written=times * m * n)


def _broadcast(one: tuple[int, ...], other: tuple[int, ...]) -> tuple[int, ...] | None:
    """Broadcast the batch sizes of two operands; None when they do not fit."""
    rank = max(len(one), len(other))
    one, other = (1,) * (rank - len(one)) + one, (1,) * (rank - len(other)) + other
    if any(x != y and 1 not in {x, y} for x, y in zip(one, other, strict=True)):
        return None
    return tuple(y if x == 1 else x for x, y in zip(one, other, strict=True))


def _int_mm(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
    operands = inputs.matrices(0, 1, rank=2)
    if operands is None or operands[0].shape[1] != operands[1].shape[0]:
        return MISFIT
    a, b = operands
    (m, k), n = a.shape, b.shape[1]
    return _cost(a, b, (m, n, k), written=m * n, out_bytes=4)


def _grouped(out_type: int, offsets: int) -> Formula:
    """Make the formula of products by group: the operand of two dimensions is cut into groups."""

    def formula(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
        operands = inputs.matrices(0, 1)
        if operands is None:
            return MISFIT
        a, b = operands
        bounds = inputs.tensor(offsets)
        groups = bounds.elements if bounds is not None else 1
        dims = _grouped_dims(a.shape, b.shape)
        if dims is None:
            return MISFIT
        both_flat = len(a.shape) == len(b.shape) == 2
        written = product(dims) // max(dims[-1], 1) * (groups if both_flat else 1)
        kind = inputs.out_item_bytes(out_type)
        assumed = _GROUPED if bounds is not None else ""
        return _cost(a, b, dims, written=written, out_bytes=kind, assumed=assumed)

    return formula


def _grouped_dims(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    """Give the sizes whose product is a grouped product's multiply-adds: (G,) M, N, K."""
    if not {len(a), len(b)} <= {2, 3} or a[-1] != b[-2]:
        return None
    if len(a) == len(b) == 3:
        return (a[0], a[1], b[2], a[2]) if a[0] == b[0] else None
    return (a[-2], b[-1], a[-1])


def _int4_packed(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
    """Count a product with weights packed in tiles: [N/8, …] words, four bits a weight."""
    operands = inputs.matrices(0, 1)
    if operands is None or len(operands[0].shape) != 2 or len(operands[1].shape) != 4:
        return MISFIT
    x, weight = operands
    (m, k), n = x.shape, 8 * weight.shape[0]
    return _cost(x, weight, (m, n, k), written=m * n)


MATMUL_FORMULAS: dict[str, Formula] = {
    "aten::mm": _plain(0, out_types=(2,)),
    "aten::addmm": _plain(1, added=True),
    "aten::_addmm_activation": _plain(1, added=True),
    "aten::bmm": _batched(0),
    "aten::baddbmm": _batched(1, added=True),
    "aten::mv": _vector(0),
    "aten::addmv": _vector(1, added=True),
    "aten::dot": _dot,
    "aten::vdot": _dot,
    "aten::linear": _linear(),
    "aten::matmul": _matmul,
    "aten::_scaled_mm": _plain(0, out_types=(6, 3)),
    "aten::_scaled_mm_v2": _plain(0, out_types=(9,)),
    "aten::_int_mm": _int_mm,
    "aten::_grouped_mm": _grouped(4, 2),
    "aten::_scaled_grouped_mm": _grouped(7, 4),
    "aten::_scaled_grouped_mm_v2": _grouped(10, 8),
    "aten::_weight_int8pack_mm": _linear(),
    "aten::_weight_int4pack_mm": _int4_packed,
    "_C::cutlass_scaled_mm": _into,
    "fbgemm::f8f8bf16": _linear(out_bytes=2),
    "fbgemm::f8f8bf16_rowwise": _linear(out_bytes=2),
    "vllm::rocm_unquantized_gemm": _linear(),
    "bitsandbytes::int8_linear_matmul": _linear(out_bytes=4),
}
"""Operators that are matrix products."""
