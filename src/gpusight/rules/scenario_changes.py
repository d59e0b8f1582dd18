"""Turns what-if scenarios into changes of the sample, and replays them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis import scenario as words
from gpusight.analysis.counters.counter_selection import kernel_codes
from gpusight.analysis.gpu_schedule import NONE, CallKind
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.replay.changes import (
    as_graphs,
    free_calls,
    own_stream,
    remove,
    set_duration,
    without_host_time,
    without_waiting,
)
from gpusight.analysis.scenario import COMMAND, ScenarioAction, replayed
from gpusight.analysis.selection import EVERYTHING, ResolvedSelection, Selection
from gpusight.analysis.steps.step_window import step_window
from gpusight.errors import UsageError
from gpusight.results import NotApplicable
from gpusight.rules.context import sample_steps
from gpusight.rules.engine import MAX_REPLAY_ERROR
from gpusight.rules.patterns import memcpys
from gpusight.rules.patterns.fp32_gemms import gemms_on_cuda_cores, targets, without_memory_bound
from gpusight.rules.patterns.host_gaps import before_calls, spent_before
from gpusight.rules.registry import select_rules, timeline_rules
from gpusight.rules.rule import RuleMatch, RuleNotApplicable
from gpusight.trace.intervals import Intervals, clip, contains, coverage
from gpusight.units import format_share

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analysis.replay.changes import Change
    from gpusight.analysis.replay.simulation import Flags, ReplayProgram
    from gpusight.analysis.scenario import Scenario, WhatIf
    from gpusight.rules.context import RuleContext
    from gpusight.rules.patterns.fp32_gemms import TensorFormat
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


Changes = tuple["Change", ...]


def what_if(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    scenarios: Sequence[Scenario],
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
) -> WhatIf | NotApplicable:
    """Replay the steps of a capture with all scenarios, in their order."""
    if not scenarios:
        raise UsageError(
            "whatif needs something to change",
            hint="give for example --speedup matmul=4x, --remove sync or --graph",
        )
    focus = step_window(trace, selection, steps=steps, window=window, warmup=warmup)
    if isinstance(focus, NotApplicable):
        return replace(focus, command=COMMAND)
    context = sample_steps(trace, focus, selection)
    if not len(context.schedule.ops):
        return NotApplicable(COMMAND, "no GPU work ran in the window", advice_for(trace.meta).gpu)
    changes = [(scenario.text, changes_of_scenario(context, scenario)) for scenario in scenarios]
    result = replayed(
        context.replay,
        changes,
        before=context.ledger,
        steps=context.steps,
        meta={"path": trace.meta.path},
        notes=(*focus.notes, *_notes(context)),
    )
    return result if selection.device is None else result.of_device(selection.device)


def changes_of_scenario(context: RuleContext, scenario: Scenario) -> Changes:
    """Return the changes that a scenario stands for; raises UsageError where it means nothing."""
    if scenario.verb is ScenarioAction.GRAPH:
        return (as_graphs(),)
    if scenario.verb is ScenarioAction.SPEEDUP:
        return _faster(context, scenario)
    if scenario.verb is ScenarioAction.PRECISION:
        return _in_precision(context, scenario.target)
    if scenario.verb is ScenarioAction.REMOVE:
        return _removed(context, scenario)
    if scenario.verb is ScenarioAction.OVERLAP:
        return _overlapped(context, scenario.target)
    if scenario.verb is ScenarioAction.FUSE:
        return _fix_of(context, _rule_of(scenario))
    return _fix_of(context, scenario.target)


def _notes(context: RuleContext) -> list[str]:
    notes = []
    if context.part:
        notes.append(f"replayed were {context.part} from the middle of the window")
    if context.replay.error > MAX_REPLAY_ERROR:
        error = format_share(context.replay.error)
        notes.append(f"the replay misses the measured time by {error}: do not trust small gains")
    return notes


# Faster -------------------------------------------------------------------------------------------


def _faster(context: RuleContext, scenario: Scenario) -> Changes:
    if scenario.target == words.HOST:
        return (_faster_host(scenario.factor),)
    rows = _work(context, scenario.target)
    shorter = (rows["duration_ns"].to_numpy() / scenario.factor).astype(np.int64)
    return (set_duration(rows["op"].to_numpy(), shorter),)


def _faster_host(factor: float) -> Change:
    """Let the host take less time for its own work, in calls and between them."""

    def sooner(ns: Ints) -> Ints:
        return np.where(ns > 0, ns / factor, ns).astype(np.int64)

    def change(program: ReplayProgram) -> ReplayProgram:
        return program.changed(
            gap_ns=sooner(program.gap_ns),
            movable_ns=sooner(program.movable_ns),
            own_ns=sooner(program.own_ns),
        )

    return change


def _in_precision(context: RuleContext, precision: str) -> Changes:
    """Let products in FP32 on lanes run on tensor cores, with the casts of autocast."""
    target = _target(context, precision)
    rows = without_memory_bound(context, gemms_on_cuda_cores(context.kernels))
    if rows.is_empty():
        why = "no matrix product or convolution runs in FP32 without tensor cores"
        raise UsageError(f"{target.name} changes nothing", why=why, hint=_KERNELS_HINT)
    return target.change(context, rows)


def _target(context: RuleContext, precision: str) -> TensorFormat:
    """Return the rate of a number format on the GPU of the capture."""
    gpu = context.gpu
    if gpu is None:
        why = "it is not known what the GPU can do"
        raise UsageError(f"products in {precision} cannot be replayed", why=why)
    known = {target.precision: target for target in targets(gpu)}
    # Both half precisions run alike; rules propose only one of them.
    half = next((target for target in known.values() if target.casts), None)
    if precision not in known and precision in _HALVES and half is not None:
        rate = getattr(gpu.tensor, precision)
        if rate and gpu.vector.fp32:
            return replace(half, precision=precision, ratio=rate / gpu.vector.fp32)
    if precision not in known:
        why = f"{gpu.name} has no tensor cores that would be faster with it"
        hint = f"it has them for {', '.join(known)}" if known else ""
        raise UsageError(f"products in {precision} cannot be replayed", why=why, hint=hint)
    return known[precision]


_HALVES = ("bf16", "fp16")
_KERNELS_HINT = "see: gpusight kernels FILE"


def _work(context: RuleContext, target: str) -> pl.DataFrame:
    """Find the GPU work that a target names."""
    ops = context.ops
    if target.startswith(words.KERNEL):
        return _named(ops, target.removeprefix(words.KERNEL))
    if target.startswith(words.RANGE):
        spans = _spans(context, target.removeprefix(words.RANGE))
        return _require_rows(context, ops.filter(pl.Series(_launched_in(context, spans))), target)
    if target == words.COPIES:
        return _require_rows(context, ops.filter(pl.col("kind") == "copy"), target)
    if target == words.KERNELS:
        return _require_rows(context, ops.filter(pl.col("kind").is_in(["kernel", "graph"])), target)
    return _require_rows(context, ops.filter(pl.col("category") == target), target)


def _named(ops: pl.DataFrame, pattern: str) -> pl.DataFrame:
    kernels = ops.filter(pl.col("kind") == "kernel")
    names = dict(enumerate(kernels.select("name", "label").unique(maintain_order=True).rows()))
    found = [names[code][0] for code in kernel_codes(names, pattern)]
    return kernels.filter(pl.col("name").is_in(found))


def _spans(context: RuleContext, pattern: str) -> Intervals:
    """Return the times in which ranges of a name were open."""
    found = ResolvedSelection(context.trace, Selection(within=pattern)).spans
    return Intervals.from_arrays(found["start_ns"].to_numpy(), found["end_ns"].to_numpy())


def _launched_in(context: RuleContext, spans: Intervals) -> Flags:
    """Return which work was launched at these times; without a call its own start decides."""
    ops, calls = context.schedule.ops, context.schedule.calls
    known = ops.call != NONE
    when = np.where(known, np.append(calls.start_ns, 0)[ops.call], ops.start_ns)
    return contains(spans, when)


def _require_rows(context: RuleContext, rows: pl.DataFrame, target: str) -> pl.DataFrame:
    """Refuse a target that nothing in the replayed time is meant by."""
    if rows.height:
        return rows
    raise _nothing(target, f"it has {_present(context)}")


def _nothing(target: str, why: str) -> UsageError:
    hint = "see: gpusight ledger FILE"
    return UsageError(f"nothing of {target!r} is in the replayed time", why=why, hint=hint)


def _present(context: RuleContext) -> str:
    """Name the categories of the kernels, the longest first."""
    by_category = context.kernels.group_by("category").agg(pl.col("duration_ns").sum())
    ranked = by_category.sort("duration_ns", "category", descending=[True, False])
    return ", ".join(ranked["category"].to_list()) or "no kernels"


# Removed ------------------------------------------------------------------------------------------


def _removed(context: RuleContext, scenario: Scenario) -> Changes:
    target = scenario.target
    if target == words.SYNC:
        return (without_waiting(_waiting(context)),)
    if target == words.INPUT:
        return (_without_input(context),)
    if target == words.ALLOC:
        kinds = (CallKind.ALLOCATE, CallKind.FREE)
        return (free_calls(_calls(context, np.isin(context.schedule.calls.kind, kinds), target)),)
    if target == words.OVERHEAD:
        return _fix_of(context, _rule_of(scenario))
    if target.startswith(words.RANGE):
        return _without_range(context, target)
    return _vanished(_work(context, target))


def _vanished(rows: pl.DataFrame) -> Changes:
    calls = rows["call"].drop_nulls().unique().to_numpy()
    return without_waiting(calls), remove(rows["op"].to_numpy())


def _without_range(context: RuleContext, target: str) -> Changes:
    """Let ranges vanish with what they launched, their calls and their host work."""
    schedule = context.schedule
    spans = clip(
        _spans(context, target.removeprefix(words.RANGE)), schedule.start_ns, schedule.end_ns
    )
    if not len(spans):
        raise _nothing(target, "such ranges are open at other times")
    launched = context.ops.filter(pl.Series(_launched_in(context, spans)))
    return (*_vanished(launched), *_without_host_work(context, spans))


def _waiting(context: RuleContext) -> Ints:
    """Find the calls that wait for the GPU: synchronisations, and copies that block."""
    kinds = np.isin(context.schedule.calls.kind, (CallKind.SYNC, CallKind.COPY))
    return _calls(context, kinds & (context.replay.program.wait != 0), words.SYNC)


def _calls(context: RuleContext, chosen: Flags, target: str) -> Ints:
    calls: Ints = np.flatnonzero(chosen)
    if not len(calls):
        raise _nothing(target, f"none of its {len(context.schedule.calls):,} calls is one")
    return calls


def _without_input(context: RuleContext) -> Change:
    spent = spent_before(context)[:, IdleCause.INPUT]
    calls = np.flatnonzero(spent)
    if not len(calls):
        raise _nothing(words.INPUT, "no host time is known to be spent on input")
    return without_host_time(calls, spent[calls])


def _without_host_work(context: RuleContext, spans: Intervals) -> Changes:
    """Let calls made at these times, and host work between calls then, take no time."""
    starts, ends = before_calls(context)
    inside = np.flatnonzero(contains(spans, context.schedule.calls.start_ns))
    every = np.arange(len(starts))
    return free_calls(inside), without_host_time(every, coverage(spans, starts, ends))


# Overlapped, and fixes that rules know ------------------------------------------------------------


def _overlapped(context: RuleContext, target: str) -> Changes:
    if target == words.COPIES:
        crossing = memcpys.copies(context).filter(
            pl.col("way").is_in(list(memcpys.DIRECTION_NAMES))
        )
        return memcpys.overlap_copies(context, _require_rows(context, crossing, target))
    rows = _work(context, target)
    return own_stream(rows["op"].to_numpy()), memcpys.not_waiting_for(context, rows)


def _rule_of(scenario: Scenario) -> str:
    """Return the rule whose fix a scenario is."""
    words = f"{scenario.verb.value} {scenario.target}"
    return next(rule.id for rule in timeline_rules().values() if rule.scenario == words)


def _fix_of(context: RuleContext, name: str) -> Changes:
    """Return the change that a rule proposes for what it finds."""
    verdict = select_rules(timeline_rules(), [name])[name].check(context)
    if isinstance(verdict, RuleMatch) and verdict.change:
        return verdict.change
    if isinstance(verdict, RuleNotApplicable):
        raise UsageError(f"{name} cannot be judged", why=verdict.reason)
    why = "what it finds costs no time that a replay could tell"
    raise UsageError(
        f"there is no fix of {name} to replay",
        why=why if isinstance(verdict, RuleMatch) else "the program does not have that problem",
        hint="see: gpusight diagnose FILE",
    )
