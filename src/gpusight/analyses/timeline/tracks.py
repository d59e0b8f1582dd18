"""Every track of a capture, in the order in which they stand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.advice import advice_for
from gpusight.analyses.timeline import gpu_tracks, host_tracks, series_tracks
from gpusight.analyses.timeline.family import Family
from gpusight.analyses.timeline.gpu_tracks import gpu_key
from gpusight.analyses.timeline.ledger_strip import TABLE
from gpusight.analyses.timeline.series_tracks import Levels, Sampled
from gpusight.analyses.timeline.strip import Strip
from gpusight.analyses.timeline.titles import Titles
from gpusight.analyses.timeline.window import Track
from gpusight.errors import DamagedCaptureError, MissingDataError

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpusight.model.trace import Trace


@dataclass(frozen=True)
class Tracks:
    """The tracks of a capture."""

    strips: tuple[Strip, ...]
    start_ns: int
    end_ns: int
    notes: tuple[str, ...]
    """What could not be shown, and why."""


def collect(trace: Trace) -> Tracks:
    """Find every track: those of GPUs first, then those of processes, then the host's memory."""
    trace.read_together(gpu_tracks.READS | series_tracks.READS | host_tracks.reads(trace))
    titles = Titles(trace)
    levels, notes = _memory(trace, titles)
    streams = gpu_tracks.streams(trace, titles)
    of_gpus = [
        *_ledgers(streams, titles),
        *streams,
        *gpu_tracks.gpu_ranges(trace, titles),
        *series_tracks.metrics(trace, titles),
        *(level for level in levels if level.device is not None),
    ]
    strips = (
        *_by_gpu(of_gpus),
        *host_tracks.threads(trace, titles),
        *(level for level in levels if level.device is None),
    )
    if not strips:
        raise MissingDataError(
            "the capture has no timeline",
            why="; ".join(notes) or "nothing in it has a time",
            hint=advice_for(trace.meta).gpu,
        )
    return Tracks(strips, *_extent(strips), notes)


def _memory(trace: Trace, titles: Titles) -> tuple[list[Strip], tuple[str, ...]]:
    """Give the tracks of memory, or say why there are none: all else can still be shown."""
    try:
        return series_tracks.memory(trace, titles), ()
    except DamagedCaptureError as error:
        return [], (f"memory is not shown: {error}",)


def _ledgers(streams: Iterable[Strip], titles: Titles) -> list[Strip]:
    """Give each GPU that worked a track for its ledger, which is still to be computed."""
    return [
        Strip(_ledger(device, titles), None, device=device)
        for device in dict.fromkeys(strip.device for strip in streams)
    ]


def _ledger(device: int | None, titles: Titles) -> Track:
    key = f"{gpu_key(device)}/{TABLE}"
    return Track(key, titles.gpu(device), "ledger", "Ledger", (TABLE,), lines=1, events=0)


def _by_gpu(strips: list[Strip]) -> list[Strip]:
    """Put the tracks of a GPU together, otherwise in the order given."""
    return sorted(strips, key=lambda strip: (strip.device is None, strip.device or 0))


def _extent(strips: Iterable[Strip]) -> tuple[int, int]:
    """Give when the first event begins and the last one ends.

    What memory was taken or held before anything ran does not count where something ran.
    """
    sources = [strip.source for strip in strips if strip.source is not None]
    laid_out = {id(s): s.layout.lines for s in sources if isinstance(s, (Family, Sampled))}
    every = pl.concat(
        [_NO_TIMES, *(lines.select(_NO_TIMES.columns) for lines in laid_out.values())]
    )
    every = every.filter(pl.col("count") > 0)
    if every.is_empty():
        times = [source.time_ns for source in sources if isinstance(source, Levels)]
        return min(int(t[0]) for t in times), max(int(t[-1]) for t in times)
    return int(every["start_ns"].to_numpy().min()), int(every["end_ns"].to_numpy().max())


_NO_TIMES = pl.DataFrame(schema=dict.fromkeys(("start_ns", "end_ns", "count"), pl.Int64))
