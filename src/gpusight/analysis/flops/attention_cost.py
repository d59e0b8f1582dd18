"""FLOPs of attention: a matmul of queries and keys, and one of scores and values."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import prod
from typing import TYPE_CHECKING

from gpusight.analysis.flops.operator_inputs import (
    MISFIT,
    OperatorCost,
    UnknownCost,
    by,
    total_bytes,
)

if TYPE_CHECKING:
    from gpusight.analysis.flops.operator_inputs import Formula, OperatorInputs, TensorInput

    QueryKeyValue = tuple[TensorInput, TensorInput, TensorInput]


_CAUSAL_UNKNOWN = "attention not recorded as causal or not: all pairs of queries and keys"
_EQUAL_LENGTHS = (
    "attention over sequences whose lengths were not recorded: taken as equally long, "
    "which is the least it can be"
)
_LENGTHS_UNKNOWN = UnknownCost("the lengths of the sequences are not recorded")
_CACHE_UNKNOWN = UnknownCost("how many cached keys are looked at is not recorded")


@dataclass(frozen=True, slots=True)
class _Signature:
    """The arguments of an operator; positions of flags differ among versions."""

    heads_first: bool
    """[B,H,S,D] rather than [B,S,H,D]."""
    backward: bool = False
    causal_flag: int | None = 0
    """Which of its booleans is `is_causal`; None when a mask type shows it."""
    mask_type_after: int = 0
    """Position of the mask type (0 none, 1 from the top left, 2 from the bottom right), relative to
    the first boolean."""
    window_after: int | None = None
    """Position of the window's left and right size, relative to the causal flag."""
    bottom_right: bool = False
    """A causal mask is aligned to the bottom right: the last query sees every key."""
    bias: int | None = None
    """Position of the bias."""


@dataclass(frozen=True, slots=True)
class _Mask:
    """How many keys to the left and right a query sees; None is all of them."""

    left: int | None = None
    right: int | None = None
    bottom_right: bool = False
    recorded: bool = True

    @property
    def causal(self) -> bool:
        """Whether a query sees nothing after it and everything before."""
        return self.right == 0 and self.left is None


@dataclass(frozen=True, slots=True)
class _Sizes:
    """The sizes of one attention call."""

    batch: int
    heads: int
    queries: int
    keys: int
    width: int
    value_width: int


def _formula(signature: _Signature) -> Formula:
    def formula(inputs: OperatorInputs) -> OperatorCost | UnknownCost:
        first = 1 if signature.backward else 0
        tensors = inputs.tensors(first, first + 1, first + 2)
        if tensors is None:
            return MISFIT
        q, k, v = tensors
        mask = _mask(inputs, signature)
        if len(q.shape) == 3:
            return _packed(inputs, signature, (q, k, v), mask)
        sizes = _sizes(q, k, v, heads_first=signature.heads_first)
        if sizes is None:
            return MISFIT
        twice_pairs = sizes.batch * _twice_pairs(sizes.queries, sizes.keys, mask)
        return _cost(inputs, signature, (q, k, v), sizes, twice_pairs, mask)

    return formula


def _sizes(q: TensorInput, k: TensorInput, v: TensorInput, *, heads_first: bool) -> _Sizes | None:
    if {len(q.shape), len(k.shape), len(v.shape)} != {4}:
        return None
    head, seq = (1, 2) if heads_first else (2, 1)
    fits = q.shape[0] == k.shape[0] == v.shape[0] and q.shape[3] == k.shape[3]
    shared = k.shape[head] and q.shape[head] % k.shape[head] == 0
    if not fits or not shared or k.shape[seq] != v.shape[seq]:
        return None
    return _Sizes(q.shape[0], q.shape[head], q.shape[seq], k.shape[seq], q.shape[3], v.shape[3])


