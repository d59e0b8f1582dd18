"""A diagnosis on a terminal and as Markdown: of kernels and of a timeline."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING

from gpusight import units
from gpusight.render import diagnosis_summary as parts
from gpusight.render.cell_text import display_width, safe_text, shorten_middle
from gpusight.render.explanation import (
    ExplainedKernel,
    confidence_sentence,
    evidence_lines,
    evidence_value,
    explain_kernel,
    gain_phrase,
    kernel_overview,
)
from gpusight.render.markdown_tables import (
    escape_markdown,
    markdown_code,
    markdown_prose,
    markdown_table,
    to_markdown,
)
from gpusight.render.terminal_text import (
    LABEL,
    StyledLine,
    code_lines,
    cut_line,
    labeled_lines,
    wrapped_lines,
)
from gpusight.rules.diagnosis import (
    JoinedDiagnosis,
    KernelReportDiagnosis,
    TimelineDiagnosis,
    timeline_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusight.render.table_layout import TableOptions
    from gpusight.rules.diagnosis import AnyDiagnosis, TimedKernel
    from gpusight.rules.finding import Evidence, KernelFinding, TimelineFinding


def detail_lines(diagnosis: AnyDiagnosis, look: TableOptions) -> Iterator[StyledLine]:
    """Give everything below the first screen: notes, evidence, places, method, passed rules."""
    if isinstance(diagnosis, KernelReportDiagnosis):
        yield from _note_lines(diagnosis.notes, look.width)
        groups = [group for group in diagnosis.groups if group.findings]
        for number, group in enumerate(groups, 1):
            yield StyledLine("")
            yield from kernel_lines(explain_kernel(diagnosis, group), number, look.width)
        return
    timeline = timeline_of(diagnosis)
    yield from _note_lines(timeline.notes, look.width)
    yield from _section_lines(timeline, look.width)
    for number, finding in enumerate(timeline.findings, 1):
        yield StyledLine("")
        yield from finding_lines(timeline, finding, number, look.width)
    yield StyledLine("")
    yield from _foot(timeline, look.width)
    if isinstance(diagnosis, JoinedDiagnosis):
        first = len(timeline.findings) + 1
        for number, kernel in enumerate(explained_kernels(diagnosis), first):
            yield StyledLine("")
            yield from kernel_lines(kernel, number, look.width)


def _section_lines(timeline: TimelineDiagnosis, width: int | None) -> Iterator[StyledLine]:
    """Give the other processes and GPUs, each with the titles of its findings."""
    for section in timeline.sections:
        yield StyledLine("")
        yield from wrapped_lines(f"{section.summary()} ({section.option})", width, "", "bold")
        findings = () if section.diagnosis is None else section.diagnosis.findings
        for number, finding in enumerate(findings, 1):
            assert section.diagnosis is not None
            saved = parts.saved_text(section.diagnosis, finding)
            yield from wrapped_lines(f"{finding.title}: {saved}", width, f"{number:>2}. ")


def explained_kernels(
    diagnosis: JoinedDiagnosis, count: int | None = None
) -> list[ExplainedKernel]:
    """Explain the profiled kernels that have findings; times are those of a timeline's step."""
    kernels = diagnosis.kernels_with_findings
    return [explain_in_timeline(diagnosis, kernel) for kernel in kernels[:count]]


def explain_in_timeline(diagnosis: JoinedDiagnosis, kernel: TimedKernel) -> ExplainedKernel:
    """Explain a profiled kernel; times are those of a timeline's step."""
    explained = explain_kernel(diagnosis.report, kernel.group)
    time_ns = kernel.time_ns / max(1, diagnosis.timeline.steps)
    unit = "/step" if diagnosis.timeline.steps else ""
    share = units.format_share(kernel.time_ns / max(1, diagnosis.timeline.focus.length_ns))
    whole = "step" if diagnosis.timeline.steps else "window"
    here = f"{units.format_time(time_ns, digits=3)}{unit} ({share} of the {whole})"
    return replace(
        explained,
        subtitle=f"{here}; profiled: {explained.subtitle}",
        findings=tuple(replace(finding, time_ns=time_ns) for finding in explained.findings),
    )


