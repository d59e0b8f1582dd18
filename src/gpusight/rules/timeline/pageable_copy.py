"""pageable-copy: memcpys of pageable host memory, and how fast pinned memory would be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analysis.replay.changes import set_duration
from gpusight.hardware.gpu_table import CPU_LINK_BYTES_S, CPU_LINKS, USUAL_CPU_LINK
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.locations import gpu_work
from gpusight.rules.patterns import memcpys
from gpusight.rules.patterns.memcpys import DIRECTION_NAMES
from gpusight.rules.rule import (
    CLEAN,
    Framework,
    RuleMatch,
    RuleNotApplicable,
    Threshold,
    TimelineRule,
)
from gpusight.units import format_rate

if TYPE_CHECKING:
    from gpusight.analysis.replay.changes import Change
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.patterns.memcpys import CopyTotals
    from gpusight.rules.rule import RuleVerdict


LINK_EFFICIENCY = Threshold(
    0.8, "share of the link bandwidth that pinned copies reach; 0.8 to 0.9 are typical"
)
_MIN_RATE_BYTES = 1_000_000
"""Copies from which a rate is computed: below, the latency is a large part of the time."""
_KINDS = {"h2d": "Host-to-Device", "d2h": "Device-to-Host"}


@dataclass(frozen=True, slots=True)
class LinkRate:
    """Bandwidth of pinned copies, and where the number comes from."""

    bytes_s: float
    how: str
    measured: bool


def pinned_rate(context: RuleContext, way: str) -> LinkRate:
    """Return the rate of pinned memory in a direction."""
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
    measured = None if rate is None else float(rate)
    if measured is not None:
        return LinkRate(
            measured,
            f"measured for pinned {DIRECTION_NAMES[way]} copies in this capture",
            measured=True,
        )
    known = None if context.gpu is None else CPU_LINKS.get(context.gpu.architecture)
    link = known or USUAL_CPU_LINK
    link_bytes_s = CPU_LINK_BYTES_S[link]
    assumed = "" if known else ", assumed because the GPU is unknown"
    how = f"{LINK_EFFICIENCY.value:.0%} of {link} x16 ({format_rate(link_bytes_s)}){assumed}"
    return LinkRate(LINK_EFFICIENCY.value * link_bytes_s, how, measured=False)


MIN_COPY_SHARE = Threshold(0.005, "share of the time in pageable copies; less is not worth pinning")
MIN_PAGEABLE_SHARE = Threshold(
    0.9, "share of exposed copy time that is pageable; above it, exposed-copy has the same cause"
)


class PageableCopy(TimelineRule):
    """Copies of pageable memory."""

    id = "pageable-copy"
    detects = "Looks for H2D and D2H copies of 64 kB or more of pageable (not pinned) host memory."
    why = (
        "The GPU can only access pinned memory. The driver copies pageable memory in chunks "
        "through a pinned staging buffer, which is slower. The call blocks until the "
        "copy is done, so that nothing else is launched."
    )
    fix = (
        "Pin the host memory (DataLoader(pin_memory=True), Tensor.pin_memory(), cudaMallocHost), "
        "copy with non_blocking=True, and prefetch the next batch during the current step."
    )
    code = """\
loader = DataLoader(dataset, num_workers=4, pin_memory=True)
for batch in loader:
    batch = batch.to("cuda", non_blocking=True)
"""
    snippets: ClassVar = {
        Framework.CUPY: """\
host = cupyx.empty_pinned(shape, dtype=np.float32)   # once, outside the loop
copying = cp.cuda.Stream(non_blocking=True)
upcoming.set(host, stream=copying)             # during the current step
compute.wait_event(copying.record())
""",
        Framework.NUMBA: """\
host = cuda.pinned_array(shape, dtype=np.float32)    # once, outside the loop
copying = cuda.stream()
upcoming = cuda.to_device(host, stream=copying)      # during the current step
""",
        Framework.JULIA: """\
