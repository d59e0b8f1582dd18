"""Host activity as tracks: ranges, operators, calls and waits of each thread."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.launch_index import KeyIndex
from gpusight.analysis.ledger.ledger_entries import COMMUNICATION
from gpusight.analysis.recording_advice import advice_for
from gpusight.trace.trace import RANKS
from gpusight.viewer.gpu_tracks import gpu_key
from gpusight.viewer.track_data import TimelineTrack, TrackSource, distinct_keys
from gpusight.viewer.track_events import EVENT, TrackEvents, TrackTable, kept, lay_out
from gpusight.viewer.track_style import (
    OVERHEAD,
    SYNCHRONIZE,
    NamedStyle,
    by_call,
    by_key,
    by_name,
    one_line,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpusight.trace.trace import Trace
    from gpusight.viewer.track_events import LineGroup, LineLayout
    from gpusight.viewer.track_style import ColorCodes, TrackTitles


_TIMES = ["start_ns", "end_ns"]
_THREAD = ["process", "thread"]
_OVERLAPPING = "overlapping"
"""Ranges that do not nest, which get a track of their own."""
_CALLS = "api_calls"
COLLECTIVES = "collectives"


@dataclass(frozen=True, slots=True)
class HostTrackKind:
    """A kind of track that threads have."""

    kind: str
    table: str
    name: str
    paint: Callable[[pl.Series], ColorCodes]
    named_by: str = "name"
    also: tuple[str, ...] = ()
    """Further columns that decide which thread or track an event stands on."""
    shorten: Callable[[str], str] = one_line


def _wait(kind: str) -> str:
    """Return what was waited for; the kind itself names it where it is not the host that waits."""
    return kind if "wait" in kind else one_line(f"wait for {kind}")


_KINDS = (
    HostTrackKind("ranges", "ranges", "", by_name, also=("kind",)),
    HostTrackKind("ops", "cpu_ops", "Operators", by_name),
    HostTrackKind("python", "python_calls", "Python", by_name),
    HostTrackKind(
        COLLECTIVES,
        COLLECTIVES,
        "Collectives",
        partial(by_key, key=COMMUNICATION),
        also=("side",),
    ),
    HostTrackKind("api", _CALLS, "", by_call),
    HostTrackKind(
        "syncs",
        "syncs",
        "Synchronization",
        partial(by_key, key=SYNCHRONIZE),
        named_by="kind",
        shorten=_wait,
    ),
    HostTrackKind("os", "os_calls", "OS calls", by_name),
    HostTrackKind("overhead", "overheads", "Profiler overhead", partial(by_key, key=OVERHEAD)),
)
"""In the order in which a thread's tracks stand."""


def reads(trace: Trace) -> dict[str, list[str]]:
    """Return every column that these tracks need."""
    columns = {k.table: [*_TIMES, *_THREAD, k.named_by, *k.also] for k in _KINDS}
    columns["syncs"] = [*_TIMES, "process", "kind", "correlation"]
    if trace.has("syncs"):
        columns[_CALLS].append("correlation")
    return columns


@dataclass(frozen=True, slots=True)
class _ThreadTrack:
    """What one thread did of one kind."""

    kind: HostTrackKind
    family: TrackEvents
    group: LineGroup

    @property
    def process(self) -> int | None:
        return self.group.keys["process"]

    @property
    def thread(self) -> int | None:
        return self.group.keys["thread"]


def threads(trace: Trace, titles: TrackTitles) -> list[TrackSource]:
    """Return the tracks of all threads: of the process and thread with most calls first."""
    of_ranks = trace.meta.source == RANKS
    kinds = [kind for kind in _KINDS if not (of_ranks and kind.kind == COLLECTIVES)]
    tracks = [track for kind in kinds if trace.has(kind.table) for track in _shown(trace, kind)]
    strips: list[TrackSource] = []
    processes = _busiest_first(tracks, lambda s: s.process)
    if of_ranks:
        processes.sort(key=lambda of_process: of_process[0].process or 0)
    for number, of_process in enumerate(processes):
        for position, of_thread in enumerate(_busiest_first(of_process, lambda s: s.thread)):
            prefix = f"p{number}/t{position}"
            strips += [_strip(trace, titles, prefix, track) for track in of_thread]
    return strips


