"""Finds attention that is written out: scores, softmax and output as kernels of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from gpusight.findings.timeline.parts.order import last_before, next_after
from gpusight.findings.timeline.tensor_rate import FIXED_NS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.analyses.replay.program import Flags
    from gpusight.analyses.schedule.schedule import Ints
    from gpusight.findings.timeline.parts.order import InOrder

RECOMPUTED = 1.25
"""Backward attention that keeps no scores multiplies five times, not four."""
IN_HALF = 0.5
"""Part of the time of products in half precision that a fused kernel needs. Written out, they do as
many operations for a byte of scores as a head has elements, 64 or 128; a GPU with tensor cores can
do 150 to 300 while it moves that byte. So they wait for memory, which a fused kernel does not."""
FUSED_LAUNCHES = 3
"""Launches that one fused attention costs the host as much as: PyTorch's takes 52 us where a
product takes 26."""
_SERVES_MATMUL = r"split-k|epilogue|gemm setup"
_BETWEEN = ("elementwise", "copy", "random", "generated")
# A softmax that allows for rows that are masked as a whole asks for each row whether it is one.
_ASKS = r"^reduce (?:and|or)\b"
_TO_HALF = r"^copy f32→(?:bf16|f16)"
# A product with weights: what follows it is no attention but, say, the choice of an expert.
_WITH_WEIGHTS = (
    "aten::linear",
    "aten::addmm",
    "aten::_addmm_activation",
    "aten::mm",
    "aten::addmv",
    "aten::mv",
)


class Attention(NamedTuple):
    """Written-out attention, by position in `Schedule.ops`."""

    group: Ints
    """Number of the attention that a kernel is part of; `NONE` for all others."""
    kept: NDArray[np.float64]
    """Part of a kernel's time that a fused kernel still needs: none but of its products."""
    from_half: Flags
    """A product in FP32 on lanes of attention whose result is cast to half precision: it was half
    precision before, as in the fallback of PyTorch's fused attention."""
    backward: Flags
    """Whether attention of each number is backward."""


def find_attention(order: InOrder) -> Attention:
    """Find products with a softmax between them and nothing else that could not be fused."""
    category, label = pl.col("category"), pl.col("label").str.to_lowercase()
    product = order.where(category == "matmul")
    helper = product & order.where(label.str.contains(_SERVES_MATMUL))
    softmax = order.where(_is_softmax(category, label))
    passes = helper | softmax | order.where(category.is_in(_BETWEEN))
    # Masking copies the scores first; products of few columns clear their result.
    passes |= order.where(pl.col("kind") == "memset")
    passes |= order.where((category == "reduction") & label.str.contains(_ASKS))
    passes |= order.inside_device & order.where(category.is_null())
    real = product & ~helper
    spans = _Spans(order, real, real | passes)
    rows = np.flatnonzero(softmax)
    backward = order.where(label.str.contains("bwd|backward"))[rows]
    first, last, found = spans.around(rows, backward)
    found &= ~_with_weights(order, spans, rows)
    first, last, backward = first[found], spans.with_helpers(last[found], helper), backward[found]
    return _apart(order, first, last, backward, product)


def _is_softmax(category: pl.Expr, label: pl.Expr) -> pl.Expr:
    softmax = (category == "softmax") | ((category == "generated") & label.str.contains("softmax"))
    return softmax & ~label.str.contains("log_softmax")


def _with_weights(order: InOrder, spans: _Spans, rows: Ints) -> Flags:
    weights = order.where(pl.col("operator").is_in(_WITH_WEIGHTS))
    before, after = spans.before[rows], np.minimum(spans.after[rows], len(order) - 1)
    result: Flags = weights[before] | weights[after]
    return result


class _Spans:
    """The products around rows that only work lies between which a fused kernel would do."""

    def __init__(self, order: InOrder, real: Flags, passes: Flags) -> None:
        self._n = len(order)
        self._queue = order.queue
        self.before, self.after = last_before(real), next_after(real)
        self._barrier_before, self._barrier_after = last_before(~passes), next_after(~passes)

    def around(self, rows: Ints, backward: Flags) -> tuple[Ints, Ints, Flags]:
        """Give the first and the last product, two on each side where it is backward."""
        first, found = self._back(rows)
        last, also = self._on(rows)
        second, more = self._back(np.maximum(first - 1, 0))
        first = np.where(backward & more & (first > 0), second, first)
        second, more = self._on(np.minimum(last + 1, self._n - 1))
        last = np.where(backward & more & (last < self._n - 1), second, last)
        return first, last, found & also

    def _back(self, rows: Ints) -> tuple[Ints, Flags]:
        at = self.before[rows]
        found = (at >= 0) & (at > self._barrier_before[rows])
        return at, found & (self._queue[at] == self._queue[rows])

    def _on(self, rows: Ints) -> tuple[Ints, Flags]:
        at = self.after[rows]
        found = (at < self._n) & (at < self._barrier_after[rows])
        at = np.minimum(at, self._n - 1)
        return at, found & (self._queue[at] == self._queue[rows])

    def with_helpers(self, last: Ints, helper: Flags) -> Ints:
        """Take in what only finishes the last product."""
        following = np.append(next_after(~helper), self._n)[last + 1] - 1
        at = np.minimum(following, self._n - 1)
        result: Ints = np.where(self._queue[at] == self._queue[last], at, last)
        return result


def _apart(order: InOrder, first: Ints, last: Ints, backward: Flags, product: Flags) -> Attention:
    """Number stretches that do not overlap, and mark the kernels in them."""
    sequence = np.argsort(first, kind="stable")
    first, last, backward = first[sequence], last[sequence], backward[sequence]
    ended = np.concatenate(([-1], np.maximum.accumulate(last)))[: len(first)]
    new = first > ended
    first, last, backward = first[new], last[new], backward[new]
    rows = np.arange(len(order))
    number = np.searchsorted(first, rows, side="right") - 1
    inside = (number >= 0) & order.inside_device
    inside[inside] = rows[inside] <= last[number[inside]]
    members = np.flatnonzero(inside)
    number = number[members]
    kept, from_half = np.zeros(len(order)), np.zeros(len(order), np.bool_)
    times = np.where(backward, RECOMPUTED, 1.0)
    kept[order.ops[members]] = (product * _left(order))[members] * times[number]
    lanes = product & order.where((pl.col("precision") == "fp32") & ~pl.col("tensor_core"))
    from_half[order.ops[members]] = lanes[members] & _cast_after(order, last)[number]
    return Attention(order.by_op(members, number), kept, from_half, backward)


def _left(order: InOrder) -> NDArray[np.float64]:
    """Give the part of the time that a product would take within a fused kernel."""
    half = order.where(pl.col("precision").is_in(("bf16", "fp16")) & pl.col("tensor_core"))
    duration = np.maximum(order.frame["duration_ns"].to_numpy(), 1)
    left: NDArray[np.float64] = np.where(half, np.minimum(1.0, IN_HALF + FIXED_NS / duration), 1.0)
    return left


def _cast_after(order: InOrder, last: Ints) -> Flags:
    """Tell whether the results of these rows are cast from FP32 to half precision, once scaled."""
    casts = order.where((pl.col("category") == "copy") & pl.col("label").str.contains(_TO_HALF))
    scales = order.where(pl.col("category") == "elementwise")
    following = np.append(next_after(~scales), len(order))[last + 1]
    following = np.minimum(following, max(len(order) - 1, 0))
    result: Flags = casts[following] & (order.queue[following] == order.queue[last])
    return result
