"""A diagnosis as tables: the overview that comes first, and every finding as a row."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.result import Field, Fmt, TableResult

if TYPE_CHECKING:
    from gpusight.findings.finding import Finding
    from gpusight.findings.kernels.diagnosis import Diagnosis, KernelGroup

_OVERVIEW_FIELDS = (
    Field("kernel", "Kernel", Fmt.NAME, "Kernel, its name made short"),
    Field("launches", "N", Fmt.COUNT, "Launches of it in this shape"),
    Field("time_ns", "Time", Fmt.TIME, "Time of them all"),
    Field("share", "Share", Fmt.SHARE, "Part of the time of all kernels", shown=False),
    Field("finding", "First finding", Fmt.TEXT, "The rule with the most time to give back"),
    Field("speedup", "Gain", Fmt.TEXT, "How many times faster with the fix"),
    Field("saved_ns", "Saves", Fmt.TIME, "Time that the fix gives back, over the report"),
    Field("confidence", "Confidence", Fmt.TEXT, "How far to trust the estimate", shown=False),
)
FINDING_FIELDS = (
    Field("launch", "Launch", Fmt.ID, "The profiler's number of the launch"),
    Field("kernel", "Kernel", Fmt.NAME, "Kernel name"),
    Field("duration_ns", "Time", Fmt.TIME, "Time that the launch took"),
    Field("rank", "Rank", Fmt.ID, "1 for the first finding of the launch"),
    Field("rule", "Rule", Fmt.TEXT, "Identifier of the rule"),
    Field("speedup", "Gain", Fmt.REAL, "How many times faster with the fix"),
    Field("saved_ns", "Saves", Fmt.TIME, "Time that the fix gives back"),
    Field("confidence", "Confidence", Fmt.TEXT, "`high`, `medium` or `low`"),
    Field("title", "What was seen", Fmt.TEXT, "What was seen"),
    Field("estimate", "Estimate", Fmt.TEXT, "How the gain was estimated"),
)
AT_ROOF = "at roof"
NO_GAIN = 1.005
"""Below this a gain is none."""
ROOFS = ("memory-bound", "compute-bound")
NOTHING = "nothing found"


def overview(diagnosis: Diagnosis) -> TableResult:
    """Give one row for each kernel and shape, the one with the most to give back first."""
    whole = diagnosis.duration_ns
    rows = [_row(group, whole) for group in diagnosis.groups]
    schema = {
        "kernel": pl.String,
        "launches": pl.Int64,
        "time_ns": pl.Float64,
        "share": pl.Float64,
        "finding": pl.String,
        "speedup": pl.String,
        "saved_ns": pl.Float64,
        "confidence": pl.String,
    }
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return TableResult(diagnosis.command, diagnosis.title, _OVERVIEW_FIELDS, frame)


def _row(group: KernelGroup, whole: float) -> tuple[object, ...]:
    share = group.duration_ns / whole if whole else None
    time = group.duration_ns or None
    lead = (group.label, len(group.kernels), time, share)
    if not group.findings:
        return (*lead, NOTHING, None, None, None)
    first = group.findings[0]
    return (*lead, first.rule, gain(first), _saved(first), first.confidence.value)


def _saved(finding: Finding) -> float | None:
    return None if (finding.speedup or 1.0) < NO_GAIN else finding.saved_ns


def gain(finding: Finding) -> str | None:
    """Show a gain as a factor with the digits that an estimate deserves: `1.40x`, `25x`."""
    speedup = finding.speedup
    if speedup is None:
        return None
    if speedup < NO_GAIN:
        return AT_ROOF if finding.rule in ROOFS else None
    digits = 2 if speedup < 1.995 else 1 if speedup < 9.95 else 0
    return f"{speedup:.{digits}f}x"


def every_finding(diagnosis: Diagnosis) -> TableResult:
    """Give one row for each finding of each launch."""
    rows = [
        (
            kernel.launch,
            kernel.name,
            kernel.duration_ns,
            rank,
            finding.rule,
            finding.speedup,
            finding.saved_ns,
            finding.confidence.value,
            finding.title,
            finding.estimate,
        )
        for kernel in diagnosis.kernels
        for rank, finding in enumerate(kernel.findings, 1)
    ]
    texts = {"kernel", "rule", "confidence", "title", "estimate"}
    schema = {
        f.key: pl.String if f.key in texts else pl.Int64 if f.fmt is Fmt.ID else pl.Float64
        for f in FINDING_FIELDS
    }
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return TableResult("findings", "Findings", FINDING_FIELDS, frame)
