"""FLOPs of convolutions: two for each output element and each weight that reaches it."""

from __future__ import annotations

from dataclasses import dataclass
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


_NOT_RECORDED = UnknownCost(
    "stride, padding and dilation were not recorded; newer versions of PyTorch do"
)
_BOTH = "convolution gradients without a recorded mask: both the input's and the weight's"


@dataclass(frozen=True, slots=True)
class _Places:
    """Where an operator has what decides the size of its output."""

    stride: int
    padding: int
    dilation: int
    groups: int
    transposed: int | bool = False
    """The place of the flag, or the answer where the operator is only one of them."""
    output_padding: int | None = None
    bias: int | None = 2


def _forward(places: _Places) -> Formula:
    def formula(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
        operands = _operands(inputs, 0, 1)
        if operands is None:
            return MISFIT
        x, weight = operands
        output = _output(x, weight, inputs, places)
        if isinstance(output, UnknownCost):
            return output
        bias = None if places.bias is None else inputs.tensor(places.bias)
        spread = x if _is_transposed(inputs, places) else None
        return OperatorCost(
            family="convolution",
            flops=_flops(product(output) if spread is None else x.elements, weight),
            read_bytes=total_bytes((x, weight, bias)),
            written_bytes=scaled(product(output), x.item_bytes),
            precision=x.precision,
            sizes=_sizes(x, weight, inputs.wholes(places.stride)),
        )

    return formula


def _flops(elements: int, weight: TensorInput) -> int:
    per_step = 8 if weight.precision == "complex" else 2
    return per_step * elements * product(weight.shape[1:])


def _operands(
    inputs: OperatorInputs, x_at: int, weight_at: int
) -> tuple[TensorInput, TensorInput] | None:
    """Give input and weight; an input without a batch is left out, as no backend sees one."""
    found = inputs.matrices(x_at, weight_at)
    if found is None or len(found[0].shape) != len(found[1].shape) or len(found[0].shape) < 3:
        return None
    return found[0], found[1]


def _is_transposed(inputs: OperatorInputs, places: _Places) -> bool | None:
    if isinstance(places.transposed, bool):
        return places.transposed
    return inputs.flag(places.transposed)


def _output(
    x: TensorInput, weight: TensorInput, inputs: OperatorInputs, places: _Places
) -> tuple[int, ...] | UnknownCost:
    """Work out the sizes of the output."""
    rank = len(x.shape) - 2
    transposed = _is_transposed(inputs, places)
    found = [_spread(inputs.wholes(p), rank) for p in (places.stride, places.padding)]
    found.append(_spread(inputs.wholes(places.dilation), rank))
    lists = [numbers for numbers in found if numbers is not None]
    if len(lists) < len(found) or transposed is None:
        return _NOT_RECORDED
    windows = list(zip(x.shape[2:], weight.shape[2:], *lists, strict=True))
    if any(stride < 1 for _, _, stride, _, _ in windows):
        return MISFIT
    if not transposed:
        spatial = [(n + 2 * p - d * (k - 1) - 1) // s + 1 for n, k, s, p, d in windows]
        channels = weight.shape[0]
    else:
        more = _output_padding(inputs, places, rank)
        spatial = [
            (n - 1) * s - 2 * p + d * (k - 1) + extra + 1
            for (n, k, s, p, d), extra in zip(windows, more, strict=True)
        ]
        channels = weight.shape[1] * (inputs.whole(places.groups) or 1)
    return MISFIT if min(channels, *spatial) < 0 else (x.shape[0], channels, *spatial)


def _output_padding(inputs: OperatorInputs, places: _Places, rank: int) -> tuple[int, ...]:
    found = None if places.output_padding is None else inputs.wholes(places.output_padding)
    return _spread(found, rank) or (0,) * rank


def _spread(numbers: tuple[int, ...] | None, rank: int) -> tuple[int, ...] | None:
    """Give one number for each dimension: a single one stands for all."""
    if numbers is None or len(numbers) not in {1, rank}:
        return None
    return numbers * rank if len(numbers) == 1 else numbers


def _sizes(x: TensorInput, weight: TensorInput, stride: tuple[int, ...] | None) -> str:
    step = max(stride, default=1) if stride else 1
    return f"{by(*x.shape)} * {by(*weight.shape)}" + (f" /{step}" if step > 1 else "")


def _backward(
    grad_at: int, x_at: int, weight_at: int, transposed: int | bool, mask_at: int, stride_at: int
) -> Formula:
    """Make the formula of the gradients: one more convolution for each that the mask asks for."""

    def formula(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
        operands = _operands(inputs, x_at, weight_at)
        grad = inputs.tensor(grad_at)
        if operands is None or grad is None or len(grad.shape) != len(operands[0].shape):
            return MISFIT
        x, weight = operands
        mask = inputs.flags(mask_at)
        of_x, of_weight, of_bias = mask if mask and len(mask) == 3 else (True, True, False)
        flipped = inputs.flag(transposed) if type(transposed) is int else transposed
        once = _flops(x.elements if flipped else grad.elements, weight)
        written = x.elements * of_x + weight.elements * of_weight + grad.shape[1] * of_bias
        return OperatorCost(
            family="convolution",
            flops=once * (of_x + of_weight),
            read_bytes=total_bytes((grad, weight if of_x else None, x if of_weight else None)),
            written_bytes=scaled(written, x.item_bytes),
            precision=x.precision,
            sizes=_sizes(x, weight, inputs.wholes(stride_at)),
            assumed="" if mask else _BOTH,
        )

    return formula


_ATEN = _Places(3, 4, 5, groups=8, transposed=6, output_padding=7)
_CONV = _Places(3, 4, 5, groups=6)
_CONV_TRANSPOSE = _Places(3, 4, 7, groups=6, transposed=True, output_padding=5)
_MIOPEN = _Places(4, 3, 5, groups=6)

CONVOLUTION_FORMULAS: dict[str, Formula] = {
    "aten::conv1d": _forward(_CONV),
    "aten::conv2d": _forward(_CONV),
    "aten::conv3d": _forward(_CONV),
    "aten::conv_transpose1d": _forward(_CONV_TRANSPOSE),
    "aten::conv_transpose2d": _forward(_CONV_TRANSPOSE),
    "aten::conv_transpose3d": _forward(_CONV_TRANSPOSE),
    "aten::convolution": _forward(_ATEN),
    "aten::_convolution": _forward(_ATEN),
    "aten::convolution_overrideable": _forward(_ATEN),
    "aten::cudnn_convolution": _forward(_Places(3, 2, 4, groups=5, bias=None)),
    "aten::cudnn_convolution_transpose": _forward(
        _Places(4, 2, 5, groups=6, transposed=True, output_padding=3, bias=None)
    ),
    "aten::cudnn_convolution_relu": _forward(_CONV),
    "aten::cudnn_convolution_add_relu": _forward(_Places(5, 6, 7, groups=8)),
    "aten::miopen_convolution": _forward(_MIOPEN),
    "aten::miopen_depthwise_convolution": _forward(_MIOPEN),
    "aten::miopen_convolution_relu": _forward(_CONV),
    "aten::miopen_convolution_add_relu": _forward(_Places(5, 6, 7, groups=8)),
    "aten::miopen_convolution_transpose": _forward(
        _Places(5, 3, 6, groups=7, transposed=True, output_padding=4)
    ),
    "aten::mkldnn_convolution": _forward(_MIOPEN),
    "aten::convolution_backward": _backward(0, 1, 2, transposed=7, mask_at=10, stride_at=4),
    "aten::convolution_backward_overrideable": _backward(
        0, 1, 2, transposed=6, mask_at=9, stride_at=3
    ),
    "aten::cudnn_convolution_backward": _backward(
        1, 0, 2, transposed=False, mask_at=10, stride_at=4
    ),
}
"""Operators that are convolutions or their gradients."""
