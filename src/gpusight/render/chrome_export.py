"""A trace as Chrome trace events: opens in ui.perfetto.dev and chrome://tracing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, BinaryIO

import msgspec
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.selection import ACTIVITY, EVERYTHING, GPU_WORK, ResolvedSelection, Selection
from gpusight.naming.kernel_names import classify, unique_short_names
from gpusight.sniff import OWN_TIMELINE
from gpusight.trace.trace import RANKS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from gpusight.trace.trace import Trace


BATCH_ROWS = 50_000

# Operating systems give out numbers far below these, so that ours never meet theirs.
_GPU_PID = 1_000_000_000
_OWN_TID = 1_000_000_000

_GPU_COLUMNS = ["start_ns", "end_ns", "device", "process", "context", "stream", "correlation"]
_STREAM = ["device", "process", "context", "stream"]
_GRID = ("grid_x", "grid_y", "grid_z")
_BLOCK = ("block_x", "block_y", "block_z")
_KERNEL_ARGS = {
    "registers_per_thread": "registers per thread",
    "static_shared_bytes": "static shared memory",
    "dynamic_shared_bytes": "dynamic shared memory",
    "graph_node": "graph node",
}
_EXTRA_COLUMNS = {
    "kernels": ["name", *_GRID, *_BLOCK, *_KERNEL_ARGS],
    "copies": ["kind", "bytes", "src_kind", "dst_kind"],
    "memsets": ["bytes", "value", "memory_kind"],
    "graph_launches": ["graph", "graph_exec"],
}


@dataclass(frozen=True, slots=True)
class ExportSummary:
    """What was written: events of each kind, and bytes before any compression."""

    counts: Mapping[str, int]
    bytes_written: int

    @property
    def events(self) -> int:
        """All events, those that only name tracks included."""
        return sum(self.counts.values())


TIMELINE = (*ACTIVITY, "os_calls", "python_calls", "gpu_metrics", "memory_events")
"""Tables that a timeline is drawn from."""


@dataclass(frozen=True, slots=True)
class RankFlows:
    """What the timeline of several ranks has beyond that of one."""

    about: Mapping[str, Any]
    """Metadata of the file: how clocks were aligned."""
    instances: pl.DataFrame
    """`at`, `rank`, `start_ns` and `end_ns` of each collective on each rank."""


def write_chrome_trace(
    trace: Trace,
    out: BinaryIO,
    selection: Selection = EVERYTHING,
    links: RankFlows | None = None,
) -> ExportSummary:
    """Write the selected part of a trace as one JSON object; `out` may compress."""
    scope = ResolvedSelection(trace, selection)
    scope.prepare(*TIMELINE)
    events = _Events(out)
    tracks = _Tracks(trace)
    about = OWN_TIMELINE
    if links is not None:
        about += "," + msgspec.json.encode(links.about).decode()[1:-1]
    events.raw(b'{"displayTimeUnit":"ns","otherData":{%b},"traceEvents":[\n' % about.encode())
    calls = _write_host(scope, events, tracks, "api_calls", "api")
    _write_host(scope, events, tracks, "os_calls", "os")
    _write_host(scope, events, tracks, "cpu_ops", "op")
    _write_host(scope, events, tracks, "python_calls", "python")
    _write_ranges(scope, events, tracks)
    placed = _write_gpu(scope, events, tracks, calls)
    if links is not None:
        placed = pl.concat([placed, _write_collectives(scope, events, tracks)])
        _write_collective_flows(events, links, placed)
    _write_counters(scope, events)
    names = pl.DataFrame({"text": tracks.metadata()}, schema={"text": pl.String})
    events.write("metadata", names, pl.col("text"))
    events.raw(b"\n]}\n")
    return ExportSummary(dict(events.counts), events.bytes_written)


@dataclass
class _Events:
    """The list of events in the file, written a batch at a time."""

    out: BinaryIO
    counts: Counter[str] = field(default_factory=Counter)
    bytes_written: int = 0

    def write(self, kind: str, frame: pl.DataFrame, text: pl.Expr, each: int = 1) -> None:
        """Append a text for every row; it holds `each` events."""
        for batch in frame.iter_slices(BATCH_ROWS) if frame.height else ():
            lines: str = batch.select(text.str.join(",\n")).item()
            self.raw((",\n" if self.counts else "").encode() + lines.encode())
            self.counts[kind] += batch.height * each

    def raw(self, data: bytes) -> None:
        self.out.write(data)
        self.bytes_written += len(data)


class _Tracks:
    """Numbers and names of the viewers' processes and threads."""

    def __init__(self, trace: Trace) -> None:
        processes = trace.table("processes", ["process", "pid", "name"])
        pids = Counter(processes["pid"])
        of_ranks = trace.meta.source == RANKS
        self._of_ranks = of_ranks
        self._processes = {
            # Two machines of one capture may use one number: then our own keeps them apart.
            key: (
                key if of_ranks else pid if pids[pid] == 1 else _OWN_TID + row,
                f"{name or 'process'} {pid}",
            )
            for row, (key, pid, name) in enumerate(processes.iter_rows())
        }
        threads = trace.table("threads", ["thread", "tid", "name"])
        self._threads = {key: (tid, name or "thread") for key, tid, name in threads.iter_rows()}
        names = trace.table("devices", ["device", "name"])
        self._devices = dict(names.iter_rows())
        streams = trace.table("streams", ["process", "context", "stream", "name"])
        self._streams = {tuple(key): name for *key, name in streams.iter_rows() if name}
        self._named_pids: dict[int, tuple[str, int]] = {}
        self._named_tids: dict[tuple[int, int], tuple[str, int]] = {}

    def process(self, process: int | None) -> int:
        """Give the number of a process."""
        pid, name = self._processes.get(process or 0, (process or 0, "process"))
        order = pid if self._of_ranks else len(self._named_pids)
        self._named_pids.setdefault(pid, (name, order))
        return pid

    def host(self, process: int | None, thread: int | None, kind: str, line: int) -> dict[str, int]:
        """Return the track of a thread's calls, or another track of this thread."""
        pid = self.process(process)
        tid, label = self._threads.get(thread or 0, (thread or 0, "thread"))
        order = list(self._threads).index(thread) if thread in self._threads else 0
        title = f"{label} {tid}"
        is_extra = kind != "api" or line > 0
        if is_extra:
            title = f"{title} · {kind}" + (f" ({line + 1})" if line else "")
            tid = _OWN_TID + len(self._named_tids)
        self._named_tids[pid, tid] = (title, order * 4 + (kind == "api") + 2 * (kind == "os"))
        return {"pid": pid, "tid": tid}

    def stream(self, key: tuple[Any, ...], line: int) -> dict[str, int]:
        """Give the track of a CUDA stream."""
        device, process, context, stream = key
        pid = _GPU_PID + device
        word = "Rank" if self._of_ranks else "GPU"
        name = f"{word} {device} {self._devices.get(device) or ''}".strip()
        self._named_pids.setdefault(pid, (name, 100_000 + device))
        owner = self._processes.get(process, (0, "process"))[1]
        title = self._streams.get((process, context, stream)) or f"stream {stream}"
        if len(self._processes) > 1:
            title += f" · {owner}"
        title += f" ({line + 1})" if line else ""
        tid = _OWN_TID + len(self._named_tids)
        self._named_tids[pid, tid] = (title, len(self._named_tids))
        return {"pid": pid, "tid": tid}

    def metadata(self) -> list[str]:
        """Name and order everything that was given out."""
        lines = []
        for pid, (name, order) in self._named_pids.items():
            lines.append(_name_event("process_name", pid, 0, {"name": name}))
            lines.append(_name_event("process_sort_index", pid, 0, {"sort_index": order}))
        for (pid, tid), (name, order) in self._named_tids.items():
            lines.append(_name_event("thread_name", pid, tid, {"name": name}))
            lines.append(_name_event("thread_sort_index", pid, tid, {"sort_index": order}))
        return lines


