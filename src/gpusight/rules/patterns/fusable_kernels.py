"""Kernels that could be fused into one: attention, optimizer steps, pointwise chains."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from gpusight.analysis.gpu_schedule import NONE, CallKind
from gpusight.hardware.gpu_lookup import GEMM_FIXED_NS
from gpusight.rules.context import memoize

if TYPE_CHECKING:
    from gpusight.analysis.gpu_schedule import GpuSchedule
    from gpusight.rules.context import RuleContext
    from gpusight.trace.intervals import Flags, Ints, Reals


_IS_KERNEL = pl.col("kind") == "kernel"
_IS_COPY = (pl.col("kind") == "copy") & (pl.col("direction") == "Device-to-Device")


class StreamOrder:
    """Rows of `RuleContext.ops`, sorted by stream; rows are positions in this order."""

    def __init__(self, ops: pl.DataFrame) -> None:
        order = np.argsort(ops["stream_id"].to_numpy(), kind="stable")
        self.ops: Ints = order
        """Position of each row in `GpuSchedule.ops`."""
        self.frame = ops[order]
        self.stream_id: Ints = self.frame["stream_id"].to_numpy()
        self.inside_device = self.where(_IS_KERNEL | _IS_COPY)
        """Kernels and copies within the GPU, which a kernel could do too."""

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.ops)

    def where(self, condition: pl.Expr) -> Flags:
        """Evaluate a condition for each row; null counts as false."""
        flags: Flags = self.frame.select(condition.fill_null(value=False)).to_series().to_numpy()
        return flags

    def follows(self) -> Flags:
        """Return for each row whether the row before is of the same stream."""
        same: Flags = np.concatenate(([False], self.stream_id[1:] == self.stream_id[:-1]))[
            : len(self)
        ]
        return same

    def by_op(self, rows: Ints, numbers: Ints) -> Ints:
        """Return the numbers of rows by position in `GpuSchedule.ops`, `NONE` for all others."""
        result = np.full(len(self), NONE, np.int64)
        result[self.ops[rows]] = numbers
        return result


def last_before(flags: Flags) -> Ints:
    """Return for each row the nearest one before it, or itself, that is marked; -1 for none."""
    marked = np.where(flags, np.arange(len(flags)), -1)
    return np.maximum.accumulate(marked) if len(marked) else marked


def next_after(flags: Flags) -> Ints:
    """Return for each row the nearest one after it, or itself, that is marked; the end for none."""
    n = len(flags)
    marked = np.where(flags, np.arange(n), n)
    return np.minimum.accumulate(marked[::-1])[::-1] if n else marked


RECOMPUTED = 1.25
"""Backward attention that stores no scores has five GEMMs, not four."""
IN_HALF = 0.5
"""Part of the time of half-precision GEMMs that a fused kernel needs. Unfused, they do as many
operations per byte of scores as a head has elements, 64 or 128; a GPU with Tensor Cores can do 150
to 300. So they are bound by memory, which a fused kernel is not."""
FUSED_LAUNCHES = 3
"""Host time of one fused attention, in launches: PyTorch's takes 52 us, a GEMM 26."""
_SERVES_MATMUL = r"split-k|epilogue|gemm setup"
_BETWEEN = ("elementwise", "copy", "random", "generated")
# A softmax that supports fully masked rows checks for each row whether it is one.
_MASK_CHECK = r"^reduce (?:and|or)\b"
_TO_HALF = r"^copy f32→(?:bf16|f16)"
# A GEMM with weights: a softmax after it is not attention but, say, the choice of an expert.
_WITH_WEIGHTS = (
    "aten::linear",
    "aten::addmm",
    "aten::_addmm_activation",
    "aten::mm",
    "aten::addmv",
    "aten::mv",
)


