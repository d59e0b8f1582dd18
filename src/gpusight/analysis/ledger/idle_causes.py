"""What the host did at every instant, by cause: the first layer that holds counts."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.attribution.work_causes import main_threads
from gpusight.analysis.gpu_schedule import NONE, CallKind, OpKind
from gpusight.analysis.ledger.host_threads import HostTime, LaunchThreads, unnamed_input
from gpusight.analysis.ledger.ledger_entries import IdleCause
from gpusight.trace.intervals import (
    Intervals,
    contains,
    distinct,
    gaps,
    intersect,
    subtract,
    union,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from numpy.typing import NDArray

    from gpusight.analysis.gpu_schedule import GpuSchedule
    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace

    HostLayer: TypeAlias = tuple[IdleCause, Intervals]


_MAX_NAME = 300
_FRAME = re.compile(r"([^/\\(]*)\.pyx?\(\d+\): (.*)$", re.DOTALL)
_CAMEL = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_WORD = re.compile(r"h5(?:py)?|[a-z]+")
_BUILT_IN = re.compile(r"^<built-in (?:method|function) (\w+)")
_FRAMEWORK = re.compile(r"^(?:.{0,200}/)?torch/(?!utils/data/).{0,200}\.py\(")
_OPERATORS = re.compile(r"^(?:aten|prim|prims|c10d?|nccl|torch|autograd|triton|inductor)::")


def _set(words: str) -> frozenset[str]:
    return frozenset(words.split())


_CERTAIN = _set(
    """
    dataload dataloader dataloaders dataloading dataset datasets datapipe datapipes datamodule
    datafeed databatch minibatcher collate collator tokenize tokenizer tokenization tokenise
    tokeniser tokenisation augment augmentation augmentations preprocess preprocessing preproc
    preprocessor parquet tfrecord tfrecords webdataset lmdb ffcv dali hdf h5 h5py imread
    imdecode fread getnext sleep nanosleep usleep read reading reader readers
    """
)
_ACTIONS = _set(
    """
    load loads loading loader loaders fetch fetches fetching fetcher get next prefetch prefetching
    prefetcher wait waiting await generate generation gen make build create iter iterator iterate
    decode decoding dequeue queue feed feeder feeding ingest ingestion pipeline producer produce
    transform transforms prep prepare preparation sampler shuffle stream streaming download pull
    acquire receive recv stage staging time transfer
    """
)
_THINGS = _set(
    """
    data batch batches minibatch minibatches microbatch sample samples example examples input
    inputs image images jpeg jpg png video videos audio frames record records file files disk
    prompt prompts io corpus
    """
)
_PLAIN = _set("data input inputs io")
_ALONE = _PLAIN | _set("batch batches minibatch next samples fetch fetching load loading")
_FILLERS = _set("train training val valid validation test eval host cpu the step phase")
_OTHERWISE = _set(
    """
    token tokens parallel embedding embeddings layernorm norm grad grads gradient gradients
    backward optimizer kv cache ptr dependency layout kernel proj projection checkpoint weights
    vae latent latents unet transformer decoder model attention alltoall allgather allreduce recat
    """
)
_LESS = frozenset({"prepare", "preparation", "prep", "make", "build", "create", "get"})
"""What is also done to the inputs of a model, on their way to the GPU."""
_MODELS = frozenset({"input", "inputs", "io"})
_REQUESTS = frozenset({"request", "requests"})
_ARRIVALS = frozenset({"recv", "receive", "receiving", "fetch", "poll", "polling", "dequeue"})

_COMPILING = re.compile(
    r"dynamo_timed|\bcompile_(?:inner|fx|file)|_compile\.compile|inductor_compile|jit_?compile"
    r"|backend_compile|Xla(?:Compile|Emit|Optimize|Pass|Autotun)|nvrtc|ptxas|CompileModule|LoadModule|load_?module"
    r"|importlib|<frozen importlib|cudagraphify|capture_(?:begin|end)\b",
    re.IGNORECASE,
)
_LOADING = re.compile(r"(?:function|module) loading", re.IGNORECASE)
_READS = re.compile(
    r"^_*(?:(?:p|f|getdents|sp)?read(?:v|64|dir|ahead|link)?\d*|fgets|fgetc|getline|getdelim"
    r"|io_getevents)(?:_chk|_unlocked|_nocancel)?$"
)
_AWAITS = (
    r"futex|pthread_cond_(?:timed|clock)?wait|sem_(?:timed|clock)?wait|(?:clock_)?nanosleep|u?sleep"
    r"|recv(?:from|mmsg|msg)?|p?poll|p?select|epoll_p?wait\d*|accept4?"
)
_SLEEPS = re.compile(r"^_*(?:(?:clock_)?nanosleep|u?sleep)(?:_nocancel|64)*$")
_LOCKS = re.compile(rf"^_*(?:{_AWAITS})(?:_chk|_nocancel|64)*$")
_WAITS = re.compile(
    rf"^_*(?:(?:{_AWAITS})(?:_chk|_nocancel|64)*$|pthread_(?:mutex_(?:timed)?lock|rwlock_\w*lock|join"
    r"|barrier_wait|spin_lock)|wait(?:pid|id|[34])?$|sched_yield|sigwait\w*|flock|system$|connect)"
)
_HOST_COLLECTIVES = re.compile(r"^(?:gloo|mpi|ucc):|^P?MPI_[A-Z]|(?:^|[^a-z])barrier(?:$|[^a-z])")
"""Collectives that run on the CPU, as PyTorch and NVTX name them, and barriers of processes."""


@lru_cache(maxsize=65_536)
def is_input(name: str) -> bool:
    """Return whether the name of a range, operator or Python call means input."""
    text = name[:_MAX_NAME]
    if _OPERATORS.match(text) or _FRAMEWORK.match(text):
        return False
    words = _words(text)
    if _BUILT_IN.match(text):
        return bool(words & _CERTAIN)
    if not words or words & _OTHERWISE:
        return False
    if words & _CERTAIN or words <= _ALONE or (words & _PLAIN and words <= _PLAIN | _FILLERS):
        return True
    actions, things = words & _ACTIONS, words & _THINGS
    if actions <= _LESS:
        things -= _MODELS
    arrivals = words & _REQUESTS and words & _ARRIVALS
    return bool((actions and things) or arrivals) or {"iterator", "next"} <= words


def is_compiling(name: str) -> bool:
    """Return whether a name means compiling or loading code."""
    return _COMPILING.search(name[:_MAX_NAME]) is not None


def is_loading(name: str) -> bool:
    """Return whether what the profiler counts as its overhead is the loading of code."""
    return _LOADING.search(name[:_MAX_NAME]) is not None


def without_loading(overheads: pl.DataFrame) -> pl.DataFrame:
    """Keep the overhead that is the profiler's own."""
    own = [code for code, name in enumerate(names_of(overheads["name"])) if not is_loading(name)]
    return overheads.filter(pl.col("name").to_physical().is_in(own))


