"""The API call, operator, range and line of Python behind each GPU activity."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.attribution.nested_intervals import (
    NONE,
    NestedIntervals,
    PythonCalls,
    first_known,
    lookup,
    optional,
    stack_sites,
    text_of,
)
from gpusight.analysis.launch_index import KeyIndex, tables_with_rows
from gpusight.analysis.selection import GPU_WORK, ResolvedSelection
from gpusight.naming.kernel_names import unique_short_names
from gpusight.trace.part_of_trace import part_of
from gpusight.trace.schema import TABLES

if TYPE_CHECKING:
    from collections.abc import Callable

    from gpusight.trace.intervals import Flags, Ints
    from gpusight.trace.trace import Trace


# Operators ----------------------------------------------------------------------------------------


WAYS = ("op id", "call", "time", "none")
"""How the operator of a GPU activity was found."""
_BY_ID, _BY_CALL, _BY_TIME, _NOT_FOUND = range(len(WAYS))
_SEQUENCE = ["process", "sequence"]
_FORWARD_THREAD = ["process", "forward_thread"]


class FrameworkOperators:
    """The framework operators of a trace, looked up by key, time or sequence number."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self.table = trace.table("cpu_ops", ["start_ns", "end_ns", "thread", "process", "op"])

    @cached_property
    def nested(self) -> NestedIntervals:
        """The operators as they enclose each other."""
        return NestedIntervals.of_table(self.table)

    def find(
        self, work: pl.DataFrame, api: pl.DataFrame, call: Ints, in_graph: Flags
    ) -> tuple[Ints, Ints]:
        """Return the operator's row for each GPU activity, -1 for none, and how it was found."""
        op = np.full(work.height, NONE, dtype=np.int64)
        found_by = np.full(work.height, _NOT_FOUND, dtype=np.int64)
        if not self.table.height:
            return op, found_by
        launch = api.select(
            pl.col("start_ns", "thread", "process", "correlation", "op").gather(optional(call))
        )
        own = work.select("process", "correlation", "op")
        ways: dict[int, Callable[[], Ints]] = {
            _BY_ID: lambda: np.where(in_graph, NONE, self._by_key(own, launch)),
            _BY_CALL: lambda: self._by_key(launch, launch),
            _BY_TIME: lambda: self._by_time(launch),
        }
        for way, find in ways.items():
            if (op < 0).any():
                rows = find()
                new = (op < 0) & (rows >= 0)
                op[new], found_by[new] = rows[new], way
        return op, found_by

    def forward(self, op: Ints) -> Ints:
        """Return the row of the forward operator that each operator is part of the backward of."""
        if not self._trace.has("cpu_ops", "forward_thread"):
            return np.full(len(op), NONE, dtype=np.int64)
        return lookup(self._forward_of, op)

    def with_stack(self, op: Ints) -> Ints:
        """Return the row of the innermost operator at or around each that has a Python stack."""
        if not self._trace.has("cpu_ops", "stack"):
            return np.full(len(op), NONE, dtype=np.int64)
        has_stack = self._trace.table("cpu_ops", ["stack"])["stack"].is_not_null().to_numpy()
        return lookup(self.nested.nearest_rows(has_stack), op)

    @cached_property
    def _keys(self) -> pl.Series:
        """The operators' keys; 0 is none."""
        keys = self.table["op"]
        return keys.set(keys <= 0, None)

    @cached_property
    def _index(self) -> KeyIndex:
        return KeyIndex(self.table["process"], self._keys)

    @cached_property
    def _repeated(self) -> Flags:
        """Which operators share their key with a later one; a search by key finds the first."""
        first = self._index.find(self.table["process"], self._keys)
        later = (first >= 0) & (first != np.arange(len(first)))
        repeated = np.zeros(len(first), dtype=np.bool_)
        repeated[first[later]] = True
        return repeated

    def _by_key(self, named: pl.DataFrame, launch: pl.DataFrame) -> Ints:
        """Look operators up by the key in `op`.

        Profilers write the correlation id where they know no operator, and a key may repeat:
        then the operator must be one that was open when the launch began.
        """
        rows = self._index.find(named["process"], named["op"])
        doubtful = (named["op"] == named["correlation"]).fill_null(value=False).to_numpy()
        doubtful |= self._repeated[rows]
        operator = self.table.select(
            pl.col("start_ns", "end_ns", "thread").gather(np.maximum(rows, 0))
        )
        launch_ns = launch["start_ns"]
        was_open = (operator["start_ns"] <= launch_ns) & (launch_ns <= operator["end_ns"])
        was_open &= operator["thread"] == launch["thread"]
        fits = was_open.fill_null(value=False).to_numpy()
        return np.where((rows >= 0) & (~doubtful | fits), rows, NONE)

    def _by_time(self, launch: pl.DataFrame) -> Ints:
        times = launch["start_ns"].fill_null(0).to_numpy()
        return self.nested.rows_at(self.nested.innermost(times, launch["thread"]))

    @property
    def _forward_of(self) -> Ints:
        """The forward operator behind every operator that runs inside a backward one."""
        found = self._trace.derive(
            "forward-operators-1", lambda: pl.DataFrame({"op": self._found_forward()})
        )
        return found["op"].to_numpy()

    def _found_forward(self) -> Ints:
        columns = ["process", "thread", "sequence", "forward_thread"]
        ops = self._trace.table("cpu_ops", columns).with_row_index("row")
        is_backward = (pl.col("forward_thread") > 0).fill_null(value=False)
        numbered = ops.filter(pl.col("sequence").is_not_null())
        forward = (
            numbered.filter(~is_backward)
            .group_by(*_SEQUENCE, "thread")
            .agg(pl.col("row").last().alias("forward"))
        )
        matched = _match_sequences(numbered.filter(is_backward).drop("thread"), forward)
        forward_of = np.full(ops.height, NONE, dtype=np.int64)
        forward_of[matched["row"].to_numpy()] = matched["forward"].to_numpy()
        return lookup(forward_of, self.nested.nearest_rows(forward_of >= 0))


