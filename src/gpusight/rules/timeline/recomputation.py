"""recomputation: the backward pass runs parts of the forward pass again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analysis.replay.changes import remove, without_host_time
from gpusight.rules.context import memoize
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import title_share
from gpusight.rules.locations import groups
from gpusight.rules.patterns.host_gaps import host_unknown
from gpusight.rules.patterns.kernel_groups import (
    backward_threads,
    kernel_ns,
    kernels_unseen,
    locations_of,
    total_ns,
)
from gpusight.rules.rule import CLEAN, RuleMatch, RuleNotApplicable, Threshold, TimelineRule
from gpusight.units import format_bytes

if TYPE_CHECKING:
    from gpusight.analysis.replay.changes import Change
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import RuleVerdict
    from gpusight.trace.intervals import Ints


MIN_RUN = Threshold(
    4, "kernels in a row that the backward pass repeats from the forward pass; fewer are chance"
)
MIN_KERNEL_TIME_SHARE = Threshold(0.02, "share of kernel time that is repeated")
MAX_MEMORY_SHARE = Threshold(
    0.9, "share of the GPU's memory that the program may use without checkpointing"
)
_MATH = ("matmul", "attention", "convolution", "normalization")


class Recomputation(TimelineRule):
    """Activation checkpointing."""

    id = "recomputation"
    detects = (
        "Looks for forward work that the backward pass repeats. Autograd's thread then launches "
        "kernels in the same order, with the same grids, as the forward pass did."
    )
    why = (
        "Activation checkpointing frees activations in the forward pass, and computes them again "
        "in the backward pass. It trades time for memory. A model that checkpoints every layer "
        "takes about a third more GPU time."
    )
    fix = "Where memory allows, turn checkpointing off, or checkpoint fewer layers."
    code = """\
x = block(x)                                   # instead of checkpoint(block, x)
model.gradient_checkpointing_disable()         # transformers
if i % 2: x = checkpoint(block, x, use_reentrant=False)   # or only every second layer
"""
    jax_code = """\
