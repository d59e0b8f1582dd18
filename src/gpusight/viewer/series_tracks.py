"""Values over time as tracks: sampled hardware counters and memory."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.memory.device_memory import DeviceMemories
from gpusight.analysis.selection import EVERYTHING
from gpusight.viewer.gpu_tracks import gpu_key
from gpusight.viewer.level_of_detail import SampledValues
from gpusight.viewer.track_data import TimelineTrack, TrackSource, distinct_keys
from gpusight.viewer.track_events import EVENT, kept, lay_out
from gpusight.viewer.track_style import one_line

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.analysis.memory.device_memory import MemoryView
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace
    from gpusight.viewer.track_data import Reals
    from gpusight.viewer.track_events import LineGroup, LineLayout
    from gpusight.viewer.track_style import TrackTitles


READS = {"gpu_metrics": ["time_ns", "device", "metric", "value"]}
"""Every column that the tracks of counters need."""
_METRIC_KEYS = ["device", "metric"]
_LEVELS = ("allocated_bytes", "reserved_bytes")
_WHOLE_PERCENT = 100.0
_CLOCK = "[MHz]"
_MOST_MHZ = 100_000.0
"""No clock is faster: what is above was sampled in hertz, whatever the name of the counter says."""


@dataclass(frozen=True, eq=False)
class CounterSeries:
    """Hardware counters, each on a line of its own."""

    layout: LineLayout
    time_ns: Ints
    value: Reals

    def samples(self, number: int) -> SampledValues:
        """Build what answers about one counter of one GPU."""
        rows = self.rows(number)
        return SampledValues.of(self.time_ns[rows], self.value[rows], holds=False)

    def rows(self, number: int) -> NDArray[np.uint32]:
        """Give the rows of one counter of one GPU, in order of time."""
        first, count = (int(self.layout.lines[c][number]) for c in ("first", "count"))
        return self.layout.event[first : first + count]


@dataclass(frozen=True, eq=False)
class MemorySeries:
    """A memory over time: a line for what is in use, and one for what is reserved if known."""

    time_ns: Ints
    levels: tuple[Ints, ...]

    def samples(self, number: int) -> SampledValues:
        """Build what answers about one of the levels."""
        return SampledValues.of(self.time_ns, self.levels[number], holds=True)


def metrics(trace: Trace, titles: TrackTitles) -> list[TrackSource]:
    """Give a track for each counter of each GPU."""
    if not trace.has("gpu_metrics"):
        return []
    layout = kept(trace, "metrics", lambda: _lay_out_metrics(trace))
    time_ns, name, value = trace.table("gpu_metrics", ["time_ns", "metric", "value"])
    source = CounterSeries(layout, time_ns.to_numpy(), value.to_numpy())
    names = names_of(name)
    groups = layout.groups()
    keys = distinct_keys(f"{gpu_key(group.keys['device'])}/metric" for group in groups)
    return [
        _metric(source, group, key, names[group.keys["metric"] or 0], titles)
        for group, key in zip(groups, keys, strict=True)
    ]


def _metric(
    source: CounterSeries, group: LineGroup, key: str, name: str, titles: TrackTitles
) -> TrackSource:
    device, high = group.keys["device"], _highest(source.value[source.rows(group.first)])
    unit = _unit(name, high)
    track = TimelineTrack(
        key,
        titles.gpu(device),
        "metric",
        one_line(name.removesuffix(_CLOCK)),
        ("gpu_metrics",),
        lines=1,
        events=group.events,
        series=True,
        unit=unit,
        high=max(high, _WHOLE_PERCENT) if unit == "%" and high is not None else high,
    )
    return TrackSource(track, source, group.first, device)


def _unit(name: str, high: float | None) -> str:
    """Say what a counter is measured in, where its name tells."""
    if name.endswith(_CLOCK):
        return "Hz" if high is not None and high > _MOST_MHZ else "MHz"
    return "%" if "%" in name else ""


def _highest(values: Reals) -> float | None:
    """Give the largest value, which a scale ends at; None where there is none."""
    high = float(np.max(values, initial=-np.inf, where=np.isfinite(values)))
    return high if math.isfinite(high) else None


def _lay_out_metrics(trace: Trace) -> LineLayout:
    frame = trace.table("gpu_metrics", ["time_ns", *_METRIC_KEYS]).with_row_index(EVENT)
    time_ns, metric = pl.col("time_ns"), pl.col("metric").to_physical().cast(pl.Int64)
    frame = frame.with_columns(time_ns.alias("start_ns"), time_ns.alias("end_ns"), metric)
    return lay_out(frame, _METRIC_KEYS, packed=False)


def memory(trace: Trace, titles: TrackTitles) -> list[TrackSource]:
    """Give a track for the memory of each GPU, and for the host's (of no device)."""
    if not trace.has("memory_events"):
        return []
    frame = trace.derive("timeline-memory-1", lambda: _histories(trace))
    return [
        _memory(device, rows, titles)
        for (device,), rows in frame.group_by("device", maintain_order=True)
    ]


def _memory(device: int | None, rows: pl.DataFrame, titles: TrackTitles) -> TrackSource:
    known = [level for level in _LEVELS if rows[level].null_count() == 0]
    levels = tuple(rows[level].to_numpy() for level in known)
    track = TimelineTrack(
        "host/memory" if device is None else f"{gpu_key(device)}/memory",
        "Host" if device is None else titles.gpu(device),
        "memory",
        "Host memory" if device is None else "Memory",
        ("memory_events",),
        lines=len(levels),
        events=rows.height,
        series=True,
        unit="bytes",
        high=float(max(level.max() for level in levels)),
    )
    return TrackSource(track, MemorySeries(rows["time_ns"].to_numpy(), levels), device=device)


def _histories(trace: Trace) -> pl.DataFrame:
    """Follow the memory of each GPU and of the host, one after the other."""
    places = DeviceMemories(trace, EVERYTHING)
    devices: list[int | None] = [*places.gpus]
    if places.events_of(None).height:
        devices.append(None)
    parts = [_history(device, places.view(device)) for device in devices]
    schema = dict.fromkeys(("device", "time_ns", *_LEVELS), pl.Int64)
    return pl.concat([pl.DataFrame(schema=schema), *parts])


def _history(device: int | None, view: MemoryView) -> pl.DataFrame:
    """Give the levels after each event, and before the first where the capture begins earlier."""
    history, unknown = view.history, pl.lit(None, pl.Int64)
    reserved = unknown if history.reserved is None else pl.Series(history.reserved)
    frame = pl.DataFrame({"time_ns": history.times}).select(
        pl.lit(device, pl.Int64).alias("device"),
        "time_ns",
        pl.Series("allocated_bytes", history.allocated),
        reserved.alias("reserved_bytes"),
    )
    begins_earlier = not len(history) or view.start_ns < history.times[0]
    if begins_earlier and (len(history) or history.start_allocated):
        levels = (history.start_allocated, history.start_reserved)
        before = pl.DataFrame([(device, view.start_ns, *levels)], frame.schema, orient="row")
        return pl.concat([before, frame])
    return frame