def _match_sequences(backward: pl.DataFrame, forward: pl.DataFrame) -> pl.DataFrame:
    """Match backward operators (`row`) to forward ones (`forward`) by their sequence numbers.

    Autograd counts per thread and numbers threads in its own way. A sequence number that only one
    thread used identifies the thread behind such a number. With those known, the sequence
    numbers that several threads used become unambiguous.
    """
    unique = forward.filter(pl.len().over(_SEQUENCE) == 1).drop("forward")
    threads = (
        backward.join(unique, on=_SEQUENCE, nulls_equal=True)
        .group_by(*_FORWARD_THREAD, "thread")
        .len()
        .sort("len", "thread", descending=True)
        .unique(_FORWARD_THREAD, keep="first", maintain_order=True)
        .drop("len")
    )
    return backward.join(threads, on=_FORWARD_THREAD, nulls_equal=True).join(
        forward, on=[*_SEQUENCE, "thread"], nulls_equal=True
    )


# Causes of GPU activities -------------------------------------------------------------------------


_LINKS = ["start_ns", "process", "correlation", "op"]
_GRAPH_CALLS = frozenset({"cudaGraphLaunch", "cuGraphLaunch", "hipGraphLaunch"})
_CALLS = ["start_ns", "thread", "process", "correlation", "op"]


@dataclass(frozen=True)
class Attribution:
    """The causes of GPU activities: for each table of them a frame with a row for each row.

    Columns hold rows of other tables, null where there is none: `call` (in `api_calls`), `op` and
    `forward_op` (in `cpu_ops`), `range` and `forward_range` (in `ranges`), `module` and `call_site`
    (in `python_calls`), `stack_op` (the row of `cpu_ops` whose `stack` holds the call site, in
    traces without Python calls). `found` is how the operator was found, `in_graph` that the
    activity ran inside a CUDA graph, `from_forward` that module or call site are those of the
    forward operator.
    """

    frames: dict[str, pl.DataFrame]


