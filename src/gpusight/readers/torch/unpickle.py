"""Pickles of plain data, read without importing or calling anything, and their columns."""

from __future__ import annotations

import gc
import io
import mmap
import pickle
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

import polars as pl

from gpusight.errors import CaptureError, DamagedCaptureError, NotACaptureError
from gpusight.readers.file_blocks import FileBlocks

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence
    from pathlib import Path
    from typing import BinaryIO, TypeAlias

    Data: TypeAlias = bytes | mmap.mmap
    Row: TypeAlias = dict[str, Any]


_GZIP = b"\x1f\x8b"
_PROTOCOLS = range(2, 6)
_ARGUMENT_BYTES = {
    pickle.MARK: 0,
    pickle.EMPTY_DICT: 0,
    pickle.EMPTY_LIST: 0,
    pickle.APPEND: 0,
    pickle.APPENDS: 0,
    pickle.SETITEM: 0,
    pickle.SETITEMS: 0,
    pickle.NONE: 0,
    pickle.NEWTRUE: 0,
    pickle.NEWFALSE: 0,
    pickle.MEMOIZE: 0,
    pickle.BINGET: 1,
    pickle.LONG_BINGET: 4,
    pickle.BINPUT: 1,
    pickle.BININT1: 1,
    pickle.BININT2: 2,
    pickle.BININT: 4,
    pickle.BINFLOAT: 8,
}
"""Opcodes of plain data whose argument has a fixed length and any content."""
_PLAIN = {*_ARGUMENT_BYTES, pickle.LONG1, pickle.LONG_BINPUT}
_MAX_INSTRUCTION_BYTES = 11
"""The longest of them but for texts: a number of nine bytes behind its length."""
_RUN_LENGTH = 20_000
"""Opcodes that the pattern matches at a time: enough for speed, few enough for its memory."""
_SHORT_TEXT = 16
"""Texts up to this long are matched by the pattern too."""
_STOP = pickle.STOP[0]
_FRAME_BYTES = 9
_MAX_SHORT_FRAMES, _MIN_FRAME_BYTES = 1000, 1000
"""Beyond some, frames are no smaller than this on average; Python's are 64 times as large."""
_TEXT_LENGTH_BYTES = {pickle.SHORT_BINUNICODE[0]: 1, pickle.BINUNICODE[0]: 4}
_IMPORTS = {pickle.GLOBAL[0], pickle.STACK_GLOBAL[0], pickle.INST[0]}

_DENSE_BYTES = 1 << 20
_MIN_CONTAINER_BYTES = 6
"""A list or dictionary takes at least this much of a file larger than the above."""
_FREE_INFLATION_BYTES = 64 << 20
_MAX_INFLATION = 60
"""A compressed file may grow to the first in any case, beyond it this many times."""
_MAX_REHEARSAL_BYTES = 16 << 20
_SHOWN_CHARS = 80


class PickledData(NamedTuple):
    """The data of a pickle, and the size of the pickle."""

    value: Any
    size_bytes: int


class _CutOffError(Exception):
    """The pickle goes on beyond the bytes that are there."""


class _RefusedError(Exception):
    """The pickle holds an opcode that plain data does not need."""

    def __init__(self, position: int, frames: Sequence[int] = ()) -> None:
        self.position = position
        self.frames = frames
        """Where frames begin before it."""
        super().__init__(position)


class _ImportedError(Exception):
    """The pickle wants to import something."""


class _PlainUnpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> NoReturn:
        raise _ImportedError(f"{module}.{name}")

    def persistent_load(self, _pid: Any) -> NoReturn:
        raise _ImportedError("an object kept elsewhere")


def load_plain(path: Path) -> PickledData:
    """Load the plain data of a pickle, compressed or not."""
    with path.open("rb") as file:
        start = file.read(2)
        file.seek(0)
        if not start:
            raise DamagedCaptureError(f"{path} is empty", hint="copy or capture it again")
        if start == _GZIP:
            content = _inflated(path)
            _check(path, content.getvalue())
            size = content.seek(0, io.SEEK_END)
            content.seek(0)
            # Only a buffered file lets the unpickler read ahead.
            buffered = io.BufferedReader(cast("io.RawIOBase", content))
            return PickledData(_build(path, buffered), size)
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
            _check(path, mapped)
            size = len(mapped)
        return PickledData(_build(path, file), size)


def check_start(path: Path, head: bytes) -> None:
    """Refuse a pickle whose first bytes already show that it is not plain data."""
    try:
        _scan(head, 1 << 31)
    except _CutOffError:
        pass
    except _RefusedError as refused:
        raise _refusal(path, head, refused) from None


def _inflated(path: Path) -> io.BytesIO:
    limit = max(_FREE_INFLATION_BYTES, _MAX_INFLATION * path.stat().st_size)
    blocks = FileBlocks(path)
    content = io.BytesIO()
    for block in blocks:
        content.write(block)
        if content.tell() > limit:
            raise CaptureError(
                f"{path} is compressed beyond belief",
                why=f"it unpacks to more than {limit:,} bytes",
                hint="if you trust it, unpack it with gunzip first",
            )
    if blocks.problem:
        raise DamagedCaptureError(f"{path} is damaged", why=blocks.problem, hint="copy it again")
    return content


