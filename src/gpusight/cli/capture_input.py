"""What commands read.

Opens a capture with a progress line, runs an analysis on it, sums captures up for a comparison.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.cli import options
from gpusight.cli.output import present
from gpusight.render.cell_text import safe_text, shorten_middle

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from typing import TextIO

    from gpusight.analysis.selection import Selection
    from gpusight.comparison.digest import Digest
    from gpusight.comparison.inputs import SideInputs
    from gpusight.results import NotApplicable, Result
    from gpusight.trace.trace import Trace


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


def open_capture(path: str, args: argparse.Namespace) -> Trace:
    """Open a capture as the common arguments ask."""
    from gpusight.readers.open import open_trace

    return open_trace(path, cache=not args.no_cache)


def warnings_of(args: argparse.Namespace, *traces: Trace) -> tuple[str, ...]:
    """Give the warnings of captures that were read, and keep them for `warn_apart`."""
    found = tuple(dict.fromkeys(warning for trace in traces for warning in trace.warnings))
    args.warnings = (*getattr(args, "warnings", ()), *found)
    return found


def run_analysis(args: argparse.Namespace, analysis: Callable[[Trace, Selection], Result]) -> int:
    """Open the capture, ask the question, write the answer."""
    return present(answer(args, lambda trace: analysis(trace, options.selection(args))), args)


def answer(args: argparse.Namespace, question: Callable[[Trace], Result]) -> Result:
    """Open the capture and ask the question; what it lacks is part of the answer."""
    from gpusight.results import with_warnings

    with progress(f"reading {Path(args.file).name}", quiet=args.quiet):
        trace = open_capture(args.file, args)
        return with_warnings(question(trace), warnings_of(args, trace))


def read_digests(meant: SideInputs, args: argparse.Namespace) -> list[Digest] | NotApplicable:
    """Sum up every capture, as the arguments of selection and focus ask."""
    from gpusight.asking import sum_up
    from gpusight.comparison.build_digest import make_digest

    paths = meant.paths
    selection, focus = options.selection(args), options.focus(args)
    places = {path: f" ({n} of {len(paths)})" for n, path in enumerate(paths, 1) if len(paths) > 1}

    def make(path: Path) -> Digest | NotApplicable:
        with progress(f"reading {path.name}{places.get(path, '')}", quiet=args.quiet):
            trace = open_capture(str(path), args)
            digest = make_digest(trace, selection, **focus)
            warnings_of(args, trace)
            return digest

    return sum_up(paths, make, meant.notes)


def read_sides(
    before: SideInputs, after: SideInputs, args: argparse.Namespace
) -> tuple[list[Digest], list[Digest]] | NotApplicable:
    """Sum up both sides of a comparison."""
    from gpusight.results import NotApplicable

    old = read_digests(before, args)
    if isinstance(old, NotApplicable):
        return old
    new = read_digests(after, args)
    return new if isinstance(new, NotApplicable) else (old, new)