def _name_event(name: str, pid: int, tid: int, args: dict[str, Any]) -> str:
    event = {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}
    return msgspec.json.encode(event).decode()


# -- host -----------------------------------------------------------------------------------------


def _write_host(
    scope: ResolvedSelection, events: _Events, tracks: _Tracks, table: str, kind: str
) -> pl.DataFrame:
    """Write the calls that threads made; gives where each call with a correlation was drawn."""
    nowhere = pl.DataFrame(schema=dict.fromkeys(_CALL_COLUMNS, pl.Int64))
    if not scope.trace.has(table):
        return nowhere
    arguments = _HOST_ARGUMENTS[table]
    columns = ["start_ns", "end_ns", "name", "process", "thread", *arguments.values()]
    frame = _on_host_tracks(scope.host(table, columns), tracks, kind)
    args = {label: _number(column) for label, column in arguments.items()}
    frame = frame.with_columns(_encoded(frame["name"], "label"))
    events.write(table, frame, _slice(kind, pl.col("label"), args))
    if "correlation" not in arguments:
        return nowhere
    drawn = frame.filter(pl.col("correlation").is_not_null())
    return drawn.select(
        "process", "correlation", call_ns="start_ns", call_pid="pid", call_tid="tid"
    ).unique(["process", "correlation"], keep="first")


