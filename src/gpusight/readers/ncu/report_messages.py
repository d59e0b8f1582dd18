"""The messages of a report: launches, open NVTX ranges, rules, machine and tools.

Host names, addresses, command lines and environments, which a report also holds, are not read.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from gpusight.core.file_decoders import message_fields
from gpusight.readers.ncu.ncu_container import MessageSpan
from gpusight.readers.protobuf_wire import (
    NUMBER,
    Message,
    WireError,
    child,
    children,
    fields,
    integer,
    parse,
    signed,
    text,
)
from gpusight.readers.tables import NAMELESS
from gpusight.trace.schema_gpu import BETWEEN_STACKS
from gpusight.trace.trace import Meta

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpusight.readers.ncu.ncu_container import ReportProcess, ReportResult
    from gpusight.trace.intervals import Ints


_DOMAINS, _THREADS, _START_END = 1, 2, 3
_DEFAULT = "<default domain>"


def open_ranges(state: Message, thread: int | None) -> str | None:
    """Return the ranges as `outer/inner`, `domain:outer/inner`; None where none was open.

    The ranges of the launching thread come first; those that cross threads (start/end) follow.
    """
    domains = {integer(d, 1): text(d, 2) for d in children(state, _DOMAINS)}
    ranges = []
    own = [t for t in children(state, _THREADS) if integer(t, 1) == thread]
    for stack in (s for t in own for s in children(t, 2)):
        names = [text(r, 1) or "" for r in children(stack, 3)]
        if names:
            ranges.append(in_domain(domains.get(integer(stack, 1)), "/".join(names)))
    for domain in children(state, _START_END):
        name = domains.get(integer(domain, 1))
        ranges += [in_domain(name, text(opened, 2) or "") for opened in children(domain, 3)]
    return BETWEEN_STACKS.join(ranges) or None


def in_domain(domain: str | None, names: str) -> str:
    """Write a domain before its ranges, unless it is the default one."""
    return names if domain in (None, "", _DEFAULT) else f"{domain}:{names}"


@dataclass(frozen=True, slots=True)
class _Layout:
    """Field numbers in one kind of result; 0 for fields that it does not have."""

    metrics: int
    nvtx: int
    context: int
    stream: int
    clocks: int
    rules: int = 0
    name: int = 0


_LAYOUTS = {
    "kernel": _Layout(metrics=13, nvtx=21, context=22, stream=23, clocks=25, rules=19),
    "range": _Layout(metrics=4, nvtx=10, context=11, stream=0, clocks=12),
    "command list": _Layout(
        metrics=4, nvtx=10, context=11, stream=12, clocks=13, rules=21, name=18
    ),
    "graph": _Layout(metrics=4, nvtx=10, context=11, stream=12, clocks=13),
}
_THREAD, _MANGLED, _FUNCTION, _DEMANGLED, _GRID, _BLOCK, _SOURCE = 1, 5, 6, 7, 10, 11, 15
_NAMELESS = {"range": "(range)", "graph": "(graph)", "command list": "(command list)"}


@dataclass(slots=True)
class ReportLaunch:
    """One result: what was launched, and where its counters and rules are."""

    number: int
    kind: str
    process: ReportProcess | None
    thread: int | None = None
    mangled: str | None = None
    function: str | None = None
    demangled: str | None = None
    grid: tuple[int, int, int] | None = None
    block: tuple[int, int, int] | None = None
    context: int | None = None
    stream: int | None = None
    ranges: str | None = None
    source: int | None = None
    """Reference to its binary."""
    locked: bool | None = None
    """Whether clocks were locked."""
    metrics: Ints = field(default_factory=lambda: np.empty((0, 2), np.int64))
    """Start and end of each counter in the file."""
    rules: list[MessageSpan] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The best name that the report has for it."""
        named = self.demangled or self.function or self.mangled
        return named or _NAMELESS.get(self.kind, NAMELESS)


