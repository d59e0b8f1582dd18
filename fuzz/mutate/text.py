"""Texts made of lines and cells: CSV, printed tables, TOML, names and command-line values."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from fuzz.mutate.raw import edit_bytes, integer, packed, pick, text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from random import Random

_CELLS = (
    '"', '""', '"a""b"', ",", ";", "\t", "1,234,567", "1.234,5", "12.3 ms", "1e400", "-0", "nan",
    "inf", "(1, 2, 3)", "(99999999999, 1, 1)", "%", "n/a", "==PROF== Connected", "==ERROR== x",
    "==WARNING== y", "...", "-" * 40,
)  # fmt: skip
_NUMBER = re.compile(rb"\d+(?:\.\d+)?")
_SPLIT = re.compile(rb'([,;\t"=\[\]{}]|  +|\n)')
_CODES = ("utf-16", "utf-16-le", "utf-16-be", "utf-8-sig", "latin-1")


def edit_text(rng: Random, data: bytes, words: Sequence[str] = _CELLS) -> bytes:
    """Edit lines, cells, numbers or the encoding of a text."""
    for _ in range(rng.choice((1, 1, 2, 4))):
        data = pick(rng, _EDITS)(rng, data, words)
    return data


def edit_table(rng: Random, data: bytes) -> bytes:
    """Edit a text that a tool printed; sometimes pack it."""
    data = edit_text(rng, data)
    return packed(rng, data) if rng.random() < 0.05 else data


_TOML = (
    "[gate]", "[gate.max]", "[[gate]]", "gate.max.step_time = 1", 'step_time = "+3%"', '"="', "'''",
    '"""', "= [", "{ a = 1 }", "1979-05-27T07:32:00Z", "0x_f", "+inf", "nan", "true", "#",
    "\\u0000", "baseline = []", 'steps = "1-"', "\r", "a.b.c=1", 'in = ""', 'confidence = "101%"',
    "confidence = 1e999", "least_effect = -0", "[" * 300, "{a=" * 300, "1" * 5000,
)  # fmt: skip


def edit_toml(rng: Random, data: bytes) -> bytes:
    """Edit a settings file."""
    return edit_text(rng, data, _TOML)


_NAMES = (
    "_Z", "N", "E", "I", "S_", "S0_", "T_", "T0_", "J", "L", "i", "f", "PK", "R", "K", "D", "Dp",
    "sZ", "X", "C1", "Ul", "9", "99999999999", "<", ">", "::", "(", ")", "lambda", "-", ":", "s",
    "ms", "us", "ns", "1e", "1e9", "+", "%", "GB", "KiB", "all", "=", "step_time", ".",
)  # fmt: skip


def edit_name(rng: Random, data: bytes) -> bytes:
    """Edit a mangled name, a range of steps, a window or a limit."""
    for _ in range(rng.choice((1, 2, 3, 6))):
        at = rng.randrange(len(data) + 1)
        word = rng.choice(
            (
                rng.choice(_NAMES),
                rng.choice(_NAMES) * rng.randrange(1, 40),
                str(integer(rng)),
                text(rng),
                "",
            )
        )
        data = data[:at] + word.encode() + data[at + rng.choice((0, 0, 1, 2, 5)) :]
    return data


def _line(rng: Random, data: bytes, _: Sequence[str]) -> bytes:
    """Drop, double, swap or join lines."""
    lines = data.split(b"\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    way = rng.randrange(5)
    if way == 0:
        del lines[at]
    elif way == 1:
        lines[at:at] = [lines[other]] * rng.choice((1, 1, 20))
    elif way == 2:
        lines[at], lines[other] = lines[other], lines[at]
    elif way == 3:
        lines[at : at + 2] = [b"".join(lines[at : at + 2])]
    else:
        lines = lines[: at + 1]
    return b"\n".join(lines)


def _cell(rng: Random, data: bytes, words: Sequence[str]) -> bytes:
    """Replace, drop, double or swap what stands between separators."""
    cells = _SPLIT.split(data)
    at, other = rng.randrange(len(cells)), rng.randrange(len(cells))
    way = rng.randrange(6)
    if way < 3:
        cells[at] = rng.choice(
            (rng.choice(words), rng.choice(words), text(rng), str(integer(rng)))
        ).encode()
    elif way == 3:
        cells[at : at + rng.choice((1, 2))] = []
    elif way == 4:
        cells[at], cells[other] = cells[other], cells[at]
    else:
        cells[at:at] = cells[other : other + rng.choice((1, 2, 6))]
    return b"".join(cells)


def _digits(rng: Random, data: bytes, _: Sequence[str]) -> bytes:
    numbers = list(_NUMBER.finditer(data))
    if not numbers:
        return data
    number = rng.choice(numbers)
    return data[: number.start()] + str(integer(rng)).encode() + data[number.end() :]


def _separator(rng: Random, data: bytes, _: Sequence[str]) -> bytes:
    old, new = rng.sample((b",", b";", b"\t", b'"', b"\n", b"\r\n", b" ", b"  "), 2)
    return data.replace(old, new, rng.choice((1, 3, -1)))


def _encoding(rng: Random, data: bytes, _: Sequence[str]) -> bytes:
    return data.decode("utf-8", "replace").encode(rng.choice(_CODES), "replace")


def _bytes(rng: Random, data: bytes, _: Sequence[str]) -> bytes:
    return edit_bytes(rng, data)


_EDITS: tuple[tuple[float, Callable[[Random, bytes, Sequence[str]], bytes]], ...] = (
    (4, _cell), (3, _line), (3, _digits), (1, _separator), (0.4, _encoding), (2, _bytes),
)  # fmt: skip
