"""Events of a device's plane.

Kernels and copies, with modules, operations and annotations overlaid.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.readers.jax import jax_event_texts
from gpusight.readers.jax.plane_events import EVENT_COLUMNS, KeptEvents, PlaneTables, enumerated
from gpusight.readers.jax.xspace import named
from gpusight.readers.name_columns import demangle_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpusight.readers.jax.plane_events import EventBatch
    from gpusight.readers.jax.xspace import XPlane


OVERLAY = "overlay"
_MODULE, _OPERATOR, _ANNOTATION = "module", "operator", "annotation"
KINDS = {
    "XLA Modules": _MODULE,
    "XLA Ops": _OPERATOR,
    "Async XLA Ops": _OPERATOR,
    "Host Offload Ops": _OPERATOR,
    "Framework Ops": _ANNOTATION,
    "TensorFlow Ops": _ANNOTATION,
    "Framework Name Scope": _ANNOTATION,
    "TensorFlow Name Scope": _ANNOTATION,
    "Source code": _ANNOTATION,
    "Steps": _ANNOTATION,
}
"""Lines on which the profiler draws what the work belongs to."""
_STEPS = "Steps"
TEXTS = {
    "hlo_module": "module",
    "hlo_op": "operation",
    "name": "framework_name",
    "tf_op": "framework_op",
}
"""Stats that say what a piece of work belongs to, and the columns that they are read into."""
_OWNERS = ("line", "scope", *TEXTS.values())
COLUMNS = (*_OWNERS, "start_ns", "end_ns")
_RANGE = ("line", "start_ns", "end_ns", "name", "kind")
_MAX_SCOPES = 64


def merged(work: pl.DataFrame) -> pl.DataFrame:
    """Join work that follows on its line and belongs to the same."""
    differs = pl.any_horizontal(pl.col(c).ne_missing(pl.col(c).shift()) for c in _OWNERS)
    first = work.select(differs).to_series().arg_true()
    if not len(first):
        return work
    at = first.to_numpy()
    return work.select(_OWNERS)[first].with_columns(
        start_ns=pl.Series(np.minimum.reduceat(work["start_ns"].to_numpy(), at)),
        end_ns=pl.Series(np.maximum.reduceat(work["end_ns"].to_numpy(), at)),
    )


def drawn_by_profiler(
    events: pl.DataFrame, names: Sequence[str], lines: Sequence[str]
) -> pl.DataFrame:
    """Name what the profiler drew on lines of its own; steps are mere numbers there."""
    kinds = pl.Series([KINDS.get(line) for line in lines], dtype=pl.String)
    steps = pl.Series([line == _STEPS for line in lines], dtype=pl.Boolean)
    texts = pl.Series(names, dtype=pl.String).gather(events["kind"])
    numbered = steps.gather(events["line"]) & texts.str.contains(r"^\d+$")
    return events.with_columns(
        name=pl.when(numbered).then("step#" + texts).otherwise(texts),
        kind=kinds.gather(events["line"]),
    ).select(_RANGE)


def overlay_work(
    overlay: pl.DataFrame, words: Sequence[str], scopes: Mapping[int, int], known: set[str]
) -> Iterator[pl.DataFrame]:
    """Lay over the work what the profiler has not drawn; `known` are the kinds that it has."""
    paths = [place for place, word in enumerate(words) if "/" in word]
    # What has no path in it is the name of a variable, or a mere filler.
    programs = [
        pl.when(pl.col(column).is_in(paths)).then(pl.col(column))
        for column in ("framework_name", "framework_op")
    ]
    roots = overlay["scope"].replace_strict(
        _roots(overlay["scope"], scopes), default=None, return_dtype=pl.Int64
    )
    for kind, what, execution in (
        (_MODULE, pl.col("module"), roots),
        (_OPERATOR, pl.col("operation"), pl.col("scope")),
        (_ANNOTATION, pl.coalesce(*programs), pl.col("scope")),
    ):
        if kind not in known:
            ranges = _executions(overlay.with_columns(what=what, execution=execution))
            names = pl.Series(words, dtype=pl.String).gather(ranges["what"])
            yield ranges.with_columns(names.alias("name"), kind=pl.lit(kind)).select(_RANGE)


def _roots(scope: pl.Series, scopes: Mapping[int, int]) -> dict[int, int]:
    """Follow each scope to the outermost one around it: the execution of a module."""
    roots: dict[int, int] = {}
    for inner in scope.drop_nulls().unique().to_list():
        outer = inner
        for _ in range(_MAX_SCOPES):
            if outer not in scopes:
                break
            outer = scopes[outer]
        roots[inner] = outer
    return roots


def _executions(work: pl.DataFrame) -> pl.DataFrame:
    ordered = work.filter(pl.col("what").is_not_null()).sort("line", "start_ns")
    differs = [pl.col(c).ne_missing(pl.col(c).shift()) for c in ("line", "what")]
    run = pl.any_horizontal(differs).cum_sum().cast(pl.Int64)
    return (
        ordered.with_columns(execution=pl.coalesce("execution", -1 - run))
        .group_by("line", "execution", "what", maintain_order=True)
        .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
    )


def outer_and_inner(operations: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Tell operations that enclose others from those that do the work."""
    from gpusight.trace.intervals import nest

    _, parent = nest(
        operations["start_ns"].to_numpy(),
        operations["end_ns"].to_numpy(),
        operations["line"].to_numpy().astype(np.int64),
    )
    encloses = np.zeros(operations.height, np.bool_)
    encloses[parent[parent >= 0]] = True
    return operations.filter(encloses), operations.filter(~encloses)


