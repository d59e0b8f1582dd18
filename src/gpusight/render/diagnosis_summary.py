"""What a timeline diagnosis says in every format: head, ledger, gains, verdict, and its tables."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from gpusight import units
from gpusight.render.cell_text import safe_text
from gpusight.render.explanation import NOTHING, gain_text
from gpusight.results import Field, Fmt, TableResult
from gpusight.rules.engine import MAX_REPLAY_ERROR
from gpusight.rules.rule import TimelineRule

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.analysis.ledger.device_ledger import DeviceLedger
    from gpusight.rules.diagnosis import JoinedDiagnosis, TimedKernel, TimelineDiagnosis
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import FindingLocation


MIN_NOTABLE_SHARE = 0.04
"""Findings below this part of the window are small: a sound program has some too."""
_MIN_SLICE_SHARE = 0.005
"""Parts of the ledger below this are summed up as the rest."""
_IDLE = "idle"
_COMPUTE = "compute"
REST = "the rest"
UNSURE = "The rank changes when what a profiler adds to each launch is taken off."
_MAIN_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class LedgerSlice:
    """A part of the window, as it is drawn."""

    name: str
    """`compute`, `copy/h2d`, `communication`, `idle/input` …, or the rest."""
    share: float

    @property
    def idle(self) -> bool:
        """The GPU had nothing to do."""
        return self.name.startswith(_IDLE)


def evaluated_device(diagnosis: TimelineDiagnosis) -> DeviceLedger | None:
    """Give the ledger of the GPU that was judged; None where no GPU worked."""
    devices = diagnosis.ledger.devices
    wanted = diagnosis.meta.get("device")
    return next((d for d in devices if d.device == wanted), devices[0] if devices else None)


def slices(device: DeviceLedger) -> list[LedgerSlice]:
    """Give the parts of the window, the largest first; all computing is one."""
    shares: defaultdict[str, float] = defaultdict(float)
    for entry in device.entries:
        group = entry.entry.split("/")[0]
        shares[_COMPUTE if group == _COMPUTE else entry.entry] += entry.share or 0.0
    return _largest(shares)


def computing(device: DeviceLedger) -> list[LedgerSlice]:
    """Give what the GPU computed, by category, the largest first."""
    entries = (e for e in device.entries if e.entry.startswith(f"{_COMPUTE}/"))
    return _largest({e.entry.split("/", 1)[1]: e.share or 0.0 for e in entries})


def _largest(shares: dict[str, float]) -> list[LedgerSlice]:
    ordered = sorted(shares.items(), key=lambda item: -item[1])
    shown = [LedgerSlice(name, share) for name, share in ordered if share >= _MIN_SLICE_SHARE]
    rest = sum(share for _, share in ordered if share < _MIN_SLICE_SHARE)
    return [*shown, LedgerSlice(REST, rest)] if rest > 0 else shown


def slice_texts(parts: list[LedgerSlice]) -> list[str]:
    """Write parts as `idle/input 79.9%`."""
    return [f"{part.name} {units.format_share(part.share)}" for part in parts]


def diagnosis_head(diagnosis: TimelineDiagnosis) -> str:
    """Say what was looked at: the capture, the GPU, the window, how busy it was."""
    name = Path(str(diagnosis.meta.get("path", ""))).name or "capture"
    facts = [diagnosis.meta.get("gpu"), window_text(diagnosis), *_busy_text(diagnosis)]
    return safe_text(f"{name}: {', '.join(str(fact) for fact in facts if fact)}")


def window_text(diagnosis: TimelineDiagnosis) -> str:
    """Say which time was looked at: `10 steps of 12.52 ms`."""
    length = units.format_time(diagnosis.step_ns)
    out = len(diagnosis.focus.left_out)
    without = f" ({out:,} left out)" if out else ""
    if not diagnosis.steps:
        return f"{length}, no steps known{without}"
    steps = "1 step" if diagnosis.steps == 1 else f"{diagnosis.steps:,} steps"
    return f"{steps} of {length}{without}"


def _busy_text(diagnosis: TimelineDiagnosis) -> Iterator[str]:
    device = evaluated_device(diagnosis)
    if device is None:
        return
    every = [device.busy_share for device in diagnosis.ledger.devices]
    if len(every) == 1:
        yield f"GPU busy {units.format_share(device.busy_share)}"
        return
    span = f"{units.format_share(min(every))} to {units.format_share(max(every))}"
    share = units.format_share(device.busy_share)
    yield f"GPU {device.device} busy {share} (all {len(every)}: {span})"


def timeline_verdict(diagnosis: TimelineDiagnosis) -> str:
    """Say that there is little or nothing to gain, and what the GPU does; empty where there is."""
    best = max((f.share or 0.0 for f in diagnosis.findings), default=0.0)
    if best >= MIN_NOTABLE_SHARE:
        return ""
    if not diagnosis.clean and not diagnosis.findings:
        return "No rule could be judged on this capture."
    doing = _activity(evaluated_device(diagnosis))
    if best:
        return f"Nothing gives back more than {units.format_share(best)} of the window{doing}."
    least = units.format_share(TimelineRule.min_share)
    return f"Nothing found that gives back {least} of the window or more{doing}."


def _activity(device: DeviceLedger | None) -> str:
    if device is None:
        return ""
    working = device.busy_share
    if working < _MAIN_SHARE:
        idle = [part for part in slices(device) if part.idle]
        return f", though the GPU is idle: {', '.join(slice_texts(idle))}"
    kinds = computing(device)[:2] or slices(device)[:1]
    kinds_text = ", ".join(slice_texts(kinds))
    return f": the GPU is busy {units.format_share(working)} of it ({kinds_text})"


def replayed(diagnosis: TimelineDiagnosis) -> str:
    """Say how well the replay, which tells the gains, gives the measured time.

    Empty where that is bad: then a note says so already.
    """
    facts = diagnosis.replay
    if facts is None:
        return "Nothing could be replayed: times given back are not known."
    if facts.error > MAX_REPLAY_ERROR:
        return ""
    what = units.format_time(facts.length_ns)
    if facts.steps:
        every = facts.steps == diagnosis.steps
        what = (
            f"{facts.steps:,} steps" if every else f"{facts.steps:,} of {diagnosis.steps:,} steps"
        )
    error = units.format_share(facts.error)
    return f"Gains are from a replay of {what} that misses the measured time by {error}."


def per_step(diagnosis: TimelineDiagnosis, ns: float | None) -> str:
    """Show time of the window as time of a step."""
    return units.format_time(None if ns is None else ns / max(1, diagnosis.steps))


def timeline_gain(diagnosis: TimelineDiagnosis, finding: TimelineFinding) -> str:
    """Say what a fix gives back, alone and after those above it."""
    if finding.recoverable_ns is None:
        return "not a matter of time"
    alone, after = (per_step(diagnosis, ns) for ns in (finding.recoverable_ns, finding.after_ns))
    each = " a step" if diagnosis.steps else ""
    text = f"gives back {alone}{each}, {units.format_share(finding.share)} of the window"
    if not finding.recoverable_ns:
        text = "gives back nothing by itself"
    return text if after in (alone, units.MISSING) else f"{text}; {after} after those above it"


def confidence(finding: TimelineFinding) -> str:
    """Say how far to trust a finding, and its rank."""
    return finding.confidence.value + ("" if finding.robust else ", rank unsure")


def location_amounts(diagnosis: TimelineDiagnosis, where: FindingLocation) -> tuple[str, str]:
    """Say how much of a finding a place has: its time and how often, in a step."""
    steps = max(1, diagnosis.steps)
    time = "" if where.ns is None else units.format_time(where.ns / steps)
    if where.count is None:
        return time, ""
    often = _times(where.count / steps)
    return time, f"{often} a step" if diagnosis.steps else often


def _times(count: float) -> str:
    """Say how often: a mean need not be whole, but its decimals are soon noise."""
    if count == 1:
        return "once"
    digits = 0 if count == round(count) or count >= 100 else 1 if count >= 0.1 else 2
    return f"{count:,.{digits}f} times"


def not_evaluated(diagnosis: TimelineDiagnosis) -> list[tuple[str, str]]:
    """Give the rules that could not be judged with the reason, those of one reason together."""
    by_reason: defaultdict[str, list[str]] = defaultdict(list)
    for rule, reason in diagnosis.not_applicable.items():
        if rule not in diagnosis.covered:
            by_reason[reason].append(rule)
    return [(", ".join(rules), reason) for reason, rules in by_reason.items()]


def covered(diagnosis: TimelineDiagnosis) -> list[tuple[str, str]]:
    """Give the findings whose cause others name, with these: `a, b` and the rule that has them."""
    by_rule: defaultdict[str, list[str]] = defaultdict(list)
    for rule, by in diagnosis.covered.items():
        by_rule[by].append(rule)
    return [(", ".join(rules), by) for by, rules in by_rule.items()]


def language(code: str) -> str:
    """Tell in which language lines to paste are written."""
    if code.startswith("gpusight "):
        return "bash"
    is_cuda = any(line.rstrip().endswith((";", "{")) for line in code.splitlines())
    return "cuda" if is_cuda else "python"


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


def timeline_finding_table(diagnosis: TimelineDiagnosis) -> TableResult:
    """Give one row for each finding."""
    keys = [f.key for f in TIMELINE_FINDING_FIELDS]
    documents = (finding.document() for finding in diagnosis.findings)
    rows = [{"rank": rank} | document for rank, document in enumerate(documents, 1)]
    data = [[row[key] for key in keys] for row in rows]
    return _table("findings", "Findings", TIMELINE_FINDING_FIELDS, data)


def measured_kernel_table(joined: JoinedDiagnosis) -> TableResult:
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
    return [*lead, kernel.finding.rule, gain_text(kernel.finding), saved or None]


def _table(
    command: str, title: str, fields: tuple[Field, ...], rows: list[list[object]]
) -> TableResult:
    schema = {f.key: _TYPES.get(f.fmt, pl.Float64) for f in fields}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return TableResult(command, title, fields, frame)
