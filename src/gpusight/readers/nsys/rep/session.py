"""When the session started, from the offsets between the clocks of the capture."""

from __future__ import annotations

import struct
from datetime import datetime, timezone

from gpusight.readers.protobuf.wire import (
    Message,
    WireError,
    child,
    children,
    integer,
    parse,
    signed,
    text,
    wrapped,
)

# Clocks of files up to 2025, as numbered in the system information.
_CAPTURE, _SYSTEM, _SESSION, _UTC, _LOCAL = 1, 3, 7, 9, 10
# Clocks of later files, as numbered in the section "Time Conversion Data".
_SYSTEM_CLOCK, _UTC_CLOCK, _SESSION_CLOCK, _SYSTEM_AT_START = 7, 11, 14, 15

_NS = 1_000_000_000
_LAST_SECOND = 253402300799  # of the year 9999, where datetime ends


def session_start(system: Message, conversions: bytes) -> list[dict[str, int | str | None]]:
    """Give the row of TARGET_INFO_SESSION_START_TIME; none when the file does not say."""
    found = _from_offsets(system) or _from_conversions(conversions)
    if found is None:
        return []
    utc, local = found
    return [{"utcEpochNs": utc, "utcTime": _clock_text(utc), "localTime": _clock_text(local)}]


def _from_offsets(system: Message) -> tuple[int, int | None] | None:
    """t[a] = t[b] + offset, for pairs of clocks; chained from the session clock to UTC."""
    offsets: dict[tuple[int, int], int] = {}
    for entry in children(child(system, 16), 1):
        a, b, offset = integer(entry, 1), integer(entry, 2), text(entry, 5)
        if a is not None and b is not None and offset is not None:
            offsets[a, b] = _decimal(offset)
    steps = ((_SYSTEM, _UTC), (_CAPTURE, _SYSTEM), (_SESSION, _CAPTURE))
    if any(step not in offsets for step in steps):
        return None
    utc = wrapped(-sum(offsets[step] for step in steps))
    zone = offsets.get((_UTC, _LOCAL))
    return utc, None if zone is None else wrapped(utc - zone)


def _decimal(value: str) -> int:
    """Read a decimal: a signed number, or an unsigned one wrapped below zero."""
    try:
        number = int(value)
    except ValueError:
        raise WireError("a clock offset is no number") from None
    return wrapped(number)


def _from_conversions(data: bytes) -> tuple[int, int | None] | None:
    """Read the points of contact between clocks that files from 2026 on hold instead."""
    message = parse(data)
    kinds = {clock.get(1, [b""])[0]: integer(clock, 2) for clock in children(child(message, 1), 1)}
    contact: dict[tuple[int | None, int | None], tuple[int, int]] = {}
    for entry in children(child(message, 2), 1):
        pair = (kinds.get(entry.get(1, [b""])[0]), kinds.get(entry.get(2, [b""])[0]))
        for point in children(entry, 3)[:1]:
            both = child(point, 1)
            contact[pair] = (_time(both, 1), _time(both, 2))
    utc = contact.get((_UTC_CLOCK, _SYSTEM_CLOCK))
    start = contact.get((_SYSTEM_AT_START, _SESSION_CLOCK))
    if utc is None or start is None:
        return None
    return wrapped(utc[0] + start[0] - utc[1]), None


def _time(message: Message, number: int) -> int:
    value = message.get(number, [0])[0]
    if isinstance(value, bytes):
        return struct.unpack("<q", value)[0] if len(value) == 8 else 0
    return signed(value)


def _clock_text(epoch_ns: int | None) -> str | None:
    if epoch_ns is None or not 0 <= epoch_ns // _NS <= _LAST_SECOND:
        return None
    moment = datetime.fromtimestamp(epoch_ns // _NS, timezone.utc)
    return moment.strftime("%Y-%m-%dT%H:%M:%S")
