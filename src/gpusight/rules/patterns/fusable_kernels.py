"""Kernels that belong together and could be one: attention, optimizer steps, pointwise chains."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from gpusight.analysis.gpu_schedule import NONE, CallKind
from gpusight.rules.context import memoize
from gpusight.rules.patterns.fp32_gemms import FIXED_NS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.analysis.gpu_schedule import GpuSchedule
    from gpusight.analysis.replay.simulation import Flags
    from gpusight.rules.context import RuleContext
    from gpusight.trace.intervals import Ints


_IS_KERNEL = pl.col("kind") == "kernel"
_IS_COPY = (pl.col("kind") == "copy") & (pl.col("direction") == "Device-to-Device")


class StreamOrder:
    """Rows of `RuleContext.ops`, those of a stream together; positions are in this order."""

    def __init__(self, ops: pl.DataFrame) -> None:
        order = np.argsort(ops["queue"].to_numpy(), kind="stable")
        self.ops: Ints = order
        """Position of each row in `GpuSchedule.ops`."""
        self.frame = ops[order]
        self.queue: Ints = self.frame["queue"].to_numpy()
        self.inside_device = self.where(_IS_KERNEL | _IS_COPY)
        """Kernels and copies within a GPU: what a kernel could do too."""

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.ops)

    def where(self, condition: pl.Expr) -> Flags:
        """Tell for each row whether something is true of it; what is not known is not true."""
        flags: Flags = self.frame.select(condition.fill_null(value=False).alias("x"))[
            "x"
        ].to_numpy()
        return flags

    def follows(self) -> Flags:
        """Tell for each row whether the row before it is of the same stream."""
        same: Flags = np.concatenate(([False], self.queue[1:] == self.queue[:-1]))[: len(self)]
        return same

    def by_op(self, rows: Ints, numbers: Ints) -> Ints:
        """Return each piece of work of a schedule the number of its row, `NONE` to all others."""
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


class AttentionKernels(NamedTuple):
    """Written-out attention, by position in `GpuSchedule.ops`."""

    group: Ints
    """Number of the attention that a kernel is part of; `NONE` for all others."""
    kept: NDArray[np.float64]
    """Part of a kernel's time that a fused kernel still needs: none but of its products."""
    from_half: Flags
    """A product in FP32 on lanes of attention whose result is cast to half precision: it was half
    precision before, as in the fallback of PyTorch's fused attention."""
    backward: Flags
    """Whether attention of each number is backward."""


def find_attention(order: StreamOrder) -> AttentionKernels:
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


def _with_weights(order: StreamOrder, spans: _Spans, rows: Ints) -> Flags:
    weights = order.where(pl.col("operator").is_in(_WITH_WEIGHTS))
    before, after = spans.before[rows], np.minimum(spans.after[rows], len(order) - 1)
    result: Flags = weights[before] | weights[after]
    return result


class _Spans:
    """The products around rows that only work lies between which a fused kernel would do."""

    def __init__(self, order: StreamOrder, real: Flags, passes: Flags) -> None:
        self._n = len(order)
        self._queue = order.queue
        self.before, self.after = last_before(real), next_after(real)
        self._barrier_before, self._barrier_after = last_before(~passes), next_after(~passes)

    def around(self, rows: Ints, backward: Flags) -> tuple[Ints, Ints, Flags]:
        """Return the first and the last product, two on each side where it is backward."""
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


def _apart(
    order: StreamOrder, first: Ints, last: Ints, backward: Flags, product: Flags
) -> AttentionKernels:
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
    return AttentionKernels(order.by_op(members, number), kept, from_half, backward)


def _left(order: StreamOrder) -> NDArray[np.float64]:
    """Return the part of the time that a product would take within a fused kernel."""
    half = order.where(pl.col("precision").is_in(("bf16", "fp16")) & pl.col("tensor_core"))
    duration = np.maximum(order.frame["duration_ns"].to_numpy(), 1)
    left: NDArray[np.float64] = np.where(half, np.minimum(1.0, IN_HALF + FIXED_NS / duration), 1.0)
    return left


def _cast_after(order: StreamOrder, last: Ints) -> Flags:
    """Return whether the results of these rows are scaled and cast from FP32 to half precision."""
    casts = order.where((pl.col("category") == "copy") & pl.col("label").str.contains(_TO_HALF))
    scales = order.where(pl.col("category") == "elementwise")
    following = np.append(next_after(~scales), len(order))[last + 1]
    following = np.minimum(following, max(len(order) - 1, 0))
    result: Flags = casts[following] & (order.queue[following] == order.queue[last])
    return result


