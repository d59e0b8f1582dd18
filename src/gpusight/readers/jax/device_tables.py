"""Tables of what a device did.

A TPU has no streams: its line `XLA Ops` holds what the chip executed, so those operations stand
where kernels do, except for those that only enclose others (loops, calls), which become ranges.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import polars as pl

from gpusight.readers.jax import details, device, laid
from gpusight.readers.jax.device import DeviceEvents, device_number
from gpusight.readers.jax.naming import named
from gpusight.readers.jax.sorting import PlaneTables
from gpusight.readers.names import demangle

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from gpusight.readers.jax.batch import Batch
    from gpusight.readers.jax.space import Plane


def read_device(
    plane: Plane, batches: Iterable[Batch], process: int | None, scopes: Mapping[int, int]
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

    def __init__(self, plane: Plane, events: DeviceEvents, process: int | None) -> None:
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
        outer, inner = laid.outer_and_inner(self._take(device.EXECUTED))
        overlay = self._take(laid.OVERLAY)
        return {
            "streams": self._stream_table(overlay),
            "gpu_ranges": self._ranges(outer, overlay, scopes),
            "kernels": self._kernels(pl.concat([self._take(device.KERNEL), inner])),
            "copies": self._copies(self._take(device.COPY)),
            "memsets": self._fills(self._take(device.FILL)),
            "graph_launches": self._issued(self._take(device.GRAPH), "graph", "graph_exec"),
            "gpu_metrics": self._samples(self._take(device.SAMPLED)),
            "overheads": self._overheads(self._take(device.OVERHEAD)),
        }

    def _issued(self, events: pl.DataFrame, *more: str | pl.Series | pl.Expr) -> pl.DataFrame:
        """Say when, where and by what call a piece of work was done, and `more`."""
        context = details.spread(
            events["context"], self._words, details.context_facts, details.CONTEXT
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
        facts = details.spread(
            events["launch"], self._words, details.kernel_facts, details.KERNEL_FACTS
        )
        share = pl.col("occupancy") / 100
        return self._issued(
            events,
            named(events["kind"], self._names, demangle),
            "graph",
            "graph_node",
            pl.when(share.is_between(0, 1, closed="right")).then(share).alias("occupancy"),
            *facts,
        )

    def _copies(self, events: pl.DataFrame) -> pl.DataFrame:
        facts = details.spread(
            events["copied"], self._words, details.copy_facts, details.COPY_FACTS
        )
        said = named(events["kind"], self._names).cast(pl.String)
        kinds = said.replace_strict(details.COPY_KINDS, default=None, return_dtype=pl.String)
        peer = pl.col("kind") == details.PEER
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
        facts = details.spread(
            events["filled"], self._words, details.fill_facts, details.FILL_FACTS
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
            laid.drawn(events, self._names, self._lines)
            for events in (self._take(device.DRAWN), outer)
        ]
        known = {kind for frame in found for kind in frame["kind"].unique()}
        ranges = pl.concat([*found, *laid.laid_over(overlay, self._words, scopes, known)])
        stream = self._streams.gather(ranges["line"])
        return ranges.select("start_ns", "end_ns", "name", "kind", stream, *self._constants)

    def _stream_table(self, overlay: pl.DataFrame) -> pl.DataFrame:
        stream = self._streams.gather(overlay["line"].unique(maintain_order=True))
        return stream.unique(maintain_order=True).to_frame().with_columns(self._constants[1])
