"""Groups of kernels: their time and locations, and the changes that fuse or speed them up.

Also kernels with small grids, which leave SMs idle, and kernels that every step repeats.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.replay.changes import fuse, set_duration
from gpusight.analysis.replay.simulation import CallWait, marked, put
from gpusight.rules.context import memoize
from gpusight.rules.finding import Evidence
from gpusight.rules.formatting import called_from, largest, quoted_name, summed_locations
from gpusight.rules.rule import RuleNotApplicable, Threshold

if TYPE_CHECKING:
    from gpusight.analysis.replay.changes import Change
    from gpusight.analysis.replay.simulation import ReplayProgram
    from gpusight.rules.context import RuleContext
    from gpusight.rules.rule import FindingLocation
    from gpusight.trace.intervals import Flags, Ints, Reals


MAX_HOST_TIME_NS = 200_000
"""Host time before a launch that belongs to it: operators of frameworks take tens of microseconds,
what takes longer is other work and remains."""


def scale_durations(ops: Ints, factor: Reals) -> Change:
    """Scale the durations of these activities."""

    def change(program: ReplayProgram) -> ReplayProgram:
        return set_duration(ops, (program.duration_ns[ops] * factor).astype(np.int64))(program)

    return change


def fuse_to_share(
    groups: Ints, part: Reals, host_ns: Reals, most_ns: Reals | None = None
) -> Change:
    """Fuse each group into one kernel that takes `part` of the time of each of its members.

    These are by position in `schedule.ops`, `groups` as for `fuse`; no member adds more than its
    `most_ns`. `host_ns`, by group, is the host time of the one launch beyond that of an ordinary
    launch, never more than the group saves.
    """

    def change(program: ReplayProgram) -> ReplayProgram:
        ops = np.flatnonzero((groups >= 0) & ~program.removed)
        time_ns = program.duration_ns[ops] * part[ops]
        if most_ns is not None:
            time_ns = np.minimum(time_ns, most_ns[ops])
        total_ns = np.bincount(groups[ops], weights=time_ns, minlength=len(host_ns))
        merged = _merge_groups(program, groups, total_ns.astype(np.int64))
        return _with_host_time(program, merged, groups, host_ns)

    return change


MIN_KERNEL_NS = 2_000
"""Time of a kernel that hardly moves any data."""


def fuse_chains(groups: Ints, part: Reals, traffic: Reals, one_pass: Reals) -> Change:
    """Fuse each group into one kernel that takes as long as the longest pass of its members.

    A pass reads one tensor and writes one, which is a part of what a member does. But no less than
    the memory traffic that remains, a part of that of each member too. Of each member only `part`
    of its time counts; all by position in `schedule.ops`.
    """

    def change(program: ReplayProgram) -> ReplayProgram:
        ops = np.flatnonzero((groups >= 0) & ~program.removed)
        longest_ns = np.zeros(int(groups.max(initial=-1)) + 1, np.int64)
        time_ns = (program.duration_ns[ops] * part[ops]).astype(np.int64)
        moving_ns = np.maximum(time_ns - MIN_KERNEL_NS, 0)
        passing_ns = np.where(one_pass[ops] < 1, MIN_KERNEL_NS + moving_ns * one_pass[ops], time_ns)
        np.maximum.at(longest_ns, groups[ops], passing_ns.astype(np.int64))
        remaining_ns = np.bincount(groups[ops], moving_ns * traffic[ops], len(longest_ns))
        floor_ns = np.where(remaining_ns > 0, remaining_ns.astype(np.int64) + MIN_KERNEL_NS, 0)
        return _merge_groups(program, groups, np.maximum(longest_ns, floor_ns))

    return change


def _merge_groups(program: ReplayProgram, groups: Ints, duration_ns: Ints) -> ReplayProgram:
    """Merge groups; long host time before a launch does not belong to it, and remains."""
    short_ns = np.minimum(program.movable_ns, MAX_HOST_TIME_NS)
    merged = fuse(groups, duration_ns)(program.changed(movable_ns=short_ns))
    movable_ns = np.where(merged.movable_ns == short_ns, program.movable_ns, merged.movable_ns)
    return merged.changed(movable_ns=np.minimum(movable_ns, np.maximum(merged.gap_ns, 0)))


def _with_host_time(
    before: ReplayProgram, after: ReplayProgram, groups: Ints, host_ns: Reals
) -> ReplayProgram:
    calls = len(before.own_ns)
    ops = np.flatnonzero((groups >= 0) & ~before.removed & (before.call < calls))
    call, first = np.unique(before.call[ops], return_index=True)
    saved_ns = (before.own_ns + before.gap_ns - after.own_ns - after.gap_ns)[call]
    max_ns = np.bincount(groups[ops][first], weights=saved_ns, minlength=len(host_ns))
    remaining = ops[~after.removed[ops]]
    added_ns = np.zeros(calls)
    np.add.at(added_ns, before.call[remaining], np.minimum(host_ns, max_ns)[groups[remaining]])
    return after.changed(own_ns=after.own_ns + added_ns.astype(np.int64))


def without_kernels(ops: Ints) -> Change:
    """Remove kernels that a library launched on its own, with their launch calls.

    The host time before such a call belongs to the operator, which remains.
    """

    def change(program: ReplayProgram) -> ReplayProgram:
        changed = program.changed(removed=marked(program.removed, ops))
        used = np.zeros(len(changed.own_ns) + 1, np.bool_)
        used[changed.call[~changed.removed]] = True
        calls = np.unique(changed.call[ops])
        calls = calls[calls < len(changed.own_ns)]
        unused = calls[~used[calls] & (changed.wait[calls] == CallWait.NOTHING)]
        return changed.changed(own_ns=put(changed.own_ns, unused, 0))

    return change


def kernels_unseen(context: RuleContext) -> RuleNotApplicable | None:
    """Return why rules about kernels cannot be evaluated; None where they can."""
    if context.kernels.height:
        return None
    if context.ops.filter(pl.col("kind") == "graph").height:
        return RuleNotApplicable("CUDA graphs traced as one event: kernels not visible")
    return RuleNotApplicable("no kernels in the window")


def kernel_ns(context: RuleContext) -> int:
    """Sum the time of all kernels; at least 1."""
    return max(1, int(context.kernels["duration_ns"].sum()))


def marked_work(context: RuleContext, flags: Flags) -> pl.DataFrame:
    """Return the marked activities, by position in `GpuSchedule.ops`."""
    return context.ops.filter(pl.Series(flags))


def total_ns(rows: pl.DataFrame) -> int:
    """Sum the durations of activities."""
    return int(rows["duration_ns"].sum())


def time_evidence(
    context: RuleContext, rows: pl.DataFrame, metric: str
) -> tuple[Evidence, Evidence]:
    """Return the time of kernels per step, and its share of kernel time."""
    ns = total_ns(rows)
    return (
        context.evidence(metric, ns, "ns", "Time in these kernels"),
        Evidence("gpu_share", ns / kernel_ns(context), "share", "Share of kernel time"),
    )


def launch_ns(context: RuleContext, like: pl.DataFrame | None = None) -> float:
    """Return the median host time from one launch to the next; 0 where it is not known.

    `like` restricts it to the phases of these kernels: an optimizer's loop is faster than a forward
    pass through modules.
    """
    launched = context.kernels.filter(pl.col("call").is_not_null())
    if like is not None:
        phases = like["phase"].unique().implode()
        launched = launched.filter(pl.col("phase").is_in(phases, nulls_equal=True))
    call = launched["call"].unique().sort().to_numpy()
    calls = context.schedule.calls
    call = call[np.argsort(calls.host_thread[call], kind="stable")]
    since_ns = np.diff(calls.end_ns[call])
    since_ns = since_ns[(np.diff(calls.host_thread[call]) == 0) & (since_ns <= MAX_HOST_TIME_NS)]
    return float(np.median(since_ns)) if len(since_ns) else 0.0


def locations_of(context: RuleContext, rows: pl.DataFrame) -> tuple[FindingLocation, ...]:
    """Return where kernels come from, and the kernels."""
    return largest(
        *called_from(context, rows).values(),
        summed_locations(rows, "module", "module"),
        summed_locations(rows, "kernel", "label"),
    )


def main_source_phrase(context: RuleContext, rows: pl.DataFrame) -> str:
    """Return where most of the time comes from: " in `attention`"; or nothing."""
    sources = {**called_from(context, rows), "module": summed_locations(rows, "module", "module")}
    for kind in ("range", "module", "operator", "site"):
        for source in sources[kind][:1]:
            if (source.ns or 0) * 2 >= total_ns(rows):
                return f" in {quoted_name(source.name)}"
    return ""


_MIN_THREAD_SHARE = 0.1
"""Backward kernels of a thread, of those of the first, from which on it runs the backward pass."""
_BACKWARD_KERNELS = r"(?i)bwd|backward|dgrad|wgrad"


@memoize
def backward_threads(context: RuleContext) -> list[int]:
    """Return the threads that launch backward kernels, the one with most of them first.

    PyTorch runs the backward pass in threads of its own, one for each GPU.
    """
    threads = context.calls.select("call", "thread")
    backward = context.kernels.filter(pl.col("label").str.contains(_BACKWARD_KERNELS))
    by_thread = backward.join(threads, on="call").group_by("thread").len()
    ranked = by_thread.sort("len", "thread", descending=[True, False])
    return ranked.filter(pl.col("len") >= _MIN_THREAD_SHARE * pl.col("len").max())[
        "thread"
    ].to_list()


# Small grids --------------------------------------------------------------------------------------


MAX_BLOCKS_PER_SM = 0.5
"""Blocks per SM up to which a grid is small."""
FIXED_KERNEL_NS = 10_000
"""Time of a kernel however many blocks it has."""
THREADS_TO_FILL_SM = 1_024
"""Threads that keep an SM busy, half of what it holds: with fewer, one block waits for memory most
of the time, and more blocks would hide that latency. GEMMs keep it busy with fewer."""
SPREAD = 0.05
"""Least part of the time that remains. One SM can use up to a fortieth of the memory bandwidth of a
large GPU, and small kernels are bound by latency, which remains."""
MIN_LAYOUT_SHARE = 0.02
"""Part of the time of all kernels that layout changes take from which on they are a cause."""
# These use few blocks on purpose, or finish a larger kernel.
_ON_PURPOSE = ("communication",)
_SERVES = r"split-k|epilogue|setup|combine|finali[sz]e|init_device"
_BY_CHANNEL = r"^batch_norm"
_IN_TILES = ("matmul", "convolution", "attention")


def sm_count(context: RuleContext) -> int | None:
    """Return the number of SMs of the GPU, from the capture or the table of GPUs."""
    rows = context.trace.table("devices", ["device", "sm_count"])
    counts = rows.filter(pl.col("device") == context.device)["sm_count"].drop_nulls()
    if len(counts) and counts[0]:
        return int(counts[0])
    return None if context.gpu is None else context.gpu.sm_count


def small_grids(context: RuleContext, sms: int) -> pl.DataFrame:
    """Return long kernels with few blocks that run alone on the GPU."""
    # Kernels are in order of start.
    before = pl.col("end_ns").cum_max().shift(1).fill_null(-1)
    after = pl.col("start_ns").shift(-1)
    alone = (pl.col("start_ns") >= before) & (after >= pl.col("end_ns")).fill_null(value=True)
    on_gpu = context.kernels.filter(pl.col("device") == context.device)
    return on_gpu.filter(alone).filter(
        pl.col("blocks") <= MAX_BLOCKS_PER_SM * sms,
        pl.col("duration_ns") > FIXED_KERNEL_NS,
        ~pl.col("category").is_in(_ON_PURPOSE),
        ~pl.col("label").str.to_lowercase().str.contains(_SERVES),
    )


def left_on_all(rows: pl.DataFrame, sms: int) -> Reals:
    """Return the part of each kernel's time that remains on all SMs."""
    time_ns = rows["duration_ns"].to_numpy()
    busy = (pl.col("threads") / THREADS_TO_FILL_SM).clip(upper_bound=1).fill_null(1.0)
    busy = pl.when(pl.col("category").is_in(_IN_TILES)).then(1.0).otherwise(busy)
    used = rows.select(pl.col("blocks") / sms * busy).to_series().to_numpy()
    spread = np.maximum(used, SPREAD)
    remaining: Reals = (FIXED_KERNEL_NS + (time_ns - FIXED_KERNEL_NS) * spread) / time_ns
    return remaining


