"""The container of a native report: header, directory, sections, and events inside blocks."""

from __future__ import annotations

import os
import shlex
import threading
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import lz4.block
import numpy as np

from gpusight.errors import CaptureError, NotACaptureError, UndecodableReportError
from gpusight.readers import protobuf_wire
from gpusight.readers.protobuf_columns import MessageBuffer, MessageCursor, value_counts
from gpusight.readers.protobuf_wire import WireError
from gpusight.sniff import NSYS_REPORT

if TYPE_CHECKING:
    from gpusight.readers.protobuf_columns import Int64
    from gpusight.trace.intervals import Flags


_TRAILER = b"U3w[END]"
_CUT_OFF = "the end of the file is missing"
_RAW_MAGIC = b"QDTEXT00"

MAX_BLOCK_BYTES = 64 << 20
"""Twenty times the largest block ever seen; the file's own word for it is not trusted further."""
MAX_STRING_BLOCK_BYTES = 1 << 30
_LZ4_MAX_RATIO = 255
_MIN_EVENT_BYTES = 2


class EventBlock(NamedTuple):
    """One compressed block: its position in the file and its decompressed size."""

    offset: int
    size: int
    inflated: int


@dataclass(frozen=True)
class RawSections:
    """The parts of "Raw Sampling Data", located and checked but not decoded."""

    system: protobuf_wire.Message
    header: protobuf_wire.Message
    event_blocks: tuple[EventBlock, ...]
    string_block: EventBlock
    threads: protobuf_wire.Message
    target: protobuf_wire.Message
    schema_block: EventBlock | None

    @property
    def event_count(self) -> int:
        """Number of events according to the header."""
        return protobuf_wire.integer(self.header, 1) or 0

    @property
    def generic_event_count(self) -> int:
        """Number of generic events among them according to the header."""
        return protobuf_wire.integer(self.header, 15) or 0


