"""Which kernels of a timeline are worth profiling with ncu, and how ncu matches their names."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import DURATION, names_of
from gpusight.analysis.attribution.work_causes import (
    FrameworkOperators,
    WorkSelection,
    selected_work,
)
from gpusight.analysis.flops.counted_operators import count_ops
from gpusight.analysis.flops.flops_tables import CALL_CLASS, OperatorRoofline, roofs_of
from gpusight.analysis.kernel_summary import SHAPE, no_kernels, short_names
from gpusight.analysis.launch_index import launched, of_process
from gpusight.analysis.name_patterns import kernel_codes
from gpusight.analysis.selection import EVERYTHING, GPU_WORK, Selection
from gpusight.analysis.steps.step_detection import busiest_process
from gpusight.analysis.steps.step_list import TraceSteps
from gpusight.analysis.steps.step_window import step_window
from gpusight.errors import UsageError
from gpusight.hardware.gpu_lookup import listed_gpu
from gpusight.naming.demangle import demangle
from gpusight.naming.kernel_names import classify, unique_short_names
from gpusight.naming.name_parts import clean, split
from gpusight.recording.parse_request import literal
from gpusight.results import NotApplicable
from gpusight.units import format_share

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from gpusight.analysis.steps.window_headline import StepWindow
    from gpusight.trace.trace import Trace


MIN_ROOF_SHARE = 0.8
"""Share of the roofline that large GEMMs of the best libraries reach: little is left to gain."""
_SCHEMA = {"row": pl.Int64(), "least_ns": pl.Float64(), "call_ns": pl.Float64()}


def _roofline_times(scope: WorkSelection) -> pl.DataFrame:
    """Return, for kernels whose operator was counted, the least time its call could take.

    Columns: `row` of `kernels`, `least_ns`, and `call_ns`, the time of all GPU activities of the
    call.
    """
    trace = scope.trace
    if not (trace.has("cpu_ops", "shapes") and trace.has("kernels")):
        return pl.DataFrame(schema=_SCHEMA)
    counted = count_ops(scope)
    if counted.calls.is_empty():
        return pl.DataFrame(schema=_SCHEMA)
    roofs = roofs_of(trace, counted.calls["device"].unique().sort()).by_device
    classes = counted.calls.select(CALL_CLASS).unique(maintain_order=True)
    least_ns = [
        OperatorRoofline.of(counted.cost(entry), roofs[device], precision, tensor_core).least_ns
        for entry, precision, tensor_core, device in classes.iter_rows()
    ]
    classes = classes.with_columns(pl.Series("least_ns", least_ns, pl.Float64))
    calls = counted.calls.join(classes, on=CALL_CLASS, how="left", nulls_equal=True)
    calls = calls.drop_nulls("least_ns").with_columns(pl.col("op").cast(pl.Int64))
    # A kernel belongs to the call that launched it, itself or through operators inside it.
    marked = np.zeros(trace.row_count("cpu_ops"), dtype=np.bool_)
    marked[calls["op"].to_numpy()] = True
    call_of = FrameworkOperators(trace).nested.nearest_rows(marked)
    work = selected_work(scope).frame.filter(pl.col("kind") == "kernel")
    kernels = work.select(scope.gpu_rows("kernels").cast(pl.Int64).alias("row"), "op")
    kernels = kernels.drop_nulls("op")
    kernels = kernels.with_columns(pl.Series("op", call_of[kernels["op"].to_numpy()], pl.Int64))
    return kernels.join(calls, on="op").select(
        "row", "least_ns", pl.col("gpu_ns").cast(pl.Float64).alias("call_ns")
    )


FUNCTION, MANGLED = "function", "mangled"
"""Name bases of ncu; the latter distinguishes template instances."""
CUT = "..."
"""Ends names that a printed table cut short."""


def function_of(name: str) -> str:
    """Return the function of a kernel's name, which may be mangled."""
    head, _, _ = split(clean(demangle(name)))
    return head.rsplit("::", 1)[-1]


def functions(trace: Trace) -> pl.Series:
    """Return the function of each kernel of a timeline, as an Enum.

    The capture's own base name is preferred: another demangler may differ.
    """
    kernels = trace.table("kernels", ["name", "base_name"])
    names, bases = (names_of(kernels[column]) for column in ("name", "base_name"))
    pairs = kernels.select(pl.all().to_physical())
    distinct = pairs.unique(maintain_order=True)
    texts = [
        function_of(names[name]) if base is None else bases[base]
        for name, base in distinct.iter_rows()
    ]
    distinct = distinct.with_columns(pl.Series("function", texts, pl.String))
    joined = pairs.join(
        distinct, on=["name", "base_name"], how="left", nulls_equal=True, maintain_order="left"
    )
    return joined["function"].cast(pl.Enum(sorted(set(texts))))


def pattern_of(texts: Iterable[str]) -> str:
    """Write a regular expression that matches these names and no others.

    A name that was cut short matches by its prefix.
    """
    patterns = set()
    for text in texts:
        prefix = text.removesuffix(CUT)
        is_cut = prefix and prefix != text
        patterns.add(f"^{literal(prefix)}" if is_cut else f"^{literal(text)}$")
    return "|".join(sorted(patterns))