MIN_CHAIN_KERNELS = 3
"""Kernels that make a chain."""
MAX_SIZE_RATIO = 16
"""Grids that differ by this factor are of tensors of different sizes: kernels of one size differ by
up to 8 in the elements that a thread takes."""
MAX_PAUSE_NS = 1_000_000
"""A silence of a stream that ends a chain: the program went on to something else."""

NARROW, CAST_NARROW = 1 / 2, 2 / 3
"""Bytes that one kernel moves for a chain that goes from half precision to FP32 and back: half of
what a kernel within it moves, two thirds of what a cast moves. FP32 never leaves the SMs."""

# Copies and fills alone are a loop over tensors: nothing flows from one to the next.
_MOVES = r"^copy|^\[copy|^elementwise fill|^arange"


class PointwiseChains(NamedTuple):
    """Chains of pointwise kernels, by position in `GpuSchedule.ops`."""

    number: Ints
    """Number of the chain that a kernel is part of; `NONE` for all others."""
    part: NDArray[np.float64]
    """Part of a kernel's memory traffic that is left where one kernel does the chain."""


def find_chains(order: StreamOrder, schedule: GpuSchedule, free: Flags) -> PointwiseChains:
    """Find chains of pointwise kernels."""
    label = pl.col("label")
    copies = (pl.col("category") == "copy") & label.str.starts_with("copy")
    dropout = (pl.col("category") == "random") & label.str.starts_with("dropout")
    pointwise = order.where((pl.col("category") == "elementwise") | copies | dropout)
    pointwise |= order.inside_device & order.where(pl.col("category").is_null())
    member = pointwise & free
    before = np.concatenate(([False], member[:-1]))[: len(order)]
    goes_on = member & before & order.follows() & ~_parted(order, schedule)
    chain = np.cumsum(member & ~goes_on) - 1
    rows = np.flatnonzero(member)
    computes = rows[~order.where(label.str.contains(_MOVES))[rows]]
    long = np.bincount(chain[rows], minlength=1) >= MIN_CHAIN_KERNELS
    long &= np.bincount(chain[computes], minlength=len(long)) > 0
    rows = rows[long[chain[rows]]]
    _, number = np.unique(chain[rows], return_inverse=True)
    part = np.ones(len(order))
    part[order.ops[rows]] = _narrowed(order, rows, number)
    return PointwiseChains(order.by_op(rows, number.astype(np.int64)), part)


def _narrowed(order: StreamOrder, rows: Ints, number: Ints) -> NDArray[np.float64]:
    """Return the part of the traffic of each row that is left, by the casts around it."""
    casts = (pl.col("category") == "copy") & (pl.col("precision") == "mixed")
    wide = pl.col("label").str.ends_with("→f32")
    count = int(number.max(initial=-1)) + 1
    first, last = np.full(count, len(order)), np.full(count, -1)
    np.minimum.at(first, *_where(order.where(casts & wide), rows, number))
    np.maximum.at(last, *_where(order.where(casts & ~wide), rows, number))
    between = (rows >= first[number]) & (rows <= last[number])
    fp32 = order.where(pl.col("precision") == "fp32")[rows]
    part = np.where(fp32, NARROW, np.where(order.where(casts)[rows], CAST_NARROW, 1.0))
    result: NDArray[np.float64] = np.where(between, part, 1.0)
    return result


def _where(flags: Flags, rows: Ints, number: Ints) -> tuple[Ints, Ints]:
    """Return the numbers of the rows that are marked, and these rows."""
    return number[flags[rows]], rows[flags[rows]]


def _parted(order: StreamOrder, schedule: GpuSchedule) -> Flags:
    """Return where a chain ends though the next kernel is pointwise too."""
    start, end = (order.frame[c].to_numpy() for c in ("start_ns", "end_ns"))
    pause = np.concatenate(([0], start[1:] - end[:-1]))[: len(order)] > MAX_PAUSE_NS
    changed = order.where(
        pl.any_horizontal(_changes("step"), _changes("phase"))
        | (pl.col("blocks") > pl.col("blocks").shift(1) * MAX_SIZE_RATIO)
        | (pl.col("blocks") * MAX_SIZE_RATIO < pl.col("blocks").shift(1))
    )
    parted: Flags = pause | changed | _waited_between(order, schedule)
    return parted


def _changes(column: str) -> pl.Expr:
    return pl.col(column) != pl.col(column).shift(1)


def _waited_between(order: StreamOrder, schedule: GpuSchedule) -> Flags:
    """Return where the host waited for the GPU between the launches: it wanted to see a result."""
    waits = np.flatnonzero(schedule.calls.kind == CallKind.SYNC)
    call = order.frame["call"].fill_null(-1).to_numpy()
    passed = np.searchsorted(waits, call)
    known = (call >= 0) & np.concatenate(([False], call[:-1] >= 0))[: len(order)]
    moved: Flags = np.concatenate(([False], passed[1:] != passed[:-1]))[: len(order)]
    return known & moved


