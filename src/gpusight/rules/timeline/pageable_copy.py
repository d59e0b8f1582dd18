"""pageable-copy: copies of host memory that is not pinned, and how fast pinned ones would be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analysis.replay.changes import set_duration
from gpusight.hardware.gpu_table import CPU_LINK_BYTES_S, CPU_LINKS, USUAL_CPU_LINK
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import framework_of, of_each_step, step_evidence
from gpusight.rules.locations import gpu_work
from gpusight.rules.patterns import memcpys
from gpusight.rules.patterns.memcpys import DIRECTION_NAMES
from gpusight.rules.rule import CLEAN, RuleMatch, RuleNotApplicable, Threshold, TimelineRule
from gpusight.units import format_rate

if TYPE_CHECKING:
    from gpusight.analysis.replay.changes import Change
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.patterns.memcpys import CopyTotals
    from gpusight.rules.rule import RuleVerdict


LINK_EFFICIENCY = Threshold(
    0.8, "part of a link's rate that copies from pinned memory reach; 0.8 to 0.9 are usual"
)
_MIN_RATE_BYTES = 1_000_000
"""Copies from which a rate is computed: below, the latency is a large part of the time."""
_KINDS = {"h2d": "Host-to-Device", "d2h": "Device-to-Host"}


@dataclass(frozen=True, slots=True)
class LinkRate:
    """How fast copies of pinned memory run, and how that is known."""

    bytes_s: float
    how: str
    measured: bool


def pinned_rate(context: RuleContext, way: str) -> LinkRate:
    """Return the rate of pinned memory in a direction."""
    measured = _measured_rate(context, way)
    if measured is not None:
        return LinkRate(
            measured,
            f"as pinned copies {DIRECTION_NAMES[way]} reach in this capture",
            measured=True,
        )
    known = None if context.gpu is None else CPU_LINKS.get(context.gpu.architecture)
    link = known or USUAL_CPU_LINK
    link_bytes_s = CPU_LINK_BYTES_S[link]
    assumed = "" if known else ", assumed because the GPU is not known"
    how = f"{LINK_EFFICIENCY.value:.0%} of {link} x16 ({format_rate(link_bytes_s)}){assumed}"
    return LinkRate(LINK_EFFICIENCY.value * link_bytes_s, how, measured=False)


def _measured_rate(context: RuleContext, way: str) -> float | None:
    """Return the median rate of large pinned copies of a direction, in the whole capture."""
    columns = ["start_ns", "end_ns", "bytes", "kind", "src_kind", "dst_kind"]
    table = context.trace.table("copies", columns)
    host_kind = pl.col("src_kind" if way == "h2d" else "dst_kind").cast(pl.String)
    duration_ns = pl.col("end_ns") - pl.col("start_ns")
    pinned = table.filter(
        pl.col("kind").cast(pl.String) == _KINDS[way],
        host_kind == "Pinned",
        pl.col("bytes") >= _MIN_RATE_BYTES,
        duration_ns > 0,
    )
    rate = pinned.select((pl.col("bytes") * 1e9 / duration_ns).median()).item()
    return None if rate is None else float(rate)


MIN_COPY_SHARE = Threshold(
    0.005, "part of the time that such copies take; below, pinning gains nothing"
)
MIN_PAGEABLE_SHARE = Threshold(
    0.9, "part of all exposed copying that is of pageable memory: exposed-copy then says the same"
)


class PageableCopy(TimelineRule):
    """Copies of pageable memory."""

    id = "pageable-copy"
    detects = (
        "Looks for copies of 64 kB or more between the GPU and host memory that is not pinned."
    )
    why = (
        "The GPU can only reach pinned memory. The driver copies pageable memory piece by piece "
        "through a pinned buffer of its own: that takes several times as long, and the calling "
        "thread is held until the copy is done, so that nothing else is launched meanwhile."
    )
    fix = (
        "Let the host memory be pinned (DataLoader(pin_memory=True), Tensor.pin_memory(), "
        "cudaMallocHost), copy with non_blocking=True, and start the copy of the next batch while "
        "this one computes."
    )
    code = """\
