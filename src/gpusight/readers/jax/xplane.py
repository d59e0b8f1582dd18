"""Profiles of JAX: `.xplane.pb` files, each a protobuf message called XSpace.

TensorFlow writes the same files. Everything is read in one go: the frame first, with what events
refer to, then the events of each plane, a few megabytes at a time.
"""

from __future__ import annotations

import mmap
from array import array
from contextlib import contextmanager
from typing import TYPE_CHECKING

import polars as pl

from gpusight.errors import CaptureError, DamagedCaptureError, NotACaptureError
from gpusight.evidence import GZIP
from gpusight.readers.blocks import Blocks
from gpusight.readers.frames import FrameSource
from gpusight.readers.jax import facts
from gpusight.readers.jax.columns import batches
from gpusight.readers.jax.profile import profile_tables
from gpusight.readers.jax.space import PLANE, fields, looks_like_plane, parts, read_space
from gpusight.readers.protobuf.wire import BYTES, VARINT, WireError, read_varint
from gpusight.readers.refusal import not_a_capture

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from gpusight.model.trace import TraceSource
    from gpusight.readers.jax.batch import Batch
    from gpusight.readers.jax.profile import Contents
    from gpusight.readers.jax.space import Plane

_MOST_UNPACKED = 1 << 30
_PLANE_TAG = PLANE << 3 | BYTES
_PACKETS = 64
"""So many packets of a Perfetto trace are enough to know it."""
_TIMESTAMP, _SEQUENCE = 8, 10
"""Fields that nearly every packet of a Perfetto trace has."""


def xplane_source(path: Path) -> TraceSource:
    """Open a profile; raises where the file is something else."""
    with _content(path) as data:
        _check(path, data)
    return FrameSource(lambda: _read(path))


@contextmanager
def _content(path: Path) -> Iterator[memoryview]:
    """Give the bytes of a file, unpacked where it is packed."""
    with path.open("rb") as file:
        head = file.read(len(GZIP))
        if head == GZIP or not head:  # what is empty cannot be mapped
            yield memoryview(_unpacked(path) if head else b"")
            return
        with (
            mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
            memoryview(mapped) as data,
        ):
            yield data


def _unpacked(path: Path) -> bytes:
    blocks = Blocks(path)
    content = bytearray()
    for block in blocks:
        content += block
        if len(content) > _MOST_UNPACKED:
            raise CaptureError(
                f"{path} holds more than {_MOST_UNPACKED >> 30} GB",
                hint="unpack it first with: gzip -d",
            )
    if blocks.problem:
        raise DamagedCaptureError(
            f"{path} cannot be unpacked", why=blocks.problem, hint="copy it again"
        )
    return bytes(content)


def _check(path: Path, data: memoryview) -> None:
    """Refuse files that begin like a profile but are something else, or are cut off."""
    if not _begins_with_plane(data):
        if _is_perfetto(data):
            raise NotACaptureError(
                f"{path} is a Perfetto trace (protobuf)",
                hint="gpusight reads the Chrome-format JSON traces of PyTorch and JAX, "
                "and JAX's .xplane.pb",
            )
        raise not_a_capture(path)
    try:
        for _ in parts(data):
            pass
    except WireError as error:
        raise DamagedCaptureError(
            f"{path} is cut off", why=str(error), hint="copy or capture it again"
        ) from error


def _begins_with_plane(data: memoryview) -> bool:
    """Look at the first plane that is not empty, of which there may be only the beginning."""
    at = 0
    try:
        while data[at] == _PLANE_TAG:
            length, at = read_varint(data, at + 1, len(data))
            if length:
                return looks_like_plane(data, at, min(at + length, len(data)))
    except (WireError, IndexError):
        pass
    return False


def _is_perfetto(data: memoryview) -> bool:
    found = 0
    try:
        for place, packet in enumerate(fields(data, 0, len(data))):
            if packet.number != 1 or packet.kind != BYTES:
                return False
            numbers = {
                part.number
                for part in fields(data, packet.start, packet.end)
                if part.kind == VARINT
            }
            found += not numbers.isdisjoint((_TIMESTAMP, _SEQUENCE))
            if place == _PACKETS:
                break
    except WireError:
        pass
    return found > 0


def _read(path: Path) -> Contents:
    try:
        with _content(path) as data:
            return _tables(path, data)
    except (WireError, pl.exceptions.PolarsError, OverflowError) as error:
        raise DamagedCaptureError(
            f"{path} is damaged",
            why=str(error).splitlines()[0],
            hint="copy or capture it again",
        ) from error


def _tables(path: Path, data: memoryview) -> Contents:
    space = read_space(data)
    origin = facts.origin_of(space)

    def decoded(plane: Plane) -> Iterator[Batch]:
        yield from batches(data, plane, facts.line_origins(plane, origin))
        plane.marks = array("q")

    return profile_tables(path, "jax-xplane", space, decoded)
