"""gil-contention: the launching thread waits for Python's global interpreter lock."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np
import polars as pl

from gpusight.analysis.replay.changes import without_host_time
from gpusight.rules.context import memoize
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import summed_locations
from gpusight.rules.locations import single_span
from gpusight.rules.patterns.host_gaps import busy_share, host_unknown, launching_thread
from gpusight.rules.rule import (
    CLEAN,
    Framework,
    RuleMatch,
    RuleNotApplicable,
    Threshold,
    TimelineRule,
)
from gpusight.trace.intervals import Intervals, coverage

if TYPE_CHECKING:
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import RuleVerdict
    from gpusight.trace.intervals import Ints


MIN_WAIT_SHARE = Threshold(0.02, "share of the time that the launching thread waits for the lock")
MIN_WAITS = Threshold(10, "waits; fewer are chance")
MAX_WAIT_NS = Threshold(
    20e6, "ns; a thread requests the lock every 5 ms, so that longer waits are for something else"
)
SWITCH_NS = Threshold(5e6, "ns after which a thread that waits for the lock requests it")
MAX_SWITCH_SHARE = Threshold(
    1.1, "of that time, or of a multiple of it, up to which a stretch without calls looks like it"
)
MIN_ALIKE_SHARE = Threshold(
    0.7, "share of the time of stretches of 2 to 20 ms that must look like waits for the lock"
)
MIN_WAITS_PER_STEP = Threshold(3, "such stretches per step; fewer may be anything of that length")
_MIN_SWITCH_SHARE = 0.97
_LONG_NS = 2e6
_MAX_LOCATED = 64
_LOCK_WAITS = r"^_*pthread_cond_(?:timed|clock)wait$"


class GilContention(TimelineRule):
    """Python threads that share one lock."""

    id = "gil-contention"
    detects = (
        "Looks for pthread_cond_timedwait calls of up to 5 ms on the launching thread of a Python "
        "program. Python waits for its global interpreter lock (GIL) with this function, and for "
        "nothing else. Without OS calls, it looks for stretches of 5 ms without CUDA calls or "
        "operators, again and again: the time after which Python switches threads."
    )
    why = (
        "Only one Python thread runs at a time. A launch releases the lock, and gets it back when "
        "the other thread gives it up: after 5 ms, if that computes."
    )
    fix = "Move the work of other Python threads into processes."
    code = """\
loader = DataLoader(dataset, num_workers=4)                  # processes instead of threads
pool = concurrent.futures.ProcessPoolExecutor()              # not ThreadPoolExecutor
sys.setswitchinterval(0.0005)                                # or: shorter waits
"""
    snippets: ClassVar = {
        **dict.fromkeys(
            (Framework.CUPY, Framework.NUMBA),
            """\
pool = concurrent.futures.ProcessPoolExecutor()              # not ThreadPoolExecutor
sys.setswitchinterval(0.0005)                                # or: shorter waits
""",
        ),
    }
    verify = "`gpusight ledger` shows less idle time, and nsys fewer pthread_cond_timedwait calls."
    caveats = (
        "Extensions may use the same function for locks of their own. Threads that wait or compute "
        "in C (NumPy, I/O) do not hold the lock."
    )
    estimate = "Simulation without these waits before calls."
    effort = "rewrite"
    thresholds: ClassVar = {
        "min_wait_share": MIN_WAIT_SHARE,
        "min_waits": MIN_WAITS,
        "max_wait_ns": MAX_WAIT_NS,
        "switch_ns": SWITCH_NS,
        "max_switch_share": MAX_SWITCH_SHARE,
        "min_alike_share": MIN_ALIKE_SHARE,
        "min_waits_per_step": MIN_WAITS_PER_STEP,
    }

    def check(self, context: RuleContext) -> RuleVerdict:
        """Sum the waits for the lock on the launching thread."""
        if (unknown := host_unknown(context)) is not None:
            return unknown
        if not is_python(context):
            return RuleNotApplicable("the program is not a Python program, by its name")
        waits = lock_waits(context)
        waited_ns = int(waits["duration_ns"].sum())
        if waits.height < MIN_WAITS.value or (waited_ns < MIN_WAIT_SHARE.value * context.length_ns):
            if context.trace.has("os_calls"):
                return CLEAN
            return RuleNotApplicable("the capture has no OS calls: waits for the GIL are not shown")
        spans = Intervals.from_arrays(*(waits[c].to_numpy() for c in ("start_ns", "end_ns")))
        calls = np.flatnonzero(context.schedule.calls.host_thread == launching_thread(context))
        before_ns = context.schedule.before_calls[calls]
        in_gap_ns = coverage(spans, before_ns, context.schedule.calls.start_ns[calls])
        seen, reason = "of pthread_cond_timedwait", "the function"
        if inferred := not context.trace.has("os_calls"):
            seen, reason = "of 5 ms, when Python switches threads", "their length"
        return RuleMatch(
            title=f"Launching thread waits for the GIL {context.time_per_step(waited_ns)}",
            evidence=(
                context.evidence("waited_ns", waited_ns, "ns", "Time waiting for the GIL"),
                context.evidence("waits", waits.height, "", "Waits for the GIL"),
                Evidence("gpu_busy", busy_share(context), "share", "GPU busy"),
            ),
            confidence=Confidence.LOW if inferred else Confidence.MEDIUM,
            confidence_reason="the waits were measured; that they are for the GIL is inferred from "
            f"{reason}",
            change=(without_host_time(calls, in_gap_ns),),
            fix=f"{context.count_per_step(waits.height, 'wait')} {seen}: another Python thread "
            "holds the lock. "
            + context.framework.choose(
                torch="Load data in worker processes (num_workers > 0), and move logging, metrics "
                "and other threads into processes.",
                cuda="Move the work of Python threads into processes, or into code that releases "
                "the lock.",
                jax="Load data in processes, and keep callbacks into Python short.",
            )
            + " To see the waits: gpusight record --with nsys." * inferred,
            where=() if inferred else tuple(summed_locations(waits, "call", "name")),
            # The same stretches; a stall of another length is not one of these.
            also=("between-steps",) * inferred,
        )

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find the OS calls, else the longest stretches that look like waits."""
        if context.trace.has("os_calls"):
            return super().locate(context, finding)
        waits = lock_waits(context).sort("duration_ns", descending=True).head(_MAX_LOCATED)
        spans = waits.select("start_ns", "end_ns").iter_rows()
        return pl.concat([single_span(start, end, "wait for the GIL") for start, end in spans])


