"""How the tables of a trace are made of the events of a PyTorch trace."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import polars as pl

from gpusight.readers import chrome_source
from gpusight.readers.chrome_columns import ArgumentColumn, NumberBuilder, TextBuilder
from gpusight.readers.name_columns import (
    demangle_names,
    encode_names,
    shown_frame,
    strip_api_version,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any, TypeAlias

    from gpusight.readers.chrome_columns import EventRows


_OP_KEYS = ("External id", "external id")
_ELEMENT_BYTES = {
    "float": 4, "double": 8, "half": 2, "bfloat16": 2, "byte": 1, "char": 1, "short": 2, "int": 4,
    "long": 8, "bool": 1, "complexfloat": 8, "complexdouble": 16, "float8_e4m3fn": 1,
    "float8_e5m2": 1, "float8_e4m3fnuz": 1, "float8_e5m2fnuz": 1, "qint8": 1, "quint8": 1,
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
_FILL = re.compile(r"\((?P<kind>[\w ]+)\)")
_THREAD_OF_STREAMS = 0xFFFFFFFF


class EventContext(Protocol):
    """What rules may ask the source."""

    def since_origin(self, times: pl.Series) -> pl.Series:
        """Count a time from the capture's origin."""
        ...

    def host_process(self) -> int | None:
        """Give the one process of the host; none where there are several."""
        ...


Build: TypeAlias = "Callable[[EventContext, EventRows, list[pl.Series]], pl.Series]"


class EventColumnRule(NamedTuple):
    """How one column is made: of arguments, and of what every row has."""

    build: Build
    wants: tuple[ArgumentColumn, ...] = ()


@dataclass(frozen=True)
class EventTablePart:
    """The contribution of one kind of event to a table."""

    kind: str
    rules: dict[str, EventColumnRule]


# Rules -------------------------------------------------------------------------------------------


def _integers() -> NumberBuilder:
    return NumberBuilder(pl.Int64)


def _int(*keys: str) -> EventColumnRule:
    return EventColumnRule(lambda _c, _r, columns: columns[0], (ArgumentColumn(keys, _integers),))


def _counted(*keys: str) -> EventColumnRule:
    """Take a number of which 0 means none."""

    def build(_context: EventContext, _rows: EventRows, columns: list[pl.Series]) -> pl.Series:
        return columns[0].set(columns[0] == 0, None)

    return EventColumnRule(build, (ArgumentColumn(keys, _integers),))


def _real(*keys: str, scale: float = 1.0) -> EventColumnRule:
    return EventColumnRule(
        lambda _c, _r, columns: columns[0] * scale,
        (ArgumentColumn(keys, lambda: NumberBuilder(pl.Float64)),),
    )


def _element(key: str, place: int) -> EventColumnRule:
    def pick(value: Any) -> Any:
        return value[place] if isinstance(value, list) and len(value) > place else None

    return EventColumnRule(
        lambda _c, _r, columns: columns[0],
        (ArgumentColumn((key,), lambda: NumberBuilder(pl.Int64, pick)),),
    )


def _text(*keys: str, change: Callable[[str], str] = str) -> EventColumnRule:
    return EventColumnRule(
        lambda _c, _r, columns: columns[0],
        (ArgumentColumn(keys, lambda: TextBuilder(change=change)),),
    )


def _shown_stack(frames: str) -> str:
    return ";".join(map(shown_frame, frames.split(";")))


def _json(*keys: str) -> EventColumnRule:
    return EventColumnRule(
        lambda _c, _r, columns: columns[0], (ArgumentColumn(keys, lambda: TextBuilder(raw=True)),)
    )


def _unfinished(_context: EventContext, _rows: EventRows, columns: list[pl.Series]) -> pl.Series:
    """Tell which events the profiler closed itself, because it was stopped within them."""
    return columns[0].cast(pl.String).str.to_lowercase() == "false"


def _constant(word: str) -> EventColumnRule:
    series = encode_names(pl.Series([word]))
    return EventColumnRule(lambda _c, rows, _: series.new_from_index(0, rows.height))


def _of_names(change: Callable[[str], str | None]) -> EventColumnRule:
    """Make a column of the names, looking at each distinct one once."""
    return EventColumnRule(lambda _c, rows, _: rows.named([change(n) for n in rows.distinct_names]))


def _start(context: EventContext, rows: EventRows, _: list[pl.Series]) -> pl.Series:
    return context.since_origin(rows.start_ns)


