"""A timeline's diagnosis as tables: every finding as a row, and kernels that were measured too."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import polars as pl

from gpusight.render.diagnosis.tables import NOTHING, gain
from gpusight.result import Field, Fmt, TableResult

if TYPE_CHECKING:
    from gpusight.findings.joined import JoinedDiagnosis, TimedKernel
    from gpusight.findings.timeline.diagnosis import TimelineDiagnosis

TIMELINE_FINDING_FIELDS = (
    Field("rank", "Rank", Fmt.ID, "1 for the finding that gives most back"),
    Field("rule", "Rule", Fmt.TEXT, "Identifier of the rule"),
    Field("recoverable_ns", "Gives back", Fmt.TIME, "Time of the window, when it alone is fixed"),
    Field("share", "Share", Fmt.SHARE, "The same as a part of the window"),
    Field("recoverable_ns_per_step", "A step", Fmt.TIME, "The same for a step"),
    Field("after_above_ns", "After above", Fmt.TIME, "Time of the window, once those above are"),
    Field("confidence", "Confidence", Fmt.TEXT, "`high`, `medium` or `low`"),
    Field("robust", "Robust", Fmt.FLAG, "The rank stays without what the profiler adds"),
    Field("title", "What was seen", Fmt.TEXT, "What was seen"),
    Field("fix", "Fix", Fmt.TEXT, "What to do"),
    Field("estimate", "Estimate", Fmt.TEXT, "How the time was estimated"),
)
_KERNEL_FIELDS = (
    Field("kernel", "Kernel", Fmt.NAME, "Kernel, its name made short"),
    Field("time_ns", "A step", Fmt.TIME, "Its time in a step of the timeline, or in all of it"),
    Field("share", "Share", Fmt.SHARE, "Part of the window"),
    Field("calls", "N", Fmt.COUNT, "Launches of it in the window", shown=False),
    Field("finding", "First finding", Fmt.TEXT, "The rule with the most time to give back"),
    Field("speedup", "Gain", Fmt.TEXT, "How many times faster with the fix"),
    Field("saved_ns", "Saves", Fmt.TIME, "GPU time of a step that the fix gives back"),
)
_TYPES = {
    Fmt.ID: pl.Int64,
    Fmt.COUNT: pl.Int64,
    Fmt.FLAG: pl.Boolean,
    Fmt.TEXT: pl.String,
    Fmt.NAME: pl.String,
}


def every_timeline_finding(diagnosis: TimelineDiagnosis) -> TableResult:
    """Give one row for each finding."""
    keys = [f.key for f in TIMELINE_FINDING_FIELDS]
    documents = (finding.document() for finding in diagnosis.findings)
    rows = [{"rank": rank} | one for rank, one in enumerate(documents, 1)]
    data = [[row[key] for key in keys] for row in rows]
    return _table("findings", "Findings", TIMELINE_FINDING_FIELDS, data)


def measured_kernels(joined: JoinedDiagnosis) -> TableResult:
    """Give one row for each measured kernel of the timeline."""
    rows = [_kernel(joined, kernel) for kernel in joined.kernels]
    fields: tuple[Field, ...] = _KERNEL_FIELDS
    if not joined.timeline.steps:
        fields = tuple(replace(f, label="Time") if f.key == "time_ns" else f for f in fields)
    return _table("kernels", "Its kernels, as Nsight Compute measured them", fields, rows)


def _kernel(joined: JoinedDiagnosis, kernel: TimedKernel) -> list[object]:
    window, steps = joined.timeline.focus.length_ns, max(1, joined.timeline.steps)
    share = kernel.time_ns / window if window else None
    lead = [kernel.group.label, kernel.time_ns / steps, share, kernel.calls]
    if kernel.finding is None:
        return [*lead, NOTHING, None, None]
    saved = kernel.saved_ns / steps
    return [*lead, kernel.finding.rule, gain(kernel.finding), saved or None]


def _table(
    command: str, title: str, fields: tuple[Field, ...], rows: list[list[object]]
) -> TableResult:
    schema = {f.key: _TYPES.get(f.fmt, pl.Float64) for f in fields}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return TableResult(command, title, fields, frame)
