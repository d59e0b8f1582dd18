"""The stacks of a capture: where each host thread was at which time.

Whatever recorded them: a sampler, the profiler's backtraces of calls, or PyTorch's `with_stack`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.attribution.nested_intervals import (
    NONE,
    NestedIntervals,
    joint_keys,
    lookup,
    optional,
)
from gpusight.analysis.attribution.work_causes import main_threads
from gpusight.analysis.capture_info import CHAIN_SOURCES
from gpusight.analysis.hotspots.stack_tree import (
    FRAME_SCHEMA,
    StackElements,
    StackTree,
    merge_stacks,
    native_frames,
    python_frames,
    whose_code,
    without_interpreter,
)
from gpusight.analysis.ledger.idle_contributors import families

if TYPE_CHECKING:
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace


_MIN_REACH_NS = 50_000_000
_REACH_PERIODS = 10
"""A sample can stand for time this far away: so many usual intervals between two."""
_CHAIN_COLUMNS = ["source", "callchain", "depth", "symbol", "module", "unresolved", "file", "line"]
_NO_THREAD = -(1 << 62)
_SIGHTINGS = {
    "process": pl.Int64(),
    "thread": pl.Int64(),
    "start_ns": pl.Int64(),
    "end_ns": pl.Int64(),
    "element": pl.Int64(),
    "weight_ns": pl.Int64(),
    "late_ns": pl.Int64(),
}
"""Where a thread was: at a time, or from a start to an end (then `weight_ns` is null)."""


class SpreadTime(NamedTuple):
    """Stretches of host time cut into pieces of one stack; a stretch may be covered in part."""

    stretch: Ints
    """Which stretch."""
    node: Ints
    """Its stack; `NONE` for time without one."""
    ns: Ints
    near: Ints
    """1 where the sample was taken outside of the stretch, else 0."""


@dataclass(frozen=True)
class HostStacks:
    """Where host threads were; the stacks are nodes of one tree."""

    tree: StackTree
    sources: tuple[str, ...]
    """Keys of `STACK_SOURCES` of what is used."""
    frame: pl.DataFrame
    """`process`, `thread`, `start_ns`, `end_ns`, `node`, `weight_ns`, `late_ns`: by thread and
    start; those of a thread do not overlap."""
    call_nodes: dict[str, Ints]
    """The stack of each row of `api_calls`, where backtraces of them were recorded; of each row
    of `python_calls`; of each row of `memory_events`."""

    @property
    def is_sampled(self) -> bool:
        """Whether samples say where threads were, rather than each call."""
        return self.frame["weight_ns"].null_count() < self.frame.height

    @property
    def counts_samples(self) -> bool:
        """Whether the number of samples is known: files of sums have only their time."""
        return self.is_sampled and not {"folded", "speedscope"} & set(self.sources)

    @property
    def has_lines(self) -> bool:
        """Whether it is known which lines of Python ran."""
        python = pl.col("line").is_not_null() & (pl.col("kind") == "python")
        return bool(self.tree.frames.select(python.any()).item())

    @property
    def has_def_lines(self) -> bool:
        """Whether lines are those of each `def`: calls of Python know no other."""
        return "python_calls" in self.call_nodes

    @cached_property
    def _arrays(self) -> dict[str, Ints]:
        names = ("thread", "start_ns", "end_ns", "node", "late_ns")
        return {name: self.frame[name].to_numpy() for name in names}

    @cached_property
    def known_threads(self) -> Ints:
        """The keys of the threads that stacks were seen of, rising."""
        return np.unique(self._arrays["thread"])

    @cached_property
    def _cells(self) -> tuple[Ints, Ints]:
        """The time that each sighting stands for: to the middle between two, within reach."""
        of = self._arrays
        thread, start, end, late = (of[n] for n in ("thread", "start_ns", "end_ns", "late_ns"))
        reach = self._reach
        same = thread[1:] == thread[:-1]
        middle = end[:-1] + (start[1:] - end[:-1]) // 2
        # A sample that came late stands for the time since it was due.
        middle = np.maximum(end[:-1], np.minimum(middle, start[1:] - late[1:]))
        first, last = start - np.maximum(reach, late), end + reach
        first[1:] = np.where(same, np.maximum(first[1:], middle), first[1:])
        last[:-1] = np.where(same, np.minimum(last[:-1], middle), last[:-1])
        return first, last

    @cached_property
    def _reach(self) -> Ints:
        """How far from each sighting another time may be that it stands for."""
        if not self.is_sampled:
            backtraces = set(self.sources) & set(CHAIN_SOURCES.values())
            return np.full(self.frame.height, _MIN_REACH_NS if backtraces else 0)
        gaps = self.frame.select(
            pl.col("start_ns").diff().over("thread").median().over("thread").fill_null(0)
        ).to_series()
        reach: Ints = (gaps * _REACH_PERIODS).cast(pl.Int64).to_numpy()
        return np.maximum(_MIN_REACH_NS, reach)

    def threads_for(self, trace: Trace, processes: Ints, threads: Ints) -> Ints:
        """Return whose stacks to use: a thread's own, else those of its process's main thread.

        Threads of libraries, such as autograd's, run no Python: the main thread waits for them.
        """
        known = set(self.known_threads.tolist())
        main = main_threads(trace)
        counts = self.frame.group_by("process", "thread").len().sort("len", "thread")
        busiest = dict(counts.select("process", "thread").iter_rows())
        chosen: dict[tuple[int, int], int] = {}
        for key in set(zip(processes.tolist(), threads.tolist(), strict=True)):
            process, thread = key
            other = main.get(process, _NO_THREAD)
            stand_in = other if other in known else busiest.get(process, _NO_THREAD)
            chosen[key] = thread if thread in known else stand_in
        pairs = zip(processes.tolist(), threads.tolist(), strict=True)
        return np.array([chosen[pair] for pair in pairs], np.int64)

    def spread(self, threads: Ints, starts: Ints, ends: Ints) -> SpreadTime:
        """Divide stretches of time of threads among the stacks seen in them.

        Samples within a stretch share it; else the nearest one has it, unless that is far away.
        """
        of, (first_ns, last_ns), count = self._arrays, self._cells, len(starts)
        if not self.frame.height:
            none = np.full(count, NONE)
            return SpreadTime(np.arange(count), none, ends - starts, np.zeros(count, np.int64))
        reached = np.maximum(of["end_ns"], of["start_ns"] + 1)
        codes, wanted = self._codes(of["thread"]), self._codes(threads)
        keys, queries = joint_keys(
            np.concatenate((codes, codes)),
            np.concatenate((of["start_ns"], reached)),
            np.concatenate((wanted, wanted)),
            np.concatenate((starts, ends)),
        )
        begun, done = np.split(keys, 2)
        start_key, end_key = np.split(queries, 2)
        low = np.searchsorted(done, start_key, side="right")
        high = np.maximum(np.searchsorted(begun, end_key, side="left"), low)
        inside = np.where(wanted >= 0, high - low, 0)
        at = np.repeat(np.arange(count), inside)
        number = np.arange(len(at)) - np.repeat(np.cumsum(inside) - inside, inside)
        seen = low[at] + number
        reach = self._reach[seen]
        begin = np.where(number == 0, of["start_ns"][seen] - reach, first_ns[seen])
        stop = np.where(number == inside[at] - 1, of["end_ns"][seen] + reach, last_ns[seen])
        ns = np.maximum(np.minimum(stop, ends[at]) - np.maximum(begin, starts[at]), 0)
        # Nothing was seen inside: the sighting nearest to the middle.
        empty = np.flatnonzero((inside == 0) & (wanted >= 0))
        middle = starts[empty] + (ends[empty] - starts[empty]) // 2
        near = self._at(wanted[empty], middle, low[empty], codes)
        reached_by = near >= 0
        stretch = np.concatenate((at, empty[reached_by]))
        node = np.concatenate((of["node"][seen], of["node"][near[reached_by]]))
        own_ns = np.concatenate((ns, (ends - starts)[empty[reached_by]]))
        is_near = np.repeat([0, 1], [len(at), int(reached_by.sum())])
        missing = (ends - starts) - np.bincount(stretch, own_ns, count).astype(np.int64)
        lost = np.flatnonzero(missing > 0)
        return SpreadTime(
            np.concatenate((stretch, lost)),
            np.concatenate((node, np.full(len(lost), NONE))),
            np.concatenate((own_ns, missing[lost])),
            np.concatenate((is_near, np.zeros(len(lost), np.int64))),
        )

    def at(
        self, threads: Ints, times: Ints, earliest: Ints | None = None, latest: Ints | None = None
    ) -> Ints:
        """Return the stack (node) of each thread at a time, as the nearest sighting shows it.

        One between `earliest` and `latest` comes before one that is nearer.
        """
        if not self.frame.height:
            return np.full(len(times), NONE)
        of, wanted = self._arrays, self._codes(threads)
        codes = self._codes(of["thread"])
        keys, queries = joint_keys(codes, of["start_ns"], wanted, times)
        after = np.searchsorted(keys, queries, side="right")
        nearest = self._at(wanted, times, after, codes)
        if earliest is not None and latest is not None:
            nearest = self._within(nearest, after, codes, wanted, times, (earliest, latest))
        return lookup(of["node"], nearest)

    def _within(
        self,
        nearest: Ints,
        after: Ints,
        codes: Ints,
        wanted: Ints,
        times: Ints,
        bounds: tuple[Ints, Ints],
    ) -> Ints:
        """Choose the nearer one of the sightings before and after a time that is within bounds."""
        of = self._arrays
        best = np.full(len(times), np.iinfo(np.int64).max)
        chosen = nearest
        for candidate in (after - 1, after):
            place = np.clip(candidate, 0, len(codes) - 1)
            fits = (candidate == place) & (codes[place] == wanted)
            fits &= (of["end_ns"][place] >= bounds[0]) & (of["start_ns"][place] <= bounds[1])
            away = np.maximum(of["start_ns"][place] - times, times - of["end_ns"][place])
            better = fits & (away < best)
            chosen, best = np.where(better, place, chosen), np.where(better, away, best)
        return chosen

    def _at(self, wanted: Ints, times: Ints, after: Ints, codes: Ints) -> Ints:
        """Return the sighting whose cell a time lies in: the one before `after`, or that one."""
        first_ns, last_ns = self._cells
        sighting = np.full(len(times), NONE)
        for candidate in (after - 1, after):
            place = np.clip(candidate, 0, len(codes) - 1)
            fits = (candidate == place) & (codes[place] == wanted)
            fits &= (first_ns[place] <= times) & (times <= last_ns[place])
            sighting = np.where((sighting < 0) & fits, place, sighting)
        return sighting

    def _codes(self, threads: Ints) -> Ints:
        known = self.known_threads
        codes = np.minimum(np.searchsorted(known, threads), len(known) - 1)
        return np.where(known[codes] == threads, codes, NONE)


# From the tables of a trace -----------------------------------------------------------------------


def host_stacks(trace: Trace) -> HostStacks | None:
    """Return where host threads were, by the best of what was recorded; None without stacks.

    Samples of Python come first: they have the line that runs. PyTorch's stacks have the line of
    the function, native ones often no line at all.
    """
    parts = [part for part in _recorded_stacks(trace) if len(part.elements.frame)]
    if not parts:
        return None
    native = not (trace.has("stack_samples") or trace.has("python_calls"))
    tree, nodes = merge_stacks([part.elements for part in parts])
    timed: list[pl.DataFrame] = []
    call_nodes: dict[str, Ints] = {}
    sources: list[str] = []
    for part, own in zip(parts, nodes, strict=True):
        seen = part.sightings.with_columns(
            pl.Series("node", lookup(own, part.sightings["element"].fill_null(NONE).to_numpy()))
        )
        if part.rows is not None:
            call_nodes[part.table] = lookup(own, part.rows)
        if part.table == "memory_events" or not seen.height:
            continue
        sources += part.sources
        if native or part.table not in CHAIN_SOURCES:
            timed.append(seen.drop("element"))
    empty = pl.DataFrame(schema={**_SIGHTINGS, "node": pl.Int64()}).drop("element")
    frame = _disjoint(pl.concat([empty, *timed], how="diagonal"))
    return HostStacks(tree, tuple(dict.fromkeys(sources)), frame, call_nodes)


def range_stacks(trace: Trace) -> HostStacks | None:
    """Return which NVTX ranges and annotations were open, in place of stacks; None without any."""
    columns = ["start_ns", "end_ns", "thread", "process", "name", "depth", "parent", "kind"]
    ranges = trace.table("ranges", columns).with_row_index("row")
    pushed = pl.col("kind").cast(pl.String) == "push_pop"
    if ranges.filter(pushed).is_empty():
        return None
    texts = families(ranges["name"].cast(pl.String))
    names = texts.unique(maintain_order=True)
    frames = pl.DataFrame(
        {"function": names, "is_library": pl.Series([False]).new_from_index(0, len(names))}
    )
    frames = pl.concat([pl.DataFrame(schema=FRAME_SCHEMA), frames], how="diagonal")
    number = dict(zip(names, range(len(names)), strict=True))
    code = np.array([number[text] for text in texts], np.int64)
    parent = ranges["parent"].cast(pl.Int64).fill_null(NONE).to_numpy()
    level = ranges["depth"].cast(pl.Int64).fill_null(0).to_numpy()
    level = np.where(parent >= 0, level, 0)
    tree, (nodes,) = merge_stacks([StackElements(frames, code, parent, level)])
    own = ranges.filter(pushed)
    seen = _innermost(own, nodes[own["row"].to_numpy()])
    frame = _disjoint(seen.rename({"element": "node"}))
    return HostStacks(tree, (), frame, {})


def _recorded_stacks(trace: Trace) -> list[_Part]:
    """Read the kinds of stacks that are used, and the backtraces of calls next to them."""
    chains = trace.has("callchains")
    parts = []
    if trace.has("stack_samples"):
        parts.append(_sampled(trace))
    elif trace.has("python_calls"):
        parts.append(_called(trace))
    elif chains and trace.has("cpu_samples", "callchain"):
        parts.append(_chains(trace, "cpu_samples"))
    elif trace.has("cpu_ops", "stack"):
        parts.append(_operators(trace))
    with_chain = (*CHAIN_SOURCES, "memory_events")
    return parts + [_chains(trace, t) for t in with_chain if chains and trace.has(t, "callchain")]


class _Part(NamedTuple):
    """One kind of stacks."""

    table: str
    sources: tuple[str, ...]
    elements: StackElements
    sightings: pl.DataFrame
    """Columns of `_SIGHTINGS`."""
    rows: Ints | None = None
    """The element of each row of the table."""


def _sampled(trace: Trace) -> _Part:
    """Take what samplers recorded."""
    samples = trace.table("stack_samples")
    frames = trace.table("stack_frames").with_columns(
        pl.col("file", "function", "module", "kind").cast(pl.String)
    )
    elements, of_stack = StackElements.of_frames(whose_code(frames))
    own = samples.join(of_stack, on="stack", how="left", maintain_order="left")
    gap = pl.col("time_ns").diff().over("process", "thread").median().over("process", "thread")
    sightings = own.select(
        pl.col("process").fill_null(_NO_THREAD),
        pl.col("thread").fill_null(_NO_THREAD),
        pl.col("time_ns").alias("start_ns"),
        pl.col("time_ns").alias("end_ns"),
        "element",
        pl.col("weight_ns").fill_null(gap).fill_null(0).cast(pl.Int64),
        pl.col("late_ns").fill_null(0),
    )
    return _Part("stack_samples", tuple(names_of(samples["source"])), elements, sightings)


def _called(trace: Trace) -> _Part:
    """Take the Python calls of PyTorch's profiler: each is known from start to end."""
    elements = StackElements.of_python_calls(trace)
    calls = trace.table("python_calls", ["start_ns", "end_ns", "thread", "process"])
    rows = np.arange(calls.height)
    return _Part("python_calls", ("torch-stack",), elements, _innermost(calls, rows), rows)


