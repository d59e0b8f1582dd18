"""unfused-optimizer: many small kernels per optimizer step."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.gpu_schedule import NONE
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.locations import runs
from gpusight.rules.patterns.fusable_kernels import (
    MIN_OPTIMIZER_KERNELS,
    TENSORS_PER_KERNEL,
    parts_of,
)
from gpusight.rules.patterns.kernel_groups import (
    fuse_to_share,
    kernels_unseen,
    launch_ns,
    locations_of,
    main_source_phrase,
    marked_work,
    time_evidence,
    total_ns,
)
from gpusight.rules.rule import CLEAN, RuleMatch, RuleVerdict, Threshold, TimelineRule
from gpusight.units import format_count

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding


MIN_KERNELS = Threshold(
    MIN_OPTIMIZER_KERNELS, "kernels per optimizer step; fewer are a fused or very simple optimizer"
)
REMAINING_SHARE_ADAM = Threshold(
    0.35,
    "share of the time that remains for Adam-like optimizers: 7 memory accesses per parameter "
    "instead of 20; 0.28 was measured for AdamW on an H200",
)
REMAINING_SHARE_MOMENTUM = Threshold(
    0.6, "the same for other optimizers: 5 accesses instead of 8 (momentum)"
)
_KEEPS_AVERAGES = r"addcdiv|addcmul|lerp"
_NAMED = re.compile(r"Optimizer\.step#(\w+)\.step")
_FUSED_IN_TORCH = ("Adam", "AdamW", "SGD", "Adagrad")
CAPTURABLE_IN_TORCH = (
    *("ASGD", "Adadelta", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop"),
)
"""Optimizers of PyTorch with the argument `capturable`, for CUDA graphs."""
_IN_TORCH = {*_FUSED_IN_TORCH, *CAPTURABLE_IN_TORCH, "Adafactor", "LBFGS", "Muon", "SparseAdam"}


class UnfusedOptimizer(TimelineRule):
    """An optimizer step of many kernels."""

    id = "unfused-optimizer"
    detects = (
        "Looks for optimizer steps with many pointwise or foreach kernels, identified by the "
        "phase, by their names or by the arithmetic of Adam."
    )
    why = (
        "Each kernel reads and writes parameters or optimizer state again, and costs a launch. A "
        "fused optimizer does all the arithmetic in one pass, with a few launches."
    )
    fix = "Use the fused optimizer."
    code = """\
optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)
"""
    cuda_code = """\
// one kernel for all parameters: a table of pointers and sizes, the whole update per element
__global__ void adamw(const Chunk* chunks, float lr, float beta1, float beta2, float eps, int t);
"""
    jax_code = """\
