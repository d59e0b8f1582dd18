"""host-sync: the host waits for the GPU in the middle of a step."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import polars as pl

from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.replay.changes import without_waiting
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import (
    called_from,
    framework_of,
    largest,
    named,
    of_each_step,
    step_evidence,
    summed_locations,
    times_text,
)
from gpusight.rules.locations import idle_gaps, of_calls, with_idle_gaps
from gpusight.rules.patterns.host_gaps import MIN_COPY_WAIT_SHARE, host_unknown, waits
from gpusight.rules.rule import CLEAN, RuleMatch, Threshold, TimelineRule
from gpusight.units import format_time

if TYPE_CHECKING:
    from gpusight.analysis.replay.changes import Change
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import FindingLocation, RuleVerdict


MIN_COST_SHARE = Threshold(
    0.01, "part of the time that the waits must cost to be a finding by themselves"
)
MIN_SYNCS_PER_STEP = Threshold(
    5,
    "waits a step from which on they are a finding whatever they cost: they stop the host from "
    "running ahead as soon as something else is fixed",
)


class HostSync(TimelineRule):
    """Waits for the GPU inside steps."""

    id = "host-sync"
    detects = (
        "Looks for calls inside a step that wait until the GPU is done: values read back "
        "(`.item()`, `.cpu()`, `nonzero`), small copies of pageable memory, synchronisations. One "
        "at the end of a step is told apart."
    )
    why = (
        "While the host waits it launches nothing, and when it goes on the GPU is empty: it stands "
        "still until the next launch arrives, each time."
    )
    fix = (
        "Keep values on the GPU until the step is over, and read them back together, later, or "
        "every so many steps."
    )
    code = """\
losses.append(loss.detach())                   # no .item(), no print in the step
if step % 100 == 0:
    print(torch.stack(losses).mean().item())   # one wait for 100 steps
x = torch.where(mask, a, b)                    # in place of a[mask], nonzero, if tensor:
"""
    verify = (
        "`gpusight api` shows fewer synchronising calls. In PyTorch, "
        'torch.cuda.set_sync_debug_mode("warn") names what still waits.'
    )
    caveats = (
        "A program that needs the value to decide what to launch next has to wait. Where the host "
        "is slower than the GPU, waits cost little until that is fixed."
    )
    estimate = (
        "Replay in which these calls return at once; what the host does with the values stays, but "
        "beside the GPU's work. "
        "Synchronisations at the end of steps stay, too."
    )
    thresholds: ClassVar = {
        "min_cost_share": MIN_COST_SHARE,
        "min_syncs_per_step": MIN_SYNCS_PER_STEP,
        "min_copy_wait_share": MIN_COPY_WAIT_SHARE,
    }
    min_share = None

    def check(self, context: RuleContext) -> RuleVerdict:
        """Count the waits inside steps, and replay the window without them."""
        if (unknown := host_unknown(context)) is not None:
            return unknown
        small = waits(context).filter(~pl.col("large"))
        at_end = pl.col("at_edge") & ~pl.col("copies")
        inside, ends = small.filter(~at_end), small.filter(at_end)
        if inside.is_empty():
            return CLEAN
        change = without_waiting(inside["calls"].explode().to_numpy())
        saved_ns = context.replay.run(change).saved_ns
        costly = saved_ns >= MIN_COST_SHARE.value * context.length_ns
        many = context.steps > 0 and inside.height >= MIN_SYNCS_PER_STEP.value * context.steps
        if not costly and not many:
            return CLEAN
        return _match(context, inside, ends, change, costly=costly)

    def locate(self, context: RuleContext, _: TimelineFinding) -> pl.DataFrame:
        """Find calls that wait for the GPU, with the gap that follows."""
        inside = waits(context).filter(~pl.col("large"), ~pl.col("at_edge") | pl.col("copies"))
        first = inside.select(pl.col("calls").list.first().alias("call"), "waited_ns")
        rows = context.calls.drop("waited_ns").join(first, on="call")
        calls = of_calls(context, rows, "operator", "name").with_columns(
            rows["waited_ns"].alias("weight_ns")
        )
        return with_idle_gaps(idle_gaps(context, tuple(IdleCause)), calls)


def _match(
    context: RuleContext, inside: pl.DataFrame, ends: pl.DataFrame, change: Change, *, costly: bool
) -> RuleMatch:
    where = largest(
        *called_from(context, inside, "waited_ns").values(),
        summed_locations(inside, "call", "name", "waited_ns"),
    )
    often = times_text(context, inside.height)
    mean_ns = float(inside["waited_ns"].sum()) / max(1, inside.height)
    title = f"The host waits for the GPU {often}, {format_time(mean_ns)} each time"
    return RuleMatch(
        title=title if costly else f"{title}, which costs little so far",
        evidence=_evidence(context, inside, ends),
        confidence=Confidence.MEDIUM,
        confidence_reason="whether the program needs the values at once cannot be seen",
        change=(change,),
        fix=_fix(context, inside, where, often, costly=costly),
        code=framework_of(context.trace).choose(torch=HostSync.code, cuda=_CUDA, jax=_JAX),
        where=where,
    )


def _evidence(
    context: RuleContext, inside: pl.DataFrame, ends: pl.DataFrame
) -> tuple[Evidence, ...]:
    evidence = [
        step_evidence(context, "waits", inside.height, "", "Waits for the GPU"),
        step_evidence(
            context,
            "waited_ns",
            int(inside["waited_ns"].sum()),
            "ns",
            "Time the host spends in them",
        ),
        step_evidence(
            context,
            "read_back",
            int(inside["copies"].sum()),
            "",
            "Of these, waits for a small copy",
        ),
    ]
    if ends.height:
        meaning = "Synchronisations at the end of steps, which are not counted"
        evidence.append(step_evidence(context, "at_step_end", ends.height, "", meaning))
    return tuple(evidence)


def _fix(
    context: RuleContext,
    inside: pl.DataFrame,
    where: tuple[FindingLocation, ...],
    often: str,
    *,
    costly: bool,
) -> str:
    who = named(where, "site", "operator") or named(where, "range") or named(where, "call")
    seen = f"The host waits {often} in {who}" if who else f"The host waits {often}"
    total = of_each_step(context, float(inside["waited_ns"].sum()))
    now = (
        "" if costly else " Do it once the host is no longer the limit: until then it gains little."
    )
    return (
        f"{seen}, {total} in all. "
        + framework_of(context.trace).choose(
            torch="Collect such values on the GPU and read them back once, after the step or every "
            "so many steps; copy small tensors from pinned memory with non_blocking=True; replace "
            "boolean indexing and nonzero by torch.where.",
            cuda="Let the GPU decide (device-side flags, conditional graph nodes) or read results "
            "back through pinned memory with an event that a later step checks.",
            jax="Do not convert arrays to Python numbers or NumPy in the step; read metrics back "
            "every so many steps.",
        )
        + now
    )


_CUDA = """\
cudaMemcpyAsync(host, device, bytes, cudaMemcpyDeviceToHost, stream);  // pinned `host`
cudaEventRecord(ready, stream);
next_step<<<grid, block, 0, stream>>>();       // launched before anyone waits
if (cudaEventQuery(ready) == cudaSuccess) use(host);
"""
_JAX = """\
metrics.append(loss)                           # stays on the GPU
if step % 100 == 0:
    print(np.mean(jax.device_get(metrics)))    # one wait for 100 steps
"""
