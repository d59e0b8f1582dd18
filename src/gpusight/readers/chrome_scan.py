"""Events of a Chrome trace as the compiled core decodes them: columns, no object for each."""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

import msgspec
import numpy as np

from gpusight.core.file_decoders import EVENT_COLUMNS, chrome_arguments, chrome_events, join_parts
from gpusight.readers.tables import MAX_DURATION_NS

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from gpusight.core.file_decoders import ScannedText, WantedArgument
    from gpusight.readers.file_blocks import PlainFile


NOT_JSON = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)
"""What decoding text that is no JSON, or nests beyond all reason, raises."""
_MIN_EVENT_BYTES = 32
_NO_NUMBER = -(1 << 63)


_Part = TypeVar("_Part")
_Result = TypeVar("_Result")
_THREADS = 2
_AHEAD = 3
"""Parts that are decoded while an earlier one is added."""


class RowPart(NamedTuple):
    """Columns of some events of one kind, in file order."""

    codes: NDArray[np.integer[Any]]
    """The position of each event's name among others."""
    starts: NDArray[np.int64]
    """Times are in nanoseconds."""
    durations: NDArray[np.integer[Any]]
    processes: NDArray[np.int64]
    threads: NDArray[np.int64]
    tracks: set[tuple[int, int]]
    """The numbers of process and thread that occur."""
    first_ns: int
    last_ns: int

    @classmethod
    def of(
        cls,
        codes: NDArray[np.integer[Any]],
        starts: NDArray[np.int64],
        durations: NDArray[np.int64],
        processes: NDArray[np.int64],
        threads: NDArray[np.int64],
    ) -> RowPart:
        """Keep columns, of at least one event, in little memory."""
        changes = (processes[1:] != processes[:-1]) | (threads[1:] != threads[:-1])
        at = np.concatenate(([0], np.flatnonzero(changes) + 1))
        some_processes, some_threads = processes[at], threads[at]
        tracks = {
            (process, thread)
            for process in np.unique(some_processes).tolist()
            for thread in np.unique(some_threads[some_processes == process]).tolist()
        }
        if len(tracks) == 1:  # one value, as often as needed
            processes, threads = (
                np.broadcast_to(column[:1].copy(), column.shape) for column in (processes, threads)
            )
        first_ns, last_ns = int(starts.min()), int((starts + durations).max())
        short = durations.astype(np.int32) if durations.max() < 1 << 31 else durations
        return cls(codes, starts, short, processes, threads, tracks, first_ns, last_ns)


class ScannedRows(NamedTuple):
    """Events of one kind."""

    names: list[str | None]
    """Those that occur, in order of appearance."""
    part: RowPart
    arguments: ArgumentPart


TIME_LIMIT_NS = 1 << 61
"""Beyond any clock: larger values are no times."""


def nanoseconds(times: NDArray[Any]) -> NDArray[np.int64]:
    """Turn microseconds into whole nanoseconds; doubles hold those exactly in most traces."""
    if times.dtype == np.int64:
        return times
    whole = np.floor(times)
    below = times - whole
    below *= 1000
    exact: NDArray[np.int64] = whole.astype(np.int64)
    exact *= 1000
    exact += np.rint(below, out=below).astype(np.int64)
    return exact


def _are_usable(starts: NDArray[Any], durations: NDArray[Any] | None) -> bool:
    """Return whether all of these times are such that a clock can show."""

    def lie_within(times: NDArray[Any], low: float, high: float) -> bool:
        return bool(low <= times.min() and times.max() <= high)  # not so for NaN

    limit: float = TIME_LIMIT_NS
    longest = MAX_DURATION_NS
    if starts.dtype != np.int64:
        limit, longest = TIME_LIMIT_NS / 1000, MAX_DURATION_NS // 1000
    return lie_within(starts, -limit, limit) and (
        durations is None or lie_within(durations, 0, longest)
    )


