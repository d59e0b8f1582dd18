"""Reports of Nsight Compute built by hand, block by block, as protobuf lays them out.

    report(launch("gemm", {"launch__grid_size": 4, "gpu__time_duration.sum": 12.5}))

Values are written by their type: whole numbers, real numbers, texts; a `Parts` has parts too.
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

from tests.readers.jax.xspaces import block, varint

KERNEL, RANGE, COMMAND_LIST, GRAPH = 2, 7, 8, 9
_METRICS = {KERNEL: 13, RANGE: 4, COMMAND_LIST: 4, GRAPH: 4}


class Parts(NamedTuple):
    """A counter with parts: what each is a part of, and its value."""

    value: Any
    parts: dict[int | str, Any]


class Single(float):
    """A real number that is written in four bytes."""


class Launch(NamedTuple):
    kind: int
    fields: bytes
    metrics: dict[str, Any]
    process: tuple[int, str] | None


def whole(number: int, value: int) -> bytes:
    """A whole number, written even when it is zero."""
    return varint(number << 3) + varint(value)


def text(number: int, words: str) -> bytes:
    return block(number, words.encode())


def real(number: int, value: float) -> bytes:
    tag = struct.pack("<B", number << 3 | 1)
    return tag + struct.pack("<d", value)


def value(content: Any) -> bytes:
    if isinstance(content, str):
        return text(1, content)
    if isinstance(content, Single):
        return struct.pack("<B", 2 << 3 | 5) + struct.pack("<f", content)
    if isinstance(content, float):
        return real(3, content)
    return whole(5, content)


def launch(
    name: str = "",
    metrics: dict[str, Any] | None = None,
    *,
    mangled: str = "",
    demangled: str = "",
    grid: tuple[int, int, int] = (1, 1, 1),
    threads: tuple[int, int, int] = (32, 1, 1),
    extra: bytes = b"",
    kind: int = KERNEL,
    process: tuple[int, str] | None = (7, "/opt/demo/program"),
) -> Launch:
    """One result; `extra` is appended as it is."""
    fields = whole(1, 99)
    if kind == KERNEL:
        fields += text(5, mangled) + text(6, name) + text(7, demangled)
        fields += block(10, _size(grid)) + block(11, _size(threads))
    return Launch(kind, fields + extra, metrics or {}, process)


def rule(
    identifier: str, message: str, kind: int = 4, speedup: tuple[int, float] | None = None
) -> bytes:
    """The field of a kernel's result that holds what one rule said."""
    item = block(1, text(1, message) + whole(2, kind))
    if speedup is not None:
        item += block(10, whole(1, speedup[0]) + real(2, speedup[1]))
    return block(
        19,
        text(1, identifier)
        + text(2, identifier.title())
        + block(3, block(1, item))
        + text(4, "Section"),
    )


def report(*launches: Launch, session: bytes = b"", sources: tuple[bytes, ...] = ()) -> bytes:
    """A whole file: one block for the session and sources, then one for each launch."""
    strings: list[str] = []
    data = b"NVR\0" + _sized(whole(1, 7))
    data += _block(whole(1, len(sources)) + block(3, session), *sources)
    for encoded in launches:
        before = len(strings)
        message = encoded.fields + b"".join(
            block(_METRICS[encoded.kind], _metric(strings, name, content))
            for name, content in encoded.metrics.items()
        )
        header = whole(encoded.kind, 1)
        header += block(4, b"".join(text(1, s) for s in strings[before:]))
        if encoded.process is not None:
            pid, path = encoded.process
            header += block(6, whole(1, pid) + text(2, "127.0.0.1") + text(3, path))
        data += _block(header, message)
    return data


def _metric(strings: list[str], name: str, content: Any) -> bytes:
    if name not in strings:
        strings.append(name)
    number = whole(1, strings.index(name))
    if not isinstance(content, Parts):
        return number + (b"" if content is None else block(2, value(content)))
    own = b"" if content.value is None else block(2, value(content.value))
    return (
        number
        + own
        + b"".join(
            block(3, block(1, value(key)) + block(2, value(part)))
            for key, part in content.parts.items()
        )
    )


def _size(size: tuple[int, int, int]) -> bytes:
    return b"".join(whole(axis, n) for axis, n in enumerate(size, 1))


def _sized(message: bytes) -> bytes:
    return struct.pack("<I", len(message)) + message


def _block(header: bytes, *messages: bytes) -> bytes:
    payload = b"".join(map(_sized, messages))
    return _sized(header + whole(5, len(payload))) + payload
