"""Files of wall-clock timings, which are read whole as text."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

_LARGEST = 1 << 26
"""Ten times what a million timings take."""


def read_timings_file(path: Path) -> str:
    """Read a CSV file of timings; what is plainly no text is refused."""
    try:
        with path.open("rb") as file:
            content = file.read(_LARGEST + 1)
    except OSError as error:
        raise UsageError(f"cannot read {path}", why=error.strerror or str(error)) from error
    if len(content) > _LARGEST or b"\0" in content:
        raise UsageError(f"{path} holds no timings", why="it is not a CSV file of a few megabytes")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:  # an old spreadsheet's, where µ is one byte
        return content.decode("cp1252", "replace")
