"""What a page must know of a capture before it asks for any of its events."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analyses.devices import device_names
from gpusight.analyses.info import serious_messages
from gpusight.analyses.select import GPU_WORK
from gpusight.analyses.steps import focus as find_focus
from gpusight.findings.timeline.start import without_start
from gpusight.render.blocks import sentence
from gpusight.render.cells import safe_text
from gpusight.result import NotApplicable
from gpusight.web.answers import CaptureInfo, MarkedStep, TimeRange

if TYPE_CHECKING:
    from gpusight.analyses.steps import Focus
    from gpusight.analyses.timeline.timeline import Timeline
    from gpusight.model.trace import Trace

MOST_STEPS = 10_000
"""Steps that a page marks."""
MOST_MESSAGES = 20
"""Messages of the profiler that are repeated."""
_AROUND_STEP, _AROUND_ALL = 0.25, 0.02
"""Part of a step, or of all that is judged, that is shown on either side of it at first."""


def capture_info(number: int, name: str, trace: Trace, timeline: Timeline) -> CaptureInfo:
    """Describe a capture: its tracks, its steps, and what is wrong with it."""
    focus = find_focus(trace)
    steps = () if isinstance(focus, NotApplicable) else _steps(focus)
    meta = trace.meta
    return CaptureInfo(
        id=number,
        name=name,
        tool=safe_text(" ".join(filter(None, (meta.tool, meta.tool_version)))),
        gpus=_gpus(trace),
        start_ns=timeline.start_ns,
        end_ns=timeline.end_ns,
        tracks=timeline.tracks,
        colours=timeline.colours,
        steps=steps[:MOST_STEPS],
        notes=_notes(trace, focus, len(steps)),
        first_view=_first_view(trace, focus, timeline),
    )


def _steps(focus: Focus) -> tuple[MarkedStep, ...]:
    judged = [(step, False) for step in focus.steps]
    every = sorted([*judged, *((s, True) for s in focus.left_out)], key=lambda s: s[0].start_ns)
    return tuple(
        MarkedStep(step.number, safe_text(step.name), step.start_ns, step.end_ns, odd)
        for step, odd in every
    )


def _first_view(trace: Trace, focus: Focus | NotApplicable, timeline: Timeline) -> TimeRange | None:
    """Choose what to show first: one judged step with a little around it, or all that is judged."""
    if isinstance(focus, NotApplicable):
        return None
    if focus.steps:
        return _around(timeline, focus.steps[0].start_ns, focus.steps[0].end_ns, _AROUND_STEP)
    judged = without_start(trace, focus)
    return _around(timeline, judged.start_ns, judged.end_ns, _AROUND_ALL)


def _around(timeline: Timeline, first_ns: int, last_ns: int, part: float) -> TimeRange | None:
    around = int((last_ns - first_ns) * part)
    start = max(timeline.start_ns, first_ns - around)
    end = min(timeline.end_ns, last_ns + around)
    return TimeRange(start, end) if start < end else None


def _gpus(trace: Trace) -> tuple[str, ...]:
    """Name the GPUs that worked, or all where none did: `8 x NVIDIA H200`."""
    tables = [trace.table(table, ["device"]) for table in GPU_WORK if trace.has(table)]
    used = pl.concat(tables)["device"].drop_nulls().unique().sort().to_list() if tables else []
    names = device_names(trace)
    counted = Counter(safe_text(names.get(device) or f"GPU {device}") for device in used or names)
    return tuple(name if count == 1 else f"{count} x {name}" for name, count in counted.items())


def _notes(trace: Trace, focus: Focus | NotApplicable, steps: int) -> tuple[str, ...]:
    meta = trace.meta
    told = [sentence(focus)] if isinstance(focus, NotApplicable) else focus.notes
    messages = serious_messages(trace)["text"].to_list() if trace.has("diagnostics") else []
    notes = [*trace.warnings, *told, *meta.notes]
    notes += [f"the profiler said: {text}" for text in messages[:MOST_MESSAGES]]
    if len(messages) > MOST_MESSAGES:
        notes.append(f"the profiler said {len(messages) - MOST_MESSAGES:,} things more")
    if steps > MOST_STEPS:
        notes.append(f"only the first {MOST_STEPS:,} of {steps:,} steps are marked")
    return tuple(dict.fromkeys(map(safe_text, notes)))
