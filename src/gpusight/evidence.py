"""A capture is evidence: what is called like one, or is one, is never written to."""

from __future__ import annotations

from pathlib import Path

from gpusight.errors import UsageError

_CAPTURES = (".nsys-rep", ".qdrep", ".sqlite", ".xplane.pb", ".pickle")
_TRACES = (".json.gz", ".trace.json")
"""What traces are called, and timelines that we export too."""
_PROTECTED = (*_CAPTURES, ".ncu-rep", ".qdstrm")
_HEAD_BYTES = 1 << 16


def is_capture_name(path: Path) -> bool:
    """Tell whether a file is called like a capture that we read."""
    return path.name.lower().endswith((*_CAPTURES, *_TRACES))


def refuse_capture(path: Path, capture: str | None) -> None:
    """Raise when writing to this path could harm evidence: the capture, into it, or its like."""
    if capture is not None:
        target, source = path.resolve(), Path(capture).resolve()
        if target == source or source in target.parents:
            raise UsageError(f"{path} is the capture itself", hint="choose another name for -o")
    if path.name.lower().endswith(_PROTECTED):
        raise UsageError(f"{path} is named like a capture", hint="choose another name for -o")
    if path.name.lower().endswith((".json", ".json.gz")) and _is_torch_trace(path):
        raise UsageError(f"{path} is a trace of torch.profiler", hint="choose another name for -o")


def _is_torch_trace(path: Path) -> bool:
    """Tell whether a file that is about to be replaced is a trace, by how those begin."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(b"\x1f\x8b"):
        head = _inflated(head)
    return b'"schemaVersion"' in head and b'"deviceProperties"' in head


def _inflated(head: bytes) -> bytes:
    import zlib

    try:
        return zlib.decompressobj(wbits=31).decompress(head, _HEAD_BYTES)
    except zlib.error:  # not a trace that anyone could read
        return b""
