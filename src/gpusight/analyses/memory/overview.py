"""The memories of a capture side by side: every GPU, and every kind of memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.analyses.devices import device_names
from gpusight.result import Field, Fmt, TableResult

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpusight.analyses.memory.places import Places
    from gpusight.analyses.memory.view import View
    from gpusight.model.trace import Trace

DEVICE_FIELDS = (
    Field("device", "GPU", Fmt.ID, "The GPU's number in the capture"),
    Field("peak_bytes", "Peak in use", Fmt.BYTES, "The most in use at once"),
    Field("peak_ns", "At", Fmt.TIME, "When"),
    Field("end_bytes", "At the end", Fmt.BYTES, "In use at the end"),
    Field("allocations", "Allocations", Fmt.COUNT, "Allocations"),
    Field("name", "Name", Fmt.NAME, "Marketing name"),
)
KIND_FIELDS = (
    Field("peak_bytes", "Peak", Fmt.BYTES, "The most in use at once"),
    Field("end_bytes", "At the end", Fmt.BYTES, "In use at the end"),
    Field(
        "allocations", "Allocations", Fmt.COUNT, "Allocations, not counting what was held before"
    ),
    Field("place", "Where", Fmt.TEXT, "`GPU` or `host`"),
    Field("memory_kind", "Kind", Fmt.TEXT, "Kind of memory, as the profiler calls it"),
)


def by_device(trace: Trace, places: Places) -> TableResult:
    """Compare the GPUs."""
    names = device_names(trace)
    rows = [
        {"device": gpu, **_levels(places.view(gpu)), "name": names.get(gpu)} for gpu in places.gpus
    ]
    frame = pl.DataFrame(rows, schema_overrides={"name": pl.String})
    return TableResult(
        "devices", "Memory by GPU", DEVICE_FIELDS, frame.select(f.key for f in DEVICE_FIELDS)
    )


def _levels(view: View) -> dict[str, int]:
    end = view.history.allocated_after(int(view.points.events[-1]))
    return {
        "peak_bytes": view.peak_bytes,
        "peak_ns": view.peak_ns,
        "end_bytes": end,
        "allocations": len(view.takes),
    }


def by_kind(places: Places, device: int | None) -> list[TableResult]:
    """Split memory by kind, the host's included; nothing where there is only one kind."""
    if places.is_snapshot:
        return []
    where = [("host", None)] if device is None else [("GPU", device), ("host", None)]
    rows = [row for place, which in where for row in _kind_rows(places, place, which)]
    if len(rows) < 2:
        return []
    frame = pl.DataFrame(rows, schema_overrides={"memory_kind": pl.String}).sort(
        "place", "peak_bytes", descending=[False, True]
    )
    fields = KIND_FIELDS
    return [TableResult("kinds", "Memory by kind", fields, frame.select(f.key for f in fields))]


def _kind_rows(places: Places, place: str, device: int | None) -> Iterator[dict[str, Any]]:
    events = places.events_of(device)
    kinds = events["memory_kind"].unique(maintain_order=True).to_list()
    for kind in kinds:
        mine = events.filter(pl.col("memory_kind").eq_missing(kind))
        view = places.view(device) if len(kinds) == 1 else places.look_at(mine)
        yield {**_levels(view), "place": place, "memory_kind": kind}
