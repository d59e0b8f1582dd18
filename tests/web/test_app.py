"""What the server answers about captures, as frontend/src/timeline/types.ts declares it."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
from starlette.testclient import TestClient

from gpusight.analysis.hotspots.flame_graph import flame_graph
from gpusight.analysis.hotspots.stack_times import hotspots
from gpusight.errors import UsageError
from gpusight.render.html.flame_page import frame_columns
from gpusight.results import NotApplicable
from gpusight.trace.trace import Trace
from gpusight.web.app import FILES, MAX_TIME_NS, MAX_WINDOW_BINS, MAX_WINDOW_TRACKS, RequestQuery
from gpusight.web.loaded_capture import LoadedCapture
from tests.analysis.hotspots.stack_traces import MS, loader_trace
from tests.shared import REPOSITORY
from tests.traces import build_trace
from tests.web.serving import TOKEN, Asking, asking
from tests.web.test_capture_payloads import decoded

EVIL = "</script><img src=x onerror=alert(1)>\x1b[31m"
US = 1000


def _step(number: int) -> dict[str, Any]:
    begin = number * 100 * US
    return {"start_ns": begin, "end_ns": begin + 90 * US, "name": f"step_{number}"}


def _launch(number: int) -> dict[str, Any]:
    begin = number * 10 * US
    return {"start_ns": begin, "end_ns": begin + US, "correlation": number}


def _kernel(number: int) -> dict[str, Any]:
    begin = number * 10 * US + 2 * US
    name = EVIL if number == 7 else f"gemm_{number % 3}"
    return {"start_ns": begin, "end_ns": begin + 5 * US, "name": name, "correlation": number}


TABLES = {
    "kernels": [_kernel(n) for n in range(60)],
    "api_calls": [_launch(n) for n in range(60)],
    "ranges": [_step(n) for n in range(6)],
    "devices": [{"name": "NVIDIA H200"}],
    "processes": [{"process": 1}],
    "threads": [{"process": 1, "thread": 11}],
}


def hand_built(warnings: tuple[str, ...] = ()) -> Trace:
    """Six steps of ten kernels each, launched one by one."""
    return build_trace({"warnings": warnings}, **TABLES)


WHOLE = {"start": 0, "end": 600 * US}


@pytest.fixture(scope="module")
def built() -> Iterator[Asking]:
    with asking(hand_built(("the file is cut off",))) as client:
        yield client


@pytest.fixture(scope="module")
def stream(built: Asking) -> str:
    """Key of the only stream."""
    tracks = built.answer("captures/0")["tracks"]
    return str(next(track["key"] for track in tracks if track["kind"] == "stream"))


def keys_of(interface: str) -> set[str]:
    """Read which keys an interface of types.ts has."""
    source = REPOSITORY / "frontend" / "src" / "timeline" / "types.ts"
    answer = re.search(rf"interface {interface} {{\n(.*?)\n}}", source.read_text(), re.S)
    assert answer is not None
    return set(re.findall(r"^  readonly (\w+):", answer[1], re.M))


def test_the_overview_says_how_far_captures_are(built: Asking) -> None:
    answer = built.answer("captures")
    assert set(answer) == keys_of("Overview")
    assert answer["captures"] == [
        {"id": 0, "name": "built.sqlite", "state": "ready", "message": ""},
    ]
    assert answer["palette"]["compute/matmul"]["light"].startswith("#")
    assert set(built.answer("captures/0")["colors"]) <= set(answer["palette"])


def test_a_capture_is_described(built: Asking) -> None:
    answer = built.answer("captures/0")
    assert set(answer) == keys_of("CaptureInfo")
    assert (answer["id"], answer["name"], answer["tool"]) == (0, "built.sqlite", "built by hand")
    assert answer["gpus"] == ["NVIDIA H200"]
    assert answer["start_ns"] == 0
    assert answer["end_ns"] == 597 * US
    assert "the file is cut off" in answer["notes"]
    assert all(set(track) == keys_of("Track") for track in answer["tracks"])
    assert [step["name"] for step in answer["steps"]] == [f"step_{n}" for n in range(6)]
    assert all(set(step) == keys_of("Step") for step in answer["steps"])


def test_the_first_view_is_a_judged_step_and_a_little_around(built: Asking) -> None:
    answer = built.answer("captures/0")
    judged = next(step for step in answer["steps"] if not step["warmup"])
    view = answer["first_view"]
    assert answer["start_ns"] <= view["start_ns"] <= judged["start_ns"]
    assert judged["end_ns"] <= view["end_ns"] <= judged["end_ns"] + 23 * US


def test_without_steps_the_first_view_is_what_is_judged() -> None:
    early = [{"name": "cudaMalloc", "start_ns": 0, "end_ns": 5}]
    late = [
        {"name": f"k{n}", "start_ns": n, "end_ns": n + 900}
        for n in range(10**9, 10**9 + 9000, 1000)
    ]
    with asking(build_trace(kernels=late, api_calls=early)) as client:
        answer = client.answer("captures/0")
    assert answer["steps"] == []
    assert answer["start_ns"] == 0
    assert 0.99e9 < answer["first_view"]["start_ns"] <= 10**9
    assert answer["first_view"]["end_ns"] == answer["end_ns"]


def test_a_window_holds_what_the_screen_shows(built: Asking, stream: str) -> None:
    data = built.bytes("captures/0/window", **WHOLE, bins=1200, tracks=stream)
    answer = decoded(data)
    assert answer["lines"] == [{"track": stream, "line": 0}]
    assert len(answer["slices"]["start_ns"]) == 60
    assert answer["slices"]["start_ns"][1] == 12 * US
    evil = answer["labels"][answer["slices"]["label"][7]]
    assert "\x1b" not in evil
    coarse = decoded(built.bytes("captures/0/window", **WHOLE, bins=6, tracks=stream))
    assert sum(coarse["bin_sums"]["count"]) == 60
    assert sum(coarse["bin_sums"]["busy_ns"]) == 60 * 5 * US


def test_an_event_is_picked_and_explained(built: Asking, stream: str) -> None:
    spot = built.answer("captures/0/pick", track=stream, line=0, time=13 * US, within=0)
    assert set(spot) == keys_of("Spot")
    assert (spot["table"], spot["row"], spot["start_ns"]) == ("kernels", 1, 12 * US)
    assert built.answer("captures/0/pick", track=stream, line=0, time=10 * US, within=1) is None
    answer = built.answer("captures/0/event", table="kernels", row=1)
    assert set(answer) == keys_of("EventDetails")
    assert answer["spot"] == spot
    assert (answer["kind"], answer["title"]) == ("Kernel", "gemm_1")
    rows = [row for section in answer["sections"] for row in section["rows"]]
    assert all(set(row) == {"name", "value", "meaning"} for row in rows)
    assert "5.000 µs" in [row["value"] for row in rows]
    linked = {link["spot"]["table"] for link in answer["links"]}
    assert {"api_calls", "ranges"} <= linked


def test_names_are_found_and_gone_through(built: Asking) -> None:
    answer = built.answer("captures/0/search", q="gemm_2", limit=5)
    assert set(answer) == keys_of("SearchResult")
    (group,) = answer["groups"]
    assert set(group) == keys_of("SearchGroup")
    assert (group["table"], group["count"], group["total_ns"]) == ("kernels", 20, 20 * 5 * US)
    ask = {"table": "kernels", "code": group["code"]}
    first = built.answer("captures/0/next", **ask, time=-1, direction=1)
    assert (first["row"], first["name"]) == (2, "gemm_2")
    second = built.answer("captures/0/next", **ask, time=first["start_ns"], direction=1)
    assert second["row"] == 5
    last = built.answer("captures/0/next", **ask, time=first["start_ns"], direction=-1)
    assert last["row"] == 59
    assert built.answer("captures/0/next", table="kernels", code=99, time=0) is None


def test_a_stretch_is_measured(built: Asking) -> None:
    answer = built.answer("captures/0/measure", start=0, end=100 * US)
    assert set(answer) == keys_of("Measure")
    (device,) = answer["devices"]
    assert device["busy_ns"] == 10 * 5 * US
    assert sum(kernel["total_ns"] for kernel in answer["kernels"]) == 10 * 5 * US
    assert EVIL not in str(answer)


def test_findings_and_ledger_are_worked_out(built: Asking) -> None:
    answer, ledger = built.answer("captures/0/findings"), built.answer("captures/0/ledger")
    assert set(answer) == keys_of("Findings")
    assert answer["state"] == "ready"
    assert answer["steps"] > 0
    for finding in answer["findings"]:
        assert set(finding) == keys_of("FindingInfo")
        assert finding["places"]
    assert set(ledger) == keys_of("LedgerInfo")
    assert ledger["state"] == "ready"
    (device,) = ledger["devices"]
    assert sum(entry["share"] for entry in device["entries"]) == pytest.approx(1)


def test_one_capture_is_not_compared(built: Asking) -> None:
    answer = built.answer("compare")
    assert set(answer) == keys_of("CompareInfo")
    assert answer["state"] == "none"


@pytest.mark.parametrize(
    ("path", "query", "status", "says"),
    [
        ("captures/1", {}, 404, "no such capture"),
        ("captures/-1", {}, 404, "no such capture"),
        ("captures/x", {}, 404, "no such capture"),
        (f"captures/{'9' * 5000}", {}, 404, "no such capture"),
        ("captures/0/nothing", {}, 404, "Not Found"),
        ("captures/", {}, 404, "Not Found"),
        ("captures//window", {}, 404, "Not Found"),
        ("window", {}, 404, "Not Found"),
        ("captures/0/window", {}, 400, "start is missing"),
        ("captures/0/window", {**WHOLE, "bins": 0, "tracks": "x"}, 400, "from 1 to 8,192"),
        ("captures/0/window", {**WHOLE, "bins": MAX_WINDOW_BINS + 1, "tracks": "x"}, 400, "8,192"),
        ("captures/0/window", {**WHOLE, "bins": "nan", "tracks": "x"}, 400, "bins is 'nan'"),
        ("captures/0/window", {"start": "nan", "end": 1, "bins": 1}, 400, "start is 'nan'"),
        ("captures/0/window", {"start": "-inf", "end": 1, "bins": 1}, 400, "start is '-inf'"),
        ("captures/0/window", {"start": 5, "end": 5, "bins": 1}, 400, "end is not after start"),
        ("captures/0/window", {"start": 0, "end": 2**63, "bins": 1}, 400, "end is "),
        ("captures/0/window", {**WHOLE, "bins": 9}, 400, "tracks is missing"),
        ("captures/0/window", {**WHOLE, "bins": 9, "tracks": "nothing"}, 400, "nothing"),
        ("captures/0/window", {**WHOLE, "bins": 9, "tracks": "../etc/passwd"}, 400, "passwd"),
        (
            "captures/0/window",
            {**WHOLE, "bins": 9, "tracks": ",".join(map(str, range(MAX_WINDOW_TRACKS + 1)))},
            400,
            "at most 1,024 at once",
        ),
        ("captures/0/pick", {"track": "nothing", "line": 0, "time": 0}, 400, "nothing"),
        ("captures/0/pick", {"track": "x" * 300, "line": 0, "time": 0}, 400, "too long"),
        ("captures/0/pick", {"track": "x", "line": -1, "time": 0}, 400, "line is '-1'"),
        ("captures/0/event", {"table": "kernels", "row": 60}, 400, "no row 60"),
        ("captures/0/event", {"table": "kernels", "row": 2**64}, 400, "row is "),
        ("captures/0/event", {"table": "kernels", "row": -1}, 400, "row is '-1'"),
        ("captures/0/event", {"table": "copies", "row": 0}, 400, "no row 0 in copies"),
        ("captures/0/event", {"table": "nothing", "row": 0}, 400, "no events in 'nothing'"),
        ("captures/0/event", {"table": "devices", "row": 0}, 400, "no events in 'devices'"),
        ("captures/0/search", {}, 400, "q is missing"),
        ("captures/0/search", {"q": "x" * 501}, 400, "too long"),
        ("captures/0/search", {"q": "x", "limit": 0}, 400, "from 1 to 1,000"),
        ("captures/0/search", {"q": "/(/"}, 400, "("),
        ("captures/0/next", {"table": "kernels", "code": -1, "time": 0}, 400, "code is '-1'"),
        ("captures/0/next", {"table": "devices", "code": 0, "time": 0}, 400, "devices"),
        ("captures/0/measure", {"start": 0}, 400, "end is missing"),
    ],
)
def test_questions_that_make_no_sense(
    built: Asking, path: str, query: dict[str, object], status: int, says: str
) -> None:
    answer = built.refusal(path, **query)
    assert answer[0] == status
    assert says in answer[1]


@pytest.mark.parametrize("path", FILES)
def test_the_page_is_served(built: Asking, path: str) -> None:
    answer = built.client.get(f"/{TOKEN}{path}")
    assert answer.status_code == 200
    assert answer.headers["content-type"] == f"{FILES[path][1]}; charset=utf-8"
    assert len(answer.content) > 100


@pytest.mark.parametrize(
    "path",
    ["/index.html", "/static/index.html", "/app.py", "/..", "/../app.py", "/%2e%2e/app.py", "//"],
)
def test_no_other_file_is(built: Asking, path: str) -> None:
    assert built.client.get(f"/{TOKEN}{path}").status_code == 404


def test_two_captures_are_compared() -> None:
    with asking(hand_built(), hand_built()) as two:
        answer = two.answer("compare")
        assert answer["state"] == "ready", answer["message"]
        assert answer["explanation"]
        assert set(answer["metrics"][0]) == {"name", "before", "after", "change", "verdict"}
        assert answer["metrics"][0]["name"] == "Step time"


def test_a_bug_is_an_answer_too(built: Asking, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(_: LoadedCapture) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(LoadedCapture, "info", property(broken))
    client = TestClient(
        built.client.app, base_url=str(built.client.base_url), raise_server_exceptions=False
    )
    answer = client.get(f"/{TOKEN}/api/captures/0")
    assert answer.status_code == 500
    assert "internal error: ZeroDivisionError; this is a bug" in answer.text
    assert "Traceback" not in answer.text
    assert answer.headers["x-content-type-options"] == "nosniff"


NUMBERS = {
    "0": 0,
    "-3": -3,
    "+4": 4,
    "12.9": 12,
    "-0.5": -1,
    "1e3": 1000,
    str(2**53 + 1): 2**53 + 1,
    str(MAX_TIME_NS): MAX_TIME_NS,
    "": None,
    "x": None,
    "nan": None,
    "NaN": None,
    "inf": None,
    "-Infinity": None,
    "1e400": None,
    "1e30": None,
    "0x10": None,
    "1,000": None,
    "9" * 41: None,
    "9" * 5000: None,
    "\u0663": 3,
}


@pytest.mark.parametrize(("text", "value"), NUMBERS.items(), ids=[n[:12] for n in NUMBERS])
def test_times(text: str, value: int | None) -> None:
    if value is None:
        with pytest.raises(UsageError, match=r"^t is "):
            RequestQuery({"t": text}).time("t")
    else:
        assert RequestQuery({"t": text}).time("t") == value


@pytest.mark.parametrize(("text", "fits"), [("0", False), ("1", True), ("8", True), ("9", False)])
def test_bounds(text: str, fits: bool) -> None:
    if fits:
        assert RequestQuery({"n": text}).whole("n", 1, 8) == int(text)
    else:
        with pytest.raises(UsageError, match="not a number from 1 to 8"):
            RequestQuery({"n": text}).whole("n", 1, 8)


def test_what_is_missing_is_named() -> None:
    with pytest.raises(UsageError, match=r"^n is missing$"):
        RequestQuery({}).whole("n", 0, 1)
    assert RequestQuery({}).whole("n", 0, 9, default=5) == 5


def test_a_stretch_has_a_length() -> None:
    assert RequestQuery({"start": "-1", "end": "1"}).stretch() == (-1, 1)
    for start, end in (("1", "1"), ("2", "1")):
        with pytest.raises(UsageError, match="end is not after start"):
            RequestQuery({"start": start, "end": end}).stretch()


def test_names_are_distinct_and_bounded() -> None:
    assert RequestQuery({"k": "a,b,,a"}).names("k", 2, 5) == ["a", "b"]
    assert RequestQuery({"k": ""}).names("k", 2, 5) == []
    with pytest.raises(UsageError, match="3 names: at most 2 at once"):
        RequestQuery({"k": "a,b,c"}).names("k", 2, 5)
    with pytest.raises(UsageError, match="too long"):
        RequestQuery({"k": "x" * 13}).names("k", 2, 5)


def test_a_stretch_of_time_has_a_flame_graph_that_is_that_of_hotspots() -> None:
    trace = loader_trace()
    window = {"start": 20 * MS, "end": 60 * MS, "track": ""}
    with asking(loader_trace()) as client:
        answer = client.answer("captures/0/flame", **window, of="idle", by="line")
        made = hotspots(trace, of="idle", by="line", window=(20 * MS, 60 * MS))
        assert not isinstance(made, NotApplicable)
        assert answer["columns"] == json.loads(json.dumps(frame_columns(flame_graph(made))))
        names, host = answer["columns"]["names"], answer["columns"]["host"]
        assert "collate (train.py:88)" in names
        assert host[0] == made.meta["idle_ns"]
        launched = client.answer("captures/0/flame", **window, of="launches", by="function")
        assert (
            sum(
                v
                for v, p in zip(*(launched["columns"][k] for k in ("host", "parent")), strict=True)
                if p < 0
            )
            == 2
        )
        nothing = client.answer("captures/0/flame", **window, of="memory", by="line")
        assert nothing["columns"] is None
        assert "nothing to show of: device memory allocated" in nothing["message"]
        for wrong in (
            {"of": "x", "by": "line"},
            {"of": "idle", "by": "x"},
            {"of": "y" * 99, "by": "line"},
            {"of": "idle", "by": "line", "track": "gpu9/ledger"},
            {"of": "idle", "by": "line", "track": "gpu0/ledger,gpu0/stream7"},
        ):
            status, _ = client.refusal("captures/0/flame", **(window | wrong))
            assert status == 400


def test_without_stacks_the_flame_graph_says_how_to_record_them(built: Asking) -> None:
    answer = built.answer("captures/0/flame", **WHOLE, track="", of="idle", by="line")
    assert answer["columns"] is None
    assert "gpusight record" in answer["message"]
    ranges = built.answer("captures/0/flame", **WHOLE, track="", of="idle", by="range")
    assert "step_#" in ranges["columns"]["names"]
