"""dependency-stall: work launched in time that waits for another stream or a host function."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analyses.replay.dependencies import queues_of_streams
from gpusight.analyses.schedule.schedule import NONE
from gpusight.findings.finding import Confidence, Evidence
from gpusight.findings.timeline import holdups
from gpusight.findings.timeline.framework import framework_of
from gpusight.findings.timeline.host import called_from
from gpusight.findings.timeline.rule import Absent, Found, Rule
from gpusight.findings.timeline.texts import by_step, largest, of_each_step, places, times
from gpusight.findings.verdict import CLEAN, Limit
from gpusight.units import format_share

if TYPE_CHECKING:
    from gpusight.findings.timeline.holdups import Holdups
    from gpusight.findings.timeline.rule import Verdict
    from gpusight.findings.timeline.timeline import Timeline

LEAST = Limit(0.02, "part of the time that launched work is held up; below, it is noise")
EXPLAINED = Limit(
    0.5, "part of that time whose work waited for work that the capture shows, to blame streams"
)


class DependencyStall(Rule):
    """Work held up by another stream, or by a function of the host in its own."""

    id = "dependency-stall"
    detects = (
        "Looks for time in which a GPU is idle although its next work has been launched: it waits "
        "for an event, for work of another stream or GPU, or for a function of the host in its "
        "stream. Also for two streams that wait for each other in turns with kernels small enough "
        "to run at once."
    )
    why = (
        "Streams that wait for each other run one after the other. The GPU has nothing to do from "
        "the end of what is waited for until the waiting stream goes on, and all the time that the "
        "other GPU takes."
    )
    fix = (
        "Record the event right behind the work that produces the data, wait for it right before "
        "the work that needs it, and drop waits that nothing needs."
    )
    code = """\
produced = torch.cuda.Event()
with torch.cuda.stream(side):
    y = produce(x)
    produced.record(side)  # not behind everything else in `side`
independent(z)  # runs beside it
torch.cuda.current_stream().wait_event(produced)
consume(y)
"""
    afterwards = "`gpusight ledger` shows less `idle/queued`."
    misleads = (
        "Work of another program on the same GPU, which this capture does not show, delays "
        "launches in the same way; so do graphics and clock changes. A true dependency cannot be "
        "removed, only given something to run beside. Into which stream a host function was put "
        "is not recorded: work that began late behind one is taken to have waited for it."
    )
    estimate = (
        "Replay in which these pieces of work wait for no other stream and no host function: an "
        "upper bound, for a part of the waits is needed."
    )
    limits: ClassVar = {
        "LEAST": LEAST,
        "LONG_NS": holdups.LONG_NS,
        "EXPLAINED": EXPLAINED,
        "TURNS": holdups.TURNS,
        "ROOM": holdups.ROOM,
    }

    def check(self, timeline: Timeline) -> Verdict:
        """Look at the gaps that end with work launched before, and at streams that take turns."""
        if not np.any(timeline.schedule.ops.call != NONE):
            return Absent("no GPU work is linked to the call that launched it")
        least = LEAST.value * timeline.length_ns
        idle, turns = holdups.in_idle(timeline), holdups.in_turns(timeline)
        if turns.total_ns >= max(least, idle.total_ns):
            return _found(timeline, turns, _TURNS)
        if idle.total_ns < least:
            return CLEAN
        known = idle.only((idle.needs != NONE) | idle.function)
        if known.total_ns < EXPLAINED.value * idle.total_ns:
            share = format_share(idle.total_ns / max(1, timeline.length_ns))
            return Absent(
                f"launched work waited {share} of the time for nothing that the capture shows: "
                "another program on the GPU, or a wait that was not recorded"
            )
        most = known.ns[known.function].sum() * 2 > known.total_ns
        return _found(timeline, known, _FUNCTIONS if most else _STREAMS)


@dataclass(frozen=True)
class _Way:
    """How work is held up, in words."""

    title: str
    share: str
    confidence: str
    fix: str
    torch: str
    cuda: str


def _found(timeline: Timeline, held: Holdups, way: _Way) -> Found:
    rows = _rows(timeline, held)
    top = rows.group_by("by", maintain_order=True).agg(pl.col("queued_ns").sum())
    by = top.sort("queued_ns", descending=True)["by"][0]
    share = held.total_ns / max(1, timeline.length_ns)
    return Found(
        title=way.title.format(of_each_step(timeline, held.total_ns)),
        evidence=(
            Evidence("queued_share", share, "share", way.share.format(f"GPU {held.device}")),
            Evidence(
                "waits",
                len(held.op) / timeline.per_step,
                "",
                by_step(timeline, "Pieces of work held up"),
            ),
            Evidence("longest_ns", float(held.ns.max()), "ns", "Longest time of one of them"),
        ),
        confidence=Confidence.LOW,
        confidence_reason=way.confidence,
        change=held.change(timeline),
        fix=f"Most of it is {by}, {times(timeline, len(held.op))} in all. {way.fix}",
        code=framework_of(timeline.trace).choose(torch=way.torch, cuda=way.cuda),
        where=largest(
            places(rows, "kernel", "label", "queued_ns"),
            places(rows, "stream", "by", "queued_ns"),
            *called_from(timeline, rows, "queued_ns").values(),
        ),
    )


def _rows(timeline: Timeline, held: Holdups) -> pl.DataFrame:
    """Give the work that waited, with who waited for what in words."""
    names = dict(
        queues_of_streams(timeline.schedule)
        .select("queue", pl.col("stream").cast(pl.String))
        .rows()
    )
    queue = pl.col("queue").replace_strict(names, default="?", return_dtype=pl.String)
    every = timeline.ops.with_columns(queue.alias("stream"))
    first, second = every[held.op], every[np.maximum(held.needs, 0)]
    waiting = pl.format("stream {} ({}) waiting for ", first["stream"], first["label"])
    other = pl.format("stream {} ({})", second["stream"], second["label"])
    by_function = pl.lit(pl.Series(held.function))
    return first.with_columns(
        pl.Series("queued_ns", held.ns),
        (waiting + pl.when(by_function).then(pl.lit("a host function")).otherwise(other)).alias(
            "by"
        ),
    )


_BOUND = "an upper bound: which of the waits are needed cannot be seen"
_STREAMS = _Way(
    title="Launched work waits {} for other streams",
    share="Part of the time in which {} is idle and its next work is launched",
    confidence=_BOUND,
    fix=DependencyStall.fix,
    torch=DependencyStall.code,
    cuda="""\
