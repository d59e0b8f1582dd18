"""Events of the host's planes, thread by thread: calls, Python frames, annotations, allocations."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from gpusight.readers.jax import jax_event_texts
from gpusight.readers.jax.jax_event_texts import (
    CALL,
    MARK,
    MEMORY,
    NVTX,
    OVERHEAD,
    PLAIN,
    PYTHON,
    RUNTIME,
    STEP,
    THREAD_NUMBERS,
    is_pool,
)
from gpusight.readers.jax.plane_events import EVENT_COLUMNS, KeptEvents, PlaneTables
from gpusight.readers.jax.xspace import named

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpusight.readers.jax.jax_event_texts import Facts
    from gpusight.readers.jax.plane_events import EventBatch
    from gpusight.readers.jax.xspace import PlaneLine, XPlane


_GPU_ALLOCATOR = re.compile(r"GPU_(\d{1,5})")
_ALLOCATOR_FACTS = pl.Schema({"device": pl.Int64, "memory_kind": pl.String})
_LONG_AGO = -(1 << 62)


class HostThreads:
    """Numbers the threads of all host planes; lines with the same id are the same thread."""

    def __init__(self, process: int | None) -> None:
        self.process = process
        self._names: dict[int, str] = {}
        self._keys: dict[int, int] = {}

    def key(self, line: PlaneLine) -> int:
        """Give the key of a line's thread."""
        known = self._names.get(line.id)
        if not known or is_pool(known, line.id):
            self._names[line.id] = line.name
        return self._keys.setdefault(line.id, len(self._keys) + 1)

    def table(self) -> pl.DataFrame:
        """List them, numbered as in the profiler's own exports."""
        rows = [
            (key, self.process, line % THREAD_NUMBERS, self._names[line] or None)
            for line, key in self._keys.items()
        ]
        columns = {"thread": pl.Int64, "process": pl.Int64, "tid": pl.Int64, "name": pl.String}
        return pl.DataFrame(rows, schema=columns, orient="row")


