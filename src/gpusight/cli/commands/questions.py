"""`gpusight questions`: five questions about a forward pass, a training step and attention."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.cli import options
from gpusight.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from gpusight.analyses.questions.timings import Timings

SUMMARY = "five questions about a training step, answered with numbers"
DESCRIPTION = (
    "How long a forward pass takes, against wall-clock timings; which kernel takes most GPU time "
    "in it, and how often it is launched; what goes to kernels that are no matrix products; how "
    "training differs from inference; and how softmax compares with the matrix products of "
    "attention in time and in FLOPs. Per pass, without warm-up, from ranges such as `forward`, "
    "else from the framework's operators. What cannot be answered says why and what to add."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight questions train.nsys-rep --timings timings.csv --model 4,12,512,64",
    "gpusight questions forward.sqlite --compare train.sqlite",
    "gpusight questions --batch captures/ -o answers/",
)
DEFAULT_FOLDER = "gpusight-questions"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser, nargs="?")
    group = parser.add_argument_group("what to ask")
    group.add_argument(
        "--compare",
        metavar="FILE2",
        help="a second capture; of the two, the one that trains is training, the other inference",
    )
    group.add_argument(
        "--timings",
        metavar="CSV",
        help="wall-clock times of a forward pass: a column such as forward_ms or time_s",
    )
    group.add_argument(
        "--model",
        metavar="B,H,S,D",
        help="batch, heads, sequence and head dimension, where the capture holds no sizes",
    )
    group.add_argument(
        "--batch",
        metavar="DIR",
        help="ask of every capture in a folder; reports and a summary go to the folder of -o "
        f"(default: {DEFAULT_FOLDER})",
    )
    options.add_selection(parser)
    options.add_focus(parser)
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    if args.batch is not None:
        from gpusight.cli.questions import ask_folder

        if args.file is not None or args.compare or args.timings:
            raise UsageError(
                "--batch asks of every capture alike",
                hint="leave out FILE, --compare and --timings, or --batch",
            )
        return ask_folder(Path(args.batch), Path(args.output or DEFAULT_FOLDER), args)
    if args.file is None:
        raise UsageError("questions needs a capture", hint="type gpusight questions FILE")
    return _ask_one(args)


def _ask_one(args: argparse.Namespace) -> int:
    from gpusight.analyses.questions import questions
    from gpusight.analyses.questions.attention_flops import Sizes
    from gpusight.cli.output import present
    from gpusight.cli.progress import progress
    from gpusight.cli.running import open_capture, warnings_of
    from gpusight.evidence import refuse_capture
    from gpusight.result import with_warnings

    if args.output and args.output != "-":
        if args.compare:
            refuse_capture(Path(args.output), args.compare)
        _refuse_timings(Path(args.output), args.timings)
    with progress(f"reading {Path(args.file).name}", quiet=args.quiet):
        trace = open_capture(args.file, args)
        other = None if args.compare is None else open_capture(args.compare, args)
        result = questions(
            trace,
            options.selection(args),
            compare=other,
            timings=_timings(args.timings),
            model=None if args.model is None else Sizes.of(args.model),
            **options.focus(args),
        )
        warnings = warnings_of(args, trace, *(() if other is None else (other,)))
    return present(with_warnings(result, warnings), args)


def _refuse_timings(target: Path, timings: str | None) -> None:
    """Raise when the answer would replace the timings that it is made of."""
    if timings is None or not target.exists() or not Path(timings).exists():
        return
    if target.samefile(timings):
        raise UsageError(f"{target} is the timings themselves", hint="choose another name for -o")


def _timings(path: str | None) -> Timings | None:
    from gpusight.analyses.questions.timings import read_timings
    from gpusight.readers.timings import read_timings_file

    return None if path is None else read_timings(read_timings_file(Path(path)), path)