def _operators(trace: Trace) -> _Part:
    """Take the stacks of operators, as older traces have them."""
    columns = ["start_ns", "end_ns", "thread", "process", "stack"]
    ops = trace.table("cpu_ops", columns).filter(pl.col("stack").is_not_null())
    texts = names_of(ops["stack"])
    listed = [[f.strip() for f in text.split(";") if f.strip()] for text in texts]
    flat = [frame for frames in listed for frame in frames]
    stack = np.repeat(np.arange(len(listed)), [len(frames) for frames in listed])
    depth = np.concatenate([np.arange(len(frames)) for frames in listed] or [np.arange(0)])
    rows = python_frames(flat).with_columns(stack=pl.Series(stack), depth=pl.Series(depth))
    elements, of_stack = StackElements.of_frames(rows)
    number = ops.select(pl.col("stack").to_physical().cast(pl.Int64))
    element = number.join(of_stack, on="stack", how="left", maintain_order="left")["element"]
    seen = _innermost(ops, element.fill_null(NONE).to_numpy())
    return _Part("cpu_ops", ("torch-stack",), elements, seen)


def _chains(trace: Trace, table: str) -> _Part:
    """Take native call chains of samples, or of calls from their start to their end."""
    chains = trace.table("callchains", _CHAIN_COLUMNS)
    chains = chains.filter(pl.col("source").cast(pl.String) == table)
    frames = native_frames(chains).with_columns(
        chains["callchain"].alias("stack"), chains["depth"].cast(pl.Int64)
    )
    if table == "memory_events":
        frames = without_interpreter(frames)
    elements, of_stack = StackElements.of_frames(frames)
    if table in {"cpu_samples", "memory_events"}:
        columns = [pl.col("time_ns").alias("start_ns"), pl.col("time_ns").alias("end_ns")]
        names = ["time_ns"]
    else:
        columns, names = [pl.col("start_ns"), pl.col("end_ns")], ["start_ns", "end_ns"]
    events = trace.table(table, [*names, "thread", "process", "callchain"])
    known = events.join(
        of_stack, left_on="callchain", right_on="stack", how="left", maintain_order="left"
    )
    rows = known["element"].fill_null(NONE).to_numpy()
    seen = known.filter(pl.col("element").is_not_null()).select(
        *columns, "thread", "process", "element"
    )
    if table == "cpu_samples":
        gap = pl.col("start_ns").diff().over("thread")
        usual = pl.min_horizontal(gap.median().over("thread"), pl.lit(_MIN_REACH_NS))
        sightings = seen.select(
            "process",
            "thread",
            "start_ns",
            "end_ns",
            "element",
            usual.fill_null(0).cast(pl.Int64).alias("weight_ns"),
            pl.lit(0, pl.Int64).alias("late_ns"),
        )
        return _Part(table, ("nsys-cpu",), elements, sightings, None)
    source = (CHAIN_SOURCES[table],) if table in CHAIN_SOURCES else ()
    sightings = _innermost(seen, seen["element"].to_numpy())
    return _Part(table, source, elements, sightings, rows)


