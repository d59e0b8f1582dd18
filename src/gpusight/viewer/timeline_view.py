"""A capture as a timeline: its tracks, and what a screen shows of any stretch of time."""

from __future__ import annotations

import threading
from collections import OrderedDict
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import numpy as np

from gpusight.errors import GpusightError, UsageError
from gpusight.viewer.gpu_tracks import CounterSeries, MemorySeries
from gpusight.viewer.timeline_tracks import LedgerSpans, collect_tracks
from gpusight.viewer.track_data import (
    EventPosition,
    SeriesPoints,
    TimelineWindow,
    TrackBins,
    TrackSlices,
)
from gpusight.viewer.track_events import TrackEvents
from gpusight.viewer.track_style import COLORS

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Mapping, Sequence

    from numpy.typing import NDArray

    from gpusight.analysis.ledger.accounting import Accounting
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace
    from gpusight.viewer.ledger_track import LedgerLine
    from gpusight.viewer.level_of_detail import EventLine, SampledValues
    from gpusight.viewer.track_data import EventSource, TimelineTrack, TrackSource


MAX_BINS = 8_192
"""No screen is wider."""
_MAX_TIME_NS = 1 << 62


@dataclass(frozen=True)
class BinnedStretch:
    """A stretch of time, cut into bins."""

    start_ns: int
    end_ns: int
    bins: int

    @classmethod
    def of(cls, start_ns: int, end_ns: int, bins: int) -> BinnedStretch:
        """Check the request; there are no more bins than nanoseconds."""
        if not 1 <= bins <= MAX_BINS:
            raise UsageError(f"{bins} bins cannot be shown", hint=f"use 1 to {MAX_BINS:,}")
        if not -_MAX_TIME_NS <= start_ns < end_ns <= _MAX_TIME_NS:
            raise UsageError(
                f"no time range from {start_ns} to {end_ns} ns",
                hint="its end must come after its start, both within 146 years",
            )
        return cls(start_ns, end_ns, min(bins, end_ns - start_ns))

    @property
    def least_ns(self) -> int:
        """How long an event must be to be drawn alone: as long as a bin is wide."""
        return -(-(self.end_ns - self.start_ns) // self.bins)

    @cached_property
    def edges(self) -> Ints:
        """Where the bins begin, and where the last one ends."""
        width_ns, rest = divmod(self.end_ns - self.start_ns, self.bins)
        number = np.arange(self.bins + 1, dtype=np.int64)
        # Bin times length could wrap around, so the remainder is shared out apart.
        return self.start_ns + number * width_ns + number * rest // self.bins


@dataclass
class WindowBuilder:
    """A window while it is put together, line by line."""

    stretch: BinnedStretch
    lines: list[tuple[str, int]] = field(default_factory=list)
    pending: list[str] = field(default_factory=list)
    _labels: dict[str, int] = field(default_factory=dict)
    _slices: list[TrackSlices] = field(default_factory=list)
    _bins: list[TrackBins] = field(default_factory=list)
    _points: list[SeriesPoints] = field(default_factory=list)

    def show_events(self, line: EventLine, source: EventSource, number: int) -> None:
        """Show one line of events as the line that was added last; `number` is its own number."""
        stretch = self.stretch
        at = line.slices(stretch.start_ns, stretch.end_ns, stretch.least_ns)
        if len(at):
            table, row = source.where(number, at)
            label = self._numbered(*source.labels(number, at))
            color = line.color[at].astype(np.int64)
            shown = TrackSlices(
                self._here(at), line.start_ns[at], line.end_ns[at], table, row, label, color
            )
            self._slices.append(shown)
        sums = line.bins(stretch.edges, stretch.least_ns)
        self._bins.append(
            TrackBins(self._here(sums.bin), sums.bin, sums.busy_ns, sums.count, sums.color)
        )

    def show_values(self, samples: SampledValues) -> None:
        """Show one line of a series as the line that was added last."""
        number, low, high, mean = samples.bins(self.stretch.edges)
        self._points.append(SeriesPoints(self._here(number), number, low, high, mean))

    def window(self) -> TimelineWindow:
        """Return everything that was put together."""
        stretch = self.stretch
        return TimelineWindow(
            stretch.start_ns,
            stretch.end_ns,
            stretch.bins,
            tuple(self.lines),
            tuple(self.pending),
            tuple(self._labels),
            TrackSlices(**_joined(TrackSlices, self._slices)),
            TrackBins(**_joined(TrackBins, self._bins)),
            SeriesPoints(**_joined(SeriesPoints, self._points)),
        )

    def _here(self, values: NDArray[np.generic]) -> Ints:
        return np.full(len(values), len(self.lines) - 1, np.int64)

    def _numbered(self, label_of: Ints, texts: list[str]) -> Ints:
        """Number texts among all labels of the window."""
        labels = self._labels
        return np.array([labels.setdefault(t, len(labels)) for t in texts], np.int64)[label_of]


def _joined(kind: type[Any], parts: Sequence[Any]) -> dict[str, NDArray[Any]]:
    """Concatenate the columns of several parts; without parts they have no rows."""
    joined = {}
    for column in fields(kind):
        nothing = np.empty(0, np.float64 if column.name in _REAL else np.int64)
        joined[column.name] = np.concatenate([nothing, *(getattr(p, column.name) for p in parts)])
    return joined


_REAL = ("low", "high", "mean")


class SizedItem(Protocol):
    """What knows how large it is."""

    @property
    def nbytes(self) -> int:
        """Bytes that it keeps."""
        ...


CachedItem = TypeVar("CachedItem", bound=SizedItem)


class LruCache:
    """Keeps what was used last, for several threads at once.

    One thing is built at a time, while what is there can still be taken. What stands under a key is
    always of one type.
    """

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._kept_bytes = 0
        self._items: OrderedDict[Hashable, SizedItem] = OrderedDict()
        self._looking = threading.Lock()
        self._building = threading.Lock()

    def take(self, key: Hashable, build: Callable[[], CachedItem]) -> CachedItem:
        """Return what stands under a key; it is built where it is not there, or no more."""
        item = self._find(key)
        if item is None:
            with self._building:
                item = self._find(key)  # another thread may have built it meanwhile
                if item is None:
                    item = self._put(key, build())
        return cast("CachedItem", item)

    @property
    def nbytes(self) -> int:
        """Bytes of all that is kept."""
        with self._looking:
            return self._kept_bytes

    def _find(self, key: Hashable) -> SizedItem | None:
        with self._looking:
            if key in self._items:
                self._items.move_to_end(key)
            return self._items.get(key)

    def _put(self, key: Hashable, item: SizedItem) -> SizedItem:
        """Keep an item, and let go of those not used for longest; the newest always stays."""
        with self._looking:
            self._items[key] = item
            self._kept_bytes += item.nbytes
            while self._kept_bytes > self._most_bytes and len(self._items) > 1:
                _, oldest = self._items.popitem(last=False)
                self._kept_bytes -= oldest.nbytes
        return item


MAX_LINES = 1 << 16
"""Lines that are shown at once."""
_MAX_CACHE_BYTES = 1 << 31
"""What may be kept of lines that were looked at: those of 80 million events.

Ten million kernels with a call and a range each and the ledger are 50 million; where the lines on a
screen do not fit, each is built anew for every look at them.
"""


class ViewerTimeline:
    """A capture, ready to be looked at; made once, then read from several threads.

    Making it reads what it needs of the trace; of its methods, only `prepare_ledger`
    reads more. Lines are built when they are first looked at, and those not looked at for longest
    are let go of beyond `most_bytes`.
    """

    colors = COLORS
    """Meaning of the color codes: `compute/matmul`, `copy/h2d`, `idle/input`, `host/3`, …"""

    def __init__(self, trace: Trace, *, most_bytes: int = _MAX_CACHE_BYTES) -> None:
        self.trace = trace
        tracks = collect_tracks(trace)
        self.start_ns, self.end_ns = tracks.start_ns, tracks.end_ns
        """When the first event begins and the last one ends."""
        self.notes = tracks.notes
        """What could not be shown, and why."""
        self._strips = {strip.track.key: strip for strip in tracks.strips}
        self._events_of_table = {
            table: strip.source
            for strip in tracks.strips
            if isinstance(strip.source, TrackEvents)
            for table in strip.source.tables
        }
        self._owners = {
            (strip.track.tables[0], strip.first + line): (strip.track.key, line)
            for strip in tracks.strips
            if isinstance(strip.source, TrackEvents)
            for line in range(strip.track.lines)
        }
        self._cache = LruCache(most_bytes)
        self._preparing = threading.Lock()

    @property
    def tracks(self) -> tuple[TimelineTrack, ...]:
        """Every strip, in the order in which they stand: GPUs first, then processes."""
        return tuple(strip.track for strip in self._strips.values())

    @property
    def kept_bytes(self) -> int:
        """Memory that the lines take that were looked at last."""
        return self._cache.nbytes

    def prepare_ledger(self, known: Accounting | None = None) -> None:
        """Compute the ledger's tracks, which takes longer than all others; they pend until then.

        Where they cannot be computed they stay empty, and `notes` has the reason. `known` is used
        instead of computing it again.
        """
        with self._preparing:
            pending = [s for s in self._strips.values() if s.source is None]
            if not pending:
                return
            # Importing it takes longer than making a small timeline.
            from gpusight.viewer.ledger_track import ledger_lines

            try:
                spans = ledger_lines(self.trace, known)
            except GpusightError as error:
                spans = {}
                self.notes += (f"the ledger is not shown: {error}",)
            filled = {s.track.key: _with_ledger(s, spans) for s in pending}
            for key, strip in filled.items():
                assert isinstance(strip.source, LedgerSpans), "it was filled in"
                # Built before it can be requested: that may take seconds.
                self._cache.take((key, 0), partial(strip.source.line, 0))
            # One assignment: other threads see all of the ledgers or none.
            self._strips = self._strips | filled

    def window(self, keys: Sequence[str], start_ns: int, end_ns: int, bins: int) -> TimelineWindow:
        """Return what a screen shows of these tracks between two times, in so many bins."""
        screen = WindowBuilder(BinnedStretch.of(start_ns, end_ns, bins))
        strips = [self.track_source(key) for key in dict.fromkeys(keys)]
        if (lines := sum(strip.track.lines for strip in strips)) > MAX_LINES:
            raise UsageError(f"these tracks have {lines:,} lines", hint=f"at most {MAX_LINES:,}")
        for strip in strips:
            if strip.source is None:
                screen.pending.append(strip.track.key)
                continue
            for line in range(strip.track.lines):
                screen.lines.append((strip.track.key, line))
                source, number = strip.source, strip.first + line
                assert source is not None, "what pends is not shown"
                if isinstance(source, (MemorySeries, CounterSeries)):
                    build = partial(source.samples, number)
                    screen.show_values(self._cache.take((strip.track.key, line), build))
                else:
                    screen.show_events(self._line(strip, source, line), source, number)
        return screen.window()

    def pick(self, key: str, line: int, time_ns: int, within_ns: int) -> EventPosition | None:
        """Return the event at a time, or the nearest within so many nanoseconds."""
        strip = self.track_source(key)
        if not 0 <= line < strip.track.lines:
            raise UsageError(f"no line {line} on track {key!r}", hint=f"it has {strip.track.lines}")
        if strip.source is None or isinstance(strip.source, (MemorySeries, CounterSeries)):
            return None
        position = self._line(strip, strip.source, line).at(time_ns, within_ns)
        return None if position is None else self._spot(strip, strip.source, line, position)

    def spot(self, table: str, row: int) -> EventPosition | None:
        """Return the position of an event of a table; None where no track shows it."""
        events = self._events_of_table.get(table)
        position_on_line = events.find(table, row) if events is not None else None
        if events is None or position_on_line is None:
            return None
        number, position = position_on_line
        key, line = self._owners[events.tables[0], number]
        return self._spot(self._strips[key], events, line, position)

    def track_source(self, key: str) -> TrackSource:
        """Return a track and where its lines come from."""
        if key not in self._strips:
            raise UsageError(f"no track {key!r} in the capture")
        return self._strips[key]

    def _line(self, strip: TrackSource, source: EventSource, line: int) -> EventLine:
        build = partial(source.line, strip.first + line)
        return self._cache.take((strip.track.key, line), build)

    def _spot(
        self, strip: TrackSource, source: EventSource, line: int, position: int
    ) -> EventPosition:
        """Describe an event by its position on a line."""
        number, at = strip.first + line, np.array([position])
        (table,), (row,) = source.where(number, at)
        start_ns, end_ns = source.times(number, at)
        label_of, texts = source.labels(number, at)
        return EventPosition(
            strip.track.tables[table],
            int(row),
            int(start_ns[0]),
            int(end_ns[0]),
            strip.track.key,
            line,
            texts[label_of[0]],
        )


def _with_ledger(strip: TrackSource, spans: Mapping[int, LedgerLine]) -> TrackSource:
    """Fill the ledger of a GPU in; it is empty where it could not be computed."""
    line = spans.get(strip.device) if strip.device is not None else None
    if line is None:
        none = np.empty(0, np.int64)
        return replace(strip, source=LedgerSpans(none, none, none.astype(np.uint8)))
    source = LedgerSpans(line.start_ns, line.end_ns, line.color)
    return replace(strip, track=replace(strip.track, events=len(line.start_ns)), source=source)
