"""Colors, short names and track titles of a timeline."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from functools import cache, cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
import polars as pl

from gpusight.analysis.aggregates import names_of
from gpusight.analysis.capture_info import device_names
from gpusight.analysis.gpu_schedule import ApiCalls, CallKind, GpuOps, GpuSchedule, OpKind, kind_of
from gpusight.analysis.ledger.ledger_entries import (
    COMMUNICATION,
    COMPUTE,
    COPY,
    GRAPH,
    IdleCause,
    label_work,
)
from gpusight.naming.kernel_names import unique_short_names
from gpusight.naming.kernel_patterns import CATEGORIES
from gpusight.trace.trace import NO_RANK, RANKS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from gpusight.trace.intervals import Ints
    from gpusight.trace.trace import Trace

    ColorCodes: TypeAlias = NDArray[np.uint8]
    StyleRows: TypeAlias = NDArray[np.integer[Any]]


HOST_COLORS = 8
"""Ranges and operators are drawn in `host/0` to `host/7`, chosen by their names."""
MEMSET = f"{COPY}/memset"
OVERHEAD = "overhead"
SYNCHRONIZE = "api/synchronize"
_DIRECTIONS = ("h2d", "d2h", "d2d", "p2p", "unified", "memset", "h2h", "other")
_CALLS = {
    CallKind.LAUNCH: "api/launch",
    CallKind.GRAPH: "api/launch",
    CallKind.SYNC: SYNCHRONIZE,
    CallKind.ALLOCATE: "api/memory",
    CallKind.FREE: "api/memory",
    CallKind.COPY: "api/copy",
    CallKind.MEMSET: "api/copy",
}
_OTHER_CALL = "api/other"

COLORS: tuple[str, ...] = (
    *(f"{COMPUTE}/{category}" for category in CATEGORIES if category != COMMUNICATION),
    GRAPH,
    COMMUNICATION,
    *(f"{COPY}/{direction}" for direction in _DIRECTIONS),
    *(cause.entry for cause in IdleCause),
    *dict.fromkeys((*_CALLS.values(), _OTHER_CALL)),
    *(f"host/{number}" for number in range(HOST_COLORS)),
    OVERHEAD,
)
"""What the codes stand for: the same in every capture."""
CODES: dict[str, int] = {key: code for code, key in enumerate(COLORS)}


def possible(names: pl.Series) -> pl.Series:
    """Return the texts that a column of names can hold, in the order of their codes."""
    assert isinstance(names.dtype, pl.Enum), "names are dictionary-encoded"
    return names.dtype.categories


def by_entry(trace: Trace, kind: OpKind, column: str) -> ColorCodes:
    """Return the color of each text of a column of GPU work: its entry in the ledger."""
    names = trace.table(kind.table, [column])[column]
    codes = names.to_physical().to_numpy()
    rows = np.full(len(names_of(names)), -1, np.int64)
    rows[codes[::-1]] = np.arange(len(codes))[::-1]  # written backwards: the first row stays
    used = np.flatnonzero(rows >= 0)
    labels = label_work(_single_rows(trace, kind, rows[used]))
    colors = np.zeros(len(rows), np.uint8)
    colors[used] = [CODES[labels.known[number].entry] for number in labels.of_op]
    return colors


def _single_rows(trace: Trace, kind: OpKind, rows: Ints) -> GpuSchedule:
    """Lay out single rows of GPU work for the ledger to label; when they ran does not matter."""
    zeros, none = np.zeros_like(rows), np.empty(0, np.int64)
    ops = GpuOps(zeros, zeros, zeros, zeros, zeros, zeros + int(kind), rows, zeros > 0)
    return GpuSchedule(trace, 0, 0, ops, ApiCalls(none, none, none, none, none, none), ())


def by_call(names: pl.Series) -> ColorCodes:
    """Return the color of each API call that a column of names can hold."""
    keys = [_CALLS.get(kind_of(name), _OTHER_CALL) for name in names_of(names)]
    return np.array([CODES[key] for key in keys], np.uint8)


def by_name(names: pl.Series) -> ColorCodes:
    """Return one of the host's colors to each name; names that differ in numbers look alike."""
    without_numbers = possible(names).str.replace_all("[0-9]+", "")
    distinct = without_numbers.unique()
    first = CODES["host/0"]
    codes = [first + zlib.crc32(text.encode()) % HOST_COLORS for text in distinct]
    chosen = pl.DataFrame({"name": distinct, "code": pl.Series(codes, dtype=pl.UInt8)})
    joined = without_numbers.to_frame("name").join(
        chosen, on="name", how="left", maintain_order="left"
    )
    colors: ColorCodes = joined["code"].to_numpy()
    return colors


def by_key(names: pl.Series, key: str) -> ColorCodes:
    """Return the same color to every name."""
    return np.full(len(names_of(names)), CODES[key], np.uint8)


MAX_LABEL_CHARACTERS = 120
"""No slice is wide enough for more."""


@dataclass(frozen=True)
class NamedStyle:
    """Rows that have a name, which decides color and label; used for rows on a screen only."""

    names: pl.Series
    """Dictionary-encoded; never null."""
    paint: Callable[[pl.Series], ColorCodes]
    """Gives the color of each name that the column can hold."""
    shorten: Callable[[str], str]

    def colors(self, rows: StyleRows) -> ColorCodes:
        """Return the color of each row, as positions in `COLORS`."""
        return self._colors[self._codes[rows]]

    def labels(self, rows: StyleRows) -> tuple[Ints, list[str]]:
        """Return the distinct short names of rows, and the position of each row's own in them."""
        used, position = np.unique(self._codes[rows], return_inverse=True)
        return position, [self.shorten(text) for text in self._texts.gather(used)]

    @cached_property
    def _codes(self) -> StyleRows:
        codes: StyleRows = self.names.to_physical().to_numpy()
        return codes

    @cached_property
    def _texts(self) -> pl.Series:
        return possible(self.names)

    @cached_property
    def _colors(self) -> ColorCodes:
        return self.paint(self.names)


