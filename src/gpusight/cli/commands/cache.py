"""`gpusight cache`: what the cache holds, and emptying it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.cli import options

if TYPE_CHECKING:
    import argparse

SUMMARY = "show or clear the cache"
DESCRIPTION = (
    "Tables read from captures are kept in the user's cache folder, so that a second question is "
    "answered faster. It is safe to delete at any time. GPUSIGHT_CACHE_DIR moves it to an empty "
    "folder, GPUSIGHT_CACHE_BYTES limits its size (20 GB by default; the oldest captures go first)."
)
EXAMPLES: tuple[str, ...] = ("gpusight cache", "gpusight cache clear")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "action",
        nargs="?",
        choices=("info", "clear"),
        default="info",
        help="`info` shows where it is and what it holds; `clear` deletes what gpusight put there",
    )
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Do it; gives the exit code."""
    from gpusight.cli.output import present
    from gpusight.readers.cache_folder import cache_info, clear_cache
    from gpusight.render.result_view import Page
    from gpusight.results import Composite, Fact, Fmt

    clearing = args.action == "clear"
    state = clear_cache() if clearing else cache_info()
    facts = (
        Fact("folder", "Folder", str(state.folder), Fmt.TEXT, "Where the cache is"),
        Fact("captures", "Captures", state.captures, Fmt.COUNT, "Captures it holds tables of"),
        Fact("bytes", "Size", state.bytes, Fmt.BYTES, "Disk space it takes"),
    )
    title = "Deleted from the cache" if clearing else "Cache"
    return present(Page(Composite("cache", title, facts, (), notes=state.notes)), args)
