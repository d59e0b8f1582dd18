"""Folded stacks and speedscope's JSON as host time."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

import gpusight as gs
from gpusight.readers.stacks.imported_stacks import split_frame

if TYPE_CHECKING:
    from pathlib import Path

FOLDED = """\
main (train.py:90);collate (train.py:88);loads (/usr/lib/python3.11/json/__init__.py:346) 700
main (train.py:90);forward (model.py:12) 200
main (train.py:90);forward (model.py:12) 100
"""


def host_ns(path: Path) -> dict[str, int]:
    return {row["location"]: row["host_ns"] for row in gs.hotspots(path).rows()}


def test_folded_stacks(tmp_path: Path) -> None:
    path = tmp_path / "host.folded"
    path.write_text(FOLDED)
    assert host_ns(path) == {"train.py:88 collate": 700, "model.py:12 forward": 300}
    with gs.open(path) as trace:
        trace.validate()
        assert trace.meta.source == "folded"
    assert any("no unit of time" in note for note in gs.info(path).notes + trace.meta.notes)


def speedscope(profile: dict[str, Any]) -> str:
    frames = [
        {"name": "main", "file": "/home/ada/train.py", "line": 90},
        {"name": "collate", "file": "/home/ada/train.py", "line": 88},
    ]
    schema = "https://www.speedscope.app/file-format-schema.json"
    return json.dumps({"$schema": schema, "shared": {"frames": frames}, "profiles": [profile]})


SAMPLED = {
    "type": "sampled",
    "name": "MainThread",
    "unit": "milliseconds",
    "startValue": 0,
    "endValue": 10,
    "samples": [[0], [0, 1], [0, 1]],
    "weights": [1, 4, 5],
}
EVENTED = {
    "type": "evented",
    "name": "MainThread",
    "unit": "microseconds",
    "startValue": 0,
    "endValue": 10,
    "events": [
        {"type": "O", "frame": 0, "at": 0},
        {"type": "O", "frame": 1, "at": 1000},
        {"type": "C", "frame": 1, "at": 10_000},
        {"type": "C", "frame": 0, "at": 10_000},
    ],
}


@pytest.mark.parametrize("profile", [SAMPLED, EVENTED], ids=["sampled", "evented"])
def test_speedscope(tmp_path: Path, profile: dict[str, Any]) -> None:
    path = tmp_path / "x.json"
    path.write_text(speedscope(profile))
    assert host_ns(path) == {"train.py:88 collate": 9_000_000, "train.py:90 main": 1_000_000}
    with gs.open(path) as trace:
        trace.validate()
        files = trace.table("stack_frames")["file"].unique().to_list()
    assert files == ["~/train.py"]


def test_what_hotspots_writes_is_read_again(tmp_path: Path) -> None:
    from tests.analysis.hotspots.stack_traces import MS, loader_trace

    for ending in ("folded", "speedscope.json"):
        path = tmp_path / f"x.{ending}"
        gs.hotspots(loader_trace(), of="host", by="line").save(path)
        assert host_ns(path)["train.py:88 collate"] == 6 * 12 * MS


@pytest.mark.parametrize(
    "content",
    [
        speedscope(SAMPLED | {"samples": [[0], [7], [0]]}),
        speedscope(SAMPLED | {"samples": [[0], [-1], [0]]}),
        speedscope(SAMPLED | {"weights": [1, 2]}),
        speedscope(SAMPLED | {"weights": [1, 2, 1e300]}),
        speedscope(EVENTED | {"events": [{"type": "C", "frame": 0, "at": 0}]}),
        speedscope(SAMPLED).replace('"profiles": [', '"profiles": [3, '),
        speedscope(SAMPLED)[:-20],
        speedscope(SAMPLED | {"samples": [[], [], []]}),
    ],
)
def test_a_damaged_file_is_refused_in_one_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "x.json"
    path.write_text(content)
    with pytest.raises(gs.GpusightError):
        gs.hotspots(path)


def test_lines_that_are_no_stacks_are_counted(tmp_path: Path) -> None:
    path = tmp_path / "x.folded"
    path.write_text(FOLDED * 20 + "not a stack\n")
    with gs.open(path) as trace:
        assert "1 lines are not folded stacks" in trace.meta.warnings[0]


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("step (train.py:12)", ("train.py", 12, "step")),
        ("step (/home/ada/train.py:12)", ("~/train.py", 12, "step")),
        ("run (train.py)", ("train.py", None, "run")),
        ("std::sort(int*)", (None, None, "std::sort(int*)")),
        ("_start", (None, None, "_start")),
    ],
)
def test_frames(name: str, split: tuple[Any, ...]) -> None:
    assert split_frame(name) == split


def test_built_in_functions_count_for_the_line_around_them(tmp_path: Path) -> None:
    path = tmp_path / "host.folded"
    path.write_text(
        "main (t.py:3);<built-in method mul_ of Tensor object> 5\nmain (t.py:3);alone 2\n"
    )
    rows = [(row["function"], row["host_ns"]) for row in gs.hotspots(path).rows()]
    assert rows == [("main", 5), ("alone", 2)]
