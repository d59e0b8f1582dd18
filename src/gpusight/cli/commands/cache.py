"""`gpusight cache`: show or clear the cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpusight.cli import options
from gpusight.cli.output import present
from gpusight.render.result_view import Page
from gpusight.results import Composite, Fact, Fmt

if TYPE_CHECKING:
    import argparse

SUMMARY = "show or clear the cache"
DESCRIPTION = (
    "gpusight caches tables of captures in the user's cache folder, which makes later commands "
    "faster. It is safe to delete at any time. GPUSIGHT_CACHE_DIR moves it to an empty folder, "
    "GPUSIGHT_CACHE_BYTES limits its size (default 20 GB; the oldest captures are removed first)."
)
EXAMPLES: tuple[str, ...] = ("gpusight cache", "gpusight cache clear")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "action",
        nargs="?",
        choices=("info", "clear"),
        default="info",
        help="`info` shows its folder and size; `clear` deletes its contents",
    )
    options.add_output(parser)


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    from gpusight.readers.cache_folder import cache_info, clear_cache

    clearing = args.action == "clear"
    state = clear_cache() if clearing else cache_info()
    facts = (
        Fact("folder", "Folder", str(state.folder), Fmt.TEXT, "Folder of the cache"),
        Fact("captures", "Captures", state.captures, Fmt.COUNT, "Captures with cached tables"),
        Fact("bytes", "Size", state.bytes, Fmt.BYTES, "Disk space it uses"),
    )
    title = "Deleted from the cache" if clearing else "Cache"
    return present(Page(Composite("cache", title, facts, (), notes=state.notes)), args)
