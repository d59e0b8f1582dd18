"""What the messages of a report say: launches, open NVTX ranges, rules, machine and tools.

Host names, addresses, command lines and environments, which a report also holds, are not read.
"""

from __future__ import annotations

import re
import struct
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from gpusight.readers.name_columns import NAMELESS
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
from gpusight.trace.schema_gpu import BETWEEN_STACKS
from gpusight.trace.trace import Meta

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpusight.readers.ncu.ncu_container import ReportProcess, ReportResult


Domains: TypeAlias = "dict[int | None, str | None]"
"""Names by number."""

_DOMAINS, _THREADS, _START_END = 1, 2, 3
_DEFAULT = "<default domain>"


def open_ranges(state: Message, thread: int | None) -> str | None:
    """Give the ranges as `outer/inner`, `domain:outer/inner`; None where none was open.

    The ranges of the launching thread come first; those that cross threads (start/end) follow.
    """
    domains = {integer(d, 1): text(d, 2) for d in children(state, _DOMAINS)}
    found = [*_pushed(state, thread, domains), *_started(state, domains)]
    return BETWEEN_STACKS.join(found) or None


def _pushed(state: Message, thread: int | None, domains: Domains) -> Iterator[str]:
    own = [t for t in children(state, _THREADS) if integer(t, 1) == thread]
    for stack in (s for t in own for s in children(t, 2)):
        names = [text(r, 1) or "" for r in children(stack, 3)]
        if names:
            yield in_domain(domains.get(integer(stack, 1)), "/".join(names))


def _started(state: Message, domains: Domains) -> Iterator[str]:
    for domain in children(state, _START_END):
        for opened in children(domain, 3):
            yield in_domain(domains.get(integer(domain, 1)), text(opened, 2) or "")


def in_domain(domain: str | None, names: str) -> str:
    """Write a domain before its ranges, unless it is the default one."""
    return names if domain in (None, "", _DEFAULT) else f"{domain}:{names}"


_NONE = 0


@dataclass(frozen=True, slots=True)
class _Layout:
    """Numbers of the fields in one kind of result; 0 for those that it does not have."""

    metrics: int
    nvtx: int
    context: int
    stream: int
    clocks: int
    rules: int = _NONE
    name: int = _NONE


_LAYOUTS = {
    "kernel": _Layout(metrics=13, nvtx=21, context=22, stream=23, clocks=25, rules=19),
    "range": _Layout(metrics=4, nvtx=10, context=11, stream=_NONE, clocks=12),
    "command list": _Layout(
        metrics=4, nvtx=10, context=11, stream=12, clocks=13, rules=21, name=18
    ),
    "graph": _Layout(metrics=4, nvtx=10, context=11, stream=12, clocks=13),
}
_THREAD, _MANGLED, _FUNCTION, _DEMANGLED, _GRID, _BLOCK, _SOURCE = 1, 5, 6, 7, 10, 11, 15
_NAMELESS = {"range": "(range)", "graph": "(graph)", "command list": "(command list)"}


@dataclass(slots=True)
class ReportLaunch:
    """One result: what was launched, and where the rest of it lies."""

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
    """Reference to the code that it ran."""
    locked: bool | None = None
    """Whether clocks were held at a fixed rate."""
    metrics: list[MessageSpan] = field(default_factory=list)
    rules: list[MessageSpan] = field(default_factory=list)

    @property
    def name(self) -> str:
        """The best name that the report has for it."""
        named = self.demangled or self.function or self.mangled
        return named or _NAMELESS.get(self.kind, NAMELESS)


def read_launch(data: memoryview, number: int, result: ReportResult) -> ReportLaunch | None:
    """Read what a result says of its launch; None when it cannot be decoded."""
    try:
        return _read(data, number, result)
    except WireError:
        return None


