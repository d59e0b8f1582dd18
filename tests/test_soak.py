"""The soak test of `serve` in short, and that it fails when it should."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from benchmarks import soak
from benchmarks.generate import generate
from benchmarks.soak import Answer, Plan, Record, Sample, growth_faults
from benchmarks.soak_requests import Requests

MB = 1_000_000
LEVEL = [Sample(float(second), 500 * MB, 400 * MB, 12, 20) for second in range(100)]


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads /proc")
def test_a_few_seconds_of_requests(tmp_path: Path) -> None:
    captures = [tmp_path / "large.sqlite", tmp_path / "small.sqlite"]
    for path, kernels in zip(captures, (2000, 1000), strict=True):
        generate(kernels, path)
    plan = Plan(captures, tmp_path, seconds=1.5, clients=3, rate=25, rounds=0, warm_up_s=0.5)
    result = soak.soak(plan)
    assert result["faults"] == []
    assert result["requests"] >= 10
    assert result["distinct_requests_replayed"] >= 10
    assert {200} <= set(result["statuses"])
    assert soak.text_of(result).endswith("passed")


def test_growing_memory_is_a_fault() -> None:
    growing = [replace(s, rss_bytes=s.rss_bytes + int(s.seconds) * MB) for s in LEVEL]
    (fault,) = growth_faults(growing, LEVEL[0], LEVEL[0])
    assert fault.startswith("rss_bytes grew from 537")
    assert growth_faults(LEVEL, LEVEL[0], LEVEL[0]) == []


def test_memory_that_rises_at_first_and_then_stays_is_no_fault() -> None:
    filling = [replace(s, rss_bytes=min(s.rss_bytes, int(s.seconds) * 25 * MB)) for s in LEVEL]
    assert growth_faults(filling, LEVEL[0], LEVEL[0]) == []


@pytest.mark.parametrize("left", [{"descriptors": 13}, {"threads": 25}])
def test_what_stays_open_is_a_fault(left: dict[str, Any]) -> None:
    (fault,) = growth_faults(LEVEL, LEVEL[0], replace(LEVEL[0], **left))
    assert fault.startswith("at rest 12 descriptors and 20 threads became")


@pytest.mark.parametrize(
    ("status", "valid", "fault"),
    [(200, True, False), (400, False, False), (404, True, True), (200, False, True),
     (500, True, True), (503, False, True)],
)  # fmt: skip
def test_unexpected_statuses_are_faults(status: int, valid: bool, fault: bool) -> None:
    record = Record()
    record.add("window", "path", Answer(status, "", "digest"), 0.1, valid=valid)
    assert bool(record.faults) is fault


def test_two_answers_to_one_request_are_a_fault() -> None:
    record = Record()
    for digest in ("one", "one", "two"):
        record.add("window", "path", Answer(200, "", digest), 0.1, valid=True)
    assert record.faults == ["two answers to one request: path"]


def _ask(path: str) -> Any:
    if path == "api/captures":
        return {"captures": [{"id": 0, "state": "ready"}]}
    track = {"key": "gpu0/stream7", "lines": 1, "series": False, "kind": "stream",
             "tables": ["kernels"], "events": 10}  # fmt: skip
    return {"start_ns": 0, "end_ns": 1000, "tracks": [track]}


def test_requests_are_of_every_route_and_repeatable() -> None:
    drawn = [Requests(random.Random(7), _ask) for _ in range(2)]
    first, second = ([each.next() for _ in range(500)] for each in drawn)
    assert first == second
    kinds = {request.kind for request in first}
    assert kinds == {"window", "pick", "event", "search", "next", "measure", "state", "file",
                     "invalid"}  # fmt: skip
    assert all(request.valid for request in first if request.kind != "invalid")