_HOST_ARGUMENTS = {
    "api_calls": {"return value": "return_value", "correlation": "correlation"},
    "os_calls": {"return value": "return_value"},
    "cpu_ops": {"sequence": "sequence"},
    "python_calls": {},
}
"""Arguments of each call, by table."""
_CALL_COLUMNS = ("process", "correlation", "call_ns", "call_pid", "call_tid")


def _on_host_tracks(frame: pl.DataFrame, tracks: _Tracks, kind: str) -> pl.DataFrame:
    keys = ["process", "thread", *(["domain"] if "domain" in frame.columns else [])]
    placed = _with_lines(frame, keys, nested=True)
    used = placed.select(*keys, "line").unique(maintain_order=True)
    track_ids = [
        tracks.host(process, thread, " ".join((kind, *filter(None, domain))), line)
        for process, thread, *domain, line in used.iter_rows()
    ]
    return _join_tracks(placed, used, track_ids)


def _write_ranges(scope: ResolvedSelection, events: _Events, tracks: _Tracks) -> None:
    if not scope.trace.has("ranges"):
        return
    columns = ["start_ns", "end_ns", "name", "kind", "domain", "process", "thread", "category"]
    frame = scope.host("ranges", columns).with_columns(pl.col("kind", "domain").cast(pl.String))
    frame = frame.with_columns(_encoded(frame["name"], "label"))
    nested = frame.filter(pl.col("kind") == "push_pop")
    marks = frame.filter(pl.col("kind") == "mark")
    args = {"domain": _text("domain"), "category": _text("category")}
    label = pl.col("label")
    events.write("ranges", _on_host_tracks(nested, tracks, "NVTX"), _slice("nvtx", label, args))
    mark = {"ph": pl.lit('"i"'), "s": pl.lit('"t"'), "cat": pl.lit('"nvtx"'), "name": label}
    text = _object({**mark, **_place(), "ts": _micros()})
    events.write("marks", _on_host_tracks(marks, tracks, "NVTX"), text)
    _write_free_ranges(frame.filter(pl.col("kind") == "start_end"), events, tracks)


def _write_free_ranges(frame: pl.DataFrame, events: _Events, tracks: _Tracks) -> None:
    """Write ranges that may overlap on their thread: each is a track of its own to the viewers."""
    pids = {p: tracks.process(p) for p in frame["process"].unique().sort()}
    placed = frame.with_row_index("id").with_columns(
        pl.col("process").replace_strict(pids, default=0, return_dtype=pl.Int64).alias("pid"),
        pl.lit(0, pl.Int64).alias("tid"),
    )
    about = {"cat": pl.lit('"nvtx"'), "id": pl.col("id").cast(pl.String), "name": pl.col("label")}
    begin = _object({"ph": pl.lit('"b"'), **about, **_place(), "ts": _micros("start_ns")})
    end = _object({"ph": pl.lit('"e"'), **about, **_place(), "ts": _micros("end_ns")})
    pair = pl.concat_str([begin, end], separator=",\n")
    events.write("start_end_ranges", placed, pair, each=2)


# -- GPU ------------------------------------------------------------------------------------------


