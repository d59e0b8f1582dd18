"""What a report holds: the answers of many commands about one program, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from gpusight.analyses.select import EVERYTHING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.analyses.ledger.report import LedgerReport
    from gpusight.analyses.select import Selection
    from gpusight.comparison.outcome import Comparison
    from gpusight.findings.joined import JoinedDiagnosis
    from gpusight.findings.kernels.diagnosis import Diagnosis
    from gpusight.findings.timeline.diagnosis import TimelineDiagnosis
    from gpusight.reporting.headline import Headline
    from gpusight.reporting.tree import RangeTree
    from gpusight.reporting.untold import Untold
    from gpusight.result import Composite, NotApplicable, TableResult

Bounds: TypeAlias = "tuple[int | None, int | None] | None"


@dataclass(frozen=True)
class Asked:
    """What a report is to be about."""

    selection: Selection = EVERYTHING
    steps: str | None = None
    window: Bounds = None
    warmup: bool = False
    title: str = ""
    """What to call it; the name of the capture where that is empty."""


USUAL = Asked()


@dataclass(frozen=True, slots=True)
class About:
    """What is said of a capture itself: no path but the file's name, no machine, no person."""

    file: str
    tool: str
    gpus: tuple[str, ...]
    """Names of its GPUs, one for each."""
    started: str
    """When capturing began; empty where that is not known."""
    duration_ns: int | None


@dataclass(frozen=True)
class Program:
    """What a timeline, a table of totals or a memory snapshot tells of a program."""

    about: About
    diagnosis: TimelineDiagnosis | NotApplicable
    ledger: LedgerReport | NotApplicable
    steps: Composite | NotApplicable
    """With the phases as its second section."""
    excerpt: Composite | NotApplicable
    """A typical step, track by track."""
    utilisation: Composite | NotApplicable
    kernels: TableResult | NotApplicable
    ranges: RangeTree | NotApplicable
    copies: TableResult | NotApplicable
    memory: Composite | NotApplicable
    occupancy: Composite | NotApplicable


@dataclass(frozen=True)
class Measured:
    """What a report of Nsight Compute tells of kernels."""

    about: About
    diagnosis: Diagnosis | JoinedDiagnosis | NotApplicable
    """Joined where the report holds a timeline too."""
    kernels: TableResult | NotApplicable
    roofline: Composite | NotApplicable
    occupancy: Composite | NotApplicable


@dataclass(frozen=True)
class Report:
    """Everything that a page shows."""

    title: str
    headline: Headline
    program: Program | None
    """None where only kernels were measured."""
    measured: tuple[Measured, ...]
    comparison: Comparison | NotApplicable | None
    """None where nothing was asked to be compared."""
    untold: Untold
    warnings: tuple[str, ...] = ()
    """Why captures hold less than what happened: said at the top."""

    @property
    def captures(self) -> tuple[About, ...]:
        """Every capture that it was made of."""
        program = () if self.program is None else (self.program.about,)
        return (*program, *(one.about for one in self.measured))

    @property
    def meta(self) -> Mapping[str, Any]:
        """The numbers at the top, in base units."""
        return {number.key: number.value for number in self.headline.numbers}

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know."""
        said = (note.text for note in self.untold.notes)
        return tuple(dict.fromkeys((*self.warnings, *said)))