_DEVICE = re.compile(r"/device:(?:GPU|TPU):(\d{1,5})$")
_STREAM = re.compile(r"Stream #(\d{1,18})")
_OPERATIONS = "XLA Ops"
WORK, EXECUTED, DRAWN, SAMPLED, OVERHEAD = "work", "executed", "drawn", "sampled", "overhead"
_UNKNOWN = "unknown"
_ROLES = {
    **dict.fromkeys(KINDS, DRAWN),
    "_counters_": SAMPLED,
    "CUPTI overhead": OVERHEAD,
}
"""What the events of a line are, by its name."""
KERNEL, COPY, FILL, GRAPH = "kernels", "copies", "fills", "graphs"
_RESIDENCY, _MIGRATION = "lifetimes of memory", "unified-memory events"
_UNSIZED = "copies and fills of unknown size"
_SORT_OF_WORK = (
    pl.when(pl.col("graph_exec").is_not_null())
    .then(pl.lit(GRAPH))
    .when(pl.col("copied").is_not_null())
    .then(pl.lit(COPY))
    .when(pl.col("filled").is_not_null())
    .then(pl.lit(FILL))
    .when(pl.col("resident").is_not_null())
    .then(pl.lit(_RESIDENCY))
    .otherwise(pl.col("by_name"))
)
_NUMBERS = {
    "correlation_id": "correlation",
    "cuda_graph_id": "graph",
    "cuda_graph_node_id": "graph_node",
    "cuda_graph_exec_id": "graph_exec",
    "scope_range_id": "scope",
}
_TEXTS = {
    "context_id": "context",
    "kernel_details": "launch",
    "memcpy_details": "copied",
    "Memset_details": "filled",
    "MemoryResidency_details": "resident",
    **TEXTS,
}
_ISSUED = (*EVENT_COLUMNS, "correlation", "context")
_LAUNCHED = (*_ISSUED, "graph", "graph_node", "launch", "occupancy")
_KEPT: dict[str, tuple[str, ...]] = {
    KERNEL: _LAUNCHED,
    EXECUTED: _LAUNCHED,
    COPY: (*_ISSUED, "graph_node", "copied"),
    FILL: (*_ISSUED, "graph_node", "filled"),
    GRAPH: (*_ISSUED, "graph", "graph_exec"),
    DRAWN: EVENT_COLUMNS,
    SAMPLED: (*EVENT_COLUMNS, "value"),
    OVERHEAD: EVENT_COLUMNS,
    OVERLAY: COLUMNS,
}
"""What is kept of each sort of event until all are decoded: no more than will be needed."""

_TYPES: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(_TEXTS.values(), pl.Int32),
    **dict.fromkeys(_NUMBERS.values(), pl.Int64),
    **dict.fromkeys(("occupancy", "value"), pl.Float64),
}


STATS = (*_NUMBERS, *_TEXTS, "theoretical_occupancy_pct")
"""Every stat that is looked at."""


def device_number(plane: XPlane) -> int | None:
    """Tell which device a plane is about, if it is about one."""
    match = _DEVICE.match(plane.name)
    return int(match[1]) if match else None


