"""How columns of a trace are made from columns of nsys's export schema, of any version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from gpusight.readers.name_columns import (
    demangle_names,
    encode_codes,
    encode_names,
    first_name_of,
)
from gpusight.readers.nsys import raw_tables
from gpusight.readers.nsys.raw_tables import Ends, process_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusight.readers.nsys.nsys_source import NsysSource
    from gpusight.readers.nsys.raw_tables import RowFilter


ROW = "@row"
"""Column with the number of a raw row in its table, from 1; present when `record` is read."""


@dataclass(frozen=True, slots=True)
class RawColumnRule:
    """How one column of a trace is made from raw columns."""

    build: Callable[[NsysSource, pl.DataFrame], pl.Series]
    needs: tuple[str, ...]
    """Without these there is no value."""
    optional: tuple[str, ...] = ()
    """Read too when the capture has them."""
    fallback: RawColumnRule | None = None
    """The rule to use where the capture lacks what this one needs."""
    warning: str = ""
    """Of a fallback: what to know about its values."""
    applies: Callable[[NsysSource], bool] = lambda _: True
    """Whether the rule is right for this capture."""


@dataclass(frozen=True)
class RawTablePart:
    """One raw table's contribution to a table of the trace."""

    raw: str
    rules: dict[str, RawColumnRule]
    only: RowFilter | None = None
    """Which raw rows count; all when absent."""
    ends: Ends = Ends.LOST


# Rules ------------------------------------------------------------------------------------------


def column(name: str) -> RawColumnRule:
    """Take a raw column unchanged."""
    return RawColumnRule(lambda _, raw: raw.get_column(name), (name,))


def word_for_number(name: str, words: dict[int, str]) -> RawColumnRule:
    """Replace the numbers of an enum by words."""
    return RawColumnRule(lambda _, raw: encode_codes(raw.get_column(name), words), (name,))


def string(name: str, change: Callable[[str], str] | None = None) -> RawColumnRule:
    """Look up ids in the string table; `change` is applied to each distinct text."""
    return RawColumnRule(
        lambda context, raw: context.strings.names(raw.get_column(name), change), (name,)
    )


def inline_text(name: str) -> RawColumnRule:
    """Take text that is stored in the table itself."""
    return RawColumnRule(lambda _, raw: encode_names(raw.get_column(name)), (name,))


def flag(name: str) -> RawColumnRule:
    """Take 0 and 1 as a Boolean."""
    return RawColumnRule(lambda _, raw: raw.get_column(name).cast(pl.Boolean), (name,))


def constant(word: str, needs: str) -> RawColumnRule:
    """Fill a column with one word, in captures that have the raw column `needs`."""
    series = encode_names(pl.Series([word]))
    return RawColumnRule(lambda _, raw: series.new_from_index(0, raw.height), (needs,))


def process(name: str) -> RawColumnRule:
    """Take the process out of a global thread or process id."""
    return RawColumnRule(lambda _, raw: process_of(raw.get_column(name)), (name,))


def _end(_: NsysSource, raw: pl.DataFrame) -> pl.Series:
    """Take the end; a call whose end was lost is an instant."""
    start, end = raw.get_column("start"), raw.get_column("end")
    valid = (end < raw_tables.FOREVER).fill_null(value=False)
    return end if valid.all() else end.zip_with(valid, start)


def _device(context: NsysSource, raw: pl.DataFrame) -> pl.Series:
    device = raw.get_column("deviceId")
    if "globalPid" not in raw.columns:
        return device
    return context.device_of(process_of(raw.get_column("globalPid")), device)


def _only_device(context: NsysSource, raw: pl.DataFrame) -> pl.Series:
    """All activity of a capture with one GPU ran on that."""
    return pl.Series([context.only_device()], dtype=pl.Int64).new_from_index(0, raw.height)


_ON_ONLY_DEVICE = RawColumnRule(
    _only_device,
    (),
    warning="all of it is assigned to the only GPU",
    applies=lambda context: context.only_device() is not None,
)
DEVICE = RawColumnRule(_device, ("deviceId",), ("globalPid",), fallback=_ON_ONLY_DEVICE)
TIMES = {"start_ns": column("start"), "end_ns": RawColumnRule(_end, ("start", "end"))}
ON_THREAD = {"thread": column("globalTid"), "process": process("globalTid")}
ON_DEVICE = {
    "device": DEVICE,
    "context": column("contextId"),
    "stream": column("streamId"),
    "correlation": column("correlationId"),
    "process": process("globalPid"),
}
GPU_ACTIVITY = TIMES | ON_DEVICE | {"green_context": column("greenContextId")}


def api_of(symbol: str) -> str:
    """Return which CUDA API a function belongs to."""
    return "runtime" if symbol.startswith("cuda") else "driver"


# Ranges ------------------------------------------------------------------------------------------


def range_name(context: NsysSource, raw: pl.DataFrame) -> pl.Series:
    """Take inline text, else the registered string; an empty message has neither."""
    names = []
    if "text" in raw.columns:
        names.append(encode_names(raw.get_column("text")))
    if "textId" in raw.columns and raw.get_column("textId").null_count() < raw.height:
        names.append(context.strings.names(raw.get_column("textId")))
    return first_name_of([*names, encode_names(pl.Series([""])).new_from_index(0, raw.height)])


