"""Every track of a capture, in display order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.selection import WINDOW_READS
from gpusight.errors import DamagedCaptureError, MissingDataError
from gpusight.viewer import gpu_tracks, host_tracks
from gpusight.viewer.gpu_tracks import CounterSeries, MemorySeries, gpu_key
from gpusight.viewer.level_of_detail import EventLine
from gpusight.viewer.track_data import TimelineTrack, TrackSource
from gpusight.viewer.track_events import TrackEvents
from gpusight.viewer.track_style import COLORS, TrackTitles

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace
    from gpusight.viewer.track_style import ColorCodes


TABLE = "ledger"
"""What stands for a table in its tracks: rows are spans of the ledger, which no table holds."""


@dataclass(frozen=True, eq=False)
class LedgerSpans:
    """Spans of time that count for one entry each."""

    start_ns: Ints
    end_ns: Ints
    color: ColorCodes

    def line(self, number: int) -> EventLine:
        """Build what answers about the only line."""
        assert number == 0, "a ledger has one line"
        return EventLine.of(self.start_ns, self.end_ns, self.color)

    def where(self, number: int, positions: Ints) -> tuple[Ints, Ints]:
        """Return the numbers of spans as rows."""
        assert number == 0, "a ledger has one line"
        return np.zeros_like(positions), positions

    def times(self, number: int, positions: Ints) -> tuple[Ints, Ints]:
        """Return when spans begin and end."""
        assert number == 0, "a ledger has one line"
        return self.start_ns[positions], self.end_ns[positions]

    def labels(self, number: int, positions: Ints) -> tuple[Ints, list[str]]:
        """Name the entries: `idle: input`."""
        assert number == 0, "a ledger has one line"
        used, label_of = np.unique(self.color[positions], return_inverse=True)
        return label_of, [COLORS[code].replace("/", ": ") for code in used]


@dataclass(frozen=True)
class TimelineTracks:
    """The tracks of a capture."""

    strips: tuple[TrackSource, ...]
    start_ns: int
    end_ns: int
    notes: tuple[str, ...]
    """What could not be shown, and why."""


def collect_tracks(trace: Trace) -> TimelineTracks:
    """Find every track: those of GPUs first, then those of processes, then the host's memory."""
    trace.read_together(gpu_tracks.READS, host_tracks.reads(trace), WINDOW_READS)
    titles = TrackTitles(trace)
    notes: tuple[str, ...] = ()
    try:
        levels = gpu_tracks.memory(trace, titles)
    except DamagedCaptureError as error:  # all else can still be shown
        levels, notes = [], (f"memory is not shown: {error}",)
    streams = gpu_tracks.streams(trace, titles)
    of_gpus = [
        *_ledgers(streams, titles),
        *host_tracks.rank_collectives(trace, titles),
        *streams,
        *gpu_tracks.gpu_ranges(trace, titles),
        *gpu_tracks.metrics(trace, titles),
        *(level for level in levels if level.device is not None),
    ]
    strips = (
        *sorted(of_gpus, key=lambda strip: (strip.device is None, strip.device or 0)),
        *host_tracks.threads(trace, titles),
        *(level for level in levels if level.device is None),
    )
    if not strips:
        raise MissingDataError(
            "the capture has no timeline",
            why="; ".join(notes) or "no event has a time",
            hint=advice_for(trace.meta).gpu,
        )
    return TimelineTracks(strips, *_extent(strips), notes)


def _ledgers(streams: Iterable[TrackSource], titles: TrackTitles) -> list[TrackSource]:
    """Return each GPU that worked a track for its ledger, which is still to be computed."""
    return [
        TrackSource(
            TimelineTrack(
                f"{gpu_key(device)}/{TABLE}",
                titles.gpu(device),
                "ledger",
                "Ledger",
                (TABLE,),
                lines=1,
                events=0,
            ),
            None,
            device=device,
        )
        for device in dict.fromkeys(strip.device for strip in streams)
    ]


def _extent(strips: Iterable[TrackSource]) -> tuple[int, int]:
    """Return when the first event begins and the last one ends.

    What memory was taken or held before anything ran does not count where something ran.
    """
    sources = [strip.source for strip in strips if strip.source is not None]
    laid_out = {
        id(s): s.layout.lines for s in sources if isinstance(s, (TrackEvents, CounterSeries))
    }
    spans = pl.concat(
        [_NO_TIMES, *(lines.select(_NO_TIMES.columns) for lines in laid_out.values())]
    )
    spans = spans.filter(pl.col("count") > 0)
    if spans.is_empty():
        times = [source.time_ns for source in sources if isinstance(source, MemorySeries)]
        return min(int(t[0]) for t in times), max(int(t[-1]) for t in times)
    return int(spans["start_ns"].to_numpy().min()), int(spans["end_ns"].to_numpy().max())


_NO_TIMES = pl.DataFrame(schema=dict.fromkeys(("start_ns", "end_ns", "count"), pl.Int64))
