"""Which kernels of a timeline are worth measuring with ncu, and how ncu matches their names."""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.attribution.framework_operators import FrameworkOperators
from gpusight.analysis.attribution.work_causes import WorkSelection, selected_work
from gpusight.analysis.capture_gpus import listed_gpu
from gpusight.analysis.counters.counter_selection import kernel_codes
from gpusight.analysis.flops.counted_operators import count_ops
from gpusight.analysis.flops.operator_roofs import OperatorArithmetic, TimeBound, roofs_of
from gpusight.analysis.kernel_summary import SHAPE, no_kernels
from gpusight.analysis.selection import EVERYTHING, GPU_WORK, Selection
from gpusight.analysis.steps.step_detection import busiest_process
from gpusight.analysis.steps.step_launches import launched, of_process
from gpusight.analysis.steps.step_list import TraceSteps
from gpusight.analysis.steps.step_window import StepWindow, step_window
from gpusight.errors import UsageError
from gpusight.naming.demangle import clean, demangle, split
from gpusight.naming.kernel_names import classify
from gpusight.recording.parse_request import literal
from gpusight.results import NotApplicable
from gpusight.units import format_share

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpusight.analysis.flops.counted_operators import CountedOperators
    from gpusight.analysis.flops.operator_roofs import GpuRoofs
    from gpusight.trace.trace import Trace


MIN_ROOF_SHARE = 0.8
"""Part of the roof from which on there is little left: what large products of the best libraries
reach."""
_CLASS = ["entry", "precision", "tensor_core", "device"]
_SCHEMA = {"row": pl.Int64(), "least_ns": pl.Float64(), "call_ns": pl.Float64()}


def least_times(scope: WorkSelection) -> pl.DataFrame:
    """Give, for kernels whose operator was counted, the least time its call could take.

    Columns: `row` of `kernels`, `least_ns`, and `call_ns`, what all GPU work of the call took.
    """
    trace = scope.trace
    if not (trace.has("cpu_ops", "shapes") and trace.has("kernels")):
        return pl.DataFrame(schema=_SCHEMA)
    counted = count_ops(scope)
    if counted.calls.is_empty():
        return pl.DataFrame(schema=_SCHEMA)
    devices = counted.calls["device"].unique().sort()
    calls = _bounded(counted, roofs_of(trace, devices, peak=None, bandwidth=None))
    return _owned(scope, calls).select(
        "row", "least_ns", pl.col("gpu_ns").cast(pl.Float64).alias("call_ns")
    )


def _bounded(counted: CountedOperators, roofs: GpuRoofs) -> pl.DataFrame:
    """Add the least time to each call; those that cost the same and ran alike at once."""
    classes = counted.calls.select(_CLASS).unique(maintain_order=True)
    least = []
    for entry, precision, tensor_core, device in classes.iter_rows():
        cost, roof = counted.cost(entry), roofs.of(device)
        peak = (
            roof.peak(OperatorArithmetic.of(cost, precision, tensor_core)) if cost.flops else None
        )
        least.append(TimeBound.of(cost, peak, roof.bandwidth).least_ns)
    told = classes.with_columns(pl.Series("least_ns", least, pl.Float64))
    return counted.calls.join(told, on=_CLASS, how="left", nulls_equal=True).drop_nulls("least_ns")


def _owned(scope: WorkSelection, calls: pl.DataFrame) -> pl.DataFrame:
    """Give the kernels that a call launched, itself or through what it called."""
    owner = _owners(scope.trace, calls)
    work = selected_work(scope).frame.filter(pl.col("kind") == "kernel")
    kernels = work.select(scope.gpu_rows("kernels").cast(pl.Int64).alias("row"), "op")
    kernels = kernels.drop_nulls("op")
    kernels = kernels.with_columns(pl.Series("op", owner[kernels["op"].to_numpy()], pl.Int64))
    return kernels.join(calls.with_columns(pl.col("op").cast(pl.Int64)), on="op")


