"""Events of a Chrome trace as the compiled core decodes them: columns, no object for each."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import polars as pl

from gpusight.core.file_decoders import EVENT_COLUMNS, chrome_events, join_parts

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from gpusight.core.file_decoders import ScannedText


NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding text that is no JSON, or nests beyond all reason, raises."""
_MIN_EVENT_BYTES = 32
_NO_NUMBER = -(1 << 63)


class ScannedEvents:
    """The events at the start of a text, in file order."""

    def __init__(
        self, text: bytes, scanned: ScannedText, columns: NDArray[np.int64], *, exact: bool
    ) -> None:
        self._text = text
        self.used, self.closed, self.height = scanned.used, scanned.closed, scanned.events
        self._columns = dict(zip(EVENT_COLUMNS, columns[:, : self.height], strict=True))
        self._times = np.int64 if exact else np.float64
        self.texts: list[str] = [_text(raw) for raw in scanned.texts]
        texts = [*self.texts, None]  # the last is for events that have none
        self.types = [(texts[phase] or "", texts[category]) for phase, category in scanned.types]
        """Phase and category of each type."""

    @classmethod
    def of(cls, text: bytes, *, exact: bool) -> ScannedEvents | None:
        """Decode a text; None where another decoder has to."""
        columns = np.empty((len(EVENT_COLUMNS), len(text) // _MIN_EVENT_BYTES + 1), np.int64)
        scanned = chrome_events(text, columns.ctypes.data, columns.shape[1], exact=exact)
        if scanned is None or not scanned.events:
            return None
        try:
            return cls(text, scanned, columns, exact=exact)
        except NOT_JSON:
            return None

    @property
    def text(self) -> bytes:
        """The JSON of the events, with a comma between two."""
        return self._text[: int(self._columns["end"][-1])]

    def rows_of(self, types: list[int]) -> NDArray[np.int64]:
        """Return the positions of the events of some types."""
        wanted = np.zeros(len(self.types) + 1, bool)
        wanted[types] = True
        found: NDArray[np.int64] = np.flatnonzero(wanted[self._columns["type"]])
        return found

    def count(self, kind: int) -> int:
        """Count the events of a type."""
        return int(np.count_nonzero(self._columns["type"] == kind))

    def have_text_as_process(self, rows: NDArray[np.int64]) -> bool:
        """Return whether the process of any of these events is a text."""
        return bool((self._columns["process_text"][rows] >= 0).any())

    def named(self, rows: NDArray[np.int64], name: str) -> NDArray[np.int64]:
        """Return those events that have this name."""
        wanted = np.array([*(text == name for text in self.texts), False])
        found: NDArray[np.int64] = rows[wanted[self._columns["name"][rows]]]
        return found

    def texts_of(self, rows: NDArray[np.int64]) -> bytes:
        """Return the JSON of these events, with a comma between two."""
        at, end = (self._columns[column][rows].tolist() for column in ("at", "end"))
        return b",".join(self._text[a:b] for a, b in zip(at, end, strict=True))

    def select(self, rows: NDArray[np.int64]) -> ScannedRows:
        """Return the columns of some events."""
        return ScannedRows(self, rows)

    def times(self, column: str, rows: NDArray[np.int64]) -> NDArray[Any]:
        """Return times in microseconds, or in nanoseconds if they are exact."""
        times: NDArray[Any] = self._columns[column].view(self._times)[rows]
        return times

    def names(self, rows: NDArray[np.int64]) -> tuple[list[str | None], NDArray[np.int64]]:
        """Return the names that occur, in order of appearance, and each event's among them."""
        numbers = self._columns["name"][rows]
        first = np.full(len(self.texts) + 1, -1)  # the last is for events without a name
        first[numbers[::-1]] = np.arange(len(numbers))[::-1]
        used = np.flatnonzero(first >= 0)
        used = used[np.argsort(first[used])]
        places = np.empty(len(first), np.int64)
        places[used] = np.arange(len(used))
        texts = [*self.texts, None]
        return [texts[number] for number in used.tolist()], places[numbers]

    def labels(
        self, column: str, rows: NDArray[np.int64], number_of: Callable[[object], int | None]
    ) -> pl.Series:
        """Return the numbers of processes or threads; null for none."""
        values, texts = (self._columns[name][rows] for name in (column, f"{column}_text"))
        written = texts >= 0
        if written.any():
            values = values.copy()
            numbers = np.zeros(len(self.texts), np.int64)
            for text in np.unique(texts[written]).tolist():
                numbers[text] = number_of(self.texts[text]) or 0
            values[written] = numbers[texts[written]]
        series = pl.Series(values)
        missing = (values == _NO_NUMBER) & ~written
        return series.set(pl.Series(missing), None) if missing.any() else series

    def arguments(self, rows: NDArray[np.int64]) -> tuple[bytearray, NDArray[np.int64]]:
        """Return the arguments of events with a comma between two, and where each ends."""
        at, lengths = (
            np.ascontiguousarray(self._columns[name][rows])
            for name in ("arguments_at", "arguments_length")
        )
        joined = join_parts(self._text, len(rows), at.ctypes.data, lengths.ctypes.data)
        return joined, np.cumsum(np.where(at < 0, 2, lengths) + 1)


class ScannedRows:
    """Events of one kind."""

    def __init__(self, events: ScannedEvents, rows: NDArray[np.int64]) -> None:
        self.events, self.rows = events, rows
        self.names, self.codes = events.names(rows)
        self.starts, self.durations = (events.times(c, rows) for c in ("start", "duration"))
        self.arguments, self._ends = events.arguments(rows)

    def mentioning(self, quoted: bytes) -> NDArray[np.int64]:
        """Return the positions in the text's events of those that have a key, which is quoted."""
        places, at = [], self.arguments.find(quoted)
        while at >= 0:
            places.append(at)
            at = self.arguments.find(quoted, at + len(quoted))
        found: NDArray[np.int64] = self.rows[
            np.unique(np.searchsorted(self._ends, places, side="right"))
        ]
        return found

    def with_names(self, chosen: Callable[[str], object]) -> NDArray[np.int64]:
        """Return the positions in the text's events of those with some names."""
        wanted = np.array([bool(chosen(name or "")) for name in self.names], bool)
        found: NDArray[np.int64] = self.rows[wanted[self.codes]]
        return found


def _text(raw: bytes) -> str:
    """Decode a text of JSON; most are written as they are."""
    return raw.decode() if b"\\" not in raw else msgspec.json.decode(b'"%b"' % raw, type=str)
