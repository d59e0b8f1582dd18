"""Options and result of `drill`: kernels, filters, commands, profiled launches; and its tables."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analysis.drill.drill_kernels import (
    COMMAND,
    DEFAULT_TOP_KERNELS,
    MIN_TIME_SHARE,
    DrillChoice,
)
from gpusight.analysis.join.launch_matching import NEEDS, launch_keys
from gpusight.analysis.selection import EVERYTHING
from gpusight.errors import UsageError
from gpusight.recording import capture_names
from gpusight.recording.parse_request import enum_value, split_command
from gpusight.recording.request import NcuLevel, Ranks
from gpusight.results import Composite, Fact, Field, Fmt, TableResult
from gpusight.units import format_share

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from gpusight.analysis.drill.drill_kernels import DrillKernel
    from gpusight.analysis.drill.launch_plan import LaunchPlan
    from gpusight.analysis.selection import Selection
    from gpusight.recording.tools import ToolCommand
    from gpusight.trace.trace import Trace


_PASSES = {NcuLevel.QUICK: 10, NcuLevel.DETAIL: 34, NcuLevel.FULL: 38}
"""Passes of Nsight Compute over a kernel, measured on an H200; other GPUs differ somewhat."""
_LAUNCH_OVERHEAD_S = {NcuLevel.QUICK: 0.3, NcuLevel.DETAIL: 1.2, NcuLevel.FULL: 2.0}
"""Time per launch besides the passes, on the same machine."""


@dataclass(frozen=True)
class DrillResult:
    """Kernels worth measuring, and how to measure them."""

    kernels: tuple[DrillKernel, ...]
    """Those that take most time, the longest first."""
    plan: LaunchPlan | None
    """None where nothing is worth measuring."""
    level: NcuLevel
    commands: tuple[ToolCommand, ...] = ()
    """One for each run of the plan."""
    tool: str = ""
    """Tool and version of the commands: `ncu 2025.3.1`."""
    installed: bool = False
    """Whether it is on this machine."""
    program: tuple[str, ...] | None = None
    """The program to measure; None: commands have a placeholder."""
    steps: int = 0
    """Steps in the window; 0 where none are known."""
    window_ns: int | None = None
    kernel_ns: int = 0
    """Time of all kernels in the window."""
    measured: Mapping[int, MeasuredLaunches] | None = None
    """Measured launches of the chosen kernels; None: no report was given."""
    meta: Mapping[str, Any] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def chosen(self) -> tuple[DrillKernel, ...]:
        """Kernels to measure, the longest first."""
        return tuple(k for k in self.kernels if k.choice is DrillChoice.CHOSEN)

    @property
    def missing(self) -> tuple[DrillKernel, ...]:
        """Chosen kernels that are in no report."""
        if self.measured is None:
            return ()
        return tuple(k for k in self.chosen if not self.measured[k.group].launches)

    @property
    def is_incomplete(self) -> bool:
        """Whether kernels are left to measure."""
        return self.measured is None or bool(self.missing)

    @property
    def estimate_s(self) -> float | None:
        """Estimated measuring time, besides the program's own time."""
        if self.plan is None:
            return None
        longest_ns = max(k.time_ns / max(1, k.launches) for k in self.chosen)
        launch_s = _LAUNCH_OVERHEAD_S[self.level] + _PASSES[self.level] * longest_ns * 1e-9
        return self.plan.launches * launch_s

    def with_warnings(self, warnings: Sequence[str]) -> DrillResult:
        """Return it with the warnings about the capture before its notes."""
        return replace(self, notes=tuple(dict.fromkeys((*warnings, *self.notes))))

    def document(self) -> dict[str, Any]:
        """Return what `--format json` writes, as plain objects."""
        plan = self.plan
        runs = [] if self.plan is None else [run.document() for run in self.plan.runs]
        for run, command in zip(runs, self.commands, strict=False):
            run |= {
                "command": list(command.argv),
                "environment": dict(command.environment),
                "report": str(command.produces),
                "notes": list(command.notes),
            }
        return {
            "meta": {"command": COMMAND, **self.meta},
            "window_ns": self.window_ns,
            "steps": self.steps,
            "kernel_ns": self.kernel_ns,
            "kernels": [self._kernel(kernel) for kernel in self.kernels],
            "level": self.level.value,
            "anchor": None if plan is None else plan.anchor.value,
            "why": None if plan is None else plan.why,
            "exact": None if plan is None else plan.exact,
            "runs": runs,
            "tool": self.tool or None,
            "installed": self.installed,
            "program": None if self.program is None else list(self.program),
            "estimate_s": self.estimate_s,
            "notes": list(self.notes),
        }

    def measured_of(self, kernel: DrillKernel) -> MeasuredLaunches | None:
        """Return what the reports hold of a kernel; None where it was not looked for."""
        return None if self.measured is None else self.measured.get(kernel.group)

    def _kernel(self, kernel: DrillKernel) -> dict[str, Any]:
        measured = self.measured_of(kernel)
        return {
            "kernel": kernel.group,
            "name": kernel.name,
            "label": kernel.short_name,
            "function": kernel.function,
            "category": kernel.category,
            "grid": list(kernel.shape[:3]),
            "block": list(kernel.shape[3:]),
            "launches": kernel.launches,
            "launches_per_step": kernel.launches / self.steps if self.steps else None,
            "time_ns": kernel.time_ns,
            "time_ns_per_step": kernel.time_ns / self.steps if self.steps else None,
            "share": kernel.share,
            "roof_share": kernel.roof_share,
            "verdict": kernel.choice.value,
            "why": kernel.reason,
            "measured": None if measured is None else measured.launches,
            "measured_other_shapes": None if measured is None else measured.other_shapes,
        }


