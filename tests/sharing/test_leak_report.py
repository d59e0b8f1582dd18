"""What a curious reader of a copy would try: each of these once told something."""

from __future__ import annotations

import gzip
import json
import os
import shutil
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

import gpusight as gs
from gpusight.errors import GpusightError, UsageError
from gpusight.sharing.leak_report import Category, identifying_values, suspicions, without_homes
from gpusight.sharing.nsys_survey import thread_name
from gpusight.sharing.sanitized_copy import options_of, share
from tests.shared import DATA, full_disk

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

CAPTURE = DATA / "gpt_small_forward.sqlite"
SUPERUSER = "root"
"""Whose home is a folder of its own, beside those of people."""
OPERATOR = {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 7, "tid": 7, "dur": 2}


def _altered(path: Path, *statements: str) -> Path:
    shutil.copyfile(CAPTURE, path)
    with closing(sqlite3.connect(path)) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()
    return path


def _trace(path: Path, times: Sequence[float]) -> Path:
    events = [{**OPERATOR, "ts": time} for time in times]
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))
    return path


def _times(path: Path, folder: Path) -> list[float]:
    copy = share(path, folder / f"{path.stem}.copy.json", options_of()).path
    assert copy is not None
    return [event["ts"] for event in json.loads(copy.read_text())["traceEvents"]]


# When --------------------------------------------------------------------------------------------


def test_times_since_the_quarter_began_tell_no_date(tmp_path: Path) -> None:
    base = 227 * 7889238  # seconds, as PyTorch rounds them down for baseTimeNanoseconds
    now = (1_794_767_000 - base) * 1e6
    shown = _times(_trace(tmp_path / "t.json", [now, now + 5.25, now + 90e6]), tmp_path)
    assert [round(time - shown[0], 3) for time in shown] == [0, 5.25, 90e6]
    assert max(shown) < 10**10


def test_a_clock_that_passes_the_threshold_is_not_torn_apart(tmp_path: Path) -> None:
    for name, start in (("below", 10**10 - 5), ("above", 10**10 + 5)):
        times = [start, start + 20, start - 20, 0]
        shown = _times(_trace(tmp_path / f"{name}.json", times), tmp_path)
        assert [time - shown[0] for time in shown[:3]] == [0, 20, -20]
        assert shown[3] == 0


def test_one_event_at_zero_does_not_keep_the_date_of_the_others(tmp_path: Path) -> None:
    now = 1_794_767_000_000_000_000
    path = _altered(
        tmp_path / "run.sqlite",
        f"UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET start = start + {now}, end = end + {now}",
        f"UPDATE DIAGNOSTIC_EVENT SET timestamp = timestamp + {now}",
    )
    share(path, tmp_path / "copy.sqlite", options_of())
    with closing(sqlite3.connect(tmp_path / "copy.sqlite")) as db:
        for table, column in (
            ("CUPTI_ACTIVITY_KIND_KERNEL", "start"),
            ("CUPTI_ACTIVITY_KIND_KERNEL", "end"),
            ("DIAGNOSTIC_EVENT", "timestamp"),
        ):
            (last,) = db.execute(f"SELECT max({column}) FROM {table}").fetchone()
            assert last < 1 << 55


# Texts -------------------------------------------------------------------------------------------


def test_registered_texts_of_events_without_a_name_are_left_out(tmp_path: Path) -> None:
    path = _altered(
        tmp_path / "run.sqlite",
        "INSERT INTO StringIds (id, value) VALUES (987654, 'Xq7vThreadOfAlice')",
        "UPDATE NVTX_EVENTS SET eventType = 39, text = NULL, textId = 987654 WHERE rowid = 2",
    )
    share(path, tmp_path / "copy.sqlite", options_of())
    assert b"Xq7vThreadOfAlice" not in (tmp_path / "copy.sqlite").read_bytes()


@pytest.mark.parametrize(
    "name", ["ray::AcmeTrainer", "pt_acme_serving", "nccl acme", "python/home"]
)
def test_threads_that_a_program_named_are_not_kept(name: str) -> None:
    assert thread_name(name) == "thread"


@pytest.mark.parametrize(
    "name", ["pt_autograd_12", "pt_main_thread", "pt_nccl_watchdg", "NCCL I/O Thr"]
)
def test_threads_of_frameworks_are_kept(name: str) -> None:
    assert thread_name(name) == name


