"""Idle GPU time, GPU time and host time by line of code: `hotspots`.

Every idle nanosecond of the ledger has the stack of the thread that launched what came next.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import polars as pl

from gpusight.analysis.attribution.nested_intervals import NONE
from gpusight.analysis.attribution.work_causes import attribute
from gpusight.analysis.capture_info import DEF_LINES, STACK_SOURCES
from gpusight.analysis.gpu_schedule import OpKind
from gpusight.analysis.gpu_time import headline
from gpusight.analysis.hotspots.host_stacks import HostStacks, host_stacks, range_stacks
from gpusight.analysis.ledger.idle_contributors import IdleContributors
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.analysis.ledger.ledger_report import accounting
from gpusight.analysis.recording_advice import advice_for
from gpusight.analysis.selection import EVERYTHING, GPU_WORK, Selection
from gpusight.analysis.steps.step_window import step_window
from gpusight.analysis.steps.window_headline import NO_WINDOW, WindowHeadline
from gpusight.errors import UsageError
from gpusight.results import Field, Fmt, NotApplicable, TableResult
from gpusight.units import format_share

if TYPE_CHECKING:
    from collections.abc import Mapping

    from gpusight.analysis.gpu_schedule import GpuSchedule
    from gpusight.analysis.hotspots.flame_graph import FlameGraph
    from gpusight.analysis.ledger.accounting import Accounting
    from gpusight.analysis.ledger.device_ledger import DeviceAccount
    from gpusight.analysis.ledger.host_threads import HostTime
    from gpusight.trace.intervals import Flags, Ints
    from gpusight.trace.trace import Trace


COMMAND = "hotspots"
MEASURES = {
    "idle": ("GPU idle time", "ns"),
    "gpu": ("GPU time", "ns"),
    "host": ("Host time", "ns"),
    "launches": ("GPU activities launched", "count"),
    "memory": ("Device memory allocated", "bytes"),
}
"""What a flame graph can show: its title and unit."""
GROUPS = ("line", "function", "module", "package", "stack", "range")
"""What time can be summed by; `stack` and `range` are trees, the last one of NVTX ranges."""
NO_STACK, NO_RANGE = "(no stack)", "(no range)"
HOW_TO_RECORD = (
    "record them with: gpusight record -- python train.py, or torch.profiler's with_stack=True"
)
_MIN_NOTED_SHARE = 0.05
_SILENCE_NS = 500_000
"""A thread without calls for this long did something else than launch."""
_MIN_TREE_SHARE = 0.005
"""Branches of the tree below this part of every total are left out where few rows are shown."""

FIELDS = (
    Field("location", "Location", Fmt.NAME, "File, line and function"),
    Field("file", "File", Fmt.TEXT, "Source file; null for native code and built-ins", shown=False),
    Field("line", "Line", Fmt.ID, "Line in it; null where only the function counts", shown=False),
    Field("function", "Function", Fmt.NAME, "Function", shown=False),
    Field("module", "Module", Fmt.NAME, "Python module, or binary of native code", shown=False),
    Field("idle_ns", "GPU idle", Fmt.TIME, "Idle time of all GPUs that the line is behind"),
    Field("idle_share", "of idle", Fmt.SHARE, "Part of all idle time"),
    Field("gpu_ns", "GPU busy", Fmt.TIME, "Time of GPU work that the line launched"),
    Field("host_ns", "Host", Fmt.TIME, "Time of host threads in it, those that wait included"),
    Field("samples", "Samples", Fmt.COUNT, "Samples behind the host time; null where not sampled"),
    Field("launches", "Launches", Fmt.COUNT, "GPU activities that it launched", shown=False),
    Field("bytes", "Allocated", Fmt.BYTES, "Device memory that it allocated", shown=False),
)
TREE_FIELDS = (
    Field("location", "Frame", Fmt.NAME, "Function of the stack", indented_by="depth"),
    Field("depth", "Depth", Fmt.COUNT, "Frames around it", shown=False),
    *FIELDS[1:],
)
_OF_GPU = ("idle_ns", "idle_share", "gpu_ns")
"""Fields that tables of host time alone do not show."""
_VALUES = ("idle_ns", "gpu_ns", "host_ns", "samples", "launches", "bytes")
_KEYS = {
    "line": ["file", "line", "function", "module"],
    "function": ["file", "function", "module"],
    "module": ["module"],
    "package": ["package"],
}


@dataclass(frozen=True)
class TrackWork:
    """What belongs to one track of a timeline: a host thread, or a stream of a GPU."""

    keys: Mapping[str, int | None]
    """Columns of events and their values: `process` and `thread`, or those of a stream. Those
    without a value do not count."""

    @property
    def is_thread(self) -> bool:
        """Whether it is a host thread."""
        return "thread" in self.keys

    def of_gpu(self, trace: Trace, schedule: GpuSchedule) -> Flags:
        """Mark the GPU activities that the thread launched, or that ran in the stream."""
        ops = schedule.ops
        chosen = np.zeros(len(ops), np.bool_)
        if self.is_thread:
            called = np.flatnonzero(ops.call != NONE)
            wanted = tuple(self.keys[name] for name in ("process", "thread"))
            own = np.array([key == wanted for key in schedule.threads], np.bool_)
            chosen[called] = own[schedule.calls.thread[ops.call[called]]]
            return chosen
        known = {name: value for name, value in self.keys.items() if value is not None}
        same = [pl.col(name).eq_missing(pl.lit(value)) for name, value in known.items()]
        for kind in OpKind:
            rows = np.flatnonzero(ops.kind == kind)
            if len(rows):
                of_stream = trace.table(kind.table, list(known)).select(pl.all_horizontal(same))
                chosen[rows] = of_stream.to_series().to_numpy()[ops.row[rows]]
        return chosen

    def of_host(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Keep the rows of the thread; a stream has none."""
        same = pl.col("thread") == pl.lit(self.keys.get("thread"), pl.Int64)
        return rows.filter(same.fill_null(value=False))


