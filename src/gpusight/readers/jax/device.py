"""Sorting out the events of a device's plane by what they are.

On a GPU every stream is a line of kernels, copies and fills, which the details they carry tell
apart. Other lines hold what the profiler drew over the work, or sampled.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from gpusight.readers.jax import laid
from gpusight.readers.jax.sorting import PLACE, Kept, enumerated

if TYPE_CHECKING:
    from gpusight.readers.jax.batch import Batch
    from gpusight.readers.jax.space import Plane

_DEVICE = re.compile(r"/device:(?:GPU|TPU):(\d{1,5})$")
_STREAM = re.compile(r"Stream #(\d{1,18})")
_OPERATIONS = "XLA Ops"
WORK, EXECUTED, DRAWN, SAMPLED, OVERHEAD = "work", "executed", "drawn", "sampled", "overhead"
_UNKNOWN = "unknown"
_ROLES = {
    **dict.fromkeys(laid.KINDS, DRAWN),
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
    **laid.TEXTS,
}
_ISSUED = (*PLACE, "correlation", "context")
_LAUNCHED = (*_ISSUED, "graph", "graph_node", "launch", "occupancy")
_KEPT: dict[str, tuple[str, ...]] = {
    KERNEL: _LAUNCHED,
    EXECUTED: _LAUNCHED,
    COPY: (*_ISSUED, "graph_node", "copied"),
    FILL: (*_ISSUED, "graph_node", "filled"),
    GRAPH: (*_ISSUED, "graph", "graph_exec"),
    DRAWN: PLACE,
    SAMPLED: (*PLACE, "value"),
    OVERHEAD: PLACE,
    laid.OVERLAY: laid.COLUMNS,
}
"""What is kept of each sort of event until all are decoded: no more than will be needed."""

_TYPES: dict[str, type[pl.DataType]] = {
    **dict.fromkeys(_TEXTS.values(), pl.Int32),
    **dict.fromkeys(_NUMBERS.values(), pl.Int64),
    **dict.fromkeys(("occupancy", "value"), pl.Float64),
}


STATS = (*_NUMBERS, *_TEXTS, "theoretical_occupancy_pct")
"""Every stat that is looked at."""


def device_number(plane: Plane) -> int | None:
    """Tell which device a plane is about, if it is about one."""
    match = _DEVICE.match(plane.name)
    return int(match[1]) if match else None


class DeviceEvents:
    """The events of a device, sorted out batch by batch."""

    def __init__(self, plane: Plane) -> None:
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
        self._kept = Kept(_KEPT, _TYPES)
        self.take = self._kept.take

    def add(self, batch: Batch) -> None:
        """Sort out some more events."""
        events = self._columns(batch).filter(pl.col("kind") >= 0)
        work = pl.col("sort") == WORK
        self._kept.keep(laid.OVERLAY, laid.merged(events.filter(work).select(laid.COLUMNS)))
        self._kept.sort_out(
            events.with_columns(sort=pl.when(work).then(_SORT_OF_WORK).otherwise("sort"))
        )

    def _columns(self, batch: Batch) -> pl.DataFrame:
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
