"""Telling captures apart, where copies go, and what is looked for in them."""

from __future__ import annotations

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

import gpusight as gs
from gpusight.analysis.corrected_trace import correction_of
from gpusight.analysis.profiler_correction import without_profiler
from gpusight.analysis.steps.step_list import known_pace
from gpusight.errors import GpusightError, UsageError
from gpusight.pace import MESSAGE, Pace, sidecar_path
from gpusight.readers.file_blocks import BLOCK_BYTES
from gpusight.readers.open import open_trace
from gpusight.sharing import sanitized_copy as sharing
from gpusight.sharing.leak_report import Category, LeakScan, ShareOptions
from gpusight.sharing.sanitized_copy import check, options_of, share
from gpusight.sharing.share_nsys import NsysCleaner
from tests.profiled_loops import profiled_loop, step_ns, stored_pace, write_torch
from tests.shared import DATA

CAPTURE = DATA / "graph.sqlite"


def test_copies_lie_where_they_are_asked_for(tmp_path: Path) -> None:
    before = CAPTURE.read_bytes()
    view = gs.share(CAPTURE, tmp_path / "copy.sqlite")
    assert view.path == tmp_path / "copy.sqlite"
    assert CAPTURE.read_bytes() == before
    assert {leak.category for leak in view.leaks} >= {Category.COMMAND_LINES, Category.HOST_NAMES}
    assert list(tmp_path.iterdir()) == [view.path]
    assert "command lines" in view.to_text()


def test_without_a_name_the_copy_lies_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert gs.share(CAPTURE).path == Path("graph.shared.sqlite")
    assert gs.share(DATA / "healthy.json.gz").path == Path("healthy.shared.json.gz")


@pytest.mark.parametrize("name", ["tables", "tables.parquet"])
def test_a_folder_is_parquet(tmp_path: Path, name: str) -> None:
    path = gs.share(CAPTURE, tmp_path / name).path
    assert path is not None
    assert (path / "CUPTI_ACTIVITY_KIND_RUNTIME.parquet").is_file()
    assert all(file.suffix == ".parquet" for file in path.iterdir())
    assert open_trace(path, cache=False).has("api_calls")


def test_tables_of_many_pieces_become_one_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gpusight.readers.nsys.sqlite_export._PIECE_ROWS", 100)
    capture = DATA / "gpt_small_forward.sqlite"
    whole = open_trace(capture, cache=False).table("kernels", ["start_ns", "end_ns", "stream"])
    for name in ("copy.sqlite", "copy"):
        path = gs.share(capture, tmp_path / name).path
        assert path is not None
        copy = open_trace(path, cache=False).table("kernels", ["start_ns", "end_ns", "stream"])
        assert copy.equals(whole)


@pytest.mark.parametrize(
    ("capture", "output", "message"),
    [
        (CAPTURE, "taken.sqlite", "exists already"),
        (CAPTURE, "copy.nsys-rep", "has the wrong extension"),
        (CAPTURE, "nowhere/copy.sqlite", "no folder"),
        (DATA / "healthy.json.gz", "copy.sqlite", "has the wrong extension"),
        (DATA / "memory_snapshot.pickle", "copy.pickle", "cannot be shared"),
        (DATA / "jax_small.xplane.pb", "copy.pb", "cannot be shared"),
        (DATA / "gpt_small_train_key_averages.txt", "copy.txt", "cannot be shared"),
        (DATA / "nothing.sqlite", "copy.sqlite", "no such file"),
    ],
)
def test_what_cannot_be_written_is_refused(
    tmp_path: Path, capture: Path, output: str, message: str
) -> None:
    (tmp_path / "taken.sqlite").write_text("mine")
    with pytest.raises(GpusightError) as raised:
        share(capture, tmp_path / output, options_of())
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)
    assert [p.name for p in tmp_path.iterdir()] == ["taken.sqlite"]
    assert (tmp_path / "taken.sqlite").read_text() == "mine"


def test_the_capture_is_never_the_target(tmp_path: Path) -> None:
    capture = tmp_path / "run.sqlite"
    shutil.copyfile(CAPTURE, capture)
    with pytest.raises(UsageError, match="the capture itself"):
        share(capture, capture, options_of())
    folder = gs.share(capture, tmp_path / "folder").path
    assert folder is not None
    with pytest.raises(UsageError, match="the capture itself"):
        share(folder, folder / "inside", options_of())


