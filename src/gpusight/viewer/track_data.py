"""The data of a timeline window.

Tracks, slices, bins, points, and where a track's lines come from.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpusight.trace.intervals import Ints, Reals
    from gpusight.viewer.gpu_tracks import CounterSeries, MemorySeries
    from gpusight.viewer.timeline_tracks import LedgerSpans
    from gpusight.viewer.track_events import TrackEvents


@dataclass(frozen=True, slots=True)
class TimelineTrack:
    """One strip of the timeline."""

    key: str
    """Names it within the capture, such as `gpu0/stream7`; letters, digits, `/`, `.`, `-`, `_`."""
    group: str
    """Heading that it stands under, such as `GPU 0 · NVIDIA H200` or `python (pid 4711)`."""
    kind: str
    """`ledger`, `stream`, `graphs`, `metric`, `memory`, `ranges`, `ops`, `python`, `api`,
    `collectives`, `syncs`, `os` or `overhead`."""
    name: str
    """What to call it, such as `Stream 7` or `NVTX`."""
    tables: tuple[str, ...]
    """Tables of the model that its events stand in."""
    lines: int
    """How deep its events lie within each other; 1 where they do not."""
    events: int
    """Events, or samples of a series."""
    series: bool = False
    """Whether it shows values over time rather than events."""
    unit: str = ""
    """Of a series: `bytes`, `%`, `Hz`, `MHz` or empty."""
    high: float | None = None
    """Of a series: the largest value, which its scale ends at."""
    thread: str = ""
    """Heading within the group: of a thread's track the thread, such as `python (4711)`; of a rank
    what its less busy streams stand under; empty otherwise."""


@dataclass(frozen=True, slots=True)
class TrackSlices:
    """Events that are drawn alone, one by one in columns; in order of line, then of start."""

    line: Ints
    """Position in `TimelineWindow.lines`."""
    start_ns: Ints
    end_ns: Ints
    """As in the table: they may reach out of the window."""
    table: Ints
    """Position in the `tables` of the track."""
    row: Ints
    """Row in that table."""
    label: Ints
    """Position in `TimelineWindow.labels`."""
    color: Ints
    """Position in `ViewerTimeline.colors`."""


@dataclass(frozen=True, slots=True)
class TrackBins:
    """What is too narrow to be drawn alone, bin by bin; bins without any of it are left out."""

    line: Ints
    bin: Ints
    """Number of the bin, from 0 at the start of the window."""
    busy_ns: Ints
    """Time of the bin that those narrow events take."""
    count: Ints
    """Narrow events that begin in the bin."""
    color: Ints
    """What most of `busy_ns` is."""


@dataclass(frozen=True, slots=True)
class SeriesPoints:
    """Values of a series, bin by bin; a bin without a sample holds the value before it."""

    line: Ints
    bin: Ints
    low: Reals
    high: Reals
    mean: Reals
    """Weighed by time where a value holds until the next, else by samples."""


@dataclass(frozen=True, slots=True)
class TimelineWindow:
    """A stretch of time as a screen shows it."""

    start_ns: int
    end_ns: int
    bins: int
    """Bins are equally wide, to a nanosecond: bin k begins at start + k * (end - start) // bins."""
    lines: tuple[tuple[str, int], ...]
    """Track and line that the numbers in `line` stand for."""
    pending: tuple[str, ...]
    """Requested tracks that are still being computed, such as the ledger's."""
    labels: tuple[str, ...]
    """Short names of slices."""
    slices: TrackSlices
    bin_sums: TrackBins
    points: SeriesPoints


@dataclass(frozen=True, slots=True)
class EventPosition:
    """Where an event stands on the timeline."""

    table: str
    row: int
    start_ns: int
    end_ns: int
    track: str
    line: int
    name: str


EventSource: TypeAlias = "TrackEvents | LedgerSpans"
"""Events on numbered lines."""
ValueSource: TypeAlias = "CounterSeries | MemorySeries"
"""Values over time on numbered lines."""


@dataclass(frozen=True, slots=True)
class TrackSource:
    """One track and where its lines come from."""

    track: TimelineTrack
    source: EventSource | ValueSource | None
    """None while it is still being computed."""
    first: int = 0
    """Number of its outermost line in the source."""
    device: int | None = None
    """GPU of the track; None where unknown, or for the host."""
    keys: dict[str, int | None] = field(default_factory=dict)
    """Of a host thread `process` and `thread`; of a stream the columns that identify it."""


def distinct_keys(keys: Iterable[str]) -> list[str]:
    """Number equal keys: the second `gpu0/stream7` is `gpu0/stream7.2`."""
    counts: Counter[str] = Counter()
    apart = []
    for key in keys:
        counts[key] += 1
        apart.append(key if counts[key] == 1 else f"{key}.{counts[key]}")
    return apart
