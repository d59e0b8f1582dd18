"""FLOPs of attention: a matmul of queries and keys, and one of scores and values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from gpusight.analysis.flops.operator_inputs import (
    MISFIT,
    OperatorCost,
    UnknownCost,
    by,
    product,
    total_bytes,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusight.analysis.flops.operator_inputs import OperatorInputs, TensorInput

    Formula: TypeAlias = Callable[[OperatorInputs], OperatorCost | UnknownCost]


_NOT_SAID = "attention not recorded as causal or not: all pairs of queries and keys"
_EQUAL = (
    "attention over sequences whose lengths were not recorded: taken as equally long, "
    "which is the least it can be"
)
_LENGTHS = UnknownCost("the lengths of the sequences are not recorded")
_CACHED = UnknownCost("how many cached keys are looked at is not recorded")


@dataclass(frozen=True, slots=True)
class _Kind:
    """How an operator writes its arguments; the places of flags differ among versions."""

    heads_first: bool
    """[B,H,S,D] rather than [B,S,H,D]."""
    backward: bool = False
    causal_flag: int | None = 0
    """Which of its truth values says causal; None when a number does."""
    mask_after_flag: int = 0
    """Where that number (0 none, 1 from the top left, 2 from the bottom right) is: how far from
    the first truth value."""
    window_after: int | None = None
    """Where the window's left and right reach are: how far behind the causal flag."""
    last_query_sees_all: bool = False
    """Causal from the bottom right: the last query looks at every key."""
    bias: int | None = None


@dataclass(frozen=True, slots=True)
class _Mask:
    """Which keys a query looks at; None reaches to the end."""

    left: int | None = None
    right: int | None = None
    from_end: bool = False
    said: bool = True

    @property
    def causal(self) -> bool:
        """Nothing after the query, everything before it."""
        return self.right == 0 and self.left is None


@dataclass(frozen=True, slots=True)
class _Heads:
    """The sizes of one attention."""

    batch: int
    heads: int
    queries: int
    keys: int
    width: int
    value_width: int


