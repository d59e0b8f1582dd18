"""A Chrome trace of PyTorch or JAX: walked through once, then read as whichever it is."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from gpusight.errors import DamagedCaptureError, NotACaptureError
from gpusight.readers.blocks import Blocks
from gpusight.readers.chrome.events import EventReader
from gpusight.readers.chrome.kinds import PLAIN, Sorter

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    import polars as pl

    from gpusight.model.trace import Meta, Outline, TraceSource


@dataclass(frozen=True)
class Scanned:
    """Everything that one walk through the file found."""

    events: Sorter
    about: dict[str, Any]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def scan(path: Path) -> Scanned:
    """Walk through a trace once."""
    blocks = Blocks(path)
    reader = EventReader(path, blocks)
    events = Sorter()
    for some in reader:
        events.add(some, exact=reader.exact)
    warnings = (*_warnings(reader, blocks), *_left_out(path, events))
    return Scanned(events, reader.about, tuple(_notes(events)), warnings)


def _warnings(reader: EventReader, blocks: Blocks) -> Iterable[str]:
    if blocks.problem or reader.cut_off:
        why = blocks.problem or "it ends inside its list of events, as after a killed job"
        yield f"the trace is cut off: {why}; shown is what is there"
    if reader.left_over:
        yield "what follows the list of events was not read: it belongs to no trace, or to another"
    if reader.unreadable:
        yield f"{reader.unreadable:,} events are not valid JSON and were left out"


def _left_out(path: Path, events: Sorter) -> Iterable[str]:
    """Name events that cannot be used; a trace of which most cannot be is damaged."""
    for kind, total, why in events.left_out():
        counted = ((f"{n:,} {'has' if n == 1 else 'have'}", w) for w, n in why.most_common())
        reasons = ", ".join(f"{count} {reason}" for count, reason in counted)
        what = "events" if kind == PLAIN else f"{kind} events"
        count = f"{why.total():,} of {total:,} {what}"
        if why.total() * 2 > total:
            raise DamagedCaptureError(
                f"{path} is damaged",
                why=f"{count} cannot be used: {reasons}",
                hint="export it again",
            )
        yield f"{count} left out: {reasons}"


def _notes(events: Sorter) -> Iterable[str]:
    if events.unknown:
        named = ", ".join(f"{name} ({n:,})" for name, n in events.unknown.most_common(8))
        yield f"not read: events of {named}"


class ChromeSource:
    """A source that learns at the first question what kind of trace it is."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @cached_property
    def _source(self) -> TraceSource:
        found = scan(self._path)
        if _is_own_timeline(found.about):
            raise NotACaptureError(
                f"{self._path} is a timeline that gpusight exported",
                hint="open the capture that it was made from",
            )
        if found.events.rows.keys() - {PLAIN} or _is_torch(found):
            from gpusight.readers.chrome.torch_source import TorchSource

            return TorchSource(self._path, found)
        return self._jax_source(found)

    def _jax_source(self, found: Scanned) -> TraceSource:
        import polars as pl

        from gpusight.readers.frames import FrameSource
        from gpusight.readers.jax.json_trace import is_jax, json_tables

        if not is_jax(found.events):
            raise NotACaptureError(
                f"{self._path} is a Chrome trace, but not one of PyTorch or JAX",
                why="none of its events is of a kind that their profilers write",
                hint="look at it in ui.perfetto.dev",
            )
        try:
            meta, tables = json_tables(self._path, found.events, found.notes)
            both = (*found.warnings, *meta.warnings)
            warned = msgspec.structs.replace(meta, warnings=both)
            return FrameSource.of(warned, tables)
        except (pl.exceptions.PolarsError, OverflowError) as error:
            raise DamagedCaptureError(
                f"{self._path} is damaged",
                why=str(error).splitlines()[0],
                hint="copy or capture it again",
            ) from error

    @property
    def meta(self) -> Meta:
        """What is known about the capture as a whole."""
        return self._source.meta

    def outline(self) -> Outline | None:
        """Say what is in the file."""
        return self._source.outline()

    def has(self, table: str) -> bool:
        """Tell whether the table has rows."""
        return self._source.has(table)

    def has_column(self, table: str, column: str) -> bool:
        """Tell whether the capture can fill this column."""
        return self._source.has_column(table, column)

    def row_count(self, table: str) -> int:
        """Count rows."""
        return self._source.row_count(table)

    def load(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read these columns; rows sorted by the table's time column, ties in file order."""
        return self._source.load(table, columns)

    def prepare(self, tables: Iterable[str]) -> None:
        """Have walked through the file for all tables at once."""

    def warnings(self) -> tuple[str, ...]:
        """Name rows and values that reading has left out so far."""
        # Where everything came from the cache, the file need not be walked through to say nothing.
        return self._source.warnings() if "_source" in self.__dict__ else ()

    def close(self) -> None:
        """Hold no file open."""


def _is_own_timeline(about: dict[str, Any]) -> bool:
    said = about.get("otherData")
    return isinstance(said, dict) and said.get("writer") == "gpusight"


def _is_torch(found: Scanned) -> bool:
    """Tell a PyTorch trace without events from any other file, by what stands around them."""
    return bool({"schemaVersion", "deviceProperties", "distributedInfo"} & found.about.keys())