class DeviceEvents:
    """The events of a device, sorted out batch by batch."""

    def __init__(self, plane: XPlane) -> None:
        self._plane = plane
        streams = [_STREAM.match(line.name) for line in plane.lines]
        by_line = {**_ROLES, _OPERATIONS: DRAWN if any(streams) else EXECUTED}
        roles = [
            WORK if stream else by_line.get(line.name, _UNKNOWN)
            for line, stream in zip(plane.lines, streams, strict=True)
        ]
        numbers = [
            int(stream[1]) if stream else line.id if role == EXECUTED else None
            for line, stream, role in zip(plane.lines, streams, roles, strict=True)
        ]
        self._roles = pl.Series(roles, dtype=pl.String)
        self.streams = pl.Series("stream", numbers, dtype=pl.Int64)
        """Which stream each line is; none where it is no line of work."""
        self._sampled = SAMPLED in roles
        self._by_name = pl.Series(map(_sort_by_name, plane.kinds.texts), dtype=pl.String)
        self._kept = KeptEvents(_KEPT, _TYPES)
        self.take = self._kept.take

    def add(self, batch: EventBatch) -> None:
        """Sort out some more events."""
        events = self._columns(batch).filter(pl.col("kind") >= 0)
        work = pl.col("sort") == WORK
        self._kept.keep(OVERLAY, merged(events.filter(work).select(COLUMNS)))
        self._kept.sort_out(
            events.with_columns(sort=pl.when(work).then(_SORT_OF_WORK).otherwise("sort"))
        )

    def _columns(self, batch: EventBatch) -> pl.DataFrame:
        """Put together what may be wanted of the events of a batch."""
        events, stats = batch
        return events.hstack(
            [
                self._roles.gather(events["line"]).alias("sort"),
                self._by_name.gather(events["kind"].clip(0)).alias("by_name"),
                *(stats.integers(stat).alias(name) for stat, name in _NUMBERS.items()),
                *(stats.texts(stat).alias(name) for stat, name in _TEXTS.items()),
                stats.reals("theoretical_occupancy_pct").alias("occupancy"),
                *([stats.any_number().alias("value")] if self._sampled else []),
            ]
        )

    def unread(self, unsized: int) -> list[str]:
        """Name what no table is made of; `unsized` copies and fills were found so later."""
        counts = {sort: self._kept.count(sort) for sort in (_RESIDENCY, _MIGRATION, _UNSIZED)}
        counts[_UNSIZED] += unsized
        lines = {self._plane.lines[line].name for line in self._kept.lines(_UNKNOWN)}
        return [
            *(f"{count:,} {sort}" for sort, count in counts.items() if count),
            *([f"lines {enumerated(lines)} of {self._plane.name}"] if lines else []),
        ]


def _sort_by_name(name: str) -> str:
    """Tell what a piece of work without details is."""
    if name.startswith("UM_"):
        return _MIGRATION
    return _UNSIZED if re.match(r"Mem(?:cpy\w+|set(?: \d+)?)$", name) else KERNEL


def read_device(
    plane: XPlane, batches: Iterable[EventBatch], process: int | None, scopes: Mapping[int, int]
) -> PlaneTables:
    """Read a device's plane; `scopes` leads from a scope of the host to the one around it."""
    events = DeviceEvents(plane)
    for batch in batches:
        events.add(batch)
    maker = _Tables(plane, events, process)
    tables = maker.all(scopes)
    return PlaneTables(tables, [f"not read: {what}" for what in events.unread(maker.unsized)])


