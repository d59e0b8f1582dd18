"""GPU activity as tracks: streams, annotations, sampled hardware counters and memory."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.gpu_schedule import STREAM_KEY, OpKind
from gpusight.analysis.ledger.ledger_entries import GRAPH
from gpusight.analysis.memory.device_memory import DeviceMemories
from gpusight.analysis.selection import EVERYTHING
from gpusight.trace.trace import RANKS
from gpusight.units import format_bytes
from gpusight.viewer.level_of_detail import SampledValues
from gpusight.viewer.track_data import TimelineTrack, TrackSource, distinct_keys
from gpusight.viewer.track_events import EVENT, TrackEvents, TrackTable, kept, lay_out
from gpusight.viewer.track_style import (
    MEMSET,
    CountedStyle,
    NamedStyle,
    always,
    by_entry,
    by_key,
    by_name,
    kernel_labels,
    one_line,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from gpusight.analysis.memory.device_memory import MemoryView
    from gpusight.trace.intervals import Ints, Reals
    from gpusight.trace.trace import Trace
    from gpusight.viewer.track_events import LineGroup, LineLayout
    from gpusight.viewer.track_style import EventStyle, TrackTitles


_TIMES = ["start_ns", "end_ns"]
READS = {
    "kernels": [*_TIMES, *STREAM_KEY, "name"],
    "copies": [*_TIMES, *STREAM_KEY, "kind", "bytes"],
    "memsets": [*_TIMES, *STREAM_KEY, "bytes"],
    "graph_launches": [*_TIMES, *STREAM_KEY, "graph"],
    "gpu_ranges": [*_TIMES, "device", "stream", "kind", "name"],
    "gpu_metrics": ["time_ns", "device", "metric", "value"],
}
"""Every column that these tracks need."""
_UNIFIED = "unified"
MAX_RANK_STREAMS = 2
"""Streams of each rank that are seen at first, where a timeline has several ranks."""
OTHER_STREAMS = "Other streams"
_RANGE_KEYS = ["device", "stream", "kind"]


def streams(trace: Trace, titles: TrackTitles) -> list[TrackSource]:
    """Return a track for each stream, those with most GPU time first."""
    kinds = [kind for kind in OpKind if trace.has(kind.table)]
    if not kinds:
        return []
    layout = kept(trace, "streams", lambda: _lay_out_streams(trace, kinds))
    events = TrackEvents(
        layout, tuple(TrackTable.of(trace, k.table, _style(trace, k)) for k in kinds)
    )
    groups = sorted(layout.groups(), key=lambda group: -group.busy_ns)
    keys = distinct_keys(_stream_key(group) for group in groups)
    names = _stream_names(groups, titles)
    strips = [
        _strip(events, group, titles, "stream", key, name)
        for group, key, name in zip(groups, keys, names, strict=True)
    ]
    return _under_heading(strips, MAX_RANK_STREAMS) if trace.meta.source == RANKS else strips


def _under_heading(strips: list[TrackSource], first: int) -> list[TrackSource]:
    """Put the tracks of a GPU but the first ones under a heading, which is folded at first."""
    seen: Counter[int | None] = Counter()
    made = []
    for strip in strips:
        seen[strip.device] += 1
        below = OTHER_STREAMS if seen[strip.device] > first else ""
        made.append(replace(strip, track=replace(strip.track, thread=below)))
    return made


def gpu_ranges(trace: Trace, titles: TrackTitles) -> list[TrackSource]:
    """Return a track for the annotations of each kind over each stream."""
    if not trace.has("gpu_ranges"):
        return []
    layout = kept(trace, "gpu-ranges", lambda: _lay_out_annotations(trace))
    names = trace.table("gpu_ranges", ["name"])["name"]
    events = TrackEvents(
        layout, (TrackTable.of(trace, "gpu_ranges", NamedStyle(names, by_name, one_line)),)
    )
    kinds = names_of(trace.table("gpu_ranges", ["kind"])["kind"])
    groups = layout.groups()
    keys = distinct_keys(f"{gpu_key(group.keys['device'])}/ranges" for group in groups)
    strips = [
        _strip(events, group, titles, "ranges", key, _over_what(group, kinds, groups))
        for group, key in zip(groups, keys, strict=True)
    ]
    return _under_heading(strips, 0) if trace.meta.source == RANKS else strips


def gpu_key(device: int | None) -> str:
    """Return what the keys of a GPU's tracks begin with."""
    return "gpu" if device is None else f"gpu{device}"


def _strip(
    events: TrackEvents, group: LineGroup, titles: TrackTitles, kind: str, key: str, name: str
) -> TrackSource:
    device = group.keys["device"]
    track = TimelineTrack(
        key, titles.gpu(device), kind, name, events.tables, group.lines, group.events
    )
    is_stream = kind == "stream" and not group.keys[_UNIFIED]
    own = {key: group.keys[key] for key in STREAM_KEY} if is_stream else {}
    return TrackSource(track, events, group.first, device, own)


def _lay_out_streams(trace: Trace, kinds: list[OpKind]) -> LineLayout:
    # A column that a table lacks must not separate its work from the others'.
    known_keys = [key for key in STREAM_KEY if all(trace.has(kind.table, key) for kind in kinds)]
    work = pl.concat([_work(trace, kind, known_keys) for kind in kinds])
    return lay_out(work.with_row_index(EVENT), [*STREAM_KEY, _UNIFIED])


