"""The functions of the compiled core that decode files: columns leave it as Arrow arrays.

Imports neither NumPy nor Polars: a column is an object of Arrow's PyCapsule interface, which
`pl.Series` takes without a copy. Each function returns None where there is no compiled core, or
where the input is not what C decodes: then the caller reads it as it always did.
"""

from __future__ import annotations

import ctypes
from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Any, NamedTuple

from gpusight.core.library import BAD_INPUT, NO_MEMORY, core_function

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

WHOLE, REAL, BYTES = range(3)
"""Types of a column: int64, double, bytes (`ColumnType` of arrow.h)."""
_COUNT, _BUFFER = ctypes.c_int64, ctypes.c_void_p
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "sqlite_leaves": (*[_COUNT] * 6, *[_BUFFER] * 2),
    "sqlite_columns": (*[_COUNT] * 4, _BUFFER, *[_COUNT] * 2, *[_BUFFER] * 3),
    "sqlite_rows": (
        *(*[_COUNT] * 4, *[_BUFFER] * 2, *[_COUNT] * 3, *[_BUFFER] * 3),
        *(*[_COUNT] * 3, _BUFFER, _COUNT, *[_BUFFER] * 4),
    ),
    "chrome_events": (_BUFFER, *[_COUNT] * 3, _BUFFER, _COUNT, *[_BUFFER] * 7),
    "chrome_arguments": (
        *(_BUFFER, *[_COUNT] * 2, _BUFFER),
        *(_COUNT, *[_BUFFER] * 2, _COUNT, *[_BUFFER] * 3),
        *(_COUNT, *[_BUFFER] * 2, _COUNT, *[_BUFFER] * 2),
    ),
    "message_fields": (_BUFFER, *[_COUNT] * 2, *[_BUFFER] * 3),
    "join_parts": (_BUFFER, *[_COUNT] * 2, *[_BUFFER] * 2, _COUNT, _BUFFER),
}
"""Arguments of every function; each returns a count, or a failure."""


class _Schema(ctypes.Structure):
    _fields_ = (
        ("names", ctypes.c_void_p * 3),
        ("counts", ctypes.c_int64 * 2),
        ("children", ctypes.c_void_p * 2),
        ("release", ctypes.c_void_p),
        ("private", ctypes.c_void_p),
    )


class _Array(ctypes.Structure):
    _fields_ = (
        ("counts", ctypes.c_int64 * 5),
        ("buffers", ctypes.c_void_p),
        ("children", ctypes.c_void_p * 2),
        ("release", ctypes.c_void_p),
        ("private", ctypes.c_void_p),
    )


RELEASE = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
"""What frees an array or a schema, given its address."""


def arrow_arrays(count: int) -> tuple[Any, Any]:
    """Make room for as many schemas and arrays of Arrow, none of them filled."""
    return (_Schema * count)(), (_Array * count)()


@cache
def _new_capsule() -> Callable[..., Any]:
    function = ctypes.pythonapi.PyCapsule_New
    function.restype = ctypes.py_object
    function.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)
    return function


class ArrowColumn:
    """A column that the core made, for one reader: `pl.Series(column)`."""

    def __init__(self, schema: _Schema, array: _Array) -> None:
        self._schema, self._array = schema, array

    def __arrow_c_array__(self, requested_schema: object = None) -> tuple[object, object]:
        """Hand the column over, as Arrow's PyCapsule interface defines it."""
        new = _new_capsule()
        return (
            new(ctypes.addressof(self._schema), b"arrow_schema", None),
            new(ctypes.addressof(self._array), b"arrow_array", None),
        )

    def __del__(self) -> None:
        """Free what nobody took."""
        for part in (self._schema, self._array):
            if part.release:
                RELEASE(part.release)(ctypes.addressof(part))


@cache
def _function(name: str) -> Callable[..., int] | None:
    return core_function(name, _COUNT, _FUNCTIONS[name])


def _count(result: int) -> int | None:
    """Give what a function counted; None where the input is not what it decodes."""
    if result == NO_MEMORY:
        raise MemoryError
    if result == BAD_INPUT:
        return None
    return result


class SqliteFile(NamedTuple):
    """A database, as its header describes it."""

    descriptor: int
    """An open file of the operating system."""
    pages: int
    page_size: int
    usable: int
    """Bytes of a page that hold content."""


class SqliteLeaves(NamedTuple):
    """The pages with the rows of a table, in their order."""

    leaves: int
    pages: ctypes.Array[ctypes.c_int64]
    last_keys: ctypes.Array[ctypes.c_int64]
    """The greatest row id that each may have."""


