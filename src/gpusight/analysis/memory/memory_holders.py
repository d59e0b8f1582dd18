"""Who allocated each block: operator, module, line of code and range."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.attribution.nested_intervals import (
    MODULE_PREFIX,
    NONE,
    NestedIntervals,
    PythonCalls,
    first_known,
    is_own_code,
    lookup,
    optional,
    stack_sites,
    text_of,
)
from gpusight.analysis.attribution.work_causes import FrameworkOperators, HostMoments, main_threads
from gpusight.analysis.steps.step_list import PROFILER_STEP

if TYPE_CHECKING:
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


WHO = ("op", "outer_op", "module", "site", "range")
"""Columns that name who allocated a block, each null where not recorded."""
_PLAIN_ALLOCATION = re.compile(
    r"^aten::((new_)?empty(_\w+)?|resize_\w*|_empty_affine_quantized|set_\w*)$"
)
"""Operators that only allocate on behalf of the one around them."""
_ENGINE = "autograd::engine::evaluate_function: "
_MAX_FRAMES = 200


def from_framework(trace: Trace, moments: HostMoments, processes: pl.Series) -> pl.DataFrame:
    """Name what was running when a framework's allocator was called: columns `WHO`."""
    operators = FrameworkOperators(trace)
    nested = operators.nested
    innermost = nested.innermost(moments.times, moments.threads)
    op = nested.rows_at(innermost)
    forward = HostMoments.of(operators.table, operators.forward(op))
    module, site = _python(trace, moments, forward)
    if trace.has("cpu_ops", "stack"):
        row = operators.with_stack(op)
        stacks = trace.table("cpu_ops", ["stack"])["stack"].gather(optional(row))
        site = site.zip_with(site.is_not_null(), stack_sites(stacks))
    # The innermost operator that does more than allocate, and the outermost.
    names = trace.table("cpu_ops", ["name"])["name"]
    working = nested.marked(names, lambda name: not _PLAIN_ALLOCATION.match(name))
    inner = first_known([lookup(nested.nearest(working), innermost), innermost])
    outer = lookup(nested.nearest(nested.outer == NONE), innermost)
    inner_name, outer_name = (
        text_of(names, optional(nested.rows_at(places))).str.strip_prefix(_ENGINE)
        for places in (inner, outer)
    )
    return pl.DataFrame(
        {
            "op": inner_name,
            "outer_op": outer_name,
            "module": module,
            "site": site,
            "range": _open_ranges(trace, moments, processes),
        }
    )