class ScannedEvents:
    """The events at the start of a text, in file order."""

    def __init__(
        self,
        text: bytes | memoryview,
        scanned: ScannedText,
        columns: NDArray[np.int64],
        *,
        exact: bool,
        place: FilePlace | None = None,
    ) -> None:
        self._text = text
        self._place = place
        self.used, self.closed, self.height = scanned.used, scanned.closed, scanned.events
        self._columns = dict(zip(EVENT_COLUMNS, columns[:, : self.height], strict=True))
        self._times = np.int64 if exact else np.float64
        self._keys = scanned.keys
        self.texts: list[str] = [text_of(raw) for raw in scanned.texts]
        texts = [*self.texts, None]  # the last is for events that have none
        self.types = [(texts[phase] or "", texts[category]) for phase, category in scanned.types]
        """Phase and category of each type."""

    @classmethod
    def of(
        cls,
        text: bytes | memoryview,
        *,
        exact: bool,
        columns: NDArray[np.int64] | None = None,
        place: FilePlace | None = None,
    ) -> ScannedEvents | None:
        """Decode a text; None where another decoder has to.

        `columns` is memory to use; `place` is where the text is in a file that can be read again.
        """
        if columns is None:
            columns = event_columns(len(text))
        scanned = chrome_events(text, columns.ctypes.data, columns.shape[1], exact=exact)
        if scanned is None or not scanned.events:
            return None
        try:
            return cls(text, scanned, columns, exact=exact, place=place)
        except NOT_JSON:
            return None

    @property
    def text(self) -> bytes:
        """The JSON of the events, with a comma between two."""
        return bytes(self._text[: int(self._columns["end"][-1])])

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

    def named(self, rows: NDArray[np.int64], chosen: Callable[[str], object]) -> NDArray[np.int64]:
        """Return those events that have some names."""
        names, codes = self._names(rows)
        wanted = np.array([bool(chosen(name or "")) for name in names], bool)
        found: NDArray[np.int64] = rows[wanted[codes]]
        return found

    def with_key(self, rows: NDArray[np.int64], key: bytes) -> NDArray[np.int64]:
        """Return those events whose arguments have a key."""
        bit = self._keys.index(key) if key in self._keys else None
        if bit is None:
            return rows[:0]
        found: NDArray[np.int64] = rows[(self._columns["keys"][rows] >> bit) & 1 == 1]
        return found

    def texts_of(self, rows: NDArray[np.int64]) -> bytes:
        """Return the JSON of these events, with a comma between two."""
        at, end = (self._columns[column][rows].tolist() for column in ("at", "end"))
        return b",".join(self._text[a:b] for a, b in zip(at, end, strict=True))

    def select(
        self,
        rows: NDArray[np.int64],
        number_of: Callable[[object], int | None],
        *,
        instant: bool = False,
    ) -> ScannedRows | None:
        """Return the columns of some events; None of none, or if some have no usable times.

        Labels that are texts get a number; an instant has no duration.
        """
        starts, durations = (
            self._columns[column].view(self._times)[rows] for column in ("start", "duration")
        )
        if not len(rows) or not _are_usable(starts, None if instant else durations):
            return None
        names, codes = self._names(rows)
        part = RowPart.of(
            codes.astype(np.uint32),
            nanoseconds(starts),
            np.zeros(len(rows), np.int64) if instant else nanoseconds(durations),
            self._labels("process", rows, number_of),
            self._labels("thread", rows, number_of),
        )
        return ScannedRows(names, part, self._arguments(rows))

    def _names(self, rows: NDArray[np.int64]) -> tuple[list[str | None], NDArray[np.int64]]:
        numbers = self._columns["name"][rows]
        first = np.full(len(self.texts) + 1, -1)  # the last is for events without a name
        first[numbers[::-1]] = np.arange(len(numbers))[::-1]
        used = np.flatnonzero(first >= 0)
        used = used[np.argsort(first[used])]
        places = np.empty(len(first), np.int64)
        places[used] = np.arange(len(used))
        texts = [*self.texts, None]
        return [texts[number] for number in used.tolist()], places[numbers]

    def _labels(
        self, column: str, rows: NDArray[np.int64], number_of: Callable[[object], int | None]
    ) -> NDArray[np.int64]:
        """Return the numbers of processes or threads; 0 for none."""
        values: NDArray[np.int64] = self._columns[column][rows]
        texts = self._columns[f"{column}_text"][rows]
        values[values == _NO_NUMBER] = 0
        written = texts >= 0
        if written.any():
            numbers = np.zeros(len(self.texts), np.int64)
            for text in np.unique(texts[written]).tolist():
                numbers[text] = number_of(self.texts[text]) or 0
            values[written] = numbers[texts[written]]
        return values

    def _arguments(self, rows: NDArray[np.int64]) -> ArgumentPart:
        at, lengths = (self._columns[name][rows] for name in ("arguments_at", "arguments_length"))
        bits = int(np.bitwise_or.reduce(self._columns["keys"][rows], initial=0))
        keys = frozenset(key for bit, key in enumerate(self._keys) if bits >> bit & 1)
        if self._place is not None:
            # Of the text only the part that has them is read again.
            first = int(np.where(at < 0, len(self._text), at).min(initial=len(self._text)))
            end = max(first, int((at + lengths).max(initial=0)))
            at = np.where(at < 0, at, at - first).astype(np.int32)
            place = FilePlace(self._place.file, self._place.at + first)
            return ArgumentPart(place, end - first, at, lengths.astype(np.int32), keys)
        joined = join_parts(self._text, len(rows), at.ctypes.data, lengths.ctypes.data)
        lengths = np.where(at < 0, 2, lengths).astype(np.int32)
        at = np.cumsum(lengths + 1, dtype=np.int32) - lengths - 1
        return ArgumentPart(joined, len(joined), at, lengths, keys)