def _packed(
    inputs: OperatorInputs, signature: _Signature, qkv: QueryKeyValue, mask: _Mask
) -> OperatorCost | UnknownCost:
    """Count packed sequences, [total,H,D], of which only number and longest are known."""
    q, k, v = qkv
    lengths = _packed_lengths(inputs, after=4 if signature.backward else 3)
    if lengths is None or (len(k.shape), len(v.shape)) != (3, 3):
        return _CACHE_UNKNOWN if len(k.shape) == 4 else _LENGTHS_UNKNOWN
    count, longest_q, longest_k = lengths
    all_q, all_k = q.shape[0], k.shape[0]
    sizes = _Sizes(count, q.shape[1], longest_q, longest_k, q.shape[2], v.shape[2])
    assumed = ""
    if all_q == count * longest_q and all_k == count * longest_k:
        twice_pairs = count * _twice_pairs(longest_q, longest_k, mask)
    elif longest_q == 1 and all_q == count and mask.left is None:
        twice_pairs = 2 * all_k
    elif all_q == all_k and longest_q == longest_k and mask.left is None:
        pairs = all_q * all_q // count
        twice_pairs, assumed = pairs if mask.causal else 2 * pairs, _EQUAL_LENGTHS
    else:
        return _LENGTHS_UNKNOWN
    return _cost(inputs, signature, qkv, sizes, twice_pairs, mask, assumed)


def _packed_lengths(inputs: OperatorInputs, after: int) -> tuple[int, int, int] | None:
    """Return how many sequences there are and the lengths of the longest query and key."""
    offsets = [
        (index, tensor)
        for index in range(after, len(inputs))
        if (tensor := inputs.tensor(index)) is not None and len(tensor.shape) == 1
    ][:2]
    if len(offsets) < 2:
        return None
    (_, of_queries), (last, of_keys) = offsets
    longest = inputs.integers_after(last)[:2]
    if of_queries.shape != of_keys.shape or of_queries.shape[0] < 2:
        return None
    if len(longest) < 2 or min(longest) < 0:
        return None
    return of_queries.shape[0] - 1, longest[0], longest[1]


def _mask(inputs: OperatorInputs, signature: _Signature) -> _Mask:
    flags = inputs.flag_positions()
    if signature.causal_flag is None:
        mask_type = inputs.integer(flags[0] + signature.mask_type_after) if flags else None
        if mask_type is None:
            return _Mask(recorded=False)
        return _Mask(right=0 if mask_type in {1, 2} else None, bottom_right=mask_type == 2)
    if len(flags) <= signature.causal_flag:
        return _Mask(recorded=False)
    flag = flags[signature.causal_flag]
    right = 0 if inputs.flag(flag) else None
    left = None
    if signature.window_after is not None:
        first = flag + signature.window_after
        window = (inputs.integer(position) for position in (first, first + 1))
        left, window_right = (None if size is None or size < 0 else size for size in window)
        right = window_right if right is None else right
    return _Mask(left, right, signature.bottom_right)


def _twice_pairs(queries: int, keys: int, mask: _Mask) -> int:
    """Count twice the pairs of a query and a key it sees: half a square may not be an integer."""
    if mask.causal and queries == keys:
        return queries * keys
    shift = keys - queries if mask.bottom_right else 0
    until, before = queries * keys, 0
    if mask.right is not None:
        past = shift + mask.right + 1
        until = _clamped_sum(past, past + queries, keys)
    if mask.left is not None:
        first = shift - mask.left
        before = _clamped_sum(first, first + queries, keys)
    return 2 * (until - before)


def _clamped_sum(start: int, stop: int, top: int) -> int:
    """Sum the integers from start to before stop, each clamped to 0..top."""
    rising_from, rising_to = max(start, 0), min(stop, top)
    rising = 0
    if rising_to > rising_from:
        rising = (rising_from + rising_to - 1) * (rising_to - rising_from) // 2
    return rising + top * max(0, stop - max(start, top))