def _owners(trace: Trace, calls: pl.DataFrame) -> np.ndarray:
    """Find for each operator the counted call that it is or belongs to; -1 for none."""
    nested = FrameworkOperators(trace).nested
    marked = np.zeros(trace.row_count("cpu_ops"), dtype=np.bool_)
    marked[calls["op"].to_numpy()] = True
    found = np.empty(len(marked), dtype=np.int64)
    found[nested.rows] = nested.rows_at(nested.nearest(marked[nested.rows]))
    return found


FUNCTION, MANGLED = "function", "mangled"
"""What names are compared by; the latter tells template instances apart."""
CUT = "..."
"""How names end that a printed table cut short."""


def function_of(name: str) -> str:
    """Give the function of a kernel's name, which may be mangled."""
    head, _, _ = split(clean(demangle(name)))
    return head.rsplit("::", 1)[-1]


def functions(trace: Trace) -> pl.Series:
    """Give the function of each kernel of a timeline, as categories of their own.

    The capture's own word counts where it has one: a demangler of another make may differ.
    """
    kernels = trace.table("kernels", ["name", "base_name"])
    names, bases = (names_of(kernels[column]) for column in ("name", "base_name"))
    pairs = kernels.select(pl.all().to_physical())
    distinct = pairs.unique(maintain_order=True)
    texts = [
        function_of(names[name]) if base is None else bases[base]
        for name, base in distinct.iter_rows()
    ]
    told = distinct.with_columns(pl.Series("function", texts, pl.String))
    joined = pairs.join(
        told, on=["name", "base_name"], how="left", nulls_equal=True, maintain_order="left"
    )
    return joined["function"].cast(pl.Enum(sorted(set(texts))))


def pattern_of(texts: Iterable[str]) -> str:
    """Write a regular expression that matches these names and no others.

    A name that was cut short matches whatever begins like it.
    """
    return "|".join(sorted(set(map(_part, texts))))


def _part(text: str) -> str:
    # Of a name that is nothing but the mark, no beginning is known that could be looked for.
    begins = text.removesuffix(CUT)
    return f"^{literal(begins)}" if begins and begins != text else f"^{literal(text)}$"


COMMAND = "drill"
DEFAULT_TOP_KERNELS = 3
MIN_TIME_SHARE = 0.01
"""Part of all kernel time below which a faster kernel changes nothing that is seen."""
_ARITHMETIC = ("matmul", "convolution", "attention")
_COMMUNICATION = "communication"
_KEY = ("name", *SHAPE)
_MOST_KERNELS = 200
_ONLY_NVIDIA = "Nsight Compute measures GPUs of NVIDIA only"


class DrillChoice(enum.Enum):
    """What becomes of a kernel."""

    CHOSEN = "chosen"
    AT_ROOF = "at its roof"
    COMMUNICATES = "communicates"
    SMALL = "too small"
    NEXT = "later"


@dataclass(frozen=True, slots=True)
class DrillKernel:
    """A kernel with one launch shape, as it ran in the window."""

    group: int
    """Its place by time, from 0; what `DrillSelection.launches` calls it."""
    row: int
    """Where one of its launches stands in `kernels`; -1 where there is none."""
    name: str
    function: str
    """What Nsight Compute matches."""
    mangled_name: str | None
    shape: tuple[int | None, ...]
    """Grid in x, y, z, then block in x, y, z."""
    launches: int
    time_ns: int
    share: float
    """Part of the time of all kernels in the window."""
    roof_share: float | None
    """How near to its roof it ran; None where the timeline cannot tell."""
    verdict: DrillChoice = DrillChoice.NEXT
    why: str = ""

    @property
    def short_name(self) -> str:
        """Readable label."""
        return classify(self.name).short

    @property
    def category(self) -> str:
        """What it does, from its name."""
        return classify(self.name).category


