"""One file that is served.

How far it is read, and its trace, which several threads may use at once.
"""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from gpusight.errors import GpusightError, MissingDataError
from gpusight.render.cell_text import safe_text
from gpusight.sniff import encodable_text
from gpusight.trace.trace import Trace
from gpusight.web.payloads import COMPUTING, FAILED, READY, CaptureState, FindingsInfo, LedgerInfo

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    import polars as pl

    from gpusight.viewer.timeline_view import ViewerTimeline
    from gpusight.viewer.track_data import TimelineTrack
    from gpusight.web.job_payloads import ServedJob
    from gpusight.web.payloads import CaptureInfo


READING = "reading"


class LoadedCapture:
    """A file, from the moment it was named. Its thread changes it, others read it."""

    def __init__(
        self, number: int, name: str, trace: SharedTrace | None, path: Path | None = None
    ) -> None:
        self.number = number
        self._path = path
        self.name = safe_text(encodable_text(name))
        self.trace = trace
        """None where it could not be opened."""
        self.error: GpusightError | None = None
        """Why it failed."""
        self.job: ServedJob | None = None
        """What pages show of its ranks, where it is several."""
        self.is_report = False
        """Whether it holds measured launches rather than a timeline; false until that is known."""
        self.identified = threading.Event()
        """Set once it is known whether it is a report, or of no use."""
        self.settled = threading.Event()
        """Set once it is known to be ready, a report, or of no use."""
        self.seen = threading.Event()
        """Set once a page has shown a part of it."""
        self.done = threading.Event()
        """Set once everything about it has been worked out."""
        self.findings = FindingsInfo(COMPUTING, "diagnosing")
        self.ledger = LedgerInfo(COMPUTING, "computing the ledger")
        self.state = self._state(READING, "reading the capture")
        self._ready: tuple[ViewerTimeline, CaptureInfo] | None = None

    def _state(self, state: str, message: str) -> CaptureState:
        return CaptureState(self.number, self.name, state, message)

    @property
    def is_ready(self) -> bool:
        """Whether its timeline is ready."""
        return self._ready is not None

    @property
    def timeline(self) -> ViewerTimeline:
        """Its timeline; raises with the reason where there is none."""
        return self._known()[0]

    @property
    def info(self) -> CaptureInfo:
        """What a page must know of it; raises with the reason where it is unknown."""
        timeline, info = self._known()
        learned = () if self.trace is None else self.trace.warnings
        notes = dict.fromkeys(map(self.reason, (*learned, *info.notes, *timeline.notes)))
        # A timeline learns: of the ledger's tracks, and of why there are none.
        return replace(info, tracks=tuple(map(_readable, timeline.tracks)), notes=tuple(notes))

    def _known(self) -> tuple[ViewerTimeline, CaptureInfo]:
        if self._ready is None:
            raise MissingDataError(f"{self.name} cannot be shown", why=self.state.message)
        return self._ready

    def reason(self, error: GpusightError | str) -> str:
        """Repeat an error or a note, without the folder of the file."""
        text = str(error)
        if self._path is not None:
            text = text.replace(str(self._path), self._path.name)
            for whole in (self._path.absolute(), self._path.resolve()):
                text = text.replace(f"{whole.parent}{os.sep}", "")
        return safe_text(encodable_text(text))

    def settles(self) -> None:
        """Be as far as it comes."""
        self.identified.set()
        self.settled.set()

    def succeeds(self, timeline: ViewerTimeline, info: CaptureInfo) -> None:
        """Be ready."""
        self._ready = (timeline, info)
        self.state = self._state(READY, "")

    def fails(self, error: GpusightError) -> None:
        """Give up what is not there yet."""
        why = self.reason(error)
        if self._ready is None:
            self.error = error
            self.state = self._state(FAILED, why)
        if self.ledger.state == COMPUTING:
            self.ledger = LedgerInfo(FAILED, why)
        if self.findings.state == COMPUTING:
            self.findings = FindingsInfo(FAILED, why)


def _readable(track: TimelineTrack) -> TimelineTrack:
    """Give a track whose names, out of a capture, are safe to show."""
    name, group, thread = map(safe_text, (track.name, track.group, track.thread))
    return replace(track, name=name, group=group, thread=thread)


_MIN_RELEASED_BYTES = 100_000_000
"""Tables that take less memory than this may stay in it."""
_CLOSING_S = 0.3
"""How long closing waits for who still reads; the file goes with the process then."""


class ServerStopped(Exception):  # noqa: N818 - nothing went wrong
    """The server stops, and whatever uses the capture is to end with it."""


class SharedTrace(Trace):
    """A Trace for several threads, made of one that nobody else uses meanwhile."""

    def __init__(self, trace: Trace, stopping: threading.Event) -> None:
        super().__init__(trace._source, trace._memory)
        self.pace, self.stored_pace = trace.pace, trace.stored_pace
        self._stopping = stopping
        self._reading = threading.RLock()
        self._deriving: dict[str, threading.RLock] = {}

    def has(self, table: str, column: str | None = None) -> bool:
        """Return whether the capture holds a table, or fills a column."""
        if column is None and table in self._has:
            return self._has[table]
        with self._turn():
            return super().has(table, column)

    def row_count(self, table: str) -> int:
        """Count the rows of a table without reading them."""
        with self._turn():
            return super().row_count(table)

    def prepare(self, *tables: str) -> None:
        """Name the tables that are about to be used."""
        with self._turn():
            super().prepare(*tables)

    def read_together(self, *reads: Mapping[str, Sequence[str]]) -> None:
        """Read these columns of these tables, each table in one go."""
        with self._turn():
            super().read_together(*reads)

    def table(self, name: str, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Read a table, or only some of its columns."""
        have = self._loaded.get(name)  # a frame never changes; a wider one takes its place
        if columns is not None and have is not None and (set(columns) <= set(have.columns)):
            self._check()
            return have.select(columns)
        with self._turn():
            return super().table(name, columns)

    def derive(self, key: str, compute: Callable[[], pl.DataFrame]) -> pl.DataFrame:
        """Compute something from the tables once; who needs the same meanwhile waits for it."""
        self._check()
        known = self._derived.get(key)
        if known is not None:
            return known
        with self._deriving.setdefault(key, threading.RLock()):
            return super().derive(key, compute)

    def let_go(self) -> None:
        """Drop loaded tables if the cache can return them without a copy."""
        if self._memory is None:
            return
        held = sum(frame.estimated_size() for frame in list(self._loaded.values()))
        if held > _MIN_RELEASED_BYTES:
            self._memory.flush()
            with self._turn():
                self._loaded = {}

    def close(self) -> None:
        """Close the file, unless it is still being read."""
        if self._reading.acquire(timeout=_CLOSING_S):
            try:
                super().close()
            finally:
                self._reading.release()

    def _turn(self) -> threading.RLock:
        self._check()
        return self._reading

    def _check(self) -> None:
        if self._stopping.is_set():
            raise ServerStopped
