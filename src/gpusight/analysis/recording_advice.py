"""How to record what a capture lacks, with the tool that made the capture."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpusight.analysis.aggregates import names_of

if TYPE_CHECKING:
    from gpusight.trace.trace import Meta, Trace


@dataclass(frozen=True, slots=True)
class WantedData:
    """Something worth recording: its table, what it is, what it shows, how to get it."""

    table: str
    what: str
    tells: str
    option: str
    column: str | None = None
    """A column of the table that may be empty while the table is not."""
    native: str = ""
    """The profiler's own word for `option`, where that is one of ours."""
    instead: tuple[str, str] | None = None
    """Table and column that hold the same in captures of other versions of the tool."""
    metrics: tuple[str, ...] = ()
    """Of the table `counters`: what their names begin with, where one of them is enough."""

    @property
    def how(self) -> str:
        """How to get it, also for users who run the profiler themselves."""
        return f"{self.option} ({self.native})" if self.native else self.option

    def absent(self, trace: Trace) -> bool:
        """Return whether the capture lacks it; of a missing table no column is."""
        if self.metrics:
            names = names_of(trace.table("counters", ["metric"])["metric"])
            return not any(name.startswith(self.metrics) for name in names)
        if self.instead is not None and trace.has(*self.instead):
            return False
        if self.column is None:
            return not trace.has(self.table)
        return trace.has(self.table) and not trace.has(self.table, self.column)


@dataclass(frozen=True, slots=True)
class RecordingAdvice:
    """How captures of one tool are made, and what it calls things."""

    ranges_name: str
    """What the tool calls ranges of the program."""
    marks_name: str
    """What it calls marks of a single instant."""
    calls_name: str
    """What it calls calls of the CUDA or HIP runtime and driver."""
    calls_short: str
    """The same, shorter."""
    gpu: str
    """How to record GPU work at all."""
    kernels: str
    """What to do when not even API calls were recorded."""
    unrecorded: str
    """Why API calls may be recorded without the kernels they launched."""
    calls: str
    """How to record API calls."""
    ranges: str
    """How to annotate the program."""
    select: str
    """The same, in fewer words."""
    option_label: str
    """Heading over the options in `wanted`."""
    wanted: tuple[WantedData, ...]
    """What such a capture can hold, the most useful first."""
    elsewhere: str = ""
    """Advice for data that the tool never records; empty for the tool that records most."""
    no_processes: str = "the capture has no processes"
    """What it means that no process is active."""
    graphs: str = ""
    """How to record the kernels of CUDA graphs."""
    graph_nodes: WantedData | None = None
    """The same, as something worth recording."""

    def remedy(self, tables: tuple[str, ...]) -> str:
        """Return how to record one of these tables, with a tool that does not record all."""
        if not self.elsewhere:
            return ""
        # Memcpys and memsets are recorded with kernels.
        alike = {"kernels" if table in ("copies", "memsets") else table for table in tables}
        options = (w.how for w in self.wanted if w.table in alike and w.column is None)
        return next((f"it comes with {option}" for option in options), self.elsewhere)


