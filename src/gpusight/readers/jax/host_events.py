"""Events of the host's planes: driver calls, Python frames, annotations, allocations.

What an event is follows from its name and stats.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from gpusight.readers.jax.plane_events import (
    EVENT_COLUMNS,
    KeptEvents,
    PlaneTables,
    details_by_row,
    details_of,
)
from gpusight.readers.jax.xspace import named
from gpusight.readers.tables import strip_api_version

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpusight.readers.jax.plane_events import Details, EventBatch
    from gpusight.readers.jax.xspace import PlaneLine, XPlane


PYTHON, RUNTIME, PLAIN, NVTX = "python", "runtime", "plain", "nvtx"
CALL, STEP, MEMORY, OVERHEAD, MARK = "call", "step", "memory", "overhead", "mark"

THREAD_NUMBERS = 1 << 32
"""The profiler's own exports truncate thread ids to 32 bits."""
_MEMORY = {"MemoryAllocation": "allocation", "MemoryDeallocation": "deallocation"}
_OVERHEADS = frozenset({"COMPILER", "BUFFER_FLUSH", "INSTRUMENTATION", "RESOURCE", "<UNKNOWN>"})
_NVTX = "NVTX:"
_MARK = re.compile(r"ThreadpoolListener::(Record|StartRegion|StopRegion)$")
_FUNCTION = re.compile(r"(?:cu|cuda|hip)[A-Z]\w*$")
_RUNTIME = re.compile(
    r"(?:\[\d+\] )?[A-Z]\w*::"  # a class of the runtime and its function
    r"|(?:absl|ifrt|jax|jaxlib|mlir|pjrt|stream_executor|tensorflow|tpu|tsl|xla)::"
    r"|(?:Jit|Pjit|Pmap)Function\("
    r"|PJRT_\w+"
    r"|[DH]2[DH] (?:Copy|Dispatch)\b"
    r"|end: "
    r"|(?:"
    # Annotations of JAX itself, inside or outside of a compiled function's call.
    r"ArrayImpl\.copy_to_host_async|BlockHostUntilReady|DevicePut(?:WithSharding)?|DispatchToHost"
    r"|ExecuteReplicated\.__call__|ParseArguments|UnloadedPmapExecutable\.compile"
    r"|Wait for (?:donation|usage) holds|backend_compile(?:_and_load)?|batched_device_put"
    r"|lower_(?:mesh|sharding)_computation|lower_parallel_callable|np\.asarray\(jax\.Array\)"
    r"|pickle_util\.(?:dumps|loads)|shard_args|trace_to_jaxpr\w*"
    r")$"
)
RUNTIME_STATS = ("_src", "_p", "_pt", "_c", "_ct", "run_id", "hlo_op", "hlo_module", "program_id")
"""Stats that only the runtime gives to its events."""

_SOURCE = re.compile(r"\$(?P<file>.*):(?P<line>\d+) (?P<function>.*)$", re.DOTALL)
_BUILT_IN = re.compile(r"\$(?P<module>\S+) (?P<function>.*)$", re.DOTALL)
_GRAPH = re.compile(r" \(CudaGraph:\d+\)$")
_COPIES = {
    "MemcpyH2D": "MemcpyHtoD",
    "MemcpyD2H": "MemcpyDtoH",
    "MemcpyD2D": "MemcpyDtoD",
    "MemcpyP2P": "MemcpyPeer",
    "MemcpyOther": "Memcpy",
    "Memset": "Memset",
}
_CALLS = {
    "MemoryAlloc": "MemAlloc",
    "MemoryFree": "MemFree",
    "HostRegister": "MemHostRegister",
    "HostUnregister": "MemHostUnregister",
}


def role_of(name: str) -> str:
    """Return the kind of an event by its name, as far as that decides it."""
    if name.startswith("$"):
        return PYTHON
    if name.startswith(_NVTX):
        return NVTX
    if name in _MEMORY:
        return MEMORY
    if name in _OVERHEADS:
        return OVERHEAD
    if _MARK.match(name):
        return MARK
    if _FUNCTION.match(name):
        return CALL
    return RUNTIME if _RUNTIME.match(name) else PLAIN


