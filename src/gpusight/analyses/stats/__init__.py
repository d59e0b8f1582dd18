"""`nsys stats` without nsys: the same reports, columns and values, over the model's tables.

`REPORTS` is the one list of them. A report's code is imported when it is run.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpusight.analyses.advice import advice_for
from gpusight.analyses.stats.arguments import KERNEL_NAMES, ROWS, WITH_RANGE, parse
from gpusight.analyses.stats.table import Cell, StatsColumn, StatsReport, columns
from gpusight.errors import UsageError
from gpusight.result import NotApplicable

if TYPE_CHECKING:
    from collections.abc import Callable

    import polars as pl

    from gpusight.analyses.stats.arguments import Arguments
    from gpusight.model.trace import Trace

__all__ = ["REPORTS", "Cell", "Report", "StatsColumn", "StatsReport", "resolve", "run_report"]


@dataclass(frozen=True, slots=True)
class Need:
    """Data without which a report says nothing: any one of these tables."""

    tables: tuple[str, ...]
    words: str
    """What the capture does not contain, as the user is told."""


@dataclass(frozen=True, slots=True)
class Report:
    """One report: how it is called, what it needs, and where it is computed."""

    name: str
    title: str
    module: str
    function: str
    headers: str
    """Name of the headings in the module."""
    needs: tuple[Need, ...]
    aliases: tuple[str, ...] = ()
    arguments: tuple[str, ...] = ()

    @property
    def usage(self) -> str:
        """The name with the arguments that may follow it."""
        return self.name + "".join(f"[:{a}]" for a in self.arguments)

    def missing(self, trace: Trace, arguments: Arguments) -> Need | None:
        """Find the first need that the capture does not meet."""
        prefixed = arguments.nvtx_name and trace.has("kernels")
        needs = (*self.needs, _RANGES) if prefixed else self.needs
        return next((n for n in needs if not any(trace.has(t) for t in n.tables)), None)

    def run(self, trace: Trace, arguments: Arguments) -> StatsReport:
        """Compute the report; the capture must meet its needs."""
        module = importlib.import_module(f"{__name__}.{self.module}")
        compute: Callable[[Trace, Arguments], pl.DataFrame] = getattr(module, self.function)
        declared = columns(getattr(module, self.headers))
        frame = compute(trace, arguments).select(c.header for c in declared)
        return StatsReport(self.name, self.title, declared, frame)


_KERNELS = Need(("kernels",), "CUDA kernel data")
_CALLS = Need(("api_calls",), "CUDA trace data")
_MEMORY = Need(("copies", "memsets"), "GPU memory data")
_WORK = ("kernels", "copies", "memsets")
_RANGES = Need(("ranges",), "NVTX data")
_FAULTS = Need(("page_faults",), "unified-memory page faults")

_ALL = (
    Report(
        "cuda_api_gpu_sum",
        "CUDA Summary (API/Kernels/MemOps)",
        "gpu",
        "api_gpu_summary",
        "GPU_SUMMARY",
        (Need(("api_calls", *_WORK), "CUDA calls, kernels or memory operations"),),
        ("apigpusum",),
        WITH_RANGE,
    ),
    Report(
        "cuda_api_sum",
        "CUDA API Summary",
        "api",
        "api_summary",
        "API_SUMMARY",
        (_CALLS,),
        ("cudaapisum",),
    ),
    Report(
        "cuda_api_trace",
        "CUDA API Trace",
        "api",
        "api_trace",
        "API_TRACE",
        (_CALLS,),
        ("cudaapitrace",),
    ),
    Report(
        "cuda_gpu_kern_gb_sum",
        "CUDA GPU Kernel/Grid/Block Summary",
        "kernels",
        "kernel_grid_summary",
        "KERNEL_GRID_SUMMARY",
        (_KERNELS,),
        ("gpukerngbsum",),
        WITH_RANGE,
    ),
    Report(
        "cuda_gpu_kern_sum",
        "CUDA GPU Kernel Summary",
        "kernels",
        "kernel_summary",
        "KERNEL_SUMMARY",
        (_KERNELS,),
        ("gpukernsum",),
        WITH_RANGE,
    ),
    Report(
        "cuda_gpu_mem_size_sum",
        "CUDA GPU MemOps Summary (by Size)",
        "memory",
        "memory_size_summary",
        "MEMORY_SIZE",
        (_MEMORY,),
        ("gpumemsizesum",),
    ),
    Report(
        "cuda_gpu_mem_time_sum",
        "CUDA GPU MemOps Summary (by Time)",
        "memory",
        "memory_time_summary",
        "MEMORY_TIME",
        (_MEMORY,),
        ("gpumemtimesum",),
    ),
    Report(
        "cuda_gpu_sum",
        "CUDA GPU Summary (Kernels/MemOps)",
        "gpu",
        "gpu_summary",
        "GPU_SUMMARY",
        (Need(_WORK, "GPU kernel/memory operations data"),),
        ("gpusum",),
        WITH_RANGE,
    ),
    Report(
        "cuda_gpu_trace",
        "CUDA GPU Trace",
        "gpu",
        "gpu_trace",
        "GPU_TRACE",
        (Need(_WORK, "GPU trace data"),),
        ("gputrace",),
        WITH_RANGE,
    ),
    Report(
        "cuda_kern_exec_sum",
        "CUDA Kernel Launch & Exec Time Summary",
        "kernels",
        "execution_summary",
        "EXEC_SUMMARY",
        (_KERNELS, _CALLS),
        ("kernexecsum",),
        WITH_RANGE,
    ),
    Report(
        "cuda_kern_exec_trace",
        "CUDA Kernel Launch & Exec Time Trace",
        "kernels",
        "execution_trace",
        "EXEC_TRACE",
        (_KERNELS, _CALLS),
        ("kernexectrace",),
        WITH_RANGE,
    ),
    Report(
        "nvtx_gpu_proj_sum",
        "NVTX GPU Projection Summary",
        "nvtx_gpu",
        "projection_summary",
        "PROJECTION_SUMMARY",
        (_RANGES, Need(_WORK, "GPU operation data"), _CALLS),
        ("nvtxgpuprojsum",),
    ),
    Report(
        "nvtx_gpu_proj_trace",
        "NVTX GPU Projection Trace",
        "nvtx_gpu",
        "projection_trace",
        "PROJECTION_TRACE",
        (_RANGES, Need(_WORK, "GPU operation data"), _CALLS),
        ("nvtxgpuproj", "nvtxgpuprojtrace"),
    ),
    Report(
        "nvtx_kern_sum",
        "NVTX Range Kernel Summary",
        "nvtx_kernels",
        "range_kernels",
        "RANGE_KERNELS",
        (_RANGES, _KERNELS, _CALLS),
        ("nvtxkernsum",),
        KERNEL_NAMES,
    ),
    Report(
        "nvtx_pushpop_sum",
        "NVTX Push/Pop Range Summary",
        "nvtx",
        "push_pop_summary",
        "RANGE_SUMMARY",
        (_RANGES,),
        ("nvtxppsum",),
    ),
    Report(
        "nvtx_pushpop_trace",
        "NVTX Push/Pop Range Trace",
        "nvtx",
        "push_pop_trace",
        "PUSH_POP_TRACE",
        (_RANGES,),
        ("nvtxpptrace",),
    ),
    Report(
        "nvtx_startend_sum",
        "NVTX Start/End Range Summary",
        "nvtx",
        "start_end_summary",
        "RANGE_SUMMARY",
        (_RANGES,),
        ("nvtxsesum", "nvtxsssum"),
    ),
    Report(
        "nvtx_sum",
        "NVTX Range Summary",
        "nvtx",
        "styled_summary",
        "STYLED_SUMMARY",
        (_RANGES,),
        ("nvtxsum",),
    ),
    Report(
        "osrt_sum",
        "OS Runtime Summary",
        "osrt",
        "os_summary",
        "OS_SUMMARY",
        (Need(("os_calls",), "OS Runtime trace data"),),
        ("osrtsum",),
    ),
    Report(
        "um_cpu_page_faults_sum",
        "Unified Memory CPU Page Faults Summary",
        "unified",
        "cpu_faults",
        "CPU_FAULTS",
        (_FAULTS,),
        ("umcpupagefaults",),
    ),
    Report(
        "um_sum",
        "Unified Memory Analysis Summary",
        "unified",
        "page_summary",
        "PAGE_SUMMARY",
        (_FAULTS,),
        ("unifiedmemory",),
        ROWS,
    ),
    Report(
        "um_total_sum",
        "Unified Memory Totals Summary",
        "unified",
        "totals",
        "TOTALS",
        (_FAULTS,),
        ("unifiedmemorytotals",),
    ),
)

REPORTS: dict[str, Report] = {report.name: report for report in _ALL}
_BY_ALIAS = {alias: report for report in _ALL for alias in report.aliases}


def resolve(name: str) -> Report:
    """Find a report by its name or an older spelling of it; raises UsageError."""
    report = REPORTS.get(name) or _BY_ALIAS.get(name)
    if report is None:
        raise UsageError(f"no report {name!r}", hint=f"reports are {', '.join(REPORTS)}")
    return report


def run_report(trace: Trace, name_with_args: str) -> StatsReport | NotApplicable:
    """Run a report, named as on the command line: `cuda_gpu_kern_sum`, `cuda_gpu_trace:base`."""
    name, *words = name_with_args.split(":")
    report = resolve(name)
    arguments = parse(report.name, report.arguments, words)
    need = report.missing(trace, arguments)
    if need is not None:
        hint = advice_for(trace.meta).remedy(need.tables)
        return NotApplicable("stats", f"{trace.meta.path} does not contain {need.words}", hint)
    result = report.run(trace, arguments)
    if result.frame.is_empty():
        return NotApplicable("stats", f"{trace.meta.path} has no rows for {report.name}")
    return result
