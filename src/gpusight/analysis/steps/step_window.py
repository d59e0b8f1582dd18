"""The time window that every command covers by default: the steps without warm-up.

Where no steps are known, the whole capture without the start of the program.
"""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.launch_index import done_ns, launched, of_process, took_ns
from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.selection import (
    ACTIVITY,
    EVERYTHING,
    ResolvedSelection,
    Selection,
    TimeWindow,
)
from gpusight.analysis.steps.step_detection import DetectedSteps, detect_steps
from gpusight.analysis.steps.step_list import (
    SCHEMA,
    InnerLoop,
    StepEvidence,
    StepList,
    TraceSteps,
    absent,
    called,
    find_steps,
    frame_of,
    parse_steps,
    shortened,
)
from gpusight.analysis.steps.unrepresentative_steps import LONG, MIN_STEPS, unrepresentative_steps
from gpusight.analysis.steps.window_headline import StepWindow, WindowKind
from gpusight.errors import UsageError
from gpusight.results import NotApplicable
from gpusight.trace.trace import Trace
from gpusight.units import format_time

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analysis.steps.step_list import TraceStep
    from gpusight.trace.intervals import Ints

    Bounds = tuple[int | None, int | None]


_MAX_NAMED = 3


def step_window(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    steps: str | None = None,
    window: Bounds | None = None,
    warmup: bool = False,
) -> StepWindow | NotApplicable:
    """Choose the time to analyze.

    `steps` by number (`3-7`, `5`, `2:`, `all`), `window` in nanoseconds from the capture's origin,
    either end open; both open for the whole capture. `warmup` keeps what would be left out: the
    steps of the warm-up or, where no steps are known, the start of the program.
    """
    if isinstance(trace, WindowedTrace):
        return trace.window(selection, steps=steps, window=window, warmup=warmup)
    if selection == EVERYTHING and steps is None and window is None and not warmup:
        return _default_window(trace)
    return _chosen_window(trace, selection, steps=steps, window=window, warmup=warmup)


class WindowedTrace(Trace):
    """A capture that knows its windows: one whose times were moved has the steps of its file."""

    def window(
        self, selection: Selection, *, steps: str | None, window: Bounds | None, warmup: bool
    ) -> StepWindow | NotApplicable:
        """Choose the time to analyze, as `step_window` does."""
        raise NotImplementedError


def window_steps(trace: Trace) -> TraceSteps | NotApplicable:
    """Return all steps that the default window knows, warm-up and partial ones included."""
    chosen = step_window(trace)
    if isinstance(chosen, NotApplicable):
        return find_steps(trace)
    if not chosen.steps:
        why = chosen.no_steps or "no complete step in the capture"
        return absent(trace, why + chosen.suggestions)
    every = StepList.of(chosen.steps, chosen.left_out).frame.sort("start_ns", maintain_order=True)
    return TraceSteps(StepList(every), chosen.how)


def steps_inside(trace: Trace, selection: Selection) -> int:
    """Count the steps of a selection that `with_window` limited to steps; 0 for any other."""
    time = selection.time
    if time is None or time.launch_end_ns is None or selection.within is not None:
        return 0
    steps = window_steps(trace)
    if isinstance(steps, NotApplicable):
        return 0
    return len(_inside(steps.steps, time.host_start_ns, time.launch_end_ns))


def _chosen_window(
    trace: Trace, selection: Selection, *, steps: str | None, window: Bounds | None, warmup: bool
) -> StepWindow | NotApplicable:
    if steps is not None and window is not None:
        raise UsageError("--steps and --window exclude each other", hint="pass one of them")
    whole = ResolvedSelection(trace, replace(selection, within=None)).window
    if not whole.length_ns:
        return _without_activity(trace, selection)
    detected = detect_steps(trace, selection)
    detected = replace(detected, notes=(*detected.notes, *_without_end(trace)))
    chosen: StepWindow | NotApplicable
    if steps is not None:
        chosen = _by_number(trace, detected, steps)
    elif window is not None:
        chosen = _by_time(trace, detected, window, (whole.start_ns, whole.end_ns))
    elif selection.within is not None:
        chosen = _by_range(trace, detected, None if warmup else _warm_up_end(trace, selection))
    elif isinstance(detected.steps, NotApplicable):
        more = _suggestions(trace, detected)
        chosen = StepWindow(whole.start_ns, whole.end_ns)
        chosen = _without_steps(chosen, detected.steps, detected.notes, more)
        chosen = chosen if warmup else _without_start(trace, chosen)
    else:
        chosen = _usual(trace, detected, detected.steps, warmup=warmup)
    if isinstance(chosen, NotApplicable):
        return chosen
    if not selection.rank:
        return replace(chosen, process=detected.process)
    process = f"process {selection.process}"
    note = f"steps are those of {process}, the {selection.rank}; --process selects another"
    process = f"{process} ({selection.rank}; others: --process)"
    return replace(chosen, process=process, notes=(note, *chosen.notes))


