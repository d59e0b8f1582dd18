"""How columns of a trace are made from columns of nsys's export schema, of any version."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from gpusight.naming.name_parts import demangle_if_mangled
from gpusight.readers.nsys import raw_tables
from gpusight.readers.nsys.raw_tables import Ends, process_of
from gpusight.readers.tables import (
    encode_codes,
    encode_names,
    first_name_of,
)

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
    once: tuple[str, ...] = ()
    """Columns by which rows that are equal count once."""


# Rules ------------------------------------------------------------------------------------------


def computed(expression: pl.Expr, *needs: str) -> RawColumnRule:
    """Compute a column from raw columns."""
    return RawColumnRule(lambda _, raw: raw.select(expression).to_series(), needs)


def column(name: str) -> RawColumnRule:
    """Take a raw column unchanged."""
    return RawColumnRule(lambda _, raw: raw.get_column(name), (name,))


def renamed(**names: str) -> dict[str, RawColumnRule]:
    """Take raw columns unchanged, under their names in a trace."""
    return {name: column(raw) for name, raw in names.items()}


def word_for_number(name: str, words: dict[int, str]) -> RawColumnRule:
    """Replace the numbers of an enum by words."""
    return RawColumnRule(lambda _, raw: encode_codes(raw.get_column(name), words), (name,))


def string(
    name: str, change: Callable[[str], str] | None = None, fallback: RawColumnRule | None = None
) -> RawColumnRule:
    """Look up ids in the string table; `change` is applied to each distinct text."""
    return RawColumnRule(
        lambda context, raw: context.strings.names(raw.get_column(name), change),
        (name,),
        fallback=fallback,
    )


def flag(name: str) -> RawColumnRule:
    """Take 0 and 1 as a Boolean."""
    return RawColumnRule(lambda _, raw: raw.get_column(name).cast(pl.Boolean), (name,))


def constant(value: str | int, needs: str) -> RawColumnRule:
    """Fill a column with one word or number, in captures that have the raw column `needs`."""

    def build(_: NsysSource, raw: pl.DataFrame) -> pl.Series:
        # Made when it is read: there are a hundred such rules, and most captures use none.
        series = pl.Series([value])
        series = encode_names(series) if isinstance(value, str) else series
        return series.new_from_index(0, raw.height)

    return RawColumnRule(build, (needs,))


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
    return context.device_of(raw.get_column("globalPid"), device)


_ON_ONLY_DEVICE = RawColumnRule(
    lambda context, raw: pl.Series([context.only_device()]).new_from_index(0, raw.height),
    (),
    warning="all of it is assigned to the only GPU",
    applies=lambda context: context.only_device() is not None,
)
DEVICE = RawColumnRule(_device, ("deviceId",), ("globalPid",), fallback=_ON_ONLY_DEVICE)
TIMES = {"start_ns": column("start"), "end_ns": RawColumnRule(_end, ("start", "end"))}
ON_THREAD = {"thread": column("globalTid"), "process": process("globalTid")}
ON_DEVICE = {
    "device": DEVICE,
    **renamed(context="contextId", stream="streamId", correlation="correlationId"),
    "process": process("globalPid"),
}
GPU_ACTIVITY = {
    **TIMES,
    **ON_DEVICE,
    **renamed(cuda_device="deviceId", green_context="greenContextId"),
}


# Ranges ------------------------------------------------------------------------------------------


def range_name(context: NsysSource, raw: pl.DataFrame) -> pl.Series:
    """Take the registered string, else inline text, as nsys does; an empty message has neither."""
    names = []
    if "textId" in raw.columns and raw.get_column("textId").null_count() < raw.height:
        names.append(context.strings.names(raw.get_column("textId")))
    if "text" in raw.columns and raw.get_column("text").null_count() < raw.height:
        names.append(encode_names(raw.get_column("text")))
    return first_name_of([*names, encode_names(pl.Series([""])).new_from_index(0, raw.height)])


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


_MPI_CATEGORIES = {
    "start-wait": r"^P?MPI_(?:Wait|Start)",
    "p2p": r"^P?MPI_(?:[BSRI]|Ib|Is|Ir)?(?:send|recv|Send|Recv|M[Rr]ecv|Sendrecv)",
    "collectives": r"^P?MPI_I?(?:[Bb]arrier|[Bb]cast|[Aa]ll|[Rr]educe|[Gg]ather|[Ss]catter|"
    r"[Ss]can|[Ee]xscan|[Nn]eighbor)",
}
"""The tables that exports put calls of MPI into; the rest is `other`."""


def range_category(context: NsysSource, raw: pl.DataFrame) -> pl.Series:
    """Name the NVTX category; of calls of MPI, their kind."""
    domain = raw.get_column("domainId")
    categories = context.category_names(
        process_of(raw.get_column("globalTid")), domain, raw.get_column("category")
    )
    if "textId" not in raw.columns:
        return categories
    called = range_source(context, raw)
    if called.null_count() == raw.height:
        return categories
    name = pl.Series("name", context.strings.texts(raw.get_column("textId")))
    kind: pl.Expr = pl.lit("other")
    for word, pattern in _MPI_CATEGORIES.items():
        kind = pl.when(pl.col("name").str.contains(pattern)).then(pl.lit(word)).otherwise(kind)
    kinds = pl.DataFrame([name]).select(kind).to_series()
    of_mpi = (called.cast(pl.String) == "MPI").fill_null(value=False)
    texts = kinds.zip_with(of_mpi, categories.cast(pl.String))
    return encode_names(
        texts.set((called.cast(pl.String) == "UCX").fill_null(value=False), "calls")
    )


TRACED_AS_NVTX = ("globalTid", "domainId", "textId")
"""Columns that show which NVTX ranges nsys made itself, for calls of these libraries."""
_LIBRARIES = {"MPI": r"^P?MPI_", "UCX": r"^uc[pt]_"}


def range_source(context: NsysSource, raw: pl.DataFrame) -> pl.Series:
    """Find calls of MPI and UCX: reports and older exports store them as ranges of a domain.

    Newer exports have tables for them.
    """
    domains = range_domain(context, raw)
    known = domains.dtype.categories if isinstance(domains.dtype, pl.Enum) else domains.unique()
    libraries = [word for word in known if word in _LIBRARIES]
    sources = pl.Series([None], dtype=pl.String).new_from_index(0, raw.height)
    domain = domains.cast(pl.String) if libraries else domains
    for library in libraries:
        name = context.strings.texts(raw.get_column("textId"))
        called = name.str.contains(_LIBRARIES[library]).fill_null(value=False)
        sources = sources.set((domain == library).fill_null(value=False) & called, library)
    return encode_names(sources)


def range_record(context: NsysSource, raw: pl.DataFrame) -> pl.Series:
    """Number ranges as the export does, in which calls of MPI and UCX are elsewhere."""
    row = raw.get_column(ROW)
    if context.raw.source != "nsys-rep" or not set(TRACED_AS_NVTX) <= set(raw.columns):
        return row
    elsewhere = range_source(context, raw).is_not_null()
    return (row - elsewhere.cast(pl.Int64).cum_sum()).set(elsewhere, None)


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


def openacc_name(context: NsysSource, raw: pl.DataFrame) -> pl.Series:
    """Name an OpenACC event and its line of source, as nsys does: `Compute Construct@f.c:12`."""
    names = context.strings.texts(raw.get_column("nameId")).rename("name")
    if not {"srcFile", "lineNo"} <= set(raw.columns):
        return encode_names(names)
    file = context.strings.texts(raw.get_column("srcFile")).rename("file")
    place = pl.when(pl.col("file").is_not_null()).then(
        pl.format("@{}:{}", "file", pl.col("lineNo").fill_null(0))
    )
    frame = pl.DataFrame([names, file, raw.get_column("lineNo")])
    named = frame.select(pl.col("name").fill_null("") + place.otherwise(pl.lit("")))
    return encode_names(named.to_series())


# Other tables ------------------------------------------------------------------------------------


HOMES = r"(?:/home/|/Users/|[A-Za-z]:\\Users\\)[^/\\\s'\":;,]+|/root\b"
"""Home directories, which hold user names."""


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


def _other_name(context: NsysSource, raw: pl.DataFrame) -> pl.Series:
    """Take the mangled name, which holds as much as a demangled one; else the short one."""
    names = [context.strings.names(raw.get_column("shortName"), base_name)]
    if "mangledName" in raw.columns:
        names.insert(0, context.strings.names(raw.get_column("mangledName"), demangle_if_mangled))
    return first_name_of(names)


def base_name(short: str) -> str:
    """Take the function's own name out of a mangled name, which `gpusight record` stores."""
    if not short.startswith("_Z"):
        return short
    from gpusight.naming.name_parts import split  # slow to import, and seldom needed

    return split(demangle_if_mangled(short))[0].rsplit("::", 1)[-1]


OTHER_NAME = RawColumnRule(
    _other_name, ("shortName",), ("mangledName",), warning="kernels are named by their other names"
)
