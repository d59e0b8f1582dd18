"""Captures and baselines to what is compared, for the commands that take either."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.cli import options
from gpusight.cli.progress import progress
from gpusight.cli.running import open_capture, warnings_of

if TYPE_CHECKING:
    import argparse
    from pathlib import Path

    from gpusight.comparison.digest import Digest
    from gpusight.comparison.sides import Meant
    from gpusight.result import NotApplicable


def read_digests(meant: Meant, args: argparse.Namespace) -> list[Digest] | NotApplicable:
    """Sum up every capture, as the arguments of selection and focus ask."""
    from gpusight.asking import sum_up
    from gpusight.comparison.make import make_digest

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
    before: Meant, after: Meant, args: argparse.Namespace
) -> tuple[list[Digest], list[Digest]] | NotApplicable:
    """Sum up both sides of a comparison."""
    from gpusight.result import NotApplicable

    old = read_digests(before, args)
    if isinstance(old, NotApplicable):
        return old
    new = read_digests(after, args)
    return new if isinstance(new, NotApplicable) else (old, new)