def from_driver(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    """Name the CUDA call that allocated each block and the range around it: columns `WHO`.

    `events` has time_ns, process and correlation, null for what was in use before the capture.
    """
    calls = _allocating_calls(trace, events)
    moments = HostMoments(calls["start_ns"].fill_null(NONE).to_numpy(), calls["thread"])
    return calls.select(
        pl.col("name").alias("op"),
        *(pl.lit(None, pl.String).alias(c) for c in ("outer_op", "module", "site")),
        _open_ranges(trace, moments, calls["process"]).alias("range"),
    )


def _open_ranges(trace: Trace, moments: HostMoments, processes: pl.Series) -> pl.Series:
    """Name the innermost range open on a block's thread, else on its process's main thread."""
    main = processes.replace_strict(main_threads(trace), default=None, return_dtype=pl.Int64)
    own = ranges_of(trace, "thread", moments.times, moments.threads)
    return own.zip_with(own.is_not_null(), ranges_of(trace, "thread", moments.times, main))


def ranges_of(trace: Trace, by: str, times: Ints, keys: pl.Series) -> pl.Series:
    """Name the innermost range open at each time, among those with the key in column `by`.

    The profiler's own steps are skipped: they say when, not what.
    """
    if not trace.has("ranges"):
        return no_texts(len(times))
    table = trace.table("ranges", ["start_ns", "end_ns", by, "kind", "name"])
    table = table.filter(pl.col("kind").cast(pl.String) == "push_pop")
    nested = NestedIntervals.of_table(table, by)
    wanted = nested.marked(table["name"], lambda name: not name.startswith(PROFILER_STEP))
    places = lookup(nested.nearest(wanted), nested.innermost(times, keys))
    return text_of(table["name"], optional(nested.rows_at(places)))


def python_stacks(trace: Trace, moments: HostMoments) -> list[list[str]]:
    """List the Python calls open at each of a few moments, innermost first."""
    if not trace.has("python_calls"):
        return [[] for _ in moments.times]
    nested = PythonCalls(trace).nested
    names = trace.table("python_calls", ["name"])["name"]
    stacks = []
    for innermost in nested.innermost(moments.times, moments.threads).tolist():
        places: list[int] = []
        place = innermost
        while place != NONE and len(places) < _MAX_FRAMES:
            places.append(place)
            place = int(nested.outer[place])
        rows = nested.rows_at(np.array(places, dtype=np.int64))
        stacks.append(text_of(names, pl.Series(rows)).to_list())
    return stacks


def no_texts(count: int) -> pl.Series:
    """Return a column of nulls."""
    return pl.Series([None], dtype=pl.String).new_from_index(0, count)


def _python(
    trace: Trace, moments: HostMoments, forward: HostMoments
) -> tuple[pl.Series, pl.Series]:
    """Name module and call site; autograd's thread runs no Python, there those of the forward."""
    if not trace.has("python_calls"):
        return no_texts(len(moments.times)), no_texts(len(moments.times))
    calls = PythonCalls(trace)
    module, own, _ = calls.at(moments.times, moments.threads)
    forward_module, forward_own, _ = calls.at(forward.times, forward.threads)
    names = trace.table("python_calls", ["name"])["name"]
    modules = text_of(names, optional(first_known([module, forward_module])))
    sites = text_of(names, optional(first_known([own, forward_own])))
    return modules.str.strip_prefix(MODULE_PREFIX), sites


def _allocating_calls(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    """Find the API call that each event was recorded in; its columns are null when unknown.

    Events have the correlation id of their call. Those of older versions of nsys have none: then it
    is the allocating call that was open in the process at the time.
    """
    columns = ["start_ns", "end_ns", "thread", "process", "correlation", "name"]
    calls = trace.table("api_calls", columns).with_columns(pl.col("name").cast(pl.String))
    calls = calls.with_row_index("call")
    key = ["process", "correlation"]
    numbered = calls.filter(pl.col("correlation") > 0).unique(key, keep="first")
    named = events.join(numbered, on=key, how="left", maintain_order="left")["call"]
    allocating = calls.filter(pl.col("name").str.contains("(?i)alloc"))
    nested = NestedIntervals.of_table(allocating.with_columns(pl.col("end_ns") + 1), "process")
    places = nested.innermost(events["time_ns"].fill_null(NONE).to_numpy(), events["process"])
    timed = allocating["call"].gather(optional(nested.rows_at(places)))
    return calls.select(pl.all().gather(named.zip_with(named.is_not_null(), timed)))


# Call chains --------------------------------------------------------------------------------------


NAMED = ("op", "outer_op", "site")
"""Columns that call chains have."""
_OPERATOR = re.compile(r"\bat::_ops::(\w+)::(?:call|redispatch)\b")
_BACKWARD = re.compile(r"\btorch::autograd::generated::(\w+)::apply\b")


def from_chains(trace: Trace, source: str, chains: pl.Series) -> pl.DataFrame:
    """Name the operators and the line of code of each call chain of a table: columns `NAMED`."""
    wanted = pl.DataFrame({"callchain": chains.cast(pl.Int64)})
    frames = _frames(trace, source, wanted)
    known = _operators(frames).join(_sites(frames), on="callchain", how="full", coalesce=True)
    return wanted.join(known, on="callchain", how="left", maintain_order="left").select(NAMED)


def python_frames(trace: Trace, source: str, chains: pl.Series) -> list[list[str]]:
    """List the Python frames of a few call chains, innermost first."""
    wanted = pl.DataFrame({"callchain": chains.cast(pl.Int64)})
    stacks: dict[int, list[str]] = {}
    for chain, text in _python_frames(_frames(trace, source, wanted)).iter_rows():
        stacks.setdefault(chain, []).append(text)
    return [stacks.get(chain, []) for chain in chains.to_list()]


def _frames(trace: Trace, source: str, wanted: pl.DataFrame) -> pl.DataFrame:
    table = trace.table("callchains", ["source", "callchain", "depth", "symbol", "file", "line"])
    return (
        table.filter(pl.col("source").cast(pl.String) == source)
        .join(wanted.drop_nulls().unique(), on="callchain", how="semi")
        .sort("callchain", "depth")
    )


def _operators(frames: pl.DataFrame) -> pl.DataFrame:
    """Name the outermost operator, and the innermost that does more than allocate."""
    names: list[str | None] = []
    for symbol in names_of(frames["symbol"]):
        forward, backward = _OPERATOR.search(symbol), _BACKWARD.search(symbol)
        names.append(f"aten::{forward[1]}" if forward else backward[1] if backward else None)
    codes = frames["symbol"].to_physical()
    operator = pl.Series("operator", names, dtype=pl.String)
    working = pl.Series(
        [bool(n and not _PLAIN_ALLOCATION.match(n)) for n in names], dtype=pl.Boolean
    )
    named = frames.select("callchain", operator.gather(codes), working=working.gather(codes))
    name = pl.col("operator")
    return (
        named.drop_nulls("operator")
        .group_by("callchain")
        .agg(
            pl.coalesce(name.filter("working").first(), name.first()).alias("op"),
            name.last().alias("outer_op"),
        )
    )


def _sites(frames: pl.DataFrame) -> pl.DataFrame:
    """Name the innermost Python frame of the user's code, else the innermost at all."""
    python = _python_frames(frames)
    distinct = python.select("text").unique()
    own = [is_own_code(text) for text in distinct["text"]]
    distinct = distinct.with_columns(pl.Series("own", own, dtype=pl.Boolean))
    text = pl.col("text")
    return (
        python.join(distinct, on="text", how="left", maintain_order="left")
        .group_by("callchain")
        .agg(pl.coalesce(text.filter("own").first(), text.first()).alias("site"))
    )


def _python_frames(frames: pl.DataFrame) -> pl.DataFrame:
    """Keep the Python frames, in order, each with its `text` as torch.profiler writes it."""
    is_python = pl.Series([f.endswith(".py") for f in names_of(frames["file"])], dtype=pl.Boolean)
    python = is_python.gather(frames["file"].to_physical()).fill_null(value=False)
    line, symbol = pl.col("line").fill_null(0), pl.col("symbol").cast(pl.String).fill_null("?")
    text = pl.format("{}({}): {}", pl.col("file").cast(pl.String), line, symbol)
    return frames.filter(python).select("callchain", text.alias("text"))
