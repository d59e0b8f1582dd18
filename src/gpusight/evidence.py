"""A capture is evidence: what is called like one is never written to."""

from __future__ import annotations

from pathlib import Path

from gpusight.errors import UsageError

CAPTURE_SUFFIXES = frozenset({".nsys-rep", ".qdrep", ".sqlite"})
"""What captures that we read are called."""
_PROTECTED = CAPTURE_SUFFIXES | {".ncu-rep", ".qdstrm"}


def refuse_capture(path: Path, capture: str | None) -> None:
    """Raise when writing to this path could harm evidence: the capture, into it, or its like."""
    if capture is not None:
        target, source = path.resolve(), Path(capture).resolve()
        if target == source or source in target.parents:
            raise UsageError(f"{path} is the capture itself", hint="choose another name for -o")
    if path.suffix.lower() in _PROTECTED:
        raise UsageError(f"{path} is named like a capture", hint="choose another name for -o")