def _formula(kind: _Kind) -> Formula:
    def formula(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
        first = 1 if kind.backward else 0
        found = inputs.matrices(first, first + 1, first + 2)
        if found is None:
            return MISFIT
        q, k, v = found
        mask = _mask(inputs, kind)
        if len(q.shape) == 3:
            return _packed(inputs, kind, (q, k, v), mask)
        sizes = _sizes(q, k, v, heads_first=kind.heads_first)
        if sizes is None:
            return MISFIT
        pairs = sizes.batch * twice_pairs(sizes.queries, sizes.keys, mask)
        return _cost(inputs, kind, (q, k, v), sizes, pairs, mask)

    return formula


def _sizes(q: TensorInput, k: TensorInput, v: TensorInput, *, heads_first: bool) -> _Heads | None:
    if {len(q.shape), len(k.shape), len(v.shape)} != {4}:
        return None
    head, seq = (1, 2) if heads_first else (2, 1)
    fits = q.shape[0] == k.shape[0] == v.shape[0] and q.shape[3] == k.shape[3]
    shared = k.shape[head] and q.shape[head] % k.shape[head] == 0
    if not fits or not shared or k.shape[seq] != v.shape[seq]:
        return None
    return _Heads(q.shape[0], q.shape[head], q.shape[seq], k.shape[seq], q.shape[3], v.shape[3])


def _packed(
    inputs: OperatorInputs,
    kind: _Kind,
    qkv: tuple[TensorInput, TensorInput, TensorInput],
    mask: _Mask,
) -> OperatorCost | UnknownCost:
    """Count sequences laid end to end, [total,H,D], of which only number and longest are known."""
    q, k, v = qkv
    bounds = _bounds(inputs, after=4 if kind.backward else 3)
    if bounds is None or (len(k.shape), len(v.shape)) != (3, 3):
        return _CACHED if len(k.shape) == 4 else _LENGTHS
    count, (longest_q, longest_k) = bounds
    all_q, all_k = q.shape[0], k.shape[0]
    sizes = _Heads(count, q.shape[1], longest_q, longest_k, q.shape[2], v.shape[2])
    if all_q == count * longest_q and all_k == count * longest_k:
        pairs = count * twice_pairs(longest_q, longest_k, mask)
        return _cost(inputs, kind, qkv, sizes, pairs, mask)
    if longest_q == 1 and all_q == count and mask.left is None:
        return _cost(inputs, kind, qkv, sizes, 2 * all_k, mask)
    if all_q == all_k and longest_q == longest_k and mask.left is None:
        each = all_q * all_q // count
        return _cost(inputs, kind, qkv, sizes, each if mask.causal else 2 * each, mask, _EQUAL)
    return _LENGTHS


def _bounds(inputs: OperatorInputs, after: int) -> tuple[int, tuple[int, int]] | None:
    """Find how many sequences there are and the lengths of the longest query and key."""
    ends = [
        (index, tensor)
        for index in range(after, len(inputs))
        if (tensor := inputs.tensor(index)) is not None and len(tensor.shape) == 1
    ][:2]
    if len(ends) < 2 or ends[0][1].shape != ends[1][1].shape or ends[0][1].shape[0] < 2:
        return None
    longest = inputs.wholes_after(ends[1][0])[:2]
    if len(longest) < 2 or min(longest) < 0:
        return None
    return ends[0][1].shape[0] - 1, (longest[0], longest[1])


def _mask(inputs: OperatorInputs, kind: _Kind) -> _Mask:
    flags = inputs.flag_positions()
    if kind.causal_flag is None:
        return _numbered_mask(inputs, kind, flags)
    if len(flags) <= kind.causal_flag:
        return _Mask(said=False)
    place = flags[kind.causal_flag]
    right = 0 if inputs.flag(place) else None
    left = None
    if kind.window_after is not None:
        reach = [inputs.whole(place + kind.window_after + step) for step in (0, 1)]
        left, ahead = (None if r is None or r < 0 else r for r in reach)
        right = ahead if right is None else right
    return _Mask(left, right, from_end=kind.last_query_sees_all)


def _numbered_mask(inputs: OperatorInputs, kind: _Kind, flags: list[int]) -> _Mask:
    number = inputs.whole(flags[0] + kind.mask_after_flag) if flags else None
    if number is None:
        return _Mask(said=False)
    return _Mask(right=0 if number in {1, 2} else None, from_end=number == 2)


def twice_pairs(queries: int, keys: int, mask: _Mask) -> int:
    """Count the pairs of a query and a key it looks at, twice: half a square need not be whole."""
    if mask.causal and queries == keys:
        return queries * keys
    shift = keys - queries if mask.from_end else 0
    until, before = queries * keys, 0
    if mask.right is not None:
        past = shift + mask.right + 1
        until = _clamped_sum(past, past + queries, keys)
    if mask.left is not None:
        first = shift - mask.left
        before = _clamped_sum(first, first + queries, keys)
    return 2 * (until - before)


def _clamped_sum(start: int, stop: int, top: int) -> int:
    """Add up the whole numbers from start to before stop, each held between 0 and top."""
    rising_from, rising_to = max(start, 0), min(stop, top)
    rising = 0
    if rising_to > rising_from:
        rising = (rising_from + rising_to - 1) * (rising_to - rising_from) // 2
    return rising + top * max(0, stop - max(start, top))


def _cost(
    inputs: OperatorInputs,
    kind: _Kind,
    qkv: tuple[TensorInput, TensorInput, TensorInput],
    sizes: _Heads,
    pairs_twice: int,
    mask: _Mask,
    assumed: str = "",
) -> OperatorCost:
    """Make the cost from twice the pairs of all sequences in one head."""
    q = qkv[0]
    shape = (*q.shape[:-1], sizes.value_width)
    out = replace(q, shape=shape, distinct=product(shape))
    bias = None if kind.bias is None else inputs.tensor(kind.bias)
    scores, values = (3, 2) if kind.backward else (1, 1)
    per_pair = scores * sizes.width + values * sizes.value_width
    return OperatorCost(
        family="attention",
        flops=pairs_twice * sizes.heads * per_pair,
        read_bytes=total_bytes((*qkv, bias, *((out, out) if kind.backward else ()))),
        written_bytes=total_bytes(qkv if kind.backward else (out,)),
        precision=q.precision,
        sizes=_label(sizes, mask),
        assumed=assumed if mask.said else _NOT_SAID,
    )


def _label(sizes: _Heads, mask: _Mask) -> str:
    """Write the sizes as [B,H,S,D], with what differs from plain self-attention."""
    keys = f" k{sizes.keys}" if sizes.keys != sizes.queries else ""
    kind = " causal" if mask.causal else " window" if mask.left is not None else ""
    return by(sizes.batch, sizes.heads, sizes.queries, sizes.width) + keys + kind


def _cached(_: OperatorInputs) -> UnknownCost:
    return _CACHED


_HEADS_FIRST = _Kind(heads_first=True, bias=3)
_SECOND_FLAG = _Kind(heads_first=True, causal_flag=1, bias=3)
_FLASH = _Kind(heads_first=False, window_after=1, last_query_sees_all=True)
_FLASH_BACKWARD = replace(_FLASH, backward=True)
_EFFICIENT = _Kind(heads_first=False, causal_flag=None, mask_after_flag=-1, bias=3)
_CUDNN_BACKWARD = _Kind(heads_first=True, backward=True, bias=8)

ATTENTION_FORMULAS: dict[str, Formula] = {
    name: _formula(kind)
    for name, kind in {
        "aten::scaled_dot_product_attention": _HEADS_FIRST,
        "aten::_scaled_dot_product_fused_attention_overrideable": _HEADS_FIRST,
        "aten::_scaled_dot_product_flash_attention": replace(_HEADS_FIRST, bias=None),
        "aten::_scaled_dot_product_efficient_attention": _SECOND_FLAG,
        "aten::_scaled_dot_product_cudnn_attention": _SECOND_FLAG,
        "aten::_cudnn_attention_forward": _SECOND_FLAG,
        "aten::_flash_attention_forward": replace(_FLASH, window_after=3),
        "aten::_efficient_attention_forward": _EFFICIENT,
        "aten::_scaled_dot_product_flash_attention_backward": _Kind(
            heads_first=True, backward=True
        ),
        "aten::_scaled_dot_product_efficient_attention_backward": _Kind(
            heads_first=True, backward=True, bias=4
        ),
        "aten::_scaled_dot_product_fused_attention_overrideable_backward": _Kind(
            heads_first=True, backward=True, bias=4
        ),
        "aten::_scaled_dot_product_cudnn_attention_backward": _CUDNN_BACKWARD,
        "aten::_cudnn_attention_backward": _CUDNN_BACKWARD,
        "aten::_flash_attention_backward": replace(_FLASH_BACKWARD, window_after=4),
        "aten::_efficient_attention_backward": replace(_EFFICIENT, backward=True, bias=4),
        "flash_attn::_flash_attn_forward": _FLASH,
        "flash_attn::_flash_attn_varlen_forward": _FLASH,
        "flash_attn::_flash_attn_backward": _FLASH_BACKWARD,
        "flash_attn::_flash_attn_varlen_backward": _FLASH_BACKWARD,
        "xformers_flash::flash_fwd": _FLASH,
        "xformers_flash::flash_bwd": _FLASH_BACKWARD,
        "xformers::efficient_attention_forward_cutlass": replace(_EFFICIENT, mask_after_flag=1),
    }.items()
} | {
    "vllm::unified_attention": _cached,
    "vllm::unified_attention_with_output": _cached,
    "vllm::unified_mla_attention": _cached,
    "vllm::unified_mla_attention_with_output": _cached,
}
"""Operators that are attention or its gradients."""
