"""One line on stderr, the only thing of ours that a recorded program shows."""

from __future__ import annotations

import contextlib
import os
import sys


def say(text: str) -> None:
    """Print a line; a program that closed its stderr does not want it.

    Programs also put objects of their own there, and a signal may come while one is written to.
    """
    stream = sys.stderr
    if stream is None:
        return
    with contextlib.suppress(Exception):  # there is no other place to say it
        stream.write(f"gpusight: {text}\n")
        stream.flush()


def say_error(doing: str, error: BaseException) -> None:
    """Say what of ours failed; the program goes on without it."""
    text = " ".join(str(error).split()) or type(error).__name__
    say(f"{doing} failed in process {os.getpid()}: {text}; the program goes on unrecorded")
