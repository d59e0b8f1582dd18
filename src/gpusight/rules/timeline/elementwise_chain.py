"""elementwise-chain: pointwise kernels in a row that one kernel could do."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.rules.finding import Confidence
from gpusight.rules.formatting import by_step, framework_of, step_evidence
from gpusight.rules.locations import groups
from gpusight.rules.patterns.fusable_kernels import (
    CAST_NARROW,
    MAX_PAUSE_NS,
    MAX_SIZE_RATIO,
    MIN_CHAIN_KERNELS,
    NARROW,
    parts_of,
)
from gpusight.rules.patterns.kernel_groups import (
    fuse_to_longest,
    kernels_unseen,
    locations_of,
    main_source_phrase,
    marked_work,
    time_seen,
    total_ns,
)
from gpusight.rules.rule import CLEAN, FindingLocation, RuleMatch, Threshold, TimelineRule
from gpusight.units import format_count, format_time

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import RuleVerdict
    from gpusight.trace.intervals import Ints


_MAX_SHOWN = 6
"""Kernels of a chain that are shown."""


class ElementwiseChain(TimelineRule):
    """Pointwise kernels one after the other."""

    id = "elementwise-chain"
    detects = (
        "Looks for three or more pointwise kernels in a row in one stream (arithmetic, casts, "
        "copies, dropout) on tensors of about one size, outside attention and optimizers."
    )
    why = (
        "Each of them reads its input from memory and writes its result back for the next one to "
        "read, and each costs a launch. One kernel does the arithmetic of all in one pass."
    )
    fix = "Let a compiler fuse them."
    code = """\
@torch.compile                                  # or: model = torch.compile(model)
def block(x):
    ...
"""
    cuda_code = """\
__global__ void fused(const float* x, float* y, int n) {     // all steps for one element
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = last(second(first(x[i])));
}
"""
    jax_code = """\
block = jax.jit(block)                          # XLA fuses pointwise operations
"""
    verify = (
        "`gpusight kernels` shows generated (triton) kernels in place of the chains; leave the "
        "first steps out, which compile."
    )
    caveats = (
        "Kernels in a row need not depend on each other; a loop over many small tensors looks the "
        "same. Shapes that change make a compiler compile again."
    )
    estimate = (
        "Replay in which each chain is one kernel that takes as long as the longest of its "
        "kernels; the other launches and the host's work for these go. Where a chain casts half "
        f"precision to FP32 and back, kernels between count {NARROW:g} and casts "
        f"{CAST_NARROW:.2g} of their time: one kernel reads and writes half precision only."
    )
    thresholds: ClassVar = {
        "min_chain_kernels": Threshold(MIN_CHAIN_KERNELS, "kernels in a row; two save one launch"),
        "max_size_ratio": Threshold(
            MAX_SIZE_RATIO, "factor between grids from which tensors differ in size"
        ),
        "max_pause_ns": Threshold(MAX_PAUSE_NS, "ns of silence that end a chain"),
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
    chains = int(chain.max()) + 1
    kernels = format_count(round(rows.height / context.per_step))
    fused = format_count(max(1, round(chains / context.per_step)))
    return RuleMatch(
        title=f"{by_step(context, f'{kernels} pointwise kernels')} could be {fused}",
        evidence=(
            step_evidence(context, "chains", chains, "", "Chains"),
            step_evidence(context, "kernels", rows.height, "", "Their kernels"),
            *time_seen(context, rows, "chain_ns"),
        ),
        confidence=Confidence.MEDIUM,
        confidence_reason="kernels and launches were measured; that they depend on each other only "
        "element by element is assumed",
        change=(fuse_to_longest(chain, parts_of(context).chains.part),),
        fix=_fix(context, rows, chain),
        code=framework_of(context.trace).choose(
            torch=ElementwiseChain.code,
            cuda=ElementwiseChain.cuda_code,
            jax=ElementwiseChain.jax_code,
        ),
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
            "kernel", label + (f" → … ({n} kernels)" if n > _MAX_SHOWN else ""), float(ns), count
        )
        for label, n, ns, count in sums.head(2).iter_rows()
    )


def _fix(context: RuleContext, rows: pl.DataFrame, chain: Ints) -> str:
    size = format_count(float(np.median(np.bincount(chain[chain >= 0]))))
    launches = format_count(round(rows.height / context.per_step))
    time = format_time(total_ns(rows) / context.per_step)
    seen = (
        f"Chains of {size} kernels (median){main_source_phrase(context, rows)}: "
        f"{by_step(context, f'{time} of GPU time and {launches} launches')}."
    )
    way = framework_of(context.trace).choose(
        torch="Put torch.compile on the function or module that they come from; written by hand, "
        "use fused forms (addcmul, in-place, F.gelu, fused dropout and bias).",
        cuda="Write one kernel that does all steps for an element.",
        jax="Put the function under jax.jit: XLA fuses pointwise operations.",
    )
    return f"{seen} {way}"
