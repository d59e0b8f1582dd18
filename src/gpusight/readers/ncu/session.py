"""What a report says about the machine and the tools; host names, addresses, command lines and
environments, which it also holds, are not read."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from gpusight.model.trace import Meta
from gpusight.readers.protobuf.wire import child, children, integer, text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from gpusight.readers.protobuf.wire import Message

_CREATED, _TARGET, _ATTRIBUTES, _VERSIONS = 2, 4, 6, 8
_OS, _CPU = 1, 3
_TOOL, _DRIVER, _CUDA = "Nsight Compute", "Display Driver", "CUDA"
SECOND_NS = 1_000_000_000
_PREFIX = "device__attribute_"
_KILO = 1000
_MOST = (1 << 63) - 1
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
        start_utc_ns=None if not created else created * SECOND_NS,
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
    if not isinstance(value, (int, float)) or not abs(value) * scale <= _MOST:
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