_TRACED = "gpusight record … (nsys profile --trace=cuda,nvtx …)"
"""Ours first: it knows the options of every version of nsys."""
_BY_HAND = "gs.annotate, torch.cuda.nvtx.range, nvtx.annotate, nvtxRangePush"
_NSYS = RecordingAdvice(
    ranges_name="NVTX ranges",
    marks_name="NVTX marks",
    calls_name="CUDA API calls",
    calls_short="CUDA calls",
    gpu="capture with: gpusight record … (nsys profile --trace=cuda …)",
    kernels=f"capture with: {_TRACED}, and let the program reach its GPU work",
    unrecorded=(
        "the driver refuses GPU records under older WSL2, in containers without the profiling "
        "permission, and while another profiler runs; see the messages in: gpusight info FILE"
    ),
    calls=f"capture with: {_TRACED}",
    ranges=f"annotate the program ({_BY_HAND}) and capture with: {_TRACED}",
    select=f"annotate the program and capture with: {_TRACED}",
    no_processes="no process of the capture used CUDA or NVTX",
    graphs=(
        "capture again with: gpusight record --graph-nodes … "
        "(nsys profile --cuda-graph-trace=node …)"
    ),
    graph_nodes=WantedData(
        "kernels",
        "kernels inside CUDA graphs",
        "what the graphs spend",
        "gpusight record --graph-nodes",
        native="nsys --cuda-graph-trace=node",
    ),
    option_label="Record with",
    wanted=(
        WantedData("kernels", "GPU kernels", "where GPU time goes", "gpusight record",
                   native="nsys --trace=cuda"),
        WantedData("api_calls", "CUDA API calls", "what the host waited for", "gpusight record",
                   native="nsys --trace=cuda"),
        WantedData("ranges", "NVTX ranges", "which step or layer costs what", "gpusight record",
                   native="nsys --trace=cuda,nvtx"),
        WantedData("os_calls", "OS calls", "whether the host read, slept or waited",
                   "gpusight record", native="nsys --trace=osrt"),
        WantedData("cpu_samples", "CPU samples", "what host code ran",
                   "gpusight record --python-stacks", native="nsys --sample=process-tree"),
        WantedData("memory_events", "GPU memory use", "peaks and leaks", "gpusight record --memory",
                   native="nsys --cuda-memory-usage=true"),
        WantedData("gpu_metrics", "GPU metrics", "SM and DRAM utilization",
                   "gpusight record --gpu-metrics", native="nsys --gpu-metrics-devices=all"),
    ),
)  # fmt: skip

_WITH_CUPTI = "gpusight record --with cupti …"
_CUPTI = replace(
    _NSYS,
    gpu=f"capture with: {_WITH_CUPTI}",
    kernels=f"capture with: {_WITH_CUPTI}, and let the program reach its GPU work",
    calls=f"capture with: {_WITH_CUPTI}",
    ranges=f"annotate the program ({_BY_HAND}) and capture with: {_WITH_CUPTI}",
    select=f"annotate the program and capture with: {_WITH_CUPTI}",
    graphs="",
    graph_nodes=None,
    elsewhere="CUPTI does not record this; gpusight record --with nsys does",
    wanted=(
        WantedData("kernels", "GPU kernels", "where GPU time goes", "let the program use the GPU"),
        WantedData("ranges", "NVTX ranges", "which step or layer costs what",
                   "gs.annotate, gs.step"),
        WantedData("memory_events", "GPU memory use", "peaks and leaks",
                   "gpusight record --memory"),
        WantedData("os_calls", "OS calls", "whether the host read, slept or waited",
                   "gpusight record --with nsys"),
        WantedData("gpu_metrics", "GPU metrics", "SM and DRAM utilization",
                   "gpusight record --gpu-metrics"),
    ),
)  # fmt: skip

_TORCH_GPU = "profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]"
_TORCH_MARK = 'record_function("name")'
_TORCH = RecordingAdvice(
    ranges_name="annotations",
    marks_name="marks",
    calls_name="API calls",
    calls_short="API calls",
    gpu=f"{_TORCH_GPU}, on AMD GPUs too",
    kernels=(
        f"{_TORCH_GPU} (on AMD GPUs too); that CUDA is in torch.profiler.supported_activities() "
        "shows whether this PyTorch can record a GPU"
    ),
    unrecorded=(
        "torch.profiler was given no GPU records: CUPTI (roctracer on AMD GPUs) is missing, a "
        "container lacks the profiling permission, another profiler runs, or the GPU's work came "
        "after the last step that was recorded"
    ),
    calls=_TORCH_GPU,
    ranges=(
        f"mark parts of the program with torch.profiler.{_TORCH_MARK}, and steps by calling "
        "prof.step() after each"
    ),
    select=f"mark parts of the program with torch.profiler.{_TORCH_MARK}",
    option_label="Option of torch.profiler.profile",
    elsewhere="torch.profiler does not record this; gpusight record (nsys profile) does",
    wanted=(
        WantedData("kernels", "GPU kernels", "where GPU time goes", "ProfilerActivity.CUDA"),
        WantedData("api_calls", "API calls", "what the host waited for", "ProfilerActivity.CUDA"),
        WantedData("cpu_ops", "operators", "which operator costs what", "ProfilerActivity.CPU"),
        WantedData("ranges", "annotations", "which step or layer costs what",
                   f"{_TORCH_MARK}, prof.step()"),
        WantedData("cpu_ops", "shapes of inputs", "which sizes cost what", "record_shapes=True",
                   "shapes"),
        WantedData("memory_events", "memory use", "peaks and leaks", "profile_memory=True"),
        WantedData("python_calls", "Python stacks", "which code launched what", "with_stack=True",
                   instead=("cpu_ops", "stack")),
        WantedData("cpu_ops", "operation counts", "achieved vs. peak FLOP/s", "with_flops=True",
                   "flops"),
    ),
)  # fmt: skip

