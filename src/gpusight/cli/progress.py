"""A line on the terminal while something takes longer than a second; gone when it is done."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from typing import TYPE_CHECKING

from gpusight.render.cells import safe_text, shorten_middle

if TYPE_CHECKING:
    from collections.abc import Iterator
    from typing import TextIO

PATIENCE_S = 1.0
"""Nothing is shown before this: a line that flashes up is worse than none."""
_PERIOD_S = 0.1
_LABEL_WIDTH = 60
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ASCII_FRAMES = "|/-\\"
_CLEAR = "\r\x1b[K"


@contextlib.contextmanager
def progress(label: str, *, quiet: bool = False, stream: TextIO | None = None) -> Iterator[None]:
    """Show `label` and the seconds passed on standard error, if that is a terminal."""
    stream = stream or sys.stderr
    if quiet or not stream.isatty():
        yield
        return
    done = threading.Event()
    spinner = threading.Thread(target=_spin, args=(label, done, stream), daemon=True)
    spinner.start()
    try:
        yield
    finally:
        done.set()
        spinner.join()


def _spin(label: str, done: threading.Event, stream: TextIO) -> None:
    began = time.monotonic()
    if done.wait(PATIENCE_S):
        return
    frames = _FRAMES if (stream.encoding or "").lower().startswith("utf") else _ASCII_FRAMES
    text = shorten_middle(safe_text(label), _LABEL_WIDTH)
    step = 0
    while True:
        seconds = time.monotonic() - began
        stream.write(f"{_CLEAR}{frames[step % len(frames)]} {text} {seconds:.0f} s")
        stream.flush()
        step += 1
        if done.wait(_PERIOD_S):
            break
    stream.write(_CLEAR)
    stream.flush()
