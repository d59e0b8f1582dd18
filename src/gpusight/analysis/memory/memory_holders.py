"""Who allocated each block: operator, module, line of code and range."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.attribution.call_sites import (
    MODULE_PREFIX,
    PythonCalls,
    first_known,
    is_own_code,
    stack_sites,
    text_of,
)
from gpusight.analysis.attribution.framework_operators import FrameworkOperators
from gpusight.analysis.attribution.nested_intervals import NONE, NestedIntervals, optional
from gpusight.analysis.attribution.work_causes import main_threads
from gpusight.analysis.steps.step_list import PROFILER_STEP

if TYPE_CHECKING:
    from gpusight.analysis.attribution.nested_intervals import Mask
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


WHO = ("op", "outer_op", "module", "site", "range")
"""What is said of a block, each null where the capture does not tell."""
PLAIN_ALLOCATION = re.compile(
    r"^aten::((new_)?empty(_\w+)?|resize_\w*|_empty_affine_quantized|set_\w*)$"
)
"""Operators that only take memory on behalf of the one around them."""
_ENGINE = "autograd::engine::evaluate_function: "
_DEEPEST = 200
"""Frames of a stack that are shown."""


@dataclass(frozen=True)
class AllocationMoments:
    """When and where on the host memory was taken, one entry a block."""

    times: Ints
    threads: pl.Series
    processes: pl.Series
    """Null where they are not known."""


def from_framework(trace: Trace, moments: AllocationMoments) -> pl.DataFrame:
    """Name what was running when a framework's allocator was called: columns `WHO`."""
    operators = FrameworkOperators(trace)
    nested = operators.nested
    here = nested.innermost(moments.times, moments.threads)
    op = nested.rows_at(here)
    forward = operators.forward(op)
    module, site = _python(trace, moments, _forward_moments(operators, moments, forward))
    if trace.has("cpu_ops", "stack"):
        row = operators.with_stack(op)
        stacks = trace.table("cpu_ops", ["stack"])["stack"].gather(optional(row))
        site = site.zip_with(site.is_not_null(), stack_sites(stacks))
    inner, outer = _operators(trace, nested, here)
    return pl.DataFrame(
        {
            "op": inner,
            "outer_op": outer,
            "module": module,
            "site": site,
            "range": open_ranges(trace, moments),
        }
    )


