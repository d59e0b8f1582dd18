"""Counters of many launches at once, as columns."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from gpusight.readers.protobuf_columns import ByteSpans, MessageBuffer, MessageCursor, text_column
from gpusight.readers.protobuf_wire import FIXED32, FIXED64, fields

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from gpusight.readers.ncu.ncu_container import MessageSpan
    from gpusight.readers.ncu.report_messages import ReportLaunch
    from gpusight.readers.protobuf_columns import FieldValues, Int64


_NAME, _VALUE, _PARTS = 1, 2, 3
_PART_KEY, _PART_VALUE = 1, 2
_TEXT, _FLOAT, _DOUBLE, _UINT32, _UINT64 = 1, 2, 3, 4, 5
_MAX_DURATION_NS = 1e15
"""Eleven days: what a damaged number says beyond that is no duration."""
_BATCH_BYTES = 64 << 20
"""Counters are decoded together up to this size."""


class CounterValues(NamedTuple):
    """Values of counters or of their parts: numbers, and texts where they are that."""

    numbers: pl.Series
    texts: pl.Series
    whole: pl.Series
    """The same numbers where they were written as whole ones."""


def read_counters(data: memoryview, launches: Sequence[ReportLaunch]) -> pl.DataFrame:
    """Give `launch`, `name` (its number among the strings), `value` and `text` of all counters."""
    empty = {"launch": pl.Int64, "name": pl.Int64, "value": pl.Float64, "text": pl.String}
    frames = [_counters(data, batch) for batch in _batches(launches)]
    return pl.concat([pl.DataFrame(schema=empty), *frames])


def count_parts(data: memoryview, launches: Iterable[ReportLaunch]) -> pl.Series:
    """Count the parts of every counter, in the order of `read_counters`."""
    counts = [_parts_of(data, span) for launch in launches for span in launch.metrics]
    return pl.Series([n or None for n in counts], dtype=pl.Int64)


def has_parts(data: memoryview, launch: ReportLaunch) -> bool:
    """Tell whether any counter of the launch has parts."""
    return any(number == _PARTS for span in launch.metrics for number, _, _ in fields(data, *span))


def read_parts(data: memoryview, launches: Sequence[ReportLaunch]) -> pl.DataFrame:
    """Give `launch`, `name`, `instance`, `key`, `value` and `text` of all parts of all counters."""
    empty = {
        "launch": pl.Int64, "name": pl.Int64, "instance": pl.Int64, "key": pl.String,
        "value": pl.Float64, "text": pl.String,
    }  # fmt: skip
    frames = [_parts(data, [launch]) for launch in launches]
    return pl.concat([pl.DataFrame(schema=empty), *frames])


def known_duration(time: pl.Expr) -> pl.Expr:
    """Keep durations that can be: nothing runs for no time, and no rate comes of dividing by it."""
    return pl.when((time > 0) & (time < _MAX_DURATION_NS)).then(time)


def _batches(launches: Sequence[ReportLaunch]) -> Iterator[list[ReportLaunch]]:
    batch: list[ReportLaunch] = []
    size = 0
    for launch in launches:
        own = sum(span.end - span.start for span in launch.metrics)
        if batch and size + own > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(launch)
        size += own
    if batch:
        yield batch


class _Gathered(NamedTuple):
    """Counters of some launches in one buffer, one after the other."""

    buffer: MessageBuffer
    launch: Int64
    start: Int64
    end: Int64


def _gathered(data: memoryview, launches: Sequence[ReportLaunch]) -> _Gathered:
    spans = [span for launch in launches for span in launch.metrics]
    sizes = np.array([end - start for start, end in spans], np.int64)
    end = np.cumsum(sizes)
    counts = [len(launch.metrics) for launch in launches]
    number = np.repeat(np.array([launch.number for launch in launches], np.int64), counts)
    buffer = MessageBuffer([bytes(data[start:end]) for start, end in spans])
    return _Gathered(buffer, number, end - sizes, end)


def _counters(data: memoryview, launches: Sequence[ReportLaunch]) -> pl.DataFrame:
    gathered = _gathered(data, launches)
    cursor = MessageCursor(gathered.buffer, gathered.start, gathered.end)
    names = _filled(len(gathered.launch), cursor.integers(_NAME))
    values = _values(gathered.buffer, len(gathered.launch), cursor.spans(_VALUE))
    return pl.DataFrame(
        {
            "launch": gathered.launch,
            "name": names,
            "value": values.numbers,
            "text": values.texts,
        }
    )


def _parts(data: memoryview, launches: Sequence[ReportLaunch]) -> pl.DataFrame:
    """Decode the parts of some launches; each part is found in a loop, then all are decoded."""
    gathered = _gathered(data, launches)
    names = _filled(
        len(gathered.launch),
        MessageCursor(gathered.buffer, gathered.start, gathered.end).integers(_NAME),
    )
    whole = memoryview(gathered.buffer.bytes.data)
    rows: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    for row, (at, end) in enumerate(
        zip(gathered.start.tolist(), gathered.end.tolist(), strict=True)
    ):
        for number, first, last in fields(whole, at, end):
            if number == _PARTS:
                rows.append(row)
                starts.append(first)
                ends.append(last)
    owner = np.array(rows, np.int64)
    cursor = MessageCursor(gathered.buffer, np.array(starts, np.int64), np.array(ends, np.int64))
    keys = _values(gathered.buffer, len(owner), cursor.spans(_PART_KEY))
    values = _values(gathered.buffer, len(owner), cursor.spans(_PART_VALUE))
    return pl.DataFrame(
        {
            "launch": gathered.launch[owner],
            "name": names[owner],
            "instance": keys.whole,
            "key": keys.texts,
            "value": values.numbers,
            "text": values.texts,
        }
    )


def _parts_of(data: memoryview, span: MessageSpan) -> int:
    return sum(number == _PARTS for number, _, _ in fields(data, *span))


def _filled(rows: int, found: FieldValues | None) -> Int64:
    values = np.full(rows, -1, np.int64)
    if found is not None:
        values[found.rows] = found.values
    return values


def _values(buffer: MessageBuffer, rows: int, spans: ByteSpans | None) -> CounterValues:
    """Decode values: the first field that is set decides."""
    numbers = np.zeros(rows, np.float64)
    whole = np.zeros(rows, np.int64)
    known = np.zeros(rows, np.bool_)
    is_whole = np.zeros(rows, np.bool_)
    texts = pl.Series([None], dtype=pl.String).new_from_index(0, rows)
    if spans is None:
        nothing = pl.Series([None], dtype=pl.Float64).new_from_index(0, rows)
        return CounterValues(nothing, texts, nothing.cast(pl.Int64))
    index = np.arange(rows)[spans.rows]
    cursor = MessageCursor(buffer, spans.start, spans.end)
    written = cursor.spans(_TEXT)
    if written is not None:
        texts = texts.scatter(
            pl.Series(index[written.rows]), text_column(buffer, written.start, written.end)
        )
    for number, kind in ((_FLOAT, FIXED32), (_DOUBLE, FIXED64)):
        real = cursor.reals(number, kind)
        if real is not None:
            at = index[real.rows]
            numbers[at], known[at] = real.values, True
    for number in (_UINT32, _UINT64):
        count = cursor.integers(number)
        if count is not None:
            at = index[count.rows]
            numbers[at] = count.values.view(np.uint64).astype(np.float64)
            whole[at], known[at], is_whole[at] = count.values, True, True
    return CounterValues(_masked(numbers, known), texts, _masked(whole, is_whole))


def _masked(values: NDArray[np.float64] | NDArray[np.int64], known: NDArray[np.bool_]) -> pl.Series:
    return pl.select(pl.when(pl.Series(known)).then(pl.Series(values))).to_series()
