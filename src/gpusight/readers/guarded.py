"""The boundary around readers: whatever goes wrong inside becomes one line about the capture.

A capture may have been written by any version of any tool, cut off, or edited. Readers report what
they know can be wrong; this reports the rest, with the file and the table. The exception itself
stays the cause of the error, and `gpusight --debug` shows it.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from gpusight.errors import (
    CaptureError,
    DamagedCaptureError,
    GpusightError,
    is_unexpected,
    reason_of,
)
from gpusight.readers.identity import check_unchanged

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path

    import polars as pl

    from gpusight.model.trace import Meta, Outline, TraceSource
    from gpusight.readers.identity import FileStatus

MAX_DEVICES = 256
"""More than the GPUs, or parts of GPUs, of any machine: each costs analyses some time."""


@contextlib.contextmanager
def reading(path: Path, table: str = "") -> Iterator[None]:
    """Turn any exception of a reader into an error that names the capture, and the table if any."""
    try:
        yield
    except GpusightError:
        raise
    except BaseException as error:  # a panic of Polars is no Exception
        if not is_unexpected(error):
            raise
        raise _named(path, table, error) from error


def _named(path: Path, table: str, error: BaseException) -> CaptureError:
    where = f"table {table}: " if table else ""
    if isinstance(error, MemoryError):
        return CaptureError(
            f"{path} cannot be read",
            why=f"{where}not enough memory",
            hint="end other programs, or capture less, such as fewer steps",
        )
    if isinstance(error, PermissionError):
        return CaptureError(
            f"{path} cannot be read", why="permission denied", hint="check its access rights"
        )
    if isinstance(error, OSError):
        why = f"{where}{error.strerror or error}"
        return CaptureError(f"{path} cannot be read", why=why, hint="check the disk, or copy it")
    return DamagedCaptureError(
        f"{path} cannot be read",
        why=where + reason_of(error),
        hint="copy or capture it again; --debug shows where reading failed",
    )


class GuardedSource:
    """A source of which every failure names the capture, one that changes meanwhile included."""

    def __init__(self, source: TraceSource, path: Path, files: tuple[FileStatus, ...]) -> None:
        self._source = source
        self._path = path
        self._files = files
        self.check()

    def check(self) -> None:
        """Raise if the capture is no longer what it was when it was opened."""
        check_unchanged(self._path, self._files)

    @contextlib.contextmanager
    def _reading(self, table: str = "") -> Iterator[None]:
        """Read from the file: nothing counts that was read while the file changed."""
        try:
            with reading(self._path, table):
                yield
        except CaptureError:
            self.check()  # a file that changed explains whatever went wrong
            raise
        self.check()

    @property
    def meta(self) -> Meta:
        """What is known about the capture as a whole."""
        with reading(self._path):
            return self._source.meta

    def outline(self) -> Outline | None:
        """Say what is in the file, where knowing that takes a walk through all of it; else None."""
        with self._reading():
            return self._source.outline()

    def has(self, table: str) -> bool:
        """Tell whether the table has rows, without reading them."""
        with reading(self._path, table):
            return self._source.has(table)

    def has_column(self, table: str, column: str) -> bool:
        """Tell whether the capture can fill this column."""
        with reading(self._path, table):
            return self._source.has_column(table, column)

    def row_count(self, table: str) -> int:
        """Count rows without reading them."""
        with self._reading(table):
            return self._source.row_count(table)

    def load(self, table: str, columns: Sequence[str]) -> pl.DataFrame:
        """Read these columns."""
        with self._reading(table):
            frame = self._source.load(table, columns)
        if "device" in columns and frame.get_column("device").n_unique() > MAX_DEVICES:
            raise DamagedCaptureError(
                f"{self._path} is damaged",
                why=f"table {table} names more than {MAX_DEVICES} GPUs, which no machine has",
                hint="copy or capture it again",
            )
        return frame

    def prepare(self, tables: Iterable[str]) -> None:
        """Pass on which tables will be asked for."""
        with reading(self._path):
            self._source.prepare(tables)

    def warnings(self) -> tuple[str, ...]:
        """Name rows and values that reading has left out so far."""
        with reading(self._path):
            return self._source.warnings()

    def close(self) -> None:
        """Close the file; what was read stays readable."""
        with reading(self._path):
            self._source.close()