class _Tables:
    """Makes the tables of one device."""

    def __init__(self, plane: XPlane, events: DeviceEvents, process: int | None) -> None:
        self.unsized = 0
        """Copies and fills whose details do not say how much."""
        self._take = events.take
        self._streams = events.streams
        self._names = plane.kinds.texts
        self._words = plane.words.texts
        self._lines = [line.name for line in plane.lines]
        self._constants = (
            pl.lit(device_number(plane), pl.Int64).alias("device"),
            pl.lit(process, pl.Int64).alias("process"),
        )

    def all(self, scopes: Mapping[int, int]) -> dict[str, pl.DataFrame]:
        """Make all of them, with or without rows."""
        outer, inner = outer_and_inner(self._take(EXECUTED))
        overlay = self._take(OVERLAY)
        return {
            "streams": self._stream_table(overlay),
            "gpu_ranges": self._ranges(outer, overlay, scopes),
            "kernels": self._kernels(pl.concat([self._take(KERNEL), inner])),
            "copies": self._copies(self._take(COPY)),
            "memsets": self._fills(self._take(FILL)),
            "graph_launches": self._issued(self._take(GRAPH), "graph", "graph_exec"),
            "gpu_metrics": self._samples(self._take(SAMPLED)),
            "overheads": self._overheads(self._take(OVERHEAD)),
        }

    def _issued(self, events: pl.DataFrame, *more: str | pl.Series | pl.Expr) -> pl.DataFrame:
        """Say when, where and by what call a piece of work was done, and `more`."""
        context = jax_event_texts.facts_by_row(
            events["context"], self._words, jax_event_texts.context_facts, jax_event_texts.CONTEXT
        )
        return events.select(
            "start_ns",
            "end_ns",
            *self._constants,
            self._streams.gather(events["line"]),
            "correlation",
            *context,
            *more,
        )

    def _kernels(self, events: pl.DataFrame) -> pl.DataFrame:
        facts = jax_event_texts.facts_by_row(
            events["launch"],
            self._words,
            jax_event_texts.kernel_facts,
            jax_event_texts.KERNEL_FACTS,
        )
        share = pl.col("occupancy") / 100
        return self._issued(
            events,
            named(events["kind"], self._names, demangle_names),
            "graph",
            "graph_node",
            pl.when(share.is_between(0, 1, closed="right")).then(share).alias("occupancy"),
            *facts,
        )

    def _copies(self, events: pl.DataFrame) -> pl.DataFrame:
        facts = jax_event_texts.facts_by_row(
            events["copied"], self._words, jax_event_texts.copy_facts, jax_event_texts.COPY_FACTS
        )
        said = named(events["kind"], self._names).cast(pl.String)
        kinds = said.replace_strict(
            jax_event_texts.COPY_KINDS, default=None, return_dtype=pl.String
        )
        peer = pl.col("kind") == jax_event_texts.PEER
        rows = self._issued(events, "graph_node", kinds.alias("kind"), *facts)
        return (
            self._sized(rows)
            .with_columns(
                pl.coalesce("kind", "between").alias("kind"),
                pl.when(peer).then("device").alias("src_device"),
                pl.when(peer).then("destination").alias("dst_device"),
            )
            .drop("between", "destination")
        )

    def _fills(self, events: pl.DataFrame) -> pl.DataFrame:
        facts = jax_event_texts.facts_by_row(
            events["filled"], self._words, jax_event_texts.fill_facts, jax_event_texts.FILL_FACTS
        )
        return self._sized(self._issued(events, "graph_node", *facts))

    def _sized(self, rows: pl.DataFrame) -> pl.DataFrame:
        self.unsized += rows["bytes"].null_count()
        return rows.filter(pl.col("bytes").is_not_null())

    def _samples(self, events: pl.DataFrame) -> pl.DataFrame:
        metric = named(events["kind"], self._names).alias("metric")
        rows = events.select(self._constants[0], "value", metric, time_ns="start_ns")
        return rows.filter(pl.col("value").is_not_null())

    def _overheads(self, events: pl.DataFrame) -> pl.DataFrame:
        name = named(events["kind"], self._names)
        thread = pl.lit(None, pl.Int64).alias("thread")
        return events.select("start_ns", "end_ns", thread, self._constants[1], name)

    def _ranges(
        self, outer: pl.DataFrame, overlay: pl.DataFrame, scopes: Mapping[int, int]
    ) -> pl.DataFrame:
        found = [
            drawn_by_profiler(events, self._names, self._lines)
            for events in (self._take(DRAWN), outer)
        ]
        known = {kind for frame in found for kind in frame["kind"].unique()}
        ranges = pl.concat([*found, *overlay_work(overlay, self._words, scopes, known)])
        stream = self._streams.gather(ranges["line"])
        return ranges.select("start_ns", "end_ns", "name", "kind", stream, *self._constants)

    def _stream_table(self, overlay: pl.DataFrame) -> pl.DataFrame:
        stream = self._streams.gather(overlay["line"].unique(maintain_order=True))
        return stream.unique(maintain_order=True).to_frame().with_columns(self._constants[1])
