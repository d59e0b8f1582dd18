"""The functions behind `import gpusight as gs`: one per command; results display themselves.

Where the capture lacks the data, they raise `NotApplicableError`, a `MissingDataError`, with the
reason and the fix. The commands of `gpusight.cli` call these functions too.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, TypeVar, overload

from gpusight.errors import CaptureMismatchError, UsageError
from gpusight.pace import AS_RECORDED, WITHOUT_OVERHEAD
from gpusight.render.result_view import (
    BaselineView,
    ComparisonView,
    DiagnosisView,
    DoctorView,
    DrillView,
    GateView,
    HotspotsView,
    LedgerView,
    OrionPage,
    RanksView,
    ReportView,
    ShareView,
    WhatIfView,
)
from gpusight.render.result_view import Page as Page  # typed users may import it from here
from gpusight.render.result_view import Result as Result
from gpusight.render.result_view import View as View
from gpusight.results import NotApplicable, with_warnings, with_window_text
from gpusight.trace.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from distributed import Client

    from gpusight.analysis.drill.drill_result import DrillResult
    from gpusight.analysis.orion.orion_build import OrionRefusal
    from gpusight.analysis.scenario import ScenarioAction
    from gpusight.analysis.selection import Selection
    from gpusight.comparison.digest import Digest
    from gpusight.comparison.inputs import ComparisonInput
    from gpusight.recording.record_program import Recording
    from gpusight.results import Answer, TableResult
    from gpusight.rules.rule import Rule
    from gpusight.trace.trace import Capture, PathLike
    from gpusight.web.server import Server

_Made = TypeVar("_Made")


DEFAULT_GATE_LIMIT = "step_time=+5%"


# A text is itself an iterable of texts; the first signature is the one that applies to it.
@overload
def open_captures(  # type: ignore[overload-overlap]
    path: PathLike, *, cache: bool = True, pace: str | float | None = None
) -> Trace: ...
@overload
def open_captures(
    path: Iterable[PathLike], *, cache: bool = True, pace: str | float | None = None
) -> list[Trace]: ...
def open_captures(
    path: PathLike | Iterable[PathLike], *, cache: bool = True, pace: str | float | None = None
) -> Trace | list[Trace]:
    """Open a capture; a list of paths gives a list of captures.

    Only what identifies the format is read now. Nothing is ever written to the file.
    `cache=False` neither uses nor fills the cache folder. `pace` is the step time without a
    profiler (`"28.6ms"`, or nanoseconds), for which times are corrected: by default that which
    `gpusight record` measured, else an estimate; `"off"` keeps the times of the capture. The lists
    of `kernels`, `launches`, `ranges`, `ops`, `api_calls` and `copies` have recorded times.
    """
    from gpusight.readers.open import open_trace

    if not isinstance(path, (str, os.PathLike)):
        return [open_captures(p, cache=cache, pace=pace) for p in _listed(path)]
    trace = open_trace(path, cache=cache)
    trace.pace = pace
    return trace


def info(trace: Capture) -> Page:
    """Show what a capture holds and how complete it is."""
    from gpusight.analysis.capture_info import info as analysis

    return Page(_analyze(analysis, trace))


def summary(
    trace: Capture,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> Page:
    """Show on one screen where the time goes.

    This and every other function on a timeline cover the steps without warm-up by default, the
    whole capture where no steps are found. `steps` selects steps by number (`"3-7"`, `"all"`),
    `window` a time in nanoseconds (`(None, None)` is the whole capture); `warmup=True` keeps
    warm-up steps.
    """
    from gpusight.analysis.capture_summary import READS
    from gpusight.analysis.capture_summary import summary as analysis
    from gpusight.analysis.corrected_trace import CorrectedTrace

    focus = FocusOptions(steps=steps, window=window, warmup=warmup)
    whole = _preloaded(trace, READS)
    capture, selection = _corrected(whole, _selection(within, device, process), focus)
    answer = _analyze_window(analysis, capture, selection, focus)
    if isinstance(capture, CorrectedTrace):
        answer = replace(answer, notes=(*answer.notes, WITHOUT_OVERHEAD))
    return Page(answer)


def steps(
    trace: Capture,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> Page:
    """List the steps: duration, GPU busy, phases, outliers."""
    from gpusight.analysis.steps.step_report import steps as analysis

    focus = FocusOptions(steps=steps, window=window, warmup=warmup)
    capture, selection = _corrected(trace, _selection(within, device, process), focus)
    return Page(_analyze(analysis, capture, selection, **focus))


def kernels(
    trace: Capture,
    *,
    every_launch: bool = False,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> View:
    """List GPU kernels by total time; for an Nsight Compute report also `every_launch`."""
    from gpusight.analysis.kernel_summary import kernel_launches
    from gpusight.analysis.kernel_summary import kernels as by_name

    analysis = kernel_launches if every_launch else by_name
    focus = FocusOptions(steps=steps, window=window, warmup=warmup)
    capture = _preloaded(trace, {"kernels": ("name",)})
    return View(_analyze_window(analysis, capture, _selection(within, device, process), focus))


def ops(
    trace: Capture,
    *,
    by: str = "name",
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> View:
    """List framework operators with their self time on the CPU and the GPU."""
    from gpusight.analysis.operator_summary import ops as analysis

    focus = FocusOptions(steps=steps, window=window, warmup=warmup)
    return View(
        _analyze_window(
            analysis, trace, _selection(within, device, process), focus, as_recorded=True, by=by
        )
    )


def launches(
    trace: Capture,
    *,
    kernel: str | None = None,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> View:
    """List kernels, memcpys and memsets in order of time, with what launched them."""
    from gpusight.analysis.launch_list import list_launches as analysis

    focus = FocusOptions(steps=steps, window=window, warmup=warmup)
    return View(
        _analyze_window(
            analysis,
            trace,
            _selection(within, device, process),
            focus,
            as_recorded=True,
            kernel=kernel,
        )
    )


def ledger(
    trace: Capture,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> LedgerView:
    """Split the time of each GPU by cause; each nanosecond is counted exactly once.

    `steps` by number (`"3-7"`, `"all"`), `window` in nanoseconds; else the steps without warm-up.
    """
    from gpusight.analysis.ledger.ledger_report import READS
    from gpusight.analysis.ledger.ledger_report import ledger_report as analysis

    focus = FocusOptions(steps=steps, window=window, warmup=warmup)
    opened = _opened(trace)
    opened.read_together(READS)
    capture, selection = _corrected(opened, _selection(within, device, process), focus)
    return LedgerView(_analyze(analysis, capture, selection, **focus))


def hotspots(
    trace: Capture,
    *,
    by: str = "line",
    of: str = "idle",
    all_frames: bool = False,
    vs: Capture | None = None,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> HotspotsView:
    """Sum idle GPU time, GPU time and host time by line of code: `.rows()`, most idle time first.

    `by` is `line`, `function`, `module`, `package`, `stack` (a tree) or `range` (NVTX). Lines are
    those of your own code; `all_frames=True` also names lines of libraries. `.save("flame.svg")`
    or `.html` draws a flame graph of `of`: `idle`, `gpu`, `host`, `launches` or
    `memory`, compared with the capture `vs` if given. `.folded`, `.speedscope.json` and `.pb.gz`
    (pprof) are stacks for other tools.
    """
    from gpusight.analysis.hotspots.flame_graph import compared_hotspots
    from gpusight.analysis.hotspots.stack_times import hotspots as analysis

    focus = FocusOptions(steps=steps, window=window, warmup=warmup)

    def of_capture(trace: Capture) -> Any:
        capture, selection = _corrected(trace, _selection(within, device, process), focus)
        options: dict[str, Any] = {"by": by, "of": of, "all_frames": all_frames}
        return _analyze(analysis, capture, selection, **options, **focus)

    answer = of_capture(trace)
    return HotspotsView(answer if vs is None else compared_hotspots(answer, of_capture(vs)))


def utilization(
    trace: Capture,
    *,
    bins: int = 400,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> Page:
    """Show GPU utilization over time in `bins`; `.save("busy.svg")` draws it.

    `steps` by number (`"3-7"`, `"all"`), `window` in nanoseconds; else the steps without warm-up.
    """
    from gpusight.analysis.gpu_utilization import utilization as analysis

    focus = FocusOptions(steps=steps, window=window, warmup=warmup)
    capture, selection = _corrected(trace, _selection(within, device, process), focus)
    return Page(_analyze(analysis, capture, selection, **focus, bins=bins))


def timeline(
    trace: Capture,
    *,
    tracks: str | Sequence[str] = (),
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> Page:
    """Show the median step, or the selected time, track by track.

    `.save("step.svg")` draws it. `tracks` are kinds (`"stream"`), keys or globs of keys
    (`"gpu0/*"`), or `"all"`; `steps` by number, `window` in nanoseconds.
    """
    from gpusight.analysis.gpu_time import window_headline
    from gpusight.viewer.timeline_snapshot import timeline as analysis

    chosen = (tracks,) if isinstance(tracks, str) else tuple(tracks)
    focus = FocusOptions(steps=steps, window=window, warmup=warmup)
    capture = _opened(trace)
    selection = _of_window(capture, _selection(within, device, process), focus)
    named = window_headline(capture, selection, **focus)
    return Page(_analyze(analysis, capture, selection, **focus, tracks=chosen, named=named))


def flops(
    trace: Capture,
    *,
    by: str = "shapes",
    peak: float | None = None,
    bandwidth: float | None = None,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> Page:
    """Compare achieved with peak FLOP/s; `peak` in TFLOP/s, `bandwidth` in GB/s."""
    from gpusight.analysis.flops.achieved_flops import flops as analysis
    from gpusight.analysis.steps.step_report import step_lengths

    focus = FocusOptions(steps=steps, window=window, warmup=warmup)
    corrected, selection = _corrected(trace, _selection(within, device, process), focus)
    # Operators and their kernels belong together as recorded; only how long steps take does not.
    spans = {} if within is not None else step_lengths(corrected, selection, **focus)
    options: dict[str, Any] = {"by": by, "peak": peak, "bandwidth": bandwidth, "spans_ns": spans}
    answer = _analyze_window(analysis, trace, selection, focus, as_recorded=not spans, **options)
    return Page(answer)


def ranges(
    trace: Capture,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> View:
    """List ranges (NVTX, annotations) with their host time and GPU time."""
    from gpusight.analysis.range_summary import READS
    from gpusight.analysis.range_summary import ranges as analysis

    focus = FocusOptions(steps=steps, window=window, warmup=warmup)
    capture = _preloaded(trace, READS)
    selected = _selection(within, device, process)
    return View(_analyze_window(analysis, capture, selected, focus, as_recorded=True))


def api_calls(
    trace: Capture,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> View:
    """List CUDA API calls by total time."""
    from gpusight.analysis.api_summary import READS
    from gpusight.analysis.api_summary import api_calls as analysis

    focus = FocusOptions(steps=steps, window=window, warmup=warmup)
    capture = _preloaded(trace, READS)
    selected = _selection(within, device, process)
    return View(_analyze_window(analysis, capture, selected, focus, as_recorded=True))


def copies(
    trace: Capture,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> View:
    """List memcpys and memsets by direction: bytes, time, bandwidth."""
    from gpusight.analysis.copy_summary import copies as analysis

    focus = FocusOptions(steps=steps, window=window, warmup=warmup)
    return View(_analyze_window(analysis, trace, _selection(within, device, process), focus))


def memory(
    trace: Capture,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> Page:
    """Show GPU memory over time, and who held it at the peak."""
    from gpusight.analysis.memory.memory_usage import memory as analysis

    focus = FocusOptions(steps=steps, window=window, warmup=warmup)
    return Page(
        _analyze_window(
            analysis, trace, _selection(within, device, process), focus, as_recorded=True
        )
    )


def counters(
    trace: Capture,
    *,
    metrics: str | Sequence[str] = (),
    form: str = "tidy",
    kernel: str | None = None,
    launches: Sequence[int] = (),
    brief: bool = False,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> View:
    """List what Nsight Compute measured; `metrics` are names, globs or parts of names, else all.

    `form` is `tidy` (a row for each launch and metric), `wide` (a row for each launch), `list` (a
    row for each metric), `instances` (the parts of metrics) or `source` (by source line). With
    `brief`, `tidy` and `wide` have the few metrics that say most.
    """
    from gpusight.analysis.counters.counter_tables import brief_counters
    from gpusight.analysis.counters.counter_tables import counters as analysis

    selection = _selection(within, device, process)
    options: dict[str, Any] = {"kernel": kernel, "launches": launches}
    if brief and form in {"tidy", "wide"}:
        return View(_analyze(brief_counters, trace, selection, as_wide=form == "wide", **options))
    chosen = (metrics,) if isinstance(metrics, str) else tuple(metrics)
    return View(_analyze(analysis, trace, selection, form=form, metrics=chosen, **options))


def join(
    timeline: Capture,
    report: Capture,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> Page:
    """Join the kernels of a timeline with what an Nsight Compute report measured of them."""
    from gpusight.analysis.join.joined_kernels import join as analysis
    from gpusight.analysis.steps.step_window import with_window

    program, kernels = _opened(timeline), _opened(report)
    if program.has("profiles"):  # they may be given in either order
        program, kernels = kernels, program
    focus = FocusOptions(steps=steps, window=window, warmup=warmup)
    program, selection = _corrected(program, _selection(within, device, process), focus)
    chosen, _ = with_window(program, selection, **focus)
    answer = _named(analysis(program, kernels, chosen), program, selection, focus)
    return Page(_with_warnings(answer, [program, kernels]))


def occupancy(
    trace: Capture,
    *,
    kernel: str | None = None,
    gpu: str | None = None,
    closely: bool = False,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> Page:
    """Say how many warps kernels have on an SM, what limits them, and what would raise it.

    `closely` adds what a picture needs: other block sizes, registers and shared memory for the
    kernel that took longest, as `kernel` does.
    """
    from gpusight.analysis.occupancy.kernel_occupancy import occupancy as analysis

    selection = _selection(within, device, process)
    options: dict[str, Any] = {"kernel": kernel, "gpu": gpu, "closely": closely}
    focus = FocusOptions(steps=steps, window=window, warmup=warmup)
    return Page(_analyze_window(analysis, trace, selection, focus, **options))


def occupancy_of(
    gpu: str,
    block: int = 256,
    registers: int = 32,
    shared_bytes: int = 0,
    *,
    barriers: int | None = None,
) -> Page:
    """Work out the occupancy of a kernel without a capture: `occupancy_of("A100", 256, 64)`."""
    from gpusight.analysis.occupancy.block_occupancy import occupancy_of as calculate

    return Page(calculate(gpu, block, registers, shared_bytes, barriers=barriers))


def roofline(
    trace: Capture,
    *,
    kernel: str | None = None,
    every_launch: bool = False,
    gpu: str | None = None,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> Page:
    """Compare each profiled kernel with the compute and memory rooflines of its GPU.

    Launches of one kernel and shape are one row, unless `every_launch` is to have its own.
    """
    from gpusight.analysis.roofline.roofline_report import roofline as analysis

    options: dict[str, Any] = {"kernel": kernel, "launches": every_launch, "gpu": gpu}
    return Page(_analyze(analysis, trace, _selection(within, device, process), **options))


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
) -> OrionPage:
    """Make the kernel-info file of the Orion scheduler; `page["rows"]` are its rows.

    `out` is where to write it, `intermediate` a folder for the tables on the way; without them
    nothing is written. The others mean what the options of `gpusight orion build` mean.
    """
    from gpusight.analysis.orion.orion_build import OrionOptions, build
    from gpusight.analysis.orion.orion_launches import OrionSmLimits
    from gpusight.render.table_export import save_orion_files

    limits = OrionSmLimits(gpu, max_threads_sm, max_blocks_sm, max_shmem_sm, max_regs_sm)
    selection = _selection(within, device, None)
    options = OrionOptions(
        model_type, columns, compat, threshold, limits, durations, helpers, selection
    )
    report = _opened(ncu)
    second, timeline = (None if t is None else _opened(t) for t in (raw, nsys))
    built = _of_one_run(build(report, options, raw=second, nsys=timeline))
    traces = [trace for trace in (report, second, timeline) if trace is not None]
    files = (None if path is None else Path(path) for path in (out, intermediate))
    save_orion_files(built, *files, captures=[trace.meta.path for trace in traces])
    return OrionPage(_with_warnings(built.summary, traces), built.text)


def orion_plot(
    ncu: Capture,
    nsys: Capture,
    *,
    raw: Capture | None = None,
    gpu: str | None = None,
    max_threads_sm: int | None = None,
    max_blocks_sm: int | None = None,
    max_shmem_sm: int | None = None,
    max_regs_sm: int | None = None,
    within: str | None = None,
    device: int | None = None,
) -> Page:
    """Give what `gpusight orion plot` draws: averages, and `page["series"]` over time.

    These are the SMs, compute and memory in use when the launches of a report are laid over a
    timeline of the same program.
    """
    from gpusight.analysis.orion.orion_build import OrionOptions
    from gpusight.analysis.orion.orion_launches import OrionSmLimits
    from gpusight.analysis.orion.orion_utilization import orion_utilization

    limits = OrionSmLimits(gpu, max_threads_sm, max_blocks_sm, max_shmem_sm, max_regs_sm)
    options = OrionOptions(limits=limits, selection=_selection(within, device, None))
    report, timeline = _opened(ncu), _opened(nsys)
    second = None if raw is None else _opened(raw)
    answer = _of_one_run(orion_utilization(report, timeline, options, raw=second))
    traces = [trace for trace in (report, second, timeline) if trace is not None]
    return Page(_with_warnings(answer, traces))


def orion_check(path: PathLike, num_kernels: int | None = None) -> Page:
    """Check a kernel-info file as the Orion scheduler reads it: `page.meta["sound"]`."""
    from gpusight.analysis.orion.orion_rows import check
    from gpusight.readers.file_blocks import read_kernel_info

    file = Path(path)
    return Page(check(read_kernel_info(file), file.name, num_kernels))


def diagnose(
    trace: Capture | Sequence[Capture],
    *,
    rules: Sequence[str] = (),
    extra_rules: Sequence[PathLike | Rule | type[Rule]] = (),
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    kernel: str | None = None,
    launches: Sequence[int] = (),
    lines: bool = False,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> DiagnosisView:
    """Find the bottlenecks, and list the fixes as a plan with the time that each saves.

    For a timeline, `steps`, `window` (ns) and `warmup` select the time. For an Nsight Compute
    report, `kernel`, `launches` and `lines` apply. `[timeline, report]` joins both. `rules` runs
    only these rules; `extra_rules` are your own, as classes or files.
    """
    from gpusight.rules.diagnosis import DiagnoseOptions, diagnose_captures
    from gpusight.rules.user_rules import user_rules

    given = _several(trace)
    question = DiagnoseOptions(
        selection=_selection(within, device, process),
        rules=rules,
        kernel=kernel,
        launches=launches,
        lines=lines,
        steps=steps,
        window=window,
        warmup=warmup,
        extra_rules=user_rules(extra_rules),
    )
    opened = [_opened(capture) for capture in given]
    return DiagnosisView(_checked(diagnose_captures(opened, question), opened))


def explain(
    trace: Capture | Sequence[Capture],
    which: int | str = 1,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> Result:
    """Explain one finding of `diagnose`: evidence, locations, code, caveats, what it saves.

    `which` is its number in the plan, its rule (`"launch-bound"`) or, for an Nsight Compute report,
    its kernel. The other arguments are those of `diagnose`; to explain several findings, call
    `.explain(which)` of its result instead. Also an entry of the ledger (`"ledger:idle/input"`), or
    an event of the timeline by table and row (`"kernels:17"`). For the captures of all ranks of a
    job, a rank (`"rank:2"`), or a straggler by its number.
    """
    from gpusight.open_job import is_job
    from gpusight.render.ranks_view import RANK_ID, rank_page

    captures = _several(trace)
    if str(which).startswith(RANK_ID) or is_job(captures):
        job = ranks(captures, steps=steps, window=window, warmup=warmup)
        return Page(rank_page(job.answer, str(which)))
    if isinstance(which, str) and ":" in which:
        from gpusight.viewer.event_details import event_of_id, event_page

        if (event := event_of_id(which)) is not None:
            return Page(_analyze(event_page, _only(trace), *event))
    if isinstance(which, str) and which.startswith("ledger:"):
        from gpusight.analysis.ledger.ledger_tables import ledger_entry_table

        made = ledger(
            _only(trace),
            steps=steps,
            window=window,
            warmup=warmup,
            within=within,
            device=device,
            process=process,
        )
        return View(ledger_entry_table(made.answer, which.removeprefix("ledger:")))
    diagnosis = diagnose(
        trace,
        steps=steps,
        window=window,
        warmup=warmup,
        within=within,
        device=device,
        process=process,
    )
    return diagnosis.explain(which)


def _only(trace: Capture | Sequence[Capture]) -> Capture:
    """Give the first of several captures: the timeline."""
    return trace if isinstance(trace, (str, os.PathLike, Trace)) else trace[0]


def report(
    trace: Capture,
    *ncu: Capture,
    compare: ComparisonInput | Sequence[ComparisonInput] = (),
    title: str = "",
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> ReportView:
    """Put everything about a capture on one page: `.save("report.html")`, or `.to_html()`.

    `ncu` are Nsight Compute reports of the same program; such a report alone gives a page too.
    `compare` is what it was before a change: captures, a baseline file, digests. A folder with the
    captures of all ranks of a job adds sections about ranks.
    """
    from gpusight.reports.report_builder import build_report
    from gpusight.reports.report_contents import ReportRequest

    selection = _selection(within, device, process)
    focus = FocusOptions(steps=steps, window=window, warmup=warmup)
    captures = [_opened_or_job(trace), *map(_opened, ncu)]
    base = _digests(compare, selection, focus)
    request = ReportRequest(selection, steps, window, warmup, title)
    contents = build_report(captures, request, base=base)
    return ReportView(contents, tuple(capture.meta.path for capture in captures))


def compare(
    before: ComparisonInput | Sequence[ComparisonInput],
    after: ComparisonInput | Sequence[ComparisonInput],
    *,
    confidence: float = 0.95,
    least: float = 0.02,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> ComparisonView:
    """Compare captures before and after a change: what changed, why, and the confidence intervals.

    Each side is a capture, a baseline file, a digest of `gs.baseline`, or several of these as
    repeats; a path may be a glob or a folder. Changes below `least` count as none.
    """
    from gpusight.comparison.compare_digests import compare as analysis

    selection = _selection(within, device, process)
    focus = FocusOptions(steps=steps, window=window, warmup=warmup)
    sides = [_digests(side, selection, focus) for side in (before, after)]
    answer = analysis(*sides, confidence=confidence, least=least)
    return ComparisonView(_checked(answer))


def baseline(
    captures: ComparisonInput | Sequence[ComparisonInput],
    output: PathLike | None = None,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> BaselineView:
    """Summarize captures, so that `gs.compare` and `gs.gate` work without them: `.digests`.

    `output` is the file to write; an existing baseline is replaced, any other file is not.
    """
    from gpusight.comparison.baseline_file import Baseline, check_baseline_output, save_baseline

    if output is not None:
        check_baseline_output(Path(output))
    selection = _selection(within, device, process)
    focus = FocusOptions(steps=steps, window=window, warmup=warmup)
    digests = _digests(captures, selection, focus)
    size = None if output is None else save_baseline(digests, Path(output))
    return BaselineView(Baseline(tuple(digests), None if output is None else str(output), size))


def gate(
    captures: ComparisonInput | Sequence[ComparisonInput],
    *,
    baseline: ComparisonInput | Sequence[ComparisonInput] = (),
    limits: str | Sequence[str] | Mapping[str, str | float] = DEFAULT_GATE_LIMIT,
    confidence: float = 0.95,
    least: float = 0.02,
    inconclusive: str | None = None,
    allow_missing: bool = False,
    allow_changed: Sequence[str] = (),
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> GateView:
    """Check captures against limits such as `step_time=+3%`, `memory_peak=70GB`: `.outcome`.

    `assert gs.gate(…)` holds where the gate passes.

    Growth is relative to the `baseline`: baseline files, captures or digests. The outcome is
    `pass`, `fail` or `inconclusive`; `inconclusive="pass"` or `"fail"` makes the last count as
    such. `allow_missing` skips metrics that were not recorded. `allow_changed` accepts differences
    between the sides: `kernels`, `steps`, `gpu-model`, `gpus`, `processes`, `incomplete`
    (`gpusight help gate`).
    """
    from gpusight.comparison.gate_check import gate as analysis
    from gpusight.comparison.gate_limits import read_limits

    selection = _selection(within, device, process)
    focus = FocusOptions(steps=steps, window=window, warmup=warmup)
    before, after = (_digests(side, selection, focus) for side in (baseline, captures))
    answer = analysis(
        before,
        after,
        read_limits(limits),
        confidence=confidence,
        least=least,
        inconclusive=inconclusive,
        allow_missing=allow_missing,
        allow_changed=allow_changed,
    )
    return GateView(_checked(answer))


def serve(
    captures: Capture | Sequence[Capture],
    *,
    port: int = 0,
    open_browser: bool = False,
) -> Server:
    """Show captures as a timeline in the browser: `.url` is its address, `.stop()` ends it.

    The server runs in the background, accepts connections from this machine only, and reads
    captures on demand.
    Nsight Compute reports among the captures add their counters. Port 0 is any that is free.
    """
    from gpusight.web.server import serve as start

    return start(captures, port=port, open_browser=open_browser)


def share(
    capture: PathLike,
    output: PathLike | None = None,
    *,
    hash_names: bool = False,
    salt: str | None = None,
    to: str | None = None,
) -> ShareView:
    """Write a sanitized copy of a capture for sharing: `.path`, `.leaks`.

    Without `output` it is called NAME.shared and lies in the current folder; nothing is replaced.
    `to` is `sqlite` or `parquet`, for nsys captures.
    """
    from gpusight.sharing.sanitized_copy import options_of
    from gpusight.sharing.sanitized_copy import share as write

    chosen = options_of(hash_names=hash_names, salt=salt)
    target = None if output is None else Path(output)
    return ShareView(write(Path(capture), target, chosen, to=to))


def share_check(
    capture: PathLike, *, hash_names: bool = False, salt: str | None = None
) -> ShareView:
    """List sensitive data in a capture, by category and location, without values: `.leaks`."""
    from gpusight.sharing.sanitized_copy import check, options_of

    return ShareView(check(Path(capture), options_of(hash_names=hash_names, salt=salt)))


def doctor(*, python: PathLike | None = None) -> DoctorView:
    """Say what this machine can capture with, and the fix for what is missing.

    `python` is the interpreter that runs the program, else the one that `python` starts.
    """
    from gpusight.recording.doctor.checkup import examine

    return DoctorView(examine(python=None if python is None else os.fspath(python)))


def questions(
    trace: Capture,
    *,
    compare: Capture | None = None,
    timings: PathLike | None = None,
    model: str | tuple[int, int, int, int] | None = None,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> Page:
    """Answer five questions about a forward pass, a training step and attention.

    `compare` is a second capture, `timings` a CSV file of wall-clock times, `model` the sizes of
    attention: batch, heads, sequence, head dimension. `page.meta["answers"]` has the numbers.
    """
    from gpusight.analysis.questions.attention_question import AttentionSizes
    from gpusight.analysis.questions.forward_time import read_timings
    from gpusight.analysis.questions.question_answers import questions as analysis
    from gpusight.readers.file_blocks import read_timings_file

    captures = [_opened(trace), *([] if compare is None else [_opened(compare)])]
    sizes = ",".join(map(str, model)) if isinstance(model, tuple) else model
    selection = _selection(within, device, process)
    focus = FocusOptions(steps=steps, window=window, warmup=warmup)
    if compare is None:  # the process of one capture is not one of the other
        selection = _of_window(captures[0], selection, focus)
    answer: Answer = analysis(
        captures[0],
        selection,
        compare=captures[-1] if compare is not None else None,
        timings=read_timings(read_timings_file(Path(timings)), str(timings)) if timings else None,
        model=None if sizes is None else AttentionSizes.of(sizes),
        steps=steps,
        window=window,
        warmup=warmup,
    )
    answer = _named(answer, captures[0], selection, focus, as_recorded=True)
    return Page(_with_warnings(answer, captures))


def drill(
    trace: Capture,
    *,
    reports: Sequence[Capture] = (),
    top: int = 3,
    kernel: str | None = None,
    level: str = "quick",
    program: str | Sequence[str] | None = None,
    run: bool = False,
    report: PathLike | None = None,
    overwrite: bool = False,
    rank: str | int = "all",
    cache: bool = True,
    announce: Callable[[DrillResult], None] | None = None,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> DrillView:
    """Say which kernels are worth measuring with Nsight Compute, and by which command.

    `run=True` runs it on `program` and joins what it measured with the timeline, as it does with
    `reports` that were made elsewhere; `announce` is called with the plan before. `level` is
    `quick`, `detail` or `full`. `cache` is that of `gs.open`, for reports of the run.
    """
    from gpusight.analysis.drill.drill_result import DrillOptions
    from gpusight.rules.drill_workflow import drill as analysis

    focus = FocusOptions(steps=steps, window=window, warmup=warmup)
    question = DrillOptions.of(
        selection=_of_window(trace := _opened(trace), _selection(within, device, process), focus),
        steps=steps,
        window=window,
        warmup=warmup,
        top=top,
        kernel=kernel,
        level=level,
        program=program,
        output=report,
        rank=rank,
        overwrite=overwrite,
    )
    answer = analysis(
        trace,
        question,
        reports=[_opened(report) for report in reports],
        run=run,
        announce=announce,
        open_report=lambda path: open_captures(path, cache=cache),
    )
    return DrillView(_checked(answer))


def ranks(
    captures: Capture | Iterable[Capture],
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    cache: bool = True,
    jobs: int | None = None,
    dask: str | Client | None = None,
    dask_scheduler_file: PathLike | None = None,
) -> RanksView:
    """Compare all ranks of a job: who is late, why, and what it costs.

    `captures` are those of all ranks: paths, globs, a folder, opened captures, or files of
    `gs.rank_digest`. `jobs` processes read them (default: as many as there are CPUs), or the
    workers of a Dask cluster: `dask` is the address of its scheduler or a client, which default to
    the scheduler that DASK_SCHEDULER_ADDRESS names. A job trace (Parquet, operations of all
    workers) is given alone.
    """
    from gpusight.analysis.ranks.job_ranks import job_ranks as analysis
    from gpusight.analysis.ranks.job_ranks import ranks_of_operations
    from gpusight.rank_cluster import dask_scheduler
    from gpusight.rank_files import job_operations, rank_captures, read_ranks

    expanded = rank_captures(_several(captures))
    operations = job_operations(expanded)
    if operations is not None:
        return RanksView(_checked(ranks_of_operations(operations, str(expanded[0]))))
    focus = FocusOptions(steps=steps, window=window, warmup=warmup)
    cluster = dask_scheduler(dask, dask_scheduler_file, jobs=jobs)
    digests, unread = read_ranks(expanded, **focus, cache=cache, jobs=jobs, cluster=cluster)
    return RanksView(_checked(analysis(digests, unread)))


def ranks_whatif(
    captures: Capture | Iterable[Capture],
    *,
    changes: Iterable[tuple[str, str]] = (),
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    cache: bool = True,
    jobs: int | None = None,
    dask: str | Client | None = None,
    dask_scheduler_file: PathLike | None = None,
) -> View:
    """Simulate all ranks of a job with changes: the step time if stragglers were not late.

    `changes` are pairs of an option of `gpusight whatif --ranks` and its value, in order:
    `("as-median", "2")`, `("gradients", "bf16")`, `("bucket", "100MB")`, `("overlap",
    "communication")`, `("balance", "ranks")` (or stages, experts). Without any, each straggler as
    fast as the median.
    `captures` are read as by `gs.ranks`; of a job trace, its worst workers, its last stage and
    balanced stages are simulated.
    """
    from gpusight.analysis.ranks.job_whatif import operations_whatif
    from gpusight.analysis.ranks.job_whatif import ranks_whatif as analysis
    from gpusight.rank_cluster import dask_scheduler
    from gpusight.rank_files import job_operations, rank_captures, read_ranks

    expanded = rank_captures(_several(captures))
    operations = job_operations(expanded)
    wanted = list(changes)
    if operations is not None:
        if wanted:
            raise UsageError(
                f"--{wanted[0][0]} does not apply to a job trace",
                hint="give it alone: worst workers, last stage and balanced stages are simulated",
            )
        return View(_checked(operations_whatif(operations)))
    focus = FocusOptions(steps=steps, window=window, warmup=warmup)
    cluster = dask_scheduler(dask, dask_scheduler_file, jobs=jobs)
    digests, unread = read_ranks(expanded, **focus, cache=cache, jobs=jobs, cluster=cluster)
    return View(_checked(analysis(digests, wanted, unread=unread)))


def rank_digest(
    captures: Capture | Iterable[Capture],
    output: PathLike,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    cache: bool = True,
    jobs: int | None = None,
    dask: str | Client | None = None,
    dask_scheduler_file: PathLike | None = None,
) -> Path:
    """Write what `gs.ranks` needs of captures to a file of kilobytes; returns its path."""
    from gpusight.rank_cluster import dask_scheduler
    from gpusight.rank_files import rank_captures, write_digests

    expanded = rank_captures(_several(captures))
    focus = FocusOptions(steps=steps, window=window, warmup=warmup)
    cluster = dask_scheduler(dask, dask_scheduler_file, jobs=jobs)
    return write_digests(expanded, Path(output), **focus, cache=cache, jobs=jobs, cluster=cluster)


def _several(captures: Capture | Iterable[Capture]) -> list[Capture]:
    if isinstance(captures, (str, os.PathLike, Trace)):
        return [captures]
    return _listed(captures)


def _listed(captures: Iterable[_Made]) -> list[_Made]:
    """Give captures as a list; what is neither a path nor a list of them is no capture."""
    if isinstance(captures, Iterable):
        return list(captures)
    raise UsageError(f"{captures!r} is not a capture", hint="pass a path, or what gs.open gives")


def whatif(
    trace: Capture,
    *,
    speedup: Mapping[str, float] | None = None,
    precision: str | None = None,
    remove: Iterable[str] = (),
    fuse: Iterable[str] = (),
    overlap: Iterable[str] = (),
    apply: Iterable[str] = (),
    graph: bool = False,
    changes: Iterable[tuple[str, str]] = (),
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    within: str | None = None,
    device: int | None = None,
    process: str | int | None = None,
) -> WhatIfView:
    """Simulate the steps with changes: `speedup={"matmul": 4}, remove=["sync"], graph=True`.

    Order of application: `speedup`, `precision` of FP32 GEMMs, `remove`, `fuse`, `overlap`, `apply`
    (fixes of rules), `graph`. `changes` come first, in the order given: pairs of an option of
    `gpusight whatif` and its value, such as `("speedup", "matmul=4x")`.
    """
    from gpusight.analysis.scenario import parse_scenario, scenarios
    from gpusight.rules.scenario_changes import what_if as analysis

    replayed = [parse_scenario(action, text) for action, text in _actions(changes)]
    replayed += scenarios(
        speedup=speedup,
        precision=precision,
        remove=remove,
        fuse=fuse,
        overlap=overlap,
        apply=apply,
        graph=graph,
    )
    capture = _opened(trace)
    selection = _selection(within, device, process)
    answer = analysis(
        capture, selection, scenarios=replayed, steps=steps, window=window, warmup=warmup
    )
    return WhatIfView(_with_warnings(answer, [capture]))


def _actions(changes: Iterable[tuple[str, str]]) -> list[tuple[ScenarioAction, str]]:
    """Check the pairs of `whatif`."""
    from gpusight.analysis.scenario import ScenarioAction

    try:
        return [(ScenarioAction(verb), text) for verb, text in changes]
    except (TypeError, ValueError) as error:
        actions = ", ".join(action.value for action in ScenarioAction)
        raise UsageError(
            f"changes are pairs such as ('speedup', 'matmul=4x'), not {changes!r}",
            hint=f"the first of a pair is one of: {actions}",
        ) from error


def sql(trace: Capture, query: str) -> View:
    """Run one SQL query (Polars SQL) over the capture's tables."""
    from gpusight.analysis.sql_query import query as analysis

    return View(_analyze(analysis, trace, query))