def _read(data: memoryview, number: int, result: ReportResult) -> ReportLaunch:
    """Read what is small; counters and rules are only found."""
    layout = _LAYOUTS[result.kind]
    launch = ReportLaunch(number, result.kind, result.process)
    numbers: dict[int, int] = {}
    spans: dict[int, MessageSpan] = {}
    base = result.span.start
    whole = bytes(data[base : result.span.end])
    for found, start, end in fields(whole, 0, len(whole)):
        if start == NUMBER:
            numbers[found] = signed(end)
        elif found == layout.metrics:
            launch.metrics.append(MessageSpan(base + start, base + end))
        elif found == layout.rules:
            launch.rules.append(MessageSpan(base + start, base + end))
        else:
            spans[found] = MessageSpan(base + start, base + end)

    def message(field: int) -> Message:
        span = spans.get(field)
        return {} if span is None else parse(data[span.start : span.end])

    launch.thread = numbers.get(_THREAD)
    launch.context = numbers.get(layout.context)
    launch.stream = numbers.get(layout.stream)
    launch.ranges = open_ranges(message(layout.nvtx), launch.thread)
    launch.locked = _is_locked(message(layout.clocks))
    if result.kind == "kernel":
        launch.mangled, launch.function, launch.demangled = (
            _launch_text(data, spans.get(field)) for field in (_MANGLED, _FUNCTION, _DEMANGLED)
        )
        launch.grid, launch.block = _size(message(_GRID)), _size(message(_BLOCK))
        launch.source = integer(message(_SOURCE), 1)
    else:
        launch.function = _launch_text(data, spans.get(layout.name))
    return launch


def _launch_text(data: memoryview, span: MessageSpan | None) -> str | None:
    found = b"" if span is None else bytes(data[span.start : span.end])
    return found.decode("utf-8", "replace") or None


def _size(message: Message) -> tuple[int, int, int] | None:
    x, y, z = (integer(message, axis) for axis in (1, 2, 3))
    return None if x is None else (x, y or 1, z or 1)


def _is_locked(message: Message) -> bool | None:
    locked = integer(message, 2)
    return None if locked is None else bool(locked)


_KINDS = {0: "information", 1: "ok", 2: "warning", 3: "error", 4: "optimization"}
_SPEEDUPS = {1: "local", 2: "global"}
_MESSAGE, _SPEEDUP = 1, 10
_LINK = re.compile(r"@(?:section|url|source|metric|rule):(?P<what>[^@:]*):(?P<shown>[^@]*)@")
_ADDRESS = re.compile(r"@url:(?P<shown>[^@:]*):(?P<what>[^@]*)@")


def rule_rows(launch: int, data: bytes) -> Iterator[dict[str, Any]]:
    """Give the messages of one rule; a rule that found nothing to say gives none."""
    rule = parse(data)
    about = {
        "launch": launch,
        "rule": text(rule, 1) or "",
        "title": text(rule, 2),
        "section": text(rule, 4) or None,
    }
    for item in children(child(rule, 3), 1):
        message = child(item, _MESSAGE)
        said = text(message, 1)
        if said is not None:
            kind = _KINDS.get(integer(message, 2) or 0, "information")
            yield {**about, "kind": kind, "message": readable(said), **_speedup(item)}


def readable(message: str) -> str:
    """Replace links, which only the profiler's own window can follow, by their text."""
    return _LINK.sub(lambda m: m["shown"], _ADDRESS.sub(lambda m: m["shown"], message)).strip()


def _speedup(item: Message) -> dict[str, Any]:
    estimate = child(item, _SPEEDUP)
    value = integer(estimate, 2)
    if value is None:
        return {"speedup_kind": None, "speedup_percent": None}
    (percent,) = struct.unpack("<d", struct.pack("<q", value))
    return {"speedup_kind": _SPEEDUPS.get(integer(estimate, 1) or 0), "speedup_percent": percent}


