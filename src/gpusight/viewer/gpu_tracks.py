"""GPU activity as tracks: one per stream, with annotations above."""

from __future__ import annotations

from collections import Counter
from functools import partial
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.gpu_schedule import QUEUE, OpKind
from gpusight.analysis.ledger.ledger_entries import GRAPH
from gpusight.units import format_bytes
from gpusight.viewer.track_data import TimelineTrack, TrackSource, distinct_keys
from gpusight.viewer.track_events import EVENT, TrackEvents, TrackTable, kept, lay_out
from gpusight.viewer.track_style import (
    FILL,
    CountedStyle,
    NamedStyle,
    always,
    by_entry,
    by_key,
    by_name,
    kernel,
    one_line,
)

if TYPE_CHECKING:
    from gpusight.trace.trace import Trace
    from gpusight.viewer.track_events import LineGroup, LineLayout
    from gpusight.viewer.track_style import EventStyle, TrackTitles


_TIMES = ["start_ns", "end_ns"]
READS = {
    "kernels": [*_TIMES, *QUEUE, "name"],
    "copies": [*_TIMES, *QUEUE, "kind", "bytes"],
    "memsets": [*_TIMES, *QUEUE, "bytes"],
    "graph_launches": [*_TIMES, *QUEUE, "graph"],
    "gpu_ranges": [*_TIMES, "device", "stream", "kind", "name"],
}
"""Every column that these tracks need."""
_UNIFIED = "unified"
_RANGE_KEYS = ["device", "stream", "kind"]


def streams(trace: Trace, titles: TrackTitles) -> list[TrackSource]:
    """Give a track for each stream, those with most GPU time first."""
    kinds = [kind for kind in OpKind if trace.has(kind.table)]
    if not kinds:
        return []
    layout = kept(trace, "streams", lambda: _lay_out_streams(trace, kinds))
    family = TrackEvents(
        layout, tuple(TrackTable.of(trace, k.table, _look(trace, k)) for k in kinds)
    )
    groups = sorted(layout.groups(), key=lambda group: -group.busy_ns)
    keys = distinct_keys(_stream_key(group) for group in groups)
    names = _stream_names(groups, titles)
    return [
        _strip(family, group, titles, "stream", key, name)
        for group, key, name in zip(groups, keys, names, strict=True)
    ]


def gpu_ranges(trace: Trace, titles: TrackTitles) -> list[TrackSource]:
    """Give a track for the annotations of each kind over each stream."""
    if not trace.has("gpu_ranges"):
        return []
    layout = kept(trace, "gpu-ranges", lambda: _lay_out_annotations(trace))
    names = trace.table("gpu_ranges", ["name"])["name"]
    family = TrackEvents(
        layout, (TrackTable.of(trace, "gpu_ranges", NamedStyle(names, by_name, one_line)),)
    )
    kinds = names_of(trace.table("gpu_ranges", ["kind"])["kind"])
    groups = layout.groups()
    keys = distinct_keys(f"{gpu_key(group.keys['device'])}/ranges" for group in groups)
    return [
        _strip(family, group, titles, "ranges", key, _over_what(group, kinds, groups))
        for group, key in zip(groups, keys, strict=True)
    ]


def gpu_key(device: int | None) -> str:
    """Give what the keys of a GPU's tracks begin with."""
    return "gpu" if device is None else f"gpu{device}"


def _strip(
    family: TrackEvents, group: LineGroup, titles: TrackTitles, kind: str, key: str, name: str
) -> TrackSource:
    device = group.keys["device"]
    track = TimelineTrack(
        key, titles.gpu(device), kind, name, family.tables, group.lines, group.events
    )
    return TrackSource(track, family, group.first, device)


def _lay_out_streams(trace: Trace, kinds: list[OpKind]) -> LineLayout:
    # What a table does not say about its work must not set that apart from the others'.
    told = [key for key in QUEUE if all(trace.has(kind.table, key) for kind in kinds)]
    work = pl.concat([_work(trace, kind, told) for kind in kinds])
    return lay_out(work.with_row_index(EVENT), [*QUEUE, _UNIFIED])


def _work(trace: Trace, kind: OpKind, told: list[str]) -> pl.DataFrame:
    """Give the work of a table with what tells streams apart; migrations are of no stream."""
    unified = pl.lit(0, pl.Int64)
    columns = [*_TIMES, *QUEUE]
    if kind is OpKind.COPY:
        columns.append("kind")
        unified = pl.col("kind").cast(pl.String).str.starts_with("Unified").cast(pl.Int64)
    unsaid = [pl.lit(None, pl.Int64).alias(key) for key in QUEUE if key not in told]
    frame = trace.table(kind.table, columns).with_columns(unified.alias(_UNIFIED), *unsaid)
    return frame.select(*_TIMES, *QUEUE, _UNIFIED)


def _look(trace: Trace, kind: OpKind) -> EventStyle:
    """Say what the rows of a table of GPU work look like."""
    rows = trace.row_count(kind.table)
    if kind is OpKind.KERNEL:
        names = trace.table("kernels", ["name"])["name"]
        return NamedStyle(names, lambda _: by_entry(trace, kind, "name"), kernel)
    if kind is OpKind.COPY:
        kinds, size = trace.table("copies", ["kind", "bytes"])
        return CountedStyle(kinds, size, format_bytes, lambda _: by_entry(trace, kind, "kind"))
    if kind is OpKind.FILL:
        size = trace.table("memsets", ["bytes"])["bytes"]
        return CountedStyle(always("memset", rows), size, format_bytes, partial(by_key, key=FILL))
    graph = trace.table("graph_launches", ["graph"])["graph"]
    return CountedStyle(always("CUDA graph", rows), graph, _id, partial(by_key, key=GRAPH))


def _id(number: int | None) -> str:
    return "" if number is None else str(number)


def _stream_key(group: LineGroup) -> str:
    gpu, stream = gpu_key(group.keys["device"]), group.keys["stream"]
    if group.keys[_UNIFIED]:
        return f"{gpu}/unified"
    return f"{gpu}/stream{'' if stream is None else stream}"


def _stream_names(groups: list[LineGroup], titles: TrackTitles) -> list[str]:
    """Name streams; where a GPU has several of a number, with the process or context."""
    names = [_stream_name(group, titles) for group in groups]
    same = Counter((group.keys["device"], name) for group, name in zip(groups, names, strict=True))
    return [
        name if same[group.keys["device"], name] == 1 else f"{name} · {_owner(group, titles)}"
        for group, name in zip(groups, names, strict=True)
    ]


def _stream_name(group: LineGroup, titles: TrackTitles) -> str:
    if group.keys[_UNIFIED]:
        return "Unified memory"
    return titles.stream(group.keys["process"], group.keys["stream"])


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