_EXPORT = 'prof.export_chrome_trace("trace.json.gz")'
_NO_TIMELINE = f"a table of totals has no timeline; write the trace itself with: {_EXPORT}"
_KEY_AVERAGES = RecordingAdvice(
    ranges_name="annotations",
    marks_name="marks",
    calls_name="API calls",
    calls_short="API calls",
    gpu=_NO_TIMELINE,
    kernels=f"{_TORCH_GPU}, or print more rows: key_averages().table(row_limit=-1)",
    unrecorded=_NO_TIMELINE,
    calls=_NO_TIMELINE,
    ranges=_NO_TIMELINE,
    select=_NO_TIMELINE,
    option_label="Record with",
    elsewhere=_NO_TIMELINE,
    wanted=(
        WantedData("kernels", "a timeline", "when what ran, and what the GPU waited for", _EXPORT),
        WantedData("op_totals", "shapes of inputs", "which sizes cost what",
                   "record_shapes=True, key_averages(group_by_input_shape=True)", "shapes"),
        WantedData("op_totals", "Python stacks", "which code launched what",
                   "with_stack=True, key_averages(group_by_stack_n=5)", "stack"),
        WantedData("op_totals", "memory use", "who allocates memory", "profile_memory=True",
                   "self_cpu_bytes"),
        WantedData("op_totals", "operation counts", "achieved vs. peak FLOP/s", "with_flops=True",
                   "flops"),
    ),
)  # fmt: skip

_MEMORY_ONLY = f"a memory snapshot has memory only; for times, {_TORCH_GPU} and write: {_EXPORT}"
_SNAPSHOT = RecordingAdvice(
    ranges_name="annotations",
    marks_name="marks",
    calls_name="API calls",
    calls_short="API calls",
    gpu=_MEMORY_ONLY,
    kernels=_MEMORY_ONLY,
    unrecorded=_MEMORY_ONLY,
    calls=_MEMORY_ONLY,
    ranges=_MEMORY_ONLY,
    select=_MEMORY_ONLY,
    option_label="Record with",
    elsewhere=_MEMORY_ONLY,
    wanted=(
        WantedData("memory_events", "history of allocations", "peaks and leaks",
                   "torch.cuda.memory._record_memory_history() before the program starts"),
        WantedData("callchains", "stacks of allocations", "which code allocated the memory",
                   'torch.cuda.memory._record_memory_history(stacks="all")'),
        WantedData("kernels", "a timeline", "where time goes",
                   f"torch.profiler.profile, {_EXPORT}"),
    ),
)  # fmt: skip

_JAX_TRACE = "trace with: with jax.profiler.trace(FOLDER): … around steps that run on the GPU"
_JAX_MARK = 'jax.profiler.TraceAnnotation("name")'
_JAX_STEP = 'StepTraceAnnotation("train", step_num=i)'
_JAX = RecordingAdvice(
    ranges_name="annotations",
    marks_name="marks",
    calls_name="API calls",
    calls_short="API calls",
    gpu=_JAX_TRACE,
    kernels=_JAX_TRACE,
    unrecorded=(
        "the JAX profiler was given no GPU records: CUPTI is missing, a container lacks the "
        "profiling permission, or another profiler runs"
    ),
    calls=_JAX_TRACE,
    ranges=f"mark parts of the program with {_JAX_MARK}, and steps with jax.profiler.{_JAX_STEP}",
    select=f"mark parts of the program with {_JAX_MARK}",
    option_label="Record with",
    elsewhere="the JAX profiler does not record this; gpusight record (nsys profile) does",
    wanted=(
        WantedData("kernels", "GPU kernels", "where GPU time goes", "run on a GPU while tracing"),
        WantedData("api_calls", "API calls", "what the host waited for",
                   "host_tracer_level=2 or more"),
        WantedData("ranges", "annotations", "which step or layer costs what", _JAX_MARK),
        WantedData("python_calls", "Python calls", "what host code ran", "python_tracer_level=1"),
    ),
)  # fmt: skip

