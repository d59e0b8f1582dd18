"""JAX profiles in Chrome's format: the same planes and lines, as processes and threads.

JAX writes `.trace.json.gz` beside each `.xplane.pb`. It holds a million events at most (newer
versions: five million), says nothing about the GPU, and every stat is text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import msgspec
import polars as pl

from gpusight.readers.chrome import kinds
from gpusight.readers.chrome.arguments import Texts, Wanted
from gpusight.readers.chrome.rows import number_of
from gpusight.readers.jax import device, host
from gpusight.readers.jax.batch import Batch
from gpusight.readers.jax.profile import profile_tables
from gpusight.readers.jax.space import Line, Plane, Space

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from gpusight.readers.chrome.kinds import Sorter
    from gpusight.readers.chrome.rows import Rows
    from gpusight.readers.jax.naming import Names
    from gpusight.readers.jax.profile import Contents

_PLANE = re.compile(r"/(?:device:(?:GPU|TPU):\d+$|host:)")
_STATS = tuple(dict.fromkeys((*device.STATS, *host.STATS)))


def is_jax(events: Sorter) -> bool:
    """Tell a trace of JAX by what it calls its processes."""
    return any(_PLANE.match(name) for name in _named(events.settings, "process_name").values())


def json_tables(path: Path, events: Sorter, notes: Iterable[str]) -> Contents:
    """Read the tables of such a trace."""
    rows = events.of(kinds.PLAIN)
    threads = _named(events.settings, "thread_name")
    planes = {
        pid: _plane(name, pid, rows, threads)
        for (pid, _), name in _named(events.settings, "process_name").items()
    }
    stats = _Columns(rows)
    places = {id(plane): pid for pid, plane in planes.items()}
    space = Space(list(planes.values()), [], [], [])
    return profile_tables(
        path,
        "jax-chrome",
        space,
        lambda plane: [_batch(plane, places[id(plane)], rows, stats)],
        notes,
    )


def _named(settings: list[Any], what: str) -> dict[tuple[int | None, int | None], str]:
    """Give what processes or threads are called."""
    thread = what == "thread_name"
    named = {
        (number_of(e.pid), number_of(e.tid) if thread else None): _name(e)
        for e in settings
        if e.name == what
    }
    return {key: name for key, name in named.items() if name is not None}


def _name(event: Any) -> str | None:
    arguments = msgspec.json.decode(bytes(event.args))
    name = arguments.get("name") if isinstance(arguments, dict) else None
    return name if isinstance(name, str) else None


def _plane(
    name: str, pid: int | None, rows: Rows, threads: dict[tuple[int | None, int | None], str]
) -> Plane:
    plane = Plane(name)
    counts = rows.tid.filter(rows.pid == pid).value_counts(sort=True).sort(pl.first())
    for tid, count in counts.iter_rows():
        plane.lines.append(Line(id=tid, name=threads.get((pid, tid), ""), events=count))
    for number, text in enumerate(rows.distinct_names):
        plane.kinds.put(number, text)
    return plane


def _batch(plane: Plane, pid: int | None, rows: Rows, stats: _Columns) -> Batch:
    mine = rows.pid == pid
    places = {line.id: place for place, line in enumerate(plane.lines)}
    events = pl.DataFrame(
        {
            "line": rows.tid.filter(mine).replace_strict(places, return_dtype=pl.Int32),
            "kind": rows.codes.filter(mine).cast(pl.Int32),
            "start_ns": rows.start_ns.filter(mine),
            "end_ns": (rows.start_ns + rows.duration_ns).filter(mine),
        }
    )
    return Batch(events, _JsonStats(stats.of(mine), plane.words))


class _Columns:
    """The stats of all events, as text; taken out of the arguments in one go."""

    def __init__(self, rows: Rows) -> None:
        wanted = [Wanted((name,), Texts) for name in _STATS]
        columns = rows.arguments.columns(wanted) if rows.height else []
        self._columns = dict(zip(_STATS, columns, strict=False))

    def of(self, mine: pl.Series) -> dict[str, pl.Series]:
        """Give those of some events."""
        return {name: column.filter(mine) for name, column in self._columns.items()}


class _JsonStats:
    """What the events of a plane carry besides their times."""

    def __init__(self, columns: dict[str, pl.Series], words: Names) -> None:
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
        places = {text: self._words.add(text) for text in texts.drop_nulls().unique()}
        return texts.replace_strict(places, default=None, return_dtype=pl.Int32)

    def any_number(self) -> pl.Series:
        """Give nothing: counters are not exported to this form."""
        height = len(next(iter(self._columns.values())))
        return pl.Series("value", [None], dtype=pl.Float64).new_from_index(0, height)
