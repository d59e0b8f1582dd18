"""Everything gpusight raises on purpose.

GpusightError                 exit code 2, a one-line message
├── CaptureError              the file cannot be read
│   ├── NotACaptureError      it is not a capture
│   └── DamagedCaptureError   it is a capture, but cut off or inconsistent
│       └── UndecodableReportError   a native report that may need nsys to export it
├── BaselineError             a file is not a baseline that can be used
├── CacheError                the cache folder is unsafe or unusable
├── RecordError               no profiler here can record it, or nothing was recorded
├── RuleError                 a user's rule cannot be loaded, or fails
├── UsageError                bad arguments (unknown column, range, device, report)
│   └── CaptureMismatchError  captures that should be of one run are not
├── MissingDataError          the capture lacks the requested data
│   └── NotApplicableError    an analysis does not apply, with the reason
└── InternalError             exit code 70: a bug in gpusight
"""

from __future__ import annotations

import os

DEBUG_VARIABLE = "GPUSIGHT_DEBUG"
DOCS_URL = "https://github.com/gpusight/gpusight/blob/main/docs"
"""The folder of the documentation: messages point there, for packages do not contain it."""
_PANIC = "PanicException"
"""What Polars raises where its own code fails; it derives from BaseException alone."""
_MAX_REASON_CHARS = 300


class GpusightError(Exception):
    """Base of all expected failures: what failed, why, and the fix."""

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


class BaselineError(GpusightError):
    """A file is not a baseline that can be used."""


class CacheError(GpusightError):
    """The folder of the cache is not safe to use, or cannot be used."""


class RecordError(GpusightError):
    """A program could not be recorded, or its recording came to nothing."""


class RuleError(GpusightError):
    """A rule that the user wrote cannot be loaded, or fails."""


class UsageError(GpusightError):
    """The request does not fit the capture or the command."""


class UnknownProcessError(UsageError):
    """The capture has no such process."""


class CaptureMismatchError(UsageError):
    """Captures that should be of one run differ; `table` has the differences."""

    def __init__(self, what: str, *, hint: str, table: object) -> None:
        super().__init__(what, hint=hint)
        self.table = table


class MissingDataError(GpusightError):
    """The capture does not have the requested data."""


class NotApplicableError(MissingDataError):
    """An analysis does not apply to this capture, with the reason."""


class InternalError(GpusightError):
    """An unexpected failure: a bug."""

    exit_code = 70


def internal_error(error: BaseException) -> InternalError:
    """Give the line for an exception that nothing in gpusight expected."""
    return InternalError(
        "internal error",
        why=reason_of(error),
        hint="this is a bug in gpusight: run again with --debug and report the traceback",
    )


def shows_tracebacks() -> bool:
    """Return whether `--debug` or GPUSIGHT_DEBUG=1 requests tracebacks."""
    return os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0")


def is_unexpected(error: BaseException) -> bool:
    """Distinguish a failure from a request to stop (Ctrl-C, exit)."""
    return isinstance(error, Exception) or type(error).__name__ == _PANIC


def reason_of(error: BaseException) -> str:
    """Give an exception's type and the first line of its text."""
    kind, lines = type(error).__name__, str(error).strip().splitlines()
    return f"{kind}: {lines[0][:_MAX_REASON_CHARS]}" if lines else kind
