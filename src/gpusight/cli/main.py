"""`gpusight`: the parser, and the one place where expected failures become a line and a code.

Exit codes: 0 done; 1 a check failed (`gate`, `--fail-over`, `--require`); 2 the request or the
capture is at fault, or the capture lacks the data; 3 an inconclusive `gate`; 70 a bug in gpusight;
130 interrupted; 141 broken pipe.
Errors are one line: `gpusight COMMAND: what: why; what to do`. `--debug`, or
GPUSIGHT_DEBUG=1, shows the traceback too. With `--format json` standard output has them as a
document.
"""

from __future__ import annotations

import argparse
import contextlib
import difflib
import gc
import os
import re
import sys
import textwrap
from itertools import pairwise, takewhile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import gpusight
from gpusight.cli import options
from gpusight.cli.commands import COMMANDS, GROUPS
from gpusight.cli.output import (
    OutputError,
    check_extension,
    error_json,
    flush_out,
    give_streams,
    present_absent,
    show_differences,
    write_error,
    write_out,
    write_to,
)
from gpusight.errors import (
    DEBUG_VARIABLE,
    CaptureMismatchError,
    GpusightError,
    NotApplicableError,
    UsageError,
    internal_error,
    is_unexpected,
    shows_tracebacks,
)
from gpusight.render.cell_text import safe_lines, safe_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

EXIT_INTERRUPTED = 130
EXIT_BROKEN_PIPE = 141
_OBJECTS_BETWEEN_COLLECTIONS = 50_000
DESCRIPTION = "From a GPU profile to what to fix, ranked by the time it saves."
EPILOG = (
    "gpusight FILE is short for gpusight diagnose FILE. gpusight help COMMAND shows the options "
    "and examples of a command."
)
_EXAMPLES = "examples:\n"
_SPELLINGS = {"utilisation": "utilization"}
"""Other ways to write commands."""
_UNRECOGNIZED = "unrecognized arguments: "


class _Parser(argparse.ArgumentParser):
    """Raises what argparse would print over several lines."""

    def error(self, message: str) -> NoReturn:
        """Raise it as one line, like every other error; suggest the option that was meant."""
        hint = f"see: {self.prog} --help"
        if message.startswith(_UNRECOGNIZED):
            word = message.removeprefix(_UNRECOGNIZED).split()[0]
            near = difflib.get_close_matches(word.partition("=")[0], self._known_options(), n=1)
            if near and word.startswith("-"):
                message, hint = f"no option {word}", f"did you mean {near[0]}? {hint}"
        raise UsageError(message, hint=hint)

    def _known_options(self) -> list[str]:
        return [option for action in self._actions for option in action.option_strings]

    def parse_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: argparse.Namespace | None = None
    ) -> argparse.Namespace:
        """Let the command's own parser report unknown options."""
        parsed, unknown = self.parse_known_args(args, namespace)
        if unknown:
            parser = getattr(parsed, "parser", self)
            parser.error(_UNRECOGNIZED + " ".join(unknown))
        return parsed

    def _print_message(self, message: str, file: Any = None) -> None:
        # The help has letters that not every terminal encoding has.
        write_to(file or sys.stderr, message)


