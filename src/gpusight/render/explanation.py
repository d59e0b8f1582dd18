"""Kernel findings as text: tables, evidence, gains; and the list of rules."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from gpusight import units
from gpusight.render.cell_text import display_width, safe_text
from gpusight.render.terminal_text import (
    StyledLine,
    code_lines,
    labeled_lines,
    plain_lines,
    wrapped_lines,
)
from gpusight.results import Field, Fmt, TableResult
from gpusight.rules.registry import kernel_rules, timeline_rules
from gpusight.rules.rule import TimelineRule

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusight.rules.diagnosis import KernelGroup, KernelReportDiagnosis, ProfilerRule
    from gpusight.rules.finding import Evidence, KernelFinding, TimelineFinding
    from gpusight.rules.rule import Rule


_OVERVIEW_FIELDS = (
    Field("kernel", "Kernel", Fmt.NAME, "Short kernel name"),
    Field("launches", "N", Fmt.COUNT, "Launches with this grid and block"),
    Field("time_ns", "Time", Fmt.TIME, "Total time of these launches"),
    Field("share", "Share", Fmt.SHARE, "Share of the time of all kernels", shown=False),
    Field("finding", "First finding", Fmt.TEXT, "The rule whose fix saves most"),
    Field("speedup", "Speedup", Fmt.TEXT, "Of the kernel, with the fix"),
    Field("saved_ns", "Saves", Fmt.TIME, "Time that the fix saves over the report"),
    Field("confidence", "Confidence", Fmt.TEXT, "`high`, `medium` or `low`", shown=False),
    Field("effort", "Effort", Fmt.TEXT, "`one line`, `config` or `rewrite`", shown=False),
)
FINDING_FIELDS = (
    Field("launch", "Launch", Fmt.ID, "The profiler's number of the launch"),
    Field("kernel", "Kernel", Fmt.NAME, "Kernel name"),
    Field("duration_ns", "Duration", Fmt.TIME, "Duration of the launch"),
    Field("rank", "Rank", Fmt.ID, "1 for the first finding of the launch"),
    Field("rule", "Rule", Fmt.TEXT, "Identifier of the rule"),
    Field("speedup", "Speedup", Fmt.REAL, "Of the launch, with the fix"),
    Field("saved_ns", "Saves", Fmt.TIME, "Time that the fix saves"),
    Field("confidence", "Confidence", Fmt.TEXT, "`high`, `medium` or `low`"),
    Field("effort", "Effort", Fmt.TEXT, "`one line`, `config` or `rewrite`"),
    Field("title", "Finding", Fmt.TEXT, "The problem, with its main number"),
    Field("estimate", "Estimate", Fmt.TEXT, "How the speedup was estimated"),
)
AT_ROOF = "at roofline"
NO_GAIN = 1.005
"""Below this speedup there is no gain."""
NOTHING = "no finding"


def kernel_overview(diagnosis: KernelReportDiagnosis) -> TableResult:
    """Give one row per kernel and shape, the one whose fix saves most first."""
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
        "effort": pl.String,
    }
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return TableResult(diagnosis.command, diagnosis.title, _OVERVIEW_FIELDS, frame)


def _row(group: KernelGroup, whole: float) -> tuple[object, ...]:
    share = group.duration_ns / whole if whole else None
    time = group.duration_ns or None
    lead = (group.label, len(group.kernels), time, share)
    if not group.findings:
        return (*lead, NOTHING, None, None, None, None)
    first = group.findings[0]
    return (
        *lead,
        first.rule,
        gain_text(first),
        None if (first.speedup or 1.0) < NO_GAIN else first.saved_ns,
        first.confidence.value,
        first.effort,
    )


def gain_text(finding: KernelFinding) -> str | None:
    """Show a speedup with the digits that an estimate deserves: `1.40x`, `25x`."""
    speedup = finding.speedup
    if speedup is None:
        return None
    if speedup < NO_GAIN:
        return AT_ROOF if finding.at_roofline else None
    return units.format_speedup(speedup)


def kernel_finding_table(diagnosis: KernelReportDiagnosis) -> TableResult:
    """Give one row per finding of each launch."""
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
            finding.effort,
            finding.title,
            finding.estimate,
        )
        for kernel in diagnosis.kernels
        for rank, finding in enumerate(kernel.findings, 1)
    ]
    texts = {"kernel", "rule", "confidence", "effort", "title", "estimate"}
    schema = {
        f.key: pl.String if f.key in texts else pl.Int64 if f.fmt is Fmt.ID else pl.Float64
        for f in FINDING_FIELDS
    }
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return TableResult("findings", "Findings", FINDING_FIELDS, frame)


MAX_PROFILER_RULES = 3
"""Results of the profiler's own rules that are shown for a kernel."""
_SENTENCE = re.compile(r"(?<=[a-z)%])\.\s+(?=[A-Z])")


