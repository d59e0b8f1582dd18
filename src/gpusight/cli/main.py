"""`gpusight`: the parser, and the one place where expected failures become a line and a code.

Exit codes: 0 done; 1 kept for gates that trip; 2 the request or the capture is at fault, or the
capture does not hold what was asked for; 70 a bug in gpusight; 130 interrupted; 141 broken pipe.
Errors are one line. `--debug`, or GPUSIGHT_DEBUG=1, shows the traceback too.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import gpusight
from gpusight.cli import options
from gpusight.cli.commands import COMMANDS
from gpusight.cli.output import (
    OutputError,
    flush_out,
    give_streams,
    present_absent,
    write_error,
    write_to,
)
from gpusight.errors import (
    DEBUG_VARIABLE,
    GpusightError,
    NotApplicableError,
    UsageError,
    internal_error,
    is_unexpected,
    shows_tracebacks,
)
from gpusight.render.cell_text import safe_lines, safe_text

if TYPE_CHECKING:
    from collections.abc import Sequence

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
DESCRIPTION = "Read GPU profiles anywhere, and see where the time went."
EPILOG = (
    "gpusight COMMAND --help shows a command's options and examples; gpusight demo shows it at work"
)


_EXAMPLES = "examples:\n"
_SPELLINGS = {"utilization": "utilisation"}
"""Other ways to write commands."""


class _Parser(argparse.ArgumentParser):
    """Raises what argparse would print over several lines."""

    def error(self, message: str) -> NoReturn:
        """Make it the one line that every other error is."""
        raise UsageError(message, hint=f"see: {self.prog} --help")

    def _print_message(self, message: str, file: Any = None) -> None:
        # The help has letters that not every terminal can show.
        write_to(file or sys.stderr, message)


class _HelpFormatter(argparse.HelpFormatter):
    """Wraps descriptions to the screen, but leaves the lines of examples alone."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(_EXAMPLES) else super()._fill_text(text, width, indent)


_UNCACHED = frozenset({"cache", "demo", "doctor", "record"})
"""Commands that read no capture of the user's."""


def build_parser() -> argparse.ArgumentParser:
    """Build the parser of all commands, without importing what they need to run."""
    parser = _Parser(prog="gpusight", description=DESCRIPTION, epilog=EPILOG)
    parser.add_argument("--version", action="version", version=f"gpusight {gpusight.__version__}")
    subparsers = parser.add_subparsers(title="commands", metavar="COMMAND", dest="command")
    for name, command in COMMANDS.items():
        sub = subparsers.add_parser(
            name,
            help=command.SUMMARY,
            description=command.DESCRIPTION,
            epilog=_EXAMPLES + "\n".join(f"  {line}" for line in command.EXAMPLES),
            formatter_class=_HelpFormatter,
        )
        command.add_arguments(sub)
        options.add_common(sub, cached=name not in _UNCACHED)
        sub.set_defaults(run=command.run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; gives the exit code."""
    # Polars' allocator keeps freed memory for ten seconds, longer than most commands run; it reads
    # this when it is loaded. On a million kernels that is a quarter of the peak.
    os.environ.setdefault("_RJEM_MALLOC_CONF", "dirty_decay_ms:50,muzzy_decay_ms:0")
    give_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    arguments[:1] = [_SPELLINGS.get(word, word) for word in arguments[:1]]
    parser = build_parser()
    try:
        _check_command(arguments)
        args = parser.parse_args(arguments)
        if args.command is None:
            parser.print_help(sys.stderr)
            return 2
        if "debug" in args:
            os.environ[DEBUG_VARIABLE] = "1"  # other threads and processes look there too
        code = _run_command(args)
        flush_out()
    except BrokenPipeError:
        _abandon_stdout()
        return EXIT_BROKEN_PIPE
    except KeyboardInterrupt:
        write_error("gpusight: interrupted")
        return EXIT_INTERRUPTED
    except BaseException as error:  # a panic of Polars is no Exception
        if not is_unexpected(error):
            raise
        return _report(error)
    return code


def _run_command(args: argparse.Namespace) -> int:
    """Run a command; that a capture cannot answer a question is an answer too."""
    try:
        code: int = args.run(args)
    except NotApplicableError as error:
        return present_absent(error, args)
    return code


def _report(error: BaseException) -> int:
    """Write what went wrong as one line, below its traceback where that is wanted."""
    if isinstance(error, OutputError):
        _abandon_stdout()
    if shows_tracebacks():
        import traceback

        write_to(sys.stderr, safe_lines("".join(traceback.format_exception(error))))
    if isinstance(error, MemoryError):
        error = GpusightError("not enough memory", hint="end other programs, or look at less")
    known = error if isinstance(error, GpusightError) else internal_error(error)
    write_error(f"gpusight: error: {safe_text(str(known))}")
    return known.exit_code


def run() -> NoReturn:
    """Run as a program: nothing is left to do afterwards, so memory is not given back piecemeal.

    Freeing the tables of a large capture one by one takes longer than many a command.
    """
    code = main()
    cache = sys.modules.get("gpusight.readers.column_cache")
    with contextlib.suppress(OSError):  # reported already, or nobody is listening
        for failure in cache.flush_caches() if cache is not None else ():
            write_error(f"gpusight: note: {safe_text(failure)}")
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _check_command(arguments: list[str]) -> None:
    """Answer a mistyped command, or a capture given without one, better than argparse does."""
    if not arguments or arguments[0].startswith("-") or arguments[0] in COMMANDS:
        return
    word = arguments[0]
    if Path(word).exists():
        raise UsageError(
            f"{word} is a file, not a command", hint=f"for a first look: gpusight summary {word}"
        )
    near = difflib.get_close_matches(word, COMMANDS, n=1)
    hint = f"did you mean {near[0]}?" if near else f"commands are {', '.join(COMMANDS)}"
    raise UsageError(f"no command {word!r}", hint=hint)


def _abandon_stdout() -> None:
    """Point standard output at nothing, so that the interpreter's last flush cannot fail too."""
    with open(os.devnull, "w") as nothing:  # noqa: PTH123 - os.devnull is a name, not a path to build
        os.dup2(nothing.fileno(), sys.stdout.fileno())