loader = DataLoader(dataset, num_workers=4, pin_memory=True)
for batch in loader:
    batch = batch.to("cuda", non_blocking=True)
"""
    verify = (
        "`gpusight copies` shows `Pinned` for these copies, and their rate near that of the link."
    )
    caveats = (
        "Pinned memory cannot be swapped out and takes long to allocate: allocate it once and use "
        "it again. Where the program needs what it copied at once, only the higher rate helps, not "
        "the overlap. Integrated GPUs share the host's memory."
    )
    estimate = (
        "Replay with these copies at the rate of pinned memory (measured in the capture where it "
        "has such copies, else 80% of the GPU's link), beside the computation, with the caller "
        "free to go on. The evidence says what pinning alone gives, the copies left in their place."
    )
    thresholds: ClassVar = {
        "min_copy_bytes": memcpys.MIN_COPY_BYTES,
        "link_efficiency": LINK_EFFICIENCY,
        "min_copy_share": MIN_COPY_SHARE,
        "min_delay_ns": memcpys.MIN_DELAY_NS,
        "min_pageable_share": MIN_PAGEABLE_SHARE,
        "bidirectional_rate": memcpys.BIDIRECTIONAL_RATE,
    }

    def check(self, context: RuleContext) -> RuleVerdict:
        """Look at the kinds of memory of large copies."""
        rows = memcpys.copies(context).filter(
            pl.col("way").is_in(memcpys.HOST_WAYS), pl.col("bytes") >= memcpys.MIN_COPY_BYTES.value
        )
        if rows.is_empty():
            return CLEAN
        if rows["pageable"].null_count() == rows.height:
            return RuleNotApplicable(
                "the capture does not say whether the host memory of copies was pinned"
            )
        pageable = rows.filter(pl.col("pageable"))
        copy_ns = int(pageable["duration_ns"].sum())
        if copy_ns < MIN_COPY_SHARE.value * context.length_ns or pageable.is_empty():
            return CLEAN
        return _match(context, pageable)

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find copies from or to pageable memory, those that the finding names if any."""
        pageable = (pl.col("src_kind") == "Pageable") | (pl.col("dst_kind") == "Pageable")
        return gpu_work(context, finding, (pl.col("kind") == "copy") & pageable)


def _match(context: RuleContext, rows: pl.DataFrame) -> RuleMatch:
    moved = memcpys.by_way(rows)
    rates = {totals.way: pinned_rate(context, totals.way) for totals in moved}
    took_ns = sum(totals.ns for totals in moved)
    rate = format_rate(sum(totals.bytes for totals in moved) * 1e9 / max(1, took_ns))
    calls = rows["call"].drop_nulls().unique().to_numpy()
    blocked_ns = int((context.schedule.calls.end_ns - context.schedule.calls.start_ns)[calls].sum())
    faster = _faster(rows, rates)
    # A program that cannot copy ahead saves no more than this.
    in_place_ns = context.replay.run(*faster, memcpys.pinned_in_place(rows)).saved_ns
    at_rates = "; ".join(
        f"{DIRECTION_NAMES[way]} at {format_rate(rate.bytes_s)}, {rate.how}"
        for way, rate in rates.items()
    )
    known = "measured" if all(r.measured for r in rates.values()) else "assumed"
    return RuleMatch(
        title=f"Copies of pageable memory take {of_each_step(context, took_ns)} ({rate})",
        evidence=(
            *_evidence(context, blocked_ns, moved, rates),
            step_evidence(
                context,
                "pinned_in_place_ns",
                max(0, in_place_ns),
                "ns",
                "By pinning alone, copies left where they are: given back",
            ),
        ),
        confidence=Confidence.MEDIUM,
        confidence_reason=f"the rate of pinned memory is {known}; whether the copies can run ahead "
        "of what needs them cannot be seen",
        change=(*faster, *memcpys.overlap_copies(context, rows)),
        min_ns=context.replay.unchanged.total_ns - max(took_ns, blocked_ns),
        estimate=f"Replay with these copies {at_rates}; beside the computation, the caller free to "
        "go on.",
        fix=_fix(context, moved),
        code=framework_of(context.trace).choose(
            torch=_TORCH + (_TORCH_BACK if "d2h" in rates else ""),
            cuda=_CUDA,
            jax="upcoming = jax.device_put(host_batch)  # before awaiting the current step\n",
        ),
        where=memcpys.copy_origins(context, rows),
        also=("exposed-copy",) if _is_most_exposed(context, rows) else (),
    )