@dataclass(frozen=True, slots=True)
class ExplainedKernel:
    """One kernel, explained: texts that are safe to print, not yet wrapped or escaped."""

    title: str
    subtitle: str
    findings: tuple[KernelFinding, ...]
    profiler: tuple[str, ...]
    """Results of the profiler's own rules, in brief."""


def explain_kernel(diagnosis: KernelReportDiagnosis, group: KernelGroup) -> ExplainedKernel:
    """Collect the texts about a kernel."""
    numbers = [str(k.launch) for k in group.kernels]
    shown = ", ".join(numbers[:4]) + (f" and {len(numbers) - 4} more" if len(numbers) > 4 else "")
    parts = [f"launch {shown}" if len(numbers) == 1 else f"launches {shown}"]
    if group.duration_ns:
        share = units.format_share(group.duration_ns / diagnosis.duration_ns)
        parts.append(f"{units.format_time(group.duration_ns)}, {share} of the profiled time")
    shape = group.longest
    if None not in (*shape.grid, *shape.block):
        parts.append(f"grid {_dims(shape.grid)}, block {_dims(shape.block)}")
    if len(numbers) > 1 and group.findings and group.findings[0].launch is not None:
        first = group.findings[0]
        matching = (
            "" if first.launches == len(numbers) else f" {first.launches} with the finding, of"
        )
        parts.append(f"data of launch {first.launch}, the longest of{matching} {len(numbers)}")
    return ExplainedKernel(
        title=safe_text(group.label),
        subtitle="; ".join(parts),
        findings=group.findings,
        profiler=tuple(map(_profiler_sentence, _foremost(group.longest.profiler_rules))),
    )


def _dims(sides: tuple[int | None, ...]) -> str:
    kept = [s for s in sides if s is not None]
    while len(kept) > 1 and kept[-1] == 1:
        kept.pop()
    return " x ".join(f"{s:,}" for s in kept)


def gain_phrase(finding: KernelFinding) -> str:
    """Give the gain of a finding as a phrase: `2.1x, saves 520 µs`."""
    if finding.speedup is None:
        return "speedup unknown"
    if finding.speedup < NO_GAIN:
        return "no gain"
    text, saved = gain_text(finding) or "", finding.saved_ns
    return f"{text}, saves {units.format_time(saved)}" if saved else text


def confidence_sentence(finding: KernelFinding | TimelineFinding) -> str:
    """Give the estimate and its confidence, as one sentence."""
    how = finding.estimate.rstrip(".")
    return f"{how} ({finding.confidence.value} confidence: {finding.confidence_reason})"


def evidence_value(evidence: Evidence) -> str:
    """Show a number of the evidence in its unit."""
    if evidence.unit == "share":
        return units.format_share(evidence.value)
    if evidence.unit == "byte":
        return units.format_bytes(evidence.value)
    if evidence.unit == "byte/s":
        return units.format_rate(evidence.value)
    if evidence.unit == "ns":
        return units.format_time(evidence.value)
    if evidence.unit == "flop/s":
        return f"{units.format_real(evidence.value / 1e12)} TFLOP/s"
    text = units.format_mean(evidence.value)
    return f"{text} cycles" if evidence.unit == "cycle" else text


def _foremost(results: tuple[ProfilerRule, ...]) -> list[ProfilerRule]:
    """Choose the most important results; remarks stay out."""
    advice = [r for r in results if r.kind == "optimization" and r.message]
    if not advice:  # versions up to 2021 call it so; later ones warn of metrics that are missing
        advice = [r for r in results if r.kind in {"warning", "error"} and r.message]
    of_launch = {"global": 1, "local": 0}
    ranked = sorted(
        advice,
        key=lambda r: (-of_launch.get(r.speedup_kind or "", 0), -(r.speedup_percent or 0.0)),
    )
    # One result of each rule: the others say the same of another unit.
    first = {r.rule: r for r in reversed(ranked) if _NUMBER.search(r.message or "")}
    return [r for r in ranked if first.get(r.rule) is r and r.rule not in _NOISE][
        :MAX_PROFILER_RULES
    ]


