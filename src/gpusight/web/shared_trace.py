"""A capture that several threads may ask at once, and that can be told to stop.

A Trace reads its tables when they are first used and is made for one thread. Here reading is done
by one thread at a time, what was read is given without waiting, and what is derived is computed
once, so that a request for what is there never waits for an analysis in the background.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from gpusight.model.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import polars as pl


_WORTH_BYTES = 100_000_000
"""Tables that take less memory than this may stay in it."""
_CLOSING_S = 0.3
"""How long closing waits for who still reads; the file goes with the process then."""


class Stopped(Exception):  # noqa: N818 - nothing went wrong
    """The server stops, and whatever asks the capture is to end with it."""


class SharedTrace(Trace):
    """A Trace for several threads, made of one that nobody else uses meanwhile."""

    def __init__(self, trace: Trace, stopping: threading.Event) -> None:
        super().__init__(trace._source, trace._memory)
        self._stopping = stopping
        self._reading = threading.RLock()
        self._deriving: dict[str, threading.RLock] = {}

    def has(self, table: str, column: str | None = None) -> bool:
        """Tell whether the capture holds a table, or fills a column."""
        if column is None and table in self._has:
            return self._has[table]
        with self._turn():
            return super().has(table, column)

    def row_count(self, table: str) -> int:
        """Count the rows of a table without reading them."""
        with self._turn():
            return super().row_count(table)

    def prepare(self, *tables: str) -> None:
        """Say which tables are about to be used."""
        with self._turn():
            super().prepare(*tables)

    def read_together(self, columns: Mapping[str, Sequence[str]]) -> None:
        """Read these columns of these tables, each table in one go."""
        with self._turn():
            super().read_together(columns)

    def table(self, name: str, columns: Sequence[str] | None = None) -> pl.DataFrame:
        """Read a table, or only some of its columns."""
        have = self._loaded.get(name)  # a frame never changes; a wider one takes its place
        if columns is not None and have is not None and _holds(have, columns):
            self._check()
            return have.select(columns)
        with self._turn():
            return super().table(name, columns)

    def derive(self, key: str, compute: Callable[[], pl.DataFrame]) -> pl.DataFrame:
        """Compute something from the tables once; who needs the same meanwhile waits for it."""
        self._check()
        known = self._derived.get(key)
        if known is not None:
            return known
        with self._deriving.setdefault(key, threading.RLock()):
            return super().derive(key, compute)

    def let_go(self) -> None:
        """Drop tables that were read, where the cache gives them back without a copy of its own."""
        if self._memory is None:
            return
        held = sum(frame.estimated_size() for frame in list(self._loaded.values()))
        if held > _WORTH_BYTES:
            self._memory.flush()
            with self._turn():
                self._loaded = {}

    def close(self) -> None:
        """Give the file back, unless somebody still reads from it."""
        if self._reading.acquire(timeout=_CLOSING_S):
            try:
                super().close()
            finally:
                self._reading.release()

    def _turn(self) -> threading.RLock:
        self._check()
        return self._reading

    def _check(self) -> None:
        if self._stopping.is_set():
            raise Stopped


def _holds(frame: pl.DataFrame, columns: Iterable[str]) -> bool:
    return set(columns) <= set(frame.columns)
