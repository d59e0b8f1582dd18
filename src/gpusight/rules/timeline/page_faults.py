"""page-faults: kernels and the host wait for pages of unified memory to migrate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analysis.replay.changes import remove, set_duration, without_host_time
from gpusight.rules.context import memoize
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import called_from, largest, summed_locations
from gpusight.rules.locations import each_op
from gpusight.rules.rule import CLEAN, RuleMatch, Threshold, TimelineRule
from gpusight.rules.timeline.pageable_copy import pinned_rate
from gpusight.trace.intervals import Intervals, coverage, union
from gpusight.units import format_bytes

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import FindingLocation, RuleVerdict
    from gpusight.trace.intervals import Ints


MIN_STALL_SHARE = Threshold(0.02, "share of the time that kernels or the host wait for pages")
MAX_FAULT_GAP_NS = Threshold(
    200_000,
    "ns between two migrations in which the driver handles the next fault: 20 to 100 µs are usual",
)
MIN_TURNS = Threshold(
    6, "changes of direction of the migrations from which on pages go back and forth"
)
_PREFETCHES = "MemPrefetch"
_PREFETCHED_BYTES = 2 << 20
"""What cudaMemPrefetchAsync moves at a time: in programs that call it, nobody waits for these."""
_WAYS = {"Unified Host-to-Device": "h2d", "Unified Device-to-Host": "d2h"}


class PageFaults(TimelineRule):
    """Unified memory that migrates on demand."""

    id = "page-faults"
    detects = (
        "Looks for migrations and page faults of unified memory while kernels run or the host "
        "works, and for pages that go back and forth."
    )
    why = (
        "A kernel that touches a page on the host stops until the driver has moved it. A group of "
        "faults takes 20 to 50 µs, and reaches a fraction of the bandwidth of a copy. The host "
        "stops likewise."
    )
    fix = "Move the memory before it is used: cudaMemPrefetchAsync, with cudaMemAdvise as a hint."
    code = """\