def norms_by_channel(context: RuleContext, layout: Flags) -> pl.DataFrame:
    """Return batch normalizations that have a block for each of few channels due to their layout.

    With channels first, their kernels have a block per channel. With channels last, they divide the
    pixels as well. Where a library transposes tensors around convolutions (`layout`, by position in
    `schedule.ops`), they are channels first.
    """
    sms, transposes = sm_count(context), marked_work(context, layout)
    if sms is None or total_ns(transposes) < MIN_LAYOUT_SHARE * kernel_ns(context):
        return context.kernels.clear()
    return small_grids(context, sms).filter(pl.col("label").str.contains(_BY_CHANNEL))


# Repeated launches --------------------------------------------------------------------------------


MIN_REPEATED_SHARE = Threshold(
    0.5, "share of the launches that most steps must repeat for a CUDA graph to pay off"
)
MIN_LAUNCHES_PER_STEP = Threshold(10, "launches per step from which a CUDA graph pays off")
MAX_FEW_LAUNCH_NS = Threshold(
    50_000,
    "ns of host time per launch up to which steps of fewer launches are bound by these: operators "
    "of frameworks take tens of µs, more is other host work",
)
GRAPH_GAP_NS = Threshold(
    500,
    "ns between kernels of a graph, assumed: 1,000 to 1,400 ns were measured between single "
    "launches; GPUs before Hopper and their drivers were not measured",
)
HOPPER_GRAPH_GAP_NS = Threshold(
    150,
    "ns between kernels of a graph on Hopper and later GPUs: 130 ns were measured on an H200, step "
    "times of graphs there imply 80 to 150 ns; later GPUs are assumed to be alike",
)
_HOPPER = (9, 0)
_MIN_REPETITIONS = 3
"""Runs of a kernel from which on it counts as repeated, where no steps are known."""