def is_reading(name: str) -> bool:
    """Return whether a call of the operating system reads."""
    return _READS.match(name) is not None


def is_waiting(name: str) -> bool:
    """Return whether a call of the operating system waits for another thread or process."""
    return _WAITS.match(name) is not None


def is_sleeping(name: str) -> bool:
    """Return whether a call of the operating system waits for nothing but time."""
    return _SLEEPS.match(name) is not None


def is_locked(name: str) -> bool:
    """Return whether a call of the operating system waits until someone else has something."""
    return _LOCKS.match(name) is not None


def is_collective(name: str) -> bool:
    """Return whether a name means a collective on the CPU: a wait for other processes."""
    return _HOST_COLLECTIVES.search(name[:_MAX_NAME]) is not None


def _words(text: str) -> set[str]:
    """Split a name into words; of a Python frame only its file and function count."""
    if frame := _FRAME.search(text):
        text = f"{frame[1]} {frame[2]}"
    elif built_in := _BUILT_IN.match(text):
        text = built_in[1]
    return set(_WORD.findall(_CAMEL.sub(" ", text).lower()))


# Layers -------------------------------------------------------------------------------------------


_SHORT_NS = 20_000
"""Calls that neither launch, wait nor allocate are the framework's below this, other work above."""
_SILENCE_NS = 1_000_000
_SILENCE_GAPS = 20
"""A silence is unknown when it is longer than this many times the usual time between calls."""
_SETUP_NS = 10_000_000
"""The first allocation of a process also creates its context, if it takes longer than this."""
_LOADING_NS = 200_000
"""The first launch of a kernel loads its code, if it takes longer than this; others take µs."""
_EVERYDAY = re.compile(
    r"Query|IsCapturing|CaptureInfo|PointerGet|HostFunc|AddCallback|Record|WaitEvent|LastError"
    r"|(?:Get|Set)Device$|StreamPriority|INVALID"
)
"""Calls of running code; other calls that take long create, load or destroy something."""
_CAPTURE_BEGINS, _CAPTURE_ENDS = (
    re.compile(rf"^(?:cu|cuda|hip)Stream{edge}Capture") for edge in ("Begin", "End")
)
_MOST_LAUNCHES = 1 / 3
"""Ranges named like input that hold more of their thread's launches are not input."""
_CALL_CAUSES = {
    IdleCause.SYNCHRONIZING: (CallKind.SYNC,),
    IdleCause.ALLOCATING: (CallKind.ALLOCATE, CallKind.FREE),
    IdleCause.LAUNCHING: (CallKind.LAUNCH, CallKind.GRAPH, CallKind.COPY, CallKind.MEMSET),
}
_REST = (CallKind.RECORD, CallKind.WAIT_EVENT, CallKind.OTHER)
_EVENTS = ["start_ns", "end_ns", "thread"]
_NAMING = ("cpu_ops", "python_calls")


