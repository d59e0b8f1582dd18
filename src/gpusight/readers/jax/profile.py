"""The tables of a profile, whichever form its planes and their events came in."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np
import polars as pl

from gpusight.model.schema import TABLES
from gpusight.model.trace import Meta
from gpusight.readers.frames import concat_tables
from gpusight.readers.jax import facts
from gpusight.readers.jax.device import device_number
from gpusight.readers.jax.device_tables import read_device
from gpusight.readers.jax.host import read_host
from gpusight.readers.jax.host_tables import Threads
from gpusight.readers.jax.sorting import PlaneTables, enumerated
from gpusight.readers.protobuf.wire import WireError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from gpusight.readers.jax.batch import Batch
    from gpusight.readers.jax.space import Plane, Space

    Decode = Callable[[Plane], Iterable[Batch]]

Contents: TypeAlias = tuple[Meta, dict[str, pl.DataFrame]]
_HOST = "/host:"


def profile_tables(
    path: Path, source: str, space: Space, decode: Decode, notes: Iterable[str] = ()
) -> Contents:
    """Read the tables of each plane, and those about the profile as a whole."""
    threads = Threads(facts.process_of(space))
    found, said = _read_planes(space, decode, threads)
    about = {
        "devices": facts.devices(space),
        "processes": facts.processes(threads.process),
        "threads": threads.table(),
        "diagnostics": facts.diagnostics(space),
    }
    found.append(about)
    names = dict.fromkeys(name for tables in found for name in tables)
    meta = facts.meta(space, path, source, [*notes, *said])
    meta = msgspec.structs.replace(meta, warnings=tuple(_left_out(space)))
    return meta, {name: _joined(name, found) for name in names}


def _left_out(space: Space) -> Iterator[str]:
    """Name events without a usable time; a profile of which most have none is damaged."""
    for plane in space.planes:
        total = sum(line.events for line in plane.lines)
        count = f"{plane.untimed:,} of {total:,} events of {plane.name}"
        if plane.untimed * 2 > total:
            raise WireError(f"{count} have no usable time or duration")
        if plane.untimed:
            yield f"{count} left out: no usable time or duration"


def _joined(name: str, found: list[dict[str, pl.DataFrame]]) -> pl.DataFrame:
    """Take a table of all planes and put its rows in order, column by column to save memory."""
    frames = [tables.pop(name) for tables in found if name in tables]
    columns = concat_tables([f for f in frames if f.height] or frames[:1]).get_columns()
    frames.clear()
    times = next((c for c in columns if c.name == TABLES[name].sort_column), None)
    if times is None or times.is_sorted():
        return pl.DataFrame(columns)
    order = pl.Series(np.argsort(times.to_numpy(), kind="stable").astype(np.uint32))
    columns.reverse()
    return pl.DataFrame([columns.pop().gather(order) for _ in range(len(columns))])


def _read_planes(
    space: Space, decode: Decode, threads: Threads
) -> tuple[list[dict[str, pl.DataFrame]], list[str]]:
    scopes = facts.scopes_of(space)
    vendor = str(facts.stat(space, "device_vendor") or "")
    found: list[dict[str, pl.DataFrame]] = []
    notes: list[str] = []
    unread: list[str] = []
    for plane in space.planes:
        if device_number(plane) is not None:
            read = read_device(plane, decode(plane), threads.process, scopes)
        elif plane.name.startswith(_HOST):
            read = read_host(plane, decode(plane), threads, vendor)
        else:
            read = PlaneTables({}, [])
            unread += [plane.name] if any(line.events for line in plane.lines) else []
        found.append(read.tables)
        notes += read.notes
        if plane.left_out:
            notes.append(
                f"not read: {plane.left_out:,} events of {plane.name} without a name of their own"
            )
    if unread:
        notes.append(f"not read: planes {enumerated(unread)}")
    return found, list(dict.fromkeys(notes))