cudaMemPrefetchAsync(x, bytes, device, stream);            // before the kernel
cudaMemPrefetchAsync(x, bytes, cudaCpuDeviceId, stream);   // before the host reads it
cudaMemAdvise(x, bytes, cudaMemAdviseSetReadMostly, device);          // read by both
cudaMemAdvise(x, bytes, cudaMemAdviseSetPreferredLocation, device);   // no migration back
"""
    verify = (
        "`gpusight copies` shows few, large migrations (2 MB each), and kernels take the same time "
        "in every step."
    )
    caveats = (
        "Memory that is larger than the GPU's must migrate. GPUs with a coherent link (Grace "
        "Hopper) access host memory without migration."
    )
    estimate = (
        "Simulation without these migrations and the stalls around them. The same bytes are copied "
        "at the bandwidth of pinned memory before the kernel starts, or the host continues."
    )
    effort = "rewrite"
    thresholds: ClassVar = {
        "min_stall_share": MIN_STALL_SHARE,
        "max_fault_gap_ns": MAX_FAULT_GAP_NS,
        "min_turns": MIN_TURNS,
    }
    min_share = None

    def check(self, context: RuleContext) -> RuleVerdict:
        """Measure how long kernels and the host wait for pages."""
        stalls = _stalls(context)
        if stalls.ns < MIN_STALL_SHARE.value * context.length_ns:
            return CLEAN
        return _match(context, stalls)

    def locate(self, context: RuleContext, _: TimelineFinding) -> pl.DataFrame:
        """Find the kernels that wait for pages, else the migrations."""
        stalls = _stalls(context)
        waiting = stalls.kernels.filter(pl.col("stalled_ns") > 0)
        return each_op(context, waiting if waiting.height else stalls.migrations)


@dataclass(frozen=True)
class _PageStalls:
    """Time that pages cost, in the sample."""

    migrations: pl.DataFrame
    """Copies of unified memory, with `way` and `bytes`."""
    kernels: pl.DataFrame
    """Kernels, with `stalled_ns` and `moved_bytes` of the migrations in them."""
    host_ns: Ints
    """Part of the time before each call in which the host waited."""
    host_bytes: Ints
    """Bytes that moved in it."""
    faults: int | None
    """GPU page faults, where they were recorded."""

    @property
    def ns(self) -> int:
        return int(self.kernels["stalled_ns"].sum()) + int(self.host_ns.sum())


@memoize
def _stalls(context: RuleContext) -> _PageStalls:
    schedule = context.schedule
    kind = pl.col("direction").cast(pl.String)
    migrations = context.ops.filter(pl.col("kind") == "copy", kind.is_in(list(_WAYS)))
    migrations = migrations.with_columns(
        kind.replace_strict(_WAYS, default=None).alias("way"), pl.col("bytes").fill_null(0)
    )
    if context.calls.filter(pl.col("name").str.contains(_PREFETCHES)).height:
        migrations = migrations.filter(pl.col("bytes") < _PREFETCHED_BYTES)
    faults = _gpu_faults(context)
    to_gpu, to_host = (migrations.filter(pl.col("way") == way) for way in ("h2d", "d2h"))
    start_ns, end_ns = (context.kernels[c].to_numpy() for c in ("start_ns", "end_ns"))
    moving = union(_episodes(to_gpu, start_ns, end_ns), _spans(faults))
    kernels = context.kernels.with_columns(
        pl.Series("stalled_ns", coverage(moving, start_ns, end_ns), pl.Int64),
        pl.Series("moved_bytes", _bytes_in(to_gpu, start_ns, end_ns), pl.Int64),
    )
    # The host waits where pages come back while it makes no call.
    idle_starts, idle_ends = schedule.before_calls, schedule.calls.start_ns
    host_ns = coverage(_episodes(to_host, idle_starts, idle_ends), idle_starts, idle_ends)
    recorded = int(faults["faults"].sum()) if faults["faults"].count() else None
    return _PageStalls(
        migrations, kernels, host_ns, _bytes_in(to_host, idle_starts, idle_ends), recorded
    )


def _gpu_faults(context: RuleContext) -> pl.DataFrame:
    """Return the groups of page faults of the GPU in the sample."""
    schedule = context.schedule
    faults = context.trace.table("page_faults", ["start_ns", "end_ns", "side", "device", "faults"])
    return faults.filter(
        pl.col("side").cast(pl.String) == "gpu",
        pl.col("device").is_null() | (pl.col("device") == context.device),
        pl.col("end_ns") > schedule.start_ns,
        pl.col("start_ns") < schedule.end_ns,
    )


def _spans(rows: pl.DataFrame) -> Intervals:
    return Intervals.from_arrays(*(rows[c].to_numpy() for c in ("start_ns", "end_ns")))


def _episodes(rows: pl.DataFrame, starts: Ints, ends: Ints) -> Intervals:
    """Return migrations with the time between them in which the driver handles the next fault.

    That time counts where one of the spans (a kernel, a gap of the host) goes on through it.
    """
    moved = _spans(rows)
    if not len(starts) or not len(moved):
        return moved
    since_ns, until_ns = moved.ends[:-1], moved.starts[1:]
    order = np.argsort(starts, kind="stable")
    around = np.searchsorted(starts[order], since_ns, side="right") - 1
    goes_on = (around >= 0) & (ends[order][around] >= until_ns)
    near = goes_on & (until_ns - since_ns <= MAX_FAULT_GAP_NS.value)
    return union(moved, Intervals.from_arrays(since_ns[near], until_ns[near]))


def _bytes_in(rows: pl.DataFrame, starts: Ints, ends: Ints) -> Ints:
    """Sum the bytes of migrations that begin in each span."""
    begins = rows["start_ns"].to_numpy()
    total = np.concatenate(([0], np.cumsum(rows["bytes"].to_numpy())))
    moved: Ints = total[np.searchsorted(begins, ends)] - total[np.searchsorted(begins, starts)]
    return np.maximum(moved, 0)


def _match(context: RuleContext, stalls: _PageStalls) -> RuleMatch:
    kernels = stalls.kernels.filter(pl.col("stalled_ns") > 0)
    host = np.flatnonzero(stalls.host_ns)
    rates = {way: pinned_rate(context, way) for way in _WAYS.values()}
    copied_ns = (kernels["moved_bytes"].to_numpy() * (1e9 / rates["h2d"].bytes_s)).astype(np.int64)
    saved_ns = np.maximum(kernels["stalled_ns"].to_numpy() - copied_ns, 0)
    host_copy_ns = (stalls.host_bytes[host] * (1e9 / rates["d2h"].bytes_s)).astype(np.int64)
    turns = int((stalls.migrations["way"] != stalls.migrations["way"].shift(1)).sum())
    back_and_forth = turns >= MIN_TURNS.value
    moved = int(stalls.migrations["bytes"].sum())
    stalled_ns = int(kernels["stalled_ns"].sum())
    evidence = [
        context.evidence("kernel_stall_ns", stalled_ns, "ns", "Kernel time during migrations"),
        context.evidence(
            "host_stall_ns", int(stalls.host_ns.sum()), "ns", "Host time during migrations"
        ),
        context.evidence("migrations", stalls.migrations.height, "", "Migrations"),
        context.evidence("bytes", moved, "byte", "Bytes migrated"),
        Evidence(
            "rate",
            moved * 1e9 / max(1, int(stalls.migrations["duration_ns"].sum())),
            "byte/s",
            "Bandwidth of migrations",
        ),
        Evidence("turns", turns, "", "Changes of direction"),
    ]
    if stalls.faults is not None:
        evidence.append(context.evidence("faults", stalls.faults, "", "GPU page faults"))
    what = "Unified memory goes back and forth" if back_and_forth else "Unified memory page faults"
    count = context.count_per_step(stalls.migrations.height, "migration")
    size = format_bytes(moved / max(1, stalls.migrations.height))
    advice = (
        "Host and GPU use the same pages in turn: keep separate buffers for both, or advise a "
        "preferred location. Otherwise prefetch before each use."
        if back_and_forth
        else "Prefetch the memory to the GPU before the first kernel that uses it, and back before "
        "the host reads it."
    )
    return RuleMatch(
        title=f"{what}: {context.time_per_step(stalls.ns)}",
        evidence=tuple(evidence),
        confidence=Confidence.MEDIUM,
        confidence_reason="migrations were measured; whether kernels also computed meanwhile was "
        "not",
        change=(
            set_duration(kernels["op"].to_numpy(), kernels["duration_ns"].to_numpy() - saved_ns),
            without_host_time(host, np.maximum(stalls.host_ns[host] - host_copy_ns, 0)),
            remove(stalls.migrations["op"].to_numpy()),
        ),
        measured_ns=stalls.ns,
        fix=f"{count} of {size} each (mean). {advice}",
        where=_where(context, kernels, stalls.migrations),
        also=("exposed-copy",),
    )


def _where(
    context: RuleContext, kernels: pl.DataFrame, migrations: pl.DataFrame
) -> tuple[FindingLocation, ...]:
    if kernels.is_empty():
        return largest(summed_locations(migrations, "kernel", "label"))
    places = called_from(context, kernels, "stalled_ns").values()
    return largest(*places, summed_locations(kernels, "kernel", "label", "stalled_ns"))