def _end(context: EventContext, rows: EventRows, _: list[pl.Series]) -> pl.Series:
    return context.since_origin(rows.start_ns + rows.duration_ns)


def _host_process(context: EventContext, rows: EventRows, _: list[pl.Series]) -> pl.Series:
    return pl.Series([context.host_process()], dtype=pl.Int64).new_from_index(0, rows.height)


def _or_track(column: pl.Series, track: pl.Series) -> pl.Series:
    """Take the argument, or where an event has none the number of its track."""
    return column.zip_with(column.is_not_null(), track)


def _gpu_op(_context: EventContext, _rows: EventRows, columns: list[pl.Series]) -> pl.Series:
    """Take the operator's id, unless it is only the correlation id once more.

    Builds of 2022 and 2023 wrote that, and then it would name any operator that happens to have it.
    """
    op, correlation = columns
    meaningless = bool((op == correlation).fill_null(value=True).all())
    return pl.Series([None], dtype=pl.Int64).new_from_index(0, len(op)) if meaningless else op


_OP = EventColumnRule(
    _gpu_op, (ArgumentColumn(_OP_KEYS, _integers), ArgumentColumn(("correlation",), _integers))
)
_BYTES = EventColumnRule(
    lambda _c, _r, columns: columns[0].fill_null(0), (ArgumentColumn(("bytes",), _integers),)
)
_TIMES = {"start_ns": EventColumnRule(_start), "end_ns": EventColumnRule(_end)}
_NAMES = {"name": EventColumnRule(lambda _c, rows, _: rows.names)}
_ON_THREAD = {
    "thread": EventColumnRule(lambda _c, rows, _: rows.thread),
    "process": EventColumnRule(lambda _c, rows, _: rows.pid),
}
_GPU_WORK = {
    **_TIMES,
    "device": EventColumnRule(
        lambda _c, rows, columns: _or_track(columns[0], rows.pid).clip(lower_bound=0),
        (ArgumentColumn(("device",), _integers),),
    ),
    "context": _int("context"),
    "stream": EventColumnRule(
        lambda _c, rows, columns: _or_track(columns[0], rows.tid),
        (ArgumentColumn(("stream",), _integers),),
    ),
    "correlation": _counted("correlation"),
    "process": EventColumnRule(_host_process),
    "op": _OP,
}


def _copy_part(part: str) -> Callable[[str], str | None]:
    def find(name: str) -> str | None:
        match = _COPY.search(name)
        return match[part] if match else None

    return find


def _direction(name: str) -> str:
    way = _copy_part("way")(name)
    return _DIRECTIONS.get(way or "", "Unknown")


def _fill_kind(name: str) -> str | None:
    match = _FILL.search(name)
    return match["kind"] if match else None


def _mangled(name: str) -> str | None:
    return name if name.startswith("_Z") else None


def _sync_kind(name: str) -> str:
    return _SYNC_KINDS.get(name.lower(), "unknown")


def _stream_of_sync(
    _context: EventContext, _rows: EventRows, columns: list[pl.Series]
) -> pl.Series:
    """Take the stream; a wait for a whole context has none."""
    stream = columns[0]
    return stream.set((stream < 0) | (stream == _THREAD_OF_STREAMS), None)


def _size(*counts: str) -> EventColumnRule:
    """Count the bytes of so many elements of the given type."""

    def build(_context: EventContext, _rows: EventRows, columns: list[pl.Series]) -> pl.Series:
        elements, dtype = columns
        width = (
            dtype.cast(pl.String)
            .str.to_lowercase()
            .replace_strict(_ELEMENT_BYTES, default=None, return_dtype=pl.Int64)
        )
        return elements * width

    return EventColumnRule(
        build, (ArgumentColumn(counts, _integers), ArgumentColumn(("dtype",), TextBuilder))
    )


# Tables ------------------------------------------------------------------------------------------

