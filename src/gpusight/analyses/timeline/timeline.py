"""A capture as a timeline: its tracks, and what a screen shows of any stretch of time."""

from __future__ import annotations

import threading
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from gpusight.analyses.timeline.colours import COLOURS, HOST_COLOURS
from gpusight.analyses.timeline.family import Family
from gpusight.analyses.timeline.ledger_strip import LedgerSpans
from gpusight.analyses.timeline.screen import Screen, Stretch
from gpusight.analyses.timeline.series_tracks import Levels, Sampled
from gpusight.analyses.timeline.shelf import Shelf
from gpusight.analyses.timeline.tracks import collect
from gpusight.analyses.timeline.window import Spot
from gpusight.errors import GpusightError, UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusight.analyses.ledger.accounting import Accounting
    from gpusight.analyses.timeline.ledger_track import LedgerLine
    from gpusight.analyses.timeline.line import Line
    from gpusight.analyses.timeline.strip import Events, Strip
    from gpusight.analyses.timeline.window import Track, Window
    from gpusight.model.trace import Trace

__all__ = ["HOST_COLOURS", "Timeline"]

MOST_LINES = 1 << 16
"""Lines that are shown at once."""
_MOST_BYTES = 1 << 31
"""What may be kept of lines that were looked at: those of 80 million events.

Ten million kernels with a call and a range each and the ledger are 50 million; where the lines on a
screen do not fit, each is built anew for every look at them.
"""


