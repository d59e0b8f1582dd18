"""Stacks of the processes of a run end up next to the captures that they belong to."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpusight.recording.collect_stacks import collect_stacks, stacks_path
from gpusight.recording.inside.stack_sampler import (
    CAPTURE,
    END,
    MAGIC,
    PROCESS,
    RATE,
    SUFFIX,
    json_chunk,
    processes,
)
from gpusight.sniff import STACKS_SUFFIX


def part(folder: Path, pid: int, parent: int = 1, capture: str | None = None) -> Path:
    """Write what one process leaves."""
    about = {"pid": pid, "parent": parent, "is_fork": parent != 1}
    data = MAGIC + json_chunk(PROCESS, about) + json_chunk(RATE, {"hz": 90.0})
    data += json_chunk(END, {"samples": 10, "late": 2})
    data += b"" if capture is None else json_chunk(CAPTURE, {"capture": capture})
    path = folder / f"run.stacks-s-{pid}.part"
    path.write_bytes(data)
    return path


def pids(path: Path) -> list[int]:
    return [
        int(found[0][1].split(b":")[1].split(b",")[0]) for found, _ in processes(path.read_bytes())
    ]


def test_each_capture_gets_its_process_and_the_forks_of_it(tmp_path: Path) -> None:
    captures = [tmp_path / "run.a", tmp_path / "run.b"]
    part(tmp_path, 10, capture="run.a")
    part(tmp_path, 11, parent=10)
    part(tmp_path, 12, parent=11)
    part(tmp_path, 20, capture="run.b")
    part(tmp_path, 30)
    (tmp_path / "run.stacks-other-5.part").write_bytes(b"of another run")
    found = collect_stacks(tmp_path / "run", "s", captures)
    assert found.paths == tuple(map(stacks_path, captures))
    assert pids(found.paths[0]) == [10, 11, 12]
    assert pids(found.paths[1]) == [20]
    assert (found.samples, found.late, found.lowest_hz, found.notes) == (40, 8, 90.0, ())
    assert sorted(p.name for p in tmp_path.iterdir()) == [
        "run.a.stacks",
        "run.b.stacks",
        "run.stacks-other-5.part",
    ]


def test_nsys_has_all_processes_in_one_capture(tmp_path: Path) -> None:
    part(tmp_path, 10)
    part(tmp_path, 20)
    found = collect_stacks(tmp_path / "run", "s", [tmp_path / "run.nsys-rep"])
    assert pids(found.paths[0]) == [10, 20]


def test_a_file_of_somebody_else_stays(tmp_path: Path) -> None:
    (tmp_path / "run.a.stacks").write_text("mine")
    part(tmp_path, 10, capture="run.a")
    found = collect_stacks(tmp_path / "run", "s", [tmp_path / "run.a"])
    assert found.paths == ()
    assert "is not a file of stacks" in found.notes[0]
    assert (tmp_path / "run.a.stacks").read_text() == "mine"


@pytest.mark.parametrize("data", [b"", MAGIC, b"something else"])
def test_what_was_hardly_begun_is_removed(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "run.stacks-s-1.part").write_bytes(data)
    assert collect_stacks(tmp_path / "run", "s", [tmp_path / "run.a"]).paths == ()
    assert list(tmp_path.iterdir()) == []


def test_readers_look_where_the_recorder_writes() -> None:
    assert SUFFIX == STACKS_SUFFIX


def test_samples_that_cannot_be_written_are_kept(tmp_path: Path) -> None:
    capture = tmp_path / "run.nsys-rep"
    capture.touch()
    stacks_path(capture).write_text("somebody's notes")
    process = part(tmp_path, 7)
    done = collect_stacks(tmp_path / "run", "s", [capture])
    assert process.exists()
    assert stacks_path(capture).read_text() == "somebody's notes"
    assert process.name in done.notes[0]
    assert not done.paths