@pytest.mark.parametrize(
    ("name", "cut"),
    [
        ("load /home/alice/x.bin", "load ~/x.bin"),
        ("/nfs/data/home/alice/x", "~/x"),
        ("C:\\Users\\alice\\x", "~\\x"),
        (f"/{SUPERUSER}/x", "~/x"),
        ("/rooted/x and/or", "/rooted/x and/or"),
    ],
)
def test_home_folders_are_cut(name: str, cut: str) -> None:
    assert without_homes(name) == cut


def test_home_folders_are_cut_in_annotations_of_traces_too(tmp_path: Path) -> None:
    event = {**OPERATOR, "cat": "user_annotation", "name": "load /home/alice/x.bin", "ts": 1}
    path = tmp_path / "t.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": [event]}))
    share(path, tmp_path / "copy.json", options_of())
    assert "alice" not in (tmp_path / "copy.json").read_text()


# Names that are kept -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "category"),
    [
        ("load /mnt/acme/train.bin", Category.FILE_PATHS),
        ("~/x/model.safetensors", Category.FILE_PATHS),
        ("D:\\acme\\x", Category.FILE_PATHS),
        ("s3://acme/key", Category.NETWORK),
        ("to 10.0.17.4", Category.NETWORK),
        ("of alice@example.org", Category.USER_NAMES),
        ("Bearer abcdefgh123", Category.CREDENTIALS),
        ("AKIAIOSFODNN7EXAMPLE", Category.CREDENTIALS),
        ("get?sig=abc123def", Category.CREDENTIALS),
        ("sk-proj-abcdefghijklmnop", Category.CREDENTIALS),
        ("request 123e4567-e89b-12d3-a456-426614174000", Category.HARDWARE_IDS),
    ],
)
def test_names_that_look_like_more_are_told(name: str, category: Category) -> None:
    assert category in [result for result, _ in suspicions(name)]


@pytest.mark.parametrize(
    "name",
    [
        "forward/backward",
        "/layer1/layer1.0/conv1/Conv + /layer1/Relu",
        "tokens: 128, token=17",
        "void at::native::vectorized_elementwise_kernel<4, at::native::FillFunctor<float>>(int)",
        "ProfilerStep#12",
        "aten::add_ (1.2.3)",
        "Torch-Compiled Region: 0/0",
        "a @ b.T",
        "12:30:45 step",
    ],
)
def test_ordinary_names_are_not(name: str) -> None:
    assert list(suspicions(name)) == []


@pytest.mark.parametrize("name", ["copy.sqlite", "folder"])
def test_suspects_are_counted_before_and_after_and_never_shown(tmp_path: Path, name: str) -> None:
    path = _altered(
        tmp_path / "run.sqlite",
        "UPDATE NVTX_EVENTS SET text = 's3://acme-bucket/x' WHERE rowid = 3",
    )
    looked, written = gs.share_check(path), gs.share(path, tmp_path / name)
    for view in (looked, written):
        assert [(leak.category, leak.count) for leak in view.suspects] == [(Category.NETWORK, 1)]
        assert "look like" in view.to_text() or "looks like" in view.to_text()
        assert "acme" not in view.to_text() + view.to_json()
    assert gs.share_check(path, hash_names=True).suspects == ()


def test_values_of_variables_and_words_of_commands_are_looked_for(tmp_path: Path) -> None:
    path = _altered(
        tmp_path / "run.sqlite",
        "UPDATE META_DATA_CAPTURE SET name = 'PROCESS_0:ENVIRONMENT_VARIABLE',"
        " value = 'SOME_TOKEN=\"hunter2-xyzzy\"' WHERE rowid = 1",
        "UPDATE META_DATA_CAPTURE SET name = 'PROCESS_0:ENVIRONMENT_VARIABLE',"
        " value = 'LOGNAME=\"agath\"' WHERE rowid = 2",
        "UPDATE META_DATA_CAPTURE SET name = 'PROCESS_0:COMMAND_LINE',"
        " value = 'x --key=plugh-4711 y' WHERE rowid = 3",
        "UPDATE NVTX_EVENTS SET text = 'hunter2-xyzzy of agath plugh-4711' WHERE rowid = 3",
    )
    remains = gs.share(path, tmp_path / "copy.sqlite").remains
    assert {(leak.category, leak.count) for leak in remains} == {
        (Category.ENVIRONMENT, 1),
        (Category.USER_NAMES, 1),
        (Category.COMMAND_LINES, 1),
    }