@dataclass(frozen=True)
class CountedStyle:
    """Rows labeled by an operation and a number: a copy and its bytes, a graph and its id."""

    words: pl.Series
    """Dictionary-encoded, such as `Host-to-Device`; never null."""
    numbers: pl.Series
    show: Callable[[int | None], str]
    """Writes such a number down; empty for an unknown one."""
    paint: Callable[[pl.Series], ColorCodes]

    def colors(self, rows: StyleRows) -> ColorCodes:
        """Look the colors up by what is done."""
        return self._named.colors(rows)

    def labels(self, rows: StyleRows) -> tuple[Ints, list[str]]:
        """Return operation and number, such as `HtoD 4.194 MB`."""
        kind, words = self._named.labels(rows)
        shown = pl.DataFrame({"kind": kind, "number": self.numbers.gather(rows)})
        distinct = shown.unique(maintain_order=True)
        texts = [f"{words[kind]} {self.show(number)}".strip() for kind, number in distinct.rows()]
        joined = shown.join(
            distinct.with_row_index("position"),
            on=["kind", "number"],
            how="left",
            nulls_equal=True,
            maintain_order="left",
        )
        return joined["position"].to_numpy().astype(np.int64), texts

    @cached_property
    def _named(self) -> NamedStyle:
        return NamedStyle(self.words, self.paint, short_direction)


EventStyle: TypeAlias = NamedStyle | CountedStyle


def kernel_labels(names: pl.Series) -> Callable[[str], str]:
    """Return what shortens the names of a capture's kernels; those of two kernels differ."""

    @cache
    def short_names() -> Mapping[str, str]:
        return unique_short_names(possible(names))

    return lambda name: one_line(short_names()[name])


def short_direction(kind: str) -> str:
    """Shorten `Host-to-Device` to `HtoD`; other texts stay unchanged."""
    start, separator, target = kind.partition("-to-")
    *before, origin = start.split() or [""]
    if not separator or not origin or not target:
        return one_line(kind)
    return one_line(" ".join((*before, f"{origin[0]}to{target[0]}")))


def one_line(text: str) -> str:
    """Join a text to one line of at most as many characters as are ever shown."""
    line = " ".join(text[: 4 * MAX_LABEL_CHARACTERS].split())
    return line if len(line) <= MAX_LABEL_CHARACTERS else f"{line[: MAX_LABEL_CHARACTERS - 1]}…"


def always(word: str, rows: int) -> pl.Series:
    """Return a column with the same text in every row, for tables whose rows have no name."""
    return pl.Series([word], dtype=pl.Enum([word])).new_from_index(0, rows)


NO_THREAD = "thread not recorded"


class TrackTitles:
    """The names of events in a capture."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace

    def gpu(self, device: int | None) -> str:
        """Name a GPU: `GPU 0 · NVIDIA H200`; of several captures, `Rank 2 · NVIDIA H200`."""
        word = "Rank" if self._trace.meta.source == RANKS else "GPU"
        number = "GPU" if device is None else f"{word} {device}"
        name = None if device is None else self._gpus.get(device)
        if name and name.endswith(NO_RANK):
            return one_line(name)
        return one_line(f"{number} · {name}") if name else number

    def process(self, process: int | None) -> str:
        """Name a process: `python3 (pid 4711)`."""
        pid, name = self._processes.get(process, (process, None))
        if pid is None or pid < 0:  # profilers file their own work under a process that is none
            return "Host"
        return one_line(f"{name} (pid {pid})") if name else f"Process {pid}"

    def thread(self, thread: int | None) -> str:
        """Name a thread: `python3 (4711)`."""
        tid, name = self._threads.get(thread, (thread, None))
        if tid is None or tid < 0:
            return NO_THREAD
        if not name:
            return f"Thread {tid}"
        return one_line(name if str(tid) in name else f"{name} ({tid})")

    def stream(self, process: int | None, stream: int | None) -> str:
        """Name a stream: `Stream 7`, with the name that the program gave it where it did."""
        if stream is None:
            return "No stream"
        name = self._streams.get((process, stream))
        return one_line(f"Stream {stream} · {name}") if name else f"Stream {stream}"

    @cached_property
    def _gpus(self) -> dict[int, str | None]:
        return device_names(self._trace)

    @cached_property
    def _processes(self) -> dict[int | None, tuple[int | None, str | None]]:
        frame = self._texts("processes", ["process", "pid", "name"])
        return {key: (pid, name) for key, pid, name in frame.iter_rows()}

    @cached_property
    def _threads(self) -> dict[int | None, tuple[int | None, str | None]]:
        frame = self._texts("threads", ["thread", "tid", "name"])
        return {key: (tid, name) for key, tid, name in frame.iter_rows()}

    @cached_property
    def _streams(self) -> dict[tuple[int | None, int], str]:
        frame = self._texts("streams", ["process", "stream", "name"]).filter(
            pl.col("name").str.len_chars() > 0
        )
        return {(process, stream): name for process, stream, name in frame.iter_rows()}

    def _texts(self, table: str, columns: list[str]) -> pl.DataFrame:
        return self._trace.table(table, columns).with_columns(pl.col("name").cast(pl.String))