_CREATED, _TARGET, _ATTRIBUTES, _VERSIONS = 2, 4, 6, 8
_OS, _CPU = 1, 3
_TOOL, _DRIVER, _CUDA = "Nsight Compute", "Display Driver", "CUDA"
NS_PER_SECOND = 1_000_000_000
_PREFIX = "device__attribute_"
_KILO = 1000
_MAX_INT64 = (1 << 63) - 1
_WHOLE = {
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
_INSTEAD = {"max_blocks_per_sm": "limits_max_cta_per_sm"}
"""What older reports have for it."""
_PCI = ("pci_domain_id", "pci_bus_id", "pci_device_id")


def read_meta(path: str, session: Sequence[Message], notes: Iterable[str], problem: str) -> Meta:
    """Put together what the pieces of the session's description say."""
    target = _last(child(piece, _TARGET) for piece in session)
    created = _last(integer(piece, _CREATED) for piece in session)
    versions = {
        text(version, 1) or "": text(version, 2) or ""
        for piece in session
        for version in children(piece, _VERSIONS)
    }
    return Meta(
        path=path,
        source="ncu-report",
        tool="Nsight Compute",
        tool_version=_first_word(_version(versions, _TOOL)),
        driver_version=_version(versions, _DRIVER),
        cuda_version=_version(versions, _CUDA),
        start_utc_ns=None if not created else created * NS_PER_SECOND,
        os=text(target, _OS) if target else None,
        cpu=_first_line(text(target, _CPU)) if target else None,
        notes=tuple(notes),
        warnings=(problem,) if problem else (),
    )


def read_attributes(session: Sequence[Message]) -> dict[int, dict[str, int | str]]:
    """Give what the report's description says of each GPU, by the GPU's number."""
    found: dict[int, dict[str, int | str]] = {}
    for gpu in (g for piece in session for g in children(piece, _ATTRIBUTES)):
        known = found.setdefault(integer(gpu, 1) or 0, {})
        for attribute in children(gpu, 3):
            value = _value(child(attribute, 2))
            if value is not None:
                known[(text(attribute, 1) or "").removeprefix(_PREFIX)] = value
        known.setdefault("display_name", text(gpu, 2) or "")
    return found


def device_row(number: int, attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Describe a GPU by its attributes, as the table `devices` wants it."""
    row: dict[str, Any] = {
        column: _number(attributes.get(name, attributes.get(_INSTEAD.get(column, ""))))
        for column, name in _WHOLE.items()
    }
    clock = attributes.get("clock_rate") or attributes.get("max_gpu_frequency_khz")
    return {
        "device": number,
        "name": str(attributes.get("display_name") or ""),
        "host": 0,
        "bus": _bus(attributes),
        **row,
        "clock_hz": _number(clock, _KILO),
        "memory_bandwidth": _bandwidth(attributes),
    }


def _bandwidth(attributes: Mapping[str, Any]) -> int | None:
    """Multiply width and clock of the memory, which transfers twice a clock."""
    clock = _number(attributes.get("memory_clock_rate"), _KILO)
    width = _number(attributes.get("global_memory_bus_width"))
    return _number(2 * clock * width // 8) if clock and width else None


def _bus(attributes: Mapping[str, Any]) -> str | None:
    parts = [_number(attributes.get(name)) for name in _PCI]
    if any(part is None for part in parts):
        return None
    domain, bus, device = parts
    return f"{domain:04x}:{bus:02x}:{device:02x}.0"


def _number(value: Any, scale: int = 1) -> int | None:
    """Give a whole number; what no column can hold, or is none, is not known."""
    if not isinstance(value, (int, float)) or not abs(value) * scale <= _MAX_INT64:
        return None
    return int(value) * scale


def _value(message: Message) -> int | str | None:
    written = text(message, 1)
    short = integer(message, 4)
    whole = integer(message, 5) if short is None else short
    return whole if written is None else written


def _version(versions: Mapping[str, str], tool: str) -> str | None:
    return next((v for provider, v in versions.items() if provider.startswith(tool)), None)


def _first_word(version: str | None) -> str | None:
    return version.split()[0] if version and version.split() else None


def _last(values: Iterable[Any]) -> Any:
    """Give the last that says anything."""
    known = [value for value in values if value]
    return known[-1] if known else None


def _first_line(words: str | None) -> str | None:
    """Leave out what some versions copied from /proc/cpuinfo behind the model."""
    return next(iter((words or "").strip().splitlines()), "").strip() or None