@dataclass(frozen=True)
class DrillOptions:
    """What `drill` measures, and how."""

    selection: Selection = EVERYTHING
    top: int = DEFAULT_TOP_KERNELS
    kernel: str | None = None
    level: NcuLevel = NcuLevel.QUICK
    program: tuple[str, ...] | None = None
    output: Path | None = None
    """The report to write; None: named after the program."""
    ranks: Ranks = field(default_factory=Ranks)
    overwrite: bool = False
    steps: str | None = None
    window: tuple[int | None, int | None] | None = None
    warmup: bool = False
    """These three choose the time window, as in `step_window`."""

    @classmethod
    def of(
        cls,
        *,
        level: str = "quick",
        program: str | Sequence[str | os.PathLike[str]] | None = None,
        output: str | os.PathLike[str] | None = None,
        rank: str | int = "all",
        **others: Any,
    ) -> DrillOptions:
        """Parse the options; a program given as one text is split like a shell command."""
        words = split_command(program or ())
        options = cls(
            level=enum_value(NcuLevel, level, "level"),
            program=words or None,
            output=None if output is None else capture_names.output_path(str(output), words),
            ranks=Ranks.read(str(rank)),
            **others,
        )
        if options.top < 0:
            what = f"cannot select {options.top} kernels"
            raise UsageError(what, hint="use 0 for all that matter")
        return options


@dataclass(frozen=True, slots=True)
class MeasuredLaunches:
    """Measured launches of one kernel, in all reports."""

    launches: int
    """With its grid and block."""
    other_shapes: int
    """With another grid or block."""


def measured_launches_of(
    timeline: Trace, kernels: Sequence[DrillKernel], reports: Sequence[Trace]
) -> dict[int, MeasuredLaunches]:
    """Count the measured launches of each kernel, by its group."""
    left = timeline.table("kernels", NEEDS)[[kernel.row for kernel in kernels]]
    same_shape, same_name = ([0] * len(kernels) for _ in range(2))
    for report in reports:
        if not report.has("profiles"):
            what = f"{report.meta.path} is not an Nsight Compute report"
            raise UsageError(what, hint="pass the timeline first, then its reports")
        right = report.table("profiles", ["kind", *NEEDS])
        right = right.filter(pl.col("kind").cast(pl.String) == "kernel").select(NEEDS)
        keys = launch_keys(left, right)
        for number in range(len(kernels)):
            same_shape[number] += int((keys.right == keys.left[number]).sum())
            same_name[number] += int((keys.right_name == keys.left_name[number]).sum())
    return {
        kernel.group: MeasuredLaunches(shape, name - shape)
        for kernel, shape, name in zip(kernels, same_shape, same_name, strict=True)
    }


FIELDS = (
    Field("verdict", "Profile", Fmt.TEXT, "`yes`, or why not"),
    Field("share", "% kernels", Fmt.SHARE, "Share of the time of all kernels in the window"),
    Field("time_ns", "Time", Fmt.TIME, "Time per step, or in the window"),
    Field("launches", "Launches", Fmt.COUNT, "Launches per step, or in the window"),
    Field("roof_share", "Roofline", Fmt.SHARE, "Achieved share of the roofline, if known"),
    Field("planned", "Profiles", Fmt.COUNT, "Launches of it that the commands profile"),
    Field("measured", "Profiled", Fmt.COUNT, "Launches of it in the reports"),
    Field("grid", "Grid", Fmt.TEXT, "Blocks in x, y and z"),
    Field("short_name", "Kernel", Fmt.NAME, "Short kernel name"),
    Field("block", "Block", Fmt.TEXT, "Threads per block in x, y and z", shown=False),
    Field("why", "Why", Fmt.TEXT, "Why it is profiled, or not", shown=False),
    Field("function", "Function", Fmt.NAME, "What Nsight Compute matches", shown=False),
    Field("name", "Full name", Fmt.NAME, "Name with template arguments", shown=False),
)
DRILL_FACTS = (
    Field("window_ns", "Window", Fmt.TIME, "Length of the window"),
    Field("step_ns", "Step time", Fmt.TIME, "Length of the window per step without the profiler"),
    Field("steps", "Steps", Fmt.COUNT, "Steps, warm-up excluded"),
    Field("kernel_share", "Kernel time", Fmt.SHARE, "Share of the window in kernels"),
    Field("counted", "Launches", Fmt.TEXT, "How launches are counted, and why"),
    Field("measures", "Profiles", Fmt.TEXT, "Launches, level and estimated time"),
)
_NUMBERS = (Fmt.SHARE, Fmt.TIME, Fmt.COUNT)
_MAX_LATER = 3
"""Kernels shown that come after the chosen ones."""


