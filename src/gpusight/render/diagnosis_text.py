"""A diagnosis on a terminal and as Markdown: of kernels and of a timeline."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, TextIO

from gpusight import units
from gpusight.render import diagnosis_summary as parts
from gpusight.render.cell_text import align_units, display_width, safe_text, shorten_middle
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
from gpusight.render.table_layout import GAP, TextColumn
from gpusight.render.terminal_tables import to_plain
from gpusight.render.terminal_text import (
    LABEL,
    StyledLine,
    code_lines,
    cut_line,
    draw_lines,
    labeled_lines,
    plain_lines,
    wrapped_lines,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.render.table_layout import TableOptions
    from gpusight.rules.diagnosis import KernelReportDiagnosis, TimelineDiagnosis
    from gpusight.rules.finding import Evidence, KernelFinding, SourceLocation, TimelineFinding


def kernels_to_text(diagnosis: KernelReportDiagnosis, look: TableOptions, *, details: int) -> str:
    """Write a diagnosis as plain text; `details` kernels are explained."""
    head = to_plain(kernel_overview(diagnosis), look)
    return head + plain_lines((*_summary(diagnosis, look), *_details(diagnosis, look, details)))


def print_kernels(
    diagnosis: KernelReportDiagnosis, look: TableOptions, stream: TextIO, *, details: int
) -> None:
    """Draw a diagnosis with colours on a stream that takes them."""
    from gpusight.render.terminal_tables import print_colored

    print_colored(kernel_overview(diagnosis), look, stream)
    draw_lines((*_summary(diagnosis, look), *_details(diagnosis, look, details)), stream)


def _summary(diagnosis: KernelReportDiagnosis, look: TableOptions) -> Iterator[StyledLine]:
    whole, saved = diagnosis.duration_ns, diagnosis.saved_ns
    if whole:
        text = (
            f"the first fix of each kernel together: {units.format_time(saved)} of "
            f"{units.format_time(whole)} ({units.format_share(saved / whole)})"
        )
        yield from wrapped_lines(text, look.width, "", "dim")
    for note in diagnosis.notes:
        yield from wrapped_lines(note, look.width, "note: ", "dim")


def _details(
    diagnosis: KernelReportDiagnosis, look: TableOptions, count: int
) -> Iterator[StyledLine]:
    worth = [g for g in diagnosis.groups if g.findings]
    for number, group in enumerate(worth[:count] if count else worth, 1):
        yield StyledLine("")
        yield from kernel_lines(explain_kernel(diagnosis, group), number, look.width)


def kernel_lines(kernel: ExplainedKernel, number: int, width: int | None) -> Iterator[StyledLine]:
    """Explain one kernel."""
    title = f"{number}. {kernel.title}"
    yield StyledLine(title if width is None else shorten_middle(title, width), "bold cyan")
    yield from wrapped_lines(kernel.subtitle, width, "   ", "dim")
    for finding in kernel.findings[:1]:
        yield from _finding_lines(finding, width)
    for finding in kernel.findings[1:]:
        yield from labeled_lines("then", f"{_headline(finding)}", width)
    for sentence in kernel.profiler:
        yield from labeled_lines("ncu", sentence, width, "dim")


def _finding_lines(finding: KernelFinding, width: int | None) -> Iterator[StyledLine]:
    yield from wrapped_lines(_headline(finding), width, "   ", "bold yellow")
    yield from labeled_lines("gain", confidence_sentence(finding), width)
    yield from evidence_lines(finding.evidence, width)
    for place in finding.places:
        yield from _location_lines(place, width)
    yield from labeled_lines("why", finding.why, width)
    yield from labeled_lines("fix", finding.fix, width)
    yield from code_lines(finding.code)
    if finding.also:
        yield from labeled_lines("also", f"accounts for {', '.join(finding.also)}", width, "dim")


def _location_lines(place: SourceLocation, width: int | None) -> Iterator[StyledLine]:
    """Name a source line, and show as much of it as fits."""
    text = safe_text(
        f"{units.format_share(place.share):>6}  {place.path}:{place.line}  {place.text}"
    )
    line = f"   {'line'.ljust(LABEL)}  {text}"
    yield StyledLine(cut_line(line, width))


def _headline(finding: KernelFinding) -> str:
    return f"{finding.rule}: {safe_text(finding.title)} ({gain_phrase(finding)})"


def kernels_to_markdown(diagnosis: KernelReportDiagnosis, *, limit: int, details: int) -> str:
    """Write a diagnosis; `limit` rows of the overview, `details` kernels explained; 0 for all."""
    return "\n".join(_kernels_markdown(diagnosis, limit, details)) + "\n"


def _kernels_markdown(diagnosis: KernelReportDiagnosis, limit: int, details: int) -> Iterator[str]:
    yield to_markdown(kernel_overview(diagnosis), limit=limit)
    whole = diagnosis.duration_ns
    if whole:
        saved = units.format_time(diagnosis.saved_ns)
        yield f"The first fix of each kernel together: {saved} of {units.format_time(whole)}."
    for note in diagnosis.notes:
        yield from ("", f"> {escape_markdown(note)}")
    worth = [g for g in diagnosis.groups if g.findings]
    for number, group in enumerate(worth[:details] if details else worth, 1):
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
        yield from _finding_markdown(finding)
    if kernel.profiler:
        yield from ("", "Nsight Compute's own rules:", "")
        yield from (f"- {escape_markdown(sentence)}" for sentence in kernel.profiler)


def _finding_markdown(finding: KernelFinding) -> Iterator[str]:
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
    for place in finding.places:
        share = units.format_share(place.share)
        yield from (
            "",
            f"- {share} {markdown_code(f'{place.path}:{place.line}')} {markdown_code(place.text)}",
        )
    yield from ("", f"{escape_markdown(finding.why)} {escape_markdown(finding.fix)}")
    yield from fenced(finding.code, "cuda")
    yield from ("", f"When it misleads: {escape_markdown(finding.caveats)}")


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


_RANK_WIDTH = 4
"""Columns for the rank of a finding."""
_UNSURE_MARK = "*"
"""Marks findings whose rank is not sure."""
_WORK = {"compute": "green", "copy": "blue", "communication": "cyan"}
_IDLE = ("yellow", "red", "magenta")
_DOT = " · "
_MIN_NAME_WIDTH = 12
_UNLIMITED_BAR_WIDTH = 80
"""Room for a bar on a screen without end."""


def timeline_to_text(diagnosis: TimelineDiagnosis, look: TableOptions, *, details: int) -> str:
    """Write a diagnosis as plain text; `details` findings are explained, 0 for all."""
    return plain_lines(timeline_lines(diagnosis, look, details=details))


def print_timeline(
    diagnosis: TimelineDiagnosis, look: TableOptions, stream: TextIO, *, details: int
) -> None:
    """Draw a diagnosis with colours on a stream that takes them."""
    draw_lines(timeline_lines(diagnosis, look, details=details), stream)


def timeline_lines(
    diagnosis: TimelineDiagnosis, look: TableOptions, *, details: int
) -> Iterator[StyledLine]:
    """Give the lines of a diagnosis."""
    yield from wrapped_lines(parts.diagnosis_head(diagnosis), look.width, "", "bold")
    for note in diagnosis.notes:
        yield from wrapped_lines(note, look.width, "note: ", "yellow")
    yield from _ledger(diagnosis, look)
    yield StyledLine("")
    yield from _verdict(diagnosis, look)
    yield from _findings(diagnosis, look)
    yield from _foot(diagnosis, look)
    shown = diagnosis.findings[:details] if details else diagnosis.findings
    for number, finding in enumerate(shown, 1):
        yield StyledLine("")
        yield from _explained(diagnosis, finding, number, look.width)


def _ledger(diagnosis: TimelineDiagnosis, look: TableOptions) -> Iterator[StyledLine]:
    device = parts.evaluated_device(diagnosis)
    if device is None:
        return
    slices = parts.slices(device)
    styles = _styles(slices)
    if look.bars:
        yield _bar(slices, styles, min(look.width or _UNLIMITED_BAR_WIDTH, _UNLIMITED_BAR_WIDTH))
    yield from _legend(parts.slice_texts(slices), styles, look.width)
    kinds = parts.computing(device)
    if len(kinds) > 1:
        text = " · ".join(parts.slice_texts(kinds))
        yield from wrapped_lines(text, look.width, "  compute: ", "dim")


def _styles(slices: list[parts.LedgerSlice]) -> list[str]:
    """Give work the colours of work, and idle time, the largest cause first, those of alarm."""
    left = list(_IDLE)
    work = (_WORK.get(part.name.split("/")[0]) for part in slices)
    return [
        style or (left.pop(0) if part.idle and left else "dim")
        for part, style in zip(slices, work, strict=True)
    ]


def _bar(slices: list[parts.LedgerSlice], styles: list[str], width: int) -> StyledLine:
    """Draw the window as one bar; the ends of its parts are rounded to columns."""
    pieces, passed = [], 0.0
    for part, style in zip(slices, styles, strict=True):
        start, passed = round(passed * width), passed + part.share
        pieces.append(("█" * (round(passed * width) - start), style))
    return StyledLine("█" * width, parts=tuple(pieces))


def _legend(words: list[str], styles: list[str], width: int | None) -> Iterator[StyledLine]:
    """Name the parts of the window, in the colours of the bar; no part is broken over lines."""
    row: list[tuple[str, str]] = []
    for word, style in zip(words, styles, strict=True):
        used = sum(display_width(w) + len(_DOT) for w, _ in row)
        if row and width is not None and used + display_width(word) > width:
            yield _joined(row)
            row = []
        row.append((word, style))
    if row:
        yield _joined(row)


def _joined(row: list[tuple[str, str]]) -> StyledLine:
    pieces = [piece for word in row for piece in ((_DOT, "dim"), word)][1:]
    return StyledLine(_DOT.join(word for word, _ in row), parts=tuple(pieces))


def _verdict(diagnosis: TimelineDiagnosis, look: TableOptions) -> Iterator[StyledLine]:
    text = parts.timeline_verdict(diagnosis)
    if text:
        yield from wrapped_lines(text, look.width, "", "bold green")


def _findings(diagnosis: TimelineDiagnosis, look: TableOptions) -> Iterator[StyledLine]:
    """List the findings: its title, and below it the rule and its numbers in columns."""
    shown = diagnosis.findings[: look.limit] if look.limit else diagnosis.findings
    if not shown:
        return
    headings, *rows = _columns(diagnosis, shown)
    if parts.timeline_verdict(diagnosis):
        yield StyledLine("")
    yield StyledLine(headings, "bold")
    for number, (finding, row) in enumerate(zip(shown, rows, strict=True), 1):
        lead = f"{number:>{_RANK_WIDTH - 2}}. "
        yield from wrapped_lines(finding.title, look.width, lead, "cyan")
        yield StyledLine(row)
    left_out = len(diagnosis.findings) - len(shown)
    if left_out:
        yield StyledLine(f"… and {left_out:,} more; {look.rows_advice}", "dim")


def _columns(diagnosis: TimelineDiagnosis, findings: tuple[TimelineFinding, ...]) -> list[str]:
    """Lay the numbers of findings out in columns, with a heading."""
    each = "Saves a step" if diagnosis.steps else "Saves"
    times = [
        align_units([parts.per_step(diagnosis, ns) for ns in column])
        for column in ([f.recoverable_ns for f in findings], [f.after_ns for f in findings])
    ]
    marks = ["" if f.robust else _UNSURE_MARK for f in findings]
    columns = (
        TextColumn.natural("Finding", [f.rule for f in findings]),
        TextColumn.natural(each, times[0], right=True),
        TextColumn.natural("Share", [units.format_share(f.share) for f in findings], right=True),
        TextColumn.natural("After above", times[1], right=True),
        TextColumn.natural(
            "Confidence",
            [f.confidence.value + mark for f, mark in zip(findings, marks, strict=True)],
        ),
    )
    indent, gap = " " * _RANK_WIDTH, " " * GAP
    heading = gap.join(c.padded_heading for c in columns)
    rows = (gap.join(c.padded(row) for c in columns) for row in range(len(findings)))
    return [f"{indent}{line}".rstrip() for line in (heading, *rows)]


def _foot(diagnosis: TimelineDiagnosis, look: TableOptions) -> Iterator[StyledLine]:
    yield StyledLine("")
    if diagnosis.findings:
        yield from wrapped_lines(parts.replayed(diagnosis), look.width, "", "dim")
    if not all(finding.robust for finding in diagnosis.findings):
        yield from wrapped_lines(parts.UNSURE, look.width, f"{_UNSURE_MARK} ", "dim")
    if diagnosis.clean:
        text = f"{len(diagnosis.clean)} rules found nothing: {', '.join(diagnosis.clean)}"
        yield from wrapped_lines(text, look.width, "", "dim")
    for rules, by in parts.covered(diagnosis):
        yield from wrapped_lines(f"covered by {by}: {rules}", look.width, "", "dim")
    for rules, reason in parts.not_evaluated(diagnosis):
        yield from wrapped_lines(f"{rules}: {reason}", look.width, "not judged: ", "dim")


def _explained(
    diagnosis: TimelineDiagnosis, finding: TimelineFinding, number: int, width: int | None
) -> Iterator[StyledLine]:
    yield from wrapped_lines(f"{finding.rule}: {finding.title}", width, f"{number}. ", "bold cyan")
    yield from labeled_lines("gain", parts.timeline_gain(diagnosis, finding), width, "bold yellow")
    yield from labeled_lines("", confidence_sentence(finding), width, "dim")
    yield from evidence_lines(finding.evidence, width)
    yield from _locations(diagnosis, finding, width)
    yield from labeled_lines("why", finding.why, width)
    yield from labeled_lines("fix", finding.fix, width)
    yield from code_lines(finding.code)
    if finding.verify:
        yield from labeled_lines("check", finding.verify, width)


def _locations(
    diagnosis: TimelineDiagnosis, finding: TimelineFinding, width: int | None
) -> Iterator[StyledLine]:
    """Name the places with their times in a column; long names lose their middle."""
    amounts = [parts.location_amounts(diagnosis, where) for where in finding.where]
    widest = max((display_width(time) for time, _ in amounts), default=0)
    for number, (where, (time, often)) in enumerate(zip(finding.where, amounts, strict=True)):
        lead = f"   {'' if number else 'where':<{LABEL}}  {time.rjust(widest)}  {where.kind} "
        end = f", {often}" if often else ""
        name = safe_text(where.name)
        if width is not None:
            name = shorten_middle(name, max(_MIN_NAME_WIDTH, width - display_width(lead + end)))
        yield StyledLine(f"{lead}{name}{end}")


def timeline_to_markdown(diagnosis: TimelineDiagnosis, *, limit: int, details: int) -> str:
    """Write a diagnosis; `limit` findings listed, `details` of them explained; 0 for all."""
    return "\n".join(_timeline_markdown(diagnosis, limit, details)) + "\n"


def _timeline_markdown(diagnosis: TimelineDiagnosis, limit: int, details: int) -> Iterator[str]:
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
    shown = diagnosis.findings[: limit or None]
    if shown:
        yield from ("", _overview(diagnosis, shown))
    for number, finding in enumerate(diagnosis.findings[: details or None], 1):
        yield from _explained_markdown(diagnosis, finding, number)
    yield from _foot_markdown(diagnosis)


def _ledger_markdown(diagnosis: TimelineDiagnosis) -> Iterator[str]:
    for device in diagnosis.ledger.devices:
        slices = [escape_markdown(text) for text in parts.slice_texts(parts.slices(device))]
        kinds = [escape_markdown(text) for text in parts.slice_texts(parts.computing(device))]
        computing = f" Computing: {', '.join(kinds)}." if kinds else ""
        yield from ("", f"GPU {device.device}: {', '.join(slices)}.{computing}")


def _overview(diagnosis: TimelineDiagnosis, findings: tuple[TimelineFinding, ...]) -> str:
    each = "saves a step" if diagnosis.steps else "saves"
    rows = [
        (
            markdown_code(finding.rule),
            markdown_prose(finding.title),
            parts.per_step(diagnosis, finding.recoverable_ns),
            escape_markdown(units.format_share(finding.share)),
            parts.per_step(diagnosis, finding.after_ns),
            parts.confidence(finding),
        )
        for finding in findings
    ]
    headings = ("finding", "what was seen", each, "share", "after those above", "confidence")
    return markdown_table(headings, (False, False, True, True, True, False), rows)


def _explained_markdown(
    diagnosis: TimelineDiagnosis, finding: TimelineFinding, number: int
) -> Iterator[str]:
    yield from ("", f"### {number}. {finding.rule}: {markdown_prose(finding.title)}", "")
    yield (
        f"Gain: {escape_markdown(parts.timeline_gain(diagnosis, finding))}. "
        f"{markdown_prose(confidence_sentence(finding))}."
    )
    yield from evidence_markdown(finding.evidence)
    for number, where in enumerate(finding.where):
        amounts = ", ".join(filter(None, parts.location_amounts(diagnosis, where)))
        lead = ("",) if number == 0 else ()
        yield from (
            *lead,
            f"- {where.kind} {markdown_code(where.name)}: {escape_markdown(amounts)}",
        )
    yield from ("", f"{markdown_prose(finding.why)} {markdown_prose(finding.fix)}")
    if finding.code:
        yield from fenced(finding.code, parts.language(finding.code))
    if finding.verify:
        yield from ("", f"Check afterwards: {markdown_prose(finding.verify)}")
    yield from ("", f"When it misleads: {markdown_prose(finding.caveats)}")


def _foot_markdown(diagnosis: TimelineDiagnosis) -> Iterator[str]:
    if diagnosis.findings:
        yield from ("", escape_markdown(parts.replayed(diagnosis)))
    if diagnosis.clean:
        yield from ("", f"Nothing found by: {', '.join(map(markdown_code, diagnosis.clean))}.")
    for rules, by in parts.covered(diagnosis):
        yield from ("", f"Covered by {markdown_code(by)}: {escape_markdown(rules)}.")
    for number, (rules, reason) in enumerate(parts.not_evaluated(diagnosis)):
        lead = ("", "Not judged:", "") if number == 0 else ()
        yield from (*lead, f"- {escape_markdown(rules)}: {markdown_prose(reason)}")