def _innermost(events: pl.DataFrame, elements: Ints) -> pl.DataFrame:
    """Cut the time of each thread where the innermost event changes."""
    threads = events["thread"].fill_null(_NO_THREAD)
    start, end = (events[c].to_numpy() for c in ("start_ns", "end_ns"))
    nested = NestedIntervals.of(start, end, threads)
    edges = (
        pl.DataFrame({"thread": pl.concat([threads, threads]), "at": np.concatenate((start, end))})
        .unique()
        .sort("thread", "at")
        .with_columns(pl.col("at").shift(-1).over("thread").alias("until"))
        .filter(pl.col("until").is_not_null())
    )
    row = nested.rows_at(nested.innermost(edges["at"].to_numpy(), edges["thread"]))
    seen = edges.with_columns(pl.Series("row", row)).filter(pl.col("row") >= 0)
    at = seen["row"]
    return seen.select(
        events["process"].gather(at).fill_null(_NO_THREAD).cast(pl.Int64).alias("process"),
        "thread",
        pl.col("at").alias("start_ns"),
        pl.col("until").alias("end_ns"),
        optional(elements[at.to_numpy()]).alias("element"),
        pl.lit(None, pl.Int64).alias("weight_ns"),
        pl.lit(0, pl.Int64).alias("late_ns"),
    )


def _disjoint(frame: pl.DataFrame) -> pl.DataFrame:
    """Order by thread and start; what began before another one ended is cut there.

    Samples inside a call whose stack is known add nothing.
    """
    frame = frame.with_columns(
        pl.col("process", "thread").fill_null(_NO_THREAD), pl.col("late_ns").fill_null(0)
    ).sort("thread", "start_ns", "end_ns", descending=[False, False, True], maintain_order=True)
    reached = pl.col("end_ns").cum_max().shift(1).over("thread")
    covered = pl.col("weight_ns").is_not_null() & (reached > pl.col("start_ns"))
    frame = frame.filter(~covered.fill_null(value=False))
    following = pl.col("start_ns").shift(-1).over("thread")
    return frame.with_columns(pl.min_horizontal("end_ns", following.fill_null(1 << 62)))