def is_python(context: RuleContext) -> bool:
    """Return whether the process runs Python, by its framework or its name."""
    if context.framework not in {Framework.CUDA, Framework.JULIA}:
        return True
    processes = context.trace.table("processes", ["process", "name"])
    own = processes.filter(pl.col("process").is_in([p for p, _ in context.schedule.threads]))
    return bool(own["name"].cast(pl.String).str.contains("(?i)python").any())


@memoize
def lock_waits(context: RuleContext) -> pl.DataFrame:
    """Return the waits for the lock on the threads of the launching host thread.

    Without OS calls, these are the stretches without calls that look like them, if most long ones
    do.
    """
    schedule = context.schedule
    if not context.trace.has("os_calls"):
        return _stretches_like_waits(context)
    on_thread = np.unique(
        schedule.calls.thread[schedule.calls.host_thread == launching_thread(context)]
    )
    threads = [schedule.threads[at][1] for at in on_thread]
    frame = context.trace.table("os_calls", ["start_ns", "end_ns", "name", "thread"])
    duration_ns = pl.col("end_ns") - pl.col("start_ns")
    return frame.filter(
        pl.col("thread").is_in(threads),
        pl.col("end_ns") > schedule.start_ns,
        pl.col("start_ns") < schedule.end_ns,
        pl.col("name").cast(pl.String).str.contains(_LOCK_WAITS),
        duration_ns <= MAX_WAIT_NS.value,
    ).with_columns(duration_ns.alias("duration_ns"))


def _stretches_like_waits(context: RuleContext) -> pl.DataFrame:
    """Return stretches without calls of the time after which Python switches threads.

    And those too long to look like it, where most stretches do: one wait follows the other there.
    """
    starts, ends = _stretches(context)
    stretches = pl.DataFrame({"start_ns": starts, "end_ns": ends}).with_columns(
        (pl.col("end_ns") - pl.col("start_ns")).alias("duration_ns")
    )
    # One wait after the other, with nothing but short work of the host in between.
    waits = (pl.col("duration_ns") / (_MIN_SWITCH_SHARE * SWITCH_NS.value)).floor()
    most_ns = waits * MAX_SWITCH_SHARE.value * SWITCH_NS.value
    alike = (waits > 0) & (pl.col("duration_ns") <= most_ns)
    long = stretches.filter(pl.col("duration_ns") >= _LONG_NS)
    is_short = waits * SWITCH_NS.value <= MAX_WAIT_NS.value
    compared = long.filter(is_short)
    waiting = compared.filter(alike)
    total_ns, found_ns = int(compared["duration_ns"].sum()), int(waiting["duration_ns"].sum())
    enough = found_ns >= MIN_ALIKE_SHARE.value * total_ns
    if not enough or waiting.height < MIN_WAITS_PER_STEP.value * context.per_step:
        return waiting.clear()
    return long.filter(alike | ~is_short) if 2 * waiting.height > long.height else waiting


def _stretches(context: RuleContext) -> tuple[Ints, Ints]:
    """Return when the launching thread records nothing: no call, operator or Python function."""
    schedule = context.schedule
    own = np.flatnonzero(schedule.calls.host_thread == launching_thread(context))
    starts, ends = schedule.before_calls[own], schedule.calls.start_ns[own]
    threads = [schedule.threads[at][1] for at in np.unique(schedule.calls.thread[own])]
    edges = [starts, ends]
    first, last = starts.min(initial=1 << 62), ends.max(initial=-1 << 62)
    for table in ("cpu_ops", "python_calls"):
        rows = context.trace.table(table, ["start_ns", "end_ns", "thread"])
        rows = rows.filter(
            pl.col("end_ns") >= first, pl.col("start_ns") <= last, pl.col("thread").is_in(threads)
        )
        edges += [rows["start_ns"].to_numpy(), rows["end_ns"].to_numpy()]
    times = np.sort(np.concatenate(edges))  # times seldom repeat: np.unique takes many times longer
    times = times[np.diff(times, prepend=first - 1) != 0]
    order = np.argsort(starts, kind="stable")
    stretch = np.searchsorted(starts[order], times[:-1], side="right") - 1
    inside = (stretch >= 0) & (times[1:] <= ends[order][stretch])
    return times[:-1][inside], times[1:][inside]