def stats(trace: Capture, report: str) -> View:
    """Make a report of `nsys stats`, such as `cuda_gpu_kern_sum`; values in the headings' units."""
    from gpusight.analysis.nsys_stats.stats_reports import run_report
    from gpusight.render.stats_tables import stats_as_table

    def analysis(trace: Trace) -> TableResult | NotApplicable:
        answer = run_report(trace, report)
        return answer if isinstance(answer, NotApplicable) else stats_as_table(answer)

    return View(_analyze(analysis, trace))


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
    csv_raw: bool = False,
) -> list[Path]:
    """Write tables as csv, parquet, json or arrow files, or a timeline (`chrome`).

    A folder with the captures of all ranks of a job gives one timeline on one clock. Gives the
    files written. `within`, `device` and `process` select what a timeline shows. In CSV
    files, cells that a spreadsheet would run as formulas get a `'` in front, unless `csv_raw`.
    """
    from gpusight.render.table_export import export as write

    selection = _selection(within, device, process)
    return write(
        _opened_or_job(trace),
        Path(out),
        to,
        tables=tables,
        selection=selection,
        force=force,
        csv_raw=csv_raw,
    )


def record(
    program: str | Sequence[str],
    *,
    tool: str | None = None,
    output: PathLike | None = None,
    range: str | None = None,  # noqa: A002 - read as gs.record(range=…)
    steps: str | int | None = None,
    delay_s: float | None = None,
    duration_s: float | None = None,
    whole: bool = False,
    warmup: int | None = None,
    timed: int | None = None,
    recorded: int | None = None,
    pace: bool = False,
    memory: bool = False,
    gpu_metrics: bool = False,
    shapes: bool = False,
    python_stacks: bool = False,
    graph_nodes: bool = False,
    stacks: float | None = None,
    stacks_threads: str = "launching",
    rank: str | int = "all",
    stop: bool = False,
    overwrite: bool = False,
    kernel: str | None = None,
    launch_skip: int | None = None,
    launch_count: int | None = None,
    level: str = "quick",
    tool_options: Sequence[str] = (),
) -> Recording:
    """Run a program and record it; gives where the captures are and how the program ended.

    A text is split as a shell would. `tool` is nsys, ncu, torch or cupti, else the best there is;
    the others mean what the options of `gpusight record` mean. Raises where nothing was recorded,
    but not in a process whose rank was not chosen: its `paths` are empty.
    """
    from gpusight.recording.parse_request import make_request
    from gpusight.recording.record_program import record_request

    request = make_request(
        program,
        tool=tool,
        output=output,
        range=range,
        steps=steps,
        delay_s=delay_s,
        duration_s=duration_s,
        whole=whole,
        warmup=warmup,
        timed=timed,
        recorded=recorded,
        pace=pace,
        memory=memory,
        gpu_metrics=gpu_metrics,
        shapes=shapes,
        python_stacks=python_stacks,
        graph_nodes=graph_nodes,
        stacks=stacks,
        stacks_threads=stacks_threads,
        rank=rank,
        stop=stop,
        overwrite=overwrite,
        kernel=kernel,
        launch_skip=launch_skip,
        launch_count=launch_count,
        level=level,
        tool_options=tool_options,
    )
    return record_request(request)


