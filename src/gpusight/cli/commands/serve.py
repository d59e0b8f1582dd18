"""`gpusight serve`: the timeline in the browser."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

from gpusight.cli import options
from gpusight.cli.output import flush_out, write_error, write_out
from gpusight.errors import DOCS_URL
from gpusight.render.cell_text import safe_text

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator

    from gpusight.web.server import Server

SUMMARY = "interactive timeline in the browser, with findings"
DESCRIPTION = (
    "Show captures of any size as a timeline in the browser: streams, threads, ranges, operators, "
    "copies, GPU metrics, memory, and where the time goes. Click an event for its details, search, "
    "measure, jump from a finding to its location. Two captures are shown side by side and "
    "compared; the captures of all ranks of a job, or a folder of them, are one timeline on one "
    "clock, with a heat map of ranks and steps; an Nsight Compute report adds its metrics to the "
    "kernels. The server listens on "
    "this machine only, at an address with a random token, until Ctrl-C. "
    f"Docs: {DOCS_URL}/serve.md"
)
EXAMPLES: tuple[str, ...] = (
    "gpusight serve run.nsys-rep",
    "gpusight serve trace.json.gz --open",
    "gpusight serve before.nsys-rep after.nsys-rep",
    "gpusight serve traces/",
    "gpusight serve run.nsys-rep kernels.ncu-rep --port 8765",
)
_TICK_S = 0.2


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    options.add_capture(parser, nargs="+")
    group = parser.add_argument_group("server")
    group.add_argument(
        "--port",
        type=options.port,
        default=0,
        metavar="N",
        help="the local port to listen on (default: a free one)",
    )
    group.add_argument("--open", action="store_true", help="open the page in the browser")
    options.add_pace(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    from gpusight.web.server import serve

    cache = not args.no_cache
    with (
        _stop_event() as stopped,
        serve(args.file, port=args.port, cache=cache, pace=args.pace) as server,
    ):
        _print_address(server, args)
        _wait(server, stopped)
    return 0


@contextlib.contextmanager
def _stop_event() -> Iterator[threading.Event]:
    """Return an event that SIGINT and SIGTERM set; a second signal ends the process."""
    import signal

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


def _print_address(server: Server, args: argparse.Namespace) -> None:
    import webbrowser

    write_out(f"{server.url}  (Ctrl-C to stop)\n")
    flush_out()  # a program that started us waits for this line
    if args.open and not webbrowser.open(server.url):
        write_error("gpusight serve: no browser found; open the address in one")


def _wait(server: Server, stopped: threading.Event) -> None:
    """Wait for a signal; print failures meanwhile."""
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
                write_error(f"gpusight serve: {safe_text(failure)}")
                reported.add(failure)
