"""Which tracks an excerpt shows: by default those that most is seen on, else what is asked for."""

from __future__ import annotations

import fnmatch
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING

from gpusight.analyses.select import Scope
from gpusight.analyses.timeline.titles import Titles
from gpusight.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Sequence

    from gpusight.analyses.select import Selection
    from gpusight.analyses.timeline.window import Track
    from gpusight.model.trace import Trace

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
    trace: Trace, tracks: Sequence[Track], selection: Selection, patterns: Sequence[str]
) -> list[Track]:
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


def _matches(track: Track, pattern: str) -> bool:
    return pattern in (ALL, track.kind) or fnmatch.fnmatchcase(track.key, pattern)


def _selected(trace: Trace, tracks: Iterable[Track], selection: Selection) -> list[Track]:
    """Leave out the tracks of other GPUs and processes."""
    scope = Scope(trace, replace(selection, within=None))
    titles = Titles(trace)
    own = list(tracks)
    if selection.device is not None:
        gpu = titles.gpu(selection.device)
        own = [track for track in own if track.group == gpu or not _is_gpu(track)]
    if scope.processes is not None:
        groups = {titles.process(process) for process in scope.processes}
        own = [track for track in own if track.group in groups or _is_gpu(track)]
    return own


def _is_gpu(track: Track) -> bool:
    return track.key.startswith("gpu")


def fewer(tracks: Sequence[Track], active: Collection[str]) -> list[Track]:
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