def _write_gpu(
    scope: ResolvedSelection, events: _Events, tracks: _Tracks, calls: pl.DataFrame
) -> pl.DataFrame:
    """Write GPU work; gives where kernels were drawn, by rank for the timeline of a job."""
    nowhere = pl.DataFrame(schema=dict.fromkeys(_DRAWN_COLUMNS, pl.Int64))
    present = [table for table in GPU_WORK if scope.trace.has(table)]
    if not present:
        return nowhere
    # Lanes are shared by all kinds of work on a stream, so they are found for all at once.
    everything = pl.concat(
        scope.gpu(table, _GPU_COLUMNS).with_row_index("row").with_columns(table=pl.lit(table))
        for table in present
    )
    placed = _with_lines(everything, _STREAM, nested=False)
    used = placed.select(*_STREAM, "line").unique().sort(*_STREAM, "line")
    track_ids = [tracks.stream(tuple(key), line) for *key, line in used.iter_rows()]
    placed = _join_tracks(placed, used, track_ids)
    placed = placed.join(calls, on=["process", "correlation"], how="left", nulls_equal=True)
    placed = placed.with_row_index("flow")
    for table in present:
        rows = placed.filter(pl.col("table") == table).sort("row").drop("row", "table")
        extra = scope.gpu(table, _EXTRA_COLUMNS[table])
        events.write(table, *_gpu_slice(table, rows.hstack(extra.get_columns())))
        linked = rows.filter(pl.col("call_ns").is_not_null())
        events.write("flow_ends", linked, _flow(), each=2)
    kernels = placed.filter(pl.col("table") == "kernels").rename({"device": "rank"})
    return kernels.select(_DRAWN_COLUMNS)


_DRAWN_COLUMNS = ("rank", "start_ns", "end_ns", "pid", "tid")


def _write_collectives(scope: ResolvedSelection, events: _Events, tracks: _Tracks) -> pl.DataFrame:
    """Write collectives that hosts run (gloo, MPI); gives where they were drawn, by rank."""
    if not scope.trace.has("collectives"):
        return pl.DataFrame(schema=dict.fromkeys(_DRAWN_COLUMNS, pl.Int64))
    columns = ["start_ns", "end_ns", "name", "side", "process", "thread", "group", "in_bytes"]
    frame = scope.host("collectives", columns).filter(pl.col("side").cast(pl.String) == "host")
    frame = _on_host_tracks(frame, tracks, "collectives")
    frame = frame.with_columns(_encoded(frame["name"], "label"))
    args = {"group": _text("group"), "bytes": _number("in_bytes")}
    events.write("collectives", frame, _slice("collective", pl.col("label"), args))
    return frame.rename({"process": "rank"}).select(_DRAWN_COLUMNS)


def _write_collective_flows(events: _Events, links: RankFlows, placed: pl.DataFrame) -> None:
    """Draw arrows from the rank that is first in a collective to the next, up to the last."""
    keys = ["rank", "start_ns", "end_ns"]
    ends = links.instances.join(placed.unique(keys, keep="first"), on=keys, how="inner")
    ends = ends.unique(["at", "rank"], keep="first").sort("at", "start_ns", "rank")
    ends = ends.with_columns(
        first=pl.col("rank").cum_count().over("at") == 1,
        last=pl.col("rank").cum_count(reverse=True).over("at") == 1,
    ).filter(~(pl.col("first") & pl.col("last")))
    phase = pl.when("first").then(pl.lit('"s"')).when("last").then(pl.lit('"f"'))
    about = {
        "ph": phase.otherwise(pl.lit('"t"')),
        "bp": pl.lit('"e"'),
        "cat": pl.lit('"collective"'),
        "name": pl.lit('"collective"'),
        "id": pl.col("at").cast(pl.String),
    }
    events.write("collective_flows", ends, _object({**about, **_place(), "ts": _micros()}))