@dataclass(frozen=True)
class StackTimes:
    """What was measured for each stack of a window: arrays by node of the tree of stacks.

    The last element of each is what has no stack.
    """

    stacks: HostStacks
    idle: pl.DataFrame
    """`node` (`NONE` for no stack), `cause`, `ns`, `near`: idle time piece by piece."""
    gpu_ns: Ints
    host_ns: Ints
    samples: Ints
    launches: Ints
    bytes: Ints
    """Device memory allocated."""

    def by_node(self, measure: str) -> Ints:
        """Return a measure by node: `idle`, `gpu`, `host`, `samples`, `launches`, `memory`."""
        if measure == "idle":
            return self.idle_ns()
        arrays = {"gpu": self.gpu_ns, "host": self.host_ns, "memory": self.bytes}
        arrays |= {"samples": self.samples, "launches": self.launches}
        return arrays[measure]

    def idle_ns(self, cause: IdleCause | None = None) -> Ints:
        """Return the idle time by node, of all causes or of one."""
        idle = self.idle if cause is None else self.idle.filter(pl.col("cause") == int(cause))
        return _sum_by_node(idle["node"].to_numpy(), idle["ns"].to_numpy(), len(self.stacks.tree))


@dataclass(frozen=True)
class Hotspots:
    """Time by line of code, of a window."""

    times: StackTimes
    by: str
    all_frames: bool
    window: str
    meta: Mapping[str, Any]
    notes: tuple[str, ...]
    is_sampled: bool = True
    of: str = "idle"
    """What a flame graph shows."""
    graph: FlameGraph | None = None
    """The flame graph, where it is compared with another capture's."""
    command: str = field(default=COMMAND)

    @property
    def title(self) -> str:
        """What the tables are about."""
        return f"Hotspots by {self.by}"

    @property
    def nowhere(self) -> str:
        """What time without a stack, or outside of all ranges, is called."""
        return NO_RANGE if self.by == "range" else NO_STACK

    @property
    def is_tree(self) -> bool:
        """Whether its rows are a tree."""
        return self.by in {"stack", "range"}

    def table(self, *, with_small: bool = True) -> TableResult:
        """Return the rows, most idle time first; of stacks, their tree with or without twigs."""
        frame = self._tree(with_small=with_small) if self.is_tree else self._grouped()
        fields: tuple[Field, ...] = TREE_FIELDS if self.is_tree else FIELDS
        if not self.times.gpu_ns.any():
            of_memory = not self.times.host_ns.any()
            hidden = (*_OF_GPU, *(("host_ns", "samples") if of_memory else ()))
            known = {"bytes": of_memory} | dict.fromkeys(hidden, False)
            fields = tuple(replace(f, shown=known.get(f.key, f.shown)) for f in fields)
        return TableResult(
            COMMAND,
            self.title,
            fields,
            frame.select([f.key for f in fields]),
            self.meta,
            self.notes,
            self.window,
        )

    def _nodes(self) -> pl.DataFrame:
        """Return measures and frames of each node, with a last row for what has no stack."""
        tree, times = self.times.stacks.tree, self.times
        sites = np.arange(len(tree)) if self.all_frames or self.is_tree else tree.own_sites
        frames = tree.frames[tree.frame[sites]].with_columns(package=_package(pl.col("module")))
        nothing = pl.DataFrame(
            {name: [self.nowhere if name == "function" else None] for name in frames.columns},
            schema=frames.schema,
        )
        values = [times.idle_ns(), times.gpu_ns, times.host_ns, times.samples, times.launches]
        values.append(times.bytes)
        return pl.concat([frames, nothing]).with_columns(
            pl.Series(name, array) for name, array in zip(_VALUES, values, strict=True)
        )

    def _grouped(self) -> pl.DataFrame:
        keys = _KEYS[self.by]
        nodes = self._nodes().with_columns(
            pl.when(pl.col("function") == NO_STACK)
            .then(pl.lit(NO_STACK))
            .otherwise(pl.coalesce(keys[0], pl.lit("(built-in)")))
            .alias(keys[0])
            if self.by in {"module", "package"}
            else pl.col("file")
        )
        sums = (
            nodes.group_by(keys, maintain_order=True)
            .agg(pl.col(_VALUES).sum())
            .filter(pl.any_horizontal(pl.col(_VALUES) > 0))
            .sort(
                ["idle_ns", "gpu_ns", "host_ns", "bytes", *keys],
                descending=[True] * 4 + [False] * len(keys),
            )
        )
        missing = [
            pl.lit(None).alias(k) for k in ("file", "line", "function", "module") if k not in keys
        ]
        sums = sums.with_columns(missing)
        return self._finished(sums, self._location())

    def _location(self) -> pl.Expr:
        file, function = self._short_files(), pl.col("function")
        if self.by in {"module", "package"}:
            return pl.col(_KEYS[self.by][0])
        place = pl.format("{}:{} {}", file, "line", function) if self.by == "line" else None
        named = pl.format("{} {}", file, function)
        native = pl.format("{} [{}]", function, "module")
        return pl.coalesce(*([] if place is None else [place]), named, native, function)

    def _short_files(self) -> pl.Expr:
        """Name files without their folders where that is clear."""
        files = self.times.stacks.tree.frames["file"].unique().drop_nulls().to_list()
        names = [file.rpartition("/")[2] for file in files]
        often = Counter(names)
        short = {
            file: name
            if often[name] == 1 and name != "__init__.py"
            else "/".join(file.split("/")[-2:])
            for file, name in zip(files, names, strict=True)
        }
        return pl.col("file").replace_strict(short, default=None, return_dtype=pl.String)

    def _tree(self, *, with_small: bool) -> pl.DataFrame:
        """List the nodes depth-first, the largest first, with everything below them summed.

        Frames of libraries are part of the frame of the program's own code around them.
        """
        tree, nodes = self.times.stacks.tree, self._nodes()
        totals = {v: tree.sums(nodes[v].to_numpy()[:-1]) for v in _VALUES}
        shown = np.zeros(len(tree), np.bool_)
        times = [v for v in _VALUES[:3] if nodes[v].sum()]
        for value in times or ["bytes"]:  # a memory snapshot has no times
            least = 0.0 if with_small else _MIN_TREE_SHARE * int(nodes[value].sum())
            shown |= totals[value] >= max(1.0, least)
        if not self.all_frames:
            shown &= (tree.parent < 0) | ~tree.frames["is_library"].to_numpy()[tree.frame]
        parent = tree.nearest_outside(shown)
        by_weight = (v for v in ("idle_ns", "host_ns", "bytes") if nodes[v].sum())
        weight = totals[next(by_weight, "gpu_ns")]
        order, depth = _depth_first(parent, weight, shown)
        rows = nodes[order].with_columns(pl.Series(v, totals[v][order]) for v in _VALUES)
        rows = rows.with_columns(pl.Series("depth", depth, pl.Int64))
        rest = nodes[-1:].with_columns(pl.lit(0, pl.Int64).alias("depth"))
        rest = rest.filter(pl.any_horizontal(pl.col(_VALUES) > 0))
        places = (
            pl.format("{} ({}:{})", "function", self._short_files(), "line"),
            pl.format("{} [{}]", "function", "module"),
            pl.col("function"),
        )
        return self._finished(pl.concat([rows, rest]), pl.coalesce(places))

    def _finished(self, rows: pl.DataFrame, location: pl.Expr) -> pl.DataFrame:
        idle_ns = max(1, int(self.times.idle["ns"].sum()))
        samples = pl.col("samples") if self.is_sampled else pl.lit(None, pl.Int64)
        return rows.with_columns(
            location.alias("location"),
            (pl.col("idle_ns") / idle_ns).alias("idle_share"),
            samples.alias("samples"),
            pl.col("line").cast(pl.Int64),
            pl.col("file", "function", "module").cast(pl.String),
        )