def _of_one_run(made: _Made | OrionRefusal | NotApplicable) -> _Made:
    """Give what was made of several captures; raise where they are not of one run."""
    from gpusight.analysis.orion.orion_build import OrionRefusal as Refused

    if isinstance(made, Refused):
        hint = f"the first difference: {made.table.rows()[0]}"
        raise CaptureMismatchError(made.why, hint=hint, table=made.table)
    if isinstance(made, NotApplicable):
        raise made.error()
    return made


def _opened(trace: Capture) -> Trace:
    """Give a capture, opened where it is not yet."""
    from gpusight.readers.open import open_trace

    if isinstance(trace, Trace):
        return trace
    if isinstance(trace, (str, os.PathLike)):
        return open_trace(trace)
    raise UsageError(f"{trace!r} is not one capture", hint="pass a path, or what gs.open gives")


def _opened_or_job(trace: Capture) -> Trace:
    """Give a capture; of a folder with the captures of several ranks, these as one."""
    from gpusight.open_job import is_job_folder, open_job

    if not isinstance(trace, Trace) and is_job_folder(Path(trace)):
        return open_job([trace]).trace
    return _opened(trace)


def _selection(within: str | None, device: int | None, process: str | int | None) -> Selection:
    """Give the part of the capture that the arguments select."""
    from gpusight.analysis.selection import Selection

    name = None if process is None else str(process)
    return Selection(within=within, device=device, process=name)


