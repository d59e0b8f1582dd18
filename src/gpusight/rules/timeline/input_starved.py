"""input-starved: data loading on the launching thread stalls the GPU."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.replay.changes import without_host_time
from gpusight.naming.host_names import is_locked
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import TITLE_NAME_LENGTH, largest, named
from gpusight.rules.locations import idle_by_cause
from gpusight.rules.patterns.host_gaps import (
    MIN_RARE_RATIO,
    at_most,
    behind,
    busy_share,
    host_unknown,
    idle_ns,
    input_before,
    input_functions,
    spent_before,
)
from gpusight.rules.patterns.stack_lines import line_sites, lines_behind
from gpusight.rules.rule import CLEAN, Framework, RuleMatch, Threshold, TimelineRule
from gpusight.units import format_time

if TYPE_CHECKING:
    import polars as pl

    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import FindingLocation, RuleVerdict
    from gpusight.trace.intervals import Ints


MIN_IDLE_SHARE = Threshold(
    0.01, "share of the time in which the GPU is idle due to data loading; less is noise"
)
MIN_NAMED_SHARE = Threshold(
    0.5, "share of that idle time that has a name; below it, only H2D copies after it show it"
)


WORKERS = 8
"""Of the code that the rule shows."""


class InputStarved(TimelineRule):
    """Data loading on the launching thread."""

    id = "input-starved"
    detects = (
        "Looks for GPU idle time in which the launching thread loads or waits for data. Names of "
        "ranges, operators and Python functions identify it, and reads. Where nothing has a name, "
        "so do long stretches before H2D copies that recur or wait for another thread."
    )
    why = (
        "The thread launches nothing while it loads data. Once the kernels launched before are "
        "done, the GPU is idle."
    )
    fix = (
        "Load and prepare batches in worker processes or threads, ahead of the step, so that the "
        "launching thread only takes a ready batch."
    )
    code = """\
loader = DataLoader(
    dataset, batch_size=..., num_workers=8, pin_memory=True,
    prefetch_factor=4, persistent_workers=True,
)
for batch in loader:
    batch = batch.to("cuda", non_blocking=True)
"""
    cuda_code = """\
std::thread loader([&] {                       // fills buffers ahead of the launches
  for (int i = 0; i < steps; ++i) {
    ring.wait_free();
    read_batch(ring.slot(i));
    ring.push();
  }
});
for (int i = 0; i < steps; ++i) {
  float* host = ring.pop();                    // pinned, ready
  cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream);
  step<<<grid, block, 0, stream>>>(device);
}
"""
    jax_code = """\
batches = queue.Queue(maxsize=4)
def load():
    for batch in dataset:
        batches.put(jax.device_put(batch))
threading.Thread(target=load, daemon=True).start()
for _ in range(step_count):
    state = step(state, batches.get())
"""
    snippets: ClassVar = {
        **dict.fromkeys(
            (Framework.CUPY, Framework.NUMBA),
            """\
batches = queue.Queue(maxsize=4)
def load():                                    # fills the queue ahead of the steps
    for batch in dataset:
        batches.put(batch)
threading.Thread(target=load, daemon=True).start()
for _ in range(step_count):
    step(batches.get())
""",
        ),
        Framework.JULIA: """\
batches = Channel(4; spawn=true) do channel    # loads ahead, on another thread
    foreach(batch -> put!(channel, batch), dataset)
end
for batch in batches
    step!(state, CuArray(batch))
