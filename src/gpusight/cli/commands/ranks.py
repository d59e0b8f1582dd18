"""`gpusight ranks`: all ranks of a job: who is slow, why, and what it costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import gpusight as gs
from gpusight.cli import options
from gpusight.cli.output import chosen_format, present
from gpusight.errors import DOCS_URL, UsageError

if TYPE_CHECKING:
    import argparse


SUMMARY = "all ranks of a job: who is late, why, and what it costs"
DESCRIPTION = (
    "Compares the ranks of a distributed job: time per step in compute, copies, transfers, waits "
    "for other ranks and idle; who arrives last in collectives; stragglers with their cause, and "
    "the step time without them. Clocks of the ranks need not agree. Pass the captures of all "
    "ranks (nsys, torch.profiler, JAX), a folder, or a quoted glob; several processes in one nsys "
    "file are several ranks. `gpusight ranks digest CAPTURE… -o FILE.ranks` writes what the "
    "analysis needs of ranks (kilobytes), and `gpusight ranks merge FILE.ranks…` compares them: on "
    f"a cluster, traces need not move. Method: {DOCS_URL}/ranks.md"
)
EXAMPLES: tuple[str, ...] = (
    "gpusight ranks trace.rank*.json.gz",
    "gpusight ranks traces/",
    "gpusight ranks job.nsys-rep --format json -o ranks.json",
    "gpusight ranks digest trace.rank3.json.gz -o rank3.ranks",
    "gpusight ranks merge rank*.ranks",
)
_DIGEST, _MERGE = "digest", "merge"
_DIGESTS = "digests"
_FORMATS = (*options.TABLE_FORMATS, "html", "svg", "png", "pdf", _DIGESTS)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "captures",
        metavar="CAPTURE",
        nargs="+",
        help="captures of all ranks, a folder or quoted glob of them; before them optionally "
        f"`{_DIGEST}`, to write digests to the file of -o, or `{_MERGE}`, to compare digests",
    )
    options.add_focus(parser)
    parser.add_argument(
        "--jobs",
        type=options.count,
        metavar="N",
        help="processes that read captures (default: as many as there are CPUs)",
    )
    add_cluster(parser)
    options.add_output(parser, formats=_FORMATS)


def add_cluster(parser: argparse.ArgumentParser) -> None:
    """Declare where captures are read."""
    group = parser.add_argument_group("Dask cluster (needs the extra gpusight[cluster])")
    group.add_argument(
        "--dask",
        metavar="ADDRESS",
        help="read captures on the workers of this scheduler, such as tcp://node0:8786 (default: "
        "that of DASK_SCHEDULER_ADDRESS, if set; otherwise processes of this machine)",
    )
    group.add_argument(
        "--dask-scheduler-file", metavar="FILE", help="the scheduler that wrote this file"
    )


def run(args: argparse.Namespace) -> int:
    """Run the command; returns the exit code."""
    reading = {
        **options.focus(args),
        "cache": not args.no_cache,
        "jobs": args.jobs,
        "dask": args.dask,
        "dask_scheduler_file": args.dask_scheduler_file,
    }
    action = args.captures[0] if not Path(args.captures[0]).exists() else ""
    files = args.captures[1:] if action in (_DIGEST, _MERGE) else args.captures
    if not files:
        raise UsageError(f"{action} needs files", hint=f"write: gpusight ranks {action} FILE…")
    if action == _DIGEST or chosen_format(args) == _DIGESTS:
        if not args.output:
            raise UsageError("digests are written to a file", hint="add: -o rank0.ranks")
        gs.rank_digest(files, args.output, **reading)
        return 0
    result = gs.ranks(files, **reading)
    return present(result, args)