def _cost(
    inputs: OperatorInputs,
    signature: _Signature,
    qkv: QueryKeyValue,
    sizes: _Sizes,
    twice_pairs: int,
    mask: _Mask,
    assumed: str = "",
) -> OperatorCost:
    """Return the cost, given twice the pairs of all sequences in one head."""
    q = qkv[0]
    shape = (*q.shape[:-1], sizes.value_width)
    out = replace(q, shape=shape, distinct=prod(shape))
    bias = None if signature.bias is None else inputs.tensor(signature.bias)
    scores, values = (3, 2) if signature.backward else (1, 1)
    per_pair = scores * sizes.width + values * sizes.value_width
    keys = f" k{sizes.keys}" if sizes.keys != sizes.queries else ""
    kind = " causal" if mask.causal else " window" if mask.left is not None else ""
    return OperatorCost(
        family="attention",
        flops=twice_pairs * sizes.heads * per_pair,
        read_bytes=total_bytes((*qkv, bias, *((out, out) if signature.backward else ()))),
        written_bytes=total_bytes(qkv if signature.backward else (out,)),
        precision=q.precision,
        sizes=by(sizes.batch, sizes.heads, sizes.queries, sizes.width) + keys + kind,
        assumed=assumed if mask.recorded else _CAUSAL_UNKNOWN,
    )


def _cached(_: OperatorInputs) -> UnknownCost:
    return _CACHE_UNKNOWN


_HEADS_FIRST = _Signature(heads_first=True, bias=3)
_SECOND_FLAG = _Signature(heads_first=True, causal_flag=1, bias=3)
_BACKWARD = _Signature(heads_first=True, backward=True)
_FLASH = _Signature(heads_first=False, window_after=1, bottom_right=True)
_FLASH_BACKWARD = replace(_FLASH, backward=True)
_EFFICIENT = _Signature(heads_first=False, causal_flag=None, mask_type_after=-1, bias=3)

ATTENTION_FORMULAS: dict[str, Formula] = {
    name: _formula(signature)
    for name, signature in {
        "aten::scaled_dot_product_attention": _HEADS_FIRST,
        "aten::_scaled_dot_product_fused_attention_overrideable": _HEADS_FIRST,
        "aten::_scaled_dot_product_flash_attention": replace(_HEADS_FIRST, bias=None),
        "aten::_scaled_dot_product_efficient_attention": _SECOND_FLAG,
        "aten::_scaled_dot_product_cudnn_attention": _SECOND_FLAG,
        "aten::_cudnn_attention_forward": _SECOND_FLAG,
        "aten::_flash_attention_forward": replace(_FLASH, window_after=3),
        "aten::_efficient_attention_forward": _EFFICIENT,
        "aten::_scaled_dot_product_flash_attention_backward": _BACKWARD,
        "aten::_scaled_dot_product_efficient_attention_backward": replace(_BACKWARD, bias=4),
        "aten::_scaled_dot_product_fused_attention_overrideable_backward": replace(
            _BACKWARD, bias=4
        ),
        "aten::_scaled_dot_product_cudnn_attention_backward": replace(_BACKWARD, bias=8),
        "aten::_cudnn_attention_backward": replace(_BACKWARD, bias=8),
        "aten::_flash_attention_backward": replace(_FLASH_BACKWARD, window_after=4),
        "aten::_efficient_attention_backward": replace(_EFFICIENT, backward=True, bias=4),
        "flash_attn::_flash_attn_forward": _FLASH,
        "flash_attn::_flash_attn_varlen_forward": _FLASH,
        "flash_attn::_flash_attn_backward": _FLASH_BACKWARD,
        "flash_attn::_flash_attn_varlen_backward": _FLASH_BACKWARD,
        "xformers_flash::flash_fwd": _FLASH,
        "xformers_flash::flash_bwd": _FLASH_BACKWARD,
        "xformers::efficient_attention_forward_cutlass": replace(_EFFICIENT, mask_type_after=1),
    }.items()
} | {
    "vllm::unified_attention": _cached,
    "vllm::unified_attention_with_output": _cached,
    "vllm::unified_mla_attention": _cached,
    "vllm::unified_mla_attention_with_output": _cached,
}
