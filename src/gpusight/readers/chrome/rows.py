"""Events of one kind as columns: times, names and threads now, arguments when asked for."""

from __future__ import annotations

import re
import zlib
from collections import Counter
from functools import cached_property
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.readers.chrome.arguments import Arguments, number
from gpusight.readers.names import NAMELESS, encode

if TYPE_CHECKING:
    from collections.abc import Sequence

THREAD_SHIFT = 1 << 32
_LAST_NUMBER = re.compile(r"-?\d{1,18}")
_TIME_LIMIT = 1 << 61
"""Beyond any clock, in nanoseconds; what lies outside is no time."""
_LIMIT_US = _TIME_LIMIT / 1000
_LONGEST_NS = 30 * 86_400 * 10**9
"""No profiler records for longer than 30 days, so nothing in a trace lasts longer."""


class Interner(dict[str, int]):
    """Numbers texts in order of first appearance."""

    def __missing__(self, text: str) -> int:
        """Give the next number to a text not seen before."""
        number = self[text] = len(self)
        return number


class Rows:
    """The events of one kind, in file order."""

    def __init__(self) -> None:
        self._names = Interner()
        self._codes: list[pl.Series] = []
        self._starts: list[pl.Series] = []
        self._durations: list[pl.Series] = []
        self._processes: list[pl.Series] = []
        self._threads: list[pl.Series] = []
        self.arguments = Arguments()
        self.height = 0
        self.left_out: Counter[str] = Counter()
        """Why events were left out, and how many."""

    def add(self, events: Sequence[Any], *, exact: bool, instant: bool = False) -> None:
        """Take some more events; an instant has no duration."""
        times = exact_ns if exact else microseconds
        starts = times([e.ts for e in events])
        durations = starts.clip(0, 0) if instant else times([e.dur for e in events])
        if not _usable(starts, durations):
            why = _problems(starts, durations)
            self.left_out.update(why.drop_nulls())
            good = why.is_null()
            events = [event for event, keep in zip(events, good, strict=True) if keep]
            starts, durations = starts.filter(good), durations.filter(good)
        names = self._names
        self._codes.append(pl.Series([names[e.name or NAMELESS] for e in events], dtype=pl.UInt32))
        self._starts.append(starts)
        self._durations.append(durations)
        self._processes.append(numbers([e.pid for e in events]))
        self._threads.append(numbers([e.tid for e in events]))
        self.arguments.add([e.args for e in events])
        self.height += len(events)

    @cached_property
    def start_ns(self) -> pl.Series:
        """When each began, on the file's own clock."""
        return _nanoseconds(self._starts).alias("start_ns")

    @cached_property
    def duration_ns(self) -> pl.Series:
        """How long each took."""
        return _nanoseconds(self._durations)

    @cached_property
    def pid(self) -> pl.Series:
        """The track's process as a number."""
        return _joined(self._processes, pl.Int64).fill_null(0)

    @cached_property
    def tid(self) -> pl.Series:
        """The track's thread as a number."""
        return _joined(self._threads, pl.Int64).fill_null(0)

    @property
    def thread(self) -> pl.Series:
        """The key of the thread: its process and its number in one."""
        return thread_key(self.pid, self.tid)

    @property
    def distinct_names(self) -> list[str]:
        """The names that occur, in order of first appearance."""
        return list(self._names)

    @cached_property
    def codes(self) -> pl.Series:
        """Each row's position in `distinct_names`."""
        return _joined(self._codes, pl.UInt32)

    @property
    def names(self) -> pl.Series:
        """The names, dictionary-encoded."""
        return self.named(self.distinct_names)

    def named(self, texts: list[Any]) -> pl.Series:
        """Spread one text a distinct name over the rows, dictionary-encoded."""
        return encode(pl.Series(texts, dtype=pl.String)).gather(self.codes)


def thread_key(pid: pl.Series, tid: pl.Series) -> pl.Series:
    """Make one number of a process's and a thread's."""
    low = tid.to_frame("t").select(pl.col("t") & (THREAD_SHIFT - 1)).to_series()
    return pid.clip(-(1 << 30), 1 << 30) * THREAD_SHIFT + low