class NsysContainer:
    """An open report. Close it: Windows locks open files."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.version = ""
        self._file = _open_report(self.path)
        try:
            self.sections = self._read_directory()
            self.ui = self._read_section_message("UI Data")
            self.version = protobuf_wire.text(self.ui, 6) or ""
            self.raw = self._read_raw()
        except WireError as error:
            self.close()
            raise self.damaged(str(error)) from error
        except CaptureError:
            self.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def damaged(self, why: str) -> UndecodableReportError:
        """Build the error for a file that contradicts itself, naming what to type instead."""
        what, hint = f"{self.path} is cut off", "copy or record it again"
        if why != _CUT_OFF:
            number = self.version.partition("-")[0]
            needs = f"nsys >= {number}" if number else "an nsys at least as recent as the file"
            names = shlex.join([f"{self.path.stem}.sqlite", str(self.path)])
            command = f"nsys export --type sqlite --force-overwrite true -o {names}"
            what, hint = f"{self.path} cannot be read natively", f"try: {command} (needs {needs})"
        return UndecodableReportError(what, why=why, hint=hint, version=self.version)

    def section(self, name: str) -> bytes:
        """Copy one section; empty when the file has none of that name."""
        start, size = self.sections.get(name, (0, 0))
        return self._file[start : start + size]

    def inflate(self, block: EventBlock) -> bytes:
        """Decompress one block and strip the length in front of its message."""
        source = self._file[block.offset : block.offset + block.size]
        try:
            data: bytes = lz4.block.decompress(source, uncompressed_size=block.inflated)
        except (lz4.block.LZ4BlockError, ValueError, OverflowError, MemoryError) as error:
            raise WireError(f"the block at byte {block.offset} does not decompress") from error
        start, end = protobuf_wire.read_span(data, 0, len(data))
        if len(data) != block.inflated or end != len(data):
            raise WireError(f"the block at byte {block.offset} has the wrong length")
        return data[start:]

    def _read_directory(self) -> dict[str, tuple[int, int]]:
        size = len(self._file)
        if self._file[size - 8 :] != _TRAILER:
            raise WireError(_CUT_OFF)
        directory = int.from_bytes(self._file[size - 16 : size - 8], "little")
        if not len(NSYS_REPORT) <= directory <= size - 16:
            raise WireError("the section directory lies outside the file")
        sections: dict[str, tuple[int, int]] = {}
        entries = protobuf_wire.parse(self._file[directory : size - 16])
        for entry in protobuf_wire.children(entries, 1):
            start, length = (protobuf_wire.integer(entry, number) or 0 for number in (2, 3))
            if not (0 <= start <= directory and 0 <= length <= directory - start):
                raise WireError("a section lies outside the file")
            sections[protobuf_wire.text(entry, 1) or ""] = (start, length)
        return sections

    def _read_section_message(self, name: str) -> protobuf_wire.Message:
        if name not in self.sections:
            raise WireError(f"the section {name!r} is missing")
        return protobuf_wire.parse(self.section(name))

    def _read_raw(self) -> RawSections:
        offsets = self._read_section_message("Sampling Data Offsets")
        if "Raw Sampling Data" not in self.sections:
            raise WireError("the section 'Raw Sampling Data' is missing")
        start, size = self.sections["Raw Sampling Data"]
        end = start + size
        if self._file[start : start + 8] != _RAW_MAGIC or size < len(_RAW_MAGIC):
            raise WireError("the event section does not start as it should")
        strings_at = start + len(_RAW_MAGIC) + (protobuf_wire.integer(offsets, 2) or 0)
        if not start < strings_at < end:
            raise WireError("the string block lies outside its section")
        system, at = self._message_at(start + len(_RAW_MAGIC), strings_at)
        header, at = self._message_at(at, strings_at)
        for codec in (protobuf_wire.text(offsets, 1), protobuf_wire.text(header, 9)):
            if codec != "lz4":
                raise WireError(f"its compression is {codec!r}, not lz4")
        blocks = []
        while at < strings_at:
            block, at = self._block_at(at, strings_at, MAX_BLOCK_BYTES)
            blocks.append(block)
        string_block, at = self._block_at(strings_at, end, MAX_STRING_BLOCK_BYTES)
        threads, at = self._message_at(at, end)
        target, at = self._message_at(at, end) if at < end else ({}, at)
        schema_block = self._block_at(at, end, MAX_BLOCK_BYTES)[0] if at < end else None
        raw = RawSections(
            system, header, tuple(blocks), string_block, threads, target, schema_block
        )
        # Counts that the bytes present cannot hold are refused before anyone allocates by them.
        inflated = sum(block.inflated for block in blocks)
        if not 0 <= raw.event_count <= inflated // _MIN_EVENT_BYTES:
            raise WireError(f"it cannot hold the {raw.event_count} events that it names")
        named, listed = protobuf_wire.integer(header, 5) or 0, len(threads.get(1, ()))
        if named != listed:
            raise WireError(f"it names {named} threads but lists {listed}")
        return raw

    def _message_at(self, at: int, end: int) -> tuple[protobuf_wire.Message, int]:
        prefix = self._file[at : min(at + 10, end)]
        length, used = protobuf_wire.read_varint(prefix, 0, len(prefix))
        start = at + used
        if length > end - start:
            raise WireError("a message reaches beyond its section")
        return protobuf_wire.parse(self._file[start : start + length]), start + length

    def _block_at(self, at: int, end: int, limit: int) -> tuple[EventBlock, int]:
        prefix = self._file[at : min(at + 20, end)]
        size, used = protobuf_wire.read_varint(prefix, 0, len(prefix))
        inflated, used = protobuf_wire.read_varint(prefix, used, len(prefix))
        at += used
        if size > end - at:
            raise WireError("an event block reaches beyond its section")
        if inflated > min(limit, _LZ4_MAX_RATIO * size + 64):
            raise WireError("an event block claims an impossible size")
        return EventBlock(at, size, inflated), at + size


class _Bytes:
    """The bytes of an open file, copied slice by slice, from several threads.

    Mapping the file would be shorter, but the process ends (SIGBUS) when the file is truncated
    meanwhile, as recording to the same name again does.
    """

    def __init__(self, path: Path) -> None:
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        self.close = weakref.finalize(self, os.close, handle)
        """Closes the file; done at the end at the latest."""
        self._handle = handle
        self._size = os.fstat(handle).st_size
        self._turn = threading.Lock()

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, part: slice) -> bytes:
        start, stop, _ = part.indices(self._size)
        wanted = max(0, stop - start)
        try:
            with self._turn:
                os.lseek(self._handle, start, os.SEEK_SET)
                data = os.read(self._handle, wanted)
                while data and len(data) < wanted:  # a system reads at most 2 GB at once
                    more = os.read(self._handle, wanted - len(data))
                    if not more:
                        break
                    data += more
        except OSError as error:
            raise WireError(f"reading failed: {error.strerror or error}") from error
        if len(data) < wanted:
            raise WireError("the file became shorter while it was read")
        return data


def _open_report(path: Path) -> _Bytes:
    try:
        file = _Bytes(path)
    except OSError as error:
        reason = error.strerror or type(error).__name__
        raise CaptureError(f"{path} cannot be opened", why=reason) from error
    try:
        start = file[: len(NSYS_REPORT)]
    except WireError as error:  # a folder, a pipe
        file.close()
        raise CaptureError(f"{path} cannot be opened", why=str(error)) from error
    if start == NSYS_REPORT:
        return file
    file.close()
    why, hint = "its header is missing", ""
    if start.startswith(b"version https://git-lfs"):
        why, hint = "it is a Git LFS pointer", "try: git lfs pull"
    raise NotACaptureError(f"{path} is not an nsys report", why=why, hint=hint)


# Events inside blocks ---------------------------------------------------------------------------

_EVENT_TAG, _GENERIC_TAG = 0x0A, 0x12
_TYPE_TAG = 0x08  # field 1, the event's type, comes first in every event
_MAX_ROUNDS = 8
_MAX_EVENTS_A_BLOCK = 1 << 16  # nsys writes at most 7000


class PayloadEvents(NamedTuple):
    """Events of one payload: the positions of their payload messages, in file order."""

    start: Int64
    end: Int64


class BlockBatch(NamedTuple):
    """The events of a few consecutive blocks."""

    buffer: MessageBuffer
    payloads: dict[int, PayloadEvents]
    generic: PayloadEvents
    total: int


def read_batch(parts: list[bytes], *, has_generic: bool) -> BlockBatch:
    """Find the events in the decompressed messages of consecutive blocks."""
    buffer = MessageBuffer(parts)
    content = buffer.bytes[: buffer.size]
    tags = content == _EVENT_TAG
    if has_generic:
        tags |= content == _GENERIC_TAG
    tag_at, start, end = _frame(buffer, tags, _MAX_EVENTS_A_BLOCK * len(parts))
    bounds = np.cumsum([0, *(len(part) for part in parts)])[:-1]
    bounds = bounds[bounds < buffer.size]
    event = np.searchsorted(tag_at, bounds)
    if (event >= len(tag_at)).any() or (tag_at[event] != bounds).any():
        raise WireError("an event reaches beyond its block")
    generic = buffer.bytes[tag_at] == _GENERIC_TAG
    payloads: dict[int, PayloadEvents] = {}
    if not generic.all():  # each event is { 1: type, N: payload }: sort them by N
        cursor = MessageCursor(buffer, start[~generic], end[~generic])
        numbers, spans = cursor.last_spans(above=1)
        for number, count in value_counts(numbers).items():
            rows = slice(None) if count == len(numbers) else np.flatnonzero(numbers == number)
            payloads[number] = PayloadEvents(spans.start[rows], spans.end[rows])
    return BlockBatch(buffer, payloads, PayloadEvents(start[generic], end[generic]), len(start))


def _frame(buffer: MessageBuffer, tags: Flags, max_events: int) -> tuple[Int64, Int64, Int64]:
    """Return the position of each event's tag, and start and end of its message."""
    if np.count_nonzero(tags) > 4 * max_events:
        return _walk(buffer, max_events)  # a malicious file, or nothing but line feeds
    at, start, end = _candidates(buffer, np.flatnonzero(tags))
    if len(at) > max_events:
        return _walk(buffer, max_events)
    reached = np.zeros(buffer.size + 1, np.bool_)
    for _ in range(_MAX_ROUNDS):
        if not len(at) and not buffer.size:
            return at, start, end
        if len(at) and at[0] == 0 and end[-1] == buffer.size and (at[1:] == end[:-1]).all():
            return at, start, end  # they follow each other from the first byte to the last
        reached[:] = False
        reached[0] = True
        reached[end] = True
        keep = reached[at]
        if keep.all():
            break
        at, start, end = at[keep], start[keep], end[keep]
    return _walk(buffer, max_events)


