"""What a report holds.

Results of many commands about one program, its headline, and its limitations.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from gpusight.analysis.ledger.ledger_entries import IDLE
from gpusight.analysis.selection import EVERYTHING
from gpusight.results import Composite, Fmt, NotApplicable, TableResult
from gpusight.rules.diagnosis import JoinedDiagnosis
from gpusight.units import format_count, format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpusight.analysis.hotspots.stack_times import Hotspots
    from gpusight.analysis.ledger.ledger_report import DeviceLedgerReport, LedgerReport
    from gpusight.analysis.ranks.job_ranks import JobRanks
    from gpusight.analysis.selection import Selection
    from gpusight.comparison.comparison_result import Comparison
    from gpusight.reports.range_tree import RangeTree
    from gpusight.rules.diagnosis import KernelReportDiagnosis, TimelineDiagnosis


_MISSING, _MESSAGES = "missing", "messages"


@dataclass(frozen=True, slots=True)
class MissingPart:
    """A part of the report that the capture could not fill."""

    part: str
    reason: str
    hint: str


@dataclass(frozen=True, slots=True)
class LimitationNote:
    """A note on some sections."""

    parts: tuple[str, ...]
    text: str


@dataclass(frozen=True)
class Limitations:
    """Everything that limits a report."""

    absent: tuple[MissingPart, ...]
    notes: tuple[LimitationNote, ...]
    missing: tuple[TableResult, ...]
    """What to capture next time, for each capture that lacks something."""
    messages: int
    """Warnings and errors of the profilers themselves, which may name files of the machine."""


def collect_limitations(
    parts: Iterable[tuple[str, Any]], about: Sequence[Composite]
) -> Limitations:
    """Collect what parts lack; `about` is the `info` of each capture."""
    named = list(parts)
    return Limitations(
        absent=tuple(_absent(named)),
        notes=tuple(_notes(named, about)),
        missing=_tables(about, _MISSING),
        messages=sum(table.frame.height for table in _tables(about, _MESSAGES)),
    )


def _absent(parts: Iterable[tuple[str, Any]]) -> Iterator[MissingPart]:
    """Give the parts without an answer, and the sections of answers that have none."""
    for name, answer in parts:
        if isinstance(answer, NotApplicable):
            yield MissingPart(name, answer.reason, answer.hint)
        for section in getattr(answer, "sections", ()):
            if isinstance(section, NotApplicable):
                yield MissingPart(f"{name}: {section.command}", section.reason, section.hint)


def _notes(
    parts: Iterable[tuple[str, Any]], about: Sequence[Composite]
) -> Iterator[LimitationNote]:
    """Return every note once, with the sections that it is about."""
    names_of: dict[str, list[str]] = {}
    of_captures = (("Capture", facts) for facts in about)
    for name, answer in (*of_captures, *parts):
        for note in getattr(answer, "notes", ()):
            names_of.setdefault(note, []).append(name)
    for text, names in names_of.items():
        yield LimitationNote(tuple(dict.fromkeys(names)), text)


def _tables(about: Sequence[Composite], name: str) -> tuple[TableResult, ...]:
    sections = (section for facts in about for section in facts.sections if section.command == name)
    return tuple(s for s in sections if isinstance(s, TableResult) and s.frame.height)


def facts_of(result: Composite) -> Mapping[str, Any]:
    """Give the facts of an answer by their keys."""
    return {fact.key: fact.value for fact in result.facts}


ReportBounds: TypeAlias = "tuple[int | None, int | None] | None"


@dataclass(frozen=True)
class ReportRequest:
    """What a report is to be about."""

    selection: Selection = EVERYTHING
    steps: str | None = None
    window: ReportBounds = None
    warmup: bool = False
    title: str = ""
    """What to call it; the name of the capture where that is empty."""


DEFAULT_REQUEST = ReportRequest()


@dataclass(frozen=True, slots=True)
class CaptureFacts:
    """Facts of a capture: no path but the file's name, no machine, no person."""

    file: str
    tool: str
    gpus: tuple[str, ...]
    """Names of its GPUs, one for each."""
    started: str
    """Start of the capture; empty where unknown."""
    duration_ns: int | None