def is_pool(thread: str, number: int) -> bool:
    """Return whether a thread is of the runtime: the name of such a thread ends in its id."""
    ending = re.search(r"/(-?\d{1,20})$", thread)
    return ending is not None and (int(ending[1]) - number) % THREAD_NUMBERS == 0


def python_name(name: str) -> str:
    """Write `$train.py:12 step` as `train.py(12): step`; built-in functions have no file."""
    source = _SOURCE.match(name)
    if source is not None:
        return f"{source['file']}({source['line']}): {source['function']}"
    built_in = _BUILT_IN.match(name)
    if built_in is None:
        return name.removeprefix("$") or "?"
    module, function = built_in["module"], built_in["function"]
    if module == "<unknown>":
        return f"<built-in method {function}>"
    return f"<built-in function {function if module == 'builtins' else f'{module}.{function}'}>"


def api_name(name: str, detail: str, *, vendor: str) -> str:
    """Return the function of a driver call.

    The profiler records what the call did, not what was called: the name of a launch is that of
    its kernel, the name of a copy its direction.
    """
    symbol = api_symbol(name)
    if symbol is not None:
        return strip_api_version(symbol)
    activity = _GRAPH.sub("", name)
    prefix = "hip" if vendor == "AMD" else "cu"
    if activity in _COPIES:
        suffix = "Async" if details_of(detail).get("async") == "1" else ""
        return f"{prefix}{_COPIES[activity]}{suffix}"
    return prefix + _CALLS.get(activity, "LaunchKernel")


def api_symbol(name: str) -> str | None:
    """Return the function as recorded, where one was."""
    symbol = _GRAPH.sub("", name)
    return symbol if _FUNCTION.match(symbol) else None


_GPU_ALLOCATOR = re.compile(r"GPU_(\d{1,5})")
_ALLOCATOR_SCHEMA = pl.Schema({"device": pl.Int64, "memory_kind": pl.String})
_LONG_AGO = -(1 << 62)


class HostThreads:
    """Numbers the threads of all host planes; lines with the same id are the same thread."""

    def __init__(self, process: int | None) -> None:
        self.process = process
        self._names: dict[int, str] = {}
        self._keys: dict[int, int] = {}

    def key(self, line: PlaneLine) -> int:
        """Return the key of a line's thread."""
        known = self._names.get(line.id)
        if not known or is_pool(known, line.id):
            self._names[line.id] = line.name
        return self._keys.setdefault(line.id, len(self._keys) + 1)

    def table(self) -> pl.DataFrame:
        """Return the table `threads`, with ids as in the profiler's own exports."""
        rows = [
            (key, self.process, line % THREAD_NUMBERS, self._names[line] or None)
            for line, key in self._keys.items()
        ]
        columns = {"thread": pl.Int64, "process": pl.Int64, "tid": pl.Int64, "name": pl.String}
        return pl.DataFrame(rows, schema=columns, orient="row")