def _with_host_in_every_text(path: Path) -> Path:
    shutil.copyfile(DATA / "gpt_small_forward.sqlite", path)
    with closing(sqlite3.connect(path)) as db:
        for table, column in (
            ("META_DATA_CAPTURE", "value"),
            ("TARGET_INFO_SYSTEM_ENV", "value"),
            ("PROCESSES", "name"),
            ("DIAGNOSTIC_EVENT", "text"),
        ):
            db.execute(f"UPDATE {table} SET {column} = {column} || ' node7.acme'")
        db.commit()
    return path


def test_a_baseline_has_nothing_to_remove(tmp_path: Path) -> None:
    path = tmp_path / "baseline.json"
    gs.baseline(_with_host_in_every_text(tmp_path / "run.sqlite"), path)
    assert "acme" not in path.read_text(encoding="utf-8")
    with pytest.raises(UsageError, match=r"nothing to remove.*names of capture files"):
        check(path, options_of())


def test_options_that_do_nothing_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="salt"):
        options_of(salt="x")
    with pytest.raises(UsageError, match="--to is for nsys"):
        share(DATA / "healthy.json.gz", tmp_path / "copy.json.gz", options_of(), to="sqlite")


def test_a_failure_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: NsysCleaner, output: Path, options: ShareOptions, *, name: str) -> None:
        del options, name
        output.write_text("half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(NsysCleaner, "write", fail)
    with pytest.raises(GpusightError, match="No space left on device; make room"):
        share(CAPTURE, tmp_path / "copy.sqlite", options_of())
    assert not list(tmp_path.iterdir())


def test_a_broken_capture_leaves_nothing(tmp_path: Path) -> None:
    broken = tmp_path / "broken.sqlite"
    content = bytearray(CAPTURE.read_bytes())
    content[8192:100_000] = bytes(len(content[8192:100_000]))
    broken.write_bytes(content)
    with pytest.raises(GpusightError):
        share(broken, tmp_path / "copy.sqlite", options_of())
    assert [p.name for p in tmp_path.iterdir()] == ["broken.sqlite"]


def test_salts_make_copies_comparable(tmp_path: Path) -> None:
    names = []
    for number, salt in enumerate(("one", "one", None, None)):
        view = gs.share(
            DATA / "odd_node.sqlite", tmp_path / f"{number}.sqlite", hash_names=True, salt=salt
        )
        assert view.path is not None
        kernels = open_trace(view.path, cache=False).table("kernels", ["name"])["name"]
        names.append(set(kernels.cast(str).to_list()))
        assert b"one" not in view.path.read_bytes()[:100]
    assert names[0] == names[1]
    assert len({frozenset(own_names) for own_names in names}) == 3


def _with_user_in_a_range(path: Path) -> Path:
    shutil.copyfile(DATA / "gpt_small_forward.sqlite", path)
    with closing(sqlite3.connect(path)) as db:
        db.execute("UPDATE META_DATA_CAPTURE SET value = '/home/agatha.k/x' WHERE rowid = 1")
        db.execute("UPDATE META_DATA_CAPTURE SET name = 'PROCESS_0:WORKING_DIR' WHERE rowid = 1")
        db.execute("UPDATE NVTX_EVENTS SET text = 'run of agatha.k' WHERE rowid = 3")
        db.commit()
    return path


@pytest.mark.parametrize("name", ["copy.sqlite", "copy"])
def test_what_is_still_in_a_name_is_said_and_not_shown(tmp_path: Path, name: str) -> None:
    capture = _with_user_in_a_range(tmp_path / "run.sqlite")
    view = gs.share(capture, tmp_path / name)
    assert [(leak.category, leak.count) for leak in view.remains] == [(Category.USER_NAMES, 1)]
    assert "part of a name that was kept" in view.to_text()
    assert "agatha" not in view.to_text() + view.to_json()
    hashed = gs.share(capture, tmp_path / f"h{name}", hash_names=True)
    assert hashed.remains == ()


def test_what_lies_across_two_pieces_of_a_copy_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sharing, "_BLOCKS_AT_ONCE", 1)
    copy = tmp_path / "copy.json"
    copy.write_bytes(b"x" * (BLOCK_BYTES - 3) + b"node7.acme" + b"x" * BLOCK_BYTES)
    result = LeakScan((), hidden=((Category.HOST_NAMES, "node7.acme"),))
    assert [leak.where for leak in sharing._leftovers(result, copy)] == ["names that are kept"]


