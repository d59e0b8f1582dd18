"""`nsys stats` without nsys: the list of reports, running one, and the table it gives."""

from __future__ import annotations

import enum
import importlib
from dataclasses import dataclass, replace
from decimal import ROUND_HALF_UP, Decimal
from typing import TYPE_CHECKING

import polars as pl

from gpusight.analysis.aggregates import DURATION, names_of, share_of, timing_by_name
from gpusight.analysis.recording_advice import advice_for
from gpusight.errors import UsageError
from gpusight.results import NotApplicable

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from types import ModuleType

    from gpusight.trace.trace import Trace


class StatsCell(enum.Enum):
    """How a value is printed, so that equal values give the text that `nsys stats` gives."""

    TEXT = "text"
    WHOLE = "whole"
    TENTHS = "tenths"
    """One decimal; an exact tie rounds away from zero."""
    MEGA = "mega"
    """Millions of the unit with three decimals."""
    HEX = "hex"
    MICROSECONDS = "us"
    MILLISECONDS = "ms"
    SECONDS = "s"
    """Times in a unit that the user chose, with as many decimals as nsys gives them."""


@dataclass(frozen=True, slots=True)
class StatsColumn:
    """One column of a report: its heading, units included, and how its values are printed."""

    header: str
    cell: StatsCell


@dataclass(frozen=True)
class StatsReport:
    """The rows of one report. `frame` has a column for each heading, in base units, unrounded."""

    name: str
    title: str
    columns: tuple[StatsColumn, ...]
    frame: pl.DataFrame
    kernel_column: str = ""
    """Heading of the column with whole names of kernels, if there is one."""

    def __post_init__(self) -> None:
        """Check that headings and columns agree."""
        headers = [c.header for c in self.columns]
        if headers != self.frame.columns:
            raise ValueError(f"{self.name}: headings {headers} but columns {self.frame.columns}")

    def cells(self) -> pl.DataFrame:
        """Return every value as the text that is printed; empty for a null."""
        return pl.DataFrame(
            [_FORMATS[c.cell](self.frame.get_column(c.header)) for c in self.columns]
        )

    def csv_rows(self) -> list[tuple[str, ...]]:
        """Return the printed rows, without the headings."""
        return self.cells().rows()


def _text(values: pl.Series) -> pl.Series:
    return values.cast(pl.String).fill_null("")


def _each(render: Callable[[float], str]) -> Callable[[pl.Series], pl.Series]:
    """Print each distinct value once: these columns repeat few values many times."""

    def show(values: pl.Series) -> pl.Series:
        distinct = values.unique().drop_nulls()
        if distinct.is_empty():
            return pl.Series(values.name, [""], dtype=pl.String).new_from_index(0, len(values))
        texts = pl.Series([render(v) for v in distinct.to_list()], dtype=pl.String)
        return values.replace_strict(distinct, texts, default="", return_dtype=pl.String)

    return show


_TENTH = Decimal("0.1")
_FORMATS: dict[StatsCell, Callable[[pl.Series], pl.Series]] = {
    StatsCell.TEXT: _text,
    StatsCell.WHOLE: _text,
    # Of the exact binary value: 0.25 is a tie, 0.35 is a little less than one.
    StatsCell.TENTHS: _each(lambda value: str(Decimal(value).quantize(_TENTH, ROUND_HALF_UP))),
    StatsCell.MEGA: _each(lambda value: f"{value / 1e6:.3f}"),
    StatsCell.HEX: _each(lambda value: f"0x{int(value):X}"),
    StatsCell.MICROSECONDS: _each(lambda value: f"{value / 1e3:.3f}"),
    StatsCell.MILLISECONDS: _each(lambda value: f"{value / 1e6:.4f}"),
    StatsCell.SECONDS: _each(lambda value: f"{value / 1e9:.5f}"),
}
TIME_UNITS = {
    "us": StatsCell.MICROSECONDS,
    "ms": StatsCell.MILLISECONDS,
    "s": StatsCell.SECONDS,
}
"""Units that times can be given in instead of ns, and how they are printed."""


def in_time_unit(report: StatsReport, unit: str) -> StatsReport:
    """Give the times of a report in another unit, as `nsys stats --timeunit` does."""
    columns, values = list(report.columns), report.frame.get_columns()
    for at, column in enumerate(report.columns):
        if "(ns)" in column.header:
            columns[at] = StatsColumn(column.header.replace("(ns)", f"({unit})"), TIME_UNITS[unit])
            if column.cell is StatsCell.TENTHS:  # nsys converts what it has rounded
                values[at] = _FORMATS[column.cell](values[at]).replace("", None).cast(pl.Float64)
            values[at] = values[at].alias(columns[at].header)
    return replace(report, columns=tuple(columns), frame=pl.DataFrame(values))


