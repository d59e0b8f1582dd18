"""elementwise-chain: consecutive pointwise kernels that could be fused."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.rules.finding import Confidence
from gpusight.rules.formatting import library_kernels
from gpusight.rules.locations import groups
from gpusight.rules.patterns.fusable_kernels import (
    CAST_NARROW,
    MAX_PAUSE_NS,
    MAX_SIZE_RATIO,
    MIN_CHAIN_KERNELS,
    NARROW,
    NORM_BY_ELEMENT,
    parts_of,
)
from gpusight.rules.patterns.kernel_groups import (
    fuse_chains,
    kernels_unseen,
    locations_of,
    main_source_phrase,
    marked_work,
    time_evidence,
    total_ns,
)
from gpusight.rules.rule import (
    CLEAN,
    FindingLocation,
    Framework,
    RuleMatch,
    Threshold,
    TimelineRule,
)
from gpusight.units import format_mean

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import RuleVerdict
    from gpusight.trace.intervals import Ints


_MAX_SHOWN = 6
"""Kernels of a chain that are shown."""


class ElementwiseChain(TimelineRule):
    """Consecutive pointwise kernels."""

    id = "elementwise-chain"
    detects = (
        "Looks for three or more consecutive pointwise kernels in a stream (arithmetic, casts, "
        "copies, dropout) on tensors of similar size, outside attention and optimizers. A "
        "reduction over rows, as in a normalization, may be among them. Batch normalization in "
        "evaluation mode makes a chain with one other kernel."
    )
    why = (
        "Each kernel reads its input from DRAM, writes its result back for the next one, and costs "
        "a launch. A fused kernel does all the arithmetic in one pass."
    )
    fix = "Fuse them with a compiler."
    code = """\
@torch.compile                                  # or: model = torch.compile(model)
def block(x):
    ...
"""
    cuda_code = """\
__global__ void fused(const float* x, float* y, int n) {     // all operations per element
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = last(second(first(x[i])));
}
"""
    jax_code = """\
block = jax.jit(block)                          # XLA fuses pointwise operations
"""
    snippets: ClassVar = {
        Framework.CUPY: """\
@cp.fuse()                                      # one kernel for all operations
def block(x, y):
    return cp.sqrt(x * 2 + y)
""",
        Framework.NUMBA: """\
@cuda.jit
def fused(x, y, out):                           # all operations per element
    i = cuda.grid(1)
    if i < x.size:
        out[i] = math.sqrt(x[i] * 2 + y[i])
""",
        Framework.JULIA: """\
