"""Names that a recording under way has taken: its capture comes when the program ends.

Of two recordings into one name, nsys would put the second report elsewhere, and the second would
take the first one's capture for its own.
"""

from __future__ import annotations

import contextlib
import sys
from typing import IO, TYPE_CHECKING

from gpusight.errors import RecordError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@contextlib.contextmanager
def claimed(capture: Path) -> Iterator[None]:
    """Keep a name while the block runs; raises where another recording has it.

    The mark is locked, so that one which a killed process left behind counts for nothing.
    """
    mark = _mark(capture)
    try:
        file = mark.open("a")
    except OSError as error:
        why = error.strerror or str(error)
        raise RecordError(f"cannot write {capture}", why=why, hint="choose another -o") from error
    with file:
        if not _locks(file):
            raise RecordError(
                f"another gpusight record is writing {capture}", hint="choose another name for -o"
            )
        try:
            yield
        finally:
            with contextlib.suppress(OSError):  # it lies about, and holds nobody up
                mark.unlink()


def is_claimed(capture: Path) -> bool:
    """Tell whether a recording that runs now has this name."""
    try:
        with _mark(capture).open("r") as file:
            return not _locks(file)
    except OSError:
        return False


def _mark(capture: Path) -> Path:
    return capture.with_name(f".{capture.name}.recording")


def _locks(file: IO[str]) -> bool:
    """Lock an open file until it is closed; False where another process has it locked.

    Where files cannot be locked (Windows, some shared file systems), nobody is held up.
    """
    if sys.platform == "win32":
        return True
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True