def add_owner(
    trace: Trace, frame: pl.DataFrame, pid: str = "PID", tid: str = "TID"
) -> pl.DataFrame:
    """Add the operating system's numbers of each row's `process` and `thread`."""
    processes = trace.table("processes", ["process", "pid"]).rename({"pid": pid})
    threads = trace.table("threads", ["thread", "tid"]).rename({"tid": tid})
    return _left_join(_left_join(frame, processes, "process"), threads, "thread")


def add_thread(trace: Trace, frame: pl.DataFrame) -> pl.DataFrame:
    """Add name and priority of each row's `thread`."""
    threads = trace.table("threads", ["thread", "name", "priority"]).select(
        "thread",
        pl.col("name").cast(pl.String).alias("Thread Name"),
        pl.col("priority").alias("T-Pri"),
    )
    return _left_join(frame, threads, "thread")


def add_device_label(trace: Trace, frame: pl.DataFrame, label: str) -> pl.DataFrame:
    """Add name and number of each row's `device`, such as `NVIDIA H200 (0)`."""
    from gpusight.analysis.capture_info import device_names

    names = {d: f"{name or 'GPU'} ({d})" for d, name in device_names(trace).items()}
    labels = pl.DataFrame(
        {"device": list(names), label: list(names.values())},
        schema={"device": pl.Int64, label: pl.String},
    )
    return _left_join(frame, labels, "device")


def _left_join(frame: pl.DataFrame, other: pl.DataFrame, key: str) -> pl.DataFrame:
    return frame.join(other.unique(key), on=key, how="left", maintain_order="left")


def each(cell: StatsCell, *headers: str) -> dict[str, StatsCell]:
    """Return headings whose values are printed alike."""
    return dict.fromkeys(headers, cell)


TIME_SUMMARY = {
    "Avg (ns)": StatsCell.TENTHS,
    "Med (ns)": StatsCell.TENTHS,
    "Min (ns)": StatsCell.WHOLE,
    "Max (ns)": StatsCell.WHOLE,
    "StdDev (ns)": StatsCell.TENTHS,
}


def time_headers(count: str = "Instances") -> dict[str, StatsCell]:
    """Return the headings that a summary of times starts with; `count` is what a row counts."""
    return {
        "Time (%)": StatsCell.TENTHS,
        "Total Time (ns)": StatsCell.WHOLE,
        count: StatsCell.WHOLE,
        **TIME_SUMMARY,
    }


def spread(value: pl.Expr, prefix: str = "", unit: str = "ns") -> list[pl.Expr]:
    """Compute average, median, extremes and sample deviation (0 for a single value)."""
    return [
        value.mean().alias(f"{prefix}Avg ({unit})"),
        value.median().alias(f"{prefix}Med ({unit})"),
        value.min().alias(f"{prefix}Min ({unit})"),
        value.max().alias(f"{prefix}Max ({unit})"),
        value.std(ddof=1).fill_null(0.0).alias(f"{prefix}StdDev ({unit})"),
    ]


def summarize_times(
    frame: pl.DataFrame | pl.LazyFrame, by: list[str], *, count: str = "Instances"
) -> pl.DataFrame:
    """Summarize `start_ns`..`end_ns` for each group; unsorted, without the share of time."""
    if isinstance(frame, pl.DataFrame) and len(by) == 1:
        names = frame.get_column(by[0])
        if isinstance(names.dtype, pl.Enum) and not names.null_count():
            return _named_times(timing_by_name(frame, by[0]), names, count)
    time = pl.col("time")
    return (
        frame.lazy()
        .select(*by, DURATION.alias("time"))
        .group_by(by)
        .agg(time.sum().alias("Total Time (ns)"), pl.len().alias(count), *spread(time))
        .collect()
    )


def _named_times(sums: pl.DataFrame, names: pl.Series, count: str) -> pl.DataFrame:
    """Give sums by name the headings of nsys."""
    texts = pl.Series(names_of(names), dtype=pl.String)
    named = texts.gather(sums.get_column("code")).cast(names.dtype)
    calls = pl.col("calls").cast(pl.UInt32).alias(count)
    return sums.select(named.alias(names.name), calls, *times_headed())