def _faster(rows: pl.DataFrame, rates: dict[str, LinkRate]) -> tuple[Change, ...]:
    changes = []
    for way, rate in rates.items():
        own = rows.filter(pl.col("way") == way)
        ns = (own["bytes"].to_numpy() * (1e9 / rate.bytes_s)).astype(np.int64)
        changes.append(set_duration(own["op"].to_numpy(), ns))
    return tuple(changes)


def _is_most_exposed(context: RuleContext, rows: pl.DataFrame) -> bool:
    """Return whether these are nearly all of the exposed copies."""
    copies = memcpys.copies(context).filter(pl.col("way").is_in([*memcpys.HOST_WAYS, "p2p"]))
    exposed_ns = int(copies["exposed_ns"].sum())
    return int(rows["exposed_ns"].sum()) >= MIN_PAGEABLE_SHARE.value * exposed_ns


def _evidence(
    context: RuleContext, blocked_ns: int, moved: list[CopyTotals], rates: dict[str, LinkRate]
) -> tuple[Evidence, ...]:
    copies = memcpys.copy_evidence(context, moved)
    pinned = [
        Evidence(f"{way}_pinned_rate", rate.bytes_s, "byte/s", f"Pinned memory: {rate.how}")
        for way, rate in rates.items()
    ]
    blocked = step_evidence(context, "held_ns", blocked_ns, "ns", "Callers held up by them")
    first, others = copies[: 2 * len(moved)], copies[2 * len(moved) :]
    return (*first, *([blocked] if blocked_ns else []), *pinned, *others)


def _fix(context: RuleContext, moved: list[CopyTotals]) -> str:
    seen = "; ".join(totals.text(context) for totals in moved)
    advice = framework_of(context.trace).choose(
        torch="Pin the host side once, outside the loop (DataLoader(pin_memory=True) or "
        "torch.empty(…, pin_memory=True)), and copy with non_blocking=True on a stream of its own "
        "while the step before computes.",
        cuda="Allocate the host side with cudaMallocHost, or pin it once with cudaHostRegister, "
        "and copy with cudaMemcpyAsync on a stream of its own while the step before computes.",
        jax="Keep inputs on the device, or call jax.device_put for the next batch before this one "
        "is awaited.",
    )
    return f"Seen: {seen}. {advice}"


_TORCH = """\
loader = DataLoader(dataset, num_workers=4, pin_memory=True)
copying = torch.cuda.Stream()
with torch.cuda.stream(copying):  # while this batch computes
    upcoming = next(batches).to("cuda", non_blocking=True)
torch.cuda.current_stream().wait_stream(copying)
"""
_TORCH_BACK = """\
# once, outside the loop; wait for an event before reading it
result = torch.empty_like(out, device="cpu", pin_memory=True)
result.copy_(out, non_blocking=True)
"""
_CUDA = """\
cudaMallocHost(&host, bytes);  // once, instead of malloc
cudaMemcpyAsync(device, host, bytes, cudaMemcpyDefault, copying);
cudaEventRecord(copied, copying);
cudaStreamWaitEvent(compute, copied, 0);
"""