def _package(module: pl.Expr) -> pl.Expr:
    """Return the package of a module; of a binary its name."""
    binary = module.str.contains(r"\.(?:so|dll|dylib|pyd|exe)\b") | module.str.starts_with("[")
    return pl.when(binary).then(module).otherwise(module.str.split(".").list.first())


def _depth_first(parent: Ints, weight: Ints, shown: Any) -> tuple[list[int], list[int]]:
    children: dict[int, list[int]] = {}
    for node in np.flatnonzero(shown).tolist():
        children.setdefault(int(parent[node]), []).append(node)
    order, depth = [], []
    todo = [(node, 0) for node in sorted(children.get(NONE, []), key=lambda n: weight[n])]
    while todo:
        node, level = todo.pop()
        order.append(node)
        depth.append(level)
        todo += [(n, level + 1) for n in sorted(children.get(node, []), key=lambda n: weight[n])]
    return order, depth


def _sum_by_node(nodes: Ints, values: Ints, count: int) -> Ints:
    """Add values up by node; the last element has those without one."""
    at = np.where(nodes >= 0, nodes, count)
    # Sums of whole numbers are exact in floating point up to 104 days of nanoseconds.
    return np.bincount(at, values, count + 1).astype(np.int64)


# Measuring ----------------------------------------------------------------------------------------


