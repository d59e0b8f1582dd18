"""Programs as lists of launches: as a timeline sees them, and as Nsight Compute would.

`measured` is our model of its filters, after its manual: names are matched by function, NVTX ranges
by the thread that pushed them or by the process, and what is left is skipped and counted.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from gpusight.analysis.drill.drill_kernels import FUNCTION, function_of
from tests.traces import PROCESS, THREAD, build_trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analysis.drill.launch_plan import PlannedRun
    from gpusight.trace.trace import Trace

MAIN, AUTOGRAD = THREAD, THREAD + 1


@dataclass(frozen=True)
class Launch:
    """One kernel launch; `grid` tells shapes of one kernel apart."""

    name: str
    grid: int = 1
    took_ns: int = 100
    thread: int = MAIN

    @property
    def key(self) -> tuple[str, int]:
        return self.name, self.grid


@dataclass(frozen=True)
class Range:
    """A range around some launches."""

    name: str
    launches: Sequence[Launch]
    kind: str = "push_pop"
    domain: str = ""
    thread: int = MAIN


@dataclass
class Program:
    """What a program does, part after part: launches, and ranges of launches."""

    parts: Sequence[Launch | Range]
    calls: Sequence[str] = ()
    """API calls before anything else."""
    moments: list[tuple[int, Launch]] = field(default_factory=list)
    ranges: list[dict[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        now = 1_000
        for part in self.parts:
            inside = [part] if isinstance(part, Launch) else list(part.launches)
            began = now
            for launch in inside:
                now += 10
                self.moments.append((now, launch))
                now += launch.took_ns
            now += 10
            if isinstance(part, Range):
                self.ranges.append(
                    {
                        "start_ns": began,
                        "end_ns": now,
                        "name": part.name,
                        "kind": part.kind,
                        "domain": part.domain,
                        "domain_key": 1 if part.domain else 0,
                        "thread": part.thread,
                    }
                )
            now += 10

    def trace(self, **tables: Any) -> Trace:
        """Give the timeline of it."""
        calls: list[dict[str, Any]] = [
            {"name": name, "start_ns": n, "end_ns": n, "correlation": 900_000 + n}
            for n, name in enumerate(self.calls)
        ]
        kernels = []
        for number, (at, launch) in enumerate(self.moments, 1):
            calls.append(
                {
                    "start_ns": at,
                    "end_ns": at + 5,
                    "correlation": number,
                    "thread": launch.thread,
                    "process": PROCESS,
                }
            )
            kernels.append(
                {
                    "start_ns": at + 7,
                    "end_ns": at + 7 + launch.took_ns,
                    "name": launch.name,
                    "correlation": number,
                    "grid_x": launch.grid,
                    **dict.fromkeys(("grid_y", "grid_z", "block_y", "block_z"), 1),
                    "block_x": 128,
                }
            )
        if self.ranges:
            tables["ranges"] = self.ranges
        return build_trace(None, api_calls=calls, kernels=kernels, **tables)

    def measured(self, run: PlannedRun) -> list[int]:
        """Give the launches, by number, that Nsight Compute would measure."""
        assert run.base == FUNCTION
        passed = [
            number
            for number, (at, launch) in enumerate(self.moments)
            if re.search(run.pattern, function_of(launch.name)) and self._included(run, at, launch)
        ]
        return passed[run.skip : run.skip + run.count]

    def _included(self, run: PlannedRun, at: int, launch: Launch) -> bool:
        if not run.include:
            return True
        return any(
            r["start_ns"] <= at < r["end_ns"]
            and _written(r) in run.include
            and (run.process_scope or r["kind"] != "push_pop" or r["thread"] == launch.thread)
            for r in self.ranges
        )

    def keys(self, numbers: Sequence[int]) -> list[tuple[str, int]]:
        """Give name and shape of launches."""
        return [self.moments[number][1].key for number in numbers]


def _written(r: dict[str, Any]) -> str:
    domain = f"{r['domain']}@" if r["domain"] else ""
    return f"{domain}{r['name']}{'/' if r['kind'] == 'push_pop' else ''}"
