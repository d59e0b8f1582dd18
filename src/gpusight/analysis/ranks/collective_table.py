"""All collectives of a capture in one table, whatever tool recorded them.

A row is a collective as one rank ran it: an NCCL kernel (or another communication kernel) on a
GPU, or an operation on the CPU (gloo, MPI, UCC, UCX). What a kernel's name does not say is added
from the arguments that PyTorch records, from the NVTX ranges and payloads of NCCL, from the ranges
of PyTorch's process groups, and from the operators of XLA.
"""

from __future__ import annotations

import re
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.launch_index import launched
from gpusight.analysis.ranks.rank_identity import rank_units
from gpusight.analysis.selection import GPU_WORK
from gpusight.naming.collective_names import (
    OTHER,
    async_edge,
    collective_kind,
    framework_call,
    library_call_kind,
    nccl_call_kind,
)
from gpusight.naming.kernel_names import classify
from gpusight.results import Field, Fmt

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from gpusight.trace.trace import Trace


GPU_KERNEL, CPU_OPERATION = "gpu kernel", "cpu operation"
FIELDS = (
    Field("kind", "Kind", Fmt.TEXT, "`all_reduce`, `all_gather`, `send_recv`, …; `other`"),
    Field("bytes", "Bytes", Fmt.BYTES, "Message size, the larger of sent and received"),
    Field("group", "Group", Fmt.TEXT, "Process group or NCCL communicator; null if not recorded"),
    Field("group_ranks", "Ranks", Fmt.TEXT, "Ranks of the group, as JSON", shown=False),
    Field("sequence", "Sequence", Fmt.ID, "Number of the collective in its group"),
    Field("peer", "Peer", Fmt.ID, "Rank that it sends to or receives from", shown=False),
    Field("operation", "Operation", Fmt.ID, "NCCL's operation id, the same on all ranks"),
    Field("rank", "Rank", Fmt.ID, "Rank that ran it"),
    Field("process", "Process", Fmt.ID, "Key of its process", shown=False),
    Field("device", "GPU", Fmt.ID, "GPU that ran it; null on the CPU"),
    Field("stream", "Stream", Fmt.ID, "CUDA stream; null on the CPU"),
    Field("launch_ns", "Launch", Fmt.TIME, "Start of the call that issued it"),
    Field("start_ns", "Start", Fmt.TIME, "Start time"),
    Field("end_ns", "End", Fmt.TIME, "End time"),
    Field("source", "Source", Fmt.TEXT, f"`{GPU_KERNEL}` or `{CPU_OPERATION}`"),
    Field("name", "Name", Fmt.NAME, "Kernel, range or call as recorded"),
)
"""The columns, in order."""
_SCHEMA: dict[str, Any] = {
    **dict.fromkeys((field.key for field in FIELDS), pl.Int64),
    **dict.fromkeys(("kind", "group", "group_ranks", "source", "name"), pl.String),
}
_COMMUNICATION = "communication"
_GROUP_THREADS = 2
"""Threads that gloo starts for a process group."""
_VAGUE = ("send_recv", OTHER)
"""Kinds that a range around the launch may name better: NCCL runs an all-to-all as send and recv.
"""


def collectives(trace: Trace) -> pl.DataFrame:
    """Return the collectives of a capture in order of start, with the columns of `FIELDS`."""
    rows = pl.concat([_kernels(trace), _host_operations(trace), _library_calls(trace)])
    return _with_ranks(trace, rows).select(*_SCHEMA).sort("start_ns", maintain_order=True)