def drill_page(drill: DrillResult, profiled: TableResult | None = None) -> Composite:
    """Lay the result out for a screen: the kernels to profile, or those that were `profiled`."""
    window_ns = drill.window_ns
    values: dict[str, Any] = {
        "window_ns": None if drill.steps else window_ns,
        "step_ns": window_ns / drill.steps if window_ns and drill.steps else None,
        "steps": drill.steps or None,
        "kernel_share": drill.kernel_ns / window_ns if window_ns else None,
        "counted": drill.plan.why if drill.plan is not None and drill.is_incomplete else None,
        "measures": _measures(drill),
    }
    facts = (Fact(f.key, f.label, values[f.key], f.fmt, f.meaning) for f in DRILL_FACTS)
    return Composite(
        COMMAND,
        "Kernels to profile" if profiled is None else "Profiled kernels",
        tuple(fact for fact in facts if fact.value is not None),
        (kernel_table(drill, max_later=_MAX_LATER) if profiled is None else profiled,),
        meta=dict(drill.meta),
        notes=drill.notes,
        window=(drill.meta.get("headline") or {}).get("text", ""),
    )


def kernel_table(drill: DrillResult, *, max_later: int | None = None) -> TableResult:
    """List the chosen kernels, and the others that take a noticeable share of the time.

    `max_later` limits those that only come after the chosen ones.
    """
    kernels = [
        k for k in drill.kernels if k.choice is DrillChoice.CHOSEN or k.share >= MIN_TIME_SHARE
    ]
    later = [k for k in kernels if k.choice is DrillChoice.NEXT][max_later:] if max_later else []
    hidden = {k.group for k in later}
    planned = (drill.plan.hits if drill.plan is not None else None) or {}
    steps = max(1, drill.steps)
    rows = []
    for kernel in kernels:
        measured = drill.measured_of(kernel)
        row = {
            "verdict": "yes" if kernel.choice is DrillChoice.CHOSEN else kernel.choice.value,
            "share": kernel.share,
            "time_ns": kernel.time_ns / steps,
            "launches": kernel.launches / steps,
            "roof_share": kernel.roof_share,
            "planned": planned.get(kernel.group) if measured is None else None,
            "measured": None if measured is None else measured.launches,
            "grid": _shape(kernel.shape[:3]),
            "block": _shape(kernel.shape[3:]),
            "short_name": kernel.short_name,
            "why": kernel.reason,
            "function": kernel.function,
            "name": kernel.name,
        }
        if kernel.group not in hidden:
            rows.append(row)
    schema = {f.key: pl.Float64() if f.fmt in _NUMBERS else pl.String() for f in FIELDS}
    frame = pl.DataFrame(rows, schema=schema)
    empty = {f.key for f in FIELDS if frame[f.key].null_count() == frame.height}
    fields = tuple(replace(f, shown=f.shown and f.key not in empty) for f in FIELDS)
    each = "per step" if drill.steps else "in the window"
    more = f"{len(hidden)} more kernels take {format_share(MIN_TIME_SHARE)} or more each"
    notes = (f"{more}: gpusight kernels FILE",) if hidden else ()
    return TableResult("kernels", f"Kernels by time {each}", fields, frame, notes=notes)


def _shape(sizes: tuple[int | None, ...]) -> str | None:
    return None if None in sizes else "x".join(map(str, sizes))


def _measures(drill: DrillResult) -> str | None:
    plan, seconds = drill.plan, drill.estimate_s
    if plan is None or seconds is None or drill.measured is not None:
        return None
    launches = "1 launch" if plan.launches == 1 else f"{plan.launches:,} launches"
    others = 0 if plan.hits is None else plan.launches - sum(plan.hits.values())
    if others:
        launches += f" ({others:,} of other kernels with the same function name)"
    runs = f" in {len(plan.runs)} runs" if len(plan.runs) > 1 else ""
    share = format_share(sum(k.share for k in drill.chosen))
    estimate = "under 1 s"
    if seconds >= 1:
        estimate = f"about {seconds:.0f} s" if seconds < 60 else f"about {seconds / 60:.0f} min"
    return (
        f"{launches}{runs} at level {drill.level.value}, covering {share} of kernel time; "
        f"adds {estimate} to the run time"
    )