_KERNEL = {
    **_GPU_WORK,
    "name": _of_names(demangle_names),
    "mangled_name": _of_names(_mangled),
    **{f"grid_{axis}": _element("grid", place) for place, axis in enumerate("xyz")},
    **{f"block_{axis}": _element("block", place) for place, axis in enumerate("xyz")},
    "registers_per_thread": _int("registers per thread"),
    "shared_bytes": _int("shared memory"),
    "graph": _counted("graph id"),
    "graph_node": _counted("graph node id"),
    "blocks_per_sm": _real("blocks per SM"),
    "warps_per_sm": _real("warps per SM"),
    "occupancy": _real("est. achieved occupancy %", scale=0.01),
}
_API = {
    **_TIMES,
    "name": _of_names(strip_api_version),
    "symbol": EventColumnRule(lambda _c, rows, _: rows.names),
    **_ON_THREAD,
    "correlation": _counted("correlation"),
    "op": _OP,
}
_COMMUNICATION = {
    **_TIMES,
    "name": _text("Collective name"),
    "op": _OP,
    "group": _text("Process Group Name"),
    "group_description": _text("Process Group Description"),
    "group_size": _int("Group size"),
    "ranks": _text("Process Group Ranks"),
    "dtype": _text("dtype"),
    "in_elements": _int("In msg nelems", "In msg size"),
    "out_elements": _int("Out msg nelems", "Out msg size"),
    "in_bytes": _size("In msg nelems", "In msg size"),
    "out_bytes": _size("Out msg nelems", "Out msg size"),
}


def _memory_device(_context: EventContext, _rows: EventRows, columns: list[pl.Series]) -> pl.Series:
    """Give the GPU's number; memory of the host has none."""
    kind, device = columns
    return device.set((kind == 0) | (device < 0), None)


def _memory_kind(_context: EventContext, _rows: EventRows, columns: list[pl.Series]) -> pl.Series:
    return _either_word(columns[0] == 0, "Host", "Device")


def _operation(_context: EventContext, _rows: EventRows, columns: list[pl.Series]) -> pl.Series:
    return _either_word(columns[0] < 0, "deallocation", "allocation")


def _either_word(test: pl.Series, yes: str, no: str) -> pl.Series:
    return encode_names(pl.Series([no, yes])).gather(test.fill_null(value=False).cast(pl.UInt32))


_DEVICE_KIND = ArgumentColumn(("Device Type",), _integers)
_MEMORY = {
    "time_ns": EventColumnRule(_start),
    "thread": EventColumnRule(lambda _c, rows, _: rows.thread),
    "process": EventColumnRule(lambda _c, rows, _: rows.pid),
    "device": EventColumnRule(
        _memory_device, (_DEVICE_KIND, ArgumentColumn(("Device Id",), _integers))
    ),
    "operation": EventColumnRule(_operation, (ArgumentColumn(("Bytes",), _integers),)),
    "memory_kind": EventColumnRule(_memory_kind, (_DEVICE_KIND,)),
    "address": _int("Addr"),
    "bytes": EventColumnRule(
        lambda _c, _r, columns: columns[0].abs().fill_null(0),
        (ArgumentColumn(("Bytes",), _integers),),
    ),
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
                **_GPU_WORK,
                "bytes": _BYTES,
                "kind": _of_names(_direction),
                "src_kind": _of_names(_copy_part("src")),
                "dst_kind": _of_names(_copy_part("dst")),
            },
        ),
    ),
    "memsets": (
        EventTablePart(
            chrome_source.FILL,
            {
                **_GPU_WORK,
                "bytes": _BYTES,
                "memory_kind": _of_names(_fill_kind),
            },
        ),
    ),
    "syncs": (
        EventTablePart(
            chrome_source.SYNC,
            {
                **_GPU_WORK,
                "stream": EventColumnRule(
                    _stream_of_sync, (ArgumentColumn(("stream",), _integers),)
                ),
                "kind": _of_names(_sync_kind),
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
                "stack": _text("Call stack", change=_shown_stack),
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
                "open": EventColumnRule(_unfinished, (ArgumentColumn(("finished",), TextBuilder),)),
                "record": EventColumnRule(
                    lambda _c, rows, _: pl.int_range(1, rows.height + 1, eager=True)
                ),
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
                "device": EventColumnRule(lambda _c, rows, _: rows.pid),
                "stream": EventColumnRule(lambda _c, rows, _: rows.tid),
                "process": EventColumnRule(_host_process),
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
                **{c: _GPU_WORK[c] for c in ("device", "stream", "correlation", "process")},
                **_COMMUNICATION,
                "side": _constant("gpu"),
            },
        ),
    ),
    "memory_events": (EventTablePart(chrome_source.MEMORY, _MEMORY),),
    "overheads": (EventTablePart(chrome_source.OVERHEAD, {**_TIMES, **_NAMES, **_ON_THREAD}),),
}
