"""`gpusight share`: a copy of a capture to give away."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.cli import options

if TYPE_CHECKING:
    import argparse

    from gpusight.render.result_view import ShareView
    from gpusight.sharing.sanitized_copy import SharedCopy

SUMMARY = "sanitized copy of a capture for sharing"
DESCRIPTION = (
    "Profilers record more than times: nsys stores the environment of every process of the "
    "machine. This writes a copy that has only what is known to be harmless: times, sizes, names "
    "of kernels, ranges and API calls, versions, the GPU. What is not known is not copied. Says "
    "what was left out, by category, and never shows a value. The capture is not changed."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight share run.nsys-rep --check",
    "gpusight share run.nsys-rep -o run.shared.sqlite",
    "gpusight share trace.json.gz -o shared.json.gz --hash-names",
)
EXIT_REMAINS = 1


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "file",
        metavar="FILE",
        help="the capture: nsys .nsys-rep, .qdrep, .sqlite or an exported folder; a trace of "
        "torch.profiler; ncu .ncu-rep",
    )
    parser.add_argument(
        "-o",
        "--output",
        metavar="OUT",
        help="the copy (default: NAME.shared and the suffix of its form, in this folder); never "
        "replaces anything. With --check, the file for the answer",
    )
    parser.add_argument(
        "--check", action="store_true", help="only say what the capture would give away, and where"
    )
    parser.add_argument(
        "--hash-names",
        action="store_true",
        help="hash the names of kernels and ranges too, but for words such as gemm or forward",
    )
    parser.add_argument(
        "--salt",
        metavar="TEXT",
        help="hash equal names equally in all copies that are made with this text (default: "
        "random, and kept nowhere)",
    )
    parser.add_argument(
        "--to",
        choices=("sqlite", "parquet"),
        help="form of a copy of an nsys capture (default: sqlite; parquet where OUT is a folder)",
    )
    parser.add_argument(
        "--strict",
        action="store_true",
        help="exit with code 1 when a name that is kept holds a removed value, or looks like a "
        "path, an address or a key",
    )
    group = parser.add_argument_group("answer")
    group.add_argument("--format", choices=options.TABLE_FORMATS, help="how to write the answer")
    group.add_argument("--top", type=options.number, metavar="N", help="rows of each table")
    options.add_widths(group)


def run(args: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from gpusight.cli.capture_input import progress
    from gpusight.cli.output import is_read, present

    with progress(f"reading {Path(args.file).name}", quiet=args.quiet):
        result = _shared(args)
    args.top = args.top or 0
    sections = {"categories": not args.check, "places": args.check} if is_read(args) else {}
    present(result, args, **sections)
    _say_next(result.answer, args)
    return EXIT_REMAINS if args.strict and (result.remains or result.suspects) else 0


def _shared(args: argparse.Namespace) -> ShareView:
    """Look, or write the copy; `-o` then is not for the answer."""
    from gpusight import api

    if args.check:
        return api.share_check(args.file, hash_names=args.hash_names, salt=args.salt)
    output, args.output = args.output, None
    folder = output is not None and output.endswith(("/", "\\"))
    form = args.to or ("parquet" if folder else None)
    return api.share(args.file, output or None, hash_names=args.hash_names, salt=args.salt, to=form)


def _say_next(shared: SharedCopy, args: argparse.Namespace) -> None:
    """Say on a terminal what it comes to, and what to do with it."""
    from gpusight.cli.output import chosen_format, write_out
    from gpusight.render.cell_text import safe_text
    from gpusight.render.share_view import closing_sentences

    if args.output or chosen_format(args) != "table":
        return
    sentences = closing_sentences(shared)
    if not args.quiet:
        path = safe_text(str(shared.path or shared.capture))
        check = f"Read it before you send it: gpusight share --check {path}"
        sentences.append(check if shared.path else f"Write the copy: gpusight share {path}")
    write_out("\n" + "\n".join(sentences) + "\n")
