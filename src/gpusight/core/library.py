"""Finds and loads the compiled core, and reports which implementation runs, and why.

The library lies next to this file, where `tools/build_core.py` puts it when a wheel is built or
`scripts/setup` runs. Nothing is compiled at import time. A library that was built from other
sources than those next to it is refused: then, and where there is none, NumPy does the same work
more slowly. `GPUSIGHT_CORE=numpy` forces that, `GPUSIGHT_CORE=compiled` makes it an error.

Imports neither NumPy nor the package, so that the build and light readers can use it alone.
"""

from __future__ import annotations

import ctypes
import os
import sys
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from typing import Any

FOLDER = Path(__file__).resolve().parent
VARIABLE = "GPUSIGHT_CORE"
_SUFFIX = {"win32": ".dll", "darwin": ".dylib"}.get(sys.platform, ".so")
LIBRARY = FOLDER / f"gpusight_core{_SUFFIX}"
NO_MEMORY, BAD_INPUT = -1, -2
"""What functions return that fail (`gpusight_core.h`)."""


@dataclass(frozen=True)
class CoreStatus:
    """Which implementation runs."""

    library: ctypes.CDLL | None
    """The compiled one; None where NumPy does the work."""
    reason: str
    """Why it is not the compiled one; empty where it is."""
    compiler: str = ""
    """What compiled it."""


@cache
def source_checksum(folder: Path = FOLDER) -> int:
    """Give the checksum of the C sources of a folder."""
    checksum = 0
    for path in sorted([*folder.glob("*.c"), *folder.glob("*.h")], key=lambda path: path.name):
        checksum = zlib.crc32(path.name.encode() + b"\0" + path.read_bytes(), checksum)
    return checksum


def open_library(path: Path = LIBRARY, folder: Path = FOLDER) -> CoreStatus:
    """Load a library if it was built from the sources of a folder."""
    if not path.exists():
        return CoreStatus(
            None, "it was not built: no C compiler was found, or scripts/setup did not run"
        )
    try:
        library = ctypes.CDLL(str(path))
        built_from = library.gpusight_sources
        named = library.gpusight_compiler
    except (OSError, AttributeError) as error:
        return CoreStatus(None, f"{path.name} cannot be loaded: {error}")
    built_from.restype, named.restype = ctypes.c_uint32, ctypes.c_char_p
    if built_from() != source_checksum(folder):
        _close(library)
        return CoreStatus(None, f"{path.name} was built from other sources; run scripts/setup")
    return CoreStatus(library, "", named().decode("utf-8", "replace"))


def _close(library: ctypes.CDLL) -> None:
    """Let go of a library: while it is loaded, its path gives it again, whatever lies there now."""
    import _ctypes

    getattr(_ctypes, "FreeLibrary" if sys.platform == "win32" else "dlclose")(library._handle)


@cache
def core_status() -> CoreStatus:
    """Load the core of this installation, once."""
    choice = os.environ.get(VARIABLE, "")
    if choice not in ("", "numpy", "compiled"):
        from gpusight.errors import UsageError

        raise UsageError(f"{VARIABLE}={choice}", why="is neither `numpy` nor `compiled`")
    if choice == "numpy":
        return CoreStatus(None, f"{VARIABLE}=numpy")
    status = open_library()
    if choice == "compiled" and status.library is None:
        from gpusight.errors import UsageError

        raise UsageError(f"{VARIABLE}=compiled", why=status.reason)
    return status


def core_library() -> ctypes.CDLL | None:
    """Give the compiled core; None where NumPy does the work."""
    return core_status().library


def core_function(name: str, result: Any, arguments: Sequence[Any]) -> Callable[..., Any] | None:
    """Give a function of the core with its types; None where NumPy does the work."""
    library = core_library()
    if library is None:
        return None
    function = library[f"gpusight_{name}"]
    function.restype, function.argtypes = result, arguments
    return function
