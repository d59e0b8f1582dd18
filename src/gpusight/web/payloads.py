"""What the server sends, as frontend/src/timeline/types.ts declares it.

Ledger, findings and comparison each have a state: `computing`, `ready` or `failed`, and a message.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpusight._version import __version__
from gpusight.render.cell_text import safe_text
from gpusight.render.charts.chart_colors import COLORS, HOST_COLORS, color_of

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpusight.render.charts.chart_colors import Color
    from gpusight.viewer.track_data import EventPosition, TimelineTrack


MAX_NAME_CHARS = 4_000
"""Characters of a name among others; those of templates have hundreds."""
MAX_TEXT_CHARS = 50_000
"""Characters of a text about one event."""


@dataclass(frozen=True, slots=True)
class CaptureState:
    """How far a capture is."""

    id: int
    name: str
    state: str
    """`reading`, `ready` or `failed`."""
    message: str


@dataclass(frozen=True, slots=True)
class Overview:
    """Every capture, and the colors of what their timelines show."""

    captures: Sequence[CaptureState]
    palette: dict[str, dict[str, str]]
    version: str


@dataclass(frozen=True, slots=True)
class MarkedStep:
    """A step, as the ruler of the timeline marks it."""

    number: int
    name: str
    start_ns: int
    end_ns: int
    warmup: bool
    """Not evaluated: warm-up, or cut off by the capture."""


@dataclass(frozen=True, slots=True)
class TimeRange:
    """A stretch of time."""

    start_ns: int
    end_ns: int


@dataclass(frozen=True, slots=True)
class CaptureInfo:
    """What a page must know of a capture before it requests any of its events."""

    id: int
    name: str
    tool: str
    gpus: Sequence[str]
    start_ns: int
    end_ns: int
    tracks: Sequence[TimelineTrack]
    colors: Sequence[str]
    steps: Sequence[MarkedStep]
    notes: Sequence[str]
    first_view: TimeRange | None
    job: bool = False
    """Whether it is several ranks, which `/ranks` compares."""


@dataclass(frozen=True, slots=True)
class ShownFact:
    """A label and a formatted value."""

    name: str
    value: str
    meaning: str


@dataclass(frozen=True, slots=True)
class ShownSection:
    """Facts that belong together."""

    title: str
    rows: Sequence[ShownFact]


@dataclass(frozen=True, slots=True)
class LinkedEvent:
    """An event that belongs to another, and how."""

    relation: str
    spot: EventPosition


@dataclass(frozen=True, slots=True)
class EventDetails:
    """Everything that is known about one event."""

    spot: EventPosition
    kind: str
    title: str
    sections: Sequence[ShownSection]
    links: Sequence[LinkedEvent]


def shown(text: str, most: int = MAX_NAME_CHARS) -> str:
    """Give a text out of a capture that can be shown, cut off where it is longer than anyone reads.

    A name may have a million characters, and a thousand of them stand in one answer.
    """
    return safe_text(text if len(text) <= most else f"{text[: most - 1]}…")


def safe(spot: EventPosition) -> EventPosition:
    """Give a place whose name can be shown."""
    return replace(spot, name=safe_text(spot.name))


def overview(captures: Sequence[CaptureState], colors: Iterable[str]) -> Overview:
    """Return the progress of the captures; `colors` are those that their timelines use."""
    keys = (*COLORS, *(f"host/{number}" for number in range(len(HOST_COLORS))), *colors)
    return Overview(captures, {key: _color(color_of(key)) for key in keys}, __version__)


def _color(color: Color) -> dict[str, str]:
    return {"light": color.light, "dark": color.dark}


COMPUTING, READY, FAILED, NONE = "computing", "ready", "failed", "none"


@dataclass(frozen=True, slots=True)
class EntryInfo:
    """One entry of the ledger."""

    entry: str
    ns: int
    share: float | None


@dataclass(frozen=True, slots=True)
class DeviceInfo:
    """The ledger of one GPU."""

    device: int
    name: str
    entries: Sequence[EntryInfo]


@dataclass(frozen=True, slots=True)
class FlameInfo:
    """The frames of a flame graph, or why there are none."""

    columns: Mapping[str, object] | None
    """As `frame_columns` writes them for pages."""
    message: str = ""
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class LedgerInfo:
    """The ledger of the steps without warm-up, or why there is none."""

    state: str
    """`computing`, `ready` or `failed`."""
    message: str
    steps: int = 0
    devices: Sequence[DeviceInfo] = ()
    about: str = ""
    """Whose times these are, where that is not all that the timeline shows; as for findings."""


@dataclass(frozen=True, slots=True)
class ShownEvidence:
    """One number that a finding rests on, as people read it."""

    value: str
    meaning: str


@dataclass(frozen=True, slots=True)
class ShownPlace:
    """Where a finding happens."""

    label: str
    start_ns: int
    end_ns: int
    spot: EventPosition | None


@dataclass(frozen=True, slots=True)
class FindingInfo:
    """One finding."""

    rule: str
    title: str
    saved_ns_per_step: float | None
    """After the fixes above; of a profiled kernel, GPU time."""
    share: float | None
    """The same as a share of the step."""
    predicted_step_ns: float | None
    """Step time with this fix and those above; None for kernels and without an estimate."""
    speedup: str
    saving: str
    """The saving in words, where it differs from what the fix saves alone."""
    confidence: str
    effort: str
    why: str
    fix: str
    code: str
    evidence: Sequence[ShownEvidence]
    places: Sequence[ShownPlace]


@dataclass(frozen=True, slots=True)
class FindingsInfo:
    """All findings, or why there are none yet."""

    state: str
    """`computing`, `ready` or `failed`."""
    message: str
    step_ns: float | None = None
    steps: int = 0
    about: str = ""
    """The process, where there are several, and that times are without the profiler."""
    findings: Sequence[FindingInfo] = ()
    """The plan, ranked by time saved."""
    plan: str = ""
    """What all fixes save: `all 4 fixes: 46.9 -> 9.96 ms/step (4.7x)`."""
    needs: Sequence[str] = ()
    """Fixes that are only possible after others: `apply fix 2 (host-sync) before fix 1`."""
    beside: Sequence[FindingInfo] = ()
    """Findings below the plan; their titles are the lines that `diagnose` writes."""
    predicted_step_ns: float | None = None
    kernels: Sequence[FindingInfo] = ()
    """Fixes of profiled kernels: they save GPU time, and are not part of the plan."""
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class MetricInfo:
    """One quantity before and after, as people read it."""

    name: str
    before: str
    after: str
    change: str
    verdict: str


@dataclass(frozen=True, slots=True)
class CompareInfo:
    """What changed from the first capture to the second, and why."""

    state: str
    """`computing`, `ready`, `failed`, or `none` where there are no two captures."""
    message: str
    explanation: Sequence[str] = ()
    metrics: Sequence[MetricInfo] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True, slots=True)
class HeatQuantityInfo:
    """What the heat map of ranks and steps can show: its name, and what its levels stand for."""

    title: str
    legend: Sequence[tuple[str, str]]
    """Color and text of each level; the lowest one has the color `pale`."""


@dataclass(frozen=True, slots=True)
class HeatCell:
    """A rank in one column of the heat map."""

    step: int
    start_ns: int
    end_ns: int
    levels: Sequence[int]
    """Position in the legend of each quantity; -1 where it is not known."""
    label: str


@dataclass(frozen=True, slots=True)
class HeatRow:
    """A rank."""

    rank: int
    shown: bool
    """Whether the timeline has it."""
    cells: Sequence[HeatCell | None]
    """By column; None where the rank lacks the step."""


@dataclass(frozen=True, slots=True)
class StragglerInfo:
    """A rank that is late, and what it costs."""

    rank: int
    cause: str
    saved: str
    share: str
    pattern: str
    evidence: Sequence[ShownEvidence]


@dataclass(frozen=True, slots=True)
class RanksInfo:
    """All ranks of a job."""

    headline: str
    alignment: str
    """How the clocks were aligned, and how well."""
    steps: Sequence[int]
    """The first step of each column."""
    quantities: Sequence[HeatQuantityInfo]
    rows: Sequence[HeatRow]
    stragglers: Sequence[StragglerInfo]
    notes: Sequence[str]
