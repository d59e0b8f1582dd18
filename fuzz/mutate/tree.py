"""Plain data (JSON, digests, pickles): edits of values, then of the text or the instructions."""

from __future__ import annotations

import copy
import json
import pickle
import pickletools
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fuzz.mutate.raw import REALS, edit_bytes, integer, packed, pick, text
from gpusight.errors import GpusightError
from gpusight.readers.torch import unpickle

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random


def edit_tree(rng: Random, value: Any) -> Any:
    """Edit a copy of plain data at one to four places."""
    value = copy.deepcopy(value)
    for _ in range(rng.choice((1, 1, 2, 4))):
        holder = value
        while isinstance(holder, (dict, list)) and holder:
            key = (
                rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
            )
            inner = holder[key]
            if not (isinstance(inner, (dict, list)) and inner and rng.random() < 0.85):
                pick(rng, _EDITS)(rng, holder, key)
                break
            holder = inner
    return value


def leaf(rng: Random) -> Any:
    """Choose a value of any type."""
    number = integer(rng)
    odd: Any = rng.choice((None, True, False, {}, [], [[]], {"": {}}, [None], {"a": 1, "b": [2]}))
    return rng.choice((number, number, str(number), text(rng), text(rng), rng.choice(REALS), odd))


def _replace(rng: Random, holder: Any, key: Any) -> None:
    holder[key] = leaf(rng)


def _nudge(rng: Random, holder: Any, key: Any) -> None:
    value = holder[key]
    if isinstance(value, (int, float)):
        holder[key] = rng.choice(
            (-value, value + 1, value - 1, value * 1000, value / 1000, float(value))
        )
    elif isinstance(value, str):
        holder[key] = rng.choice((value + text(rng), value[:-1], value.upper(), value * 2))
    else:
        _replace(rng, holder, key)


def _drop(_: Random, holder: Any, key: Any) -> None:
    del holder[key]


def _double(rng: Random, holder: Any, key: Any) -> None:
    if isinstance(holder, list):
        holder[key:key] = [copy.deepcopy(holder[key]) for _ in range(rng.choice((1, 1, 2, 50)))]
    else:
        holder[text(rng)] = holder[key]


def _swap(rng: Random, holder: Any, key: Any) -> None:
    other = rng.choice(list(holder)) if isinstance(holder, dict) else rng.randrange(len(holder))
    holder[key], holder[other] = holder[other], holder[key]


def _nest(rng: Random, holder: Any, key: Any) -> None:
    value = holder[key]
    for _ in range(rng.choice((1, 2, 60))):
        value = [value] if rng.random() < 0.5 else {"x": value}
    holder[key] = value


_EDITS: tuple[tuple[float, Callable[[Random, Any, Any], None]], ...] = (
    (6, _replace), (5, _nudge), (3, _drop), (2, _double), (2, _swap), (1, _nest),
)  # fmt: skip


# JSON ---------------------------------------------------------------------------------------------

_JSON_WORDS = (
    b"{", b"}", b"[", b"]", b",", b":", b'"', b"\\", b"\\u0000", b"\\ud800", b"NaN", b"-Infinity",
    b"nan", b"1e999", b"-0", b"1" * 40, b"null", b"[" * 2000, b'{"a":' * 500, b"\xff",
    b"\xef\xbb\xbf", b"\x00", b'"ph":"X",', b'"ts":', b'"dur":-1,', b'"traceEvents":[',
    b'"args":{}',
)  # fmt: skip


def edit_json(rng: Random, data: bytes) -> bytes:
    """Edit the values or the text of a JSON file; sometimes pack it."""
    if rng.random() < 0.7:
        value = edit_tree(rng, json.loads(data))
        out = json.dumps(value, ensure_ascii=rng.random() < 0.5, indent=rng.choice((None, None, 1)))
        data = out.encode("utf-8", "surrogatepass")
    else:
        data = _edit_json_text(rng, data)
    return packed(rng, data) if rng.random() < 0.05 else data


def _edit_json_text(rng: Random, data: bytes) -> bytes:
    for _ in range(rng.choice((1, 1, 3))):
        at = rng.randrange(len(data) + 1)
        removed = rng.choice((0, 0, 1, 5, 200))
        data = data[:at] + rng.choice((b"", rng.choice(_JSON_WORDS))) + data[at + removed :]
    return edit_bytes(rng, data) if rng.random() < 0.3 else data


# Pickles ------------------------------------------------------------------------------------------

_OPCODES = tuple(op.code.encode("latin-1") for op in pickletools.opcodes)
_PROGRAMS = (
    b"cos\nsystem\n(S'true'\ntR.", b"]q\x00h\x00a", b"}q\x01(h\x01h\x01u", b"((((((((", b")" * 50,
    b"]" * 500, b"r\xff\xff\xff\x7f", b"j\xff\xff\xff\x7f", b"\x8a\x08" + b"\xff" * 8,
    b"\x8a\x10" + b"\x7f" * 16, b"X\xff\xff\xff\xff", b"\x8c\x05\x1b[2Jx", b"\x95" + b"\xff" * 8,
    b"\x95" + bytes(8), b"K\x01K\x02\x86", b"0", b".", b"G\x7f\xf8\x00\x00\x00\x00\x00\x00",
    b"\x88", b"N", b"e", b"u", b"s", b"a", b"(", b"1", b"2", b"\x93", b"\x8f", b"\x90",
)  # fmt: skip
"""Imports and calls, self-references, deep nesting, memo places and lengths beyond the file."""


def edit_pickle(rng: Random, data: bytes) -> bytes:
    """Edit the values of a pickle of plain data, its instructions or its bytes."""
    way = rng.random()
    if way < 0.5 and _is_plain(data):
        data = pickle.dumps(edit_tree(rng, pickle.loads(data)), rng.choice((2, 2, 3, 4, 5)))
    elif way < 0.85:
        data = _edit_instructions(rng, data)
    else:
        data = edit_bytes(rng, data)
    return packed(rng, data) if rng.random() < 0.05 else data


def _is_plain(data: bytes) -> bool:
    """Tell whether a pickle may be loaded here: coverage guidance edits what was edited before."""
    try:
        unpickle._check(Path("seed"), data)
    except GpusightError:
        return False
    return True


def _edit_instructions(rng: Random, data: bytes) -> bytes:
    places = [place for _, _, place in pickletools.genops(data) if place is not None]
    for _ in range(rng.choice((1, 1, 2, 3))):
        at, other = rng.choice(places), rng.choice(places)
        added = rng.choice(
            (rng.choice(_PROGRAMS), rng.choice(_OPCODES), data[other : other + 12], b"")
        )
        data = data[:at] + added + data[at + rng.choice((0, 0, 1, 2, 10)) :]
    return data
