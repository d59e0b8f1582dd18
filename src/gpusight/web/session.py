"""The captures that are served: each is read by a thread of its own, then looked into.

What a page needs first comes first: timelines are ready before ledgers and findings are. Those are
worked out one after the other, so that the memory they take does not add up.
"""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, NamedTuple

from gpusight.errors import (
    GpusightError,
    UsageError,
    internal_error,
    is_unexpected,
    shows_tracebacks,
)
from gpusight.web.loaded_capture import LoadedCapture, ServerStopped, SharedTrace
from gpusight.web.payloads import COMPUTING, FAILED, NONE, CompareInfo, LedgerInfo, overview
from gpusight.web.pool import release_memory

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gpusight.trace.trace import Trace
    from gpusight.web.payloads import Overview

_BOTH = 2
_LARGE = 500_000
"""Events from which on a page would wait for its first picture while all else is worked out."""
_FIRST_LOOK_S = 3.0
"""How long a large capture waits for a page to be opened before all else is worked out anyway."""
_DRAWING_S = 0.5
"""How long a page may draw what it was given, and ask for the overview of all of it."""


class Opened(NamedTuple):
    """A file that was named: the capture, or why it cannot be opened."""

    name: str
    trace: Trace | GpusightError
    owned: bool = True
    """Whether to close it at the end; false where somebody else has it too."""
    path: Path | None = None
    """Where it is, which is told to nobody; None where that is not known."""