class AttentionKernels(NamedTuple):
    """Unfused attention, by position in `GpuSchedule.ops`."""

    group: Ints
    """Number of the attention that a kernel is part of; `NONE` for all others."""
    kept: Reals
    """Part of a kernel's time that a fused kernel still needs: 0 for all but GEMMs."""
    from_half: Flags
    """An FP32 GEMM on CUDA cores whose attention is cast to half precision: its input was half
    precision too, as in the fallback of PyTorch's fused attention."""
    backward: Flags
    """Whether attention of each number is backward."""


def find_attention(order: StreamOrder) -> AttentionKernels:
    """Find GEMMs with a softmax between them and nothing else that could not be fused."""
    category, label = pl.col("category"), pl.col("label").str.to_lowercase()
    gemm = order.where(category == "matmul")
    helper = gemm & order.where(label.str.contains(_SERVES_MATMUL))
    is_softmax = (category == "softmax") | (
        (category == "generated") & label.str.contains("softmax")
    )
    softmax = order.where(is_softmax & ~label.str.contains("log_softmax"))
    passes = helper | softmax | order.where(category.is_in(_BETWEEN))
    # Masking copies the scores first; GEMMs of few columns clear their result.
    passes |= order.where(pl.col("kind") == "memset")
    passes |= order.where((category == "reduction") & label.str.contains(_MASK_CHECK))
    passes |= order.inside_device & order.where(category.is_null())
    main_gemm = gemm & ~helper
    spans = _Spans(order, main_gemm, main_gemm | passes)
    rows = np.flatnonzero(softmax)
    backward = order.where(label.str.contains("bwd|backward"))[rows]
    first, last, complete = spans.around(rows, backward)
    weights = order.where(pl.col("operator").is_in(_WITH_WEIGHTS))
    before, after = spans.before[rows], np.minimum(spans.after[rows], len(order) - 1)
    complete &= ~(weights[before] | weights[after])
    first, last = first[complete], spans.with_helpers(last[complete], helper)
    return _without_overlaps(order, first, last, backward[complete], gemm)


class _Spans:
    """The GEMMs around rows, with nothing between them that a fused kernel could not do."""

    def __init__(self, order: StreamOrder, gemms: Flags, passes: Flags) -> None:
        self._n = len(order)
        self._stream_id = order.stream_id
        self.before, self.after = last_before(gemms), next_after(gemms)
        self._barrier_before, self._barrier_after = last_before(~passes), next_after(~passes)

    def around(self, rows: Ints, backward: Flags) -> tuple[Ints, Ints, Flags]:
        """Return the first and the last GEMM, two on each side for backward, and if both exist."""
        first, has_first = self._previous(rows)
        last, has_last = self._next(rows)
        second, has_second = self._previous(np.maximum(first - 1, 0))
        first = np.where(backward & has_second & (first > 0), second, first)
        second, has_second = self._next(np.minimum(last + 1, self._n - 1))
        last = np.where(backward & has_second & (last < self._n - 1), second, last)
        return first, last, has_first & has_last

    def _previous(self, rows: Ints) -> tuple[Ints, Flags]:
        gemm = self.before[rows]
        exists = (gemm >= 0) & (gemm > self._barrier_before[rows])
        return gemm, exists & (self._stream_id[gemm] == self._stream_id[rows])

    def _next(self, rows: Ints) -> tuple[Ints, Flags]:
        gemm = self.after[rows]
        exists = (gemm < self._n) & (gemm < self._barrier_after[rows])
        gemm = np.minimum(gemm, self._n - 1)
        return gemm, exists & (self._stream_id[gemm] == self._stream_id[rows])

    def with_helpers(self, last: Ints, helper: Flags) -> Ints:
        """Include the kernels that finish the last GEMM."""
        following = np.append(next_after(~helper), self._n)[last + 1] - 1
        helpers = np.minimum(following, self._n - 1)
        result: Ints = np.where(self._stream_id[helpers] == self._stream_id[last], helpers, last)
        return result