def hotspots(
    trace: Trace,
    selection: Selection = EVERYTHING,
    *,
    by: str = "line",
    of: str = "idle",
    all_frames: bool = False,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    track: TrackWork | None = None,
) -> Hotspots | NotApplicable:
    """Sum idle GPU time, GPU time and host time by line of code, of all tracks or of one."""
    if by not in GROUPS:
        raise UsageError(f"cannot sum by {by!r}", hint=f"by is one of: {', '.join(GROUPS)}")
    if of not in MEASURES:
        raise UsageError(f"cannot show {of!r}", hint=f"of is one of: {', '.join(MEASURES)}")
    stacks = range_stacks(trace) if by == "range" else host_stacks(trace)
    if stacks is None and by == "range":
        return NotApplicable(COMMAND, "the capture has no ranges", advice_for(trace.meta).ranges)
    if stacks is None:
        return without_stacks()
    if not any(trace.has(table) for table in GPU_WORK):
        return _host_only(trace, stacks, by=by, of=of, all_frames=all_frames, track=track)
    chosen = step_window(trace, selection, steps=steps, window=window, warmup=warmup)
    if isinstance(chosen, NotApplicable):
        return replace(chosen, command=COMMAND)
    made = accounting(trace, selection, chosen)
    accounts = [a for a in made.accounts if selection.device in (None, a.device)]
    if not accounts:
        return NotApplicable(COMMAND, "no GPU work in the selection")
    times = stack_times(trace, stacks, made, accounts, track)
    named = headline(trace, selection, chosen)
    meta = _meta(trace, times, named)
    notes = (*chosen.notes, *_notes(times, meta))
    if selection.within is not None and steps is None and window is None:
        about = "with what runs between them; --by range sums up each range alone"
        notes += (f"from the first to the last range {selection.within!r}, {about}",)
    return Hotspots(times, by, all_frames, named.text, meta, notes, stacks.counts_samples, of)


