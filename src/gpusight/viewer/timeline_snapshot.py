"""Part of a capture as a timeline to print: the median step, or a given window."""

from __future__ import annotations

import fnmatch
from collections import Counter
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import schema_of
from gpusight.analysis.gpu_time import headline
from gpusight.analysis.selection import EVERYTHING, ResolvedSelection, Selection
from gpusight.analysis.steps.step_list import called, shortened
from gpusight.analysis.steps.step_window import step_spans, step_window, work_end
from gpusight.analysis.steps.window_headline import NO_WINDOW, WindowHeadline
from gpusight.errors import MissingDataError, UsageError
from gpusight.pace import AS_RECORDED
from gpusight.results import Composite, Fact, Field, Fmt, NotApplicable, TableResult
from gpusight.trace.intervals import Intervals, coverage
from gpusight.viewer.timeline_view import BinnedStretch, ViewerTimeline
from gpusight.viewer.track_style import TrackTitles

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Iterator, Sequence

    from gpusight.analysis.ledger.accounting import Accounting
    from gpusight.analysis.steps.step_list import TraceStep
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace
    from gpusight.viewer.track_data import TimelineTrack, TimelineWindow


TRACK_FIELDS = (
    Field("group", "GPU or process", Fmt.NAME, "GPU or process of the track"),
    Field("thread", "Thread", Fmt.NAME, "Thread; null for tracks of a GPU"),
    Field("name", "Track", Fmt.NAME, "Name of the track"),
    Field("events", "Events", Fmt.COUNT, "Events that overlap the time shown"),
    Field(
        "busy_ns",
        "Time",
        Fmt.TIME,
        "Time covered by its events; of nested events, the outermost",
    ),
    Field("busy_share", "Share", Fmt.SHARE, "That time as part of the time shown"),
    Field("drawn", "Drawn", Fmt.FLAG, "Whether the picture shows it"),
    Field("lines", "Lines", Fmt.COUNT, "Nesting depth of its events", shown=False),
    Field("kind", "Kind", Fmt.TEXT, "`ledger`, `stream`, `ranges`, `ops`, `api`, …", shown=False),
    Field("unit", "Unit", Fmt.TEXT, "Of values: `bytes`, `%` or empty; else null", shown=False),
    Field("track", "Key", Fmt.TEXT, "Name of the track for `--tracks`"),
)
SLICE_FIELDS = (
    Field("track", "Track", Fmt.TEXT, "Key of its track"),
    Field("line", "Line", Fmt.ID, "Line of the track, 0 the outermost"),
    Field("start_ns", "Start", Fmt.TIME, "Start; may be before the time shown"),
    Field("duration_ns", "Duration", Fmt.TIME, "Duration"),
    Field("category", "Category", Fmt.TEXT, "`compute/matmul`, `idle/input`, `api/launch`, …"),
    Field("name", "Name", Fmt.NAME, "Name of the event"),
)
SUM_FIELDS = (
    Field("track", "Track", Fmt.TEXT, "Key of the track"),
    Field("line", "Line", Fmt.ID, "Line of the track, 0 the outermost"),
    Field("start_ns", "Start", Fmt.TIME, "Start of the bin"),
    Field("duration_ns", "Duration", Fmt.TIME, "Length of the bin"),
    Field("free_ns", "Free", Fmt.TIME, "Time of the bin not covered by a slice"),
    Field("busy_ns", "Time", Fmt.TIME, "Part of the free time covered by shorter events"),
    Field("events", "Events", Fmt.COUNT, "Shorter events that start in it"),
    Field("category", "Category", Fmt.TEXT, "Category of most of the time"),
)
POINT_FIELDS = (
    Field("track", "Track", Fmt.TEXT, "Key of the track"),
    Field("line", "Line", Fmt.ID, "Line of the track"),
    Field("start_ns", "Start", Fmt.TIME, "Start of the bin"),
    Field("low", "Low", Fmt.REAL, "Lowest value in it"),
    Field("high", "High", Fmt.REAL, "Highest value in it"),
    Field("mean", "Mean", Fmt.REAL, "Mean of it"),
)
FACTS = (
    Field("what", "Shown", Fmt.TEXT, "Step, range or window that is shown"),
    Field("step_ns", "Step time", Fmt.TIME, "Length of the window per step without the profiler"),
    Field("recorded_step_ns", "As recorded", Fmt.TIME, "The same with the profiler"),
    Field("median_ns", "Median step", Fmt.TIME, "Duration of the step that is shown"),
    Field("start_ns", "Start", Fmt.TIME, "Start of the time shown"),
    Field("length_ns", "Time shown", Fmt.TIME, "From host start to GPU end, with a margin"),
    Field("tracks", "Tracks", Fmt.COUNT, "Tracks with events"),
    Field("narrow_ns", "Shortest drawn", Fmt.TIME, "Shorter events are merged into bins"),
)


