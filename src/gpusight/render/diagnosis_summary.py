"""What a timeline diagnosis has in every format: head, ledger, gains, verdict, and its tables."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import polars as pl

from gpusight import units
from gpusight.analysis.aggregates import schema_of
from gpusight.render.cell_text import safe_text
from gpusight.render.explanation import NOTHING, gain_text
from gpusight.results import Field, Fmt, TableResult
from gpusight.rules.engine import MAX_REPLAY_ERROR, MIN_PLAN_SHARE
from gpusight.rules.process_sections import worst_of
from gpusight.rules.registry import kernel_rules
from gpusight.rules.rule import TimelineRule

if TYPE_CHECKING:
    from gpusight.analysis.ledger.device_ledger import DeviceLedger
    from gpusight.rules.diagnosis import (
        JoinedDiagnosis,
        KernelReportDiagnosis,
        TimedKernel,
        TimelineDiagnosis,
    )
    from gpusight.rules.finding import KernelFinding, TimelineFinding
    from gpusight.rules.rule import FindingLocation


MIN_NOTABLE_SHARE = 0.04
"""Findings below this part of the window are small: a sound program has some too."""
_MIN_SLICE_SHARE = 0.005
"""Parts of the ledger below this are summed up as the rest."""
_IDLE = "idle"
_COMPUTE = "compute"
REST = "other"
UNSURE = "The order changes without the profiler's overhead per launch."
MAIN_SHARE = 0.5
"""Share of the time from which on the GPU counts as busy."""
_MIN_ALONE_RATIO = 1.25
_MIN_ALONE_SHARE = 0.005
"""Of the window: what is more than rounding, and as much as the smallest finding saves."""


@dataclass(frozen=True, slots=True)
class LedgerSlice:
    """A part of the window, as drawn."""

    name: str
    """`compute`, `copy/h2d`, `communication`, `idle/input` …, or the rest."""
    share: float

    @property
    def idle(self) -> bool:
        """The GPU had nothing to do."""
        return self.name.startswith(_IDLE)


@dataclass(frozen=True, slots=True)
class LedgerGroup:
    """What the GPU did, or that it was idle, with the largest parts of that."""

    name: str
    share: float
    parts: tuple[LedgerSlice, ...]

    def text(self, causes: int) -> str:
        """Write `idle 14.7% (launching 9.1%, sync 5.6%)` with so many parts."""
        named = [part for part in self.parts if part.name != self.name]
        shown = [part for part in named if part.share >= _MIN_SLICE_SHARE][: max(0, causes)]
        parts = ", ".join(f"{part.name} {units.format_share(part.share)}" for part in shown)
        return f"{self.name} {units.format_share(self.share)}" + (f" ({parts})" if parts else "")


_GROUP_NAMES = {"copy": "copies"}


def ledger_groups(device: DeviceLedger) -> list[LedgerGroup]:
    """Group the ledger: compute, communication, copies, idle; the largest first."""
    parts: defaultdict[str, list[LedgerSlice]] = defaultdict(list)
    for entry in device.entries:
        group, _, name = entry.entry.partition("/")
        parts[group].append(LedgerSlice(name or group, entry.share or 0.0))
    groups = [
        LedgerGroup(
            _GROUP_NAMES.get(name, name),
            sum(part.share for part in of_group),
            tuple(sorted(of_group, key=lambda part: -part.share)),
        )
        for name, of_group in parts.items()
    ]
    return sorted((g for g in groups if g.share >= _MIN_SLICE_SHARE), key=lambda g: -g.share)


def evaluated_device(diagnosis: TimelineDiagnosis) -> DeviceLedger | None:
    """Return the ledger of the evaluated GPU; None if no GPU was active."""
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
    process, processes = (diagnosis.meta.get(key) for key in ("process", "processes"))
    worst = f"process {process} ({worst_of(processes)})" if processes else None
    gpu = diagnosis.meta.get("gpu") or "unknown GPU"
    facts = [worst, gpu, diagnosis.headline.text]
    return safe_text(f"{name}: {', '.join(str(fact) for fact in facts if fact)}")


def timeline_verdict(diagnosis: TimelineDiagnosis) -> str:
    """Say that no fix saves a notable time, and what the GPU does; empty where one does."""
    saved_ns = (max(f.saved_ns or 0.0, f.recoverable_ns or 0.0) for f in diagnosis.fixes)
    best = max(saved_ns, default=0.0) / max(1, diagnosis.focus.length_ns)
    if best >= MIN_NOTABLE_SHARE:
        return ""
    if not diagnosis.clean and not diagnosis.findings:
        return "No rule could be evaluated on this capture."
    activity = _activity(evaluated_device(diagnosis))
    if best:
        return f"No fix saves more than {units.format_share(best)} of the time{activity}."
    least = units.format_share(TimelineRule.min_share)
    return f"No fix found that saves {least} of the time or more{activity}."


def _activity(device: DeviceLedger | None) -> str:
    if device is None:
        return ""
    if device.busy_share < MAIN_SHARE:
        idle = [part for part in slices(device) if part.idle]
        return f", though the GPU is idle: {', '.join(slice_texts(idle))}"
    kinds_text = ", ".join(slice_texts(computing(device)[:2] or slices(device)[:1]))
    return f": the GPU is busy {units.format_share(device.busy_share)} of it ({kinds_text})"


def no_kernel_finding(diagnosis: KernelReportDiagnosis) -> str:
    """Say that no kernel of a report has a finding, and what could not be looked for."""
    if not diagnosis.groups:
        return "No launch was profiled."
    lacking = len(diagnosis.unevaluated)
    if not lacking:
        return "No kernel has a finding."
    if not any(kernel.limiter for kernel in diagnosis.kernels):
        return "The report lacks the counters that show what limits its kernels."
    evaluated = len({rule for kernel in diagnosis.kernels for rule in kernel.clean})
    return f"No finding by {evaluated} of {evaluated + lacking} rules; the others lack counters."


def plan_total(diagnosis: TimelineDiagnosis) -> str:
    """Say what all fixes save: `all 4 fixes: 46.9 -> 10.1 ms/step (4.6x)`.

    With an upper bound among them: `all 4 fixes: 46.9 -> at best 10.1 ms/step (up to 4.6x)`. Where
    rows of the plan have no time estimate: `fixes 1-3: …`, by the numbers of those that have one.
    """
    now_ns, then_ns = diagnosis.step_ns, diagnosis.predicted_step_ns
    unit = "/step" if diagnosis.steps else ""
    change = time_change(now_ns, then_ns, unit, upper_bound=diagnosis.is_upper_bound)
    return f"{_timed_fixes(diagnosis)}: {change}"


def _timed_fixes(diagnosis: TimelineDiagnosis) -> str:
    """Name the fixes of the plan that have a time estimate: `all 4 fixes`, `fixes 1-3`."""
    numbers = [n for n, f in enumerate(diagnosis.plan, 1) if f.saved_ns is not None]
    if len(numbers) == len(diagnosis.plan):
        return {1: "this fix", 2: "both fixes"}.get(len(numbers), f"all {len(numbers)} fixes")
    first, last = numbers[0], numbers[-1]
    if first == last:
        return f"fix {first}"
    if last - first + 1 == len(numbers):
        return f"fixes {first}-{last}"
    return f"fixes {', '.join(map(str, numbers[:-1]))} and {last}"


def speedups_so_far(diagnosis: TimelineDiagnosis) -> tuple[str, ...]:
    """Write the speedup of each fix of the plan with those above: `1.21x`, `up to 29x`."""
    bounds = diagnosis.plan_upper_bounds
    after = zip(diagnosis.findings, diagnosis.plan_step_ns, bounds, strict=True)
    return tuple(
        units.MISSING if ns is None else speedup_text(diagnosis.step_ns, ns, upper_bound=bound)
        for finding, ns, bound in after
        if finding.in_plan
    )


def speedup_text(now_ns: float, then_ns: float, *, upper_bound: bool) -> str:
    """Write how many times faster a time is: `1.21x`, `up to 29x`."""
    speedup = units.format_speedup(now_ns / max(1.0, then_ns))
    return f"up to {speedup}" if upper_bound else speedup


def time_change(now_ns: float, then_ns: float, unit: str, *, upper_bound: bool = False) -> str:
    """Write a time now and after fixes: `46.9 -> 9.96 ms/step (4.7x)`."""
    now, then = (units.format_time(ns, digits=3) for ns in (now_ns, then_ns))
    if now.split()[1:] == then.split()[1:]:
        now = now.split()[0]
    speedup = speedup_text(now_ns, then_ns, upper_bound=upper_bound)
    return f"{now} -> {'at best ' if upper_bound else ''}{then}{unit} ({speedup})"


def kernels_head(diagnosis: KernelReportDiagnosis) -> str:
    """Name the report, its GPU, how many kernels it has and their time."""
    name = Path(str(diagnosis.meta.get("path", ""))).name or "report"
    launches = len(diagnosis.kernels)
    facts = [
        ", ".join(map(str, diagnosis.meta.get("gpus", ()))),
        f"{launches:,} {'launch' if launches == 1 else 'launches'}",
        units.format_time(diagnosis.duration_ns, digits=3) if diagnosis.duration_ns else "",
    ]
    return f"{name}: {', '.join(filter(None, facts))}"


def kernels_total(diagnosis: KernelReportDiagnosis) -> str:
    """Say what the first fix of each kernel saves."""
    now_ns = diagnosis.duration_ns
    return f"first fix of each kernel: {time_change(now_ns, now_ns - diagnosis.saved_ns, '')}"


def replayed(diagnosis: TimelineDiagnosis) -> str:
    """Say how accurate the simulation behind the savings is; empty where a note has it."""
    facts = diagnosis.replay
    if facts is None:
        return "Nothing could be simulated: there are no time estimates."
    if facts.error > MAX_REPLAY_ERROR:
        return ""
    what = units.format_time(facts.length_ns)
    if facts.steps:
        every = facts.steps == diagnosis.steps
        what = (
            f"{facts.steps:,} steps" if every else f"{facts.steps:,} of {diagnosis.steps:,} steps"
        )
    return f"Savings are simulated on {what}; simulation error {units.format_share(facts.error)}."


def per_step(diagnosis: TimelineDiagnosis, ns: float | None) -> str:
    """Show time of the window as time per step."""
    return units.format_time(None if ns is None else ns / max(1, diagnosis.steps), digits=3)


def saved_text(diagnosis: TimelineDiagnosis, finding: TimelineFinding) -> str:
    """Show what a fix saves after those above it, per step."""
    return per_step(diagnosis, finding.saved_ns) if finding.is_fix else units.MISSING


def alone_text(diagnosis: TimelineDiagnosis, finding: TimelineFinding) -> str:
    """Show what a fix saves when it is the only one, per step."""
    text = per_step(diagnosis, finding.recoverable_ns)
    return "nothing" if text.startswith("0 ") else text


def alone_note(diagnosis: TimelineDiagnosis) -> str:
    """List fixes that save notably more or less alone: `alone, fix 2 saves 5.10 ms, fix 4 …`."""
    texts = [
        (f"fix {number}", alone_text(diagnosis, finding))
        for number, finding in enumerate(diagnosis.plan, 1)
        if _differs_alone(diagnosis, finding)
    ]
    if not texts:
        return ""
    first, *others = texts
    alone = [" saves ".join(first), *map(" ".join, others)]
    return f"savings are after the fixes above; alone, {', '.join(alone)}"


def _differs_alone(diagnosis: TimelineDiagnosis, finding: TimelineFinding) -> bool:
    if finding.saved_ns is None or finding.recoverable_ns is None:
        return False
    less_ns, more_ns = sorted((finding.saved_ns, finding.recoverable_ns))
    is_more = more_ns >= _MIN_ALONE_RATIO * less_ns
    return is_more and more_ns - less_ns >= _MIN_ALONE_SHARE * diagnosis.focus.length_ns


def outside_plan_text(
    diagnosis: TimelineDiagnosis, finding: TimelineFinding, *, explained: bool = False
) -> str:
    """Write a finding that is not in the plan, in one line; `explained` where that is below it."""
    if not finding.is_fix:
        command = "" if explained else f" (explain {finding.rule})"
        return f"note: {finding.title}{command}"
    if not finding.instead_of:
        gain = f"saves under {_least()}"
        if (finding.share or 0.0) >= MIN_PLAN_SHARE:
            gain = f"alone saves {alone_text(diagnosis, finding)}, after the plan under {_least()}"
        return f"also: {finding.title}, {gain}"
    saved = f"saves {alone_text(diagnosis, finding)}"
    return f"or, instead of {_fix_named(diagnosis, finding.instead_of)}: {finding.title}, {saved}"


def _fix_named(diagnosis: TimelineDiagnosis, rule: str) -> str:
    return f"fix {[f.rule for f in diagnosis.plan].index(rule) + 1}"


def fix_of_plan(diagnosis: TimelineDiagnosis, finding: KernelFinding) -> str:
    """Name the fix of the plan that is also that of a profiled kernel: `fix 1`; empty for none."""
    rule = kernel_rules().get(finding.rule)
    other = "" if rule is None else rule.timeline_rule
    return _fix_named(diagnosis, other) if other in (f.rule for f in diagnosis.plan) else ""


def needed_first(diagnosis: TimelineDiagnosis, finding: TimelineFinding) -> str:
    """Name the fixes of the plan that one needs: `fix 2 (host-sync)`; empty for none."""
    needed = [f.rule for f in diagnosis.plan if f.rule in finding.needs]
    return " and ".join(f"{_fix_named(diagnosis, rule)} ({rule})" for rule in needed)


def needs_notes(diagnosis: TimelineDiagnosis) -> list[str]:
    """Say which fixes need one that comes after them: `apply fix 2 (host-sync) before fix 1`.

    What is needed comes first in the plan, but for a fix that saves nothing itself.
    """
    plan = [f.rule for f in diagnosis.plan]
    late = [f for at, f in enumerate(diagnosis.plan) if not set(plan[:at]).issuperset(f.needs)]
    needs = [(f, needed_first(diagnosis, f)) for f in late]
    return [f"apply {first} before {_fix_named(diagnosis, f.rule)}" for f, first in needs if first]


def timeline_gain(diagnosis: TimelineDiagnosis, finding: TimelineFinding) -> str:
    """Say what a fix saves alone, and after the fixes above it."""
    if finding.recoverable_ns is None:
        return "no time estimate"
    unit = "/step" if diagnosis.steps else ""
    alone = alone_text(diagnosis, finding)
    if alone != "nothing":
        alone = f"{alone}{unit} ({units.format_share(finding.share)})"
    most = "up to " if finding.is_fix and finding.is_upper_bound else ""
    if alone != "nothing":
        alone = f"{most}{alone}"
    if not finding.is_fix:
        return f"not a fix: {alone} of the measured time is due to it"
    if finding.instead_of:
        other = f"{_fix_named(diagnosis, finding.instead_of)} ({finding.instead_of})"
        return f"saves {alone} instead of {other}; after it under {_least()}"
    if not finding.in_plan:
        return f"alone saves {alone}; after the plan under {_least()}"
    planned = per_step(diagnosis, finding.saved_ns)
    needed = needed_first(diagnosis, finding)
    needs = f"; apply it after {needed}" if needed else ""
    if planned == per_step(diagnosis, finding.recoverable_ns):
        return f"saves {alone}{needs}"
    share = units.format_share((finding.saved_ns or 0.0) / max(1, diagnosis.focus.length_ns))
    above = [f.rule for f in diagnosis.fixes].index(finding.rule)
    row = [f.rule for f in diagnosis.plan].index(finding.rule)
    after = {0: "in the plan", 1: f"after fix {row}"}.get(
        above, f"after fixes {row + 1 - above}-{row}"
    )
    own_ns = max(finding.measured_ns or 0.0, finding.recoverable_ns)
    if above and finding.measured_ns is not None and (finding.saved_ns or 0.0) > 1.01 * own_ns:
        others = "fix 1" if row == 1 else "the fixes above"
        own = f"{per_step(diagnosis, own_ns)}{unit}"
        why = f"its own {own}, the rest is time of {others} that saves nothing before this one"
    elif (finding.saved_ns or 0.0) > finding.recoverable_ns:
        why = "the time that it saves is hidden behind other work now"
    else:
        why = "other fixes save the rest" if above else "later fixes save the rest"
    return f"alone saves {alone}; {after} saves {most}{planned}{unit} ({share}): {why}{needs}"


def _least() -> str:
    return units.format_share(MIN_PLAN_SHARE)


def confidence(finding: TimelineFinding) -> str:
    """Say how far to trust a finding, and its place in the plan."""
    return finding.confidence.value + ("" if finding.robust else ", order unsure")


def location_amounts(diagnosis: TimelineDiagnosis, where: FindingLocation) -> tuple[str, str]:
    """Say how much of a finding a place has: its time and how often, in a step."""
    steps = max(1, diagnosis.steps)
    time = "" if where.ns is None else units.format_time(where.ns / steps)
    if where.count is None:
        return time, ""
    if where.count < diagnosis.steps:
        return time, f"{where.count:,} in {diagnosis.steps:,} steps"
    count = units.format_mean(where.count / steps)
    if diagnosis.steps:
        return time, f"{count} per step"
    return time, "once" if where.count == 1 else f"{count} times"


def where_heading(finding: TimelineFinding) -> str:
    """Say what the times of the places are, and that those of several kinds overlap.

    Where no place is known, say so and how to get them.
    """
    if finding.where_time and not finding.where:
        return (
            f"{finding.where_time}: the capture has no ranges or operators there "
            "(gpusight record adds NVTX ranges; with --with torch, operators)"
        )
    kinds = list(dict.fromkeys(location.kind for location in finding.where))
    if len(kinds) < 2:
        return finding.where_time
    views = f"{', '.join(kinds[:-1])} and {kinds[-1]} (the same time, seen {len(kinds)} ways)"
    return f"{finding.where_time or 'time'} by {views}"


def not_evaluated(diagnosis: TimelineDiagnosis) -> list[tuple[str, str]]:
    """Return the rules that were not evaluated and the reason, grouped by reason."""
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


_SHELL = re.compile(r"(?:gpusight|export|unset) |[A-Z_]+=\S+ \w")
"""How lines for a shell begin: a command, or a variable of the environment."""
_CUDA = re.compile(r"^//|[;{]\s*(?://|$)")
"""A comment or the end of a statement of CUDA C++."""


def language(code: str) -> str:
    """Return in which language lines to paste are written."""
    if _SHELL.match(code):
        return "bash"
    is_cuda = any(map(_CUDA.search, code.splitlines()))
    return "cuda" if is_cuda else "python"


TIMELINE_FINDING_FIELDS = (
    Field("rank", "Rank", Fmt.ID, "1 for what to fix first"),
    Field("rule", "Rule", Fmt.TEXT, "Identifier of the rule"),
    Field("after_above_ns", "Incremental", Fmt.TIME, "Saved of the window after the fixes above"),
    Field("recoverable_ns", "Alone", Fmt.TIME, "Saved of the window when it is the only fix"),
    Field("share", "Share", Fmt.SHARE, "The same as a share of the window"),
    Field("recoverable_ns_per_step", "Alone/step", Fmt.TIME, "The same per step"),
    Field("confidence", "Confidence", Fmt.TEXT, "`high`, `medium` or `low`"),
    Field("effort", "Effort", Fmt.TEXT, "`one line`, `config` or `rewrite`"),
    Field("robust", "Robust", Fmt.FLAG, "The order stays without the profiler's overhead"),
    Field("title", "Finding", Fmt.TEXT, "The problem, with its main number"),
    Field("fix", "Fix", Fmt.TEXT, "What to do"),
    Field("estimate", "Estimate", Fmt.TEXT, "How the time was estimated"),
)
_KERNEL_FIELDS = (
    Field("kernel", "Kernel", Fmt.NAME, "Short kernel name"),
    Field("time_ns", "Time/step", Fmt.TIME, "Its time per step, or in the window"),
    Field("share", "% of step", Fmt.SHARE, "Share of the step time, or of the window"),
    Field("calls", "N", Fmt.COUNT, "Launches in the window", shown=False),
    Field("finding", "First finding", Fmt.TEXT, "The rule whose fix saves most"),
    Field("speedup", "Speedup", Fmt.TEXT, "Of the kernel, with the fix"),
    Field("saved_ns", "Saves", Fmt.TIME, "GPU time per step that the fix saves"),
)


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
        labels = {"time_ns": "Time", "share": "% window"}
        fields = tuple(replace(f, label=labels.get(f.key, f.label)) for f in fields)
    return _table("kernels", "Kernels profiled by Nsight Compute", fields, rows)


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
    schema = schema_of(fields, pl.Float64(), counts=pl.Int64())
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return TableResult(command, title, fields, frame)