def test_a_look_writes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = check(CAPTURE, options_of())
    assert result.path is None
    assert gs.share_check(CAPTURE).leaks == result.leaks
    assert not list(tmp_path.iterdir())


def test_values_are_never_part_of_an_answer() -> None:
    with closing(sqlite3.connect(f"file:{CAPTURE}?immutable=1", uri=True)) as db:
        values = [v for (v,) in db.execute("SELECT value FROM META_DATA_CAPTURE") if v]
    text = gs.share_check(CAPTURE).to_json()
    assert not [v for v in values if len(v) > 5 and v in text]


PACE = Pace(12, 11_400_000, 11_300_000, 0.05, "before", "optimizer")
SHARED_PACES = {"hashed.sqlite": True, "plain.sqlite": False, "folder": True}


def _corrected(capture: Path) -> tuple[Pace | None, float]:
    trace = open_trace(capture, cache=False)
    correction = correction_of(without_profiler(trace))
    assert correction is not None
    return known_pace(trace), correction.step_ns


def test_copies_keep_the_step_time_without_the_profiler(tmp_path: Path) -> None:
    """An NVTX mark of nsys, with something in it that the recorder did not write."""
    capture = tmp_path / "run.sqlite"
    shutil.copyfile(DATA / "dataload.sqlite", capture)
    mark = MESSAGE + PACE.to_text().replace("{", '{"user":"agatha.k",', 1)
    with closing(sqlite3.connect(capture)) as db:
        columns = "start, globalTid, domainId"
        db.execute(
            f"INSERT INTO NVTX_EVENTS ({columns}, eventType, text) "
            f"SELECT {columns}, 34, ? FROM NVTX_EVENTS WHERE rowid = 2",
            (mark,),
        )
        db.commit()
    expected = _corrected(capture)
    assert expected[0] == PACE
    for name, hash_names in SHARED_PACES.items():
        path = gs.share(capture, tmp_path / name, hash_names=hash_names).path
        assert path is not None
        assert _corrected(path) == expected
        assert not sidecar_path(path).exists()
    assert b"agatha" not in (tmp_path / "plain.sqlite").read_bytes()


def test_copies_keep_the_step_time_of_a_torch_trace(tmp_path: Path) -> None:
    stored = stored_pace(step_ns(profiled_loop())) | {"user": "agatha.k"}
    capture = write_torch(profiled_loop(overhead_us=4), tmp_path / "run.json.gz", stored)
    expected = _corrected(capture)
    for name, hash_names in (("plain.json", False), ("hashed.json", True)):
        path = gs.share(capture, tmp_path / name, hash_names=hash_names).path
        assert path is not None
        assert _corrected(path) == expected
        assert b"agatha" not in path.read_bytes()


def test_copies_keep_the_step_time_next_to_a_report(tmp_path: Path) -> None:
    capture = tmp_path / "run.nsys-rep"
    shutil.copyfile(DATA / "dataload.nsys-rep", capture)
    sidecar_path(capture).write_text(PACE.to_text())
    view = gs.share(capture, tmp_path / "copy.sqlite")
    assert "send both files" in view.to_text()
    assert view.path is not None
    assert _corrected(view.path) == _corrected(capture)
    # A file that is there would become the step time of another capture.
    sidecar_path(tmp_path / "other.sqlite").write_text(PACE.to_text())
    with pytest.raises(UsageError, match="exists already"):
        gs.share(DATA / "graph.sqlite", tmp_path / "other.sqlite")


def test_a_damaged_step_time_is_not_copied(tmp_path: Path) -> None:
    damaged = {"version": 1, "steps": "agatha.k"}
    capture = write_torch(profiled_loop(steps=2), tmp_path / "run.json.gz", damaged)
    path = gs.share(capture, tmp_path / "copy.json").path
    assert path is not None
    assert b"agatha" not in path.read_bytes()