def _gpu_slice(table: str, rows: pl.DataFrame) -> tuple[pl.DataFrame, pl.Expr]:
    args = {"stream": _number("stream"), "correlation": _number("correlation")}
    if table == "kernels":
        about = [classify(name) for name in names_of(rows["name"])]
        labels = unique_short_names(k.raw for k in about)
        short = _lookup(rows["name"], [_quote(labels[k.raw]) for k in about], "label")
        category = _lookup(rows["name"], [_quote(k.category) for k in about], "category")
        named = rows.with_columns(short, category, _encoded(rows["name"], "full_name"))
        args["name"] = pl.col("full_name")
        args["category"] = pl.col("category")
        args["grid"], args["block"] = _triple(_GRID), _triple(_BLOCK)
        args |= {label: _number(column) for column, label in _KERNEL_ARGS.items()}
        return named, _slice("kernel", pl.col("label"), args)
    if table == "graph_launches":
        args |= {"graph": _number("graph"), "graph exec": _number("graph_exec")}
        return rows, _slice("graph", pl.lit('"CUDA graph"'), args)
    args["bytes"] = _number("bytes")
    if table == "memsets":
        args |= {"value": _number("value"), "memory": _text("memory_kind")}
        return rows, _slice("memset", pl.lit('"Memset"'), args)
    args |= {"from": _text("src_kind"), "to": _text("dst_kind")}
    label = _quoted(pl.concat_str(pl.lit("Memcpy "), pl.col("kind").cast(pl.String)))
    return rows, _slice("memcpy", label, args)


def _flow() -> pl.Expr:
    """Draw an arrow from a call to the work it launched: both ends on one line."""
    about = {
        "cat": pl.lit('"launch"'),
        "name": pl.lit('"launch"'),
        "id": pl.col("flow").cast(pl.String),
    }
    start = {"pid": _number("call_pid"), "tid": _number("call_tid"), "ts": _micros("call_ns")}
    begin = _object({"ph": pl.lit('"s"'), **about, **start})
    end = _object({"ph": pl.lit('"f"'), "bp": pl.lit('"e"'), **about, **_place(), "ts": _micros()})
    return pl.concat_str([begin, end], separator=",\n")


# -- counters -------------------------------------------------------------------------------------


def _write_counters(scope: ResolvedSelection, events: _Events) -> None:
    for frame in _counter_frames(scope):
        counter = {
            "ph": pl.lit('"C"'),
            "name": _quoted(pl.col("label")),
            "pid": (pl.col("device").fill_null(0) + _GPU_PID).cast(pl.String),
            "ts": _micros("time_ns"),
            "args": _object({"value": _number("value")}),
        }
        events.write("counters", frame, _object(counter))


def _counter_frames(scope: ResolvedSelection) -> Iterator[pl.DataFrame]:
    """Give time_ns, device, label and value of everything that has a value over time."""
    trace = scope.trace
    wanted = pl.lit(value=True)
    if scope.selection:
        wanted = pl.col("time_ns").is_between(scope.window.start_ns, scope.window.end_ns)
    if scope.selection.device is not None:
        wanted &= pl.col("device") == scope.selection.device
    if trace.has("gpu_metrics"):
        frame = trace.table("gpu_metrics", ["time_ns", "device", "metric", "value"])
        # JSON has no words for what is not a number.
        known = wanted & pl.col("value").is_finite()
        yield frame.filter(known).rename({"metric": "label"})
    if trace.has("memory_events"):
        columns = ["time_ns", "device", "operation", "memory_kind", "bytes"]
        frame = trace.table("memory_events", columns)
        taken = pl.col("operation").cast(pl.String) == "allocation"
        change = pl.when(taken).then(pl.col("bytes")).otherwise(-pl.col("bytes"))
        kind = pl.col("memory_kind").cast(pl.String).fill_null("unknown")
        label = pl.concat_str(pl.lit("Memory in bytes: "), kind)
        held = change.cum_sum().over("device", "memory_kind")
        yield frame.select("time_ns", "device", label.alias("label"), held.alias("value")).filter(
            wanted
        )


# -- tracks ---------------------------------------------------------------------------------------


def _with_lines(frame: pl.DataFrame, keys: list[str], *, nested: bool) -> pl.DataFrame:
    """Add the line of each event on its track; 0 unless events of the track collide."""
    ordered = frame.sort(["start_ns", "end_ns"], descending=[False, True], maintain_order=True)
    reached = pl.col("end_ns").cum_max().shift(1).over(keys)
    collides = (pl.col("start_ns") < reached).any().over(keys)
    plain = ordered.with_columns(collides.alias("collides"), line=pl.lit(0, pl.Int64))
    busy = plain.filter(pl.col("collides"))
    if busy.is_empty():
        return plain.drop("collides")
    parts = [plain.filter(~pl.col("collides"))]
    for _, part in busy.group_by(keys, maintain_order=True):
        lines = _lines(part["start_ns"].to_list(), part["end_ns"].to_list(), nested=nested)
        parts.append(part.with_columns(pl.Series("line", lines, pl.Int64)))
    return pl.concat(parts).drop("collides")