def layers(trace: Trace, host_threads: LaunchThreads) -> list[HostLayer]:
    """Return what host threads did, innermost first; what no layer holds is the framework's."""
    if not len(host_threads.numbers):
        return []
    ranges = HostRangesByThread(trace, host_threads)
    names = _call_names(host_threads)
    known = [
        *_overheads(trace, host_threads),
        (IdleCause.SETUP, _graph_captures(host_threads, names)),
        *_calls(host_threads, names),
        (IdleCause.INPUT, _input(trace, host_threads, ranges)),
        (IdleCause.SETUP, _compiling(trace, host_threads, ranges)),
        (IdleCause.WAITING, _waiting(trace, host_threads, ranges)),
    ]
    return [*known, (IdleCause.HOST, _silent(trace, host_threads, ranges, known))]


# Calls and the profiler ---------------------------------------------------------------------------


def _overheads(trace: Trace, host_threads: LaunchThreads) -> list[HostLayer]:
    """Return what the profiler did.

    Loading of code is not its work. It has a row in reports and newer exports only: as older ones
    of the same capture must give the same ledger, nothing here depends on it.
    """
    threads = trace.table("threads", ["thread"])["thread"].to_list()
    nowhere = pl.col("thread").is_null() | ~pl.col("thread").is_in(threads)
    frame = _events(trace, "overheads", lambda name: not is_loading(name))
    everywhere = host_threads.of_all(frame.filter(nowhere))
    own = union(everywhere, host_threads.of_threads(frame.filter(~nowhere)))
    return [(IdleCause.PROFILER, own)]


def _call_names(host_threads: LaunchThreads) -> pl.Series:
    """Return the name of each call; null for marks."""
    rows = host_threads.schedule.calls.row
    names = host_threads.schedule.trace.table("api_calls", ["name"])["name"]
    return names.gather(pl.Series(rows).replace(NONE, None))


def _calls_named(names: pl.Series, wanted: Callable[[str], object]) -> NDArray[np.bool_]:
    """Return which calls have a name that is wanted, looking at each distinct one once."""
    codes = [code for code, text in enumerate(names_of(names)) if wanted(text)]
    return names.to_physical().is_in(codes).fill_null(value=False).to_numpy()


def _graph_captures(host_threads: LaunchThreads, names: pl.Series) -> Intervals:
    """Return the time in which threads recorded a graph: what they launch then does not run."""
    calls, order = host_threads.schedule.calls, host_threads.order
    begins, ends = (
        _calls_named(names, edge.match)[order] for edge in (_CAPTURE_BEGINS, _CAPTURE_ENDS)
    )
    edges = order[begins | ends]
    opens = begins[begins | ends]
    # A capture ends with the next edge of its thread.
    closed = (
        opens[:-1] & ~opens[1:] & (calls.host_thread[edges[:-1]] == calls.host_thread[edges[1:]])
    )
    first, last = edges[:-1][closed], edges[1:][closed]
    start = host_threads.axis.at(calls.host_thread[first], calls.start_ns[first])
    return Intervals.from_arrays(
        start, host_threads.axis.at(calls.host_thread[last], calls.end_ns[last])
    )