def _without_overlaps(
    order: StreamOrder, first: Ints, last: Ints, backward: Flags, gemm: Flags
) -> AttentionKernels:
    """Number the spans that do not overlap, and mark the kernels in them."""
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
    factor = np.where(backward, RECOMPUTED, 1.0)
    half = order.where(pl.col("precision").is_in(("bf16", "fp16")) & pl.col("tensor_core"))
    duration_ns = np.maximum(order.frame["duration_ns"].to_numpy(), 1)
    fused = np.where(half, np.minimum(1.0, IN_HALF + GEMM_FIXED_NS / duration_ns), 1.0)
    kept[order.ops[members]] = (gemm * fused)[members] * factor[number]
    on_cuda_cores = (pl.col("precision") == "fp32") & ~pl.col("tensor_core")
    fp32 = gemm & order.where(on_cuda_cores)
    # Whether the results are scaled and cast from FP32 to half precision.
    casts = order.where((pl.col("category") == "copy") & pl.col("label").str.contains(_TO_HALF))
    scales = order.where(pl.col("category") == "elementwise")
    following = np.append(next_after(~scales), len(order))[last + 1]
    following = np.minimum(following, max(len(order) - 1, 0))
    result: Flags = casts[following] & (order.stream_id[following] == order.stream_id[last])
    from_half[order.ops[members]] = fp32[members] & result[number]
    return AttentionKernels(order.by_op(members, number), kept, from_half, backward)


MIN_CHAIN_KERNELS = 3
"""Kernels that make a chain."""
MAX_SIZE_RATIO = 16
"""Grids that differ by this factor are of tensors of different sizes: kernels of one size differ by
up to 8 in the elements that a thread takes."""
MAX_PAUSE_NS = 1_000_000
"""A pause of a stream that ends a chain."""

NARROW, CAST_NARROW = 1 / 2, 2 / 3
"""Traffic of one fused kernel for a chain that casts half precision to FP32 and back: half of that
of a kernel within it, two thirds of that of a cast. FP32 never leaves the SMs."""

_TENSORS = r"[aA]rray<char ?\*, (\d+)"
"""Pointers of a pointwise kernel of PyTorch, in its name: its inputs and its result."""
# Copies and memsets alone are a loop over tensors, which do not depend on each other.
_MOVES = r"^copy|^\[copy|^elementwise fill|^arange"
NORM_BY_ELEMENT = "batch_norm inference"
"""With the statistics of the training, a scale and an offset: two kernels are a chain with it."""
_OVER_ROWS = r"reduce_kernel<\d+, 1,|^cupy_"
"""Reductions over the last dimension, or all: those over others take several outputs at once."""
_MANY_BLOCKS = 1 << 40


class PointwiseChains(NamedTuple):
    """Chains of pointwise kernels, by position in `GpuSchedule.ops`."""

    number: Ints
    """Number of the chain that a kernel is part of; `NONE` for all others."""
    part: Reals
    """Part of a kernel's time that counts, by the casts around it."""
    traffic: Reals
    """Part of a kernel's memory traffic that a fused kernel still has: what the first one reads,
    what the last one writes, and the other operands of those in between."""
    one_pass: Reals
    """Part of its memory traffic that reads one tensor and writes one."""