def _candidates(buffer: MessageBuffer, at: Int64) -> tuple[Int64, Int64, Int64]:
    """Keep the positions that could be an event: tag, length, then the tag of its type."""
    data = buffer.bytes
    at = at[(data[at + 1] >= 0x80) | (data[at + 2] == _TYPE_TAG)]
    rows, length, size = buffer.lengths(at + 1)
    at = at[rows]
    start = at + 1 + size
    room = np.maximum(buffer.size - start, 0).view(np.uint64)
    keep = np.flatnonzero((length <= room) & (start < buffer.size))
    at, start = at[keep], start[keep]
    end = start + length[keep].view(np.int64)
    keep = np.flatnonzero(data[start] == _TYPE_TAG)
    return (at, start, end) if len(keep) == len(at) else (at[keep], start[keep], end[keep])


def _walk(buffer: MessageBuffer, max_events: int) -> tuple[Int64, Int64, Int64]:
    """Follow the lengths one by one: for events that do not start with their type."""
    data = buffer.bytes.tobytes()
    events: list[tuple[int, int, int]] = []
    at = 0
    while at < buffer.size:
        if data[at] not in (_EVENT_TAG, _GENERIC_TAG):
            raise WireError("an event block holds something that is no event")
        start, end = protobuf_wire.read_span(data, at + 1, buffer.size)
        events.append((at, start, end))
        if len(events) > max_events:
            raise WireError("a block holds more events than nsys ever writes")
        at = end
    columns = np.array(events, np.int64).reshape(-1, 3)
    return columns[:, 0].copy(), columns[:, 1].copy(), columns[:, 2].copy()