class Session:
    """Everything that is served. Started and stopped once; asked from any thread."""

    def __init__(self, files: Sequence[Opened]) -> None:
        self.stopping = threading.Event()
        self.comparison = CompareInfo(COMPUTING, "waiting for both captures")
        self._files = tuple(files)
        self._served = tuple(self._made(number, file) for number, file in enumerate(files))
        self._turn = threading.Lock()
        """Held by who works something out in the background."""
        self._threads = [
            threading.Thread(target=self._serve, args=(one,), name=one.name, daemon=True)
            for one in self._served
        ]
        self._threads.append(threading.Thread(target=self._compare, name="compare", daemon=True))

    def _made(self, number: int, file: Opened) -> LoadedCapture:
        if isinstance(file.trace, GpusightError):
            served = LoadedCapture(number, file.name, None, file.path)
            served.fails(file.trace)
            served.settles()
            return served
        return LoadedCapture(number, file.name, SharedTrace(file.trace, self.stopping), file.path)

    # Asking ---------------------------------------------------------------------------------------

    @property
    def captures(self) -> tuple[LoadedCapture, ...]:
        """All files but those that are known to be reports of measured launches."""
        return tuple(one for one in self._served if not one.is_report)

    @property
    def reports(self) -> list[Trace]:
        """Reports of measured launches."""
        return [one.trace for one in self._served if one.is_report and one.trace is not None]

    def capture(self, number: int) -> LoadedCapture | None:
        """Give a capture by its number."""
        return next((one for one in self.captures if one.number == number), None)

    def overview(self) -> Overview:
        """Say how far the captures are."""
        ready = (one.timeline.colours for one in self.captures if one.is_ready)
        return overview(
            [one.state for one in self.captures], [key for keys in ready for key in keys]
        )

    @property
    def failure(self) -> GpusightError | None:
        """Why nothing at all can be shown; None while something can, or may."""
        if not all(one.settled.is_set() for one in self._served):
            return None
        if any(one.is_ready for one in self._served):
            return None
        errors = [one.error for one in self._served if one.error is not None]
        return errors[0] if errors else _only_reports()

    @property
    def is_finished(self) -> bool:
        """Whether everything has been computed, or has failed."""
        return all(one.done.is_set() for one in self._served) and not self._threads[-1].is_alive()

    # Working --------------------------------------------------------------------------------------

    def start(self, patience_s: float = 0.0) -> None:
        """Begin to read; wait a moment until it is known what kind of captures these are."""
        for thread in self._threads:
            thread.start()
        until = time.monotonic() + patience_s
        for one in self._served:
            one.told.wait(max(0.0, until - time.monotonic()))

    def stop(self, patience_s: float = 1.0) -> None:
        """End every thread; one that computes ends when it next asks for data."""
        self.stopping.set()
        for one in self._served:
            one.seen.set()
        until = time.monotonic() + patience_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))

    def _serve(self, one: LoadedCapture) -> None:
        """Read a capture, work out what there is to tell, and hold it until the end."""
        try:
            self._read(one)
            one.settles()
            self._look_into(one)
        except ServerStopped:
            pass
        except BaseException as error:  # a panic of Polars is no Exception
            one.fails(internal_error(error))
            if shows_tracebacks() or not is_unexpected(error):
                raise
        finally:
            one.settles()
            one.done.set()
        self.stopping.wait()
        self._close(one)

    def _read(self, one: LoadedCapture) -> None:
        try:
            if one.trace is not None and not self._is_report(one, one.trace):
                self._build(one, one.trace)
        except GpusightError as error:
            one.fails(error)

    def _is_report(self, one: LoadedCapture, trace: Trace) -> bool:
        one.is_report = trace.has("profiles")
        one.told.set()
        return one.is_report

    def _build(self, one: LoadedCapture, trace: Trace) -> None:
        from gpusight.viewer.timeline_view import ViewerTimeline
        from gpusight.web.capture_payloads import capture_payload

        timeline = ViewerTimeline(trace)
        one.succeeds(timeline, capture_payload(one.number, one.name, trace, timeline))

    def _look_into(self, one: LoadedCapture) -> None:
        """Work out ledger and findings, once all captures can be looked at."""
        for other in self._served:
            other.settled.wait()
        if not one.is_ready:
            return
        self._let_look(one)
        from gpusight.web import analysis_payloads  # noqa: F401 - so that the first click need not wait
        from gpusight.web.analysis_payloads import findings_payload, ledger_payload

        timeline = one.timeline
        with self._turn:
            try:
                timeline.prepare_ledger()
                one.ledger = ledger_payload(timeline.trace)
            except GpusightError as error:
                one.ledger = LedgerInfo(FAILED, one.reason(error))
        with self._turn:
            try:
                one.findings = findings_payload(timeline, self.reports)
            except GpusightError as error:
                one.fails(error)

    def _let_look(self, one: LoadedCapture) -> None:
        """Leave the processors to the first picture of a large capture, if anybody is looking."""
        large = sum(track.events for track in one.timeline.tracks) > _LARGE
        if large and one.seen.wait(_FIRST_LOOK_S):
            self.stopping.wait(_DRAWING_S)

    def _compare(self) -> None:
        """Compare the first two captures, after everything else; then let go of what that took."""
        for one in self._served:
            one.done.wait()
        ready = [one for one in self._served if one.is_ready]
        try:
            self._compare_first(ready)
            for one in ready:
                assert one.trace is not None, "what is ready was opened"
                one.trace.let_go()
            release_memory()
        except ServerStopped:
            pass
        except BaseException as error:  # a panic of Polars is no Exception
            self.comparison = CompareInfo(FAILED, str(internal_error(error)))
            if shows_tracebacks() or not is_unexpected(error):
                raise

    def _compare_first(self, ready: Sequence[LoadedCapture]) -> None:
        if len(ready) < _BOTH:
            self.comparison = CompareInfo(NONE, "two captures are needed to compare them")
            return
        from gpusight.web.analysis_payloads import comparison_payload

        try:
            self.comparison = comparison_payload(*(one.timeline.trace for one in ready[:_BOTH]))
        except GpusightError as error:
            self.comparison = CompareInfo(FAILED, ready[0].reason(ready[1].reason(error)))

    def _close(self, one: LoadedCapture) -> None:
        if one.trace is not None and self._files[one.number].owned:
            one.trace.close()


def _only_reports() -> UsageError:
    return UsageError(
        "Nsight Compute reports have no timeline",
        hint="add a capture that has one: gpusight serve run.nsys-rep kernels.ncu-rep; "
        "gpusight diagnose and gpusight report explain a report alone",
    )