def find_chains(order: StreamOrder, schedule: GpuSchedule, free: Flags) -> PointwiseChains:
    """Find chains of pointwise kernels."""
    label = pl.col("label")
    copies = (pl.col("category") == "copy") & label.str.starts_with("copy")
    dropout = (pl.col("category") == "random") & label.str.starts_with("dropout")
    norms = order.where(label == NORM_BY_ELEMENT)
    pointwise = norms | order.where((pl.col("category") == "elementwise") | copies | dropout)
    pointwise |= order.inside_device & order.where(pl.col("category").is_null())
    chain = _linked(order, pointwise & free, _ends_of_chains(order, schedule))
    rows = np.flatnonzero(chain >= 0)
    computes = rows[~order.where(label.str.contains(_MOVES))[rows]]
    length = np.bincount(chain[rows], minlength=1)
    has_norm = np.bincount(chain[rows], norms[rows], minlength=1) > 0
    long = (length >= MIN_CHAIN_KERNELS) | ((length > 1) & has_norm)
    long &= np.bincount(chain[computes], minlength=len(long)) > 0
    rows = rows[long[chain[rows]]]
    _, number = np.unique(chain[rows], return_inverse=True)
    part, traffic, one_pass = np.ones((3, len(order)))
    part[order.ops[rows]] = _remaining_traffic(order, rows, number)
    names = order.frame["name"].gather(rows).cast(pl.String)
    tensors = names.str.extract(_TENSORS).cast(pl.Int64).fill_null(2).to_numpy().clip(1)
    edges = np.concatenate(([True], number[1:] != number[:-1], [True]))[: len(rows) + 1]
    remaining = np.maximum(tensors - 2, 0) + edges[:-1] + edges[1:]
    traffic[order.ops[rows]] = np.minimum(1.0, remaining / tensors)
    one_pass[order.ops[rows]] = np.minimum(1.0, 2 / tensors)
    return PointwiseChains(order.by_op(rows, number.astype(np.int64)), part, traffic, one_pass)


def _ends_of_chains(order: StreamOrder, schedule: GpuSchedule) -> Ints:
    """Count up to each row what ends any chain: a pause, another step or phase, a wait."""
    start, end = (order.frame[c].to_numpy() for c in ("start_ns", "end_ns"))
    ends: Flags = np.concatenate(([0], start[1:] - end[:-1]))[: len(order)] > MAX_PAUSE_NS
    ends |= order.where(
        pl.any_horizontal(pl.col(c) != pl.col(c).shift(1) for c in ("step", "phase"))
    )
    # Where the host synchronized between the launches, it read a result.
    waits = np.flatnonzero(schedule.calls.kind == CallKind.SYNC)
    call = order.frame["call"].fill_null(-1).to_numpy()
    passed = np.searchsorted(waits, call)
    known = (call >= 0) & np.concatenate(([False], call[:-1] >= 0))[: len(order)]
    moved: Flags = np.concatenate(([False], passed[1:] != passed[:-1]))[: len(order)]
    counted: Ints = np.cumsum(ends | (known & moved) | ~order.follows())
    return counted


def _linked(order: StreamOrder, member: Flags, ended: Ints) -> Ints:
    """Number chains: members in a row on tensors of one size; `NONE` for all other rows."""
    inner = _within_reductions(order, member, ended)
    rows = np.flatnonzero(~inner)
    frame, label = order.frame[rows], pl.col("label")
    changed = frame.select(
        (pl.col("blocks") > pl.col("blocks").shift(1) * MAX_SIZE_RATIO)
        | (pl.col("blocks") * MAX_SIZE_RATIO < pl.col("blocks").shift(1))
        # A loop over tensors: the same kernel on another size, or one copy after another.
        | (
            (pl.col("name") == pl.col("name").shift(1))
            & (pl.col("blocks") != pl.col("blocks").shift(1))
        )
        | (label.str.contains(_MOVES) & label.shift(1).str.contains(_MOVES))
    )
    goes_on = ~changed.to_series().fill_null(value=False).to_numpy()
    goes_on[1:] &= (member[rows][:-1]) & (np.diff(ended[rows]) == 0)
    goes_on[:1] = False
    number = np.cumsum(member[rows] & ~goes_on) - 1
    chain = np.full(len(order), NONE, np.int64)
    chain[rows] = np.where(member[rows], number, NONE)
    # Kernels on the result of a reduction are a part of the chain that goes on after it.
    on_result = np.flatnonzero(inner & member)
    at = np.searchsorted(rows, on_result)
    after = np.append(rows, NONE)[at]
    same = (after >= 0) & (chain[rows[at - 1]] == chain[after])
    chain[on_result[same]] = chain[after[same]]
    return chain


