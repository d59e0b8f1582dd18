"""The command line that records a timeline with Nsight Systems, and the options that it uses."""

from __future__ import annotations

import math
import sys
from typing import TYPE_CHECKING

from gpusight.errors import RecordError, UsageError
from gpusight.recording.tools import (
    UNDATED,
    OptionSpelling,
    ToolCommand,
    ToolOption,
    ToolOptions,
    ToolVersion,
    option,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from gpusight.recording.request import RecordRequest
    from gpusight.recording.tools import InstalledTool


TRACE = option("--trace", short="-t")
OSRT_THRESHOLD = option("--osrt-threshold")
OSRT_BACKTRACES = option("--osrt-backtrace-threshold")
SAMPLE = option("--sample", short="-s")
CONTEXT_SWITCHES = option("--cpuctxsw")
OUTPUT = option("--output", short="-o")
OVERWRITE = option("--force-overwrite", short="-f")
MEMORY = option("--cuda-memory-usage")
GRAPHS = option("--cuda-graph-trace", since=ToolVersion(2022, 2))
GPU_METRICS = ToolOption(
    (
        OptionSpelling("--gpu-metrics-devices", since=ToolVersion(2025, 1)),
        # Tools in between that have the newer one only take this as its abbreviation.
        OptionSpelling("--gpu-metrics-device", since=ToolVersion(2021, 2)),
    )
)
PYTHON_STACKS = option("--python-backtrace", since=ToolVersion(2023, 4))
CUDA_STACKS = option("--cudabacktrace")
CAPTURE_RANGE = option("--capture-range", short="-c")
NVTX_CAPTURE = option("--nvtx-capture", short="-p")
RANGE_END = option("--capture-range-end", since=ToolVersion(2021, 3))
STOP_ON_RANGE_END = ToolOption((OptionSpelling("--stop-on-range-end", until=ToolVersion(2021, 3)),))
DELAY = option("--delay", short="-y")
DURATION = option("--duration", short="-d")
KILL = option("--kill")
DISCARD_ENVIRONMENT = option("--discard-environment", since=UNDATED)

TAKES_TENTHS = ToolVersion(2023, 4)
"""Of a second, for `--delay` and `--duration`, to which it rounds; 2022.4 refuses them."""
MAX_DURATION_S = 1_000_000
"""More is refused as a duration, and as a delay taken for none; the bound lies below 3,000,000."""
GOES_ON_ALONE = ToolVersion(2021, 1)
"""With `--kill=none` nsys ends when the duration does, and leaves the program; 2020.4 waits."""
WRITES_NSYS_REP = ToolVersion(2021, 4)
"""Before, reports were called `.qdrep`."""


_SUFFIXES = (".nsys-rep", ".qdrep")
_MIN_OS_CALL_NS = 100_000
_MIN_OS_CALL_WITH_STACK_NS = 1_000_000_000
REGISTERED_ONLY = "NSYS_NVTX_PROFILER_REGISTER_ONLY"
"""Unless this is 0, nsys knows a range by name only where the program registered the name."""


def nsys_command(
    installed: InstalledTool,
    request: RecordRequest,
    output: Path,
    program: tuple[str, ...],
    *,
    windowed: bool = False,
) -> ToolCommand:
    """Build `nsys profile …` for a request, as this version of nsys takes it.

    Recorded are CUDA, NVTX and calls of the operating system that took 100 µs or more: those
    distinguish a host that waits for input from one that computes. All of them were a thousand
    times as many where we looked, and filled 2 GB in three training steps; a stack is taken only
    of those of a second. CPU sampling and context switches are off: they cost most, and need
    permissions that containers seldom have. Of a range that opens repeatedly the first is recorded.

    Steps are counted in the program, which calls cudaProfilerStart and Stop; `windowed`: also
    where the request names none. `program` is what runs under nsys, `request.program` or one made
    from it.
    """
    if OUTPUT.among(request.extra):
        raise UsageError(
            "nsys's own --output conflicts with gpusight's",
            hint="use gpusight record -o",
        )
    options = ToolOptions(installed, request.extra, joined=True)
    _add_sources(options, request)
    environment = {}
    if request.steps is not None or windowed:
        _record_between(options, "cudaProfilerApi", request)
    elif request.range_name is not None:
        _record_between(options, "nvtx", request)
        environment[REGISTERED_ONLY] = "0"
    else:
        _record_for(options, request)
    suffix = next((s for s in _SUFFIXES if output.name.endswith(s) and output.name != s), "")
    stem = output.with_name(output.name.removesuffix(suffix))
    options.add(DISCARD_ENVIRONMENT, "true")
    if request.overwrite:
        options.add(OVERWRITE, "true")
    options.add(OUTPUT, str(stem).replace("%", "%%"))
    own_suffix = ".nsys-rep" if installed.version >= WRITES_NSYS_REP else ".qdrep"
    return ToolCommand(
        (str(installed.path), "profile", *options.argv, *program),
        stem.with_name(stem.name + own_suffix),
        environment,
        tuple(options.notes),
    )


def _add_sources(options: ToolOptions, request: RecordRequest) -> None:
    """Choose what is recorded."""
    # nsys for Windows traces no calls of the operating system.
    os_calls = () if sys.platform == "win32" else ("osrt",)
    options.add(TRACE, ",".join(("cuda", "nvtx", *os_calls)))
    if os_calls:
        options.add(OSRT_THRESHOLD, str(_MIN_OS_CALL_NS))
        options.add(OSRT_BACKTRACES, str(_MIN_OS_CALL_WITH_STACK_NS))
    _add_stacks(options, wanted=request.python_stacks)
    if request.memory:
        options.add(MEMORY, "true")
    if request.gpu_metrics:
        # Other people's GPUs of the same machine may not be ours to measure.
        visible = options.installed.lists(GPU_METRICS, "cuda-visible")
        options.add(
            GPU_METRICS,
            "cuda-visible" if visible else "all",
            otherwise="cannot sample GPU metrics (2021.2 and newer can): recorded without them",
        )
    if request.graph_nodes:
        # Versions without the option trace every node anyway.
        options.add(GRAPHS, "node")


def _add_stacks(options: ToolOptions, *, wanted: bool) -> None:
    """Request the Python stack of every CUDA call, which nsys takes only while it samples."""
    sampling = wanted and options.add(
        PYTHON_STACKS,
        "cuda",
        otherwise="cannot record Python stacks (2023.4 and newer can): recorded without them",
    )
    if not sampling:
        options.add(SAMPLE, "none")
        options.add(CONTEXT_SWITCHES, "none")
        return
    options.add(SAMPLE, "process-tree")
    # Without a threshold of 0 only calls of 80 µs get a stack, and launches are shorter.
    options.add(CUDA_STACKS, "all:0")


def _record_between(options: ToolOptions, kind: str, request: RecordRequest) -> None:
    """Record between cudaProfilerStart and Stop, or while a range is open."""
    options.need(CAPTURE_RANGE, kind)
    if kind == "nvtx" and request.range_name is not None:
        name = request.range_name
        options.need(NVTX_CAPTURE, name if "@" in name else f"{name}@*")
    end = "stop-shutdown" if request.stop else "stop"
    if not options.add(RANGE_END, end):
        options.add(STOP_ON_RANGE_END, "true")
        options.add(KILL, "sigterm" if request.stop else "none")
    elif request.stop:
        options.add(KILL, "sigterm")


def _record_for(options: ToolOptions, request: RecordRequest) -> None:
    """Record from a time on, for a time."""
    duration = request.duration_s
    delay = _seconds(options, request.delay_s or 0, math.floor)
    if delay != "0":  # which nsys calls illegal
        options.need(DELAY, delay)
    if duration is None:
        return
    options.need(DURATION, _seconds(options, duration, lambda units: max(1, math.ceil(units))))
    options.add(KILL, "sigterm" if request.stop else "none")
    ends_first = not request.stop and options.installed.version >= GOES_ON_ALONE
    if ends_first and sys.platform != "linux":  # there, the program's end is waited for
        options.notes.append(
            f"{options.installed} ends with the {duration:g} s: the program then goes on by "
            "itself, and its exit code is not known"
        )


def _seconds(options: ToolOptions, value_s: float, to_integer: Callable[[float], int]) -> str:
    """Write a time in the steps that nsys takes, so that nothing wanted is missed."""
    tenths = options.installed.version >= TAKES_TENTHS
    # Of 0.3 s, too, a float holds no integer of tenths.
    units = round(value_s * 10, 6) if tenths else value_s
    rounded_s = to_integer(units) / 10 if tenths else to_integer(units)
    if rounded_s > MAX_DURATION_S:
        raise RecordError(
            f"{value_s:g} s is longer than nsys supports", hint=f"use at most {MAX_DURATION_S:,} s"
        )
    if to_integer(units) != units:
        kind = "tenths of a second" if tenths else "whole seconds"
        note = f"takes {kind} only: {value_s:g} s is rounded to {rounded_s:g} s"
        options.notes.append(f"{options.installed} {note}")
    return f"{rounded_s:.10g}"
