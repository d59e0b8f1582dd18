"""The functions behind `import gpusight as gs`: every command, with results that show themselves.

A question that the capture cannot answer raises `MissingDataError` with the reason and the remedy.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, overload

from gpusight.errors import MissingDataError, UsageError
from gpusight.model.trace import Trace
from gpusight.result import Composite, NotApplicable, TableResult, with_warnings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    import polars as pl

    from gpusight.analyses.select import Selection
    from gpusight.render.diagnosis.view import DiagnosisView
    from gpusight.render.layout import Look
    from gpusight.result import Result

PathLike: TypeAlias = "str | os.PathLike[str]"
Capture: TypeAlias = "Trace | PathLike"
"""An opened capture, or where it lies."""
REPR_ROWS = 20
REPR_WIDTH = 100


class _Shown:
    """What tables and pages have in common: they show themselves, in a shell or a notebook."""

    result: TableResult | Composite

    def __init__(self, result: TableResult | Composite) -> None:
        self.result = result

    @property
    def title(self) -> str:
        """What the result is about."""
        return self.result.title

    @property
    def meta(self) -> Mapping[str, Any]:
        """Totals and other values about the result as a whole."""
        return self.result.meta

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader must know: incomplete data, what was left out, what was assumed."""
        return self.result.notes

    def __repr__(self) -> str:
        """Show it as plain text."""
        from gpusight.render.plain import to_plain

        return to_plain(self.result, _look()).rstrip("\n")

    def _repr_html_(self) -> str:
        from gpusight.render.html import to_html

        return to_html(self.result, limit=REPR_ROWS)

    def to_json(self) -> str:
        """Give the document that `--format json` writes."""
        from gpusight.render.json import to_json

        return to_json(self.result)

    def to_csv(self) -> str:
        """Give the text that `--format csv` writes."""
        from gpusight.render.csv import to_csv

        return to_csv(self.result)

    def to_markdown(self) -> str:
        """Give the text that `--format markdown` writes, with all rows."""
        from gpusight.render.markdown import to_markdown

        return to_markdown(self.result)


class View(_Shown):
    """A table: `frame` is the Polars frame, printing it shows the first rows."""

    result: TableResult

    @property
    def frame(self) -> pl.DataFrame:
        """All rows and fields, in base units (nanoseconds, bytes, fractions of 1)."""
        return self.result.frame

    def rows(self) -> list[dict[str, Any]]:
        """Give all rows as plain dictionaries."""
        return self.result.rows()

    def __len__(self) -> int:
        """Count the rows."""
        return self.result.frame.height


class Page(_Shown):
    """A one-screen answer: facts, and tables by name: `page["kernels"]`."""

    result: Composite

    @property
    def facts(self) -> dict[str, Any]:
        """The facts at the top, in base units."""
        return {fact.key: fact.value for fact in self.result.facts}

    def __iter__(self) -> Iterator[str]:
        """Give the names of the sections."""
        return (section.command for section in self.result.sections)

    def __getitem__(self, name: str) -> View:
        """Give a section; raises MissingDataError when the capture could not fill it."""
        for section in self.result.sections:
            if section.command == name:
                return View(_given(section))
        raise KeyError(name)


# A text is itself an iterable of texts; the first signature is the one that applies to it.
@overload
def open_captures(  # type: ignore[overload-overlap]
    path: PathLike, *, cache: bool = True
) -> Trace: ...
@overload
def open_captures(path: Iterable[PathLike], *, cache: bool = True) -> list[Trace]: ...
def open_captures(
    path: PathLike | Iterable[PathLike], *, cache: bool = True
) -> Trace | list[Trace]:
    """Open a capture; a list of paths gives a list of captures.

    Nothing is read yet but what tells the file's kind, and nothing is ever written to it.
    `cache=False` neither uses nor fills the cache folder.
    """
    from gpusight.readers import open_trace

    if isinstance(path, (str, os.PathLike)):
        return open_trace(path, cache=cache)
    return [open_trace(p, cache=cache) for p in path]


def info(trace: Capture) -> Page:
    """Say what a capture holds and how complete it is."""
    from gpusight.analyses.info import info as analysis

    return Page(_ask(analysis, trace))


