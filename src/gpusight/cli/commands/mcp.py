"""`gpusight mcp`: captures for coding agents, over the Model Context Protocol."""

from __future__ import annotations

import importlib.util
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING

from gpusight.cli import options
from gpusight.cli.output import flush_out, write_out
from gpusight.errors import DOCS_URL, UsageError

if TYPE_CHECKING:
    import argparse

SUMMARY = "captures for coding agents (Model Context Protocol)"
DESCRIPTION = (
    "Serve the captures in folders to a coding agent, over the Model Context Protocol: diagnose, "
    "explain, whatif, compare, SQL. Answers are short and name ids that `explain` resolves. The "
    "server reads captures in these folders only, and runs programs only with --allow-run. By "
    "default it speaks on its standard input and output, as agents expect; with --http at an "
    "address of this machine with a random token. Needs the extra: pip install 'gpusight[mcp]'. "
    f"Docs: {DOCS_URL}/agents.md"
)
EXAMPLES: tuple[str, ...] = (
    "gpusight mcp",
    "gpusight mcp profiles/ --allow-run",
    "claude mcp add gpusight -- gpusight mcp profiles/",
    "gpusight mcp profiles/ --http --port 8765",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "folders",
        metavar="FOLDER",
        nargs="*",
        type=Path,
        help="folders with captures (default: the current folder)",
    )
    parser.add_argument(
        "--allow-run",
        action="store_true",
        help="allow the agent to run programs under a profiler",
    )
    parser.add_argument(
        "--http", action="store_true", help="serve HTTP on this machine instead of stdio"
    )
    parser.add_argument(
        "--port",
        type=options.port,
        default=0,
        metavar="N",
        help="the local port of --http (default: a free one)",
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    if importlib.util.find_spec("mcp") is None:
        raise UsageError("the package mcp is missing", hint="pip install 'gpusight[mcp]'")
    if args.port and not args.http:
        raise UsageError("--port is for --http", hint="add --http")
    from gpusight.mcp import protocol
    from gpusight.mcp.workspace import Workspace

    def show_address(url: str) -> None:
        write_out(f"{url}  (Ctrl-C to stop)\n")
        flush_out()

    workspace = Workspace(args.folders or [Path.cwd()], allow_run=args.allow_run)
    with closing(workspace):
        if args.http:
            protocol.serve_http(workspace, args.port, show_address)
        else:
            protocol.serve_stdio(workspace)
    return 0
