"""A timeline's diagnosis on a terminal: what holds the program back, in ten lines; then why."""

from __future__ import annotations

from typing import TYPE_CHECKING, TextIO

from gpusight import units
from gpusight.render.cells import align_units, display_width, safe_text, shorten_middle
from gpusight.render.diagnosis import timeline_parts as parts
from gpusight.render.diagnosis.lines import (
    LABEL,
    Line,
    code_lines,
    draw,
    labelled,
    plain,
    seen,
    wrapped,
)
from gpusight.render.diagnosis.parts import trust

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.findings.timeline.diagnosis import TimelineDiagnosis
    from gpusight.findings.timeline.finding import TimelineFinding
    from gpusight.render.layout import Look

_LEAD = 4
"""Columns for the rank of a finding."""
_UNSURE = "*"
"""Marks findings whose rank is not sure."""
_WORK = {"compute": "green", "copy": "blue", "communication": "cyan"}
_IDLE = ("yellow", "red", "magenta")
_DOT = " · "
_NAME_LEAST = 12
_UNWRAPPED = 80
"""Room for a bar on a screen without end."""


def to_text(diagnosis: TimelineDiagnosis, look: Look, *, details: int) -> str:
    """Write a diagnosis as plain text; `details` findings are explained, 0 for all."""
    return plain(lines_of(diagnosis, look, details=details))


def print_text(diagnosis: TimelineDiagnosis, look: Look, stream: TextIO, *, details: int) -> None:
    """Draw a diagnosis with colours on a stream that takes them."""
    draw(lines_of(diagnosis, look, details=details), stream)


def lines_of(diagnosis: TimelineDiagnosis, look: Look, *, details: int) -> Iterator[Line]:
    """Give the lines of a diagnosis."""
    yield from wrapped(parts.head(diagnosis), look.width, "", "bold")
    for note in diagnosis.notes:
        yield from wrapped(note, look.width, "note: ", "yellow")
    yield from _ledger(diagnosis, look)
    yield Line("")
    yield from _verdict(diagnosis, look)
    yield from _findings(diagnosis, look)
    yield from _foot(diagnosis, look)
    shown = diagnosis.findings[:details] if details else diagnosis.findings
    for number, finding in enumerate(shown, 1):
        yield Line("")
        yield from _explained(diagnosis, finding, number, look.width)


def _ledger(diagnosis: TimelineDiagnosis, look: Look) -> Iterator[Line]:
    device = parts.judged_device(diagnosis)
    if device is None:
        return
    found = parts.slices(device)
    styles = _styles(found)
    if look.bars:
        yield _bar(found, styles, min(look.width or _UNWRAPPED, _UNWRAPPED))
    yield from _legend(parts.slice_texts(found), styles, look.width)
    kinds = parts.computing(device)
    if len(kinds) > 1:
        text = " · ".join(parts.slice_texts(kinds))
        yield from wrapped(text, look.width, "  compute: ", "dim")


def _styles(found: list[parts.Slice]) -> list[str]:
    """Give work the colours of work, and idle time, the largest cause first, those of alarm."""
    left = list(_IDLE)
    work = (_WORK.get(one.name.split("/")[0]) for one in found)
    return [
        style or (left.pop(0) if one.idle and left else "dim")
        for one, style in zip(found, work, strict=True)
    ]


def _bar(found: list[parts.Slice], styles: list[str], width: int) -> Line:
    """Draw the window as one bar; the ends of its parts are rounded to columns."""
    pieces, passed = [], 0.0
    for one, style in zip(found, styles, strict=True):
        start, passed = round(passed * width), passed + one.share
        pieces.append(("█" * (round(passed * width) - start), style))
    return Line("█" * width, parts=tuple(pieces))


def _legend(words: list[str], styles: list[str], width: int | None) -> Iterator[Line]:
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


def _joined(row: list[tuple[str, str]]) -> Line:
    pieces = [piece for one in row for piece in ((_DOT, "dim"), one)][1:]
    return Line(_DOT.join(word for word, _ in row), parts=tuple(pieces))


def _verdict(diagnosis: TimelineDiagnosis, look: Look) -> Iterator[Line]:
    text = parts.verdict(diagnosis)
    if text:
        yield from wrapped(text, look.width, "", "bold green")