def summary(
    trace: Capture,
    *,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> Page:
    """Show on one screen where the time went."""
    from gpusight.analyses.summary import summary as analysis

    return Page(_ask(analysis, trace, _selection(within, device, process)))


def kernels(
    trace: Capture,
    *,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> View:
    """List GPU kernels by the time they took."""
    from gpusight.analyses.kernels import kernels as analysis

    return View(_ask(analysis, trace, _selection(within, device, process)))


def ops(
    trace: Capture,
    *,
    by: str = "name",
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> View:
    """List operators of the framework with their own time on the CPU and the GPU."""
    from gpusight.analyses.ops import ops as analysis

    return View(_ask(analysis, trace, _selection(within, device, process), by=by))


def launches(
    trace: Capture,
    *,
    kernel: str | None = None,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> View:
    """List GPU work in order of time, with what launched it."""
    from gpusight.analyses.launch_list import launches as analysis

    return View(_ask(analysis, trace, _selection(within, device, process), kernel=kernel))


def flops(
    trace: Capture,
    *,
    by: str = "shapes",
    peak: float | None = None,
    bandwidth: float | None = None,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> Page:
    """Say how near to its peak the GPU computed; `peak` in TFLOP/s, `bandwidth` in GB/s."""
    from gpusight.analyses.flops import flops as analysis

    selection = _selection(within, device, process)
    return Page(_ask(analysis, trace, selection, by=by, peak=peak, bandwidth=bandwidth))


def ranges(
    trace: Capture,
    *,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> View:
    """List ranges (NVTX, annotations) with their host time and the GPU work inside."""
    from gpusight.analyses.ranges import ranges as analysis

    return View(_ask(analysis, trace, _selection(within, device, process)))


def api_calls(
    trace: Capture,
    *,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> View:
    """List CUDA API calls by the time they took."""
    from gpusight.analyses.api import api_calls as analysis

    return View(_ask(analysis, trace, _selection(within, device, process)))


def copies(
    trace: Capture,
    *,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> View:
    """List memory copies and fills by direction: bytes, time, bandwidth."""
    from gpusight.analyses.copies import copies as analysis

    return View(_ask(analysis, trace, _selection(within, device, process)))


def memory(
    trace: Capture,
    *,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> Page:
    """Follow the memory in use, and say who held it at the peak."""
    from gpusight.analyses.memory import memory as analysis

    return Page(_ask(analysis, trace, _selection(within, device, process)))


def counters(
    trace: Capture,
    *,
    metrics: str | Sequence[str] = (),
    form: str = "tidy",
    kernel: str | None = None,
    launches: Sequence[int] = (),
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> View:
    """List what Nsight Compute measured; `metrics` are names, globs or parts of names, else all.

    `form` is `tidy` (a row for each launch and metric), `wide` (a row for each launch), `list` (a
    row for each metric), `instances` (the parts of metrics) or `source` (by source line).
    """
    from gpusight.analyses.counters.forms import form_of

    chosen = (metrics,) if isinstance(metrics, str) else tuple(metrics)
    options = {"metrics": chosen, "kernel": kernel, "launches": launches}
    return View(_ask(form_of(form), trace, _selection(within, device, process), **options))


def join(
    timeline: Capture,
    report: Capture,
    *,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> Page:
    """Join the kernels of a timeline with what an Nsight Compute report measured of them."""
    from gpusight.analyses.join.report import join as analysis

    measured = _opened(report)
    answer = _ask(analysis, timeline, measured, _selection(within, device, process))
    return Page(_given(with_warnings(answer, measured.meta.warnings)))


def occupancy(
    trace: Capture,
    *,
    kernel: str | None = None,
    gpu: str | None = None,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> Page:
    """Say how many warps kernels have on an SM, what limits them, and what would raise it."""
    from gpusight.analyses.occupancy import occupancy as analysis

    selection = _selection(within, device, process)
    return Page(_ask(analysis, trace, selection, kernel=kernel, gpu=gpu))


def occupancy_of(
    gpu: str,
    block: int = 256,
    registers: int = 32,
    shared_bytes: int = 0,
    *,
    barriers: int | None = None,
) -> Page:
    """Work out the occupancy of a kernel without a capture: `occupancy_of("A100", 256, 64)`."""
    from gpusight.analyses.occupancy import occupancy_of as calculate

    return Page(calculate(gpu, block, registers, shared_bytes, barriers=barriers))


def roofline(
    trace: Capture,
    *,
    kernel: str | None = None,
    launches: bool = False,
    gpu: str | None = None,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> Page:
    """Say how near each measured kernel came to the compute and memory roofs of its GPU."""
    from gpusight.analyses.roofline import roofline as analysis

    options: dict[str, Any] = {"kernel": kernel, "launches": launches, "gpu": gpu}
    return Page(_ask(analysis, trace, _selection(within, device, process), **options))


def orion_build(
    ncu: Capture,
    *,
    model_type: str,
    raw: Capture | None = None,
    nsys: Capture | None = None,
    out: PathLike | None = None,
    intermediate: PathLike | None = None,
    columns: int = 5,
    compat: bool = False,
    threshold: float | None = None,
    gpu: str | None = None,
    max_threads_sm: int | None = None,
    max_blocks_sm: int | None = None,
    max_shmem_sm: int | None = None,
    max_regs_sm: int | None = None,
    durations: str = "ncu",
    helpers: str = "next",
    within: str | None = None,
    device: int | None = None,
) -> Page:
    """Make the kernel-info file of the Orion scheduler; `page["rows"]` are its rows.

    `out` is where to write it, `intermediate` a folder for the tables on the way; without them
    nothing is written. The others mean what the options of `gpusight orion build` mean.
    """
    from gpusight.analyses.orion.blocks import Limits
    from gpusight.analyses.orion.build import Options, Refused, build
    from gpusight.render.orion import save

    limits = Limits(gpu, max_threads_sm, max_blocks_sm, max_shmem_sm, max_regs_sm)
    selection = _selection(within, device, None)
    options = Options(model_type, columns, compat, threshold, limits, durations, helpers, selection)
    report = _opened(ncu)
    second, timeline = (None if t is None else _opened(t) for t in (raw, nsys))
    built = build(report, options, raw=second, nsys=timeline)
    if isinstance(built, Refused):
        raise UsageError(built.why, hint=f"the first difference: {built.table.rows()[0]}")
    if isinstance(built, NotApplicable):
        raise MissingDataError(built.reason, hint=built.hint)
    traces = [trace for trace in (report, second, timeline) if trace is not None]
    files = (None if path is None else Path(path) for path in (out, intermediate))
    save(built, *files, captures=[trace.meta.path for trace in traces])
    warnings = [warning for trace in traces for warning in trace.meta.warnings]
    return Page(_given(with_warnings(built.summary, warnings)))


def orion_check(path: PathLike, num_kernels: int | None = None) -> Page:
    """Check a kernel-info file as the Orion scheduler reads it: `page.meta["sound"]`."""
    from gpusight.analyses.orion.check import check
    from gpusight.readers.kernel_info import read_kernel_info

    file = Path(path)
    return Page(check(read_kernel_info(file), file.name, num_kernels))


def diagnose(
    trace: Capture,
    *,
    kernel: str | None = None,
    launch: Sequence[int] = (),
    rules: Sequence[str] = (),
    lines: bool = False,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> DiagnosisView:
    """Say what holds each measured kernel up, what a fix would give back, and on which `lines`."""
    from gpusight.findings.kernels.diagnosis import diagnose as analysis
    from gpusight.render.diagnosis.view import DiagnosisView

    opened = _opened(trace)
    selection = _selection(within, device, process)
    found = analysis(opened, selection, kernel=kernel, launch=launch, rules=rules, lines=lines)
    if isinstance(found, NotApplicable):
        raise MissingDataError(found.reason, hint=found.hint)
    return DiagnosisView(found.with_warnings(opened.meta.warnings))


def sql(trace: Capture, query: str) -> View:
    """Run one SQL query (Polars SQL) over the capture's tables."""
    from gpusight.analyses.query import query as analysis

    return View(_ask(analysis, trace, query))


def stats(trace: Capture, report: str) -> View:
    """Make a report of `nsys stats`, such as `cuda_gpu_kern_sum`; values in the headings' units."""
    from gpusight.analyses.stats import run_report
    from gpusight.render.stats import as_table

    def analysis(trace: Trace) -> TableResult | NotApplicable:
        answer = run_report(trace, report)
        return answer if isinstance(answer, NotApplicable) else as_table(answer)

    return View(_ask(analysis, trace))


def export(
    trace: Capture,
    out: PathLike,
    *,
    to: str = "parquet",
    tables: Sequence[str] | None = None,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
    force: bool = False,
) -> list[Path]:
    """Write tables as csv, parquet, json or arrow files, or a timeline (`chrome`).

    Gives the files written. `within`, `device` and `process` select what a timeline shows.
    """
    from gpusight.render.export import export as write

    selection = _selection(within, device, process)
    return write(_opened(trace), Path(out), to, tables=tables, selection=selection, force=force)


def _opened(trace: Capture) -> Trace:
    return trace if isinstance(trace, Trace) else open_captures(trace)


def _selection(within: str | None, device: int | None, process: str | int | None) -> Selection:
    from gpusight.analyses.select import Selection

    name = None if process is None else str(process)
    return Selection(within=within, device=device, process=name)


def _ask(
    analysis: Callable[..., Result], trace: Capture, *arguments: object, **options: object
) -> TableResult | Composite:
    """Ask a question of a capture; what is wrong with the capture is part of the answer."""
    opened = _opened(trace)
    return _given(with_warnings(analysis(opened, *arguments, **options), opened.meta.warnings))


def _given(answer: Result) -> TableResult | Composite:
    """Give the answer; raise where there is none."""
    if isinstance(answer, NotApplicable):
        raise MissingDataError(answer.reason, hint=answer.hint)
    return answer


def _look() -> Look:
    from gpusight.render.layout import Look

    advice = "all are in .frame"
    return Look(REPR_WIDTH, REPR_ROWS, rows_advice=advice, columns_advice=advice)
