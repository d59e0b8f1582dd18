"""A stretch of time, track by track: what a picture of it shows, and how busy each track was.

Events that are as long as a bin stand alone, shorter ones are summed up bin by bin, so that a step
of a hundred thousand kernels stays a small picture in which no time is lost.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.excerpt.choose import fewer, wanted_tracks
from gpusight.analyses.excerpt.fields import FACTS, TRACK_FIELDS
from gpusight.analyses.excerpt.seen import Seen
from gpusight.analyses.excerpt.stretch import stretch_of
from gpusight.analyses.select import EVERYTHING, Selection
from gpusight.analyses.timeline.timeline import Timeline
from gpusight.errors import MissingDataError
from gpusight.result import Composite, Fact, NotApplicable, TableResult

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusight.analyses.excerpt.stretch import Stretch
    from gpusight.analyses.ledger.accounting import Accounting
    from gpusight.analyses.timeline.window import Track
    from gpusight.model.trace import Trace

COMMAND = "timeline"
_BINS = (900, 450, 225, 120)
"""How finely a picture is drawn: the first with which it does not hold too much."""
_MOST = 5_000
"""What a picture may hold: events, and bins of shorter ones."""
DEEPEST = 8
"""Lines of a track that are drawn; deeper ones are left out."""
_MOST_LINES = 60
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
) -> Composite | NotApplicable:
    """Show a stretch of time track by track: the median step by default.

    `tracks` are kinds, keys or globs of keys; without them streams, ranges, operators and calls of
    the threads and GPUs that do most. `known` is taken for the ledger, where it is of its time.
    """
    stretch = stretch_of(trace, selection, steps=steps, window=window, warmup=warmup)
    if isinstance(stretch, NotApplicable):
        return replace(stretch, command=COMMAND)
    try:
        laid_out = Timeline(trace)
    except MissingDataError as error:
        return NotApplicable(COMMAND, error.what, error.hint)
    wanted = wanted_tracks(trace, laid_out.tracks, selection, tracks)
    if any(track.kind == "ledger" for track in wanted):
        laid_out.prepare_ledger(known)
    return _Excerpt.of(laid_out, stretch, wanted, is_free=not tracks).report()


@dataclass(frozen=True)
class _Excerpt:
    """A stretch of a timeline, with the tracks that are looked at."""

    timeline: Timeline
    start_ns: int
    end_ns: int
    stretch: Stretch
    tracks: tuple[Track, ...]
    """Those asked for, whatever happens on them."""
    is_free: bool
    """Nobody said which tracks: those that most happens on are drawn."""

    @classmethod
    def of(
        cls, laid_out: Timeline, stretch: Stretch, wanted: Sequence[Track], *, is_free: bool
    ) -> _Excerpt:
        start = max(stretch.start_ns, laid_out.start_ns)
        end = max(min(stretch.end_ns, laid_out.end_ns), start + 1)
        return cls(laid_out, start, end, stretch, tuple(wanted), is_free)

    def report(self) -> Composite:
        """Look at every track coarsely, and at those that are drawn as finely as a picture can."""
        whole = self._seen([track.key for track in self.tracks], _BINS[-1])
        totals = whole.totals()
        valued = {track.key for track in self.tracks if track.series}
        active = {key for key, (events, _) in totals.items() if events} | valued
        drawn = self._drawn(active)
        keys = [track.key for track in drawn]
        fine = next(
            (seen for bins in _BINS[:-1] if (seen := self._seen(keys, bins)).items <= _MOST),
            None,
        ) or self._seen(keys, _BINS[-1])
        rows = list(self._track_rows(totals, {*keys}))
        frame = pl.DataFrame(rows, schema=_SCHEMA, orient="row")
        table = TableResult("tracks", "Tracks", TRACK_FIELDS, frame)
        return Composite(
            COMMAND,
            "Timeline",
            tuple(self._facts(frame.height, fine)),
            (table, *fine.sections()),
            meta=self._meta(fine),
            notes=(*self.stretch.notes, *self.timeline.notes, *self._left_out(drawn, active)),
        )

    def _seen(self, keys: Sequence[str], bins: int) -> Seen:
        window = self.timeline.window(keys, self.start_ns, self.end_ns, bins)
        return Seen(window, self.timeline.colours, DEEPEST)

    def _drawn(self, active: set[str]) -> list[Track]:
        """Choose what is drawn, as long as there is room for more lines."""
        some = fewer(self.tracks, active) if self.is_free else self.tracks
        kept: list[Track] = []
        for track in some:
            lines = sum(min(one.lines, DEEPEST) for one in (*kept, track))
            if track.key in active and lines <= _MOST_LINES:
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
            own = (events, busy, busy / length) if not track.series else (track.events, None, None)
            about = (track.group, track.thread or None, track.name)
            unit = track.unit if track.series else None
            yield (*about, *own, track.key in drawn, track.lines, track.kind, unit, track.key)

    def _facts(self, tracks: int, seen: Seen) -> Iterator[Fact]:
        length = self.end_ns - self.start_ns
        values = {
            "what": self.stretch.what or None,
            "start_ns": self.start_ns,
            "length_ns": length,
            "tracks": tracks,
            "narrow_ns": -(-length // seen.window.bins),
        }
        for field in FACTS:
            if values[field.key] is not None:
                yield Fact(field.key, field.label, values[field.key], field.fmt, field.meaning)

    def _meta(self, seen: Seen) -> dict[str, object]:
        steps = [
            {"number": s.number, "name": s.name, "start_ns": s.start_ns, "end_ns": s.end_ns}
            for s in self.stretch.steps
        ]
        ends = {"start_ns": self.start_ns, "end_ns": self.end_ns, "bins": seen.window.bins}
        return {"path": self.timeline.trace.meta.path, **ends, "steps": steps}

    def _left_out(self, drawn: Sequence[Track], active: set[str]) -> Iterator[str]:
        more = len(active) - len(drawn)
        if more > 0:
            tracks = "track is" if more == 1 else "tracks are"
            yield f"{more:,} more {tracks} not drawn: gpusight timeline --tracks chooses"
        deep = [track.name for track in drawn if track.lines > DEEPEST]
        if deep:
            yield f"only the outer {DEEPEST} lines are drawn of: {', '.join(dict.fromkeys(deep))}"


_SCHEMA = {
    "group": pl.String,
    "thread": pl.String,
    "name": pl.String,
    "events": pl.Int64,
    "busy_ns": pl.Int64,
    "busy_share": pl.Float64,
    "drawn": pl.Boolean,
    "lines": pl.Int64,
    "kind": pl.String,
    "unit": pl.String,
    "track": pl.String,
}