@dataclass(frozen=True)
class SnapshotTables:
    """A window without the lines that lie too deep."""

    window: TimelineWindow
    colors: tuple[str, ...]
    deepest: int
    """Lines of a track that are kept."""

    @property
    def items(self) -> int:
        """Count the events and sums that there are to be drawn."""
        every = (self.window.slices.line, self.window.bin_sums.line)
        return sum(int(self._is_kept[lines].sum()) for lines in every)

    def totals(self) -> dict[str, tuple[int, int]]:
        """Return the events of each track, and the time that its outermost line takes."""
        window = self.window
        slices, sums = window.slices, window.bin_sums
        clipped = np.minimum(slices.end_ns, window.end_ns) - np.maximum(
            slices.start_ns, window.start_ns
        )
        count = len(window.lines)
        events = _added(slices.line, np.ones(len(slices.line)), count)
        events += _added(sums.line, sums.count, count)
        busy = _added(slices.line, clipped, count) + _added(sums.line, sums.busy_ns, count)
        by_track: dict[str, tuple[int, int]] = {}
        for (key, line), happened, ns in zip(window.lines, events, busy, strict=True):
            before = by_track.get(key, (0, 0))
            by_track[key] = (before[0] + int(happened), int(ns) if line == 0 else before[1])
        return by_track

    def sections(self) -> tuple[TableResult, ...]:
        """Return what is drawn: events alone, sums of shorter ones, and values of series."""
        return (
            _table("slices", "Events", SLICE_FIELDS, self._slices),
            _table("sums", "Shorter events by bin", SUM_FIELDS, self._sums),
            _table("points", "Values", POINT_FIELDS, self._points),
        )

    @property
    def _slices(self) -> pl.DataFrame:
        slices = self.window.slices
        at = np.flatnonzero(self._is_kept[slices.line])
        labels = pl.Series(self.window.labels, dtype=pl.String)
        return self._of(slices.line[at]).with_columns(
            pl.Series("start_ns", slices.start_ns[at], pl.Int64),
            pl.Series("duration_ns", (slices.end_ns - slices.start_ns)[at], pl.Int64),
            self._category(slices.color[at]),
            labels.gather(slices.label[at]).alias("name"),
        )

    @property
    def _sums(self) -> pl.DataFrame:
        sums = self.window.bin_sums
        at = np.flatnonzero(self._is_kept[sums.line])
        edges = self._edges
        return self._of(sums.line[at]).with_columns(
            pl.Series("start_ns", edges[sums.bin[at]], pl.Int64),
            pl.Series("duration_ns", np.diff(edges)[sums.bin[at]], pl.Int64),
            pl.Series("free_ns", self._free_ns()[at], pl.Int64),
            pl.Series("busy_ns", sums.busy_ns[at], pl.Int64),
            pl.Series("events", sums.count[at], pl.Int64),
            self._category(sums.color[at]),
        )

    def _free_ns(self) -> Ints:
        """Return the time of each bin that no slice of its line takes."""
        slices, sums = self.window.slices, self.window.bin_sums
        start, end = self._edges[sums.bin], self._edges[sums.bin + 1]
        free: Ints = end - start
        for line in np.flatnonzero(np.bincount(sums.line)):
            at, own = np.flatnonzero(sums.line == line), np.flatnonzero(slices.line == line)
            alone = Intervals.from_arrays(slices.start_ns[own], slices.end_ns[own])
            free[at] -= coverage(alone, start[at], end[at])
        return free

    @property
    def _points(self) -> pl.DataFrame:
        points = self.window.points
        return self._of(points.line).with_columns(
            pl.Series("start_ns", self._edges[points.bin], pl.Int64),
            *(
                pl.Series(name, getattr(points, name), pl.Float64)
                for name in ("low", "high", "mean")
            ),
        )

    def _of(self, line: Ints) -> pl.DataFrame:
        keys = pl.Series([key for key, _ in self.window.lines], dtype=pl.String)
        numbers = pl.Series([number for _, number in self.window.lines], dtype=pl.Int64)
        return pl.DataFrame({"track": keys.gather(line), "line": numbers.gather(line)})

    def _category(self, color: Ints) -> pl.Series:
        return pl.Series(self.colors, dtype=pl.String).gather(color).alias("category")

    @cached_property
    def _is_kept(self) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
        return np.array([number < self.deepest for _, number in self.window.lines], np.bool_)

    @cached_property
    def _edges(self) -> Ints:
        window = self.window
        return BinnedStretch.of(window.start_ns, window.end_ns, window.bins).edges