def without_stacks() -> NotApplicable:
    """Say in one sentence how to record stacks."""
    reason = "the capture has no stacks of the host"
    return NotApplicable(COMMAND, reason, HOW_TO_RECORD)


def stack_times(
    trace: Trace,
    stacks: HostStacks,
    made: Accounting,
    accounts: list[DeviceAccount],
    track: TrackWork | None = None,
) -> StackTimes:
    """Measure what each stack is behind, on these GPUs or one track, in a window."""
    schedule = made.schedule
    op_nodes = launch_stacks(trace, stacks, schedule)
    chosen = np.ones(len(schedule.ops), np.bool_)
    if track is not None:
        chosen = track.of_gpu(trace, schedule)
    idle = pl.concat(
        [idle_stacks(trace, stacks, schedule, made.hosts, a, op_nodes) for a in accounts]
    )
    if track is not None:
        idle = idle.filter(pl.Series(np.append(chosen, False)[idle["op"].to_numpy()]))
    count = len(stacks.tree)
    gpu_ns, launches = np.zeros(count + 1, np.int64), np.zeros(count + 1, np.int64)
    for account in accounts:
        busy = account.spans.gap < 0
        busy[busy] = chosen[account.spans.op[busy]]
        nodes = op_nodes[account.spans.op[busy]]
        gpu_ns += _sum_by_node(nodes, account.spans.length_ns[busy], count)
        own = (schedule.ops.device == account.device) & ~schedule.ops.carried & chosen
        launches += _sum_by_node(op_nodes[own], np.ones(int(own.sum()), np.int64), count)
    host_ns, samples = _host(stacks, schedule.start_ns, schedule.end_ns, track)
    memory = _memory(trace, stacks, schedule.start_ns, schedule.end_ns, track)
    return StackTimes(stacks, idle, gpu_ns, host_ns, samples, launches, memory)


def idle_stacks(
    trace: Trace,
    stacks: HostStacks,
    schedule: GpuSchedule,
    hosts: HostTime,
    account: DeviceAccount,
    op_nodes: Ints,
) -> pl.DataFrame:
    """Divide the idle time of a GPU among stacks: `node`, `cause`, `ns`, `near`.

    `op` is the activity that ended the gap; `NONE` at the end of the window.
    """
    contributors = IdleContributors(schedule, hosts)
    stretches = contributors.stretches(account)
    known = stretches.host_thread != NONE
    keys = np.array([*schedule.threads, (NONE, NONE)], np.int64).reshape(-1, 2)
    position = np.where(known, contributors.positions(stretches), len(keys) - 1)
    process, thread = keys[position].T
    wanted = stacks.threads_for(trace, process, thread)
    # Once launched, work is on its way: its time is that of the launch, however long ago.
    launched = np.isin(stretches.cause, (IdleCause.QUEUED, IdleCause.LAUNCHING))
    launched &= (stretches.op != NONE) & (stretches.sample_ns <= stretches.start_ns)
    launching = np.where(launched, np.append(op_nodes, NONE)[stretches.op], NONE)
    late = np.flatnonzero(launching != NONE)
    rest = np.flatnonzero(launching == NONE)
    spread = stacks.spread(wanted[rest], stretches.start_ns[rest], stretches.end_ns[rest])
    late_ns = (stretches.end_ns - stretches.start_ns)[late]
    of_stretch = np.concatenate((rest[spread.stretch], late))
    return pl.DataFrame(
        {
            "node": np.concatenate((spread.node, launching[late])),
            "cause": stretches.cause[of_stretch],
            "op": stretches.op[of_stretch],
            "ns": np.concatenate((spread.ns, late_ns)),
            "near": np.concatenate((spread.near, np.zeros(len(late), np.int64))),
        }
    )