@dataclass(frozen=True)
class ProgramReport:
    """Results for a timeline, a table of totals or a memory snapshot."""

    about: CaptureFacts
    diagnosis: TimelineDiagnosis | NotApplicable
    ledger: LedgerReport | NotApplicable
    steps: Composite | NotApplicable
    """With the phases as its second section."""
    timeline: Composite | NotApplicable
    """A typical step, track by track."""
    utilization: Composite | NotApplicable
    kernels: TableResult | NotApplicable
    ranges: RangeTree | NotApplicable
    hotspots: Hotspots | NotApplicable
    """Time by line of code, where stacks were recorded."""
    copies: TableResult | NotApplicable
    memory: Composite | NotApplicable
    occupancy: Composite | NotApplicable


@dataclass(frozen=True)
class MeasuredReport:
    """Results for a report of Nsight Compute."""

    about: CaptureFacts
    diagnosis: KernelReportDiagnosis | JoinedDiagnosis | NotApplicable
    """Joined where the report holds a timeline too."""
    kernels: TableResult | NotApplicable
    roofline: Composite | NotApplicable
    occupancy: Composite | NotApplicable


@dataclass(frozen=True)
class Report:
    """Everything that a page shows."""

    title: str
    headline: Headline
    program: ProgramReport | None
    """None where there are only reports of Nsight Compute."""
    measured: tuple[MeasuredReport, ...]
    comparison: Comparison | NotApplicable | None
    """None without a comparison."""
    limitations: Limitations
    warnings: tuple[str, ...] = ()
    """Why captures are incomplete: shown at the top."""
    ranks: JobRanks | None = None
    """All ranks of a job; the program is the one with the largest findings then."""

    @property
    def captures(self) -> tuple[CaptureFacts, ...]:
        """Every capture that it was made of."""
        program = () if self.program is None else (self.program.about,)
        return (*program, *(report.about for report in self.measured))

    @property
    def meta(self) -> Mapping[str, Any]:
        """The numbers at the top, in base units."""
        return {number.key: number.value for number in self.headline.numbers}

    @property
    def notes(self) -> tuple[str, ...]:
        """Warnings and notes."""
        texts = (note.text for note in self.limitations.notes)
        return tuple(dict.fromkeys((*self.warnings, *texts)))


_MIN_SPREAD_SHARE = 0.005
"""Share of a step from which on the time between steps is mentioned."""


@dataclass(frozen=True, slots=True)
class HeadlineNumber:
    """One number, and what to know of it."""

    key: str
    label: str
    value: float | None
    """None where unknown; `detail` then has the reason."""
    fmt: Fmt
    detail: str = ""


@dataclass(frozen=True, slots=True)
class HeadlineFix:
    """One fix of the plan, and what it saves."""

    rank: int
    """Its number in the list of findings, from 1."""
    rule: str
    title: str
    saved_ns: float | None
    """Per step, or of everything where no steps are known; after the fixes above it. None where
    there is no time estimate."""
    then_ns: float | None
    """Time of a step with this fix and those above it; None where the time is unknown."""
    confidence: str
    effort: str = ""
    upper_bound: bool = False
    """It or a fix above it saves at most that much."""


@dataclass(frozen=True, slots=True)
class Headline:
    """The beginning of a report."""

    numbers: tuple[HeadlineNumber, ...]
    plan: tuple[HeadlineFix, ...] = ()
    """All fixes, ranked by time saved: what they save adds up."""
    whole: str = ""
    """What the fixes shorten: `step`, `window` or `GPU time`; empty where there are none."""
    now_ns: float | None = None
    """How long that is."""

    @property
    def then_ns(self) -> float | None:
        """How long it is with all fixes."""
        if self.now_ns is None:
            return None
        return max(0.0, self.now_ns - sum(fix.saved_ns or 0.0 for fix in self.plan))