_ONE_BY_ONE = (
    "Nsight Compute measures kernels one by one and records no timeline: see gpusight kernels, "
    f"counters or diagnose; for a timeline: {_TRACED}"
)


def _section(identifier: str, what: str, tells: str, *metrics: str) -> WantedData:
    return WantedData("counters", what, tells, f"--section {identifier}", metrics=metrics)


_NCU = RecordingAdvice(
    ranges_name="timeline of NVTX ranges",
    marks_name="timeline of NVTX marks",
    calls_name="CUDA API calls",
    calls_short="CUDA calls",
    gpu=_ONE_BY_ONE,
    kernels="measure kernels with: gpusight record --with ncu --level full … (ncu --set full …)",
    unrecorded=_ONE_BY_ONE,
    calls=_ONE_BY_ONE,
    ranges=f"{_ONE_BY_ONE}; --in RANGE selects launches by the ranges they were made in",
    select="measure with: gpusight record --with ncu … (ncu --nvtx …)",
    option_label="Option of ncu",
    no_processes="the capture has no processes of launches",
    elsewhere=_ONE_BY_ONE,
    wanted=(
        _section("SpeedOfLight", "durations and throughput",
                 "duration, and share of the GPU's peak", "gpu__time_duration"),
        _section("MemoryWorkloadAnalysis", "memory traffic", "what the caches and the memory did",
                 "dram__bytes", "l1tex__t_sector_hit_rate"),
        _section("Occupancy", "occupancy", "how many warps hid each other's waits",
                 "sm__warps_active.avg.pct"),
        _section("LaunchStats", "launch statistics", "registers, shared memory, waves",
                 "launch__registers_per_thread"),
        _section("ComputeWorkloadAnalysis", "use of the SM's units", "which unit is the bottleneck",
                 "sm__inst_executed_pipe_"),
        _section("SpeedOfLight_RooflineChart", "operation counts",
                 "where kernels lie under the roofline", "smsp__sass_thread_inst_executed_op_",
                 "sm__sass_thread_inst_executed_op_", "smsp__inst_executed_pipe_fp64"),
        _section("SchedulerStats", "scheduler statistics", "how often no warp could issue",
                 "smsp__issue_active"),
        _section("WarpStateStats", "states of warps", "what warps waited for", "smsp__average_warp",
                 "smsp__average_warps_issue_stalled"),
        _section("SourceCounters", "counters by instruction", "which line of the source costs what",
                 "smsp__pcsamp_"),
        WantedData("rule_results", "the profiler's own advice", "what ncu would change",
                   "--apply-rules yes"),
        WantedData("profiles", "NVTX ranges", "which step or layer launched what", "--nvtx",
                   "ranges"),
        WantedData("source_files", "source code", "the text of hot lines", "--import-source yes"),
    ),
)  # fmt: skip

_BY_SOURCE = (
    ("torch-key-averages", _KEY_AVERAGES),
    ("torch-snapshot", _SNAPSHOT),
    ("torch", _TORCH),
    ("jax", _JAX),
    ("ncu", _NCU),
)


def advice_for(meta: Meta) -> RecordingAdvice:
    """Return the advice for the tool that made a capture."""
    # Captures of our own recorder look like exports of nsys.
    if meta.tool.startswith("gpusight record, CUPTI"):
        return _CUPTI
    return next((a for source, a in _BY_SOURCE if meta.source.startswith(source)), _NSYS)
