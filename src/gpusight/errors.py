"""Everything gpusight raises on purpose.

GpusightError                 exit code 2, one line for the user
├── CaptureError              the file is not something we can read
│   ├── NotACaptureError      it is something else altogether
│   └── DamagedCaptureError   it is a capture, but cut off or inconsistent
│       └── UndecodableReportError   a native report that only its own tool may still read
├── CacheError                the cache folder must not be used or cannot be
├── RecordError               nothing on this machine can record that, or nothing was recorded
├── RuleError                 a rule that the user wrote cannot be loaded, or fails
├── UsageError                the request makes no sense (unknown column, range, device, report)
└── MissingDataError          the capture is fine but does not hold what was asked for
"""

from __future__ import annotations


class GpusightError(Exception):
    """Base of all expected failures: what went wrong, why, and what to type next."""

    exit_code = 2

    def __init__(self, what: str, *, why: str = "", hint: str = "") -> None:
        self.what = what
        self.why = why
        self.hint = hint
        super().__init__(what)

    def __str__(self) -> str:
        """Give the message as the one line that the command line prints."""
        text = self.what
        if self.why:
            text += f": {self.why}"
        if self.hint:
            text += f"; {self.hint}"
        return text


class CaptureError(GpusightError):
    """The capture cannot be read."""


class NotACaptureError(CaptureError):
    """The path holds something that is not a capture."""


class DamagedCaptureError(CaptureError):
    """The capture is truncated or contradicts itself."""


class UndecodableReportError(DamagedCaptureError):
    """A native report does not add up as we read it; an nsys of its `version` may know better."""

    def __init__(self, what: str, *, why: str, hint: str, version: str) -> None:
        super().__init__(what, why=why, hint=hint)
        self.version = version


class CacheError(GpusightError):
    """The folder of the cache is not safe to use, or cannot be used."""


class RecordError(GpusightError):
    """A program could not be recorded, or its recording came to nothing."""


class RuleError(GpusightError):
    """A rule that the user wrote cannot be loaded, or fails."""


class UsageError(GpusightError):
    """The request does not fit the capture or the command."""


class MissingDataError(GpusightError):
    """The capture does not hold the data that the request needs."""