_NOISE = frozenset({"MemoryL2Compression"})
"""Rules about what programs do not use on purpose."""
_NUMBER = re.compile(r"(?<![\w.])\d")
_OF_LAUNCH = re.compile(
    r"(?i)\bthis (?:kernel|workload|launch)\b|\bon average\b|\bworkload achieved\b"
)
_SPEEDUPS = {"local": "est. local speedup", "global": "est. speedup"}


def _profiler_sentence(result: ProfilerRule) -> str:
    """Give the sentence of a result of the profiler's rules that has its number."""
    message = " ".join((result.message or "").split())
    sentences = _SENTENCE.split(message)
    numbers = [s for s in sentences if _NUMBER.search(s)]
    chosen = next((s for s in numbers if _OF_LAUNCH.search(s)), (numbers or sentences)[0])
    text = safe_text(chosen).rstrip(".")
    kind = _SPEEDUPS.get(result.speedup_kind or "", "est. speedup")
    percent = "" if result.speedup_percent is None else f" ({kind} {result.speedup_percent:.0f}%)"
    return f"{safe_text(result.rule)}{percent}: {text}."


_EVIDENCE = 5
"""Numbers that are shown of each finding; JSON has them all."""


def evidence_lines(evidence: tuple[Evidence, ...], width: int | None) -> Iterator[StyledLine]:
    """Show the main numbers of a finding, one per line."""
    foremost = evidence[:_EVIDENCE]
    values = [evidence_value(e) for e in foremost]
    widest = max(map(display_width, values), default=0)
    for number, (value, item) in enumerate(zip(values, foremost, strict=True)):
        label = "data" if number == 0 else ""
        yield from labeled_lines(label, item.meaning, width, lead=f"{value.rjust(widest)}  ")


# The list of rules --------------------------------------------------------------------------------

RULE_FIELDS = (
    Field("rule", "Rule", Fmt.TEXT, "Its identifier, for `--rule`"),
    Field("of", "Type", Fmt.TEXT, "`timeline`, `kernels` (Nsight Compute reports) or `yours`"),
    Field("finds", "Detects", Fmt.NAME, "What it detects"),
)


_HEADINGS = {
    "timeline": "Timeline rules (nsys, torch.profiler, JAX)",
    "yours": "Your rules",
    "kernels": "Kernel rules (Nsight Compute)",
}


def rule_text(rules: TableResult, width: int | None) -> str:
    """Write the rules as text: what each detects, wrapped next to its name."""
    widest = max(len(rule) for rule in rules.frame["rule"])
    lines: list[StyledLine] = []
    for kind, heading in _HEADINGS.items():
        of_kind = rules.frame.filter(pl.col("of") == kind)
        if of_kind.height:
            lines += [*([StyledLine("")] if lines else []), StyledLine(heading)]
        for rule, finds in of_kind.select("rule", "finds").iter_rows():
            lines += wrapped_lines(finds.removeprefix("Looks for "), width, f"  {rule:<{widest}}  ")
    return plain_lines(lines)


def rule_description(rule: Rule, width: int | None) -> str:
    """Write what a rule detects, why that costs time, and its fix."""
    kind = "timeline" if isinstance(rule, TimelineRule) else "Nsight Compute"
    title = f"{rule.id} ({kind}): {rule.detects}"
    lines = [*wrapped_lines(title, width, "", "bold cyan")]
    for label, text in (("why", rule.why), ("fix", rule.fix)):
        lines += labeled_lines(label, text, width)
    lines += code_lines(rule.code, width)
    for label, text in (
        ("gain", rule.estimate),
        ("verify", rule.verify),
        ("caveat", rule.caveats),
    ):
        lines += labeled_lines(label, text, width) if text else ()
    return plain_lines(lines)


def rule_list(own: Sequence[Rule] = (), *, only: str | None = None) -> TableResult:
    """List timeline rules, the user's own and kernel rules; or one of them."""
    rows = [(rule.id, "timeline", rule.detects) for rule in timeline_rules().values()]
    rows += [(rule.id, "yours", rule.detects) for rule in own]
    rows += [(rule.id, "kernels", rule.detects) for rule in kernel_rules().values()]
    rows = [row for row in rows if only in (None, row[0])]
    schema = dict.fromkeys(("rule", "of", "finds"), pl.String)
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return TableResult("diagnose", "Rules", RULE_FIELDS, frame)
