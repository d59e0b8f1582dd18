"""Copies of nsys captures: nothing of what is secret is in them, and they still answer the same."""

from __future__ import annotations

import io
import json
import re
from contextlib import redirect_stderr, redirect_stdout
from functools import cache
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from gpusight.cli.main import main
from gpusight.readers.nsys.native_report import ReportTables
from gpusight.readers.open import open_trace
from gpusight.sharing.leak_report import Category, Treatment, is_identifying
from gpusight.sharing.nsys_survey import diagnosis, session_values, thread_name
from gpusight.sharing.sanitized_copy import check, options_of, share
from tests.shared import DATA, EVERY_REPORT, EVERY_SQLITE, needs_shared
from tests.sharing.planted import Planted, as_parquet, is_in, plant

KEPT = {
    "StringIds.value",  # names of kernels, ranges and calls that events refer to
    "NVTX_EVENTS.text",
    "TARGET_INFO_NVTX_CUDA_STREAM.name",
    "TARGET_INFO_GPU_METRICS.metricName",
    "TARGET_INFO_GPU_METRICS.typeName",
}
"""The texts of a program that a copy keeps unless names are hashed; no others."""
COMMANDS = ("summary", "kernels", "ranges", "api", "copies", "steps", "ledger", "diagnose")
OWNERS = {"pid", "tid", "process", "thread"}
TINY = DATA / "gpt_tiny_osrt.sqlite"


def _copy(capture: Path, target: Path, *, hash_names: bool = False, to: str | None = None) -> Path:
    shared = share(capture, target, options_of(hash_names=hash_names), to=to)
    assert shared.path == target
    return target


@pytest.fixture(scope="module")
def planted(tmp_path_factory: pytest.TempPathFactory) -> Planted:
    return plant(TINY, tmp_path_factory.mktemp("planted") / "run.sqlite")