def _findings(diagnosis: TimelineDiagnosis, look: Look) -> Iterator[Line]:
    """List the findings: its title, and below it the rule and its numbers in columns."""
    found = diagnosis.findings[: look.limit] if look.limit else diagnosis.findings
    if not found:
        return
    headings, *rows = _columns(diagnosis, found)
    if parts.verdict(diagnosis):
        yield Line("")
    yield Line(headings, "bold")
    for number, (finding, row) in enumerate(zip(found, rows, strict=True), 1):
        lead = f"{number:>{_LEAD - 2}}. "
        yield from wrapped(finding.title, look.width, lead, "cyan")
        yield Line(row)
    left_out = len(diagnosis.findings) - len(found)
    if left_out:
        yield Line(f"… and {left_out:,} more; {look.rows_advice}", "dim")


def _columns(diagnosis: TimelineDiagnosis, found: tuple[TimelineFinding, ...]) -> list[str]:
    """Lay the numbers of findings out in columns, with a heading."""
    each = "Saves a step" if diagnosis.steps else "Saves"
    times = [
        align_units([parts.per_step(diagnosis, ns) for ns in column])
        for column in ([f.recoverable_ns for f in found], [f.after_ns for f in found])
    ]
    columns: list[tuple[str, list[str], bool]] = [
        ("Finding", [f.rule for f in found], False),
        (each, times[0], True),
        ("Share", [units.format_share(f.share) for f in found], True),
        ("After above", times[1], True),
        ("Confidence", [f.confidence.value + ("" if f.robust else _UNSURE) for f in found], False),
    ]
    lines = [" " * _LEAD] * (len(found) + 1)
    for heading, cells, right in columns:
        width = max(map(len, (heading, *cells)))
        padded = [c.rjust(width) if right else c.ljust(width) for c in (heading, *cells)]
        lines = [f"{line}{cell}  " for line, cell in zip(lines, padded, strict=True)]
    return [line.rstrip() for line in lines]


def _foot(diagnosis: TimelineDiagnosis, look: Look) -> Iterator[Line]:
    yield Line("")
    if diagnosis.findings:
        yield from wrapped(parts.replayed(diagnosis), look.width, "", "dim")
    if not all(finding.robust for finding in diagnosis.findings):
        yield from wrapped(parts.UNSURE, look.width, f"{_UNSURE} ", "dim")
    if diagnosis.clean:
        text = f"{len(diagnosis.clean)} rules found nothing: {', '.join(diagnosis.clean)}"
        yield from wrapped(text, look.width, "", "dim")
    for rules, by in parts.covered(diagnosis):
        yield from wrapped(f"covered by {by}: {rules}", look.width, "", "dim")
    for rules, reason in parts.not_judged(diagnosis):
        yield from wrapped(f"{rules}: {reason}", look.width, "not judged: ", "dim")


def _explained(
    diagnosis: TimelineDiagnosis, finding: TimelineFinding, number: int, width: int | None
) -> Iterator[Line]:
    yield from wrapped(f"{finding.rule}: {finding.title}", width, f"{number}. ", "bold cyan")
    yield from labelled("gain", parts.gain(diagnosis, finding), width, "bold yellow")
    yield from labelled("", trust(finding), width, "dim")
    yield from seen(finding.evidence, width)
    yield from _places(diagnosis, finding, width)
    yield from labelled("why", finding.why, width)
    yield from labelled("fix", finding.fix, width)
    yield from code_lines(finding.code)
    if finding.afterwards:
        yield from labelled("check", finding.afterwards, width)


def _places(
    diagnosis: TimelineDiagnosis, finding: TimelineFinding, width: int | None
) -> Iterator[Line]:
    """Name the places with their times in a column; long names lose their middle."""
    told = [parts.place(diagnosis, where) for where in finding.where]
    widest = max((display_width(time) for time, _ in told), default=0)
    for number, (where, (time, often)) in enumerate(zip(finding.where, told, strict=True)):
        lead = f"   {'' if number else 'where':<{LABEL}}  {time.rjust(widest)}  {where.kind} "
        end = f", {often}" if often else ""
        name = safe_text(where.name)
        if width is not None:
            name = shorten_middle(name, max(_NAME_LEAST, width - display_width(lead + end)))
        yield Line(f"{lead}{name}{end}")
