"""JAX profiles in the Chrome trace format: planes and lines are its processes and threads."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import polars as pl

from gpusight.readers import chrome_source
from gpusight.readers.chrome_columns import (
    ArgumentColumn,
    TextBuilder,
    process_labels,
    thread_labels,
)
from gpusight.readers.jax import device_events, host_events
from gpusight.readers.jax.jax_profile import profile_tables
from gpusight.readers.jax.plane_events import EventBatch
from gpusight.readers.jax.xspace import PlaneLine, XPlane, XSpace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from gpusight.readers.chrome_source import EventSorter
    from gpusight.readers.jax.jax_profile import Contents
    from gpusight.readers.jax.xspace import ReferencedNames


_PLANE = re.compile(r"/(?:device:(?:GPU|TPU):\d+$|host:)")
_STATS = tuple(dict.fromkeys((*device_events.STATS, *host_events.STATS)))


def is_jax(events: EventSorter) -> bool:
    """Return whether a trace is of JAX, by the names of its processes."""
    return any(_PLANE.match(name) for name in process_labels(events.settings).values())


def json_tables(path: Path, events: EventSorter, notes: Iterable[str]) -> Contents:
    """Read the tables of such a trace."""
    rows = events.of(chrome_source.PLAIN)
    names, threads = process_labels(events.settings), thread_labels(events.settings)
    # All stats are extracted as text, at once.
    stats = rows.arguments.columns([ArgumentColumn((name,), TextBuilder) for name in _STATS])
    frame = pl.DataFrame(
        {
            "pid": rows.pid,
            "tid": rows.tid,
            "code": rows.codes,
            "start_ns": rows.start_ns,
            "end_ns": rows.start_ns + rows.duration_ns,
            **{f"stat {name}": column for name, column in zip(_STATS, stats, strict=True)},
        }
    )
    parts = {pid: part for (pid,), part in frame.group_by("pid", maintain_order=True)}
    texts = rows.distinct_names
    planes = {pid: _plane(name, pid, parts.get(pid), threads, texts) for pid, name in names.items()}
    pid_of = {id(plane): pid for pid, plane in planes.items()}

    def decode(plane: XPlane) -> Iterator[EventBatch]:
        part = parts.get(pid_of[id(plane)])
        if part is not None:
            yield _batch(plane, part)

    space = XSpace(list(planes.values()), [], [], [])
    return profile_tables(path, "jax-chrome", space, decode, notes)


def _plane(
    name: str,
    pid: int | None,
    part: pl.DataFrame | None,
    threads: dict[tuple[int | None, int | None], str],
    texts: list[str],
) -> XPlane:
    plane = XPlane(name)
    if part is not None:
        for code in part["code"].unique().sort():
            plane.kinds.put(code, texts[code])
        for tid, count in part.group_by("tid").len().sort("tid").iter_rows():
            plane.lines.append(PlaneLine(id=tid, name=threads.get((pid, tid), ""), events=count))
    return plane


def _batch(plane: XPlane, part: pl.DataFrame) -> EventBatch:
    lines = {line.id: place for place, line in enumerate(plane.lines)}
    events = part.select(
        pl.col("tid").replace_strict(lines, return_dtype=pl.Int32).alias("line"),
        pl.Series("kind", plane.kinds.places(part["code"].cast(pl.Int64).to_numpy())),
        "start_ns",
        "end_ns",
    )
    stats = {name: part[f"stat {name}"] for name in _STATS}
    return EventBatch(events, _JsonStats(stats, plane.words))


class _JsonStats:
    """The stats of a plane's events; null where an event lacks the stat."""

    def __init__(self, columns: dict[str, pl.Series], words: ReferencedNames) -> None:
        self._columns = columns
        self._words = words

    def has(self, *names: str) -> pl.Series:
        """Return which events carry one of these stats."""
        frame = pl.DataFrame({name: self._columns[name] for name in names})
        return frame.select(pl.any_horizontal(pl.all().is_not_null())).to_series()

    def integers(self, name: str) -> pl.Series:
        """Return the integers of a stat."""
        return self._columns[name].cast(pl.String).cast(pl.Int64, strict=False)

    def reals(self, name: str) -> pl.Series:
        """Return the numbers of a stat."""
        return self._columns[name].cast(pl.String).cast(pl.Float64, strict=False)

    def texts(self, name: str) -> pl.Series:
        """Return the texts of a stat, as indices into the plane's words."""
        texts = self._columns[name].cast(pl.String)
        distinct = texts.drop_nulls().unique(maintain_order=True)
        places = {text: self._words.add(text) for text in distinct}
        return texts.replace_strict(places, default=None, return_dtype=pl.Int32)

    def any_number(self) -> pl.Series:
        """Return nulls: counters are not exported to this format."""
        height = len(next(iter(self._columns.values())))
        return pl.Series("value", [None], dtype=pl.Float64).new_from_index(0, height)