def launch_stacks(trace: Trace, stacks: HostStacks, schedule: GpuSchedule) -> Ints:
    """Return the stack that launched each GPU activity of a schedule."""
    ops, calls = schedule.ops, schedule.calls
    nodes = np.full(len(ops), NONE)
    if "python_calls" in stacks.call_nodes:
        of_call = stacks.call_nodes["python_calls"]
        frames = attribute(trace).frames
        for kind in OpKind:
            own = np.flatnonzero(ops.kind == kind)
            if len(own):
                site = frames[kind.table]["call_site"].gather(ops.row[own])
                rows = site.fill_null(NONE).to_numpy()
                nodes[own] = np.where(rows >= 0, of_call[rows], NONE)
        return nodes
    called = np.flatnonzero(ops.call != NONE)
    call = ops.call[called]
    keys = np.array(schedule.threads, np.int64).reshape(-1, 2)[calls.thread[call]]
    threads = stacks.threads_for(trace, keys[:, 0], keys[:, 1])
    first_ns, last_ns = _bursts(schedule)
    nodes[called] = stacks.at(threads, calls.start_ns[call], first_ns[call], last_ns[call])
    chains = stacks.call_nodes.get("api_calls")
    if chains is not None:
        chain = chains[calls.row[call]]
        tree = stacks.tree
        own_code = ~tree.frames["is_library"].to_numpy()[tree.frame[tree.own_sites]]
        exact = (chain >= 0) & ((nodes[called] < 0) | np.append(own_code, False)[chain])
        nodes[called] = np.where(exact, chain, nodes[called])
    return nodes


def _bursts(schedule: GpuSchedule) -> tuple[Ints, Ints]:
    """Return from when to when calls of its thread follow each other closely, around each call.

    A sample taken in a silence before a launch shows what the host did then, not what launched.
    """
    calls = schedule.calls
    order = np.argsort(calls.thread, kind="stable")
    start, end = calls.start_ns[order], calls.end_ns[order]
    # Threads one after the other on one axis, so that one running maximum serves them all.
    offset = calls.thread[order] * (schedule.length_ns + 2 * _SILENCE_NS)
    ended = np.maximum.accumulate(end + offset)
    quiet = np.append(True, (start + offset)[1:] - ended[:-1] > _SILENCE_NS)
    burst = np.cumsum(quiet[: len(order)]) - 1
    first, last = np.zeros(len(calls), np.int64), np.zeros(len(calls), np.int64)
    if len(order):
        begins = np.flatnonzero(quiet)
        first[order] = start[begins][burst]
        last[order] = np.maximum.reduceat(calls.end_ns[order], begins)[burst]
    return first, last


def _host(
    stacks: HostStacks, start_ns: int, end_ns: int, track: TrackWork | None = None
) -> tuple[Ints, Ints]:
    """Return time and samples of host threads in a window, by node."""
    frame, count = stacks.frame, len(stacks.tree)
    if track is not None:
        frame = track.of_host(frame)
    sampled = frame.filter(
        pl.col("weight_ns").is_not_null(),
        pl.col("start_ns") >= start_ns,
        pl.col("start_ns") < end_ns,
    )
    exact = frame.filter(pl.col("weight_ns").is_null()).with_columns(
        pl.col("start_ns", "end_ns").clip(start_ns, end_ns)
    )
    nodes = sampled["node"].to_numpy()
    host_ns = _sum_by_node(nodes, sampled["weight_ns"].to_numpy(), count)
    lengths = (exact["end_ns"] - exact["start_ns"]).to_numpy()
    host_ns += _sum_by_node(exact["node"].to_numpy(), lengths, count)
    return host_ns, _sum_by_node(nodes, np.ones(len(nodes), np.int64), count)


