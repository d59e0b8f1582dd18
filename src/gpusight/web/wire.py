"""A window as bytes: a header in JSON, then its columns as a browser's typed arrays take them.

Little-endian: the length of the header (uint32), the header padded with spaces so that the body
begins at a multiple of 8, then the columns, each at a multiple of 8 from the start of the body. The
header says of each column its type (`u1`, `u2`, `u4`, `f8`), its offset in bytes and its length in
values. frontend/src/timeline/decode.ts reads it.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from gpusight.errors import UsageError
from gpusight.render.cells import safe_text

if TYPE_CHECKING:
    from gpusight.analyses.timeline.window import Window

_ALIGNED = 8
_PREFIX = struct.Struct("<I")
COLUMNS: dict[str, dict[str, str]] = {
    "slices": {
        "line": "u2",
        "start_ns": "f8",
        "end_ns": "f8",
        "table": "u1",
        "row": "u4",
        "label": "u4",
        "colour": "u1",
    },
    "bin_sums": {"line": "u2", "bin": "u4", "busy_ns": "f8", "count": "u4", "colour": "u1"},
    "points": {"line": "u2", "bin": "u4", "low": "f8", "high": "f8", "mean": "f8"},
}
"""Columns of each part of a window, and the types that they travel in."""
MOST_LINES = 1 << 16
"""What the type of `line` can tell apart."""


def encode_window(window: Window) -> bytes:
    """Give a window as the bytes that a browser decodes without looking at single events."""
    if len(window.lines) > MOST_LINES:
        raise UsageError(
            f"these tracks have {len(window.lines):,} lines", hint="ask for fewer tracks at once"
        )
    parts: list[bytes] = []
    described: dict[str, dict[str, Any]] = {}
    offset = 0
    for part, columns in COLUMNS.items():
        described[part] = {}
        for name, kind in columns.items():
            values = getattr(getattr(window, part), name)
            data = values.astype(np.dtype(kind).newbyteorder("<")).tobytes()
            described[part][name] = {"type": kind, "offset": offset, "length": len(values)}
            parts.append(data.ljust(_aligned(len(data)), b"\0"))
            offset += len(parts[-1])
    header = _header(window, described)
    return b"".join((_PREFIX.pack(len(header)), header, *parts))


def _header(window: Window, columns: dict[str, dict[str, Any]]) -> bytes:
    """Give the header, padded to where the body may begin."""
    told = {
        "start_ns": window.start_ns,
        "end_ns": window.end_ns,
        "bins": window.bins,
        "lines": [{"track": track, "line": line} for track, line in window.lines],
        "pending": window.pending,
        "labels": [safe_text(label) for label in window.labels],
        "columns": columns,
    }
    text = msgspec.json.encode(told)
    return text.ljust(_aligned(len(text) + _PREFIX.size) - _PREFIX.size)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