def times_headed() -> list[pl.Expr]:
    """Select sums that `timing` computes, under the headings of nsys."""
    headers = {
        "Total Time (ns)": "total_ns",
        "Avg (ns)": "mean_ns",
        "Med (ns)": "median_ns",
        "Min (ns)": "min_ns",
        "Max (ns)": "max_ns",
        "StdDev (ns)": "stddev_ns",
    }
    return [pl.col(key).alias(header) for header, key in headers.items()]


def rank_times(summary: pl.DataFrame, names: list[str]) -> pl.DataFrame:
    """Add each group's share of the time listed and put the largest first, ties by name."""
    total = pl.col("Total Time (ns)")
    share = share_of(100 * total, total.sum()).fill_null(0.0)
    return summary.with_columns(share.alias("Time (%)")).sort(
        "Total Time (ns)", *names, descending=[True] + [False] * len(names)
    )


@dataclass(frozen=True, slots=True)
class ReportArguments:
    """The arguments of one report."""

    kernel_name: str = "name"
    """Column of `kernels` that names a kernel."""
    nvtx_name: bool = False
    """Put the innermost NVTX range before a kernel's name."""
    rows: int = 10
    """Maximum number of rows; negative for all."""


KERNEL_NAMES = ("base", "mangled", "nobase")
WITH_RANGE = ("nvtx-name", *KERNEL_NAMES)
ROWS = ("rows=<limit>",)


def parse_arguments(report: str, allowed: tuple[str, ...], words: list[str]) -> ReportArguments:
    """Read the words that follow a report's name; raises UsageError for one it does not take."""
    parsed = ReportArguments()
    for word in words:
        key, _, value = word.partition("=")
        if word in allowed and word == "nvtx-name":
            parsed = replace(parsed, nvtx_name=True)
        elif word in allowed:
            # `base` wins over `mangled`, as it does in nsys.
            if word != "nobase" and parsed.kernel_name != "base_name":
                parsed = replace(parsed, kernel_name=f"{word}_name")
        elif f"{key}=<limit>" in allowed and value.lstrip("-").isdecimal():
            parsed = replace(parsed, rows=int(value))
        else:
            takes = f"it takes {', '.join(allowed)}" if allowed else "it takes none"
            raise UsageError(f"report {report} has no argument {word!r}", hint=takes)
    return parsed


@dataclass(frozen=True, slots=True)
class ReportNeed:
    """Data that a report needs: any one of these tables."""

    tables: tuple[str, ...]
    words: str
    """What the capture does not contain, as the error message names it."""
    source: str = ""
    """The library whose ranges are needed; empty where any table of those will do."""

    def met(self, trace: Trace) -> bool:
        """Return whether the capture has what is needed."""
        if not self.source:
            return any(trace.has(table) for table in self.tables)
        if not trace.has("ranges", "source"):
            return False
        return self.source in names_of(trace.table("ranges", ["source"])["source"])


@dataclass(frozen=True, slots=True)
class NsysReport:
    """One report: its names, what it needs, and where it is computed."""

    name: str
    title: str
    module: str
    function: str
    headers: str
    """Name of the headings in the module."""
    needs: tuple[ReportNeed, ...]
    aliases: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()

    @property
    def usage(self) -> str:
        """The name with the arguments that may follow it."""
        return self.name + "".join(f"[:{a}]" for a in self.arguments)

    def missing(self, trace: Trace, arguments: ReportArguments) -> ReportNeed | None:
        """Find the first need that the capture does not meet."""
        prefixed = arguments.nvtx_name and trace.has("kernels")
        needs = (*self.needs, _RANGES) if prefixed else self.needs
        return next((need for need in needs if not need.met(trace)), None)

    @property
    def columns(self) -> tuple[StatsColumn, ...]:
        """Its columns, in order."""
        headers: Mapping[str, StatsCell] = getattr(self._computed_in, self.headers)
        return tuple(StatsColumn(header, cell) for header, cell in headers.items())

    @property
    def _computed_in(self) -> ModuleType:
        return importlib.import_module(f"{__package__}.{self.module}")

    def run(self, trace: Trace, arguments: ReportArguments) -> StatsReport:
        """Compute the report; the capture must meet its needs."""
        compute: Callable[[Trace, ReportArguments], pl.DataFrame]
        compute = getattr(self._computed_in, self.function)
        frame = compute(trace, arguments).select(c.header for c in self.columns)
        whole_names = arguments.kernel_name == "name" and not arguments.nvtx_name
        kernel_column = _KERNEL_COLUMNS.get(self.name, "") if whole_names else ""
        return StatsReport(self.name, self.title, self.columns, frame, kernel_column)


