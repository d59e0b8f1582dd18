"""What every form of a verdict says: the line at the top, the cells of a check, reasons, hints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusight import units
from gpusight.comparison import wording
from gpusight.comparison.change import Basis
from gpusight.comparison.gate import Status
from gpusight.comparison.limits import Kind
from gpusight.render.cells import show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.comparison.gate import Check, Gate

_NAMED = 3
"""Captures of a side that are named."""


@dataclass(frozen=True, slots=True)
class Row:
    """One check, in words."""

    metric: str
    baseline: str
    now: str
    change: str
    limit: str
    interval: str
    status: str


HEADINGS = Row("Metric", "Baseline", "Now", "Change", "Limit", "Interval", "Status")


def row(check: Check) -> Row:
    """Give the cells of a check; changes are shown as the limit is written."""
    change = check.change
    relative = check.limit.kind is Kind.RELATIVE and change.ratio is not None
    return Row(
        check.limit.metric,
        show(change.before, check.fmt),
        show(change.after, check.fmt),
        wording.signed_share(change.ratio) if relative else wording.signed(change.delta, check.fmt),
        check.limit.text,
        spread(check),
        check.status.value,
    )


def spread(check: Check) -> str:
    """Show the interval of the growth, or of the value itself under a ceiling."""
    if check.low is None or check.high is None:
        return units.MISSING
    if check.limit.kind is Kind.CEILING:
        return f"{show(check.low, check.fmt)} to {show(check.high, check.fmt)}"
    before = check.change.before
    if check.limit.kind is Kind.RELATIVE and before:
        ends = (wording.signed_share(end / before) for end in (check.low, check.high))
        return " to ".join(ends)
    return wording.spread(check.low, check.high, check.fmt)


def verdict(gate: Gate) -> str:
    """Say in one line whether the gate lets the captures through."""
    counts = {status: len(gate.having(status)) for status in Status}
    told = [f"{counts[status]} {words}" for status, words in _COUNTED if counts[status]]
    doubts = counts[Status.UNSURE] or counts[Status.MISSING]
    with_doubts = ", with doubts" if gate.passed and doubts else ""
    return f"Gate {gate.outcome}{with_doubts}: {', '.join(told)}"


_COUNTED = (
    (Status.FAILED, "over the limit"),
    (Status.MISSING, "missing"),
    (Status.INCONCLUSIVE, "inconclusive"),
    (Status.UNSURE, "unsure"),
    (Status.PASSED, "within the limit"),
)


def sides(gate: Gate) -> Iterator[tuple[str, str]]:
    """Name the captures of either side."""
    if gate.baseline:
        yield "baseline", named(gate.baseline)
    yield "now", named(gate.captures)


def named(labels: tuple[str, ...]) -> str:
    """Name a few captures, and count the others."""
    shown = ", ".join(labels[:_NAMED])
    more = len(labels) - _NAMED
    return f"{shown} and {more} more" if more > 0 else shown


def reasons(gate: Gate) -> list[tuple[str, Status, str]]:
    """Give metrics, status and reason of checks that need a reason, each reason once."""
    groups: dict[tuple[Status, str], list[str]] = {}
    for check in gate.checks:
        if why := reason(check):
            groups.setdefault((check.status, why), []).append(check.limit.metric)
    return [
        (", ".join(dict.fromkeys(names)), status, why) for (status, why), names in groups.items()
    ]


def reason(check: Check) -> str:
    """Say why a check has the status it has, in a sentence; empty where it just passed."""
    if check.status in (Status.MISSING, Status.INCONCLUSIVE):
        return check.reason
    told = [_judged(check), check.reason]
    return "; ".join(filter(None, told))


def _judged(check: Check) -> str:
    if check.status is Status.PASSED:
        return ""
    if check.over is not None and check.over <= 0:
        return f"low enough, but within noise: {_rests(check)}"
    limit = check.limit.text
    if check.limit.kind is not Kind.CEILING:
        limit = f"{show(check.most, check.fmt)} ({limit})"
    over = f"{show(check.over, check.fmt)} over {limit}"
    noise = ", but within noise: " if check.status is Status.UNSURE else "; "
    return f"{over}{noise}{_rests(check)}"


def _rests(check: Check) -> str:
    """Give the interval, and what it rests on."""
    if check.low is None:
        return "nothing tells how much it varies"
    if check.low == check.high:
        return "it does not vary"
    of = "value" if check.limit.kind is Kind.CEILING else "change"
    return f"the {of} is {spread(check)}, as far as {_TOLD_BY[check.change.basis]} tell"


_TOLD_BY = {
    Basis.REPEATS: "captures",
    Basis.STEPS: "steps",
    Basis.NONE: "values",
}


def hints(gate: Gate) -> Iterator[str]:
    """Say what to do next."""
    kinds = dict.fromkeys(one.kind for one in gate.differences)
    if gate.having(Status.INCONCLUSIVE):
        found = ",".join(kind for kind in kinds if kind not in gate.allow_changed)
        yield (
            "inconclusive: record both sides alike, save the baseline anew if the change is meant, "
            f"or accept it with --allow-changed {found}"
        )
    if gate.having(Status.UNSURE):
        yield "unsure: record 3 to 5 captures per side, or limit kernel_time too: it varies less"
        if not gate.strict:
            yield "--strict fails unsure checks"
    yield from _missing_hints(gate)
    if not gate.passed and gate.baseline:
        yield "details: gpusight compare BASELINE CAPTURE"


def _missing_hints(gate: Gate) -> Iterator[str]:
    missing = gate.having(Status.MISSING)
    if any(check.lost for check in missing):
        yield "missing: a capture lost data; record it again (--allow-missing does not cover it)"
    if not all(check.lost for check in missing) and not gate.allow_missing:
        yield "missing: record the data, or accept its absence with --allow-missing"
    if missing and gate.knows_nothing and gate.allow_missing:
        yield "no metric is known: a gate that measured nothing does not pass"


def accepted(gate: Gate) -> Iterator[str]:
    """Repeat the differences that the user accepted."""
    for one in gate.differences:
        if one.kind in gate.allow_changed:
            yield f"accepted by --allow-changed {one.kind}: {one.text}"
    if gate.allow_missing:
        for check in gate.having(Status.MISSING):
            if not gate.fails(check):
                yield f"not checked (--allow-missing): {check.limit.metric}"
