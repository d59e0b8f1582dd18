"""The API call, operator, range and line of Python behind each GPU activity."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.attribution.call_sites import PythonCalls, first_known, stack_sites, text_of
from gpusight.analysis.attribution.framework_operators import WAYS, FrameworkOperators
from gpusight.analysis.attribution.nested_intervals import NONE, NestedIntervals, optional
from gpusight.analysis.launch_index import KeyIndex, tables_with_rows
from gpusight.analysis.selection import GPU_WORK, ResolvedSelection
from gpusight.naming.kernel_names import classify
from gpusight.trace.schema import TABLES

if TYPE_CHECKING:
    from gpusight.analysis.attribution.nested_intervals import Mask
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


_LINKS = ["start_ns", "process", "correlation", "op"]
_GRAPH_CALLS = frozenset({"cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch"})
_CALLS = ["start_ns", "thread", "process", "correlation", "op"]
_ROWS = ("call", "op", "forward_op", "stack_op", "range", "forward_range", "module", "call_site")


@dataclass(frozen=True)
class Attribution:
    """The causes of GPU work, for each table of it a frame with a row for each of its rows.

    Columns hold rows of other tables, null where there is none: `call` (in `api_calls`), `op` and
    `forward_op` (in `cpu_ops`), `range` and `forward_range` (in `ranges`), `module` and `call_site`
    (in `python_calls`), `stack_op` (the row of `cpu_ops` whose `stack` holds the call site, in
    traces without Python calls). `found` says how the operator was, `in_graph` that the work ran
    inside a CUDA graph, `from_forward` that module or call site are the forward operator's.
    """

    frames: dict[str, pl.DataFrame]

    def count(self, found: str) -> int:
        """Count the work whose operator was found in this way."""
        return sum(int((frame["found"] == found).sum()) for frame in self.frames.values())

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the causes must know."""
        in_graphs = sum(int(frame["in_graph"].sum()) for frame in self.frames.values())
        return (graph_note(in_graphs),) if in_graphs else ()


def graph_note(count: int) -> str:
    """Say what can be known of work inside CUDA graphs."""
    return (
        f"{count:,} pieces of GPU work ran inside CUDA graphs: only the launch of the whole graph"
        " is known, not which operator each kernel came from"
    )


def attribute(trace: Trace) -> Attribution:
    """Find what caused each piece of GPU work."""
    tables = tables_with_rows(trace, GPU_WORK)
    every = trace.derive("attribution-1", lambda: _attribute(trace, tables))
    frames, at = {}, 0
    for table in GPU_WORK:
        rows = trace.table(table, ["start_ns"]).height if table in tables else 0
        frames[table] = every.slice(at, rows)
        at += rows
    return Attribution(frames)


def causes_of_rows(trace: Trace, table: str, rows: pl.Series) -> pl.DataFrame:
    """Give the causes of some rows of a table of GPU work; columns as in `Attribution`."""
    if len(rows) > trace.row_count(table) / 2:
        return attribute(trace).frames[table][rows]
    return _attribute(trace, [table], rows)


def causes_of_calls(trace: Trace, calls: pl.Series) -> pl.DataFrame:
    """Find what API calls, given by their rows, were made for; columns as in `Attribution`."""
    api = trace.table("api_calls", _CALLS)
    nothing = pl.lit(None, pl.Int64)
    work = api[calls].select("process", nothing.alias("correlation"), nothing.alias("op"))
    outside = np.zeros(len(calls), dtype=np.bool_)
    return _causes(trace, work, api, calls.cast(pl.Int64).to_numpy(), outside)


