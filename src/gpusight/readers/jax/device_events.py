"""Events of a device's plane: kernels and copies, and the modules and operations they belong to."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import polars as pl

from gpusight.naming.name_parts import demangle_if_mangled
from gpusight.readers.jax.plane_events import (
    EVENT_COLUMNS,
    KeptEvents,
    PlaneTables,
    details_by_row,
    details_of,
    enumerated,
)
from gpusight.readers.jax.xspace import named
from gpusight.trace.intervals import nest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from gpusight.readers.jax.plane_events import Details, EventBatch
    from gpusight.readers.jax.xspace import XPlane


_INTEGER = re.compile(r"\d{1,18}")
_MEMORY_KINDS = {
    "pageable": "Pageable",
    "pinned": "Pinned",
    "device": "Device",
    "array": "Array",
    "managed": "Managed",
    "device_static": "Device Static",
    "managed_static": "Managed Static",
}
_PEER = "Peer-to-Peer"
_COPY_KINDS = {
    "MemcpyH2D": "Host-to-Device",
    "MemcpyD2H": "Device-to-Host",
    "MemcpyD2D": "Device-to-Device",
    "MemcpyP2P": _PEER,
}
"""Directions by the name of a copy; others follow from the memory on both sides."""
_SIDES = {"Pageable": "Host", "Pinned": "Host", "Device": "Device", "Device Static": "Device"}
_CONTEXT_SCHEMA = pl.Schema({"context": pl.Int64})
_MEMSET_SCHEMA = pl.Schema({"bytes": pl.Int64, "memory_kind": pl.String})
_COPY_SCHEMA = pl.Schema(
    {
        "bytes": pl.Int64,
        "src_kind": pl.String,
        "dst_kind": pl.String,
        "destination": pl.Int64,
        "direction": pl.String,
    }
)
_SIZES = tuple(f"{size}_{axis}" for size in ("grid", "block") for axis in "xyz")
_SHARED = ("static_shared_bytes", "dynamic_shared_bytes", "shared_bytes")
_KERNEL_SCHEMA = pl.Schema(dict.fromkeys((*_SIZES, "registers_per_thread", *_SHARED), pl.Int64))


def _integer(text: str | None) -> int | None:
    return int(text) if text is not None and _INTEGER.fullmatch(text) else None


def _kernel_details(text: str) -> Details:
    details = details_of(text)
    static = _integer(details.get("static_shared"))
    dynamic = _integer(details.get("dynamic_shared"))
    return {
        **_axes("grid", details.get("grid")),
        **_axes("block", details.get("block")),
        "registers_per_thread": _integer(details.get("regs")),
        "static_shared_bytes": static,
        "dynamic_shared_bytes": dynamic,
        "shared_bytes": None if static is None or dynamic is None else static + dynamic,
    }


def _axes(name: str, text: str | None) -> dict[str, int | None]:
    sizes = [_integer(size) for size in (text or "").split(",")]
    if len(sizes) != 3:
        sizes = [None] * 3
    return {f"{name}_{axis}": size for axis, size in zip("xyz", sizes, strict=True)}


def _copy_details(text: str) -> Details:
    """Read what a copy moved; `direction` follows from the kinds of memory."""
    details = details_of(text)
    source = _memory_kind(details.get("kind_src"))
    target = _memory_kind(details.get("kind_dst"))
    sides = [_SIDES.get(kind or "") for kind in (source, target)]
    return {
        "bytes": _integer(details.get("size")),
        "src_kind": source,
        "dst_kind": target,
        "destination": _integer(details.get("dest")),
        "direction": "Unknown" if None in sides else "-to-".join(map(str, sides)),
    }


def _memory_kind(kind: str | None) -> str | None:
    return None if kind is None else _MEMORY_KINDS.get(kind.lower(), "Unknown")


OVERLAY = "overlay"
_MODULE, _OPERATOR, _ANNOTATION = "module", "operator", "annotation"
_RANGE_KINDS = {
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
"""Lines on which the profiler draws what kernels and copies belong to."""
_OWNER_STATS = {
    "hlo_module": "module",
    "hlo_op": "operation",
    "name": "framework_name",
    "tf_op": "framework_op",
}
"""Stats that name what a GPU activity belongs to, and the columns that they are read into."""
_OWNERS = ("line", "scope", *_OWNER_STATS.values())
_OVERLAY_COLUMNS = (*_OWNERS, "start_ns", "end_ns")
_RANGE = ("line", "start_ns", "end_ns", "name", "kind")
_MAX_SCOPES = 64


def _merged(activities: pl.DataFrame) -> pl.DataFrame:
    """Join consecutive activities on a line that belong to the same."""
    differs = pl.any_horizontal(pl.col(c).ne_missing(pl.col(c).shift()) for c in _OWNERS)
    first = activities.select(differs).to_series().arg_true()
    if not len(first):
        return activities
    at = first.to_numpy()
    return activities.select(_OWNERS)[first].with_columns(
        start_ns=pl.Series(np.minimum.reduceat(activities["start_ns"].to_numpy(), at)),
        end_ns=pl.Series(np.maximum.reduceat(activities["end_ns"].to_numpy(), at)),
    )


def _overlay_ranges(
    overlay: pl.DataFrame, words: Sequence[str], scopes: Mapping[int, int], drawn: set[str]
) -> Iterator[pl.DataFrame]:
    """Build ranges over the activities; `drawn` are the kinds that the profiler drew itself."""
    paths = [number for number, word in enumerate(words) if "/" in word]
    # A name without a path is that of a variable, or a mere filler.
    programs = [
        pl.when(pl.col(column).is_in(paths)).then(pl.col(column))
        for column in ("framework_name", "framework_op")
    ]
    roots = overlay["scope"].replace_strict(
        _roots(overlay["scope"], scopes), default=None, return_dtype=pl.Int64
    )
    for kind, owner, execution in (
        (_MODULE, pl.col("module"), roots),
        (_OPERATOR, pl.col("operation"), pl.col("scope")),
        (_ANNOTATION, pl.coalesce(*programs), pl.col("scope")),
    ):
        if kind not in drawn:
            activities = overlay.with_columns(owner=owner, execution=execution)
            ordered = activities.filter(pl.col("owner").is_not_null()).sort("line", "start_ns")
            # Where the execution is unknown, consecutive activities of one owner are one.
            differs = [pl.col(c).ne_missing(pl.col(c).shift()) for c in ("line", "owner")]
            run = pl.any_horizontal(differs).cum_sum().cast(pl.Int64)
            ranges = (
                ordered.with_columns(execution=pl.coalesce("execution", -1 - run))
                .group_by("line", "execution", "owner", maintain_order=True)
                .agg(pl.col("start_ns").min(), pl.col("end_ns").max())
            )
            names = pl.Series(words, dtype=pl.String).gather(ranges["owner"])
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


_DEVICE = re.compile(r"/device:(?:GPU|TPU):(\d{1,5})$")
_STREAM = re.compile(r"Stream #(\d{1,18})")
_OPERATIONS = "XLA Ops"
WORK, EXECUTED, DRAWN, SAMPLED, OVERHEAD = "work", "executed", "drawn", "sampled", "overhead"
_UNKNOWN = "unknown"
_ROLES = {
    **dict.fromkeys(_RANGE_KINDS, DRAWN),
    "_counters_": SAMPLED,
    "CUPTI overhead": OVERHEAD,
}
"""Sorts of events by the name of their line."""
KERNEL, COPY, MEMSET, GRAPH = "kernels", "copies", "memsets", "graphs"
_RESIDENCY, _MIGRATION = "lifetimes of memory", "unified-memory events"
_UNSIZED = "memcpys and memsets of unknown size"
_SORT_OF_ACTIVITY = (
    pl.when(pl.col("graph_exec").is_not_null())
    .then(pl.lit(GRAPH))
    .when(pl.col("copied").is_not_null())
    .then(pl.lit(COPY))
    .when(pl.col("filled").is_not_null())
    .then(pl.lit(MEMSET))
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
    **_OWNER_STATS,
}
_ISSUED = (*EVENT_COLUMNS, "correlation", "context")
_LAUNCHED = (*_ISSUED, "graph", "graph_node", "launch", "occupancy")
_KEPT: dict[str, tuple[str, ...]] = {
    KERNEL: _LAUNCHED,
    EXECUTED: _LAUNCHED,
    COPY: (*_ISSUED, "graph_node", "copied"),
    MEMSET: (*_ISSUED, "graph_node", "filled"),
    GRAPH: (*_ISSUED, "graph", "graph_exec"),
    DRAWN: EVENT_COLUMNS,
    SAMPLED: (*EVENT_COLUMNS, "value"),
    OVERHEAD: EVENT_COLUMNS,
    OVERLAY: _OVERLAY_COLUMNS,
}
"""Columns of each sort of event that tables need."""

_TYPES: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(_TEXTS.values(), pl.Int32),
    **dict.fromkeys(_NUMBERS.values(), pl.Int64),
    **dict.fromkeys(("occupancy", "value"), pl.Float64),
}


STATS = (*_NUMBERS, *_TEXTS, "theoretical_occupancy_pct")
"""All stats that are read."""


def device_number(plane: XPlane) -> int | None:
    """Return the number of a plane's device; None where it is of no device."""
    match = _DEVICE.match(plane.name)
    return int(match[1]) if match else None


