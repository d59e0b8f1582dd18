"""`gpusight serve`: the timeline in the browser."""

from __future__ import annotations

import argparse
import contextlib
from typing import TYPE_CHECKING

from gpusight.cli import options

if TYPE_CHECKING:
    import threading
    from collections.abc import Iterator

    from gpusight.web.server import Server

SUMMARY = "interactive timeline in the browser, with findings"
DESCRIPTION = (
    "Shows captures of any size as a timeline in the browser: streams, threads, ranges, operators, "
    "copies, GPU metrics, memory, and where the time goes. Click an event for all that is known of "
    "it, search, measure, jump from a finding to where it happens. Two captures stand side by side "
    "and are compared; an Nsight Compute report adds its counters to the kernels. The server "
    "answers on this machine only, at an address that nobody can guess, and stops with Ctrl-C. "
    "docs/serve.md explains it."
)
EXAMPLES: tuple[str, ...] = (
    "gpusight serve run.nsys-rep",
    "gpusight serve trace.json.gz --open",
    "gpusight serve before.nsys-rep after.nsys-rep",
    "gpusight serve run.nsys-rep kernels.ncu-rep --port 8765",
)
_MOST_PORT = 65_535
_TICK_S = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser, nargs="+")
    group = parser.add_argument_group("where")
    group.add_argument(
        "--port",
        type=_port,
        default=0,
        metavar="N",
        help="the port of this machine to answer on (default: one that is free)",
    )
    group.add_argument("--open", action="store_true", help="open the page in the browser")


def _port(text: str) -> int:
    value = options.number(text)
    if value > _MOST_PORT:
        raise argparse.ArgumentTypeError(f"{text!r} is not a port from 1 to {_MOST_PORT}")
    return value


def run(args: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from gpusight.web.server import serve

    cache = not args.no_cache
    with _told_to_stop() as stopped, serve(args.file, port=args.port, cache=cache) as server:
        _say_where(server, args)
        _wait(server, stopped)
    return 0


@contextlib.contextmanager
def _told_to_stop() -> Iterator[threading.Event]:
    """Give an event that Ctrl-C and a request to terminate set; a second one ends at once."""
    import signal
    import threading

    stopped = threading.Event()
    usual = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def restore() -> None:
        for number, handler in usual.items():
            signal.signal(number, handler)

    def stop(*_: object) -> None:
        stopped.set()
        restore()

    for number in usual:
        signal.signal(number, stop)
    try:
        yield stopped
    finally:
        restore()


def _say_where(server: Server, args: argparse.Namespace) -> None:
    import webbrowser

    from gpusight.cli.output import flush_out, write_error, write_out

    write_out(f"{server.url}  (Ctrl-C stops it)\n")
    flush_out()  # whoever started it as a program waits for this line
    if args.open and not webbrowser.open(server.url):
        write_error("gpusight: serve: no browser was found; open the address in one")


def _wait(server: Server, stopped: threading.Event) -> None:
    """Wait until somebody stops it; say meanwhile what cannot be shown."""
    from gpusight.cli.output import write_error
    from gpusight.render.cell_text import safe_text
    from gpusight.web.pool import return_large_blocks

    reported: set[str] = set()
    computing = True
    while not stopped.wait(_TICK_S):
        server.check()
        if computing and server.is_finished:
            computing = False
            return_large_blocks()
        for failure in server.failures:
            if failure not in reported:
                write_error(f"gpusight: serve: {safe_text(failure)}")
                reported.add(failure)
