"""Timelines for the tests of rules: rows as `build_trace` takes them, or written call by call."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

import gpusight
from gpusight.analysis.steps.step_window import step_window
from gpusight.analysis.steps.window_headline import StepWindow
from gpusight.rules.context import sample_steps
from gpusight.rules.rule import RuleMatch
from gpusight.rules.timeline_diagnosis import diagnose_timeline
from tests import shared
from tests.shared import SHARED
from tests.traces import THREAD, build_trace

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from gpusight.results import NotApplicable
    from gpusight.rules.context import RuleContext
    from gpusight.rules.diagnosis import TimelineDiagnosis
    from gpusight.rules.rule import TimelineRule
    from tests.traces import Rows

US = 1_000
MAIN = THREAD
"""The main thread: the one that `build_trace` gives to rows that name none."""


def judged(meta: Mapping[str, Any] | None = None, **tables: Rows) -> RuleContext:
    """Give the timeline of these rows, judged as a capture would be."""
    tables.setdefault("devices", [{"device": 0}])
    trace = build_trace(meta, **tables)
    chosen = step_window(trace)
    assert isinstance(chosen, StepWindow)
    return sample_steps(trace, chosen)


def match_of(rule: TimelineRule, timeline: RuleContext) -> RuleMatch:
    """Return the match of a rule that must find something, with the code of a finding."""
    verdict = rule.check(timeline)
    assert isinstance(verdict, RuleMatch), verdict
    return replace(verdict, code=verdict.code or rule.snippet(timeline.framework))


def saved_us(match: RuleMatch, timeline: RuleContext) -> float:
    """Replay what a finding changes: microseconds saved per step."""
    return timeline.replay.run(*match.change).saved_ns / timeline.per_step / US


def evidence(match: RuleMatch) -> dict[str, float]:
    """Give the numbers of a finding by name."""
    return {e.metric: e.value for e in match.evidence}


class Capture:
    """A capture written down call by call, in microseconds.

    Steps are ranges `step_0`, `step_1`, …; what a call launches gets its correlation.
    """

    def __init__(self, source: str = "nsys-sqlite") -> None:
        self.source = source
        self.tables: dict[str, list[dict[str, Any]]] = defaultdict(list)
        self._correlation = 0

    def call(self, name: str, start: float, end: float, **columns: Any) -> int:
        """Add an API call; gives its correlation."""
        self._correlation += 1
        self._add("api_calls", name, start, end, correlation=self._correlation, **columns)
        return self._correlation

    def launch(
        self,
        call: tuple[float, float],
        kernel: tuple[float, float],
        name: str = "k",
        **columns: Any,
    ) -> None:
        """Add a launch and its kernel."""
        correlation = self.call("cudaLaunchKernel", *call)
        row = {"grid_x": 1_000, "grid_y": 1, "grid_z": 1, **columns}
        self._add("kernels", name, *kernel, correlation=correlation, **row)

    def copy(
        self,
        call: tuple[float, float],
        copy: tuple[float, float],
        *,
        size: int = 4,
        name: str = "cudaMemcpyAsync",
        **columns: Any,
    ) -> None:
        """Add a copy to the host, of pageable memory unless said otherwise."""
        correlation = self.call(name, *call)
        row = {"kind": "Device-to-Host", "src_kind": "Device", "dst_kind": "Pageable", **columns}
        start, end = (round(t * US) for t in copy)
        self.tables["copies"].append(
            {"start_ns": start, "end_ns": end, "bytes": size, "correlation": correlation, **row}
        )

    def range(self, name: str, start: float, end: float, **columns: Any) -> None:
        """Add a range."""
        self._add("ranges", name, start, end, **columns)

    def event(self, table: str, name: str, start: float, end: float, **columns: Any) -> None:
        """Add an event of any other table that has a name."""
        self._add(table, name, start, end, **columns)

    def _add(self, table: str, name: str, start: float, end: float, **columns: Any) -> None:
        times = {"start_ns": round(start * US), "end_ns": round(end * US)}
        self.tables[table].append({"name": name, **times, **columns})

    def timeline(self, *, without: tuple[str, ...] = (), **meta: Any) -> RuleContext:
        """Judge what was written down, without some of the tables if asked."""
        tables = {name: rows for name, rows in self.tables.items() if name not in without}
        return judged({"source": self.source, **meta}, **tables)


@lru_cache(maxsize=32)
def opened(capture: str) -> RuleContext:
    """Judge one of the shared captures, once for all rules."""
    trace = gpusight.open(SHARED / capture)
    chosen = step_window(trace)
    assert isinstance(chosen, StepWindow)
    return sample_steps(trace, chosen)


def diagnosed_file(path: Path) -> TimelineDiagnosis | NotApplicable:
    """Diagnose a capture that is in a file."""
    return _diagnosed_file(path, shared.file_state(path))


@lru_cache(maxsize=64)
def _diagnosed_file(path: Path, _state: tuple[int, ...]) -> TimelineDiagnosis | NotApplicable:
    return diagnose_timeline(shared.opened(path))
