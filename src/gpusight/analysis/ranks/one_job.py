"""Which captures are of one job, and which job is compared where there are several.

Captures of one job have different rank numbers, one world size, and were recorded at the same time.
Of several jobs the one that is clearly complete is compared; else nobody knows which one is meant,
and the answer is a map of jobs, ranks and files, with what to type for each.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import shlex
from collections import Counter, defaultdict
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import cached_property
from pathlib import PurePath
from typing import TYPE_CHECKING

import msgspec
import polars as pl

from gpusight.analysis.ranks.rank_identity import ORDER, without_rank
from gpusight.errors import CaptureMismatchError
from gpusight.results import Field, Fmt, TableResult
from gpusight.units import format_time

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator, Sequence

    from gpusight.analysis.ranks.rank_digest import RankDigest


MAX_APART_NS = 5_000_000_000
"""Captures of one job overlap; clocks of machines may differ by less than this."""
_DAY_NS = 24 * 3600 * 10**9
_MAX_NAMED = 4
"""Files that a command names one by one."""
FIELDS = (
    Field("job", "Job", Fmt.ID, "Captures with the same number seem to be of one job"),
    Field("rank", "Rank", Fmt.ID, "Number in that job"),
    Field("world_size", "Of", Fmt.ID, "Ranks of that job, as its captures record it"),
    Field("tool", "Tool", Fmt.TEXT, "What recorded it", shown=False),
    Field("recorded", "Recorded", Fmt.TEXT, "Begin of its first step (UTC)"),
    Field("name", "File", Fmt.NAME, "Capture, without the folder that all are in"),
    Field("file", "Path", Fmt.NAME, "Path of the capture", shown=False),
    Field("command", "Command", Fmt.TEXT, "Compares this job", shown=False),
)


@dataclass(frozen=True)
class CapturesOfJob:
    """Captures that seem to be of one job."""

    digests: tuple[RankDigest, ...]

    @cached_property
    def files(self) -> tuple[str, ...]:
        """Their files, each once."""
        return tuple(dict.fromkeys(digest.file for digest in self.digests))

    @cached_property
    def numbers(self) -> Counter[int]:
        """Ranks that the captures name; those by order of processes are not among them."""
        return Counter(rank for rank in map(_named_rank, self.digests) if rank is not None)

    @property
    def repeats(self) -> bool:
        """Whether a rank is there more than once."""
        return max(self.numbers.values(), default=0) > 1

    @property
    def world_size(self) -> int | None:
        """How many ranks the job has; None where no capture records it."""
        return max((d.world_size for d in self.digests if d.world_size), default=None)

    @property
    def is_complete(self) -> bool | None:
        """Whether all ranks are here; None where no capture records how many there are."""
        return None if self.world_size is None else len(self.digests) >= self.world_size

    @cached_property
    def span_ns(self) -> tuple[int, int] | None:
        """From the first step to the last one, by the time of day; None where not recorded."""
        spans = [span for span in map(span_of, self.digests) if span is not None]
        return (min(s for s, _ in spans), max(e for _, e in spans)) if spans else None

    def joined(self, other: CapturesOfJob) -> CapturesOfJob:
        """Return both as one."""
        return CapturesOfJob((*self.digests, *other.digests))

    def why_not(self, other: CapturesOfJob) -> str:
        """Return why captures cannot be of this job; empty where nothing contradicts it."""
        sizes = (other.world_size, self.world_size)
        if None not in sizes and sizes[0] != sizes[1]:
            return f"of another job: {sizes[0]} ranks in all, others have {sizes[1]}"
        both = sorted(self.numbers.keys() & other.numbers.keys())
        if both:
            first = next(d.file for d in self.digests if _named_rank(d) == both[0])
            return f"rank {both[0]} again, as in {PurePath(first).name}"
        apart_ns = _apart_ns(self.span_ns, other.span_ns)
        if apart_ns > MAX_APART_NS:
            return f"of another job: recorded {format_apart(apart_ns)} apart from the others"
        size = next((size for size in sizes if size is not None), None)
        total = len(self.digests) + len(other.digests)
        if size is not None and total > size:
            return f"of another job: with it there are {total} ranks, and the job has {size}"
        return ""


def one_job(
    digests: Sequence[RankDigest],
) -> tuple[tuple[RankDigest, ...], list[tuple[RankDigest, str]]]:
    """Return the ranks of one job, and the others with the reason why they are left out.

    Raises `CaptureMismatchError`, whose table maps ranks to files, where no job is the obvious one.
    """
    distinct, copies = _distinct(digests)
    jobs = jobs_of(distinct)
    if len(jobs) < 2:
        return distinct, copies
    chosen = _obvious(jobs)
    if chosen is None:
        raise CaptureMismatchError(_what(jobs), hint=_hint(jobs, digests), table=_map(jobs))
    others = [job for job in jobs if job is not chosen]
    left_out = [
        (digest, chosen.why_not(CapturesOfJob((digest,))) or chosen.why_not(job))
        for job in others
        for digest in job.digests
    ]
    return chosen.digests, [*copies, *left_out]


def _distinct(
    digests: Sequence[RankDigest],
) -> tuple[tuple[RankDigest, ...], list[tuple[RankDigest, str]]]:
    """Leave out copies of a capture under another name."""
    first: dict[bytes, RankDigest] = {}
    copies = []
    for digest in digests:
        content = msgspec.json.encode(msgspec.structs.replace(digest, file=""))
        known = first.setdefault(content, digest)
        if known is not digest and known.file != digest.file:
            copies.append((digest, f"the same capture as {PurePath(known.file).name}"))
    left_out = {id(digest) for digest, _ in copies}
    return tuple(d for d in digests if id(d) not in left_out), copies


def jobs_of(digests: Sequence[RankDigest]) -> list[CapturesOfJob]:
    """Split captures into jobs, the largest one first.

    Captures of one kind (world size, tool, name but for its numbers) belong together, unless ranks
    repeat; then kinds that nothing keeps apart are joined.
    """
    by_file: dict[str, list[RankDigest]] = defaultdict(list)
    for digest in digests:
        by_file[digest.file].append(digest)
    files = [CapturesOfJob(tuple(own)) for own in by_file.values()]
    parts = [part for kind in _grouped(files, _kind) for part in _separated(kind)]
    parts.sort(key=lambda part: (-len(part.digests), part.span_ns or (0, 0), part.files[0]))
    jobs: list[CapturesOfJob] = []
    for part in parts:
        at = next((at for at, job in enumerate(jobs) if not job.why_not(part)), None)
        if at is None:
            jobs.append(part)
        else:
            jobs[at] = jobs[at].joined(part)
    return jobs


def _kind(file: CapturesOfJob) -> Hashable:
    name = without_rank(file.files[0])
    return file.world_size, file.digests[0].tool, re.sub(r"\d+", "#", name)


def _grouped(
    files: Sequence[CapturesOfJob], key: Callable[[CapturesOfJob], Hashable]
) -> list[list[CapturesOfJob]]:
    groups: dict[Hashable, list[CapturesOfJob]] = defaultdict(list)
    for file in files:
        groups[key(file)].append(file)
    return list(groups.values())


def _separated(kind: Sequence[CapturesOfJob]) -> Iterator[CapturesOfJob]:
    """Split captures of one kind where ranks repeat, or where they have no numbers."""
    whole = _together(kind)
    if not whole.repeats and whole.numbers:
        yield whole
        return
    for own in (
        _grouped(kind, lambda file: without_rank(file.files[0])) if whole.repeats else [kind]
    ):
        if whole.numbers and not _together(own).repeats:
            yield _together(own)
        else:
            yield from _by_time(own)


def _by_time(files: Sequence[CapturesOfJob]) -> Iterator[CapturesOfJob]:
    """Split captures where nothing was recorded for a while."""
    run: list[CapturesOfJob] = []
    for file in sorted(files, key=lambda file: file.span_ns or (0, 0)):
        if run and _apart_ns(_together(run).span_ns, file.span_ns) > MAX_APART_NS:
            yield _together(run)
            run = []
        run.append(file)
    yield _together(run)


def _together(files: Sequence[CapturesOfJob]) -> CapturesOfJob:
    return CapturesOfJob(tuple(digest for file in files for digest in file.digests))


def _obvious(jobs: Sequence[CapturesOfJob]) -> CapturesOfJob | None:
    """Return the only job of several ranks, or the only complete one of them."""
    several = [job for job in jobs if len(job.digests) > 1]
    if len(several) > 1 and None not in {job.is_complete for job in several}:
        several = [job for job in several if job.is_complete]
    return several[0] if len(several) == 1 else None


def _named_rank(digest: RankDigest) -> int | None:
    return None if digest.rank_from == ORDER else digest.rank


def span_of(digest: RankDigest) -> tuple[int, int] | None:
    """Return when its steps begin and end by the time of day; None where that is not recorded."""
    if digest.start_utc_ns is None or not digest.steps:
        return None
    begin, end = digest.steps[0].start_ns, digest.steps[-1].end_ns
    return digest.start_utc_ns + begin, digest.start_utc_ns + end


def _apart_ns(one: tuple[int, int] | None, other: tuple[int, int] | None) -> int:
    """Return the time between two spans; 0 where they overlap, or where one is not known."""
    if one is None or other is None:
        return 0
    return max(0, one[0] - other[1], other[0] - one[1])


def format_apart(ns: int) -> str:
    """Write how far captures are apart."""
    days = round(ns / _DAY_NS)
    return f"{days:,} days" if days > 1 else format_time(ns, digits=3)


# What to type, and the map --------------------------------------------------------------------


def _what(jobs: Sequence[CapturesOfJob]) -> str:
    ranks = sum(len(job.digests) for job in jobs)
    return f"these captures are of {len(jobs)} jobs or runs, with {ranks} ranks in all"


def _hint(jobs: Sequence[CapturesOfJob], digests: Sequence[RankDigest]) -> str:
    names = [_arguments(job, digests) for job in jobs[:_MAX_NAMED]]
    more = ", …" if len(jobs) > _MAX_NAMED else ""
    return f"name the captures of one: {' or '.join(names)}{more}"


def _arguments(job: CapturesOfJob, digests: Sequence[RankDigest]) -> str:
    """Return what names these files on a command line, and no other one."""
    if len(job.files) == 1:
        return shlex.quote(job.files[0])
    start = _common_start(job.files)
    end = _common_start([file[len(start) :][::-1] for file in job.files])[::-1]
    varying = [file[len(start) : len(file) - len(end)] for file in job.files]
    pattern = f"{glob.escape(start)}*{glob.escape(end)}"
    others = {digest.file for digest in digests} - set(job.files)
    if not any(map(os.path.dirname, varying)) and not fnmatch.filter(others, pattern):
        return shlex.quote(pattern)
    more = " …" if len(job.files) > _MAX_NAMED else ""
    return " ".join(map(shlex.quote, job.files[:_MAX_NAMED])) + more


def _common_start(texts: Sequence[str]) -> str:
    low, high = min(texts), max(texts)
    same = (at for at, (a, b) in enumerate(zip(low, high, strict=False)) if a != b)
    return low[: next(same, min(len(low), len(high)))]


def _map(jobs: Sequence[CapturesOfJob]) -> TableResult:
    """Return which capture holds which rank of which job."""
    every = [digest for job in jobs for digest in job.digests]
    folder = len(_common_start([digest.file for digest in every]).rpartition("/")[0])
    rows = [
        (
            number,
            digest.rank,
            job.world_size,
            digest.tool,
            _recorded(digest),
            digest.file[folder:].lstrip("/"),
            digest.file,
            f"gpusight ranks {_arguments(job, every)}",
        )
        for number, job in enumerate(jobs, 1)
        for digest in sorted(job.digests, key=lambda d: (d.rank is None, d.rank or 0, d.file))
    ]
    types = {Fmt.ID: pl.Int64}
    schema = {field.key: types.get(field.fmt, pl.String) for field in FIELDS}
    frame = pl.DataFrame(rows, schema=schema, orient="row")
    return TableResult("ranks", "Jobs among these captures", FIELDS, frame)


def _recorded(digest: RankDigest) -> str | None:
    span = span_of(digest)
    if span is None:
        return None
    return f"{datetime.fromtimestamp(span[0] // 10**9, timezone.utc):%Y-%m-%d %H:%M:%S}"