def _first_process(trace: Trace, selection: Selection, focus: FocusOptions) -> Selection:
    """Select the process that `diagnose` shows first, where several used GPUs."""
    if not trace.has("processes") or trace.row_count("processes") < 2:
        return selection
    from gpusight.rules.process_sections import first_process

    return first_process(trace, selection, **focus)


def _corrected(
    trace: Capture, selection: Selection, focus: FocusOptions
) -> tuple[Trace, Selection]:
    """Give a capture with the times that the program has without a profiler, where they are known.

    They are those of one process, which is selected.
    """
    from gpusight.analysis.profiler_correction import without_profiler

    capture = _opened(trace)
    chosen = _first_process(capture, selection, focus)
    return without_profiler(capture, chosen.process), chosen


def _of_window(trace: Trace, selection: Selection, focus: FocusOptions) -> Selection:
    """Select the process of the steps; a window of time has the rows of all processes."""
    return selection if focus["window"] is not None else _first_process(trace, selection, focus)


class FocusOptions(TypedDict):
    """Which time to analyze: keyword arguments of these functions and of `step_window`."""

    steps: str | None
    window: tuple[int | None, int | None] | None
    warmup: bool


def _preloaded(trace: Capture, reads: Mapping[str, Sequence[str]]) -> Trace:
    """Read what an analysis and the steps of the program need, each table in one pass."""
    from gpusight.analysis.selection import ACTIVITY, WINDOW_READS

    capture = _opened(trace)
    if any(capture.has(table) for table in ACTIVITY):
        capture.read_together(WINDOW_READS, reads)
    return capture