@jax.jit                                        # XLA fuses the update
def update(params, grads, state):
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state
"""
    verify = (
        "`gpusight kernels` shows a few `multi-tensor` kernels per step, such as `adam "
        "multi-tensor`. "
        "Results may differ in the last bits."
    )
    caveats = (
        "Gradient clipping and weight averaging use the same kernels. Custom optimizers have no "
        "fused form: use torch.compile(optimizer.step)."
    )
    estimate = (
        f"Simulation in which each optimizer step is one kernel per {TENSORS_PER_KERNEL} tensors, "
        f"which takes {REMAINING_SHARE_ADAM.value:.0%} of the current time for Adam-like "
        f"optimizers, {REMAINING_SHARE_MOMENTUM.value:.0%} for others. The host still iterates "
        "over all tensors, at the cost of one launch each (14.5 µs measured, 17 µs for a launch). "
        "The other launches and their host time are removed."
    )
    effort = "one line"
    thresholds: ClassVar = {
        "min_kernels": MIN_KERNELS,
        "remaining_share_adam": REMAINING_SHARE_ADAM,
        "remaining_share_momentum": REMAINING_SHARE_MOMENTUM,
    }
    scenario = "fuse optimizer"

    def check(self, context: RuleContext) -> RuleVerdict:
        """Count the kernels of each optimizer step."""
        if (unseen := kernels_unseen(context)) is not None:
            return unseen
        optimizer = parts_of(context).optimizer
        if not optimizer.steps:
            return CLEAN
        rows = marked_work(context, optimizer.group >= 0)
        optimizer = parts_of(context).optimizer
        kernels = rows.height / optimizer.steps
        averages = rows.filter(pl.col("label").str.contains(_KEEPS_AVERAGES)).height > 0
        remaining = REMAINING_SHARE_ADAM if averages else REMAINING_SHARE_MOMENTUM
        fused = (int(optimizer.group.max(initial=NONE)) + 1) / optimizer.steps
        return RuleMatch(
            title=f"Unfused optimizer: {format_count(round(kernels))} kernels{_per(context)} "
            f"({format_count(max(1, round(fused)))} if fused)",
            evidence=(
                context.evidence("optimizer_kernels", rows.height, "", "Optimizer kernels"),
                Evidence("kernels_fused", fused, "", "Kernels per fused optimizer step, about"),
                *time_evidence(context, rows, "optimizer_ns"),
            ),
            confidence=Confidence.MEDIUM,
            confidence_reason="kernels and launches were measured; the time of the fused kernel is "
            "estimated from its memory accesses",
            change=(
                fuse_to_share(
                    optimizer.group,
                    np.full(context.ops.height, remaining.value),
                    optimizer.tensors.astype(np.float64) * launch_ns(context, rows),
                ),
            ),
            fix=_fix(context, rows, kernels),
            code=context.framework.choose(
                torch=optimizer_code(context),
                cuda=UnfusedOptimizer.cuda_code,
                jax=UnfusedOptimizer.jax_code,
            ),
            effort="one line" if context.framework.is_ml else "rewrite",
            where=locations_of(context, rows),
        )

    def locate(self, context: RuleContext, _: TimelineFinding) -> pl.DataFrame:
        """Find kernels of the optimizer, those one after another as one."""
        return runs(context, pl.lit(pl.Series(parts_of(context).optimizer.group >= 0)))


def _per(context: RuleContext) -> str:
    """Return what kernels of the optimizer are counted by: a step may have several updates."""
    once = context.focus.steps and parts_of(context).optimizer.steps == context.steps
    return "/step" if once else " per optimizer step"


def optimizer_name(context: RuleContext) -> str:
    """Name the optimizer, where operators or ranges do."""
    trace = context.trace
    for table in ("cpu_ops", "ranges"):
        if trace.has(table):
            texts = " ".join(n for n in names_of(trace.table(table, ["name"])["name"]) if n)
            if (match := _NAMED.search(texts)) is not None:
                return match.group(1)
    return ""


def optimizer_code(context: RuleContext) -> str:
    """Return the line that fuses the optimizer of the capture."""
    name = optimizer_name(context)
    if name and name not in _FUSED_IN_TORCH:
        return "step = torch.compile(optimizer.step)            # it has no fused form\n"
    return UnfusedOptimizer.code.replace("AdamW", name or "AdamW")


def _fix(context: RuleContext, rows: pl.DataFrame, kernels: float) -> str:
    name = optimizer_name(context)
    optimizer = (f"torch.optim.{name}" if name in _IN_TORCH else name) or "The optimizer"
    summary = (
        f"{optimizer} launches {format_count(round(kernels))} kernels"
        f"{_per(context)}{main_source_phrase(context, rows)}: "
        f"{context.time_per_step(total_ns(rows))} of kernel time."
    )
    torch_way = (
        "Pass fused=True (Adam, AdamW, SGD, Adagrad). For other optimizers, use foreach=True or "
        "torch.compile(optimizer.step)."
    )
    if name:
        compiled = "It has no fused form: use torch.compile(optimizer.step)."
        torch_way = "Pass fused=True." if name in _FUSED_IN_TORCH else compiled
    way = context.framework.choose(
        torch=torch_way,
        cuda="Update all parameters in one kernel that iterates over a table of tensors.",
        jax="Put the whole update under one jax.jit, so that XLA fuses it.",
    )
    return f"{summary} {way}"
