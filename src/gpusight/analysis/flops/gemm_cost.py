"""FLOPs of matmuls (2·M·N·K) and convolutions (two per output element and weight reaching it).

Minimum bytes: each operand read and the result written once.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING

from gpusight.analysis.flops.operator_inputs import (
    MISFIT,
    OperatorCost,
    UnknownCost,
    by,
    scaled,
    total_bytes,
)

if TYPE_CHECKING:
    from gpusight.analysis.flops.operator_inputs import Formula, OperatorInputs, TensorInput


# Matmuls ------------------------------------------------------------------------------------------


_GROUPED = "grouped GEMMs: every row is assumed to belong to a group"


def _matmul_cost(
    a: TensorInput,
    b: TensorInput,
    dims: tuple[int, ...],
    *,
    written: int,
    added: TensorInput | None = None,
    out_bytes: int | None = None,
    assumed: str = "",
) -> OperatorCost:
    """Return the cost of a matmul of (batch,) M, N and K; `written` counts elements."""
    # Integer weights are widened to the format of the other operand.
    same_format = b.precision in {a.precision, "int", "int8"}
    return OperatorCost(
        family="matmul",
        flops=_flops_per_multiply_add(a) * prod(dims),
        read_bytes=total_bytes((a, b, added)),
        written_bytes=scaled(written, out_bytes or a.item_bytes),
        precision=a.precision if same_format else None,
        sizes=by(*dims),
        assumed=assumed,
    )


def _flops_per_multiply_add(tensor: TensorInput) -> int:
    return 8 if tensor.precision == "complex" else 2


def _mm(
    first: int,
    *,
    added: bool = False,
    out_types: tuple[int, ...] = (),
    out_bytes: int | None = None,
) -> Formula:
    """Return the formula of [M,K] x [K,N]; `first` is the position of the left operand.

    `out_types` are the positions at which versions of the operator have the type of the result.
    """

    def formula(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
        operands = inputs.tensors(first, first + 1, rank=2)
        if operands is None:
            return MISFIT
        a, b = operands
        (m, k), (rows, n) = a.shape, b.shape
        if k != rows:
            return MISFIT
        item_bytes = [out_bytes, *(inputs.out_item_bytes(position) for position in out_types)]
        return _matmul_cost(
            a,
            b,
            (m, n, k),
            written=m * n,
            added=inputs.tensor(0) if added else None,
            out_bytes=next(filter(None, item_bytes), None),
        )

    return formula


def _mm_out(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
    """Count a matmul whose result is the first argument: [M,N] = [M,K] x [K,N]."""
    operands = inputs.tensors(0, 1, 2, rank=2)
    if operands is None:
        return MISFIT
    out, a, b = operands
    (m, k), (rows, n) = a.shape, b.shape
    if k != rows or out.shape != (m, n):
        return MISFIT
    return _matmul_cost(a, b, (m, n, k), written=m * n, out_bytes=out.item_bytes)


def _bmm(first: int, *, added: bool = False) -> Formula:
    """Return the formula of [B,M,K] x [B,K,N]."""

    def formula(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
        operands = inputs.tensors(first, first + 1, rank=3)
        if operands is None:
            return MISFIT
        a, b = operands
        (batch, m, k), (b_batch, rows, n) = a.shape, b.shape
        if k != rows or batch != b_batch:
            return MISFIT
        bias = inputs.tensor(0) if added else None
        return _matmul_cost(a, b, (batch, m, n, k), written=batch * m * n, added=bias)

    return formula


def _mv(first: int, *, added: bool = False) -> Formula:
    """Return the formula of [M,K] x [K]."""

    def formula(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
        operands = inputs.tensors(first, first + 1)
        if operands is None:
            return MISFIT
        a, b = operands
        if len(a.shape) != 2 or len(b.shape) != 1 or a.shape[1] != b.shape[0]:
            return MISFIT
        m, k = a.shape
        bias = inputs.tensor(0) if added else None
        return _matmul_cost(a, b, (m, 1, k), written=m, added=bias)

    return formula


def _dot(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
    operands = inputs.tensors(0, 1, rank=1)
    if operands is None or operands[0].shape != operands[1].shape:
        return MISFIT
    a, b = operands
    return _matmul_cost(a, b, (1, 1, a.shape[0]), written=1)


def _linear(*, out_bytes: int | None = None) -> Formula:
    """Return the formula of [..., K] x [N,K] transposed."""

    def formula(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
        operands = inputs.tensors(0, 1)
        if operands is None:
            return MISFIT
        x, weight = operands
        if len(weight.shape) != 2 or not x.shape or x.shape[-1] != weight.shape[1]:
            return MISFIT
        m, (n, k) = prod(x.shape[:-1]), weight.shape
        bias = inputs.tensor(2)
        return _matmul_cost(x, weight, (m, n, k), written=m * n, added=bias, out_bytes=out_bytes)

    return formula


def _matmul(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
    """Count `matmul`, which broadcasts; used only where no inner operator was recorded."""
    operands = inputs.tensors(0, 1)
    if operands is None or not all(t.shape for t in operands):
        return MISFIT
    a, b = operands
    left = a.shape if len(a.shape) > 1 else (1, *a.shape)
    right = b.shape if len(b.shape) > 1 else (*b.shape, 1)
    batch = _broadcast(left[:-2], right[:-2])
    if batch is None or left[-1] != right[-2]:
        return MISFIT
    m, n, k, times = left[-2], right[-1], left[-1], prod(batch)
    dims = (m, n, k) if times == 1 else (times, m, n, k)
    return _matmul_cost(a, b, dims, written=times * m * n)


def _broadcast(left: tuple[int, ...], right: tuple[int, ...]) -> tuple[int, ...] | None:
    """Broadcast the batch sizes of two operands; None when they do not fit."""
    rank = max(len(left), len(right))
    left, right = (1,) * (rank - len(left)) + left, (1,) * (rank - len(right)) + right
    if any(x != y and 1 not in {x, y} for x, y in zip(left, right, strict=True)):
        return None
    return tuple(y if x == 1 else x for x, y in zip(left, right, strict=True))


def _grouped_matmul(out_type: int, offsets: int) -> Formula:
    """Return the formula of a grouped matmul: the operand of two dimensions is cut into groups."""

    def formula(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
        operands = inputs.tensors(0, 1)
        if operands is None:
            return MISFIT
        a, b = operands
        bounds = inputs.tensor(offsets)
        groups = bounds.elements if bounds is not None else 1
        dims = _grouped_dims(a.shape, b.shape)
        if dims is None:
            return MISFIT
        both_flat = len(a.shape) == len(b.shape) == 2
        written = prod(dims) // max(dims[-1], 1) * (groups if both_flat else 1)
        return _matmul_cost(
            a,
            b,
            dims,
            written=written,
            out_bytes=inputs.out_item_bytes(out_type),
            assumed=_GROUPED if bounds is not None else "",
        )

    return formula


def _grouped_dims(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    """Return the sizes whose product is the multiply-adds of a grouped matmul: (G,) M, N, K."""
    if not {len(a), len(b)} <= {2, 3} or a[-1] != b[-2]:
        return None
    if len(a) == len(b) == 3:
        return (a[0], a[1], b[2], a[2]) if a[0] == b[0] else None
    return (a[-2], b[-1], a[-1])


def _int4_packed(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
    """Count a matmul with weights packed in tiles: [N/8, …] words, four bits a weight."""
    operands = inputs.tensors(0, 1)
    if operands is None or len(operands[0].shape) != 2 or len(operands[1].shape) != 4:
        return MISFIT
    x, weight = operands
    (m, k), n = x.shape, 8 * weight.shape[0]
    return _matmul_cost(x, weight, (m, n, k), written=m * n)


MATMUL_FORMULAS: dict[str, Formula] = {
    "aten::mm": _mm(0, out_types=(2,)),
    "aten::addmm": _mm(1, added=True),
    "aten::_addmm_activation": _mm(1, added=True),
    "aten::bmm": _bmm(0),
    "aten::baddbmm": _bmm(1, added=True),
    "aten::mv": _mv(0),
    "aten::addmv": _mv(1, added=True),
    "aten::dot": _dot,
    "aten::vdot": _dot,
    "aten::linear": _linear(),
    "aten::matmul": _matmul,
    "aten::_scaled_mm": _mm(0, out_types=(6, 3)),
    "aten::_scaled_mm_v2": _mm(0, out_types=(9,)),
    "aten::_int_mm": _mm(0, out_bytes=4),
    "aten::_grouped_mm": _grouped_matmul(4, 2),
    "aten::_scaled_grouped_mm": _grouped_matmul(7, 4),
    "aten::_scaled_grouped_mm_v2": _grouped_matmul(10, 8),
    "aten::_weight_int8pack_mm": _linear(),
    "aten::_weight_int4pack_mm": _int4_packed,
    "_C::cutlass_scaled_mm": _mm_out,
    "fbgemm::f8f8bf16": _linear(out_bytes=2),
    "fbgemm::f8f8bf16_rowwise": _linear(out_bytes=2),
    "vllm::rocm_unquantized_gemm": _linear(),
    "bitsandbytes::int8_linear_matmul": _linear(out_bytes=4),
}


# Convolutions -------------------------------------------------------------------------------------


_NOT_RECORDED = UnknownCost(
    "stride, padding and dilation were not recorded; newer versions of PyTorch do"
)
_BOTH = "convolution gradients without a recorded mask: both the input's and the weight's"


@dataclass(frozen=True, slots=True)
class _Positions:
    """Positions of the arguments that decide the size of an operator's output."""

    stride: int
    padding: int
    dilation: int
    groups: int
    transposed: int | bool = False
    """The position of the flag, or its value where the operator is always one of them."""
    output_padding: int | None = None
    bias: int | None = 2