def build_headline(program: ProgramReport | None, measured: Sequence[MeasuredReport]) -> Headline:
    """Choose the numbers and fixes at the top."""
    if program is None:
        return _of_kernels(measured)
    numbers = (_time(program), _busy(program), _kernels(program), _memory(program))
    if isinstance(program.diagnosis, NotApplicable):
        return Headline(numbers)
    diagnosis = program.diagnosis
    whole = "step" if diagnosis.steps else "window"
    return Headline(numbers, tuple(_plan(diagnosis)), whole, diagnosis.step_ns)


def _plan(diagnosis: TimelineDiagnosis) -> Iterator[HeadlineFix]:
    """Give the fixes ranked by time saved, with the numbers that `diagnose` gives them."""
    bounds = diagnosis.plan_upper_bounds
    planned = zip(diagnosis.findings, diagnosis.plan_step_ns, bounds, strict=True)
    for rank, (finding, then_ns, bound) in enumerate((p for p in planned if p[0].in_plan), 1):
        saved_ns = None if finding.saved_ns is None else finding.saved_ns / max(1, diagnosis.steps)
        yield HeadlineFix(
            rank,
            finding.rule,
            finding.title,
            saved_ns,
            then_ns,
            finding.confidence.value,
            finding.effort,
            bound,
        )


# The numbers of a program -------------------------------------------------------------------------


def _time(program: ProgramReport) -> HeadlineNumber:
    """Give the step time with its spread, or the window where no steps are known."""
    if isinstance(program.steps, Composite):
        facts = facts_of(program.steps)
        mean = facts["window_ns"] / facts["kept"]
        detail = "1 step"
        if facts["kept"] > 1:
            span = f"{format_time(facts['min_ns'])} to {format_time(facts['max_ns'])}"
            detail = f"{facts['kept']:,} steps, {span}"
            if facts["between_ns"] > _MIN_SPREAD_SHARE * mean:
                detail += f"; {format_time(facts['between_ns'])} between steps"
        detail += _recorded(program)
        return HeadlineNumber("step_ns", "Step time", mean, Fmt.TIME, detail)
    if isinstance(program.ledger, NotApplicable):
        return HeadlineNumber("step_ns", "Step time", None, Fmt.TIME, program.steps.reason)
    window = program.ledger.focus.length_ns
    detail = "no steps found"
    diagnosis = program.diagnosis
    if not isinstance(diagnosis, NotApplicable) and diagnosis.focus.length_ns < window:
        detail += f"; findings are about {format_time(diagnosis.focus.length_ns)} of it"
    return HeadlineNumber("window_ns", "Window", window, Fmt.TIME, detail)


def _recorded(program: ProgramReport) -> str:
    """Name the recorded step time, where the step time is that without the profiler."""
    focus = None if isinstance(program.ledger, NotApplicable) else program.ledger.focus
    if focus is None or focus.recorded_step_ns in {None, focus.step_ns}:
        return ""
    estimate = " (estimate)" if focus.is_estimate else ""
    recorded = format_time(focus.recorded_step_ns, digits=3)
    return f"; without the profiler{estimate}; {recorded} with it"


def _busy(program: ProgramReport) -> HeadlineNumber:
    ledger = program.ledger
    if isinstance(ledger, NotApplicable):
        return HeadlineNumber("busy_share", "GPU busy", None, Fmt.SHARE, ledger.reason)
    wanted = evaluated_gpu(program)
    device = next((d for d in ledger.devices if d.ledger.device == wanted), ledger.devices[0])
    share = device.ledger.busy_share
    every = [report.ledger.busy_share for report in ledger.devices]
    if len(every) > 1:
        span = f"{format_share(min(every))} to {format_share(max(every))}"
        detail = f"GPU {device.ledger.device}; all {len(every)}: {span}"
    else:
        detail = _idle(device)
    return HeadlineNumber("busy_share", "GPU busy", share, Fmt.SHARE, detail)


def evaluated_gpu(program: ProgramReport) -> int | None:
    """Give the number of the GPU that the findings are of; None where there are none."""
    diagnosis = program.diagnosis
    return None if isinstance(diagnosis, NotApplicable) else diagnosis.meta.get("device")


