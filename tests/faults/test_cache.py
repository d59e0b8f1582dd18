"""Processes are killed, disks are full, several share one cache: nothing lost, no wrong answer."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from typing_extensions import Self

import gpusight
from gpusight.readers import column_cache
from gpusight.readers.cache_folder import clear_cache
from tests.faults.cache_worker import STEPS, answer, is_writer
from tests.shared import DATA

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and modes are POSIX")
WORKER = Path(__file__).with_name("cache_worker.py")


@pytest.fixture
def place(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Make a folder that other users may look into, with two captures that nothing may change."""
    monkeypatch.delenv("GPUSIGHT_CACHE_BYTES", raising=False)
    monkeypatch.setattr(column_cache, "_MIN_CACHED_ROWS", 1)
    with tempfile.TemporaryDirectory(prefix="gpusight-faults-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        monkeypatch.setenv("GPUSIGHT_CACHE_DIR", str(folder / "cache"))
        (folder / "captures").mkdir()
        shutil.copy(DATA / "graph_node.sqlite", folder / "captures" / "capture.sqlite")
        shutil.copy(DATA / "resnet18_infer.sqlite", folder / "captures" / "other.sqlite")
        before = {path.name: path.read_bytes() for path in (folder / "captures").iterdir()}
        yield folder
        assert {p.name: p.read_bytes() for p in (folder / "captures").iterdir()} == before


@pytest.fixture
def capture(place: Path) -> Path:
    return place / "captures" / "capture.sqlite"


@pytest.fixture
def right(capture: Path) -> int:
    """Checksum of what the capture itself says."""
    return answer(capture, cached=False)[0]


def start(capture: Path, harm: str, value: int) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(Path(gpusight.__file__).parents[1])}
    return subprocess.Popen(
        [sys.executable, str(WORKER), str(capture), harm, str(value)],
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def answers(worker: subprocess.Popen[str]) -> list[tuple[int, list[str]]]:
    out, error = worker.communicate(timeout=120)
    assert worker.returncode == 0, error
    return [(values, notes) for values, notes in map(json.loads, out.splitlines())]


class Snapshots:
    """What the cache looks like before each step of writing it: what a kill there would leave."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.taken: list[Path] = []
        self._busy = True
        sys.addaudithook(self._hear)  # stays for the life of the process, but listens only here

    def __enter__(self) -> Self:
        self._busy = False
        return self

    def __exit__(self, *_: object) -> None:
        self._busy = True

    def _hear(self, event: str, _: object) -> None:
        if self._busy or event not in STEPS or not is_writer():
            return
        self._busy = True
        self.taken.append(self.place / f"killed-{len(self.taken)}")
        if (self.place / "cache").exists():
            shutil.copytree(self.place / "cache", self.taken[-1])
        self._busy = False


def check_recovery(place: Path, capture: Path, right: int) -> None:
    """Expect the right answer without a note, then from the cache, and nothing left by `clear`."""
    assert answer(capture) == (right, ())
    assert answer(capture) == (right, ())
    clear_cache()
    assert [path.name for path in (place / "gpusight-cache").iterdir()] == ["CACHEDIR.TAG"]


def test_a_kill_before_any_step_of_writing_harms_nobody(
    place: Path, capture: Path, right: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Snapshots(place) as snapshots:
        assert answer(capture) == (right, ())
    assert len(snapshots.taken) > 30
    unfinished = 0
    for left in snapshots.taken:
        monkeypatch.setenv("GPUSIGHT_CACHE_DIR", str(left))
        for part in left.rglob("part-*"):
            unfinished += 1
            os.truncate(part, part.stat().st_size // 2)
        check_recovery(left, capture, right)
    assert unfinished > 5


@pytest.mark.parametrize("count", [3, 20, 45])
def test_a_process_that_is_killed_while_it_writes(
    place: Path, capture: Path, right: int, count: int
) -> None:
    worker = start(capture, "kill", count)
    worker.communicate(timeout=120)
    assert worker.returncode == -signal.SIGKILL
    check_recovery(place / "cache", capture, right)


def test_a_write_cut_off_in_its_middle(place: Path, capture: Path, right: int) -> None:
    """RLIMIT_FSIZE ends one process in mid-write, and is an error like a full disk to another."""
    cut, full = start(capture, "cut", 2000), start(capture, "full", 2000)
    assert answers(full) == [(right, ["cache not written: File too large"])]
    cut.communicate(timeout=120)
    assert cut.returncode == -signal.SIGXFSZ
    check_recovery(place / "cache", capture, right)


def test_processes_may_fill_trim_and_clear_one_cache_at_once(capture: Path, right: int) -> None:
    workers = [start(capture, "crowd", seed) for seed in range(4)]
    assert {(values, *notes) for w in workers for values, notes in answers(w)} == {(right,)}


def test_a_folder_that_cannot_be_written_to_costs_a_note(
    place: Path, capture: Path, right: int
) -> None:
    nobody = 65534
    (place / "cache").mkdir(mode=0o500)
    if os.geteuid() == 0:
        os.chown(place / "cache", nobody, nobody)
    note = "cache not written: Permission denied"
    assert answers(start(capture, "user", nobody)) == [(right, [note])]
    assert not list((place / "cache").iterdir())


def test_a_full_disk_costs_a_note(
    place: Path, capture: Path, right: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = place / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=16k", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        monkeypatch.setenv("GPUSIGHT_CACHE_DIR", str(disk / "cache"))
        note = "cache not written: No space left on device"
        assert [answer(capture), answer(capture)] == [(right, (note,))] * 2
    finally:
        subprocess.run(["umount", str(disk)], check=True)
