"""Captures of all ranks to digests: in processes of this machine, none dropped silently.

`python -m gpusight.rank_files` is such a process: it reads a request a line and answers each with a
line. A process of its own needs no `if __name__ == "__main__"` in the user's script, and one that
is killed takes only its rank with it.
"""

from __future__ import annotations

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from queue import SimpleQueue
from typing import TYPE_CHECKING, Protocol

import msgspec

from gpusight.analysis.ranks.job_ranks import UnreadRank
from gpusight.analysis.ranks.rank_digest import (
    FORMAT,
    RankDigest,
    decode_digests,
    encode_digests,
    rank_digests,
)
from gpusight.errors import CaptureError, GpusightError, UsageError
from gpusight.results import NotApplicable
from gpusight.trace.trace import Trace

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    import polars as pl

    from gpusight.trace.trace import Capture


DIGEST_SUFFIX = ".ranks"
"""What files of digests end in, so that a folder of them can be given."""
_FIRST_BYTES = len('{"format":""}') + len(FORMAT)
WORKER = (sys.executable, "-m", "gpusight.rank_files")
"""The command line of a process that reads captures."""
_SMALL_BYTES = 16_000_000
"""Captures that are no larger together are read about as fast by one process as by two."""
_TRIES = 2
"""How often a capture is read whose process died: it may have been killed for memory."""


class DigestRequest(msgspec.Struct, frozen=True):
    """A capture to read, and how."""

    path: str
    steps: str | None = None
    window: tuple[int | None, int | None] | None = None
    warmup: bool = False
    cache: bool = True


class DigestReply(msgspec.Struct, frozen=True):
    """The digests of a capture, or why there are none."""

    digests: tuple[RankDigest, ...] = ()
    reason: str = ""


class DigestReader(Protocol):
    """Reads captures elsewhere than in processes of this machine."""

    def read(self, requests: Sequence[DigestRequest], /) -> list[DigestReply]:
        """Return a reply for each request, in their order."""
        ...


def rank_captures(texts: Sequence[Capture]) -> list[Path | Trace]:
    """Expand folders and globs; a folder of digests gives those where it has no captures."""
    from gpusight.comparison.inputs import side_inputs

    paths: list[Path | Trace] = []
    for text in texts:
        if isinstance(text, Trace):
            paths.append(text)
            continue
        path = Path(text)
        digests = sorted(path.glob(f"*{DIGEST_SUFFIX}")) if path.is_dir() else []
        paths += digests or side_inputs([os.fspath(text)]).paths
    unique = {os.fspath(p) if isinstance(p, Path) else p: p for p in paths}
    if not unique:
        raise UsageError("no captures to read", hint="name the captures of all ranks")
    return list(unique.values())


def job_operations(captures: Sequence[Path | Trace]) -> pl.DataFrame | None:
    """Read the operations of a job trace, which has all workers; None where there is none."""
    from gpusight.readers.job_trace import is_job_trace, read_job_operations

    jobs = [c for c in captures if isinstance(c, Path) and is_job_trace(c)]
    if not jobs:
        return None
    if len(captures) > 1:
        raise UsageError(f"{jobs[0]} has all ranks of a job", hint="pass one job trace alone")
    return read_job_operations(jobs[0])


def read_ranks(
    captures: Sequence[Path | Trace],
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    cache: bool = True,
    jobs: int | None = None,
    cluster: DigestReader | None = None,
) -> tuple[list[RankDigest], list[UnreadRank]]:
    """Read all captures; a rank that cannot be read is returned with the reason.

    Without a cluster, processes of this machine read them.
    """
    replies: dict[int, tuple[str, DigestReply]] = {}
    requests: dict[int, DigestRequest] = {}
    for number, capture in enumerate(captures):
        if isinstance(capture, Trace):
            reply = _digest_trace(capture, steps=steps, window=window, warmup=warmup)
            replies[number] = (capture.meta.path, reply)
        elif is_digest_file(capture):
            replies[number] = (str(capture), _stored(capture))
        else:
            requests[number] = DigestRequest(str(capture), steps, window, warmup, cache)
    processes = min(len(requests), jobs or _useful_processes(requests.values()))
    if cluster is not None and requests:
        answers = cluster.read(list(requests.values()))
    elif processes <= 1:
        answers = [digest_capture(request) for request in requests.values()]
    else:
        answers = _in_processes(list(requests.values()), processes)
    for number, reply in zip(requests, answers, strict=True):
        replies[number] = (requests[number].path, reply)
    ordered = [replies[number] for number in range(len(captures))]
    digests = [digest for _, reply in ordered for digest in reply.digests]
    return digests, [UnreadRank(path, reply.reason) for path, reply in ordered if reply.reason]


