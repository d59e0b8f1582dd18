"""SM, compute and memory utilization over time, from counters laid over a timeline."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import DURATION
from gpusight.analysis.counters.launch_quantities import DRAM_SHARE, SM_COUNT, SM_SHARE
from gpusight.analysis.join.launch_matching import NEEDS, NO_NAME, NO_SHAPE, LaunchCover, cover
from gpusight.analysis.orion.orion_build import OrionOptions, OrionRefusal, describe_launches
from gpusight.analysis.orion.orion_launches import COMMAND, SM_NEEDED, how_many
from gpusight.analysis.orion.orion_matching import (
    as_enum,
    differences,
    match_timeline,
    timeline_launches,
)
from gpusight.hardware.gpu_lookup import find_gpu
from gpusight.results import Composite, Fact, Field, Fmt, NotApplicable, TableResult

if TYPE_CHECKING:
    from gpusight.trace.intervals import Ints, Reals
    from gpusight.trace.trace import Trace


SERIES = ("sm_share", "compute_share", "memory_share")
LABELS = {"sm_share": "SMs", "compute_share": "compute", "memory_share": "memory"}
SERIES_FIELDS = (
    Field("start_ns", "From", Fmt.TIME, "Start of the interval"),
    Field("end_ns", "To", Fmt.TIME, "When it ends"),
    Field("sm_share", "SMs", Fmt.SHARE, "SMs that its kernels need, of those that there are"),
    Field("compute_share", "Compute", Fmt.SHARE, "SM throughput, as part of the peak"),
    Field("memory_share", "Memory", Fmt.SHARE, "DRAM throughput, as part of the peak"),
    Field("kernels", "Kernels", Fmt.COUNT, "Kernels that run; 0 when the GPU is idle"),
    Field("unknown", "Unknown", Fmt.COUNT, "Of them, those that were not measured"),
)
UNMEASURED_FIELDS = (
    Field("duration_ns", "Time", Fmt.TIME, "Time on the GPU"),
    Field("calls", "Calls", Fmt.COUNT, "Launches in the timeline"),
    Field("why", "Why", Fmt.TEXT, "What the report lacks"),
    Field("name", "Kernel", Fmt.NAME, "Name with template arguments"),
)
_UNITS = {"compute_share": "the SMs", "memory_share": "DRAM"}
_WHY = {NO_NAME: "not in the report", NO_SHAPE: "other grid or block in the report"}


@dataclass(frozen=True, slots=True)
class _Spans:
    """Intervals of the timeline in which the same kernels run."""

    edges: Ints
    values: dict[str, Reals]
    """A number for each interval; NaN where the report lacks it for a kernel that runs."""

    @property
    def lengths(self) -> Ints:
        return np.diff(self.edges)

    def average(self, key: str) -> float | None:
        """Average by time, idle time as 0; None where an interval is unknown."""
        window_ns = int(self.edges[-1] - self.edges[0])
        if not window_ns or np.isnan(self.values[key]).any():
            return None
        return float(self.values[key] @ self.lengths) / window_ns


def orion_utilization(
    ncu: Trace, nsys: Trace, options: OrionOptions, *, raw: Trace | None = None
) -> Composite | OrionRefusal | NotApplicable:
    """Lay the launches of a report over a timeline of the same program."""
    described = describe_launches(ncu, raw, options)
    if isinstance(described, (OrionRefusal, NotApplicable)):
        return described
    launches, notes = described
    kernels = timeline_launches(nsys, options.selection)
    if isinstance(kernels, NotApplicable):
        return kernels
    timeline, device_notes = _busiest_device(kernels)
    gpu = find_gpu(options.limits.gpu) if options.limits.gpu else None
    counts = launches[SM_COUNT.key].drop_nulls()
    sms = (gpu and gpu.sm_count) or (int(counts[0]) if len(counts) else None)
    if sms is None:
        reason = "the report lacks the number of SMs of the GPU"
        return NotApplicable(COMMAND, reason, "name the GPU, such as --gpu A100")
    covered = cover(timeline.select(NEEDS), launches.with_columns(as_enum(launches["name"])))
    if (covered.right < 0).all():
        unlike = differences(match_timeline(launches, timeline))
        assert unlike is not None, "nothing matches"
        return OrionRefusal("no kernel of the timeline is in the report", unlike)
    values = _values(launches, covered, sms)
    all_notes = [*notes, *device_notes]
    lacking = {unit: int(np.isnan(values[key]).sum()) for key, unit in _UNITS.items()}
    units = " and ".join(unit for unit, count in lacking.items() if count)
    if units:
        lacks = max(lacking.values())
        count = "one kernel" if lacks == 1 else f"{lacks:,} kernels"
        note = f"the report lacks the throughput of {units} for {count}, so there is no average"
        all_notes.append(f"{note}; collect: --section {SM_SHARE.section}")
    return _answer(_spans(timeline, values), timeline, covered, tuple(all_notes))


def _busiest_device(timeline: pl.DataFrame) -> tuple[pl.DataFrame, tuple[str, ...]]:
    """Keep the GPU with the most kernel time: shares of several do not add up."""
    busy = (
        timeline.group_by("device", maintain_order=True)
        .agg(DURATION.sum().alias("ns"))
        .sort("ns", descending=True)
    )
    if busy.height < 2:
        return timeline, ()
    device = busy["device"][0]
    note = f"only GPU {device} of {busy.height}, the busiest, is shown; --device N chooses another"
    return timeline.filter(pl.col("device") == device), (note,)


def _values(launches: pl.DataFrame, covered: LaunchCover, sms: int) -> dict[str, Reals]:
    """Return the shares of each kernel of the timeline; 0 where it was not measured.

    NaN where it was measured, but not that share.
    """
    shares = launches.select(
        (pl.col(SM_NEEDED) / sms).clip(0, 1).alias("sm_share"),
        pl.col(SM_SHARE.key).alias("compute_share"),
        pl.col(DRAM_SHARE.key).alias("memory_share"),
    )
    known = covered.right >= 0
    rows = np.maximum(covered.right, 0)
    values = {key: np.where(known, shares[key].to_numpy()[rows], 0.0) for key in SERIES}
    ones = np.ones(len(known))
    return {**values, "kernels": ones, "unknown": np.where(known, 0.0, ones)}


def _spans(timeline: pl.DataFrame, values: dict[str, Reals]) -> _Spans:
    """Add up what runs at the same time; a share is at most 1."""
    starts, ends = timeline["start_ns"].to_numpy(), timeline["end_ns"].to_numpy()
    edges = np.unique(np.concatenate([starts, ends]))
    first, last = np.searchsorted(edges, starts), np.searchsorted(edges, ends)

    def running(each: Reals) -> Reals:
        change = np.zeros(len(edges))
        np.add.at(change, first, each)
        np.add.at(change, last, -each)
        total = np.cumsum(change)[:-1]
        # A sum of fractions that has come back to 0 may leave a rounding error.
        total[np.abs(total) < 1e-9] = 0.0
        return total

    summed = {}
    for key, each in values.items():
        total = running(np.nan_to_num(each))
        unknown = running(np.isnan(each).astype(np.float64)) > 0
        summed[key] = np.clip(total, 0, 1) if key in SERIES else np.round(total)
        summed[key][unknown] = np.nan
    return _Spans(edges, summed)


def _answer(
    spans: _Spans, timeline: pl.DataFrame, covered: LaunchCover, notes: tuple[str, ...]
) -> Composite:
    known = covered.right >= 0
    unmeasured = _unmeasured(timeline, covered)
    unmeasured_ns = int(unmeasured["duration_ns"].sum())
    busy = int(spans.lengths[spans.values["kernels"] > 0].sum())
    window = int(spans.edges[-1] - spans.edges[0])
    meaning = "Average over the window, by time, idle time as idle; null when not measured"
    averages = (
        Fact(f"{key}_average", f"Average {label}", spans.average(key), Fmt.SHARE, meaning)
        for key, label in LABELS.items()
    )
    title = "Kernels that were not measured"
    series = pl.DataFrame(
        {
            "start_ns": spans.edges[:-1],
            "end_ns": spans.edges[1:],
            **{key: pl.Series(spans.values[key], nan_to_null=True) for key in SERIES},
            **{key: spans.values[key].astype(np.int64) for key in ("kernels", "unknown")},
        }
    )
    sections = [TableResult("series", "Over time", SERIES_FIELDS, series)]
    if unmeasured.height:
        sections.insert(0, TableResult("unmeasured", title, UNMEASURED_FIELDS, unmeasured))
    return Composite(
        COMMAND,
        "Utilization over time",
        (
            Fact("window_ns", "Window", window, Fmt.TIME, "First kernel's start to last one's end"),
            Fact("busy_ns", "GPU busy", busy, Fmt.TIME, "Time in which a kernel runs"),
            *averages,
            Fact("kernels", "Kernels", timeline.height, Fmt.COUNT, "Kernels in the timeline"),
            Fact("measured", "Measured", int(known.sum()), Fmt.COUNT, "Those in the report"),
            Fact(
                "unmeasured_ns",
                "Not measured",
                unmeasured_ns,
                Fmt.TIME,
                "Time of kernels without a match in the report; counted as zero utilization",
            ),
        ),
        tuple(sections),
        meta={"action": "plot"},
        notes=(*notes, *_notes(timeline, covered, unmeasured_ns)),
    )


def _unmeasured(timeline: pl.DataFrame, covered: LaunchCover) -> pl.DataFrame:
    """List the kernels that have no launch in the report, the most expensive first."""
    return (
        timeline.select(
            pl.col("name").cast(pl.String),
            DURATION,
            pl.Series("why", [_WHY.get(why) for why in covered.left_reason], pl.String),
        )
        .filter(pl.Series(covered.right < 0))
        .group_by("name", "why")
        .agg(pl.col("duration_ns").sum(), pl.len().cast(pl.Int64).alias("calls"))
        .sort("duration_ns", "name", "why", descending=[True, False, False])
        .select([f.key for f in UNMEASURED_FIELDS])
    )


def _notes(timeline: pl.DataFrame, covered: LaunchCover, unmeasured_ns: int) -> list[str]:
    notes = []
    if covered.occurrences:
        times = "once" if covered.occurrences == 1 else f"{covered.occurrences:,} times"
        notes.append(f"the whole sequence of the report occurs {times} in the timeline")
    outside = int(((covered.right >= 0) & ~covered.in_sequence).sum())
    if outside:
        notes.append(
            f"{outside:,} of {timeline.height:,} kernels are outside that sequence: a launch of "
            "the same kernel, grid and block stands for each"
            if covered.occurrences
            else f"the sequences differ: {outside:,} of {timeline.height:,} kernels take the "
            "values of the launch of the same kernel, grid and block in its place"
        )
    if unmeasured_ns:
        notes.append("averages are lower bounds: kernels that were not measured count as zero")
    absent = sum(bool(why) for why in covered.right_reason)
    if absent:
        notes.append(f"the timeline has nothing like {how_many(absent)} of the report")
    return notes
