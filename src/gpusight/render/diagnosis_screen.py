"""The first screen of `diagnose`: what was looked at, where the time goes, the plan, what is next.

At most 15 lines at 100 columns, whatever the capture. Everything else is behind `gpusight explain`
and `diagnose --details`.
"""

from __future__ import annotations

import re
import shlex
import sys
from dataclasses import replace
from typing import TYPE_CHECKING

from gpusight.render import diagnosis_summary as summary
from gpusight.render.cell_text import display_width, safe_text, shorten_end, shorten_middle
from gpusight.render.explanation import gain_text
from gpusight.render.table_layout import GAP, TextColumn, fit_columns
from gpusight.render.terminal_text import (
    StyledLine,
    command_lines,
    cut_line,
    note_lines,
    wrapped_lines,
)
from gpusight.rules.diagnosis import (
    COLLECT_ALL,
    JoinedDiagnosis,
    KernelReportDiagnosis,
    TimelineDiagnosis,
    timeline_of,
)
from gpusight.units import MISSING, format_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusight.render.table_layout import TableOptions
    from gpusight.rules.diagnosis import AnyDiagnosis
    from gpusight.rules.finding import TimelineFinding


MAX_LINES = 15
_MAX_HEAD_LINES, _MAX_NARROW_HEAD_LINES = 2, 3
_NARROW = 80
"""Below as many columns, the headline may have a line more: it is never cut inside its facts."""
_MAX_NOTE_LINES = 2
_DETAIL = re.compile(
    r": (?=\d|about |GPU idle )| (?=stalls the GPU )| \(|(?<!above) \d[\d.]*%(?=$| \()"
)
"""Where the numbers of a title start: `explain` and `--details` have them too."""
_CLAUSE = re.compile(rf"{_DETAIL.pattern}|[:,;] ")
"""Where a title can end without reading cut."""
_MIN_FINDING_WIDTH = 36
"""Columns for a kernel and its finding: with fewer, the rows of a report look the same."""
_MIN_LABEL_WIDTH = 10
"""Columns that the name of a kernel needs to be recognized."""
_MIN_FITTED_SHARE, _MIN_CLAUSE_SHARE = 0.3, 0.4
"""Share of a column that a text without its numbers, or without clauses, must fill."""
_MAX_KERNELS = 3
"""Profiled kernels that are listed below the plan of a timeline."""
_MAX_SECTIONS = 4
"""Lines for the other processes and GPUs of a timeline."""
_MIN_PLAN_ROWS = 3
"""Fixes that are listed before further lines for other processes."""
_MIN_SAVED_SHARE = 0.005
"""Below it, the time before and after the fixes reads the same."""
_WORK_STYLES = {"compute": "green", "copies": "blue", "communication": "cyan"}
_UNLIMITED_WIDTH = 100
_OVERHEAD, _IN_LEDGER = "profiler-overhead", "profiler"
"""The rule, and the idle cause, of the profiler's own overhead."""
_LEAD = 4
"""Columns for the number of a finding."""


def screen_lines(
    diagnosis: AnyDiagnosis,
    look: TableOptions,
    *,
    details: bool = False,
    typed: Sequence[str] | None = None,
) -> list[StyledLine]:
    """Give the lines of the first screen; all rows and no notes where `details` follow.

    `typed` are the options of the command line that chose what was diagnosed.
    """
    next_lines = _next_lines(diagnosis, typed, look.width)
    max_lines = sys.maxsize if details else MAX_LINES - max(0, len(next_lines) - 1)
    if isinstance(diagnosis, KernelReportDiagnosis):
        head = _head_lines(summary.kernels_head(diagnosis), look.width)
        head += note_lines(() if details else diagnosis.notes, look.width, _MAX_NOTE_LINES)
        table = _kernel_report_rows(diagnosis, look.width, max_lines - len(head) - 3)
        return [*head, StyledLine(""), *table, *next_lines]
    timeline = timeline_of(diagnosis)
    head = _head_lines(summary.diagnosis_head(timeline), look.width)
    head += _ledger_lines(timeline, look)
    head += note_lines(() if details else _brief_notes(timeline), look.width, _MAX_NOTE_LINES)
    others = max_lines - len(head) - 2 - _min_plan_lines(timeline)
    if isinstance(diagnosis, JoinedDiagnosis):  # the screen has room for one of the two
        below = _joined_rows(diagnosis, look.width, None if details else others)
    else:
        below = _section_rows(timeline, look.width, min(_MAX_SECTIONS, max(1, others)))
    plan = list(_plan_lines(timeline, look, max_lines - len(head) - len(below) - 2))
    return [*head, StyledLine(""), *plan, *below, *next_lines]