produce<<<grid, block, 0, side>>>(y);
cudaEventRecord(produced, side);  // not behind all else in `side`
independent<<<grid, block, 0, main>>>(z);  // runs beside it
cudaStreamWaitEvent(main, produced, 0);
consume<<<grid, block, 0, main>>>(y);
""",
)
_TURNS = _Way(
    title="Streams take turns for {}, with kernels that leave SMs empty",
    share="Part of the time in which launched work of {} waits for a kernel of few blocks",
    confidence=f"{_BOUND}, and beside each other kernels share caches and memory",
    fix="Two such kernels fit on the GPU at once. Drop the waits that no data needs, and wait only "
    "where the streams meet.",
    torch="""\
with torch.cuda.stream(first):
    a = chain_a(x)  # all of it, without waiting for `second`
with torch.cuda.stream(second):
    b = chain_b(y)
torch.cuda.current_stream().wait_stream(first)  # once, where both are needed
torch.cuda.current_stream().wait_stream(second)
""",
    cuda="""\
for (int i = 0; i < n; ++i) a<<<grid, block, 0, first>>>(x);
for (int i = 0; i < n; ++i) b<<<grid, block, 0, second>>>(y);
cudaEventRecord(done, second);
cudaStreamWaitEvent(first, done, 0);  // once, where both are needed
""",
)
_FUNCTIONS = _Way(
    title="Launched work waits {} for host functions in its stream",
    share="Part of the time in which {} is idle and its next work is launched",
    confidence="an upper bound: whether the work needs what the functions do cannot be seen, nor "
    "into which stream they were put",
    fix="The stream stands still while such a function runs, and the thread that runs it may have "
    "to wait for a processor or for the lock of Python. Put it into a stream of its own that waits "
    "for an event, or let a thread of the program wait for the event.",
    torch="""\
done.record()  # torch.cuda.Event(), behind the work
pool.submit(lambda: (done.synchronize(), report()))  # a thread, not the stream
""",
    cuda="""\
cudaEventRecord(done, compute);
cudaStreamWaitEvent(side, done, 0);
cudaLaunchHostFunc(side, report, data);  // `compute` goes on
""",
)