class DeviceEvents:
    """The events of a device, sorted batch by batch."""

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
        """The stream of each line; null where it holds no activities."""
        self._sampled = SAMPLED in roles
        self._by_name = pl.Series(map(_sort_by_name, plane.kinds.texts), dtype=pl.String)
        self._kept = KeptEvents(_KEPT, _TYPES)
        self.take = self._kept.take

    def add(self, batch: EventBatch) -> None:
        """Sort the events of one more batch."""
        events, stats = batch
        events = events.hstack(
            [
                self._roles.gather(events["line"]).alias("sort"),
                self._by_name.gather(events["kind"].clip(0)).alias("by_name"),
                *(stats.integers(stat).alias(name) for stat, name in _NUMBERS.items()),
                *(stats.texts(stat).alias(name) for stat, name in _TEXTS.items()),
                stats.reals("theoretical_occupancy_pct").alias("occupancy"),
                *([stats.any_number().alias("value")] if self._sampled else []),
            ]
        ).filter(pl.col("kind") >= 0)
        is_activity = pl.col("sort") == WORK
        activities = events.filter(is_activity).select(_OVERLAY_COLUMNS)
        self._kept.keep(OVERLAY, _merged(activities))
        sort = pl.when(is_activity).then(_SORT_OF_ACTIVITY).otherwise("sort")
        self._kept.sort_out(events.with_columns(sort=sort))

    def unread(self, unsized: int) -> list[str]:
        """List what no table holds; `unsized` more copies and memsets have no size."""
        counts = {sort: self._kept.count(sort) for sort in (_RESIDENCY, _MIGRATION, _UNSIZED)}
        counts[_UNSIZED] += unsized
        lines = {self._plane.lines[line].name for line in self._kept.lines(_UNKNOWN)}
        return [
            *(f"{count:,} {sort}" for sort, count in counts.items() if count),
            *([f"lines {enumerated(lines)} of {self._plane.name}"] if lines else []),
        ]