def _without_activity(trace: Trace, selection: Selection) -> NotApplicable:
    if selection and ResolvedSelection(trace).window.length_ns:
        hint = "processes, GPUs and ranges: gpusight info FILE, gpusight ranges FILE"
        return NotApplicable("focus", "no activity in the selection", hint)
    hint = advice_for(trace.meta).gpu
    if trace.has("diagnostics"):
        hint += "; messages of the profiler: gpusight info FILE"
    return NotApplicable("focus", "the capture shows no activity", hint)


def _without_steps(
    focus: StepWindow, missing: NotApplicable, notes: tuple[str, ...], suggestions: str = ""
) -> StepWindow:
    """Say why a window has no steps, in the notes too, after these."""
    why = f"no steps found: {missing.reason}{suggestions}"
    return replace(focus, no_steps=missing.reason, suggestions=suggestions, notes=(*notes, why))


def _without_start(trace: Trace, focus: StepWindow) -> StepWindow:
    """Leave out the time in which a program loads and compiles, before it computes."""
    from gpusight.analysis.steps.program_phases import find_start

    start = find_start(trace, focus.start_ns, focus.end_ns)
    if start is None or start.launch_ns <= focus.start_ns:
        return focus
    before_ns = start.launch_ns - focus.start_ns
    note = (
        f"the first {format_time(before_ns, digits=3)} (program start) are excluded; --warmup "
        "includes them"
    )
    return replace(focus, start_ns=start.launch_ns, before_ns=before_ns, notes=(*focus.notes, note))


def with_window(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    steps: str | None = None,
    window: Bounds | None = None,
    warmup: bool = False,
) -> tuple[Selection, str]:
    """Return the selection limited to the window, and the window in words for a headline.

    The keywords choose as in `step_window`. A range (`within`) covers all its occurrences after the
    warm-up, unless steps or a window are chosen too. The whole capture stays without a window.
    """
    if not any(trace.has(table) for table in ACTIVITY):
        return selection, ""
    if selection.within is not None and steps is None and window is None:
        return _in_ranges(trace, selection, warmup=warmup)
    everything = replace(selection, within=None)
    chosen = step_window(trace, everything, steps=steps, window=window, warmup=warmup)
    if isinstance(chosen, NotApplicable):
        if steps is not None:
            raise chosen.error()
        return selection, ""
    is_whole = chosen.kind is WindowKind.ALL or (
        chosen.kind is WindowKind.STEPS and not chosen.steps and not chosen.before_ns
    )
    return (selection if is_whole else replace(selection, time=chosen.time)), chosen.text


def _in_ranges(trace: Trace, selection: Selection, *, warmup: bool) -> tuple[Selection, str]:
    """Limit a selection of ranges to those after the warm-up, where there are any."""
    text = f"in ranges {shortened(selection.within or '')!r}"
    ready_ns = None if warmup else _warm_up_end(trace, selection)
    if ready_ns is None or not trace.has("ranges"):
        return selection, text
    starts = ResolvedSelection(trace, selection).matching_ranges["start_ns"]
    early = int((starts < ready_ns).sum())
    if not early:
        return selection, text
    if early == len(starts):
        return selection, f"{text}, all in warm-up"
    time = TimeWindow(ready_ns, ResolvedSelection(trace).window.end_ns)
    return replace(selection, time=time), f"{text} ({early:,} in warm-up excluded)"


def _warm_up_end(trace: Trace, selection: Selection) -> int | None:
    """Return the start of the first step after the warm-up; None where there is no warm-up."""
    usual = step_window(trace, replace(selection, within=None))
    if isinstance(usual, NotApplicable):
        return None
    first_ns = usual.host_start_ns
    return first_ns if any(step.start_ns < first_ns for step in usual.left_out) else None