def _idle(device: DeviceLedgerReport) -> str:
    """Name the largest cause of idle time."""
    causes = {
        e.entry.partition("/")[2]: e.ns
        for e in device.ledger.entries
        if e.entry.startswith(f"{IDLE}/")
    }
    if not causes:
        return "no idle time"
    most = max(causes, key=lambda cause: causes[cause])
    return f"idle {format_share(1 - device.ledger.busy_share)}, mostly {most}"


def _kernels(program: ProgramReport) -> HeadlineNumber:
    table = program.kernels
    if isinstance(table, NotApplicable):
        return HeadlineNumber("kernels_per_step", "Kernels/step", None, Fmt.COUNT, table.reason)
    every, names = (table.meta[key] for key in ("kernels", "kernel_names"))
    of = "1 kernel name" if names == 1 else f"{format_count(names)} kernel names"
    if not isinstance(program.steps, Composite):
        return HeadlineNumber("kernels", "Kernels", every, Fmt.COUNT, of)
    step_table = program.steps.sections[0]
    assert isinstance(step_table, TableResult), "the answer has a table of steps"
    kept = step_table.frame.filter("kept")["kernels"]
    mean = int(kept.sum()) / len(kept)
    detail = f"{format_count(every)} total, {of}"
    return HeadlineNumber("kernels_per_step", "Kernels/step", mean, Fmt.COUNT, detail)


def _memory(program: ProgramReport) -> HeadlineNumber:
    if isinstance(program.memory, NotApplicable):
        return HeadlineNumber("peak_bytes", "Peak memory", None, Fmt.BYTES, program.memory.reason)
    facts = {fact.key: fact.value for fact in program.memory.facts}
    share = facts.get("peak_share")
    detail = "" if share is None else f"{format_share(share)} of GPU memory"
    return HeadlineNumber("peak_bytes", "Peak memory", facts["peak_bytes"], Fmt.BYTES, detail)


# Reports of profiled kernels ----------------------------------------------------------------------


def _of_kernels(measured: Sequence[MeasuredReport]) -> Headline:
    reports = [report.diagnosis for report in measured]
    diagnoses = [
        diagnosis.report if isinstance(diagnosis, JoinedDiagnosis) else diagnosis
        for diagnosis in reports
        if not isinstance(diagnosis, NotApplicable)
    ]
    total = sum(diagnosis.duration_ns for diagnosis in diagnoses) or None
    launches = sum(len(diagnosis.kernels) for diagnosis in diagnoses)
    groups = sorted(
        (group for diagnosis in diagnoses for group in diagnosis.groups),
        key=lambda group: -group.saved_ns,
    )
    names = len({group.name for group in groups})
    saved = sum(diagnosis.saved_ns for diagnosis in diagnoses)
    reason = "" if diagnoses else "no launch was profiled"
    part = "" if not total else f"{format_share(saved / total)} of the GPU time"
    plan: list[HeadlineFix] = []
    left_ns = total
    for rank, group in enumerate(groups, 1):
        if not group.findings or not group.saved_ns:
            continue
        left_ns = None if left_ns is None else max(0.0, left_ns - group.saved_ns)
        first = group.findings[0]
        title = f"{group.label}: {first.title}"
        confidence = first.confidence.value
        plan.append(HeadlineFix(rank, first.rule, title, group.saved_ns, left_ns, confidence))
    numbers = (
        HeadlineNumber(
            "total_ns", "GPU time", total, Fmt.TIME, reason or "of all profiled launches"
        ),
        HeadlineNumber("launches", "Launches", launches, Fmt.COUNT, "profiled one by one"),
        HeadlineNumber(
            "kernel_names",
            "Kernels",
            names,
            Fmt.COUNT,
            "1 launch shape" if len(groups) == 1 else f"{len(groups):,} launch shapes",
        ),
        HeadlineNumber("saved_ns", "Fixes save", saved, Fmt.TIME, part),
    )
    return Headline(numbers, tuple(plan), "GPU time" if plan else "", total)