host = CUDA.pin(Array{Float32}(undef, n))      # once, outside the loop
copyto!(upcoming, host)                        # in a task of its own, during the current step
""",
    }
    verify = (
        "`gpusight copies` shows `Pinned` for these copies, and a bandwidth near that of the link."
    )
    caveats = (
        "Pinned memory cannot be swapped out and is slow to allocate: allocate it once and reuse "
        "it. Where the program needs the data at once, only the bandwidth improves, not the "
        "overlap. Integrated GPUs share the host's memory."
    )
    estimate = (
        "Simulation with these copies at the bandwidth of pinned memory, overlapped with compute "
        "and not blocking the caller. The bandwidth is measured in the capture where possible, "
        "else 80% of the link. The evidence also lists what pinning without overlap saves."
    )
    effort = "one line"
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
            return RuleNotApplicable("the capture does not record whether host memory is pinned")
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
    rate = format_rate(sum(totals.bytes for totals in moved) * 1e9 / max(1, took_ns), digits=3)
    calls = rows["call"].drop_nulls().unique().to_numpy()
    blocked_ns = int((context.schedule.calls.end_ns - context.schedule.calls.start_ns)[calls].sum())
    faster = _faster(rows, rates)
    # A program that cannot copy ahead saves no more than this.
    in_place_ns = context.replay.run(*faster, memcpys.pinned_in_place(rows)).saved_ns
    at_rates = "; ".join(
        f"{DIRECTION_NAMES[way]} at {format_rate(rate.bytes_s)} ({rate.how})"
        for way, rate in rates.items()
    )
    known = "measured" if all(r.measured for r in rates.values()) else "assumed"
    summary = "; ".join(totals.text(context) for totals in moved)
    advice = memcpys.exchange_advice(context, rows) or context.framework.choose(
        torch="Pin the host buffers once, outside the loop (DataLoader(pin_memory=True) or "
        "torch.empty(…, pin_memory=True)). Copy with non_blocking=True on a separate stream during "
        "the previous step.",
        cuda="Allocate the host buffers with cudaMallocHost, or pin them once with "
        "cudaHostRegister. Copy with cudaMemcpyAsync on a separate stream during the previous "
        "step.",
        jax="Keep inputs on the device, or call jax.device_put for the next batch before this one "
        "is awaited.",
        other="Allocate pinned host buffers once, outside the loop. Copy from them on a separate "
        "stream during the previous step.",
    )
    return RuleMatch(
        title=f"Pageable memory copies: {context.time_per_step(took_ns)} at {rate}",
        evidence=(
            *_evidence(context, blocked_ns, moved, rates),
            context.evidence(
                "pinned_in_place_ns",
                max(0, in_place_ns),
                "ns",
                "Saved by pinning alone, without overlap",
            ),
        ),
        confidence=Confidence.MEDIUM,
        confidence_reason=f"the bandwidth of pinned memory is {known}; the capture does not show "
        "whether the copies can start earlier",
        change=(*faster, *memcpys.overlap_copies(context, rows)),
        min_ns=context.replay.unchanged.total_ns - max(took_ns, blocked_ns),
        measured_ns=took_ns,
        estimate=f"Simulation with these copies {at_rates}, overlapped with compute and not "
        "blocking the caller.",
        fix=f"{summary}. {advice}",
        code=context.framework.choose(
            torch="".join(_TORCH_CODE[totals.way] for totals in moved),
            cuda=_CUDA,
            jax="upcoming = jax.device_put(host_batch)  # before the current step is awaited\n",
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
        Evidence(
            f"{way}_pinned_rate", rate.bytes_s, "byte/s", f"Bandwidth of pinned memory: {rate.how}"
        )
        for way, rate in rates.items()
    ]
    blocked = context.evidence("held_ns", blocked_ns, "ns", "Host time blocked in these copies")
    first, others = copies[: 2 * len(moved)], copies[2 * len(moved) :]
    return (*first, *([blocked] if blocked_ns else []), *pinned, *others)


_TORCH = """\
loader = DataLoader(dataset, num_workers=4, pin_memory=True)
copying = torch.cuda.Stream()
with torch.cuda.stream(copying):  # during the current step
    upcoming = next(batches).to("cuda", non_blocking=True)
torch.cuda.current_stream().wait_stream(copying)
"""
_TORCH_BACK = """\
# once, outside the loop; wait for an event before reading it
result = torch.empty_like(out, device="cpu", pin_memory=True)
result.copy_(out, non_blocking=True)
"""
_TORCH_CODE = {"h2d": _TORCH, "d2h": _TORCH_BACK}
_CUDA = """\
cudaMallocHost(&host, bytes);  // once, instead of malloc
cudaMemcpyAsync(device, host, bytes, cudaMemcpyDefault, copying);
cudaEventRecord(copied, copying);
cudaStreamWaitEvent(compute, copied, 0);
"""