def _default_window(trace: Trace) -> StepWindow | NotApplicable:
    """Return the window that every command covers by default; it is found once per trace."""

    def find() -> pl.DataFrame:
        chosen = _chosen_window(trace, EVERYTHING, steps=None, window=None, warmup=False)
        if isinstance(chosen, NotApplicable):
            row: dict[str, object] = {"reason": chosen.reason, "hint": chosen.hint}
        else:
            row = {key: getattr(chosen, key) for key in _PLAIN}
            row["notes"] = list(chosen.notes)
            row["inner_loop"] = None if chosen.inner_loop is None else asdict(chosen.inner_loop)
        window = pl.DataFrame([row], schema=_WINDOW_SCHEMA)
        if isinstance(chosen, NotApplicable):
            return window
        lists = (
            pl.Series(key, [frame_of(getattr(chosen, key)).to_struct()]) for key in _STEP_LISTS
        )
        return window.with_columns(*lists)

    frame = trace.derive("window-21", find)
    row = frame.drop(_STEP_LISTS).row(0, named=True)
    if row["reason"] is not None:
        return NotApplicable("focus", row["reason"], row["hint"])
    kept, left_out = (StepList(frame[key][0].struct.unnest()) for key in _STEP_LISTS)
    inner = None if row["inner_loop"] is None else InnerLoop(**row["inner_loop"])
    plain = {key: row[key] for key in _PLAIN}
    notes = tuple(row["notes"])
    return StepWindow(steps=kept, left_out=left_out, notes=notes, inner_loop=inner, **plain)


_PLAIN = (
    *("start_ns", "end_ns", "how", "process", "before_ns", "partial"),
    *("no_steps", "suggestions"),
)
_STEP_LISTS = ("steps", "left_out")
_WINDOW_SCHEMA = {
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    **dict.fromkeys(_STEP_LISTS, pl.List(pl.Struct(SCHEMA))),
    "how": pl.String(),
    "process": pl.String(),
    "notes": pl.List(pl.String()),
    "before_ns": pl.Int64(),
    "partial": pl.Int64(),
    "no_steps": pl.String(),
    "suggestions": pl.String(),
    "inner_loop": pl.Struct({"count": pl.Int64(), "gpu_ops": pl.Int64(), "gpu_ns": pl.Float64()}),
    "reason": pl.String(),
    "hint": pl.String(),
}


def _usual(trace: Trace, detected: DetectedSteps, steps: TraceSteps, *, warmup: bool) -> StepWindow:
    """Leave out steps that do not represent the rest."""
    all_steps = steps.steps
    open_end = steps.evidence in {StepEvidence.PERIODIC, StepEvidence.GRAPHS}
    unlike = unrepresentative_steps(trace, all_steps, open_end=open_end)
    cut_first = unlike.cut_first
    warm_up = 0 if warmup else unlike.warm_up
    first, last = cut_first + warm_up, len(all_steps) - unlike.cut_last
    notes = list(detected.notes)
    if warm_up:
        names = _names(all_steps[cut_first:first])
        count = f"{warm_up} of {len(all_steps)}"
        notes.append(f"{count} steps excluded as warm-up ({unlike.why}): {names}")
    cut = StepList.of(all_steps[:cut_first], all_steps[last:])
    if cut:
        notes.append(f"excluded as partial steps, cut off by the capture: {_names(cut)}")
    kept = all_steps[first:last]
    out = StepList.of(all_steps[:first], all_steps[last:])
    chosen = _of_steps(trace, steps, kept, out, notes)
    return replace(chosen, partial=len(cut))


def with_uneven_note(trace: Trace, chosen: StepWindow) -> StepWindow:
    """Note that the step time, a mean, is far from what most steps take; with these times."""
    notes = tuple(note for note in chosen.notes if not note.startswith(_UNEVEN))
    return replace(chosen, notes=(*notes, *_uneven(trace, chosen)))


def _uneven(trace: Trace, chosen: StepWindow) -> tuple[str, ...]:
    if len(chosen.steps) < MIN_STEPS:
        return ()
    begun, done = step_spans(trace, chosen.steps)
    took = done - begun
    median = float(np.median(took))
    if not 1 / LONG <= chosen.step_ns / max(median, 1.0) <= LONG:
        text = f"{_UNEVEN[0]} {format_time(median, digits=3)}; "
        far = np.abs(took - median)
        at = int(np.argmax(far))
        if far[at] < far.sum() / 2:
            count = int((far > (1 - 1 / LONG) * median).sum())
            many = f"{count:,} of {len(took):,} steps are over {1 - 1 / LONG:.0%} off"
            return (f"{text}{many}: gpusight steps FILE lists them",)
        text += f"{called(chosen.steps[at])} takes {format_time(int(took[at]), digits=3)}"
        # The longer part of the window before or after it.
        others = max(chosen.steps[:at], chosen.steps[at + 1 :], key=len)
        first, last = others[0].number, others[-1].number
        return (f"{text}; without it: --steps {first}-{last}",)
    typical = float(np.median(took_ns(launched(trace), chosen.steps)))
    between = chosen.step_ns - typical
    if between < (1 - 1 / LONG) * chosen.step_ns:
        return ()
    shown, more = (format_time(time, digits=3) for time in (typical, between))
    return (f"{_UNEVEN[1]} {shown}; {more} of the step time is between steps",)