@dataclass(frozen=True)
class HostMoments:
    """Times on threads of the host, one for each activity; the thread is null where not known."""

    times: Ints
    threads: pl.Series

    @classmethod
    def of(cls, table: pl.DataFrame, rows: Ints) -> HostMoments:
        """Take the starts of rows (-1 for none) of a table of host events."""
        at = optional(rows)
        return cls(table["start_ns"].gather(at).fill_null(0).to_numpy(), table["thread"].gather(at))

    def or_else(self, other: HostMoments) -> HostMoments:
        """Use `other` where nothing is known here."""
        known = self.threads.is_not_null()
        times = np.where(known.to_numpy(), self.times, other.times)
        return HostMoments(times, self.threads.zip_with(known, other.threads))


def attribute(trace: Trace) -> Attribution:
    """Find what caused each GPU activity."""
    tables = tables_with_rows(trace, GPU_WORK)
    causes = trace.derive("attribution-1", lambda: _attribute(trace, tables))
    frames, first = {}, 0
    for table in GPU_WORK:
        rows = trace.table(table, ["start_ns"]).height if table in tables else 0
        frames[table] = causes.slice(first, rows)
        first += rows
    return Attribution(frames)


def causes_of_rows(trace: Trace, rows: dict[str, pl.Series]) -> pl.DataFrame:
    """Return the causes of rows of tables of GPU activities, one table after the other.

    Columns are as in `Attribution`.
    """
    if any(len(of_table) > trace.row_count(table) / 2 for table, of_table in rows.items()):
        frames = attribute(trace).frames
        return pl.concat([frames[table][of_table] for table, of_table in rows.items()])
    first, places = 0, []
    for table, of_table in rows.items():
        places.append(of_table.cast(pl.Int64) + first)
        first += trace.row_count(table)
    return _attribute(trace, list(rows), pl.concat(places))


def causes_of_calls(trace: Trace, calls: pl.Series) -> pl.DataFrame:
    """Find the causes of API calls, given by their rows; columns as in `Attribution`."""
    api = trace.table("api_calls", _CALLS)
    null = pl.lit(None, pl.Int64)
    work = api[calls].select("process", null.alias("correlation"), null.alias("op"))
    in_graph = np.zeros(len(calls), dtype=np.bool_)
    return _causes(trace, work, api, calls.cast(pl.Int64).to_numpy(), in_graph)


def names_of_causes(trace: Trace, causes: pl.DataFrame) -> pl.DataFrame:
    """Return the names behind the rows of a frame of `Attribution`, as text."""

    def names(table: str, column: str) -> pl.Series:
        if not trace.has(table):
            return pl.Series([None], dtype=pl.String).new_from_index(0, causes.height)
        return text_of(trace.table(table, ["name"])["name"], causes[column])

    sites = names("python_calls", "call_site")
    if trace.has("cpu_ops", "stack"):
        stacks = trace.table("cpu_ops", ["stack"])["stack"].gather(causes["stack_op"])
        sites = sites.zip_with(sites.is_not_null(), stack_sites(stacks))
    return pl.DataFrame(
        {
            "call": names("api_calls", "call"),
            "op": names("cpu_ops", "op"),
            "forward_op": names("cpu_ops", "forward_op"),
            "range": names("ranges", "range"),
            "module": names("python_calls", "module"),
            "call_site": sites,
        }
    )


def main_threads(trace: Trace) -> dict[int, int]:
    """Return the main thread of each process: the one whose id is the process id."""
    processes = trace.table("processes", ["process", "pid"])
    threads = trace.table("threads", ["thread", "process", "tid"])
    main = threads.join(processes, on="process").filter(pl.col("tid") == pl.col("pid"))
    return dict(zip(main["process"], main["thread"], strict=True))


def _attribute(trace: Trace, tables: list[str], rows: pl.Series | None = None) -> pl.DataFrame:
    """Find the causes of all GPU activities, one table after the other, or of some rows."""
    work = _links(trace, tables)
    if rows is not None:
        work = work[rows]
    api = trace.table("api_calls", _CALLS)
    call = KeyIndex(api["process"], api["correlation"]).find(work["process"], work["correlation"])
    return _causes(trace, work, api, call, _in_graph(trace, work, call))


