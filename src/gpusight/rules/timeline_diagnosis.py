"""The bottlenecks of a timeline, ranked by the time that fixes save, and where they happen.

Also what the replay behind these times leaves out.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.capture_completeness import lost_sources, recorded_note, reported_losses
from gpusight.analysis.capture_info import names_of_used
from gpusight.analysis.clock_alignment import aligned, clock_shifts
from gpusight.analysis.corrected_trace import correction_of, recorded_span
from gpusight.analysis.kernel_summary import graph_notes, short_names
from gpusight.analysis.profiler_correction import without_profiler
from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.selection import EVERYTHING, GPU_WORK, Selection
from gpusight.analysis.steps.step_list import called
from gpusight.analysis.steps.step_window import step_window
from gpusight.naming.host_names import is_waiting
from gpusight.naming.kernel_names import classify
from gpusight.naming.name_parts import normal_name
from gpusight.results import NotApplicable
from gpusight.rules.context import preload_tables, process_names, sample_steps, whole_ledger
from gpusight.rules.diagnosis import COMMAND, ReplayFacts, TimelineDiagnosis
from gpusight.rules.engine import MAX_REPLAY_ERROR, run_timeline_rules
from gpusight.rules.formatting import quoted_name
from gpusight.rules.locations import CANDIDATES, events_named, of_steps, single_span
from gpusight.rules.patterns.host_gaps import launching_thread
from gpusight.rules.registry import select_rules, timeline_rules
from gpusight.rules.rule import UNKNOWN_PEAKS, UNKNOWN_SMS
from gpusight.rules.timeline.gil_contention import MIN_WAIT_SHARE, is_python, lock_waits
from gpusight.trace.intervals import Intervals, clip, intersect, subtract, union
from gpusight.units import format_share, format_time

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from gpusight.analysis.ledger.accounting import Accounting
    from gpusight.analysis.steps.step_list import TraceStep
    from gpusight.analysis.steps.window_headline import StepWindow
    from gpusight.rules.context import RuleContext
    from gpusight.rules.finding import TimelineFinding
    from gpusight.rules.rule import TimelineRule
    from gpusight.trace.trace import Trace


def diagnose_timeline(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    rules: Sequence[str] = (),
    extra_rules: Sequence[TimelineRule] = (),
    known: Accounting | None = None,
) -> TimelineDiagnosis | NotApplicable:
    """Run all rules, or only `rules`, and rank their findings.

    `known` is used where it is of the same window, instead of computing the ledger again.
    """
    selected = select_rules(timeline_rules() | {rule.id: rule for rule in extra_rules}, rules)
    preload_tables(trace)
    trace = aligned(without_profiler(trace, selection.process))
    focus = step_window(trace, selection, steps=steps, window=window, warmup=warmup)
    if isinstance(focus, NotApplicable):
        return replace(focus, command=COMMAND)
    context = sample_steps(trace, focus, selection)
    if not len(context.schedule.ops):
        lost = next(iter(lost_sources(trace, context.issued).values()), "")
        reason = f"no GPU activity in the window{lost and f': {lost}'}"
        return NotApplicable(COMMAND, reason, advice_for(trace.meta).gpu)
    results = run_timeline_rules(context, selected.values())
    incomplete = (
        *(shift.described() for shift in clock_shifts(trace)),
        *lost_sources(trace, context.issued).values(),
        *reported_losses(trace),
    )
    gpu = names_of_used(trace, context.ops["device"].unique())
    return TimelineDiagnosis(
        focus=focus,
        findings=results.findings,
        clean=results.clean,
        not_applicable={rule: verdict.reason for rule, verdict in results.not_applicable.items()},
        covered=results.covered,
        ledger=whole_ledger(focus, context, selection, known),
        replay=ReplayFacts(
            context.replay.error, context.steps, context.length_ns, not_modeled(context)
        ),
        meta={
            "path": trace.meta.path,
            "tool": trace.meta.tool,
            "gpu": gpu,
            "device": context.device,
        },
        correction=correction_of(trace),
        has_shapes=trace.has("cpu_ops", "shapes"),
        rules=selected,
        selection=selection,
        incomplete=incomplete,
        # What matters most for the result first: the screen has room for one.
        notes=(
            *(f"the environment of the capture has {text}" for text in trace.meta.debug_settings),
            *graph_notes(trace, focus.time),
            *sample_notes(context, selection),
            *_unknown_gpu_note(gpu, results.lacking_data),
            *focus.notes,
            *recorded_note(context.issued),
        ),
    ).with_warnings(())


def sample_notes(context: RuleContext, selection: Selection) -> list[str]:
    """Return notes on the size of the sample, the error of its replay and other processes."""
    notes = []
    if context.part:
        notes.append(f"findings are from {context.part} of the window, scaled to all of it")
    if context.replay.error > MAX_REPLAY_ERROR:
        error = format_share(context.replay.error)
        notes.append(f"simulation error {error}: savings are uncertain")
    processes = gpu_processes(context.trace)
    if processes > 1 and selection.process is None:
        notes.append(
            f"{processes} processes used GPUs: one is evaluated; --process selects another"
        )
    return notes


def _unknown_gpu_note(gpu: str | None, lacking: Mapping[str, str]) -> list[str]:
    """Name the rules that need to know the GPU, where the capture does not name a known one."""
    rules = [rule for rule, why in lacking.items() if why in (UNKNOWN_PEAKS, UNKNOWN_SMS)]
    why = (
        "the GPU is unknown"
        if gpu is None
        else f"no specifications of {quoted_name(gpu)} are known"
    )
    return [f"{why}: not evaluated: {', '.join(rules)}"] if rules else []


def gpu_processes(trace: Trace) -> int:
    """Count the processes that used a GPU."""
    tables = [trace.table(table, ["process"]) for table in GPU_WORK if trace.has(table)]
    return pl.concat(tables)["process"].drop_nulls().n_unique()


# Where findings happen ----------------------------------------------------------------------------


MAX_LOCATIONS = 8
"""Locations of a finding, unless more are requested."""
_MAX_NAME_LENGTH = 80
_SAME_LENGTH = 0.01
"""Spans whose lengths with and without the profiler differ by less show the same time."""


@dataclass(frozen=True, slots=True)
class TimelineLocation:
    """A time span that shows a finding."""

    start_ns: int
    end_ns: int
    label: str
    """Such as `step 5: data 10.1 ms`."""
    table: str | None = None
    """Table of the event to select there; None for a span that is not one event."""
    row: int | None = None


class FindingLocator:
    """Finds where the findings of one diagnosis happen."""

    def __init__(self, trace: Trace, diagnosis: TimelineDiagnosis) -> None:
        self._trace = aligned(without_profiler(trace, diagnosis.selection.process))
        self._focus = diagnosis.focus
        self._rules = diagnosis.rules
        self._selection = diagnosis.selection

    @cached_property
    def _context(self) -> RuleContext:
        return sample_steps(self._trace, self._focus, self._selection)

    def of(
        self, finding: TimelineFinding, most: int = MAX_LOCATIONS
    ) -> tuple[TimelineLocation, ...]:
        """Return the best locations of a finding, of different steps first; at least one."""
        rule = self._rules.get(finding.rule)
        spans = None if rule is None else rule.locate(self._context, finding)
        if spans is None or spans.is_empty():
            spans = events_named(self._context, finding)
        if spans.is_empty():
            spans = single_span(self._focus.start_ns, self._focus.end_ns, "window")
            if self._focus.steps:
                spans = of_steps([self._focus.steps[len(self._focus.steps) // 2]])
        if "priority" not in spans.columns:
            spans = spans.with_columns(pl.col("weight_ns").cast(pl.Float64).alias("priority"))
        if "gpu_time" not in spans.columns:
            spans = spans.with_columns(pl.lit(value=False).alias("gpu_time"))
        return _best_locations(self._trace, spans, self._focus.steps, most)

    def of_kernel(self, kernel: str, most: int = MAX_LOCATIONS) -> tuple[TimelineLocation, ...]:
        """Return the longest launches of a kernel in the window; the window where it has none."""
        launches = locations_of_kernels(self._trace, kernel, self._focus, most)
        window = (self._focus.start_ns, self._focus.end_ns)
        start_ns, end_ns, _ = recorded_span(self._trace, *window, None, None)
        return launches or (TimelineLocation(start_ns, end_ns, "the evaluated window"),)


def locations_of_kernels(
    trace: Trace, kernel: str, focus: StepWindow | None = None, most: int = MAX_LOCATIONS
) -> tuple[TimelineLocation, ...]:
    """Return the longest launches of a kernel that another capture names; none if it never runs.

    With a `focus`, only those that begin in its window, of different steps first.
    """
    if not trace.has("kernels"):
        return ()
    frame = trace.table("kernels", ["start_ns", "end_ns", "name"]).with_row_index("row")
    names = frame["name"]
    texts, wanted = names_of(names), normal_name(kernel)
    codes = [code for code, name in enumerate(texts) if normal_name(name) == wanted]
    label = classify(kernel).short
    launches = frame.filter(
        pl.col("name")
        .to_physical()
        .is_in(codes or [code for code, name in enumerate(texts) if classify(name).short == label])
    )
    launches = launches.with_columns(short_names(launches["name"]))
    if focus is not None:
        inside = pl.col("start_ns").is_between(focus.start_ns, focus.end_ns, "left")
        launches = launches.filter(inside)
    duration_ns = pl.col("end_ns") - pl.col("start_ns")
    spans = launches.select(
        "start_ns",
        "end_ns",
        duration_ns.alias("weight_ns"),
        pl.col("short_name").alias("name"),
        pl.lit("kernels").alias("table"),
        pl.col("row").cast(pl.Int64),
        duration_ns.cast(pl.Float64).alias("priority"),
        pl.lit(value=True).alias("gpu_time"),
    )
    return _best_locations(trace, spans, () if focus is None else focus.steps, most)


def _best_locations(
    trace: Trace, spans: pl.DataFrame, steps: Sequence[TraceStep], most: int
) -> tuple[TimelineLocation, ...]:
    """Choose the best span of each step, then the second of each, and so on.

    They are where the capture shows them, with the times of the profiler.
    """
    middle_ns = spans.select((pl.col("start_ns") + pl.col("end_ns")) // 2).to_series().to_numpy()
    step_index = np.searchsorted([step.start_ns for step in steps], middle_ns, side="right") - 1
    rows = (
        spans.with_columns(pl.Series("step", step_index, pl.Int64))
        .unique(["start_ns", "end_ns", "name"], keep="first", maintain_order=True)
        .sort("priority", "start_ns", descending=[True, False])
        .with_columns(pl.int_range(pl.len()).over("step").alias("rank_in_step"))
        .sort("rank_in_step", maintain_order=True)
        .head(max(1, most))
    )
    locations = []
    for start_ns, end_ns, weight_ns, name, table, row, gpu_time, at in rows.select(
        *CANDIDATES, "gpu_time", "step"
    ).iter_rows():
        first_ns, last_ns, recorded_row = recorded_span(trace, start_ns, end_ns, table, row)
        length_ns, recorded_ns = end_ns - start_ns, last_ns - first_ns
        time = format_time(recorded_ns if weight_ns == length_ns else weight_ns)
        moved = abs(recorded_ns - length_ns) > _SAME_LENGTH * length_ns
        if moved and weight_ns != length_ns and not gpu_time:
            time = f"{time} without the profiler"
        label = f"{name[:_MAX_NAME_LENGTH]} {time}"
        if at >= 0 and name != called(steps[at]):
            label = f"{called(steps[at])}: {label}"
        locations.append(TimelineLocation(first_ns, last_ns, label, table, recorded_row))
    return tuple(locations)


# What the replay leaves out -----------------------------------------------------------------------


MIN_OTHERS_SHARE = 0.01
"""Share of the time that another process, or a collective, must have to be named."""
MIN_PREEMPTED_SHARE = 0.05
"""Share of the time that the launching thread must be off the CPU without waiting."""
MIN_DRIFT = 0.05
"""Part by which the same kernels must take longer in slow steps than in fast ones."""
_MIN_STEPS = 5
"""Steps that show whether kernels drift."""
_LONG_NS = 20_000
"""Shorter kernels vary for other reasons than clocks."""


def not_modeled(context: RuleContext) -> dict[str, str]:
    """Return a line for each condition; most captures show none.

    The key is the rule whose fix models the condition, or a name of it.
    """
    lines = {
        "gpu-shared": _other_processes(context),
        "other ranks": _other_ranks(context),
        "gil-contention": _gil(context),
        "preemption": _preemption(context),
        "clocks": _clocks(context),
    }
    return {topic: line for topic, line in lines.items() if line}


def _other_processes(context: RuleContext) -> str:
    sharing = context.replay.sharing
    if sharing is None or sharing.others_share < MIN_OTHERS_SHARE:
        return ""
    names = ", ".join(process_names(context)) or "another process"
    share = format_share(sharing.others_share)
    return f"{names} on the same GPU: simulations keep its share, {share} of the time"


def _other_ranks(context: RuleContext) -> str:
    collectives = context.kernels.filter(pl.col("category") == "communication")
    if int(collectives["duration_ns"].sum()) < MIN_OTHERS_SHARE * context.length_ns:
        return ""
    return "other ranks: collectives keep their measured durations, with the time that ranks wait"


def _gil(context: RuleContext) -> str:
    if not is_python(context):
        return ""
    waited_ns = int(lock_waits(context)["duration_ns"].sum())
    if waited_ns < MIN_WAIT_SHARE.value * context.length_ns:
        return ""
    waits = context.time_per_step(waited_ns)
    return f"Python threads that hold the GIL: the launching thread waits for it {waits}, as now"


def _preemption(context: RuleContext) -> str:
    """Measure how long the launching thread was off the CPU outside of calls that wait."""
    trace, schedule = context.trace, context.schedule
    if not trace.has("thread_switches"):
        return ""
    calls = schedule.calls
    on_thread = np.flatnonzero(calls.host_thread == launching_thread(context))
    threads = [schedule.threads[at][1] for at in np.unique(calls.thread[on_thread])]
    switches = trace.table("thread_switches", ["time_ns", "scheduled_in", "thread"])
    on = pl.col("scheduled_in")
    off = switches.filter(pl.col("thread").is_in(threads)).sort("time_ns")
    off = off.with_columns(pl.col("time_ns").shift(-1).over("thread").alias("until_ns"))
    off = off.filter(~on).drop_nulls("until_ns")
    if off.is_empty():
        return ""
    window = schedule.start_ns, schedule.end_ns
    spans = Intervals.from_arrays(off["time_ns"].to_numpy(), off["until_ns"].to_numpy())
    waiting = on_thread[context.replay.program.wait[on_thread] != 0]
    waits = Intervals.from_arrays(calls.start_ns[waiting], calls.end_ns[waiting])
    if trace.has("os_calls"):
        os_calls = trace.table("os_calls", ["start_ns", "end_ns", "name", "thread"])
        os_calls = os_calls.filter(pl.col("thread").is_in(threads))
        named = os_calls["name"].cast(pl.String).unique().to_list()
        names = [name for name in named if is_waiting(name)]
        blocked = os_calls.filter(pl.col("name").cast(pl.String).is_in(names))
        starts, ends = (blocked[column].to_numpy() for column in ("start_ns", "end_ns"))
        waits = union(waits, Intervals.from_arrays(starts, ends))
    off_ns = subtract(clip(spans, *window), intersect(spans, waits)).length_ns
    if off_ns < MIN_PREEMPTED_SHARE * context.length_ns:
        return ""
    lost = context.time_per_step(off_ns)
    return f"other threads that compete for the CPU: the launching thread is off it {lost}"


def _clocks(context: RuleContext) -> str:
    """Compare the GPU time of steps that run the same long kernels."""
    if context.replay.sharing is not None:  # other processes explain it better
        return ""
    long = context.kernels.filter(
        pl.col("duration_ns") >= _LONG_NS, pl.col("category") != "communication"
    ).drop_nulls("step")
    steps = long.group_by("step").agg(
        pl.col("duration_ns").sum(),
        pl.struct("name", "blocks", "threads").hash().sum().alias("same"),
    )
    # Steps of other shapes take other times for other reasons.
    usual = steps.filter(pl.col("same") == pl.col("same").mode().first())
    if usual.height < _MIN_STEPS:
        return ""
    low, high = (float(usual["duration_ns"].quantile(q) or 0.0) for q in (0.1, 0.9))
    if high < (1 + MIN_DRIFT) * low:
        return ""
    longer = format_share(high / low - 1)
    causes = "GPU clocks under load, or processes that the capture lacks"
    return f"{causes}: the same kernels take {longer} longer in some steps than in others"