def from_driver(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    """Name the CUDA call that took each block and the range around that call: columns `WHO`.

    `events` has time_ns, process and correlation, null for what was held before the capture.
    """
    calls = _allocating_calls(trace, events)
    moments = AllocationMoments(
        calls["start_ns"].fill_null(NONE).to_numpy(), calls["thread"], calls["process"]
    )
    return calls.select(
        pl.col("name").alias("op"),
        *(pl.lit(None, pl.String).alias(c) for c in ("outer_op", "module", "site")),
        open_ranges(trace, moments).alias("range"),
    )


def open_ranges(trace: Trace, moments: AllocationMoments) -> pl.Series:
    """Name the innermost range open on a block's thread, else on its process's main thread."""
    main = moments.processes.replace_strict(
        main_threads(trace), default=None, return_dtype=pl.Int64
    )
    own = ranges_of(trace, "thread", moments.times, moments.threads)
    return own.zip_with(own.is_not_null(), ranges_of(trace, "thread", moments.times, main))


def ranges_of(trace: Trace, by: str, times: Ints, keys: pl.Series) -> pl.Series:
    """Name the innermost range open at each time, where its column `by` has the key given.

    The steps that the profiler marks are passed over: they say when, not what.
    """
    if not trace.has("ranges"):
        return no_texts(len(times))
    table = trace.table("ranges", ["start_ns", "end_ns", by, "kind", "name"])
    table = table.filter(pl.col("kind").cast(pl.String) == "push_pop")
    nested = _nested(table, by)
    names = names_of(table["name"])
    wanted = _marked(nested, table["name"], [not n.startswith(PROFILER_STEP) for n in names])
    places = _outwards(nested, nested.innermost(times, keys), wanted)
    return text_of(table["name"], optional(nested.rows_at(places)))


def python_stacks(trace: Trace, moments: AllocationMoments) -> list[list[str]]:
    """List the Python calls open at each of a few moments, innermost first."""
    if not trace.has("python_calls"):
        return [[] for _ in moments.times]
    nested = PythonCalls(trace).nested
    names = trace.table("python_calls", ["name"])["name"]
    innermost = nested.innermost(moments.times, moments.threads).tolist()
    return [text_of(names, pl.Series(_outwards_of(nested, p))).to_list() for p in innermost]


def _outwards_of(nested: NestedIntervals, place: int) -> Ints:
    """List the rows at and around a place, from the inside out."""
    chain: list[int] = []
    while place != NONE and len(chain) < _DEEPEST:
        chain.append(place)
        place = int(nested.outer[place])
    return nested.rows_at(np.array(chain, dtype=np.int64))


def no_texts(count: int) -> pl.Series:
    """Make a column of nulls."""
    return pl.Series([None], dtype=pl.String).new_from_index(0, count)


def _operators(trace: Trace, nested: NestedIntervals, here: Ints) -> tuple[pl.Series, pl.Series]:
    """Name the innermost operator around places that does more than allocate, and the outermost."""
    names = trace.table("cpu_ops", ["name"])["name"]
    working = _marked(nested, names, [not PLAIN_ALLOCATION.match(n) for n in names_of(names)])
    inner = _outwards(nested, here, working)
    inner = np.where(inner >= 0, inner, here)
    outer = _outwards(nested, here, nested.outer == NONE)
    texts = (text_of(names, optional(nested.rows_at(places))) for places in (inner, outer))
    first, second = (text.str.strip_prefix(_ENGINE) for text in texts)
    return first, second


def _forward_moments(
    operators: FrameworkOperators, moments: AllocationMoments, forward: Ints
) -> AllocationMoments:
    """Say when the forward operators ran that operators of autograd serve."""
    rows = optional(forward)
    table = operators.table
    times = table["start_ns"].gather(rows).fill_null(NONE).to_numpy()
    return AllocationMoments(times, table["thread"].gather(rows), moments.processes)


def _python(
    trace: Trace, moments: AllocationMoments, forward: AllocationMoments
) -> tuple[pl.Series, pl.Series]:
    """Name module and call site; autograd's thread runs no Python, there those of the forward."""
    if not trace.has("python_calls"):
        return no_texts(len(moments.times)), no_texts(len(moments.times))
    calls = PythonCalls(trace)
    module, own, _ = calls.at(moments.times, moments.threads)
    forward_module, forward_own, _ = calls.at(forward.times, forward.threads)
    names = trace.table("python_calls", ["name"])["name"]
    found = (first_known([module, forward_module]), first_known([own, forward_own]))
    modules, sites = (text_of(names, optional(rows)) for rows in found)
    return modules.str.strip_prefix(MODULE_PREFIX), sites


def _allocating_calls(trace: Trace, events: pl.DataFrame) -> pl.DataFrame:
    """Find the call that each event was recorded in; its columns are null when unknown.

    Records name their call by number, but for older versions of nsys: then it is the call of the
    process, one that allocates, that was open at the time.
    """
    columns = ["start_ns", "end_ns", "thread", "process", "correlation", "name"]
    calls = trace.table("api_calls", columns).with_columns(pl.col("name").cast(pl.String))
    calls = calls.with_row_index("call")
    key = ["process", "correlation"]
    numbered = calls.filter(pl.col("correlation") > 0).unique(key, keep="first")
    named = events.join(numbered, on=key, how="left", maintain_order="left")["call"]
    allocating = calls.filter(pl.col("name").str.contains("(?i)alloc"))
    nested = _nested(allocating.with_columns(pl.col("end_ns") + 1), "process")
    places = nested.innermost(events["time_ns"].fill_null(NONE).to_numpy(), events["process"])
    timed = allocating["call"].gather(optional(nested.rows_at(places)))
    return calls.select(pl.all().gather(named.zip_with(named.is_not_null(), timed)))


def _nested(table: pl.DataFrame, by: str) -> NestedIntervals:
    return NestedIntervals.of(table["start_ns"].to_numpy(), table["end_ns"].to_numpy(), table[by])


def _marked(nested: NestedIntervals, names: pl.Series, flags: list[bool]) -> Mask:
    """Mark the places whose name is flagged."""
    by_name = np.array(flags, dtype=np.bool_)
    marked: Mask = by_name[names.to_physical().to_numpy()[nested.rows]]
    return marked


def _outwards(nested: NestedIntervals, places: Ints, marked: Mask) -> Ints:
    """Go from places to the nearest that is marked, itself or around it."""
    nearest = nested.nearest(marked)
    return np.where(places >= 0, nearest[places], NONE) if len(nearest) else places


NAMED = ("op", "outer_op", "site")
"""What call chains tell of who took memory."""
_OPERATOR = re.compile(r"\bat::_ops::(\w+)::(?:call|redispatch)\b")
_BACKWARD = re.compile(r"\btorch::autograd::generated::(\w+)::apply\b")


def from_chains(trace: Trace, source: str, chains: pl.Series) -> pl.DataFrame:
    """Name operators and the place in the code of each call chain of a table: columns `NAMED`."""
    wanted = pl.DataFrame({"callchain": chains.cast(pl.Int64)})
    frames = _frames(trace, source, wanted)
    known = _operators_of_stacks(frames).join(
        _sites(frames), on="callchain", how="full", coalesce=True
    )
    return wanted.join(known, on="callchain", how="left", maintain_order="left").select(NAMED)


def python_frames(trace: Trace, source: str, chains: pl.Series) -> list[list[str]]:
    """List the Python frames of a few call chains, innermost first."""
    frames = _python_of_stacks(
        _frames(trace, source, pl.DataFrame({"callchain": chains.cast(pl.Int64)}))
    )
    found: dict[int, list[str]] = {}
    for chain, text in frames.select("callchain", "text").iter_rows():
        found.setdefault(chain, []).append(text)
    return [found.get(chain, []) for chain in chains.to_list()]


def _frames(trace: Trace, source: str, wanted: pl.DataFrame) -> pl.DataFrame:
    table = trace.table("callchains", ["source", "callchain", "depth", "symbol", "file", "line"])
    mine = pl.col("source").cast(pl.String) == source
    return (
        table.filter(mine)
        .join(wanted.drop_nulls().unique(), on="callchain", how="semi")
        .sort("callchain", "depth")
    )


def _operators_of_stacks(frames: pl.DataFrame) -> pl.DataFrame:
    """Name the outermost operator, and the innermost that does more than take memory."""
    names = [_operator(symbol) for symbol in names_of(frames["symbol"])]
    working = [None if n is None or PLAIN_ALLOCATION.match(n) else n for n in names]
    first, last = pl.col("text").first(), pl.col("text").last()
    every = _renamed(frames, names).group_by("callchain")
    ends = every.agg(first.alias("any"), last.alias("outer"))
    inner = _renamed(frames, working).group_by("callchain").agg(first.alias("inner"))
    return ends.join(inner, on="callchain", how="left").select(
        "callchain", pl.coalesce("inner", "any").alias("op"), pl.col("outer").alias("outer_op")
    )


def _operator(symbol: str) -> str | None:
    found = _OPERATOR.search(symbol)
    if found:
        return f"aten::{found[1]}"
    backward = _BACKWARD.search(symbol)
    return backward[1] if backward else None


def _sites(frames: pl.DataFrame) -> pl.DataFrame:
    """Name the innermost Python frame of the program's own code, else the innermost at all."""
    python = _python_of_stacks(frames)
    distinct = python.select("text").unique()
    own = distinct.filter(pl.Series([is_own_code(t) for t in distinct["text"]], dtype=pl.Boolean))
    first = pl.col("text").first().alias("site")
    mine = python.join(own, on="text", how="semi", maintain_order="left")
    chosen = mine.group_by("callchain").agg(first)
    others = python.group_by("callchain").agg(first).join(chosen, on="callchain", how="anti")
    return pl.concat([chosen, others])


def _python_of_stacks(frames: pl.DataFrame) -> pl.DataFrame:
    """Keep the Python frames, in order, each with its `text` as torch.profiler writes it."""
    flags = pl.Series([f.endswith(".py") for f in names_of(frames["file"])], dtype=pl.Boolean)
    python = flags.gather(frames["file"].to_physical()).fill_null(value=False)
    line, symbol = pl.col("line").fill_null(0), pl.col("symbol").cast(pl.String).fill_null("?")
    text = pl.format("{}({}): {}", pl.col("file").cast(pl.String), line, symbol)
    return frames.filter(python).select("callchain", text.alias("text"))


def _renamed(frames: pl.DataFrame, texts: list[str | None]) -> pl.DataFrame:
    """Give each frame another text for its symbol; frames without one are left out."""
    spread = pl.Series(texts, dtype=pl.String).gather(frames["symbol"].to_physical())
    return frames.select("callchain", spread.alias("text")).drop_nulls()
