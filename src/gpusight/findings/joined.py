"""A timeline's diagnosis with what Nsight Compute measured of its kernels.

The timeline says what holds the program back, and how much of a step each kernel takes; the report
says why a kernel takes so long. Its findings are weighed by the time in the timeline.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight import units
from gpusight.analyses.join.match import NEEDS, ORDER, cover, in_launch_order
from gpusight.analyses.select import EVERYTHING, Scope

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusight.analyses.select import Selection
    from gpusight.findings.finding import Finding
    from gpusight.findings.kernels.diagnosis import Diagnosis, KernelGroup
    from gpusight.findings.timeline.diagnosis import TimelineDiagnosis
    from gpusight.model.trace import Trace


@dataclass(frozen=True, slots=True)
class TimedKernel:
    """A measured kernel, with its time in the window of a timeline."""

    group: KernelGroup
    calls: int
    time_ns: float

    @property
    def finding(self) -> Finding | None:
        """The finding that gives most back; None where there is none."""
        return self.group.findings[0] if self.group.findings else None

    @property
    def saved_ns(self) -> float:
        """Time of the window that the fix of its first finding gives back, on the GPU."""
        speedup = self.finding.speedup if self.finding else None
        return 0.0 if speedup is None else self.time_ns * (1 - 1 / speedup)

    def document(self, window_ns: int, steps: int) -> dict[str, Any]:
        """Give it as plain objects, for JSON."""
        return {
            "name": self.group.name,
            "label": self.group.label,
            "calls": self.calls,
            "time_ns": self.time_ns,
            "share": self.time_ns / window_ns if window_ns else None,
            "time_ns_per_step": self.time_ns / steps if steps else None,
            "gpu_saved_ns": self.saved_ns,
            "launches": [k.launch for k in self.group.kernels],
            "findings": [f.document() for f in self.group.findings],
        }


@dataclass(frozen=True)
class JoinedDiagnosis:
    """What holds a program back, and what holds its kernels up."""

    timeline: TimelineDiagnosis
    report: Diagnosis
    kernels: tuple[TimedKernel, ...]
    """Measured kernels that take time in the window, those with the most to give back first."""

    @property
    def title(self) -> str:
        """What it is about."""
        return self.timeline.title

    @property
    def meta(self) -> Mapping[str, Any]:
        """What is known of the timeline as a whole."""
        return self.timeline.meta

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know of either capture, and of how they fit together."""
        return self.timeline.notes

    def document(self) -> dict[str, Any]:
        """Give the timeline's document, with the measured kernels."""
        window_ns, steps = self.timeline.focus.length_ns, self.timeline.steps
        kernels = [kernel.document(window_ns, steps) for kernel in self.kernels]
        return self.timeline.document() | {"kernels": kernels}

    def with_warnings(self, warnings: Sequence[str]) -> JoinedDiagnosis:
        """Say at the top why it may be less than the whole truth."""
        return replace(self, timeline=self.timeline.with_warnings(warnings))


def join_diagnoses(
    timeline: TimelineDiagnosis,
    report: Diagnosis,
    traces: tuple[Trace, Trace],
    selection: Selection = EVERYTHING,
) -> JoinedDiagnosis:
    """Weigh the kernels of a report by their time in the window of a timeline; `traces` in order.

    A kernel of the timeline is told by the measured launch of its name, grid and block. Only the
    GPU that was judged counts.
    """
    focus = timeline.focus
    inside = _told(*traces, selection).filter(
        pl.col("start_ns").is_between(focus.start_ns, focus.end_ns, "left"),
        # The window is of one GPU; those of several would sum to more than it.
        pl.col("device").is_null() | (pl.col("device") == timeline.meta.get("device")),
    )
    kernels = _timed(report.groups, inside)
    covered, every = (
        float(frame["time_ns"].sum()) for frame in (inside.drop_nulls("launch"), inside)
    )
    notes = (*report.notes, *_notes(report, kernels, covered, every))
    told = (*timeline.notes, *(f"the report: {note}" for note in notes))
    return JoinedDiagnosis(replace(timeline, notes=told), report, kernels)


def _told(timeline: Trace, report: Trace, selection: Selection) -> pl.DataFrame:
    """Give the kernels of a timeline with the number of the measured launch that tells of each."""
    columns = list(dict.fromkeys((*NEEDS, *ORDER, "start_ns", "end_ns", "device")))
    kernels = in_launch_order(Scope(timeline, selection).gpu("kernels", columns))
    measured = report.table("profiles", ["launch", "kind", *NEEDS])
    measured = measured.filter(pl.col("kind").cast(pl.String) == "kernel")
    row = cover(kernels.select(NEEDS), measured.select(NEEDS)).right
    launches = measured.select("launch").with_row_index("row").cast(pl.Int64)
    return kernels.select(
        "start_ns",
        "device",
        (pl.col("end_ns") - pl.col("start_ns")).alias("time_ns"),
        pl.Series("row", row),
    ).join(launches, on="row", how="left", maintain_order="left")


def _timed(groups: Sequence[KernelGroup], kernels: pl.DataFrame) -> tuple[TimedKernel, ...]:
    """Add up by group what the kernels took that its launches tell of."""
    by_launch = kernels.group_by("launch").agg(pl.col("time_ns").sum(), pl.len().alias("calls"))
    sums = {launch: (time, calls) for launch, time, calls in by_launch.iter_rows()}
    timed = []
    for group in groups:
        own = [sums.get(kernel.launch, (0, 0)) for kernel in group.kernels]
        time, calls = sum(one[0] for one in own), sum(one[1] for one in own)
        if calls:
            timed.append(TimedKernel(group, calls, float(time)))
    return tuple(sorted(timed, key=lambda k: (-k.saved_ns, -k.time_ns)))


def _notes(
    report: Diagnosis, kernels: Sequence[TimedKernel], covered: float, every: float
) -> list[str]:
    if not kernels:
        return ["it measured no kernel of the timeline: are they of the same program?"]
    notes = []
    if every and covered < every:
        share = units.format_share(covered / every)
        notes.append(f"it tells of {share} of the kernel time in the window")
    unused = len(report.groups) - len(kernels)
    if unused:
        notes.append(f"{unused:,} of its kernels take no time in the window: not shown")
    return notes