COMMAND = "drill"
DEFAULT_TOP_KERNELS = 3
MIN_TIME_SHARE = 0.01
"""Share of all kernel time below which a faster kernel makes no visible difference."""
_ARITHMETIC = ("matmul", "convolution", "attention")
_KEY = ("name", *SHAPE)
_MAX_KERNELS = 200


class DrillChoice(enum.Enum):
    """Whether a kernel is profiled, or why not."""

    CHOSEN = "chosen"
    AT_ROOF = "at roofline"
    COMMUNICATES = "communication"
    SMALL = "too small"
    NEXT = "later"


@dataclass(frozen=True, slots=True)
class DrillKernel:
    """A kernel with one launch shape, as it ran in the window."""

    group: int
    """Its rank by time, from 0; its key in `DrillSelection.launches`."""
    row: int
    """The row of one of its launches in `kernels`; -1 where there is none."""
    name: str
    short_name: str
    function: str
    """The name that Nsight Compute matches."""
    mangled_name: str | None
    shape: tuple[int | None, ...]
    """Grid in x, y, z, then block in x, y, z."""
    launches: int
    time_ns: int
    share: float
    """Share of the time of all kernels in the window."""
    roof_share: float | None
    """Share of its roofline; None where the timeline does not show it."""
    choice: DrillChoice = DrillChoice.NEXT
    reason: str = ""

    @property
    def category(self) -> str:
        """What it does, from its name."""
        return classify(self.name).category


@dataclass(frozen=True)
class DrillSelection:
    """The kernels of a window, which of them to measure, and every launch."""

    trace: Trace
    focus: StepWindow
    process: int | None
    window_ns: int
    kernels: tuple[DrillKernel, ...]
    """Those that take most time, the longest first."""
    time_ns: int
    """Of all kernels in the window."""
    launches: pl.DataFrame
    """Every kernel that the process launched, in order: `launch_ns`, `thread`, `function`,
    `mangled_name`, `group` (null for kernels that do not run in the window) and whether it was
    launched `inside` it."""
    notes: tuple[str, ...] = ()

    @property
    def chosen(self) -> tuple[DrillKernel, ...]:
        """Kernels to measure, the longest first."""
        return tuple(k for k in self.kernels if k.choice is DrillChoice.CHOSEN)


def pick_kernels(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    top: int = DEFAULT_TOP_KERNELS,
    kernel: str | None = None,
    steps: str | None = None,
    time: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
) -> DrillSelection | NotApplicable:
    """Choose `top` kernels worth measuring (0: all of them), or those that `kernel` matches.

    `steps`, `time` and `warmup` choose the window, as in `step_window`.
    """
    unsupported = _unsupported(trace)
    if unsupported is not None:
        return unsupported
    window = step_window(trace, selection, steps=steps, window=time, warmup=warmup)
    if isinstance(window, NotApplicable):
        return replace(window, command=COMMAND)
    process, process_notes = (
        (window.steps[0].process, ())
        if window.steps
        else busiest_process(trace, launched(trace), "kernels are those of")
    )
    scope = WorkSelection(trace, selection)
    launches = _mark_inside(_kernel_launches(trace, process), scope, window)
    if not launches["inside"].any():
        return NotApplicable(COMMAND, "no kernel was launched in the window")
    groups = _group_by_kernel(launches, _roofline_times(scope))
    launches = launches.join(
        groups.select(*_KEY, "group"), on=_KEY, how="left", nulls_equal=True, maintain_order="left"
    )
    total_ns = int(groups["time_ns"].sum())
    if kernel is not None:
        names = matching_names(groups["name"], kernel)
        groups = groups.filter(pl.col("name").cast(pl.String).is_in(names))
    return DrillSelection(
        trace,
        window,
        process,
        sum(step.end_ns - step.start_ns for step in window.steps)
        if _by_steps(selection, window)
        else window.length_ns,
        choose_kernels(_kernels(groups, total_ns), top, selected=kernel is not None),
        total_ns,
        launches.select("launch_ns", "thread", "function", "mangled_name", "group", "inside"),
        (*window.notes, *process_notes, *scope.notes),
    )


def _unsupported(trace: Trace) -> NotApplicable | None:
    if not trace.has("kernels"):
        return no_kernels(trace, COMMAND)
    gpus = [listed_gpu(row) for row in trace.table("devices").iter_rows(named=True)]
    if gpus and all(gpu is not None and gpu.vendor == "AMD" for gpu in gpus):
        reason = "Nsight Compute supports NVIDIA GPUs only"
        return NotApplicable(COMMAND, reason, "for AMD GPUs use rocprof-compute")
    return None


def _kernel_launches(trace: Trace, process: int | None) -> pl.DataFrame:
    """Return the kernels of a process in order of launch, with names and shapes."""
    work = of_process(launched(trace), process)
    work = work.filter(pl.col("table") == GPU_WORK.index("kernels"))
    kernels = trace.table("kernels", ["name", "mangled_name", *SHAPE])
    kernels = kernels.with_columns(functions(trace).alias("function"))[work["row"]]
    time_ns = DURATION.alias("time_ns")
    return work.select("launch_ns", "thread", "row", time_ns).hstack(kernels.get_columns())