def _links(trace: Trace, tables: list[str]) -> pl.DataFrame:
    """Return the columns that link GPU activities to the host, one table after the other."""
    parts = []
    for table in tables:
        has_nodes = "graph_node" in TABLES[table].column_names
        frame = trace.table(table, [*_LINKS, "graph_node"] if has_nodes else _LINKS)
        node = pl.col("graph_node") if has_nodes else pl.lit(None, pl.Int64)
        whole_graph = pl.lit(table == "graph_launches").alias("whole_graph")
        parts.append(frame.select(*_LINKS, node.alias("graph_node"), whole_graph))
    schema = dict.fromkeys([*_LINKS, "graph_node"], pl.Int64()) | {"whole_graph": pl.Boolean()}
    return pl.concat([pl.DataFrame(schema=schema), *parts])


def _in_graph(trace: Trace, work: pl.DataFrame, call: Ints) -> Flags:
    """Mark the activities that ran as part of a CUDA graph."""
    nodes = work["graph_node"].is_not_null().to_numpy()
    if not trace.has("api_calls"):
        return nodes
    names = trace.table("api_calls", ["name"])["name"]
    codes = [code for code, name in enumerate(names_of(names)) if name in _GRAPH_CALLS]
    launches_graph = np.isin(names.to_physical().to_numpy(), codes)
    inside: Flags = launches_graph[call] & (call >= 0) & ~work["whole_graph"].to_numpy()
    return nodes | inside


def _causes(
    trace: Trace, work: pl.DataFrame, api: pl.DataFrame, call: Ints, in_graph: Flags
) -> pl.DataFrame:
    """Follow activities from their API call to operator, range, module and line."""
    operators = FrameworkOperators(trace)
    op, found_by = operators.find(work, api, call, in_graph)
    launch = HostMoments.of(api, call).or_else(HostMoments.of(operators.table, op))
    forward_op = operators.forward(op)
    forward = HostMoments.of(operators.table, forward_op)
    own = work["process"]
    process = own.zip_with(own.is_not_null(), api["process"].gather(optional(call)))
    range_, forward_range = _ranges(trace, launch, forward, process)
    module, site, from_forward = _python(trace, launch, forward)
    own_stack, forward_stack = operators.with_stack(op), operators.with_stack(forward_op)
    from_forward |= (site < 0) & (own_stack < 0) & (forward_stack >= 0)
    return pl.DataFrame(
        {
            "call": optional(call),
            "op": optional(op),
            "forward_op": optional(forward_op),
            "stack_op": optional(first_known([own_stack, forward_stack])),
            "range": optional(range_),
            "forward_range": optional(forward_range),
            "module": optional(module),
            "call_site": optional(site),
            "found": pl.Series(WAYS, dtype=pl.Enum(WAYS)).gather(found_by),
            "in_graph": in_graph,
            "from_forward": from_forward,
        }
    )


def _ranges(
    trace: Trace, launch: HostMoments, forward: HostMoments, process: pl.Series
) -> tuple[Ints, Ints]:
    """Find the innermost range around each launch, and around its forward operator.

    A launch on a thread without ranges belongs to the range open on the main thread; where the
    main thread is not known, to any open in the process.
    """
    if not trace.has("ranges"):
        nothing = np.full(len(launch.times), NONE, dtype=np.int64)
        return nothing, nothing
    # Of a few launches in a long capture, only the ranges around them are looked at.
    times = np.concatenate([m.times[m.threads.is_not_null().to_numpy()] for m in (launch, forward)])
    span = (int(times.min()), int(times.max()) + 1) if len(times) else (0, 0)
    near = part_of(trace, span)
    table = near.table("ranges", ["start_ns", "end_ns", "kind", "thread", "process"])
    table = table.with_row_index("row").filter(pl.col("kind") == "push_pop")
    rows = near.rows_in_whole("ranges")[table["row"].to_numpy()]
    by_thread = NestedIntervals.of_table(table)

    def around(nested: NestedIntervals, times: Ints, keys: pl.Series) -> Ints:
        return lookup(rows, nested.rows_at(nested.innermost(times, keys)))

    own = around(by_thread, launch.times, launch.threads)
    main = process.replace_strict(main_threads(trace), default=None, return_dtype=pl.Int64)
    launched = launch.threads.is_not_null()
    on_main = around(by_thread, launch.times, main.set(~launched, None))
    no_main = launched & main.is_null()
    if no_main.any():
        by_process = NestedIntervals.of_table(table, "process")
        in_process = around(by_process, launch.times, process.set(~no_main, None))
        on_main = first_known([on_main, in_process])
    return first_known([own, on_main]), around(by_thread, forward.times, forward.threads)