def microseconds(times: list[Any]) -> pl.Series:
    """Take times as written; null where no clock could show them."""
    try:
        values = pl.Series(times, dtype=pl.Float64)
    except (TypeError, pl.exceptions.PolarsError):  # a text among them, which may be a number
        values = pl.Series([number(time, pl.Float64) for time in times], dtype=pl.Float64)
    least, most = values.min(), values.max()
    if (
        isinstance(least, float)
        and isinstance(most, float)
        and -_LIMIT_US < least <= most < _LIMIT_US
    ):
        return values
    usable = values.is_finite() & (values.abs() < _LIMIT_US)
    return values.to_frame("v").select(pl.when(usable).then(pl.col("v"))).to_series()


def _usable(starts: pl.Series, durations: pl.Series) -> bool:
    """Tell, quickly, whether every event has a time and a duration."""
    if starts.null_count() or durations.null_count():
        return False
    least, most = durations.min(), durations.max()
    if not isinstance(least, (int, float)) or not isinstance(most, (int, float)):
        return True  # no events
    return least >= 0 and most <= _longest(durations)


def _problems(starts: pl.Series, durations: pl.Series) -> pl.Series:
    """Say of each event why it cannot be used; null where it can be."""
    took = pl.col("took")
    return pl.select(start=starts, took=durations).select(
        pl.when(pl.col("start").is_null())
        .then(pl.lit("no time"))
        .when(took.is_null())
        .then(pl.lit("no duration"))
        .when(took < 0)
        .then(pl.lit("a negative duration"))
        .when(took > _longest(durations))
        .then(pl.lit("a duration over 30 days"))
        .alias("why")
    )["why"]


def _longest(durations: pl.Series) -> int:
    return _LONGEST_NS if durations.dtype == pl.Int64 else _LONGEST_NS // 1000


def _nanoseconds(parts: list[pl.Series]) -> pl.Series:
    """Put times of either form under each other, as nanoseconds."""
    if all(part.dtype == pl.Float64 for part in parts):
        return rounded_ns(_joined(parts, pl.Float64))
    return pl.concat([p if p.dtype == pl.Int64 else rounded_ns(p) for p in parts])


def rounded_ns(values: pl.Series) -> pl.Series:
    """Turn microseconds into whole nanoseconds; doubles hold those exactly in most traces."""
    whole = values.floor()
    return whole.cast(pl.Int64) * 1000 + ((values - whole) * 1000).round().cast(pl.Int64)


def exact_ns(times: list[Any]) -> pl.Series:
    """Turn microseconds written as text into nanoseconds, digit by digit."""
    texts = pl.Series([bytes(t).decode("ascii", "replace").strip('"') for t in times])
    parts = pl.DataFrame({"text": texts}).select(
        pl.col("text").str.extract(r"^(-?\d{1,16})(?:\.\d*)?$").cast(pl.Int64).alias("whole"),
        pl.col("text").str.extract(r"\.(\d+)$").str.pad_end(3, "0").str.slice(0, 4).alias("part"),
        pl.col("text").str.starts_with("-").alias("negative"),
    )
    digits = parts["part"].str.pad_end(4, "0").cast(pl.Int64).fill_null(0)
    below = ((digits + 5) // 10).zip_with(~parts["negative"], -((digits + 5) // 10))
    exact = parts["whole"] * 1000 + below
    exact = exact.set(parts["whole"].abs() > _TIME_LIMIT // 1000, None)
    if exact.null_count() == 0:
        return exact
    others = rounded_ns(microseconds(texts.cast(pl.Float64, strict=False).to_list()))
    return exact.zip_with(exact.is_not_null(), others)


def numbers(values: list[Any]) -> pl.Series:
    """Turn process and thread labels into numbers: `7`, `"7"` and `"stream 7"` are 7."""
    try:
        return pl.Series(values, dtype=pl.Int64, strict=True)
    except (TypeError, OverflowError, pl.exceptions.PolarsError):
        known: dict[Any, int | None] = {value: number_of(value) for value in set(values)}
        return pl.Series([known[value] for value in values], dtype=pl.Int64)


def number_of(label: object) -> int | None:
    """Give the number that a label ends in, else one made from its text; below zero for those."""
    if label is None or isinstance(label, bool):
        return None
    if isinstance(label, (int, float)):
        return int(label) if abs(label) < 1 << 63 else None
    found = _LAST_NUMBER.findall(str(label))
    return int(found[-1]) if found else -1 - zlib.crc32(str(label).encode("utf-8", "replace"))


def _joined(parts: list[pl.Series], dtype: pl.DataType | type[pl.DataType]) -> pl.Series:
    return pl.concat(parts) if parts else pl.Series([], dtype=dtype)