def _calls(host_threads: LaunchThreads, names: pl.Series) -> list[HostLayer]:
    """Return what calls count for, by their kind."""
    calls, axis = host_threads.schedule.calls, host_threads.axis
    start, end = (axis.at(calls.host_thread, t) for t in (calls.start_ns, calls.end_ns))
    short = calls.end_ns - calls.start_ns < _SHORT_NS
    rest = np.isin(calls.kind, _REST)
    everyday = rest & (short | _calls_named(names, _EVERYDAY.search))
    chosen = [
        (
            IdleCause.SETUP,
            np.append(_context_creations(host_threads), _first_launches(host_threads)),
        ),
        *((cause, np.isin(calls.kind, kinds)) for cause, kinds in _CALL_CAUSES.items()),
        (IdleCause.FRAMEWORK, everyday),
        (IdleCause.SETUP, rest & ~everyday),
    ]
    by_kind = [(cause, Intervals.from_arrays(start[at], end[at])) for cause, at in chosen]
    return [(IdleCause.SYNCHRONIZING, _returning(host_threads)), *by_kind]


def _first_launches(host_threads: LaunchThreads) -> Ints:
    """Return the launches that take long because they load the code of their kernel first."""
    calls, ops = host_threads.schedule.calls, host_threads.schedule.ops
    long = calls.end_ns - calls.start_ns > _LOADING_NS
    at = np.flatnonzero((ops.call != NONE) & np.isin(ops.kind, (OpKind.KERNEL, OpKind.MEMSET)))
    at = at[(long & np.isin(calls.kind, (CallKind.LAUNCH, CallKind.MEMSET)))[ops.call[at]]]
    if not len(at):
        return at
    names = host_threads.schedule.trace.table("kernels", ["name"])["name"].to_physical().to_numpy()
    _, first_rows = np.unique(names, return_index=True)
    first = np.where(
        ops.kind[at] == OpKind.KERNEL, np.isin(ops.row[at], first_rows), ops.row[at] == 0
    )
    loading: Ints = ops.call[at[first]]
    return loading


def _context_creations(host_threads: LaunchThreads) -> Ints:
    """Return the calls that seem to allocate but make a process ready to use the GPU."""
    calls = host_threads.schedule.calls
    process = np.array([p for p, _ in host_threads.schedule.threads], np.int64)[calls.thread]
    at = np.flatnonzero(np.isin(calls.kind, _CALL_CAUSES[IdleCause.ALLOCATING]))
    _, first = np.unique(process[at], return_index=True)
    first_calls: Ints = at[first]
    return first_calls[calls.end_ns[first_calls] - calls.start_ns[first_calls] > _SETUP_NS]


def _returning(host_threads: LaunchThreads) -> Intervals:
    """Return the ends of copies that blocked: the copy was done, the call had yet to return."""
    calls, ops = host_threads.schedule.calls, host_threads.schedule.ops
    done = np.full(len(calls), np.iinfo(np.int64).max)
    own = np.flatnonzero(ops.call != NONE)
    own = own[calls.kind[ops.call[own]] == CallKind.COPY]
    done[ops.call[own]] = calls.start_ns[ops.call[own]]
    np.maximum.at(done, ops.call[own], ops.end_ns[own])
    start, end = (host_threads.axis.at(calls.host_thread, t) for t in (done, calls.end_ns))
    return Intervals.from_arrays(start, end)


# Ranges, operators, the operating system ----------------------------------------------------------


class HostRangesByThread:
    """The ranges of a trace, and whose count for threads that have none: the step's thread's."""

    def __init__(self, trace: Trace, host_threads: LaunchThreads) -> None:
        columns = [*_EVENTS, "name", "kind", "open", "process"]
        self.frame = trace.table("ranges", columns).filter(
            pl.col("kind").cast(pl.String) != "mark", ~pl.col("open").fill_null(value=False)
        )
        known = self.frame.filter(pl.col("thread").is_not_null())
        counts = known.group_by("process", "thread").len().sort("len", "thread")
        # Written in order of count: the thread with the most ranges of its process stays.
        busiest = dict(counts.select("process", "thread").iter_rows())
        own, main = set(counts["thread"].to_list()), main_threads(trace)
        self.stand_in: dict[int, int] = {}
        for position, (process, thread) in enumerate(host_threads.schedule.threads):
            if thread not in own:
                other = main.get(process)
                chosen = other if other in own else busiest.get(process)
                if chosen is not None:
                    self.stand_in[position] = chosen