def _added(line: Ints, values: np.ndarray[tuple[int], np.dtype[np.generic]], count: int) -> Ints:
    # Sums of whole numbers are exact in floating point up to 104 days of nanoseconds.
    return np.bincount(line, values, count).astype(np.int64)


def _table(command: str, title: str, fields: tuple[Field, ...], frame: pl.DataFrame) -> TableResult:
    return TableResult(command, title, fields, frame.select(field.key for field in fields))


# The snapshot -------------------------------------------------------------------------------------

COMMAND = "timeline"
_BINS = (900, 450, 225, 120)
"""How finely a picture is drawn: the first with which it does not hold too much."""
_MAX_EVENTS = 5_000
"""What a picture may hold: events, and bins of shorter ones."""
MAX_LINES_PER_TRACK = 8
"""Lines of a track that are drawn; deeper ones are left out."""
_MAX_LINES = 60
"""Lines of all tracks that are drawn."""


def timeline(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    tracks: Sequence[str] = (),
    known: Accounting | None = None,
    named: WindowHeadline | None = None,
) -> Composite | NotApplicable:
    """Show a time window track by track: the median step by default.

    `tracks` are kinds, keys or globs of keys; without them streams, ranges, operators and calls of
    the threads and GPUs that do most. `known` is taken for the ledger, where it is of its time.
    `named` is the headline of every command, where times are as recorded.
    """
    stretch = _stretch_of(trace, selection, named, steps=steps, window=window, warmup=warmup)
    if isinstance(stretch, NotApplicable):
        return replace(stretch, command=COMMAND)
    try:
        laid_out = ViewerTimeline(trace)
    except MissingDataError as error:
        return NotApplicable(COMMAND, error.what, error.hint)
    wanted = _wanted_tracks(trace, laid_out.tracks, selection, tracks)
    if any(track.kind == "ledger" for track in wanted):
        laid_out.prepare_ledger(known)
    start = max(stretch.start_ns, laid_out.start_ns)
    end = max(min(stretch.end_ns, laid_out.end_ns), start + 1)
    return _Snapshot(laid_out, start, end, stretch, tuple(wanted), is_free=not tracks).report()


