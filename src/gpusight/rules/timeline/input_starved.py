"""input-starved: the GPU waits while the launching thread reads or prepares data."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import numpy as np

from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.replay.changes import without_host_time
from gpusight.rules.finding import Confidence, Evidence
from gpusight.rules.formatting import (
    by_step,
    framework_of,
    largest,
    named,
    of_each_step,
    step_evidence,
)
from gpusight.rules.locations import idle_by_cause
from gpusight.rules.patterns.host_gaps import (
    at_most,
    behind,
    busy_share,
    host_unknown,
    idle_ns,
    spent_before,
)
from gpusight.rules.rule import CLEAN, RuleMatch, RuleNotApplicable, Threshold, TimelineRule
from gpusight.units import format_time

if TYPE_CHECKING:
    import polars as pl

    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import FindingLocation, RuleVerdict


MIN_IDLE_SHARE = Threshold(
    0.01, "part of the time in which the GPU waits for input; below, loading it elsewhere is noise"
)
_NAMING_TABLES = ("ranges", "cpu_ops", "python_calls", "os_calls")


class InputStarved(TimelineRule):
    """Input on the thread that launches."""

    id = "input-starved"
    detects = (
        "Looks for time in which the GPU has nothing to do because the thread that launches reads, "
        "decodes, prepares or waits for data. Ranges, operators, Python functions and calls of the "
        "operating system tell it by their names."
    )
    why = (
        "What the launching thread does for the input it cannot do for the GPU: nothing is "
        "launched meanwhile, and once the work issued before is done the GPU stands still."
    )
    fix = (
        "Load and prepare input in other processes or threads, ahead of the step that needs it, so "
        "that the launching thread only takes a batch that is ready."
    )
    code = """\
loader = DataLoader(
    dataset, batch_size=..., num_workers=8, pin_memory=True,
    prefetch_factor=4, persistent_workers=True,
)
for batch in loader:
    batch = batch.to("cuda", non_blocking=True)
"""
    verify = (
        "`gpusight ledger` shows no `idle/input`. What is left of it means that the workers are "
        "too few or the storage too slow."
    )
    caveats = (
        "A range whose name speaks of data may do other work; a program that waits for requests "
        "(a server without load) waits for input by nature."
    )
    estimate = (
        "Replay without the time for input before each call: enough workers prepare it beside. "
        "No more than the GPU waited for input. With one worker a step cannot be shorter than its "
        "input takes."
    )
    thresholds: ClassVar = {"min_idle_share": MIN_IDLE_SHARE}

    def check(self, context: RuleContext) -> RuleVerdict:
        """Measure the host's time for input, and what the GPU waited for it."""
        if (unknown := host_unknown(context)) is not None:
            return unknown
        if not any(context.trace.has(table) for table in _NAMING_TABLES):
            return RuleNotApplicable(
                "nothing names what the host did: no ranges, operators or OS calls"
            )
        waited_ns = idle_ns(context, IdleCause.INPUT)
        if waited_ns < MIN_IDLE_SHARE.value * context.length_ns:
            return CLEAN
        spent = spent_before(context)[:, IdleCause.INPUT]
        calls = np.flatnonzero(spent)
        places = behind(context, IdleCause.INPUT)
        where = largest(places["range"], places["operator"], places["call"], places["site"])
        # The time for input of the thread that spends most on it.
        lanes = context.schedule.calls.lane
        worker_ns = float(np.bincount(lanes, spent).max()) if len(lanes) else 0.0
        source = named(where, "range", "operator", "call", "site", most=1) or "Input"
        return RuleMatch(
            title=f"{source} keeps the GPU waiting for {of_each_step(context, waited_ns)}",
            evidence=_evidence(context, waited_ns, worker_ns),
            confidence=Confidence.HIGH,
            confidence_reason="what the host did and what the GPU waited for were measured",
            change=(without_host_time(calls, spent[calls]),),
            min_ns=at_most(context, waited_ns),
            fix=_fix(context, where, worker_ns),
            code=framework_of(context.trace).choose(torch=InputStarved.code, cuda=_CUDA, jax=_JAX),
            where=where,
        )

    def locate(self, context: RuleContext, finding: TimelineFinding) -> pl.DataFrame:
        """Find idle time in which the host was busy with input."""
        return idle_by_cause(context, finding, IdleCause.INPUT)


def _evidence(context: RuleContext, waited_ns: int, worker_ns: float) -> tuple[Evidence, ...]:
    return (
        step_evidence(
            context, "idle_input_ns", waited_ns, "ns", "Time in which the GPU waits for input"
        ),
        Evidence(
            "input_ns",
            worker_ns / context.per_step,
            "ns",
            by_step(context, "Time that the launching thread spends on input")
            + "; with one worker a step cannot be shorter",
        ),
        Evidence("gpu_busy", busy_share(context), "share", "Part of the time the GPU works"),
    )


def _fix(context: RuleContext, where: tuple[FindingLocation, ...], worker_ns: float) -> str:
    source = named(where, "range", "operator", "call", "site")
    what = f"Move what {source} does" if source else "Move the input work"
    time = by_step(context, format_time(worker_ns / context.per_step))
    return (
        f"{what} ({time}) off the thread that launches: "
        + framework_of(context.trace).choose(
            torch="DataLoader workers (num_workers > 0, persistent_workers, prefetch_factor), or a "
            "thread that fills a queue.",
            cuda="a thread that fills a ring of pinned buffers ahead of the launches.",
            jax="a thread or process that prepares batches ahead and calls jax.device_put.",
        )
        + f" One worker still needs {time} for its input; enough of them in parallel hide it."
    )


_CUDA = """\
std::thread loader([&] {                       // fills buffers ahead of the launches
  for (int i = 0; i < steps; ++i) { ring.wait_free(); read_batch(ring.slot(i)); ring.push(); }
});
for (int i = 0; i < steps; ++i) {
  float* host = ring.pop();                    // pinned, ready
  cudaMemcpyAsync(device, host, bytes, cudaMemcpyHostToDevice, stream);
  step<<<grid, block, 0, stream>>>(device);
}
"""
_JAX = """\
batches = queue.Queue(maxsize=4)
def load():
    for batch in dataset:
        batches.put(jax.device_put(batch))
threading.Thread(target=load, daemon=True).start()
for _ in range(steps):
    state = train_step(state, batches.get())
"""
