"""Captures of all ranks, read in processes, from folders and from digests."""

from __future__ import annotations

import gzip
import json
import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

import gpusight as gs
from gpusight import rank_files
from gpusight.errors import CaptureError, GpusightError
from gpusight.rank_files import DigestReply, DigestRequest, rank_captures, read_ranks
from tests.analysis.ranks.jobs import MS, NONE, THREAD, Delay, job_traces

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from gpusight.trace.trace import Trace

_US = 1_000


def _event(row: dict[str, Any], category: str, **more: Any) -> dict[str, Any]:
    times = {"ts": row["start_ns"] / _US, "dur": (row["end_ns"] - row["start_ns"]) / _US}
    return {"ph": "X", "cat": category, "name": str(row["name"]), **times, **more}


def write_torch(trace: Trace, file: Path) -> None:
    """Write a trace of a job in the format of torch.profiler."""
    events = []
    for row in trace.kernels.to_dicts():
        grid = [row[f"grid_{axis}"] or 1 for axis in "xyz"]
        args = {"device": 0, "stream": 7, "correlation": row["correlation"], "grid": grid}
        events.append(_event(row, "kernel", pid=0, tid=7, args=args))
    for row in trace.api_calls.to_dicts():
        args = {"correlation": row["correlation"]}
        events.append(_event(row, "cuda_runtime", pid=7, tid=THREAD, args=args))
    events += [
        _event(row, "user_annotation", pid=7, tid=THREAD, args={})
        for row in trace.ranges.to_dicts()
    ]
    job = {"rank": trace.meta.rank, "world_size": trace.meta.world_size, "backend": "nccl"}
    document = {"schemaVersion": 1, "distributedInfo": job, "traceEvents": events}
    file.write_bytes(gzip.compress(json.dumps(document).encode()))


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the traces of a job, of which rank 2 is late."""
    folder = tmp_path_factory.mktemp("job")
    plan = lambda rank, _: Delay(host_ns=3 * MS) if rank == 2 else NONE  # noqa: E731
    for rank, trace in enumerate(job_traces(plan, ranks=3, steps=8)):
        write_torch(trace, folder / f"trace.rank{rank}.json.gz")
    return folder


def test_a_folder_a_glob_and_files_are_the_same_job(folder: Path) -> None:
    files = sorted(folder.iterdir())
    answers = [
        gs.ranks(captures, cache=False, jobs=1).to_json()
        for captures in (folder, str(folder / "*.gz"), files)
    ]
    assert len(set(answers)) == 1
    result = gs.ranks(folder, cache=False, jobs=1)
    assert [(s.rank, s.cause) for s in result.stragglers] == [(2, "host")]
    assert result.frame.height == 3


def test_processes_give_the_same_bytes(folder: Path) -> None:
    one, two = (gs.ranks(folder, cache=False, jobs=jobs).to_json() for jobs in (1, 2))
    assert one == two


def test_small_captures_start_no_processes(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two processes take longer to start than one needs to read them; large ones are shared out."""
    monkeypatch.setattr(os, "cpu_count", lambda: 2)
    started: list[int] = []
    in_processes = rank_files._in_processes

    def counted(requests: Sequence[DigestRequest], count: int) -> list[DigestReply]:
        started.append(count)
        return in_processes(requests, count)

    monkeypatch.setattr(rank_files, "_in_processes", counted)
    captures = rank_captures([folder])
    small = read_ranks(captures, cache=False)
    assert started == []
    monkeypatch.setattr(rank_files, "_SMALL_BYTES", 1_000)
    assert read_ranks(captures, cache=False) == small
    assert started == [2]


def test_opened_captures_are_ranks_too(folder: Path) -> None:
    traces = gs.open(sorted(folder.iterdir()), cache=False)
    assert gs.ranks(traces).to_json() == gs.ranks(folder, cache=False, jobs=1).to_json()


def test_digests_give_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    for file in sorted(folder.iterdir()):
        target = tmp_path / f"{file.name.split('.')[1]}.ranks"
        assert gs.rank_digest(file, target, cache=False) == target
        assert target.stat().st_size < 10_000
    merged = gs.ranks(tmp_path)
    assert merged.to_json() == gs.ranks(folder, cache=False, jobs=1).to_json()


def test_a_capture_that_cannot_be_read_is_reported(folder: Path, tmp_path: Path) -> None:
    damaged = tmp_path / "trace.rank1.json.gz"
    damaged.write_bytes(b"\x1f\x8b nothing")
    files = [folder / "trace.rank0.json.gz", damaged, folder / "trace.rank2.json.gz"]
    result = gs.ranks(files, cache=False, jobs=2)
    assert [rank.rank for rank in result.ranks] == [0, 2]
    assert [unread_rank.file for unread_rank in result.unread] == [str(damaged)]
    assert any(note.startswith("not read: trace.rank1") for note in result.notes)
    with pytest.raises(CaptureError):
        gs.rank_digest(damaged, tmp_path / "x.ranks")


def test_a_damaged_digest_is_reported(folder: Path, tmp_path: Path) -> None:
    target = gs.rank_digest(folder / "trace.rank0.json.gz", tmp_path / "a.ranks", cache=False)
    (tmp_path / "b.ranks").write_bytes(target.read_bytes()[:-200])
    result = gs.ranks([target, tmp_path / "b.ranks"])
    assert "its digests cannot be read" in result.unread[0].reason


def test_no_captures_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(GpusightError):
        gs.ranks(tmp_path)
    with pytest.raises(GpusightError):
        gs.ranks([])


def test_a_digest_never_replaces_a_capture(folder: Path) -> None:
    capture = folder / "trace.rank0.json.gz"
    before = capture.read_bytes()
    with pytest.raises(GpusightError):
        gs.rank_digest(capture, capture)
    assert capture.read_bytes() == before


def test_a_process_that_dies_is_retried_and_its_rank_reported(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first capture kills whoever reads it; the others are read."""
    log = tmp_path / "tries"
    script = tmp_path / "worker.py"
    script.write_text(
        "import os, signal, sys\n"
        "from gpusight import rank_files\n"
        "read = rank_files.digest_capture\n"
        "def deadly(request):\n"
        "    if 'rank0' in request.path:\n"
        f"        open({str(log)!r}, 'a').write('x')\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "    return read(request)\n"
        "rank_files.digest_capture = deadly\n"
        "rank_files.main()\n"
    )
    monkeypatch.setattr(rank_files, "WORKER", (sys.executable, str(script)))
    captures = rank_captures([folder])
    digests, unread = read_ranks(captures, cache=False, jobs=2)
    assert [digest.rank for digest in digests] == [1, 2]
    assert "signal 9" in unread[0].reason
    assert log.read_text() == "xx"


def test_a_worker_answers_each_request(folder: Path) -> None:
    request = DigestRequest(os.fspath(folder / "trace.rank1.json.gz"), cache=False)
    assert rank_files.digest_capture(request).digests[0].rank == 1
    absent = DigestRequest(os.fspath(folder / "absent.json"), cache=False)
    assert "absent.json" in rank_files.digest_capture(absent).reason