def _input(trace: Trace, host_threads: LaunchThreads, ranges: HostRangesByThread) -> Intervals:
    """Return the time of input: what is named so, reads, and the time before copies of batches."""
    launches = _LaunchCalls(host_threads.schedule)
    named = launches.without_work(_named(ranges.frame, is_input))
    spans = [host_threads.of_threads(named, ranges.stand_in)]
    for table in _NAMING:
        events = _events(trace, table, is_input, name=True)
        spans.append(host_threads.of_threads(launches.without_work(events)))
    reading, waiting = (
        host_threads.of_threads(_events(trace, "os_calls", wanted))
        for wanted in (is_reading, is_locked)
    )
    waiting = subtract(waiting, _handed(host_threads))
    others = host_threads.of_threads(launches.without_work(ranges.frame), ranges.stand_in)
    if trace.has("python_calls"):
        frames = trace.table("python_calls", [*_EVENTS, "name"])
        others = union(others, host_threads.of_threads(launches.without_work(frames)))
    spans += [reading, unnamed_input(trace, host_threads, reading, waiting, others)]
    return _united(spans)


@dataclass(frozen=True)
class _LaunchCalls:
    """The launches of each thread, to distinguish input from whole steps that are named like it."""

    schedule: GpuSchedule

    @cached_property
    def _times(self) -> dict[int, Ints]:
        """When each thread launched."""
        calls, threads = self.schedule.calls, self.schedule.threads
        at = np.flatnonzero(np.isin(calls.kind, (CallKind.LAUNCH, CallKind.GRAPH)))
        at = at[np.argsort(calls.thread[at], kind="stable")]
        ends = np.cumsum(np.bincount(calls.thread[at], minlength=len(threads)))
        parts = np.split(calls.start_ns[at], ends[:-1])
        return {thread: part for (_, thread), part in zip(threads, parts, strict=True)}

    def without_work(self, events: pl.DataFrame) -> pl.DataFrame:
        """Leave out events of names that hold much of what their threads launched."""
        if events.is_empty():
            return events
        threads = events.group_by("thread", maintain_order=True)
        with_shares = pl.concat([self._with_shares(part) for _, part in threads])
        family = pl.col("name").cast(pl.String).str.replace_all(r"\d+", "#")
        much = pl.col("launch_share").sum().over("thread", family) > _MOST_LAUNCHES
        return with_shares.filter(~much).select(_EVENTS)

    def _with_shares(self, events: pl.DataFrame) -> pl.DataFrame:
        """Add which part of the launches of a thread each of its events holds."""
        times = self._times.get(events["thread"][0], np.empty(0, np.int64))
        first, after = (np.searchsorted(times, events[c]) for c in ("start_ns", "end_ns"))
        return events.with_columns(pl.Series("launch_share", (after - first) / max(len(times), 1)))


def _compiling(trace: Trace, host_threads: LaunchThreads, ranges: HostRangesByThread) -> Intervals:
    """Return the time in which names say that code is compiled or loaded."""
    spans = [host_threads.of_threads(_events(trace, table, is_compiling)) for table in _NAMING]
    spans.append(host_threads.of_threads(_named(ranges.frame, is_compiling).select(_EVENTS)))
    return _united(spans)


def _waiting(trace: Trace, host_threads: LaunchThreads, ranges: HostRangesByThread) -> Intervals:
    """Return the time of collectives, and of waits that no hand-over between threads explains."""
    collectives = [
        host_threads.of_threads(_events(trace, table, is_collective)) for table in _NAMING
    ]
    collectives.append(host_threads.of_threads(_named(ranges.frame, is_collective).select(_EVENTS)))
    waits = _events(trace, "os_calls", is_waiting)
    waits = waits.filter(pl.col("end_ns") - pl.col("start_ns") >= _SHORT_NS)
    return _united([*collectives, subtract(host_threads.of_threads(waits), _handed(host_threads))])


def _handed(host_threads: LaunchThreads) -> Intervals:
    """Return the time that hand-overs between threads take."""
    return Intervals.from_arrays(host_threads.shifts.start_ns, host_threads.shifts.first_ns)