def _analyze_window(
    analysis: Callable[..., Answer],
    trace: Capture,
    selection: Selection,
    focus: FocusOptions,
    *,
    as_recorded: bool = False,
    **options: object,
) -> Any:
    """Run an analysis on a time window, by default the steps without warm-up; name the window.

    `as_recorded` is set where times of the host are those of the capture.
    """
    from gpusight.analysis.steps.step_window import with_window

    capture = _opened(trace)
    selection = _of_window(capture, selection, focus)
    chosen, _ = with_window(capture, selection, **focus)
    answer = analysis(capture, chosen, **options)
    named = _named(answer, capture, selection, focus, as_recorded=as_recorded)
    return _with_warnings(named, [capture])


def _named(
    answer: Answer,
    trace: Trace,
    selection: Selection,
    focus: FocusOptions,
    *,
    as_recorded: bool = False,
) -> Answer:
    """Name the window of an answer as `diagnose` does, and say where its times are other ones."""
    if isinstance(answer, NotApplicable):
        return answer
    from gpusight.analysis.gpu_time import window_headline

    named = window_headline(trace, selection, **focus)
    if named is None:
        return answer
    if as_recorded and named.is_corrected:
        answer = replace(answer, notes=(*answer.notes, AS_RECORDED))
    return with_window_text(answer, named.text, named.document())


