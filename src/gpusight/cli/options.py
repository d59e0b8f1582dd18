"""Arguments that commands share, declared once so that they mean the same everywhere."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from gpusight import units

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from gpusight.api import FocusOptions
    from gpusight.cli.commands import Command

    class SelectionOptions(TypedDict):
        """The keyword arguments of `gpusight.api` that select a part of the capture."""

        within: str | None
        device: int | None
        process: str | None

    class PartOptions(SelectionOptions, FocusOptions):
        """Those that choose the time window too."""


TABLE_FORMATS = ("table", "json", "csv", "markdown")
DEFAULT_TOP = 20
CAPTURE_HELP = (
    "the capture: nsys .nsys-rep, .qdrep, .sqlite or a folder of `nsys export -t parquetdir`; "
    "ncu .ncu-rep or its CSV output; torch.profiler .json[.gz], key_averages text or "
    "memory snapshot; JAX .xplane.pb or .trace.json.gz"
)
_MAX_PORT = 65_535
_MAX_WHOLE_NUMBER = 2**53
"""Up to here every whole number is also a float, so that none changes on the way."""
_MAX_REAL_NUMBER = 1e12


def add_capture(parser: argparse.ArgumentParser, *, nargs: str | None = None) -> None:
    """Declare the capture to read."""
    if nargs is None:
        parser.add_argument("file", metavar="FILE", help=CAPTURE_HELP)
    else:
        parser.add_argument("file", metavar="FILE", nargs=nargs, help=CAPTURE_HELP)


def add_selection(parser: argparse.ArgumentParser) -> None:
    """Declare which part of the capture to look at."""
    group = parser.add_argument_group("selection")
    group.add_argument(
        "--in",
        dest="within",
        metavar="RANGE",
        help="only what ran inside ranges (NVTX, annotations) of this name; a glob such as "
        "'step_*', or a regular expression written /…/ or regex:…",
    )
    group.add_argument("--device", type=number, metavar="N", help="only this GPU")
    group.add_argument("--process", metavar="PID|NAME", help="only this process")


def add_kernel(
    group: argparse._ArgumentGroup, effect: str = "only launches of this kernel"
) -> None:
    """Declare which kernels to look at; `effect` is what happens to those that match."""
    group.add_argument(
        "--kernel",
        metavar="GLOB",
        help=f"{effect}: a glob such as '*gemm*', any part of the name, or a regular expression "
        "written /…/ or regex:…",
    )


def add_launch(group: argparse._ArgumentGroup) -> None:
    """Declare which measured launches to look at."""
    group.add_argument(
        "--launch",
        nargs="+",
        action="extend",
        default=[],
        type=number,
        metavar="N",
        help="only these launches, after FILE, by their number in the report",
    )


def add_output(
    parser: argparse.ArgumentParser, *, formats: tuple[str, ...] = TABLE_FORMATS
) -> None:
    """Declare the output format and file."""
    group = parser.add_argument_group("output")
    several = (
        len(formats) > len(TABLE_FORMATS) + 1
    )  # too wide for the line that shows how to call it
    group.add_argument(
        "--format",
        choices=formats,
        metavar="FORMAT" if several else None,
        help=f"output format{': ' + ', '.join(formats) if several else ''} "
        "(default: by the extension of -o, else table)",
    )
    group.add_argument(
        "--top",
        type=number,
        metavar="N",
        help=f"maximum rows of each table; 0 for all (default: {DEFAULT_TOP} in tables, else all)",
    )
    add_widths(group)
    group.add_argument("-o", "--output", metavar="FILE", help="write to this file; replaces it")
    parser.set_defaults(formats=formats)
    add_csv_raw(group)


def add_widths(group: argparse._ActionsContainer) -> None:
    """Declare that tables may be wider than the terminal."""
    group.add_argument(
        "--full-names",
        action="store_true",
        help="show full kernel names with template arguments instead of short names",
    )
    group.add_argument(
        "--wide",
        action="store_true",
        help="show all columns and full names, even beyond the width of the terminal",
    )


def add_csv_raw(group: argparse._ActionsContainer) -> None:
    """Declare that cells of CSV files are not escaped."""
    group.add_argument(
        "--csv-raw",
        action="store_true",
        help="do not escape cells of CSV files (default: cells that start with = + - or @ get a "
        "' in front, so that spreadsheets do not run them as formulas)",
    )


def add_common(parser: argparse.ArgumentParser, *, cached: bool = True) -> None:
    """Declare what every command takes; `cached` ones read captures of the user."""
    group = parser.add_argument_group("common")
    if cached:
        group.add_argument(
            "--no-cache",
            action="store_true",
            help="read the capture; neither read nor write the cache",
        )
    else:
        parser.set_defaults(no_cache=False)
    group.add_argument(
        "--no-color", action="store_true", help="plain text (also: NO_COLOR=1, or a pipe)"
    )
    group.add_argument("-q", "--quiet", action="store_true", help="show no progress")
    group.add_argument(
        "--debug",
        action="store_true",
        default=argparse.SUPPRESS,  # given before an action's name, it counts too
        help="show the traceback of an error (also: GPUSIGHT_DEBUG=1)",
    )


class Action(NamedTuple):
    """A part of a command with options of its own: `gpusight COMMAND NAME …`."""

    name: str
    summary: str
    description: str
    declare: Callable[[argparse.ArgumentParser], None]


def add_actions(
    parser: argparse.ArgumentParser, examples: Sequence[str], actions: Sequence[Action]
) -> None:
    """Declare the actions of a command, each with those of its examples that show it."""
    chosen = parser.add_subparsers(
        title="actions",
        dest="action",
        metavar="|".join(action.name for action in actions),
        required=True,
        help="the action; gpusight COMMAND ACTION --help lists its options",
    )
    for action in actions:
        lines = [line for line in examples if line.split()[2] == action.name]
        subparser = chosen.add_parser(
            action.name,
            help=action.summary,
            description=action.description,
            epilog="examples:\n" + "\n".join(f"  {line}" for line in lines),
            formatter_class=parser.formatter_class,
        )
        action.declare(subparser)
        add_common(subparser)


def arguments_of(
    command: Command, files: list[str], args: argparse.Namespace
) -> argparse.Namespace:
    """Return the arguments of another command: its defaults, and those given to this one."""
    parser = argparse.ArgumentParser()
    command.add_arguments(parser)
    return argparse.Namespace(**{**vars(parser.parse_args(files)), **vars(args)})


def selection(args: argparse.Namespace) -> SelectionOptions:
    """Give the part of the capture that the arguments of `add_selection` choose."""
    return {"within": args.within, "device": args.device, "process": args.process}


def add_focus(parser: argparse.ArgumentParser) -> None:
    """Declare which time window to analyze; `focus` passes it to the analysis."""
    group = parser.add_argument_group("time window")
    choice = group.add_mutually_exclusive_group()
    choice.add_argument(
        "--steps",
        metavar="N|A-B|all",
        help="these steps by number: 5, 3-7, 2: or all (default: all without warm-up)",
    )
    choice.add_argument(
        "--window",
        metavar="A-B|all",
        help="this time from the start of the capture: 1.2s-1.5s, 300ms- or 0-2s; all for the "
        "whole capture (default where no steps are found: all without the program start)",
    )
    group.add_argument(
        "--warmup", action="store_true", help="include warm-up steps, or the program start"
    )


def add_pace(parser: argparse.ArgumentParser, *, sides: str = "") -> None:
    """Declare the step time without a profiler; `open_capture` passes it on.

    `sides` names the two that each have their own, separated by a comma.
    """
    group = parser.add_argument_group("profiler")
    each = f" (one for each side, {sides}, but none for a saved baseline)" if sides else ""
    group.add_argument(
        "--pace",
        metavar=f"TIME{',TIME' if sides else ''}|off",
        help=f"step time without a profiler, such as 28.6ms{each}: times are corrected for its "
        "overhead (default: the time that gpusight record measured, else an estimate); off for "
        "the times of the capture",
    )


def paces(args: argparse.Namespace) -> tuple[str | None, str | None]:
    """Split what `add_pace` reads for two sides."""
    first, comma, second = (args.pace or "").partition(",")
    if bool(first and second) != bool(comma) or (first and not comma and first != "off"):
        from gpusight.errors import UsageError

        hint = "write one for each side: 28.6ms,20ms (off for the times of the capture)"
        raise UsageError(f"no two step times: {args.pace!r}", hint=hint)
    return first or None, second or first or None


def focus(args: argparse.Namespace) -> FocusOptions:
    """Give the time window that the arguments of `add_focus` choose."""
    from gpusight.analysis.steps.step_list import parse_window

    window = None if args.window is None else parse_window(args.window)
    return {"steps": args.steps, "window": window, "warmup": args.warmup}


def part(args: argparse.Namespace) -> PartOptions:
    """Give what the arguments of `add_selection` and `add_focus` choose."""
    return {**selection(args), **focus(args)}


def names(text: str) -> list[str]:
    """Read a list separated by commas."""
    return [part.strip() for part in text.split(",") if part.strip()]


def number(text: str, *, least: int = 0) -> int:
    """Read a whole number, from 0 unless `least` is another."""
    try:
        value = int(text)
    except ValueError:
        value = -1
    if not least <= value <= _MAX_WHOLE_NUMBER:
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number from {least}")
    return value


def count(text: str) -> int:
    """Read a whole number from 1."""
    return number(text, least=1)


def port(text: str) -> int:
    """Read the number of a port; 0 is any that is free."""
    value = number(text)
    if value > _MAX_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 1 to {_MAX_PORT}")
    return value


def percent(text: str) -> float:
    """Read a part of the whole, which must be written as a percentage: 0.05 could mean two."""
    fraction = units.parse_percent(text)
    if fraction is None:
        raise argparse.ArgumentTypeError(f"{text!r} is not a percentage such as 5%")
    return fraction


def positive(text: str) -> float:
    """Read a number above 0, which need not be whole."""
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if _MAX_REAL_NUMBER <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is too large")
    if not 0 < value < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return value
