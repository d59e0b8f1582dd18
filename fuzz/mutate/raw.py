"""Values and byte edits that every family of formats uses."""

from __future__ import annotations

import gzip
import lzma
import os
from typing import TYPE_CHECKING, TypeVar

from gpusight.readers.file_blocks import zstd_module

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

_T = TypeVar("_T")
SCRATCH = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
"""Memory rather than a disk, for files that live for a millisecond."""

INTEGERS = (
    0, 1, -1, 2, 3, 7, 8, 15, 16, 127, 128, 255, 256, 512, 1000, 4095, 65_535, 65_536, 10**6,
    10**9, 2**31 - 1, 2**31, -(2**31), 2**32 - 1, 2**32, 2**52, 2**53 + 1, 10**15, 10**18, 2**61,
    2**62, 2**63 - 1, -(2**63), -(10**18), -1000, 2**63, 2**64 - 1, 2**64, 10**30,
)  # fmt: skip
REALS = (
    0.0, -0.0, 0.5, -1.5, 1e-300, 1e300, 1e18, 2.0**63, float("inf"), float("-inf"), float("nan"),
)  # fmt: skip
TEXTS = (
    "", " ", "0", "-1", "nan", "inf", "1e999", "None", "\0", "\x1b[2J\x1b]0;title\x07", "a\nb",
    "\r", "\t", "\u202eevil\u2066", "\u0085\u2028", "\ufeff", "\u0301\u0301", "\U0001f600",
    "%s%n{0}{}", "<script>", "'; DROP TABLE x; --", "../../etc/passwd", "[link](x)|`code`",
    "x" * 300, "ProfilerStep#0", "step_1", "cudaLaunchKernel", "_Z3fooILi3EEvT_",
    "ncclDevKernel_AllReduce", "void gemm<float>(int)",
)  # fmt: skip
"""Empty, numbers that are texts, terminal controls, bidirectional marks, markup, real names."""


def integer(rng: Random) -> int:
    """Choose a whole number: a boundary, near one, or any."""
    if rng.random() < 0.2:
        return rng.getrandbits(64) - 2**63
    return rng.choice(INTEGERS) + rng.choice((0, 0, 0, 1, -1))


def int64(rng: Random) -> int:
    """Choose a whole number that fits a signed 64-bit field."""
    return min(max(integer(rng), -(2**63)), 2**63 - 1)


def text(rng: Random) -> str:
    """Choose a text: one of the known troublemakers or random characters."""
    if rng.random() < 0.85:
        return rng.choice(TEXTS)
    return "".join(
        chr(rng.choice((rng.randrange(32), rng.randrange(0x250)))) for _ in range(rng.randrange(12))
    )


def edit_bytes(rng: Random, data: bytes) -> bytes:
    """Apply one to four byte edits, most of them local."""
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        data = rng.choice(_EDITS)(rng, data)
    return data


def _flip(rng: Random, data: bytes) -> bytes:
    out = bytearray(data or b"\0")
    out[rng.randrange(len(out))] ^= 1 << rng.randrange(8)
    return bytes(out)


def _set(rng: Random, data: bytes) -> bytes:
    out = bytearray(data or b"\0")
    out[rng.randrange(len(out))] = rng.choice((0, 1, 0x7F, 0x80, 0xFF, rng.randrange(256)))
    return bytes(out)


def _number(rng: Random, data: bytes) -> bytes:
    width = rng.choice((2, 4, 8))
    value = (integer(rng) % (1 << 8 * width)).to_bytes(width, rng.choice(("little", "big")))
    at = rng.randrange(len(data) + 1)
    return data[:at] + value + data[at + width :]


def _delete(rng: Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + data[at + rng.choice((1, 2, 4, 16, 100)) :]


def _insert(rng: Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    added = rng.choice(
        (rng.randbytes(rng.randrange(1, 9)), bytes(rng.choice((1, 8, 64))), text(rng).encode())
    )
    return data[:at] + added + data[at:]


def _repeat(rng: Random, data: bytes) -> bytes:
    at, length = rng.randrange(len(data) + 1), rng.choice((1, 8, 64, 512))
    return data[:at] + data[at : at + length] * rng.choice((2, 2, 3, 20)) + data[at + length :]


def _move(rng: Random, data: bytes) -> bytes:
    source, at = rng.randrange(len(data) + 1), rng.randrange(len(data) + 1)
    piece = data[source : source + rng.choice((4, 16, 128))]
    return data[:at] + piece + data[at + len(piece) :]


def _truncate(rng: Random, data: bytes) -> bytes:
    return data[: rng.choice((rng.randrange(len(data) + 1), max(0, len(data) - rng.randrange(16))))]


_EDITS: Sequence[Callable[[Random, bytes], bytes]] = (
    _flip, _flip, _set, _set, _number, _delete, _insert, _repeat, _move, _truncate,
)  # fmt: skip


def packed(rng: Random, data: bytes) -> bytes:
    """Compress in one of the ways that are read, sometimes damaged, doubled or mostly zeros."""
    if rng.random() < 0.1:
        data += bytes(rng.choice((1 << 16, 1 << 20)))
    pack = rng.choice((gzip.compress, lzma.compress, zstd_module().compress))
    out: bytes = pack(data)
    if rng.random() < 0.2:
        out += pack(data[: rng.randrange(len(data) + 1)])
    return edit_bytes(rng, out) if rng.random() < 0.5 else out


def pick(rng: Random, choices: Sequence[tuple[float, _T]]) -> _T:
    """Choose by weight."""
    return rng.choices([choice for _, choice in choices], [weight for weight, _ in choices])[0]