@dataclass(frozen=True)
class DrillSelection:
    """The kernels of a window, those worth measuring among them, and every launch."""

    trace: Trace
    focus: StepWindow
    process: int | None
    window_ns: int
    """Time looked at."""
    kernels: tuple[DrillKernel, ...]
    """By time, the longest first; those that matter."""
    time_ns: int
    """Of all kernels in the window."""
    launches: pl.DataFrame
    """Every kernel that the process launched, in order: `launch_ns`, `thread`, `function`,
    `mangled_name`, `group` (null for kernels that do not run in the window) and whether it was
    launched `inside` it."""
    notes: tuple[str, ...] = ()

    @property
    def chosen(self) -> tuple[DrillKernel, ...]:
        """What to measure, the longest first."""
        return tuple(k for k in self.kernels if k.verdict is DrillChoice.CHOSEN)


def pick_kernels(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    top: int = DEFAULT_TOP_KERNELS,
    kernel: str | None = None,
) -> DrillSelection | NotApplicable:
    """Choose `top` kernels worth measuring (0: all of them), or those that `kernel` names."""
    absent = _absent(trace)
    if absent is not None:
        return absent
    window = step_window(trace, selection)
    if isinstance(window, NotApplicable):
        return replace(window, command=COMMAND)
    scope = WorkSelection(trace, selection)
    work = launched(trace)
    process, notes = _process(trace, work, window)
    launches = _inside(_launches(trace, of_process(work, process)), scope, window)
    if not launches["inside"].any():
        return NotApplicable(COMMAND, "no kernel was launched in the window")
    grouped = _grouped(launches, least_times(scope))
    shown = grouped
    if kernel is not None:
        wanted = matching_names(grouped["name"], kernel)
        shown = grouped.filter(pl.col("name").cast(pl.String).is_in(wanted))
    kernels = choose_kernels(
        _kernels(shown, int(grouped["time_ns"].sum())), top, asked=kernel is not None
    )
    told = launches.join(
        grouped.select(*_KEY, "group"), on=_KEY, how="left", nulls_equal=True, maintain_order="left"
    )
    return DrillSelection(
        trace,
        window,
        process,
        _length_ns(selection, window),
        kernels,
        int(grouped["time_ns"].sum()),
        told.select("launch_ns", "thread", "function", "mangled_name", "group", "inside"),
        (*window.notes, *notes, *scope.notes),
    )


def _process(
    trace: Trace, work: pl.DataFrame, window: StepWindow
) -> tuple[int | None, tuple[str, ...]]:
    """Choose the process whose launches are counted: that of the steps, else the busiest."""
    if window.steps:
        return window.steps[0].process, ()
    return busiest_process(trace, work, "kernels are those of")


def _length_ns(selection: Selection, window: StepWindow) -> int:
    if _by_steps(selection, window):
        return sum(step.end_ns - step.start_ns for step in window.steps)
    return window.length_ns


def _absent(trace: Trace) -> NotApplicable | None:
    if not trace.has("kernels"):
        return no_kernels(trace, COMMAND)
    gpus = [listed_gpu(row) for row in trace.table("devices").iter_rows(named=True)]
    if gpus and all(gpu is not None and gpu.vendor == "AMD" for gpu in gpus):
        return NotApplicable(COMMAND, _ONLY_NVIDIA, "for AMD's there is rocprof-compute")
    return None


