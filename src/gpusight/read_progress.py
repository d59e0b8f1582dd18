"""How much of a file is read, for who shows it while it takes."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


_MIN_SECONDS = 1.0
"""What was read in less time gives no rate worth showing."""


class ReadProgress:
    """One pass over a file, or over a table in it."""

    def __init__(self, total_bytes: int) -> None:
        self.total_bytes = total_bytes
        self.done_bytes = 0
        self._began_s = time.monotonic()

    def __str__(self) -> str:
        """Return the part that is done, the rate, and the seconds left; empty until known."""
        seconds, done = time.monotonic() - self._began_s, min(self.done_bytes, self.total_bytes)
        if not done or seconds < _MIN_SECONDS:
            return ""
        left_s = seconds * (self.total_bytes - done) / done
        rate = f"{done / seconds / 1e6:.0f} MB/s"
        return f"{done / self.total_bytes:.0%}, {rate}, {left_s:.0f} s left"


_running: list[ReadProgress] = []


@contextlib.contextmanager
def reading_bytes(total_bytes: int) -> Iterator[ReadProgress]:
    """Announce a pass over so many bytes; who reads them counts them."""
    progress = ReadProgress(total_bytes)
    _running.append(progress)
    try:
        yield progress
    finally:
        _running.remove(progress)


def progress_text() -> str:
    """Describe the pass that began last; empty where there is none."""
    running = _running[-1:]  # a thread that reads may end meanwhile
    return str(running[0]) if running else ""