def _note_lines(notes: Sequence[str], width: int | None) -> Iterator[StyledLine]:
    for note in notes:
        yield from wrapped_lines(note, width, "note: ", "yellow")


def kernel_lines(kernel: ExplainedKernel, number: int, width: int | None) -> Iterator[StyledLine]:
    """Explain one kernel."""
    title = f"{number}. {kernel.title}"
    yield StyledLine(title if width is None else shorten_middle(title, width), "bold cyan")
    yield from wrapped_lines(kernel.subtitle, width, "   ", "dim")
    for finding in kernel.findings[:1]:
        yield from wrapped_lines(_headline(finding), width, "   ", "bold yellow")
        yield from labeled_lines("gain", confidence_sentence(finding), width)
        yield from evidence_lines(finding.evidence, width)
        for location in finding.places:
            share = units.format_share(location.share)
            text = safe_text(f"{share:>6}  {location.path}:{location.line}  {location.text}")
            line = f"   {'line'.ljust(LABEL)}  {text}"
            yield StyledLine(cut_line(line, width))
        yield from labeled_lines("why", finding.why, width)
        yield from labeled_lines("fix", finding.fix, width)
        yield from code_lines(finding.code, width)
        if finding.caveats:
            yield from labeled_lines("caveat", finding.caveats, width, "dim")
        if finding.also:
            yield from labeled_lines(
                "also", f"the same cause: {', '.join(finding.also)}", width, "dim"
            )
    for finding in kernel.findings[1:]:
        yield from labeled_lines("then", f"{_headline(finding)}", width)
    for sentence in kernel.profiler:
        yield from labeled_lines("ncu", sentence, width, "dim")


def _headline(finding: KernelFinding) -> str:
    return f"{finding.rule}: {safe_text(finding.title)} ({gain_phrase(finding)})"


def kernels_to_markdown(
    diagnosis: KernelReportDiagnosis, *, limit: int, details: bool
) -> Iterator[str]:
    """Write the lines of a diagnosis; `limit` rows of the overview, 0 for all."""
    yield to_markdown(kernel_overview(diagnosis), limit=limit)
    whole = diagnosis.duration_ns
    if whole:
        saved = units.format_time(diagnosis.saved_ns)
        yield f"First fix of each kernel: saves {saved} of {units.format_time(whole)}."
    for note in diagnosis.notes:
        yield from ("", f"> {escape_markdown(note)}")
    for number, group in enumerate((g for g in diagnosis.groups if g.findings and details), 1):
        yield from kernel_markdown(explain_kernel(diagnosis, group), number)


def kernel_markdown(kernel: ExplainedKernel, number: int) -> Iterator[str]:
    """Explain one kernel."""
    yield from (
        "",
        f"### {number}. {markdown_code(kernel.title)}",
        "",
        escape_markdown(kernel.subtitle) + ".",
    )
    for finding in kernel.findings:
        yield from (
            "",
            (
                f"**{finding.rule}**: {escape_markdown(finding.title)} "
                f"({escape_markdown(gain_phrase(finding))})"
            ),
            "",
        )
        yield f"Gain: {escape_markdown(confidence_sentence(finding))}."
        yield from evidence_markdown(finding.evidence)
        for location in finding.places:
            share = units.format_share(location.share)
            where = markdown_code(f"{location.path}:{location.line}")
            yield from ("", f"- {share} {where} {markdown_code(location.text)}")
        yield from ("", f"{escape_markdown(finding.why)} {escape_markdown(finding.fix)}")
        yield from fenced(finding.code, "cuda")
        yield from ("", f"Caveats: {escape_markdown(finding.caveats)}")
    if kernel.profiler:
        yield from ("", "Nsight Compute's own rules:", "")
        yield from (f"- {escape_markdown(sentence)}" for sentence in kernel.profiler)


def evidence_markdown(evidence: tuple[Evidence, ...]) -> Iterator[str]:
    """Write the numbers of a finding as a table."""
    rows = [(escape_markdown(evidence_value(e)), escape_markdown(e.meaning)) for e in evidence]
    if rows:
        yield from ("", markdown_table(("value", "what"), (True, False), rows))