def _useful_processes(requests: Iterable[DigestRequest]) -> int:
    """Return one where captures are read before other processes would have started."""
    total = 0
    for request in requests:
        path = Path(request.path)
        # What is no plain file, such as an exported folder, counts as large.
        total += path.stat().st_size if path.is_file() else _SMALL_BYTES + 1
    return 1 if total <= _SMALL_BYTES else os.cpu_count() or 1


def is_digest_file(path: Path) -> bool:
    """Return whether a file holds digests, by its first bytes."""
    try:
        with path.open("rb") as file:
            start = file.read(_FIRST_BYTES)
    except OSError:
        return False
    return start.startswith(f'{{"format":"{FORMAT}"'.encode())


def _stored(path: Path) -> DigestReply:
    try:
        return DigestReply(decode_digests(path.read_bytes()))
    except (OSError, ValueError) as error:
        return DigestReply(reason=f"its digests cannot be read ({error}); write them again")


def digest_capture(request: DigestRequest) -> DigestReply:
    """Read one capture; an expected failure is the reason."""
    from gpusight.readers.open import open_trace

    try:
        with closing(open_trace(request.path, cache=request.cache)) as trace:
            return _digest_trace(
                trace, steps=request.steps, window=request.window, warmup=request.warmup
            )
    except GpusightError as error:
        return DigestReply(reason=str(error))


def _digest_trace(
    trace: Trace,
    *,
    steps: str | None,
    window: tuple[int | None, int | None] | None,
    warmup: bool,
) -> DigestReply:
    made = rank_digests(trace, steps=steps, window=window, warmup=warmup)
    if isinstance(made, NotApplicable):
        return DigestReply(reason=str(made.after_losses(trace.losses).error()))
    return DigestReply(made)


def write_digests(
    captures: Sequence[Path | Trace],
    target: Path,
    *,
    steps: str | None = None,
    window: tuple[int | None, int | None] | None = None,
    warmup: bool = False,
    cache: bool = True,
    jobs: int | None = None,
    cluster: DigestReader | None = None,
) -> Path:
    """Write the digests of captures to a file; one that cannot be read is an error."""
    from gpusight.output_files import write_file
    from gpusight.sniff import refuse_capture

    for capture in captures:
        refuse_capture(target, None if isinstance(capture, Trace) else str(capture))
    digests, unread = read_ranks(
        captures,
        steps=steps,
        window=window,
        warmup=warmup,
        cache=cache,
        jobs=jobs,
        cluster=cluster,
    )
    if unread:
        first = unread[0]
        raise CaptureError(f"{first.file} cannot be read", why=first.reason)
    write_file(target, encode_digests(digests))
    return target


# Processes ----------------------------------------------------------------------------------------


def _in_processes(requests: Sequence[DigestRequest], count: int) -> list[DigestReply]:
    """Read captures in processes that each take the next one when they are done."""
    idle: SimpleQueue[_Process] = SimpleQueue()
    for _ in range(count):
        idle.put(_Process(count))

    def read(request: DigestRequest) -> DigestReply:
        process = idle.get()
        try:
            return process.read(request)
        finally:
            idle.put(process)

    try:
        with ThreadPoolExecutor(count) as threads:
            return list(threads.map(read, requests))
    finally:
        for _ in range(count):
            idle.get().close()


class _Process:
    """A process that reads captures; started when it is first needed, and again if it died."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._process: subprocess.Popen[bytes] | None = None

    def read(self, request: DigestRequest) -> DigestReply:
        code: int | None = None
        for _ in range(_TRIES):
            line = self._ask(msgspec.json.encode(request) + b"\n")
            if line:
                return msgspec.json.decode(line, type=DigestReply)
            code = self.close()
        ended = f"signal {-code}" if code is not None and code < 0 else f"exit code {code}"
        return DigestReply(reason=f"the process that read it ended ({ended}), {_TRIES} times")

    def _ask(self, line: bytes) -> bytes:
        process = self._process or self._start()
        assert process.stdin is not None, "opened as a pipe"
        assert process.stdout is not None, "opened as a pipe"
        try:
            process.stdin.write(line)
            process.stdin.flush()
        except BrokenPipeError:
            return b""
        return process.stdout.readline()

    def _start(self) -> subprocess.Popen[bytes]:
        threads = max(1, (os.cpu_count() or 1) // self._count)
        environment = {**os.environ, "POLARS_MAX_THREADS": str(threads)}
        self._process = subprocess.Popen(  # noqa: S603 - our own program, no shell
            WORKER,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=environment,
        )
        return self._process

    def close(self) -> int | None:
        """End the process; returns its exit code."""
        process, self._process = self._process, None
        if process is None:
            return None
        process.communicate()
        return process.returncode


def _requests() -> Iterator[DigestRequest]:
    for line in sys.stdin.buffer:
        yield msgspec.json.decode(line, type=DigestRequest)


def main() -> None:
    """Answer requests until there are no more."""
    for request in _requests():
        sys.stdout.buffer.write(msgspec.json.encode(digest_capture(request)) + b"\n")
        sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
