"""Which time and which tracks a timeline snapshot shows."""

from __future__ import annotations

import fnmatch
from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from gpusight.analysis.selection import ResolvedSelection
from gpusight.analysis.steps.step_launches import launched, of_process, took_ns
from gpusight.analysis.steps.step_list import called, shortened
from gpusight.analysis.steps.step_window import step_window, work_end
from gpusight.errors import UsageError
from gpusight.results import NotApplicable
from gpusight.viewer.track_style import TrackTitles

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from numpy.typing import NDArray

    from gpusight.analysis.selection import Selection
    from gpusight.analysis.steps.step_list import TraceStep
    from gpusight.analysis.steps.step_window import StepWindow
    from gpusight.trace.trace import Trace
    from gpusight.viewer.track_data import TimelineTrack


ALL = "all"
KINDS = (
    "ledger", "stream", "graphs", "ranges", "collectives", "ops", "python", "api", "syncs", "os",
    "overhead", "metric", "memory",
)  # fmt: skip
_USUAL = frozenset({"ledger", "stream", "graphs", "ranges", "collectives", "ops", "api"})
_STREAMS = 6
"""Streams of a GPU that are shown; those with most GPU time stand first."""
_THREADS = 2
"""Threads that are shown; the one with most CUDA calls stands first."""


def wanted_tracks(
    trace: Trace, tracks: Sequence[TimelineTrack], selection: Selection, patterns: Sequence[str]
) -> list[TimelineTrack]:
    """Give the tracks of the selected GPU and process that match, or those usually shown."""
    own = _selected(trace, tracks, selection)
    if not patterns:
        return [track for track in own if track.kind in _USUAL]
    found = [track for track in own if any(_matches(track, p) for p in patterns)]
    if not found:
        known = ", ".join(dict.fromkeys(track.kind for track in own))
        raise UsageError(
            f"no track is {', '.join(patterns)}",
            why=f"kinds in the capture are {known}" if known else "nothing is selected",
            hint="write kinds, keys or globs, such as 'stream,ranges' or 'gpu0/*', or all",
        )
    return found


def _matches(track: TimelineTrack, pattern: str) -> bool:
    return pattern in (ALL, track.kind) or fnmatch.fnmatchcase(track.key, pattern)


def _selected(
    trace: Trace, tracks: Iterable[TimelineTrack], selection: Selection
) -> list[TimelineTrack]:
    """Leave out the tracks of other GPUs and processes."""
    scope = ResolvedSelection(trace, replace(selection, within=None))
    titles = TrackTitles(trace)
    own = list(tracks)
    if selection.device is not None:
        gpu = titles.gpu(selection.device)
        own = [track for track in own if track.group == gpu or not _is_gpu(track)]
    if scope.processes is not None:
        groups = {titles.process(process) for process in scope.processes}
        own = [track for track in own if track.group in groups or _is_gpu(track)]
    return own


def _is_gpu(track: TimelineTrack) -> bool:
    return track.key.startswith("gpu")


def fewer(tracks: Sequence[TimelineTrack], active: Collection[str]) -> list[TimelineTrack]:
    """Keep of the active tracks a few streams of each GPU and a few threads, as a page has room."""
    streams: Counter[str] = Counter()
    threads: dict[tuple[str, str], None] = {}
    kept = []
    for track in tracks:
        if track.key not in active:
            continue
        if track.kind == "stream":
            streams[track.group] += 1
            if streams[track.group] > _STREAMS:
                continue
        if track.thread:
            threads.setdefault((track.group, track.thread))
            if (track.group, track.thread) not in list(threads)[:_THREADS]:
                continue
        kept.append(track)
    return kept


_BESIDE = 0.03
"""What is shown on either side of a step, as part of its length."""


@dataclass(frozen=True)
class SnapshotStretch:
    """The time that an excerpt shows."""

    start_ns: int
    end_ns: int
    what: str
    """What it is, in words: `step 5, the median of 10`."""
    steps: tuple[TraceStep, ...] = ()
    """Steps that it shows anything of, in order."""
    notes: tuple[str, ...] = ()


def stretch_of(
    trace: Trace,
    selection: Selection,
    *,
    steps: str | None,
    window: tuple[int | None, int | None] | None,
    warmup: bool,
) -> SnapshotStretch | NotApplicable:
    """Choose the time: by default the median of the steps that stand for the program."""
    chosen = step_window(trace, selection, steps=steps, window=window, warmup=warmup)
    if isinstance(chosen, NotApplicable):
        return chosen
    if window is not None:
        found = SnapshotStretch(chosen.start_ns, chosen.end_ns, "")
    elif selection.within is not None and steps is None:
        found = _typical_range(trace, selection)
    elif steps is not None or not chosen.steps:
        found = _with_margin(chosen.start_ns, chosen.end_ns, _several(chosen.steps))
    else:
        found = _typical_step(trace, chosen.steps)
    return replace(found, steps=_shown(chosen, found), notes=chosen.notes)


def _shown(chosen: StepWindow, found: SnapshotStretch) -> tuple[TraceStep, ...]:
    every = sorted((*chosen.steps, *chosen.left_out), key=lambda step: step.start_ns)
    return tuple(s for s in every if s.start_ns < found.end_ns and s.end_ns > found.start_ns)


def _typical_step(trace: Trace, steps: Sequence[TraceStep]) -> SnapshotStretch:
    own = [s for s in steps if (s.process, s.thread) == (steps[0].process, steps[0].thread)]
    took = took_ns(of_process(launched(trace), own[0].process), own)
    step = own[_median(took)]
    end = work_end(trace, step.start_ns, step.end_ns, step.process)
    what = called(step) if len(own) == 1 else f"{called(step)}, the median of {len(own):,} steps"
    return _with_margin(step.start_ns, end, what)


def _typical_range(trace: Trace, selection: Selection) -> SnapshotStretch:
    spans = ResolvedSelection(trace, selection).matching_ranges.sort("start_ns")
    start, end = (spans[column].to_numpy() for column in ("start_ns", "end_ns"))
    at = _median(end - start)
    last = work_end(trace, int(start[at]), int(end[at]), spans["process"][at])
    name = shortened(selection.within or "")
    many = f", the median of {len(start):,}" if len(start) > 1 else ""
    return _with_margin(int(start[at]), last, f"{name}{many}")


def _median(lengths: NDArray[np.int64]) -> int:
    """Give the position of the median; of two in the middle, the shorter."""
    return int(np.argsort(lengths, kind="stable")[(len(lengths) - 1) // 2])


def _with_margin(start_ns: int, end_ns: int, what: str) -> SnapshotStretch:
    margin = round(_BESIDE * (end_ns - start_ns)) if what else 0
    return SnapshotStretch(start_ns - margin, end_ns + margin, what)


def _several(steps: Sequence[TraceStep]) -> str:
    if not steps:
        return ""
    first, last = called(steps[0]), called(steps[-1])
    return first if len(steps) == 1 else f"{first} to {last}"
