"""exposed-copy: memcpys that do not overlap with kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import polars as pl

from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.locations import gpu_work
from gpusight.rules.patterns import memcpys
from gpusight.rules.rule import CLEAN, RuleMatch, RuleVerdict, Threshold, TimelineRule
from gpusight.rules.timeline.pageable_copy import PageableCopy

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.patterns.memcpys import CopyTotals


MIN_EXPOSED_SHARE = Threshold(
    0.01, "share of the time in which only copies run; less is not worth overlapping"
)


class ExposedCopy(TimelineRule):
    """Copies without overlap."""

    id = "exposed-copy"
    detects = "Looks for H2D, D2H and peer-to-peer copies that run while no kernel does."
    why = (
        "Copies run on the GPU's copy engines, so a copy that overlaps with kernels is free. A "
        "copy in the stream of the kernels blocks them until it is done."
    )
    fix = (
        "Copy on a separate stream, ahead of the kernels that need the data. Prefetch the next "
        "batch during this step, and copy results back during the next one."
    )
    code = """\
copying = torch.cuda.Stream()
with torch.cuda.stream(copying):
    upcoming = next(batches).to("cuda", non_blocking=True)
torch.cuda.current_stream().wait_stream(copying)
"""
    snippets = PageableCopy.snippets
    verify = "`gpusight copies` shows these copies as overlapped, `gpusight ledger` less `copy`."
    caveats = (
        "A copy cannot overlap if the next kernel needs its data and it could not start earlier. "
        "Nor can the first and last copy between two syncs. Two copies in one direction share the "
        "link."
    )
    estimate = (
        "Simulation with these copies on a separate stream per direction and nothing waiting for "
        "them. They take as long as before, slightly longer where both directions overlap."
    )
    thresholds: ClassVar = {
        "min_copy_bytes": memcpys.MIN_COPY_BYTES,
        "min_exposed_share": MIN_EXPOSED_SHARE,
        "min_delay_ns": memcpys.MIN_DELAY_NS,
        "bidirectional_rate": memcpys.BIDIRECTIONAL_RATE,
    }

    def check(self, context: RuleContext) -> RuleVerdict:
        """Measure the time in which copies run and nothing computes."""
        rows = memcpys.copies(context).filter(
            pl.col("way").is_in([*memcpys.HOST_WAYS, "p2p", "unified"]),
            pl.col("bytes") >= memcpys.MIN_COPY_BYTES.value,
            # Copies of pageable memory are evaluated by pageable-copy.
            ~pl.col("pageable").fill_null(value=False),
            pl.col("exposed_ns") > 0,
        )
        exposed = memcpys.most_exposed(context, rows, memcpys.computing(context))
        if exposed.ns < MIN_EXPOSED_SHARE.value * context.length_ns:
            return CLEAN
        moved = memcpys.by_way(rows)
        ways = [totals.way for totals in moved]
        what = f"Exposed {moved[0].name} copies" if len(moved) == 1 else "Exposed copies"
        share = exposed.ns / max(1, context.length_ns)
        meaning = f"Share of the time in which GPU {exposed.device} only runs these copies"
        return RuleMatch(
            title=f"{what}: {context.time_per_step(exposed.ns)} without overlap",
            evidence=(
                Evidence("exposed_share", share, "share", meaning),
                *memcpys.copy_evidence(context, moved),
            ),
            confidence=Confidence.MEDIUM,
            confidence_reason="the capture does not show whether the copies can start earlier",
            change=memcpys.overlap_copies(context, rows),
            measured_ns=exposed.ns,
            fix=_fix(context, rows, moved),
            code=context.framework.choose(
                torch=_TORCH_BACK if ways == ["d2h"] else ExposedCopy.code,
                cuda=_PREFETCH if ways == ["unified"] else _CUDA,
                jax="upcoming = jax.device_put(host_batch)  # before the current step is awaited\n",
            ),
            where=memcpys.copy_origins(context, rows, "exposed_ns"),
        )

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find copies, those that the finding names if any."""
        return gpu_work(context, finding, pl.col("kind") == "copy")


def _fix(context: RuleContext, rows: pl.DataFrame, moved: list[CopyTotals]) -> str:
    summary = "; ".join(totals.text(context) for totals in moved)
    advice = " ".join(_ADVICE[totals.way] for totals in moved)
    calls = context.framework.choose(
        torch="Use a separate torch.cuda.Stream and non_blocking=True.",
        cuda="Use cudaMemcpyAsync on a separate stream, and events for kernels that need the data.",
        jax="Call jax.device_put for the next batch before the current step is awaited.",
        other="Copy from pinned memory on a separate stream, and let the kernels that need the "
        "data wait for an event.",
    )
    if exchange := memcpys.exchange_advice(context, rows):
        return f"{summary}. {exchange}"
    if all(totals.way == "unified" for totals in moved):
        return f"{summary}. {advice}"
    return f"{summary}. {advice} {calls}"


_ADVICE = {
    "h2d": "Prefetch the next batch during the current step.",
    "d2h": "Keep results on the GPU until they are needed, or copy them during the next step.",
    "p2p": "Overlap peer-to-peer copies with compute: in chunks, on a separate stream.",
    "unified": "Prefetch managed memory with cudaMemPrefetchAsync, or use cudaMalloc.",
}


_TORCH_BACK = """\
host = torch.empty_like(out, device="cpu", pin_memory=True)  # once
copying.wait_stream(torch.cuda.current_stream())
with torch.cuda.stream(copying):
    host.copy_(out, non_blocking=True)
out.record_stream(copying)  # read `host` after copying.synchronize()
"""
_CUDA = """\
cudaMemcpyAsync(next, host, bytes, cudaMemcpyDefault, copying);
cudaEventRecord(copied, copying);
kernel<<<grid, block, 0, compute>>>(current);  // overlaps with the copy
cudaStreamWaitEvent(compute, copied, 0);  // before the next batch
"""
_PREFETCH = """\
// before the kernel that needs it
cudaMemPrefetchAsync(data, bytes, device, copying);
"""