def sqlite_leaves(file: SqliteFile, root: int) -> SqliteLeaves | None:
    """Find the pages with the rows of the table whose tree begins at a page."""
    function = _function("sqlite_leaves")
    if function is None:
        return None
    leaves = (ctypes.c_int64 * file.pages)()
    last_keys = (ctypes.c_int64 * file.pages)()
    count = _count(function(*file, root, file.pages, leaves, last_keys))
    return None if count is None else SqliteLeaves(count, leaves, last_keys)


class SqliteColumns:
    """The columns of numbers of a whole table, which several threads fill at once."""

    def __init__(self, rows: int, types: Sequence[int], schemas: Any, arrays: Any) -> None:
        self.rows = rows
        self.arrays = arrays
        self._types = types
        self._columns = [ArrowColumn(schemas[i], arrays[i]) for i in range(len(types))]

    def finished(self, nulls: Sequence[int]) -> list[ArrowColumn | None]:
        """Give the columns, with so many nulls each, once all rows are there; None for texts."""
        for array, count in zip(self.arrays, nulls, strict=True):
            array.counts[1] = count
        pairs = zip(self._columns, self._types, strict=True)
        return [None if kind == BYTES else column for column, kind in pairs]


def sqlite_columns(
    file: SqliteFile, leaves: SqliteLeaves, types: Sequence[int]
) -> SqliteColumns | None:
    """Make room for columns of all rows, where row ids count from 1: only then it is known."""
    function = _function("sqlite_columns")
    if function is None:
        return None
    width = len(types)
    schemas, arrays = arrow_arrays(width)
    kinds = (ctypes.c_int64 * width)(*types)
    rows = _count(function(*file, leaves.pages, leaves.leaves, width, kinds, schemas, arrays))
    return None if rows is None else SqliteColumns(rows, types, schemas, arrays)


class SqliteFilter(NamedTuple):
    """Rows whose column has one of these values."""

    place: int
    """Of the column, among those that are decoded."""
    values: tuple[int, ...]
    or_null: bool


class SqliteRows(NamedTuple):
    """Columns of some rows."""

    rows: int
    columns: list[ArrowColumn | None]
    """Those that are not in the columns of the whole table; None for text that is null in all rows."""
    nulls: list[int]
    """How many values of each are null."""
    overflow_pages: int
    """How many pages besides the leaves were read."""


def sqlite_rows(
    file: SqliteFile,
    leaves: SqliteLeaves,
    some: range,
    ordinals: Sequence[int],
    types: Sequence[int],
    whole: SqliteColumns | None = None,
    only: SqliteFilter | None = None,
) -> SqliteRows | None:
    """Decode columns, by their place in the table (-1 for the row id), of the rows on some leaves.

    Text comes as its bytes. Numbers go into the columns of the whole table where there are some;
    else `only` may leave out rows.
    """
    function = _function("sqlite_rows")
    if function is None or not 0 <= some.start < some.stop <= leaves.leaves:
        return None
    width = len(ordinals)
    schemas, arrays = arrow_arrays(width)
    nulls, overflow = (ctypes.c_int64 * width)(), ctypes.c_int64()
    places, kinds = (ctypes.c_int64 * width)(*ordinals), (ctypes.c_int64 * width)(*types)
    values = () if only is None else only.values
    kept = (ctypes.c_int64 * len(values))(*values)
    columns: list[ArrowColumn | None] = []
    rows = _count(
        function(
            *(*file, leaves.pages, leaves.last_keys, some.start, len(some)),
            *(width, places, kinds),
            *((None, 0) if whole is None else (whole.arrays, whole.rows)),
            *(-1 if only is None else only.place, len(kept), kept, only is not None and only.or_null),
            *(schemas, arrays, nulls, ctypes.byref(overflow)),
        )
    )
    if rows is None:
        return None
    for i in range(width):
        if whole is None or types[i] == BYTES:
            column = ArrowColumn(schemas[i], arrays[i])
            columns.append(None if types[i] == BYTES and nulls[i] == rows else column)
    return SqliteRows(rows, columns, list(nulls), overflow.value)


EVENT_COLUMNS = (
    *("type", "name", "process", "process_text", "thread", "thread_text", "start", "duration"),
    *("at", "end", "arguments_at", "arguments_length", "keys"),
)
"""What `chrome_events` writes of each event, a row of its columns for each."""
_MAX_TEXTS = 1 << 15
_MAX_TYPES = 256
_MAX_KEYS = 64


class ScannedText(NamedTuple):
    """The events of a text."""

    events: int
    used: int
    """How much of the text they take."""
    closed: bool
    """Their list ended."""
    texts: list[bytes]
    """The texts that columns refer to, as they are written."""
    types: list[tuple[int, int]]
    """Pairs of phase and category, as numbers of texts; -1 for none."""
    keys: list[bytes]
    """The keys of arguments that the bits of a column stand for."""