def graph_gap_ns(context: RuleContext) -> int:
    """Return the gap between kernels of a graph on this GPU."""
    capability = None if context.gpu is None else context.gpu.compute_capability
    measured = capability is not None and capability >= _HOPPER
    return int((HOPPER_GRAPH_GAP_NS if measured else GRAPH_GAP_NS).value)


@dataclass(frozen=True, slots=True)
class LaunchRepetition:
    """How similar the steps of a program are, in kernels that no graph launches."""

    kernels: int
    """Launched without a graph, in the sample."""
    repeated: float
    """Share of them that most steps have: the same kernel with the same grid."""
    alike: float | None
    """Share of steps with the same sequence of kernels; None with fewer than two steps."""

    @property
    def repeats_enough(self) -> bool:
        """Whether enough kernels repeat for a graph."""
        return self.repeated >= MIN_REPEATED_SHARE.value


@memoize
def repetition(context: RuleContext) -> LaunchRepetition:
    """Compare the kernels of the steps."""
    rows = context.kernels.filter(~pl.col("in_graph")).select("name", "blocks", "step")
    if rows.is_empty():
        return LaunchRepetition(0, 0.0, None)
    codes = rows.select(pl.struct("name", "blocks").rank("dense").alias("code"), "step")
    if context.steps < 2:
        repeated = codes.select((pl.len().over("code") >= _MIN_REPETITIONS).mean()).item()
        return LaunchRepetition(rows.height, float(repeated), None)
    in_most_steps = pl.col("step").n_unique().over("code") > context.steps / 2
    repeated = codes.select(in_most_steps.mean()).item()
    sequences = (
        codes.drop_nulls("step")
        .with_columns(pl.int_range(pl.len()).over("step").alias("place"))
        .group_by("step")
        .agg(pl.len(), pl.struct("code", "place").hash().sum().alias("sequence"))
    )
    counts = sequences.group_by("len", "sequence").len("steps")["steps"]
    most_frequent = float(counts.max() or 0)  # type: ignore[arg-type]
    return LaunchRepetition(rows.height, float(repeated), most_frequent / context.steps)