def _launches(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """List the kernels of this work in order of launch, with what tells them apart."""
    mine = work.filter(pl.col("table") == GPU_WORK.index("kernels"))
    kernels = trace.table("kernels", ["name", "mangled_name", *SHAPE])
    kernels = kernels.with_columns(functions(trace).alias("function"))[mine["row"]]
    took = (pl.col("end_ns") - pl.col("start_ns")).alias("time_ns")
    return mine.select("launch_ns", "thread", "row", took).hstack(kernels.get_columns())


def _inside(launches: pl.DataFrame, scope: WorkSelection, window: StepWindow) -> pl.DataFrame:
    """Tell which launches are of the selection, and happened in the window."""
    end_ns = max((step.end_ns for step in window.steps), default=window.end_ns)
    during = pl.col("launch_ns").is_between(window.start_ns, end_ns, "left")
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
    """Tell whether only whole steps count: a range may begin and end in the middle of some."""
    return selection.within is not None and bool(window.steps)


def _grouped(launches: pl.DataFrame, least: pl.DataFrame) -> pl.DataFrame:
    """Sum up what ran inside by name and shape, the longest first."""
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
    """Describe the kernels that take most time; the rest of them is too small to be worth it."""
    total = max(1, total_ns)
    shown = grouped.head(_MOST_KERNELS).with_columns(
        pl.col("name", "function", "mangled_name").cast(pl.String)
    )
    return [_kernel(row, total) for row in shown.iter_rows(named=True)]


def _kernel(row: dict[str, Any], total: int) -> DrillKernel:
    # A helper of a product, such as what adds up its parts, is not what the formula counts.
    told = row["roofed"] and classify(row["name"]).category in _ARITHMETIC
    return DrillKernel(
        group=row["group"],
        row=row["row"],
        name=row["name"],
        function=row["function"],
        mangled_name=row["mangled_name"],
        shape=tuple(row[column] for column in SHAPE),
        launches=row["launches"],
        time_ns=row["time_ns"],
        share=row["time_ns"] / total,
        roof_share=row["roof_share"] if told else None,
    )


# Choosing -----------------------------------------------------------------------------------------


def choose_kernels(
    kernels: Sequence[DrillKernel], top: int, *, asked: bool
) -> tuple[DrillKernel, ...]:
    """Choose the first `top` of kernels in order of time (0: all), or of those worth it."""
    return tuple(_requested_kernels(kernels, top) if asked else _worth(kernels, top))


def _worth(kernels: Sequence[DrillKernel], top: int) -> Iterator[DrillKernel]:
    """Choose by time, leaving out what is not worth it."""
    left = top or len(kernels)
    for kernel in kernels:
        verdict, why = _left_out(kernel)
        if verdict is None:
            verdict = DrillChoice.CHOSEN if left > 0 else DrillChoice.NEXT
            why = _chosen_why(kernel) if left > 0 else f"after the first {top}"
            left -= 1
        yield replace(kernel, verdict=verdict, why=why)


def _left_out(kernel: DrillKernel) -> tuple[DrillChoice | None, str]:
    if kernel.category == _COMMUNICATION:
        return DrillChoice.COMMUNICATES, "communicates: replayed alone, it would wait for ever"
    if kernel.roof_share is not None and kernel.roof_share >= MIN_ROOF_SHARE:
        return DrillChoice.AT_ROOF, f"at {format_share(kernel.roof_share)} of its roof already"
    if kernel.share < MIN_TIME_SHARE:
        return DrillChoice.SMALL, f"below {format_share(MIN_TIME_SHARE)} of the time of kernels"
    return None, ""


def _chosen_why(kernel: DrillKernel) -> str:
    if kernel.roof_share is None:
        return "by its time; its roof is not known"
    return f"by its time, at {format_share(kernel.roof_share)} of its roof"


def _requested_kernels(kernels: Sequence[DrillKernel], top: int) -> Iterator[DrillKernel]:
    for number, kernel in enumerate(kernels):
        if number < (top or len(kernels)):
            yield replace(kernel, verdict=DrillChoice.CHOSEN, why="asked for")
        else:
            yield replace(kernel, why=f"after the first {top}")


def matching_names(names: pl.Series, pattern: str) -> list[str]:
    """Find what a pattern means; where it means nothing as it is, as a regular expression."""
    texts = names.cast(pl.String).unique(maintain_order=True).to_list()
    known = {number: (text, classify(text).short) for number, text in enumerate(texts)}
    try:
        found = kernel_codes(known, pattern)
    except UsageError as absent:
        try:
            found = kernel_codes(known, f"regex:{pattern}")
        except UsageError:
            raise absent from None
    return [texts[number] for number in found]