class HostTables:
    """Makes the tables of one plane of the host."""

    def __init__(self, plane: XPlane, kept: KeptEvents, threads: HostThreads) -> None:
        self.renamed = False
        """Some driver calls were not recorded under the name of the function called."""
        self._take = kept.take
        self._names = plane.kinds.texts
        self._words = plane.words.texts
        pools = [is_pool(line.name, line.id) for line in plane.lines]
        self._pools = pl.Series(pools, dtype=pl.Boolean)
        keys = [threads.key(line) if line.events else None for line in plane.lines]
        self._threads = pl.Series("thread", keys, dtype=pl.Int64)
        self._process = pl.lit(threads.process, pl.Int64).alias("process")

    def all(self, vendor: str) -> dict[str, pl.DataFrame]:
        """Make all of them, with or without rows."""
        annotations, operations = self._told_apart()
        return {
            "ranges": pl.concat([annotations, self._steps(), self._nvtx_ranges()]),
            "cpu_ops": operations,
            "api_calls": self._api_calls(self._take(CALL), vendor),
            "python_calls": self._calls(self._take(PYTHON), jax_event_texts.python_name),
            "memory_events": self._memory_events(self._take(MEMORY)),
            "overheads": self._calls(self._take(OVERHEAD)),
        }

    def _calls(self, events: pl.DataFrame, change: Callable[[str], str] = str) -> pl.DataFrame:
        return self._timed(events, named(events["kind"], self._names, change))

    def _timed(self, events: pl.DataFrame, *more: str | pl.Series | pl.Expr) -> pl.DataFrame:
        """Say when and on which thread something happened, and `more`."""
        thread = self._threads.gather(events["line"])
        return events.select("start_ns", "end_ns", thread, self._process, *more)

    def _told_apart(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Tell the program's annotations from what the runtime did.

        Annotations bear no mark of their own. They are on a thread that runs the program, no event
        of the runtime is open around them, and neither their name nor their stats are its own.
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
        until = pl.when("runtime").then("end_ns").otherwise(_LONG_AGO).cum_max().shift(1)
        inside = until.over("thread").fill_null(_LONG_AGO) > pl.col("start_ns")
        lasting = pl.col("end_ns") > pl.col("start_ns")
        told = events.select(~pl.col("runtime") & ~inside & lasting).to_series()
        told &= ~self._pools.gather(events["line"])
        annotations = events.filter(told)
        names = named(annotations["kind"], self._names).cast(pl.String)
        return self._ranges(annotations, names), self._calls(events.filter(~told))

    def _steps(self) -> pl.DataFrame:
        events = self._take(STEP)
        names = named(events["kind"], self._names).cast(pl.String)
        numbered = names + "#" + events["step"].cast(pl.String)
        names = numbered.zip_with(numbered.is_not_null(), names)
        return self._ranges(events, names, events["step"])

    def _nvtx_ranges(self) -> pl.DataFrame:
        events = self._take(NVTX)
        names = named(events["kind"], self._names, jax_event_texts.nvtx_name)
        return self._ranges(events, names.cast(pl.String))

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
        names = [
            jax_event_texts.api_name(self._names[kind], self._word(detail), vendor=vendor)
            for kind, detail in functions.iter_rows()
        ]
        symbols = [jax_event_texts.api_symbol(self._names[kind]) for kind in functions["kind"]]
        self.renamed = None in symbols
        functions = functions.with_columns(
            name=pl.Series(names, dtype=pl.String),
            symbol=pl.Series(
                [s or n for s, n in zip(symbols, names, strict=True)], dtype=pl.String
            ),
            api=pl.Series(map(jax_event_texts.api_kind, names), dtype=pl.String),
        )
        return calls.join(
            functions, on=keys, how="left", nulls_equal=True, maintain_order="left"
        ).drop(keys)

    def _word(self, place: int | None) -> str:
        return "" if place is None else self._words[place]

    def _memory_events(self, events: pl.DataFrame) -> pl.DataFrame:
        allocators = jax_event_texts.facts_by_row(
            events["allocator"], self._words, _allocator_facts, _ALLOCATOR_FACTS
        )
        operation = named(events["kind"], self._names, jax_event_texts.memory_operation)
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


def _allocator_facts(name: str) -> Facts:
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
    "the profile names a driver call after its kernel or copy, not after the function called: "
    "launches all stand as one function here"
)


STATS = (*_NUMBERS, *_TEXTS, *jax_event_texts.RUNTIME_STATS)
"""Every stat that is looked at."""


def read_host(
    plane: XPlane, batches: Iterable[EventBatch], threads: HostThreads, vendor: str
) -> PlaneTables:
    """Read the events of a plane of the host; `vendor` is who made the devices."""
    roles = pl.Series(map(jax_event_texts.role_of, plane.kinds.texts), dtype=pl.String)
    kept = KeptEvents(_KEPT, _TYPES)
    for batch in batches:
        kept.sort_out(_columns(batch, roles))
    maker = HostTables(plane, kept, threads)
    tables = maker.all(vendor)
    marks = kept.count(MARK)
    notes = [f"not read: {marks:,} marks of thread pools"] if marks else []
    if maker.renamed:
        notes.append(_LAUNCHES)
    return PlaneTables(tables, notes)


def _columns(batch: EventBatch, roles: pl.Series) -> pl.DataFrame:
    """Put together what may be wanted of the events of a batch."""
    events, stats = batch
    columns = [
        roles.gather(events["kind"].clip(0)).alias("sort"),
        stats.has(*jax_event_texts.RUNTIME_STATS).alias("runtime"),
        *(stats.integers(stat).alias(name) for stat, name in _NUMBERS.items()),
        *(stats.texts(stat).alias(name) for stat, name in _TEXTS.items()),
    ]
    return events.hstack(columns).filter(pl.col("kind") >= 0).with_columns(sort=_SORT)
