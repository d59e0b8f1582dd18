"""small-transfers: many small copies between host and GPU in every step."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analysis.replay.changes import free_calls, without_host_time
from gpusight.rules.context import memoize
from gpusight.rules.finding import Confidence
from gpusight.rules.locations import gpu_work
from gpusight.rules.patterns import memcpys
from gpusight.rules.patterns.host_gaps import host_unknown, idle_during, waits
from gpusight.rules.patterns.kernel_groups import without_kernels
from gpusight.rules.rule import CLEAN, Framework, RuleMatch, RuleVerdict, Threshold, TimelineRule

if TYPE_CHECKING:
    from gpusight.analysis.replay.changes import Change
    from gpusight.analysis.replay.simulation import ReplayProgram
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding


MAX_BYTES = Threshold(65_536, "bytes; the call of a smaller copy takes longer than the copy itself")
MIN_COPIES_PER_STEP = Threshold(
    10, "small copies per step; fewer cost the host less than 0.1 ms, at 5 to 10 µs each"
)
MAX_HOST_NS = Threshold(
    20_000, "ns of host time before a copy that belongs to it; more is other work of the program"
)
MIN_STEP_SHARE = Threshold(0.5, "share of the steps that must have them; fewer are setup")


class SmallTransfers(TimelineRule):
    """Small copies that could be one."""

    id = "small-transfers"
    detects = (
        "Looks for many H2D and D2H copies below 64 kB in every step. They do not synchronize, or "
        "are H2D copies without a launch in between. Others are findings of host-sync."
    )
    why = (
        "Each copy takes the host 5 to 10 µs and the GPU 1 to 2 µs, however small it is. Work of "
        "the stream behind it waits."
    )
    fix = (
        "Send values together: pack them into one buffer and copy it once per step, or create them "
        "on the GPU."
    )
    code = """\
packed = torch.cat([t.flatten() for t in small]).pin_memory()   # one copy per step
a, b = packed.to("cuda", non_blocking=True).split(sizes)
mask = torch.zeros(n, device="cuda")           # created on the GPU: no copy
"""
    cuda_code = """\
memcpy(staging, values, bytes);                // one pinned buffer for all values of a step
cudaMemcpyAsync(device, staging, bytes, cudaMemcpyHostToDevice, stream);
kernel<<<grid, block, 0, stream>>>(parameters); // small values as kernel arguments: no copy
"""
    jax_code = """\
batch = jax.device_put(batch)                  # a whole tree at once, before the step
step = jax.jit(step)                           # constants inside jit are copied once
"""
    snippets: ClassVar = {
        Framework.CUPY: """\
packed = cp.asarray(np.concatenate(small))     # one copy per step
mask = cp.zeros(n)                             # created on the GPU: no copy
""",
        Framework.NUMBA: """\
packed = cuda.to_device(np.concatenate(small)) # one copy per step
kernel[blocks, threads](x, alpha)              # numbers as arguments: no copy
""",
        Framework.JULIA: """\
packed = CuArray(reduce(vcat, small))          # one copy per step
mask = CUDA.zeros(Float32, n)                  # created on the GPU: no copy
""",
    }
    verify = "`gpusight copies` shows a few copies per step."
    caveats = (
        "Copies that the program needs at different times cannot be one. In a GPU-bound program, "
        "they cost little."
    )
    estimate = (
        "Simulation with one copy per step and direction. The others go with their calls and "
        "syncs, and with up to 20 µs of host time before each."
    )
    thresholds: ClassVar = {
        "max_bytes": MAX_BYTES,
        "min_copies_per_step": MIN_COPIES_PER_STEP,
        "min_step_share": MIN_STEP_SHARE,
        "max_host_ns": MAX_HOST_NS,
    }
    min_share = 0.01

    def check(self, context: RuleContext) -> RuleVerdict:
        """Count small copies that could be one, step by step."""
        if (unknown := host_unknown(context)) is not None:
            return unknown
        rows = _small_copies(context)
        if rows.height < MIN_COPIES_PER_STEP.value * context.per_step:
            return CLEAN
        if context.steps and rows["step"].n_unique() < MIN_STEP_SHARE.value * context.steps:
            return CLEAN
        moved = memcpys.by_way(rows)
        first = pl.int_range(pl.len()).over("way", "step") == 0
        others = rows.filter(~first)
        framework = context.framework
        measured_ns = int(rows["duration_ns"].sum()) + idle_during(context, rows["call"].to_numpy())
        pageable = int(rows["pageable"].fill_null(value=False).sum())
        return RuleMatch(
            title=context.count_per_step(rows.height, "small H2D/D2H copy"),
            evidence=(
                *memcpys.copy_evidence(context, moved),
                context.evidence("pageable", pageable, "", "From or to pageable memory"),
            ),
            confidence=Confidence.MEDIUM,
            confidence_reason="the capture does not show whether the values are known together",
            change=(_without_copies(context, others),),
            measured_ns=measured_ns,
            fix=f"{'; '.join(totals.text(context) for totals in moved)}. "
            + framework.choose(
                torch="Pack small tensors into one before .to(), create constants on the GPU "
                "(device=), and keep what does not change there.",
                cuda="Pass small values as kernel arguments, or pack them into one pinned buffer "
                "per step.",
                jax="Call jax.device_put for a whole tree once, and keep constants inside jit.",
            ),
            where=memcpys.copy_origins(context, rows),
        )

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find the small copies."""
        ops = _small_copies(context)["op"].implode()
        return gpu_work(context, finding, pl.col("op").is_in(ops))


def _without_copies(context: RuleContext, rows: pl.DataFrame) -> Change:
    """Remove copies and their calls, waits for them, and what the framework does for them."""
    calls = rows["call"].unique().to_numpy()
    own = waits(context).filter(pl.col("last_call").is_in(rows["call"].implode()))
    syncs = own["calls"].explode().drop_nulls().to_numpy()

    def change(program: ReplayProgram) -> ReplayProgram:
        host_ns = np.minimum(program.movable_ns[calls], round(MAX_HOST_NS.value))
        freed = without_host_time(calls, host_ns)(free_calls(np.union1d(calls, syncs))(program))
        return without_kernels(rows["op"].to_numpy())(freed)

    return change


@memoize
def _small_copies(context: RuleContext) -> pl.DataFrame:
    """Return the small copies between host and GPU: those that no call waits for, or in a row.

    Several copies to the GPU with no launch in between could be one, whether or not a call waits
    for each.
    """
    rows = memcpys.copies(context).filter(
        pl.col("way").is_in(memcpys.HOST_WAYS),
        pl.col("bytes") < MAX_BYTES.value,
        pl.col("call").is_not_null(),
    )
    # Copy calls that wait for their copy, or that a synchronizing call follows.
    blocking = waits(context)["calls"].explode()
    issues = pl.col("kind").cast(pl.String).is_in(["launch", "graph", "copy", "fill"])
    last_issued = pl.when(issues).then(pl.col("call")).forward_fill().over("host_thread")
    calls = context.calls.with_columns(last_issued.alias("last_issued"))
    blocked = calls.filter(pl.col("call").is_in(blocking.implode()))["last_issued"].drop_nulls()
    to_gpu = pl.col("call").is_in(rows.filter(pl.col("way") == "h2d")["call"].implode())
    neighbor = to_gpu.shift(1) | to_gpu.shift(-1)
    in_a_row = calls.filter(issues).filter(
        to_gpu & neighbor.over("host_thread").fill_null(value=False)
    )
    return rows.filter(
        ~pl.col("call").is_in(blocked.implode()) | pl.col("call").is_in(in_a_row["call"].implode())
    )
