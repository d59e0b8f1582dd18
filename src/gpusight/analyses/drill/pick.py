"""Which kernels are worth measuring: a kernel is a name with a launch shape.

Those that take most of the time after warm-up come first. Left out are kernels that are at their
roof already, as far as the timeline can tell, those that communicate, and those that are too small
to matter.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analyses.attribution.work import WorkScope
from gpusight.analyses.counters.choose import kernel_codes
from gpusight.analyses.devices import listed_gpu
from gpusight.analyses.drill.functions import functions
from gpusight.analyses.drill.roofs import AT_ROOF, least_times
from gpusight.analyses.kernels import no_kernels
from gpusight.analyses.launch_columns import SHAPE
from gpusight.analyses.select import EVERYTHING, GPU_WORK, Selection
from gpusight.analyses.steps.detect import busiest_process
from gpusight.analyses.steps.focus import Focus, focus
from gpusight.analyses.steps.launched import launched, of_process
from gpusight.analyses.steps.step import Steps
from gpusight.errors import UsageError
from gpusight.model.kernel_names import classify
from gpusight.result import NotApplicable
from gpusight.units import format_share

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusight.model.trace import Trace

COMMAND = "drill"
TOP = 3
LITTLE = 0.01
"""Part of all kernel time below which a faster kernel changes nothing that is seen."""
_ARITHMETIC = ("matmul", "convolution", "attention")
_COMMUNICATION = "communication"
_KEY = ("name", *SHAPE)
_MOST_KERNELS = 200
_ONLY_NVIDIA = "Nsight Compute measures GPUs of NVIDIA only"


class Verdict(enum.Enum):
    """What becomes of a kernel."""

    CHOSEN = "chosen"
    AT_ROOF = "at its roof"
    COMMUNICATES = "communicates"
    SMALL = "too small"
    NEXT = "later"


@dataclass(frozen=True, slots=True)
class Kernel:
    """A kernel with one launch shape, as it ran in the window."""

    group: int
    """Its place by time, from 0; what `Picked.launches` calls it."""
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
    verdict: Verdict = Verdict.NEXT
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
class Picked:
    """The kernels of a window, those worth measuring among them, and every launch."""

    trace: Trace
    focus: Focus
    process: int | None
    window_ns: int
    """Time looked at."""
    kernels: tuple[Kernel, ...]
    """By time, the longest first; those that matter."""
    time_ns: int
    """Of all kernels in the window."""
    launches: pl.DataFrame
    """Every kernel that the process launched, in order: `launch_ns`, `thread`, `function`,
    `mangled_name`, `group` (null for kernels that do not run in the window) and whether it was
    launched `inside` it."""
    notes: tuple[str, ...] = ()

    @property
    def chosen(self) -> tuple[Kernel, ...]:
        """What to measure, the longest first."""
        return tuple(k for k in self.kernels if k.verdict is Verdict.CHOSEN)


def pick(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    top: int = TOP,
    kernel: str | None = None,
) -> Picked | NotApplicable:
    """Choose `top` kernels worth measuring (0: all of them), or those that `kernel` names."""
    absent = _absent(trace)
    if absent is not None:
        return absent
    window = focus(trace, selection)
    if isinstance(window, NotApplicable):
        return replace(window, command=COMMAND)
    scope = WorkScope(trace, selection)
    work = launched(trace)
    process, notes = _process(trace, work, window)
    launches = _inside(_launches(trace, of_process(work, process)), scope, window)
    if not launches["inside"].any():
        return NotApplicable(COMMAND, "no kernel was launched in the window")
    grouped = _grouped(launches, least_times(scope))
    shown = grouped
    if kernel is not None:
        wanted = matching(grouped["name"], kernel)
        shown = grouped.filter(pl.col("name").cast(pl.String).is_in(wanted))
    kernels = judged(_kernels(shown, int(grouped["time_ns"].sum())), top, asked=kernel is not None)
    told = launches.join(
        grouped.select(*_KEY, "group"), on=_KEY, how="left", nulls_equal=True, maintain_order="left"
    )
    return Picked(
        trace,
        window,
        process,
        _length_ns(selection, window),
        kernels,
        int(grouped["time_ns"].sum()),
        told.select("launch_ns", "thread", "function", "mangled_name", "group", "inside"),
        (*window.notes, *notes, *scope.notes),
    )


def _process(trace: Trace, work: pl.DataFrame, window: Focus) -> tuple[int | None, tuple[str, ...]]:
    """Choose the process whose launches are counted: that of the steps, else the busiest."""
    if window.steps:
        return window.steps[0].process, ()
    return busiest_process(trace, work, "kernels are those of")


def _length_ns(selection: Selection, window: Focus) -> int:
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


def _inside(launches: pl.DataFrame, scope: WorkScope, window: Focus) -> pl.DataFrame:
    """Tell which launches are of the selection, and happened in the window."""
    end_ns = max((step.end_ns for step in window.steps), default=window.end_ns)
    during = pl.col("launch_ns").is_between(window.start_ns, end_ns, "left")
    if not scope.selection:
        return launches.with_columns(during.alias("inside"))
    if _by_steps(scope.selection, window):
        process = pl.Series([window.steps[0].process], dtype=pl.Int64)
        step = Steps(window.steps).holding(
            launches["launch_ns"], process.new_from_index(0, launches.height)
        )
        during = pl.lit(step.is_not_null())
    rows = scope.gpu_rows("kernels").cast(pl.Int64).implode()
    return launches.with_columns((during & pl.col("row").is_in(rows)).alias("inside"))


def _by_steps(selection: Selection, window: Focus) -> bool:
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


def _kernels(grouped: pl.DataFrame, total_ns: int) -> list[Kernel]:
    """Describe the kernels that take most time; the rest of them is too small to be worth it."""
    total = max(1, total_ns)
    shown = grouped.head(_MOST_KERNELS).with_columns(
        pl.col("name", "function", "mangled_name").cast(pl.String)
    )
    return [_kernel(row, total) for row in shown.iter_rows(named=True)]


def _kernel(row: dict[str, Any], total: int) -> Kernel:
    # A helper of a product, such as what adds up its parts, is not what the formula counts.
    told = row["roofed"] and classify(row["name"]).category in _ARITHMETIC
    return Kernel(
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


def judged(kernels: Sequence[Kernel], top: int, *, asked: bool) -> tuple[Kernel, ...]:
    """Choose the first `top` of kernels in order of time (0: all), or of those worth it."""
    return tuple(_asked(kernels, top) if asked else _worth(kernels, top))


def _worth(kernels: Sequence[Kernel], top: int) -> Iterator[Kernel]:
    """Choose by time, leaving out what is not worth it."""
    left = top or len(kernels)
    for kernel in kernels:
        verdict, why = _left_out(kernel)
        if verdict is None:
            verdict = Verdict.CHOSEN if left > 0 else Verdict.NEXT
            why = _chosen_why(kernel) if left > 0 else f"after the first {top}"
            left -= 1
        yield replace(kernel, verdict=verdict, why=why)


def _left_out(kernel: Kernel) -> tuple[Verdict | None, str]:
    if kernel.category == _COMMUNICATION:
        return Verdict.COMMUNICATES, "communicates: replayed alone, it would wait for ever"
    if kernel.roof_share is not None and kernel.roof_share >= AT_ROOF:
        return Verdict.AT_ROOF, f"at {format_share(kernel.roof_share)} of its roof already"
    if kernel.share < LITTLE:
        return Verdict.SMALL, f"below {format_share(LITTLE)} of the time of kernels"
    return None, ""


def _chosen_why(kernel: Kernel) -> str:
    if kernel.roof_share is None:
        return "by its time; its roof is not known"
    return f"by its time, at {format_share(kernel.roof_share)} of its roof"


def _asked(kernels: Sequence[Kernel], top: int) -> Iterator[Kernel]:
    for number, kernel in enumerate(kernels):
        if number < (top or len(kernels)):
            yield replace(kernel, verdict=Verdict.CHOSEN, why="asked for")
        else:
            yield replace(kernel, why=f"after the first {top}")


def matching(names: pl.Series, pattern: str) -> list[str]:
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
