"""Sorting out the events of the host's planes by who made them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.readers.jax import host_names
from gpusight.readers.jax.host_names import (
    CALL,
    MARK,
    MEMORY,
    NVTX,
    OVERHEAD,
    PLAIN,
    PYTHON,
    RUNTIME,
    STEP,
)
from gpusight.readers.jax.host_tables import HostTables
from gpusight.readers.jax.sorting import PLACE, Kept, PlaneTables

if TYPE_CHECKING:
    from collections.abc import Iterable

    from gpusight.readers.jax.batch import Batch
    from gpusight.readers.jax.host_tables import Threads
    from gpusight.readers.jax.space import Plane

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
    PYTHON: PLACE,
    CALL: (*PLACE, "correlation", "copied", "filled"),
    MEMORY: (*PLACE, "bytes", "address", "allocated_bytes", "allocator"),
    OVERHEAD: PLACE,
    NVTX: PLACE,
    STEP: (*PLACE, "step"),
    PLAIN: PLACE,
    RUNTIME: PLACE,
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


STATS = (*_NUMBERS, *_TEXTS, *host_names.RUNTIME_STATS)
"""Every stat that is looked at."""


def read_host(plane: Plane, batches: Iterable[Batch], threads: Threads, vendor: str) -> PlaneTables:
    """Read the events of a plane of the host; `vendor` is who made the devices."""
    roles = pl.Series(map(host_names.role_of, plane.kinds.texts), dtype=pl.String)
    kept = Kept(_KEPT, _TYPES)
    for batch in batches:
        kept.sort_out(_columns(batch, roles))
    maker = HostTables(plane, kept, threads)
    tables = maker.all(vendor)
    marks = kept.count(MARK)
    notes = [f"not read: {marks:,} marks of thread pools"] if marks else []
    if maker.renamed:
        notes.append(_LAUNCHES)
    return PlaneTables(tables, notes)


def _columns(batch: Batch, roles: pl.Series) -> pl.DataFrame:
    """Put together what may be wanted of the events of a batch."""
    events, stats = batch
    columns = [
        roles.gather(events["kind"].clip(0)).alias("sort"),
        stats.has(*host_names.RUNTIME_STATS).alias("runtime"),
        *(stats.integers(stat).alias(name) for stat, name in _NUMBERS.items()),
        *(stats.texts(stat).alias(name) for stat, name in _TEXTS.items()),
    ]
    return events.hstack(columns).filter(pl.col("kind") >= 0).with_columns(sort=_SORT)