class _HelpFormatter(argparse.HelpFormatter):
    """Wraps descriptions to the screen, but no examples and no URLs."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        *lists, last = text.split("\n\n")
        if text.startswith(_EXAMPLES):
            return text
        lines = textwrap.wrap(
            " ".join(last.split()),
            width,
            initial_indent=indent,
            subsequent_indent=indent,
            break_on_hyphens=False,
            break_long_words=False,
        )
        commands = "\n\n".join(lists).splitlines()
        listed = "\n".join(row for line in commands for row in self._wrapped_row(line, width))
        return "\n\n".join(filter(None, (listed, "\n".join(lines))))

    @staticmethod
    def _wrapped_row(line: str, width: int) -> list[str]:
        """Wrap a command and its summary, so that the summary stays in its column."""
        row = re.match(r"  \S+ +", line)
        if row is None or len(line) <= width:
            return [line]
        indent = " " * row.end()
        lines = textwrap.wrap(line[row.end() :], width - row.end(), break_on_hyphens=False)
        return [f"{row.group() if n == 0 else indent}{text}" for n, text in enumerate(lines)]

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


_UNCACHED = frozenset({"cache", "completion", "demo", "doctor", "record"})
"""Commands that read no capture of the user: they have no `--no-cache`."""


def build_parser(commands: Iterable[str] = COMMANDS) -> argparse.ArgumentParser:
    """Build the parser of these commands, without importing what they need to run."""
    parser = _Parser(
        prog="gpusight",
        usage="gpusight [-h] [-V] FILE | COMMAND ...",
        description=DESCRIPTION,
        # Nobody sees the list where a command is named; making it imports all of them.
        epilog=_command_list() + "\n\n" + EPILOG if commands is COMMANDS else None,
        formatter_class=_HelpFormatter,
    )
    version = f"gpusight {gpusight.__version__}"
    parser.add_argument("-V", "--version", action="version", version=version)
    subparsers = parser.add_subparsers(
        metavar="COMMAND",
        dest="command",
        help=argparse.SUPPRESS,
        prog="gpusight",
        parser_class=_Parser,
    )
    for name in commands:
        command = COMMANDS[name]
        sub = subparsers.add_parser(
            name,
            description=command.DESCRIPTION,
            epilog=_EXAMPLES + "\n".join(f"  {line}" for line in command.EXAMPLES),
            formatter_class=_HelpFormatter,
        )
        command.add_arguments(sub)
        options.add_common(sub, cached=name not in _UNCACHED)
        sub.set_defaults(run=command.run, parser=sub)
    return parser


def _command_list() -> str:
    """List the commands in groups; summaries fit a line of 80 columns."""
    width = max(map(len, COMMANDS))
    lines = []
    for group, names in GROUPS.items():
        lines += ["", f"{group}:", *(f"  {n:{width}}  {COMMANDS[n].SUMMARY}" for n in names)]
    return "\n".join(lines[1:])


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    _reuse_memory()
    give_streams()
    arguments = list(sys.argv[1:] if argv is None else argv)
    prefix = "gpusight"
    try:
        arguments = _as_command(arguments)
        named = [word for word in arguments[:1] if word in COMMANDS]
        prefix = " ".join((prefix, *named))
        # Declaring the options of every command takes as long as many commands run.
        parser = build_parser(named or COMMANDS)
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
        write_error(f"{prefix}: interrupted")
        return EXIT_INTERRUPTED
    except BaseException as error:  # a panic of Polars is no Exception
        if not is_unexpected(error):
            raise
        return _report(error, prefix, as_json=_wants_json(arguments))
    return code


_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
"""Parameters of `mallopt` of the C library of Linux."""
_MMAP_BYTES, _TRIM_BYTES = 32 << 20, 256 << 20


def _reuse_memory() -> None:
    """Have allocators use freed memory again: fresh pages cost more than most passes over them.

    Polars' allocator reads its settings when it is loaded: large pages, and what is free goes back
    after a moment, not after ten seconds, which would add a quarter to the peak. NumPy uses that of
    the C library, which would give every large array back to the system at once.
    """
    os.environ.setdefault("_RJEM_MALLOC_CONF", "thp:always,dirty_decay_ms:250,muzzy_decay_ms:0")
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):  # another C library than that of GNU
            library = ctypes.CDLL(None)
            library.mallopt(_M_MMAP_THRESHOLD, _MMAP_BYTES)
            library.mallopt(_M_TRIM_THRESHOLD, _TRIM_BYTES)


def _run_command(args: argparse.Namespace) -> int:
    """Run a command; a capture without the needed data is a result too, with exit code 2."""
    check_extension(args)
    try:
        code: int = args.run(args)
    except NotApplicableError as error:
        return present_absent(error, args)
    except CaptureMismatchError as error:
        show_differences(error)
        raise
    return code


def _wants_json(arguments: Sequence[str]) -> bool:
    """Return whether standard output is to be JSON; the arguments need not be valid."""
    if "record" in arguments[:1]:  # what follows are arguments of a program
        return False
    words = list(takewhile(lambda word: word != "--", arguments))
    to_file = any(word.startswith(("-o", "--output")) for word in words)
    is_json = "--format=json" in words or ("--format", "json") in pairwise(words)
    return is_json and not to_file


def _report(error: BaseException, prefix: str, *, as_json: bool = False) -> int:
    """Write the error as one line, below its traceback with `--debug`; as a document too."""
    if isinstance(error, OutputError):
        _abandon_stdout()
    if shows_tracebacks():
        import traceback

        write_to(sys.stderr, safe_lines("".join(traceback.format_exception(error))))
    if isinstance(error, MemoryError):
        error = GpusightError(
            "not enough memory",
            hint="close other programs, or select less with --steps or --window",
        )
    known = error if isinstance(error, GpusightError) else internal_error(error)
    if as_json and not isinstance(error, OutputError):
        with contextlib.suppress(OutputError, BrokenPipeError):  # the line below is still written
            write_out(error_json(known, prefix.rpartition(" ")[2]))
            flush_out()
    write_error(f"{prefix}: {safe_text(str(known))}")
    return known.exit_code


def run() -> NoReturn:
    """Run as a program, and exit without freeing memory table by table.

    Freeing the tables of a large capture takes longer than many commands.
    """
    # Looking for garbage every 700 objects takes a tenth of the start, and finds none in imports.
    gc.set_threshold(_OBJECTS_BETWEEN_COLLECTIONS)
    code = main()
    cache = sys.modules.get("gpusight.readers.column_cache")
    with contextlib.suppress(OSError):  # reported already, or a broken pipe
        for failure in cache.flush_caches() if cache is not None else ():
            write_error(f"gpusight: warning: {safe_text(failure)}")
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


def _as_command(arguments: list[str]) -> list[str]:
    """Read `help COMMAND` and a capture without a command; suggest what a typo meant."""
    if not arguments or arguments[0].startswith("-"):
        return arguments
    word, *others = arguments
    word = _SPELLINGS.get(word, word)
    if word == "help":
        return _as_command([*others[:1], "--help"])
    if word == "record":  # what follows are arguments of a program
        return [word, *others]
    if word in COMMANDS:
        return [word, *_without_sidecars(others)]
    if Path(word).exists():
        return ["diagnose", *_without_sidecars([word, *others])]
    near = difflib.get_close_matches(word, COMMANDS, n=1)
    hint = f"did you mean {near[0]}?" if near else "gpusight --help lists the commands"
    raise UsageError(f"no command or file {word!r}", hint=hint)


def _without_sidecars(words: list[str]) -> list[str]:
    """Leave out what `record` writes next to a capture: a glob such as `run*` names both."""
    if len(words) < 2:
        return words
    from gpusight.sniff import without_sidecars

    files = list(takewhile(lambda word: word != "--", words))  # then, arguments of a program
    return [*without_sidecars(files), *words[len(files) :]]


def _abandon_stdout() -> None:
    """Point standard output at the null device, so that the interpreter's last flush succeeds."""
    with open(os.devnull, "w") as nothing:  # noqa: PTH123 - os.devnull is a name, not a path to build
        os.dup2(nothing.fileno(), sys.stdout.fileno())
