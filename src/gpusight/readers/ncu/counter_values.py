"""Values of counters, decoded for many launches at once."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import polars as pl

from gpusight.readers.protobuf_columns import ByteSpans, MessageBuffer, MessageCursor, text_column
from gpusight.readers.protobuf_wire import FIXED32, FIXED64, fields
from gpusight.readers.tables import MAX_DURATION_NS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from gpusight.readers.ncu.report_messages import ReportLaunch
    from gpusight.readers.protobuf_columns import Int64
    from gpusight.trace.intervals import Flags, Ints, Reals


_NAME, _VALUE, _INSTANCES = 1, 2, 3
_KEY, _INSTANCE_VALUE = 1, 2
_TEXT, _FLOAT, _DOUBLE, _UINT32, _UINT64 = 1, 2, 3, 4, 5
_BATCH_BYTES = 64 << 20
"""Counters are decoded together up to this size."""


class CounterValues(NamedTuple):
    """Values of counters or of their instances; null in the columns that do not apply."""

    numbers: pl.Series
    texts: pl.Series
    integers: pl.Series
    """The same numbers where they are stored as integers."""


def read_counters(data: memoryview, launches: Sequence[ReportLaunch]) -> pl.DataFrame:
    """Return `launch`, `name` (index of the string), `value` and `text` of all counters."""
    empty = {"launch": pl.Int64, "name": pl.Int64, "value": pl.Float64, "text": pl.String}
    frames = [pl.DataFrame(schema=empty)]
    for batch in _batches(launches):
        messages = _messages(data, batch)
        cursor = MessageCursor(messages.buffer, messages.start, messages.end)
        values = _values(messages.buffer, len(messages.launch), cursor.spans(_VALUE))
        columns = (messages.launch, messages.name, values.numbers, values.texts)
        frames.append(pl.DataFrame(dict(zip(empty, columns, strict=True))))
    return pl.concat(frames)


def count_instances(data: memoryview, launches: Iterable[ReportLaunch]) -> pl.Series:
    """Count the instances of every counter, in the order of `read_counters`."""
    counts = [
        sum(number == _INSTANCES for number, _, _ in fields(data, *span)) or None
        for launch in launches
        for span in launch.metrics.tolist()
    ]
    return pl.Series(counts, dtype=pl.Int64)


def has_instances(data: memoryview, launches: Iterable[ReportLaunch]) -> bool:
    """Return whether any counter of the launches has instances."""
    spans = (span for launch in launches for span in launch.metrics.tolist())
    return any(number == _INSTANCES for span in spans for number, _, _ in fields(data, *span))


def read_instances(data: memoryview, launches: Sequence[ReportLaunch]) -> pl.DataFrame:
    """Return `launch`, `name`, `instance`, `key`, `value` and `text` of all instances."""
    empty = {
        "launch": pl.Int64, "name": pl.Int64, "instance": pl.Int64, "key": pl.String,
        "value": pl.Float64, "text": pl.String,
    }  # fmt: skip
    frames = [_instances(data, launch) for launch in launches]
    return pl.concat([pl.DataFrame(schema=empty), *frames])


def plausible_duration(time: pl.Expr) -> pl.Expr:
    """Keep plausible durations: nothing runs for no time, and rates divide by it."""
    return pl.when((time > 0) & (time <= MAX_DURATION_NS)).then(time)


def _batches(launches: Sequence[ReportLaunch]) -> Iterator[list[ReportLaunch]]:
    batch: list[ReportLaunch] = []
    size = 0
    for launch in launches:
        own = int((launch.metrics[:, 1] - launch.metrics[:, 0]).sum())
        if batch and size + own > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(launch)
        size += own
    if batch:
        yield batch


class _CounterMessages(NamedTuple):
    """The counters of some launches in one buffer, one after the other."""

    buffer: MessageBuffer
    launch: Int64
    name: Int64
    """Index of the string; -1 where the message has none."""
    start: Int64
    end: Int64


def _messages(data: memoryview, launches: Sequence[ReportLaunch]) -> _CounterMessages:
    starts, ends, parts, size = [], [], [], 0
    for launch in launches:
        first, last = launch.metrics.min(initial=len(data)), launch.metrics.max(initial=0)
        parts.append(bytes(data[first:last]))
        starts.append(launch.metrics[:, 0] - first + size)
        ends.append(launch.metrics[:, 1] - first + size)
        size += len(parts[-1])
    start, end = np.concatenate(starts), np.concatenate(ends)
    counts = [len(launch.metrics) for launch in launches]
    number = np.repeat(np.array([launch.number for launch in launches], np.int64), counts)
    buffer = MessageBuffer(parts)
    name = np.full(len(start), -1, np.int64)
    indices = MessageCursor(buffer, start, end).integers(_NAME)
    if indices is not None:
        name[indices.rows] = indices.values
    return _CounterMessages(buffer, number, name, start, end)


def _instances(data: memoryview, launch: ReportLaunch) -> pl.DataFrame:
    """Find the instances of a launch's counters in a loop, then decode them all at once."""
    messages = _messages(data, [launch])
    content = memoryview(messages.buffer.bytes.data)
    counters: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    spans = zip(messages.start.tolist(), messages.end.tolist(), strict=True)
    for row, span in enumerate(spans):
        for number, start, end in fields(content, *span):
            if number == _INSTANCES:
                counters.append(row)
                starts.append(start)
                ends.append(end)
    counter = np.array(counters, np.int64)
    cursor = MessageCursor(messages.buffer, np.array(starts, np.int64), np.array(ends, np.int64))
    keys = _values(messages.buffer, len(counter), cursor.spans(_KEY))
    values = _values(messages.buffer, len(counter), cursor.spans(_INSTANCE_VALUE))
    return pl.DataFrame(
        {
            "launch": messages.launch[counter],
            "name": messages.name[counter],
            "instance": keys.integers,
            "key": keys.texts,
            "value": values.numbers,
            "text": values.texts,
        }
    )


def _values(buffer: MessageBuffer, rows: int, spans: ByteSpans | None) -> CounterValues:
    """Decode values: the first field that is set decides."""
    numbers = np.zeros(rows, np.float64)
    integers = np.zeros(rows, np.int64)
    is_number = np.zeros(rows, np.bool_)
    is_integer = np.zeros(rows, np.bool_)
    texts = pl.Series([None], dtype=pl.String).new_from_index(0, rows)
    if spans is not None:
        index = np.arange(rows)[spans.rows]
        cursor = MessageCursor(buffer, spans.start, spans.end)
        text = cursor.spans(_TEXT)
        if text is not None:
            texts = texts.scatter(
                pl.Series(index[text.rows]), text_column(buffer, text.start, text.end)
            )
        for number, kind in ((_FLOAT, FIXED32), (_DOUBLE, FIXED64)):
            real = cursor.reals(number, kind)
            if real is not None:
                at = index[real.rows]
                numbers[at], is_number[at] = real.values, True
        for number in (_UINT32, _UINT64):
            count = cursor.integers(number)
            if count is not None:
                at = index[count.rows]
                numbers[at] = count.values.view(np.uint64).astype(np.float64)
                integers[at], is_number[at], is_integer[at] = count.values, True, True
    return CounterValues(_masked(numbers, is_number), texts, _masked(integers, is_integer))


def _masked(values: Reals | Ints, known: Flags) -> pl.Series:
    return pl.select(pl.when(pl.Series(known)).then(pl.Series(values))).to_series()
