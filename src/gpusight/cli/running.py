"""What the commands that ask one question of one capture have in common."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.cli import options
from gpusight.cli.output import present
from gpusight.cli.progress import progress

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from gpusight.analyses.select import Selection
    from gpusight.model.trace import Trace
    from gpusight.result import Result


def open_capture(path: str, args: argparse.Namespace) -> Trace:
    """Open a capture as the common arguments ask."""
    from gpusight.readers import open_trace

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
    from gpusight.result import with_warnings

    with progress(f"reading {Path(args.file).name}", quiet=args.quiet):
        trace = open_capture(args.file, args)
        return with_warnings(question(trace), warnings_of(args, trace))