def _convolution(positions: _Positions) -> Formula:
    def formula(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
        operands = _input_and_weight(inputs, 0, 1)
        if operands is None:
            return MISFIT
        x, weight = operands
        transposed = _is_transposed(inputs, positions.transposed)
        output = _output_shape(x, weight, inputs, positions, transposed=transposed)
        if isinstance(output, UnknownCost):
            return output
        bias = None if positions.bias is None else inputs.tensor(positions.bias)
        return OperatorCost(
            family="convolution",
            flops=_convolution_flops(x.elements if transposed else prod(output), weight),
            read_bytes=total_bytes((x, weight, bias)),
            written_bytes=scaled(prod(output), x.item_bytes),
            precision=x.precision,
            sizes=_convolution_sizes(x, weight, inputs.integers(positions.stride)),
        )

    return formula


def _convolution_flops(elements: int, weight: TensorInput) -> int:
    return _flops_per_multiply_add(weight) * elements * prod(weight.shape[1:])


def _input_and_weight(
    inputs: OperatorInputs, x_position: int, weight_position: int
) -> tuple[TensorInput, TensorInput] | None:
    """Return input and weight; None for an input without a batch, which no backend gets."""
    operands = inputs.tensors(x_position, weight_position)
    if operands is None:
        return None
    x, weight = operands
    return (x, weight) if len(x.shape) == len(weight.shape) >= 3 else None


def _is_transposed(inputs: OperatorInputs, transposed: int | bool) -> bool | None:
    return transposed if isinstance(transposed, bool) else inputs.flag(transposed)


def _output_shape(
    x: TensorInput,
    weight: TensorInput,
    inputs: OperatorInputs,
    positions: _Positions,
    *,
    transposed: bool | None,
) -> tuple[int, ...] | UnknownCost:
    rank = len(x.shape) - 2

    def per_dimension(position: int) -> tuple[int, ...] | None:
        """Return one number for each dimension: a single one stands for all."""
        numbers = inputs.integers(position)
        if numbers is None or len(numbers) not in {1, rank}:
            return None
        return numbers * rank if len(numbers) == 1 else numbers

    stride = per_dimension(positions.stride)
    padding = per_dimension(positions.padding)
    dilation = per_dimension(positions.dilation)
    if stride is None or padding is None or dilation is None or transposed is None:
        return _NOT_RECORDED
    if min(stride) < 1:
        return MISFIT
    windows = zip(x.shape[2:], weight.shape[2:], stride, padding, dilation, strict=True)
    if not transposed:
        spatial = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in windows]
        channels = weight.shape[0]
    else:
        at = positions.output_padding
        output_padding = (None if at is None else per_dimension(at)) or (0,) * rank
        spatial = [
            (n - 1) * s - 2 * p + d * (k - 1) + extra + 1
            for (n, k, s, p, d), extra in zip(windows, output_padding, strict=True)
        ]
        channels = weight.shape[1] * (inputs.integer(positions.groups) or 1)
    return MISFIT if min(channels, *spatial) < 0 else (x.shape[0], channels, *spatial)