_UNEVEN = ("median step", "a typical step takes")
"""How the notes begin that are made with the times of each window."""


_GPU_SHARE = 0.9
"""Share of the GPU time that a suggested window covers."""


def _suggestions(trace: Trace, detected: DetectedSteps) -> str:
    """Name windows that can be chosen where no steps were found."""
    work = launched(trace).sort("start_ns")
    if work.height < 2:
        return ""
    took = (work["end_ns"] - work["start_ns"]).to_numpy().astype(np.float64)
    share = np.cumsum(took) / max(1.0, float(took.sum()))
    edge = (1 - _GPU_SHARE) / 2
    first = int(work["start_ns"][int(np.searchsorted(share, edge))])
    last = int(work["end_ns"][min(int(np.searchsorted(share, 1 - edge)), work.height - 1)])
    unit, scale = ("ms", 1e6) if last - first > 10 * 1e6 else ("us", 1e3)
    window = f"{first // scale:.0f}{unit}-{-(-last // scale):.0f}{unit}"
    text = f"; to analyze a part: --window {window} ({_GPU_SHARE:.0%} of the GPU time)"
    if detected.loops is not None:
        last_number = detected.loops.steps[-1].number
        text += f", --steps 0-{last_number} ({detected.loops.how})"
    return text


def _by_number(trace: Trace, detected: DetectedSteps, text: str) -> StepWindow | NotApplicable:
    wanted = parse_steps(text)
    if isinstance(detected.steps, NotApplicable):
        if detected.loops is None:
            return detected.steps
        detected = replace(detected, steps=detected.loops)
    assert isinstance(detected.steps, TraceSteps)
    all_steps = detected.steps.steps
    first, last = wanted or (None, None)
    kept = tuple(
        step
        for step in all_steps
        if (first is None or step.number >= first) and (last is None or step.number <= last)
    )
    if not kept:
        known = f"steps are numbered {all_steps[0].number} to {all_steps[-1].number}"
        raise UsageError(
            f"no step is in {shortened(text)!r}", why=known, hint="see: gpusight steps FILE"
        )
    out = tuple(step for step in all_steps if not kept[0].number <= step.number <= kept[-1].number)
    chosen = _of_steps(trace, detected.steps, kept, out, list(detected.notes))
    return replace(chosen, kind=WindowKind.NUMBERED)


def _by_time(
    trace: Trace, detected: DetectedSteps, window: Bounds, whole: tuple[int, int]
) -> StepWindow:
    """Take a span of time; `whole` is that of the selected activity."""
    match window:  # what comes from Python may be anything
        case (None | int() | float(), None | int() | float()):
            pass
        case _:
            raise UsageError(
                f"a window is a pair of times, not {window!r}",
                hint="window=(start_ns, end_ns) in nanoseconds, None for an open end",
            )
    start = whole[0] if window[0] is None else window[0]
    end = whole[1] if window[1] is None else window[1]
    if start >= whole[1] or end <= whole[0] or start >= end:
        spans = f"activity is from {format_time(whole[0])} to {format_time(whole[1])}"
        raise UsageError("the window has no activity", why=spans)
    # What comes before or after everything that the capture saw is no idle time.
    activity = ResolvedSelection(trace).window
    first, last = max(start, activity.start_ns), min(end, activity.end_ns)
    notes = detected.notes
    if (first, last) != (start, end):
        spans = f"{format_time(first)} to {format_time(last)}"
        notes = (*notes, f"the window is cut to the activity in the capture: {spans}")
    start, end = first, last
    kind = WindowKind.ALL if window == (None, None) else WindowKind.TIME
    if isinstance(detected.steps, NotApplicable):
        return _without_steps(StepWindow(start, end, kind=kind), detected.steps, notes)
    inside = _inside(detected.steps.steps, start, end)
    kept = set(inside)
    out = tuple(step for step in detected.steps.steps if step not in kept)
    how, inner = (detected.steps.how, detected.steps.inner_loop) if inside else ("", None)
    return StepWindow(start, end, inside, out, how, notes, kind=kind, inner_loop=inner)