end
""",
    }
    verify = (
        "`gpusight ledger` shows no `idle/input`. If some remains, there are too few workers or "
        "the storage is too slow."
    )
    caveats = (
        "A range with `data` in its name may do other work, and so may unnamed work before H2D "
        "copies. A server without load waits for requests by design."
    )
    estimate = (
        "Simulation without the data loading time before each call, as with enough workers, and "
        "without the time in which other threads wait for it. "
        "Limited to the GPU idle time due to data loading. With one worker, each step takes at "
        f"least as long as loading its batch. With {WORKERS} workers of PyTorch, as in the "
        "example, it takes at least an eighth of that."
    )
    effort = "config"
    thresholds: ClassVar = {"min_idle_share": MIN_IDLE_SHARE, "min_named_share": MIN_NAMED_SHARE}

    def check(self, context: RuleContext) -> RuleVerdict:
        """Measure the host's time for input, and what the GPU waited for it."""
        if (unknown := host_unknown(context)) is not None:
            return unknown
        waited_ns = idle_ns(context, IdleCause.INPUT)
        if waited_ns < MIN_IDLE_SHARE.value * context.length_ns:
            return CLEAN
        spent = spent_before(context)[:, IdleCause.INPUT]
        removed = input_before(context)
        calls = np.flatnonzero(removed)
        places = behind(context, IdleCause.INPUT)
        lines = lines_behind(context, IdleCause.INPUT)
        places["site"] = input_functions(context) or places["site"] or line_sites(lines)
        where = largest(places["range"], places["operator"], places["call"], places["site"])
        # The time for input of the thread that spends most on it.
        host_threads = context.schedule.calls.host_thread
        worker_ns = float(np.bincount(host_threads, spent).max()) if len(host_threads) else 0.0
        # Of a function and the one that calls it, the title has the first.
        short = tuple(replace(w, name=w.name.partition(" in ")[0]) for w in where)
        source = named(short, "range", "operator", "call", "site", most=1, length=TITLE_NAME_LENGTH)
        certain = not where or not all(_WAITS.search(w.name) for w in where)
        kind = "Data loading" if certain else "Data loading or another wait"
        what = f"{kind} ({source})" if source else kind
        framework = context.framework
        named_ns = max((w.ns or 0.0 for w in where), default=0.0)
        unnamed = named_ns < MIN_NAMED_SHARE.value * waited_ns
        confidence, reason = Confidence.HIGH, "host activity and GPU idle time were measured"
        if unnamed:
            what = "Data loading (before H2D copies)"
            confidence = Confidence.MEDIUM
            reason = "nothing names this host work: that it loads data follows from the H2D copies"
        elif not certain:
            confidence = Confidence.MEDIUM
            reason = "the time was measured, but no name shows that the wait is for data"
        return RuleMatch(
            title=f"{what} stalls the GPU {context.time_per_step(waited_ns)}",
            evidence=(
                context.evidence(
                    "idle_input_ns", waited_ns, "ns", "GPU idle time due to data loading"
                ),
                context.evidence(
                    "input_ns", worker_ns, "ns", "Data loading time of the launching thread"
                ),
                Evidence("gpu_busy", busy_share(context), "share", "GPU busy"),
            ),
            confidence=confidence,
            confidence_reason=reason,
            change=(without_host_time(calls, removed[calls]),),
            min_ns=at_most(context, waited_ns),
            floor_ns=_shortest_ns(context, where, worker_ns),
            measured_ns=waited_ns,
            fix=_fix(context, where, worker_ns, unnamed=unnamed, certain=certain)
            + _rare(context, spent),
            effort=framework.choose(torch="config", cuda="rewrite"),
            where=where,
            lines=lines,
        )

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find idle time in which the host was busy with input."""
        return idle_by_cause(context, finding, IdleCause.INPUT)


def _shortest_ns(
    context: RuleContext, where: tuple[FindingLocation, ...], worker_ns: float
) -> float:
    """Return the least time that the window takes while workers load its batches; 0: not known."""
    has_workers = bool(where) and all(is_locked(w.name) or _WAITS.search(w.name) for w in where)
    return 0.0 if has_workers or context.framework is not Framework.TORCH else worker_ns / WORKERS


_WAITS = re.compile(r"(?i)^(?:\w*sleep|e?p?poll\w*|p?select|epoll_\w+|recv\w*|accept4?)\b")
"""Waits that may be for data or for anything else."""


def _fix(
    context: RuleContext,
    where: tuple[FindingLocation, ...],
    worker_ns: float,
    *,
    unnamed: bool,
    certain: bool,
) -> str:
    source = named(where, "range", "operator", "call", "site")
    what = f"Move {source}" if source else "Move data loading"
    time = context.time_per_step(worker_ns)
    advice = f"{what} ({time}) off the launching thread. "
    if unnamed:
        advice = (
            f"The launching thread prepares {time} for H2D copies. If it loads data, move it off "
            "that thread. "
        )
    elif not certain:
        advice = f"Remove the wait, unless it is for data. {advice}"
    elif where and all(is_locked(w.name) for w in where):
        more = context.framework.choose(
            torch="Use more DataLoader workers or a larger prefetch_factor. "
            "persistent_workers=True keeps them from one epoch to the next.",
            cuda="Use more threads that load data, and more buffers ahead.",
            jax="Use more threads or processes that load data, and a longer queue.",
        )
        return f"The launching thread waits for batches in {source} ({time}). {more}"
    return (
        advice
        + context.framework.choose(
            torch="Use DataLoader workers (num_workers > 0, pin_memory=True, persistent_workers, "
            "prefetch_factor), or a thread that fills a queue.",
            cuda="Use a thread that fills a ring of pinned buffers ahead of the launches.",
            jax="Use a thread or process that prepares batches and calls jax.device_put.",
        )
        + f" One worker still takes {time}; use several in parallel."
    )


def _rare(context: RuleContext, spent_ns: Ints) -> str:
    """Say how long the longest stall is, where few take most of the time."""
    longest_ns = float(spent_ns.max(initial=0))
    if longest_ns <= MIN_RARE_RATIO * float(spent_ns.sum()) / context.per_step:
        return ""
    return f" Few stalls dominate: the longest takes {format_time(longest_ns, digits=3)}."
