"""Captures of all ranks on a real Dask cluster of this machine, whose workers are killed."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from distributed import Client

import gpusight as gs
from gpusight import rank_cluster
from gpusight.cli.main import main
from gpusight.errors import GpusightError
from gpusight.rank_cluster import ADDRESS_VARIABLE, DaskScheduler, dask_scheduler
from gpusight.rank_files import DigestRequest
from tests.analysis.ranks.jobs import MS, NONE, Delay, job_traces
from tests.test_rank_files import write_torch

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from gpusight.rank_files import DigestReply

# Kills the worker that reads a capture whose name says so, once or each time.
_DEADLY = """
import os, pathlib, signal
from gpusight import rank_files

def deadly(request):
    path = pathlib.Path(request.path)
    tries = path.with_suffix(".tries")
    if "always" in path.name or ("once" in path.name and not tries.exists()):
        with tries.open("a") as log:
            log.write("x")
        os.kill(os.getpid(), signal.SIGKILL)
    if "broken" in path.name:
        raise RuntimeError("an unexpected failure")
    return read(request)

if rank_files.digest_capture.__name__ != "deadly":  # Dask loads a preload twice
    read = rank_files.digest_capture
    rank_files.digest_capture = deadly
"""


@contextmanager
def _running(*arguments: str) -> Iterator[None]:
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield
    finally:
        process.terminate()
        process.wait(20)


_LOCAL = ("--host", "127.0.0.1", "--no-dashboard")


@contextmanager
def _scheduler(file: Path) -> Iterator[None]:
    arguments = ("--port", "0", "--scheduler-file", str(file), *_LOCAL)
    with _running("distributed.cli.dask_scheduler", *arguments):
        deadline = time.monotonic() + 60
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        yield


@pytest.fixture(scope="module")
def scheduler_file(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A scheduler and two workers, each in a process of its own, as on a cluster."""
    folder = tmp_path_factory.mktemp("cluster")
    file, preload = folder / "scheduler.json", folder / "deadly.py"
    preload.write_text(_DEADLY)
    with ExitStack() as stack:
        stack.enter_context(_scheduler(file))
        arguments = ["--scheduler-file", str(file), "--preload", str(preload), "--nworkers", "2"]
        arguments += ["--nthreads", "1", "--memory-limit", "0", "--local-directory", str(folder)]
        stack.enter_context(_running("distributed.cli.dask_worker", *arguments, *_LOCAL))
        yield str(file)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of the traces of a job, of which rank 2 is late."""
    folder = tmp_path_factory.mktemp("job")
    plan = lambda rank, _: Delay(host_ns=3 * MS) if rank == 2 else NONE  # noqa: E731
    for rank, trace in enumerate(job_traces(plan, ranks=4, steps=8)):
        write_torch(trace, folder / f"trace.rank{rank}.json.gz")
    return folder


def _copied(folder: Path, target: Path, renamed: dict[int, str]) -> list[Path]:
    files = []
    for rank in range(4):
        name = renamed.get(rank, f"trace.rank{rank}.json.gz")
        files.append(target / name)
        shutil.copy(folder / f"trace.rank{rank}.json.gz", target / name)
    return files


def _address(scheduler_file: str) -> str:
    return str(json.loads(Path(scheduler_file).read_text("utf-8"))["address"])


def test_processes_cluster_and_digests_give_the_same_bytes(
    folder: Path, scheduler_file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder)  # workers have another folder
    given = sorted(file.name for file in folder.glob("*.gz"))
    here = gs.ranks(given, cache=False, jobs=2).to_json()
    assert gs.ranks(given, cache=False, dask_scheduler_file=scheduler_file).to_json() == here
    assert gs.ranks(given, cache=False, dask=_address(scheduler_file)).to_json() == here
    with Client(scheduler_file=scheduler_file, set_as_default=False) as client:
        assert gs.ranks(given, cache=False, dask=client).to_json() == here
    for place, file in enumerate(given):
        gs.rank_digest(file, tmp_path / f"{place}.ranks", cache=False, jobs=1)
    assert gs.ranks(tmp_path).to_json() == here
    everything = tmp_path / "all.ranks"
    gs.rank_digest(given, everything, cache=False, dask_scheduler_file=scheduler_file)
    parts = [(tmp_path / f"{place}.ranks").read_bytes() for place in range(4)]
    assert everything.read_bytes() == b"".join(parts)


def test_the_command_line_takes_address_file_and_environment(
    folder: Path,
    scheduler_file: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = ["ranks", str(folder), "--no-cache", "--format", "json"]
    assert main([*command, "--jobs", "1"]) == 0
    here = capsys.readouterr().out
    for more in (["--dask", _address(scheduler_file)], ["--dask-scheduler-file", scheduler_file]):
        assert main([*command, *more]) == 0
        assert capsys.readouterr().out == here
    schedulers: list[DaskScheduler] = []
    read = DaskScheduler.read

    def logged(self: DaskScheduler, requests: Sequence[DigestRequest]) -> list[DigestReply]:
        schedulers.append(self)
        return read(self, requests)

    monkeypatch.setattr(DaskScheduler, "read", logged)
    monkeypatch.setenv(ADDRESS_VARIABLE, _address(scheduler_file))
    assert main(command) == 0
    assert capsys.readouterr().out == here
    assert [one.address for one in schedulers] == [_address(scheduler_file)]


def test_a_killed_worker_is_replaced(folder: Path, scheduler_file: str, tmp_path: Path) -> None:
    files = _copied(folder, tmp_path, {1: "once.rank1.json.gz"})
    result = gs.ranks(files, cache=False, dask_scheduler_file=scheduler_file)
    assert [rank.rank for rank in result.ranks] == [0, 1, 2, 3]
    assert not result.unread
    assert (tmp_path / "once.rank1.json.tries").read_text() == "x"


def test_a_rank_that_no_worker_can_read_is_reported(
    folder: Path, scheduler_file: str, tmp_path: Path
) -> None:
    files = _copied(folder, tmp_path, {1: "always.rank1.json.gz", 2: "broken2.gz"})
    files[3].write_bytes(b"\x1f\x8b nothing")
    result = gs.ranks(files, cache=False, dask_scheduler_file=scheduler_file)
    assert [rank.rank for rank in result.ranks] == [0]
    reasons = {one.file: one.reason for one in result.unread}
    assert set(reasons) == set(map(str, files[1:]))
    assert "RuntimeError: an unexpected failure" in reasons[str(files[2])]
    assert "Dask workers that read it died" in reasons[str(files[1])]
    assert len((tmp_path / "always.rank1.json.tries").read_text()) > 1
    local = gs.ranks([files[0], files[3]], cache=False, jobs=1)
    assert reasons[str(files[3])] == local.unread[0].reason


def test_a_cluster_without_workers_is_reported(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rank_cluster, "_POLL_SECONDS", 0.1)
    monkeypatch.setattr(rank_cluster, "_MAX_POLLS_WITHOUT_WORKER", 3)
    file = tmp_path / "scheduler.json"
    with _scheduler(file):
        request = DigestRequest(os.fspath(folder / "trace.rank0.json.gz"), cache=False)
        [reply] = DaskScheduler(_address(str(file))).read([request])
    assert "had no worker" in reply.reason


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--dask", "tcp://127.0.0.1:9"], "no Dask scheduler at tcp://127.0.0.1:9"),
        (["--dask", "nonsense://x"], "no Dask scheduler at nonsense://x"),
        (
            ["--dask-scheduler-file", "{folder}/absent.json"],
            "names no Dask scheduler: no such file",
        ),
        (["--dask-scheduler-file", "{folder}/trace.rank0.json.gz"], "names no Dask scheduler: "),
        (["--dask", "tcp://127.0.0.1:9", "--jobs", "2"], "not by both"),
    ],
)
def test_mistakes_are_one_line(
    arguments: list[str],
    message: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(rank_cluster, "_CONNECT_SECONDS", 1)
    given = [text.replace("{folder}", str(folder)) for text in arguments]
    assert main(["ranks", str(folder), *given]) == 2
    shown = capsys.readouterr().err
    assert message in shown
    assert len(shown.splitlines()) <= 2


def test_without_the_extra_the_command_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "distributed", None)
    with pytest.raises(GpusightError, match=r"distributed") as caught:
        DaskScheduler("tcp://node:8786").read([DigestRequest("x")])
    assert "gpusight[cluster]" in caught.value.hint


def test_jobs_mean_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(ADDRESS_VARIABLE, "tcp://node:8786")
    assert dask_scheduler() == DaskScheduler("tcp://node:8786")
    assert dask_scheduler(jobs=2) is None
    monkeypatch.delenv(ADDRESS_VARIABLE)
    assert dask_scheduler() is None
