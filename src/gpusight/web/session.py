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

    from gpusight.open_job import OpenedJob
    from gpusight.trace.trace import Trace
    from gpusight.web.payloads import Overview

_BOTH = 2
_LARGE = 500_000
"""Events from which on a page would wait for its first picture while all else is worked out."""
_FIRST_LOOK_S = 3.0
"""How long a large capture waits for a page to be opened before all else is worked out anyway."""
_DRAWING_S = 0.5
"""How long a page may draw what it was given, and request the overview of all of it."""


class Opened(NamedTuple):
    """A file that was named: the capture, or why it cannot be opened."""

    name: str
    trace: Trace | GpusightError
    owned: bool = True
    """Whether to close it at the end; false where somebody else has it too."""
    path: Path | None = None
    """Where it is, which no page shows; None where unknown."""
    job: OpenedJob | None = None
    """What the ranks of its trace are, where it is the trace of several."""


class Session:
    """Everything that is served. Started and stopped once; used from any thread."""

    def __init__(self, files: Sequence[Opened]) -> None:
        self.stopping = threading.Event()
        self.comparison = CompareInfo(COMPUTING, "waiting for both captures")
        self._files = tuple(files)
        self._served = tuple(self._made(number, file) for number, file in enumerate(files))
        self._turn = threading.Lock()
        """Held by who works something out in the background."""
        self._threads = [
            threading.Thread(target=self._serve, args=(capture,), name=capture.name, daemon=True)
            for capture in self._served
        ]
        self._threads.append(threading.Thread(target=self._compare, name="compare", daemon=True))

    def _made(self, number: int, file: Opened) -> LoadedCapture:
        if isinstance(file.trace, GpusightError):
            served = LoadedCapture(number, file.name, None, file.path)
            served.fails(file.trace)
            served.settles()
            return served
        return LoadedCapture(number, file.name, SharedTrace(file.trace, self.stopping), file.path)

    # Requests -------------------------------------------------------------------------------------

    @property
    def captures(self) -> tuple[LoadedCapture, ...]:
        """All files but those that are known to be reports of measured launches."""
        return tuple(capture for capture in self._served if not capture.is_report)

    @property
    def reports(self) -> list[Trace]:
        """Reports of measured launches."""
        return [
            capture.trace
            for capture in self._served
            if capture.is_report and capture.trace is not None
        ]

    def capture(self, number: int) -> LoadedCapture | None:
        """Give a capture by its number."""
        return next((capture for capture in self.captures if capture.number == number), None)

    def overview(self) -> Overview:
        """Return the progress of the captures."""
        ready = (capture.timeline.colors for capture in self.captures if capture.is_ready)
        return overview(
            [capture.state for capture in self.captures], [key for keys in ready for key in keys]
        )

    @property
    def failure(self) -> GpusightError | None:
        """Why nothing at all can be shown; None while something can, or may."""
        if not all(capture.settled.is_set() for capture in self._served):
            return None
        if any(capture.is_ready for capture in self._served):
            return None
        errors = [capture.error for capture in self._served if capture.error is not None]
        return (
            errors[0]
            if errors
            else UsageError(
                "Nsight Compute reports have no timeline",
                hint="add a capture that has one: gpusight serve run.nsys-rep kernels.ncu-rep; "
                "or use gpusight diagnose or gpusight report",
            )
        )

    @property
    def is_finished(self) -> bool:
        """Whether everything has been computed, or has failed."""
        return (
            all(capture.done.is_set() for capture in self._served)
            and not self._threads[-1].is_alive()
        )

    # Working --------------------------------------------------------------------------------------

    def start(self, patience_s: float = 0.0) -> None:
        """Begin to read; wait a moment until it is known what kind of captures these are."""
        for thread in self._threads:
            thread.start()
        until = time.monotonic() + patience_s
        for capture in self._served:
            capture.identified.wait(max(0.0, until - time.monotonic()))

    def stop(self, patience_s: float = 1.0) -> None:
        """End every thread; one that computes ends when it next reads data."""
        self.stopping.set()
        for capture in self._served:
            capture.seen.set()
        until = time.monotonic() + patience_s
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, until - time.monotonic()))

    def _serve(self, capture: LoadedCapture) -> None:
        """Read a capture, compute what pages show, and hold it until the end."""
        try:
            self._read(capture)
            capture.settles()
            self._look_into(capture)
        except ServerStopped:
            pass
        except BaseException as error:  # a panic of Polars is no Exception
            capture.fails(internal_error(error))
            if shows_tracebacks() or not is_unexpected(error):
                raise
        finally:
            capture.settles()
            capture.done.set()
        self.stopping.wait()
        if capture.trace is not None and self._files[capture.number].owned:
            capture.trace.close()

    def _read(self, capture: LoadedCapture) -> None:
        try:
            if capture.trace is not None and not self._is_report(capture, capture.trace):
                self._build(capture, capture.trace)
        except GpusightError as error:
            capture.fails(error)

    def _is_report(self, capture: LoadedCapture, trace: Trace) -> bool:
        capture.is_report = trace.has("profiles")
        capture.identified.set()
        return capture.is_report

    def _build(self, capture: LoadedCapture, trace: Trace) -> None:
        from gpusight.viewer.timeline_view import ViewerTimeline
        from gpusight.web.capture_payloads import capture_payload

        timeline = ViewerTimeline(trace)
        info = capture_payload(capture.number, capture.name, trace, timeline)
        opened = self._files[capture.number].job
        if opened is not None:
            from gpusight.web.job_payloads import ServedJob

            capture.job = ServedJob(opened, trace)
            info = capture.job.capture_info(info)
        capture.succeeds(timeline, info)

    def _look_into(self, capture: LoadedCapture) -> None:
        """Work out ledger and findings, once all captures can be looked at."""
        for other in self._served:
            other.settled.wait()
        if not capture.is_ready:
            return
        large = sum(track.events for track in capture.timeline.tracks) > _LARGE
        if large and capture.seen.wait(_FIRST_LOOK_S):
            self.stopping.wait(_DRAWING_S)
        from gpusight.web import analysis_payloads  # noqa: F401 - so that the first click need not wait
        from gpusight.web.analysis_payloads import (
            diagnosis_payloads,
            is_ledger_of_timeline,
            ledger_payload,
        )

        timeline = capture.timeline
        with self._turn:
            try:
                timeline.prepare_ledger()
                if is_ledger_of_timeline(timeline.trace):
                    capture.ledger = ledger_payload(timeline.trace)
            except GpusightError as error:
                capture.ledger = LedgerInfo(FAILED, capture.reason(error))
        with self._turn:
            try:
                capture.findings, ledger = diagnosis_payloads(timeline, self.reports)
                if capture.ledger.state == COMPUTING:
                    capture.ledger = ledger or ledger_payload(timeline.trace)
            except GpusightError as error:
                capture.fails(error)

    def _compare(self) -> None:
        """Compare the first two captures, after everything else; then let go of what that took."""
        for capture in self._served:
            capture.done.wait()
        ready = [capture for capture in self._served if capture.is_ready]
        try:
            self._compare_first(ready)
            for capture in ready:
                assert capture.trace is not None, "what is ready was opened"
                capture.trace.let_go()
            release_memory()
        except ServerStopped:
            pass
        except BaseException as error:  # a panic of Polars is no Exception
            self.comparison = CompareInfo(FAILED, str(internal_error(error)))
            if shows_tracebacks() or not is_unexpected(error):
                raise

    def _compare_first(self, ready: Sequence[LoadedCapture]) -> None:
        if len(ready) < _BOTH:
            self.comparison = CompareInfo(NONE, "a comparison needs two captures")
            return
        from gpusight.web.analysis_payloads import comparison_payload

        try:
            self.comparison = comparison_payload(
                *(capture.timeline.trace for capture in ready[:_BOTH])
            )
        except GpusightError as error:
            self.comparison = CompareInfo(FAILED, ready[0].reason(ready[1].reason(error)))
