"""The captures of all ranks of a job, opened as one trace: for pages, reports and exports."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import TYPE_CHECKING

import numpy as np
import polars as pl
from msgspec import structs

from gpusight.comparison.digest import DigestFinding, JobDigest
from gpusight.errors import UsageError
from gpusight.rank_files import job_operations, rank_captures, read_ranks
from gpusight.results import NotApplicable
from gpusight.sniff import encodable_text
from gpusight.trace.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Sequence

    from gpusight.analysis.ranks.aligned_ranks import AlignedTrace
    from gpusight.analysis.ranks.job_ranks import JobRanks
    from gpusight.analysis.ranks.straggler_causes import Straggler
    from gpusight.comparison.digest import Digest
    from gpusight.trace.trace import Capture


@dataclass(frozen=True)
class OpenedJob:
    """A job whose captures are open."""

    answer: JobRanks
    trace: AlignedTrace
    """Its ranks as one trace on one clock."""
    left_out: tuple[int, ...] = ()
    """Ranks that the trace lacks because there are too many."""


def is_job_folder(path: Path) -> bool:
    """Return whether a folder holds several captures, rather than being one."""
    from gpusight.comparison.inputs import side_inputs

    return path.is_dir() and len(side_inputs([os.fspath(path)]).paths) > 1


def is_job(captures: Sequence[Capture]) -> bool:
    """Return whether these are captures of several ranks: a folder, a pattern, or numbered files.

    Two captures without such numbers are a run before and after a change.
    """
    from gpusight.analysis.ranks.rank_identity import rank_in_name

    paths = [Path(c) for c in captures if not isinstance(c, Trace)]
    if len(paths) == 1 == len(captures):
        return is_job_folder(paths[0]) or ("*" in paths[0].name and not paths[0].exists())
    ranks = [rank_in_name(os.fspath(path)) for path in paths]
    several = 1 < len(paths) == len(captures) and None not in ranks
    return several and len(set(ranks)) == len(ranks)


def open_job(
    captures: Sequence[Capture], *, cache: bool = True, most: int | None = None
) -> OpenedJob:
    """Read all ranks of a job, and open their captures as one trace.

    Of more than `most` ranks, the trace has the stragglers, those that others wait for most, and
    the first ones.
    """
    from gpusight.analysis.ranks.aligned_ranks import align_ranks
    from gpusight.analysis.ranks.job_ranks import job_ranks
    from gpusight.readers.open import open_trace

    expanded = rank_captures(captures)
    if job_operations(expanded) is not None:
        raise UsageError(f"{expanded[0]} has operations, no timeline", hint="use: gpusight ranks")
    digests, unread = read_ranks(expanded, cache=cache)
    answer = job_ranks(digests, unread)
    if isinstance(answer, NotApplicable):
        raise answer.error()
    kept = set(_opened_first(answer)[: most or None])
    files = {rank.file for rank in answer.ranks if rank.rank in kept}
    traces = [
        capture if isinstance(capture, Trace) else open_trace(capture, cache=cache)
        for capture in expanded
        if (capture.meta.path if isinstance(capture, Trace) else os.fspath(capture)) in files
    ]
    if not traces:
        hint = "name the captures that the digests were made of"
        raise UsageError("digests of ranks have no timeline", hint=hint)
    left_out = tuple(rank.rank for rank in answer.ranks if rank.file not in files)
    return OpenedJob(answer, align_ranks(answer, traces), left_out)


def jobs_among(paths: Sequence[Path]) -> list[list[Path]]:
    """Split captures to compare into jobs and single captures, in their order.

    Those of one folder are a job where all names have the number of a rank, each another one;
    else they are repeats.
    """
    from gpusight.analysis.ranks.rank_identity import rank_in_name

    of_folder: dict[Path, list[Path]] = {}
    for path in paths:
        of_folder.setdefault(path.parent, []).append(path)
    groups: list[list[Path]] = []
    for own in of_folder.values():
        ranks = [rank_in_name(path.name) for path in own]
        is_job = len(own) > 1 and None not in ranks and len(set(ranks)) == len(ranks)
        groups += [own] if is_job else [[path] for path in own]
    return groups


def with_ranks(digest: Digest, captures: Sequence[Path], *, cache: bool = True) -> Digest:
    """Add what all ranks of a job show to the digest of its first capture."""
    from gpusight.analysis.ranks.job_ranks import job_ranks

    ranks, unread = read_ranks(captures, cache=cache)
    answer = job_ranks(ranks, unread)
    if isinstance(answer, NotApplicable):
        raise answer.error()
    return ranks_added(digest, answer, captures[0].absolute().parent.name)


def ranks_added(digest: Digest, answer: JobRanks, folder: str) -> Digest:
    """Add what the comparison of all ranks shows to the digest of one."""
    return structs.replace(
        digest,
        label=encodable_text(f"{folder} ({len(answer.ranks)} ranks)"),
        findings=(*digest.findings, *map(_straggler_finding, answer.stragglers)),
        job=_job_digest(answer, len(digest.blocks)),
        notes=(*digest.notes, *map(encodable_text, answer.notes)),
    )


def _straggler_finding(straggler: Straggler) -> DigestFinding:
    return DigestFinding(
        rule=f"straggler/rank-{straggler.rank}",
        title=f"rank {straggler.rank} is late ({straggler.cause})",
        step_ns=straggler.recoverable_ns,
        share=straggler.share,
        confidence="high",
    )


def _job_digest(answer: JobRanks, blocks: int) -> JobDigest:
    assert answer.by_step is not None, "a job with captures has steps"
    exposed = pl.col("transfer_ns") + pl.col("wait_ns").fill_null(0)
    by_step = answer.by_step.group_by("step").agg(
        pl.col("step_ns").mean(),
        pl.col("wait_ns").mean(),
        exposed.mean().alias("communication_ns"),
    )
    by_step = by_step.sort("step")

    def series(column: str) -> tuple[float, ...]:
        # Blocks of a digest that has more steps than all ranks share repeat the nearest ones.
        values = by_step[column].fill_null(0.0).to_numpy()
        at = np.arange(max(blocks, len(values))) * len(values) // max(blocks, len(values))
        parts = np.array_split(values[at], blocks)
        return tuple(round(float(part.mean())) for part in parts)

    known = by_step["wait_ns"].null_count() < by_step.height
    costs = [straggler.share for straggler in answer.stragglers]
    return JobDigest(
        ranks=len(answer.ranks),
        step_ns=series("step_ns"),
        communication_ns=series("communication_ns"),
        wait_ns=series("wait_ns") if known else None,
        straggler_share=max(costs, default=0.0) if answer.meta["steps"] else None,
        missing=_missing(answer),
    )


def _missing(answer: JobRanks) -> str:
    """Name the ranks that are not among the captures, or cannot be read."""
    ranks = answer.meta["missing_ranks"]
    if ranks:
        shown = ", ".join(map(str, ranks[:3])) + (", …" if len(ranks) > 3 else "")
        word = "rank" if len(ranks) == 1 else "ranks"
        return f"{word} {shown} of {answer.meta['world_size']} missing, which may be late"
    unread = [PurePath(rank.file).name for rank in answer.unread if rank.rank is None]
    return f"not read: {', '.join(unread[:3])}" if unread else ""


def _opened_first(answer: JobRanks) -> list[int]:
    """Order ranks by how much they explain."""
    stragglers = [straggler.rank for straggler in answer.stragglers]
    blamed = sorted(answer.ranks, key=lambda rank: -(rank.caused_wait_ns or 0))[:2]
    every = (*stragglers, *(rank.rank for rank in blamed), *(rank.rank for rank in answer.ranks))
    return list(dict.fromkeys(every))
