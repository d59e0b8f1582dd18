"""Captures on their way: reading, ready, failed; what is worked out behind; and the end of it."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gpusight.errors import CaptureError, UsageError
from gpusight.web import analysis_payloads, capture_payloads
from gpusight.web.app import RequestQuery, RouteRequest, window
from gpusight.web.session import Opened, Session
from tests.shared import DATA
from tests.traces import build_trace
from tests.web.serving import asking
from tests.web.test_app import hand_built

if TYPE_CHECKING:
    from gpusight.trace.trace import Trace
    from gpusight.web.payloads import CaptureInfo, LedgerInfo

BROKEN = Opened("broken.sqlite", CaptureError("broken.sqlite cannot be read", why="it is cut off"))
REPORT = DATA / "thrice.ncu-rep.xz"


def test_one_that_fails_is_told_beside_the_others() -> None:
    with asking(BROKEN, hand_built()) as both:
        first, second = both.answer("captures")["captures"]
        assert first == {
            "id": 0,
            "name": "broken.sqlite",
            "state": "failed",
            "message": "broken.sqlite cannot be read: it is cut off",
        }
        assert (second["id"], second["state"]) == (1, "ready")
        for question in ("findings", "ledger"):
            answer = both.answer(f"captures/0/{question}")
            assert (answer["state"], answer["message"]) == ("failed", first["message"])
        status, why = both.refusal("captures/0")
        assert status == 404
        assert "it is cut off" in why
        assert both.session.failure is None


def test_reports_are_joined_and_are_no_captures() -> None:
    with asking(hand_built(), REPORT) as both:
        assert [row["name"] for row in both.answer("captures")["captures"]] == ["built.sqlite"]
        assert both.refusal("captures/1") == (404, "no such capture")
        assert len(both.session.reports) == 1
        assert both.answer("captures/0/event", table="kernels", row=0)["title"] == "gemm_0"
        findings = both.answer("captures/0/findings")
        assert findings["state"] == "ready"
        assert any("the report has no kernel of the window" in note for note in findings["notes"])


@pytest.mark.parametrize(
    ("files", "kind", "says"),
    [
        ([REPORT], UsageError, "gpusight diagnose"),
        ([BROKEN], CaptureError, "it is cut off"),
        ([REPORT, BROKEN], CaptureError, "it is cut off"),
    ],
)
def test_where_nothing_can_be_shown_the_reason_is_known(
    files: list[Path | Opened], kind: type[Exception], says: str
) -> None:
    with asking(*files) as nothing:
        assert isinstance(nothing.session.failure, kind)
        assert says in str(nothing.session.failure)


def test_a_capture_without_events_says_why() -> None:
    with asking(build_trace(devices=[{}])) as client:
        (state,) = client.answer("captures")["captures"]
        assert state["state"] == "failed"
        assert state["message"]


def test_a_capture_without_gpu_work_has_a_timeline_but_no_ledger() -> None:
    rows = [{"start_ns": 0, "end_ns": 10, "name": "load"}]
    with asking(build_trace(ranges=rows)) as client:
        assert client.answer("captures/0")["tracks"]
        for question in ("findings", "ledger"):
            answer = client.answer(f"captures/0/{question}")
            assert answer["state"] == "failed"
            assert "no GPU" in answer["message"]


def test_a_capture_that_is_still_read_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    go_on, usual = threading.Event(), capture_payloads.capture_payload

    def slow(*given: Any) -> CaptureInfo:
        assert go_on.wait(10)
        return usual(*given)

    monkeypatch.setattr(capture_payloads, "capture_payload", slow)
    with asking(hand_built(), wait=False) as client:
        (state,) = client.answer("captures")["captures"]
        assert (state["state"], state["message"]) == ("reading", "reading the capture")
        why = "built.sqlite cannot be shown: reading the capture"
        assert client.refusal("captures/0") == (404, why)
        assert client.session.failure is None
        go_on.set()
        assert client.session.captures[0].settled.wait(10)
        assert client.answer("captures")["captures"][0]["state"] == "ready"


def test_the_timeline_does_not_wait_for_what_is_worked_out_later(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    go_on = threading.Event()
    usual = analysis_payloads.ledger_payload

    def slow(trace: Trace) -> LedgerInfo:
        assert go_on.wait(10)
        return usual(trace)

    monkeypatch.setattr(analysis_payloads, "ledger_payload", slow)
    with asking(hand_built(), wait=False) as client:
        served = client.session.captures[0]
        assert served.settled.wait(10)
        assert client.answer("captures/0")["tracks"]
        assert client.answer("captures/0/ledger")["state"] == "computing"
        assert client.answer("captures/0/findings")["state"] == "computing"
        assert client.answer("compare")["state"] == "computing"
        go_on.set()
        assert served.done.wait(10)
        assert client.answer("captures/0/ledger")["state"] == "ready"


def test_what_computes_ends_when_the_session_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def endless(trace: Trace) -> LedgerInfo:
        while True:
            begun.set()
            trace.table("kernels", ["start_ns"])
            time.sleep(0.001)

    monkeypatch.setattr(analysis_payloads, "ledger_payload", endless)
    session = Session([Opened("x", hand_built(), owned=False)])
    session.start()
    assert begun.wait(10)
    began = time.monotonic()
    session.stop()
    assert time.monotonic() - began < 0.5
    assert not any(thread.is_alive() for thread in session._threads)


@pytest.mark.parametrize("debug", ["0", "1"])
def test_a_bug_is_shown_on_the_page_and_with_debug_its_traceback_on_the_terminal(
    monkeypatch: pytest.MonkeyPatch, debug: str
) -> None:
    monkeypatch.setenv("GPUSIGHT_DEBUG", debug)
    raised: list[type[BaseException]] = []
    monkeypatch.setattr(threading, "excepthook", lambda answer: raised.append(answer.exc_type))

    def broken(_: Trace) -> LedgerInfo:
        raise ZeroDivisionError

    monkeypatch.setattr(analysis_payloads, "ledger_payload", broken)
    with asking(hand_built()) as client:
        assert client.answer("captures/0")["tracks"]
        for question in ("findings", "ledger"):
            answer = client.answer(f"captures/0/{question}")
            assert answer["state"] == "failed"
            assert "bug" in answer["message"]
    assert raised == ([ZeroDivisionError] if debug == "1" else [])


@pytest.mark.skipif(sys.platform != "linux", reason="reads how much memory the process has")
def test_memory_does_not_grow_with_requests() -> None:
    with asking(DATA / "gpt_small_forward.sqlite") as client:
        served = client.session.captures[0]
        info = served.info
        keys = ",".join(track.key for track in info.tracks)

        def look_around(times: int) -> None:
            for number in range(times):
                start = info.start_ns + number * 1000
                query = {"start": start, "end": info.end_ns, "bins": 1500, "tracks": keys}
                given = RequestQuery({name: str(value) for name, value in query.items()})
                window(RouteRequest(served, given, ()))

        look_around(30)
        before = _resident_bytes()
        look_around(90)
        assert _resident_bytes() - before < 10_000_000


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def test_a_session_that_never_started_can_be_stopped() -> None:
    Session([BROKEN]).stop()
