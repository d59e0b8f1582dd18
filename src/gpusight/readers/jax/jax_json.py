"""JAX profiles in Chrome's format: the same planes and lines, as processes and threads."""

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

    from gpusight.readers.chrome_columns import EventRows
    from gpusight.readers.chrome_source import EventSorter
    from gpusight.readers.jax.jax_profile import Contents
    from gpusight.readers.jax.xspace import ReferencedNames


_PLANE = re.compile(r"/(?:device:(?:GPU|TPU):\d+$|host:)")
_STATS = tuple(dict.fromkeys((*device_events.STATS, *host_events.STATS)))


def is_jax(events: EventSorter) -> bool:
    """Tell a trace of JAX by what it calls its processes."""
    return any(_PLANE.match(name) for name in process_labels(events.settings).values())


def json_tables(path: Path, events: EventSorter, notes: Iterable[str]) -> Contents:
    """Read the tables of such a trace."""
    rows = events.of(chrome_source.PLAIN)
    names, threads = process_labels(events.settings), thread_labels(events.settings)
    every = _events(rows)
    parts = {pid: part for (pid,), part in every.group_by("pid", maintain_order=True)}
    texts = rows.distinct_names
    planes = {pid: _plane(name, pid, parts.get(pid), threads, texts) for pid, name in names.items()}
    pid_of = {id(plane): pid for pid, plane in planes.items()}

    def decode(plane: XPlane) -> Iterator[EventBatch]:
        part = parts.get(pid_of[id(plane)])
        if part is not None:
            yield _batch(plane, part)

    return profile_tables(
        path, "jax-chrome", XSpace(list(planes.values()), [], [], []), decode, notes
    )


def _events(rows: EventRows) -> pl.DataFrame:
    """Put together all events with all their stats, as text, taken out in one go."""
    stats = rows.arguments.columns([ArgumentColumn((name,), TextBuilder) for name in _STATS])
    return pl.DataFrame(
        {
            "pid": rows.pid,
            "tid": rows.tid,
            "code": rows.codes,
            "start_ns": rows.start_ns,
            "end_ns": rows.start_ns + rows.duration_ns,
            **{f"stat {name}": column for name, column in zip(_STATS, stats, strict=True)},
        }
    )


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
    """What the events of a plane carry besides their times."""

    def __init__(self, columns: dict[str, pl.Series], words: ReferencedNames) -> None:
        self._columns = columns
        self._words = words

    def has(self, *names: str) -> pl.Series:
        """Tell which events carry one of these stats."""
        found = [self._columns[name].is_not_null() for name in names]
        return (
            pl.DataFrame(dict(zip(names, found, strict=True)))
            .select(pl.any_horizontal(pl.all()))
            .to_series()
        )

    def integers(self, name: str) -> pl.Series:
        """Give a whole number of each event, null where it has none."""
        return self._columns[name].cast(pl.String).cast(pl.Int64, strict=False)

    def reals(self, name: str) -> pl.Series:
        """Give a number of each event, null where it has none."""
        return self._columns[name].cast(pl.String).cast(pl.Float64, strict=False)

    def texts(self, name: str) -> pl.Series:
        """Give a text of each event by its place among the plane's words, null where none."""
        texts = self._columns[name].cast(pl.String)
        known = texts.drop_nulls().unique(maintain_order=True)
        places = {text: self._words.add(text) for text in known}
        return texts.replace_strict(places, default=None, return_dtype=pl.Int32)

    def any_number(self) -> pl.Series:
        """Give nothing: counters are not exported to this form."""
        height = len(next(iter(self._columns.values())))
        return pl.Series("value", [None], dtype=pl.Float64).new_from_index(0, height)
