"""The bytes of a Nsight Compute report, compressed or not, and the blocks in them."""

from __future__ import annotations

import mmap
import os
import shutil
import tempfile
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple

from gpusight.errors import DamagedCaptureError
from gpusight.readers.file_blocks import FileBlocks
from gpusight.readers.protobuf_wire import WireError, child, integer, parse, text
from gpusight.sniff import NCU_REPORT
from gpusight.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import IO

    from gpusight.readers.protobuf_wire import Message


_COUNTS = {"source": 1, "kernel": 2, "range": 7, "command list": 8, "graph": 9}
"""Fields of a block's header that count the messages in its payload, in their order there."""
_SESSION, _STRINGS, _PAYLOAD, _PROCESS = 3, 4, 5, 6
_WORD = 4


class MessageSpan(NamedTuple):
    """Start and end of a message in the file."""

    start: int
    end: int


class ReportProcess(NamedTuple):
    """A process that launched something."""

    pid: int
    name: str | None
    """Path of its executable."""


class ReportResult(NamedTuple):
    """One result: its kind, position and process."""

    kind: str
    span: MessageSpan
    process: ReportProcess | None


@dataclass
class NcuContainer:
    """What the blocks of a report hold; the messages are not decoded yet."""

    strings: list[str] = field(default_factory=list)
    """Names of metrics, by number."""
    session: list[Message] = field(default_factory=list)
    sources: list[MessageSpan] = field(default_factory=list)
    results: list[ReportResult] = field(default_factory=list)
    problem: str | None = None
    """Why the walk ended before the last block."""


def read_container(path: str, data: memoryview) -> NcuContainer:
    """Walk over all blocks; of a truncated report, those before the cut."""
    container = NcuContainer()
    try:
        if bytes(data[: len(NCU_REPORT)]) != NCU_REPORT:
            raise WireError("its header is missing")
        header = _sized(data, len(NCU_REPORT), len(data))
        parse(data[header.start : header.end])
    except WireError as error:
        raise DamagedCaptureError(
            f"{path} is not a complete report", why=str(error), hint="copy or capture it again"
        ) from error
    try:
        for block, payload in _blocks(data, header.end):
            _read_block(container, data, block, payload)
    except WireError as error:
        container.problem = str(error)
    return container


def _blocks(data: memoryview, at: int) -> Iterator[tuple[Message, MessageSpan]]:
    while at < len(data):
        header = _sized(data, at, len(data))
        message = parse(data[header.start : header.end])
        size = integer(message, _PAYLOAD) or 0
        if not message or size < 0:  # zeros to the end, or a way back to where we have been
            raise WireError("it has data that is not a block")
        payload = MessageSpan(header.end, header.end + size)
        yield message, payload
        at = payload.end


def _read_block(
    container: NcuContainer, data: memoryview, header: Message, payload: MessageSpan
) -> None:
    strings = child(header, _STRINGS).get(1, ())
    container.strings += [s.decode("utf-8", "replace") for s in strings if isinstance(s, bytes)]
    session = child(header, _SESSION)
    if session:
        container.session.append(session)
    about = child(header, _PROCESS)
    pid = integer(about, 1)
    process = None if pid is None else ReportProcess(pid, text(about, 3))
    at, end = payload.start, min(payload.end, len(data))
    for kind, number in _COUNTS.items():
        for _ in range(integer(header, number) or 0):
            span = _sized(data, at, end)
            at = span.end
            if span.start == span.end:
                raise WireError("a message in it is empty")
            if kind == "source":
                container.sources.append(span)
            else:
                container.results.append(ReportResult(kind, span, process))
    if payload.end > len(data):
        raise WireError("it is cut off in the middle of a block")


def _sized(data: memoryview, at: int, end: int) -> MessageSpan:
    """Return the span of the message whose length is stored at `at`."""
    start = at + _WORD
    if start > end:
        raise WireError("it is cut off where a length should be")
    size = int.from_bytes(data[at:start], "little")
    if size > end - start:
        raise WireError("it is cut off in the middle of a message")
    return MessageSpan(start, start + size)


_COPY_BYTES, _MAX_COPIED_BYTES = 4 << 20, 1 << 30
"""Written at once, and copied at all: a sparse file of terabytes must not fill the disk."""
_MAX_READ_BYTES = 256 << 20
"""Larger reports are copied to a file, of which not all need be in memory."""
_MAX_BYTES = 32 << 30
"""Reports have a few hundred megabytes. `FileBlocks` bounds how much a small file may grow."""


@dataclass(frozen=True, slots=True)
class ReportContent:
    """The uncompressed bytes of a report file."""

    data: memoryview
    mapping: mmap.mmap
    problem: str | None = None
    """Why there is no more than this."""

    def close(self) -> None:
        """Release the file."""
        self.data.release()
        self.mapping.close()


def read_content(path: Path) -> ReportContent:
    """Map a report into memory, unpacked where it is packed."""
    with path.open("rb") as file:
        if file.read(len(NCU_REPORT)) != NCU_REPORT:
            return _unpacked(path)
        file.seek(0)
        size = os.fstat(file.fileno()).st_size
        if size > _MAX_COPIED_BYTES:
            return _mapped(file)
        if size <= _MAX_READ_BYTES:
            return _read(file, size)
        try:
            with tempfile.TemporaryFile(prefix="gpusight-") as copy:
                shutil.copyfileobj(file, copy, _COPY_BYTES)
                copy.flush()
                return _mapped(copy)
        except OSError:
            return _mapped(file)  # no room for a copy; the report itself can still be read


def _unpacked(path: Path) -> ReportContent:
    blocks = FileBlocks(path)
    with tempfile.TemporaryFile(prefix="gpusight-") as plain:
        size = 0
        for block in blocks:
            size += plain.write(block)
            if size > _MAX_BYTES:
                raise DamagedCaptureError(
                    f"{path} cannot be unpacked",
                    why=f"it grows to more than {format_bytes(_MAX_BYTES)}, more than any report",
                    hint="if it is a report, unpack it first",
                )
        if size == 0:
            raise DamagedCaptureError(
                f"{path} cannot be unpacked",
                why=blocks.problem or "it is empty when unpacked",
                hint="copy it again",
            )
        plain.flush()
        return _mapped(plain, blocks.problem)


def _read(file: IO[bytes], size: int) -> ReportContent:
    """Read a report of this size into memory, from which other programs can take nothing away."""
    mapping = mmap.mmap(-1, size)
    read = file.readinto(mapping)  # type: ignore[attr-defined]
    return ReportContent(memoryview(mapping)[:read], mapping)


def _mapped(file: IO[bytes], problem: str | None = None) -> ReportContent:
    mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    return ReportContent(memoryview(mapping), mapping, problem)