def _memory(
    trace: Trace, stacks: HostStacks, start_ns: int, end_ns: int, track: TrackWork | None = None
) -> Ints:
    """Return the memory allocated in a window, by node."""
    count = len(stacks.tree)
    if not trace.has("memory_events"):
        return np.zeros(count + 1, np.int64)
    columns = ["time_ns", "process", "thread", "operation", "bytes"]
    events = trace.table("memory_events", columns).with_row_index("row")
    events = events.filter(
        pl.col("operation").cast(pl.String) == "allocation",
        pl.col("time_ns").is_between(start_ns, end_ns, closed="left"),
    )
    if track is not None:
        events = track.of_host(events)
    chains = stacks.call_nodes.get("memory_events")
    if chains is not None:
        nodes = chains[events["row"].to_numpy()]
    else:
        keys = [events[name].fill_null(NONE).to_numpy() for name in ("process", "thread")]
        nodes = stacks.at(stacks.threads_for(trace, *keys), events["time_ns"].to_numpy())
    return _sum_by_node(nodes, np.abs(events["bytes"].to_numpy()), count)


def _host_only(
    trace: Trace,
    stacks: HostStacks,
    *,
    by: str,
    of: str,
    all_frames: bool,
    track: TrackWork | None = None,
) -> Hotspots | NotApplicable:
    """Sum up host time of a capture without GPU work: imported stacks, memory snapshots."""
    first = int(stacks.frame["start_ns"].min() or 0)  # type: ignore[arg-type]
    last = int(stacks.frame["end_ns"].max() or 0) + 1  # type: ignore[arg-type]
    count = len(stacks.tree)
    host_ns, samples = _host(stacks, first, last, track)
    memory = _memory(trace, stacks, -(1 << 62), 1 << 62, track)
    if not host_ns.any() and not memory.any():
        return without_stacks()
    none = np.zeros(count + 1, np.int64)
    empty = pl.DataFrame(schema=dict.fromkeys(("node", "cause", "op", "ns", "near"), pl.Int64()))
    times = StackTimes(stacks, empty, none, host_ns, samples, none, memory)
    meta = _meta(trace, times, NO_WINDOW)
    if of != "memory" or not memory.any():
        of = "host" if host_ns.any() else "memory"
    only = "host time" if host_ns.any() else "memory"
    notes = (f"no GPU work in it: {only} only", *_notes(times, meta), *trace.meta.notes)
    return Hotspots(times, by, all_frames, "", meta, notes, stacks.counts_samples, of)


def _meta(trace: Trace, times: StackTimes, named: WindowHeadline) -> dict[str, Any]:
    idle = times.idle
    no_stack = idle.filter(pl.col("node") < 0)["ns"].sum()
    return {
        "command": COMMAND,
        "path": trace.meta.path,
        "window": named.text,
        "steps": named.steps,
        "step_ns": named.step_ns,
        "headline": named.document(),
        "stacks": list(times.stacks.sources),
        "idle_ns": int(idle["ns"].sum()),
        "idle_without_stack_ns": int(no_stack),
        "idle_near_ns": int(idle.filter(pl.col("near") == 1)["ns"].sum()),
        "gpu_ns": int(times.gpu_ns.sum()),
        "gpu_without_stack_ns": int(times.gpu_ns[-1]),
        "host_ns": int(times.host_ns.sum()),
        "samples": int(times.samples.sum()),
    }


def _notes(times: StackTimes, meta: Mapping[str, Any]) -> list[str]:
    """Say where stacks come from, and how much of the time has none."""
    words = [STACK_SOURCES[source] for source in times.stacks.sources]
    notes = [f"stacks: {', '.join(words)}"] if words else []
    if times.stacks.has_def_lines:
        notes.append(DEF_LINES)
    idle_ns = max(1, meta["idle_ns"])
    near = meta["idle_near_ns"] / idle_ns
    if near > _MIN_NOTED_SHARE:
        notes.append(
            f"{format_share(near)} of the idle time is in gaps without a sample: it has the "
            "stack sampled nearest to it"
        )
    none = meta["idle_without_stack_ns"] / idle_ns
    if none > _MIN_NOTED_SHARE:
        where = "has no stack anywhere near" if times.stacks.sources else "is outside of all ranges"
        notes.append(f"{format_share(none)} of the idle time {where}")
    return notes