def event_columns(length: int) -> NDArray[np.int64]:
    """Make room for the events of a text of some length."""
    return np.empty((len(EVENT_COLUMNS), length // _MIN_EVENT_BYTES + 1), np.int64)


class FilePlace(NamedTuple):
    """A place in a file that can be read again."""

    file: PlainFile
    at: int


class ArgumentPart(NamedTuple):
    """The arguments of some events, in file order: their JSON, or where it is in the file."""

    source: FilePlace | bytes | bytearray
    size: int
    at: NDArray[np.int32] | None = None
    """Where those of each event begin; -1 where there are none."""
    lengths: NDArray[np.int32] | None = None
    keys: frozenset[bytes] | None = None
    """Their keys; None where nobody looked."""

    def text(self) -> bytes | bytearray | memoryview:
        """Return the text in which these are."""
        if isinstance(self.source, FilePlace):
            return self.source.file.read(self.source.at, self.size)
        return self.source

    def joined(self) -> bytes:
        """Return the arguments, with a comma between two."""
        if not isinstance(self.source, FilePlace):
            return bytes(self.source)
        assert self.at is not None
        assert self.lengths is not None
        at, lengths = self.at.astype(np.int64), self.lengths.astype(np.int64)
        text = memoryview(self.text())
        return bytes(join_parts(text, len(at), at.ctypes.data, lengths.ctypes.data))

    def mention(self, key: bytes) -> bool:
        """Return whether any event has this key, which is written as JSON writes it."""
        if self.keys is not None:
            return key[1:-1] in self.keys
        return key in self.joined()

    def columns(self, wanted: Sequence[WantedArgument]) -> DecodedArguments | None:
        """Make columns of the arguments; None where another decoder has to."""
        if self.at is None:
            return None
        values = np.empty((len(wanted), len(self.at)), np.int64)
        states = np.empty(values.shape, np.uint8)
        text = self.text()
        raw = chrome_arguments(
            text if isinstance(text, bytes) else memoryview(text),
            *(len(self.at), self.at.ctypes.data, wanted, len(self.at)),
            *(values.ctypes.data, states.ctypes.data),
        )
        return None if raw is None else DecodedArguments(values, states, raw)


class DecodedArguments(NamedTuple):
    """Columns of arguments of some events: a row for each column."""

    values: NDArray[np.int64]
    """Whole numbers, the bits of doubles, or numbers of texts."""
    states: NDArray[np.uint8]
    """Whether an event has a value: `NO_ARGUMENT`, `HAS_VALUE`, `IS_NULL`."""
    texts: list[bytes]
    """As they are written."""


def in_turn(
    work: Callable[[_Part], _Result], parts: Iterable[_Part]
) -> Generator[_Result, None, None]:
    """Yield what becomes of parts, in their order; two threads work at them."""
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="gpusight-json") as pool:
        waiting: deque[Future[_Result]] = deque()
        try:
            for part in parts:
                waiting.append(pool.submit(work, part))
                if len(waiting) > _AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def text_of(raw: bytes) -> str:
    """Decode a text of JSON; most are written as they are."""
    return raw.decode() if b"\\" not in raw else msgspec.json.decode(b'"%b"' % raw, type=str)