def _silent(
    trace: Trace, host_threads: LaunchThreads, ranges: HostRangesByThread, known: list[HostLayer]
) -> Intervals:
    """Return long stretches without a call, under no operator and no range of their own.

    Ranges that hold much of what their threads launch are those of whole steps.
    """
    quiet = gaps(_united(spans for _, spans in known), 0, int(host_threads.windows.ends[-1]))
    # Most stretches between two calls are short: they need not be cut at the ends of host threads.
    kept = quiet.ends - quiet.starts > _SILENCE_NS
    quiet = Intervals(quiet.starts[kept], quiet.ends[kept])
    silent = _longer(host_threads, intersect(quiet, host_threads.windows))
    if not len(silent):
        return silent
    own = _LaunchCalls(host_threads.schedule).without_work(ranges.frame)
    named = [host_threads.of_threads(own, ranges.stand_in)]
    named += [host_threads.of_threads(_events(trace, table, None)) for table in _NAMING]
    return _longer(host_threads, subtract(silent, _united(named)))


def _longer(host_threads: LaunchThreads, spans: Intervals) -> Intervals:
    """Keep the spans that are much longer than the usual gap between two calls."""
    calls, order = host_threads.schedule.calls, host_threads.order
    host_thread = calls.host_thread[order]
    gap = calls.start_ns[order][1:] - calls.end_ns[order][:-1]
    within = (host_thread[1:] == host_thread[:-1]) & (gap > 0)
    usual = pl.DataFrame({"host_thread": host_thread[1:][within], "gap": gap[within]})
    medians = usual.group_by("host_thread").agg(pl.col("gap").median())
    limits = np.full(int(host_threads.numbers.max()) + 1, float(_SILENCE_NS))
    limits[medians["host_thread"]] = np.maximum(
        _SILENCE_NS, _SILENCE_GAPS * medians["gap"].to_numpy()
    )
    kept = spans.ends - spans.starts > limits[host_threads.axis.host_thread(spans.starts)]
    return Intervals(spans.starts[kept], spans.ends[kept])


def _events(
    trace: Trace, table: str, wanted: Callable[[str], bool] | None, *, name: bool = False
) -> pl.DataFrame:
    """Return the events of a table whose names are wanted, looking at each distinct one once."""
    if wanted is None:
        return trace.table(table, _EVENTS)
    events = _named(trace.table(table, [*_EVENTS, "name"]), wanted)
    return events if name else events.select(_EVENTS)


def _named(frame: pl.DataFrame, wanted: Callable[[str], bool]) -> pl.DataFrame:
    codes = [code for code, text in enumerate(names_of(frame["name"])) if wanted(text)]
    return frame.filter(pl.col("name").to_physical().is_in(codes)) if codes else frame.clear()


def _united(spans: Iterable[Intervals]) -> Intervals:
    parts = list(spans)
    return Intervals.from_arrays(
        np.concatenate([s.starts for s in parts]), np.concatenate([s.ends for s in parts])
    )


def host_time(trace: Trace, schedule: GpuSchedule) -> HostTime:
    """Find what each host thread of a schedule did at every instant of its window."""
    host_threads = LaunchThreads(schedule)
    present = [layer for layer in layers(trace, host_threads) if len(layer[1])]
    windows = host_threads.windows
    edges = [array for _, spans in present for array in (spans.starts, spans.ends)]
    cuts = distinct(windows.starts, windows.ends, *edges)
    cause = np.full(max(len(cuts) - 1, 0), int(IdleCause.FRAMEWORK))
    for layer, spans in reversed(present):
        cause[contains(spans, cuts[:-1])] = layer
    cause[~contains(windows, cuts[:-1])] = len(IdleCause)  # between two host threads
    kept = np.append(np.diff(cause, prepend=-1) != 0, True)[: len(cuts)]
    cuts, cause = cuts[kept], cause[kept[:-1]]
    host_thread = host_threads.axis.host_thread(cuts)
    time_ns = cuts - host_thread * (host_threads.axis.length_ns + 1) + host_threads.axis.start_ns
    length_ns = np.diff(cuts)
    causes = np.flatnonzero(np.bincount(cause, minlength=len(IdleCause))[: len(IdleCause)])
    spent_ns = np.zeros((len(cuts), len(causes)), np.int64)
    for column, number in enumerate(causes):
        spent_ns[1:, column] = np.cumsum(np.where(cause == number, length_ns, 0))
    return HostTime(host_thread, time_ns, causes, spent_ns)