def _check(path: Path, data: Data) -> None:
    try:
        _scan(data, len(data))
    except _CutOffError:
        raise DamagedCaptureError(
            f"{path} is cut off",
            why=f"its {len(data):,} bytes do not reach the end of the pickle",
            hint="copy it again",
        ) from None
    except _RefusedError as refused:
        raise _refusal(path, data, refused) from None
    if _too_dense(data):
        raise DamagedCaptureError(
            f"{path} is no real data", why="it is made of little but empty containers"
        )


def _scan(data: Data, size: int) -> None:
    """Check all opcodes in `data`, the beginning or all of a pickle of `size` bytes."""
    if len(data) < 2:
        raise _CutOffError
    if data[0] != pickle.PROTO[0] or data[1] not in _PROTOCOLS:
        raise _RefusedError(0)
    pattern = _plain_run(len(data))
    frames: list[int] = []
    at: int | None = 2
    while at is not None:
        end = len(data)
        if data[at : at + 1] == pickle.FRAME:
            frames.append(at)
            if len(frames) > _MAX_SHORT_FRAMES + at // _MIN_FRAME_BYTES:
                raise _RefusedError(at)
            at, end = _frame(data, at, size)
        at = _walk(pattern, data, at, end, frames)


def _frame(data: Data, at: int, size: int) -> tuple[int, int]:
    """Return the position of a frame's first opcode and of its end."""
    start = at + _FRAME_BYTES
    end = start + int.from_bytes(data[at + 1 : start], "little")
    if end > size:
        raise _CutOffError
    return start, min(end, len(data))


def _walk(
    pattern: re.Pattern[bytes], data: Data, at: int, end: int, frames: Sequence[int]
) -> int | None:
    """Check all opcodes up to the end, or to the next frame; return None after the last opcode.

    No opcode may reach beyond the end of its frame: there the unpickler would lose its place.
    """
    while at < end:
        run = pattern.match(data, at, end)
        if run is not None:
            at = run.end()
        elif data[at] == _STOP:
            return None
        elif data[at] in _TEXT_LENGTH_BYTES:
            start = at + 1 + _TEXT_LENGTH_BYTES[data[at]]
            at = start + int.from_bytes(data[at + 1 : start], "little")
            if at > end:
                raise _CutOffError
        elif data[at] == pickle.FRAME[0] and end == len(data):
            return at
        elif end - at < _MAX_INSTRUCTION_BYTES and data[at : at + 1] in _PLAIN:
            raise _CutOffError
        else:
            raise _RefusedError(at, frames)
    if at >= len(data):
        raise _CutOffError
    return at


def _plain_run(size: int) -> re.Pattern[bytes]:
    """Return a pattern of plain opcodes, the most frequent in real files first."""
    single = b"".join(re.escape(code) for code, width in _ARGUMENT_BYTES.items() if not width)
    small = b"(?:" + b"|".join(_fixed(code) for code in _SMALL_INTEGERS) + b")"
    choices = [
        _fixed(pickle.LONG_BINGET),
        _fixed(pickle.BINGET),
        b"[" + single + b"]",
        small + small + re.escape(pickle.TUPLE2),
        *(_fixed(code) for code in (*_SMALL_INTEGERS, pickle.BINFLOAT, pickle.BINPUT)),
        re.escape(pickle.LONG1) + _counted((6, 5, 7, 8, 1, 2, 3, 4), also=rb"\x09.{8}\x00"),
        re.escape(pickle.SHORT_BINUNICODE) + _counted(range(_SHORT_TEXT + 1)),
        _memo_index(size),
    ]
    return re.compile(b"(?:" + b"|".join(choices) + b"){1,%d}" % _RUN_LENGTH, re.DOTALL)


_SMALL_INTEGERS = (pickle.BININT1, pickle.BININT2, pickle.BININT)
"""Two of these make the one kind of tuple that snapshots hold, the id of a memory pool."""


def _fixed(code: bytes) -> bytes:
    return re.escape(code) + b"." * _ARGUMENT_BYTES[code]


def _counted(lengths: Iterable[int], also: bytes = b"(?!)") -> bytes:
    """Return a pattern of an argument of one of these lengths behind its length."""
    choices = (re.escape(bytes((n,))) + b".{%d}" % n for n in lengths)
    return b"(?:" + b"|".join((*choices, also)) + b")"