def names_of_causes(trace: Trace, causes: pl.DataFrame) -> pl.DataFrame:
    """Give the names behind rows of an `Attribution`'s frame, as text."""
    sites = _names(trace, "python_calls", causes["call_site"])
    if trace.has("cpu_ops", "stack"):
        stacks = trace.table("cpu_ops", ["stack"])["stack"].gather(causes["stack_op"])
        sites = sites.zip_with(sites.is_not_null(), stack_sites(stacks))
    return pl.DataFrame(
        {
            "call": _names(trace, "api_calls", causes["call"]),
            "op": _names(trace, "cpu_ops", causes["op"]),
            "forward_op": _names(trace, "cpu_ops", causes["forward_op"]),
            "range": _names(trace, "ranges", causes["range"]),
            "module": _names(trace, "python_calls", causes["module"]),
            "call_site": sites,
        }
    )


def main_threads(trace: Trace) -> dict[int, int]:
    """Give the main thread of each process: the one that has the process's own number."""
    processes = trace.table("processes", ["process", "pid"])
    threads = trace.table("threads", ["thread", "process", "tid"])
    found = threads.join(processes, on="process").filter(pl.col("tid") == pl.col("pid"))
    return dict(zip(found["process"], found["thread"], strict=True))


def _names(trace: Trace, table: str, rows: pl.Series) -> pl.Series:
    if not trace.has(table):
        return pl.Series([None], dtype=pl.String).new_from_index(0, len(rows))
    return text_of(trace.table(table, ["name"])["name"], rows)


# Finding ------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Moments:
    """When and on which thread of the host something was asked for; no thread where not known."""

    times: Ints
    threads: pl.Series

    @classmethod
    def of(cls, table: pl.DataFrame, rows: Ints) -> _Moments:
        """Take the beginnings of rows of a table of host events."""
        at = optional(rows)
        return cls(table["start_ns"].gather(at).fill_null(0).to_numpy(), table["thread"].gather(at))

    def or_else(self, other: _Moments) -> _Moments:
        """Use others where nothing is known here."""
        known = self.threads.is_not_null()
        times = np.where(known.to_numpy(), self.times, other.times)
        return _Moments(times, self.threads.zip_with(known, other.threads))


def _attribute(trace: Trace, tables: list[str], rows: pl.Series | None = None) -> pl.DataFrame:
    """Find the causes of all work, one table after the other, or of some rows of it."""
    work = _work(trace, tables)
    if rows is not None:
        work = work[rows]
    api = trace.table("api_calls", _CALLS)
    call = KeyIndex(api["process"], api["correlation"]).find(work["process"], work["correlation"])
    return _causes(trace, work, api, call, _in_graph(trace, work, call))


def _causes(
    trace: Trace, work: pl.DataFrame, api: pl.DataFrame, call: Ints, in_graph: Mask
) -> pl.DataFrame:
    """Follow work from its call to operator, range, module and line."""
    launch = _Moments.of(api, call)
    operators = FrameworkOperators(trace)
    op, found = operators.find(work, api, call, in_graph)
    moment = launch.or_else(_Moments.of(operators.table, op))
    forward_op = operators.forward(op)
    forward = _Moments.of(operators.table, forward_op)
    range_, forward_range = _ranges(trace, moment, forward, _process_of(work, api, call))
    module, site, from_forward = _python(trace, moment, forward)
    own_stack, forward_stack = operators.with_stack(op), operators.with_stack(forward_op)
    from_forward |= (site < 0) & (own_stack < 0) & (forward_stack >= 0)
    stack_op = first_known([own_stack, forward_stack])
    rows = (call, op, forward_op, stack_op, range_, forward_range, module, site)
    return pl.DataFrame(
        {
            **{name: optional(found_rows) for name, found_rows in zip(_ROWS, rows, strict=True)},
            "found": pl.Series(WAYS, dtype=pl.Enum(WAYS)).gather(found),
            "in_graph": in_graph,
            "from_forward": from_forward,
        }
    )


