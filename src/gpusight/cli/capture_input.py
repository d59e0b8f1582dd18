"""What commands read: captures, opened with a progress line, and digests of them."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from gpusight.cli import options
from gpusight.errors import UsageError
from gpusight.readers.file_blocks import progress_text
from gpusight.render.cell_text import safe_text, shorten_middle

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from typing import TextIO

    from gpusight.comparison.digest import Digest
    from gpusight.comparison.inputs import SideInputs
    from gpusight.results import NotApplicable
    from gpusight.trace.trace import Trace


ResultT = TypeVar("ResultT")
PATIENCE_S = 1.0
"""Nothing is shown before this: a line that only flashes distracts."""
_PERIOD_S = 0.1
_LABEL_WIDTH = 60
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_ASCII_FRAMES = "|/-\\"
_CLEAR = "\r\x1b[K"


@contextlib.contextmanager
def progress(label: str, *, quiet: bool = False, stream: TextIO | None = None) -> Iterator[None]:
    """Show `label`, the seconds passed and how much is read, if standard error is a terminal."""
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
        read = progress_text()
        passed = f"{seconds:.0f} s{f' ({read})' if read else ''}"
        stream.write(f"{_CLEAR}{frames[step % len(frames)]} {text} {passed}")
        stream.flush()
        step += 1
        if done.wait(_PERIOD_S):
            break
    stream.write(_CLEAR)
    stream.flush()


def open_capture(path: str, args: argparse.Namespace, pace: str | None = None) -> Trace:
    """Open a capture with the common arguments; `pace` comes before that of the arguments."""
    from gpusight.readers.open import open_trace

    trace = open_trace(path, cache=not args.no_cache)
    trace.pace = getattr(args, "pace", None) if pace is None else pace
    return trace


def keep_warnings(args: argparse.Namespace, *traces: Trace) -> None:
    """Keep the warnings of captures that were read, for formats that have no room for them."""
    warnings = dict.fromkeys(warning for trace in traces for warning in trace.warnings)
    args.warnings = (*getattr(args, "warnings", ()), *warnings)


def analyze(
    function: Callable[..., ResultT],
    args: argparse.Namespace,
    *others: str,
    verb: str = "reading",
    **arguments: Any,
) -> ResultT:
    """Open the capture, and others with it, and call a function of `gpusight.api` on them."""
    with progress(f"{verb} {Path(args.file).name}", quiet=args.quiet):
        traces = [open_capture(path, args) for path in (args.file, *others)]
        result = function(*traces, **arguments)
        keep_warnings(args, *traces)
    return result


def read_digests(
    inputs: SideInputs, args: argparse.Namespace, pace: str | None = None
) -> list[Digest]:
    """Digest every capture, with the arguments of selection and focus, and the side's pace."""
    from gpusight.analysis.selection import Selection
    from gpusight.comparison.build_digest import make_digest
    from gpusight.comparison.inputs import digests_of
    from gpusight.open_job import jobs_among, with_ranks

    paths = inputs.paths
    selection, focus = Selection(**options.selection(args)), options.focus(args)
    places = {path: f" ({n} of {len(paths)})" for n, path in enumerate(paths, 1) if len(paths) > 1}

    def make(path: Path) -> Digest | NotApplicable:
        with progress(f"reading {path.name}{places.get(path, '')}", quiet=args.quiet):
            trace = open_capture(str(path), args, pace)
            digest = make_digest(trace, selection, **focus)
            keep_warnings(args, trace)
            return digest

    digests: list[Digest] = []
    for captures in jobs_among(paths):
        made = digests_of(captures[:1], make, inputs.notes)
        if len(captures) > 1:
            with progress(f"reading {len(captures)} ranks", quiet=args.quiet):
                made = [with_ranks(made[0], captures, cache=not args.no_cache)]
        digests += made
    return digests


def side_paces(
    args: argparse.Namespace, before: SideInputs, after: SideInputs
) -> tuple[str | None, str | None]:
    """Give the step time without a profiler of each side, from `--pace`.

    Times of saved baselines are fixed: a single time is of the other side.
    """
    from gpusight.comparison.baseline_file import is_baseline, load_baseline

    saved = [[path for path in side.paths if is_baseline(path)] for side in (before, after)]
    one_time = args.pace and "," not in args.pace and args.pace != "off"
    if one_time and not before.paths:
        return None, args.pace
    if not args.pace or not any(saved):
        return options.paces(args)
    if one_time and not all(saved):
        return (None, args.pace) if saved[0] else (args.pace, None)
    paces = options.paces(args) if not one_time else (args.pace, args.pace)
    for paths, pace, other in zip(saved, paces, reversed(paces), strict=True):
        if paths and pace != "off":
            hint = "omit --pace" if all(saved) else f"pass one time, of the other side: {other}"
            what = f"{paths[0]} is a saved baseline, whose times --pace cannot change"
            raise UsageError(what, hint=hint)
        if any(d.recorded_step_ns is not None for path in paths for d in load_baseline(path)):
            raise UsageError(
                f"{paths[0]} has times without the profiler, which --pace off cannot undo",
                hint="omit --pace, or save it again with: gpusight baseline save --pace off",
            )
    return paces


def typed_part(args: argparse.Namespace, pace: str | None = None) -> list[str]:
    """Give the options that select a part of the captures as they were typed, for a command.

    `pace` is that of the one side which the command shows.
    """
    values = {
        "--in": args.within,
        "--device": args.device,
        "--process": args.process,
        "--steps": args.steps,
        "--window": args.window,
        "--pace": pace or args.pace,
    }
    typed = [f"{name}={value}" for name, value in values.items() if value is not None]
    return [*typed, *(["--warmup"] if args.warmup else [])]