def rank_collectives(trace: Trace, titles: TrackTitles) -> list[TrackSource]:
    """Return the collectives that hosts run, with the GPU of their rank: ranks are compared."""
    if trace.meta.source != RANKS or not trace.has(COLLECTIVES):
        return []
    (kind,) = (kind for kind in _KINDS if kind.kind == COLLECTIVES)
    tracks = [track for track in _shown(trace, kind) if track.group.events]
    keys = distinct_keys(f"{gpu_key(track.process)}/{COLLECTIVES}" for track in tracks)
    return [
        TrackSource(
            TimelineTrack(
                key,
                titles.gpu(track.process),
                COLLECTIVES,
                f"{kind.name} · {titles.thread(track.thread)}",
                (COLLECTIVES,),
                track.group.lines,
                track.group.events,
            ),
            track.family,
            track.group.first,
            track.process,
        )
        for key, track in zip(keys, tracks, strict=True)
    ]


def _shown(trace: Trace, kind: HostTrackKind) -> list[_ThreadTrack]:
    layout = kept(trace, kind.kind, lambda: _lay_out(trace, kind))
    names = trace.table(kind.table, [kind.named_by])[kind.named_by]
    events = TrackEvents(
        layout, (TrackTable.of(trace, kind.table, NamedStyle(names, kind.paint, kind.shorten)),)
    )
    return [_ThreadTrack(kind, events, group) for group in layout.groups()]


def _busiest_first(
    tracks: Iterable[_ThreadTrack], key: Callable[[_ThreadTrack], int | None]
) -> list[list[_ThreadTrack]]:
    """Group tracks by key, those with most API calls first, then with most events."""
    groups: dict[int | None, list[_ThreadTrack]] = {}
    for track in tracks:
        groups.setdefault(key(track), []).append(track)

    def order(item: tuple[int | None, list[_ThreadTrack]]) -> tuple[int, int, int]:
        calls = sum(track.group.events for track in item[1] if track.kind.table == _CALLS)
        return -calls, -sum(track.group.events for track in item[1]), item[0] or 0

    return [members for _, members in sorted(groups.items(), key=order)]


def _strip(
    trace: Trace, titles: TrackTitles, prefix: str, thread_track: _ThreadTrack
) -> TrackSource:
    kind, group = thread_track.kind, thread_track.group
    overlapping = bool(group.keys.get(_OVERLAPPING))
    track = TimelineTrack(
        key=f"{prefix}/{kind.kind}{'.overlapping' if overlapping else ''}",
        group=titles.process(thread_track.process),
        kind=kind.kind,
        name=_name(trace, kind, overlapping=overlapping),
        tables=(kind.table,),
        lines=group.lines,
        events=group.events,
        thread=titles.thread(thread_track.thread),
    )
    own = {"process": thread_track.process, "thread": thread_track.thread}
    return TrackSource(track, thread_track.family, group.first, keys=own)


def _name(trace: Trace, kind: HostTrackKind, *, overlapping: bool) -> str:
    """Name a track in the words of the tool that made the capture."""
    advice = advice_for(trace.meta)
    if kind.kind == "ranges":
        name = advice.ranges_name[0].upper() + advice.ranges_name[1:]
        return f"{name}, not nested" if overlapping else name
    return advice.calls_short if kind.kind == "api" else kind.name


def _lay_out(trace: Trace, kind: HostTrackKind) -> LineLayout:
    if kind.kind == "syncs":
        return lay_out(_syncs(trace), _THREAD)
    frame = trace.table(kind.table, [*_TIMES, *_THREAD, *kind.also]).with_row_index(EVENT)
    if kind.kind == COLLECTIVES:
        return lay_out(frame.filter(pl.col("side").cast(pl.String) == "host"), _THREAD)
    if kind.kind == "ranges":
        overlapping = (
            (pl.col("kind").cast(pl.String) != "push_pop").cast(pl.Int64).alias(_OVERLAPPING)
        )
        return lay_out(frame.with_columns(overlapping), [*_THREAD, _OVERLAPPING])
    return lay_out(frame, _THREAD)


def _syncs(trace: Trace) -> pl.DataFrame:
    """Return the waits for a GPU, each on the thread of the call that waited if known."""
    frame = trace.table("syncs", [*_TIMES, "process", "correlation"]).with_row_index(EVENT)
    calls = trace.table(_CALLS, ["process", "correlation", "thread"])
    if not calls.height:
        return frame.with_columns(pl.lit(None, pl.Int64).alias("thread"))
    index = KeyIndex(calls["process"], calls["correlation"])
    rows = pl.Series(index.find(frame["process"], frame["correlation"]))
    thread = calls["thread"].gather(rows.set(rows < 0, None))
    return frame.with_columns(thread.alias("thread"))