def _work(trace: Trace, tables: list[str]) -> pl.DataFrame:
    """Give what links work to the host, one table after the other."""
    parts = []
    for table in tables:
        columns = TABLES[table].column_names
        node = pl.col("graph_node") if "graph_node" in columns else pl.lit(None, pl.Int64)
        wanted = [*_LINKS, *(["graph_node"] if "graph_node" in columns else [])]
        whole = pl.lit(table == "graph_launches").alias("whole_graph")
        parts.append(trace.table(table, wanted).select(*_LINKS, node.alias("graph_node"), whole))
    nothing = dict.fromkeys([*_LINKS, "graph_node"], pl.Int64()) | {"whole_graph": pl.Boolean()}
    return pl.concat([pl.DataFrame(schema=nothing), *parts])


def _in_graph(trace: Trace, work: pl.DataFrame, call: Ints) -> Mask:
    """Tell which work ran as part of a CUDA graph."""
    nodes = work["graph_node"].is_not_null().to_numpy()
    if not trace.has("api_calls"):
        return nodes
    names = trace.table("api_calls", ["name"])["name"]
    codes = [code for code, name in enumerate(names_of(names)) if name in _GRAPH_CALLS]
    graphs = np.isin(names.to_physical().to_numpy(), codes)
    inside: Mask = graphs[call] & (call >= 0) & ~work["whole_graph"].to_numpy()
    return nodes | inside


def _process_of(work: pl.DataFrame, api: pl.DataFrame, call: Ints) -> pl.Series:
    own = work["process"]
    return own.zip_with(own.is_not_null(), api["process"].gather(optional(call)))


def _ranges(
    trace: Trace, moment: _Moments, forward: _Moments, process: pl.Series
) -> tuple[Ints, Ints]:
    """Find the innermost range around each moment, and around the forward operator's."""
    if not trace.has("ranges"):
        nothing = np.full(len(moment.times), NONE, dtype=np.int64)
        return nothing, nothing
    table = trace.table("ranges", ["start_ns", "end_ns", "kind", "thread", "process"])
    table = table.with_row_index("row").filter(pl.col("kind") == "push_pop")
    on_thread = _laid_out(table, "thread")
    around = _around(table, on_thread, moment.times, moment.threads)
    main = process.replace_strict(main_threads(trace), default=None, return_dtype=pl.Int64)
    launched = moment.threads.is_not_null()
    beside = _around(table, on_thread, moment.times, main.set(~launched, None))
    lost = launched & main.is_null()
    if lost.any():
        anywhere = _laid_out(table, "process")
        there = _around(table, anywhere, moment.times, process.set(~lost, None))
        beside = first_known([beside, there])
    before = _around(table, on_thread, forward.times, forward.threads)
    return first_known([around, beside]), before


def _laid_out(table: pl.DataFrame, by: str) -> NestedIntervals:
    return NestedIntervals.of(table["start_ns"].to_numpy(), table["end_ns"].to_numpy(), table[by])


def _around(ranges: pl.DataFrame, nested: NestedIntervals, times: Ints, keys: pl.Series) -> Ints:
    """Find the row of the last range of the same key to have begun and be open still."""
    rows, found = ranges["row"].to_numpy(), nested.rows_at(nested.innermost(times, keys))
    return np.where(found >= 0, rows[found].astype(np.int64), NONE) if len(rows) else found


def _python(trace: Trace, moment: _Moments, forward: _Moments) -> tuple[Ints, Ints, Mask]:
    """Find module and call site, and whether one of them is the forward operator's.

    The user's code around the forward operator tells more than the framework's around the launch.
    """
    if not trace.has("python_calls"):
        nothing = np.full(len(moment.times), NONE, dtype=np.int64)
        return nothing, nothing, np.zeros(len(nothing), dtype=np.bool_)
    calls = PythonCalls(trace)
    module, own, frame = calls.at(moment.times, moment.threads)
    forward_module, forward_own, forward_frame = calls.at(forward.times, forward.threads)
    site = first_known([own, forward_own, frame, forward_frame])
    from_forward = (own < 0) & (site >= 0) & ((forward_own >= 0) | (frame < 0))
    from_forward |= (module < 0) & (forward_module >= 0)
    return first_known([module, forward_module]), site, from_forward


