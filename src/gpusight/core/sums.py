"""The functions of the compiled core that sum up durations by name.

Each returns None without the core, or for columns of types or with nulls that C does not take: then
Polars does the same. ValueError is raised where columns do not belong together. Imports no NumPy:
columns go to C by Arrow's PyCapsule interface, or as addresses.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any

import polars as pl

from gpusight.core.file_decoders import RELEASE, ArrowColumn, arrow_arrays
from gpusight.core.library import NO_MEMORY, core_function

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

_COUNT, _BUFFER = ctypes.c_int64, ctypes.c_void_p
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "sum_groups": (_COUNT, _BUFFER, _COUNT, *[_BUFFER] * 2, _COUNT, *[_BUFFER] * 2),
    "sum_range_kernels": (_COUNT, *[_BUFFER] * 5, _COUNT, *[_BUFFER] * 2, _COUNT, *[_BUFFER] * 2),
}
_WIDTHS: dict[type[pl.DataType], int] = {pl.UInt8: 1, pl.UInt16: 2, pl.UInt32: 4}


@cache
def _function(name: str) -> Callable[..., int] | None:
    return core_function(name, _COUNT, _FUNCTIONS[name])


def _raise_if_failed(result: int) -> None:
    if result == NO_MEMORY:
        raise MemoryError
    if result < 0:
        raise ValueError("a number is out of bounds")


class _Stream(ctypes.Structure):
    _fields_ = (
        ("get_schema", ctypes.c_void_p),
        ("get_next", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)),
        ("get_last_error", ctypes.c_void_p),
        ("release", ctypes.c_void_p),
        ("private", ctypes.c_void_p),
    )


class _Values:
    """The values of a series of numbers, for as long as this lives."""

    def __init__(self, series: pl.Series) -> None:
        get_pointer = ctypes.pythonapi.PyCapsule_GetPointer
        get_pointer.restype, get_pointer.argtypes = _BUFFER, (ctypes.py_object, ctypes.c_char_p)
        capsule = series.rechunk().__arrow_c_stream__()
        stream = ctypes.cast(get_pointer(capsule, b"arrow_array_stream"), ctypes.POINTER(_Stream))
        _, arrays = arrow_arrays(1)
        self._array = arrays[0]
        if stream.contents.get_next(stream, ctypes.addressof(self._array)):
            raise MemoryError

    def address(self, width: int) -> int:
        """Return the address of the first value; `width` is the size of a value in bytes."""
        offset, buffers = self._array.counts[_OFFSET], ctypes.cast(self._array.buffers, _POINTERS)
        address: int = (buffers[_VALUES] or 0) + offset * width
        return address

    def __del__(self) -> None:
        if self._array.release:
            RELEASE(self._array.release)(ctypes.addressof(self._array))


_POINTERS = ctypes.POINTER(ctypes.c_void_p)
_OFFSET, _VALUES = 2, 1
"""Where an array of Arrow has its offset among its counts, and its values among its buffers."""
_INT64_BYTES = 8
_TIMING_COLUMNS = ("calls", "total_ns", "min_ns", "max_ns", "mean_ns", "median_ns", "variance")


def _frame(names: Sequence[str], schemas: Any, arrays: Any) -> pl.DataFrame:
    """Take over columns; the deviation is the root of the variance."""
    columns = [pl.Series(ArrowColumn(*pair)) for pair in zip(schemas, arrays, strict=True)]
    frame = pl.DataFrame(dict(zip(names, columns, strict=True)))
    return frame.with_columns(pl.col("variance").sqrt().alias("stddev_ns")).drop("variance")


def sum_groups(
    codes: pl.Series, starts: pl.Series, ends: pl.Series, groups: int
) -> pl.DataFrame | None:
    """Sum up durations by a column of small numbers: `code`, and the columns of `timing`."""
    function, width = _function("sum_groups"), _WIDTHS.get(type(codes.dtype))
    columns = (codes, starts, ends)
    if function is None or width is None:
        return None
    if any(column.null_count() or len(column) != len(codes) for column in columns):
        return None
    if starts.dtype != pl.Int64 or ends.dtype != pl.Int64:
        return None
    schemas, arrays = arrow_arrays(1 + len(_TIMING_COLUMNS))
    code_values, start_values, end_values = map(_Values, columns)
    of_codes = (len(codes), code_values.address(width), width)
    times = (start_values.address(_INT64_BYTES), end_values.address(_INT64_BYTES))
    _raise_if_failed(function(*of_codes, *times, groups, schemas, arrays))
    return _frame(("code", *_TIMING_COLUMNS), schemas, arrays)


def sum_range_kernels(
    spans: Sequence[NDArray[Any]], codes: NDArray[Any], times: NDArray[Any], names: int
) -> pl.DataFrame | None:
    """Sum up the kernels in groups of ranges by name; see `core/sums.c` for the spans' columns."""
    function = _function("sum_range_kernels")
    if function is None:
        return None
    import numpy as np

    of_spans = [np.ascontiguousarray(column, np.int64) for column in spans]
    kernel, time = np.ascontiguousarray(codes, np.int32), np.ascontiguousarray(times, np.int64)
    if len({len(column) for column in of_spans}) != 1 or len(kernel) != len(time):
        raise ValueError("columns differ in length")
    columns = ("group", "kernel", "ranges", "kernels", *_TIMING_COLUMNS)
    schemas, arrays = arrow_arrays(len(columns))
    addresses = [column.ctypes.data for column in of_spans]
    of_kernels = (len(kernel), kernel.ctypes.data, time.ctypes.data, names)
    _raise_if_failed(function(len(of_spans[0]), *addresses, *of_kernels, schemas, arrays))
    return _frame(columns, schemas, arrays)
