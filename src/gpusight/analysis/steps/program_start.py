"""The start of a program, where no steps are known: it loads and compiles before it computes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.launch_index import launched
from gpusight.naming.host_names import is_compiling
from gpusight.trace.intervals import Intervals, coverage, union

if TYPE_CHECKING:
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


MIN_START_SHARE = 0.1
"""Share of the window before the first kernel."""
MIN_CERTAIN_SHARE = 0.5
"""The same for a start with any host activity; also the share of a start before any GPU activity or
in compilation, so that autotuning counts as part of it."""
MIN_LOADING_SHARE = 0.1
"""Share of a start in module loading, context creation and allocation."""
MIN_START_NS = 1e6
"""A shorter one is the first launch, not a program start."""
PREPARES = (
    r"^(?:cu|cuda|hip)(?:Module|Library|Link)|^cuCtxCreate|^cuDevicePrimaryCtx|^cuInit|^nvrtc"
    r"|^(?:cu|cuda|hip)(?:Malloc|MemAlloc|HostAlloc|MallocHost|Free)$"
)
_COMPILES = ("ranges", "cpu_ops", "python_calls")


@dataclass(frozen=True)
class ProgramStart:
    """Time before a program computes."""

    start_ns: int
    end_ns: int
    """First GPU activity, or the end of compilation."""
    launch_ns: int
    """First launch after it."""
    loads: pl.DataFrame
    """Calls that load code, create contexts or allocate memory: `name` and `duration_ns`."""
    compiling_ns: int

    @property
    def length_ns(self) -> int:
        """Its length."""
        return self.end_ns - self.start_ns

    @property
    def preparing_ns(self) -> int:
        """Time in which the host loads or compiles."""
        return int(self.loads["duration_ns"].sum()) + self.compiling_ns


def find_start(trace: Trace, start_ns: int, end_ns: int) -> ProgramStart | None:
    """Find the start of a program in a window without steps."""
    work = launched(trace).filter(pl.col("end_ns") > start_ns, pl.col("start_ns") < end_ns)
    if work.is_empty():
        return None
    first = max(start_ns, int(work["start_ns"].min()))  # type: ignore[arg-type]
    compiles = _compiling(trace, start_ns, end_ns)
    ready_ns = _last_compile(compiles, work["launch_ns"].to_numpy(), start_ns, first)
    after = work.filter(pl.col("launch_ns") >= ready_ns) if ready_ns > first else work
    start = ProgramStart(
        start_ns,
        ready_ns,
        max(start_ns, int(after["launch_ns"].min())),  # type: ignore[arg-type]
        _loads(trace, start_ns, ready_ns),
        int(coverage(compiles, np.array([start_ns]), np.array([ready_ns]))[0]),
    )
    if start.length_ns < max(MIN_START_NS, MIN_START_SHARE * (end_ns - start_ns)):
        return None
    loads = start.preparing_ns >= MIN_LOADING_SHARE * start.length_ns
    certain = start.length_ns >= MIN_CERTAIN_SHARE * (end_ns - start_ns)
    return start if certain or loads else None


def _compiling(trace: Trace, start_ns: int, end_ns: int) -> Intervals:
    spans = Intervals.empty()
    for table in _COMPILES:
        if not trace.has(table):
            continue
        events = trace.table(table, ["start_ns", "end_ns", "name"])
        codes = [code for code, name in enumerate(names_of(events["name"])) if is_compiling(name)]
        own = events.filter(
            pl.col("name").to_physical().is_in(codes),
            pl.col("end_ns") > start_ns,
            pl.col("start_ns") < end_ns,
        )
        own_spans = Intervals.from_arrays(own["start_ns"].to_numpy(), own["end_ns"].to_numpy())
        spans = union(spans, own_spans)
    return spans


def _last_compile(compiles: Intervals, launches: Ints, start_ns: int, first_ns: int) -> int:
    """Return the end of the last compilation of a start, else the first GPU activity."""
    ends = compiles.ends[(compiles.ends > first_ns) & (compiles.ends <= launches.max())]
    if not len(ends):
        return first_ns
    idle = Intervals.from_arrays(np.array([start_ns]), np.array([first_ns]))
    since = np.full(len(ends), start_ns)
    prepared_ns = coverage(union(compiles, idle), since, ends)
    in_start = prepared_ns >= MIN_CERTAIN_SHARE * (ends - since)
    return int(ends[in_start].max(initial=first_ns))


def _loads(trace: Trace, start_ns: int, end_ns: int) -> pl.DataFrame:
    calls = trace.table("api_calls", ["start_ns", "end_ns", "name"]).filter(
        pl.col("start_ns") >= start_ns, pl.col("start_ns") < end_ns
    )
    prepares = calls["name"].cast(pl.String).str.contains(PREPARES)
    return calls.filter(prepares).select(
        pl.col("name").cast(pl.String), (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns")
    )