MIN_OPTIMIZER_KERNELS = 6
"""Kernels of one optimizer step from which on it counts as many."""
TENSORS_PER_KERNEL = 36
"""Tensors that one fused kernel of PyTorch takes, with their gradients and two averages."""
_BESIDE = 8
"""Other work between two kernels of an optimizer that does not end its step."""
_OF_A_MODEL = ("matmul", "convolution", "attention", "embedding")
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
    """Tensors that the host goes through for each fused kernel beyond what it does for one launch;
    0 where it goes through all of them before the first launch already (foreach)."""
    steps: int
    fused: bool
    """A fused optimizer runs too."""


def find_optimizer(order: StreamOrder, free: Flags) -> OptimizerKernels:
    """Find steps of optimizers among kernels that are `free`, by phase, name or arithmetic."""
    category, label, phase = pl.col("category"), pl.col("label"), pl.col("phase").cast(pl.String)
    foreach = (category == "optimizer") & label.str.starts_with("foreach")
    loop = (phase == "optimizer") & category.is_in(_POINTWISE)
    other = label.str.contains(_NO_UPDATE)
    known = order.where((foreach | loop) & ~other) | _dividing(order)
    rows = np.flatnonzero(known & free)
    step = _steps(order, rows)
    rows, step = _large(rows, step)
    group, tensors = _groups(order, rows, step)
    fused = order.where((category == "optimizer") & ~label.str.starts_with("foreach"))
    return OptimizerKernels(
        order.by_op(rows, group),
        tensors,
        int(step.max(initial=-1)) + 1,
        bool(fused.any()),
    )


def _dividing(order: StreamOrder) -> Flags:
    """Mark runs of pointwise kernels that divide by a root more than once: Adam, in a loop."""
    pointwise = order.where(pl.col("category") == "elementwise")
    begins = pointwise & ~(np.concatenate(([False], pointwise[:-1]))[: len(order)])
    begins |= pointwise & ~order.follows()
    run = np.where(pointwise, last_before(begins), len(order))
    divides = order.where(pl.col("label").str.contains(_DIVIDES)) & pointwise
    often = np.bincount(run[divides], minlength=len(order) + 1) > 1
    result: Flags = pointwise & often[run]
    return result


def _steps(order: StreamOrder, rows: Ints) -> Ints:
    """Number runs of kernels with little else between them, and nothing of a model."""
    if not len(rows):
        return rows
    model = np.cumsum(order.where(pl.col("category").is_in(_OF_A_MODEL)))
    apart = np.diff(rows) > _BESIDE + 1
    apart |= (np.diff(order.queue[rows]) != 0) | (np.diff(model[rows]) != 0)
    return np.concatenate(([0], np.cumsum(apart)))


def _large(rows: Ints, step: Ints) -> tuple[Ints, Ints]:
    """Keep steps of many kernels."""
    if not len(rows):
        return rows, step
    kept = np.bincount(step)[step] >= MIN_OPTIMIZER_KERNELS
    _, renumbered = np.unique(step[kept], return_inverse=True)
    return rows[kept], renumbered.astype(np.int64)


def _groups(order: StreamOrder, rows: Ints, step: Ints) -> tuple[Ints, Ints]:
    """Split each step into as many kernels as a fused optimizer needs; with their tensors."""
    frame = pl.DataFrame({"step": step, "label": order.frame["label"].gather(rows)})
    foreach = pl.col("label").str.starts_with("foreach").any()
    passes = frame.group_by("step", "label").agg(pl.len().cast(pl.Int64).alias("n"))
    # Every pass touches every tensor, so the rarest kernel tells how many tensors there are.
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


LAYOUT = r"nchw|nhwc|ncdhw|ndhwc|^tensor transform"
"""Labels of kernels that only change the layout of a tensor for a convolution."""


class FusableKernels(NamedTuple):
    """What kernels are part of, all by position in `GpuSchedule.ops`."""

    attention: AttentionKernels
    optimizer: OptimizerKernels
    layout: Flags
    """It changes the layout of a tensor for a convolution."""
    chains: PointwiseChains


@memoize
def parts_of(context: RuleContext) -> FusableKernels:
    """Sort kernels into attention, optimizer, layout and chains, in this order; done once."""
    order = StreamOrder(context.ops)
    attention = find_attention(order)
    free = attention.group < 0
    optimizer = find_optimizer(order, free[order.ops])
    free &= optimizer.group < 0
    copies = context.ops["category"].fill_null("") == "copy"
    layout = (copies & context.ops["label"].str.contains(LAYOUT)).to_numpy() & free
    chains = find_chains(order, context.schedule, (free & ~layout)[order.ops])
    return FusableKernels(attention, optimizer, layout, chains)