def _address(text: bytes | memoryview) -> Any:
    """Give a text to C where it is; memory that is viewed has to be writable."""
    return text if isinstance(text, bytes) else (ctypes.c_char * len(text)).from_buffer(text)


def _parts(text: bytes | memoryview, count: int, at: Any, lengths: Any) -> list[bytes]:
    return [bytes(text[at[i] : at[i] + lengths[i]]) for i in range(count)]


def chrome_events(
    text: bytes | memoryview, columns: int, room: int, *, exact: bool
) -> ScannedText | None:
    """Decode the whole events at the start of a text; times as doubles unless they are exact.

    `columns` is the address of an int64 array with a row of `room` places for each `EVENT_COLUMNS`.
    """
    function = _function("chrome_events")
    if function is None:
        return None
    text_at, text_length = (ctypes.c_int64 * _MAX_TEXTS)(), (ctypes.c_int64 * _MAX_TEXTS)()
    phases, categories = (ctypes.c_int64 * _MAX_TYPES)(), (ctypes.c_int64 * _MAX_TYPES)()
    key_at, key_length = (ctypes.c_int64 * _MAX_KEYS)(), (ctypes.c_int64 * _MAX_KEYS)()
    ends = (ctypes.c_int64 * 5)()
    count = _count(
        function(
            *(_address(text), len(text), exact, room, columns),
            *(_MAX_TEXTS, text_at, text_length, phases, categories, key_at, key_length, ends),
        )
    )
    if count is None:
        return None
    used, texts, types, closed, keys = ends
    return ScannedText(
        count,
        used,
        bool(closed),
        _parts(text, texts, text_at, text_length),
        [(phases[i], categories[i]) for i in range(types)],
        _parts(text, keys, key_at, key_length),
    )


WHOLE_NUMBER, REAL_NUMBER, TEXT, JSON_TEXT, ELEMENT = range(5)
"""Types of a column of arguments (`ArgumentType` of chrome_events.c)."""
NO_ARGUMENT, HAS_VALUE, IS_NULL = range(3)
"""What a column has of an event."""


class WantedArgument(NamedTuple):
    """A column to make of arguments."""

    key: str
    type: int
    place: int = 0
    """Which element of a list it is."""


def chrome_arguments(
    text: bytes | memoryview,
    count: int,
    at: int,
    wanted: Sequence[WantedArgument],
    rows: int,
    values: int,
    states: int,
) -> list[bytes] | None:
    """Make columns of the arguments that begin at places in a text; returns the texts in them.

    `at` is the address of an int32 array, `values` and `states` those of the first row of an int64
    and a uint8 array with `rows` places for each column.
    """
    function = _function("chrome_arguments")
    if function is None:
        return None
    keys = list(dict.fromkeys(column.key.encode() for column in wanted))
    ends = list(accumulate(map(len, keys)))

    def array(numbers: Sequence[int]) -> Any:
        return (ctypes.c_int64 * len(numbers))(*numbers)

    text_at, text_length = (ctypes.c_int64 * _MAX_TEXTS)(), (ctypes.c_int64 * _MAX_TEXTS)()
    texts = _count(
        function(
            *(_address(text), len(text), count, at, len(keys), b"".join(keys), array(ends)),
            *(len(wanted), array([keys.index(column.key.encode()) for column in wanted])),
            *(array([column.type for column in wanted]), array([c.place for c in wanted])),
            *(rows, values, states, _MAX_TEXTS, text_at, text_length),
        )
    )
    return None if texts is None else _parts(text, texts, text_at, text_length)


def join_parts(text: bytes | memoryview, count: int, at: int, lengths: int) -> bytearray:
    """Join parts of a text with commas; `at` and `lengths` are the addresses of int64 arrays."""
    function = _function("join_parts")
    assert function is not None
    size = _count(function(_address(text), len(text), count, at, lengths, 0, None))
    assert size is not None
    joined = bytearray(size)
    if size:
        target = (ctypes.c_char * size).from_buffer(joined)
        written = _count(function(_address(text), len(text), count, at, lengths, size, target))
        assert written == size
    return joined


def message_fields(message: bytes, room: int, numbers: int, starts: int, ends: int) -> int | None:
    """List the fields of a protobuf message: number, where it begins and ends; -1 and a number.

    Takes the addresses of int64 arrays of `room` places each; returns how many fields there are.
    """
    function = _function("message_fields")
    if function is None:
        return None
    return _count(function(message, len(message), room, numbers, starts, ends))