def _without_end(trace: Trace) -> tuple[str, ...]:
    """Note that most kernels take no time: readers make an instant of what ends before it starts.

    Some do in traces of whole microseconds, which lose short kernels to rounding.
    """
    if not trace.has("kernels"):
        return ()
    lengths = trace.table("kernels", ["start_ns", "end_ns"])
    lost = int((lengths["end_ns"] == lengths["start_ns"]).sum())
    if lost <= lengths.height / 2:
        return ()
    many = f"{lost:,} of {lengths.height:,} kernels"
    return (f"{many} have zero duration: the capture lacks their end times",)


def _by_range(
    trace: Trace, detected: DetectedSteps, ready_ns: int | None
) -> StepWindow | NotApplicable:
    """Take all occurrences of a range after the warm-up, from the first to the last."""
    ranges = detected.ranges
    assert ranges is not None, "no range is given"
    if ranges.is_empty():
        return NotApplicable("focus", "the selection does not contain the range")
    early = 0 if ready_ns is None else int((ranges["start_ns"] < ready_ns).sum())
    if 0 < early < ranges.height:
        ranges = ranges.filter(pl.col("start_ns") >= ready_ns)
        note = f"{early:,} occurrences of the range in warm-up are excluded; --warmup includes them"
        detected = replace(detected, notes=(*detected.notes, note))
    process = ranges["process"][0]
    start, last = int(ranges["start_ns"].min()), int(ranges["end_ns"].max())  # type: ignore[arg-type]
    end = work_end(trace, start, last, process)
    if isinstance(detected.steps, NotApplicable):
        whole = StepWindow(start, end, kind=WindowKind.RANGE)
        return _without_steps(whole, detected.steps, detected.notes)
    inside = _inside(detected.steps.steps, start, last)
    how, inner = (detected.steps.how, detected.steps.inner_loop) if inside else ("", None)
    return StepWindow(
        start, end, inside, (), how, detected.notes, kind=WindowKind.RANGE, inner_loop=inner
    )


def _inside(steps: Sequence[TraceStep], start: int, end: int) -> StepList:
    within = (pl.col("start_ns") >= start) & (pl.col("end_ns") <= end)
    return StepList(frame_of(steps).filter(within))


def _of_steps(
    trace: Trace,
    steps: TraceSteps,
    kept: Sequence[TraceStep],
    out: Sequence[TraceStep],
    notes: list[str],
) -> StepWindow:
    begun, done = step_spans(trace, kept)
    chosen = StepWindow(int(begun[0]), int(done[-1]), kept, out, steps.how, tuple(notes))
    return with_uneven_note(trace, replace(chosen, inner_loop=steps.inner_loop))


def step_spans(trace: Trace, steps: Sequence[TraceStep]) -> tuple[Ints, Ints]:
    """Return when each of consecutive steps begins and ends; the spans fill their window.

    A step ends when all GPU work is done that was launched until its end, and the next one begins
    there: time between steps belongs to the later one. The first begins on the host, or when the
    GPU is done with earlier work where that is later. What outlasts the first step runs in
    parallel, on another stream, and delays none of them.
    """
    work = of_process(launched(trace), steps[0].process)
    done = np.maximum.accumulate(done_ns(work, steps))
    first_ns = steps[0].start_ns
    earlier = (pl.col("launch_ns") < first_ns) & (pl.col("end_ns") < int(done[0]))
    earlier_end = work.filter(earlier)["end_ns"].max()
    if earlier_end is not None:
        first_ns = max(first_ns, int(earlier_end))  # type: ignore[arg-type]
    return np.append(first_ns, done[:-1]), done


def work_end(trace: Trace, start_ns: int, end_ns: int, process: int | None) -> int:
    """Return the end of a window, or of the GPU work that the process launched in it, if later."""
    inside = (pl.col("launch_ns") >= start_ns) & (pl.col("launch_ns") < end_ns)
    last = of_process(launched(trace), process).filter(inside)["end_ns"].max()
    return end_ns if last is None else max(end_ns, int(last))  # type: ignore[arg-type]


def _names(steps: Sequence[TraceStep]) -> str:
    shown = ", ".join(called(step) for step in steps[:_MAX_NAMED])
    more = len(steps) - _MAX_NAMED
    return f"{shown} and {more} more" if more > 0 else shown
