"""The tables of a comparison, and the phrases for a change; the same in every format."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, TypeAlias

from gpusight import units
from gpusight.comparison.comparison_result import FindingStatus, KernelMatch
from gpusight.comparison.explain_change import time_name
from gpusight.comparison.phrases import (
    HOST,
    NOTHING,
    copy_name,
    from_to,
    in_words,
    join_first,
    percent,
    shown,
    signed,
    signed_share,
    spread,
)
from gpusight.comparison.significance import ChangeVerdict
from gpusight.render.cell_text import safe_text
from gpusight.results import Fmt
from gpusight.units import MISSING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpusight.comparison.comparison_result import (
        CallChange,
        ComparedSide,
        Comparison,
        CopyChange,
        EntryChange,
        FindingChange,
        KernelChange,
        MetricChange,
    )
    from gpusight.comparison.significance import MeasuredChange


UNSURE = "~"
"""Marks changes that are not significant."""
ARROW = "->"
_MAX_NAMED_CAPTURES = 3
"""Captures of a side that are named one by one."""


class ChangeTone(enum.Enum):
    """Whether a change is an improvement."""

    GOOD = "good"
    BAD = "bad"
    UNSURE = "unsure"
    PLAIN = "plain"


def change_tone(change: MeasuredChange) -> ChangeTone:
    """Rate a change of a cost: lower is good."""
    if not change.significant:
        return ChangeTone.UNSURE
    lower = change.verdict in (ChangeVerdict.LOWER, ChangeVerdict.VANISHED)
    return ChangeTone.GOOD if lower else ChangeTone.BAD


def marked_delta(change: MeasuredChange, fmt: Fmt) -> str:
    """Show a difference, marked where not significant; none where not comparable."""
    if change.verdict is ChangeVerdict.NOT_COMPARABLE:
        return units.MISSING
    text = signed(change.delta, fmt)
    return f"{UNSURE}{text}" if change.delta and not change.significant else text


def side_value(value: float | None, fmt: Fmt) -> str:
    """Show the value of one side; a dash for none."""
    return shown(value, fmt) if value else units.MISSING


def before_after(before: float, after: float, fmt: Fmt) -> str:
    """Show the values of both sides; once where they are equal."""
    texts = [shown(value, fmt) for value in (before, after)]
    return texts[0] if texts[0] == texts[1] else f"{texts[0]} {ARROW} {texts[1]}"


def mark_legend(comparison: Comparison) -> str:
    """Explain the mark."""
    usual, rows = (f"{100 * level:g}%" for level in (comparison.confidence, comparison.of_rows))
    return (
        f"{UNSURE} not significant: the {usual} interval ({rows} for kernels, API calls, copies "
        f"and inner ranges) includes 0, or the change may be below {100 * comparison.least:g}%"
    )


def comparison_headline(comparison: Comparison) -> str:
    """Give the change of the step time in one line."""
    return time_change(time_name(comparison), comparison.step)


def time_change(name: str, change: MeasuredChange) -> str:
    """Give the change of a time in one line."""
    amounts, ratio = from_to(change), signed_share(change.ratio)
    if change.verdict is ChangeVerdict.NOT_COMPARABLE:
        sides = " and ".join(shown(value) for value in (change.before, change.after))
        return f"Not comparable: {name} {sides}"
    if change.significant:
        return f"{name} {ratio}: {amounts}"
    if change.verdict is ChangeVerdict.SAME:
        return f"{name} unchanged ({amounts}, {ratio})"
    return f"{name} {amounts} ({ratio}): not significant"


def side_line(side: ComparedSide) -> str:
    """Describe the captures of a side in one line."""
    limit = "" if side.limit == NOTHING else f", bottleneck: {in_words(side.limit)}"
    if side.limit == HOST and side.host_share is not None:
        limit += f" ({units.format_share(side.host_share)} of the time with instant GPU work)"
    return f"{_captures(side)}: {side_facts(side)}{limit}"


def side_facts(side: ComparedSide, *, with_gpus: bool = True) -> str:
    """Give the facts that `diagnose` has in its headline: steps, step time, GPU, GPU busy."""
    names = [safe_text(name) for name in dict.fromkeys(side.gpus)]
    many = f"{len(side.gpus)} x " if len(side.gpus) > 1 and len(names) == 1 else ""
    gpus = (many + ", ".join(names)) if with_gpus else ""
    parts = [_steps(side), side.process and f"those of {side.process}", gpus]
    if side.busy_share is not None:
        parts.append(f"GPU busy {units.format_share(side.busy_share)}")
    return ", ".join(filter(None, parts))


def _captures(side: ComparedSide) -> str:
    count = len(side.labels)
    named = ", ".join(safe_text(label) for label in side.labels[:_MAX_NAMED_CAPTURES])
    if count == 1:
        return named
    more = f" and {count - _MAX_NAMED_CAPTURES} more" if count > _MAX_NAMED_CAPTURES else ""
    return f"{count} captures ({named}{more})"


def _steps(side: ComparedSide) -> str:
    times = _span(side.step_ns)
    if side.recorded_step_ns and (recorded := _span(side.recorded_step_ns)) != times:
        about = "about " if side.is_estimate else ""
        times = f"{about}{times} ({recorded} with the profiler)"
    if not any(side.steps):
        return f"{times}, no steps found"
    counts = [f"{steps:,}" for steps in dict.fromkeys(side.steps)]
    several = "" if len(side.labels) == 1 else " each" if len(counts) == 1 else " together"
    total = counts[0] if len(counts) == 1 else f"{sum(side.steps):,}"
    noun = "step" if total == "1" else "steps"
    return f"{total} {noun}{several} of {times}"


def _span(times_ns: Sequence[float]) -> str:
    low, high = shown(min(times_ns)), shown(max(times_ns))
    return low if low == high else units.in_one_unit(low, high, " to ")


ComparisonCell: TypeAlias = "str | tuple[str, str]"
"""A text, or the old and the new name."""
MIN_SHOWN_CHANGE = 0.001
"""Changes below this share of the step are left out by default."""
MAX_SHOWN_ROWS = 20
"""Rows of a table by default."""


@dataclass(frozen=True, slots=True)
class ComparisonColumn:
    """A column of a table."""

    heading: str
    name: bool = False
    """A text that may be cut to fit; others are numbers or short words."""
    quoted: bool = False
    """A name from the capture, quoted."""
    right: bool = True
    units: bool = False
    """Numbers with units, aligned."""
    toned: bool = False
    """Colored by whether the change is an improvement."""
    extra: bool = False
    """Shown with --wide only."""
    beneath: bool = False
    """A sentence: on a screen it gets lines of its own, below the row."""
    detail: bool = False
    """Of an extra one: a detail of the name, below it where a table can do that."""


@dataclass(frozen=True, slots=True)
class ComparisonRow:
    """One row, before and after."""

    cells: tuple[ComparisonCell, ...]
    tone: ChangeTone
    delta: float | None
    """By how much it changed, in base units."""
    total: bool = False
    """The sum of those above."""


@dataclass(frozen=True, slots=True)
class ComparisonSection:
    """One table."""

    key: str
    title: str
    columns: tuple[ComparisonColumn, ...]
    rows: tuple[ComparisonRow, ...]
    bars: bool = False
    """Draw bars of the changes."""
    small: float | None = None
    """Changes below this are left out by default; None to show all."""
    whole: bool = False
    """Few rows, of which none may be missing."""

    @property
    def quiet(self) -> str:
        """Text in place of rows that all changed too little."""
        return f"none of {len(self.rows):,} changed by {100 * MIN_SHOWN_CHANGE:g}% of the total"

    def shown(self, limit: int | None, most: int = MAX_SHOWN_ROWS) -> tuple[ComparisonRow, ...]:
        """Give the rows to show: so many, 0 for all; None for up to `most` that changed enough."""
        if self.whole:
            return self.rows
        totals = tuple(row for row in self.rows if row.total)
        rows = [row for row in self.rows if not row.total]
        kept = rows[:limit] if limit else rows
        if limit is None and self.small is not None:
            kept = [row for row in rows[:most] if abs(row.delta or 0.0) >= self.small]
        return (*kept, *totals)


_REST = "other"
_NUMBERS = (
    ComparisonColumn("Before", units=True),
    ComparisonColumn("After", units=True),
    ComparisonColumn("Change", toned=True, units=True),
)
_EXTRA = (
    ComparisonColumn("%", toned=True, extra=True),
    ComparisonColumn("Interval", extra=True),
    ComparisonColumn("Verdict", right=False, toned=True, extra=True),
)


def comparison_sections(comparison: Comparison) -> list[ComparisonSection]:
    """Give every table that has something in it, in the order in which they are read."""
    made = (
        _metrics(comparison),
        _ledger(comparison),
        _phases(comparison),
        _kernels(comparison),
        _calls(comparison, "ranges", "Ranges", "Range", comparison.ranges),
        _calls(comparison, "api_calls", "API calls", "Call", comparison.api),
        _copies(comparison),
        _findings(comparison),
    )
    return [section for section in made if section.rows]


def _each(comparison: Comparison) -> str:
    return " per step" if comparison.has_steps else ""


def least_shown(comparison: Comparison) -> float:
    """Return the change from which on a row is shown by default."""
    return MIN_SHOWN_CHANGE * max(comparison.step.before or 0.0, comparison.step.after or 0.0)


def _time_cells(change: MeasuredChange) -> tuple[str, str, str]:
    before, after = side_value(change.before, Fmt.TIME), side_value(change.after, Fmt.TIME)
    return before, after, marked_delta(change, Fmt.TIME)


def _more(change: MeasuredChange) -> tuple[str, str, str]:
    ends = spread(change.low, change.high, Fmt.TIME)
    return signed_share(change.ratio), ends, change.verdict.value


def _metrics(comparison: Comparison) -> ComparisonSection:
    confidence = f"{100 * comparison.confidence:g}% interval"
    columns = (
        ComparisonColumn("Metric", right=False, name=True),
        *_NUMBERS,
        ComparisonColumn("%", toned=True),
        ComparisonColumn(confidence),
        ComparisonColumn("Verdict", right=False, toned=True),
    )
    title = "Metrics" + _each(comparison)
    first, *others = comparison.metrics
    worth = (
        metric
        for metric in others
        if (metric.change.before != 0 or metric.change.after != 0)
        and (comparison.has_steps or metric.key != "between_steps")
    )
    named = first if comparison.has_steps else replace(first, label="Window time")
    rows = tuple(_metric(metric, comparison.least) for metric in (named, *worth))
    return ComparisonSection("metrics", title, columns, rows, whole=True)


def _metric(metric: MetricChange, least: float) -> ComparisonRow:
    change, fmt = metric.change, metric.fmt
    if change.before is None and change.after is None:
        cells = (metric.label, *((MISSING,) * 5), "missing")
        return ComparisonRow(cells, ChangeTone.UNSURE, None)
    sides = (shown(change.before, fmt), shown(change.after, fmt))
    known = change.delta is not None
    verdict = change.verdict.value if known else "missing"
    if known and change.verdict is ChangeVerdict.SAME and sides[0] != sides[1]:
        verdict = f"within {percent(least)}"
    ends = spread(change.low, change.high, fmt)
    numbers = (signed(change.delta, fmt), signed_share(change.ratio), ends)
    tone = ChangeTone.PLAIN if metric.key == "busy" and change.significant else change_tone(change)
    return ComparisonRow((metric.label, *sides, *numbers, verdict), tone, change.delta)


_ENTRIES = (
    ComparisonColumn("Entry", name=True, right=False),
    *_NUMBERS,
    ComparisonColumn("Share of change", extra=True),
    *_EXTRA,
)


def _ledger(comparison: Comparison) -> ComparisonSection:
    whole = "step" if comparison.has_steps else "window"
    rows = [_entry(entry) for entry in comparison.ledger]
    if rows:
        step = comparison.step
        cells = (f"total: {whole}", *_time_cells(step), percent_of(1.0), *_more(step))
        rows.append(ComparisonRow(cells, change_tone(step), step.delta, total=True))
    title = "Where the time goes" + _each(comparison)
    return ComparisonSection("ledger", title, _ENTRIES, tuple(rows), bars=True)


def _entry(entry: EntryChange) -> ComparisonRow:
    change = entry.change
    cells = (entry.entry, *_time_cells(change), percent_of(entry.part), *_more(change))
    return ComparisonRow(cells, change_tone(change), change.delta)


def percent_of(part: float | None) -> str:
    """Show a share of the total change, which may be over 100% or negative."""
    if part is None:
        return MISSING
    return f"{round(100 * part):,}%" if abs(part) < 100 else f"{part:,.0f} x"


def _phases(comparison: Comparison) -> ComparisonSection:
    columns = (*_change_first_columns(), *_EXTRA, ComparisonColumn("Phase", name=True, right=False))
    rows = tuple(
        ComparisonRow(
            (*_change_first_cells(change), *_more(change), name), change_tone(change), change.delta
        )
        for name, change in comparison.phases
    )
    title = "GPU time by phase" + _each(comparison)
    return ComparisonSection("phases", title, columns, rows)


def _change_first_columns() -> tuple[ComparisonColumn, ...]:
    """Put the change first, where lists are sorted by it."""
    before, after, change = _NUMBERS
    return change, before, after


def _change_first_cells(change: MeasuredChange) -> tuple[str, str, str]:
    before, after, delta = _time_cells(change)
    return delta, before, after


def _kernels(comparison: Comparison) -> ComparisonSection:
    columns = (
        *_change_first_columns(),
        *_EXTRA,
        ComparisonColumn("Calls"),
        ComparisonColumn("Mean before", units=True, extra=True),
        ComparisonColumn("Mean after", units=True, extra=True),
        ComparisonColumn("Kernel", name=True, quoted=True, right=False),
        ComparisonColumn("Category", right=False, extra=True, detail=True),
        ComparisonColumn("Matched by", right=False, extra=True, detail=True),
        ComparisonColumn("Range", name=True, quoted=True, right=False, extra=True, detail=True),
    )
    rows = tuple(map(_kernel, comparison.kernels))
    title = "Kernels" + _each(comparison)
    return ComparisonSection("kernels", title, columns, rows, small=least_shown(comparison))


def _kernel(kernel: KernelChange) -> ComparisonRow:
    means = (side_value(ns, Fmt.TIME) for ns in kernel.mean_ns)
    cells = (
        *_change_first_cells(kernel.ns),
        *_more(kernel.ns),
        before_after(kernel.calls_before, kernel.calls_after, Fmt.COUNT),
        *means,
        _kernel_name(kernel),
        kernel.category,
        kernel.match.value,
        kernel.ranges[0] if kernel.ranges else MISSING,
    )
    return ComparisonRow(cells, change_tone(kernel.ns), kernel.ns.delta)


def _kernel_name(kernel: KernelChange) -> ComparisonCell:
    old, arrow, new = kernel.short.partition(f" {ARROW} ")
    if kernel.match is KernelMatch.ROLE and arrow:
        return old, new
    return kernel.short or _REST


def _calls(
    comparison: Comparison, key: str, title: str, noun: str, changes: Sequence[CallChange]
) -> ComparisonSection:
    on_gpu = any(change.gpu_ns is not None for change in changes)
    gpu = (ComparisonColumn("GPU change", units=True),) if on_gpu else ()
    name = ComparisonColumn(noun, name=True, quoted=True, right=False)
    columns = (*_change_first_columns(), *_EXTRA, *gpu, ComparisonColumn("Calls"), name)
    rows = tuple(_call(change, on_gpu=on_gpu) for change in changes)
    title = f"{title}: host time{_each(comparison)}"
    return ComparisonSection(key, title, columns, rows, small=least_shown(comparison))


def _call(call: CallChange, *, on_gpu: bool) -> ComparisonRow:
    gpu = (
        (MISSING if call.gpu_ns is None else marked_delta(call.gpu_ns, Fmt.TIME),) if on_gpu else ()
    )
    cells = (
        *_change_first_cells(call.host_ns),
        *_more(call.host_ns),
        *gpu,
        before_after(call.calls_before, call.calls_after, Fmt.COUNT),
        call.name or _REST,
    )
    return ComparisonRow(cells, change_tone(call.host_ns), call.host_ns.delta)


def _copies(comparison: Comparison) -> ComparisonSection:
    columns = (
        *_change_first_columns(),
        *_EXTRA,
        ComparisonColumn("Bytes"),
        ComparisonColumn("Calls"),
        ComparisonColumn("Copy", name=True, right=False),
    )
    rows = tuple(map(_copy, comparison.copies))
    return ComparisonSection("copies", "Copies" + _each(comparison), columns, rows)


def _copy(copy: CopyChange) -> ComparisonRow:
    cells = (
        *_change_first_cells(copy.ns),
        *_more(copy.ns),
        before_after(copy.bytes_before, copy.bytes_after, Fmt.BYTES),
        before_after(copy.calls_before, copy.calls_after, Fmt.COUNT),
        copy_name(copy),
    )
    return ComparisonRow(cells, change_tone(copy.ns), copy.ns.delta)


def _findings(comparison: Comparison) -> ComparisonSection:
    several = any(len(side.labels) > 1 for side in (comparison.before, comparison.after))
    saves = "Saves/step" if comparison.has_steps else "Saves"
    columns = (
        ComparisonColumn("Status", right=False, toned=True),
        ComparisonColumn(f"{saves} before", units=True),
        ComparisonColumn(f"{saves} after", units=True),
        *((ComparisonColumn("Captures", right=False),) if several else ()),
        ComparisonColumn("Finding", name=True, right=False),
        ComparisonColumn("Evidence", name=True, right=False, beneath=True),
    )
    rows = tuple(_finding_rows(comparison.findings, several=several))
    return ComparisonSection(
        "findings", "Findings, with the predicted saving of each fix alone", columns, rows
    )


_TONES = {
    FindingStatus.FIXED: ChangeTone.GOOD,
    FindingStatus.NEW: ChangeTone.BAD,
    FindingStatus.STAYED: ChangeTone.PLAIN,
    FindingStatus.NOT_EVALUATED_AFTER: ChangeTone.UNSURE,
    FindingStatus.NOT_EVALUATED_BEFORE: ChangeTone.UNSURE,
}


_STATUS = {
    FindingStatus.FIXED: "resolved",
    FindingStatus.NEW: "new",
    FindingStatus.STAYED: "remaining",
    FindingStatus.NOT_EVALUATED_AFTER: "not evaluated in after",
    FindingStatus.NOT_EVALUATED_BEFORE: "not evaluated in before",
}


def _finding_rows(findings: Iterable[FindingChange], *, several: bool) -> Iterator[ComparisonRow]:
    """Give findings by status; of several captures, how many have it and the first of them."""
    for status in FindingStatus:
        for finding in (f for f in findings if f.status is status):
            times = (
                side_value(finding.before_ns, Fmt.TIME),
                side_value(finding.after_ns, Fmt.TIME),
            )
            by = (finding.shown_by,) if several else ()
            title = (
                f"{finding.title} ({finding.capture})"
                if several and finding.capture
                else finding.title
            )
            if finding.not_evaluated is not None:
                title += f"; {_STATUS[status]}: {finding.not_evaluated}"
            yield ComparisonRow(
                (_STATUS[status], *times, *by, finding.rule, title), _TONES[status], None
            )


def finding_phrases(comparison: Comparison) -> Iterator[tuple[str, str, ChangeTone]]:
    """Name the findings of each status, the largest saving first: label, text, tone."""
    per = "/step" if comparison.has_steps else ""
    only_before = (FindingStatus.FIXED, FindingStatus.NOT_EVALUATED_AFTER)
    for status in FindingStatus:
        rows = [
            (row.rule, (row.before_ns if status in only_before else row.after_ns) or 0.0)
            for row in comparison.findings
            if row.status is status
        ]
        named = (
            f"{rule} {shown(saving)}{per}" if saving else rule
            for rule, saving in sorted(rows, key=lambda row: -row[1])
        )
        predicted = ", predicted saving alone" if any(saving for _, saving in rows) else ""
        if rows:
            yield f"Findings {_STATUS[status]}{predicted}", join_first(named), _TONES[status]
