"""What nsys was asked to record: META_DATA_CAPTURE.

The export writes a row for every option there is. Here are those that a capture sets to something;
the others are the same in all captures compared, and say nothing. Environment variables, which
often hold secrets and serve no analysis, are not even decoded.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.readers.nsys.rep.wire import Message, child, children, integer, text

if TYPE_CHECKING:
    from collections.abc import Iterator

_EVENT_TYPES = {
    1: "CpuCycles",
    12: "NvtxEvents",
    123: "Cuda",
    124: "Graphics",
    127: "OSRuntime",
    128: "CuDNN",
    129: "CuBLAS",
}
_DEVICE_TYPES = {3: "Unix", 6: "Windows"}
_GRAPH_MODES = {0: "Graph", 1: "Node"}


def capture_options(options: Message) -> list[dict[str, int | str | None]]:
    """Give the rows of META_DATA_CAPTURE that the file decides."""
    if not options:
        return []
    return [{"name": name, "value": value} for name, value in _rows(options) if value is not None]


def _rows(options: Message) -> Iterator[tuple[str, str | None]]:
    yield "DEVICE_ID", text(options, 1)
    for number in child(options, 2).get(1, ()):
        if isinstance(number, int):
            yield "CAPTURE_EVENT_TYPE", _EVENT_TYPES.get(number)
    yield "RATE_HZ", _number(options, 3)
    yield "DEVICE_TYPE", _DEVICE_TYPES.get(integer(options, 8) or 0)
    yield "DEVICE_DISPLAY_NAME", text(options, 9)
    calls = child(options, 12)
    yield "OS_RUNTIME_OPTIONS:DURATION_THRESHOLD_NS", _number(calls, 1)
    yield "OS_RUNTIME_OPTIONS:BACKTRACES_THRESHOLD_NS", _number(calls, 3)
    for index, process in enumerate(children(options, 26)):
        for name, value in _process_rows(process):
            yield f"PROCESS_{index}:{name}", value
    yield "PROFILING_SESSION_UUID", text(options, 77)
    yield "SHOW_BACKTRACE", _flag(options, 30)
    yield "RUN_DURATION_MS", _number(options, 32)
    yield "USE_DWARF", _flag(options, 39)
    yield "USE_LBRS", _flag(options, 54)
    yield "USE_LINUX_PERF", _flag(options, 56)
    sampling = child(options, 69)
    yield "LINUX_PERF_OPTIONS:SAMPLING_PERIOD", _number(sampling, 2)
    yield "LINUX_PERF_OPTIONS:SAMPLES_PER_BACKTRACE", _number(sampling, 4)
    yield "GPU_METRICS_OPTIONS:SAMPLING_FREQUENCY", _number(child(options, 70), 1)


def _process_rows(process: Message) -> Iterator[tuple[str, str | None]]:
    yield "COMMAND", text(process, 10)
    for index, argument in enumerate(process.get(11, ())):
        if isinstance(argument, bytes):
            yield f"ARGUMENT_{index}", argument.decode("utf-8", "replace")
    yield "WORKING_DIR", text(process, 12)
    yield "COLLECT_CUDA_TRACE", _flag(process, 21)
    yield "COLLECT_GPU_MEMORY_USAGE", _flag(process, 43)
    if 49 in process:
        mode = integer(child(process, 49), 1) or 0
        yield "CUDA_GRAPH_TRACE_OPTIONS:MODE", _GRAPH_MODES.get(mode)


def _number(message: Message, number: int) -> str | None:
    value = integer(message, number)
    return None if value is None else str(value)


def _flag(message: Message, number: int) -> str | None:
    value = integer(message, number)
    return None if value is None else ("true" if value else "false")