KINDS = ("kernel", "copy", "memset", "graph")
"""What a piece of work is, in the order of the tables that hold it."""
_NAMED_BY = {"kernels": "name", "copies": "kind"}
_WORDS = {"memset": "memset", "graph": "CUDA graph"}
_COLUMNS = ["start_ns", "end_ns", "device", "stream", "correlation"]


class WorkSelection(ResolvedSelection):
    """A selection that can also number the rows of GPU work it selects."""

    def gpu_rows(self, table: str) -> pl.Series:
        """Give the numbers of the selected rows in the whole table, in order."""
        device, within = self.selection.device, self.selection.within
        extra = ["start_ns"] if device is None else ["device"]
        if within is not None:
            extra += ["start_ns", "process", "correlation"]
        frame = self._load(table, [], extra, "row")
        if device is not None:
            frame = frame.filter(pl.col("device") == device)
        if within is not None:
            frame = self._launched_inside(frame)
        return frame["row"]


@dataclass(frozen=True)
class SelectedWork:
    """Pieces of GPU work, one table after the other."""

    frame: pl.DataFrame
    """`kind`, `label` (a position in `labels`), times, where it ran, and the columns of causes."""
    labels: pl.Series
    """Kernel names, and what copies and fills are called."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the causes must know."""
        count = int(self.frame["in_graph"].sum())
        return (graph_note(count),) if count else ()

    def found(self) -> dict[str, int]:
        """Count the work by how its operator was found."""
        counts = self.frame["found"].cast(pl.String).value_counts()
        return dict(zip(counts["found"], counts["count"], strict=True))


def short_labels(labels: pl.Series, codes: pl.Series) -> pl.Series:
    """Give readable labels for these positions in `labels`, looking at each one once."""
    distinct = codes.unique().sort()
    texts = [text if text.startswith("[") else classify(text).short for text in labels[distinct]]
    return pl.Series(texts, dtype=pl.String).gather(distinct.search_sorted(codes))


def selected_work(scope: WorkSelection) -> SelectedWork:
    """Collect the selected work of all tables with its causes."""
    causes = attribute(scope.trace)
    parts: list[pl.DataFrame] = []
    labels: list[str] = []
    for table in tables_with_rows(scope.trace, GPU_WORK) or GPU_WORK[:1]:
        part, known = _part(scope, table, causes)
        parts.append(part.with_columns(pl.col("label") + len(labels)))
        labels += known
    return SelectedWork(pl.concat(parts), pl.Series(labels, dtype=pl.String))


def _part(scope: WorkSelection, table: str, causes: Attribution) -> tuple[pl.DataFrame, list[str]]:
    rows = scope.gpu_rows(table)
    kind = KINDS[GPU_WORK.index(table)]
    frame = scope.trace.table(table, _COLUMNS)[rows]
    codes, labels = _labels(scope.trace, table, kind)
    return (
        frame.with_columns(
            pl.lit(kind, pl.Enum(KINDS)).alias("kind"), codes.gather(rows).alias("label")
        ).hstack(causes.frames[table][rows].get_columns()),
        labels,
    )


def _labels(trace: Trace, table: str, kind: str) -> tuple[pl.Series, list[str]]:
    """Number what each row is called, and list those names."""
    column = _NAMED_BY.get(table)
    if column is None:
        rows = trace.table(table, ["start_ns"]).height
        return pl.Series([0], dtype=pl.Int64).new_from_index(0, rows), [f"[{_WORDS[kind]}]"]
    names = trace.table(table, [column])[column]
    known = names_of(names)
    if kind == "copy":
        known = [f"[copy {name}]" for name in known]
    return names.to_physical().cast(pl.Int64), known