def fenced(lines: str, language: str) -> Iterator[str]:
    """Write lines to paste, behind a fence that nothing in them closes."""
    shown = [safe_text(line) for line in lines.rstrip("\n").splitlines()]
    longest = max((len(run) for line in shown for run in re.findall("`+", line)), default=0)
    fence = "`" * max(3, longest + 1)
    yield from ("", f"{fence}{language}", *shown, fence)


_MIN_NAME_WIDTH = 12


def _foot(diagnosis: TimelineDiagnosis, width: int | None) -> Iterator[StyledLine]:
    """Give the method, and the results of rules without a finding."""
    if diagnosis.findings:
        yield from wrapped_lines(parts.replayed(diagnosis), width, "", "dim")
    if not all(finding.robust for finding in diagnosis.findings):
        yield from wrapped_lines(parts.UNSURE, width, "", "dim")
    if diagnosis.clean:
        text = f"{len(diagnosis.clean)} rules passed: {', '.join(diagnosis.clean)}"
        yield from wrapped_lines(text, width, "", "dim")
    for rules, by in parts.covered(diagnosis):
        yield from wrapped_lines(f"covered by {by}: {rules}", width, "", "dim")
    for rules, reason in parts.not_evaluated(diagnosis):
        yield from wrapped_lines(f"{rules}: {reason}", width, "not evaluated: ", "dim")


def finding_lines(
    diagnosis: TimelineDiagnosis, finding: TimelineFinding, number: int, width: int | None
) -> Iterator[StyledLine]:
    """Explain one finding of a timeline."""
    lead = f"{number}. " if finding.in_plan else ("also: " if finding.is_fix else "note: ")
    yield from wrapped_lines(f"{finding.rule}: {finding.title}", width, lead, "bold cyan")
    yield from labeled_lines("gain", parts.timeline_gain(diagnosis, finding), width, "bold yellow")
    yield from labeled_lines("", confidence_sentence(finding), width, "dim")
    if similar := finding.similar_fixes:
        yield from labeled_lines("", similar.text(finding.rule), width, "dim")
    yield from evidence_lines(finding.evidence, width)
    yield from _locations(diagnosis, finding, width)
    yield from labeled_lines("why", finding.why, width)
    yield from labeled_lines("fix", finding.fix, width)
    yield from code_lines(finding.code, width)
    if finding.verify:
        yield from labeled_lines("verify", finding.verify, width)
    yield from labeled_lines("caveat", finding.caveats, width, "dim")


def _locations(
    diagnosis: TimelineDiagnosis, finding: TimelineFinding, width: int | None
) -> Iterator[StyledLine]:
    """Name the places with their times in a column; long names lose their middle."""
    heading = parts.where_heading(finding)
    if heading:
        yield from labeled_lines("where", f"{heading}{':' if finding.where else ''}", width)
    amounts = [parts.location_amounts(diagnosis, where) for where in finding.where]
    widest = max((display_width(time) for time, _ in amounts), default=0)
    for number, (where, (time, often)) in enumerate(zip(finding.where, amounts, strict=True)):
        label = "" if number or heading else "where"
        lead = f"   {label:<{LABEL}}  {time.rjust(widest)}  {where.kind} "
        end = f", {often}" if often else ""
        name = safe_text(where.name)
        if width is not None:
            name = shorten_middle(name, max(_MIN_NAME_WIDTH, width - display_width(lead + end)))
        yield StyledLine(f"{lead}{name}{end}")


def timeline_to_markdown(
    diagnosis: TimelineDiagnosis, *, limit: int, details: bool
) -> Iterator[str]:
    """Write the lines of a diagnosis; `limit` findings listed, 0 for all."""
    yield from (
        f"## {escape_markdown(diagnosis.title)}",
        "",
        f"{escape_markdown(parts.diagnosis_head(diagnosis))}.",
    )
    for note in diagnosis.notes:
        yield from ("", f"> {markdown_prose(note)}")
    yield from _ledger_markdown(diagnosis)
    verdict = parts.timeline_verdict(diagnosis)
    if verdict:
        yield from ("", f"**{markdown_prose(verdict)}**")
    if diagnosis.plan:
        yield from ("", _overview(diagnosis, diagnosis.plan[: limit or None]))
    if diagnosis.fixes:
        yield from ("", f"**{escape_markdown(parts.plan_total(diagnosis))}**")
    for note in parts.needs_notes(diagnosis):
        yield from ("", escape_markdown(note))
    for finding in diagnosis.outside_plan:
        yield from ("", markdown_prose(parts.outside_plan_text(diagnosis, finding)))
    for position, section in enumerate(diagnosis.sections):
        lead = ("",) if position == 0 else ()
        text = f"{markdown_prose(section.summary())} (`{section.option}`)"
        yield from (*lead, f"- {text}")
    if details:
        for number, finding in enumerate(diagnosis.findings, 1):
            yield from finding_markdown(diagnosis, finding, number)
        yield from _foot_markdown(diagnosis)


