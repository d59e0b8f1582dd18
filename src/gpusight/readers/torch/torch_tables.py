"""How each column of the tables is made of the events of a PyTorch trace."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from math import prod
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import polars as pl

from gpusight.naming.name_parts import demangle_if_mangled
from gpusight.readers import chrome_source
from gpusight.readers.chrome_columns import ArgumentColumn, NumberBuilder, TextBuilder
from gpusight.readers.tables import (
    encode_names,
    shown_frame,
    strip_api_version,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from gpusight.readers.chrome_columns import EventRows
    from gpusight.readers.torch.torch_source import TorchSource


_OP_KEYS = ("External id", "external id")
_ELEMENT_BYTES = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "byte": 1, "char": 1, "short": 2, "int": 4,
    "long": 8, "bool": 1, "complexfloat": 8, "complexdouble": 16, "float8_e4m3fn": 1,
    "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "qint8": 1, "quint8": 1,
}  # fmt: skip
_CPP_TYPES = {
    "long int": "long", "short int": "short", "unsigned char": "byte", "signed char": "char",
    "complex<float>": "complexfloat", "complex<double>": "complexdouble",
}  # fmt: skip
_DIRECTIONS = {
    "HtoD": "Host-to-Device",
    "DtoH": "Device-to-Host",
    "DtoD": "Device-to-Device",
    "HtoH": "Host-to-Host",
    "PtoP": "Peer-to-Peer",
    "AtoA": "Array-to-Array",
    "AtoD": "Array-to-Device",
    "DtoA": "Device-to-Array",
    "HtoA": "Host-to-Array",
    "AtoH": "Array-to-Host",
}
_SYNC_KINDS = {
    "event sync": "event",
    "stream sync": "stream",
    "context sync": "context",
    "stream wait event": "stream waits for event",
}
_COPY = re.compile(r"\b(?P<way>[HDPA]to[HDPA])\b(?:[^(]*\((?P<src>[\w ]+?) -> (?P<dst>[\w ]+?)\))?")
_MEMSET = re.compile(r"\((?P<kind>[\w ]+)\)")
_THREAD_OF_STREAMS = 0xFFFFFFFF


class EventColumnRule(NamedTuple):
    """How one column is made: of arguments, and of what every event has."""

    build: Callable[[TorchSource, EventRows, list[pl.Series]], pl.Series]
    arguments: tuple[ArgumentColumn, ...] = ()


@dataclass(frozen=True)
class EventTablePart:
    """The rows of a table that come from one kind of event."""

    kind: str
    rules: dict[str, EventColumnRule]


# Rules -------------------------------------------------------------------------------------------


def _of_arguments(change: Callable[..., pl.Series], *arguments: ArgumentColumn) -> EventColumnRule:
    return EventColumnRule(lambda _context, _rows, columns: change(*columns), arguments)


def _of_events(column: Callable[[EventRows], pl.Series]) -> EventColumnRule:
    return EventColumnRule(lambda _context, rows, _columns: column(rows))


def _of_names(change: Callable[[str], str | None]) -> EventColumnRule:
    """Make a column of the names, converting each distinct one once."""
    return _of_events(lambda rows: rows.named([change(name) for name in rows.distinct_names]))


def _constant(word: str) -> EventColumnRule:
    series = encode_names(pl.Series([word]))
    return _of_events(lambda rows: series.new_from_index(0, rows.height))


@cache
def _integers(*keys: str) -> ArgumentColumn:
    return ArgumentColumn(keys, lambda: NumberBuilder(pl.Int64))


LINKS = (
    *(_integers(*_OP_KEYS), _integers("correlation"), _integers("Sequence number")),
    *(_integers(key) for key in ("Fwd thread id", "device", "context", "stream")),
)
"""Arguments that link events: most commands want several, one after the other."""


def _unchanged(column: pl.Series) -> pl.Series:
    return column


def _int(*keys: str) -> EventColumnRule:
    return _of_arguments(_unchanged, _integers(*keys))


def _positive(*keys: str) -> EventColumnRule:
    """Read a number of which 0 means none."""
    return _of_arguments(lambda column: column.set(column == 0, None), _integers(*keys))


def _real(key: str, scale: float = 1.0) -> EventColumnRule:
    numbers = ArgumentColumn((key,), lambda: NumberBuilder(pl.Float64))
    return _of_arguments(lambda column: column * scale, numbers)


def _element(key: str, place: int) -> EventColumnRule:
    element = ArgumentColumn((key,), lambda: NumberBuilder(pl.Int64, place=place))
    return _of_arguments(_unchanged, element)


def _text(key: str, change: Callable[[str], str] = str) -> EventColumnRule:
    return _of_arguments(_unchanged, ArgumentColumn((key,), lambda: TextBuilder(change=change)))


def _json(*keys: str) -> EventColumnRule:
    return _of_arguments(_unchanged, ArgumentColumn(keys, lambda: TextBuilder(raw=True)))


def _or_track(column: pl.Series, track: pl.Series) -> pl.Series:
    """Return the argument, or where an event has none the number of its track."""
    return column.zip_with(column.is_not_null(), track)


def _gpu_op(op: pl.Series, correlation: pl.Series) -> pl.Series:
    """Return the operator's id, unless it only repeats the correlation id.

    Builds of 2022 and 2023 did, and then it would name any operator that happens to have it.
    """
    is_repeated = bool((op == correlation).fill_null(value=True).all())
    return pl.Series([None], dtype=pl.Int64).new_from_index(0, len(op)) if is_repeated else op


_HOST_PROCESS = EventColumnRule(
    lambda context, rows, _: pl.Series([context.host_process], dtype=pl.Int64).new_from_index(
        0, rows.height
    )
)
_OP = _of_arguments(_gpu_op, _integers(*_OP_KEYS), _integers("correlation"))
_BYTES = _of_arguments(lambda column: column.fill_null(0), _integers("bytes"))
_START = EventColumnRule(lambda context, rows, _: rows.start_ns - context.origin_ns)
_TIMES = {
    "start_ns": _START,
    "end_ns": EventColumnRule(
        lambda context, rows, _: rows.start_ns + rows.duration_ns - context.origin_ns
    ),
}
_NAMES = {"name": _of_events(lambda rows: rows.names)}
_ON_THREAD = {
    "thread": _of_events(lambda rows: rows.thread),
    "process": _of_events(lambda rows: rows.pid),
}
_GPU_ACTIVITY = {
    **_TIMES,
    "device": EventColumnRule(
        lambda _, rows, columns: _or_track(columns[0], rows.pid).clip(lower_bound=0),
        (_integers("device"),),
    ),
    "context": _int("context"),
    "stream": EventColumnRule(
        lambda _, rows, columns: _or_track(columns[0], rows.tid), (_integers("stream"),)
    ),
    "correlation": _positive("correlation"),
    "process": _HOST_PROCESS,
    "op": _OP,
}


def _group_of(name: str, pattern: re.Pattern[str], group: str) -> str | None:
    match = pattern.search(name)
    return match[group] if match else None


def _size(elements: pl.Series, dtype: pl.Series) -> pl.Series:
    """Compute the bytes of so many elements of a type."""
    names = dtype.cast(pl.String).str.to_lowercase()
    return elements * names.replace_strict(_ELEMENT_BYTES, default=None, return_dtype=pl.Int64)


# Tables ------------------------------------------------------------------------------------------

_KERNEL = {
    **_GPU_ACTIVITY,
    "name": _of_names(demangle_if_mangled),
    "mangled_name": _of_names(lambda name: name if name.startswith("_Z") else None),
    **{f"grid_{axis}": _element("grid", place) for place, axis in enumerate("xyz")},
    **{f"block_{axis}": _element("block", place) for place, axis in enumerate("xyz")},
    "registers_per_thread": _int("registers per thread"),
    "shared_bytes": _int("shared memory"),
    "graph": _positive("graph id"),
    "graph_node": _positive("graph node id"),
    "blocks_per_sm": _real("blocks per SM"),
    "warps_per_sm": _real("warps per SM"),
    "occupancy": _real("est. achieved occupancy %", scale=0.01),
}
_API = {
    **_TIMES,
    "name": _of_names(strip_api_version),
    "symbol": _NAMES["name"],
    **_ON_THREAD,
    "correlation": _positive("correlation"),
    "op": _OP,
}
_DTYPE = ArgumentColumn(("dtype",), TextBuilder)
_COMMUNICATION = {
    **_TIMES,
    "name": _text("Collective name"),
    "op": _OP,
    "group": _text("Process Group Name"),
    "group_description": _text("Process Group Description"),
    "group_size": _int("Group size"),
    "ranks": _text("Process Group Ranks"),
    "sequence": _int("Seq"),
    "peer": _int("Dst Rank", "Src Rank"),
    "dtype": _text("dtype"),
    "in_elements": _int("In msg nelems", "In msg size"),
    "out_elements": _int("Out msg nelems", "Out msg size"),
    "in_bytes": _of_arguments(_size, _integers("In msg nelems", "In msg size"), _DTYPE),
    "out_bytes": _of_arguments(_size, _integers("Out msg nelems", "Out msg size"), _DTYPE),
}


def _elements(dims: pl.Series) -> pl.Series:
    """Count the elements of the inputs, whose sizes are JSON: `[[1024,4],[]]`."""
    texts = dims.cast(pl.String)
    counts = {text: _count(msgspec.json.decode(text)) for text in texts.unique().drop_nulls()}
    return texts.replace_strict(counts, default=None, return_dtype=pl.Int64)


def _count(sizes: Any) -> int | None:
    """Count the elements of these sizes; None where they are none, or make no sense."""
    if not isinstance(sizes, list):
        return None
    shapes = [size for size in sizes if isinstance(size, list) and size]
    if any(type(length) is not int for size in shapes for length in size):
        return None
    count = sum(map(prod, shapes))
    return count if 0 < count < 1 << 60 else None


def _first_type(types: pl.Series) -> pl.Series:
    """Return the type of the first input, as C++ spells it, as PyTorch calls it."""
    texts = types.cast(pl.String).str.extract(r'"([^"]*)"').str.replace("^c10::", "")
    return encode_names(texts.replace(_CPP_TYPES))


def _host_bytes(dims: pl.Series, types: pl.Series) -> pl.Series:
    return _size(_elements(dims), _first_type(types))


_DIMS = ArgumentColumn(("Input Dims", "Input dims"), lambda: TextBuilder(raw=True))
_TYPES = ArgumentColumn(("Input type",), lambda: TextBuilder(raw=True))
_ON_HOST = {
    **_TIMES,
    **_ON_THREAD,
    "name": _of_names(lambda name: name.partition(":")[2]),
    "side": _constant("host"),
    "library": _of_names(lambda name: name.partition(":")[0]),
    "op": _int(*_OP_KEYS),
    "dtype": _of_arguments(_first_type, _TYPES),
    "in_elements": _of_arguments(_elements, _DIMS),
    "in_bytes": _of_arguments(_host_bytes, _DIMS, _TYPES),
}
"""Collectives of gloo, MPI and UCC, which PyTorch marks with a range on the thread that runs it."""


def _either_word(test: pl.Series, yes: str, no: str) -> pl.Series:
    return encode_names(pl.Series([no, yes])).gather(test.fill_null(value=False).cast(pl.UInt32))


_DEVICE_TYPE = _integers("Device Type")  # 0 is the host
_MEMORY = {
    "time_ns": _START,
    **_ON_THREAD,
    "device": _of_arguments(
        lambda kind, device: device.set((kind == 0) | (device < 0), None),
        _DEVICE_TYPE,
        _integers("Device Id"),
    ),
    "operation": _of_arguments(
        lambda size: _either_word(size < 0, "deallocation", "allocation"), _integers("Bytes")
    ),
    "memory_kind": _of_arguments(
        lambda kind: _either_word(kind == 0, "Host", "Device"), _DEVICE_TYPE
    ),
    "address": _int("Addr"),
    "bytes": _of_arguments(lambda size: size.abs().fill_null(0), _integers("Bytes")),
    "allocator": _constant("framework"),
    "allocated_bytes": _int("Total Allocated"),
    "reserved_bytes": _int("Total Reserved"),
}

PARTS: dict[str, tuple[EventTablePart, ...]] = {
    "kernels": (EventTablePart(chrome_source.KERNEL, _KERNEL),),
    "copies": (
        EventTablePart(
            chrome_source.COPY,
            {
                **_GPU_ACTIVITY,
                "bytes": _BYTES,
                "kind": _of_names(
                    lambda name: _DIRECTIONS.get(_group_of(name, _COPY, "way") or "", "Unknown")
                ),
                "src_kind": _of_names(lambda name: _group_of(name, _COPY, "src")),
                "dst_kind": _of_names(lambda name: _group_of(name, _COPY, "dst")),
            },
        ),
    ),
    "memsets": (
        EventTablePart(
            chrome_source.MEMSET,
            {
                **_GPU_ACTIVITY,
                "bytes": _BYTES,
                "memory_kind": _of_names(lambda name: _group_of(name, _MEMSET, "kind")),
            },
        ),
    ),
    "syncs": (
        EventTablePart(
            chrome_source.SYNC,
            {
                **_GPU_ACTIVITY,
                # A synchronization of a whole context has no stream.
                "stream": _of_arguments(
                    lambda s: s.set((s < 0) | (s == _THREAD_OF_STREAMS), None), _integers("stream")
                ),
                "kind": _of_names(lambda name: _SYNC_KINDS.get(name.lower(), "unknown")),
                "event": _int("wait_on_cuda_event_id"),
            },
        ),
    ),
    "api_calls": (
        EventTablePart(chrome_source.RUNTIME, {**_API, "api": _constant("runtime")}),
        EventTablePart(chrome_source.DRIVER, {**_API, "api": _constant("driver")}),
    ),
    "cpu_ops": (
        EventTablePart(
            chrome_source.OPERATOR,
            {
                **_TIMES,
                **_NAMES,
                **_ON_THREAD,
                "op": _int(*_OP_KEYS),
                "sequence": _int("Sequence number"),
                "forward_thread": _int("Fwd thread id"),
                "shapes": _json("Input Dims", "Input dims"),
                "strides": _json("Input Strides"),
                "types": _json("Input type"),
                "concrete": _json("Concrete Inputs"),
                "flops": _int("flops", "Flops", "FLOPs"),
                "stack": _text("Call stack", lambda s: ";".join(map(shown_frame, s.split(";")))),
            },
        ),
    ),
    "ranges": (
        EventTablePart(
            chrome_source.ANNOTATION,
            {
                **_TIMES,
                **_NAMES,
                **_ON_THREAD,
                "kind": _constant("push_pop"),
                "domain": _constant(""),
                # The profiler closed these itself: it was stopped within them.
                "open": _of_arguments(
                    lambda finished: finished.cast(pl.String).str.to_lowercase() == "false",
                    ArgumentColumn(("finished",), TextBuilder),
                ),
                "record": _of_events(lambda rows: pl.int_range(1, rows.height + 1, eager=True)),
            },
        ),
    ),
    "gpu_ranges": (
        EventTablePart(
            chrome_source.GPU_ANNOTATION,
            {
                **_TIMES,
                **_NAMES,
                "kind": _constant("annotation"),
                "device": _of_events(lambda rows: rows.pid),
                "stream": _of_events(lambda rows: rows.tid),
                "process": _HOST_PROCESS,
                "op": _int(*_OP_KEYS),
            },
        ),
    ),
    "python_calls": (
        EventTablePart(
            chrome_source.PYTHON,
            {
                **_TIMES,
                "name": _of_names(shown_frame),
                **_ON_THREAD,
                "call": _int("Python id"),
                "parent_call": _int("Python parent id"),
            },
        ),
    ),
    "collectives": (
        EventTablePart(
            f"{chrome_source.OPERATOR} {chrome_source.COLLECTIVE}",
            {**_COMMUNICATION, **_ON_THREAD, "side": _constant("host"), "op": _int(*_OP_KEYS)},
        ),
        EventTablePart(
            f"{chrome_source.KERNEL} {chrome_source.COLLECTIVE}",
            {
                **{c: _GPU_ACTIVITY[c] for c in ("device", "stream", "correlation", "process")},
                **_COMMUNICATION,
                "side": _constant("gpu"),
            },
        ),
        EventTablePart(f"{chrome_source.ANNOTATION} {chrome_source.COLLECTIVE}", _ON_HOST),
    ),
    "memory_events": (EventTablePart(chrome_source.MEMORY, _MEMORY),),
    "overheads": (EventTablePart(chrome_source.OVERHEAD, {**_TIMES, **_NAMES, **_ON_THREAD}),),
}