class HostTables:
    """Builds the tables of one plane of the host."""

    def __init__(self, plane: XPlane, kept: KeptEvents, threads: HostThreads) -> None:
        self.renamed = False
        """Whether some driver calls are not named after the function that was called."""
        self._take = kept.take
        self._names = plane.kinds.texts
        self._words = plane.words.texts
        pools = [is_pool(line.name, line.id) for line in plane.lines]
        self._pools = pl.Series(pools, dtype=pl.Boolean)
        keys = [threads.key(line) if line.events else None for line in plane.lines]
        self._threads = pl.Series("thread", keys, dtype=pl.Int64)
        self._process = pl.lit(threads.process, pl.Int64).alias("process")

    def all(self, vendor: str) -> dict[str, pl.DataFrame]:
        """Build all of them, with or without rows."""
        annotations, operations = self._annotations_and_operations()
        nvtx = self._take(NVTX)
        names = named(nvtx["kind"], self._names, lambda name: name.removeprefix(_NVTX))
        nvtx = self._ranges(nvtx, names.cast(pl.String))
        return {
            "ranges": pl.concat([annotations, self._steps(), nvtx]),
            "cpu_ops": operations,
            "api_calls": self._api_calls(self._take(CALL), vendor),
            "python_calls": self._calls(self._take(PYTHON), python_name),
            "memory_events": self._memory_events(self._take(MEMORY)),
            "overheads": self._calls(self._take(OVERHEAD)),
        }

    def _calls(self, events: pl.DataFrame, change: Callable[[str], str] = str) -> pl.DataFrame:
        return self._timed(events, named(events["kind"], self._names, change))

    def _timed(self, events: pl.DataFrame, *more: str | pl.Series | pl.Expr) -> pl.DataFrame:
        """Select time and thread of events, and `more`."""
        thread = self._threads.gather(events["line"])
        return events.select("start_ns", "end_ns", thread, self._process, *more)

    def _annotations_and_operations(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Separate the program's annotations from what the runtime did.

        Nothing marks annotations. They are on a thread that runs the program, no event of the
        runtime is open around them, and neither their name nor their stats are the runtime's.
        """
        events = pl.concat(
            [
                self._take(PLAIN).with_columns(runtime=pl.lit(value=False)),
                self._take(RUNTIME).with_columns(runtime=pl.lit(value=True)),
            ]
        )
        events = events.with_columns(thread=self._threads.gather(events["line"])).sort(
            "thread", "start_ns", "end_ns", descending=[False, False, True]
        )
        until_ns = pl.when("runtime").then("end_ns").otherwise(_LONG_AGO).cum_max().shift(1)
        inside = until_ns.over("thread").fill_null(_LONG_AGO) > pl.col("start_ns")
        lasting = pl.col("end_ns") > pl.col("start_ns")
        is_annotation = events.select(~pl.col("runtime") & ~inside & lasting).to_series()
        is_annotation &= ~self._pools.gather(events["line"])
        annotations = events.filter(is_annotation)
        names = named(annotations["kind"], self._names).cast(pl.String)
        return self._ranges(annotations, names), self._calls(events.filter(~is_annotation))

    def _steps(self) -> pl.DataFrame:
        events = self._take(STEP)
        names = named(events["kind"], self._names).cast(pl.String)
        numbered = names + "#" + events["step"].cast(pl.String)
        names = numbered.zip_with(numbered.is_not_null(), names)
        return self._ranges(events, names, events["step"])

    def _ranges(
        self, events: pl.DataFrame, names: pl.Series, number: pl.Series | None = None
    ) -> pl.DataFrame:
        return self._timed(
            events,
            names.alias("name"),
            pl.lit("push_pop").alias("kind"),
            pl.lit("").alias("domain"),
            pl.lit(number, pl.Int64).alias("payload_int"),
        )

    def _api_calls(self, events: pl.DataFrame, vendor: str) -> pl.DataFrame:
        calls = self._timed(
            events, "correlation", "kind", pl.coalesce("copied", "filled").alias("detail")
        )
        keys = ["kind", "detail"]
        functions = calls.select(keys).unique(maintain_order=True)
        details = ["" if d is None else self._words[d] for d in functions["detail"]]
        activities = [self._names[kind] for kind in functions["kind"]]
        names = [api_name(a, d, vendor=vendor) for a, d in zip(activities, details, strict=True)]
        symbols = [api_symbol(activity) for activity in activities]
        self.renamed = None in symbols
        functions = functions.with_columns(
            name=pl.Series(names, dtype=pl.String),
            symbol=pl.Series(
                [s or n for s, n in zip(symbols, names, strict=True)], dtype=pl.String
            ),
            api=pl.Series(
                ["driver" if re.match(r"cu[A-Z]", name) else "runtime" for name in names],
                dtype=pl.String,
            ),
        )
        return calls.join(
            functions, on=keys, how="left", nulls_equal=True, maintain_order="left"
        ).drop(keys)

    def _memory_events(self, events: pl.DataFrame) -> pl.DataFrame:
        allocators = details_by_row(
            events["allocator"], self._words, _allocator_details, _ALLOCATOR_SCHEMA
        )
        operation = named(events["kind"], self._names, _MEMORY.__getitem__)
        rows = events.select(
            self._threads.gather(events["line"]),
            self._process,
            "bytes",
            "address",
            "allocated_bytes",
            operation.alias("operation"),
            *allocators,
            pl.lit("framework").alias("allocator"),
            time_ns="start_ns",
        )
        return rows.filter(pl.col("bytes").is_not_null())


def _allocator_details(name: str) -> Details:
    gpu = _GPU_ALLOCATOR.match(name)
    if gpu is not None:
        return {"device": int(gpu[1]), "memory_kind": "Device"}
    return {"device": None, "memory_kind": "Host"}


_NUMBERS = {
    "correlation_id": "correlation",
    "device_id": "called_device",
    "step_num": "step",
    "_r": "root",
    "allocation_bytes": "bytes",
    "addr": "address",
    "bytes_allocated": "allocated_bytes",
}
_TEXTS = {"memcpy_details": "copied", "Memset_details": "filled", "allocator_name": "allocator"}
_TYPES: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(_NUMBERS.values(), pl.Int64),
    **dict.fromkeys(_TEXTS.values(), pl.Int32),
}
_KEPT = {
    PYTHON: EVENT_COLUMNS,
    CALL: (*EVENT_COLUMNS, "correlation", "copied", "filled"),
    MEMORY: (*EVENT_COLUMNS, "bytes", "address", "allocated_bytes", "allocator"),
    OVERHEAD: EVENT_COLUMNS,
    NVTX: EVENT_COLUMNS,
    STEP: (*EVENT_COLUMNS, "step"),
    PLAIN: EVENT_COLUMNS,
    RUNTIME: EVENT_COLUMNS,
}
_SORT = (
    pl.when(~pl.col("sort").is_in([PLAIN, RUNTIME]))
    .then("sort")
    .when(pl.col("correlation").is_not_null() & pl.col("called_device").is_not_null())
    .then(pl.lit(CALL))
    .when(pl.col("step").is_not_null() | pl.col("root").is_not_null())
    .then(pl.lit(STEP))
    .when(pl.col("runtime"))
    .then(pl.lit(RUNTIME))
    .otherwise("sort")
)
_LAUNCHES = (
    "the profile names driver calls after their kernel or memcpy, not after the function: "
    "launches all stand as one function here"
)


STATS = (*_NUMBERS, *_TEXTS, *RUNTIME_STATS)
"""All stats that are read."""


def read_host(
    plane: XPlane, batches: Iterable[EventBatch], threads: HostThreads, vendor: str
) -> PlaneTables:
    """Read the events of a plane of the host; `vendor` made the devices."""
    roles = pl.Series(map(role_of, plane.kinds.texts), dtype=pl.String)
    kept = KeptEvents(_KEPT, _TYPES)
    for batch in batches:
        kept.sort_out(_columns(batch, roles))
    builder = HostTables(plane, kept, threads)
    tables = builder.all(vendor)
    marks = kept.count(MARK)
    notes = [f"not read: {marks:,} marks of thread pools"] if marks else []
    if builder.renamed:
        notes.append(_LAUNCHES)
    return PlaneTables(tables, notes)


def _columns(batch: EventBatch, roles: pl.Series) -> pl.DataFrame:
    """Decode the columns of a batch of events that tables may need."""
    events, stats = batch
    columns = [
        roles.gather(events["kind"].clip(0)).alias("sort"),
        stats.has(*RUNTIME_STATS).alias("runtime"),
        *(stats.integers(stat).alias(name) for stat, name in _NUMBERS.items()),
        *(stats.texts(stat).alias(name) for stat, name in _TEXTS.items()),
    ]
    return events.hstack(columns).filter(pl.col("kind") >= 0).with_columns(sort=_SORT)