def _ledger_markdown(diagnosis: TimelineDiagnosis) -> Iterator[str]:
    for device in diagnosis.ledger.devices:
        slices = [escape_markdown(text) for text in parts.slice_texts(parts.slices(device))]
        kinds = [escape_markdown(text) for text in parts.slice_texts(parts.computing(device))]
        computing = f" Computing: {', '.join(kinds)}." if kinds else ""
        yield from ("", f"GPU {device.device}: {', '.join(slices)}.{computing}")


def _overview(diagnosis: TimelineDiagnosis, findings: Sequence[TimelineFinding]) -> str:
    rows = [
        (
            str(number),
            markdown_prose(finding.title),
            markdown_code(finding.rule),
            escape_markdown(parts.saved_text(diagnosis, finding)),
            speedup,
            parts.alone_text(diagnosis, finding),
            parts.confidence(finding),
            finding.effort,
        )
        for number, (finding, speedup) in enumerate(
            zip(findings, parts.speedups_so_far(diagnosis), strict=False), 1
        )
    ]
    saves = "saves/step" if diagnosis.steps else "saves"
    headings = ("#", "fix", "rule", saves, "speedup so far", "alone", "confidence", "effort")
    return markdown_table(headings, (True, False, False, True, True, True, False, False), rows)


def finding_markdown(
    diagnosis: TimelineDiagnosis, finding: TimelineFinding, number: int
) -> Iterator[str]:
    """Explain one finding of a timeline."""
    numbered = f"{number}. " if finding.in_plan else ""
    yield from ("", f"### {numbered}{finding.rule}: {markdown_prose(finding.title)}", "")
    similar = finding.similar_fixes
    past = "" if similar is None else f" {markdown_prose(similar.text(finding.rule))}."
    yield (
        f"Gain: {escape_markdown(parts.timeline_gain(diagnosis, finding))}. "
        f"{markdown_prose(confidence_sentence(finding))}.{past}"
    )
    yield from evidence_markdown(finding.evidence)
    if heading := parts.where_heading(finding):
        yield from ("", f"Where ({escape_markdown(heading)}):")
    for position, where in enumerate(finding.where):
        amounts = ", ".join(filter(None, parts.location_amounts(diagnosis, where)))
        lead = ("",) if position == 0 else ()
        yield from (
            *lead,
            f"- {where.kind} {markdown_code(where.name)}: {escape_markdown(amounts)}",
        )
    yield from ("", f"{markdown_prose(finding.why)} {markdown_prose(finding.fix)}")
    if finding.code:
        yield from fenced(finding.code, parts.language(finding.code))
    if finding.verify:
        yield from ("", f"Verify: {markdown_prose(finding.verify)}")
    yield from ("", f"Caveats: {markdown_prose(finding.caveats)}")


def _foot_markdown(diagnosis: TimelineDiagnosis) -> Iterator[str]:
    if diagnosis.findings:
        yield from ("", escape_markdown(parts.replayed(diagnosis)))
    if diagnosis.clean:
        yield from ("", f"Passed: {', '.join(map(markdown_code, diagnosis.clean))}.")
    for rules, by in parts.covered(diagnosis):
        yield from ("", f"Covered by {markdown_code(by)}: {escape_markdown(rules)}.")
    for number, (rules, reason) in enumerate(parts.not_evaluated(diagnosis)):
        lead = ("", "Not evaluated:", "") if number == 0 else ()
        yield from (*lead, f"- {escape_markdown(rules)}: {markdown_prose(reason)}")
