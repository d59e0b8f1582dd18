"""NVTX ranges and marks out of CUPTI's markers.

A range is two markers of one number, of which only the first has a name. Push/pop and start/end
ranges look alike: CUPTI 13.0 gives both the object kind of a thread. So the rule is how they end:
one that ends while a later one of its thread and domain is still open, or on another thread, was
started and ended; all others count as push/pop. Nesting then is what it looks like.
"""

from __future__ import annotations

import struct
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterator

_INSTANT, _START, _END = 1, 2, 4
_PROCESS = 1
_MARK, _PUSH_POP, _START_END, _DOMAIN = 34, 59, 60, 75
_DOUBLE, _UINT64, _INT64 = 0, 1, 4

_ORDERED = """
SELECT markers.id, time, markers.flags, object, thread, name, coalesce(domain, 0),
       CASE WHEN data.flags & 2 THEN color END, nullif(category, 0), payload_kind, payload
FROM markers LEFT JOIN marker_data AS data ON data.id = markers.id
ORDER BY time, markers.rowid
"""
_INSERT = """
INSERT INTO NVTX_EVENTS (start, end, eventType, rangeId, category, color, text, globalTid,
endGlobalTid, domainId, uint64Value, int64Value, doubleValue)
SELECT ?1, ?2, ?3, ?4, ?5, ?6, (SELECT value FROM StringIds WHERE id = ?7), ?8, ?9, ?10, ?11, ?12,
?13
"""


class _Marker(NamedTuple):
    id: int
    time: int
    flags: int
    object: int
    thread: int
    name: int
    domain: int
    color: int | None
    category: int | None
    payload_kind: int | None
    payload: int | None


def write_ranges(database: sqlite3.Connection, main_thread: int) -> None:
    """Put ranges and marks into the capture's own table; `StringIds` must be filled."""
    domains = _number_domains(database, main_thread)
    markers = map(_Marker._make, database.execute(_ORDERED))
    database.executemany(_INSERT, _ranges(markers, domains))


def _number_domains(database: sqlite3.Connection, main_thread: int) -> dict[int, int]:
    """Number domains as nsys does: 0 is the default one, others are announced by name."""
    query = "SELECT DISTINCT domain FROM markers WHERE domain > 0 ORDER BY rowid"
    numbers = {text: number for number, (text,) in enumerate(database.execute(query), 1)}
    for text, number in numbers.items():
        row = (0, None, _DOMAIN, None, None, None, text, main_thread, None, number, *_NO_PAYLOAD)
        database.execute(_INSERT, row)
    return numbers | {0: 0}


def _ranges(markers: Iterator[_Marker], domains: dict[int, int]) -> Iterator[tuple[Any, ...]]:
    opened: dict[int, _Marker] = {}
    stacks: dict[tuple[int, int], list[int]] = {}
    for marker in markers:
        if marker.flags & _INSTANT:
            yield _row(marker, domains, _MARK)
        elif marker.flags & _START:
            opened[marker.id] = marker
            stacks.setdefault((marker.thread, marker.domain), []).append(marker.id)
        elif marker.flags & _END and marker.id in opened:
            began = opened.pop(marker.id)
            stack = stacks[began.thread, began.domain]
            on_top = stack[-1] == marker.id
            stack.remove(marker.id)
            nested = on_top and marker.thread == began.thread and began.object != _PROCESS
            yield _row(began, domains, _PUSH_POP if nested else _START_END, marker)
    for began in opened.values():  # still open when recording ended
        yield _row(began, domains, _START_END if began.object == _PROCESS else _PUSH_POP)


def _row(
    marker: _Marker, domains: dict[int, int], event: int, end: _Marker | None = None
) -> tuple[Any, ...]:
    return (
        marker.time,
        end.time if end else None,
        event,
        marker.id if event == _START_END else None,
        marker.category,
        marker.color,
        marker.name,
        marker.thread,
        end.thread if end and event == _START_END else None,
        domains[marker.domain],
        *_payload(marker),
    )


_NO_PAYLOAD = (None, None, None)


def _payload(marker: _Marker) -> tuple[int | None, int | None, float | None]:
    """Give the payload as unsigned, signed or real. A zero cannot be told from no payload."""
    if not marker.payload:
        return _NO_PAYLOAD
    if marker.payload_kind == _DOUBLE:
        (real,) = struct.unpack("=d", struct.pack("=q", marker.payload))
        return None, None, real
    if marker.payload_kind == _UINT64:
        return marker.payload, None, None
    return (None, marker.payload, None) if marker.payload_kind == _INT64 else _NO_PAYLOAD