def _mark_inside(launches: pl.DataFrame, scope: WorkSelection, window: StepWindow) -> pl.DataFrame:
    """Mark the launches that are selected and were made in the window."""
    end_ns = max((step.end_ns for step in window.steps), default=window.end_ns)
    during = pl.col("launch_ns").is_between(window.host_start_ns, end_ns, "left")
    if not scope.selection:
        return launches.with_columns(during.alias("inside"))
    if _by_steps(scope.selection, window):
        process = pl.Series([window.steps[0].process], dtype=pl.Int64)
        step = TraceSteps(window.steps).holding(
            launches["launch_ns"], process.new_from_index(0, launches.height)
        )
        during = pl.lit(step.is_not_null())
    rows = scope.gpu_rows("kernels").cast(pl.Int64).implode()
    return launches.with_columns((during & pl.col("row").is_in(rows)).alias("inside"))


def _by_steps(selection: Selection, window: StepWindow) -> bool:
    """Whether only whole steps count: a range may begin and end in the middle of some."""
    return selection.within is not None and bool(window.steps)


def _group_by_kernel(launches: pl.DataFrame, least: pl.DataFrame) -> pl.DataFrame:
    """Sum the launches inside by name and shape, the longest first."""
    roofed = pl.col("least_ns").is_not_null()
    return (
        launches.filter("inside")
        .join(least, on="row", how="left", maintain_order="left")
        .group_by(_KEY, maintain_order=True)
        .agg(
            pl.col("function", "mangled_name", "row").first(),
            pl.len().cast(pl.Int64).alias("launches"),
            pl.col("time_ns").sum(),
            (pl.col("least_ns").sum() / pl.col("call_ns").filter(roofed).sum()).alias("roof_share"),
            roofed.all().alias("roofed"),
        )
        .sort("time_ns", descending=True, maintain_order=True)
        .with_row_index("group")
        .with_columns(pl.col("group").cast(pl.Int64))
    )


def _kernels(grouped: pl.DataFrame, total_ns: int) -> list[DrillKernel]:
    """Describe the kernels that take most time; the others are too small to matter."""
    rows = grouped.head(_MAX_KERNELS).with_columns(
        short_names(grouped["name"].head(_MAX_KERNELS)),
        pl.col("name", "function", "mangled_name").cast(pl.String),
    )
    kernels = []
    for row in rows.iter_rows(named=True):
        # A helper of a GEMM, such as a split-K reduction, is not what the formula counts.
        has_roof = row["roofed"] and classify(row["name"]).category in _ARITHMETIC
        kernels.append(
            DrillKernel(
                group=row["group"],
                row=row["row"],
                name=row["name"],
                short_name=row["short_name"],
                function=row["function"],
                mangled_name=row["mangled_name"],
                shape=tuple(row[column] for column in SHAPE),
                launches=row["launches"],
                time_ns=row["time_ns"],
                share=row["time_ns"] / max(1, total_ns),
                roof_share=row["roof_share"] if has_roof else None,
            )
        )
    return kernels


# Choosing -----------------------------------------------------------------------------------------


def choose_kernels(
    kernels: Sequence[DrillKernel], top: int, *, selected: bool
) -> tuple[DrillKernel, ...]:
    """Choose the first `top` kernels by time (0: all) of those worth measuring.

    Kernels that the user `selected` by name are all worth it.
    """
    remaining = top or len(kernels)
    decided = []
    for kernel in kernels:
        roof = kernel.roof_share
        if not selected and kernel.category == "communication":
            choice = DrillChoice.COMMUNICATES
            reason = "communication kernel: it would hang in kernel replay"
        elif not selected and roof is not None and roof >= MIN_ROOF_SHARE:
            choice = DrillChoice.AT_ROOF
            reason = f"already at {format_share(roof)} of the roofline"
        elif not selected and kernel.share < MIN_TIME_SHARE:
            choice = DrillChoice.SMALL
            reason = f"below {format_share(MIN_TIME_SHARE)} of kernel time"
        elif remaining > 0:
            choice, reason = DrillChoice.CHOSEN, "selected"
            if not selected and roof is None:
                reason = "by time; roofline unknown"
            elif not selected:
                reason = f"by time, at {format_share(roof)} of the roofline"
            remaining -= 1
        else:
            choice, reason = DrillChoice.NEXT, f"not in the top {top}"
        decided.append(replace(kernel, choice=choice, reason=reason))
    return tuple(decided)


def matching_names(names: pl.Series, pattern: str) -> list[str]:
    """Find the names that a pattern matches; if none, those it matches as a regular expression."""
    texts = names.cast(pl.String).unique(maintain_order=True).to_list()
    short = unique_short_names(texts)
    known = {number: (text, short[text]) for number, text in enumerate(texts)}
    try:
        numbers = kernel_codes(known, pattern)
    except UsageError as no_match:
        try:
            numbers = kernel_codes(known, f"regex:{pattern}")
        except UsageError:
            raise no_match from None
    return [texts[number] for number in numbers]
