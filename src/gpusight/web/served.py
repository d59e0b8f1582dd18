"""One file that is served: how far it is, and what has been worked out about it."""

from __future__ import annotations

import os
import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from gpusight.errors import GpusightError, MissingDataError
from gpusight.evidence import encodable
from gpusight.render.cells import safe_text
from gpusight.web.answers import CaptureState
from gpusight.web.told import COMPUTING, FAILED, READY, Findings, LedgerInfo

if TYPE_CHECKING:
    from pathlib import Path

    from gpusight.analyses.timeline.timeline import Timeline
    from gpusight.analyses.timeline.window import Track
    from gpusight.web.answers import CaptureInfo
    from gpusight.web.shared_trace import SharedTrace

READING = "reading"


class Served:
    """A file, from the moment it was named. Its thread changes it, others read it."""

    def __init__(
        self, number: int, name: str, trace: SharedTrace | None, path: Path | None = None
    ) -> None:
        self.number = number
        self._path = path
        self.name = safe_text(encodable(name))
        self.trace = trace
        """None where it could not be opened."""
        self.error: GpusightError | None = None
        """Why it failed."""
        self.is_report = False
        """Whether it holds measured launches rather than a timeline; false until that is known."""
        self.told = threading.Event()
        """Set once it is known whether it is a report, or of no use."""
        self.settled = threading.Event()
        """Set once it is known to be ready, a report, or of no use."""
        self.seen = threading.Event()
        """Set once a page has shown a part of it."""
        self.done = threading.Event()
        """Set once everything about it has been worked out."""
        self.findings = Findings(COMPUTING, "looking for what holds the program back")
        self.ledger = LedgerInfo(COMPUTING, "accounting for every nanosecond")
        self.state = self._state(READING, "reading the capture")
        self._ready: tuple[Timeline, CaptureInfo] | None = None

    def _state(self, state: str, message: str) -> CaptureState:
        return CaptureState(self.number, self.name, state, message)

    @property
    def is_ready(self) -> bool:
        """Whether its timeline can be asked."""
        return self._ready is not None

    @property
    def timeline(self) -> Timeline:
        """Its timeline; raises with the reason where there is none."""
        return self._known()[0]

    @property
    def info(self) -> CaptureInfo:
        """What a page must know of it; raises with the reason where that is not known."""
        timeline, info = self._known()
        learned = () if self.trace is None else self.trace.warnings
        notes = dict.fromkeys(map(self.reason, (*learned, *info.notes, *timeline.notes)))
        # A timeline learns: of the ledger's tracks, and of why there are none.
        return replace(info, tracks=tuple(map(_readable, timeline.tracks)), notes=tuple(notes))

    def _known(self) -> tuple[Timeline, CaptureInfo]:
        if self._ready is None:
            raise MissingDataError(f"{self.name} cannot be shown", why=self.state.message)
        return self._ready

    def reason(self, error: GpusightError | str) -> str:
        """Repeat what an error or a note says, without the folder that the file is in."""
        text = str(error)
        if self._path is not None:
            text = text.replace(str(self._path), self._path.name)
            for whole in (self._path.absolute(), self._path.resolve()):
                text = text.replace(f"{whole.parent}{os.sep}", "")
        return safe_text(encodable(text))

    def settles(self) -> None:
        """Be as far as it comes."""
        self.told.set()
        self.settled.set()

    def succeeds(self, timeline: Timeline, info: CaptureInfo) -> None:
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
            self.findings = Findings(FAILED, why)


def _readable(track: Track) -> Track:
    """Give a track whose names, out of a capture, are safe to show."""
    name, group, thread = map(safe_text, (track.name, track.group, track.thread))
    return replace(track, name=name, group=group, thread=thread)