def range_kind(_: NsysSource, raw: pl.DataFrame) -> pl.Series:
    """Name the kind of NVTX event."""
    return encode_codes(raw.get_column("eventType"), raw_tables.RANGE_KINDS)


def range_is_open(_: NsysSource, raw: pl.DataFrame) -> pl.Series:
    """A range never closed has no end, or one in the far future."""
    return ~(_has_end(raw) | (raw.get_column("eventType") == raw_tables.NVTX_MARK))


def _has_end(raw: pl.DataFrame) -> pl.Series:
    end = raw.get_column("end")
    return ((end >= raw.get_column("start")) & (end < raw_tables.FOREVER)).fill_null(value=False)


def range_end(context: NsysSource, raw: pl.DataFrame) -> pl.Series:
    """Take the end; a mark ends when it starts, a range never closed with the capture."""
    closed = _has_end(raw)
    if closed.all():
        return raw.get_column("end")
    start = raw.get_column("start")
    last = pl.Series([context.end_of_capture_ns]).new_from_index(0, len(start))
    cut = start.zip_with(
        (raw.get_column("eventType") == raw_tables.NVTX_MARK) | (start > last), last
    )
    return raw.get_column("end").zip_with(closed, cut)


def range_domain(context: NsysSource, raw: pl.DataFrame) -> pl.Series:
    """Name the NVTX domain."""
    return context.domain_names(process_of(raw.get_column("globalTid")), raw.get_column("domainId"))


def range_category(context: NsysSource, raw: pl.DataFrame) -> pl.Series:
    """Name the NVTX category."""
    domain = raw.get_column("domainId")
    return context.category_names(
        process_of(raw.get_column("globalTid")), domain, raw.get_column("category")
    )


def coalesce(*names: str) -> RawColumnRule:
    """Take the first value that a row has in these raw columns."""

    def build(_: NsysSource, raw: pl.DataFrame) -> pl.Series:
        return raw.select(pl.coalesce(n for n in names if n in raw.columns)).to_series()

    return RawColumnRule(build, names[:1], names[1:])


def range_payload_text(context: NsysSource, raw: pl.DataFrame) -> pl.Series:
    """Take structured payloads: inline text, else the registered string."""
    text = raw.get_column("jsonText")
    if "jsonTextId" not in raw.columns:
        return text
    return text.zip_with(text.is_not_null(), context.strings.texts(raw.get_column("jsonTextId")))


# Other tables ------------------------------------------------------------------------------------


def os_callchain(_: NsysSource, raw: pl.DataFrame) -> pl.Series:
    """Chains of OS calls count from 1, where 0 is none; those of API calls from 0."""
    chain = raw.get_column("callchainId")
    return chain.set(chain == 0, None)


_HOMES = r"(?:/home/|/Users/|[A-Za-z]:\\Users\\)[^/\\\s'\":;,]+|/root\b"


def without_homes(_: NsysSource, raw: pl.DataFrame) -> pl.Series:
    """Replace home directories, which hold user names."""
    return raw.get_column("text").str.replace_all(_HOMES, "~")


def metric_device(_: NsysSource, raw: pl.DataFrame) -> pl.Series:
    """The lowest byte of a metric's type is the GPU it was sampled on."""
    return raw.select(pl.col("typeId") & 0xFF).to_series()


def metric_value(_: NsysSource, raw: pl.DataFrame) -> pl.Series:
    """Undo the sign that nsys's exports give to three-byte counters; none can be negative."""
    value = raw.get_column("value")
    signed = value < 0
    if signed.any():
        value = (value + raw_tables.THREE_BYTES).zip_with(signed, value)
    return value.cast(pl.Float64)


def sync_kind(_: NsysSource, raw: pl.DataFrame) -> pl.Series:
    """Take the kind; newer exports of older reports have it in another column."""
    kind = raw.get_column("syncType")
    if "deprecatedSyncType" in raw.columns:
        older = raw.get_column("deprecatedSyncType")
        kind = older.zip_with((kind == 0) & older.is_not_null(), kind)
    return encode_codes(kind, raw_tables.SYNC_KINDS, other="unknown")


def shared_bytes(_: NsysSource, raw: pl.DataFrame) -> pl.Series:
    """Add static and dynamic shared memory."""
    return raw.get_column("staticSharedMemory") + raw.get_column("dynamicSharedMemory")


def _other_name(context: NsysSource, raw: pl.DataFrame) -> pl.Series:
    """Take the mangled name, which holds as much as a demangled one; else the short one."""
    names = [context.strings.names(raw.get_column("shortName"), base_name)]
    if "mangledName" in raw.columns:
        names.insert(0, context.strings.names(raw.get_column("mangledName"), demangle_names))
    return first_name_of(names)


def base_name(short: str) -> str:
    """Take the function's own name out of a mangled name, which `gpusight record` stores."""
    if not short.startswith("_Z"):
        return short
    from gpusight.naming.demangle import split  # slow to import, and seldom needed

    return split(demangle_names(short))[0].rsplit("::", 1)[-1]


OTHER_NAME = RawColumnRule(
    _other_name, ("shortName",), ("mangledName",), warning="kernels are named by their other names"
)
