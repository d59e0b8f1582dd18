"""Captures of people who mean no good: answers stay small, and tell nothing of the machine."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from gpusight.web.payloads import MAX_NAME_CHARS, MAX_TEXT_CHARS
from gpusight.web.server import serve
from tests.shared import DATA
from tests.traces import build_trace
from tests.web.serving import asking

LONG = "x" * 200_000


def test_names_of_any_length_make_small_answers() -> None:
    kernels = [{"start_ns": n, "end_ns": n + 1, "name": f"{n}{LONG}"} for n in range(5)]
    with asking(build_trace(kernels=kernels)) as client:
        groups = client.answer("captures/0/search", q="xx")["groups"]
        measured = client.answer("captures/0/measure", start=0, end=10)["kernels"]
        for name in [each["name"] for each in (*groups, *measured)]:
            assert len(name) == MAX_NAME_CHARS
            assert name.endswith("x…")
        title = client.answer("captures/0/event", table="kernels", row=3)["title"]
        assert title == f"3{LONG}"[: MAX_TEXT_CHARS - 1] + "…"


def test_a_gpu_may_have_any_number() -> None:
    kernels = [{"start_ns": 0, "end_ns": 10, "name": "k", "device": 5_000_000_000}]
    with asking(build_trace(kernels=kernels)) as client:
        ledger = client.answer("captures/0/ledger")
        assert (ledger["state"], ledger["devices"][0]["device"]) == ("ready", 5_000_000_000)
        assert client.answer("captures/0/findings")["state"] == "ready"


def test_memory_that_makes_no_sense_is_the_reason_where_there_is_nothing_else() -> None:
    events = [
        {"time_ns": n, "bytes": 2**62, "operation": "allocation", "address": n} for n in range(3)
    ]
    with asking(build_trace(memory_events=events)) as client:
        (capture,) = client.answer("captures")["captures"]
        assert capture["state"] == "failed"
        assert "memory is not shown" in capture["message"]


def _told(url: str) -> Any:
    try:
        with urllib.request.urlopen(url, timeout=10) as answer:
            return answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.read().decode()


@pytest.mark.parametrize("relative", [False, True])
def test_no_answer_tells_where_a_capture_is(
    relative: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "of-somebody"
    folder.mkdir()
    whole, cut = folder / "whole.sqlite", folder / "cut.sqlite"
    whole.write_bytes((DATA / "dataload.sqlite").read_bytes())
    cut.write_bytes(whole.read_bytes()[:100_000])
    monkeypatch.chdir(tmp_path)
    given = [Path(os.path.relpath(capture)) if relative else capture for capture in (cut, whole)]
    given.append(given[0].with_name("gone.sqlite"))
    with serve(given, cache=False) as server:
        assert all(capture.settled.wait(30) for capture in server._session._served)
        paths = [f"api/captures/{n}{end}" for n in range(3) for end in ("", "/ledger", "/findings")]
        whole.unlink()  # what was not read yet cannot be read any more
        paths += ["api/captures", "api/captures/1/event?table=kernels&row=1"]
        answers = {path: _told(server.url + path) for path in paths}
        assert [path for path, text in answers.items() if "of-somebody" in text] == []
        states = json.loads(answers["api/captures"])["captures"]
        assert [capture["state"] for capture in states] == ["failed", "ready", "failed"]
        assert "cut.sqlite is cut off" in states[0]["message"]
        assert "no such file: gone.sqlite" in states[2]["message"]
        assert str(given[0]) in server.failures[0]  # the terminal may know
