"""unfused-optimizer: the optimizer passes over the parameters many times."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.gpu_schedule import NONE
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import by_step, framework_of, step_evidence
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
    time_seen,
    total_ns,
)
from gpusight.rules.rule import CLEAN, RuleMatch, Threshold, TimelineRule
from gpusight.units import format_count, format_time

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import RuleVerdict


MIN_KERNELS = Threshold(
    MIN_OPTIMIZER_KERNELS,
    "kernels of one optimizer step; fewer are a fused or a very simple optimizer already",
)
REMAINING_SHARE_ADAM = Threshold(
    0.35,
    "part of the time that is left where averages are kept (Adam): 7 accesses to memory for each "
    "parameter instead of 20; 0.28 was measured for AdamW on an H200",
)
REMAINING_SHARE_MOMENTUM = Threshold(
    0.6, "the same for other optimizers: 5 accesses instead of 8 (momentum)"
)
_KEEPS_AVERAGES = r"addcdiv|addcmul|lerp"
_NAMED = re.compile(r"Optimizer\.step#(\w+)\.step")
_FUSED_IN_TORCH = ("Adam", "AdamW", "SGD", "Adagrad")


class UnfusedOptimizer(TimelineRule):
    """An optimizer step of many kernels."""

    id = "unfused-optimizer"
    detects = (
        "Looks for optimizer steps made of many pointwise or foreach kernels, told by the phase, "
        "by their names or by Adam's division by a root."
    )
    why = (
        "Every kernel reads and writes all parameters once more, and each costs a launch. A fused "
        "optimizer does all arithmetic in one pass, with a few launches for all tensors."
    )
    fix = "Use the fused form of the optimizer."
    code = """\
optimizer = torch.optim.AdamW(model.parameters(), lr=lr, fused=True)
"""
    cuda_code = """\
// one kernel for all parameters: pointers and sizes in a table, the whole update per element
__global__ void adamw(const Chunk* chunks, float lr, float beta1, float beta2, float eps, int t);
"""
    jax_code = """\
@jax.jit                                        # XLA fuses the update
def update(params, grads, state):
    updates, state = optimizer.update(grads, state, params)
    return optax.apply_updates(params, updates), state
"""
    verify = (
        "`gpusight kernels` shows `adam multi-tensor` or its like, a few launches a step; the "
        "result may differ in the last bits."
    )
    caveats = (
        "Gradient clipping and averages of weights use the same kernels. Optimizers of one's own "
        "may have no fused form: torch.compile(optimizer.step) makes one."
    )
    estimate = (
        "Replay in which each optimizer step is one kernel for every "
        f"{TENSORS_PER_KERNEL} tensors, that takes {REMAINING_SHARE_ADAM.value:g} of "
        "the time now for Adam and "
        f"its like, {REMAINING_SHARE_MOMENTUM.value:g} for others. The host still "
        "goes through all tensors, which "
        "takes it as long as a launch for each (14.5 µs were measured against 17); the other "
        "launches and the host's work for these go."
    )
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
        return _match(context, marked_work(context, optimizer.group >= 0))

    def locate(self, context: RuleContext, _: TimelineFinding) -> pl.DataFrame:
        """Find kernels of the optimizer, those one after another as one."""
        return runs(context, pl.lit(pl.Series(parts_of(context).optimizer.group >= 0)))


def _match(context: RuleContext, rows: pl.DataFrame) -> RuleMatch:
    optimizer = parts_of(context).optimizer
    kernels = rows.height / optimizer.steps
    averages = rows.filter(pl.col("label").str.contains(_KEEPS_AVERAGES)).height > 0
    remaining = REMAINING_SHARE_ADAM if averages else REMAINING_SHARE_MOMENTUM
    fused = (int(optimizer.group.max(initial=NONE)) + 1) / optimizer.steps
    return RuleMatch(
        title=f"Each optimizer step is {format_count(round(kernels))} kernels where about "
        f"{format_count(round(fused))} would do",
        evidence=(
            step_evidence(
                context, "optimizer_kernels", rows.height, "", "Kernels of the optimizer"
            ),
            Evidence("kernels_fused", fused, "", "Kernels of a fused optimizer step, about"),
            *time_seen(context, rows, "optimizer_ns"),
        ),
        confidence=Confidence.MEDIUM,
        confidence_reason="kernels and launches were measured; the time of the fused kernel is "
        "assumed from its accesses to memory",
        change=(
            fuse_to_share(
                optimizer.group,
                np.full(context.ops.height, remaining.value),
                optimizer.tensors.astype(np.float64) * launch_ns(context, rows),
            ),
        ),
        fix=_fix(context, rows, kernels),
        code=framework_of(context.trace).choose(
            torch=_code(context),
            cuda=UnfusedOptimizer.cuda_code,
            jax=UnfusedOptimizer.jax_code,
        ),
        where=locations_of(context, rows),
    )


def _optimizer_name(context: RuleContext) -> str:
    """Name the optimizer, where operators or ranges do."""
    trace = context.trace
    for table in ("cpu_ops", "ranges"):
        if trace.has(table):
            texts = " ".join(n for n in names_of(trace.table(table, ["name"])["name"]) if n)
            if (match := _NAMED.search(texts)) is not None:
                return match.group(1)
    return ""


def _code(context: RuleContext) -> str:
    name = _optimizer_name(context)
    if name and name not in _FUSED_IN_TORCH:
        return "step = torch.compile(optimizer.step)            # no fused form of its own\n"
    return UnfusedOptimizer.code.replace("AdamW", name or "AdamW")


def _fix(context: RuleContext, rows: pl.DataFrame, kernels: float) -> str:
    name = _optimizer_name(context)
    optimizer = f"torch.optim.{name}" if name else "The optimizer"
    seen = (
        f"{optimizer} runs {format_count(round(kernels))} kernels a "
        f"step{main_source_phrase(context, rows)}, "
        f"{by_step(context, format_time(total_ns(rows) / context.per_step))} of GPU time."
    )
    way = framework_of(context.trace).choose(
        torch="Pass fused=True where the optimizer has it (Adam, AdamW, SGD, Adagrad), else "
        "foreach=True or torch.compile(optimizer.step).",
        cuda="Update all parameters with one kernel that goes through a table of tensors.",
        jax="Put the whole update under one jax.jit, so that XLA fuses it.",
    )
    return f"{seen} {way}"
