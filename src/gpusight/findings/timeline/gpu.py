"""What rules about kernels share: their time, their places, and when nothing can be told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.findings.finding import Evidence
from gpusight.findings.timeline.fusing import MOST_BEFORE_NS
from gpusight.findings.timeline.host import called_from
from gpusight.findings.timeline.rule import Absent
from gpusight.findings.timeline.texts import by_step, largest, places

if TYPE_CHECKING:
    from gpusight.analyses.replay.program import Flags
    from gpusight.findings.timeline.rule import Where
    from gpusight.findings.timeline.timeline import Timeline


def kernels_unseen(timeline: Timeline) -> Absent | None:
    """Say why nothing can be told of kernels, where that is so."""
    if timeline.kernels.height:
        return None
    if timeline.ops.filter(pl.col("kind") == "graph").height:
        return Absent("CUDA graphs were traced whole: their kernels are not visible")
    return Absent("no kernels ran in the judged part")


def kernel_ns(timeline: Timeline) -> int:
    """Add up the time of all kernels; at least 1."""
    return max(1, int(timeline.kernels["duration_ns"].sum()))


def chosen(timeline: Timeline, flags: Flags) -> pl.DataFrame:
    """Give the work that is marked, by position in `Schedule.ops`."""
    return timeline.ops.filter(pl.Series(flags))


def total_ns(rows: pl.DataFrame) -> int:
    """Add up the time of some work."""
    return int(rows["duration_ns"].sum())


def time_seen(timeline: Timeline, rows: pl.DataFrame, metric: str) -> tuple[Evidence, Evidence]:
    """Give the time of kernels a step, and the same as a part of GPU time."""
    ns = total_ns(rows)
    return (
        Evidence(metric, ns / timeline.per_step, "ns", by_step(timeline, "Time of these kernels")),
        Evidence("gpu_share", ns / kernel_ns(timeline), "share", "The same as a part of GPU time"),
    )


def launch_ns(timeline: Timeline, like: pl.DataFrame | None = None) -> float:
    """Measure the host's time from one launch to the next, median; 0 where it is not known.

    `like` restricts it to the phases that these kernels are in: an optimizer's loop is quicker than
    a forward pass through modules.
    """
    launched = timeline.kernels.filter(pl.col("call").is_not_null())
    if like is not None:
        phases = like["phase"].unique().implode()
        launched = launched.filter(pl.col("phase").is_in(phases, nulls_equal=True))
    call = launched["call"].unique().sort().to_numpy()
    calls = timeline.schedule.calls
    call = call[np.argsort(calls.lane[call], kind="stable")]
    since = np.diff(calls.end_ns[call])
    usual = since[(np.diff(calls.lane[call]) == 0) & (since <= MOST_BEFORE_NS)]
    return float(np.median(usual)) if len(usual) else 0.0


def places_of(timeline: Timeline, rows: pl.DataFrame) -> tuple[Where, ...]:
    """Name where kernels come from, and the kernels."""
    found = called_from(timeline, rows).values()
    return largest(*found, places(rows, "module", "module"), places(rows, "kernel", "label"))


def home_of(timeline: Timeline, rows: pl.DataFrame) -> str:
    """Name where most of the work comes from, within a sentence: " in `attention`"; or nothing."""
    found = {**called_from(timeline, rows), "module": places(rows, "module", "module")}
    for kind in ("range", "module", "operator", "site"):
        if found[kind] and (found[kind][0].ns or 0) * 2 >= total_ns(rows):
            return f" in `{found[kind][0].name}`"
    return ""