@pytest.fixture(scope="module")
def planted_folder(planted: Planted, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("parquet") / "folder"
    as_parquet(planted, folder)
    return folder


@pytest.fixture(scope="module")
def tiny_copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return _copy(TINY, tmp_path_factory.mktemp("tiny") / "copy.sqlite")


def test_secrets_are_really_planted(planted: Planted) -> None:
    content = planted.path.read_bytes()
    assert len(planted.places) > 300
    empty = {place for text, place in planted.places.items() if text.encode() not in content}
    # Tables without rows, numbers that cannot be replaced, and the blob in another encoding.
    assert "NVTX_EVENTS.text" not in empty
    assert "TARGET_INFO_SYSTEM_ENV.value" not in empty
    assert len(planted.places) - len(empty) > 200


@pytest.mark.parametrize("to", ["sqlite", "parquet"])
def test_no_secret_is_in_a_copy_but_in_names_that_are_kept(
    planted: Planted, tmp_path: Path, to: str
) -> None:
    copy = _copy(planted.path, tmp_path / f"copy.{to}", to=to)
    places = planted.found_in(copy)
    assert places <= KEPT
    assert {"StringIds.value", "NVTX_EVENTS.text"} <= places


@pytest.mark.parametrize("to", ["sqlite", "parquet"])
def test_no_secret_at_all_is_in_a_copy_with_hashed_names(
    planted: Planted, tmp_path: Path, to: str
) -> None:
    copy = _copy(planted.path, tmp_path / f"copy.{to}", to=to, hash_names=True)
    assert planted.found_in(copy) == set()


@pytest.mark.parametrize("hash_names", [False, True])
def test_no_secret_of_a_parquet_folder_is_in_its_copy(
    planted: Planted, planted_folder: Path, tmp_path: Path, *, hash_names: bool
) -> None:
    copy = _copy(planted_folder, tmp_path / "copy.sqlite", hash_names=hash_names)
    assert planted.found_in(copy) <= (set() if hash_names else KEPT)


@needs_shared
@pytest.mark.wide
def test_secrets_of_other_captures(tmp_path: Path) -> None:
    for number, capture in enumerate(EVERY_SQLITE[::15]):
        planted = plant(capture, tmp_path / f"{number}.sqlite")
        for hash_names, kept in ((False, KEPT), (True, set())):
            copy = _copy(
                planted.path, tmp_path / f"{number}{hash_names}.sqlite", hash_names=hash_names
            )
            assert planted.found_in(copy) <= kept, capture.name


@pytest.mark.parametrize("report", sorted(DATA.glob("*.nsys-rep")), ids=lambda p: p.name)
def test_nothing_that_a_native_report_tells_of_its_session_is_in_a_copy(
    report: Path, tmp_path: Path
) -> None:
    _check_session(report, tmp_path)


@needs_shared
@pytest.mark.wide
def test_sessions_of_other_reports(tmp_path: Path) -> None:
    for number, report in enumerate(EVERY_REPORT[::3]):
        _check_session(report, tmp_path / str(number))


def _check_session(report: Path, folder: Path) -> None:
    folder.mkdir(exist_ok=True)
    values = list(session_values(ReportTables(report, cache=False)))
    assert {category for category, _, _ in values} >= {Category.HOST_NAMES, Category.COMMAND_LINES}
    content = _copy(report, folder / "copy.sqlite").read_bytes()
    for category, where, value in values:
        if is_identifying(value, category) and len(value) > 8:
            assert not is_in(value, content), (report.name, category, where)


# The same answers --------------------------------------------------------------------------------


def _ask(command: str, capture: Path) -> Any:
    out, errors = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(errors):
        code = main([command, str(capture), "--format", "json", "--no-cache", "--top", "0"])
    text = out.getvalue().replace(str(capture), "FILE").replace(capture.name, "FILE")
    return [code, _without_owners(json.loads(text)) if text else None]


_ask_capture = cache(_ask)
"""Answers of captures, which several copies are compared with."""


def _without_owners(value: Any) -> Any:
    """Leave out the numbers of processes and threads, which a copy has others of."""
    if isinstance(value, dict):
        return {k: _without_owners(v) for k, v in value.items() if k.lower() not in OWNERS}
    if isinstance(value, str):
        return re.sub(r"\bprocess \d+", "process N", value)
    return [_without_owners(v) for v in value] if isinstance(value, list) else value


def _numbers(value: Any) -> Any:
    """Leave out texts: those are what hashing changes."""
    if isinstance(value, dict):
        return {k: _numbers(v) for k, v in value.items()}
    if isinstance(value, list):
        return [_numbers(v) for v in value]
    return None if isinstance(value, str) else value


OWN = [
    DATA / name
    for name in (
        "gpt_small_forward.sqlite",
        "graph_node.sqlite",
        "graph.nsys-rep",
        "dataload.sqlite",
    )
]


@pytest.mark.parametrize("capture", OWN, ids=lambda p: p.name)
def test_copies_answer_as_the_capture_does(capture: Path, tmp_path: Path) -> None:
    _check_answers(capture, tmp_path, "sqlite")


@pytest.mark.parametrize(
    "capture",
    [OWN[0], *(pytest.param(path, marks=pytest.mark.wide) for path in OWN[1:])],
    ids=lambda p: p.name,
)
def test_folders_of_parquet_answer_as_the_capture_does(capture: Path, tmp_path: Path) -> None:
    _check_answers(capture, tmp_path, "parquet")


def _check_answers(capture: Path, tmp_path: Path, to: str) -> None:
    copy = _copy(capture, tmp_path / f"unlike-any-name.{to}", to=to)
    for command in COMMANDS:
        assert _ask(command, copy) == _ask_capture(command, capture), command


@pytest.mark.parametrize("capture", OWN, ids=lambda p: p.name)
def test_copies_with_hashed_names_give_the_same_numbers(capture: Path, tmp_path: Path) -> None:
    copy = _copy(capture, tmp_path / "unlike-any-name.sqlite", hash_names=True)
    for command in COMMANDS:
        assert _numbers(_ask(command, copy)) == _numbers(_ask_capture(command, capture)), command


def test_a_copy_has_nothing_more_to_lose(tiny_copy: Path, tmp_path: Path) -> None:
    leaks = check(tiny_copy, options_of()).leaks
    assert not [leak for leak in leaks if leak.treatment is Treatment.REMOVED]
    again = _copy(tiny_copy, tmp_path / "again.sqlite")
    assert _ask("summary", again) == _ask("summary", tiny_copy)


# Single tables -----------------------------------------------------------------------------------


def test_numbers_of_processes_and_threads_are_replaced_in_their_order(tiny_copy: Path) -> None:
    before, after = (open_trace(path, cache=False) for path in (TINY, tiny_copy))
    calls = [t.table("api_calls", ["thread", "start_ns"])["thread"] for t in (before, after)]
    assert calls[0].rank("dense").to_list() == calls[1].rank("dense").to_list()
    used = after.table("threads", ["tid", "process"])
    assert used["tid"].max() <= used.height + 1  # type: ignore[operator]
    mains = [
        t.table("threads", ["tid", "process"]).filter(
            pl.col("tid") == pl.col("process") % (1 << 24)
        )
        for t in (before, after)
    ]
    assert mains[1].height == 1 <= mains[0].height


def test_processes_without_events_are_left_out(tmp_path: Path) -> None:
    capture = DATA / "dataload.sqlite"
    copy = open_trace(_copy(capture, tmp_path / "c.sqlite"), cache=False)
    assert copy.table("processes", ["name"])["name"].cast(pl.String).to_list() == ["python 1"]
    assert open_trace(capture, cache=False).table("processes", ["pid"]).height > 1


def test_times_of_the_calendar_are_shifted(tmp_path: Path) -> None:
    from contextlib import closing
    from sqlite3 import connect

    now = 1_700_000_000_000_000_000
    path = tmp_path / "utc.sqlite"
    with closing(connect(path)) as db:
        db.execute("CREATE TABLE StringIds (id INTEGER, value TEXT)")
        db.execute("INSERT INTO StringIds VALUES (1, 'add')")
        db.execute(
            "CREATE TABLE CUPTI_ACTIVITY_KIND_KERNEL (start INTEGER, end INTEGER, deviceId INTEGER,"
            " streamId INTEGER, globalPid INTEGER, demangledName INTEGER, shortName INTEGER)"
        )
        for at in (0, 500):
            row = (now + at, now + at + 100, 0, 7, 77 << 24, 1, 1)
            db.execute("INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, ?, ?, ?, ?)", row)
        db.commit()
    copy = _copy(path, tmp_path / "copy.sqlite")
    with closing(connect(copy)) as db:
        rows = db.execute("SELECT start, end, globalPid FROM CUPTI_ACTIVITY_KIND_KERNEL").fetchall()
    assert rows == [(0, 100, 1 << 24), (500, 600, 1 << 24)]


def test_look_and_write_count_the_same(tmp_path: Path) -> None:
    for capture in (TINY, DATA / "odd_node.nsys-rep"):
        shared = share(capture, tmp_path / f"{capture.stem}.sqlite", options_of())
        assert list(shared.leaks) == list(check(capture, options_of()).leaks)


def test_home_folders_in_names_of_ranges_are_cut(tmp_path: Path) -> None:
    from contextlib import closing
    from sqlite3 import connect

    path = tmp_path / "homes.sqlite"
    with closing(connect(path)) as db:
        db.execute(
            "CREATE TABLE NVTX_EVENTS (start INTEGER, end INTEGER, eventType INTEGER, text TEXT,"
            " globalTid INTEGER)"
        )
        db.execute(
            "INSERT INTO NVTX_EVENTS VALUES (1, 2, 59, '/home/alice/run.py: step', 16777217)"
        )
        db.execute("INSERT INTO NVTX_EVENTS VALUES (1, 2, 39, 'some other text', 16777217)")
        db.commit()
    copy = _copy(path, tmp_path / "copy.sqlite")
    with closing(connect(copy)) as db:
        texts = db.execute("SELECT text FROM NVTX_EVENTS").fetchall()
    assert texts == [("~/run.py: step",), (None,)]


@pytest.mark.parametrize(
    ("expected", "kept"),
    [
        ("Number of CUDA events dropped: 12.", "Number of CUDA events dropped: 12."),
        ("see /tmp/nvidia/log of alice", "see … of …"),
        ("TOKEN=abc lost", "… lost"),
        ("Process 1784 was launched by the profiler", "Process … was launched by the profiler"),
        ("events lost on 10.0.0.17 at 12:30:45", "events lost on … at …"),
        ("CUDA library 12.9 is not supported", "CUDA library 12.9 is not supported"),
    ],
)
def test_messages_keep_the_words_of_the_profiler_only(expected: str, kept: str) -> None:
    assert diagnosis(expected) == kept


def test_threads_keep_names_that_everybody_has() -> None:
    names = ("python3", "pt_autograd_0", "cuda-EvtHandlr", "acme-worker", "python3 /home/me/x.py")
    assert [thread_name(n) for n in names] == [*names[:3], "thread", "thread"]


_SMALL = [path for path in (*EVERY_SQLITE, *EVERY_REPORT) if path.stat().st_size < 400_000]


@needs_shared
@pytest.mark.parametrize("capture", _SMALL, ids=lambda p: p.name)
def test_every_capture_has_a_copy_that_answers(capture: Path, tmp_path: Path) -> None:
    copy = _copy(capture, tmp_path / "unlike-any-name.sqlite")
    hashed = _copy(capture, tmp_path / "hashed-unlike.sqlite", hash_names=True)
    for command in ("kernels", "steps"):
        answer = _ask_capture(command, capture)
        assert _ask(command, copy) == answer, command
        assert _numbers(_ask(command, hashed)) == _numbers(answer), command