def _memo_index(size: int) -> bytes:
    """Return a pattern of a memo index, lowest byte first, not far beyond what `size` bytes fill.

    The unpickler allocates memory for all lower indices.
    """
    low = min((size.bit_length() - 1) // 8, 3)
    top = min(size >> (8 * low), 0xFF)
    highest = b"[\\x00-" + re.escape(bytes((top,))) + b"]"
    return re.escape(pickle.LONG_BINPUT) + b".{%d}" % low + highest + rb"\x00" * (3 - low)


def _too_dense(data: Data) -> bool:
    if len(data) < _DENSE_BYTES:
        return False
    blocks = (data[at : at + _DENSE_BYTES] for at in range(0, len(data), _DENSE_BYTES))
    containers = sum(b.count(pickle.EMPTY_LIST) + b.count(pickle.EMPTY_DICT) for b in blocks)
    return containers * _MIN_CONTAINER_BYTES > len(data)


def _build(path: Path, file: BinaryIO) -> Any:
    try:
        return _PlainUnpickler(file).load()
    except MemoryError:
        raise CaptureError(f"{path} needs more memory than there is") from None
    except _BUILD_ERRORS as error:
        raise DamagedCaptureError(
            f"{path} is damaged", why=f"its parts do not fit together ({_shown(str(error))})"
        ) from None


_BUILD_ERRORS = (
    pickle.UnpicklingError,
    _ImportedError,
    AttributeError,
    EOFError,
    LookupError,
    OverflowError,
    TypeError,
    ValueError,
)


def _refusal(path: Path, data: Data, refused: _RefusedError) -> CaptureError:
    import pickletools

    if refused.position == 0:
        return NotACaptureError(f"{path} is not a pickle of a protocol from 2 to 5")
    code = data[refused.position]
    wanted = _wanted(data, refused) if code in _IMPORTS else None
    name = next((op.name for op in pickletools.opcodes if op.code == chr(code)), None)
    if wanted:
        why = f"the pickle would import {_shown(wanted)}, which gpusight never does"
    elif name:
        why = f"the pickle uses {name}, which plain data does not need"
    else:
        why = f"byte {refused.position:,} ({code:#04x}) is no instruction of a pickle"
        return DamagedCaptureError(f"{path} is damaged", why=why, hint="copy it again")
    return NotACaptureError(f"{path} is not plain data", why=why)


def _wanted(data: Data, refused: _RefusedError) -> str | None:
    """Run the checked opcodes up to the import, and return the name that it would import."""
    if refused.position > _MAX_REHEARSAL_BYTES:
        return None
    two_lines = re.compile(rb"(?:[^\n]*\n){2}").match(data, refused.position + 1)
    end = two_lines.end() if two_lines else refused.position + 1
    # Frames reach beyond the import; without their opcodes the rest is not needed.
    starts = [0, *(at + _FRAME_BYTES for at in refused.frames)]
    ends = [*refused.frames, end]
    opcodes = b"".join(data[a:b] for a, b in zip(starts, ends, strict=True))
    try:
        _PlainUnpickler(io.BytesIO(opcodes)).load()
    except _ImportedError as wanted:
        return str(wanted)
    except (*_BUILD_ERRORS, MemoryError):
        return None
    return None


def _shown(text: str) -> str:
    """Return untrusted text as one short line without control characters."""
    cut = text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."
    return cut.encode("unicode_escape").decode("ascii")


class UnexpectedDataError(Exception):
    """The data is not shaped as it should be; the message has the details."""


@contextmanager
def no_collecting() -> Iterator[None]:
    """Pause the garbage collector, which millions of reachable objects make slow."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def rows_of(value: Any, what: str) -> list[Row]:
    """Check that a value is a list of dictionaries; None is an empty one."""
    if value is None:
        return []
    if type(value) is not list or set(map(type, value)) - {dict}:
        raise UnexpectedDataError(f"{what} are not a list of dictionaries")
    return value


def check_total(lists: Iterable[Any], limit: int, what: str) -> None:
    """Refuse lists of more than `limit` entries in all: one of them must be repeated."""
    if sum(len(entries) for entries in lists if type(entries) is list) > limit:
        raise UnexpectedDataError(f"{what} are the same over and over")


def integers(rows: Sequence[Row], key: str, *, required: bool = False) -> pl.Series:
    """Return a column of integers; null where a row has none."""
    values = [row.get(key) for row in rows]
    if set(map(type, values)) - {int, type(None)}:
        raise UnexpectedDataError(f"'{key}' is not a whole number everywhere")
    try:
        column = pl.Series(key, values, dtype=pl.Int64)
    except (OverflowError, TypeError, pl.exceptions.PolarsError):
        raise UnexpectedDataError(f"'{key}' is beyond 64 bits") from None
    return _complete(column, required=required)


def texts(rows: Sequence[Row], key: str, *, required: bool = False) -> pl.Series:
    """Return a column of texts; null where a row has none."""
    values = [row.get(key) for row in rows]
    if set(map(type, values)) - {str, type(None)}:
        raise UnexpectedDataError(f"'{key}' is not a text everywhere")
    words = {value: as_text(value) for value in set(values) if value is not None}
    column = pl.Series(key, [words.get(value) for value in values], dtype=pl.String)
    return _complete(column, required=required)


def _complete(column: pl.Series, *, required: bool) -> pl.Series:
    if required and column.null_count():
        raise UnexpectedDataError(f"{column.null_count()} entries have no '{column.name}'")
    return column


def as_text(value: Any) -> str:
    """Return a text without lone surrogates, which cannot be encoded; empty where it is none."""
    if type(value) is not str:
        return ""
    return value if value.isascii() else value.encode("utf-8", "replace").decode("utf-8")