def _sort_by_name(name: str) -> str:
    """Return the sort of an activity without details."""
    if name.startswith("UM_"):
        return _MIGRATION
    return _UNSIZED if re.match(r"Mem(?:cpy\w+|set(?: \d+)?)$", name) else KERNEL


def read_device(
    plane: XPlane, batches: Iterable[EventBatch], process: int | None, scopes: Mapping[int, int]
) -> PlaneTables:
    """Read a device's plane; `scopes` maps a scope of the host to the one around it."""
    events = DeviceEvents(plane)
    for batch in batches:
        events.add(batch)
    builder = _DeviceTables(plane, events, process)
    tables = builder.all(scopes)
    return PlaneTables(tables, [f"not read: {what}" for what in events.unread(builder.unsized)])


class _DeviceTables:
    """Builds the tables of one device."""

    def __init__(self, plane: XPlane, events: DeviceEvents, process: int | None) -> None:
        self.unsized = 0
        """Copies and memsets whose details lack the size."""
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
        """Build all of them, with or without rows."""
        outer, inner = self._outer_and_inner_operations()
        overlay = self._take(OVERLAY)
        streams = self._streams.gather(overlay["line"].unique(maintain_order=True))
        samples, overheads = self._take(SAMPLED), self._take(OVERHEAD)
        device, process = self._constants
        return {
            "streams": streams.unique(maintain_order=True).to_frame().with_columns(process),
            "gpu_ranges": self._ranges(outer, overlay, scopes),
            "kernels": self._kernels(pl.concat([self._take(KERNEL), inner])),
            "copies": self._copies(self._take(COPY)),
            "memsets": self._memsets(self._take(MEMSET)),
            "graph_launches": self._activities(self._take(GRAPH), "graph", "graph_exec"),
            "gpu_metrics": samples.select(
                device, "value", self._named(samples).alias("metric"), time_ns="start_ns"
            ).filter(pl.col("value").is_not_null()),
            "overheads": overheads.select(
                "start_ns",
                "end_ns",
                pl.lit(None, pl.Int64).alias("thread"),
                process,
                self._named(overheads),
            ),
        }

    def _named(self, events: pl.DataFrame) -> pl.Series:
        return named(events["kind"], self._names)

    def _outer_and_inner_operations(self) -> tuple[pl.DataFrame, pl.DataFrame]:
        """Separate operations that enclose others from those that do the work."""
        operations = self._take(EXECUTED)
        _, parent = nest(
            operations["start_ns"].to_numpy(),
            operations["end_ns"].to_numpy(),
            operations["line"].to_numpy().astype(np.int64),
        )
        encloses = np.zeros(operations.height, np.bool_)
        encloses[parent[parent >= 0]] = True
        return operations.filter(encloses), operations.filter(~encloses)

    def _activities(self, events: pl.DataFrame, *more: str | pl.Series | pl.Expr) -> pl.DataFrame:
        """Select time, stream and launch of GPU activities, and `more`."""
        context = details_by_row(
            events["context"],
            self._words,
            lambda text: {"context": _integer(text.removeprefix("$$"))},  # written as `$$1`
            _CONTEXT_SCHEMA,
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
        details = details_by_row(events["launch"], self._words, _kernel_details, _KERNEL_SCHEMA)
        share = pl.col("occupancy") / 100
        return self._activities(
            events,
            named(events["kind"], self._names, demangle_if_mangled),
            "graph",
            "graph_node",
            pl.when(share.is_between(0, 1, closed="right")).then(share).alias("occupancy"),
            *details,
        )

    def _copies(self, events: pl.DataFrame) -> pl.DataFrame:
        details = details_by_row(events["copied"], self._words, _copy_details, _COPY_SCHEMA)
        kinds = (
            self._named(events)
            .cast(pl.String)
            .replace_strict(_COPY_KINDS, default=None, return_dtype=pl.String)
        )
        peer = pl.col("kind") == _PEER
        rows = self._activities(events, "graph_node", kinds.alias("kind"), *details)
        return (
            self._sized(rows)
            .with_columns(
                pl.coalesce("kind", "direction").alias("kind"),
                pl.when(peer).then("device").alias("src_device"),
                pl.when(peer).then("destination").alias("dst_device"),
            )
            .drop("direction", "destination")
        )

    def _memsets(self, events: pl.DataFrame) -> pl.DataFrame:
        def parse(text: str) -> Details:
            details = details_of(text)
            kind = _memory_kind(details.get("kind"))
            return {"bytes": _integer(details.get("num_bytes")), "memory_kind": kind}

        details = details_by_row(events["filled"], self._words, parse, _MEMSET_SCHEMA)
        return self._sized(self._activities(events, "graph_node", *details))

    def _sized(self, rows: pl.DataFrame) -> pl.DataFrame:
        self.unsized += rows["bytes"].null_count()
        return rows.filter(pl.col("bytes").is_not_null())

    def _ranges(
        self, outer: pl.DataFrame, overlay: pl.DataFrame, scopes: Mapping[int, int]
    ) -> pl.DataFrame:
        # Those that the profiler drew on lines of its own, where steps are numbers.
        columns = [*EVENT_COLUMNS]
        events = pl.concat([self._take(DRAWN).select(columns), outer.select(columns)])
        kinds = pl.Series([_RANGE_KINDS.get(line) for line in self._lines], dtype=pl.String)
        steps = pl.Series([line == "Steps" for line in self._lines], dtype=pl.Boolean)
        texts = pl.Series(self._names, dtype=pl.String).gather(events["kind"])
        numbered = steps.gather(events["line"]) & texts.str.contains(r"^\d+$")
        drawn = events.with_columns(
            name=pl.when(numbered).then("step#" + texts).otherwise(texts),
            kind=kinds.gather(events["line"]),
        ).select(_RANGE)
        over = _overlay_ranges(overlay, self._words, scopes, set(drawn["kind"].unique()))
        ranges = pl.concat([drawn, *over])
        stream = self._streams.gather(ranges["line"])
        return ranges.select("start_ns", "end_ns", "name", "kind", stream, *self._constants)
