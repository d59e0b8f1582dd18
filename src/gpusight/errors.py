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
│   └── CaptureMismatchError  captures that ought to be of one run are not
├── MissingDataError          the capture is fine but does not hold what was asked for
│   └── NotApplicableError    an analysis could not be done; the reason is the answer
└── InternalError             exit code 70: a bug in gpusight, whatever the capture holds
"""

from __future__ import annotations

import os

DEBUG_VARIABLE = "GPUSIGHT_DEBUG"
_PANIC = "PanicException"
"""What Polars raises where its own code fails; it derives from BaseException alone."""
_LONGEST_REASON = 300


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


class CaptureMismatchError(UsageError):
    """Captures that ought to be of one run differ; `table` says in what."""

    def __init__(self, what: str, *, hint: str, table: object) -> None:
        super().__init__(what, hint=hint)
        self.table = table


class MissingDataError(GpusightError):
    """The capture does not hold the data that the request needs."""


class NotApplicableError(MissingDataError):
    """An analysis cannot be done on this capture, for the reason that it gives."""


class InternalError(GpusightError):
    """Something failed that gpusight does not expect to: a bug."""

    exit_code = 70


def internal_error(error: BaseException) -> InternalError:
    """Give the line for an exception that nothing in gpusight expected."""
    return InternalError(
        "internal error",
        why=reason_of(error),
        hint="this is a bug in gpusight: run again with --debug and report what it prints",
    )


def shows_tracebacks() -> bool:
    """Tell whether `--debug` or GPUSIGHT_DEBUG=1 asks for the traceback of errors."""
    return os.environ.get(DEBUG_VARIABLE, "0") not in ("", "0")


def is_unexpected(error: BaseException) -> bool:
    """Tell a failure of the program from a request to stop (Ctrl-C, exit)."""
    return isinstance(error, Exception) or type(error).__name__ == _PANIC


def reason_of(error: BaseException) -> str:
    """Give an exception's type and the first line of its text."""
    kind, lines = type(error).__name__, str(error).strip().splitlines()
    return f"{kind}: {lines[0][:_LONGEST_REASON]}" if lines else kind