@. out = sqrt(x * 2 + y)                        # dots everywhere: one kernel
""",
    }
    verify = (
        "`gpusight kernels` shows generated (Triton) kernels instead of the chains. Skip the first "
        "steps, which compile."
    )
    caveats = (
        "Consecutive kernels may be independent: a loop over many small tensors looks the same. "
        "Changing shapes cause recompilation."
    )
    estimate = (
        "Simulation in which each chain is one kernel that takes as long as the longest pass of "
        "its kernels, over one input and one result. It takes no less than the memory traffic that "
        "remains: the input, the result, and the other operands. Reductions inside it remain. "
        "The other launches and their host time are removed. Where a chain casts half precision "
        "to FP32 and back, the fused kernel reads and writes half precision only. Kernels between "
        f"the casts then count {NARROW:.0%} and casts {CAST_NARROW:.0%} of their time."
    )
    effort = "one line"
    thresholds: ClassVar = {
        "min_chain_kernels": Threshold(
            MIN_CHAIN_KERNELS, "consecutive kernels; fusing two saves one launch only"
        ),
        "max_size_ratio": Threshold(
            MAX_SIZE_RATIO, "ratio of grid sizes above which the tensors differ in size"
        ),
        "max_pause_ns": Threshold(MAX_PAUSE_NS, "ns of idle stream that end a chain"),
    }
    scenario = "fuse elementwise"

    def check(self, context: RuleContext) -> RuleVerdict:
        """Find chains."""
        if (unseen := kernels_unseen(context)) is not None:
            return unseen
        chain = parts_of(context).chains.number
        return _match(context, chain) if (chain >= 0).any() else CLEAN

    def locate(self, context: RuleContext, _: TimelineFinding) -> pl.DataFrame:
        """Find the kernels of each chain."""
        return groups(context, parts_of(context).chains.number)


def _match(context: RuleContext, chain: Ints) -> RuleMatch:
    rows = marked_work(context, chain >= 0)
    chains, all_chains = int(chain.max()) + 1, parts_of(context).chains
    kernels = context.count_per_step(rows.height, "unfused pointwise kernel")
    fused = format_mean(max(1, round(context.step_count(chains))))
    framework = context.framework
    size = format_mean(float(np.median(np.bincount(chain[chain >= 0]))))
    summary = (
        f"Chains of {size} kernels (median){main_source_phrase(context, rows)}: "
        f"{context.time_per_step(total_ns(rows))} of kernel time, "
        f"{context.count_per_step(rows.height, 'launch')}."
    )
    by_hand = "Write one kernel that does all operations per element."
    if library_kernels(rows):
        by_hand = (
            "Combine the library calls: one transform with a fused functor over zip iterators."
        )
    fold = ""
    if rows.filter(pl.col("label") == NORM_BY_ELEMENT).height:
        fold = " fuse_conv_bn_eval (torch.nn.utils.fusion) folds batch norm into the convolution."
    way = context.framework.choose(
        torch="Apply torch.compile to the function or module. Without it, use fused operators "
        f"(addcmul, in-place operators, F.gelu).{fold}",
        cuda=by_hand,
        jax="Put the function under jax.jit: XLA fuses pointwise operations.",
    )
    return RuleMatch(
        title=f"{kernels} ({fused} if fused)",
        evidence=(
            context.evidence("chains", chains, "", "Chains"),
            context.evidence("kernels", rows.height, "", "Kernels in chains"),
            *time_evidence(context, rows, "chain_ns"),
        ),
        confidence=Confidence.MEDIUM,
        confidence_reason="kernels and launches were measured; assumes that they depend on each "
        "other element by element only",
        change=(fuse_chains(chain, all_chains.part, all_chains.traffic, all_chains.one_pass),),
        fix=f"{summary} {way}",
        code=framework.choose(
            torch=ElementwiseChain.code,
            cuda=_LIBRARY_CODE if library_kernels(rows) else ElementwiseChain.cuda_code,
            jax=ElementwiseChain.jax_code,
        ),
        effort=framework.choose(torch="one line", cuda="rewrite", jax="one line"),
        where=(*locations_of(context, rows)[:3], *_costliest(context, chain)),
    )


def _costliest(context: RuleContext, chain: Ints) -> tuple[FindingLocation, ...]:
    """Return the chains that take longest, named by their kernels."""
    rows = marked_work(context, chain >= 0).with_columns(pl.Series("chain", chain[chain >= 0]))
    chains = rows.group_by("chain", maintain_order=True).agg(
        pl.col("label").head(_MAX_SHOWN).str.strip_prefix("elementwise ").str.join(" → "),
        pl.col("duration_ns").sum(),
        pl.len().alias("n"),
    )
    sums = (
        chains.group_by("label", "n", maintain_order=True)
        .agg(pl.col("duration_ns").sum(), pl.len().alias("count"))
        .sort("duration_ns", descending=True, maintain_order=True)
    )
    return tuple(
        FindingLocation(
            "chain", label + (f" → … ({n} kernels)" if n > _MAX_SHOWN else ""), float(ns), count
        )
        for label, n, ns, count in sums.head(2).iter_rows()
    )


_LIBRARY_CODE = """\
auto in = thrust::make_zip_iterator(thrust::make_tuple(x.begin(), y.begin()));
thrust::transform(in, in + n, out.begin(), fused_functor);  // one pass over the data
"""