_KERNEL_COLUMNS = {
    **dict.fromkeys(("cuda_gpu_kern_sum", "cuda_gpu_kern_gb_sum", "cuda_gpu_trace"), "Name"),
    **dict.fromkeys(("cuda_gpu_sum", "cuda_api_gpu_sum"), "Operation"),
    **dict.fromkeys(("cuda_kern_exec_sum", "cuda_kern_exec_trace", "nvtx_kern_sum"), "Kernel Name"),
}
"""Reports that name kernels, and the heading of the column."""


_KERNELS = ReportNeed(("kernels",), "CUDA kernel data")
_CALLS = ReportNeed(("api_calls",), "CUDA trace data")
_MEMORY = ReportNeed(("copies", "memsets"), "GPU memory data")
_WORK = ("kernels", "copies", "memsets")
_RANGES = ReportNeed(("ranges",), "NVTX data")
_FAULTS = ReportNeed(("page_faults",), "unified-memory page faults")


def _library(
    name: str, title: str, function: str, headers: str, source: str, alias: str = ""
) -> NsysReport:
    need = ReportNeed(("ranges",), f"{source} trace data", source)
    aliases = (alias,) if alias else ()
    return NsysReport(name, title, "library_stats", function, headers, (need,), aliases)


_ALL = (
    NsysReport("cuda_api_gpu_sum", "CUDA Summary (API/Kernels/MemOps)", "cuda_stats",
               "api_gpu_summary", "GPU_SUMMARY",
               (ReportNeed(("api_calls", *_WORK), "CUDA calls, kernels or memory operations"),),
               ("apigpusum",), WITH_RANGE),
    NsysReport("cuda_api_sum", "CUDA API Summary", "cuda_stats", "api_summary", "API_SUMMARY",
               (_CALLS,), ("cudaapisum",)),
    NsysReport("cuda_api_trace", "CUDA API Trace", "cuda_stats", "api_trace", "API_TRACE",
               (_CALLS,), ("cudaapitrace",)),
    NsysReport("cuda_gpu_kern_gb_sum", "CUDA GPU Kernel/Grid/Block Summary", "cuda_stats",
               "kernel_grid_summary", "KERNEL_GRID_SUMMARY", (_KERNELS,), ("gpukerngbsum",),
               WITH_RANGE),
    NsysReport("cuda_gpu_kern_sum", "CUDA GPU Kernel Summary", "cuda_stats", "kernel_summary",
               "KERNEL_SUMMARY", (_KERNELS,), ("gpukernsum",), WITH_RANGE),
    NsysReport("cuda_gpu_mem_size_sum", "CUDA GPU MemOps Summary (by Size)", "memory_stats",
               "memory_size_summary", "MEMORY_SIZE", (_MEMORY,), ("gpumemsizesum",)),
    NsysReport("cuda_gpu_mem_time_sum", "CUDA GPU MemOps Summary (by Time)", "memory_stats",
               "memory_time_summary", "MEMORY_TIME", (_MEMORY,), ("gpumemtimesum",)),
    NsysReport("cuda_gpu_sum", "CUDA GPU Summary (Kernels/MemOps)", "cuda_stats", "gpu_summary",
               "GPU_SUMMARY", (ReportNeed(_WORK, "GPU kernel/memory operations data"),),
               ("gpusum",), WITH_RANGE),
    NsysReport("cuda_gpu_trace", "CUDA GPU Trace", "cuda_stats", "gpu_trace", "GPU_TRACE",
               (ReportNeed(_WORK, "GPU trace data"),), ("gputrace",), WITH_RANGE),
    NsysReport("cuda_kern_exec_sum", "CUDA Kernel Launch & Exec Time Summary", "cuda_stats",
               "execution_summary", "EXEC_SUMMARY", (_KERNELS, _CALLS), ("kernexecsum",),
               WITH_RANGE),
    NsysReport("cuda_kern_exec_trace", "CUDA Kernel Launch & Exec Time Trace", "cuda_stats",
               "execution_trace", "EXEC_TRACE", (_KERNELS, _CALLS), ("kernexectrace",), WITH_RANGE),
    _library("dx11_pix_sum", "DX11 PIX Range Summary", "direct3d_11_markers", "MARKED",
             "Direct3D 11", "dx11pixsum"),
    _library("dx12_pix_sum", "DX12 PIX Range Summary", "direct3d_12_markers", "MARKED",
             "Direct3D 12", "dx12pixsum"),
    _library("mpi_event_sum", "MPI Event Summary", "mpi", "MPI", "MPI"),
    NsysReport("nvtx_gpu_proj_sum", "NVTX GPU Projection Summary", "nvtx_stats",
               "projection_summary", "PROJECTION_SUMMARY",
               (_RANGES, ReportNeed(_WORK, "GPU operation data"), _CALLS), ("nvtxgpuprojsum",)),
    NsysReport("nvtx_gpu_proj_trace", "NVTX GPU Projection Trace", "nvtx_stats", "projection_trace",
               "PROJECTION_TRACE", (_RANGES, ReportNeed(_WORK, "GPU operation data"), _CALLS),
               ("nvtxgpuproj", "nvtxgpuprojtrace")),
    NsysReport("nvtx_kern_sum", "NVTX Range Kernel Summary", "nvtx_stats", "range_kernels",
               "RANGE_KERNELS", (_RANGES, _KERNELS, _CALLS), ("nvtxkernsum",), KERNEL_NAMES),
    NsysReport("nvtx_pushpop_sum", "NVTX Push/Pop Range Summary", "nvtx_stats", "push_pop_summary",
               "RANGE_SUMMARY", (_RANGES,), ("nvtxppsum",)),
    NsysReport("nvtx_pushpop_trace", "NVTX Push/Pop Range Trace", "nvtx_stats", "push_pop_trace",
               "PUSH_POP_TRACE", (_RANGES,), ("nvtxpptrace",)),
    NsysReport("nvtx_startend_sum", "NVTX Start/End Range Summary", "nvtx_stats",
               "start_end_summary", "RANGE_SUMMARY", (_RANGES,), ("nvtxsesum", "nvtxsssum")),
    NsysReport("nvtx_sum", "NVTX Range Summary", "nvtx_stats", "styled_summary", "STYLED_SUMMARY",
               (_RANGES,), ("nvtxsum",)),
    _library("nvvideo_api_sum", "NvVideo API Summary", "video", "VIDEO", "video"),
    _library("openacc_sum", "OpenACC Summary", "openacc", "CALLED", "OpenACC", "openaccsum"),
    _library("opengl_khr_range_sum", "OpenGL KHR_debug Range Summary", "opengl_markers", "MARKED",
             "OpenGL", "khrdebugsum"),
    _library("openmp_sum", "OpenMP Summary", "openmp", "COUNTED", "OpenMP", "openmpevtsum"),
    NsysReport("osrt_sum", "OS Runtime Summary", "cuda_stats", "os_summary", "OS_SUMMARY",
               (ReportNeed(("os_calls",), "OS Runtime trace data"),), ("osrtsum",)),
    NsysReport("um_cpu_page_faults_sum", "Unified Memory CPU Page Faults Summary", "memory_stats",
               "cpu_faults", "CPU_FAULTS", (_FAULTS,), ("umcpupagefaults",)),
    NsysReport("um_sum", "Unified Memory Analysis Summary", "memory_stats", "page_summary",
               "PAGE_SUMMARY", (_FAULTS,), ("unifiedmemory",), ROWS),
    NsysReport("um_total_sum", "Unified Memory Totals Summary", "memory_stats", "totals", "TOTALS",
               (_FAULTS,), ("unifiedmemorytotals",)),
    _library("vulkan_api_sum", "Vulkan API Summary", "vulkan_calls", "CALLED", "Vulkan",
             "vulkanapisum"),
    _library("vulkan_marker_sum", "Vulkan Range Summary", "vulkan_markers", "MARKED", "Vulkan",
             "vulkanmarkerssum"),
)  # fmt: skip
"""Sorted by name."""
REPORTS: dict[str, NsysReport] = {report.name: report for report in _ALL}
_BY_ALIAS = {alias: report for report in _ALL for alias in report.aliases}


def resolve(name: str) -> NsysReport:
    """Find a report by its name or an older spelling of it; raises UsageError."""
    report = REPORTS.get(name) or _BY_ALIAS.get(name)
    if report is None:
        raise UsageError(f"no report {name!r}", hint=f"reports are {', '.join(REPORTS)}")
    return report


def run_report(trace: Trace, name_with_args: str) -> StatsReport | NotApplicable:
    """Run a report, named as on the command line: `cuda_gpu_kern_sum`, `cuda_gpu_trace:base`."""
    name, *words = name_with_args.split(":")
    report = resolve(name)
    arguments = parse_arguments(report.name, report.arguments, words)
    need = report.missing(trace, arguments)
    if need is not None:
        hint = advice_for(trace.meta).remedy(need.tables)
        return NotApplicable("stats", f"{trace.meta.path} does not contain {need.words}", hint)
    result = report.run(trace, arguments)
    if result.frame.is_empty():
        return NotApplicable("stats", f"{trace.meta.path} has no rows for {report.name}")
    return result