def _within_reductions(order: StreamOrder, member: Flags, ended: Ints) -> Flags:
    """Return which rows are reductions after a member, or small kernels on the result of one.

    A compiler fuses what comes before a reduction over rows with it, and what comes after too.
    """
    over_rows = pl.col("name").cast(pl.String).str.contains(_OVER_ROWS)
    reduces = order.where((pl.col("category") == "reduction") & over_rows)
    blocks = order.frame["blocks"].cast(pl.Int64).fill_null(_MANY_BLOCKS).to_numpy()
    inner, outer, at = np.zeros(len(order), np.bool_), NONE, NONE
    for reduction in np.flatnonzero(reduces).tolist():
        outer = outer if reduction == at else reduction - 1
        if outer < 0 or not member[outer] or ended[outer] != ended[reduction]:
            continue
        inner[reduction] = True
        at = reduction + 1
        while at < len(order) and member[at] and ended[at] == ended[outer]:
            inner[at] = blocks[at] * MAX_SIZE_RATIO < blocks[outer]
            outer = outer if inner[at] else at
            at += 1
    return inner


def _remaining_traffic(order: StreamOrder, rows: Ints, number: Ints) -> Reals:
    """Return the part of the traffic of each row that remains, by the casts around it."""
    is_cast = (pl.col("category") == "copy") & (pl.col("precision") == "mixed")
    to_fp32 = pl.col("label").str.ends_with("→f32")
    casts = order.where(is_cast)[rows]
    widens = order.where(is_cast & to_fp32)[rows]
    narrows = order.where(is_cast & ~to_fp32)[rows]
    count = int(number.max(initial=-1)) + 1
    first, last = np.full(count, len(order)), np.full(count, -1)
    np.minimum.at(first, number[widens], rows[widens])
    np.maximum.at(last, number[narrows], rows[narrows])
    between = (rows >= first[number]) & (rows <= last[number])
    fp32 = order.where(pl.col("precision") == "fp32")[rows]
    part = np.where(fp32, NARROW, np.where(casts, CAST_NARROW, 1.0))
    result: Reals = np.where(between, part, 1.0)
    return result


MIN_OPTIMIZER_KERNELS = 6
"""Kernels of one optimizer step from which on it counts as unfused."""
TENSORS_PER_KERNEL = 36
"""Tensors that one fused kernel of PyTorch updates, with their gradients and two averages."""
_MAX_BETWEEN = 8
"""Other activities between two kernels of an optimizer that do not end its step."""
_MODEL_CATEGORIES = ("matmul", "convolution", "attention", "embedding")
_POINTWISE = ("elementwise", "copy")
# Adam, RMSprop and Adagrad divide by a root: outside optimizers this is rare.
_DIVIDES = r"^elementwise addcdiv"
# Clearing gradients and measuring their norm are no part of the update.
_NO_UPDATE = r"foreach (?:l2|lp)?_?norm|foreach zero|^elementwise fill"


class OptimizerKernels(NamedTuple):
    """Kernels of optimizers, by position in `GpuSchedule.ops`."""

    group: Ints
    """Number of the fused kernel that a kernel would become part of; `NONE` for all others."""
    tensors: Ints
    """Tensors that the host iterates over for each fused kernel; 0 where it already does so before
    the first launch (foreach)."""
    steps: int
    fused: bool
    """A fused optimizer runs too."""