def read_launch(data: memoryview, number: int, result: ReportResult) -> ReportLaunch | None:
    """Read the launch of a result; counters and rules are only located.

    None when it cannot be decoded.
    """
    layout = _LAYOUTS[result.kind]
    launch = ReportLaunch(number, result.kind, result.process)
    numbers: dict[int, int] = {}
    spans: dict[int, MessageSpan] = {}
    base = result.span.start
    content = bytes(data[base : result.span.end])

    def message(field: int) -> Message:
        span = spans.get(field)
        return {} if span is None else parse(data[span.start : span.end])

    try:
        launch.metrics, others = _without_repeated(content, layout.metrics)
        launch.metrics += base
        for field_number, start, end in others:
            if start == NUMBER:
                numbers[field_number] = signed(end)
            elif field_number == layout.rules:
                launch.rules.append(MessageSpan(base + start, base + end))
            else:
                spans[field_number] = MessageSpan(base + start, base + end)
        launch.thread = numbers.get(_THREAD)
        launch.context = numbers.get(layout.context)
        launch.stream = numbers.get(layout.stream)
        launch.ranges = open_ranges(message(layout.nvtx), launch.thread)
        locked = integer(message(layout.clocks), 2)
        launch.locked = None if locked is None else bool(locked)
        if result.kind == "kernel":
            launch.mangled, launch.function, launch.demangled = (
                _launch_text(data, spans.get(field)) for field in (_MANGLED, _FUNCTION, _DEMANGLED)
            )
            launch.grid, launch.block = _size(message(_GRID)), _size(message(_BLOCK))
            launch.source = integer(message(_SOURCE), 1)
        else:
            launch.function = _launch_text(data, spans.get(layout.name))
    except WireError:
        return None
    return launch


