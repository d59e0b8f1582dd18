"""dependency-stall: work that was launched in time and had to wait for another stream."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analyses.ledger.ledger import account
from gpusight.analyses.replay.changes import without_needs
from gpusight.analyses.replay.dependencies import queues_of_streams
from gpusight.analyses.schedule.schedule import NONE
from gpusight.findings.finding import Confidence, Evidence
from gpusight.findings.timeline.framework import framework_of
from gpusight.findings.timeline.host import called_from
from gpusight.findings.timeline.rule import Absent, Found, Rule
from gpusight.findings.timeline.texts import by_step, largest, of_each_step, places, times
from gpusight.findings.verdict import CLEAN, Limit
from gpusight.units import format_share

if TYPE_CHECKING:
    from gpusight.analyses.schedule.schedule import Ints
    from gpusight.findings.timeline.rule import Verdict
    from gpusight.findings.timeline.timeline import Timeline

LEAST = Limit(
    0.02, "part of the time that a GPU is idle although work for it is launched; below, it is noise"
)
LONG_NS = Limit(
    10_000, "ns; work of one stream follows its forerunner within a few microseconds anyway"
)
EXPLAINED = Limit(
    0.5, "part of that time whose work waited for work that the capture shows, to blame streams"
)


class DependencyStall(Rule):
    """Work held up by another stream."""

    id = "dependency-stall"
    detects = (
        "Looks for time in which a GPU is idle although its next work has been launched: it waits "
        "for an event, or for work of another stream or GPU."
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
        "removed, only given something to run beside."
    )
    estimate = (
        "Replay in which these pieces of work wait for no other stream: an upper bound, for a part "
        "of the waits is needed."
    )
    limits: ClassVar = {"LEAST": LEAST, "LONG_NS": LONG_NS, "EXPLAINED": EXPLAINED}

    def check(self, timeline: Timeline) -> Verdict:
        """Look at the gaps that end with work launched before, and at what that waited for."""
        if not np.any(timeline.schedule.ops.call != NONE):
            return Absent("no GPU work is linked to the call that launched it")
        device, ops, queued = _most_queued(timeline)
        total = int(queued.sum())
        if total < LEAST.value * timeline.length_ns:
            return CLEAN
        needs = timeline.replay.program.needs[ops]
        known = needs != NONE
        if queued[known].sum() < EXPLAINED.value * total:
            share = format_share(total / max(1, timeline.length_ns))
            return Absent(
                f"launched work waited {share} of the time for nothing that the capture shows: "
                "another program on the GPU, or a wait that was not recorded"
            )
        return _found(timeline, device, ops[known], needs[known], queued[known])


def _most_queued(timeline: Timeline) -> tuple[int, Ints, Ints]:
    """Find the GPU that was idle longest although work was launched: that work, and how long."""
    found = []
    for one in account(timeline.schedule, timeline.hosts):
        idle = np.flatnonzero(one.spans.gap >= 0)
        op = one.gaps.op[one.spans.gap[idle]]
        start = np.maximum(one.spans.start_ns[idle], one.gaps.launched_ns[one.spans.gap[idle]])
        waited = np.where(one.gaps.queued[one.spans.gap[idle]], one.spans.end_ns[idle] - start, 0)
        some = (op != NONE) & (waited >= LONG_NS.value)
        found.append((one.device, op[some], waited[some]))
    return max(found, key=lambda each: int(each[2].sum()))


def _found(timeline: Timeline, device: int, ops: Ints, needs: Ints, queued: Ints) -> Found:
    rows = _pairs(timeline, ops, needs, queued)
    total = int(queued.sum())
    top = rows.group_by("pair", maintain_order=True).agg(pl.col("queued_ns").sum())
    pair = top.sort("queued_ns", descending=True)["pair"][0]
    per_step = timeline.per_step
    return Found(
        title=f"Launched work waits {of_each_step(timeline, total)} for other streams",
        evidence=(
            Evidence(
                "queued_share",
                total / max(1, timeline.length_ns),
                "share",
                f"Part of the time in which GPU {device} is idle and its next work is launched",
            ),
            Evidence("waits", len(ops) / per_step, "", by_step(timeline, "Pieces of work held up")),
            Evidence(
                "longest_ns", float(queued.max()), "ns", "Longest time that the GPU waited at once"
            ),
        ),
        confidence=Confidence.LOW,
        confidence_reason="an upper bound: which of the waits are needed cannot be seen",
        change=(without_needs(ops),),
        fix=f"Most of it is {pair}, {times(timeline, len(ops))} in all. {DependencyStall.fix}",
        code=framework_of(timeline.trace).choose(torch=DependencyStall.code, cuda=_CUDA),
        where=largest(
            places(rows, "kernel", "label", "queued_ns"),
            places(rows, "stream", "pair", "queued_ns"),
            *called_from(timeline, rows, "queued_ns").values(),
        ),
    )


def _pairs(timeline: Timeline, ops: Ints, needs: Ints, queued: Ints) -> pl.DataFrame:
    """Give the work that waited, with who waited for whom in words."""
    names = dict(
        queues_of_streams(timeline.schedule)
        .select("queue", pl.col("stream").cast(pl.String))
        .rows()
    )
    queue = pl.col("queue").replace_strict(names, default="?", return_dtype=pl.String)
    every = timeline.ops.with_columns(queue.alias("stream"))
    first, second = every[ops], every[needs]
    return first.with_columns(
        pl.Series("queued_ns", queued),
        pl.format(
            "stream {} ({}) waiting for stream {} ({})",
            first["stream"],
            first["label"],
            second["stream"],
            second["label"],
        ).alias("pair"),
    )


_CUDA = """\
produce<<<grid, block, 0, side>>>(y);
cudaEventRecord(produced, side);  // not behind all else in `side`
independent<<<grid, block, 0, main>>>(z);  // runs beside it
cudaStreamWaitEvent(main, produced, 0);
consume<<<grid, block, 0, main>>>(y);
"""
