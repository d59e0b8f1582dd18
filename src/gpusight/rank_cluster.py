"""Captures of all ranks to digests on a Dask cluster, where the captures are.

A worker reads a capture that it can open at the same path and returns its digest: kilobytes. Dask
runs a capture whose worker died on another one; a rank that no worker could read is reported with
the reason, as everywhere. The bytes of the digests are those of processes on one machine.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING, Any

import msgspec

from gpusight.errors import GpusightError, UsageError
from gpusight.rank_files import DigestReply, DigestRequest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


ADDRESS_VARIABLE = "DASK_SCHEDULER_ADDRESS"
"""Names the scheduler in the environment, as for Dask's own clients."""
INSTALL = "install it with: pip install 'gpusight[cluster]'"
_CONNECT_SECONDS = 10
_POLL_SECONDS = 5.0
_MAX_POLLS_WITHOUT_WORKER = 60
"""Polls in a row in which a cluster has no worker, before its captures are given up."""


class DaskScheduler(msgspec.Struct, frozen=True):
    """Where a cluster's scheduler is: an address, or a client of the caller."""

    address: str | None = None
    client: Any = None

    def read(self, requests: Sequence[DigestRequest]) -> list[DigestReply]:
        """Read captures on the workers; replies are in the order of requests."""
        with self._connected() as client:
            return _read_again(client, requests, _read(client, requests))

    @contextmanager
    def _connected(self) -> Iterator[Any]:
        if self.client is not None:
            yield self.client
            return
        try:
            from distributed import Client
        except ImportError as error:
            raise GpusightError("a Dask cluster needs distributed", hint=INSTALL) from error
        try:
            client = Client(self.address, timeout=_CONNECT_SECONDS, set_as_default=False)
        except (OSError, ValueError, TypeError) as error:
            raise UsageError(
                f"no Dask scheduler at {self.address}",
                why=" ".join(str(error).split()) or type(error).__name__,
                hint="check the address, or leave it out to use processes of this machine",
            ) from error
        try:
            yield client
        finally:
            client.close()


def dask_scheduler(
    dask: Any = None,
    scheduler_file: str | os.PathLike[str] | None = None,
    *,
    jobs: int | None = None,
) -> DaskScheduler | None:
    """Return the scheduler that a caller, or else the environment, names; None for none.

    A number of `jobs` means processes of this machine.
    """
    if sum(given is not None for given in (dask, scheduler_file, jobs)) > 1:
        raise UsageError(
            "captures are read by a Dask cluster or by processes of this machine, not by both",
            hint="give an address, a scheduler file, or a number of jobs",
        )
    if jobs is not None:
        return None
    if scheduler_file is not None:
        return DaskScheduler(_address_in(Path(scheduler_file)))
    if dask is not None and not isinstance(dask, str):
        return DaskScheduler(client=dask)
    address = dask or os.environ.get(ADDRESS_VARIABLE)
    return DaskScheduler(address) if address else None


class _SchedulerFile(msgspec.Struct, frozen=True):
    """What `dask scheduler --scheduler-file` writes, the part that counts."""

    address: str


def _address_in(file: Path) -> str:
    try:
        return msgspec.json.decode(file.read_bytes(), type=_SchedulerFile).address
    except (OSError, msgspec.DecodeError) as error:
        raise UsageError(
            f"{file} names no Dask scheduler",
            why="no such file" if isinstance(error, FileNotFoundError) else str(error),
            hint="dask scheduler --scheduler-file writes it",
        ) from error


def _read(client: Any, requests: Sequence[DigestRequest]) -> list[DigestReply]:
    done: SimpleQueue[int] = SimpleQueue()
    futures = []
    for place, request in enumerate(requests):
        future = client.submit(
            read_capture, msgspec.json.encode(_absolute(request)), pure=False, key=_key(place)
        )
        future.add_done_callback(lambda _, place=place: done.put(place))
        futures.append(future)
    replies: dict[int, DigestReply] = {}
    idle_polls = 0
    while len(replies) < len(futures) and idle_polls < _MAX_POLLS_WITHOUT_WORKER:
        try:
            place = done.get(timeout=_POLL_SECONDS)
        except Empty:
            if client.status in ("closed", "closing", "connecting"):
                break
            idle_polls = 0 if client.scheduler_info()["workers"] else idle_polls + 1
            if idle_polls == 1:
                minutes = _POLL_SECONDS * _MAX_POLLS_WITHOUT_WORKER / 60
                sys.stderr.write(f"the Dask cluster has no worker: waiting {minutes:.0f} min\n")
            continue
        replies[place] = _reply(futures[place], requests[place])
        futures[place].release()  # the scheduler need not keep it
    lost = "the Dask cluster was lost, or had no worker, before it was read"
    client.cancel([future for place, future in enumerate(futures) if place not in replies])
    return [replies.get(place) or DigestReply(reason=lost) for place in range(len(futures))]


_DIED = "the Dask workers that read it died, each time it was tried"


def _read_again(
    client: Any, requests: Sequence[DigestRequest], replies: list[DigestReply]
) -> list[DigestReply]:
    """Read captures whose workers died once more, alone: another capture may have killed them."""
    if len(requests) == 1:
        return replies
    return [
        _read(client, [request])[0] if reply.reason == _DIED else reply
        for request, reply in zip(requests, replies, strict=True)
    ]


def _key(place: int) -> str:
    from uuid import uuid4

    return f"gpusight-rank-{place}-{uuid4().hex}"


def _absolute(request: DigestRequest) -> DigestRequest:
    """Workers have another working folder."""
    return msgspec.structs.replace(request, path=os.path.abspath(request.path))  # noqa: PTH100


def read_capture(request: bytes) -> bytes:
    """Read a capture on a worker: JSON in, JSON out, so that both sides may differ in Python."""
    from gpusight import rank_files

    decoded = msgspec.json.decode(request, type=DigestRequest)
    try:
        reply = rank_files.digest_capture(decoded)
    except Exception as error:  # noqa: BLE001 - Dask cannot carry every traceback to the client
        reply = DigestReply(reason=f"a Dask worker failed: {_one_line(error)}")
    return msgspec.json.encode(reply)


def _reply(future: Any, request: DigestRequest) -> DigestReply:
    """Return what a worker replied, with the path as the caller wrote it."""
    error = future.exception() if future.status == "error" else None
    if future.status == "cancelled" or error is not None:
        return DigestReply(reason=_why(error))
    try:
        reply = msgspec.json.decode(future.result(), type=DigestReply)
    except msgspec.DecodeError as mismatch:
        return DigestReply(reason=f"the workers have another version of gpusight ({mismatch})")
    absolute = _absolute(request).path
    return DigestReply(
        tuple(msgspec.structs.replace(digest, file=request.path) for digest in reply.digests),
        reply.reason.replace(absolute, request.path),
    )


def _why(error: BaseException | None) -> str:
    from distributed import KilledWorker

    if isinstance(error, KilledWorker):
        return _DIED
    if isinstance(error, ImportError):
        return f"the Dask workers lack gpusight ({error}); install the same version there"
    if error is None:
        return "the Dask cluster cancelled it"
    return f"a Dask worker failed: {_one_line(error)}"


def _one_line(error: BaseException) -> str:
    return " ".join(f"{type(error).__name__}: {error}".split())