def _without_repeated(content: bytes, repeated: int) -> tuple[Ints, list[tuple[int, int, int]]]:
    """Return start and end of each message in one field, and all other fields as `fields` does."""
    columns = np.empty((3, len(content) // 2 + 1), np.int64)
    addresses = (column.ctypes.data for column in columns)
    count = message_fields(content, columns.shape[1], *addresses)
    if count is None:  # without the core, or to raise what is wrong
        listed = list(fields(content, 0, len(content)))
        spans = [(a, b) for number, a, b in listed if number == repeated and a != NUMBER]
        rest = [field for field in listed if field[0] != repeated or field[1] == NUMBER]
        return np.array(spans, np.int64).reshape(-1, 2), rest
    numbers, starts, ends = columns[:, :count]
    wanted = (numbers == repeated) & (starts != NUMBER)
    others = zip(*(column[~wanted].tolist() for column in (numbers, starts, ends)), strict=True)
    unsigned = [(n, a, b % (1 << 64) if a == NUMBER else b) for n, a, b in others]
    return np.stack([starts[wanted], ends[wanted]], axis=1), unsigned


def _launch_text(data: memoryview, span: MessageSpan | None) -> str | None:
    return None if span is None else bytes(data[slice(*span)]).decode("utf-8", "replace") or None


def _size(message: Message) -> tuple[int, int, int] | None:
    x, y, z = (integer(message, axis) for axis in (1, 2, 3))
    return None if x is None else (x, y or 1, z or 1)


_KINDS = {0: "information", 1: "ok", 2: "warning", 3: "error", 4: "optimization"}
_SPEEDUPS = {1: "local", 2: "global"}
_MESSAGE, _SPEEDUP = 1, 10
_LINK = re.compile(r"@(?:section|url|source|metric|rule):(?P<what>[^@:]*):(?P<shown>[^@]*)@")
_ADDRESS = re.compile(r"@url:(?P<shown>[^@:]*):(?P<what>[^@]*)@")


def rule_rows(launch: int, data: bytes) -> Iterator[dict[str, Any]]:
    """Yield the messages of one rule; a rule that passed has none."""
    rule = parse(data)
    for item in children(child(rule, 3), 1):
        message, estimate = child(item, _MESSAGE), child(item, _SPEEDUP)
        body, bits = text(message, 1), integer(estimate, 2)
        if body is None:
            continue
        percent = None if bits is None else struct.unpack("<d", struct.pack("<q", bits))[0]
        yield {
            "launch": launch,
            "rule": text(rule, 1) or "",
            "title": text(rule, 2),
            "section": text(rule, 4) or None,
            "kind": _KINDS.get(integer(message, 2) or 0, "information"),
            "message": readable(body),
            "speedup_kind": None if bits is None else _SPEEDUPS.get(integer(estimate, 1) or 0),
            "speedup_percent": percent,
        }


def readable(message: str) -> str:
    """Replace links, which only Nsight Compute can follow, by their text."""
    return _LINK.sub(lambda m: m["shown"], _ADDRESS.sub(lambda m: m["shown"], message)).strip()


_CREATED, _TARGET, _ATTRIBUTES, _VERSIONS = 2, 4, 6, 8
_OS, _CPU = 1, 3
_TOOL, _DRIVER, _CUDA = "Nsight Compute", "Display Driver", "CUDA"
NS_PER_SECOND = 1_000_000_000
_PREFIX = "device__attribute_"
_KILO = 1000
_MAX_INT64 = (1 << 63) - 1
_COLUMNS = {
    "compute_major": "compute_capability_major",
    "compute_minor": "compute_capability_minor",
    "sm_count": "multiprocessor_count",
    "memory_bytes": "total_memory",
    "l2_bytes": "l2_cache_size",
    "copy_engines": "async_engine_count",
    "max_threads_per_block": "max_threads_per_block",
    "max_warps_per_sm": "max_warps_per_multiprocessor",
    "max_blocks_per_sm": "max_blocks_per_multiprocessor",
    "max_registers_per_sm": "max_registers_per_multiprocessor",
    "max_shared_per_sm_bytes": "max_shared_memory_per_multiprocessor",
    "max_shared_per_block_bytes": "max_shared_memory_per_block",
    "max_shared_optin_bytes": "max_shared_memory_per_block_optin",
}
"""Columns of `devices`, and the attribute that fills each."""
_OLDER_NAMES = {"max_blocks_per_sm": "limits_max_cta_per_sm"}
"""Attributes of older reports."""
_PCI = ("pci_domain_id", "pci_bus_id", "pci_device_id")


def read_meta(path: str, session: Sequence[Message], notes: Iterable[str], problem: str) -> Meta:
    """Combine what the messages of the session say."""
    targets = [target for part in session if (target := child(part, _TARGET))]
    target = targets[-1] if targets else {}
    times = [seconds for part in session if (seconds := integer(part, _CREATED))]
    versions = {
        text(version, 1) or "": text(version, 2) or ""
        for part in session
        for version in children(part, _VERSIONS)
    }
    # Some versions copied more of /proc/cpuinfo behind the CPU's model.
    cpu_lines = (text(target, _CPU) or "").strip().splitlines()
    return Meta(
        path=path,
        source="ncu-report",
        tool="Nsight Compute",
        tool_version=next(iter((_version(versions, _TOOL) or "").split()), None),
        driver_version=_version(versions, _DRIVER),
        cuda_version=_version(versions, _CUDA),
        start_utc_ns=times[-1] * NS_PER_SECOND if times else None,
        os=text(target, _OS),
        cpu=cpu_lines[0].strip() or None if cpu_lines else None,
        notes=tuple(notes),
        warnings=(problem,) if problem else (),
    )


def read_attributes(session: Sequence[Message]) -> dict[int, dict[str, int | str]]:
    """Return the attributes of each GPU in the session, by the GPU's number."""
    attributes: dict[int, dict[str, int | str]] = {}
    for gpu in (g for part in session for g in children(part, _ATTRIBUTES)):
        known = attributes.setdefault(integer(gpu, 1) or 0, {})
        for attribute in children(gpu, 3):
            message = child(attribute, 2)
            values = text(message, 1), integer(message, 4), integer(message, 5)
            value = next((value for value in values if value is not None), None)
            if value is not None:
                known[(text(attribute, 1) or "").removeprefix(_PREFIX)] = value
        known.setdefault("display_name", text(gpu, 2) or "")
    return attributes


def device_row(number: int, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a GPU by its attributes, as a row of `devices`."""
    row: dict[str, Any] = {
        column: _number(attributes.get(name, attributes.get(_OLDER_NAMES.get(column, ""))))
        for column, name in _COLUMNS.items()
    }
    clock = attributes.get("clock_rate") or attributes.get("max_gpu_frequency_khz")
    domain, bus, device = (_number(attributes.get(name)) for name in _PCI)
    is_located = domain is not None and bus is not None and device is not None
    # The memory transfers twice a clock.
    memory_clock_hz = _number(attributes.get("memory_clock_rate"), _KILO)
    width_bits = _number(attributes.get("global_memory_bus_width"))
    return {
        "device": number,
        "name": str(attributes.get("display_name") or ""),
        "host": 0,
        "bus": f"{domain:04x}:{bus:02x}:{device:02x}.0" if is_located else None,
        **row,
        "clock_hz": _number(clock, _KILO),
        "memory_bandwidth": (
            _number(2 * memory_clock_hz * width_bits // 8)
            if memory_clock_hz and width_bits
            else None
        ),
    }


def _number(value: Any, scale: int = 1) -> int | None:
    """Return an integer; None for what no column can hold, or is none."""
    if not isinstance(value, (int, float)) or not abs(value) * scale <= _MAX_INT64:
        return None
    return int(value) * scale


def _version(versions: Mapping[str, str], tool: str) -> str | None:
    return next((v for provider, v in versions.items() if provider.startswith(tool)), None)