def _analyze(
    analysis: Callable[..., Any], trace: Capture, *arguments: object, **options: object
) -> Any:
    """Run an analysis on a capture; what is wrong with the capture is part of the answer."""
    capture = _opened(trace)
    return _with_warnings(analysis(capture, *arguments, **options), [capture])


def _with_warnings(answer: Any, captures: Iterable[Trace]) -> Any:
    """Give the answer with what is wrong with any of the captures that it was made of."""
    traces = list(captures)
    warnings = tuple(dict.fromkeys(warning for trace in traces for warning in trace.warnings))
    return _checked(with_warnings(answer, warnings), traces)


def _checked(answer: _Made | NotApplicable, captures: Iterable[Trace] = ()) -> _Made:
    """Give the answer; raise where there is none, with what the captures lost first."""
    if isinstance(answer, NotApplicable):
        losses = dict.fromkeys(loss for trace in captures for loss in trace.losses)
        raise answer.after_losses([*losses]).error()
    return answer


def _digests(
    captures: ComparisonInput | Iterable[ComparisonInput], selection: Selection, focus: FocusOptions
) -> list[Digest]:
    """Sum captures up for a comparison; a baseline file holds such digests already.

    A path may also be a glob, a folder of captures or a list, as on the command line. Raises where
    a capture cannot be compared.
    """
    from gpusight.comparison.build_digest import make_digest
    from gpusight.comparison.digest import Digest
    from gpusight.comparison.inputs import digests_of, side_inputs
    from gpusight.open_job import jobs_among, with_ranks

    single = isinstance(captures, (str, os.PathLike, Trace, Digest))
    if not single and not isinstance(captures, Iterable):
        raise _not_a_capture(captures)
    sources: list[Trace | Digest | Path] = []
    paths: list[str] = []
    for capture in [captures] if single else captures:  # type: ignore[union-attr]
        if isinstance(capture, (Trace, Digest)):
            sources.append(capture)
        elif isinstance(capture, (str, os.PathLike)):
            paths.append(os.fspath(capture))
        else:
            raise _not_a_capture(capture)
    inputs = side_inputs(paths)  # together, so that it sees what was named twice

    def make(source: Trace | Path) -> Digest | NotApplicable:
        return make_digest(_opened(source), selection, **focus)

    digests = digests_of(sources, make)
    for captures in jobs_among(inputs.paths):
        made = digests_of(captures[:1], make, inputs.notes)
        digests += [with_ranks(made[0], captures)] if len(captures) > 1 else made
    return digests


def _not_a_capture(given: object) -> UsageError:
    return UsageError(
        f"{type(given).__name__} is no capture",
        hint="pass a path, an opened capture, a digest of gs.baseline, or a list of these",
    )
