"""What a report says first: four numbers, and the three fixes that give most back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusight.analyses.ledger.causes import IDLE
from gpusight.findings.joined import JoinedDiagnosis
from gpusight.result import Composite, Fmt, NotApplicable, TableResult
from gpusight.units import format_count, format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    import polars as pl

    from gpusight.analyses.ledger.report import DeviceReport
    from gpusight.findings.kernels.diagnosis import Diagnosis
    from gpusight.findings.timeline.diagnosis import TimelineDiagnosis
    from gpusight.findings.timeline.finding import TimelineFinding
    from gpusight.reporting.report import Measured, Program

MOST_GAINS = 3
_LEAST = 0.001
"""Part of the window that a finding gives back at least to be named first."""
_WORTH_SAYING = 0.005
"""Part of a step from which on the time between steps is worth words."""
_NO_FIX = frozenset({"profiler-overhead"})
"""Rules whose time comes back when nobody looks: the program itself has nothing to fix."""


@dataclass(frozen=True, slots=True)
class Number:
    """One number, and what to know of it."""

    key: str
    label: str
    value: float | None
    """None where the capture cannot tell; `detail` then says why."""
    fmt: Fmt
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Gain:
    """One fix, and what it gives back."""

    rank: int
    """Its place among all findings, from 1."""
    rule: str
    title: str
    alone_ns: float | None
    """Of a step, or of everything where no steps are known."""
    after_ns: float | None
    """The same once those before it are fixed."""
    share: float | None
    confidence: str

    @property
    def worth_ns(self) -> float | None:
        """What to say first of it: by itself, or after those before it where that is nothing."""
        return self.alone_ns or self.after_ns or self.alone_ns


@dataclass(frozen=True, slots=True)
class Caution:
    """A finding that is no fix: what was left out, what is not captured, the profiler itself."""

    rank: int
    """Its place among all findings, from 1."""
    rule: str
    title: str


@dataclass(frozen=True, slots=True)
class Headline:
    """The beginning of a report."""

    numbers: tuple[Number, ...]
    gains: tuple[Gain, ...] = ()
    """The foremost, at most three."""
    whole: str = ""
    """What the gains are parts of: `step`, `window` or `GPU time`; empty where there are none."""
    now_ns: float | None = None
    """How long that is."""
    cautions: tuple[Caution, ...] = ()
    """Findings that give no time back: the numbers are to be read with them in mind."""

    @property
    def then_ns(self) -> float | None:
        """How long it would be after all of them."""
        if self.now_ns is None:
            return None
        return max(0.0, self.now_ns - sum(gain.after_ns or 0.0 for gain in self.gains))


def headline(program: Program | None, measured: Sequence[Measured]) -> Headline:
    """Choose what is said first."""
    if program is None:
        return _of_kernels(measured)
    numbers = (
        _time(program),
        _busy(program),
        _kernels(program),
        _memory(program),
    )
    if isinstance(program.diagnosis, NotApplicable):
        return Headline(numbers)
    found = program.diagnosis
    whole = "step" if found.steps else "window"
    cautions = tuple(
        Caution(rank, finding.rule, finding.title)
        for rank, finding in enumerate(found.findings, 1)
        if _is_caution(finding)
    )
    return Headline(numbers, tuple(_gains(found)), whole, found.step_ns, cautions)


def _gains(found: TimelineDiagnosis) -> Iterator[Gain]:
    """Give the findings that are worth naming first: what gives next to nothing is not."""
    each = max(1, found.steps)
    worth = [one for one in enumerate(found.findings, 1) if _is_worth(one[1], found)]
    for rank, finding in worth[:MOST_GAINS]:
        after = None if finding.after_ns is None else finding.after_ns / each
        yield Gain(
            rank,
            finding.rule,
            finding.title,
            finding.step_ns,
            after,
            finding.share,
            finding.confidence.value,
        )


def _is_worth(finding: TimelineFinding, found: TimelineDiagnosis) -> bool:
    if _is_caution(finding):
        return False
    most = max(finding.recoverable_ns or 0.0, finding.after_ns or 0.0)
    return most >= _LEAST * found.focus.length_ns


def _is_caution(finding: TimelineFinding) -> bool:
    return finding.recoverable_ns is None or finding.rule in _NO_FIX


# The numbers of a program -------------------------------------------------------------------------


def _time(program: Program) -> Number:
    """Give the time of a step with its spread, or of the window where no steps are known."""
    if isinstance(program.steps, Composite):
        facts = {fact.key: fact.value for fact in program.steps.facts}
        count = facts["kept"]
        mean = facts["window_ns"] / count
        return Number("step_ns", "Step time", mean, Fmt.TIME, _spread(program.steps, mean))
    if isinstance(program.ledger, NotApplicable):
        return Number("step_ns", "Step time", None, Fmt.TIME, program.steps.reason)
    window = program.ledger.focus.length_ns
    return Number("window_ns", "Window", window, Fmt.TIME, _without_steps(program, window))


def _without_steps(program: Program, window_ns: int) -> str:
    """Say that no steps are known, and how much of the window the findings are of."""
    found = program.diagnosis
    if isinstance(found, NotApplicable) or found.focus.length_ns >= window_ns:
        return "no steps are known"
    return f"no steps are known; findings are of {format_time(found.focus.length_ns)} of it"


def _spread(steps: Composite, mean_ns: float) -> str:
    facts = {fact.key: fact.value for fact in steps.facts}
    count = facts["kept"]
    if count == 1:
        return "1 step"
    text = f"{count:,} steps, {format_time(facts['min_ns'])} to {format_time(facts['max_ns'])}"
    between = mean_ns - int(_kept(steps)["took_ns"].sum()) / count
    if between > _WORTH_SAYING * mean_ns:
        text += f"; {format_time(between)} of it between steps"
    return text


def _busy(program: Program) -> Number:
    found = program.ledger
    if isinstance(found, NotApplicable):
        return Number("busy_share", "GPU busy", None, Fmt.SHARE, found.reason)
    device = _judged(program, found.devices)
    share = busy_share(device)
    every = [busy_share(one) for one in found.devices]
    if len(every) > 1:
        span = f"{format_share(min(every))} to {format_share(max(every))}"
        detail = f"GPU {device.ledger.device}; all {len(every)}: {span}"
    else:
        detail = _idle(device)
    return Number("busy_share", "GPU busy", share, Fmt.SHARE, detail)


def judged_device(program: Program) -> int | None:
    """Give the number of the GPU that the findings are of; None where there are none."""
    found = program.diagnosis
    return None if isinstance(found, NotApplicable) else found.meta.get("device")


def _judged(program: Program, devices: Sequence[DeviceReport]) -> DeviceReport:
    wanted = judged_device(program)
    return next((one for one in devices if one.ledger.device == wanted), devices[0])


def busy_share(device: DeviceReport) -> float:
    """Give the part of the window in which a GPU did anything."""
    entries = device.ledger.entries
    return sum(e.share or 0.0 for e in entries if e.entry.partition("/")[0] != IDLE)


def _idle(device: DeviceReport) -> str:
    """Say what a GPU that is not busy waits for."""
    causes = {
        e.entry.partition("/")[2]: e.ns
        for e in device.ledger.entries
        if e.entry.startswith(f"{IDLE}/")
    }
    if not causes:
        return "never idle"
    most = max(causes, key=lambda cause: causes[cause])
    return f"idle {format_share(1 - busy_share(device))}, mostly {most}"


def _kernels(program: Program) -> Number:
    table = program.kernels
    if isinstance(table, NotApplicable):
        return Number("kernels_per_step", "Kernels a step", None, Fmt.COUNT, table.reason)
    every, names = (table.meta[key] for key in ("kernels", "kernel_names"))
    of = "of 1 name" if names == 1 else f"of {format_count(names)} names"
    if not isinstance(program.steps, Composite):
        return Number("kernels", "Kernels", every, Fmt.COUNT, of)
    kept = _kept(program.steps)["kernels"]
    mean = int(kept.sum()) / len(kept)
    detail = f"{format_count(every)} in all, {of}"
    return Number("kernels_per_step", "Kernels a step", mean, Fmt.COUNT, detail)


def _kept(steps: Composite) -> pl.DataFrame:
    table = steps.sections[0]
    assert isinstance(table, TableResult), "the answer has a table of steps"
    return table.frame.filter("kept")


def _memory(program: Program) -> Number:
    if isinstance(program.memory, NotApplicable):
        return Number("peak_bytes", "Peak memory", None, Fmt.BYTES, program.memory.reason)
    facts = {fact.key: fact.value for fact in program.memory.facts}
    share = facts.get("peak_share")
    detail = "" if share is None else f"{format_share(share)} of the GPU's"
    return Number("peak_bytes", "Peak memory", facts["peak_bytes"], Fmt.BYTES, detail)


# Reports of measured kernels ----------------------------------------------------------------------


def _of_kernels(measured: Sequence[Measured]) -> Headline:
    found = [one for one in map(_diagnosis, measured) if one is not None]
    total = sum(one.duration_ns for one in found) or None
    launches = sum(len(one.kernels) for one in found)
    groups = sorted(
        (group for one in found for group in one.groups), key=lambda group: -group.saved_ns
    )
    names = len({group.name for group in groups})
    saved = sum(one.saved_ns for one in found)
    reason = "" if found else "no launch was measured"
    part = "" if not total else f"{format_share(saved / total)} of the GPU time"
    gains = [
        Gain(
            rank,
            first.rule,
            f"{group.label}: {first.title}",
            group.saved_ns,
            group.saved_ns,
            group.saved_ns / total if total else None,
            first.confidence.value,
        )
        for rank, group in enumerate(groups[:MOST_GAINS], 1)
        if group.findings and group.saved_ns
        for first in group.findings[:1]
    ]
    numbers = (
        Number("total_ns", "GPU time", total, Fmt.TIME, reason or "of all measured launches"),
        Number("launches", "Launches", launches, Fmt.COUNT, "measured one by one"),
        Number(
            "kernel_names",
            "Kernels",
            names,
            Fmt.COUNT,
            "in 1 shape" if len(groups) == 1 else f"in {len(groups):,} shapes",
        ),
        Number("saved_ns", "Fixes give back", saved, Fmt.TIME, part),
    )
    return Headline(numbers, tuple(gains), "GPU time" if gains else "", total)


def _diagnosis(one: Measured) -> Diagnosis | None:
    found = one.diagnosis
    if isinstance(found, NotApplicable):
        return None
    return found.report if isinstance(found, JoinedDiagnosis) else found
