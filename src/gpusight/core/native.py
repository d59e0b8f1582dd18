"""The functions of the compiled core on NumPy arrays, with their types.

Each returns None without the core: then its caller does the same with NumPy. That is the
reference; tests compare the two on generated input.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from gpusight.core.library import BAD_INPUT, NO_MEMORY, core_library

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    Ints: TypeAlias = NDArray[np.int64]

_COUNT, _BUFFER = ctypes.c_int64, ctypes.c_void_p
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "enclosing": (None, _COUNT, *[_BUFFER] * 4),
    "nested_lines": (_COUNT, _COUNT, *[_BUFFER] * 4),
}
"""Result and arguments of every function."""


@cache
def _function(name: str) -> Callable[..., Any] | None:
    library = core_library()
    if library is None:
        return None
    function = library[f"gpusight_{name}"]
    function.restype, *function.argtypes = _SIGNATURES[name]
    return function


def _call(function: Callable[..., Any], *arguments: int | NDArray[Any]) -> None:
    """Call a function of the core with the addresses of arrays, which stay alive meanwhile."""
    result = function(*(a if isinstance(a, int) else a.ctypes.data for a in arguments))
    if result == NO_MEMORY:
        raise MemoryError
    if result == BAD_INPUT:
        raise ValueError(f"{function.__name__}: an index is out of bounds")


def _ints(array: NDArray[Any], length: int) -> Ints:
    """Give a column as the core reads it; its length is what keeps C within the buffer."""
    # Floats are refused: their nanoseconds are rounded already.
    column = array.astype(np.int64, order="C", casting="same_kind", copy=False)
    if column.shape != (length,):
        raise ValueError(f"columns of {length} values are needed, one has {column.shape}")
    return column


def enclosing(starts: Ints, ends: Ints, threads: Ints) -> Ints | None:
    """Find the position of the interval around each, -1 for none; sorted by thread and start."""
    function = _function("enclosing")
    if function is None:
        return None
    n = len(starts)
    outer = np.empty(n, np.int64)
    _call(function, n, _ints(starts, n), _ints(ends, n), _ints(threads, n), outer)
    return outer


def nested_lines(starts: Ints, ends: Ints) -> Ints | None:
    """Count the events that are open where each begins; None also where two events cross."""
    function = _function("nested_lines")
    if function is None:
        return None
    n = len(starts)
    lines, still_open = np.empty(n, np.int64), np.empty(n, np.int64)
    columns = (_ints(starts, n), _ints(ends, n), still_open, lines)
    result = function(n, *(column.ctypes.data for column in columns))
    return None if result == BAD_INPUT else lines