def _lines(starts: list[int], ends: list[int], *, nested: bool) -> list[int]:
    """Put each event on the first line where it fits: free, or (nested) inside what is open."""
    open_ends: list[list[int]] = []
    lines = []
    for start, end in zip(starts, ends, strict=True):
        for line, stack in enumerate(open_ends):
            while stack and stack[-1] <= start:
                stack.pop()
            if not stack or (nested and end <= stack[-1]):
                stack.append(end)
                lines.append(line)
                break
        else:
            lines.append(len(open_ends))
            open_ends.append([end])
    return lines


def _join_tracks(
    placed: pl.DataFrame, used: pl.DataFrame, tracks: list[dict[str, int]]
) -> pl.DataFrame:
    numbers = pl.DataFrame(tracks, schema={"pid": pl.Int64, "tid": pl.Int64})
    known = used.hstack(numbers)
    return placed.join(known, on=used.columns, how="left", nulls_equal=True, maintain_order="left")


# -- JSON text ------------------------------------------------------------------------------------


def _slice(category: str, label: pl.Expr, args: Mapping[str, pl.Expr]) -> pl.Expr:
    return _object(
        {
            "ph": pl.lit('"X"'),
            "cat": pl.lit(_quote(category)),
            "name": label,
            **_place(),
            "ts": _micros(),
            "dur": _micros_of(pl.col("end_ns") - pl.col("start_ns")),
            "args": _object(args),
        }
    )


def _object(values: Mapping[str, pl.Expr]) -> pl.Expr:
    """Build the text of a JSON object from columns that hold JSON text."""
    parts: list[pl.Expr] = []
    for number, (key, value) in enumerate(values.items()):
        parts += [pl.lit(("," if number else "{") + _quote(key) + ":"), value]
    return pl.concat_str([*parts, pl.lit("}")])


def _place() -> dict[str, pl.Expr]:
    return {"pid": _number("pid"), "tid": _number("tid")}


def _number(column: str) -> pl.Expr:
    return pl.col(column).cast(pl.String).fill_null("null")


def _triple(columns: tuple[str, str, str]) -> pl.Expr:
    inner = pl.concat_str([_number(c) for c in columns], separator=",")
    return pl.concat_str(pl.lit("["), inner, pl.lit("]"))


def _micros(column: str = "start_ns") -> pl.Expr:
    return _micros_of(pl.col(column))


def _micros_of(ns: pl.Expr) -> pl.Expr:
    """Write nanoseconds as microseconds with three decimals."""
    size = ns.abs()
    sign = pl.when(ns < 0).then(pl.lit("-")).otherwise(pl.lit(""))
    thousandths = (size % 1000 + 1000).cast(pl.String).str.slice(1)
    return pl.concat_str(sign, (size // 1000).cast(pl.String), pl.lit("."), thousandths)


def _text(column: str) -> pl.Expr:
    return _quoted(pl.col(column).cast(pl.String)).fill_null("null")


def _quoted(text: pl.Expr) -> pl.Expr:
    """Quote texts that repeat: each distinct one is encoded once."""
    return text.cast(pl.String).map_batches(_quote_all, return_dtype=pl.String)


def _quote_all(series: pl.Series) -> pl.Series:
    distinct = series.unique().drop_nulls()
    quoted = pl.Series([_quote(text) for text in distinct], dtype=pl.String)
    return series.replace_strict(distinct, quoted, default=None, return_dtype=pl.String)


def _encoded(names: pl.Series, alias: str) -> pl.Series:
    """Quote a name column through its dictionary."""
    return _lookup(names, [_quote(name) for name in names_of(names)], alias)


def _lookup(names: pl.Series, texts: list[str], alias: str) -> pl.Series:
    """Replace each name by the text for its code."""
    return pl.Series(alias, texts, pl.String).gather(names.to_physical()).rename(alias)


def _quote(text: str) -> str:
    return msgspec.json.encode(text).decode()
