"""The answer of `drill` as a page: what was chosen and why, and how it is measured."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analyses.drill.pick import COMMAND, LITTLE, Verdict
from gpusight.result import Composite, Fact, Field, Fmt, TableResult
from gpusight.units import format_share

if TYPE_CHECKING:
    from gpusight.analyses.drill.pick import Kernel
    from gpusight.analyses.drill.report import Drill

FIELDS = (
    Field("verdict", "Measure", Fmt.TEXT, "`yes`, or why not"),
    Field("share", "Share", Fmt.SHARE, "Part of the time of all kernels in the window"),
    Field("time_ns", "Time", Fmt.TIME, "Its time; a step, where steps are known"),
    Field("launches", "Launches", Fmt.COUNT, "How often; a step, where steps are known"),
    Field("roof_share", "Of roof", Fmt.SHARE, "How near to its roof it ran, if the timeline tells"),
    Field("measured", "Measured", Fmt.COUNT, "Launches of it in the reports given"),
    Field("grid", "Grid", Fmt.TEXT, "Blocks in x, y and z"),
    Field("short_name", "Kernel", Fmt.NAME, "Readable label made from the name"),
    Field("block", "Block", Fmt.TEXT, "Threads of a block in x, y and z", shown=False),
    Field("why", "Why", Fmt.TEXT, "Why it is measured, or not", shown=False),
    Field("function", "Function", Fmt.NAME, "What Nsight Compute matches", shown=False),
    Field("name", "Full name", Fmt.NAME, "Name with template arguments", shown=False),
)
FACTS = (
    Field("window_ns", "Window", Fmt.TIME, "Time looked at"),
    Field("step_ns", "A step", Fmt.TIME, "Mean time of a step in it"),
    Field("steps", "Steps", Fmt.COUNT, "Steps in it, warm-up left out"),
    Field("kernel_share", "In kernels", Fmt.SHARE, "Time of its kernels, as a part of it"),
    Field("counted", "Launches", Fmt.TEXT, "From where launches are counted, and why"),
    Field("measures", "Measures", Fmt.TEXT, "How many launches, how thoroughly, how long it takes"),
)
_NUMBERS = (Fmt.SHARE, Fmt.TIME, Fmt.COUNT)
_YES = "yes"
_NEXT = 3
"""Kernels shown that come after the chosen ones."""
_MINUTE_S = 60


def page(drill: Drill) -> Composite:
    """Lay it out for a screen."""
    return Composite(
        COMMAND,
        drill.title,
        _facts(drill),
        (kernel_table(drill, following=_NEXT),),
        meta=dict(drill.meta),
        notes=drill.notes,
    )


def kernel_table(drill: Drill, *, following: int | None = None) -> TableResult:
    """List the kernels that were chosen, and those that matter and were not.

    `following` limits those that only come after the chosen ones.
    """
    kernels = [k for k in drill.kernels if k.verdict is Verdict.CHOSEN or k.share >= LITTLE]
    later = [k for k in kernels if k.verdict is Verdict.NEXT][following:] if following else []
    hidden = {k.group for k in later}
    rows = [_row(drill, kernel) for kernel in kernels if kernel.group not in hidden]
    schema = {f.key: pl.Float64() if f.fmt in _NUMBERS else pl.String() for f in FIELDS}
    frame = pl.DataFrame(rows, schema=schema)
    empty = {f.key for f in FIELDS if frame[f.key].null_count() == frame.height}
    fields = tuple(
        Field(f.key, f.label, f.fmt, f.meaning, f.shown and f.key not in empty) for f in FIELDS
    )
    each = "a step" if drill.steps else "the window"
    more = f"{len(hidden)} more kernels take {format_share(LITTLE)} or more each"
    notes = (f"{more}: gpusight kernels FILE",) if hidden else ()
    return TableResult("kernels", f"Kernels by time, of {each}", fields, frame, notes=notes)


def _row(drill: Drill, kernel: Kernel) -> dict[str, Any]:
    held = None if drill.measured is None else drill.measured.get(kernel.group)
    return {
        "verdict": _YES if kernel.verdict is Verdict.CHOSEN else kernel.verdict.value,
        "share": kernel.share,
        "time_ns": kernel.time_ns / drill.per_step,
        "launches": kernel.launches / drill.per_step,
        "roof_share": kernel.roof_share,
        "measured": None if held is None else held.launches,
        "grid": _shape(kernel.shape[:3]),
        "block": _shape(kernel.shape[3:]),
        "short_name": kernel.short_name,
        "why": kernel.why,
        "function": kernel.function,
        "name": kernel.name,
    }


def _shape(sizes: tuple[int | None, ...]) -> str | None:
    return None if None in sizes else "x".join(map(str, sizes))


def _facts(drill: Drill) -> tuple[Fact, ...]:
    window = drill.window_ns
    values: dict[str, Any] = {
        "window_ns": None if drill.steps else window,
        "step_ns": window / drill.steps if window and drill.steps else None,
        "steps": drill.steps or None,
        "kernel_share": drill.kernel_ns / window if window else None,
        "counted": None if drill.plan is None else drill.plan.why,
        "measures": _measures(drill),
    }
    facts = (Fact(f.key, f.label, values[f.key], f.fmt, f.meaning) for f in FACTS)
    return tuple(fact for fact in facts if fact.value is not None)


def _measures(drill: Drill) -> str | None:
    plan, seconds = drill.plan, drill.estimate_s
    if plan is None or seconds is None or drill.measured is not None:
        return None
    many = "1 launch" if plan.launches == 1 else f"{plan.launches:,} launches"
    runs = f" in {len(plan.runs)} runs" if len(plan.runs) > 1 else ""
    chosen = format_share(sum(k.share for k in drill.chosen))
    return (
        f"{many}{runs} at level {drill.level.value}, of kernels with {chosen} of kernel time; "
        f"takes {_roughly(seconds)}, besides the program's own time"
    )


def _roughly(seconds: float) -> str:
    if seconds < 1:
        return "less than a second"
    if seconds < _MINUTE_S:
        return f"about {seconds:.0f} s"
    return f"about {seconds / _MINUTE_S:.0f} min"