def test_words_that_everyone_uses_are_not_looked_for() -> None:
    hidden = [
        (Category.ENVIRONMENT, "CONDA_DEFAULT_ENV=pytorch"),
        (Category.COMMAND_LINES, "python3 train.py --batch 128"),
        (Category.HARDWARE_IDS, "Ubuntu"),
        (Category.USER_NAMES, "root"),
    ]
    assert identifying_values(hidden) == {}
    grammar = identifying_values([(Category.ENVIRONMENT, "F=() { return script; }")])
    assert not {"return", "script"} & grammar.keys()


# Names of files ----------------------------------------------------------------------------------


def test_a_copy_is_not_called_after_host_and_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    path = _trace(tmp_path / "node77_4711.1623143566756.pt.trace.json", [1])
    copy = gs.share(path).path
    assert copy is not None
    assert copy.name == "capture.shared.json.gz"
    assert gzip.decompress(copy.read_bytes()).startswith(b"{")


def test_a_removed_value_in_the_name_of_the_copy_is_said(tmp_path: Path) -> None:
    path = _altered(
        tmp_path / "run.sqlite",
        "UPDATE TARGET_INFO_SYSTEM_ENV SET value = 'node77xy' WHERE name = 'Hostname'",
    )
    (leak,) = gs.share(path, tmp_path / "run-node77xy.sqlite").remains
    assert (leak.category, leak.where) == (Category.HOST_NAMES, "name of the file")


def test_an_empty_salt_is_refused() -> None:
    with pytest.raises(UsageError, match="salt is empty"):
        options_of(hash_names=True, salt="")


# Odd files ---------------------------------------------------------------------------------------


def test_texts_and_blobs_in_columns_of_numbers(tmp_path: Path) -> None:
    path = tmp_path / "run.sqlite"
    shutil.copyfile(CAPTURE, path)
    with closing(sqlite3.connect(path)) as db:
        for table in ("CUPTI_ACTIVITY_KIND_KERNEL", "CUPTI_ACTIVITY_KIND_RUNTIME", "NVTX_EVENTS"):
            for row in db.execute(f"PRAGMA table_info({table})").fetchall():
                for number, value in ((1, "Xq7vSecret"), (2, b"Xq7vSecret\xff\xfe")):
                    column: str = row[1]
                    update = f'UPDATE {table} SET "{column}" = ? WHERE rowid = {number}'
                    db.execute(update, (value if column != "text" else b"\xff\xfe",))
        db.commit()
    for name in ("copy.sqlite", "copy"):
        copy = share(path, tmp_path / name, options_of()).path
        assert copy is not None
        files = [copy] if copy.is_file() else sorted(copy.iterdir())
        assert not any(b"Xq7vSecret" in file.read_bytes() for file in files)


def _broken(folder: Path) -> list[Path]:
    whole = {
        "cut.sqlite": CAPTURE.read_bytes()[:5000],
        "cut.nsys-rep": (DATA / "graph.nsys-rep").read_bytes()[:3000],
        "empty.sqlite": b"",
        "empty.json": b"",
        "cut.ncu-rep": b"NVR\0\x10",
        "cut.json.gz": gzip.compress(b'{"traceEv')[:-9],
    }
    for name, data in whole.items():
        (folder / name).write_bytes(data)
    (folder / "folder").mkdir()
    os.mkfifo(folder / "pipe.sqlite")
    return sorted(folder.iterdir())


def test_what_is_broken_is_refused_in_one_line_and_leaves_nothing(tmp_path: Path) -> None:
    before = _broken(tmp_path)
    for path in before:
        with pytest.raises(GpusightError) as raised:
            share(path, tmp_path / "copy.sqlite", options_of())
        assert "\n" not in str(raised.value), path.name
        assert sorted(tmp_path.iterdir()) == before, path.name


def test_a_full_disk_is_said_in_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with full_disk(3_000):
        for capture, name in (
            (CAPTURE, "c.sqlite"),
            (CAPTURE, "c"),
            (DATA / "torch_odd.json.gz", "c.json"),
        ):
            refused = f"cannot write {name}: (File too large|Input.output error); make room"
            with pytest.raises(GpusightError, match=refused) as raised:
                share(capture, tmp_path.__class__(name), options_of())
            assert "\n" not in str(raised.value)
            assert not list(tmp_path.iterdir())