def _work(trace: Trace, kind: OpKind, known_keys: list[str]) -> pl.DataFrame:
    """Return the work of a table with the keys of its stream; migrations have no stream."""
    unified = pl.lit(0, pl.Int64)
    columns = [*_TIMES, *STREAM_KEY]
    if kind is OpKind.COPY:
        columns.append("kind")
        unified = pl.col("kind").cast(pl.String).str.starts_with("Unified").cast(pl.Int64)
    unknown = [pl.lit(None, pl.Int64).alias(key) for key in STREAM_KEY if key not in known_keys]
    frame = trace.table(kind.table, columns).with_columns(unified.alias(_UNIFIED), *unknown)
    return frame.select(*_TIMES, *STREAM_KEY, _UNIFIED)


def _style(trace: Trace, kind: OpKind) -> EventStyle:
    """Return the style of a table of GPU work."""
    rows = trace.row_count(kind.table)
    if kind is OpKind.KERNEL:
        names = trace.table("kernels", ["name"])["name"]
        return NamedStyle(names, lambda _: by_entry(trace, kind, "name"), kernel_labels(names))
    if kind is OpKind.COPY:
        kinds, size = trace.table("copies", ["kind", "bytes"])
        return CountedStyle(kinds, size, format_bytes, lambda _: by_entry(trace, kind, "kind"))
    if kind is OpKind.MEMSET:
        size = trace.table("memsets", ["bytes"])["bytes"]
        return CountedStyle(always("memset", rows), size, format_bytes, partial(by_key, key=MEMSET))
    graph = trace.table("graph_launches", ["graph"])["graph"]
    return CountedStyle(
        always("CUDA graph", rows),
        graph,
        lambda n: "" if n is None else str(n),
        partial(by_key, key=GRAPH),
    )


def _stream_key(group: LineGroup) -> str:
    gpu, stream = gpu_key(group.keys["device"]), group.keys["stream"]
    if group.keys[_UNIFIED]:
        return f"{gpu}/unified"
    return f"{gpu}/stream{'' if stream is None else stream}"


def _stream_names(groups: list[LineGroup], titles: TrackTitles) -> list[str]:
    """Name streams; where a GPU has several of a number, with the process or context."""
    names = [
        "Unified memory"
        if group.keys[_UNIFIED]
        else titles.stream(group.keys["process"], group.keys["stream"])
        for group in groups
    ]
    same = Counter((group.keys["device"], name) for group, name in zip(groups, names, strict=True))
    return [
        name if same[group.keys["device"], name] == 1 else f"{name} · {_owner(group, titles)}"
        for group, name in zip(groups, names, strict=True)
    ]


def _owner(group: LineGroup, titles: TrackTitles) -> str:
    process, context = group.keys["process"], group.keys["context"]
    owner = [] if process is None else [titles.process(process)]
    return ", ".join([*owner, *([] if context is None else [f"context {context}"])])


def _lay_out_annotations(trace: Trace) -> LineLayout:
    frame = trace.table("gpu_ranges", [*_TIMES, *_RANGE_KEYS]).with_row_index(EVENT)
    return lay_out(frame.with_columns(pl.col("kind").to_physical().cast(pl.Int64)), _RANGE_KEYS)


def _over_what(group: LineGroup, kinds: list[str], groups: list[LineGroup]) -> str:
    """Name a track of annotations, with the stream where there are several."""
    kind, stream, device = (group.keys[key] for key in ("kind", "stream", "device"))
    name = "Annotations" if kind is None else one_line(f"{kinds[kind]}s".capitalize())
    streams = {other.keys["stream"] for other in groups if other.keys["device"] == device}
    return name if len(streams) == 1 or stream is None else f"{name} of stream {stream}"


# Values over time ---------------------------------------------------------------------------------

_METRIC_KEYS = ["device", "metric"]
_LEVELS = ("allocated_bytes", "reserved_bytes")
_WHOLE_PERCENT = 100.0
_CLOCK = "[MHz]"
_MAX_MHZ = 100_000.0
"""No clock is faster: what is above was sampled in hertz, whatever the name of the counter."""


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
        """Return the rows of one counter of one GPU, in order of time."""
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
    """Return a track for each counter of each GPU."""
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
    """Return the unit of a counter, where its name has it."""
    if name.endswith(_CLOCK):
        return "Hz" if high is not None and high > _MAX_MHZ else "MHz"
    return "%" if "%" in name else ""


def _highest(values: Reals) -> float | None:
    """Return the largest value, which a scale ends at; None where there is none."""
    high = float(np.max(values, initial=-np.inf, where=np.isfinite(values)))
    return high if math.isfinite(high) else None


def _lay_out_metrics(trace: Trace) -> LineLayout:
    frame = trace.table("gpu_metrics", ["time_ns", *_METRIC_KEYS]).with_row_index(EVENT)
    time_ns, metric = pl.col("time_ns"), pl.col("metric").to_physical().cast(pl.Int64)
    frame = frame.with_columns(time_ns.alias("start_ns"), time_ns.alias("end_ns"), metric)
    return lay_out(frame, _METRIC_KEYS, packed=False)


def memory(trace: Trace, titles: TrackTitles) -> list[TrackSource]:
    """Return a track for the memory of each GPU, and for the host's (of no device)."""
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
    """Return the levels after each event, and before the first where the capture begins earlier."""
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