def find_optimizer(order: StreamOrder, free: Flags) -> OptimizerKernels:
    """Find steps of optimizers among kernels that are `free`, by phase, name or arithmetic."""
    category, label, phase = pl.col("category"), pl.col("label"), pl.col("phase").cast(pl.String)
    foreach = (category == "optimizer") & label.str.starts_with("foreach")
    loop = (phase == "optimizer") & category.is_in(_POINTWISE)
    other = label.str.contains(_NO_UPDATE)
    pointwise = order.where(pl.col("category") == "elementwise")
    # Runs of pointwise kernels that divide by a root more than once: Adam, in a loop.
    begins = pointwise & ~(np.concatenate(([False], pointwise[:-1]))[: len(order)])
    begins |= pointwise & ~order.follows()
    run = np.where(pointwise, last_before(begins), len(order))
    divides = order.where(pl.col("label").str.contains(_DIVIDES)) & pointwise
    often = np.bincount(run[divides], minlength=len(order) + 1) > 1
    result: Flags = pointwise & often[run]
    known = order.where((foreach | loop) & ~other) | result
    rows, step = _optimizer_steps(order, np.flatnonzero(known & free))
    group, tensors = _groups(order, rows, step)
    fused = order.where((category == "optimizer") & ~label.str.starts_with("foreach"))
    return OptimizerKernels(
        order.by_op(rows, group), tensors, int(step.max(initial=-1)) + 1, bool(fused.any())
    )


def _optimizer_steps(order: StreamOrder, rows: Ints) -> tuple[Ints, Ints]:
    """Number runs of many kernels with little between them, and nothing of a model."""
    if not len(rows):
        return rows, rows
    model = np.cumsum(order.where(pl.col("category").is_in(_MODEL_CATEGORIES)))
    apart = np.diff(rows) > _MAX_BETWEEN + 1
    apart |= (np.diff(order.stream_id[rows]) != 0) | (np.diff(model[rows]) != 0)
    step = np.concatenate(([0], np.cumsum(apart)))
    large = np.bincount(step)[step] >= MIN_OPTIMIZER_KERNELS
    _, number = np.unique(step[large], return_inverse=True)
    return rows[large], number.astype(np.int64)


def _groups(order: StreamOrder, rows: Ints, step: Ints) -> tuple[Ints, Ints]:
    """Split each step into as many kernels as a fused optimizer needs; with their tensors."""
    frame = pl.DataFrame({"step": step, "label": order.frame["label"].gather(rows)})
    foreach = pl.col("label").str.starts_with("foreach").any()
    passes = frame.group_by("step", "label").agg(pl.len().cast(pl.Int64).alias("n"))
    # Every pass updates every tensor, so the rarest kernel is the number of tensors.
    fewest = passes.group_by("step").agg(pl.col("n").min(), foreach.alias("foreach")).sort("step")
    tensors = fewest["n"].to_numpy()
    in_turn = (~fewest["foreach"]).to_numpy()
    kernels = np.where(in_turn, -(-tensors // TENSORS_PER_KERNEL), tensors)
    if not len(rows):
        return rows, kernels
    size = np.bincount(step)
    place = np.arange(len(rows)) - (np.cumsum(size) - size)[step]
    first = np.cumsum(kernels) - kernels
    group: Ints = first[step] + place * kernels[step] // size[step]
    return group, np.repeat(np.where(in_turn, tensors // kernels, 0), kernels)


LAYOUT = r"nchw|nhwc|ncdhw|ndhwc|^tensor transform|^batched_transpose_\d+x\d+_pack"
"""Labels of kernels that only change the layout of a tensor for a convolution."""


class FusableKernels(NamedTuple):
    """What kernels could be fused into, by position in `GpuSchedule.ops`."""

    attention: AttentionKernels
    optimizer: OptimizerKernels
    layout: Flags
    """It changes the layout of a tensor for a convolution."""
    chains: PointwiseChains


@memoize
def parts_of(context: RuleContext) -> FusableKernels:
    """Assign kernels to attention, optimizer, layout changes and chains, in this order."""
    order = StreamOrder(context.ops)
    attention = find_attention(order)
    free = attention.group < 0
    optimizer = find_optimizer(order, free[order.ops])
    free &= optimizer.group < 0
    copies = context.ops["category"].fill_null("") == "copy"
    layout = (copies & context.ops["label"].str.contains(LAYOUT)).to_numpy() & free
    chains = find_chains(order, context.schedule, (free & ~layout)[order.ops])
    return FusableKernels(attention, optimizer, layout, chains)