block = jax.checkpoint(block, policy=jax.checkpoint_policies.dots_saveable)  # or without it
"""
    verify = (
        "`gpusight kernels` shows as many forward as backward kernels of attention and "
        "normalization. `gpusight memory` (or nvidia-smi) shows that the peak still fits."
    )
    caveats = (
        "Without checkpointing, the program may run out of memory. A larger batch that "
        "checkpointing allows may be faster than a smaller one without it."
    )
    estimate = (
        "Simulation without the repeated parts: all their GPU activities, their launches and the "
        "host time for them. Hooks of checkpointing slow the forward pass: there, the host takes "
        "no longer for a launch than in the repetition. Hooks in the backward pass remain."
    )
    effort = "one line"
    thresholds: ClassVar = {
        "min_run": MIN_RUN,
        "min_kernel_time_share": MIN_KERNEL_TIME_SHARE,
        "max_memory_share": MAX_MEMORY_SHARE,
    }
    removes_work = True

    def check(self, context: RuleContext) -> RuleVerdict:
        """Compare what the threads of the forward and the backward pass launch."""
        if (unknown := host_unknown(context) or kernels_unseen(context)) is not None:
            return unknown
        repeated = _repeated(context)
        if isinstance(repeated, RuleNotApplicable):
            return repeated
        if total_ns(repeated.rows) < MIN_KERNEL_TIME_SHARE.value * kernel_ns(context):
            return CLEAN
        return _match(context, repeated)

    def locate(self, context: RuleContext, _: TimelineFinding) -> pl.DataFrame:
        """Find the repeated runs of kernels."""
        repeated = _repeated(context)
        number = np.full(context.ops.height, -1, np.int64)
        if not isinstance(repeated, RuleNotApplicable):
            number[repeated.rows["op"].to_numpy()] = repeated.rows["run"].to_numpy()
        return groups(context, number)


@dataclass(frozen=True)
class _Repeated:
    """Forward kernels that ran again."""

    rows: pl.DataFrame
    """Rows of `RuleContext.kernels`, with the number of their `run`."""
    forward: pl.DataFrame
    """The kernels that the forward thread launched."""


@memoize
def _repeated(context: RuleContext) -> _Repeated | RuleNotApplicable:
    threads = context.calls.select("call", "thread", pl.col("start_ns").alias("called_ns"))
    kernels = context.kernels.join(threads, on="call").sort("called_ns", maintain_order=True)
    if kernels.is_empty():
        return RuleNotApplicable("no kernel is linked to its launch")
    autograd = backward_threads(context)
    if not autograd:
        return _Repeated(kernels.clear().with_columns(pl.lit(0).alias("run")), kernels.clear())
    forward = kernels.filter(~pl.col("thread").is_in(autograd))
    if forward.is_empty():
        return RuleNotApplicable("one thread launches forward and backward pass")
    backward = kernels.filter(pl.col("thread") == autograd[0])
    return _Repeated(_runs_of(forward, backward), forward)


def _runs_of(forward: pl.DataFrame, backward: pl.DataFrame) -> pl.DataFrame:
    """Return the kernels of `backward` that are in runs which also occur in `forward`."""
    both = pl.concat([forward, backward]).select(pl.struct("name", "blocks").rank("dense"))
    codes = both.to_series().to_numpy().astype(np.int64)
    size = round(MIN_RUN.value)
    known, own = (_windows(part, size) for part in np.split(codes, [forward.height]))
    repeats = np.zeros(backward.height, np.bool_)
    for start in np.flatnonzero(np.isin(own, known)):
        repeats[start : start + size] = True
    begins = repeats & ~np.concatenate(([False], repeats[:-1]))
    runs = backward.with_columns(pl.Series("run", np.cumsum(begins) - 1)).filter(pl.Series(repeats))
    # Casts and fills follow each other anywhere: a run of the model computes something.
    return runs.filter(pl.col("category").is_in(_MATH).any().over("run"))


def _windows(codes: Ints, size: int) -> Ints:
    """Return one number for each window of consecutive codes, the same for the same codes."""
    if len(codes) < size:
        return np.empty(0, np.int64)
    base = np.int64(1_000_003)
    number = np.zeros(len(codes) - size + 1, np.int64)
    with np.errstate(over="ignore"):
        for position in range(size):
            number = number * base + codes[position : len(codes) - size + 1 + position]
    return number


def _match(context: RuleContext, repeated: _Repeated) -> RuleMatch:
    rows = repeated.rows
    ns = total_ns(rows)
    share = ns / kernel_ns(context)
    memory, room = _memory(context)
    framework = context.framework
    runs = rows["run"].n_unique()
    return RuleMatch(
        title=f"Forward pass recomputed in backward ({title_share(share)} of GPU time)",
        evidence=(
            context.evidence("repeated_ns", ns, "ns", "Time in repeated kernels"),
            Evidence("gpu_share", share, "share", "Share of GPU time"),
            Evidence(
                "forward_share",
                ns / max(1, total_ns(repeated.forward)),
                "share",
                "Part of the forward pass that is repeated",
            ),
            context.evidence("kernels", rows.height, "", "Repeated kernels"),
            context.evidence("runs", runs, "", "Repeated parts (checkpoints)"),
            *memory,
        ),
        confidence=Confidence.MEDIUM,
        confidence_reason="the kernels were measured; " + room[0],
        change=_without_repetition(context, repeated),
        fix=f"{context.count_per_step(rows.height, 'kernel')} in "
        f"{context.count_per_step(runs, 'checkpoint')} repeat forward work, "
        f"{context.time_per_step(ns)}. {room[1]} "
        + framework.choose(
            torch="Remove torch.utils.checkpoint, or checkpoint fewer layers.",
            cuda="Keep the activations, or recompute fewer of them.",
            jax="Remove jax.checkpoint, or save the results of matmuls with a policy.",
        ),
        where=locations_of(context, rows),
    )


def _without_repetition(context: RuleContext, repeated: _Repeated) -> tuple[Change, ...]:
    """Remove the repeated parts, and what hooks of checkpointing add to the forward pass."""
    runs = repeated.rows.group_by("run").agg(
        pl.col("call").min().alias("first"), pl.col("call").max().alias("last")
    )
    first, last = (runs.sort("first")[name].to_numpy() for name in ("first", "last"))
    ops, thread = context.schedule.ops, context.schedule.calls.thread
    # Memsets and copies between the kernels of a run belong to it.
    run = np.searchsorted(first, ops.call, side="right") - 1
    inside = (run >= 0) & (ops.call <= last[run]) & (thread[ops.call] == thread[first[run]])
    return remove(np.flatnonzero(inside)), _without_hooks(context, repeated)


def _without_hooks(context: RuleContext, repeated: _Repeated) -> Change:
    """Let the host take no longer for a forward kernel than for its repetition.

    Both passes run the same operators, but only the first one saves tensors and random states.
    """
    gap_ns = context.replay.program.gap_ns

    def with_gap(rows: pl.DataFrame) -> pl.DataFrame:
        calls = rows.select("name", "blocks", "call").unique("call", maintain_order=True)
        return calls.with_columns(pl.Series("gap_ns", gap_ns[calls["call"].to_numpy()]))

    kernel = ["name", "blocks"]
    again = (
        with_gap(repeated.rows).group_by(kernel).agg(pl.col("gap_ns").median().alias("usual_ns"))
    )
    forward = with_gap(repeated.forward).join(again, on=kernel, nulls_equal=True)
    slower = forward.filter(pl.col("gap_ns") > pl.col("usual_ns"))
    saved_ns = (slower["gap_ns"] - slower["usual_ns"]).to_numpy().astype(np.int64)
    return without_host_time(slower["call"].to_numpy(), saved_ns)


def _memory(context: RuleContext) -> tuple[tuple[Evidence, ...], tuple[str, str]]:
    """Return what is known of memory, and what it means for the confidence and the advice."""
    peak = _peak_bytes(context)
    size = None if context.gpu is None else context.gpu.memory_bytes
    devices = context.trace.table("devices", ["device", "memory_bytes"])
    recorded = devices.filter(pl.col("device") == context.device)["memory_bytes"].drop_nulls()
    size = int(recorded[0]) if len(recorded) and recorded[0] else size
    if peak is None or not size:
        return (), (
            "the capture does not show whether the memory suffices without checkpointing",
            "Check the memory first: gpusight record --memory shows the peak.",
        )
    evidence = (
        Evidence("peak_bytes", float(peak), "byte", "Peak memory now"),
        Evidence("memory_bytes", float(size), "byte", "Memory of the GPU"),
    )
    used = f"{format_bytes(peak)} of {format_bytes(size)}"
    if peak > MAX_MEMORY_SHARE.value * size / 2:
        return evidence, (
            "memory may not suffice without checkpointing",
            f"Peak memory is {used} now: checkpointing may be needed. Turn it off for some layers.",
        )
    return evidence, (
        "peak memory leaves room",
        f"Peak memory is {used} now: there is room for more activations.",
    )


def _peak_bytes(context: RuleContext) -> int | None:
    """Return the most GPU memory that the framework had reserved or the program allocated."""
    if not context.trace.has("memory_events"):
        return None
    events = context.trace.table(
        "memory_events",
        ["time_ns", "device", "operation", "bytes", "allocated_bytes", "reserved_bytes"],
    ).filter(pl.col("device") == context.device)
    for column in ("reserved_bytes", "allocated_bytes"):
        most = events[column].max()
        if most is not None:
            return int(most)  # type: ignore[arg-type]
    operation = pl.col("operation").cast(pl.String)
    signed = (
        pl.when(operation == "allocation")
        .then(pl.col("bytes"))
        .when(operation == "deallocation")
        .then(-pl.col("bytes"))
        .otherwise(0)
    )
    most = events.sort("time_ns").select(signed.cum_sum().max()).item()
    return None if most is None or most <= 0 else int(most)