def _python(trace: Trace, launch: HostMoments, forward: HostMoments) -> tuple[Ints, Ints, Flags]:
    """Find module and call site, and whether one of them is the forward operator's.

    User code around the forward operator is more specific than the framework's around the launch.
    """
    if not trace.has("python_calls"):
        nothing = np.full(len(launch.times), NONE, dtype=np.int64)
        return nothing, nothing, np.zeros(len(nothing), dtype=np.bool_)
    calls = PythonCalls(trace)
    module, own, frame = calls.at(launch.times, launch.threads)
    forward_module, forward_own, forward_frame = calls.at(forward.times, forward.threads)
    site = first_known([own, forward_own, frame, forward_frame])
    from_forward = (own < 0) & (site >= 0) & ((forward_own >= 0) | (frame < 0))
    from_forward |= (module < 0) & (forward_module >= 0)
    return first_known([module, forward_module]), site, from_forward


# Selected activities ------------------------------------------------------------------------------


KINDS = ("kernel", "copy", "memset", "graph")
"""Kinds of GPU activities, in the order of the tables that hold them."""
_COLUMNS = ["start_ns", "end_ns", "device", "stream", "correlation"]


class WorkSelection(ResolvedSelection):
    """A selection that can also number the rows of GPU activities it selects."""

    def gpu_rows(self, table: str) -> pl.Series:
        """Return the numbers of the selected rows in the whole table, in order."""
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
    """GPU activities, one table after the other."""

    frame: pl.DataFrame
    """`kind`, `label` (a position in `labels`), times, where it ran, and the columns of causes."""
    labels: pl.Series
    """Kernel names, and the labels of copies and memsets."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What a reader of the causes must know."""
        count = int(self.frame["in_graph"].sum())
        if not count:
            return ()
        note = (
            f"{count:,} GPU activities ran inside CUDA graphs: only the launch of the whole "
            "graph is known, not which operator each kernel came from"
        )
        return (note,)

    def found(self) -> dict[str, int]:
        """Count the activities by how their operator was found."""
        counts = self.frame["found"].cast(pl.String).value_counts()
        return dict(zip(counts["found"], counts["count"], strict=True))


def short_labels(labels: pl.Series, codes: pl.Series) -> pl.Series:
    """Return the short names of these positions in `labels`; those of two kernels differ."""
    short = unique_short_names(text for text in labels if not text.startswith("["))
    return pl.Series([short.get(text, text) for text in labels], dtype=pl.String).gather(codes)


def selected_work(scope: WorkSelection) -> SelectedWork:
    """Collect the selected activities of all tables with their causes."""
    trace = scope.trace
    causes = attribute(trace)
    parts: list[pl.DataFrame] = []
    labels: list[str] = []
    for table in tables_with_rows(trace, GPU_WORK) or GPU_WORK[:1]:
        rows = scope.gpu_rows(table)
        kind = KINDS[GPU_WORK.index(table)]
        codes, own_labels = _labels(trace, table)
        parts.append(
            trace.table(table, _COLUMNS)[rows]
            .with_columns(
                pl.lit(kind, pl.Enum(KINDS)).alias("kind"),
                (codes.gather(rows) + len(labels)).alias("label"),
            )
            .hstack(causes.frames[table][rows].get_columns())
        )
        labels += own_labels
    return SelectedWork(pl.concat(parts), pl.Series(labels, dtype=pl.String))


def _labels(trace: Trace, table: str) -> tuple[pl.Series, list[str]]:
    """Return the position of each row's label, and the labels of the table."""
    if table in {"memsets", "graph_launches"}:
        rows = trace.table(table, ["start_ns"]).height
        label = "[memset]" if table == "memsets" else "[CUDA graph]"
        return pl.Series([0], dtype=pl.Int64).new_from_index(0, rows), [label]
    column = "name" if table == "kernels" else "kind"
    names = trace.table(table, [column])[column]
    labels = names_of(names)
    if table == "copies":
        labels = [f"[copy {name}]" for name in labels]
    return names.to_physical().cast(pl.Int64), labels
