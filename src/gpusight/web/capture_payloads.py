"""What a page gets first: facts about the capture, and windows of its timeline as bytes.

A window is little-endian: the length of the header (uint32), the header in JSON, padded with spaces
so that the body begins at a multiple of 8, then the columns, each at a multiple of 8 from the start
of the body. The header gives the type of each column (`u1`, `u2`, `u4`, `f8`), its offset in bytes
and its length in values. frontend/src/timeline/decode.ts reads it.
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl

from gpusight.analysis.capture_info import device_names, serious_messages
from gpusight.analysis.selection import GPU_WORK
from gpusight.analysis.steps.step_window import step_window
from gpusight.errors import UsageError
from gpusight.render.cell_text import safe_text
from gpusight.render.table_layout import sentence
from gpusight.results import NotApplicable
from gpusight.web.payloads import CaptureInfo, MarkedStep, TimeRange

if TYPE_CHECKING:
    from gpusight.analysis.steps.window_headline import StepWindow
    from gpusight.trace.trace import Trace
    from gpusight.viewer.timeline_view import ViewerTimeline
    from gpusight.viewer.track_data import TimelineWindow


MAX_MARKED_STEPS = 10_000
"""Steps that a page marks."""
MAX_MESSAGES = 20
"""Messages of the profiler that are repeated."""
_AROUND_STEP, _AROUND_ALL = 0.25, 0.02
"""Share of a step, or of the whole window, that is shown on either side of it at first."""


def capture_payload(number: int, name: str, trace: Trace, timeline: ViewerTimeline) -> CaptureInfo:
    """Describe a capture: its tracks, its steps, and what is wrong with it."""
    focus = step_window(trace)
    steps = () if isinstance(focus, NotApplicable) else _steps(focus)
    meta = trace.meta
    tables = [trace.table(table, ["device"]) for table in GPU_WORK if trace.has(table)]
    used = pl.concat(tables)["device"].drop_nulls().unique().sort().to_list() if tables else []
    names = device_names(trace)
    counted = Counter(safe_text(names.get(device) or f"GPU {device}") for device in used or names)
    return CaptureInfo(
        id=number,
        name=name,
        tool=safe_text(" ".join(filter(None, (meta.tool, meta.tool_version)))),
        gpus=tuple(name if count == 1 else f"{count} x {name}" for name, count in counted.items()),
        start_ns=timeline.start_ns,
        end_ns=timeline.end_ns,
        tracks=timeline.tracks,
        colors=timeline.colors,
        steps=steps[:MAX_MARKED_STEPS],
        notes=_notes(trace, focus, len(steps)),
        first_view=_first_view(focus, timeline),
    )


def _steps(focus: StepWindow) -> tuple[MarkedStep, ...]:
    kept = [(step, False) for step in focus.steps]
    every = sorted([*kept, *((s, True) for s in focus.left_out)], key=lambda s: s[0].start_ns)
    return tuple(
        MarkedStep(step.number, safe_text(step.name), step.start_ns, step.end_ns, odd)
        for step, odd in every
    )


def _first_view(focus: StepWindow | NotApplicable, timeline: ViewerTimeline) -> TimeRange | None:
    """Choose what to show first: one step with a little around it, or the whole window."""
    if isinstance(focus, NotApplicable):
        return None
    if focus.steps:
        return _around(timeline, focus.steps[0].start_ns, focus.steps[0].end_ns, _AROUND_STEP)
    return _around(timeline, focus.start_ns, focus.end_ns, _AROUND_ALL)


def _around(timeline: ViewerTimeline, first_ns: int, last_ns: int, part: float) -> TimeRange | None:
    around = int((last_ns - first_ns) * part)
    start = max(timeline.start_ns, first_ns - around)
    end = min(timeline.end_ns, last_ns + around)
    return TimeRange(start, end) if start < end else None


def _notes(trace: Trace, focus: StepWindow | NotApplicable, steps: int) -> tuple[str, ...]:
    meta = trace.meta
    window_notes = [sentence(focus)] if isinstance(focus, NotApplicable) else focus.notes
    messages = serious_messages(trace)["text"].to_list() if trace.has("diagnostics") else []
    notes = [*trace.warnings, *window_notes, *meta.notes]
    notes += [f"profiler warning: {text}" for text in messages[:MAX_MESSAGES]]
    if len(messages) > MAX_MESSAGES:
        notes.append(f"{len(messages) - MAX_MESSAGES:,} more profiler warnings")
    if steps > MAX_MARKED_STEPS:
        notes.append(f"only the first {MAX_MARKED_STEPS:,} of {steps:,} steps are marked")
    return tuple(dict.fromkeys(map(safe_text, notes)))


_ALIGNED = 8
_PREFIX = struct.Struct("<I")
WINDOW_COLUMNS: dict[str, dict[str, str]] = {
    "slices": {
        "line": "u2",
        "start_ns": "f8",
        "end_ns": "f8",
        "table": "u1",
        "row": "u4",
        "label": "u4",
        "color": "u1",
    },
    "bin_sums": {"line": "u2", "bin": "u4", "busy_ns": "f8", "count": "u4", "color": "u1"},
    "points": {"line": "u2", "bin": "u4", "low": "f8", "high": "f8", "mean": "f8"},
}
"""Columns of each part of a window, and the types that they travel in."""
MAX_WINDOW_LINES = 1 << 16
"""What the type of `line` can distinguish."""


def encode_window(window: TimelineWindow) -> bytes:
    """Give a window as the bytes that a browser decodes without looking at single events."""
    if len(window.lines) > MAX_WINDOW_LINES:
        raise UsageError(
            f"these tracks have {len(window.lines):,} lines", hint="request fewer tracks at once"
        )
    parts: list[bytes] = []
    described: dict[str, dict[str, Any]] = {}
    offset = 0
    for part, columns in WINDOW_COLUMNS.items():
        described[part] = {}
        for name, kind in columns.items():
            values = getattr(getattr(window, part), name)
            data = values.astype(np.dtype(kind).newbyteorder("<")).tobytes()
            described[part][name] = {"type": kind, "offset": offset, "length": len(values)}
            parts.append(data.ljust(_aligned(len(data)), b"\0"))
            offset += len(parts[-1])
    header = _header(window, described)
    return b"".join((_PREFIX.pack(len(header)), header, *parts))


def _header(window: TimelineWindow, columns: dict[str, dict[str, Any]]) -> bytes:
    """Give the header, padded to where the body may begin."""
    header = {
        "start_ns": window.start_ns,
        "end_ns": window.end_ns,
        "bins": window.bins,
        "lines": [{"track": track, "line": line} for track, line in window.lines],
        "pending": window.pending,
        "labels": [safe_text(label) for label in window.labels],
        "columns": columns,
    }
    text = msgspec.json.encode(header)
    return text.ljust(_aligned(len(text) + _PREFIX.size) - _PREFIX.size)


def _aligned(size: int) -> int:
    return -(-size // _ALIGNED) * _ALIGNED