def _with_ranks(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    known = [
        {"process": unit.process, "on": unit.device if unit.by_device else None, "rank": unit.rank}
        for unit in rank_units(trace)
        if unit.rank is not None
    ]
    if not known or rows.is_empty():
        return rows
    if len(known) == 1 and known[0]["on"] is None:
        return rows.with_columns(rank=pl.lit(known[0]["rank"], pl.Int64))
    units = pl.DataFrame(known, schema=dict.fromkeys(known[0], pl.Int64))
    by_device = units["on"].null_count() == 0
    rows = rows.with_columns(on=pl.col("device") if by_device else pl.lit(None, pl.Int64))
    return rows.drop("rank").join(
        units, on=["process", "on"], how="left", nulls_equal=True, maintain_order="left"
    )


def _complete(rows: pl.DataFrame) -> pl.DataFrame:
    """Add the columns that a source does not know."""
    missing = [pl.lit(None, dtype).alias(c) for c, dtype in _SCHEMA.items() if c not in rows]
    return rows.with_columns(missing).select(pl.col(c).cast(d) for c, d in _SCHEMA.items())


# Kernels ------------------------------------------------------------------------------------------


def _kernels(trace: Trace) -> pl.DataFrame:
    """Return the communication kernels, with all that is known of each."""
    if not trace.has("kernels"):
        return _complete(pl.DataFrame({"start_ns": []}, schema={"start_ns": pl.Int64}))
    columns = ["start_ns", "end_ns", "name", "process", "device", "stream", "op"]
    kernels = trace.table("kernels", columns).with_row_index("row")
    recorded = _recorded(trace)
    codes = [c for c, name in enumerate(names_of(kernels["name"])) if _communicates(name)]
    known = kernels.select("start_ns", "device", "stream").with_row_index("row")
    named = known.join(recorded, on=["start_ns", "device", "stream"], how="semi")["row"]
    chosen = kernels.filter(
        pl.col("name").to_physical().is_in(codes) | pl.col("row").is_in(named.implode())
    ).with_columns(pl.col("name").cast(pl.String))
    kinds = {name: _kernel_kind(name) for name in chosen["name"].unique()}
    chosen = _launches(trace, chosen).with_columns(
        kind=pl.col("name").replace_strict(kinds, return_dtype=pl.String)
    )
    chosen = chosen.join(
        recorded, on=["start_ns", "device", "stream"], how="left", maintain_order="left"
    )
    chosen = _with_operators(trace, chosen)
    chosen = _with_nccl_calls(trace, chosen)
    chosen = _better_kinds(trace, chosen)
    kind = pl.coalesce("recorded_kind", "kind")
    chosen = chosen.with_columns(kind=kind, source=pl.lit(GPU_KERNEL))
    return _joined_pairs(_complete(chosen))


def _communicates(name: str) -> bool:
    return classify(name).category == _COMMUNICATION


def _kernel_kind(name: str) -> str:
    edge = async_edge(name)
    return edge[0] if edge else collective_kind(name) or OTHER


def _launches(trace: Trace, kernels: pl.DataFrame) -> pl.DataFrame:
    """Add when, and on which thread, each kernel was launched."""
    work = launched(trace).filter(pl.col("table") == GPU_WORK.index("kernels"))
    calls = work.select(
        pl.col("row").cast(pl.UInt32), "launch_ns", "thread", launcher=pl.col("process")
    )
    rows = kernels.join(calls, on="row", how="left", maintain_order="left")
    # The launch of a kernel that names no call is not known.
    return rows.with_columns(
        launch_ns=pl.when(pl.col("thread").is_not_null()).then("launch_ns"),
        process=pl.coalesce("process", "launcher"),
    )


_FACTS = ("recorded_kind", "bytes", "group", "group_ranks", "sequence", "peer")


def _facts(rows: pl.DataFrame) -> list[pl.Expr]:
    """Return what PyTorch records of a collective, as columns of the result."""
    kinds = {name: collective_kind(name) for name in names_of(rows["name"])}
    return [
        pl.col("name").cast(pl.String).replace_strict(kinds, default=None).alias("recorded_kind"),
        pl.max_horizontal("in_bytes", "out_bytes").alias("bytes"),
        pl.col("group").cast(pl.String),
        pl.col("ranks").cast(pl.String).alias("group_ranks"),
        pl.col("sequence"),
        pl.col("peer"),
    ]


def _arguments(trace: Trace, columns: list[str]) -> pl.DataFrame:
    names = ["name", "side", "library", "in_bytes", "out_bytes", "group", "ranks"]
    names += ["sequence", "peer"]
    rows = trace.table("collectives", [*names, *columns])
    return rows.select(
        *columns,
        *_facts(rows),
        pl.col("side").cast(pl.String),
        pl.col("library").cast(pl.String),
        pl.col("name").cast(pl.String),
    )


def _recorded(trace: Trace) -> pl.DataFrame:
    """Return what PyTorch recorded with communication kernels."""
    key = ["start_ns", "device", "stream"]
    rows = _arguments(trace, key).filter(pl.col("side") == "gpu")
    return rows.select(*key, *_FACTS).unique(key, keep="first", maintain_order=True)


def _with_operators(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    """Fill in what the operator that launched a kernel recorded (`record_param_comms`)."""
    calls = _arguments(trace, ["op"]).filter(
        (pl.col("side") == "host") & pl.col("library").is_null() & pl.col("op").is_not_null()
    )
    calls = calls.unique("op", keep="first").select("op", *_FACTS)
    joined = rows.join(calls, on="op", how="left", suffix="_call", maintain_order="left")
    return joined.with_columns(pl.coalesce(fact, f"{fact}_call").alias(fact) for fact in _FACTS)


# NVTX of NCCL -------------------------------------------------------------------------------------

_SPAN_SCHEMA = {
    "thread": pl.Int64,
    "span_start": pl.Int64,
    "span_end": pl.Int64,
    "call": pl.Int64,
    "calls": pl.Int64,
    "call_kind": pl.String,
    "call_bytes": pl.Int64,
    "call_group": pl.String,
    "call_operation": pl.Int64,
}
_GROUP_START, _GROUP_END = "ncclGroupStart", "ncclGroupEnd"


def _with_nccl_calls(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    """Add bytes, communicator and operation of the NCCL call around each launch.

    Calls between ncclGroupStart and ncclGroupEnd are launched together, at the end of the group.
    """
    spans = pl.DataFrame(list(_call_spans(trace)), schema=_SPAN_SCHEMA, orient="row")
    rows = rows.with_columns(operation=pl.lit(None, pl.Int64))
    if spans.is_empty():
        return rows
    heads = spans.unique(["thread", "span_start"], keep="first", maintain_order=True)
    heads = heads.select("thread", "span_start", "span_end", "calls").sort("span_start")
    met = rows.sort("launch_ns", maintain_order=True).join_asof(
        heads, left_on="launch_ns", right_on="span_start", by="thread", check_sortedness=False
    )
    inside = pl.col("launch_ns") <= pl.col("span_end")
    span = ["thread", "span_start"]
    met = met.with_columns(span_start=pl.when(inside).then("span_start"))
    # Several kernels of one group are those of its calls in order, if there are as many.
    met = met.with_columns(
        call=pl.int_range(pl.len(), dtype=pl.Int64).over(span), kernels=pl.len().over(span)
    )
    single = met.filter(pl.col("kernels") == 1, pl.col("span_start").is_not_null())
    several = met.filter((pl.col("kernels") != 1) | pl.col("span_start").is_null())
    whole = single.drop("call").join(_whole(spans), on=span, how="left", maintain_order="left")
    each = several.join(
        spans.filter(pl.col("calls").is_not_null()).drop("span_end").rename({"calls": "of"}),
        on=[*span, "call"],
        how="left",
        maintain_order="left",
    )
    matches = pl.col("of") == pl.col("kernels")
    facts = ["call_kind", "call_bytes", "call_group", "call_operation"]
    each = each.with_columns(pl.when(matches).then(c).alias(c) for c in facts)
    columns = [*rows.columns, *facts]
    merged = pl.concat([whole.select(columns), each.select(columns)])
    return merged.with_columns(
        kind=_better("call_kind"),
        bytes=pl.coalesce("bytes", "call_bytes"),
        group=pl.coalesce("group", "call_group"),
        operation=pl.coalesce("operation", "call_operation"),
    ).sort("start_ns", maintain_order=True)


def _whole(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the calls of each span as one: those that send, or else all, together."""
    sends = pl.col("call_kind") == "send"
    has_sends = sends.any()
    of_way = pl.when(has_sends).then(sends).otherwise(pl.lit(value=True))
    one_group = pl.col("call_group").n_unique() == 1
    return spans.group_by("thread", "span_start", maintain_order=True).agg(
        call_kind=pl.when(pl.len() == 1).then(pl.col("call_kind").first()),
        call_bytes=pl.when(pl.col("call_bytes").null_count() == 0).then(
            pl.col("call_bytes").filter(of_way).sum()
        ),
        call_group=pl.when(one_group).then(pl.col("call_group").first()),
        call_operation=pl.col("call_operation").first(),
    )


def _better(column: str) -> pl.Expr:
    """Take another kind where the kernel's own name is vague."""
    known = pl.col(column).is_not_null() & ~pl.col(column).is_in(("send", "recv"))
    return pl.when(pl.col("kind").is_in(_VAGUE) & known).then(column).otherwise("kind")


def _call_spans(trace: Trace) -> Iterator[tuple[Any, ...]]:
    """Yield each call of NCCL, with the span in which its kernel is launched."""
    if not trace.has("ranges"):
        return
    columns = ["start_ns", "end_ns", "name", "thread"]
    has_payloads = trace.has("ranges", "payload_text")
    frame = trace.table("ranges", [*columns, *(["payload_text"] if has_payloads else [])])
    names = names_of(frame["name"])
    groups = {_GROUP_START, _GROUP_END}
    codes = [c for c, name in enumerate(names) if name in groups or nccl_call_kind(name)]
    if not codes:
        return
    chosen = frame.filter(pl.col("name").to_physical().is_in(codes), pl.col("thread").is_not_null())
    for _, own in chosen.group_by("thread", maintain_order=True):
        yield from _spans_of_thread(own.iter_rows(named=True))


def _spans_of_thread(ranges: Iterator[dict[str, Any]]) -> Iterator[tuple[Any, ...]]:
    depth, start_ns, calls = 0, 0, list[tuple[Any, ...]]()
    for row in ranges:
        name = row["name"]
        if name == _GROUP_START:
            start_ns, calls = (row["start_ns"], []) if depth == 0 else (start_ns, calls)
            depth += 1
        elif name == _GROUP_END:
            depth = max(0, depth - 1)
            if depth == 0:
                yield from _numbered(row["thread"], start_ns, row["end_ns"], calls)
                calls = []
        else:
            call = (nccl_call_kind(name), *_payload(row.get("payload_text")))
            if depth:
                calls.append(call)
            else:
                yield from _numbered(row["thread"], row["start_ns"], row["end_ns"], [call])


def _numbered(
    thread: int, start_ns: int, end_ns: int, calls: list[tuple[Any, ...]]
) -> Iterator[tuple[Any, ...]]:
    for number, call in enumerate(calls):
        yield (thread, start_ns, end_ns, number, len(calls), *call)


def _payload(text: str | None) -> tuple[int | None, str | None, int | None]:
    """Return bytes, communicator and operation id of a payload of NCCL."""
    facts = payload_facts(text)
    numbers = (_first(facts, pattern) for pattern in (r"message size|bytes$", r"operation ?id"))
    size, operation = (value if isinstance(value, int) else None for value in numbers)
    group = _first(facts, r"communicator|^comm")
    return size, None if group is None else str(group), operation


def payload_facts(text: str | None) -> dict[str, Any]:
    """Return the values of a structured NVTX payload by their names, in lower case."""
    if not text:
        return {}
    try:
        values = msgspec.json.decode(text)
    except msgspec.DecodeError:
        return {}
    facts: dict[str, Any] = {}
    waiting = [values]
    while waiting:
        value = waiting.pop()
        parts = value.items() if isinstance(value, dict) else ()
        waiting += value if isinstance(value, list) else ()
        for name, part in parts:
            if isinstance(part, (dict, list)):
                waiting.append(part)
            else:
                facts.setdefault(str(name).lower(), part)
    return facts


def _first(facts: dict[str, Any], pattern: str) -> Any:
    return next((value for name, value in facts.items() if re.search(pattern, name)), None)


# Ranges and operators around a launch -------------------------------------------------------------


def _framework_kind(name: str) -> str | None:
    call = framework_call(name)
    return None if call is None else call[1]


def _better_kinds(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    """Name vague kinds by the range of the process group, or the operator of XLA, around them."""
    if not rows["kind"].is_in(_VAGUE).any():
        return rows
    around: list[tuple[str, str, list[str], Callable[[str], str | None]]] = [
        ("ranges", "launch_ns", ["thread"], _framework_kind),
        ("gpu_ranges", "start_ns", ["device", "stream"], collective_kind),
    ]
    for table, when, keys, kind_of in around:
        if not trace.has(table):
            continue
        frame = trace.table(table, ["start_ns", "end_ns", "name", *keys])
        kinds = {name: kind for name in names_of(frame["name"]) if (kind := kind_of(name))}
        named = frame.filter(pl.col("name").cast(pl.String).is_in(list(kinds))).select(
            *keys,
            pl.col("start_ns").alias("around_start"),
            pl.col("end_ns").alias("around_end"),
            pl.col("name").cast(pl.String).replace_strict(kinds, default=None).alias("around"),
        )
        if named.is_empty():
            continue
        rows = (
            rows.sort(when, maintain_order=True)
            .join_asof(
                named.sort("around_start"),
                left_on=when,
                right_on="around_start",
                by=keys,
                check_sortedness=False,
            )
            .with_columns(
                around=pl.when(pl.col(when) <= pl.col("around_end")).then("around"),
            )
            .with_columns(kind=_better("around"))
            .drop("around", "around_start", "around_end")
            .sort("start_ns", maintain_order=True)
        )
    return rows


def _joined_pairs(rows: pl.DataFrame) -> pl.DataFrame:
    """Join the asynchronous pairs of XLA: from the start of `-start` to the end of `-done`."""
    edges = {name: edge for name in rows["name"].unique() if (edge := async_edge(name))}
    if not edges:
        return rows
    parts = {name: f"{kind} {number}" for name, (kind, _, number) in edges.items()}
    ways = {name: edge for name, (_, edge, _) in edges.items()}
    keys = ["process", "device", "pair"]
    text = pl.col("name")
    pairs = rows.with_columns(
        pair=text.replace_strict(parts, default=None, return_dtype=pl.String),
        way=text.replace_strict(ways, default=None, return_dtype=pl.String),
    )
    order = pl.int_range(pl.len()).over([*keys, "way"])
    pairs = pairs.with_columns(place=order)
    done = pairs.filter(pl.col("way") == "done").select(*keys, "place", done=pl.col("end_ns"))
    joined = pairs.filter(pl.col("way").is_null() | (pl.col("way") == "start")).join(
        done, on=[*keys, "place"], how="left", nulls_equal=True, maintain_order="left"
    )
    paired = pl.col("way").is_not_null() & (pl.col("done") >= pl.col("start_ns"))
    return joined.with_columns(end_ns=pl.when(paired).then("done").otherwise("end_ns")).select(
        rows.columns
    )


# The CPU ------------------------------------------------------------------------------------------


def _host_operations(trace: Trace) -> pl.DataFrame:
    """Return the collectives that a library runs on the CPU, as PyTorch marks them."""
    columns = ["start_ns", "end_ns", "process", "thread"]
    rows = _arguments(trace, columns).filter(pl.col("library").is_not_null())
    rows = rows.with_columns(kind=pl.col("recorded_kind").fill_null(OTHER))
    groups = _groups_of_threads(trace, rows)
    rows = rows.join(groups, on=["library", "thread"], how="left", maintain_order="left")
    rows = rows.with_columns(
        group=pl.coalesce("group", "thread_group"),
        group_ranks=pl.coalesce("group_ranks", "thread_ranks"),
    )
    rows = rows.with_columns(
        source=pl.lit(CPU_OPERATION), name=pl.format("{}:{}", "library", "name")
    )
    return _complete(_issued(trace, rows))


def _groups_of_threads(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    """Return the process group of each thread that runs collectives; ranges do not name it.

    A process group starts its threads when it is made, so both are in the same order. Where groups
    may have run nothing, which thread is of which one is not known.
    """
    schema = dict.fromkeys(("library", "thread_group", "thread_ranks"), pl.String)
    known = trace.table("process_groups", ["group", "ranks", "backend"])
    known = known.with_columns(pl.all().cast(pl.String))
    tids = trace.table("threads", ["thread", "tid"])
    found: list[tuple[Any, ...]] = []
    for (library,), own in rows.group_by("library", maintain_order=True):
        if known.height > 1 and library != "gloo":
            continue
        groups = known.filter(pl.col("backend").str.contains(str(library)).fill_null(value=True))
        used = own.select("thread").unique().join(tids, on="thread", how="left")
        threads = used.sort("tid", "thread").rows()
        for group, members in zip(groups.rows(), _runs(threads, groups.height), strict=False):
            found += [(thread, library, *group[:2]) for thread, _ in members]
    return pl.DataFrame(found, schema={"thread": pl.Int64, **schema}, orient="row")


def _runs(threads: list[tuple[int, int | None]], groups: int) -> list[list[tuple[int, int | None]]]:
    """Split threads, in order of their numbers, into those of each group; empty if not known."""
    if groups == 1:
        return [threads]
    pairs, left = divmod(len(threads), _GROUP_THREADS)
    if pairs + left != groups or left > 1 or any(tid is None for _, tid in threads):
        return []
    runs = []
    for single in range(groups) if left else [groups]:
        sizes = [1 if place == single else _GROUP_THREADS for place in range(groups)]
        ends = list(accumulate(sizes))
        runs.append([threads[end - size : end] for end, size in zip(ends, sizes, strict=True)])
    # Threads of one group were started one after the other: their numbers are close.
    return min(runs, key=lambda run: sum((own[-1][1] or 0) - (own[0][1] or 0) for own in run))


def _issued(trace: Trace, rows: pl.DataFrame) -> pl.DataFrame:
    """Add when the program issued each: the operators of a kind run in the order of their calls."""
    if rows.is_empty() or not trace.has("cpu_ops"):
        return rows
    calls = trace.table("cpu_ops", ["start_ns", "name", "process"])
    kinds = {
        name: collective_kind(name)
        for name in names_of(calls["name"])
        if name.startswith("c10d::") and collective_kind(name)
    }
    calls = calls.with_columns(pl.col("name").cast(pl.String)).filter(
        pl.col("name").is_in(list(kinds))
    )
    keys = ["process", "kind"]
    calls = calls.select(
        "process", kind=pl.col("name").replace_strict(kinds), launch_ns=pl.col("start_ns")
    ).with_columns(place=pl.int_range(pl.len()).over(keys), issued=pl.len().over(keys))
    rows = rows.with_columns(place=pl.int_range(pl.len()).over(keys), ran=pl.len().over(keys))
    joined = rows.join(calls, on=[*keys, "place"], how="left", maintain_order="left")
    # Where some were lost, order does not say which call is whose.
    sure = (pl.col("issued") == pl.col("ran")) & (pl.col("launch_ns") <= pl.col("start_ns"))
    return joined.with_columns(launch_ns=pl.when(sure).then("launch_ns"))


def _library_calls(trace: Trace) -> pl.DataFrame:
    """Return the calls of MPI and UCX that nsys traced; those of UCX inside MPI are MPI's."""
    none = _complete(pl.DataFrame({"start_ns": []}, schema={"start_ns": pl.Int64}))
    if not trace.has("ranges", "source"):
        return none
    columns = ["start_ns", "end_ns", "name", "process", "thread", "source"]
    frame = trace.table("ranges", columns)
    kinds = {name: kind for name in names_of(frame["name"]) if (kind := library_call_kind(name))}
    rows = frame.with_columns(pl.col("name", "source").cast(pl.String)).filter(
        pl.col("source").is_in(("MPI", "UCX")), pl.col("name").is_in(list(kinds))
    )
    if rows.is_empty():
        return none
    mpi = rows.filter(pl.col("source") == "MPI")
    if mpi.height:
        rows = mpi  # UCX carries out what MPI calls, on the same or on other threads
    return _complete(
        rows.select(
            *columns[:4],
            kind=pl.col("name").replace_strict(kinds, return_dtype=pl.String),
            launch_ns=pl.col("start_ns"),
            source=pl.lit(CPU_OPERATION),
        )
    )
