"""A capture is evidence: what is called like one, or is one, is never written to."""

from __future__ import annotations

import re
from pathlib import Path

from gpusight.errors import UsageError

_CAPTURES = (".nsys-rep", ".qdrep", ".sqlite", ".xplane.pb", ".pickle")
_TRACES = (".json.gz", ".trace.json")
"""What traces are called, and timelines that we export too."""
_PROTECTED = (*_CAPTURES, ".ncu-rep", ".qdstrm")
GZIP = b"\x1f\x8b"
PICKLE = tuple(bytes((0x80, protocol)) for protocol in range(2, 6))
OWN_TIMELINE = '"writer":"gpusight"'
"""What marks a timeline that we exported: that one may be replaced."""
SQLITE = b"SQLite format 3\0"
NSYS_REPORT = b"NVIDIA Tegra Profiler Report "
NCU_REPORT = b"NVR\0"
_MAGIC = (SQLITE, NSYS_REPORT, NCU_REPORT, *PICKLE)
JAX_PLANE = re.compile(rb"\n[\x80-\xff]{0,9}[\x00-\x7f][\x08\x12]")
"""How a profile of JAX begins: field 1, a length, and field 1 or 2 of a plane."""
_PRINTED = b"CPU total %"
"""A heading of every table of key_averages, and of none of ours."""
_HEAD_BYTES = 1 << 16
_MARK_BYTES = 256


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
    if path.is_file() and _is_capture(path):
        raise UsageError(f"{path} is a capture already", hint="choose another name for -o")


def _is_capture(path: Path) -> bool:
    """Tell whether a file that is about to be replaced is evidence, by how it begins."""
    with path.open("rb") as file:
        head = inflated_head(file.read(_HEAD_BYTES)) or b""
    if OWN_TIMELINE.encode() in head[:_MARK_BYTES]:
        return False
    json = head.lstrip().startswith((b"{", b"["))
    events = json and (b'"traceEvents"' in head or b'"ph"' in head)
    return head.startswith(_MAGIC) or bool(JAX_PLANE.match(head)) or events or _PRINTED in head


def inflated_head(head: bytes) -> bytes | None:
    """Give the beginning of a file, unpacked where it is packed; None where that cannot be done."""
    if not head.startswith(GZIP):
        return head
    import zlib

    try:
        return zlib.decompressobj(wbits=31).decompress(head, len(head))
    except zlib.error:
        return None