class Timeline:
    """A capture, ready to be looked at; made once, then asked from several threads.

    Making it reads what it needs of the trace; of what it is then asked, only `prepare_ledger`
    reads more. Lines are built when they are first looked at, and those not looked at for longest
    are let go of beyond `most_bytes`.
    """

    def __init__(self, trace: Trace, *, most_bytes: int = _MOST_BYTES) -> None:
        self.trace = trace
        found = collect(trace)
        self._start_ns, self._end_ns, self._notes = found.start_ns, found.end_ns, found.notes
        self._strips = {strip.track.key: strip for strip in found.strips}
        self._families = {
            table: strip.source
            for strip in found.strips
            if isinstance(strip.source, Family)
            for table in strip.source.tables
        }
        self._owners = {
            (strip.track.tables[0], strip.first + line): (strip.track.key, line)
            for strip in found.strips
            if isinstance(strip.source, Family)
            for line in range(strip.track.lines)
        }
        self._shelf = Shelf(most_bytes)
        self._preparing = threading.Lock()

    @property
    def start_ns(self) -> int:
        """When the first event begins."""
        return self._start_ns

    @property
    def end_ns(self) -> int:
        """When the last event ends."""
        return self._end_ns

    @property
    def tracks(self) -> tuple[Track, ...]:
        """Every strip, in the order in which they stand: GPUs first, then processes."""
        return tuple(strip.track for strip in self._strips.values())

    @property
    def colours(self) -> tuple[str, ...]:
        """What colour codes stand for: `compute/matmul`, `copy/h2d`, `idle/input`, `host/3`, …"""
        return COLOURS

    @property
    def notes(self) -> tuple[str, ...]:
        """What could not be shown, and why."""
        return self._notes

    @property
    def kept_bytes(self) -> int:
        """Memory that the lines take that were looked at last."""
        return self._shelf.nbytes

    def prepare_ledger(self, known: Accounting | None = None) -> None:
        """Compute the ledger's tracks, which takes longer than all others; they pend until then.

        Where they cannot be computed they stay empty, and `notes` says why. `known` is taken for
        what it is of, rather than worked out again.
        """
        with self._preparing:
            pending = [s for s in self._strips.values() if s.source is None]
            if not pending:
                return
            # Importing it takes longer than making a small timeline.
            from gpusight.analyses.timeline.ledger_track import ledger_lines

            try:
                spans = ledger_lines(self.trace, known)
            except GpusightError as error:
                spans = {}
                self._notes += (f"the ledger is not shown: {error}",)
            filled = {s.track.key: _with_ledger(s, spans) for s in pending}
            for key, strip in filled.items():
                assert isinstance(strip.source, LedgerSpans), "it was filled in"
                # Built before anybody can ask for it: that may take seconds.
                self._shelf.take((key, 0), partial(strip.source.line, 0))
            # One assignment: other threads see all of the ledgers or none.
            self._strips = self._strips | filled

    def window(self, keys: Sequence[str], start_ns: int, end_ns: int, bins: int) -> Window:
        """Give what a screen shows of these tracks from `start_ns` to `end_ns` in so many bins."""
        screen = Screen(Stretch.of(start_ns, end_ns, bins))
        strips = [self._strip(key) for key in dict.fromkeys(keys)]
        if (lines := sum(strip.track.lines for strip in strips)) > MOST_LINES:
            raise UsageError(f"these tracks have {lines:,} lines", hint=f"at most {MOST_LINES:,}")
        for strip in strips:
            if strip.source is None:
                screen.pending.append(strip.track.key)
                continue
            for line in range(strip.track.lines):
                screen.lines.append((strip.track.key, line))
                self._show(screen, strip, line)
        return screen.window()

    def pick(self, key: str, line: int, time_ns: int, within_ns: int) -> Spot | None:
        """Give the event at a time, or the nearest within so many nanoseconds."""
        strip = self._strip(key)
        if not 0 <= line < strip.track.lines:
            raise UsageError(f"no line {line} on track {key!r}", hint=f"it has {strip.track.lines}")
        if strip.source is None or isinstance(strip.source, (Levels, Sampled)):
            return None
        position = self._line(strip, strip.source, line).at(time_ns, within_ns)
        return None if position is None else self._spot(strip, strip.source, line, position)

    def spot(self, table: str, row: int) -> Spot | None:
        """Say where an event of a table stands; None where no track shows it."""
        family = self._families.get(table)
        found = family.find(table, row) if family is not None else None
        if family is None or found is None:
            return None
        number, position = found
        key, line = self._owners[family.tables[0], number]
        return self._spot(self._strips[key], family, line, position)

    def _strip(self, key: str) -> Strip:
        if key not in self._strips:
            raise UsageError(f"no track {key!r} in the capture")
        return self._strips[key]

    def _show(self, screen: Screen, strip: Strip, line: int) -> None:
        source, number = strip.source, strip.first + line
        assert source is not None, "what pends is not shown"
        if isinstance(source, (Levels, Sampled)):
            build = partial(source.samples, number)
            screen.show_values(self._shelf.take((strip.track.key, line), build))
        else:
            screen.show_events(self._line(strip, source, line), source, number)

    def _line(self, strip: Strip, source: Events, line: int) -> Line:
        build = partial(source.line, strip.first + line)
        return self._shelf.take((strip.track.key, line), build)

    def _spot(self, strip: Strip, source: Events, line: int, position: int) -> Spot:
        """Describe an event by its position on a line."""
        number, at = strip.first + line, np.array([position])
        (table,), (row,) = source.where(number, at)
        start_ns, end_ns = source.times(number, at)
        which, texts = source.labels(number, at)
        return Spot(
            strip.track.tables[table],
            int(row),
            int(start_ns[0]),
            int(end_ns[0]),
            strip.track.key,
            line,
            texts[which[0]],
        )


def _with_ledger(strip: Strip, spans: Mapping[int, LedgerLine]) -> Strip:
    """Fill the ledger of a GPU in; it is empty where it could not be computed."""
    line = spans.get(strip.device) if strip.device is not None else None
    if line is None:
        none = np.empty(0, np.int64)
        return replace(strip, source=LedgerSpans(none, none, none.astype(np.uint8)))
    source = LedgerSpans(line.start_ns, line.end_ns, line.colour)
    return replace(strip, track=replace(strip.track, events=len(line.start_ns)), source=source)