def _convolution_sizes(x: TensorInput, weight: TensorInput, stride: tuple[int, ...] | None) -> str:
    largest = max(stride) if stride else 1
    return f"{by(*x.shape)} * {by(*weight.shape)}" + (f" /{largest}" if largest > 1 else "")


def _convolution_backward(
    grad: int, x: int, weight: int, transposed: int | bool, mask: int, stride: int
) -> Formula:
    """Return the formula of the gradients: one convolution for each that the mask selects.

    All but a boolean `transposed` are positions of arguments.
    """

    def formula(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
        operands = _input_and_weight(inputs, x, weight)
        dy = inputs.tensor(grad)
        if operands is None or dy is None or len(dy.shape) != len(operands[0].shape):
            return MISFIT
        x_in, w = operands
        wanted = inputs.flags(mask)
        of_x, of_weight, of_bias = wanted if wanted and len(wanted) == 3 else (True, True, False)
        is_transposed = _is_transposed(inputs, transposed)
        flops = _convolution_flops(x_in.elements if is_transposed else dy.elements, w)
        written = x_in.elements * of_x + w.elements * of_weight + dy.shape[1] * of_bias
        return OperatorCost(
            family="convolution",
            flops=flops * (of_x + of_weight),
            read_bytes=total_bytes((dy, w if of_x else None, x_in if of_weight else None)),
            written_bytes=scaled(written, x_in.item_bytes),
            precision=x_in.precision,
            sizes=_convolution_sizes(x_in, w, inputs.integers(stride)),
            assumed="" if wanted else _BOTH,
        )

    return formula


_ATEN = _Positions(3, 4, 5, groups=8, transposed=6, output_padding=7)
_CONV = _Positions(3, 4, 5, groups=6)
_CONV_TRANSPOSE = _Positions(3, 4, 7, groups=6, transposed=True, output_padding=5)
_MIOPEN = _Positions(4, 3, 5, groups=6)

CONVOLUTION_FORMULAS: dict[str, Formula] = {
    "aten::conv1d": _convolution(_CONV),
    "aten::conv2d": _convolution(_CONV),
    "aten::conv3d": _convolution(_CONV),
    "aten::conv_transpose1d": _convolution(_CONV_TRANSPOSE),
    "aten::conv_transpose2d": _convolution(_CONV_TRANSPOSE),
    "aten::conv_transpose3d": _convolution(_CONV_TRANSPOSE),
    "aten::convolution": _convolution(_ATEN),
    "aten::_convolution": _convolution(_ATEN),
    "aten::convolution_overrideable": _convolution(_ATEN),
    "aten::cudnn_convolution": _convolution(_Positions(3, 2, 4, groups=5, bias=None)),
    "aten::cudnn_convolution_transpose": _convolution(
        _Positions(4, 2, 5, groups=6, transposed=True, output_padding=3, bias=None)
    ),
    "aten::cudnn_convolution_relu": _convolution(_CONV),
    "aten::cudnn_convolution_add_relu": _convolution(_Positions(5, 6, 7, groups=8)),
    "aten::miopen_convolution": _convolution(_MIOPEN),
    "aten::miopen_depthwise_convolution": _convolution(_MIOPEN),
    "aten::miopen_convolution_relu": _convolution(_CONV),
    "aten::miopen_convolution_add_relu": _convolution(_Positions(5, 6, 7, groups=8)),
    "aten::miopen_convolution_transpose": _convolution(
        _Positions(5, 3, 6, groups=7, transposed=True, output_padding=4)
    ),
    "aten::mkldnn_convolution": _convolution(_MIOPEN),
    "aten::convolution_backward": _convolution_backward(0, 1, 2, 7, mask=10, stride=4),
    "aten::convolution_backward_overrideable": _convolution_backward(0, 1, 2, 6, mask=9, stride=3),
    "aten::cudnn_convolution_backward": _convolution_backward(
        1, 0, 2, transposed=False, mask=10, stride=4
    ),
}
