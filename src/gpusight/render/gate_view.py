"""The outcome of a gate in words, and on the screen."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import chain
from typing import TYPE_CHECKING

from gpusight import units
from gpusight.comparison import phrases
from gpusight.comparison.comparability import INCOMPLETE, ONE_CAPTURE
from gpusight.comparison.gate_check import EXIT_FAIL, NO_DATA, CheckStatus, Doubt
from gpusight.comparison.gate_limits import LimitKind
from gpusight.comparison.significance import Basis
from gpusight.render.cell_text import safe_text, shorten_middle
from gpusight.render.renderer import Renderer
from gpusight.render.table_layout import TableOptions, TextColumn, fit_columns
from gpusight.render.terminal_text import StyledLine, command_lines, cut_line, wrapped_lines
from gpusight.results import Fmt

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpusight.comparison.gate_check import Gate, GateCheck


_MAX_METRIC_WIDTH = 40
"""Characters of a metric, which may be a pattern, in the first line."""
_MAX_NAMED_CAPTURES = 3
"""Captures of a side that are named."""


@dataclass(frozen=True, slots=True)
class GateRow:
    """The cells of one check."""

    metric: str
    baseline: str
    now: str
    change: str
    limit: str
    interval: str
    status: str


_HEADINGS = GateRow("Metric", "Baseline", "Now", "Change", "Limit", "Interval", "Status")
_INTERVAL_OF = {True: "value", False: "change"}
"""What the interval of a ceiling is of, and of any other limit."""


def headings(checks: Iterable[GateCheck]) -> GateRow:
    """Name the columns, with what the intervals are of where all rows agree."""
    kinds = {check.limit.kind is LimitKind.CEILING for check in checks}
    if len(kinds) != 1:
        return _HEADINGS
    return replace(_HEADINGS, interval=f"{_INTERVAL_OF[kinds.pop()].title()} interval")


def gate_rows(checks: Sequence[GateCheck]) -> list[GateRow]:
    """Give the cells of checks; intervals of different things are labeled."""
    rows = [gate_row(check) for check in checks]
    if headings(checks) != _HEADINGS:
        return rows
    return [
        row
        if row.interval == units.MISSING
        else replace(
            row,
            interval=f"{_INTERVAL_OF[check.limit.kind is LimitKind.CEILING]} {row.interval}",
        )
        for check, row in zip(checks, rows, strict=True)
    ]


def gate_row(check: GateCheck) -> GateRow:
    """Give the cells of a check; changes are shown as the limit is written."""
    change = check.change
    relative = check.limit.kind is LimitKind.RELATIVE and change.ratio is not None
    return GateRow(
        check.limit.metric,
        phrases.shown(change.before, check.fmt),
        phrases.shown(change.after, check.fmt),
        phrases.signed_share(change.ratio) if relative else phrases.signed(change.delta, check.fmt),
        check.limit.text,
        spread(check),
        check.status.value.upper(),
    )


def spread(check: GateCheck) -> str:
    """Show the interval of the growth, or of the value itself under a ceiling."""
    if check.low is None or check.high is None:
        return units.MISSING
    if check.limit.kind is LimitKind.CEILING:
        return f"{phrases.shown(check.low, check.fmt)} to {phrases.shown(check.high, check.fmt)}"
    before = check.change.before
    if check.limit.kind is LimitKind.RELATIVE and before:
        ends = (phrases.signed_share(end / before) for end in (check.low, check.high))
        return " to ".join(ends)
    return phrases.spread(check.low, check.high, check.fmt)


def verdict(gate: Gate) -> str:
    """Give the outcome in one line: the exit code, the check that decides, and how many there are.

    Of an inconclusive one also what would settle it.
    """
    counts = {status: len(gate.having(status)) for status in CheckStatus}
    counted = ", ".join(f"{counts[s]} {words}" for s, words in _COUNTED if counts[s])
    policy = ""
    if gate.outcome is CheckStatus.INCONCLUSIVE:
        policy = ", counts as failure" if gate.exit_code == EXIT_FAIL else ""
        policy = ", accepted" if gate.passed else policy
    times = ", times without the profiler" if gate.corrected else ""
    outcome = f"Gate {gate.outcome.value.upper()} (exit code {gate.exit_code}{policy}){times}"
    deciding = [] if gate.outcome is CheckStatus.PASSED else gate.having(gate.outcome)
    if not deciding:
        unsure = [check for check in gate.checks if check.reaches_limit]
        doubt = f"; not certain: {_in_short(unsure[0])}" if unsure else _coarsest(gate.checks)
        return f"{outcome}: {counted}{doubt}"
    others = f" ({counted})" if len(gate.checks) > 1 else ""
    text = f"{outcome}: {_in_short(deciding[0])}{others}"
    if gate.outcome is CheckStatus.FAILED:
        # Other work takes another time: a reader must not look for a slower kernel.
        metric = deciding[0].limit.metric
        differing = (d.text.partition(";")[0] for d in gate.differences if d.concerns(metric))
        text = "; ".join((text, *differing))
    return text


def _in_short(check: GateCheck) -> str:
    """Give a check in a few words: `step_time +4.2% ± 6.0% against +3%`, and what settles it."""
    metric = shorten_middle(check.limit.metric, _MAX_METRIC_WIDTH)
    if check.over is None:
        return f"{metric} is missing"
    text = f"{metric} {_value_and_error(check)} against {check.limit.text}"
    if check.doubt is Doubt.NOISE:
        return f"{text}; {check.settled_by}"
    return f"{text}, but the captures are not comparable" if check.doubt is not None else text


_COARSE = 0.1
"""Half of an interval, as a share of the value, from which on a pass means little."""


def _coarsest(checks: Sequence[GateCheck]) -> str:
    """Say what a pass could not have seen; empty where every value is well known."""
    errors = []
    for check in checks:
        half, scale = _half_interval(check), check.change.before or check.change.after
        if check.status is CheckStatus.PASSED and half and scale and half > _COARSE * scale:
            errors.append((half / scale, check.limit.metric))
    if not errors:
        return ""
    error, metric = max(errors)
    return f"; {metric} is known to ± {phrases.signed_share(error).removeprefix('+')} only"


def _half_interval(check: GateCheck) -> float:
    """Return half of the interval of the change, or of the value under a ceiling; 0 for none."""
    ceiling = check.limit.kind is LimitKind.CEILING
    value = check.change.after if ceiling else check.change.delta
    if check.low is None or check.high is None or value is None:
        return 0.0
    return max(check.high - value, value - check.low)


def _value_and_error(check: GateCheck) -> str:
    """Show the change, or the value under a ceiling, and half of its interval."""
    row, half = gate_row(check), _half_interval(check)
    shown = row.now if check.limit.kind is LimitKind.CEILING else row.change
    relative = check.limit.kind is LimitKind.RELATIVE and check.change.before
    error = phrases.signed_share(half / relative) if relative else phrases.shown(half, check.fmt)
    return f"{shown} ± {error.removeprefix('+')}" if half else shown


_COUNTED = (
    (CheckStatus.FAILED, "over the limit"),
    (CheckStatus.INCONCLUSIVE, "inconclusive"),
    (CheckStatus.SKIPPED, "skipped"),
    (CheckStatus.PASSED, "within the limit"),
)


def sides(gate: Gate) -> Iterator[tuple[str, str]]:
    """Name the captures of either side."""
    if gate.baseline:
        yield "baseline", named(gate.baseline)
    yield "now", named(gate.captures)


def named(labels: tuple[str, ...]) -> str:
    """Name a few captures, and count the others."""
    shown = ", ".join(labels[:_MAX_NAMED_CAPTURES])
    more = len(labels) - _MAX_NAMED_CAPTURES
    return f"{shown} and {more} more" if more > 0 else shown


def reasons(gate: Gate) -> list[tuple[str, CheckStatus, str]]:
    """Group metrics by status and reason, failures first; checks without a reason are left out."""
    return [(", ".join(names), status, why) for names, status, why in _reason_groups(gate)]


def _reason_groups(gate: Gate) -> list[tuple[list[str], CheckStatus, str]]:
    groups: dict[tuple[CheckStatus, str], list[str]] = {}
    for check in sorted(gate.checks, key=lambda check: _FIRST.index(check.status)):
        if why := reason(check):
            groups.setdefault((check.status, why), []).append(check.limit.metric)
    return [([*dict.fromkeys(names)], status, why) for (status, why), names in groups.items()]


def reason(check: GateCheck) -> str:
    """Explain the status of a check; empty where it passed and nothing else is to be known."""
    parts = [check.reason]
    if check.status is CheckStatus.FAILED or check.doubt is Doubt.NOISE:
        parts = [_distance(check), check.reason, _noise(check)]
    elif check.reaches_limit:
        limit = phrases.shown(check.most, check.fmt)
        sure = f"not certain: noise alone could exceed the limit of {limit}; more repeats narrow it"
        parts = [sure, check.reason]
    return "; ".join(filter(None, parts))


def _distance(check: GateCheck) -> str:
    """Say by how much a value is over its limit."""
    if check.over is not None and check.over <= 0:
        return "low enough, but the change is not significant"
    limit = f"limit of {check.limit.text}"
    if check.limit.kind is not LimitKind.CEILING:
        limit = f"limit of {phrases.shown(check.most, check.fmt)} ({check.limit.text})"
    over = f"{phrases.shown(check.over, check.fmt)} over the {limit}"
    within = check.doubt is Doubt.NOISE and check.low is not None and not check.is_only_run_noise
    return f"{over}, but within noise" if within else over


def _noise(check: GateCheck) -> str:
    """Give the basis of the interval, and how many repeats would settle the check."""
    basis = _interval_basis(check)
    if check.doubt is not Doubt.NOISE:
        return basis
    return f"{basis}; {check.settled_by}"


STEADY = "kernel_time"
"""The metric that varies least from run to run, and catches most regressions."""


def _interval_basis(check: GateCheck) -> str:
    ceiling = check.limit.kind is LimitKind.CEILING
    if check.fmt is not Fmt.TIME:
        return ""
    if check.low is None:
        return f"one sample{'' if ceiling else ' per side'}: noise unknown"
    if check.is_only_run_noise:
        side = ONE_CAPTURE if ceiling else f"{ONE_CAPTURE} per side"
        noise = phrases.shown(check.run_noise, check.fmt)
        return f"{side}: run-to-run variation is not measured and may be {noise}"
    if check.low == check.high:
        return "no variation"
    return f"interval from {_BASIS_WORDS[check.change.basis]}"


_BASIS_WORDS = {
    Basis.REPEATS: "repeats",
    Basis.STEPS: "the steps of one capture",
    Basis.NONE: "single values",
}


@dataclass(frozen=True, slots=True)
class OptionWords:
    """How the reader writes the options that a hint names."""

    allow_changed: str
    allow_missing: str
    inconclusive_pass: str
    details: str


COMMAND_LINE = OptionWords(
    "--allow-changed {}", "--allow-missing", "--inconclusive pass", "--details"
)
PYTHON = OptionWords(
    "allow_changed={}",
    "allow_missing=True",
    'inconclusive="pass"',
    ".to_text(details=True)",
)


def hints(gate: Gate, words: OptionWords = COMMAND_LINE) -> Iterator[str]:
    """Say what would settle the gate, and which options accept it."""
    checks = gate.having(CheckStatus.INCONCLUSIVE)
    doubts = {check.doubt for check in checks}
    metrics = [check.limit.metric for check in checks]
    kinds = dict.fromkeys(d.kind for d in gate.differences if any(map(d.concerns, metrics)))
    changed = [kind for kind in kinds if kind not in gate.allow_changed]
    if any(check.doubt is Doubt.LOST_DATA and check.over is None for check in checks):
        # Without the value no option makes the check pass: any other hint would mislead.
        yield "Lost data: record the capture again; no option accepts it."
        return
    if Doubt.LOST_DATA in doubts:
        option = _changed_option([INCOMPLETE], words)
        yield f"Lost data: record the capture again, or accept the loss: {option}."
    elif Doubt.NOT_COMPARABLE in doubts and changed:
        yield (
            f"If intended: {_changed_option(changed, words)}, or save a new baseline. If not: "
            "record both sides with the same GPUs, steps and input."
        )
    if Doubt.NOISE in doubts:
        limited = {check.limit.metric for check in gate.checks}
        steady = "" if STEADY in limited else f", or limit {STEADY} too: it varies less"
        yield f"Noise: record more captures{steady}."
    if Doubt.NOT_RECORDED in doubts and gate.allow_missing:
        yield "No metric is known: a gate that measured nothing does not pass."
    elif Doubt.NOT_RECORDED in doubts:
        yield f"Missing: correct the name or record it, or skip the limit: {words.allow_missing}."
    if gate.outcome is not CheckStatus.INCONCLUSIVE or gate.inconclusive is not None:
        return
    if doubts & {*NO_DATA}:
        yield f"{words.inconclusive_pass} does not accept missing data."
    elif words is COMMAND_LINE:
        yield "--inconclusive pass or fail makes the exit code 0 or 1."


def _changed_option(kinds: Sequence[str], words: OptionWords) -> str:
    return words.allow_changed.format(",".join(kinds) if words is COMMAND_LINE else [*kinds])


def accepted(gate: Gate, words: OptionWords = COMMAND_LINE) -> Iterator[str]:
    """List what the options accept."""
    for difference in gate.differences:
        if difference.kind in gate.allow_changed:
            option = _changed_option([difference.kind], words)
            yield f"accepted by {option}: {difference.text}"
    for check in gate.having(CheckStatus.SKIPPED):
        yield f"skipped ({words.allow_missing}): {check.limit.metric}"


_STYLES = {
    CheckStatus.PASSED: "green",
    CheckStatus.FAILED: "bold red",
    CheckStatus.INCONCLUSIVE: "bold yellow",
    CheckStatus.SKIPPED: "magenta",
}
_OUTCOME_STYLES = {
    CheckStatus.PASSED: "bold green",
    CheckStatus.FAILED: "bold red",
    CheckStatus.INCONCLUSIVE: "bold yellow",
}
_LEFT_COLUMNS = {"metric", "status"}
_BASELINE_COLUMNS = {"baseline", "change"}
_PRIORITIES = {"interval": 0, "baseline": 0, "change": 0, "status": 2}
"""Columns with a low priority are dropped first on a narrow screen; 1 for the others."""


_MAX_LINES = 15
"""Lines of the first screen on 100 columns; reasons of several checks may add to them."""
_MAX_CHECKS = 4
_FIRST = (
    CheckStatus.FAILED,
    CheckStatus.INCONCLUSIVE,
    CheckStatus.SKIPPED,
    CheckStatus.PASSED,
)
"""Order of the checks on the first screen."""


def gate_lines(
    gate: Gate,
    look: TableOptions,
    *,
    details: bool = False,
    next_command: str = "",
    words: OptionWords = PYTHON,
) -> list[StyledLine]:
    """Give the lines of a gate: the first screen, or with `details` everything.

    The command line passes its own `words`.
    """
    width = look.width
    head = [*wrapped_lines(verdict(gate), width, "", _OUTCOME_STYLES[gate.outcome])]
    foot = []
    if next_command:
        foot = [StyledLine(line, "dim") for line in command_lines(next_command, width, "next: ")]
    for label, names in sides(gate):
        line = f"{label.ljust(8)}  {safe_text(names)}"
        head.append(StyledLine(cut_line(line, width), "dim"))
    head.append(StyledLine(""))
    checks = gate.checks
    if details:
        head += _table(checks, width, has_baseline=bool(gate.baseline))
        return [
            *head,
            StyledLine(""),
            *chain.from_iterable(_reasons(gate, width)),
            *_more(gate, width, words),
            *foot,
        ]
    ordered = sorted(checks, key=lambda check: _FIRST.index(check.status))
    count = len(checks) if len(checks) <= _MAX_CHECKS else _MAX_CHECKS - 1
    head += _table(ordered[:count], width, has_baseline=bool(gate.baseline))
    if count < len(checks):
        head.append(StyledLine(f"… and {len(checks) - count} more checks ({words.details})", "dim"))
    below = _below_checks(gate, width, words, _MAX_LINES - len(head) - len(foot) - 1)
    return [*head, *([StyledLine(""), *below] if below else []), *foot]


def _below_checks(gate: Gate, width: int | None, words: OptionWords, room: int) -> list[StyledLine]:
    """Give the reasons, and what to do, in so many lines.

    Each check that does not pass has at least its shortest reason, and the first hint is always
    there, whatever the room. What has no room is left out by whole clauses: half a sentence
    misleads.
    """
    groups = _reason_groups(gate)
    forms = [_reason_forms(*group, width) for group in groups]
    needed = sum(
        status in (CheckStatus.FAILED, CheckStatus.INCONCLUSIVE) for _, status, _ in groups
    )
    needed = max(needed, min(1, len(groups)))
    notes = [
        list(wrapped_lines(note, width, "", "dim"))
        for note in (*hints(gate, words), *accepted(gate, words), *_one_capture(gate))
    ]
    others = [*(form[0] for form in forms[needed:]), list(_origin(gate, width)), *notes]
    first_hint = len(others) - len(notes)
    whole = [*(form[0] for form in forms[:needed]), *others]
    if sum(map(len, whole)) <= room:
        return [line for block in whole for line in block]
    # Where checks are left out too, the line below the table names the option.
    more = [] if len(gate.checks) > _MAX_CHECKS else [f"… more with {words.details}"]
    shown = [form[-1] for form in forms[:needed]]
    kept = {first_hint} & {*range(len(others))}
    spare = room - len(more) - sum(map(len, (*shown, *(others[at] for at in kept))))
    for at, form in enumerate(forms[:needed]):
        fitting = (lines for lines in form if len(lines) - len(shown[at]) <= spare)
        best = next(fitting, shown[at])
        spare -= len(best) - len(shown[at])
        shown[at] = best
    for at, block in enumerate(others):
        if at not in kept and len(block) <= spare:
            kept.add(at)
            spare -= len(block)
    lines = [line for block in (*shown, *(others[at] for at in sorted(kept))) for line in block]
    return [*lines, *(StyledLine(text, "dim") for text in more)]


def _reason_forms(
    metrics: Sequence[str], status: CheckStatus, why: str, width: int | None
) -> list[list[StyledLine]]:
    """Write a reason in full, and shorter by one clause each; the last has its first clause."""
    names, clauses = ", ".join(metrics), why.split("; ")
    short = names
    if len(names) > _MAX_METRIC_WIDTH:
        short = shorten_middle(metrics[0], _MAX_METRIC_WIDTH)
        short += f" and {len(metrics) - 1} more" if len(metrics) > 1 else ""
    texts = [(names, why), *((short, "; ".join(clauses[:n])) for n in range(len(clauses), 0, -1))]
    return [
        [*wrapped_lines(f"{name} {status.value.upper()}: {text}", width, "", _STYLES[status])]
        for name, text in texts
    ]


def _one_capture(gate: Gate) -> Iterator[str]:
    """Give the note that one capture does not show how much runs vary, unless a reason has it."""
    has_times = any(check.fmt is Fmt.TIME for check in gate.checks)
    is_known = any("record " in _noise(check) for check in gate.checks)
    is_open = any(check.doubt not in (Doubt.NOT_COMPARABLE, *NO_DATA) for check in gate.checks)
    if has_times and not is_known and is_open:  # more captures of another program settle nothing
        yield from (note for note in gate.notes if note.startswith(ONE_CAPTURE))


def _origin(gate: Gate, width: int | None) -> Iterator[StyledLine]:
    """Name the entries of the ledger that changed, unless every check is within its limit."""
    comparison = gate.comparison
    if comparison is None or not _is_over(gate):
        return
    named = phrases.entries(comparison, comparison.ledger, comparison.step.delta)
    if named:
        text = f"Significant changes{phrases.per_step(comparison)}: {safe_text(named)}"
        yield StyledLine(cut_line(text, width))


def _is_over(gate: Gate) -> bool:
    return any(
        check.status is CheckStatus.FAILED or check.doubt is Doubt.NOISE for check in gate.checks
    )


def _more(gate: Gate, width: int | None, words: OptionWords) -> Iterator[StyledLine]:
    """Give the explanation, the notes and what would settle the gate."""
    if gate.comparison is not None and _is_over(gate):
        yield StyledLine("")
        # The first sentence is the verdict on the step time: a check of that has the same.
        is_checked = any(check.limit.metric == "step_time" for check in gate.checks)
        for sentence in gate.comparison.explanation[int(is_checked) :]:
            yield from wrapped_lines(sentence, width, "- ")
    yield StyledLine("")
    for note in (*accepted(gate, words), *notes(gate)):
        yield from wrapped_lines(note, width, "note: ", "dim")
    for hint in hints(gate, words):
        yield from wrapped_lines(hint, width, "", "dim")


def notes(gate: Gate) -> list[str]:
    """Give the notes that the reasons of checks do not contain."""
    given = [why for _, _, why in reasons(gate)]
    known = [d.text for d in gate.differences if any(d.text in why for why in given)]
    return [note for note in gate.notes if not any(text in note for text in known)]


def _table(
    checks: Sequence[GateCheck], width: int | None, *, has_baseline: bool
) -> Iterator[StyledLine]:
    rows, titles = gate_rows(checks), headings(checks)
    columns = [
        TextColumn.natural(
            getattr(titles, field.name),
            [safe_text(getattr(row, field.name)) for row in rows],
            right=field.name not in _LEFT_COLUMNS,
            can_shorten=field.name == "metric",
            priority=_PRIORITIES.get(field.name, 1),
        )
        for field in fields(GateRow)
        if has_baseline or field.name not in _BASELINE_COLUMNS
    ]
    layout = fit_columns(columns, width)
    gap = " " * layout.gap
    yield StyledLine(gap.join(c.padded_heading for c in layout.columns), "bold")
    for number, check in enumerate(checks):
        line = gap.join(c.padded(number) for c in layout.columns)
        yield StyledLine(line, _STYLES[check.status])


def _reasons(gate: Gate, width: int | None) -> Iterator[Iterator[StyledLine]]:
    for metrics, status, why in reasons(gate):
        text = f"{metrics} {status.value.upper()}: {why}"
        yield wrapped_lines(text, width, "", _STYLES[status])


def _markdown(gate: Gate, *, limit: int | None = None) -> str:
    from gpusight.render.gate_reports import to_markdown

    del limit
    return to_markdown(gate)


def _fragment(gate: Gate, *, limit: int | None) -> str:
    from gpusight.render.html.comparison_page import gate_fragment

    del limit
    return str(gate_fragment(gate))


GATE_RENDERER = Renderer(
    document=lambda gate: gate.document(),
    lines=gate_lines,
    markdown=_markdown,
    fragment=_fragment,
    look=TableOptions(100),
)
