"""exposed-copy: copies that the computation waits for."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import polars as pl

from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import framework_of, of_each_step
from gpusight.rules.locations import gpu_work
from gpusight.rules.patterns import memcpys
from gpusight.rules.rule import CLEAN, RuleMatch, Threshold, TimelineRule

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.patterns.memcpys import CopyTotals, ExposedTime
    from gpusight.rules.rule import RuleVerdict


MIN_EXPOSED_SHARE = Threshold(
    0.01, "part of the time in which only copies run; below, hiding them gains nothing"
)


class ExposedCopy(TimelineRule):
    """Copies with nothing beside them."""

    id = "exposed-copy"
    detects = (
        "Looks for copies between the GPU and the host or another GPU that run while no kernel "
        "does."
    )
    why = (
        "A GPU copies with engines of its own, so a copy costs nothing while kernels run beside "
        "it. One that stands in the stream of the kernels makes them wait until it is done."
    )
    fix = (
        "Copy on a stream of its own, ahead of the kernels that need the data: the next batch "
        "while this one computes, results while the next step runs."
    )
    code = """\
copying = torch.cuda.Stream()
with torch.cuda.stream(copying):
    upcoming = next(batches).to("cuda", non_blocking=True)
torch.cuda.current_stream().wait_stream(copying)
"""
    verify = "`gpusight copies` shows these copies as hidden, and `gpusight ledger` less `copy`."
    caveats = (
        "A copy whose data the very next kernel needs, and that could not be started earlier, "
        "cannot be hidden; nor can the first copy and the last of a stretch that begins and ends "
        "with a synchronisation. Two copies of one direction share the link."
    )
    estimate = (
        "Replay with these copies on a queue of their own, one for each direction, without "
        "anything waiting for them: they take as long as before, beside the kernels, and a little "
        "longer where copies of both directions come to run at once."
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
            # Copies of pageable memory have a rule of their own.
            ~pl.col("pageable").fill_null(value=False),
            pl.col("exposed_ns") > 0,
        )
        exposed = memcpys.most_exposed(context, rows)
        if exposed.ns < MIN_EXPOSED_SHARE.value * context.length_ns:
            return CLEAN
        return _match(context, rows, exposed)

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find copies, those that the finding names if any."""
        return gpu_work(context, finding, pl.col("kind") == "copy")


def _match(context: RuleContext, rows: pl.DataFrame, exposed: ExposedTime) -> RuleMatch:
    moved = memcpys.by_way(rows)
    ways = [totals.way for totals in moved]
    what = f"Copies {moved[0].to}" if len(moved) == 1 else "Copies"
    share = exposed.ns / max(1, context.length_ns)
    meaning = f"Part of the time in which GPU {exposed.device} does nothing but these copies"
    return RuleMatch(
        title=f"{what} run {of_each_step(context, exposed.ns)} with no kernel beside them",
        evidence=(
            Evidence("exposed_share", share, "share", meaning),
            *memcpys.copy_evidence(context, moved),
        ),
        confidence=Confidence.MEDIUM,
        confidence_reason="whether the copies can run ahead of what needs them cannot be seen",
        change=memcpys.overlap_copies(context, rows),
        fix=_fix(context, moved),
        code=framework_of(context.trace).choose(
            torch=_TORCH_BACK if ways == ["d2h"] else ExposedCopy.code,
            cuda=_PREFETCH if ways == ["unified"] else _CUDA,
            jax="upcoming = jax.device_put(host_batch)  # before awaiting the current step\n",
        ),
        where=memcpys.copy_origins(context, rows, "exposed_ns"),
    )


def _fix(context: RuleContext, moved: list[CopyTotals]) -> str:
    seen = "; ".join(totals.text(context) for totals in moved)
    advice = " ".join(_ADVICE[totals.way] for totals in moved)
    calls = framework_of(context.trace).choose(
        torch="Use a torch.cuda.Stream for them and non_blocking=True.",
        cuda="Use cudaMemcpyAsync on a stream of their own, and events for what needs the data.",
        jax="Call jax.device_put for the next batch before awaiting this one.",
    )
    return f"Seen: {seen}. {advice} {calls}"


_ADVICE = {
    "h2d": "Start the copies of the next batch while this one computes.",
    "d2h": "Keep results on the GPU until they are needed, or copy them while the next step runs.",
    "p2p": "Send between GPUs while both compute: in pieces, on a stream of its own.",
    "unified": "Move managed memory ahead of its use with cudaMemPrefetchAsync, or allocate it on "
    "the GPU.",
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
kernel<<<grid, block, 0, compute>>>(current);  // beside the copy
cudaStreamWaitEvent(compute, copied, 0);  // only then the next batch
"""
_PREFETCH = """\
// ahead of the kernel that needs it
cudaMemPrefetchAsync(data, bytes, device, copying);
"""