_MIN_NAME_WIDTH = 16


def _head_lines(text: str, width: int | None) -> list[StyledLine]:
    """Wrap the headline to few lines; the name of a file that needs more loses its middle."""
    is_narrow = width is not None and width < _NARROW
    max_lines = _MAX_NARROW_HEAD_LINES if is_narrow else _MAX_HEAD_LINES
    lines = list(wrapped_lines(text, width, "", "bold"))
    name, _, rest = safe_text(text).partition(": ")
    if width is not None and (len(lines) > max_lines or display_width(name) >= width):
        room = min(width - 1, max_lines * width - width // 4 - display_width(rest))
        text = f"{shorten_middle(name, max(_MIN_NAME_WIDTH, room))}: {rest}"
        lines = list(wrapped_lines(text, width, "", "bold"))
        if len(lines) > max_lines + is_narrow:  # a line more is better than a number without unit
            text = shorten_middle(text, max_lines * width - width // 8)
            lines = list(wrapped_lines(text, width, "", "bold"))[:max_lines]
    return lines


def _line(text: str, width: int | None, style: str = "") -> StyledLine:
    text = safe_text(text)
    return StyledLine(text if width is None else shorten_middle(text, width), style)


def _brief_notes(timeline: TimelineDiagnosis) -> list[str]:
    """Give the notes; `--details` has how an estimate of the step time was made."""
    correction = timeline.correction
    if correction is None:
        return list(timeline.notes)
    return [correction.brief if n == correction.text else n for n in timeline.notes]


def _ledger_lines(timeline: TimelineDiagnosis, look: TableOptions) -> Iterator[StyledLine]:
    """Give where the time goes: a line, and above it a bar where there are colors."""
    device = summary.evaluated_device(timeline)
    if device is None:
        return
    groups = summary.ledger_groups(device)
    if any(finding.rule == _OVERHEAD for finding in timeline.findings):
        # Its note has the overhead; only a part of that leaves the GPU idle.
        groups = [
            replace(g, parts=tuple(p for p in g.parts if p.name != _IN_LEDGER)) for g in groups
        ]
    if look.bars:
        width = min(look.width or _UNLIMITED_WIDTH, _UNLIMITED_WIDTH)
        parts, end = [], 0.0
        for group in groups:
            start, end = round(end * width), end + group.share
            parts.append(("█" * (round(end * width) - start), _style(group.name)))
        yield StyledLine.of_parts(parts)
    for idle_causes, others in ((3, 1), (3, 0), (2, 0), (1, 0), (0, 0)):
        texts = [
            (group.text(idle_causes if group.name == "idle" else others), _style(group.name))
            for group in groups
        ]
        width = sum(display_width(text) + 3 for text, _ in texts) - 3
        if look.width is None or width <= look.width:
            break
    separated = [part for text in texts for part in ((" · ", "dim"), text)][1:]
    line = StyledLine.of_parts(separated)
    yield line if look.width is None or width <= look.width else _line(line.text, look.width)


def _style(group: str) -> str:
    return _WORK_STYLES.get(group, "yellow" if group.startswith("idle") else "dim")


def _min_plan_lines(timeline: TimelineDiagnosis) -> int:
    """Return how many lines the first fixes need, with their heading and what stands below them."""
    rows = min(len(timeline.plan), _MIN_PLAN_ROWS)
    more = len(timeline.plan) > rows
    notes = bool(timeline.outside_plan) or bool(summary.needs_notes(timeline))
    return 1 + rows + more + bool(timeline.fixes) + bool(summary.alone_note(timeline)) + notes


def _plan_lines(
    timeline: TimelineDiagnosis, look: TableOptions, max_lines: int
) -> Iterator[StyledLine]:
    """List the fixes in their order, what all of them save, and what is not in the plan."""
    outside = [_line(text, look.width) for text in summary.needs_notes(timeline)]
    outside += [
        _outside_plan_line(timeline, finding, look.width) for finding in timeline.outside_plan
    ]
    if not timeline.plan:
        yield from list(wrapped_lines(summary.timeline_verdict(timeline), look.width, ""))[:3]
        yield from outside[: max_lines - 3]
        return
    total = summary.plan_total(timeline) if timeline.fixes else ""
    note = summary.alone_note(timeline)
    one_line = f"{total}  {note}"
    if look.width is None or display_width(one_line) <= look.width:
        total, note = one_line.rstrip(), ""
    room = max_lines - 1 - bool(total) - bool(note)
    if len(outside) > max(1, room - len(timeline.plan)):
        outside = [StyledLine(f"below the plan: {len(outside)} more notes (--details)", "dim")]
    room -= len(outside)
    shown = timeline.plan if len(timeline.plan) <= room else timeline.plan[: room - 1]
    yield from _plan_table(timeline, shown, look.width)
    if len(shown) < len(timeline.plan):
        more = len(timeline.plan) - len(shown)
        yield StyledLine(f"{'':{_LEAD}}… {more} more: --details", "dim")
    if total:
        yield _line(total, look.width, "bold green")
    if note:
        if display_width(note) > (look.width or len(note)):
            note = note.rpartition("; ")[2]
        while display_width(note) > (look.width or len(note)) and ", " in note:
            note = f"{note.removesuffix(', …').rpartition(', ')[0]}, …"
        yield StyledLine(cut_line(note, look.width), "dim")
    yield from outside


def _outside_plan_line(
    timeline: TimelineDiagnosis, finding: TimelineFinding, width: int | None
) -> StyledLine:
    """Give a finding that is not in the plan; its title loses what is too much for the line."""
    text = summary.outside_plan_text(timeline, finding)
    over = 0 if width is None else display_width(text) - width
    if over > 0:
        title = _fitted(finding.title, max(1, display_width(finding.title) - over))
        text = summary.outside_plan_text(timeline, replace(finding, title=title))
    return _line(text, width)


def _plan_table(
    timeline: TimelineDiagnosis, findings: Sequence[TimelineFinding], width: int | None
) -> Iterator[StyledLine]:
    speedups = summary.speedups_so_far(timeline)[: len(findings)]
    columns = (
        TextColumn.natural("Fix", [f.title for f in findings], can_shorten=True),
        TextColumn.natural(
            "Saves/step" if timeline.steps else "Saves",
            [summary.saved_text(timeline, f) for f in findings],
            right=True,
            priority=3,
        ),
        TextColumn.natural("Speedup so far", speedups, right=True, priority=2),
        TextColumn.natural("Confidence", [f.confidence.value for f in findings], priority=1),
        TextColumn.natural("Effort", [f.effort or MISSING for f in findings]),
    )
    if width is not None and _LEAD + sum(c.width + GAP for c in columns) - GAP > width:
        speedup = TextColumn.natural("So far", speedups, right=True, priority=2)
        columns = (*columns[:2], speedup, *columns[3:])
    yield from _numbered_table(columns, ["cyan"] * len(findings), width)


def brief_title(title: str) -> str:
    """Return the title of a finding without its numbers."""
    detail = _DETAIL.search(title)
    return title if detail is None else title[: detail.start()]


def _fitted(text: str, width: int) -> str:
    """Shorten a text to a width: whole clauses where much is left, else whole words."""
    if display_width(text) <= width:
        return text
    for pattern, share in ((_DETAIL, _MIN_FITTED_SHARE), (_CLAUSE, _MIN_CLAUSE_SHARE)):
        ends = [end.start() for end in pattern.finditer(text) if end.start() <= width]
        if ends and ends[-1] >= share * width:
            return text[: ends[-1]]
    return _whole_words(text, width)


def _whole_words(text: str, width: int) -> str:
    """Shorten a text to a width, between words where that leaves much of it."""
    cut = shorten_end(text, width)
    if text[len(cut) - 1 :].startswith(" "):  # between two words
        return cut
    words = cut[:-1].rpartition(" ")[0].rstrip(",;:(")
    return f"{words}…" if len(words) >= _MIN_FITTED_SHARE * width else cut


def _fitted_kernel(label: str, title: str, width: int) -> str:
    """Shorten a kernel and its finding: clauses of the finding go, then the name's middle."""
    ends = [end.start() for end in _CLAUSE.finditer(title)]
    forms = [title, *(title[:end] for end in reversed(ends))]
    room = width - display_width(": ")
    for form in forms:
        if display_width(label + form) <= room:
            return f"{label}: {form}"
    room -= display_width(forms[-1])
    if room < min(_MIN_LABEL_WIDTH, display_width(label)):
        return _whole_words(f"{label}: {title}", width)
    return f"{shorten_middle(label, room)}: {forms[-1]}"


def _numbered_table(
    columns: Sequence[TextColumn],
    styles: Sequence[str],
    width: int | None,
    *,
    first_number: int = 1,
    labels: Sequence[str] = (),
) -> Iterator[StyledLine]:
    """Lay rows out behind their numbers; texts that are too long lose details, then words.

    `labels` are the names of kernels, where the texts begin with these.
    """
    texts = [safe_text(text) for text in columns[0].cells]
    layout = fit_columns(columns, None if width is None else width - _LEAD)
    first, *others = layout.columns
    names = [safe_text(label) for label in labels]
    if names:
        titles = [text.removeprefix(f"{n}: ") for n, text in zip(names, texts, strict=True)]
        pairs = zip(names, titles, strict=True)
        cells = tuple(_fitted_kernel(name, title, first.width) for name, title in pairs)
    else:
        cells = tuple(_fitted(text, first.width) for text in texts)
    fitted = (replace(first, cells=cells), *others)
    gap = " " * layout.gap
    heading = gap.join(c.padded_heading for c in fitted)
    yield StyledLine(f"{'':{_LEAD}}{heading}", "bold")
    for row, style in enumerate(styles):
        rest = "".join(gap + c.padded(row) for c in fitted[1:])
        parts = ((f"{row + first_number:>2}. ", "dim"), (fitted[0].padded(row), style), (rest, ""))
        yield StyledLine.of_parts(parts)


def _kernel_report_rows(
    diagnosis: KernelReportDiagnosis, width: int | None, max_rows: int
) -> Iterator[StyledLine]:
    """List the kernels of a report, the one that saves most first."""
    groups = [group for group in diagnosis.groups if group.findings]
    if not groups:
        yield from wrapped_lines(summary.no_kernel_finding(diagnosis), width, "")
        return
    shown = groups if len(groups) <= max_rows - 2 else groups[: max_rows - 3]
    firsts = [group.findings[0] for group in shown]
    columns = (
        TextColumn.natural(
            "Kernel",
            [f"{g.label}: {f.title}" for g, f in zip(shown, firsts, strict=True)],
            can_shorten=True,
            min_width=_MIN_FINDING_WIDTH,
        ),
        TextColumn.natural(
            "Time", [format_time(g.duration_ns or None, digits=3) for g in shown], right=True
        ),
        TextColumn.natural(
            "Saves",
            [format_time(f.saved_ns or None, digits=3) for f in firsts],
            right=True,
            priority=3,
        ),
        TextColumn.natural(
            "Speedup", [gain_text(f) or MISSING for f in firsts], right=True, priority=2
        ),
        TextColumn.natural("Confidence", [f.confidence.value for f in firsts], priority=1),
    )
    labels = [group.label for group in shown]
    yield from _numbered_table(columns, ["cyan"] * len(shown), width, labels=labels)
    if len(shown) < len(groups):
        yield StyledLine(f"{'':{_LEAD}}… {len(groups) - len(shown)} more: --details", "dim")
    if diagnosis.saved_ns > _MIN_SAVED_SHARE * diagnosis.duration_ns:
        yield _line(summary.kernels_total(diagnosis), width, "bold green")


def _joined_rows(
    diagnosis: JoinedDiagnosis, width: int | None, max_lines: int | None
) -> list[StyledLine]:
    """List the profiled kernels that would save most of the timeline's GPU time.

    Their numbers follow those of the timeline's findings, and `explain` takes them.
    """
    steps = max(1, diagnosis.timeline.steps)
    kernels = diagnosis.kernels_with_findings
    if max_lines is not None and kernels and max_lines < 2:
        return [StyledLine(f"and {len(kernels)} profiled kernels with findings: --details", "dim")]
    shown = kernels if max_lines is None else kernels[: min(_MAX_KERNELS, max_lines - 1)]
    if not shown:
        return []
    firsts = [kernel.group.findings[0] for kernel in shown]
    texts = [f"{k.group.label}: {f.title}" for k, f in zip(shown, firsts, strict=True)]
    of_all = f" ({len(shown)} of {len(kernels)})" if len(shown) < len(kernels) else ""
    times = [format_time(kernel.time_ns / steps, digits=3) for kernel in shown]
    columns = [
        TextColumn.natural(f"Profiled kernel{of_all}", texts, can_shorten=True),
        TextColumn.natural("Time/step" if diagnosis.timeline.steps else "Time", times, right=True),
        TextColumn.natural(
            "Speedup", [gain_text(f) or MISSING for f in firsts], right=True, priority=2
        ),
    ]
    fixes = [summary.fix_of_plan(diagnosis.timeline, finding) for finding in firsts]
    if any(fixes):
        covered = [fix or MISSING for fix in fixes]
        columns.append(TextColumn.natural("Part of", covered, priority=1))
    first, styles = len(diagnosis.timeline.findings) + 1, ["cyan"] * len(shown)
    labels = [kernel.group.label for kernel in shown]
    return [*_numbered_table(columns, styles, width, first_number=first, labels=labels)]


def _section_rows(
    timeline: TimelineDiagnosis, width: int | None, max_lines: int
) -> list[StyledLine]:
    """List the other processes and GPUs, a line each; the option to see one is never cut."""
    sections = timeline.sections
    shown = sections if len(sections) <= max_lines else sections[: max_lines - 1]
    lines = []
    for section in shown:
        option = f" ({section.option})"
        text = safe_text(section.summary())
        room = None if width is None else width - len(option)
        if room is not None and display_width(text) > room:
            title = safe_text(section.first_title)
            over = display_width(text) - room
            text = safe_text(section.summary(_fitted(title, max(1, display_width(title) - over))))
            text = shorten_end(text, room)
        lines.append(StyledLine(text + option))
    if len(shown) < len(sections):
        is_process = sections[-1].owner is not None
        what = (
            "processes: --details; all ranks: gpusight ranks" if is_process else "GPUs: --details"
        )
        lines.append(StyledLine(f"… {len(sections) - len(shown)} more {what}", "dim"))
    return lines


_NO_PACE, _NO_WINDOW = ("--pace",), ("--steps", "--window", "--warmup")
_NOT_TAKEN = {"drill": _NO_PACE, "roofline": (*_NO_PACE, *_NO_WINDOW)}
"""Options of `diagnose` that a next command does not take."""


def _next_lines(
    diagnosis: AnyDiagnosis, typed: Sequence[str] | None, width: int | None
) -> list[StyledLine]:
    """Give the command to type next: whole, so that it can be pasted and shows the same plan."""
    path = diagnosis.meta.get("path")
    if not path:
        return []
    if isinstance(diagnosis, KernelReportDiagnosis):
        has_findings = any(group.findings for group in diagnosis.groups)
        if not has_findings and diagnosis.unevaluated:  # what other commands need is missing too
            lines = command_lines(COLLECT_ALL, width, "next: ")
            return [StyledLine(line, "dim") for line in lines]
        command = "explain" if has_findings else "roofline"
    else:
        command = _next_command(timeline_of(diagnosis))
    words = [command, str(path)]
    if isinstance(diagnosis, JoinedDiagnosis) and command == "explain":
        words.append(str(diagnosis.report.meta.get("path")))
    words += ["1"] * (command == "explain")
    options = _given_pace(diagnosis) if typed is None else typed
    words += [option for option in options if not option.startswith(_NOT_TAKEN.get(command, ()))]
    whole = f"gpusight {shlex.join(map(safe_text, words))}"
    return [StyledLine(line, "dim") for line in command_lines(whole, width, "next: ")]


def _given_pace(diagnosis: AnyDiagnosis) -> list[str]:
    """Give the step time again that the diagnosis was corrected with, where the user gave it."""
    if isinstance(diagnosis, KernelReportDiagnosis):
        return []
    correction = timeline_of(diagnosis).correction
    return [] if correction is None else correction.pace.option.split()


def _next_command(timeline: TimelineDiagnosis) -> str:
    """Choose what to look at next: a fix, else the kernels of a busy GPU, else its idle time."""
    if timeline.plan:
        return "explain"
    device = summary.evaluated_device(timeline)
    if device is None or device.busy_share < summary.MAIN_SHARE:
        return "ledger"
    return "flops" if timeline.has_shapes else "drill"