@dataclass(frozen=True)
class _Snapshot:
    """A stretch of a timeline, with the tracks that are looked at."""

    timeline: ViewerTimeline
    start_ns: int
    end_ns: int
    stretch: SnapshotStretch
    tracks: tuple[TimelineTrack, ...]
    """Those requested, whatever happens on them."""
    is_free: bool
    """No tracks were named: the most active ones are drawn."""

    def report(self) -> Composite:
        """Look at every track coarsely, and at those that are drawn as finely as a picture can."""
        coarse = self._seen([track.key for track in self.tracks], _BINS[-1])
        totals = coarse.totals()
        valued = {track.key for track in self.tracks if track.series}
        active = {key for key, (events, _) in totals.items() if events} | valued
        drawn = self._drawn(active)
        keys = [track.key for track in drawn]
        fine = next(
            (
                tables
                for bins in _BINS[:-1]
                if (tables := self._seen(keys, bins)).items <= _MAX_EVENTS
            ),
            None,
        ) or self._seen(keys, _BINS[-1])
        rows = list(self._track_rows(totals, {*keys}))
        frame = pl.DataFrame(rows, schema=schema_of(TRACK_FIELDS), orient="row")
        table = TableResult("tracks", "Tracks", TRACK_FIELDS, frame)
        steps = [
            {"number": s.number, "name": s.name, "start_ns": s.start_ns, "end_ns": s.end_ns}
            for s in self.stretch.steps
        ]
        ends = {"start_ns": self.start_ns, "end_ns": self.end_ns, "bins": fine.window.bins}
        return Composite(
            COMMAND,
            "Timeline",
            tuple(self._facts(frame.height, fine)),
            (table, *fine.sections()),
            meta={
                "headline": self.stretch.named.document(),
                "path": self.timeline.trace.meta.path,
                **ends,
                "steps": steps,
            },
            notes=(
                *self.stretch.notes,
                *self.timeline.notes,
                *self._left_out(drawn, active),
            ),
            window=self.stretch.named.text,
        )

    def _seen(self, keys: Sequence[str], bins: int) -> SnapshotTables:
        window = self.timeline.window(keys, self.start_ns, self.end_ns, bins)
        return SnapshotTables(window, self.timeline.colors, MAX_LINES_PER_TRACK)

    def _drawn(self, active: set[str]) -> list[TimelineTrack]:
        """Choose what is drawn, as long as there is room for more lines."""
        candidates = _fewer(self.tracks, active) if self.is_free else self.tracks
        kept: list[TimelineTrack] = []
        for track in candidates:
            lines = sum(min(drawn.lines, MAX_LINES_PER_TRACK) for drawn in (*kept, track))
            if track.key in active and lines <= _MAX_LINES:
                kept.append(track)
        return kept

    def _track_rows(
        self, totals: dict[str, tuple[int, int]], drawn: set[str]
    ) -> Iterator[tuple[object, ...]]:
        length = self.end_ns - self.start_ns
        for track in self.tracks:
            events, busy = totals.get(track.key, (0, 0))
            if not events and not track.series:
                continue
            numbers = (
                (events, busy, busy / length) if not track.series else (track.events, None, None)
            )
            about = (track.group, track.thread or None, track.name)
            unit = track.unit if track.series else None
            yield (*about, *numbers, track.key in drawn, track.lines, track.kind, unit, track.key)

    def _facts(self, tracks: int, tables: SnapshotTables) -> Iterator[Fact]:
        length = self.end_ns - self.start_ns
        named = self.stretch.named
        values = {
            "what": self.stretch.what or None,
            "step_ns": named.step_ns,
            "recorded_step_ns": named.recorded_step_ns if named.is_corrected else None,
            "median_ns": self.stretch.median_ns,
            "start_ns": self.start_ns,
            "length_ns": length,
            "tracks": tracks,
            "narrow_ns": -(-length // tables.window.bins),
        }
        for field in FACTS:
            if values[field.key] is not None:
                yield Fact(field.key, field.label, values[field.key], field.fmt, field.meaning)

    def _left_out(self, drawn: Sequence[TimelineTrack], active: set[str]) -> Iterator[str]:
        more = len(active) - len(drawn)
        if more > 0:
            tracks = "track is" if more == 1 else "tracks are"
            yield f"{more:,} more {tracks} not drawn: select tracks with --tracks"
        deep = [track.name for track in drawn if track.lines > MAX_LINES_PER_TRACK]
        if deep:
            yield (
                f"only the outer {MAX_LINES_PER_TRACK} levels are drawn: "
                f"{', '.join(dict.fromkeys(deep))}"
            )


# Which tracks -------------------------------------------------------------------------------------

ALL = "all"
_USUAL = frozenset({"ledger", "stream", "graphs", "ranges", "collectives", "ops", "api"})
_STREAMS = 6
"""Streams of a GPU that are shown; those with most GPU time stand first."""
_THREADS = 2
"""Threads that are shown; the one with most CUDA calls stands first."""


def _wanted_tracks(
    trace: Trace, tracks: Sequence[TimelineTrack], selection: Selection, patterns: Sequence[str]
) -> list[TimelineTrack]:
    """Return the tracks of the selected GPU and process that match, or those usually shown."""
    selected = _selected(trace, tracks, selection)
    if not patterns:
        return [track for track in selected if track.kind in _USUAL]
    matching = [
        track
        for track in selected
        if any(p in (ALL, track.kind) or fnmatch.fnmatchcase(track.key, p) for p in patterns)
    ]
    if not matching:
        known = ", ".join(dict.fromkeys(track.kind for track in selected))
        raise UsageError(
            f"no track matches {', '.join(patterns)}",
            why=f"kinds in the capture: {known}" if known else "nothing is selected",
            hint="write kinds, keys or globs, such as 'stream,ranges' or 'gpu0/*', or all",
        )
    return matching


def _selected(
    trace: Trace, tracks: Iterable[TimelineTrack], selection: Selection
) -> list[TimelineTrack]:
    """Leave out the tracks of other GPUs and processes."""
    scope = ResolvedSelection(trace, replace(selection, within=None))
    titles = TrackTitles(trace)
    selected = list(tracks)
    if selection.device is not None:
        gpu = titles.gpu(selection.device)
        selected = [track for track in selected if track.group == gpu or not _is_gpu(track)]
    if scope.processes is not None:
        groups = {titles.process(process) for process in scope.processes}
        selected = [track for track in selected if track.group in groups or _is_gpu(track)]
    return selected


def _is_gpu(track: TimelineTrack) -> bool:
    return track.key.startswith("gpu")


def _fewer(tracks: Sequence[TimelineTrack], active: Collection[str]) -> list[TimelineTrack]:
    """Keep of the active tracks a few streams of each GPU and a few threads, as a page has room."""
    streams: Counter[str] = Counter()
    threads: dict[tuple[str, str], None] = {}
    kept = []
    for track in tracks:
        if track.key not in active:
            continue
        if track.kind == "stream":
            streams[track.group] += 1
            if streams[track.group] > _STREAMS:
                continue
        if track.thread:
            threads.setdefault((track.group, track.thread))
            if (track.group, track.thread) not in list(threads)[:_THREADS]:
                continue
        kept.append(track)
    return kept


# Which time ---------------------------------------------------------------------------------------

_MARGIN = 0.03
"""Margin on either side of a step, as part of its length."""


@dataclass(frozen=True)
class SnapshotStretch:
    """The time that a snapshot shows."""

    start_ns: int
    end_ns: int
    what: str
    """What it is, in words: `step 5, the median of 10 steps`."""
    steps: tuple[TraceStep, ...] = ()
    """Steps that overlap it, in order."""
    notes: tuple[str, ...] = ()
    named: WindowHeadline = NO_WINDOW
    """The window that the step is chosen from."""
    median_ns: int | None = None
    """Duration of the median step, where that is shown."""


def _stretch_of(
    trace: Trace,
    selection: Selection,
    named: WindowHeadline | None,
    *,
    steps: str | None,
    window: tuple[int | None, int | None] | None,
    warmup: bool,
) -> SnapshotStretch | NotApplicable:
    """Choose the time: by default the median step of the window."""
    chosen = step_window(trace, selection, steps=steps, window=window, warmup=warmup)
    if isinstance(chosen, NotApplicable):
        return chosen
    if window is not None:
        stretch = SnapshotStretch(chosen.start_ns, chosen.end_ns, "")
    elif selection.within is not None and steps is None:
        spans = ResolvedSelection(trace, selection).matching_ranges.sort("start_ns")
        start, end = (spans[column].to_numpy() for column in ("start_ns", "end_ns"))
        at = _median(end - start)
        last = work_end(trace, int(start[at]), int(end[at]), spans["process"][at])
        name = shortened(selection.within or "")
        many = f", the median of {len(start):,}" if len(start) > 1 else ""
        stretch = _with_margin(int(start[at]), last, f"{name}{many}")
    elif steps is not None or not chosen.steps:
        names = [called(step) for step in (*chosen.steps[:1], *chosen.steps[1:][-1:])]
        stretch = _with_margin(chosen.start_ns, chosen.end_ns, " to ".join(names))
    else:
        stretch = _typical_step(trace, chosen.steps)
    every = sorted((*chosen.steps, *chosen.left_out), key=lambda step: step.start_ns)
    shown = [s for s in every if s.start_ns < stretch.end_ns and s.end_ns > stretch.start_ns]
    notes = chosen.notes
    if named is None:
        named = headline(trace, selection, chosen)
    elif named.is_corrected:
        notes = (*notes, AS_RECORDED)
    return replace(stretch, steps=tuple(shown), notes=notes, named=named)


def _typical_step(trace: Trace, steps: Sequence[TraceStep]) -> SnapshotStretch:
    begun, done = step_spans(trace, steps)
    took = done - begun
    at = _median(took)
    step = steps[at]
    end = work_end(trace, step.start_ns, step.end_ns, step.process)
    what = (
        called(step) if len(steps) == 1 else f"{called(step)}, the median of {len(steps):,} steps"
    )
    return replace(_with_margin(step.start_ns, end, what), median_ns=int(took[at]))


def _median(lengths: Ints) -> int:
    """Return the position of the median; of two in the middle, the shorter."""
    return int(np.argsort(lengths, kind="stable")[(len(lengths) - 1) // 2])


def _with_margin(start_ns: int, end_ns: int, what: str) -> SnapshotStretch:
    margin = round(_MARGIN * (end_ns - start_ns)) if what else 0
    return SnapshotStretch(start_ns - margin, end_ns + margin, what)
